"""Attention, gated MLPs and experts of a checkpoint, for `inspect`, `guess` and `unfuse`: which groups, which layouts.

A config.json beside the checkpoint is read where a tensor is fused, and says nothing if it is damaged: whoever needs it
reads it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from paramtool.model.checkpoint import Checkpoint, NoData
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.passes.parts.groups import KnownOfFile, SeenParts

COULD_BE = re.compile(
    r"q_proj|query|q_lin|to_q|wq|\bq\.weight|gate|w[13]\b|wi_0|qkv|QKV|c_attn|W_pack|att_proj|in_proj|kv_proj|to_kv|\bWi\b"
    r"|dense_h_to_4h|weights_in|input_linear|w13|ff_proj|expert"
)
"""What a name has that could be a part's, or that of a fused tensor."""


def seen_parts(checkpoint: Checkpoint, facts: Mapping[str, int] | None = None) -> SeenParts | None:
    """The groups of parts in a checkpoint, with sizes that the user gave; None where no name could be one's."""
    if not any(COULD_BE.search(name) for name in checkpoint.entries):
        return None
    from paramtool.passes.parts.groups import seen

    entries = checkpoint.entries

    def shape_of(name: str) -> tuple[int, ...]:
        value = entries[name].value if name in entries else None
        return value.shape if isinstance(value, (View, NoData)) else ()

    @cache
    def known() -> KnownOfFile:
        return _known(checkpoint, facts)

    found = seen(entries, shape_of, known)
    return found if found.towers else None


def _known(checkpoint: Checkpoint, facts: Mapping[str, int] | None) -> KnownOfFile:
    from paramtool.errors import FormatError
    from paramtool.formats.record import parts as record
    from paramtool.passes.parts.groups import KnownOfFile

    where = checkpoint.files[0].path
    try:
        said = record.decode(where, checkpoint.metadata)
    except FormatError:
        said = record.PartsRecord()
    return KnownOfFile(_config(where), {one.tensor: one.layout for one in said.fused}, said.dialect, facts)


def _config(where: str) -> Mapping[str, Any]:
    from paramtool.errors import ParamtoolError
    from paramtool.formats import hf_config

    path = os.path.join(os.path.dirname(where), hf_config.NAME)
    try:
        return hf_config.whole(path) if os.path.exists(path) else {}
    except ParamtoolError:
        return {}
