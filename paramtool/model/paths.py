"""Paths that stand inside a file: names of other files, written by strangers."""

from __future__ import annotations

import os

from paramtool.errors import FormatError, UnsafeError


def named_beside(where: str, name: str, *, folders: bool = False, portable: bool = True) -> str:
    """The name of a file beside the file `where` that names it; with `folders` also of one in a folder below, by `/`.

    FormatError if it is no such name; UnsafeError if it could lead out of the folder, on any system where it is to be
    `portable`, else on this one.  Links are followed: whoever made a link chose what may be read.

    >>> named_beside("m.onnx", "./data/w.bin", folders=True), named_beside("m.lock", "a:b.pt", portable=False)
    ('data/w.bin', 'a:b.pt')
    >>> named_beside("m.onnx", "data/../../w.bin", folders=True)
    Traceback (most recent call last):
    paramtool.errors.UnsafeError: m.onnx: names the file 'data/../../w.bin', outside its own folder and those below it
    """
    if portable and any(sign < " " for sign in name):
        raise _no_name(where, name)
    parts = check_name(where, name).split("/")
    signs = set("/\\:" if portable else f"/{os.sep}")
    if name[0] == "/" or any(part == ".." or signs & set(part) for part in parts):
        below = " and those below it" if folders else ""
        raise UnsafeError(f"{where}: names the file {name!r:.200}, outside its own folder{below}")
    if parts[-1] in ("", "."):
        raise _no_name(where, name)
    if len(parts) > 1 and not folders:
        raise FormatError(f"{where}: names the file {name!r:.200}; expected the plain name of a file in its own folder")
    return "/".join(part for part in parts if part not in ("", "."))


def check_name(where: str, name: str) -> str:
    """A path that a person may have chosen, and that may lead anywhere; FormatError if it is the name of no file.

    >>> check_name("m.lock", "../m.pt")
    '../m.pt'
    """
    if not name or any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in name):
        raise _no_name(where, name)
    return name


def _no_name(where: str, name: str) -> FormatError:
    return FormatError(f"{where}: names the file {name!r:.200}, which is the name of no file")
