"""Runs cases of the layouts `keras` and `keras.vars` with Keras 3, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import sys

import keras
import numpy as np
from _case_files import serve
from _keras_networks import Library, run

BACKEND = keras.backend.backend()
# keras.activations.hard_sigmoid of Keras 3: relu6(x + 3) / 6
LIBRARY = Library(
    module=keras,
    slope=1 / 6,
    clip=keras.ops.clip,
    to_tensor=keras.ops.convert_to_tensor,
    to_numpy=keras.ops.convert_to_numpy,
    title=f"keras {keras.__version__} on {BACKEND}",
)

if __name__ == "__main__":
    runners = {layout: lambda case: run(LIBRARY, case) for layout in ("keras", "keras.vars")}
    sys.exit(serve(runners, {"keras": keras.__version__, "keras backend": BACKEND, "numpy": np.__version__}))
