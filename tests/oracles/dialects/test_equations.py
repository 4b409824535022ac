"""Our own equations run every family as transformers does, and each wrong layout of the same shape is far off.

These tests ask nothing of paramtool: they say that the proofs in the other files can fail.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.oracles.dialects import models, proofs
from tests.oracles.dialects.equations import LAYOUTS, Sizes, gated, other_layouts, put, row_map, taken
from tests.oracles.dialects.models import BY_NAME, FAMILIES
from tests.oracles.dialects.proofs import Case, Proof
from tests.oracles.dialects.sources import Ours

FUSED = [family.name for family in FAMILIES if family.attention and family.attention[0].fused]
GATED = [family.name for family in FAMILIES if family.gated]
EXPERTS = [family.name for family in FAMILIES if family.experts]
TORCH = ("BERT", "BART", "ViT", "CLIP")


def check(proof: Proof) -> None:
    """What is right is near, and what is wrong is far off."""
    assert proof.wrong, "nothing wrong was run"
    assert proof.error < proofs.BOUND, proof
    assert min(proof.wrong.values()) > proofs.FAR, proof


def case(name: str) -> Case:
    return Case(BY_NAME[name])


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", FUSED)
def test_attention(name: str) -> None:
    """Taken apart by its own layout, it is the same model; by any other, it is not."""
    one = case(name)
    check(proofs.unfused(one, Ours(one.family, one.model)))


@pytest.mark.parametrize("name", GATED)
def test_gated(name: str) -> None:
    check(proofs.gates(case(name)))


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str) -> None:
    check(proofs.experts(case(name)))


@pytest.mark.parametrize("name", TORCH)
def test_torch_runs_what_is_fused_plainly(name: str) -> None:
    one = case(name)
    check(proofs.fused_for_torch(one, Ours(one.family, one.model)))


def test_keys_and_values() -> None:
    check(proofs.kv(case("JetMoE")))


def test_groups_of_megatron() -> None:
    one = case("Llama")
    check(proofs.fused_for_groups(one, Ours(one.family, one.model), "qkv-per-group"))


def test_pairs_of_meta() -> None:
    check(proofs.rotary_pairs(case("Llama")))


# --- the equations themselves ----------------------------------------------------------------------------------------

SIZES = [Sizes(6, 3, 4), Sizes(6, 6, 5), Sizes(12, 12, 2), Sizes(6, 1, 4), Sizes(6, 3, 4, 7), Sizes(8, 4, 3)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_there_and_back(sizes: Sizes) -> None:
    """Every layout holds every row once, and `put` is the inverse of `taken`."""
    count = sum(sizes.rows.values())
    whole = torch.arange(count * 2).reshape(count, 2)
    for name, (_, fits) in LAYOUTS.items():
        if fits(sizes):
            maps = np.concatenate(list(row_map(name, sizes).values()))
            assert sorted(maps) == list(range(count))
            assert torch.equal(put(taken(whole, name, sizes), name, sizes), whole)
            assert torch.equal(put(taken(whole.T, name, sizes, 1), name, sizes, 1), whole.T)


def test_known_rows() -> None:
    """Rows said by hand."""
    sizes = Sizes(4, 2, 1)
    assert row_map("qkv-per-group", sizes)["q"].tolist() == [0, 1, 4, 5]
    assert row_map("qkv-per-group", sizes)["v"].tolist() == [3, 7]
    assert row_map("qkv-per-head", Sizes(2, 2, 2))["k"].tolist() == [2, 3, 8, 9]
    assert row_map("qvk-in-4", Sizes(4, 4, 1))["v"].tolist() == [1, 4, 7, 10]
    assert other_layouts("qkv-per-group", Sizes(6, 3, 4)) == ["qkv", "qvk", "kqv", "vkq"]


def test_known_gates() -> None:
    rows = torch.arange(6)
    assert [one.tolist() for one in gated(rows, "up-gate", 0)] == [[3, 4, 5], [0, 1, 2]]
    assert [one.tolist() for one in gated(rows, "gate-up-interleaved", 0)] == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.sample(13)
@pytest.mark.parametrize("name", models.NAMES)
def test_no_value_hides_an_error(name: str) -> None:
    """No parameter is constant, and no two are equal: a wrong order or a wrong name would not show."""
    parameters = [p for p in BY_NAME[name].build().parameters() if p.numel() > 1]
    assert all(len(set(p.flatten().tolist()[:9])) > 1 for p in parameters)
    assert len({tuple(p.flatten().tolist()[:4]) for p in parameters}) == len(parameters)
