"""What metadata say of tensors that get other names, or leave, as in a section, an export, another dialect: the record
of parts, and the entries that torchao writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paramtool.errors import PlanError
from paramtool.formats import strict_json
from paramtool.formats.record import parts as record
from paramtool.formats.record.damage import DAMAGE
from paramtool.grouping import omit
from paramtool.model import quantised
from paramtool.model.checkpoint import Entries
from paramtool.model.parts import FusedTensor, PartsRecord


def with_record(metadata: Mapping[str, str], known: PartsRecord) -> dict[str, str]:
    """Metadata with a record of parts, or without one if there is nothing to say."""
    found = {key: text for key, text in metadata.items() if key != record.KEY}
    text = record.encode(known)
    return {**found, record.KEY: text} if text else found


def carried_metadata(
    where: str, metadata: Mapping[str, str], renamed: Mapping[str, str], *, keeps_dialect: bool = True
) -> Mapping[str, str]:
    """Metadata that speak of tensors that stay, `renamed` as of `carried`; the same where they speak of none.

    FormatError if they are damaged, PlanError as of `with_tensors`.
    """
    metadata = with_tensors(where, metadata, renamed)
    if record.KEY not in metadata:
        return metadata
    known = carried(record.decode(where, metadata), renamed)
    return with_record(metadata, known if keeps_dialect else replace(known, dialect="", source=""))


TOGETHER = "take both, and rename what both names begin with: --rename 'old.*=new.*'"


def check_codes(where: str, entries: Entries, renamed: Mapping[str, str], hint: str = TOGETHER) -> None:
    """PlanError where codes and what they are read with, such as scales, are parted: `renamed` as of `carried`."""
    if (found := quantised.parted(entries, renamed)) is not None:
        names = " and ".join(repr(renamed[name]) if name in renamed else f"no {name!r}" for name in found)
        raise PlanError(
            f"{where}: {found[0]!r} has codes, which mean nothing without {found[1]!r}; the output would have {names}",
            hint=hint,
        )


TENSORS = "tensor_names"
"""torchao's list of the tensors of a file, of which each has an entry of its own with the names of its parts
(prototype/safetensors/safetensors_support.py, `flatten_tensor_state_dict`): `0.weight` is in `0._weight_qdata`, ..."""
PLAIN = '{"_type": "Tensor"}'


def with_tensors(where: str, metadata: Mapping[str, str], renamed: Mapping[str, str]) -> Mapping[str, str]:
    """Metadata whose entries of torchao's tensors are those of {old name: new name}; the same without such entries.

    PlanError where the parts of a tensor would get names that torchao does not find, or only some of them stay.
    """
    stored = of_torchao(metadata)
    entries: dict[str, str] = {}
    for name, parts in stored.items():
        there = [renamed.get(one, "") for one in parts.values() or [name]]
        if not any(there):
            continue
        new = there[0]
        if parts:
            at, _, word = new.removesuffix(f"_{next(iter(parts))}").rpartition("._")
            new = f"{at}.{word}"
            if not (at and word) or there != [_part(new, one) for one in parts]:
                found = ", ".join(map(repr, filter(None, there)))
                raise PlanError(
                    f"{where}: {name!r} is a tensor of torchao's in {', '.join(map(repr, parts.values()))}; the output "
                    f"would have {found}, where torchao does not find it",
                    hint="take all of its parts, and rename its module: --rename 'old.*=new.*'",
                )
        entries[new] = metadata[name]
    if [*entries] == [*stored]:
        return metadata
    known = {one for name, parts in stored.items() for one in parts.values() or [name]}
    entries |= {new: PLAIN for old, new in renamed.items() if old not in known}
    rest = omit(metadata, stored)
    return {**rest, **entries, TENSORS: json.dumps(list(entries))}


def of_torchao(metadata: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """{tensor of torchao: {what it calls a part: the name that stores that}}; without parts a plain tensor."""
    try:
        said = {name: strict_json.strict(metadata[name]) for name in strict_json.strict(metadata[TENSORS])}
        return {name: {p: _part(name, p) for p in one.get("_tensor_data_names", ())} for name, one in said.items()}
    except DAMAGE:  # it is another program's key
        return {}


def _part(name: str, part: str) -> str:
    """What torchao calls a part of a tensor.

    >>> _part("h.0.weight", "qdata")
    'h.0._weight_qdata'
    """
    module, _, word = name.rpartition(".")
    return f"{module}._{word}_{part}"


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
