"""A folder is its files: what the pickles below it ask for, whatever the files are called and hold.

    pytorch_model.fp16.bin, onnx/model.pt, .hidden, a.tar.gz    each is scanned once, as if it were named itself
    model.safetensors -> ../../blobs/HASH                       links to files are followed, wherever they lead
    x -> /other/folder, .git, .venv, a.7z                       named, and not looked at

A file that holds tensors, is of a kind that holds nothing else, has a name of weights, or is read is a file of the
model: if it is unsafe, the folder is.
Others, such as scheduler.pt, are neighbours.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from paramtool.errors import ParamtoolError, UnreadableError, UnsafeError, internal, some
from paramtool.formats import policy, scan, table
from paramtool.formats.files import open_source, watchers, watching
from paramtool.formats.folder import roots
from paramtool.formats.folder.copies import MAIN
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import is_index, is_index_name, of_file
from paramtool.formats.sniff import DISTRIBUTED, means_bundle
from paramtool.model.checkpoint import Checkpoint, Unknown, judged_files

UNLOOKED = (".git", ".hg", ".venv", "node_modules", "__pycache__")
"""Folders inside a folder that hold no files of a model."""
ANYTHING = ("", "torch", "pickle", "npz")
"""Kinds of files that hold any objects; one of another kind is a file of the model, also where it cannot be read."""
UNENDED = "not scanned to"
"""What readers note of files that may hold more than they looked at."""
MANY = 3
"""How many files a note names, and calls a warning."""

MANY_FILES = 2000
"""From how many on it is shown how many were looked at."""


class Seen(NamedTuple):
    """What is known of a file, or of what could not be looked at."""

    asked: tuple[Unknown, ...] = ()
    weights: bool = False
    """Whether it is a file of the model."""
    skipped: str | None = None
    """Why not all of it was looked at."""
    error: Exception | None = None
    """Why it is refused though it asks for nothing: a path out of its folder, or a bomb; or a defect of ours."""


class Below(NamedTuple):
    """What there is to say of the files below a folder."""

    folder: str
    files: Mapping[str, Seen]
    """{path: what is known}, where that is anything."""
    told: tuple[str, ...]
    """What people are told of a folder that is not refused: of unsafe neighbours, and of what was not looked at."""

    @property
    def refused(self) -> list[UnsafeError]:
        """Why files are refused that ask for no unknown name."""
        return [seen.error for seen in self.files.values() if isinstance(seen.error, UnsafeError)]

    def asked(self) -> dict[str, tuple[Unknown, ...]]:
        """{path: unknown names}, of files that have any."""
        return {path: seen.asked for path, seen in self.files.items() if seen.asked}

    def refuse_defects(self) -> None:
        """The internal error of a file, if there is one, which comes before what is unsafe."""
        for path, seen in self.files.items():
            if seen.error is not None and not isinstance(seen.error, ParamtoolError):
                raise internal(seen.error).located(path)

    def warnings(self, judged: Container[str], allow_class: Sequence[str]) -> Iterator[str]:
        """A warning for each unsafe file that nobody judged: a neighbour of the weights."""
        for path, asked in self.asked().items():
            if path not in judged and (bad := policy.unsafe(asked, allow_class)):
                more = f"; and {len(bad) - MANY} more" * (len(bad) > MANY)
                calls = "; ".join(map(policy.format_unknown, bad[:MANY])) + more
                name = os.path.relpath(path, self.folder)
                yield f"{name!r} is unsafe to unpickle: it calls or names {calls}; nothing of it was run"


class FolderReading:
    """Reads the files of a folder, and remembers what their pickles ask for, so that no file is scanned twice."""

    def __init__(self, folder: str, read: Callable[[str], Checkpoint]) -> None:
        self.folder = folder
        self._read, self._through = read, roots.through(read)
        self._seen: dict[str, Seen] = {}
        self.below: Below | None = None

    def read(self, path: str) -> Checkpoint:
        """Describe a file, or the files that it stands for."""
        found = self._through(path)
        files = judged_files(found)
        of_all = files if len(files) == 1 or not found.unknown else []  # of several files it is not clear which asks
        skipped = "" if any(UNENDED in note for note in found.notes) else None
        self._seen |= dict.fromkeys((path, *of_all), Seen(found.unknown, bool(found.entries), skipped))
        return found

    def finish(self) -> Below:
        """What there is to say of all files below the folder."""
        found: dict[str, Seen] = {}
        paths = sorted(self._files(found), key=lambda path: not is_index_name(path))  # which speak for their shards
        shown = watchers if watchers and len(paths) >= MANY_FILES else [lambda *about: nullcontext(lambda count: None)]
        with watching(), shown[0]("scan", len(paths)) as advance:  # what is only scanned is no input of an output
            for path in paths:
                advance(1)
                seen = self._seen.get(path) or self._looked_at(path)
                if seen.asked or seen.error or seen.skipped is not None:
                    name = os.path.basename(path)
                    is_named = name.endswith(MAIN) and of_file(name).is_usual and not is_training_state(name)
                    found[path] = seen._replace(weights=seen.weights or is_named or name.endswith(DISTRIBUTED))
        left = [
            os.path.relpath(path, self.folder) + seen.skipped
            for path, seen in found.items()
            if seen.skipped is not None
        ]
        told = (f"not looked at for pickles: {some(left, MANY)}",) if left else ()
        self.below = Below(self.folder, found, told)
        return self.below

    def _looked_at(self, path: str) -> Seen:
        """What the pickles of a file ask for, and whether it holds weights: of what `read` reads what that says."""
        asked: tuple[Unknown, ...] = ()
        kind, defect = "", None
        try:
            file, source = open_source(path)
            with file:
                head = file.read(table.HEAD_NBYTES)
            rows = (row for row in table.rows() if row.recognises(head, source.nbytes, path))
            kind = next((row.name for row in rows), "")
            if kind or is_index(head, path) or means_bundle(path):
                self.read(path)
                return self._seen[path]
        except ParamtoolError as error:
            if isinstance(error, UnreadableError) and error.path == path:
                return Seen(skipped=", which cannot be read")
            if isinstance(error, UnsafeError) and not error.asked:
                return Seen(error=error)
            asked = error.asked
        except Exception as error:  # a defect of ours, which hides no other file
            defect = error
        scanned = scan.scan_file(path)
        skipped = None if scanned.ended else ""
        is_of_model = scanned.has_tensors or kind not in ANYTHING
        return Seen(policy.merged((*asked, *scanned.unknown)), is_of_model, skipped, defect)

    def _files(self, left: dict[str, Seen]) -> Iterator[str]:
        """The regular files below the folder, whatever they are called; others, and folders not entered, are `left`."""
        top = os.path.join(os.path.realpath(self.folder), "")

        def unlisted(error: OSError) -> None:
            left[error.filename] = Seen(skipped=", which cannot be listed")

        for place, inner, names in os.walk(self.folder, onerror=unlisted):
            left |= {os.path.join(self.folder, name): Seen(skipped="") for name in UNLOOKED if name in inner}
            inner[:] = sorted(name for name in inner if name not in UNLOOKED)
            for path in (os.path.join(place, name) for name in inner):
                real = os.path.join(os.path.realpath(path), "") if os.path.islink(path) else top
                if not real.startswith(top):
                    left[path] = Seen(skipped=", a link out of the folder")
                elif not set(UNLOOKED).isdisjoint(real[len(top) :].split(os.sep)):
                    left[path] = Seen(skipped=", a link to a folder that is not looked at")
            for path in (os.path.join(place, name) for name in sorted(names)):
                try:
                    status = os.stat(path)
                except OSError as error:
                    is_lost = isinstance(error, FileNotFoundError) and os.path.islink(path)
                    left[path] = Seen(skipped=", a link to nothing" if is_lost else ", which cannot be read")
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield path
                else:
                    left[path] = Seen(skipped=", which is no regular file")
