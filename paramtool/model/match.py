"""What a comparison of bytes found: tensors whose elements another tensor already holds, all or in part.

Nothing here is a tie.  A match says where the bytes of a tensor could be taken from.  It does not say which alias set
the tensor belongs to; content never decides that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import View


@frozen
class Equal:
    """Names whose windows hold the same bytes, of one dtype and shape."""

    names: tuple[str, ...]
    digest: str
    """blake3 of the bytes, in row-major order."""
    constant: bool
    """Whether every element has the same value."""


@frozen
class Match:
    """A tensor whose elements can be derived from another tensor."""

    name: str
    """The tensor that need not be stored."""
    owner: str
    """The name of the tensor that holds its elements."""
    window: View
    """A window with the shape of `name` on the row-major elements of `owner`; `window.storage` is that name."""
    relation: str
    """`view` (the same elements in another shape), `slice`, `transpose` or `cast`."""
    lossless: bool = True
    """For a cast: whether casting back gives the same bytes; if not, `name` is `owner` rounded to nearest even."""
    _members = "name owner relation lossless shape=window.shape strides=window.strides offset=window.offset"


@frozen
class Content:
    """Everything that comparing found."""

    equal: tuple[Equal, ...] = ()
    constants: Mapping[str, bytes] = field(default_factory=dict)
    """{name: the bytes of the one element} for each tensor that repeats one value."""
    matches: tuple[Match, ...] = ()
    """Matches between tensors that are not equal; the first of an equal class represents it."""
    nbytes_read: int = 0
    """How many bytes were read."""


@frozen
class Rows:
    """A window whose row-major bytes are read as rows of `pitch` bytes: a tensor that may hold slices, or a slice."""

    name: str
    view: View
    pitch: int

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.view.nbytes // self.pitch
