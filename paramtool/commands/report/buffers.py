"""Storages that several tensors have parts of, as rulers: fused buffers, ranks' flat vectors, gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paramtool.commands.inspect import Inspection
from paramtool.commands.report.sharing import NUMBERS
from paramtool.drawing.palette import SERIES
from paramtool.drawing.strips import Segment
from paramtool.errors import plural
from paramtool.layouts.spec import text as spec_text
from paramtool.model.alias import FusedBlock
from paramtool.model.display import size

MAX_SEGMENTS = 240
"""Parts of one ruler; neighbours behind these are drawn as one."""


class StorageRuler(NamedTuple):
    """A storage, its parts, and how many others look like it."""

    words: str
    nbytes: int
    segments: tuple[Segment, ...]
    kinds: tuple[tuple[str, str], ...]
    """(tint, what has it)"""
    parts: tuple[tuple[str, int, int], ...]
    alike: int
    unused: int


def buffers(found: Inspection) -> list[StorageRuler]:
    """Every storage of several tensors, the largest first; those that look alike are one."""
    alike: dict[object, list[FusedBlock]] = {}
    for block in found.graph.fused:
        geometry = tuple((NUMBERS.sub("*", name), start, stop) for name, start, stop in block.parts)
        network = found.fused.get(block.storage)
        alike.setdefault((block.nbytes, geometry, network and str(network.spec)), []).append(block)
    made = [_buffer(blocks, found) for blocks in alike.values()]
    return sorted(made, key=lambda one: -one.nbytes)


def _buffer(blocks: Sequence[FusedBlock], found: Inspection) -> StorageRuler:
    block = blocks[0]
    tints = _tints(name for name, _, _ in block.parts)
    segments = [
        Segment(start, stop, _short(name), tints[_kind(name)], "", f"{name}, bytes {start:,} to {stop:,}, "
                f"{size(stop - start)}")
        for name, start, stop in block.parts
    ]  # fmt: skip
    gaps = [*block.gaps, *([(block.nbytes - block.tail, block.nbytes)] if block.tail else [])]
    segments += (
        Segment(start, stop, "gap", "blank", "unused", f"bytes {start:,} to {stop:,}, {size(stop - start)} that no "
                "tensor looks at")
        for start, stop in gaps
    )  # fmt: skip
    unused = sum(stop - start for start, stop in gaps)
    segments.sort(key=lambda one: one.start)
    kinds = tuple(dict.fromkeys((tint, kind) for kind, tint in tints.items()))
    return StorageRuler(
        _words(block, found), block.nbytes, _bounded(segments), kinds, block.parts, len(blocks) - 1, unused
    )


def _words(block: FusedBlock, found: Inspection) -> str:
    """What a storage is."""
    network = found.fused.get(block.storage)
    what = plural(len(block.parts), "tensor")
    if network is not None:
        return (
            f"{network.at or 'the network'}: {spec_text(network.spec)}, {what} in one buffer in {network.layout} order"
        )
    first, last = block.parts[0][0], block.parts[-1][0]
    return f"{what} in one storage, {first} to {last}" if len(block.parts) > 1 else f"{first} in a larger storage"


def _bounded(segments: list[Segment]) -> tuple[Segment, ...]:
    """The first segments, and the others as one."""
    if len(segments) <= MAX_SEGMENTS:
        return tuple(segments)
    rest = segments[MAX_SEGMENTS:]
    more = plural(len(rest), "more tensor")
    words = f"bytes {rest[0].start:,} to {rest[-1].stop:,}, drawn as one"
    return (*segments[:MAX_SEGMENTS], Segment(rest[0].start, rest[-1].stop, more, "grey", "", words))


def _kind(name: str) -> str:
    """What a part is, without numbers: its last words."""
    return NUMBERS.sub("*", _short(name))


def _short(name: str) -> str:
    words = re.split(r"[./]", name)
    last = words[-1]
    return ".".join(words[-2:]) if len(words) > 1 and last in ("weight", "bias") else last


def _tints(names: Iterable[str]) -> dict[str, str]:
    """{kind: tint}; the kinds behind the last tint have that of no kind."""
    kinds = list(dict.fromkeys(map(_kind, names)))
    return {kind: SERIES[k] if k < len(SERIES) - 1 else "grey" for k, kind in enumerate(kinds)}
