"""Places in TOML text: a law over documents that are written here, and what the walk must not trip over."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import UsageError
from paramtool.toml_text import Key, parsed, positions

TEXT = '''# a comment with [brackets] and = signs
a.b = 1  # c = 2
"quoted \\u0041 = [" = "]"
'literal"' = {x = 1, "y]" = ["a,b", 'c#d', [1979-05-27T07:32:00Z, 1.5e3]]}
m = """two lines [a]
x = "y" \\\\ """
n = """ends with a quote\""""
l = \'\'\'raw
[[no]] = 1\'\'\'\'
[t . "u.v"]
k = [
  1,  # one, [two]
  2,
]
[[rows]]
z = true
[[rows]]
z = false
[rows.inner]
q = -inf
'''


def test_each_place() -> None:
    """The text at a place begins with the key, or with the value."""
    found = positions(TEXT)
    lines = TEXT.split("\n")
    begins = {
        ("a",): "a.b", ("a", "b"): "b =", ("quoted A = [",): '"quoted', ('literal"',): "'literal",
        ('literal"', "x"): "x =", ('literal"', "y]", 0): '"a,b"', ('literal"', "y]", 2, 1): "1.5e3", ("m",): 'm = """',
        ("n",): "n =", ("l",): "l =", ("t",): "t .", ("t", "u.v"): '"u.v"', ("t", "u.v", "k", 1): "2,",
        ("rows", 0, "z"): "z = true", ("rows", 1, "z"): "z = false", ("rows", 1): "[[rows",
        ("rows", 1, "inner", "q"): "q",
    }  # fmt: skip
    for key, begin in begins.items():
        line, column = found[key]
        assert lines[line - 1][column - 1 :].startswith(begin), (key, line, column)


def keys(value: Any, above: Key = ()) -> set[Key]:
    """Every way into a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {way for name, one in items for way in {(*above, name)} | keys(one, (*above, name))}


def test_every_key_of_the_text_has_a_place_and_no_other_has() -> None:
    assert positions(TEXT).keys() == keys(parsed(TEXT, "", 9999))


STRINGS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=6)
VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)


def string(text: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'


def written(value: Any, space: str) -> str:
    """A value inline, with spaces between its signs."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return string(value)
        case list():
            return f"[{space}" + f"{space},{space}".join(written(one, space) for one in value) + f"{space}]"
        case _:
            return "{" + ", ".join(f"{string(k)} = {written(v, '')}" for k, v in value.items()) + "}"


@given(st.dictionaries(STRINGS, VALUES, max_size=4), st.sampled_from(["", " ", "\n", " # ] , }\n "]))
def test_places_are_those_of_the_keys(document: dict[str, Any], space: str) -> None:
    """All keys and items have one, in the order of the text."""
    text = "\n".join(f"{string(key)} = {written(value, space)}" for key, value in document.items())
    found = positions(text)
    assert parsed(text, "", sys.maxsize) == document
    assert found.keys() == keys(document)
    assert list(found.values()) == sorted(found.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [("a = ", "f:1:5: is not valid TOML: "), ("a = 1\na = 2", "f:2:"), ("[" * 5000, "f"), ("x" * 101, "f: has 101")],
)
def test_what_is_not_valid_says_where(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(text, "f", 100 if text.startswith("x") else 9999)
    assert caught.value.message.startswith(message)
