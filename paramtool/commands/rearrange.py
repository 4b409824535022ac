"""Attention, gated MLPs and experts in another layout, and models under the names of another dialect.

`convert --to DIALECT`, `fuse --layout qkv` and `unfuse --layout qkv-per-head` come here; recurrent networks are
converted by `relayout`.  The facts that no shape tells come from the file's own record, from the config.json beside it,
and from `--spec`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paramtool import dialects, layouts
from paramtool.commands._fusing import fused, unfused
from paramtool.commands._parts_source import parts_source, record_of
from paramtool.commands._to_dialect import to_dialect
from paramtool.commands.layouts import check_keeps_values, of_parts
from paramtool.commands.rearrangement import Rearrangement
from paramtool.errors import LayoutError, UsageError, some
from paramtool.formats import hf_config
from paramtool.formats.record import parts as parts_record
from paramtool.formats.record.moved import with_record
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts import config_types
from paramtool.passes.parts.rearranged import HandedOver
from paramtool.passes.parts.rewrite import rewritten

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
            check_keeps_values(name)
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
        split_content=writer.splits_equal_bytes,
    )
    if wanted.is_dialect and dialects.file_of(wanted.target) and not writer.splits_equal_bytes:
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
