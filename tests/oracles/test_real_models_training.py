"""Training goes on after loading: what is tied stays tied, what was equal by chance goes its own way.

The judge is the model that was saved: after one step of AdamW on the same batch, every byte has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

import paramtool.torch
from tests.laws.sharing import partition, raw
from tests.oracles.real_models import EVERY, Made, examples, made, single_thread

__all__ = ["made", "single_thread"]  # fixtures


def step(model: nn.Module) -> None:
    """One step of AdamW on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    examples.outputs(model).square().mean().backward()
    optimizer.step()


def values(model: nn.Module) -> dict[str, bytes]:
    """The bytes of every name."""
    return {name: raw(tensor) for name, tensor in model.state_dict().items()}


def moved(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> set[str]:
    """Names whose bytes changed."""
    return {name for name in before if before[name] != after[name]}


WAYS: dict[str, Callable[[nn.Module, Made], object]] = {
    "load_model": lambda model, made: paramtool.torch.load_model(model, made.folder / "small.safetensors"),
    "load_model, assign": lambda model, made: paramtool.torch.load_model(
        model, made.folder / "small.safetensors", assign=True
    ),
    "load_model of the pt": lambda model, made: paramtool.torch.load_model(model, made.folder / "small.pt"),
    "torch.load of the pt": lambda model, made: model.load_state_dict(
        torch.load(made.folder / "small.pt", weights_only=True)
    ),
}


@pytest.mark.sample(2)
@EVERY
def test_one_step_after_loading(made: Made) -> None:
    """Every name has the bytes that the saved model has after the same step; ties hold, planted pairs differ."""
    original = made.spec.build()
    before = values(original)
    sharing = partition(original.state_dict())
    pairs = list(examples.equal_by_chance(original))
    assert pairs and all(before[first] == before[second] for first, second in pairs)
    step(original)
    expected = values(original)
    assert moved(before, expected) == {name for name, _ in original.named_parameters(remove_duplicate=False)}
    assert all(expected[first] != expected[second] for first, second in pairs)
    for way, load in WAYS.items():
        target = made.spec.build(seed=1)
        load(target, made)
        assert values(target) == before, way
        step(target)
        assert values(target) == expected, way
        assert partition(target.state_dict()) == sharing, way


@pytest.mark.sample(6)
@EVERY
def test_an_edit_of_what_torch_loads_stays_where_it_is(made: Made) -> None:
    """In the `.pt` output, tensors that torch opens: an edit of one of an equal pair leaves the other alone."""
    state = torch.load(made.folder / "small.pt", weights_only=True)
    for first, second in examples.equal_by_chance(made.model):
        before = raw(state[first])
        state[second].add_(1)
        assert raw(state[first]) == before != raw(state[second])


def test_the_judge_sees_a_tie_too_many_and_one_too_few() -> None:
    """A model whose equal pair is tied, and one whose tie is broken, are elsewhere after a step."""
    spec = examples.MODELS["LSTM"]
    expected = spec.build()
    step(expected)
    joined, broken = spec.build(), spec.build()
    joined.rnn.weight_hh_l0.data = joined.rnn.weight_ih_l0.data  # type: ignore[union-attr]
    broken.decoder.weight = nn.Parameter(broken.emb.weight.detach().clone())  # type: ignore[union-attr]
    for model in (joined, broken):
        assert values(model) == values(spec.build())
        step(model)
        assert values(model) != values(expected)


@pytest.mark.parametrize("made", ["GPT-2 untied"], indirect=True)
def test_a_head_of_equal_bytes_is_not_tied(made: Made) -> None:
    """An untied GPT-2 whose head was copied from its embedding: one tensor in the file, two in the model for good."""
    source = made.spec.build()
    with torch.no_grad():
        source.lm_head.weight.copy_(source.transformer.wte.weight)  # type: ignore[union-attr, operator]
    torch.save(source.state_dict(), made.folder / "equal.pt")
    found = paramtool.dedup(made.folder / "equal.pt", made.folder / "equal.safetensors")
    assert "lm_head.weight" in {alias.name for alias in found.plan.aliases}
    step(source)
    for assign in (False, True):
        target = made.spec.build(seed=1)
        paramtool.torch.load_model(target, made.folder / "equal.safetensors", assign=assign)
        step(target)
        assert values(target) == values(source)
        assert values(target)["lm_head.weight"] != values(target)["transformer.wte.weight"]
