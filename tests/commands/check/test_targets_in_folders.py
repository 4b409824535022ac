"""A folder that is checked against a lock: what vanished from it is missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import paramtool


def test_a_locked_model_that_vanished_from_a_folder_is_an_error(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("a", "b"):
        (models / name).mkdir(parents=True)
        save_file({"w": np.arange(9, dtype="f4")}, models / name / "model.safetensors")
    lock = paramtool.lock([models / "a", models / "b"], tmp_path / "l").output
    assert paramtool.check([models], lock=lock).exit_code == 0
    (models / "b" / "model.safetensors").unlink()
    (models / "b").rmdir()
    found = paramtool.check([models], lock=lock)
    assert found.exit_code == 3
    assert any("names it" in str(file.error) for file in found.files)


def test_a_copy_in_a_folder_is_named(tmp_path: Path) -> None:
    import torch

    arrays = {"w": np.arange(100_000, dtype="f4")}
    save_file(arrays, tmp_path / "model.safetensors")
    torch.save({name: torch.from_numpy(one) for name, one in arrays.items()}, tmp_path / "pytorch_model.bin")
    assert any("pytorch_model.bin" in note for note in paramtool.inspect(tmp_path).checkpoint.notes)
    assert any("pytorch_model.bin" in text for text in paramtool.lock([tmp_path], "-").warnings)
    (file,) = paramtool.check([tmp_path]).files
    assert any("pytorch_model.bin" in note for note in file.notes)
    lock = paramtool.lock([tmp_path], tmp_path / "l").output
    changed = torch.from_numpy(arrays["w"].copy())
    changed[70_000] += 1  # not in the samples that tell sets of weights apart
    torch.save({"w": changed}, tmp_path / "pytorch_model.bin")
    found = paramtool.check([tmp_path], lock=lock)
    assert found.exit_code == 2 and "bytes" in str(found.files[0].error)
