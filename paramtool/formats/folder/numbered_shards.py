"""Shards whose names number them, in a folder without their index.

model-00001-of-00003.safetensors, model-00003-of-00003.safetensors      the second of three is missing
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paramtool.errors import FormatError, listed, plural, some

_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)(\.[^.]+)")
MAX_COUNT = 10_000
"""The largest number of shards that names are believed to say."""


class _Numbered(NamedTuple):
    """What the names of shards have in common, and the numbers that are there."""

    stem: str
    end: str
    digits: int
    total: int
    present: frozenset[int]

    @property
    def index_name(self) -> str:
        """The file name of their index."""
        return f"{self.stem}{self.end}.index.json"

    def missing(self) -> list[str]:
        """The file names of the shards that are not there."""
        whole = f"{self.total:0{self.digits}d}"
        left = [number for number in range(1, self.total + 1) if number not in self.present]
        return [f"{self.stem}-{number:0{self.digits}d}-of-{whole}{self.end}" for number in left]


def without_index(folder: str, names: Mapping[str, Sequence[str]]) -> FormatError | None:
    """The error for a folder whose files are shards of one set, as they are numbered; None if they are not.

    `names` are the names of the tensors of each file, by its path.
    """
    found = _numbered(names)
    if found is None:
        return None
    is_there = os.path.lexists(os.path.join(folder, found.index_name))
    here = f"{folder}: has {len(found.present)} of {plural(found.total, 'shard')} and no index that lists them"
    if lacking := found.missing():
        lines = [*lacking, *[found.index_name] * (not is_there)]
        return FormatError(
            listed(f"{here}; missing:", lines), hint=f"copy or download {'it' if len(lines) == 1 else 'them'} again"
        )
    if twice := _twice(names):
        is_in = f"{plural(len(twice), 'tensor is', 'tensors are')} in two of them: {some(twice, 3)}"
        return FormatError(f"{here}; {is_in}", hint=f"they are of several saves; {_fetch(found)}")
    return FormatError(
        f"{here}: {found.index_name} is missing" if not is_there else f"{here}: {found.index_name} has no `weight_map`",
        hint=f'{_fetch(found)}, or write it: {{"metadata": {{}}, "weight_map": {{"TENSOR": "SHARD", ...}}}} with every '
        "tensor and the file that it is in; the path of a shard reads that shard alone",
    )


def _numbered(paths: Mapping[str, object]) -> _Numbered | None:
    """What the names of all these files say; None if they are not shards of one set."""
    matches = [_NUMBERED.fullmatch(os.path.basename(path)) for path in paths]
    parts = [match.groups() for match in matches if match is not None]
    if len(parts) != len(matches) or len({(stem, count, end) for stem, _, count, end in parts}) != 1:
        return None
    stem, _, count, end = parts[0]
    present = frozenset(int(number) for _, number, _, _ in parts)
    total = int(count)
    if len(present) < len(parts) or min(present) < 1 or max(present) > total or not 1 < total <= MAX_COUNT:
        return None
    return _Numbered(stem, end, len(count), total, present)


def _twice(names: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors that are in two files."""
    seen: set[str] = set()
    found: dict[str, None] = {}
    for held in names.values():
        found.update(dict.fromkeys(name for name in held if name in seen))
        seen.update(held)
    return list(found)


def _fetch(found: _Numbered) -> str:
    return f"copy or download {found.index_name} again"
