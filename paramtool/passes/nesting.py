"""Where the tensors of two trees are: the keys above each, with their types, and the lists and tuples among them.

A name is made of keys, so `{"a": {"b": ...}}` and `{"a.b": ...}`, or `{0: ...}` and `{"0": ...}`, have tensors of one
name, and a program that reads one of them fails on the other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import zip_longest
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.model.objects import Key, Mapping, Node, Opaque, Sequence, TensorRef, children, word
from paramtool.passes.objects_differ import TOP, identity


class PathStep(NamedTuple):
    """A container above a tensor, and where it goes on in it."""

    container: str
    """For people; of every mapping the same, since dicts and their subclasses are read alike."""
    spoken: str
    """The same with the class of a mapping."""
    key: Key
    """A key, an index, or the label of a part of an object."""

    @property
    def same(self) -> tuple[str, object]:
        """What has to be equal: 0, False and "0" are not."""
        return self.container, identity(self.key)


def nesting_differences(found: Node, expected: Node, said: Collection[str] = ()) -> Iterator[str]:
    """What differs of the places of the tensors that both trees name, as sentences of `Comparison`.

    One for each pair of containers, of types of keys, and of ways to nest, however many tensors it is true of;
    `said` is what `Comparison` said already.
    """
    mine, theirs = dict(_paths(found)), dict(_paths(expected))
    containers: dict[tuple[str, str], dict[str, None]] = {}
    keys: dict[tuple[str, str], dict[tuple[str, Key, Key], None]] = {}
    nested: list[str] = []
    for name, path in mine.items():
        other = theirs.get(name)
        if other is None or [one.same for one in path] == [one.same for one in other]:
            continue
        place, here, there = _parting(path, other)
        if here is None or there is None:
            nested.append(name)
        elif here.container != there.container:
            if _other_container(place, here.spoken, there.spoken) not in said:
                containers.setdefault((here.spoken, there.spoken), {})[place] = None
        elif word(here.key) == word(there.key):
            types = type(here.key).__name__, type(there.key).__name__
            keys.setdefault(types, {})[place, here.key, there.key] = None
        else:
            nested.append(name)
    for (one, two), places in containers.items():
        first, *rest = places
        yield _other_container(first, one, two) + (f" (and {plural(len(rest), 'more place')})" if rest else "")
    for changed in keys.values():
        (place, mine_key, their_key), *others = changed
        more = f" (and {plural(len(others), 'more key')})" if others else ""
        key = f"key {word(mine_key)!r:.60} is {_type(mine_key)}"
        yield f"object {place or TOP!r}: {key}; the source has {_type(their_key)}{more}"
    if nested:
        name = nested[0]
        more = f" (and {plural(len(nested) - 1, 'more tensor')})" if len(nested) > 1 else ""
        yield f"object {name!r}: is {_under(mine[name])}; the source has it {_under(theirs[name])}{more}"


def text(tree: Node) -> str:
    """One line for the places of all tensors; the same for equal ones alone."""
    steps = (
        (name, [(one.container, type(one.key).__name__, word(one.key)) for one in path]) for name, path in _paths(tree)
    )
    return json.dumps(sorted(steps))


def _other_container(place: str, one: str, two: str) -> str:
    """As `Comparison` says it."""
    return f"object {place or TOP!r}: is {one}; the source has {two}"


def _paths(tree: Node) -> Iterator[tuple[str, tuple[PathStep, ...]]]:
    """(name of a tensor, the steps to it), in the order of the tree."""
    todo: list[tuple[Node, tuple[PathStep, ...]]] = [(tree, ())]
    while todo:
        node, path = todo.pop()
        match node:
            case TensorRef(name):
                yield name, path
            case Mapping(kind, items):
                todo += [(child, (*path, PathStep("a mapping", f"a {kind}", key))) for key, child in reversed(items)]
            case Sequence(kind, items):
                todo += [
                    (child, (*path, PathStep(f"a {kind}", f"a {kind}", k)))
                    for k, child in reversed([*enumerate(items)])
                ]
            case Opaque(kind, parts):
                spoken = f"an object of {kind}"
                todo += [(child, (*path, PathStep(spoken, spoken, label))) for label, child in reversed(parts)]
            case _:
                todo += [(child, path) for child in reversed(children(node))]


def _parting(path: tuple[PathStep, ...], other: tuple[PathStep, ...]) -> tuple[str, PathStep | None, PathStep | None]:
    """The path to the container in which two paths part, and the step of each from there; None where it has ended."""
    words: list[str] = []
    for one, two in zip_longest(path, other):
        if one is None or two is None or one.same != two.same:
            return ".".join(words), one, two
        words.append(word(one.key))
    return ".".join(words), None, None


def _type(key: Key) -> str:
    kind = key.path if isinstance(key, Opaque) else type(key).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _under(path: tuple[PathStep, ...]) -> str:
    if not path:
        return TOP
    words = [repr(word(one.key)) for one in path]
    return f"under the keys {', '.join(words)}" if len(words) > 1 else f"under the key {''.join(words)}"
