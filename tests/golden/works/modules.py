"""Small modules of torch and of libraries that keep their values in a way of their own: {name: what builds it}."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune


class Tied(nn.Module):
    """An embedding that is the head's, one module under two names, and a buffer that no file has."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.emb.weight
        self.block = nn.Linear(4, 4)
        self.again = self.block
        self.register_buffer("positions", torch.arange(5), persistent=False)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))


class Kinds(nn.Module):
    """Parameters and buffers of every type, without a gradient, empty, of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float32):
            self.register_parameter(f"a_{str(dtype)[6:]}", nn.Parameter(torch.randn(3, 2).to(dtype)))
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
            self.register_buffer(f"a_{str(dtype)[6:]}", torch.randint(0, 2, (4,)).to(dtype))
        self.register_buffer("a_float8", torch.randn(4, 4).to(torch.float8_e4m3fn))
        self.still = nn.Parameter(torch.randn(2), requires_grad=False)
        self.scalar = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.empty(0, 3))


class Nested(nn.Module):
    """Lists and dicts of modules and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.by_name = nn.ModuleDict({"one": nn.Linear(3, 2), "two": nn.Conv1d(2, 2, 1)})
        self.several = nn.ParameterList([nn.Parameter(torch.randn(2)) for _ in range(2)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.randn(2)), "b": nn.Parameter(torch.randn(3))})


class Own(nn.Linear):
    """Its own `_load_from_state_dict`, which calls torch's."""

    def _load_from_state_dict(self, *args: Any) -> None:  # type: ignore[override]
        super()._load_from_state_dict(*args)


def views() -> nn.Module:
    """Weights that are windows on one buffer, and one that is not contiguous."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last))
    flat = torch.randn(32)
    model[0].weight.data, model[1].weight.data = flat[:16].view(4, 4), flat[16:].view(4, 4).t()
    return model


def pre_hook() -> nn.Module:
    """A hook before loading that changes nothing, and one after it."""
    model = nn.Linear(3, 2)
    model.register_load_state_dict_pre_hook(lambda *args: None)
    model.register_load_state_dict_post_hook(lambda *args: None)
    model.register_state_dict_post_hook(lambda *args: None)
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].requires_grad_(False)
    return model.eval()


def pruned() -> nn.Module:
    model = nn.Linear(6, 4)
    prune.random_unstructured(model, "weight", 0.5)
    return model


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized() -> nn.Module:
    model = nn.Linear(3, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return model


def traced() -> nn.Module:
    return torch.jit.trace(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval(), torch.ones(2, 3))


def fake_quantised() -> nn.Module:
    from torch.ao.quantization import FakeQuantize

    model = nn.Sequential(nn.Linear(3, 2), FakeQuantize())
    model(torch.randn(4, 3))
    return model


def torchao_int8() -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 8))
    quantize_(model, Int8WeightOnlyConfig())
    return model


def bnb(name: str, **more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import bitsandbytes

        return nn.Sequential(getattr(bitsandbytes.nn, name)(64, 32, **more), nn.Linear(32, 4)).to("cpu")

    return build


def made() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    layers = nn.Sequential
    yield "tied", Tied
    yield "kinds", Kinds
    yield "nested", Nested
    yield "own loading", lambda: Own(3, 2)
    yield "views", views
    yield "hooks that do nothing", pre_hook
    yield "frozen", frozen
    yield "pruned", pruned
    yield "parametrized", parametrized
    yield "weight norm", lambda: parametrizations.weight_norm(nn.Linear(3, 2))
    yield "old weight norm", lambda: torch.nn.utils.weight_norm(nn.Linear(3, 2))
    yield "spectral norm", lambda: parametrizations.spectral_norm(nn.Linear(3, 2))
    yield "old spectral norm", lambda: torch.nn.utils.spectral_norm(nn.Linear(3, 2))
    yield "orthogonal", lambda: parametrizations.orthogonal(nn.Linear(3, 3))
    yield "traced", traced
    yield "scripted", lambda: torch.jit.script(nn.LSTM(3, 2))
    yield "compiled", lambda: torch.compile(nn.Linear(3, 2))  # type: ignore[return-value]
    yield "data parallel", lambda: nn.DataParallel(nn.Linear(3, 2))
    yield "averaged", lambda: torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    yield "fake quantised", fake_quantised
    yield "torchao int8", torchao_int8
    yield "bitsandbytes 8 bits", bnb("Linear8bitLt", has_fp16_weights=False)
    yield "bitsandbytes 8 bits, not yet", bnb("Linear8bitLt")
    yield "bitsandbytes 4 bits", bnb("Linear4bit")
    yield "lazy", lambda: (lambda m: (m(torch.ones(2, 3)), m)[1])(layers(nn.LazyLinear(4), nn.LazyBatchNorm1d()))
    yield "convolutions", lambda: layers(nn.Conv1d(2, 4, 3), nn.Conv3d(2, 2, 1), nn.ConvTranspose2d(4, 2, 2, groups=2))
    yield (
        "norms",
        lambda: layers(
            nn.BatchNorm2d(4), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False),
            nn.GroupNorm(2, 4), nn.LayerNorm((2, 3)), nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
            nn.RMSNorm(4), nn.LayerNorm(3, bias=False),
        ),
    )  # fmt: skip
    yield "embeddings", lambda: layers(nn.Embedding(5, 3, padding_idx=0), nn.EmbeddingBag(4, 2), nn.PReLU(3))
    yield "bilinear", lambda: layers(nn.Bilinear(2, 3, 4), nn.Linear(3, 2, dtype=torch.float64))
    yield "attention", lambda: layers(nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=4, vdim=6))
    yield "transformer", lambda: nn.Transformer(8, 2, 1, 1, 16)
    yield "encoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    yield "rnn", lambda: nn.RNN(3, 4, 2, nonlinearity="relu")
    yield "lstm", lambda: nn.LSTM(3, 4, 2, bidirectional=True)
    yield "lstm with a projection", lambda: nn.LSTM(3, 4, proj_size=2)
    yield "gru without biases", lambda: nn.GRU(3, 4, 2, bias=False)
    yield "cells", lambda: layers(nn.LSTMCell(3, 4), nn.GRUCell(4, 3), nn.RNNCell(3, 2))
    yield "half", lambda: layers(nn.Linear(3, 4), nn.LayerNorm(4)).half()
    yield "bfloat16 beside float32", lambda: layers(nn.Linear(3, 4).bfloat16(), nn.LayerNorm(4))
    yield "adaptive softmax", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])
    yield "weighted loss", lambda: nn.CrossEntropyLoss(weight=functional.softmax(torch.randn(5), 0))


MODULES = dict(made())
