"""Second copies: tensors of the second that only use what other tensors of it use, so that the first has none for them.

    A  weight            B  weight transposed, and the same once more

A program adds up the two biases of a cell, or reads both of two layers.  Names that share memory in the second are one
tensor, and those of the first as many tensors as names: that they are untied is a verdict of its own.  A map that takes
some lines more than once and others for the first time is a map as any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from paramtool.commands.diff.settled import Settled
from paramtool.model.tiling import unread
from paramtool.model.view import View


class TakenTwice:
    """Which tensors take only what others have taken."""

    def __init__(self, work: Settled) -> None:
        self._work = work
        self._tied, self._shared = (
            {view for view, count in Counter(side.values()).items() if count > 1} for side in (work.a, work.b)
        )
        """Windows of the first, and of the second, that have several names."""
        self._makers: dict[str, str] = {}
        """{tensor of the first: the first tensor of the second that was made of it here}"""

    def is_copy(self, new: str, used: Iterable[tuple[str, View]]) -> bool:
        """Whether others have taken all that a tensor would be made of: `used` are names of the first and windows."""
        work = self._work
        if work.b[new] in self._shared and self._is_found(new):
            return False
        return all(work.a[old] not in self._tied and not unread(window, work.used.get(old, ())) for old, window in used)

    def spare(self, old: str, new: str) -> str:
        """The name by which a whole tensor of the first is taken: of several, one that has no verdict."""
        work = self._work
        view = work.a[old]
        if view not in self._tied or old in work.left_a or view.numel != work.b[new].numel:
            return old
        return next((name for name, one in work.left_a.items() if one == view), old)

    def _is_found(self, new: str) -> bool:
        """Whether another name of the same memory has a verdict."""
        view = self._work.b[new]
        return any(other in self._work.found for other, one in self._work.b.items() if one == view)

    def made(self, new: str, olds: Iterable[str]) -> None:
        """Note what a tensor is made of."""
        for old in olds:
            self._makers.setdefault(old, new)

    def note(self, new: str, olds: Iterable[str]) -> None:
        """Say of a tensor whose elements of the first others have."""
        names = list(olds)
        other = next((self._makers[old] for old in names if old in self._makers), "")
        said = f", as {other!r} is" if other else ", which others are made of"
        self._work.twins["b", new] = f"made of {' and '.join(map(repr, names[:2]))} of A{said}"


def by_own_names(work: Settled, names: Iterable[str]) -> list[str]:
    """Tensors of the second, those first whose names the first has: what is taken twice is theirs."""
    return sorted(names, key=lambda name: name not in work.a)
