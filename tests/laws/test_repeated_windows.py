"""Windows that repeat elements: what a command made nothing of is not expanded to prove it, or to compare it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same_window
from paramtool.formats import read_file
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from tests.hostile.command import quick

LIMIT = ("--max-inflated", "1000B")


def sliding(path: Path, first: float = 0.0) -> None:
    """A million elements of 2000, some of which differ."""
    held = torch.arange(2000.0)
    held[0] = first
    torch.save({"w": torch.as_strided(held, (1000, 1000), (1, 1))}, path)


@pytest.mark.parametrize("words", [
    ("dedup", "x.pt", "-o", "out.safetensors"), ("dedup", "x.pt", "-o", "out.pt"),
    ("dedup", "x.pt", "-o", "out.safetensors", "--derive-casts"), ("convert", "x.pt", "-o", "out.pt"),
    ("dedup", "x.pt", "-o", "out.safetensors", "--fold-constants"), ("dedup", "x.pt", "y.pt", "-o", "out"),
    ("convert", "x.pt", "-o", "out.npz"), ("convert", "x.pt", "--dtype", "bfloat16", "-o", "out.pt"),
])  # fmt: skip
def test_a_limit_is_asked_before_anything_is_written(words: tuple[str, ...], tmp_path: Path) -> None:
    """0 where the output repeats as its source does, else 4; never an output that cannot be proved."""
    sliding(tmp_path / "x.pt")
    sliding(tmp_path / "y.pt", 1.0)
    expands = "out.npz" in words or "--dtype" in words
    found = quick(*words, *LIMIT, cwd=tmp_path)
    assert found.code == (4 if expands else 0), found


@pytest.mark.parametrize("words", [("diff", "x.pt", "{}", "--exit-code"), ("verify", "x.pt", "--against", "{}")])
def test_commands_that_only_read_compare_what_is_stored(words: tuple[str, ...], tmp_path: Path) -> None:
    """`diff` calculates by how much others differ, and asks for the limit then."""
    sliding(tmp_path / "x.pt")
    sliding(tmp_path / "same.pt")
    sliding(tmp_path / "other.pt", 1.0)
    for name, code in (("x.pt", 0), ("same.pt", 0), ("other.pt", 4 if words[0] == "diff" else 1)):
        found = quick(*(word.format(name) for word in words), *LIMIT, cwd=tmp_path)
        assert found.code == code, (name, found)


AXES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=3)


@given(axes=AXES, changed=st.none() | st.integers(0, 99))
def test_windows_are_the_same_as_their_elements(
    axes: list[tuple[int, int]], changed: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever their strides, and whichever byte between or in their elements differs."""
    folder = tmp_path_factory.mktemp("windows")
    a, b = torch.arange(100.0), torch.arange(100.0)
    if changed is not None:
        b[changed] = -1
    torch.save({"w": a}, folder / "a.pt")
    torch.save({"w": b}, folder / "b.pt")
    shape, strides = tuple(size for size, _ in axes), tuple(stride for _, stride in axes)
    wanted = torch.equal(torch.as_strided(a, shape, strides), torch.as_strided(b, shape, strides))
    with Source(read_file(str(folder / "a.pt"))) as one, Source(read_file(str(folder / "b.pt"))) as other:
        numbers = [int(next(iter(source.checkpoint.views().values())).storage) for source in (one, other)]
        views = [View(number, DTYPES["float32"], 0, shape, strides) for number in numbers]
        assert same_window(one, views[0], other, views[1]) == wanted
