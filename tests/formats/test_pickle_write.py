"""`formats/pickle/write.py`: Python, torch's restricted unpickler and our own machine read what was written."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import _weights_only_unpickler

from paramtool.formats.pickle import read as pickle_read
from paramtool.formats.pickle.write import Call, Dict, Name, Persistent, dumps
from tests.versions import needs

ORDERED = Name("collections", "OrderedDict")
scalars = (
    st.none() | st.booleans() | st.integers(-300, 70_000) | st.integers(1 - 2**2039, 2**2039 - 1) | st.floats()
    | st.text() | st.text(st.characters(categories=("Cs",))) | st.binary() | st.complex_numbers()
)  # fmt: skip
keys = st.integers(-(2**62), 2**62) | st.text() | st.booleans() | st.tuples(st.text(), st.integers(-(2**62), 2**62))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.lists(inner),
    max_leaves=30,
)


def said(value: Any) -> Any:
    """A value of Python in the writer's words."""
    if isinstance(value, dict):
        return Dict([(key, said(child)) for key, child in value.items()])
    if isinstance(value, (list, tuple)):
        return type(value)(said(item) for item in value)
    return value


@needs("torch", "2.6", "weights_only=True takes bytes")
@settings(deadline=None)
@given(values)
def test_everybody_reads_the_same(value: Any) -> None:
    """pickle, torch's weights_only unpickler and our machine give the value back, types of keys included."""
    data = dumps(said(value))
    ours = pickle_read.load(data, 0, "p", {}, persistent=lambda pid: pid)
    for found in (pickle.loads(data), _weights_only_unpickler.load(io.BytesIO(data), encoding="utf-8")):
        assert repr(found) == repr(value)
    assert ours.stop == len(data)
    if not any(type(node) is complex for node in flat(value)):  # our machine keeps complex numbers as calls
        assert repr(ours.value) == repr(value)


def flat(value: Any) -> list[Any]:
    """Everything inside a value."""
    if isinstance(value, dict):
        return [node for pair in value.items() for part in pair for node in flat(part)]
    return [node for item in value for node in flat(item)] if isinstance(value, (list, tuple)) else [value]


def test_calls_items_attributes_and_persistent_ids() -> None:
    """What is called is filled and given its attributes; ids go to the reader's own function."""
    made = Call(ORDERED, (), [("a", 1), (2, Persistent(("storage", 7)))], Dict([("_metadata", "m")]))

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return ["found", pid]

    found = Reader(io.BytesIO(dumps(made))).load()
    assert type(found) is OrderedDict
    assert found == {"a": 1, 2: ["found", ("storage", 7)]}
    assert found._metadata == "m"  # type: ignore[attr-defined]


def test_containers_may_hold_themselves() -> None:
    """A list, a dict and a filled call that hold themselves are one object each."""
    row: list[Any] = [1]
    table = Dict([("row", row)])
    named = Call(ORDERED, (), [("table", table)])
    row += [row, table, named]
    table.pairs.append(("self", table))
    named.pairs.append(("self", named))
    found = pickle.loads(dumps(row))
    assert found[1] is found
    assert found[2]["self"] is found[2]
    assert found[2]["row"] is found
    assert found[3]["self"] is found[3]


def test_many_items_and_names() -> None:
    """More items than one batch, and more remembered texts than one byte counts."""
    value = {f"name {k}": [k] for k in range(3000)}
    assert pickle.loads(dumps(said({"once": value, "twice": dict(value)}))) == {"once": value, "twice": value}
    data = dumps([f"name {k}" for k in range(300)] * 2)
    assert len(data) < 2 * len(dumps([f"name {k}" for k in range(300)]))


@needs("torch", "2.6", "weights_only=True takes bytes")
def test_only_opcodes_that_torch_takes() -> None:
    """Nothing of a newer protocol, no frames, no LONG4, no PUT."""
    value = Dict(
        [(k, (None, True, -1, 2**300, 1.5, b"x", 1j, "t", [1], (1, 2, 3, 4), Call(ORDERED))) for k in range(300)]
    )
    for opcode, _, _ in pickletools.genops(dumps(value)):
        assert opcode.proto <= 2, opcode.name
    assert len(_weights_only_unpickler.load(io.BytesIO(dumps(value)), encoding="utf-8")) == 300


@pytest.mark.parametrize("value", [2**2040, -(2**2040), {1}, object(), torch.Size((1,))])
def test_what_has_no_form_is_refused(value: object) -> None:
    """A number too long for LONG1, and objects of any other class."""
    with pytest.raises(TypeError, match="cannot be pickled"):
        dumps([value])
