"""Pairs of windows of two files: what is different is found, and each CRC is compared in the same reading."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool import formats
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import Sides
from paramtool.engine.read import crcs, open_files, pairs, streams
from paramtool.engine.read.blocks import RUN
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError
from paramtool.formats.zip.crc import crc32_joined
from paramtool.model.view import View

NBYTES = 64


def saved(path: Path, state: Mapping[str, torch.Tensor]) -> str:
    torch.save(dict(state), path)
    return str(path)


def state(count: int = 5, numel: int = NBYTES // 4) -> dict[str, torch.Tensor]:
    return {f"{k}": torch.arange(k, k + numel, dtype=torch.float32) for k in range(count)}


def compared(one: str, other: str) -> dict[str, bool]:
    """{name: whether both files hold the same bytes}"""
    a, b = formats.read(one), formats.read(other)
    mine, theirs = a.views(), b.views()
    with Source(a) as first, Source(b) as second:
        same = pairs.same_windows((first, second), [(mine[name], theirs[name]) for name in mine])
    return dict(zip(mine, same, strict=True))


def damage(path: str, found: bytes, at: int = 0) -> None:
    """Change a byte of a file after some bytes, and no CRC."""
    data = bytearray(Path(path).read_bytes())
    data[data.index(found) + at] ^= 1
    Path(path).write_bytes(data)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each CRC was computed of while it was compared."""
    counts: list[int] = []

    def crc32(data: bytes, crc: int = 0) -> int:
        counts.append(len(memoryview(data).cast("B")))
        return zlib.crc32(data, crc)

    monkeypatch.setattr(pairs, "crc32", crc32)
    return counts


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_crcs_of_parts_give_that_of_the_whole(parts: list[bytes]) -> None:
    found = 0
    for part in parts:
        found = crc32_joined(found, zlib.crc32(part), len(part))
    assert found == zlib.crc32(b"".join(parts))


def test_the_crc_of_one_side_proves_that_of_the_other(tmp_path: Path, hashed: list[int]) -> None:
    """Both state one CRC and hold the same bytes: it is computed once."""
    one, other = saved(tmp_path / "a.pt", state()), saved(tmp_path / "b.pt", state())
    assert set(compared(one, other).values()) == {True}
    assert sum(hashed) == 5 * NBYTES


def test_each_side_is_proved_where_bytes_differ(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a.pt", state()), saved(tmp_path / "b.pt", state())
    damage(other, state()["3"].numpy().tobytes(), 9)
    with pytest.raises(FormatError, match=r"b\.pt: storage 3 \(with '3'\) has CRC"):
        compared(one, other)


def test_the_same_damage_on_both_sides_is_damage(tmp_path: Path) -> None:
    """Equal bytes prove nothing where neither side has its CRC."""
    one, other = saved(tmp_path / "a.pt", state()), saved(tmp_path / "b.pt", state())
    for path in (one, other):
        damage(path, state()["2"].numpy().tobytes(), 5)
    with pytest.raises(FormatError, match=r"a\.pt: storage 2 \(with '2'\) has CRC"):
        compared(one, other)


@pytest.mark.parametrize("block", [32, 1 << 20])
@pytest.mark.parametrize("changed", [(), ("0",), ("2", "4")])
def test_what_differs_is_found_in_blocks_and_among_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, changed: tuple[str, ...]
) -> None:
    monkeypatch.setattr(pairs, "MAX_BLOCK_NBYTES", block)
    one = saved(tmp_path / "a.pt", state())
    theirs = {name: tensor.clone() for name, tensor in state().items()}
    for name in changed:
        theirs[name].view(torch.int32)[-1] ^= 1
    other = saved(tmp_path / "b.pt", theirs)
    assert compared(one, other) == {name: name not in changed for name in theirs}


def test_more_files_than_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are read a few at a time, and none is closed while it is read."""
    monkeypatch.setattr(open_files, "_allowed_files", lambda: open_files.MAX_OPEN_FILES)
    count = 3 * open_files.MAX_OPEN_FILES
    for side in "ab":
        (tmp_path / side).mkdir()
        for k in range(count):
            value = np.full(100, k + (side == "b" and k == 40), "u1")
            name = f"model-{k + 1:05}-of-{count:05}.safetensors"
            save_file({f"{k}": value, f"{k}.b": value}, tmp_path / side / name)
        names = {f"{k}{end}": f"model-{k + 1:05}-of-{count:05}.safetensors" for k in range(count) for end in ("", ".b")}
        index = {"metadata": {}, "weight_map": names}
        (tmp_path / side / "model.safetensors.index.json").write_text(json.dumps(index))
    found = compared(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [name for name, same in found.items() if not same] == ["40", "40.b"]


def test_no_pair_is_read_twice(tmp_path: Path) -> None:
    """Steps of a diff ask for the same pairs: what was found is known."""
    one, other = formats.read(saved(tmp_path / "a.pt", state())), formats.read(saved(tmp_path / "b.pt", state(4)))
    asked = [WindowPair(one.views()[name], other.views()[name]) for name in other.views()]
    with Sides(one, other, 1 << 20) as sides:
        first = sides.same(asked, lambda nbytes: None)
        read = sides.nbytes_read
        assert read == 2 * 4 * NBYTES
        assert sides.same(asked, lambda nbytes: None) == first == dict.fromkeys(asked, True)
        assert sides.nbytes_read == read


@pytest.mark.parametrize("is_damaged", (False, True))
def test_the_crc_of_a_transpose_is_made_of_what_is_compared(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second reading of the side whose rows are whole; damage to it is said, also where both sides have it."""
    monkeypatch.setattr(streams, "TILES_NBYTES", RUN * 40)
    monkeypatch.setattr(streams, "MAX_BLOCK_NBYTES", 1 << 12)
    tensor = torch.arange(60_000, dtype=torch.float32).reshape(6000, 10)
    path = saved(tmp_path / "a.pt", {"w": tensor})
    if is_damaged:
        damage(path, tensor[5900].numpy().tobytes())
        tensor[5900, 0] = torch.from_numpy(tensor[5900, :1].numpy().view("u4") ^ 1).view(torch.float32)[0]
    save_file({"w": tensor.numpy().T.copy()}, tmp_path / "b.safetensors")
    monkeypatch.setattr(crcs, "crc32_of", lambda *read: pytest.fail("read again"))
    a, b = formats.read(str(tmp_path / "b.safetensors")), formats.read(path)
    there = b.views()["w"]
    turned = View(there.storage, there.dtype, 0, (10, 6000), (1, 10))
    with Source(a) as first, Source(b) as second:
        if is_damaged:
            with pytest.raises(FormatError, match="has CRC"):
                pairs.same_bytes(first, a.views()["w"], second, turned)
        else:
            assert pairs.same_bytes(first, a.views()["w"], second, turned)
