"""Facts: what may be said, what follows from it, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import LayoutError, UsageError
from paramtool.parts import facts as module
from paramtool.parts.facts import KINDS, NONE, SYNONYMS, Facts, facts, from_spec, merged
from paramtool.parts.layout import all_part_layouts
from paramtool.parts.sizes import MEANINGS


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, int]:
    """Sizes of an attention that agree with each other."""
    kv_heads, group, half = draw(st.tuples(st.integers(1, 64), st.integers(1, 16), st.integers(1, 128)))
    return {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "group": group,
        "head_dim": 2 * half,
        "value_dim": draw(st.integers(1, 256)),
        "rotary": 2 * draw(st.integers(1, half)),
    }


@given(attentions(), st.data())
def test_sources_together_are_the_whole(sizes: dict[str, int], data: st.DataObject) -> None:
    """However facts are spread over record, config and user, together they are the same; each keeps its source."""
    who = {word: data.draw(st.sampled_from(["record", "config", "spec"]), word) for word in sizes}
    parts = {
        source: facts({word: size for word, size in sizes.items() if who[word] == source}, source)
        for source in ("record", "config", "spec")
    }
    if any(word in part.sizes and part.sizes[word] != sizes[word] for part in parts.values() for word in sizes):
        return  # value_dim that follows from head_dim in one source, and is said by another
    found = merged(**parts)
    assert found.sizes == sizes
    assert set(found.said) == set(sizes)


@given(attentions(), st.data())
def test_a_spec_says_what_facts_show(sizes: dict[str, int], data: st.DataObject) -> None:
    words = data.draw(st.permutations(sorted(sizes)))
    kind, found = from_spec("qkv " + " ".join(f"{word}={sizes[word]}" for word in words))
    assert kind == "qkv"
    assert found.sizes == sizes
    assert from_spec(f"qkv {found}")[1].sizes == found.sizes


@given(attentions(), st.sampled_from(["heads", "kv_heads", "head_dim", "rotary"]), st.integers(1, 5))
def test_two_sources_that_differ_are_refused_by_name(sizes: dict[str, int], word: str, more: int) -> None:
    with pytest.raises(LayoutError) as caught:
        merged(
            config=Facts({word: sizes[word]}, {word: "config.json: key"}),
            spec=Facts({word: sizes[word] + more}, {word: "--spec"}),
        )
    for part in (word, "config.json: key", "--spec", str(sizes[word]), str(sizes[word] + more)):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("given_sizes", "follows"),
    [
        ({"heads": 32, "kv_heads": 8}, {"group": 4}),
        ({"heads": 32, "group": 4}, {"kv_heads": 8}),
        ({"kv_heads": 8, "group": 4}, {"heads": 32}),
        ({"head_dim": 64}, {"value_dim": 64}),
        ({"head_dim": 192, "value_dim": 128}, {}),
        ({"heads": 32}, {}),
        ({"kv_heads": 8}, {}),
        ({"experts": 8}, {}),
    ],
)
def test_what_follows(given_sizes: dict[str, int], follows: dict[str, int]) -> None:
    assert facts(given_sizes, "x").sizes == {**given_sizes, **follows}


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"heads": 30, "kv_heads": 8}, "heads=30 (x), kv_heads=8 (x): heads must be a multiple of kv_heads"),
        ({"heads": 8, "kv_heads": 2, "group": 2}, "heads must be kv_heads times group"),
        ({"linear_key_heads": 3, "linear_value_heads": 4}, "must be a multiple of linear_key_heads"),
        ({"state_heads": 6, "groups": 4}, "state_heads must be a multiple of groups"),
        ({"heads": 0}, "heads=0 (x): expected a number from 1"),
        ({"heads": -4}, "heads=-4 (x): expected a number from 1"),
        ({"experts": module.MAX_SIZE + 1}, "expected a number from 1"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(LayoutError) as caught:
        facts(sizes, "x")
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no kind"),
        ("heads=4", "names no kind"),
        ("lstm heads=4", "is not a kind of group of parts"),
        ("qkv kv heads=4", "is a second kind"),
        ("qkv heads=4 heads=5", "is given twice"),
        ("qkv heads=0", "expected a whole number"),
        ("qkv heads=-1", "expected a whole number"),
        ("qkv heads=four", "expected a whole number"),
        ("qkv heads=٤", "expected a whole number"),
        ("qkv heads=99999999999", "expected a whole number"),
        ("qkv heads=", "expected a whole number"),
        ("qkv haeds=4", "unknown word 'haeds=4'"),
        ("qkv experts=4", "experts says nothing of qkv"),
        ("gate-up heads=4", "heads says nothing of gate-up"),
    ],
)
def test_wrong_specs(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_spec(text)
    assert says in caught.value.message
    assert text != "qkv haeds=4" or caught.value.hint == "did you mean heads=...?"


def test_words_of_configs_are_synonyms() -> None:
    """A person may write the words of a config; each means a fact that exists."""
    assert set(SYNONYMS.values()) <= set(MEANINGS)
    assert not set(SYNONYMS) & set(MEANINGS)
    assert from_spec("qkv num_attention_heads=32 num_key_value_heads=8")[1].sizes == {
        "heads": 32,
        "kv_heads": 8,
        "group": 4,
    }
    assert from_spec("gate_up chunks=2")[0] == "gate-up"


def test_each_kind_has_the_words_of_its_layouts() -> None:
    """What a layout needs can be said; every kind of group can be named."""
    assert {word for words in KINDS.values() for word in words} <= set(MEANINGS)
    for layout in all_part_layouts():
        assert set(layout.facts) <= {*KINDS[layout.group]}, layout.name


def test_nothing_said_is_nothing() -> None:
    assert not NONE
    assert not merged()
