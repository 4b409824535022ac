"""What tests of several formats share."""

from __future__ import annotations

from typing import BinaryIO

import pytest

from paramtool.engine.read import source
from paramtool.formats.files import Placed, read_at


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a tensor's bytes asks for; those that the kernel copies are not among them."""
    found: list[int] = []

    def counted(file: BinaryIO, start: int, buffer: memoryview) -> None:
        found.append(len(buffer))
        read_at(file, start, buffer)

    class Counted(Placed):
        def __call__(self, start: int, buffer: memoryview) -> None:
            counted(self.file, self.base + start, buffer)

        def rows(self, start: int, step: int, buffer: memoryview, nbytes: int) -> None:
            for k, low in enumerate(range(0, len(buffer), nbytes)):
                self(start + k * step, buffer[low : low + nbytes])

    monkeypatch.setattr(source, "Placed", Counted)
    for module in ("read.source", "read.open_files", "write.writer"):
        monkeypatch.setattr(f"paramtool.engine.{module}.read_at", counted)
    return found
