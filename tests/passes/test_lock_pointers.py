"""Pointers against a lock: the hash of a file decides, and what has no hash is not called checked."""

from __future__ import annotations

import pytest

from paramtool.lockfile.lock import LockedFile, LockedModel
from paramtool.lockfile.pointer import LFS, XET, Pointer
from paramtool.model.finding import ERROR, NOTE
from paramtool.passes.lock.compare import Seen
from paramtool.passes.lock.compare import of_pointers as findings

ONE, TWO = LockedFile("m-1.bin", 10, "1" * 64, 4), LockedFile("m-2.bin", 20, "2" * 64, 5)


def locked(*files: LockedFile) -> LockedModel:
    """A model of some files."""
    return LockedModel("m", files, "b3:" + "0" * 64, "b3:" + "0" * 64, {}, line=3)


SAME = {"m-1.bin": Pointer(LFS, "1" * 64, 10), "m-2.bin": Pointer(LFS, "2" * 64, 20)}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SAME, []),
        (SAME | {"m-2.bin": Pointer(LFS, "3" * 64, 20)}, [("PT404", ERROR, 5)]),
        (SAME | {"m-2.bin": Pointer(LFS, "2" * 64, 21)}, [("PT404", ERROR, 5)]),
        (SAME | {"m-2.bin": Pointer(LFS, "2" * 64, None)}, []),
        (SAME | {"m-2.bin": Pointer(XET, "", 20)}, [("PT405", NOTE, 5)]),
        (SAME | {"m-2.bin": Pointer(XET, "", 21)}, [("PT404", ERROR, 5)]),
        (SAME | {"m-2.bin": TWO}, []),
        (SAME | {"m-2.bin": TWO._replace(sha256="3" * 64)}, [("PT401", ERROR, 5)]),
        ({"m-1.bin": SAME["m-1.bin"]}, [("PT404", ERROR, 5)]),
        (SAME | {"m-3.bin": Pointer(LFS, "3" * 64, 1)}, [("PT404", ERROR, 3)]),
    ],
)
def test_two_files(seen: Seen, expected: list[tuple[str, str, int]]) -> None:
    found = list(findings(locked(ONE, TWO), seen, "paramtool.lock", "folder"))
    assert [(one.id, one.severity, one.place and one.place.line) for one in found] == expected
    assert all(one.path == "folder" for one in found)


def test_one_file_may_have_another_name() -> None:
    assert not list(findings(locked(ONE), {"other.bin": SAME["m-1.bin"]}, "l", "other.bin"))
    assert [one.id for one in findings(locked(ONE), {"other.bin": SAME["m-2.bin"]}, "l", "other.bin")] == ["PT404"]


def test_a_lock_without_hashes_knows_sizes() -> None:
    seen = {"m-1.bin": SAME["m-1.bin"]}
    assert [one.id for one in findings(locked(ONE._replace(sha256="")), seen, "l", "m-1.bin")] == ["PT405"]
    was = locked(ONE._replace(sha256="", nbytes=11))
    assert [one.id for one in findings(was, seen, "l", "m-1.bin")] == ["PT404"]
