"""Stacked pickles (torch 0.1.10 to 1.5): five consecutive pickles, then the storages.

    magic, protocol, sys_info, the object, the list of storage keys; for each key an i64 count and the bytes

Source: torch/serialization.py, _legacy_save.
"""

from __future__ import annotations

from struct import Struct
from typing import BinaryIO

from paramtool.errors import FormatError
from paramtool.formats.files import Contents
from paramtool.formats.pickle.values import Use
from paramtool.formats.torch.storages import Storages, checkpoint_of
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import Backing, ByteRange, SourceFile

COUNT = Struct("<q")
PROTOCOL = 1001
"""torch/serialization.py, `PROTOCOL_VERSION`, since 0.1.10; torch.load takes no other."""


def read(file: BinaryIO, source: SourceFile) -> Checkpoint:
    """Describe a file of stacked pickles."""
    data = Contents(file, source.nbytes)
    storages = Storages(source)
    magic = storages.run(data, 0, f"{source.path}: the magic number")
    protocol = storages.run(data, magic.stop, f"{source.path}: the protocol")
    if protocol.value != PROTOCOL:
        what = f"the protocol is {protocol.value!r:.60}; expected {PROTOCOL}"
        raise FormatError(f"{source.path}: byte {magic.stop}: {what}", hint="torch.load refuses the file, too")
    body = storages.run(data, storages.run(data, protocol.stop, f"{source.path}: sys_info").stop)
    keys = storages.run(data, body.stop, f"{source.path}: the list of storages")
    # Read (count, bytes) of each storage, in the order of the list; every storage that is used must be present
    where = storages.source.path
    backings: dict[str, Backing] = {}
    end = keys.stop
    if not isinstance(keys.value, list):
        raise FormatError(f"{where}: byte {end}: found no list of storages")
    for key in map(str, keys.value):
        ref = storages.whole.get(key)
        if ref is None or key in backings:
            raise FormatError(f"{where}: storage {key!r} is listed {'twice' if key in backings else 'and never used'}")
        if end + COUNT.size > len(data):
            raise FormatError(f"{where}: byte {end}: storage {key!r} is incomplete; the file is truncated")
        unit = ref.dtype.block_bytes if ref.dtype else 1
        nbytes = COUNT.unpack(data[end : end + COUNT.size])[0] * unit
        end += COUNT.size
        if nbytes == ref.nbytes and end + nbytes > len(data):
            raise FormatError(
                f"{where}: byte {end}: storage {key!r} has {nbytes} bytes, of which {len(data) - end} are in "
                "the file; it is truncated"
            )
        if nbytes != ref.nbytes:
            raise FormatError(
                f"{where}: byte {end - COUNT.size}: storage {key!r} has {nbytes} bytes; the pickle says {ref.nbytes}"
            )
        backings[key] = ByteRange(where, end, end + nbytes)
        end += nbytes
    if missing := storages.whole.keys() - backings.keys():
        raise FormatError(f"{where}: storage {min(missing)!r} is used, but not in the list of storages")
    notes = []
    if end < len(data):
        from paramtool.formats import scan

        notes = [f"{len(data) - end} bytes follow the last storage"]
        more = scan.scan_parts(file, source, [(end, source.nbytes)])
        storages.uses += (Use(one.path, one.called, one.arguments) for one in more.unknown)
    return checkpoint_of(
        "stacked pickles", storages, [backings[key] for key in storages.whole], body.value, notes=notes
    )
