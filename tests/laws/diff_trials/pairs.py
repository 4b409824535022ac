"""Pairs of checkpoints, and what is true of them: plain data of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Random = np.random.Generator
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
OTHERS = ("bool", "float8_e4m3fn", "float8_e5m2", "complex64")
TYPES = (*FLOATS, *INTEGERS, *OTHERS)


class Planted(NamedTuple):
    """Parts that a module holds in a layout of attention, gated MLPs, experts or state spaces."""

    parts: Mapping[str, Any]
    """{term: the name of its tensor, or one for each expert}"""
    sizes: Mapping[str, int]
    side: int | None
    """Whether A or B has the parts, 0 or 1; None if neither."""
    moved: Mapping[str, str] = {}
    """{term: the name of the tensor that is this part with its rows in another order}, of layouts that join nothing."""


class Module(NamedTuple):
    """Some tensors of two checkpoints, and what is true of them."""

    a: Arrays
    b: Arrays
    keeps: bool | None = True
    """Whether B holds the weights of A, in the words of docs/diff.md; None where either answer is true."""
    is_found: bool = True
    """Whether docs/diff.md says that the map from A to B is found."""
    is_found_back: bool = True
    """The same of the map from B to A."""
    planted: Planted | None = None
    is_shared: bool = False
    """Whether arrays that share memory are ties: then both files are torch's."""
    objects: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """What is beside the tensors in torch's files: a number, or a quantised tensor as (numbers, scale)."""

    @property
    def needs_torch(self) -> bool:
        """Whether only torch's files can hold it."""
        wide = any(one.dtype == "complex128" for side in (self.a, self.b) for one in side.values())
        return self.is_shared or any(self.objects) or wide

    def turned(self) -> Module:
        """The same pair with A and B exchanged."""
        found = {"is_found": self.is_found_back, "is_found_back": self.is_found}
        planted = self.planted
        if planted is not None and planted.side is not None:
            planted = planted._replace(side=1 - planted.side)
        return self._replace(a=self.b, b=self.a, objects=self.objects[::-1], planted=planted, **found)


Maker = Callable[[Random, str], Module]
KINDS: dict[str, Maker] = {}
"""{what is done to a module: what makes one of random numbers under a name}"""


def kind(name: str) -> Callable[[Maker], Maker]:
    """The maker of a kind."""

    def add(made: Maker) -> Maker:
        KINDS[name] = made
        return made

    return add


class Pair(NamedTuple):
    """Two checkpoints of some modules."""

    modules: Sequence[tuple[str, Module]]
    """(kind, module)"""
    endings: tuple[str, str]

    @property
    def sides(self) -> tuple[Arrays, Arrays]:
        """The tensors of A and of B."""
        a, b = ({name: one for _, module in self.modules for name, one in module[side].items()} for side in (0, 1))
        return a, b

    @property
    def objects(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is beside them."""
        a, b = (
            {name: one for _, module in self.modules for name, one in module.objects[side].items()} for side in (0, 1)
        )
        return a, b

    @property
    def keeps(self) -> bool | None:
        """Whether B holds the weights of A."""
        every = {module.keeps for _, module in self.modules}
        return False if False in every else None if None in every else True

    def turned(self) -> Pair:
        """A and B exchanged."""
        return Pair([(name, module.turned()) for name, module in self.modules], self.endings[::-1])


def pair(seed: int, kinds: Sequence[str] = ()) -> Pair:
    """One to three modules of random kinds."""
    random = np.random.default_rng(seed)
    chosen = [str(random.choice(kinds or [*KINDS])) for _ in range(random.integers(1, 4))]
    modules = [(name, apart(KINDS[name](random, f"layers.{number}"))) for number, name in enumerate(chosen)]
    endings = [".pt" if random.random() < 0.15 else ".safetensors" for _ in "ab"]
    if any(module.needs_torch for _, module in modules):
        endings = [".pt", ".pt"]
    return Pair(modules, (endings[0], endings[1]))


def apart(module: Module) -> Module:
    """A module whose arrays share memory only if they are ties."""
    if module.is_shared:
        return module
    a, b = ({name: np.array(one, order="C") for name, one in side.items()} for side in (module.a, module.b))
    return module._replace(a=a, b=b)


def dtype(name: str) -> np.dtype[Any]:
    """A type of NumPy's, or of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def a_type(random: Random, names: Sequence[str] = TYPES) -> str:
    """One of some types; half of the time float32."""
    return "float32" if "float32" in names and random.random() < 0.5 else str(random.choice(names))


def numbers(random: Random, shape: Sequence[int], name: str = "float32") -> Array:
    """Random elements of a type: integers of its whole range, floats of three decimal orders."""
    kind_ = dtype(name)
    if kind_.kind == "b":
        return np.asarray(random.integers(0, 2, shape)).astype(kind_)
    if kind_.kind in "iu":
        info = np.iinfo(kind_)
        return np.asarray(random.integers(info.min, info.max, shape, kind_, endpoint=True))
    found = np.asarray(random.normal(size=shape))
    if kind_.kind == "c":
        return (found + 1j * random.normal(size=shape)).astype(kind_)
    return np.asarray(np.clip(found * 100, -400, 400)).astype(kind_)


def bits(array: Array) -> Array:
    """The elements as unsigned integers of their size, complex ones as pairs, in an array of one axis."""
    flat = np.ascontiguousarray(array).reshape(-1)
    size = array.dtype.itemsize
    return flat.view(f"u{size}" if size <= 8 else "u8")


def same_bytes(one: Array, other: Array) -> bool:
    """Whether type, shape and every byte are the same."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bool((bits(one) == bits(other)).all())
