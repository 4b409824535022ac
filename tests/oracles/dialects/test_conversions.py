"""paramtool's own conversions of attention: the bytes of our equations, the logits of the model, and back again.

`test_equations.py` says that the judges can fail: each wrong layout of the same shape is far off there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.dialects import converting, forms, proofs
from tests.oracles.dialects.models import BY_NAME, tensors
from tests.oracles.dialects.proofs import Case, Proof
from tests.oracles.dialects.sources import Ours, Paramtool
from tests.oracles.dialects.test_equations import EXPERTS, FUSED, GATED, TORCH
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
pytestmark = pytest.mark.skipif(not converting.LAYOUTS, reason="this paramtool does not fuse attention")
SHAPES_DECIDE = ("GPTBigCode MQA", "Falcon-7B", "Phi-3", "DBRX", "MPT", "ModernBERT", "GPT-2")
"""Families whose layout needs no heads to be taken apart, if it is named: q, k and v are one below the other."""


def sources(name: str, folder: Path) -> tuple[Case, Ours, Paramtool]:
    case = Case(BY_NAME[name])
    return case, Ours(case.family, case.model), Paramtool(case.family, case.model, folder)


def check(proof: Proof) -> None:
    """What is right is near; what else it can be taken for is far off."""
    assert proof.error < proofs.BOUND, proof
    assert all(error > proofs.FAR for error in proof.wrong.values()), proof


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", FUSED)
def test_apart(name: str, tmp_path: Path) -> None:
    """Every byte is where our equations have it, and the model runs on the parts."""
    case, ours, theirs = sources(name, tmp_path)
    layout = case.family.attention[0].layout
    forms.same(ours.in_file(ours.apart(layout)), theirs.apart(layout), f"unfuse {layout}")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FUSED)
def test_apart_runs(name: str, tmp_path: Path) -> None:
    case, _, theirs = sources(name, tmp_path)
    check(proofs.unfused(case, theirs))


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FUSED)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    """Fused again, it is the same file: the old names and bytes."""
    case, _, theirs = sources(name, tmp_path)
    again = theirs.fused_again(case.family.attention[0].layout)
    forms.same(tensors(theirs.input), tensors(again), "there and back")
    forms.opens(case.model, again, "there and back")


@pytest.mark.parametrize("name", [name for name in FUSED if name not in SHAPES_DECIDE])
def test_refused_without_the_fact(name: str, tmp_path: Path) -> None:
    """Without config.json nothing tells how many heads there are."""
    case, _, theirs = sources(name, tmp_path)
    bare = converting.without_facts(theirs.input, tmp_path / "bare")
    layout = case.family.attention[0].layout
    said = converting.refusal(converting.unfuse, bare, out=tmp_path / "out", layout=layout, spec="")
    assert "heads" in said


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TORCH)
def test_torch_runs_it(name: str, tmp_path: Path) -> None:
    case, ours, theirs = sources(name, tmp_path)
    expected, found = ours.together("qkv"), theirs.together("qkv")
    forms.same(ours.of_attention(expected), ours.of_attention(found), "fuse qkv")
    check(proofs.fused_for_torch(case, theirs))
    forms.same(tensors(theirs.input), tensors(theirs.apart_again("qkv")), "there and back")


def test_groups(tmp_path: Path) -> None:
    case, ours, theirs = sources("Llama", tmp_path)
    forms.same(ours.in_file(ours.together("qkv-per-group")), theirs.together("qkv-per-group"), "fuse qkv-per-group")
    check(proofs.fused_for_groups(case, theirs, "qkv-per-group"))
    forms.same(tensors(theirs.input), tensors(theirs.apart_again("qkv-per-group")), "there and back")


@pytest.mark.parametrize("name", [name for name in GATED if BY_NAME[name].gated.fused])
def test_gate_and_up(name: str, tmp_path: Path) -> None:
    case, _, theirs = sources(name, tmp_path)
    check(proofs.gates(case, theirs.unfused))
    forms.same(tensors(theirs.input), tensors(theirs.restored("gate-up")), "there and back")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str, tmp_path: Path) -> None:
    case, _, theirs = sources(name, tmp_path)
    own = case.family.experts
    check(proofs.experts(case, theirs.unfused))
    forms.same(tensors(theirs.input), tensors(theirs.restored(f"{own.layout} {own.orientation}")), "there and back")


def test_keys_and_values(tmp_path: Path) -> None:
    case, _, theirs = sources("JetMoE", tmp_path)
    check(proofs.kv(case, theirs.unfused))
    forms.same(tensors(theirs.input), tensors(theirs.restored("kv")), "there and back")
