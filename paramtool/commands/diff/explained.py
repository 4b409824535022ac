"""Changes that have a known reason: sums of biases, a number that is added to a bias, a norm that is stored less 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool.commands.diff.networks import of_networks
from paramtool.commands.diff.settled import may_be_cast
from paramtool.commands.diff.tables import Proposal
from paramtool.engine.compare.cast_verdicts import cast_raw
from paramtool.engine.compare.shifted import shift_between
from paramtool.engine.compare.sides import Sides, is_number
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import computed
from paramtool.errors import LayoutError
from paramtool.model.checkpoint import Checkpoint
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
    if all(copy.is_plain for copy in target.copies) or target.nbytes > MAX_CALCULATED_NBYTES:
        return False
    if (there.shape, there.dtype) != (target.shape, target.dtype):
        return False
    try:
        made = computed(target, made_of)
    except LayoutError:  # a sum that overflows
        return False
    return bool(made.tobytes() == source.array(there).all().tobytes())


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
