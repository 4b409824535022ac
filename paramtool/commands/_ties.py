"""Ties that `convert --untie` and `--tie` change: the record of them, and the same again for `verify`."""

from __future__ import annotations

from dataclasses import replace

from paramtool.commands.optimizer_carry import Carried
from paramtool.errors import LayoutError, UsageError
from paramtool.formats.record import ties as record
from paramtool.formats.record.ties import RecordedTies
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Move, StateChoice
from paramtool.passes.retied import Retied, applied, retied


def carried(found: Carried, ties: Retied, choice: StateChoice) -> Carried:
    """A checkpoint with its new ties, the record of them, and what they require."""
    if not ties.moves and (found.state is None or not any(choice)):
        return found
    made = applied(found.checkpoint, ties)
    known = RecordedTies(ties.untied, ties.tied, {key: one for key, one in choice._asdict().items() if one})
    made = replace(made, metadata={**made.metadata, record.KEY: record.encode(known)})
    return found._replace(checkpoint=made, requires=ties.requires)


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
