"""The record of parts where tensors get other names, or leave: a section, an export, another dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paramtool.formats.record import parts as record
from paramtool.model.parts import FusedTensor, PartsRecord


def with_record(metadata: Mapping[str, str], known: PartsRecord) -> dict[str, str]:
    """Metadata with a record of parts, or without one if there is nothing to say."""
    found = {key: text for key, text in metadata.items() if key != record.KEY}
    text = record.encode(known)
    return {**found, record.KEY: text} if text else found


def carried_metadata(
    where: str, metadata: Mapping[str, str], renamed: Mapping[str, str], *, keeps_dialect: bool = True
) -> Mapping[str, str]:
    """Metadata whose record of parts speaks of tensors that stay, `renamed` as of `carried`; the same without one.

    FormatError if the record is damaged.
    """
    if record.KEY not in metadata:
        return metadata
    known = carried(record.decode(where, metadata), renamed)
    return with_record(metadata, known if keeps_dialect else replace(known, dialect="", source=""))


def carried(known: PartsRecord, renamed: Mapping[str, str]) -> PartsRecord:
    """A record after tensors got other names; those that are gone are no longer in it.

    `renamed` is {old name: new name} of all that stay separate tensors.
    """
    fused = (_moved(one, [one.tensor], renamed) for one in known.fused)
    added = {renamed[name]: renamed[other] for name, other in known.added.items() if {name, other} <= renamed.keys()}
    unfused = (_moved(one, one.names, renamed) for one in known.unfused)
    return replace(
        known,
        fused=tuple(one for one in fused if one is not None),
        unfused=tuple(one for one in unfused if one is not None),
        added=added,
    )


def _moved(one: FusedTensor, there: Sequence[str], renamed: Mapping[str, str]) -> FusedTensor | None:
    """A recorded tensor under the names of another dialect, given the names in it that the file has."""
    if any(name not in renamed for name in there):
        return None
    old, new = _bases(there[0], renamed[there[0]])

    def moved(name: str) -> str:
        if name in renamed:
            return renamed[name]
        return f"{new}{name.removeprefix(old)}" if name.startswith(old) else ""

    parts = {term: tuple(moved(name) for name in names) for term, names in one.parts.items()}
    found = replace(
        one,
        tensor=moved(one.tensor),
        parts=parts,
    )
    complete = all([found.tensor, *(name for names in parts.values() for name in names)])
    return found if complete else None


def _bases(old: str, new: str) -> tuple[str, str]:
    """Two names without the words that both end with.

    >>> _bases("model.text.h.0.attn", "text.model.h.0.attn")
    ('model.text.', 'text.model.')
    """
    mine, theirs = old.split("."), new.split(".")
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    return "".join(f"{word}." for word in mine), "".join(f"{word}." for word in theirs)
