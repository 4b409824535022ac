"""Files of torch before 1.6: stacked pickles, and tar archives.

    stacked (0.1.10 to 1.5)    magic, protocol, sys_info, the object, the list of storage keys; for each key an i64
                               count and the bytes
    tar (0.1.1 to 0.1.9)       members `pickle`, `storages` and `tensors`

Sources: torch/serialization.py, _legacy_save, _load, legacy_load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import BinaryIO

from paramtool.errors import FormatError, plural
from paramtool.formats.files import Contents
from paramtool.formats.pickle.read import load
from paramtool.formats.pickle.values import Use
from paramtool.formats.torch.globals import CONSTRUCTORS, KNOWN, PickledTensor, StorageRef, storage_dtype
from paramtool.formats.torch.storages import Storages, checkpoint_of
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.storage import Backing, ByteRange, SourceFile

COUNT = Struct("<q")
PROTOCOL = 1001
"""torch/serialization.py, `PROTOCOL_VERSION`, since 0.1.10; torch.load takes no other."""


def read_stacked(file: BinaryIO, source: SourceFile) -> Checkpoint:
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


def read_tar(file: BinaryIO, source: SourceFile) -> Checkpoint:
    """Describe a torch tar file."""
    # (start, stop) in the file of the members that make up a checkpoint.
    where = source.path
    import tarfile

    wanted = {"pickle", "storages", "tensors"}
    try:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            held = list(archive)
            members = [m for m in held if m.isreg() and m.name.removeprefix("./") in wanted and not m.issparse()]
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise FormatError(f"{where}: is a damaged tar archive: {error}") from None
    places = {m.name.removeprefix("./"): (m.offset_data, m.offset_data + m.size) for m in members}
    if not members:
        # FormatError if the archive is one that another program writes
        from paramtool.formats import foreign

        if found := foreign.archive([member.name for member in held]):
            raise FormatError(f"{where}: is {found.what}", hint=found.hint)
    if len(members) != len(wanted) or places.keys() != wanted:
        raise FormatError(
            f"{where}: is a tar archive without `pickle`, `storages` and `tensors`; torch did not write it"
        )
    data = Contents(file, source.nbytes)
    storages = Storages(source)
    # `count`, then for each storage `(key, location, type)`, i64 elements, bytes; then the views on them.
    reader = _TarReader(storages, data, *places["storages"], f"{where}: storages")
    refs: dict[str, StorageRef] = {}
    backings: dict[str, Backing] = {}
    for _ in range(reader.count()):
        key, location, type_ = reader.row(3)
        try:
            dtype = storage_dtype(type_)
        except ValueError as error:
            raise FormatError(f"{where}: storages: {error}") from None
        if dtype is None:
            raise FormatError(f"{where}: storages: an untyped storage, which torch 0.1 did not have")
        (numel,) = reader.numbers("<q")
        start = reader.position
        reader.position = reader.skip(numel * dtype.block_bytes)
        refs[str(key)] = storages.ref(str(key), dtype, numel, str(location))
        backings[str(key)] = ByteRange(where, start, reader.position)
    views = reader.unpickle()
    for view in views if isinstance(views, list) else ():
        target, root, offset, _ = reader.as_row(view, 4)
        ref = refs.get(str(root))
        if ref is None or ref.dtype is None or type(offset) is not int or offset < 0:
            raise FormatError(f"{where}: storages: a view of storage {root!r:.40}, which is missing")
        refs[str(target)] = ref._replace(byte_start=ref.byte_start + offset * ref.dtype.block_bytes)
    tensors = _tar_tensors(storages, data, places["tensors"], refs)
    known = {**refs, **tensors}

    def persistent(pid: object) -> object:
        if isinstance(pid, tuple):
            return pid[0]
        if str(pid) not in known:
            raise ValueError(f"object {pid!r:.40}, which the archive does not have")
        return known[str(pid)]

    body = load(data, places["pickle"][0], source.path, CONSTRUCTORS, persistent=persistent, known=KNOWN)
    storages.pickle_nbytes += body.stop - places["pickle"][0]
    storages.uses += body.uses
    return checkpoint_of("tar", storages, [backings[key] for key in storages.whole], body.value)


@dataclass
class _TarReader:
    """Reads numbers and pickles from one member of a tar archive, never beyond its end."""

    storages: Storages
    data: Contents
    position: int
    stop: int
    where: str
    """The file and the member, for errors."""

    def unpickle(self) -> object:
        """The next pickle."""
        result = self.storages.run(self.data, self.position, self.where)
        self.position = self.skip(result.stop - self.position)
        return result.value

    def numbers(self, form: str) -> tuple[int, ...]:
        """The next numbers."""
        struct = Struct(form)
        start = self.position
        self.position = self.skip(struct.size)
        return struct.unpack(self.data[start : self.position])

    def skip(self, nbytes: int) -> int:
        """The position `nbytes` further; FormatError if the member ends before."""
        if nbytes < 0 or self.position + nbytes > min(self.stop, len(self.data)):
            raise FormatError(f"{self.where}: byte {self.position}: needs {nbytes} more bytes; it is truncated")
        return self.position + nbytes

    def count(self) -> int:
        """The next pickle, which must be a count."""
        found = self.unpickle()
        if type(found) is not int or not 0 <= found <= self.stop - self.position:
            raise FormatError(f"{self.where}: found {found!r:.40}; expected a count")
        return found

    def row(self, length: int) -> tuple[object, ...]:
        """The next pickle, which must be a tuple of that length."""
        return self.as_row(self.unpickle(), length)

    def as_row(self, found: object, length: int) -> tuple[object, ...]:
        """A value that must be a tuple of that length."""
        if not isinstance(found, (tuple, list)) or len(found) != length:
            raise FormatError(f"{self.where}: expected {plural(length, 'value')} in a row")
        return tuple(found)


Places = tuple[int, int]


def _tar_tensors(
    storages: Storages, data: Contents, place: Places, refs: Mapping[str, StorageRef]
) -> dict[str, PickledTensor]:
    """`count`, then for each tensor `(key, storage key, type)`, i32 axes, 4 unused bytes, sizes, strides, offset."""
    reader = _TarReader(storages, data, *place, f"{storages.source.path}: tensors")
    tensors: dict[str, PickledTensor] = {}
    rebuild: Callable[..., object] = CONSTRUCTORS["torch._utils._rebuild_tensor"]
    for _ in range(reader.count()):
        key, storage, _type = reader.row(3)
        axes, _unused = reader.numbers("<ii")
        if not 0 <= axes <= 64 or str(storage) not in refs:
            count = plural(axes, "axis", "axes")
            raise FormatError(f"{reader.where}: {key!r:.40}: {count} on storage {storage!r:.40}")
        shape, strides = reader.numbers(f"<{axes}q"), reader.numbers(f"<{axes}q")
        (offset,) = reader.numbers("<q")
        try:
            tensors[str(key)] = rebuild(refs[str(storage)], offset, shape, strides)  # type: ignore[assignment]
        except ValueError as error:
            raise FormatError(f"{reader.where}: {key!r:.40}: {error}") from None
    return tensors
