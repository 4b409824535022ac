"""What changed under a rename: figures, and not only in A and only in B; torch and NumPy measure it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import ADDED, CHANGED, LAYOUT, REMOVED, RENAMED, ROUNDED, SAME


def model() -> dict[str, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return {name: torch.randn_like(one) for name, one in nn.TransformerEncoder(layer, 3).state_dict().items()}


def compared(place: Path, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> Diffed:
    for side, state in (("a", a), ("b", b)):
        save_file(
            {name: one.clone(memory_format=torch.contiguous_format) for name, one in state.items()},
            place / f"{side}.safetensors",
        )
    return diff(place / "a.safetensors", place / "b.safetensors")


@pytest.mark.parametrize("share", ["one element", "one module", "every tensor"])
def test_a_fine_tune_under_a_prefix(share: str, tmp_path: Path) -> None:
    """As `DistributedDataParallel` puts `module.` in front of all names."""
    a = model()
    tuned = {name: one.clone() for name, one in a.items()}
    chosen = {"one element": ["layers.1.linear1.weight"], "every tensor": [*a]}.get(
        share, [name for name in a if "linear1" in name]
    )
    for name in chosen:
        tuned[name].view(-1)[: 1 if share == "one element" else None] += 0.25
    found = compared(tmp_path, a, {f"module.{name}": one for name, one in tuned.items()})
    changed = {one.a[0]: one for one in found.tensors if one.kind == CHANGED}
    assert changed.keys() == {*chosen} and {one.kind for one in found.tensors} <= {CHANGED, RENAMED}
    for name, one in changed.items():
        assert one.b == (f"module.{name}",) and one.change is not None
        assert one.change.elements == int((a[name] != tuned[name]).sum())
        assert one.change.largest == pytest.approx(float((a[name].double() - tuned[name].double()).abs().max()))


def test_other_models_are_not_measured(tmp_path: Path) -> None:
    """Names of which most show no place, and shapes that differ, stay in A and in B."""
    other = {f"net.{k}.w": torch.randn(32, 32) for k in range(4)}
    found = compared(tmp_path, model(), other)
    assert {one.kind for one in found.tensors} == {ADDED, REMOVED}


def test_a_fresh_adapter_in_memory_and_in_its_file(tmp_path: Path) -> None:
    """PEFT's names: `default` is only in memory.  lora_B is zeros before training."""
    a = {f"h.{k}.q_proj.lora_A.weight": torch.randn(4, 32) for k in range(3)}
    a |= {f"h.{k}.q_proj.lora_B.weight": torch.zeros(32, 4) for k in range(3)}
    b = {name.replace(".weight", ".default.weight"): one for name, one in a.items()}
    for found in (compared(tmp_path, a, b), compared(tmp_path, b, a)):
        assert found.is_same and {one.kind for one in found.tensors} == {RENAMED}


def fused(a: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Queries, keys and values in one tensor of each layer."""
    found = {}
    for k in range(4):
        for end in ("weight", "bias"):
            found[f"h.{k}.attn.qkv_proj.{end}"] = torch.cat([a[f"h.{k}.attn.{name}_proj.{end}"] for name in "qkv"])
    return found


def test_one_layer_of_fused_tensors_changed(tmp_path: Path) -> None:
    """By the map of the other layers: how many elements, and how far."""
    a = {f"h.{k}.attn.{name}_proj.weight": torch.randn(32, 32) for k in range(4) for name in "qkv"}
    a |= {f"h.{k}.attn.{name}_proj.bias": torch.randn(32) for k in range(4) for name in "qkv"}
    b = fused(a)
    b["h.2.attn.qkv_proj.weight"][40:42] += 0.5
    for found, names in ((compared(tmp_path, a, b), {f"h.2.attn.{name}_proj.weight" for name in "qkv"}),
                         (compared(tmp_path, b, a), {"h.2.attn.qkv_proj.weight"})):  # fmt: skip
        rows = [one for one in found.tensors if one.kind == CHANGED]
        assert {name for one in rows for name in one.a} == names and not found.is_same
        assert {one.kind for one in found.tensors} <= {CHANGED, LAYOUT}
        assert sum(one.change.elements for one in rows if one.change) == 64
        assert max(one.change.largest or 0 for one in rows if one.change) == pytest.approx(0.5)


@pytest.mark.parametrize("size", [16, 32])
def test_one_kernel_of_transposed_ones_changed(size: int, tmp_path: Path) -> None:
    a = {f"net.{k}.weight": torch.randn(32, size) for k in range(4)}
    b = {f"params/Dense_{k}/kernel": a[f"net.{k}.weight"].T.contiguous() for k in range(4)}
    b["params/Dense_1/kernel"][3, :5] += 0.25
    found = compared(tmp_path, a, b)
    (one,) = (one for one in found.tensors if one.kind != LAYOUT)
    assert one.kind == CHANGED and one.a == ("net.1.weight",) and one.how.startswith("transposed, as 'params/Dense_")
    assert one.change is not None and one.change.elements == 5 and one.change.largest == pytest.approx(0.25)


def test_layers_numbered_otherwise_are_not_measured_by_their_numbers(tmp_path: Path) -> None:
    """0, 2, 4, 6, 8 as 0 to 4: layer 4 of B is 8 of A, and not 4."""
    a = {f"{2 * k}.weight": torch.randn(16, 16) for k in range(5)}
    b = {f"layers.{k}.weight": a[f"{2 * k}.weight"].clone() for k in range(5)}
    for k in (2, 4):
        b[f"layers.{k}.weight"] += 0.01
    for one in compared(tmp_path, a, b).tensors:
        assert one.kind != CHANGED or int(one.a[0][0]) == 2 * int(one.b[0][7]), (one.a, one.b)


@pytest.mark.parametrize("width", [16, 24])
def test_fresh_biases_of_layers_numbered_otherwise(width: int, tmp_path: Path) -> None:
    a, b = {}, {}
    for k in range(4):
        a |= {f"{2 * k}.weight": torch.randn(width, 16), f"{2 * k}.bias": torch.zeros(width)}
        b |= {f"params/Dense_{k}/kernel": a[f"{2 * k}.weight"].T, f"params/Dense_{k}/bias": torch.zeros(width)}
    for found in (compared(tmp_path, a, b), compared(tmp_path, b, a)):
        assert found.is_same and not found.notes, [(one.kind, one.a, one.b) for one in found.tensors]


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_a_constant_layer_by_the_map_of_the_others(kind: str, value: float, tmp_path: Path) -> None:
    """As the zero convolutions of ControlNet."""
    shape, order = ((32, 16), (1, 0)) if kind == "dense" else ((8, 16, 3, 3), (2, 3, 1, 0))
    a = {f"net.{k}.weight": torch.randn(shape) for k in range(4)}
    a["net.2.weight"] = torch.full(shape, value)
    found = compared(tmp_path, a, {f"params.layers.{name[4]}.kernel": one.permute(order) for name, one in a.items()})
    assert {one.kind for one in found.tensors} == {LAYOUT} and found.is_same


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.0])
def test_a_cast_under_another_name_with_a_nan(number: float, tmp_path: Path) -> None:
    """torch writes another NaN of bfloat16 than other libraries do."""
    one = torch.randn(8, 8)
    one[3, 2] = number
    for a, b in ((one.bfloat16(), one.bfloat16().float()), (one, one.bfloat16())):
        found = compared(tmp_path, {"a": a}, {"b": b})
        assert [(made.a, made.b) for made in found.tensors] == [(("a",), ("b",))]
        assert found.judge(atol=0.1)


def test_a_cast_of_its_own_beside_another_copy(tmp_path: Path) -> None:
    """Numbers of training in float32, and those that are served, in one file; and both as they are served."""
    one = torch.randn(8, 8)
    a, b = {"w": one, "served": one.bfloat16()}, {"w": one.bfloat16(), "served": one.bfloat16()}
    found = compared(tmp_path, a, b)
    assert {made.b[0]: made.kind for made in found.tensors} == {"w": ROUNDED, "served": SAME}
    assert found.judge(atol=0.1)
