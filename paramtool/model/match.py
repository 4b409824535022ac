"""What a comparison of bytes found: tensors that repeat, wholly or in part, what others hold.

Nothing here is a tie.  A match says where the bytes of a tensor could be taken from; which alias set the tensor belongs
to is another question, and content never answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from paramtool.lazy_dataclass import dataclass
from paramtool.model.view import View


@dataclass(frozen=True, slots=True)
class Equal:
    """Names whose windows hold the same bytes, of one dtype and shape."""

    names: tuple[str, ...]
    digest: str
    """blake3 of the bytes, in row-major order."""
    constant: bool
    """Whether every element has the same value."""


@dataclass(frozen=True, slots=True)
class Match:
    """A tensor whose elements can be had from another one."""

    name: str
    """The tensor that need not be stored."""
    owner: str
    """The name of the tensor that holds its elements."""
    window: View
    """Where: a window, of the shape of `name`, on the row-major elements of `owner`; `window.storage` is that name."""
    relation: str
    """`view` (the same elements in another shape), `slice`, `transpose` or `cast`."""
    lossless: bool = True
    """For a cast: whether the way back gives the same bytes; if not, `name` is `owner` rounded to nearest even."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that comparing found."""

    equal: tuple[Equal, ...] = ()
    constants: Mapping[str, bytes] = field(default_factory=dict)
    """{name: the bytes of the one element} for tensors that repeat one value; of equal ones, all of them."""
    matches: tuple[Match, ...] = ()
    """Between tensors that are not equal; of equal ones, the first stands for all."""
    nbytes_read: int = 0
    """Bytes that were read to find all this."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A window, its row-major bytes seen as rows of `pitch`: what slices are looked for in, and what is looked for."""

    name: str
    view: View
    pitch: int

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.view.nbytes // self.pitch
