"""Random state dicts of torch tensors: ties, slices, transposes, expanded and overlapping windows, equal copies."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
BITS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
WORDS = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32")
UNTYPED = tuple(getattr(torch, name) for name in WORDS) if hasattr(torch, "uint16") else ()
"""Saved through untyped storages (`_rebuild_tensor_v3`), which torch before 2.3 does not do."""
NAMES = ("emb", "head", "w", "b", "layer.0", "layer.1", "a.b", "x y", "ü")


@st.composite
def bases(draw: st.DrawFn) -> torch.Tensor:
    """A whole storage as one flat tensor, of random bytes (NaN and -0.0 among them)."""
    dtype = draw(st.sampled_from(FLOATS + BITS + UNTYPED))
    count = draw(st.integers(0, 24))
    if dtype == torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    data = draw(st.binary(min_size=count * size, max_size=count * size))
    return torch.frombuffer(bytearray(data), dtype=dtype).clone() if count else torch.empty(0, dtype=dtype)


@st.composite
def windows(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """A window on a storage, as models make them."""
    count = base.numel()
    kind = draw(
        st.sampled_from(
            ("whole", "whole", "matrix", "transposed", "slice", "columns", "expanded", "random", "scalar", "empty")
        )
    )
    start = draw(st.integers(0, max(count - 1, 0)))
    stop = draw(st.integers(start, count))
    rows = draw(st.sampled_from((1, 2, 3)))
    matrix = base[: count // rows * rows].view(rows, -1)
    match kind:
        case "matrix":
            return matrix
        case "transposed":
            return matrix.t()
        case "slice":
            return base[start:stop]
        case "columns":
            return matrix[:, : matrix.shape[1] // 2 + 1]
        case "expanded":
            return base[start : start + 1].expand(draw(st.integers(0, 3)), base[start : start + 1].numel())
        case "scalar" if count:
            return base[start]
        case "empty":
            return base[:0].view(0, 3)
        case "random" if count:
            return draw(sliding(base, start))
    return base


@st.composite
def sliding(draw: st.DrawFn, base: torch.Tensor, start: int) -> torch.Tensor:
    """A window of any strides that stays inside: overlapping itself, interleaved with others, gapped."""
    shape, strides = [], []
    room = base.numel() - start - 1
    for _ in range(draw(st.integers(1, 3))):
        stride = draw(st.integers(0, 4))
        size = draw(st.integers(1, min(4, room // stride + 1 if stride else 4)))
        room -= (size - 1) * stride
        shape.append(size)
        strides.append(stride)
    return base.as_strided(shape, strides, start)


@st.composite
def flat_states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """{name: tensor}: up to 8 names on up to 3 storages, some of them equal copies of others."""
    storages = draw(st.lists(bases(), min_size=1, max_size=3))
    storages += [base.clone() for base in storages if draw(st.booleans())]
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True))
    return {name: draw(windows(draw(st.sampled_from(storages)))) for name in names}


@st.composite
def states(draw: st.DrawFn) -> tuple[Any, dict[str, torch.Tensor]]:
    """(what torch saves, {name: tensor}): flat, or nested with numbers, lists and optimizer state beside."""
    flat = draw(flat_states())
    if draw(st.booleans()):
        return flat, flat
    split = draw(st.integers(0, len(flat)))
    items = list(flat.items())
    model, optimizer = dict(items[:split]), [tensor for _, tensor in items[split:]]
    saved = {"model": model, "epoch": 3, "optimizer": {"state": {k: {"m": t} for k, t in enumerate(optimizer)}}}
    names = {f"model.{name}": tensor for name, tensor in model.items()}
    return saved, names | {f"optimizer.state.{k}.m": tensor for k, tensor in enumerate(optimizer)}
