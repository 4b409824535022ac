"""`load_model` is `load_state_dict(torch.load(FILE))` for models of transformers, timm, diffusers and PEFT.

Both leave the same parameters, buffers, extra states, ties and gradients, bit for bit; so do new tensors, with
`assign`, on the meta device and in another type, and a part of a file, by its prefix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramtool.torch
from tests.laws.test_load_modules import named
from tests.laws.test_load_protocol import everything
from tests.oracles import library_models, zoo, zoo_models
from tests.oracles.real_models import examples
from tests.versions import needs

for library in ("diffusers", "peft", "transformers"):
    pytest.importorskip(library, reason=f"models of {library}")
pytestmark = [needs("torch", "2.13", "the models' own code"), pytest.mark.filterwarnings("ignore")]

Build = Callable[..., nn.Module]
"""A model, with `seed` and `device`."""
HOWS: Mapping[str, dict[str, Any]] = {
    "copied": {},
    "assigned": {"assign": True},
    "assigned as bfloat16": {"assign": True, "dtype": torch.bfloat16},
    "meta": {},
    "meta, assigned": {"assign": True},
    "meta as float64": {"dtype": torch.float64},
    "under a prefix": {"prefix": "net.part"},
    "under a prefix, meta": {"prefix": "net.part"},
}
"""{how a model is filled: options of load_model}"""


def of_transformers(model_type: str) -> Build:
    try:
        model: Any = zoo_models.small(model_type)
    except Exception as error:  # whatever a model's code makes of small numbers
        pytest.skip(f"cannot be built: {error!s:.80}")
    config = copy.deepcopy(model.config)
    return lambda seed=0, device="cpu": zoo_models.like(type(model), copy.deepcopy(config), seed=seed, device=device)


def of_timm(name: str) -> Build:
    pytest.importorskip("timm", reason="models of timm")
    return partial(zoo_models.of_timm, name)


def of_library(make: Callable[[str], nn.Module], name: str) -> Build:
    def build(seed: int = 0, device: str = "cpu") -> nn.Module:
        torch.manual_seed(seed)
        with torch.device(device):
            return make(name)

    return build


MODELS: Mapping[str, Callable[[], Build]] = {
    **{f"transformers-{name}": partial(of_transformers, name) for name in zoo_models.architectures()},
    **{f"timm-{name}": partial(of_timm, name) for name in zoo_models.TIMM},
    **{
        f"{kind}-{name}": partial(of_library, make, name)
        for kind, names, make in (
            ("diffusers", library_models.DIFFUSERS, library_models.diffusers_model),
            ("peft", library_models.PEFT, library_models.peft_model),
            ("examples", examples.MODELS, lambda name: examples.MODELS[name].build()),
        )
        for name in names
    },
}


def copied(model: nn.Module) -> nn.Module:
    """A copy, also of a module that keeps a tensor which was calculated."""
    calculated = (one for module in model.modules() for one in vars(module).values() if isinstance(one, torch.Tensor))
    kept = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in calculated}
    return copy.deepcopy(model, kept)


def saved(model: nn.Module, within: bool, path: Path) -> Path:
    """torch.save of the state dict of a model, or of one that it is a part of."""
    whole = model
    if within:
        whole = nn.ModuleDict({"net": nn.ModuleDict({"part": model}), "other": nn.Linear(1, 1)})
    torch.save(whole.state_dict(), path)
    return path


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", MODELS)
def test_load_model_is_load_state_dict(name: str, tmp_path: Path) -> None:
    build = MODELS[name]()
    model = build(seed=0)
    zoo_models.fill(model, 0)
    files = {within: saved(model, within, tmp_path / f"{within}.pt") for within in (False, True)}
    try:
        build(seed=1, device="meta")
        on_meta = True
    except (NotImplementedError, RuntimeError):
        on_meta = False
    theirs = build(seed=1)
    zoo_models.fill(theirs, 1)
    start = copied(theirs)
    missing, unexpected = theirs.load_state_dict(torch.load(files[False], weights_only=False), strict=False)
    assert not missing
    ties = zoo.sharing(named(theirs))
    for how, options in HOWS.items():
        if "meta" not in how:
            mine = copied(start)
        elif on_meta:
            mine = build(seed=1, device="meta")
            if "dtype" in options and not all(one.is_meta for one in mine.state_dict().values()):
                continue  # some of it has memory, and keeps its type
        else:
            continue
        loaded = paramtool.torch.load_model(mine, files["prefix" in options], **options)
        assert not loaded.missing and {*loaded.unexpected} <= {*unexpected}, how
        if how in ("copied", "under a prefix"):
            assert everything(mine) == everything(theirs), how
        else:
            same(theirs, mine, loaded.on_meta, options.get("dtype"), how)
        if not loaded.on_meta and "dtype" not in options:
            assert zoo.sharing(named(mine)) == ties, how


def same(theirs: nn.Module, mine: nn.Module, on_meta: tuple[str, ...], dtype: torch.dtype | None, how: str) -> None:
    """Names, types, values, ties and gradients; what is on the meta device is in no file."""
    expected, found = named(theirs), named(mine)
    assert expected.keys() == found.keys(), how
    state = theirs.state_dict()
    assert not {*on_meta} & state.keys(), how
    for name, one in expected.items():
        other = found[name]
        assert (type(other), other.requires_grad) == (type(one), one.requires_grad), (how, name)
        assert other.is_meta == (name in on_meta), (how, name)
        if not other.is_meta:
            kept = dtype if dtype is not None and one.is_floating_point() and name in state else one.dtype
            assert other.dtype == kept, (how, name)
            assert zoo.raw(other) == zoo.raw(one.to(kept)), (how, name)
    for one, other in ((expected, found), (found, expected)):
        groups: dict[int, list[str]] = {}
        for name, tensor in one.items():
            groups.setdefault(id(tensor), []).append(name)
        assert all(len({id(other[name]) for name in names}) == 1 for names in groups.values()), how


@pytest.mark.parametrize("name", ["backbone.embeddings.weight", "backbone.embedding.weight"])
@pytest.mark.parametrize("model_type", ["mamba", "mamba2"])
def test_a_tie_is_judged_behind_a_hook_of_transformers(model_type: str, name: str, tmp_path: Path) -> None:
    """A pre-hook of the model renames `embedding` of older files: that is known before the model changes."""
    mine = zoo_models.small(model_type, tie_word_embeddings=True)
    state = {n: one.clone() for n, one in mine.state_dict().items()}
    state[name] = state.pop("backbone.embeddings.weight") + 1
    torch.save(state, path := tmp_path / "m.pt")
    before = everything(mine)
    with pytest.raises(paramtool.TieError, match=r"lm_head.weight"):
        paramtool.torch.load_model(mine, path)
    assert everything(mine) == before
    state["lm_head.weight"] = state[name]
    torch.save(state, path)
    paramtool.torch.load_model(mine, path)
    assert torch.equal(mine.state_dict()["backbone.embeddings.weight"], state[name])
