"""A strict JSON reader."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from paramtool.errors import FormatError
from paramtool.formats.files import open_source
from paramtool.model.storage import SourceFile


def strict(
    text: str | bytes,
    make: Callable[[dict[str, Any]], Any] | None = None,
    *,
    surrogates: bool = False,
    finite: bool = False,
) -> Any:
    """The value of a JSON text; ValueError if it is not JSON, nested too deeply, or has a key twice in one object.

    Of a duplicate key, different readers would take different values.  `make` is called with each object as soon as it
    is read, and its result replaces the object.  JSON can spell half of a surrogate pair, which is not a character and
    cannot be encoded in UTF-8 (RFC 8259, section 8.2; serde_json refuses it).  It is an error, too, unless `surrogates`
    is set, for Python strings, which may hold it.

    With `finite`, numbers are read as by serde_json: NaN and infinity are errors, and -0 is a float.
    """
    import json

    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    hook = _object if make is None else lambda pairs: make(_object(pairs))
    numbers = _finite(text) if finite else {}
    try:
        if not surrogates and re.search(_SURROGATE, text):
            _refuse_surrogates(json.loads(text))
        return json.loads(text, object_pairs_hook=hook, **numbers)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_SURROGATE = r"\\u[dD][89a-fA-F]"
"""How JSON spells one half of a surrogate pair; a whole pair is two of them."""


def _refuse_surrogates(found: object) -> None:
    import json

    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        raise ValueError(f"it has half of a surrogate pair, which is not a character: {around!r}") from None


def are_texts(found: Any, kind: type[Any]) -> bool:
    """Whether a value is a list of strings, or an object whose values are strings, as `kind` says.

    >>> are_texts(["a"], list), are_texts({"a": "b"}, dict), are_texts({"a": 1}, dict), are_texts(["a"], dict)
    (True, True, False, False)
    """
    return isinstance(found, kind) and all(isinstance(one, str) for one in (found.values() if kind is dict else found))


def depth(value: Any) -> int:
    """How deeply arrays and objects are nested.

    >>> depth([{"a": []}]), depth(1)
    (3, 0)
    """
    found, level = 0, [value]
    while level := [one for one in level if isinstance(one, (list, dict))]:
        found += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return found


_DIGITS = r"[0-9]{30}"
"""In every tenth character, where a number has 300."""


def _finite(text: str) -> dict[str, Any]:
    """How numbers are read; whole numbers are most of a header, and are looked at only if one may be odd."""
    is_odd = "-0" in text or re.search(_DIGITS, text[::10])
    return {**_FINITE, "parse_int": _int} if is_odd else _FINITE


def _float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"it has the number {text[:40]}, which is out of range")
    return number


def _int(text: str) -> int | float:
    if text == "-0":
        return -0.0
    _float(text)
    return int(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"it has {text}, which is not a number in JSON")


_FINITE: dict[str, Any] = {"parse_float": _float, "parse_constant": _constant}


MAX_INDEX_NBYTES = 256 << 20
"""The largest index of shards, or alias record in one."""


def strict_file(path: str, what: str, max_nbytes: int) -> tuple[Any, SourceFile]:
    """The value of a JSON file; FormatError if it cannot be read, is larger than `max_nbytes`, or is not JSON."""
    file, source = open_source(path)
    with file:
        if source.nbytes > max_nbytes:
            raise FormatError(f"{path}: is {what} of {source.nbytes} bytes; expected at most {max_nbytes}")
        text = file.read(source.nbytes)
    if not text.strip():
        raise FormatError(f"{path}: is empty; expected {what} (JSON)")
    try:
        return strict(text), source
    except ValueError as error:
        raise FormatError(f"{path}: not valid JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.60} appears twice")
            seen.add(key)
    return found
