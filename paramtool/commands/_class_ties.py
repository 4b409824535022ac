"""What the library that has a model's class says of its ties."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from paramtool.commands import models_of_transformers
from paramtool.errors import ParamtoolError

if TYPE_CHECKING:
    from paramtool.passes.config_ties.declared import ClassTies


def class_ties(config: str) -> ClassTies | None:
    """The ties of the model of a config.json; None where transformers is not there, or cannot build it.

    Warns where torch or transformers is installed and cannot be imported.
    """
    try:
        state = os.stat(config)
    except OSError:
        return None
    return _asked(os.path.abspath(config), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _asked(config: str, *state: int) -> ClassTies | None:
    models = models_of_transformers.load_if_installed()
    try:
        return None if models is None else cast("ClassTies", models.class_ties(config))
    except (ImportError, ParamtoolError):  # another version, or a model that is not its own: names are all there is
        return None
