"""Real MXNet files: bytes against NumPy at positions that are worked out anew, and against MXNet where there is one.

    PARAMTOOL_MXNET=/path/to/python pytest tests/oracles/test_mxnet.py

names interpreters (several with ':' between) that have MXNet 1.9 or 2.0, which pytest's own cannot have: it needs a
NumPy of before 1.24.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from tests.laws.sharing import raw

FIXTURES = Path(__file__).parents[2] / "fixtures"
LEGACY = "apache__mxnet__legacy_ndarray.v0"
DET1 = "YYuanAnyVision__mxnet_mtcnn_face_detection__det1-0001.params"
LSTM = "chen0040__mxnet-sentiment-analysis__lstm-softmax-net.params"
SAMPLES = (LEGACY, DET1, LSTM)


def test_legacy_arrays(samples: Path) -> None:
    """MXNet's own file of its first version: six times the numbers to 127, as its own test expects them.

    tests/python/unittest/test_ndarray.py, test_legacy_load.
    """
    found = paramtool.load_file(samples / LEGACY)
    assert list(found) == list("012345")
    assert all(raw(array) == np.arange(128, dtype="<f4").tobytes() for array in found.values())
    assert paramtool.read(samples / LEGACY).format == "mxnet V0"


def test_the_symbol_says_the_shapes(samples: Path) -> None:
    """Names and sizes of every convolution's weights are those of the symbol file beside it."""
    found = {name: array.shape for name, array in paramtool.load_file(samples / DET1).items()}
    symbol = json.loads((samples / DET1.replace("-0001.params", "-symbol.json")).read_text())
    layers = [node for node in symbol["nodes"] if node["op"] == "Convolution"]
    assert len(layers) == 5
    for node in layers:
        filters, kernel = (
            int(node["param"]["num_filter"]),
            json.loads(node["param"]["kernel"].translate({40: 91, 41: 93})),
        )
        weight = found[f"arg:{node['name']}_weight"]
        assert (weight[0], list(weight[2:]), found[f"arg:{node['name']}_bias"]) == (filters, kernel, (filters,))
    variables = {node["name"] for node in symbol["nodes"] if node["op"] == "null"}
    assert {name.removeprefix("arg:") for name in found} == variables - {"data"}
    assert paramtool.read(samples / DET1).notes == ()


def test_bytes_of_a_first_version(samples: Path) -> None:
    """Read off the file once more, with NumPy alone: ndim, sizes, three numbers, data; then the names."""
    data = (samples / DET1).read_bytes()
    at, count = 24, int(np.frombuffer(data, "<u8", 1, 16)[0])
    blocks = []
    for _ in range(count):
        ndim = int(np.frombuffer(data, "<u4", 1, at)[0])
        sizes = np.frombuffer(data, "<u4", ndim, at + 4)
        assert np.frombuffer(data, "<i4", 3, at + 4 + 4 * ndim).tolist() == [1, 0, 0]
        at += 16 + 4 * ndim
        blocks.append(np.frombuffer(data, "<f4", int(sizes.prod()), at).reshape(sizes))
        at += blocks[-1].nbytes
    found = paramtool.load_file(samples / DET1)
    assert [array.shape for array in found.values()] == [block.shape for block in blocks]
    assert all(raw(array) == block.tobytes() for array, block in zip(found.values(), blocks, strict=True))


def test_a_gluon_lstm(samples: Path) -> None:
    """Names, sizes, and its first matrix, whose bytes stand right before the header of the next array."""
    found = paramtool.load_file(samples / LSTM)
    assert {name: array.shape for name, array in found.items() if name.startswith("lstm0")} == {
        "lstm0_l0_i2h_weight": (256, 100), "lstm0_l0_h2h_weight": (256, 64), "lstm0_l0_i2h_bias": (256,),
        "lstm0_l0_h2h_bias": (256,),
    }  # fmt: skip
    data = (samples / LSTM).read_bytes()
    marks = [k for k in range(24, len(data) - 4) if data[k : k + 4] == b"\xc9\xfa\x93\xf9"]
    names = list(found)
    assert len(marks) == len(names)
    for name, stop in zip(names, marks[1:], strict=False):
        assert raw(found[name]) == data[stop - found[name].nbytes : stop], name


@pytest.mark.parametrize("name", SAMPLES)
def test_dedup(samples: Path, name: str, tmp_path: Path) -> None:
    """The output holds what the file holds, equal arrays once and in memories of their own."""
    dedup_command.dedup(samples / name, tmp_path / "out.safetensors", min_equal_bytes=1)
    assert verify_command.verify(tmp_path / "out.safetensors", samples / name).differences == ()
    expected, found = paramtool.load_file(samples / name), paramtool.load_file(tmp_path / "out.safetensors")
    assert {n: raw(a) for n, a in expected.items()} == {n: raw(a) for n, a in found.items()}
    assert len({a.__array_interface__["data"][0] for a in found.values()}) == len(found)


PYTHONS = [python for python in os.environ.get("PARAMTOOL_MXNET", "").split(os.pathsep) if python]
SCRIPT = """
import sys, numpy, mxnet
found = {}
for k, path in enumerate(sys.argv[2:]):
    new = open(path, "rb").read(2) == b"PK"
    if new and mxnet.__version__ < "2":
        continue
    mxnet.npx.set_np() if new else mxnet.npx.reset_np()
    loaded = (mxnet.npx.load if new else mxnet.nd.load)(path)
    for name, array in (loaded.items() if hasattr(loaded, "items") else enumerate(loaded)):
        array = array.tostype("default") if getattr(array, "stype", "default") != "default" else array
        found["%d %s" % (k, name)] = array.asnumpy().reshape(-1).view("u1")
numpy.savez(sys.argv[1], **found)
"""
"""Loads files with MXNet and writes the bytes of every array, sparse ones made dense."""
READABLE = (
    "mxnet/gluon_lstm/gluon_lstm.params", "mxnet/fused_cell-0001/fused_cell-0001.params",
    "mxnet/gates-0001/gates-0001.params", "mxnet/exported-0000/exported-0000.params", "mxnet/arrays/arrays.params",
    "mxnet/arrays/unnamed.params", "npz/mxnet2_lstm/mxnet2_lstm.params",
    "npz/mxnet2_exported-0000/mxnet2_exported-0000.params",
)  # fmt: skip


@pytest.mark.parametrize("python", PYTHONS or [""])
def test_against_mxnet(python: str, tmp_path: Path, samples: Path) -> None:
    """MXNet itself reads the same names and the same bytes from fixtures and samples."""
    if not python:
        pytest.skip("PARAMTOOL_MXNET names no Python that has MXNet")
    paths = [*(FIXTURES / name for name in READABLE), *(samples / name for name in SAMPLES)]
    subprocess.run([python, "-c", SCRIPT, str(tmp_path / "o.npz"), *map(str, paths)], check=True)
    oracle = dict(np.load(tmp_path / "o.npz"))
    checked = 0
    for k, path in enumerate(paths):
        names = [name for name in oracle if name.split(" ")[0] == str(k)]
        if not names and path.read_bytes()[:2] == b"PK":
            continue
        found = paramtool.load_file(path)
        assert sorted(f"{k} {name}" for name in found) == sorted(names)
        for name, array in found.items():
            assert raw(array) == oracle[f"{k} {name}"].tobytes(), (path.name, name)
            checked += 1
    assert checked > 80
