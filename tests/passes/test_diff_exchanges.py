"""Names that are in each other's places, by the rename that the others show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.diff.names import exchanged

NAMES = [f"model.layers.{k}.{name}.weight" for k in range(5) for name in ("q", "k", "o")] + ["model.norm.weight"]


def found(news: dict[str, str], *, alike: bool = True) -> set[str]:
    """What is exchanged, of all names in front of which `model` became `x`, but for some."""
    pairs = [(old, news.get(old, old.replace("model", "x"))) for old in NAMES]
    return set(exchanged(pairs, lambda one, other: alike))


def layers(order: list[int]) -> dict[str, str]:
    return {
        f"model.layers.{k}.{name}.weight": f"x.layers.{new}.{name}.weight"
        for k, new in enumerate(order)
        for name in ("q", "k", "o")
    }


@given(st.permutations(range(5)))
def test_the_layers_that_moved_are_named(order: list[int]) -> None:
    """Those of any order, and no layer that stays."""
    wanted = {f"x.layers.{new}.{name}.weight" for k, new in enumerate(order) if k != new for name in ("q", "k", "o")}
    assert found(layers(order)) == wanted


def test_other_shapes_are_no_exchange() -> None:
    assert found(layers([1, 0, 2, 3, 4]), alike=False) == set()


@given(st.lists(st.integers(0, 99), min_size=5, max_size=5, unique=True).map(sorted))
def test_a_new_numbering_exchanges_nothing(numbers: list[int]) -> None:
    assert found(layers(numbers)) == set()


@pytest.mark.parametrize("every", [1, 5])
def test_two_names_of_some_layers_or_of_all(every: int) -> None:
    news = {}
    for k in range(every):
        for old, new in (("q", "k"), ("k", "q")):
            news[f"model.layers.{k}.{old}.weight"] = f"x.layers.{k}.{new}.weight"
    assert found(news) == set(news.values())


@pytest.mark.parametrize("depth", [2, 3, 8])
def test_a_layer_that_contradicts_the_others(depth: int) -> None:
    """Names that have nothing in common: of two layers either can be the wrong one, of more the one is."""
    words = (
        ("input_layernorm", "attn.norm"),
        ("post_attention_layernorm", "mlp.norm"),
        ("mlp.up", "w3"),
        ("mlp.gate", "w1"),
    )
    pairs = {f"m.{k}.{old}": f"x.{k}.{new}" for k in range(depth) for old, new in words}
    assert exchanged([*pairs.items()], lambda one, other: True) == []
    one, other = "m.0.input_layernorm", "m.0.post_attention_layernorm"
    pairs[one], pairs[other] = pairs[other], pairs[one]
    wrong = exchanged([*pairs.items()], lambda one, other: True)
    assert len(wrong) == 2 and (depth == 2 or {*wrong} == {pairs[one], pairs[other]})


def test_a_tensor_that_becomes_several_exchanges_nothing() -> None:
    """One name of the first stands for three of the second."""
    pairs = [(f"m.{k}.qkv", f"x.{k}.{name}") for k in range(3) for name in "qkv"]
    assert exchanged(pairs, lambda one, other: True) == []
    assert exchanged([(new, old) for old, new in pairs[::3]], lambda one, other: True) == []


def test_directions_of_recurrent_layers() -> None:
    """torch has a word for the backward direction only, Keras for both."""
    names = [
        ("bi/forward_layer/cell/vars/0", "lstm.weight_ih_l0"),
        ("bi/backward_layer/cell/vars/0", "lstm.weight_ih_l0_reverse"),
    ]
    assert exchanged(names, lambda one, other: True) == []
    turned = [(names[0][0], names[1][1]), (names[1][0], names[0][1])]
    assert exchanged(turned, lambda one, other: True) == [new for _, new in turned]
    assert exchanged([(new, old) for old, new in turned], lambda one, other: True) == [old for old, _ in turned]


CONVS = [(s, j, c) for s in (1, 2, 3) for j in (0, 1) for c in (1, 2)]
STYLES = {
    "timm": lambda s, j, c: f"stages.{s - 1}.{j}.conv{c}.weight",
    "detectron2": lambda s, j, c: f"res{s + 1}.{j}.conv{c}.weight",
    "flax": lambda s, j, c: f"params/ResNetBlock_{2 * (s - 1) + j}/Conv_{c - 1}/kernel",
    "blocks first": lambda s, j, c: f"blocks.{j}.stages.{s - 1}.conv{c}.weight",
}


@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_layers_of_several_numbers(style: str, data: st.DataObject) -> None:
    """The stages, blocks and convolutions of a ResNet as torchvision names them, and as others do."""
    pairs = [(f"layer{s}.{j}.conv{c}.weight", STYLES[style](s, j, c)) for s, j, c in CONVS]
    assert exchanged(pairs, lambda one, other: True) == []
    assert exchanged([(new, old) for old, new in pairs], lambda one, other: True) == []
    one, two = data.draw(st.lists(st.sampled_from(range(len(pairs))), min_size=2, max_size=2, unique=True))
    news = [new for _, new in pairs]
    news[one], news[two] = news[two], news[one]
    moved = list(zip([old for old, _ in pairs], news, strict=True))
    assert {news[one], news[two]} <= set(exchanged(moved, lambda one, other: True))


WORDS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
EXPERTS = [
    (f"model.layers.{k}.mlp.experts.{e}.{old}.weight", f"layers.{k}.feed_forward.experts.{e}.{new}.weight")
    for k in range(3) for e in range(4) for old, new in WORDS.items()
]  # fmt: skip


@given(st.lists(st.sampled_from(range(len(EXPERTS))), min_size=2, max_size=2, unique=True), st.booleans())
def test_words_that_end_with_a_number_on_one_side(which: list[int], back: bool) -> None:
    pairs = [(new, old) if back else (old, new) for old, new in EXPERTS]
    assert exchanged(pairs, lambda one, other: True) == []
    news = [new for _, new in pairs]
    one, two = which
    news[one], news[two] = news[two], news[one]
    moved = list(zip([old for old, _ in pairs], news, strict=True))
    assert {news[one], news[two]} <= set(exchanged(moved, lambda one, other: True))


def test_weights_and_biases_of_a_norm() -> None:
    names = [
        ("bn.weight", "n/scale"),
        ("bn.bias", "n/bias"),
        ("bn.running_mean", "n/mean"),
        ("bn.running_var", "n/var"),
    ]
    assert exchanged(names, lambda one, other: True) == []
    turned = [(old, {"n/mean": "n/var", "n/var": "n/mean"}.get(new, new)) for old, new in names]
    assert exchanged(turned, lambda one, other: True) == ["n/var", "n/mean"]


@pytest.mark.parametrize("style", ["module.{}.layers.{}.q.w", "{}.layer_{}.q.w", "net/{}/h{}/q/w"])
def test_two_models_in_one(style: str) -> None:
    """The encoder as the decoder: no rename explains it."""
    pairs = [(f"{at}.layers.{k}.q.w", style.format(at, k)) for at in ("encoder", "decoder") for k in range(3)]
    assert exchanged(pairs, lambda one, other: True) == []
    other = {"encoder": "decoder", "decoder": "encoder"}
    turned = [(f"{at}.layers.{k}.q.w", style.format(other[at], k)) for at in other for k in range(3)]
    assert exchanged(turned, lambda one, other: True) == [new for _, new in turned]


def test_experts_of_one_tensor_exchange_nothing() -> None:
    """All experts of a layer in one tensor, and one tensor each, whose names end with numbers."""
    pairs = [
        (f"l.{k}.experts.w{n}_weight", f"d.{k}.experts.fc{m}.weight{e}")
        for k in range(2) for n, m in ((13, 1), (2, 2)) for e in range(4)
    ]  # fmt: skip

    def is_alike(one: str, other: str) -> bool:
        return all(("fc1" in name or "w13" in name) == ("fc1" in one or "w13" in one) for name in (one, other))

    assert exchanged(pairs, is_alike) == []
    assert exchanged([(new, old) for old, new in pairs[::4]], is_alike) == []


def test_layers_of_two_types() -> None:
    """The convolutions of diffusers' blocks, and of the original UNet: of one side, and of the other."""
    sides, convs = (("down", "input"), ("up", "output")), ((1, "in_layers.2"), (2, "out_layers.3"))
    pairs = [
        (f"{old}_blocks.{i}.resnets.{j}.conv{c}.weight", f"{new}_blocks.{3 * i + j}.0.{conv}.weight")
        for old, new in sides for i in range(3) for j in range(2) for c, conv in convs
    ]  # fmt: skip
    for turned in (False, True):
        names = [pair[::-1] if turned else pair for pair in pairs]
        assert exchanged(names, lambda one, other: True) == []
        for one, two in ((0, 1), (2, 5), (1, 12), (0, 21)):
            news = [new for _, new in names]
            news[one], news[two] = news[two], news[one]
            moved = list(zip([old for old, _ in names], news, strict=True))
            assert {news[one], news[two]} <= set(exchanged(moved, lambda one, other: True))
