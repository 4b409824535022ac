"""Reading a lock file, strictly: what a person edited is refused where it cannot be what `paramtool lock` wrote."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from paramtool.errors import FormatError, NoSuchFileError, UnsafeError
from paramtool.lockfile import digests
from paramtool.lockfile.lock import (
    COMPOUND,
    CONFIG,
    FACTS,
    HEADERS,
    MEMORY,
    NO_DATA,
    TIES,
    UNREAD,
    UNTIED,
    VERSION,
    Lock,
    LockedFile,
    LockedModel,
    LockedObject,
    LockedTensor,
    LockedTie,
    LockedView,
)
from paramtool.lockfile.words import count_of, shape_of, shape_text, split, unquoted
from paramtool.lockfile.write import FIRST_LINE
from paramtool.model.paths import check_name, named_beside

AGAIN = "restore it from git, or delete it and make it again with `paramtool lock`"
NO_LOCK = "name a file that `paramtool lock` wrote; a damaged lock can be restored from git"
"""The hint for a file that is not a lock."""
_VERSION = re.compile(r"# paramtool\.lock, version ([0-9]{1,9})\b")
_BEGINS = re.compile(
    r"(\xef\xbb\xbf)?\s*(<{7} [^\n]*\n)?("
    + _VERSION.pattern
    + r"|model [^\n]+\nfile [^\n]+ [0-9]+( sha256:[0-9a-f]{64})?\n(file|content) )"
)
"""A lock of any version, also after a byte order mark or a conflict of git, and one that has lost its first line."""
_HEX = re.compile(r"[0-9a-f]{64}")
_DTYPE = re.compile(r"[A-Za-z][A-Za-z0-9_:.+-]*")
CONFLICT = ("<<<<<<< ", "||||||| ", "=======", ">>>>>>> ")
"""How the lines begin that git writes around the two sides of a conflict (git merge, "How conflicts are presented")."""
ORDER = ("model", "file", "content", "unnamed", "dialect", "tied", "view", "object", "tensor", "lines")
"""The words that lines begin with, in the order in which a model has them."""


MAX_FIRST = 200
"""Bytes of a file in which its first line is looked for, where it is not a lock."""
MAX_HEAD = 4000
"""Bytes of a file in which its first lines are looked for."""


def read(path: str) -> Lock:
    """The lock file at a path; FormatError says the line, what was found and what was expected."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a named pipe would wait for its writer
            raise FormatError("is not a file; expected a lock", NO_LOCK).at(path)
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise NoSuchFileError(path, "no such lock", "`paramtool lock PATH` writes one") from None
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}").at(path) from None
    if data.startswith(b"\xef\xbb\xbf"):
        raise FormatError("begins with a byte order mark, which a lock does not have", AGAIN).at(path, 1)
    try:
        return parse(data.decode("ascii"), path)
    except UnicodeDecodeError as error:
        _check_version(data[:MAX_HEAD].decode("ascii", "backslashreplace"), path)
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError("a byte that is not ASCII; `paramtool lock` escapes names", AGAIN).at(path, line) from None


def begins_lock(head: bytes) -> bool:
    """Whether a file that begins with `head` is a lock, of any version, damaged or not.

    >>> begins_lock(b"# paramtool.lock, version 1: ..."), begins_lock(b"PK")
    (True, False)
    """
    return _BEGINS.match(head[:MAX_HEAD].decode("latin-1").replace("\r\n", "\n")) is not None


def parse(text: str, path: str = "paramtool.lock") -> Lock:
    """The lock that a text is; FormatError as of `read`."""
    lines = text.replace("\r\n", "\n").split("\n")  # as git writes text on Windows
    version = _check_version(text[:MAX_HEAD], path)
    if lines[-1]:
        raise FormatError("the last line does not end: the file is truncated", AGAIN).at(path, len(lines))
    models: dict[str, LockedModel] = {}
    for draft in _drafts(lines, path):
        model = draft.model()
        if model.path in models:
            raise FormatError(f"{model.path!r} is locked twice", AGAIN).at(path, model.line)
        models[model.path] = replace(model, version=version)
    if not models:
        raise FormatError("locks no model", AGAIN).at(path)
    if list(models) != sorted(models):
        raise FormatError("the models are not sorted by their paths", AGAIN).at(path)
    return Lock(path, models)


def _check_version(head: str, path: str) -> int:
    """The version of a lock; FormatError where a text does not begin as a lock of one that is read."""
    line = head.split("\n")[0].rstrip("\r")[:MAX_FIRST]
    found = _VERSION.match(line)
    if found is None and line.startswith(CONFLICT[0]):
        raise _conflict(line).at(path, 1)
    if found is None:
        is_lock = not head or begins_lock(head.encode())
        what = "its first line is lost" if is_lock and head else "not a lock of paramtool"
        what += f": found {line[:60]!r}, expected {FIRST_LINE.partition(':')[0].format(VERSION)!r}"
        raise FormatError(what, AGAIN if is_lock else NO_LOCK).at(path, 1)
    if not 1 <= int(found[1]) <= VERSION:
        hint = "use the paramtool that wrote it, or delete it and make it again with this one"
        what = f"a lock of version {int(found[1])}; this paramtool reads versions 1 to {VERSION}"
        raise FormatError(what, hint).at(path, 1)
    return int(found[1])


def _conflict(line: str) -> FormatError:
    """The error of a line that git writes where a merge is not resolved."""
    hint = "take whole models of either side, from `model` to `lines`, or " + AGAIN
    return FormatError(f"an unresolved merge of git: found {line[:60]!r}", hint)


def _drafts(lines: list[str], path: str) -> Iterator[_Draft]:
    draft: _Draft | None = None
    for number, line in enumerate(lines[1:-1], 2):
        if not line or line.startswith("#"):
            continue
        if line.startswith(CONFLICT):
            raise _conflict(line).at(path, number)
        try:
            word, *words = split(line)
            if word == "model":
                if draft is not None:
                    yield draft
                draft = _Draft(path, number, check_name("model", _name(words)), written=[line])
            elif draft is None:
                raise FormatError(f"found {word!r:.40}, expected a line `model PATH` first")
            else:
                draft.add(word, words, number)
                draft.written += [line] if word != "lines" else []
        except FormatError as error:
            raise FormatError(error.message, error.hint or AGAIN).at(path, number) from None
        except UnsafeError as error:
            raise error.at(path, number) from None
    if draft is not None:
        yield draft


def _name(words: list[str]) -> str:
    _count(words, 1)
    return unquoted(words[0])


def _count(words: list[str], least: int, most: int | None = None) -> None:
    if not least <= len(words) <= (most or least):
        raise FormatError(f"found {len(words)} words after the first, expected {least}")


def _digest(word: str, *prefixes: str) -> str:
    prefix, _, digits = word.partition(":")
    if prefix not in prefixes or not _HEX.fullmatch(digits.removeprefix("span:")):
        raise FormatError(f"{word!r:.80} is not a digest: expected {prefixes[0]}: and 64 hexadecimal digits")
    return digits


@dataclass
class _Draft:
    """A model while its lines are read."""

    path: str
    line: int
    name: str
    files: list[LockedFile] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    ties: list[LockedTie] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    """{name that shares memory: its line}"""
    views: dict[str, LockedView] = field(default_factory=dict)
    objects: dict[str, LockedObject] = field(default_factory=dict)
    tensors: dict[str, LockedTensor] = field(default_factory=dict)
    last: str = "model"
    written: list[str] = field(default_factory=list)
    """Its lines, but the last, which has their digest."""

    def add(self, word: str, words: list[str], line: int) -> None:
        """Read one line of it."""
        if word not in ORDER:
            raise FormatError(f"found {word!r:.40}, expected one of {', '.join(ORDER)}")
        if ORDER.index(word) < ORDER.index(self.last):
            raise FormatError(f"a line `{word}` after a line `{self.last}`: the lines of a model are not in order")
        self.last = word
        match word:
            case "content" | "unnamed":
                _count(words, 1)
                _digest(words[0], "b3", "b3-headers")
                self._once(word, words[0], line)
            case "lines":
                _count(words, 1)
                digest = digests.blake3_of("\n".join(self.written))
                if _digest(words[0], "b3") != digest:
                    raise FormatError(
                        f"the lines of {self.name!r} have the digest b3:{digest}: some were edited, added or lost"
                    )
                self._once(word, words[0], line)
            case "dialect":
                self._once(word, _name(words), line)
            case "file":
                _count(words, 2, 3)
                sha256 = _digest(words[2], "sha256") if len(words) == 3 else ""
                name = named_beside("file", unquoted(words[0]), folders=True, portable=False)
                self.files.append(LockedFile(name, count_of(words[1]), sha256, line))
                _check_sorted([file.name for file in self.files[-2:]], "file")
            case "tied":
                self._tied(words, line)
            case "view":
                _count(words, 3)
                view = LockedView(unquoted(words[0]), count_of(words[1]), shape_of(words[2]), line)
                _check_sorted([*list(self.views)[-1:], view.name], "view")
                if view.name not in self.shared:
                    raise FormatError(
                        f"a view of {view.name!r:.80}, which no line `tied` has with {' or '.join(MEMORY)}"
                    )
                self.views[view.name] = view
            case "object":
                _count(words, 3)
                one = LockedObject(unquoted(words[0]), _digest(words[1], "b3"), unquoted(words[2]), line)
                _check_sorted([*list(self.objects)[-1:], one.key], "object")
                self.objects[one.key] = one
            case "tensor":
                self._tensor(words, line)

    def _once(self, word: str, value: str, line: int) -> None:
        if word in self.values:
            raise FormatError(f"a second line `{word}`; the first is line {self.lines[word]}")
        self.values[word], self.lines[word] = value, line

    def _tied(self, words: list[str], line: int) -> None:
        if not words:
            raise FormatError("found nothing after `tied`, expected names and a kind")
        *names, kind = words
        least = 1 if kind in (CONFIG, UNTIED) else 3  # a config may tie a name to one that the file does not store
        if kind not in TIES or len(names) < least or len(names) % 2 == 0 or {*names[1::2]} - {"="}:
            raise FormatError(f"expected `tied A = B KIND`, where KIND is one of {', '.join(TIES)}")
        tie = LockedTie(tuple(map(unquoted, names[::2])), kind, line)
        for one, other in zip(tie.names, tie.names[1:], strict=False):
            _check_sorted([one, other], "name")
        for name in tie.names if kind in MEMORY else ():
            if (first := self.shared.setdefault(name, line)) != line:
                raise FormatError(f"{name!r:.80} is in the alias set of line {first}, too")
        self.ties.append(tie)

    def _tensor(self, words: list[str], line: int) -> None:
        _count(words, 4)
        name, dtype, shape, digest = words
        if not _DTYPE.fullmatch(dtype):
            raise FormatError(f"{dtype!r:.40} is not an element type")
        if digest not in (UNREAD, NO_DATA):
            digest = _digest(digest, "b3")
        one = LockedTensor(unquoted(name), dtype, shape_of(shape), digest, line)
        if (first := self.tensors.get(one.name)) is not None:
            raise FormatError(f"tensor {one.name!r} a second time; the first is line {first.line}")
        if self.tensors and next(reversed(self.tensors)) > one.name:
            raise FormatError(f"tensor {one.name!r} is not in its place: tensors are sorted by their names")
        self.tensors[one.name] = one

    def model(self) -> LockedModel:
        """The model, once its last line is read; its digests have to be those of its lines."""
        for word in ("content", "unnamed", "lines"):
            if word not in self.values:
                raise FormatError(f"model {self.name!r} has no line `{word}`", AGAIN).at(self.path, self.line)
        found = {"content": digests.content(self.tensors.values()), "unnamed": digests.unnamed(self.tensors.values())}
        for word, digest in found.items():
            if self.values[word] != digest:
                says = f"have the digest {digest}, and the line says {self.values[word]}"
                what = f"the tensors of {self.name!r} {says}: lines were edited, added or lost"
                raise FormatError(what, AGAIN).at(self.path, self.lines[word])
        if not self.files:
            raise FormatError(f"model {self.name!r} has no line `file`", AGAIN).at(self.path, self.line)
        self._check_hashes()
        for view in self.views.values():
            tensor = self.tensors.get(view.name)
            if tensor is None or len(view.strides) != len(tensor.shape):
                has = f"has the shape {shape_text(tensor.shape)}" if tensor else "has no line `tensor`"
                raise FormatError(f"a view of {view.name!r:.80}, which {has}", AGAIN).at(self.path, view.line)
        return LockedModel(
            self.name, tuple(self.files), self.values["content"], self.values["unnamed"], self.tensors,
            tuple(self.ties), self.objects, self.values.get("dialect", ""), self.views, self.line, self.lines,
        )  # fmt: skip

    def _check_hashes(self) -> None:
        """FormatError where some files have a sha256 and others none, or otherwise than the tensors that were read."""
        is_headers = self.values["content"].startswith(HEADERS)
        bytes_of = (one.digest for one in self.tensors.values() if one.dtype not in (COMPOUND, FACTS))
        was_read = any(digest not in (UNREAD, NO_DATA) for digest in bytes_of)
        are_hashed = not is_headers if is_headers or was_read else bool(self.files[0].sha256)
        for file in self.files:
            if bool(file.sha256) != are_hashed:
                has = f"file {file.name!r:.80} has {'a' if file.sha256 else 'no'} sha256"
                expected = "expected one for each file, or with --headers for none"
                raise FormatError(f"{has}; {expected}", AGAIN).at(self.path, file.line)


def _check_sorted(names: list[str], what: str) -> None:
    if len(names) == 2 and names[0] >= names[1]:
        raise FormatError(f"{what} {names[1]!r} is there twice, or not sorted")
