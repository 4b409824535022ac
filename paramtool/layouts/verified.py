"""What was verified on a GPU: records of what libraries and GPUs answered, and what may be said of a layout for them.

A record speaks for one table, by its digest.  `paramtool verify-layout` makes records; those that come with paramtool
stand in `records/`.  A record with a device was made on a GPU; one without is what a library answered alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from paramtool.errors import FormatError
from paramtool.layouts.layout import Form, Layout

SCHEMA = "paramtool.layout-record/1"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "records")
NOT_ON_A_GPU = "not verified on a GPU"
MAKE_ONE = {
    True: "on a machine with a CUDA GPU: paramtool verify-layout {layout} -o paramtool/layouts/records/NAME.json",
    False: "make {layout}, then put build/{layout}/*-no-gpu.json into paramtool/layouts/records",
}
"""How a record is made: on a GPU or not."""
PARTS = ("asked", "flattened", "ran")
"""What a record of a GPU has to tell of."""


def table_digest(layout: Layout) -> str:
    """SHA-256 of a layout's table: all that decides where a cell stands, and no prose.

    >>> from paramtool import layouts
    >>> table_digest(layouts.find("cudnn")) == table_digest(layouts.find("miopen"))
    False
    """
    from hashlib import sha256

    data = {
        "name": layout.name,
        "separator": layout.separator,
        "directions": layout.directions,
        "max_directions": layout.max_directions,
        "options": [[option.name, option.default, option.values] for option in layout.options],
        "forms": [_form(form) for form in layout.forms],
    }
    return sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _form(form: Form) -> dict[str, Any]:
    return {
        "kind": form.kind,
        "gates": form.gates,
        "reset": form.reset,
        "when": dict(form.when),
        "activations": form.activations,
        "says": sorted(form.says),
        "tensors": [[t.name, t.content, t.along, t.labels, t.optional, t.directions, t.unless] for t in form.tensors],
    }


@dataclass(frozen=True, slots=True)
class Record:
    """What was found when a layout's table was set beside what a library or a GPU says."""

    name: str
    """The record's file."""
    data: Mapping[str, Any]
    """The document; docs/schema/layout-record-1.json describes it."""

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
        return {str(key): str(value) for key, value in self.data["machine"].items()}

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether a GPU was there, and all three questions were put to it."""
        return bool(self.machine["device"]) and all(self.data[part] is not None for part in PARTS)

    @property
    def agrees(self) -> bool:
        """Whether nothing differed in the whole grid, and every kind of network agreed in each of PLAIN_TYPES."""
        parts = [self.data[part] for part in PARTS if self.data[part] is not None]
        return (
            bool(parts)
            and self.data["grid"] == "full"
            and not self.data["findings_count"]
            and not any(part["counts"]["differs"] for part in parts)
            and all(_agreed(part) >= set(product(KINDS, PLAIN_TYPES)) for part in parts)
        )

    def words(self) -> str:
        """`verified on cuDNN 9.19.0, NVIDIA H100`, or `asked cuDNN 9.28.0 without a GPU`."""
        library, device = f"cuDNN {self.machine['cudnn']}", self.machine["device"]
        if not device:
            return f"asked {library} without a GPU"
        return f"verified on {library}, {device}" if self.is_of_a_gpu else f"asked in part: {library}, {device}"


KINDS = ("rnn tanh", "rnn relu", "gru", "lstm", "lstm projection")
PLAIN_TYPES = ("float16", "float32", "float64")
"""Types that every cuDNN and torch have."""


def _agreed(part: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(kind, type) of which at least one case agreed, with the standard algorithm where there are several."""
    axes = list(part["columns"].items())
    ways = [dict(zip(dict(axes), values, strict=True)) for values in product(*(values for _, values in axes))]
    return {
        (_kind(network), way["dtype"])
        for network, letters in part["networks"].items()
        for way, letter in zip(ways, letters, strict=False)
        if letter == "a" and way.get("algorithm", "standard") == "standard"
    }


def _kind(network: str) -> str:
    """The word of KINDS for a network, as a text.

    >>> _kind("lstm input=3 hidden=5 projection=2"), _kind("rnn input=3 hidden=5 activation=relu")
    ('lstm projection', 'rnn relu')
    """
    word, *rest = network.split()
    more = [fact.partition("=") for fact in rest if fact.startswith(("activation=", "projection="))]
    return " ".join([word, *(value if name == "activation" else name for name, _, value in more)])


def parse(name: str, text: str | bytes) -> Record:
    """A record; FormatError where the text is none."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"schema {found!r}, expected {SCHEMA!r}")
        _check(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{name}: is no record of a layout: {type(error).__name__}: {error}") from None
    return Record(name, data)


TEXTS = ("layout", "table", "date", "grid")
MACHINE = ("device", "compute_capability", "driver", "cuda", "cudnn", "torch", "python", "platform")
COUNTS = ("agrees", "unsupported", "differs")


def _check(data: Mapping[str, Any]) -> None:
    """KeyError, TypeError or ValueError where something is missing or of another type that is read later."""
    texts = [*(data[key] for key in TEXTS), *(data["machine"][key] for key in MACHINE)]
    numbers = [data["findings_count"]]
    for part in (data[part] for part in PARTS if data[part] is not None):
        numbers += [part["counts"][key] for key in COUNTS] + list(part["unsupported"].values())
        texts += [*part["networks"].values(), *(text for axis in part["columns"].values() for text in axis)]
        letters = "".join(part["networks"].values())
        if [letters.count(letter) for letter in "aud"] != [part["counts"][key] for key in COUNTS]:
            raise ValueError("the letters of its networks are not those that it counts")
        for errors in part.get("errors", {}).values():
            numbers += [errors[key] for key in ("tolerance", "outputs", "gradients", "smallest_control")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text is none")
    if not all(type(number) in (int, float) and number >= 0 for number in numbers):
        raise TypeError("a number is none, or below zero")


@lru_cache(maxsize=1)
def records() -> tuple[Record, ...]:
    """Those that come with paramtool, by name."""
    found = []
    for name in sorted(os.listdir(FOLDER) if os.path.isdir(FOLDER) else ()):
        if name.endswith(".json"):
            with open(os.path.join(FOLDER, name), "rb") as file:
                found.append(parse(name, file.read()))
    return tuple(found)


def speaking(layout: Layout) -> Iterator[Record]:
    """The records that speak for a layout's table as it is, and found nothing against it."""
    of = [record for record in records() if record.layout == layout.name]
    if of:
        digest = table_digest(layout)
        yield from (record for record in of if record.table == digest and record.agrees)


def on_gpu(layout: Layout) -> str:
    """Whether a layout was verified on a GPU, in words; empty for one that has nothing to do with GPUs.

    >>> from paramtool import layouts
    >>> on_gpu(layouts.find("torch")), on_gpu(layouts.find("miopen"))
    ('', 'not verified on a GPU')
    """
    if not layout.gpu:
        return ""
    return "; ".join(record.words() for record in speaking(layout) if record.is_of_a_gpu) or NOT_ON_A_GPU


def evidence(layout: Layout) -> tuple[str, ...]:
    """All that is known of a layout: what was run, what a library answered, and what a GPU did."""
    alone = sorted({r.machine["cudnn"] for r in speaking(layout) if not r.machine["device"]}, key=_numbers)
    which = f"{alone[0]} to {alone[-1]} ({len(alone)} versions)" if len(alone) > 1 else "".join(alone)
    asked = f"asked: cuDNN {which}, without a GPU" if alone else ""
    return (*layout.proof, *filter(None, (asked, on_gpu(layout))))


def _numbers(version: str) -> list[int]:
    return [int(word) for word in version.split(".") if word.isdigit()]
