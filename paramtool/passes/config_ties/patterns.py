"""Names that models tie: which tensors of a checkpoint are the input embeddings, and which are their output heads.

It is a table of the ends of names, so that no model has to be imported; `a.b` is an end of `x.a.b` and not of `xa.b`:

    transformer.wte.weight                  input embeddings         GPT-2
    lm_head.weight                          the head tied to them
    model.shared.weight                     input embeddings         BART
    model.encoder.embed_tokens.weight       the same embeddings, under the names of encoder and decoder
    model.decoder.embed_tokens.weight
    cls.predictions.decoder.weight          a head                   BERT

It is for configs that name no class, and for classes that model/ties.json lacks: that has the other ties, too.
Source: `_tied_weights_keys` of the classes of transformers 5.24; tests/oracles/test_tied_names.py builds models and
compares.  Ties of layers (Zamba's shared blocks, the box heads of detectors, Bark's codebooks) are in no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramtool.errors import some
from paramtool.lazy_dataclass import frozen

EMBEDDINGS = (
    "shared.weight", "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "word_embedding.weight",
    "tok_embeddings.weight", "tokens_embed.weight", "embed_in.weight", "embeddings.weight", "transformer.w.weight",
)  # fmt: skip
"""Input embeddings of tokens."""
HEADS = (
    "lm_head.decoder.weight", "lm_head.out_proj.weight", "lm_head.weight", "cls.predictions.decoder.weight",
    "generator_lm_head.weight", "vocab_projector.weight", "output_projection.weight", "embed_out.weight",
    "pred_layer.proj.weight", "lm_loss.weight", "mlm_score.decoder.weight",
)  # fmt: skip
"""Output heads over the vocabulary."""
TOP_HEADS = (
    "output.weight", "head.weight", "decoder.weight", "proj_out.weight", "predictions.decoder.weight",
    "head.decoder.weight",
)  # fmt: skip
"""Heads only if these words begin the name: inside a layer they mean something else."""
SIDES = ("encoder", "decoder", "text_encoder", "text_decoder")
"""The sides of an encoder-decoder model that share embeddings of the module around them."""
OTHER_SENSES = ("vision", "vision_model", "visual", "image", "audio", "audio_model", "codec_model", "entity_embeddings")
"""Modules with embeddings of something other than text."""


@frozen
class NamedTie:
    """Names of a file that a model can tie; the first is the one that the others are tied to.

    If there is only one name, the file lacks the others.
    """

    kind: str
    """`head` (input embeddings and output head), `sides` (embeddings of an encoder and a decoder), `layers` (of an
    encoder and a decoder), `other`."""
    names: tuple[str, ...]


def ties(names: Iterable[str]) -> list[NamedTie]:
    """The ties that are recognised by these names, in the order of their first names.

    >>> ties(["transformer.wte.weight", "transformer.h.0.ln_1.weight", "lm_head.weight"])
    [NamedTie(kind='head', names=('transformer.wte.weight', 'lm_head.weight'))]
    >>> [tie.names for tie in ties(["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])]
    [('shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'), ('shared.weight',)]
    """
    names = list(names)
    found = [*_sides(names), *_heads(names)]
    order = {name: k for k, name in enumerate(names)}
    return sorted(found, key=lambda tie: order[tie.names[0]])


def tied_advice(lacks: Iterable[str]) -> str:
    """A hint for names that a file lacks, if its model may tie all of them; else an empty string."""
    lacks = list(lacks)
    ends = [n for n in lacks if _ending(n, (*HEADS, *EMBEDDINGS)) is not None or n in TOP_HEADS]
    modules = {name.removesuffix(".weight") for name in ends}
    if not lacks or any(name.rpartition(".")[0] not in modules for name in lacks):
        return ""
    return f"{some(lacks, 3)}: if the file's model ties embeddings and head, its config.json says so: --config PATH"


def layers(names: Iterable[str]) -> list[NamedTie]:
    """The ties of a decoder to its encoder (`tie_encoder_decoder`), tensor by tensor."""
    return list(_layers(list(names)))


def _ending(name: str, endings: Iterable[str]) -> str | None:
    """What precedes the ending of a name; None if the name has none of the endings."""
    for ending in endings:
        if name == ending or name.endswith(f".{ending}"):
            return name[: len(name) - len(ending)]
    return None


def _heads(names: list[str]) -> Iterator[NamedTie]:
    """Each head with the embeddings in the module that holds it; embeddings without a head by themselves."""
    embeddings = [
        name
        for name in names
        if _ending(name, EMBEDDINGS) is not None and not any(word in OTHER_SENSES for word in name.split("."))
    ]
    scopes = {n: s for n in names if (s := _ending(n, HEADS)) is not None}
    scopes |= {n: "" for n in names if n in TOP_HEADS and n not in embeddings}
    if not embeddings:
        return
    ranked = sorted(embeddings, key=_rank)
    if not scopes:
        yield NamedTie("head", (ranked[0],))
    held = set(scopes.values())
    below: dict[str, str] = {}
    for name in ranked:
        below.setdefault(next((scope for scope in _around(name) if scope in held), ""), name)
    with_deeper = {around for scope in held if scope for around in _around(scope.removesuffix("."))}
    for head, scope in scopes.items():
        if chosen := below.get(scope) or (None if scope in with_deeper else ranked[0]):
            yield NamedTie("head", (chosen, head))


def _around(name: str) -> Iterator[str]:
    """The prefixes of a name up to and including each dot, the longest first; the empty prefix last."""
    dot = name.rfind(".")
    while dot >= 0:
        yield name[: dot + 1]
        dot = name.rfind(".", 0, dot)
    yield ""


def _rank(name: str) -> tuple[bool, bool, bool, int]:
    """The order in which a head looks for embeddings: shared ones, then a decoder's, then those nearest to the top."""
    words = name.split(".")
    decoder = "decoder" in words or "text_decoder" in words
    return (words[-2] != "shared", "encoder" in words and not decoder, not decoder, len(words))


def _sides(names: list[str]) -> Iterator[NamedTie]:
    """Embeddings that an encoder and a decoder share, with the names that each side has for them."""
    present = set(names)
    for top, below in (("shared.weight", "embed_tokens.weight"), ("word_embeddings.weight",) * 2):
        for name in names:
            if (parent := _ending(name, (top,))) is not None:
                sides = [side for word in SIDES if (side := f"{parent}{word}.{below}") in present]
                yield from ([NamedTie("sides", (name, *sides))] if sides else [])


def _layers(names: list[str]) -> Iterator[NamedTie]:
    """Each tensor of an encoder with the tensor at the same place in the decoder beside it.

    The decoder may be wrapped once, as `decoder.bert.` is beside `encoder.`.  T5's layers are left out: its decoder
    counts them differently.
    """
    decoder: dict[str, str] = {}
    for name in names:
        if name.startswith("decoder.") and ".block." not in name:
            rest = name.removeprefix("decoder.")
            decoder.setdefault(rest.partition(".")[2], name)
            decoder[rest] = name
    for name in names:
        if name.startswith("encoder.") and (other := decoder.get(name.removeprefix("encoder."))):
            yield NamedTie("layers", (name, other))
