"""The law of what is printed to be typed: each such line runs, with exit code 0 or 1, and each offered flag helps.

Lines that load an output into a model are run on a model that has the names of the file;
tests/oracles/test_load_lines.py runs them on those of libraries.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from tests import typed_lines
from tests.hostile.command import Ran, quick

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
FINDINGS = SHARED / "findings" / "field"
NO_INPUT = {".md", ".py", ".pyc", ".json", ".txt", ".toml", ".distcp"}
pytestmark = pytest.mark.filterwarnings("ignore")
COMMANDS = {
    "inspect": ("inspect", "IN"),
    "dedup": ("dedup", "IN", "-o", "out.safetensors"),
    "dedup.pt": ("dedup", "IN", "-o", "out.pt"),
    "convert": ("convert", "IN", "--to", "torch", "-o", "out.safetensors"),
    "export": ("export", "IN", "--all-names", "-o", "out.safetensors"),
    "guess": ("guess", "IN"),
}


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


def typed(words: list[str], ran: Ran, folder: Path) -> None:
    """Run all that a command printed to be typed, and what that prints to prove an output."""
    for text in typed_lines.python(ran.out):
        if not text.startswith("peft."):
            run_python(text, folder)
    before = {*folder.iterdir()}
    for line in typed_lines.commands(ran.out, ran.err):
        if line == words:
            continue
        again = quick(*line, cwd=folder)
        lists = line[0] == "inspect" and again.code == 4  # its answer for an unsafe file, which it lists
        assert (again.code in (0, 1) or lists) and again.out, (line, again, words, ran)
        for made in {*folder.iterdir()} - before:  # lines of one report are alternatives
            shutil.rmtree(made) if made.is_dir() else made.unlink()
    for flag in typed_lines.flags(ran.err):
        again = quick(*words, flag, cwd=folder)
        assert again.code == 0 or flag != "--skip-unsupported", (words, flag, ran, again)


CASES = [
    pytest.param(path, name, id=f"{path.parent.name}/{path.name}-{name}")
    for path in inputs()
    for name in COMMANDS
    if (path.name, name) != ("d_exp", "inspect")  # `dedup` of it writes 34 GB, where the disk has room for them
]


@pytest.mark.sample(40)
@pytest.mark.parametrize(("path", "name"), CASES)
def test_what_is_printed_to_be_typed_works(path: Path, name: str, tmp_path: Path) -> None:
    """Every file with the commands that print most of these lines."""
    where = placed(path, tmp_path)
    words = [where.name if word == "IN" else word for word in COMMANDS[name]]
    typed(words, quick(*words, cwd=tmp_path), tmp_path)
