"""Sentences of docs/security.md that no other test asks directly."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.formats.scan import ScanBudget
from paramtool.formats.torch.names import Bounds
from paramtool.formats.zip import directory
from paramtool.model import inflating
from tests.hostile.command import quick

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SIZES = {"MiB": 1 << 20, "GB": 1000**3, "": 1}


class Calls:
    """What calls when it is unpickled."""

    def __init__(self, function: Callable[[str], object] = print) -> None:
        self.function = function

    def __reduce__(self) -> tuple[object, ...]:
        return self.function, ("called",)


class Settings:
    """A class that paramtool does not know, and that only holds data."""

    def __init__(self) -> None:
        self.rate = 0.5


def limit(row: str) -> tuple[float, float]:
    """What the page says of a limit: for each byte of a file, and at least."""
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row}"))
    each, least = line.strip("| ").split(" | ")[1:]
    number, _, unit = least.partition(" ")
    return (1 / 4 if each == "1/4" else float(each)), float(number.replace(",", "")) * SIZES[unit]


LIMITS: dict[str, Callable[[int], float]] = {
    "objects that a pickle": lambda nbytes: Bounds.of(nbytes).places,
    "tensors in a pickle": lambda nbytes: Bounds.of(nbytes).tensors,
    "characters of their": lambda nbytes: Bounds.of(nbytes).characters,
    "bytes of a zip member": lambda nbytes: directory.inflatable(nbytes),
    "bytes that are searched": lambda nbytes: ScanBudget.of(nbytes).left,
    "bytes of tensors that": lambda nbytes: inflating.Budget(nbytes)._most,
}


@pytest.mark.parametrize("row", LIMITS)
def test_a_limit_is_what_the_page_says(row: str) -> None:
    each, least = limit(row)
    assert LIMITS[row](0) == least and LIMITS[row](1 << 40) == each * (1 << 40)


def repeated(value: object, times: int) -> dict[str, object]:
    """A value that many places of a pickle refer to."""
    return {"w": torch.ones(2), "held": [value] * times}


EXPANDED = {
    "objects": (repeated([0] * 99, 900), repeated([0] * 99, 1010)),
    "tensors": (repeated(torch.ones(2), 19_000), repeated(torch.ones(2), 20_010)),
    "characters": (repeated("x" * 100_000, 80), repeated("x" * 100_000, 90)),
}
"""What is below a limit, and what is above, in a file so small that the least limit counts."""


@pytest.mark.parametrize("what", EXPANDED)
def test_what_expands_beyond_a_limit_is_unsafe(what: str, tmp_path: Path) -> None:
    for value, code in zip(EXPANDED[what], (0, 4), strict=True):
        torch.save(value, tmp_path / "m.pt")
        ran = quick("inspect", "m.pt", "--json", cwd=tmp_path)
        assert ran.code == code, ran.err


def test_the_whole_file_counts_where_a_section_is_asked_for(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": {"w": torch.ones(2), "c": Calls()}}, tmp_path / "m.pt")
    for words in (("inspect", "m.pt"), ("dedup", "m.pt", "-o", "out.pt"), ("export", "m.pt", "-o", "o.npz")):
        ran = quick(*words, "--only", "model", cwd=tmp_path)
        assert ran.code == 4 and "builtins.print" in ran.err, ran


def test_fail_on_unsafe_has_a_line_for_each_call(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "a": Calls(print), "b": Calls(len), "c": Settings()}, tmp_path / "m.pt")
    ran = quick("inspect", "m.pt", "--fail-on", "unsafe", cwd=tmp_path)
    found = re.findall(r"^finding: unsafe: (\S+)\(", ran.out + ran.err, re.MULTILINE)
    assert ran.code == 4 and sorted(found) == ["builtins.len", "builtins.print"], ran


def test_an_allowed_class_is_not_necessarily_writable(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "s": Settings()}, tmp_path / "m.pt")
    name = f"{Settings.__module__}.Settings"
    assert quick("inspect", "m.pt", "--fail-on", "unknown-class", "--allow-class", name, cwd=tmp_path).code == 0
    ran = quick("dedup", "m.pt", "-o", "out.pt", "--allow-class", name, cwd=tmp_path)
    assert ran.code == 6 or "Settings" in ran.out + ran.err, ran


def test_nothing_is_given_to_an_unpickler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by `load_model`, either."""
    model = nn.Linear(2, 3)
    torch.save(model.state_dict(), tmp_path / "m.pt")

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a file was unpickled")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, refuse)
    paramtool.torch.load_model(nn.Linear(2, 3), tmp_path / "m.pt")
    assert paramtool.torch.load_file(tmp_path / "m.pt").keys() == {"weight", "bias"}
    for words in (("inspect", "m.pt"), ("dedup", "m.pt", "-o", "o.pt"), ("diff", "m.pt", "o.pt")):
        assert quick(*words, cwd=tmp_path).code == 0
