"""Optimizers of real files: what torch, the Trainer of transformers and accelerate write, bound to the parameters.

The truth is the identity of the parameters in the optimizer that wrote the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.commands.optimizers import bindings, bound_files, refuse_defects
from paramtool.commands.relayout import convert
from paramtool.commands.verify import verify
from paramtool.errors import Defects, PlanError, UsageError
from paramtool.model.config import reading
from paramtool.model.optimizer import Binding
from tests.versions import needs


class Net(nn.Module):
    """Tied embeddings, a buffer, batch norm, and linear layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.scale * self.second(self.norm(self.first(self.embed(x)))))
        return found


def truth(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """{id: name}, by the identity of the parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {k: names[id(parameter)] for k, parameter in enumerate(held)}


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict of an optimizer after two steps."""
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(6)).square().mean().backward()
        optimizer.step()
    found: dict[str, Any] = optimizer.state_dict()
    return found


@reading
def bound(path: Path, *, config: str | None = None, **more: Any) -> Binding:
    (found,) = bindings(path, paramtool.read(path), **more)
    return found


def test_a_training_checkpoint(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": trained(model, optimizer)}, tmp_path / "c.pt")
    found = bound(tmp_path / "c.pt")
    assert found.is_unique and found.names == truth(model, optimizer) and found.how == "order"
    says = "decoupled_weight_decay" in optimizer.param_groups[0]  # from torch 2.7 on
    assert found.optimizer.algorithm == ("AdamW" if says else "Adam or AdamW") and found.unbound == ()


def test_lightning_and_two_groups(tmp_path: Path) -> None:
    """Two matrices of one shape are in one group, in order."""
    model = Net()
    groups = [[p for p in model.parameters() if p.ndim == size] for size in (2, 1)]
    optimizer = torch.optim.SGD([{"params": one} for one in groups], lr=0.1, momentum=0.9)
    state = trained(model, optimizer)
    torch.save({"state_dict": model.state_dict(), "optimizer_states": [state], "epoch": 1}, tmp_path / "c.ckpt")
    found = bound(tmp_path / "c.ckpt")
    assert found.is_unique and found.names == truth(model, optimizer) and found.optimizer.at == "optimizer_states.0"


def test_frozen_layers_are_ambiguous_where_a_neighbour_has_their_shapes(tmp_path: Path) -> None:
    model = Net()
    model.first.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    torch.save({"model": model.state_dict(), "optimizer": trained(model, optimizer)}, tmp_path / "c.pt")
    found = bound(tmp_path / "c.pt")
    assert not found.is_unique and found.ambiguous == (("first.bias", "norm.weight", "norm.bias"),)
    assert all(truth(model, optimizer)[int(key)] == name for key, name in found.names.items())


def test_a_module_without_an_entry_that_fits_no_other_place(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    optimizer = torch.optim.Adam([*model[0].parameters(), *model[2].parameters()])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    found = bound(tmp_path / "c.pt")
    assert found.names == truth(model, optimizer) and found.unbound == ("1.weight", "1.bias")


@needs("torch", "2.6", "optimizers of named parameters")
def test_param_names(tmp_path: Path) -> None:
    """Any order of named parameters."""
    model = Net()
    optimizer = torch.optim.Adam(reversed([*model.named_parameters()]))
    torch.save({"model": model.state_dict(), "optimizer": trained(model, optimizer)}, tmp_path / "c.pt")
    found = bound(tmp_path / "c.pt")
    assert found.how == "names" and found.names == truth(model, optimizer)


def test_two_networks_with_an_optimizer_each(tmp_path: Path) -> None:
    """Only where their shapes differ is it known whose an optimizer is."""
    for wide, fits in ((4, True), (2, False)):
        nets = {"net_g": nn.Linear(2, 3), "net_d": nn.Linear(wide, 3)}
        saved: dict[str, Any] = {name: net.state_dict() for name, net in nets.items()}
        for name, net in nets.items():
            optimizer = torch.optim.Adam(net.parameters())
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            saved[f"optim_{name[-1]}"] = optimizer.state_dict()
        torch.save(saved, tmp_path / "c.pt")
        found = bindings(tmp_path / "c.pt", paramtool.read(tmp_path / "c.pt"))
        assert [one.is_unique for one in found] == [fits, fits]
        assert not fits or [one.optimizer.section for one in found] == ["net_g", "net_d"]


def test_one_optimizer_of_several_sections(tmp_path: Path) -> None:
    """The names are then those of the whole file."""
    body, head = nn.Linear(2, 3), nn.Linear(3, 5)
    optimizer = torch.optim.Adam([*head.parameters(), *body.parameters()])
    for parameter in (*body.parameters(), *head.parameters()):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = {"body": body.state_dict(), "head": head.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, tmp_path / "c.pt")
    found = bound(tmp_path / "c.pt")
    assert list(found.names.values()) == ["head.weight", "head.bias", "body.weight", "body.bias"]
    assert found.is_unique and found.optimizer.section == ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """What the Trainer of transformers saves after two steps of a GPT-2, and the truth of its optimizer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    folder = tmp_path_factory.mktemp("trainer")
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8))
    texts = [{"input_ids": torch.arange(6), "labels": torch.arange(6)} for _ in range(4)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=2, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=texts)
    trainer.train()
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    return folder / "checkpoint-2", truth(model, inner)


@needs("transformers", "5", "its Trainer")
def test_the_trainer_of_transformers(run: tuple[Path, dict[int, str]]) -> None:
    """Its groups are not in the order of the model; the class says the order, and its rule the groups."""
    folder, expected = run
    (file,) = bound_files(folder, paramtool.read(folder))
    (found,) = file.bindings
    assert file.file == "optimizer.pt" and found.is_unique and found.names == expected
    assert len({*found.names.values()}) == 28 and list(found.names.values()) != sorted(found.names.values())
    assert found.words == (
        "bound by order of the model's 28 parameters (the class GPT2LMHeadModel, in the Trainer's two groups) and "
        "their shapes, assuming the order of model.parameters()"
    )
    (alone,) = bindings(folder / "optimizer.pt", paramtool.read(folder / "optimizer.pt"))
    assert alone.names == expected and alone.is_unique


@needs("transformers", "5", "its Trainer")
def test_without_the_config_it_is_ambiguous_and_names_settle_it(
    run: tuple[Path, dict[int, str]], tmp_path: Path
) -> None:
    folder, expected = run
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    found = bound(tmp_path)
    assert not found.is_unique and "order not known (safetensors does not keep it)" in found.words
    assert all(expected[int(key)] == name for key, name in found.names.items())
    names = tmp_path / "names.txt"
    names.write_text("# of the two groups\n\n" + "\n".join(expected.values()) + "\n")
    found = bound(tmp_path, names=names)
    assert found.is_unique and found.names == expected and found.how == "given"
    assert bound(tmp_path, config=str(folder / "config.json")).names == expected


def test_state_of_another_model_is_a_contradiction(tmp_path: Path) -> None:
    model, other = Net(), nn.Linear(3, 3)
    torch.save({"model": other.state_dict(), "optimizer": trained(model, torch.optim.Adam(model.parameters()))},
               tmp_path / "c.pt")  # fmt: skip
    found = bound(tmp_path / "c.pt")
    with pytest.raises(Defects, match="8 entries, more than the model's 2 parameters") as caught:
        refuse_defects(tmp_path / "c.pt", [found])
    assert caught.value.exit_code == 3 and len(caught.value.defects) > 5


NAMES = [
    "embed.weight",
    "first.weight",
    "first.bias",
    "norm.weight",
    "norm.bias",
    "second.weight",
    "second.bias",
    "scale",
]


@pytest.mark.parametrize(("lines", "words"), [
    (NAMES[:-1], "has 7 names; optimizer has 8 entries"),
    ([*NAMES[:-1], "x"], "state for 'x', which the model does not have"),
    ([*NAMES[:-1], NAMES[1]], "is of 'first.weight', as entry 1 is"),
    ([*NAMES[:2][::-1], *NAMES[2:]], "has exp_avg [11, 4], exp_avg_sq [11, 4]; 'first.weight' is [4, 4]"),
    (["[other]", *NAMES], "has names for [other]; the optimizers are [optimizer]"),
    (["# nothing"], "holds no name"),
    (["[optimizer]", "[optimizer]"], "has two lists for [optimizer]"),
])  # fmt: skip
def test_names_that_do_not_fit(lines: list[str], words: str, tmp_path: Path) -> None:
    model = Net()
    parameters = dict(model.named_parameters())
    state = trained(model, torch.optim.Adam([parameters[name] for name in NAMES]))
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "c.pt")
    names = tmp_path / "names.txt"
    names.write_text("\n".join(lines))
    with pytest.raises(UsageError) as caught:
        bound(tmp_path / "c.pt", names=names)
    assert words in str(caught.value)


def test_names_for_several_optimizers(tmp_path: Path) -> None:
    nets = {"net_g": nn.Linear(2, 3, bias=False), "net_d": nn.Linear(2, 3, bias=False)}
    saved: dict[str, Any] = {name: net.state_dict() for name, net in nets.items()}
    saved |= {f"optim_{name}": torch.optim.SGD(net.parameters(), lr=0.1).state_dict() for name, net in nets.items()}
    torch.save(saved, tmp_path / "c.pt")
    names = tmp_path / "names.txt"
    names.write_text("net_g.weight\n")
    with pytest.raises(UsageError, match=r"does not say of which optimizer its names are: \[optim_net_g\], \[optim"):
        bindings(tmp_path / "c.pt", paramtool.read(tmp_path / "c.pt"), names=names)
    names.write_text("[optim_net_d]\nnet_d.weight\n")
    found = bindings(tmp_path / "c.pt", paramtool.read(tmp_path / "c.pt"), names=names)
    assert [one.how for one in found] == ["order", "given"] and found[1].names == {0: "net_d.weight"}


def test_a_file_without_an_optimizer(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors")
    assert bindings(tmp_path / "m.safetensors", paramtool.read(tmp_path / "m.safetensors")) == ()
    with pytest.raises(UsageError, match="has no optimizer that optimizer_names could be of"):
        bound(tmp_path / "m.safetensors", names=tmp_path / "names.txt")


class TestInObjects:
    """Optimizers in objects of a pickle, such as an `argparse.Namespace`, a Trainer, or torch's own class."""

    HELD: ClassVar[dict[str, Callable[[torch.optim.Optimizer], object]]] = {
        "a state dict in an object": lambda one: argparse.Namespace(run=argparse.Namespace(optim=one.state_dict())),
        "an object with its members": lambda one: argparse.Namespace(**one.state_dict()),
        "the optimizer in an object": lambda one: argparse.Namespace(optim=one, params=one.param_groups[0]["params"]),
    }

    @pytest.mark.parametrize("what", HELD)
    def test_it_follows_or_is_refused_and_can_be_left_out(self, tmp_path: Path, what: str) -> None:
        """What is left out is out, under its own names and in the tree, and what is written can be verified."""
        model = nn.Sequential(nn.LSTM(3, 4))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(5, 2, 3))[0].sum().backward()
        optimizer.step()
        path, out = tmp_path / "c.pt", tmp_path / "out.safetensors"
        torch.save({"model": model.state_dict(), "optimizer": self.HELD[what](optimizer)}, path)
        more = {"target": "keras", "allow_unknown": True}
        if what == "a state dict in an object":
            convert(path, out, **more)
            assert verify(out, path, allow_unknown=True).differences == ()
            assert bound(out).is_unique
        else:
            with pytest.raises(PlanError, match="cannot follow"):
                convert(path, out, **more)
        convert(path, out, force=True, optimizer_state=["drop"], **more)
        assert not [name for name in paramtool.read(out).entries if name.startswith("optimizer")]
        assert bindings(out, paramtool.read(out)) == ()
        assert verify(out, path, subset=True, allow_unknown=True).differences == ()
