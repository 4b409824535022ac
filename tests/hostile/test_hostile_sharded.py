"""Hostile indexes and foreign files, through the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.errors import FormatError
from tests.contracts import makers as honest
from tests.examples import IS_HARD
from tests.hostile import makers_sharded
from tests.hostile.command import Hostile, check, command, contents, quick, refused
from tests.hostile.makers_sharded import (
    FOREIGN,
    HONEST_RECORDS,
    INDEX,
    INDEXES,
    MAP,
    OUTSIDE,
    POINTER,
    SHARD_RECORDS,
    index,
)


@pytest.mark.parametrize("key", OUTSIDE)
def test_an_index_names_only_files_beside_it(key: str, tmp_path: Path) -> None:
    """Exit 4, also where the file is there and fine."""
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    makers_sharded.shards(tmp_path)
    makers_sharded.shards(folder / "sub")
    check(OUTSIDE[key], folder)


@pytest.mark.sample(18)
@pytest.mark.parametrize("key", INDEXES)
def test_a_hostile_index_is_refused(key: str, tmp_path: Path) -> None:
    """Exit 3 with the index and the shard named, nothing left."""
    check(INDEXES[key], tmp_path)


@pytest.mark.parametrize("key", ["shard_a_fifo", "map_deep", "shard_lfs_pointer", "shard_the_index_itself"])
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """A FIFO is not waited for, an index that names itself ends."""
    check(INDEXES[key], tmp_path, command)


@pytest.mark.parametrize("key", SHARD_RECORDS)
def test_records_of_shards_that_do_not_fit_together(key: str, tmp_path: Path) -> None:
    """Exit 3 with the index named, from the command line and from the library; nothing left."""
    check(SHARD_RECORDS[key], tmp_path)
    with pytest.raises(FormatError):
        paramtool.load_file(tmp_path / INDEX)


def test_records_of_shards_that_fit(tmp_path: Path) -> None:
    """The same files, undamaged, load: what is refused above is refused for its damage."""
    assert list(paramtool.load_file(HONEST_RECORDS(tmp_path))) == ["w", "a", "v", "b"]


def test_all_that_is_wrong_is_in_one_report(tmp_path: Path) -> None:
    """A pointer, a page and a promise that is not kept, with the remedy of each."""
    path = index(tmp_path, {**MAP, "ghost": "one.safetensors", "p": "three.safetensors"})
    (tmp_path / "two.safetensors").write_bytes(POINTER)
    (tmp_path / "three.safetensors").write_bytes(b"<html>")
    says = (path.name, "3 defects", "two.safetensors", "three.safetensors", "'ghost'", "git lfs pull", "download")
    refused(command, "inspect", ".", cwd=tmp_path, code=3, says=says)


@pytest.mark.parametrize("kind", ["symlink", "hardlink"])
def test_a_link_to_a_regular_file_is_followed(kind: str, tmp_path: Path) -> None:
    """As in a hub's cache, where blobs stand elsewhere."""
    path = index(tmp_path / "snapshot" if (tmp_path / "snapshot").mkdir() is None else tmp_path, MAP)
    (tmp_path / "blobs").mkdir()
    shard = path.parent / "two.safetensors"
    shard.rename(tmp_path / "blobs" / "0123")
    if kind == "symlink":
        shard.symlink_to("../blobs/0123")
    else:
        os.link(tmp_path / "blobs" / "0123", shard)
    assert quick("inspect", path, cwd=tmp_path).code == 0
    assert quick("dedup", path.parent, "-o", "out", cwd=tmp_path).code == 0
    assert quick("verify", "out", "--against", path.parent, cwd=tmp_path).code == 0


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("key", FOREIGN)
def test_a_foreign_file_under_a_checkpoints_name(key: str, name: str, tmp_path: Path) -> None:
    """Said what it is, whatever it is called."""
    data, says = FOREIGN[key]
    if says == "truncated" and len(data) == 1 and not name.endswith(".safetensors"):
        says = "not in a format"  # no other format's name says how long a file of it is at least

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    check(Hostile(make, (says,)), tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "ghost", "/dev/zero", "/dev/null", "loop"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    """Not waited for and not read without end."""

    def make(folder: Path) -> Path:
        path = folder / "model.pt"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            makers_sharded._socket(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to("model.pt")
        elif kind != "ghost":
            path.symlink_to(kind)
        return path

    check(Hostile(make), tmp_path, lambda *args, cwd: command(*args, cwd=cwd))


def test_a_folder_with_several_checkpoints_says_which(tmp_path: Path) -> None:
    """Nothing is guessed: neither where both can be read, nor where the first cannot."""
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"")
    refused(quick, "inspect", ".", cwd=tmp_path, code=3, says=("a.pt", "b.pt", "hint: "))
    for k, name in enumerate(("a.pt", "b.pt")):
        torch.save({"w": torch.full((3,), k)}, tmp_path / name)
    refused(quick, "inspect", ".", cwd=tmp_path, code=2, says=("a.pt", "b.pt", "--weights a.pt"))


def test_truncation_of_an_index_and_its_shards_at_any_byte(tmp_path: Path) -> None:
    """Every cut is exit 3 and names the file that is cut."""
    path = honest.sharded(tmp_path)
    for file in (path, tmp_path / "model-00001-of-00002.safetensors"):
        data = file.read_bytes()
        for length in range(0, len(data), 1 if IS_HARD else 5):
            file.write_bytes(data[:length])
            ran = quick("inspect", path.name, cwd=tmp_path)
            assert ran.code == 3 and ran.out == "" and file.name in ran.err, (length, ran)
        file.write_bytes(data)
    assert quick("inspect", path.name, cwd=tmp_path).code == 0
    assert INDEX in contents(tmp_path)


def test_a_broken_shard_is_one_row(tmp_path: Path) -> None:
    """However many there are: where, and what is wrong with it."""
    names = {f"w{k}": f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3)}
    for key, name in names.items():
        save_file({key: torch.ones(3)}, tmp_path / name)
        os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 5)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    ran = quick("inspect", ".", cwd=tmp_path)
    head, *rows, hint = ran.err.splitlines()
    assert ran.code == 3 and head.endswith("3 defects") and hint.startswith("hint: "), ran
    assert [row.split(": ")[0].strip() for row in rows] == [f"./{name}" for name in names.values()], ran
