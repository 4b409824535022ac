"""What is done to the names of tensors: renames, exchanges, copies, constants, tensors that come and go."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.laws.diff_trials.kinds_values import a_shape
from tests.laws.diff_trials.pairs import FLOATS, TYPES, Array, Module, Random, a_type, dtype, kind, numbers, same_bytes

LARGE = 64
"""Bytes of a tensor that is found under another name without others."""


def large(random: Random, of: str = "") -> Array:
    """A tensor of at least 64 bytes, whose elements differ."""
    of = of or a_type(random)
    return numbers(random, a_shape(random, LARGE), of)


@kind("renamed")
def _renamed(random: Random, at: str) -> Module:
    one = large(random)
    return Module({f"{at}.w": one}, {f"other.{at}.weight": one})


@kind("renamed and tiny")
def _tiny(random: Random, at: str) -> Module:
    """Fewer than 64 bytes, or none, and nothing shows the rename."""
    one = numbers(random, [(), (3,), (2, 2), (0, 4), (1,)][random.integers(5)])
    return Module({f"{at}.w": one}, {f"other.{at}.v": one}, is_found=False, is_found_back=False)


@kind("prefix renamed")
def _prefix(random: Random, at: str) -> Module:
    """A matrix shows the rename of what is too small, or repeats one element."""
    tensors = {"w.weight": large(random), "w.bias": numbers(random, (3,)), "norm.weight": np.ones(24, "f4"),
               "norm.bias": np.zeros(24, "f4"), "step": np.asarray(random.integers(99))}  # fmt: skip
    return Module(*({f"{head}{at}.{name}": one for name, one in tensors.items()} for head in ("", "model.")))


@kind("fresh, of another framework")
def _fresh(random: Random, at: str) -> Module:
    """Matrices of a framework that calls them by other words, transposed or not, beside its biases of zeros."""
    words = [("kernel", "bias"), ("weight", "bias"), ("w", "b"), ("vars/0", "vars/1")]
    (old, old_bias), (new, new_bias) = (words[k] for k in random.permutation(len(words))[:2])
    one, bias = numbers(random, (int(random.integers(5, 20)), 16)), np.zeros(16, "f4")
    place, other = f"{at}/Dense_0".replace(".", random.choice([".", "/"])), f"{at}.fc"
    if random.random() < 0.5:
        other = f"net.{10 * int(at.rpartition('.')[2]) + random.integers(9)}"
    turned = one.T if random.random() < 0.7 else one
    changed = bias + 1 if random.random() < 0.3 else bias
    a, b = (
        {f"{place}/{old}": one, f"{place}/{old_bias}": bias},
        {f"{other}.{new}": turned, f"{other}.{new_bias}": changed},
    )
    return Module(a, b, keeps=changed is bias)


@kind("attention of another framework")
def _attention(random: Random, at: str) -> Module:
    """Flax's kernels [in, heads, head_dim] and biases [heads, head_dim], beside rows of torch, apart or in one matrix.

    The biases are zeros or numbers; one element of one of them may be another.
    """
    heads, size, width = (int(random.integers(*bounds)) for bounds in ((1, 5), (2, 7), (8, 20)))
    place, is_zero, is_fused = f"{at}/attn", random.random() < 0.7, random.random() < 0.5
    a: dict[str, Array] = {}
    weights, biases = [], []
    for name in ("query", "key", "value"):
        kernel = numbers(random, (width, heads, size))
        bias = np.zeros((heads, size), "f4") if is_zero else numbers(random, (heads, size))
        a |= {f"{place}/{name}/kernel": kernel, f"{place}/{name}/bias": bias}
        weights.append(kernel.reshape(width, -1).T)
        biases.append(bias.reshape(-1).copy())
    keeps = bool(random.random() < 0.7)
    if not keeps:
        biases[random.integers(3)][random.integers(heads * size)] += 1
    if is_fused:
        b = {f"{at}.net.in_proj_weight": np.concatenate(weights), f"{at}.net.in_proj_bias": np.concatenate(biases)}
    else:
        b = {f"{at}.net.{name}_proj.weight": one for name, one in zip("qkv", weights, strict=True)}
        b |= {f"{at}.net.{name}_proj.bias": one for name, one in zip("qkv", biases, strict=True)}
    one = Module(a, b, keeps=keeps)
    return one if random.random() < 0.5 else one.turned()


@kind("partly renamed")
def _partly(random: Random, at: str) -> Module:
    one, two, three = large(random), large(random), large(random)
    a = {f"{at}.q.w": one, f"{at}.k.w": two, f"{at}.v.w": three}
    return Module(a, {f"{at}.q.w": one, f"{at}.key.w": two, f"{at}.v.w": three})


@kind("taken twice")
def _taken_twice(random: Random, at: str) -> Module:
    """Two tensors made of one by the same map, or of two that are equal."""
    of = random.choice(FLOATS)
    one = numbers(random, (int(random.integers(8, 20)), int(random.integers(33, 50))), of)
    way = int(random.integers(3))
    if way == 0:
        made = one.T
    elif way == 1:
        made = one[random.permutation(len(one))[:: random.choice([1, -1])]]
        if same_bytes(made, one):
            made = one[::-1]
    else:
        one = numbers(random, (96,), of)
        made = np.concatenate([one[32:], one[:32]])
    count = int(random.integers(1, 3))
    a = {f"{at}.{k}.w": one.copy() for k in range(count)}
    return Module(a, {f"{at}.{name}": made.copy() for name in ("p", "q")}, keeps=count == 2, is_found=way != 2)


@kind("exchanged")
def _exchanged(random: Random, at: str) -> Module:
    """Two or three tensors of one shape under each other's names."""
    count, shape, of = int(random.integers(2, 4)), a_shape(random, LARGE), a_type(random)
    every = [numbers(random, shape, of) for _ in range(count)]
    names = [f"{at}.{name}_proj.weight" for name in "qkv"[:count]]
    return Module(dict(zip(names, every, strict=True)), dict(zip(names, every[1:] + every[:1], strict=True)), False)


@kind("exchanged between layers")
def _layers(random: Random, at: str) -> Module:
    """A tensor of one layer under the name of the same one of another layer, and the other way round or not."""
    names = ("attn.q_proj.weight", "attn.qkv_proj.weight", "mlp.gate_up_proj.weight", "mixer.in_proj.weight", "w.bias")
    name, shape = str(random.choice(names)), (int(random.choice([6, 16, 48])), 32)
    one, two, three = (numbers(random, shape) for _ in range(3))
    a = {f"{at}.h.{k}.{name}": tensor for k, tensor in enumerate((one, two, three))}
    b = [one, three, two] if random.random() < 0.7 else [one, one, three]
    return Module(a, dict(zip(a, b, strict=True)), keeps=False)


@kind("under a name that was another's")
def _taken(random: Random, at: str) -> Module:
    """q is called k, and k is gone."""
    shape, of = a_shape(random, LARGE), a_type(random)
    one, two = numbers(random, shape, of), numbers(random, shape, of)
    return Module({f"{at}.q.w": one, f"{at}.k.w": two}, {f"{at}.k.w": one}, keeps=False)


@kind("copies")
def _copies(random: Random, at: str) -> Module:
    """Tensors of the same bytes: all stay, all are renamed, one goes, one comes."""
    one = large(random)
    names = [f"{at}.{name}" for name in ("x.w", "y.w")]
    old = {name: one.copy() for name in names}
    match random.integers(4):
        case 0:
            return Module(old, {name: one.copy() for name in names})
        case 1:
            return Module(old, {f"new.{name}": one.copy() for name in names})
        case 2:
            return Module(old, {names[0]: one}, keeps=False)
        case _:
            return Module(old, {**old, f"{at}.z.w": one}, keeps=False)


@kind("constants")
def _constants(random: Random, at: str) -> Module:
    """Zeros or ones that stay, change, or change their sign, beside a matrix that stays."""
    of = a_type(random, FLOATS)
    value = float(random.choice([0, 1]))
    shape = ((16,), (40,), (4, 16))[random.integers(3)]
    full = partial(np.full, dtype=dtype(of))
    a = {f"{at}.w": numbers(random, (8, 16)), f"{at}.c": full(shape, value)}
    wrong = [full(shape, -value), full(shape, 1 - value), full((*shape[:-1], shape[-1] + 1), value)]
    which = int(random.integers(4))
    return Module(a, {**a, f"{at}.c": a[f"{at}.c"] if which == 3 else wrong[which]}, keeps=which == 3)


@kind("removed")
def _removed(random: Random, at: str) -> Module:
    return Module({f"{at}.w": large(random)}, {}, keeps=False)


@kind("added")
def _added(random: Random, at: str) -> Module:
    return Module({}, {f"{at}.w": large(random)}, keeps=False)


@kind("no elements")
def _empty(random: Random, at: str) -> Module:
    """A tensor without elements: the same, of another shape, or of another type."""
    shapes = [(0,), (0, 4), (3, 0, 2)]
    one = np.zeros(shapes[random.integers(3)], dtype(a_type(random, TYPES)))
    other = np.zeros(shapes[random.integers(3)], one.dtype)
    return Module({f"{at}.w": one}, {f"{at}.w": other}, keeps=True if one.shape == other.shape else None)
