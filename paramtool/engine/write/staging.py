"""Staging of outputs: they are written beside their place, and moved there only when everything is right.

Nothing that exists is overwritten without `force`, no partial output is left behind, and an input is never overwritten.
At every moment either the complete old output or the complete new one is at its place: two names are exchanged in one
step if the file system can do that (`_exchange.py`), and the next run finds what a killed run left (`_leftovers.py`).
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, reduce
from operator import and_
from types import TracebackType
from typing import Any, BinaryIO, TypeVar
from zlib import crc32

from paramtool.engine.read.threads import Promise, Threads
from paramtool.engine.signals import held
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
        self._disk = Threads(1)
        self._flushed: Promise[None] | None = None

    def __enter__(self) -> Staged:
        try:
            with writing(self.path), held():
                self.notes += clear(self.path)
                self._check()
                atexit.register(self._clean)
                self.temporary = temporary_name(self.path)  # before it is there, so that whatever fails removes it
                self._held = create(self.temporary, self.is_folder)
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
            self._disk.close()
            if self.temporary and not remove(self.temporary):
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
            return os.open(path, flags, PRIVATE_FILE)
        if self.is_folder:
            return private(os.open(name, flags, PRIVATE_FILE, dir_fd=self._held))
        file = os.open(path, flags & ~(os.O_TRUNC | os.O_CREAT))
        if not os.path.samestat(os.fstat(file), os.fstat(self._held)):
            os.close(file)
            raise FileExistsError(errno.EEXIST, "the temporary file was replaced by another file", path)
        os.ftruncate(file, 0)
        return file

    def flush(self, file: BinaryIO, nbytes: int) -> None:
        """Send a file to the disk and close it; a large one meanwhile, until `commit`, or until the next one is done.

        OSError as from fsync, of this file or the one before.
        """
        self._wait()
        if nbytes < MEANWHILE_NBYTES:
            _flush(file)
        else:
            self._flushed = self._disk.submit(partial(_flush, file))

    def _wait(self) -> None:
        """Wait until every file is on the disk."""
        promise, self._flushed = self._flushed, None
        if promise is not None:
            promise.result()

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
                    os.mkdir(made, PRIVATE_FOLDER, dir_fd=self._held)
                    os.close(private(os.open(made, os.O_RDONLY, dir_fd=self._held), PRIVATE_FOLDER))

    def watch(self, files: Iterable[SourceFile]) -> None:
        """Watch files that the weights are made from: `commit` is a FormatError if one of them has changed by then."""
        self._watched += files

    def watch_side(self, name: str, file: SourceFile) -> None:
        """Watch the source of a sidecar file in the same way."""
        self._side[name] = file

    def commit(self) -> None:
        """Move the output to its place and set its permissions; OutputError if that is not possible any more."""
        with writing(self.path):
            self._wait()
        with writing(self.path), held():
            for file in (*self._watched, *self._side.values()):
                check_unchanged(file)
            if self._held is not None and not is_still(self.temporary, self._held):
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
            # Wait until the output's name is on the disk
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
        files = allowed_by_all(file.mode for file in self._watched)
        if not self.is_folder:
            settle(self.temporary, files, self.path)
            return
        folder = allowed_by_all(map(of_place, self._folders.values()), of_folder(files))
        side = {name: file.mode for name, file in self._side.items()}
        replaced = os.path.dirname(self.path) if self.beside else self.path
        settle_folder(self.temporary, self._held, folder, files, side=side, source=self._folder_of, replaced=replaced)

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
                remove(os.path.join(folder, name))
            raise

    def _put(self, made: str = "", path: str = "") -> None:
        """Move the output, or a file of it, to an empty place, without replacing anything that appears meanwhile."""
        made, path = made or self.temporary, path or self.path
        try:
            if rename(made, path, NOREPLACE):
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
        lock = lock_of(self.path)  # under its next name it must not look like a leftover
        try:
            old, kept = f"{self.temporary}{OLD}", kept_name(self.temporary)
            if rename(self.temporary, self.path, EXCHANGE):
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
            elif not rename(name, self.path, EXCHANGE):
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


MEANWHILE_NBYTES = 4 << 20
"""Larger files are sent to the disk while what was written is proved."""


def _flush(file: BinaryIO) -> None:
    with file:
        os.fsync(file.fileno())


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


# --- Renaming on Linux with a guarantee: never replace a file, or exchange two names in one step ---------------------
#
#     int renameat2(int olddirfd, const char *oldpath, int newdirfd, const char *newpath, unsigned int flags)
#     RENAME_NOREPLACE  1       fails with EEXIST if the new name is taken
#     RENAME_EXCHANGE   2       swaps what two names refer to; at every moment both names exist
#     AT_FDCWD          -100
#
# Source: rename(2) of the Linux man-pages, linux/fs.h, linux/fcntl.h.  glibc has it since 2.28, musl since 1.2.6; a
# file system may lack a flag and says EINVAL.


NOREPLACE = 1
EXCHANGE = 2
AT_FDCWD = -100
CANNOT = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


@cache
def _renameat2() -> Any:
    """The function `renameat2` of the C library, or None."""
    import ctypes

    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # another C library, or Windows, where None names no library
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found


def rename(source: str, target: str, flag: int) -> bool:
    """Rename with one of the flags; False, and no change, if the system or the file system does not support it.

    OSError for any other failure.
    """
    from ctypes import get_errno

    function = _renameat2()
    if function is None:
        return False
    if not function(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flag):
        return True
    number = get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), source, None, target)


# --- Temporary names beside an output, and the leftovers of killed runs under these names ----------------------------
#
#     .NAME.1f2e3d4c.tmp        an unfinished output, or what it has replaced; locked by the run that writes it
#     .NAME.1f2e3d4c.tmp.old    what is being replaced, if the file system cannot exchange two names in one step
#     .NAME.1f2e3d4c.tmp.kept   what was replaced and could not be put back; no run touches it
#
# A lock (flock) shows whether the run that made a name is still alive: the kernel releases it when a process ends, in
# whatever way.  On a file system without locks, nothing is ever removed.


OLD, KEPT = ".old", ".kept"
MAX_STEM_BYTES = 150
"""A temporary name has at most this many bytes of the output's name; most file systems allow 255 bytes in all."""


def temporary_name(path: str) -> str:
    """A new temporary name beside an output that no other run has."""
    return os.path.join(os.path.dirname(path) or ".", f".{_stem(path)}.{secrets.token_hex(4)}.tmp")


def kept_name(temporary: str) -> str:
    """The name for a replaced output that could not be put back."""
    return f"{temporary}{KEPT}"


def _stem(path: str) -> str:
    """The output's name; a long name is shortened to its beginning and a digest of the whole name."""
    whole = name = os.path.basename(path)
    while len(os.fsencode(name)) > MAX_STEM_BYTES:
        name = name[:-1]
    return name if name == whole else f"{name}~{crc32(os.fsencode(whole)):08x}"


def create(name: str, is_folder: bool) -> int | None:
    """Make an empty file or folder for an output, readable by its owner only; returns an open file of it.

    The open file is its lock, if the file system has locks; it is None if the system cannot open folders.

    OSError if that is not possible.
    """
    while True:
        if is_folder:
            os.mkdir(name, PRIVATE_FOLDER)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
        file = None
        try:
            private(name, PRIVATE_FOLDER if is_folder else PRIVATE_FILE)
            file = os.open(name, LOOKING) if hasattr(os, "O_NOFOLLOW") else opened(name)
            if file is None or (_locked(file) is not False and is_still(name, file)):
                return file
        except BaseException:
            if file is not None:
                os.close(file)
            raise
        os.close(file)  # another run removed it before it was locked


def opened(name: str) -> int | None:
    """A file or folder, opened without following a link or waiting; None if that is not possible."""
    try:
        return os.open(name, LOOKING)
    except OSError:
        return None


def _locked(file: int) -> bool | None:
    """Lock an open file; returns whether that was possible, or None if the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        return None
    return True


def lock_of(name: str) -> int | None:
    """A lock on a file or folder, as an open file; None if a live run holds it, or there are no locks."""
    file = opened(name)
    if file is None or _locked(file):
        return file
    os.close(file)
    return None


def is_still(name: str, file: int) -> bool:
    """Whether a name still refers to an open file."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(file))
    except FileNotFoundError:
        return False


def remove(path: str) -> bool:
    """Remove a file, or a folder with everything in it, if it exists; returns whether nothing is left."""
    if not os.path.isdir(path) or os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
        return not os.path.lexists(path)
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # a folder that may not be written to keeps what is in it
        with suppress(OSError, AttributeError):  # Windows has no fwalk
            for _, _, _, place in os.fwalk(path):  # does not follow a link that was put in its place
                os.chmod(place, PRIVATE_FOLDER)
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def clear(path: str) -> list[str]:
    """Remove what killed runs left of an output, and put back an output that one had moved away.

    Returns notes on what was done.
    """
    folder = os.path.dirname(path) or "."
    ours = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{8}}\.tmp")
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if ours.fullmatch(entry.name.removesuffix(OLD))]
    except OSError:
        return []
    notes = []
    for name in sorted(found, reverse=True):  # `.tmp.old` before its `.tmp`
        notes += _clear(path, os.path.join(folder, name))
    return notes


def _clear(path: str, name: str) -> list[str]:
    """Handle one temporary name; returns notes on what was done."""
    made = name.removesuffix(OLD)
    if made != name:
        if os.path.lexists(made):
            if (alive := lock_of(made)) is None:
                return []  # a live run is about to put its output there
            os.close(alive)
        if not os.path.lexists(path):
            os.rename(name, path)
            return [f"{path}: put back from {name}, where a killed run had moved it"]
    if (lock := lock_of(name)) is None:
        return []
    nbytes = _nbytes(name)
    gone = remove(name)
    os.close(lock)
    what = "removed; it was" if gone else "cannot be removed; it was"
    return [f"{name} ({nbytes} bytes): {what} left by a killed run"]


def _nbytes(path: str) -> int:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    files = (os.path.join(place, name) for place, _, names in walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)


# --- Who may read an output: the same as with cp(1), so that no output can be read by more people than its source ----
#
# | | mode |
# |---|---|
# | a file | that of the input, minus the umask; of several inputs what all of them allow |
# | a folder | that of the input folder, minus the umask; else that of the files, with `x` wherever there is `r` |
# | a sidecar file | that of the file that it is a copy of, minus the umask |
# | a replacement | what the inputs and what it replaces allow, with its owner and group if the system allows that |
#
# Until it is complete, only its owner can read an output.


PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
PERMISSIONS = 0o777
LOOKING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""The flags to open a file or folder for inspection: without following a link, and without waiting."""


def umask() -> int:
    """The umask of the process.  It can only be read by setting it; for that moment it is set to deny everything."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def allowed_by_all(modes: Iterable[int], otherwise: int = 0o666) -> int:
    """The permissions that all of some modes give; `otherwise` if there are no modes.

    >>> oct(allowed_by_all([0o664, 0o640])), oct(allowed_by_all([]))
    ('0o640', '0o666')
    """
    given = list(modes)
    return reduce(and_, given, PERMISSIONS if given else otherwise)


def of_place(path: str) -> int:
    """The permissions of a file or a folder; if it cannot be inspected, permissions for its owner only."""
    try:
        return os.stat(path).st_mode & PERMISSIONS
    except OSError:
        return PRIVATE_FOLDER


def of_folder(mode: int) -> int:
    """The permissions of a folder whose files have the permissions `mode`: whoever may read may enter it.

    >>> oct(of_folder(0o640))
    '0o750'
    """
    return mode | (mode & 0o444) >> 2


Place = TypeVar("Place", int, str)
"""An open file, or a path."""


def private(place: Place, mode: int = PRIVATE_FILE) -> Place:
    """Give a new file or folder its owner's permissions, whatever the umask removed; returns it."""
    now = (os.lstat(place) if isinstance(place, str) else os.fstat(place)).st_mode
    if now & mode != mode:
        with suppress(OSError):  # FAT and the like have no permissions
            os.chmod(place, mode | now & stat.S_ISGID)
    return place


def settle(path: str, mode: int, replaced: str, folder: int | None = None) -> None:
    """Give a file or a folder its permissions: `mode`, of what it replaces if that exists, else minus the umask.

    `replaced` may be empty.  `folder` is the open folder in which `path` is looked up.  A link at `path` is not
    followed.  OSError if the system refuses.
    """
    file = os.open(path, LOOKING, dir_fd=folder)
    try:
        now, old = os.fstat(file), _status(replaced) if replaced else None
        kept = stat.S_ISGID if stat.S_ISDIR(now.st_mode) else 0  # what is made in a setgid folder gets its group
        group = now.st_mode & kept
        if old is not None and stat.S_IFMT(old.st_mode) == stat.S_IFMT(now.st_mode):
            mode, group = mode & old.st_mode, old.st_mode & kept
            if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.fchown(file, old.st_uid, old.st_gid)
                except OSError:  # owned by another user or group: our group gets no more than others
                    mode &= ~0o070 | (mode & 0o007) << 3
        else:
            own = mode & ~umask()
            mode &= of_folder(own) if stat.S_ISDIR(now.st_mode) else own
        try:
            os.chmod(file if os.chmod in os.supports_fd else path, mode | group)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # FAT and the like have no permissions
                raise
    finally:
        os.close(file)


def _status(path: str) -> os.stat_result | None:
    """The status of a path; None if nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def settle_folder(
    folder: str,
    held: int | None,
    mode: int,
    files: int,
    *,
    side: Mapping[str, int],
    source: Callable[[str], str],
    replaced: str,
) -> None:
    """Give a folder and everything in it their permissions: `files` to its files, those in `side` to sidecar files.

    `held` is the open folder: anything that was put in its place meanwhile is not touched.  `side` maps the names of
    sidecar files to the modes of their sources; `source` gives the input folder for a folder inside, or an empty
    string.
    """

    def there(inside: str) -> str:
        return replaced and os.path.join(replaced, *inside.split("/"))

    for prefix, folders, names, place in _inside(folder, held):
        for name in names:
            own = side.get(prefix + name, files)
            settle(name if place is not None else os.path.join(folder, prefix, name), own, there(prefix + name), place)
        for name in folders:
            own = mode & of_place(found) if (found := source(prefix + name)) else mode
            settle(name if place is not None else os.path.join(folder, prefix, name), own, there(prefix + name), place)
    settle(os.curdir if held is not None else folder, mode, replaced, held)


def _inside(folder: str, held: int | None) -> Iterator[tuple[str, list[str], list[str], int | None]]:
    """For each folder of an output: its relative path with a final `/`, its folders, its files, and an open folder."""

    def fail(error: OSError) -> None:
        raise error

    walked: Iterator[tuple[str, list[str], list[str], int | None]]
    if held is None:  # Windows
        walked = ((place, folders, names, None) for place, folders, names in walk(folder))
    else:
        walked = os.fwalk(os.curdir, onerror=fail, dir_fd=held)
    for place, folders, names, descriptor in walked:
        here = os.path.relpath(place, folder if held is None else os.curdir).replace(os.sep, "/")
        yield "" if here == os.curdir else f"{here}/", folders, names, descriptor
