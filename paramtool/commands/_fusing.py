"""`fuse --layout` and `unfuse` of attention, gated MLPs and experts.

Both find the fused tensors and their parts (`Joint`), by the record of the file or by names, layout and facts; what is
in the record is restored, and the rest is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from paramtool import dialects, layouts
from paramtool.commands.rearrangement import PartsSource, Rearrangement
from paramtool.commands.seen_parts import seen_parts
from paramtool.errors import LayoutError, UsageError, listed
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.parts import widths
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.facts import KINDS, Facts, of_spec
from paramtool.parts.layout import PartGroup, PartLayout, all_part_layouts, find_part_layout, group
from paramtool.parts.schemes import packing_of
from paramtool.parts.words import joined, place
from paramtool.passes.parts import consistency, find, following, fuse
from paramtool.passes.parts.dialect_change import EXPERT, refuse_left
from paramtool.passes.parts.fuse import Joint, KnownParts, parts_as_they_are, restored
from paramtool.passes.parts.layouts_seen import refusal
from paramtool.passes.parts.rewrite import Rearranged
from paramtool.passes.parts.seen_groups import SeenGroup

if TYPE_CHECKING:
    from paramtool.commands.relayout_options import RelayoutOptions

MANY_NAMES = 12


def fused(source: PartsSource, options: RelayoutOptions) -> Rearrangement:
    """What `fuse` does: parts that are separate tensors become those of a layout."""
    layout, known = _layout(options.target), source.record
    if options.source is not None:
        raise UsageError(
            f"--from {options.source}: fuse takes parts that are separate tensors",
            hint=f"`unfuse --layout {options.source}` first, or convert between dialects",
        )
    model = KnownModel(source.config, of_spec(options.spec, layout.group))
    same = [one for one in known.unfused if one.layout == layout.name and source.shapes.keys() >= {*one.names}]
    again = [] if options.at else same
    joints = _of_record(again, source, model, options, is_fused=False)
    if not joints:
        names = _names(options, layout, fused=True)
        groups = find.apart(source.shapes, _called(layout, names), options.at, source.where)
        if not options.at:
            find.refuse_more(groups, layout, source.shapes)
        joints = [*fuse.fused(groups, layout, KnownParts(source.shapes, model.sizes, names, model.packing))]
        _refuse_twice(joints, known, is_fused=False)
        _check(joints, source, options)
    if layout.group == "experts":
        _refuse_left(joints, source)
    back, described = restored(joints, again, known.unfused, source.ranks, is_fused=False)
    parts = parts_as_they_are(joints, source.shapes)
    old = {one.tensor: one for one in known.fused}
    new = {one.tensor: one for one in described}
    new |= {name: old[name] for name, one in new.items() if name in old and old[name].is_like(one)}
    return _rearrangement(
        joints,
        model,
        Rearranged(tuple(parts), tuple(one.stored for one in joints), source.ranks),
        replace(
            known,
            fused=(*(one for one in known.fused if one.tensor not in new), *new.values()),
            unfused=tuple(one for one in known.unfused if one.tensor not in back),
        ),
        target=layout.name,
    )


class _TakenApart(NamedTuple):
    """Fused tensors that `unfuse` takes apart."""

    joints: list[Joint]
    layouts: str
    """Theirs, for the report."""
    model: KnownModel
    said: Mapping[str, str] = {}
    """{layout: who says it}, where the user gave none."""
    warnings: tuple[str, ...] = ()


def unfused(source: PartsSource, options: RelayoutOptions) -> Rearrangement:
    """What `unfuse` does: tensors of a layout, or of those that are known, become their parts."""
    known = source.record
    again = [one for one in known.fused if options.source in (None, one.layout) and not options.at]
    if again:
        kind = _layout(options.source).group if options.source else ""
        model = KnownModel(source.config, of_spec(options.spec, kind))
        joints = _of_record(again, source, model, options, is_fused=True)
        found = _TakenApart(joints, ", ".join(dict.fromkeys(one.layout for one in again)), model)
    else:
        found = _of_known(source, options) if options.source is None else _of_layout(source, options)
        _refuse_twice(found.joints, known, is_fused=True)
        _check(found.joints, source, options)
    joints = found.joints
    _, described = restored(joints, again, known.fused, source.ranks, is_fused=True)
    taken = {one.stored.name for one in joints}
    return _rearrangement(
        joints,
        found.model,
        Rearranged(tuple(one.stored for one in joints), tuple(fuse.parts_of(joints)), source.ranks),
        replace(
            known,
            fused=tuple(one for one in known.fused if one.tensor not in taken),
            unfused=(*known.unfused, *described),
        ),
        source=found.layouts,
        said=found.said,
        warnings=found.warnings,
    )


def _rearrangement(
    joints: Sequence[Joint],
    model: KnownModel,
    change: Rearranged,
    record: PartsRecord,
    *,
    source: str = "",
    target: str = "",
    said: Mapping[str, str] | None = None,
    warnings: tuple[str, ...] = (),
) -> Rearrangement:
    """What both commands say of their tensors, with the facts that these depend on."""
    modules = Counter(_module(one) for one in joints)
    return Rearrangement(
        change=change,
        source=source,
        target=target,
        groups=tuple(modules.items()),
        facts=model.said(item for one in joints for item in one.described.sizes.items()),
        record=record,
        said=said or {},
        warnings=warnings,
    )


def _module(one: Joint) -> str:
    """The module that a tensor belongs to: `attn.qkv_proj` of its weight and of its `lora_A.weight`."""
    name, suffix = one.stored.name, f".{one.described.companion}"
    return name.removesuffix(suffix) if name.endswith(suffix) else name.rpartition(".")[0]


def _of_record(
    again: Sequence[FusedTensor],
    source: PartsSource,
    model: KnownModel,
    options: RelayoutOptions,
    *,
    is_fused: bool,
) -> list[Joint]:
    """Tensors that the record of the source describes.

    UsageError if other names are asked for; LayoutError if the config or `--spec` contradict the record.
    """
    if again and options.rename:
        raise UsageError(
            f"--rename {next(iter(options.rename))!r}: the record of parts in the file gives back the old names",
            hint="`export --rename` renames tensors afterwards; --at PATTERN goes without the record",
        )
    found = []
    for one in again:
        model.check(one.tensor, Facts(one.sizes, dict.fromkeys(one.sizes, "the record of parts in the file")))
        found.append(fuse.recorded(one, source.shapes, model.packing, is_fused=is_fused))
        fuse.check_parts(found[-1], model.sizes(one.tensor))
    return found


def _refuse_twice(joints: Iterable[Joint], record: PartsRecord, *, is_fused: bool) -> None:
    """LayoutError for parts that the record calls fused, or for what it says was taken apart under the same name."""
    if is_fused:
        again = {one.tensor: one for one in record.unfused if one.tensor in one.names}
        found = [again[one.stored.name] for one in joints if one.stored.name in again]
        what, hint = "was taken out of layout", "nothing is to be done"
    else:
        known = {one.tensor: one for one in record.fused}
        found = [known[part.name] for joint in joints for part in joint.apart if part.name in known]
        what, hint = "is in layout", "`paramtool unfuse FILE -o OUT` gives back its parts"
    if found:
        raise LayoutError(
            listed("cannot be done again, or on top of it:",
                   [f"{one.tensor!r} {what} {one.layout} already, by the file's record" for one in found]),
            hint=hint,
        )  # fmt: skip


def _check(joints: Sequence[Joint], source: PartsSource, options: RelayoutOptions) -> None:
    """LayoutError if what is fused or taken apart contradicts its neighbours, unless it is chosen, or the config.

    What an earlier command did to some layers is in the record and does not count.
    """
    if not options.at:
        _refuse_mixed(source)
        done = {consistency.module_of(one.tensor) for one in (*source.record.fused, *source.record.unfused)}
        modules = [consistency.module_of(one.name) for joint in joints for one in (joint.stored, *joint.apart)]
        places = {place(module) for module in modules}
        names = [name for name in following.told_apart(source.shapes, packing_of(source.config)).weights
                 if consistency.module_of(name) not in done]  # fmt: skip
        consistency.check(names, source.config, places)
    if not source.config:
        return
    packed = {one.stored.name.rpartition(".")[0] for one in joints if one.described.companion}
    plain = [one for one in joints if one.stored.name.rpartition(".")[0] not in packed]
    shapes = {part.name: part.shape for joint in plain for part in joint.apart}
    if found := widths.contradictions(shapes, source.config):
        # LayoutError if a tensor that is to be taken apart is, by the config, the only matrix before an MLP's output.
        for joint in plain:
            name, shape = joint.stored.name, joint.stored.shape
            if name in source.shapes and widths.is_ungated(name, shape, source.config):
                raise LayoutError(
                    f"{name!r} has shape {list(shape)}, which is that of an MLP without a gate by config.json: it "
                    "holds no gate and up",
                    hint="nothing is to be taken apart in it; --at chooses other modules",
                )
        inside = {part.name: joint.stored for joint in plain for part in joint.apart}
        there = {part.name: part for joint in plain for part in joint.apart if part.name in source.shapes}
        widths.refuse(found, {**inside, **there})


def _refuse_left(joints: Iterable[Joint], source: PartsSource) -> None:
    """LayoutError if experts that become stacks have tensors that no stack holds."""
    parts = {part.name for joint in joints for part in joint.apart}
    others = ((found[1], name) for name in source.shapes if name not in parts and (found := EXPERT.match(name)))
    refuse_left(dict(others), parts)


def _refuse_mixed(source: PartsSource) -> None:
    """LayoutError if the names are those of both dialects of transformers, in a model that is known."""
    record = source.record
    if not source.config or record.dialect in dialects.TABLES:
        return
    done = {name for one in (*record.fused, *record.unfused) for name in (one.tensor, *one.names)}
    if mixture := dialects.mixture([name for name in source.shapes if name not in done], source.config):
        raise LayoutError(
            f"{source.where}: mixes {mixture}",
            hint="the file was converted in part; --at MODULE chooses what is fused or taken apart",
        )


def is_possible(checkpoint: Checkpoint, spec: str) -> bool:
    """Whether a checkpoint has fused parts, and `--spec` does not speak of a recurrent network."""
    words = spec.split()
    if words and words[0].lower().lstrip("-").replace("_", "-") not in KINDS:
        return False
    found = seen_parts(checkpoint)
    return found is not None and any(group.form == "fused" for group in found.groups)


def _of_known(source: PartsSource, options: RelayoutOptions) -> _TakenApart:
    """Fused tensors whose layouts are those of their families, or of names that one class alone has."""
    spec = of_spec(options.spec)
    model = KnownModel(source.config, spec)
    known = KnownParts(source.shapes, model.sizes, _names(options), model.packing)
    joints, said = seen_apart(source.checkpoint, options.at, spec, known)
    return _TakenApart(joints, ", ".join(said), model, said=said)


def seen_apart(
    checkpoint: Checkpoint, at: Sequence[str], spec: Facts, known: KnownParts
) -> tuple[list[Joint], dict[str, str]]:
    """The fused tensors whose layouts are known, and {layout: who says it}.

    LayoutError lists what fits the others, and what would decide.
    """
    where = checkpoint.path
    seen = seen_parts(checkpoint, spec.sizes)
    groups = [one for one in seen.groups if one.form == "fused" and _is_at(one, at)] if seen else []
    if not groups:
        said = f" at {', '.join(at)}" if at else ""
        raise LayoutError(
            f"{where}: no fused tensor is known{said}", hint="--layout LAYOUT --at 'PATTERN' says what a tensor holds"
        )
    if unknown := [one for one in groups if not one.layout]:
        raise refusal(unknown, where)
    joints: list[Joint] = []
    who: dict[str, str] = {}
    for one in groups:
        layout = find_part_layout(one.layout)
        if layout is None:
            raise LayoutError(f"{where}: its record has layout {one.layout!r}, which is not known")
        patterns = [one.at if len(one.names) > 1 else joined(one.at, name) for name in map(_child, one.names)]
        found = [found for found in find.fused(known.shapes, layout, patterns, where) if _is_of(found, one, at)]
        who.setdefault(layout.name, one.source)
        joints += fuse.unfused(found, layout, known)
    return joints, who


def _is_at(group: SeenGroup, at: Sequence[str]) -> bool:
    """Whether `--at` may mean one of the modules."""
    return not at or any(
        fnmatchcase(one, place(pattern)) or fnmatchcase(one, pattern)
        for pattern in at
        for one in (group.at, group.first, *(joined(group.at, name) for name in group.names))
    )


def _is_of(one: find.FusedGroup, group: SeenGroup, at: Sequence[str]) -> bool:
    """Whether a group that patterns found is one of those that were seen, and is at `--at`."""
    names = [one.at, *(joined(one.at, name) for name in one.names)]
    chosen = not at or any(fnmatchcase(name, pattern) for pattern in at for name in names)
    return chosen and place(one.at) == group.at and one.names == tuple(map(_child, group.names))


def _child(name: str) -> str:
    """What `find` calls a tensor: `in_proj` has `_weight` behind it."""
    return name.removesuffix("_weight")


def _of_layout(source: PartsSource, options: RelayoutOptions) -> _TakenApart:
    """Fused tensors of the layout that the user gives."""
    layout = _layout(options.source)
    model = KnownModel(source.config, of_spec(options.spec, layout.group))
    groups = find.fused(source.shapes, layout, options.at, source.where)
    known = KnownParts(source.shapes, model.sizes, _names(options, layout), model.packing)
    joints = list(fuse.unfused(groups, layout, known))
    # LayoutError if the file's own record says that a tensor is in another layout: no flag makes that untrue.
    recorded = {one.tensor: one.layout for one in source.record.fused}
    lines = [
        f"{name!r}: its record says layout {recorded[name]}"
        for name in (joint.stored.name for joint in joints)
        if recorded.get(name, layout.name) != layout.name
    ]
    if lines:
        raise LayoutError(
            listed(f"is not in layout {layout.name}:", lines), hint="without --layout the record takes it apart"
        )
    others = list(_otherwise(source.checkpoint, layout, joints))
    if others and not options.at:
        raise LayoutError(
            listed(f"is not in layout {layout.name}:", others),
            hint=f"without --layout it is taken apart by what is known; --at MODULE takes it apart as {layout.name} "
            "whatever is known of it",
        )
    warnings = tuple(f"{one}; taken apart as {layout.name}, because --at chooses it" for one in others)
    return _TakenApart(joints, layout.name, model, warnings=warnings)


def _otherwise(checkpoint: Checkpoint, layout: PartLayout, joints: Iterable[Joint]) -> Iterator[str]:
    """The modules of which a config says another layout than the one that the user gives."""
    seen = seen_parts(checkpoint)
    places = {place(one.stored.name) for one in joints}
    for one in seen.groups if seen is not None else ():
        others = {place for place in places if place.startswith(f"{one.at}.")}
        if one.form == "fused" and one.pattern and others:
            yield f"{one.at}: {one.source} says {one.pattern}"
        is_other = one.form == "fused" and one.layout not in (None, "", layout.name) and others
        other = find_part_layout(one.layout or "") if is_other else None
        if other is not None and other.group == layout.group:
            yield f"{one.at}: {one.source} says layout {other.name}"


# --- what the options say --------------------------------------------------------------------------------------------


def _layout(text: str | None) -> PartLayout:
    name, given = layouts.parse(text or "")
    found = find_part_layout(name)
    if found is None:
        known = ", ".join(one.name for one in all_part_layouts())
        raise UsageError(f"no layout of parts is called {name!r}; expected one of: {known}")
    if given:
        raise UsageError(f"layout {name} has no options; sizes are given by --spec")
    return found


def _names(options: RelayoutOptions, layout: PartLayout | None = None, *, fused: bool = False) -> dict[str, str]:
    """The names that are asked for; UsageError for one that nothing of the layout has, or of any if none is given."""
    of = [layout] if layout is not None else all_part_layouts()
    usual = list(dict.fromkeys(name for one in of for name in _usual(one, fused)))
    if unknown := [name for name in options.rename or {} if name not in usual]:
        what = f"layout {layout.name} has no such name" if layout is not None else "no layout has such a name"
        raise UsageError(f"--rename {unknown[0]!r}: {what}; expected one of: {', '.join(usual[:MANY_NAMES])}")
    if empty := [name for name, new in (options.rename or {}).items() if not new.strip(".")]:
        raise UsageError(f"--rename {empty[0]!r} to {(options.rename or {})[empty[0]]!r}: expected a name")
    return dict(options.rename or {})


def _usual(layout: PartLayout, fused: bool) -> list[str]:
    """What `unfuse` makes of a layout, or what `fuse` makes and takes."""
    parts = [*group(layout.group).parts.values()]
    return [*(row.name for row in layout.tensors), *parts] if fused else parts


def _called(layout: PartLayout, names: Mapping[str, str]) -> PartGroup:
    """The group of a layout with the names that the user says its parts have in the file."""
    kind, made = group(layout.group), {row.name for row in layout.tensors}
    parts = {term: usual if usual in made else names.get(usual, usual) for term, usual in kind.parts.items()}
    return kind if parts == kind.parts else replace(kind, parts=parts, others=())
