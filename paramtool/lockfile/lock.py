"""The values of a lock file.

    model    a checkpoint that was locked: a path, its files, its digests
    tied     names that share memory, and why
    view     where a name is in what its alias set shares, if it is not all of it
    object   one top-level key of everything that is not a tensor
    tensor   a name, an element type, a shape and a digest

Every value has the line of the lock file that it is on, 0 where it was made from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape

VERSION = 2
"""What is written.  Version 1 had no tensor lines of the type FACTS, and strings in the words of objects."""
NAME = "paramtool.lock"
FULL, HEADERS = "b3", "b3-headers"
"""What a content digest covers: names, types, shapes and bytes, or only what is in headers."""
UNREAD = "-"
"""In place of a digest: `--headers` read no tensor."""
NO_DATA = "no-data"
"""In place of a digest: the checkpoint has the name and no bytes for it."""
UNREADABLE = "unreadable"
"""In place of an element type: a tensor that cannot be read, of which only the name is known."""
COMPOUND = "compound"
"""In place of an element type: the facts of a tensor of several parts, which headers have, too."""
FACTS = "facts"
"""In place of an element type: what a subclass of tensors was saved with, or a header's entry that names tensors."""
VERSIONS = "_metadata (attributes)"
"""The key of the versions of modules among the objects, which not every file of the same weights has."""
NESTING = "(nesting)"
"""The key of the places of tensors in dicts and lists, where the file has more of them than names."""
NESTING_DCP = "(nesting, keys as text)"
"""The same of DCP, which turns numbers into text."""
EPSILONS = "(epsilons)"
"""The key of what a config adds to the variances of norms."""
APART = (VERSIONS, NESTING, NESTING_DCP, EPSILONS)
"""Keys that not every file of the same weights has: compared where both have them."""
STORAGE, DECLARED, CONFIG, UNTIED = TIES = ("storage", "declared", "config", "untied-by-config")
"""Why names share memory: one storage, an alias record, or a config.json; and that a config.json says they do not."""
MEMORY = (STORAGE, DECLARED)
"""Kinds of ties that the checkpoint itself has."""


class LockedFile(NamedTuple):
    """A file of a model."""

    name: str
    """Its path inside the folder of the model, with `/`; its own name where the model is one file."""
    nbytes: int
    sha256: str
    """In hexadecimal; empty where no byte was read."""
    line: int = 0


class LockedTensor(NamedTuple):
    """A tensor, or a part of one (`name/part`)."""

    name: str
    dtype: str
    shape: Shape
    digest: str
    """blake3 of its elements in row-major order, in hexadecimal, or with `span:` before it; or UNREAD, or NO_DATA."""
    line: int = 0

    @property
    def data(self) -> str:
        """Whether its numbers were `read`, are `unread`, or there are `none`."""
        return {UNREAD: "unread", NO_DATA: "none"}.get(self.digest, "read")

    @property
    def known(self) -> str | None:
        """Its digest, if its numbers were read."""
        return self.digest if self.data == "read" else None


class LockedTie(NamedTuple):
    """Names that share memory, or that a config ties."""

    names: tuple[str, ...]
    """Sorted."""
    kind: str
    """One of TIES."""
    line: int = 0


class LockedView(NamedTuple):
    """Where a name is in what its alias set shares (`passes/lock/places.py`)."""

    name: str
    offset: int
    """Its first byte, counted from the first byte of a name without such a line, or of the set."""
    strides: Shape
    """In elements; as many as its shape has sizes."""
    line: int = 0


class LockedObject(NamedTuple):
    """A top-level key of what is not a tensor."""

    key: str
    digest: str
    """blake3 of its value as canonical JSON."""
    words: str
    """The value in short, for people, without the strings in it."""
    line: int = 0


@frozen
class LockedModel:
    """A checkpoint, as it is now or as it was when it was locked."""

    path: str
    """As in the lock file: relative to its folder where it is inside, with `/`."""
    files: tuple[LockedFile, ...]
    content: str
    """`b3:` and 64 digits: names, types, shapes and bytes.  `b3-headers:` where no tensor was read."""
    unnamed: str
    """The same without the names."""
    tensors: Mapping[str, LockedTensor]
    """By name, sorted."""
    ties: tuple[LockedTie, ...] = ()
    objects: Mapping[str, LockedObject] = field(default_factory=dict)
    dialect: str = ""
    """The dialect of its names; empty where none was recognised."""
    views: Mapping[str, LockedView] = field(default_factory=dict)
    """By name, sorted: names that are not all of what their alias set shares."""
    line: int = 0
    lines: Mapping[str, int] = field(default_factory=dict)
    """{word: line} of `content`, `unnamed` and `dialect`."""

    forms: tuple[str, ...] = ()
    """Files of its folder that are the model for another framework by their names, not compared and not locked."""
    unlocked: tuple[str, ...] = ()
    """Files of its folder that hold the same tensors once more, compared and not locked; never in a lock file."""
    version: int = VERSION
    """That of the lock that it was read from."""
    left_out: tuple[str, ...] = ()
    """Notes on what its files hold and no line is about, such as strings; never in a lock file."""
    _members = (
        "path content files(name nbytes sha256!) unnamed dialect! ties(names kind) "
        "views=views.values(name offset strides) objects=objects.values(key digest words) "
        "tensors=tensors.values(name dtype shape digest=known data)"
    )

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Tensors that cannot be read, so that no digest is of them."""
        return tuple(name for name, one in self.tensors.items() if one.dtype == UNREADABLE)

    @property
    def without_data(self) -> tuple[str, ...]:
        """Tensors of which the checkpoint has the name, the type and the shape alone, such as those on `meta`."""
        return tuple(name for name, one in self.tensors.items() if one.digest == NO_DATA and one.dtype != UNREADABLE)

    @property
    def is_headers_only(self) -> bool:
        """Whether no tensor was read for it, so that it cannot say whether numbers changed."""
        return self.content.startswith(f"{HEADERS}:")


@frozen
class Lock:
    """A lock file."""

    path: str
    models: Mapping[str, LockedModel]
    """By path, sorted."""
