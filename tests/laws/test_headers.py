"""The law of safetensors headers: what the released library refuses is refused, what it accepts is read as equal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
import safetensors

import paramtool
from paramtool.errors import FormatError
from paramtool.formats.safetensors import CODE_OF
from paramtool.model.storage import ByteRange
from paramtool.model.view import View
from tests.examples import IS_HARD
from tests.laws.headers import changed

STRICTER = {
    "twice": "one key twice in an object: the library takes the last",
    "expected '{'": "blanks before the object: the specification says that the first byte is a brace",
    "expected an object with": "an entry that is a list of its three fields",
    "offset 0, shape": "an axis of 2**63 or more, beside one of none",
    "too many bytes": "the same",
}
"""What a message of ours says where the library reads the file: docs/formats.md, "Stricter than the library"."""

Found = dict[str, tuple[str, list[int], bytes]]


def library(data: bytes) -> Found | None:
    """What the library reads; None where it refuses."""
    try:
        return {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


def ours(path: Path, data: bytes) -> Found | str:
    """What paramtool reads, or the message with which it refuses."""
    path.write_bytes(data)
    try:
        checkpoint = paramtool.read(path)
    except FormatError as error:
        return str(error)
    found: Found = {}
    for name, entry in checkpoint.entries.items():
        view = entry.value
        assert isinstance(view, View)
        place = checkpoint.storages[int(view.storage)].backing
        assert isinstance(place, ByteRange)
        found[name] = (CODE_OF[view.dtype.name], list(view.shape), data[place.start : place.stop])
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(50 if IS_HARD else 4))
def test_the_library_and_paramtool_agree(part: int, tmp_path: Path) -> None:
    """Names, types, shapes and bytes of files that are honest, or changed in one or a few places."""
    outcomes: Counter[str] = Counter()
    for seed in range(part * 2000, (part + 1) * 2000 if IS_HARD else part * 2000 + 400):
        data = changed(Random(seed))
        theirs, mine = library(data), ours(tmp_path / "m.safetensors", data)
        if theirs is None:
            assert isinstance(mine, str), (seed, data[:400])
            outcomes["refused"] += 1
        elif isinstance(mine, str):
            assert any(words in mine for words in STRICTER), (seed, mine, data[:400])
            outcomes["stricter"] += 1
        else:
            assert mine == theirs, (seed, data[:400])
            outcomes["read"] += 1
    assert outcomes["refused"] > 100 < outcomes["read"]
    assert outcomes["stricter"] < 20 * (1 + 4 * IS_HARD)
