"""The zoo's own judgement: it passes what is right, sees what is wrong, and goes on where it stopped; and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paramtool.torch import _protocol
from tests.oracles import zoo, zoo_models

PAGE = Path(__file__).parents[2] / "docs/proofs-models.md"


def test_a_model_that_is_right() -> None:
    """Every leg is asked of GPT-2, and ends well."""
    found = zoo.judged("transformers", "gpt2")
    assert found["built"] == "GPT2LMHeadModel" and found["tied"]
    assert found["verdicts"] == dict.fromkeys(zoo.LEGS, "ok") | {"flipped": "ok: untied"}


def test_a_name_that_goes_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the names of save_pretrained, a Gemma 3 folder is refused, and the zoo says so."""
    monkeypatch.setattr(_protocol, "renamed", lambda model, part, own: None)
    found = zoo.judged("transformers", "gemma3")
    assert zoo.is_wrong(found) and found["verdicts"]["`load_model`"].startswith("WRONG: ModelError")
    assert found["verdicts"]["file"] == "ok"


@pytest.mark.parametrize("change", ["value", "type", "name", "tie", "untie"])
def test_any_difference_is_wrong(change: str) -> None:
    """One element, one type, one name, one tie."""
    one = torch.arange(4.0)
    expected = {"a": one, "b": one, "c": one.clone()}
    other = one.clone()
    found = {"a": other, "b": other, "c": one.clone()}
    zoo.same(expected, found, "equal")
    if change == "value":
        found["c"][2] = 9
    elif change == "type":
        found["c"] = found["c"].double()
    elif change == "name":
        found["d"] = found.pop("c")
    else:
        found["c" if change == "tie" else "b"] = other if change == "tie" else other.clone()
    with pytest.raises(zoo.Wrong):
        zoo.same(expected, found, change)


def test_what_was_judged_is_kept_for_the_same_versions(tmp_path: Path) -> None:
    """A line that was cut short is asked again; another version begins anew."""
    state, head = tmp_path / "zoo.jsonl", {"versions": "a 1", "program": "x"}
    assert zoo.earlier(state, head, False) == {}
    line = {"kind": "timm", "name": "one", "built": "One", "verdicts": {}}
    with open(state, "a") as file:
        file.write(json.dumps(line) + '\n{"kind": "timm", "na')
    assert list(zoo.earlier(state, head, False)) == [("timm", "one")]
    assert list(zoo.earlier(state, {**head, "program": "y"}, True)) == [("timm", "one")]
    assert zoo.earlier(state, {**head, "versions": "a 2"}, True) == {}
    assert zoo.earlier(state, head, False) == {}


def test_what_cannot_be_built_is_listed_with_its_reason() -> None:
    lines = [{"kind": "transformers", "name": "x|y", "built": "", "why": "ValueError: no"}]
    assert "| x\\|y | ValueError: no |" in zoo.page(lines, "a 1", 3)


def test_the_page_has_the_whole_zoo() -> None:
    """More than 520 architectures and 40 models of timm, and nothing wrong."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(zoo.BEGIN)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    built = {row[0]: int(row[1].split()[0]) for row in rows[2:4]}
    assert [row[0] for row in rows[2:4]] == ["transformers", "timm"] and [row[-1] for row in rows[2:4]] == ["0", "0"]
    assert built["transformers"] >= 520 and built["timm"] >= 40
    assert "WRONG" not in text and "not reached" not in text


def test_values_are_random() -> None:
    """No two parameters of a model are equal by their beginnings: equal ones would hide a name that went wrong."""
    state = dict(zoo_models.small("gpt2").named_parameters())
    assert len({tuple(tensor.flatten()[:2].tolist()) for tensor in state.values()}) == len(state)
