"""The files that the examples of `paramtool COMMAND --help` name: a function for each command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
from tests.site import setups
from tests.site.environment import ROOT
from tests.site.models import pretrained, tied, trained


def _inspect(folder: Path) -> None:
    torch.save(tied(), folder / "model.pt")
    pretrained(folder / "gpt2", "GPT2", n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=96)
    setups.trainer(folder)
    (folder / "run" / "checkpoint-500").rename(folder / "checkpoint-500")


def _variants(folder: Path) -> None:
    setups.tied_model(folder)
    shutil.copy(folder / "model.pt", folder / "old.pt")
    paramtool.dedup(folder / "model.pt")
    shutil.copy(folder / "model.dedup.safetensors", folder / "small.safetensors")


def _fine_tuned(folder: Path) -> None:
    setups.fine_tuned(folder)
    (folder / "base-1").rename(folder / "candidate-1")
    (folder / "base-2").rename(folder / "candidate-2")


def _dedup(folder: Path) -> None:
    torch.save(tied(), folder / "model.pt")
    trained(folder / "training.pt")
    for name, factor in {"base": 1, "tuned-1": 1.5, "tuned-2": 2}.items():
        pretrained(folder / name, "Llama", scaled=factor)
    _pipeline(folder / "PIPELINE")


def _pipeline(folder: Path) -> None:
    """Two models in subfolders, as a pipeline of diffusers has them."""
    for name in ("text_encoder/model.safetensors", "unet/diffusion_pytorch_model.safetensors"):
        (folder / name).parent.mkdir(parents=True)
        save_file({"weight": torch.ones(8, 8)}, folder / name)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "Pipeline"}))


def _export(folder: Path) -> None:
    setups.tied_model(folder)
    paramtool.dedup(folder / "model.pt")
    state = torch.load(folder / "model.pt")
    torch.save({name: one for name, one in state.items() if name != "lm_head.weight"}, folder / "variant.pt")
    (folder / "tied").rename(folder / "FOLDER")
    setups.trainer(folder)
    (folder / "run" / "checkpoint-500").rename(folder / "CHECKPOINT")
    _pipeline(folder / "PIPELINE")
    norm = {"bert.norm.gamma": torch.ones(4), "bert.norm.bias": torch.zeros(4)}
    torch.save({**norm, "cls.weight": torch.ones(2, 4)}, folder / "bert.pt")


def _convert(folder: Path) -> None:
    setups.lstm_and_keras(folder)
    shutil.copy(ROOT / "fixtures" / "guess" / "mxnet1_lstm_collected.params", folder / "lstm-0001.params")
    paramtool.convert(folder / "lstm.pt", folder / "model.onnx", rename={"rnn": "lstm_1"})
    pretrained(folder / "mixtral", "Mixtral", num_local_experts=4)
    trained(folder / "train.pt")
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict(), folder / "resnet.pt")


def _fuse(folder: Path) -> None:
    torch.manual_seed(0)
    lstm = {f"encoder.lstm.{name}": one for name, one in nn.LSTM(6, 8).state_dict().items()}
    torch.save(lstm, folder / "model.pt")
    pretrained(folder / "llama", "Llama")
    parts = {"q": 64, "k": 16, "v": 16}
    state = {f"model.layers.0.self_attn.{one}_proj.weight": torch.randn(rows, 64) for one, rows in parts.items()}
    save_file(state, folder / "llama.safetensors")


def _unfuse(folder: Path) -> None:
    _fuse(folder)
    paramtool.fuse(folder / "model.pt", layout="cudnn")
    length = sum(one.numel() for one in nn.LSTM(18, 128).parameters())
    torch.save({"rnn.weights": torch.randn(length)}, folder / "flat.pt")
    pretrained(folder / "gpt-neox", "GPTNeoX")
    save_file({"model.layers.0.self_attn.qkv_proj.weight": torch.randn(96, 64)}, folder / "phi.safetensors")


def _guess(folder: Path) -> None:
    length = sum(one.numel() for one in nn.LSTM(30, 100).parameters())
    torch.save({"rnn.weights": torch.randn(length)}, folder / "flat.pt")
    save_file({"lstm_parameters": torch.randn(length)}, folder / "old.safetensors")
    paramtool.export(folder / "old.safetensors", folder / "old.params", all_names=True)
    save_file({"model.layers.0.self_attn.qkv_proj.weight": torch.randn(96, 64)}, folder / "model.safetensors")


def _locked(folder: Path) -> None:
    (folder / "models").mkdir()
    for name in ("model.safetensors", "models/a.safetensors"):
        save_file({"weight": torch.ones(8, 8)}, folder / name)
    (folder / "paramtool.toml").write_text('files = ["models/*.safetensors"]\nlock = "paramtool.lock"\n')


def _check(folder: Path) -> None:
    _locked(folder)
    paramtool.lock([folder / "models" / "a.safetensors"], folder / "paramtool.lock")


def _verify(folder: Path) -> None:
    torch.save(tied(), folder / "model.pt")
    paramtool.dedup(folder / "model.pt")


SETUPS: dict[str, Callable[[Path], None]] = {
    "inspect": _inspect, "variants": _variants, "report": _fine_tuned, "dedup": _dedup, "export": _export,
    "convert": _convert, "fuse": _fuse, "unfuse": _unfuse, "guess": _guess, "layouts": lambda folder: None,
    "diff": _fine_tuned, "lock": _locked, "check": _check, "verify": _verify,
}  # fmt: skip
"""{command: what makes the files of its examples}."""
