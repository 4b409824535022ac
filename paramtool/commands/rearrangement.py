"""What is done to the parts of a checkpoint: the answer of `rearrange`, and what a report keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from paramtool.formats.record import parts as record
from paramtool.lazy_dataclass import frozen
from paramtool.model.parts import PartsRecord
from paramtool.passes.parts.rewrite import Rearranged


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
