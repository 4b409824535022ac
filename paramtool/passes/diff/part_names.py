"""Which tensors of two checkpoints could be parts, and which fused tensors of them, by their names.

    A   h.0.attn.q_proj.weight, k_proj, v_proj     apart: a ModuleParts of each kind that has these names
    B   l.0.attention.query_key_value.weight       a FusedTensorName of each row of each layout that has this name

Modules of the two are told apart by names only where several could be meant: those that other tensors show come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from paramtool.parts.layout import FusedRow, PartGroup, PartLayout, all_groups, all_part_layouts
from paramtool.parts.words import APART
from paramtool.passes.parts.fused_names import split, variants_of

_NUMBER = re.compile(r"(.*)\.([0-9]{1,18})")
WEIGHT = "weight"
BARE = ("_weight", "_bias")
"""How a tensor's own name says what it is: `in_proj_weight`."""


class ModuleParts(NamedTuple):
    """Tensors that have the names of parts of one kind, in one module."""

    kind: str
    at: str
    suffix: str
    """`weight`, `bias`, or what else follows the names."""
    tensors: Mapping[str, tuple[str, ...]]
    """{term: its tensors, one for each expert, else one}"""


class FusedTensorName(NamedTuple):
    """A tensor that has the name of a row of a layout."""

    layout: PartLayout
    row: FusedRow
    at: str
    suffix: str
    name: str


class FusedModule(NamedTuple):
    """The fused tensors of one layout in one module."""

    layout: PartLayout
    at: str
    suffix: str
    tensors: tuple[FusedTensorName, ...]

    @property
    def terms(self) -> set[str]:
        """The parts in them."""
        return {term for one in self.tensors for term in one.row.terms()}


def modules(tensors: Iterable[FusedTensorName]) -> list[FusedModule]:
    """Fused tensors by their modules, one for each row."""
    found: dict[tuple[str, str, str], dict[str, FusedTensorName]] = {}
    for one in tensors:
        found.setdefault((one.layout.name, one.at, one.suffix), {}).setdefault(one.row.name, one)
    every = [tuple(rows.values()) for rows in found.values()]
    return [FusedModule(rows[0].layout, rows[0].at, rows[0].suffix, rows) for rows in every]


def parts_in(names: Iterable[str]) -> dict[str, list[ModuleParts]]:
    """{kind: tensors with the names of all its parts}, in the order of the names."""
    every = list(names)
    return {kind.kind: list(_of_kind(every, kind)) for kind in all_groups()}


def _of_kind(names: Iterable[str], kind: PartGroup) -> Iterator[ModuleParts]:
    """The groups of one kind that have every part, and as many experts of each."""
    ways = _ways(kind)
    children = {child for way in ways for child in way}
    found: dict[tuple[str, str], dict[str, dict[int, str]]] = {}
    for name in names:
        for module, child, suffix in split(name, children):
            base, expert = module, 0
            if kind.inside:
                numbered = _NUMBER.fullmatch(module)
                if numbered is None:
                    continue
                base, expert = numbered[1], int(numbered[2])
            found.setdefault((base, suffix or WEIGHT), {}).setdefault(child, {})[expert] = name
    for (base, suffix), there in found.items():
        for way in ways:
            tensors = {term: there.get(child, {}) for term, child in zip(kind.parts, way, strict=True)}
            counts = {len(own) for own in tensors.values()}
            if counts == {0} or len(counts) > 1 or any(max(own) >= len(own) for own in tensors.values()):
                continue
            ordered = {term: tuple(own[k] for k in range(len(own))) for term, own in tensors.items()}
            yield ModuleParts(kind.kind, base, suffix, ordered)


def _ways(kind: PartGroup) -> tuple[tuple[str, ...], ...]:
    """The names of a kind's parts, in each way that files have them."""
    if kind.kind == "rope":
        return tuple(names[:2] for names in APART["qkv"])
    return tuple(kind.names)


def fused_in(names: Iterable[str]) -> list[FusedTensorName]:
    """The tensors that have the name of a row of a layout, once for each row, in the order of the layouts."""
    known = _rows()
    found = []
    for name in names:
        for at, child, suffix in _children(name):
            found += [
                (number, FusedTensorName(one, row, at, suffix, name)) for number, one, row in known.get(child, ())
            ]
    return [one for _, one in sorted(found, key=lambda item: item[0])]


@cache
def _rows() -> Mapping[str, list[tuple[int, PartLayout, FusedRow]]]:
    """{name of a fused tensor in its module: (number, layout, row)}"""
    found: dict[str, dict[tuple[str, str], tuple[int, PartLayout, FusedRow]]] = {}
    for number, layout in enumerate(all_part_layouts()):
        for k, row in enumerate(layout.tensors):
            own = {variant[k] for variant in variants_of(layout)}
            if layout.group == "rope":
                own |= {names[k] for names in APART["qkv"]}
            for name in own:
                found.setdefault(name, {})[layout.name, row.name] = (number, layout, row)
    return {name: list(rows.values()) for name, rows in found.items()}


def _children(name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, what follows): `attn.in_proj_weight` is `in_proj` with `weight`, too."""
    known = _rows()
    words = name.split(".")
    for k, word in enumerate(words):
        at, rest = ".".join(words[:k]), ".".join(words[k + 1 :])
        if word in known:
            yield at, word, rest or WEIGHT
        if not rest:
            for end in BARE:
                if word.endswith(end) and word.removesuffix(end) in known:
                    yield at, word.removesuffix(end), end[1:]
