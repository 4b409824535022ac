"""Makers of indexes that reach for other files, promise too much, or have something else where a shard should be."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import makers_torch
from tests.hostile.command import Hostile
from tests.hostile.makers_safetensors import ALIAS, KEY, RECORD, build, item
from tests.hostile.makers_zip import Part, archive

INDEX = "model.safetensors.index.json"
SHARDS = {"one.safetensors": {"w": item()}, "two.safetensors": {"v": item()}}
MAP = {"w": "one.safetensors", "v": "two.safetensors"}


def shards(folder: Path) -> None:
    """Two honest shards."""
    for file, header in SHARDS.items():
        (folder / file).write_bytes(build(header))


def index(folder: Path, weight_map: object) -> Path:
    """An index over two honest shards; the map is data or text."""
    shards(folder)
    text = weight_map if isinstance(weight_map, str) else json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / INDEX).write_text(text)
    return folder / INDEX


def indexed(weight_map: object) -> Callable[[Path], Path]:
    """A maker of an index."""
    return lambda folder: index(folder, weight_map)


def reaching(file: str) -> Hostile:
    """An index that names a file elsewhere; one of that name is there where it can be."""
    is_name = file not in ("", ".") and file.isprintable()
    is_below = file.startswith(("sub/", "./", "~/"))
    says = "the plain name of a file" if is_below else "outside its own folder" if is_name else "the name of no file"
    return Hostile(indexed({**MAP, "x": file}), (says,), inspect=4 if is_name and not is_below else 3)


def instead(data: bytes | None) -> Callable[[Path], Path]:
    """Something else where the second shard should be; None: nothing."""

    def make(folder: Path) -> Path:
        path = index(folder, MAP)
        (folder / "two.safetensors").unlink()
        if data is not None:
            (folder / "two.safetensors").write_bytes(data)
        return path

    return make


def _replaced(by: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = instead(None)(folder)
        by(folder / "two.safetensors")
        return path

    return make


def _to_a_folder(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to("elsewhere")


def _socket(path: Path) -> None:
    place = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(place)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4995584424\n"
FOREIGN: dict[str, tuple[bytes, str]] = {
    "lfs_pointer": (POINTER, "git lfs pull"),
    "html_page": (b"<!DOCTYPE html>\n<html><body>404", "HTML"),
    "html_behind_blanks": (b"\n\n  <HTML><head>", "HTML"),
    "json": (b'{"error": "Repository not found"}', "JSON"),
    "gzip": (b"\x1f\x8b\x08" + bytes(100), "gunzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
    "gguf": (b"GGUF\x03" + bytes(100), "GGUF"),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(100), "fortran_order"),
    "npz": (archive(Part(b"w.npy", b"\x93NUMPY")), "truncated"),
    "keras": (archive(Part(b"metadata.json"), Part(b"config.json"), Part(b"model.weights.h5")), "HDF5"),
    "other_zip": (archive(Part(b"readme.txt")), "zip"),
    "plain_pickle": (b"\x80\x04N.", "pickle"),
    "text": (b"Not Found", "not in a format"),
    "zeros": (bytes(4096), "all zeros"),
    "empty": (b"", "empty"),
    "one_byte": (b"P", "truncated"),
}
"""What is in a file with the name of a safetensors file, and what the message must say of it."""

OUTSIDE: dict[str, Hostile] = {
    repr(file): reaching(file)
    for file in (
        "../one.safetensors", "..", ".", "", "/etc/passwd", "sub/one.safetensors", "./one.safetensors", "~/one",
        "C:one.safetensors", "C:\\one.safetensors", "\\\\host\\share\\one.safetensors", "//host/share/one",
        "..\\one.safetensors", "one.safetensors\0.txt", "one\n.safetensors", "file:one.safetensors", "\x1b[2Jone",
    )
}  # fmt: skip

INDEXES: dict[str, Hostile] = {
    "no_json": Hostile(indexed("hello"), ()),
    "map_missing": Hostile(indexed("{}"), ("weight_map",)),
    "map_a_list": Hostile(indexed([]), ("weight_map",)),
    "map_of_numbers": Hostile(indexed({"w": 1}), ("weight_map",)),
    "map_deep": Hostile(indexed('{"weight_map":' * 100_000), ()),
    "list": Hostile(indexed("[]"), ()),
    "not_utf8": Hostile(lambda folder: _raw(folder, b'{"weight_map": {"\xff": "one.safetensors"}}'), ()),
    "name_twice": Hostile(
        indexed('{"weight_map":{"w":"two.safetensors","v":"two.safetensors","w":"one.safetensors"}}'), ("'w'", "twice")),  # noqa: E501
    "map_twice": Hostile(indexed(f'{{"weight_map":{{"w":"one.safetensors"}},"weight_map":{json.dumps(MAP)}}}'), ("twice",)),  # noqa: E501
    "name_missing": Hostile(indexed({**MAP, "ghost": "one.safetensors"}), ("'ghost'", "one.safetensors")),
    "name_in_two_shards": Hostile(lambda folder: _claimed_twice(folder), ("'w'", "one.safetensors", "two.safetensors")),
    "shard_missing": Hostile(instead(None), ("two.safetensors",)),
    "shard_a_folder": Hostile(_replaced(lambda path: path.mkdir()), ("two.safetensors", "folder")),
    "shard_a_fifo": Hostile(_replaced(lambda path: os.mkfifo(path)), ("two.safetensors", "not a regular file")),
    "shard_a_socket": Hostile(_replaced(_socket), ("two.safetensors", "not a regular file")),
    "shard_a_link_to_a_folder": Hostile(_replaced(_to_a_folder), ("two.safetensors", "folder")),
    "shard_a_link_to_nothing": Hostile(_replaced(lambda path: path.symlink_to("ghost")), ("two.safetensors",)),
    "shard_a_link_to_itself": Hostile(_replaced(lambda path: path.symlink_to(path.name)), ("two.safetensors",)),
    "shard_a_device": Hostile(_replaced(lambda path: path.symlink_to("/dev/zero")), ("not a regular file",)),
    "shard_truncated": Hostile(instead(build({"v": item()})[:-3]), ("two.safetensors", "truncated")),
    "shard_the_index_itself": Hostile(indexed({**MAP, "x": INDEX}), ()),
    "shard_with_a_bomb": Hostile(
        instead(archive(*makers_torch.parts(b"N" * 2_000_000))), ("two.safetensors",), inspect=4),
    **{f"shard_{key}": Hostile(instead(data), ("two.safetensors", says)) for key, (data, says) in FOREIGN.items()},
}  # fmt: skip


def _raw(folder: Path, data: bytes) -> Path:
    path = index(folder, MAP)
    path.write_bytes(data)
    return path


def _claimed_twice(folder: Path) -> Path:
    path = index(folder, MAP)
    both = {"v": item(), "w": item(offsets=(16, 32))}
    (folder / "two.safetensors").write_bytes(build(both, bytes(32)))
    return path


# --- the records of shards -------------------------------------------------------------------------------------------


def _records(
    first: dict[str, Any], second: dict[str, Any], metadata: dict[str, Any] | None = None
) -> Callable[[Path], Path]:
    """A maker of two shards with an alias each, and an index with some metadata."""

    def make(folder: Path) -> Path:
        for file, name, alias in (("one.safetensors", "w", first), ("two.safetensors", "v", second)):
            record = {**RECORD, "aliases": {k: {**ALIAS, "owner": name, "memory": name, **v} for k, v in alias.items()}}
            texts = {"format": "pt", KEY: json.dumps(record)}
            (folder / file).write_bytes(build({"__metadata__": texts, name: item()}))
        (folder / INDEX).write_text(json.dumps({"metadata": metadata or {}, "weight_map": MAP}))
        return folder / INDEX

    return make


def _index_record(record: object) -> dict[str, Any]:
    """The metadata of an index with a record."""
    return {"total_size": 32, KEY: record if isinstance(record, str) else json.dumps(record)}


ONE, TWO = {"a": {"position": 1}}, {"b": {"position": 3}}
SHARD_RECORDS: dict[str, Hostile] = {
    "positions_twice": Hostile(_records(ONE, {"b": {"position": 1}}), ("'a' and 'b'", "position, 1", "clash")),
    "alias_in_two_shards": Hostile(
        _records(ONE, {"a": {"position": 3}}), ("'a'", "one.safetensors", "two.safetensors")),
    "alias_of_the_other_shard": Hostile(
        _records(ONE, {"b": {"position": 3, "owner": "w"}}), ("two.safetensors", "'b'", "'w'", "not in the file")),
    "index_promises_more": Hostile(
        _records(ONE, TWO, _index_record({"version": 1, "aliases": {"a": {}, "b": {}, "c": {}}})), ("'c'", "changed")),
    "index_promises_derived": Hostile(
        _records(ONE, TWO, _index_record({"version": 2, "aliases": {}, "derived": {"c": {}}})), ("'c'", "changed")),
    "index_newer": Hostile(_records(ONE, TWO, _index_record({"version": 99})), ("version 99", "update paramtool")),
    "index_record_cut_off": Hostile(_records(ONE, TWO, _index_record('{"version":1,"al')), ("alias record", "damaged")),
    "index_record_a_list": Hostile(_records(ONE, TWO, _index_record([])), ("alias record", "damaged")),
    "index_aliases_a_number": Hostile(_records(ONE, TWO, _index_record({"version": 1, "aliases": 5})), ("aliases",)),
}  # fmt: skip
HONEST_RECORDS = _records(ONE, TWO, _index_record({"version": 1, "in": "shards"}))
