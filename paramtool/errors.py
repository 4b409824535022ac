"""Everything that can go wrong, and the exit code each class has.

    ParamtoolError
    ├── UsageError      2   the request does not fit: unknown name, wrong flag; also a ValueError
    │   └── NoSuchFileError     2   a file that the request names does not exist; also a FileNotFoundError
    ├── FormatError     3   the file is damaged, foreign, or of a form that is not supported
    │   ├── UnreadableError     3   the system does not let us read it
    │   │   └── MissingFileError    3   the checkpoint does not exist; also a FileNotFoundError
    │   └── Defects     3   several defects of one input, gathered and reported together
    ├── UnsafeError     4   the file asks for something that is refused: unknown calls, bombs
    ├── LayoutError     5   a recurrent network does not fit a layout, or it is not sure which one it has
    │   └── UnknownSizesError   5   its shapes alone do not determine its sizes
    ├── PlanError       6   what was asked for cannot be written exactly in the target format
    │   └── ModelError  6   a model and a file do not fit, in `load_model`; also a RuntimeError
    │       ├── TieError    6   the model ties names that the file holds with different bytes
    │       └── LockError   6   a file does not hold the weights of a lock, in `load_model` and `load_file`
    └── OutputError     7   the output could not be written: it exists, the disk is full, permissions

Exit code 0 means fine and 1 means findings: a check that was asked for did not hold, which is an answer and no
error.

A message says where, what was found, what was expected and what to do next.  `hint` holds the last part, `message` the
others, as a terminal shows them; `str(error)` is both, and its flags are keywords.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from typing import Any, SupportsFloat, SupportsIndex, SupportsInt, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound="ParamtoolError")
R = TypeVar("R")

MAX_LISTED = 20
"""The most lines of one kind that are shown; the others are counted."""


MAX_LINE = 1000
MAX_MESSAGE = 8000
"""Characters of a line, and of all lines, of what an error says: names, paths and values of a file have any length."""


def printable(path: str) -> str:
    """A path on one line: what cannot be printed, such as a line break, as Python escapes it."""
    return path if path.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


def bounded(text: str) -> str:
    """A message with the middle of each line cut out that is too long, and of all of it.

    >>> len(bounded("a" * 5000)), bounded("short")
    (927, 'short')
    """
    if len(text) <= MAX_LINE and text.isprintable():  # a short line, which nearly all are
        return text
    lines = text.split("\n", MAX_MESSAGE)
    return _cut("\n".join(_cut(line, MAX_LINE) for line in lines), MAX_MESSAGE)


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a text, and how much was left out between; characters count as they are shown."""
    shown = len(text) if text.isprintable() else len(repr(text))
    if shown <= most:
        return text
    keep = (most - 100) * len(text) // shown
    tail = keep // 4
    return f"{text[: keep - tail]} [... {len(text) - keep} characters ...] {text[len(text) - tail :]}"


def plural(counted: int | Sized, one: str, many: str = "") -> str:
    """A number, or that of some things, with its word, and with the verb that follows where both forms are given.

    >>> plural(1, "name"), plural(0, "name"), plural(12000, "tensor does", "tensors do")
    ('1 name', '0 names', '12000 tensors do')
    """
    number = counted if isinstance(counted, int) else len(counted)
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def some(names: Sequence[str], most: int) -> str:
    """The first names of several, and how many more there are.

    >>> some(["a", "b", "c"], 2), some(["a"], 2)
    ("'a', 'b' and 1 more", "'a'")
    """
    return leading(names, most, lambda name: f"{name!r:.200}")


def leading(found: Sequence[T], most: int = 3, show: Callable[[T], str] = str, between: str = ", ") -> str:
    """The first of several as they are shown, and how many more there are.

    >>> leading([1, 2, 3], 2), leading("ab", show=repr, between=" = ")
    ('1, 2 and 1 more', "'a' = 'b'")
    """
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{between.join(map(show, found[:most]))}{more}"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """At most three of `names` that `name` could have been meant for, the most similar first.

    >>> nearest("transformer-5", ["torch", "tensorrt", "transformers-4", "transformers-5"])
    ['transformers-5', 'transformers-4']
    """
    from difflib import SequenceMatcher, get_close_matches

    found = get_close_matches(name, list(names), 3, LIKENESS)
    ratios = [SequenceMatcher(None, one, name).ratio() for one in found]
    return [one for one, ratio in zip(found, ratios, strict=True) if ratio > ratios[0] - MUCH_LESS]


LIKENESS = 0.6
"""The least similarity, from 0 to 1, at which a name is suggested."""
MUCH_LESS = 0.2
"""A name is not suggested if it is less similar than the first suggestion by this much."""


def listed(head: str, lines: Sequence[str], more: int = 0) -> str:
    """A head and its lines below it, the first ones written out and the others counted.

    `more` counts lines that the caller did not even keep.

    >>> print(listed("2 defects:", ["one", "two"]))
    2 defects:
      one
      two
    """
    return "\n  ".join([head, *_first(lines, more)])


def _first(lines: Sequence[str], more: int) -> tuple[str, ...]:
    """The first lines, and one that counts the others."""
    more += max(0, len(lines) - MAX_LISTED)
    return (*lines[:MAX_LISTED], *([f"and {more} more"] if more else []))


class ParamtoolError(Exception):
    """The base of every error that is the input's or the user's, never a bug of ours."""

    exit_code = 2
    hint: str
    """What to do next; shown on a line of its own."""
    _schema = "error/1"
    _members = "exit_code message hint"

    def __init__(self, message: str, hint: str = "") -> None:
        path, colon, rest = message.partition(": ")
        super().__init__(
            bounded(f"{printable(path)}{colon}{rest}" if not path.isprintable() and os.path.lexists(path) else message)
        )
        self.hint = bounded(hint)
        self.asked: tuple[Any, ...] = ()
        """What the pickles of a file that cannot be read ask for (`model.checkpoint.Unknown`), as far as it shows."""
        self.below: Any = None
        """The same of all files of a folder (`formats.folder.below.Below`)."""
        self.place: tuple[str, int, int] | None = None
        """The file of text that is wrong, the line and the column, each 0 where it is not known."""

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        """What Python shows: flags of the command line are keywords."""
        return with_keywords(f"{self.message}\nhint: {self.hint}" if self.hint else self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the finished message: the arguments of subclasses are not needed again."""
        state = dict(self.__dict__)
        if isinstance(self, OSError):
            state |= {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return _remade, (type(self), self.args), state

    def located(self: E, where: str, behind: str = "") -> E:
        """The same error with the place in front of its message, and more behind it."""
        self.args = (bounded(f"{where}: {self.message}{behind}"),)
        return self

    def at(self: E, path: str, line: int = 0, column: int = 0) -> E:
        """The same error about a place in a file of text, which is in front of its message."""
        self.place = path, line, column
        return self.located(":".join([path, *(str(number) for number in (line, column) if number)]))


KEYWORDS = {"o": "output", "from": "source", "to": "target", "each": "*_each"}
"""{a flag: the keyword of Python, or the function}, where they are not called alike."""
REPLACED = {
    "ties_from_config": "the config.json beside the input counts, and --config PATH gives another",
    "tolerance": "--atol X accepts differences of at most X, and --rtol of a part of the number",
    "keys_from_config": "--config PATH says whose model's names are written",
    "drop_optimizer": "--optimizer-state drop leaves it out",
    "untied_state": "--optimizer-state copy, split, zero or one",
    "tied_state": "--optimizer-state first or second",
    "max_bytes": "--max-inflated SIZE limits what all tensors may grow to",
}
"""{a former keyword: what does the same}; its flag was called alike."""
PROGRAMS = ("`paramtool ", "`python ", "`ulimit ")
"""How a line to type begins that names its program; the others are commands of paramtool."""
FLAGS = (
    r"`[a-z]+ (?:[^`]* )?-[^`]*`|`paramtool [^`]*`|paramtool [a-z].*|"
    r"""(?<![\w'/-])(?:--(no-)?|-(?=o\b))([a-z][a-z-]*)"""
    r"""(?:[ =]([A-Z][A-Za-z.=|,]*\b|'[^']*'|"[^"]*"|[\w/-]*[.][\w./-]+|[\w-]+(?=: )))?"""
)


def with_keywords(text: str) -> str:
    """A text whose flags are keywords as in Python, but for those of commands to type, which are named in full.

    >>> with_keywords("--config PATH gives another, --skip-unsupported leaves it out: paramtool inspect a --tree")
    'config=PATH gives another, skip_unsupported leaves it out: paramtool inspect a --tree'
    >>> with_keywords("models--org--name: --no-verify does not go with `lock --headers`")
    'models--org--name: verify=False does not go with `paramtool lock --headers`'
    """
    import re

    def keyword(found: re.Match[str]) -> str:
        if found[0][0] == "`" and not found[0].startswith(PROGRAMS):
            return f"`paramtool {found[0][1:]}"
        name, value = found[2], found[3] or ("False" if found[1] else "")
        return f"{KEYWORDS.get(name, name.replace('-', '_'))}{value and f'={value}'}" if name else found[0]

    return re.sub(FLAGS, keyword, text)


def misled(name: str, known: Iterable[str], given: Iterable[str], error: TypeError) -> Exception:
    """What a function `name` with the parameters `known` says of a call that it cannot take.

    >>> print(misled("convert", ["path", "target"], ["to"], TypeError("got an unexpected keyword argument 'to'")))
    paramtool.convert() got an unexpected keyword argument 'to'; did you mean target=...?
    """
    for key in given:
        if key in REPLACED:
            return UsageError(f"--{key} is replaced: {REPLACED[key]}")
        if key not in known:
            near = [KEYWORDS[key]] if KEYWORDS.get(key, "") in known else nearest(key, known) or [*known]
            return TypeError(f"paramtool.{name}() {error}; did you mean {' or '.join(f'{one}=...' for one in near)}?")
    return TypeError(f"paramtool.{name}() {error}; it is called as paramtool.{name}({', '.join(known)})")


def _remade(kind: type[E], args: tuple[Any, ...]) -> E:
    error: E = (OSError if issubclass(kind, OSError) else Exception).__new__(kind)
    error.args = args  # an OSError takes them in __init__ alone
    return error


FIRST = (70, 4, 7, 6, 5, 3, 2, 1)
"""Exit codes, that which counts most first."""


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of everything that happened, whose codes are given: an internal error, then what is unsafe.

    >>> exit_code([0, 1, 4, 3]), exit_code([2, 0, 1]), exit_code([])
    (4, 2, 0)
    """
    return min(codes, key=lambda code: FIRST.index(code) if code else len(FIRST), default=0)


def internal(error: Exception) -> ParamtoolError:
    """The error of one of several files, which hides no other: what it is, or an internal one for a defect of ours.

    PARAMTOOL_DEBUG raises it.
    """
    if isinstance(error, ParamtoolError):
        return error
    is_lock = isinstance(error, RuntimeError) and str(error).startswith("can't allocate ")  # a lock: bufferedio.c
    if is_lock or isinstance(error, (MemoryError, RecursionError, SystemError)):  # the last: no memory to say so
        what = "stack" if isinstance(error, RecursionError) else "memory"
        return FormatError(f"out of {what}", "the file may be a bomb, or the machine's memory is limited")
    if os.environ.get("PARAMTOOL_DEBUG"):
        raise error
    made = ParamtoolError(
        f"internal error: {type(error).__name__}: {error}",
        hint="this is a defect of paramtool; PARAMTOOL_DEBUG=1 shows where. Please report it",
    )
    made.exit_code = 70  # EX_SOFTWARE of sysexits.h
    return made


def message_of(error: BaseException) -> str:
    """What is wrong, without a hint: of an error of ours, or of any other.

    >>> message_of(UsageError("a.pt: no such name", hint="paramtool inspect a.pt")), message_of(ValueError("odd"))
    ('a.pt: no such name', 'odd')
    """
    return error.message if isinstance(error, ParamtoolError) else str(error)


class UsageError(ParamtoolError, ValueError):
    """The request does not fit the file or the command."""

    exit_code = 2


KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "None": ("None", (type(None),)),
    "bool": ("True or False", (SupportsInt,)),
    "int": ("a number of bytes", (SupportsIndex,)),
    "float": ("a number", (SupportsFloat,)),
    "str": ("text", (str,)),
    "Path": ("a path", (str, os.PathLike)),
    "os.PathLike": ("a path", (os.PathLike,)),
    "Mapping": ("a dict", (Mapping,)),
    "Sequence": ("a list", (Iterable,)),
    "Collection": ("a list", (Iterable,)),
}
"""{how the annotation of a keyword begins: what people call it, its types}; all integers of ours count bytes."""


def refuse_other(name: str, annotation: str, value: object) -> None:
    """UsageError where a keyword got a value of another type than its annotation; one of other classes fits any.

    >>> refuse_other("ties", "Mapping[str, str] | None", ["a=b"])
    Traceback (most recent call last):
    paramtool.errors.UsageError: ties is ['a=b']; expected a dict
    """
    import re

    items = dict(re.findall(r"(\w+)\[([^]]*)\]", annotation))
    kinds = re.sub(r"\[[^]]*\]", "", annotation).split(" | ")
    if not KINDS.keys() >= set(kinds):
        return
    is_one = isinstance(value, (str, bytes))
    fits = [one for one in kinds if isinstance(value, KINDS[one][1]) and not (is_one and Iterable in KINDS[one][1])]
    if not fits:
        words = " or ".join(dict.fromkeys(KINDS[one][0] for one in kinds if one != "None"))
        in_list = f"{name}=[{value!r:.200}]" if "a list" in words and is_one else ""
        raise UsageError(f"{name} is {value!r:.200}; expected {words}", hint=in_list)
    if fits[0] in items and isinstance(value, Collection):
        for item in (*value, *(value.values() if fits[0] == "Mapping" and isinstance(value, Mapping) else ())):
            refuse_other(f"an item of {name}", items[fits[0]].partition(", ")[0], item)


class NoSuchFileError(UsageError, FileNotFoundError):
    """A file that a request names beside the checkpoint, such as a list of names, does not exist."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(f"{printable(path)}: {message}", hint)
        self.errno, self.strerror, self.filename = errno.ENOENT, os.strerror(errno.ENOENT), path


class FormatError(ParamtoolError):
    """The file is damaged, is not what its name says, or has a form that is not supported."""

    exit_code = 3


class UnreadableError(FormatError):
    """The system does not let us read a file, or a part of it; `path` is that file."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(f"{printable(path)}: {message}", hint)
        self.path = path


class MissingFileError(UnreadableError, FileNotFoundError):
    """A checkpoint, or a file that it names, does not exist; `path` and `filename` are that file."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(path, message, hint)
        self.errno, self.strerror, self.filename = errno.ENOENT, os.strerror(errno.ENOENT), path


class Defects(FormatError):
    """Several defects of one input; `defects` holds one line each, the last of which may count what is not shown."""

    def __init__(self, where: str, defects: Sequence[str], hint: str = "", more: int = 0) -> None:
        count = len(defects) + more
        head = f"{where}: {plural(count, 'defect')}"
        super().__init__(listed(head, defects, more), hint)
        self.defects = tuple(map(bounded, _first(defects, more)))


class UnsafeError(ParamtoolError):
    """The file asks for something that is never done: calling unknown names, unbounded memory."""

    exit_code = 4


class LayoutError(ParamtoolError):
    """A network does not fit a layout: a cell has no place there, tensors are missing, or several readings fit."""

    exit_code = 5


class UnknownSizesError(LayoutError):
    """The shapes of a network's tensors do not determine its sizes; `names` are the tensors."""

    def __init__(self, message: str, names: Sequence[str], hint: str = "") -> None:
        super().__init__(message, hint)
        self.names = tuple(names)


class PlanError(ParamtoolError):
    """What was asked for cannot be written exactly in the target format."""

    exit_code = 6


class ModelError(PlanError, RuntimeError):
    """A model cannot be filled from a file: names are missing or left over, shapes or types differ."""


class TieError(ModelError):
    """A model shares memory between names that the file holds with different bytes."""


class LockError(ModelError):
    """A file does not hold the tensors that a lock says."""


class OutputError(ParamtoolError):
    """The output could not be written; nothing was left behind."""

    exit_code = 7
