"""Changes that have a known reason: sums of biases, a number that is added to a bias, a norm that is stored less 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool.commands.diff.settled import Settled, may_be_cast
from paramtool.commands.diff.tables import Proposal, of_networks
from paramtool.engine.compare.casts import cast_raw
from paramtool.engine.compare.changes import are_one, is_floating, rounded, shift_between, shift_of
from paramtool.engine.compare.sides import Sides, is_number
from paramtool.engine.read.elements import Array, number_type
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import same_targets
from paramtool.errors import LayoutError
from paramtool.layouts.networks import Network, as_stored
from paramtool.layouts.spec import Cell
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.diff import LED_BACK
from paramtool.model.dtype import DType
from paramtool.model.plan import Target
from paramtool.model.view import View, Views
from paramtool.passes.rnn.find import Found

MAX_CALCULATED_NBYTES = 256 << 20
"""The largest tensor that is calculated to be compared."""
NORM = re.compile(r"(^|[._])(.*norm.*|ln|ln_?[0-9a-z]*|rms.*|scale|gamma)([._]|$)", re.IGNORECASE)
"""Names of norms, as a word of a tensor's name."""


class Explained(NamedTuple):
    """A tensor of the second checkpoint that holds other numbers for a known reason."""

    olds: tuple[str, ...]
    name: str
    how: str
    layout: str = ""


def calculated(one: Proposal, made_of: Source, there: View, source: Source) -> str:
    """What explains that a tensor is what arithmetic makes of others, in words; "" where it is not."""
    why = reason(one.target)
    if not why:
        return ""
    if is_calculated(one.target, made_of, there, source):
        return f"explained by {why}, {one.how}"
    if one.target.dtype == there.dtype or not may_be_cast(one.target.view, there):
        return ""
    types = f"{one.target.dtype.name} and cast to {there.dtype.name}"
    if is_calculated(one.target.cast(there.dtype), made_of, there, source):
        return f"explained by {why}, calculated in {types}, {one.how}"
    if _is_sum_of_casts(one.target, made_of, there, source):
        return f"explained by {why}, of {types} first, {one.how}"
    return ""


def _is_sum_of_casts(target: Target, made_of: Source, there: View, source: Source) -> bool:
    """Whether a tensor is the sum of others that were cast to its type first, in that type."""
    import numpy as np

    from paramtool.engine.read.elements import number_type

    if target.nbytes > MAX_CALCULATED_NBYTES or there.shape != target.shape or not there.is_contiguous:
        return False
    kind = np.dtype(number_type(there.dtype))
    made = source.array(there).all().view(kind).reshape(-1)
    for copy in target.copies:
        here, total = copy.destination, kind.type(copy.shift)
        with np.errstate(all="ignore"):
            for sign, term in copy.terms:
                made_of.prove(int(term.storage))
                part = cast_raw(made_of.array(term).all(), term.dtype, there.dtype)
                total = total + (np.negative(part) if sign < 0 else part)
        steps = [stride * kind.itemsize for stride in here.strides]
        window = np.lib.stride_tricks.as_strided(made[here.offset :], here.shape, steps)
        if np.broadcast_to(total, here.shape).tobytes() != window.tobytes():
            return False
    return True


def is_calculated(target: Target, made_of: Source, there: View, source: Source) -> bool:
    """Whether a tensor is what arithmetic makes of others: the sum of two biases, a bias and its forget bias."""
    is_alike = (there.shape, there.dtype) == (target.shape, target.dtype)
    if not is_alike or all(copy.is_plain for copy in target.copies):
        return False
    try:
        return same_targets((source, made_of), [(there, target)])[0]
    except LayoutError:  # a sum that overflows
        return False


def without_zeros(target: Target, made_of: Source) -> Target:
    """The same target, each of whose sums lacks what is zero: the sum of a bias and of zeros is this bias."""
    copies = []
    for copy in target.copies:
        terms = copy.terms
        if len(terms) > 1:
            terms = tuple(term for term in terms if not is_number(made_of, term[1], 0.0)) or terms[:1]
        copies.append(replace(copy, terms=terms))
    return replace(target, copies=tuple(copies))


def reason(target: Target) -> str:
    """What arithmetic a target needs, in words; "" where only bits move."""
    if all(len(copy.terms) <= 1 and not copy.shift for copy in target.copies):
        return ""
    summed = any(len(copy.terms) > 1 for copy in target.copies)
    return "sums of biases" if summed else "a number that is added (a forget bias)"


def read_back(
    checkpoints: tuple[Checkpoint, Checkpoint], networks: tuple[Sequence[Found], Sequence[Found]],
    left: tuple[Views, Views], sides: Sides,
) -> Iterator[Explained]:  # fmt: skip
    """Tensors of the second that arithmetic makes those of the first of: A has the sums of B's biases."""
    (a, b), (mine, theirs) = checkpoints, networks
    for proposed in of_networks(b, a, (theirs, mine)):
        for proposal in proposed:
            short = without_zeros(proposal.target, sides.b.source)
            one = proposal._replace(target=short) if reason(short) else proposal
            name = one.target.name
            news = [new for new in _names(one) if new in left[1] and _is_read(left[1][new], one.target)]
            why = reason(one.target)
            if not news or not why or name not in left[0]:
                continue
            if is_calculated(one.target, sides.b.source, left[0][name], sides.a.source):
                for new in news:
                    yield Explained((name,), new, f"explained by {why} in A, {one.how} (B -> A)", one.layout)


def _is_read(view: View, target: Target) -> bool:
    """Whether a target is made of a tensor: zeros of a sum are left out, and their tensor is still named."""
    terms = (term for copy in target.copies for _, term in copy.terms)
    return any(term.storage == view.storage and view.byte_start <= term.byte_start < view.byte_stop for term in terms)


def _names(one: Proposal) -> Iterable[str]:
    return dict.fromkeys(name for copy in one.target.copies for name in copy.names)


def norms(pairs: Iterable[tuple[str, str]], left: tuple[Views, Views], sides: Sides) -> Iterator[Explained]:
    """Vectors of pairs of names, each of which is the other plus or minus 1."""
    for old, new in pairs:
        a, b = left[0][old], left[1][new]
        if len(a.shape) > 1 or a.shape != b.shape:
            continue
        shift = shift_between(sides.a.source, a, sides.b.source, b)
        if shift:
            what = "a zero-centred norm" if NORM.search(new) or NORM.search(old) else "a number that is added"
            sign = "+" if shift > 0 else "-"
            yield Explained((old,), new, f"explained by {what}: {sign} 1")


# --- Biases of a network that both have in one layout: sums that are kept, or a forget bias more ---------------------


BIASES = {"bW", "bR"}


def kept_sums(state: Settled) -> Iterator[Explained]:
    """Biases without a verdict of networks whose other tensors have one."""
    for mine in (one.network for one in state.networks[0]):
        for theirs in (one.network for one in state.networks[1]):
            if not _are_alike(mine, theirs):
                continue
            names = [(mine.tensors[own], theirs.tensors[own]) for own in mine.tensors]
            left = [
                (old, new)
                for old, new in names
                if old in state.left_a and new in state.left_b and state.a[old].shape == state.b[new].shape
            ]
            rest = [(state.found.get(new), old) for old, new in names if (old, new) not in left]
            if not left or not all(one and one.kind in LED_BACK and one.a == (old,) for one, old in rest):
                continue
            if why := _why(state, mine, theirs, {old for old, _ in left}):
                yield from (Explained((old,), new, f"{why}, {mine.layout.name}", mine.layout.name) for old, new in left)


def _are_alike(mine: Network, theirs: Network) -> bool:
    """Whether two networks have one layout and one spec; and none of their tensors is read from elsewhere."""
    return (
        (mine.layout.name, mine.options, mine.spec) == (theirs.layout.name, theirs.options, theirs.spec)
        and mine.tensors.keys() == theirs.tensors.keys()
        and not mine.raw
        and not theirs.raw
    )


def _why(state: Settled, mine: Network, theirs: Network, left: set[str]) -> str:
    """What explains that two networks differ in their biases, in words; "" where nothing does."""
    own = {name for tensor, name in mine.tensors.items() if name in left}
    if any(not tensor.row.kinds() <= BIASES for tensor in mine.stored() if mine.tensors[tensor.name] in own):
        return ""
    a, b = _biases(mine, state.a, state.sides.a.source), _biases(theirs, state.b, state.sides.b.source)
    found = set[int]()
    for cell, numbers in a.items():
        is_split = mine.spec.kind == "gru" and cell.gate == "n" and mine.spec.reset != "before"  # they are not summed
        shifts = _of_gate(numbers, b.get(cell, []), is_forget=cell.gate == "f", is_split=is_split)
        if shifts is None:
            return ""
        found |= shifts
    shifts = found - {0}
    if len(shifts) > 1:
        return ""
    parts = ["sums of biases, which are the same"] if 0 in found else []
    parts += [f"a number that is added (a forget bias): {shift:+d}".replace("+", "+ ").replace("-", "- ")
              for shift in shifts]  # fmt: skip
    return f"explained by {', and '.join(parts)}" if parts else ""


def _biases(network: Network, views: Views, source: Source) -> dict[Cell, list[tuple[DType, Array]]]:
    """{gate of a layer and direction: its biases in their type}"""
    found: dict[Cell, list[tuple[DType, Array]]] = {}
    for tensor in network.stored():
        if not tensor.row.kinds() & BIASES:
            continue
        view = as_stored(views[network.tensors[tensor.name]], tensor.shape)
        source.prove(int(view.storage))
        for place in tensor.places(view):
            cells = [cell for _, cell in place.terms if cell.kind in BIASES]
            if cells:
                numbers = source.array(place.view).all().view(number_type(view.dtype)).reshape(-1)
                found.setdefault(cells[0]._replace(kind=""), []).append((view.dtype, numbers))
    return found


def _of_gate(
    a: list[tuple[DType, Array]], b: list[tuple[DType, Array]], *, is_forget: bool, is_split: bool
) -> set[int] | None:
    """What explains that the biases of a gate differ, if they do: 0 for a sum that is kept, 1 or -1 that is added.

    None where nothing does.
    """
    dtypes = {dtype for dtype, _ in (*a, *b)}
    if len(a) != len(b) or len(dtypes) != 1 or not is_floating(dtype := next(iter(dtypes))):
        return None
    other = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True) if x.tobytes() != y.tobytes()]
    if not other:
        return set()
    if is_split:
        return None
    x, y = _sum(a), _sum(b)
    if are_one(x, y, dtype):
        return {0}
    if not is_forget:
        return None
    if len(other) == 1:  # one bias alone has its own rounding
        x, y = (one.astype("f8") for one in other[0])
    ways = ((x, y), (rounded(x, dtype), y), (x, rounded(y, dtype)))  # the sum may have been rounded before
    shift = next((shift for p, q in ways if (shift := shift_of(p, q, dtype, dtype))), 0)
    return {shift, *([0] if len(other) > 1 else [])} if shift else None


def _sum(parts: list[tuple[DType, Array]]) -> Array:
    import numpy as np

    found: Array = np.sum([one.astype("f8") for _, one in parts], axis=0)
    return found
