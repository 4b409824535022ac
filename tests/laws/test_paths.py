"""Laws of paths that stand inside files: one gate, and its exit code in every format that names files."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import tempfile
import zipfile
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
from tests.hostile.command import command, quick
from tests.hostile.makers_onnx import OPSET, build, external, graph

NAMES = st.lists(st.sampled_from(["..", ".", "", "a", "b.bin", "a\0b", "\ud800", "link"]), min_size=1, max_size=4).map(
    "/".join
)


def expected(name: str, *, folders: bool) -> int:
    """The exit code of the gate; 0 for the name of a file, which need not be there."""
    parts = name.split("/")
    if "\0" in name or "\ud800" in name or not name:
        return 3
    if ".." in parts or name[0] == "/":
        return 4
    return 3 if parts[-1] in ("", ".") or (not folders and len(parts) > 1) else 0


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


HELD: dict[str, Callable[[h5py.Group, str], object]] = {
    "link": lambda group, name: group.__setitem__("w", h5py.ExternalLink(name, "w")),
    "a link, and one to it": lambda group, name: (
        group.__setitem__("a", h5py.SoftLink("w")), group.__setitem__("w", h5py.ExternalLink(name, "/a/b"))
    ),
    "storage": lambda group, name: group.create_dataset("w", (4,), "f4", external=[(name, 0, 16)]),
    "storage in two files": lambda group, name: group.create_dataset(
        "w", (8,), "f4", external=[("own", 0, 16), (name, 4, h5py.h5f.UNLIMITED)]
    ),
    "storage of records": lambda group, name: group.create_dataset(
        "w", (2,), [("a", "f4"), ("b", "S4")], external=[(name, 0, 16)]
    ),
    "storage of texts": lambda group, name: group.create_dataset("w", (2,), "S8", external=[(name, 0, 16)]),
    "storage of nothing": lambda group, name: group.create_dataset("w", (0,), "f4", external=[(name, 0, 16)]),
    "virtual": lambda group, name: virtual(group, name, (4,)),
    "virtual, of any length": lambda group, name: virtual(group, name, (4, 0)),
    "virtual, of numbered files": lambda group, name: numbered(group, name),
}  # fmt: skip
"""Each form of data in other files that h5py writes."""
AROUND: dict[str, Callable[[h5py.File], h5py.Group]] = {
    "": lambda file: file,
    "in groups": lambda file: file.create_group("a/b"),
    "beside the layers of Keras": lambda file: (
        file.attrs.__setitem__("layer_names", np.array(["d"], "S1")),
        file.create_group("d").attrs.__setitem__("weight_names", np.array(["d/k"], "S3")),
        file.create_group("else"),
        file["d"].create_dataset("d/k", data=np.ones(3)),
    )[2],
    "in the optimizer of Keras": lambda file: file.create_group("optimizer_weights/adam"),
    "in the types of Julia": lambda file: file.create_group("_types"),
}  # fmt: skip
"""Where it stands, also where no reader of weights looks."""


def virtual(group: h5py.Group, name: str, shape: tuple[int, ...]) -> None:
    """A dataset of others; with an axis of 0 it grows with them."""
    most = tuple(size or None for size in shape)
    layout = h5py.VirtualLayout(tuple(size or 1 for size in shape), "f4", maxshape=most)
    source = h5py.VirtualSource(name, "w", tuple(size or 1 for size in shape), maxshape=most)
    layout[:] = source
    group.create_virtual_dataset("w", layout)


def numbered(group: h5py.Group, name: str) -> None:
    """A dataset of as many files as there are: each has a number in its name."""
    most = h5py.h5s.UNLIMITED
    shape, made = h5py.h5s.create_simple((1, 4), (most, 4)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    rows = shape.copy()
    rows.select_hyperslab((0, 0), (most, 1), (1, 1), (1, 4))
    made.set_virtual(rows, f"{name}%b".encode(), b"w", h5py.h5s.create_simple((4,)))
    h5py.h5d.create(group.id, b"w", h5py.h5t.IEEE_F32LE, shape, made)


JULIA = b"HDF5-based Julia Data Format, version 0.1.0\0".ljust(512, b"\0")


def test_other_files_are_not_opened(tmp_path: Path) -> None:
    """A pipe, whose reader would wait for a writer; of Julia's files records are read."""
    os.mkfifo(tmp_path / "out")
    with h5py.File(tmp_path / "m.h5", "w", userblock_size=512) as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_external(b"out", 0, 4)
        record = h5py.h5t.py_create(np.dtype([("a", "f4")]))
        h5py.h5d.create(file.id, b"w", record, h5py.h5s.create_simple(()), made)
    (tmp_path / "m.jld2").write_bytes(JULIA + (tmp_path / "m.h5").read_bytes()[512:])
    for name in ("m.h5", "m.jld2"):
        assert command("inspect", name, cwd=tmp_path).code == 4


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("suffix", [".h5", ".keras", ".jld2"])
def test_hdf5_with_data_in_other_files(held: str, around: str, suffix: str, tmp_path: Path) -> None:
    """4 in every command, whatever the dataset holds, and wherever it stands."""
    (tmp_path / "x").mkdir()
    (tmp_path / "out").write_bytes(bytes(64))
    path = tmp_path / f"x/m{suffix}"
    with h5py.File(tmp_path / "x/m.h5", "w", userblock_size=512 if suffix == ".jld2" else 0) as file:
        file["honest"] = np.arange(3, dtype="f4")
        HELD[held](AROUND[around](file), "../out")
    if suffix == ".jld2":
        data = (tmp_path / "x/m.h5").read_bytes()
        path.write_bytes(JULIA + data[512:])
        (tmp_path / "x/m.h5").unlink()
    elif suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", "{}")
            archive.writestr("config.json", "{}")
            archive.write(tmp_path / "x/m.h5", "model.weights.h5")
        (tmp_path / "x/m.h5").unlink()
    name = str(path.relative_to(tmp_path))
    save_file({"honest": np.ones(3, "f4")}, tmp_path / "other.safetensors")
    for words in (
        ("inspect", name), ("check", name), ("dedup", name, "-o", "o.pt"), ("diff", name, "other.safetensors"),
        ("convert", name, "-o", "o.npz"), ("export", name, "--all-names", "-o", "o.npz"), ("lock", name, "-o", "-"),
        ("verify", "other.safetensors", "--against", name), ("inspect", "x"), ("check", "x"),
    ):  # fmt: skip
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 4 and f"m{suffix}" in ran.out + ran.err, (words, ran)
    assert sorted(os.listdir(tmp_path)) == ["other.safetensors", "out", "x"]


def tensorflow(folder: Path, name: str) -> tuple[str, int]:
    """The state of a folder."""
    text = name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\000")
    tf.write(folder / "own", {b"w": tf.tensor(np.arange(3, dtype="f4"))})
    (folder / "checkpoint").write_bytes(b'model_checkpoint_path: "%s"\n' % text)
    return "checkpoint", expected(f"{name}.index", folders=False)


def deepspeed(folder: Path, name: str) -> tuple[str, int]:
    """The file that names the folder of a step."""
    (folder / "ck").mkdir()
    (folder / "ck/latest").write_text(name.replace("\ud800", "\0"))
    return "ck", expected(name, folders=False)


FORMATS: tuple[Callable[[Path, str], tuple[str, int]], ...] = (index, onnx, dcp, hdf5, tensorflow, deepspeed)


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
        if code == 4 and form not in (dcp, deepspeed):
            save_file({"a": np.ones(3, "f4")}, folder / "model.safetensors")
            for words in (("inspect", "."), ("check", "."), ("lock", ".", "-o", "-"), ("dedup", ".", "-o", "out")):
                ran = quick(*words, cwd=folder)
                assert ran.code == 4 and (words[0] == "check" or str(path) in ran.err), (name, ran)


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
    for words in (
        ("diff", "--find-base", "broken.safetensors", "evil.pkl"),
        ("variants", "broken.safetensors", "--against", "evil.pkl"),
        ("convert", "broken.safetensors", "--into", "evil.pkl", "-o", "out.h5"),
    ):
        assert quick(*words, cwd=tmp_path).code == 4, words
