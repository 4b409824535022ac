"""The texts of the program are the ones that were read."""

from __future__ import annotations

import pytest

from tests.golden.texts import GOLDEN, phrases, texts


def test_texts() -> None:
    """Each change of words is a change of the golden file: read it there, then write it anew."""
    found, expected = texts().splitlines(), GOLDEN.read_text(encoding="utf-8").splitlines()
    new = sorted(set(found) - set(expected))
    gone = sorted(set(expected) - set(found))
    assert (new, gone) == ([], []), "python -m tests.golden.texts"
    assert found == expected, "python -m tests.golden.texts"


@pytest.mark.parametrize(
    "source, found",
    [
        ('"""A docstring of words."""', []),
        ('x = "one"\ny = "%Y-%m"', []),
        ('raise E(f"{path}: holds {n} names")', ["{path}: holds {n} names"]),
        ('yield ("two words" " and three")', ["two words and three"]),
        ("f\"{f('inner words here')} and outer words\"", ["{f('inner words here')} and outer words"]),
    ],
)
def test_what_a_phrase_is(source: str, found: list[str]) -> None:
    assert [*phrases(source)] == found
