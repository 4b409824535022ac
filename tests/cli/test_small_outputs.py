"""Every output: never more open than an input or what it replaces, and never of inputs that changed meanwhile."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.cli.check import FORMS
from paramtool.cli.main import COMMANDS, cli
from paramtool.engine.write import sink
from paramtool.errors import FormatError
from paramtool.lockfile import read
from tests.hostile.command import quick

FILE = "model.safetensors"
OUTPUTS: dict[str, list[tuple[str, ...]]] = {
    "dedup": [("dedup", FILE, "-o", "out.safetensors"), ("dedup", FILE, "-o", "out.pt")],
    "export": [("export", FILE, "--all-names", "-o", "out.safetensors")],
    "convert": [("convert", FILE, "-o", "out.npz")],
    "fuse": [("fuse", FILE, "--layout", "qkv", "-o", "out.safetensors")],
    "unfuse": [("unfuse", FILE, "--layout", "qkv", "-o", "out.safetensors")],
    "lock": [("lock", FILE, "-o", "out.lock"), ("lock", FILE, "-o", "out.lock", "--headers")],
    "report": [("report", FILE, "-o", "out.html"), ("report", "other.pt", FILE, "-o", "out.html")],
    "check": [("check", FILE, "--format", form, "-o", f"out.{form}") for form in FORMS],
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    old = os.umask(0o022)
    parts = {f"layers.0.attn.{name}_proj.weight": torch.randn(8, 8) for name in "qkv"}
    save_file(parts, tmp_path / FILE)
    torch.save(parts, tmp_path / "other.pt")
    (tmp_path / "other.pt").chmod(0o666)
    yield tmp_path
    os.umask(old)


def test_every_command_with_an_output_is_here() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    assert {
        name for name, one in commands.items() if one is not None and any(p.name == "output" for p in one.params)
    } == OUTPUTS.keys()


@pytest.mark.parametrize("words", [words for every in OUTPUTS.values() for words in every], ids=" ".join)
def test_an_output_is_no_more_open_than_its_inputs_and_what_it_replaces(words: tuple[str, ...], place: Path) -> None:
    """Modes of the input, the umask, and modes of what is replaced."""
    if words[0] == "unfuse":
        assert quick("fuse", FILE, "--layout", "qkv", "-o", "fused.safetensors", cwd=place).code == 0
        shutil.move(place / "fused.safetensors", place / FILE)
    out = place / words[words.index("-o") + 1]
    for given, umask, old in product((0o600, 0o640, 0o664), (0o022, 0o077, 0o002), (None, 0o600, 0o666)):
        (place / FILE).chmod(given)
        os.umask(umask)
        out.unlink(missing_ok=True)
        if old is not None:
            assert quick(*words, cwd=place).code == 0
            out.chmod(old)
        ran = quick(*words, *(["--force"] if old is not None else []), cwd=place)
        assert ran.code == 0, ran
        found = stat.S_IMODE(out.stat().st_mode)
        assert found == given & (~umask if old is None else old), (words, oct(given), oct(umask), old, oct(found))


@pytest.mark.parametrize("name", ["lock", "report", "check"])
def test_what_changes_while_it_is_read_is_told_by_no_output(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs are looked at again before the output is moved to its place."""
    words = OUTPUTS[name][0]
    kept = sink.Sink.write

    def meanwhile(self: sink.Sink, data: bytes) -> None:
        kept(self, data)
        os.utime(place / FILE, ns=(1, 1))

    monkeypatch.setattr(sink.Sink, "write", meanwhile)
    ran = quick(*words, cwd=place)
    assert ran.code == 3 and f"{FILE}: changed while it was read" in ran.err, ran
    assert sorted(path.name for path in place.iterdir()) == [FILE, "other.pt"]


def test_a_lock_adds_and_updates_and_removes_by_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    paramtool.lock([FILE])
    paramtool.lock(["other.pt"], force=True)
    before = read.read("paramtool.lock").models
    assert [*before] == [FILE, "other.pt"]
    torch.save({"w": torch.ones(2)}, "other.pt")
    paramtool.lock(["other.pt"], force=True)
    after = read.read("paramtool.lock").models
    assert after[FILE].content == before[FILE].content and after["other.pt"].content != before["other.pt"].content
    os.rename("other.pt", "new.pt")
    for words in (("other.pt",), ("other.pt", "new.pt")):  # one that is lost is no less locked
        ran = quick("lock", *words, "--force", cwd=place)
        assert ran.code == 3 and "other.pt: cannot be read: No such file" in ran.err, ran
        assert [*read.read("paramtool.lock").models] == [FILE, "other.pt"]
    ran = quick("lock", "new.pt", "--remove", "other.pt", cwd=place)
    assert ran.code == 0 and [*read.read("paramtool.lock").models] == [FILE, "new.pt"], ran
    ran = quick("lock", "--remove", "new.pt", "--remove", "other.pt", cwd=place)
    assert ran.code == 2 and "--remove other.pt: paramtool.lock has no such model" in ran.err, ran
    ran = quick("lock", FILE, "--remove", FILE, "--force", cwd=place)
    assert ran.code == 2 and "is given twice" in ran.err, ran
    assert [*read.read("paramtool.lock").models] == [FILE, "new.pt"]
    paramtool.lock(remove=["new.pt"])
    assert [*read.read("paramtool.lock").models] == [FILE]
    text = Path("paramtool.lock").read_text()
    Path("paramtool.lock").write_text(text[:-9])
    with pytest.raises(FormatError, match="truncated"):  # what it held is not lost in silence
        paramtool.lock([FILE], force=True)
    assert Path("paramtool.lock").read_text() == text[:-9]


def test_two_locks_at_once_lose_no_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is second sees that the lock is another one."""
    monkeypatch.chdir(place)
    paramtool.lock([FILE])
    kept = sink.Sink.write

    def meanwhile(self: sink.Sink, data: bytes) -> None:
        kept(self, data)
        monkeypatch.setattr(sink.Sink, "write", kept)
        paramtool.lock([FILE, "other.pt"], force=True)

    monkeypatch.setattr(sink.Sink, "write", meanwhile)
    with pytest.raises(FormatError, match="changed while it was read"):
        paramtool.lock([FILE], force=True)
    assert len(read.read("paramtool.lock").models) == 2
