"""Who may read an output, what killed runs leave behind, and what happens where a file system lacks something."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paramtool import dedup, export
from paramtool.engine.write import staging
from paramtool.errors import FormatError, OutputError
from tests.patience import PATIENCE


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> object:
    """The usual umask, whatever the machine has."""
    old = os.umask(0o022)
    yield
    os.umask(old)


def folder(path: Path, permissions: int = 0o755) -> Path:
    """A folder of weights with a config."""
    path.mkdir()
    save_file({"a": torch.arange(6.0), "b": torch.ones(3)}, path / "model.safetensors")
    (path / "config.json").write_text('{"tied": 1}')
    path.chmod(permissions)
    return path


# --- permissions -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o644, 0o666, 0o400])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file_is_as_open_as_its_source_less_the_umask(tmp_path: Path, permissions: int, suffix: str) -> None:
    source = tmp_path / "a.pt"
    torch.save({"w": torch.arange(4.0)}, source)
    source.chmod(permissions)
    subprocess.run(["cp", str(source), str(tmp_path / "copy")], check=True)
    dedup(source, tmp_path / f"out{suffix}")
    assert mode(tmp_path / f"out{suffix}") == mode(tmp_path / "copy") == permissions & ~0o022


@pytest.mark.usefixtures("umask")
def test_what_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    source, output = tmp_path / "a.pt", tmp_path / "out.safetensors"
    torch.save({"w": torch.arange(4.0)}, source)
    output.write_bytes(b"old")
    output.chmod(0o600)
    dedup(source, output, force=True)
    assert mode(output) == 0o600


@pytest.mark.usefixtures("umask")
def test_a_folder_and_what_came_along_are_as_open_as_their_sources(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", 0o700)
    (source / "model.safetensors").chmod(0o640)
    (source / "config.json").chmod(0o600)
    dedup(source, tmp_path / "out")
    assert mode(tmp_path / "out") == 0o700
    assert mode(tmp_path / "out" / "model.safetensors") == 0o640
    assert mode(tmp_path / "out" / "config.json") == 0o600
    (tmp_path / "out").chmod(0o750)
    (tmp_path / "out" / "config.json").chmod(0o644)
    (tmp_path / "out" / "model.safetensors").chmod(0o600)
    dedup(source, tmp_path / "out", force=True)  # what replaces is no wider than the input, nor than what was there
    assert mode(tmp_path / "out") == 0o700
    assert mode(tmp_path / "out" / "config.json") == mode(tmp_path / "out" / "model.safetensors") == 0o600


@pytest.mark.usefixtures("umask")
def test_of_several_inputs_the_strictest_counts(tmp_path: Path) -> None:
    paths = []
    for name, permissions in (("a", 0o640), ("b", 0o604)):
        paths.append(tmp_path / f"{name}.pt")
        torch.save({"w": torch.arange(1000.0)}, paths[-1])
        paths[-1].chmod(permissions)
    from paramtool import dedup_family

    dedup_family(paths, tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert {mode(path) for path in files} == {0o600}
    assert mode(tmp_path / "out") == mode(tmp_path / "out" / "a") == 0o700


def test_what_is_being_written_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    old = staging.Staged.commit

    def commit(self: staging.Staged) -> None:
        place = Path(self.temporary)
        seen.extend(mode(path) for path in (place, *place.rglob("*")))
        old(self)

    monkeypatch.setattr(staging.Staged, "commit", commit)
    dedup(folder(tmp_path / "in"), tmp_path / "out")
    dedup(tmp_path / "in" / "model.safetensors", tmp_path / "out.safetensors")
    assert seen
    assert all(not permissions & 0o077 for permissions in seen)


def test_a_folder_keeps_the_set_group_bit_that_mkdir_gives_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    (tmp_path / "plain").mkdir()
    source = folder(tmp_path / "in")
    for _ in range(2):
        dedup(source, tmp_path / "out", force=True)
        bits = [(tmp_path / name).stat().st_mode & stat.S_ISGID for name in ("out", "plain")]
        assert bits[0] == bits[1] != 0


def test_an_output_can_be_made_whatever_the_umask_takes(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    old = os.umask(0o777)
    try:
        dedup(source, tmp_path / "out")
    finally:
        os.umask(old)
    assert mode(tmp_path / "out") == 0
    (tmp_path / "out").chmod(0o700)
    assert not leftover(tmp_path)


def test_the_current_folder_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "in")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    dedup(source, ".", force=True)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["config.json", "model.safetensors"]


# --- what killed runs leave --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from paramtool.engine.write import staging
def commit(self):
    os.kill(os.getpid(), signal.SIGKILL)
staging.Staged.commit = commit
import paramtool
paramtool.dedup(sys.argv[1], sys.argv[2], force=True)
"""


def leftover(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_later_run_removes_what_a_killed_one_left_and_says_so(tmp_path: Path, is_folder: bool) -> None:
    source = folder(tmp_path / "in")
    source, output = (source, tmp_path / "out") if is_folder else (source / "model.safetensors", tmp_path / "o.pt")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(source), str(output)], check=False)
    left = leftover(tmp_path)
    assert len(left) == 1, "the second run removed what the first one left"
    report = dedup(source, output)
    assert not leftover(tmp_path)
    assert [text for text in report.warnings if left[0].name in text and "killed" in text]


def test_what_a_living_run_writes_stays(tmp_path: Path) -> None:
    source = folder(tmp_path / "in") / "model.safetensors"
    output = tmp_path / "out.safetensors"
    with staging.Staged(str(output), False, False) as other:
        dedup(source, output)
        assert Path(other.temporary).exists()
        with pytest.raises(OutputError, match="meanwhile"):
            other.commit()
    assert load_file(output).keys() == {"a", "b"}
    assert not leftover(tmp_path)


def test_names_of_other_outputs_and_of_other_programs_stay(tmp_path: Path) -> None:
    source = folder(tmp_path / "in") / "model.safetensors"
    others = [
        ".other.0123abcd.tmp",
        ".out.safetensors.0123abcd.tmpx",
        ".out.safetensors.xyz.tmp",
        "out.safetensors.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("theirs")
    (tmp_path / ".out.safetensors.0123abcd.tmp").symlink_to(source)
    dedup(source, tmp_path / "out.safetensors")
    assert all((tmp_path / name).exists() for name in others)
    assert (tmp_path / ".out.safetensors.0123abcd.tmp").is_symlink(), "a link is nothing that we make"


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whether the run that made it is still alive."""
    source = folder(tmp_path / "in") / "model.safetensors"
    (left := tmp_path / ".out.safetensors.0123abcd.tmp").write_text("of a run")
    monkeypatch.setattr(staging, "_locked", lambda file: None)
    dedup(source, tmp_path / "out.safetensors")
    assert left.read_text() == "of a run" and (tmp_path / "out.safetensors").exists()
    monkeypatch.undo()
    dedup(source, tmp_path / "out.safetensors", force=True)
    assert not left.exists()


def test_what_a_killed_run_had_taken_away_is_put_back(tmp_path: Path) -> None:
    """Where two names cannot be exchanged, the old folder stands under another name for a moment."""
    source = folder(tmp_path / "in")
    dedup(source, tmp_path / "out")
    name = staging.temporary_name(str(tmp_path / "out"))
    (tmp_path / "out").rename(f"{name}.old")
    Path(name).mkdir()
    with pytest.raises(OutputError, match="exists"):
        dedup(source, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not leftover(tmp_path)


def test_what_stood_at_the_place_goes_back_or_is_kept(tmp_path: Path) -> None:
    """What could not be put back has a name of its own, which no run touches."""
    source = folder(tmp_path / "in")
    dedup(source, tmp_path / "out")
    name = staging.temporary_name(str(tmp_path / "out"))
    (tmp_path / "out").rename(f"{name}.old")
    assert [text for text in staging.clear(str(tmp_path / "out")) if "put back" in text]
    assert (tmp_path / "out" / "model.safetensors").exists()
    kept = Path(staging.kept_name(name))
    (tmp_path / "out").rename(kept)
    assert staging.clear(str(tmp_path / "out")) == []
    assert (kept / "model.safetensors").exists()


def test_long_names_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    one, other = (str(tmp_path / ("x" * 200 + end)) for end in ("1", "2"))
    name = staging.temporary_name(one)
    file = staging.create(name, is_folder=False)
    assert file is not None
    os.close(file)
    assert staging.clear(other) == []
    assert os.path.exists(name)
    assert staging.clear(one)
    assert not os.path.exists(name)


# --- what file systems lack --------------------------------------------------------------------------------------


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "rename", lambda *names: False)


@pytest.mark.usefixtures("no_exchange")
def test_a_folder_is_replaced_without_exchange(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    for _ in range(2):
        dedup(source, tmp_path / "out", force=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert not leftover(tmp_path)


@pytest.mark.usefixtures("no_exchange")
def test_a_file_is_never_overwritten_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "in") / "model.safetensors"
    output = tmp_path / "out.safetensors"
    for has_links in (True, False):
        if not has_links:
            monkeypatch.delattr(os, "link")
        dedup(source, output)
        with pytest.raises(OutputError, match="exists"):
            dedup(source, output)
        output.unlink()


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_arrives_in_a_folder_while_it_is_replaced_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    source = folder(tmp_path / "in")
    dedup(source, tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    old = staging.rename

    def rename(a: str, b: str, flag: int) -> bool:
        (tmp_path / "out" / "arrived").write_text("somebody's work")
        return old(a, b, flag) if exchanges else False

    monkeypatch.setattr(staging, "rename", rename)
    with pytest.raises(OutputError, match="arrived"):
        dedup(source, tmp_path / "out", force=True)
    assert sorted((tmp_path / "out").iterdir()) == sorted([*before, tmp_path / "out" / "arrived"])
    assert not leftover(tmp_path)


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("fails_at", ["look", "look, and all renames then", "second rename and all then"])
def test_the_old_folder_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, fails_at: str
) -> None:
    """Whatever fails while it is replaced, it is at its place, or under a name that the error says."""
    source = folder(tmp_path / "in")
    dedup(source, tmp_path / "out")
    (tmp_path / "in" / "model.safetensors").write_bytes((tmp_path / "out" / "model.safetensors").read_bytes())
    inode = (tmp_path / "out").stat().st_ino
    looks, renames = [], []
    listing, exchange_names, rename = staging._listing, staging.rename, os.rename

    def look(path: str) -> dict[str, object]:
        looks.append(path)
        if len(looks) > 1 and "look" in fails_at:
            raise OSError(5, "Input/output error", path)
        return listing(path)

    def fails() -> bool:
        renames.append(1)
        return len(renames) > 1 and "then" in fails_at

    def exchanged(a: str, b: str, flag: int) -> bool:
        if not exchanges:
            return False
        if fails():
            raise OSError(5, "Input/output error")
        return exchange_names(a, b, flag)

    def renamed(a: str, b: str) -> None:
        if fails():
            raise OSError(5, "Input/output error")
        rename(a, b)

    monkeypatch.setattr(staging, "_listing", look)
    monkeypatch.setattr(staging, "rename", exchanged)
    monkeypatch.setattr(os, "rename", renamed)
    try:
        dedup(source, tmp_path / "out", force=True)
    except OutputError as error:
        places = [path for path in (tmp_path / "out", *leftover(tmp_path)) if path.exists()]
        (old,) = (path for path in places if path.stat().st_ino == inode)
        assert old == tmp_path / "out" or str(old) in str(error)
        assert (old / "model.safetensors").exists()
    else:
        assert exchanges, "an exchange that worked needs no other rename"
        assert "look" not in fails_at


@pytest.mark.usefixtures("umask")
def test_folders_inside_are_as_open_as_their_sources(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "sub" / "deep" / "notes.json").write_text("{}")
    (source / "sub").chmod(0o700)
    (source / "sub" / "deep").chmod(0o750)
    dedup(source, tmp_path / "out")
    assert mode(tmp_path / "out") == 0o755
    assert mode(tmp_path / "out" / "sub") == 0o700
    assert mode(tmp_path / "out" / "sub" / "deep") == 0o750


@pytest.mark.parametrize("nbytes", [252, 255])
def test_names_are_limited_in_bytes(tmp_path: Path, nbytes: int) -> None:
    source = folder(tmp_path / "in") / "model.safetensors"
    stem = "ä" * ((nbytes - len(".safetensors")) // 2)
    name = stem + "x" * (nbytes - len(os.fsencode(stem)) - len(".safetensors")) + ".safetensors"
    assert len(os.fsencode(name)) == nbytes
    dedup(source, tmp_path / name)
    assert load_file(tmp_path / name).keys() == {"a", "b"}
    with pytest.raises(OutputError, match="256 bytes"):
        dedup(source, tmp_path / f"{'y' * 244}.safetensors")
    assert not leftover(tmp_path)


def test_overlapping_windows_are_exported_as_torch_has_them(tmp_path: Path) -> None:
    """Windows that overlap can have as many elements as they span: torch is the judge."""
    base = torch.arange(9.0)
    views = {"base": base, "rows": base.as_strided((3, 3), (2, 2)), "slide": base.as_strided((3, 3), (1, 1))}
    torch.save(views, tmp_path / "a.pt")
    export(tmp_path / "a.pt", tmp_path / "out.safetensors", all_names=True)
    found = load_file(tmp_path / "out.safetensors")
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in views.items()}


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    source = folder(tmp_path / "in")
    os.mkfifo(source / "x.safetensors.index.json")
    done = subprocess.run(
        [sys.executable, "-m", "paramtool", "inspect", str(source)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode in (0, 2, 3), done.stderr
    assert "Traceback" not in done.stderr


# --- inputs that change ------------------------------------------------------------------------------------------


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def _write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x01\x02\x03\x04")


def _replace(path: Path) -> None:
    status = path.stat()
    path.rename(path.with_suffix(".moved"))
    path.write_bytes(path.with_suffix(".moved").read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_truncate, _write_in_place, _replace, Path.unlink])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("what", ["model.safetensors", "config.json"])
def test_an_input_that_changes_during_the_run_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, verify: bool, what: str
) -> None:
    source = folder(tmp_path / "in")
    old = staging.Staged.commit

    def commit(self: staging.Staged) -> None:
        change(source / what)
        old(self)

    monkeypatch.setattr(staging.Staged, "commit", commit)
    with pytest.raises(FormatError, match=f"{what}: changed while it was read"):
        dedup(source, tmp_path / "out", verify=verify)
    assert not (tmp_path / "out").exists()
    assert not leftover(tmp_path)


@pytest.mark.parametrize("nbytes", [1 << 20, 4096])
@pytest.mark.parametrize("place", [0, -8])
def test_an_error_at_the_edge_of_a_band_is_seen(
    place: int, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is proved in other bands than those that it was made in, also where that was one."""
    from paramtool import convert
    from paramtool.engine.write import arithmetic

    usual = arithmetic._finished

    def wrong(data: Any, *more: Any) -> Any:
        usual(data, *more)[place : place + 8 or None] = 1
        return data

    monkeypatch.setattr(arithmetic, "BAND_NBYTES", nbytes)
    torch.save({"w": torch.randn(60, 70)}, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "a.safetensors", dtype="float64")
    monkeypatch.setattr(arithmetic, "_finished", wrong)
    with pytest.raises(OutputError, match="does not read back"):
        convert(tmp_path / "a.pt", tmp_path / "b.safetensors", dtype="float64")
    assert not (tmp_path / "b.safetensors").exists()


def test_large_targets_are_written_band_by_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put together in memory is bounded, and written: nothing of an output is mapped."""
    from paramtool import convert
    from paramtool.engine.write import arithmetic
    from paramtool.engine.write.sink import Sink

    monkeypatch.setattr(arithmetic, "BAND_NBYTES", 4096)
    source = tmp_path / "lstm.pt"
    torch.save(torch.nn.LSTM(64, 96).state_dict(), source)
    old, calls = Sink._wrote, []

    def wrote(self: Sink, nbytes: int) -> None:
        calls.append(nbytes)
        old(self, nbytes)

    monkeypatch.setattr(Sink, "_wrote", wrote)
    convert(source, tmp_path / "keras.safetensors", target="keras")
    assert max(calls[1:]) == 4096
    found = load_file(tmp_path / "keras.safetensors")
    kernel = next(value for name, value in found.items() if value.shape == (64, 384))
    weight = torch.load(source)["weight_ih_l0"]
    assert np.array_equal(kernel.numpy().T[:96], weight.numpy()[:96])
