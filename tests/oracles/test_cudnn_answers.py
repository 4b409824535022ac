"""The table of the layout `cudnn` beside what cuDNN 9.28.0 itself answered, without a GPU, as it came."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramtool import layouts
from paramtool.cudnn.answers import Answer, from_json
from paramtool.cudnn.grid import BIAS_MODES, Case
from paramtool.cudnn.table import answer, differences
from paramtool.layouts.layout import Layout
from paramtool.layouts.spec import Spec, parse

PATH = Path(__file__).parents[2] / "fixtures/cudnn/answers-9.28.0.json"
DATA: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def case(item: dict[str, Any]) -> Case:
    facts: dict[str, Any] = parse(item["spec"])
    return Case(Spec(**facts), item["bias_mode"], item["dtype"], DATA["algorithm"])


def found(layout: Layout) -> int:
    """How many differences there are between a table and all answers."""
    count = 0
    for item in DATA["answers"]:
        there = from_json(item)
        assert isinstance(there, Answer)
        count += len(list(differences(case(item), answer(layout, case(item)), there)))
    return count


def test_the_fixture_has_every_kind_and_mode() -> None:
    """Five kinds of networks, one and two layers, both directions, four bias modes."""
    assert len(DATA["answers"]) == 5 * 2 * 2 * len(BIAS_MODES) and DATA["gpu"] is None
    assert {item["bias_mode"] for item in DATA["answers"]} == set(BIAS_MODES)
    assert any("projection" in item["spec"] for item in DATA["answers"])


def test_the_table_is_what_cudnn_says() -> None:
    """Every byte, dimension and stride, and no room that the table does not know of."""
    assert found(layouts.find("cudnn")) == 0


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        ("W[(gate hidden in)]", "W[(hidden gate in)]"),
        ("W[(gate hidden in)] R[(gate hidden rec)]", "R[(gate hidden rec)] W[(gate hidden in)]"),
        ("R[(gate hidden rec)] P[(proj hidden)]", "P[(proj hidden)] R[(gate hidden rec)]"),
        ("P[(proj hidden)]", "P[(hidden proj)]"),
        ("bW!tail[(gate hidden)] bR!tail[(gate hidden)]", "bR!tail[(gate hidden)] bW!tail[(gate hidden)]"),
    ],
)
def test_another_table_is_not(part: str, instead: str) -> None:
    """Cells inside each other, sides exchanged, a projection in front of R or turned, biases the other way round."""
    layout = layouts.find("cudnn")
    forms = []
    for form in layout.forms:
        rows = [replace(row, content=row.content.replace(part, instead)) for row in form.tensors]
        forms.append(replace(form, tensors=tuple(rows)))
    assert tuple(forms) != layout.forms
    assert found(replace(layout, forms=tuple(forms))) > 0


def test_another_order_of_gates_is_not() -> None:
    """Order alone moves no shape; cuDNN's linLayerIDs show it."""
    layout = layouts.find("cudnn")
    for kind, gates in (("lstm", "ifog"), ("gru", "zrn")):
        forms = [replace(form, gates=gates) if form.kind == kind else form for form in layout.forms]
        assert found(replace(layout, forms=tuple(forms))) > 0
