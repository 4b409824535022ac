"""Optimizers as rows of `inspect --optimizer`, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._json_text import members
from paramtool.cli._objects import outline
from paramtool.cli._table import elidable
from paramtool.cli._text import named, plural
from paramtool.errors import leading
from paramtool.model.objects import Leaf, Mapping, Node
from paramtool.model.objects import Sequence as Listed
from paramtool.model.optimizer import Binding, Group

if TYPE_CHECKING:
    from paramtool.commands.optimizers import BoundFile

_SHOWN = ("lr", "momentum", "betas", "alpha", "rho", "weight_decay")
"""Settings that a terminal shows; --json has all."""


def rows(found: Sequence[BoundFile], many: int) -> Iterator[_render.Row]:
    """A row for each optimizer with its proof, then its groups, its entries, and what is not bound."""
    if not found:
        yield ("optimizer", "none", "the file has no state of an optimizer")
    for file in found:
        for binding in file.bindings:
            yield from _binding(file.file, binding, most(many))


def _binding(file: str, binding: Binding, many: int) -> Iterator[_render.Row]:
    state = binding.optimizer
    at = ":".join(part for part in (file, state.at) if part) or "(top)"
    entries = f"{plural(len(state.entries), 'entry', 'entries')} in {plural(len(state.groups), 'group')}"
    yield ("optimizer", elidable(at), state.algorithm or "unknown algorithm", entries, binding.words)
    if state.refused:
        yield ("", "", "cannot be moved", state.refused)
    for k, group in enumerate(state.groups[:many]):
        yield ("group", str(k), plural(len(group.keys), "entry", "entries"), _settings(group))
    if (more := len(state.groups) - many) > 0:
        yield ("group", f"and {plural(more, 'more group')}")
    for entry in state.entries[:many]:
        name = binding.names.get(entry.key)
        slots = ", ".join(slot.key for slot in entry.slots) or "no state"
        yield ("entry", str(entry.key), elidable(named(name)) if name else "not bound", f"group {entry.group}", slots)
    if (more := len(state.entries) - many) > 0:
        yield ("entry", f"and {plural(more, 'more entry', 'more entries')}", "--verbose and --json list them")
    yield from _doubts(binding, many)


def _doubts(binding: Binding, many: int) -> Iterator[_render.Row]:
    """What is ambiguous, and the parameters without an entry."""
    for names in binding.ambiguous[:many]:
        yield ("ambiguous", leading(names, show=named), plural(len(names), "parameter"))
    if (more := len(binding.ambiguous) - many) > 0:
        yield ("ambiguous", f"and {plural(more, 'more set')}")
    if binding.unbound:
        yield ("no entry", leading(binding.unbound, show=named), plural(len(binding.unbound), "parameter"))


def _settings(group: Group) -> str:
    """The settings of a group that tell it from others."""
    lines = dict(outline(group.settings))
    return ", ".join(f"{key} {lines[key]}" for key in _SHOWN if key in lines)


def documents(found: Sequence[BoundFile]) -> Iterator[dict[str, Any]]:
    """Each optimizer as JSON."""
    for file in found:
        yield from (_document(file.file, binding) for binding in file.bindings)


def _document(file: str, binding: Binding) -> dict[str, Any]:
    state = binding.optimizer
    return {
        "file": file,
        **members(state, "at", "section", "form", "algorithm", "refused"),
        "entries": len(state.entries),
        "groups": [{"entries": len(group.keys), "settings": _plain(group.settings)} for group in state.groups],
        "bound": {**members(binding, "how", "source"), "unique": binding.is_unique, "words": binding.words},
        "parameters": (
            {
                "name": binding.names.get(entry.key),
                **members(entry, "key", "group"),
                "slots": [slot.key for slot in entry.slots],
            }
            for entry in state.entries
        ),
        **members(binding, "ambiguous", "unbound", "defects"),
    }


def _plain(node: Node) -> Any:
    """Settings as JSON: numbers, strings and lists; anything else as its text."""
    match node:
        case Leaf(bool() | int() | str() | None as value):
            return value
        case Leaf(float() as number):
            return number if number - number == 0 else str(number)  # JSON has no infinity
        case Listed(_, items):
            return [_plain(item) for item in items]
        case Mapping(_, pairs):
            return {str(key): _plain(child) for key, child in pairs}
    return next((value for _, value in outline(node)), "a tensor")
