"""Attention, gated MLPs and experts in another layout, and models under the names of another dialect.

`convert --to DIALECT`, `fuse --layout qkv` and `unfuse --layout qkv-per-head` come here; recurrent networks are
converted by `relayout`.  The facts that no shape tells come from the file's own record, from the config.json beside it,
and from `--spec`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, NamedTuple

from paramtool import dialects, layouts
from paramtool.errors import LayoutError, UsageError, listed, plural
from paramtool.formats import hf_config
from paramtool.formats.record import parts as record
from paramtool.formats.record.moved import carried, with_record
from paramtool.formats.record.parts import FusedTensor, PartsRecord
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts import facts as part_facts
from paramtool.parts.config_facts import from_config, tower_of
from paramtool.parts.facts import NONE, Facts
from paramtool.parts.layout import PartLayout, all_part_layouts, find_part_layout, group
from paramtool.parts.packing import Packing
from paramtool.parts.pieces import Stored
from paramtool.passes.parts import find, following, fuse
from paramtool.passes.parts.fuse import Joint, PartNames
from paramtool.passes.parts.rewrite import Rearranged, renames, rewritten

if TYPE_CHECKING:
    from paramtool.commands.output.writer import Writer
    from paramtool.commands.relayout import RelayoutOptions
    from paramtool.model.plan import Plan
    from paramtool.passes.rewriting import Outcome

OF_NETWORKS_ONLY = {
    "stack": "--stack", "ignore": "--ignore", "keep_split": "--keep-split", "drop_kept": "--drop-kept",
}  # fmt: skip
"""{an option that only recurrent networks have: its flag}"""


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """What is done to the parts of a checkpoint."""

    change: Rearranged
    source: str
    """The layout or the dialect that they were in."""
    target: str
    """The layout or the dialect that they are in now; empty for tensors of their own."""
    is_dialect: bool
    groups: tuple[tuple[str, int], ...]
    """(module, tensors that it had)"""
    renamed: int
    """Tensors that only have another name."""
    facts: Mapping[str, str]
    """{`heads=12`: who said it}"""
    record: PartsRecord
    """What the output says of it."""
    warnings: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    """In a report, the tensors of the source that were rearranged or renamed."""
    split: tuple[str, ...] = ()
    """In a report, those of several parts."""
    joined: tuple[str, ...] = ()
    """In a report, the new tensors of several parts."""
    said: Mapping[str, str] = field(default_factory=dict)
    """{layout: who says that tensors have it}, where nobody gave one."""

    @property
    def is_recorded(self) -> bool:
        """Whether the output has something to say; if it restores what an earlier command found, it has not."""
        return bool(record.encode(self.record))

    def reported(self) -> Rearrangement:
        """The same for a report, when the plan is made: names instead of pieces, of which a model has many."""
        return replace(
            self,
            change=Rearranged((), ()),
            read=tuple(one.name for one in self.change.read),
            split=tuple(one.name for one in self.change.read if len(one.pieces) > 1),
            joined=tuple(one.name for one in self.change.made if len(one.pieces) > 1),
        )


def is_wanted(checkpoint: Checkpoint, options: RelayoutOptions) -> bool:
    """Whether these options speak of parts or dialects, and not of recurrent networks."""
    for text in (options.target, options.source):
        name = layouts.parse(text)[0] if text else ""
        if name and (find_part_layout(name) is not None or name in dialects.NAMES):
            return True
        if name:
            _check_known(name)
    return is_unsaid(options) and bool(record_of(checkpoint).fused)


def is_unsaid(options: RelayoutOptions) -> bool:
    """Whether `unfuse` has no layout and takes those that are known."""
    return options.described and options.source is None and options.target is None


CHANGES_VALUES = {
    "zero-centred-norm": "weights of norms minus 1", "zero-centered-norm": "weights of norms minus 1",
    "norm-plus-one": "weights of norms plus 1", "a-log": "the logarithm of A",
    "neg-exp-a-log": "minus the exponential of A_log",
    "batchnorm-folded": "a batch norm folded into a weight", "folded-batchnorm": "a batch norm folded into a weight",
    "fold-batchnorm": "a batch norm folded into a weight",
}  # fmt: skip
"""{what somebody could ask for as a layout: what it does to values}"""


def _check_known(name: str) -> None:
    """UsageError for the name of no layout, and for what changes values: going back would not give the same bytes."""
    if what := CHANGES_VALUES.get(name.lower().replace("_", "-")):
        raise UsageError(
            f"{name} is no layout: it changes values ({what}), and rounding loses some of them",
            hint="a layout moves elements and keeps their bits; change values with the program that needs it",
        )
    try:
        layouts.find(name)
    except UsageError as error:
        error.hint += "; `paramtool layouts` lists those of attention, gated MLPs and experts, and the dialects, too"
        raise


def record_of(checkpoint: Checkpoint) -> PartsRecord:
    return record.decode(checkpoint.files[0].path, checkpoint.metadata)


def rearrangement(checkpoint: Checkpoint, options: RelayoutOptions) -> Rearrangement:
    """What these options want; LayoutError where it cannot be done, UsageError where they contradict each other."""
    if given := [flag for name, flag in OF_NETWORKS_ONLY.items() if getattr(options, name)]:
        raise UsageError(
            f"{given[0]} is for recurrent networks; it does not go with {options.target or options.source}"
        )
    where = checkpoint.files[0].path
    config = config_beside(where)
    try:
        if options.target in dialects.NAMES or options.source in dialects.NAMES:
            return _to_dialect(checkpoint, options, config)
        if options.target is not None:
            return _fused(checkpoint, options, config)
        return _unfused(checkpoint, options, config)
    except LayoutError as error:
        raise error if error.message.startswith(where) else error.located(where) from None


def config_beside(where: str) -> Mapping[str, object]:
    """The config beside a checkpoint; empty if there is none."""
    path = os.path.join(os.path.dirname(where), hf_config.NAME)
    return hf_config.whole(path) if os.path.exists(path) else {}


def facts_of(config: Mapping[str, object], spec: Facts, used: dict[tuple[str, int], str]) -> Callable[[str], Facts]:
    """The facts about the module or tensor of a name: of its tower in the config, and of `--spec`."""
    towers: dict[str, Facts] = {}

    def of_tower(name: str) -> Facts:
        tower = tower_of(name, config) if config else None
        if tower is None:
            return spec
        if tower not in towers:
            own = from_config(config, tower)
            towers[tower] = part_facts.merged(config=own, spec=spec)
        return towers[tower]

    def told(name: str) -> Facts:
        found = of_tower(name)
        used.update({(word, size): found.said[word] for word, size in found.sizes.items()})
        return found

    return told


def _told(used: Mapping[tuple[str, int], str], joints: Iterable[Joint]) -> dict[str, str]:
    """The facts that fused tensors depend on, and who said each."""
    needed = {(word, size) for one in joints for word, size in one.sizes.items()}
    return {f"{word}={size}": said for (word, size), said in used.items() if (word, size) in needed}


def _spec(options: RelayoutOptions, kind: str) -> Facts:
    if not options.spec:
        return NONE
    named, found = part_facts.from_spec(options.spec)
    if kind and named != kind:
        raise UsageError(
            f"--spec {options.spec!r} is about {named}; the layout holds {kind}", hint=f'--spec "{kind} ..."'
        )
    return found


def _layout(text: str | None) -> PartLayout:
    name, given = layouts.parse(text or "")
    found = find_part_layout(name)
    if found is None:
        known = ", ".join(one.name for one in all_part_layouts())
        raise UsageError(f"no layout of parts is called {name!r}; expected one of: {known}")
    if given:
        raise UsageError(f"layout {name} has no options; sizes are given by --spec")
    return found


def shapes_of(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: view.shape for name, view in checkpoint.views().items()}


def _names(options: RelayoutOptions, layout: PartLayout | None = None, *, fused: bool = False) -> PartNames:
    """The names that are asked for; UsageError for one that nothing of the layout has, or of any if none is given."""
    of = [layout] if layout is not None else all_part_layouts()
    usual = list(dict.fromkeys(name for one in of for name in _usual(one, fused)))
    if unknown := [name for name in options.rename or {} if name not in usual]:
        what = f"layout {layout.name} has no such name" if layout is not None else "no layout has such a name"
        raise UsageError(f"--rename {unknown[0]!r}: {what}; expected one of: {', '.join(usual[:MANY_NAMES])}")
    if empty := [name for name, new in (options.rename or {}).items() if not new.strip(".")]:
        raise UsageError(f"--rename {empty[0]!r} to {(options.rename or {})[empty[0]]!r}: expected a name")
    return PartNames(dict(options.rename or {}))


MANY_NAMES = 12


def _usual(layout: PartLayout, fused: bool) -> list[str]:
    """What the fused tensors of a layout are called, or its parts."""
    return [row.name for row in layout.tensors] if fused else [*group(layout.group).parts.values()]


def _fused(checkpoint: Checkpoint, options: RelayoutOptions, config: Mapping[str, object]) -> Rearrangement:
    layout = _layout(options.target)
    where, shapes, known = checkpoint.files[0].path, shapes_of(checkpoint), record_of(checkpoint)
    if options.source is not None:
        raise UsageError(
            f"--from {options.source}: fuse takes parts that are tensors of their own",
            hint=f"paramtool unfuse --layout {options.source} first, or convert between dialects",
        )
    used: dict[tuple[str, int], str] = {}
    facts = facts_of(config, _spec(options, layout.group), used)
    again = (
        [] if options.at else [one for one in known.unfused if one.layout == layout.name and _are_there(one, shapes)]
    )
    _check_restored(again, options)
    joints = [from_record(one, shapes, packing_of(config), is_fused=False) for one in again]
    taken = {name for one in again for name in one.names}
    rest = [name for name in shapes if name not in taken]
    if not joints or options.at:
        groups = find.apart(rest, group(layout.group), options.at, where)
        joints += fuse.fused(
            groups,
            layout,
            shapes,
            lambda at: facts(at).sizes,
            names=_names(options, layout, fused=True),
            packing=packing_of(config),
        )
    ranks = {name: k for k, name in enumerate(checkpoint.entries)}
    again = _restored(again, known.unfused, joints, ranks, is_fused=False)
    gone = {one.tensor for one in again}
    made = [one for one in joints if one.stored.name not in gone]
    old = {one.tensor: one for one in known.fused}
    new = {one.stored.name: _recorded(one, ranks, is_fused=True) for one in made}
    new |= {name: old[name] for name, one in new.items() if name in old and old[name].is_like(one)}
    return Rearrangement(
        Rearranged(
            tuple(parts_as_they_are(joints, shapes)),
            tuple(one.stored for one in joints),
            _positions(again, is_fused=False),
        ),
        "",
        layout.name,
        False,
        tuple((at, count) for at, count in _counted(joints).items()),
        0,
        _told(used, joints),
        replace(
            known,
            fused=(
                *(one for one in known.fused if one.tensor not in new),
                *new.values(),
            ),
            unfused=tuple(one for one in known.unfused if one.tensor not in gone),
        ),
    )


def _restored(
    again: Sequence[FusedTensor],
    known: Iterable[FusedTensor],
    joints: Iterable[Joint],
    ranks: Mapping[str, int],
    *,
    is_fused: bool,
) -> list[FusedTensor]:
    """The tensors of a record that are restored: those that were taken from it, and any that turn out to be the same.

    `is_fused` says that they are taken apart.
    """
    same = {one.stored.name: _recorded(one, ranks, is_fused=not is_fused) for one in joints}
    taken = {one.tensor for one in again}
    others = (one for one in known if one.tensor in same and one.tensor not in taken)
    return [*again, *(one for one in others if one.is_like(same[one.tensor]))]


def _check_restored(again: Sequence[FusedTensor], options: RelayoutOptions) -> None:
    """UsageError for names that are asked for where the record gives back those that were there."""
    if again and options.rename:
        raise UsageError(
            f"--rename {next(iter(options.rename))!r}: the record of parts in the file gives back the old names",
            hint="`export --rename` renames tensors afterwards; --at PATTERN goes without the record",
        )


def _are_there(one: FusedTensor, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(name in shapes for name in one.names)


def from_record(one: FusedTensor, shapes: Mapping[str, tuple[int, ...]], packing: Packing, *, is_fused: bool) -> Joint:
    """A tensor that a record describes, in a file that has it, or its parts."""
    return fuse.recorded(
        one.tensor,
        one.pattern,
        one.along,
        one.sizes,
        parts=one.parts,
        shapes=shapes,
        layout=one.layout,
        is_fused=is_fused,
        companion=one.companion,
        packing=packing,
    )


def packing_of(config: Mapping[str, object]) -> Packing:
    """What a config says of quantised weights: bits of a code, tiles, blocks."""
    found = config.get("quantization_config")
    said: Mapping[str, object] = found if isinstance(found, dict) else {}
    bits, tile = said.get("bits"), said.get("weight_block_size")
    usual = Packing()
    sizes = tuple(tile) if isinstance(tile, list) and all(type(size) is int and size > 0 for size in tile) else ()
    return Packing(
        bits=bits if type(bits) is int and bits in (2, 3, 4, 8) else usual.bits,
        tile=(sizes[0], sizes[1]) if len(sizes) == 2 else usual.tile,
    )


def parts_as_they_are(joints: list[Joint], shapes: Mapping[str, tuple[int, ...]]) -> list[Stored]:
    """The parts as the source has them; LayoutError if a record says another shape."""
    found = fuse.parts_of(joints)
    for one in found:
        if shapes[one.name] != one.shape:
            raise LayoutError(
                f"{one.name!r} has shape {list(shapes[one.name])}; its record says {list(one.shape)}",
                hint="--at MODULE fuses without the record",
            )
    return found


def _counted(joints: list[Joint]) -> dict[str, int]:
    """{module: fused tensors}"""
    found: dict[str, int] = {}
    for one in joints:
        at = one.stored.name.rpartition(".")[0]
        found[at] = found.get(at, 0) + 1
    return found


def _recorded(one: Joint, ranks: Mapping[str, int], *, is_fused: bool) -> FusedTensor:
    """What a file says of a tensor that was fused, or taken apart, and where the others were in the source."""
    parts = {term: tuple(part.name for part in parts) for term, parts in one.parts.items()}
    old = [name for names in parts.values() for name in names] if is_fused else [one.stored.name]
    return FusedTensor(
        one.stored.name,
        one.layout,
        one.content,
        one.along,
        dict(one.sizes),
        parts,
        tuple(ranks[name] for name in old),
        one.companion,
    )


def _positions(again: Iterable[FusedTensor], *, is_fused: bool) -> dict[str, int]:
    """{name that is restored: its position}"""
    names = ((one.names if is_fused else (one.tensor,), one.positions) for one in again)
    return {name: place for own, places in names for name, place in zip(own, places, strict=False)}


def _unfused(checkpoint: Checkpoint, options: RelayoutOptions, config: Mapping[str, object]) -> Rearrangement:
    where, shapes, known = checkpoint.files[0].path, shapes_of(checkpoint), record_of(checkpoint)
    used: dict[tuple[str, int], str] = {}
    again = [one for one in known.fused if options.source in (None, one.layout) and not options.at]
    _check_restored(again, options)
    joints = [from_record(one, shapes, packing_of(config), is_fused=True) for one in again]
    named = options.source or (again[0].layout if again else "")
    said: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    if not joints and options.source is None:
        from paramtool.commands import unfuse_seen

        spec = _spec(options, "")
        facts = facts_of(config, spec, used)
        found = unfuse_seen.unfused(
            checkpoint, shapes, options.at, spec, sizes_of=lambda at: facts(at).sizes,
            names=_names(options), packing=packing_of(config),
        )  # fmt: skip
        joints, said = found.joints, found.said
        named = ", ".join(said)
    elif not joints:
        layout = _layout(options.source)
        facts = facts_of(config, _spec(options, layout.group), used)
        groups = find.fused(shapes, layout, options.at, where)
        joints = list(
            fuse.unfused(
                groups,
                layout,
                shapes,
                lambda at: facts(at).sizes,
                names=_names(options, layout),
                packing=packing_of(config),
            )
        )
        named = layout.name
        warnings = tuple(_otherwise(checkpoint, layout, joints))
    ranks = {name: k for k, name in enumerate(checkpoint.entries)}
    again = _restored(again, known.fused, joints, ranks, is_fused=True)
    gone, taken = {one.tensor for one in again}, {one.stored.name for one in joints}
    made = [one for one in joints if one.stored.name not in gone]
    return Rearrangement(
        Rearranged(tuple(one.stored for one in joints), tuple(fuse.parts_of(joints)), _positions(again, is_fused=True)),
        named,
        "",
        False,
        tuple((at, count) for at, count in _counted(joints).items()),
        0,
        _told(used, joints),
        replace(
            known,
            fused=tuple(one for one in known.fused if one.tensor not in taken),
            unfused=(*known.unfused, *(_recorded(one, ranks, is_fused=False) for one in made)),
        ),
        warnings=warnings,
        said=said,
    )


def _otherwise(checkpoint: Checkpoint, layout: PartLayout, joints: Iterable[Joint]) -> Iterator[str]:
    """A warning if a config says another layout of what was taken apart than the one that was given."""
    from paramtool.commands.seen_parts import seen_parts
    from paramtool.passes.parts.groups import NUMBER

    seen = seen_parts(checkpoint)
    places = {NUMBER.sub("*", one.stored.name) for one in joints}
    for one in seen.groups if seen is not None else ():
        others = {place for place in places if place.startswith(f"{one.at}.")}
        is_other = one.form == "fused" and one.layout not in (None, "", layout.name) and others
        other = find_part_layout(one.layout or "") if is_other else None
        if other is not None and other.group == layout.group:
            yield f"{one.at}: {one.source} says layout {other.name}; it was taken apart as {layout.name}"


def _to_dialect(checkpoint: Checkpoint, options: RelayoutOptions, config: Mapping[str, object]) -> Rearrangement:
    where, shapes, known = checkpoint.files[0].path, shapes_of(checkpoint), record_of(checkpoint)
    for text, flag in ((options.target, "--to"), (options.source, "--from")):
        if text is not None and text not in dialects.NAMES:
            raise UsageError(f"{flag} {text} is no dialect; expected one of: {', '.join(dialects.NAMES)}")
    if not config:
        raise UsageError(
            f"{where}: no {hf_config.NAME} beside it, which says of which model it is",
            hint="put the model's config.json beside the file; fuse and unfuse need none",
        )
    if given := [flag for flag, value in (("--at", options.at), ("--rename", options.rename)) if value]:
        raise UsageError(
            f"{given[0]} does not go with a dialect, which names all tensors of a model",
            hint="fuse and unfuse take it; `export --rename` renames tensors",
        )
    target = options.target or "transformers-4"
    used: dict[tuple[str, int], str] = {}
    facts = facts_of(config, _spec(options, ""), used)
    source = options.source or known.dialect or _recognised(where, shapes, config, facts)
    if source == target:
        raise UsageError(f"{where}: is in the dialect {target} already; nothing was written")
    if known.dialect == source and known.source == target:
        shapes = without_old_names(checkpoint, shapes, (source, target), config, facts=facts)
    done = dialect_change(shapes, (source, target), config, facts)
    back = known.source == target and known.dialect == source
    renamed = renames(done.change)
    kept = carried(known, renamed)
    return Rearrangement(
        done.change,
        source,
        target,
        True,
        (),
        sum(old != new for old, new in renamed.items()),
        {f"{word}={size}": said for (word, size), said in used.items()},
        replace(kept, dialect="" if back else target, source="" if back else source),
        (*done.caveats, *_forgotten(known, kept), *_unchanged(done.change, (source, target), config)),
    )


def without_old_names(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    ways: tuple[str, str],
    config: Mapping[str, object],
    *,
    facts: Callable[[str], Facts],
) -> dict[str, tuple[int, ...]]:
    """Tensors without those that `--keep-names` left in a file as views, under the names that they had before."""
    entries = checkpoint.entries
    views = {name for name in shapes if (link := entries[name].link) is not None and link.owner}
    if not views:
        return dict(shapes)
    stored = {name: shape for name, shape in shapes.items() if name not in views}
    old = {one.name for one in dialect_change(stored, ways, config, facts).change.made} - stored.keys()
    return {name: shape for name, shape in shapes.items() if name not in views or name not in old}


def _unchanged(change: Rearranged, ways: tuple[str, str], config: Mapping[str, object]) -> Iterator[str]:
    """A warning if nothing differs between two dialects: the model has no such tensors, or the config is another's."""
    if set(change.read) == set(change.made):
        model = dialects.architecture(config) or "this model"
        yield (
            f"nothing differs between {ways[0]} and {ways[1]} for the tensors of {model}: all keep names and forms; "
            "if that is a surprise, config.json is of another model"
        )


def _check_experts(hub: Iterable[str], facts: Callable[[str], Facts]) -> None:
    """LayoutError if a list of experts has another number than the facts say: its last one may be missing."""
    lists: dict[str, set[int]] = {}
    for name in hub:
        if found := EXPERT.match(name):
            lists.setdefault(found[1], set()).add(int(found[2]))
    for at, numbers in lists.items():
        known = facts(at)
        expected = known.sizes.get("experts", 0)
        if expected and numbers != set(range(expected)):
            missing = ", ".join(map(str, sorted(set(range(expected)) - numbers)[:4]))
            raise LayoutError(
                f"{at!r}: found {plural(len(numbers), 'expert')}, expected {expected}: {known.said['experts']}"
                + (f"; missing: {missing}" if missing else ""),
                hint="the file lacks experts or has too many, or config.json is of another model",
            )


EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.")


class DialectChange(NamedTuple):
    """A model in another dialect."""

    change: Rearranged
    caveats: tuple[str, ...]
    """What a reader of the target should know."""


def dialect_change(
    shapes: Mapping[str, tuple[int, ...]],
    ways: tuple[str, str],
    config: Mapping[str, object],
    facts: Callable[[str], Facts],
) -> DialectChange:
    """Tensors of one dialect as those of another, `ways`; LayoutError where they do not fit."""
    read, write = (dialects.opened(name, config, facts) for name in ways)
    packing = packing_of(config)
    found = following.told_apart(shapes, packing)
    held = read.read(found.weights)
    hub = _hub(held)
    if ways[1] in dialects.TABLES:  # those of transformers check it themselves
        _check_experts(hub, facts)
    made = write.write(hub)
    if found.beside:
        held, made = following.followed(held, made, found, shapes, packing=packing)
    return DialectChange(Rearranged(tuple(held), tuple(made)), write.caveats)


def _forgotten(known: PartsRecord, kept: PartsRecord) -> Iterator[str]:
    count = len(known.fused) + len(known.unfused) - len(kept.fused) - len(kept.unfused)
    if count:
        yield (
            f"the record of {plural(count, 'fused tensor')} ends here: the new tensors are made of its parts, and "
            "fusing or taking apart does not restore the old ones"
        )


def _hub(held: list[Stored]) -> dict[str, tuple[int, ...]]:
    """{tensor of transformers 4: its shape}, from the pieces of all tensors."""
    found: dict[str, list[int]] = {}
    for tensor in held:
        for piece in tensor.pieces:
            ends = [start + length for start, length in zip(piece.start, piece.shape, strict=True)]
            known = found.setdefault(piece.part, ends)
            if known is not ends:
                found[piece.part] = [max(pair) for pair in zip(known, ends, strict=True)]
    return {name: tuple(shape) for name, shape in found.items()}


def _recognised(
    where: str,
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, object],
    facts: Callable[[str], Facts],
) -> str:
    """The one dialect whose names these are; LayoutError lists several, or says that there is none."""
    found = dialects.recognised(shapes, config, facts)
    if len(found) > 1:
        held = {name: frozenset(dialects.opened(name, config, facts).read(shapes)) for name in found}
        found = found if len(set(held.values())) > 1 else [dialects.HUB if dialects.HUB in found else found[0]]
    if len(found) == 1:
        return found[0]
    if not found:
        raise LayoutError(
            f"{where}: {dialects.why_none(shapes, config)}",
            hint="the file was converted in part, or it is of another model than config.json says",
        )
    if found == [dialects.HUB, dialects.MEMORY]:  # the shapes do not tell, either: the error says why
        dialects.opened(dialects.MEMORY, config, facts).read(shapes)
    raise LayoutError(
        listed(f"{where}: its names are those of {plural(len(found), 'dialect')}:", list(found)),
        hint="--from DIALECT says which it is",
    )


def planned(
    checkpoint: Checkpoint, wanted: Rearrangement, writer: Writer, options: RelayoutOptions
) -> tuple[Plan, Outcome]:
    """The plan of an output with rearranged parts, and the record of it."""
    plan, outcome = rewritten(
        checkpoint,
        wanted.change,
        keep_names=options.keep_names,
        skip_unsupported=options.skip_unsupported,
        split_content=writer.aliases_equal_bytes,
    )
    metadata = with_record(plan.metadata, wanted.record)
    return replace(plan, metadata=metadata), replace(outcome, rest=replace(outcome.rest, metadata=metadata))
