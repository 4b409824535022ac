"""The tree of objects as JSON, and the roles and sections that it shows.

JSON has no typed keys, tuples, bytes or tensors, so every container is an object that says its kind, and a mapping is
a list of pairs:

    {"epoch": 3, "model": {"w": <tensor>, "b": <tensor>}, 0: (1,)}
    {"map": "dict", "items": [["epoch", 3], ["model", {"map": "dict", "items": [2]}],
                              [0, {"seq": "tuple", "items": [1]}]]}

A bare number N among the items of a mapping is a run of N tensors: the next names in the file's order, each keyed by
what follows the mapping's own prefix.  So the tree of a hundred thousand names is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paramtool.errors import plural
from paramtool.model.checkpoint import INERT, ROLES, Checkpoint, Entries, Entry, Section
from paramtool.model.nested import SEPARATOR
from paramtool.model.objects import (
    LEFT_OUT,
    MAX_DEPTH,
    Again,
    Array,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Pairs,
    Scalar,
    Sequence,
    TensorRef,
    stub,
    tensor_names,
    walk,
    word,
)

if TYPE_CHECKING:
    from paramtool.model.plan import Plan

MAX_ARRAY_NBYTES = 64 << 10
"""Larger arrays that are not tensors (strings, dates, records) are left out of the record, and the record says so."""
_DICTS = {"dict", "collections.OrderedDict"}


def is_flat(objects: Node, order: tuple[str, ...]) -> bool:
    """Whether a tree adds nothing to the names: it is one dict of tensors, each under its own name."""
    if not isinstance(objects, Mapping) or objects.kind not in _DICTS or objects.attributes is not None:
        return False
    return not objects.items or (
        [key for key, _ in objects.items] == list(order)
        and all(child == TensorRef(str(key)) for key, child in objects.items)
    )


def check_attributes(objects: Node) -> None:
    """ValueError if the attributes of a mapping are a single value, or an object's arguments are not a tuple.

    A pickle with such a mapping cannot be loaded, and no pickle has such arguments.
    """
    for node in walk(objects):
        if isinstance(node, Opaque) and "args" in (parts := dict(node.parts)):
            args = parts["args"]
            if not isinstance(args, Sequence) or args.kind != "tuple":
                raise ValueError(f"the arguments of a {node.path:.200} are not a tuple")
        if isinstance(node, Mapping) and isinstance(node.attributes, (Leaf, Array, TensorRef)):
            found = "tensor" if isinstance(node.attributes, TensorRef) else "value"
            raise ValueError(f"a {node.kind} has a {found} for its attributes; expected a mapping")


def left_out(objects: Node) -> Iterator[str]:
    """What `encode` leaves out of a tree, for messages."""
    for node in walk(objects):
        if isinstance(node, Array) and len(node.data) > MAX_ARRAY_NBYTES:
            yield f"NumPy array {node.dtype} {list(node.shape)} inside the pickle: {len(node.data)} bytes"
        elif isinstance(node, Opaque) and " " in node.path and not node.parts:  # no class: the reader's words for it
            yield f"{node.path}, which is not read"


def left_out_before(node: Opaque) -> str:
    """What a node of LEFT_OUT replaces, for messages: no output of this tree can hold it."""
    what = dict(node.parts).get("what")
    return f"already missing from the input: {str(what.value) if isinstance(what, Leaf) else 'an object'}"


def all_left_out_before(objects: Node) -> Iterator[str]:
    """What all such nodes of a tree replace."""
    return (left_out_before(node) for node in walk(objects) if isinstance(node, Opaque) and node.path == LEFT_OUT)


class _Run:
    """The names in file order, taken one by one."""

    def __init__(self, order: tuple[str, ...], runs: bool = True) -> None:
        self.order = order
        self.runs = runs
        """Whether names are written by their number: the reader knows all of them, in that order."""
        self.names = set(order)
        self.at = 0
        self.counted = False
        """Whether names were given by their number, as in a file that holds all of them."""

    def take(self, name: str) -> bool:
        """Consume `name` if it is the next one."""
        if self.at < len(self.order) and self.order[self.at] == name:
            self.at += 1
            return True
        return False

    def step(self, count: int) -> tuple[str, ...]:
        """Consume the next `count` names; ValueError if fewer are left."""
        if not 0 < count <= len(self.order) - self.at:
            raise ValueError(
                f"has a run of {plural(count, 'tensor')}, but only {len(self.order) - self.at} of the file are left"
            )
        self.counted = True
        self.at += count
        return self.order[self.at - count : self.at]


def encode(objects: Node, order: tuple[str, ...], runs: bool = True) -> Any:
    """The tree as JSON data; `runs` requires that the reader knows every name of `order` in that order."""
    return _encode(objects, "", _Run(order, runs))


def _encode(node: Node, prefix: str, run: _Run) -> Any:
    match node:
        case Leaf(value):
            return _encode_scalar(value)
        case TensorRef(name):
            run.take(name)
            return {"tensor": name} if name in run.names else {"left_out": name}
        case Array(dtype, shape, order, data):
            if len(data) > MAX_ARRAY_NBYTES:
                return {"left_out": f"array {dtype} {list(shape)}"}
            return {"array": [dtype, shape, order, _base64(data)]}
        case Again(path):
            return {"again": path}
        case Sequence(kind, items, args):
            found = [_encode(x, f"{prefix}{k}.", run) for k, x in enumerate(items)]
            return {"seq": kind, "items": found, **_more(node, args, prefix, run)}
        case Mapping(kind, pairs, attributes, args):
            out: dict[str, Any] = {"map": kind, "items": _encode_items(pairs, prefix, run)}
            if attributes is not None:
                out["attributes"] = _encode(attributes, prefix, run)
            return out | _more(node, args, prefix, run)
        case Opaque(path, parts):
            if path == LEFT_OUT and isinstance(parts[0][1], Leaf):
                return {"left_out": parts[0][1].value}
            made = [[label, _encode(x, prefix, run)] for label, x in parts]
            return {"opaque": path, "parts": made, **_more(node, (), prefix, run)}
    raise TypeError(f"{type(node).__name__} is not a node")


def _more(node: Sequence | Mapping | Opaque, args: tuple[Node, ...], prefix: str, run: _Run) -> dict[str, Any]:
    """The members that version 3 of the record adds to a container, if any."""
    out: dict[str, Any] = {}
    if args:
        out["args"] = [_encode(x, prefix, run) for x in args]
    if node.mark:
        out["mark"] = node.mark
    return out


def needs_version_3(objects: Node) -> bool:
    """Whether a tree has something that versions 1 and 2 of the record cannot express.

    These are objects with several references, the arguments of containers, keys that are objects, and NumPy's arrays
    and scalars (which those versions do not distinguish).
    """
    for node in walk(objects):
        if isinstance(node, (Sequence, Mapping, Opaque)) and node.mark:
            return True
        if isinstance(node, (Sequence, Mapping)) and node.args:
            return True
        if isinstance(node, Mapping) and any(isinstance(key, (Sequence, Opaque)) for key, _ in node.items):
            return True
        if isinstance(node, Opaque) and node.path.startswith(_NUMPY):
            return True
    return False


_NUMPY = "numpy."


def _encode_items(pairs: Pairs, prefix: str, run: _Run) -> list[Any]:
    items: list[Any] = []
    for key, child in pairs:
        plain = run.runs and isinstance(key, str) and isinstance(child, TensorRef) and child.name == prefix + key
        if plain and run.take(prefix + str(key)):
            if items and type(items[-1]) is int:
                items[-1] += 1
            else:
                items.append(1)
        else:
            label = "" if isinstance(key, (TensorRef, tuple)) else word(key)
            items.append([_encode_key(key, prefix, run), _encode(child, f"{prefix}{label}.", run)])
    return items


def _encode_key(key: Key, prefix: str, run: _Run) -> Any:
    if isinstance(key, (Sequence, Opaque)):
        return {"key": _encode(key, prefix, run)}
    if isinstance(key, TensorRef):
        return {"tensor": key.name} if run.take(key.name) or key.name in run.names else {"left_out": key.name}
    if isinstance(key, tuple):
        return {"tuple": [_encode_scalar(item) for item in key]}
    return _encode_scalar(key)


def _encode_scalar(value: Scalar) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _base64(value)}
    if isinstance(value, complex):
        return {"complex": [_encode_scalar(value.real), _encode_scalar(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if type(value) is int and abs(value) > 2**53:  # larger than the exact integers of a double, which other readers use
        return {"int": str(value)}
    return value


def complete(objects: Node, order: tuple[str, ...]) -> Node:
    """The tree with every name in it: missing names are added to the top-level mapping."""
    there = set(tensor_names(objects))
    missing = tuple((name, TensorRef(name)) for name in order if name not in there)
    return replace(objects, items=(*objects.items, *missing)) if missing and isinstance(objects, Mapping) else objects


def decode(data: Any, order: tuple[str, ...], whole: bool = False) -> Node:
    """The tree from JSON data; ValueError if it is malformed, or its tensors are not those of `order`.

    A tree without runs may name other tensors too, unless the file is `whole`: the file may be one shard of several.
    """
    run = _Run(order)
    tree = _decode(data, "", run, 0)
    named = dict.fromkeys(tensor_names(tree))
    if lacking := [name for name in order if name not in named]:
        raise ValueError(f"{lacking[0]!r:.200} is missing; expected every tensor of the file")
    if (whole or run.counted) and (stray := [name for name in named if name not in run.names]):
        raise ValueError(f"has a tensor {stray[0]!r:.200}, which is not a name of the file")
    return tree


_FORMS = ("tensor", "left_out", "array", "again", "seq", "map", "opaque")
"""The members that determine the kind of a JSON object; an object with none of them is a scalar."""


def _decode(data: Any, prefix: str, run: _Run, depth: int) -> Node:
    _check_depth(depth, prefix)
    tag = next((form for form in _FORMS if form in data), "") if isinstance(data, dict) else ""
    if not tag:
        return Leaf(_decode_scalar(data))
    body = data[tag]
    match tag:
        case "left_out":
            return stub(str(body))
        case "array":
            dtype, shape, array_order, text = _list(data, "array", 4)
            return Array(str(dtype), tuple(int(n) for n in shape), str(array_order), _from_base64(text))
    if not isinstance(body, str):
        raise ValueError(f"{prefix[:60]!r} has the {tag!r} {body!r:.60}; expected a string")
    match tag:
        case "tensor":
            run.take(body)
            return TensorRef(body)
        case "again":
            return Again(body)
        case "seq":
            items = enumerate(_list(data, "items"))
            found = tuple(_decode(x, f"{prefix}{k}.", run, depth + 1) for k, x in items)
            return Sequence(body, found, _args(data, prefix, run, depth), _mark(data))
        case "map":
            pairs = tuple(_decode_items(_list(data, "items"), prefix, run, depth + 1))
            attributes = _decode(data["attributes"], prefix, run, depth + 1) if "attributes" in data else None
            return Mapping(body, pairs, attributes, _args(data, prefix, run, depth), _mark(data))
    parts = [_row(part, 2) for part in _list(data, "parts")]
    depth += body != "torch.Tensor"  # a tensor with attributes does not count as a level
    return Opaque(body, tuple((str(label), _decode(x, prefix, run, depth)) for label, x in parts), _mark(data))


def _args(data: dict[str, Any], prefix: str, run: _Run, depth: int) -> tuple[Node, ...]:
    """The arguments of a container other than its items."""
    return tuple(_decode(x, prefix, run, depth + 1) for x in _list(data, "args")) if "args" in data else ()


def _mark(data: dict[str, Any]) -> int:
    mark = data.get("mark", 0)
    if type(mark) is not int or mark < 0:
        raise ValueError(f"has the mark {mark!r:.60}; expected a whole number")
    return mark


def _decode_items(items: list[Any], prefix: str, run: _Run, depth: int) -> Iterator[tuple[Key, Node]]:
    for item in items:
        if type(item) is int:
            _check_depth(depth, prefix)
            for name in run.step(item):
                yield name.removeprefix(prefix), TensorRef(name)
        else:
            name, child = _row(item, 2)
            key = _decode_key(name, prefix, run, depth)
            label = "" if isinstance(key, (TensorRef, tuple)) else word(key)
            yield key, _decode(child, f"{prefix}{label}.", run, depth)


def _check_depth(depth: int, prefix: str) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels at {prefix[:60]!r}")


def _list(data: dict[str, Any], member: str, length: int | None = None) -> list[Any]:
    if member not in data:
        raise ValueError(f"{data!r:.60} has no {member!r}")
    return _row(data[member], length)


def _row(data: object, length: int | None) -> list[Any]:
    if not isinstance(data, list) or (length is not None and len(data) != length):
        raise ValueError(f"found {data!r:.60}; expected a list{f' of {length}' if length else ''}")
    return data


def _base64(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode()


def _from_base64(text: object) -> bytes:
    from base64 import b64decode

    if not isinstance(text, str):
        raise ValueError(f"found {text!r:.60}; expected base64")
    return b64decode(text, validate=True)


def _decode_key(data: Any, prefix: str, run: _Run, depth: int) -> Key:
    if isinstance(data, dict) and "key" in data:
        found = _decode(data["key"], prefix, run, depth + 1)
        if not isinstance(found, (Sequence, Opaque)):
            raise ValueError(f"{data!r:.60} is not a key")
        return found
    if isinstance(data, dict) and isinstance(data.get("tensor"), str):
        run.take(data["tensor"])
        return TensorRef(data["tensor"])
    if isinstance(data, dict) and "tuple" in data:
        return tuple(_decode_scalar(item) for item in _list(data, "tuple"))
    if isinstance(data, dict) and isinstance(data.get("left_out"), str):
        return str(data["left_out"])
    return _decode_scalar(data)


def _decode_scalar(data: Any) -> Scalar:
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    match data:
        case {"bytes": text}:
            return _from_base64(text)
        case {"complex": parts}:
            real, imag = (_decode_scalar(part) for part in _row(parts, 2))
            return complex(float(str(real)), float(str(imag)))
        case {"float": str() as text}:
            return float(text)
        case {"int": str() as text}:
            return int(text)
    raise ValueError(f"found {data!r:.60}, which is not a known form of a value")


_ROLE_WORDS = {
    "optimizer": {"optim", "optimizer", "optimizers", "opt", "adam", "adamw", "sgd", "lion", "adagrad", "adadelta"},
    "ema": {"ema", "shadow", "averaged", "avg", "swa", "polyak", "teacher"},
}
_OPTIMIZED = "OptimizedLSTMCell"
"""Of flax: a cell, and no optimizer."""
_COPIES = ("momentum_encoder", "momentum_encoders", "target_net", "target_nets", "target_network", "target_networks")
"""Words for networks that follow others by averaging (self-supervision, Q-learning); they have no other meaning."""
_MASTERS = ("master_weights", "master_params", "fp32_groups", "fp32_from_fp16_groups", "fp32_flat_groups",
            "single_partition_of_fp32_groups", "fp32_from_float16_groups", "fp32_from_fp16_params")  # fmt: skip
"""Keys under which mixed-precision optimizers keep float32 copies of the weights (apex, Megatron-LM, DeepSpeed)."""
_OPTIMIZER = {"state", "param_groups"}
"""Keys of every state dict of torch's optimizers (torch/optim/optimizer.py)."""
_SLOTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta"}
"""Names that torch's optimizers give to their state (torch/optim/*.py)."""
_BUFFERS = ("running_mean", "running_var", *INERT)
"""Names under which libraries register buffers.  A state dict does not show which other buffers a model has."""


@lru_cache(4096)
def role_of(key: str, inherited: str) -> str:
    """The role of what is stored under a key of a nested checkpoint, of which many are alike.

    >>> role_of("optimizer_states", "model"), role_of("model_ema", "model"), role_of("encoder", "ema")
    ('optimizer', 'ema', 'ema')
    >>> role_of("q1_target_net", "model"), role_of("target_netting", "model")
    ('ema', 'model')
    """
    if key == "_buffers":
        return "buffer"
    if key.lower() in _MASTERS:
        return "optimizer"
    text = key.lower().replace(".", "_").replace("-", "_")
    if any(f"_{copy}_" in f"_{text}_" for copy in _COPIES):
        return "ema"
    words = set(text.split("_"))
    for role, names in _ROLE_WORDS.items():
        is_optimizer = key.lower().startswith("optim") and not key.startswith(_OPTIMIZED)
        if words & names or (role == "optimizer" and is_optimizer):
            return role
    return inherited


def leaf_role(name: str, inherited: str) -> str:
    """The role of a tensor by its own name, which may say it where the nesting was flattened away.

    >>> leaf_role("model_ema.diffusion_modelw", "model"), leaf_role("optimizer.state.0.step", "model")
    ('ema', 'optimizer')
    >>> leaf_role("bn.running_mean", "model"), leaf_role("encoder.weight", "model"), leaf_role("net.ema_w", "model")
    ('buffer', 'model', 'ema')
    >>> leaf_role("optimizer_weights/Adam/m:0", "model"), leaf_role("layers/adam/kernel", "model")
    ('optimizer', 'model')
    """
    if inherited != "model":  # an array of NumPy's is not a weight, whatever it is called
        return inherited
    path, _, last = name.rpartition(".")
    if last in _SLOTS:
        return "optimizer"
    if last.lower().lstrip("_").startswith("ema_"):
        return "ema"
    if path and (role := _path_role(path)) != "model":
        return role
    top, nests, _ = name.partition(SEPARATOR)
    if nests and (role := role_of(top, "model")) != "model":
        return role
    return "buffer" if last in _BUFFERS else "model"


def _path_role(path: str) -> str:
    """The role that the first telling part of a dotted path has."""
    for part in path.split("."):
        if (role := role_of(part, "model")) != "model":
            return role
    return "model"


def roles(objects: Node) -> dict[str, str]:
    """{tensor name: role}, from the keys that lead to it."""
    found: dict[str, str] = {}
    todo: list[tuple[Node, str]] = [(objects, "model")]
    while todo:
        node, role = todo.pop()
        match node:
            case TensorRef(name):
                found.setdefault(name, leaf_role(name, role))
            case Sequence(_, items):
                todo.extend((item, role) for item in items)
            case Mapping(_, pairs, attributes):
                keys = {key for key, _ in pairs if isinstance(key, str)}
                role = "optimizer" if keys >= _OPTIMIZER else role
                for key, child in pairs:
                    if isinstance(key, TensorRef):
                        found.setdefault(key.name, "model")
                    if isinstance(child, TensorRef):  # most of them
                        found.setdefault(child.name, leaf_role(child.name, role))
                    else:
                        named = isinstance(key, str) and role != "other"
                        todo.append((child, role_of(str(key), role) if named else role))
                if attributes is not None:
                    todo.append((attributes, role))
            case Opaque(path, parts):
                inner = "other" if path.startswith(_NUMPY) else role
                todo.extend((child, inner) for _, child in parts)
    return found


def with_roles(entries: Entries, objects: Node) -> dict[str, Entry]:
    """Entries with roles for a file that has none: from the keys that lead to each entry, else from its name."""
    known = roles(objects)
    found = {}
    for name, entry in entries.items():
        role = known.get(name) or leaf_role(name, "model")
        found[name] = with_role(entry, role)
    return found


def with_tree(checkpoint: Checkpoint, tree: Node) -> Checkpoint:
    """A checkpoint with its objects, and the roles and sections that they show."""
    entries = with_roles(checkpoint.entries, tree)
    return replace(checkpoint, entries=entries, objects=tree, sections=sections(tree))


def unsaid_roles(plan: Plan) -> dict[str, list[str]]:
    """{role: names} of a plan's tensors whose keys and names would give a reader another role.

    Buffers are not told from other tensors of a model, which every command treats alike, and an average alone is one.
    """
    known = roles(plan.objects)
    alike = {"model", "buffer"} | ({"ema"} if {one.role for one in plan.names.values()} == {"ema"} else set())
    found: dict[str, list[str]] = {}
    for name, one in plan.names.items():
        told = known.get(name) or leaf_role(name, "model")
        if one.role not in ("", told) and not {one.role, told} <= alike:
            found.setdefault(one.role, []).append(name)
    return found


def with_said(entries: Entries, said: object) -> Entries:
    """Entries with the roles that a record says, in the form of `unsaid_roles`; ValueError if it is malformed."""
    if not isinstance(said, dict) or not all(
        role in ROLES and isinstance(names, list) and all(isinstance(name, str) for name in names)
        for role, names in said.items()
    ):
        raise ValueError(f"has the 'roles' {said!r:.60}; expected lists of names, each under one of {', '.join(ROLES)}")
    found = dict(entries)
    for role, names in said.items():
        for name in names:
            if (entry := found.get(name)) is not None:
                found[name] = entry._replace(role=role, link=entry.link and replace(entry.link, role=role))
    return found


def with_role(entry: Entry, role: str | None) -> Entry:
    """An entry with a role; the same one where that is its role already, or None."""
    role = (entry.link and entry.link.role) or role
    return entry if role is None or role == entry.role else entry._replace(role=role)


def sections(objects: Node) -> tuple[Section, ...]:
    """The top-level keys that hold tensors, if the file is nested; if there is only one, also the keys inside it."""
    found = _sections(objects, "")
    if isinstance(objects, Mapping) and {key for key, _ in objects.items if isinstance(key, str)} >= _OPTIMIZER:
        return tuple(replace(section, role="optimizer") for section in found)
    if len(found) == 1 and isinstance(objects, Mapping):
        inner = next(child for key, child in objects.items if word(key) == found[0].name)
        if found[0].role != "optimizer":
            found += _sections(inner, found[0].prefix)
    return tuple(found)


def groups(names: Iterable[str]) -> tuple[Section, ...]:
    """The top-level groups of names that nest at `/` as sections, if one of them is an optimizer's or a copy's."""
    tops = dict.fromkeys(name.partition(SEPARATOR)[0] for name in names if SEPARATOR in name)
    of = {top: role_of(top, "model") for top in tops}
    return () if set(of.values()) <= {"model"} else tuple(Section(top, f"{top}{SEPARATOR}", of[top]) for top in of)


def _sections(objects: Node, outer: str) -> list[Section]:
    if not isinstance(objects, Mapping) or any(isinstance(child, TensorRef) for _, child in objects.items if outer):
        return []
    found = []
    for key, child in objects.items:
        if isinstance(child, TensorRef):
            continue
        names = list(tensor_names(child))
        part = word(key)
        prefix = f"{outer}{part}."
        if names and all(name.startswith(prefix) for name in names):
            found.append(Section(f"{outer}{part}", prefix, _section_role(part, child)))
    return found


def _section_role(key: str, child: Node) -> str:
    keys = {k for k, _ in child.items if isinstance(k, str)} if isinstance(child, Mapping) else set()
    held = set(roles(child).values())
    if held in ({"other"}, {"ema"}):
        return held.pop()
    return "optimizer" if keys >= _OPTIMIZER else role_of(key, "model")
