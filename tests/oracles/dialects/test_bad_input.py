"""What contradicts itself is refused by name, with nothing written: configs, parts, biases, experts, dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.oracles.dialects import converting
from tests.oracles.dialects.models import BY_NAME, saved, tensors
from tests.oracles.real_models import single_thread

__all__ = ["single_thread"]  # a fixture
pytestmark = pytest.mark.skipif(not converting.FORMS, reason="this paramtool has no dialects")
State = dict[str, torch.Tensor]
Change = Callable[[State, dict[str, Any]], None]


def folder(name: str, where: Path, change: Change, form: str = "transformers-4", **settings: Any) -> Path:
    """A model's folder with something wrong in it."""
    made = saved(BY_NAME[name].build(**settings), where / "in", form)
    state, path = tensors(made), made / "config.json"
    config = json.loads(path.read_text())
    change(state, config)
    path.write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in state.items()}, made / "model.safetensors", {"format": "pt"})
    return made


def sets(**values: Any) -> Change:
    """Other facts."""
    return lambda state, config: config.update(values)


def drops(*names: str) -> Change:
    def change(state: State, config: dict[str, Any]) -> None:
        for name in names:
            del state[name]

    return change


def casts(name: str) -> Change:
    def change(state: State, config: dict[str, Any]) -> None:
        state[name] = state[name].half()

    return change


def adds(name: str, *shape: int) -> Change:
    return lambda state, config: state.update({name: torch.ones(shape)})


def copies(old: str, new: str) -> Change:
    """Tensors once more, under another name."""

    def change(state: State, config: dict[str, Any]) -> None:
        state.update({name.replace(old, new): value + 1 for name, value in state.items() if old in name})

    return change


Q, K, V = (f"model.layers.1.self_attn.{part}_proj" for part in "qkv")
EXPERT = "model.layers.1.block_sparse_moe.experts"
FUSE = [
    ("heads that do not divide", sets(num_attention_heads=5), "heads"),
    ("a config of another model", sets(num_attention_heads=12, num_key_value_heads=12, head_dim=4), "heads"),
    ("a part is missing", drops(f"{K}.weight", f"{K}.bias"), "k_proj"),
    ("a bias on two of three", drops(f"{V}.bias"), "bias"),
    ("another dtype", casts(f"{V}.weight"), "float16"),
]


@pytest.mark.parametrize(("change", "says"), [one[1:] for one in FUSE], ids=[one[0] for one in FUSE])
def test_fuse(change: Change, says: str, tmp_path: Path) -> None:
    made = folder("Llama", tmp_path, change)
    said = converting.refusal(converting.fuse, made, out=tmp_path / "out", layout="qkv-per-group")
    assert re.search(says, said)


@pytest.mark.parametrize(("change", "says"), [one[1:] for one in FUSE], ids=[one[0] for one in FUSE])
@pytest.mark.parametrize("target", ["vllm", "megatron"])
def test_to_another_system(target: str, change: Change, says: str, tmp_path: Path) -> None:
    """The same by names of another system; a plain order of rows needs no heads."""
    if target == "vllm" and says == "heads":
        pytest.skip("no rows change their order")
    made = folder("Qwen2", tmp_path, change)
    said = converting.refusal(converting.convert, made, out=tmp_path / "out", target=target)
    assert re.search(says, said)


LISTS = [
    ("an expert is missing", drops(*(f"{EXPERT}.2.w{k}.weight" for k in (1, 2, 3))), "expert"),
    ("the last is missing", drops(*(f"{EXPERT}.4.w{k}.weight" for k in (1, 2, 3))), "expert"),
    ("a matrix of one is missing", drops(f"{EXPERT}.2.w3.weight"), "w3"),
    ("one expert too many", copies(f"{EXPERT}.4.", f"{EXPERT}.5."), "expert"),
    ("another dtype", casts(f"{EXPERT}.2.w1.weight"), "float16"),
    ("two dialects in one file", adds("model.layers.1.mlp.experts.down_proj", 5, 48, 40), "down_proj|transformers-5"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), [one[1:] for one in LISTS], ids=[one[0] for one in LISTS])
def test_lists_of_experts(change: Change, says: str, tmp_path: Path) -> None:
    made = folder("Mixtral", tmp_path, change)
    said = converting.refusal(converting.convert, made, out=tmp_path / "out", target="transformers-5")
    assert re.search(says, said)


def test_another_number_of_experts_in_the_config(tmp_path: Path) -> None:
    made = folder("Mixtral", tmp_path, sets(num_local_experts=4), "transformers-5")
    said = converting.refusal(converting.convert, made, out=tmp_path / "out", target="transformers-4")
    assert "expert" in said


def test_heads_that_do_not_divide_a_fused_weight(tmp_path: Path) -> None:
    made = folder("GPT-NeoX", tmp_path, sets(num_attention_heads=7))
    said = converting.refusal(converting.unfuse, made, out=tmp_path / "out", layout="qkv-per-head")
    assert "query_key_value" in said
