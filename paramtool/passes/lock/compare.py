"""What differs between a model of a lock file and the checkpoint that is there now, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from paramtool.errors import leading, plural, some
from paramtool.grouping import grouped
from paramtool.lockfile.lock import (
    APART,
    COMPOUND,
    CONFIG,
    EPSILONS,
    FACTS,
    MEMORY,
    NESTING,
    NESTING_DCP,
    NO_DATA,
    UNREAD,
    UNTIED,
    VERSION,
    VERSIONS,
    LockedFile,
    LockedModel,
    LockedTensor,
    LockedTie,
)
from paramtool.lockfile.pointer import Pointer
from paramtool.lockfile.words import shape_text
from paramtool.model.finding import BY_NAME, ERROR, WARNING, FileLine, Finding
from paramtool.passes.lock import places
from paramtool.passes.objects_differ import TOP

MANY = 4
"""The most names that a message lists."""
MAX_TRIED = 1000
"""The most names of an alias set that are tried as the partner of one."""
SAID = {CONFIG: "config.json tied", UNTIED: "config.json untied", "": "no config.json said anything of"}
SAYS = {CONFIG: "config.json ties", UNTIED: "config.json unties", "": "no config.json says anything of"}
"""What a config said or says of names, by the kind of its tie."""


def findings(locked: LockedModel, now: LockedModel, lock: str, *, content_only: bool = False) -> Iterator[Finding]:
    """What differs from the lock; `lock` is the path of the lock file.

    With `content_only` the tensors alone are compared: not the ties, the objects, the dialect and the files.
    """
    judge = _Judge(locked, now, lock)
    yield from chain(judge.tensors(), judge.versions(), judge.not_read())
    if not content_only:
        yield from chain(judge.ties(), judge.declared(), judge.objects(), judge.dialect(), judge.files())


def of_weights(locked: LockedModel, now: LockedModel, lock: str, content_only: bool) -> Iterator[Finding]:
    """What differs in tensors and, without `content_only`, in which memory they share: what a loader gives on."""
    judge = _Judge(locked, now, lock)
    yield from judge.tensors()
    if not content_only:
        yield from judge.ties()


class _Judge:
    """Compares one model."""

    def __init__(self, locked: LockedModel, now: LockedModel, lock: str) -> None:
        self.locked, self.now, self.lock = locked, now, lock
        self.is_renamed = locked.content != now.content and locked.unnamed == now.unnamed and not self._changed()

    def _changed(self) -> bool:
        """Whether a name that both have has something else: exchanged tensors are no new names."""
        both = self.locked.tensors.keys() & self.now.tensors.keys()
        return any(self.locked.tensors[name][1:4] != self.now.tensors[name][1:4] for name in both)

    def find(self, rule: str, line: int, message: str, names: tuple[str, ...] = (), *, severity: str = "") -> Finding:
        """One finding, at a line of the lock."""
        place = FileLine(self.lock, line or self.locked.line)
        return BY_NAME[rule].found(message, names, severity=severity, path=self.now.path, place=place)

    def say(self, rule: str, line: int, what: str, *names: str) -> Finding:
        """One finding about the first of some tensors; the same can be said of others."""
        one = self.find(rule, line, f"{names[0]!r}{'' if what.startswith(':') else ' '}{what}", names)
        return replace(one, what=what.removeprefix(": "))

    def tensors(self) -> Iterator[Finding]:
        """Tensors that changed, are gone or are new; one finding for a model that was renamed as a whole."""
        if self.is_renamed:
            pairs = list(self._renames())
            count = plural(pairs, "tensor")
            same = "types and shapes" if self.locked.is_headers_only else "types, shapes and bytes"
            shown = leading(pairs, MANY, lambda pair: f"{pair[0]!r} is {pair[1]!r}")
            message = f"{count} under other names, with the same {same}: {shown}"
            yield self.find("renamed", self.locked.lines.get("content", 0), message)
        else:
            yield from self._by_name()
        if self.locked.is_headers_only or self.now.is_headers_only:
            line = self.locked.lines.get("content", 0)
            yield self.find("not-checked", line, "only names, types and shapes were compared")

    def not_read(self) -> Iterator[Finding]:
        """Tensors that both have and that cannot be read, unless their files are the same: no digest is of them."""
        if (names := self._unread()) and not self._are_same_files():
            message = f"{some(names, MANY)}: cannot be read, so not compared"
            yield self.find("not-checked", self.locked.tensors[names[0]].line, message, tuple(names), severity=WARNING)

    def _unread(self) -> list[str]:
        """Names of tensors that cannot be read in either."""
        return [name for name in self.locked.unreadable if name in self.now.unreadable]

    def _are_same_files(self) -> bool:
        """Whether all files are known by their sha256, and the same."""
        return self._is_hashed() and not self._other_files()

    def _is_hashed(self) -> bool:
        return all(file.sha256 for file in (*self.locked.files, *self.now.files))

    def _renames(self) -> Iterator[tuple[str, str]]:
        """(old name, new name) of tensors of one type, shape and digest; of several equal ones in order."""
        free = grouped(
            (tensor[1:4], name) for name, tensor in self.now.tensors.items() if name not in self.locked.tensors
        )
        for name, tensor in self.locked.tensors.items():
            if name not in self.now.tensors and (names := free.get(tensor[1:4])):
                yield name, names.pop(0)

    def _by_name(self) -> Iterator[Finding]:
        """Each tensor by its name."""
        has_more = any(one.dtype == FACTS and name not in self.locked.tensors for name, one in self.now.tensors.items())
        if has_more and self.locked.version == 1 and self._are_same_files():  # which knew less of the same bytes
            return
        for name, was in self.locked.tensors.items():
            found = self.now.tensors.get(name)
            if found is None and (other := self._tied_by_config(was)):
                message = f"{name!r} is not stored; config.json ties it to {other!r}, which has its bytes"
                yield self.find("missing", was.line, message, (name,), severity=WARNING)
            elif found is None:
                yield self.say("missing", was.line, "is not there", name)
            elif difference := _difference(was, found):
                yield self.say("changed", was.line, f": {difference}", name)
        for name in self.now.tensors:
            if name not in self.locked.tensors and (other := self._was_tied_by_config(name)):
                message = f"{name!r} is not in the lock; config.json tied it to {other!r}, with which it shares memory"
                yield self.find("added", 0, message, (name,), severity=WARNING)
            elif name not in self.locked.tensors:
                yield self.say("added", 0, "is not in the lock", name)

    def _was_tied_by_config(self, name: str) -> str:
        """A name of the lock that was tied by a config, and of which a new name is now all the memory; or nothing."""
        tied = {one for tie in self.locked.ties if tie.kind == CONFIG for one in tie.names}
        for other in sorted(tied & self.locked.tensors.keys() & _shared_with(self.now, name)):
            was, found = (self.now.tensors[one][1:4] for one in (other, name))
            if was == found and _at(self.now, other) == _at(self.now, name):
                return other
        return ""

    def _tied_by_config(self, was: LockedTensor) -> str:
        """A name that is there with the bytes of one that is not, to which the config ties it; or nothing."""
        known = {name for tie in self.locked.ties if was.name in tie.names for name in tie.names}
        for tie in self.now.ties:
            for name in tie.names if tie.kind == CONFIG else ():
                found = self.now.tensors.get(name)
                is_partner = name in known or was.name in tie.names
                if is_partner and found is not None and found[1:4] == was[1:4] and was.digest not in (UNREAD, NO_DATA):
                    return name
        return ""

    def ties(self) -> Iterator[Finding]:
        """Names that shared memory and do not, the other way round, or in another place, of those that both have."""
        if self.is_renamed:
            return
        then, today = _heads(self.locked), _heads(self.now)
        for tie in _of_memory(self.locked):
            for name, partner in self._apart(tie, self.locked, today):
                what = f"shared memory with {partner!r}, and does not any more{self._diverged(name, partner)}"
                yield self.say("tie-lost", tie.line, what, name, partner)
        for tie in _of_memory(self.now):
            for name, partner in self._apart(tie, self.now, then):
                what = f"shares memory with {partner!r}, and did not before"
                yield self.say("tie-gained", 0, what, name, partner)
        for tie in _of_memory(self.locked):
            yield from self._moved(tie, today)

    def _diverged(self, name: str, partner: str) -> str:
        """Whether two names that were the same elements in the same order still hold equal numbers, if both were read.

        A slice or a transpose is compared with nothing: its elements in its own order are others than the partner's.
        """
        one, other = (self.now.tensors[word] for word in (name, partner))
        then = (self.locked.tensors[word][1:4] for word in (name, partner))
        at = (_at(self.locked, word) for word in (name, partner))
        was_same = len({*then}) == 1 and len({*at}) == 1
        if not was_same or one[1:3] != other[1:3] or {UNREAD, NO_DATA} & {one.digest, other.digest}:
            return ""
        return " (equal numbers)" if one.digest == other.digest else " (other numbers)"

    def _in_both(self, tie: LockedTie) -> list[str]:
        return [name for name in tie.names if name in self.locked.tensors and name in self.now.tensors]

    def _apart(self, tie: LockedTie, model: LockedModel, other: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Pairs of an alias set of `model` that have bytes in common there, and are in two sets of the other model.

        The largest part of the set is what the others left: each of their names is in one pair.
        """
        parts = grouped((other.get(name, f"={name}"), name) for name in self._in_both(tie))
        main, *others = sorted(parts.values(), key=len, reverse=True) or [[]]
        for part in others:
            rest = chain(main, *(names for names in others if names is not part))
            partners = sorted(rest, key=lambda one: one in model.views)  # what is the whole set meets each of them
            for name in part:
                found = (one for one in partners[:MAX_TRIED] if places.meets(model, one, name))
                if partner := next(found, None if len(partners) <= MAX_TRIED else partners[0]):
                    yield name, partner

    def _moved(self, tie: LockedTie, today: dict[str, str]) -> Iterator[Finding]:
        """Names that share memory as before, in another place of it."""
        sets = grouped((today[name], name) for name in self._in_both(tie) if name in today)
        for names in sets.values():
            was, found = _places(self.locked, names), _places(self.now, names)
            for name in names:
                if was is not None and found is not None and was.get(name) != found.get(name):
                    partner = next(one for one in names if one != name)
                    is_at, was_at = _place_text(found.get(name)), _place_text(was.get(name))
                    what = f"is {is_at} what it shares with {partner!r}, and was {was_at} it"
                    line = self.locked.views[name].line if name in self.locked.views else tie.line
                    yield self.say("overlap-changed", line, what, name, partner)

    def declared(self) -> Iterator[Finding]:
        """Names of which the config says otherwise than then.

        A warning where none said anything when the model was locked, and where none says anything now and the memory
        that the names share does.
        """
        then, today = ({name: tie for tie in _of_config(model) for name in tie.names} for model in self._both())
        groups: dict[tuple[str, str, int], list[str]] = {}
        for name in sorted(self.locked.tensors.keys() & self.now.tensors.keys()):
            was, found = then.get(name), today.get(name)
            key = was.kind if was else "", found.kind if found else "", was.line if was else 0
            if key[0] != key[1]:
                groups.setdefault(key, []).append(name)
        for (one, other, line), names in groups.items():
            is_held = not today and all(self._is_held(name, then[name]) for name in names)
            them = "it" if len(names) == 1 else "them"
            message = f"{some(names, MANY)}: {SAID[one]} {them} when it was locked, and {SAYS[other]} {them} now"
            if is_held:
                message += f"; the file has {them} {'untied' if one == UNTIED else 'tied'} all the same"
            severity = WARNING if is_held or not then else ""
            yield self.find("declared-ties", line, message, tuple(names), severity=severity)

    def _is_held(self, name: str, was: LockedTie) -> bool:
        """Whether a name now shares memory as its config said when it was locked."""
        shared = _shared_with(self.now, name)
        others = {one for one in was.names if one != name and one in self.now.tensors}
        return others.isdisjoint(shared) if was.kind == UNTIED else bool(shared) and others <= shared

    def _both(self) -> tuple[LockedModel, LockedModel]:
        return self.locked, self.now

    def versions(self) -> Iterator[Finding]:
        """What torch reads tensors by, and what a model computes with them, where both say it."""
        yield from self._said("changed", VERSIONS, "modules have other versions, by which torch reads their tensors")
        yield from self._said("changed", EPSILONS, "the config adds another epsilon to the variances of norms")

    def _said(self, rule: str, key: str, message: str) -> Iterator[Finding]:
        """A finding where an object differs that not every file of the same weights has; one file has it always."""
        was, found = (model.objects.get(key) for model in self._both())
        if was and found:
            if was.digest != found.digest:
                yield self.find(rule, was.line, message)
        elif (was or found) and self.locked.version == VERSION and not self._other_files():
            is_config = key == EPSILONS  # which files lose with the config beside them
            lost = f"a line was lost{', or the config beside them is new' * is_config}"
            what = f"is not in the lock of the same files: {lost}" if found else "is not there any more"
            line, severity = was.line if was else 0, WARNING if is_config else ""
            yield self.find(rule, line, f"object {key!r} {what}", severity=severity)

    def objects(self) -> Iterator[Finding]:
        """Keys that are not tensors and have another value; one finding where none is there at all."""
        for key in (NESTING, NESTING_DCP) if self.locked.tensors.keys() == self.now.tensors.keys() else ():
            yield from self._said("objects-changed", key, "tensors are under other keys, or in other lists or dicts")
        was, now = ({key: one for key, one in model.objects.items() if key not in APART} for model in self._both())
        if was and not now:
            line, names = next(iter(was.values())).line, some([key or TOP for key in was], MANY)
            yield self.find("objects-changed", line, f"no objects are there; the lock has {names}")
            return
        for key, one in was.items():
            found = now.get(key)
            if found is None:
                yield self.find("objects-changed", one.line, f"object {key or TOP!r} is not there; it was {one.words}")
            elif found.digest != one.digest:
                values = f"another {one.words}" if one.words == found.words else f"{one.words}, is {found.words}"
                yield self.find("objects-changed", one.line, f"object {key or TOP!r} has another value: was {values}")
        for key, found in now.items():
            if key not in was:
                yield self.find("objects-changed", 0, f"object {key or TOP!r} is not in the lock; it is {found.words}")

    def dialect(self) -> Iterator[Finding]:
        """Names of another dialect."""
        if self.locked.dialect != self.now.dialect:
            was, found = (model.dialect or "none that is known" for model in self._both())
            line = self.locked.lines.get("dialect", 0)
            yield self.find("dialect-changed", line, f"the names were those of {was}, and are those of {found}")

    def files(self) -> Iterator[Finding]:
        """Files of other bytes, or of other sizes where no hash is known; the tensors may be the same all the same."""
        if names := self._other_files():
            is_same = self.locked.content == self.now.content and not self.locked.is_headers_only
            same = f"; every tensor {'that can be read ' if self._unread() else ''}is the same" if is_same else ""
            line = next((file.line for file in self.locked.files if file.name in names), 0)
            what = "bytes" if self._is_hashed() else "sizes"
            yield self.find("file-changed", line, f"{some(names, MANY)}: not the {what} of the lock{same}")

    def _other_files(self) -> list[str]:
        """Names of files that differ; the file of a model of one file may have another name."""
        name = self.locked.files[0].name if len(self.locked.files) == len(self.now.files) == 1 else ""
        was, found = (
            {(name or file.name, file.nbytes, file.sha256 if self._is_hashed() else "") for file in model.files}
            for model in self._both()
        )
        return sorted({name for name, _, _ in was ^ found})


def _difference(was: LockedTensor, found: LockedTensor) -> str:
    if was.dtype != found.dtype:
        return f"was {was.dtype}, is {found.dtype}"
    if was.shape != found.shape:
        return f"had the shape {shape_text(was.shape)}, has {shape_text(found.shape)}"
    if was.digest == found.digest or UNREAD in (was.digest, found.digest):
        return ""
    if NO_DATA in (was.digest, found.digest):
        return "had no bytes, has some" if was.digest == NO_DATA else "had bytes, has none"
    if was.dtype == FACTS:
        return "says something else of values (attributes, an entry of a header, config.json); the lock has its digest"
    if was.dtype == COMPOUND:
        return "has another shape, scale, zero point or kind; the lock has the digest of these"
    return "has other numbers"


def _of_config(model: LockedModel) -> Iterator[LockedTie]:
    return (tie for tie in model.ties if tie.kind in (CONFIG, UNTIED))


def _of_memory(model: LockedModel) -> Iterator[LockedTie]:
    return (tie for tie in model.ties if tie.kind in MEMORY)


def _shared_with(model: LockedModel, name: str) -> set[str]:
    """The other names of a tensor's memory."""
    return {one for tie in _of_memory(model) if name in tie.names for one in tie.names} - {name}


def _at(model: LockedModel, name: str) -> places.Place | None:
    """Where a name is in what its alias set shares; None for all of it, and for a name of no set."""
    view = model.views.get(name)
    return None if view is None else (view.offset, view.strides)


def _heads(model: LockedModel) -> dict[str, str]:
    """{name: the first name that it shares memory with}."""
    return {name: tie.names[0] for tie in _of_memory(model) for name in tie.names}


def _places(model: LockedModel, names: list[str]) -> dict[str, places.Place] | None:
    """The places of some names of an alias set in what these share; None where a type is not known."""
    views = {name: places.view_of(model, name) for name in names}
    known = {name: view for name, view in views.items() if view is not None}
    return places.places(known) if len(known) == len(views) else None


def _place_text(place: places.Place | None) -> str:
    """`all of`, or `at byte 16 with strides [1] of`."""
    return f"at byte {place[0]} with strides {shape_text(place[1])} of" if place else "all of"


# --- A model of a lock against the pointers that stand for its files: judged by hash, without the files ---------------


Seen = Mapping[str, Pointer | LockedFile]
"""{name of a file inside the model: its pointer, or the file itself where it was fetched}."""


def of_pointers(locked: LockedModel, seen: Seen, lock: str, path: str) -> Iterator[Finding]:
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
