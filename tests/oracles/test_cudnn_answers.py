"""The table of the layout `cudnn` beside what cuDNN itself answered, without a GPU, as it came."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramtool import layouts
from paramtool.layouts.layout import Layout
from paramtool.layouts.spec import Spec, parse
from proof.cudnn.answers import Answer, from_json
from proof.cudnn.compare import differences
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, Case
from proof.cudnn.table import answer

FOLDER = Path(__file__).parents[2] / "fixtures/cudnn"
DATA: dict[str, dict[str, Any]] = {
    version: json.loads((FOLDER / f"answers-{version}.json").read_text(encoding="utf-8"))
    for version in ("8.9.7", "9.28.0")
}


def case(item: dict[str, Any]) -> Case:
    facts: dict[str, Any] = parse(item["spec"])
    return Case(Spec(**facts), item["bias_mode"], item["dtype"], item["algorithm"])


def found(layout: Layout, version: str = "9.28.0") -> int:
    """How many differences there are between a table and all answers of a version."""
    count = 0
    for item in DATA[version]["answers"]:
        if isinstance(there := from_json(item), Answer):
            count += len(list(differences(case(item), answer(layout, case(item)), there)))
    return count


@pytest.mark.parametrize("version", DATA)
def test_the_fixtures_have_every_kind_and_mode(version: str) -> None:
    """Five kinds of networks, one and two layers, both directions, four bias modes: these all have an answer."""
    answers = [
        item for item in DATA[version]["answers"] if (item["dtype"], item["algorithm"]) == ("float32", "standard")
    ]
    assert len(answers) == 5 * 2 * 2 * len(BIAS_MODES) and DATA[version]["gpu"] is None
    assert all("unsupported" not in item for item in answers)
    assert {item["bias_mode"] for item in answers} == set(BIAS_MODES)
    assert any("projection" in item["spec"] for item in answers)


def test_what_a_version_does_not_have() -> None:
    """bfloat16 came after 8.9.7; persistent algorithms have no projection."""
    lacking = {
        version: {(item["dtype"], item["algorithm"], "projection" in item["spec"])
                  for item in data["answers"] if "unsupported" in item}
        for version, data in DATA.items()
    }  # fmt: skip
    persistent = {algorithm for algorithm in ALGORITHMS if algorithm != "standard"}
    of_both = {(dtype, algorithm, True) for dtype in ("float32", "bfloat16") for algorithm in persistent}
    assert lacking["9.28.0"] == of_both
    assert lacking["8.9.7"] == of_both | {("bfloat16", a, p) for a in ALGORITHMS for p in (True, False)}


@pytest.mark.parametrize("version", DATA)
def test_the_table_is_what_cudnn_says(version: str) -> None:
    """Every byte, type, dimension and stride, and no room that the table does not know of."""
    assert found(layouts.find("cudnn"), version) == 0


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
