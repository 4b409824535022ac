"""The record of layouts: the recurrent networks of a file, and the layout of each.

It is text under the metadata key `paramtool.layouts`: {"version": 1, "modules": [...]} (docs/layouts.md describes it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from paramtool.formats.record.damage import reading, versioned
from paramtool.model.checkpoint import Module

KEY = "paramtool.layouts"
VERSION = 1
_MAPPINGS, _LISTS = ("tensors", "options"), ("unsure", "stacked")
_MODULE_KEYS = ("at", "layout", "spec", *_MAPPINGS, "source", "parts", "shapes", "evidence", *_LISTS, "refused")


def encode(modules: Iterable[Module]) -> str:
    """The record of recurrent networks, as JSON text; empty if there are none."""
    items = [
        {
            k: (dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v)
            for k in _MODULE_KEYS
            if (v := getattr(one, k))
        }
        for one in modules
    ]
    return json.dumps({"version": VERSION, "modules": items}, separators=(",", ":")) if items else ""


def decode(where: str, metadata: Mapping[str, str]) -> tuple[Module, ...]:
    """The recurrent networks that a file's metadata describes; FormatError if the record is damaged."""
    if KEY not in metadata:
        return ()
    hint = "docs/layouts.md describes the record; the safetensors library can still read the tensors"
    with reading(f"{where}: its record of layouts ({KEY!r})", hint):
        record = versioned(metadata[KEY], VERSION, surrogates=False)
        return tuple(_module(item) for item in record["modules"])


def _module(item: Mapping[str, Any]) -> Module:
    """One network; ValueError if a member has the wrong type."""
    found: dict[str, Any] = {key: item[key] for key in _MODULE_KEYS if key in item}
    if not found.get("layout"):  # what is empty is not written
        raise ValueError("a network has no layout")
    shapes = {name: tuple(shape) for name, shape in found.pop("shapes", {}).items()}
    if not all(type(size) is int and size >= 0 for shape in shapes.values() for size in shape):
        raise ValueError("shapes is not made of sizes")
    for key, value in found.items():
        strings = [one for pair in value.items() for one in pair] if key in _MAPPINGS else value
        if not all(isinstance(one, str) for one in (strings if key in _MAPPINGS + _LISTS else [strings])):
            raise ValueError(f"{key} is not made of strings")
    found |= {key: tuple(found[key]) for key in _LISTS if key in found}
    return Module(**{"at": "", **found, "shapes": shapes})
