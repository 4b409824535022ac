"""Quantised tensors: packed weights mean nothing without their scales, so they are compared together with them.

Equal packed weights with other scales are other weights.  So packed weights count as equal only where everything that
goes with the one equals what goes with the other.

What goes with what follows from structure, since every quantiser has words of its own.  Packed are integers of up to
four bytes, floats of one byte and types of a few bits, but no indexes, masks or truth values.  With them go tensors
whose last word tells of a scale (`scale`, `zero`, `absmax`, ...) and that stand

    beside them           m.weight   m.weight_scale, m.w_scale, m.scale_weight     m.weight._data   m.weight._scale
    below them            m.weight   m.weight.absmax, and then everything else there
    in a module of theirs m.weight   m.weight_quantizer._scale

Where several packed tensors stand in one module, a scale goes with those that its name has most in common with:
`w1_scale` with `w1`, `layer1_scale` with `layer1_weight`, `scale_ih_l0` with `weight_ih_l0`; else with all of them.
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
"""What the last word of a scale's name contains."""
SCALE_ENDS = ("scb", "s", "zp", "lut")
"""Shorter words for a scale, which stand alone or behind a `_`: bitsandbytes' SCB, Marlin's `s`."""
FURTHER = ("biases", "g_idx", "shape", "qbias")
"""Also with packed weights that have scales, as such words or behind a `_`: MLX, GPTQ, compressed-tensors."""
PACKED = ("qweight", "weight_packed", "W_q")
"""Packed weights whatever their type is: HQQ may write them as floats."""
WEIGHTS = ("weight", "kernel")
"""Packed weights where they are integers of any size."""
INDEXES = {"id", "ids", "idx", "index", "indices", "indexes", "mask", "masks", "position", "positions"}
INDEXES |= {"length", "lengths", "count", "counts", "step"}
"""Parts of names of integers that are no weights."""
MOST = 16
"""A scale that has as much in common with more packed tensors than this goes with none of them."""

Label = tuple[str, ...]
Groups = Mapping[str, Mapping[str, Label]]
"""{packed weights: {what goes with them: what that is called beside them}}"""


def groups(entries: Mapping[str, Entry]) -> dict[str, dict[str, Label]]:
    """{packed weights: {what goes with them: what that is called beside them}}, of those that have scales."""
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
    """Packed weights by their modules, and by how the last words of their names begin and end."""

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
        """The packed weights that a name stands below."""
        module = _split(name)[0]
        while module:
            if module in self.names:
                return module
            module = _split(module)[0]
        return None

    def nearest(self, name: str) -> Sequence[str]:
        """The packed weights that something beside them goes with, or in a module that is called after them."""
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
    """What a name says beyond that of the packed weights, so that modules of other names can be compared."""
    known = _words(_split(packed)[1])
    return tuple(word for word in _words(_split(name)[1]) if word not in known)


@lru_cache(4096)
def _is_scale(word: str) -> bool:
    word = word.lower()
    return any(part in word for part in SCALES) or _ends(word, SCALE_ENDS)


def _ends(word: str, ends: Iterable[str]) -> bool:
    return any(word == end or word.endswith(f"_{end}") for end in ends)


def _is_packed(name: str, entry: Entry) -> bool:
    """Whether a tensor could be packed weights, by its type and what its name does not say."""
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
    """The names of packed weights with scales, and of everything that goes with them."""
    return {*found, *(name for others in found.values() for name in others)}


def packed(entries: Mapping[str, Entry]) -> set[str]:
    """The names of packed weights: integers and one-byte floats that mean nothing without the scales beside them."""
    found = {name: entries[name].value for name in parts(groups(entries))}
    return {n for n, v in found.items() if isinstance(v, View) and ("int" in v.dtype.name or v.dtype.block_bytes == 1)}


def scales_of(checkpoint: Checkpoint, packed: Groups, found: Collection[Candidate]) -> list[Candidate]:
    """What goes with packed weights and is too small to be a candidate by itself."""
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
    """Classes of equal names without pairs of packed weights of which anything differs, and without `small` ones."""
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
    """What two names of one window have in common and no others have."""
    return repr(entry.value)


def _apart(one: Equal, signature: Mapping[str, object], left_out: Collection[str]) -> Iterator[Equal]:
    alike: dict[str, list[str]] = {}
    for name in one.names:
        if name not in left_out:
            alike.setdefault(repr(signature.get(name)), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            yield replace(one, names=tuple(names))
