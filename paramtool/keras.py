"""For people with Keras 3: the weights of any readable checkpoint in a model.

    paramtool.keras.load_into(model, path)    the same plan as `paramtool convert --into`

The only module that imports Keras, which saves the model's weights and loads the new ones itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import keras

from paramtool import formats
from paramtool.commands import live
from paramtool.commands.live import LoadedInto
from paramtool.commands.progress import Path

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LoadedInto", "load_into"]
WEIGHTS = "model.weights.h5"


def load_into(
    model: keras.Model, path: Path, *, map: Sequence[str] = (), source: str | None = None, spec: str = "",
    strict: bool = False, only: str | None = None, weights: str | None = None, flatten: str = "", partial: bool = False,
) -> LoadedInto:  # fmt: skip
    """Fill a built Keras model from a checkpoint of any format, in Keras' layouts.

    The keywords are those of `paramtool.convert`: `map` says what goes where if names and shapes do not, `source` and
    `spec` what the file does not say of its networks; `strict` refuses to leave a weight of the model as it was.
    LayoutError if something does not fit or is ambiguous; the model is unchanged then.  An optimizer keeps its state.
    """
    import zipfile

    options = live.options(locals())
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = os.path.join(folder, WEIGHTS), os.path.join(folder, "model.keras")
        model.save_weights(saved)
        with zipfile.ZipFile(whole, "w") as archive:
            with suppress(NotImplementedError, TypeError, ValueError):  # not every model of one's own has a config
                archive.writestr("config.json", model.to_json())
            archive.writestr("metadata.json", f'{{"keras_version": "{keras.__version__}"}}')
            archive.write(saved, WEIGHTS)

        def put(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
            import h5py

            with h5py.File(saved, "r+") as file:
                for name, array in arrays.items():
                    held = file[name].dtype  # Keras stores bfloat16 as two bytes without a type
                    file[name][...] = array.view(held) if held.kind == "V" else array
            model.load_weights(saved)

        return live.values(path, formats.read_file(whole), options, put)
