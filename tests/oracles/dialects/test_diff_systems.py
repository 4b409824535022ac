"""`diff` of a model that transformers saved and the same in each dialect, as our equations calculate its tensors.

paramtool writes neither side.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import ADDED, CHANGED, LAYOUT, REMOVED, RENAMED, SAME
from tests.oracles.dialects.models import saved, tensors
from tests.oracles.dialects.proofs import Case
from tests.oracles.dialects.reference import sizes
from tests.oracles.dialects.systems import SYSTEMS, System, Tensors
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
EACH = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.dialect}-{system.family.name}")
FIRST = [*{system.dialect: system for system in reversed(SYSTEMS)}.values()]
"""A model for each dialect."""
GOOD = {SAME, RENAMED, LAYOUT}


def both(system: System, place: Path) -> tuple[Path, Path, Tensors]:
    """The folder of transformers, and a file of the other system without a config.json."""
    case = Case(system.family)
    file = saved(case.model, place / "in", "transformers-4")
    given = tensors(saved(case.model, place / "given", system.form))
    made = system.expected(given, sizes(system.family.attention[0]))
    (place / "system").mkdir()
    path = place / "system" / "model.safetensors"
    save_file({name: one.contiguous().clone() for name, one in made.items()}, path)
    return file, path, made


@pytest.mark.sample(3)
@EACH
def test_a_model_in_another_dialect(system: System, tmp_path: Path) -> None:
    """Every tensor of the system is found in the file of transformers, in both directions; the map is named."""
    file, path, made = both(system, tmp_path)
    there, back = diff(file, path), diff(path, file)
    kinds = {name: one.kind for one in there.tensors for name in one.b}
    assert kinds.keys() == made.keys() and set(kinds.values()) <= GOOD, kinds
    assert all(one.layout for one in there.tensors if one.kind == LAYOUT and len(one.a) > 1)
    lost = {one.kind for one in back.tensors} - GOOD
    if system.partly:  # of the rest of the model, our equations say nothing
        assert lost <= {ADDED} and {one.kind for one in there.tensors} - GOOD <= {REMOVED}
    else:
        assert there.is_same and back.is_same, (lost, {one.kind for one in there.tensors})


@pytest.mark.sample(3)
@pytest.mark.parametrize("system", FIRST, ids=lambda system: system.dialect)
def test_one_other_element_in_another_dialect(system: System, tmp_path: Path) -> None:
    """A number in the middle of the largest tensor of a layer is another: no verdict that says the same weights."""
    file, path, made = both(system, tmp_path)
    name = max((name for name in made if ".0." in name), key=lambda name: (made[name].numel(), name))
    spoilt = made[name].contiguous().clone()
    spoilt.view(-1)[spoilt.numel() // 2] += 1
    save_file({**{name: one.contiguous().clone() for name, one in made.items()}, name: spoilt}, path)
    for a, b in ((file, path), (path, file)):
        assert {one.kind for one in diff(a, b).tensors} & {CHANGED, ADDED, REMOVED}
