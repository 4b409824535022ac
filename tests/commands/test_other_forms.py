"""Files in a folder that have no tensor name in common with its weights: another form of the model, or another set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from paramtool import diff, lock
from paramtool.errors import UsageError
from paramtool.formats import copies_note, looked_at


def _elmo(folder: Path, value: float = 0.0) -> Path:
    """A language model in HDF5 and a tagger, as AllenNLP has them in one folder."""
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        file["char_embed"] = np.zeros((9, 9), np.float32)
    torch.save({"tag.weight": torch.full((7, 7), value), "tag.bias": torch.zeros(30)}, folder / "tagger.th")
    return folder


def test_another_name_is_another_set(tmp_path: Path) -> None:
    """The taggers differ, and the language models do not: no comparison of the folders looks at one file alone."""
    a, b = _elmo(tmp_path / "a"), _elmo(tmp_path / "b", 1)
    for run in (lambda: diff(a, b), lambda: lock([a], output="-"), lambda: looked_at(a, None, **NOTHING_ALLOWED)):
        with pytest.raises(UsageError, match=r"2 sets of weights(.|\n)*tagger.th.*no name in common"):
            run()


NOTHING_ALLOWED = {"allow_class": (), "allow_unknown": False}


def test_a_name_of_another_framework_is_said_not_to_be_compared(tmp_path: Path) -> None:
    """`model.npz` has other names for what may be the same model: it is not called the same, and not compared."""
    folders = []
    for name, value in (("a", 0), ("b", 1)):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        save_file({"dense.weight": np.ones((4, 4), np.float32)}, folders[-1] / "model.safetensors")
        np.savez(folders[-1] / "model.npz", **{"dense/kernel": np.full((4, 4), value, np.float32)})
    said = "which has no tensor name in common with it; by the file's name it is the model for another framework"
    assert copies_note(looked_at(folders[0], None, **NOTHING_ALLOWED)) == f"not read as weights: 'model.npz', {said}"
    assert diff(*folders).notes == tuple(f"{side}: not compared: 'model.npz', {said}" for side in "AB")
    (warning,) = lock([folders[0]], output=tmp_path / "lock").warnings
    assert warning.endswith(f": not locked, and not compared: 'model.npz', {said}")
