"""The treemap of a checkpoint: where its bytes are, module by module, each byte once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from paramtool.drawing.treemap import TreemapNode, trimmed
from paramtool.errors import plural
from paramtool.model.checkpoint import Compound, NoData, Unreadable
from paramtool.model.display import size
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection

MAX_NODES = 6000
"""Modules and tensors of a treemap: more become one in their module."""
MAX_LEVELS = 24
"""Modules inside modules that a name is taken apart into; the rest of it stays whole."""
TINTS = {"model": "blue", "buffer": "sky", "optimizer": "orange", "ema": "purple", "graph": "grey", "other": "grey"}
"""{role: tint}"""
ROLE_WORDS = {
    "model": "weights", "buffer": "buffers", "optimizer": "optimizer state", "ema": "averaged weights (EMA)",
    "graph": "constants of the graph", "other": "other arrays",
}  # fmt: skip
SHARED, EQUAL, UNUSED = MARKS = ("shared", "equal", "unused")
MARK_WORDS = {
    SHARED: "shared: several names, stored once", EQUAL: "equal bytes, stored more than once",
    UNUSED: "unused: no tensor looks at these bytes",
}  # fmt: skip
NO_MODULE = "unused bytes"


class StoredTensor(NamedTuple):
    """Bytes that are stored once."""

    name: str
    nbytes: int
    tint: str
    marks: str = ""
    words: str = ""
    role: str = "model"


def stored(found: Inspection) -> Iterator[StoredTensor]:
    """Every stored tensor of a checkpoint, and the bytes that none uses."""
    graph, entries = found.graph, found.checkpoint.entries
    names = {owner: [one.name for one in members] for owner, members in graph.groups()}
    equal = {name for one in found.equal or () for name in one.names}
    for owner, view in graph.owners.items():
        if owner in graph.derived:
            continue
        own = names.get(owner, [owner])
        label = own[0] if owner in graph.anonymous else owner
        entry = entries.get(_entry(label, found))
        role = entry.role if entry else "other"
        marks = SHARED if len(own) > 1 else EQUAL if owner in equal else ""
        more = f", {plural(len(own), 'name')}" if len(own) > 1 else ""
        words = f"{geometry(view)}, {size(view.nbytes)}{more}{', equal to others' if marks == EQUAL else ''}"
        yield StoredTensor(label, view.nbytes, TINTS.get(role, "grey"), marks, words, role)
    if found.unused_nbytes:
        yield StoredTensor(NO_MODULE, found.unused_nbytes, "blank", UNUSED,
                           f"{size(found.unused_nbytes)} that no tensor looks at", UNUSED)  # fmt: skip


def _entry(label: str, found: Inspection) -> str:
    """The name of the entry that a window belongs to: a part of a compound is `name/part`."""
    entries = found.checkpoint.entries
    while label not in entries and "/" in label:
        label = label.rpartition("/")[0]
    return label


def geometry(view: View | NoData) -> str:
    """The type and the shape of a tensor.

    >>> from paramtool.model.dtype import DTYPES
    >>> geometry(NoData(DTYPES["float32"], (2, 3)))
    'float32 [2, 3]'
    """
    return f"{view.dtype.name} {list(view.shape)}"


def described(value: object) -> str:
    """The same of whatever a name has."""
    match value:
        case View() | NoData():
            return geometry(value) + (" without data" if isinstance(value, NoData) else "")
        case Compound(kind, parts, _):
            return f"{kind}, {plural(len(parts), 'part')}"
        case Unreadable(needs):
            return f"unreadable, needs {needs}"
    return ""


def separator_of(names: Iterable[str]) -> str:
    """The separators between modules in names."""
    return "." if any("." in name for name in names) else "/"


def tree(tensors: Iterable[StoredTensor], separator: str, name: str = "", most: int = MAX_NODES) -> TreemapNode:
    """The modules with their tensors; a module that has nothing but another is one with it."""
    root = TreemapNode(name, count=0)
    modules: dict[str, TreemapNode] = {"": root}
    for one in tensors:
        path, last = _path(one.name, separator)
        above = [root, *_modules(path, modules, separator)]
        above[-1].children.append(TreemapNode(last or one.name or "''", one.nbytes, one.tint, one.marks, one.words))
        for module in above:
            module.nbytes += one.nbytes
            module.count += 1
    # Join modules that have nothing but one other, sort what is in each, and say it; children before their
    # modules.
    order, stack = [], [root]
    while stack:
        order.append(stack.pop())
        stack += order[-1].children
    for node in reversed(order):
        if not node.children:
            continue
        if node is not root and len(node.children) == 1 and node.children[0].children:
            only = node.children[0]
            node.name, node.children = f"{node.name}{separator}{only.name}", only.children
        node.children.sort(key=lambda child: by_numbers(child.name))
        tints: dict[str, int] = {}
        for child in node.children:
            tints[child.tint] = tints.get(child.tint, 0) + child.nbytes
        node.tint = max(tints, key=lambda tint: tints[tint])
        node.words = f"{size(node.nbytes)}, {plural(node.count, 'tensor')}"
    return trimmed(root, most)


def _path(name: str, separator: str) -> tuple[list[str], str]:
    """The modules of a name, and its own word."""
    if name == NO_MODULE:
        return [], name
    words = name.split(separator, MAX_LEVELS)
    return words[:-1], words[-1]


def _modules(path: list[str], modules: dict[str, TreemapNode], separator: str) -> Iterator[TreemapNode]:
    """The modules on the way to a tensor; new ones are added to those around them."""
    place, above = "", modules[""]
    for word in path:
        place = f"{place}{separator}{word}"
        if place not in modules:
            modules[place] = TreemapNode(word, count=0)
            above.children.append(modules[place])
        above = modules[place]
        yield above


def by_numbers(name: str) -> list[str | int]:
    """A key that sorts `2` before `10`: the order in which a treemap has what is equally large.

    >>> sorted(["h10", "h9", "ln"], key=by_numbers)
    ['h9', 'h10', 'ln']
    """
    return [int(part) if k % 2 else part for k, part in enumerate(re.split("([0-9]{1,15})", name))]


def parts(tensors: Iterable[StoredTensor]) -> dict[tuple[str, str], int]:
    """{(role, mark): bytes}, in the order of the tables."""
    found: dict[tuple[str, str], int] = {}
    for one in tensors:
        key = one.role, one.marks
        found[key] = found.get(key, 0) + one.nbytes
    order = [(role, mark) for role in (*TINTS, UNUSED) for mark in ("", *MARKS)]
    return {key: found[key] for key in order if key in found}
