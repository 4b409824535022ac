"""Quantised tensors: packed weights have no meaning without their scales, so both are compared together.

Equal packed weights with different scales are different weights.  So packed weights count as equal only if everything
that belongs to them is equal, too.

What belongs together follows from structure, since every quantiser uses words of its own.  Packed weights are integers
of up to four bytes, floats of one byte and types of a few bits, but not indexes, masks or booleans.  Tensors whose last
word names a scale (`scale`, `zero`, `absmax`, ...) belong to them if they are

    beside them           m.weight   m.weight_scale, m.w_scale, m.scale_weight     m.weight._data   m.weight._scale
    below them            m.weight   m.weight.absmax, and then everything else there
    in a module of theirs m.weight   m.weight_quantizer._scale

If one module has several packed tensors, a scale belongs to those that its name has most in common with: `w1_scale` to
`w1`, `layer1_scale` to `layer1_weight`, `scale_ih_l0` to `weight_ih_l0`; otherwise to all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DType
from paramtool.model.match import Equal
from paramtool.model.view import View
from paramtool.passes.dedup.candidates import Candidate

SCALES = ("scale", "zero", "absmax", "amax", "quant_map", "codebook")
"""The last word of a scale's name contains one of these."""
SCALE_ENDS = ("scb", "s", "zp", "lut")
"""Shorter words for a scale, which are the whole word or follow a `_`: bitsandbytes' SCB, Marlin's `s`."""
FURTHER = ("biases", "g_idx", "shape", "qbias")
"""Further words that belong to packed weights with scales, whole or after a `_`: MLX, GPTQ, compressed-tensors."""
PACKED = ("qweight", "weight_packed", "W_q")
"""Names of packed weights of any type: HQQ may write them as floats."""
WEIGHTS = ("weight", "kernel")
"""Names of packed weights if they are integers of any size."""
INDEXES = {"id", "ids", "idx", "index", "indices", "indexes", "mask", "masks", "position", "positions"}
INDEXES |= {"length", "lengths", "count", "counts", "step"}
"""Parts of the names of integers that are not weights."""
MOST = 16
"""If a scale has equally much in common with more packed tensors than this, it belongs to none of them."""

Label = tuple[str, ...]
Groups = Mapping[str, Mapping[str, Label]]
"""{packed weights: {a tensor that belongs to them: its name relative to theirs}}"""


def groups(entries: Mapping[str, Entry]) -> dict[str, dict[str, Label]]:
    """{packed weights: {a tensor that belongs to them: its name relative to theirs}}, for those that have scales."""
    found: dict[str, dict[str, Label]] = {}
    beside = _Packed(name for name, entry in entries.items() if _is_packed(name, entry))
    if not beside.names:
        return {}
    further: list[tuple[str, str]] = []
    for name in entries:
        if above := beside.above(name):
            if _is_scale(_split(name)[1]):
                found.setdefault(above, {})[name] = _words(name[len(above) :])
            else:
                further.append((name, above))
        elif name in beside.names:
            continue
        elif _is_scale(_split(name)[1]):
            for other in beside.nearest(name):
                found.setdefault(other, {})[name] = _label(name, other)
        elif _ends(_split(name)[1].lower(), FURTHER):
            further += ((name, other) for other in beside.nearest(name))
    for name, other in further:
        if other in found:
            found[other][name] = _label(name, other)
    return found


class _Packed:
    """Packed weights by module, and by how the last words of their names begin and end."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self._in: dict[str, list[str]] = {}
        self._alike: dict[tuple[str, str, Label], list[str]] = {}
        for name in sorted(self.names):
            module, word = _split(name)
            self._in.setdefault(module, []).append(name)
            words = _words(word)
            for k in range(1, len(words) + 1):
                self._alike.setdefault((module, "begins", words[:k]), []).append(name)
                self._alike.setdefault((module, "ends", words[-k:]), []).append(name)

    def above(self, name: str) -> str | None:
        """The packed weights whose name is a parent of this name."""
        module = _split(name)[0]
        while module:
            if module in self.names:
                return module
            module = _split(module)[0]
        return None

    def nearest(self, name: str) -> Sequence[str]:
        """The packed weights that a tensor beside them, or in a module named after them, belongs to."""
        module, word = _split(name)
        if module not in self._in:
            start = len(module) - len(_split(module)[1])
            return [one for k in range(start, len(module)) if module[k] == "_" and (one := module[:k]) in self.names]
        words = tuple(part for part in _words(word) if not _is_scale(part))
        for k in range(len(words), 0, -1):
            alike = {
                *self._alike.get((module, "begins", words[:k]), ()),
                *self._alike.get((module, "ends", words[-k:]), ()),
            }
            if alike:
                return sorted(alike) if len(alike) <= MOST else ()
        return self._in[module] if len(self._in[module]) <= MOST else ()


def _split(name: str) -> tuple[str, str]:
    """(module, last word) of a name with dots or slashes."""
    at = max(name.rfind("."), name.rfind("/"))
    return name[: max(at, 0)], name[at + 1 :]


@lru_cache(4096)
def _words(text: str) -> Label:
    return tuple(part for part in re.split(r"[._/]", text) if part)


def _label(name: str, packed: str) -> Label:
    """A name relative to that of its packed weights, so that modules with different names can be compared."""
    known = _words(_split(packed)[1])
    return tuple(word for word in _words(_split(name)[1]) if word not in known)


@lru_cache(4096)
def _is_scale(word: str) -> bool:
    word = word.lower()
    return any(part in word for part in SCALES) or _ends(word, SCALE_ENDS)


def _ends(word: str, ends: Iterable[str]) -> bool:
    return any(word == end or word.endswith(f"_{end}") for end in ends)


def _is_packed(name: str, entry: Entry) -> bool:
    """Whether a tensor could be packed weights: by its type, unless its name says otherwise."""
    word = _split(name)[1]
    if not isinstance(entry.value, View) or _is_scale(word) or _ends(word.lower(), FURTHER):
        return False
    if word in PACKED or (word in WEIGHTS and "int" in entry.value.dtype.name):
        return True
    return _has_few_bits(entry.value.dtype) and INDEXES.isdisjoint(_words(word.lower()))


def _has_few_bits(dtype: DType) -> bool:
    if dtype.block_elements != 1 or dtype.block_bytes == 1:
        return dtype.name != "bool"
    return "int" in dtype.name and dtype.block_bytes <= 4


def parts(found: Groups) -> set[str]:
    """The names of packed weights with scales, and of everything that belongs to them."""
    return {*found, *(name for others in found.values() for name in others)}


def packed(entries: Mapping[str, Entry]) -> set[str]:
    """The names of packed weights: integers and one-byte floats that have no meaning without the scales beside them."""
    found = {name: entries[name].value for name in parts(groups(entries))}
    return {n for n, v in found.items() if isinstance(v, View) and ("int" in v.dtype.name or v.dtype.block_bytes == 1)}


def scales_of(checkpoint: Checkpoint, packed: Groups, found: Collection[Candidate]) -> list[Candidate]:
    """The tensors that belong to packed weights and are too small to be candidates by themselves."""
    known = {one.name for one in found}
    small = []
    for name in parts(packed) - known:
        value = checkpoint.entries[name].value
        if isinstance(value, View) and value.numel:
            small.append(Candidate(name, value, checkpoint.entries[name].role, False))
    order = {name: k for k, name in enumerate(checkpoint.entries)}
    return sorted(small, key=lambda one: order[one.name])


def whole(
    entries: Mapping[str, Entry], packed: Groups, equal: Iterable[Equal], small: Iterable[Candidate]
) -> list[Equal]:
    """The classes of equal names, split where scales of packed weights differ, and without those in `small`."""
    classes = list(equal)
    class_of = {_window(entries[name]): k for k, one in enumerate(classes) for name in one.names}

    def content(name: str) -> str:
        window = _window(entries[name])
        return str(class_of.get(window, window))

    signature: dict[str, list[object]] = {}
    for name, others in packed.items():
        mark = (content(name), sorted((label, content(other)) for other, label in others.items()))
        for part in (name, *others):
            signature.setdefault(part, []).append(mark)
    left_out = {one.name for one in small}
    return [part for one in classes for part in _apart(one, signature, left_out)]


def _window(entry: Entry) -> str:
    """A string that is the same for two names exactly if they have the same window."""
    return repr(entry.value)


def _apart(one: Equal, signature: Mapping[str, object], left_out: Collection[str]) -> Iterator[Equal]:
    alike: dict[str, list[str]] = {}
    for name in one.names:
        if name not in left_out:
            alike.setdefault(repr(signature.get(name)), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            yield replace(one, names=tuple(names))
