"""A fused tensor of transformers 4 in another fused form, as BLOOM's `query_key_value` in vLLM.

Both are patterns of the same terms; the tensor of transformers 4 is cut into the runs that stand together in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from paramtool.parts import rows, solving
from paramtool.parts.pieces import Digit, Digits, Pair, Piece, Stored, joined
from paramtool.parts.sizes import Sizes
from paramtool.parts.solving import PartTensor


def rebased(
    name: str, pattern: tuple[str, int], held: tuple[str, str], sizes: Sizes, *, axes: Mapping[str, str]
) -> Stored:
    """The tensor of a pattern along an axis, as pieces of the tensor that holds it.

    `pattern` is (pattern, axis), `held` is (pattern along axis 0, name), `axes` are those of each term's part.
    """
    content, along = pattern
    holding, hub = held
    parts = {term: [PartTensor(term, of, solving.part_shape(of, sizes))] for term, of in axes.items()}
    mine = rows.stored(name, content, along, parts, sizes=sizes)
    other = rows.stored(hub, holding, 0, parts, sizes=sizes)
    pieces = []
    for term in parts:
        of_term = ([piece for piece in side.pieces if piece.part == term] for side in (mine, other))
        pieces += [piece for pair in joined(*of_term) for piece in _dense(pair, hub)]
    return Stored(name, mine.shape, tuple(pieces))


def _dense(pair: Pair, hub: str) -> Iterator[Piece]:
    """The boxes of the holding tensor that a pair of pieces covers, one for each value of the digits that skip rows."""
    cut = []
    for mine, other in zip(pair.mine.digits, pair.other.digits, strict=True):
        dense, inner = 0, 1
        for digit in reversed(other):
            if digit.length != 1 and digit.step != inner:
                break
            inner *= digit.length
            dense += 1
        k = len(other) - dense
        cut.append((mine[:k], other[:k], mine[k:], inner))
    for values in product(*(_values(mine, other) for mine, other, _, _ in cut)):
        start, at = list(pair.other.at), list(pair.mine.at)
        for moved in values:
            for digit, far, value in moved:
                start[far.axis] += far.step * value
                at[digit.axis] += digit.step * value
        digits: list[Digits] = [rest or (Digit(1, 0, 1),) for _, _, rest, _ in cut]
        yield Piece(hub, tuple(start), tuple(digits), tuple(at))


def _values(mine: Digits, other: Digits) -> list[tuple[tuple[Digit, Digit, int], ...]]:
    """Every choice of values of some digits."""
    assert prod(digit.length for digit in mine) == prod(digit.length for digit in other)
    return [
        tuple(zip(mine, other, chosen, strict=True)) for chosen in product(*(range(digit.length) for digit in mine))
    ]
