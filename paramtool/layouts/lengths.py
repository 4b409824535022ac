"""The length of a network's flat vector, as numbers and in the words of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import prod
from typing import Any

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.layouts.layout import Form, Layout, stored
from paramtool.layouts.spec import Facts, Spec


def flat_lengths(layout: Layout, form: Form, options: Mapping[str, str], facts: Facts) -> tuple[int, int]:
    """The elements of one layer in a flat layout, and of each further layer; `facts` must have kind and sizes."""
    known = {field.name for field in fields(Spec)}
    said: dict[str, Any] = {name: value for name, value in facts.items() if name in known}
    said |= {"reset": form.reset, "bias": facts.get("bias", bool(form.kinds() & {"bW", "bR"}))}
    if form.kind == "rnn" and len(form.activations) == 1:
        said["activation"] = form.activations[0]
    one, two = (
        sum(prod(tensor.shape) for tensor in stored(layout, form, Spec(**{**said, "layers": layers}), options))
        for layers in (1, 2)
    )
    return one, two - one


def arithmetic(layout: Layout, options: Mapping[str, str], facts: Facts) -> str:
    """The number of elements of a flat network with these facts, in words; empty if they do not determine it."""
    if not {"kind", "input", "hidden"} <= facts.keys():
        return ""
    both = facts.get("bidirectional")
    found = []
    try:
        chosen = layout.chosen(options)
        form = next(layout.forms_of(facts["kind"], chosen))
        for directions in (False, True) if both is None else (both,):
            lengths = flat_lengths(layout, form, chosen, {**facts, "bidirectional": directions})
            found.append(_lengths_in_words(lengths, {**facts, "bidirectional": directions}))
    except (LayoutError, UsageError, StopIteration):
        return ""
    return f"expected {', or '.join(found)}"


def _lengths_in_words(lengths: tuple[int, int], facts: Facts) -> str:
    first, further = lengths
    sizes = f"{facts['kind']} input={facts['input']} hidden={facts['hidden']}"
    sizes += " in both directions" if facts["bidirectional"] else ""
    layers = int(str(facts.get("layers", 1)))
    total = f"{first + (layers - 1) * further:,} elements"
    if "layers" not in facts:
        return f"{total}: 1 layer of {sizes}, {further:,} more for each further layer"
    more = f", {first:,} for the first and {further:,} for each further layer" if layers > 1 else ""
    return f"{total}: {plural(layers, 'layer')} of {sizes}{more}"
