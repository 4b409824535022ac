"""How two checkpoints differ, and by which map they are the same weights where they only are in other places."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from paramtool.commands._differences import ONLY_THERE, named_objects, object_differences
from paramtool.commands.diff.comparing import Comparing
from paramtool.commands.diff.tied_parts import MadeFrom
from paramtool.commands.diff.ties import ties
from paramtool.commands.diff.warned import warnings
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import MEMORY_NBYTES, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.commands.training_state import training_state
from paramtool.engine.compare.sides import Sides
from paramtool.errors import plural, some
from paramtool.formats import OTHER_FORM
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.object_tree import is_flat
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import GRAPH, Checkpoint
from paramtool.model.diff import (
    CAST,
    DEQUANTISED,
    LAYOUT,
    RENAMED,
    ROUNDED,
    SAME,
    WORDS,
    TensorDiff,
    counts,
)
from paramtool.model.display import Displayed, Row, some_rows
from paramtool.model.inflating import limiting
from paramtool.passes.module_versions import version_differences, without_versions
from paramtool.passes.nesting import nesting_differences

RECORDED = ("safetensors", "sharded")
"""What the names of formats with an alias record begin with."""


@dataclass(frozen=True, slots=True, repr=False)
class Diffed(Displayed):
    """How two checkpoints differ."""

    a: str
    """The first checkpoint, as it was given."""
    b: str
    """The second checkpoint, as it was given."""
    tensors: tuple[TensorDiff, ...]
    """A verdict for each tensor of both."""
    ties: tuple[str, ...] = ()
    """Names that share memory in one of them and not in the other, or that share other elements."""
    objects: tuple[str, ...] = ()
    """Differences in what is not a tensor."""
    metadata: tuple[str, ...] = ()
    """Differences in the files' own strings."""
    notes: tuple[str, ...] = ()
    """What was assumed or not compared."""
    nbytes_read: int = 0
    """Bytes that were read."""
    seconds: float = 0.0
    """How long it took, in seconds."""

    _facts = "`is_same`, or `judge(strict=..., tolerance=...)`"

    @property
    def is_same(self) -> bool:
        """Whether they are the same weights, as `--exit-code` asks."""
        return self.judge()

    def judge(self, *, strict: bool = False, tolerance: float | None = None) -> bool:
        """Whether they are the same weights, as `--exit-code` with `--strict` and `--tolerance` asks."""
        kinds = {SAME} if strict else {SAME, RENAMED, LAYOUT, CAST, DEQUANTISED, GRAPH}
        for one in self.tensors:
            near = one.change is not None and one.change.largest is not None and tolerance is not None
            if one.kind == ROUNDED and near and one.change.largest <= tolerance:  # type: ignore[union-attr,operator]
                continue
            if one.kind not in kinds:
                return False
        return not (self.ties or self.objects or (strict and self.metadata))

    def _picture(self) -> str:
        """The tensors by verdict."""
        from paramtool.commands.report.differences import TINTS
        from paramtool.drawing.notebook import small_bar
        from paramtool.drawing.strips import stacked

        many = counts(self.tensors)
        parts = stacked((WORDS[kind], count, TINTS[kind], "", plural(count, "tensor")) for kind, count in many.items())
        return small_bar(parts, "tensors by verdict") if parts else ""

    def _rows(self, most: int) -> Iterator[Row]:
        """The verdict, and each tensor that differs."""
        yield "a", self.a
        yield "b", self.b
        yield "verdict", ", ".join(f"{count} {kind}" for kind, count in counts(self.tensors).items()) or "no tensors"
        others = (one for one in self.tensors if one.kind != SAME)
        yield from some_rows(most, "differs", (f"{one.kind}: {', '.join(one.b or one.a)}" for one in others))
        yield from some_rows(most, "ties", self.ties)
        yield from some_rows(most, "objects", self.objects)


@limiting
def diff(
    a: Path,
    b: Path,
    *,
    only: str | None = None,
    memory: int = MEMORY_NBYTES,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Diffed:
    """How checkpoint `b` differs from `a`: tensors by name and by content, ties, objects and metadata.

    A tensor that differs is looked for under other names, in other layouts and dialects, and as a cast; every verdict
    is proved by comparing all bytes.  `only` compares one section of both; `memory` is in bytes.  Errors, `allow_class`
    and `allow_unknown` as of `read`.
    """
    began = time.monotonic()
    allowed = Allowed(allow_class, allow_unknown)
    found = [opened(path, None, progress, allowed) for path in (a, b)]
    first, second = (one.checkpoint for one in found)
    if only is not None:
        first, second = section_of(first, only), section_of(second, only)
    with Sides(first, second, memory) as sides:
        work = Comparing(first, second, sides, memory)
        tensors = work.all(progress)
        nbytes = sides.nbytes_read
    tied = ties(
        first, second, tensors, (os.fspath(a), os.fspath(b)), made=MadeFrom(work.sources, frozenset(work.copied))
    )
    first, second = work.as_made
    has_keys = _says_nesting(first) and _says_nesting(second)
    plain = (replace(one, objects=without_versions(one.objects)) if has_keys else one for one in (second, first))
    objects = object_differences(*plain, tensors=False)
    if not named_objects(second) and ONLY_THERE in objects.differences:  # attributes: no object that anyone loads
        objects.differences.remove(ONLY_THERE)
    if has_keys:
        objects.differences += version_differences(second.objects, first.objects)
        objects.differences += [*nesting_differences(second.objects, first.objects, tuple(objects.differences))]
    metadata = [text for text in objects.differences if text.startswith("metadata ")]
    return Diffed(
        os.fspath(a),
        os.fspath(b),
        tensors,
        (*tied.differences, *work.untied),
        (
            *(_of_sides(text) for text in objects.differences if text not in metadata),
            *_lost_objects(first, second, objects.notes),
        ),
        tuple(map(_of_sides, metadata)),
        (
            *map(_of_sides, objects.notes),
            *_noted(first, second),
            *_not_looked_at(*found),
            *_not_compared([training_state(path, one.checkpoint) for path, one in zip((a, b), found, strict=True)]),
            *warnings(tensors, tied.without_room, work.otherwise),
        ),
        nbytes,
        time.monotonic() - began,
    )


def _says_nesting(checkpoint: Checkpoint) -> bool:
    """Whether the keys of its tensors are those that a program gave them.

    Other formats than torch's and those with an alias record have only names, or make keys of them: DCP turns numbers
    into text.  A record has the keys that names do not say.
    """
    if checkpoint.format.startswith("torch"):
        return True
    return checkpoint.format.startswith(RECORDED) and not is_flat(checkpoint.objects, tuple(checkpoint.entries))


def _noted(a: Checkpoint, b: Checkpoint) -> Iterator[str]:
    """What the files of the two hold and nothing was compared of, such as strings."""
    return _said_of((a.left_out, b.left_out))


def _not_looked_at(*sides: Weights) -> Iterator[str]:
    for side, one in zip("AB", sides, strict=True):
        if one.forms:
            yield f"{side}: not looked at: {some(one.forms, 3)}, which {OTHER_FORM}"


def _not_compared(states: Sequence[str]) -> Iterator[str]:
    """What the folders hold beside weights; one sentence where both hold the same."""
    return _said_of(
        [[f"not compared: {state}; compare the files by their own paths"] if state else [] for state in states]
    )


def _said_of(sides: Sequence[Sequence[str]]) -> Iterator[str]:
    """What is said of each of the two; what is said of both is one sentence."""
    for text in dict.fromkeys(chain.from_iterable(sides)):
        yield f"{' and '.join(side for side, said in zip('AB', sides, strict=True) if text in said)}: {text}"


def _of_sides(text: str) -> str:
    """A difference as `verify` words it, of A and B."""
    for word, side in (("the source's", "A's"), ("the source", "A"), ("the output", "B")):
        text = text.replace(word, side)
    return text


def _lost_objects(a: Checkpoint, b: Checkpoint, notes: Sequence[str]) -> Iterator[str]:
    """Objects that only the first has, where the format of the second has no room for them."""
    if notes and not named_objects(b):
        yield from (f"object {key!r}: in A only" for key in named_objects(a))
