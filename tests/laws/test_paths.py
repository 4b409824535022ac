"""Laws of paths that stand inside files: one gate, and its exit code in every format that names files."""

from __future__ import annotations

import json
import posixpath
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool.commands.check import config
from paramtool.errors import ParamtoolError
from paramtool.lockfile import digests, read, write
from paramtool.lockfile.lock import LockedFile, LockedModel
from tests.contracts import makers_tensorflow as tf
from tests.formats.test_dcp import FIXTURES, _info, edited
from tests.hostile.command import quick
from tests.hostile.makers_onnx import OPSET, build, external, graph

NAMES = st.lists(st.sampled_from(["..", ".", "", "a", "b.bin", "a\0b", "\ud800", "link"]), min_size=1, max_size=4).map(
    "/".join
)


def expected(name: str, *, folders: bool) -> int:
    """The exit code of the gate; 0 for the name of a file, which need not be there."""
    parts = [part for part in name.split("/") if part != "."] if folders else [name]
    if "\0" in name or "\ud800" in name or not any(parts):
        return 3
    is_out = any(part in ("", ".", "..") for part in parts) or (not folders and "/" in name)
    return 4 if is_out else 0


def index(folder: Path, name: str) -> tuple[str, int]:
    """The index of shards."""
    (folder / "m.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    return "m.bin.index.json", expected(name, folders=False)


def onnx(folder: Path, name: str) -> tuple[str, int]:
    """External data, whose name is UTF-8."""
    pair = ("location", name.replace("\ud800", "\0"))
    (folder / "m.onnx").write_bytes(build(graph(external(pair)), OPSET))
    return "m.onnx", expected(name, folders=True)


def dcp(folder: Path, name: str) -> tuple[str, int]:
    """A file of torch.distributed.checkpoint."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", folder / "ck")
    edited(folder / "ck", lambda found: _info(found, relative_path=name))
    return "ck", expected(name, folders=False)


def hdf5(folder: Path, name: str) -> tuple[str, int]:
    """A link of HDF5 into another file, wherever that is."""
    name = name.replace("\0", "").replace("\ud800", "") or "x"
    with h5py.File(folder / "m.h5", "w") as file:
        file["w"] = h5py.ExternalLink(name, "w")
    return "m.h5", 4


def tensorflow(folder: Path, name: str) -> tuple[str, int]:
    """The state of a folder."""
    text = name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\000")
    tf.write(folder / "own", {b"w": tf.tensor(np.arange(3, dtype="f4"))})
    (folder / "checkpoint").write_bytes(b'model_checkpoint_path: "%s"\n' % text)
    return "checkpoint", expected(f"{name}.index", folders=False)


FORMATS: tuple[Callable[[Path, str], tuple[str, int]], ...] = (index, onnx, dcp, hdf5, tensorflow)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.__name__)
@settings(max_examples=25)
@given(name=NAMES)
def test_a_file_that_names_a_file(form: Callable[[Path, str], tuple[str, int]], name: str) -> None:
    """The code of the gate; and 4 in every command of the folder, also beside clean weights."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path, code = form(folder, name)
        ran = quick("inspect", path, cwd=folder)
        assert ran.code == code or (not code and ran.code in (0, 3)), (name, ran)
        if code == 4 and form is not dcp:
            save_file({"a": np.ones(3, "f4")}, folder / "model.safetensors")
            for command in (("inspect", "."), ("check", "."), ("lock", ".", "-o", "-"), ("dedup", ".", "-o", "out")):
                ran = quick(*command, cwd=folder)
                assert ran.code == 4 and (command[0] == "check" or str(path) in ran.err), (name, ran)


def locked(model: str, file: str) -> str:
    """A lock with a correct digest of its lines."""
    one = LockedModel(model, (LockedFile(file, 9, "1" * 64),), digests.content(()), digests.unnamed(()), {})
    return write.text([one])


def code_of(text: str) -> int:
    """How a lock is read."""
    try:
        read.parse(text)
    except ParamtoolError as error:
        return error.exit_code
    return 0


@given(NAMES)
def test_a_lock(name: str) -> None:
    """A file is in the folder of its model; a model is where a person said."""
    assert code_of(locked("m", name)) == expected(name, folders=True)
    is_name = bool(name) and "\0" not in name and "\ud800" not in name
    assert code_of(locked(name, "m")) == (0 if is_name else 3)


@pytest.mark.parametrize("key", ["files", "lock"])
@given(name=NAMES.filter(lambda name: "\ud800" not in name))
def test_a_configuration(key: str, name: str) -> None:
    """One that was found names what is in its folder; one that is named may name anything that is a path."""
    value = [name] if key == "files" else name
    path = posixpath.normpath(name)
    code = 2 if "\0" in name or not name else 4 if path.startswith(("..", "/")) else 0
    for is_found in (True, False):
        reader = config._PolicyReader("f.toml", {}, is_found)
        try:
            reader.policy({key: value}, ())
            found = 0
        except ParamtoolError as error:
            found = error.exit_code
        assert found == (2 if code == 2 or (code and is_found) else 0), (name, is_found)


def test_a_damaged_lock_hides_no_unsafe_file(tmp_path: Path) -> None:
    """Nor does a broken input hide an unsafe one behind it."""
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0broken")
    (tmp_path / "m.lock").write_text(locked("a\0b", "m"))
    (tmp_path / "old.lock").write_text("x\n")
    save_file({"a": np.ones(3, "f4")}, tmp_path / "model.safetensors")
    ran = quick("check", "evil.pkl", "model.safetensors", "--lock", "m.lock", cwd=tmp_path)
    assert ran.code == 4 and "evil.pkl" in ran.out and "no file" in ran.out + ran.err, ran
    assert quick("check", "model.safetensors", "--lock", "m.lock", cwd=tmp_path).code == 3
    ran = quick("check", "model.safetensors", "--lock", "old.lock", cwd=tmp_path)
    assert ran.code == 3 and "expected '# paramtool.lock, version 2'" in ran.err, ran
    for command in (
        ("diff", "--find-base", "broken.safetensors", "evil.pkl"),
        ("variants", "broken.safetensors", "--against", "evil.pkl"),
        ("convert", "broken.safetensors", "--into", "evil.pkl", "-o", "out.h5"),
    ):
        assert quick(*command, cwd=tmp_path).code == 4, command
