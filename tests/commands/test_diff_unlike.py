"""Maps are listed only for tensors that can hold each other's numbers: to list them takes longer than to read these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from paramtool.parts.layout import PartLayout, all_part_layouts
from paramtool.passes.diff import part_maps
from tests.laws.comparing import compared
from tests.laws.test_diff_layouts import planted

QKV = [layout for layout in all_part_layouts() if layout.name.startswith("qkv-")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", QKV, ids=lambda layout: layout.name)
def test_no_map_is_listed_between_other_numbers(
    layout: PartLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever two layouts two networks have: random numbers of one are not in the other."""
    listed: list[object] = []

    def never(*given: object) -> Sequence[part_maps.PartMap]:
        listed.append(given)
        return ()

    monkeypatch.setattr(part_maps, "between", never)
    monkeypatch.setattr(part_maps, "of_parts", never)
    _, there = planted(layout, "weight", "h.0.attn", seed=1)
    for other in QKV:
        for arrays in planted(other, "weight", "h.0.attn"):
            compared(tmp_path, arrays, there)
    assert not listed
