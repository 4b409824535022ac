"""One warm process for each worker of the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.serving import Desk, Server, build, missing

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where commands meet faults; the folders are kept in memory where that can be."""
    if reason := missing():
        pytest.skip(reason)
    library = build(tmp_path_factory.mktemp("shim"))
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="paramtool-faults-", dir=parent) as room, Server(library) as server:
        yield Desk(server, Path(room).resolve())
