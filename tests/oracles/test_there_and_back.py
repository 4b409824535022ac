"""Fuse and unfuse on files that transformers writes: the groups that are there, and the same file when it goes back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import paramtool
from paramtool.errors import LayoutError
from tests.oracles.dialects.models import quiet

SMALL: Mapping[str, Any] = {
    "hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 50,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
GROUPED: Mapping[str, Any] = {**SMALL, "num_key_value_heads": 2, "head_dim": 4}
GPT: Mapping[str, Any] = {"n_embd": 24, "n_head": 6, "n_layer": 2, "vocab_size": 50, "n_positions": 32}
SEQ: Mapping[str, Any] = {
    "vocab_size": 50, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
PICTURES: Mapping[str, Any] = {
    "hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 2, "intermediate_size": 40, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
FALCON: Mapping[str, Any] = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 50}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "BERT": ("BertModel", SMALL),
    "RoBERTa": ("RobertaModel", SMALL),
    "DistilBERT": ("DistilBertModel", {"dim": 24, "n_heads": 6, "n_layers": 2, "hidden_dim": 40, "vocab_size": 50}),
    "DeBERTa": ("DebertaModel", {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 6,
         "feed_forward_proj": "gated-gelu"},
    ),
    "BART": ("BartModel", {**SEQ, "max_position_embeddings": 32}),
    "Whisper": ("WhisperModel", {**SEQ, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8}),
    "ViT": ("ViTModel", PICTURES),
    "CLIP": ("CLIPModel", {"text_config": {**SMALL}, "vision_config": PICTURES, "projection_dim": 8}),
    "GPT-2": ("GPT2LMHeadModel", GPT),
    "GPTBigCode": ("GPTBigCodeForCausalLM", GPT),
    "GPTBigCode, as many": ("GPTBigCodeForCausalLM", {**GPT, "multi_query": False}),
    "CodeGen": ("CodeGenForCausalLM", {**GPT, "n_embd": 32, "n_head": 8, "rotary_dim": 2}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", SMALL),
    "BLOOM": ("BloomForCausalLM", {"hidden_size": 24, "n_head": 6, "n_layer": 2, "vocab_size": 50}),
    "Falcon-40B": ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon-7B": ("FalconForCausalLM", {**FALCON, "multi_query": True}),
    "Falcon-RW": ("FalconForCausalLM", {**FALCON, "multi_query": False, "alibi": True}),
    "MPT": ("MptForCausalLM", {"d_model": 24, "n_heads": 6, "n_layers": 2, "vocab_size": 50, "max_seq_len": 32}),
    "ModernBERT": ("ModernBertModel", {**SMALL, "cls_token_id": 0, "sep_token_id": 0, "bos_token_id": 0,
                                       "eos_token_id": 0}),
    "Phi-3": ("Phi3ForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", {**GROUPED, "num_experts": 3, "moe_intermediate_size": 10}),
    "gpt-oss": ("GptOssForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "Llama 4": ("Llama4ForCausalLM", {**GROUPED, "num_local_experts": 3, "intermediate_size_mlp": 40,
                                      "interleave_moe_layer_step": 1}),
    "DeepSeek-V3": (
        "DeepseekV3ForCausalLM",
        {**SMALL, "num_key_value_heads": 6, "q_lora_rank": 7, "kv_lora_rank": 9, "qk_nope_head_dim": 5,
         "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 4, "moe_intermediate_size": 10, "n_group": 2,
         "topk_group": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    ),
    "DeepSeek-V2-Lite": (
        "DeepseekV2ForCausalLM",
        {**SMALL, "num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 9, "qk_nope_head_dim": 5,
         "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 4, "moe_intermediate_size": 10, "n_group": 2,
         "topk_group": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    ),
    "Mamba": ("MambaForCausalLM", {"hidden_size": 24, "state_size": 5, "num_hidden_layers": 2, "vocab_size": 50,
                                   "time_step_rank": 3}),
    "Mamba-2": (
        "Mamba2ForCausalLM",
        {"hidden_size": 24, "num_heads": 6, "head_dim": 8, "state_size": 5, "n_groups": 2, "num_hidden_layers": 2,
         "vocab_size": 50, "expand": 2},
    ),
    "Jamba": (
        "JambaForCausalLM",
        {**GROUPED, "mamba_dt_rank": 3, "mamba_d_state": 5, "num_experts": 2, "attn_layer_period": 2,
         "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        {**GROUPED, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3,
         "linear_value_head_dim": 5, "num_experts": 3, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
         "shared_expert_intermediate_size": 12, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "OLMo-Hybrid": (  # with convolutions of one size: transformers 5.23 cuts others at the wrong rows
        "OlmoHybridForCausalLM",
        {**GROUPED, "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
         "linear_value_head_dim": 12, "layer_types": ["linear_attention", "full_attention"]},
    ),
}  # fmt: skip
"""{name: its class and its config}, with heads that are no power of two"""
CASES = [
    ("BERT", "fuse", "qkv", 2), ("BERT", "fuse", "qkv-per-head", 2), ("RoBERTa", "fuse", "qkv", 2),
    ("DistilBERT", "fuse", "qkv", 2), ("DeBERTa", "unfuse", "qkv-per-head", 2), ("T5", "fuse", "qkv", 6),
    ("T5", "fuse", "qkv-per-head", 6), ("T5", "fuse", "gate-up", 4), ("BART", "fuse", "qkv-per-head", 6),
    ("BART", "fuse", "kv-per-head", 6), ("ViT", "fuse", "qkv", 2), ("CLIP", "fuse", "qkv-per-head", 4),
    ("GPT-2", "unfuse", "qkv-conv1d", 2), ("GPTBigCode", "unfuse", "qkv", 2),
    ("GPTBigCode, as many", "unfuse", "qkv-per-head", 2), ("CodeGen", "unfuse", "qvk-per-chunk", 2),
    ("GPT-NeoX", "unfuse", "qkv-per-head", 2), ("BLOOM", "unfuse", "qkv-per-head", 2),
    ("Falcon-40B", "unfuse", "qkv-per-group", 2), ("Falcon-7B", "unfuse", "qkv", 2),
    ("Falcon-RW", "unfuse", "qkv-per-head", 2), ("MPT", "unfuse", "qkv", 2), ("ModernBERT", "unfuse", "qkv", 2),
    ("ModernBERT", "unfuse", "gate-up", 2), ("Phi-3", "unfuse", "qkv", 2), ("Phi-3", "unfuse", "gate-up", 2),
    ("Llama", "fuse", "qkv", 2), ("Llama", "fuse", "qkv-per-group", 2), ("Llama", "fuse", "qkv-per-chunk", 2),
    ("Llama", "fuse", "kv", 2), ("Llama", "fuse", "qk", 2), ("Llama", "fuse", "qkv-conv1d", 2),
    ("Llama", "fuse", "gate-up-interleaved", 2), ("Llama", "fuse", "up-gate", 2), ("Llama", "fuse", "rope-pairs", 4),
    ("Llama", "fuse", "heads-by-position", 4), ("Mixtral", "fuse", "experts", 2),
    ("Mixtral", "fuse", "experts-transposed", 2), ("Mixtral", "fuse", "experts-flat", 2),
    ("Qwen3-MoE", "fuse", "experts", 2), ("Qwen3-MoE", "fuse", "experts-apart", 2), ("Qwen3-MoE", "fuse", "gate-up", 6),
    ("gpt-oss", "unfuse", "experts-transposed-interleaved", 2), ("Llama 4", "unfuse", "experts-transposed", 2),
    ("DeepSeek-V3", "fuse", "mla-down", 2), ("DeepSeek-V3", "unfuse", "mla-kv-a", 2),
    ("DeepSeek-V3", "unfuse", "mla-kv-b", 2), ("DeepSeek-V3", "unfuse", "mla-q-b", 2),
    ("DeepSeek-V3", "fuse", "experts", 1), ("Mamba", "unfuse", "mamba-in", 2), ("Mamba", "unfuse", "mamba-steps", 2),
    ("Mamba", "fuse", "conv-last", 2), ("Mamba-2", "unfuse", "mamba2-in", 2), ("Mamba-2", "unfuse", "mamba2-convs", 2),
    ("Mamba-2", "fuse", "conv-flat", 2), ("Jamba", "unfuse", "mamba-in", 1), ("Jamba", "unfuse", "mamba-steps", 1),
    ("Jamba", "fuse", "experts", 1), ("Qwen3-Next", "unfuse", "qkvz-per-head", 1),
    ("Qwen3-Next", "unfuse", "ba-per-head", 1), ("Qwen3-Next", "unfuse", "q-gate-per-head", 1),
    ("OLMo-Hybrid", "fuse", "convs", 1),
]  # fmt: skip
"""(model, command, layout, modules of tensors that it makes or takes apart)"""
CHUNKS = {"qkv-per-chunk": "qkv chunks=2"}
"""{layout: what no config says}"""


@cache
def _files(name: str, folder: Path) -> Path:
    """A folder as `save_pretrained` writes it."""
    architecture, config = MODELS[name]
    kind: Any = getattr(transformers, architecture)
    torch.manual_seed(0)
    with quiet():
        model: nn.Module = kind(kind.config_class(**config))
        model.save_pretrained(folder / name)  # type: ignore[operator]  # as every model of transformers
    return folder / name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "command", "layout", "count"), CASES, ids=lambda one: str(one))
def test_there_and_back_is_the_same_file(
    name: str, command: str, layout: str, count: int, models: Path, tmp_path: Path
) -> None:
    source, there, back = _files(name, models), tmp_path / "there", tmp_path / "back"
    first, second = (paramtool.fuse, paramtool.unfuse) if command == "fuse" else (paramtool.unfuse, paramtool.fuse)
    done = first(source, there, layout=layout, spec=CHUNKS.get(layout, ""))
    assert done.rearranged is not None
    assert len(done.rearranged.groups) == count
    second(there, back, layout=layout)
    files = [folder / "model.safetensors" for folder in (source, there, back)]
    assert files[0].read_bytes() == files[2].read_bytes() != files[1].read_bytes()


STEPS = [
    ("Phi-3", "unfuse", ("fuse qkv", "fuse gate-up")), ("Phi-3", "unfuse", ("fuse gate-up", "fuse qkv")),
    ("ModernBERT", "unfuse qkv", ("unfuse gate-up", "fuse qkv", "fuse gate-up")),
    ("Llama", "fuse qkv", ("fuse gate-up", "unfuse")),
    ("Llama", "fuse gate-up", ("fuse qkv", "unfuse gate-up", "unfuse qkv")),
    ("Mixtral", "fuse experts", ("fuse qkv", "unfuse experts", "unfuse")),
]  # fmt: skip
"""(model, a command, those that come back to the same file)"""


@pytest.mark.parametrize(("name", "command", "others"), STEPS, ids=str)
def test_several_kinds_in_any_order(
    name: str, command: str, others: tuple[str, ...], models: Path, tmp_path: Path
) -> None:
    source = _files(name, models)
    folder = source
    for k, line in enumerate((command, *others)):
        verb, _, layout = line.partition(" ")
        change = paramtool.fuse if verb == "fuse" else paramtool.unfuse
        change(folder, tmp_path / str(k), layout=layout or None)
        folder = tmp_path / str(k)
        assert ((folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()) == (
            k == len(others)
        )


WAYS = [
    *((name, ("transformers-5",)) for name in ("BERT", "ViT", "CLIP", "GPT-NeoX", "Mixtral", "Qwen3-MoE", "gpt-oss",
                                               "DeepSeek-V3", "Jamba", "Qwen3-Next", "ModernBERT")),
    *((name, ("vllm",)) for name in ("GPT-2", "BLOOM", "Falcon-40B", "Llama", "Mixtral", "Qwen3-MoE", "Phi-3")),
    *((name, ("megatron",)) for name in ("Llama", "Mixtral", "Qwen3-MoE")),
    *((name, ways) for name in ("DeepSeek-V2-Lite", "DeepSeek-V3") for ways in (("vllm",), ("megatron",))),
    ("BERT", ("gluonnlp",)), ("ViT", ("timm",)), ("CLIP", ("torch-mha",)), ("Llama", ("meta",)),
    *((name, ("transformers-5", "vllm")) for name in ("Llama", "Mixtral", "Qwen3-MoE")),
    ("Mixtral", ("vllm", "megatron", "transformers-5")),
]  # fmt: skip
"""(model, dialects): through all of them, and back to the file that transformers wrote"""


@pytest.mark.sample(15)
@pytest.mark.parametrize(("name", "ways"), WAYS, ids=str)
def test_through_dialects_and_back_is_the_same_file(
    name: str, ways: tuple[str, ...], models: Path, tmp_path: Path
) -> None:
    source = _files(name, models)
    folder = source
    for k, target in enumerate((*ways, "transformers-4")):
        first = "transformers-4" if k == 0 else None  # BLOOM and Falcon-40B have the same names in vLLM
        paramtool.convert(folder, tmp_path / str(k), source=first, target=target, verify=False)
        folder = tmp_path / str(k)
    assert {path.name for path in folder.iterdir()} == {path.name for path in source.iterdir()}
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())


def test_parts_of_gpt_2_are_those_of_a_linear(models: Path, tmp_path: Path) -> None:
    """[outputs, inputs], though GPT-2 stores [inputs, outputs]."""
    from safetensors.torch import load_file

    source = _files("GPT-2", models)
    paramtool.unfuse(source, tmp_path / "out", layout="qkv-conv1d")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    fused = next(name for name in before if name.endswith("h.0.attn.c_attn.weight"))
    for k, part in enumerate("qkv"):
        made = after[fused.replace("c_attn", f"{part}_proj")]
        assert torch.equal(made, before[fused][:, 24 * k : 24 * (k + 1)].T)


def test_a_key_without_a_bias_is_refused(models: Path, tmp_path: Path) -> None:
    """Whisper's keys have none, and its queries and values have: no zeros are invented."""
    with pytest.raises(LayoutError, match=r"k_proj\.bias' is missing"):
        paramtool.fuse(_files("Whisper", models), tmp_path / "out", layout="qkv")
    assert not [*tmp_path.iterdir()]


OTHERWISE = {"BLOOM": "qkv-per-head", "Falcon-40B": "qkv-per-group", "GPT-2": "qkv-conv1d"}
"""{model: how transformers stores its queries, keys and values}; vLLM has the same names and other rows"""


@pytest.mark.parametrize("name", OTHERWISE)
def test_unfuse_knows_the_rows_of_the_dialect_that_the_record_names(name: str, models: Path, tmp_path: Path) -> None:
    """Not those that the model type in config.json has in transformers: the parts are those of the source."""
    from safetensors.torch import load_file

    source = _files(name, models)
    paramtool.convert(source, tmp_path / "vllm", source="transformers-4", target="vllm")
    for folder, made in ((source, "plain"), (tmp_path / "vllm", "apart")):
        done = paramtool.unfuse(folder, tmp_path / made, layout=OTHERWISE[name] if made == "plain" else None)
        assert done.rearranged is not None
        assert done.rearranged.source == (OTHERWISE[name] if made == "plain" else "qkv")
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    apart = load_file(tmp_path / "apart" / "model-rank-0-part-0.safetensors")
    parts = [one for one in plain if any(f".{part}_proj." in one for part in "qkv")]
    assert len(parts) >= 6 and all(torch.equal(plain[one], apart[one]) for one in parts)
    paramtool.fuse(tmp_path / "apart", tmp_path / "back", layout="qkv")
    files = [tmp_path / folder / "model-rank-0-part-0.safetensors" for folder in ("vllm", "back")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(
        LayoutError, match=r"its record \(vllm\) says layout qkv|has shape \[72, 24\]; layout qkv-conv1d"
    ):
        paramtool.unfuse(tmp_path / "vllm", tmp_path / "wrong", layout=OTHERWISE[name])


def test_unfuse_knows_the_stacks_of_the_dialect_that_the_record_names(models: Path, tmp_path: Path) -> None:
    """gpt-oss: [experts, inputs, outputs] in transformers and [experts, outputs, inputs] in vLLM, rows in turn."""
    from safetensors.torch import load_file

    source = _files("gpt-oss", models)
    paramtool.convert(source, tmp_path / "vllm", target="vllm")
    paramtool.unfuse(source, tmp_path / "plain")
    done = paramtool.unfuse(tmp_path / "vllm", tmp_path / "apart")
    assert done.rearranged is not None and done.rearranged.source == "qkv, experts-interleaved"
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    apart = load_file(tmp_path / "apart" / "model-rank-0-part-0.safetensors")
    experts = [name for name in plain if ".experts." in name]
    assert len(experts) == 2 * 3 * 6  # layers, experts, weights and biases
    assert all(torch.equal(plain[name], apart[name.replace("experts.", "experts.routed_experts.")]) for name in experts)
