"""A folder is its files, over every kind of file there is: what `check DIR` names as unsafe is what `inspect` says."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from paramtool.commands.inspect import inspect
from paramtool.errors import FormatError
from paramtool.formats import read, table
from tests.contracts import makers_tensorflow as tf
from tests.examples import examples
from tests.fuzz import seeds
from tests.hostile.command import quick
from tests.hostile.makers_onnx import OPSET, build, external, graph


class Calls:
    """What calls when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


Files = dict[str, bytes]
EVIL = pickle.dumps(Calls(), 2)


def archive() -> bytes:
    """A pickle that calls, in a zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("evil.pkl", EVIL)
    return made.getvalue()


def linked() -> bytes:
    """HDF5 with a link into a file outside of its folder."""
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        file["w"] = h5py.ExternalLink("../out.h5", "w")
    return made.getvalue()


LAMBDA = json.dumps({"class_name": "Lambda", "config": {"name": "a", "function_type": "lambda", "function": ["4wEA"]}})
"""A layer of Keras that holds code."""


def keras(encoding: str) -> bytes:
    """A `.keras` whose configuration is in an encoding that `json.loads` finds out."""
    made, weights = io.BytesIO(), io.BytesIO()
    with h5py.File(weights, "w") as file:
        file["layers/dense/vars/0"] = np.ones(3)
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("metadata.json", "{}")
        file.writestr("config.json", LAMBDA.encode(encoding))
        file.writestr("model.weights.h5", weights.getvalue())
    return made.getvalue()


def onnx(location: str) -> bytes:
    return build(graph(external(("location", location))), OPSET)


def hdf5(user_block: bytes = b"") -> bytes:
    """HDF5 with one tensor, behind a block of the user's."""
    made = io.BytesIO()
    with h5py.File(made, "w", userblock_size=512 if user_block else 0) as file:
        file["w"] = np.ones(3)
    return user_block + made.getvalue()[len(user_block) :]


ESCAPES: dict[str, Files] = {
    "index": {"model.safetensors.index.json": json.dumps({"weight_map": {"a": "../a.safetensors"}}).encode()},
    "index of torch": {"a.bin.index.json": json.dumps({"weight_map": {"a": "/etc/passwd"}}).encode()},
    "ONNX": {"m.onnx": onnx("../w.bin")},
    "HDF5": {"m.h5": linked()},
    "state": {"checkpoint": b'model_checkpoint_path: "../m"\n'},
    "state from the root": {"checkpoint": b'model_checkpoint_path: "/etc/m"\n'},
}
"""Files that lead out of their folder."""


def behind(block: int, start: bytes = b"") -> bytes:
    """HDF5 of Keras behind a user block that begins in some way."""
    made = io.BytesIO()
    with h5py.File(made, "w", userblock_size=block) as file:
        file.attrs["model_config"] = LAMBDA
        file["w"] = np.ones(3)
    return start + made.getvalue()[len(start) :]


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le")
CODE: dict[str, Files] = {
    **{f"keras in {encoding}": {"e.keras": keras(encoding)} for encoding in ENCODINGS},
    **{f"configuration in {encoding}": {"config.json": LAMBDA.encode(encoding)} for encoding in ENCODINGS},
    **{f"HDF5 behind {block} bytes": {"m.h5": behind(block)} for block in (0, 512, 1024, 2048)},
    "HDF5 behind Julia's line": {"m.h5": behind(512, b"HDF5-based Julia Data Format, version 0.1.1")},
}
"""Files that hold code which Keras runs."""
OF_MODEL: dict[str, Files] = {
    "safetensors without a header": {"other.safetensors": b"\x10\0\0\0\0\0\0\0{not a header}" + archive()},
    "HDF5 behind a pickle": {"other.h5": hdf5(EVIL)},
    "cut HDF5": {"other.h5": hdf5()[:-999] + archive()},
    "cut ONNX": {"other.onnx": onnx("w.bin")[:-1] + archive()},
}
"""Files that are of the model by what they are, wherever they lie and whether or not they can be read."""
BESIDE: dict[str, Files] = {
    "shard": {
        "m.bin.index.json": json.dumps({"weight_map": {"a": "m-1.bin"}}).encode(), "m-1.bin": EVIL,
    },
    "data of ONNX": {"n.onnx": onnx("w.dat"), "w.dat": EVIL + bytes(99)},
    "data without a bundle": {"m.data-00000-of-00001": EVIL},
    "broken pickle": {"optimizer.pt": EVIL[:-1]},
    "layer": {"keras_metadata.pb": tf.block(1, tf.block(5, LAMBDA.encode()))},
    "text": {"README": b"text"},
    "bomb": {"a.npz": b"PK\3\4" + bytes(40)},
}  # fmt: skip
"""Files that hold what calls, or what may look so."""


def _kinds() -> Iterator[tuple[str, Files]]:
    """Each seed of the fuzzer as it is, and as a pickle or an archive as well: every row of the registry has one."""
    yield from {**ESCAPES, **CODE, **OF_MODEL, **BESIDE}.items()
    for seed in seeds.every():
        if sum(map(len, seed.files.values())) > 20_000:
            continue
        yield f"{seed.format}: {seed.name}", seed.files
        for name in [name for name in seed.kinds if not name.endswith((".toml", ".lock"))][:2]:
            yield f"{seed.format}: {seed.name}, archive", {**seed.files, name: seed.files[name] + archive()}
            yield f"{seed.format}: {seed.name}, cut", {**seed.files, name: seed.files[name][:-9] + EVIL}


KINDS = dict(_kinds())
PLACES = ("", "sub", "checkpoint-1", "a/b", ".hidden")


def test_every_format_is_a_kind() -> None:
    assert {row.name for row in table.FORMATS} <= {name.partition(":")[0] for name in KINDS}


def written(folder: Path, tree: list[tuple[str, str]]) -> None:
    """A tree, in which one kind may overwrite files of another."""
    save_file({"w": np.ones(3)}, folder / "model.safetensors")
    for place, kind in tree:
        for name, data in KINDS[kind].items():
            path = folder / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def holds(folder: Path) -> None:
    """What `check` of a folder names as unsafe is what `inspect` says of each file."""
    files = [str((Path(place) / name).relative_to(folder)) for place, _, names in os.walk(folder) for name in names]
    unsafe = {file for file in files if quick("inspect", file, cwd=folder).code == 4}
    ran = quick("check", ".", "--format", "json", cwd=folder)
    said = [
        f"{os.path.normpath(file['path'])} {one['message']}"
        for file in json.loads(ran.out)["files"] for one in file["findings"] if one["id"] == "PT301"
    ]  # fmt: skip
    named = {
        file for file in files if re.search(rf"(?<![\w./-])(\./)?{re.escape(file)}(?![\w-]|\.\w)", "\n".join(said))
    }
    assert named == unsafe, (named ^ unsafe, ran)
    assert (ran.code == 4) == bool(unsafe), ran
    inspected = quick("inspect", ".", cwd=folder)
    assert (inspected.code == 4) == bool(unsafe), inspected


@pytest.mark.parametrize("kind", KINDS)
def test_of_each_kind(kind: str, tmp_path: Path) -> None:
    """In a folder below, beside clean weights."""
    written(tmp_path, [("sub", kind)])
    holds(tmp_path)


@settings(max_examples=examples(200))
@given(tree=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(sorted(KINDS))), max_size=4))
def test_of_any_tree(tree: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tree")
    written(folder, tree)
    holds(folder)


@pytest.mark.parametrize("kind", [*ESCAPES, *CODE])
def test_what_is_unsafe_is_refused(kind: str, tmp_path: Path) -> None:
    """The file, and so the folder above it."""
    written(tmp_path, [("", kind)])
    for file in (next(iter(KINDS[kind])), "."):
        assert quick("inspect", file, cwd=tmp_path).code == 4


@pytest.mark.parametrize("place", ["", "sub"])
@pytest.mark.parametrize("kind", OF_MODEL)
def test_what_a_file_is_decides_whether_it_is_of_the_model(kind: str, place: str, tmp_path: Path) -> None:
    """Not where it lies, nor whether a command tried to read it: each command refuses the folder and writes nothing."""
    written(tmp_path, [(place, kind)])
    before = sorted(os.listdir(tmp_path))
    for words in (
        ("lock", ".", "-o", "-"),
        ("dedup", ".", "-o", "out"),
        ("dedup", ".", "--each", "-o", "out"),
        ("verify", ".", "--against", ".", "--each"),
        ("diff", ".", "."),
    ):
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 4 and next(iter(KINDS[kind])) in ran.err, ran
    assert sorted(os.listdir(tmp_path)) == before


def test_hdf5_that_no_reader_takes_is_named(tmp_path: Path) -> None:
    """Its user block is longer than what is looked at of a file."""
    (tmp_path / "m.h5").write_bytes(behind(8192))
    ran = quick("inspect", "m.h5", cwd=tmp_path)
    assert "scanned to" in ran.out + ran.err, ran
    save_file({"w": np.ones(3)}, tmp_path / "model.safetensors")
    ran = quick("inspect", ".", "--weights", "model.safetensors", cwd=tmp_path)
    assert "not looked at for pickles: 'm.h5'" in ran.out + ran.err, ran


@pytest.mark.parametrize("words", [
    ("variants", "folder", "--against", "ref.safetensors"), ("variants", "ref.safetensors", "--against", "folder"),
    ("variants", "ref.safetensors", "--against", "ref.safetensors", "--against", "folder"),
    ("diff", "folder", "ref.safetensors"), ("diff", "ref.safetensors", "folder"),
    ("verify", "folder", "--against", "ref.safetensors"), ("verify", "ref.safetensors", "--against", "folder"),
])  # fmt: skip
def test_an_unsafe_neighbour_is_named_on_every_side(words: tuple[str, ...], tmp_path: Path) -> None:
    """By commands, and by what programs ask of the folder."""
    (tmp_path / "folder").mkdir()
    written(tmp_path / "folder", [])
    (tmp_path / "folder" / "scheduler.pt").write_bytes(EVIL)
    save_file({"w": np.ones(3)}, tmp_path / "ref.safetensors")
    ran = quick(*words, cwd=tmp_path)
    assert ran.code == 0 and "'scheduler.pt' is unsafe" in ran.err, ran
    assert [one.called for one in inspect(tmp_path / "folder").unsafe] == [True]


@pytest.mark.parametrize("kind", ESCAPES)
def test_a_path_out_of_a_folder_below_stops_every_command(kind: str, tmp_path: Path) -> None:
    """Nothing is written, and the file is named."""
    written(tmp_path, [("sub", kind)])
    for words in (
        ("lock", ".", "-o", "-"),
        ("dedup", ".", "-o", "out"),
        ("diff", ".", "."),
        ("report", ".", "-o", "r.html"),
    ):
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 4 and next(iter(KINDS[kind])) in ran.err, ran
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "sub"]


@pytest.mark.parametrize("values", [[{"a": 1}], ["a", "b"], [1, 2.5, None]])
def test_objects_without_arrays_are_one_thing_in_every_format(values: list[object], tmp_path: Path) -> None:
    """No checkpoint."""
    array = np.array(values, dtype=object)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", x=array)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(array))
    assert {quick("inspect", name, cwd=tmp_path).code for name in ("a.npy", "b.npz", "c.pkl")} == {3}


OBJECTS: dict[str, list[object]] = {
    "arrays": [np.ones(3), np.zeros(2), None], "a dict": [{"w": np.ones(3), "s": "text"}],
    "nested": [[np.ones(2), 1], [np.zeros(2), 2]], "a call": [Calls(), np.ones(3)], "a call alone": [Calls()],
    "words": ["a", None],
}  # fmt: skip


@pytest.mark.parametrize("what", OBJECTS)
def test_arrays_of_objects_are_one_thing_in_every_format(what: str, tmp_path: Path) -> None:
    """In a file of their own and beside a model, its names and its exit codes."""
    array = np.empty(len(OBJECTS[what]), dtype=object)
    array[:] = OBJECTS[what]
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", x=array)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(array))
    seen = []
    for name in ("a.npy", "b.npz", "c.pkl"):
        (tmp_path / name[0]).mkdir()
        save_file({"w": np.ones(3)}, tmp_path / name[0] / "model.safetensors")
        (tmp_path / name[0] / name).write_bytes((tmp_path / name).read_bytes())
        lines = ("inspect", name), ("dedup", name, "-o", f"{name}.safetensors"), ("check", name[0])
        codes = [quick(*line, cwd=tmp_path).code for line in lines]
        try:
            names = [one.removeprefix("x.") for one in read(tmp_path / name, allow_unknown=True).entries]
        except FormatError:
            names = []
        seen.append((codes, names))
    assert seen[0] == seen[1] == seen[2]
    assert (4 in seen[0][0]) == ("call" in what)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '[{"class_name": "__lambda__"}'])
def test_deep_json_without_the_word_holds_no_code(text: str, tmp_path: Path) -> None:
    """Code of Keras stands under a key with that word, and JSON that holds one and is too deep to be read is unsafe."""
    save_file({"w": np.ones(3)}, tmp_path / "model.safetensors")
    (tmp_path / "config_of_layers.json").write_text(text)
    assert quick("check", ".", cwd=tmp_path).code == 0
    (tmp_path / "config_of_layers.json").write_text('{"class_name": "__lambda__", "x": ' + "[" * 100_000)
    assert quick("check", ".", cwd=tmp_path).code == 4


def test_a_file_that_is_refused_was_looked_at(tmp_path: Path) -> None:
    """It has a finding, and no note."""
    written(tmp_path, [("sub", "HDF5")])
    ran = quick("check", ".", cwd=tmp_path)
    assert ran.code == 4 and "not looked at" not in ran.out + ran.err, ran
