"""A folder is its files: what the pickles below it ask for, whatever the files are called and hold.

    pytorch_model.fp16.bin, onnx/model.pt, .hidden, a.tar.gz    each is scanned once, as if it were named itself
    model.safetensors -> ../../blobs/HASH                       links to files are followed, wherever they lead
    x -> /other/folder, .git, .venv, a.7z                       named, and not looked at

A file that holds tensors, has a name of weights, or is read is a file of the model: if it is unsafe, the folder is.
Others, such as scheduler.pt, are neighbours.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple

from paramtool.errors import ParamtoolError, UnreadableError, UnsafeError, some
from paramtool.formats import policy, scan, table
from paramtool.formats.files import open_source, watchers, watching
from paramtool.formats.folder import roots
from paramtool.formats.folder.copies import MAIN, holds_weights
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import of_file
from paramtool.formats.sniff import DISTRIBUTED
from paramtool.model.checkpoint import Checkpoint, Unknown, judged_files

UNLOOKED = (".git", ".hg", ".venv", "node_modules", "__pycache__")
"""Folders inside a folder that hold no files of a model."""
READ = ("torch", "dcp", "npz", "keras", "pickle", "tensorflow")
"""Formats whose readers say more of a file's pickles than a scan: which tensors need a call."""
PARTITIONED = ("_optim_states.pt", DISTRIBUTED)
"""The ends of the names under which DeepSpeed and torch keep weights with the state of a training."""
MANY = 3
"""How many files a note names, and calls a warning."""

MANY_FILES = 2000
"""From how many on it is shown how many were looked at."""


class Seen(NamedTuple):
    """What is known of a file."""

    asked: tuple[Unknown, ...] = ()
    weights: bool = False
    """Whether it holds any."""
    skipped: str | None = None
    """Why not all of it was looked at."""


Key = tuple[str, int, int, int, int]
_remembered: ContextVar[dict[Key, Seen]] = ContextVar("remembered")


@contextmanager
def remembering() -> Iterator[None]:
    """Scan no file twice under one name in the block, in whichever folders it is found."""
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


class Below(NamedTuple):
    """What the pickles of the files below a folder ask for."""

    folder: str
    asked: Mapping[str, tuple[Unknown, ...]]
    """{path: unknown names}, of files that have any."""
    weights: frozenset[str]
    """Those of them that are files of the model."""
    told: tuple[str, ...] = ()
    """What people are told of a folder that is not refused: of unsafe neighbours, and of what was not looked at."""
    broken: tuple[str, ...] = ()
    """Files that are refused, and on which our own code failed."""
    refused: tuple[UnsafeError, ...] = ()
    """Why files of the model are refused that ask for no unknown name: a path out of the folder, or a bomb."""

    def warnings(self, judged: Container[str], allow_class: Sequence[str]) -> Iterator[str]:
        """A warning for each unsafe file that nobody judged: a neighbour of the weights."""
        for path, asked in self.asked.items():
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
        self._failed: dict[str, ParamtoolError] = {}
        self._unlooked: list[str] = []
        self.below: Below | None = None

    def read(self, path: str) -> Checkpoint:
        """Describe a file, or the files that it stands for."""
        try:
            found = self._through(path)
        except ParamtoolError as error:
            self._failed[path] = error
            raise
        files = judged_files(found)
        if len(files) == 1 or not found.unknown:  # of several files it is not clear which asks
            self._seen |= dict.fromkeys(files, Seen(found.unknown, holds_weights(found)))
        return found

    def finish(self) -> Below:
        """What all files below the folder ask for."""
        paths = [*self._files()]
        asked: dict[str, tuple[Unknown, ...]] = {}
        weights, broken, refused = set(), [], []
        same = _remembered.get(None)
        same = {} if same is None else same
        shown = watchers if watchers and len(paths) >= MANY_FILES else [lambda *about: nullcontext(lambda count: None)]
        with watching(), shown[0]("scan", len(paths)) as advance:  # what is only scanned is no input of an output
            for path, key in paths:
                advance(1)
                try:
                    found = same[key] = self._seen.get(path) or same.get(key) or self._asked(path)
                except Exception as error:  # a refusal, or a defect of ours: it hides no other file
                    if isinstance(error, UnsafeError) and not is_training_state(os.path.basename(path)):
                        refused.append(error)
                    self._skip(path, f": {type(error).__name__}")
                    broken.append(path)
                    continue
                if found.skipped is not None:
                    self._skip(path, found.skipped)
                if found.asked:
                    asked[path] = found.asked
                    name = os.path.basename(path)
                    is_named = name.endswith(MAIN) and of_file(name).is_usual
                    if name.endswith(PARTITIONED) or ((found.weights or is_named) and not is_training_state(name)):
                        weights.add(path)
        told = [f"not looked at for pickles: {some(self._unlooked, MANY)}"] if self._unlooked else []
        self.below = Below(self.folder, asked, frozenset(weights), tuple(told), tuple(broken), tuple(refused))
        return self.below

    def _skip(self, path: str, why: str = "") -> None:
        self._unlooked.append(os.path.relpath(path, self.folder) + why)

    def _asked(self, path: str) -> Seen:
        """What the pickles of a file ask for, and whether it holds weights."""
        asked: tuple[Unknown, ...] = ()
        kind = ""
        try:
            if path in self._failed:
                raise self._failed[path]
            file, source = open_source(path)
            with file:
                head = file.read(table.HEAD_NBYTES)
            rows = (row for row in table.rows() if row.recognises(head, source.nbytes, path))
            if (kind := next((row.name for row in rows), "")) in READ:
                found = self._read(path)
                return Seen(found.unknown, holds_weights(found))
        except UnreadableError:
            return Seen(skipped=", which cannot be read")
        except ParamtoolError as error:
            if isinstance(error, UnsafeError) and not error.asked:
                raise
            asked = error.asked
        scanned = scan.scan_file(path)
        skipped = None if scanned.ended else ""
        return Seen(policy.merged((*asked, *scanned.unknown)), scanned.has_tensors or kind == "safetensors", skipped)

    def _files(self) -> Iterator[tuple[str, Key]]:
        """The regular files below the folder, each with what it is on the disk, whatever it is called."""
        top = os.path.join(os.path.realpath(self.folder), "")
        for place, inner, names in os.walk(
            self.folder, onerror=lambda error: self._skip(error.filename, ", which cannot be listed")
        ):
            self._unlooked += (name for name in UNLOOKED if name in inner and name not in self._unlooked)
            inner[:] = sorted(name for name in inner if name not in UNLOOKED)
            for path in (os.path.join(place, name) for name in inner):
                real = os.path.join(os.path.realpath(path), "") if os.path.islink(path) else top
                if not real.startswith(top) or not set(UNLOOKED).isdisjoint(real[len(top) :].split(os.sep)):
                    self._skip(path, ", a link out of the folder")
            for path in (os.path.join(place, name) for name in sorted(names)):
                try:
                    status = os.stat(path)
                except FileNotFoundError:  # a link to nothing
                    continue
                except OSError:
                    self._skip(path, ", which cannot be read")
                    continue
                if not stat.S_ISREG(status.st_mode):
                    self._skip(path, ", which is no regular file")
                    continue
                name = os.path.basename(path)  # what a file is can be a matter of its name
                yield path, (name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
