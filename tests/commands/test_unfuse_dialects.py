"""`unfuse` of files in the names of other programs, and which of several defects `convert` names first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.errors import LayoutError
from tests.attention import HEAD_DIM, HEADS, LLAMA, folder_of, state_of
from tests.hostile.command import command

MODEL = {**LLAMA, "hidden_size": HEADS * HEAD_DIM}
WIDTH = 8
BERT = {
    "architectures": ["BertForPreTraining"], "model_type": "bert", "num_attention_heads": 2, "hidden_size": WIDTH,
    "intermediate_size": 5, "num_hidden_layers": 1, "vocab_size": 7,
}  # fmt: skip
TENSORS = "model.safetensors"


def bert(folder: Path) -> Path:
    """The attention of a BERT in names of transformers 4."""
    at = "bert.encoder.layer.0.attention."
    weights = [f"{at}self.{name}" for name in ("query", "key", "value")] + [f"{at}output.dense"]
    state = {f"{name}.weight": torch.randn(WIDTH, WIDTH) for name in weights}
    return folder_of(folder, BERT, state | {f"{name}.bias": torch.randn(WIDTH) for name in weights})


def test_a_norm_of_the_inputs_stays_beside_the_parts(tmp_path: Path) -> None:
    """Megatron's `linear_qkv.layer_norm_weight` has no row of the weight; the parts are those of transformers."""
    source = folder_of(tmp_path / "in", MODEL)
    paramtool.convert(source, tmp_path / "megatron", target="megatron")
    paramtool.unfuse(tmp_path / "megatron", tmp_path / "apart")
    own, apart = load_file(source / TENSORS), load_file(tmp_path / "apart" / TENSORS)
    there, here = "model.layers.1.", "decoder.layers.1."
    for name in ("q_proj", "k_proj", "v_proj"):
        assert torch.equal(apart[f"{here}self_attention.{name}.weight"], own[f"{there}self_attn.{name}.weight"])
    norm = apart[f"{here}self_attention.linear_qkv.layer_norm_weight"]
    assert torch.equal(norm, own[f"{there}input_layernorm.weight"])
    paramtool.fuse(tmp_path / "apart", tmp_path / "back", layout="qkv-per-group")
    assert (tmp_path / "back" / TENSORS).read_bytes() == (tmp_path / "megatron" / TENSORS).read_bytes()
    ran = command("unfuse", "megatron", "--layout", "gate-up", "--at", "*.linear_fc1", "-o", "mlp", cwd=tmp_path)
    assert ran.code == 0, ran
    assert torch.equal(
        load_file(tmp_path / "mlp" / TENSORS)[f"{here}mlp.up_proj.weight"], own[f"{there}mlp.up_proj.weight"]
    )


@pytest.mark.parametrize("words", [(), ("--layout", "gluonnlp-interleaved")])
def test_names_of_a_dialect_without_a_layout_lead_to_convert(words: tuple[str, ...], tmp_path: Path) -> None:
    source = bert(tmp_path / "in")
    paramtool.convert(source, tmp_path / "there", target="gluonnlp-interleaved")
    ran = command("unfuse", "there", *words, "-o", "out", cwd=tmp_path)
    assert ran.code in (2, 5) and "recurrent" not in ran.err and not (tmp_path / "out").exists(), ran
    assert "paramtool convert SRC --from gluonnlp-interleaved --to transformers-4 -o DST" in ran.err
    ran = command("convert", "there", "--from", "gluonnlp-interleaved", "--to", "transformers-4", "-o", "back",
                  cwd=tmp_path)  # fmt: skip
    assert ran.code == 0, ran
    assert (tmp_path / "back" / TENSORS).read_bytes() == (source / TENSORS).read_bytes()


@pytest.mark.parametrize("target", ["vllm", "megatron"])
def test_a_missing_part_is_named_before_a_bias(target: str, tmp_path: Path) -> None:
    """The bias has none beside it because the part is missing."""
    state = state_of(MODEL)
    keys = [f"model.layers.{k}.self_attn.k_proj.weight" for k in range(2)]
    kept = {name: state.pop(name) for name in keys}
    biases = {f"model.layers.{k}.self_attn.q_proj.bias": torch.zeros(HEADS * HEAD_DIM) for k in range(2)}
    state = {**biases, **state}
    with pytest.raises(LayoutError, match=r"q_proj\.weight' has no '.*\.k_proj\.weight' beside it"):
        paramtool.convert(folder_of(tmp_path / "in", MODEL, state), tmp_path / "out", target=target)
    save_file(state | kept, tmp_path / "in" / TENSORS)
    with pytest.raises(LayoutError, match=r"q_proj\.bias' has no '.*\.k_proj\.bias' beside it"):
        paramtool.convert(tmp_path / "in", tmp_path / "out", target=target)
