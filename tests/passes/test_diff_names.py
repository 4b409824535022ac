"""Renames that proven pairs of names show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.diff.names import Renames, short

WORDS = st.lists(st.sampled_from(["h", "mlp", "attn", "w", "0", "1", "12"]), min_size=1, max_size=4)


def test_numbers_are_carried_over() -> None:
    """What one layer shows holds for all layers, for the whole name and for the places above it."""
    renames = Renames([("h.0.attn.w", "layers.0.self.weight")])
    assert next(renames.of("h.7.attn.w")) == "layers.7.self.weight"
    assert "layers.7.self.b" in renames.of("h.7.attn.b")
    assert "layers.7.ln.weight" in renames.of("h.7.ln.weight")


def test_a_prefix_that_is_added_or_dropped() -> None:
    assert "model.b.w" in Renames([("a.w", "model.a.w")]).of("b.w")
    assert "b.w" in Renames([("model.a.w", "a.w")]).of("model.b.w")


def test_other_separators_show_all_names() -> None:
    pairs = [("params/Dense_0/kernel", "params.Dense_0.kernel"), ("params/Conv_0/kernel", "params.Conv_0.kernel")]
    assert "stats.Norm_0.mean" in Renames(pairs).of("stats/Norm_0/mean")
    assert "stats/Norm_0/mean" in Renames([(new, old) for old, new in pairs]).of("stats.Norm_0.mean")


def test_a_word_that_comes_in_or_leaves() -> None:
    """PEFT's adapters have a name in memory, and none in their files."""
    pairs = [("h.0.q.lora_A.weight", "h.0.q.lora_A.default.weight")]
    assert "h.3.up.lora_B.default.weight" in Renames(pairs).of("h.3.up.lora_B.weight")
    assert "h.3.up.lora_B.weight" in Renames([(new, old) for old, new in pairs]).of("h.3.up.lora_B.default.weight")


def test_numbers_that_change_show_nothing_for_other_numbers() -> None:
    """What is beside a tensor goes where that went."""
    renames = Renames([("a.0.w", "a.1.w"), ("params/Dense_0/kernel", "7.weight")])
    assert "a.1.x" in renames.of("a.0.x") and "7.bias" in renames.of("params/Dense_0/bias")
    assert not any(one.startswith(("a.2", "8")) for old in ("a.1.x", "params/Dense_1/bias") for one in renames.of(old))


@pytest.mark.parametrize(
    ("old", "new", "beside", "name"),
    [
        ("params/Dense_0/kernel", "fc.weight", "params/Dense_0/bias", "fc.bias"),
        ("layers/dense/vars/0", "fc.weight", "layers/dense/vars/1", "fc.bias"),
        ("fc1_weight", "net.fc.weight", "fc1_bias", "net.fc.bias"),
        ("bn.weight", "BatchNorm_0/scale", "bn.running_var", "BatchNorm_0/var"),
        ("fc.weight", "linear/w", "fc.bias", "linear/b"),
        ("h.2.norm.weight", "blocks/2/ln/gamma", "h.5.norm.bias", "blocks/5/ln/beta"),
        ("params/h_0/fc/kernel", "h.0.fc.weight", "params/h_0/norm/scale", "h.0.norm.weight"),
        ("linear/w", "fc.weight", "layer_norm/offset", "layer_norm.bias"),
    ],
)
def test_what_is_beside_a_proven_tensor_has_the_word_of_its_framework(
    old: str, new: str, beside: str, name: str
) -> None:
    assert name in Renames([(old, new)]).of(beside)
    assert beside in Renames([(new, old)]).of(name)


@given(WORDS, WORDS)
def test_a_proven_name_comes_first(old: list[str], new: list[str]) -> None:
    """The pair itself, wherever its numbers are the same; names stay names in any case."""
    a, b = ".".join(old), ".".join(new)
    found = list(Renames([(a, b)]).of(a))
    numbers = [[word for word in words if word.isdecimal()] for words in (old, new)]
    if numbers[0] == numbers[1]:
        assert found[0] == b
    assert all(isinstance(one, str) and "*" not in one for one in found)


@given(st.lists(WORDS.map(".".join), min_size=1, max_size=4, unique=True))
def test_short_names_stay_apart(names: list[str]) -> None:
    found = short(names)
    assert list(found) == names and len(set(found.values())) == len(names)
