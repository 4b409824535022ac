"""What stands beside a network: tensors of torch's wrappers and of cells of one's own are read, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError, UsageError
from tests.hostile.command import command
from tests.oracles.running import below, close, random, run_torch

HH = "weight_hh_l0"


class Model(nn.Module):
    """A recurrent network under the name `rnn`, and a head beside it."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(5, 2)


def saved(folder: Path, module: nn.Module) -> Path:
    torch.save(module.state_dict(), folder / "m.pt")
    return folder / "m.pt"


# --- wrappers that compute a weight -----------------------------------------------------------------------------------


def old_weight_norm(module: nn.Module | None = None, name: str = HH) -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return weight_norm(module or nn.LSTM(3, 5), name)


def every_weight_normed() -> nn.Module:
    return old_weight_norm(old_weight_norm(nn.GRU(3, 5)), "weight_ih_l0")


def new_weight_norm() -> nn.Module:
    return parametrizations.weight_norm(nn.LSTM(3, 5), HH)


def orthogonal() -> nn.Module:
    return parametrizations.orthogonal(nn.LSTM(3, 5), HH)


def new_spectral_norm() -> nn.Module:
    return parametrizations.spectral_norm(nn.RNN(3, 5), HH)


def old_spectral_norm() -> nn.Module:
    return spectral_norm(nn.LSTM(3, 5), HH)


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.LSTM(3, 5), HH, amount=0.3)


def pruned_cell() -> nn.Module:
    return prune.random_unstructured(nn.LSTMCell(3, 5), "weight_ih", amount=0.3)


WRAPPERS = {
    old_weight_norm: ("weight_hh_l0_g", "remove_weight_norm"),
    every_weight_normed: ("weight_hh_l0_g", "remove_weight_norm"),
    new_weight_norm: ("parametrizations.weight_hh_l0.original0", "remove_parametrizations"),
    orthogonal: ("parametrizations.weight_hh_l0", "remove_parametrizations"),
    new_spectral_norm: ("parametrizations.weight_hh_l0.original", "remove_parametrizations"),
    old_spectral_norm: ("weight_hh_l0_orig", "remove_spectral_norm"),
    pruned: ("weight_hh_l0_mask", "prune.remove"),
    pruned_cell: ("weight_ih_mask", "prune.remove"),
}


@pytest.mark.parametrize("make", WRAPPERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("top", [False, True], ids=["in a model", "alone"])
@pytest.mark.parametrize("more", [{}, {"source": "torch"}], ids=["found", "said"])
def test_what_computes_a_weight_is_refused(
    make: Callable[[], nn.Module], top: bool, more: dict[str, str], tmp_path: Path
) -> None:
    """By the names that torch's own wrappers save, with the call of torch that undoes them."""
    path = saved(tmp_path, make() if top else Model(make()))
    name, call = WRAPPERS[make]
    with pytest.raises(LayoutError) as error:
        relayout_command.convert(path, tmp_path / "o.safetensors", target="cudnn", **more)
    assert ("" if top else "rnn.") + name in str(error.value)
    assert call in str(error.value.hint)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.pt"]


def test_a_wrapped_network_beside_a_plain_one(tmp_path: Path) -> None:
    """It is not left behind while the other is converted, unless the other was asked for."""
    model = Model(old_weight_norm())
    model.plain = nn.GRU(2, 2)
    path = saved(tmp_path, model)
    with pytest.raises(LayoutError, match="weight_hh_l0_g"):
        relayout_command.convert(path, tmp_path / "o.safetensors", target="cudnn")
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target="cudnn", at=("plain",))
    assert [one.at for one in report.converted] == ["plain"]


def test_a_stale_weight_beside_its_source(tmp_path: Path) -> None:
    """A file with both: what the weight is computed from counts, so the weight alone is not believed."""
    module = old_weight_norm()
    tensors = {f"rnn.{name}": value for name, value in module.state_dict().items()} | {f"rnn.{HH}": torch.ones(20, 5)}
    torch.save(tensors, tmp_path / "m.pt")
    with pytest.raises(LayoutError, match=f"rnn.{HH}_g"):
        relayout_command.convert(tmp_path / "m.pt", tmp_path / "o.safetensors", target="onnx")


# --- weight dropout ---------------------------------------------------------------------------------------------------


class Dropped(nn.Module):
    """AWD-LSTM as fastai has it: the raw weight is the wrapper's, what dropout drew is the wrapped module's."""

    def __init__(self, module: nn.LSTM, stale: bool = True) -> None:
        super().__init__()
        self.module = module
        for layer in range(module.num_layers):
            name = f"weight_hh_l{layer}"
            weight = getattr(module, name)
            self.register_parameter(f"{name}_raw", nn.Parameter(weight.detach().clone()))
            del module._parameters[name]
            if stale:
                module.register_parameter(name, nn.Parameter(nn.functional.dropout(weight.detach(), 0.5)))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("stale", [True, False])
@pytest.mark.parametrize("top", [True, False])
@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_weight_dropout_takes_the_raw_weight(layers: int, stale: bool, top: bool, target: str, tmp_path: Path) -> None:
    """What is converted computes what the network computes without dropout."""
    plain = nn.LSTM(3, 5, layers)
    x, state = random(4, 2, 3), np.zeros((layers, 2, 5), np.float32)
    weights = {name: value.detach().numpy().copy() for name, value in plain.state_dict().items()}
    expected = run_torch("lstm", weights, x, state, state)
    wrapped = Dropped(plain, stale)
    path = saved(tmp_path, wrapped if top else Model(wrapped))
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target=target)
    assert [change.kind for one in report.converted for change in one.changes].count("taken") == layers
    found = paramtool.load_file(tmp_path / "o.safetensors")
    assert not [name for name in found if name.endswith("_raw")]
    if target != "torch":
        relayout_command.convert(tmp_path / "o.safetensors", tmp_path / "t.safetensors", target="torch")
        found = paramtool.load_file(tmp_path / "t.safetensors")
    own = below(found, "module" if top else "rnn.module")
    for one, other in zip(run_torch("lstm", own, x, state, state), expected, strict=True):
        close(one, other)


def test_weight_dropout_within_the_module(tmp_path: Path) -> None:
    """PyTorch-NLP's form: the raw weight stands beside the others, and the dropped one is not stored."""
    plain = nn.LSTM(3, 5)
    tensors = dict(Model(plain).state_dict())
    tensors[f"rnn.{HH}_raw"] = tensors.pop(f"rnn.{HH}")
    torch.save(tensors, tmp_path / "m.pt")
    relayout_command.convert(tmp_path / "m.pt", tmp_path / "o.safetensors", target="torch")
    found = paramtool.load_file(tmp_path / "o.safetensors")
    assert sorted(below(found, "rnn")) == sorted(plain.state_dict())
    close(found[f"rnn.{HH}"], plain.state_dict()[HH].numpy())


# --- cells and states of one's own ------------------------------------------------------------------------------------


class Normed(nn.LSTM):
    """An LSTM with more weights of its own."""

    def __init__(self) -> None:
        super().__init__(3, 5)
        self.ln_ih = nn.LayerNorm(20)


class Starting(nn.GRU):
    def __init__(self) -> None:
        super().__init__(3, 5)
        self.h0 = nn.Parameter(torch.zeros(1, 1, 5))


class Cell(nn.Module):
    """A cell of one's own with torch's names and one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(20, 3))
        self.weight_hh = nn.Parameter(torch.randn(20, 5))
        self.bias = nn.Parameter(torch.randn(20))


OWN = {Normed: "ln_ih.weight", Starting: "h0", Cell: "bias"}


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("said", [(), ("--from", "torch")], ids=["found", "said"])
def test_what_nothing_accounts_for_is_refused(
    make: Callable[[], nn.Module], said: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit 5, the tensor named, and nothing written; --ignore goes on without it, and says so."""
    path = saved(tmp_path, Model(make()))
    words = ("convert", path, "-o", "o.safetensors", "--to", "torch" if make is Cell else "cudnn", *said)
    ran = command(*words, cwd=tmp_path)
    assert ran.code == 5
    assert f"'rnn.{OWN[make]}'" in ran.err and "--ignore" in ran.err
    assert not (tmp_path / "o.safetensors").exists()
    again = command(*words, "--ignore", f"rnn.{OWN[make].split('.')[0]}*", cwd=tmp_path)
    assert again.code == 0, again
    assert f"converted without 'rnn.{OWN[make]}'" in again.err
    assert f"rnn.{OWN[make]}" in paramtool.load_file(tmp_path / "o.safetensors")


class WithHead(nn.LSTM):
    """An LSTM with another module of its own."""

    def __init__(self) -> None:
        super().__init__(3, 5)
        self.head = nn.Linear(5, 2)


@pytest.mark.parametrize(("make", "refused"), [(Starting, True), (Cell, True), (Normed, True), (WithHead, False)])
def test_at_the_top_only_names_of_recurrent_networks_count(
    make: Callable[[], nn.Module], refused: bool, tmp_path: Path
) -> None:
    """Biases, states and norms belong to the network; what could be another module does not."""
    path = saved(tmp_path, make())
    if refused:
        with pytest.raises(LayoutError, match="the network at the top"):
            relayout_command.convert(path, tmp_path / "o.safetensors", target="onnx", source="torch")
    else:
        relayout_command.convert(path, tmp_path / "o.safetensors", target="onnx")


def test_another_layout_is_named(tmp_path: Path) -> None:
    """Where another layout has a place for every tensor, the message says which, and saying so works.

    Not in a file of PyTorch's own, which no other library wrote.
    """
    path = saved(tmp_path, Model(Cell()))
    with pytest.raises(LayoutError) as error:
        relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")
    assert "equinox" not in str(error.value.hint)
    path = tmp_path / "m.npz"
    np.savez(path, **{name: value.numpy() for name, value in Model(Cell()).state_dict().items()})
    with pytest.raises(LayoutError) as error:
        relayout_command.convert(path, tmp_path / "o.safetensors", target="torch")
    assert "equinox" in str(error.value.hint)
    report = relayout_command.convert(path, tmp_path / "o.safetensors", target="torch", source="equinox")
    assert [one.source.layout.name for one in report.converted] == ["equinox"]


def test_networks_inside_networks(tmp_path: Path) -> None:
    """A network below another's module is no tensor beside it, whether it is converted or not."""
    outer = nn.LSTM(3, 5)
    outer.inner = nn.GRU(2, 4)
    path = saved(tmp_path, Model(outer))
    assert len(relayout_command.convert(path, tmp_path / "o.safetensors", target="cudnn").converted) == 2
    report = relayout_command.convert(path, tmp_path / "p.safetensors", target="cudnn", at=("rnn",))
    assert [one.at for one in report.converted] == ["rnn"]


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path, Model(nn.LSTM(3, 5)))
    with pytest.raises(UsageError, match=r"ignore='rnn\.ln\*' matches no tensor"):
        relayout_command.convert(path, tmp_path / "o.safetensors", target="cudnn", ignore=("rnn.ln*",))


FINDINGS = {
    "eqx__lstm_I1H1L1D1.npz": "enc.bias",
    "t_customcell.pt": "cell.bias",
    "t_lnattr.pt": "rnn.ln_weight",
    "t_lnsub.pt": "rnn.ln_ih.weight",
    "t_h0.pt": "rnn.h0",
}


@pytest.mark.parametrize("name", FINDINGS)
def test_files_that_went_wrong(name: str, findings: Path, tmp_path: Path) -> None:
    """They were converted without these tensors, and with exit code 0."""
    with pytest.raises(LayoutError, match=FINDINGS[name]):
        relayout_command.convert(findings / name, tmp_path / "o.safetensors", target="onnx")


def test_the_equinox_file_as_what_it_is(findings: Path, tmp_path: Path) -> None:
    """Its outputs by Equinox are torch's with the converted weights."""
    name = "eqx__lstm_I1H1L1D1"
    relayout_command.convert(findings / f"{name}.npz", tmp_path / "o.safetensors", target="torch", source="equinox")
    own = below(paramtool.load_file(tmp_path / "o.safetensors"), "enc")
    with np.load(findings / f"{name}.io.npz") as known:
        x, y = known["x"], known["y"]
    state = np.zeros((1, 3, 1), np.float32)
    close(run_torch("lstm", own, x, state, state)[0], y)
