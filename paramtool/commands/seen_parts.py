"""Attention, gated MLPs and experts of a checkpoint, for `inspect`, `guess` and `unfuse`: which groups, which layouts.

A config.json beside the checkpoint is read where a tensor is fused, and says nothing if it is damaged: whoever needs it
reads it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from paramtool.errors import FormatError, ParamtoolError
from paramtool.model.checkpoint import Checkpoint, NoData
from paramtool.model.view import Shape, View

if TYPE_CHECKING:
    from paramtool.passes.parts.groups import SeenParts
    from paramtool.passes.parts.seen_groups import KnownOfFile, SeenGroup

COULD_BE = re.compile(
    r"q_proj|query|q_lin|to_q|wq|\bq\.weight|gate|w[13]\b|wi_0|qkv|QKV|c_attn|W_pack|att_proj|in_proj|kv_proj|to_kv|\bWi\b"
    r"|dense_h_to_4h|weights_in|input_linear|w13|ff_proj|expert"
)
"""What a name has that could be a part's, or that of a fused tensor."""


def seen_parts(checkpoint: Checkpoint, facts: Mapping[str, int] | None = None) -> SeenParts | None:
    """The groups of parts in a checkpoint, with sizes that the user gave; None where no name could be one's."""
    if not any(COULD_BE.search(name) for name in checkpoint.entries):
        return None
    from paramtool.formats.record.parts import KEY as RECORD
    from paramtool.passes.parts.groups import seen

    entries = checkpoint.entries

    def shape_of(name: str) -> Shape:
        value = entries[name].value if name in entries else None
        return value.shape if isinstance(value, (View, NoData)) else ()

    @cache
    def known() -> KnownOfFile:
        return _known(checkpoint, facts)

    found = seen(entries, shape_of, known, has_record=RECORD in checkpoint.metadata)
    if not found.towers:
        return None
    if not found.dialect and any(group.form == "fused" for group in found.groups):
        return replace(found, dialect=_dialect(checkpoint, known().config))
    return found


def seen_at(checkpoint: Checkpoint, at: str | None, known: Mapping[str, int]) -> SeenParts | None:
    """The groups of a checkpoint, or those at a module or tensor; None if there are none."""
    seen = seen_parts(checkpoint, known)
    if seen is None or at is None:
        return seen
    towers = (replace(one, groups=tuple(group for group in one.groups if _is_at(group, at))) for one in seen.towers)
    kept = tuple(one for one in towers if one.groups)
    return replace(seen, towers=kept) if kept else None


def _is_at(one: SeenGroup, at: str) -> bool:
    """Whether a group is at a module or a tensor: `*` in the group's own module is any number.

    `at` is its module, one of its tensors or the module of that.
    """
    from fnmatch import fnmatchcase

    from paramtool.parts.words import WEIGHTS

    modules = (one.at, f"{one.at}.*") if one.form == "list" else (one.at,)
    names = (*modules, *(f"{module}.{name}" for module in modules for name in one.names))
    inside = at.rpartition(".")[0] if at.rpartition(".")[2] in (*WEIGHTS, "bias") else at
    return any(fnmatchcase(asked, name) for name in names for asked in (at, inside))


def fused_place(one: SeenGroup) -> str:
    """What `--at` calls a group of fused tensors."""
    return one.at if one.kind == "experts" else f"{one.at}.{one.names[0].removesuffix('_weight')}".lstrip(".")


def _dialect(checkpoint: Checkpoint, config: Mapping[str, Any]) -> str:
    """The one dialect whose names the model of a config has; empty where there are several, or none."""
    if not config:
        return ""
    from paramtool.commands.rearrangement import dialects_of, parts_source
    from paramtool.parts.config_facts import KnownModel

    found: list[str] = []
    with suppress(ParamtoolError):
        found = dialects_of(parts_source(checkpoint), KnownModel(config))
    return found[0] if len(found) == 1 else ""


def dialect_of(checkpoint: Checkpoint) -> str:
    """The dialect that the record names, or the one whose names a file has; "" where there is none, or several."""
    known = _known(checkpoint, None)
    return known.dialect or _dialect(checkpoint, known.config)


def _known(checkpoint: Checkpoint, facts: Mapping[str, int] | None) -> KnownOfFile:
    from paramtool import dialects
    from paramtool.commands.rearrangement import config_beside, parts_source, record_of
    from paramtool.model.parts import PartsRecord
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts.dialect_change import dialects_fitting
    from paramtool.passes.parts.seen_groups import KnownOfFile

    try:
        said = record_of(checkpoint)
    except FormatError:
        said = PartsRecord()
    config = config_beside(checkpoint.path)
    layouts = {one.tensor: one.layout for one in said.fused}

    @cache
    def recognised() -> Sequence[str]:
        """The dialects of the file's names; none where they cannot be told."""
        with suppress(ParamtoolError):
            return dialects_fitting(parts_source(checkpoint).shapes, KnownModel(config))[0] if config else ()
        return ()

    by_name = dialects.of_file(os.path.basename(checkpoint.path))
    if not said.dialect and by_name and by_name in recognised():
        return KnownOfFile(config, layouts, by_name, "its file name", recognised, facts)
    return KnownOfFile(config, layouts, said.dialect, recognised=recognised, facts=facts)
