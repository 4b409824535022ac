"""docs/add-a-rule.md, add-a-command.md and add-a-dialect.md, followed to the letter in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(
    r"(?:In `(?P<path>[^`]+)`, (?P<where>before|after) the line with `(?P<line>[^`]+)`|A new file `(?P<new>[^`]+)`):"
    r"\n\n```(?P<language>python|text|json)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def follow(name: str, copy: Path) -> None:
    """Do each step of a page in a copy of the package; every block of Python and of lines belongs to a step."""
    steps = [*STEP.finditer(joined(page(name)))]
    assert len(steps) == len(re.findall("^```(?:python|text|json)$", page(name), re.M)) > 1
    for step in steps:
        if step["new"]:
            path = copy / step["new"]
            assert not path.exists()
            path.write_text(step["text"], encoding="utf-8")
            continue
        path = copy / step["path"]
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (at,) = (number for number, line in enumerate(lines) if step["line"] in line)
        between = "\n\n" if step["language"] == "python" else ""  # lines between functions
        lines.insert(at + (step["where"] == "after"), step["text"] + between)
        path.write_text("".join(lines), encoding="utf-8")


def joined(text: str) -> str:
    """A page whose sentences are on one line each; blocks stay."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if k % 2 else re.sub(r"(?<=\S)\n(?=\S)", " ", part) for k, part in enumerate(parts))


def typed(name: str, copy: Path, folder: Path) -> None:
    """Type the commands of a page: one that finds something exits with 1."""
    found = "".join(re.findall(r"^```console\n(.*?)^```$", page(name), re.M | re.S))
    for part in found.split("$ ")[1:]:
        line, *printed = part.splitlines()
        program, *words = line.split()
        assert program == "paramtool"
        ran = subprocess.run([sys.executable, "-m", "paramtool", *words], cwd=folder, capture_output=True, text=True,
                             timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(copy)})  # fmt: skip
        assert ran.returncode == int(re.search(r"^finding\b", ran.stdout + ran.stderr, re.M) is not None), ran
        assert all(text in (ran.stdout + ran.stderr).splitlines() for text in printed), ran


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package."""
    shutil.copytree(ROOT / "paramtool", tmp_path / "copy/paramtool", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def test_a_rule(copy: Path, tmp_path: Path) -> None:
    """Its findings are printed, by `check` with the new id."""
    follow("add-a-rule.md", copy)
    save_file({"conv.weight": torch.ones(2, 1, 3, 3), "conv.bias": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "paramtool.toml").write_text("max-axes = 3\n")
    typed("add-a-rule.md", copy, tmp_path)


def test_a_command(copy: Path, tmp_path: Path) -> None:
    """It counts, prints JSON and is in the help."""
    follow("add-a-command.md", copy)
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "model.safetensors")
    typed("add-a-command.md", copy, tmp_path)


def test_a_dialect(copy: Path, tmp_path: Path) -> None:
    """A GPT-2 of transformers has its names, and comes back with every byte."""
    import transformers

    follow("add-a-dialect.md", copy)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=7, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    typed("add-a-dialect.md", copy, tmp_path)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert {"tokens.weight", "1.up.bias"} <= load_file(tmp_path / "out/model.safetensors").keys()
