"""What a name that is missing could have meant: names like it, and the prefix that would make it match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches

MAX_COMPARED = 2_000
"""Names like a name are looked for among so many: comparing takes the product of their lengths."""
MAX_LOOKED_UP = 50
LIKENESS = 0.75


def alike(name: str, names: Collection[str]) -> list[str]:
    """At most two of `names` that look like `name`, the most alike first.

    >>> alike("wte.wieght", ["wpe.weight", "wte.weight", "ln.bias"])
    ['wte.weight', 'wpe.weight']
    """
    last = name.rpartition(".")[2]
    likely = [other for other in names if other.rpartition(".")[2] == last]
    pool = likely if get_close_matches(name, likely[:MAX_COMPARED], 1, LIKENESS) else list(names)
    return get_close_matches(name, pool[:MAX_COMPARED], 2, LIKENESS)


def advice(missing: Collection[str], names: Collection[str]) -> str:
    """The flag that would give most of `missing` names, or nothing.

    >>> advice(["w", "b"], ["bert.w", "bert.b", "head.w"])
    '--prefix bert. would give 2 of them'
    >>> advice(["model.w"], ["w"])
    "--rename '*=model.*' would give 1 of them"
    """
    some = list(missing)[:MAX_LOOKED_UP]
    prefixes = Counter(prefix for name in some for prefix in _before(name, names))
    for prefix, _ in prefixes.most_common(1):
        return f"--prefix {prefix} would give {sum(prefix + name in names for name in missing)} of them"
    heads = Counter(name[: len(name) - len(rest)] for name in some for rest in _tails(name) if rest in names)
    for head, _ in heads.most_common(1):
        count = sum(name.startswith(head) and name[len(head) :] in names for name in missing)
        return f"--rename '*={head}*' would give {count} of them"
    return ""


def _before(name: str, names: Collection[str]) -> Iterator[str]:
    """What stands before `name` in names that end with it, at a dot."""
    end = f".{name}"
    return (other[: len(other) - len(name)] for other in names if other.endswith(end))


def _tails(name: str) -> Iterator[str]:
    """`b.c` and `c` of `a.b.c`."""
    while "." in name:
        name = name.partition(".")[2]
        yield name
