"""`inspect` counts the parameters of a quantised model as its library's float model has them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.hostile.command import quick

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def base() -> nn.Sequential:
    """Layers with biases, a norm, and sizes that no group and no pack of codes hides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.LayerNorm(256), nn.Linear(256, 64, bias=False))


CONFIG: dict[str, Any] = {}
"""The `quantization_config` that the library would write: the width of packed codes is in it alone."""


def count(path: Path) -> int:
    """Parameters, as `inspect --json` counts them."""
    ran = quick("inspect", path.name, "--json", cwd=path.parent)
    assert ran.code == 0, ran
    found: int = json.loads(ran.out)["parameters"]
    return found


def by_bitsandbytes(kind: str) -> Callable[[nn.Sequential], dict[str, torch.Tensor]]:
    def quantised(model: nn.Sequential) -> dict[str, torch.Tensor]:
        bnb: Any = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install --group test")
        for name, layer in [*model.named_children()]:
            if not isinstance(layer, nn.Linear):
                continue
            sizes = (layer.in_features, layer.out_features)
            has_bias = layer.bias is not None
            if kind == "int8":
                made = bnb.nn.Linear8bitLt(*sizes, bias=has_bias, has_fp16_weights=False)
            else:
                made = bnb.nn.Linear4bit(*sizes, bias=has_bias, quant_type=kind, compute_dtype=torch.float32)
            made.load_state_dict(layer.state_dict())
            setattr(model, name, made.to("cpu"))
        return dict(model.state_dict())

    return quantised


def by_torchao(name: str, **options: Any) -> Callable[[nn.Sequential], dict[str, torch.Tensor]]:
    def quantised(model: nn.Sequential) -> dict[str, torch.Tensor]:
        quantization: Any = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        quantization.quantize_(model, getattr(quantization, name)(**options))
        return dict(model.state_dict())

    return quantised


def by_compressed_tensors(scheme: str) -> Callable[[nn.Sequential], dict[str, torch.Tensor]]:
    def quantised(model: nn.Sequential) -> dict[str, torch.Tensor]:
        library: Any = pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
        from compressed_tensors.quantization import (
            QuantizationConfig,
            apply_quantization_config,
            preset_name_to_scheme,
        )

        made = preset_name_to_scheme(scheme, ["Linear"])
        config = QuantizationConfig(config_groups={"group_0": made}, quantization_status="compressed")
        apply_quantization_config(model, config)
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                with torch.no_grad():
                    layer.weight_scale.fill_(0.01)
        compressor = library.ModelCompressor(quantization_config=config)
        compressor.compress_model(model)
        CONFIG.update(config.model_dump(mode="json"))
        return dict(model.state_dict())

    return quantised


MAKERS: dict[str, Callable[[nn.Sequential], dict[str, torch.Tensor]]] = {
    "bitsandbytes NF4": by_bitsandbytes("nf4"),
    "bitsandbytes FP4": by_bitsandbytes("fp4"),
    "bitsandbytes int8": by_bitsandbytes("int8"),
    "torchao int8": by_torchao("Int8WeightOnlyConfig"),
    "torchao float8": by_torchao("Float8WeightOnlyConfig"),
    "torchao int4, unpacked": by_torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4),
    "compressed-tensors W8A16": by_compressed_tensors("W8A16"),
    "compressed-tensors W4A16": by_compressed_tensors("W4A16"),
    "compressed-tensors FP8": by_compressed_tensors("FP8"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_quantised_model_has_the_parameters_of_the_float_one(kind: str, tmp_path: Path) -> None:
    """In a torch file, and in safetensors where the library's state dict has plain tensors alone."""
    expected = sum(one.numel() for one in base().parameters())
    CONFIG.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = MAKERS[kind](base())
    torch.save(state, tmp_path / "m.pt")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": CONFIG} if CONFIG else {}))
    assert count(tmp_path / "m.pt") == expected
    if all(type(value) in (torch.Tensor, nn.Parameter) or "bitsandbytes" in kind for value in state.values()):
        save_file(
            {name: value.detach().as_subclass(torch.Tensor) for name, value in state.items()},
            tmp_path / "m.safetensors",
        )
        assert count(tmp_path / "m.safetensors") == expected
