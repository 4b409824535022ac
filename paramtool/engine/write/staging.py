"""Staging of outputs: they are written beside their place, and moved there only when everything is right.

Nothing that exists is overwritten without `force`, no partial output is left behind, and an input is never overwritten.
At every moment either the complete old output or the complete new one is at its place: two names are exchanged in one
step if the file system can do that (`_exchange.py`), and the next run finds what a killed run left (`_leftovers.py`).
"""

from __future__ import annotations

import atexit
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import BinaryIO

from paramtool.engine.signals import held
from paramtool.engine.write import _exchange, _leftovers, _modes
from paramtool.engine.write.places import NOTHING, check_beside, check_place, settled, writing
from paramtool.errors import OutputError, ParamtoolError, some
from paramtool.formats.files import check_unchanged, walk
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.model.storage import SourceFile


class Staged:
    """An unfinished output: a file, or a folder of files, under a temporary name beside its place.

    Use it as a context manager; without `commit` everything is removed.
    """

    def __init__(
        self,
        path: str,
        is_folder: bool,
        force: bool,
        inputs: Iterable[str] = (),
        *,
        known: Mapping[str, str | bytes] = NOTHING,
        weights: Iterable[WeightsName] = (),
        folders: Mapping[str, str] = NOTHING,
        beside: Sequence[str] = (),
    ) -> None:
        """`folders` are the input folders, whose permissions the folders get: {name in the output: input folder}.

        The name is empty for the output itself.  `beside` are the names of files that belong to an output that is a
        file, in its folder: until `commit` they are all in one temporary folder.  See `check_place` for the rest.
        """
        self.path = settled(path)
        self.is_folder = is_folder or bool(beside)
        self.beside = tuple(beside)
        self.force = force
        self.cloned = 0
        """How many bytes of the output share their blocks with the source."""
        self.notes: list[str] = []
        """Notes on what was done about the leftovers of killed runs."""
        self.temporary = ""
        self._given = path
        self._inputs, self._known, self._weights = list(inputs), known, list(weights)
        self._folders = dict(folders)
        self._watched: list[SourceFile] = []
        self._side: dict[str, SourceFile] = {}
        self._held: int | None = None

    def __enter__(self) -> Staged:
        try:
            with writing(self.path), held():
                self.notes += _leftovers.clear(self.path)
                self._check()
                self.temporary, self._held = _leftovers.create(self.path, self.is_folder)
                atexit.register(self._clean)
        except BaseException as error:
            self._clean()
            self._noted(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean()
        if error is not None:
            self._noted(error)

    def _noted(self, error: BaseException) -> None:
        """Add notes about leftovers to an error, since there will be no report."""
        if isinstance(error, ParamtoolError):
            error.hint = "; ".join(filter(None, (error.hint, *self.notes)))

    def _clean(self) -> None:
        """Remove everything under the temporary name; signals wait until that is done."""
        with held():
            if self.temporary and not _leftovers.remove(self.temporary):
                self.notes.append(f"{self.temporary}: cannot be removed; it is not needed any more")
            if self._held is not None:
                os.close(self._held)
            self.temporary, self._held = "", None
            atexit.unregister(self._clean)

    def _check(self) -> None:
        is_folder = self.is_folder and not self.beside
        check_place(self._given, is_folder, self.force, self._inputs, known=self._known, weights=self._weights)
        check_beside(self.path, self.beside)

    def file(self, name: str) -> str:
        """The temporary path of a file of the output."""
        return os.path.join(self.temporary, name) if self.is_folder else self.temporary

    def create(self, name: str) -> BinaryIO:
        """Make a file of the output, open for writing and readable by its owner only; OSError as from open.

        It is made in the folder that this run made, even if another folder was put in its place since.
        """
        return open(self.file(name), "w+b", buffering=0, opener=partial(self._opened, name))

    def _opened(self, name: str, path: str, flags: int) -> int:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if self._held is None:  # Windows
            return os.open(path, flags, _modes.PRIVATE_FILE)
        if self.is_folder:
            return _modes.private(os.open(name, flags, _modes.PRIVATE_FILE, dir_fd=self._held))
        file = os.open(path, flags & ~(os.O_TRUNC | os.O_CREAT))
        if not os.path.samestat(os.fstat(file), os.fstat(self._held)):
            os.close(file)
            raise FileExistsError(errno.EEXIST, "the temporary file was replaced by another file", path)
        os.ftruncate(file, 0)
        return file

    def make_folders(self, name: str) -> None:
        """Make a folder inside the output, with its parents; nothing for the empty name.  OSError as from mkdir.

        The output's own folder is never made again: somebody removed it for a reason.
        """
        parts = list(filter(None, name.split("/")))
        for count in range(1, len(parts) + 1):
            made = "/".join(parts[:count])
            with suppress(FileExistsError):
                if self._held is None:  # Windows
                    os.mkdir(self.file(made))
                else:
                    os.mkdir(made, _modes.PRIVATE_FOLDER, dir_fd=self._held)
                    os.close(_modes.private(os.open(made, os.O_RDONLY, dir_fd=self._held), _modes.PRIVATE_FOLDER))

    def watch(self, files: Iterable[SourceFile]) -> None:
        """Watch files that the weights are made from: `commit` is a FormatError if one of them has changed by then."""
        self._watched += files

    def watch_side(self, name: str, file: SourceFile) -> None:
        """Watch the source of a sidecar file in the same way."""
        self._side[name] = file

    def commit(self) -> None:
        """Move the output to its place and set its permissions; OutputError if that is not possible any more."""
        with writing(self.path), held():
            for file in (*self._watched, *self._side.values()):
                check_unchanged(file)
            if self._held is not None and not _leftovers.is_still(self.temporary, self._held):
                raise OutputError(
                    f"{self.path}: cannot be written: {self.temporary} was moved or removed meanwhile",
                    hint="run the command again",
                )
            if not self.force and os.path.lexists(self.path):
                raise self._is_taken()
            listing = _listing(self.path) if self.is_folder and os.path.isdir(self.path) else {}
            self._check()
            self._settle()
            if self.beside:
                self._put_all()
            elif not self.force or not os.path.lexists(self.path):
                self._put()
            elif self.is_folder:
                self._replace_folder(listing)
            else:
                os.replace(self.temporary, self.path)
            self._sync()

    def _sync(self) -> None:
        """Wait until the output's name is on the disk."""
        folder = os.path.dirname(self.path) or "."
        try:
            sync_folder(folder)
        except OSError as error:
            what = "is in its place, but the disk does not confirm that it was written"
            raise OutputError(
                f"{self.path}: {what}: {folder}: {error.strerror}",
                hint="the disk may be failing; verify the output after mounting it again",
            ) from None

    def _settle(self) -> None:
        """Give the output its permissions."""
        files = _modes.allowed_by_all(file.mode for file in self._watched)
        if not self.is_folder:
            _modes.settle(self.temporary, files, self.path)
            return
        folder = _modes.allowed_by_all(map(_modes.of_place, self._folders.values()), _modes.of_folder(files))
        side = {name: file.mode for name, file in self._side.items()}
        replaced = os.path.dirname(self.path) if self.beside else self.path
        _modes.settle_folder(
            self.temporary, self._held, folder, files, side=side, source=self._folder_of, replaced=replaced
        )

    def _folder_of(self, name: str) -> str:
        """The input folder that a folder inside the output comes from; empty if there is none."""
        for mine, theirs in self._folders.items():
            if not mine or name == mine or name.startswith(f"{mine}/"):
                found = os.path.join(theirs, *name[len(mine) :].split("/"))
                return found if os.path.isdir(found) else ""
        return ""

    def _put_all(self) -> None:
        """Move several files to their places: the output itself last, since it refers to the others.

        Those are never overwritten, so that no file that is there ever refers to bytes of another run.
        """
        folder, put = os.path.dirname(self.path), list[str]()
        try:
            for name in self.beside:
                self._put(self.file(name), os.path.join(folder, name))
                put.append(name)
            sync_folder(folder or os.curdir)
            made = self.file(os.path.basename(self.path))
            if self.force and os.path.lexists(self.path):
                os.replace(made, self.path)
            else:
                self._put(made, self.path)
        except BaseException:
            for name in put:
                _leftovers.remove(os.path.join(folder, name))
            raise

    def _put(self, made: str = "", path: str = "") -> None:
        """Move the output, or a file of it, to an empty place, without replacing anything that appears meanwhile."""
        made, path = made or self.temporary, path or self.path
        try:
            if _exchange.rename(made, path, _exchange.NOREPLACE):
                return
            if not os.path.isdir(made) and hasattr(os, "link"):
                try:
                    os.link(made, path)  # a link never overwrites, a rename would
                    return
                except OSError as error:  # a file system without hard links
                    if error.errno == errno.EEXIST:
                        raise
        except FileExistsError:
            raise self._is_taken(path) from None
        if os.path.lexists(path):
            raise self._is_taken(path)
        os.rename(made, path)

    def _is_taken(self, path: str = "") -> OutputError:
        path = path or self.path
        return OutputError(f"{path}: was made by another process meanwhile", hint="--force overwrites it")

    def _replace_folder(self, listing: Mapping[str, object]) -> None:
        """Replace a folder that was checked before, unless it has changed since.

        The old folder is removed only after the new one is in its place and no file has been added meanwhile.
        """
        lock = _leftovers.lock_of(self.path)  # under its next name it must not look like a leftover
        try:
            old, kept = f"{self.temporary}{_leftovers.OLD}", _leftovers.kept_name(self.temporary)
            if _exchange.rename(self.temporary, self.path, _exchange.EXCHANGE):
                try:
                    if came := _came(listing, _listing(self.temporary)):
                        raise _arrived(self.path, came)
                except BaseException:
                    self._put_back(self.temporary, kept)
                    raise
                return
            os.rename(self.path, old)
            try:
                if came := _came(listing, _listing(old)):
                    raise _arrived(self.path, came)
                os.rename(self.temporary, self.path)
            except BaseException:
                self._put_back(old, kept)
                raise
            os.rename(old, self.temporary)
        finally:
            if lock is not None:
                os.close(lock)

    def _put_back(self, name: str, kept: str) -> None:
        """Put back the folder that was replaced; if that fails, keep it under a name that shows it."""
        try:
            if name != self.temporary:
                os.rename(name, self.path)
            elif not _exchange.rename(name, self.path, _exchange.EXCHANGE):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        except OSError as error:
            with suppress(OSError):
                os.rename(name, kept)
            where = kept if os.path.lexists(kept) else name
            if where == self.temporary:
                self.temporary = ""  # not ours to remove
            raise OutputError(
                f"{self.path}: could not be replaced, nor put back ({error.strerror}); its files are in {where}",
                hint=f"mv {where} {self.path}",
            ) from None


def _listing(folder: str) -> dict[str, object]:
    """{path: the identity and state of each file and folder inside a folder}; it differs after any write."""
    paths = (os.path.join(place, name) for place, folders, files in walk(folder) for name in [*folders, *files])
    found: dict[str, object] = {}
    for path in paths:
        status = os.lstat(path)
        is_file = not os.path.isdir(path) or os.path.islink(path)
        found[os.path.relpath(path, folder)] = (
            status.st_ino,
            (status.st_size, status.st_mtime_ns, status.st_ctime_ns) if is_file else None,
        )
    return found


def _came(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The names that were added or changed."""
    return sorted(name for name, status in after.items() if before.get(name) != status)


def _arrived(path: str, names: list[str]) -> OutputError:
    return OutputError(
        f"{path}: was written to while it was being replaced: {some(names, 3)}; it was left unchanged",
        hint="wait until the program that writes there is done, or choose another -o",
    )


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk; OSError if that fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EISDIR):  # a folder that may not be listed; Windows cannot open folders
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # not supported by the file system
            raise
    finally:
        os.close(descriptor)
