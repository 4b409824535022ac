"""ONNX models: the tensors in a graph, and its recurrent nodes.  Read field by field; nothing is loaded.

    ModelProto.graph
      initializer         tensors, under their own names
      sparse_initializer  two tensors each, as `name/values` and `name/indices`
      node                Constant nodes hold a tensor, called as their output; LSTM, GRU and RNN nodes are described;
                          If, Loop and Scan nodes hold graphs, whose tensors are called `node/attribute/name`

The data of a tensor is in the file itself (`raw_data`), or in another file in its folder (external data).  Two tensors
that refer to the same range of such a file share it.

Source: onnx/onnx.proto (onnx 1.23); docs/IR.md for names and scopes.
"""

from __future__ import annotations

import os
import re
import struct
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

from paramtool.errors import MAX_LISTED, Defects, FormatError, UnsafeError, plural
from paramtool.formats import object_tree
from paramtool.formats.files import Contents, open_source
from paramtool.formats.onnx import _layers, _rnn, proto
from paramtool.formats.onnx.operands import Operands, StoredConstant, constants
from paramtool.formats.onnx.proto import EXTERNAL, PACKED, STRING, TENSOR, TYPED_FIELDS, TYPES
from paramtool.formats.protobuf import Message, Reader, Span, signed
from paramtool.formats.strict_json import strict
from paramtool.model.checkpoint import GRAPH, Checkpoint, Compound, Entry, Module, Unreadable, Value
from paramtool.model.described import Name
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.images import FIRST, Signal, image
from paramtool.model.paths import named_beside
from paramtool.model.storage import ByteRange, Inline, SourceFile, Storage
from paramtool.model.view import MAX_AXES, MAX_EXTENT, Shape, View, contiguous

NAME = "onnx"
MAX_DEPTH = 32
"""The deepest nesting of graphs.  Each level is three messages deep, and protobuf's own readers stop at a hundred."""
MAX_TENSORS = 2_000_000

Scope = MutableMapping[str, str]
"""{name in a graph: name of the tensor in the checkpoint}."""


class Sparse(NamedTuple):
    """A sparse tensor: the nonzero values, and their indices."""

    values: Found
    indices: Found
    dense: tuple[int, ...]


def read(path: str) -> Checkpoint:
    """Describe a model; FormatError, Defects or UnsafeError if that is not possible."""
    file, source = open_source(path)
    with file:
        walk = walked(Reader(Contents(file, source.nbytes), path), source)
        storages, entries = _windows(walk)
    walk.finish()
    return Checkpoint(
        format=NAME,
        files=(source, *walk.tensors.files.values()),
        storages=storages,
        entries=entries,
        metadata=walk.metadata,
        producer=walk.producer,
        notes=(*walk.notes, *walk.uses.notes()),
        modules=tuple(walk.modules),
        parts=walk.uses.parts(name for name in walk.found if not walk.is_weight(name)),
        uses={name: len(walk.operands.uses.get(name, ())) for name in walk.found},
    )


def walked(reader: Reader, source: SourceFile, described: list[dict[str, object]] | None = None) -> GraphWalk:
    """Everything that a model says, its graphs walked; FormatError or UnsafeError if it is not a whole model.

    What it computes is put into `described`.
    """
    model = reader.whole(proto.MODEL)
    if "graph" not in model:
        raise FormatError(
            f"{reader.where}: has no graph; it is truncated, or not an ONNX model", hint="get or export the file again"
        )
    if reader.number(model, "ir_version") >= 3 and "opset_import" not in model:
        raise FormatError(
            f"{reader.where}: has no opset_import, which follows the graph; the file is truncated",
            hint="get or export the file again",
        )
    walk = GraphWalk(reader, Tensors(reader, source), described=described)
    for key, value in pairs(reader, model, "metadata_props"):
        if key in walk.metadata:
            walk.defect(f"metadata_props has {key!r:.200} twice; expected each key once")
        walk.metadata[key] = value
    walk.producer = " ".join(filter(None, (reader.text(model, f"producer_{part}") for part in ("name", "version"))))
    said = said_networks(walk.metadata.pop(proto.NETWORKS, ""))
    walk.defaults = {name for one in said.values() for name in one.states}
    walk.model(model)
    walk.join(said)
    return walk


@dataclass
class GraphWalk:
    """Walks a model's graphs and collects their tensors and recurrent nodes."""

    reader: Reader
    tensors: Tensors
    found: dict[str, Found | Sparse] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    """{name of a tensor: its TensorProto}."""
    constants: set[str] = field(default_factory=set)
    """The tensors of Constant nodes."""
    metadata: dict[str, str] = field(default_factory=dict)
    producer: str = ""
    uses: _layers.Uses = field(default_factory=_layers.Uses)
    operands: Operands = field(default_factory=Operands)
    modules: list[Module] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """{prefix of a graph + name of a value in it: its shape, as the graph declares it}."""
    spread: dict[str, str] = field(default_factory=dict)
    """{prefix of a graph + name of a value in it: the stored tensor whose numbers it has}."""
    expanded: dict[str, str] = field(default_factory=dict)
    """Those of `spread` that Expand makes of a stored tensor: it repeats axes of size 1, and changes no other."""
    filled: dict[str, list[Found]] = field(default_factory=dict)
    """{prefix of a graph + name of an output of ConstantOfShape: the value of all its elements}."""
    constant: set[str] = field(default_factory=set)
    """Prefix of a graph + name of a value that the graph computes only from stored values."""
    before: dict[str, str] = field(default_factory=dict)
    """{prefix of a graph + name of an output: its node's first input}, of operators that stand between two layers."""
    runs: dict[str, NodeRun] = field(default_factory=dict)
    """{module: its node's X and Y}, of recurrent nodes in the main graph."""
    defaults: set[str] = field(default_factory=set)
    """Initializers of the main graph that callers replace: zeros that stand for an initial state."""
    in_function: bool = False
    """Whether the nodes of a function are being walked, whose weights can be its inputs."""
    described: list[dict[str, object]] | None = None
    """What the model computes, as `model.described` has it, where it is asked for."""
    defects: list[str] = field(default_factory=list)
    more: int = 0
    """The number of defects that were not kept."""

    def model(self, model: Message) -> None:
        """Walk the main graph, then graphs for training, then functions that nodes can call."""
        self.describe("model", "", (), {"versions": {"opset_import": model.get("opset_import", [])}})
        self.graph(model["graph"][0], "", {}, 0)
        for k, span in enumerate(model.get("training_info", ())):
            info = self.reader.message(span, proto.TRAINING_INFO)
            for name in info:
                self.graph(info[name][0], f"training_info.{k}/{name}/", {}, 0)
        for function in self.reader.messages(model, "functions", proto.FUNCTION):
            label = "/".join(filter(None, (self.reader.text(function, n) for n in ("name", "overload"))))
            self.in_function = True
            given, made = (self.reader.texts(function, name) for name in ("input", "output"))
            self.operands.graph(f"{label}/", given, made, outer=None)
            self.nodes(function.get("node", ()), f"{label}/", {}, 0)

    def join(self, said: Mapping[str, NetworkWords]) -> None:
        """Describe nodes that are the layers of one network, as paramtool says of its own models, as that network."""
        self.modules, unlike = joined_networks(self.modules, said, self.runs, self.before)
        self.notes += unlike

    def graph(self, span: Span, prefix: str, outer: Scope, depth: int, *, around: str | None = None) -> None:
        """Walk a graph; its names shadow those of the graphs around it, of which `around` is the prefix of the next."""
        if depth > MAX_DEPTH:
            raise FormatError(f"{self.reader.where}: {prefix[:200]}: graphs are nested more than {MAX_DEPTH} deep")
        graph = self.reader.message(span, proto.GRAPH)
        scope: Scope = ChainMap({}, outer)
        given, made = (
            [self.reader.text(info, "name") for info in infos(self.reader, graph, part)] for part in ("input", "output")
        )
        self.operands.graph(prefix, given, made, outer=around)
        for info in infos(self.reader, graph, "value_info", "input"):
            if any(key == KIND and value in SAID for key, value in pairs(self.reader, info, "metadata_props")):
                self.operands.parameters.add(prefix + self.reader.text(info, "name"))
        for place in graph.get("initializer", ()):
            name = self.tensors.name(place)
            if prefix or name not in self.defaults or not self.is_uniform(place, True):
                self.tensor(place, name, prefix, scope)
        for sparse in self.reader.messages(graph, "sparse_initializer", proto.SPARSE_TENSOR):
            name = self.reader.text(self.reader.inner(sparse, "values", TENSOR), "name")
            self.sparse(sparse, name, prefix, scope)
        for info in infos(self.reader, graph, "input", "value_info"):  # None for a size that is not fixed
            inner = info
            for step, fields in (("type", proto.TYPE), ("tensor_type", proto.TENSOR_TYPE), ("shape", proto.SHAPE)):
                inner = self.reader.inner(inner, step, fields)
            axes = self.reader.messages(inner, "dim", proto.DIMENSION)
            if shape := tuple(self.reader.number(a, "dim_value") if "dim_value" in a else None for a in axes):
                self.sizes[prefix + self.reader.text(info, "name")] = shape
        for name in (prefix + name for name in given):
            if name not in self.found:
                self.uses.signals[name] = Signal(frozenset({""}))
            if name not in self.found and len(shape := self.sizes.get(name, ())) > 3 and shape[1]:
                self.uses.images[name] = image(shape[1], FIRST, len(shape) - 1)._replace(is_input=True)
        self.nodes(graph.get("node", ()), prefix, scope, depth)
        self.uses.flow.ends(self.uses.signals.get(prefix + name, Signal()) for name in made)
        self.describe(f"graph {prefix}", "", (prefix + name for name in (*given, *made)), {})

    def nodes(self, spans: Sequence[Span], prefix: str, scope: Scope, depth: int) -> None:
        """Walk the nodes of one graph, in the order in which they run."""
        taken: set[str] = set()
        for k, span in enumerate(spans):
            node = self.reader.message(span, proto.NODE)
            outputs = self.reader.texts(node, "output")
            names = [self.reader.text(node, "name"), *outputs, f"node {k}"]
            label = next(name for name in names if name and name not in taken)
            taken.add(label)
            self.node(node, outputs, label, prefix, scope=scope, depth=depth)

    def node(self, node: Message, outputs: list[str], label: str, prefix: str, *, scope: Scope, depth: int) -> None:
        operator, domain = self.reader.text(node, "op_type"), self.reader.text(node, "domain")
        attributes = {}
        for attribute in self.reader.messages(node, "attribute", proto.ATTRIBUTE):
            name = self.reader.text(attribute, "name")
            attributes[name] = attribute
            for span in attribute.get("g", ()):
                self.graph(span, f"{prefix}{label}/{name}/", scope, depth + 1, around=prefix)
            for k, span in enumerate(attribute.get("graphs", ())):
                self.graph(span, f"{prefix}{label}/{name}.{k}/", scope, depth + 1, around=prefix)
        inputs = tuple(self.reader.texts(node, "input"))
        keys = [name and (scope.get(name) or self.operands.key(prefix, name)) for name in inputs]
        ends = (*keys, *(prefix + name for name in outputs))
        self.describe(f"node {prefix}{label}", f"{domain}:{operator}", ends, attributes)
        path = self.scope(node) if any(map(proto.NUMBERED.fullmatch, inputs)) and operator not in _rnn.KINDS else ""
        numbers: dict[str, float] = {}
        for names, read, place in (
            (("group", "axis", "transB"), self.reader.number, "i"),
            (("alpha", "beta", "min", "max"), self.reader.real, "f"),
        ):  # fmt: skip
            numbers |= {name: read(attributes[name], place) for name in names if name in attributes}
        numbers |= {"approximate": 1.0} if self.reader.text(attributes.get("approximate", {}), "s") == "tanh" else {}
        self.uses.node(
            operator, f"{path}{prefix}{label}", keys, [prefix + name for name in outputs], numbers=numbers,
            values={name: found for name in keys if (found := self.values(name, operator))},
            shapes={name: one.shape for name in keys if isinstance(one := self.found.get(name), OnnxTensor)},
            axes=[*self.reader.varints(attributes.get("perm", {}).get("ints", ()))],
            settings={word: self._setting(attributes[name], place) for name, (word, place) in _layers.SETTINGS.items()
                      if name in attributes},
        )  # fmt: skip
        if operator != "Identity" or not inputs or inputs[0] not in scope:  # else a second name of a stored tensor
            self.operands.node(operator if domain in _rnn.DOMAINS else "", prefix, keys, outputs)
        if domain not in _rnn.DOMAINS:
            if operator.endswith(tuple(_rnn.KINDS)):
                self.notes.append(f"{operator} node {prefix + label!r:.200}, of {domain!r:.200}, is not converted")
            return
        if operator == "Constant" and outputs:
            for span in attributes.get("value", {}).get("t", ()):
                self.tensor(span, outputs[0], prefix, scope)
                self.constants.add(prefix + outputs[0])
            value = attributes.get("sparse_value", {})
            for sparse in self.reader.messages(value, "sparse_tensor", proto.SPARSE_TENSOR):
                self.sparse(sparse, outputs[0], prefix, scope)
        if operator == "Identity" and inputs and inputs[0] in scope and outputs:
            scope[outputs[0]] = scope[inputs[0]]
        if operator == "Constant" or (inputs and all(n in scope or prefix + n in self.constant for n in inputs if n)):
            self.constant.update(prefix + output for output in outputs)
        source = scope.get(inputs[0]) or self.spread.get(prefix + inputs[0]) if inputs else None
        if operator in BETWEEN and inputs and outputs:
            self.before[prefix + outputs[0]] = prefix + inputs[0]
        if operator == "Expand" and source and outputs:
            self.expanded[prefix + outputs[0]] = source
        if operator in SPREADING and source and outputs:
            self.spread[prefix + outputs[0]] = source
        if operator == "ConstantOfShape" and outputs:
            self.filled[prefix + outputs[0]] = [*map(self.tensors.find, attributes.get("value", {}).get("t", ()))]
        if operator in _rnn.KINDS:
            made = _rnn.Node(self.reader, operator, label, inputs, attributes, output=outputs[0] if outputs else "")
            self.recurrent(made, prefix, scope)

    def describe(self, name: str, kind: str, names: Iterable[str], attributes: Mapping[str, Message]) -> None:
        """Keep what a node or graph is; a Constant node has its tensor as a value, a graph in a node its own nodes."""
        if self.described is not None:
            skipped = ("g", "graphs", "t" * kind.endswith(":Constant"))
            said = {
                word: [[key, *map(self.reader.content, one[key])] for key in one if key not in skipped]
                for word, one in attributes.items()
            }
            self.described.append({**said, "name": Name(name), "kind": kind, "inputs": [*map(Name, names)]})

    def values(self, name: str, operator: str) -> list[float]:
        """The numbers of a small tensor that is part of the program; empty for a weight, and for what is not stored."""
        one, codes = self.found.get(name), {"int64": "q", "int32": "i"}
        codes |= {} if operator == "Reshape" else {"float32": "f", "float64": "d", "float16": "e"}
        if not isinstance(one, OnnxTensor) or not (operator == "Reshape" or one.shape == () or name in self.constants):
            return []
        code = codes.get(one.dtype.name)
        data = content(self.reader, one) if code and prod(one.shape) <= MAX_AXES else None
        return [*map(float, struct.unpack(f"<{prod(one.shape)}{code}", data))] if data else []

    def scope(self, node: Message) -> str:
        """The path of the module around a node, with slashes; empty where the exporter does not say it."""
        said = next((value for key, value in pairs(self.reader, node, "metadata_props") if key == proto.SCOPES), "")
        words = re.findall("'([^']*)'", said)  # the last is the node
        return "".join(f"/{word}/" for word in words[-2:-1] if word)

    def _setting(self, attribute: Message, place: str) -> object:
        """The value of an attribute, by the field that has it."""
        if place == "ints":
            return [*self.reader.varints(attribute.get(place, ()))]
        if place == "s":
            return self.reader.text(attribute, place)
        if place == "f":
            return float(f"{self.reader.real(attribute, place):.6g}")  # as it was written before it was a float32
        return self.reader.number(attribute, place)

    def tensor(self, span: Span, name: str, prefix: str, scope: Scope) -> None:
        """Add a tensor under its name in the graph."""
        try:
            self.put(name, prefix, scope, self.tensors.find(span))
            self.places[prefix + name] = span
        except ValueError as error:
            self.defect(f"{prefix + name!r:.200}: {error}")

    def sparse(self, message: Message, name: str, prefix: str, scope: Scope) -> None:
        """Add a sparse tensor under its name in the graph."""
        try:
            if not {"values", "indices"} <= message.keys():
                raise ValueError("is a sparse tensor without values or indices")
            values, indices = (self.tensors.find(message[part][0]) for part in ("values", "indices"))
            self.put(name, prefix, scope, Sparse(values, indices, dims(self.reader, message)))
        except ValueError as error:
            self.defect(f"{prefix + name!r:.200}: {error}")

    def put(self, name: str, prefix: str, scope: Scope, found: Found | Sparse) -> None:
        """Keep a tensor under a unique name."""
        full = prefix + name
        if not name:
            raise ValueError("is a tensor without a name")
        if full in self.found:
            raise ValueError("appears twice; expected each name once")
        if len(self.found) >= MAX_TENSORS:
            raise UnsafeError(f"{self.reader.where}: has more than {MAX_TENSORS:,} tensors")
        self.found[full] = found
        scope[name] = full

    def recurrent(self, node: _rnn.Node, prefix: str, scope: Scope) -> None:
        """Describe a recurrent node; a note if that is not possible, or if the graph computes its weights."""
        given = {name: node.given(name) for name in _rnn.WEIGHTS if node.given(name)}
        tensors = {name: scope[value] for name, value in given.items() if value in scope}
        states = {name: self.state(node.given(name), prefix, scope) for name in _rnn.STATES}
        if any(is_there for _, is_there in states.values()):
            own = {name: scope.get(node.given(name)) or self.expanded.get(prefix + node.given(name)) for name in states}
            tensors |= {name: value for name, value in own.items() if value and self.is_for_any_batch(value, node)}
        stored = {name: self.found[value] for name, value in tensors.items()}
        shapes = {name: value.shape for name, value in stored.items() if isinstance(value, OnnxTensor)}
        at = prefix + node.label
        self.uses.recurrent.append((at, node.operator, tuple(tensors.values())))
        where = f"{node.operator} node {at!r:.200}"
        computed = sorted(given.keys() - tensors.keys())
        if computed and self.in_function:
            self.notes.append(
                f"{where}: is in a function that gets {', '.join(computed)} from the nodes that call it: "
                "the node is not described"
            )
            return
        if computed:
            self.notes.append(f"{where}: the graph computes {', '.join(computed)}: no stored tensor has the values")
        for name, (value, is_there) in states.items():
            if is_there and name not in tensors:
                text = f"{where}: its initial state has the numbers of {value!r:.200}: pass it to the network"
                self.notes.append(text)
        if not prefix:
            self.runs[at] = NodeRun(node.given("X"), node.output)
        try:
            self.lengths(node, prefix, where, scope)
            self.modules.append(_rnn.describe(node, at, tensors, shapes))
        except ValueError as error:
            self.modules.append(Module(at, NAME, tensors=tensors, source=node.source, refused=str(error)))
            self.notes.append(f"{where}: {error}; it is not converted")

    def lengths(self, node: _rnn.Node, prefix: str, where: str, scope: Scope) -> None:
        """Check the sequence lengths of a node: a note if they come with the data, ValueError if they are stored."""
        name, steps = node.given("sequence_lens"), self.sizes.get(prefix + node.given("X"), ())
        if name in scope:
            count = steps[node.whole("layout")] if len(steps) == 3 and node.whole("layout") in (0, 1) else None
            refuse_lengths(scope[name], content(self.reader, self.found[scope[name]]), count)
        elif prefix + name in self.constant:
            refuse_lengths(name, None, None)
        elif name:
            self.notes.append(f"{where}: takes sequence lengths as the input {name!r:.200}: pass them to the network")

    def state(self, value: str, prefix: str, scope: Scope) -> tuple[str, bool]:
        """What gives an initial state its numbers, and whether one is not 0: a node without a state takes zeros."""
        key = prefix + value
        source = scope.get(value) or self.spread.get(key, "")
        found = [self.found[source]] if source else self.filled.get(key, [])
        return source or value, any(any(content(self.reader, one) or b"?") for one in found)

    def is_weight(self, name: str) -> bool:
        """Whether a tensor could be trained.

        Whole numbers are shapes and indices; constants of one number, and those that are only repeated and cut, are
        what a program wrote.
        """
        found = self.found[name]
        if not isinstance(found, OnnxTensor) or name not in self.constants:
            return not isinstance(found, OnnxTensor) or "float" in found.dtype.name
        return "float" in found.dtype.name and prod(found.shape) > 1 and name not in self.spread.values()

    def constants_of_graph(self) -> set[str]:
        """The tensors that are shapes, indices and numbers of the program, and no weights."""
        plain = {name: one for name, one in self.found.items() if isinstance(one, OnnxTensor) and not one.packed}
        tensors = (
            StoredConstant(
                name, "int" not in one.dtype.name and one.dtype.name != "bool", prod(one.shape) == 1,
                name in self.constants, partial(self.is_uniform, self.places[name]),
            )
            for name, one in plain.items()
        )  # fmt: skip
        self.operands.producer = self.producer
        of_networks = {name for module in self.modules for name in module.tensors.values()}
        return set(constants(tensors, self.operands)) - of_networks

    def is_uniform(self, span: Span, is_zero: bool) -> bool:
        """Whether all elements of a small tensor are one number, or zero."""
        try:
            data = content(self.reader, one := self.tensors.find(span))
        except ValueError:
            return False
        if data is None or not isinstance(one, OnnxTensor):
            return False
        size = one.dtype.block_bytes
        return not any(data) if is_zero else data[size:] == data[:-size]

    def is_for_any_batch(self, name: str, node: _rnn.Node) -> bool:
        """Whether a state has batch size 1: (D, 1, H); with layout=1 that is (1, D, H), and only D = 1 is accepted."""
        found = self.found.get(name)
        shape = found.shape if isinstance(found, OnnxTensor) else ()
        return len(shape) == 3 and shape[1] == 1 and (not node.whole("layout") or shape[0] == 1)

    def defect(self, text: str) -> None:
        """Keep a defect, or only count it if there are many."""
        if len(self.defects) < MAX_LISTED:
            self.defects.append(text)
        else:
            self.more += 1

    def finish(self) -> None:
        """Raise the defects that were gathered, if any."""
        if self.defects:
            raise Defects(self.reader.where, self.defects, more=self.more)


def pairs(reader: Reader, message: Message, name: str) -> Iterator[tuple[str, str]]:
    """(key, value) of the entries that a field of a message holds."""
    for entry in reader.messages(message, name, proto.ENTRY):
        yield reader.text(entry, "key"), reader.text(entry, "value")


class _OnnxStorages:
    """Storages of the tensors.  Overlapping ranges, which external data may have, are one storage."""

    def __init__(self, parts: Sequence[OnnxTensor]) -> None:
        self.blocks = _blocks([part.backing for part in parts if isinstance(part.backing, ByteRange)])
        self.numbers: dict[ByteRange, int] = {}
        self.made: dict[int, Storage] = {}

    def view(self, part: OnnxTensor) -> View:
        """The view of a tensor; ValueError if it does not begin at a whole element of its storage."""
        start = 0
        if isinstance(part.backing, ByteRange):
            block = self.blocks[part.backing]
            start = part.backing.start - block.start if part.backing.nbytes else 0
            number = self.numbers.setdefault(block, len(self.made))
            self.made.setdefault(number, Storage(number, block.nbytes, block))
        else:
            number = len(self.made)
            self.made[number] = Storage(number, len(part.backing.data), part.backing)
        return contiguous(number, part.dtype, part.shape).on(number, start)


def _blocks(ranges: Sequence[ByteRange]) -> dict[ByteRange, ByteRange]:
    """{range: the smallest range that holds it and all that overlap it}."""
    found: dict[ByteRange, ByteRange] = {}
    cluster: list[ByteRange] = []
    for place in [*sorted(set(ranges), key=lambda r: (r.file, r.start, r.stop)), ByteRange("", 0, 0)]:
        stop = max((r.stop for r in cluster), default=0)
        if cluster and (place.file != cluster[0].file or place.start >= stop):
            found |= dict.fromkeys(cluster, ByteRange(cluster[0].file, cluster[0].start, stop))
            cluster = []
        cluster.append(place)
    return found


def _windows(walk: GraphWalk) -> tuple[dict[int, Storage], dict[str, Entry]]:
    """The storages, and every name as a view of one."""
    storages = _OnnxStorages([part for found in walk.found.values() for part in _parts(found).values()])
    entries: dict[str, Entry] = {}
    of_graph = walk.constants_of_graph()
    for name, found in walk.found.items():
        role = GRAPH if name in of_graph else object_tree.leaf_role(name, "model")
        try:
            entries[name] = Entry(_value(found, storages), role)
        except ValueError as error:
            walk.defect(f"{name!r:.200}: {error}")
    return storages.made, entries


def _parts(found: Found | Sparse) -> dict[str, OnnxTensor]:
    """The stored tensors that a tensor consists of."""
    parts = {"values": found.values, "indices": found.indices} if isinstance(found, Sparse) else {"": found}
    return {label: part for label, part in parts.items() if isinstance(part, OnnxTensor)}


def _value(found: Found | Sparse, storages: _OnnxStorages) -> Value:
    """The value of a name."""
    if isinstance(found, Unreadable):
        return found
    parts = _parts(found)
    if isinstance(found, Sparse):
        if len(parts) < 2 or any(part.packed for part in parts.values()):
            return Unreadable("support for sparse tensors whose values are not a plain tensor")
        views = {label: storages.view(part) for label, part in parts.items()}
        return Compound("sparse_coo", views, {"shape": found.dense})
    view = storages.view(found)
    return Compound("packed", {"data": view}, {"dtype": found.packed, "shape": found.dense}) if found.packed else view


# --- Inputs of a recurrent ONNX node other than weights: sequence lengths and initial states -------------------------
#
# Usually both come with the data.  If the model stores them, they are part of its function, and no layout has a place
# for them.  Their few bytes are read; no other tensor data is read when a model is described.
#
# Source: docs/Operators.md of onnx, LSTM: X (steps, batch, input), or (batch, steps, input) with layout=1;
# sequence_lens (batch); onnx/onnx.proto, ValueInfoProto.


MAX_NBYTES = 1 << 20
"""The largest stored tensor whose numbers are read."""
SPREADING = {"Expand", "Tile", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Cast"}
"""Operators whose first output only has numbers of the first input."""


def infos(reader: Reader, graph: Message, *parts: str) -> Iterator[Message]:
    """The ValueInfoProtos of some fields of a graph: its inputs, its outputs, values inside it."""
    for part in parts:
        yield from reader.messages(graph, part, proto.VALUE_INFO)


SAID = ("PARAMETER", "BUFFER")
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""The key under which torch's exporter says what a value of the graph is in the model (torch 2.13,
torch/onnx/_internal/exporter/_core.py; the words are those of torch.export.graph_signature.InputKind)."""


def content(reader: Reader, stored: Found | object) -> bytes | None:
    """The bytes of a small tensor that is stored in the model file itself; None for other tensors."""
    if not isinstance(stored, OnnxTensor) or stored.packed:
        return None
    place = stored.backing
    if not isinstance(place, ByteRange):
        return place.data
    if place.file != reader.where or place.nbytes > MAX_NBYTES:
        return None
    return bytes(reader.data[place.start : place.stop])


def refuse_lengths(name: str, data: bytes | None, steps: int | None) -> None:
    """ValueError unless every stored sequence length (int32) is the full length of X."""
    lengths = (
        [int.from_bytes(data[k : k + 4], "little", signed=True) for k in range(0, len(data or b""), 4)] if data else []
    )
    if lengths and set(lengths) == {steps}:
        return
    shown = ", ".join(map(str, lengths[:8])) + (", ..." if len(lengths) > 8 else "")
    steps_of = "of an unknown number of steps" if steps is None else f"of {steps} steps"
    raise ValueError(
        f"has the stored sequence_lens {name!r:.200}{f' ({shown})' if shown else ''} and an X {steps_of}: "
        "no layout has a place for them; if each is the full length of X, remove them from the model"
    )


# --- What the metadata of a model says of networks that are several nodes, and the proof of it by the nodes ----------
#
#     {"encoder.lstm": {"nodes": ["encoder.lstm.layer0", "encoder.lstm.layer1"], "states":
#       ["encoder.lstm.initial_h"]}}
#
# paramtool writes it (`write.py`); any program can change the graph afterwards.  So the nodes must be there, must
# have the same facts, and each must take what the one before it gives.  If not, every node is described alone, with a
# note.


BETWEEN = {"Transpose", "Reshape", "Squeeze", "ReduceSum", "ReduceMean", "ReduceProd"}
"""The operators that bring the output of a layer into the form of an input."""
MERGES = ("concat", "sum", "ave", "mul", "none")


class NodeRun(NamedTuple):
    """The values that a recurrent node takes and gives."""

    x: str
    y: str


class NetworkWords(NamedTuple):
    """What the metadata says of one network."""

    nodes: tuple[str, ...]
    states: tuple[str, ...]
    """Initializers that stand for initial states that callers give."""
    merge: str
    """How the outputs of two directions are merged."""


def said_networks(text: str) -> dict[str, NetworkWords]:
    """{module: what a model's metadata says of it}; empty if it is not of the form that paramtool writes."""
    try:
        document = strict(text) if text else {}
        return {at: _said(one) for at, one in document.items()}
    except (FormatError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _said(one: Any) -> NetworkWords:
    found = NetworkWords(tuple(one["nodes"]), tuple(one.get("states", ())), one.get("merge", "concat"))
    if not found.nodes or not all(isinstance(word, str) for word in (*found.nodes, *found.states)):
        raise ValueError
    return found


def joined_networks(
    modules: Sequence[Module], said: Mapping[str, NetworkWords], runs: Mapping[str, NodeRun], before: Mapping[str, str]
) -> tuple[list[Module], list[str]]:
    """The modules with those that are layers of one network as one, and notes on what is not as the metadata says."""
    by_node = {module.at: module for module in modules}
    notes, made, taken = [], dict[str, Module](), set[str]()
    for at, one in said.items():
        there = [by_node[name] for name in one.nodes if name in by_node and name in runs]
        if len(there) == len(set(one.nodes)) and taken.isdisjoint(one.nodes) and _is_one(one, there, runs, before):
            # The module of all layers
            words = [there[0].spec]
            words += [f"layers={len(there)}"] * (len(there) > 1)
            words += [f"merge={one.merge}"] * (one.merge != "concat")
            tensors = {
                f"layer{k}.{name}" if len(there) > 1 else name: tensor
                for k, module in enumerate(there)
                for name, tensor in module.tensors.items()
            }
            source = there[0].source if len(there) == 1 else f"{len(there)} nodes from {there[0].source} on"
            made[one.nodes[0]] = replace(there[0], at=at, spec=" ".join(words), tensors=tensors, source=source)
            taken |= set(one.nodes)
        else:
            notes.append(
                f"the metadata says that {at!r:.200} is the network of {', '.join(map(repr, one.nodes[:4])):.400}, and "
                "these nodes are not: each is described alone"
            )
    rest = (made.get(module.at) or module for module in modules if module.at in made or module.at not in taken)
    return list(rest), notes


def _is_one(
    one: NetworkWords, layers: Sequence[Module], runs: Mapping[str, NodeRun], before: Mapping[str, str]
) -> bool:
    """Whether the layers have the same facts, and each takes what the one before gives."""
    if one.merge not in MERGES or any(module.refused for module in layers):
        return False
    if len({tuple(word for word in module.spec.split() if not word.startswith("input=")) for module in layers}) > 1:
        return False
    for lower, upper in zip(one.nodes, one.nodes[1:], strict=False):
        value = runs[upper].x
        for _ in range(len(BETWEEN)):
            value = before.get(value, value)
        if not value or value != runs[lower].y:
            return False
    return True


# --- A TensorProto: its element type, its shape, and where its bytes are stored --------------------------------------
#
#     raw_data                       a range of the file, little-endian
#     float_data, double_data        the same if they are packed, as writers do; else collected from their tags
#     int32_data, int64_data, ...    numbers of varying length, which have to be unpacked; only small ones are
#     external data                  a range of another file in the model's folder
#
# Source: onnx/onnx.proto, TensorProto; docs/ExternalData.md.


MAX_UNPACKED_NBYTES = 16 << 20
"""The most bytes of varints that are unpacked in one file; the result may be eight times as large."""


class OnnxTensor(NamedTuple):
    """A tensor whose bytes were found."""

    dtype: DType
    shape: Shape
    backing: ByteRange | Inline
    packed: str = ""
    """The real element type if its elements share bytes in a way that no view can express; `dtype` is uint8 then."""
    dense: tuple[int, ...] = ()
    """The real shape of a packed tensor."""


Found = OnnxTensor | Unreadable
Place = ByteRange | Inline | Unreadable
"""Where a tensor's bytes are, or why they cannot be read."""


@dataclass
class Tensors:
    """Reads the tensors of one model, and keeps its external files and how much was unpacked."""

    reader: Reader
    source: SourceFile
    files: dict[str, SourceFile] = field(default_factory=dict)
    """{path: file} for the files that hold external data."""
    unpacked_nbytes: int = 0

    def name(self, span: Span) -> str:
        """The name of the tensor at `span`."""
        return self.reader.text(self.reader.message(span, TENSOR), "name")

    def find(self, span: Span) -> Found:
        """The tensor at `span`.

        ValueError if it is inconsistent, FormatError if it is damaged, UnsafeError if it refers to a file outside the
        model's folder.
        """
        message = self.reader.message(span, TENSOR)
        code = self.reader.number(message, "data_type")
        shape = dims(self.reader, message)
        if code == STRING:
            return Unreadable("support for tensors of strings")
        if "segment" in message:
            return Unreadable("TensorProto.segment: a tensor in several pieces")
        dtype, stored_shape, packed = _form(code, shape)
        nbytes = dtype.nbytes(prod(stored_shape))
        backing = self._backing(message, code, nbytes, dtype.block_bytes, span=span)
        if isinstance(backing, Unreadable):
            return backing
        return OnnxTensor(dtype, stored_shape, backing, packed, shape if packed else ())

    def _backing(self, message: Message, code: int, nbytes: int, size: int, *, span: Span) -> Place:
        holders = [name for name in ("raw_data", "string_data", *TYPED_FIELDS) if name in message]
        external = self.reader.number(message, "data_location") == EXTERNAL
        if len(holders) + external > 1:
            places = " and ".join([*holders, *["another file"] * external])
            raise ValueError(f"its data is in {places}; expected one place")
        if external:
            # The range of external data in a file in the model's folder
            facts: dict[str, str] = {}
            for key, value in pairs(self.reader, message, "external_data"):
                if key in facts:
                    raise ValueError(f"external_data has {key!r:.60} twice")
                facts[key] = value
            if "location" not in facts:
                raise ValueError("its data is in another file, and external_data has no location")
            start, length = _whole(facts, "offset", 0), _whole(facts, "length", nbytes)
            if length != nbytes:
                raise ValueError(f"external_data has {length} bytes; its type and shape ask for {nbytes}")
            file = self._file(facts["location"])
            if start + nbytes > file.nbytes:
                raise ValueError(
                    f"needs bytes {start}-{start + nbytes} of {file.path}, which has {file.nbytes}; it is truncated"
                )
            return ByteRange(file.path, start, start + nbytes)
        if not holders:
            if nbytes:
                raise ValueError(f"has no data; expected {nbytes} bytes")
            return ByteRange(self.source.path, span.stop, span.stop)
        spans = message[holders[0]]
        if holders[0] == "raw_data":
            return self._range(spans, nbytes, "raw_data")
        return self._typed(holders[0], spans, code, nbytes, size=size)

    def _range(self, spans: Sequence[Span], nbytes: int, name: str) -> Place:
        """Bytes that are stored as they are; joined if they are in several places."""
        found = sum(span.nbytes for span in spans)
        if found != nbytes:
            raise ValueError(f"{name} has {found} bytes; its type and shape ask for {nbytes}")
        if len(spans) == 1:
            return ByteRange(self.source.path, *spans[0])
        return self._unpack(found) or Inline(b"".join(self.reader.content(span) for span in spans))

    def _typed(self, name: str, spans: Sequence[Span], code: int, nbytes: int, *, size: int) -> Place:
        """Values in a typed field; `size` is the bytes of one number."""
        if code not in TYPED_FIELDS.get(name, ()):
            if code in (27, 28):
                return Unreadable("float6 values of int32_data, to be packed")
            raise ValueError(f"data of type {code} is in {name}, which cannot hold that type")
        if name in ("float_data", "double_data"):
            return self._range(spans, nbytes, name)
        if too_much := self._unpack(sum(span.nbytes for span in spans)):
            return too_much
        made = bytearray()
        for value in self.reader.varints(spans):
            if name != "uint64_data":
                value = signed(value)
            if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
                raise ValueError(f"{name} holds {value}, which {size} bytes cannot")
            made += (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        if len(made) != nbytes:
            raise ValueError(f"{name} has {plural(len(made) // size, 'value')}; its shape asks for {nbytes // size}")
        return Inline(bytes(made))

    def _unpack(self, nbytes: int) -> Unreadable | None:
        """Count what is about to be unpacked; returns the reason if that is too much."""
        self.unpacked_nbytes += nbytes
        if self.unpacked_nbytes <= MAX_UNPACKED_NBYTES:
            return None
        return Unreadable(f"unpacking more than {MAX_UNPACKED_NBYTES >> 20} MiB of numbers that have no raw_data")

    def _file(self, location: str) -> SourceFile:
        """The file that a location refers to, which must be in the model's folder."""
        path = os.path.join(os.path.dirname(self.source.path), named_beside(self.source.path, location, folders=True))
        if path == self.source.path:
            return self.source
        if path not in self.files:
            try:
                file, self.files[path] = open_source(path)
            except FormatError as error:
                raise FormatError(
                    f"{self.source.path}: refers to tensor data in another file: {error.message}"
                ) from None
            file.close()
        return self.files[path]


def _whole(facts: dict[str, str], key: str, default: int) -> int:
    text = facts.get(key, str(default))
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"external_data has the {key} {text!r:.60}; expected a whole number")
    return int(text)


def dims(reader: Reader, message: Message) -> tuple[int, ...]:
    """The shape in a message; ValueError if it is invalid."""
    shape: list[int] = []
    for size in reader.varints(message.get("dims", ())):
        shape.append(signed(size))
        if shape[-1] < 0 or len(shape) > MAX_AXES:
            raise ValueError(f"dims {shape[-8:]} are invalid; expected at most {MAX_AXES} sizes, none below 0")
    if prod(size for size in shape if size) > MAX_EXTENT:
        raise ValueError(f"dims {shape[:8]} are too large for any machine, even for an empty tensor")
    return tuple(shape)


def _form(code: int, shape: Shape) -> tuple[DType, tuple[int, ...], str]:
    """(type, shape, real type) of the stored data: a row of bytes if elements share bytes as no view can express."""
    numel = prod(shape)
    if code in PACKED:
        name, per_byte = PACKED[code]
        return DTYPES["uint8"], (-(-numel // per_byte),), name
    if code not in TYPES:
        raise ValueError(f"has the data_type {code}, which onnx 1.23 does not have")
    dtype = DTYPES[TYPES[code]]
    if numel % dtype.block_elements:
        return DTYPES["uint8"], (-(-numel * dtype.block_bytes // dtype.block_elements),), dtype.name
    return dtype, shape, ""
