"""The engine: blocks tile, copies agree whichever way they go, CRCs are proved, changed files are refused."""

import errno
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paramtool
from paramtool.engine.read import open_files
from paramtool.engine.read.blocks import blocks
from paramtool.engine.read.source import Source
from paramtool.engine.write import sink
from paramtool.errors import FormatError, OutputError

LARGE = 3 << 20
"""Elements of float32: long enough for the kernel's copy and for a CRC in a thread."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file whose one tensor is copied by the kernel and proved in a thread."""
    torch.save({"w": torch.randn(LARGE)}, tmp_path / "large.pt")
    return tmp_path / "large.pt"


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 50))
def test_blocks_tile_a_shape_in_row_major_order(shape, limit):
    """Every element stands in one box, boxes come in order, and none is larger than asked."""
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    found = [whole[box].reshape(-1) for box in blocks(tuple(shape), limit)]
    assert all(part.size <= limit for part in found)
    assert np.concatenate([np.array([], int), *found]).tolist() == whole.reshape(-1).tolist()


@pytest.mark.parametrize("error", [errno.EXDEV, errno.ENOSYS, None])
def test_a_copy_by_hand_gives_the_same_file(large, monkeypatch, error):
    """Where the kernel cannot copy between two files, or stops early, the bytes are the same."""
    by_kernel = Path(paramtool.dedup(large).output).read_bytes()

    def refuse(*places: int) -> int:
        if error is None:
            return 0
        raise OSError(error, "no")

    monkeypatch.setattr(sink, "COPY", refuse)
    assert Path(paramtool.dedup(large, force=True).output).read_bytes() == by_kernel


def test_a_full_disk_is_an_output_error(large, monkeypatch):
    """What the kernel says of the output is the output's error, and nothing is left."""

    def full(*places: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sink, "COPY", full)
    with pytest.raises(OutputError, match="No space left"):
        paramtool.dedup(large)
    assert os.listdir(large.parent) == [large.name]


def payload_start(path: Path) -> int:
    """Where the bytes of `data/0` begin, by Python's own zipfile."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        info = next(info for info in archive.infolist() if info.filename.endswith("data/0"))
        file.seek(info.header_offset + 26)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        return info.header_offset + 30 + name + extra


@pytest.mark.parametrize("numel", [1000, LARGE])
def test_a_wrong_crc_stops_dedup_and_loading(tmp_path, numel):
    """One flipped bit in a member: no output, no arrays; small ones and those proved in a thread."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.randn(numel)}, path)
    with open(path, "r+b") as file:
        file.seek(payload_start(path) + numel)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    for act in (paramtool.dedup, paramtool.load_file):
        with pytest.raises(FormatError, match="CRC"):
            act(path)
    assert os.listdir(tmp_path) == ["m.pt"]


def test_a_slice_proves_its_whole_member(tmp_path):
    """A tensor that uses a part of a storage is not read before the whole is known to be sound."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.arange(1000.0)[:10]}, path)
    with open(path, "r+b") as file:
        file.seek(payload_start(path) + 3000)
        file.write(b"\xff")
    with pytest.raises(FormatError, match="CRC"):
        paramtool.dedup(path)


def test_a_file_that_changed_is_refused(large):
    """What was described is an input, or nothing is."""
    checkpoint = paramtool.read(large)
    os.utime(large, (1, 1))
    with pytest.raises(FormatError, match="changed"), Source(checkpoint):
        pass


def test_chunks_stand_in_one_bounded_buffer(large, monkeypatch):
    """Reading a large storage holds one chunk at a time, whatever its size."""
    monkeypatch.setattr(open_files, "CHUNK_NBYTES", 1 << 16)
    with Source(paramtool.read(large)) as opened:
        chunks = opened.chunks(0, 0, 4 * LARGE)
        first = next(chunks)
        assert len(first) == 1 << 16
        assert all(chunk.obj is first.obj for chunk in chunks)
