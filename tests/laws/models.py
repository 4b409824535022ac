"""Random torch models: linear layers, embeddings, LSTMs and norms, tied at random, as they are or transposed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn

ROWS, WIDTH = 6, 4
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SETTINGS = ("linear", "linear", "embedding", "head", "back", "lstm", "norm")
WHOLE = ({"linear"}, {"head"}, {"back"}, {"embedding"}, {"embedding", "head"})
"""Layers whose weights can be one."""
TIEABLE = (*WHOLE, {"embedding", "back"}, {"head", "back"})
"""And those that can be the transpose of each other."""


@dataclass(frozen=True)
class Recipe:
    """A model that can be built again and again, on any device."""

    layers: tuple[str, ...]
    ties: tuple[tuple[int, int], ...]
    """Layers whose weights are one: the second takes the first's, transposed where the shapes ask for it."""
    seeds: tuple[int, ...]
    """For each layer where its values come from: layers of one kind and seed are equal by chance."""
    dtype: torch.dtype
    frozen: tuple[bool, ...]
    flat: bool
    """Whether LSTMs keep their weights in one buffer."""

    def build(self) -> nn.Module:
        """The model, with its values unless it is on the meta device."""
        model = nn.ModuleList([_layer(kind) for kind in self.layers]).to(self.dtype)
        for layer, seed, frozen in zip(model, self.seeds, self.frozen, strict=True):
            generator = torch.Generator().manual_seed(seed)
            for tensor in layer.state_dict(keep_vars=True).values():
                if not tensor.is_meta and tensor.is_floating_point():
                    tensor.data.copy_(torch.randn(tensor.shape, generator=generator))
                if frozen:
                    tensor.requires_grad_(False)
            if self.flat and isinstance(layer, nn.LSTM):
                _flatten(layer)
        for a, b in self.ties:
            _tie(model[a], model[b])
        return model


def _layer(kind: str) -> nn.Module:
    match kind:
        case "linear":
            return nn.Linear(WIDTH, WIDTH)
        case "head":
            return nn.Linear(WIDTH, ROWS, bias=False)
        case "back":
            return nn.Linear(ROWS, WIDTH, bias=False)
        case "embedding":
            return nn.Embedding(ROWS, WIDTH)
        case "lstm":
            return nn.LSTM(WIDTH, WIDTH)
    return nn.BatchNorm1d(WIDTH)


def _flatten(rnn: nn.LSTM) -> None:
    """All weights as windows on one buffer, as cuDNN has them."""
    weights = list(rnn.parameters())
    buffer = torch.cat([weight.detach().flatten() for weight in weights])
    for weight, part in zip(weights, buffer.split([weight.numel() for weight in weights]), strict=True):
        weight.data = part.view(weight.shape)


def _tie(a: nn.Module, b: nn.Module) -> None:
    assert isinstance(a.weight, nn.Parameter) and isinstance(b.weight, nn.Parameter)
    if a.weight.shape == b.weight.shape:
        b.weight = a.weight
    else:
        b.weight = nn.Parameter(a.weight.detach().t(), requires_grad=a.weight.requires_grad)


@st.composite
def recipes(draw: st.DrawFn, of: Recipe | None = None) -> Recipe:
    """Any recipe, or a variant of one: the same layers, some of its ties, and others."""
    layers = of.layers if of else tuple(draw(st.lists(st.sampled_from(SETTINGS), min_size=2, max_size=5)))
    count = len(layers)
    pairs = [(a, b) for b in range(count) for a in range(b) if {layers[a], layers[b]} in TIEABLE]
    drawn = draw(st.lists(st.sampled_from(pairs), max_size=1 if of else 3)) if pairs else []
    kept = draw(st.lists(st.sampled_from(of.ties), max_size=2)) if of and of.ties else []
    return Recipe(
        layers,
        (*kept, *drawn),
        tuple(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))),
        draw(st.sampled_from(DTYPES)),
        tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
        draw(st.booleans()),
    )


def tied_groups(model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Names of one memory, by the address of their first element; only whole ties and transposes are made here."""
    found: dict[object, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(tensor.data_ptr(), []).append((name, tensor))
    yield from found.values()
