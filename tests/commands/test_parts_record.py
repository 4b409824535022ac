"""What the record of parts says after some of it was used, and names that it gives back."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.errors import FormatError, LayoutError, UsageError
from paramtool.formats.record import parts as record
from paramtool.model.parts import PartsRecord
from tests.attention import LLAMA, MIXTRAL, folder_of, state_of


def record_in(folder: Path) -> PartsRecord:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return record.decode("model.safetensors", file.metadata() or {})


def names(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    """Two layers whose queries, keys and values are fused."""
    paramtool.fuse(folder_of(tmp_path / "m", LLAMA), tmp_path / "fused", layout="qkv")
    return tmp_path / "fused"


def test_one_module_and_then_the_others(fused: Path, tmp_path: Path) -> None:
    """What --at took apart is not said to be fused any more."""
    paramtool.unfuse(fused, tmp_path / "one", layout="qkv", at=["*.0.self_attn"])
    known = record_in(tmp_path / "one")
    assert [one.tensor for one in known.fused] == ["model.layers.1.self_attn.qkv_proj.weight"]
    assert [one.tensor for one in known.unfused] == ["model.layers.0.self_attn.qkv_proj.weight"]
    paramtool.unfuse(tmp_path / "one", tmp_path / "all")
    assert names(tmp_path / "all") == names(tmp_path / "m")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("m", "all"))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("command", ["fuse", "unfuse"])
def test_a_record_gives_names_back_and_takes_no_others(command: str, fused: Path, tmp_path: Path) -> None:
    """--rename would be ignored in silence."""
    source = fused
    if command == "fuse":
        source = tmp_path / "apart"
        paramtool.unfuse(folder_of(tmp_path / "own", LLAMA, {"a.qkv.weight": torch.ones(32, 6)}), source, layout="qkv")
    name = "qkv_proj" if command == "fuse" else "q_proj"
    with pytest.raises(UsageError, match=f"rename='{name}'.*record"):
        getattr(paramtool, command)(source, tmp_path / "out", layout="qkv", rename={name: "other"})
    assert not (tmp_path / "out").exists()


def test_a_name_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rename='qkv_proj'"):
        paramtool.fuse(folder_of(tmp_path / "m", LLAMA), tmp_path / "out", layout="qkv", rename={"qkv_proj": ""})


def test_parts_without_elements_are_refused(tmp_path: Path) -> None:
    state = {f"a.{part}_proj.weight": torch.zeros(0, 6) for part in "qkv"}
    with pytest.raises(LayoutError, match=r"a\.q_proj\.weight' has shape \[0, 6\]"):
        paramtool.fuse(folder_of(tmp_path / "m", {}, state), tmp_path / "out", layout="qkv")


def test_a_record_says_heads_and_not_that_keys_have_as_many(tmp_path: Path) -> None:
    """The example of the documentation: sizes that follow from others need not be said."""
    weight = torch.randn(12 * 3 * 4, 5)
    said = {
        "tensor": "a.qkv.weight", "layout": "qkv-per-head", "along": 0,
        "pattern": "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}",
        "sizes": {"heads": 12, "head_dim": 4, "in": 5},
        "parts": {part: [f"a.{part}.weight"] for part in "qkv"},
    }  # fmt: skip
    path = tmp_path / "m.safetensors"
    save_file({"a.qkv.weight": weight}, path, {record.KEY: json.dumps({"version": 1, "fused": [said]})})
    paramtool.unfuse(path, tmp_path / "out.safetensors")
    made = load_file(tmp_path / "out.safetensors")
    for k, part in enumerate("qkv"):
        assert torch.equal(made[f"a.{part}.weight"], weight.reshape(12, 3, 4, 5)[:, k].reshape(48, 5))


# --- the order of the file, and its metadata ------------------------------------------------------------------------


def raw(folder: Path, config: Mapping[str, Any], *, shuffled: bool = True, metadata: str = "") -> Path:
    """A folder whose file has its tensors in an order that no name tells, and the metadata that is given."""
    state = list(state_of(config).items())
    if shuffled:
        random.Random(5).shuffle(state)
    header, data = [metadata] if metadata else [], b""
    for name, tensor in state:
        content = tensor.numpy().tobytes()
        place = {"dtype": "F32", "shape": [*tensor.shape], "data_offsets": [len(data), len(data) + len(content)]}
        header.append(f'"{name}":{json.dumps(place, separators=(",", ":"))}')
        data += content
    text = ("{" + ",".join(header) + "}").encode()
    text += b" " * (-(len(text) + 8) % 8)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def through(folder: Path, *targets: str) -> bytes:
    """The file after conversions to some dialects."""
    for k, target in enumerate(targets):
        paramtool.convert(folder, folder.parent / f"{k}.out", target=target)
        folder = folder.parent / f"{k}.out"
    return (folder / "model.safetensors").read_bytes()


METADATA = ["", '"__metadata__":{"format":"pt"}', '"__metadata__":{"format":"np","who":"me"}']


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("ways", [("vllm",), ("megatron",), ("transformers-5", "vllm")])
def test_the_order_of_the_file_comes_back(ways: tuple[str, ...], metadata: str, tmp_path: Path) -> None:
    source = raw(tmp_path / "m", MIXTRAL, metadata=metadata)
    assert through(source, *ways, "transformers-4") == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("layout", ["qkv", "experts"])
def test_fuse_keeps_the_metadata_for_the_way_back(layout: str, metadata: str, tmp_path: Path) -> None:
    source = raw(tmp_path / "m", MIXTRAL, metadata=metadata)
    paramtool.fuse(source, tmp_path / "fused", layout=layout)
    paramtool.unfuse(tmp_path / "fused", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_a_way_around_gives_what_the_straight_one_gives(tmp_path: Path) -> None:
    source = raw(tmp_path / "m", MIXTRAL)
    for name, ways in (("a", ("vllm",)), ("b", ("transformers-5", "vllm")), ("c", ("megatron", "vllm"))):
        folder = source
        for k, target in enumerate(ways):
            paramtool.convert(folder, tmp_path / f"{name}{k}", target=target)
            folder = tmp_path / f"{name}{k}"
        os.replace(folder, tmp_path / name)
    files = [(tmp_path / name / "model-rank-0-part-0.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize(
    "order", ["no list", [0], [0, -1], [1, 3], [0, 2, 1, 2], [0, 1 << 60], [True, 2], [0, 2.0]], ids=str
)
def test_an_order_that_is_none_is_damaged(order: object) -> None:
    text = json.dumps({"version": 1, "dialect": "vllm", "from": "transformers-4", "order": order})
    with pytest.raises(FormatError, match="record of parts"):
        record.decode("x", {record.KEY: text})


def test_an_order_of_another_number_of_tensors_is_left_alone(tmp_path: Path) -> None:
    """Somebody added a tensor: the record's order is not of this file."""
    paramtool.convert(folder_of(tmp_path / "m", LLAMA), tmp_path / "there", target="vllm")
    path = tmp_path / "there" / "model-rank-0-part-0.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file({**load_file(path), "more.weight": torch.ones(3)}, path, metadata)
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4")
    assert names(tmp_path / "back") == {*names(tmp_path / "m"), "more.weight"}
