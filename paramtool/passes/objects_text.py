"""Objects as canonical text: the same for two trees that `objects_differ` calls equal, whatever container held them.

The order of a mapping's keys, the spelling of a class in different versions of NumPy and Python, and which places
refer to one object are not in it.  Tensors, and mappings of nothing but tensors, are left out: the names say them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from struct import calcsize, unpack
from typing import Any

from paramtool.grouping import grouped
from paramtool.model.objects import (
    Again,
    Array,
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Scalar,
    Sequence,
    TensorRef,
    map_children,
)
from paramtool.passes.objects_differ import key_word, spelled

MAX_WORDS = 60
"""Characters of a value in short."""
NUMBERS = {"<f4": "<f", "<f8": "<d", "<i4": "<i", "<i8": "<q", "|b1": "?"}
"""{type of an array of one number: its format for `struct`}, of those that are written as numbers."""
_SETS = ("builtins.set", "builtins.frozenset")


def rows(objects: Node) -> Iterator[tuple[str, str, str]]:
    """(key, canonical text, the value in short without strings) of each key at the top that holds more than tensors.

    A tree that is no mapping is one row, whose key is empty.  The attributes of the top, such as `_metadata` of a state
    dict, are left out.
    """
    items = objects.items if isinstance(objects, Mapping) else [("", objects)]
    found = grouped((key_word(key), kept) for key, child in items if (kept := _kept(child)) is not None)
    for name, nodes in sorted(found.items()):
        one = nodes[0] if len(nodes) == 1 else Sequence("list", tuple(nodes))  # 1 and "1"
        yield name, canonical(one), in_short(_without_strings(one))


def _without_strings(node: Node) -> Node:
    """A tree with words in place of strings, which may be secrets."""
    if isinstance(node, Leaf) and isinstance(node.value, (str, bytes)):
        return Opaque("bytes" if isinstance(node.value, bytes) else "string", ())
    return map_children(node, _without_strings)


def _kept(node: Node) -> Node | None:
    """A tree without the tensors that are values in its mappings; None where nothing else was in it."""
    if isinstance(node, TensorRef):
        return None
    if not isinstance(node, Mapping) or not node.items:
        return node
    pairs = [(key, kept) for key, child in node.items if (kept := _kept(child)) is not None]
    if not pairs and not any(isinstance(key, TensorRef) for key, _ in node.items):
        return None
    return replace(node, items=tuple(pairs))


def canonical(node: Node) -> str:
    """A tree as one line of JSON."""
    return json.dumps(_data(node), sort_keys=True, separators=(",", ":"))


def _data(node: Node) -> Any:
    node = spelled(node)
    match node:
        case Leaf(value):
            return _scalar(value)
        case TensorRef(name):
            return {"tensor": name}
        case Array(dtype, shape, order, data):
            return {"array": [dtype, list(shape), order, sha256(data, usedforsecurity=False).hexdigest()]}
        case Again(path):
            return {"again": path}
        case Sequence(kind, items, args):
            made = [_data(item) for item in items]
            if kind in _SETS:
                made.sort(key=json.dumps)
            return {"seq": kind, "items": made, "args": [_data(one) for one in args]}
        case Mapping(kind, pairs, attributes, args):
            made = sorted(([_key(key), _data(child)] for key, child in pairs), key=json.dumps)
            more = None if attributes is None else _data(attributes)
            return {"map": kind, "items": made, "attributes": more, "args": [_data(one) for one in args]}
        case Opaque(path, parts):
            return {"opaque": path, "parts": sorted(([label, _data(one)] for label, one in parts), key=json.dumps)}
    raise TypeError(f"{type(node).__name__} is not a node")


def _key(key: Key) -> Any:
    if isinstance(key, (TensorRef, Sequence, Opaque)):
        return {"key": _data(key)}
    return {"tuple": [_key(one) for one in key]} if isinstance(key, tuple) else _scalar(key)


def _first(pair: tuple[str, Node]) -> str:
    return pair[0]


def _scalar(value: Scalar) -> Any:
    """A value with its type: 1 is not True, and not 1.0."""
    if value is None or isinstance(value, (bool, str)):
        return value
    text = value.hex() if isinstance(value, (bytes, float)) else repr(value)
    return {type(value).__name__: text}


def in_short(node: Node) -> str:
    """A value as a person would write it, cut at 60 characters."""
    text = "".join(_pieces(node, [MAX_WORDS * 4]))
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 3]}..."


def _pieces(node: Node, left: list[int]) -> Iterator[str]:
    """The text piece by piece, until enough was written."""
    left[0] -= 1
    if left[0] < 0:
        return
    match node:
        case Leaf(value):
            yield repr(value[: MAX_WORDS * 2] if isinstance(value, (str, bytes)) else value)
        case TensorRef(name):
            yield f"<{name}>"
        case Array(dtype, (), _, data) if dtype in NUMBERS and len(data) == calcsize(NUMBERS[dtype]):
            yield str(unpack(NUMBERS[dtype], data)[0])
        case Array(dtype, shape):
            yield f"{dtype} {list(shape)}"
        case Sequence("tuple", items):
            yield "("
            yield from _list(items, left)
            yield ",)" if len(items) == 1 else ")"
        case Sequence(kind, items):
            yield f"{_class(kind)}([" if kind != "list" else "["
            yield from _list(items, left)
            yield "])" if kind != "list" else "]"
        case Mapping(kind, pairs) if kind != "dict":
            yield f"{_class(kind)}("
            yield from _pieces(replace(node, kind="dict"), left)
            yield ")"
        case Mapping(_, pairs):
            yield "{"
            for at, (name, child) in enumerate(sorted(((key_word(key), child) for key, child in pairs), key=_first)):
                if at == MAX_WORDS:
                    break
                yield f"{', ' if at else ''}{name[:MAX_WORDS]}: "
                yield from _pieces(child, left)
            yield "}"
        case Opaque(path, parts):
            yield _class(path) if path.startswith("builtins.") else path
            yield "(" if parts else ""
            yield from _list([one for label, part in parts for one in _arguments(label, part)], left)
            yield ")" if parts else ""
        case Again(path):
            yield f"<{path}>"


def _list(nodes: Iterable[Node], left: list[int]) -> Iterator[str]:
    """Nodes with commas between them."""
    for at, node in enumerate(islice(nodes, MAX_WORDS)):
        yield ", " if at else ""
        yield from _pieces(node, left)


def _arguments(label: str, part: Node) -> tuple[Node, ...]:
    """What a part of an object is in a call."""
    return part.items if label == "args" and isinstance(part, Sequence) else (part,)


def _class(path: str) -> str:
    """A class as code names it, without its module."""
    return path.rpartition(".")[2]
