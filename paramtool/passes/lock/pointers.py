"""A model of a lock against the pointers that stand for its files: judged by hash, without the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.lockfile.lock import LockedFile, LockedModel
from paramtool.lockfile.pointer import Pointer
from paramtool.model.finding import BY_NAME, ERROR, FileLine, Finding

Seen = Mapping[str, "Pointer | LockedFile"]
"""{name of a file inside the model: its pointer, or the file itself where it was fetched}."""


def findings(locked: LockedModel, seen: Seen, lock: str, path: str) -> Iterator[Finding]:
    """What the pointers at a path say against the lock at `lock`; nothing where every hash is the one of the lock."""
    judge = _FileJudge(locked, lock, path)
    if len(locked.files) == len(seen) == 1 and "/" not in (name := next(iter(seen))):
        yield from judge.file(locked.files[0], seen[name])  # one file, which may have another name
        return
    for was in locked.files:
        yield from judge.file(was, seen.get(was.name))
    for name in sorted(seen.keys() - {was.name for was in locked.files}):
        yield judge.find("pointer-changed", locked.line, f"{name!r} is not in the lock")


class _FileJudge:
    """Judges the files of one model."""

    def __init__(self, locked: LockedModel, lock: str, path: str) -> None:
        self.locked, self.lock, self.path = locked, lock, path

    def find(self, rule: str, line: int, message: str, severity: str = "") -> Finding:
        """One finding, at a line of the lock."""
        kind, place = BY_NAME[rule], FileLine(self.lock, line)
        return Finding(rule, message, id=kind.id, severity=severity or kind.severity, path=self.path, place=place)

    def file(self, was: LockedFile, found: Pointer | LockedFile | None) -> Iterator[Finding]:
        """One file of the lock: a pointer to the same bytes, to others, or to bytes of which no hash is known."""
        if found is None:
            yield self.find("pointer-changed", was.line, f"{was.name!r} is not there, and no pointer to it")
        elif isinstance(found, LockedFile):
            if found.nbytes != was.nbytes or (was.sha256 and found.sha256 != was.sha256):
                message = f"{was.name!r}: other bytes; files beside it are pointers, so no tensor was read"
                yield self.find("file-changed", was.line, message, ERROR)
            elif not was.sha256:
                yield self._unknown(was, "the lock has no hash of its files (--headers)")
        elif found.nbytes not in (None, was.nbytes):
            yield self._other(was, found, f"{found.nbytes} bytes", f"{was.nbytes} bytes")
        elif not found.sha256:
            yield self._unknown(was, f"a {found.kind} pointer of version 0 has no sha256")
        elif not was.sha256:
            yield self._unknown(was, "the lock has no hash of its files (--headers)")
        elif found.sha256 != was.sha256:
            yield self._other(was, found, f"sha256:{found.sha256}", f"sha256:{was.sha256}")

    def _other(self, was: LockedFile, found: Pointer, now: str, then: str) -> Finding:
        message = f"{was.name!r}: the {found.kind} pointer is of a file with {now}, the lock has {then}"
        return self.find("pointer-changed", was.line, message)

    def _unknown(self, was: LockedFile, why: str) -> Finding:
        return self.find("not-checked", was.line, f"{was.name!r}: only its size was compared: {why}")
