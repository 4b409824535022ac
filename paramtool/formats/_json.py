"""JSON as a strict reader takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats._files import open_source
from paramtool.model.storage import SourceFile


def strict(text: str | bytes, make: Callable[[dict[str, Any]], Any] | None = None, *, surrogates: bool = False) -> Any:
    """The value of a JSON text; ValueError where it is none, nests too deep, or has a key twice in one object.

    Of a key that stands twice readers would take different ones.  `make` is called with each object as soon as it is
    read, and what it gives takes the object's place.  JSON can spell half of a surrogate pair, which is no character
    and has no form in UTF-8 (RFC 8259, section 8.2; serde_json refuses it): it is an error, too, unless `surrogates`
    says that strings are Python's own, which may hold them.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    hook = _object if make is None else lambda pairs: make(_object(pairs))
    try:
        if not surrogates and SURROGATE.search(text):
            _refuse_surrogates(json.loads(text))
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""How half of a pair is spelled, and so whole ones."""


def _refuse_surrogates(found: object) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        raise ValueError(f"it has half of a surrogate pair, which is no character: {around!r}") from None


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
