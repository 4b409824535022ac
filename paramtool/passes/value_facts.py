"""What the values of tensors depend on and their bytes do not show: it is compared and digested as the bytes are.

    a compound tensor     its kind, its scale or shape, and what a subclass of tensors was saved with (`block_size`)
    an entry of a header  one that names tensors or modules of its file: what they are made into by the library that
                          wrote it, as torchao does for each quantised weight and ComfyUI for each layer

Other entries, such as a title or the configuration of a model of Keras, are metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paramtool.model.checkpoint import PENDING, Checkpoint, Compound
from paramtool.model.objects import Leaf, Node, Sequence
from paramtool.model.objects import Mapping as MappingNode
from paramtool.passes.objects_text import canonical, in_short

MAX_WORDS = 40
"""Characters of a fact that are shown."""
OF_KERAS = ("config.json", "model_config")
"""Entries with the configuration of a model of Keras, which names its layers."""


class Fact(NamedTuple):
    """One fact."""

    text: str
    """The same text for equal facts alone."""
    words: str
    """For people."""


Facts = Mapping[str, Fact]


def of_compound(value: Compound) -> dict[str, Fact]:
    """What is known of a compound tensor beside its parts."""
    found = {key: _plain(dict(fact) if isinstance(fact, Mapping) else fact) for key, fact in value.facts.items()}
    return {"kind": Fact(value.kind, value.kind), **found, **of_state(value)}


def of_state(value: Compound) -> dict[str, Fact]:
    """What a subclass of tensors was saved with, attribute by attribute."""
    state = value.state
    if isinstance(state, Sequence) and len(state.items) == 2 and state.items[0] == Leaf(None):
        state = state.items[1]  # (None, {...}): an object with slots
    if not isinstance(state, MappingNode):
        return {"arguments": _of_node(state)}
    return {f"attribute {key if isinstance(key, str) else repr(key)}": _of_node(one) for key, one in state.items}


def _of_node(node: Node) -> Fact:
    return Fact(canonical(node), in_short(node))


def _plain(value: object) -> Fact:
    text = repr(value)
    return Fact(text, text)


def of_header(checkpoint: Checkpoint) -> dict[str, dict[str, Fact]]:
    """{key of an entry that names tensors or modules: what it says}."""
    if "safetensors" not in checkpoint.format:  # the strings of other formats are no entries of a header
        return {}
    names = {name[:end] for name in checkpoint.entries for end in (*_dots(name), len(name))}
    return {key: said for key, text in checkpoint.metadata.items() if (said := _entry(key, text, names))}


def _dots(name: str) -> Iterator[int]:
    return (at for at, letter in enumerate(name) if letter in "./")


def _entry(key: str, text: str, names: set[str]) -> dict[str, Fact]:
    """What an entry says; nothing where it names none of the names."""
    if key.startswith("paramtool.") or key in OF_KERAS:
        return {}
    try:
        value = json.loads(text)
        found = dict(_leaves(value, ""))
        said = set(_strings(value))
    except (ValueError, RecursionError):
        value, found, said = text, {"": text}, set()
    is_of_module = key in names or key.rpartition(".")[0] in names - {""}
    if (is_of_module and (isinstance(value, (dict, list)) or "." in key)) or not names.isdisjoint(said):
        return {at or "it": Fact(one, one) for at, one in found.items()}
    return {}


def _leaves(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """(place, text) of what is in an object of JSON."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves(one, f"{at}.{key}" if at else key)
    else:
        yield at, json.dumps(value, sort_keys=True)


def _strings(value: Any) -> Iterator[str]:
    """The keys and the strings inside a container of JSON."""
    for one in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(one, str):
            yield one
        yield from _strings(one)


def known(checkpoint: Checkpoint) -> dict[str, Facts]:
    """{compound tensor: its facts}, but for those that a sign is pending for."""
    return {
        name: of_compound(entry.value)
        for name, entry in checkpoint.entries.items()
        if isinstance(entry.value, Compound) and entry.value.kind not in PENDING
    }


def text(facts: Facts) -> str:
    """Facts as one text in ASCII, for their digest."""
    return json.dumps({key: one.text for key, one in facts.items()}, sort_keys=True)


def differences(old: Facts, new: Facts, sides: tuple[str, str] = ("A", "B")) -> str:
    """What differs, in words; "" where nothing does."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or one.text != other.text:
            words = [_short(fact) for fact in (one, other)]
            told = f"{key} is {words[0]} in {sides[0]} and {words[1]} in {sides[1]}"
            found.append(told if words[0] != words[1] else f"another {key}")
    return ", ".join(found)


def _short(fact: Fact | None) -> str:
    if fact is None:
        return "not said"
    return fact.words if len(fact.words) <= MAX_WORDS else f"{fact.words[:MAX_WORDS]}..."
