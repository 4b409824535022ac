"""Schedules of learning rates, which keep lists with an item for each group of their optimizer.

    {"base_lrs": [0.1, 0.01], "_last_lr": [0.05, 0.005], "last_epoch": 3}       torch 2.13 (optim/lr_scheduler.py)

Where a group of an optimizer ends, its items go.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from paramtool.model.objects import Mapping, Node, Sequence, map_children

SIGNS = ("base_lrs", "_last_lr")
"""A mapping with a list of one of these names is a schedule's."""
LISTS = (*SIGNS, "lr_lambdas", "max_lrs", "min_lrs", "base_momentums", "max_momentums")
"""What torch's schedules keep for each group."""


def of_groups(node: Node, count: int) -> bool:
    """Whether a tree has a schedule for an optimizer of this many groups."""
    found = []

    def look(child: Node) -> Node:
        if _is_schedule(child, count):
            found.append(child)
        return map_children(child, look)

    look(node)
    return bool(found)


def without_groups(node: Node, count: int, gone: Collection[int]) -> Node:
    """A tree whose schedules for `count` groups have no items of those that are gone."""
    made = map_children(node, lambda child: without_groups(child, count, gone))
    if not isinstance(made, Mapping) or not _is_schedule(made, count):
        return made
    items = tuple((key, _shortened(child, count, gone) if key in LISTS else child) for key, child in made.items)
    return replace(made, items=items)


def _is_schedule(node: Node, count: int) -> bool:
    if not isinstance(node, Mapping):
        return False
    return any(key in SIGNS and isinstance(child, Sequence) and len(child.items) == count for key, child in node.items)


def _shortened(node: Node, count: int, gone: Collection[int]) -> Node:
    if not isinstance(node, Sequence) or len(node.items) != count:
        return node
    return replace(node, items=tuple(item for k, item in enumerate(node.items) if k not in gone))
