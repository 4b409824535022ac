"""Fusing and taking apart by the record of a file: what an earlier command changed gets its names and positions back.

    record: unfused qkv_proj, position 4    q_proj, k_proj, v_proj fused   qkv_proj, at position 4 again
    record: fused qkv_proj, positions 4, 5, 6    qkv_proj taken apart      q_proj, k_proj, v_proj at these positions

Tensors that turn out to be those of a record are restored, too, whoever asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool.errors import LayoutError
from paramtool.model.parts import FusedTensor
from paramtool.parts.pieces import Stored
from paramtool.passes.parts.fuse import Joint, parts_of


class Restored(NamedTuple):
    """What a record says before and after some tensors were fused, or taken apart."""

    again: tuple[FusedTensor, ...]
    """Those of the record that are restored."""
    new: tuple[FusedTensor, ...]
    """The others, which a record of the output describes."""

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the fused tensors of those that are restored."""
        return frozenset(one.tensor for one in self.again)


def restored(
    joints: Sequence[Joint],
    again: Iterable[FusedTensor],
    known: Iterable[FusedTensor],
    ranks: Mapping[str, int],
    *,
    is_fused: bool,
) -> Restored:
    """What a record says of tensors that are fused, or taken apart (`is_fused`: the source has them fused).

    `again` were taken from the record, `known` are all that it could restore, and `ranks` is the first order of the
    source's names (`order`), which is where restored tensors go.
    """
    described = {one.stored.name: one.described for one in joints}
    back = {one.tensor: one for one in again}
    others = (one for one in known if one.tensor in described and one.tensor not in back)
    found = (*back.values(), *(one for one in others if one.is_like(described[one.tensor])))
    taken = {one.tensor for one in found}
    new = (_with_positions(one.described, ranks, is_fused) for one in joints if one.stored.name not in taken)
    return Restored(found, tuple(new))


def _with_positions(one: FusedTensor, ranks: Mapping[str, int], is_fused: bool) -> FusedTensor:
    """A description with the positions of what the source has and the output does not."""
    old = (one.tensor,) if is_fused else one.names
    return replace(one, positions=tuple(ranks[name] for name in old))


def parts_as_they_are(joints: Iterable[Joint], shapes: Mapping[str, tuple[int, ...]]) -> list[Stored]:
    """The parts as the source has them; LayoutError if a record says another shape."""
    found = parts_of(joints)
    for one in found:
        if shapes[one.name] != one.shape:
            raise LayoutError(
                f"{one.name!r} has shape {list(shapes[one.name])}; its record says {list(one.shape)}",
                hint="--at MODULE fuses without the record",
            )
    return found
