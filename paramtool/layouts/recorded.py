"""The form of a record of `paramtool verify-layout`, what it has to keep to, and when it counts as a proof.

docs/schema/layout-record-1.json describes all of it; what is checked here is what is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from typing import Any

from paramtool.errors import FormatError

SCHEMA = "paramtool.layout-record/1"
PARTS = ("asked", "flattened", "ran")
"""What a record of a GPU has to tell of."""
MACHINE = ("device", "compute_capability", "driver", "cuda", "cudnn", "torch", "python", "platform")
VERDICTS = {"agrees": "a", "unsupported": "u", "differs": "d"}
"""What is counted, and its letter."""
ERRORS = ("tolerance", "outputs", "gradients", "smallest_control")
KINDS = ("rnn tanh", "rnn relu", "gru", "lstm", "lstm projection")
PLAIN_TYPES = ("float16", "float32", "float64")
"""Types that every cuDNN and torch have."""
GRADIENTS = 3
"""The tolerance of gradients is so many times that of outputs: they have passed through the network twice."""
FORMS = {
    "layout": r"[\w.-]+",
    "table": "[0-9a-f]{64}",
    "date": r"\d{4}-\d\d-\d\d",
    "grid": "full|quick",
    "cudnn": r"\d+(\.\d+)+",
}
"""What texts have to look like."""


@dataclass(frozen=True, slots=True)
class Record:
    """What was found when a layout's table was set beside what a library or a GPU says."""

    name: str
    """The record's file."""
    data: Mapping[str, Any]
    """The document."""
    against: str = ""
    """Why it is no proof of the table that it speaks for; empty where it is one."""

    @property
    def layout(self) -> str:
        """The name of the layout."""
        return str(self.data["layout"])

    @property
    def table(self) -> str:
        """The digest of the table that it speaks for."""
        return str(self.data["table"])

    @property
    def machine(self) -> Mapping[str, str]:
        """Versions, and the device: empty texts for what was not there."""
        return {key: str(self.data["machine"][key]) for key in MACHINE}

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """The questions that were put."""
        return {part: self.data[part] for part in PARTS if self.data[part] is not None}

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether a GPU was there, and all three questions were put to it."""
        return bool(self.machine["device"]) and len(self.parts) == len(PARTS)

    @property
    def agrees(self) -> bool:
        """Whether it is a proof of the table that it speaks for."""
        return not self.against

    def judged(self) -> Record:
        """The same with what speaks against it, which takes a look at every letter."""
        return replace(self, against=next(self._against(), ""))

    def _against(self) -> Iterator[str]:
        if count := self.data["findings_count"]:
            yield f"{count:,} difference{'' if count == 1 else 's'}"
        if self.data["grid"] != "full":
            yield "of the quick grid"
        if not self.parts or (self.machine["device"] and not self.is_of_a_gpu):
            yield "of a proof that was not ended"
        for name, part in self.parts.items():
            if part["counts"]["differs"]:
                differs = part["counts"]["differs"]
                yield f"{differs:,} {'network differs' if differs == 1 else 'networks differ'}"
            if lacking := sorted(set(product(KINDS, PLAIN_TYPES)) - _agreed(part)):
                yield f"{name}: no {' in '.join(lacking[0])} that agrees"
        for dtype, errors in self.parts.get("ran", {}).get("errors", {}).items():
            bound = errors["tolerance"]
            if errors["outputs"] > bound or errors["gradients"] > GRADIENTS * bound:
                yield f"errors in {dtype} over the tolerance"

    def words(self) -> str:
        """`verified on cuDNN 9.19.0, NVIDIA H100`, or `asked cuDNN 9.28.0 without a GPU`."""
        library, device = f"cuDNN {self.machine['cudnn']}", self.machine["device"]
        if not device:
            return f"asked {library} without a GPU"
        return f"verified on {library}, {device}" if self.agrees else f"asked {library}, {device}"


def _agreed(part: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(kind, type) of which at least one case agreed, with the standard algorithm where there are several."""
    axes = part["columns"]
    ways = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    plain = [(k, way["dtype"]) for k, way in enumerate(ways) if way.get("algorithm", "standard") == "standard"]
    letters: dict[str, list[str]] = {}
    for network, text in part["networks"].items():
        letters.setdefault(_kind(network), []).append(text)
    return {
        (kind, dtype)
        for kind, texts in letters.items()
        for k, dtype in plain
        if VERDICTS["agrees"] in _column(texts, k)
    }


def _column(texts: Iterable[str], k: int) -> Iterator[str]:
    return (text[k] for text in texts if k < len(text))


def _kind(network: str) -> str:
    """The word of KINDS for a network, as a text.

    >>> _kind("lstm input=3 hidden=5 projection=2"), _kind("rnn input=3 hidden=5 activation=relu")
    ('lstm projection', 'rnn relu')
    """
    word, *rest = network.split()
    more = [fact.partition("=") for fact in rest if fact.startswith(("activation=", "projection="))]
    return " ".join([word, *(value if name == "activation" else name for name, _, value in more)])


# --- reading ------------------------------------------------------------------------------------------------------


def parse(name: str, text: str | bytes) -> Record:
    """A record; FormatError where the text is none, with the member that is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(f"{name}: is no record of a layout: it is no JSON") from None
    try:
        found = _member(data, "schema")
        if found != SCHEMA:
            raise ValueError(f"schema is {found!r}, expected {SCHEMA!r}")
        _check(data)
    except ValueError as error:
        raise FormatError(f"{name}: is no record of a layout: {error}") from None
    return Record(name, data).judged()


def _check(data: Mapping[str, Any]) -> None:
    """ValueError with the member that is missing or wrong."""
    for key in ("layout", "table", "date", "grid"):
        _text(data, key)
    for key in MACHINE:
        _text(data, "machine", key)
    _number(data, "findings_count")
    for part in PARTS:
        if _member(data, part) is not None:
            _check_part(data, part)
    errors = _member(data, "ran", "errors") if data["ran"] is not None else {}
    for dtype, key in product(_keys(errors, "ran.errors"), ERRORS):
        _number(data, "ran", "errors", dtype, key)


def _check_part(data: Mapping[str, Any], part: str) -> None:
    for key in VERDICTS:
        _number(data, part, "counts", key)
    for key in _keys(_member(data, part, "unsupported"), f"{part}.unsupported"):
        _number(data, part, "unsupported", key)
    columns = _member(data, part, "columns")
    for axis in _keys(columns, f"{part}.columns"):
        if not isinstance(columns[axis], list) or not all(isinstance(value, str) for value in columns[axis]):
            raise ValueError(f"{part}.columns.{axis} is no list of texts")
    if "dtype" not in columns:
        raise ValueError(f"{part}.columns.dtype is missing")
    letters = ""
    for network in _keys(_member(data, part, "networks"), f"{part}.networks"):
        letters += _text(data, part, "networks", network)
    counted = [letters.count(letter) for letter in VERDICTS.values()]
    if counted != [data[part]["counts"][key] for key in VERDICTS] or sum(counted) != len(letters):
        raise ValueError(f"{part}.counts are not the letters of {part}.networks")


def _keys(found: object, path: str) -> list[str]:
    if not isinstance(found, Mapping) or not all(key.strip() and key.isprintable() for key in found):
        raise ValueError(f"{path} is no object with names")
    return list(found)


def _member(data: object, *path: str) -> Any:
    for number, key in enumerate(path):
        if not isinstance(data, Mapping):
            raise ValueError(f"{'.'.join(path[:number]) or 'it'} is no object")
        if key not in data:
            raise ValueError(f"{'.'.join(path[: number + 1])} is missing")
        data = data[key]
    return data


def _text(data: object, *path: str) -> str:
    found = _member(data, *path)
    if not isinstance(found, str) or not found.isprintable() or not re.fullmatch(FORMS.get(path[-1], ".*"), found):
        raise ValueError(f"{'.'.join(path)} cannot be {found!r:.80}")
    return found


def _number(data: object, *path: str) -> None:
    found = _member(data, *path)
    if type(found) not in (int, float) or not isfinite(found) or found < 0:
        raise ValueError(f"{'.'.join(path)} cannot be {found!r:.80}")
