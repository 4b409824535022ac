"""What is done to the parts of a checkpoint: the answer of `rearrange`, and what a report keeps of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from paramtool.formats import hf_config
from paramtool.formats.record import parts as record
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.parts import PartsRecord
from paramtool.model.view import Shape, Shapes
from paramtool.passes.parts.rewrite import Rearranged, first_order

if TYPE_CHECKING:
    from paramtool.model.parts import PartsRecord
    from paramtool.parts.config_facts import KnownModel


@frozen
class Rearrangement:
    """What is done to the parts of a checkpoint."""

    change: Rearranged
    record: PartsRecord
    """What the output says of it."""
    facts: Mapping[str, str]
    """{`heads=12`: who said it}"""
    source: str = ""
    """The layout or the dialect that they were in; empty for separate tensors."""
    target: str = ""
    """The layout or the dialect that they are in now; empty for separate tensors."""
    is_dialect: bool = False
    groups: tuple[tuple[str, int], ...] = ()
    """(module, tensors that it had)"""
    renamed: int = 0
    """Tensors that only have another name."""
    is_nothing: bool = False
    """Whether the tensors of two dialects are the same."""
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
            split=tuple(one.name for one in self.change.read if len(one.parts) > 1),
            joined=tuple(one.name for one in self.change.made if len(one.parts) > 1),
        )


# --- A checkpoint with what is known of its parts: shapes, the config.json beside it, and its record of parts ---------


@frozen
class PartsSource:
    """A checkpoint whose parts are rearranged."""

    checkpoint: Checkpoint
    where: str
    """The path that errors name."""
    shapes: Shapes
    config: Mapping[str, Any]
    """The config beside it; empty if there is none."""
    record: PartsRecord
    ranks: Mapping[str, int]
    """{name: its rank in the order that the names had before the first `fuse` or `unfuse`}"""


def parts_source(checkpoint: Checkpoint) -> PartsSource:
    """A checkpoint with its config and its record; FormatError if one of them is damaged."""
    where, record = checkpoint.path, record_of(checkpoint)
    return PartsSource(
        checkpoint=checkpoint,
        where=where,
        config=hf_config.whole(config) if (config := hf_config.beside(where)) else {},
        shapes=shapes_of(checkpoint),
        record=record,
        ranks=first_order(checkpoint.entries, record),
    )


def config_beside(where: str, name: str = "config.json") -> Mapping[str, Any]:
    """The config beside a checkpoint; empty if none can be read, of which reading the checkpoint tells."""
    if name == hf_config.NAME:
        return hf_config.read_beside(where, hf_config.whole)[0] or {}
    path = os.path.join(os.path.dirname(where), name)
    return hf_config.whole(path) if os.path.exists(path) else {}


def dialects_of(source: PartsSource, model: KnownModel) -> list[str]:
    """The dialect that the record says, else those whose names the model of the config has; none without a config.

    Of several, the one whose program alone calls a file so decides.
    """
    from paramtool import dialects

    if source.record.dialect:
        return [source.record.dialect]
    found = dialects.recognised(source.shapes, model.config, model.facts) if model.config else []
    by_name = dialects.of_file(os.path.basename(source.where))
    return [by_name] if by_name in found else found


def shapes_of(checkpoint: Checkpoint) -> dict[str, Shape]:
    """The shapes of the tensors that are views, without those of optimizers, which follow the others."""
    entries = checkpoint.entries
    return {name: view.shape for name, view in checkpoint.views().items() if entries[name].role != "optimizer"}


def record_of(checkpoint: Checkpoint) -> PartsRecord:
    """The record of parts in a checkpoint's metadata; an empty one if there is none."""
    return record.decode(checkpoint.path, checkpoint.metadata)
