"""What every pass shares that replaces some tensors of a checkpoint and leaves the others alone."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from paramtool.lazy_dataclass import dataclass
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.plan import Plan, Target


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happens to the names of the source in a plan."""

    rest: Checkpoint
    """Everything except what was replaced."""
    untouched: Mapping[str, Entry]
    """Names that are written unchanged."""
    windows: Mapping[str, Entry]
    """Old names that are windows on new tensors."""
    made: frozenset[str]
    """New names."""
    warnings: tuple[str, ...]


def swaps(firsts: Mapping[str, list[str]], consumed: set[str], windows: Container[str]) -> dict[str, tuple[str, ...]]:
    """{old name: the names that replace it in the tree of objects}."""
    swaps = {name: (name,) if name in windows else () for name in consumed}
    return swaps | {first: (*new, *swaps[first]) for first, new in firsts.items()}


def in_order(
    checkpoint: Checkpoint, base: Plan, firsts: Mapping[str, list[str]], windows: Mapping[str, Entry]
) -> Iterator[str]:
    """Every name of the output; new names are at the place of the first old name that they replace."""
    kept = {*base.order, *windows}
    for name in checkpoint.entries:
        yield from firsts.get(name, ())
        if name in kept:
            yield name


def sorted_targets(targets: list[Target], names: Iterable[Alias]) -> tuple[Target, ...]:
    """Targets in the order of the names; a span has the place of the first name on it."""
    position: dict[str, int] = {}
    first: dict[str, int] = {}
    for k, one in enumerate(names):
        position[one.name] = k
        if one.owner != one.name:
            first.setdefault(one.owner, k)
    return tuple(sorted(targets, key=lambda target: position.get(target.name, first.get(target.name, 0))))
