"""Laws of treemaps: rectangles fill their module in the ratio of their bytes, and a tree that is cut loses nothing."""

from __future__ import annotations

import json
from itertools import combinations
from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from paramtool.drawing import treemap
from paramtool.drawing.markup import readable
from paramtool.drawing.treemap import TreemapNode, as_data, boxes, squarify, trimmed

VALUES = st.lists(st.integers(1, 10**12), min_size=1, max_size=40).map(lambda values: sorted(values, reverse=True))
SIDE = st.floats(1, 2000)


@given(VALUES, SIDE, SIDE)
def test_rectangles_fill_their_module_in_the_ratio_of_their_values(values: list[int], w: float, h: float) -> None:
    found = squarify(values, (0.0, 0.0, w, h))
    assert len(found) == len(values)
    for value, (x, y, width, height) in zip(values, found, strict=True):
        assert isclose(width * height, value / sum(values) * w * h, rel_tol=1e-6, abs_tol=1e-6 * w * h)
        assert x >= 0 and y >= 0 and x + width <= w * (1 + 1e-6) and y + height <= h * (1 + 1e-6)
    for (x, y, width, height), (a, b, wide, high) in combinations(found, 2):
        apart = min(x + width, a + wide) - max(x, a), min(y + height, b + high) - max(y, b)
        assert min(apart) <= 1e-6 * max(w, h)


def test_equal_values_in_a_square_are_squares() -> None:
    """What `squarified` means: no rectangle of sixteen alike is longer than wide."""
    assert all(isclose(width, height) for _, _, width, height in squarify([1] * 16, (0, 0, 100, 100)))


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> TreemapNode:
    children = draw(st.lists(trees(depth - 1), max_size=5)) if depth else []
    if not children:
        return TreemapNode(draw(st.text(max_size=4)), draw(st.integers(0, 10**6)))
    return TreemapNode(
        "module", sum(one.nbytes for one in children), count=sum(one.count for one in children), children=children
    )


def nodes(root: TreemapNode) -> list[TreemapNode]:
    return [root, *(below for one in root.children for below in nodes(one))]


@given(trees(), st.integers(1, 30))
def test_a_tree_that_is_cut_has_all_bytes_and_all_tensors(root: TreemapNode, most: int) -> None:
    cut = trimmed(root, most)
    assert (cut.nbytes, cut.count) == (root.nbytes, root.count)
    for node in nodes(cut):
        if node.children:
            assert node.nbytes == sum(one.nbytes for one in node.children)
            assert node.count == sum(one.count for one in node.children)
    assert len(nodes(cut)) <= 2 * most + 1  # each kept module may have one node for the others
    if len(nodes(root)) <= most:
        assert cut is root


@given(trees(), st.floats(200, 1200), st.floats(200, 800))
def test_what_is_inside_a_module_is_drawn_inside_it(root: TreemapNode, width: float, height: float) -> None:
    found = list(boxes(root, width, height))
    for box in found:
        inside = [one for one in found if any(one.node is child for child in box.node.children)]
        for one in inside:
            assert box.x <= one.x + 1e-6 and one.x + one.width <= box.x + box.width + 1e-6
            assert box.y <= one.y + 1e-6 and one.y + one.height <= box.y + box.height + 1e-6
        assert box.is_open or not inside
        assert box.depth <= treemap.MAX_DEPTH


@given(trees())
def test_the_data_of_the_script_is_the_tree(root: TreemapNode) -> None:
    def rows(node: TreemapNode) -> list[object]:
        return [
            readable(node.name), node.nbytes, node.tint, node.marks, node.words, node.count,
            [rows(one) for one in node.children],
        ]  # fmt: skip

    assert json.loads(as_data(root)) == rows(root)
