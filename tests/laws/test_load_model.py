"""Any file into any variant: bits, ties, gradients; and what `variants` said comes true."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import nn

import paramtool
import paramtool.errors
import paramtool.torch
from paramtool.errors import TieError
from tests.examples import examples
from tests.laws.models import DTYPES, WHOLE, Recipe, recipes, tied_groups
from tests.laws.sharing import partition, raw


def written(model: nn.Module, folder: Path, dedup: bool) -> Path:
    """A model's state dict in a file, deduplicated or as torch saves it; small tensors are compared, too."""
    torch.save(model.state_dict(), folder / "m.pt")
    if not dedup:
        return folder / "m.pt"
    paramtool.dedup(folder / "m.pt", folder / "m.safetensors", min_equal_bytes=1, force=True)
    return folder / "m.safetensors"


def values(model: nn.Module) -> dict[str, tuple[torch.dtype, bytes]]:
    return {name: (tensor.dtype, raw(tensor)) for name, tensor in model.state_dict().items()}


def agrees(target: nn.Module, state: dict[str, torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether names that a model ties have equal values in a state, as `dtype`: the definition, with torch alone."""
    for group in tied_groups(target):
        shape = group[0][1].shape
        seen = {raw((state[n] if t.shape == shape else state[n].t()).to(dtype)) for n, t in group}
        if len(group) > 1 and len(seen) > 1:
            return False
    return True


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_file_into_any_variant(data: st.DataObject) -> None:
    """Values bit for bit after the cast, the variant's own ties and gradients, whatever the file shares."""
    source_recipe: Recipe = data.draw(recipes(), "source")
    recipe: Recipe = data.draw(recipes(source_recipe), "target")
    assign, meta = data.draw(st.booleans(), "assign"), data.draw(st.booleans(), "meta")
    dtype = data.draw(st.none() | st.sampled_from(DTYPES), "dtype") if assign or meta else None
    source, twin = source_recipe.build(), recipe.build()
    state = source.state_dict()
    with torch.device("meta" if meta else "cpu"):
        target = recipe.build()
    kept = source_recipe.dtype if assign else recipe.dtype
    final = dtype or kept
    before = None if meta else values(target)
    with tempfile.TemporaryDirectory() as folder:
        path = written(source, Path(folder), data.draw(st.booleans(), "dedup"))
        verdict = paramtool.torch.variants(target, path)[0]
        note(str(verdict))
        if not agrees(twin, state, final):
            with pytest.raises(TieError):
                paramtool.torch.load_model(target, path, assign=assign, dtype=dtype)
            assert before is None or values(target) == before
            assert verdict.apart or kept != recipe.dtype or dtype
            return
        loaded = paramtool.torch.load_model(target, path, assign=assign, dtype=dtype)
    assert (loaded.missing, loaded.unexpected, loaded.on_meta) == ((), (), ())
    expected = {n: t.to(final) if t.is_floating_point() else t for n, t in state.items()}
    assert values(target) == {name: (tensor.dtype, raw(tensor)) for name, tensor in expected.items()}
    twin = twin.to(final) if twin_keeps_ties(recipe) else twin
    if final == recipe.dtype or twin_keeps_ties(recipe):
        assert partition(target.state_dict()) == partition(twin.state_dict())
    wanted = {name: parameter.requires_grad for name, parameter in twin.named_parameters(remove_duplicate=False)}
    found = dict(target.named_parameters(remove_duplicate=False))
    assert {name: parameter.requires_grad for name, parameter in found.items()} == wanted
    trains_as_tied(target, recipe)


def twin_keeps_ties(recipe: Recipe) -> bool:
    """Whether `.to(dtype)` keeps a model's ties: it parts parameters that are transposes of each other."""
    return all({recipe.layers[a], recipe.layers[b]} in WHOLE for a, b in recipe.ties)


def trains_as_tied(target: nn.Module, recipe: Recipe) -> None:
    """After a step with another gradient for each parameter, tied names are still equal and all others are not."""
    groups = [{id(tensor): tensor for _, tensor in group} for group in tied_groups(target)]
    names = [[name for name, _ in group] for group in tied_groups(target)]
    parameters = [next((t for t in group.values() if t.requires_grad and t.numel()), None) for group in groups]
    with torch.no_grad():
        for tensor in target.state_dict(keep_vars=True).values():
            tensor.zero_()  # equal by chance, all of them
    for k, parameter in enumerate(parameters):
        if parameter is not None:
            parameter.grad = torch.full_like(parameter, k + 1)
    trained = [parameter for parameter in parameters if parameter is not None]
    if trained:
        torch.optim.SGD(trained, lr=1).step()
    state = target.state_dict()
    for k, (group, parameter) in enumerate(zip(names, parameters, strict=True)):
        for name in group:
            assert torch.all(state[name] == (0 if parameter is None else -(k + 1)))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_what_variants_says_comes_true(data: st.DataObject) -> None:
    """A variant loads just when load_model fills all of it; names of other layers are lacking or left unused."""
    source_recipe: Recipe = data.draw(recipes(), "source")
    recipe: Recipe = data.draw(recipes(), "target")
    source, target = source_recipe.build(), recipe.build()
    with tempfile.TemporaryDirectory() as folder:
        path = written(source, Path(folder), data.draw(st.booleans(), "dedup"))
        (variant,) = paramtool.torch.variants([target], path)
        try:
            loaded = paramtool.torch.load_model(target, path, strict=False)
        except paramtool.errors.PlanError as error:
            assert variant.verdict == "cannot load"
            assert bool(variant.shapes) or (isinstance(error, TieError) and bool(variant.apart))
            return
        assert (loaded.missing, loaded.unexpected) == (variant.lacks, variant.unused)
        assert variant.loads == (not loaded.missing)
        torch.save(target.state_dict(), Path(folder) / "target.pt")
        (again,) = paramtool.variants(path, [Path(folder) / "target.pt"])
        assert (again.unused, again.filled) == (variant.unused, variant.filled)
        counters = {name for name in again.lacks if name.endswith("num_batches_tracked")}  # which BatchNorm adds
        assert [name for name in again.lacks if name in variant.lacks] == list(variant.lacks)
        assert set(again.lacks) - set(variant.lacks) <= counters
