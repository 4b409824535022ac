"""What is done to the values and the types of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.laws.diff_trials.pairs import (
    FLOATS,
    INTEGERS,
    TYPES,
    Array,
    Module,
    Random,
    a_type,
    dtype,
    kind,
    numbers,
    same_bytes,
)


def a_shape(random: Random, least: int = 1) -> tuple[int, ...]:
    """A shape of up to four axes with at least some elements; empty ones where none are asked for."""
    while True:
        shape = tuple(int(size) for size in random.integers(1 if least else 0, 12, random.integers(0, 5)))
        if np.prod(shape, dtype=int) >= least:
            return shape


@kind("same")
def _same(random: Random, at: str) -> Module:
    one = numbers(random, a_shape(random, 0), a_type(random))
    return Module({f"{at}.w": one}, {f"{at}.w": one})


@kind("unrelated")
def _unrelated(random: Random, at: str) -> Module:
    shape, of = a_shape(random, 64), a_type(random)
    return Module({f"{at}.w": numbers(random, shape, of)}, {f"{at}.w": numbers(random, shape, of)}, keeps=False)


@kind("some elements")
def _some_elements(random: Random, at: str) -> Module:
    """A bit of one element, at any place or at an end, or several elements."""
    one = numbers(random, a_shape(random), a_type(random))
    other = one.copy()
    raw, size = other.reshape(-1).view("u1"), one.itemsize
    for place in random.choice([0, one.size - 1, *random.integers(one.size, size=3)], random.integers(1, 4)):
        bit = 1 if one.dtype == bool else 1 << random.integers(8)
        raw[place * size + random.integers(size)] ^= bit
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=same_bytes(one, other))


@kind("special numbers")
def _special(random: Random, at: str) -> Module:
    """Zeros, NaNs, infinities and denormals: the same bytes, or a zero or a NaN of other bits."""
    of = a_type(random, FLOATS)
    one = numbers(random, a_shape(random, 16), of)
    flat, tiny = one.reshape(-1), float(np.finfo(np.float16).smallest_subnormal)
    places = random.permutation(flat.size)[:6]
    flat[places] = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny]).astype(one.dtype)
    other = one.copy()
    raw = other.reshape(-1).view(f"u{one.itemsize}")
    which = int(random.integers(4))
    if which == 1:
        raw[places[int(random.integers(2))]] ^= raw.dtype.type(1 << (8 * one.itemsize - 1))
    elif which == 2:
        raw[places[4]] ^= raw.dtype.type(1)
    elif which == 3:
        raw[places[2]] = raw[places[3]]
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=which == 0)


@kind("other bytes of one type")
def _as_other_type(random: Random, at: str) -> Module:
    """The same bytes under a type that reads other numbers from them."""
    names = [("float32", "int32"), ("int8", "uint8"), ("float16", "bfloat16"), ("int64", "float64")]
    old, new = names[random.integers(len(names))]
    one = numbers(random, (int(random.integers(3, 9)), 16), old)
    return Module({f"{at}.w": one}, {f"{at}.w": one.view(dtype(new))}, keeps=False)


LOSSLESS = (
    ("float16", "float32"), ("float32", "float64"), ("bfloat16", "float32"), ("float8_e4m3fn", "float16"),
    ("float8_e5m2", "float32"), ("int8", "int32"), ("uint8", "int64"), ("bool", "uint8"), ("complex64", "complex128"),
    ("int32", "float64"), ("int16", "float32"),
)  # fmt: skip
"""(type, type that has all its numbers)"""


@kind("cast")
def _cast(random: Random, at: str) -> Module:
    """To a type that has all numbers, or back to one that has these."""
    old, new = LOSSLESS[random.integers(len(LOSSLESS))]
    one = numbers(random, a_shape(random), old)
    other = one.astype(dtype(new))
    one, other = (other, one) if random.random() < 0.5 else (one, other)
    return Module({f"{at}.w": one}, {f"{at}.w": other})


@kind("cast beside a rename")
def _cast_renamed(random: Random, at: str) -> Module:
    """Another tensor shows the rename."""
    one, beside = numbers(random, (8, 24)), numbers(random, (8, 16))
    return Module({f"{at}.x.w": beside, f"{at}.y.w": one}, {f"new.{at}.x.w": beside, f"new.{at}.y.w": one.astype("f8")})


@kind("cast that loses")
def _cast_that_loses(random: Random, at: str) -> Module:
    """Floats that are rounded, integers that wrap around or that no float has, numbers that become 0 or infinite."""
    names = [("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32"), ("int32", "float32"),
             ("int32", "int16"), ("int64", "int32"), ("int16", "uint16"), ("float32", "int32"),
             ("complex64", "float32")]  # fmt: skip
    old, new = names[random.integers(len(names))]
    one = numbers(random, (int(random.integers(3, 9)), 16), old)
    if old == "float32" and random.random() < 0.3:
        one = (one * np.float32(10.0) ** random.integers(-9, 9)).astype("f4")
    with np.errstate(all="ignore"):
        other = (one.real if old == "complex64" else one).astype(dtype(new))
        keeps = same_bytes(other.astype(one.dtype), one) and bool((one == other).all())
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=keeps)


@kind("shifted by one")
def _shifted(random: Random, at: str) -> Module:
    """A zero-centred norm: explained, and changed."""
    one = numbers(random, (int(random.integers(16, 40)),))
    other = one + np.float32(random.choice([-1, 1]))
    return Module({f"{at}.norm.weight": one}, {f"{at}.norm.weight": other}, keeps=same_bytes(one, other))


@kind("shuffled elements")
def _shuffled(random: Random, at: str) -> Module:
    """The same elements in an order that is no map of rows, columns or axes."""
    one = numbers(random, (int(random.integers(6, 12)), 16), str(random.choice([*FLOATS[2:], *INTEGERS[3:]])))
    other = random.permutation(one.reshape(-1)).reshape(one.shape)
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=False)


@kind("two elements exchanged")
def _two_exchanged(random: Random, at: str) -> Module:
    one = numbers(random, (8, 16))
    other = one.copy()
    other[0, 3], other[5, 7] = one[5, 7], one[0, 3]
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=False)


@kind("another shape")
def _reshaped(random: Random, at: str) -> Module:
    """The same bytes under the same name, as other axes."""
    shapes: Sequence[tuple[int, ...]] = [(96,), (8, 12), (12, 8), (2, 4, 12), (8, 3, 2, 2), (96, 1), (1, 8, 12)]
    old, new = (shapes[k] for k in random.choice(len(shapes), 2, replace=False))
    one: Array = numbers(random, old, a_type(random, TYPES))
    return Module({f"{at}.w": one}, {f"{at}.w": one.reshape(new)})
