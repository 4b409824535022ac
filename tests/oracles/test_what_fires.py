"""What runs code when libraries load the files of a folder is what `check FOLDER` calls unsafe, and nothing else is.

The oracle is CPython's pickle, torch and NumPy: they load every file of many folders in a process of its own.  What a
pickle runs makes a file, so that it is known which pickle ran.  Nothing of our scanner says what is expected.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import logging
import lzma
import os
import pathlib
import pickle
import random
import shelve
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.examples import examples
from tests.hostile.command import quick

LOADER = """
import bz2, gzip, io, lzma, os, pickle, sys, tarfile, warnings, zipfile, zlib
import numpy, torch

warnings.simplefilter("ignore")

class Unpickler(pickle.Unpickler):
    def persistent_load(self, pid):
        return pid

def of_zip(path):
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            attempt(lambda: Unpickler(io.BytesIO(file.read(name))).load())

def of_tar(path):
    with tarfile.open(path) as file:
        for member in file:
            attempt(lambda: Unpickler(file.extractfile(member)).load())

def of_npz(path):
    with numpy.load(path, allow_pickle=True) as file:
        for name in file.files:
            attempt(lambda: file[name])

def stacked(path):
    with open(path, "rb") as file:
        while True:
            Unpickler(file).load()

LOADERS = (
    stacked, of_zip, of_tar, of_npz,
    lambda path: torch.load(path, weights_only=False, map_location="cpu"),
    lambda path: numpy.load(path, allow_pickle=True),
    *(lambda path, open=open: Unpickler(open(path)).load() for open in (gzip.open, bz2.open, lzma.open)),
    lambda path: Unpickler(io.BytesIO(zlib.decompress(open(path, "rb").read()))).load(),
)

def attempt(load):
    try:
        load()
    except Exception:
        pass

for path in sys.stdin.read().split("\\0"):
    for load in LOADERS:
        attempt(lambda: load(path))
"""
"""Loads the files whose paths it is given, each in every way."""


class Runs:
    """What calls a function when it is unpickled."""

    def __init__(self, function: object, *args: object) -> None:
        self.made = function, args

    def __reduce__(self) -> tuple[object, ...]:
        return self.made


class Builds:
    """An array whose state, a path, is set by a function that writes it there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return np.ones, (2,), self.path, None, None, np.ndarray.tofile


GADGETS: dict[str, Callable[[str], object]] = {
    "mkdir": lambda mark: Runs(os.mkdir, mark),
    "open": lambda mark: Runs(open, mark, "w"),
    "eval": lambda mark: Runs(eval, f"open({mark!r}, 'w')"),
    "exec": lambda mark: Runs(exec, f"open({mark!r}, 'w')"),
    "codecs": lambda mark: Runs(codecs.open, mark, "w"),
    "gzip": lambda mark: Runs(gzip.GzipFile, mark, "w"),
    "method": lambda mark: Runs(pathlib.Path.touch, Path(mark)),
    "getattr": lambda mark: Runs(Runs(getattr, Path(mark), "touch")),
    "handler": lambda mark: Runs(logging.FileHandler, mark),
    "sqlite": lambda mark: Runs(sqlite3.connect, mark),
    "shelve": lambda mark: Runs(shelve.open, mark),
    "temporary": lambda mark: Runs(tempfile.mkdtemp, "", os.path.basename(mark), os.path.dirname(mark)),
    "zip": lambda mark: Runs(zipfile.ZipFile, mark, "w"),
    "tar": lambda mark: Runs(tarfile.TarFile, mark, "w"),
    "torch": lambda mark: Runs(torch.save, 1, mark),
    "numpy": lambda mark: Runs(np.save, mark, 1),
    "tofile": lambda mark: Runs(np.ndarray.tofile, np.ones(2), mark),
    "process": lambda mark: Runs(subprocess.call, ["touch", mark]),
    "state": Builds,
    "map": lambda mark: Runs(list, map(os.mkdir, [mark])),
    "inside": lambda mark: {"w": np.ones(3), "more": [1, ("a", Runs(os.mkdir, mark))]},
}  # fmt: skip
"""{name: what makes a file at a path, or one whose name begins like it, when it is unpickled}"""
CLEAN: dict[str, Callable[[str], object]] = {
    "numbers": lambda mark: [1, 2.5, None, True],
    "texts": lambda mark: {"mark": mark, "eval": "exec", "os": ["system", b"posix"]},
    "classes": lambda mark: [OrderedDict(a=1), Counter("aab"), {1, 2}, pathlib.PurePosixPath("a"), complex(1, 2)],
    "arrays": lambda mark: {"w": np.ones((2, 3)), "b": np.zeros(3, "f4")},
    "tensors": lambda mark: {"w": torch.ones(2, 3), "step": 3},
}  # fmt: skip


def zipped(value: object) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/b.bin", pickle.dumps(value, 2))
    return made.getvalue()


def in_tar(value: object) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        data = pickle.dumps(value)
        member = tarfile.TarInfo("inner")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    return made.getvalue()


def by_torch(value: object, *, is_zip: bool) -> bytes:
    torch.save(value, made := io.BytesIO(), _use_new_zipfile_serialization=is_zip)
    return made.getvalue()


def by_numpy(value: object, save: Callable[..., None]) -> bytes:
    array = np.empty(2, dtype=object)
    array[:] = [value, 1]
    save(made := io.BytesIO(), array)
    return made.getvalue()


FORMS: dict[str, Callable[[object], bytes]] = {
    **{f"protocol {n}": lambda value, n=n: pickle.dumps(value, n) for n in range(6)},  # type: ignore[misc]
    "cut": lambda value: pickle.dumps(value, 2)[:-1],
    "behind": lambda value: pickle.dumps(1) + pickle.dumps(value),
    "torch": lambda value: by_torch(value, is_zip=True),
    "torch of old": lambda value: by_torch(value, is_zip=False),
    "npy": lambda value: by_numpy(value, np.save),
    "npz": lambda value: by_numpy(value, np.savez),
    "npz deflated": lambda value: by_numpy(value, np.savez_compressed),
    "gzip": lambda value: gzip.compress(pickle.dumps(value)),
    "bzip2": lambda value: bz2.compress(pickle.dumps(value)),
    "xz": lambda value: lzma.compress(pickle.dumps(value)),
    "zlib": lambda value: zlib.compress(pickle.dumps(value)),
    "zip": zipped,
    "tar": in_tar,
    "zip behind": lambda value: b"#!/bin/sh\n" + zipped(value),
}
PLACES = ("", "sub", "checkpoint-1", "a/b", ".hidden", "onnx")
NAMES = (
    "pytorch_model.bin", "model.pt", "scheduler.pt", "training_args.bin", "weights.ot", "a.pkl", "README", ".state",
    "x.npy", "x.npz", "data.joblib", "archive.tar", "archive.zip", "config.json", "tokenizer.model", "notes.txt",
)  # fmt: skip


class Tree:
    """A folder of files of many forms, some of which run something."""

    def __init__(self, folder: Path, marks: Path, lot: random.Random) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}
        """{path in the folder: how the name begins of what its pickle makes}"""
        self.made: dict[str, tuple[str, str]] = {}
        """{path: its form, and what is in it}"""
        (folder / "cache").mkdir(parents=True)
        if lot.random() < 0.7:
            save_file({"w": np.ones(3)}, folder / "model.safetensors")
        for _ in range(lot.randint(1, 5)):
            place = Path(lot.choice(PLACES), lot.choice(NAMES))
            if str(place) in self.files:
                continue
            mark = marks / f"{len(os.listdir(marks)):05}-{folder.name}-{len(self.files)}-"
            kinds = lot.choice([CLEAN, GADGETS, GADGETS])
            form, kind = lot.choice(sorted(FORMS)), lot.choice(sorted(kinds))
            try:
                data = FORMS[form](kinds[kind](str(mark)))
            except (pickle.PicklingError, TypeError, AttributeError):  # of protocols that have no such value
                continue
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            if lot.random() < 0.2:  # as the hub's cache has it
                (folder / "cache" / mark.name).write_bytes(data)
                (folder / place).symlink_to(os.path.relpath(folder / "cache" / mark.name, (folder / place).parent))
                self.files[f"cache/{mark.name}"] = mark.name
            else:
                (folder / place).write_bytes(data)
            self.files[str(place)] = mark.name
            self.made |= {name: (form, kind) for name, of in self.files.items() if of == mark.name}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tree], set[str]]:
    """Folders, and how the names begin of what was made while their files were loaded."""
    room = tmp_path_factory.mktemp("fires")
    (marks := room / "marks").mkdir()
    lot = random.Random("what fires")
    trees = [Tree(room / f"tree{k}", marks, lot) for k in range(examples(300))]
    paths = [str(tree.folder / name) for tree in trees for name in tree.files]
    (empty := room / "empty").mkdir()
    subprocess.run([sys.executable, "-c", LOADER], input="\0".join(paths), text=True, check=True, cwd=empty)
    return trees, set(os.listdir(marks))


def named_unsafe(tree: Tree) -> tuple[int, set[str]]:
    """What `check` calls unsafe in a folder, and its exit code."""
    ran = quick("check", ".", "--format", "json", cwd=tree.folder)
    said = [
        f"{file['path']} {one['message']}"
        for file in json.loads(ran.out)["files"] for one in file["findings"] if one["id"] == "PT301"
    ]  # fmt: skip
    words = {os.path.normpath(word.strip("'\",:")) for line in said for word in line.split()}
    return ran.code, {name for name in tree.files if name in words}


def test_what_fires_is_unsafe_and_nothing_else(grown: tuple[list[Tree], set[str]]) -> None:
    trees, made = grown
    fired = {
        id(tree): {name for name, mark in tree.files.items() if any(one.startswith(mark) for one in made)}
        for tree in trees
    }
    assert sum(map(len, fired.values())) > len(trees) / 2
    for tree in trees:
        code, named = named_unsafe(tree)
        assert named == fired[id(tree)], {name: tree.made[name] for name in named ^ fired[id(tree)]}
        assert (code == 4) == bool(named)
