"""Quantised weights as their writers store them: scales and codes follow, there and back, or the command refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from tests.hostile.command import quick, refused

Module = dict[str, torch.Tensor]
HEADS, KV_HEADS, DIM, HIDDEN, FFN = 2, 1, 128, 256, 256
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "head_dim": DIM,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN, "num_hidden_layers": 1,
    "vocab_size": 8, "tie_word_embeddings": False,
}  # fmt: skip
AT = "model.layers.0"
LINEAR = {
    "self_attn.q_proj": (HEADS * DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * DIM),
    "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
}  # fmt: skip


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 255, shape, dtype=torch.uint8)


def fp8(out: int, inside: int) -> Module:
    weight = torch.randn(out, inside).to(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale_inv": torch.rand(-(-out // 128), -(-inside // 128))}


def per_tensor(out: int, inside: int) -> Module:
    weight = torch.randn(out, inside).to(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale": torch.tensor(2.0), "input_scale": torch.tensor(1.0)}


def gptq(out: int, inside: int) -> Module:
    order = torch.arange(inside, dtype=torch.int32).flip(0) // 128
    groups = inside // 128
    scales = torch.rand(groups, out).half()
    return {
        "qweight": integers(inside // 8, out),
        "qzeros": integers(groups, out // 8),
        "scales": scales,
        "g_idx": order,
    }


def awq(out: int, inside: int) -> Module:
    groups = inside // 128
    return {
        "qweight": integers(inside, out // 8), "qzeros": integers(groups, out // 8),
        "scales": torch.rand(groups, out).half(),
    }  # fmt: skip


def nvfp4(out: int, inside: int) -> Module:
    scale = torch.rand(out, inside // 16).to(torch.float8_e4m3fn)
    return {"weight_packed": codes(out, inside // 2), "weight_scale": scale, "weight_global_scale": torch.tensor([3.0])}


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy().astype("f8") if tensor.dtype.is_floating_point else tensor.numpy()


def nibbles(packed: np.ndarray, axis: int) -> np.ndarray:
    """8 codes of an int32, the lowest bits first, along an axis."""
    found = np.stack([packed.view("u4") >> (4 * k) & 15 for k in range(8)], axis + 1)
    shape = list(packed.shape)
    shape[axis] *= 8
    return found.reshape(shape).astype("f8")


def of_fp8(m: Mapping[str, np.ndarray]) -> np.ndarray:
    rows, columns = m["weight"].shape
    return m["weight"] * m["weight_scale_inv"].repeat(128, 0)[:rows].repeat(128, 1)[:, :columns]


def of_gptq(m: Mapping[str, np.ndarray]) -> np.ndarray:
    zeros = nibbles(m["qzeros"], 1)[m["g_idx"]]
    return ((nibbles(m["qweight"], 0) - zeros - 1) * m["scales"][m["g_idx"]]).T


def of_awq(m: Mapping[str, np.ndarray]) -> np.ndarray:
    def in_order(packed: np.ndarray) -> np.ndarray:
        found = nibbles(packed, 1).reshape(len(packed), -1, 8)
        return found[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(len(packed), -1)

    return ((in_order(m["qweight"]) - in_order(m["qzeros"]).repeat(128, 0)) * m["scales"].repeat(128, 0)).T


def of_nvfp4(m: Mapping[str, np.ndarray]) -> np.ndarray:
    both = np.stack([m["weight_packed"] & 15, m["weight_packed"] >> 4], -1).reshape(len(m["weight_packed"]), -1)
    return both * m["weight_scale"].repeat(16, 1) / m["weight_global_scale"]


SCHEMES: dict[str, tuple[Callable[[int, int], Module], Callable[..., np.ndarray]]] = {
    "fp8": (fp8, of_fp8), "gptq": (gptq, of_gptq), "awq": (awq, of_awq), "nvfp4": (nvfp4, of_nvfp4),
    "per-tensor": (per_tensor, lambda m: m["weight"] * m["weight_scale"]),
}  # fmt: skip


def state_of(scheme: str) -> Module:
    found = {
        f"{AT}.{n}.{suffix}": one for n, size in LINEAR.items() for suffix, one in SCHEMES[scheme][0](*size).items()
    }
    for name in ("input", "post_attention"):
        found[f"{AT}.{name}_layernorm.weight"] = torch.randn(HIDDEN)
    rest = {"model.embed_tokens.weight": (8, HIDDEN), "lm_head.weight": (8, HIDDEN), "model.norm.weight": (HIDDEN,)}
    return found | {name: torch.randn(shape) for name, shape in rest.items()}


def saved(folder: Path, state: Module) -> Path:
    folder.mkdir()
    config = {**CONFIG, "quantization_config": {"quant_method": "x", "weight_block_size": [128, 128]}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def weight(folder: Path, module: str, scheme: str) -> np.ndarray:
    """The weight of a module, dequantised."""
    state = load_file(*folder.glob("*.safetensors"))
    found = {
        name.removeprefix(f"{module}."): array(one) for name, one in state.items() if name.startswith(f"{module}.")
    }
    return SCHEMES[scheme][1](found)


@pytest.mark.sample(8)
@pytest.mark.parametrize("layout", ["qkv", "qkv-per-group", "gate-up"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_fused_and_taken_apart(scheme: str, layout: str, tmp_path: Path) -> None:
    """The fused weight dequantised is the parts dequantised, joined; back is the same file."""
    source = saved(tmp_path / "m", state_of(scheme))
    paramtool.fuse(source, tmp_path / "there", layout=layout)
    gated = layout == "gate-up"
    names = ("mlp.gate_proj", "mlp.up_proj") if gated else ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    fused = "mlp.gate_up_proj" if gated else f"self_attn.{'qkv_proj' if layout == 'qkv' else 'query_key_value'}"
    parts = [weight(source, f"{AT}.{name}", scheme) for name in names]
    assert np.array_equal(weight(tmp_path / "there", f"{AT}.{fused}", scheme), np.concatenate(parts))
    paramtool.unfuse(tmp_path / "there", tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_converted_and_back(scheme: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "m", state_of(scheme))
    paramtool.convert(source, tmp_path / "there", target="vllm")
    parts = [weight(source, f"{AT}.self_attn.{part}_proj", scheme) for part in "qkv"]
    assert np.array_equal(weight(tmp_path / "there", f"{AT}.self_attn.qkv_proj", scheme), np.concatenate(parts))
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4")
    back, before = (load_file(at / "model.safetensors") for at in (tmp_path / "back", source))
    assert back.keys() == before.keys()
    assert all(np.array_equal(array(back[name]), array(one)) for name, one in before.items())


def test_a_tile_that_would_be_cut(tmp_path: Path) -> None:
    """Heads of 96 rows and tiles of 128."""
    state = {f"a.{part}_proj.{s}": one for part in "qkv" for s, one in fp8(192 if part != "q" else 384, 256).items()}
    save_file(state, tmp_path / "m.safetensors")
    facts = ("--layout", "qkv-per-group", "--spec", "qkv heads=4 kv_heads=2")
    says = ("weight_scale_inv", "128 x 128", "runs of")
    refused(quick, "fuse", "m.safetensors", *facts, "-o", "out.safetensors", cwd=tmp_path, code=5, says=says)


DIFFER = {
    "gptq": ("g_idx", lambda one: one.flip(0)), "per-tensor": ("weight_scale", lambda one: one * 2),
    "nvfp4": ("weight_global_scale", lambda one: one + 1),
}  # fmt: skip


@pytest.mark.parametrize("command", [("fuse", "--layout", "qkv"), ("convert", "--to", "vllm")])
@pytest.mark.parametrize("scheme", DIFFER)
def test_what_parts_share_must_be_equal(scheme: str, command: tuple[str, ...], tmp_path: Path) -> None:
    """Only bytes show it: one order of inputs or one scale cannot serve parts that have different ones."""
    state, (suffix, change) = state_of(scheme), DIFFER[scheme]
    name = f"{AT}.self_attn.k_proj.{suffix}"
    state[name] = change(state[name]).contiguous()
    saved(tmp_path / "m", state)
    refused(quick, command[0], "m", *command[1:], "-o", "out", cwd=tmp_path, code=5, says=(suffix, "k_proj"))


def test_a_pair_of_low_rank(tmp_path: Path) -> None:
    state = {}
    for part, rank in (("q", 2), ("k", 2), ("v", 3)):
        state |= {f"a.{part}_proj.weight": torch.randn(8, 6), f"a.{part}_proj.lora_A.weight": torch.randn(rank, 6)}
        state[f"a.{part}_proj.lora_B.weight"] = torch.randn(8, rank)
    save_file(state, tmp_path / "m.safetensors")
    says = ("lora_A", "ranks 2, 3")
    refused(quick, "fuse", "m.safetensors", "--layout", "qkv", "-o", "o.safetensors", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize("size", [20000, 60000])
def test_several_groups_in_several_shards(size: int, tmp_path: Path) -> None:
    """Attention, then MLPs, with names kept; taken apart in one step, the tensors are in their places again."""
    state = {f"h.{k}.attn.{part}_proj.weight": torch.randn(16, 32) for k in range(4) for part in "qkv"}
    state |= {f"h.{k}.mlp.{part}_proj.weight": torch.randn(24, 32) for k in range(4) for part in ("gate", "up")}
    save_file(state, tmp_path / "m.safetensors")
    paramtool.dedup(tmp_path / "m.safetensors", tmp_path / "m", max_shard_size=size)
    paramtool.fuse(tmp_path / "m", tmp_path / "a", layout="qkv", max_shard_size=size)
    paramtool.fuse(tmp_path / "a", tmp_path / "b", layout="gate-up", max_shard_size=size)
    paramtool.unfuse(tmp_path / "b", tmp_path / "c", layout="gate-up", max_shard_size=size)
    paramtool.unfuse(tmp_path / "c", tmp_path / "d", max_shard_size=size)
    for one, other in (("a", "c"), ("m", "d")):
        files = sorted(path.name for path in (tmp_path / one).iterdir())
        assert files == sorted(path.name for path in (tmp_path / other).iterdir())
        assert all((tmp_path / one / name).read_bytes() == (tmp_path / other / name).read_bytes() for name in files)


def test_names_kept_twice(tmp_path: Path) -> None:
    """Fused with old names beside, twice: the old names are views, and the second time changes no value."""
    state = {f"h.{k}.attn.{part}_proj.weight": torch.randn(4, 3) for k in range(2) for part in "qkv"}
    save_file(state, tmp_path / "m.safetensors", {"format": "pt"})
    paramtool.fuse(tmp_path / "m.safetensors", tmp_path / "a.safetensors", layout="qkv", keep_names=True)
    paramtool.unfuse(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    paramtool.fuse(tmp_path / "b.safetensors", tmp_path / "c.safetensors", layout="qkv", keep_names=True)
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()
