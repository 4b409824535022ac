"""No file is written under the name of another format, by any command, from the command line or from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.errors import UsageError
from paramtool.formats.table import NOT_WRITTEN, SUFFIXES
from tests.hostile.command import quick, refused
from tests.written import WRITERS

COMMANDS = {
    "dedup": ("dedup", "m.pt"),
    "export": ("export", "m.pt", "--all-names"),
    "convert": ("convert", "m.pt", "--to", "cudnn"),
    "fuse": ("fuse", "m.pt", "--layout", "cudnn"),
    "unfuse": ("unfuse", "m.pt", "--layout", "torch"),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dedup": paramtool.dedup,
    "export": lambda *args, **more: paramtool.export(*args, all_names=True, **more),
    "convert": lambda *args, **more: paramtool.convert(*args, target="cudnn", **more),
    "fuse": lambda *args, **more: paramtool.fuse(*args, layout="cudnn", **more),
    "unfuse": lambda *args, **more: paramtool.unfuse(*args, layout="torch", **more),
}
FALSE = ["x.weights.h5", "x.keras", "x.npy", "x.gguf", "x.pkl", "x.jld2", "x.bson", "x.pb", "x.tflite",
         "x.backup", "x", "model-v1.5", "model.safetensors.index.json", ".pt",
         "x.safetensors.tmp"]  # fmt: skip
TRUE = ["x.safetensors", "X.SafeTensors", "x.y.safetensors", "x.pt", "x.pth", "x.bin", "x.ckpt", "X.PT"]
OPENED: dict[str, Callable[[Path], Any]] = {
    "x.npz": lambda path: list(np.load(path)),
    "x.params": lambda path: path.read_bytes()[:8] == (0x112).to_bytes(8, "little"),
    "X.MsgPack": lambda path: msgpack.unpackb(path.read_bytes()),
    "x.h5": lambda path: list(h5py.File(path)),
    "x.hdf5": lambda path: list(h5py.File(path)),
}
"""{name of a format without a record: what opens it}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A network that every command takes."""
    torch.save(nn.LSTM(3, 4).state_dict(), tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.fixture
def folder(model: Path) -> Path:
    """The same as a folder."""
    (model.parent / "in").mkdir()
    model.rename(model.parent / "in" / "pytorch_model.bin")
    return model.parent / "in"


@pytest.mark.sample(24)
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--json",), ("--force",)], ids=" ".join)
@pytest.mark.parametrize("name", FALSE)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_false_name_is_a_wrong_request(
    command: str, name: str, more: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    """Exit 2, every suffix that there is, a name that would do, and nothing written."""
    is_of_model = name.endswith((".weights.h5", ".keras"))
    says = (f"{name}: ", ".safetensors", ".pt, .pth, .bin, .ckpt", "hint: --into " if is_of_model else "hint: -o ")
    error = refused(quick, *COMMANDS[command], *more, "-o", name, cwd=tmp_path, code=2, says=says).err
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]
    if is_of_model:  # which Keras opens if it is made of a model
        return
    advice = error.rpartition("hint: -o ")[2].strip()
    assert quick(*COMMANDS[command], *more, "-o", advice, cwd=tmp_path).code == 0, "the hint works when pasted"


@pytest.mark.sample(30)
@pytest.mark.parametrize("name", FALSE)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_so_it_is_in_python(function: str, name: str, model: Path, tmp_path: Path) -> None:
    """UsageError, also where nothing would be written."""
    for more in ({}, {"dry_run": True}):
        with pytest.raises(UsageError, match=r"\.safetensors, or in \.pt, \.pth, \.bin, \.ckpt"):
            FUNCTIONS[function](model, tmp_path / name, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_true_name_says_the_format(command: str, name: str, model: Path, tmp_path: Path) -> None:
    """Opened by the library whose file it is called."""
    ran = quick(*COMMANDS[command], "-o", name, cwd=tmp_path)
    assert ran.code == 0 and name not in ran.err, ran
    if name.lower().endswith(".safetensors"):
        with safe_open(tmp_path / name, "pt") as found:
            assert list(found.keys())
    else:
        assert torch.load(tmp_path / name, weights_only=True)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "dedup"])
def test_so_do_formats_without_a_record(command: str, name: str, model: Path, tmp_path: Path) -> None:
    """`dedup` writes HDF5 alone of them, which can store a tensor once under two names."""
    assert quick(*COMMANDS[command], "-o", name, cwd=tmp_path).code == 0
    assert OPENED[name](tmp_path / name)


@pytest.mark.parametrize("name", [name for name in OPENED if not name.endswith("5")])
def test_dedup_stores_nothing_once_there(name: str, model: Path, tmp_path: Path) -> None:
    """Exit 2, and what to do."""
    says = ("store every name for itself", "`convert`")
    refused(quick, "dedup", "m.pt", "-o", name, cwd=tmp_path, code=2, says=says)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", ["x.keras", "x.gguf", "x.safetensors/", "x.pt/", "x.h5/", "x.index.json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_not_called_as_a_file(command: str, name: str, folder: Path, tmp_path: Path) -> None:
    """Other programs take it for a file of that format."""
    args = [word.replace("m.pt", "in") for word in COMMANDS[command]]
    says = ("is the name of a file", "the output is a folder", "hint: -o x")
    refused(quick, *args, "-o", name, cwd=tmp_path, code=2, says=says)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", ["out", "out.backup", "model-v1.5", "out/"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_has_any_other_name(command: str, name: str, folder: Path, tmp_path: Path) -> None:
    """No suffix is needed, and a dot is a part of the name."""
    args = [word.replace("m.pt", "in") for word in COMMANDS[command]]
    assert quick(*args, "-o", name, cwd=tmp_path).code == 0
    assert [path.suffix for path in (tmp_path / name).iterdir()] == [".safetensors"]


def test_shards_and_families_are_folders(model: Path, tmp_path: Path) -> None:
    """Their outputs are not called as files either."""
    torch.save({"w": torch.ones(3)}, tmp_path / "n.pt")
    for number, args in enumerate((("m.pt", "--max-shard-size", "1MB"), ("m.pt", "n.pt"))):
        refused(quick, "dedup", *args, "-o", "x.gguf", cwd=tmp_path, code=2, says=("is the name of a file",))
        assert quick("dedup", *args, "-o", f"v1.{number}", cwd=tmp_path).code == 0


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["m.h5", "m.onnx", "m", "m.pt.backup", ".pt", "m.keras.pt"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_the_name_that_is_chosen_is_a_true_one(name: str, is_folder: bool, model: Path, tmp_path: Path) -> None:
    """Whatever the input is called, without -o the output is called what it is."""
    (path := tmp_path / "here" / name).parent.mkdir()
    if is_folder:
        path.mkdir()
        model.rename(path / "pytorch_model.bin")
    else:
        model.rename(path)
    for run in (
        lambda: paramtool.dedup(path),
        lambda: paramtool.fuse(path, layout="cudnn"),
        lambda: paramtool.unfuse(path, layout="torch"),
        lambda: relayout_command.relayout(path, target="keras", keep_split=True),
    ):
        output = Path(run().output)
        assert output.is_dir() == is_folder
        assert output.suffix not in NOT_WRITTEN if is_folder else output.suffix == ".safetensors"


def test_every_suffix_that_is_read_is_known() -> None:
    """Written, or never the name of an output."""
    written = {suffix for writer in WRITERS for suffix in writer.suffixes}
    assert not written & NOT_WRITTEN and {*SUFFIXES} <= written | NOT_WRITTEN
