"""A plugin: `make test` runs as many cases of a test as its mark says; `make hard` and `make oracles` run all.

    @pytest.mark.sample(12)     beside `parametrize`: twelve of the cases, which together have as many of the values of
                                each argument as twelve can have

The cases are the same in each run and in each process.  A value is a word of the name of a case, which dashes separate.
A case that is named on the command line always runs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.examples import IS_WHOLE


def sampled(names: Sequence[str], most: int) -> set[int]:
    """Positions of at most `most` names: each next one has the most words that those before it lack.

    Where no word is new, all words are new once more.

    >>> sorted(sampled(["a-x", "a-y", "b-x", "b-y"], 2)) in ([0, 3], [1, 2])
    True
    >>> sampled(["a", "b"], 3)
    {0, 1}
    """
    left = list(range(len(names)))
    random.Random("".join(names)).shuffle(left)
    words = [set(name.split("-")) for name in names]
    chosen: set[int] = set()
    seen: set[str] = set()
    while left and len(chosen) < most:
        best = max(left, key=lambda k: len(words[k] - seen))
        if words[best] <= seen and seen:
            seen = set()
            continue
        seen |= words[best]
        chosen.add(best)
        left.remove(best)
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases that are left out count as deselected."""
    if IS_WHOLE or any("::" in argument for argument in config.args):
        return
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            path, _, name = item.nodeid.partition("::")
            cases[path, name.partition("[")[0]].append(item)
    gone = set()
    for several in cases.values():
        mark = several[0].get_closest_marker("sample")
        assert mark is not None
        kept = sampled([item.name.partition("[")[2].rstrip("]") for item in several], *mark.args)
        gone |= {item for k, item in enumerate(several) if k not in kept}
    if gone:
        config.hook.pytest_deselected(items=sorted(gone, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in gone]
