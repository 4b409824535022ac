"""States that torch.distributed.checkpoint saves of an optimizer, flattened and not: moved, and loaded by torch itself.

The loader of torch reads the folder that paramtool wrote into another module and its optimizer, which train on as the
first one does: in float64, joined parts to 1e-9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import paramtool
from paramtool.commands.export import export
from paramtool.commands.optimizers import bindings
from paramtool.commands.relayout import convert, fuse, unfuse
from paramtool.commands.verify import verify

PARTS = ("q_proj", "k_proj", "v_proj")
QKV: dict[str, Any] = {"layout": "qkv"}


class Model(nn.Module):
    """Three projections, or one, before a layer."""

    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        made = {"qkv_proj": nn.Linear(6, 18)} if is_fused else {name: nn.Linear(6, 6) for name in PARTS}
        self.attn = nn.ModuleDict(made)
        self.last = nn.Linear(6, 2)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        """Something of all parameters."""
        if len(self.attn) == 1:
            query, key, value = self.attn["qkv_proj"](inputs).split(6, -1)
        else:
            query, key, value = (self.attn[name](inputs) for name in PARTS)
        found: Tensor = self.last(torch.tanh(query) * key + value)
        return found


class Run:
    """A module and its optimizer, whose learning rate is not the default."""

    def __init__(self, *, is_fused: bool, is_flat: bool) -> None:
        self.module = Model(is_fused=is_fused)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2, weight_decay=0.1)
        self.options = StateDictOptions(flatten_optimizer_state_dict=is_flat)

    def train(self, seed: int) -> Run:
        """Ten steps."""
        random = torch.Generator().manual_seed(seed)
        for _ in range(10):
            self.optimizer.zero_grad()
            self.module(torch.randn(4, 6, generator=random, dtype=torch.float64)).square().mean().backward()
            self.optimizer.step()
        return self

    def states(self) -> dict[str, Any]:
        """What training scripts give to `dcp.save`."""
        optimizer = get_optimizer_state_dict(self.module, self.optimizer, options=self.options)
        return {"model": get_model_state_dict(self.module), "optim": optimizer}

    def save(self, folder: Path) -> Run:
        """As one rank does."""
        dcp.save(self.states(), checkpoint_id=folder, no_dist=True)
        return self

    def load(self, folder: Path) -> Run:
        """As one rank does: into a state of the right form."""
        states = self.states()
        dcp.load(states, checkpoint_id=folder, no_dist=True)
        set_model_state_dict(self.module, states["model"])
        set_optimizer_state_dict(self.module, self.optimizer, states["optim"], options=self.options)
        return self


def joined(module: nn.Module, kind: str = "weight") -> Tensor:
    """The parts one behind the other."""
    named = dict(module.named_parameters())
    return torch.cat([named[f"attn.{name}.{kind}"] for name in PARTS])


@pytest.fixture(params=[True, False], ids=["flattened", "nested"])
def is_flat(request: pytest.FixtureRequest) -> bool:
    """Both forms."""
    return bool(request.param)


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("through", ["dcp", "safetensors"])
def test_training_goes_on_in_the_fused_module(through: str, is_flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Run(is_fused=False, is_flat=is_flat).train(1).save(tmp_path / "a")
    if through == "dcp":
        fuse(tmp_path / "a", tmp_path / "b", **QKV)
        assert not verify(tmp_path / "b", tmp_path / "a").differences
    else:
        fuse(tmp_path / "a", tmp_path / "b.safetensors", **QKV)
        convert(tmp_path / "b.safetensors", tmp_path / "b", format="dcp")
    second = Run(is_fused=True, is_flat=is_flat).load(tmp_path / "b")
    assert second.optimizer.param_groups[0]["lr"] == 1e-2
    first.train(2)
    second.train(2)
    new = dict(second.module.named_parameters())
    for kind in ("weight", "bias"):
        torch.testing.assert_close(new[f"attn.qkv_proj.{kind}"], joined(first.module, kind), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(new["last.weight"], dict(first.module.named_parameters())["last.weight"], rtol=1e-9,
                               atol=1e-12)  # fmt: skip
    control = Run(is_fused=True, is_flat=is_flat).load(tmp_path / "b")
    control.optimizer.state.clear()
    assert (dict(control.train(2).module.named_parameters())["last.weight"] - new["last.weight"]).abs().max() > 1e-4


@pytest.mark.filterwarnings("ignore")
def test_there_and_back_is_the_state_that_was(is_flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Run(is_fused=False, is_flat=is_flat).train(1).save(tmp_path / "a")
    fuse(tmp_path / "a", tmp_path / "b", **QKV)
    unfuse(tmp_path / "b", tmp_path / "c")
    second = Run(is_fused=False, is_flat=is_flat).load(tmp_path / "c")
    for mine, its in ((second.module, first.module), (second.optimizer, first.optimizer)):
        torch.testing.assert_close(mine.state_dict(), its.state_dict(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_parts_with_other_settings_are_refused(is_flat: bool, tmp_path: Path) -> None:
    """Flattened, each parameter has its own settings; nested, its group has."""
    from paramtool.errors import PlanError

    run = Run(is_fused=False, is_flat=is_flat)
    named = dict(run.module.named_parameters())
    other = [named.pop("attn.k_proj.weight")]
    run.optimizer = torch.optim.AdamW([{"params": list(named.values())}, {"params": other, "weight_decay": 0.3}])
    run.train(1).save(tmp_path / "a")
    with pytest.raises(PlanError, match=r"weight_decay 0\.01 and 0\.3"):
        fuse(tmp_path / "a", tmp_path / "b", **QKV)
    assert not (tmp_path / "b").exists()


@pytest.mark.filterwarnings("ignore")
def test_the_model_alone_is_exported(is_flat: bool, tmp_path: Path) -> None:
    run = Run(is_fused=False, is_flat=is_flat).train(1).save(tmp_path / "a")
    export(tmp_path / "a", tmp_path / "m.pt", all_names=True, only="model")
    torch.testing.assert_close(torch.load(tmp_path / "m.pt"), dict(run.module.state_dict()), rtol=0, atol=0)


def raw(run: Run) -> dict[str, Any]:
    """What scripts give to `dcp.save` that do not ask torch for the names."""
    return {"model": run.module.state_dict(), "optimizer": run.optimizer.state_dict()}


@pytest.mark.filterwarnings("ignore")
def test_a_raw_state_has_numbers_and_is_bound_by_position(tmp_path: Path) -> None:
    """Fused, and apart again: torch loads the folder, and its optimizer trains on as the first one does."""
    run = Run(is_fused=False, is_flat=False).train(0)
    dcp.save(raw(run), checkpoint_id=tmp_path / "saved", no_dist=True)
    (bound,) = bindings(tmp_path / "saved", paramtool.read(tmp_path / "saved"))
    assert bound.is_unique and [*bound.names.values()] == [name for name, _ in run.module.named_parameters()]
    fuse(tmp_path / "saved", tmp_path / "fused", **QKV)
    unfuse(tmp_path / "fused", tmp_path / "again", **QKV)
    assert verify(tmp_path / "fused", tmp_path / "saved").differences == ()
    run.train(1)
    for name, is_fused in (("fused", True), ("again", False)):
        other = Run(is_fused=is_fused, is_flat=False).train(2)
        state = raw(other)
        dcp.load(state, checkpoint_id=tmp_path / name, no_dist=True)
        other.module.load_state_dict(state["model"])
        other.optimizer.load_state_dict(state["optimizer"])
        other.train(1)
        weight = other.module.last.weight
        assert torch.allclose(weight, run.module.last.weight, rtol=1e-9, atol=0)
    control = Run(is_fused=False, is_flat=False).train(2)
    control.module.load_state_dict(torch.load(_as_file(tmp_path / "saved", tmp_path / "one.pt"))["model"])
    assert not torch.allclose(control.train(1).module.last.weight, run.module.last.weight, rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_raw_state_as_a_file_has_numbers_again(tmp_path: Path) -> None:
    """torch's optimizer takes no texts as keys, and the folder has nothing else."""
    run = Run(is_fused=False, is_flat=False).train(0)
    dcp.save(raw(run), checkpoint_id=tmp_path / "saved", no_dist=True)
    found = torch.load(_as_file(tmp_path / "saved", tmp_path / "one.pt"))["optimizer"]
    expected = run.optimizer.state_dict()
    assert found["state"].keys() == expected["state"].keys() and found["param_groups"] == expected["param_groups"]
    for key, slots in expected["state"].items():
        assert all(torch.equal(found["state"][key][slot], tensor) for slot, tensor in slots.items())


def _as_file(folder: Path, file: Path) -> Path:
    convert(folder, file)
    return file
