"""What editors and type checkers see of `paramtool`: `python -m tests.library.stub` writes paramtool/__init__.pyi.

Public names come from where they are.  A function whose keywords are the fields of its options is written out, with
all of them: at run time its signature says the same.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import paramtool

STUB = Path(paramtool.__file__).with_suffix(".pyi")
HEAD = '''"""For editors and type checkers; `python -m tests.library.stub` writes it."""

import os
from collections.abc import Collection, Mapping, Sequence

from paramtool import errors as errors
from paramtool import torch as torch
from paramtool.commands.progress import Path, Progress, silent
from paramtool.passes.renaming import RenamingRule
'''


def text() -> str:
    """The stub."""
    imports, functions = [], []
    for module, names in paramtool._PLACES.items():
        for name in names.split():
            found = getattr(importlib.import_module(f"paramtool.{module}"), name)
            if hasattr(found, "__signature__") and inspect.isfunction(found):
                functions.append(name)
            else:
                imports.append(f"from paramtool.{module} import {name} as {name}\n")
    shown = (line for name in sorted(functions) for line in _function(name))
    return "".join(
        [HEAD, *sorted(imports), "\n__version__: str\n", f"__all__ = {sorted(paramtool.__all__)!r}\n", *shown]
    )


def _function(name: str) -> Iterator[str]:
    found = getattr(paramtool, name)
    signature = inspect.signature(found)
    yield f"\ndef {name}(\n"
    is_keyword = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "    *,\n"
        default = "" if one.default is one.empty else f" = {getattr(one.default, '__name__', repr(one.default))}"
        yield f"    {one.name}: {one.annotation}{default},\n"
    yield f") -> {signature.return_annotation}:\n"
    yield textwrap.indent(f'"""{inspect.getdoc(found)}\n"""\n', "    ")


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
