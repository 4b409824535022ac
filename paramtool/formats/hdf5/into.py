"""Keras files, and other HDF5 files, with the values of some datasets replaced and every other byte as it was.

A dataset that is stored as one run of bytes is replaced in place.  In a `.keras` zip the CRC of the weights follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import BinaryIO

from paramtool.errors import FormatError, PlanError, listed, plural
from paramtool.formats import sniff
from paramtool.formats.files import open_source, pread
from paramtool.formats.hdf5 import datasets as hdf5
from paramtool.formats.hdf5.keras import WEIGHTS
from paramtool.formats.output import Late, OutputFile, Segment
from paramtool.formats.splice import spliced
from paramtool.formats.zip import directory as zip_directory
from paramtool.formats.zip.crc import crc32_joined
from paramtool.formats.zip.directory import Member, crc_places
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange, Encoded


def lay_out(model: Checkpoint, targets: Mapping[str, Target]) -> tuple[OutputFile, ...]:
    """The model with the targets in place of its own tensors; PlanError for datasets that are not one run of bytes."""
    (source,) = model.files
    views, fills, refused = model.views(), {}, []
    for name, target in targets.items():
        backing = model.storages[int(views[name].storage)].backing
        if isinstance(backing, ByteRange):
            fills[backing.start, backing.stop] = target
        else:
            is_chunked = isinstance(backing, Encoded) and backing.steps[0].startswith(hdf5.STEP)
            is_big = isinstance(backing, Encoded) and not is_chunked
            how = "in chunks" if is_chunked else "big-endian" if is_big else "inside its header"
            refused.append(f"{name!r} is stored {how}")
    if refused:
        head = f"{source.path}: {plural(len(refused), 'dataset is', 'datasets are')} not replaced in place:"
        raise PlanError(
            listed(head, refused), hint="save the model again with Keras, or `h5repack -l CONTI -f NONE IN OUT`"
        )
    file, _ = open_source(source.path)
    with file:
        if not sniff.is_zip(file.read(4)):
            return (OutputFile("", spliced(ByteRange(source.path, 0, source.nbytes), fills)),)
        members = {member.name: member for member in zip_directory.read_directory(file, source.path)}
        member = members[WEIGHTS]
        inner = spliced(ByteRange(source.path, member.byte_start, member.byte_start + member.nbytes), fills)
        parts = [part for part in inner if isinstance(part, (Target, ByteRange))]
        return (OutputFile("", replaced(file, source.path, source.nbytes, member, inner=parts)),)


def differences(path: str, written: Checkpoint, names: Mapping[str, str]) -> Iterator[str]:
    """What h5py reads otherwise than the program: {name: digest of its elements, row by row}."""
    (source,) = written.files
    file, _ = open_source(path)
    with file:
        place = ByteRange(path, 0, source.nbytes)
        if sniff.is_zip(file.read(4)):
            (member,) = (one for one in zip_directory.read_directory(file, path) if one.name == WEIGHTS)
            place = ByteRange(path, member.byte_start, member.byte_start + member.nbytes)
        nbytes = sum(view.nbytes for name, view in written.views().items() if name in names)
        found = hdf5.digests(file, place, tuple(names), nbytes)
    yield from (f"{name!r}: h5py reads other values" for name in names if found.get(name) != names[name])


# --- An archive with one stored member replaced by another of the same length, and everything else byte for byte -----


CRC_NBYTES = 4


def replaced(
    file: BinaryIO, where: str, nbytes: int, member: Member, *, inner: Sequence[bytes | Target | ByteRange]
) -> tuple[Segment, ...]:
    """The segments of an archive of `nbytes` bytes in which `member` is `inner`.

    `inner` holds targets and ranges, as long as the member together.  Its CRC is put wherever the archive states the
    old one.  FormatError if the two statements of the old one differ.
    """
    places = crc_places(file, where, member.name)
    old = (member.crc32 or 0).to_bytes(CRC_NBYTES, "little")
    for place in places:
        if (found := pread(file.fileno(), CRC_NBYTES, place)) != old:
            raise FormatError(
                f"{where}: {member.name!r}: found CRC {found[::-1].hex()} at byte {place}; the directory has "
                f"{old[::-1].hex()}"
            )
    stop = member.byte_start + member.nbytes
    before = sum(place < member.byte_start for place in places)
    late = Late(
        CRC_NBYTES, partial(_crc, before + 1, tuple(part.nbytes for part in inner if not isinstance(part, bytes)))
    )
    segments: list[Segment] = []
    at = 0
    for place in places:
        if at <= member.byte_start < place:
            segments += [ByteRange(where, at, member.byte_start), *inner]
            at = stop
        segments += [ByteRange(where, at, place), late]
        at = place + CRC_NBYTES
    return (*segments, ByteRange(where, at, nbytes))


def _crc(first: int, lengths: Sequence[int], crcs: Sequence[int]) -> bytes:
    """The CRC of the parts of the member, of which `first` other ranges of the file come before."""
    found = 0
    for nbytes, crc32 in zip(lengths, crcs[first:], strict=False):
        found = crc32_joined(found, crc32, nbytes)
    return found.to_bytes(CRC_NBYTES, "little")
