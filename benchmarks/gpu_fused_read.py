"""Reading a result of gpu_fused.py again: it is checked once, here, and nothing behind it has to doubt.

A check takes what was found and the name of where, and raises `Damaged`; checks are made of checks:

    listed(whole(1, 9), 2)([1, 5], "member")
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from gpu_fused_grid import AXES, GATES, LARGEST, MODES, MOST_VALUES, TOLERANCE, VARIANTS
from gpu_fused_report import SCHEMA, Result

from paramtool.errors import UsageError

MOST_BYTES = 64 << 20
LONGEST = 1000
Check = Callable[[Any, str], None]


class Damaged(Exception):
    """A member is not what it has to be."""


def read(path: str) -> Result:
    """An earlier result; UsageError where it is none, or a damaged one."""
    try:
        found = json.loads(_bytes(path), parse_constant=_constant)
    except Damaged as error:
        raise UsageError(f"{path}: is damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no {SCHEMA}: no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path}: is no {SCHEMA}")
    try:
        RESULT(found, "")
    except Damaged as error:
        raise UsageError(f"{path}: is damaged: {error}") from None
    return found


def _bytes(path: str) -> bytes:
    """The file's bytes: of a regular one, and of no more than 64 MiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for a writer
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path}: is no regular file")
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: has more than {MOST_BYTES} bytes; a result has fewer")
    return data


def _constant(word: str) -> NoReturn:
    raise Damaged(f"holds {word}, expected numbers that JSON has")


def _refuse(where: str, found: Any, expected: str) -> NoReturn:
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: str(found).lower()}
    what = kinds.get(type(found)) or ascii(found)[:40]
    raise Damaged(f"member {where} is {what}, expected {expected}")


def whole(low: int, high: int) -> Check:
    """A whole number in these bounds."""

    def check(found: Any, where: str) -> None:
        if type(found) is not int or not low <= found <= high:
            _refuse(where, found, f"a whole number from {low} to {high}")

    return check


def real(low: float, high: float) -> Check:
    """A number in these bounds."""

    def check(found: Any, where: str) -> None:
        if type(found) not in (int, float) or not low <= found <= high:
            _refuse(where, found, f"a number from {low:g} to {high:g}")

    return check


def one_of(known: Collection[Any]) -> Check:
    """One of these, and of the same type."""

    def check(found: Any, where: str) -> None:
        if not any(type(found) is type(one) and found == one for one in known):
            _refuse(where, found, f"one of {', '.join(map(json.dumps, known))}")

    return check


def text(found: Any, where: str) -> None:
    """A line without anything that a terminal could obey."""
    if type(found) is not str or not found.isprintable() or len(found) > LONGEST:
        _refuse(where, found, f"a line of at most {LONGEST} printable characters")


def or_null(check: Check) -> Check:
    """The same, or nothing."""
    return lambda found, where: None if found is None else check(found, where)


def listed(check: Check, least: int = 0, most: float = math.inf, distinct: bool = False) -> Check:
    """A list of such."""

    def check_all(found: Any, where: str) -> None:
        if type(found) is not list or not least <= len(found) <= most:
            _refuse(where, found, "a list" if most == math.inf else f"a list of {least} to {most}")
        for number, one in enumerate(found):
            check(one, f"{where}[{number}]")
        if distinct and len(set(found)) < len(found):
            _refuse(where, found, "a list that names nothing twice")

    return check_all


def members(checks: dict[str, Check]) -> Check:
    """An object with at least these members."""

    def check(found: Any, where: str) -> None:
        if type(found) is not dict:
            _refuse(where, found, "an object")
        for name, one in checks.items():
            inside = f"{where}.{name}".lstrip(".")
            if name not in found:
                raise Damaged(f"member {inside} is missing, expected in every result")
            one(found[name], inside)

    return check


def texts(found: Any, where: str) -> None:
    """An object with nothing but texts, the device's name among them."""
    members({"device": text})(found, where)
    for name, value in found.items():
        text(name, f"{where}, the name of one")
        text(value, f"{where}.{name}")


SIZE, SECONDS, NBYTES = whole(1, LARGEST), real(1e-12, 1e9), whole(0, 1 << 60)
CELL = {"kind": one_of(GATES), "dtype": one_of(TOLERANCE), **dict.fromkeys((*AXES, "batch"), SIZE)}
SETTINGS = members(
    {
        "kinds": listed(one_of(GATES), 1, len(GATES), distinct=True),
        "dtypes": listed(one_of(TOLERANCE), 1, len(TOLERANCE), distinct=True),
        **dict.fromkeys(AXES, listed(SIZE, 1, MOST_VALUES, distinct=True)),
        "batch": SIZE,
    }
)
FIGURES = members(
    {"median_seconds": SECONDS, "quartiles_seconds": listed(SECONDS, 2, 2), "peak_nbytes": or_null(NBYTES)}
)
MEASURED = members(CELL | {"variants": members(dict.fromkeys(VARIANTS, members(dict.fromkeys(MODES, FIGURES))))})
RESULT = members(
    {
        "date": text,
        "device": one_of(("cuda", "cpu")),
        "machine": texts,
        "settings": SETTINGS,
        "cells": listed(MEASURED),
        "not_measured": listed(members(CELL | {"reason": text, "failed": one_of((False, True))})),
    }
)
