"""`convert --dtype` as people and programs use it: rows, documents, hints and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn

from tests.cli.test_documents import closed, schema
from tests.hostile.command import quick
from tests.recurrent import save

HALF = ("--dtype", "float16", "--keep-float32", "batchnorm")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)).state_dict()
    return save(tmp_path, {**state, "tiny": torch.tensor([1e-30, 3e-6, float("nan"), 1.0])})


def test_the_rows(model: Path, tmp_path: Path) -> None:
    ran = quick("convert", "m.pt", "-o", "o.safetensors", *HALF, cwd=tmp_path)
    rows = ran.out.splitlines()
    assert ran.code == 0 and not ran.err
    assert rows[1].startswith(
        "cast  float32 -> float16  3 tensors  11 of 13 numbers rounded, 1 to zero, 1 subnormal, 1 NaN"
    )
    assert rows[2] == (
        "float32  4 tensors  1.weight, 1.bias, 1.running_mean, 1.running_var  "
        "batchnorm: its module has running_mean and running_var"
    )
    line = next(row for row in rows if row.startswith("next")).removeprefix("next  paramtool ")
    verified = quick(*line.split(), cwd=tmp_path)
    assert verified.code == 0 and verified.out.splitlines()[:2] == [
        "verified  5 names of o.safetensors  equal to m.pt",
        "verified  3 names of o.safetensors  rounded to another type, as the record says",
    ]
    seen = quick("inspect", "o.safetensors", cwd=tmp_path).out
    assert "cast  3 tensors  from float32  as its record says; verify compares the numbers" in seen


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_the_document(more: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    ran = quick("convert", "m.pt", "-o", "o.safetensors", *HALF, *more, "--json", cwd=tmp_path)
    document = json.loads(ran.out)
    Draft202012Validator(closed(schema("relayout"))).validate(document)
    cast = {one.pop("name"): one for one in document["types"]["cast"]}
    assert cast["tiny"] == {
        "from": "float32", "to": "float16", "elements": 4, "rounded": 2, "overflow": 0, "to_zero": 1, "subnormal": 1,
        "nan": 1,
    }  # fmt: skip
    assert document["types"]["float32"][0]["name"] == "1.weight"
    assert "num_batches_tracked" in document["types"]["unchanged"][0]
    if not more:
        verified = json.loads(quick("verify", "o.safetensors", "--against", "m.pt", "--json", cwd=tmp_path).out)
        Draft202012Validator(closed(schema("verify"))).validate(verified)
        assert verified["rounded"] == 3 and not verified["differences"]


def test_overflow_has_an_exit_code_and_a_way_out(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.full((3,), 1e6), "b": torch.ones(2)})
    ran = quick("convert", "m.pt", "-o", "o.pt", "--dtype", "float16", cwd=tmp_path)
    assert ran.code == 6 and "'a': 3 of 3 numbers would not be finite in float16" in ran.err
    assert "--dtype a=float32" in ran.err and not (tmp_path / "o.pt").exists()
    ran = quick("convert", "m.pt", "-o", "o.pt", "--dtype", "float16", "--allow-overflow", cwd=tmp_path)
    assert ran.code == 0 and "overflow  a  3 of 3 no longer finite" in ran.out
    ran = quick("convert", "m.pt", "-o", "p.pt", "--dtype", "float16", "--dtype", "a=float32", cwd=tmp_path)
    assert ran.code == 0 and torch.load(tmp_path / "p.pt")["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dtype", "torch.float16"), "did you mean float16?"),
        (("--dtype", "x.*=float16"), "matches none of 8 tensors"),
        (("--keep-float32", "batchnrom"), "did you mean batchnorm?"),
        ((*HALF, "--dtype", "1.weight=float16"), "keeps that in float32"),
    ],
    ids=range(4),
)
def test_what_cannot_be_meant_is_a_usage_error(
    flags: tuple[str, ...], message: str, model: Path, tmp_path: Path
) -> None:
    ran = quick("convert", "m.pt", "-o", "o.pt", *flags, cwd=tmp_path)
    assert ran.code == 2 and message in ran.err and not (tmp_path / "o.pt").exists()
