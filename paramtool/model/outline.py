"""What a file holds beside tensors, as lines: of an optimizer, a scheduler or random states that is all there is."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.errors import plural
from paramtool.model.objects import (
    EMPTY,
    Again,
    Array,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Pairs,
    Path,
    Sequence,
    TensorRef,
)

MANY_ITEMS = 8
"""A row of plain values that is longer is only counted."""
MAX_CHARACTERS = 80

ObjectLine = tuple[str, str]
"""The path of a value, joined by dots, and the value in a few words."""


def outline(node: Node) -> Iterator[ObjectLine]:
    """Every plain value of a tree, in file order; tensors are listed elsewhere.

    >>> list(outline(Mapping("dict", (("epoch", Leaf(3)), ("state", Mapping("dict", ()))))))
    [('epoch', '3'), ('state', 'dict, empty')]
    """
    if node != EMPTY:
        yield from _lines(node, ())


def _lines(node: Node, path: Path) -> Iterator[ObjectLine]:
    where = ".".join(path) or "(the value)"
    match node:
        case TensorRef():
            return
        case Mapping(kind, items, _):
            yield from _mapping(kind, items, path) if items else [(where, f"{_short(kind)}, empty")]
        case Sequence(kind, items):
            if all(isinstance(item, Leaf) for item in items):
                yield where, _row(kind, items)
            else:
                for number, item in enumerate(items):
                    yield from _lines(item, (*path, str(number)))
        case Opaque(kind, parts):
            yield where, f"an object of {kind}"
            for label, part in parts:
                yield from _lines(part, path if label in ("state", "items") else (*path, label))
        case _:
            yield where, _value(node)


def _mapping(kind: str, items: Pairs, path: Path) -> Iterator[ObjectLine]:
    for key, child in items:
        word = key.name if isinstance(key, TensorRef) else str(key)
        yield from _lines(child, (*path, word or "''"))


def _row(kind: str, items: tuple[Node, ...]) -> str:
    """A list or tuple of plain values, whole where it is short."""
    if not items:
        return f"{_short(kind)}, empty"
    whole = ", ".join(map(_value, items[:MANY_ITEMS]))
    if len(items) > MANY_ITEMS or len(whole) > MAX_CHARACTERS:
        return f"{_short(kind)} of {plural(len(items), 'value')}"
    return f"[{whole}]" if kind == "list" else f"{_short(kind)} of {whole}" if kind != "tuple" else f"({whole})"


def _value(node: Node) -> str:
    """A value in a few words."""
    match node:
        case Leaf(bytes() as data) if len(data) > MANY_ITEMS:
            return plural(data, "byte")
        case Leaf(int() as number) if number.bit_length() > 2 * MAX_CHARACTERS:
            return f"an integer of {number.bit_length()} bits"
        case Leaf(value):
            text = repr(value)
            return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
        case Array(dtype, shape):
            return f"array {list(shape)} {dtype}"
        case Again(path):
            return f"{path or 'the whole'} again"
    return type(node).__name__.lower()


def _short(kind: str) -> str:
    """`OrderedDict` of `collections.OrderedDict`."""
    return kind.rpartition(".")[2]
