"""One process that forks, for the programs of pages and of helps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.forking import Forking


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """It starts when somebody asks for it."""
    process = Forking()
    yield process
    process.close()
