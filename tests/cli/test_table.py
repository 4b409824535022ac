"""Rows as lines of a terminal: nothing is lost, and nothing is broken but between words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.cli._render import COPIED, GAP, laid_out, width, wrapped

NAMES = st.text(st.sampled_from("abcdefgh.0_重み\u0301/"), min_size=1, max_size=60).filter(str.strip)
WORD = st.text(st.sampled_from("abcdefgh重:/"), min_size=1, max_size=9)
WORDS = st.lists(WORD, min_size=1, max_size=12).map(" ".join)
CELLS = st.one_of(NAMES, WORDS)
ROWS = st.lists(
    st.tuples(st.sampled_from(["", "shared", "tensor", "file"]), CELLS, CELLS, CELLS), min_size=1, max_size=6
)


@given(CELLS, st.integers(5, 80))
def test_a_text_breaks_between_words(text: str, most: int) -> None:
    """Lines together are the text, and only a single word is wider than asked."""
    lines = wrapped(text, most)
    wide = [line.strip() for line in lines if width(line) > most]
    assert all(" " not in line or ("/" in line and line[:-1] == text.strip().partition(": ")[0]) for line in wide)
    assert " ".join(lines).split() == text.split()
    assert " ".join(wrapped(f"  {text}", most)).split() == text.split()


def test_facts_keep_their_sign_and_numbers_their_unit() -> None:
    assert wrapped("torch zip · 12 tensors · 45.7 kB", 15) == ["torch zip ·", "12 tensors ·", "45.7 kB"]


@given(ROWS, st.integers(20, 160))
def test_every_word_is_there_whole(rows: list[tuple[str, ...]], columns: int) -> None:
    """Names too, at any width; a line is wider than the terminal only for a word, or to be copied."""
    lines = list(laid_out(rows, columns))
    words = " ".join(line.text for line in lines).split()
    for row in rows:
        assert all(word in words for cell in row[1:] for word in cell.split())
    for line in lines:
        if line.label not in COPIED:
            is_path = "/" in line.text  # with spaces, in front of what is said of it
            assert width(line.head + line.text) <= columns or len(line.text.split()) == 1 or is_path


@given(ROWS, st.integers(20, 160))
def test_two_names_never_run_into_one_another(rows: list[tuple[str, ...]], columns: int) -> None:
    """What is in one line has a gap between it, or is of one text."""
    texts = [" ".join(cell.split()) for row in rows for cell in row[1:]]
    for line in laid_out(rows, columns):
        parts = [part for part in line.text.split(" " * GAP) if part.strip()]
        assert all(any(part.strip() in text for text in texts) for part in parts)


@given(ROWS)
def test_wide_changes_nothing(rows: list[tuple[str, ...]]) -> None:
    """Without a width every cell is there as it is, one line a row."""
    lines = list(laid_out(rows, None))
    assert len(lines) == len(rows)
    assert all(cell in line.text for row, line in zip(rows, lines, strict=True) for cell in row[1:])


def test_a_first_text_that_is_too_long_has_its_details_below() -> None:
    found = [("fine", "npz", "1 tensor", "a.npz"), ("error", "", "", "a/path/of/this/length.pt", "is no checkpoint")]
    first, second = ([*laid_out(found, 40)][k].text for k in (-2, -1))
    assert (first, second) == ("a/path/of/this/length.pt", "      is no checkpoint")


def test_what_people_copy_is_whole() -> None:
    """However long, on one line; what follows it stands below."""
    command = "paramtool dedup " + "x " * 50 + "x"
    lines = [line.text for line in laid_out([("next", command, "would write 3 MB")], 60)]
    assert lines == [command, "  would write 3 MB"]


def test_columns_are_those_of_wide_characters() -> None:
    """The columns behind a name of Chinese characters and one of Latin letters stand under each other."""
    lines = [line.text for line in laid_out([("tensor", "重み.weight", "a"), ("tensor", "emb.weight", "b")], 80)]
    assert width(lines[0].partition(" ")[0]) + GAP == width(lines[0]) - 1 and lines[1].endswith("   b")
    assert width(lines[0]) == width(lines[1])


def test_where_columns_do_not_fit_each_row_is_a_name_and_its_facts() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    rows = [("tensor", name, "[64, 64] float32", "16.4 kB", "3c512837971e"), ("tensor", "w", "[2] int8", "2 B", "0")]
    assert [line.text for line in laid_out(rows, 60)] == [
        name, "  [64, 64] float32   16.4 kB   3c512837971e", "w", "  [2] int8   2 B   0"
    ]  # fmt: skip
