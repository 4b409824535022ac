"""The law of what is printed to be typed: each such line runs, with exit code 0 or 1, and each offered option helps.

Lines that load an output into a model are run on a model that has the names of the file;
tests/oracles/test_load_lines.py runs them on those of libraries.
"""

from __future__ import annotations

import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.formats.table import FORMATS
from tests import typed_lines
from tests.hostile.command import Ran, quick

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
FINDINGS = SHARED / "findings" / "field"
NO_INPUT = {".md", ".py", ".pyc", ".json", ".txt", ".toml", ".distcp"}
pytestmark = pytest.mark.filterwarnings("ignore")
OTHER = ROOT / "fixtures" / "torch" / "tied_flattened" / "tied_flattened.pt"
MODELS = {
    "keras": ROOT / "fixtures" / "guess" / "keras_model.keras",
    "onnx": ROOT / "fixtures" / "onnx" / "exported_rnn" / "exported_rnn.onnx",
}
WRITTEN = [*dict.fromkeys(suffix for row in FORMATS for suffix in row.written), ".keras"]
COMMANDS = {
    "inspect": ("inspect", "IN"),
    "inspect --optimizer": ("inspect", "IN", "--optimizer"),
    "dedup": ("dedup", "IN", "-o", "out.safetensors"),
    "dedup.pt": ("dedup", "IN", "-o", "out.pt"),
    "dedup, as it names it": ("dedup", "IN"),
    "dedup to shards": ("dedup", "IN", "-o", "out", "--max-shard-size", "20kB"),
    "convert": ("convert", "IN", "--to", "torch", "-o", "out.safetensors"),
    "export": ("export", "IN", "--all-names", "-o", "out.safetensors"),
    "export --like": ("export", "IN", "--like", "OTHER", "-o", "out.safetensors"),
    "guess": ("guess", "IN"),
    "diff": ("diff", "IN", "OTHER", "--exit-code"),
    "verify": ("verify", "OTHER", "--against", "IN"),
    "lock": ("lock", "IN"),
    "check": ("check", "IN"),
    "variants": ("variants", "IN", "--against", "OTHER"),
    "report": ("report", "IN", "-o", "out.html"),
    "fuse --layout cudnn": ("fuse", "IN", "--layout", "cudnn", "-o", "out.safetensors"),
    "fuse --layout qkv": ("fuse", "IN", "--layout", "qkv", "-o", "out.safetensors"),
    "unfuse": ("unfuse", "IN"),
    "unfuse --layout cudnn": ("unfuse", "IN", "--layout", "cudnn", "-o", "out.safetensors"),
    "convert --to keras": ("convert", "IN", "--to", "keras", "-o", "out.safetensors"),
    "convert --to vllm": ("convert", "IN", "--to", "vllm", "-o", "out"),
    "convert --dtype float16": ("convert", "IN", "--dtype", "float16", "-o", "out.safetensors"),
    "convert --dtype float8": ("convert", "IN", "--dtype", "float8_e4m3fn", "-o", "out.safetensors"),
    "convert --dequantise": ("convert", "IN", "--dequantise", "-o", "out.safetensors"),
    "convert --format dcp": ("convert", "IN", "--format", "dcp", "-o", "out"),
} | {f"convert -o {suffix}": ("convert", "IN", "-o", f"out{suffix}") for suffix in WRITTEN} | {
    f"convert --into {kind}": ("convert", "IN", "--into", f"model.{kind}", "-o", f"out.{kind}") for kind in MODELS
}  # fmt: skip
BIG = 1 << 30
"""What is allowed beyond the limits is not written in a test where it is more than this."""


def inputs() -> list[Path]:
    """Files, and folders with files that are read as one, of the fixtures, the samples and the findings."""
    found = []
    for root, deepest in ((ROOT / "fixtures", 3), (SHARED / "samples", 1), (FINDINGS, 9)):
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            depth = len(path.relative_to(root).parts)
            if path.is_dir():
                is_input = depth > (2 if root.name == "fixtures" else 1) and any(map(Path.is_file, path.iterdir()))
            else:
                is_input = depth <= deepest and path.suffix not in NO_INPUT and path.name != ".metadata"
            found += [path] * (is_input and "__pycache__" not in path.parts)
    return found


def placed(path: Path, folder: Path) -> Path:
    """A copy of an input, with the files that belong to it, so that outputs beside it are no harm."""
    if path.is_dir():
        shutil.copytree(path, folder / path.name)
    else:
        few = FINDINGS in path.parents or path.parent.name == "samples"
        for one in path.parent.iterdir():
            beside = one.name.startswith((path.stem, path.name.partition("-")[0])) or one.name == "config.json"
            if one.is_file() and one.suffix != ".py" and (beside or not few):
                shutil.copyfile(one, folder / one.name)
    for one in folder.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)
    return folder / path.name


def of_names(names: dict[str, torch.Tensor]) -> nn.Module | None:
    """A model with these names; None where one of them is also a module."""
    top = nn.Module()
    for name, value in names.items():
        *path, last = name.split(".")
        at = top
        for part in path:
            if part in at._parameters or part in at._buffers or not part:
                return None
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]  # type: ignore[assignment]
        if last in at._modules or not last or hasattr(at, last):
            return None
        new = torch.zeros_like(value)
        (at.register_parameter(last, nn.Parameter(new)) if new.is_floating_point() else at.register_buffer(last, new))
    return top


def run_python(line: str, folder: Path) -> None:
    """A printed line of Python: what it loads is there."""
    here = os.getcwd()

    def load_model(model: object, path: str, *, prefix: str = "", only: str | None = None, strict: bool = True) -> None:
        held = paramtool.torch.load_file(path, only=only)
        names = {name.removeprefix(prefix): value for name, value in held.items() if name.startswith(prefix)}
        if sum(value.numel() for value in held.values()) > 1 << 24:
            return
        made = of_names({name: value for name, value in names.items() if name != "n_averaged"})
        if made is not None:
            paramtool.torch.load_model(made, path, prefix=prefix, only=only, strict=strict)

    known: Any = type("known", (), {"torch": type("known", (), {"load_model": staticmethod(load_model)})})
    try:
        os.chdir(folder)
        eval(line, {"paramtool": known, "torch": torch, "model": None})
    except ModuleNotFoundError as error:  # a class of another Python, as in its source
        assert "weights_only=False" in line, error
    finally:
        os.chdir(here)


def typed(words: list[str], ran: Ran, folder: Path, *, seen: set[tuple[str, ...]] | None = None) -> int:
    """Run all that a command printed to be typed, and what that prints in its turn; the number of lines.

    An option that a hint offers makes the command work, or show that something else is wrong.
    """
    seen = {tuple(words)} if seen is None else seen
    for text in typed_lines.python(ran.out):
        if not text.startswith("peft."):
            run_python(text, folder)
    strange = [*typed_lines.strange(words[0], ran.err)]
    assert not strange, (strange, words, ran)
    before = {*folder.rglob("*")}
    lines = [(line, False) for line in typed_lines.commands(ran.out, ran.err, words[1])]
    lines += [(line, True) for line in typed_lines.offers(words, ran.err)]
    count = 0
    for line, is_offer in lines:
        if tuple(line) in seen:
            continue
        seen.add(tuple(line))
        count += 1
        more = dict(pairwise(line)).get("--max-inflated", "0")
        again = quick(*line, *(["--dry-run"] if int(more) > BIG else []), cwd=folder)
        lists = line[0] == "inspect" and again.code == 4  # its answer for an unsafe file, which it lists
        works = (again.code in (0, 1) or lists) and again.out
        assert works or (is_offer and again.err != ran.err and again.code != 70), (line, again, words, ran)
        is_proof = line[0] == "verify" and ran.code == 0 and not is_offer
        assert again.code == 0 or not is_proof, (line, again, words, ran)
        if again.code in (0, 1):
            count += typed(line, again, folder, seen=seen)
        for made in sorted({*folder.rglob("*")} - before, reverse=True):  # lines of one report are alternatives
            made.rmdir() if made.is_dir() and not made.is_symlink() else made.unlink()
    return count


CASES = [
    pytest.param(path, name, id=f"{path.parent.name}/{path.name}-{name}") for path in inputs() for name in COMMANDS
]


@pytest.mark.sample(60)
@pytest.mark.parametrize(("path", "name"), CASES)
def test_what_is_printed_to_be_typed_works(path: Path, name: str, tmp_path: Path, record_property: Any) -> None:
    """Every file with every command and with every suffix that is written."""
    where = placed(path, tmp_path)
    for kind, model in MODELS.items():
        if f"model.{kind}" in COMMANDS[name]:
            shutil.copyfile(model, tmp_path / f"model.{kind}")
    if "OTHER" in COMMANDS[name]:
        shutil.copyfile(OTHER, tmp_path / "other.pt")
    words = [{"IN": where.name, "OTHER": "other.pt"}.get(word, word) for word in COMMANDS[name]]
    record_property("lines", typed(words, quick(*words, cwd=tmp_path), tmp_path))


def test_a_command_that_a_text_names_has_what_it_takes() -> None:
    """After `paramtool` a text has a whole command; a command alone is called by its name, as in `export --names`."""
    names = "inspect|variants|report|dedup|export|convert|fuse|unfuse|guess|diff|lock|verify"
    texts = (ROOT / "tests" / "golden" / "texts.txt").read_text(encoding="utf-8")
    bare = re.findall(rf"paramtool (?:{names})(?: --(?!help)[a-z-]+)+(?=`|$|[;:,)]| [a-z]+ )", texts, re.MULTILINE)
    assert not bare, bare
