"""The reader that docs/alias-record.md prints is run as it stands there, and the schema holds for real records."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from safetensors import safe_open

from paramtool import dedup, load_file

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def source() -> dict[str, torch.Tensor]:
    """Ties, a transpose, a slice, overlap without cover, and equal twins of 4096 bytes and more."""
    a, c, line = torch.randn(64, 32), torch.randn(64, 32), torch.arange(300.0)
    c.copy_(a)
    return {"a": a, "b": a, "at": a.t(), "rows": a[3:9], "c": c, "d": c, "x": line[:200], "y": line[100:]}


def written_reader() -> dict:
    text = (DOCS / "alias-record.md").read_text()
    code = re.search(r"## A reader in a few lines\n\n```python\n(.*?)```", text, re.S)
    assert code
    scope: dict = {}
    exec(code[1], scope)
    return scope


def test_the_printed_reader_reads_what_we_write(source, tmp_path):
    """Ten lines without paramtool give every name its values, and share just what the source shares."""
    torch.save(source, tmp_path / "m.pt")
    out = dedup(tmp_path / "m.pt").output
    found = written_reader()["load"](out)
    assert found.keys() == source.keys()
    for name, tensor in source.items():
        assert np.array_equal(found[name], tensor.numpy()), name
    ours = load_file(out)
    for left in source:
        for right in source:
            shared = np.shares_memory(ours[left], ours[right])
            assert np.shares_memory(found[left], found[right]) == shared, (left, right)


def test_the_printed_reader_calculates_what_is_derived(source, tmp_path):
    """Casts, constants and transposes by content: the same bytes, and the record is of version 2."""
    source |= {"low": source["a"].bfloat16(), "mask": torch.full((64, 64), -torch.inf), "turned": source["x"][:200]}
    source |= {"half": torch.randn(64, 32).half(), "c_t": source["c"].t().contiguous()}
    source["single"] = source["half"].float()
    torch.save(source, tmp_path / "m.pt")
    report = dedup(tmp_path / "m.pt", derive_casts=True, fold_constants=True)
    assert {one.name for one in report.plan.computed} == {"low", "mask", "single"}
    found = written_reader()["load"](report.output)
    for name, tensor in source.items():
        assert found[name].tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes(), name
    with safe_open(report.output, "numpy") as file:
        record = json.loads(file.metadata()["paramtool.aliases"])
    jsonschema.validate(record, json.loads((DOCS / "schema" / "alias-record-2.json").read_text()))
    assert record["version"] == 2


@pytest.mark.parametrize("shards", [None, 9000])
def test_records_match_their_schema(source, tmp_path, shards):
    """Every record, of a file, of each shard and of the index, holds to the published schema."""
    torch.save(source, tmp_path / "m.pt")
    found = dedup(tmp_path / "m.pt", max_shard_nbytes=shards)
    schema = json.loads((DOCS / "schema" / "alias-record-1.json").read_text())
    records = []
    for path in found.files:
        if path.endswith(".safetensors"):
            with safe_open(path, "numpy") as file:
                records.append((file.metadata() or {}).get("paramtool.aliases"))
        else:
            records.append(json.loads(Path(path).read_text())["metadata"]["paramtool.aliases"])
    records = [json.loads(text) for text in records if text]
    assert records
    for record in records:
        jsonschema.validate(record, schema)


def test_a_cast_says_what_is_done(tmp_path):
    """Numbers that are equal in three types: the narrow one that is had from a wider one is rounded, by the record."""
    narrow = torch.randn(64, 64).bfloat16()
    source = {"d": narrow.double(), "w": narrow.float(), "b": narrow}
    torch.save(source, tmp_path / "m.pt")
    output = dedup(tmp_path / "m.pt", derive_casts=True).output
    with safe_open(output, "numpy") as file:
        derived = json.loads(file.metadata()["paramtool.aliases"])["derived"]
    casts = {name: (item["cast"]["owner"], item["cast"]["lossless"]) for name, item in derived.items()}
    assert casts == {"d": ("w", True), "b": ("w", False)}
    found = load_file(output)
    for name, tensor in source.items():
        assert found[name].tobytes() == tensor.view(torch.uint8).numpy().tobytes(), name
