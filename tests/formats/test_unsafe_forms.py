"""What is unsafe is so in every container: arrays of objects, code in a configuration, names in truncated pickles."""

from __future__ import annotations

import pickle
from pathlib import Path

import keras
import numpy as np
import pytest

import paramtool
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


def test_arrays_of_objects_in_an_archive(tmp_path: Path) -> None:
    """Are refused by their name: they are no numbers, and nothing is unsafe in them."""
    ran = quick("inspect", save_objects(tmp_path / "x.npz", CLEAN), cwd=tmp_path)
    assert ran.code == 3 and "'a': holds Python objects" in ran.err, ran


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


@pytest.mark.parametrize("name", ["lambda.h5", "lambda.keras"])
def test_code_of_older_keras(name: str, tmp_path: Path) -> None:
    ran = quick("inspect", shared("findings", "field", "keras-lambda", name), cwd=tmp_path)
    assert ran.code == 4 and "marshal.loads" in ran.err, ran


def test_names_in_truncated_pickles(tmp_path: Path) -> None:
    """Count wherever the pickle ends behind them."""
    ran = quick("inspect", shared("findings", "field", "truncated-exec", "broken_model.pkl"), cwd=tmp_path)
    assert ran.code == 4 and "builtins.exec, named" in ran.err, ran
    whole = pickle.dumps(Calls(), 0).replace(b"print", b"exec")
    least = whole.index(b"exec") + len("exec\n(")
    for stop in range(least, len(whole) + 1):
        (tmp_path / "cut.pkl").write_bytes(whole[:stop])
        assert quick("inspect", "cut.pkl", cwd=tmp_path).code == 4, stop
