"""Maps, judged by NumPy: made anew where their words say all of them, else found line by line or run by run."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from inspect import signature

import numpy as np

from paramtool.commands.diff.diff import Diffed
from paramtool.model.diff import TensorDiff
from tests.laws.diff_trials.kinds_parts import rebuilt
from tests.laws.diff_trials.pairs import Array, Module, Pair, Planted, bits
from tests.parts.references import REFERENCES

MIN_LINE_NBYTES = 32
"""A row or a column that is looked for."""
MIN_RUN_NBYTES = 64
"""A run of elements, or of shorter lines; a whole tensor can be shorter."""
AXES = re.compile(r"as \[|axes [(\d]|transposed(,|$)|reshaped$")
"""How words begin that say all of a map."""


def of_map(one: TensorDiff, olds: list[Array], new: Array) -> Iterator[str]:
    """Elements that are not those of the tensors named; lines or runs that are not theirs, where these were found."""
    is_signed = "negated" in one.how or "with a sign" in one.how
    here = np.concatenate([bits(old) for old in olds] + ([bits(-old) for old in olds] if is_signed else []))
    if "with constants" in one.how:  # biases of zero in a vector of the whole network
        here = np.append(here, here.dtype.type(0))
    if any(old.dtype != new.dtype for old in olds) or not np.isin(bits(new), here).all():
        yield "elements that A does not have"
    elif one.layout or ", as '" in one.how:
        return
    elif AXES.match(one.how):
        if not _are_axes(one.how, olds[0], new):
            yield "other axes"
    elif not (_are_lines(one.how, olds, new) or _are_runs(olds, new)):
        yield "rows, columns or runs that A does not have"


def _are_axes(how: str, old: Array, new: Array) -> bool:
    """Whether a tensor is another one with its axes moved as the words say."""
    made = old
    if shape := re.search(r"as (\[.*?\])", how):
        made = made.reshape(literal_eval(shape[1]))
    if order := re.search(r"axes (\(.*?\))", how):
        axes = literal_eval(order[1])
        made = (made if len(axes) == made.ndim else made.squeeze()).transpose(axes if len(axes) == made.ndim else None)
    elif "transposed" in how:
        made = (made if made.ndim == 2 else made.squeeze()).T
    if turned := re.search(r"axes ([\d, ]+) backwards", how):
        made = np.flip(made, literal_eval(f"({turned[1]},)"))
    return made.size == new.size and bits(made).tobytes() == bits(new).tobytes()


def _are_lines(how: str, olds: list[Array], new: Array) -> bool:
    """Whether the rows of a tensor, or its columns, cut at one of its axes, are rows or columns of others."""
    new = -new if "negated" in how else new
    there = {line.tobytes() for old in olds for cut in _cuts(old) for line in cut}
    return any(
        all(line.tobytes() in there for line in cut)
        for cut in _cuts(new)
        if cut.shape[1] * new.itemsize >= MIN_LINE_NBYTES
    )


def _cuts(array: Array) -> Iterator[Array]:
    """An array as matrices, cut at each of its axes, and their transposes; a vector as a row."""
    flat = np.ascontiguousarray(array)
    for axis in range(1, array.ndim) if array.ndim > 1 else (0,):
        matrix = flat.reshape(-1, int(np.prod(array.shape[axis:])))
        yield from (matrix, np.ascontiguousarray(matrix.T))


def _are_runs(olds: list[Array], new: Array) -> bool:
    """Whether a tensor, row by row or column by column, is made of long runs of others, or of whole ones."""
    size = new.itemsize
    sources = list(dict.fromkeys(cut.tobytes() for old in olds for cut in _cuts(old)))
    return any(_is_made_of(cut.tobytes(), sources, size) for cut in _cuts(new))


def _is_made_of(text: bytes, sources: list[bytes], size: int) -> bool:
    """Whether bytes are runs of others, at whole elements, the longest first."""
    at = 0
    while at < len(text):
        longest = max((_run(text, at, source, size) for source in sources), default=0)
        if not longest:
            return False
        at += longest
    return True


def _run(text: bytes, at: int, source: bytes, size: int) -> int:
    """How many bytes of a source follow at a place, if these are a long run or all of it; else 0."""
    if text.startswith(source, at):
        return len(source)
    begin = text[at : at + MIN_RUN_NBYTES]
    found = source.find(begin) if len(begin) == MIN_RUN_NBYTES else -1
    while found >= 0 and found % size:
        found = source.find(begin, found + 1)
    if found < 0:
        return 0
    count = MIN_RUN_NBYTES
    most = min(len(text) - at, len(source) - found)
    while count < most and text[at + count : at + count + size] == source[found + count : found + count + size]:
        count += size
    return count


def of_layouts(pair: Pair, found: Diffed) -> Iterator[str]:
    """Layouts that are named of fused tensors, or of parts, and that make other tensors of these parts."""
    for _, module in pair.modules:
        planted = module.planted
        if planted is None or planted.side is None:
            continue
        for one in found.tensors:
            if one.kind == "layout" and one.layout in REFERENCES and {*one.b} <= module.b.keys():
                told = _of_layout(one, module, planted, found.is_same)
                if told and planted.moved:
                    other = planted._replace(parts=planted.moved, side=1 - planted.side)
                    told = _of_layout(one, module, other, found.is_same)
                if told:
                    yield told


def _of_layout(one: TensorDiff, module: Module, planted: Planted, is_same: bool) -> str:
    """A fused tensor and its parts: what is wrong, if the reference of the layout puts other elements there."""
    if " -> " in one.how or ", as '" in one.how:
        return ""
    parts = [name for own in planted.parts.values() for name in (own if isinstance(own, list) else [own])]
    apart, other = (module.a, module.b)[:: -1 if planted.side else 1]
    wanted, fused = (one.a, one.b)[:: -1 if planted.side else 1]
    if len(fused) != 1 or not {*wanted} <= {*parts} or not {*parts} <= apart.keys():
        return "" if not planted.moved else "not these parts"
    said = {word: int(size) for word, size in re.findall(r"(\w+)=(\d+)", one.how)}
    sizes = {**planted.sizes, "chunks": 1, **said}
    sizes["key_heads"] = sizes["linear_key_heads"]
    starts = dict(zip(parts, np.cumsum([0, *(apart[name].size for name in parts)]), strict=False))
    numbers = {name: starts[name] + np.arange(apart[name].size).reshape(apart[name].shape) for name in parts}
    labels = {term: [numbers[name] for name in own] if isinstance(own, list) else numbers[own]
              for term, own in planted.parts.items()}  # fmt: skip
    known = signature(REFERENCES[one.layout]).parameters  # `linear-qkv` has no gates; `linear-qkv-z` has them apart
    others = {term for term in labels if term not in known and f"{term}_" not in known}
    if not {*wanted}.isdisjoint(name for term in others for name in np.atleast_1d(planted.parts[term])):
        return f"{one.layout} has no place for {' and '.join(sorted(others))}"
    labels = {term: own for term, own in labels.items() if term not in others}
    try:
        made = rebuilt(one.layout, labels, sizes)
    except (ValueError, KeyError, TypeError):
        return f"{one.layout} cannot be made of these parts with {said}"
    elements, array = np.concatenate([bits(apart[name]) for name in parts]), other[fused[0]]
    for label in made:
        own = np.isin(label, np.concatenate([numbers[name].reshape(-1) for name in wanted]))
        if label.shape != array.shape or not own.any():
            continue
        agrees = elements[label] == bits(array).reshape(array.shape)
        if agrees[own].all():
            return ""
        if not is_same and np.isin(label[own], label[own & agrees]).all():
            return ""  # one copy of each repeated element is there, and the diff says that others are not
    return f"{one.layout} makes another tensor of these parts with {said}: {fused[0]}"
