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
    prefix, count = prefix_before(missing, names)
    if count:
        return f"--prefix {prefix} would give {count} of them"
    head, count = head_of(missing, names)
    return f"--rename '*={head}*' would give {count} of them" if count else ""


def padded(missing: Collection[str], names: Collection[str]) -> str:
    """What is wrong with names that are there without the spaces around them, or nothing.

    >>> padded(["  w ", "b"], ["w", "x"])
    "'  w ' has spaces around it, which count: write 'w'"
    """
    found = next((name for name in missing if name != name.strip() in names), None)
    return "" if found is None else f"{found!r} has spaces around it, which count: write {found.strip()!r}"


def prefix_before(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """What stands before most of `missing` among `names`, up to a dot, and before how many.

    >>> prefix_before(["w", "b", "g"], ["bert.w", "bert.b", "head.w"])
    ('bert.', 2)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    prefixes = Counter(prefix for name in some for prefix in _before(name, names))
    for prefix, _ in prefixes.most_common(1):
        return prefix, sum(prefix + name in names for name in missing)
    return "", 0


def head_of(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """What most of `missing` begin with, up to a dot, and would be `names` without; and how many would.

    >>> head_of(["model.w", "model.x"], ["w"])
    ('model.', 1)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    heads = Counter(name[: len(name) - len(rest)] for name in some for rest in _tails(name) if rest in names)
    for head, _ in heads.most_common(1):
        return head, sum(name.startswith(head) and name[len(head) :] in names for name in missing)
    return "", 0


def _before(name: str, names: Collection[str]) -> Iterator[str]:
    """What stands before `name` in names that end with it, at a dot."""
    end = f".{name}"
    return (other[: len(other) - len(name)] for other in names if other.endswith(end))


def _tails(name: str) -> Iterator[str]:
    """`b.c` and `c` of `a.b.c`."""
    while "." in name:
        name = name.partition(".")[2]
        yield name
