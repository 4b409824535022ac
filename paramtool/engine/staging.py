"""Outputs in the making: beside their place first, and moved there only when everything is right.

Nothing that exists is overwritten without `force`, nothing half-written is left behind, and what is read can never be
what is written.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from itertools import islice
from types import TracebackType

from paramtool.engine.earlier import foreign
from paramtool.errors import OutputError
from paramtool.formats._weights import WeightsName

NOTHING: Mapping[str, str] = {}


class Staged:
    """An output in the making: a file, or a folder of files, under a temporary name beside its place.

    Used as a context manager; without `commit` everything is removed.
    """

    def __init__(
        self,
        path: str,
        is_folder: bool,
        force: bool,
        inputs: Iterable[str] = (),
        known: Mapping[str, str] = NOTHING,
        weights: Iterable[WeightsName] = (),
    ) -> None:
        self.path = os.path.normpath(path)
        self.is_folder = is_folder
        self.force = force
        self.cloned = 0
        """Bytes of the output that share their blocks with the source."""
        check_place(path, is_folder, force, inputs, known, weights)
        # The name is known before anything is made, so that an interruption at any moment finds what to remove.
        name = f".{os.path.basename(self.path)[:150]}.{secrets.token_hex(4)}.tmp"
        self.temporary = os.path.join(os.path.dirname(self.path) or ".", name)

    def __enter__(self) -> Staged:
        try:
            if self.is_folder:
                os.mkdir(self.temporary)
            else:
                os.close(os.open(self.temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from None
        except BaseException:
            self._remove(self.temporary)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove(self.temporary)

    def file(self, name: str) -> str:
        """Where a file of the output is written for now."""
        return os.path.join(self.temporary, name) if self.is_folder else self.temporary

    def commit(self) -> None:
        """Move the output to its place; OutputError where something stands there now."""
        try:
            if not self.is_folder:
                self._commit_file()
            else:
                self._commit_folder()
            sync_folder(os.path.dirname(self.path) or ".")
        except OSError as error:
            raise output_error(self.path, error) from None

    def _commit_file(self) -> None:
        if self.force:
            os.replace(self.temporary, self.path)
            return
        try:
            os.link(self.temporary, self.path)  # a link never overwrites, a rename would
        except FileExistsError:
            raise OutputError(f"{self.path}: was made by somebody else meanwhile") from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self.path):
                raise OutputError(f"{self.path}: was made by somebody else meanwhile") from None
            os.rename(self.temporary, self.path)

    def _commit_folder(self) -> None:
        old = f"{self.temporary}.old"
        if self.force and os.path.isdir(self.path):
            os.rename(self.path, old)
            try:
                os.rename(self.temporary, self.path)
            except BaseException:
                os.rename(old, self.path)
                raise
            self._remove(old)
        else:
            os.rename(self.temporary, self.path)

    @staticmethod
    def _remove(path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def check_place(
    path: str,
    is_folder: bool,
    force: bool,
    inputs: Iterable[str] = (),
    known: Mapping[str, str] = NOTHING,
    weights: Iterable[WeightsName] = (),
) -> None:
    """Whether an output may be put at `path`; OutputError says why not.

    It never replaces what is read, nor a folder that holds anything but an earlier output of this program: `weights` of
    these names, and unchanged copies of `known` files (see `earlier.foreign`).
    """
    if not path:
        raise OutputError("the name of the output is empty", hint="-o FILE.safetensors")
    if path.endswith(os.sep) and not is_folder:
        raise OutputError(f"{path!r}: is no name for a file", hint="-o FILE.safetensors")
    path = os.path.normpath(path)
    parent = os.path.dirname(path) or "."
    if not os.path.isdir(parent):
        raise OutputError(f"{path}: the folder {parent} does not exist", hint=f"mkdir -p {parent}")
    if not os.path.lexists(path):
        return
    mine = os.path.realpath(path)
    for source in inputs:
        folders = {os.path.realpath(os.path.dirname(source) or "."), os.path.dirname(os.path.realpath(source))}
        if os.path.realpath(source) == mine or (os.path.isdir(mine) and mine in folders):
            raise OutputError(f"{path}: is what is read; it is never overwritten", hint="choose another -o")
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OutputError(f"{path}: is no regular file; outputs are files and folders", hint="choose another -o")
    if not force:
        raise OutputError(f"{path}: exists", hint="--force overwrites it, -o writes elsewhere")
    if os.path.islink(path):
        raise OutputError(f"{path}: is a link to {mine}; --force would replace the link itself", hint=f"-o {mine}")
    if not (os.path.isdir(path) if is_folder else os.path.isfile(path)):
        kind = "a folder" if is_folder else "a file"
        raise OutputError(f"{path}: exists and is not {kind}; --force would lose it")
    if is_folder and (others := list(islice(foreign(path, known, weights), 5))):
        raise OutputError(
            f"{path}: holds other files, which --force would lose: {', '.join(others)}",
            hint="remove the folder, or choose another -o",
        )


def check_apart(output: str, inputs: Iterable[str]) -> None:
    """OutputError where an output would be inside an input folder, or an input inside the output."""
    mine = os.path.join(os.path.realpath(output), "")
    for path in inputs:
        real = os.path.realpath(path)
        if os.path.join(real, "") == mine:
            raise OutputError(f"{output}: is what is read; it is never overwritten", hint="choose another -o")
        if os.path.join(real, "").startswith(mine):
            raise OutputError(f"{output}: holds {path}, which is read; it is never overwritten", hint="another -o")
        if os.path.isdir(real) and mine.startswith(os.path.join(real, "")):
            raise OutputError(f"{output}: would be inside {path}, which is read", hint="choose another -o")


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems cannot sync a folder; the files themselves are safe
    finally:
        os.close(descriptor)


def output_error(path: str, error: OSError) -> OutputError:
    hint = "free some space, or -o on another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return OutputError(f"{path}: cannot be written: {error.strerror}", hint=hint)
