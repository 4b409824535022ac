"""Opens what paramtool wrote for flax, and runs it: `python open_flax.py FOLDER`.

FOLDER has known.npz with the inputs, one.msgpack and types.msgpack; found.npz gets what the network computes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
from flax import serialization

FOLDER = Path(sys.argv[1])
HIDDEN = 5


class Network(nn.Module):
    """An LSTM over (T, N, features)."""

    @nn.compact
    def __call__(self, x):
        return nn.RNN(nn.OptimizedLSTMCell(HIDDEN), time_major=True)(x)


def main() -> None:
    """The network, and every element type."""
    with np.load(FOLDER / "known.npz") as known:
        x = known["x"]
    data = (FOLDER / "one.msgpack").read_bytes()
    target = Network().init(jax.random.key(0), x)
    variables = serialization.from_bytes(target, data)
    found = {"one-from_bytes": np.asarray(Network().apply(variables, x))}
    found["one-restored"] = np.asarray(Network().apply(serialization.msgpack_restore(data), x))
    types = serialization.msgpack_restore((FOLDER / "types.msgpack").read_bytes())
    assert types.pop("a")["none"].shape == (0, 3)
    for name, array in types.items():
        assert array.dtype.name == name and array.shape == (2, 3), name
        expected = np.arange(6).reshape(2, 3).astype("bool" if name == "bool" else "f8")
        assert (np.asarray(array).astype("f8") == expected).all()
    assert serialization.msgpack_serialize(serialization.msgpack_restore(data), in_place=True) == data
    np.savez(FOLDER / "found.npz", **found)


if __name__ == "__main__":
    main()
