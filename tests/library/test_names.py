"""What `import paramtool` shows: to `dir`, to completion, to help and to type checkers."""

from __future__ import annotations

import importlib
import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import paramtool
import paramtool.torch
from tests.library import stub


def test_dir_shows_everything_public_and_nothing_else() -> None:
    shown = {name for name in dir(paramtool) if not name.startswith("__")}
    assert shown == {name for name in paramtool.__all__ if not name.startswith("__")} | {
        "errors",
        "flax",
        "keras",
        "mxnet",
        "torch",
    }
    for name in paramtool.__all__:
        assert getattr(paramtool, name) is not None
    namespace: dict[str, object] = {}
    exec("from paramtool import *", namespace)
    assert namespace.keys() >= set(paramtool.__all__)


def test_a_fresh_interpreter_completes_names() -> None:
    """`dir` imports nothing; Python's own completer looks at what it completes, and needs no torch."""
    code = (
        "import paramtool, rlcompleter, sys\n"
        "assert 'dedup' in dir(paramtool)\n"
        "print(sorted(name for name in sys.modules if name.startswith('paramtool.')))\n"
        "print(rlcompleter.Completer({'paramtool': paramtool}).attr_matches('paramtool.ded'))\n"
        "print('torch' in sys.modules)\n"
    )
    path = os.environ | {"PYTHONPATH": str(Path(paramtool.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    first, second, third = ran.stdout.splitlines()
    assert (first, third) == ("[]", "False")
    assert "paramtool.dedup(" in second and "paramtool.dedup_family(" in second


def test_help_lists_every_public_name() -> None:
    text = pydoc.plain(pydoc.render_doc(paramtool))
    for name in paramtool.__all__:
        assert name.strip("_") in text, name
    assert "- `keep`: which name owns what several share" in text


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The stub is written from the table of places, which names all that is public."""
    assert stub.STUB.read_text(encoding="utf-8") == stub.text(), "python -m tests.library.stub writes it anew"
    places = {(name, f"paramtool.{module}") for module, names in paramtool._PLACES.items() for name in names.split()}
    assert {name for name, _ in places} | {"__version__"} == set(paramtool.__all__)
    for name, module in places:
        there, found = getattr(importlib.import_module(module), name), getattr(paramtool, name)
        assert inspect.unwrap(there) is inspect.unwrap(found) if callable(found) else there is found


def test_every_error_and_every_report_is_public() -> None:
    errors = inspect.getmembers(paramtool.errors, inspect.isclass)
    assert {name for name, kind in errors if issubclass(kind, paramtool.ParamtoolError)} <= set(paramtool.__all__)
    for function in ("dedup", "export", "convert", "verify", "inspect", "guess", "dedup_family", "dedup_each"):
        returns = inspect.signature(getattr(paramtool, function)).return_annotation
        for word in returns.replace("[", " ").replace("]", " ").split():
            assert word in paramtool.__all__, f"{function} returns {word}"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'dedupe'"):
        paramtool.dedupe  # type: ignore[attr-defined]


def test_without_torch_the_attribute_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    code = "import paramtool\ntry:\n    paramtool.torch\nexcept AttributeError as error:\n    print(error)"
    path = os.pathsep.join([str(tmp_path), str(Path(paramtool.__file__).parents[1])])
    where = os.environ | {"PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where)
    assert "pip install 'paramtool[torch]'" in ran.stdout, ran.stderr
