"""The groups of parts in a checkpoint, by the names of tensors: apart, to be fused, and fused, to be taken apart.

    h.0.attn.q_proj.weight, h.0.attn.k_proj.weight, h.0.attn.v_proj.weight     a group `qkv` at h.0.attn
    h.0.attn.q_proj.bias, ...                                                  its biases
    h.0.mlp.experts.0.gate_proj.weight, ..., h.0.mlp.experts.7.down_proj.weight   `experts` at h.0.mlp.experts
    h.0.attn.query_key_value.weight, h.0.attn.in_proj_weight                   fused

A group that lacks a part is an error and never half fused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from paramtool.errors import LayoutError, listed, plural, some
from paramtool.parts.layout import PartGroup, PartLayout
from paramtool.parts.words import LAYER_STACKS

FUSED_NAMES: Mapping[str, tuple[str, ...]] = {
    "qkv": (
        "qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "in_proj", "W_pack", "wqkv", "att_proj", "linear_qkv",
        "attn_qkv", "qkv_linear", "QKV",
    ),
    "kv": ("kv_proj", "c_attn", "linear_kv", "kv", "to_kv"),
    "qk": ("qk_proj",),
    "q-gate": ("q_proj",),
    "qkv-gate": ("linear_qkv", "qkv_proj"),
    "qkv-scalar-gate": ("linear_qkv", "qkv_proj"),
    "gate-up": (
        "gate_up_proj", "ff_proj", "up_gate_proj", "linear_fc1", "dense_h_to_4h", "input_linear", "weights_in", "w13",
        "gate_up", "Wi",
    ),
    "convs": ("conv1d",),
}  # fmt: skip
"""{kind of a group: what files call the tensor that holds it}; docs/layouts.md says who."""
STACK_NAMES: Mapping[tuple[str, ...], tuple[tuple[str, ...], ...]] = {
    ("gate_up_proj", "down_proj"): (("w13", "w2"), LAYER_STACKS),
}
"""{the stacks of a layout: what other files call them}"""
WEIGHTS = ("", "weight", "qweight", "weight_packed", "blocks")
"""What the weight of a module is called behind the module's name, packed or not."""
BARE_SEPARATOR = "_"
"""Between a bare tensor's name and the kind of its companion: `gate_up_proj_bias`, `in_proj_weight`."""
_NUMBER = re.compile(r"(.*)\.([0-9]{1,18})")
LISTED = 4
"""So many missing experts are listed."""


class GroupMember(NamedTuple):
    """One tensor of each part of a group: all weights, or all biases."""

    suffix: str
    """`weight`, `bias`, or the name of a companion."""
    tensors: Mapping[str, tuple[str, ...]]
    """{term: its tensors, one for each expert, else one}"""


class ApartGroup(NamedTuple):
    """A group whose parts are tensors of their own."""

    at: str
    """The module that has them."""
    names: tuple[str, ...]
    """What its parts are called."""
    members: tuple[GroupMember, ...]


class FusedGroup(NamedTuple):
    """A group whose parts are in fused tensors."""

    at: str
    """The module that has it."""
    names: tuple[str, ...]
    """What its fused tensors are called, in the order of the layout's rows."""
    members: tuple[tuple[str, tuple[str, ...]], ...]
    """(suffix, the fused tensors in the order of the rows)"""


def _split(name: str, wanted: Container[str]) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix) at every dot before a name that is wanted."""
    words = name.split(".")
    for k in [k for k, word in enumerate(words) if word in wanted]:
        yield ".".join(words[:k]), words[k], ".".join(words[k + 1 :])


def joined(*words: str) -> str:
    """Words of a name that are not empty, with dots."""
    return ".".join(word for word in words if word)


def apart(names: Iterable[str], kind: PartGroup, at: Sequence[str], where: str) -> list[ApartGroup]:
    """The groups of a kind whose parts are apart, in the order of the file; LayoutError where one is incomplete.

    `at` are patterns of modules; a pattern that matches none is an error.  Without it only groups that have all parts,
    or two of their usual names, are looked at.
    """
    variants = {part: variant for variant in reversed(list(kind.names)) for part in variant}
    found: dict[tuple[str, tuple[str, ...]], dict[tuple[str, int], dict[str, str]]] = {}
    for name in names:
        for module, child, suffix in _split(name, variants):
            if not suffix and not kind.inside:
                continue
            expert, base = 0, module
            if kind.inside:
                numbered = _NUMBER.fullmatch(module)
                if numbered is None:
                    continue
                base, expert = numbered[1], int(numbered[2])
            found.setdefault((base, variants[child]), {}).setdefault((suffix, expert), {})[child] = name
    groups = []
    problems: list[str] = []
    for (base, variant), tensors in found.items():
        if at and not any(fnmatchcase(base, pattern) for pattern in at):
            continue
        made, problem = _apart_group(base, variant, kind, tensors)
        if made is not None:
            groups.append(made)
        elif problem and (at or _is_usual(kind, variant, tensors)):
            problems.append(problem)
    if problems:
        head = f"{where}: {plural(len(problems), 'group')} of parts cannot be fused:"
        raise LayoutError(
            listed(head, problems), hint="--at MODULE chooses others; the names are those of `paramtool inspect`"
        )
    _check_found(groups, at, where, f"parts called {' '.join(kind.parts.values())}")
    return groups


def _is_usual(kind: PartGroup, variant: tuple[str, ...], tensors: Mapping[tuple[str, int], Mapping[str, str]]) -> bool:
    """Whether an incomplete group is one, and not a module that happens to have a name of a part."""
    seen = {child for one in tensors.values() for child in one}
    return (variant == tuple(kind.parts.values()) or bool(kind.inside)) and len(seen) > 1


def _apart_group(
    base: str,
    variant: tuple[str, ...],
    kind: PartGroup,
    tensors: Mapping[tuple[str, int], Mapping[str, str]],
) -> tuple[ApartGroup | None, str]:
    """A group, or what is wrong with it."""
    seen = {child for one in tensors.values() for child in one}
    if lacking := [child for child in variant if child not in seen]:
        return None, f"{base or '(top)'}: has {', '.join(sorted(seen))} and no {', '.join(lacking)}"
    suffixes = dict.fromkeys(suffix for suffix, _ in tensors)
    experts = sorted({expert for _, expert in tensors})
    if kind.inside and experts[-1] >= len(experts):
        missing = _missing(experts)
        return None, f"{base}: has {plural(len(experts), 'expert')} and no expert {missing}"
    members = []
    for suffix in suffixes:
        parts: dict[str, tuple[str, ...]] = {}
        for term, child in zip(kind.parts, variant, strict=True):
            own = [tensors.get((suffix, expert), {}).get(child) for expert in experts]
            if None in own:
                called = joined(base, f"{experts[own.index(None)]}" if kind.inside else "", child, suffix)
                others = [c for c in variant if any(c in tensors.get((suffix, e), {}) for e in experts)]
                return None, f"{called!r} is missing; {', '.join(others)} have {suffix or 'it'}"
            parts[term] = tuple(name for name in own if name is not None)
        members.append(GroupMember(suffix, parts))
    return ApartGroup(base, variant, tuple(members)), ""


def _missing(experts: Sequence[int]) -> str:
    """The numbers that are left out; a name can have a number so large that they cannot be listed.

    >>> _missing([0, 3, 7])
    '1, 2, 4, 5 and 1 more'
    """
    there = set(experts)
    first = [str(k) for k in islice((k for k in range(experts[-1]) if k not in there), LISTED)]
    more = experts[-1] + 1 - len(there) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def fused(names: Iterable[str], layout: PartLayout, at: Sequence[str], where: str) -> list[FusedGroup]:
    """The groups that have fused tensors of a layout, in the order of the file.

    `at` are patterns of modules, or of fused tensors' modules: `*.attn`, `*.attn.qkv`.
    """
    rows = layout.tensors
    variants = _variants(layout)
    usual = [dict.fromkeys(variant[k] for variant in variants) for k in range(len(rows))]
    found: dict[str, dict[str, dict[int, tuple[str, str]]]] = {}
    for name in names:
        for base, child, suffix in _children(name):
            for k, row in enumerate(rows):
                chosen = any(fnmatchcase(base, p) or fnmatchcase(joined(base, child), p) for p in at)
                named = suffix.count(".") < 2 and any(fnmatchcase(joined(base, child), pattern) for pattern in at)
                is_layer = suffix.startswith(".") and child not in LAYER_STACKS
                if (row.is_bare and is_layer) or (at and not chosen):
                    continue
                if child in usual[k] or (named and len(rows) == 1):
                    found.setdefault(base, {}).setdefault(suffix, {})[k] = (child, name)
    groups = []
    for base, by_suffix in found.items():
        weights = next((by_suffix[suffix] for suffix in by_suffix if suffix.lstrip("._") in WEIGHTS), None)
        if weights is None:
            continue
        if len(weights) < len(rows):
            lacking = [row.name for k, row in enumerate(rows) if k not in weights]
            there = [child for child, _ in weights.values()]
            if at:
                raise LayoutError(f"{where}: {base!r} has {', '.join(there)} and no {', '.join(lacking)}")
            continue
        children = tuple(weights[k][0] for k in range(len(rows)))
        if len(rows) > 1 and children not in variants:
            continue
        members = []
        for suffix, tensors in by_suffix.items():
            if any(tensors[k][0] != children[k] for k in tensors):
                continue
            members.append((suffix, tuple(tensors[k][1] if k in tensors else "" for k in range(len(rows)))))
        groups.append(FusedGroup(base, children, tuple(members)))
    _check_found(groups, at, where, f"tensors called {' '.join(dict.fromkeys(n for one in usual for n in one))}")
    return groups


def _variants(layout: PartLayout) -> list[tuple[str, ...]]:
    """What files call the fused tensors of a layout, the usual names first."""
    own = tuple(row.name for row in layout.tensors)
    others = STACK_NAMES.get(own, ()) if len(own) > 1 else ((name,) for name in FUSED_NAMES.get(layout.group, ()))
    return list(dict.fromkeys((own, *others)))


def _children(name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix with its separator): `attn.in_proj_weight` is `in_proj` with `_weight`, too."""
    for base, child, suffix in _split(name, name.split(".")):
        yield base, child, f".{suffix}" if suffix else ""
        if not suffix:
            for kind in ("weight", "bias"):
                if child.endswith(f"{BARE_SEPARATOR}{kind}"):
                    yield base, child.removesuffix(f"{BARE_SEPARATOR}{kind}"), f"{BARE_SEPARATOR}{kind}"


def _check_found(groups: Sequence[object], at: Sequence[str], where: str, what: str) -> None:
    if groups:
        return
    said = f" at {some(at, 3)}" if at else ""
    raise LayoutError(
        f"{where}: has no {what}{said}",
        hint="--at 'PATTERN' names the modules, such as '*.attn'; `paramtool inspect` shows the names",
    )
