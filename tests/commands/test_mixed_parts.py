"""`fuse` and `convert` of files that mix dialects, have parts that no stack holds, or are of another model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.errors import LayoutError
from tests.attention import EXPERTS, FFN, HIDDEN, LLAMA, MIXTRAL, State, folder_of, state_of

AT = "model.layers.{}.block_sparse_moe.experts"


def stacked(state: State, layer: int) -> State:
    """A Mixtral of which one layer has stacks of experts, under the names of transformers 5."""
    at, new = AT.format(layer), f"model.layers.{layer}.mlp.experts"
    held = {part: [state[f"{at}.{k}.{part}.weight"] for k in range(EXPERTS)] for part in ("w1", "w2", "w3")}
    rest = {name: value for name, value in state.items() if not name.startswith(at)}
    pairs = zip(held["w1"], held["w3"], strict=True)
    gate_up = torch.stack([torch.cat(pair) for pair in pairs])
    return {**rest, f"{new}.gate_up_proj": gate_up, f"{new}.down_proj": torch.stack(held["w2"])}


def test_layers_of_two_dialects(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "m", MIXTRAL, stacked(state_of(MIXTRAL), 1))
    for layout in ("fuse", "unfuse"):
        with pytest.raises(LayoutError, match=r"mixes transformers-4 \(.*\) and transformers-5"):
            if layout == "fuse":
                paramtool.fuse(path, tmp_path / "out", layout="experts")
            else:
                paramtool.unfuse(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    paramtool.fuse(path, tmp_path / "out", layout="experts", at=[AT.format(0)])  # the user says so


def test_a_stack_beside_a_list(tmp_path: Path) -> None:
    state = state_of(MIXTRAL)
    state["model.layers.1.mlp.experts.down_proj"] = torch.zeros(EXPERTS, HIDDEN, FFN)
    path = folder_of(tmp_path / "m", MIXTRAL, state)
    with pytest.raises(LayoutError, match="mixes transformers-4"):
        paramtool.fuse(path, tmp_path / "out", layout="experts")


def test_layers_that_an_earlier_command_fused_do_not_count(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "m", MIXTRAL)
    paramtool.fuse(path, tmp_path / "half", layout="experts", at=[AT.format(0)])
    paramtool.fuse(tmp_path / "half", tmp_path / "all", layout="experts")
    paramtool.unfuse(tmp_path / "all", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("which", [[2], [0, 1, 2]])
def test_tensors_that_no_stack_holds(which: list[int], tmp_path: Path) -> None:
    """Of one expert, or of all."""
    more = {f"{AT.format(layer)}.{k}.w4.weight": torch.ones(2, 2) for layer in (0, 1) for k in which}
    path = folder_of(tmp_path / "m", MIXTRAL, {**state_of(MIXTRAL), **more})
    for done in ("fuse", "vllm", "transformers-5"):
        with pytest.raises(LayoutError, match="w4"):
            if done == "fuse":
                paramtool.fuse(path, tmp_path / "out", layout="experts")
            else:
                paramtool.convert(path, tmp_path / "out", target=done)
        assert not (tmp_path / "out").exists()


def test_a_config_of_another_model(tmp_path: Path) -> None:
    state = {name.replace("model.", "gpt_neox."): value for name, value in state_of(LLAMA).items()}
    path = folder_of(tmp_path / "m", LLAMA, {n: v for n, v in state.items() if "norm" in n or "dense" in n})
    for target in ("transformers-5", "vllm"):
        with pytest.raises(LayoutError, match="its names begin with 'gpt_neox'; expected 'model'"):
            paramtool.convert(path, tmp_path / "out", source="transformers-4", target=target)
        assert not (tmp_path / "out").exists()


def test_a_bias_that_does_not_fit_its_weight(tmp_path: Path) -> None:
    """Where nothing is cut, too."""
    biases = {f"model.layers.{k}.self_attn.o_proj.bias": torch.zeros(HIDDEN + k) for k in (0, 1)}
    path = folder_of(tmp_path / "m", LLAMA, {**state_of(LLAMA), **biases})
    with pytest.raises(LayoutError, match=r"1 bias does not fit the weight:\n  .*o_proj\.bias' has shape \[7\]"):
        paramtool.convert(path, tmp_path / "out", target="transformers-5")
