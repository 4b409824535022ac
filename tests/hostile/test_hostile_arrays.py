"""Hostile MXNet and NumPy files, through the command line."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy_format

from paramtool.formats.mxnet import params
from tests.examples import IS_HARD
from tests.hostile.command import check, command, quick
from tests.hostile.makers_arrays import (
    ARCHIVES,
    FINE,
    NPY,
    NPZ,
    OBJECTS,
    PARAMS,
    PARAMS_FINE,
    header,
    npy,
    objects,
)  # fmt: skip


@pytest.mark.parametrize("key", PARAMS)
def test_a_hostile_list_of_arrays_is_refused(key: str, tmp_path: Path) -> None:
    """The file, the array and what was found are named; nothing is left."""
    check(PARAMS[key], tmp_path)


@pytest.mark.parametrize("key", PARAMS_FINE)
def test_an_odd_list_of_arrays_is_no_defect(key: str, tmp_path: Path) -> None:
    """It is described, in lines that no terminal obeys."""
    ran = quick("inspect", "--tensors", PARAMS_FINE[key](tmp_path).name, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert all(line.isprintable() for line in ran.out.splitlines())


TYPES = ("|O", "object", "O8", "=O", "f4,O", "(2,)O", "object_", "O,O")
WITHIN = (
    "{0!r}", "[('a', {0!r})]", "[('a', '<f4'), ('b', {0!r})]", "[('a', [('b', {0!r})])]", "[('a', {0!r}, (2,))]",
    "({0!r}, (2,))", "[('a', ({0!r}, (2,)))]", "[(('t', 'a'), {0!r})]",
)  # fmt: skip


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("word", TYPES)
def test_however_a_type_says_that_it_holds_objects(word: str, within: str, tmp_path: Path) -> None:
    """NumPy unpickles them: where it does, the file is unsafe, in an archive, too."""
    descr, mark = within.format(word), tmp_path / "fired"

    class Fires:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(mark),)

    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n".encode()
    data = npy_format.magic(1, 0) + len(text).to_bytes(2, "little") + text + pickle.dumps(Fires())
    (tmp_path / "a.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", data)
    with contextlib.suppress(ValueError, TypeError, SyntaxError):  # what it unpickles is no array
        np.load(tmp_path / "a.npy", allow_pickle=True)
    for name in ("a.npy", "a.npz"):
        ran = quick("inspect", name, cwd=tmp_path)
        assert ran.code == 4 or not mark.exists(), ran


@pytest.mark.parametrize("key", NPY)
def test_a_hostile_header_is_refused(key: str, tmp_path: Path) -> None:
    """Nothing that a header writes is evaluated."""
    check(NPY[key], tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", NPZ)
def test_a_hostile_header_in_an_archive_is_refused(key: str, tmp_path: Path) -> None:
    """The array is named."""
    check(NPZ[key], tmp_path)


@pytest.mark.parametrize("key", ["a_warning", "an_escape", "deep", "deep_minus", "a_call_inside"])
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """Real stack, real streams, real warnings."""
    check(NPY[key], tmp_path, command)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("descr", OBJECTS)
@pytest.mark.parametrize("place", ["stored", "deflated", "bare"])
def test_an_array_of_objects_is_refused_and_never_unpickled(descr: str, place: str, tmp_path: Path) -> None:
    """Exit 4, wherever in the type the objects are; beside other arrays they are listed first."""
    hostile = objects(descr, place == "deflated", place == "bare")
    if descr == "'|O'" and place != "bare":
        path = hostile.make(tmp_path)
        for command in ("inspect", "dedup"):
            ran = quick(command, path.name, cwd=tmp_path)
            assert ran.code == 4 and "os.system" in ran.err and bool(ran.out) == (command == "inspect"), ran
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
    else:
        check(hostile, tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ARCHIVES)
def test_a_hostile_archive_is_refused(key: str, tmp_path: Path) -> None:
    """When it is described, or at the latest when its bytes are read."""
    check(ARCHIVES[key], tmp_path)


@pytest.mark.parametrize("key", FINE)
def test_an_odd_archive_is_no_defect(key: str, tmp_path: Path) -> None:
    """It is described, in lines that no terminal obeys."""
    ran = quick("inspect", "--tensors", FINE[key](tmp_path).name, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert all(line.isprintable() for line in ran.out.splitlines())


def test_a_list_of_as_many_nothings_as_are_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None with data: in `make hard` two million of them, in a file of eight megabytes.  One more is refused."""
    assert params.MAX_ARRAYS == 2_000_000
    if not IS_HARD:
        monkeypatch.setattr(params, "MAX_ARRAYS", 100_000)
    for more, code in ((0, 0), (1, 4)):
        many = params.MAX_ARRAYS + more
        data = (0x112).to_bytes(16, "little") + many.to_bytes(8, "little") + bytes(4 * many + 8)
        (tmp_path / "model.params").write_bytes(data)
        assert quick("inspect", "model.params", cwd=tmp_path).code == code


def test_a_header_of_the_largest_size_is_read(tmp_path: Path) -> None:
    """65,535 bytes, most of them blanks."""
    (tmp_path / "model.npy").write_bytes(npy(header().ljust(65_535)))
    assert quick("inspect", "model.npy", cwd=tmp_path).code == 0
