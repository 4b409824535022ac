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
    names = {was.name for was in locked.files}
    if len(names) == len(seen) == 1 and "/" not in (name := next(iter(seen))):
        pairs: list[tuple[LockedFile, Pointer | LockedFile | None]] = [(locked.files[0], seen[name])]
        names = {name}  # one file, which may have another name
    else:
        pairs = [(was, seen.get(was.name)) for was in locked.files]
    said = [(was.line, *one) for was, found in pairs for one in _file(was, found)]
    said += ((locked.line, "pointer-changed", f"{name!r} is not in the lock") for name in sorted(seen.keys() - names))
    for line, rule, message in said:
        # The bytes of a file that is read for its hash alone are all that is known of it.
        severity = ERROR if rule == "file-changed" else ""
        yield BY_NAME[rule].found(message, severity=severity, path=path, place=FileLine(lock, line))


def _file(was: LockedFile, found: Pointer | LockedFile | None) -> Iterator[tuple[str, str]]:
    """(rule, message) of a file: nothing for a pointer to the same bytes, else to others, or to unknown ones."""
    unhashed = "the lock has no hash of its files (--headers)" if not was.sha256 else ""
    now = then = ""
    if found is None:
        yield "pointer-changed", f"{was.name!r} is not there, and no pointer to it"
    elif isinstance(found, LockedFile):
        if found.nbytes != was.nbytes or (was.sha256 and found.sha256 != was.sha256):
            yield "file-changed", f"{was.name!r}: other bytes; files beside it are pointers, so no tensor was read"
            return
    elif found.nbytes not in (None, was.nbytes):
        now, then = f"{found.nbytes} bytes", f"{was.nbytes} bytes"
    elif not found.sha256:
        unhashed = f"a {found.kind} pointer of version 0 has no sha256"
    elif was.sha256 and found.sha256 != was.sha256:
        now, then = f"sha256:{found.sha256}", f"sha256:{was.sha256}"
    if now and isinstance(found, Pointer):
        yield "pointer-changed", f"{was.name!r}: the {found.kind} pointer is of a file with {now}, the lock has {then}"
    elif unhashed and found is not None:
        yield "not-checked", f"{was.name!r}: only its size was compared: {unhashed}"
