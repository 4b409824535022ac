"""Models whose tensors contradict each other, their record or their config.json: refused by name, nothing written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
import paramtool.torch
from tests.attention import LLAMA as ANY_LLAMA
from tests.attention import MIXTRAL, State, folder_of, state_of
from tests.hostile.command import quick, refused

LLAMA = {**ANY_LLAMA, "hidden_size": 16}
"""One that Meta's code could run: heads of hidden_size / num_attention_heads."""
Change = Callable[[State], None]
AT, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"
MOE = "model.layers.1.block_sparse_moe.experts"
TARGETS = ["vllm", "meta", "transformers-5"]


def without(*names: str) -> Change:
    def change(state: State) -> None:
        for name in names:
            del state[name]

    return change


def with_(**tensors: torch.Tensor) -> Change:
    return lambda state: state.update({name.replace("__", "."): tensor for name, tensor in tensors.items()})


def fuse_one(state: State) -> None:
    """Layer 1 with its queries, keys and values in one tensor, layer 0 as it was."""
    rows = [state.pop(f"{AT}.{part}_proj.weight") for part in "qkv"]
    state[f"{AT}.qkv_proj.weight"] = torch.cat(rows)


def add_fused(state: State) -> None:
    """Layer 1 with queries, keys and values apart, and in one tensor, too."""
    state[f"{AT}.qkv_proj.weight"] = torch.cat([state[f"{AT}.{part}_proj.weight"] for part in "qkv"])


WRONG: dict[str, tuple[Mapping[str, Any], Change, tuple[str, ...]]] = {
    "one layer fused": (LLAMA, fuse_one, (
        "1 place mixes two forms", "model.layers.*.self_attn", "q_proj, k_proj, v_proj apart",
        "'model.layers.0.self_attn.q_proj.weight'", f"qkv_proj fused ('{AT}.qkv_proj.weight')",
    )),
    "fused and apart": (LLAMA, add_fused, (f"('{AT}.q_proj.weight')", f"('{AT}.qkv_proj.weight')")),
    "no k": (LLAMA, without(f"{AT}.k_proj.weight"), (f"{AT!r} has no k_proj.weight; 'model.layers.0.self_attn' has",)),
    "no up": (LLAMA, without(f"{MLP}.up_proj.weight"), (f"{MLP!r} has no up_proj.weight",)),
    "two parts missing": (LLAMA, without(f"{AT}.o_proj.weight", f"{MLP}.down_proj.weight"), (
        "2 modules lack", "o_proj.weight", "down_proj.weight",
    )),
    "values of other heads": (LLAMA, with_(**{f"{AT}.v_proj.weight".replace(".", "__"): torch.ones(20, 16)}), (
        f"'{AT}.v_proj.weight' has shape [20, 16]; expected 8", "kv_heads x value_dim = 2 x 4", "along axis 0",
    )),
    "values of another width": (LLAMA, with_(**{f"{AT}.v_proj.weight".replace(".", "__"): torch.ones(8, 4)}), (
        f"'{AT}.v_proj.weight' has shape [8, 4]; expected 16 (config.json: hidden_size) along axis 1",
    )),
    "another intermediate_size": ({**LLAMA, "intermediate_size": 9}, lambda state: None, (
        "3 shapes contradict", "'model.layers.0.mlp.down_proj.weight' has shape [16, 5] (and 1 tensor like it); "
        "expected 9 (config.json: intermediate_size) along axis 1",
    )),
    "another hidden_size": ({**LLAMA, "hidden_size": 32, "head_dim": 8}, lambda state: None, (
        "7 shapes contradict", "expected 32 (config.json: hidden_size)",
    )),
}  # fmt: skip


def written(tmp_path: Path, case: str) -> Path:
    """A folder with a model of a case; its config may be another's than that of the tensors."""
    config, change, _ = WRONG[case]
    state = state_of(MIXTRAL if config["model_type"] == "mixtral" else LLAMA)
    change(state)
    return folder_of(tmp_path / "m", config, state)


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("target", TARGETS)
def test_no_dialect_lets_it_through(case: str, target: str, tmp_path: Path) -> None:
    written(tmp_path, case)
    refused(quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=WRONG[case][2])


def test_experts_without_one_of_their_parts(tmp_path: Path) -> None:
    state = state_of(MIXTRAL)
    without(*(f"{MOE}.{expert}.w2.weight" for expert in range(3)))(state)
    folder_of(tmp_path / "m", MIXTRAL, state)
    says = ("3 modules lack", *(f"'{MOE}.{expert}' has no w2.weight" for expert in range(3)))
    refused(quick, "convert", "m", "--to", "transformers-5", "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size"])
def test_experts_of_another_width(key: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", {**MIXTRAL, key: 11}, state_of(MIXTRAL))
    says = (f"expected 11 (config.json: {key})", "experts.0.w1.weight", "(and 5 tensors like it)")
    refused(quick, "convert", "m", "--to", "transformers-5", "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize(
    "case, layout",
    [("one layer fused", "qkv"), ("fused and apart", "qkv"), ("another hidden_size", "qkv"),
     ("another hidden_size", "gate-up"), ("another intermediate_size", "gate-up")],
)  # fmt: skip
def test_fuse_refuses_the_same(case: str, layout: str, tmp_path: Path) -> None:
    written(tmp_path, case)
    says = () if "shapes" in WRONG[case][2][0] else WRONG[case][2]
    refused(quick, "fuse", "m", "--layout", layout, "-o", "out", cwd=tmp_path, code=5, says=says)


def test_fuse_takes_layers_that_are_chosen(tmp_path: Path) -> None:
    """Fused in two steps: what the record says is no contradiction, and --at chooses."""
    source = folder_of(tmp_path / "m", LLAMA)
    paramtool.fuse(source, tmp_path / "one", layout="qkv", at=["model.layers.1.*"])
    paramtool.fuse(tmp_path / "one", tmp_path / "both", layout="qkv", at=["model.layers.0.*"])
    written(tmp_path, "one layer fused")
    ran = quick("fuse", "m", "--layout", "qkv", "--at", "model.layers.0.*", "-o", "out", cwd=tmp_path)
    assert ran.code == 0


@pytest.mark.parametrize("command", ["unfuse", "convert"])
def test_parts_in_a_fused_tensor_are_named(command: str, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "m", LLAMA)
    paramtool.convert(source, tmp_path / "vllm", target="vllm")
    folder_of(tmp_path / "m", {**LLAMA, "intermediate_size": 9}, paramtool.torch.load_file(tmp_path / "vllm"))
    options = ("--layout", "gate-up") if command == "unfuse" else ("--from", "vllm", "--to", "meta")
    says = ("'model.layers.0.mlp.gate_proj.weight' in 'model.layers.0.mlp.gate_up_proj.weight' has shape [5, 16]",)
    refused(quick, command, "m", *options, "-o", "out", cwd=tmp_path, code=5, says=says)


def test_unfuse_refuses_a_missing_bias(tmp_path: Path) -> None:
    """Biases of stacks: one layer lacks one."""
    state = {}
    for layer in (0, 1):
        at = f"model.layers.{layer}.mlp.experts"
        state |= {f"{at}.gate_up_proj": torch.randn(3, 10, 6), f"{at}.down_proj": torch.randn(3, 6, 5)}
        state |= {f"{at}.gate_up_proj_bias": torch.randn(3, 10), f"{at}.down_proj_bias": torch.randn(3, 6)}
    del state["model.layers.1.mlp.experts.gate_up_proj_bias"]
    folder_of(tmp_path / "m", MIXTRAL, state)
    says = ("'model.layers.1.mlp.experts' has no gate_up_proj_bias", "'model.layers.0.mlp.experts' has")
    refused(quick, "unfuse", "m", "--layout", "experts", "-o", "out", cwd=tmp_path, code=5, says=says)


def test_fuse_refuses_a_part_that_the_layout_lacks(tmp_path: Path) -> None:
    state = state_of(LLAMA)
    state["model.layers.0.self_attn.g_proj.weight"] = torch.randn(4, 16)
    folder_of(tmp_path / "m", LLAMA, state)
    says = ("model.layers.0.self_attn: g_proj", "qkv-scalar-gate", "--at MODULE")
    refused(quick, "fuse", "m", "--layout", "qkv", "-o", "out", cwd=tmp_path, code=5, says=says)
    ran = quick("fuse", "m", "--layout", "qkv", "--at", "*.self_attn", "-o", "out", cwd=tmp_path)
    assert ran.code == 0


# --- the record of parts ---------------------------------------------------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize("layout", ["qkv", "qkv-per-group", "qkv-per-head"])
@pytest.mark.parametrize("target", ["vllm", "megatron", "meta", "transformers-5"])
def test_fused_tensors_are_read_as_their_parts(layout: str, target: str, tmp_path: Path) -> None:
    """A dialect of what was fused in another layout is that of what was not."""
    config = {**LLAMA, "num_key_value_heads": 4} if layout == "qkv-per-head" else LLAMA
    source = folder_of(tmp_path / "m", config)
    paramtool.fuse(source, tmp_path / "fused", layout=layout)
    paramtool.convert(tmp_path / "fused", tmp_path / "there", target=target)
    paramtool.convert(source, tmp_path / "plain", target=target)
    there, plain = (paramtool.torch.load_file(tmp_path / name) for name in ("there", "plain"))
    assert there.keys() == plain.keys()
    assert all(torch.equal(there[name], plain[name]) for name in plain)
    found = paramtool.verify(tmp_path / "there", tmp_path / "fused")
    assert not found.differences and not found.warnings


def test_experts_that_were_stacked_are_read_as_a_list(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "m", MIXTRAL)
    paramtool.fuse(source, tmp_path / "fused", layout="experts")
    for target in ("vllm", "transformers-5"):
        paramtool.convert(tmp_path / "fused", tmp_path / target, target=target)
        paramtool.convert(source, tmp_path / f"{target}-plain", target=target)
        found = paramtool.verify(tmp_path / target, tmp_path / f"{target}-plain")
        assert not found.differences


def test_tensors_that_a_dialect_has_are_its_own(tmp_path: Path) -> None:
    """Fused as vLLM has them: the file is in vLLM's dialect, whatever its record says."""
    source = folder_of(tmp_path / "m", LLAMA)
    paramtool.fuse(source, tmp_path / "a", layout="qkv")
    paramtool.fuse(tmp_path / "a", tmp_path / "b", layout="gate-up")
    ran = quick("convert", "b", "--to", "meta", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "vllm -> meta" in ran.out
    paramtool.convert(source, tmp_path / "meta", target="meta")
    assert not paramtool.verify(tmp_path / "out", tmp_path / "meta").differences


def test_names_of_another_layout_are_refused(tmp_path: Path) -> None:
    """vLLM's name for rows that follow each other otherwise, by the record."""
    source = folder_of(tmp_path / "m", LLAMA)
    paramtool.fuse(source, tmp_path / "a", layout="qkv-per-group", rename={"query_key_value": "qkv_proj"})
    paramtool.fuse(tmp_path / "a", tmp_path / "b", layout="gate-up")
    says = ("2 tensors are not as vllm has them", f"'{AT}.qkv_proj.weight' is of layout qkv-per-group", "unfuse")
    refused(quick, "convert", "b", "--from", "vllm", "--to", "meta", "-o", "out", cwd=tmp_path, code=5, says=says)


def test_parts_of_a_tensor_that_the_dialect_has_are_refused(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    state = state_of(LLAMA)
    for layer in (0, 1):
        at = f"model.layers.{layer}"
        parts = [state.pop(f"{at}.self_attn.{part}_proj.weight") for part in "qkv"]
        state[f"{at}.self_attn.qkv_proj.weight"] = torch.cat(parts)
        parts = [state.pop(f"{at}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        state[f"{at}.mlp.gate_up_proj.weight"] = torch.cat(parts)
    paramtool.unfuse(folder_of(tmp_path / "m", config, state), tmp_path / "apart")
    says = ("4 tensors of transformers-4 were taken apart", "fuse FILE --layout qkv -o OUT", "--layout gate-up")
    for target in ("vllm", "transformers-5"):
        refused(quick, "convert", "apart", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=says)


def test_old_names_that_were_kept_are_no_names_of_another_dialect(tmp_path: Path) -> None:
    paramtool.fuse(folder_of(tmp_path / "m", LLAMA), tmp_path / "kept", layout="qkv", keep_names=True)
    says = ("6 names are views", f"{AT}.q_proj.weight", "unfuse")
    refused(quick, "convert", "kept", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=says)
    paramtool.convert(tmp_path / "kept", tmp_path / "five", target="transformers-5")
    assert not paramtool.verify(tmp_path / "five", tmp_path / "m").differences


# --- which dialect ---------------------------------------------------------------------------------------------------

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1,
    "vocab_size": 5, "n_positions": 4,
}  # fmt: skip
BLOOM = {
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 8, "n_head": 2, "n_layer": 1,
    "vocab_size": 5,
}  # fmt: skip


@pytest.mark.parametrize("shape, source", [((8, 24), "transformers-4"), ((24, 8), "vllm")])
def test_the_shapes_of_gpt2_say_who_wrote_it(shape: tuple[int, int], source: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", GPT2, {"transformer.h.0.attn.c_attn.weight": torch.randn(shape)})
    target = "vllm" if source == "transformers-4" else "transformers-4"
    ran = quick("convert", "m", "--to", target, "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and f"{source} -> {target}" in ran.out
    found = paramtool.torch.load_file(tmp_path / "out")["transformer.h.0.attn.c_attn.weight"]
    assert found.shape == shape[::-1]


def test_where_nothing_tells_the_message_says_what_differs(tmp_path: Path) -> None:
    at = "transformer.h.0.self_attention.query_key_value.weight"
    folder_of(tmp_path / "m", BLOOM, {at: torch.randn(24, 8)})
    says = (
        f"transformers-4: '{at}' is {{heads: q[head_dim in] k[head_dim in] v[value_dim in]}}",
        f"vllm: '{at}' is q[(heads head_dim) in] k[(heads head_dim) in] v[(heads value_dim) in]",
        "--from DIALECT",
    )
    refused(quick, "convert", "m", "--to", "transformers-5", "-o", "out", cwd=tmp_path, code=5, says=says)


# --- missing layers --------------------------------------------------------------------------------------------------


QWEN3: Mapping[str, Any] = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
THREE = {"num_hidden_layers": 3}


def one_norm(state: State) -> None:
    """Layer 1 with a norm of queries, layer 0 as it was."""
    state[f"{AT}.q_norm.weight"] = torch.ones(4)


LAYERS: dict[str, tuple[Mapping[str, Any], Change, tuple[str, ...]]] = {
    "a layer is missing": ({**LLAMA, **THREE}, lambda state: None, (
        "config.json says 3 layers (num_hidden_layers); model.layers has 2 of them: no 2",
    )),
    "a layer more": ({**LLAMA, "num_hidden_layers": 1}, lambda state: None, ("model.layers has 1 more: 1",)),
    "a norm more": (QWEN3, one_norm, ("'model.layers.0' has no 'self_attn.q_norm.weight'; 'model.layers.1' has",)),
    "no norm": (LLAMA, without("model.layers.1.input_layernorm.weight"), (
        "'model.layers.1' has no 'input_layernorm.weight'; 'model.layers.0' has",
    )),
    "no MLP": (LLAMA, without(*(f"{MLP}.{part}_proj.weight" for part in ("gate", "up", "down"))), (
        "'model.layers.1' has no 'mlp.down_proj.weight', 'mlp.gate_proj.weight', 'mlp.up_proj.weight'",
    )),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("target", ["vllm", "megatron", "transformers-5"])
def test_layers_that_contradict_each_other_or_the_config(case: str, target: str, tmp_path: Path) -> None:
    config, change, says = LAYERS[case]
    state = state_of(LLAMA)
    change(state)
    folder_of(tmp_path / "m", config, state)
    refused(quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=says)


def test_layers_that_predict_further_tokens_are_none_too_many(tmp_path: Path) -> None:
    config = {**LLAMA, "num_nextn_predict_layers": 1}
    folder_of(tmp_path / "m", config, state_of({**LLAMA, "num_hidden_layers": 3}))
    ran = quick("convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "num_hidden_layers" not in ran.err


# --- settings of the wrong type, and the vocabulary ------------------------------------------------------------------


@pytest.mark.parametrize("target", ["transformers-5", "vllm", "megatron"])
@pytest.mark.parametrize(
    "key, value, says",
    [("num_local_experts", "3", "num_local_experts is '3'; expected a whole number"),
     ("num_hidden_layers", [2], "num_hidden_layers is [2]; expected a whole number"),
     ("hidden_size", 6.0, "hidden_size is 6.0; expected a whole number"),
     ("intermediate_size", True, "intermediate_size is true; expected a whole number"),
     ("tie_word_embeddings", "no", "tie_word_embeddings is 'no'; expected true or false"),
     ("architectures", "MixtralForCausalLM", "expected a list of strings, as in ["),
     ("vocab_size", "7", "vocab_size is '7'; expected a whole number")],
)  # fmt: skip
def test_settings_of_the_wrong_type(key: str, value: object, says: str, target: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", {**MIXTRAL, key: value}, state_of(MIXTRAL))
    refused(
        quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=(says, "config.json: 1 setting")
    )  # fmt: skip


@pytest.mark.parametrize("command", [("fuse", "--layout", "experts"), ("fuse", "--layout", "qkv")])
def test_fuse_refuses_settings_of_the_wrong_type(command: tuple[str, ...], tmp_path: Path) -> None:
    folder_of(tmp_path / "m", {**MIXTRAL, "num_local_experts": "3"}, state_of(MIXTRAL))
    says = ("num_local_experts is '3'",)
    refused(quick, command[0], "m", *command[1:], "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("target", ["transformers-5", "vllm", "megatron", "meta"])
@pytest.mark.parametrize("rows", [6, 8])
def test_another_vocabulary(rows: int, target: str, tmp_path: Path) -> None:
    """Neither fewer rows than tokens nor more: from_pretrained and vLLM want as many."""
    folder_of(tmp_path / "m", {**LLAMA, "vocab_size": rows}, state_of(LLAMA))
    says = (f"expected {rows} (config.json: vocab_size) along axis 0", "embed_tokens", "lm_head")
    refused(quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("target", ["transformers-5", "vllm", "megatron", "meta"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_names_of_a_wrapped_model(prefix: str, target: str, tmp_path: Path) -> None:
    state = {f"{prefix}{name}": one for name, one in state_of(LLAMA).items()}
    folder_of(tmp_path / "m", LLAMA, state)
    says = (prefix, "--rename")
    refused(quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("target", ["megatron", "meta"])
@pytest.mark.parametrize("old, new", [("", "model."), ("", "net."), ("model.", "")])
def test_another_prefix_than_the_table_has(old: str, new: str, target: str, tmp_path: Path) -> None:
    """Without `model.` the norm at the end has the name that Meta gives it; that does not make it Meta's model."""
    state = {new + name.removeprefix(old): one for name, one in state_of(LLAMA).items()}
    folder_of(tmp_path / "m", LLAMA, state)
    says = ("model.layers.*",)
    refused(quick, "convert", "m", "--to", target, "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("there", [("kv_a_proj_with_mqa", "q_a_proj"), ("q_a_proj",)], ids=len)
def test_parts_of_a_fused_tensor_that_hangs_on_another(there: tuple[str, ...], tmp_path: Path) -> None:
    """vLLM fuses kv_a_proj_with_mqa with q_a_proj, if the model has that: both apart are of another dialect."""
    at = "model.layers.0.self_attn"
    state = {f"{at}.{name}.weight": torch.randn(3, 6) for name in there}
    state["model.layers.0.mlp.gate_up_proj.weight"] = torch.randn(10, 6)
    config = {**LLAMA, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 1}
    folder_of(tmp_path / "m", config, state)
    flags = ("--from", "vllm", "--to", "transformers-4")
    says = ("is a part that vllm stores fused with others",)
    refused(quick, "convert", "m", *flags, "-o", "out", cwd=tmp_path, code=5, says=says)


ALONE = {"architectures": ["LlamaModel"]}


@pytest.mark.parametrize("config", [{**LLAMA, **ALONE}, {**LLAMA, "tie_word_embeddings": True}], ids=["alone", "tied"])
def test_vllm_has_a_prefix_that_a_model_alone_lacks(config: Mapping[str, Any], tmp_path: Path) -> None:
    """A LlamaModel of transformers has `layers.0`, and vLLM `model.layers.0`; going back takes it off again."""
    own = {name: one for name, one in state_of(LLAMA).items() if name != "lm_head.weight"}
    source = folder_of(tmp_path / "m", config, {name.removeprefix("model."): one for name, one in own.items()})
    paramtool.convert(source, tmp_path / "there", target="vllm")
    names = paramtool.torch.load_file(tmp_path / "there").keys()
    assert {name for name in names if not name.startswith("model.")} == (
        {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    )
    assert "model.layers.0.self_attn.qkv_proj.weight" in names and "model.norm.weight" in names
    assert paramtool.verify(tmp_path / "there", source).differences == ()
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_a_prefix_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """A head beside the names of a model alone; and a model of which the table does not say its prefix."""
    state = {name.removeprefix("model."): one for name, one in state_of(LLAMA).items()}
    folder_of(tmp_path / "m", LLAMA, state)
    says = ("vllm has something in front of this name in LlamaForCausalLM", "--rename '*=model.*'")
    refused(quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=says)
    del state["lm_head.weight"]
    config = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 4}
    folder_of(tmp_path / "m", config, state)
    says = ("vllm has something in front of this name in Gemma2ForCausalLM",)
    refused(quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=says)


def test_params_that_contradict_the_config(tmp_path: Path) -> None:
    """Both say how many heads there are, which decides where the rows of q and k go."""
    folder_of(tmp_path / "m", {**LLAMA, "hidden_size": LLAMA["num_attention_heads"] * LLAMA["head_dim"]})
    ran = quick("convert", "m", "--to", "meta", "-o", "n", cwd=tmp_path)
    assert ran.code == 0, ran
    path = tmp_path / "n" / "params.json"
    path.write_text(path.read_text().replace(f'"n_heads": {LLAMA["num_attention_heads"]}', '"n_heads": 1'))
    refused(quick, "convert", "n", "--to", "transformers-4", "-o", "out", cwd=tmp_path, code=5, says=("n_heads is 1",))
