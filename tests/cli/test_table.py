"""Rows as lines of a terminal: nothing is lost, nothing is broken, nothing is too wide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.cli._table import DOTS, TableCell, brief, elidable, elided, elided_apart, laid_out, whole, width, wrapped

NAMES = st.text(st.sampled_from("abcdefgh.0_重み\u0301/"), min_size=1, max_size=60).filter(str.strip)
WORDS = st.lists(st.text(st.sampled_from("abcdefgh重"), min_size=1, max_size=9), min_size=1, max_size=12).map(" ".join)
CELLS = st.one_of(NAMES.map(elidable), WORDS.map(TableCell))
ROWS = st.lists(
    st.tuples(st.sampled_from(["", "shared", "tensor", "file"]), CELLS, CELLS, CELLS), min_size=1, max_size=6
)
SENTENCES = frozenset(("file",))


@given(NAMES, st.integers(5, 80))
def test_an_elided_name_is_its_two_ends(name: str, most: int) -> None:
    """Whole where it fits; else its beginning and its end around one sign, and never wider than asked."""
    short = elided(name, most)
    if width(name) <= most:
        assert short == name
    else:
        head, dots, tail = short.partition(DOTS)
        assert dots and name.startswith(head) and name.endswith(tail) and width(short) <= most


def test_names_that_people_have() -> None:
    """The cut is at a dot where one is near, and the end says more than the beginning."""
    assert elided("transformer.layers.wte.weight", 22) == "transformer…wte.weight"
    assert elided("model.language_model.layers.12.self_attn.q_proj.weight", 34).endswith("12.self_attn.q_proj.weight")


def test_names_that_differ_in_the_middle_stay_apart() -> None:
    """The number of a layer is there, whatever is left out around it."""
    names = [f"model.decoder.layers.{k}.self_attention.query_key_value.weight" for k in range(12)]
    short = elided_apart(names, 36)
    assert len(set(short.values())) == 12 and all(width(one) <= 36 for one in short.values())
    assert all(f"…{k}…" in short[name] for k, name in enumerate(names))


@given(st.lists(NAMES, unique=True), st.integers(8, 40))
def test_eliding_several_names(names: list[str], most: int) -> None:
    """None is too wide; those that fit are whole."""
    short = elided_apart(names, most)
    assert all(width(one) <= most and (one == name or width(name) > most) for name, one in short.items())


@given(WORDS, st.integers(9, 60))
def test_words_are_not_broken(text: str, most: int) -> None:
    """Lines together are the text, and none is too wide."""
    lines = wrapped(text, most)
    assert all(width(line) <= most for line in lines)
    assert [word for line in lines for word in line.split() if DOTS not in word] == [
        word for word in text.split() if width(word) <= most
    ]


@given(ROWS, st.integers(60, 160))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], columns: int) -> None:
    """Whatever the cells are; every word or name is there, whole or elided."""
    lines = list(laid_out(rows, columns, SENTENCES))
    assert all(width(line.head + line.text) <= columns for line in lines)
    text = " ".join(line.text for line in lines)
    assert all(cell in text or DOTS in text for row in rows for cell in row[1:] if getattr(cell, "kind", "") == "name")
    for row in rows:
        for cell in row[1:]:
            if getattr(cell, "kind", "") == "text":
                assert all(word in text for word in cell.split() if width(word) <= 9)


@given(ROWS)
def test_wide_changes_nothing(rows: list[tuple[str, ...]]) -> None:
    """Without a width every cell is there as it is, one line a row."""
    lines = list(laid_out(rows, None, SENTENCES))
    assert len(lines) == len(rows)
    assert all(str(cell) in line.text for row, line in zip(rows, lines, strict=True) for cell in row[1:])


def test_what_people_copy_is_whole() -> None:
    """However long, on one line; what follows it stands below."""
    command = "paramtool dedup " + "x" * 100
    lines = [line.text for line in laid_out([("next", whole(command), "would write 3 MB")], 60, frozenset(("next",)))]
    assert lines == [command, "  would write 3 MB"]


def test_columns_are_those_of_wide_characters() -> None:
    """The columns behind a name of Chinese characters and one of Latin letters stand under each other."""
    rows = [("tensor", elidable("重み.weight"), "a"), ("tensor", elidable("emb.weight"), "b")]
    lines = [line.text for line in laid_out(rows, 80, SENTENCES)]
    assert width(lines[0].partition(" ")[0]) + 3 == width(lines[0]) - 1 and lines[1].endswith("   b")
    assert width(lines[0]) == width(lines[1])


def test_short_and_long_forms() -> None:
    """A terminal has the short form, --wide the long one."""
    rows = [("layout", "cudnn", brief("asked cuDNN", "asked: cuDNN 9.1, without a GPU"))]
    assert [line.text for line in laid_out(rows, 80, SENTENCES)] == ["cudnn   asked cuDNN"]
    assert [line.text for line in laid_out(rows, None, SENTENCES)] == ["cudnn   asked: cuDNN 9.1, without a GPU"]
