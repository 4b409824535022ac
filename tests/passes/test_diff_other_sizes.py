"""Sizes of a map beside those of a config: the other ones are named, and a config of another tensor says nothing."""

from __future__ import annotations

import pytest

from paramtool.parts.facts import Facts
from paramtool.parts.sizes import Sizes
from paramtool.passes.diff.part_maps import LaidTensor, other_sizes

PER_HEAD = LaidTensor("", "{heads: q[head_dim in] k[head_dim in] v[head_dim in]}", 0, (96,))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"heads": 4, "head_dim": 8}, ""),
        ({"heads": 2, "head_dim": 16}, "heads=2, head_dim=16"),
        ({"heads": 4, "head_dim": 16}, None),  # 192 rows: of another tensor
        ({"head_dim": 8}, None),
    ],
)
def test_sizes_of_a_map_of_four_heads(known: dict[str, int], said: str | None) -> None:
    assert other_sizes(PER_HEAD, Sizes({"heads": 4, "head_dim": 8}), Facts(known, {})) == said


def test_rows_that_are_only_cut_are_told_by_their_number() -> None:
    """The heads inside a part that keeps its order do not matter: 24 rows are 24 rows."""
    joined = LaidTensor("", "q[(heads head_dim) in] k[(kv_heads head_dim) in]", 0, (32,))
    mine = Sizes({"heads": 6, "kv_heads": 2, "head_dim": 4})
    assert other_sizes(joined, mine, Facts({"heads": 3, "kv_heads": 1, "head_dim": 8}, {})) == ""
    assert (
        other_sizes(joined, mine, Facts({"heads": 4, "kv_heads": 4, "head_dim": 4}, {}))
        == "heads=4, head_dim=4, kv_heads=4"
    )
