"""What tests of several formats share."""

from __future__ import annotations

from typing import BinaryIO

import pytest

from paramtool.formats.files import read_at


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a tensor's bytes asks for; those that the kernel copies are not among them."""
    found: list[int] = []

    def counted(file: BinaryIO, start: int, buffer: memoryview) -> None:
        found.append(len(buffer))
        read_at(file, start, buffer)

    for module in ("read.source", "read.open_files", "write.writer"):
        monkeypatch.setattr(f"paramtool.engine.{module}.read_at", counted)
    return found
