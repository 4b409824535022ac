"""--stack: layers put together as one network, and taken apart, in every layout that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import paramtool
from paramtool import layouts
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.errors import LayoutError, UsageError
from paramtool.passes.rnn.stacking import parse
from tests.hostile.command import command
from tests.recurrent import raw, save, state

LAYERED = ("torch", "torch.cell", "onnx", "keras", "keras.vars", "equinox", "flax.linen", "flax.nnx", "mxnet", "paddle")


def two(folder: Path, module: nn.Module | None = None) -> Path:
    return save(folder, state(module or nn.LSTM(3, 5, 2), "enc"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layout", LAYERED)
def test_apart_and_together(layout: str, bidirectional: bool, tmp_path: Path) -> None:
    """Two layers apart and together again are the file that a conversion without --stack makes, byte for byte."""
    if bidirectional and layouts.find(layout).max_directions == 1:
        return
    path = two(tmp_path, nn.LSTM(3, 5, 2, bidirectional=bidirectional))
    apart, plain, back = (tmp_path / f"{name}.safetensors" for name in ("apart", "plain", "back"))
    report = relayout_command.convert(path, apart, target=layout, stack=("enc=a.x,b",))
    assert [one.at for one in report.converted] == ["a.x", "b"]
    relayout_command.convert(apart, back, target=layout, stack=("a.x,b=enc",))
    relayout_command.convert(path, plain, target=layout)
    assert raw(paramtool.load_file(back)) == raw(paramtool.load_file(plain))
    assert verify_command.verify(apart, path).differences == ()
    assert verify_command.verify(back, apart).differences == ()


def test_a_layer_is_the_network_of_that_layer(tmp_path: Path) -> None:
    """Taken apart, each layer has the names of an nn.LSTM, and its weights."""
    module = nn.LSTM(3, 5, 2)
    relayout_command.convert(two(tmp_path, module), tmp_path / "o.safetensors", target="torch", stack=("enc=a,b",))
    found = paramtool.load_file(tmp_path / "o.safetensors")
    for layer, at in enumerate("ab"):
        one = nn.LSTM(3 if at == "a" else 5, 5)
        assert {name for name in found if name.startswith(f"{at}.")} == {f"{at}.{name}" for name in one.state_dict()}
        own = {name[:-1] + str(layer): value for name, value in found.items() if name.startswith(at)}
        expected = {f"{at}.{name}": value for name, value in module.state_dict().items() if name.endswith(str(layer))}
        assert raw(own) == raw(expected)


def refused(folder: Path, stack: str, match: str, source: Path | None = None, **more: object) -> None:
    with pytest.raises(LayoutError, match=match):
        relayout_command.convert(
            source or folder / "m.pt", folder / "o.safetensors", target="onnx", stack=(stack,), **more
        )
    assert not (folder / "o.safetensors").exists()


def test_layers_that_do_not_fit(tmp_path: Path) -> None:
    save(tmp_path, {**state(nn.LSTM(3, 5), "a"), **state(nn.LSTM(4, 5), "b"), **state(nn.GRU(5, 5), "c")})
    refused(tmp_path, "a,b=enc", "'b' takes 4 values; 'a' gives 5")
    refused(tmp_path, "a,c=enc", "'c' is gru .*; the layers of one network must be alike")
    refused(tmp_path, "a=x,y", "'a' is lstm input=3 hidden=5; expected 2 layers")


def test_one_vector_has_no_layers_of_its_own(tmp_path: Path) -> None:
    relayout_command.fuse(two(tmp_path), tmp_path / "f.safetensors", layout="cudnn")
    refused(tmp_path, "enc=a,b", "all layers of a network in the same tensors", tmp_path / "f.safetensors")


def test_kept_biases(tmp_path: Path) -> None:
    """What an earlier conversion kept of the single layers is not left behind in silence."""
    save(tmp_path, {**state(nn.LSTM(3, 5), "a"), **state(nn.LSTM(5, 5), "b")})
    relayout_command.convert(tmp_path / "m.pt", tmp_path / "k.safetensors", target="keras", keep_split=True)
    refused(tmp_path, "a,b=enc", "holds biases of a network that stack", tmp_path / "k.safetensors")
    more = {"target": "torch", "stack": ("a,b=enc",), "drop_kept": True}
    relayout_command.convert(tmp_path / "k.safetensors", tmp_path / "o.safetensors", **more)
    assert not [name for name in paramtool.load_file(tmp_path / "o.safetensors") if "kept" in name]


def test_a_layer_without_biases(tmp_path: Path) -> None:
    """Beside one with biases it gets zeros, which is said."""
    save(tmp_path, {**state(nn.LSTM(3, 5), "a"), **state(nn.LSTM(5, 5, bias=False), "b")})
    report = relayout_command.convert(tmp_path / "m.pt", tmp_path / "o.safetensors", target="torch", stack=("a,b=enc",))
    assert any(change.kind == "made" for one in report.converted for change in one.changes)
    found = paramtool.load_file(tmp_path / "o.safetensors")
    assert sorted(found) == sorted(f"enc.{name}" for name in nn.LSTM(3, 5, 2).state_dict())
    assert not found["enc.bias_ih_l1"].any()


@pytest.mark.parametrize("text", ["a,b", "a=b", "a,b=c,d", "a,=b", "=a,b", "a,a=b", "a=b,b", "a,b=", ""])
def test_words_that_say_no_stack(text: str) -> None:
    with pytest.raises(UsageError, match="stack"):
        parse(text)


def test_a_module_that_is_no_network(tmp_path: Path) -> None:
    ran = command("convert", two(tmp_path), "-o", "o.safetensors", "--to", "onnx", "--stack", "a,b=c", cwd=tmp_path)
    assert ran.code == 2
    assert "'a' is not a converted network; expected one of 'enc'" in ran.err
