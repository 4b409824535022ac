"""docs/types.md: its commands print what it shows, with its own file of rules, on the model that it describes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

import paramtool
from tests.hostile.command import quick

PAGE = Path(__file__).resolve().parents[2] / "docs" / "types.md"


class Speech(nn.Module):
    """The model of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)
        self.lstm, self.head = nn.LSTM(8, 12), nn.Linear(12, 5)


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [text for kind, text in found if kind == language]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = Speech()
    with torch.no_grad():
        for k, tensor in enumerate(model.state_dict().values()):
            if tensor.is_floating_point():  # the same on every machine, no number of which float16 or bfloat16 has
                numbers = (torch.arange(tensor.numel()) + 7919 * (k + 1)) * 40503 % 65521
                tensor.copy_(((numbers - 32760.25) / 65536).view(tensor.shape))
    torch.save(model.state_dict(), tmp_path / "speech.pt")
    (rules,) = blocks("toml")
    (tmp_path / "ours.toml").write_text(rules)
    return tmp_path


def test_the_examples_print_what_is_shown(folder: Path) -> None:
    printed: list[str] = []
    shown = [line for block in blocks("") for line in block.splitlines()]
    assert sum(line.startswith("$ ") for line in shown) == 3
    for line in shown:
        if line.startswith("$ "):
            ran = quick(*shlex.split(line)[2:], cwd=folder)
            assert ran.code == 0, ran
            printed = ran.out.splitlines()
        else:
            assert line in printed, "\n".join(printed)


def test_one_block_for_cudnn_and_batchnorm_in_float32(folder: Path) -> None:
    """The block is that of the layout `cudnn`, rounded; the statistics are as they were."""
    found = paramtool.convert(folder / "speech.pt", folder / "o.safetensors", target="ours.block",
                              layout_file=[folder / "ours.toml"])  # fmt: skip
    paramtool.fuse(folder / "speech.pt", folder / "c.safetensors", layout="cudnn")
    mine, theirs = (paramtool.load_file(folder / name) for name in ("o.safetensors", "c.safetensors"))
    assert mine["lstm.block"].tobytes() == theirs["lstm.flat_weights"].astype("f2").tobytes()
    assert mine["bn.running_var"].tobytes() == theirs["bn.running_var"].tobytes() and found.verified
    assert mine["head.bias"].dtype.name == "bfloat16"
