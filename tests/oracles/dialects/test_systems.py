"""vLLM, Megatron-Core, Meta, torch, gluon-nlp and timm: the tensors in their dialects are our equations', and run.

timm runs its own where it is installed, as in the environment of the zoo; `make oracles` reports that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.dialects import converting, forms, systems
from tests.oracles.dialects.models import saved, tensors
from tests.oracles.dialects.proofs import BOUND, FAR, Case
from tests.oracles.dialects.reference import sizes
from tests.oracles.dialects.systems import SYSTEMS, System
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
EACH = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.dialect}-{system.family.name}")
needs_converter = pytest.mark.skipif(not converting.FORMS, reason="this paramtool has no dialects")


def check(system: System, case: Case, found: systems.Tensors) -> None:
    for proof in systems.proofs(system, case, found):
        assert proof.error < BOUND, proof
        assert min(proof.wrong.values()) > FAR, proof


@pytest.mark.sample(6)
@EACH
def test_our_equations_run(system: System, tmp_path: Path) -> None:
    """They say what a system has, so they must run as the model does."""
    case = Case(system.family)
    file = tensors(saved(case.model, tmp_path / "in", system.form))
    check(system, case, system.expected(file, sizes(system.family.attention[0])))


@pytest.mark.sample(4)
@needs_converter
@EACH
def test_converted(system: System, tmp_path: Path) -> None:
    """paramtool's tensors are ours, byte for byte; they run; and the way back gives the file that there was."""
    case = Case(system.family)
    file = saved(case.model, tmp_path / "in", "transformers-4")
    given = tensors(saved(case.model, tmp_path / "given", system.form))
    expected = system.expected(given, sizes(system.family.attention[0]))
    out = converting.convert(file, tmp_path / "out", system.dialect)
    found = tensors(out)
    if system.partly:
        found = {name: value for name, value in found.items() if name in expected}
    forms.same(expected, found, system.dialect)
    check(system, case, found)
    back = converting.convert(out, tmp_path / "back", "transformers-4")
    forms.same(tensors(file), tensors(back), "there and back")
    forms.opens(case.model, back, "there and back")
