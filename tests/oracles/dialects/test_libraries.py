"""timm and open_clip open what `convert --to timm` and `--to torch-mha` write, and calculate the same.

They are in the environment of the zoo, and take seconds to import: `make oracles` runs these tests
(PARAMTOOL_EVERY_MODEL=1).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    ViTConfig,
    ViTForImageClassification,
)

from tests.examples import IS_EVERY_MODEL
from tests.oracles.dialects import converting
from tests.oracles.dialects.models import fill, quiet

PYTHON = Path(__file__).parents[3] / ".venv-oracles/zoo/bin/python"
SCRIPT = Path(__file__).with_name("run_libraries.py")
pytestmark = pytest.mark.skipif(
    not (IS_EVERY_MODEL and PYTHON.exists()),
    reason="make oracles, with the zoo",
)
CONFIG = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 5,
    "layer_norm_eps": 1e-6,
}
TIMM = {"img_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2, "num_classes": 5}
TEXT = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 96, "vocab_size": 30}
TEXT |= {"max_position_embeddings": 7, "bos_token_id": 28, "eos_token_id": 29, "pad_token_id": 0}
IMAGE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512, "image_size": 8, "patch_size": 4}
BOTH = {"num_hidden_layers": 2, "hidden_act": "gelu"}
CLIP = {
    "projection": 16,
    "image": {"layers": 2, "width": 128, "head_width": 64, "patch_size": 4, "image_size": 8},
    "text": {"context_length": 7, "vocab_size": 30, "width": 24, "heads": 3, "layers": 2},
}
WORDS = torch.tensor([[28, 3, 4, 5, 6, 7, 29], [28, 9, 9, 1, 2, 3, 29]])


def _pixels() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def _run(
    library: str, folder: Path, sizes: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What the library calculates with a file."""
    (folder / "sizes.json").write_text(json.dumps(sizes))
    save_file(dict(inputs), folder / "inputs.safetensors")
    done = subprocess.run([PYTHON, SCRIPT, library, folder], capture_output=True, text=True, check=False)
    if done.stderr.startswith("absent: "):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return load_file(folder / "outputs.safetensors")


def _far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _converted(model: nn.Module, folder: Path, dialect: str) -> Path:
    with quiet():
        model.save_pretrained(folder / "in")
    return converting.convert(folder / "in", folder / "out", dialect)


@pytest.mark.parametrize(
    ("library", "model", "config"),
    [
        ("vit", ViTForImageClassification, ViTConfig),
        ("deit", DeiTForImageClassificationWithTeacher, DeiTConfig),
    ],
)
def test_timm(library: str, model: Any, config: Any, tmp_path: Path) -> None:
    """The same logits; with the rows of each head together, which no shape tells apart, others."""
    made = model(config(**CONFIG)).eval()
    fill(made)
    out = _converted(made, tmp_path, "timm")
    inputs = {"pixels": _pixels()}
    with torch.no_grad():
        expected = made(pixel_values=inputs["pixels"]).logits
    assert _far(_run(library, out, TIMM, inputs)["logits"], expected) < 1e-5
    state = load_file(out / "model.safetensors")
    for name in [name for name in state if name.endswith("attn.qkv.weight")]:
        state[name] = state[name].reshape(3, 3, 8, -1).transpose(0, 1).reshape(state[name].shape).contiguous()
    save_file(state, out / "model.safetensors")
    assert _far(_run(library, out, TIMM, inputs)["logits"], expected) > 1e-3


def test_open_clip(tmp_path: Path) -> None:
    """Both towers; the projections are transposed there."""
    made = CLIPModel(CLIPConfig(text_config=TEXT | BOTH, vision_config=IMAGE | BOTH, projection_dim=16)).eval()
    fill(made)
    out = _converted(made, tmp_path, "torch-mha")
    found = _run("clip", out, CLIP, {"pixels": _pixels(), "words": WORDS})
    with torch.no_grad():
        image = made.get_image_features(pixel_values=_pixels())
        text = made.get_text_features(input_ids=WORDS)
    for expected, one in ((image, found["image"]), (text, found["text"])):
        assert _far(one, getattr(expected, "pooler_output", expected)) < 1e-5
