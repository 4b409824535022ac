"""Maps of the tables of attention, gated MLPs, experts and state spaces: every layout, of random sizes.

The references of `tests.parts.references` make the fused tensors by array operations.  Of the package, only the names
are used that files have for parts and for fused tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from paramtool.errors import LayoutError
from paramtool.parts import patterns
from paramtool.parts.layout import PartLayout, all_part_layouts, group
from paramtool.passes.parts.fuse import fused_name
from tests.laws.diff_trials.pairs import Array, Arrays, Module, Planted, Random, a_type, kind, numbers, same_bytes
from tests.parts.references import fused

SHAPES: Mapping[str, tuple[str, ...]] = {
    "q": ("heads head_dim", "in"), "k": ("kv_heads head_dim", "in"), "v": ("kv_heads value_dim", "in"),
    "z": ("heads head_dim", "in"), "s": ("heads", "in"), "o": ("out", "heads value_dim"),
    "gate": ("ffn", "in"), "up": ("ffn", "in"), "down": ("out", "ffn"), "mlp": ("ffn", "in"),
    "q_conv": ("key_heads key_dim", "1", "taps"), "k_conv": ("key_heads key_dim", "1", "taps"),
    "v_conv": ("value_heads linear_value_dim", "1", "taps"), "conv": ("channels", "1", "taps"),
    "linear_q": ("key_heads key_dim", "in"), "linear_k": ("key_heads key_dim", "in"),
    "linear_v": ("value_heads linear_value_dim", "in"), "linear_z": ("value_heads linear_value_dim", "in"),
    "linear_b": ("value_heads", "in"), "linear_a": ("value_heads", "in"),
    "q_a": ("q_rank", "in"), "kv_a": ("kv_joint", "in"), "latent": ("kv_rank", "in"), "k_rope": ("rope", "in"),
    "k_nope": ("heads nope", "in"), "v_b": ("heads value_dim", "in"),
    "q_nope": ("heads nope", "in"), "q_rope": ("heads rope", "in"),
    "ssm_x": ("inner", "in"), "ssm_z": ("inner", "in"), "ssm_b": ("groups state", "in"),
    "ssm_c": ("groups state", "in"), "ssm_dt": ("state_heads", "in"),
    "dt_low": ("dt_rank", "in"), "b_state": ("state", "in"), "c_state": ("state", "in"),
    "x_conv": ("inner", "1", "taps"), "b_conv": ("groups state", "1", "taps"), "c_conv": ("groups state", "1", "taps"),
    "shift": ("width", "in"), "scale": ("width", "in"),
}  # fmt: skip
"""{part: the lengths of its axes, as products of sizes}"""
ONE_EACH = ("qkv-per-head", "qkv-per-element")
"""Layouts that need as many heads of keys and values as of queries."""
FREE_VALUES = ("qkv", "qkv-per-group", "qkv-conv1d", "kv", "kv-conv1d")
"""Layouts in which values may have another width than keys."""
MOVED = ("rope-pairs", "heads-by-position")
"""Layouts whose tensors are single parts: either of two checkpoints can be in the layout."""
STEMS = ("model.layers.{}.attn", "transformer.h.{}.self", "h.{}.mixer")
LAYOUTS = {one.name: one for one in all_part_layouts()}


def some_sizes(random: Random, names: tuple[str, ...]) -> dict[str, int]:
    """Sizes that layouts can have together."""

    def one_of(*lengths: int) -> int:
        return int(random.choice(lengths))

    chunks, head_dim = one_of(1, 2), one_of(4, 6, 8)
    kv_heads = chunks * one_of(1, 2, 3)
    heads = kv_heads * (1 if any(name in ONE_EACH for name in names) else one_of(1, 2, 3))
    key_heads, kv_rank, rope = chunks * one_of(1, 2), one_of(9, 11), one_of(4, 6)
    return {
        "chunks": chunks, "kv_heads": kv_heads, "heads": heads, "head_dim": head_dim,
        "value_dim": one_of(4, 10) if all(name in FREE_VALUES for name in names) else head_dim,
        "rotary": head_dim if head_dim == 6 else one_of(head_dim, head_dim // 2),
        "ffn": chunks * one_of(7, 8, 10), "experts": one_of(2, 3), "in": one_of(8, 12, 16), "out": one_of(8, 16),
        "taps": 4, "channels": one_of(16, 24), "linear_key_heads": key_heads, "key_heads": key_heads,
        "value_heads": key_heads * one_of(1, 2), "key_dim": one_of(4, 5), "linear_value_dim": one_of(4, 8),
        "q_rank": one_of(9, 12), "kv_rank": kv_rank, "rope": rope, "nope": 6, "kv_joint": kv_rank + rope,
        "state": one_of(4, 5), "dt_rank": 3, "width": 14, "inner": chunks * one_of(8, 12), "groups": chunks,
        "state_heads": chunks * 4,
    }  # fmt: skip


def parts_of(random: Random, layout: PartLayout, sizes: Mapping[str, int], suffix: str, of: str) -> dict[str, Any]:
    """{term: an array, or one for each expert}, of random numbers."""
    kind_ = group(layout.group)
    found: dict[str, Any] = {}
    for term in kind_.parts:
        words = SHAPES[term] if suffix == "weight" else SHAPES[term][:1]
        shape = [int(np.prod([1 if word == "1" else sizes[word] for word in axis.split()])) for axis in words]
        made = [numbers(random, shape, of) for _ in range(sizes["experts"] if kind_.inside else 1)]
        found[term] = made if kind_.inside else made[0]
    return found


def part_names(layout: PartLayout, sizes: Mapping[str, int], at: str, suffix: str) -> dict[str, Any]:
    """{term: the name of its tensor, or one for each expert}, as files have them."""
    kind_ = group(layout.group)
    if not kind_.inside:
        return {term: f"{at}.{child}.{suffix}" for term, child in kind_.parts.items()}
    experts = range(sizes["experts"])
    return {term: [f"{at}.{k}.{child}.{suffix}" for k in experts] for term, child in kind_.parts.items()}


def named_parts(layout: PartLayout, parts: Mapping[str, Any], at: str, suffix: str) -> Arrays:
    """Parts by the names that files have for them."""
    first = next(iter(parts.values()))
    names = part_names(layout, {"experts": len(first)}, at, suffix)
    if isinstance(first, list):
        return {name: one for term in parts for name, one in zip(names[term], parts[term], strict=True)}
    return {names[term]: parts[term] for term in parts}


def named_fused(
    name: str, parts: Mapping[str, Any], sizes: Mapping[str, int], at: str, suffix: str = "weight"
) -> Arrays:
    """Fused tensors by the names that files have for them."""
    layout = LAYOUTS[name]
    names = [fused_name(at, row.name, suffix, row.is_bare) for row in layout.tensors]
    return dict(zip(names, rebuilt(name, parts, sizes), strict=True))


def rebuilt(name: str, parts: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Array]:
    """The fused tensors of a layout, in its order, by array operations."""
    own = {"s_" if term == "s" else term: one for term, one in parts.items()}
    return [np.ascontiguousarray(one) for one in fused(name, own, sizes)]


@cache
def with_bias() -> tuple[str, ...]:
    """Layouts whose weights have biases beside them."""
    found = []
    for name, layout in LAYOUTS.items():
        try:
            if all(patterns.bias_pattern(row.content, row.along) for row in layout.tensors):
                found.append(name)
        except LayoutError:
            continue
    return tuple(found)


class Made:
    """A layout of random sizes in a module: its parts, and its fused tensors."""

    def __init__(self, random: Random, at: str, names: tuple[str, ...], suffix: str = "weight") -> None:
        self.names, self.suffix, self.sizes = names, suffix, some_sizes(random, names)
        of = a_type(random, ("float32", "float16", "bfloat16", "int8", "float64"))
        number = at.rpartition(".")[2]
        self.at, self.other = (stem.format(number) for stem in random.choice(STEMS, 2))
        self.parts = parts_of(random, LAYOUTS[names[0]], self.sizes, suffix, of)
        self.apart = named_parts(LAYOUTS[names[0]], self.parts, self.at, suffix)
        self.fused = [named_fused(name, self.parts, self.sizes, self.other, suffix) for name in names]

    def module(self, random: Random, a: Arrays, b: Arrays, keeps: bool | None = True) -> Module:
        """A module with A and B in either order."""
        names = part_names(LAYOUTS[self.names[0]], self.sizes, self.at, self.suffix)
        side = 0 if len(self.names) == 1 else None
        layout = LAYOUTS[self.names[0]]
        rows = zip(self.fused[0], layout.tensors, strict=True)
        moved = {row.terms()[0]: name for name, row in rows} if self.names[0] in MOVED else {}
        one = Module(a, b, keeps, planted=Planted(names, self.sizes, side, moved))
        return one.turned() if random.random() < 0.5 else one


def a_layout(random: Random, names: tuple[str, ...] = tuple(LAYOUTS)) -> tuple[str]:
    """One of the layouts."""
    return (str(random.choice(names)),)


@kind("layout")
def _layout(random: Random, at: str) -> Module:
    made = Made(random, at, a_layout(random))
    return made.module(random, made.apart, made.fused[0])


@kind("layout of biases")
def _biases(random: Random, at: str) -> Module:
    """Biases alone."""
    made = Made(random, at, a_layout(random, with_bias()), "bias")
    return made.module(random, made.apart, made.fused[0])


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Layouts that hold the same parts."""
    return tuple(
        (one.name, other.name)
        for one in LAYOUTS.values()
        for other in LAYOUTS.values()
        if one.group == other.group != "rope" and one is not other
    )


@kind("layout to layout")
def _between(random: Random, at: str) -> Module:
    """Fused tensors of two layouts; neither file has parts."""
    one, other = pairs()[random.integers(len(pairs()))]
    made = Made(random, at, (one, other))
    keys, values = ("key_dim", "linear_value_dim") if "linear" in LAYOUTS[one].group else ("head_dim", "value_dim")
    is_found = made.sizes[keys] == made.sizes[values]  # no shape of a fused tensor shows both
    is_found &= LAYOUTS[one].group != "state-space"  # whose sizes need not divide the rows
    found = made.module(random, made.fused[0], made.fused[1])
    return found._replace(is_found=is_found, is_found_back=is_found)


@kind("weights and biases")
def _with_biases(random: Random, at: str) -> Module:
    """The biases follow the weights, or those of the fused tensor are simply joined."""
    (name,) = a_layout(random, with_bias())
    made = Made(random, at, (name,))
    layout = LAYOUTS[name]
    biases = parts_of(random, layout, made.sizes, "bias", "float32")
    a = {**made.apart, **named_parts(layout, biases, made.at, "bias")}
    right = named_fused(name, biases, made.sizes, made.other, "bias")
    new = dict(right)
    if random.random() < 0.4:
        chosen = [*new][random.integers(len(new))]
        new[chosen] = np.roll(new[chosen], 1, -1)
    keeps = all(same_bytes(right[key], new[key]) for key in right)
    return made.module(random, a, {**made.fused[0], **new}, keeps)


SCALED = ("qkv", "qkv-per-head", "qkv-per-group", "gate-up", "gate-up-interleaved", "qkv-per-chunk", "kv", "qk")
"""Layouts that move whole rows of two-dimensional parts."""


@kind("scales that follow")
def _scales(random: Random, at: str) -> Module:
    """Quantised weights with a scale for each row: by the same map, or in another order."""
    (name,) = a_layout(random, SCALED)
    made = Made(random, at, (name,))
    layout = LAYOUTS[name]
    codes = parts_of(random, layout, made.sizes, "weight", str(random.choice(["float8_e4m3fn", "int8"])))
    scales = {term: numbers(random, (len(one), 1)) for term, one in codes.items()}
    a = {**named_parts(layout, codes, made.at, "weight"), **named_parts(layout, scales, made.at, "weight_scale")}
    weights = named_fused(name, codes, made.sizes, made.other)
    (right,) = rebuilt(name, scales, made.sizes)
    new = right if random.random() < 0.6 else np.roll(right, 1, 0)
    b = {**weights, f"{next(iter(weights)).removesuffix('weight')}weight_scale": new}
    return made.module(random, a, b, same_bytes(right, new))


def spoilt(random: Random, arrays: Arrays) -> tuple[str, Array]:
    """A tensor with one other bit in its last element, or anywhere."""
    name = [*arrays][random.integers(len(arrays))]
    one = arrays[name].copy()
    raw = one.reshape(-1).view("u1")
    raw[-1 if random.random() < 0.5 else random.integers(raw.size)] ^= 1 << random.integers(8)
    return name, one


@kind("layout with another bit")
def _other_bit(random: Random, at: str) -> Module:
    made = Made(random, at, a_layout(random))
    name, one = spoilt(random, made.fused[0])
    return made.module(random, made.apart, {**made.fused[0], name: one}, keeps=False)


@kind("layout with two rows exchanged")
def _other_order(random: Random, at: str) -> Module:
    """The right rows, and two of them in each other's place: no layout, if a search may find the rows."""
    made = Made(random, at, a_layout(random))
    name = [*made.fused[0]][random.integers(len(made.fused[0]))]
    one = made.fused[0][name].copy()
    rows = one.reshape(one.shape[0], -1)
    k, n = random.choice(len(rows), 2, replace=False) if len(rows) > 1 else (0, 0)
    rows[[k, n]] = rows[[n, k]]
    return made.module(random, made.apart, {**made.fused[0], name: one}, keeps=None)


@kind("layout without a part")
def _part_lost(random: Random, at: str) -> Module:
    """One part of A is another one."""
    made = Made(random, at, a_layout(random))
    name, one = spoilt(random, made.apart)
    return made.module(random, {**made.apart, name: one}, made.fused[0], keeps=False)
