"""Checkpoints of torch.save, in every form it ever had, and TorchScript archives; read without torch.

    zip        torch 1.6 and later   `N/data.pkl` and one stored member `N/data/KEY` for each storage
    stacked    torch 0.1.10 to 1.5   five pickles one behind the other, then (i64 count, bytes) for each storage
    tar        torch 0.1.1 to 0.1.9  members `pickle`, `storages`, `tensors`
    TorchScript                      a zip with `constants.pkl` and `code/`; only its tensors are looked at

A storage is a range of bytes of the file; the pickles say which windows on it are tensors.  Same key, same storage:
that is all the alias information there is, and it is complete.

Sources: torch/serialization.py, caffe2/serialize/inline_container.cc, torch/csrc/jit/serialization/pickler.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, BinaryIO

from paramtool.errors import Defects, FormatError
from paramtool.formats import _sniff, _tree, _zip
from paramtool.formats._files import open_source
from paramtool.formats._pickle import load
from paramtool.formats._pickle_values import Instance, Result, Use
from paramtool.formats._torch_values import CONSTRUCTORS, KNOWN, InlineView, StorageRef, Tensor, storage_dtype
from paramtool.formats._walk import walk
from paramtool.model.checkpoint import Checkpoint, Entry, Unknown, Unreadable
from paramtool.model.dtype import DType
from paramtool.model.storage import Backing, ByteRange, Encoded, Inline, SourceFile, Storage
from paramtool.model.view import View, contiguous

if TYPE_CHECKING:
    from mmap import mmap

MAX_PICKLE_NBYTES = 512 << 20
COUNT = Struct("<q")


def read(path: str) -> Checkpoint:
    """Describe a file of any of torch's forms; FormatError or UnsafeError where that is not possible."""
    file, source = open_source(path)
    with file:
        head = file.read(512)
        if _sniff.is_zip(head):
            return _read_zip(file, source)
        if _sniff.is_stacked(head):
            return _read_stacked(file, source)
        return _read_tar(file, source)


# --- what all forms share: storages as pickles name them, and the checkpoint that comes of it -----------------------


@dataclass
class Storages:
    """The storages of one file, numbered as they are met."""

    source: SourceFile
    folder: str = ""
    """What keys are looked up under in an archive; set before each pickle is run."""
    sizes: dict[str, int] = field(default_factory=dict)
    """{key: bytes}, as the pickles say."""
    ids: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, DType | None] = field(default_factory=dict)
    locations: dict[str, None] = field(default_factory=dict)
    inline: dict[int, bytes] = field(default_factory=dict)
    pickle_nbytes: int = 0
    """Bytes of all pickles that were run."""

    def persistent(self, pid: object) -> object:
        """`('storage', type, key, location, numel [, view])`, or `('module', class, file, source)`."""
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":
            return pid[1]
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise ValueError("a persistent id that names no storage")
        _, type_, key, location, numel, *view = pid
        dtype = storage_dtype(type_)
        if not isinstance(key, (str, int)) or type(numel) is not int or not 0 <= numel < 1 << 60:
            raise ValueError(f"storage {key!r:.40} of {numel!r:.40} elements")
        return self.ref(f"{self.folder}{key}", dtype, numel, str(location), view[0] if view else None)

    def ref(self, key: str, dtype: DType | None, numel: int, location: str, view: object = None) -> StorageRef:
        """A storage, or a view on one: `(view key, offset, size)` in elements."""
        nbytes = numel * (dtype.block_bytes if dtype else 1)
        if self.sizes.setdefault(key, nbytes) != nbytes:
            raise ValueError(f"storage {key!r} has {self.sizes[key]} bytes in one place and {nbytes} in another")
        self.dtypes.setdefault(key, dtype)
        self.locations[location] = None
        start, size = 0, nbytes
        if isinstance(view, tuple):
            if len(view) != 3 or dtype is None or not all(type(n) is int and n >= 0 for n in view[1:]):
                raise ValueError(f"a view on storage {key!r} that says no place")
            start, size = view[1] * dtype.block_bytes, view[2] * dtype.block_bytes
        return StorageRef(self.ids.setdefault(key, len(self.ids)), dtype, start, size)

    def inlined(self, value: InlineView) -> View:
        """A storage for bytes that stand in the pickle."""
        key = f"inline {len(self.ids)}"
        self.ids[key] = number = len(self.ids)
        self.inline[number] = value.array.data
        return contiguous(number, value.dtype, value.array.shape)

    def run(self, data: bytes | mmap, start: int, where: str = "") -> Result:
        """One pickle of this file."""
        where = where or self.source.path
        result = load(data, start, where, CONSTRUCTORS, self.persistent, known=KNOWN)
        self.pickle_nbytes += result.stop - start
        return result


def _checkpoint(
    form: str,
    storages: Storages,
    backings: Mapping[str, Backing],
    value: object,
    uses: Iterable[Use],
    notes: Iterable[str] = (),
) -> Checkpoint:
    """Names, views and storages together; windows that reach outside their storage are gathered and refused."""
    where = storages.source.path
    tree, named, escaped = walk(value, where, storages.pickle_nbytes)
    roles = _tree.roles(tree)
    entries: dict[str, Entry] = {}
    for name, tensor in named:
        found = storages.inlined(tensor.value) if isinstance(tensor.value, InlineView) else tensor.value
        entries[name] = Entry(found, roles.get(name, "model"), tensor.requires_grad)
    # a storage that no tensor uses still has its bytes in the file; one without a member was never asked for
    made = {
        storages.ids[key]: Storage(storages.ids[key], storages.sizes[key], backings[key]) for key in storages.sizes
    } | {n: Storage(n, len(data), Inline(data)) for n, data in storages.inline.items()}
    escapes = ["some names collide and have their dots escaped"] if escaped else []
    checkpoint = Checkpoint(
        format=f"torch {form}",
        files=(storages.source,),
        storages=made,
        entries=entries,
        objects=tree,
        sections=_tree.sections(tree),
        producer=_producer(storages),
        unknown=tuple(_unknown(uses, entries)),
        notes=(*notes, *escapes),
    )
    _check_windows(checkpoint)
    return checkpoint


def _producer(storages: Storages) -> str:
    places = [place for place in storages.locations if place != "cpu"]
    return "torch" + (f", saved from {', '.join(places[:3])}" if places else "")


def _unknown(uses: Iterable[Use], entries: Mapping[str, Entry]) -> Iterator[Unknown]:
    """Unknown names, with the tensors that cannot be had without them."""
    needed: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if isinstance(entry.value, Unreadable):
            needed.setdefault(entry.value.needs, []).append(name)
    for use in uses:
        by = tuple(needed.pop(use.path, ()))
        yield Unknown(use.path, use.called or bool(by), use.arguments, by)
    for path, names in needed.items():
        yield Unknown(path, True, "", tuple(names))


def _check_windows(checkpoint: Checkpoint) -> None:
    defects = []
    for name, view in checkpoint.windows():
        storage = checkpoint.storages[int(view.storage)]
        if view.byte_stop > storage.nbytes:
            defects.append(
                f"{name!r}: view needs bytes {view.byte_start}-{view.byte_stop} of storage {storage.id}, "
                f"which has {storage.nbytes}; the file is truncated or its pickle is wrong"
            )
    if defects:
        shown = [*defects[:20], *([f"and {len(defects) - 20} more"] if len(defects) > 20 else [])]
        raise Defects(checkpoint.files[0].path, shown)


# --- the zip form, and TorchScript -----------------------------------------------------------------------------------


def _read_zip(file: BinaryIO, source: SourceFile) -> Checkpoint:
    where = source.path
    members = {member.name: member for member in _zip.read_directory(file, where)}
    root = _root(where, members)
    script = f"{root}/constants.pkl" in members
    storages = Storages(source)
    values: dict[str, object] = {}
    uses: list[Use] = []
    for label in ("data", "constants") if script else ("data",):
        member = members.get(f"{root}/{label}.pkl")
        if member is None:
            raise FormatError(f"{where}: has no {root}/{label}.pkl; it is no archive of this version's torch.save")
        storages.folder = f"{label}/"
        result = storages.run(_zip.read_member(file, member, where, MAX_PICKLE_NBYTES), 0, f"{where}: {member.name}")
        values[label] = result.value
        uses += [use for use in result.uses if not (script and use.path.startswith("__torch__."))]
    swap = _is_big_endian(file, where, members.get(f"{root}/byteorder"))
    backings = {key: _backing(storages, key, members.get(f"{root}/{key}"), swap) for key in storages.sizes}
    notes = [] if any(m.crc32 is not None for m in members.values()) else ["no CRC was computed for any member"]
    value = _with_constants(values["data"], values.get("constants"))
    return _checkpoint("script" if script else "zip", storages, backings, value, uses, notes)


def _root(where: str, members: Mapping[str, _zip.Member]) -> str:
    """The one folder that holds everything; FormatError where the archive is something else."""
    roots = {name.split("/")[0] for name in members}
    root = next(iter(roots), "")
    if len(roots) == 1 and (f"{root}/data.pkl" in members or f"{root}/constants.pkl" in members):
        return root
    if any(name.endswith("/archive_format") for name in members):
        what = "a torch.export archive (.pt2), which this version does not read"
    elif any(name.endswith((".npy", "/.npy")) for name in members):
        what = "a NumPy .npz archive, which this version does not read"
    elif "model.weights.h5" in members:
        what = "a Keras archive, which this version does not read"
    elif any(name.endswith("/model.json") for name in members):
        what = "an early TorchScript archive (model.json), which this version does not read"
    else:
        what = "a zip archive without one folder that holds data.pkl; torch.save did not write it"
    raise FormatError(f"{where}: is {what}")


def _with_constants(value: object, constants: object) -> object:
    """A TorchScript module and the tensors that its code uses, as `constants.0`, ..."""
    if not isinstance(constants, tuple) or not any(isinstance(item, Tensor) for item in constants):
        return value
    made = Instance(value.path if isinstance(value, Instance) else "module", (), False)
    state = value.state if isinstance(value, Instance) and isinstance(value.state, dict) else {"module": value}
    made.state = {**state, "constants": constants}
    return made


def _is_big_endian(file: BinaryIO, where: str, member: _zip.Member | None) -> bool:
    """What the member `byteorder` says; without it torch takes little-endian."""
    order = _zip.read_member(file, member, where, 16) if member else b"little"
    if order not in (b"little", b"big"):
        raise FormatError(f"{where}: {member.name if member else ''!r}: found {order!r}; expected 'little' or 'big'")
    return order == b"big"


def _backing(storages: Storages, key: str, member: _zip.Member | None, swap: bool) -> Backing:
    """Where a storage's bytes are; its member must have just the size that the pickle says."""
    where, nbytes = storages.source.path, storages.sizes[key]
    if member is None:
        raise FormatError(f"{where}: the pickle asks for storage {key!r}, which the archive does not have")
    if member.nbytes != nbytes:
        raise FormatError(f"{where}: {member.name!r}: has {member.nbytes} bytes; the pickle says {nbytes}")
    steps = []
    if member.method == _zip.DEFLATED:
        steps.append("inflate")
    if swap and (unit := _swap_unit(storages.dtypes[key])) > 1:
        steps.append(f"swap{unit}")
    crc32 = member.crc32 if nbytes else None
    if not steps:
        return ByteRange(where, member.byte_start, member.byte_start + member.nbytes, crc32)
    source = ByteRange(where, member.byte_start, member.byte_start + member.stored_nbytes)
    return Encoded(source, tuple(steps), crc32)


def _swap_unit(dtype: DType | None) -> int:
    """Bytes that a big-endian machine wrote the other way round; complex numbers are turned part by part.

    torch does not turn untyped storages (torch/serialization.py, load_tensor), and what it reads is what they mean.
    """
    if dtype is None:
        return 1
    return (dtype.component or dtype).block_bytes


# --- stacked pickles -------------------------------------------------------------------------------------------------


def _read_stacked(file: BinaryIO, source: SourceFile) -> Checkpoint:
    import mmap

    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        storages = Storages(source)
        stop = 0
        for expected in ("the magic number", "the protocol", "sys_info"):
            stop = storages.run(data, stop, f"{source.path}: {expected}").stop
        body = storages.run(data, stop)
        keys = storages.run(data, body.stop, f"{source.path}: the list of storages")
        backings, end = _stacked_backings(storages, data, keys)
        notes = [f"{len(data) - end} bytes stand behind the last storage"] if end < len(data) else []
    return _checkpoint("stacked pickles", storages, backings, body.value, body.uses, notes)


def _stacked_backings(storages: Storages, data: mmap, keys: Result) -> tuple[dict[str, Backing], int]:
    """One (count, bytes) after the other, in the order of the list; all that is asked for must be there."""
    where = storages.source.path
    backings: dict[str, Backing] = {}
    position = keys.stop
    if not isinstance(keys.value, list):
        raise FormatError(f"{where}: byte {position}: found no list of storages")
    for key in map(str, keys.value):
        if key not in storages.sizes or key in backings:
            raise FormatError(f"{where}: storage {key!r} is listed {'twice' if key in backings else 'and never used'}")
        if position + COUNT.size > len(data):
            raise FormatError(f"{where}: byte {position}: storage {key!r} is cut off; the file is truncated")
        dtype = storages.dtypes[key]
        nbytes = COUNT.unpack_from(data, position)[0] * (dtype.block_bytes if dtype else 1)
        position += COUNT.size
        if nbytes != storages.sizes[key] or position + nbytes > len(data):
            raise FormatError(
                f"{where}: byte {position - COUNT.size}: storage {key!r} has {nbytes} bytes, the pickle says "
                f"{storages.sizes[key]}, and the file has {len(data) - position} left"
            )
        backings[key] = ByteRange(where, position, position + nbytes)
        position += nbytes
    if missing := storages.sizes.keys() - backings.keys():
        raise FormatError(f"{where}: storage {min(missing)!r} is used and not in the list of storages")
    return backings, position


# --- the tar form ----------------------------------------------------------------------------------------------------


def _read_tar(file: BinaryIO, source: SourceFile) -> Checkpoint:
    import mmap

    places = _tar_members(file, source.path)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        storages = Storages(source)
        refs, backings = _tar_storages(storages, data, places["storages"])
        tensors = _tar_tensors(storages, data, places["tensors"], refs)
        known = {**refs, **tensors}

        def persistent(pid: object) -> object:
            if isinstance(pid, tuple):
                return pid[0]
            if str(pid) not in known:
                raise ValueError(f"object {pid!r:.40}, which the archive does not have")
            return known[str(pid)]

        body = load(data, places["pickle"][0], source.path, CONSTRUCTORS, persistent, known=KNOWN)
        storages.pickle_nbytes += body.stop - places["pickle"][0]
    return _checkpoint("tar", storages, backings, body.value, body.uses)


def _tar_members(file: BinaryIO, where: str) -> dict[str, tuple[int, int]]:
    """(start, stop) in the file of the members that make up a checkpoint."""
    import tarfile

    wanted = {"pickle", "storages", "tensors"}
    try:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            members = [m for m in archive if m.isreg() and m.name.removeprefix("./") in wanted and not m.issparse()]
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise FormatError(f"{where}: is a damaged tar archive: {error}") from None
    places = {m.name.removeprefix("./"): (m.offset_data, m.offset_data + m.size) for m in members}
    if len(members) != len(wanted) or places.keys() != wanted:
        raise FormatError(
            f"{where}: is a tar archive without `pickle`, `storages` and `tensors`; torch did not write it"
        )
    return places


@dataclass
class _Reader:
    """Reads numbers and pickles from one member of a tar archive, never beyond its end."""

    storages: Storages
    data: mmap
    position: int
    stop: int
    label: str

    def unpickle(self) -> object:
        """The next pickle."""
        result = self.storages.run(self.data, self.position, f"{self.storages.source.path}: {self.label}")
        self.position = self.skip(result.stop - self.position)
        return result.value

    def numbers(self, form: str) -> tuple[int, ...]:
        """The next numbers."""
        struct = Struct(form)
        start = self.position
        self.position = self.skip(struct.size)
        return unpack_from(form, self.data, start)

    def skip(self, nbytes: int) -> int:
        """The position `nbytes` further; FormatError where the member ends before."""
        if nbytes < 0 or self.position + nbytes > min(self.stop, len(self.data)):
            path = self.storages.source.path
            raise FormatError(f"{path}: {self.label}: byte {self.position}: needs {nbytes} more bytes; it is truncated")
        return self.position + nbytes

    def count(self) -> int:
        """The next pickle, which must be a count."""
        found = self.unpickle()
        if type(found) is not int or not 0 <= found <= self.stop - self.position:
            raise FormatError(f"{self.storages.source.path}: {self.label}: found {found!r:.40}; expected a count")
        return found

    def row(self, length: int) -> tuple[object, ...]:
        """The next pickle, which must be a tuple of that length."""
        return self.as_row(self.unpickle(), length)

    def as_row(self, found: object, length: int) -> tuple[object, ...]:
        """A value that must be a tuple of that length."""
        if not isinstance(found, (tuple, list)) or len(found) != length:
            raise FormatError(f"{self.storages.source.path}: {self.label}: expected {length} values in a row")
        return tuple(found)


Places = tuple[int, int]


def _tar_storages(storages: Storages, data: mmap, place: Places) -> tuple[dict[str, StorageRef], dict[str, Backing]]:
    """`count`, then for each storage `(key, location, type)`, i64 elements, bytes; then the views on them."""
    reader = _Reader(storages, data, *place, "storages")
    refs: dict[str, StorageRef] = {}
    backings: dict[str, Backing] = {}
    for _ in range(reader.count()):
        key, location, type_ = reader.row(3)
        dtype = _tar_dtype(reader, type_)
        (numel,) = reader.numbers("<q")
        start = reader.position
        reader.position = reader.skip(numel * dtype.block_bytes)
        refs[str(key)] = storages.ref(str(key), dtype, numel, str(location))
        backings[str(key)] = ByteRange(storages.source.path, start, reader.position)
    views = reader.unpickle()
    for view in views if isinstance(views, list) else ():
        target, root, offset, _ = reader.as_row(view, 4)
        ref = refs.get(str(root))
        if ref is None or ref.dtype is None or type(offset) is not int or offset < 0:
            raise FormatError(f"{storages.source.path}: storages: a view on storage {root!r:.40}, which is not there")
        refs[str(target)] = ref._replace(byte_start=ref.byte_start + offset * ref.dtype.block_bytes)
    return refs, backings


def _tar_dtype(reader: _Reader, type_: object) -> DType:
    try:
        dtype = storage_dtype(type_)
    except ValueError as error:
        raise FormatError(f"{reader.storages.source.path}: storages: {error}") from None
    if dtype is None:
        raise FormatError(f"{reader.storages.source.path}: storages: an untyped storage, which torch 0.1 did not have")
    return dtype


def _tar_tensors(storages: Storages, data: mmap, place: Places, refs: Mapping[str, StorageRef]) -> dict[str, Tensor]:
    """`count`, then for each tensor `(key, storage key, type)`, i32 axes, 4 unused bytes, sizes, strides, offset."""
    reader = _Reader(storages, data, *place, "tensors")
    tensors: dict[str, Tensor] = {}
    rebuild: Callable[..., object] = CONSTRUCTORS["torch._utils._rebuild_tensor"]
    for _ in range(reader.count()):
        key, storage, _type = reader.row(3)
        axes, _unused = reader.numbers("<ii")
        if not 0 <= axes <= 64 or str(storage) not in refs:
            raise FormatError(f"{storages.source.path}: tensors: {key!r:.40}: {axes} axes on storage {storage!r:.40}")
        shape, strides = reader.numbers(f"<{axes}q"), reader.numbers(f"<{axes}q")
        (offset,) = reader.numbers("<q")
        try:
            tensors[str(key)] = rebuild(refs[str(storage)], offset, shape, strides)  # type: ignore[assignment]
        except ValueError as error:
            raise FormatError(f"{storages.source.path}: tensors: {key!r:.40}: {error}") from None
    return tensors
