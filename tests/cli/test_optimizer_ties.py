"""`convert --untie` and `--tie`: what torch loads afterwards is what the flags say, and training goes on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.hostile.command import Ran, quick

HEAD, EMBEDDING = "model.head.weight", "model.emb.weight"
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "adadelta": lambda p: torch.optim.Adadelta(p),
}
FIRST, SECOND = {"exp_avg", "momentum_buffer", "exp_inf", "prev"}, {"exp_avg_sq", "max_exp_avg_sq", "square_avg"}
"""Slots that grow with the gradients, and with their squares."""


class Model(nn.Module):
    """An embedding, a layer, and a head that may be the embedding."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.mid = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if is_tied:
            self.head.weight = self.emb.weight
        self.double()

    def forward(self, words: Tensor) -> Tensor:
        """What the head says of each word."""
        found: Tensor = self.head(torch.tanh(self.mid(self.emb(words))))
        return found


def train(model: Model, optimizer: torch.optim.Optimizer, seed: int, steps: int = 10) -> None:
    """Some steps with data of a seed."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        words = torch.randint(6, (8,), generator=random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), words.roll(1)).backward()
        optimizer.step()


def saved(path: Path, *, is_tied: bool, name: str = "adamw", **more: Any) -> tuple[Model, torch.optim.Optimizer]:
    """A model and its optimizer after some steps, and a file of them."""
    torch.manual_seed(0)
    model = Model(is_tied=is_tied)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 1)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}, path)
    return model, optimizer


def loaded(path: Path, *, is_tied: bool, name: str = "adamw") -> tuple[Model, torch.optim.Optimizer]:
    """A new model and its optimizer, as torch loads them."""
    found = torch.load(path, weights_only=True)
    model = Model(is_tied=is_tied)
    model.load_state_dict(found["model"])
    optimizer = OPTIMIZERS[name](model.parameters())
    optimizer.load_state_dict(found["optimizer"])
    return model, optimizer


def run(path: Path, *words: object) -> Ran:
    """One conversion, to out.pt beside its input; `verify` agrees with what it writes."""
    output = path.with_name("out.pt")
    ran = quick("convert", path, "-o", output, "--force", *words, cwd=Path.cwd())
    if ran.code == 0:
        verified = quick("verify", output, "--against", path, cwd=Path.cwd())
        assert verified.code == 0, verified
    return ran


def untied_by_hand(tied: torch.optim.Optimizer, choice: str) -> dict[str, Any]:
    """The state of the untied model's optimizer, made of the tied one's: of emb, mid (weight, bias) and head."""
    found = deepcopy(tied.state_dict())
    shared = found["state"][0]
    if choice == "split":
        for slot, value in shared.items():
            shared[slot] = value / 2 if slot in FIRST else value / 4 if slot in SECOND else value
    found["param_groups"][0]["params"] = [0, 1, 2, 3]
    if choice != "zero":
        found["state"][3] = deepcopy(shared)
    return found


@pytest.mark.sample(8)
@pytest.mark.parametrize("choice", ["copy", "split", "zero"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_untied_training_goes_on_with_what_the_flag_says(name: str, choice: str, tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path / "a.pt", is_tied=True, name=name)
    ran = run(tmp_path / "a.pt", "--untie", HEAD, "--optimizer-state", choice)
    assert ran.code == 0, ran
    found, resumed = loaded(tmp_path / "out.pt", is_tied=False, name=name)
    expected = Model(is_tied=False)
    expected.load_state_dict(model.state_dict())
    wanted = OPTIMIZERS[name](expected.parameters())
    wanted.load_state_dict(untied_by_hand(optimizer, choice))
    torch.testing.assert_close(resumed.state_dict(), wanted.state_dict(), rtol=0, atol=0)
    assert (3 in resumed.state_dict()["state"]) == (choice != "zero")
    for one, its in ((found, resumed), (expected, wanted)):
        train(one, its, 2)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert not torch.equal(found.head.weight, found.emb.weight)


def test_one_entry_for_both_is_the_training_of_the_tied_model(tmp_path: Path) -> None:
    """For a program that stores the head twice and ties it itself."""
    model, optimizer = saved(tmp_path / "a.pt", is_tied=True)
    assert run(tmp_path / "a.pt", "--untie", HEAD, "--optimizer-state", "one").code == 0
    stored = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert stored["emb.weight"].data_ptr() != stored["head.weight"].data_ptr()
    found, resumed = loaded(tmp_path / "out.pt", is_tied=True)
    for one, its in ((found, resumed), (model, optimizer)):
        train(one, its, 2)
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("choice", ["copy", "split", "one"])
def test_untied_and_tied_again_is_the_same_training(choice: str, tmp_path: Path) -> None:
    """What both have the same of needs no choice; `split` is half of it for each, and one half is kept."""
    model, optimizer = saved(tmp_path / "a.pt", is_tied=True)
    assert run(tmp_path / "a.pt", "--untie", HEAD, "--optimizer-state", choice).code == 0
    (tmp_path / "out.pt").rename(tmp_path / "b.pt")
    ran = run(tmp_path / "b.pt", "--tie", f"{HEAD}={EMBEDDING}")
    assert ran.code == 0, ran
    stored = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert stored["emb.weight"].data_ptr() == stored["head.weight"].data_ptr()
    found, resumed = loaded(tmp_path / "out.pt", is_tied=True)
    if choice == "split":
        assert torch.equal(
            resumed.state_dict()["state"][0]["exp_avg"] * 2, optimizer.state_dict()["state"][0]["exp_avg"]
        )
        return
    for one, its in ((found, resumed), (model, optimizer)):
        train(one, its, 2)
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("choice", "kept"), [("first", 0), ("second", 3)])
def test_tying_keeps_the_state_of_the_one_that_is_chosen(choice: str, kept: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model(is_tied=False)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, 1)
    model.head.weight.data.copy_(model.emb.weight.data)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    ran = run(tmp_path / "a.pt", "--tie", f"{HEAD}={EMBEDDING}")
    assert ran.code == 6 and "--optimizer-state first or second" in ran.err and "--optimizer-state drop" in ran.err, ran
    assert not (tmp_path / "out.pt").exists()
    assert run(tmp_path / "a.pt", "--tie", f"{HEAD}={EMBEDDING}", "--optimizer-state", choice).code == 0
    found, resumed = loaded(tmp_path / "out.pt", is_tied=True)
    old, new = optimizer.state_dict()["state"], resumed.state_dict()["state"]
    torch.testing.assert_close(new, {0: old[kept], 1: old[1], 2: old[2]}, rtol=0, atol=0)
    train(found, resumed, 2)


def test_tensors_with_other_values_are_not_tied(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", is_tied=False)
    ran = run(tmp_path / "a.pt", "--tie", f"{HEAD}={EMBEDDING}", "--optimizer-state", "first")
    assert ran.code == 5 and "have different values" in ran.err and not (tmp_path / "out.pt").exists(), ran


def test_without_a_choice_the_state_of_an_untied_tensor_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", is_tied=True)
    ran = run(tmp_path / "a.pt", "--untie", HEAD)
    assert (
        ran.code == 6
        and "--optimizer-state copy, split, zero or one" in ran.err
        and "--optimizer-state drop" in ran.err
    ), ran
    assert not (tmp_path / "out.pt").exists()
    words = ("convert", tmp_path / "a.pt", "-o", tmp_path / "out.pt", "--untie", HEAD, "--optimizer-state", "drop")
    ran = quick(*words, cwd=tmp_path)
    assert ran.code == 0 and "optimizer" not in torch.load(tmp_path / "out.pt", weights_only=True), ran


def test_a_model_without_state_needs_no_choice(tmp_path: Path) -> None:
    model, _ = saved(tmp_path / "a.pt", is_tied=True)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert run(tmp_path / "a.pt", "--untie", "head.weight").code == 0
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["emb.weight"].data_ptr() != found["head.weight"].data_ptr()
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=0, atol=0)


def test_an_untied_name_is_stored_for_itself(tmp_path: Path) -> None:
    """So that programs that read no record find it."""
    from safetensors.torch import load_file

    model, _ = saved(tmp_path / "a.pt", is_tied=True)
    words = (
        "convert",
        tmp_path / "a.pt",
        "-o",
        tmp_path / "b.safetensors",
        "--only",
        "model",
        "--untie",
        "head.weight",
    )
    assert quick(*words, cwd=tmp_path).code == 0
    torch.testing.assert_close(load_file(tmp_path / "b.safetensors"), dict(model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(("words", "told"), [
    (("--untie", "model.mid.weight"), "no other name has the same tensor"),
    (("--untie", "model.nothing"), "has no tensor 'model.nothing'"),
    (("--tie", f"{HEAD}={EMBEDDING}"), "they are one tensor already"),
    (("--tie", f"{HEAD}={EMBEDDING}", "--untie", HEAD), "shall be tied (--tie) and untied (--untie)"),
    (("--untie", HEAD, "--to", "cudnn"), "not the layout of tensors"),
])  # fmt: skip
def test_what_makes_no_sense_is_told(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", is_tied=True)
    ran = run(tmp_path / "a.pt", *words)
    assert ran.code == 2 and told in ran.err, ran


def test_a_group_that_ends_takes_its_items_of_the_schedule_along(tmp_path: Path) -> None:
    """The head has a group of its own; tied to the embedding, it is in the embedding's, and torch resumes both."""
    torch.manual_seed(0)
    model = Model(is_tied=False)
    own = [one for name, one in model.named_parameters() if "head" not in name]
    groups = [{"params": list(model.head.parameters()), "lr": 0.5}, {"params": own, "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, 1, steps=1)
    schedule.step()
    model.head.weight.data.copy_(model.emb.weight.data)
    found = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(found, tmp_path / "a.pt")
    names = ["head.weight", "emb.weight", "mid.weight", "mid.bias"]
    (tmp_path / "names.txt").write_text("\n".join(names))
    more = ("--optimizer-names", tmp_path / "names.txt", "--optimizer-state", "first")
    ran = run(tmp_path / "a.pt", "--tie", f"{HEAD}={EMBEDDING}", *more, "--json")
    assert ran.code == 0 and json.loads(ran.out)["optimizer"]["moved"][0]["after"] == 1, ran
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert out["optimizer"]["param_groups"][0]["lr"] == 0.1 and out["schedule"]["base_lrs"] == [0.1]
    tied = Model(is_tied=True)
    resumed = torch.optim.SGD(tied.parameters(), lr=1, momentum=0.9)
    again = torch.optim.lr_scheduler.StepLR(resumed, 2)
    resumed.load_state_dict(out["optimizer"])
    again.load_state_dict(out["schedule"])
    train(tied, resumed, 3)
    again.step()
    assert again.get_last_lr() == [pytest.approx(0.01)]
