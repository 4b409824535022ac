"""Pythons of other systems lack some functions of `os`: everything works without them, or is refused cleanly."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import zipapp
from itertools import product
from pathlib import Path

import pytest
import torch

import paramtool
from tests.hostile.command import quick

LACKING = {
    "preadv": "macOS before 11, Windows",
    "link": "Android, some file systems' Pythons",
    "posix_fadvise": "macOS, Windows",
    "posix_fallocate": "macOS, Windows",
    "copy_file_range": "macOS, Windows",
    "sendfile": "Windows",
    "statvfs": "Windows",
    "fchmod": "Windows before 3.13",
    "fchown": "Windows",
    "sched_getaffinity": "macOS, Windows",
    "getuid": "Windows",
}
"""{function: where it is absent}."""
COMMANDS = {
    "inspect": ("inspect", "model.pt", "--digest", "--json"),
    "dedup": ("dedup", "model.pt", "-o", "out.safetensors"),
    "dedup_to_torch": ("dedup", "model.pt", "-o", "out.pt"),
    "dedup_to_a_folder": ("dedup", "model.pt", "-o", "out", "--max-shard-size", "50kB"),
    "family": ("dedup", "model.pt", "other.pt", "-o", "out"),
    "verify": ("verify", "done.safetensors", "--against", "model.pt"),
    "export": ("export", "model.pt", "--all-names", "-o", "out.safetensors"),
    "overwrite": ("dedup", "model.pt", "-o", "done.safetensors", "--force"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a tie and a transpose, another one, and an earlier output."""
    w = torch.arange(20_000.0).reshape(100, 200)
    torch.save({"a": w, "b": w, "t": w.t(), "c": torch.ones(5)}, tmp_path / "model.pt")
    torch.save({"a": w, "d": torch.zeros(20_000)}, tmp_path / "other.pt")
    paramtool.dedup(tmp_path / "model.pt", tmp_path / "done.safetensors")
    return tmp_path


@pytest.mark.sample(33)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("function", LACKING)
def test_without(function: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 and what the function would have given; never a traceback."""
    monkeypatch.delattr(os, function, raising=False)
    ran = quick(*COMMANDS[command], cwd=folder)
    assert ran.code == 0, ran
    assert "internal error" not in ran.err
    if (out := folder / "out.safetensors").exists():
        assert paramtool.load_file(out).keys() >= {"a", "b", "t", "c"}


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    """A downloaded folder may hold a numpy.py or an h5py.py, and `python -m` has it on its path."""
    h5py = pytest.importorskip("h5py")
    root, place = Path(__file__).parents[2], tmp_path / "place"
    place.mkdir()
    with h5py.File(place / "w.h5", "w") as file:
        file["w"] = [1.0, 2.0]
    for name in ("__future__", "numpy", "h5py", "click", "json", "typing", "signal", "blake3", "paramtool"):
        (place / f"{name}.py").write_text(f"open('ran-{name}', 'w')\nraise SystemExit(99)\n")
    shutil.copytree(root / "paramtool", tmp_path / "app" / "paramtool")
    (tmp_path / "app" / "__main__.py").write_text(runpy.run_path(str(root / "packaging" / "dist.py"))["START"])
    zipapp.create_archive(tmp_path / "app", tmp_path / "paramtool.pyz")
    scripts = [Path(sys.executable).parent / name for name in ("paramtool", "hf-paramtool")]
    ways: dict[str, list[object]] = {one.name: [one] for one in scripts if one.exists()}
    ways["zipapp"] = [sys.executable, tmp_path / "paramtool.pyz"]
    ways["module"] = [sys.executable, "-m", "paramtool"]
    for way, start in ways.items():
        if way == "module":
            (place / "paramtool.py").unlink()  # the one that `python -m` is told to run
        lines = (
            ("dedup", "w.h5", "-o", f"{way}.safetensors", "--force"),
            ("inspect", "w.h5"),
            ("lock", "w.h5", "-o", "-"),
        )
        found_by = "" if way == "zipapp" else str(root)
        for path, words in product((found_by, f"{found_by}{os.pathsep}"), lines):  # an empty part is the current folder
            env = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run([*map(str, start), *words], cwd=place, env=env, capture_output=True, text=True)
            assert done.returncode == 0, (way, done)
        assert not [path.name for path in place.iterdir() if path.name.startswith("ran-")], way
