"""One member of an archive replaced in place: Python's zipfile finds the new bytes, and every other as it was."""

from __future__ import annotations

import io
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import FormatError
from paramtool.formats.files import open_source
from paramtool.formats.hdf5.keras import replaced
from paramtool.formats.output import Late
from paramtool.formats.zip.directory import read_directory
from paramtool.model.storage import ByteRange


class Stream(io.RawIOBase):
    """A file that cannot be sought, so that zipfile writes CRCs behind the members."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.data += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def archive(members: dict[str, bytes], is_stream: bool) -> bytes:
    stream = Stream()
    target = stream if is_stream else io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return bytes(stream.data) if is_stream else target.getvalue()  # type: ignore[union-attr]


def spliced(path: Path, name: str, new: bytes, cuts: list[int]) -> bytes:
    """The archive with a member replaced by ranges of another file, put together as the engine does it."""
    other = path.with_suffix(".new")
    other.write_bytes(new)
    bounds = sorted({0, len(new), *(cut % (len(new) + 1) for cut in cuts)})
    inner = [ByteRange(str(other), a, b) for a, b in pairwise(bounds)]
    file, source = open_source(str(path))
    with file:
        member = next(one for one in read_directory(file, str(path)) if one.name == name)
        segments = replaced(file, str(path), source.nbytes, member, inner=inner)
    pieces = [
        Path(one.file).read_bytes()[one.start : one.stop] if isinstance(one, ByteRange) else b"" for one in segments
    ]
    crcs = [zlib.crc32(piece) for one, piece in zip(segments, pieces, strict=True) if isinstance(one, ByteRange)]
    return b"".join(
        one.make(crcs) if isinstance(one, Late) else piece for one, piece in zip(segments, pieces, strict=True)
    )


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data(), st.booleans())
def test_zipfile_finds_the_new_member(data: list[bytes], more: st.DataObject, is_stream: bool) -> None:
    import tempfile

    members = {f"m{k}": one for k, one in enumerate(data)}
    name = more.draw(st.sampled_from(sorted(members)))
    new = more.draw(st.binary(min_size=len(members[name]), max_size=len(members[name])))
    cuts = more.draw(st.lists(st.integers(0, 40), max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.zip"
        path.write_bytes(archive(members, is_stream))
        found = spliced(path, name, new, cuts)
    with zipfile.ZipFile(io.BytesIO(found)) as file:
        assert file.testzip() is None
        assert {one: file.read(one) for one in members} == {**members, name: new}
    assert len(found) == len(archive(members, is_stream))


def test_a_local_header_with_another_crc(tmp_path: Path) -> None:
    made = bytearray(archive({"m": b"abcd"}, False))
    made[14] ^= 1
    (tmp_path / "a.zip").write_bytes(made)
    with pytest.raises(FormatError, match=r"found CRC .* at byte 14; the directory has"):
        spliced(tmp_path / "a.zip", "m", b"wxyz", [])
