"""Comparing the contents of a checkpoint: each pass sees what the previous one left unmatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paramtool.commands.progress import MEMORY_NBYTES, MIN_EQUAL_NBYTES, Advance, Progress, silent
from paramtool.lazy_dataclass import frozen
from paramtool.model import quantised
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.match import Content, Match
from paramtool.passes.dedup import candidates as questions
from paramtool.passes.dedup.candidates import Candidate

if TYPE_CHECKING:
    from paramtool.engine.read.streams import Pool


@frozen
class Looking:
    """What is looked for, and with how much memory."""

    min_nbytes: int = MIN_EQUAL_NBYTES
    """Smaller tensors are not compared."""
    across_roles: bool = False
    """Whether model weights may stand on the optimizer's state, or on an EMA copy."""
    memory: int = MEMORY_NBYTES
    """What may be held in memory of what is compared."""


def compare(
    checkpoint: Checkpoint, graph: AliasGraph, looking: Looking | None = None, progress: Progress = silent
) -> Content:
    """Equal windows, constants, slices, transposes and casts, every one proved by its bytes.

    Reads samples, and the whole of what they leave open.
    """
    looking = looking or Looking()
    found = questions.candidates(checkpoint, graph, looking.min_nbytes, looking.across_roles)
    if not found:
        return Content()
    from paramtool.engine.compare.equal import constants, equal_classes
    from paramtool.engine.read.streams import Pool

    total = sum(one.view.nbytes for one in found)
    with Pool(checkpoint, looking.memory) as pool, progress("compare", total) as advance:
        packed = quantised.groups(checkpoint.entries)
        scales = questions.scales_of(checkpoint, packed, found)
        groups = questions.equal_groups([*found, *scales])
        equal = questions.with_scales(checkpoint.entries, packed, list(equal_classes(pool, groups, advance)), scales)
        rest = questions.distinct(found, equal)
        same = constants(pool, [(one.name, one.view) for one in rest], advance)
        rest = questions.distinct(rest, (), {*same, *quantised.parts(packed)})
        matches = tuple(_matches(pool, rest, advance))
        for one in equal:  # under every name that has the value, not only the one that stood for equal ones
            for element in {same[name] for name in one.names if name in same}:
                same |= dict.fromkeys(one.names, element)
        return Content(tuple(equal), same, matches, pool.nbytes_read)


def _matches(pool: Pool, rest: list[Candidate], advance: Advance) -> Iterator[Match]:
    """What can be taken from others, one kind after the other: what was found may still hold others."""
    from paramtool.engine.compare.axes import transposes
    from paramtool.engine.compare.casts import casts
    from paramtool.engine.compare.equal import reshaped
    from paramtool.engine.compare.slices import proved, slices

    inner = {one.name for one in rest if not one.is_whole}
    searches: tuple[Callable[[set[str]], Iterator[Match]], ...] = (
        lambda done: proved(pool, {one.name: one.view for one in rest}, questions.windows(rest), advance),
        lambda done: reshaped(pool, questions.shape_groups(rest), advance),
        lambda done: transposes(pool, questions.transpose_groups(rest), done | inner, advance),
        lambda done: slices(pool, questions.row_groups(rest, done), advance),
        lambda done: casts(pool, questions.cast_groups(rest), done, advance),
    )
    done: set[str] = set()
    for search in searches:
        found = list(search(done))
        yield from found
        done |= {match.name for match in found}
