"""Tensor data on pages, and files that share their blocks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import export as export_command
from paramtool.engine.write import sink
from paramtool.errors import UsageError
from paramtool.formats.safetensors import write as safetensors
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import whole
from paramtool.model.view import contiguous
from tests.cli.test_documents import validate
from tests.hostile.command import quick

PAGE = 4096
BIG = 1 << 20
"""Bytes from which the kernel is asked to move a run."""


def places(path: Path) -> dict[str, tuple[int, int]]:
    """{name: (first byte in the file, bytes)}."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        n: (8 + length + h["data_offsets"][0], h["data_offsets"][1] - h["data_offsets"][0]) for n, h in header.items()
    }


def state() -> dict[str, torch.Tensor]:
    """Tensors of whole pages among others, of several types."""
    return {
        "odd": torch.arange(5, dtype=torch.float64),
        "pages": torch.arange(3 * PAGE, dtype=torch.int32).to(torch.uint8),
        "more": torch.arange(2 * PAGE / 4),
        "half": torch.ones(7, dtype=torch.float16),
    }


@pytest.mark.parametrize("shards", [None, 9000])
def test_whole_pages_stand_on_pages(shards: int | None, tmp_path: Path) -> None:
    """Every tensor of whole pages begins on one, every other at a multiple of its element; each shard alike."""
    torch.save(state(), tmp_path / "m.pt")
    output = tmp_path / ("out" if shards else "out.safetensors")
    dedup_command.dedup(tmp_path / "m.pt", output, align=PAGE, max_shard_size=shards)
    files = sorted(output.glob("*.safetensors")) if shards else [output]
    assert len(files) == (3 if shards else 1)
    sizes = {name: tensor.element_size() for name, tensor in state().items()}
    for file in files:
        begin = {name: start for name, (start, _) in places(file).items()}
        assert min(begin.values()) % PAGE == 0
        assert all(begin[name] % (PAGE if name in ("pages", "more") else sizes[name]) == 0 for name in begin)
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, state()[name])


def test_export_and_convert_align_too(tmp_path: Path) -> None:
    """Through the command line, with a size in words."""
    torch.save(torch.nn.LSTM(4, 4).state_dict() | state(), tmp_path / "m.pt")
    (tmp_path / "names").write_text("odd\npages\n")
    assert quick("export", "m.pt", "--names", "names", "--align", "4KiB", "-o", "e.safetensors", cwd=tmp_path).code == 0
    ran = quick("convert", "m.pt", "--to", "keras", "--align", "64KiB", "-o", "c.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert places(tmp_path / "e.safetensors")["pages"][0] == PAGE
    assert min(start for start, _ in places(tmp_path / "c.safetensors").values()) == 65536
    assert quick("dedup", "m.pt", "--align", "100", "-o", "x.safetensors", cwd=tmp_path).code == 2
    assert quick("export", "m.pt", "--names", "names", "--align", "0", "-o", "x.safetensors", cwd=tmp_path).code == 2


@given(st.lists(st.tuples(st.sampled_from(("uint8", "float16", "float64")), st.integers(0, 5000))), st.integers(3, 16))
def test_the_header_always_ends_on_the_boundary(sizes: list[tuple[str, int]], power: int) -> None:
    """Whatever stands in it; and without pages to align for the bytes are those of always."""
    targets = [
        whole(f"t{k}", contiguous(0, DTYPES[dtype], (count * (power > 9) + count % 7,)))
        for k, (dtype, count) in enumerate(sizes)
    ]
    made = safetensors.shard("", targets, {"format": "pt"}, 1 << power)
    assert len(made.segments[0]) % (1 << power) == 0  # type: ignore[arg-type]
    ends = [t.nbytes for t in made.segments[1:]]  # type: ignore[union-attr]
    whole_pages = [nbytes % (1 << power) == 0 for nbytes in ends]
    assert power == 3 or whole_pages == sorted(whole_pages, reverse=True)


@pytest.mark.parametrize("align", [0, 4, 12, 4095, 131072])
def test_other_numbers_are_refused(align: int) -> None:
    """Powers of two from 8 to 64 KiB."""
    with pytest.raises(UsageError, match="power of two"):
        safetensors.check_align(align)


# --- blocks that two files share ---------------------------------------------------------------------------------


@given(st.integers(0, 20000), st.integers(0, 50000), st.integers(0, 20000))
def test_whole_blocks_are_whole_in_both_files(start: int, nbytes: int, position: int) -> None:
    """The part lies in the run, begins and ends on blocks of both, and nothing longer does."""
    before, inside = sink.whole_blocks(start, nbytes, position, PAGE)
    if inside:
        assert (start + before) % PAGE == (position + before) % PAGE == inside % PAGE == 0
        assert 0 <= before < PAGE and 0 <= nbytes - before - inside < PAGE
    else:
        blocks = range(-start % PAGE, nbytes - PAGE + 1, PAGE)
        assert (start - position) % PAGE or not blocks


def copied(folder: Path) -> tuple[Any, Path]:
    """A file with pages, and its dedup with the same alignment."""
    tensors = {"a": torch.rand(BIG // 2), "b": torch.rand(BIG // 4), "c": torch.rand(11)}
    save_file(tensors, folder / "first.safetensors")
    dedup_command.dedup(folder / "first.safetensors", folder / "in.safetensors", align=PAGE)
    return dedup_command.dedup(
        folder / "in.safetensors", folder / "out.safetensors", align=PAGE
    ), folder / "out.safetensors"


def test_what_is_asked_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges of the ioctl, carried out by hand; the bytes are right and the report counts them."""
    asked = []

    def ioctl(into: int, number: int, packed: bytes) -> int:
        source, start, nbytes, position = struct.unpack("=qQQQ", packed)
        asked.append((number, start % PAGE, nbytes % PAGE, position % PAGE, nbytes))
        os.pwrite(into, os.pread(source, nbytes, start), position)
        return 0

    monkeypatch.setattr(sink, "_ioctl", lambda: ioctl)
    found, output = copied(tmp_path)
    assert asked == [(0x4020940D, 0, 0, 0, 2 * BIG), (0x4020940D, 0, 0, 0, BIG)]
    assert found.cloned_nbytes == 3 * BIG
    assert output.read_bytes() == (tmp_path / "in.safetensors").read_bytes()


def test_conversions_say_what_is_new_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`convert`, `fuse` and `unfuse` share blocks as `dedup` does, and their tables and documents say so."""

    def ioctl(into: int, number: int, packed: bytes) -> int:
        source, start, nbytes, position = struct.unpack("=qQQQ", packed)
        os.pwrite(into, os.pread(source, nbytes, start), position)
        return 0

    network = torch.nn.LSTM(24, 40).state_dict()
    tensors = {"big": torch.rand(BIG // 4)} | {f"rnn.{name}": value for name, value in network.items()}
    save_file(tensors, tmp_path / "first.safetensors")
    dedup_command.dedup(tmp_path / "first.safetensors", tmp_path / "in.safetensors", align=PAGE)
    monkeypatch.setattr(sink, "_ioctl", lambda: ioctl)
    flags = ("in.safetensors", "--align", "4096", "-o", "out.safetensors", "--force")
    for words in (("convert", "--from", "torch", "--to", "keras"), ("fuse", "--layout", "cudnn"), ("unfuse",)):
        said = json.loads(quick(*words, *flags, "--json", cwd=tmp_path).out)
        validate("relayout", json.dumps(said))
        assert said["cloned_nbytes"] >= BIG
        assert "on disk" in quick(*words, *flags, cwd=tmp_path).out


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM])
def test_where_blocks_cannot_be_shared_they_are_copied(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the kernel says."""

    def ioctl(*asked: object) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(sink, "_ioctl", lambda: ioctl)
    found, output = copied(tmp_path)
    assert found.cloned_nbytes == 0
    assert output.read_bytes() == (tmp_path / "in.safetensors").read_bytes()


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """An XFS that can share blocks, in a file, mounted; the test is skipped where that is not allowed."""
    if shutil.which("mkfs.xfs") is None or os.geteuid() != 0:
        pytest.skip("needs mkfs.xfs (xfsprogs) and the right to mount")
    image, place = tmp_path / "image", tmp_path / "xfs"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    made = subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], capture_output=True, text=True)
    if (
        made.returncode
        or (mounted := subprocess.run(["mount", "-o", "loop", image, place], capture_output=True)).returncode
    ):
        pytest.skip(f"an XFS cannot be made and mounted here: {made.stderr or mounted.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def taken(folder: Path) -> int:
    """Bytes in use on a file system, as it says itself."""
    os.sync()
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_xfs_shares_the_blocks(xfs: Path) -> None:
    """A dedup and an export of an aligned file take hardly any room, and their bytes are right."""
    first = copied(xfs)[0]
    before = taken(xfs)
    again = dedup_command.dedup(xfs / "in.safetensors", xfs / "again.safetensors", align=PAGE)
    part = export_command.export(xfs / "in.safetensors", xfs / "part.safetensors", names=["b", "c"], align=PAGE)
    assert first.cloned_nbytes == again.cloned_nbytes == 3 * BIG and part.cloned_nbytes == BIG
    assert taken(xfs) - before < BIG // 4
    assert (xfs / "again.safetensors").read_bytes() == (xfs / "in.safetensors").read_bytes()
    assert torch.equal(load_file(xfs / "part.safetensors")["b"], load_file(xfs / "first.safetensors")["b"])


def test_xfs_copies_what_is_not_aligned(xfs: Path) -> None:
    """An input whose data begins elsewhere in a block is copied, and no sharing is claimed."""
    save_file({"a": torch.rand(BIG // 2)}, xfs / "in.safetensors")
    assert places(xfs / "in.safetensors")["a"][0] % PAGE
    before = taken(xfs)
    assert dedup_command.dedup(xfs / "in.safetensors", xfs / "out.safetensors", align=PAGE).cloned_nbytes == 0
    assert taken(xfs) - before >= 2 * BIG


def test_a_family_on_xfs(xfs: Path) -> None:
    """The folders' shards share their blocks with aligned inputs, each with the input that it was written from."""
    for name in ("one", "two"):
        save_file({"a": torch.ones(BIG // 2), "b": torch.rand(BIG // 4)}, xfs / "x.safetensors")
        dedup_command.dedup(xfs / "x.safetensors", xfs / f"{name}.safetensors", align=PAGE)
    before = taken(xfs)
    found = dedup_many.dedup_family([xfs / "one.safetensors", xfs / "two.safetensors"], xfs / "out", align=PAGE)
    assert found.cloned_nbytes == 4 * BIG and taken(xfs) - before < BIG // 4
