"""What the dialects say of two checkpoints: how the tensors of the second are made of those of the first.

A table only proposes.  What it proposes is a map only where every byte of the second checkpoint's tensor agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paramtool.commands.diff.beside import runs_of
from paramtool.commands.diff.words import words
from paramtool.commands.rearrangement import config_beside
from paramtool.engine.compare.runs import LineRun, Runs
from paramtool.errors import FormatError, LayoutError, UnknownSizesError, UsageError
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Target
from paramtool.model.view import View, Views
from paramtool.parts.facts import NONE, Facts
from paramtool.passes.diff.names import NUMBER, short

FactsOf = Callable[[str], Facts]
"""The facts about the tensor of a name."""
REFUSED = (FormatError, LayoutError, UnknownSizesError, UsageError)
"""What a table says where it does not fit."""


class Proposal(NamedTuple):
    """One tensor of the second checkpoint, as a table makes it of the first."""

    target: Target
    layout: str
    """The layout or dialect of the second."""
    how: str
    """The map in words."""
    repeats: tuple[Target, ...] = ()
    """The same tensor, as the first checkpoint holds it once more: a gate that is repeated for each element."""
    constants: tuple[tuple[View, float], ...] = ()
    """What the first has and the second's layout lacks, which computes the same if it is this number: biases."""
    is_of_second: bool = False
    """Whether it puts one bias into the second of two: such proposals of a network hold together, or none does."""
    against: str = ""
    """What a config.json says of the sizes other than this map, in words."""


def of_dialects(a: Checkpoint, b: Checkpoint) -> Iterator[list[Proposal]]:
    """The tensors of the second as its dialect makes them of those of the first, by a config beside one of them."""
    configs = [config_beside(one.path) for one in (a, b)]
    mine, theirs = (config or other for config, other in (configs, configs[::-1]))
    others = list(_readings(b, theirs))
    for first, held_a in _readings(a, mine):
        for second, held_b in others:
            if found := _joined(a, b, (held_a, held_b), (first, second)):
                yield found


def facts_of(checkpoint: Checkpoint) -> FactsOf | None:
    """What the config.json beside a checkpoint says of the module of a name; None if there is no config.json."""
    from paramtool.parts.config_facts import KnownModel

    config = config_beside(checkpoint.path)
    if not config:
        return None
    model = KnownModel(config)

    def facts(name: str) -> Facts:
        try:
            return model.facts(name)
        except LayoutError:  # it contradicts itself
            return NONE

    return facts


def _readings(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """(dialect, what the tensors of a file hold as pieces of the hub's tensors), for each dialect that it can be of."""
    from paramtool import dialects
    from paramtool.commands.rearrangement import dialects_of, parts_source
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts import following
    from paramtool.passes.parts.dialect_change import views_of
    from paramtool.passes.parts.recorded import put_together, with_parts

    if not config:
        return
    model = KnownModel(config)
    try:
        source = parts_source(checkpoint)
        names = dialects_of(source, model) or [dialects.HUB]
    except REFUSED:
        return
    for name in names:
        try:
            shapes, joints = with_parts(source.shapes, source.record, name, model, views=views_of(checkpoint))
            opened = dialects.opened(name, config, model.facts, source.record.prefix)
            held = opened.read(following.told_apart(shapes, model.packing).weights)
            yield name, put_together(held, joints)
        except REFUSED:
            continue


def _joined(
    a: Checkpoint, b: Checkpoint, held: tuple[Sequence[Any], Sequence[Any]], names: tuple[str, str]
) -> list[Proposal]:
    """Each tensor of the second that can be made of those of the first."""
    from paramtool.passes.parts import copies

    views, there = a.views(), b.views()
    known = [one for one in held[0] if one.name in views]
    try:
        sources = copies.sources(a.path, known, views)
    except REFUSED:
        return []
    found = []
    for one in held[1]:
        if one.name not in there:
            continue
        try:
            target = copies.target(one, sources)
        except REFUSED:
            continue
        if not target.copies:  # no elements: no bytes prove a map
            continue
        found.append(Proposal(target, names[1], _words(one, target, names, _turns(target, there[one.name], views))))
    return found


def _turns(target: Target, there: View, views: Views) -> str:
    """The order of whole rows of several tensors, where they take turns; "" elsewhere."""
    runs = runs_of(target, there, views)
    olds = list(dict.fromkeys(run.old for run in runs))
    if not len(olds) < len(runs):
        return ""
    known = short(olds)
    rows = (LineRun(olds.index(run.old), run.start, run.length, run.to) for run in runs)
    return words(Runs.of(rows), [known[old] for old in olds])


def _words(stored: Any, target: Target, names: tuple[str, str], turns: str) -> str:
    """Which parts a tensor is made of, from where their names differ, and between which dialects."""
    which = names[1] if names[0] == names[1] else f"{names[0]} -> {names[1]}"
    if turns:
        return f"{turns}, {which}"
    parts = short(stored.parts)
    seen = list(dict.fromkeys(NUMBER.sub("*", one) for one in parts.values()))
    if len(parts) == 1:
        return f"a part of {target.copies[0].names[0]!r}, {which}" if target.copies[0].names else which
    return f"[{'; '.join(seen[:4])}{'; ...' if len(seen) > 4 else ''}], {which}"
