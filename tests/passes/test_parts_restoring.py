"""What a record says of tensors that are fused or taken apart, and which of them it restores."""

from __future__ import annotations

import pytest

from paramtool.errors import LayoutError
from paramtool.model.parts import FusedTensor
from paramtool.parts.layout import find_part_layout
from paramtool.passes.parts import find, fuse
from paramtool.passes.parts.fuse import parts_as_they_are, restored

APART = {"a.q_proj.weight": (6, 5), "x": (1,), "a.k_proj.weight": (3, 5), "a.v_proj.weight": (3, 5)}
RANKS = {name: k for k, name in enumerate(APART)}
FUSED = {"x": (1,), "a.qkv_proj.weight": (12, 5)}


def joint(facts: dict[str, int] | None = None) -> fuse.Joint:
    layout = find_part_layout("qkv")
    assert layout is not None
    groups = find.apart(APART, fuse.group(layout.group), (), "f")
    (found,) = fuse.fused(groups, layout, fuse.KnownParts(APART, lambda at: facts or {}))
    return found


def recorded(positions: tuple[int, ...], tensor: str = "a.qkv_proj.weight") -> FusedTensor:
    one = joint().described
    return FusedTensor(tensor, one.layout, one.pattern, one.along, one.sizes, one.parts, positions)


def test_a_new_tensor_says_where_its_parts_were() -> None:
    back, new = restored([joint()], (), (), RANKS, is_fused=False)
    assert not back
    assert [one.positions for one in new] == [(0, 2, 3)]


def test_new_parts_say_where_their_tensor_was() -> None:
    _, new = restored([joint()], (), (), {name: k for k, name in enumerate(FUSED)}, is_fused=True)
    assert [one.positions for one in new] == [(1,)]


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("is_fused", [True, False])
def test_what_the_record_knows_is_restored(is_asked: bool, is_fused: bool) -> None:
    """Whether the command took it from the record, or found the same tensor by itself."""
    known = recorded((0, 2, 3) if is_fused else (1,))
    ranks = {name: k for k, name in enumerate(FUSED if is_fused else APART)}
    back, new = restored([joint()], [known] if is_asked else [], [known], ranks, is_fused=is_fused)
    assert back == {known.tensor} and new == ()


def test_another_tensor_of_the_same_name_is_not_restored() -> None:
    known = recorded((1,))
    other = FusedTensor(known.tensor, "other", "k[k_rows in] q[q_rows in] v[v_rows in]", 0, known.sizes, known.parts)
    back, new = restored([joint()], (), [other, recorded((1,), "b.qkv_proj.weight")], RANKS, is_fused=False)
    assert not back and [one.tensor for one in new] == [known.tensor]


def test_parts_of_another_shape_are_refused() -> None:
    assert [part.name for part in parts_as_they_are([joint()], APART)] == [name for name in APART if name != "x"]
    with pytest.raises(LayoutError, match="its record says"):
        parts_as_they_are([joint()], {**APART, "a.q_proj.weight": (7, 5)})
