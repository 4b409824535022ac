"""Verification records: what libraries and GPUs answered when asked about a layout's table, and what follows for it.

A record applies to one table, identified by its digest.  `python -m proof` makes records; those that come with
paramtool are in `records/`.  A record with a device was made on a GPU; a record without one has the library's answers
alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from itertools import product, zip_longest
from math import isfinite
from typing import Any

from paramtool.errors import FormatError
from paramtool.grouping import grouped
from paramtool.layouts.layout import Form, Layout
from paramtool.lazy_dataclass import frozen

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "records")
NOT_ON_A_GPU = "not verified on a GPU"
MAX_NBYTES = 1 << 22
"""The largest record; a record of the full grid has about 50,000 bytes."""


def table_digest(layout: Layout) -> str:
    """SHA-256 of a layout's table: everything that decides where a cell is stored, and no prose.

    >>> from paramtool import layouts
    >>> table_digest(layouts.find("cudnn")) == table_digest(layouts.find("miopen"))
    False
    """
    data = {
        "name": layout.name,
        "separator": layout.separator,
        "directions": layout.directions,
        "max_directions": layout.max_directions,
        "options": [[option.name, option.default, option.values] for option in layout.options],
        "forms": [_form(form) for form in layout.forms],
    }
    return _sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())


def _sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal, by Python's own module: `hashlib` loads OpenSSL, which takes milliseconds."""
    for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12, before, and where a build lacks both
        try:
            return str(import_module(name).sha256(data).hexdigest())
        except ImportError:
            continue
    raise AssertionError("every Python has hashlib")


def _form(form: Form) -> dict[str, Any]:
    return {
        "kind": form.kind,
        "gates": form.gates,
        "reset": form.reset,
        "when": dict(form.when),
        "activations": form.activations,
        "says": sorted(form.expresses),
        "tensors": [[t.name, t.content, t.along, t.labels, t.optional, t.directions, t.unless] for t in form.tensors],
    }


@lru_cache(maxsize=1)
def _read() -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records that come with paramtool, ordered by name; and an error for each file that is not a valid record."""
    found, wrong = [], []
    for name in sorted(os.listdir(FOLDER) if os.path.isdir(FOLDER) else ()):
        path = os.path.join(FOLDER, name)
        if not name.endswith(".json") or name.startswith(".") or not os.path.isfile(path):
            continue
        try:
            with open(path, "rb") as file:
                found.append(parse(name, file.read(MAX_NBYTES)))
        except FormatError as error:
            wrong.append(f"{os.path.join(FOLDER, error.message)}; the file is ignored")
        except OSError as error:
            wrong.append(f"{path}: cannot be read: {error.strerror}; the file is ignored")
    return tuple(found), tuple(wrong)


def records() -> tuple[Record, ...]:
    """The records that come with paramtool, ordered by name."""
    return _read()[0]


def broken() -> tuple[str, ...]:
    """A warning for each file in the folder that is not a valid record; `paramtool layouts` prints them."""
    return _read()[1]


def judged(layout: Layout) -> list[tuple[Record, str]]:
    """The records of a layout, each with the reason why it does not prove its table; empty if it does."""
    of = [record for record in records() if record.layout == layout.name]
    digest = table_digest(layout) if of else ""
    return [(record, record.against if record.table == digest else "of another table") for record in of]


def speaking(layout: Layout) -> Iterator[Record]:
    """The records that prove a layout's table as it is now."""
    yield from (record for record, why in judged(layout) if not why)


def on_gpu(layout: Layout) -> str:
    """Whether a layout was verified on a GPU, in words; empty for a layout that does not involve GPUs.

    >>> from paramtool import layouts
    >>> on_gpu(layouts.find("torch")), on_gpu(layouts.find("miopen"))
    ('', 'not verified on a GPU')
    """
    if not layout.gpu:
        return ""
    return "; ".join(record.words() for record in speaking(layout) if record.is_of_a_gpu) or NOT_ON_A_GPU


def evidence(layout: Layout) -> tuple[str, ...]:
    """All evidence for a layout: what was run, what a library answered, and what a GPU computed."""
    alone = sorted({r.machine["cudnn"] for r in speaking(layout) if not r.machine["device"]}, key=_numbers)
    which = f"{alone[0]} to {alone[-1]} ({len(alone)} versions)" if len(alone) > 1 else "".join(alone)
    asked = f"asked: cuDNN {which}, without a GPU" if alone else ""
    return (*layout.proof, *filter(None, (asked, on_gpu(layout))))


def _numbers(version: str) -> list[int]:
    return [int(word) for word in version.split(".")]


SCHEMA = "paramtool.layout-record/2"
PARTS = ("asked", "flattened", "ran")
"""The questions that a record of a GPU must answer."""
MACHINE = ("device", "compute_capability", "driver", "cuda", "cudnn", "torch", "python", "platform")
VERDICTS = {"agrees": "a", "unsupported": "u", "differs": "d"}
"""{verdict that is counted: its letter}."""
ERRORS = ("tolerance", "outputs", "gradients", "smallest_control")
KINDS = ("rnn tanh", "rnn relu", "gru", "lstm", "lstm projection")
PLAIN_TYPES = ("float16", "float32", "float64")
"""Types that every cuDNN and torch have."""
GRADIENTS = 3
"""The tolerance of gradients, as a multiple of that of outputs: gradients have passed through the network twice."""
FORMS = {
    "layout": r"[\w.-]+",
    "table": "[0-9a-f]{64}",
    "date": r"\d{4}-\d\d-\d\d",
    "grid": "full|quick",
    "cudnn": r"\d+(\.\d+)+",
}
"""{member of a record: the pattern that its string must match}."""


@frozen
class Record:
    """The result of comparing a layout's table with the answers of a library or a GPU."""

    name: str
    """The record's file."""
    data: Mapping[str, Any]
    """The document."""
    against: str = ""
    """Why the record does not prove its table; empty if it does."""

    @property
    def layout(self) -> str:
        """The name of the layout."""
        return str(self.data["layout"])

    @property
    def date(self) -> str:
        """When it was made."""
        return str(self.data["date"])

    @property
    def table(self) -> str:
        """The digest of the table that the record applies to."""
        return str(self.data["table"])

    @property
    def machine(self) -> Mapping[str, str]:
        """Versions, and the device; empty strings for what the machine did not have."""
        return {key: str(self.data["machine"][key]) for key in MACHINE}

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """{question: its answers}, for the questions that were asked."""
        return {part: self.data[part] for part in PARTS if self.data[part] is not None}

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether the machine had a GPU, and all three questions were asked."""
        return bool(self.machine["device"]) and len(self.parts) == len(PARTS)

    @property
    def agrees(self) -> bool:
        """Whether the record proves its table."""
        return not self.against

    def judged(self) -> Record:
        """The same record with `against` filled in, which reads every letter."""
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
    """The (kind, type) pairs with at least one case that agreed, with the standard algorithm if there are several."""
    axes = part["columns"]
    ways = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    plain = [(k, way["dtype"]) for k, way in enumerate(ways) if way.get("algorithm", "standard") == "standard"]
    letters = grouped((_kind(network), text) for text, networks in part["networks"].items() for network in networks)
    columns = {kind: [*zip_longest(*texts)] for kind, texts in letters.items()}
    return {
        (kind, dtype)
        for kind, column in columns.items()
        for k, dtype in plain
        if k < len(column) and VERDICTS["agrees"] in column[k]
    }


@cache
def _kind(network: str) -> str:
    """The word of KINDS for a network that is given as a spec string.

    >>> _kind("lstm input=3 hidden=5 projection=2"), _kind("rnn input=3 hidden=5 activation=relu")
    ('lstm projection', 'rnn relu')
    """
    word, *rest = network.split()
    more = [fact.partition("=") for fact in rest if fact.startswith(("activation=", "projection="))]
    return " ".join([word, *(value if name == "activation" else name for name, _, value in more)])


# --- reading ------------------------------------------------------------------------------------------------------


def parse(name: str, text: str | bytes) -> Record:
    """A record, read from JSON; FormatError names the member that is missing or wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(f"{name}: is not a record of a layout: it is not valid JSON") from None
    try:
        found = _member(data, "schema")
        if found != SCHEMA:
            raise ValueError(f"schema is {found!r}, expected {SCHEMA!r}")
        _check(data)
    except ValueError as error:
        raise FormatError(f"{name}: is not a record of a layout: {error}") from None
    return Record(name, data).judged()


def _check(data: Mapping[str, Any]) -> None:
    """Check every member; ValueError names the one that is missing or wrong."""
    for key in ("layout", "table", "date", "grid"):
        _text(data, key)
    for key in MACHINE:
        _text(data, "machine", key)
    _number(data, "findings_count")
    for part in PARTS:
        if _member(data, part) is not None:
            for key in VERDICTS:
                _number(data, part, "counts", key)
            for key in _keys(_member(data, part, "unsupported"), f"{part}.unsupported"):
                _number(data, part, "unsupported", key)
            columns = _member(data, part, "columns")
            for axis in _keys(columns, f"{part}.columns"):
                if not isinstance(columns[axis], list) or not all(isinstance(value, str) for value in columns[axis]):
                    raise ValueError(f"{part}.columns.{axis} is not a list of strings")
            if "dtype" not in columns:
                raise ValueError(f"{part}.columns.dtype is missing")
            networks = _member(data, part, "networks")
            for text in _keys(networks, f"{part}.networks"):
                if not isinstance(networks[text], list) or not all(isinstance(one, str) for one in networks[text]):
                    raise ValueError(f"{part}.networks.{text} cannot be {networks[text]!r:.80}")
            letters = "".join(text * len(those) for text, those in networks.items())
            counted = [letters.count(letter) for letter in VERDICTS.values()]
            if counted != [data[part]["counts"][key] for key in VERDICTS] or sum(counted) != len(letters):
                raise ValueError(f"{part}.counts do not match the letters of {part}.networks")
    errors = _member(data, "ran", "errors") if data["ran"] is not None else {}
    for dtype, key in product(_keys(errors, "ran.errors"), ERRORS):
        _number(data, "ran", "errors", dtype, key)


def _keys(found: object, path: str) -> list[str]:
    if not isinstance(found, Mapping) or not all(key.strip() and key.isprintable() for key in found):
        raise ValueError(f"{path} is not an object with printable keys")
    return list(found)


def _member(data: object, *path: str) -> Any:
    for number, key in enumerate(path):
        if not isinstance(data, Mapping):
            raise ValueError(f"{'.'.join(path[:number]) or 'it'} is not an object")
        if key not in data:
            raise ValueError(f"{'.'.join(path[: number + 1])} is missing")
        data = data[key]
    return data


def _text(data: object, *path: str) -> str:
    found = _member(data, *path)
    if not isinstance(found, str) or not found.isprintable() or not re.fullmatch(FORMS.get(path[-1], ".*"), found):
        raise ValueError(f"{'.'.join(path)} has the invalid value {found!r:.80}")
    return found


def _number(data: object, *path: str) -> None:
    found = _member(data, *path)
    if type(found) not in (int, float) or not isfinite(found) or found < 0:
        raise ValueError(f"{'.'.join(path)} has the invalid value {found!r:.80}")
