"""MXNet's interleaved attention operators run BERT and BART: our equations, and what paramtool fuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import IS_EVERY_MODEL
from tests.oracles.dialects import converting, mxnet_operators
from tests.oracles.dialects.models import BY_NAME
from tests.oracles.dialects.proofs import BOUND, FAR, Case, Proof
from tests.oracles.dialects.sources import Ours, Paramtool
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
MXNET = Path(__file__).parents[3] / ".venv-oracles/mxnet1/bin/python"
pytestmark = pytest.mark.skipif(not (IS_EVERY_MODEL and MXNET.exists()), reason="make oracles makes its environment")
needs_converter = pytest.mark.skipif(not converting.LAYOUTS, reason="this paramtool does not fuse attention")


def check(proof: Proof) -> None:
    assert proof.error < BOUND, proof
    assert min(proof.wrong.values()) > FAR, proof


def test_our_equations(tmp_path: Path) -> None:
    case = Case(BY_NAME["BERT"])
    check(mxnet_operators.self_attention(case, Ours(case.family, case.model), MXNET, tmp_path))


@needs_converter
def test_self_attention(tmp_path: Path) -> None:
    case = Case(BY_NAME["BERT"])
    check(mxnet_operators.self_attention(case, Paramtool(case.family, case.model, tmp_path), MXNET, tmp_path))


@needs_converter
def test_attention_to_the_encoder(tmp_path: Path) -> None:
    check(mxnet_operators.to_encoder(Case(BY_NAME["BART"]), MXNET, tmp_path))
