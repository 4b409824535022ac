"""The versions of modules in trees; tests/commands/test_diff_nesting.py has those of torch's own files."""

from __future__ import annotations

import pytest

from paramtool.model.objects import Leaf, Mapping, Node, Opaque, TensorRef
from paramtool.passes.module_versions import version_differences, without_versions

W = TensorRef("w")
VERSIONS = Mapping("collections.OrderedDict", (("", Mapping("dict", (("version", Leaf(1)),))),))


def state(*attributes: tuple[str, Node], kind: str = "collections.OrderedDict") -> Mapping:
    return Mapping(kind, (("w", W),), Mapping("dict", attributes) if attributes else None)


PLAIN = Mapping("dict", (("w", W),))


@pytest.mark.parametrize("below", [False, True])
def test_a_state_dict_is_a_dict(below: bool) -> None:
    one, plain = (
        Mapping("dict", (("net", node),)) if below else node for node in (state(("_metadata", VERSIONS)), PLAIN)
    )
    assert without_versions(one) == plain == without_versions(plain)


def test_other_attributes_and_classes_stay() -> None:
    assert without_versions(state(("_metadata", VERSIONS), ("epoch", Leaf(3)))) == Mapping(
        "dict", (("w", W),), Mapping("dict", (("epoch", Leaf(3)),))
    )
    own = state(("_metadata", VERSIONS), kind="m.Weights")
    assert isinstance(without_versions(own), Mapping) and without_versions(own) != PLAIN
    other = Opaque("m.Net", (("state", W),))
    assert without_versions(other) == other


def test_what_differs_in_words() -> None:
    one = state(("_metadata", VERSIONS))
    other = state(("_metadata", Mapping("dict", (("", Mapping("dict", (("version", Leaf(2)),))),))))
    assert [*version_differences(one, one)] == [] == [*version_differences(PLAIN, state())]
    (text,) = version_differences(PLAIN, one)
    assert text == "metadata '_metadata' of the state dict: is in the source only"
    (text,) = version_differences(other, one)
    assert text.endswith("has other modules or versions than that of the source")
