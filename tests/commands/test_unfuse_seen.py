"""`unfuse` without a layout: the family decides, or what fits is listed and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import paramtool
from paramtool.errors import LayoutError
from tests.attention import LLAMA, folder_of
from tests.hostile.command import quick

State = dict[str, torch.Tensor]


def folder(path: Path, state: State, config: dict[str, Any] | None) -> Path:
    path.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def neox() -> State:
    at = "gpt_neox.layers.{}.attention.{}"
    found = {}
    for k in range(2):
        found[at.format(k, "query_key_value.weight")] = torch.randn(24, 8)
        found[at.format(k, "query_key_value.bias")] = torch.randn(24)
        found[at.format(k, "dense.weight")] = torch.randn(8, 8)
    return found


NEOX = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 8}


def there_and_back(path: Path) -> State:
    """The parts; and fusing them again gives the tensors that there were, in their order where one layout is fused."""
    out, back = path.parent / "out", path.parent / "back"
    report = paramtool.unfuse(path, out)
    assert report.rearranged is not None
    assert not paramtool.verify(out, path).differences
    for layout in report.rearranged.said:
        paramtool.fuse(out, back, layout=layout, force=True)
        out, back = back, back.with_name(back.name + "_")
    before, after = load_file(path / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert len(report.rearranged.said) > 1 or list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    return load_file(path.parent / "out" / "model.safetensors")


def test_the_family_decides(tmp_path: Path) -> None:
    state = neox()
    parts = there_and_back(folder(tmp_path / "m", state, NEOX))
    fused = state["gpt_neox.layers.1.attention.query_key_value.weight"].view(2, 3, 4, 8)
    assert torch.equal(parts["gpt_neox.layers.1.attention.k_proj.weight"], fused[:, 1].reshape(8, 8))


def test_the_report_says_who_decided(tmp_path: Path) -> None:
    folder(tmp_path / "m", neox(), NEOX)
    ran = quick("unfuse", "m", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "qkv-per-head by config.json (gpt_neox)" in ran.out, ran


def test_another_family_decides_otherwise(tmp_path: Path) -> None:
    state = neox()
    parts = there_and_back(folder(tmp_path / "m", state, {"model_type": "chatglm", "num_attention_heads": 2,
                                                          "kv_channels": 4}))  # fmt: skip
    fused = state["gpt_neox.layers.1.attention.query_key_value.weight"]
    assert torch.equal(parts["gpt_neox.layers.1.attention.k_proj.weight"], fused[8:16])


def test_without_a_config_what_fits_is_listed(tmp_path: Path) -> None:
    folder(tmp_path / "m", neox(), None)
    ran = quick("unfuse", "m", "-o", "out", cwd=tmp_path)
    assert ran.code == 5 and not (tmp_path / "out").exists()
    assert "qkv-per-head (heads=...)" in ran.err and "config.json" in ran.err


def test_facts_alone_do_not_decide(tmp_path: Path) -> None:
    folder(tmp_path / "m", neox(), None)
    with pytest.raises(LayoutError, match="qkv-per-head"):
        paramtool.unfuse(tmp_path / "m", tmp_path / "out", spec="qkv heads=2 kv_heads=2")


def test_modernbert(tmp_path: Path) -> None:
    state = {}
    for k in range(2):
        state |= {f"layers.{k}.attn.Wqkv.weight": torch.randn(24, 8), f"layers.{k}.mlp.Wi.weight": torch.randn(32, 8)}
    parts = there_and_back(folder(tmp_path / "m", state, {"model_type": "modernbert", "num_attention_heads": 2,
                                                          "hidden_size": 8}))  # fmt: skip
    assert torch.equal(parts["layers.0.mlp.gate_proj.weight"], state["layers.0.mlp.Wi.weight"][:16])
    assert torch.equal(parts["layers.0.attn.v_proj.weight"], state["layers.0.attn.Wqkv.weight"][16:])


def test_jetmoe(tmp_path: Path) -> None:
    """Layers that are stacks; those of its attention are no gated experts and stay."""
    at = "model.layers.0"
    state = {
        f"{at}.mlp.input_linear.weight": torch.randn(4, 32, 8),
        f"{at}.mlp.output_linear.weight": torch.randn(4, 8, 16),
        f"{at}.self_attention.experts.input_linear.weight": torch.randn(4, 6, 8),
        f"{at}.self_attention.experts.output_linear.weight": torch.randn(4, 8, 6),
        f"{at}.self_attention.kv_proj.weight": torch.randn(12, 8),
    }
    config = {"model_type": "jetmoe", "num_key_value_heads": 3, "kv_channels": 2, "num_local_experts": 4}
    parts = there_and_back(folder(tmp_path / "m", state, config))
    assert torch.equal(parts[f"{at}.mlp.2.up_proj.weight"], state[f"{at}.mlp.input_linear.weight"][2, 16:])
    assert torch.equal(parts[f"{at}.mlp.2.down_proj.weight"], state[f"{at}.mlp.output_linear.weight"][2])
    assert f"{at}.self_attention.experts.input_linear.weight" in parts


def test_dbrx(tmp_path: Path) -> None:
    at = "transformer.blocks.0"
    state = {f"{at}.ffn.experts.mlp.{name}": torch.randn(4 * 6, 8) for name in ("w1", "v1", "w2")}
    state[f"{at}.norm_attn_norm.attn.Wqkv.weight"] = torch.randn(16, 8)
    config = {
        "model_type": "dbrx", "d_model": 8, "n_heads": 4, "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 6, "moe_num_experts": 4},
    }  # fmt: skip
    parts = there_and_back(folder(tmp_path / "m", state, config))
    assert torch.equal(
        parts[f"{at}.ffn.experts.mlp.1.down_proj.weight"], state[f"{at}.ffn.experts.mlp.w2"][6:12].T.contiguous()
    )


def test_torch_attention_needs_no_config(tmp_path: Path) -> None:
    module = nn.MultiheadAttention(8, 2)
    torch.save({f"attn.{name}": tensor for name, tensor in module.state_dict().items()}, tmp_path / "m.pt")
    report = paramtool.unfuse(tmp_path / "m.pt", tmp_path / "out.safetensors", spec="qkv heads=2 kv_heads=2")
    assert report.rearranged is not None and list(report.rearranged.said) == ["qkv"]
    parts = load_file(tmp_path / "out.safetensors")
    assert torch.equal(parts["attn.k_proj.weight"], module.in_proj_weight[8:16])
    assert torch.equal(parts["attn.v_proj.bias"], module.in_proj_bias[16:])


def test_only_some_modules(tmp_path: Path) -> None:
    folder(tmp_path / "m", neox(), NEOX)
    paramtool.unfuse(tmp_path / "m", tmp_path / "out", at=["gpt_neox.layers.1.attention"])
    parts = load_file(tmp_path / "out" / "model.safetensors")
    assert "gpt_neox.layers.0.attention.query_key_value.weight" in parts
    assert "gpt_neox.layers.1.attention.q_proj.weight" in parts


def test_recurrent_networks_come_first(tmp_path: Path) -> None:
    """A file with both is taken as before."""
    module = nn.LSTM(3, 4)
    torch.save({**{f"rnn.{name}": t for name, t in module.state_dict().items()}, **neox()}, tmp_path / "m.pt")
    paramtool.fuse(tmp_path / "m.pt", tmp_path / "fused.safetensors", layout="cudnn")
    report = paramtool.unfuse(tmp_path / "fused.safetensors", tmp_path / "out.safetensors")
    assert len(report.converted) == 1 and report.rearranged is None


def test_nothing_is_fused(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", LLAMA)
    ran = quick("unfuse", "m", "-o", "out", cwd=tmp_path)
    assert ran.code == 5 and "nothing is fused in it; its attention, gated MLPs and experts are" in ran.err
