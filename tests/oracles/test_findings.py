"""SARIF, by the schema as npm's @microsoft/jest-sarif ships it; `make oracles` fetches it into build/sarif."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCHEMA = "sarif-2.1.0-rtm.5.json"
FETCHED = ROOT / "build" / "sarif" / "package" / "lib" / "schemas" / SCHEMA


@pytest.mark.skipif(not FETCHED.exists(), reason="make oracles fetches the schema of SARIF")
def test_the_schema_is_that_of_the_package() -> None:
    """The copy by which tests/findings/test_sarif.py validates every document is byte for byte the package's."""
    assert FETCHED.read_bytes() == (ROOT / "tests" / "findings" / SCHEMA).read_bytes()
