"""Hostile torch files, through the command line."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import scan
from paramtool.formats.pickle.values import PickleLimits
from paramtool.formats.torch import storages
from tests.contracts import makers as honest
from tests.examples import IS_HARD
from tests.hostile import makers_pickle, makers_torch, makers_zip
from tests.hostile.command import Hostile, check, command, contents, quick, refused

ALL = {
    f"{form} {key}": case
    for form in ("ZIP", "STACKED", "TAR", "BOMBS")
    for key, case in getattr(makers_torch, form).items()
}
SLOW = {"BOMBS memo_bomb", "BOMBS object_bomb", "BOMBS stack_bomb", "BOMBS mark_bomb", "BOMBS deep_nesting"}
"""Up to the real limits only in `make hard`; that of the stack is met below, in processes of their own."""
SLOWEST = {"BOMBS memo_bomb", "BOMBS object_bomb"}


@pytest.mark.sample(14)
@pytest.mark.parametrize("key", ALL)
def test_a_hostile_file_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code of its class, where and what, nothing on stdout, nothing left in the folder."""
    if key in SLOW and not IS_HARD:
        limits = PickleLimits(max_memo=200_000, max_objects=200_000, max_stack=100_000)
        for module in (storages, scan):
            monkeypatch.setattr(module, "DEFAULT_LIMITS", limits)
    if key in SLOWEST:  # millions of opcodes: once
        refused(quick, "inspect", ALL[key].make(tmp_path).name, cwd=tmp_path, code=4, says=("model.pt", "data.pkl"))
    else:
        check(ALL[key], tmp_path)


def test_containers_that_hold_each_other_exponentially_are_refused_soon(tmp_path: Path) -> None:
    """Two kilobytes with 2**60 paths to one tensor."""
    path = makers_torch.EXPONENTIAL.make(tmp_path)
    ran = command("inspect", path.name, cwd=tmp_path)
    assert (ran.code, ran.out) == (4, ""), ran


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", ["ZIP size_outside", "ZIP wrong_crc_of_a_tensor", "ZIP nested_very_deep",
                                 "STACKED count_near_2_to_63", "TAR axes_huge",
                                 "BOMBS stack_bomb", "BOMBS deep_nesting"])  # fmt: skip
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """A small stack and the real standard streams change nothing."""
    check(ALL[key], tmp_path, command)


@pytest.mark.parametrize("key", makers_zip.MAKERS)
def test_an_ambiguous_archive_is_refused(key: str, tmp_path: Path) -> None:
    """What unit tests prove of the zip reader holds for the command, too."""
    maker, error = makers_zip.MAKERS[key]

    def make(folder: Path) -> Path:
        maker(folder / "model.pt")
        return folder / "model.pt"

    check(Hostile(make, (), 4 if error is UnsafeError else 3), tmp_path)


@pytest.mark.parametrize("key", ["no_crc", "deflated_members"])
def test_what_is_odd_and_means_one_thing_is_read(key: str, tmp_path: Path) -> None:
    """CRC 0 everywhere is shown and accepted; deflated members give their values, not their deflated bytes."""
    path = makers_torch.FINE[key](tmp_path)
    ran = quick("inspect", path.name, cwd=tmp_path)
    assert ran.code == 0, ran
    assert ("CRC" in ran.out) == (key == "no_crc"), ran
    assert quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert (tmp_path / "out.safetensors").read_bytes().endswith(struct.pack("<4f", 1, 2, 3, 4))
    assert sorted(contents(tmp_path)) == ["model.pt", "out.safetensors"]


def test_ten_million_million_elements_that_are_one_number(tmp_path: Path) -> None:
    """inspect, dedup and verify take no longer for it; export refuses to write it out, and names the limit."""
    path = makers_torch.expanded(tmp_path)
    assert quick("inspect", "--digest", makers_torch.overlapping_windows(tmp_path).name, cwd=tmp_path).code == 0
    makers_torch.expanded(tmp_path)
    assert command("inspect", path.name, cwd=tmp_path).code == 0
    assert command("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert (tmp_path / "out.safetensors").stat().st_size < 4096
    assert command("verify", "out.safetensors", "--against", path.name, cwd=tmp_path).code == 0
    (tmp_path / "names.txt").write_text("w\n")
    refused(command, "export", path.name, "--names", "names.txt", "-o", "plain.safetensors", cwd=tmp_path, code=4,
            says=("model.pt", "--max-inflated"))  # fmt: skip


def test_digests_of_an_expanded_tensor_end(tmp_path: Path) -> None:
    """`--digest` of ten million million elements on sixteen bytes ends soon, whatever it says of them."""
    path = makers_torch.expanded(tmp_path)
    ran = command("inspect", "--digest", path.name, cwd=tmp_path)
    assert ran.code in (0, 4, 6), ran


def test_containers_nested_150_deep_are_read(tmp_path: Path) -> None:
    """Below the limit of 200 levels nothing is refused: the tensor is found, and dedup keeps it."""
    path = makers_torch.nested_150(tmp_path)
    for run in (quick, command):
        ran = run("inspect", path.name, "--json", cwd=tmp_path)
        assert ran.code == 0, ran
        ran = run("dedup", path.name, "-o", "out.safetensors", "--force", cwd=tmp_path)
        assert ran.code == 0, ran
        ran = run("verify", "out.safetensors", "--against", path.name, cwd=tmp_path)
        assert ran.code == 0, ran


def test_windows_that_overlap_come_back(tmp_path: Path) -> None:
    """Neither covers the other, and no byte is written twice."""
    path = makers_torch.overlapping_windows(tmp_path)
    assert quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert quick("verify", "out.safetensors", "--against", path.name, cwd=tmp_path).code == 0


FORMS = {case.name: case for case in honest.CASES}


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["zip", "stacked", "tar", "whole"])
def test_truncation_at_any_byte(form: str, tmp_path: Path) -> None:
    """Cut after any byte: exit 3 with the file named, or, where only filling was cut off, the same report."""
    path = FORMS[form].make(tmp_path)
    data = path.read_bytes()
    whole = quick("inspect", "--tensors", path.name, cwd=tmp_path).out.splitlines()[2:]
    harmless = 0
    step = (5 if form == "tar" else 1) * (1 if IS_HARD else 23)
    for length in range(0, len(data), step):
        path.write_bytes(data[:length])
        ran = quick("inspect", "--tensors", path.name, cwd=tmp_path)
        assert ran.code in (0, 3), (length, ran)
        if ran.code == 0:
            harmless += 1
            assert ran.out.splitlines()[2:] == whole, length
        else:
            assert ran.out == "" and path.name in ran.err and "internal" not in ran.err, (length, ran)
    assert harmless == 0 or form == "tar"
    assert sorted(contents(tmp_path)) == [path.name]


@pytest.mark.parametrize("form", ["zip", "stacked", "tar", "whole"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_dedup_of_a_truncated_file_leaves_nothing(form: str, part: float, tmp_path: Path) -> None:
    """The class of the error and the folder, in a process of its own."""
    path = FORMS[form].make(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part) if form != "tar" else int(len(data) * part / 3)])
    refused(command, "dedup", path.name, cwd=tmp_path, code=3, says=(path.name,))


def test_makers_are_honest_without_their_lie(tmp_path: Path) -> None:
    """The parts that makers change are fine as they are: each refusal is for the lie."""
    makers: dict[str, Callable[[Path], Path]] = {
        "zip": makers_torch.zipped(),
        "stacked": makers_torch.made(makers_torch.stacked),
        "tar": makers_torch.made(makers_torch.tar),
    }
    for form, make in makers.items():
        path = make(tmp_path)
        ran = quick("dedup", path.name, "-o", f"{form}.safetensors", cwd=tmp_path)
        assert ran.code == 0, (form, ran)
        assert (tmp_path / f"{form}.safetensors").read_bytes().endswith(makers_torch.DATA)
        shutil.copy(path, tmp_path / "again.pt")
    assert makers_pickle.MAKERS.keys() == makers_torch.BOMBS.keys()


def test_a_stacked_file_says_that_it_is_truncated(tmp_path: Path) -> None:
    """Where the end of a storage is missing, and where two counts disagree."""
    torch.save({"w": torch.ones(100)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(data[:-40])
    with pytest.raises(FormatError, match="has 400 bytes, of which 360 are in the file; it is truncated"):
        paramtool.read(tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes(data[:-408] + (99).to_bytes(8, "little") + data[-400:])
    with pytest.raises(FormatError, match="has 396 bytes; the pickle says 400"):
        paramtool.read(tmp_path / "m.pt")
