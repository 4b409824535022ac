"""TensorFlow reads the same tensors from every bundle, and computes with Keras' LSTMs what torch does after conversion.

It also reads the bundles that tests/contracts/makers_tensorflow.py writes, so that those are bundles indeed, be they
big-endian, compressed, or in several files and blocks.  The TensorFlow of `make oracles` runs read_bundles.py.
"""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import snappy

import paramtool
from paramtool.commands import relayout as relayout_command
from paramtool.formats.tensorflow._bundle import slice_key
from tests.contracts import makers_tensorflow as tf
from tests.formats.test_tensorflow import FIXTURES, SAMPLE, bits
from tests.oracles.running import close, run_torch
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oracles" / "tf" / "bin" / "python"
SCRIPT = Path(__file__).parent / "frameworks" / "read_bundles.py"
TYPES = ("<f4", "<f8", "<f2", "<i4", "<u2", "<i8", "<c8", "<c16", "|b1", "|u1", "|i1", "<u4", "<u8", "<i2")


def read_by_tensorflow(folder: Path, *prefixes: Path) -> dict[str, np.ndarray]:
    """What it reads of some bundles."""
    if not PYTHON.exists():
        pytest.skip("make oracles runs it, in its environment with TensorFlow")
    ran = subprocess.run(
        [PYTHON, SCRIPT, folder / "o.npz", *prefixes], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    with np.load(folder / "o.npz") as found:
        return dict(found)


def values() -> dict[str, np.ndarray]:
    """Numbers of every type that NumPy has, and many names."""
    made = {f"types/{code[1:]}": np.arange(6).reshape(2, 3).astype(code) for code in TYPES}
    many = {f"scope/layer_{k // 10}/kernel_{k % 10}": np.full((k % 3, 2), k, "f4") for k in range(120)}
    return {**made, **many, "scalar": np.array(2.5), "empty": np.zeros((0, 3))}


FORMS = {
    "plain": {},
    "big": {"big": True},
    "blocks": {"per_block": 7, "shards": 3},
    "snappy": {"squeeze": snappy.compress, "per_block": 40},
    "big, snappy, shards": {"squeeze": snappy.compress, "big": True, "shards": 2},
}


def test_tensorflow_reads_what_the_makers_write(tmp_path: Path) -> None:
    """And the same values as paramtool."""
    held = values()
    prefixes = []
    for k, options in enumerate(FORMS.values()):
        rows = {name.encode(): tf.tensor(value, bool(options.get("big"))) for name, value in held.items()}
        tf.write(tmp_path / f"m{k}", rows, **options)
        prefixes.append(tmp_path / f"m{k}")
    read = read_by_tensorflow(tmp_path, *prefixes)
    assert len(read) == len(FORMS) * len(held)
    for k, prefix in enumerate(prefixes):
        found = paramtool.load_file(prefix)
        assert set(found) == set(held)
        for name, value in held.items():
            np.testing.assert_array_equal(read[f"{k}:{name}"], value)
            np.testing.assert_array_equal(found[name], value)


def test_tensorflow_reads_slices_under_the_same_keys(tmp_path: Path) -> None:
    """Large starts and lengths have codes of several bytes."""
    cuts = (0, 40, 64, 5000, 70_000)
    value = np.arange(cuts[-1], dtype="f4").reshape(-1, 1)
    extents = [((a, b - a), (0, -1)) for a, b in pairwise(cuts)]
    rows = {b"v": tf.Tensor(1, value.shape, b"", tuple(extents))}
    rows |= {slice_key("v", one): tf.tensor(value[one[0][0] : one[0][0] + one[0][1]]) for one in extents}
    tf.write(tmp_path / "m", rows)
    np.testing.assert_array_equal(read_by_tensorflow(tmp_path, tmp_path / "m")["0:v"], value)
    np.testing.assert_array_equal(paramtool.load_file(tmp_path / "m")["v"], value)


def test_the_sample_and_the_fixtures(samples: Path, tmp_path: Path) -> None:
    """Every tensor in every bit, and the outputs of every LSTM."""
    places = [samples / SAMPLE / "variables", FIXTURES / "keras_rnn/keras_rnn/variables/variables"]
    read = read_by_tensorflow(tmp_path, *places)
    for k, place in enumerate(places):
        found = [bits(value) for value in paramtool.load_file(place).values()]
        mine = sorted((value.shape, value.dtype.str, value.tobytes()) for value in found)
        theirs = [value for key, value in read.items() if key.startswith(f"{k}:")]
        assert mine == sorted((value.shape, value.dtype.str, value.tobytes()) for value in theirs)
        layers = {key[2:]: (read[f"{k}<{key[2:]}"], value) for key, value in read.items() if key.startswith(f"{k}>")}
        assert set(layers) == ({"lstm", "lstm_1", "lstm_2", "lstm_3"} if k == 0 else {"enc"})
        out = tmp_path / f"{k}.safetensors"
        spec = "backward=no" if k == 0 else ""
        report = relayout_command.convert(
            place, out, target="torch", at=tuple(layers), optimizer_state=["drop"], **({"spec": spec} if spec else {})
        )
        held = paramtool.load_file(out)
        for one in report.converted:
            x, y = layers[one.source.at]
            weights = {own: np.asarray(held[name]) for own, name in one.tensors.items()}
            state = np.zeros((1, len(x), one.spec.hidden), np.float32)
            close(run_torch("lstm", weights, x.transpose(1, 0, 2), state, state)[0].transpose(1, 0, 2), y)
