"""What is unsafe is so in every container: arrays of objects, code in a configuration, names in truncated pickles."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import paramtool
from paramtool.formats.hdf5 import keras_config
from tests.contracts import makers_tensorflow as tf
from tests.examples import shared
from tests.hostile.command import quick

CLEAN = {"w": np.arange(6, dtype="f4").reshape(2, 3), "deep": [np.ones(2), {"b": np.zeros(3)}], "word": "x"}


class Calls:
    """What calls when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


def save_objects(path: Path, held: object) -> Path:
    """Python objects as NumPy saves them, by the suffix of the path."""
    array = np.array(held, dtype=object)
    if path.suffix == ".npy":
        np.save(path, array, allow_pickle=True)
    elif path.suffix == ".npz":
        np.savez(path, w=np.ones(2), a=array)
    else:
        path.write_bytes(pickle.dumps(array))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".pkl"])
@pytest.mark.parametrize("held", [CLEAN, [CLEAN, np.ones(3)], [[1, CLEAN], [None, "x"]]], ids=["one", "row", "grid"])
def test_arrays_of_objects_are_read(tmp_path: Path, suffix: str, held: object) -> None:
    """As NumPy itself reads them, in a bare pickle and behind a header, alone and in a folder."""
    path = save_objects(tmp_path / f"x{suffix}", held)
    found = paramtool.load_file(path)
    loaded = np.load(path, allow_pickle=True) if suffix == ".npy" else pickle.loads(path.read_bytes())
    expected = dict(_arrays(loaded.item() if loaded.shape == () else loaded.ravel().tolist(), ""))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    for place in (path, tmp_path):
        assert quick("inspect", place, cwd=tmp_path).code == quick("check", place, cwd=tmp_path).code == 0


def _arrays(value: object, at: str) -> list[tuple[str, np.ndarray]]:
    if isinstance(value, np.ndarray):
        return [(at, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in _arrays(inner, f"{at}.{key}".lstrip("."))]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("held", [CLEAN, [CLEAN, np.ones(3)], [[1, CLEAN], [None, "x"]]], ids=["one", "row", "grid"])
def test_arrays_of_objects_in_an_archive(tmp_path: Path, held: object, save: Callable[..., None]) -> None:
    """As NumPy itself reads them, beside others; and the objects go along."""
    path = tmp_path / "x.npz"
    save(path, w=np.ones(2), a=np.array(held, dtype=object), b=np.array(CLEAN, dtype=object))
    found = paramtool.load_file(path)
    loaded = np.load(path, allow_pickle=True)
    expected = {"w": loaded["w"]}
    for name in ("a", "b"):
        value = loaded[name].item() if loaded[name].shape == () else loaded[name].ravel().tolist()
        expected |= dict(_arrays(value, name))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    for place in (path, tmp_path):
        assert quick("inspect", place, cwd=tmp_path).code == quick("check", place, cwd=tmp_path).code == 0
    paramtool.dedup(path, tmp_path / "o.safetensors")
    assert quick("verify", "o.safetensors", "--against", "x.npz", cwd=tmp_path).code == 0
    assert "'x'" in str(paramtool.read(tmp_path / "o.safetensors").objects)


def test_an_archive_whose_objects_end_too_soon(tmp_path: Path) -> None:
    """What stands behind the pickle is no part of an array."""
    path = save_objects(tmp_path / "x.npz", CLEAN)
    with zipfile.ZipFile(path) as archive:
        raw = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in raw.items():
            archive.writestr(name, data + b"more" * (name == "a.npy"))
    ran = quick("inspect", path, cwd=tmp_path)
    assert ran.code == 3 and "'a': holds Python objects, and their pickle does not end" in ran.err, ran


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pkl"])
def test_arrays_of_objects_that_call(tmp_path: Path, suffix: str) -> None:
    path = save_objects(tmp_path / f"x{suffix}", {"w": np.ones(3), "c": Calls()})
    for command in ("inspect", "check"):
        ran = quick(command, path, cwd=tmp_path)
        assert ran.code in (1, 4) and "builtins.print" in ran.out + ran.err, ran
    assert quick("dedup", path, cwd=tmp_path).code == 4


@keras.saving.register_keras_serializable("tests")
def doubled(x: object) -> object:
    """A function that Keras looks up by its name."""
    return x


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("form", ["lambda", "nested", "registered"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:__array__:DeprecationWarning")
def test_code_in_keras_files(tmp_path: Path, suffix: str, form: str) -> None:
    """A Lambda of a Python function is marshalled code; one of a registered function is a name."""
    layer = keras.layers.Lambda(doubled if form == "registered" else lambda x: x * 2, name="twice")
    inner = keras.Sequential([layer, keras.layers.Dense(2)]) if form == "nested" else layer
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1)])
    model.save(tmp_path / f"m{suffix}")
    ran = quick("inspect", f"m{suffix}", cwd=tmp_path)
    if form == "registered":
        assert ran.code == 0, ran
        return
    assert ran.code == 4 and "marshal.loads" in ran.err and "'twice'" in ran.err, ran
    assert quick("dedup", f"m{suffix}", cwd=tmp_path).code == 4
    assert quick("dedup", f"m{suffix}", "--allow-unknown", cwd=tmp_path).code == 0


NAMED = {
    "a function": {"module": "os", "class_name": "function", "config": "system", "registered_name": "function"},
    "a class": {"module": "subprocess", "class_name": "Popen", "config": {}},
    "a builtin": {"module": "builtins", "class_name": "function", "config": "eval"},
    "of Keras 2": {"name": "x", "function": "system", "function_type": "function", "module": "os"},
    "a mask of Keras 2": {"mask": "system", "mask_type": "function", "mask_module": "os"},
}


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".json"])
@pytest.mark.parametrize("held", NAMED)
def test_names_in_keras_files(tmp_path: Path, suffix: str, held: str) -> None:
    """What Keras would import is unsafe where a pickle may not name it; its own functions and others are not."""
    for name, named, code in (
        ("bad", NAMED[held], 4), ("escaped", NAMED[held], 4),
        ("own", {"module": "keras.layers", "class_name": "Dense", "config": {"activation": "system"}}, 0),
        ("user", {"module": "builtins", "class_name": "function", "config": "doubled"}, 0),
    ):  # fmt: skip
        layer = {"class_name": "Lambda", "module": "keras.layers", "config": {"name": "twice", "function": named}}
        text = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
        if name == "escaped":
            text = text.replace("module", r"\u006dodul\u0065")
        (folder := tmp_path / name).mkdir()
        path = folder / f"m{suffix}"
        with h5py.File(folder / "m.weights.h5", "w") as file:
            file["w"] = np.ones(3)
            file.attrs.update({"model_config": text} if suffix == ".h5" else {})
        if suffix == ".h5":
            (folder / "m.weights.h5").rename(path)
        elif suffix == ".json":
            path.write_text(text)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("metadata.json", "{}")
                archive.writestr("config.json", text)
                archive.write(folder / "m.weights.h5", "model.weights.h5")
        ran = quick("inspect", folder if suffix == ".json" else path, cwd=tmp_path)
        assert ran.code == code, ran
        assert not code or "(named by " in ran.out + ran.err, ran


def asked(value: object) -> list[str]:
    """What makes a configuration unsafe, and its names."""
    return [one.path for one in keras_config.marshalled({"config.json": json.dumps(value)})]


def function(path: str) -> dict[str, object]:
    module, _, name = path.rpartition(".")
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def test_functions_of_keras_that_are_no_operations() -> None:
    """Those that Keras itself refuses, by any of their names; and none that a layer can call."""
    from keras.src import api_export
    from keras.src.saving.serialization_lib import NON_MODELING_APIS

    refused = {path for path in NON_MODELING_APIS if not path.endswith("clear_session")}  # which frees memory
    for path in (*refused, "keras.src.utils.file_utils.urlretrieve", "tf_keras.src.utils.python_utils.func_load"):
        assert asked(function(path)) == [path]
        if path in api_export.REGISTERED_NAMES_TO_OBJS:
            with pytest.raises(ValueError, match="not a modeling function"):
                keras.saving.deserialize_keras_object(function(path))
    rooms = re.compile(r"keras\.(activations|ops|losses|metrics|initializers|regularizers|constraints|random|layers)\b")
    for path, held in api_export.REGISTERED_NAMES_TO_OBJS.items():
        if rooms.match(path) and path not in ("keras.layers.TorchModuleWrapper", "keras.layers.TFSMLayer"):
            module, _, name = path.rpartition(".")
            named = {"module": module, "class_name": name, "config": {}} if isinstance(held, type) else function(path)
            assert asked(named) == [], path
    for name in ("normalize", "to_categorical"):
        assert asked(function(f"keras.utils.{name}")) == []
    for name in ("Sequential", "Functional", "Model"):
        assert asked({"module": "keras.models", "class_name": name, "config": {}}) == []


@pytest.mark.parametrize("module", ["keras.layers", "keras.src.utils.torch_utils", None])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_pickle_in_a_configuration_of_keras(module: str | None, escaped: bool, tmp_path: Path) -> None:
    """As Keras unpickles it, where its safe mode is off."""

    class Fires:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "fired"),)

    torch.save(Fires(), held := io.BytesIO())
    config = {"module": base64.b64encode(held.getvalue()).decode(), "name": "x"}
    layer = {"module": module, "class_name": "TorchModuleWrapper", "config": config}
    if module:
        with contextlib.suppress(Exception):  # what it loads is no module
            keras.saving.deserialize_keras_object(layer | {"config": dict(config)}, safe_mode=False)
        assert (tmp_path / "fired").exists()
    text = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    if escaped:
        text = text.replace("TorchModuleWrapper", r"\u0054orch\u004dod\u0075leWrapper").replace(
            "module", r"modul\u0065"
        )
    (tmp_path / "config.json").write_text(text)
    for words in (("inspect", "config.json"), ("inspect", "."), ("check", ".")):
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 4 and "torch.load" in ran.out + ran.err, ran


def test_a_layer_of_another_model_is_unsafe(tmp_path: Path) -> None:
    """Keras' safe mode refuses it."""
    layer = {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "there", "name": "x"}}
    with pytest.raises(ValueError, match="disallow"):
        keras.saving.deserialize_keras_object(layer)
    assert asked({"layers": [layer]}) == ["tensorflow.saved_model.load"]


@pytest.mark.parametrize("name", ["lambda.h5", "lambda.keras"])
def test_code_of_older_keras(name: str, tmp_path: Path) -> None:
    ran = quick("inspect", shared("findings", "field", "keras-lambda", name), cwd=tmp_path)
    assert ran.code == 4 and "marshal.loads" in ran.err, ran


def test_names_in_truncated_pickles(tmp_path: Path) -> None:
    """Count wherever the pickle ends behind them."""
    ran = quick("inspect", shared("findings", "field", "truncated-exec", "broken_model.pkl"), cwd=tmp_path)
    assert ran.code == 4 and "builtins.exec, named" in ran.err, ran
    whole = pickle.dumps(Calls(), 0).replace(b"print", b"exec")
    least = whole.index(b"exec") + len("exec\np0\n")
    for stop in range(least, len(whole) + 1):
        (tmp_path / "cut.pkl").write_bytes(whole[:stop])
        assert quick("inspect", "cut.pkl", cwd=tmp_path).code == 4, stop


CALL = pickle.dumps(Calls(), 2)
ARCHIVE = io.BytesIO()
torch.save(Calls(), ARCHIVE)


def twofold(call: bytes = CALL) -> bytes:
    """Valid safetensors that are a pickle: the header's length is an opcode that leaps into a text, to `V`.

    That one takes all up to the next line, which begins with the tensor's second byte.
    """
    held = b"\n" + call
    tail = b'"},"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(held), len(held))
    nbytes = ord("X") + 256 * 25
    return nbytes.to_bytes(8, "little") + (b'{"__metadata__":{"a":"').ljust(nbytes - len(tail), b"V") + tail + held


def _archive(folder: Path, name: str, held: bytes) -> Path:
    """A clean file of torch.save, or of TorchScript below `script`, with one more member."""
    path = folder / "model.pt"
    module = torch.nn.Linear(2, 2)
    torch.jit.save(torch.jit.script(module), path) if name.startswith("script") else torch.save({"w": NUMBERS}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"model/{name.removeprefix('script/')}", held)
    return path


def _of_keras(folder: Path) -> Path:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.save(path := folder / "model.keras")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/x.pkl", CALL)
    return path


def _distributed(folder: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": NUMBERS}, checkpoint_id=folder, no_dist=True)
    with (path := folder / ".metadata").open("ab") as file:
        file.write(CALL)
    return path


def _bundle(folder: Path, form: str) -> Path:
    """A bundle of TensorFlow whose file of data ends as an archive, or begins as a pickle."""
    first = torch.frombuffer(bytearray(CALL), dtype=torch.uint8) if form == "begins" else NUMBERS
    path = tf.plain(folder, {"w": first})
    if form == "ends":
        data = next(folder.glob("*.data-*"))
        data.write_bytes(data.read_bytes() + ARCHIVE.getvalue())
    return path


def _shards(folder: Path) -> Path:
    (folder / "a.bin").write_bytes(twofold())
    (path := folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"w": "a.bin"}}))
    return path


def _written(folder: Path, name: str, held: bytes) -> Path:
    (folder / name).write_bytes(held)
    return folder / name


NUMBERS = torch.arange(6.0)
MEMBERS = ("inner.bin", "x.joblib", "x.PKL", "x.pkl.gz", "data/7", ".data/x", "script/extra/x.pkl", "script/data2.pkl")
TWOFOLD = {
    "safetensors, .bin": lambda folder: _written(folder, "pytorch_model.bin", twofold()),
    "safetensors, .pkl": lambda folder: _written(folder, "model.pkl", twofold()),
    "a shard": _shards,
    "a second pickle": lambda folder: _written(folder, "w.pkl", pickle.dumps({"w": np.arange(6.0)}) + CALL),
    "a second pickle, of protocol 0": lambda folder: _written(
        folder, "w.pkl", pickle.dumps({"w": np.arange(6.0)}) + pickle.dumps(Calls(), 0)
    ),
    "keras": _of_keras,
    "dcp": _distributed,
    "tensorflow, begins": lambda folder: _bundle(folder, "begins"),
    "tensorflow, ends": lambda folder: _bundle(folder, "ends"),
    **{name: lambda folder, name=name: _archive(folder, name, CALL) for name in MEMBERS},
    "an archive in it": lambda folder: _archive(folder, "inner.pt", ARCHIVE.getvalue()),
}


@pytest.mark.parametrize("form", TWOFOLD)
@pytest.mark.parametrize("beside", ["alone", "beside a clean file"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_what_a_reader_does_not_take_is_scanned(form: str, beside: str, tmp_path: Path) -> None:
    """Whatever the reader of a file understood of it, another program opens it by its first bytes, or its last."""
    (folder := tmp_path / "model").mkdir()
    path = TWOFOLD[form](folder)
    if beside == "alone":
        for words in (("inspect",), ("check",), ("dedup", "--dry-run"), ("lock", "-o", tmp_path / "o.lock")):
            ran = quick(words[0], path, *words[1:], cwd=tmp_path)
            assert ran.code == 4 and "builtins.print" in ran.out + ran.err, (words, ran)
        return
    save_file({"v": np.ones(3)}, folder / "model.safetensors")
    for command in ("inspect", "check"):
        ran = quick(command, folder, cwd=tmp_path)
        assert ran.code == 4 and "builtins.print" in ran.out + ran.err, ran


def test_safetensors_that_are_a_pickle(capsys: pytest.CaptureFixture[str]) -> None:
    """Both libraries take them."""
    from safetensors import numpy

    assert pickle.loads(twofold()) is None and capsys.readouterr().out == "called\n"
    assert numpy.load(twofold()).keys() == {"w"}


@pytest.mark.parametrize("nbytes", [*range(0x50, 0x90, 8), 0x280, 0x480, 0x9580])
def test_clean_safetensors_of_every_length(nbytes: int, tmp_path: Path) -> None:
    """A header whose length begins like an opcode is no pickle, and nothing is said of one."""
    tail = b'"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    nbytes += 256 * (nbytes < 0x100)
    raw = nbytes.to_bytes(8, "little") + b'{"__metadata__":{"a":"'.ljust(nbytes - len(tail), b"c") + tail + b"."
    ran = quick("inspect", _written(tmp_path, "model.safetensors", raw), cwd=tmp_path)
    assert ran.code == 0 and ran.err == "" and "pickle" not in ran.out, ran


@pytest.mark.parametrize("beside", ["9" * 5000, "[" * 3000 + "]" * 3000, "[" * 100_000 + "]" * 100_000], ids=range(3))
def test_limits_of_json_hide_no_code(beside: str, tmp_path: Path) -> None:
    """Digits and levels that Python's json refuses by its own limits."""
    layer = '{"class_name": "__lambda__", "config": {"value": "4wEA"}}'
    (tmp_path / "config.json").write_text(f'{{"layers": [{layer}], "more": {beside}}}')
    ran = quick("inspect", "config.json", cwd=tmp_path)
    assert ran.code == 4 and "marshal.loads" in ran.err, ran
    (tmp_path / "config.json").write_text(f'{{"more": {beside}}}')
    assert quick("inspect", "config.json", cwd=tmp_path).code == 3


def _text(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


FIRED = {
    "a class whose method is a class": lambda mark: (
        b"\x80\x02cbuiltins\ntype\n(" + _text("X") + b"(cbuiltins\nstr\nt}" + _text("__setstate__")
        + b"clogging\nFileHandler\nst\x81)\x81" + _text(mark) + b"b."
    ),
    "of another kind of class": lambda mark: (
        b"\x80\x02cabc\nABCMeta\n(" + _text("X") + b"(cbuiltins\nstr\nt}" + _text("__hash__")
        + b"clogging\nFileHandler\ns"
        + _text("__setstate__") + b"clogging\nFileHandler\nst\x81)\x81" + _text(mark) + b"b."
    ),
    "an object of torch that unpickles": lambda mark: (
        b"\x80\x03ctorch.utils.data.datapipes.datapipe\n_IterDataPipeSerializationWrapper\n)\x81("
        + b"B" + len(inner := pickle.dumps(_Makes(mark))).to_bytes(4, "little") + inner + b"\x89tb."
    ),
}  # fmt: skip
"""{what: a pickle that makes a file without a call of a dangerous name}"""


class _Makes:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("what", FIRED)
def test_objects_that_call_when_they_are_built(what: str, tmp_path: Path) -> None:
    """Python runs it; torch's archive and a plain pickle of it are unsafe, alone and in a folder."""
    mark = tmp_path / "mark"
    data = FIRED[what](str(mark))
    with contextlib.suppress(Exception):
        pickle.loads(data)
    assert mark.exists()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pkl").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "in" / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3")
    for name in ("in/a.pkl", "in/pytorch_model.bin", "in"):
        assert quick("check", name, cwd=tmp_path).code == 4, name
