"""The alias record: every name of a deduplicated file, with its geometry and the reason for the link.

Written as JSON text under one key, `paramtool.aliases`, beside the user's own metadata (docs/alias-record.md has the
specification).  For an alias that is its whole owner, the flat pair `alias: owner` is written too.  safetensors and
huggingface_hub write such pairs, which have no geometry and no evidence.

    {"version": 1,
     "aliases": {"head.weight": {"owner": "emb.weight", "memory": "emb.weight", "evidence": "storage",
                                 "relation": "same", "dtype": "float32", "shape": [10, 4], "strides": [4, 1],
                                 "offset": 0, "position": 7}},
     "stored": {}, "spans": [], "objects": ...}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from paramtool.errors import Defects, FormatError, PlanError, UnsafeError
from paramtool.formats import object_tree, strict_json
from paramtool.formats.record import layouts
from paramtool.formats.record.damage import DAMAGE
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias, Derived
from paramtool.model.checkpoint import BY_CONFIG, Entries, Entry, Link
from paramtool.model.dtype import DTYPES, is_widened
from paramtool.model.objects import Node
from paramtool.model.plan import Plan
from paramtool.model.storage import Cast, Constant, Storage
from paramtool.model.view import View, Views, contiguous

KEY = "paramtool.aliases"
VERSION = 3
"""The newest version.  Each record has the lowest version that can express it, so that earlier programs can read it:
2 if something is derived; 3 if tensors require gradients, are torch parameters or storages, or have a role that their
names do not say, or if the tree needs it
(`object_tree.needs_version_3`)."""
RESERVED = {KEY, layouts.KEY, "format"}
"""Metadata keys that are never flat pairs."""


def refuse_own_keys(plan: Plan) -> None:
    """PlanError if the input's own metadata has a key under which the record would be written."""
    for key in (KEY, layouts.KEY):
        if key in plan.metadata:
            raise PlanError(
                f"the input's metadata has a key {key!r} that paramtool did not write",
                hint="rename that key in the input first",
            )


def flat_pairs(plan: Plan, aliases: Iterable[Alias]) -> dict[str, str]:
    """`alias: owner` for the aliases that are their whole owner."""
    aliases = list(aliases)
    owners = {alias.owner for alias in aliases}
    wholes = {target.name: target.view for target in plan.targets if target.name in owners}
    return {
        alias.name: alias.owner
        for alias in aliases
        if alias.window == wholes.get(alias.owner) and alias.owner not in plan.anonymous
    }


NOTHING = json.dumps({"version": 1, "aliases": {}, "stored": {}, "spans": []}, separators=(",", ":"))
"""The record of a file without aliases whose own metadata looks like flat pairs, see `reads_as_pairs`."""


def reads_as_pairs(metadata: Mapping[str, object], names: Collection[str]) -> bool:
    """Whether a reader would take metadata for flat pairs, given tensors of these names and no record."""
    pairs = ((key, owner) for key, owner in metadata.items() if isinstance(owner, str) and key not in RESERVED)
    return any(owner in names and key not in names for key, owner in pairs)


def encode(plan: Plan, stored: set[str], objects: str, first: bool = True) -> str:
    """The record of the aliases whose owner is in `stored`, as JSON text; empty if no record is needed.

    `objects` says how the tree is written: `runs` (short, for a file that holds every name), `explicit` (for one
    shard of several), or empty for not at all.  Constants need no stored tensor and are in the `first` shard.
    """
    position = {name: k for k, name in enumerate(plan.names)}
    derived = {n: how for n, how in plan.derived.items() if (how.window.storage in stored if how.window else first)}
    refuse_to_derive_much(plan, derived, stored)
    stored = stored | derived.keys()
    record: dict[str, Any] = {"version": 2 if derived else 1}
    relations = plan.relations()
    record["aliases"] = {
        one.name: _encode_alias(one, relations[one.name], position[one.name])
        for one in plan.aliases
        if one.owner in stored
    }
    if derived:
        order = sorted(derived, key=position.__getitem__)
        record["derived"] = {n: encode_derived(plan.names[n].window, derived[n], position[n]) for n in order}
    record["stored"] = {
        name: {"memory": one.alias_set, "memory_evidence": _said(one.set_evidence)}
        for name, one in plan.names.items()
        if one.is_owner and name in stored and (one.alias_set, one.set_evidence) != (name, "storage")
    }
    record["spans"] = sorted(plan.anonymous & stored)
    if objects and not object_tree.is_flat(plan.objects, plan.order):
        record["objects"] = object_tree.encode(
            object_tree.complete(plan.objects, plan.order), plan.order, runs=objects == "runs"
        )
        record["version"] = 3 if object_tree.needs_version_3(plan.objects) else record["version"]
    if marks := _marks(plan, stored | record["aliases"].keys()):
        record |= {"version": 3, **marks}
    said = any(record[key] for key in ("aliases", "stored", "spans"))
    if not said and not marks and not {"objects", "derived"} & record.keys():
        return ""
    return json.dumps(record, separators=(",", ":"))


def _marks(plan: Plan, names: Collection[str]) -> dict[str, Any]:
    """Facts about tensors: which require gradients, which are not plain tensors, and roles that nothing else says."""
    marks: dict[str, Any] = {}
    if trainable := [name for name, one in plan.names.items() if one.requires_grad and name in names]:
        marks["requires_grad"] = trainable
    if kinds := {name: one.kind for name, one in plan.names.items() if one.kind and name in names}:
        marks["kinds"] = kinds
    said = {role: [name for name in held if name in names] for role, held in object_tree.unsaid_roles(plan).items()}
    if any(said.values()):
        marks["roles"] = {role: held for role, held in said.items() if held}
    return marks


def _encode_alias(alias: Alias, relation: str, position: int) -> dict[str, Any]:
    item: dict[str, Any] = {
        "owner": alias.owner,
        "memory": alias.alias_set,
        "evidence": _said(alias.evidence),
        "relation": relation,
        "dtype": alias.window.dtype.name,
        "shape": alias.window.shape,
        "strides": alias.window.strides,
        "offset": alias.window.offset,
        "position": position,
    }
    if alias.evidence == "content" and alias.alias_set != alias.name:
        item["memory_evidence"] = _said(alias.set_evidence)
    return item | ({BY_CONFIG: True} if alias.set_evidence == BY_CONFIG else {})


def _said(evidence: str) -> str:
    """The evidence in words that every version of the record has."""
    return "declared" if evidence == BY_CONFIG else evidence


@frozen
class Names:
    """The names that a record or flat pairs define, from the tensors that a file stores."""

    entries: Entries
    objects: Node | None
    leftover: Mapping[str, str]
    """The user's own metadata."""
    storages: Mapping[int, Storage] = field(default_factory=dict)
    """Storages of what is derived."""


def decode(where: str, stored: Views, metadata: Mapping[str, str]) -> Names:
    """Every name of a file, from its stored tensors and its metadata.

    If the file has a full record, the flat pairs that repeat it are ignored.  Without a record, a flat pair is a
    declared tie if its value is a stored tensor and its key is not.
    """
    leftover = omit(metadata, (KEY, layouts.KEY))
    if KEY not in metadata:
        pairs = {k: v for k, v in leftover.items() if reads_as_pairs({k: v}, stored)}
        entries = declared({name: Entry(view) for name, view in stored.items()}, pairs)
        return Names(entries, None, omit(leftover, pairs))
    return decode_document(where, stored, document(where, metadata[KEY]), leftover)


def damaged(where: str, error: BaseException) -> FormatError:
    """The error for a malformed record."""
    what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return FormatError(
        f"{where}: its alias record (metadata key {KEY!r}) is damaged: {what}",
        hint="docs/alias-record.md describes the record; the safetensors library can still read the stored tensors",
    )


def document(where: str, text: str | bytes) -> dict[str, Any]:
    """The record as JSON data; FormatError if it is not JSON, or has an unknown version."""
    try:
        record: dict[str, Any] = strict_json.strict(text, surrogates=True)
    except ValueError as error:
        raise damaged(where, ValueError(f"it is not valid JSON: {error}")) from None
    if not isinstance(record, dict) or "version" not in record:
        what = "has no 'version'" if isinstance(record, dict) else "is not a JSON object"
        raise damaged(where, ValueError(f"it {what}"))
    version = record["version"]
    if type(version) is not int or not 1 <= version <= VERSION:
        raise FormatError(
            f"{where}: its alias record has version {version!r}, this program reads 1 to {VERSION}",
            hint="update paramtool",
        )
    return record


def decode_document(
    where: str, stored: Views, record: dict[str, Any], metadata: Mapping[str, str], *, whole: bool = False
) -> Names:
    """Every name that a record defines; `metadata` is the other metadata of the file, including flat pairs.

    `whole` says that `stored` has all tensors of the checkpoint; otherwise they may be those of one shard.
    """
    form(where, record)
    try:
        derived, storages = derived_views(where, stored, record.get("derived", {}))
        entries = object_tree.with_said(recorded(where, stored, derived, record), record.get("roles", {}))
        objects = _objects(record["objects"], entries, whole) if "objects" in record else None
    except DAMAGE as error:
        raise damaged(where, error) from None
    aliases = record["aliases"]
    own = {k: v for k, v in metadata.items() if not (k in aliases and aliases[k]["owner"] == v)}
    return Names(entries, objects, own, storages)


def _objects(data: Any, names: Iterable[str], whole: bool) -> Node:
    try:
        found = object_tree.decode(data, tuple(names), whole)
        object_tree.check_attributes(found)
        return found
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"objects: {error}") from None


def declared(entries: Entries, pairs: Mapping[str, str]) -> Entries:
    """Flat pairs of other tools (`alias: owner`): the alias is its owner, by declaration."""
    found = dict(entries)
    for alias, owner in pairs.items():
        link = found[owner].link or Link(owner, "storage")
        found[owner] = found[owner]._replace(link=link)
        found[alias] = found[owner]._replace(link=Link(link.alias_set, "declared", owner=link.owner or owner))
    return found


# --- Names that the alias record derives: constants, and casts of other tensors; how much a record may derive --------


MIN_DERIVED_NBYTES = 16 << 30
DERIVED_PER_STORED = 16
"""The largest ratio of derived to stored bytes; every file may derive `MIN_DERIVED_NBYTES`.  A few digits in a record
could ask for a petabyte, and the casts and constants of real checkpoints are far smaller."""


def refuse_to_derive_much(plan: Plan, derived: Iterable[str], stored: Collection[str]) -> None:
    """PlanError if a reader would refuse the record as a bomb."""
    nbytes = sum(plan.names[name].window.nbytes for name in derived)
    most = _most_derived(sum(target.nbytes for target in plan.targets if target.name in stored))
    if nbytes > most:
        raise PlanError(
            f"{plan.source}: {nbytes} bytes would be derived in one file; a reader derives at most {most}",
            hint="omit --fold-constants or --derive-casts; docs/alias-record.md says what a reader refuses",
        )


def _most_derived(stored_nbytes: int) -> int:
    return max(MIN_DERIVED_NBYTES, DERIVED_PER_STORED * stored_nbytes)


def encode_derived(view: View, how: Derived, position: int) -> dict[str, Any]:
    item: dict[str, Any] = {"dtype": view.dtype.name, "shape": view.shape, "position": position}
    window = how.window
    if window is None:
        return item | {"constant": how.element.hex()}
    place = {"owner": window.storage, "strides": window.strides, "offset": window.offset}
    # if the numbers are equal in both types either could be stored: the record describes the cast that is done
    return item | {"cast": place | {"dtype": window.dtype.name, "lossless": bool(is_widened(window.dtype, view.dtype))}}


def derived_views(where: str, stored: Views, items: Mapping[str, Any]) -> tuple[Views, dict[int, Storage]]:
    """The derived names of the record: {name: a view of its own storage}, and these storages."""
    views: dict[str, View] = {}
    storages: dict[int, Storage] = {}
    number = max((int(view.storage) for view in stored.values()), default=-1)
    for name, item in items.items():
        number += 1
        with named(name):
            whole_numbers(item["shape"])
            view = contiguous(number, DTYPES[item["dtype"]], item["shape"])
            backing = _constant(item, view) if "constant" in item else _cast(where, name, item, stored)
        views[name] = view
        storages[number] = Storage(number, view.nbytes, backing)
    # UnsafeError if a record derives far more than its file stores
    nbytes = sum(view.nbytes for view in views.values())
    most = _most_derived(sum(view.nbytes for view in stored.values()))
    if nbytes > most:
        largest = max(views, key=lambda name: views[name].nbytes)
        raise UnsafeError(
            f"{where}: its alias record derives {nbytes} bytes, {views[largest].nbytes} of them {largest!r:.200}; "
            f"at most {most} are allowed for what the file stores",
            hint="the file is a decompression bomb, or was changed; docs/alias-record.md has the limits",
        )
    return views, storages


def _constant(item: Mapping[str, Any], view: View) -> Constant:
    element = bytes.fromhex(item["constant"])
    if len(element) != view.dtype.block_bytes:
        raise ValueError(f"repeats an element of {len(element)} bytes; {view.dtype.name} has {view.dtype.block_bytes}")
    return Constant(element)


def _cast(where: str, name: str, item: Mapping[str, Any], stored: Views) -> Cast:
    """The cast that a record describes; an error if its owner does not exist, or the cast is not supported."""
    place, dtype = item["cast"], DTYPES[item["dtype"]]
    if place["owner"] not in stored:
        raise wrong(where, f"derives {name!r} from {place['owner']!r}, which is not stored")
    owner = stored[place["owner"]]
    window = window_on(where, name, place | {"shape": item["shape"]}, owner)
    if window.dtype != owner.dtype:
        raise ValueError(f"is cast from {window.dtype.name}, and {place['owner']!r} is {owner.dtype.name}")
    lossless = is_widened(window.dtype, dtype)
    if lossless is None:
        raise ValueError(f"is {dtype.name}, cast from {window.dtype.name}; paramtool never writes such a cast")
    if place["lossless"] is not lossless:
        says = "lossless" if place["lossless"] else "not lossless"
        raise ValueError(f"says that its cast from {window.dtype.name} to {dtype.name} is {says}")
    return Cast(window, dtype, lossless)


# --- The entries that an alias record defines: views of stored tensors, in the order of the source -------------------


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


def recorded(where: str, stored: Views, derived: Views, record: dict[str, Any]) -> Entries:
    """Every name of the record, from the stored tensors and the derived ones."""
    check(where, stored, record)
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


def in_order(plain: Iterable[tuple[str, Entry]], aliases: Iterable[tuple[str, Entry]]) -> Entries:
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


# --- Checks of an alias record: the form of its JSON, and that every name leads to bytes in a single step ------------
#
# owner       a tensor that is stored or derived, never an alias
# memory      the first name of the alias set, with the same owner, so that there are no chains or cycles
# position    a number that no other name has


CHANGED = "the file was changed after paramtool wrote it: write it again with dedup, or remove the record"

_PLACE = {"owner": str, "dtype": str, "strides": list, "offset": int}
_CAST = {**_PLACE, "lossless": bool}
_ITEMS: Mapping[str, Mapping[str, type]] = {
    "aliases": {**_PLACE, "memory": str, "evidence": str, "shape": list, "position": int},
    "stored": {"memory": str, "memory_evidence": str},
    "derived": {"dtype": str, "shape": list, "position": int},
}
"""The members that an item of each part must have; other members are ignored."""
_WORDS = {str: "a string", list: "a list", int: "a whole number", bool: "true or false"}


def form(where: str, record: Mapping[str, Any], needed: Iterable[str] = ("aliases", "stored", "spans")) -> None:
    """Defects if a part of a record or a member of an item is missing, or has the wrong type."""
    found = [f"has no {part!r}" for part in needed if part not in record]
    spans = record.get("spans", [])
    if not strict_json.are_texts(spans, list):
        found.append(f"has the 'spans' {spans!r:.60}; expected a list of names")
    for part, members in _ITEMS.items():
        items = record.get(part, {})
        if not isinstance(items, dict):
            found.append(f"has the {part!r} {items!r:.60}; expected an object")
            continue
        for name, item in items.items():
            wrong = [*_item(item, members), *(_how(item) if part == "derived" else ())]
            found += [f"{name!r:.200} of {part!r} {text}" for text in wrong]
    found += _mark_defects(record)
    if found:
        raise Defects(f"{where}: its alias record", found, CHANGED)


KINDS = ("parameter", "storage", "untyped storage")


def _mark_defects(record: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the members that version 3 adds for tensors."""
    trainable, kinds = record.get("requires_grad", []), record.get("kinds", {})
    if not strict_json.are_texts(trainable, list):
        yield f"has the 'requires_grad' {trainable!r:.60}; expected a list of names"
    if not isinstance(kinds, dict) or not all(isinstance(kind, str) and kind in KINDS for kind in kinds.values()):
        yield f"has the 'kinds' {kinds!r:.60}; expected an object of names, each with one of {', '.join(KINDS)}"


def _item(item: object, members: Mapping[str, type]) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"is {item!r:.60}; expected an object"
        return
    for member, kind in members.items():
        if member not in item:
            yield f"has no {member!r}"
        elif type(item[member]) is not kind:
            yield f"has the {member} {item[member]!r:.60}; expected {_WORDS[kind]}"
        elif member == "dtype" and item[member] not in DTYPES:
            yield f"has the dtype {item[member]!r:.60}, which is not known; expected one such as 'float32'"


def _how(item: object) -> Iterator[str]:
    """What is wrong with how a name is derived."""
    if not isinstance(item, dict):
        return
    if ("constant" in item) == ("cast" in item):
        yield f"has {'both' if 'cast' in item else 'neither'} of 'constant' and 'cast'; expected one of them"
    elif "cast" in item:
        yield from (f"has a cast that {text}" for text in _item(item["cast"], _CAST))
    else:
        yield from _item(item, {"constant": str})


def check(where: str, stored: Collection[str], record: Mapping[str, Any]) -> None:
    """Defects if names of a well-formed record refer to missing names, to aliases, or to each other."""
    if record["version"] == 1 and "derived" in record:
        raise Defects(f"{where}: its alias record", ["has derived names, which version 1 does not have"], CHANGED)
    found = list(_owners(stored, record))
    if not found:  # alias sets depend on owners, so one wrong owner would be reported several times
        found = [*_alias_sets(stored, record), *_positions(record)]
    if found:
        raise Defects(f"{where}: its alias record", found, CHANGED)


def _owners(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], record["spans"], record.get("derived", {})
    yield from (f"{name!r} is a span that is not stored" for name in spans if name not in stored)
    yield from (f"{name!r} is both derived and stored; expected one of them" for name in derived if name in stored)
    said = (name for name in record["stored"] if name not in stored and name not in derived)
    yield from (f"describes {name!r}, which is not stored" for name in said)
    for name, item in aliases.items():
        owner = item["owner"]
        if name in stored or name in derived:
            yield f"{name!r} is both an alias and {'stored' if name in stored else 'derived'}; expected one of them"
        elif owner not in stored and owner not in derived:
            kind = "itself an alias" if owner in aliases else "not in the file"
            yield f"{name!r} is a view of {owner!r}, which is {kind}; expected a stored tensor"


def _alias_sets(stored: Collection[str], record: Mapping[str, Any]) -> Iterator[str]:
    aliases, spans, derived = record["aliases"], set(record["spans"]), record.get("derived", {})
    said = {name: item["memory"] for part in (record["stored"], aliases) for name, item in part.items()}
    owners = {name: item["owner"] for name, item in aliases.items()}
    for name, alias_set in said.items():
        if alias_set == name:
            continue
        if alias_set in spans or not (alias_set in stored or alias_set in aliases or alias_set in derived):
            yield f"{name!r} is in the alias set ('memory') of {alias_set!r}, which is not a name of the file"
        elif (further := said.get(alias_set, alias_set)) != alias_set:
            in_turn = f"which is in that of {further!r}; expected the first name of the set"
            yield f"{name!r} is in the alias set ('memory') of {alias_set!r}, {in_turn}"
        elif (mine := owners.get(name, name)) != (other := owners.get(alias_set, alias_set)):
            yield (
                f"{name!r} is in the alias set ('memory') of {alias_set!r}, but is a view of {mine!r}, "
                f"and the other of {other!r}"
            )
    for name, item in aliases.items():
        if item["evidence"] == "content" and item["memory"] == said.get(item["owner"], item["owner"]):
            yield (
                f"{name!r} has the evidence 'content' and is in the alias set ('memory') of its owner; "
                "equal is not tied"
            )


def _positions(record: Mapping[str, Any]) -> Iterator[str]:
    items = {**record["aliases"], **record.get("derived", {})}
    numbers = {name: item["position"] for name, item in items.items()}
    yield from (f"{name!r} has the position {number}" for name, number in numbers.items() if number < 0)
    yield from twice(numbers)


def twice(numbers: Mapping[str, int]) -> Iterator[str]:
    """Names that have the same position.

    >>> list(twice({"a": 1, "b": 1, "c": 2}))
    ["'a' and 'b' have the same position, 1"]
    """
    often = {number for number, count in Counter(numbers.values()).items() if count > 1}
    for number in sorted(often):
        names = " and ".join(repr(name) for name, mine in numbers.items() if mine == number)
        yield f"{names:.300} have the same position, {number}"


def shards(document: Mapping[str, Any], positions: Mapping[str, int]) -> Iterator[str]:
    """Contradictions between the records of shards, and between them and the record in the index.

    `positions` are those of the names in the shards' records; `document` is the record in the index, or empty.
    """
    yield from (f"the alias records of its shards clash: {text}" for text in twice(positions))
    promised = [name for part in ("aliases", "derived") for name in document.get(part, {})]
    lacking = (name for name in promised if name not in positions)
    yield from (f"its alias record has {name!r}, but no shard does; a shard was changed" for name in list(lacking)[:1])
