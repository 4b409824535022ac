"""The files beside the weights of two folders, compared byte by byte: optimizer.pt, scheduler.pt, config.json."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

from paramtool.commands import _casts, _ties, adapter_config
from paramtool.commands.output.dialect_folder import made_of
from paramtool.commands.output.sidecars import Sets, Sidecars, of_place
from paramtool.commands.progress import Advance, Progress
from paramtool.errors import FormatError, LayoutError
from paramtool.formats import hf_config
from paramtool.formats.files import holds, same_bytes, unreadable
from paramtool.formats.record import edits
from paramtool.grouping import omit
from paramtool.passes.objects_differ import Comparison

NOTHING: Mapping[str, str] = {}


def beside(
    output: str, found: Sets, against: str, expected: Sets, *, progress: Progress, without: Collection[str] = (),
    instead: Mapping[str, str] = NOTHING,
) -> Comparison:  # fmt: skip
    """Compare every file that comes along from `against`, and look for others in `output`; notes say what does not.

    Files `without` are compared otherwise, and `instead` has those that took the place of the source's, or were added.
    FormatError where a file or a folder cannot be read.
    """
    try:
        mine, theirs = _all(output, found, against), _all(against, expected, output)
    except OSError as error:
        raise unreadable(os.fsdecode(error.filename or output), error) from None
    own, other = (omit(files, without) for files in (mine.files, {**theirs.files, **instead}))
    total = sum(os.path.getsize(path) for name, path in other.items() if name in own)
    with progress("files", total) as advance:
        retied = {} if hf_config.NAME in instead else _retied(expected, found)
        recorded = (edits.types_of(one.path, one.checkpoint.metadata) for sets in found.values() for one in sets)
        if hf_config.NAME not in instead and any(one.dequantised for one in recorded):
            other.pop(hf_config.QUANTISATION, None)
            retied |= _casts.new_config(against, retied)
        made = {**_made(against, expected), **_adapter(against, expected, found), **retied}
        again = _made(output, found)  # what an output lacks, and is calculated of it again, to the byte
        gone = [name for name in other if name not in own and name in again and holds(other[name], again[name])]
        differences = [*_differences(own, omit(other, gone), advance, made)]
    notes = [f"not compared: {text}" for text in theirs.left]
    notes += (f"not compared, and in the output alone: {text}" for text in mine.left if text not in theirs.left)
    return Comparison(differences, notes)


def _all(folder: str, sets: Sets, elsewhere: str) -> Sidecars:
    """What comes along from a folder and from the folders inside that hold weights, by its name there."""
    files: dict[str, str] = {}
    left: list[str] = []
    for place in {"": None, **sets}:
        one = of_place(folder, place, sets, elsewhere)
        files |= {f"{place}/{name}" if place else name: path for name, path in one.files.items()}
        left += one.left
    return Sidecars(files, tuple(left))


def _made(folder: str, sets: Sets) -> dict[str, bytes]:
    """What a conversion of a folder calculates beside the weights: {name: content}."""
    return {
        f"{place}/{name}" if place else name: content
        for place, mine in sets.items()
        if mine
        for name, content in made_of(os.path.join(folder, place) if place else folder, mine[0]).items()
    }


def _adapter(against: str, expected: Sets, found: Sets) -> dict[str, bytes]:
    """The config of an adapter as a conversion of the source writes it: {name: content}."""
    sides = [sets.get("", []) for sets in (expected, found)]
    if not all(sides):
        return {}
    old, new = (side[0].checkpoint.entries for side in sides)
    try:
        return adapter_config.rewritten(against, old, new)
    except (FormatError, LayoutError):
        return {}


def _retied(expected: Sets, found: Sets) -> dict[str, bytes]:
    """The configs of models of which names were untied or tied: {name: content}."""
    made: dict[str, bytes] = {}
    for place, mine in expected.items():
        for source, output in zip(mine[:1], found.get(place, ())[:1], strict=False):
            before, known = (edits.ties_of(one.checkpoint.path, one.checkpoint.metadata) for one in (source, output))
            if known == before:
                continue
            config = _ties.new_config(source.checkpoint, [*known.untied], known.tied)
            made |= {f"{place}/{name}" if place else name: content for name, content in config.items()}
    return made


def _differences(
    mine: Mapping[str, str], theirs: Mapping[str, str], advance: Advance, made: Mapping[str, bytes]
) -> Iterator[str]:
    for name, path in theirs.items():
        if name not in mine:
            yield f"file {name!r}: is missing"
        elif not (holds(mine[name], made[name]) if name in made else same_bytes(mine[name], path, advance)):
            yield f"file {name!r}: has other bytes"
    for name in (name for name in mine if name not in theirs):
        if name not in made:
            yield f"file {name!r}: the source does not have it"
        elif not holds(mine[name], made[name]):
            yield f"file {name!r}: is not what a conversion of the source calculates"
