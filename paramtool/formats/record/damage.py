"""Damaged records: whatever is wrong with one becomes a FormatError that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats import strict_json

DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, StopIteration)
"""Exceptions that a malformed record can raise."""
HINT = "docs/alias-record.md describes the record; the tensors can be read without it"
"""The hint for records that only paramtool needs."""


@contextmanager
def reading(record: str, hint: str, *, names_type: bool = True) -> Iterator[None]:
    """Turns the exceptions of a malformed record into a FormatError.

    `record` names the file and the record in it; `names_type` puts the type of the exception into the message.
    """
    try:
        yield
    except DAMAGE as error:
        what = f"{type(error).__name__}: {error}" if names_type else str(error)
        raise FormatError(f"{record} is damaged: {what}", hint=hint) from None


def versioned(text: str, version: int, *, surrogates: bool = True) -> dict[str, Any]:
    """A record as JSON data; ValueError or another of `DAMAGE` if it is not JSON, or is of a later version.

    `surrogates` as of `strict_json.strict`.

    >>> versioned('{"version": 2}', 1)
    Traceback (most recent call last):
    ValueError: version 2, this program reads 1
    """
    record: dict[str, Any] = strict_json.strict(text, surrogates=surrogates)
    if type(record["version"]) is not int or not 0 < record["version"] <= version:
        raise ValueError(f"version {record['version']!r}, this program reads {version}")
    return record
