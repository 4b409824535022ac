"""Names that become tensors of their own, and tensors that become one."""

from __future__ import annotations

import pytest

from paramtool.errors import LayoutError, UsageError
from paramtool.model import alias
from paramtool.passes.retied import applied, retied
from tests.passes.made import checkpoint, view

TIED = checkpoint({"a": (2, 3), "b": view(0, 2, 3), "c": view(0, 2, 3), "d": (2, 3), "e": (3, 2)})


def sets(made: object) -> dict[str, str]:
    """{name: its alias set}"""
    names = alias.build(made, parts=False, split_content=True).names  # type: ignore[arg-type]
    return {name: one.alias_set for name, one in names.items()}


def test_an_untied_name_is_a_tensor_of_its_own() -> None:
    found = retied(TIED, ["c"], {})
    (move,) = found.moves
    assert (move.old, move.new, found.untied) == (("a", "b", "c"), ("a", "c"), {"c": "a"})
    known = sets(applied(TIED, found))
    assert known["a"] == known["b"] == "a" and known["c"] == "c"


def test_tied_tensors_have_to_be_equal() -> None:
    found = retied(TIED, [], {"d": "a"})
    (move,) = found.moves
    assert (move.old, move.new, move.twins) == (("a", "d"), ("a",), (("a", "d"),))
    (condition,) = found.requires
    assert (condition.view.storage, condition.terms[0][1].storage) == (1, 0)
    known = sets(applied(TIED, found))
    assert known["d"] == known["a"] == "a"


def test_nothing_is_asked() -> None:
    assert not retied(TIED, [], {}).moves


@pytest.mark.parametrize(("untie", "tie", "told"), [
    (["d"], {}, "no other name has the same tensor"),
    (["x"], {}, "has no tensor 'x'"),
    ([], {"b": "a"}, "they are one tensor already"),
    ([], {"b": "d"}, "'b' is tied to 'a' or others"),
    ([], {"d": "e", "e": "a"}, "name that one"),
    (["a"], {"d": "a"}, "shall be tied"),
    (["a", "b", "c"], {}, "no other name has the same tensor"),
])  # fmt: skip
def test_what_cannot_be_is_told(untie: list[str], tie: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("(", r"\(")):
        retied(TIED, untie, tie)


def test_tensors_of_two_shapes_are_not_tied() -> None:
    with pytest.raises(LayoutError, match=r"'e' is float32 \[3, 2\]; 'd' is float32 \[2, 3\]"):
        retied(TIED, [], {"e": "d"})
