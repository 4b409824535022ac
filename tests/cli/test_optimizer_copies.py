"""Averages and float32 copies beside a model: they are converted as it is, or the command says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.hostile.command import Ran, quick

PARTS = ("q_proj", "k_proj", "v_proj")


class Model(nn.Module):
    """An LSTM and three projections, or the same with one projection."""

    def __init__(self, *, is_fused: bool = False) -> None:
        super().__init__()
        self.emb = nn.Linear(3, 6)
        made = {"qkv_proj": nn.Linear(6, 18)} if is_fused else {name: nn.Linear(6, 6) for name in PARTS}
        self.attn = nn.ModuleDict(made)
        self.lstm = nn.LSTM(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        """Something of all parameters."""
        found = self.emb(inputs)
        if len(self.attn) == 1:
            query, key, value = self.attn["qkv_proj"](found).split(6, -1)
        else:
            query, key, value = (self.attn[name](found) for name in PARTS)
        outputs: Tensor = self.lstm(query * key + value)[0]
        return outputs


class Run:
    """A model, its optimizer and its average by torch, after some steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 2, 3)).square().mean().backward()
            self.optimizer.step()
            self.average.update_parameters(self.model)

    def save(self, path: Path, **more: Any) -> Path:
        """A training file."""
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **more}, path)
        return path


def fused(path: Path, *more: object) -> tuple[Ran, dict[str, Any]]:
    """The file with one projection, and what torch loads of it; `verify` agrees."""
    output = path.with_name("out.pt")
    ran = quick("fuse", path, "--layout", "qkv", "-o", output, "--force", *more, cwd=Path.cwd())
    if ran.code:
        assert not output.exists()
        return ran, {}
    verified = quick("verify", output, "--against", path, cwd=Path.cwd())
    assert verified.code == 0, verified
    return ran, torch.load(output, weights_only=True)


def joined(state: dict[str, Tensor], prefix: str = "", kind: str = "weight") -> Tensor:
    """The parts one behind the other."""
    return torch.cat([state[f"{prefix}attn.{name}.{kind}"] for name in PARTS])


def test_torchs_averaged_model_is_loaded_into_the_other_module(tmp_path: Path) -> None:
    run = Run()
    _, out = fused(run.save(tmp_path / "a.pt", ema=run.average.state_dict()))
    average = AveragedModel(Model(is_fused=True), multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.load_state_dict(out["ema"])
    assert int(average.n_averaged) == 3
    assert torch.equal(average.module.attn["qkv_proj"].weight, joined(run.average.state_dict(), "module."))
    assert not torch.equal(out["model"]["attn.qkv_proj.weight"], out["ema"]["module.attn.qkv_proj.weight"])


@pytest.mark.parametrize("form", ["timm", "lightning"])
def test_averages_by_name_are_converted_too(form: str, tmp_path: Path) -> None:
    """As timm's train.py names them, and as a callback of Lightning keeps them."""
    run = Run()
    average = run.average.module.state_dict()
    if form == "timm":
        _, out = fused(run.save(tmp_path / "a.pt", state_dict_ema=average))
        found = out["state_dict_ema"]
    else:
        held = {"state_dict": run.model.state_dict(), "optimizer_states": [run.optimizer.state_dict()]}
        torch.save(held | {"callbacks": {"EMA": {"ema_state_dict": average}}}, tmp_path / "a.ckpt")
        _, out = fused(tmp_path / "a.ckpt")
        found = out["callbacks"]["EMA"]["ema_state_dict"]
    assert torch.equal(found["attn.qkv_proj.weight"], joined(average)) and len(found) == 8


def test_an_average_that_would_stay_behind_is_named(tmp_path: Path) -> None:
    run = Run()
    path = run.save(tmp_path / "a.pt", ema=run.average.module.state_dict())
    ran, _ = fused(path, "--at", "model.attn")
    assert ran.code == 6 and "'ema.attn.q_proj.weight' of an average of it would not" in ran.err, ran


def test_a_list_of_averages_follows_by_position(tmp_path: Path) -> None:
    """As diffusers and torch_ema keep them: all parameters in the order of `parameters()`."""
    run = Run()
    shadow = [one.detach().clone() for one in run.average.module.parameters()]
    path = run.save(tmp_path / "a.pt", ema={"decay": 0.5, "shadow_params": shadow})
    ran, out = fused(path, "--json")
    moved = {one["at"]: one for one in json.loads(ran.out)["optimizer"]["moved"]}
    assert (moved["ema.shadow_params"]["before"], moved["ema.shadow_params"]["after"]) == (6, 2)
    other = Model(is_fused=True)
    assert [one.shape for one in out["ema"]["shadow_params"]] == [one.shape for one in other.parameters()]
    average = run.average.module.state_dict()
    assert torch.equal(out["ema"]["shadow_params"][2], joined(average))
    assert torch.equal(out["ema"]["shadow_params"][3], joined(average, kind="bias"))
    assert torch.equal(out["ema"]["shadow_params"][4], average["lstm.weight_ih_l0"])


def test_a_list_without_an_optimizer_follows_too(tmp_path: Path) -> None:
    run = Run()
    shadow = [one.detach().clone() for one in run.average.module.parameters()]
    torch.save({"model": run.model.state_dict(), "ema": {"shadow_params": shadow}}, tmp_path / "a.pt")
    _, out = fused(tmp_path / "a.pt")
    assert len(out["ema"]["shadow_params"]) == 8


def test_a_list_whose_places_are_not_sure_is_refused(tmp_path: Path) -> None:
    """One copy is missing, and several of the model's parameters could be without one."""
    run = Run()
    shadow = [one.detach().clone() for one in run.average.module.parameters()]
    path = run.save(tmp_path / "a.pt", ema={"shadow_params": shadow[:2] + shadow[4:]})
    ran, _ = fused(path)
    assert ran.code == 6 and "the state of 'ema.shadow_params' cannot follow: ambiguous" in ran.err, ran


def test_a_list_of_other_things_stays_with_a_warning(tmp_path: Path) -> None:
    run = Run()
    path = run.save(tmp_path / "a.pt", ema={"losses": [torch.zeros(5), torch.zeros(5)]})
    ran, out = fused(path)
    assert "ema.losses: left as it is; not bound" in ran.err and len(out["ema"]["losses"]) == 2, ran


@pytest.mark.parametrize("name", ["fp32_from_fp16_params", "fp32_from_fp16"])
def test_float32_copies_beside_an_optimizer_follow(name: str, tmp_path: Path) -> None:
    """As Megatron-LM and apex keep them: a list for each group."""
    run = Run()
    held = [[one.detach().clone() for one in run.model.parameters()]]
    found = {"model": {key: one.half() for key, one in run.model.state_dict().items()},
             "optimizer": {"optimizer": run.optimizer.state_dict(), name: held}}  # fmt: skip
    torch.save(found, tmp_path / "a.pt")
    _, out = fused(tmp_path / "a.pt")
    copies = out["optimizer"][name][0]
    assert out["model"]["attn.qkv_proj.weight"].dtype == torch.float16 and copies[2].dtype == torch.float32
    assert torch.equal(copies[2], joined(run.model.state_dict())) and len(copies) == 8


def test_two_biases_that_are_summed_are_summed_in_float32_too(tmp_path: Path) -> None:
    run = Run()
    held = [[one.detach().clone() for one in run.model.parameters()]]
    found = {"model": {key: one.half() for key, one in run.model.state_dict().items()},
             "optimizer": {"optimizer": run.optimizer.state_dict(), "fp32_from_fp16_params": held}}  # fmt: skip
    torch.save(found, tmp_path / "a.pt")
    words = ("convert", tmp_path / "a.pt", "--to", "keras", "-o", tmp_path / "b.pt")
    ran = quick(*words, cwd=Path.cwd())
    assert ran.code == 0 and "two biases were summed" in ran.err + ran.out, ran
    out = torch.load(tmp_path / "b.pt", weights_only=True)
    copy = out["optimizer"]["fp32_from_fp16_params"][0][list(out["model"]).index("lstm/bias")]
    lstm = run.model.lstm
    assert torch.equal(copy, (lstm.bias_ih_l0 + lstm.bias_hh_l0).detach())
