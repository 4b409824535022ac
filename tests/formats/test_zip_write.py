"""`formats/zip/write.py`: an archive laid out beforehand is the one that torch writes, of any size."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.engine.write.writer import Checksums
from paramtool.errors import OutputError
from paramtool.formats.output import Late, Segment
from paramtool.formats.zip.directory import read_directory
from paramtool.formats.zip.write import archive
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import Target
from tests.examples import examples
from tests.versions import needs

U8 = DTYPES["uint8"]
FOUR_GB = 1 << 32


def target(nbytes: int) -> Target:
    """A tensor of so many bytes, made of nothing."""
    return Target("t", U8, (nbytes,), ())


def written(segments: Iterable[Segment], payloads: Iterable[bytes]) -> bytes:
    """The file that the engine makes of segments, with these bytes for its targets."""
    segments, contents = list(segments), list(payloads)
    crcs = [zlib.crc32(content) for content in contents]
    rest = iter(contents)
    made = [s if isinstance(s, bytes) else s.make(crcs) if isinstance(s, Late) else next(rest) for s in segments]
    sizes = [len(s) if isinstance(s, bytes) else s.nbytes for s in segments]
    assert [len(part) for part in made] == sizes
    return b"".join(made)


def parted(members: list[tuple[str, bytes]], late: Iterable[str]) -> bytes:
    """The archive of members, some of which come as targets."""
    late = set(late)
    content: list[tuple[str, bytes | Target]] = [(n, target(len(d)) if n in late else d) for n, d in members]
    return written(archive(content), [data for name, data in members if name in late])


@pytest.mark.parametrize("sizes", [(), (1,), (0,), (7, 0, 1000), (64, 16, 3, 0, 0, 5)])
def test_it_is_torchs_own_file(sizes: tuple[int, ...]) -> None:
    """The members of a file of torch.save, laid out again, are that file, byte for byte."""
    file = io.BytesIO()
    torch.save({f"w{k}": torch.arange(size, dtype=torch.float32) for k, size in enumerate(sizes)}, file)
    with zipfile.ZipFile(file) as saved:
        members = [(info.filename, saved.read(info)) for info in saved.infolist()]
    assert parted(members, [name for name, _ in members if "/data/" in name]) == file.getvalue()
    assert parted(members, ()) == file.getvalue()


names = st.text(st.characters(exclude_characters="/\\\0", exclude_categories=("Cs",)), min_size=1, max_size=9)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(names, st.binary(max_size=200), st.booleans()), max_size=9, unique_by=lambda m: m[0].lower()))
def test_python_reads_what_was_laid_out(members: list[tuple[str, bytes, bool]]) -> None:
    """zipfile finds every member with its bytes and its CRC; each payload begins on a multiple of 64."""
    file = parted([(name, data) for name, data, _ in members], [name for name, _, late in members if late])
    with zipfile.ZipFile(io.BytesIO(file)) as found:
        assert found.testzip() is None
        assert [(i.filename, found.read(i)) for i in found.infolist()] == [(name, data) for name, data, _ in members]
        for info in found.infolist():
            lengths = file[info.header_offset + 26 : info.header_offset + 30]
            assert (info.header_offset + 30 + sum(memoryview(lengths).cast("H"))) % 64 == 0


def sparse(path: Path, members: list[tuple[str, bytes | Target]]) -> None:
    """An archive whose targets are holes, with CRC 0."""
    with path.open("wb") as file:
        for segment in archive(members):
            if isinstance(segment, Target):
                file.seek(segment.nbytes, os.SEEK_CUR)
            elif isinstance(segment, Late):
                file.write(segment.make([0] * len(members)))
            else:
                file.write(segment)


SIZES = [
    (FOUR_GB - 2, 5), (FOUR_GB - 1, 5), (FOUR_GB, 5), (3 << 30, 3 << 30, 5, 0, 7), (5, FOUR_GB + 3, 0, 9),
]  # fmt: skip


@needs("torch", "2.6", "get_record_header_offset")
@pytest.mark.parametrize("sizes", SIZES)
def test_large_archives_are_read_by_everybody(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Members and places beyond 4 GiB: zipfile, torch's own reader and ours find the same sizes and places.

    torch also computes the places without reading the headers, which only holds where they are just its own.
    """
    path = tmp_path / "large.pt"
    members: list[tuple[str, bytes | Target]] = [("archive/data.pkl", b"N."), ("archive/version", b"3\n")]
    members += [(f"archive/data/{k}", target(size)) for k, size in enumerate(sizes)]
    members += [("archive/last", b"here")]
    sparse(path, members)
    with path.open("rb") as file:
        ours = {member.name: (member.byte_start, member.nbytes) for member in read_directory(file, "large.pt")}
    nbytes = {name: m.nbytes if isinstance(m, Target) else len(m) for name, m in members}
    with zipfile.ZipFile(path) as found:
        assert {info.filename: info.file_size for info in found.infolist()} == nbytes
        assert found.read("archive/last") == b"here"
    reader = torch._C.PyTorchFileReader(str(path))
    for name, size in nbytes.items():
        record = name.removeprefix("archive/")
        start = reader.get_record_offset(record)
        assert ours[name] == (start, size), name
        assert start % 64 == 0
        header = reader.get_record_header_offset(record)
        assert reader.get_record_offset_no_read(header, record, size, 64) == start


@pytest.mark.slow
def test_very_many_members(tmp_path: Path) -> None:
    """More members than 16 bits count."""
    path = tmp_path / "many.pt"
    members: list[tuple[str, bytes | Target]] = [(f"archive/{k}", b"x") for k in range(70_000)]
    members += [("archive/version", b"3\n")]
    path.write_bytes(written(archive(members), ()))
    with zipfile.ZipFile(path) as found:
        assert len(found.infolist()) == 70_001
        assert found.read("archive/69999") == b"x"
    with path.open("rb") as file:
        assert len(read_directory(file, "many.pt")) == 70_001
    assert torch._C.PyTorchFileReader(str(path)).get_record("69999") == b"x"


@pytest.mark.parametrize("words", ("dedup m.pt out.pt", "dedup m.safetensors out.pt", "export m.pt out.npz",
                                   "convert m.safetensors out.pt"))  # fmt: skip
def test_a_wrong_crc_of_a_large_member_is_found(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its bytes are compared with the source: zipfile reads only small ones."""
    command, *paths = words.split()
    source, output = (tmp_path / path for path in paths)
    state = nn.LSTM(8, 600).state_dict()
    state = {f"rnn.{name}": tensor for name, tensor in state.items()}
    torch.save(state, source) if source.suffix == ".pt" else save_file(state, source)
    largest = max(tensor.nbytes for tensor in state.values())
    assert largest > 4 << 20
    more = {"target": "keras", "keep_split": True} if command == "convert" else {}
    right = Checksums.all
    monkeypatch.setattr(Checksums, "all", lambda self: [crc ^ 1 for crc in right(self)])
    with pytest.raises(OutputError, match="CRC"):
        getattr(paramtool, command)(source, output, **more)
    assert not output.exists()
    monkeypatch.undo()
    getattr(paramtool, command)(source, output, **more)
    with zipfile.ZipFile(output) as archive:
        assert archive.testzip() is None
