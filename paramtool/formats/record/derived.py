"""Names that the alias record derives: constants, and casts of other tensors; how much a record may derive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from paramtool.errors import PlanError, UnsafeError
from paramtool.formats.record.entries import named, whole_numbers, window_on, wrong
from paramtool.model.alias import Derived
from paramtool.model.dtype import DTYPES, is_widened
from paramtool.model.plan import Plan
from paramtool.model.storage import Cast, Constant, Storage
from paramtool.model.view import View, contiguous

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


def derived_views(
    where: str, stored: Mapping[str, View], items: Mapping[str, Any]
) -> tuple[dict[str, View], dict[int, Storage]]:
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
    _refuse_bomb(where, stored, views)
    return views, storages


def _refuse_bomb(where: str, stored: Mapping[str, View], derived: Mapping[str, View]) -> None:
    """UnsafeError if a record derives far more than its file stores."""
    nbytes = sum(view.nbytes for view in derived.values())
    most = _most_derived(sum(view.nbytes for view in stored.values()))
    if nbytes > most:
        largest = max(derived, key=lambda name: derived[name].nbytes)
        raise UnsafeError(
            f"{where}: its alias record derives {nbytes} bytes, {derived[largest].nbytes} of them {largest!r:.200}; "
            f"at most {most} are allowed for what the file stores",
            hint="the file is a decompression bomb, or was changed; docs/alias-record.md has the limits",
        )


def _constant(item: Mapping[str, Any], view: View) -> Constant:
    element = bytes.fromhex(item["constant"])
    if len(element) != view.dtype.block_bytes:
        raise ValueError(f"repeats an element of {len(element)} bytes; {view.dtype.name} has {view.dtype.block_bytes}")
    return Constant(element)


def _cast(where: str, name: str, item: Mapping[str, Any], stored: Mapping[str, View]) -> Cast:
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
