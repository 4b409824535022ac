"""Files whose names and shapes a class of transformers has, and whose record, or file name, says other rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import paramtool
import paramtool.torch
from paramtool.errors import LayoutError, ModelError
from tests.hostile.command import quick
from tests.torch.test_dialects import Maker, llama, logits, saved


def bloom() -> transformers.PreTrainedModel:
    """Queries, keys and values per head in transformers, and one below the other in vLLM."""
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=64, hidden_size=24, n_head=6, n_layer=2, initializer_range=0.5)
    )


def falcon() -> transformers.PreTrainedModel:
    """The same per group."""
    config = transformers.FalconConfig(
        vocab_size=64, hidden_size=24, num_attention_heads=6, num_kv_heads=2, num_hidden_layers=2,
        new_decoder_architecture=True, initializer_range=0.5,
    )  # fmt: skip
    return transformers.FalconForCausalLM(config)


def gpt_neox() -> transformers.PreTrainedModel:
    config = transformers.GPTNeoXConfig(
        vocab_size=64, hidden_size=24, num_attention_heads=6, num_hidden_layers=2, intermediate_size=40
    )
    return transformers.GPTNeoXForCausalLM(config)


def in_vllm(make: Maker, folder: Path) -> tuple[transformers.PreTrainedModel, Path]:
    model, path = saved(make, folder)
    paramtool.convert(path, folder / "vllm", source="transformers-4", target="vllm")
    return model, folder / "vllm"


def without_record(folder: Path, name: str) -> Path:
    """The same tensors in a file of another name, as another program would write them."""
    other = folder.with_name("bare")
    other.mkdir()
    (file,) = folder.glob("*.safetensors")
    save_file(load_file(file), other / name, metadata={"format": "pt"})
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    return other


@pytest.mark.parametrize("make", [bloom, falcon])
def test_a_class_loads_no_rows_of_another_dialect(make: Maker, tmp_path: Path) -> None:
    """The negative control: with the record gone, the same tensors load, and the logits are off by far."""
    model, path = in_vllm(make, tmp_path)
    other = make()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(ModelError, match="rows of vllm by its record") as caught:
        paramtool.torch.load_model(other, path, strict=False)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    line = str(caught.value).split("`")[1].split()
    assert quick(*line[1:], cwd=tmp_path).code == 0
    paramtool.torch.load_model(other, tmp_path / "out", strict=False)
    assert torch.equal(logits(other), logits(model))
    wrong = make()
    paramtool.torch.load_model(wrong, without_record(path, "x.safetensors"), strict=False)
    difference = (logits(wrong) - logits(model)).abs().max() / logits(model).abs().max()
    assert difference > 0.1


@pytest.mark.parametrize("make", [bloom, falcon])
def test_variants_say_so(make: Maker, tmp_path: Path) -> None:
    """Of a class, of its config.json, and of the checkpoint, which is not given away for the file of vLLM either."""
    model, path = in_vllm(make, tmp_path)
    for against in (model, tmp_path / "model" / "config.json", tmp_path / "model"):
        (found,) = paramtool.torch.variants([against], path)
        assert (found.verdict, found.convert_to) == ("cannot load", "transformers-4")
        assert found.rows and not found.shapes and not found.lacks
    (found,) = paramtool.variants(tmp_path / "model", [path])
    assert not found.loads and found.rows
    (found,) = paramtool.variants(path, [path])
    assert found.loads
    ran = quick("variants", "vllm", "--against", "model", "--json", cwd=tmp_path)
    (one,) = json.loads(ran.out)["variants"]
    assert ran.code == 1 and one["rows"][0]["found"] == "rows of vllm by its record"


def test_a_file_name_of_one_program_tells(tmp_path: Path) -> None:
    """vLLM alone calls a file model-rank-0-part-0.safetensors; any other name leaves both, and both are listed."""
    model, path = in_vllm(bloom, tmp_path)
    bare = without_record(path, "model-rank-0-part-0.safetensors")
    with pytest.raises(ModelError, match="rows of vllm by its file name"):
        paramtool.torch.load_model(bloom(), bare, strict=False)
    paramtool.convert(bare, tmp_path / "back", target="transformers-4")
    other = bloom()
    paramtool.torch.load_model(other, tmp_path / "back", strict=False)
    assert torch.equal(logits(other), logits(model))
    paramtool.unfuse(bare, tmp_path / "apart")
    paramtool.unfuse(tmp_path / "model", tmp_path / "plain", layout="qkv-per-head")
    found, wanted = (paramtool.torch.load_file(tmp_path / name) for name in ("apart", "plain"))
    parts = [name for name in wanted if ".q_proj." in name or ".k_proj." in name]
    assert len(parts) == 8 and all(torch.equal(found[name], wanted[name]) for name in parts)
    with pytest.raises(LayoutError, match=r"qkv \(rows of vllm\), qkv-per-head \(rows of transformers-4\)"):
        paramtool.unfuse(tmp_path / "model", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_rotary_rows_in_pairs_are_not_those_in_halves(tmp_path: Path) -> None:
    """The fused tensor has the name of its part: the record alone tells."""
    model, path = saved(llama, tmp_path)
    paramtool.fuse(path, tmp_path / "pairs", layout="rope-pairs")
    other = llama()
    with pytest.raises(ModelError, match="rope-pairs by its record") as caught:
        paramtool.torch.load_model(other, tmp_path / "pairs")
    assert "paramtool unfuse" in str(caught.value)
    (found,) = paramtool.variants(tmp_path / "pairs", [path])
    assert (found.verdict, found.advice) == ("cannot load", "loads after `unfuse`")
    ran = quick("inspect", "pairs", cwd=tmp_path)
    assert "q, k, v apart, rope-pairs by its record" in ran.out
    paramtool.unfuse(tmp_path / "pairs", tmp_path / "back")
    paramtool.torch.load_model(other, tmp_path / "back")
    assert torch.equal(logits(other), logits(model))


@pytest.mark.parametrize("layout", ["rope-pairs", "qkv"])
def test_nothing_is_fused_on_top_of_what_is(layout: str, tmp_path: Path) -> None:
    """Nor taken apart a second time under the same name."""
    _, path = saved(llama, tmp_path)
    paramtool.fuse(path, tmp_path / "pairs", layout="rope-pairs")
    with pytest.raises(LayoutError, match="is in layout rope-pairs already"):
        paramtool.fuse(tmp_path / "pairs", tmp_path / "out", layout=layout)
    paramtool.unfuse(path, tmp_path / "halves", layout="rope-pairs")
    with pytest.raises(LayoutError, match="was taken out of layout rope-pairs already"):
        paramtool.unfuse(tmp_path / "halves", tmp_path / "out", layout="rope-pairs")
    assert not (tmp_path / "out").exists()


def test_a_fused_tensor_under_the_name_of_another(tmp_path: Path) -> None:
    """GPT-NeoX has query_key_value per head; the record says q, k, v one below the other, or the right layout."""
    model, path = saved(gpt_neox, tmp_path)
    paramtool.unfuse(path, tmp_path / "apart")
    bare = without_record(tmp_path / "apart", "model.safetensors")
    for layout in ("qkv", "qkv-per-head", "qkv-per-group"):  # as many keys as queries: per group is per head
        rename = {"qkv_proj": "query_key_value"} if layout == "qkv" else {}
        paramtool.fuse(bare, tmp_path / layout, layout=layout, rename=rename)
    other = gpt_neox()
    with pytest.raises(ModelError, match="qkv by its record; the model wants qkv-per-head"):
        paramtool.torch.load_model(other, tmp_path / "qkv")
    (found,) = paramtool.torch.variants([other], tmp_path / "qkv")
    assert not found.loads and found.rows
    for layout in ("qkv-per-head", "qkv-per-group"):
        other = gpt_neox()
        paramtool.torch.load_model(other, tmp_path / layout)
        assert torch.equal(logits(other), logits(model))
    (found,) = paramtool.variants(tmp_path / "qkv", [tmp_path / "qkv-per-head"])
    assert not found.loads
    (found,) = paramtool.variants(tmp_path / "qkv-per-group", [tmp_path / "qkv-per-head"])
    assert found.loads


def test_parts_taken_out_of_a_tensor_of_a_dialect(tmp_path: Path) -> None:
    """vLLM's qkv_proj of a Llama holds the parts of transformers: taken apart, the class loads them."""
    model, path = in_vllm(llama, tmp_path)
    paramtool.unfuse(path, tmp_path / "apart")
    other = llama()
    paramtool.torch.load_model(other, tmp_path / "apart")
    assert torch.equal(logits(other), logits(model))


def llama4() -> transformers.PreTrainedModel:
    """vLLM stores its queries and keys with the rotary rows in halves."""
    config: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 8, "intermediate_size_mlp": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "num_local_experts": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**config))


def test_rows_that_no_layout_has(tmp_path: Path) -> None:
    """They are refused by name, also in the layout that their shapes fit."""
    _, path = in_vllm(llama4, tmp_path)
    for layout in (None, "qkv"):
        with pytest.raises(LayoutError, match=r"its record \(vllm\)|by its record \(vllm\)"):
            paramtool.unfuse(path, tmp_path / "out", layout=layout)
        assert not (tmp_path / "out").exists()
    paramtool.unfuse(path, tmp_path / "wrong", layout="qkv", at=["*.self_attn"])  # the user says so
    with pytest.raises(ModelError, match="rows of vllm by its record"):
        paramtool.torch.load_model(llama4(), tmp_path / "wrong", strict=False)
