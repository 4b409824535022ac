"""What a file says of its parts: which tensors were made of which, and by which pattern.

`formats.record.parts` reads and writes it; `passes.parts` makes and uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from paramtool.lazy_dataclass import frozen


@frozen
class FusedTensor:
    """How one tensor was made of parts."""

    tensor: str
    layout: str
    pattern: str
    along: int
    sizes: Mapping[str, int]
    parts: Mapping[str, tuple[str, ...]]
    """{term of the pattern: the names of its parts}"""
    positions: tuple[int, ...] = ()
    """Those of the parts, or that of the tensor, among the names of a file in which everything recorded is undone."""
    companion: str = ""
    """What it is beside a weight, such as `weight_scale_inv`; pattern and sizes are then the weight's."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parts."""
        return tuple(name for names in self.parts.values() for name in names)

    def is_like(self, other: FusedTensor) -> bool:
        """Whether another is the same tensor made of the same parts, whatever their positions."""
        mine, theirs = (
            (one.tensor, one.pattern, one.along, dict(one.sizes), dict(one.parts), one.companion)
            for one in (self, other)
        )
        return mine == theirs


@frozen
class PartsRecord:
    """What a file says of its parts."""

    dialect: str = ""
    source: str = ""
    """The dialect that the names were first converted from."""
    fused: tuple[FusedTensor, ...] = ()
    """Tensors of the file that hold parts."""
    unfused: tuple[FusedTensor, ...] = ()
    """Tensors that the file does not have and whose parts it has."""
    added: Mapping[str, str] = field(default_factory=dict)
    """{a tensor that the dialect's program wants: the tensor of the file that it repeats}"""
    order: tuple[int, ...] = ()
    """The order of the tensors before the first conversion: of transformers 4's names, sorted, the rank of each."""
    prefix: str = ""
    """What the dialect has in front of all names of transformers 4, which lack it."""
    is_bare: bool = False
    """Whether the file had no `format` in its metadata before it was rearranged for the first time."""
