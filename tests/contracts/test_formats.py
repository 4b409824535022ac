"""What every format promises: describing touches no tensor, agrees with its oracle, and survives truncation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import paramtool
from paramtool import formats
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from paramtool.errors import FormatError
from paramtool.formats import table
from paramtool.formats.table import FORMATS
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import ByteRange, Encoded
from tests.contracts.makers import CASES, Case
from tests.examples import IS_HARD
from tests.laws.sharing import described, partition, raw


def test_every_format_has_a_case() -> None:
    """A new row in FORMATS needs a maker, an oracle and so all of these tests."""
    assert {row.name for row in FORMATS} | {"sharded"} == {case.format for case in CASES}
    assert len(CASES) == len({(case.format, case.name) for case in CASES})


def timeless(checkpoint: Checkpoint) -> Checkpoint:
    """A description without what a file's copy changes: its time and, after truncation, its size."""
    return replace(checkpoint, files=tuple(replace(file, nbytes=0, mtime_ns=0) for file in checkpoint.files))


def tensor_ranges(checkpoint: Checkpoint) -> dict[str, list[tuple[int, int]]]:
    """{file: [(start, stop)]} of all tensor bytes, as the description says."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for storage in checkpoint.storages.values():
        place = storage.backing.source if isinstance(storage.backing, Encoded) else storage.backing
        if isinstance(place, ByteRange):
            ranges.setdefault(place.file, []).append((place.start, place.stop))
    return ranges


def cuts(data: bytes) -> Sequence[int]:
    """The lengths to which a file is cut."""
    most = 150 if b"\x89HDF\r\n\x1a\n" in data else 300
    return range(0, len(data), 1 if IS_HARD else len(data) // most + 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format} {case.name}")
class TestFormat:
    """The contract of one form of one format."""

    def test_sniffs(self, case: Case, tmp_path: Path) -> None:
        """Exactly one row of FORMATS recognises the first bytes of a file that the table can read."""
        path = case.make(tmp_path)
        head = path.read_bytes()[: table.HEAD_NBYTES]
        found = [row.name for row in FORMATS if row.sniff(head, path.stat().st_size, str(path))]
        assert found == ([case.format] if case.format in {row.name for row in FORMATS} else [])

    def test_an_extension_says_nothing(self, case: Case, tmp_path: Path) -> None:
        """A file is recognised under any name."""
        path = case.make(tmp_path)
        expected = formats.read(path)
        renamed = path.rename(tmp_path / "odd.name")
        for data in tmp_path.glob("*.data-*"):  # TensorFlow's are called as the index is
            data.rename(data.with_name("odd.name" + data.name[data.name.index(".data-") :]))
        assert expected.entries == formats.read(renamed).entries

    def test_tensor_bytes_stand_where_the_description_says(self, case: Case, tmp_path: Path) -> None:
        """The bytes of every stored tensor, cut out of the file by hand, are those of the oracle."""
        path = case.make(tmp_path)
        checkpoint = formats.read(path)
        expected = case.oracle(path)
        for name, view in checkpoint.windows():
            place = checkpoint.storages[int(view.storage)].backing
            assert isinstance(place, ByteRange)
            if view.is_contiguous:
                data = Path(place.file).read_bytes()[place.start + view.byte_start : place.start + view.byte_stop]
                assert raw(expected[name]) == data, name

    def test_describing_needs_no_tensor_byte(self, case: Case, tmp_path: Path) -> None:
        """With every tensor byte turned round the description is the same."""
        path = case.make(tmp_path)
        expected = formats.read(path)
        for file, ranges in tensor_ranges(expected).items():
            data = bytearray(Path(file).read_bytes())
            for start, stop in ranges:
                data[start:stop] = bytes(b ^ 0xFF for b in data[start:stop])
            Path(file).write_bytes(data)
        assert timeless(expected) == timeless(formats.read(path))

    def test_storages_are_ranges_of_the_file(self, case: Case, tmp_path: Path) -> None:
        """Storages are disjoint ranges of the file, so the rest of it is all that describing had to read."""
        path = case.make(tmp_path)
        checkpoint = formats.read(path)
        assert sum(len(ranges) for ranges in tensor_ranges(checkpoint).values()) == len(checkpoint.storages)
        for file, ranges in tensor_ranges(checkpoint).items():
            ordered = sorted(r for r in ranges if r[1] > r[0])
            assert all(a[1] <= b[0] for a, b in pairwise(ordered)), "storages overlap"
            assert all(0 <= start <= stop <= os.path.getsize(file) for start, stop in ranges)

    def test_agrees_with_its_oracle(self, case: Case, tmp_path: Path) -> None:
        """Names, dtypes, shapes, bytes and sharing are what the reference implementation reads."""
        path = case.make(tmp_path)
        expected, found = case.oracle(path), paramtool.load_file(path)
        assert set(expected) == set(found)
        for name, value in expected.items():
            assert described(value) == described(found[name]), name
            assert raw(value) == raw(found[name]), name
        assert partition(expected) == partition(found)

    def test_is_deduplicated(self, case: Case, tmp_path: Path) -> None:
        """Its dedup holds the same values and sharing, and verify agrees."""
        path, output = case.make(tmp_path), tmp_path / ("out" if case.format == "sharded" else "out.safetensors")
        dedup_command.dedup(path, output)
        found, expected = paramtool.load_file(output), case.oracle(path)
        assert partition(expected) == partition(found)
        assert {name: raw(value) for name, value in expected.items()} == {n: raw(v) for n, v in found.items()}
        assert verify_command.verify(output, path).differences == ()

    @pytest.mark.sample(14)
    def test_every_truncation_is_an_error_or_harmless(self, case: Case, tmp_path: Path) -> None:
        """Cut after any byte a file is a FormatError, unless what was cut off says nothing (padding at the end).

        A file of HDF5 is read in a process of its own: there it is cut in 150 places, and everywhere by `make hard`.
        """
        path = case.make(tmp_path)
        expected = formats.read(path)
        for file in [Path(file.path) for file in expected.files]:
            data = file.read_bytes()
            for length in reversed(cuts(data)):
                os.truncate(file, length)
                assert _is_sound(path, expected), f"{file.name} cut after byte {length}"
            file.write_bytes(data)

    def test_junk_is_an_error_or_harmless(self, case: Case, tmp_path: Path) -> None:
        """Bytes behind the end are an error or noted, and change no tensor."""
        path = case.make(tmp_path)
        expected = formats.read(path)
        with Path(expected.files[-1].path).open("ab") as file:
            file.write(b"junk" * 30)
        try:
            found = formats.read(path)
        except FormatError:
            return
        assert (expected.entries, expected.storages) == (found.entries, found.storages)


def _is_sound(path: Path, expected: Checkpoint) -> bool:
    """Whether a damaged file is refused, or still described as it was."""
    try:
        found: Any = formats.read(path)
    except FormatError:
        return True
    return (found.entries, found.storages, found.objects) == (expected.entries, expected.storages, expected.objects)
