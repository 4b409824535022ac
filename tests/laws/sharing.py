"""Values and sharing of tensors and arrays, in one form for torch and for NumPy.

Who shares what is a partition: every byte of every name, labelled by the first byte that stands at its address.  Two
sets of tensors share alike exactly where their partitions are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

Partition = tuple[tuple[tuple[str, int], ...], bytes]


def _addresses(base: int, shape: Iterable[int], strides: Iterable[int], itemsize: int) -> np.ndarray:
    """The address of every byte, in row-major order of the elements; strides in bytes."""
    found = np.full(tuple(shape), base, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(found.shape, strides, strict=True)):
        along = np.arange(size, dtype=np.int64) * stride
        found += along.reshape([-1 if a == axis else 1 for a in range(found.ndim)])
    return (found.reshape(-1, 1) + np.arange(itemsize)).reshape(-1)


def addresses(value: Any) -> np.ndarray:
    """Of every byte of a torch tensor or a NumPy array."""
    if isinstance(value, torch.Tensor):
        size = value.element_size()
        return _addresses(value.data_ptr(), value.shape, [s * size for s in value.stride()], size)
    return _addresses(value.__array_interface__["data"][0], value.shape, value.strides, value.itemsize)


def partition(values: Mapping[str, Any]) -> Partition:
    """((name, bytes), ...) and, of each byte in that order, the number of the first that stands at its address."""
    found = {name: addresses(values[name]) for name in sorted(values)}
    everything = np.concatenate([*found.values(), np.empty(0, np.int64)])
    _, first, inverse = np.unique(everything, return_index=True, return_inverse=True)
    return tuple((name, len(part)) for name, part in found.items()), first[inverse].tobytes()


def raw(value: Any) -> bytes:
    """The bytes of the elements in row-major order, conjugation and negation carried out."""
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg()
        dense = torch.empty(value.numel(), dtype=value.dtype)
        dense.view(value.shape).copy_(value)
        return bytes(dense.view(torch.uint8).numpy().tobytes())
    return bytes(np.ascontiguousarray(value).tobytes())


def described(value: Any) -> tuple[str, tuple[int, ...]]:
    """(dtype as NumPy and ml_dtypes call it, shape)."""
    return str(value.dtype).removeprefix("torch."), tuple(value.shape)


def same_values(expected: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether names in order, dtypes, shapes and bytes agree; an assertion says where not."""
    assert list(expected) == list(found)
    for name, value in expected.items():
        assert described(value) == described(found[name]), name
        assert raw(value) == raw(found[name]), name
    return True
