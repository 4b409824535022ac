"""The one gate of what is unsafe: whatever else a command fails for, it fails for that first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from paramtool.errors import ParamtoolError, UnsafeError
from paramtool.formats import describe
from paramtool.formats.once import remembering

P = ParamSpec("P")
R = TypeVar("R")


def judging(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Where a command fails, all checkpoints that it was given under these parameters are judged before it ends.

    An unsafe file comes before an output that exists, before usage, and before a broken file.
    """

    def made(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        @remembering()
        def kept(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except UnsafeError:
                raise
            except ParamtoolError as error:
                from inspect import signature

                _refuse(names, signature(function).bind_partial(*args, **kwargs).arguments, error)
                raise

        return kept

    return made


def _refuse(names: tuple[str, ...], given: Mapping[str, Any], error: ParamtoolError) -> None:
    """UnsafeError where a checkpoint that was given is unsafe, or a neighbour; other errors of reading are no news."""
    from paramtool.formats import policy

    said = {**given, **given.get("more", {})}
    weights, allowed, unknown, *values = (
        said.get(name, getattr(said.get("options"), name, None))
        for name in ("weights", "allow_class", "allow_unknown", *names)
    )
    try:
        policy.checked(allowed or ())
    except ParamtoolError:  # which says what can never be allowed
        return
    every = [path for value in values for path in (value if isinstance(value, (list, tuple)) else (value,))]
    for path in every if error.below is None or len(every) > 1 else ():  # the error has all of a folder in it
        if isinstance(path, (str, os.PathLike)):
            chosen = weights if weights and os.path.isfile(os.path.join(path, weights)) else None
            try:
                found = describe(path, chosen, allow_class=allowed or (), allow_unknown=bool(unknown))
            except UnsafeError:
                raise
            except ParamtoolError:
                continue
            below = None if chosen else found.below
            asked = {found.checkpoint.path: found.checkpoint.unknown, **(below.asked() if below else {})}
            policy.refuse(asked.items(), allowed or (), bool(unknown), refused=below.refused if below else ())
