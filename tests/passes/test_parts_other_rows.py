"""What files say of the rows of their tensors, against variants of the same names and shapes."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool import dialects
from paramtool.dialects.scopes import foreign_word
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.passes.parts.recorded import PLAIN, clashes, rows_said

NAME = "transformer.h.0.self_attention.query_key_value.weight"
BLOOM: dict[str, Any] = {
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_head": 4, "hidden_size": 8, "n_layer": 1,
}  # fmt: skip
SHAPES = {NAME: (24, 8), "transformer.ln_f.weight": (8,)}
PER_HEAD = "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}"
PLAIN_QKV = "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]"
SIZES = {"heads": 4, "kv_heads": 4, "head_dim": 2, "value_dim": 2, "in": 8}


def fused(layout: str, pattern: str) -> PartsRecord:
    parts = {term: (f"transformer.h.0.self_attention.{term}_proj.weight",) for term in "qkv"}
    return PartsRecord(fused=(FusedTensor(NAME, layout, pattern, 0, SIZES, parts),))


def found(mine: PartsRecord, theirs: PartsRecord | None = None, dialect: str = "") -> list[tuple[str, str, str]]:
    """Clashes of a file with another, or with a class of transformers."""
    other = rows_said(SHAPES, theirs, BLOOM) if theirs is not None else {}
    return list(clashes(rows_said(SHAPES, mine, BLOOM, dialect), other, SHAPES))


def test_a_file_that_says_nothing_clashes_with_none() -> None:
    assert found(PartsRecord()) == found(PartsRecord(dialect="transformers-4")) == []


def test_a_dialect_with_other_rows() -> None:
    vllm = PartsRecord(dialect="vllm")
    assert found(vllm) == [(NAME, "rows of vllm by its record", PLAIN)]
    assert found(PartsRecord(), vllm) == [(NAME, PLAIN, "rows of vllm by its record")]
    assert found(vllm, vllm) == []
    assert found(PartsRecord(), dialect="vllm") == [(NAME, "rows of vllm by its file name", PLAIN)]


def test_the_layout_of_the_family_is_no_clash() -> None:
    assert found(fused("qkv-per-head", PER_HEAD)) == []
    assert found(fused("qkv", PLAIN_QKV)) == [(NAME, "qkv by its record", "qkv-per-head")]


def test_two_records() -> None:
    plain, per_head = fused("qkv", PLAIN_QKV), fused("qkv-per-head", PER_HEAD)
    assert found(plain, plain) == []
    assert found(plain, per_head) == [(NAME, "qkv by its record", "qkv-per-head by its record")]


@pytest.mark.parametrize(
    ("name", "dialect"),
    [("model-rank-0-part-0.safetensors", "vllm"), ("model-rank-12-part-3.safetensors", "vllm"),
     ("consolidated.01.pth", "meta"), ("model.safetensors", ""), ("model-00001-of-00002.safetensors", "")],
)  # fmt: skip
def test_file_names_of_one_program(name: str, dialect: str) -> None:
    assert dialects.of_file(name) == dialect


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("names", "words"),
    [(["gpt_neox.layers.0.mlp.dense_4h_to_h.weight"] * 3, ("gpt_neox", "model")),
     (["transformer.h.0.ln_1.weight", "transformer.wte.weight", "lm_head.weight"], ("transformer", "model")),
     (["model.norm.weight", "lm_head.weight"], ("", "")), (["layers.0.mlp.up_proj.weight", "norm.weight"], ("", "")),
     ([], ("", ""))],
)  # fmt: skip
def test_names_of_another_model(names: list[str], words: tuple[str, str]) -> None:
    assert foreign_word(names, LLAMA) == words
