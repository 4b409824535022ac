"""Fused attention, gated MLPs and experts as figures: which rows are queries, keys and values, gate and up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands.inspect import Inspection
from paramtool.drawing.palette import SERIES
from paramtool.drawing.rows import Band, Grid
from paramtool.errors import ParamtoolError, plural

if TYPE_CHECKING:
    from paramtool.parts.pieces import Digit, Piece
    from paramtool.passes.parts.fuse import Joint
    from paramtool.passes.parts.groups import SeenGroup

MAX_RUNS = 400
"""Runs of rows of one tensor: one with more is not drawn."""
TERM_WORDS = {"q": "queries", "k": "keys", "v": "values", "gate": "gate", "up": "up", "down": "down"}
ORDER = ("q", "k", "v", "gate", "up", "down")
"""Terms whose tints are the same in every figure."""


class PartsFigure(NamedTuple):
    """Fused tensors of one kind, in all layers of a tower."""

    at: str
    words: str
    grids: tuple[Grid, ...]
    terms: tuple[tuple[str, str], ...]
    """(tint, what has it)"""


def parts_figures(found: Inspection) -> Iterator[PartsFigure]:
    """A figure for each kind of fused tensor whose layout is known; words for the others."""
    for group in found.parts.groups if found.parts else ():
        if group.form != "fused":
            continue
        joints = _joints(found, group) if group.layout else []
        grids = [(one, made) for one in joints if (made := _grid(one)) is not None]
        terms = {term: None for one, _ in grids for term in one.described.parts}
        yield PartsFigure(
            ", ".join(f"{group.at}.{name}".lstrip(".") for name in group.names),
            _words(group),
            tuple(made for _, made in grids),
            tuple((tint_of(term), TERM_WORDS.get(term, term)) for term in terms),
        )


def _words(group: SeenGroup) -> str:
    modules = plural(group.modules, "module")
    if group.layout:
        return f"{group.layout}, as {group.source} says, in {modules}"
    if group.pattern:
        return f"{group.pattern}, as {group.source} says, in {modules}"
    fits = ", ".join(fit.layout for fit in group.fits)
    return f"the layout is not known: {fits} fit the shape, and {group.decides} decides; in {modules}"


def _joints(found: Inspection, group: SeenGroup) -> list[Joint]:
    """The fused weights of the first module; none where a fact is missing."""
    from paramtool.commands._parts_source import config_beside, shapes_of
    from paramtool.commands.unfuse_seen import unfused
    from paramtool.parts.facts import NONE
    from paramtool.parts.known_model import KnownModel
    from paramtool.passes.parts.fuse import KnownParts

    with suppress(ParamtoolError):
        model = KnownModel(config_beside(found.checkpoint.files[0].path))
        shapes = shapes_of(found.checkpoint)
        inside = {name: shape for name, shape in shapes.items() if name.startswith(group.first)}
        patterns = [f"{group.first}.{name}".lstrip(".") for name in group.names]
        at = patterns if group.kind != "experts" else [group.first]
        known = KnownParts(inside, model.sizes, packing=model.packing)
        made = unfused(found.checkpoint, at, NONE, known).joints
        return [one for one in made if len(one.stored.shape) > 1 and not one.described.companion]
    return []


def _grid(joint: Joint) -> Grid | None:
    """The rows and columns of a fused tensor; of stacks those of the first expert."""
    shape = joint.stored.shape
    term_of = {name: term for term, names in joint.described.parts.items() for name in names}
    axis = joint.described.along
    pieces = list(joint.stored.pieces)
    if len(shape) == 3:
        pieces = [one for one in pieces if not one.at[0]]
    runs = list(islice(_runs(pieces, term_of, axis), MAX_RUNS + 1))
    if len(runs) > MAX_RUNS or not runs:
        return None
    rows, columns = shape[-2:]
    length, is_row = shape[axis], axis == len(shape) - 2
    if sum(stop - start for start, stop, _ in runs) != length:
        return None
    bands = tuple(
        Band(0.0, start / length, 1.0, stop / length, term, tint_of(term))
        if is_row
        else Band(start / length, 0.0, stop / length, 1.0, term, tint_of(term))
        for start, stop, term in runs
    )
    words = f"{list(shape)}, the first expert" if len(shape) == 3 else str(list(shape))
    return Grid(joint.stored.name, words, rows, columns, bands)


def _runs(pieces: list[Piece], term_of: dict[str, str], axis: int) -> Iterator[tuple[int, int, str]]:
    """(start, stop, term) along an axis, of the places that pieces have there; neighbours of one term are one."""
    found: list[tuple[int, int, str]] = []
    for piece in pieces:
        digits = sorted((one for own in piece.digits for one in own if one.axis == axis), key=lambda one: one.step)
        length, outer = _inner(digits)
        if len(found) > 16 * MAX_RUNS:
            return
        for values in islice(product(*(range(one.length) for one in outer)), 16 * MAX_RUNS):
            start = piece.at[axis] + sum(k * one.step for k, one in zip(values, outer, strict=True))
            found.append((start, start + length, term_of.get(piece.part, piece.part)))
    joined: list[tuple[int, int, str]] = []
    for start, stop, term in sorted(set(found)):
        if joined and joined[-1][1] == start and joined[-1][2] == term:
            joined[-1] = (joined[-1][0], stop, term)
        else:
            joined.append((start, stop, term))
    yield from joined


def _inner(digits: list[Digit]) -> tuple[int, list[Digit]]:
    """How many indexes follow each other, and the digits that skip others; digits ascend by their steps."""
    length = 1
    for k, one in enumerate(digits):
        if one.length > 1 and one.step != length:
            return length, digits[k:]
        length *= one.length
    return length, []


def tint_of(term: str) -> str:
    """The tint of a part."""
    head = term.partition(".")[0]
    return SERIES[ORDER.index(head) % 3 + (3 if head in ORDER[3:] else 0)] if head in ORDER else "grey"
