"""Files that the oldest torch and NumPy 1 wrote, as ours, opened by them again; and what any Python's pickles name."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from paramtool.commands import dedup as dedup_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from tests.oracles import objects

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ROOT / ".venv-oracles" / "oldest" / "bin" / "python"
"""Made by `make oracles`."""
SPELLED = {
    "objects_numpy1": {"numpy.core.multiarray", "pathlib"},
    "objects_python313": {"numpy._core.multiarray", "pathlib._local"},
}
"""{fixture: modules that its pickle names}"""


def modules(path: Path) -> set[str]:
    """The modules of NumPy's and pathlib's classes that a file's pickle names (protocol 2: `c`, module, name)."""
    with zipfile.ZipFile(path) as archive:
        pickle = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    found = {word.decode() for word in re.findall(rb"c((?:numpy|pathlib)[\w.]*)\n", pickle)}
    return found - {"numpy"}


@pytest.mark.parametrize("name", SPELLED)
def test_classes_keep_the_spelling_of_their_source(name: str, tmp_path: Path) -> None:
    """What a NumPy 1 or a Python 3.13 wrote opens there again: the fixtures were made by these."""
    path = ROOT / "fixtures" / "torch" / name / f"{name}.pt"
    assert modules(path) == SPELLED[name]
    dedup_command.dedup(path, tmp_path / "one.pt")
    dedup_command.dedup(path, tmp_path / "one.safetensors")
    dedup_command.dedup(tmp_path / "one.safetensors", tmp_path / "back.pt")
    for output in ("one.pt", "back.pt"):
        assert modules(tmp_path / output) == SPELLED[name]
        assert verify_command.verify(tmp_path / output, path).differences == ()
    if name == "objects_numpy1":  # opens with NumPy 2, too; Python 3.13's pathlib._local is nowhere else
        objects.same(*(torch.load(one, weights_only=False) for one in (path, tmp_path / "one.pt")))


@pytest.mark.skipif(not OLDEST.exists(), reason="make oracles makes the environment with torch 2.1 and NumPy 1")
def test_the_oldest_torch_opens_our_files_as_its_own(tmp_path: Path) -> None:
    """Every object of the table, saved there; deduplicated here, also through safetensors; opened there."""
    folders = {name: tmp_path / name for name in ("in", "through", "out", "back")}
    for folder in folders.values():
        folder.mkdir()
    script = ROOT / "tests" / "oracles" / "objects.py"
    subprocess.run([OLDEST, script, "save", folders["in"]], check=True)
    for path in folders["in"].iterdir():
        between = folders["through"] / f"{path.stem}.safetensors"
        dedup_command.dedup(path, folders["out"] / path.name)
        dedup_command.dedup(path, between)
        dedup_command.dedup(between, folders["back"] / path.name)
    for name in ("out", "back"):
        ran = subprocess.run([OLDEST, script, "same", folders["in"], folders[name]], capture_output=True, text=True)
        assert ran.returncode == 0 and ran.stdout.startswith("2.1.2"), ran


@pytest.mark.skipif(not OLDEST.exists(), reason="make oracles makes the environment with torch 2.1 and NumPy 1")
def test_the_oldest_torch_does_not_look_at_the_record(tmp_path: Path) -> None:
    """A fused network, whose record is a member of the archive."""
    torch.save(torch.nn.LSTM(4, 5, 2).state_dict(), tmp_path / "in.pt")
    relayout_command.fuse(tmp_path / "in.pt", tmp_path / "fused.pt", layout="cudnn")
    with zipfile.ZipFile(tmp_path / "fused.pt") as archive:
        assert any(name.endswith("paramtool.json") for name in archive.namelist())
    expected = {name: tensor.tolist() for name, tensor in torch.load(tmp_path / "fused.pt").items()}
    for more in ("", ", mmap=True"):
        script = f"import torch; print({{n: t.tolist() for n, t in torch.load('fused.pt'{more}).items()}})"
        ran = subprocess.run([OLDEST, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == repr(expected)
