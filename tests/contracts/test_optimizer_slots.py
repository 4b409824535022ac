"""The table of what optimizers keep has every optimizer of torch, as torch makes and steps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.passes.optimizer.read import optimizers, shapes_of
from paramtool.passes.optimizer.slots import expected_shape

NAMES = [
    name
    for name in torch.optim.__all__
    if isinstance(found := getattr(torch.optim, name), type)
    and name != "Optimizer"
    and issubclass(found, torch.optim.Optimizer)
]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9}],
    "Adam": [{}, {"amsgrad": True}],
    "AdamW": [{}, {"amsgrad": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Rprop": [{}],
}
SHAPES = ((3, 4), (5, 2))


def stepped(name: str, options: dict[str, Any], steps: int) -> dict[str, Any]:
    """The state dict of an optimizer after some steps on two matrices."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = getattr(torch.optim, name)(parameters, lr=0.1, **options)
    for _ in range(steps):
        for parameter in parameters:
            gradient = torch.randn_like(parameter)
            parameter.grad = gradient.to_sparse() if name == "SparseAdam" else gradient
        optimizer.step((lambda: sum((one**2).sum() for one in parameters)) if name == "LBFGS" else None)
    found: dict[str, Any] = optimizer.state_dict()
    return found


@pytest.mark.parametrize(("name", "options"), [(name, one) for name in NAMES for one in OPTIONS.get(name, [{}])])
def test_every_optimizer_of_torch_is_known(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Its name, before and after a step; each slot; and each slot's shape decides the parameter's."""
    for steps in (0, 3):
        torch.save(stepped(name, options, steps), tmp_path / "o.pt")
        one = paramtool.read(tmp_path / "o.pt")
        (state,) = optimizers(one)
        if steps or name not in ("Adamax", "SparseAdam"):
            assert state.algorithm == name
        assert {slot.kind for entry in state.entries for slot in entry.slots} <= {
            "weight", "first", "second", "magnitude", "scalar", "factored", "global",
        }  # fmt: skip
    has_slots = name != "SGD" or options
    assert bool(state.entries[0].slots) == bool(has_slots)
    if has_slots and name != "LBFGS":
        for entry, shape in zip(state.entries, SHAPES, strict=True):
            expected = expected_shape(entry, shapes_of(one))
            assert expected.allows(shape) and not expected.allows(shape[::-1])


def test_the_list_of_torch_is_not_empty() -> None:
    assert len(NAMES) >= 14
