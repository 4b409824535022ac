"""What counts as unsafe, and what a person may allow: the one place where that is decided.

    unsafe     a name that a pickle calls and the tables do not know; one that a tensor cannot be read without; and any
               mention of a name that runs programs or code (`_policy_names.py`)
    allowed    by `allow_class`: an exact name, or, for classes that only hold data, a pattern; never what is in
               FORBIDDEN_MODULES
               by `allow_unknown`: everything

What is known, and so is not unsafe: the constructors of a format (`torch/globals.py`), classes that only hold data
(`INERT` in `pickle/values.py`), members of enums (`pickle/_enum_classes.py`).

Nothing is imported or called either way: allowing only says that a person has looked, and wants to go on without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from shlex import quote

from paramtool.errors import ParamtoolError, UnsafeError, UsageError, listed, some
from paramtool.formats._policy_names import ANYWHERE, DANGEROUS_MODULES, DANGEROUS_NAMES, FORBIDDEN_MODULES
from paramtool.formats.pickle.values import RENAMED
from paramtool.model.checkpoint import Unknown

WILD = "*?["


def is_dangerous(path: str) -> bool:
    """Whether a name runs programs or code, so that a mention of it is enough."""
    return path in DANGEROUS_NAMES or _within(path, DANGEROUS_MODULES) or _reaches(path, ANYWHERE - {"builtins"})


def is_forbidden(path: str) -> bool:
    """Whether a name can never be allowed."""
    return _within(path, FORBIDDEN_MODULES) or _reaches(path, ANYWHERE)


def _within(path: str, modules: Iterable[str]) -> bool:
    """Whether a path is one of these modules, or inside one."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts) + 1))


def _reaches(path: str, modules: Iterable[str]) -> bool:
    """Whether one of these modules stands anywhere in a path but at its end, where it is the name of something."""
    return not set(modules).isdisjoint(path.split(".")[:-1])


def checked(allow_class: Sequence[str]) -> tuple[str, ...]:
    """The names and patterns of `allow_class`, under the names of Python 3; UsageError where one cannot be allowed."""
    names = (allow_class,) if isinstance(allow_class, str) else tuple(allow_class)
    return tuple(map(_checked, names))


def _checked(name: str) -> str:
    module, dot, rest = name.partition(".")
    name = f"{RENAMED.get(module, module)}{dot}{rest}"
    fixed = name[: min((name.index(letter) for letter in WILD if letter in name), default=len(name))]
    if not name or name.startswith("."):
        raise UsageError(f"--allow-class {name!r}: is no name; expected MODULE.CLASS, or a pattern such as 'mylib.*'")
    if is_forbidden(fixed.rstrip(".")) or is_forbidden(fixed):
        raise UsageError(
            f"--allow-class {name!r}: can never be allowed: what is in {_module_of(fixed)} can run programs or code, "
            "read files, or reach what does",
            hint="allow the one class that holds data by its exact name",
        )
    return name


def _module_of(path: str) -> str:
    """The forbidden module that a path is in, for people."""
    parts = path.rstrip(".").split(".")
    heads = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((head for head in heads if head in FORBIDDEN_MODULES), path)


def is_unsafe(unknown: Unknown, allow_class: Sequence[str] = ()) -> bool:
    """Whether an unknown name makes its file unsafe; `allow_class` as `checked` gives it.

    A pattern allows classes that only hold data, and never a call.
    """
    if is_dangerous(unknown.path):
        return True
    return (unknown.called or bool(unknown.needed_by)) and unknown.path not in allow_class


def is_allowed(unknown: Unknown, allow_class: Sequence[str]) -> bool:
    """Whether a person has allowed this very name."""
    if is_dangerous(unknown.path):
        return False
    if unknown.called or unknown.needed_by:
        return unknown.path in allow_class
    return any(unknown.path == name or fnmatchcase(unknown.path, name) for name in allow_class)


def unsafe(
    found: Iterable[Unknown], allow_class: Sequence[str] = (), allow_unknown: bool = False
) -> tuple[Unknown, ...]:
    """What of the unknown names makes a file unsafe."""
    return () if allow_unknown else tuple(one for one in found if is_unsafe(one, allow_class))


def refuse(
    where: str,
    found: Iterable[Unknown],
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    *,
    besides: str = "",
) -> None:
    """UnsafeError where a file asks for what is unsafe; `besides` says what else is wrong with it."""
    bad = unsafe(found, allow_class, allow_unknown)
    if bad:
        advice = "" if besides else f"`paramtool inspect {quote(where)}` lists what is in the file"
        raise UnsafeError(_message(where, bad) + (f"\nbesides, {besides}" if besides else ""), _hint(bad, advice))


def refuse_all(files: Sequence[tuple[str, Sequence[Unknown]]]) -> None:
    """UnsafeError where files that were looked at ask for something; each with what is unsafe of it."""
    bad = [one for _, found in files for one in found]
    if bad:
        raise UnsafeError("\n".join(_message(where, found) for where, found in files if found), _hint(bad, ""))


def _message(where: str, bad: Sequence[Unknown]) -> str:
    head = f"{where}: unsafe: its pickle calls or names what is not known to hold only data; nothing was run:"
    return listed(head, [format_unknown(one) for one in bad])


def format_unknown(unknown: Unknown) -> str:
    """What is done with an unknown name, for people."""
    needed = f", needed by {some(unknown.needed_by, 3)}" if unknown.needed_by else ""
    return f"{unknown.path}, named{needed}" if not unknown.called else f"{unknown.path}{unknown.arguments}{needed}"


def _hint(bad: Sequence[Unknown], advice: str) -> str:
    """What a person can do, the strongest last."""
    steps = [advice] if advice else []
    names = [one.path for one in bad if not (is_forbidden(one.path) or is_dangerous(one.path))]
    names = list(dict.fromkeys(names))
    classes = " ".join(f"--allow-class {quote(name)}" for name in names[:MANY])
    if names and len(names) == len({one.path for one in bad}) <= MANY:
        steps.append(f"if you know {'these classes' if len(names) > 1 else 'this class'}, {classes}")
    steps.append("--allow-unknown goes on without what would have been called")
    return "; ".join(steps)


MANY = 6
"""The most names that a hint writes out as options."""


def judged(
    where: str, error: ParamtoolError, allow_class: Sequence[str] = (), allow_unknown: bool = False
) -> ParamtoolError:
    """An error of reading, or the UnsafeError that it is where the file also asks for what is unsafe."""
    try:
        refuse(where, error.asked, allow_class, allow_unknown, besides=error.message)
    except UnsafeError as refused:
        refused.asked = error.asked
        return refused
    return error


def merged(found: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """One for each name: a call outweighs a mention, and tensors that need it are put together."""
    made: dict[str, Unknown] = {}
    for one in found:
        old = made.get(one.path)
        if old is None:
            made[one.path] = one
        else:
            strongest = one if one.called and not old.called else old
            needed = tuple(dict.fromkeys((*old.needed_by, *one.needed_by)))
            made[one.path] = Unknown(one.path, strongest.called, strongest.arguments, needed)
    return tuple(made.values())
