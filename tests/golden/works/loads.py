"""`load_model` of models of every kind, from whatever saves them: the values that torch's `load_state_dict` leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import paramtool
import paramtool.torch
from tests.golden.works import Facts, Jobs
from tests.golden.works.modules import MODULES
from tests.laws.sharing import raw
from tests.oracles import library_models, zoo, zoo_models
from tests.oracles.real_models import examples

Build = Callable[[], nn.Module]
HOWS: dict[str, dict[str, Any]] = {
    "copied": {},
    "assigned": {"assign": True},
    "meta": {},
    "meta, assigned": {"assign": True},
    "assigned as bfloat16": {"assign": True, "dtype": torch.bfloat16},
    "meta as float64": {"dtype": torch.float64},
}
"""{how a model is filled: options of load_model}"""


def values(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, tuple[Any, ...]]:
    """{name: type, shape and bytes}; of a tensor that is made of several, of what it stands for."""
    found = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            found[name] = (repr(tensor),)
            continue
        if hasattr(tensor, "dequantize") and (tensor.is_quantized or type(tensor) not in (torch.Tensor, nn.Parameter)):
            tensor = tensor.dequantize()
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        found[name] = (tensor.dtype, tuple(tensor.shape), raw(tensor))
    return found


def kept(model: nn.Module) -> tuple[set[frozenset[str]], dict[str, tuple[bool, bool]]]:
    """Which names are one object, and {name: whether it is a Parameter, and needs a gradient}."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    groups: dict[int, set[str]] = {}
    for name, tensor in named:
        groups.setdefault(id(tensor), set()).add(name)
    return (
        {frozenset(names) for names in groups.values() if len(names) > 1},
        {name: (isinstance(tensor, nn.Parameter), tensor.requires_grad) for name, tensor in named},
    )


def disturb(model: nn.Module) -> None:
    """Other values everywhere."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and type(tensor) in (torch.Tensor, nn.Parameter):
                tensor.fill_(0.4375)


def load(build: Build, how: str, path: Path, **more: Any) -> None:
    """A model that was filled with a file has the values of `m.pt`, as torch loads them, and is tied as it was."""
    twin = build()
    disturb(twin)
    twin.load_state_dict(torch.load(path.parent / "m.pt", weights_only=False))
    with torch.device("meta" if "meta" in how else "cpu"):
        target = build()
    if "meta" not in how:
        disturb(target)
    before = kept(target)
    options = HOWS[how]
    loaded = paramtool.torch.load_model(target, path, **options, **more)
    assert not loaded.missing and {*loaded.unexpected} <= twin.state_dict().keys()  # what its own code passes over
    state = target.state_dict()
    assert not any(getattr(state.get(name), "is_meta", False) for name in loaded.on_meta)
    assert values(target) == values(twin, options.get("dtype")), "other values"
    assert kept(target) == before, "other ties, or gradients"


def files(model: nn.Module, folder: Path, few: bool) -> dict[str, tuple[Callable[[Path], object], dict[str, Any]]]:
    """{form: what writes it to a path, options of load_model}; `m.pt` is there."""
    state = model.state_dict()

    def run(path: Path, command: str, source: str = "m.pt", **more: Any) -> None:
        getattr(paramtool, command)(folder / source, path, **more)

    small: dict[str, Any] = {"min_equal_bytes": 1}
    found: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
        "m.pt": (lambda path: None, {}),
        "dedup.safetensors": (partial(run, command="dedup", **small), {}),
        "dedup.pt": (partial(run, command="dedup", **small), {}),
        "all-names.safetensors": (partial(run, command="export", all_names=True), {}),
        "training.pt": (
            lambda path: torch.save({"epoch": 3, "model": state, "rng": torch.get_rng_state()}, path),
            {"only": "model"},
        ),
    }
    if hasattr(model, "save_pretrained"):
        found["save_pretrained"] = (lambda path: model.save_pretrained(path), {})
        found["shards of save_pretrained"] = (lambda path: model.save_pretrained(path, max_shard_size="20KB"), {})
        found["dedup of save_pretrained"] = (partial(run, command="dedup", source="save_pretrained", **small), {})
    if few:
        return found
    return found | {
        "legacy.pt": (lambda path: torch.save(state, path, _use_new_zipfile_serialization=False), {}),
        "prefixed.pt": (
            lambda path: torch.save({f"net.encoder.{n}": t for n, t in state.items()} | {"net.x": torch.ones(2)}, path),
            {"prefix": "net.encoder"},
        ),
        "save_model.safetensors": (lambda path: safetensors.torch.save_model(model, str(path)), {}),
        "save_file.safetensors": (
            lambda path: safetensors.torch.save_file({n: t.contiguous().clone() for n, t in state.items()}, path),
            {},
        ),
        "dcp of torch": (lambda path: dcp.save(dict(state), checkpoint_id=path, no_dist=True), {}),
        "dedup in shards": (partial(run, command="dedup", max_shard_size=20_000), {}),
        "dedup as dcp": (partial(run, command="dedup", format="dcp"), {}),
        "dedup without ties.safetensors": (partial(run, command="dedup", equal=False), {}),
        **{f"export{s}": (partial(run, command="export", all_names=True), {}) for s in (".npz", ".h5", ".pt")},
        "convert.safetensors": (partial(run, command="convert"), {}),
    }


def of(build: Build, few: bool = False) -> Callable[[Path], Facts]:
    """The job of a model: each form, filled in each way; `few` forms."""

    def job(folder: Path) -> Facts:
        torch.manual_seed(0)
        model = build()
        torch.save(model.state_dict(), folder / "m.pt")
        for form, (write, options) in files(model, folder, few).items():
            try:
                write(folder / form)
            except Exception:  # that nobody can write it is no matter of loading
                continue
            for how in HOWS if form in ("m.pt", "dedup.safetensors") else ("copied", "meta, assigned"):
                yield f"{form}, {how}", partial(load, build, how, folder / form, **options)

    return job


def seeded(build: Build) -> Build:
    """The same values at each call."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        return build()

    return made


def in_zoo(model_type: str) -> Callable[[Path], Facts]:
    """An architecture of transformers: what `make oracles` asks of all of them."""

    def job(folder: Path) -> Facts:
        model: Any = zoo_models.small(model_type)
        config = copy.deepcopy(model.config)
        fresh = lambda **how: zoo_models.like(type(model), copy.deepcopy(config), **how)  # noqa: E731 - as zoo.py
        case = zoo.Case(model, fresh, folder, config)
        for leg, ask in zoo.ASKED.items():
            yield leg, partial(lambda ask: ask(case).partition(":")[0].partition(";")[0].partition(" (")[0], ask)

    return job


JOBS: Jobs = {
    **{f"module {name}": of(seeded(build)) for name, build in MODULES.items()},
    **{f"model {name}": of(spec.build) for name, spec in examples.MODELS.items()},
    **{f"diffusers {n}": of(partial(library_models.diffusers_model, n), few=True) for n in library_models.DIFFUSERS},
    **{f"peft {name}": of(partial(library_models.peft_model, name), few=True) for name in library_models.PEFT},
    **{f"zoo {name}": in_zoo(name) for name in zoo_models.architectures()},
}
