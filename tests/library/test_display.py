"""What values show of themselves: ten lines at most, in a terminal and in a notebook, whatever a file holds."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.display import MAX_CELL, Displayed
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Ranges, SourceFile
from paramtool.model.view import contiguous
from tests.examples import IS_WHOLE

HOSTILE = "<script>alert(1)</script>\n\x1b[31m" + "x" * 300
"""A name with a tag, a line break, a colour and no end."""


class Cells(HTMLParser):
    """The tags and the texts of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def state(count: int = 3) -> dict[str, torch.Tensor]:
    lstm = nn.LSTM(4, 3)
    tied = torch.randn(1999)
    names = {f"lstm.{name}": value for name, value in lstm.state_dict().items()}
    return {HOSTILE: tied, f"{HOSTILE}2": tied, **names, **{f"w{k}": torch.ones(1499) for k in range(count)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("shown")
    torch.save(state(), at / "a.pt")
    torch.save(state(30), at / "b.pt")
    (at / "set").mkdir()
    paramtool.torch.save_file({"w": torch.ones(3)}, at / "set" / "model.safetensors")
    return at


VALUES: dict[str, Callable[[Path], Displayed]] = {
    "Checkpoint": lambda at: paramtool.read(at / "b.pt"),
    "AliasGraph": lambda at: paramtool.alias_graph(paramtool.read(at / "b.pt")),
    "Plan": lambda at: paramtool.dedup(at / "b.pt", dry_run=True).plan,
    "Inspection": lambda at: paramtool.inspect(at / "b.pt", equal=True, fail_on=["missing:q", "unused-bytes>0"]),
    "Checked": lambda at: paramtool.check([at / "a.pt", at / "b.pt"]),
    "Deduped": lambda at: paramtool.dedup(at / "b.pt", dry_run=True),
    "Exported": lambda at: paramtool.export(at / "b.pt", at / "o.safetensors", all_names=True, dry_run=True),
    "Relayouted": lambda at: paramtool.fuse(at / "a.pt", layout="cudnn", dry_run=True),
    "Family": lambda at: paramtool.dedup_family([at / "a.pt", at / "b.pt"], at / "f", dry_run=True),
    "Each": lambda at: paramtool.dedup_each(at / "set", at / "small", dry_run=True),
    "Verified": lambda at: paramtool.verify(at / "a.pt", at / "b.pt"),
    "Locked": lambda at: paramtool.lock([at / "a.pt", at / "b.pt"], "-"),
    "PageReport": lambda at: paramtool.report(at / "b.pt", output=at / "page.html", force=True),
    "Diffed": lambda at: paramtool.diff(at / "a.pt", at / "b.pt"),
    "BaseFound": lambda at: paramtool.find_base(at / "a.pt", [at / "b.pt"]),
    "Variant": lambda at: paramtool.variants(at / "a.pt", [at / "b.pt"])[0],
    "Guessed": lambda at: paramtool.guess(at / "a.pt"),
    "Loaded": lambda at: paramtool.torch.load_model(nn.LSTM(4, 3), at / "a.pt", strict=False, prefix="lstm"),
    "Saved": lambda at: paramtool.torch.save_file(state(), at / "s.safetensors", force=True),
}


PICTURED = {"Inspection", "Diffed"}
PICTURE = {"svg", "title", "g", "rect", "text"}
"""The elements of a picture: nothing that has a style, an id or a script, since it stands in somebody else's page."""


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", VALUES)
def test_ten_lines_at_most_of_plain_text(kind: str, folder: Path) -> None:
    text = repr(VALUES[kind](folder))
    lines = text.split("\n")
    assert lines[0] == f"<{kind}>" and 2 <= len(lines) <= 10
    assert all(line.isprintable() and len(line) <= MAX_CELL + 20 for line in lines), text


@pytest.mark.sample(13)
@pytest.mark.parametrize("kind", VALUES)
def test_a_table_without_strangers_tags(kind: str, folder: Path) -> None:
    shown = VALUES[kind](folder)
    html = shown._repr_html_()
    found = Cells(html)
    assert found.tags - PICTURE == {"table", "caption", "tr", "th", "td"} and kind in found.texts
    assert ("svg" in found.tags) == (kind in PICTURED) and html.count("<svg") <= 1
    assert all(text.isprintable() for text in found.texts)
    rows = [line.split(maxsplit=1)[0] for line in repr(shown).split("\n")[1:] if line.startswith("  ")]
    assert rows[0] in found.texts, "the same rows as the text"


def test_every_report_shows_itself() -> None:
    """A report that is added later has to be in the table above, or shows the repr of a dataclass."""
    public = [getattr(module, name) for module in (paramtool, paramtool.torch) for name in module.__all__]
    shown = {kind.__name__ for kind in public if inspect.isclass(kind) and issubclass(kind, Displayed)}
    assert shown == VALUES.keys()
    for kind in (kind for kind in public if inspect.isclass(kind) and issubclass(kind, Displayed)):
        assert "__repr__" not in vars(kind), f"{kind.__name__}: @dataclass(repr=False)"
    reports = {"Deduped", "Exported", "Relayouted", "Family", "Verified", "Variant", "Guessed", "Inspection"}
    assert reports <= shown


def test_the_text_of_very_many_names_is_as_short() -> None:
    count = 100_000 if IS_WHOLE else 10_000
    entries = {f"layer.{k}.weight": Entry(contiguous(k // 2, DTYPES["float32"], (1,))) for k in range(count)}
    storages = Ranges("m", range(0, 2 * count, 4), range(4, 2 * count + 4, 4))
    checkpoint = Checkpoint("torch zip", (SourceFile("m.pt", 10, 0),), storages, entries)
    graph = paramtool.alias_graph(checkpoint)
    for text in (repr(checkpoint), repr(graph)):
        assert text.count("\n") < 10 and len(text) < 1500
        assert re.search(rf"(names|entries) +{count:,}\n", text)
    assert f"and {count // 2 - 4} more" in repr(graph)
    assert len(checkpoint._repr_html_()) < 20_000


def test_what_it_shows_is_what_it_is(folder: Path) -> None:
    text = repr(paramtool.dedup(folder / "b.pt", dry_run=True))
    said = dict(line.split(maxsplit=1) for line in text.splitlines()[1:])
    assert said["written"] == "False" and said["plan.names"] == "36" and said["output"].endswith("b.dedup.safetensors")
    text = repr(paramtool.inspect(folder / "a.pt", fail_on=["missing:q"]))
    assert "missing:q: 'q' is not in the file" in text
    assert dataclasses.is_dataclass(paramtool.read(folder / "a.pt"))


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_the_truth_of_a_report_is_refused(folder: Path, kind: str) -> None:
    """A report is always there: `if paramtool.diff(a, b):` would pass whatever it found."""
    value = VALUES[kind](folder)
    if kind in ("AliasGraph", "Checkpoint", "Plan"):
        assert value
        return
    with pytest.raises(TypeError, match=f"^{kind} is neither true nor false; ask "):
        bool(value)
