"""`--json`: every document validates against its closed schema, and the documentation's examples do, too."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from paramtool.cli.main import COMMANDS, cli
from tests.contracts.makers import CASES, Case
from tests.hostile.command import quick
from tests.hostile.makers_torch import HOOKS, call_of, mapping, name, row, state, tensor, zipped

DOCS = Path(__file__).resolve().parents[2] / "docs"


VERSIONS = {"inspect": 4, "dedup": 2, "export": 2, "layouts": 2, "layout-record": 2, "verify": 2, "guess": 2}
"""Of documents that have changed since their first version."""


def version(command: str) -> int:
    return VERSIONS.get(command, 1)


def schema(command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "schema" / f"{command}-{version(command)}.json").read_text())
    return found


def closed(part: Any) -> Any:
    """A schema that allows nothing that it does not list: readers have to take more, but we write no more than that."""
    if isinstance(part, list):
        return [closed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    found = {key: closed(inner) for key, inner in part.items()}
    return (
        {"additionalProperties": False, **found} if found.get("type") == "object" and "properties" in found else found
    )


def validator(command: str, change: Callable[[Any], Any] = closed) -> Draft202012Validator:
    """A schema, with those that it refers to by the name of their file."""
    read = ((path.name, json.loads(path.read_text())) for path in DOCS.glob("schema/*.json"))
    others = ((name, Resource.from_contents(change(found))) for name, found in read)
    return Draft202012Validator(change(schema(command)), registry=Registry().with_resources(others))


def validate(command: str, text: str) -> Any:
    """The document, proved against its schema."""
    found = json.loads(text)
    validator(command).validate(found)
    assert found["schema"] == f"paramtool.{command}/{version(command)}"
    assert text.isascii()
    return found


def run(*args: object, cwd: Path, code: int = 0) -> Any:
    ran = quick(*args, "--json", cwd=cwd)
    assert ran.code == code, ran
    return validate(str(args[0]), ran.out)


def objects(part: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object inside a schema."""
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield part
        for inner in part.values():
            yield from objects(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from objects(inner)


SCHEMAS = [
    "inspect", "variants", "dedup", "dedup-family", "export", "diff", "find-base", "check", "lock", "report", "verify",
    "guess", "relayout", "layouts", "layout-record", "each", "inspect-files", "error",
]  # fmt: skip


def test_the_schemas_are_written_from_the_types_of_reports() -> None:
    """`python docs/make_schemas.py` would change nothing."""
    sys.path.insert(0, str(DOCS))
    try:
        from make_schemas import documents
    finally:
        sys.path.remove(str(DOCS))
    for file, text in documents().items():
        assert (DOCS / "schema" / file).read_text() == text, "run: python docs/make_schemas.py"


@pytest.mark.parametrize("command", SCHEMAS)
def test_schemas_are_schemas_and_open(command: str) -> None:
    """Draft 2020-12; each object lists its members and allows others, or is a mapping of one kind of values."""
    found = schema(command)
    Draft202012Validator.check_schema(found)
    assert found["$schema"].endswith("2020-12/schema") and found["$id"] == f"{command}-{version(command)}.json"
    assert "Members may be added" in found["$comment"]
    for part in objects(found):
        assert part.get("additionalProperties") is not False, part


@pytest.mark.parametrize("command", SCHEMAS)
def test_members_may_be_added_and_not_taken_away(command: str) -> None:
    """The examples of the documentation with a member more pass; without any of the required ones they do not."""
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / "json.md").read_text(), re.S)
    (example,) = (one for one in map(json.loads, blocks) if one["schema"].startswith(f"paramtool.{command}/"))
    published = validator(command, lambda found: found)
    later = {**example, "of_a_later_version": {"more": 1}}
    published.validate(later)
    assert list(validator(command).iter_errors(later)), "what we write is only what is listed"
    for member in schema(command)["required"]:
        assert list(published.iter_errors({key: value for key, value in example.items() if key != member})), member


def test_each_command_has_its_section() -> None:
    """A new command with `--json` is not without a word on what it prints."""
    headings = re.findall(r"^## (.*)$", (DOCS / "json.md").read_text(), re.M)
    described = {word for heading in headings for word in heading.split(", ")}
    context = click.Context(cli)
    printing = {of for of in COMMANDS for one in cli.get_command(context, of).params if "--json" in one.opts}
    assert printing and printing <= described


def test_a_schema_can_fail(tmp_path: Path) -> None:
    """A document with a member too few or of a wrong type does not pass; we write none with a member too many."""
    path = zipped()(tmp_path)
    good = run("inspect", path.name, cwd=tmp_path)
    for bad in ({k: v for k, v in good.items() if k != "notes"}, {**good, "nbytes": -1}):
        assert list(validator("inspect", lambda found: found).iter_errors(bad))
    assert list(validator("inspect").iter_errors({**good, "more": 1}))


def test_the_examples_of_the_documentation_validate() -> None:
    """Every ```json block of docs/json.md."""
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / "json.md").read_text(), re.S)
    seen = [json.loads(block)["schema"].split("/")[0].removeprefix("paramtool.") for block in blocks]
    assert sorted(seen) == sorted(SCHEMAS)
    for command, block in zip(seen, blocks, strict=True):
        validate(command, block)


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}-{case.name}")
def test_every_format(case: Case, tmp_path: Path) -> None:
    """inspect with every flag, dedup dry and done, verify, export."""
    (tmp_path / "in").mkdir()
    path = case.make(tmp_path / "in")
    assert "tensor_list" not in run("inspect", path, cwd=tmp_path)
    tensors = run("inspect", path, "--tensors", cwd=tmp_path)["tensor_list"]
    assert {item["name"] for item in tensors} == case.oracle(path).keys()
    found = run("inspect", path, "--digest", cwd=tmp_path)
    assert all(item["digests"] for item in found["tensor_list"] if item["kind"] == "tensor")
    found = run("inspect", path, "--fail-on", "missing:ghost", "--fail-on", "unknown-class", cwd=tmp_path, code=1)
    assert [item["rule"] for item in found["findings"]] == ["missing:ghost"]
    dry = run("dedup", path, "-o", "out", "--max-shard-size", "1GB", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "out").exists() and dry["written"] is False and dry["verified"] is False
    done = run("dedup", path, "-o", "out", "--max-shard-size", "1GB", "--min-equal-bytes", "1", cwd=tmp_path)
    assert done["seconds"] == round(done["seconds"], 3)
    assert done["nbytes_after"] == sum((tmp_path / file).stat().st_size for file in done["files"])
    assert run("dedup", path, "-o", "out2", "--no-equal", "--max-shard-size", "1GB", cwd=tmp_path)["equal"] is None
    assert run("verify", "out", "--against", path, cwd=tmp_path)["differences"] == []
    (tmp_path / "names").write_text(f"{tensors[0]['name']}\n")
    args = ("export", "out", "--names", "names", "-o", "plain.safetensors")
    assert run(*args, "--dry-run", cwd=tmp_path)["written"] is False and not (tmp_path / "plain.safetensors").exists()
    assert run(*args, cwd=tmp_path)["verified"] is True
    args = ("export", "out", "--all-names", "--rename", "*=x.*", "-o", "plain", "--max-shard-size", "1kB")
    found = run(*args, cwd=tmp_path)
    assert set(found["renamed"]) == set(found["names"]) == {f"x.{item['name']}" for item in tensors}
    assert found["nbytes"] == sum((tmp_path / file).stat().st_size for file in found["files"])


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_odd_tensors(tmp_path: Path) -> None:
    """Sparse, quantised, conjugated, meta, constants, sections, unknown names, and what nobody can read."""
    w = torch.zeros(5000)
    torch.save(
        {
            "model": {
                "sparse": torch.eye(3).to_sparse(), "conj": torch.ones(2, dtype=torch.complex64).conj(),
                "meta": torch.empty(3, device="meta"), "part": torch.arange(10.0)[2:4], "a": w, "b": w.clone(),
                "quantised": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
                "parameter": torch.nn.Parameter(torch.ones(2)),
            },
            "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": [0]}]},
            "epoch": 3,
        },
        tmp_path / "odd.pt",
    )  # fmt: skip
    found = run("inspect", "odd.pt", "--digest", cwd=tmp_path)
    kinds = {item["name"].split(".")[-1]: item["kind"] for item in found["tensor_list"]}
    assert kinds["part"] == "tensor" and len(set(kinds.values())) > 3, kinds
    assert found["sections"] and found["equal"][0]["constant"] and found["unused_nbytes"]
    found = run("dedup", "odd.pt", "--skip-unsupported", "--dry-run", cwd=tmp_path)
    assert len(found["left_out"]) >= 3 and found["equal"]


def test_the_ties_of_a_config(tmp_path: Path) -> None:
    """Each kind of row: one memory, one name, different bytes, an infinite difference, shapes, what nobody declares."""
    w, odd = torch.ones(3, 2), torch.full((3, 2), float("nan"))
    heads: list[dict[str, torch.Tensor]] = [
        {"wte.weight": w, "lm_head.weight": w}, {"wte.weight": w}, {"wte.weight": w, "lm_head.weight": w + 1},
        {"wte.weight": w, "lm_head.weight": odd}, {"wte.weight": w, "lm_head.weight": w.T}, {"a": w, "b": w},
    ]  # fmt: skip
    results = []
    for tensors in heads:
        torch.save(tensors, tmp_path / "m.pt")
        (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
        results += run("inspect", "m.pt", "--config", ".", cwd=tmp_path)["config"]["ties"]
    assert [row["result"] for row in results] == ["tied", "one-name", "diverged", "diverged", "tied", "undeclared"]
    assert [row["largest_difference"] for row in results] == [None, None, 1.0, "infinite", None, None]
    assert "config" not in run("inspect", "m.pt", cwd=tmp_path)


def test_unknown_names(tmp_path: Path) -> None:
    """What is called, with arguments, and who needs it."""
    evil = call_of("os", "system")
    wrapped = name("torch._utils", "_rebuild_parameter") + row(evil, b"\x89", HOOKS) + b"R"
    space = name("recipes", "Recipe") + b")\x81" + mapping(lr=b"K\x01") + b"b"
    zipped(state(w=tensor(), evil=evil, args=space, u=wrapped))(tmp_path)
    found = run("inspect", "model.pt", "--tensors", cwd=tmp_path, code=4)
    assert found["unsafe"] and {item["path"] for item in found["unknown"] if item["unsafe"]} == {"os.system"}
    assert {item["path"] for item in found["unknown"]} == {"os.system", "recipes.Recipe"}
    assert any(item["needed_by"] == ["u"] for item in found["unknown"])
    assert {item["kind"] for item in found["tensor_list"]} == {"tensor", "unreadable"}
    zipped(state(w=tensor(), evil=evil, args=space))(tmp_path)
    found = run("dedup", "model.pt", "--allow-unknown", cwd=tmp_path)
    assert any("os.system" in text for text in found["warnings"])


def test_differences(tmp_path: Path) -> None:
    """verify's document with a difference, and its exit code."""
    path = zipped()(tmp_path)
    assert quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    data = bytearray((tmp_path / "out.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "out.safetensors").write_bytes(data)
    found = run("verify", "out.safetensors", "--against", path.name, cwd=tmp_path, code=1)
    assert len(found["differences"]) == 1 and "'w'" in found["differences"][0]
