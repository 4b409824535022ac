"""`convert --dequantise`, bit for bit what the libraries that run FP8 weights make of them.

transformers (finegrained_fp8.py), compressed-tensors (tensors, channels, groups and blocks), and DeepSeek's equation.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool

Tensors = dict[str, torch.Tensor]
OUT = "o.safetensors"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def fp8(*shape: int) -> torch.Tensor:
    """Codes of every kind, zeros of both signs and subnormal numbers among them, and no NaN."""
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.where(codes % 128 == 127, codes - 1, codes).view(torch.float8_e4m3fn)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def dequantised(path: Path, state: Tensors, **options: Any) -> Tensors:
    """What paramtool writes, after `verify` proved it."""
    save_file(state, path / "m.safetensors")
    paramtool.convert(path / "m.safetensors", path / OUT, dequantise=True, **options)
    proved = paramtool.verify(path / OUT, path / "m.safetensors")
    assert not proved.differences and proved.dequantised == sum("scale" not in name for name in state)
    return load_file(path / OUT)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(256, 384), (3, 128, 256), (128, 128)])
def test_blocks_as_transformers_has_them(shape: tuple[int, ...], dtype: str | None, tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    *lead, out, inside = shape
    state = {"m.weight": fp8(*shape), "m.weight_scale_inv": torch.rand(*lead, out // 128, inside // 128) + 0.01}
    found = dequantised(tmp_path, state, **({"dtype": dtype} if dtype else {}))
    wanted = getattr(torch, dtype) if dtype else None
    same(found["m.weight"], Fp8Dequantize(None)._dequantize_one(*state.values(), wanted))
    assert list(found) == ["m.weight"]


@pytest.mark.parametrize("shape", [(200, 384), (256, 300), (130, 131), (3, 300, 200), (1, 300)])
def test_blocks_that_are_cut_as_deepseek_has_them(shape: tuple[int, ...], tmp_path: Path) -> None:
    """inference/kernel.py, `weight_dequant_kernel`: the code (i, j) times the scale (i // 128, j // 128)."""
    *lead, out, inside = shape
    scales = torch.rand(*lead, -(-out // 128), -(-inside // 128))
    state = {"m.weight": fp8(*shape), "m.weight_scale_inv": scales}
    if out == 1:  # three scales of a row of 300 can be of 128, or of 100
        with pytest.raises(paramtool.errors.PlanError, match="weight_block_size"):
            dequantised(tmp_path, state)
        return
    wide = scales.repeat_interleave(128, -1).repeat_interleave(128, -2)[..., :out, :inside]
    same(dequantised(tmp_path, state)["m.weight"], state["m.weight"].float() * wide)


CT = [
    ("tensor", [1], {}), ("channel", [64, 1], {}), ("group", [64, 4], {"group_size": 32}),
    ("block", [1, 2], {"block_structure": [128, 64]}),
]  # fmt: skip


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("strategy", "shape", "more"), CT, ids=lambda one: str(one))
def test_compressed_tensors(
    strategy: str, shape: list[int], more: dict[str, Any], kind: torch.dtype, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed: pip install --group test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from compressed_tensors.compressors import NaiveQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, **more)
    state = {"weight": fp8(64, 128), "weight_scale": (torch.rand(*shape) + 0.01).to(kind)}
    expected = NaiveQuantizationCompressor.decompress(state, QuantizationScheme(targets=["Linear"], weights=args))
    folder = tmp_path / "m"
    folder.mkdir()
    config = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}},
              "quant_method": "compressed-tensors"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "x", "quantization_config": config}))
    (folder / "hf_quant_config.json").write_text("{}")
    save_file({f"m.{name}": one for name, one in state.items()} | {"m.input_scale": torch.ones(1)},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    paramtool.convert(folder, tmp_path / "o", dequantise=True)
    found = load_file(tmp_path / "o/model.safetensors")
    same(found["m.weight"], expected["weight"])
    assert list(found) == ["m.weight"] and not (tmp_path / "o/hf_quant_config.json").exists()
    assert json.loads((tmp_path / "o/config.json").read_text()) == {"model_type": "x"}
    proved = paramtool.verify(tmp_path / "o", folder)
    assert not proved.differences and proved.dequantised == 1


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16])
def test_rounded_products_are_counted(scale: torch.dtype, dtype: str | None, tmp_path: Path) -> None:
    """The product of a code and a scale is rounded, too, and is exact in float64."""
    state = {"m.weight": fp8(64, 64), "m.weight_scale": torch.rand(64, 1).to(scale) + 0.01}
    save_file(state, tmp_path / "m.safetensors")
    options: Any = {"dtype": dtype} if dtype else {}
    found = paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dequantise=True, **options)
    exact = state["m.weight"].double() * state["m.weight_scale"].double()
    expected = int((load_file(tmp_path / OUT)["m.weight"].double() != exact).sum())
    assert found.losses["m.weight"].rounded == expected > 0
