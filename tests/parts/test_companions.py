"""Companions follow their weights: what is dequantised after a move is what is moved after dequantising.

The dequantisers are written from the definitions of the schemes' own projects (see `paramtool.parts.schemes`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts.blocks import Image, roles
from paramtool.parts.companions import Followers, follow
from paramtool.parts.patterns import PARTS
from paramtool.parts.pieces import Stored, joined, part_shapes
from paramtool.parts.rows import PartTensor, stored
from paramtool.parts.schemes import Packing, axes_of, is_companion, logical
from paramtool.parts.sizes import Sizes

Arrays = dict[str, np.ndarray]
QKV = "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]"
PER_HEAD = "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}"
PER_GROUP = "{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}"
CONV1D = "q[in (heads head_dim)] k[in (kv_heads head_dim)] v[in (kv_heads value_dim)]"
GATE_UP, INTERLEAVED = "gate[ffn in] up[ffn in]", "{ffn: gate[1 in] up[1 in]}"
STACK, TURNED = "gate[experts ffn in] up[experts ffn in]", "gate[experts in ffn] up[experts in ffn]"


def attention(content: str, sizes: Mapping[str, int], along: int = 0) -> Stored:
    """A fused weight `m.f.weight` with its parts `m.q.weight`, ... (of experts `m.0.gate.weight`, ...)."""
    known = Sizes(sizes)
    count = sizes.get("experts", 0)
    terms = dict.fromkeys(piece for piece in ["q", "k", "v", "gate", "up"] if f"{piece}[" in content)
    parts = {}
    for term in terms:
        axes = PARTS[term] if "kv_heads" in content else PARTS[term].replace("kv_heads", "heads")
        shape = tuple(int(np.prod([known.of(word) for word in group.strip("()").split()])) for group in _split(axes))
        places = [f"m.{k}.{term}.weight" for k in range(count)] if count else [f"m.{term}.weight"]
        parts[term] = [PartTensor(name, axes, shape) for name in places]
    return stored("m.f.weight", content, along, parts, sizes=known)


def _split(axes: str) -> list[str]:
    found, depth = [""], 0
    for letter in axes:
        depth += (letter == "(") - (letter == ")")
        if letter == " " and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def moved(target: Stored, sources: Mapping[str, Stored], arrays: Arrays) -> np.ndarray:
    """An array of a tensor, made of those of the tensors that hold its parts."""
    dtype = next(iter(arrays.values())).dtype
    made = np.zeros(target.shape, dtype)
    filled = np.zeros(target.shape, int)
    for name, source in sources.items():
        for piece in target.pieces:
            for pair in joined([piece], [p for p in source.pieces if p.part == piece.part]):
                here, there = _places(pair.mine, target.shape), _places(pair.other, source.shape)
                made.reshape(-1)[here] = arrays[name].reshape(-1)[there]
                filled.reshape(-1)[here] += 1
    assert (filled >= 1).all()
    return made


def _places(piece: object, shape: tuple[int, ...]) -> np.ndarray:
    strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    place = np.array(sum(k * s for k, s in zip(piece.at, strides, strict=True)))  # type: ignore[attr-defined]
    for digits in piece.digits:  # type: ignore[attr-defined]
        for digit in digits:
            place = place[..., None] + np.arange(digit.length) * digit.step * strides[digit.axis]
    return place.reshape(-1)


def fused_of(made: Image, arrays: Arrays) -> np.ndarray:
    return moved(made.fused, {one.name: one for one in made.parts}, arrays)


def followed(weight: Stored, suffix: str, arrays: Arrays, packing: Packing = Packing()) -> Image:  # noqa: B008
    """The companion of a weight whose parts have these arrays, and back again: taken apart it is the same."""
    names = {name: name.removesuffix("weight") + suffix for name in [weight.name, *part_shapes([weight])]}
    made = follow(Followers(weight, suffix, names, {name: array.shape for name, array in arrays.items()}, packing))
    fused = fused_of(made, arrays)
    back = follow(Followers(weight, suffix, names, {made.fused.name: made.fused.shape}, packing))
    assert back.fused == made.fused
    for one in back.parts:
        assert (moved(one, {back.fused.name: back.fused}, {back.fused.name: fused}) == arrays[one.name]).all()
    return made


def together(weight: Stored, wholes: Arrays) -> np.ndarray:
    """A fused weight, its axes in the order [.., outputs, inputs]."""
    parts = {part: wholes[part] for part in part_shapes([weight])}
    sources = {name: one for name in parts for one in [_alone(name, parts[name].shape)]}
    where = roles(weight)
    return moved(weight, sources, parts).transpose((*where.rest, where.out, where.inside))


def is_turned(weight: Stored) -> bool:
    where = roles(weight)
    return where.inside < where.out


def in_rows(weight: Stored, array: np.ndarray) -> np.ndarray:
    """Scales in the order of `together`: they are turned where their weight is."""
    return array.swapaxes(-1, -2) if is_turned(weight) else array


def _alone(name: str, shape: tuple[int, ...]) -> Stored:
    from paramtool.parts.pieces import whole

    return whole(name, shape)


@st.composite
def weights(draw: st.DrawFn, unit: int = 1) -> Stored:
    """Fused weights whose heads have multiples of some rows."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = {
        "kv_heads": kv_heads, "heads": kv_heads * group, "head_dim": unit * draw(st.integers(1, 3)),
        "value_dim": unit * draw(st.integers(1, 3)), "ffn": unit * draw(st.integers(1, 4)), "in": 16,
        "experts": draw(st.integers(1, 3)),
    }  # fmt: skip
    kind, along = draw(
        st.sampled_from([(QKV, 0), (PER_HEAD, 0), (PER_GROUP, 0), (CONV1D, 1), (GATE_UP, 0), (STACK, 1), (TURNED, 2)])
    )
    if kind == PER_HEAD:
        sizes["kv_heads"] = sizes["heads"]
    if "experts" not in kind:
        del sizes["experts"]
    return attention(kind, sizes, along)


def numbers(shape: tuple[int, ...], seed: int, high: int = 1 << 15) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape)


def per_part(weight: Stored, suffix: str, shape_of: object) -> Arrays:
    """Random arrays for each part: shape_of(outputs, inputs)."""
    return {
        part.removesuffix("weight") + suffix: numbers(shape_of(*shape), k)  # type: ignore[operator]
        for k, (part, shape) in enumerate(part_shapes([weight]).items())
    }


def spread(array: np.ndarray, out: int, inside: int) -> np.ndarray:
    """Scales as large as their weight: each repeated over its block."""
    rows, columns = -(-out // array.shape[-2]), -(-inside // array.shape[-1])
    return array.repeat(rows, -2)[..., :out, :].repeat(columns, -1)[..., :inside]


@given(weights(), st.sampled_from([(1, 16), (1, 4), (1, 1)]))
def test_scales_of_rows_and_of_groups_follow_any_rows(weight: Stored, block: tuple[int, int]) -> None:
    scales = per_part(weight, "weight_scale", lambda out, inside: (out, inside // block[1]))
    assume(all(one.size > 1 for one in scales.values()))
    made = followed(weight, "weight_scale", scales)
    fused = together(weight, {n.removesuffix("_scale"): spread(a, *part_shapes([weight])[n.removesuffix("_scale")])
                              for n, a in scales.items()})  # fmt: skip
    assert (spread(in_rows(weight, fused_of(made, scales)), *fused.shape[-2:]) == fused).all()


@given(weights(unit=2), st.sampled_from([(2, 4), (4, 4), (3, 4)]))
def test_scales_of_tiles_follow_whole_tiles_or_are_refused(weight: Stored, tile: tuple[int, int]) -> None:
    """Refused exactly where a tile of the fused weight would have rows of two tiles."""
    shapes = part_shapes([weight])
    tiles = {}
    for k, (part, shape) in enumerate(shapes.items()):
        count = (-(-shape[0] // tile[0]), shape[1] // tile[1])
        tiles[part] = np.arange(count[0] * count[1]).reshape(count) + 1000 * k
    large = {part: array.repeat(tile[0], 0)[: shapes[part][0]].repeat(tile[1], 1) for part, array in tiles.items()}
    fused = together(weight, large)
    rows = [fused[..., k : k + tile[0], :] for k in range(0, fused.shape[-2], tile[0])]
    fits = all((one == one[..., :1, :]).all() for one in rows)
    scales = {f"{part}_scale_inv": array for part, array in tiles.items()}
    assume(all(a.shape[0] not in (1, shapes[n.removesuffix("_scale_inv")][0]) for n, a in scales.items()))
    if not fits:
        with pytest.raises(LayoutError, match="weight_scale_inv' cannot follow its weight"):
            followed(weight, "weight_scale_inv", scales, Packing(tile=tile))
        return
    try:
        made = followed(weight, "weight_scale_inv", scales, Packing(tile=tile))
    except LayoutError:  # a whole tile that ends inside of the fused weight: the next begins in the middle of one
        starts = np.unique(fused[..., 0], return_index=True)[1]
        assert (starts % tile[0]).any() or fused.shape[-2] % tile[0] or fused.ndim > 2
        return
    there = in_rows(weight, fused_of(made, scales)).repeat(tile[0], -2)[..., : fused.shape[-2], :].repeat(tile[1], -1)
    assert (there == fused).all()


def pack(codes: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """8 codes of 4 bits in an int32, along an axis; the k-th 4 bits hold the code `order[k]`."""
    codes = np.moveaxis(codes, axis, -1)
    eight = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)[..., list(order)]
    return np.moveaxis((eight << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32), -1, axis)


def unpack(packed: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    packed = np.moveaxis(packed, axis, -1)
    eight = (packed[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    inverse = np.argsort(order)
    return np.moveaxis(eight[..., inverse].reshape(*packed.shape[:-1], -1), -1, axis).astype(int)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@given(weights(unit=8), st.integers(0, 9), st.sampled_from(["gptq", "awq"]))
def test_gptq_and_awq(weight: Stored, seed: int, scheme: str) -> None:
    """GPTQ packs inputs (its zero points outputs), AWQ outputs: w = scale[group] * (code - zero[group])."""
    axis, order = (-2, tuple(range(8))) if scheme == "gptq" else (-1, AWQ_ORDER)
    kept: dict[str, Arrays] = {"qweight": {}, "qzeros": {}, "scales": {}}
    large: Arrays = {}
    groups = np.arange(16) // 8
    for k, (part, (out, inside)) in enumerate(part_shapes([weight]).items()):
        codes, zeros = numbers((inside, out), seed + k, 16), numbers((2, out), seed + k + 50, 16)
        scales = numbers((2, out), seed + k + 90)
        large[part] = (scales[groups] * (codes - zeros[groups])).T
        stem = part.removesuffix("weight")
        kept["qweight"][f"{stem}qweight"] = pack(codes, axis, order)
        kept["qzeros"][f"{stem}qzeros"] = pack(zeros, -1, order)
        kept["scales"][f"{stem}scales"] = scales
    fused = {suffix: fused_of(followed(weight, suffix, arrays), arrays) for suffix, arrays in kept.items()}
    codes, zeros = unpack(fused["qweight"], axis, order), unpack(fused["qzeros"], -1, order)
    made = fused["scales"][..., groups, :] * (codes - zeros[..., groups, :])
    assert (made.swapaxes(-1, -2) == together(weight, large)).all()


def test_the_order_of_gptq_inputs_is_one_for_all() -> None:
    """g_idx of q, k and v is one part: the plan asks for equal bytes."""
    weight = attention(QKV, {"heads": 4, "kv_heads": 2, "head_dim": 8, "in": 16})
    same = np.arange(16) // 4
    made = followed(weight, "g_idx", {f"m.{x}.g_idx": same for x in "qkv"})
    assert {piece.part for one in (made.fused, *made.parts) for piece in one.pieces} == {"m.q.g_idx"}
    assert made.fused.shape == (16,)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("suffix", ["weight_scale", "input_scale", "weight_scale_2", "weight_global_scale"])
def test_scales_of_whole_tensors_are_one_for_all(shape: tuple[int, ...], suffix: str) -> None:
    """Different ones would need quantising again; whether they are equal only the bytes show."""
    weight = attention(PER_GROUP, {"heads": 4, "kv_heads": 2, "head_dim": 8, "in": 16})
    made = followed(weight, suffix, {f"m.{x}.{suffix}": np.full(shape, 3) for x in "qkv"})
    assert {piece.part for one in (made.fused, *made.parts) for piece in one.pieces} == {f"m.q.{suffix}"}
    assert made.fused.shape == shape


def test_scales_of_rows_cannot_be_joined_along_inputs_unless_equal() -> None:
    """A join of columns has one scale for a row of both: equal bytes are asked for."""
    weight = Stored("m.f.weight", (4, 6), (
        _piece("m.a.weight", (4, 3), (0, 0)), _piece("m.b.weight", (4, 3), (0, 3))))  # fmt: skip
    names = {name: f"{name}_scale" for name in ("m.f.weight", "m.a.weight", "m.b.weight")}
    made = follow(Followers(weight, "weight_scale", names, {"m.a.weight_scale": (4, 1), "m.b.weight_scale": (4, 1)}))
    assert {piece.part for piece in made.fused.pieces} == {"m.a.weight_scale"}


def _piece(part: str, shape: tuple[int, int], at: tuple[int, int]) -> object:
    return _alone(part, shape).pieces[0]._replace(at=at)


@given(weights(), st.integers(0, 9))
def test_nvfp4_and_packed_rows(weight: Stored, seed: int) -> None:
    """Two codes of a row in a byte, a scale for 16 inputs, and one for the tensor."""
    packed = per_part(weight, "weight_packed", lambda out, inside: (out, inside // 2))
    if is_turned(weight):
        with pytest.raises(LayoutError, match="its codes are packed along the inputs of a row"):
            followed(weight, "weight_packed", packed)
        return
    made = fused_of(followed(weight, "weight_packed", packed), packed)
    large = {n.removesuffix("_packed"): a.repeat(2, 1) for n, a in packed.items()}
    assert (made.repeat(2, -1) == together(weight, large)).all()
    own = per_part(weight, "weight", lambda out, inside: (out, inside // 2))
    assert (fused_of(followed(weight, "weight", own), own).repeat(2, -1)
            == together(weight, {n: a.repeat(2, 1) for n, a in own.items()})).all()  # fmt: skip


def test_mxfp4_stacks_of_interleaved_experts() -> None:
    """gpt-oss: [experts, outputs, inputs / 32, 16] codes and [experts, outputs, inputs / 32] scales."""
    content = "{ffn: gate[experts in 1] up[experts in 1]}"
    weight = attention(content, {"experts": 3, "ffn": 5, "in": 64}, 2)
    blocks = per_part(weight, "blocks", lambda out, inside: (out, inside // 32, 16))
    scales = per_part(weight, "scales", lambda out, inside: (out, inside // 32))
    made = fused_of(followed(weight, "blocks", blocks), blocks)
    scale = fused_of(followed(weight, "scales", scales), scales)
    assert made.shape == (3, 10, 2, 16) and scale.shape == (3, 10, 2)
    for expert in range(3):
        for k, part in enumerate(("gate", "up")):
            assert (made[expert, k::2] == blocks[f"m.{expert}.{part}.blocks"]).all()
            assert (scale[expert, k::2] == scales[f"m.{expert}.{part}.scales"]).all()


def test_tiles_of_interleaved_rows_are_refused_by_name() -> None:
    weight = attention(INTERLEAVED, {"ffn": 256, "in": 256})
    names = {name: f"{name}_scale_inv" for name in [weight.name, *part_shapes([weight])]}
    shapes = {"m.gate.weight_scale_inv": (2, 2), "m.up.weight_scale_inv": (2, 2)}
    with pytest.raises(LayoutError) as caught:
        follow(Followers(weight, "weight_scale_inv", names, shapes))
    for part in ("m.f.weight_scale_inv", "m.gate.weight_scale_inv", "128 x 128", "runs of 1"):
        assert part in caught.value.message


@given(st.sampled_from([4, 8, 16]), st.integers(1, 3), st.sampled_from([QKV, PER_HEAD, PER_GROUP]))
def test_flat_codes_of_bitsandbytes(head_dim: int, kv_heads: int, content: str) -> None:
    """Bytes of two codes and a scale for 64 elements, all in one row: heads of whole 64-blocks move."""
    heads = kv_heads if content == PER_HEAD else 2 * kv_heads
    weight = attention(content, {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "in": 16})
    codes = per_part(weight, "weight", lambda out, inside: (out * inside // 2, 1))
    absmax = per_part(weight, "weight.absmax", lambda out, inside: (out * inside // 64,))
    shapes = part_shapes([weight])
    large = {n: (a.repeat(2, 1).reshape(-1) * absmax[f"{n}.absmax"].repeat(64)).reshape(shapes[n])
             for n, a in codes.items()}  # fmt: skip
    made, scale = (fused_of(followed(weight, s, a), a) for s, a in (("weight", codes), ("weight.absmax", absmax)))
    expected = together(weight, large)
    assert ((made.repeat(2, 1).reshape(-1) * scale.repeat(64)).reshape(expected.shape) == expected).all()


def test_flat_scales_that_cross_rows_of_two_parts_are_refused() -> None:
    weight = attention(PER_HEAD, {"heads": 4, "kv_heads": 4, "head_dim": 2, "in": 16})
    absmax = per_part(weight, "weight.absmax", lambda out, inside: (out * inside // 64,))
    with pytest.raises(LayoutError, match="blocks of 64, and its elements move in runs of 32"):
        followed(weight, "weight.absmax", absmax)


@given(st.integers(1, 4), st.sampled_from([QKV, PER_GROUP]), st.integers(0, 9))
def test_low_rank_factors(rank: int, content: str, seed: int) -> None:
    """B A of a fused weight are B A of its parts, where all have one A."""
    weight = attention(content, {"heads": 4, "kv_heads": 2, "head_dim": 3, "in": 16})
    a = numbers((rank, 16), seed)
    b = per_part(weight, "lora_B.weight", lambda out, inside: (out, rank))
    made_a = followed(weight, "lora_A.weight", {f"m.{x}.lora_A.weight": a for x in "qkv"})
    assert {piece.part for one in made_a.parts for piece in one.pieces} == {"m.q.lora_A.weight"}
    made_b = fused_of(followed(weight, "lora_B.weight", b), b)
    large = {n.replace("lora_B.weight", "weight"): array @ a for n, array in b.items()}
    assert (made_b @ a == together(weight, large)).all()


def test_low_rank_factors_of_several_ranks_are_refused() -> None:
    weight = attention(GATE_UP, {"ffn": 4, "in": 16})
    names = {name: name.replace("weight", "lora_B.weight") for name in [weight.name, *part_shapes([weight])]}
    with pytest.raises(LayoutError, match="have ranks 2, 3"):
        follow(
            Followers(weight, "lora_B.weight", names, {"m.gate.lora_B.weight": (4, 2), "m.up.lora_B.weight": (4, 3)})
        )


@pytest.mark.parametrize("writer", ["peft", "unsloth"])
def test_low_rank_factors_of_stacked_experts(writer: str) -> None:
    """PEFT has the columns of B in the order (rank expert), Unsloth in the order (expert rank)."""
    weight = attention("gate[experts ffn in]", {"experts": 3, "ffn": 4, "in": 16}, 1)
    a = per_part(weight, "lora_A.weight", lambda out, inside: (2, inside))
    b = per_part(weight, "lora_B.weight", lambda out, inside: (out, 2))
    for arrays in (a, b):
        with pytest.raises(LayoutError, match="nothing says who did"):
            followed(weight, next(iter(arrays)).partition("gate.")[2], arrays)
    stack_a = fused_of(followed(weight, "lora_A.weight", a, Packing(writer=writer)), a)
    stack_b = fused_of(followed(weight, "lora_B.weight", b, Packing(writer=writer)), b)
    assert stack_a.shape == (6, 16) and stack_b.shape == (4, 6)
    for k in range(3):
        columns = slice(k, None, 3) if writer == "peft" else slice(2 * k, 2 * k + 2)
        assert (stack_a[2 * k : 2 * k + 2] == a[f"m.{k}.gate.lora_A.weight"]).all()
        assert (stack_b[:, columns] == b[f"m.{k}.gate.lora_B.weight"]).all()


@pytest.mark.parametrize(
    "suffix", ["weight_shape", "weight.nested_absmax", "weight.quant_state.bitsandbytes__nf4", "lora_embedding_A"]
)
def test_what_would_have_to_be_written_anew_is_refused(suffix: str) -> None:
    weight = attention(GATE_UP, {"ffn": 4, "in": 16})
    with pytest.raises(LayoutError, match="cannot follow its weight"):
        followed(weight, suffix, {"m.gate." + suffix: numbers((2,), 0), "m.up." + suffix: numbers((2,), 1)})


@pytest.mark.parametrize(
    ("suffix", "shape"),
    [("weight_scale", (5, 16)), ("g_idx", (15,)), ("qzeros", (3, 5)), ("weight.absmax", (7,)), ("bias", (16,))],
)
def test_shapes_that_fit_no_scheme_are_named(suffix: str, shape: tuple[int, ...]) -> None:
    weight = attention(GATE_UP, {"ffn": 4, "in": 16})
    with pytest.raises(LayoutError, match=r"fits no scheme for a weight of 4 x 16"):
        followed(weight, suffix, {f"m.{x}.{suffix}": numbers(shape, 0) for x in ("gate", "up")})


def test_scales_that_fit_two_schemes_need_the_method() -> None:
    """8 groups of a weight with 8 outputs: [groups, outputs] or [outputs, groups]."""
    by_columns = axes_of("scales", (8, 8), (8, 64), Packing(method="gptq"))
    assert axes_of("scales", (8, 8), (8, 64), Packing()) is None
    assert by_columns is not None and [axis.role for axis in by_columns] == ["in", "out"]
    assert axes_of("scales", (8, 8), (8, 64), Packing(method="mxfp4")) == by_columns[::-1]


def test_parts_in_other_groups_are_refused() -> None:
    weight = attention(GATE_UP, {"ffn": 4, "in": 16})
    arrays = {"m.gate.weight_scale": numbers((4, 2), 0), "m.up.weight_scale": numbers((4, 4), 1)}
    with pytest.raises(LayoutError, match=r"has other blocks than 'm\.gate\.weight_scale'"):
        followed(weight, "weight_scale", arrays)


@pytest.mark.parametrize(
    ("shapes", "packing", "itemsize", "expected"),
    [
        ({"qweight": (64, 256), "scales": (4, 256), "g_idx": (512,)}, Packing(), 4, (256, 512)),
        ({"qweight": (48, 256), "scales": (4, 256), "g_idx": (512,)}, Packing(3), 4, (256, 512)),
        ({"qweight": (128, 256), "scales": (4, 256)}, Packing(8), 4, (256, 512)),
        ({"qweight": (512, 32), "scales": (4, 256)}, Packing(), 4, (256, 512)),
        ({"weight_packed": (256, 64), "weight_shape": (2,)}, Packing(), 4, (256, 512)),
        ({"weight_packed": (256, 256)}, Packing(), 1, (256, 512)),
        ({"blocks": (8, 256, 16, 16), "scales": (8, 256, 16)}, Packing(), 1, (256, 512)),
        ({"weight": (256, 512)}, Packing(), 1, (256, 512)),
        ({"qweight": (7, 9), "scales": (4, 256)}, Packing(), 4, None),
        ({"bias": (256,)}, Packing(), 4, None),
    ],
)
def test_the_shape_before_packing(shapes: dict, packing: Packing, itemsize: int, expected: tuple | None) -> None:
    assert logical(shapes, packing, itemsize) == expected


def test_names_that_are_companions() -> None:
    for suffix in ("qweight", "weight_scale_inv", "lora_A.default.weight", "weight.absmax", "SCB", "bias"):
        assert is_companion(suffix), suffix
    for suffix in ("weights", "num_batches_tracked", "lora_C.weight", "inv_freq"):
        assert not is_companion(suffix), suffix
    assert axes_of("unheard_of", (4,), (4, 16), Packing()) is None


def test_scales_of_a_turned_stack_in_either_order() -> None:
    """Turned as the stack is; [experts, outputs, 1] beside [experts, inputs, outputs] is one for each output, too."""
    weight = attention(TURNED, {"experts": 2, "ffn": 3, "in": 16}, 2)
    names = {name: f"{name}_scale" for name in [weight.name, *part_shapes([weight])]}
    for shape in ((2, 1, 6), (2, 6, 1)):
        made = follow(Followers(weight, "weight_scale", names, {"m.f.weight_scale": shape}))
        assert made.fused.shape == shape and all(one.shape == (3, 1) for one in made.parts)
    with pytest.raises(LayoutError, match="fits no scheme"):
        follow(Followers(weight, "weight_scale", names, {"m.f.weight_scale": (2, 5, 1)}))


def test_codes_of_mxfp4_in_a_stack_that_is_one_part() -> None:
    """[experts, inputs, outputs] when it is dequantised, [experts, outputs, ...] in the file; vLLM has an axis less."""
    part = _alone("e.gate_up_proj", (2, 64, 64))  # square: no shape tells
    (piece,) = part.pieces
    turned = Stored(
        "e.w13_weight",
        (2, 64, 64),
        (
            piece._replace(
                digits=(
                    piece.digits[0],
                    *(tuple(d._replace(axis=3 - d.axis) for d in axis) for axis in piece.digits[1:]),
                )
            ),
        ),
    )
    packing = Packing(method="mxfp4")
    names = {"e.w13_weight": "e.w13_weight", "e.gate_up_proj": "e.gate_up_proj_blocks"}
    blocks = {"e.gate_up_proj_blocks": numbers((2, 64, 2, 16), 1)}
    made = follow(Followers(turned, "blocks", names, {name: one.shape for name, one in blocks.items()}, packing))
    assert (fused_of(made, blocks) == blocks["e.gate_up_proj_blocks"].reshape(2, 64, 32)).all()
    assert follow(Followers(turned, "blocks", names, {"e.w13_weight": (2, 64, 32)}, packing)) == made
