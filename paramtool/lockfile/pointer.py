"""What stands in a working tree for a file that git does not hold: the pointers of git-LFS and of Xet.

A git-LFS pointer is text of less than 1,024 bytes (git-lfs docs/spec.md):

    version https://git-lfs.github.com/spec/v1
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
    size 12345

Lines `ext-0-NAME sha256:...` may stand before `oid`: programs that changed the file before it was stored.  The first
has the sha256 of the file as it was, and then `oid` and `size` are those of something else (docs/extensions.md).

The git-xet of today writes git-LFS pointers (xet-core, git_xet/README.md).  That of before wrote TOML (xet-core before
2025-04, data/src/pointer_file.rs), whose hash is the root of a tree of chunks, and no sha256 of the file:

    # xet version 0
    filesize = 12345
    hash = '...64 hexadecimal digits...'
"""

from __future__ import annotations

import re
from typing import NamedTuple

from paramtool.errors import FormatError

MAX_NBYTES = 1024
"""A pointer is smaller (git-lfs docs/spec.md)."""
LFS, XET = "git-LFS", "Xet"
STARTS = {
    b"version https://git-lfs": LFS,
    b"version https://hawser": LFS,  # its name before 2015: git-lfs/lfs/pointer.go
    b"version http://git-media.io": LFS,  # and the first
    b"# xet version": XET,
}
_LINE = re.compile(r"([a-z0-9.-]+) ([^\r\n]*)")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_EXTENSION = re.compile(r"ext-([0-9])-.+")
_COUNT = re.compile(r"[0-9]{1,19}")
_XET_LINE = re.compile(r"""([a-z_-]+)\s*=\s*(?:'([^'\\]*)'|"([^"\\]*)"|([0-9]+))""")
VERSIONS = (
    "https://git-lfs.github.com/spec/v1",
    "https://hawser.github.com/spec/v1",
    "http://git-media.io/v/2",
)  # lfs/pointer.go, v1Aliases


class Pointer(NamedTuple):
    """What a pointer says of its file."""

    kind: str
    """LFS or XET."""
    sha256: str
    """Of the file, in hexadecimal; empty where a pointer of Xet says another hash."""
    nbytes: int | None
    """Of the file; None where extensions of git-LFS changed it before it was stored."""


def kind_of(head: bytes) -> str:
    """The kind of pointer that a file begins as; empty where it is none."""
    return next((kind for start, kind in STARTS.items() if head.startswith(start)), "")


def parse(data: bytes, path: str) -> Pointer | None:
    """The pointer that a whole small file is; None where it is none; FormatError where it is damaged."""
    kind = kind_of(data)
    if not kind:
        return None
    try:
        if len(data) >= MAX_NBYTES:
            raise FormatError(f"{len(data)} bytes; expected less than {MAX_NBYTES}")
        lines = data.decode("utf-8").split("\n")
        return _lfs(lines) if kind == LFS else _xet(lines)
    except (FormatError, UnicodeDecodeError) as error:
        why = error.message if isinstance(error, FormatError) else "it is not UTF-8"
        hint = "restore it from git, or fetch the file itself"
        raise FormatError(f"{path}: a damaged {kind} pointer: {why}", hint) from None


def _lfs(lines: list[str]) -> Pointer:
    found: dict[str, str] = {}
    for line in filter(None, (line.rstrip("\r") for line in lines)):
        match = _LINE.fullmatch(line)
        if match is None or match[1] in found:
            raise FormatError(f"found {line!r:.80}, expected `key value`, each key once")
        found[match[1]] = match[2]
    if (version := found.get("version", "")) not in VERSIONS:
        raise FormatError(f"version {version!r:.80} is not known")
    extensions = sorted(key for key in found if _EXTENSION.fullmatch(key))
    key = extensions[0] if extensions else "oid"
    for one in ("oid", key):
        if not _SHA256.fullmatch(found.get(one, "")):
            expected = "expected `sha256:` and 64 lower-case hexadecimal digits"
            raise FormatError(f"found {one} {found.get(one, '')!r:.90}, {expected}")
    size = found.get("size", "")
    if not _COUNT.fullmatch(size):
        raise FormatError(f"found size {size!r:.80}, expected a number of bytes")
    return Pointer(LFS, found[key].removeprefix("sha256:"), None if extensions else int(size))


def _xet(lines: list[str]) -> Pointer:
    if lines[0].rstrip("\r") != "# xet version 0":
        raise FormatError(f"found {lines[0]!r:.80}, expected version 0")
    found: dict[str, str] = {}
    for line in filter(None, (line.strip() for line in lines[1:])):
        match = _XET_LINE.fullmatch(line)
        if match is None or match[1] in found:
            raise FormatError(f"found {line!r:.80}, expected `key = value`, each key once")
        found[match[1]] = next(value for value in match.groups()[1:] if value is not None)
    if "hash" not in found or not _COUNT.fullmatch(found.get("filesize", "")):
        raise FormatError("expected lines `filesize` and `hash`")
    return Pointer(XET, "", int(found["filesize"]))
