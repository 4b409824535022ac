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
from paramtool.parts.layout import PartGroup, PartLayout, all_groups, all_part_layouts, group
from paramtool.parts.schemes import PAIR, is_companion, shows_weight
from paramtool.parts.words import FUSED_NAMES, LAYER_STACKS, STACK_NAMES, Names, joined, kind_in

_NUMBER = re.compile(r"(.*)\.([0-9]{1,18})")
LISTED = 4
"""At most this number of missing experts is listed."""


class GroupMember(NamedTuple):
    """One tensor of each part of a group: all weights, or all biases."""

    suffix: str
    """`weight`, `bias`, or the name of a companion."""
    tensors: Mapping[str, Names]
    """{term: its tensors, one for each expert, else one}"""


class ApartGroup(NamedTuple):
    """A group whose parts are separate tensors."""

    at: str
    """The module that has them."""
    names: Names
    """What its parts are called."""
    members: tuple[GroupMember, ...]


class FusedGroup(NamedTuple):
    """A group whose parts are in fused tensors."""

    at: str
    """The module that has it."""
    names: Names
    """What its fused tensors are called, in the order of the layout's rows."""
    members: tuple[tuple[str, Names], ...]
    """(suffix, the fused tensors in the order of the rows)"""


def apart(names: Iterable[str], kind: PartGroup, at: Sequence[str], where: str) -> list[ApartGroup]:
    """The groups of a kind whose parts are apart, in the order of the file; LayoutError where one is incomplete.

    `at` are patterns of modules; a pattern that matches none is an error.  Without it only groups that have all parts,
    or two of their usual names, are looked at.
    """
    variants = {part: variant for variant in reversed(list(kind.names)) for part in variant}
    found: dict[tuple[str, Names], dict[tuple[str, int], dict[str, str]]] = {}
    for base, expert, child, suffix, name in named_parts(names, variants, kind):
        if suffix or kind.inside:
            found.setdefault((base, variants[child]), {}).setdefault((suffix, expert), {})[child] = name
    groups = []
    problems: list[str] = []
    for (base, variant), tensors in found.items():
        if at and not any(fnmatchcase(base, pattern) for pattern in at):
            continue
        made, problem = _apart_group(base, variant, kind, tensors)
        if made is not None:
            groups.append(made)
        elif at or (
            # it is one, and not a module that happens to have a name of a part
            (variant == tuple(kind.parts.values()) or kind.inside)
            and len({child for one in tensors.values() for child in one}) > 1
        ):
            problems.append(problem)
    if problems:
        head = f"{where}: {plural(len(problems), 'group')} of parts cannot be fused:"
        raise LayoutError(listed(head, problems), hint="--at MODULE chooses others; the names are those of `inspect`")
    _check_found(groups, at, where, f"parts called {' '.join(kind.parts.values())}")
    return groups


def named_parts(
    names: Iterable[str], called: Container[str], kind: PartGroup
) -> Iterator[tuple[str, int, str, str, str]]:
    """(module, number of its expert or 0, name in it, suffix, tensor) of tensors that are called like parts."""
    for name in names:
        for module, child, suffix in split(name, called):
            if not kind.inside:
                yield module, 0, child, suffix, name
            elif numbered := _NUMBER.fullmatch(module):
                yield numbered[1], int(numbered[2]), child, suffix, name


def refuse_more(found: Iterable[ApartGroup], layout: PartLayout, names: Container[str]) -> None:
    """LayoutError for groups with one more part, which other layouts hold and this one does not: a gate beside q, k, v.

    Parts that are a choice of those of another kind, such as k and v, are fused as they are.
    """
    kind = group(layout.group)
    usual = tuple(kind.parts.values())
    wider = [one for one in all_groups() if {*one.parts.values()} > {*usual} and len(usual) > 2 and not one.inside]
    lines: list[str] = []
    holding: dict[str, None] = {}
    for one in found:
        for other in wider if one.names == usual else ():
            more = [name for name in other.parts.values() if name not in usual]
            if all(joined(one.at, name, "weight") in names for name in more):
                lines.append(f"{one.at or '(top)'}: {', '.join(more)}")
                holding |= dict.fromkeys(each.name for each in all_part_layouts() if each.group == other.kind)
    if lines:
        raise LayoutError(
            listed(f"{plural(len(lines), 'module has a part', 'modules have parts')} that layout {layout.name} "
                   "has no place for:", lines),
            hint=f"--layout {', '.join(holding)} has one; --at MODULE fuses the others and leaves it",
        )  # fmt: skip


def _apart_group(
    base: str,
    variant: Names,
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
        parts: dict[str, Names] = {}
        for term, child in zip(kind.parts, variant, strict=True):
            own = [tensors.get((suffix, expert), {}).get(child) for expert in experts]
            if None in own:
                called = joined(base, f"{experts[own.index(None)]}" if kind.inside else "", child, suffix)
                others = [c for c in variant if any(c in tensors.get((suffix, e), {}) for e in experts)]
                have = "has" if len(others) == 1 else "have"
                return None, f"{called!r} is missing; {', '.join(others)} {have} one"
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
    variants = variants_of(layout)
    found = tensors_of(names, layout, at, where)
    groups = []
    for base, by_suffix in found.items():
        weights = next((by_suffix[suffix] for suffix in by_suffix if shows_weight(suffix.lstrip("._"))), None)
        if weights is None:
            continue
        if len(weights) < len(rows):
            lacking = [row.name for k, row in enumerate(rows) if k not in weights]
            there = [child for child, _ in weights.values()]
            if at:
                raise LayoutError(
                    f"{where}: {base!r} has {', '.join(there)} and no {', '.join(lacking)}",
                    hint="a shard is missing, or another layout is meant",
                )
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
    called = dict.fromkeys(variant[k] for k in range(len(rows)) for variant in variants)
    _check_found(groups, at, where, f"tensors called {' '.join(called)}")
    return groups


def _check_found(groups: Sequence[object], at: Sequence[str], where: str, what: str) -> None:
    if groups:
        return
    said = f" at {some(at, 3)}" if at else ""
    module = "*.mlp" if "gate" in what else "*.attn"
    raise LayoutError(
        f"{where}: has no {what}{said}",
        hint=f"--at 'PATTERN' names the modules, such as {module!r}; `inspect` shows the names",
    )


# --- Which tensors of a file are the fused tensors of a layout: by their names, or by the patterns of `--at` ----------


BARE_SEPARATOR = "_"
"""Between a bare tensor's name and the kind of its companion: `gate_up_proj_bias`, `in_proj_weight`."""
OF_INPUTS = (".layer_norm_weight", ".layer_norm_bias")
"""What a layer of Megatron has for its inputs: no row of its weight is in it, so it stays (Transformer Engine's
LayerNormLinear; `dialects/tables/megatron.json`)."""
FusedTensors = dict[str, dict[str, dict[int, tuple[str, str]]]]
"""{module: {suffix: {number of a row of the layout: (name in the module, tensor)}}}"""


def split(name: str, wanted: Container[str]) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix) at every dot before a name that is wanted."""
    words = name.split(".")
    for k in [k for k, word in enumerate(words) if word in wanted]:
        yield ".".join(words[:k]), words[k], ".".join(words[k + 1 :])


def tensors_of(names: Iterable[str], layout: PartLayout, at: Sequence[str], where: str) -> FusedTensors:
    """The fused tensors of a layout.

    A pattern takes the tensors whose names the layout has; where it matches none of them, those of the one name that
    it matches.  LayoutError if these are several.
    """
    usual = [dict.fromkeys(variant[k] for variant in variants_of(layout)) for k in range(len(layout.tensors))]
    found: FusedTensors = {}
    fits: set[str] = set()
    others: dict[str, dict[str, list[tuple[str, str, str]]]] = {pattern: {} for pattern in at}
    for name in names:
        for base, child, suffix in _children(name) if not name.endswith(OF_INPUTS) else ():
            chosen = [one for one in at if fnmatchcase(base, one) or fnmatchcase(joined(base, child), one)]
            if (at and not chosen) or _is_of_other(base, child, layout, is_chosen=bool(at)):
                continue
            rows = [
                k
                for k, row in enumerate(layout.tensors)
                if (not (row.is_bare and suffix.startswith(".") and child not in LAYER_STACKS))
            ]
            own = [k for k in rows if child in usual[k]]
            for k in own:
                found.setdefault(base, {}).setdefault(suffix, {})[k] = (child, name)
                fits.update(chosen)
            if (
                rows == [0]
                and not own
                and len(usual) == 1
                and (suffix.count(".") < 2 or is_companion(suffix.lstrip(".")))
            ):
                for pattern in chosen:
                    if fnmatchcase(joined(base, child), pattern):
                        others[pattern].setdefault(child, []).append((base, suffix, name))
    for pattern in [one for one in at if one not in fits]:
        layers = {child: one for child, one in others[pattern].items() if not _bare_kind(child)} or others[pattern]
        if len(layers) > 1:
            matched = list(layers)
            called = some([variant[0] for variant in variants_of(layout)], 4)
            raise LayoutError(
                f"{where}: --at {pattern!r} matches no tensor that layout {layout.name} is known for ({called}); it "
                f"matches {plural(len(matched), 'other name')}, which {'was' if len(matched) == 1 else 'were'} not "
                f"used: {some(matched, 5)}",
                hint="name the fused tensor itself, such as --at '*.attn.NAME'; `inspect` shows the names",
            )
        for child, tensors in layers.items():
            for base, suffix, name in tensors:
                found.setdefault(base, {}).setdefault(suffix, {})[0] = (child, name)
    return found


def _is_of_other(module: str, child: str, layout: PartLayout, *, is_chosen: bool) -> bool:
    """Whether a name means a tensor of another kind in this module: GPT-2's `c_attn` in a cross attention."""
    if child != "c_attn" or kind_in(module, child) == layout.group:
        return False
    return kind_in(module, child) == "kv" or (layout.name == "kv-conv1d" and not is_chosen)


def variants_of(layout: PartLayout) -> list[Names]:
    """What files call the fused tensors of a layout, the usual names first."""
    own = tuple(row.name for row in layout.tensors)
    others = STACK_NAMES.get(own, ()) if len(own) > 1 else ((name,) for name in FUSED_NAMES.get(layout.group, ()))
    return list(dict.fromkeys((own, *others)))


def _children(name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix with its separator): `attn.in_proj_weight` is `in_proj` with `_weight`, too."""
    for base, child, suffix in split(name, name.split(".")):
        yield base, child, f".{suffix}" if suffix else ""
        for k in [k for k, letter in enumerate(child) if letter == BARE_SEPARATOR] if not suffix else ():
            if kind := _bare_kind(child[k + 1 :]):
                yield base, child[:k], f"{BARE_SEPARATOR}{kind}"


def _bare_kind(text: str) -> str:
    """What a tensor is of the bare one before its last words; empty if they say nothing.

    >>> _bare_kind("bias"), _bare_kind("scale_inv"), _bare_kind("proj")
    ('bias', 'weight_scale_inv', '')
    """
    if text in ("weight", "bias", *PAIR):
        return text
    return next((known for known in (f"weight_{text}", text) if is_companion(known)), "")
