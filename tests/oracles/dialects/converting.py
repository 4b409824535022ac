"""The one place where the oracles call paramtool, and the words in which they are told what it should do."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paramtool
from paramtool.errors import ParamtoolError

READY = find_spec("paramtool.passes.parts") is not None
"""Whether this paramtool knows dialects."""
WORDS = {
    "qkv": "qkv", "qkv-per-head": "qkv-per-head", "qkv-per-group": "qkv-per-group",
    "qkv-per-head-interleaved": "qkv-per-head-interleaved", "qvk-in-4": "qvk-in-4",
    "gate-up": "gate-up", "up-gate": "up-gate", "gate-up-interleaved": "gate-up-interleaved",
}  # fmt: skip
"""{layout of `equations`: the name that --layout takes}; what is not here cannot be asked for."""


def convert(folder: Path, out: Path, target: str, **more: Any) -> Path:
    """`paramtool convert FOLDER --to TARGET -o OUT`"""
    paramtool.convert(folder, out, target=target, **more)
    return out


def fuse(folder: Path, out: Path, layout: str, **more: Any) -> Path:
    """`paramtool fuse FOLDER --layout LAYOUT -o OUT`"""
    paramtool.fuse(folder, out, layout=WORDS[layout], **more)
    return out


def unfuse(folder: Path, out: Path, layout: str | None = None, **more: Any) -> Path:
    """`paramtool unfuse FOLDER -o OUT`, with --layout if one is said."""
    said = {} if layout is None else {"layout": WORDS[layout]}
    paramtool.unfuse(folder, out, **said, **more)  # type: ignore[arg-type]
    return out


def refusal(run: Any, *args: Any, out: Path, **more: Any) -> str:
    """The text of the refusal of a conversion that nothing decides; AssertionError where it is done, or half done."""
    try:
        run(*args, out, **more)
    except ParamtoolError as error:
        assert error.exit_code == 5, f"exit {error.exit_code}: {error}"
        assert not out.exists(), "something was written"
        return str(error)
    raise AssertionError("not refused")


def without_facts(folder: Path, copy: Path, *facts: str) -> Path:
    """A copy of a folder whose config.json lacks some facts, or everything if none is named."""
    shutil.copytree(folder, copy)
    path = copy / "config.json"
    if not facts:
        path.unlink()
        return copy
    config = json.loads(path.read_text())
    for fact in facts:
        config.pop(fact, None)
    path.write_text(json.dumps(config))
    return copy
