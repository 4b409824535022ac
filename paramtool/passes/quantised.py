"""Quantised tensors: packed weights mean nothing without their scales, so they are compared together with them.

Two modules of equal packed weights and other scales are other weights.  So names of such modules count as equal only
where every part of one module equals the same part of the other.

The names are those that quantisers write into state dicts: bitsandbytes (absmax, quant_map, SCB), GPTQ and AWQ
(qweight, qzeros, scales, g_idx), compressed-tensors and FP8 checkpoints (weight_packed, weight_scale, weight_scale_inv,
weight_zero_point, input_scale), HQQ (W_q), MLX (scales, biases).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.match import Equal
from paramtool.model.view import View
from paramtool.passes.content import Candidate

SCALES = (
    "absmax", "nested_absmax", "quant_map", "nested_quant_map", "SCB", "scales", "qzeros", "g_idx", "scale", "zero",
    "zero_point", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_zero_point", "weight_g_idx",
    "weight_scale_inverse", "scale_inv", "biases", "input_scale", "activation_scale",
)  # fmt: skip
"""Last words of the names of what goes with packed weights."""
PACKED = ("qweight", "weight_packed", "W_q", "weight", "qbias", "weight_shape")
"""Last words of the names of what scales belong to, where scales stand beside it."""


SUFFIXES = (
    "scale", "scales", "scale_inv", "scale_2", "scale_inverse", "zero", "zeros", "zero_point", "zero_points", "absmax",
    "quant_map", "s", "bias_scale", "g_idx", "packed_shape",
)  # fmt: skip
"""How the names of scales go on behind that of packed weights and a `_`: `gate_up_proj_scale_inv`, and behind its stem:
`gate_up_proj_blocks` and `gate_up_proj_scales`."""
STEMS = ("", "_blocks", "_packed", "_quantized", "_quant", "_q", "_int8", "_fp8")


def modules(entries: Mapping[str, Entry]) -> dict[str, dict[str, str]]:
    """{module: {part: name}} of the quantised modules among some names.

    Scales stand beside packed weights (`m.qweight`, `m.scales`) or, in bitsandbytes, below them (`m.weight.absmax`).
    """
    packed = {name for name, entry in entries.items() if _is_packed(name, entry)}
    found: dict[str, dict[str, str]] = {}
    scaled = set()
    for name, scales in _suffixed(entries).items():
        found[name] = {part.rpartition(".")[2]: part for part in (name, *scales)}
        scaled.add(name)
        packed.add(name)
    taken = {name for parts in found.values() for name in parts.values()}
    for name in entries:
        if name in taken:
            continue
        module, _, word = name.rpartition(".")
        owner = next((above for above in _above(name) if above in packed), None)
        if owner is not None:
            module = owner.rpartition(".")[0]
        elif name not in packed and word not in SCALES:
            continue
        found.setdefault(module, {})[name.removeprefix(module)] = name
        if name not in packed:
            scaled.add(module)
    return {
        module: parts for module, parts in found.items() if module in scaled and not packed.isdisjoint(parts.values())
    }


def _suffixed(entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """{packed weights: their scales}, where the scales' names begin with the weights' own."""
    found: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if not isinstance(entry.value, View) or entry.value.dtype.nbytes(entry.value.dtype.block_elements) > 1:
            continue
        for end in STEMS:
            stem = name.removesuffix(end)
            scales = [scale for suffix in SUFFIXES if (scale := f"{stem}_{suffix}") in entries and scale != name]
            if name.endswith(end) and scales:
                found.setdefault(name, []).extend(scale for scale in scales if scale not in found.get(name, ()))
    return found


def _above(name: str) -> Iterator[str]:
    """The names that a dotted name stands below."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _is_packed(name: str, entry: Entry) -> bool:
    """Whether a name is that of packed weights: one of the words, and for the common word also a type of few bits."""
    word = name.rpartition(".")[2]
    if word not in PACKED or not isinstance(entry.value, View):
        return False
    dtype = entry.value.dtype
    return word != "weight" or "int" in dtype.name or "float8" in dtype.name or dtype.block_elements != 1


def parts(entries: Mapping[str, Entry]) -> set[str]:
    """The names of everything that belongs to a quantised module."""
    return {name for module in modules(entries).values() for name in module.values()}


def packed(entries: Mapping[str, Entry]) -> set[str]:
    """The names of packed weights: integers and one-byte floats that mean nothing without the scales beside them."""
    found = {name: entries[name].value for name in parts(entries)}
    return {n for n, v in found.items() if isinstance(v, View) and ("int" in v.dtype.name or v.dtype.block_bytes == 1)}


def companions(checkpoint: Checkpoint, found: Collection[Candidate]) -> list[Candidate]:
    """Parts of quantised modules that are too small to be candidates by themselves."""
    known = {one.name for one in found}
    small = []
    for name in parts(checkpoint.entries) - known:
        value = checkpoint.entries[name].value
        if isinstance(value, View) and value.numel:
            small.append(Candidate(name, value, checkpoint.entries[name].role, False))
    order = {name: k for k, name in enumerate(checkpoint.entries)}
    return sorted(small, key=lambda one: order[one.name])


def whole(entries: Mapping[str, Entry], equal: Iterable[Equal], small: Iterable[Candidate]) -> list[Equal]:
    """Classes of equal names without pairs of quantised modules that differ in any part, and without `small` ones."""
    classes = list(equal)
    class_of = {name: k for k, one in enumerate(classes) for name in one.names}
    signature: dict[str, object] = {}
    for module in modules(entries).values():
        mark = tuple(sorted((part, class_of.get(name, _storage(entries[name]))) for part, name in module.items()))
        signature |= dict.fromkeys(module.values(), mark)
    left_out = {one.name for one in small}
    return [part for one in classes for part in _split(one, signature, left_out)]


def _storage(entry: Entry) -> object:
    """What two names of one window have in common and no others have."""
    return repr(entry.value)


def _split(one: Equal, signature: Mapping[str, object], left_out: Collection[str]) -> Iterator[Equal]:
    groups: dict[object, list[str]] = {}
    for name in one.names:
        if name not in left_out:
            groups.setdefault(signature.get(name), []).append(name)
    for names in groups.values():
        if len(names) > 1:
            yield replace(one, names=tuple(names))
