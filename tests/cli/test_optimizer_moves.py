"""What `fuse` does to the state of optimizers: it follows, or the command says why it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hostile.command import Ran, quick


def run(*words: object) -> Ran:
    """One command."""
    return quick(*words, cwd=Path.cwd())


def trained(optimizer: str = "AdamW", **more: Any) -> dict[str, Any]:
    """A checkpoint of an LSTM between two other layers, after two steps."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"emb": nn.Linear(3, 5), "lstm": nn.LSTM(5, 4), "head": nn.Linear(4, 2)})
    made = getattr(torch.optim, optimizer)(more.pop("groups", lambda m: m.parameters())(model), lr=0.01, **more)
    for _ in range(2):
        made.zero_grad()
        model["head"](model["lstm"](model["emb"](torch.randn(4, 2, 3)))[0]).square().mean().backward()
        made.step()
    return {"model": model.state_dict(), "optimizer": made.state_dict(), "epoch": 3}


def saved(path: Path, checkpoint: dict[str, Any]) -> Path:
    """The checkpoint as a file."""
    torch.save(checkpoint, path)
    return path


def fused(path: Path, *more: object) -> Ran:
    """The network as one vector."""
    return run("fuse", path, "--layout", "cudnn", "-o", path.with_name("out.pt"), "--force", *more)


def test_the_report_says_what_moved_and_why_it_was_sure(tmp_path: Path) -> None:
    ran = fused(saved(tmp_path / "a.pt", trained()), "--json")
    assert ran.code == 0, ran
    (one,) = json.loads(ran.out)["optimizer"]["moved"]
    assert (one["at"], one["algorithm"], one["before"], one["after"]) == ("optimizer", "AdamW", 4, 1)
    assert one["words"].startswith("bound by order of the model's 8 parameters")
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert out["optimizer"]["param_groups"][0]["params"] == [0, 1, 2, 3, 4]
    assert run("verify", tmp_path / "out.pt", "--against", tmp_path / "a.pt").code == 0


def test_verify_finds_state_that_was_changed(tmp_path: Path) -> None:
    fused(saved(tmp_path / "a.pt", trained()))
    out = torch.load(tmp_path / "out.pt", weights_only=True)

    data = bytearray((tmp_path / "out.pt").read_bytes())
    old = out["optimizer"]["state"][2]["exp_avg"].numpy().tobytes()
    place = data.find(old)
    assert place > 0
    data[place] ^= 1
    (tmp_path / "out.pt").write_bytes(data)
    assert run("verify", tmp_path / "out.pt", "--against", tmp_path / "a.pt").code != 0


@pytest.mark.parametrize("form", ["plain", "lightning"])
def test_state_is_dropped_where_that_is_asked_for(form: str, tmp_path: Path) -> None:
    found = trained()
    if form == "lightning":
        found = {"state_dict": found["model"], "optimizer_states": [found["optimizer"]], "epoch": 3}
    ran = fused(saved(tmp_path / "a.pt", found), "--drop-optimizer")
    assert ran.code == 0 and "as --drop-optimizer says" in ran.out
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert not out.get("optimizer") and not out.get("optimizer_states") and out["epoch"] == 3


def test_lightning_moves_too(tmp_path: Path) -> None:
    found = trained()
    found = {"state_dict": found["model"], "optimizer_states": [found["optimizer"]], "epoch": 3}
    assert fused(saved(tmp_path / "a.ckpt", found)).code == 0
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert len(out["optimizer_states"][0]["state"]) == 5


def test_parts_in_two_groups_are_refused(tmp_path: Path) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        named = dict(model.named_parameters())
        apart = [one for name, one in named.items() if "bias" in name]
        return [{"params": [one for name, one in named.items() if "bias" not in name]},
                {"params": apart, "weight_decay": 0.0}]  # fmt: skip

    path = saved(tmp_path / "a.pt", trained(groups=groups))
    ran = fused(path)
    assert ran.code == 6 and "--drop-optimizer" in ran.err, ran
    assert not (tmp_path / "out.pt").exists()
    names = [name for name in torch.load(path, weights_only=True)["model"] if "bias" not in name]
    names += [name for name in torch.load(path, weights_only=True)["model"] if "bias" in name]
    (tmp_path / "names.txt").write_text("\n".join(names))
    ran = fused(path, "--optimizer-names", tmp_path / "names.txt")
    assert ran.code == 6 and "groups 0 and 1 (weight_decay 0.01 and 0.0)" in ran.err, ran


def test_steps_that_disagree_are_refused(tmp_path: Path) -> None:
    found = trained()
    found["optimizer"]["state"][3]["step"] = torch.tensor(7.0)
    ran = fused(saved(tmp_path / "a.pt", found))
    assert ran.code == 6 and "step differs" in ran.err and "--drop-optimizer" in ran.err, ran


def test_what_is_not_known_of_the_optimizer_is_refused(tmp_path: Path) -> None:
    found = trained()
    for state in found["optimizer"]["state"].values():
        state["kron"] = torch.zeros_like(state["exp_avg"])
    ran = fused(saved(tmp_path / "a.pt", found))
    assert ran.code == 6 and "'kron' is not known" in ran.err, ran


def test_an_order_that_is_not_known_is_refused_until_names_are_given(tmp_path: Path) -> None:
    found = trained("SGD", momentum=0.9)
    del found["optimizer"]["state"][0]
    order = [4, 5, 2, 3, 1, 6, 7, 0]  # not that of the model
    found["optimizer"]["param_groups"][0]["params"] = list(range(8))
    found["optimizer"]["state"] = {
        k: trained("SGD", momentum=0.9)["optimizer"]["state"][old] for k, old in enumerate(order)
    }
    names = [list(found["model"])[old] for old in order]
    path = saved(tmp_path / "a.pt", found)
    ran = fused(path)
    assert ran.code == 6 and "--optimizer-names FILE" in ran.err, ran
    (tmp_path / "names.txt").write_text("\n".join(names))
    ran = fused(path, "--optimizer-names", tmp_path / "names.txt")
    assert ran.code == 0, ran
    assert run("verify", tmp_path / "out.pt", "--against", path).code == 0


def test_a_folder_with_the_state_beside_its_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    found = trained()
    (tmp_path / "in").mkdir()
    save_file(found["model"], tmp_path / "in" / "model.safetensors")
    torch.save(found["optimizer"], tmp_path / "in" / "optimizer.pt")
    words = ("fuse", tmp_path / "in", "--layout", "cudnn", "-o", tmp_path / "out")
    ran = run(*words)
    assert ran.code == 6 and "optimizer.pt" in ran.err and "--drop-optimizer" in ran.err, ran
    ran = run(*words, "--drop-optimizer")
    assert ran.code == 0 and not (tmp_path / "out" / "optimizer.pt").exists(), ran
    assert "optimizer.pt: as --drop-optimizer says" in ran.out


def test_a_parameter_that_changes_under_one_of_its_names_is_refused(tmp_path: Path) -> None:
    """Else the other name would be a parameter without state."""
    torch.manual_seed(1)
    model = nn.ModuleDict(
        {"enc": nn.ModuleDict({"lstm": nn.LSTM(3, 4)}), "dec": nn.ModuleDict({"lstm": nn.LSTM(3, 4)})}
    )
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        setattr(model["dec"]["lstm"], name, getattr(model["enc"]["lstm"], name))
    optimizer = torch.optim.Adam(model.parameters())
    model["enc"]["lstm"](torch.randn(2, 1, 3))[0].sum().backward()
    optimizer.step()
    path = saved(tmp_path / "a.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    ran = fused(path, "--at", "model.enc.lstm")
    assert ran.code == 6 and "its other name 'model.dec.lstm.weight_ih_l0' keeps what it was" in ran.err, ran
    assert fused(path).code == 0  # both, which stay one
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert out["optimizer"]["param_groups"][0]["params"] == [0] and len(out["optimizer"]["state"]) == 1
    assert fused(path, "--at", "model.enc.lstm", "--drop-optimizer").code == 0


def test_an_export_of_all_names_tells_that_settings_are_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", trained())
    ran = run("export", path, "--all-names", "-o", tmp_path / "b.pt")
    assert ran.code == 0 and "groups and settings of 'optimizer'" in ran.out, ran
    ran = run("export", path, "--all-names", "--only", "model", "-o", tmp_path / "c.pt")
    assert ran.code == 0 and "settings" not in ran.out, ran
