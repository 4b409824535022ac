"""Modules with code of their own for loading: each hook that torch has, modules of torch that use them, of libraries.

Each is a function that makes the model; what it makes follows from torch's seed.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Base(nn.Module):
    """A body without code of its own, beside which each module stands."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))


class StateHook(Base):
    """A state dict of temporaries."""

    def __init__(self) -> None:
        super().__init__()
        self._register_state_dict_hook(StateHook.cloned)

    @staticmethod
    def cloned(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state.update({name: one.clone() for name, one in state.items()})


class PostHook(Base):
    """The same by the public hook, in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(PostHook.halve)

    @staticmethod
    def halve(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in list(state):
            state[name] = state[name].to(torch.bfloat16)


class PreHook(Base):
    """Something happens before a state dict is made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_pre_hook(lambda module, prefix, keep_vars: None)


class LoadPreHook(Base):
    """Names of an older version, by a hook of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(LoadPreHook.older)

    @staticmethod
    def older(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in [name for name in state if name.startswith("old.")]:
            state[name[4:]] = state.pop(name)


class LoadPreHookAlone(Base):
    """The same without the module."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self.older)

    def older(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        LoadPreHook.older(self, state, prefix)


class LoadPostHook(Base):
    """A name that may be missing, and a value that follows from another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("square", torch.zeros(4), persistent=False)
        self.extra = nn.Parameter(torch.ones(2))
        self.register_load_state_dict_post_hook(LoadPostHook.after)

    @staticmethod
    def after(module: Any, keys: Any) -> None:
        keys.missing_keys[:] = [name for name in keys.missing_keys if name != "extra"]
        with torch.no_grad():
            module.square.copy_(module.scale**2)


class Versioned(Base):
    """Rows in another order since version 2, and a name that version 1 did not have."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(6, 2))

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2 and prefix + "qkv" in state:
            q, k, v = state[prefix + "qkv"].chunk(3)
            state[prefix + "qkv"] = torch.cat([v, k, q])
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Saving(Base):
    """One tensor for two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "ab"] = torch.cat([destination.pop(prefix + "a"), destination.pop(prefix + "b")])

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        if prefix + "ab" in state:
            state[prefix + "a"], state[prefix + "b"] = state.pop(prefix + "ab").chunk(2)
        super()._load_from_state_dict(state, prefix, *rest)


class Extra(Base):
    """Plain values, and a tensor, that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"scale": float(torch.rand(())), "steps": [1, (2, 3)], "amax": torch.randn(3), "name": "fp8"}

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


class ExtraObjects(Extra):
    """Objects of the standard library that are data."""

    def __init__(self) -> None:
        super().__init__()
        day = datetime.date(2026, 1, 1 + torch.initial_seed())
        self.state: Any = {"day": day, "path": PurePosixPath("a"), "rows": range(3), "half": Fraction(1, 2)}


class ExtraTensor(Extra):
    """A tensor, as later versions of Transformer Engine have it."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = torch.randint(0, 255, (7,), dtype=torch.uint8)


class ExtraBytes(Extra):
    """A file in a file, as earlier versions have it; `get_extra_state` writes it."""

    def get_extra_state(self) -> Any:
        torch.save(self.state, found := io.BytesIO())
        return found

    def set_extra_state(self, state: Any) -> None:
        state.seek(0)
        self.state = torch.load(state)


class Keeping(Base):
    """What is loaded is kept as it is, and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(5)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "table"] = self.table

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        if prefix + "table" in state:
            self.table = state.pop(prefix + "table")
        super()._load_from_state_dict(state, prefix, *rest)


class Valued(Base):
    """Code that looks at values, which a copy without memory has for what it is given."""

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        if prefix + "scale" in state and state[prefix + "scale"][0].item() > 0:
            state[prefix + "scale"] = -state[prefix + "scale"]
        super()._load_from_state_dict(state, prefix, *rest)


class Whole(Base):
    """An override of load_state_dict, as Lightning and others have it, that returns nothing."""

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:  # type: ignore[override]
        super().load_state_dict({name: one for name, one in state_dict.items() if name != "more"}, strict=strict)


class Short(Base):
    """An override that knows no `strict`."""

    def load_state_dict(self, state_dict: Any) -> None:  # type: ignore[override]
        super().load_state_dict(state_dict)


class Data(Base):
    """Values that are copied from `data` into `data`."""

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.scale.data.copy_(state[prefix + "scale"].data)


class WholeData(Base):
    """The loop over a state dict that many projects have."""

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:  # type: ignore[override]
        own = self.state_dict()
        for name, one in state_dict.items():
            own[name].copy_(one.data)


class Reaching(Base):
    """A hook over a list of parameters."""

    def __init__(self) -> None:
        super().__init__()
        own = [self.scale]

        def doubled(module: nn.Module, keys: Any) -> None:
            for one in own:
                one.data.mul_(2)

        self.register_load_state_dict_post_hook(doubled)


class Raising(Base):
    """Code that changes the module, and raises."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(Raising.fail)

    @staticmethod
    def fail(module: Any, *rest: Any) -> None:
        module.scale.data.add_(1)
        raise KeyError("no")


class TiedHook(StateHook):
    """One parameter with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.body.weight


class Nested(Base):
    """A state dict of others, and of plain values."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Any = [0]

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return {"model": super().state_dict(*args, **more), "extra": {"steps": [torch.initial_seed(), (2, "a")]}}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        self.steps = state_dict["extra"]["steps"]
        return super().load_state_dict(state_dict["model"], strict=strict)


class NestedNorms(Nested):
    """The same with parts that have code of their own, and more that is no weight; it knows no `strict`."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = convolutions()

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return {**super().state_dict(*args, **more), "optimizer": {"state": {0: {"step": torch.ones(())}}}}

    def load_state_dict(self, state_dict: Any) -> None:  # type: ignore[override]
        super().load_state_dict(state_dict)


class NestedWithin(Base):
    """What a training saves of it, its `state_dict` in a section: only loading knows that."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        found = super().state_dict(*args, **more)
        return {"epoch": 3, "weights": found} if not args and not more else found

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        self.epoch = state_dict.pop("epoch")
        return super().load_state_dict(state_dict["weights"], strict=strict)


class NestedList(Base):
    """A list, and the parts of a model by numbers."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return [{0: self.body.state_dict(), (1, "scale"): self.scale}]

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        self.body.load_state_dict(state_dict[0][0], strict=strict)
        self.scale.data.copy_(state_dict[0][1, "scale"])


class NestedValued(Nested):
    """Code that looks at values of the model, which a copy without memory has not."""

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        assert not self.scale.isnan().any().item()
        return super().load_state_dict(state_dict, strict)


NESTED = (Nested, NestedNorms, NestedWithin, NestedList, NestedValued)
"""Models whose state dict is no dict of tensors."""


class Doubled(nn.Module):
    """A parametrisation with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())


def filled_lazy() -> nn.Module:
    model = lazy()
    model(torch.randn(2, 5))
    return model


def convolutions() -> nn.Module:
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), norm)
    model(torch.randn(4, 2, 5))
    return model


def quantised() -> nn.Module:
    model = torch.ao.nn.quantized.Linear(4, 3)
    model.set_weight_bias(torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8), torch.randn(3))
    return model


def functional() -> nn.Module:
    """As models prepared for quantisation have it, which torch.ao's observers fill."""
    return nn.Sequential(torch.ao.nn.quantized.QFunctional(), torch.ao.quantization.MinMaxObserver())  # type: ignore[attr-defined]


OF_TORCH: Mapping[str, Callable[[], nn.Module]] = {
    **{one.__name__: one for one in (
        StateHook, PostHook, PreHook, LoadPreHook, LoadPreHookAlone, LoadPostHook, Versioned, Saving, Extra,
        ExtraObjects, ExtraTensor, ExtraBytes, Keeping, Valued, Whole, Short, Data, WholeData, Reaching, Raising,
        TiedHook,
    )},
    "BatchNorm": convolutions,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "parametrisation": lambda: _parametrised(),
    "pruned": lambda: _pruned(),
    "quantised Linear": quantised,
    "QFunctional": functional,
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "filled lazy": filled_lazy,
    "AveragedModel": lambda: torch.optim.swa_utils.AveragedModel(convolutions()),
    "DataParallel": lambda: nn.DataParallel(convolutions()),
    "checkpoint wrapper": lambda: _wrapped(),
}  # fmt: skip


def _parametrised() -> nn.Module:
    model = nn.Linear(4, 3)
    parametrize.register_parametrization(model, "weight", Doubled())
    return model


def _pruned() -> nn.Module:
    from torch.nn.utils import prune

    return prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5)


def _wrapped() -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return nn.Sequential(checkpoint_wrapper(nn.Linear(4, 3)), nn.Linear(3, 2))


# --- libraries -----------------------------------------------------------------------------------------------------


def linear4bit() -> nn.Module:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="quantised layers of bitsandbytes")
    model = nn.Sequential(nn.Linear(64, 64), bitsandbytes.nn.Linear4bit(64, 64, compute_dtype=torch.float32))
    return model.to("cpu")


def linear8bit() -> nn.Module:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="quantised layers of bitsandbytes")
    return nn.Sequential(nn.Linear(64, 64), bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False)).to("cpu")


def torchao() -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    quantization.quantize_(model[0], quantization.Int8WeightOnlyConfig())
    return model


def torchao_dynamic() -> nn.Module:
    """With objects that say how activations are quantised."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    return model


def torchtune() -> nn.Module:
    """NF4 weights that are saved as bfloat16, as `reparametrize_as_dtype_state_dict_post_hook` of torchtune has it."""
    nf4 = pytest.importorskip("torchao.quantization.quantize_.workflows.nf4.nf4_tensor", reason="tensors of torchao")

    def hook(model: nn.Module, state: dict[str, Any], *rest: Any, **more: Any) -> None:
        for name, one in state.items():
            if isinstance(one, nf4.NF4Tensor):
                state[name] = one.to(torch.bfloat16)

    model = Base()
    model.base = nn.Parameter(nf4.to_nf4(torch.randn(128, 128).to(torch.bfloat16)), requires_grad=False)
    model._register_state_dict_hook(hook)
    return model


def hqq() -> nn.Module:
    quantize = pytest.importorskip("hqq.core.quantize", reason="layers of HQQ")
    config = quantize.BaseQuantizeConfig(nbits=4, group_size=64)
    layer = quantize.HQQLinear(nn.Linear(64, 64), config, compute_dtype=torch.float32, device="cpu")
    return nn.Sequential(nn.Linear(64, 64), layer, nn.Linear(64, 8))


OF_LIBRARIES = {one.__name__: one for one in (linear4bit, linear8bit, torchao, torchao_dynamic, torchtune, hqq)}
