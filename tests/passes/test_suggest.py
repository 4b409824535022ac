"""`passes/select.py`: near names, and the prefixes that would make names meet."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.passes import select
from tests.examples import examples

NAMES = st.lists(
    st.lists(st.sampled_from(["w", "b", "m", "head", "weight"]), min_size=1, max_size=4).map(".".join), unique=True
)


@pytest.mark.parametrize(
    "name, names, expect",
    [
        ("wte.wieght", ["ln.bias", "wpe.weight", "wte.weight"], ["wte.weight", "wpe.weight"]),
        ("encoder.layers.0.bias", ["encoder.layer.0.bias", "encoder.layers.0.bia"], ["encoder.layer.0.bias"]),
        ("encoder.layers.0.bias", ["zzz.bias", "encoder.layers.0.bia"], ["encoder.layers.0.bia"]),
        ("layer.a.w", ["layer.b.w", "layer.c.w", "layer.d.w"], None),
        ("zzz", ["a.weight"], []), ("w", [], []), ("weight", ["xweight", "a.b.c.weight"], ["xweight"]),
    ],
)  # fmt: skip
def test_names_alike(name: str, names: list[str], expect: list[str] | None) -> None:
    """Those with the same last word where one of them is like enough, else any; two at most, the most alike first."""
    found = select.alike(name, names)
    assert found == expect if expect is not None else (len(found) == 2 and set(found) < set(names))


def test_only_so_many_names_are_looked_at() -> None:
    """Comparing a name takes long: what stands behind the first 2,000 is not found."""
    far = [f"{k:05d}" for k in range(select.MAX_COMPARED)]
    assert select.alike("some.name", [*far[1:], "some.nam"]) == ["some.nam"]
    assert select.alike("some.name", [*far, "some.nam"]) == []


@given(st.text("abcd.", min_size=1, max_size=8), st.lists(st.text("abcd.", min_size=1, max_size=8), unique=True))
@settings(max_examples=examples(50))
def test_what_is_alike_is_a_name_that_is_like_enough(name: str, names: list[str]) -> None:
    """One that is there is found, and first; nothing that differs too much is."""
    found = select.alike(name, names)
    assert len(set(found)) == len(found) <= 2 and set(found) <= set(names)
    assert all(SequenceMatcher(None, one, name).ratio() >= select.LIKENESS for one in found)
    assert select.alike(name, [*names, name])[0] == name


@pytest.mark.parametrize(
    "missing, names, expect",
    [
        (["w", "b", "g"], ["bert.w", "bert.b", "head.w"], ("bert.", 2)),
        (["w"], ["a.b.w"], ("a.b.", 1)), (["w"], ["xw", "w", "w.x"], ("", 0)), ([], ["a.w"], ("", 0)),
        (["a.w", "b"], ["m.a.w", "m.b"], ("m.", 2)), (["b"], ["a..b"], ("a..", 1)), (["w"], [], ("", 0)),
    ],
)  # fmt: skip
def test_a_prefix_before_names(missing: list[str], names: list[str], expect: tuple[str, int]) -> None:
    """The one that most would have, up to a dot, and how many have it."""
    assert select.prefix_before(missing, names) == expect


@pytest.mark.parametrize(
    "missing, names, expect",
    [
        (["model.w", "model.x"], ["w"], ("model.", 1)), (["a.b.w", "a.c"], ["w", "b.w", "c"], ("a.", 2)),
        (["a.b.w"], ["w"], ("a.b.", 1)), (["w", "xw"], ["w"], ("", 0)), ([], ["w"], ("", 0)),
        (["a.w", "b.w", "b.x"], ["w", "x"], ("b.", 2)),
    ],
)  # fmt: skip
def test_a_prefix_of_names(missing: list[str], names: list[str], expect: tuple[str, int]) -> None:
    """What they would be there without, up to a dot, and how many would."""
    assert select.head_of(missing, names) == expect


def test_a_prefix_counts_all_names_and_is_looked_up_for_a_few() -> None:
    """Fifty names show it; the number is that of all."""
    many = [f"w{k}" for k in range(3 * select.MAX_LOOKED_UP)]
    below = {f"m.{name}" for name in many}
    assert select.prefix_before(many, below) == select.head_of(sorted(below), set(many)) == ("m.", len(many))
    late = [*(f"x{k}" for k in range(select.MAX_LOOKED_UP)), "w0"]
    assert select.prefix_before(late, below) == ("", 0)
    assert select.head_of([f"m.{name}" for name in late], set(many)) == ("", 0)


@given(NAMES, NAMES)
@settings(max_examples=examples(50))
def test_the_best_prefix(missing: list[str], names: list[str]) -> None:
    """Both directions count what they say, and no other prefix would give more."""
    prefix, count = select.prefix_before(missing, names)
    befores = {other[: -len(name)] for name in missing for other in names if other.endswith(f".{name}")}
    assert count == max((sum(one + name in names for name in missing) for one in befores), default=0)
    assert (prefix in befores and prefix.endswith(".")) if count else prefix == ""
    head, count = select.head_of(missing, names)
    heads = {name[: -len(rest)] for name in missing for rest in names if name.endswith(f".{rest}")}
    assert count == max((sum(one + rest in missing for rest in names) for one in heads), default=0)
    assert head in heads if count else head == ""


def test_advice() -> None:
    """The flag for names that stand behind a prefix; else the rule for those that begin with one; else nothing."""
    assert select.advice(["w", "b"], ["bert.w", "bert.b"]) == "with --prefix bert. 2 of them match"
    assert select.advice(["m.w", "m.b", "c"], ["w", "b"]) == "with --rename '*=m.*' 2 of them match"
    assert select.advice(["m.w"], ["w", "x.m.w"]) == "with --prefix x. 1 of them matches"
    assert select.advice(["w"], ["v"]) == select.advice([], ["v"]) == select.advice(["w"], []) == ""


def test_spaces() -> None:
    """Said of the first name that is there without the spaces around it, and of no other."""
    expected = "'\\tw' has spaces around it, which are part of the name: write 'w'"
    assert select.padded(["x ", "\tw", " b "], {"w", "b"}) == expected
    assert select.padded(["w", " w x "], ["w", "x"]) == select.padded([" w"], [" w"]) == ""
    assert select.padded([], ["w"]) == ""
