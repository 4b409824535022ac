"""Random pairs of checkpoints whose truth is known, judged by NumPy alone: `python -m tests.laws.diff_trials 100000`.

A verdict is false if
  - `same`, `renamed`, `layout` or `cast` is said of a tensor with elements that the tensors named do not have,
    or of bytes that are other ones (for `same` and `renamed`: any byte; for `cast`: any number),
  - `is_same()` is said of a pair in which something was lost or changed,
  - what was planted (a rename, a layout, a cast) is said to be changed, undecided, only in A or only in B.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from paramtool.commands.diff import Diffed, diff

Array = np.ndarray
Arrays = dict[str, Array]
KEEPS = ("same", "renamed", "transposed", "in turn", "joined", "split", "rows", "qkv", "cast", "negated", "chunk")
LOSES = ("rounded", "changed", "one bit", "removed", "added", "shuffled elements", "lost row", "unrelated")
TYPES = ("f4", "f2", "f8", "i4")


class Trial(NamedTuple):
    """Two checkpoints, and what is true of them."""

    a: Arrays
    b: Arrays
    planted: Mapping[str, str]
    """{tensor of B: what was done}"""

    @property
    def keeps(self) -> bool:
        """Whether B has the same weights."""
        return all(kind in KEEPS for kind in self.planted.values())


def trial(seed: int) -> Trial:
    """A pair of one to three modules."""
    random = np.random.default_rng(seed)
    a: Arrays = {}
    b: Arrays = {}
    planted: dict[str, str] = {}
    for number in range(int(random.integers(1, 4))):
        kind = str(random.choice(KEEPS + LOSES))
        old, new = _module(random, kind, f"layers.{number}")
        a |= old
        b |= new
        planted |= dict.fromkeys(new or old, kind)
    return Trial(a, b, planted)


def _module(random: np.random.Generator, kind: str, at: str) -> tuple[Arrays, Arrays]:
    """The tensors of one module before and after."""
    width = int(random.choice([16, 24, 32]))  # rows, and columns, of 32 bytes and more are looked for
    heads, size = int(random.choice([4, 8])), int(random.choice([4, 5]))
    dtype = "f4" if kind in ("cast", "rounded", "negated") else str(random.choice(TYPES))

    def real(rows: int) -> Array:
        return (random.normal(size=(rows, width)) * 1000).astype(dtype)

    rows = heads * size
    one, two, three = real(rows), real(rows), real(rows)
    old = {f"{at}.q_proj.weight": one, f"{at}.k_proj.weight": two, f"{at}.v_proj.weight": three}
    first = {f"{at}.w.weight": one}
    name = f"{at}.w.weight"
    turn = np.stack([one, two], 1).reshape(-1, width)
    per_head = np.concatenate([x.reshape(heads, size, width) for x in (one, two, three)], 1).reshape(-1, width)
    match kind:
        case "same":
            return first, dict(first)
        case "renamed":
            return first, {f"other.{at}.weight": one}
        case "transposed":
            return first, {name: one.T}
        case "negated":
            return first, {name: -one}
        case "in turn":
            return {f"{at}.gate_proj.weight": one, f"{at}.up_proj.weight": two}, {f"{at}.gate_up_proj.weight": turn}
        case "joined":
            return old, {f"{at}.mixed.weight": np.concatenate([three, one, two])}
        case "split":
            return {f"{at}.mixed.weight": np.concatenate([one, two])}, {f"{at}.x.weight": one, f"{at}.y.weight": two}
        case "rows":
            return first, {name: one[random.permutation(rows)]}
        case "qkv":
            return old, {f"{at}.query_key_value.weight": per_head}
        case "chunk":
            return {f"{at}.query_key_value.weight": per_head}, old
        case "cast":
            return first, {name: one.astype("f8")}
        case "rounded":
            return first, {name: one.astype("f2")}
        case "changed":
            return first, {name: (one + np.asarray(random.integers(1, 9, one.shape), dtype)).astype(dtype)}
        case "one bit":
            spoilt = per_head.copy()
            flat = spoilt.view("u1").reshape(-1)
            flat[random.integers(flat.size)] ^= 1 << random.integers(8)
            return old, {f"{at}.query_key_value.weight": spoilt}
        case "shuffled elements":
            return first, {name: random.permutation(one.reshape(-1)).reshape(one.shape)}
        case "lost row":
            spoilt = one.copy()
            spoilt[0] = spoilt[-1]
            return first, {name: spoilt}
        case "removed":
            return first, {}
        case "added":
            return {}, first
        case _:
            return first, {name: real(rows)}


def compared(place: Path, one: Trial) -> Diffed:
    """What `diff` says."""
    for side, arrays in (("a", one.a), ("b", one.b)):
        save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, place / f"{side}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors")


def faults(one: Trial, found: Diffed) -> list[str]:
    """The false verdicts."""
    told = []
    if found.is_same() != one.keeps:
        told.append(f"is_same() is {found.is_same()}")
    seen = Counter(name for each in found.tensors for name in each.b)
    if seen != Counter(one.b.keys()):
        told.append("not one verdict for each tensor of B")
    for each in found.tensors:
        for name in each.b:
            olds = [one.a[old] for old in each.a]
            if not _is_true(each.kind, olds, one.b[name]):
                told.append(f"{each.kind} of {name!r}, which was {one.planted[name]}")
            if one.planted[name] in KEEPS and each.kind in ("changed", "undecided", "added", "rounded"):
                told.append(f"{each.kind} of {name!r}, which was {one.planted[name]}")
    return told


def _is_true(kind: str, olds: list[Array], new: Array) -> bool:
    """What a verdict says of the numbers, by NumPy."""
    if kind in ("same", "renamed"):
        return (
            len(olds) == 1 and olds[0].shape == new.shape and olds[0].tobytes() == np.ascontiguousarray(new).tobytes()
        )
    if kind == "layout":
        there = Counter(_elements(new))
        here = sum((Counter(_elements(old)) for old in olds), Counter())
        negated = sum((Counter(_elements(-old)) for old in olds), Counter())
        return all(here[key] for key in there) or all(negated[key] for key in there)
    if kind == "cast":
        return len(olds) == 1 and bool((olds[0].astype("f8") == new.astype("f8")).all())
    if kind == "changed":
        return len(olds) != 1 or olds[0].shape != new.shape or olds[0].tobytes() != np.ascontiguousarray(new).tobytes()
    return True


def _elements(array: Array) -> list[bytes]:
    size = array.dtype.itemsize
    raw = np.ascontiguousarray(array).tobytes()
    return [raw[k : k + size] for k in range(0, len(raw), size)]


def main(count: int, start: int = 0) -> int:
    """Runs trials, and prints counts; the number of those with a false verdict."""
    kinds: Counter[str] = Counter()
    wrong = modules = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + count):
            one = trial(seed)
            found = compared(Path(folder), one)
            modules += len({name.split("layers.")[1].split(".")[0] for name in (*one.a, *one.b)})
            kinds.update(each.kind for each in found.tensors)
            if told := faults(one, found):
                wrong += 1
                print(f"seed {seed}: {'; '.join(told)}", flush=True)
    print(f"{count} pairs of {modules} modules, {wrong} with a false verdict; verdicts: {dict(kinds)}")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
