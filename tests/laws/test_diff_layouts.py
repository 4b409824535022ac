"""Planted maps: each part layout, made by array operations of its reference, is found and named without hints.

No config.json is beside the files, and no option says a layout or a size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import paramtool
from paramtool.errors import LayoutError
from paramtool.model.diff import LAYOUT, RENAMED, SAME, TensorDiff
from paramtool.parts import patterns
from paramtool.parts import rows as part_rows
from paramtool.parts.layout import PartLayout, all_part_layouts, group
from paramtool.parts.patterns import PARTS
from paramtool.parts.sizes import Sizes
from paramtool.passes.parts.fuse import fused_name
from tests.laws.comparing import compared, has_same_numbers
from tests.parts.references import fused

Arrays = Mapping[str, np.ndarray]
LAYOUTS = all_part_layouts()
SIZES = {
    "kv_heads": 4, "heads": 12, "chunks": 2, "rotary": 6, "head_dim": 6, "value_dim": 6, "ffn": 20, "experts": 3,
    "in": 16, "out": 16, "taps": 4, "channels": 24, "linear_key_heads": 4, "linear_value_heads": 8,
    "linear_key_dim": 4, "linear_value_dim": 8, "q_rank": 9, "kv_rank": 11, "rope": 4, "nope": 6, "kv_joint": 15,
    "state": 5, "dt_rank": 3, "width": 14, "inner": 16, "groups": 2, "state_heads": 8,
}  # fmt: skip
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def sizes_of(layout: PartLayout) -> dict[str, int]:
    contents = " ".join(row.content for row in layout.tensors)
    one_each = "{heads: q[head_dim in] k" in contents or "{heads head_dim" in contents
    return SIZES | ({"kv_heads": SIZES["heads"]} if one_each else {})


def planted(
    layout: PartLayout, suffix: str, at: str, seed: int = 0, *, other: Mapping[str, int] | None = None
) -> tuple[Arrays, Arrays]:
    """(the parts of a group, its fused tensors) of random numbers; some sizes can be others."""
    sizes, kind = sizes_of(layout) | (other or {}), group(layout.group)
    random = np.random.default_rng(seed)
    experts = range(sizes["experts"]) if kind.inside else (None,)
    parts: dict[str, Any] = {}
    names: dict[str, np.ndarray] = {}
    for term, child in kind.parts.items():
        shape = part_rows.part_shape(PARTS[term], Sizes(sizes))
        made = [random.normal(size=shape if suffix == "weight" else shape[:1]).astype("f4") for _ in experts]
        for k, array in zip(experts, made, strict=True):
            names[".".join(filter(None, (at, "" if k is None else f"{k}", child, suffix)))] = array
        parts["s_" if term == "s" else term] = made if kind.inside else made[0]
    arrays = fused(layout.name, parts, sizes)
    called = [fused_name(at, row.name, suffix, row.is_bare) for row in layout.tensors]
    return names, dict(zip(called, arrays, strict=True))


def has_bias(layout: PartLayout) -> bool:
    try:
        return all(patterns.bias_pattern(row.content, row.along) for row in layout.tensors)
    except LayoutError:
        return False


def is_named(one: TensorDiff, layout: str) -> bool:
    """Whether a verdict names a layout; one whose map is that of another by certain sizes is named second.

    Either of two layouts that have a tensor of the same rows may be named.
    """
    rows = {each.name: {*each.tensors} for each in LAYOUTS}
    is_shared = one.layout in rows and not rows[one.layout].isdisjoint(rows[layout])
    return one.layout == layout or is_shared or layout in one.how.partition("the same map as ")[2].split(", ")


@pytest.mark.sample(18)
@by_layout
@pytest.mark.parametrize("at", ["model.layers.3.attn", "transformer.h.3.self"])
@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
def test_a_planted_layout_is_found_and_named(layout: PartLayout, at: str, back: bool, tmp_path: Path) -> None:
    """Parts and fused tensors, either of which is A, in one module or in a renamed one."""
    parts, _ = planted(layout, "weight", "model.layers.3.attn")
    _, elsewhere = planted(layout, "weight", at)
    a, b = (elsewhere, parts) if back else (parts, elsewhere)
    found = compared(tmp_path, a, b)
    assert has_same_numbers(found), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
    assert told and all(one.kind == LAYOUT and is_named(one, layout.name) for one in told), [
        (one.kind, one.layout, one.how) for one in told
    ]
    assert all(one.is_unique for one in found.tensors)


UNUSUAL = {
    "one KV head": {"kv_heads": 1, "chunks": 1}, "values of another width": {"value_dim": 10},
    "a third of a head rotated": {"rotary": 2}, "one expert": {"experts": 1}, "one group of states": {"groups": 1},
}  # fmt: skip
"""Sizes of real models that are no multiples of each other, or 1: MQA, MiMo-V2, Mamba-2."""


def has_sizes(layout: PartLayout, sizes: Mapping[str, int]) -> bool:
    """Whether a pattern depends on one of the sizes and can have it."""
    contents = " ".join(row.content for row in layout.tensors)
    is_free = layout.name not in ("qkv-per-element", "mla-kv-b", "heads-by-position") and "{heads: q" not in contents
    found = next(iter(sizes))
    words = {word for row in layout.tensors for word in patterns.words(row.content)} | (
        {"rotary"} if layout.group == "rope" else set()
    )
    return found in words and (is_free or found not in ("kv_heads", "value_dim"))


@pytest.mark.sample(18)
@pytest.mark.parametrize(
    "layout, sizes",
    [pytest.param(one, sizes, id=f"{one.name}, {name}") for name, sizes in UNUSUAL.items() for one in LAYOUTS
     if has_sizes(one, sizes)],
)  # fmt: skip
@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
def test_unusual_sizes(layout: PartLayout, sizes: dict[str, int], back: bool, tmp_path: Path) -> None:
    a, b = planted(layout, "weight", "model.layers.3.attn", other=sizes)
    found = compared(tmp_path, *((b, a) if back else (a, b)))
    assert has_same_numbers(found), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
    assert all(one.kind == LAYOUT and one.layout for one in told), [(one.kind, one.layout, one.how) for one in told]


@pytest.mark.sample(8)
@pytest.mark.parametrize("layout", [one for one in LAYOUTS if has_bias(one)], ids=lambda layout: layout.name)
@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
def test_biases_follow(layout: PartLayout, back: bool, tmp_path: Path) -> None:
    """The biases beside weights of a layout, by the same map, and biases alone."""
    weights, biases = (planted(layout, suffix, "h.3.attn") for suffix in ("weight", "bias"))
    for pairs in ([weights, biases], [biases]):
        a, b = ({name: array for pair in pairs for name, array in pair[side].items()} for side in (0, 1))
        a, b = (b, a) if back else (a, b)
        found = compared(tmp_path, a, b)
        told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
        assert has_same_numbers(found) and (told or layout.group == "conv"), [
            (one.kind, one.a, one.b, one.how) for one in found.tensors
        ]
        assert all(one.kind == LAYOUT and is_named(one, layout.name) for one in told), [
            (one.kind, one.layout, one.how) for one in told
        ]


PAIRS = [
    (one, other)
    for one in LAYOUTS
    for other in LAYOUTS
    if one.group == other.group and one is not other and sizes_of(one) == sizes_of(other) and one.group != "rope"
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("one, other", PAIRS, ids=lambda layout: layout.name)
def test_a_fused_tensor_in_another_layout(one: PartLayout, other: PartLayout, tmp_path: Path) -> None:
    """Neither has parts of its own: every size is unknown, and is a divisor of the shape.

    One map can be that of several pairs of layouts; one of the group's is named.
    """
    (_, a), (_, b) = planted(one, "weight", "h.3.attn"), planted(other, "weight", "h.3.attn")
    found = compared(tmp_path, a, b)
    assert has_same_numbers(found), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
    named = {layout.name for layout in LAYOUTS if layout.group == other.group}
    assert told and all(one.kind == LAYOUT and one.layout in named for one in told), [
        (one.kind, one.layout, one.how) for one in told
    ]


@pytest.mark.sample(7)
@by_layout
def test_one_other_element_is_no_layout(layout: PartLayout, tmp_path: Path) -> None:
    """A bit anywhere in a fused tensor that is another: no verdict that says the same weights."""
    parts, made = planted(layout, "weight", "h.3.attn")
    name, array = next(iter(made.items()))
    spoilt = array.copy()
    spoilt.view("u4").reshape(-1)[array.size * 2 // 3] ^= 1
    assert not compared(tmp_path, parts, {**made, name: spoilt}).is_same
    assert not compared(tmp_path, {**made, name: spoilt}, parts).is_same


COMPANIONS = {
    ".bias": (48,), ".weight_scale": (48, 1), ".weight_scale_inv": (12, 2), ".lora_B.weight": (48, 5),
    ".lora_B.default.weight": (48, 3),
}  # fmt: skip
"""{what is beside a matrix of 48 rows: its shape}; a scale for each block of 4 rows"""


@pytest.mark.parametrize("by_table", [False, True], ids=["search", "table"])
@pytest.mark.parametrize("end", COMPANIONS)
def test_what_is_beside_a_matrix_follows_its_map(end: str, by_table: bool, tmp_path: Path) -> None:
    """A bias, scales, and factors of LoRA whose own rows are too short to be found: by the map of the weight."""
    random = np.random.default_rng(0)
    shape, names = COMPANIONS[end], ("q", "k", "v")
    if by_table:
        order = np.concatenate([np.arange(16 * k + 4 * h, 16 * k + 4 * h + 4) for h in range(4) for k in range(3)])
        made = "h.0.attn.query_key_value"
    else:
        order = np.concatenate([np.arange(4 * k, 4 * k + 4) for k in random.permutation(12)])
        made = "h.0.attn.mixed"
    blocks = order.reshape(12, 4)[:, 0] // 4
    weights, others = random.normal(size=(48, 16)).astype("f4"), random.normal(size=shape).astype("f4")
    a = {f"h.0.attn.{n}_proj.weight": weights[16 * k : 16 * k + 16] for k, n in enumerate(names)}
    share = len(others) // 3
    a |= {f"h.0.attn.{n}_proj{end}": others[share * k : share * k + share] for k, n in enumerate(names)}
    b = {f"{made}.weight": weights[order], f"{made}{end}": others[order if share == 16 else blocks]}
    for wrong in (False, True):
        if wrong:
            b[f"{made}{end}"] = b[f"{made}{end}"].copy()
            b[f"{made}{end}"].reshape(-1)[7] += 1
        found = compared(tmp_path, a, b)
        kinds = {name: one.kind for one in found.tensors for name in one.b}
        assert kinds[f"{made}.weight"] == LAYOUT
        assert (kinds[f"{made}{end}"] == LAYOUT) is not wrong and found.is_same is not wrong


REAL_NAMES: Mapping[str, list[tuple[str, dict[str, str]]]] = {
    "mla-kv-b-stacks": [
        ("mla-kv-b", {"k_b_proj": "embed_q", "v_b_proj": "unembed_out"}),
        ("mla-kv-b", {"k_b_proj": "attn_k_b", "v_b_proj": "attn_v_b", "kv_b_proj": "attn_kv_b"}),
    ],
    "qkvz-per-head": [("linear-qkv-z", {})],
    "qkvz": [("linear-qkv-z", {}), ("qkvz-per-head", {})],
}  # fmt: skip
"""{layout: another of its group, and what files call the tensors of both}: MLX, GGUF, Qwen3-Next, Qwen3.5, vLLM"""


@pytest.mark.parametrize(
    "name, other, called", [(name, other, called) for name, ways in REAL_NAMES.items() for other, called in ways]
)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_the_names_that_files_have_are_those_of_a_layout(
    name: str, other: str, called: Mapping[str, str], back: bool, tmp_path: Path
) -> None:
    """Under them a map is found and named, and `unfuse` takes the tensors apart."""
    layouts = {one.name: one for one in LAYOUTS}

    def renamed(arrays: Arrays) -> Arrays:
        words = {key: key.split(".") for key in arrays}
        return {".".join(called.get(word, word) for word in words[key]): one for key, one in arrays.items()}

    (parts, one), (_, two) = (planted(layouts[own], "weight", "h.3.self_attn") for own in (name, other))
    a, b = renamed(two), renamed(one)
    found = compared(tmp_path, *((b, a) if back else (a, b)))
    assert has_same_numbers(found), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    assert {one.layout for one in found.tensors if one.kind != SAME} == {other if back else name}
    sizes = " ".join(f"{word}={sizes_of(layouts[name])[word]}" for word in layouts[other].facts)
    paramtool.unfuse(
        tmp_path / "b.safetensors", tmp_path / "apart.safetensors", layout=other if back else name,
        spec=f"{layouts[name].group} {sizes}",
    )  # fmt: skip
    apart = load_file(tmp_path / "apart.safetensors")
    assert apart.keys() == parts.keys() and all(np.array_equal(apart[key], parts[key]) for key in parts)
