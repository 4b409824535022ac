"""TensorFlow's bundles: `PREFIX.index` with `PREFIX.data-00000-of-00001`, and those inside SavedModel folders.

TensorFlow 1 saves variables under their names (`_first.py`).  TensorFlow 2 saves a graph of objects beside them, which
has several names for a shared variable (`_graph.py`).  A SavedModel of Keras has the settings of its layers, too
(`keras_config`); the graph of its operations is not read.

A variable that was saved in slices is one tensor if the slices are its rows and follow each other in one file, and else
its parts, `NAME/part_0` and so on, as TensorFlow 1 calls them.  Strings are left out, with a note.

The CRC-32C of the index and of the graph is checked.  That of a tensor is not: nothing in Python computes it fast.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from math import prod
from typing import Literal, NamedTuple

from paramtool.errors import FormatError, UnsafeError, some
from paramtool.formats import object_tree
from paramtool.formats.files import open_source, read_bytes
from paramtool.formats.hdf5 import keras_rnn
from paramtool.formats.hdf5.keras_config import KerasConfig
from paramtool.formats.object_tree import role_of
from paramtool.formats.protobuf import Message, Reader, Span, varint
from paramtool.formats.tensorflow import _bundle, _proto, names
from paramtool.formats.tensorflow._bundle import Bundle, BundleRow, Extent, crc32c, masked
from paramtool.formats.tensorflow.saved_model import keras_config
from paramtool.grouping import omit
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entries, Entry, Section
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.storage import ByteRange, Encoded, Storage, overlapping
from paramtool.model.view import Shape, View, contiguous

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
        found = [NamedNode(key, (key,), role(key, bundle.rows)) for key in bundle.rows]
    else:
        nodes = parse(Reader(data, f"{path}: {KEY}", "a graph of TensorFlow's objects"))
        found, notes = named(nodes, bundle.rows, len(data))
        # The tensors that the graph does not name, under their keys
        known = {one.key for one in found} | {KEY}
        taken = {name for one in found for name in one.names}
        keys = [key for key in bundle.rows if key not in known]
        if clash := [key for key in keys if key in taken]:
            raise FormatError(
                f"{bundle.where}: the name {clash[0]!r:.200} is that of another tensor by its graph of objects"
            )
        found += [NamedNode(key, (key,), role(key, bundle.rows)) for key in keys]
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
    config, version = keras_config(folder) if folder else (KerasConfig(), "")
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
        unknown=config.unknown,
        left_out=tensors.left_out(),
        notes=(*notes, *tensors.notes(), *config.notes, *more),
        modules=tuple(modules),
    )


def _graph_bytes(bundle: Bundle) -> bytes | None:
    """The graph of objects; None if there is none.  FormatError if it is damaged.

    A tensor of strings is the length of each as a varint, the masked CRC-32C of the lengths, and the strings.
    """
    row = bundle.rows.get(KEY)
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
    nbytes, at = varint(data[:5])
    crc, text = data[at : at + 4], data[at + 4 :]
    if not at or len(crc) < 4 or len(text) != nbytes:
        raise FormatError(f"{where} says that it has {nbytes} bytes, and has {len(text)}", hint="the file is damaged")
    if row.nbytes <= MAX_CHECKED_NBYTES:
        order: Literal["big", "little"] = "big" if bundle.is_big else "little"
        lengths = crc32c(nbytes.to_bytes(4, order))
        if int.from_bytes(crc, order) != masked(lengths) or masked(crc32c(text, crc32c(crc, lengths))) != row.crc32c:
            raise FormatError(f"{where} does not have its CRC-32C", hint="the file is damaged")
    return text


class _BundleTensors:
    """The storages of a bundle, one for each range, and what was left out."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.storages: dict[int, Storage] = {}
        self.places: dict[tuple[ByteRange, int], int] = {}
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
        return contiguous(self._storage(self._place(row, row), dtype), dtype, row.shape)

    def _place(self, first: BundleRow, last: BundleRow) -> ByteRange:
        """The range from one row's bytes to another's, in one file."""
        return ByteRange(self.bundle.paths[first.shard], first.start, last.stop)

    def _storage(self, place: ByteRange, dtype: DType) -> int:
        """The number of the storage of a range; big-endian numbers are turned round."""
        unit = (dtype.component or dtype).block_bytes if self.bundle.is_big else 1
        known = self.places.setdefault((place, unit), len(self.places))
        if known not in self.storages:
            backing = Encoded(place, (f"swap{unit}",)) if unit > 1 and place.nbytes else place
            self.storages[known] = Storage(known, place.nbytes, backing)
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
            return {"": contiguous(self._storage(self._place(rows[0], rows[-1]), dtype), dtype, row.shape)}
        self.in_parts[name] = (row.shape, len(rows))
        return {f"/part_{k}": self._whole(f"{name}/part_{k}", part) for k, part in enumerate(rows)}

    def check_apart(self) -> None:
        """FormatError if ranges of tensors overlap without being the same."""
        if found := overlapping(place for place, _ in self.places):
            other, place = found
            raise FormatError(
                f"{place.file}: tensors in bytes {other.start} to {other.stop} and "
                f"{place.start} to {place.stop} overlap; expected each in bytes of its own"
            )

    def left_out(self) -> tuple[str, ...]:
        """What was left out."""
        return tuple(
            f"{some(left, 3)} {'holds' if len(left) == 1 else 'hold'} {what} and "
            f"{'was' if len(left) == 1 else 'were'} left out"
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


def _is_one_run(extents: list[tuple[Extent, ...]], rows: list[BundleRow], shape: Shape) -> bool:
    """Whether slices in order are rows of the first axis, one after the other, also in one file."""
    full = all((start, part.shape[k]) == (0, shape[k]) for one, part in zip(extents, rows, strict=True)
               for k, (start, _) in enumerate(one) if k)  # fmt: skip
    starts = [one[0][0] for one in extents] if shape else []
    follow = all(b == a + row.shape[0] for (a, b), row in zip(pairwise(starts), rows, strict=False))
    return bool(shape) and full and follow and all(a.shard == b.shard and a.stop == b.start for a, b in pairwise(rows))


def _shown(extents: tuple[Extent, ...]) -> str:
    """A slice as TensorFlow writes it: `0,3:-`."""
    return ":".join("-" if length < 0 else f"{start},{length}" for start, length in extents)[:200]


def _sections(entries: Entries) -> tuple[Node, tuple[Section, ...]]:
    """The optimizer's tensors as a section, beside the others; no tree if there are none."""
    groups: dict[str, list[str]] = {}
    for name, entry in entries.items():
        top, mark, _ = name.partition("/")
        if entry.role == OPTIMIZER and mark and object_tree.role_of(top, "") == OPTIMIZER:
            groups.setdefault(top, []).append(name)
    groups = omit(groups, entries)
    inside = {name for group in groups.values() for name in group}
    if not groups:
        return EMPTY, ()
    items: list[tuple[objects.Key, Node]] = [(n, TensorRef(n)) for n in entries if n not in inside]
    for top, group in groups.items():
        prefix = f"{top}/"
        pairs = tuple((name.removeprefix(prefix), TensorRef(name)) for name in group)
        items.append((top, objects.Mapping("dict", pairs)))
    return objects.Mapping("dict", tuple(items)), tuple(Section(top, f"{top}/", OPTIMIZER) for top in groups)


# --- Variables of checkpoints without objects, as TensorFlow 1 saves them: their names say what they are -------------
#
#     lstm/kernel/Adam, lstm/kernel/Adam_1, beta1_power     an optimizer's
#     lstm/kernel/ExponentialMovingAverage                  an average
#     global_step                                           a counter
#
# Source: tensorflow/python/training/{slot_creator,adam,moving_averages,training_util}.py.


SLOTS = re.compile(
    r"(?:[Aa]dam\w*|Nadam|LAMB\w*|[Mm]omentum|RMSProp|Adagrad\w*|Adadelta|Ftrl|SM3|adam_[mv]|Lars\w*|YF\w*)(?:_\d+)?"
)
"""The names of optimizers' slots, which follow the name of their variable; `adam_m` is BERT's."""
COUNTERS = ("global_step", "save_counter")
POWERS = re.compile(r"(.*/)?beta[12]_power(_\d+)?")


def role(name: str, names: Container[str]) -> str:
    """The role of a variable among others.

    >>> role("w/Adam_1", {"w", "w/Adam_1"}), role("w/ExponentialMovingAverage", {}), role("adam/w", {}), role("w", {})
    ('optimizer', 'ema', 'model', 'model')
    """
    of, _, last = name.rpartition("/")
    if POWERS.fullmatch(name) or (SLOTS.fullmatch(last) and of in names):
        return "optimizer"
    if last == "ExponentialMovingAverage":
        return "ema"
    return "other" if name in COUNTERS else "model"


# --- The objects of a TensorFlow 2 checkpoint, and the names of its variables ----------------------------------------
#
# A checkpoint of objects is a graph: edges have names, and a variable is called by the edges that lead to it, as
# `a/b/kernel`.  Several paths to one variable are its several names: it is shared.  Its row in the index has one of
# them (or a place in a list, such as `variables/0`); the graph also has the name that the program gave it, such as
# `lstm/lstm_cell/kernel`.
#
# A variable is called by its own name where that has scopes and no other variable has it, as Keras' have: that is
# what the model shows, and what Keras' HDF5 files hold.  Else it is called by its shortest path.  If several paths
# lead to it, all of them are names of it, too.  Lists in which Keras counts what other edges lead to (`BOOKKEEPING`)
# are no paths.
#
# Variables of an optimizer are below its path, and those that belong to a variable are called after it:
# `optimizer/m/lstm/lstm_cell/kernel`.
#
# Source: tensorflow/core/protobuf/trackable_object_graph.proto; tensorflow/python/checkpoint/save_util.py and
# graph_view.py; tf_keras/src/saving/legacy/saved_model/layer_serialization.py; keras/src/layers/layer.py (3.15).


KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The name of the tensor that holds the graph."""
VALUE = "VARIABLE_VALUE"
ATTRIBUTES = "/.ATTRIBUTES/"
SLOT = "/.OPTIMIZER_SLOT/"
BOOKKEEPING = re.compile(
    r"variables|trainable_variables|non_trainable_variables|keras_api|layers|metrics|layer_metrics|state_spec"
    r"|(layer_)?regularization_losses|layer-\d+|signatures"
    r"|_(trainable_variables|non_trainable_variables|layers|operations|metrics|tracked|functional|loss_tracker)"
)
"""Edges that Keras makes for itself; what is below them has another path, or is no weight."""
LISTS = ("_variables", "_momentums", "_velocities")
MAX_DEPTH = 64
"""The most edges of a path; a variable that is deeper is called as its row is."""
MAX_NAMES = 64
"""The most names of one variable."""
MAX_GROWTH = 64
"""The most characters of names for one byte of the graph."""


class NamedNode(NamedTuple):
    """A tensor of the index, with its names."""

    key: str
    names: tuple[str, ...]
    role: str


class NodeAttribute(NamedTuple):
    """What a node has in the index."""

    name: str
    full_name: str
    key: str


@dataclass
class Object:
    """A node of the graph."""

    children: list[tuple[str, int]]
    attributes: list[NodeAttribute]
    slots: list[tuple[int, str, int]]
    """(variable, name of the slot, variable of the optimizer)."""


def parse(reader: Reader) -> list[Object]:
    """The nodes of a graph; FormatError if it is damaged."""
    spans = reader.whole(_proto.OBJECT_GRAPH).get("nodes", ())
    return [_object(reader, span, len(spans)) for span in spans]


def _object(reader: Reader, span: Span, count: int) -> Object:
    def node(message: Message, name: str, at: Span) -> int:
        number = reader.number(message, name)
        if not 0 <= number < count:
            raise reader.damaged(at.start, f"{name} is {number}; the graph has {count} nodes")
        return number

    held = reader.message(span, _proto.OBJECT)
    children, attributes, slots = [], [], []
    for at in held.get("children", ()):
        child = reader.message(at, _proto.CHILD)
        children.append((reader.text(child, "local_name"), node(child, "node_id", at)))
    for at in held.get("attributes", ()):
        found = reader.message(at, _proto.ATTRIBUTE)
        attributes.append(
            NodeAttribute(*(reader.text(found, name) for name in ("name", "full_name", "checkpoint_key")))
        )
    for at in held.get("slot_variables", ()):
        slot = reader.message(at, _proto.SLOT)
        one, other = (node(slot, f"{which}_variable_node_id", at) for which in ("original", "slot"))
        slots.append((one, reader.text(slot, "slot_name"), other))
    return Object(children, attributes, slots)


def named(nodes: list[Object], keys: Container[str], nbytes: int) -> tuple[list[NamedNode], list[str]]:
    """The tensors of the index that the graph names, in its order, and notes; `nbytes` is the size of the graph."""
    return _Namer(nodes, keys, MAX_GROWTH * nbytes).run()


class _Namer:
    """Names for the variables of a graph."""

    def __init__(self, nodes: list[Object], keys: Container[str], characters: int) -> None:
        self.nodes = nodes
        self.keys = keys
        self.left = characters
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self.optimizers = self._optimizers()
        self.outside = self._outside()
        self.paths = self._paths()

    def _optimizers(self) -> dict[int, str]:
        """{an optimizer: the name of the edge that leads to it}: it has slots, or its edge is called so."""
        found = {k: "optimizer" for k, node in enumerate(self.nodes) if node.slots}
        for node in self.nodes:
            found |= {
                child: name
                for name, child in node.children
                if (child in found or role_of(name, "") == "optimizer") and not BOOKKEEPING.fullmatch(name)
            }
        return {k: name for k, name in found.items() if not self.nodes[k].attributes}

    def _outside(self) -> dict[int, tuple[int, str]]:
        """{node that any edges lead to, but none of an optimizer: the node before it, and the edge}."""
        found = {0: (0, "")} if self.nodes else {}
        waiting = deque(found)
        while waiting:
            node = waiting.popleft()
            for name, child in self.nodes[node].children:
                if child not in found and child not in self.optimizers:
                    found[child] = (node, name)
                    waiting.append(child)
        return found

    def _any_path(self, node: int) -> str:
        """A path that is no optimizer's, by whatever edges; empty if it is deep."""
        edges: list[str] = []
        while node and len(edges) < MAX_DEPTH:
            node, name = self.outside[node]
            edges.append(_escaped(name))
        return "" if node else "/".join(reversed(edges))

    def _paths(self) -> dict[int, list[str]]:
        """{node with a tensor: its paths, the shortest first}, by edges of the program's own and not of optimizers.

        Breadth first: every node once, and those behind several edges again for each, as far as the bounds allow.
        """
        found: dict[int, list[str]] = {}
        if not self.nodes:
            return found
        steps = 2 * sum(len(node.children) for node in self.nodes) + 50_000
        visits: Counter[int] = Counter([0])
        waiting: deque[_Step] = deque([_Step(0, None, "", 0)])
        while waiting:
            step = waiting.popleft()
            if self.nodes[step.node].attributes and self.left > 0:
                path = step.path()
                self.left -= len(path)
                found.setdefault(step.node, []).append(path)
            for name, child in self.nodes[step.node].children:
                steps -= 1
                is_first = not visits[child]
                if BOOKKEEPING.fullmatch(name) or child in self.optimizers or step.depth >= MAX_DEPTH:
                    continue
                if not is_first and (child == step.node or step.is_below(child)):
                    continue  # a cycle
                if is_first or (steps > 0 and visits[child] < MAX_NAMES):
                    visits[child] += 1
                    waiting.append(_Step(child, step, name, step.depth + 1))
                else:
                    if "not all names of shared variables are listed: there are too many" not in self.notes:
                        self.notes.append("not all names of shared variables are listed: there are too many")
        return found

    def run(self) -> tuple[list[NamedNode], list[str]]:
        """Every tensor that the graph names."""
        slots = {other: (k, one, slot) for k, node in enumerate(self.nodes) for one, slot, other in node.slots}
        inside = self._inside_optimizers()
        held = [
            (k, attribute)
            for k, node in enumerate(self.nodes)
            for attribute in node.attributes
            if attribute.key in self.keys
        ]
        full = Counter(attribute.full_name for k, attribute in held if k not in slots)
        own: dict[int, str] = {}
        found: dict[int, list[NamedNode]] = {}
        for k, attribute in held:
            if k in slots:
                continue
            plain = _plain(attribute)
            is_value = attribute.name == VALUE
            named = attribute.full_name if "/" in attribute.full_name and full[attribute.full_name] == 1 else ""
            paths = [*self.paths.get(k, ())] if is_value else []
            if k in inside and k not in self.outside:
                rest = plain.rpartition(f"{inside[k]}/")[2]
                name = f"{inside[k]}/{named if named and rest.rpartition('/')[2].isdigit() else rest}"
                found.setdefault(k, []).append(NamedNode(attribute.key, (self._free(name, attribute),), "optimizer"))
                continue
            shortest = paths[0] if paths else (k in inside and k in self.outside and self._any_path(k)) or plain
            name = self._free(named if named and is_value else shortest, attribute)
            more = [path for path in dict.fromkeys(paths) if path != name and path not in self.taken]
            names = (name, *more) if len(paths) > 1 else (name,)
            self.taken.update(names)
            own.setdefault(k, name)
            found.setdefault(k, []).append(NamedNode(attribute.key, names, _role(plain)))
        for k, attribute in held:
            if k in slots:
                optimizer, one, slot = slots[k]
                of = own.get(one, "") or _plain(attribute).partition(SLOT)[0]
                name = self._free(f"{self.optimizers.get(optimizer) or 'optimizer'}/{slot}/{of}", attribute)
                found.setdefault(k, []).append(NamedNode(attribute.key, (name,), "optimizer"))
        return [one for k in sorted(found) for one in found[k]], self.notes

    def _free(self, name: str, attribute: NodeAttribute) -> str:
        """A name that no other tensor has: the one that is wanted, or the path in its key, or the key."""
        self.left -= len(name)
        wanted = name if self.left > 0 else _plain(attribute)
        chosen = next((one for one in (wanted, _plain(attribute)) if one and one not in self.taken), attribute.key)
        self.taken.add(chosen)
        return chosen

    def _inside_optimizers(self) -> dict[int, str]:
        """{node below an optimizer: the optimizer's name}."""
        found: dict[int, str] = {}
        for optimizer, name in self.optimizers.items():
            waiting = [optimizer]
            while waiting:
                for _, child in self.nodes[waiting.pop()].children:
                    if child not in found and child not in self.optimizers:
                        found[child] = name
                        waiting.append(child)
        return found


class _Step(NamedTuple):
    """A node, and how a search came to it."""

    node: int
    before: _Step | None
    name: str
    depth: int

    def path(self) -> str:
        """The names of the edges up to here."""
        return "/".join(reversed([_escaped(step.name) for step in self._back()]))

    def is_below(self, node: int) -> bool:
        """Whether a node is on the way here."""
        return self.node == node or any(step.before.node == node for step in self._back() if step.before)

    def _back(self) -> Iterator[_Step]:
        step: _Step | None = self
        while step is not None and step.before is not None:
            yield step
            step = step.before


def _escaped(name: str) -> str:
    """The name of an edge in a path, as TensorFlow writes it (graph_view.py, _escape_local_name).

    >>> _escaped("a/b.S"), _escaped("kernel")
    ('a.Sb..S', 'kernel')
    """
    return name.replace(".", "..").replace("/", ".S")


def _plain(attribute: NodeAttribute) -> str:
    """The path in a key."""
    path, _, kind = attribute.key.partition(ATTRIBUTES)
    return path if kind == VALUE else f"{path}/{kind}" if path and kind else attribute.key


def _role(path: str) -> str:
    """The role of a variable that is not an optimizer's, by its path.

    >>> _role("keras_api/metrics/0/total"), _role("layer_with_weights-0/keras_api/states/0"), _role("a/kernel")
    ('other', 'buffer', 'model')
    """
    if path == "save_counter" or "keras_api/metrics/" in path:
        return "other"
    return "buffer" if "keras_api/states/" in path else "model"
