"""What differs between two checkpoints beside the bytes of their tensors: memory, objects, marks, the order of axes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Mapping as Dict
from contextlib import suppress

from paramtool import errors
from paramtool.commands._value_facts import json_leaves
from paramtool.formats.dcp.flatten import flattened
from paramtool.formats.object_tree import complete, is_flat
from paramtool.formats.record import edits
from paramtool.formats.record import parts as parts_record
from paramtool.formats.record.moved import with_tensors
from paramtool.formats.table import holds
from paramtool.grouping import grouped
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.nested import flat
from paramtool.model.objects import EMPTY, Mapping, Node, holds_objects, pairs_of, tensor_names, word
from paramtool.model.view import View
from paramtool.passes.objects_differ import Comparison, bare, marks, unmarked

RECORDS = (edits.TYPES, parts_record.KEY, edits.OPTIMIZERS, edits.TIES)
"""Metadata that commands write."""


def laid_otherwise(found: Checkpoint, expected: Checkpoint) -> Iterator[str]:
    """Dense tensors whose axes lie in another order in memory: the same values, with other strides."""
    names = []
    for name in expected.entries.keys() & found.entries.keys():
        sides = found.entries[name], expected.entries[name]
        views = [one.value for one in sides if isinstance(one.value, View) and one.value.numel]
        if len(views) < len(sides) or views[0].shape != views[1].shape or "other" in (one.role for one in sides):
            continue  # arrays of NumPy's are compared with the objects
        axes = {view.dense_axes for view in views}
        if None not in axes and len(axes) > 1:
            names.append(name)
    if names:
        yield f"the same values in another memory format (such as channels_last) than the source: {some(names)}"


def object_differences(found: Checkpoint, expected: Checkpoint, *, tensors: bool = True) -> Comparison:
    """What differs in everything that is not a tensor; notes say what the format of either has no room for.

    With `tensors`, each place that refers to one has to refer to the same name in both.
    """
    comparison = Comparison()
    trees, sides, is_said = [_objects(found), _objects(expected)], ("output", "source"), True
    for k, (mine, theirs) in enumerate(((found, expected), (expected, found))):
        tree, here, there = trees[k], sides[k], sides[1 - k]
        if theirs.format == "dcp" != mine.format and isinstance(tree, Mapping):
            taken = flattened(complete(tree, tuple(mine.entries)))
            comparison.notes += (f"the {there} does not say {text}" for text in taken.changed)
            tree = trees[k] = _plainly(taken.tree, mine)
        if trees[1 - k] == EMPTY != tree and not theirs.format.startswith("torch"):
            is_said = False
            held = pairs_of(tree)
            named = [repr(word(key)) for key, child in held if not any(tensor_names(child))]
            kinds = ", ".join(named[:5]) or "attributes and the nesting of its tensors"
            if holds_objects(tree):
                comparison.notes.append(
                    f"the {here}'s objects ({kinds}) are not in the {there}, whose format has no room for them"
                )
        elif not holds(theirs.format).objects and _shares_objects(tree) and not _shares_objects(trees[1 - k]):
            comparison.notes.append(f"the {there} does not say which objects of the {here} are one")
            trees[k] = unmarked(tree, marks(tree))
    if is_said:
        comparison.run(*(trees if tensors else map(bare, trees)))
    absent = []
    names = {name: name for name in found.entries}
    output, source = found.metadata, expected.metadata
    with suppress(errors.PlanError):  # parts that an entry names are not there: it is compared as it stands
        output, source = (with_tensors(one.path, one.metadata, names) for one in (found, expected))
    for key in {**source, **output}:
        one, other = output.get(key), source.get(key)
        if one == other or key == "format" or key in RECORDS:
            continue
        if one is None and not holds(found.format).objects:
            absent.append(key)
        else:
            comparison.differences += _of_metadata(key, one, other)
    if absent:
        comparison.notes.append(
            f"the source's metadata ({some(absent)}) are not in the output, whose format has no room for them"
        )
    return comparison


def _shares_objects(tree: Node) -> bool:
    """Whether a tree says of objects at several places that they are one."""
    return any(count > 1 for count in marks(tree).values())


def _of_metadata(key: str, one: str | None, other: str | None) -> Iterator[str]:
    """What differs in an entry of the metadata: of JSON, each setting."""
    mine, theirs = ({"": text} if None in (one, other) else dict(json_leaves(text or "")) for text in (one, other))
    for at in {**theirs, **mine}:
        if mine.get(at) != theirs.get(at):
            where = f"metadata {key!r}{at and f' {at}'}"
            yield f"{where}: {_shown(mine.get(at), 'is')}; the source has {_shown(theirs.get(at))}"


def _shown(value: str | None, verb: str = "") -> str:
    """A value of metadata, cut to 60 characters, after a verb; `None` is a key that is not there."""
    if value is None:
        return "is not there" if verb else "none"
    return f"{verb} {value!r:.60}".strip()


def _objects(checkpoint: Checkpoint) -> Node:
    """The tree in the form that all formats have; an empty one where it says nothing but the names, in any order."""
    tree = checkpoint.objects
    return _plainly(flat(tree, {*tensor_names(tree)} - checkpoint.entries.keys()), checkpoint)


def _plainly(tree: Node, checkpoint: Checkpoint) -> Node:
    names = tuple(str(key) for key, _ in tree.items) if isinstance(tree, Mapping) else ()
    return EMPTY if {*names} in (set(), {*checkpoint.entries}) and is_flat(tree, names) else tree


def gradients_apart(found: Checkpoint, expected: Checkpoint) -> Iterator[str]:
    """Which tensors ask for gradients in one checkpoint alone, where both say it: that is no value of theirs."""
    for where, one, other in (("output", found, expected), ("source", expected, found)):
        if names := [
            name
            for name, entry in one.entries.items()
            if entry.requires_grad and name in other.entries and other.entries[name].requires_grad is False
        ]:
            count = errors.plural(names, "tensor asks", "tensors ask")
            yield f"{count} for gradients in the {where} only: {some(names)}"


def mark_differences(found: Checkpoint, expected: Checkpoint) -> Comparison:
    """Which tensors are parameters or storages of torch's, where both checkpoints say."""
    comparison = Comparison()
    says = any(entry.requires_grad is not None or entry.kind for entry in found.entries.values())
    says = says and holds(found.format).views
    unsaid = []
    for name, entry in expected.entries.items():
        if name not in found.entries:
            continue
        mine = found.entries[name]
        marked = entry.requires_grad or bool(entry.kind)
        if not says:
            unsaid += [name] if marked else []
            continue
        is_said = expected.format.startswith("torch") or entry.requires_grad is not None
        trains = mine.kind == "parameter" and mine.requires_grad and not entry.kind
        if is_said and mine.kind != entry.kind and not trains:
            comparison.differences.append(f"{name!r}: is {_kind(mine)}; the source has {_kind(entry)}")
    if unsaid:
        what = "the output does not say which tensors ask for gradients or are parameters"
        comparison.notes.append(f"{what}: {some(unsaid)}")
    return comparison


def _kind(entry: Entry) -> str:
    return f"a {entry.kind}" if entry.kind else "a plain tensor"


def alias_set_differences(found: Checkpoint, expected: Checkpoint, apart: Collection[str] = ()) -> Iterator[str]:
    """Names that share memory in one checkpoint and not in the other, but for those that are stored `apart`."""
    mine, theirs = (
        {
            name: alias_set
            for name, alias_set in alias_sets(checkpoint).items()
            if name in found.entries and name not in apart
        }
        for checkpoint in (found, expected)
    )
    both = [name for name in theirs if name in mine]
    pairs: dict[str, str] = {}
    back: dict[str, str] = {}
    for name in both:
        if pairs.setdefault(theirs[name], mine[name]) != mine[name]:
            yield f"{name!r}: shares memory with {theirs[name]!r} in the source and not in the output"
        elif back.setdefault(mine[name], theirs[name]) != theirs[name]:
            yield f"{name!r}: shares memory with {mine[name]!r} in the output and not in the source"


def alias_sets(checkpoint: Checkpoint) -> dict[str, str]:
    """{name: the first name of its alias set}, of what a pending sign makes of a window too."""
    graph = alias.build(checkpoint, parts=False, counts_unused=False)
    return {**{name: member.alias_set for name, member in graph.names.items()}, **graph.pending}


def declared_names(checkpoint: Checkpoint, path: str) -> set[tuple[str, ...]] | None:
    """The names that the config.json in a folder or beside a file ties, of each tie those that the checkpoint has.

    None where there is no config that can be read.
    """
    from paramtool.commands.config_ties import config_beside
    from paramtool.passes.config_ties import declared

    config = config_beside(path)
    if config is None:
        return None
    rows = declared.table(config, checkpoint, alias.build(checkpoint, parts=False, counts_unused=False))
    return {tuple(sorted(row.tie.names)) for row in rows if row.says}


def following(ties: Dict[str, str]) -> Iterator[str]:
    """Who follows whom, for people; a text for each that is followed."""
    followers = grouped((base, name) for name, base in ties.items())
    for base, names in followers.items():
        yield f"{errors.some(names, MANY)} {'follow' if len(names) > 1 else 'follows'} {base!r}"


def some(names: Collection[str]) -> str:
    return errors.some(sorted(names), MANY)


MANY = 4
"""The most names that a message lists."""
