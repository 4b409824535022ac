"""Which of several checkpoints another one was fine-tuned from, by samples of their tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool.commands.diff.same_places import NEAR, is_matrix, same_places
from paramtool.commands.opening import Allowed, opened
from paramtool.commands.progress import Path, Progress, silent
from paramtool.engine.compare.cast_verdicts import REAL
from paramtool.engine.read.elements import number_type
from paramtool.engine.read.sampling import RowMajorBytes
from paramtool.engine.read.source import Source
from paramtool.errors import FIRST, internal
from paramtool.formats.judging import judging
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.display import Displayed
from paramtool.model.view import View, Views

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

TENSORS = 64
"""The most tensors that are sampled: the largest."""
SAMPLE = 4096
"""Elements of a tensor that are compared, from its middle."""
CLEAR = 0.5
"""Its distance is at most this share of that of the next candidate."""


class BaseCandidate(NamedTuple):
    """How far a checkpoint is from the one that is asked about."""

    path: str
    distance: float
    """The norm of the difference of all samples, divided by that of the candidate's; `inf` without common tensors."""
    sampled: int
    """How many tensors of one place in the model, and of one shape, were sampled."""
    same: int
    """How many of these samples are the same bytes."""
    why: str = ""
    """Why it could not be compared."""
    exit_code: int = 0
    """The exit code of the error in `why`, if it could not be read."""
    how: str = ""
    """How its tensors were found where their names differ: `'' -> 'model.' in front of names`, or a dialect."""

    @property
    def shown(self) -> float | None:
        """The distance as JSON has it, which has no infinity."""
        return self.distance if isfinite(self.distance) else None


@frozen(repr=False)
class BaseFound(Displayed):
    """The candidates, the nearest first."""

    path: str
    """The checkpoint whose base was looked for."""
    candidates: tuple[BaseCandidate, ...]
    """The candidates, the nearest first."""

    _facts = "`base`"

    @property
    def base(self) -> str:
        """The candidate that is clearly the base; empty if none is."""
        first, *others = self.candidates
        second = others[0].distance if others else inf
        is_clear = first.distance <= CLEAR * second and first.distance != second
        return first.path if first.distance < NEAR and is_clear else ""

    @property
    def answer(self) -> str:
        """The base, or why none is named."""
        near = [repr(one.path) for one in self.candidates[:2] if one.distance < NEAR]
        if self.base or len(near) < 2:
            return self.base or "none of the candidates is clearly the base"
        return f"none of the candidates is clearly the base: {' and '.join(near)} are about as near"

    _schema = "find-base/1"
    _members = "path base! candidates(path distance=shown sampled same why how)"


@reading
@judging("path", "candidates")
def find_base(
    path: Path,
    candidates: Sequence[Path],
    *,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> BaseFound:
    """Which of some checkpoints another was fine-tuned from: the one whose samples are nearest, and by far.

    Tensors of one shape and one place in the model are sampled, in any types.  Their names are the same, differ in
    front, or are those of two dialects, for which a config.json has to be beside one of the two.  Errors, `allow_class`
    and `allow_unknown` as of `read`; a candidate that cannot be read is an error only if all of them are, and else says
    why, and comes last.
    """
    allowed = Allowed(allow_class, allow_unknown)
    tuned = opened(path, None, progress, allowed).checkpoint
    found, errors = [], []
    with Source(tuned) as source, progress("sample", len(candidates)) as advance:
        views = _largest(tuned)
        for one in candidates:
            try:
                other = opened(one, None, progress, allowed).checkpoint
                found.append(_compared(os.fspath(one), (tuned, other), source, views))
            except Exception as caught:
                errors.append(error := internal(caught))
                why = error.message.removeprefix(f"{os.fspath(one)}: ")
                found.append(BaseCandidate(os.fspath(one), inf, 0, 0, why, error.exit_code))
            advance(1)
    if errors and len(errors) == len(found):
        raise min(errors, key=lambda error: FIRST.index(error.exit_code))
    found.sort(key=lambda one: (bool(one.exit_code), one.distance))
    return BaseFound(os.fspath(path), tuple(found))


def _largest(checkpoint: Checkpoint) -> Views:
    """The tensors of numbers of a model, the largest first."""
    entries = checkpoint.entries
    found = {name: view for name, view in checkpoint.views().items() if entries[name].role == "model" and _counts(view)}
    return dict(sorted(found.items(), key=lambda item: (-item[1].numel, item[0])))


def _counts(view: View) -> bool:
    return view.dtype.block_elements == 1 and view.dtype.name.startswith(REAL) and view.numel > 1


def _compared(path: str, both: tuple[Checkpoint, Checkpoint], source: Source, views: Views) -> BaseCandidate:
    """The distance of a fine-tune, the first of both, from a candidate, the second."""
    tuned, base = both
    pairs, how = same_places(tuned, base, views, _counts)
    if any(map(is_matrix, views.values())):
        pairs = [pair for pair in pairs if pair.is_matrix]
    chosen = sorted(pairs, key=lambda pair: -pair.tuned.numel)[:TENSORS]
    if not chosen:
        return BaseCandidate(path, inf, 0, 0, "no tensor of the same name and shape")
    apart = norm = 0.0
    same = 0
    with Source(base) as other:
        for pair in chosen:
            x, y = _sample(other, pair.base), _sample(source, pair.tuned)
            squares, own = float(((x - y) ** 2).sum()), float((x * x).sum())
            same += squares == 0
            apart, norm = apart + squares, norm + own
    return BaseCandidate(path, sqrt(apart / norm) if norm else inf, len(chosen), same, how=how)


def _sample(source: Source, view: View) -> Array:
    """Numbers from the middle of a tensor as float64, in row-major order; what is not finite counts as 0."""
    import numpy as np

    size, count = view.dtype.block_bytes, min(SAMPLE, view.numel)
    start = (view.numel - count) // 2 * size
    raw = RowMajorBytes(source, view).part(start, start + count * size)
    numbers = np.frombuffer(raw, number_type(view.dtype)).astype("f8")
    found: Array = np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
    return found
