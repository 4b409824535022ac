"""What a format hands to the engine: files, as rows of literal bytes and of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from paramtool.model.plan import Target


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of an output: literal bytes and targets, in the order in which they stand."""

    name: str
    """The name in the output folder; empty for an output that is one file."""
    segments: tuple[bytes | Target, ...]

    @property
    def nbytes(self) -> int:
        """The size the file will have."""
        return sum(len(s) if isinstance(s, bytes) else s.nbytes for s in self.segments)
