"""The places that entries of an optimizer can have in an order of parameters, by their kinds and their groups.

For each entry, `PlaceSearch` keeps the first and the last place that it can have.  Both come from the leftmost and the
rightmost placing of its group, which agree exactly where one group has one placing; places that are taken are taken
from the other groups.  For several groups this is sound, and may call ambiguous what is unique; it never calls unique
what is not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

_PASSES = 200
"""The most rounds of the search; what is not settled after them counts as ambiguous."""


class PlaceSearch:
    """The places that entries can have in an order.

    `kinds` has the kind of each entry, and `places` the ascending places that entries of each kind can have.
    """

    def __init__(self, kinds: list[int], places: list[list[int]], groups: Sequence[Sequence[int]], count: int) -> None:
        self.kinds = kinds
        self.places = places
        self.groups = groups
        self.count = count
        self.low = [0] * len(kinds)
        self.high = [count - 1] * len(kinds)
        self.fixed = [-1] * len(kinds)
        self.free = [True] * count

    def run(self) -> bool:
        """Narrow all places as far as it goes; False where nothing fits."""
        if len(self.kinds) > self.count:
            return False
        is_full = len(self.kinds) == self.count
        for _ in range(_PASSES):
            before = (self.low[:], self.high[:], self.fixed[:])
            if not all(self._leftmost(group) and self._rightmost(group) for group in self.groups):
                return False
            if not self._fix([(k, low) for k, low in enumerate(self.low) if low == self.high[k] and self.fixed[k] < 0]):
                return False
            if is_full and not self._fix_full():
                return False
            if before == (self.low, self.high, self.fixed):
                break
        return True

    def _leftmost(self, group: Sequence[int]) -> bool:
        """The smallest place of each entry of a group, in order."""
        after = -1
        for k in group:
            if self.fixed[k] < 0:
                places = self.places[self.kinds[k]]
                at = bisect_left(places, max(self.low[k], after + 1))
                if at == len(places) or places[at] > self.high[k]:
                    return False
                self.low[k] = places[at]
            elif self.fixed[k] <= after:
                return False
            after = self.low[k]
        return True

    def _rightmost(self, group: Sequence[int]) -> bool:
        """The largest place of each entry of a group, from the last."""
        before = self.count
        for k in reversed(group):
            if self.fixed[k] < 0:
                places = self.places[self.kinds[k]]
                at = bisect_right(places, min(self.high[k], before - 1)) - 1
                if at < 0 or places[at] < self.low[k]:
                    return False
                self.high[k] = places[at]
            elif self.fixed[k] >= before:
                return False
            before = self.high[k]
        return True

    def _fix(self, found: Iterable[tuple[int, int]]) -> bool:
        """Give entries their places, which no other entry then has; False where two have one."""
        changed = False
        for k, place in found:
            if not self.free[place]:
                return False
            self.free[place], changed = False, True
            self.fixed[k] = self.low[k] = self.high[k] = place
        if changed:
            self.places = [[j for j in places if self.free[j]] for places in self.places]
        return True

    def _fix_full(self) -> bool:
        """Where each place is taken: a place that one entry alone can have is its place; False where none can."""
        takers = [0] * (self.count + 1)
        who = [0] * (self.count + 1)
        steps: dict[int, list[tuple[int, int]]] = {}
        for k, kind in enumerate(self.kinds):
            if self.fixed[k] < 0:
                places = self.places[kind]
                steps.setdefault(kind, []).append((bisect_left(places, self.low[k]), k))
                steps[kind].append((bisect_right(places, self.high[k]), -k - 1))
        for kind, marks in steps.items():
            many, total, at = 0, 0, 0
            marks.sort()
            for index, place in enumerate(self.places[kind]):
                while at < len(marks) and marks[at][0] <= index:
                    k = marks[at][1]
                    many, total, at = (many + 1, total + k, at + 1) if k >= 0 else (many - 1, total + k + 1, at + 1)
                takers[place] += many
                who[place] += total
        open_places = [j for j in range(self.count) if self.free[j]]
        if any(not takers[j] for j in open_places):
            return False
        alone = {j: who[j] for j in open_places if takers[j] == 1}
        return len(set(alone.values())) == len(alone) and self._fix((k, j) for j, k in alone.items())

    def candidates(self, k: int) -> list[int]:
        """The places that an entry can have."""
        if self.fixed[k] >= 0:
            return [self.fixed[k]]
        places = self.places[self.kinds[k]]
        return places[bisect_left(places, self.low[k]) : bisect_right(places, self.high[k])]

    def components(self) -> list[list[int]]:
        """Sets of places that entries without a place of their own share, each in order."""
        parent = list(range(self.count))

        def root(j: int) -> int:
            while parent[j] != j:
                parent[j] = parent[parent[j]]
                j = parent[j]
            return j

        reached = dict.fromkeys(range(len(self.places)), -1)
        used = set()
        for k in sorted((k for k in range(len(self.kinds)) if self.fixed[k] < 0), key=lambda k: self.low[k]):
            places = self.places[self.kinds[k]]
            start, stop = bisect_left(places, self.low[k]), bisect_right(places, self.high[k])
            used.add(places[start])
            for index in range(max(start, reached[self.kinds[k]]), stop - 1):
                parent[root(places[index + 1])] = root(places[index])
                used.add(places[index + 1])
            reached[self.kinds[k]] = max(reached[self.kinds[k]], stop - 1)
        found: dict[int, list[int]] = {}
        for j in sorted(used):
            found.setdefault(root(j), []).append(j)
        return list(found.values())
