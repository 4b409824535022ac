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
    ran = fused(saved(tmp_path / "a.pt", found), "--optimizer-state", "drop")
    assert ran.code == 0 and "as --optimizer-state drop says" in ran.out
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
    assert ran.code == 6 and "--optimizer-state drop" in ran.err, ran
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
    assert ran.code == 6 and "step differs" in ran.err and "--optimizer-state drop" in ran.err, ran
    assert " and 7" in ran.err or "7 and " in ran.err, "both values"


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the state of its optimizer in a file of its own, and the names of its parameters."""
    from safetensors.torch import save_file

    found = trained()
    (tmp_path / "in").mkdir()
    save_file(found["model"], tmp_path / "in" / "model.safetensors")
    torch.save(found["optimizer"], tmp_path / "in" / "optimizer.pt")
    torch.save({"last_epoch": 3}, tmp_path / "in" / "scheduler.pt")
    (tmp_path / "names.txt").write_text("\n".join(found["model"]))
    return tmp_path


def converted(folder: Path, *more: object) -> Ran:
    """The network of a folder as one vector, in a folder."""
    return run("fuse", folder / "in", "--layout", "cudnn", "-o", folder / "out", *more)


def test_the_state_beside_the_weights_of_a_folder_follows(folder: Path) -> None:
    """It is torch's own dict, in the order of the entries, and everything else is copied."""
    ran = converted(folder, "--optimizer-names", folder / "names.txt")
    assert ran.code == 0 and "optimizer.pt (AdamW): 4 entries became 1" in ran.out, ran
    assert "--new-config" in ran.err
    old, new = (torch.load(folder / one / "optimizer.pt", weights_only=True) for one in ("in", "out"))
    assert new.keys() == old.keys() == {"state", "param_groups"}
    assert new["param_groups"] == [{**old["param_groups"][0], "params": [0, 1, 2, 3, 4]}]
    flat = torch.cat([old["state"][k]["exp_avg"].flatten() for k in range(2, 6)])
    assert torch.equal(new["state"][2]["exp_avg"], flat) and new["state"][2]["step"] == 2
    assert torch.equal(new["state"][4]["exp_avg_sq"], old["state"][7]["exp_avg_sq"])
    assert (folder / "out" / "scheduler.pt").read_bytes() == (folder / "in" / "scheduler.pt").read_bytes()
    assert run("verify", folder / "out", "--against", folder / "in").code == 0
    seen = run("inspect", folder / "out", "--optimizer")
    assert "bound by the record paramtool.optimizer" in seen.out
    again = converted(folder, "--optimizer-names", folder / "names.txt", "--force")
    assert again.code == 0, again


def test_verify_finds_what_was_changed_in_a_file_of_its_own(folder: Path) -> None:
    converted(folder, "--optimizer-names", folder / "names.txt")
    data = bytearray((folder / "out" / "optimizer.pt").read_bytes())
    state = torch.load(folder / "out" / "optimizer.pt", weights_only=True)["state"]
    data[data.find(state[2]["exp_avg"].numpy().tobytes()) + 8] ^= 1
    (folder / "out" / "optimizer.pt").write_bytes(data)
    ran = run("verify", folder / "out", "--against", folder / "in")
    assert ran.code == 3 and all(one in ran.err for one in ("optimizer.pt", "'state.2.exp_avg'", "damaged")), ran


def test_a_file_of_its_own_that_is_not_bound_is_refused(folder: Path) -> None:
    ran = converted(folder)
    assert ran.code == 6 and "optimizer.pt" in ran.err and "--optimizer-state drop" in ran.err, ran
    assert "--optimizer-names FILE" in ran.err and not (folder / "out").exists()
    ran = converted(folder, "--optimizer-state", "drop")
    assert ran.code == 0 and not (folder / "out" / "optimizer.pt").exists(), ran
    assert "optimizer.pt: as --optimizer-state drop says" in ran.out and "--subset" in ran.out


def of_another_model(folder: Path) -> None:
    """More entries than the model has parameters, of other shapes."""
    other = torch.nn.Sequential(*(nn.Linear(3, 3) for _ in range(5)))
    made = torch.optim.AdamW(other.parameters())
    other(torch.ones(3)).sum().backward()
    made.step()
    torch.save(made.state_dict(), folder / "in" / "optimizer.pt")


def of_other_shapes(folder: Path) -> None:
    """As many entries, one of which has another shape."""
    path = folder / "in" / "optimizer.pt"
    found = torch.load(path, weights_only=True)
    found["state"][2]["exp_avg"] = torch.zeros(3, 3)
    torch.save(found, path)


def truncated(folder: Path) -> None:
    """The end of the file is missing."""
    path = folder / "in" / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-300])


def of_two_programs(folder: Path) -> None:
    """The same once more, as accelerate calls it."""
    (folder / "in" / "optimizer.bin").write_bytes((folder / "in" / "optimizer.pt").read_bytes())


def of_deepspeed(folder: Path) -> None:
    """The Trainer keeps the state of DeepSpeed in a folder inside."""
    (folder / "in" / "global_step3").mkdir()
    (folder / "in" / "latest").write_text("global_step3")
    torch.save({"a": 1}, folder / "in" / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")


def not_an_optimizer(folder: Path) -> None:
    """Something else under the name of an optimizer's file."""
    torch.save({"what": torch.ones(3)}, folder / "in" / "optimizer.pt")


def of_other_steps(folder: Path) -> None:
    """Parts that become one, and made different numbers of steps."""
    path = folder / "in" / "optimizer.pt"
    found = torch.load(path, weights_only=True)
    found["state"][3]["step"] = torch.tensor(7.0)
    torch.save(found, path)


@pytest.mark.parametrize(("change", "code", "said"), [
    (of_another_model, 3, "10 entries, more than the model's 8 parameters"),
    (of_other_shapes, 3, "no parameter has the shape of exp_avg [3, 3]"),
    (truncated, 3, "optimizer.pt"),
    (of_two_programs, 6, "'optimizer.bin', 'optimizer.pt' beside the weights: they are of two programs"),
    (of_deepspeed, 6, "does not write such files"),
    (not_an_optimizer, 6, "no optimizer that paramtool knows"),
    (of_other_steps, 6, "step differs"),
], ids=lambda one: getattr(one, "__name__", ""))  # fmt: skip
def test_state_files_that_cannot_follow(change: Any, code: int, said: str, folder: Path) -> None:
    """The error says which and why, and nothing is written."""
    names = () if change in (of_another_model, of_other_shapes) else ("--optimizer-names", folder / "names.txt")
    change(folder)
    if change is not_an_optimizer:
        names = ()
    ran = converted(folder, *names)
    assert ran.code == code and said in ran.err, ran
    assert not (folder / "out").exists()


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
    assert fused(path, "--at", "model.enc.lstm", "--optimizer-state", "drop").code == 0


def test_an_export_of_all_names_tells_that_settings_are_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", trained())
    ran = run("export", path, "--all-names", "-o", tmp_path / "b.pt")
    assert ran.code == 0 and "groups and settings of 'optimizer'" in ran.out, ran
    ran = run("export", path, "--all-names", "--only", "model", "-o", tmp_path / "c.pt")
    assert ran.code == 0 and "settings" not in ran.out, ran
