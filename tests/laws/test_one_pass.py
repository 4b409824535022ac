"""One pass over a file gives its kind, its verdict and its contents, for the whole command."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from paramtool.formats.files import Contents
from paramtool.formats.pickle.machine import Machine
from paramtool.formats.pickle.values import Result
from tests.hostile.command import quick

Place = tuple[object, int]


class Calls:
    """What calls when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


def write(folder: Path) -> None:
    """A model, and neighbours of all kinds that hold pickles, read and refused, clean and unsafe."""
    (folder / "sub").mkdir(parents=True)
    torch.save({"w": torch.eye(3)}, folder / "pytorch_model.bin")
    torch.save({"w": torch.eye(3)}, folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"w": torch.ones(3)}, folder / "sub/model.bin")
    save_file({"w": np.eye(3, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "arrays.pkl").write_bytes(pickle.dumps({"a": np.eye(3)}))
    (folder / "notes.txt").write_text("text")
    np.savez(folder / "objects.npz", a=np.array([1, None], object))
    np.save(folder / "objects.npy", np.array([1, None, 2], object))
    for number, name in enumerate(("scheduler.pt", "list.bin", "sub/words.pkl")):
        (folder / name).write_bytes(pickle.dumps([number], 2))
    (folder / "cut.pt").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-60])


REFUSED = ("objects.npy", "objects.npz")
"""Run twice: a reader stops at what it does not take, and the scan goes on behind anything."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[Place]]:
    """{(file, or its inflated bytes; the position): how often the machine ran a pickle there}"""
    found: Counter[Place] = Counter()
    run = Machine.run

    def counted(self: Machine) -> Result:
        data = self.data
        is_file = isinstance(data, Contents)
        found[(data._file.name, data._from + self.start) if is_file else (data, self.start)] += 1  # type: ignore[union-attr]
        return run(self)

    monkeypatch.setattr(Machine, "run", counted)
    yield found


LINES: list[tuple[str, ...]] = [
    ("inspect", "x"), ("inspect", "x", "x/old.pt"), ("check", "x"), ("check", "x/*"), ("check", "x", "x/sub"),
    ("check", "x", "x/list.bin", "x/old.pt"), ("lock", "x", "-o", "out"), ("dedup", "x", "-o", "out"),
    ("dedup", "x", "--each", "-o", "out"), ("diff", "x", "x"), ("diff", "x", "x/sub/model.bin"),
    ("export", "x", "-o", "out.npz"), ("convert", "x", "--dtype", "bfloat16", "-o", "out"),
    ("verify", "x", "--against", "x"), ("report", "x", "-o", "out.html"), ("variants", "x", "--against", "x/old.pt"),
    *[(command, f"x/{name}") for command in ("inspect", "check", "dedup", "export", "lock", "diff")
      for name in ("old.pt", "pytorch_model.bin", "arrays.pkl", "list.bin", "objects.npy", "notes.txt", "cut.pt")],
]  # fmt: skip


@pytest.mark.parametrize("is_unsafe", [False, True], ids=["clean", "unsafe"])
@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_no_pickle_is_run_again(line: tuple[str, ...], is_unsafe: bool, runs: Counter[Place], tmp_path: Path) -> None:
    write(tmp_path / "x")
    if is_unsafe:
        (tmp_path / "x/unsafe.pkl").write_bytes(pickle.dumps(Calls()))
    if line[0] == "diff" and len(line) == 2:
        line = (*line, "x/arrays.pkl")
    quick(*line, cwd=tmp_path)
    assert runs
    for (name, at), count in runs.items():
        held = os.path.basename(name) if isinstance(name, str) else ""
        assert count <= 1 + (held in REFUSED), (name, at, count)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    """Also where only a file beside the one that was named did."""
    from paramtool import formats
    from paramtool.formats.once import remembering

    path = tmp_path / "a.safetensors"
    with remembering():
        for names in (["a"], ["a", "b"]):
            save_file({name: np.zeros(3) for name in names}, path)
            for _ in range(2):
                assert list(formats.read_file(str(path)).entries) == names
