"""Tensors of another rank, scalars and tensors without elements: a table that they do not fit says nothing of them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import SAME
from tests.examples import IS_WHOLE

Arrays = dict[str, np.ndarray]
ROUNDS = 40 if IS_WHOLE else 16
SIZES = {
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10, "num_experts": 2, "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 6,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN = {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]}
ATTENTION = {
    "model.embed_tokens.weight": (10, 8), "model.norm.weight": (8,), "lm_head.weight": (10, 8),
    "model.layers.0.input_layernorm.weight": (8,), "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8), "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8), "model.layers.0.self_attn.o_proj.weight": (8, 8),
}  # fmt: skip
MLP = "model.layers.0.mlp."
DENSE = {"gate_proj.weight": (12, 8), "up_proj.weight": (12, 8), "down_proj.weight": (8, 12)}
EXPERTS = {"gate_up_proj": (2, 12, 8), "down_proj": (2, 8, 6)}
EACH = {"gate_proj.weight": (6, 8), "up_proj.weight": (6, 8), "down_proj.weight": (8, 6)}
MODELS = {
    "llama": (LLAMA, ATTENTION | {MLP + name: shape for name, shape in DENSE.items()}),
    "stacked": (QWEN, ATTENTION | {f"{MLP}experts.{name}": shape for name, shape in EXPERTS.items()}),
    "apart": (QWEN, ATTENTION | {f"{MLP}experts.{k}.{name}": shape for k in range(2) for name, shape in EACH.items()}),
}


def _made(path: Path, model: str, arrays: Arrays, *, config: bool) -> Path:
    path.mkdir()
    save_file(arrays, path / "model.safetensors")
    if config:
        (path / "config.json").write_text(json.dumps(SIZES | MODELS[model][0]))
    return path


def _arrays(model: str) -> Arrays:
    numbers = np.random.default_rng(0)
    return {name: numbers.standard_normal(shape, np.float32) for name, shape in MODELS[model][1].items()}


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first numbers of an array in another shape, which has no more of them."""
    return array.ravel()[: int(np.prod(shape))].reshape(shape).copy()


def _check(a: tuple[Path, Arrays], b: tuple[Path, Arrays]) -> None:
    """NumPy says which names hold the same numbers in the same shape; both directions are compared."""
    for (one, mine), (other, theirs) in ((a, b), (b, a)):
        found = diff(one, other).tensors
        same = {name for tensor in found if tensor.kind == SAME for name in tensor.b}
        assert same == {name for name in mine.keys() & theirs if np.array_equal(mine[name], theirs[name])}
        assert {name for tensor in found for name in (*tensor.a, *tensor.b)} == mine.keys() | theirs.keys()


@pytest.mark.sample(3)
@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize(
    ("model", "name", "shape"),
    [
        ("llama", MLP + "up_proj.weight", (96,)),
        ("llama", "model.layers.0.self_attn.v_proj.weight", (0, 8)),
        ("llama", "model.layers.0.self_attn.v_proj.weight", ()),
        ("stacked", f"{MLP}experts.down_proj", ()),
        ("stacked", f"{MLP}experts.gate_up_proj", (0, 12, 8)),
        ("stacked", "", ()),
        ("stacked", "", (0,)),
        ("stacked", "", (0, 8)),
        ("apart", "", ()),
        ("apart", "", (0, 0)),
    ],
)
def test_a_shape_that_no_table_fits(
    tmp_path: Path, model: str, name: str, shape: tuple[int, ...], config: bool
) -> None:
    arrays = _arrays(model)
    other = {key: _shaped(array, shape) if key == name or not name else array for key, array in arrays.items()}
    for against in dict.fromkeys((model, "stacked")):
        base = _made(tmp_path / against, against, held := _arrays(against), config=True)
        _check((base, held), (_made(tmp_path / f"{against} b", model, other, config=config), other))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
def test_shapes_of_any_rank(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    for k in range(ROUNDS // 4):
        model, against = random.choice(list(MODELS)), random.choice(list(MODELS))
        arrays, share = _arrays(model), random.choice((0.1, 0.5, 1.0))
        other = {key: _any(array, random) if random.random() < share else array for key, array in arrays.items()}
        a = _made(tmp_path / f"{k}a", against, held := _arrays(against), config=random.random() < 0.7)
        _check((a, held), (_made(tmp_path / f"{k}b", model, other, config=random.random() < 0.7), other))


def _any(array: np.ndarray, random: Random) -> np.ndarray:
    shapes = [
        (array.size,), (0, *array.shape[1:]), (*array.shape[:-1], 0), (1, *array.shape),
        tuple(random.choice((0, 1)) for _ in range(random.randint(0, 4))),
    ]  # fmt: skip
    return _shaped(array, random.choice(shapes))
