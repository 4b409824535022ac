"""Where the parts come from that a proof runs: our own equations, or paramtool.

Both give {name: tensor} of a whole model in which parts have one name everywhere: q_proj, k_proj, v_proj, gate_proj and
up_proj, beside the fused weight.  A proof that holds of ours, and whose wrong layouts are far off, is one
that paramtool's tables can fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tests.oracles.dialects import converting
from tests.oracles.dialects.equations import GATED, put, taken
from tests.oracles.dialects.models import Attention, Family, saved, tensors
from tests.oracles.dialects.reference import State, attention_modules, sizes

PARTS = ("q_proj", "k_proj", "v_proj")


def fused_name(layout: str) -> str:
    """What q, k and v are called when they are fused in a layout."""
    return converting.WORDS[layout].fused if layout in converting.WORDS else "qkv_proj"


class Source(Protocol):
    """Who does the conversion."""

    def apart(self, layout: str) -> State:
        """The model with q, k and v apart, its fused weights read as if they had a layout."""

    def together(self, layout: str) -> State:
        """The model with q, k and v fused in a layout."""

    def knows(self, layout: str) -> bool:
        """Whether it can be asked for a layout."""


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
                    made |= {f"{module}.{part}_proj.{kind}": _linear(value, axis) for part, value in found.items()}
        return made

    def together(self, layout: str) -> State:
        made = dict(self.state)
        for module, attention in self._each():
            for kind in ("weight", "bias"):
                names = {part: f"{module}.{name}.{kind}" for part, name in zip("qkv", attention.apart, strict=True)}
                if names["q"] in made:
                    parts = {part: made.pop(name) for part, name in names.items()}
                    made[f"{module}.{fused_name(layout)}.{kind}"] = put(parts, layout, sizes(attention))
        return made

    def knows(self, layout: str) -> bool:
        return True

    def of_attention(self, state: State) -> State:
        """What is inside the attention modules of the family, which are not all of some models."""
        modules = tuple(f"{module}." for module, _ in self._each())
        return {name: value for name, value in state.items() if name.startswith(modules)}

    def in_file(self, state: State) -> State:
        """Without the names that a file of transformers leaves out, because they are tied to another."""
        tied = set(getattr(self.model, "all_tied_weights_keys", {}))
        buffers = {name for name, _ in self.model.named_buffers()}
        return {name: value for name, value in state.items() if name not in tied - buffers}


class Paramtool:
    """The commands, on a folder that transformers 5 saved."""

    def __init__(self, family: Family, model: nn.Module, folder: Path) -> None:
        self.family, self.folder = family, folder
        self.input = saved(model, folder / "input", "transformers-5")
        self.heads = self._facts()

    def _facts(self) -> str:
        """The facts of its attention, for those layouts that need more than a config has."""
        one = self.family.attention[0] if self.family.attention else None
        return f" heads={one.heads} kv_heads={one.kv_heads}" if one else ""

    def _word(self, layout: str) -> str:
        """The same layout where the family's weights are transposed."""
        turned = bool(self.family.attention) and self.family.attention[0].transposed
        return f"transposed {layout}" if turned else layout

    def _more(self, layout: str) -> dict[str, Any]:
        facts = converting.WORDS[self._word(layout)].facts
        return {"spec": facts + self.heads} if facts else {}

    def _at(self, layout: str) -> dict[str, Any]:
        """The place, for a layout that config.json contradicts: it is taken there whatever is known."""
        own = self.family.attention[0]
        return {} if layout == own.layout else {"at": [f"*.{own.fused}"]}

    def apart(self, layout: str) -> State:
        return tensors(self._once(converting.unfuse, self.input, f"apart {layout}", layout, **self._at(layout)))

    def together(self, layout: str) -> State:
        return tensors(self._once(converting.fuse, self.input, f"together {layout}", layout))

    def unfused(self, words: str, **more: Any) -> State:
        """The model with what one of `converting.WORDS` names taken apart."""
        out = self.folder / f"unfused {words}"
        if self.family.gated and words in GATED:  # a name such as Wi says nothing, so its place is said
            more = {"at": [f"*.{self.family.gated.fused}"], **more}
        if self.family.name == "JetMoE" and "linear" in words:  # its attention has stacks, too
            more = {"at": ["*.mlp"], **more}
        if converting.WORDS[words].layout.startswith(("experts-", "kv-")):  # also one that config.json does not say
            more = {
                "at": ["*.experts", "*.self_attention.experts", "*.mlp", "*.experts.mlp", "*.self_attention"],
                **more,
            }
        return tensors(out if out.exists() else converting.unfuse(self.input, out, words, **more))

    def restored(self, words: str) -> Path:
        """What was taken apart so, fused again."""
        return converting.fuse(self.folder / f"unfused {words}", self.folder / f"restored {words}", words)

    def fused_again(self, layout: str) -> Path:
        """What was taken apart, fused again."""
        self.apart(layout)
        return self._once(converting.fuse, self.folder / f"apart {layout}", "fused again", layout)

    def apart_again(self, layout: str) -> Path:
        """What was fused, taken apart again: the file says how."""
        self.together(layout)
        return converting.unfuse(self.folder / f"together {layout}", self.folder / "apart again")

    def _once(self, command: Any, folder: Path, name: str, layout: str, **more: Any) -> Path:
        out = self.folder / name
        return out if out.exists() else command(folder, out, self._word(layout), **self._more(layout), **more)

    def knows(self, layout: str) -> bool:
        return self._word(layout) in converting.WORDS


def _linear(value: torch.Tensor, axis: int) -> torch.Tensor:
    """A part as a Linear has it, [out, in], of a weight that is fused along an axis."""
    return value.T.contiguous() if axis else value


def fused(attention: Attention, layout: str) -> Attention:
    """The same attention as one weight."""
    return replace(attention, fused=fused_name(layout), layout=layout)


def parts_apart(state: State, module: str) -> dict[str, torch.Tensor]:
    """q, k and v of a module whose parts are apart, [out, in], and their biases."""
    found = {}
    for part, name in zip("qkv", PARTS, strict=True):
        found[part] = state[f"{module}.{name}.weight"]
        if (bias := state.get(f"{module}.{name}.bias")) is not None:
            found[f"{part}.bias"] = bias
    return found


def in_proj(state: State, module: str, layout: str) -> dict[str, torch.Tensor]:
    """The fused weight and bias of a module, as `torch.nn.MultiheadAttention` and MXNet's operators take them."""
    at = f"{module}.{fused_name(layout)}"
    return {"in_proj": state[f"{at}.weight"], "in_proj.bias": state[f"{at}.bias"]}


def listed(state: State, module: str) -> dict[str, torch.Tensor]:
    """gate, up and down [experts, ...], and their biases, of a state with a list of experts."""
    found = {}
    for part in ("gate", "up", "down"):
        for kind, mark in (("weight", ""), ("bias", ".bias")):
            rows: list[torch.Tensor] = []
            while (tensor := state.get(f"{module}.{len(rows)}.{part}_proj.{kind}")) is not None:
                rows.append(tensor)
            if rows:
                found[part + mark] = torch.stack(rows)
    return found
