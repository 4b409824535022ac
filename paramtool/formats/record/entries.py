"""The entries that an alias record defines: views of stored tensors, in the order of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats.record import checks as record_checks
from paramtool.model.checkpoint import BY_CONFIG, Entry, Link
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, Views


@contextmanager
def named(name: str) -> Iterator[None]:
    """Add the name to a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name!r:.200}: {error}") from None


def wrong(where: str, what: str) -> FormatError:
    """The error for a record that does not fit its file."""
    return FormatError(f"{where}: its alias record {what}", hint="the file was changed after paramtool wrote it")


def recorded(where: str, stored: Views, derived: Views, record: dict[str, Any]) -> dict[str, Entry]:
    """Every name of the record, from the stored tensors and the derived ones."""
    record_checks.check(where, stored, record)
    spans = set(record["spans"])
    owners = {**stored, **derived}
    said = record["stored"]
    plain = [(name, _stored_entry(name, view, said)) for name, view in stored.items() if name not in spans]
    aliases = [(name, _alias_entry(where, name, item, owners)) for name, item in record["aliases"].items()]
    for name, view in derived.items():
        entry = _stored_entry(name, view, said)
        item = record["derived"][name]
        link = replace(entry.link or _NOWHERE, position=item["position"], owner=item.get("cast", {}).get("owner", ""))
        aliases.append((name, entry._replace(link=link)))
    entries = in_order(plain, aliases)
    if not {"requires_grad", "kinds"} & record.keys():
        return entries
    trainable = set(record["requires_grad"]) if "requires_grad" in record else None
    kinds = record.get("kinds", {})
    return {
        name: entry._replace(requires_grad=None if trainable is None else name in trainable, kind=kinds.get(name, ""))
        for name, entry in entries.items()
    }


def in_order(plain: Iterable[tuple[str, Entry]], aliases: Iterable[tuple[str, Entry]]) -> dict[str, Entry]:
    """Names in the order of the source: aliases at their recorded positions, the others in between."""
    tensors = list(plain)
    waiting = sorted(aliases, key=lambda item: item[1].link.position if item[1].link else 0, reverse=True)
    tensors.reverse()
    entries: dict[str, Entry] = {}
    while tensors or waiting:
        due = waiting and (not tensors or (waiting[-1][1].link or _NOWHERE).position <= len(entries))
        name, entry = (waiting if due else tensors).pop()
        entries[name] = entry
    return entries


_NOWHERE = Link("", "storage")


def _stored_entry(name: str, view: View, said: Mapping[str, Any]) -> Entry:
    item = said.get(name)
    if item is None:
        return Entry(view, link=Link(name, "storage"))
    return Entry(view, link=Link(str(item["memory"]), str(item["memory_evidence"])))


def _alias_entry(where: str, name: str, item: dict[str, Any], stored: Views) -> Entry:
    with named(name):
        window = window_on(where, name, item, stored[item["owner"]])
    evidence = item["memory_evidence"] if "memory_evidence" in item else item["evidence"]
    if evidence not in ("storage", "declared", "content"):
        raise ValueError(f"{name!r} has evidence {evidence!r}")
    why = "storage" if evidence == "content" else BY_CONFIG if item.get(BY_CONFIG) is True else evidence
    link = Link(str(item["memory"]), why, item["position"], str(item["owner"]), item["evidence"] == "content")
    return Entry(window, link=link)


def window_on(where: str, name: str, item: Mapping[str, Any], owner: View) -> View:
    """The view of an owner that a record describes; FormatError if it exceeds the owner."""
    whole_numbers([*item["shape"], *item["strides"]])
    window = View(0, DTYPES[item["dtype"]], item["offset"], tuple(item["shape"]), tuple(item["strides"]))
    if window.byte_stop > owner.nbytes:
        raise FormatError(
            f"{where}: {name!r}: its view needs {window.byte_stop} bytes of {item['owner']!r}, "
            f"which has {owner.nbytes}: the alias record is wrong"
        )
    return window.on(owner.storage, owner.byte_start + window.byte_start)


def whole_numbers(numbers: Iterable[object]) -> None:
    if not all(type(number) is int for number in numbers):
        raise ValueError("has a shape, strides or sizes that are not whole numbers")
