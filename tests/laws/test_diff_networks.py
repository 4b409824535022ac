"""Planted maps of recurrent networks: each layout that holds a network of PyTorch's is found without hints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.diff import diff
from paramtool.layouts.spec import Spec
from paramtool.model.diff import LAYOUT, RENAMED, SAME
from tests.laws.conversions import NAMES, can_hold, move, neutral

SPECS = [Spec(kind=kind, input=6, hidden=16, layers=1, bias=False) for kind in ("lstm", "gru", "rnn")]
CASES = [(name, spec) for spec in SPECS for name in NAMES if can_hold(name, spec) and name != "torch"]


def files(place: Path, name: str, spec: Spec) -> tuple[Path, Path]:
    """A network as PyTorch stores it, and in another layout, by an executor of copies that is not ours."""
    source = neutral(spec, 0, inner_bias=False)
    made = move(source, name)
    found = []
    for side, network in (("a", source), ("b", made)):
        arrays: Mapping[str, np.ndarray] = network.arrays()
        names = network.network.tensors
        save_file({names[own]: array for own, array in arrays.items()}, place / f"{side}.safetensors")
        found.append(place / f"{side}.safetensors")
    return found[0], found[1]


ONE_WAY = {
    "paddle": "has every tensor under two names, and those that PyTorch lacks are told",
    "flux.old": "stores a first state of zeros, which no layout of PyTorch leaves out",
    "lasagne": "a network with peepholes of zero is not read as one without",
}


@pytest.mark.parametrize("name, spec", CASES, ids=[f"{name}-{spec.kind}" for name, spec in CASES])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_network_in_another_layout(name: str, spec: Spec, back: bool, tmp_path: Path) -> None:
    if back and name in ONE_WAY:
        pytest.skip(ONE_WAY[name])
    a, b = files(tmp_path, name, spec)[:: -1 if back else 1]
    found = diff(a, b)
    told = [one for one in found.tensors if one.kind not in (SAME, RENAMED)]
    assert found.is_same(), [(one.kind, one.a, one.b, one.how) for one in found.tensors]
    assert all(one.kind == LAYOUT for one in told)
