"""The groups of parts in a checkpoint, in short: what `inspect` and `guess` say of attention, gated MLPs and experts.

    model.layers    32 layers: q, k, v apart; experts as a list of 8
    gpt_neox.layers  6 layers: query_key_value fused, qkv-per-head by config.json (gpt_neox)
    layers          12 layers: qkv_proj fused; qkv, qkv-per-head, ... fit

Names are looked at once.  A layout comes from the file's record, from the family in config.json, or from a name that
one class alone has; shapes only take layouts away, and what is left is listed with the fact that would decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape
from paramtool.parts.words import (
    APART,
    BASE,
    BLOCKS,
    CHILDREN,
    LAYER_STACKS,
    STACKS,
    TORCH_MHA,
    WEIGHTS,
    Names,
    joined,
    kind_in,
    place,
)
from paramtool.passes.parts.seen_groups import KnownOfFile, SeenGroup, ShapeOf


@frozen
class SeenTower:
    """One stack of layers: a model may have one of text and one of images."""

    at: str
    """The module of its layers: `model.layers`."""
    layers: int
    """0 for a module beside the layers."""
    groups: tuple[SeenGroup, ...]


@frozen
class SeenParts:
    """What a checkpoint has of attention, gated MLPs and experts."""

    towers: tuple[SeenTower, ...] = ()
    dialect: str = ""
    """Whose names these are; empty where that cannot be told."""
    _members = "dialect towers"

    @property
    def groups(self) -> Iterator[SeenGroup]:
        """Those of all towers."""
        for tower in self.towers:
            yield from tower.groups


NOTHING = SeenParts()
FIRST = ("qkv", "kv")
"""The kinds that are told before the others."""


def seen(
    names: Iterable[str], shape_of: ShapeOf, known: Callable[[], KnownOfFile], *, has_record: bool = False
) -> SeenParts:
    """The groups of a checkpoint; `known` is only asked where a tensor is fused, or where a record describes some."""
    scanned, shape_of = _scanned(names), _before_packing(shape_of)
    groups: dict[tuple[str, str, str, Names], list[str]] = {}
    experts: dict[str, set[str]] = {}
    for base, children in scanned.items():
        for kind, form, own in _kinds(base, children, shape_of):
            module = base
            if form == "list":
                module, _, number = base.rpartition(".")
                is_first = module not in experts
                experts.setdefault(module, set()).add(number)
                if not is_first:  # the first expert shows what all are called
                    continue
            groups.setdefault((place(module), kind, form, own), []).append(module)
    # The towers, in the order of the file
    towers: dict[str, list[SeenGroup]] = {}
    layers: dict[str, set[str]] = {}
    for (at, kind, form, own), modules in groups.items():
        first = modules[0]
        group = SeenGroup(at, len(modules), kind, form, own, len(experts.get(first, ())), first)
        if form == "fused":
            from paramtool.passes.parts.layouts_seen import judged  # needs tables, which most files do not

            fused = judged(group, shape_of, known())
            if fused is None:
                continue
            group = fused
        elif form == "apart" and has_record and (layouts := known().layouts):
            # parts that the record calls rearranged: queries and keys with their rotary rows in pairs
            names = (joined(first, name, suffix) for name in own for suffix in WEIGHTS)
            if said := {layouts[name] for name in names if name in layouts}:
                group = replace(group, layout=", ".join(sorted(said)), source="its record")
        tower, numbered, _ = at.partition(".*")
        if not numbered:
            tower = at
        towers.setdefault(tower, []).append(group)
        counted = layers.setdefault(tower, set())
        if numbered:
            length = tower.count(".") + 1
            counted.update(module.split(".", length + 1)[length] for module in modules)
    found = tuple(
        SeenTower(at, len(layers[at]), tuple(sorted(groups, key=lambda one: one.kind not in FIRST)))
        for at, groups in towers.items()
    )
    return SeenParts(found, _dialect(found, known)) if found else NOTHING


def _before_packing(shape_of: ShapeOf) -> ShapeOf:
    """Shapes that include those of stacks in MXFP4, `gate_up_proj_blocks`, before they were packed.

    Such a stack is [experts, inputs, outputs] (transformers integrations/mxfp4.py, `convert_moe_packed_tensors`).
    """

    def of(name: str) -> Shape:
        shape = shape_of(name)
        if not shape and len(blocks := shape_of(name + BLOCKS)) == 4:
            return blocks[0], blocks[2] * blocks[3] * 2, blocks[1]
        return shape

    return of


_BARE = frozenset([name for names in STACKS for name in names] + [TORCH_MHA])


def _scanned(names: Iterable[str]) -> dict[str, dict[str, bool]]:
    """{module: {name of a part or of a fused tensor: whether it is a tensor itself}}"""
    found: dict[str, dict[str, bool]] = {}
    for name in names:
        base, _, child = name.rpartition(".")
        if child in WEIGHTS:
            base, _, child = base.rpartition(".")
            if child == BASE:
                base, _, child = base.rpartition(".")
            if child in CHILDREN:
                found.setdefault(base, {})[child] = False
        elif child in _BARE or (child.endswith(BLOCKS) and child.removesuffix(BLOCKS) in _BARE):
            found.setdefault(base, {})[child.removesuffix(BLOCKS)] = True
    return found


def _kinds(base: str, children: Mapping[str, bool], shape_of: ShapeOf) -> Iterator[tuple[str, str, Names]]:
    """(kind, form, names) of each group in a module."""
    layers = {child for child, is_bare in children.items() if not is_bare}
    head, _, last = base.rpartition(".")
    if last.isdigit() and "expert" in head.rpartition(".")[2]:
        yield from (("experts", "list", names) for names in APART["experts"] if layers.issuperset(names))
        return
    for kind in ("qkv", "gate-up"):
        yield from ((kind, "apart", names) for names in APART[kind] if layers.issuperset(names))
    first, second = (shape_of(f"{joined(base, name)}.weight") if name in layers else () for name in LAYER_STACKS)
    # stacks of gated experts: JetMoE's attention has others of the same names
    if len(first) == len(second) == 3 and first[1] == 2 * second[2]:
        yield "experts", "fused", LAYER_STACKS
        children = omit(children, LAYER_STACKS)
    for child, is_bare in children.items():
        if not is_bare and (kind := kind_in(base, child)):
            yield kind, "fused", (child,)
        elif child == TORCH_MHA:
            yield "qkv", "fused", (child,)
    bare = {child for child, is_bare in children.items() if is_bare}
    for names in STACKS:
        if bare.issuperset(names) and all(len(shape_of(joined(base, name))) in (2, 3) for name in names):
            yield "experts", "fused", names


SIGNS: tuple[tuple[str, str, str], ...] = (
    ("megatron", r"(.*\.)?decoder\.layers\.\*\.self_attention", "linear_qkv"),
    ("meta", r"layers\.\*\.attention", "wq wk wv"),
    ("torch-mha", r".*", TORCH_MHA),
    ("timm", r"blocks\.\*\.attn", "qkv"),
    ("vllm", r".*experts\.routed_experts", "w13_weight w2_weight"),
)
"""(dialect, its modules, what is in them), where names that no other dialect has show it."""
LISTED = re.compile(r"(.*\.)?layers\.\*\.(mlp|block_sparse_moe|feed_forward)\.experts")
"""Experts as lists under these modules are in files of transformers 4 (conversion_mapping.py of 5.23, 1272-1306)."""


def _dialect(towers: Iterable[SeenTower], known: Callable[[], KnownOfFile]) -> str:
    """The dialect that the record says, or that names show which only it has."""
    groups = [group for tower in towers for group in tower.groups]
    if any(group.form == "fused" for group in groups) and (dialect := known().dialect):
        return dialect
    for group in groups:
        for dialect, module, names in SIGNS:
            if " ".join(group.names) == names and re.fullmatch(module, group.at):
                return dialect
    if any(group.form == "list" and LISTED.fullmatch(group.at) for group in groups):
        return "transformers-4"
    return ""


def words(tower: SeenTower) -> str:
    """A tower in a line.

    >>> group = SeenGroup("layers.*.attn", 2, "qkv", "apart", ("q_proj", "k_proj", "v_proj"))
    >>> words(SeenTower("layers", 2, (group,)))
    '2 layers: q, k, v apart'
    """
    phrases = grouped((_phrase(group, tower.layers), group) for group in tower.groups)
    texts = []
    for phrase, groups in phrases.items():
        places = ", ".join(dict.fromkeys(group.at.rpartition(".")[2] for group in groups))
        texts.append(f"{phrase} ({places})" if len(groups) > 1 else phrase)
    head = f"{tower.layers} layer{'' if tower.layers == 1 else 's'}: " if tower.layers else ""
    return head + "; ".join(texts)


def _phrase(group: SeenGroup, layers: int) -> str:
    some = f" in {group.modules}" if layers and group.modules < layers else ""
    if group.form == "list":
        return f"experts as a list of {group.experts}{some}"
    if group.form == "apart":
        rows = f", {group.layout} by {group.source}" if group.layout else ""
        return f"{', '.join(SHORT[group.kind])} apart{some}{rows}"
    name = f"experts stacked ({', '.join(group.names)})" if group.kind == "experts" else f"{group.names[0]} fused"
    if group.layout:
        return f"{name}{some}: {group.layout} by {group.source}"
    if group.pattern:
        return f"{name}{some}: {group.pattern} by {group.source}, which is no layout"
    return f"{name}{some}: {', '.join(fit.layout for fit in group.fits)} fit"


SHORT = {"qkv": ("q", "k", "v"), "gate-up": ("gate", "up")}
