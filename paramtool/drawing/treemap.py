"""A treemap: rectangles inside rectangles, each as large as the bytes that it stands for.

The page's script lays the same tree out again when somebody opens a module or the window changes, by the same rules
(`page.js`, `squarify` and `boxes`); a test compares both.  Squarified: Bruls, Huizing and van Wijk, 2000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from paramtool.drawing.markup import EMPTY, Markup, data, readable, short, svg, tag

HEAD, PAD = 17.0, 2.0
"""Pixels above what is in a module, for its name, and around it."""
LEAST = 34.0
"""A module with a shorter side is drawn as one rectangle."""
MIN_HEADED = 48.0
"""A module with a shorter side has no line for its name."""
MIN_SIDE = 1.5
"""Rectangles with a shorter side are not drawn: the module around them shows through."""
MAX_DEPTH = 8
"""Modules inside modules that are drawn at once."""
LETTER = 6.7
"""Pixels of a letter in the figures' font, which is monospaced at 11 pixels."""
LINE = 14.0


@dataclass(slots=True)
class TreemapNode:
    """A module, or a tensor."""

    name: str
    nbytes: int = 0
    """With everything inside."""
    tint: str = "blue"
    marks: str = ""
    """What a pattern shows over the tint: `shared`, `equal`, `unused`; empty for nothing."""
    words: str = ""
    """What is said of it: its type, shape and bytes."""
    count: int = 1
    """How many tensors."""
    children: list[TreemapNode] = field(default_factory=list)


class DrawnNode(NamedTuple):
    """Where a node is drawn, in pixels."""

    node: TreemapNode
    x: float
    y: float
    width: float
    height: float
    depth: int
    is_open: bool
    """Whether what is inside is drawn over it."""


Rect = tuple[float, float, float, float]
"""(x, y, width, height)"""


def squarify(values: Sequence[float], rect: Rect) -> list[Rect]:
    """Rectangles of areas in the ratio of positive values, which descend, that fill one; as square as can be.

    >>> squarify([2, 1, 1], (0, 0, 4, 4))
    [(0, 0.0, 2.0, 4.0), (2.0, 0, 2.0, 2.0), (2.0, 2.0, 2.0, 2.0)]
    """
    x, y, width, height = rect
    found: list[Rect] = []
    total = float(sum(values))
    k = 0
    while k < len(values):
        side = min(width, height)
        scale = width * height / total if total > 0 else 0.0
        # Where a row of rectangles along the shorter side ends, and the sum of its values
        row = float(values[k])
        worst = _worst(values[k], values[k], row, side, scale=scale)
        stop = k + 1
        while stop < len(values):
            longer = row + values[stop]
            worse = _worst(values[k], values[stop], longer, side, scale=scale)
            if worse > worst:
                break
            row, worst, stop = longer, worse, stop + 1
        thick = row * scale / side if side > 0 else 0.0
        place = 0.0
        for value in values[k:stop]:
            part = value / row * side
            found.append((x, y + place, thick, part) if width >= height else (x + place, y, part, thick))
            place += part
        if width >= height:
            x, width = x + thick, max(0.0, width - thick)
        else:
            y, height = y + thick, max(0.0, height - thick)
        total -= row
        k = stop
    return found


def _worst(most: float, least: float, row: float, side: float, *, scale: float) -> float:
    """The worst ratio of sides in a row."""
    area = row * scale
    if side <= 0 or area <= 0:
        return 0.0
    return max(side * side * most * scale / (area * area), area * area / (side * side * least * scale))


def boxes(root: TreemapNode, width: float, height: float) -> Iterator[DrawnNode]:
    """The rectangles of everything inside a module, a module before what is inside it."""
    stack = [DrawnNode(root, 0.0, 0.0, width, height, 0, True)]
    while stack:
        box = stack.pop()
        if box.depth:
            yield box
        if box.is_open:
            stack += reversed(list(_inside(box)))


def _inside(box: DrawnNode) -> Iterator[DrawnNode]:
    if box.depth:
        head = HEAD if has_head(box.width, box.height) else PAD
        place = (box.x + PAD, box.y + head, box.width - 2 * PAD, box.height - head - PAD)
    else:
        place = (box.x, box.y, box.width, box.height)
    nodes = sorted((one for one in box.node.children if one.nbytes > 0), key=lambda one: -one.nbytes)
    for node, (x, y, width, height) in zip(nodes, squarify([one.nbytes for one in nodes], place), strict=True):
        if min(width, height) < MIN_SIDE:
            continue
        opens = bool(node.children) and min(width, height) >= LEAST and box.depth + 1 < MAX_DEPTH
        yield DrawnNode(node, x, y, width, height, box.depth + 1, opens)


def has_head(width: float, height: float) -> bool:
    """Whether a module has room for its name."""
    return height >= MIN_HEADED and width >= MIN_HEADED


def trimmed(root: TreemapNode, most: int) -> TreemapNode:
    """The tree with the largest `most` nodes; the others of a module become one, which says how many they are."""
    order: list[tuple[int, int, TreemapNode]] = []
    stack = [(0, root)]
    while stack:
        depth, node = stack.pop()
        order.append((-node.nbytes, depth, node))
        stack += ((depth + 1, child) for child in node.children)
    if len(order) <= most:
        return root
    order.sort(key=lambda one: one[:2])
    return _trimmed(root, {id(node) for _, _, node in order[:most]})


def _trimmed(node: TreemapNode, kept: set[int]) -> TreemapNode:
    """One node without what is not kept below it; a loop, since names can be nested deeply."""
    copies = {id(node): replace(node, children=[])}
    stack = [node]
    while stack:
        one = stack.pop()
        rest: list[TreemapNode] = []
        for child in one.children:
            if id(child) in kept:
                copies[id(child)] = replace(child, children=[])
                copies[id(one)].children.append(copies[id(child)])
                stack.append(child)
            else:
                rest.append(child)
        if rest:
            count, tints = sum(one.count for one in rest), {one.tint for one in rest}
            words = f"{count:,} more tensor{'' if count == 1 else 's'} of this module, drawn as one"
            tint = tints.pop() if len(tints) == 1 else "grey"
            copies[id(one)].children.append(
                TreemapNode(f"{count:,} more", sum(one.nbytes for one in rest), tint, "", words, count)
            )
    return copies[id(node)]


def as_data(root: TreemapNode) -> Markup:
    """The tree for the page's script: [name, bytes, tint, marks, words, count, children] each."""
    made: dict[int, list[object]] = {}
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if not is_done:
            stack.append((node, True))
            stack += ((child, False) for child in node.children)
            continue
        children = [made.pop(id(child)) for child in node.children]
        made[id(node)] = [
            readable(node.name), node.nbytes, node.tint, node.marks, readable(node.words), node.count, children
        ]  # fmt: skip
    return data(made[id(root)])


def picture(root: TreemapNode, label: str, *, width: float = 1040.0, height: float = 520.0, most: int = 1500) -> Markup:
    """The treemap as it is before anybody opens a module, or where no script runs."""
    return svg(label, width, height, *map(_drawn, islice(boxes(root, width, height), most)), class_="map")


def _drawn(box: DrawnNode) -> Markup:
    inside = {"x": box.x, "y": box.y, "width": max(0.5, box.width - 1), "height": max(0.5, box.height - 1)}
    node = box.node
    mark = tag("rect", **inside, class_=f"m-{node.marks}") if node.marks and not box.is_open else EMPTY
    kind = "frame" if box.is_open else f"t-{node.tint}"
    return tag(
        "g", tag("title", f"{readable(node.name)}: {node.words}"), tag("rect", **inside, class_=f"box {kind}"), mark,
        _label(box),
    )  # fmt: skip


def _label(box: DrawnNode) -> Markup:
    letters = int((box.width - 8) / LETTER)
    has_room = has_head(box.width, box.height) if box.is_open else box.height >= LINE + 2
    text = short(box.node.name, letters) if has_room else ""
    halo = f"k-{box.node.tint}" if box.node.marks else None
    return tag("text", text, x=box.x + 4, y=box.y + 12.5, class_=halo) if text else EMPTY
