"""Checkpoints whose pages are looked at, and a parser that knows what a page must be."""

from __future__ import annotations

import json
import struct
from html.parser import HTMLParser
from pathlib import Path

import torch

VOID = {"meta", "input", "br", "wbr"}
STRANGE = (
    "<script>document.title='ran'</script>", "</script><script>document.title='ran'</script>",
    "<img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "</title><b>bold</b>", "a\u202eb\u2066c",
    "\x1b[31mred\x1b[0m", "\u0000", "</svg><svg onload=alert(1)>",
    "javascript:alert(1)", "{{7*7}}", "w" * 5000, "]]><x>", "<!--", "::set-env name=A::b", "é\u0301漢字🙂",
)  # fmt: skip
"""Names that would do something where they are not escaped."""


class Parsed(HTMLParser):
    """A page: its elements with their attributes, its text, and what is wrong with its nesting."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        self.wrong += [f"never closed: {name}" for name in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.wrong.append(f"an attribute twice: {tag} {names}")
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"closed where it is not open: {tag}")

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, name: str) -> list[dict[str, str]]:
        """The attributes of each element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]

    def text_of(self, name: str) -> list[str]:
        """The text in each element of a name that has text."""
        return [text for tag, text in self.texts if tag == name]


def headers_only(path: Path, count: int) -> Path:
    """A safetensors file of many tensors in layers, without bytes on the disk but for its header."""
    header: dict[str, object] = {}
    for k in range(count):
        header[f"model.layers.{k // 10}.block{k % 10 // 5}.part{k % 10}.weight"] = {
            "dtype": "F32", "shape": [4, 4], "data_offsets": [64 * k, 64 * k + 64],
        }  # fmt: skip
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 64 * count)
    return path


def tied(path: Path) -> Path:
    """A tie, a transpose, a slice of rows, one of columns, unused bytes, a fused LSTM, equal tensors, an optimizer."""
    embedding = torch.arange(4096.0).reshape(64, 64)
    lstm = torch.nn.LSTM(8, 16, 1)
    weights = [lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0]
    flat = torch.cat([one.detach().reshape(-1) for one in weights])
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    state: dict[str, torch.Tensor] = {
        "emb.weight": embedding, "head.weight": embedding, "unembed": embedding.t(), "rows": embedding[16:32],
        "columns": embedding[:, 8:24], "part": torch.zeros(4096)[:1024], "h.0.mask": torch.ones(32, 64),
        "h.1.mask": torch.ones(32, 64),
    }  # fmt: skip
    start = 0
    for name, one in zip(names, weights, strict=True):
        state[f"rnn.{name}"] = flat[start : start + one.numel()].view_as(one)
        start += one.numel()
    optimizer = {"state": {0: {"exp_avg": torch.ones(64, 64)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    torch.save({"model": state, "ema": {"emb.weight": embedding + 1}, "optimizer": optimizer}, path)
    return path


def training(path: Path) -> Path:
    """A module after one step: its weights, their average, and AdamW's state, as torch saves them."""
    net = torch.nn.Sequential(torch.nn.Embedding(30, 16), torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.arange(8)).sum().backward()
    optimizer.step()
    ema = {name: one.clone() for name, one in net.state_dict().items()}
    torch.save({"model": net.state_dict(), "ema": ema, "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    return path


def split_and_fused(folder: Path) -> tuple[Path, Path]:
    """Three layers of q, k and v, and the same fused; heads in turn, and apart; a tensor that only one of two has."""
    torch.manual_seed(0)
    layers = [{n: torch.randn(32 if n == "q" else 16, 48) for n in "qkv"} for _ in range(3)]
    turns = torch.randn(96, 48)
    a = {f"layers.{k}.self_attn.{n}_proj.weight": one for k, layer in enumerate(layers) for n, one in layer.items()}
    b = {f"layers.{k}.self_attn.qkv_proj.weight": torch.cat([*layer.values()]) for k, layer in enumerate(layers)}
    a |= {"turns": turns, "old": torch.ones(3, 5)}
    b |= {"apart": torch.cat([one.reshape(-1, 48) for one in turns.view(4, 3, 8, 48).unbind(1)]), "new": torch.ones(7)}
    for name, state in (("split", a), ("fused", b)):
        torch.save(state, folder / f"{name}.pt")
    return folder / "split.pt", folder / "fused.pt"
