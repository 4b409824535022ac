"""Compares the ties that a config declares with the ties that a file stores, as a table.

    config says    tied, not tied, or nothing (then the default of its model type counts, where it is known)
    file says      one alias set, one name, equal bytes, different bytes, different shapes
    result         see RESULTS

A declaration never joins names: what a file stores separately is only reported.

What a config means depends on the class of the model: the ties of the table of classes count (`Config.class_ties`).
Others are recognised by name, and the row says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from paramtool.errors import some
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Ordered
from paramtool.model.config import SIDES, Config, version
from paramtool.passes import select

MEMORY, NAME, EQUAL, DIFFERENT, SHAPES, DTYPES, UNKNOWN = (
    "one memory", "one name", "equal bytes", "different bytes", "different shapes", "different dtypes", "not compared",
)  # fmt: skip
"""How a file stores names that a model may tie."""
RESULTS: Mapping[tuple[bool | None, str], str] = {
    (True, MEMORY): "tied", (True, EQUAL): "equal-not-tied",
    **{(True, state): "diverged" for state in (DIFFERENT, SHAPES, DTYPES)},
    (False, MEMORY): "shared-though-denied", (False, EQUAL): "equal-though-denied",
    **{(False, state): "apart" for state in (DIFFERENT, SHAPES, DTYPES)},
    (None, MEMORY): "undeclared", (None, EQUAL): "undeclared-equal",
    **{(None, state): "apart" for state in (DIFFERENT, SHAPES, DTYPES)},
    **{(says, NAME): "one-name" for says in (True, False, None)},
    **{(says, UNKNOWN): "not-compared" for says in (True, False, None)},
}  # fmt: skip
"""{(what the config says, how the file stores it): the result}."""
BROKEN = {"diverged", "shared-though-denied"}
"""Results in which the file contradicts its config."""


@frozen
class Declared:
    """One tie: what the config says about it, and how the file stores it."""

    tie: NamedTie
    says: bool | None
    """Whether they are tied; None where nothing is known."""
    because: str
    """The reason: `tie_word_embeddings is true`, `not said`."""
    file: str = UNKNOWN
    """How the file stores them: MEMORY or one of the constants beside it."""
    apart: tuple[str, str] | None = None
    """Two names that the file stores differently."""
    largest: float | None = None
    """Their largest difference, where their numbers can be compared."""
    detail: str = ""
    """The two shapes or dtypes that differ, or why nothing was compared."""
    by_name: bool = True
    """Whether the tie was recognised by name only; otherwise the table of classes has it."""
    _members = "kind=tie.kind names=tie.names says because=why file detail apart! largest_difference=difference result"

    @property
    def difference(self) -> float | str | None:
        """`largest` as JSON has it, which has no infinity."""
        return "infinite" if self.largest == inf else self.largest

    @property
    def why(self) -> str:
        """The reason, with `by name` where the tie was recognised by name."""
        return f"{self.because}, by name" if self.by_name and self.says is not None else self.because

    @property
    def result(self) -> str:
        """The result, from RESULTS."""
        return RESULTS[self.says, self.file]


def table(config: Config, checkpoint: Checkpoint, graph: AliasGraph) -> list[Declared]:
    """Every tie that follows from the names or the alias sets of a checkpoint, without reading bytes.

    Rows whose names are in different alias sets stay at `not compared`, without a detail.
    """
    rows = [
        _placed(row, checkpoint, graph)
        for prefix, names in _parts(checkpoint)
        for row in expected(config, names, prefix)
    ]
    alias_sets = grouped((member.alias_set, member.name) for member in graph.names.values())
    others = (names for names in alias_sets.values() if len(names) > 1)
    known = _chains([row.tie for row in rows])
    left = [names for names in others if not any(chain.issuperset(names) for chain in known)]
    return [*rows, *(Declared(NamedTie("other", tuple(names)), None, "not said", MEMORY) for names in left)]


def untied(config: Config, checkpoint: Checkpoint, graph: AliasGraph) -> set[str]:
    """Names that share a whole tensor in the file and that the config does not tie."""
    rows = [row for row in table(config, checkpoint, graph) if row.file == MEMORY]
    tied = {name for row in rows if row.says for name in row.tie.names}
    loose = {name for row in rows if not row.says for name in row.tie.names[1:]} - tied
    return {name for name in loose if graph.relation(graph.names[name]) == "same"}


def between(config: Config, checkpoint: Checkpoint, a: str, b: str) -> tuple[Declared, ...]:
    """The ties that lead from one name to another in a model that has both, even if the file lacks one of them.

    The config declares the two tied if each of these `says` so.  The result is empty if no table of names ties them.
    Names of two sections are never tied.  `file`, and what follows from it, is not set.
    """
    parts = list(_parts(checkpoint))
    places = {name: next(prefix for prefix, _ in parts if name.startswith(prefix)) for name in (a, b)}
    if places[a] != places[b]:
        return ()
    prefix, names = next(part for part in parts if part[0] == places[a])
    rows = expected(config, dict.fromkeys([*names, a, b]), prefix)
    for chosen in ([row for row in rows if row.says], rows):
        for chain in _chains(row.tie for row in chosen):
            if chain.issuperset((a, b)):
                return tuple(row for row in chosen if chain.issuperset(row.tie.names))
    return ()


def _chains(found: Iterable[NamedTie]) -> list[set[str]]:
    """Sets of names, one for each chain of ties that have names in common."""
    chains: list[set[str]] = []
    for tie in found:
        mine = [chain for chain in chains if not chain.isdisjoint(tie.names)]
        chains = [chain for chain in chains if chain not in mine]
        chains.append(set(tie.names).union(*mine))
    return chains


def _parts(checkpoint: Checkpoint) -> Iterator[tuple[str, list[str]]]:
    """(prefix, names) of each part that could be one model; an optimizer is not one."""
    place = {n: k for k, n in enumerate(n for n, entry in checkpoint.entries.items() if entry.role != "optimizer")}
    ordered = Ordered(place)
    inside: set[str] = set()
    for prefix in _outermost([s.prefix for s in checkpoint.sections if s.role != "optimizer"]):
        names = sorted(ordered.under(prefix), key=place.__getitem__)
        inside.update(names)
        yield prefix, names
    yield "", [name for name in place if name not in inside]


def _outermost(prefixes: Sequence[str]) -> list[str]:
    """The prefixes that do not begin with another of them, in their order."""
    found: dict[str, None] = {}
    last = None
    for prefix in sorted(prefixes):  # a longer prefix comes right after its beginning
        if last is None or not prefix.startswith(last):
            found[prefix] = None
            last = prefix
    return [prefix for prefix in prefixes if prefix in found]


def expected(config: Config, names: Iterable[str], prefix: str = "") -> list[Declared]:
    """What a config says about the ties among some names, whose `prefix` is not part of the model's names.

    >>> config = Config("config.json", {"tie_word_embeddings": False}, {"": "llama"})
    >>> [(row.says, row.because) for row in expected(config, ["model.embed_tokens.weight", "lm_head.weight"])]
    [(False, 'tie_word_embeddings is false')]
    """
    inner = [name.removeprefix(prefix) for name in names]
    if wrapper := select.wrapper(inner):
        inner, prefix = [name.removeprefix(wrapper) for name in inner], prefix + wrapper
    rows = []
    for tie in ties(inner):
        says, because = config.says(tie.kind, tie.names[-1])
        rows.append(Declared(_with_prefix(tie, prefix), says, because))
    groups, of = config.class_ties(inner), config.architecture and f"{config.architecture} of transformers {version()}"
    if config.is_known and (groups or not config.rows()):
        because = f"{of} does not tie them"
        rows = [replace(row, says=False, because=because, by_name=False) if row.says else row for row in rows]
    for group in groups:
        names = [prefix + name for name in group if name in inner]
        mine = [row for row in rows if not {*row.tie.names}.isdisjoint(names)]
        tie = NamedTie(mine[0].tie.kind if mine else "other", tuple(names))
        rows = [row for row in rows if row not in mine]
        rows.append(Declared(tie, True, f"{of} ties them", by_name=False))
    if config.said.get(SIDES):
        rows += [Declared(_with_prefix(tie, prefix), True, f"{SIDES} is true") for tie in layers(inner)]
    return rows


def _with_prefix(tie: NamedTie, prefix: str) -> NamedTie:
    return replace(tie, names=tuple(prefix + name for name in tie.names))


def _placed(row: Declared, checkpoint: Checkpoint, graph: AliasGraph) -> Declared:
    """A row completed from names and alias sets, without reading bytes."""
    names = row.tie.names
    if len(names) == 1:
        return replace(row, file=NAME)
    if odd := [name for name in names if name not in graph.names]:
        kind = type(checkpoint.entries[odd[0]].value).__name__
        return replace(row, detail=f"{odd[0]} is {kind}, not a plain tensor")
    members = [graph.names[name] for name in names]
    if len({member.alias_set for member in members}) == 1:
        relation = {graph.relation(member) for member in members} - {"same"}
        return replace(row, file=MEMORY, detail=", ".join(sorted(relation)))
    if len({member.window for member in members}) == 1:
        return replace(row, file=EQUAL, detail="stored once")
    first = members[0]
    for other in members:
        if other.source.shape != first.source.shape and other.alias_set != first.alias_set:
            shapes = f"{list(first.source.shape)} and {list(other.source.shape)}"
            return replace(row, file=SHAPES, apart=(first.name, other.name), detail=shapes)
    return row


def unread(row: Declared, graph: AliasGraph) -> list[str]:
    """One name of each alias set of a row that only bytes can decide; the first is the tie's first name.

    Empty if nothing has to be read.
    """
    if row.file != UNKNOWN or row.detail:
        return []
    first: dict[str, str] = {}
    for name in row.tie.names:
        first.setdefault(graph.names[name].alias_set, name)
    return list(first.values())


def compared(row: Declared, pair: tuple[str, str] | None, dtypes: tuple[str, str], largest: float | None) -> Declared:
    """A row after reading: `pair` are two names with different bytes; None if all bytes are equal."""
    if pair is None:
        return replace(row, file=EQUAL, detail="stored twice")
    if dtypes[0] != dtypes[1]:
        return replace(row, file=DTYPES, apart=pair, largest=largest, detail=" and ".join(dtypes))
    return replace(row, file=DIFFERENT, apart=pair, largest=largest)


# --- Names that models tie: which tensors of a checkpoint are the input embeddings, and which are their output heads.
#
# It is a table of the ends of names, so that no model has to be imported; `a.b` is an end of `x.a.b` and not of `xa.b`:
#
#     transformer.wte.weight                  input embeddings         GPT-2
#     lm_head.weight                          the head tied to them
#     model.shared.weight                     input embeddings         BART
#     model.encoder.embed_tokens.weight       the same embeddings, under the names of encoder and decoder
#     model.decoder.embed_tokens.weight
#     cls.predictions.decoder.weight          a head                   BERT
#
# It is for configs that name no class, and for classes that model/ties.json lacks: that has the other ties, too.
# Source: `_tied_weights_keys` of the classes of transformers 5.24; tests/oracles/test_tied_names.py builds models and
# compares.  Ties of layers (Zamba's shared blocks, the box heads of detectors, Bark's codebooks) are in no table.


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
SIDE_MODULES = ("encoder", "decoder", "text_encoder", "text_decoder")
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
                sides = [side for word in SIDE_MODULES if (side := f"{parent}{word}.{below}") in present]
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
