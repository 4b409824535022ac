"""`formats/zip/directory.py`: members are byte ranges, and an archive that can be read two ways is not read."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import Defects, FormatError, ParamtoolError, UnsafeError
from paramtool.formats.zip.directory import Member, is_zip, read_directory, read_member
from tests.examples import examples
from tests.hostile import makers_zip
from tests.hostile.makers_zip import MAKERS, PARTS, Part, archive, archive64
from tests.patience import calls

LIMIT = 1 << 20

MESSAGES = {
    "duplicate_name": "'archive/data/0': found this name twice",
    "name_in_other_case": "'archive/DATA/0': found also 'archive/data/0'",
    "other_local_name": "found the name 'archive/data/1' in the local header",
    "encrypted": "flags 0x0801",
    "bzip2": "compression method 12; expected 0 (stored) or 8 (deflated)",
    "stored_with_two_sizes": "found 16 bytes stored as 17",
    "payload_beyond_the_file": "expected it before the directory",
    "header_beyond_the_file": "found no local header at byte 1,073,741,824",
    "parent_name": "found a name that leaves its folder",
    "nul_name": r"'archive/data/0\x00.txt'",
    "overlapping": "expected no overlap of members",
    "member_inside_a_member": "inside 'archive/data/0'",
    "bytes_before": "10 bytes before the archive",
    "bytes_before_that_offsets_count": "10 bytes before the archive",
    "truncated": "found no end record",
    "directory_beyond_the_end": "found a directory at byte 1,073,741,824",
    "more_entries_than_counted": "found more than 1 directory entries; expected 1",
    "fewer_entries_than_counted": "found 2 directory entries; expected 3",
    "multi_disk": "multi-disk",
    "member_of_another_disk": "found on disk 65535",
    "zip64_disagrees": "found 1 in the end record; expected 2",
    "too_many_entries": "2,000,001 entries",
    "many_defects": "and 30 more",
}


def members(path: Path) -> tuple[Member, ...]:
    with path.open("rb") as file:
        return read_directory(file, "a.pt")


def payload(path: Path, member: Member, limit: int = LIMIT) -> bytes:
    with path.open("rb") as file:
        return read_member(file, member, "a.pt", limit)


@pytest.mark.parametrize("name", MAKERS)
def test_an_ambiguous_or_damaged_archive_is_refused(name: str, tmp_path: Path) -> None:
    """Each maker's archive raises exactly its class, with the file first and the defect named."""
    make, kind = MAKERS[name]
    path = tmp_path / "a.pt"
    make(path)
    with pytest.raises(kind) as caught:
        members(path)
    assert type(caught.value) is kind
    assert str(caught.value).startswith("a.pt: ")
    assert MESSAGES.get(name, "expected") in str(caught.value)


def test_every_maker_is_registered() -> None:
    """A maker that is not in the registry would never be run."""
    building = {"local", "central", "end", "end64", "bodies", "archive", "archive64"}
    public = {n for n, v in vars(makers_zip).items() if callable(v) and v.__module__ == makers_zip.__name__}
    assert {n for n in public if n[0].islower()} - building - {"_changed"} == set(MAKERS)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), st.binary(max_size=99)),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.binary(max_size=40).filter(lambda comment: b"PK" not in comment),
)
def test_members_are_what_zipfile_wrote(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], method: int, comment: bytes
) -> None:
    """Names, order, sizes and bytes agree with Python's zipfile, comment or not."""
    files = {name: files[name] for name in {n.lower(): n for n in files}.values()}
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.comment = comment
    found = members(path)
    assert [(m.name, m.nbytes) for m in found] == [(n, len(c)) for n, c in files.items()]
    assert [payload(path, m) for m in found] == list(files.values())


def test_a_stored_payload_is_a_window_on_the_file(tmp_path: Path) -> None:
    """The bytes at `byte_start` are the payload."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(*PARTS))
    member = members(path)[1]
    assert path.read_bytes()[member.byte_start :][: member.nbytes] == PARTS[1].payload


def test_an_archive_without_members_is_empty(tmp_path: Path) -> None:
    """Zero members are a valid archive."""
    path = tmp_path / "a.zip"
    path.write_bytes(archive())
    assert members(path) == ()
    assert is_zip(path.read_bytes())


def test_bytes_after_the_archive_are_accepted(tmp_path: Path) -> None:
    """torch and zipfile both accept them."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(*PARTS) + b"trailing")
    assert len(members(path)) == 2


def test_zip64_records_are_read(tmp_path: Path) -> None:
    """torch writes zip64 for large files; sizes then stand in the extra field."""
    extra = b"\x01\x00\x10\x00" + (16).to_bytes(8, "little") * 2
    wide = replace(PARTS[1], nbytes=0xFFFFFFFF, stored_nbytes=0xFFFFFFFF, extra=extra)
    path = tmp_path / "a.pt"
    path.write_bytes(archive64(PARTS[0], wide))
    assert payload(path, members(path)[1]) == PARTS[1].payload


def test_folders_are_left_out(tmp_path: Path) -> None:
    """An entry that ends in a slash names no bytes."""
    path = tmp_path / "a.zip"
    path.write_bytes(archive(Part(b"archive/", b""), *PARTS))
    assert [m.name for m in members(path)] == ["archive/data.pkl", "archive/data/0"]


def test_crc_zero_on_every_member_means_not_computed(tmp_path: Path) -> None:
    """torch's set_crc32_options(False); the payload is then read unchecked."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(*(replace(part, crc32=0) for part in PARTS), Part(b"archive/empty", b"")))
    assert [m.crc32 for m in members(path)] == [None] * 3
    assert payload(path, members(path)[0]) == PARTS[0].payload


def test_crc_zero_on_one_member_is_a_wrong_crc(tmp_path: Path) -> None:
    """Only all or nothing means not computed."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(PARTS[0], replace(PARTS[1], crc32=0)))
    with pytest.raises(FormatError, match=r"'archive/data/0': found CRC-32 .*; expected 00000000"):
        payload(path, members(path)[1])


def test_an_empty_member_has_crc_zero(tmp_path: Path) -> None:
    """Its CRC is computed and is 0."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(Part(b"archive/empty", b"")))
    assert [m.crc32 for m in members(path)] == [0]


def deflated(content: bytes, declared: int, rest: bytes = b"") -> Part:
    engine = zlib.compressobj(wbits=-15)
    packed = engine.compress(content) + engine.flush() + rest
    return Part(b"a", packed, method=8, nbytes=declared, crc32=zlib.crc32(content))


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        (deflated(bytes(1000), 999), UnsafeError, "found more bytes than declared; expected 999"),
        (deflated(bytes(1000), 1001), FormatError, "found 1,000 inflated bytes"),
        (deflated(bytes(1000), 1000, b"rest"), FormatError, "nothing after the stream"),
        (deflated(bytes(2 * LIMIT), 2 * LIMIT), UnsafeError, "expected at most 1,048,576"),
        (Part(b"a", b"\xff\xff\xff", method=8, nbytes=5), FormatError, "cannot be inflated"),
        (Part(b"a", b"", method=8, nbytes=0), FormatError, "stream ended: False"),
        (Part(b"a", bytes(2 * LIMIT)), UnsafeError, "expected at most 1,048,576"),
    ],
)
def test_a_payload_has_the_size_it_declares(
    part: Part, kind: type[ParamtoolError], message: str, tmp_path: Path
) -> None:
    """Neither more, nor less, nor above the caller's limit."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(part))
    with pytest.raises(kind, match=message):
        payload(path, members(path)[0])


def test_a_deflated_bomb_costs_little(tmp_path: Path) -> None:
    """1 GiB of zeros that claims to be 10 bytes is given up at once."""
    engine = zlib.compressobj(9, wbits=-15)
    packed = b"".join(engine.compress(bytes(1 << 20)) for _ in range(64)) + engine.flush()
    path = tmp_path / "a.pt"
    path.write_bytes(archive(Part(b"a", packed, method=8, nbytes=10)))
    with pytest.raises(UnsafeError, match="more bytes than declared"):
        payload(path, members(path)[0])


def test_truncation_at_every_byte_is_a_format_error(tmp_path: Path) -> None:
    """A cut archive never looks whole and never crashes."""
    whole, path = archive(*PARTS), tmp_path / "a.pt"
    for stop in range(len(whole)):
        path.write_bytes(whole[:stop])
        with pytest.raises(FormatError):
            members(path)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_changed_bytes_raise_only_our_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever a few bytes are changed to, there are members or a ParamtoolError."""
    content = bytearray(archive64(*PARTS) if data.draw(st.booleans()) else archive(*PARTS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("zip") / "a.pt"
    path.write_bytes(content)
    try:
        for member in members(path):
            payload(path, member)
    except ParamtoolError:
        pass


def test_a_million_overlapping_entries_are_refused_soon(tmp_path: Path) -> None:
    """Messages are bounded: 20 and a count."""
    count = 60_000
    body, _ = makers_zip.bodies((Part(b"a", b""),))
    directory = makers_zip.central(Part(b"a", b""), 0) * count
    path = tmp_path / "a.zip"
    path.write_bytes(body + directory + makers_zip.end(count, len(directory), len(body)))

    def refuse() -> None:
        with pytest.raises(Defects) as caught:
            members(path)
        assert len(caught.value.defects) == 21

    assert calls(refuse) < 40 * count, "a bound against quadratic work"


SAMPLES = Path(__file__).parents[3] / "shared" / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared folder of real checkpoints is not here")
def test_real_archives_read_as_zipfile_reads_them() -> None:
    """Every zip among the real checkpoints: same names, same bytes."""
    paths = [p for p in SAMPLES.iterdir() if p.is_file() and is_zip(p.read_bytes()[:4])]
    assert len(paths) >= 4
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            assert {m.name: payload(path, m, 1 << 30) for m in members(path)} == {
                name: archive.read(name) for name in archive.namelist()
            }
