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

from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Ordered
from paramtool.model.config import SIDES, Config, version
from paramtool.passes import select
from paramtool.passes.config_ties.patterns import NamedTie, layers, ties

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
