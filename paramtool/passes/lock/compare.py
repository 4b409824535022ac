"""What differs between a model of a lock file and the checkpoint that is there now, as findings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from paramtool.errors import plural, some
from paramtool.lockfile.lock import CONFIG, NO_DATA, UNREAD, UNTIED, LockedModel, LockedTensor, LockedTie
from paramtool.lockfile.words import shape_text
from paramtool.model.finding import FileLine, Finding
from paramtool.model.rule_ids import BY_NAME

MANY = 4
"""The most names that a message lists."""
MEMORY = ("storage", "declared")
"""Kinds of ties that the checkpoint itself has."""


def findings(locked: LockedModel, now: LockedModel, lock: str, *, content_only: bool = False) -> Iterator[Finding]:
    """What differs from the lock; `lock` is the path of the lock file.

    With `content_only` the tensors alone are compared: not the ties, the objects, the dialect and the files.
    """
    judge = _Judge(locked, now, lock)
    yield from judge.tensors()
    if not content_only:
        yield from chain(judge.ties(), judge.declared(), judge.objects(), judge.dialect(), judge.files())


class _Judge:
    """Compares one model."""

    def __init__(self, locked: LockedModel, now: LockedModel, lock: str) -> None:
        self.locked, self.now, self.lock = locked, now, lock
        self.is_renamed = locked.content != now.content and locked.unnamed == now.unnamed

    def find(self, rule: str, line: int, message: str, names: tuple[str, ...] = ()) -> Finding:
        """One finding, at a line of the lock."""
        kind = BY_NAME[rule]
        return Finding(
            rule, message, names, id=kind.id, severity=kind.severity, path=self.now.path,
            place=FileLine(self.lock, line or self.locked.line),
        )  # fmt: skip

    def tensors(self) -> Iterator[Finding]:
        """Tensors that changed, are gone or are new; one finding for a model that was renamed as a whole."""
        if self.is_renamed:
            names = sorted(set(self.locked.tensors) - set(self.now.tensors))
            count = plural(len(names), "tensor")
            message = f"{count} have other names, and the same types, shapes and bytes: {some(names, MANY)}"
            yield self.find("renamed", self.locked.lines.get("content", 0), message)
            return
        for name, was in self.locked.tensors.items():
            found = self.now.tensors.get(name)
            if found is None:
                yield self.find("missing", was.line, f"{name!r} is not there", (name,))
            elif difference := _difference(was, found):
                yield self.find("changed", was.line, f"{name!r}: {difference}", (name,))
        for name in self.now.tensors:
            if name not in self.locked.tensors:
                yield self.find("added", 0, f"{name!r} is not in the lock", (name,))
        if self.locked.is_headers_only or self.now.is_headers_only:
            yield self.find(
                "not-checked", self.locked.lines.get("content", 0), "only names, types and shapes were compared"
            )

    def ties(self) -> Iterator[Finding]:
        """Names that shared memory and do not, and the other way round, of those that both have."""
        if self.is_renamed:
            return
        both = self.locked.tensors.keys() & self.now.tensors.keys()
        then, today = _heads(self.locked), _heads(self.now)
        for tie in self.locked.ties:
            if tie.kind in MEMORY:
                yield from self._apart(tie, [name for name in tie.names if name in both], today, "tie-lost")
        for tie in self.now.ties:
            if tie.kind in MEMORY:
                yield from self._apart(tie, [name for name in tie.names if name in both], then, "tie-gained")

    def _apart(self, tie: LockedTie, names: list[str], other: dict[str, str], rule: str) -> Iterator[Finding]:
        for name in names[1:]:
            if other.get(name, name) != other.get(names[0], names[0]):
                if rule == "tie-lost":
                    message = f"{name!r} shared memory with {names[0]!r}, and does not any more"
                else:
                    message = f"{name!r} shares memory with {names[0]!r}, and did not before"
                yield self.find(rule, tie.line, message, (names[0], name))

    def declared(self) -> Iterator[Finding]:
        """Ties that the config declares now and not then, or then and not now."""
        then, today = ({tie[:2]: tie for tie in model.ties if tie.kind in (CONFIG, UNTIED)} for model in self._both())
        for key in sorted({*then, *today}):
            if (key in then) != (key in today):
                names = " = ".join(map(repr, key[0]))
                words = ("tied", "ties") if key[1] == CONFIG else ("untied", "unties")
                if key in then:
                    message = f"config.json {words[0]} {names}, and does not any more"
                else:
                    message = f"config.json {words[1]} {names}, and did not before"
                yield self.find("declared-ties", then[key].line if key in then else 0, message, key[0])

    def _both(self) -> tuple[LockedModel, LockedModel]:
        return self.locked, self.now

    def objects(self) -> Iterator[Finding]:
        """Keys that are not tensors and have another value."""
        for key, was in self.locked.objects.items():
            found = self.now.objects.get(key)
            if found is None:
                yield self.find("objects-changed", was.line, f"object {key!r} is not there; it was {was.words}")
            elif found[1:3] != was[1:3]:
                values = f"was {was.words}, is {found.words}" if was.words != found.words else f"({was.words})"
                yield self.find("objects-changed", was.line, f"object {key!r} has another value {values}")
        for key, found in self.now.objects.items():
            if key not in self.locked.objects:
                yield self.find("objects-changed", 0, f"object {key!r} is not in the lock; it is {found.words}")

    def dialect(self) -> Iterator[Finding]:
        """Names of another dialect."""
        if self.locked.dialect != self.now.dialect:
            was, found = (model.dialect or "none that is known" for model in self._both())
            line = self.locked.lines.get("dialect", 0)
            yield self.find("dialect-changed", line, f"the names were those of {was}, and are those of {found}")

    def files(self) -> Iterator[Finding]:
        """Files of other bytes; where every tensor is the same, that is another container or sharding."""
        was = {(file.name, file.nbytes, file.sha256) for file in self.locked.files}
        found = {(file.name, file.nbytes, file.sha256) for file in self.now.files}
        if was != found and all(file.sha256 for file in (*self.locked.files, *self.now.files)):
            names = sorted({name for name, _, _ in was ^ found})
            same = "; every tensor is the same" if self.locked.content == self.now.content else ""
            line = next((file.line for file in self.locked.files if file.name in names), 0)
            yield self.find("file-changed", line, f"{some(names, MANY)}: not the bytes of the lock{same}")


def _difference(was: LockedTensor, found: LockedTensor) -> str:
    if was.dtype != found.dtype:
        return f"was {was.dtype}, is {found.dtype}"
    if was.shape != found.shape:
        return f"had the shape {shape_text(was.shape)}, has {shape_text(found.shape)}"
    if was.digest == found.digest or UNREAD in (was.digest, found.digest):
        return ""
    if NO_DATA in (was.digest, found.digest):
        return "had no bytes, has some" if was.digest == NO_DATA else "had bytes, has none"
    return "has other numbers"


def _heads(model: LockedModel) -> dict[str, str]:
    """{name: the first name that it shares memory with}."""
    return {name: tie.names[0] for tie in model.ties if tie.kind in MEMORY for name in tie.names}
