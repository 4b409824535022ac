"""The `.metadata` file of torch.distributed.checkpoint: a pickle that says which tensors there are, and where.

    state_dict_metadata   {name: a tensor's dtype, size and chunks (offsets, sizes), or an object}
    planner_data          {name: its place in the nested dicts and lists that were saved, a tuple}
    storage_data          {(name, offset of the chunk): file, first byte, number of bytes}
    version               "1.0.0", or none before torch 2.8

Nothing of it is called: its classes become records of their attributes.

Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.13; 1.13 had the same classes in
torch/distributed/_shard/checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO, TypeGuard

from paramtool.errors import Defects, FormatError, UnsafeError
from paramtool.formats import scan
from paramtool.formats.files import read_bytes
from paramtool.formats.pickle.read import DEFAULT_LIMITS, load
from paramtool.formats.pickle.values import Instance, Use
from paramtool.formats.torch.globals import CONSTRUCTORS, KNOWN, dtype_of, inert
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.paths import named_beside
from paramtool.model.storage import ByteRange, SourceFile
from paramtool.model.view import MAX_AXES, Shape

NAME = ".metadata"
RECORD = "paramtool"
"""The attribute with paramtool's own record."""
SUFFIX = ".distcp"
"""How the names of the files of ranks end."""
FOLDERS = ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint")
CLASSES = {
    "metadata": (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
        "TensorProperties", "StorageMeta",
    ),
    "filesystem": ("_StorageInfo",),
}  # fmt: skip
PAIRS = "float4_e2m1fn_x2"
VERSIONS = (None, "1.0.0")
_PROPERTIES = "torch.distributed._shard.sharded_tensor.metadata.TensorProperties"
"""Where the class was up to torch 2.2."""

Place = tuple[str | int, ...]
"""The keys, and numbers in lists, that lead to a value."""


@frozen
class SavedChunk:
    """A box of a tensor, and where it is."""

    offsets: Shape
    sizes: Shape
    piece: ByteRange
    """Its archive of torch.save; its file is called as in the folder."""


@frozen
class SavedTensor:
    """A tensor as it was before it was split among ranks."""

    dtype: DType
    shape: Shape
    chunks: tuple[SavedChunk, ...]


@frozen
class SavedState:
    """What `.metadata` says."""

    tensors: Mapping[str, SavedTensor]
    objects: Mapping[str, ByteRange]
    places: Mapping[str, Place]
    """{name: where it was}, of all names, in the order of the file."""
    uses: tuple[Use, ...]
    """Unknown names in the pickle."""
    nbytes: int
    """The bytes of the pickle."""
    record: object = None
    """What paramtool wrote beside the tables (`record.py`)."""


def read_metadata(file: BinaryIO, source: SourceFile) -> SavedState:
    """What a `.metadata` file says; FormatError, Defects or UnsafeError if it is damaged."""
    where = source.path
    if source.nbytes > DEFAULT_LIMITS.max_nbytes:
        raise UnsafeError(f"{where}: has {source.nbytes:,} bytes; expected at most {DEFAULT_LIMITS.max_nbytes:,}")
    data = read_bytes(file, 0, source.nbytes)
    paths = [f"{folder}.{module}.{name}" for folder in FOLDERS for module, names in CLASSES.items() for name in names]
    result = load(
        data,
        0,
        where,
        {**CONSTRUCTORS, **{path: inert(path) for path in (*paths, _PROPERTIES)}},
        persistent=_no_persistent_ids,
        known=KNOWN,
    )
    fields = _fields(result.value, "Metadata")
    if fields is None:
        raise FormatError(f"{where}: holds no Metadata; expected the `.metadata` of torch.distributed.checkpoint")
    if (version := fields.get("version")) not in VERSIONS:
        raise FormatError(
            f"{where}: found version {version!r:.40}; expected {VERSIONS[-1]!r}",
            hint="save it again with a torch that writes this version, as 2.13 does",
        )
    behind = scan.scan_bytes(data[result.stop :]).unknown
    uses = (*result.uses, *(Use(one.path, one.called, one.arguments) for one in behind))
    return _Judged(where, fields).state(uses, source.nbytes)


def _no_persistent_ids(pid: object) -> object:
    raise ValueError("a persistent id; a `.metadata` has none")


def _fields(value: object, name: str) -> Mapping[str, Any] | None:
    """The attributes of a record of one class; None if the value is anything else."""
    if not isinstance(value, Instance) or value.path.rpartition(".")[2] != name:
        return None
    if not value.path.startswith(FOLDERS) and value.path != _PROPERTIES:
        return None
    if isinstance(value.state, dict):
        return value.state
    return {} if value.state is None else None


class _Judged:
    """The three tables, compared with each other; what is wrong is gathered."""

    def __init__(self, where: str, fields: Mapping[str, Any]) -> None:
        self._where = where
        self._fields = fields
        self._defects: list[str] = []
        self._pieces: dict[tuple[str, tuple[int, ...] | None], ByteRange] = {}

    def state(self, uses: tuple[Use, ...], nbytes: int) -> SavedState:
        """What it says; Defects where that is contradictory."""
        named, stored = (self._table(key) for key in ("state_dict_metadata", "storage_data"))
        for index, info in stored.items():
            self._add_piece(index, info)
        tensors: dict[str, SavedTensor] = {}
        objects: dict[str, ByteRange] = {}
        for name, value in named.items():
            if not isinstance(name, str):
                self._defects.append(f"found a name of type {type(name).__name__}; expected a string")
            elif _fields(value, "BytesStorageMetadata") is not None:
                if piece := self._piece(name, None):
                    objects[name] = piece
            elif tensor := self._tensor(name, value):
                tensors[name] = tensor
        places = self._places([name for name in named if isinstance(name, str)])
        if self._defects:
            raise Defects(self._where, self._defects)
        return SavedState(tensors, objects, places, uses, nbytes, self._fields.get(RECORD))

    def _table(self, key: str) -> Mapping[Any, Any]:
        found = self._fields.get(key)
        if not isinstance(found, dict):
            raise FormatError(f"{self._where}: {key} is of type {type(found).__name__}; expected a dict")
        return found

    # --- pieces --------------------------------------------------------------------------------------------------

    def _add_piece(self, index: object, info: object) -> None:
        """One line of `storage_data`."""
        key, place = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
        name = key.get("fqn") if key is not None else None
        offset = None if key is None or key.get("offset") is None else _sizes(key["offset"])
        if key is None or not isinstance(name, str) or (offset is None and key.get("offset") is not None):
            self._defects.append("storage_data: found a key that is not a MetadataIndex with a name")
            return
        if place is None:
            what = info.path if isinstance(info, Instance) else type(info).__name__
            self._defects.append(f"{name!r:.200}: is stored by {what:.100}; expected the file, offset and length")
            return
        file, start, nbytes = (place.get(one) for one in ("relative_path", "offset", "length"))
        if not isinstance(file, str):
            self._defects.append(f"{name!r:.200}: is stored in the file {file!r:.200}; expected a name in the folder")
        elif type(start) is not int or type(nbytes) is not int or not 0 <= start < 1 << 62 or not 0 <= nbytes < 1 << 62:
            self._defects.append(f"{name!r:.200}: is stored at byte {start!r:.40}, {nbytes!r:.40} bytes of {file!r}")
        elif transformed := place.get("transform_descriptors"):
            how = f"{transformed!r:.100}"
            self._defects.append(
                f"{name!r:.200}: is stored transformed, by {how}; expected bytes as torch.save has them"
            )
        elif (name, offset) in self._pieces:
            self._defects.append(f"{name!r:.200}: is stored twice{_at(offset)}; expected once")
        else:
            self._pieces[name, offset] = ByteRange(named_beside(self._where, file), start, start + nbytes)

    def _piece(self, name: str, offset: tuple[int, ...] | None) -> ByteRange | None:
        piece = self._pieces.get((name, offset))
        if piece is None:
            self._defects.append(f"{name!r:.200}: no file has it{_at(offset)}: what a rank saved is missing")
        return piece

    # --- tensors -------------------------------------------------------------------------------------------------

    def _tensor(self, name: str, value: object) -> SavedTensor | None:
        """One line of `state_dict_metadata`; None if it is wrong."""
        fields = _fields(value, "TensorStorageMetadata")
        properties = None if fields is None else fields.get("properties")
        shape = None if fields is None else _sizes(fields.get("size"))
        chunks = None if fields is None else fields.get("chunks")
        dtype = _dtype(properties)
        if shape is None or dtype is None or not isinstance(chunks, list):
            what = "a dtype" if dtype is None else "a size and chunks"
            self._defects.append(f"{name!r:.200}: is described without {what} that torch writes")
            return None
        found = [self._chunk(name, shape, chunk) for chunk in chunks]
        whole = [chunk for chunk in found if chunk is not None]
        saved = SavedTensor(dtype, shape, tuple(whole))
        return None if len(whole) < len(found) else _unpacked(saved) if dtype.name == PAIRS else saved

    def _chunk(self, name: str, shape: Shape, value: object) -> SavedChunk | None:
        fields = _fields(value, "ChunkStorageMetadata") or {}
        offsets, sizes = _sizes(fields.get("offsets")), _sizes(fields.get("sizes"))
        if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(shape):
            self._defects.append(f"{name!r:.200}: has a chunk without offsets and sizes; expected {len(shape)} of each")
            return None
        if any(start + size > all_ for start, size, all_ in zip(offsets, sizes, shape, strict=True)):
            at = f"{list(sizes)} at {list(offsets)}"
            self._defects.append(f"{name!r:.200}: has a chunk {at}, outside of its shape {list(shape)}")
            return None
        piece = self._piece(name, offsets)
        return None if piece is None else SavedChunk(offsets, sizes, piece)

    # --- places --------------------------------------------------------------------------------------------------

    def _places(self, names: list[str]) -> dict[str, Place]:
        """Where each name was; a planner that does not flatten says nothing, and the names are keys then."""
        said = self._fields.get("planner_data")
        table = said if isinstance(said, dict) else {}
        return {name: self._place(name, table.get(name)) for name in names}

    def _place(self, name: str, said: object) -> Place:
        if said is None:
            return (name,)
        if is_place(said):
            return said
        self._defects.append(f"{name!r:.200}: has the place {said!r:.100}; expected a tuple of keys and numbers")
        return (name,)


def _unpacked(saved: SavedTensor) -> SavedTensor:
    """torch counts pairs of float4 numbers; here they are counted one by one, on the last axis."""

    def twice(sizes: Shape) -> tuple[int, ...]:
        return (*sizes[:-1], 2 * sizes[-1]) if sizes else sizes

    chunks = (replace(one, offsets=twice(one.offsets), sizes=twice(one.sizes)) for one in saved.chunks)
    return SavedTensor(DTYPES["float4_e2m1fn"], twice(saved.shape), tuple(chunks))


def is_place(said: object) -> TypeGuard[Place]:
    """Whether it is a place: keys and numbers, the first of them a key of the top dict."""
    return isinstance(said, tuple) and bool(said) and type(said[0]) is str and all(map(_is_key, said))


def _is_key(part: object) -> bool:
    return type(part) is str or (type(part) is int and part >= 0)


def _at(offset: tuple[int, ...] | None) -> str:
    """Which chunk it is, for people."""
    return f" at {list(offset)}" if offset else ""


def _sizes(value: object) -> Shape | None:
    """A torch.Size, a tuple or a list of sizes; None for anything else."""
    if isinstance(value, Instance) and value.path == "torch.Size":
        value = value.sequence
    if not isinstance(value, (list, tuple)) or len(value) > MAX_AXES:
        return None
    return tuple(value) if all(type(n) is int and 0 <= n < 1 << 62 for n in value) else None


def _dtype(properties: object) -> DType | None:
    """The dtype of TensorProperties, whose state is a tuple that begins with it."""
    if not isinstance(properties, Instance) or not properties.path.endswith(".TensorProperties"):
        return None
    state = properties.state
    said = state[0] if isinstance(state, tuple) and state else state.get("dtype") if isinstance(state, dict) else None
    try:
        return dtype_of(said)
    except ValueError:
        return None
