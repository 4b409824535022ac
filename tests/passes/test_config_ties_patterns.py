"""`passes/config_ties/declared.py`: embeddings, heads and what else models tie, by their names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.passes.config_ties import declared as patterns
from paramtool.passes.config_ties.declared import NamedTie
from tests.examples import examples

WTE, HEAD = "transformer.wte.weight", "lm_head.weight"


def found(*names: str) -> list[tuple[str, ...]]:
    """(kind, names of the tie) of each."""
    return [(tie.kind, *tie.names) for tie in patterns.ties(names)]


@pytest.mark.parametrize(
    "embeddings, head",
    [
        (WTE, HEAD), ("model.embed_tokens.weight", HEAD), ("gpt_neox.embed_in.weight", "embed_out.weight"),
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
        ("transformer.tokens_embed.weight", HEAD), ("transformer.word_embedding.weight", "lm_loss.weight"),
        ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
        ("transformer.embeddings.weight", "pred_layer.proj.weight"), ("tok_embeddings.weight", "output.weight"),
        ("model.decoder.embed_tokens.weight", "proj_out.weight"), ("embeddings.weight", "head.weight"),
        ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
        ("embed_tokens.weight", "decoder.weight"), ("transformer.w.weight", "model.output_projection.weight"),
        ("embeddings.word_embeddings.weight", "mlm_score.decoder.weight"),
        ("embeddings.word_embeddings.weight", "predictions.decoder.weight"),
    ],
)  # fmt: skip
def test_a_head_over_its_embeddings(embeddings: str, head: str) -> None:
    """In either order of the file; beside other tensors; the embeddings come first."""
    assert found(embeddings, "layers.0.weight", head) == [("head", embeddings, head)]
    assert found(head, embeddings) == [("head", embeddings, head)]
    assert found(embeddings) == [("head", embeddings)]
    assert found(head) == []


@pytest.mark.parametrize(
    "name",
    [
        "xlm_head.weight", "lm_head.bias", "lm_head.weights", "lm_head.weight.scale", "layers.0.output.weight",
        "model.decoder.weight", "decoder.proj_out.weight", "lm_head", "encoder.head.weight",
    ],
)  # fmt: skip
def test_false_friends_of_heads(name: str) -> None:
    """A longer word, another tensor of the module, and words that are a head only at the top."""
    assert found(WTE, name) == [("head", WTE)]


@pytest.mark.parametrize(
    "name",
    [
        "vision_model.embeddings.weight", "visual.embed_tokens.weight", "audio.wte.weight", "wpe.weight",
        "xwte.weight", "embeddings.position_embeddings.weight", "wte.bias", "w.weight",
        "entity_embeddings.embeddings.weight",
    ],
)  # fmt: skip
def test_false_friends_of_embeddings(name: str) -> None:
    """Longer words, positions, and embeddings of images or sound."""
    assert found(name, HEAD) == []
    assert found(name, WTE, HEAD) == [("head", WTE, HEAD)]


def test_what_a_head_looks_at_first() -> None:
    """Shared embeddings, then a decoder's, then those of no side and those that stand highest, then an encoder's."""
    order = ["model.shared.weight", "model.decoder.embed_tokens.weight", "model.embed_tokens.weight",
             "model.a.embed_tokens.weight", "model.encoder.embed_tokens.weight"]  # fmt: skip
    for k, first in enumerate(order):
        heads = [tie for tie in found(*reversed(order[k:]), HEAD) if tie[0] == "head"]
        assert heads == [("head", first, HEAD)]


def test_each_head_has_the_embeddings_of_its_module() -> None:
    """Two models in one; a head whose module has none is left alone where another's stands deeper."""
    names = ["a.embed_tokens.weight", "b.embed_tokens.weight", "b.lm_head.weight", "a.lm_head.weight"]
    assert found(*names) == [("head", names[0], names[3]), ("head", names[1], names[2])]
    assert found("b.embed_tokens.weight", "a.lm_head.weight") == [("head", "b.embed_tokens.weight", "a.lm_head.weight")]
    inner = ["m.talk.embed_tokens.weight", "m.talk.lm_head.weight", "m.lm_head.weight"]
    assert found(*inner) == [("head", inner[0], inner[1])]
    nested = ["embed_tokens.weight", "m.a.embed_tokens.weight", "m.a.lm_head.weight", HEAD]
    assert found(*nested) == [("head", nested[0], HEAD), ("head", nested[1], nested[2])]


def test_sides() -> None:
    """Embeddings above an encoder and a decoder, one or both; not those of another module."""
    both = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    assert found(*both, HEAD) == [("sides", *both), ("head", both[0], HEAD)]
    assert ("sides", *both) in found(*reversed(both))
    assert found(both[0], both[2]) == [("sides", both[0], both[2]), ("head", both[0])]
    assert found(both[0], "other.encoder.embed_tokens.weight") == [("head", both[0])]
    text = ["word_embeddings.weight", "text_encoder.word_embeddings.weight", "text_decoder.word_embeddings.weight"]
    assert ("sides", *text) in found(*text)
    assert found(*both[1:]) == [("head", both[2])]


def test_layers() -> None:
    """Tensor by tensor, with a decoder that may be wrapped once; T5's blocks and what has no partner are left out."""
    names = ["encoder.l.0.w", "encoder.l.0.b", "encoder.l.0.only", "decoder.l.0.w", "decoder.bert.l.0.b",
             "encoder.block.0.w", "decoder.block.0.w", "x.encoder.v", "x.decoder.v"]  # fmt: skip
    assert patterns.layers(iter(names)) == [
        NamedTie("layers", ("encoder.l.0.w", "decoder.l.0.w")),
        NamedTie("layers", ("encoder.l.0.b", "decoder.bert.l.0.b")),
    ]  # fmt: skip
    unwrapped = patterns.layers(["decoder.w", "decoder.bert.w", "encoder.w"])
    assert unwrapped == patterns.layers(["decoder.bert.w", "decoder.w", "encoder.w"])
    assert unwrapped == [NamedTie("layers", ("encoder.w", "decoder.w"))]


@pytest.mark.parametrize(
    "lacks, advised",
    [
        ([HEAD], True), ([WTE], True), (["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"], True),
        (["output.weight"], True), ([], False), (["layers.0.output.weight"], False), ([HEAD, "norm.weight"], False),
        (["lm_head.bias"], False), (["head.decoder.weight", HEAD, WTE, "wte.weight"], True),
    ],
)  # fmt: skip
def test_advice(lacks: list[str], advised: bool) -> None:
    """Only where every name that lacks could be tied, or belongs to the module of one that could."""
    advice = patterns.tied_advice(iter(lacks))
    assert bool(advice) is advised
    assert not advised or (all(repr(name) in advice for name in lacks[:3]) and "--config" in advice)


WORDS = ("model", "decoder", "encoder", "lm_head", "shared", "embed_tokens", "weight", "bias", "predictions", "visual",
         "word_embeddings", "output", "entity_embeddings", "entity_predictions", "x")  # fmt: skip
NAMES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(".".join), unique=True, max_size=12)
KNOWN = ["wte.weight", HEAD, "a.embed_tokens.weight", "a.lm_head.weight", "shared.weight",
         "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.bias",
         "lm_head.decoder.bias", "output.weight"]  # fmt: skip


@given(NAMES | st.lists(st.sampled_from(KNOWN), unique=True))
@settings(max_examples=examples(50))
def test_ties_are_made_of_names_that_are_there(names: list[str]) -> None:
    """Each once, in the order of first names; each head in one tie at most; what is of images or sound in none."""
    ties = patterns.ties(iter(names))
    for tie in ties:
        assert set(tie.names) <= set(names) and len(set(tie.names)) == len(tie.names)
        assert tie.kind in {"head", "sides"} and (len(tie.names) > 1 or tie.kind == "head")
        assert tie.kind != "head" or "visual" not in tie.names[0].split(".")
    firsts = [names.index(tie.names[0]) for tie in ties]
    heads = [tie.names[1] for tie in ties if tie.kind == "head" and tie.names[1:]]
    assert firsts == sorted(firsts) and len(set(heads)) == len(heads)


@given(st.lists(st.sampled_from(KNOWN), unique=True), st.randoms(use_true_random=False))
@settings(max_examples=examples(50))
def test_the_order_of_names_decides_nothing(names: list[str], random: object) -> None:
    """The same ties, whatever the order of a file, where no two embeddings stand alike."""
    mixed = list(names)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert set(found(*mixed)) == set(found(*names))
