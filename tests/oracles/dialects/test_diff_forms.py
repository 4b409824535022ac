"""`diff` of models that transformers saves in its two forms: the same weights, one changed element, one lost part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import ADDED, CHANGED, LAYOUT, REMOVED, RENAMED, SAME
from tests.examples import IS_EVERY_MODEL
from tests.oracles.dialects import families, forms
from tests.oracles.dialects.test_forms import FEW, made, single_thread

__all__ = ["single_thread"]  # a fixture
WRONG = {"olmo_hybrid", "qwen3_vl_moe"}
"""Keys of models that transformers saves wrong in one of the forms (see `forms`)."""


def keys() -> list[str]:
    """A key of transformers' table for each set of operations in it; all of them in `make oracles`."""
    table = families.converted()
    chosen: dict[tuple[str, ...], str] = {}
    for key in sorted(table, key=lambda key: (key not in FEW, key)):
        chosen.setdefault(table[key], key)
    return [key for key in table if (IS_EVERY_MODEL or key in FEW or key in chosen.values()) and key not in WRONG]


def kinds(found: Diffed) -> set[str]:
    return {one.kind for one in found.tensors}


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", keys())
def test_both_forms_are_the_same_weights(key: str, tmp_path: Path) -> None:
    """In both directions, with a map for whatever is cut, joined or stacked."""
    one = made(key, "odd", tmp_path)
    for a, b in ((one.four, one.five), (one.five, one.four)):
        found = diff(a, b)
        assert found.is_same, [(one.kind, one.a, one.b) for one in found.tensors if one.kind in (ADDED, REMOVED)]
        assert kinds(found) <= {SAME, RENAMED, LAYOUT} and LAYOUT in kinds(found)


@pytest.mark.parametrize("key", ["mixtral", "ernie4_5_vl_moe"])
def test_one_other_element_is_found(key: str, tmp_path: Path) -> None:
    """An element of a stack of experts that is another is not covered by any map."""
    one = made(key, "odd", tmp_path)
    path = one.five / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    name = next(name for name in tensors if name.endswith("experts.down_proj"))
    tensors[name].view(-1)[7] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    found = diff(one.four, one.five)
    assert not found.is_same
    assert [one.b for one in found.tensors if one.kind in (ADDED, CHANGED)] == [(name,)]


def test_the_thirds_of_olmo_hybrid_are_found(tmp_path: Path) -> None:
    """transformers 5.23 saves three convolutions of unequal sizes as equal thirds: other weights than the original.

    The config.json beside them says which sizes are right, so both forms of the same model differ in these three alone.
    """
    one = made("olmo_hybrid", "odd", tmp_path)
    original = forms.people_have(one, "olmo_hybrid", tmp_path / "right")
    right = diff(one.five, original)
    assert right.is_same and LAYOUT in kinds(right)
    thirds = {"q_conv1d", "k_conv1d", "v_conv1d"}
    for a, b, wanted in ((one.five, one.four, thirds), (one.four, one.five, {"conv1d"}), (original, one.four, thirds),
                         (one.four, original, thirds)):  # fmt: skip
        found = diff(a, b)
        assert not found.is_same
        changed = [each for each in found.tensors if each.kind in (CHANGED, ADDED, REMOVED)]
        assert {name.rpartition(".")[0].rpartition(".")[2] for each in changed for name in each.b} == wanted
        assert {each.kind for each in changed} == {CHANGED}
        if original not in (a, b):
            assert all("but config.json says q_conv_rows=24, k_conv_rows=24, v_conv_rows=40" in each.how
                       for each in changed)  # fmt: skip


def test_a_fine_tune_beside_its_base(tmp_path: Path) -> None:
    """One training step changes what has a gradient, and nothing else."""
    one = made("mixtral", "odd", tmp_path)
    model = one.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 3)
    tokens = torch.arange(12)[None] % 50
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    tuned = forms.both(model, tmp_path / "tuned")
    found = diff(one.five, tuned.five)
    changed = {name for one in found.tensors for name in one.b if one.kind == CHANGED}
    assert changed and all(".experts." in name for name in changed)
    assert kinds(found) == {SAME, CHANGED}
    assert all(one.change and one.change.largest for one in found.tensors if one.kind == CHANGED)
