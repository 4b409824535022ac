"""OLMo-Hybrid: the class gives the same logits after a conversion and back, and others by other orders of the parts."""

from __future__ import annotations

from pathlib import Path

from tests.oracles.dialects import hybrid
from tests.oracles.dialects.proofs import BOUND, FAR
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture


def test_the_class_runs_what_was_converted(tmp_path: Path) -> None:
    found = hybrid.proof(tmp_path)
    assert found.error < BOUND, found
    assert set(found.wrong) == {*hybrid.ORDERS} and min(found.wrong.values()) > FAR, found
