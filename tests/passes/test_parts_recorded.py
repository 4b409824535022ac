"""The record of parts, when a file is read as a dialect."""

from __future__ import annotations

import pytest

from paramtool.errors import LayoutError
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.pieces import whole
from paramtool.passes.parts.recorded import put_together, with_parts

AT = "model.layers.0.self_attn"
MODEL = KnownModel(
    {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 2, "hidden_size": 4}
)
PARTS = {"q": (f"{AT}.q_proj.weight",), "k": (f"{AT}.k_proj.weight",), "v": (f"{AT}.v_proj.weight",)}
FUSED = FusedTensor(
    tensor=f"{AT}.qkv_proj.weight",
    layout="qkv",
    pattern="q[q_rows in] k[k_rows in] v[v_rows in]",
    along=0,
    sizes={"q_rows": 4, "k_rows": 4, "v_rows": 4, "in": 4},
    parts=PARTS,
)
SHAPES = {FUSED.tensor: (12, 4), f"{AT}.o_proj.weight": (4, 4)}


def test_a_dialect_without_the_tensor_has_its_parts() -> None:
    shapes, joints = with_parts(SHAPES, PartsRecord(fused=(FUSED,)), "transformers-4", MODEL)
    assert shapes == {f"{AT}.{part}_proj.weight": (4, 4) for part in "oqkv"}
    held = put_together([whole(name, shape, f"new.{name}") for name, shape in shapes.items()], joints)
    assert {one.name: one.shape for one in held} == {FUSED.tensor: (12, 4), f"{AT}.o_proj.weight": (4, 4)}
    assert [piece.part for piece in held[-1].pieces] == [f"new.{name}" for name in FUSED.names]


def test_a_dialect_with_the_tensor_keeps_it() -> None:
    _, joints = with_parts(SHAPES, PartsRecord(fused=(FUSED,)), "vllm", MODEL)
    assert joints == ()


def test_parts_that_are_rearranged_themselves() -> None:
    shapes, joints = with_parts(SHAPES, PartsRecord(fused=(FUSED,)), "transformers-4", MODEL)
    held = [whole(name, shape) for name, shape in shapes.items()]
    other = [
        one._replace(pieces=(one.pieces[0]._replace(start=(1, 0)),)) if "k_proj" in one.name else one for one in held
    ]
    with pytest.raises(LayoutError, match="which is rearranged, too"):
        put_together(other, joints)


def test_parts_beside_the_tensor_that_holds_them() -> None:
    both = {**SHAPES, f"{AT}.q_proj.weight": (4, 4)}
    record = PartsRecord(fused=(FUSED,))
    with pytest.raises(LayoutError, match="the file has both"):
        with_parts(both, record, "transformers-4", MODEL)
    _, joints = with_parts(both, record, "transformers-4", MODEL, views=[f"{AT}.q_proj.weight"])
    assert joints


def test_parts_of_a_tensor_of_the_dialect() -> None:
    shapes = dict.fromkeys(FUSED.names, (4, 4))
    record = PartsRecord(unfused=(FUSED,))
    found, _ = with_parts(shapes, record, "transformers-4", MODEL)
    assert found == shapes
    with pytest.raises(LayoutError, match="1 tensor of vllm was taken apart"):
        with_parts(shapes, record, "vllm", MODEL)
