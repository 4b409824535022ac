"""JSON as a strict reader takes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats._files import open_source
from paramtool.model.storage import SourceFile


def strict(text: str | bytes, make: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value of a JSON text; ValueError where it is none, nests too deep, or has a key twice in one object.

    Of a key that stands twice readers would take different ones.  `make` is called with each object as soon as it is
    read, and what it gives takes the object's place.
    """
    hook = _object if make is None else lambda pairs: make(_object(pairs))
    try:
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def strict_file(path: str, what: str, max_nbytes: int) -> tuple[Any, SourceFile]:
    """The value of a file of JSON; FormatError where it cannot be read, is larger than `what` is, or is no JSON."""
    file, source = open_source(path)
    with file:
        if source.nbytes > max_nbytes:
            raise FormatError(f"{path}: is {what} of {source.nbytes} bytes; expected at most {max_nbytes}")
        text = file.read(source.nbytes)
    try:
        return strict(text), source
    except ValueError as error:
        raise FormatError(f"{path}: is no JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.60} stands twice")
            seen.add(key)
    return found
