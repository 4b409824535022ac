"""Records of parts are foreign data: whatever one says, a command refuses or loses nothing, and soon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.errors import ParamtoolError
from paramtool.formats.record import parts as record

ROWS, WIDTH = 12, 3
PATTERNS = (
    ("{heads: q[head_dim in] k[head_dim in] v[value_dim in]}", {"heads": 2, "head_dim": 2, "value_dim": 2, "in": 3}),
    ("{kv_heads: q[(group head_dim) in] k[head_dim in] v[value_dim in]}",
     {"heads": 2, "kv_heads": 1, "head_dim": 3, "value_dim": 3, "in": 3}),
    ("q[q_rows in] k[k_rows in] v[v_rows in]", {"q_rows": 6, "k_rows": 3, "v_rows": 3, "in": 3}),
    ("{chunks: q[(chunk_heads head_dim) in] v[(chunk_kv_heads value_dim) in] k[(chunk_kv_heads head_dim) in]}",
     {"chunks": 2, "heads": 2, "kv_heads": 2, "head_dim": 2, "value_dim": 2, "in": 3}),
    ("{heads: q.rot[(half two) in] q.rest[rest in]}", {"heads": 2, "head_dim": 6, "rotary": 4, "in": 3}),
    ("{heads heads: q[head_dim in]}", {"heads": 2, "head_dim": 3, "in": 3}),
    ("q[2 (heads head_dim) in]", {"heads": 2, "head_dim": 3, "in": 3}),
    ("gate[experts ffn in] up[experts ffn in]", {"experts": 2, "ffn": 2, "in": 3}),
)  # fmt: skip
NAMES = {"q": ["q.weight"], "k": ["k.weight"], "v": ["v.weight"], "gate": ["0.g", "1.g"], "up": ["0.u", "1.u"]}
NUMBERS = st.one_of(st.integers(1, 13), st.sampled_from([-1, 0, 1 << 31, 1 << 40, 1 << 62, 1 << 63, 10**30]))
ODD = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=4), st.just([]), st.just({}))


@st.composite
def records(draw: st.DrawFn) -> Any:
    """A record of one tensor, with a few things in it changed."""
    pattern, sizes = draw(st.sampled_from(PATTERNS))
    sizes = dict(sizes)
    for word in draw(st.lists(st.sampled_from([*sizes, "rotary", "half", "group", "hat"]), max_size=2) | st.just([])):
        sizes[word] = draw(NUMBERS)
    terms = [term for term in NAMES if f"{term}[" in pattern or f"{term}." in pattern]
    parts: dict[str, Any] = {term: list(NAMES[term]) for term in terms}
    if draw(st.integers(0, 3)) == 0:
        term = draw(st.sampled_from([*terms, "hat"]))
        parts[term] = draw(st.one_of(ODD, st.lists(st.sampled_from(["q.weight", "x.weight", "", "a.b"]), max_size=3)))
    one: dict[str, Any] = {
        "tensor": "x.weight", "layout": "qkv", "along": draw(st.sampled_from([0, 0, 0, 0, 1, 2])), "pattern": pattern,
        "sizes": sizes, "parts": parts, "positions": draw(st.sampled_from([[], [], [], [0], [0, 1, 2], [1 << 40], {}])),
    }  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        key = draw(st.sampled_from([*one, "companion"]))
        one[key] = draw(ODD)
    if draw(st.integers(0, 5)) == 0:
        del one[draw(st.sampled_from([*one]))]
    return {
        "version": 1,
        "fused": [one] * draw(st.sampled_from([1, 1, 1, 2])),
        **draw(st.sampled_from([{}, {}, {}, {}, {"from": 3}])),
    }


@given(found=records())
def test_a_record_loses_nothing(found: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Taken apart, the file has the same numbers; or it is refused, and nothing is written."""
    folder = tmp_path_factory.mktemp("record")
    source, out = folder / "x.safetensors", folder / "out.safetensors"
    tensors = {"x.weight": torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)}
    save_file(tensors, source, {record.KEY: json.dumps(found)})
    try:
        paramtool.unfuse(source, out, layout="qkv")
    except ParamtoolError as error:
        assert error.message
        assert [*folder.iterdir()] == [source]
        return
    made = load_file(out)
    assert sorted(number for one in made.values() for number in one.flatten().tolist()) == [*range(ROWS * WIDTH)]


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("{heads: q.rot[(half two) in] q.rest[rest in]}", {"heads": 1 << 19, "head_dim": 4, "rotary": 2, "in": 1}),
        ("s[(group head_dim) in]", {"heads": 1, "group": 1, "head_dim": 1 << 21, "in": 1}),
        ("{" + "heads: {" * 100 + "heads: q[in]" + "}" * 101, {"heads": 1 << 20, "in": 1}),
    ],
    ids=["slices", "repetitions", "braces"],
)
def test_a_tensor_in_very_many_pieces_is_refused(pattern: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """Before they are listed: a small file would take much memory."""
    term = "s" if pattern.startswith("s") else "q"
    one = {
        "tensor": "x.weight", "layout": "qkv", "along": 0, "pattern": pattern, "sizes": sizes,
        "parts": {term: ["a.weight"]}, "positions": [],
    }  # fmt: skip
    source = tmp_path / "x.safetensors"
    text = json.dumps({"version": 1, "fused": [one]})
    save_file({"x.weight": torch.zeros(1 << 21, 1, dtype=torch.int8)}, source, {record.KEY: text})
    with pytest.raises(ParamtoolError):
        paramtool.unfuse(source, tmp_path / "out.safetensors", layout="qkv")
    assert [*tmp_path.iterdir()] == [source]
