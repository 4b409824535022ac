"""What the reports of commands that write have in common."""

from __future__ import annotations

from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.display import Displayed
from paramtool.model.plan import Plan


@frozen(kw_only=True, repr=False)
class Report(Displayed):
    """What a command did, or would do."""

    output: str
    """The file or folder that was written, or would be."""
    warnings: tuple[str, ...] = ()
    """What was assumed, or is not in the output."""
    verified: bool = False
    """Whether the output was read back and compared."""
    written: bool = True
    """Whether anything was written; not with `dry_run`."""
    seconds: float = 0.0
    """How long it took, in seconds."""
    cloned_nbytes: int = 0
    """Bytes of the output that share their blocks with the input."""

    _facts = "`written` and `verified`"


@frozen(kw_only=True, repr=False)
class CheckpointReport(Report):
    """The report of one input."""

    input: str
    """The checkpoint, as it was given."""
    files: tuple[str, ...]
    """The files of the output, as paths."""
    section: str | None = None
    """The section of the input that was asked for."""
    left_out: tuple[str, ...] = ()
    """What the output does not hold, and files of an input folder that did not come along, each with the reason."""
    sidecars: tuple[str, ...] = ()
    """The other files of an input folder that came along, by their names in the output."""


@frozen(kw_only=True, repr=False)
class WholeReport(CheckpointReport):
    """The report of an output that holds all tensors of its input, or of one section."""

    checkpoint: Checkpoint
    """The input, described."""
    plan: Plan
    """What the output holds, and where it is copied from."""
    nbytes_before: int
    """The files of the input, or what the storages of the one section hold."""
    nbytes_after: int
    """The size of the output, in bytes."""
    changed: tuple[str, ...] = ()
    """Objects of a torch output that are plain values now, since that was asked for."""
    keeps_objects: bool = True
    """Whether every object of the input is there as what it was."""
    keeps_ties: bool = True
    """Whether the output says which names share memory, as the input does."""
    needs: tuple[str, ...] = ()
    """Classes in a torch file that `torch.load(weights_only=True)` refuses, as it refuses them in the source."""
