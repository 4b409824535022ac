"""How many experts a model has: its tensors against its config.

A list of experts does not show that its last one is missing, and a stack fits whatever its length is; the config says
how many there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from paramtool.errors import LayoutError, plural
from paramtool.parts.config_facts import config_of, from_config, tower_of
from paramtool.parts.facts import KEYS, Facts
from paramtool.parts.pieces import Stored

STACK = re.compile(r"\.experts\.(gate_up|gate|up|down)_proj$")
"""Tensors of `transformers-5` whose first axis is that of experts, if they have three."""
LISTED = re.compile(r"(.*\.experts)\.([0-9]{1,18})\.")
"""The module of an expert and its number, in the name of a separate tensor."""
SHOWN = 4
"""At most this number of missing experts is listed."""


class _Count(NamedTuple):
    number: int
    """0 where nothing says it."""
    said: str


def check_stacks(made: Iterable[Stored], config: Mapping[str, Any], names: Container[str]) -> None:
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
                if one.shape[0] != expected.number:
                    numbers = {int(found[2]) for piece in one.pieces if (found := LISTED.match(piece.part))}
                    raise _refusal(part if part in names else one.name, one.shape[0], numbers, expected)
                break


def check_lists(hub: Iterable[str], facts: Callable[[str], Facts]) -> None:
    """LayoutError where lists of experts, by the names of `transformers-4`, have others than the facts say."""
    lists: dict[str, set[int]] = {}
    for name in hub:
        if found := LISTED.match(name):
            lists.setdefault(found[1], set()).add(int(found[2]))
    for at, numbers in lists.items():
        known = facts(at)
        expected = _Count(known.sizes.get("experts", 0), known.said.get("experts", ""))
        if expected.number and (len(numbers) != expected.number or max(numbers) >= expected.number):
            raise _refusal(at, len(numbers), numbers, expected)


def _expected(config: Mapping[str, Any], tower: str) -> _Count:
    try:
        facts = from_config(config, tower)
    except LayoutError:  # about other sizes, which no rule here needs
        inner = config_of(config, tower)[1]
        said = {key: inner[key] for key in KEYS["experts"] if type(inner.get(key)) is int}
        return next((_Count(number, f"config.json: {key}") for key, number in said.items()), _Count(0, ""))
    return _Count(facts.sizes.get("experts", 0), facts.said.get("experts", ""))


def _refusal(name: str, count: int, numbers: Collection[int], expected: _Count) -> LayoutError:
    """The error for another number of experts than expected; `numbers` are those of a list."""
    lacking = islice((k for k in range(expected.number) if k not in numbers), SHOWN) if numbers else ()
    missing = ", ".join(map(str, lacking))
    return LayoutError(
        f"{name!r}: found {plural(count, 'expert')}, expected {expected.number}: {expected.said}"
        + (f"; missing: {missing}" if missing else ""),
        hint="the file lacks experts or has too many, or config.json is of another model",
    )
