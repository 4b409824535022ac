"""Plans with other types: which stored tensor is cast, what its names become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import PlanError
from paramtool.model import alias
from paramtool.model.plan import check
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.types.apply import Typed, apply
from paramtool.passes.types.kinds import TypeRules, parse_all
from tests.passes.made import checkpoint, view


def typed(tensors: dict[str, Any], *rules: str, keep: tuple[str, ...] = ()) -> Typed:
    made = checkpoint(tensors)
    plan = dedup_pass.plan(made, alias.build(made, parts=False))
    found = apply(plan, made.entries, TypeRules(parse_all(rules), keep))
    check(found.plan, found.plan.order, made.storages)
    return found


def test_views_follow_their_owner() -> None:
    found = typed({"w": view(0, 4, 6), "row": view(0, 6, offset=6), "b": view(1, 4)}, "float16")
    assert found.casts == {"w": "float32", "b": "float32"}
    assert found.names == {"w": "float32", "row": "float32", "b": "float32"}
    row = found.plan.names["row"].window
    assert (row.storage, row.dtype.name, row.offset, row.shape) == ("w", "float16", 6, (6,))
    assert found.plan.nbytes == 2 * (24 + 4) and all(copy.is_cast for t in found.plan.targets for copy in t.copies)


def test_the_last_pattern_counts_and_keep_counts_more() -> None:
    tensors = {"a.w": (3,), "a.b": (3,), "bn.running_mean": (2,), "bn.running_var": (2,)}
    found = typed(tensors, "*=float64", "a.*=bfloat16", "float16", "a.b=float16", keep=("batchnorm",))
    assert found.plan.dtypes() == {
        "a.w": "bfloat16", "a.b": "float16", "bn.running_mean": "float32", "bn.running_var": "float32"
    }  # fmt: skip
    assert not found.exact and set(found.kept) == {"bn.running_mean", "bn.running_var"}


def test_a_split_of_memory_is_refused() -> None:
    with pytest.raises(PlanError, match="share memory"):
        typed({"w": view(0, 4, 6), "row": view(0, 6, offset=6)}, "row=float16")


def test_integers_stay_or_must_be_exact() -> None:
    found = typed({"n": view(0, 3, dtype="int64"), "w": view(1, 3)}, "*=float16")
    assert found.casts == {"w": "float32"}
    assert typed({"n": view(0, 3, dtype="int64")}, "n=float16").exact == {"n"}
