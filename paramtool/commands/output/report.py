"""What the reports of commands that write have in common."""

from __future__ import annotations

from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a command did, or would do."""

    output: str
    warnings: tuple[str, ...] = ()
    verified: bool = False
    written: bool = True
    seconds: float = 0.0
    cloned_nbytes: int = 0
    """Bytes of the output that share their blocks with the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport(Report):
    """The report of one input."""

    input: str
    files: tuple[str, ...]
    """The files of the output, as paths."""
    section: str | None = None
    """The section of the input that was asked for."""
    left_out: tuple[str, ...] = ()
    """What the output does not hold, and files of an input folder that did not come along, each with the reason."""
    sidecars: tuple[str, ...] = ()
    """The other files of an input folder that came along, by their names in the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeReport(CheckpointReport):
    """The report of an output that holds all tensors of its input, or of one section."""

    checkpoint: Checkpoint
    plan: Plan
    nbytes_before: int
    """The files of the input, or what the storages of the one section hold."""
    nbytes_after: int
    changed: tuple[str, ...] = ()
    """Objects of a torch output that are plain values now, since that was asked for."""
    keeps_objects: bool = True
    """Whether every object of the input is there as what it was."""
    needs: tuple[str, ...] = ()
    """Classes in a torch file that `torch.load(weights_only=True)` refuses, as it refuses them in the source."""
