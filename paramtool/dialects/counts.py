"""How many experts a model has: its tensors against its config.

A list of experts does not show that its last one is missing, and a stack fits whatever its length is; the config says
how many there are.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from paramtool.errors import LayoutError
from paramtool.parts.config_facts import PLAIN, config_of, from_config, tower_of
from paramtool.parts.pieces import Stored

STACK = re.compile(r"\.experts\.(gate_up|gate|up|down)_proj$")
"""Tensors of `transformers-5` whose first axis is that of experts, if they have three."""
LISTED = re.compile(r"\.experts\.([0-9]{1,9})\.")
"""The number of an expert in the name of a tensor of its own."""


def check_experts(made: Iterable[Stored], config: Mapping[str, Any], names: Container[str]) -> None:
    """LayoutError where stacks of `transformers-5` hold another number of experts than the config says.

    `names` are those of the file: the error is about one of them.
    """
    known: dict[str | None, _Count] = {}
    for one in made:
        if len(one.shape) != 3 or not STACK.search(one.name):
            continue
        part = one.pieces[0].part
        for name in (part, one.name):
            tower = tower_of(name, config)
            if tower not in known:
                known[tower] = _Count(0, "") if tower is None else _expected(config, tower)
            if (expected := known[tower]).number:
                _check(part if part in names else one.name, one, expected)
                break


class _Count(NamedTuple):
    number: int
    """0 where nothing says it."""
    said: str


def _expected(config: Mapping[str, Any], tower: str) -> _Count:
    try:
        facts = from_config(config, tower)
    except LayoutError:  # about other sizes, which no rule here needs
        inner = config_of(config, tower)[1]
        said = {key: inner[key] for key in PLAIN["experts"] if type(inner.get(key)) is int}
        return next((_Count(number, f"config.json: {key}") for key, number in said.items()), _Count(0, ""))
    return _Count(facts.sizes.get("experts", 0), facts.said.get("experts", ""))


def _check(name: str, stack: Stored, expected: _Count) -> None:
    found = stack.shape[0]
    if found != expected.number:
        there = {int(number[1]) for piece in stack.pieces if (number := LISTED.search(piece.part))}
        lacking = [f"no expert {k}" for k in range(min(expected.number, 1 + max(there, default=-1))) if k not in there]
        raise LayoutError(
            f"{name!r}: found {found} experts, expected {expected.number}: {', '.join([expected.said, *lacking[:4]])}",
            hint="the file lacks experts or has too many, or config.json is of another model",
        )
