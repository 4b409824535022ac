"""Places of names in what they share; tests/oracles/test_lock_places.py asks torch which elements these are."""

from __future__ import annotations

from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from paramtool.passes.lock.places import places


def test_types_of_other_sizes_on_one_storage() -> None:
    """Counted in bytes; torch saves no such state dict, other programs do."""
    long, short = (View(0, DTYPES[name], 2, (4,), (1,)) for name in ("int32", "int16"))
    assert places({"a": long, "b": short}) == {"a": (4, (1,)), "b": (0, (1,))}
    assert places({"a": long, "b": View(0, DTYPES["int16"], 6, (2,), (1,))}) == {"b": (4, (1,))}
    assert places({"a": long, "b": View(1, DTYPES["int32"], 2, (4,), (1,))}) == {}
    assert places({"a": View(0, DTYPES["int32"], 0, (0,), (1,))}) == {}
