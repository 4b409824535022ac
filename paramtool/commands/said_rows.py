"""What a checkpoint says of the rows of its tensors: by its record of parts, or by the file name of one program."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from paramtool import dialects
from paramtool.formats.record import parts
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.compat.check import RowClash

if TYPE_CHECKING:
    from paramtool.passes.parts.other_rows import SaidRows


def of_checkpoint(checkpoint: Checkpoint, config: Mapping[str, Any] | None = None) -> Mapping[str, SaidRows]:
    """{tensor: what it holds, by what the checkpoint says}; empty for most files, which say nothing.

    `config` is that of the model that is to load it: it counts where no config.json is beside the checkpoint.
    FormatError if the record is damaged.
    """
    by_name = dialects.of_file(os.path.basename(checkpoint.path))
    if not by_name and parts.KEY not in checkpoint.metadata:
        return {}
    from paramtool.commands._parts_source import config_beside, record_of, shapes_of
    from paramtool.errors import LayoutError, UsageError
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts.other_rows import rows_said

    shapes, record = shapes_of(checkpoint), record_of(checkpoint)
    config = config_beside(checkpoint.path) or config or {}
    if by_name and config and not record.dialect:
        try:
            found = dialects.recognised(shapes, config, KnownModel(config).facts)
        except (LayoutError, UsageError):
            found = []
        by_name = by_name if by_name in found else ""
    return rows_said(shapes, record, config, by_name)


def clashes(
    checkpoint: Checkpoint,
    names: Collection[str],
    theirs: Mapping[str, SaidRows],
    config: Mapping[str, Any] | None = None,
) -> tuple[RowClash, ...]:
    """The tensors of a checkpoint that a variant has under the same names, with rows in another order.

    `theirs` is what the variant says of its rows; `config` is as of `of_checkpoint`.
    """
    mine = of_checkpoint(checkpoint, config)
    if not mine and not theirs:
        return ()
    from paramtool.passes.parts import other_rows

    both = [name for name in names if name in checkpoint.entries]
    return tuple(RowClash(*one) for one in other_rows.clashes(mine, theirs, both))
