"""What a warm process makes before it forks, so that its forks need not make it again.

It is made of the program alone: methods of lazy dataclasses, tables, patterns of names.
"""

from __future__ import annotations

import inspect
import sys
from functools import _lru_cache_wrapper


def warm_up() -> None:
    """Make it, for all modules of paramtool that were imported."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "paramtool"}
    for name, found in [(name, one) for name, module in modules.items() for one in vars(module).values()]:
        if isinstance(found, type):
            _make_methods(found)
        elif isinstance(found, _lru_cache_wrapper) and found.__module__ == name and _asks_nothing(found):
            found()
    if "paramtool.guessing.names" in modules:
        modules["paramtool.guessing.names"].by_names({"lstm.weight": (4, 1)}, asked=True)


def _make_methods(found: type) -> None:
    if twin := getattr(found.__dict__.get("__init__"), "makes", None):
        twin.make()


def _asks_nothing(found: object) -> bool:
    return callable(found) and not inspect.signature(found).parameters
