"""`unfuse` on what people have: a vector alone in a file, vectors under names of their own, tensors with more axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError
from tests.hostile.command import command
from tests.recurrent import flat, flattened, raw, save, state

WORDS = ("--layout", "cudnn", "--spec", "lstm input=3 hidden=5")


def vector(module: nn.Module) -> torch.Tensor:
    return torch.frombuffer(bytearray(flat(module)), dtype=torch.float32)


@pytest.fixture
def module() -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(3, 5)


@pytest.mark.parametrize("output", ["o.pt", "o.safetensors"])
def test_a_bare_tensor(output: str, module: nn.LSTM, tmp_path: Path) -> None:
    """`torch.save(vector)` has no name: what comes out is what an nn.LSTM loads."""
    torch.save(vector(module), tmp_path / "bare.pt")
    ran = command("unfuse", "bare.pt", "-o", output, *WORDS, cwd=tmp_path)
    assert ran.code == 0, ran
    found = torch.load(tmp_path / output) if output == "o.pt" else paramtool.load_file(tmp_path / output)
    module.load_state_dict({name: torch.as_tensor(np.asarray(value)) for name, value in found.items()})
    assert flat(module) == vector(module).numpy().tobytes()
    verified = command("verify", output, "--against", "bare.pt", cwd=tmp_path)
    assert verified.code == 0, verified


def test_the_line_that_guess_prints(module: nn.LSTM, tmp_path: Path) -> None:
    """The command for the reading that is said works on the very file."""
    torch.save(vector(module), tmp_path / "bare.pt")
    ran = command("unfuse", "bare.pt", *WORDS, "--at", "tensor", "-o", "o.pt", cwd=tmp_path)
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("rnn.weights", "rnn"),
        ("net.rnn.flat_weights", "net.rnn"),
        ("rnn/_flat_weights", "rnn"),
        ("rnn", "rnn"),
        ("net.rnn", "net.rnn"),
        ("weights", ""),
    ],
)
def test_the_names_that_a_vector_becomes(name: str, at: str, module: nn.LSTM, tmp_path: Path) -> None:
    """A vector of module `rnn` becomes the tensors that `rnn` loads."""
    path = save(tmp_path, {name: vector(module)})
    for more in ({}, {"at": (name,)}):
        out = tmp_path / f"o{len(more)}.safetensors"
        relayout_command.unfuse(path, out, layout="cudnn", spec="lstm input=3 hidden=5", **more)
        expected = {f"{at}.{own}".lstrip("."): value for own, value in module.state_dict().items()}
        assert raw(paramtool.load_file(out)) == raw(expected)


def test_a_vector_with_two_axes(module: nn.LSTM, tmp_path: Path) -> None:
    """[1, 200] is a vector, too."""
    path = save(tmp_path, {"rnn.weights": vector(module)[None]})
    report = relayout_command.unfuse(path, tmp_path / "o.safetensors", layout="cudnn", spec="lstm input=3 hidden=5")
    assert [one.at for one in report.converted] == ["rnn"]


def test_tensors_that_are_separate_already(module: nn.LSTM, tmp_path: Path) -> None:
    """`unfuse` says so and leaves them; `convert --from cudnn` says that there is no such vector."""
    save(tmp_path, state(module, "rnn"))
    ran = command("unfuse", "m.pt", "-o", "o.safetensors", "--layout", "cudnn", cwd=tmp_path)
    assert ran.code == 0, ran
    assert "already in the wanted layout, and left unchanged: 'rnn'" in ran.err
    assert raw(paramtool.load_file(tmp_path / "o.safetensors")) == raw(state(module, "rnn"))
    with pytest.raises(LayoutError, match="'rnn' has separate tensors"):
        relayout_command.convert(tmp_path / "m.pt", tmp_path / "p.safetensors", source="cudnn", target="onnx")


def test_separate_tensors_beside_a_vector(module: nn.LSTM, tmp_path: Path) -> None:
    """The vector is what was meant: where it does not fit, that is an error."""
    save(tmp_path, {**state(nn.GRU(2, 2), "gru"), "rnn.weights": vector(module)})
    relayout_command.unfuse(tmp_path / "m.pt", tmp_path / "o.safetensors", layout="cudnn", spec="lstm input=3 hidden=5")
    with pytest.raises(LayoutError):
        relayout_command.unfuse(
            tmp_path / "m.pt", tmp_path / "p.safetensors", layout="cudnn", spec="lstm input=4 hidden=5"
        )


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_biases_with_two_axes_come_back(make: type[nn.Module], tmp_path: Path) -> None:
    """[1, 20] is [1, 20] again after fuse and unfuse, and where nothing has to be converted."""
    own = state(make(3, 5, 2), "rnn")
    tensors = {name: value[None] if value.dim() == 1 else value for name, value in own.items()}
    save(tmp_path, {**tensors, **state(nn.LSTM(2, 2), "other")})
    relayout_command.fuse(tmp_path / "m.pt", tmp_path / "f.safetensors", layout="cudnn")
    relayout_command.unfuse(tmp_path / "f.safetensors", tmp_path / "u.safetensors")
    relayout_command.unfuse(tmp_path / "m.pt", tmp_path / "t.safetensors")
    for path in ("u.safetensors", "t.safetensors"):
        found = paramtool.load_file(tmp_path / path)
        assert raw({name: found[name] for name in tensors}) == raw(tensors)


def test_biases_of_a_buffer(tmp_path: Path) -> None:
    """Windows of one buffer are separate tensors for torch: nothing is made of them."""
    save(tmp_path, flattened(nn.LSTM(3, 5), "rnn"))
    ran = command("unfuse", "m.pt", "-o", "o.safetensors", "--layout", "cudnn", cwd=tmp_path)
    assert ran.code == 0 and "left unchanged" in ran.err


def test_nobody_said_torch(tmp_path: Path) -> None:
    """Where no layout was said, the message does not speak of one that was looked for."""
    save(tmp_path, {"fc.weight": torch.ones(2, 3)})
    with pytest.raises(LayoutError) as error:
        relayout_command.convert(tmp_path / "m.pt", tmp_path / "o.safetensors", target="onnx")
    assert "no recurrent network was found: the file describes none" in str(error.value)
    assert "layout torch" not in str(error.value)


def test_both_directions_are_never_assumed(tmp_path: Path) -> None:
    """A wrong input makes two layers of one direction as long as one layer of both: that has to be said."""
    path = save(tmp_path, {"rnn.weights": vector(nn.LSTM(18, 32, 2))})
    with pytest.raises(LayoutError, match="only fits a network of both directions, which was not given"):
        relayout_command.unfuse(path, tmp_path / "o.safetensors", layout="cudnn", spec="lstm input=25 hidden=32")
    report = relayout_command.unfuse(path, tmp_path / "o.safetensors", layout="cudnn", spec="lstm input=18 hidden=32")
    assert [one.spec.layers for one in report.converted] == [2]
    spec = "lstm input=25 hidden=32 bidirectional"
    assert (
        relayout_command.unfuse(path, tmp_path / "p.safetensors", layout="cudnn", spec=spec)
        .converted[0]
        .spec.bidirectional
    )


@pytest.mark.parametrize("spec", ["lstm layers=2 hidden=32", "hidden_size=32", "lstm input=19 hidden=32"])
def test_a_length_that_does_not_fit_is_told_with_and_without_at(spec: str, tmp_path: Path) -> None:
    """The arithmetic, or the networks that fit, do not depend on --at."""
    path = save(tmp_path, {"rnn.weights": vector(nn.LSTM(18, 32, 2)), "fc.weight": torch.ones(2, 3)})
    told = []
    for more in ({}, {"at": ("rnn.weights",)}):
        with pytest.raises(LayoutError) as error:
            relayout_command.unfuse(path, tmp_path / "o.safetensors", layout="cudnn", spec=spec, **more)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "15104 elements" in told[0] or "15,104 elements" in told[0]
