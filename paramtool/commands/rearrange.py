"""Attention, gated MLPs and experts in another layout, and models under the names of another dialect.

`convert --to DIALECT`, `fuse --layout qkv` and `unfuse --layout qkv-per-head` come here; recurrent networks are
converted by `relayout`.  The facts that no shape tells come from the file's own record, from the config.json beside it,
and from `--spec`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paramtool import dialects, layouts
from paramtool.commands import config_ties
from paramtool.commands._fusing import fused, unfused
from paramtool.commands.layouts import check_moves, of_parts
from paramtool.commands.output.dialect_folder import check_params, config_of_params
from paramtool.commands.rearrangement import PartsSource, Rearrangement, dialects_of, parts_source, record_of
from paramtool.dialects.dialect import PrefixError
from paramtool.errors import LayoutError, UsageError, listed, plural, some
from paramtool.formats import hf_config
from paramtool.formats.record import parts as parts_record
from paramtool.formats.record.moved import carried, with_record
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.parts import PartsRecord
from paramtool.model.view import Shapes
from paramtool.parts import config_types
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.facts import of_spec
from paramtool.passes.parts.dialect_change import dialect_change, dialect_of, views_of, without_old_names
from paramtool.passes.parts.recorded import kept_names, with_parts
from paramtool.passes.parts.rewrite import HandedOver, Rearranged, renames, rewritten

if TYPE_CHECKING:
    from paramtool.commands.output.writer import Writer
    from paramtool.commands.relayout_options import RelayoutOptions
    from paramtool.model.plan import Plan
    from paramtool.passes.rewriting import Outcome

OF_NETWORKS_ONLY = {
    "stack": "--stack", "ignore": "--ignore", "keep_split": "--keep-split", "drop_kept": "--drop-kept",
}  # fmt: skip
"""{an option that only recurrent networks have: its flag}"""


SAFETENSORS = "safetensors"
"""The format of which a file may have no `format` in its metadata."""


def is_wanted(checkpoint: Checkpoint, options: RelayoutOptions) -> bool:
    """Whether these options speak of parts or dialects, and not of recurrent networks."""
    names = [layouts.parse(text)[0] for text in (options.target, options.source) if text]
    known = of_parts()
    for name in names:
        if name not in known:
            check_moves(name)
            layouts.find(name, known)
    if any(name in known for name in names):
        return True
    return is_unsaid(options) and bool(record_of(checkpoint).fused)


def is_unsaid(options: RelayoutOptions) -> bool:
    """Whether `unfuse` has no layout and takes those that are known."""
    return options.described and options.source is None and options.target is None


def rearrangement(checkpoint: Checkpoint, options: RelayoutOptions) -> Rearrangement:
    """What these options want; LayoutError where it cannot be done, UsageError where they contradict each other."""
    if given := [flag for name, flag in OF_NETWORKS_ONLY.items() if getattr(options, name)]:
        raise UsageError(
            f"{given[0]} is for recurrent networks; it does not go with {options.target or options.source}"
        )
    source = parts_source(checkpoint)
    if source.config:
        config_types.check(source.config, os.path.join(os.path.dirname(source.where), hf_config.NAME))
    try:
        if options.target in dialects.NAMES or options.source in dialects.NAMES:
            done = to_dialect(source, options)
        else:
            done = fused(source, options) if options.target is not None else unfused(source, options)
        return done
    except LayoutError as error:
        raise error if error.message.startswith(source.where) else error.located(source.where) from None


def planned(
    checkpoint: Checkpoint, wanted: Rearrangement, change: HandedOver, *, writer: Writer, options: RelayoutOptions
) -> tuple[Plan, Outcome]:
    """The plan of an output with rearranged parts, and the record of it; `wanted` is the report of `change`."""
    plan, outcome = rewritten(
        checkpoint,
        change,
        keep_names=options.keep_names,
        skip_unsupported=options.skip_unsupported,
        split_content=not writer.holds.equal,
    )
    if wanted.is_dialect and dialects.file_of(wanted.target) and writer.holds.equal:
        unread = {one.name for one in plan.aliases} - outcome.windows.keys()
        outcome = replace(outcome, warnings=(*outcome.warnings, *_unread(sorted(unread), wanted.target)))
    known = record_of(checkpoint)
    is_first = checkpoint.format == SAFETENSORS and not parts_record.encode(known)
    is_bare = known.is_bare or (is_first and "format" not in checkpoint.metadata)
    metadata = with_record(plan.metadata, replace(wanted.record, is_bare=is_bare))
    if is_bare := is_bare and parts_record.KEY not in metadata:
        metadata.pop("format", None)
    plan = replace(plan, metadata=metadata, is_bare=is_bare)
    return plan, replace(outcome, rest=replace(outcome.rest, metadata=metadata))


def _unread(names: Sequence[str], target: str) -> Iterator[str]:
    """A warning for names that only the alias record has, where the target's program reads none."""
    if names:
        are = "is" if len(names) == 1 else "are"
        yield (
            f"{some(names, 3)} {are} in the alias record only, which the program of {target} does not read; "
            "`paramtool export OUTPUT --all-names` stores every name"
        )


# --- `convert --to DIALECT`: all tensors of a model under the names, and in the forms, of another dialect ------------


def to_dialect(source: PartsSource, options: RelayoutOptions) -> Rearrangement:
    """What the conversion of a model does; LayoutError where it cannot be done."""
    where, known = source.where, source.record
    if not source.config:
        source = replace(source, config=config_of_params(os.path.dirname(where), source.shapes))
    _check_options(source, options)
    _refuse_wrapped(source)
    target = options.target or dialects.HUB
    model = KnownModel(source.config, of_spec(options.spec))
    views = views_of(source.checkpoint)
    old = options.source or known.dialect or _dialect_of(source, model, views)
    if old == "meta":
        check_params(os.path.dirname(where), source.config)
    if old == target:
        raise UsageError(f"{where}: is in the dialect {target} already; nothing was written")
    first = known.source if known.source and known.dialect == old else old
    is_back = first == target
    shapes: Shapes = source.shapes
    if is_back:
        shapes = without_old_names(shapes, views, (old, target), model)
    shapes, joints = with_parts(shapes, known, old, model, views=views)
    order, prefix = (known.order, known.prefix) if known.dialect == old else ((), "")
    try:
        done = dialect_change(
            shapes, (old, target), model, known.added, joints=joints, ranks=source.ranks, order=order, prefix=prefix
        )
    except LayoutError as error:
        _refuse_other_source(source, options, model, error)
        # LayoutError with the flag that chooses a section, if a section's prefix is what is wrong with a name.
        name = error.name if isinstance(error, PrefixError) else ""
        for section in source.checkpoint.sections:
            if section.prefix and name.startswith(section.prefix):
                hint = (
                    f"its names begin with that of the section {section.name}: --only {section.name} converts it alone"
                )
                raise LayoutError(error.message, hint) from None
        raise
    _refuse_other_model(done.change, source, model)
    _refuse_old_names(kept_names(joints, views), done.change, target)
    renamed = renames(done.change)
    is_nothing = set(done.change.read) == set(done.change.made)
    if not is_nothing and old == dialects.HUB and not dialects.opened(target, model.config, model.facts).tied:
        _refuse_without_first(source, target)
    kept = carried(known, renamed)
    return Rearrangement(
        change=done.change,
        source=old,
        target=target,
        is_dialect=True,
        renamed=sum(old != new for old, new in renamed.items()),
        is_nothing=is_nothing,
        facts=model.said(),
        record=replace(
            kept,
            dialect="" if is_back else target,
            source="" if is_back else first,
            added={} if is_back else done.added,
            order=() if is_back else done.order,
            prefix="" if is_back else done.prefix,
        ),
        warnings=(*done.caveats, *_forgotten(known, kept), *([_unchanged((old, target), model)] if is_nothing else ())),
    )


def _refuse_other_source(source: PartsSource, options: RelayoutOptions, model: KnownModel, error: LayoutError) -> None:
    """LayoutError if --from names a dialect, and the file's names are those of others."""
    if options.source is None:
        return
    found = dialects.recognised(source.shapes, model.config, model.facts)
    if found and options.source not in found and not {options.source, *found} <= {dialects.HUB, dialects.MEMORY}:
        raise LayoutError(
            f"{source.where}: --from {options.source}, and its names are those of {' or '.join(found)}: "
            f"{error.message.removeprefix(f'{source.where}: ')}",
            hint=f"--from {found[0]}, or none: the names tell" if len(found) == 1 else "--from one of these",
        ) from None


def _dialect_of(source: PartsSource, model: KnownModel, views: Collection[str]) -> str:
    """The dialect of the file; that of its record of parts, if its names alone belong to no dialect."""
    try:
        if len(found := dialects_of(source, model)) == 1:
            return found[0]
        return dialect_of(source.where, source.shapes, model)
    except LayoutError:
        if not source.record.fused:
            raise
    shapes, _ = with_parts(source.shapes, source.record, "", model, views=views)
    return dialect_of(source.where, shapes, model)


def _refuse_other_model(change: Rearranged, source: PartsSource, model: KnownModel) -> None:
    """LayoutError if nothing differs since the names are those of another model than config.json says."""
    from paramtool.dialects.scopes import foreign_word

    if set(change.read) != set(change.made):
        return
    try:
        word, own = foreign_word(source.shapes, model.config)
    except LayoutError:
        return
    if word:
        which = dialects.architecture(model.config)
        raise LayoutError(
            f"{source.where}: its names begin with {word!r}; expected {own!r} for {which}, which config.json says",
            hint="config.json is of another model: put the file's own beside it",
        )


def _refuse_without_first(source: PartsSource, target: str) -> None:
    """LayoutError if the file lacks the name under which the target's program reads a tied tensor."""
    config = config_ties.config_beside(source.where)
    for first, *others in config.class_ties(source.shapes) if config else ():
        if first not in source.shapes:
            raise LayoutError(
                f"{source.where}: lacks {first!r}, which the program of {target} reads; config.json ties it to "
                f"{some(others, 3)}",
                hint="`paramtool export INPUT --all-names -o OUTPUT` stores both; then convert OUTPUT",
            )


def _refuse_old_names(names: Collection[str], change: Rearranged, target: str) -> None:
    """LayoutError for old names that `fuse --keep-names` left in a file, and that the target does not have."""
    made = {one.name for one in change.made}
    if left := [name for name in names if name not in made]:
        raise LayoutError(
            listed(f"{plural(len(left), 'name is a view', 'names are views')} of fused tensors, and no names of "
                   f"{target}:", left),
            hint="`paramtool unfuse FILE -o OUT` first",
        )  # fmt: skip


def _check_options(source: PartsSource, options: RelayoutOptions) -> None:
    """UsageError for options that do not go with a dialect, and without a config."""
    for text, flag in ((options.target, "--to"), (options.source, "--from")):
        if text is not None and text not in dialects.NAMES:
            raise UsageError(f"{flag} {text} is not a dialect; expected one of: {', '.join(dialects.NAMES)}")
    if not source.config:
        is_there = os.path.lexists(os.path.join(os.path.dirname(source.where), hf_config.NAME))
        what = "{} beside it is empty, and does not" if is_there else "no {} beside it, which would"
        raise UsageError(
            f"{source.where}: {what.format(hf_config.NAME)} say which model it is",
            hint="put the model's config.json beside the file; fuse and unfuse need none",
        )
    if given := [flag for flag, value in (("--at", options.at), ("--rename", options.rename)) if value]:
        raise UsageError(
            f"{given[0]} does not go with a dialect, which names all tensors of a model",
            hint="fuse and unfuse take it; `export --rename` renames tensors",
        )


WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_forward_module.")
"""What DistributedDataParallel, torch.compile, FSDP and DeepSpeed put in front of all names."""


def _refuse_wrapped(source: PartsSource) -> None:
    """LayoutError if all names are those of a wrapped model, which no program opens under these names."""
    for prefix in WRAPPERS:
        if source.shapes and all(name.startswith(prefix) for name in source.shapes):
            raise LayoutError(
                f"{source.where}: all names start with {prefix!r}, as those of a wrapped model",
                hint=f"paramtool export INPUT --all-names --rename '{prefix}*=*' -o OUTPUT, then convert",
            )


def _forgotten(known: PartsRecord, kept: PartsRecord) -> Iterator[str]:
    """A warning if fused tensors of the record are no longer in it."""
    count = len(known.fused) + len(known.unfused) - len(kept.fused) - len(kept.unfused)
    if count:
        yield (
            f"the record of {plural(count, 'fused tensor')} is not kept: the new tensors are made of its parts, and "
            "fusing or taking apart does not restore the old ones"
        )


def _unchanged(ways: tuple[str, str], model: KnownModel) -> str:
    """The warning if nothing differs between two dialects."""
    which = dialects.architecture(model.config) or "this model"
    return (
        f"nothing differs between {ways[0]} and {ways[1]} for the tensors of {which}: all keep names and forms, and "
        "programs of both open them"
    )
