"""Folders in a dialect: what their files are called, what is calculated beside them, and that they are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.errors import LayoutError, OutputError, UsageError
from paramtool.formats.folder.weight_names import of_file
from tests.attention import HEAD_DIM, HEADS, LLAMA, State, folder_of, state_of
from tests.hostile.command import quick

MODEL: dict[str, Any] = {**LLAMA, "hidden_size": HEADS * HEAD_DIM}
TIED: dict[str, Any] = {**MODEL, "tie_word_embeddings": True}
RANK = "model-rank-0-part-0.safetensors"
META = {"config.json", "consolidated.00.pth", "params.json"}
FILES = {"vllm": {"config.json", RANK}, "meta": META, "megatron": {"config.json", "model.safetensors"}}


def tied(folder: Path) -> Path:
    """A tied model as transformers saves it: the head is not in the file."""
    state = state_of(TIED)
    del state["lm_head.weight"]
    return folder_of(folder, TIED, state)


def real(folder: Path) -> Path:
    """A folder as Meta has it."""
    source = folder_of(folder / "hub", MODEL)
    paramtool.convert(source, folder / "real", target="meta")
    (folder / "real/config.json").unlink()
    return folder / "real"


def names(folder: Path) -> set[str]:
    """The files of a folder."""
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("dialect", FILES)
@pytest.mark.parametrize("make", [lambda path: folder_of(path, MODEL), tied])
def test_there_and_back(tmp_path: Path, dialect: str, make: Any) -> None:
    source, there, back = make(tmp_path / "in"), tmp_path / "there", tmp_path / "back"
    paramtool.convert(source, there, target=dialect)
    assert names(there) == FILES[dialect]
    paramtool.convert(there, back, target="transformers-4")
    assert names(back) >= {"config.json", "model.safetensors"}
    first, second = load_file(source / "model.safetensors"), load_file(back / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert names(back) == names(source)
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    for output, other in ((there, source), (back, there), (back, source)):
        found = paramtool.verify(output, other)
        assert found.differences == (), found.differences


@pytest.mark.parametrize(("dialect", "head"), [("vllm", "lm_head.weight"), ("meta", "output.weight")])
def test_the_head_of_a_tied_model(tmp_path: Path, dialect: str, head: str) -> None:
    """Both programs want it stored; other bytes are no copy."""
    there = tmp_path / "there"
    paramtool.convert(tied(tmp_path / "in"), there, target=dialect)
    path = there / next(iter(names(there) - {"config.json", "params.json"}))
    state: State = load_file(path) if dialect == "vllm" else torch.load(path, weights_only=True)
    embedding = state_of(TIED)["model.embed_tokens.weight"]
    assert torch.equal(state[head], embedding)
    assert sum(torch.equal(one, embedding) for one in state.values() if one.shape == embedding.shape) == 2


def head_alone(folder: Path) -> Path:
    """A tied model that stores the head, and not the embedding."""
    state = state_of(TIED)
    state["lm_head.weight"] = state.pop("model.embed_tokens.weight")
    return folder_of(folder, TIED, state)


@pytest.mark.parametrize(
    ("dialect", "both"),
    [
        ("vllm", ("lm_head.weight", "model.embed_tokens.weight")),
        ("meta", ("output.weight", "tok_embeddings.weight")),
    ],
)
def test_the_embedding_of_a_model_that_stores_its_head_alone(tmp_path: Path, dialect: str, both: list[str]) -> None:
    """The program gets both; on the way back they are the head again."""
    source, there, back = head_alone(tmp_path / "in"), tmp_path / "there", tmp_path / "back"
    found = paramtool.convert(source, there, target=dialect)
    assert " = ".join(both) in "".join(found.left_out)
    state = paramtool.load_file(next(path for path in there.iterdir() if path.suffix != ".json"))
    assert (state[both[0]] == state[both[1]]).all()
    paramtool.convert(there, back, target="transformers-4")
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    for output, other in ((there, source), (back, there), (back, source)):
        assert paramtool.verify(output, other).differences == ()


def test_a_program_that_reads_the_embedding_alone_is_not_given_the_head(tmp_path: Path) -> None:
    source = head_alone(tmp_path / "in")
    with pytest.raises(LayoutError, match=r"lacks 'model.embed_tokens.weight', which the program of megatron reads"):
        paramtool.convert(source, tmp_path / "there", target="megatron")
    paramtool.export(source, tmp_path / "both", all_names=True)
    found = paramtool.convert(tmp_path / "both", tmp_path / "there", target="megatron")
    assert "embedding.word_embeddings.weight" in found.plan.names


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_name_that_only_the_config_gives_is_named(suffix: str, tmp_path: Path) -> None:
    source = tied(tmp_path / "in")
    found = paramtool.convert(source, tmp_path / f"out.{suffix}")
    assert any("'lm_head.weight'" in text for text in found.left_out), found.left_out
    assert not any("lm_head" in text for text in paramtool.convert(source, tmp_path / "out").left_out)


def test_a_head_that_changed_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "there"
    paramtool.convert(tied(tmp_path / "in"), there, target="vllm")
    header = paramtool.load_file(there / RANK) and (there / RANK).read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    state = load_file(there / RANK)
    state["lm_head.weight"][0, 0] += 1
    save_file(state, there / RANK, metadata=metadata)
    with pytest.raises(LayoutError, match="with other values"):
        paramtool.convert(there, tmp_path / "back", target="transformers-4")
    assert not (tmp_path / "back").exists()


def test_a_tied_model_as_vllm_saves_it(tmp_path: Path) -> None:
    """Of two names of one parameter it saves the first in order: the head."""
    there = tmp_path / "there"
    paramtool.convert(tied(tmp_path / "in"), there, target="vllm")
    state = load_file(there / RANK)
    embedding = state.pop("model.embed_tokens.weight").clone()  # older safetensors map the file
    save_file(state, there / RANK)
    paramtool.convert(there, tmp_path / "back", source="vllm", target="transformers-4")
    back = load_file(tmp_path / "back/model.safetensors")
    assert torch.equal(back["model.embed_tokens.weight"], embedding) and "lm_head.weight" not in back


def test_a_model_without_its_head(tmp_path: Path) -> None:
    state = state_of(MODEL)
    del state["lm_head.weight"]
    source = folder_of(tmp_path / "in", MODEL, state)
    with pytest.raises(LayoutError, match="tie_word_embeddings=false"):
        paramtool.convert(source, tmp_path / "there", target="vllm")


def test_shards_of_a_rank(tmp_path: Path) -> None:
    source, there = folder_of(tmp_path / "in", MODEL), tmp_path / "there"
    paramtool.convert(source, there, target="vllm", max_shard_size=2000)
    parts = sorted(names(there) - {"config.json"})
    count = len(parts) - 1
    assert count > 1 and parts == sorted(
        [f"{RANK}.index.json", *(f"model-rank-0-part-{k}.safetensors" for k in range(count))]
    )
    assert of_file(f"{RANK}.index.json") == of_file(RANK)
    paramtool.convert(there, tmp_path / "back", target="transformers-4")
    assert "model.safetensors.index.json" in names(tmp_path / "back")
    paramtool.dedup(there, tmp_path / "dedup")
    assert RANK in names(tmp_path / "dedup")
    with pytest.raises(UsageError, match="no shards"):
        paramtool.convert(source, tmp_path / "meta", target="meta", max_shard_size=2000)


def test_a_folder_of_metas(tmp_path: Path) -> None:
    """config.json is calculated, and what it does not say is told."""
    source, out = real(tmp_path), tmp_path / "out"
    report = paramtool.convert(source, out, target="transformers-4")
    assert any("max_position_embeddings" in text for text in report.warnings)
    config = json.loads((out / "config.json").read_text())
    assert {key: config[key] for key in MODEL if key in config} == {k: v for k, v in MODEL.items() if k in config}
    first, second = (load_file(path / "model.safetensors") for path in (tmp_path / "hub", out))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert not paramtool.verify(out, source).differences
    (out / "config.json").write_text("{}")
    assert any("config.json" in text for text in paramtool.verify(out, source).differences)


def test_params_that_are_there_stay(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", MODEL)
    paramtool.convert(source, tmp_path / "made", target="meta")
    params = json.loads((tmp_path / "made/params.json").read_text())
    own = {**params, "vocab_size": -1}
    (source / "params.json").write_text(json.dumps(own))
    paramtool.convert(source, tmp_path / "out", target="meta")
    assert json.loads((tmp_path / "out/params.json").read_text()) == own
    (source / "params.json").write_text(json.dumps({**own, "n_heads": 2}))
    with pytest.raises(LayoutError, match="contradicts config"):
        paramtool.convert(source, tmp_path / "other", target="meta")


def test_force_keeps_what_somebody_changed(tmp_path: Path) -> None:
    source, out = folder_of(tmp_path / "in", MODEL), tmp_path / "out"
    paramtool.convert(source, out, target="meta")
    paramtool.convert(source, out, target="meta", force=True)
    (out / "params.json").write_text("{}")
    with pytest.raises(OutputError, match=r"params.json \(changed\)"):
        paramtool.convert(source, out, target="meta", force=True)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"intermediate_size": 7}, "intermediate_size"),
        ({"head_dim": 3}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_config_that_meta_has_no_place_for(tmp_path: Path, edit: dict[str, Any], said: str) -> None:
    source = folder_of(tmp_path / "in", MODEL)
    (source / "config.json").write_text(json.dumps({**MODEL, **edit}))
    ran = quick("convert", "in", "--to", "meta", "-o", "out", cwd=tmp_path)
    assert ran.code == 5 and said in ran.err and not (tmp_path / "out").exists()


def test_each_of_many(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "many").mkdir(exist_ok=True)
        folder_of(tmp_path / "many" / name, MODEL)
    ran = quick("convert", "many", "--to", "meta", "--each", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    assert names(tmp_path / "out/one") == META
    ran = quick("verify", "out", "--against", "many", "--each", cwd=tmp_path)
    assert ran.code == 0, ran
    save_file(state_of(MODEL, 1), tmp_path / "many/one/model_1.safetensors")
    ran = quick("convert", "many", "--to", "meta", "--each", "-o", "both", cwd=tmp_path)
    assert ran.code == 2 and "two sets" in ran.err
