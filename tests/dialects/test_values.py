"""The values that each dialect stores, beside our own equations of what its program does when it loads.

The equations are written from the sources that the tables name, with reshape and concatenation, without paramtool.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from paramtool.dialects import recognised
from paramtool.dialects.dialect import Dialect
from paramtool.dialects.template import DialectTable, table
from paramtool.errors import LayoutError
from paramtool.parts.facts import facts
from paramtool.parts.pieces import whole
from paramtool.parts.sizes import Sizes, UnknownSize
from tests.dialects.moved import Tensors, moved, shapes

VLLM, MEGATRON, META, TORCH_MHA, GLUONNLP, INTERLEAVED = map(
    table, ("vllm", "megatron", "meta", "torch-mha", "gluonnlp", "gluonnlp-interleaved")
)
H, G, D, N, F, E = 4, 2, 8, 24, 20, 3
FACTS = Sizes({"heads": H, "kv_heads": G, "head_dim": D, "rotary": D})
CONFIG = {
    "hidden_size": N,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "intermediate_size": F,
    "vocab_size": 32,
    "pad_token_id": 0,
}


def _llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def _qwen2() -> nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**{**CONFIG, "hidden_size": H * D}))


def _mixtral() -> nn.Module:
    return MixtralForCausalLM(MixtralConfig(**CONFIG, num_local_experts=E))


def _qwen3_moe() -> nn.Module:
    more = {"num_experts": E, "moe_intermediate_size": F, "mlp_only_layers": [0]}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG, **more))


def _gpt_oss() -> nn.Module:
    return GptOssForCausalLM(GptOssConfig(**CONFIG, num_local_experts=E))


def _llama4() -> nn.Module:
    more = {"intermediate_size_mlp": 12, "num_local_experts": E, "interleave_moe_layer_step": 2}
    return Llama4ForCausalLM(Llama4TextConfig(**CONFIG, **more))


def _granite_moe() -> nn.Module:
    return GraniteMoeForCausalLM(GraniteMoeConfig(**{**CONFIG, "hidden_size": H * D}, num_local_experts=E))


def _glm4_moe() -> nn.Module:
    more = {"n_routed_experts": E, "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_shared_experts": 1}
    return Glm4MoeForCausalLM(Glm4MoeConfig(**CONFIG, **more, use_qk_norm=True, attention_bias=True))


def _deepseek() -> nn.Module:
    more = {"n_routed_experts": 4, "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_group": 2}
    ranks = {"q_lora_rank": 6, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
    given = {key: value for key, value in CONFIG.items() if key != "head_dim"}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{**given, "num_key_value_heads": H}, **more, **ranks))


def _bloom() -> nn.Module:
    return BloomForCausalLM(BloomConfig(hidden_size=H * D, n_layer=2, n_head=H, vocab_size=32))


def _falcon() -> nn.Module:
    given = {"hidden_size": H * D, "num_hidden_layers": 2, "num_attention_heads": H, "num_kv_heads": G}
    return FalconForCausalLM(FalconConfig(**given, vocab_size=32, new_decoder_architecture=True, bias=True))


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_embd=H * D, n_layer=2, n_head=H, vocab_size=32))


def _bert() -> nn.Module:
    given = {"hidden_size": H * D, "num_hidden_layers": 2, "num_attention_heads": H, "intermediate_size": F}
    return BertModel(BertConfig(**given, vocab_size=32))


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Callable[[nn.Module], Tensors]]:
    """The tensors of a model's file, with numbers that are all different."""

    def tensors(model: nn.Module) -> Tensors:
        transformers.logging.disable_progress_bar()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        model.eval().save_pretrained(tmp_path / "model")
        return load_file(tmp_path / "model" / "model.safetensors")

    yield tensors


def _written(table: DialectTable, model: nn.Module, hub: Tensors, facts: Sizes = FACTS) -> dict[str, torch.Tensor]:
    """What the dialect stores; reading it gives the same bytes back."""
    dialect = Dialect(table, type(model).__name__)
    plain = [whole(name, tuple(tensor.shape)) for name, tensor in hub.items()]
    made = moved(hub, plain, dialect.write(shapes(hub), lambda name: facts))
    back = moved(made, dialect.read(shapes(made), lambda name: facts), plain)
    assert {name: back[name].tolist() for name in back} == {name: hub[name].tolist() for name in hub}
    return made


def _qkv(hub: Tensors, layer: str, kind: str = "weight") -> list[torch.Tensor]:
    return [hub[f"{layer}.self_attn.{term}_proj.{kind}"] for term in "qkv"]


def _per_group(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Megatron-Bridge `merge_qkv_weights`: for each KV head its queries, its key, its value."""
    q, k, v = (one.reshape(heads, D, *one.shape[1:]) for one, heads in ((q, H), (k, G), (v, G)))
    runs = [run for g in range(G) for run in (q[g * H // G : (g + 1) * H // G], k[g : g + 1], v[g : g + 1])]
    return torch.cat(runs).flatten(0, 1)


@pytest.mark.parametrize("make", [_llama, _qwen2])
def test_vllm_joins_qkv_and_gate_up(make: Callable[[], nn.Module], saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := make())
    made = _written(VLLM, model, hub)
    layer = "model.layers.1"
    assert torch.equal(made[f"{layer}.self_attn.qkv_proj.weight"], torch.cat(_qkv(hub, layer)))
    if make is _qwen2:
        assert torch.equal(made[f"{layer}.self_attn.qkv_proj.bias"], torch.cat(_qkv(hub, layer, "bias")))
    both = torch.cat([hub[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    assert torch.equal(made[f"{layer}.mlp.gate_up_proj.weight"], both)
    assert not any("q_proj" in name or ("up_proj.w" in name and "gate_up" not in name) for name in made)


@pytest.mark.parametrize(
    ("make", "module", "names"),
    [
        (_mixtral, "model.layers.1.block_sparse_moe", ("w1", "w3", "w2")),
        (_qwen3_moe, "model.layers.1.mlp", ("gate_proj", "up_proj", "down_proj")),
        (_glm4_moe, "model.layers.1.mlp", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_vllm_stacks_experts(
    make: Callable[[], nn.Module], module: str, names: tuple[str, ...], saved: Callable[[nn.Module], Tensors]
) -> None:
    hub = saved(model := make())
    made = _written(VLLM, model, hub)
    gate, up, down = ([hub[f"{module}.experts.{e}.{name}.weight"] for e in range(E)] for name in names)
    w13 = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
    assert torch.equal(made[f"{module}.experts.routed_experts.w13_weight"], w13)
    assert torch.equal(made[f"{module}.experts.routed_experts.w2_weight"], torch.stack(down))
    assert not any(".experts.0." in name for name in made)


def test_vllm_joins_the_down_projections_of_deepseek(saved: Callable[[nn.Module], Tensors]) -> None:
    """Where queries have a rank; the layer without one keeps its names."""
    hub = saved(model := _deepseek())
    made = _written(VLLM, model, hub, Sizes({"q_rank": 6}))
    at = "model.layers.1.self_attn."
    joined = torch.cat([hub[at + "q_a_proj.weight"], hub[at + "kv_a_proj_with_mqa.weight"]])
    assert torch.equal(made[at + "fused_qkv_a_proj.weight"], joined)
    module = "model.layers.1.mlp.shared_experts."
    both = torch.cat([hub[f"{module}{part}_proj.weight"] for part in ("gate", "up")])
    assert torch.equal(made[module + "gate_up_proj.weight"], both)
    alone = {at + "kv_a_proj_with_mqa.weight": (14, N), at + "q_proj.weight": (8, N)}
    written = Dialect(VLLM, "DeepseekV2ForCausalLM").write(alone, lambda _: Sizes({}))
    assert [one.name for one in written] == list(alone)


def test_vllm_turns_the_experts_of_gpt_oss(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _gpt_oss())
    made = _written(VLLM, model, hub)
    was, new = "model.layers.0.mlp.experts.", "model.layers.0.mlp.experts.routed_experts."
    assert torch.equal(made[new + "w13_weight"], hub[was + "gate_up_proj"].permute(0, 2, 1))
    assert torch.equal(made[new + "w2_weight"], hub[was + "down_proj"].permute(0, 2, 1))
    assert torch.equal(made[new + "w13_bias"], hub[was + "gate_up_proj_bias"])
    qkv = torch.cat(_qkv(hub, "model.layers.0", "bias"))
    assert torch.equal(made["model.layers.0.attn.qkv_proj.bias"], qkv)
    assert torch.equal(made["model.embedding.weight"], hub["model.embed_tokens.weight"])
    assert torch.equal(made["model.layers.0.attn.sinks"], hub["model.layers.0.self_attn.sinks"])


def test_vllm_turns_the_pairs_of_llama_4(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _llama4())
    made = _written(VLLM, model, hub)
    q, k, v = _qkv(hub, "model.layers.1")
    q, k = (one.view(heads, D // 2, 2, N).transpose(1, 2).reshape(heads * D, N) for one, heads in ((q, H), (k, G)))
    assert torch.equal(made["model.layers.1.self_attn.qkv_proj.weight"], torch.cat([q, k, v]))
    was, new = "model.layers.1.feed_forward.experts.", "model.layers.1.feed_forward.experts.routed_experts."
    assert torch.equal(made[new + "w13_weight"], hub[was + "gate_up_proj"].transpose(1, 2))
    assert torch.equal(made[new + "w2_weight"], hub[was + "down_proj"].transpose(1, 2))


def test_vllm_puts_heads_of_bloom_together(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _bloom())
    made = _written(VLLM, model, hub, Sizes({"heads": H, "kv_heads": H, "head_dim": D, "rotary": D}))
    for kind in ("weight", "bias"):
        name = f"transformer.h.1.self_attention.query_key_value.{kind}"
        old = hub[name]
        assert torch.equal(made[name], old.view(H, 3, -1, *old.shape[1:]).transpose(0, 1).reshape(old.shape))
        assert not torch.equal(made[name], old)


def test_vllm_puts_groups_of_falcon_together(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _falcon())
    made = _written(VLLM, model, hub)
    for kind in ("weight", "bias"):
        name = f"transformer.h.1.self_attention.query_key_value.{kind}"
        old = hub[name].reshape(G, H // G + 2, D, *hub[name].shape[1:])
        parts = (old[:, : H // G], old[:, H // G : H // G + 1], old[:, H // G + 1 :])
        assert torch.equal(made[name], torch.cat([part.flatten(0, 2) for part in parts]))


def test_vllm_turns_gpt_2(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _gpt2())
    made = _written(VLLM, model, hub)
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        name = f"transformer.h.1.{name}"
        assert torch.equal(made[f"{name}.weight"], hub[f"{name}.weight"].T)
        assert torch.equal(made[f"{name}.bias"], hub[f"{name}.bias"])


def test_vllm_takes_the_stacks_of_granite(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _granite_moe())
    made = _written(VLLM, model, hub)
    module = "model.layers.1.block_sparse_moe."
    assert torch.equal(made[module + "experts.routed_experts.w13_weight"], hub[module + "input_linear.weight"])
    assert torch.equal(made[module + "gate.weight"], hub[module + "router.layer.weight"])


@pytest.mark.parametrize("make", [_llama, _qwen2, _mixtral, _qwen3_moe, _glm4_moe, _gpt_oss])
def test_megatron_joins_by_group(make: Callable[[], nn.Module], saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := make())
    made = _written(MEGATRON, model, hub)
    for kind in ("weight", "bias"):
        if f"model.layers.1.self_attn.q_proj.{kind}" in hub:
            found = made[f"decoder.layers.1.self_attention.linear_qkv.{kind}"]
            assert torch.equal(found, _per_group(*_qkv(hub, "model.layers.1", kind)))
            assert not torch.equal(found, torch.cat(_qkv(hub, "model.layers.1", kind)))
    norm = made["decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"]
    assert torch.equal(norm, hub["model.layers.1.input_layernorm.weight"])
    assert not [name for name in made if name.startswith("model.")]


def test_megatron_has_a_gated_mlp_for_each_expert(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _mixtral())
    made = _written(MEGATRON, model, hub)
    for e in range(E):
        w1, w3, w2 = (hub[f"model.layers.1.block_sparse_moe.experts.{e}.{name}.weight"] for name in ("w1", "w3", "w2"))
        assert torch.equal(made[f"decoder.layers.1.mlp.experts.linear_fc1.weight{e}"], torch.cat([w1, w3]))
        assert torch.equal(made[f"decoder.layers.1.mlp.experts.linear_fc2.weight{e}"], w2)


def test_megatron_takes_gpt_oss_apart(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _gpt_oss())
    made = _written(MEGATRON, model, hub)
    was = "model.layers.1.mlp.experts."
    for e in range(E):
        both, bias = hub[was + "gate_up_proj"][e].T, hub[was + "gate_up_proj_bias"][e]
        name = "decoder.layers.1.mlp.experts.linear_fc{}{}" + str(e)
        assert torch.equal(made[name.format(1, ".weight")], torch.cat([both[0::2], both[1::2]]))
        assert torch.equal(made[name.format(1, ".bias")], torch.cat([bias[0::2], bias[1::2]]))
        assert torch.equal(made[name.format(2, ".weight")], hub[was + "down_proj"][e].T)
        assert torch.equal(made[name.format(2, ".bias")], hub[was + "down_proj_bias"][e])


def test_megatron_names_the_norm_of_a_dense_layer_otherwise(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _deepseek())
    made = _written(MEGATRON, model, hub)
    dense, experts = (f"decoder.layers.{k}." for k in (0, 1))
    assert dense + "mlp.linear_fc1.layer_norm_weight" in made
    assert experts + "pre_mlp_layernorm.weight" in made
    both = [hub[f"model.layers.1.mlp.shared_experts.{part}_proj.weight"] for part in ("gate", "up")]
    assert torch.equal(made[experts + "mlp.shared_experts.linear_fc1.weight"], torch.cat(both))
    assert not [name for name in made if name.startswith("model.")]


def test_megatron_reads_local_experts_and_local_norms(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _mixtral())
    made = _written(MEGATRON, model, hub)
    local = {}
    for name, tensor in made.items():
        start, found, rest = name.partition(".experts.linear_")
        if found:
            fc, _, number = rest.partition(".weight")
            name = f"{start}.experts.local_experts.{number}.linear_{fc}.weight"
        local[name.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight")] = tensor
    plain = [whole(name, tuple(tensor.shape)) for name, tensor in hub.items()]
    read = Dialect(MEGATRON, "MixtralForCausalLM").read(shapes(local), lambda name: FACTS)
    back = moved(local, read, plain)
    assert len(local) == len(made) and all(torch.equal(back[name], hub[name]) for name in hub)


def test_meta_has_pairs(saved: Callable[[nn.Module], Tensors]) -> None:
    """The equation of transformers' converter, `permute`, takes Meta's rows to transformers'."""
    hub = saved(model := _llama())
    made = _written(META, model, hub)
    for term, heads in (("q", H), ("k", G)):
        found = made[f"layers.1.attention.w{term}.weight"]
        turned = found.view(heads, D // 2, 2, N).transpose(1, 2).reshape(heads * D, N)
        assert torch.equal(turned, hub[f"model.layers.1.self_attn.{term}_proj.weight"])
        assert not torch.equal(found, turned)
    assert torch.equal(made["layers.1.feed_forward.w3.weight"], hub["model.layers.1.mlp.up_proj.weight"])
    assert torch.equal(made["output.weight"], hub["lm_head.weight"])
    assert not [name for name in made if name.startswith(("model.", "lm_head"))]


def test_torch_runs_the_encoder_of_bert(saved: Callable[[nn.Module], Tensors]) -> None:
    model = _bert()
    made = _written(TORCH_MHA, model, saved(model))
    layer = nn.TransformerEncoderLayer(
        H * D, H, F, 0.0, "gelu", layer_norm_eps=model.config.layer_norm_eps, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    encoder.load_state_dict({name: tensor for name, tensor in made.items() if name.startswith("layers.")})
    x = torch.randn(2, 5, H * D, generator=torch.Generator().manual_seed(2))
    wrong = copy.deepcopy(encoder)
    with torch.no_grad():
        for one in wrong.layers:
            old = one.self_attn.in_proj_weight
            old.copy_(old.reshape(H, 3, D, -1).transpose(0, 1).reshape(old.shape).clone())
        expected = model.encoder(x).last_hidden_state
        near, far = (float((one(x) - expected).abs().max() / expected.abs().max()) for one in (encoder, wrong))
    assert near < 1e-5 and far > 1e-2


def test_gluonnlp_has_files_apart_and_the_operator_by_head(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _bert())
    facts = Sizes({"heads": H, "kv_heads": H, "head_dim": D, "rotary": D})
    apart = _written(GLUONNLP, model, hub, facts)
    fused = _written(INTERLEAVED, model, hub, facts)
    cell = "encoder.transformer_cells.1.attention_cell."
    for kind in ("weight", "bias"):
        parts = [hub[f"encoder.layer.1.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
        assert torch.equal(apart[f"{cell}proj_query.{kind}"], parts[0])
        by_head = torch.stack([part.reshape(H, D, *part.shape[1:]) for part in parts], 1).flatten(0, 2)
        assert torch.equal(fused[f"{cell}in_{kind}"], by_head)
    assert torch.equal(apart["encoder.layer_norm.gamma"], hub["embeddings.LayerNorm.weight"])
    assert not [name for name in apart if name.startswith(("embeddings.", "encoder.layer."))]


def test_a_fact_that_is_lacking_is_asked_for() -> None:
    dialect = Dialect(MEGATRON, "LlamaForCausalLM")
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    with pytest.raises(UnknownSize) as error:
        dialect.read({name: (64, N)}, lambda _: Sizes({}))
    assert error.value.exit_code == 5


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"model.layers.0.self_attn.q_proj.weight": (32, N)}, "k_proj.weight"),
        (
            {
                f"model.layers.0.self_attn.{term}_proj.weight": (rows, N)
                for term, rows in (("q", 40), ("k", 16), ("v", 16))
            },
            "40 rows",
        ),
        (
            {
                f"model.layers.0.mlp.experts.{e}.{part}_proj.weight": (F, N)
                for e in (0, 2)
                for part in ("gate", "up", "down")
            },
            "experts.1.",
        ),
    ],
)
def test_parts_that_are_missing_or_contradict_the_facts(names: dict[str, tuple[int, ...]], said: str) -> None:
    dialect = Dialect(VLLM, "Qwen3MoeForCausalLM")
    with pytest.raises(LayoutError, match=said.replace(".", r"\.")):
        dialect.write(names, lambda _: FACTS)


def test_two_dialects_in_one_file() -> None:
    dialect = Dialect(VLLM, "LlamaForCausalLM")
    names = {"model.layers.0.self_attn.qkv_proj.weight": (64, N), "model.layers.1.self_attn.q_proj.weight": (32, N)}
    with pytest.raises(LayoutError, match=r"layers\.1\.self_attn\.q_proj"):
        dialect.read(names, lambda _: FACTS)


def test_a_dialect_with_the_names_of_transformers_is_one_of_two_answers(saved: Callable[[nn.Module], Tensors]) -> None:
    """BLOOM's tensors have the same names and shapes in vLLM, and other rows: nobody can tell."""
    hub = saved(_bloom())
    config = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_head": H, "hidden_size": H * D}
    sizes = facts({"heads": H, "kv_heads": H, "head_dim": D, "rotary": D}, "test")
    assert recognised(shapes(hub), config, lambda name: sizes) == ["vllm", "transformers-4"]


def test_a_plain_llama_is_the_hub(saved: Callable[[nn.Module], Tensors]) -> None:
    hub = saved(model := _llama())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    sizes = facts({"heads": H, "kv_heads": G, "head_dim": D, "rotary": D}, "test")
    assert recognised(shapes(hub), config, lambda name: sizes) == ["transformers-4"]
    for of in (VLLM, MEGATRON, META):
        made = _written(of, model, hub)
        assert recognised(shapes(made), config, lambda name: sizes) == [of.name]


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (VLLM, "model.layers.0.self_attn.q_proj.weight_scale_inv"),
        (VLLM, "model.layers.0.mlp.up_proj.qweight"),
        (MEGATRON, "model.layers.0.self_attn.o_proj.weight_scale"),
        (META, "model.layers.0.self_attn.k_proj.bias"),
        (META, "model.layers.0.self_attn.k_proj.lora_A.weight"),
    ],
)
def test_companions_are_refused(table: DialectTable, name: str) -> None:
    """A scale beside a tensor that changes its place would be left behind."""
    with pytest.raises(LayoutError, match=name):
        Dialect(table, "LlamaForCausalLM").write({name: (4,)}, lambda _: FACTS)


def test_a_scale_beside_a_fused_tensor_is_refused() -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight_scale"
    with pytest.raises(LayoutError, match=name):
        Dialect(VLLM, "LlamaForCausalLM").read({name: (64, 1)}, lambda _: FACTS)


def test_a_padded_vocabulary_is_refused() -> None:
    """Rows that are no token's are not taken for tokens."""
    names = {"embedding.word_embeddings.weight": (128, N), "decoder.final_layernorm.weight": (N,), "scalar": ()}
    dialect = Dialect(MEGATRON, "LlamaForCausalLM")
    with pytest.raises(LayoutError, match=r"128 rows; expected vocab_size=100"):
        dialect.read(names, lambda _: FACTS, 100)
    assert len(dialect.read(names, lambda _: FACTS, 128)) == len(dialect.read(names, lambda _: FACTS)) == 3


def test_a_bias_on_one_of_three() -> None:
    names = {
        f"model.layers.0.self_attn.{term}_proj.weight": (rows, N) for term, rows in (("q", 32), ("k", 16), ("v", 16))
    }
    names["model.layers.0.self_attn.q_proj.bias"] = (32,)
    for of in (VLLM, MEGATRON):
        with pytest.raises(LayoutError, match=r"k_proj\.bias"):
            Dialect(of, "LlamaForCausalLM").write(names, lambda _: FACTS)
