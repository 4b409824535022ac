"""Ties that `convert --untie` and `--tie` change: the record of them, and the same again for `verify`."""

from __future__ import annotations

from dataclasses import replace

from paramtool.errors import LayoutError, UsageError
from paramtool.formats.record import ties as record
from paramtool.formats.record.ties import RecordedTies
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Move, StateChoice
from paramtool.model.plan import Plan
from paramtool.passes.retied import Retied, applied, retied
from paramtool.passes.rewriting import Outcome


def recorded(
    plan: Plan, outcome: Outcome, ties: Retied, choice: StateChoice, *, is_moved: bool
) -> tuple[Plan, Outcome]:
    """A plan that requires and records its new ties; `is_moved` says whether the state of an optimizer moved."""
    if not ties.moves and not (is_moved and any(choice)):
        return plan, outcome
    found = RecordedTies(ties.untied, ties.tied, {key: one for key, one in choice._asdict().items() if one})
    metadata = {**plan.metadata, record.KEY: record.encode(found)}
    plan = replace(plan, metadata=metadata, requires=(*plan.requires, *ties.requires))
    return plan, replace(outcome, rest=replace(outcome.rest, metadata=metadata))


def again(found: Checkpoint, source: Checkpoint) -> tuple[Checkpoint, tuple[Move, ...], StateChoice]:
    """A source with the ties of an output that was made of it, the parameters that changed, and the choices."""
    known = record.decode(found.files[0].path, found.metadata)
    choice = StateChoice(known.state.get("untied", ""), known.state.get("tied", ""))
    if known == record.decode(source.files[0].path, source.metadata):
        return source, (), choice
    try:
        ties = retied(source, [*known.untied], known.tied)
    except (UsageError, LayoutError):  # the source has these ties already, or is another file: comparing will tell
        return source, (), choice
    return (applied(source, ties) if ties.moves else source), ties.moves, choice
