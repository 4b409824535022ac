"""The two forms in which transformers saves a model, and what paramtool makes of each.

`save_pretrained(save_original_format=True)` writes the names and stacks that version 4 had, False those that version 5
has in memory.  Two things of the first are transformers' own faults, and are said here (5.23.0):

- OLMo-Hybrid: three convolutions of unequal sizes come out as three equal thirds (core_model_loading.py 187: the
  reverse of Concatenate is Chunk).
- Qwen3-VL-MoE: the experts stay as they are in memory, because Transpose(check_dims=True) compares them with the model
  in both directions; the files that people have are [experts, in, out].
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from tests.oracles.dialects import converting
from tests.oracles.dialects.models import quiet, saved, tensors

Tensors = Mapping[str, torch.Tensor]
FOUR, FIVE = "transformers-4", "transformers-5"


class Wrong(Exception):
    """A verdict that should not be."""


@dataclass(frozen=True)
class Forms:
    """A model in the two forms."""

    model: nn.Module
    four: Path
    five: Path

    @property
    def changed(self) -> int:
        """How many tensors of version 5 are no tensor of version 4, by their bytes, whatever their names."""
        there = {_key(tensor) for tensor in tensors(self.four).values()}
        return sum(_key(tensor) not in there for tensor in tensors(self.five).values())


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), raw(tensor)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def both(model: nn.Module, folder: Path) -> Forms:
    """The model, saved twice."""
    return Forms(model, saved(model, folder / FOUR, FOUR), saved(model, folder / FIVE, FIVE))


def same(expected: Tensors, found: Tensors, what: str) -> None:
    """Wrong, where names, types, shapes or bytes differ."""
    if expected.keys() != found.keys():
        lacks, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise Wrong(f"{what}: lacks {lacks[:3]}, has {more[:3]}")
    for name, tensor in expected.items():
        other = found[name]
        if tensor.dtype != other.dtype or tensor.shape != other.shape:
            raise Wrong(f"{what}: {name!r} is {other.dtype} {list(other.shape)}, not {list(tensor.shape)}")
        if raw(tensor) != raw(other):
            raise Wrong(f"{what}: {name!r} has other bytes")


def opens(model: nn.Module, folder: Path, what: str) -> None:
    """Wrong, unless transformers opens a folder as this very model, without complaints."""
    kind: Any = type(model)
    with quiet():
        found, told = kind.from_pretrained(folder, output_loading_info=True)
    if wrong := {key: sorted(map(str, names))[:3] for key, names in told.items() if names}:
        raise Wrong(f"{what}: from_pretrained says {wrong}")
    same(model.state_dict(), found.state_dict(), f"{what}, opened")


def right_four(forms: Forms, key: str) -> dict[str, torch.Tensor]:
    """What a file of version 4 holds, where transformers writes another one."""
    found = tensors(forms.four)
    for name, tensor in tensors(forms.five).items():
        if repaired := REPAIRED.get(key):
            found |= repaired(name, tensor, forms.model.config)
    return found


def _olmo(name: str, tensor: torch.Tensor, config: Any) -> dict[str, torch.Tensor]:
    if not name.endswith("linear_attn.conv1d.weight"):
        return {}
    of_k = config.linear_num_key_heads * config.linear_key_head_dim
    of_v = config.linear_num_value_heads * config.linear_value_head_dim
    at = name.removesuffix("conv1d.weight")
    parts = tensor.split([of_k, of_k, of_v])
    return {f"{at}{part}_conv1d.weight": value for part, value in zip("qkv", parts, strict=True)}


def _qwen3_vl(name: str, tensor: torch.Tensor, config: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.transpose(1, 2).contiguous()} if ".mlp.experts." in name else {}


REPAIRED: Mapping[str, Callable[[str, torch.Tensor, Any], dict[str, torch.Tensor]]] = {
    "olmo_hybrid": _olmo,
    "qwen3_vl_moe": _qwen3_vl,
}
"""{key of the table: the tensors of version 4 that transformers writes wrong, from one of version 5}"""


def people_have(forms: Forms, key: str, folder: Path) -> Path:
    """A folder of version 4 as it should be, where transformers writes another one."""
    shutil.copytree(forms.four, folder)
    found = {name: value.contiguous() for name, value in right_four(forms, key).items()}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def square(forms: Forms, folder: Path) -> str:
    """Qwen3-VL-MoE with square stacks: nothing tells which form they are, and they are refused; empty if they are not.

    transformers takes them as they are.
    """
    five = tensors(forms.five)
    if not any(tensor.shape[1] == tensor.shape[2] for name, tensor in five.items() if ".mlp.experts." in name):
        return ""
    for source, target in ((people_have(forms, "qwen3_vl_moe", folder / "old"), FIVE), (forms.five, FOUR)):
        converting.refusal(converting.convert, source, out=folder / "refused", target=target)
    return "ok: refused"


def between(forms: Forms, key: str, folder: Path) -> str:
    """ok, if paramtool makes each form of the other, and the same bytes again on the way back; Wrong if it does not."""
    if key == "qwen3_vl_moe" and (verdict := square(forms, folder)):
        return verdict
    four, five = right_four(forms, key), tensors(forms.five)
    made_four = converting.convert(forms.five, folder / "made 4", FOUR)
    same(four, tensors(made_four), "transformers-5 to transformers-4")
    source = made_four if key in REPAIRED else forms.four
    made_five = converting.convert(source, folder / "made 5", FIVE)
    same(five, tensors(made_five), "transformers-4 to transformers-5")
    same(four, tensors(converting.convert(made_five, folder / "back 4", FOUR)), "there and back")
    same(five, tensors(converting.convert(made_four, folder / "back 5", FIVE)), "back and there")
    for made in (made_four, made_five):
        opens(forms.model, made, made.name)
    return "ok"
