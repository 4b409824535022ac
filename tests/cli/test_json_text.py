"""Documents that are written piece by piece: the text that `json.dumps` gives, in little memory."""

from __future__ import annotations

import gc
import json
import tempfile
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.cli._json_text import kept, pieces
from paramtool.errors import OutputError
from tests.examples import examples

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


def streamed(value: object) -> object:
    """The same value with an iterator for each list of documents."""
    if isinstance(value, dict):
        return {key: streamed(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return iter([streamed(item) for item in value])
    return value


@settings(max_examples=examples(40))
@given(VALUES)
def test_the_text_is_the_one_of_json_dumps(value: object) -> None:
    assert "".join(pieces(value)) == json.dumps(value, indent=2)
    assert "".join(pieces(streamed(value))) == json.dumps(value, indent=2)


@settings(max_examples=examples(20))
@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4))
def test_what_was_kept_is_the_text(items: list[dict[str, object]]) -> None:
    """With a member that is known when the others are written."""
    codes: list[int] = []

    def files() -> Iterator[object]:
        for item in items:
            codes.append(3)
            yield streamed(item)

    text = "".join(kept(pieces({"files": files(), "exit_code": lambda: len(codes)})))
    assert text == json.dumps({"files": items, "exit_code": len(items)}, indent=2)


def peak(count: int) -> int:
    """The most memory that a document of so many items takes where no garbage is collected, as in the command."""

    def items() -> Iterator[dict[str, object]]:
        for k in range(count):
            yield {"name": f"model.layers.{k}.weight", "shape": [k, 3], "parts": iter([{"k": k}])}

    gc.disable()
    tracemalloc.start()
    for _ in pieces({"schema": "x/1", "tensor_list": items()}):
        pass
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    gc.enable()
    return found


def test_memory_does_not_grow_with_the_document() -> None:
    peak(10)
    assert peak(4_000) < peak(1_000) + 50_000


def test_no_room_for_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, text: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "writelines", full)
    with pytest.raises(OutputError, match="No space left on device"):
        next(kept(pieces({})))
