"""Rules of `inspect` in Python: what they find, as objects; and the same as the command line finds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.commands.rules import KINDS
from paramtool.errors import UsageError

RULES = {
    "untied:a=b": [("a", "b")],
    "untied:a=ghost": [("a", "ghost")],
    "untied:a=tied": [],
    "missing:ghost": [("ghost",)],
    "missing:a": [],
    "wrong-dtype:*=float16": [("a",), ("b",), ("tied",)],
    "wrong-dtype:c=float32": [],
    "wrong-dtype:q*=float32": [()],
    "unused-bytes>100": [()],
    "duplicate-bytes>0": [()],
    "duplicate-bytes>1MB": [],
    "size>1": [()],
    "parameters=..1000000": [],
    "nan": [],
    "unsafe": [],
    "unknown-class": [],
}
"""{rule: the names of each of its findings}."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    a = torch.arange(2000.0)
    half = torch.arange(7).half()
    torch.save({"a": a, "tied": a, "b": a.clone(), "c": torch.empty(400)[:2].zero_(), "half": half}, tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.mark.parametrize("rule", RULES)
def test_findings_are_objects(rule: str, path: Path) -> None:
    expected = RULES[rule]
    if rule == "wrong-dtype:*=float16":
        expected = [("a",), ("tied",), ("b",), ("c",)]
    found = paramtool.inspect(path, fail_on=[rule])
    assert found.findings is not None
    assert [one.names for one in found.findings] == expected
    for one in found.findings:
        assert isinstance(one, paramtool.Finding) and one.rule == rule and one.message
        assert not one.names or any(name in one.message for name in one.names)


def test_all_findings_are_those_of_the_command_line(path: Path) -> None:
    flags = [word for rule in RULES for word in ("--fail-on", rule)]
    where = os.environ | {"PYTHONPATH": str(Path(paramtool.__file__).parents[1])}
    command = [sys.executable, "-m", "paramtool", "inspect", str(path), "--json", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, env=where)
    assert ran.returncode == 1
    found = paramtool.inspect(path, fail_on=[*RULES]).findings
    assert found is not None
    assert json.loads(ran.stdout)["findings"] == [{"rule": one.rule, "finding": one.message} for one in found]


def test_no_rule_no_findings(path: Path) -> None:
    assert paramtool.inspect(path).findings == ()
    assert paramtool.inspect(path, fail_on=["unsafe"]).findings == ()


def test_a_config_is_looked_for_where_a_rule_needs_it(path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        paramtool.inspect(path, fail_on=["config-ties"])
    (path.parent / "config.json").write_text('{"tie_word_embeddings": true, "model_type": "x"}')
    assert paramtool.inspect(path, fail_on=["config-ties"]).findings == ()


def test_what_a_rule_assumes_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true, "model_type": "gpt2", "architectures": []}')
    torch.save({"transformer.wte.weight": torch.ones(4, 4)}, tmp_path / "pytorch_model.bin")
    rule = "untied:lm_head.weight=transformer.wte.weight"
    found = paramtool.inspect(tmp_path, fail_on=[rule])
    assert found.findings == () and len(found.assumed) == 1 and "lm_head.weight" in found.assumed[0]


@pytest.mark.parametrize("rules", [["nonsense"], ["untied:a"], "unsafe"])
def test_what_is_no_rule_is_refused_before_anything_is_read(rules: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rule|A=B|expected a list"):
        paramtool.inspect(tmp_path / "ghost.pt", fail_on=rules)


def test_every_kind_is_asked_here() -> None:
    older = {"not-tied", "dtype"}
    asked = {re.split("[:>=]", rule)[0] for rule in RULES} | {"config-ties"} | older
    assert asked == {kind.id for kind in KINDS}
