"""The moves of `diff` are what torch did to the rows and columns of tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.model.diff import LAYOUT, LineMove, LinePlace


def lines(array: np.ndarray, place: LinePlace) -> np.ndarray:
    """All rows or columns of a tensor, one of them at each place of the first axis."""
    return array.reshape(-1, place.of).T if place.is_column else array.reshape(place.of, -1)


def moved(moves: tuple[LineMove, ...], olds: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """A tensor that holds NaN where no move leads."""
    made = np.full(shape, np.nan, "f4")
    for one in moves:
        here = lines(olds[one.old], one.here)[one.here.start : one.here.start + one.length]
        assert len(here) == one.length and len(lines(made, one.there)) == one.there.of
        lines(made, one.there)[one.there.start : one.there.start + one.length] = here
    return made


def test_what_diff_finds_is_what_torch_did(tmp_path: Path) -> None:
    """By tables and by the search for rows: concatenated, in turns, transposed, gates in another order."""
    torch.manual_seed(0)
    a = {f"layers.0.self_attn.{n}_proj.weight": torch.randn(32, 48) for n in "qkv"}
    a |= {"turns": torch.randn(96, 48), "kernel": torch.randn(24, 40), "shuffled": torch.randn(12, 32)}
    a |= {f"enc.{name}": one.clone() for name, one in torch.nn.GRU(40, 32).state_dict().items()}
    q, k, v = (a[f"layers.0.self_attn.{n}_proj.weight"] for n in "qkv")
    b = {
        "layers.0.self_attn.qkv_proj.weight": torch.cat([q, k, v]),
        "apart": torch.cat([one.reshape(-1, 48) for one in a["turns"].view(4, 3, 8, 48).unbind(1)]),
        "weight": a["kernel"][torch.randperm(24)].t(),
        "shuffled": a["shuffled"][torch.randperm(12)],
    }
    save_file(a, tmp_path / "a.safetensors")
    save_file({name: one.contiguous() for name, one in b.items()}, tmp_path / "b.safetensors")
    paramtool.convert(tmp_path / "a.safetensors", tmp_path / "gates.safetensors", target="keras")
    olds = {name: one.numpy() for name, one in a.items()}
    for other, names in (("b", list(b)), ("gates", ["enc/kernel", "enc/recurrent_kernel"])):
        diffed = paramtool.diff(tmp_path / "a.safetensors", tmp_path / f"{other}.safetensors")
        found = {one.b[0]: one for one in diffed.tensors if one.b}
        new = paramtool.load_file(tmp_path / f"{other}.safetensors")
        assert {*names} <= found.keys()
        for name in names:
            one = found[name]
            assert one.kind == LAYOUT and one.moves, name
            assert np.array_equal(moved(one.moves, olds, new[name].shape), new[name]), name
