"""What the library that has a model's class says of its ties.

Only `paramtool.torch` knows torch and transformers: it is imported by its name, where both are installed, and only when
somebody asks, since that takes seconds.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from paramtool.errors import ParamtoolError

if TYPE_CHECKING:
    from paramtool.passes.config_ties.declared import ClassTies


def class_ties(config: str) -> ClassTies | None:
    """The ties of the model of a config.json; None where transformers is not there, or cannot build it."""
    try:
        state = os.stat(config)
    except OSError:
        return None
    return _asked(os.path.abspath(config), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _asked(config: str, *state: int) -> ClassTies | None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    try:
        return cast("ClassTies", import_module("paramtool.torch.transformers_models").class_ties(config))
    except (ImportError, ParamtoolError):  # another version, or a model that is not its own: names are all there is
        return None
