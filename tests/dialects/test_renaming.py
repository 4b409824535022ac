"""Names in both directions, for each kind of rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.dialects.renaming import NameRule, Renaming, from_table, natural


def rename(source: str | list[str], target: str | list[str], kind: str = "rename", **more: int) -> NameRule:
    both = [[one] if isinstance(one, str) else one for one in (source, target)]
    return from_table({"kind": kind, "sources": both[0], "targets": both[1], **more}, "test")


def prefix(**row: str) -> NameRule:
    return from_table({"kind": "prefix", **row}, "test")


CASES = [
    (rename("attention.query", "q_proj"), "h.0.attention.query.weight", "h.0.q_proj.weight"),
    (rename(r"^visual\.", "model.visual."), "visual.a", "model.visual.a"),
    (rename(r"(layers\.\d+)\.ln_1\.", r"\1.norm."), "x.layers.12.ln_1.bias", "x.layers.12.norm.bias"),
    (rename(r"\.w(?!_)", ".v"), "a.w", "a.v"),
    (rename(r"^model(?!\.(visual|text))", "model.text"), "model.norm", "model.text.norm"),
    (rename(r"(?<!model\.)layer\.", "model.layer."), "layer.0.w", "model.layer.0.w"),
    (rename(r"q\.(\d+)", r"layers.\1.q", "offset", offset=1), "q.3", "layers.4.q"),
    (rename(r"layers\.(\d+)\.mixer", r"layers.\1.self_attn", "pair", offset=0), "layers.6.mixer.w",
     "layers.3.self_attn.w"),
    (rename(r"layers\.(\d+)\.mixer", r"layers.\1.mlp", "pair", offset=1), "layers.7.mixer.w", "layers.3.mlp.w"),
    (prefix(add="timm_model"), "stem.w", "timm_model.stem.w"),
    (prefix(remove="model", under="vlm"), "vlm.model.w", "vlm.w"),
    (prefix(add="text", under="model"), "model.w", "model.text.w"),
]  # fmt: skip


@pytest.mark.parametrize("rule, old, new", CASES)
def test_there_and_back(rule: NameRule, old: str, new: str) -> None:
    assert Renaming([rule]).of([old])[old].name == new
    assert Renaming([rule], back=True).of([new])[new].name == old


@pytest.mark.parametrize("rule, old, new", CASES)
def test_within_a_scope(rule: NameRule, old: str, new: str) -> None:
    """Below the path of the module, with and without the prefix of the base model, and nowhere else."""
    scoped = Renaming([replace(rule, scope="tower", base="model")])
    for head in ("tower.", "model.tower."):
        assert scoped.of([head + old])[head + old].name == head + new
    assert not scoped.of([f"other.{old}"])[f"other.{old}"].changed


@pytest.mark.parametrize(
    "source, name",
    [("weight", "a.weight_scale"), ("q_proj", "q_project"), (r"^a\.", "b.a.c"), (r"\.w(?!_)", "a.w_b")],
)
def test_what_does_not_match(source: str, name: str) -> None:
    assert not Renaming([rename(source, "z")]).of([name])[name].changed


@pytest.mark.parametrize("name", ["layers.7.mixer.w", "layers.6.mixers.w", "layers.6.norm.w"])
def test_blocks_that_are_not_the_first_of_a_pair(name: str) -> None:
    first = rename(r"layers\.(\d+)\.mixer", r"layers.\1.self_attn", "pair", offset=0)
    assert not Renaming([first]).of([name])[name].changed


def test_a_prefix_that_is_there_is_not_added() -> None:
    name = "timm_model.stem.w"
    assert Renaming([prefix(add="timm_model")]).of([name])[name].name == name


def test_names_that_move_up_together() -> None:
    """norm0 -> norm1 and norm1 -> norm2, but a file that has no norm0 was renamed before."""
    rule = rename([r"b.(\d+).norm0", r"b.(\d+).norm1"], [r"b.\1.norm1", r"b.\1.norm2"], "group")
    old, new = (
        ["b.0.norm1", "b.0.norm0", "b.1.norm0", "b.1.norm1"],
        {"b.0.norm1", "b.0.norm2", "b.1.norm1", "b.1.norm2"},
    )
    assert {one.name for one in Renaming([rule]).of(old).values()} == new
    assert {name: one.name for name, one in Renaming([rule]).of(new).items()} == {name: name for name in new}
    assert {one.name for one in Renaming([rule], back=True).of(new).values()} == set(old)


def test_one_converter_takes_a_name() -> None:
    rules = [
        rename([".experts.*.w1.weight", ".experts.*.w3.weight"], ".experts.gate_up_proj", "convert"),
        rename(".experts.*.w2.weight", ".experts.down_proj", "convert"),
        rename(".block.", ".mlp."),
    ]
    found = Renaming(rules).of(["h.10.block.experts.7.w3.weight"])["h.10.block.experts.7.w3.weight"]
    assert (found.name, found.which, found.number) == ("h.10.mlp.experts.gate_up_proj", 1, "7")
    back = Renaming(rules, back=True).of([found.name])[found.name]
    assert (back.name, back.which) == ("h.10.mlp.experts.*.w1.weight", 0)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 12), st.sampled_from(["w1", "w2", "w3"])), unique=True))
def test_lists_are_as_name_by_name(numbers: list[tuple[int, int, str]]) -> None:
    """Experts are renamed a list at a time; each alone gives the same."""
    rules = [
        rename([".experts.*.w1.weight", ".experts.*.w3.weight"], ".experts.gate_up_proj", "convert"),
        rename(r"experts\.(\d+)\.w2", r"experts.\1.down"),
    ]
    names = [f"h.{layer}.experts.{expert}.{w}.weight" for expert, layer, w in numbers]
    together = Renaming(rules).of(names)
    for name in names:
        alone = Renaming(rules).of([name])[name]
        assert together[name][:1] + together[name][2:] == alone[:1] + alone[2:]


def test_numbers_sort_as_numbers() -> None:
    assert sorted(["a.10.b", "a.9.b", "a.shard_11", "a.shard_2", "a.b", "a"], key=natural) == [
        "a", "a.9.b", "a.10.b", "a.b", "a.shard_2", "a.shard_11",
    ]  # fmt: skip
