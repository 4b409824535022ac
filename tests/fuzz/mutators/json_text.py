"""Mutations of JSON: the tree of values, with what Python's own tree cannot hold (keys that stand twice)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.fuzz.mutators import raw

TEXTS = (
    "", " ", ".", "..", "../x", "/etc/passwd", "a/../../b", "C:\\x", "\0", "\n", "\x1b[2J", "\ud800", "\udfff\ud800",
    "é", "é", "\U0001f600", "__class__", "__proto__", "paramtool.span/0", "paramtool.aliases", "__metadata__",
    "format", "F32", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F4", "float32", "bfloat16", "int4", "float4_e2m1fn",
    "complex64", "storage", "declared", "content", "x" * 300, "NaN", "1", "-1", "shards", "index",
)  # fmt: skip
"""Strings that programs get wrong."""


class Pairs(list[list[Any]]):
    """An object as its pairs, in order, with room for a key that stands twice."""


class Literal(str):
    """Text that is written as it is."""


Slot = tuple[Any, int]
"""A list or a pair that holds a value, and where."""


def parse(text: str | bytes) -> Any:
    """JSON with objects as `Pairs`."""
    return json.loads(text, object_pairs_hook=lambda pairs: Pairs([list(pair) for pair in pairs]))


def dump(value: Any, escape: bool = True) -> str:
    """The text of a tree."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{dump(key, escape)}:{dump(held, escape)}" for key, held in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dump(item, escape) for item in value) + "]"
    return json.dumps(value, ensure_ascii=escape)


def encoded(value: Any, random: Random) -> bytes:
    """The bytes of a tree; now and then without escapes, or in another encoding."""
    if random.random() < 0.03:
        return dump(value).encode(random.choice(("utf-16", "utf-8-sig", "utf-32", "latin-1")), "replace")
    return dump(value, random.random() < 0.8).encode("utf-8", "surrogatepass")


def slots(value: Any) -> Iterator[Slot]:
    """Every place of a tree that holds a value."""
    if isinstance(value, Pairs):
        for pair in value:
            yield pair, 1
            yield from slots(pair[1])
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield value, at
            yield from slots(item)


def containers(value: Any) -> list[Any]:
    """Every object and list of a tree that holds something."""
    return [item for item in [value, *(held[at] for held, at in slots(value))] if isinstance(item, list) and item]


def interesting(random: Random, was: Any = None) -> Any:
    """A value that programs get wrong, often of the type that stood there."""
    if isinstance(was, bool) or random.random() < 0.05:
        return random.choice((True, False, None, 0, 1, "true"))
    if isinstance(was, int) and random.random() < 0.7:
        return raw.number(random, was)
    if isinstance(was, str) and random.random() < 0.7:
        return text(random, was)
    return random.choice((
        None, True, [], Pairs(), 0, -1, 2**64, 10**40, 0.5, 1e308, Literal("1e999"), Literal("NaN"), Literal("-0"),
        Literal("1.0"), "", "\ud800", [[]], [0], Pairs([["", None]]), Literal("[" * 2000 + "]" * 2000), "x" * 5000,
        Literal("1" + "0" * 5000), Literal("Infinity"), [0] * 70,
    ))  # fmt: skip


def text(random: Random, was: str) -> str:
    """A string that programs get wrong, or one near the one that stood there."""
    match random.randrange(6):
        case 0:
            return was[: random.randint(0, len(was))]
        case 1:
            return was + random.choice((".", "/", "\0", "0", " ", was[:50]))
        case 2:
            return was.swapcase()
    return random.choice(TEXTS)


def change(tree: Any, random: Random) -> None:
    """One mutation of a tree, in place."""
    places = list(slots(tree))
    if not places:
        return
    held, at = random.choice(places)
    random.choice(ALL)(tree, held, at, random)


def replace(tree: Any, held: Any, at: int, random: Random) -> None:
    """Another value."""
    held[at] = interesting(random, held[at])


def exchange(tree: Any, held: Any, at: int, random: Random) -> None:
    """The value of another place, of the same key where there is one."""
    places = list(slots(tree))
    if at == 1 and isinstance(held, list) and isinstance(held[0], str):
        alike = [(other, k) for other, k in places if k == 1 and other is not held and other[0] == held[0]]
        places = alike if alike and random.random() < 0.8 else places
    other, k = random.choice(places)
    held[at] = parse(dump(other[k]))


def swap(tree: Any, held: Any, at: int, random: Random) -> None:
    """Two values change places."""
    other, k = random.choice(list(slots(tree)))
    held[at], other[k] = parse(dump(other[k])), parse(dump(held[at]))


def lose(tree: Any, held: Any, at: int, random: Random) -> None:
    """A pair or an item less."""
    chosen = random.choice(containers(tree))
    del chosen[random.randrange(len(chosen))]


def double(tree: Any, held: Any, at: int, random: Random) -> None:
    """A pair or an item twice, at any place: of an object the key stands twice, or the copy gets another name."""
    chosen = random.choice(containers(tree))
    item = parse(dump(random.choice(chosen))) if not isinstance(chosen, Pairs) else None
    if item is None:
        key, value = random.choice(chosen)
        item = [key if random.random() < 0.4 else text(random, str(key)), parse(dump(value))]
    chosen.insert(random.randint(0, len(chosen)), item)


def rename(tree: Any, held: Any, at: int, random: Random) -> None:
    """Another key: any, or one of this tree."""
    objects = [item for item in containers(tree) if isinstance(item, Pairs)]
    if objects:
        pair = random.choice(random.choice(objects))
        others = [key for item in objects for key, _ in item]
        pair[0] = random.choice(others) if random.random() < 0.5 else text(random, str(pair[0]))


def shuffle(tree: Any, held: Any, at: int, random: Random) -> None:
    """Another order."""
    random.shuffle(random.choice(containers(tree)))


ALL: tuple[Callable[[Any, Any, int, Random], None], ...] = (
    replace, replace, replace, replace, exchange, exchange, swap, lose, double, rename, rename, shuffle,
)  # fmt: skip


def mutate(data: bytes, random: Random) -> bytes:
    """One to three mutations of the tree of a JSON text; strings that are JSON themselves are trees as well."""
    tree = parse(data)
    for _ in range(random.choice((1, 1, 1, 1, 2))):
        inner = [(held, at) for held, at in slots(tree) if isinstance(held[at], str) and held[at][:1] == "{"]
        if inner and random.random() < 0.6:
            held, at = random.choice(inner)
            held[at] = mutate(held[at].encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace")
        else:
            change(tree, random)
    return encoded(tree, random)
