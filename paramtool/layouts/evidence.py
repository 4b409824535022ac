"""What was verified on a GPU: records of what libraries and GPUs answered, and what may be said of a layout for them.

A record speaks for one table, by its digest.  `paramtool verify-layout` makes records; those that come with paramtool
stand in `records/`.  A record with a device was made on a GPU; one without is what a library answered alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from paramtool.errors import FormatError
from paramtool.layouts.layout import Form, Layout
from paramtool.layouts.recorded import Record, parse

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "records")
NOT_ON_A_GPU = "not verified on a GPU"
MAKE_ONE = {
    True: "on a machine with a CUDA GPU: paramtool verify-layout {layout} -o paramtool/layouts/records/NAME.json",
    False: "make {layout}, then put build/{layout}/*-no-gpu.json into paramtool/layouts/records",
}
"""How a record is made: on a GPU or not."""
MAX_NBYTES = 1 << 22
"""Of a record; one of the whole grid has some 50,000."""


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
        "says": sorted(form.expresses),
        "tensors": [[t.name, t.content, t.along, t.labels, t.optional, t.directions, t.unless] for t in form.tensors],
    }


@lru_cache(maxsize=1)
def _read() -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records that come with paramtool, by name; and what is wrong with files that are none."""
    found, wrong = [], []
    for name in sorted(os.listdir(FOLDER) if os.path.isdir(FOLDER) else ()):
        path = os.path.join(FOLDER, name)
        if not name.endswith(".json") or name.startswith(".") or not os.path.isfile(path):
            continue
        try:
            with open(path, "rb") as file:
                found.append(parse(name, file.read(MAX_NBYTES)))
        except FormatError as error:
            wrong.append(f"{os.path.join(FOLDER, str(error))}; it is left out")
        except OSError as error:
            wrong.append(f"{path}: cannot be read: {error.strerror}; it is left out")
    return tuple(found), tuple(wrong)


def records() -> tuple[Record, ...]:
    """Those that come with paramtool, by name."""
    return _read()[0]


def broken() -> tuple[str, ...]:
    """A line for each file among them that is no record: it stops nothing, and is told where layouts are listed."""
    return _read()[1]


def judged(layout: Layout) -> list[tuple[Record, str]]:
    """The records of a layout, each with the reason why it does not speak for its table; empty where it does."""
    of = [record for record in records() if record.layout == layout.name]
    digest = table_digest(layout) if of else ""
    return [(record, record.against if record.table == digest else "of another table") for record in of]


def speaking(layout: Layout) -> Iterator[Record]:
    """The records that speak for a layout's table as it is, and found nothing against it."""
    yield from (record for record, why in judged(layout) if not why)


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
    return [int(word) for word in version.split(".")]
