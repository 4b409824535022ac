"""Quantised weights: which tensors of a checkpoint are their codes, and which are their scales, tables and states.

Codes have no meaning without what belongs to them.  Dedup compares both together, casts leave both as they are, and
`inspect` counts the weights that they stand for (`weights_in`).

What belongs together follows from structure, since every quantiser uses words of its own.  Packed weights are integers
of up to four bytes, floats of one byte and types of a few bits, but not indexes, masks or booleans.  Tensors whose last
word names a scale (`scale`, `zero`, `absmax`, ...) belong to them if they are

    beside them           m.weight   m.weight_scale, m.w_scale, m.scale_weight     m.weight._data   m.weight._scale
    below them            m.weight   m.weight.absmax, and then everything else there
    in a module of theirs m.weight   m.weight_quantizer._scale
    in the module above   m.linear.weight   m.weight_scale, m.linear_scale, m.input_scale, m.scale if they lack another

If one module has several packed tensors, a scale belongs to those that its name has most in common with: `w1_scale` to
`w1`, `layer1_scale` to `layer1_weight`, `scale_ih_l0` to `weight_ih_l0`; otherwise to all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from paramtool.model.checkpoint import Compound, Entries, Entry
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import View, Views

SCALES = ("scale", "zero", "absmax", "amax", "quant_map", "codebook")
"""The last word of a scale's name contains one of these."""
SCALE_ENDS = ("scb", "s", "zp", "lut")
"""Shorter words for a scale, which are the whole word or follow a `_`: bitsandbytes' SCB, Marlin's `s`."""
FURTHER = ("biases", "g_idx", "shape", "qbias", "format")
"""Further words that belong to packed weights with scales, whole or after a `_`: MLX, GPTQ, compressed-tensors,
bitsandbytes."""
PACKED = ("qweight", "weight_packed", "W_q")
"""Names of packed weights of any type: HQQ may write them as floats."""
WEIGHTS = ("weight", "kernel")
"""Names of packed weights if they are integers of any size."""
ABSMAX = "absmax"
"""What bitsandbytes has below codes of 4 bits, which it may keep as numbers of any type (`bnb_4bit_quant_storage`)."""
TORCHAO = "_qdata"
"""The end of the name of codes that torchao writes into safetensors, with an entry of the header for their tensor
(prototype/safetensors/safetensors_support.py)."""
OF_OTHERS = ("input_scale", "output_scale", "k_scale", "v_scale")
"""The ends of the names of scales of activations and caches: the weight is the same under others."""
CACHES = ("k_scale", "v_scale")
"""Scales of caches, beside the modules whose weights are quantised: vLLM, compressed-tensors."""
IN_CONFIG = {"quantization_config", "compression_config", "quantization"}
"""What config.json says of codes: transformers, compressed-tensors before 0.5, MLX and ModelOpt."""
INDEXES = {"id", "ids", "idx", "index", "indices", "indexes", "mask", "masks", "position", "positions"}
INDEXES |= {"length", "lengths", "count", "counts", "step"}
"""Parts of the names of integers that are not weights."""
MOST = 16
"""If a scale has equally much in common with more packed tensors than this, it belongs to none of them."""

Label = tuple[str, ...]
Groups = Mapping[str, Mapping[str, Label]]
"""{packed weights: {a tensor that belongs to them: its name relative to theirs}}"""


def groups(entries: Entries) -> dict[str, dict[str, Label]]:
    """{packed weights: {a tensor that belongs to them: its name relative to theirs}}, for those that have scales."""
    found: dict[str, dict[str, Label]] = {}
    beside = _Packed(
        name for name, entry in entries.items() if _is_packed(name, entry) or f"{name}.{ABSMAX}" in entries
    )
    if not beside.names:
        return {}
    further: list[tuple[str, str]] = []
    lone: list[tuple[str, str]] = []
    for name in entries:
        if above := beside.above(name):
            if _is_scale(_split(name)[1]):
                found.setdefault(above, {})[name] = _words(name[len(above) :])
            else:
                further.append((name, above))
        elif name in beside.names:
            continue
        elif inside := beside.inside(name):
            if all(map(_is_scale, _words(_split(name)[1]))):  # such as `scale`, which can be that of attention
                lone += ((name, other) for other in inside)
                continue
            for other in inside:
                found.setdefault(other, {})[name] = _label(name, other)
        elif _is_scale(_split(name)[1]):
            for other in beside.nearest(name):
                found.setdefault(other, {})[name] = _label(name, other)
        elif _ends(_split(name)[1].lower(), FURTHER):
            further += ((name, other) for other in beside.nearest(name))
    for name, other in [one for one in lone if one[1] not in found]:
        found.setdefault(other, {})[name] = _label(name, other)
    for name, other in further:
        if other in found:
            found[other][name] = _label(name, other)
    return found


class _Packed:
    """Packed weights by module, and by how the last words of their names begin and end."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self._in: dict[str, list[str]] = {}
        self._above: dict[str, str | None] = {}
        self._below: dict[str, list[str]] = {}
        self._alike: dict[tuple[str, str, Label], list[str]] = {}
        for name in sorted(self.names):
            module, word = _split(name)
            self._in.setdefault(module, []).append(name)
            self._below.setdefault(_split(module)[0], []).append(name)
            words = _words(word)
            for k in range(1, len(words) + 1):
                self._alike.setdefault((module, "begins", words[:k]), []).append(name)
                self._alike.setdefault((module, "ends", words[-k:]), []).append(name)

    def inside(self, name: str) -> Sequence[str]:
        """The packed weights directly inside a module that has none itself, that the name of a scale in it says."""
        module, word = _split(name)
        if module in self._in or not _is_scale(word):
            return ()
        below, words = self._below.get(module, ()), {one for one in _words(word) if not _is_scale(one)}
        if word in OF_OTHERS or not words:
            return below
        return [one for one in below if words & {*_words(one[len(module) :])}]

    def above(self, name: str) -> str | None:
        """The packed weights whose name is a parent of this name."""
        module = _split(name)[0]
        if module in self.names or not module:
            return module or None
        if module not in self._above:
            self._above[module] = self.above(module)
        return self._above[module]

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


def elements(entries: Entries, bits: int, metadata: Mapping[str, str]) -> dict[str, int | None]:
    """{name: elements of the weight whose codes it has, 0 if it belongs to codes, None where nothing shows them}.

    `bits` are those of a code, 0 if nobody says them; `metadata` that of the file, where torchao says what a tensor is.
    """
    found: dict[str, int | None] = {}
    for name, others in groups(entries).items():
        found |= dict.fromkeys(others, 0)
        if (view := entries[name].value) and isinstance(view, View):
            beside = {_split(other)[1]: one for other in others if isinstance(one := entries[other].value, View)}
            module, word = _split(name)
            said = metadata.get(f"{module}.{word[1:].removesuffix(TORCHAO)}", "") if word.endswith(TORCHAO) else ""
            found[name] = _elements(word, view, beside, bits, said)
    for name, entry in entries.items():
        if isinstance(one := entry.value, Compound) and (one.kind == "quantised" or one.kind.startswith("torchao.")):
            shape = one.facts.get("shape")
            found[name] = prod(shape) if isinstance(shape, tuple) else one.parts["values"].numel
    return found


def _elements(word: str, codes: View, beside: Views, bits: int, said: str) -> int | None:
    """How many elements codes stand for: by their types and the shapes of what belongs to them (`parts/schemes.py`)."""
    width, numel, last = 8 * codes.dtype.block_bytes, codes.numel, codes.shape[-1:] or (1,)
    scale = next((beside[one] for one in ("scales", "scale", f"{word}_scale") if one in beside), None)
    zeros = beside.get("qzeros", beside.get("weight_zero_point"))
    if codes.dtype.block_elements != 1 or codes.dtype.name.startswith("float8"):
        return numel
    if len(codes.shape) < 2:
        return 0  # a flag or a text, as HQQ keeps them
    if ABSMAX in beside:
        bits = 4
    elif word == "W_q":
        if scale is not None and scale.shape[-1:] == (1,):  # HQQ, groups along the inputs of a row
            return scale.numel * last[0]
    elif word == "qweight" and scale is not None:
        out = scale.shape[-1]
        if "g_idx" in beside:
            return out * beside["g_idx"].numel
        bits = 32 * zeros.shape[-1] // out if zeros is not None else bits
    elif word == "weight_packed" and zeros is not None and zeros.dtype.name == "int32":
        bits = 32 * zeros.shape[0] // codes.shape[0]
    elif said:
        bits = 4 if re.search('"(Int4|NVFP4)|float4', said) else width
    elif width == 8 and (
        word in ("weight_packed", "blocks")
        or word.endswith("_blocks")
        or (scale is not None and scale.dtype.name == "float8_e4m3fn" and scale.shape[-1:] == (last[0] // 8,))
    ):
        bits = 4  # MXFP4 and NVFP4
    elif codes.dtype.name in ("int8", "qint8"):
        bits = 8
    return numel * width // bits if bits else None


def is_beside(pattern: str) -> bool:
    """Whether a pattern names what belongs to codes: its last word is that of a scale or a table.

    >>> is_beside("*.weight_scale"), is_beside("h.0.absmax"), is_beside("*.weight*"), is_beside("*")
    (True, True, False, False)
    """
    word = _split(pattern)[1].strip("*")
    return _is_scale(word) or _ends(word.lower(), FURTHER)


@lru_cache(4096)
def _is_scale(word: str) -> bool:
    word = word.lower()
    return any(part in word for part in SCALES) or _ends(word, SCALE_ENDS)


def _ends(word: str, ends: Iterable[str]) -> bool:
    return any(word == end or word.endswith(f"_{end}") for end in ends)


def _is_packed(name: str, entry: Entry) -> bool:
    """Whether a tensor could be packed weights: by its type, unless its name says otherwise."""
    if not isinstance(entry.value, View):
        return False
    few, word = _has_few_bits(entry.value.dtype), _split(name)[1]
    if not (few or word in PACKED or word in WEIGHTS) or _is_scale(word) or _ends(word.lower(), FURTHER):
        return False
    if word in PACKED or (word in WEIGHTS and "int" in entry.value.dtype.name):
        return True
    return few and INDEXES.isdisjoint(_words(word.lower()))


def _has_few_bits(dtype: DType) -> bool:
    if dtype.block_elements != 1 or dtype.block_bytes == 1:
        return dtype.name != "bool"
    return "int" in dtype.name and dtype.block_bytes <= 4


def codes(entries: Entries) -> set[str]:
    """The names of packed weights with scales; where there are none, of all that could be codes of another scheme."""
    few = (n for n, entry in entries.items() if isinstance(entry.value, View) and _has_few_bits(entry.value.dtype))
    return {*groups(entries)} or {*few}


def said(entries: Entries) -> set[str]:
    """Those of which the file says how they are read: FP8, and codes of bitsandbytes and of torchao."""
    return {
        name
        for name, others in groups(entries).items()
        if name.endswith(TORCHAO)
        or any(other.endswith((".SCB", ABSMAX)) for other in others)
        or getattr(entries[name].value, "dtype", DTYPES["int8"]).name.startswith("float8")
    }


def parted(entries: Entries, renamed: Mapping[str, str]) -> tuple[str, str] | None:
    """Packed weights and what belongs to them that {old name: new name} of what stays parts; None where nothing is.

    They stay together where both leave, or where one change of what their names begin with gives the new ones.
    """
    found = groups(entries)
    kept = {other for name, others in found.items() if name in renamed for other in others}
    for name, others in found.items():
        if len(getattr(entries[name].value, "shape", ())) < 2:
            continue  # a flag or a text
        stem, new = name, renamed.get(name, "")
        while stem and new and stem[-1] == new[-1]:
            stem, new = stem[:-1], new[:-1]
        for other in others:
            if name in renamed:
                together = other.startswith(stem) and renamed.get(other) == new + other[len(stem) :]
            else:
                together = other not in renamed or other in kept
            if not (together or other.endswith(CACHES)):
                return name, other
    return None


def parts(found: Groups) -> set[str]:
    """The names of packed weights with scales, and of everything that belongs to them."""
    return {*found, *(name for others in found.values() for name in others)}


def packed(entries: Entries) -> set[str]:
    """The names of packed weights: integers and one-byte floats that have no meaning without the scales beside them."""
    found = {name: entries[name].value for name in parts(groups(entries))}
    return {n for n, v in found.items() if isinstance(v, View) and ("int" in v.dtype.name or v.dtype.block_bytes == 1)}
