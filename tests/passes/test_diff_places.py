"""Which module a tensor is of, and what it is there, by its framework's word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.passes.diff.names import WORDS, ModulePlace, biases_of, place_of, spelled

ROLES = st.sampled_from([*WORDS])


@given(st.lists(st.sampled_from(["h", "0", "attn", "Dense_1", "fc"]), max_size=4), ROLES)
def test_every_spelling_is_read_as_the_same_place(words: list[str], role: str) -> None:
    for between in "./":
        place = ModulePlace(between.join(words), role)
        for name in spelled(place):
            if "_" not in name[len(place.at) :][:1]:
                assert place_of(name) == place, name


@given(ROLES)
def test_a_known_separator_is_the_only_one(role: str) -> None:
    assert {name[2] for name in spelled(ModulePlace("fc", role), "/")} == {"/"}


def test_words_of_symbols_follow_an_underscore() -> None:
    assert place_of("fc1_weight") == ModulePlace("fc1", "weight")
    assert place_of("bn_moving_var") == ModulePlace("bn", "variance")
    assert place_of("h.0.qkv") is None and place_of("") is None


@given(
    st.sampled_from(["fc", "h.0.attn.in_proj", ""]), st.sampled_from(WORDS["weight"]), st.sampled_from(WORDS["bias"])
)
def test_a_bias_is_beside_a_weight_by_any_word(at: str, word: str, bias: str) -> None:
    names = {f"{at}/{bias}" if at else bias, "other.bias", f"{at}.{word}"}
    found = biases_of(f"{at}.{word}" if at else word, names)
    assert found == [f"{at}/{bias}" if at else bias]
    assert biases_of("fc.bias", names) == biases_of("fc.qkv", names) == []
