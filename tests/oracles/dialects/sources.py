"""Where the parts come from that a proof runs: our own equations, or paramtool.

Both give {name: tensor} of a whole model in which parts have one name everywhere: q_proj, k_proj, v_proj beside the
fused weight, gate_proj and up_proj likewise.  A proof that holds of ours, and whose wrong layouts are far off, is one
that paramtool's tables can fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from tests.oracles.dialects import converting
from tests.oracles.dialects.equations import put, taken
from tests.oracles.dialects.models import Attention, Experts, Family, Gated, saved, tensors
from tests.oracles.dialects.reference import State, attention_modules, experts_of, gate_and_up, sizes

PARTS = ("q_proj", "k_proj", "v_proj")
FUSED = "qkv_proj"
"""What paramtool calls q, k and v that it fuses."""


class Source(Protocol):
    """Who does the conversion."""

    def apart(self, layout: str) -> State:
        """The model with q, k and v apart, its fused weights read as if they had a layout."""

    def together(self, layout: str) -> State:
        """The model with q, k and v fused in a layout."""


class Ours:
    """Our equations."""

    def __init__(self, family: Family, model: nn.Module) -> None:
        self.family, self.model, self.state = family, model, model.state_dict()

    def _each(self) -> Iterable[tuple[str, Attention]]:
        for attention in self.family.attention:
            for module in attention_modules(self.model, attention):
                yield module, attention

    def apart(self, layout: str) -> State:
        made = dict(self.state)
        for module, attention in self._each():
            for kind in ("weight", "bias"):
                name = f"{module}.{attention.fused}.{kind}"
                if name in made:
                    axis = int(attention.transposed and kind == "weight")
                    found = taken(made.pop(name), layout, sizes(attention), axis)
                    made |= {f"{module}.{part}_proj.{kind}": value for part, value in found.items()}
        return made

    def together(self, layout: str) -> State:
        made = dict(self.state)
        for module, attention in self._each():
            for kind in ("weight", "bias"):
                names = {part: f"{module}.{name}.{kind}" for part, name in zip("qkv", attention.apart, strict=True)}
                if names["q"] in made:
                    parts = {part: made.pop(name) for part, name in names.items()}
                    made[f"{module}.{FUSED}.{kind}"] = put(parts, layout, sizes(attention))
        return made


class Paramtool:
    """The commands, on a folder that transformers 5 saved."""

    def __init__(self, family: Family, model: nn.Module, folder: Path) -> None:
        self.folder = folder
        self.input = saved(model, folder / "input", "transformers-5")

    def apart(self, layout: str) -> State:
        return tensors(converting.unfuse(self.input, self.folder / f"apart {layout}", layout))

    def together(self, layout: str) -> State:
        return tensors(converting.fuse(self.input, self.folder / f"together {layout}", layout))


def plain(attention: Attention) -> Attention:
    """The same attention with q, k and v apart, under their usual names."""
    return replace(attention, fused="", apart=PARTS)


def fused(attention: Attention, layout: str) -> Attention:
    """The same attention as one weight."""
    return replace(attention, fused=FUSED, layout=layout)


def parts_apart(state: State, attention: Attention, module: str) -> dict[str, torch.Tensor]:
    """q, k and v of a module whose parts are apart, [out, in], and their biases."""
    found = {}
    for part, name in zip("qkv", PARTS, strict=True):
        weight = state[f"{module}.{name}.weight"]
        found[part] = weight.T if attention.transposed else weight
        if (bias := state.get(f"{module}.{name}.bias")) is not None:
            found[f"{part}.bias"] = bias
    return found


def in_proj(state: State, module: str) -> dict[str, torch.Tensor]:
    """What `torch.nn.MultiheadAttention` takes of a module that was fused plainly."""
    return {"in_proj": state[f"{module}.{FUSED}.weight"], "in_proj.bias": state[f"{module}.{FUSED}.bias"]}


def listed(state: State, experts: Experts, module: str) -> dict[str, torch.Tensor]:
    """gate, up and down [experts, ...] of a file with a list of experts."""
    found = {}
    for part, name in experts.names.items():
        rows = []
        while (tensor := state.get(f"{module}.{name.format(len(rows))}")) is not None:
            rows.append(tensor)
        found[part] = torch.stack(rows)
    return found


def in_version_4(module: str) -> str:
    """The name of a module with experts in a file of transformers-4, of those families that were renamed."""
    return re.sub(r"\.mlp\.experts$", ".block_sparse_moe.experts", module)


__all__ = ["Experts", "Gated", "Ours", "Paramtool", "Source", "experts_of", "gate_and_up"]
