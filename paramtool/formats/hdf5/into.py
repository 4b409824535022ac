"""Keras files, and other HDF5 files, with the values of some datasets replaced and every other byte as it was.

A dataset that is stored as one run of bytes is replaced in place.  In a `.keras` zip the CRC of the weights follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.errors import PlanError, listed, plural
from paramtool.formats import sniff
from paramtool.formats.files import open_source
from paramtool.formats.hdf5 import datasets as hdf5
from paramtool.formats.hdf5.keras import WEIGHTS
from paramtool.formats.output import OutputFile
from paramtool.formats.splice import spliced
from paramtool.formats.zip import directory as zip_directory
from paramtool.formats.zip.splice import replaced
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
