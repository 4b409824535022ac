"""An output and its source, each as the other should be, by what the output's record says it was made of.

`verify` compares the two; `diff` asks the same of whichever side has such a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from paramtool import layouts
from paramtool.commands import _casts, _ties
from paramtool.commands._differences import alias_sets
from paramtool.commands._rearranged_again import RearrangedAgain, rearranged_again
from paramtool.commands._state_again import with_state
from paramtool.commands.progress import Path
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import prove
from paramtool.errors import LayoutError, PlanError, UsageError
from paramtool.grouping import omit
from paramtool.layouts.networks import named
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import DECLARED, GRAPH, Checkpoint, Entry, Module
from paramtool.model.plan import Requirement, Target
from paramtool.passes.objects_differ import without
from paramtool.passes.rnn import beside
from paramtool.passes.rnn.again import came_from, converted_again
from paramtool.passes.rnn.convert import kept_off


@frozen
class MadeAgain:
    """An output and its source as the record of the output says that the one was made of the other."""

    source: Checkpoint
    found: Checkpoint
    """The output without the tensors that are made again by `networks`, and those of which nothing is known."""
    expected: Checkpoint
    """The source as `found` should be."""
    moved: RearrangedAgain
    weights: tuple[Target, ...]
    """Weights that were codes."""
    networks: ConvertedNames
    whole: Checkpoint
    """`expected` with the tensors that networks were made from."""
    more: tuple[str, ...] = ()
    """Names that only the output has, for tensors that both have."""

    def broken(self, source: Source) -> Iterator[str]:
        """What the source must show for what was left out or joined, and does not."""
        there = self.source.storages
        for one in (*self.moved.requires, *self.networks.requires):
            if {one.view.storage, *(view.storage for _, view in one.terms)} <= there.keys():
                try:
                    prove([one], source)
                except (LayoutError, PlanError) as error:
                    yield error.message


def made_again(found: Checkpoint, source: Checkpoint, path: Path) -> MadeAgain:
    """What was made of a source, the checkpoint at `path`, by the record of an output."""
    expected, moves, choice = _ties.again(found, source)
    moved = rearranged_again(found, expected)
    moved = with_state(found, source, path, replace(moved, moves=(*moved.moves, *moves)), state=choice)
    found = _lacking(found, moved.unknown) if moved.unknown else found
    weights, gone = _casts.dequantised_again(found, source)
    whole = _lacking(moved.expected, gone)
    known = _without_declared(found, whole)
    parts = _converted(known, whole)
    more = tuple(name for name in found.entries if name not in known.entries)
    return MadeAgain(source, parts.found, parts.expected, moved, weights, parts, whole, more)


@frozen
class ConvertedNames:
    """What a conversion that the output's record names did to names."""

    found: Checkpoint
    """The output without the tensors that the source never had."""
    expected: Checkpoint
    """The source without the tensors that these were made from, but for those that are windows on them now."""
    windows: frozenset[str] = frozenset()
    """Names of the source that are windows on new tensors."""
    unsure: frozenset[str] = frozenset()
    """The tensors that the source never had, and that the record is not enough to make again from it."""
    read: frozenset[str] = frozenset()
    """The tensors of the source that these can be made from."""
    remade: tuple[Target, ...] = ()
    """Those that can."""
    requires: tuple[Requirement, ...] = ()
    """What the bytes of the source must show for them."""


def _converted(found: Checkpoint, expected: Checkpoint) -> ConvertedNames:
    """What of two checkpoints can be compared where networks were converted; what cannot is a note.

    Only tensors that a conversion reads may be absent from the output.
    """
    modules = [module for module in found.modules if module not in expected.modules]
    again = {module.at: converted_again(module, found, expected) for module in modules}
    done = [one for one in again.values() if one is not None]
    targets = {target.name: target for one in done for target in (*one.targets, *one.kept)}
    more = [name for name in found.entries if name not in expected.entries]
    others = [module for module in modules if again[module.at] is None]
    unsure = {name for name in more if name not in targets and any(is_of(name, module) for module in others)}
    made = unsure | targets.keys()
    if not made:
        return ConvertedNames(found, expected)
    held = alias_sets(found)
    there = {held[name] for name in made if name in held}
    rest = found.entries.keys() - made
    windows = frozenset(name for name in rest & expected.entries.keys() if held.get(name) in there)
    lacking = [name for name in expected.entries if name not in rest]
    seen = {name: read for read, name in beside.unwrapped(expected).names.items()}
    read = {name for one in done for name in (*one.source.tensors.values(), *one.source.raw.values())}
    could = {n for n in lacking if any(_could_read(one, seen.get(n, n), expected) for one in others)} - read
    gone = {name for name in lacking if name in read | could or expected.entries[name].role == GRAPH}
    return ConvertedNames(
        _lacking(found, made),
        _lacking(expected, gone),
        windows,
        frozenset(unsure),
        frozenset(could),
        tuple(targets.values()),
        tuple(requirement for one in done for requirement in one.requires),
    )


def _could_read(module: Module, name: str, source: Checkpoint) -> bool:
    """Whether a conversion that cannot be made again could have read a tensor of the source for a network."""
    said = came_from(module)
    ats = {said[2] if said else module.at, *module.stacked}
    if any(name in one.tensors.values() for one in source.modules if one.at in ats):
        return True
    try:
        layout = layouts.find(said[0]) if said else None
    except (LayoutError, UsageError):
        layout = None
    if layout is None or len({row.name for form in layout.forms for row in form.tensors}) == 1:  # under any name
        return is_of(name, replace(module, at=said[2] if said else module.at))
    return bool(named(layout, name) & ats) or any(kept_off(at, name) is not None for at in ats)


def _lacking(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """A checkpoint without some of its tensors."""
    entries = omit(checkpoint.entries, names)
    return replace(checkpoint, entries=entries, objects=without(checkpoint.objects, names))


def is_of(name: str, module: Module) -> bool:
    """Whether a tensor is one of a recorded network's."""
    return name in module.tensors.values() or any(_is_below(name, at) for at in (module.at, *module.stacked))


def _is_below(name: str, at: str) -> bool:
    if name == at or kept_off(at, name) is not None:
        return True
    if not at:
        return "." not in name
    return name.startswith(at) and name[len(at)] in _SEPARATORS


_SEPARATORS = "./_:"
"""The separators between a network's name and those of its tensors, in all layouts."""


def _without_declared(found: Checkpoint, expected: Checkpoint) -> Checkpoint:
    """What was found, but for names that are declared to be others and that the source never had.

    A torch file declares nothing: there such a name is the same window of the same storage as one of the source's.
    """
    theirs = {view for name, view in found.views().items() if name in expected.entries}
    more = omit(found.entries, expected.entries)
    gone = {name for name, entry in more.items() if _is_declared(entry) or entry.value in theirs}
    if not gone:
        return found
    kept = omit(found.entries, gone)
    return replace(found, entries=kept, objects=without(found.objects, gone))


def _is_declared(entry: Entry) -> bool:
    return entry.link is not None and entry.link.evidence in DECLARED
