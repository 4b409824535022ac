"""What values depend on beside bytes: equal facts have one text, and each change has another."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from paramtool.commands._value_facts import of_compound, of_header, text
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import Leaf, Mapping, Sequence
from paramtool.model.storage import SourceFile
from paramtool.model.view import View

PART = View(0, DTYPES["int8"], 0, (4,), (1,))
ATTRIBUTES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.integers() | st.text("xy", max_size=3), max_size=4
)
WORDS = st.text("ab.", min_size=1, max_size=4)


def subclass(attributes: dict[str, int | str]) -> Compound:
    """A tensor that a subclass was saved as."""
    state = Mapping("dict", tuple((key, Leaf(value)) for key, value in attributes.items()))
    return Compound("lib.Quantised", {"codes": PART}, {}, state)


@given(ATTRIBUTES, ATTRIBUTES)
def test_attributes(one: dict[str, int | str], other: dict[str, int | str]) -> None:
    """Equal in any order, and never with another value, attribute or type."""
    is_same = {key: (type(v), v) for key, v in one.items()} == {key: (type(v), v) for key, v in other.items()}
    assert (text(of_compound(subclass(one))) == text(of_compound(subclass(other)))) == is_same or list(one) != list(
        other
    )


def test_slots() -> None:
    """An object with slots has its attributes behind a None."""
    plain = subclass({"block_size": 4})
    slotted = Compound(plain.kind, plain.parts, {}, Sequence("tuple", (Leaf(None), plain.state)))
    assert of_compound(plain) == of_compound(slotted)


def header(metadata: dict[str, str], format: str = "safetensors") -> Checkpoint:
    entries = {"layer.weight": Entry(PART), "head": Entry(PART)}
    return Checkpoint(format, (SourceFile("m", 0, 0),), {}, entries, metadata=metadata)


def test_an_entry_counts_where_it_names_a_tensor_or_a_module() -> None:
    about = {"layer": json.dumps({"_type": "Int8", "block": [1, 4]}), "_names": json.dumps(["layer.weight"])}
    found = of_header(header({**about, "title": "a model", "date": "2026", "format": "pt"}))
    assert found.keys() == about.keys()
    assert of_header(header(about, "keras zip")) == {}


@given(st.dictionaries(WORDS, st.integers(), min_size=1, max_size=3), st.integers())
def test_each_leaf_counts(said: dict[str, int], other: int) -> None:
    """Another value under any key is another fact."""
    before = of_header(header({"layer": json.dumps(said)}))
    for key in said:
        after = of_header(header({"layer": json.dumps({**said, key: other})}))
        assert (text(before["layer"]) == text(after["layer"])) == (said[key] == other)
