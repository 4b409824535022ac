"""A folder is its files: what `check DIR` names as unsafe is what `inspect` says of each file."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.examples import examples, shared
from tests.formats.test_unsafe_forms import Calls
from tests.hostile.command import quick

WEIGHTS = {"w": torch.arange(4.0), "b": torch.ones(2)}
PLACES = ("", "original", "onnx", "checkpoint-1", ".hidden", "a/b/c")
NAMES = (
    "pytorch_model.bin",
    "pytorch_model.fp16.bin",
    "rust_model.ot",
    "model.pt",
    "training_args.bin",
    "x",
    "data.pkl",
)


def evil(path: Path, held: dict[str, object]) -> None:
    """Tensors of a clean file, and a call."""
    torch.save({**held, "c": Calls()}, path)


def cut(path: Path, held: dict[str, object]) -> None:
    """A pickle that calls, truncated behind that."""
    raw = io.BytesIO()
    torch.save({"c": Calls(), **held}, raw, _use_new_zipfile_serialization=False)
    path.write_bytes(raw.getvalue()[:-40])


def packed(path: Path, held: dict[str, object]) -> None:
    """In a tar archive that is compressed."""
    evil(inner := path.with_name("inner.tmp"), held)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, "pytorch_model.bin")
    inner.unlink()


def clean(path: Path, held: dict[str, object]) -> None:
    torch.save(held, path)


def unsafe_by_file(folder: Path) -> set[str]:
    """What `inspect` exits with 4 for, file by file."""
    files = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return {str(file.relative_to(folder)) for file in files if quick("inspect", file, cwd=folder).code == 4}


FILES = st.dictionaries(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from([evil, cut, packed, clean]), st.sampled_from([WEIGHTS, {"w": WEIGHTS["w"]}, {}])),
    max_size=4,
)


@settings(max_examples=examples(80))
@given(FILES, st.sampled_from(["model.safetensors", "clean.pt", ""]))
def test_a_folder_is_its_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[tuple[str, str], tuple[Callable[..., None], dict[str, object]]],
    beside: str,
) -> None:
    """Whatever stands beside a malicious file, and wherever it stands, `check` names it."""
    folder = tmp_path_factory.mktemp("model")
    if beside.endswith(".safetensors"):
        save_file(WEIGHTS, folder / beside)
    elif beside:
        torch.save(WEIGHTS, folder / beside)
    for (place, name), (make, held) in files.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        make(folder / place / name, held)
    unsafe = unsafe_by_file(folder)
    ran = quick("check", ".", "--format", "json", cwd=folder)
    said = ran.out + ran.err
    assert all(os.path.basename(path) in said for path in unsafe), (unsafe, ran)
    assert (ran.code == 0) <= (not unsafe), ran


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """The cache of the hub is made of them; a link to a folder is not entered."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(WEIGHTS, tmp_path / "blobs" / "a")
    evil(tmp_path / "blobs" / "b", dict(WEIGHTS))
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/a")
    (tmp_path / "snapshot" / "pytorch_model.bin").symlink_to("../blobs/b")
    (tmp_path / "snapshot" / "loop").symlink_to(".")
    ran = quick("check", "snapshot", cwd=tmp_path)
    assert ran.code and "pytorch_model.bin" in ran.out + ran.err, ran


@pytest.mark.parametrize("name", ["check_d_missed", "check_t9_missed"])
def test_what_was_missed(name: str, tmp_path: Path) -> None:
    ran = quick("check", shared("findings", "field", "check-folder", name), "--format", "json", cwd=tmp_path)
    assert ran.code and "posix.system" in json.dumps(json.loads(ran.out)), ran
