"""A damaged storage is an error, whichever search reads it: no map is said of bytes that have another CRC."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands.diff.diff import diff
from paramtool.errors import FormatError

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda one: one[torch.arange(len(one)).roll(5)],
    "columns": lambda one: one.roll(7, 1),
    "rows of columns": lambda one: one.T.roll(3, 0),
    "axes": lambda one: one.T,
    "a run": lambda one: one.reshape(-1)[: one.numel() // 2].roll(100),
}


def with_another_crc(path: Path) -> None:
    """Change the CRC that the archive states of its first storage, in both of its directories."""
    with zipfile.ZipFile(path) as archive:
        stated = next(one.CRC for one in archive.infolist() if one.filename.endswith("data/0")).to_bytes(4, "little")
    raw = path.read_bytes()
    assert stated in raw
    path.write_bytes(raw.replace(stated, bytes([stated[0] ^ 1]) + stated[1:]))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("how", MADE)
def test_a_wrong_crc(tmp_path: Path, how: str, is_first: bool) -> None:
    torch.manual_seed(0)
    old = torch.randn(64, 48) if how != "a run" else torch.randn(4000)
    new = MADE[how](old).contiguous()
    damaged, whole = ({"x": old}, {"y": new}) if is_first else ({"y": new}, {"x": old})
    torch.save(damaged, tmp_path / "d.pt")
    save_file(whole, tmp_path / "w.safetensors")
    pair = [tmp_path / "d.pt", tmp_path / "w.safetensors"][:: 1 if is_first else -1]
    assert {one.kind for one in diff(*pair).tensors if one.b} == {"layout"}
    with_another_crc(tmp_path / "d.pt")
    with pytest.raises(FormatError, match="CRC"):
        diff(*pair)
