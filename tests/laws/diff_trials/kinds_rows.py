"""Maps without a table: rows, columns and axes in other places, joined, split and mixed, and what nearly is one."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from tests.laws.diff_trials.pairs import Array, Module, Random, a_type, kind, numbers

ROWS = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "float8_e4m3fn", "complex64")


def matrix(random: Random, rows: int = 0, width: int = 0, of: str = "") -> Array:
    """A matrix, or a stack of matrices, whose rows have 32 bytes and more."""
    of = of or a_type(random, ROWS)
    return numbers(random, (rows or int(random.integers(5, 24)), width or int(random.choice([32, 36, 48]))), of)


def stack(random: Random, rows: int = 0) -> Array:
    """An array of two to four axes, whose rows along the first one have 32 bytes and more."""
    inner = [(32,), (36,), (3, 16), (16, 3), (4, 3, 3), (2, 4, 8)][random.integers(6)]
    return numbers(random, (rows or int(random.integers(4, 16)), *inner), a_type(random, ROWS[:4]))


@kind("rows")
def _rows(random: Random, at: str) -> Module:
    """In any order, or blocks of them."""
    one = stack(random, 12)
    size = int(random.choice([1, 2, 3, 4]))
    order = np.concatenate([np.arange(k * size, k * size + size) for k in random.permutation(12 // size)])
    return Module({f"{at}.w": one}, {f"{at}.w": one[order]})


@kind("joined")
def _joined(random: Random, at: str) -> Module:
    """Two to four tensors one below the other, in any order."""
    width, of = int(random.choice([32, 40])), a_type(random, ROWS)
    every = {f"{at}.{name}.weight": matrix(random, 0, width, of) for name in "xyzu"[: random.integers(2, 5)]}
    order = random.permutation(len(every))
    return Module(every, {f"{at}.mixed.weight": np.concatenate([[*every.values()][k] for k in order])})


@kind("split")
def _split(random: Random, at: str) -> Module:
    whole = stack(random, 12)
    cuts = sorted(random.choice(np.arange(1, 12), random.integers(1, 4), replace=False))
    parts = np.split(whole, cuts)
    return Module({f"{at}.mixed.weight": whole}, {f"{at}.{k}.weight": part.copy() for k, part in enumerate(parts)})


@kind("rows mixed")
def _mixed(random: Random, at: str) -> Module:
    """The rows of two tensors of two modules, dealt to two others."""
    one, two = matrix(random, 10, 32, "float32"), matrix(random, 14, 32, "float32")
    rows = random.permutation(np.concatenate([one, two]))
    cut = int(random.integers(1, 23))
    a = {f"{at}.x.weight": one, f"{at}.y.weight": two}
    return Module(a, {f"{at}.u.weight": rows[:cut].copy(), f"new.{at}.v.weight": rows[cut:].copy()})


@kind("transposed")
def _transposed(random: Random, at: str) -> Module:
    one = matrix(random, int(random.choice([32, 40])))
    return Module({f"{at}.w": one}, {f"{at}.w" if random.random() < 0.5 else f"{at}.v": one.T.copy()})


@kind("negated")
def _negated(random: Random, at: str) -> Module:
    one = matrix(random, of=str(random.choice(["float16", "float32", "float64", "bfloat16"])))
    rows = random.permutation(len(one)) if random.random() < 0.5 else slice(None)
    return Module({f"{at}.w": one}, {f"{at}.w": -one[rows]})


@kind("rows cast")
def _rows_cast(random: Random, at: str) -> Module:
    """Rows in another order and in a wider type."""
    one = matrix(random, 12, 32, "float16")
    return Module({f"{at}.w": one}, {f"{at}.w": one[random.permutation(12)].astype("f4")})


@kind("columns")
def _columns(random: Random, at: str) -> Module:
    """Columns in another order, joined or split, of a matrix or along an inner axis."""
    inner = () if random.random() < 0.7 else (3,)
    one, two = (numbers(random, (12, count, *inner), a_type(random, ("float32", "float64"))) for count in (32, 16))
    two = two.astype(one.dtype)
    match random.integers(3):
        case 0:
            a, b = {f"{at}.w": one}, {f"{at}.w": one[:, random.permutation(32)]}
        case 1:
            a, b = {f"{at}.x": one, f"{at}.y": two}, {f"{at}.w": np.concatenate([one, two], 1)}
        case _:
            a, b = {f"{at}.w": one}, {f"{at}.x": one[:, :20].copy(), f"{at}.y": one[:, 20:].copy()}
    return Module(a, b)


@kind("axes")
def _axes(random: Random, at: str) -> Module:
    """The axes of a tensor of three or four in another order."""
    shape = tuple(int(size) for size in random.permutation([4, 5, 8, 12])[: random.integers(3, 5)])
    one = numbers(random, shape)
    orders = [order for order in permutations(range(len(shape))) if order != tuple(range(len(shape)))]
    other = one.transpose(orders[random.integers(len(orders))]).copy()
    return Module({f"{at}.w": one}, {f"{at}.w": other})


@kind("axes backwards")
def _backwards(random: Random, at: str) -> Module:
    """A kernel whose last two axes run backwards: a convolution as a correlation."""
    one = numbers(random, (4, 3, *(int(size) for size in random.integers(2, 5, 2))))
    return Module({f"{at}.w": one}, {f"{at}.w": one[:, :, ::-1, ::-1].copy()})


@kind("vectors")
def _vectors(random: Random, at: str) -> Module:
    """Vectors joined to a longer one, or split, in runs of 64 bytes and more."""
    of = a_type(random, ROWS[:3])
    every = {f"{at}.{name}.bias": numbers(random, (int(random.integers(32, 60)),), of) for name in "xyz"}
    order = random.permutation(3)
    one = Module(every, {f"{at}.mixed.bias": np.concatenate([[*every.values()][k] for k in order])})
    return one if random.random() < 0.5 else one.turned()


@kind("short rows")
def _short_rows(random: Random, at: str) -> Module:
    """Matrices of rows of fewer than 32 bytes, joined along either axis."""
    one, two = (numbers(random, (int(random.choice([40, 60])), 3), "float32") for _ in range(2))
    axis = 0 if len(one) != len(two) else int(random.integers(2))
    return Module({f"{at}.x": one, f"{at}.y": two}, {f"{at}.w": np.concatenate([one, two], axis)})


@kind("elements of a vector")
def _vector(random: Random, at: str) -> Module:
    """A vector in another order: no row of it can be looked for."""
    one = numbers(random, (48,))
    return Module({f"{at}.w": one}, {f"{at}.w": random.permutation(one)}, keeps=None)


@kind("copies of rows")
def _copies(random: Random, at: str) -> Module:
    """Rows of which some are equal, such as those of padding, in another order: in one tensor, split or joined."""
    one = matrix(random, int(random.integers(16, 40)))
    one = one[random.integers(0, len(one), len(one))]
    one[: random.integers(0, 4)] = 0
    other, half = one[random.permutation(len(one))], len(one) // 2
    match random.integers(3):
        case 0:
            return Module({f"{at}.w": one}, {f"{at}.x": other})
        case 1:
            return Module({f"{at}.w": one}, {f"{at}.x": other[:half], f"{at}.y": other[half:]})
        case _:
            return Module({f"{at}.x": one[:half], f"{at}.y": one[half:]}, {f"{at}.w": other})


@kind("lost row")
def _lost_row(random: Random, at: str) -> Module:
    """A row that is there twice, in the place of another one."""
    one = matrix(random)
    other = one[random.permutation(len(one))]
    other[0] = other[-1]
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=False)


@kind("row of another tensor")
def _other_row(random: Random, at: str) -> Module:
    """All rows are rows of A, and one of A's is gone."""
    one, two = matrix(random, 8, 32, "float32"), matrix(random, 8, 32, "float32")
    other = one.copy()
    other[3] = two[5]
    return Module({f"{at}.x": one, f"{at}.y": two}, {f"{at}.x": other, f"{at}.y": two}, keeps=False)


@kind("rows of other signs")
def _other_signs(random: Random, at: str) -> Module:
    """Some rows are negated and some are not: no map that is looked for."""
    one = matrix(random, 8, 32, "float32")
    other = one[random.permutation(8)]
    other[2:5] *= -1
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=None)


@kind("one element of moved rows")
def _nearly_rows(random: Random, at: str) -> Module:
    one = stack(random, 8)
    other = one[random.permutation(8)]
    raw = other.reshape(-1).view("u1")
    raw[-1 if random.random() < 0.5 else random.integers(raw.size)] ^= 1
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=False)


@kind("bias that follows")
def _bias_follows(random: Random, at: str) -> Module:
    """Rows in another order, and the bias by the same one, or where it was."""
    one, bias = matrix(random, 16, 32, "float32"), numbers(random, (16,))
    if random.random() < 0.3:
        bias[:] = 0
    order = random.permutation(16)
    stays = random.random() < 0.5
    new = bias if stays else bias[order]
    a, b = {f"{at}.w.weight": one, f"{at}.w.bias": bias}, {f"{at}.w.weight": one[order], f"{at}.w.bias": new}
    return Module(a, b, keeps=bool((new == bias[order]).all()))
