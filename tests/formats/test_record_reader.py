"""The reader that docs/alias-record.md prints is run as it stands there, and the schema holds for real records."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from paramtool import dedup, load_file, read
from paramtool.errors import FormatError, PlanError
from paramtool.formats.record import codec

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def source() -> dict[str, torch.Tensor]:
    """Ties, a transpose, a slice, overlap without cover, and equal twins of 4096 bytes and more."""
    a, c, line = torch.randn(64, 32), torch.randn(64, 32), torch.arange(300.0)
    c.copy_(a)
    return {"a": a, "b": a, "at": a.t(), "rows": a[3:9], "c": c, "d": c, "x": line[:200], "y": line[100:]}


def written_reader() -> dict:
    text = (DOCS / "alias-record.md").read_text()
    code = re.search(r"## A reader in a few lines\n\n<!-- .*? -->\n```python\n(.*?)```", text, re.S)
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
    assert report.plan.derived.keys() == {"low", "mask", "single"}
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
    found = dedup(tmp_path / "m.pt", max_shard_size=shards)
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
        codec = json.loads(file.metadata()["paramtool.aliases"])["derived"]
    casts = {name: (item["cast"]["owner"], item["cast"]["lossless"]) for name, item in codec.items()}
    assert casts == {"d": ("w", True), "b": ("w", False)}
    found = load_file(output)
    for name, tensor in source.items():
        assert found[name].tobytes() == tensor.view(torch.uint8).numpy().tobytes(), name


def with_record(path, change):
    """Change the alias record of a safetensors file."""
    with safe_open(path, "numpy") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    document = json.loads(metadata["paramtool.aliases"])
    change(document)
    save_file(tensors, path, {**metadata, "paramtool.aliases": json.dumps(document)})


def test_objects_of_shards_have_the_tensors_of_all(tmp_path):
    """A shard alone says so; objects with a tensor that no shard has are refused, with the file and the name."""
    torch.save({"m": {"w": torch.ones(50), "v": torch.zeros(50), "n": 1}}, tmp_path / "m.pt")
    dedup(tmp_path / "m.pt", tmp_path / "shards", max_shard_size=300)
    first, *others = sorted(tmp_path.glob("shards/*.safetensors"))
    assert others
    [note] = read(first).notes
    assert "'m.v'" in note and "one shard of several" in note
    assert read(tmp_path / "shards").notes == ()
    with_record(first, lambda record: record["objects"]["items"].append(["x", {"tensor": "nope"}]))
    with pytest.raises(FormatError, match=rf"{first.name}: the objects .* 'nope', which no shard has"):
        read(tmp_path / "shards")


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_objects_nest_as_deep_as_the_reader_of_pickles_goes(tmp_path, kind):
    """As deep as .pt is read, through safetensors and back; one level more is refused before anything is written."""

    def saved(depth):
        state = torch.ones(2)
        for _ in range(depth):
            state = {"k": state} if kind == "dict" else [state]
        torch.save({"top": state}, tmp_path / "m.pt")
        return tmp_path / "m.pt"

    dedup(saved(199), tmp_path / "m.safetensors")
    dedup(tmp_path / "m.safetensors", tmp_path / "again.pt")
    dedup(tmp_path / "again.pt", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    before = sorted(tmp_path.iterdir())
    deeper = lambda tree: {"seq": "list", "items": [tree]}  # noqa: E731
    with_record(tmp_path / "m.safetensors", lambda record: record.update(objects=deeper(record["objects"])))
    with pytest.raises(FormatError, match=r"m\.safetensors: .*objects: nested deeper than 200 levels"):
        dedup(tmp_path / "m.safetensors", tmp_path / "more.pt")
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_written_that_a_reader_takes_for_a_bomb(tmp_path, monkeypatch):
    """More constants than the limit for what is stored: refused with what to do, and not left unreadable."""
    monkeypatch.setattr(codec, "MIN_DERIVED_NBYTES", 1000)
    torch.save({"w": torch.randn(1000), "zeros": torch.zeros(16 * 1000)}, tmp_path / "most.pt")
    assert load_file(dedup(tmp_path / "most.pt", fold_constants=True).output)["zeros"].sum() == 0
    torch.save({"w": torch.randn(1000), "zeros": torch.zeros(16 * 1000 + 1)}, tmp_path / "more.pt")
    with pytest.raises(PlanError, match=r"more\.pt: 64004 bytes would be derived .* at most 64000"):
        dedup(tmp_path / "more.pt", tmp_path / "more.safetensors", fold_constants=True)
    assert not (tmp_path / "more.safetensors").exists()
