"""`passes/optimizer/places`: what the search keeps, against every placing, one by one."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.optimizer.bind import PlaceSearch

COUNT = 6
PLACES = st.sets(st.integers(0, COUNT - 1)).map(sorted)


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(PLACES, min_size=3, max_size=3))
def test_one_group_keeps_the_first_and_the_last_place(kinds: list[int], places: list[list[int]]) -> None:
    every = [
        chosen
        for chosen in combinations(range(COUNT), len(kinds))
        if all(place in places[kind] for place, kind in zip(chosen, kinds, strict=True))
    ]
    search = PlaceSearch(kinds, list(places), [range(len(kinds))], COUNT)
    assert search.run() == bool(every)
    for k, taken in enumerate(zip(*every, strict=True)):
        kept = search.candidates(k)
        assert (kept[0], kept[-1]) == (min(taken), max(taken)) and {*taken} <= {*kept}


def test_entries_without_an_order_share_their_places() -> None:
    """Two entries of one kind can be exchanged, and a third of another kind has its place."""
    search = PlaceSearch([0, 1, 0], [[0, 2], [1]], [[0], [1], [2]], 3)
    assert search.run()
    assert search.components() == [[0, 2]] and search.candidates(1) == [1]
