"""A small file in the manner of BSON.jl, read by pymongo's `bson`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson
import ml_dtypes
import numpy as np

from tests.contracts.julia import Dict, Struct, Type, array, named_tuple, save


def model(folder: Path) -> Path:
    """Arrays of several types, some of them in several places, and values of every other kind."""
    tied = np.arange(12, dtype="f4").reshape(3, 4) + 100
    dense = Struct(Type("Flux.Dense"), [tied, np.arange(3, dtype="f8") + 200, Struct(Type("NNlib.#relu"), [])])
    return save(
        folder / "model.bson",
        model=Struct(Type("Flux.Chain"), [(dense, Struct(Type("LinearAlgebra.Transpose"), [tied]))]),
        opt=Struct(Type("Flux.Optimise.Adam"), [1e-3, (0.9, 0.999), 1e-8, Dict([(tied, (tied + 1, tied + 2))])], True),
        state=named_tuple(half=np.array([1.5, -2, 3], ml_dtypes.bfloat16), none=np.empty((0, 3), "f4"), tied=tied),
        counts=np.array([-1, 2**40, 7], "i8"),
        complex=np.array([[1 + 2j, 3 - 4j]], "c8"),
        raw=np.frombuffer(b"bytes", "u1"),
        word="\u00fc",
        other=[None, True, 3, np.int32(4), 2.5, np.float32(0.5), ("a",)],
    )


def load(path: Path) -> dict[str, Any]:
    """The arrays of `model` by name, as pymongo reads the documents; an array at several places is one object."""
    top = bson.decode(path.read_bytes())
    backrefs: list[Any] = top.pop("_backrefs")
    made: dict[int, np.ndarray[Any, Any]] = {}

    def at(value: Any, *steps: Any) -> np.ndarray[Any, Any]:
        for step in steps:
            value = value[step]
        while isinstance(value, dict) and value["tag"] == "backref":
            value = backrefs[value["ref"] - 1]
        if isinstance(value, bytes):
            return np.frombuffer(value, "u1")
        return made.setdefault(id(value), array(value))

    dense, turned = top["model"]["data"][0]["data"]
    adam = top["opt"]["data"][3]["data"]
    state = top["state"]["data"]
    tied = at(dense, "data", 0)
    assert at(adam[0], 0) is tied
    return {
        "model.layers.1.weight": tied,
        "model.layers.1.bias": at(dense, "data", 1),
        "model.layers.2": at(turned, "data", 0).T,
        "opt.state.model.layers.1.weight.1": at(adam[1], 0, "data", 0),
        "opt.state.model.layers.1.weight.2": at(adam[1], 0, "data", 1),
        "state.half": at(state, 0),
        "state.none": at(state, 1),
        "state.tied": at(state, 2),
        "counts": at(top, "counts"),
        "complex": at(top, "complex"),
        "raw": at(top, "raw"),
    }
