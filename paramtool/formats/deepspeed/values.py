"""Plain values in the tree of a file of DeepSpeed, and the defects of a folder, gathered."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.errors import Defects
from paramtool.model.objects import Key, Leaf, Mapping, Node, Opaque, Sequence, TensorRef, word

MAX_NUMEL = 1 << 60
"""More elements than any file has."""


class Findings:
    """What is wrong with a folder, a line each."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """One more, once."""
        if line not in self.lines:
            self.lines.append(line)

    def refuse(self, hint: str) -> None:
        """Defects if there is any."""
        if self.lines:
            raise Defects(self.folder, self.lines, hint)


def child(node: Node | None, *keys: Key) -> Node | None:
    """What is under some keys, one inside the other; None where a key is missing."""
    for key in keys:
        if not isinstance(node, Mapping):
            return None
        node = next((value for name, value in node.items if name == key), None)
    return node


def items(node: Node | None) -> tuple[Node, ...]:
    """The items of a list or tuple; of anything else none."""
    return node.items if isinstance(node, Sequence) else ()


def pairs(node: Node | None) -> Iterator[tuple[str, Node]]:
    """The items of a mapping, with their keys as strings."""
    if isinstance(node, Mapping):
        yield from ((word(key), value) for key, value in node.items)


def is_none(node: Node | None) -> bool:
    """Whether there is nothing, or None."""
    return node is None or node == Leaf(None)


def whole(node: Node | None) -> int | None:
    """A whole number, also of an enum; None for anything else."""
    if isinstance(node, Opaque):
        found = items(child(Mapping("dict", node.parts), "args"))
        node = found[0] if len(found) == 1 else None
    value = node.value if isinstance(node, Leaf) else None
    return value if type(value) is int and 0 <= value < MAX_NUMEL else None


def wholes(node: Node | None) -> tuple[int, ...] | None:
    """A list of whole numbers; None for anything else."""
    found = [whole(item) for item in items(node)]
    if not isinstance(node, Sequence) or None in found:
        return None
    return tuple(number for number in found if number is not None)


def tensor(node: Node | None) -> str:
    """The name of a tensor, also of one with attributes; empty for anything else."""
    if isinstance(node, Opaque):
        node = child(Mapping("dict", node.parts), "data")
    return node.name if isinstance(node, TensorRef) else ""
