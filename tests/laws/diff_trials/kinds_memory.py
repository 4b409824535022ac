"""What only torch's files have: ties, windows of storages, quantised tensors, and objects beside tensors."""

from __future__ import annotations

import numpy as np

from tests.laws.diff_trials.pairs import Array, Arrays, Module, Random, a_type, kind, numbers

TYPES = ("float32", "float16", "bfloat16", "int64", "uint8", "bool", "complex64", "float8_e4m3fn")


def _matrix(random: Random) -> Array:
    return numbers(random, (int(random.integers(4, 12)), int(random.choice([16, 24]))), a_type(random, TYPES))


@kind("ties")
def _ties(random: Random, at: str) -> Module:
    """Embeddings and head share memory in both, under the same names or renamed, or only in one of the two."""
    one = _matrix(random)
    names = [f"{at}.embed.weight", f"{at}.head.weight"]
    tied, apart = dict.fromkeys(names, one), {name: one.copy() for name in names}
    match random.integers(4):
        case 0:
            return Module(tied, tied, is_shared=True)
        case 1:
            return Module(tied, {f"model.{name}": one for name in names}, is_shared=True)
        case 2:
            return Module(tied, apart, keeps=False, is_shared=True)
        case _:
            return Module(apart, tied, keeps=False, is_shared=True)


@kind("slices of one storage")
def _slices(random: Random, at: str) -> Module:
    """Parts that are windows on a fused tensor, which has a name, too; or copies of them."""
    one = numbers(random, (12, 16), a_type(random, TYPES))
    windows = {f"{at}.{name}": one[4 * k : 4 * k + 4] for k, name in enumerate("qkv")}
    fused = {f"{at}.qkv": one}
    match random.integers(3):
        case 0:
            return Module({**windows, **fused}, {**windows, **fused}, is_shared=True)
        case 1:
            return Module(windows, {name: part.copy() for name, part in windows.items()}, is_shared=True)
        case _:
            apart = {name: part.copy() for name, part in windows.items()}
            return Module({**windows, **fused}, {**apart, **fused}, keeps=False, is_shared=True)


@kind("strides")
def _strides(random: Random, at: str) -> Module:
    """The same numbers in windows with other strides: transposes, every second column, repeated rows."""
    one = _matrix(random)
    windows: list[Array] = [
        one.T.copy().T, np.repeat(one, 2, 1)[:, ::2], np.concatenate([one, one])[: len(one)],
    ]  # fmt: skip
    other = windows[random.integers(len(windows))]
    row = numbers(random, (16,), str(one.dtype))
    repeated = np.broadcast_to(row, (5, 16))
    a: Arrays = {f"{at}.w": one, f"{at}.r": repeated}
    b: Arrays = {f"{at}.w": other, f"{at}.r": repeated.copy()}
    return Module(a, b, is_shared=True) if random.random() < 0.5 else Module(b, a, is_shared=True)


@kind("transposed windows")
def _transposed(random: Random, at: str) -> Module:
    """A transpose that is a window on the same storage order, under the same name or another one."""
    one = numbers(random, (32, int(random.choice([34, 40]))), a_type(random, TYPES[:4]))
    return Module({f"{at}.w": one}, {f"{at}.{random.choice(['w', 'v'])}": one.copy().T}, is_shared=True)


@kind("quantised")
def _quantised(random: Random, at: str) -> Module:
    """A quantised tensor of torch's: the same, with another scale, or with other numbers."""
    one, scale = numbers(random, (6, 8), str(random.choice(["int8", "uint8"]))), float(random.choice([0.5, 0.1]))
    which, other = int(random.integers(3)), one.copy()
    other[2, 3] ^= which == 1
    old, new = (one, scale), (other, 2 * scale if which == 2 else scale)
    objects = ({f"{at}.q": old}, {f"{at}.q": new})
    return Module({f"{at}.w": np.ones(3, "f4")}, {f"{at}.w": np.ones(3, "f4")}, keeps=which == 0, objects=objects)


@kind("objects")
def _objects(random: Random, at: str) -> Module:
    """A number beside the tensors: the same or another one, or none."""
    one, old = numbers(random, (4, 16)), int(random.integers(9))
    new = [old, old + 1, None][random.integers(3)]
    objects = ({f"{at}.epoch": old}, {} if new is None else {f"{at}.epoch": new})
    return Module({f"{at}.w": one}, {f"{at}.w": one}, keeps=new == old, objects=objects)
