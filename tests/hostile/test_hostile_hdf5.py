"""Hostile HDF5 and Keras files, through the command line."""

from __future__ import annotations

import resource
from pathlib import Path

import h5py
import numpy as np
import pytest

import paramtool
from paramtool.errors import FormatError, UnsafeError
from tests.examples import IS_HARD
from tests.hostile.command import check, command
from tests.hostile.makers_hdf5 import FILES
from tests.patience import calls


@pytest.mark.sample(6)
@pytest.mark.parametrize("key", FILES)
def test_a_hostile_file_is_refused(key: str, tmp_path: Path) -> None:
    """Exit 4 where a file reaches elsewhere or makes too much of little, 3 where it is damaged; nothing left."""
    folder = tmp_path / "here"
    folder.mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert calls(lambda: check(FILES[key], folder)) < 10_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10, "more than 400 MiB"


@pytest.mark.parametrize("key", ["external_link", "a_thousand_million_paths"])
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """Real stack, real streams."""
    (tmp_path / "here").mkdir()
    check(FILES[key], tmp_path / "here", command)


def test_every_damaged_byte_is_an_error_or_a_file(tmp_path: Path) -> None:
    """No byte of a small file can be turned so that anything but an answer or a refusal comes; here one of 29."""
    path = tmp_path / "model.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["a/kernel:0"] = np.arange(4, dtype="f4")
        file["a/bias:0"] = np.arange(4, dtype=">f8")
        file.create_dataset("z", data=np.zeros(64, "f4"), chunks=(32,), compression="gzip")
    data = path.read_bytes()
    outcomes = set()
    for k in range(0, len(data), 1 if IS_HARD else 29):
        turned = bytearray(data)
        turned[k] ^= 0xFF
        path.write_bytes(turned)
        try:
            paramtool.load_file(path)
            outcomes.add("loaded")
        except (FormatError, UnsafeError) as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"loaded", "FormatError"}
