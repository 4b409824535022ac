"""The one place where the oracles call paramtool, and the words in which they are told what it should do."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paramtool
from paramtool.errors import ParamtoolError

LAYOUTS = find_spec("paramtool.passes.parts") is not None
"""Whether this paramtool fuses attention."""
FORMS = find_spec("paramtool.dialects") is not None and find_spec("paramtool.dialects.transformers") is not None
"""Whether it knows the names of transformers."""


@dataclass(frozen=True)
class Words:
    """What paramtool calls a layout of `equations`."""

    layout: str
    """For --layout."""
    fused: str = "qkv_proj"
    """The name of the module that it makes."""
    facts: str = ""
    """What --spec has to say, which no config does."""


WORDS = {
    "qkv": Words("qkv"),
    "qkv-per-head": Words("qkv-per-head", "query_key_value"),
    "qkv-per-head-interleaved": Words("qkv-per-element", "query_key_value"),
    "qkv-per-group": Words("qkv-per-group", "query_key_value"),
    "qvk-in-4": Words("qvk-per-chunk", facts="qkv chunks=4"),
    "qkv-in-4": Words("qkv-per-chunk", facts="qkv chunks=4"),
    "qkv-in-3": Words("qkv-per-chunk", facts="qkv chunks=3"),
    "transposed qkv": Words("qkv-conv1d", "c_attn"),
    "gate-up": Words("gate-up", "gate_up_proj"),
    "up-gate": Words("up-gate", "gate_up_proj"),
    "gate-up-interleaved": Words("gate-up-interleaved", "gate_up_proj"),
    "kv": Words("kv", "kv_proj"),
    "kv-per-head": Words("kv-per-head", "kv_proj"),
    "gate-up linear": Words("experts"),
    "gate-up-interleaved linear": Words("experts-interleaved"),
    "gate-up matmul": Words("experts-transposed"),
    "gate-up-interleaved matmul": Words("experts-transposed-interleaved"),
    "gate-up flat": Words("experts-flat"),
}  # fmt: skip
"""{layout of `equations`: what paramtool calls it}; it has no word for the others, which are nobody's."""


def _said(layout: str | None, more: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a layout."""
    if layout is None:
        return more
    words = WORDS[layout]
    spec = {"spec": words.facts} if words.facts else {}
    return {"layout": words.layout, **spec, **more}


def convert(folder: Path, out: Path, target: str, **more: Any) -> Path:
    """`paramtool convert FOLDER --to TARGET -o OUT`"""
    paramtool.convert(folder, out, target=target, **more)
    return out


def fuse(folder: Path, out: Path, layout: str, **more: Any) -> Path:
    """`paramtool fuse FOLDER --layout LAYOUT -o OUT`"""
    paramtool.fuse(folder, out, **_said(layout, more))
    return out


def unfuse(folder: Path, out: Path, layout: str | None = None, **more: Any) -> Path:
    """`paramtool unfuse FOLDER -o OUT`, with --layout if one is said."""
    paramtool.unfuse(folder, out, **_said(layout, more))
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
