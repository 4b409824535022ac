"""TensorFlow's bundles: `PREFIX.index` with `PREFIX.data-00000-of-00001`, and those inside SavedModel folders.

TensorFlow 1 saves variables under their names (`_first.py`).  TensorFlow 2 saves a graph of objects beside them, which
has several names for a shared variable (`_graph.py`).  A SavedModel of Keras has the settings of its layers, too
(`_keras.py`); the graph of its operations is not read.

A variable that was saved in slices is one tensor if the slices are its rows and follow each other in one file, and else
its parts, `NAME/part_0` and so on, as TensorFlow 1 calls them.  Strings are left out, with a note.

The CRC-32C of the index and of the graph is checked.  That of a tensor is not: nothing in Python computes it fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from math import prod
from typing import Literal, NamedTuple

from paramtool.errors import FormatError, UnsafeError, some
from paramtool.formats import object_tree
from paramtool.formats.files import open_source, read_bytes
from paramtool.formats.hdf5 import keras_rnn
from paramtool.formats.hdf5.keras_config import KerasConfig
from paramtool.formats.protobuf import Reader
from paramtool.formats.tensorflow import _bundle, _first, _graph, _keras, _proto, names
from paramtool.formats.tensorflow._bundle import Bundle, BundleRow, Extent
from paramtool.formats.tensorflow._crc32c import crc32c, masked
from paramtool.formats.tensorflow._graph import NamedNode
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entry, Section
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.storage import ByteRange, Encoded, Storage
from paramtool.model.view import View, contiguous

NAME = "tensorflow"
MAX_GRAPH_NBYTES = 128 << 20
MAX_CHECKED_NBYTES = 16 << 20
"""Larger graphs are not checked by their CRC, which is slow in Python."""
OPTIMIZER = "optimizer"
MAX_NOTES = 20


def read(path: str) -> Checkpoint:
    """Describe a bundle by its index; FormatError if it is damaged, or a file of its data is missing."""
    bundle = _bundle.read(path)
    data = _graph_bytes(bundle)
    tensors = _BundleTensors(bundle)
    notes: list[str] = []
    if data is None:
        found = [NamedNode(key, (key,), _first.role(key, bundle.rows)) for key in bundle.rows]
    else:
        nodes = _graph.parse(Reader(data, f"{path}: {_graph.KEY}", "a graph of TensorFlow's objects"))
        found, notes = _graph.named(nodes, bundle.rows, len(data))
        found += _rest(bundle, found)
    entries: dict[str, Entry] = {}
    first: dict[str, Entry] = {}
    for one in found:
        for end, view in tensors.views(one, bundle.rows[one.key]).items():
            entry = Entry(view, one.role)
            first[one.names[0] + end] = entry
            for name in (name + end for name in one.names):
                if name in entries:
                    raise FormatError(f"{path}: has two tensors {name!r:.200}; expected different names")
                entries[name] = entry
    tensors.check_apart()
    folder = names.model_of(path)
    config, version = _keras.config(folder) if folder else (KerasConfig(), "")
    modules, more = keras_rnn.modules(first, config)
    tree, sections = _sections(entries)
    return Checkpoint(
        format=f"{NAME} {'objects' if data is not None else 'bundle'}",
        files=bundle.files,
        storages=tensors.storages,
        entries=entries,
        objects=tree,
        sections=sections,
        producer=f"TensorFlow {version}".rstrip(),
        left_out=tensors.left_out(),
        notes=(*notes, *tensors.notes(), *config.notes, *more),
        modules=tuple(modules),
    )


def _rest(bundle: Bundle, found: list[NamedNode]) -> list[NamedNode]:
    """The tensors that the graph does not name, under their keys."""
    known = {one.key for one in found} | {_graph.KEY}
    taken = {name for one in found for name in one.names}
    keys = [key for key in bundle.rows if key not in known]
    if clash := [key for key in keys if key in taken]:
        raise FormatError(
            f"{bundle.where}: the name {clash[0]!r:.200} is that of another tensor by its graph of objects"
        )
    return [NamedNode(key, (key,), _first.role(key, bundle.rows)) for key in keys]


def _graph_bytes(bundle: Bundle) -> bytes | None:
    """The graph of objects; None if there is none.  FormatError if it is damaged.

    A tensor of strings is the length of each as a varint, the masked CRC-32C of the lengths, and the strings.
    """
    row = bundle.rows.get(_graph.KEY)
    if row is None:
        return None
    where = f"{bundle.paths[row.shard]}: byte {row.start}: the graph of objects"
    if row.dtype != _proto.STRING or row.shape:
        raise FormatError(f"{where} has type {row.dtype} and shape {list(row.shape)}; expected one string")
    if row.nbytes > MAX_GRAPH_NBYTES:
        raise UnsafeError(f"{where} has {row.nbytes} bytes; expected at most {MAX_GRAPH_NBYTES}")
    file, _ = open_source(bundle.paths[row.shard])
    with file:
        data = read_bytes(file, row.start, row.nbytes)
    nbytes = at = 0
    for at, byte in enumerate(data[:5], 1):
        nbytes |= (byte & 0x7F) << 7 * (at - 1)
        if byte < 0x80:
            break
    crc, text = data[at : at + 4], data[at + 4 :]
    if not data or len(crc) < 4 or len(text) != nbytes:
        raise FormatError(f"{where} says that it has {nbytes} bytes, and has {len(text)}", hint="the file is damaged")
    if row.nbytes <= MAX_CHECKED_NBYTES:
        order: Literal["big", "little"] = "big" if bundle.is_big else "little"
        lengths = crc32c(nbytes.to_bytes(4, order))
        if int.from_bytes(crc, order) != masked(lengths) or masked(crc32c(text, crc32c(crc, lengths))) != row.crc32c:
            raise FormatError(f"{where} does not have its CRC-32C", hint="the file is damaged")
    return text


class _SlicePlace(NamedTuple):
    """Bytes of a file of data."""

    shard: int
    start: int
    stop: int


class _BundleTensors:
    """The storages of a bundle, one for each range, and what was left out."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.storages: dict[int, Storage] = {}
        self.places: dict[tuple[_SlicePlace, int], int] = {}
        self.opaque: dict[str, list[str]] = {}
        self.quantised: list[str] = []
        self.in_parts: dict[str, tuple[tuple[int, ...], int]] = {}
        """{tensor: its shape, and the number of slices that stand for it}"""

    def views(self, one: NamedNode, row: BundleRow) -> dict[str, View]:
        """{what follows its name: view} of a tensor or its parts; empty if it is left out.

        FormatError if its row contradicts itself.
        """
        name = one.names[0]
        if row.dtype in _proto.OPAQUE:
            self.opaque.setdefault(_proto.OPAQUE[row.dtype], []).append(name)
            return {}
        if row.dtype not in _proto.TYPES:
            raise FormatError(
                f"{self._at(one.key, row)} has the unknown element type {row.dtype}",
                hint="a newer TensorFlow may have written it",
            )
        if row.dtype in _proto.QUANTISED:
            self.quantised.append(name)
        return self._sliced(one.key, row) if row.slices else {"": self._whole(one.key, row)}

    def _at(self, name: str, row: BundleRow) -> str:
        return f"{self.bundle.where}: byte {row.at}: {name!r:.200}"

    def _whole(self, name: str, row: BundleRow) -> View:
        """A tensor in one range."""
        dtype = DTYPES[_proto.TYPES[row.dtype]]
        if row.nbytes != dtype.nbytes(prod(row.shape)):
            raise FormatError(
                f"{self._at(name, row)} is {dtype.name} {list(row.shape)}, which has {dtype.nbytes(prod(row.shape))} "
                f"bytes, and its row says {row.nbytes}"
            )
        return contiguous(self._storage(_SlicePlace(row.shard, row.start, row.stop), dtype), dtype, row.shape)

    def _storage(self, place: _SlicePlace, dtype: DType) -> int:
        """The number of the storage of a range; big-endian numbers are turned round."""
        unit = (dtype.component or dtype).block_bytes if self.bundle.is_big else 1
        known = self.places.setdefault((place, unit), len(self.places))
        if known not in self.storages:
            bytes_ = ByteRange(self.bundle.paths[place.shard], place.start, place.stop)
            backing = Encoded(bytes_, (f"swap{unit}",)) if unit > 1 and bytes_.nbytes else bytes_
            self.storages[known] = Storage(known, bytes_.nbytes, backing)
        return known

    def _sliced(self, name: str, row: BundleRow) -> dict[str, View]:
        """A tensor that was saved in slices, or its parts."""
        dtype = DTYPES[_proto.TYPES[row.dtype]]
        found = []
        for extents in row.slices:
            part = self.bundle.slices.get(_bundle.slice_key(name, extents))
            shape = tuple(length if length >= 0 else size for (_, length), size in zip(extents, row.shape, strict=True))
            if part is None:
                raise FormatError(f"{self._at(name, row)}: its slice {_shown(extents)} has no row in the index")
            inside = all(0 <= start <= start + n <= size for (start, _), n, size in zip(extents, shape, row.shape,
                         strict=True))  # fmt: skip
            if not inside or part.shape != shape or part.dtype != row.dtype or part.slices:
                raise FormatError(
                    f"{self._at(name, row)} is {list(row.shape)}, and its slice {_shown(extents)} has the type "
                    f"{part.dtype} and the shape {list(part.shape)}"
                )
            found.append((extents, part))
        found.sort(key=lambda one: one[0])
        if sum(prod(part.shape) for _, part in found) != prod(row.shape):
            raise FormatError(f"{self._at(name, row)}: its {len(found)} slices do not fill its shape {list(row.shape)}")
        rows = [part for _, part in found]
        if _is_one_run([extents for extents, _ in found], rows, row.shape):
            place = _SlicePlace(rows[0].shard, rows[0].start, rows[-1].stop)
            return {"": contiguous(self._storage(place, dtype), dtype, row.shape)}
        self.in_parts[name] = (row.shape, len(rows))
        return {f"/part_{k}": self._whole(f"{name}/part_{k}", part) for k, part in enumerate(rows)}

    def check_apart(self) -> None:
        """FormatError if ranges of tensors overlap without being the same."""
        end: dict[int, tuple[int, _SlicePlace]] = {}
        for place, _ in sorted(self.places):
            stop, other = end.get(place.shard, (0, place))
            if place.start < stop and place != other:
                raise FormatError(
                    f"{self.bundle.paths[place.shard]}: tensors in bytes {other.start} to {other.stop} and "
                    f"{place.start} to {place.stop} overlap; expected each in bytes of its own"
                )
            if place.stop > max(stop, place.start):
                end[place.shard] = (place.stop, place)

    def left_out(self) -> tuple[str, ...]:
        """What was left out."""
        return tuple(
            f"{some(left, 3)} {'holds' if len(left) == 1 else 'hold'} {what} and {_was(left)} left out"
            for what, left in self.opaque.items()
        )

    def notes(self) -> list[str]:
        """What is not all of its tensor."""
        found = [
            f"{name!r:.200} {list(shape)} was saved in {count} slices that are not its rows in order: its parts have "
            f"names of their own, {name + '/part_0'!r:.200} and so on"
            for name, (shape, count) in islice(self.in_parts.items(), MAX_NOTES)
        ]
        if self.quantised:
            found.append(f"{some(self.quantised, 3)}: quantised integers, whose scale a bundle does not have")
        return found


def _was(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _is_one_run(extents: list[tuple[Extent, ...]], rows: list[BundleRow], shape: tuple[int, ...]) -> bool:
    """Whether slices in order are rows of the first axis, one after the other, also in one file."""
    full = all((start, part.shape[k]) == (0, shape[k]) for one, part in zip(extents, rows, strict=True)
               for k, (start, _) in enumerate(one) if k)  # fmt: skip
    starts = [one[0][0] for one in extents] if shape else []
    follow = all(b == a + row.shape[0] for (a, b), row in zip(pairwise(starts), rows, strict=False))
    return bool(shape) and full and follow and all(a.shard == b.shard and a.stop == b.start for a, b in pairwise(rows))


def _shown(extents: tuple[Extent, ...]) -> str:
    """A slice as TensorFlow writes it: `0,3:-`."""
    return ":".join("-" if length < 0 else f"{start},{length}" for start, length in extents)[:200]


def _sections(entries: Mapping[str, Entry]) -> tuple[Node, tuple[Section, ...]]:
    """The optimizer's tensors as a section, beside the others; no tree if there are none."""
    groups: dict[str, list[str]] = {}
    for name, entry in entries.items():
        top, mark, _ = name.partition("/")
        if entry.role == OPTIMIZER and mark and object_tree.role_of(top, "") == OPTIMIZER:
            groups.setdefault(top, []).append(name)
    groups = {top: group for top, group in groups.items() if top not in entries}
    inside = {name for group in groups.values() for name in group}
    if not groups:
        return EMPTY, ()
    items: list[tuple[objects.Key, Node]] = [(n, TensorRef(n)) for n in entries if n not in inside]
    for top, group in groups.items():
        prefix = f"{top}/"
        pairs = tuple((name.removeprefix(prefix), TensorRef(name)) for name in group)
        items.append((top, objects.Mapping("dict", pairs)))
    return objects.Mapping("dict", tuple(items)), tuple(Section(top, f"{top}/", OPTIMIZER) for top in groups)
