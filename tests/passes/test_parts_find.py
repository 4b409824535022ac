"""Groups of parts by the names of tensors: apart and fused, whole and incomplete, and those that are asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError
from paramtool.parts.layout import PartLayout, find_part_layout, group
from paramtool.parts.words import joined
from paramtool.passes.parts import find

QKV, EXPERTS = group("qkv"), group("experts")


def layout(name: str) -> PartLayout:
    found = find_part_layout(name)
    assert found is not None
    return found


def parts(at: str, *suffixes: str) -> list[str]:
    return [joined(at, f"{part}_proj", suffix) for suffix in suffixes or ("weight",) for part in "qkv"]


def experts(at: str, count: int) -> list[str]:
    return [f"{at}.{k}.{part}_proj.weight" for k in range(count) for part in ("gate", "up", "down")]


@given(
    st.permutations(
        [*parts("h.0.attn", "weight", "bias"), *parts("h.1.attn", "weight", "bias"), "h.0.attn.o_proj.weight", "wte"]
    )
)
def test_the_order_of_names_does_not_matter(names: list[str]) -> None:
    found = {one.at: one for one in find.apart(names, QKV, (), "f")}
    assert found.keys() == {"h.0.attn", "h.1.attn"}
    members = {member.suffix: member.tensors for member in found["h.0.attn"].members}
    assert members == {
        suffix: {part: (f"h.0.attn.{part}_proj.{suffix}",) for part in "qkv"} for suffix in ("weight", "bias")
    }


@pytest.mark.parametrize("names", list(QKV.names))
@pytest.mark.parametrize("at", ["", "a", "a.0.b"])
def test_the_names_of_other_models(names: tuple[str, ...], at: str) -> None:
    (one,) = find.apart([joined(at, name, "weight") for name in names], QKV, (), "f")
    assert (one.at, one.names) == (at, names)


def test_at_chooses_modules() -> None:
    names = [*parts("encoder.0.attn"), *parts("decoder.0.attn"), *parts("decoder.1.attn")]
    found = find.apart(names, QKV, ("decoder.*",), "f")
    assert [one.at for one in found] == ["decoder.0.attn", "decoder.1.attn"]
    with pytest.raises(LayoutError, match=r"at 'vision\.\*'"):
        find.apart(names, QKV, ("vision.*",), "f")


@given(st.integers(1, 5), st.data())
def test_a_missing_tensor_is_named(count: int, data: st.DataObject) -> None:
    """Whatever is taken out of experts, the answer is an error that names it, and never a smaller group."""
    names = experts("mlp.experts", count)
    lost = data.draw(st.sampled_from(names))
    if len(names) == 3 or lost.startswith(f"mlp.experts.{count - 1}."):
        kept = [name for name in names if name != lost]
    else:
        kept = [name for name in names if not name.startswith(lost.rpartition(".")[0].rpartition(".")[0] + ".")]
    with pytest.raises(LayoutError) as error:
        find.apart(kept, EXPERTS, (), "f")
    number, part = lost.split(".")[2:4]
    assert part in error.value.message or f"no expert {number}" in error.value.message


def test_experts_are_in_the_order_of_their_numbers() -> None:
    (one,) = find.apart(reversed(experts("e", 11)), EXPERTS, (), "f")
    (member,) = one.members
    assert member.tensors["up"] == tuple(f"e.{k}.up_proj.weight" for k in range(11))


def test_one_part_alone_is_no_group() -> None:
    """A module may have a `q_proj` and be something else; two usual names of three are a group with a part missing."""
    names = [*parts("a"), "b.q_proj.weight"]
    assert [one.at for one in find.apart(names, QKV, (), "f")] == ["a"]
    with pytest.raises(LayoutError, match=r"b: has k_proj, q_proj and no v_proj"):
        find.apart([*names, "b.k_proj.weight"], QKV, (), "f")


@pytest.mark.parametrize("name", ["qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack"])
def test_fused_tensors_by_name(name: str) -> None:
    names = [f"h.0.attn.{name}.bias", f"h.0.attn.{name}.weight", "h.0.attn.dense.weight"]
    (one,) = find.fused(names, layout("qkv"), (), "f")
    assert (one.at, one.names) == ("h.0.attn", (name,))
    assert dict(one.members) == {f".{kind}": (f"h.0.attn.{name}.{kind}",) for kind in ("weight", "bias")}


def test_names_of_a_multihead_attention() -> None:
    """`in_proj_weight` has no dot."""
    (one,) = find.fused(["a.in_proj_weight", "a.in_proj_bias"], layout("qkv"), (), "f")
    assert dict(one.members) == {"_weight": ("a.in_proj_weight",), "_bias": ("a.in_proj_bias",)}


def test_stacks_need_all_their_rows() -> None:
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "other.experts.gate_up_proj"]
    found = find.fused(names, layout("experts"), (), "f")
    assert [one.at for one in found] == ["mlp.experts"]
    with pytest.raises(LayoutError, match=r"'other\.experts' has gate_up_proj and no down_proj"):
        find.fused(names, layout("experts"), ("other.*",), "f")


def test_at_names_a_tensor_of_any_name() -> None:
    names = ["h.0.mixer.weight", "h.0.mixer.bias", "h.0.norm.weight"]
    with pytest.raises(LayoutError, match="has no tensors called"):
        find.fused(names, layout("qkv"), (), "f")
    (one,) = find.fused(names, layout("qkv"), ("h.0.mixer",), "f")
    assert (one.at, one.names) == ("h.0", ("mixer",))


LAYER = [f"model.layers.1.{name}.weight" for name in ("attn.qkv_proj", "attn.o_proj", "mlp.down_proj", "norm")]


@pytest.mark.parametrize("pattern", ["model.layers.1.*", "model.*", "*.attn", "*attn*", "*"])
def test_a_pattern_takes_only_tensors_of_the_layout(pattern: str) -> None:
    """`o_proj` in the same module is of another meaning, whatever the pattern matches."""
    (one,) = find.fused(LAYER, layout("qkv"), (pattern,), "f")
    assert one.members == ((".weight", ("model.layers.1.attn.qkv_proj.weight",)),)


def test_a_pattern_that_matches_none_of_the_layout_says_what_it_matches() -> None:
    with pytest.raises(LayoutError) as error:
        find.fused(LAYER[1:], layout("qkv"), ("model.layers.1.*",), "f")
    assert "matches no tensor that layout qkv is known for ('qkv_proj', " in error.value.message
    assert "3 other names, which were not used: 'o_proj', 'down_proj', 'norm'" in error.value.message
    assert "--at" in error.value.hint


def test_the_same_name_is_of_another_kind_in_a_cross_attention() -> None:
    names = [f"h.{k}.{module}.c_attn.{kind}" for k in range(2) for module in ("attn", "crossattention")
             for kind in ("weight", "bias")]  # fmt: skip
    for at in ((), ("h.*",)):
        found = find.fused(names, layout("qkv-conv1d"), at, "f")
        assert [one.at for one in found] == ["h.0.attn", "h.1.attn"]
    found = find.fused(names, layout("kv-conv1d"), (), "f")
    assert [one.at for one in found] == ["h.0.crossattention", "h.1.crossattention"]
