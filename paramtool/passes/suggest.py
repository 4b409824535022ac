"""What a missing name could have meant: similar names, and the prefix that would make it match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches

MAX_COMPARED = 2_000
"""At most this many names are searched for similar ones: comparing two takes the product of their lengths."""
MAX_LOOKED_UP = 50
LIKENESS = 0.75


def alike(name: str, names: Collection[str]) -> list[str]:
    """At most two of `names` that are similar to `name`, the most similar first.

    >>> alike("wte.wieght", ["wpe.weight", "wte.weight", "ln.bias"])
    ['wte.weight', 'wpe.weight']
    """
    last = name.rpartition(".")[2]
    likely = [other for other in names if other.rpartition(".")[2] == last]
    pool = likely if get_close_matches(name, likely[:MAX_COMPARED], 1, LIKENESS) else list(names)
    return get_close_matches(name, pool[:MAX_COMPARED], 2, LIKENESS)


def advice(missing: Collection[str], names: Collection[str]) -> str:
    """The flag that would make most of the `missing` names match, or an empty string.

    >>> advice(["w", "b"], ["bert.w", "bert.b", "head.w"])
    'with --prefix bert. 2 of them match'
    >>> advice(["model.w"], ["w"])
    "with --rename '*=model.*' 1 of them matches"
    """
    prefix, count = prefix_before(missing, names)
    if count:
        return f"with --prefix {prefix} {_match(count)}"
    head, count = head_of(missing, names)
    return f"with --rename '*={head}*' {_match(count)}" if count else ""


def _match(count: int) -> str:
    return f"{count} of them {'matches' if count == 1 else 'match'}"


def padded(missing: Collection[str], names: Collection[str]) -> str:
    """A hint for a missing name that would be found without the spaces around it, or an empty string.

    >>> padded(["  w ", "b"], ["w", "x"])
    "'  w ' has spaces around it, which are part of the name: write 'w'"
    """
    found = next((name for name in missing if name != name.strip() in names), None)
    return (
        "" if found is None else f"{found!r} has spaces around it, which are part of the name: write {found.strip()!r}"
    )


def prefix_before(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """The prefix, up to a dot, that most of `missing` have in `names`, and how many have it.

    >>> prefix_before(["w", "b", "g"], ["bert.w", "bert.b", "head.w"])
    ('bert.', 2)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    prefixes = Counter(prefix for name in some for prefix in _before(name, names))
    for prefix, _ in prefixes.most_common(1):
        return prefix, sum(prefix + name in names for name in missing)
    return "", 0


def head_of(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """The prefix, up to a dot, without which most of `missing` are among `names`, and how many are.

    >>> head_of(["model.w", "model.x"], ["w"])
    ('model.', 1)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    heads = Counter(name[: len(name) - len(rest)] for name in some for rest in _tails(name) if rest in names)
    for head, _ in heads.most_common(1):
        return head, sum(name.startswith(head) and name[len(head) :] in names for name in missing)
    return "", 0


def _before(name: str, names: Collection[str]) -> Iterator[str]:
    """The prefixes, up to a dot, of the names that end with `name`."""
    end = f".{name}"
    return (other[: len(other) - len(name)] for other in names if other.endswith(end))


def _tails(name: str) -> Iterator[str]:
    """`b.c` and `c` of `a.b.c`."""
    while "." in name:
        name = name.partition(".")[2]
        yield name
