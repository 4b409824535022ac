"""What rearranging does to the tensors of a source: which only get another name, and which are made of which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import chain
from math import prod

from paramtool.errors import LayoutError, listed, plural
from paramtool.lazy_dataclass import frozen
from paramtool.parts.pieces import Stored


@frozen
class Rearranged:
    """The tensors of a source and those of an output that hold the same parts."""

    read: tuple[Stored, ...]
    """Tensors of the source; others stay as they are."""
    made: tuple[Stored, ...]
    """Tensors of the output."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """{name of the source, or one that is restored: its rank in the first order}; others follow what they are of."""


class HandedOver:
    """A change that can be taken once, so that its pieces are freed when the new tensors are planned."""

    def __init__(self, change: Rearranged) -> None:
        self._changes = [change]

    def take(self) -> Rearranged:
        """The change; it is there once."""
        return self._changes.pop()


@frozen
class SortedTensors:
    """What becomes of the tensors of a source."""

    renamed: Mapping[str, str]
    """{old name: new name} of tensors that only get another name."""
    made: tuple[Stored, ...]
    """New tensors."""
    read: Mapping[str, Stored]
    """{old name: tensor} of those that they are made of."""

    def named(self) -> SortedTensors:
        """The same without pieces: a model has many, and most of the plan needs only names."""
        return SortedTensors(self.renamed, (), dict.fromkeys(self.read, Stored("", (), ())))


def sorted_out(change: Rearranged) -> SortedTensors:
    """Which tensors get another name only, and which are made."""
    uses = Counter(chain.from_iterable(tensor.parts for tensor in change.made))
    read = [(tensor, tensor.parts) for tensor in change.read]
    holders = Counter(chain.from_iterable(parts for _, parts in read))
    alone = {parts[0]: tensor for tensor, parts in read if len(parts) == 1 and uses[parts[0]] == 1 == holders[parts[0]]}
    renamed: dict[str, str] = {}
    made = []
    for tensor in change.made:
        parts = tensor.parts
        source = alone.get(parts[0]) if len(parts) == 1 else None
        if (
            source is not None
            and source.name not in renamed
            and (source.shape == tensor.shape and source.pieces[0] == tensor.pieces[0])
        ):
            renamed[source.name] = tensor.name
        else:
            made.append(tensor)
    return SortedTensors(renamed, tuple(made), {one.name: one for one in change.read if one.name not in renamed})


def renames(change: Rearranged) -> Mapping[str, str]:
    """{old name: new name} of tensors that stay what they are, also of those that keep their names."""
    return sorted_out(change).renamed


def check_nothing_lost(where: str, change: Rearranged) -> None:
    """LayoutError if tensors of the source hold what no new tensor does."""
    there, wanted = _counts(change.read), _counts(change.made)
    lost = [part for part, count in there.items() if wanted.get(part, 0) < count]
    if lost:
        raise LayoutError(
            listed(f"{where}: would lose {plural(len(lost), 'part')}:", [repr(part) for part in lost]),
            hint="no tensor of the new layout has a place for them",
        )


def _counts(tensors: Iterable[Stored]) -> dict[str, int]:
    """{part: how many of its elements tensors hold}; what is held twice counts once."""
    found: dict[str, int] = {}
    for part, _, shape in dict.fromkeys(chain.from_iterable(tensor.boxes for tensor in tensors)):
        found[part] = found.get(part, 0) + prod(shape)
    return found
