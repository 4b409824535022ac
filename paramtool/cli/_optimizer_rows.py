"""Optimizers as rows of `inspect --optimizer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._text import named, plural
from paramtool.errors import leading
from paramtool.model.optimizer import Binding, Group
from paramtool.model.outline import outline

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
    yield ("optimizer", at, state.algorithm or "unknown algorithm", entries, binding.words)
    if state.refused:
        yield ("", "", "cannot be moved", state.refused)
    for k, group in enumerate(state.groups[:many]):
        yield ("group", str(k), plural(len(group.keys), "entry", "entries"), _settings(group))
    if (more := len(state.groups) - many) > 0:
        yield ("group", f"and {plural(more, 'more group')}")
    for entry in state.entries[:many]:
        name = binding.names.get(entry.key)
        slots = ", ".join(slot.key for slot in entry.slots) or "no state"
        yield ("entry", str(entry.key), named(name) if name else "not bound", f"group {entry.group}", slots)
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
