"""The layout of a fused tensor that was found by its name: said by the record, the family or the name, or what fits.

A layout that fits by shape is a candidate and never a decision: most layouts of queries, keys and values have one
shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paramtool.errors import LayoutError, UsageError, listed
from paramtool.model.view import Shape
from paramtool.parts import families, patterns
from paramtool.parts.facts import NONE
from paramtool.parts.words import (
    BLOCKS,
    FLAT,
    LAYER_STACKS,
    OF_FAMILIES,
    OUTPUTS,
    STACKS,
    TORCH_MHA,
    WEIGHTS,
    Names,
    joined,
)
from paramtool.passes.parts.seen_groups import ROWS_OF, FittingLayout, KnownOfFile, SeenGroup, ShapeOf

PER_GROUP = ("qkv", "qkv-per-group", "qvk-per-chunk", "qkv-per-chunk")
PER_HEAD = ("qkv", "qkv-per-head", "qkv-per-element", "qvk-per-chunk", "qkv-per-chunk")
"""Layouts of grouped queries, and of as many keys as queries: per group is then per head."""
GATED = ("gate-up", "up-gate", "gate-up-interleaved", "gate-up-per-chunk")


def judged(group: SeenGroup, shape_of: ShapeOf, known: KnownOfFile) -> SeenGroup | None:
    """The group with its layout, or with those that fit; None if it is no fused tensor of a known kind."""
    names = [joined(group.first, name) for name in group.names]
    tensors = {weight: shape_of(weight) for weight in (_weight(name, shape_of) for name in names) if weight}
    if len(tensors) < len(names):
        return None
    names = [one for name in tensors for one in (name, name + BLOCKS)]
    if said := {known.layouts[name] for name in names if name in known.layouts}:
        return replace(group, layout=said.pop(), source="its record")
    shapes = tuple(tensors.values())
    form = _form_of(known.dialect, next(iter(tensors)), known) if known.dialect and known.config else ""
    if form:  # rows that the family does not have: vLLM stores BLOOM's plainly
        source = f"{known.who} ({known.dialect})"
        if layout := _of_pattern(form, group, known):
            return replace(group, layout=layout, source=source, experts=_experts(group, shapes))
        return replace(group, pattern=form, source=source)
    if fits := _of_dialects(next(iter(tensors)), group, known):
        return replace(group, fits=fits, experts=_experts(group, shapes))
    family, model_type = _family(group, known)
    if len(family) == 1:
        return replace(group, layout=family[0], source=_said_by(model_type), experts=_experts(group, shapes))
    if group.names[0] in OF_FAMILIES and not family:
        return None
    if group.names == (TORCH_MHA,):
        return replace(group, layout="qkv", source="its name (torch.nn.MultiheadAttention)")
    # The group with the one layout of its family that fits, or with all that fit; None if none does
    family, model_type = _family(group, known)
    fits = tuple(_needing(fit, known) for fit in _fits(group, shapes, shape_of, known))
    if len(left := [fit for fit in fits if fit.layout in family]) == 1:
        source = f"{_said_by(model_type)} and its shape"
        return replace(group, layout=left[0].layout, source=source, experts=_experts(group, shapes))
    return replace(group, fits=fits, experts=_experts(group, shapes)) if fits else None


EQUAL = re.compile(r"q\[rows in\] k\[rows in\] v\[rows in\]")
"""The rows of `qkv` where all three are as many, in the tables of dialects without grouped heads."""
TURNED = {
    "qkv-conv1d": "qkv", "experts-transposed": "experts", "experts-transposed-interleaved": "experts-interleaved",
}  # fmt: skip
"""{layout: the one with the same rows, and the axes in the order of a Linear}"""


def _of_dialects(name: str, group: SeenGroup, known: KnownOfFile) -> tuple[FittingLayout, ...]:
    """The layouts that several dialects have under the same names, where nothing says which dialect the file is of."""
    if known.dialect or not known.config:
        return ()
    from paramtool import dialects

    family, _ = _family(group, known)
    own = {"": family[0]} if len(family) == 1 else {}
    forms = {one: form for one in dialects.TABLES if (form := _form_of(one, name, known))}
    layouts = {one: layout for one, form in forms.items() if (layout := _of_pattern(form, group, known))}
    if not own or {*layouts.values()} <= {*own.values()}:
        return ()
    found = known.recognised()
    if len(found) < 2:
        return ()
    said = {one: layouts.get(one, own[""]) for one in found}
    if len({*said.values()}) == 1:
        return ()
    return tuple(FittingLayout(layout, (), f"{ROWS_OF}{one}") for one, layout in said.items())


def _form_of(dialect: str, name: str, known: KnownOfFile) -> str:
    """How a dialect stores a tensor, where transformers 4 stores it otherwise; "" if not so, or if it has no table."""
    from paramtool import dialects

    try:
        return dialects.opened(dialect, known.config, lambda tensor: NONE).form(name)
    except (LayoutError, UsageError):  # the record names another program's dialect, or the config another model
        return ""


def _of_pattern(pattern: str, group: SeenGroup, known: KnownOfFile) -> str:
    """The layout of parts that has a pattern; "" if none has, or several."""
    from paramtool.parts.layout import all_part_layouts

    if patterns.terms(pattern) == ("w",):  # the tensor of transformers 4 with its axes in another order
        usual = replace(group, names=STACKS[0]) if group.kind == "experts" else group
        family, _ = _family(usual, known)
        return TURNED.get(family[0], "") if len(family) == 1 else ""
    if EQUAL.fullmatch(pattern):
        return "qkv" if group.kind == "qkv" else ""
    of_kind = [one for one in all_part_layouts() if one.group == group.kind]
    for same in (str, _with_heads):
        found = [one.name for one in of_kind if same(one.tensors[0].content) == same(pattern)]
        if len(found) == 1:
            return found[0]
    return ""


def _with_heads(pattern: str) -> str:
    """A pattern for as many keys as queries."""
    return pattern.replace("kv_heads", "heads")


def _weight(name: str, shape_of: ShapeOf) -> str:
    """The name of a layer's weight, or of a tensor that is called so itself; empty if there is none."""
    return next((one for one in (name, *(f"{name}.{suffix}" for suffix in WEIGHTS)) if shape_of(one)), "")


def _said_by(model_type: str) -> str:
    return f"config.json ({model_type})" if model_type else "config.json"


def _experts(group: SeenGroup, shapes: tuple[Shape, ...]) -> int:
    return shapes[0][0] if group.kind == "experts" and len(shapes[0]) == 3 else 0


def _family(group: SeenGroup, known: KnownOfFile) -> tuple[Names, str]:
    """The layouts that the model's family has for a name, and the model type."""
    if not known.config:
        return (), ""
    from paramtool.parts.config_facts import config_of, tower_of

    tower = tower_of(joined(group.first, group.names[0]), known.config)
    if tower is None:
        return (), ""
    model_type, config = config_of(known.config, tower)
    key = families.EXPERTS if group.kind == "experts" else group.names[0]
    layouts = families.named(families.of_family(model_type, config), group.first, key)
    if group.kind == "experts" and (group.names == FLAT) != (layouts == ("experts-flat",)):
        return (), model_type
    if group.kind == "experts" and group.names not in (STACKS[0], FLAT, LAYER_STACKS):
        return (), model_type
    return layouts, model_type


def _needing(fit: FittingLayout, known: KnownOfFile) -> FittingLayout:
    """A layout that fits with the facts that it needs."""
    from paramtool.parts.layout import find_part_layout

    layout = find_part_layout(fit.layout)
    if layout is None:
        return fit
    given = known.facts or {}
    return replace(fit, needs=tuple(fact for fact in layout.facts if fact not in given))


def _fits(
    group: SeenGroup, shapes: tuple[Shape, ...], shape_of: ShapeOf, known: KnownOfFile
) -> Iterator[FittingLayout]:
    if group.kind == "experts":
        yield from stacks(group.names, shapes)
    elif len(shapes[0]) != 2:
        return
    elif group.kind == "qkv":
        yield from _qkv(group, shapes[0], shape_of, known.facts or {})
    elif group.kind == "gate-up" and shapes[0][0] % 2 == 0:
        why = f"{shapes[0][0]} rows are 2 x {shapes[0][0] // 2}"
        yield from (FittingLayout(layout, (), why) for layout in GATED)
    elif group.kind == "kv" and shapes[0][0] % 2 == 0:
        yield from (FittingLayout(layout, (), "an even number of rows") for layout in ("kv", "kv-per-head"))


def _qkv(group: SeenGroup, shape: Shape, shape_of: ShapeOf, given: Mapping[str, int]) -> Iterator[FittingLayout]:
    """The layouts of queries, keys and values: rows of a Linear, or columns of GPT-2's transposed layer."""
    beside = (_weight(joined(group.first, name), shape_of) for name in OUTPUTS)
    output = next((shape_of(name) for name in beside if name and len(shape_of(name)) == 2), None)
    for rows, inputs, is_turned in ((*shape, False), (shape[1], shape[0], True)):
        queries = output[0 if is_turned else 1] if output else inputs
        keys, odd = divmod(rows - queries, 2)
        if odd or not 0 < keys <= queries or queries % keys:
            continue
        why = f"{rows} {'columns' if is_turned else 'rows'} are {queries} of queries and 2 x {keys} of keys and values"
        if is_turned:
            yield FittingLayout("qkv-conv1d", (), f"{why}: transposed")
            continue
        for layout in PER_HEAD if keys == queries else PER_GROUP:
            if _agrees(layout, queries, keys, given):
                yield FittingLayout(layout, (), why)


def _agrees(layout: str, queries: int, keys: int, given: Mapping[str, int]) -> bool:
    """Whether the sizes that were given divide the rows."""
    heads, kv_heads = given.get("heads", 1), given.get("kv_heads", 1)
    if queries % heads or keys % kv_heads or ("chunks" in given and "chunk" not in layout):
        return False
    return "heads" not in given or "kv_heads" not in given or queries * kv_heads == keys * heads


def stacks(names: Names, shapes: tuple[Shape, ...]) -> Iterator[FittingLayout]:
    """The layouts that stacks of experts could have by their shapes."""
    if names == FLAT:
        if len({shape for shape in shapes if len(shape) == 2}) == 1 and len(shapes[0]) == 2:
            yield FittingLayout("experts-flat", (), "three matrices of one shape")
        return
    if any(len(shape) != 3 for shape in shapes):
        return
    if len(shapes) == 3:
        yield FittingLayout("experts-apart", (), "stacks of gate, up and down")
        return
    (experts, a, b), (others, c, d) = shapes
    if experts != others:
        return
    if a == 2 * d and b == c:
        why = f"[experts, 2 x {d}, {b}] and [experts, {c}, {d}]"
        yield from (FittingLayout(layout, (), why) for layout in ("experts", "experts-interleaved"))
    if b == 2 * c and a == d:
        why = f"[experts, {a}, 2 x {c}] and [experts, {c}, {d}]"
        yield from (
            FittingLayout(layout, (), why) for layout in ("experts-transposed", "experts-transposed-interleaved")
        )


def refusal(groups: list[SeenGroup], where: str) -> LayoutError:
    """The error for fused tensors whose layout nothing says: what fits each, and what would decide."""
    lines = []
    if patterns_said := [one for one in groups if one.pattern]:
        raise LayoutError(
            listed(f"{where}: fused tensors have rows that no layout has:",
                   [f"{one.at}: {', '.join(one.names)} is {one.pattern} by {one.source}" for one in patterns_said]),
            hint="`paramtool convert FILE --to transformers-4 -o OUT` takes them apart; --at chooses other modules",
        )  # fmt: skip
    for group in groups:
        fits = ", ".join(
            fit.layout
            + (f" ({' '.join(f'{fact}=...' for fact in fit.needs)})" if fit.needs else "")
            + (f" ({fit.why})" if fit.why.startswith(ROWS_OF) else "")
            for fit in group.fits
        )
        lines.append(f"{group.at}: {', '.join(group.names)} fits {fits}")
    head = f"{where}: the layout of fused tensors is not known, and their shapes do not tell it:"
    return LayoutError(listed(head, lines), hint=f"{groups[0].decides} decides")
