"""What every pass shares that replaces some tensors of a checkpoint and leaves the others alone."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.errors import plural, some
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.alias import Alias, AliasGraph
from paramtool.model.checkpoint import Checkpoint, Entries, Entry
from paramtool.model.plan import Plan
from paramtool.model.view import View
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.dedup.plan import sorted_targets
from paramtool.passes.stored_once import StoredOnce


@frozen
class Outcome:
    """What happens to the names of the source in a plan."""

    rest: Checkpoint
    """Everything except what was replaced."""
    untouched: Entries
    """Names that are written unchanged."""
    windows: Entries
    """Old names that are windows on new tensors."""
    made: frozenset[str]
    """New names."""
    warnings: tuple[str, ...]


def swaps(firsts: Mapping[str, list[str]], consumed: set[str], windows: Container[str]) -> dict[str, tuple[str, ...]]:
    """{old name: the names that replace it in the tree of objects}."""
    swaps = {name: (name,) if name in windows else () for name in consumed}
    return swaps | {first: (*new, *swaps[first]) for first, new in firsts.items()}


def in_order(
    checkpoint: Checkpoint, base: Plan, firsts: Mapping[str, list[str]], windows: Container[str]
) -> Iterator[str]:
    """Every name of the output; new names are at the place of the first old name that they replace."""
    kept = set(base.order)
    for name in checkpoint.entries:
        yield from firsts.get(name, ())
        if name in kept or name in windows:
            yield name


def of_rest(rest: Checkpoint, replaces: bool, skip_unsupported: bool, split_content: bool) -> Plan:
    """The plan of everything except what is replaced, if anything is."""
    graph = alias.build(rest, parts=False, split_content=split_content, counts_unused=False)
    return dedup_pass.plan(rest, graph, skip_unsupported, is_rest=replaces)


def joined(base: Plan, made: StoredOnce, more: Mapping[str, Alias], order: Iterable[str]) -> Plan:
    """The plan of the rest with new tensors, and with `more` names, in this order."""
    known = {**base.names, **more}
    names = {name: known[name] for name in order if name in known}
    return replace(base, targets=sorted_targets([*base.targets, *made.targets], names.values()), names=names)


def window(name: str, entry: Entry, view: View, at: Alias) -> Alias:
    """An old name as a view of a new tensor, which is at `at`."""
    evidence = "declared" if at.alias_set == at.owner else "content"
    kind = entry.kind if entry.kind == "parameter" else ""
    assert isinstance(entry.value, View)
    placed, trains = replace(view, storage=at.owner), bool(entry.requires_grad)
    return Alias(name, placed, at.alias_set, evidence, "declared", entry.value, trains, kind)


def marked(new: Alias, made_of: Iterable[Entry]) -> Alias:
    """A new name that is a parameter, or requires gradients, if everything that it is made of is, or does."""
    entries = list(made_of)
    kind = "parameter" if all(entry.kind == "parameter" for entry in entries) else ""
    return new._replace(requires_grad=all(entry.requires_grad for entry in entries), kind=kind)


def lost(gone: Collection[str], made: StoredOnce, whole: AliasGraph, shares: tuple[str, str]) -> Iterator[str]:
    """Warnings about ties that break; `shares` says of one name, and of several, that others have their memory."""
    alias_sets = {whole.names[name].alias_set for name in gone if name in whole.names}
    if apart := [n for n, m in whole.names.items() if n not in gone and m.alias_set in alias_sets]:
        names, keep = plural(len(apart), "other name"), "keeps" if len(apart) == 1 else "keep"
        yield f"{names} {shares[len(apart) > 1]} and {keep} the old bytes, untied: {some(apart, 4)}"
    if untied := list(dict.fromkeys(made.lost)):
        yield f"untied, because they go to different places of the new tensors: {some(untied, 4)}"
