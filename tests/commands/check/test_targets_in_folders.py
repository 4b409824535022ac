"""A folder that is checked against a lock: what vanished from it is missed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import torch
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


def test_a_damaged_model_of_a_folder_hides_no_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file({"w": np.arange(9, dtype="f4")}, tmp_path / name / "model.safetensors")
    index = tmp_path / "c" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')
    files = paramtool.check(tmp_path).files
    found = {os.path.relpath(file.path, tmp_path).split(os.sep)[0]: file.error for file in files}
    assert {name: error is None for name, error in found.items()} == {"a": True, "b": True, "c": False}


def test_a_copy_in_a_folder_is_named(tmp_path: Path) -> None:
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


class Command:
    """What runs a command when a pickle is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


NAMES = ("model_best.pth.tar", "noext", "UP.SAFETENSORS", "x.v1.2", "x.weird")


def test_files_whose_names_no_library_looks_for(tmp_path: Path) -> None:
    """Each is checked, beside two others, as a pattern checks them; what is no checkpoint is not."""
    for name in ("a.pt", "b.pt"):
        torch.save({name[0]: torch.zeros(3)}, tmp_path / name)
    for name in NAMES:
        arrays = {"w": np.full(3, np.nan, "f4")}
        if name.startswith("UP"):
            save_file(arrays, tmp_path / name)
        else:
            torch.save({"w": torch.from_numpy(arrays["w"])}, tmp_path / name)
    (tmp_path / "README.md").write_text("# Models\n")
    (tmp_path / "train.log").write_text("loss 3.1\n")
    shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path, "README.md")
    (tmp_path / "paramtool.toml").write_text("no-nan = true\n")
    found = paramtool.check([tmp_path], config=tmp_path / "paramtool.toml")
    assert {Path(file.path).name for file in found.files} == {"a.pt", "b.pt", *NAMES}
    assert sum(len(file.findings) for file in found.files) == len(NAMES) and found.exit_code == 1


def test_an_unsafe_file_does_not_stop_the_others(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "a.pt")
    torch.save({"b": torch.zeros(3), "e": Command()}, tmp_path / "b.pt")
    torch.save({"c": torch.zeros(3), "e": Command()}, tmp_path / "c.pth.tar")
    found = paramtool.check([tmp_path])
    assert [(Path(file.path).name, len(file.findings)) for file in found.files] == [
        ("a.pt", 0), ("b.pt", 1), ("c.pth.tar", 1)]  # fmt: skip
    assert found.exit_code == 4


def test_a_broken_file_is_not_passed_over(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt", "best.pth.tar"):
        torch.save({name[0]: torch.zeros(300)}, tmp_path / name)
    whole = (tmp_path / "best.pth.tar").read_bytes()
    (tmp_path / "best.pth.tar").write_bytes(whole[: len(whole) // 2])
    found = paramtool.check([tmp_path])
    assert found.exit_code == 3 and [Path(file.path).name for file in found.files if file.error] == ["best.pth.tar"]


def test_a_folder_of_one_model_names_what_else_could_be_one(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "model.pt")
    torch.save({"a": torch.ones(3)}, tmp_path / "G_1000")
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    (file,) = paramtool.check([tmp_path]).files
    assert file.error is None
    assert file.notes == ("not checked, since the folder is one model: 'G_1000'; name them, or use a pattern",)


def test_measurements_beside_checkpoints_are_no_model_that_hides_them(tmp_path: Path) -> None:
    """As programs that train write them: an array in the folder, weights below it."""
    np.savez(tmp_path / "evaluations.npz", results=np.zeros(9))
    (tmp_path / "weights").mkdir()
    for name in ("best.pt", "last.pt"):
        torch.save({name[0]: torch.zeros(3)}, tmp_path / "weights" / name)
    found = paramtool.check([tmp_path])
    assert [Path(file.path).name for file in found.files] == ["evaluations.npz", "best.pt", "last.pt"]
