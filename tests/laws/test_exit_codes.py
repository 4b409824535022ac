"""One order of exit codes in every command: of 70, 4, 3, 2 and 1 the first that applies, whatever stands beside it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool.cli.main import COMMANDS
from tests.examples import examples
from tests.hostile.command import quick

PARTS = {f"l.self_attn.{part}_proj.weight": torch.eye(8) for part in "qkv"}


class Calls:
    """What calls when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


def clean(path: Path) -> None:
    torch.save(dict(PARTS), path)


def different(path: Path) -> None:
    torch.save({name: tensor * 2 for name, tensor in PARTS.items()}, path)


def unsafe(path: Path) -> None:
    torch.save({**PARTS, "c": Calls()}, path)


def unsafe_and_damaged(path: Path) -> None:
    unsafe(path)
    path.write_bytes(path.read_bytes()[:-30])


def unreadable(path: Path) -> None:
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{not a header}")


def missing(path: Path) -> None:
    """Nothing is there."""


def out_of_the_folder(path: Path) -> None:
    """An index, which its content shows."""
    path.write_text('{"weight_map": {"a": "../a.bin"}}')


def in_a_folder(path: Path) -> None:
    """Clean weights, and an unsafe file with other weights in a folder below."""
    (path / "sub").mkdir(parents=True)
    clean(path / "pytorch_model.bin")
    unsafe(path / "sub" / "x")


def broken_beside_unsafe(path: Path) -> None:
    """No weights that can be read, and what is no file of the model."""
    path.mkdir()
    unreadable(path / "model.safetensors")
    (path / "scheduler.pt").write_bytes(pickle.dumps(Calls(), 2))


def two_beside_unsafe(path: Path) -> None:
    """Two sets of weights that differ."""
    path.mkdir()
    for number in (1, 2):
        save_file({name: np.eye(8) * number for name in PARTS}, path / f"{number}.safetensors")
    (path / "scheduler.pt").write_bytes(pickle.dumps(Calls(), 2))


def clean_folder(path: Path) -> None:
    path.mkdir()
    save_file({name: np.eye(8) for name in PARTS}, path / "model.safetensors")


def folder_beside_unsafe(path: Path) -> None:
    """Clean weights, and what is no file of the model: a neighbour, which is a warning."""
    clean_folder(path)
    (path / "scheduler.pt").write_bytes(pickle.dumps(Calls(), 2))


CODES: dict[Callable[[Path], None], int] = {
    clean: 0, different: 0, unsafe: 4, unsafe_and_damaged: 4, unreadable: 3, missing: 3, out_of_the_folder: 4,
    in_a_folder: 4, clean_folder: 0, broken_beside_unsafe: 4,
    folder_beside_unsafe: 0,
}  # fmt: skip
"""What each input is."""
LINES: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "x", "y"),
    "inspect, rules": ("inspect", "x", "y", "--fail-on", "missing:nothing"),
    "variants": ("variants", "x", "--against", "y"),
    "variants, names": ("variants", "x", "--against", "names.txt"),
    "report": ("report", "x", "y", "-o", "out"),
    "dedup": ("dedup", "x", "-o", "out"),
    "dedup --each": ("dedup", "x", "--each", "-o", "out"),
    "dedup, family": ("dedup", "x", "y", "-o", "out"),
    "export": ("export", "x", "--names", "names.txt", "-o", "out"),
    "convert": ("convert", "x", "--dtype", "bfloat16", "-o", "out"),
    "convert --into": ("convert", "x", "--into", "y", "-o", "out"),
    "fuse": ("fuse", "x", "--layout", "qkv", "-o", "out"),
    "unfuse": ("unfuse", "x", "-o", "out"),
    "guess": ("guess", "x"),
    "diff": ("diff", "x", "y", "--exit-code"),
    "lock": ("lock", "x", "y", "-o", "out"),
    "check": ("check", "x", "y"),
    "check, rules": ("check", "x", "y", "--fail-on", "missing:nothing"),
    "verify": ("verify", "x", "--against", "y"),
    "verify --each": ("verify", "x", "--against", "y", "--each"),
}
ONLY = [name for name, line in LINES.items() if line[0] in ("dedup", "inspect", "export", "convert", "diff")]
"""Commands that take the name of a section, which is usage where there is none."""


def test_every_command_is_tried() -> None:
    """`layouts` reads no checkpoint."""
    assert {line[0] for line in LINES.values()} == COMMANDS.keys() - {"layouts"}


def ran(folder: Path, name: str, inputs: Collection[Callable[[Path], None]], usage: bool, exists: bool) -> int:
    """The exit code of a command in a folder with such inputs; nothing else is there then than before."""
    for word, make in zip("xy", inputs, strict=True):
        if word in LINES[name]:
            make(folder / word)
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in PARTS))
    if exists and "out" in LINES[name]:
        (folder / "out").write_text("mine")
    before = sorted(os.walk(folder))
    words = (*LINES[name], *(("--only", "nothing") if usage and name in ONLY else ()))
    found = quick(*words, cwd=folder)
    assert not found.code or sorted(os.walk(folder)) == before or found.code == 1, found
    return found.code


def of_clean(name: str, inputs: tuple[Callable[[Path], None], ...]) -> int:
    """Of inputs with which nothing is wrong: 1 for what was asked and does not hold, 2 and 5 for what does not fit."""
    command, (x, y) = LINES[name][0], inputs
    files = [make in (clean, different) for make in inputs]
    if name == "diff":  # which passes other types of the same numbers
        return int((x is different) != (y is different))
    if command == "verify":
        return 2 if "--each" in LINES[name] and any(files) else int(x is not y)
    if command == "unfuse" and not files[0]:  # nothing there is fused
        return 5
    is_alone = command in ("dedup", "export", "convert", "fuse", "unfuse") and name != "dedup, family"
    if name == "convert --into" or (is_alone and files[0]):  # `-o out` names no format
        return 2
    return int(name.endswith("rules"))


def expected(name: str, inputs: tuple[Callable[[Path], None], ...], usage: bool, exists: bool) -> set[int]:
    """4 where an input is unsafe; then 3, or 7 where the output is there already, which comes first; then 2; then 1.

    An unsafe neighbour is 4 where it is listed, and where the command fails for anything else.
    """
    given = [make for word, make in zip("xy", inputs, strict=True) if word in LINES[name]]
    said = {CODES[make] for make in given}
    if 4 in said:
        return {4}
    if exists and "out" in LINES[name]:
        codes = {7, 3 if 3 in said else 2, *([2] if "--each" in LINES[name] else [])}
    elif 3 in said:  # a file where a folder is asked for is no folder, whatever it holds
        codes = {2, 3} if "--each" in LINES[name] else {3}
    elif usage and name in ONLY:
        codes = {2}
    else:
        codes = {of_clean(name, inputs)}
    fails = codes.isdisjoint({0, 1}) or LINES[name][0] in ("inspect", "check")
    return {4} if folder_beside_unsafe in given and fails else codes


def holds(folder: Path, name: str, inputs: tuple[Callable[[Path], None], ...], usage: bool, exists: bool) -> None:
    assert ran(folder, name, inputs, usage, exists) in expected(name, inputs, usage, exists)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("make", CODES)
def test_of_each_input(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    """In the first place and in the last, alone, with a wrong section and with an output that is there."""
    for number, (inputs, usage, exists) in enumerate(
        [((make, clean), False, False), ((clean, make), False, True), ((missing, make), True, False)]
    ):
        (tmp_path / str(number)).mkdir()
        holds(tmp_path / str(number), name, inputs, usage, exists)


@settings(max_examples=examples(400))
@given(
    name=st.sampled_from(sorted(LINES)),
    inputs=st.tuples(*[st.sampled_from(sorted(CODES, key=lambda make: make.__name__))] * 2),
    usage=st.booleans(),
    exists=st.booleans(),
)
def test_of_any_inputs(
    name: str, inputs: tuple[Callable[[Path], None], ...], usage: bool, exists: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    holds(tmp_path_factory.mktemp("codes"), name, inputs, usage, exists)


@pytest.mark.parametrize("words", [
    ("-o", "mine.sarif"), ("-o", "nodir/r.sarif"), ("--lock", "nolock"), ("--lock", "mine.sarif"),
    ("--format", "sarif"),
])  # fmt: skip
@pytest.mark.parametrize("make", [clean, unsafe, unsafe_and_damaged, in_a_folder])
def test_check_says_what_is_unsafe_whatever_else_is_wrong(
    make: Callable[[Path], None], words: tuple[str, str], tmp_path: Path
) -> None:
    """With its output and with its lock; the file is named, and nothing is written."""
    make(tmp_path / "x")
    (tmp_path / "mine.sarif").write_text("mine")
    before = sorted(os.listdir(tmp_path))
    found = quick("check", "x", *words, cwd=tmp_path)
    assert (found.code == 4) == (make is not clean), found
    assert make is clean or "PT301" in found.out, found
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "mine.sarif").read_text() == "mine"


@pytest.mark.parametrize("name", ["diff", "verify", "verify --each", "variants"])
def test_findings_come_last(name: str, tmp_path: Path) -> None:
    """1 where weights differ, or names do not fit, and nothing else happened."""
    if name == "variants":
        (tmp_path / "names.txt").write_text("other\n")
        clean(tmp_path / "x")
        assert quick("variants", "x", "--against", "names.txt", cwd=tmp_path).code == 1
        return
    if name == "verify --each":
        for word, scale in (("x", 1), ("y", 2)):
            (tmp_path / word).mkdir()
            save_file({"w": np.ones(3) * scale}, tmp_path / word / "model.safetensors")
        assert quick(*LINES[name], cwd=tmp_path).code == 1
        return
    assert ran(tmp_path, name, (clean, different), False, False) == 1


def test_a_defect_of_ours_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 in every command that reads the file, also beside an unsafe one."""
    from paramtool.formats.safetensors import read

    def failing(path: str) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(read, "read", failing)
    for name, line in LINES.items():
        if "y" not in line:
            continue
        folder = tmp_path / name
        folder.mkdir()
        assert ran(folder, name, (clean_folder, unsafe), False, False) == 70, name


@pytest.mark.parametrize("name", LINES)
def test_an_unsafe_neighbour_of_what_a_command_refuses(name: str, tmp_path: Path) -> None:
    """4 also where the folder has two sets of weights; `--each` takes both."""
    if "--each" not in LINES[name]:
        assert ran(tmp_path, name, (two_beside_unsafe, clean), False, False) == 4


def test_a_defect_below_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 in every command that is given the folder."""
    from paramtool.formats.numpy import npz

    def failing(path: str) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(npz, "read", failing)
    for name in ("inspect", "check", "lock", "dedup", "diff", "report", "verify"):
        folder = tmp_path / name
        clean_folder_of = folder / "x"
        folder.mkdir()
        clean_folder(clean_folder_of)
        np.savez(clean_folder_of / "a.npz", w=np.ones(3))
        clean_folder(folder / "y")
        assert quick(*LINES[name], cwd=folder).code == 70, name


@pytest.mark.parametrize("line", [
    ("variants", "x", "--against", "bad.safetensors", "--against", "x"),
    ("diff", "--find-base", "x", "bad.safetensors", "x"), ("inspect", "bad.safetensors", "x"),
    ("check", "bad.safetensors", "x"),
])  # fmt: skip
def test_a_defect_in_one_of_several_hides_no_other(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are reported, the one as an internal error."""
    from paramtool.formats.safetensors import read

    def failing(path: str) -> None:
        raise AssertionError("a defect")

    clean(tmp_path / "x")
    save_file({"w": np.ones(3)}, tmp_path / "bad.safetensors")
    monkeypatch.setattr(read, "read", failing)
    found = quick(*line, "--json", cwd=tmp_path)
    assert "a defect" in found.out and found.out.count('"x"') >= 1, found
    assert found.code == 70, found


@pytest.mark.parametrize("line", [
    ("diff", "x", "y", "--exit-code"), ("verify", "x", "--against", "y"), ("variants", "x", "--against", "names.txt"),
    ("guess", "x"),
], ids=lambda line: line[0])  # fmt: skip
def test_an_answer_stands_beside_an_unsafe_neighbour(line: tuple[str, ...], tmp_path: Path) -> None:
    """1, with a warning; where the same command fails, 4."""
    for word, scale in (("x", 1), ("y", 2)):
        (tmp_path / word).mkdir()
        save_file({"nothing.known": np.full(3, scale)}, tmp_path / word / "model.safetensors")
    (tmp_path / "x" / "scheduler.pt").write_bytes(pickle.dumps(Calls(), 2))
    (tmp_path / "names.txt").write_text("other\n")
    found = quick(*line, cwd=tmp_path)
    assert found.code == 1 and "'scheduler.pt' is unsafe" in found.err + found.out, found
    (tmp_path / "x" / "model.safetensors").write_bytes(b"{")
    assert quick(*line, cwd=tmp_path).code == 4
