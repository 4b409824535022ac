"""Stacks networks of one layer as the layers of one network, and splits networks of several layers.

Keras and ONNX have a module for each layer where PyTorch has one module for all layers.  A stack is a network in the
source's own layout, which has names for layers: `layer0/kernel` is `enc0/kernel`, so no other code has to know of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from paramtool.errors import LayoutError, UsageError, plural
from paramtool.grouping import grouped
from paramtool.layouts.layout import LayoutTensor, stored
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import frozen


@frozen
class Stack:
    """Modules that become one module, or one module that becomes several, in the order of the layers."""

    old: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        return f"{','.join(self.old)}={','.join(self.new)}"


def parse(text: str) -> Stack:
    """Parse `enc0,enc1=enc` or `enc=enc0,enc1`; UsageError for anything else.

    >>> parse("enc0,enc1=enc").old
    ('enc0', 'enc1')
    """
    old, _, new = text.partition("=")
    stack = Stack(tuple(old.split(",")), tuple(new.split(",")))
    several = max(stack.old, stack.new, key=len)
    if not all((*stack.old, *stack.new)) or {len(stack.old), len(stack.new)} != {1, len(several)} or len(several) < 2:
        raise UsageError(f"--stack {text!r}: expected MODULE,MODULE,...=MODULE, or MODULE=MODULE,MODULE,...")
    if len(set(several)) < len(several):
        raise UsageError(f"--stack {text!r}: a module is named twice")
    return stack


def stacked(where: str, networks: Sequence[Network], stacks: Iterable[Stack]) -> list[Network]:
    """The networks after stacking some and splitting others; the result is at the place of the first old network.

    UsageError if a module is not a network that is converted, LayoutError if layers do not fit each other.
    """
    found = list(networks)
    for stack in stacks:
        # Networks by module, and by the last part of a module's path if only one network has it
        whole = {one.at: one for one in found}
        short = grouped((re.split("[./]", one.at)[-1], one) for one in whole.values())
        by_name = {name: ones[0] for name, ones in short.items() if len(ones) == 1} | whole
        if unknown := [at for at in stack.old if at not in by_name]:
            there = ", ".join(map(repr, by_name))
            raise UsageError(
                f"{where}: --stack {stack}: {unknown[0]!r} is not a converted network; expected one of {there}"
            )
        parts = [by_name[at] for at in stack.old]
        try:
            made = [_joined(parts, stack.new[0])] if len(parts) > 1 else _apart(parts[0], stack.new)
        except LayoutError as error:
            raise LayoutError(f"{where}: --stack {stack}: {error.message}", error.hint) from None
        first = found.index(parts[0])
        found = [
            *(one for one in found[:first] if one not in parts),
            *made,
            *(o for o in found[first:] if o not in parts),
        ]
    return found


def _joined(parts: Sequence[Network], at: str) -> Network:
    """One network with the layers of several."""
    first = parts[0]
    for before, one in pairwise(parts):
        if (one.layout, one.options) != (first.layout, first.options):
            raise LayoutError(
                f"{first.at!r} is {first.layout.name}, {one.at!r} is {one.layout.name}; expected one layout"
            )
        if one.spec.input != before.spec.output:
            gives = f"{before.at!r} gives {before.spec.output}"
            raise LayoutError(f"{one.at!r} takes {plural(one.spec.input, 'value')}; {gives}")
        alike = replace(one.spec, input=first.spec.input, layers=first.spec.layers, bias=first.spec.bias)
        if alike != first.spec:
            raise LayoutError(
                f"{one.at!r} is {one.spec}; the layers of one network must be alike, but {first.at!r} is {first.spec}"
            )
    _refuse_backward(first)
    bias = any(one.spec.bias for one in parts)
    spec = replace(first.spec, layers=sum(one.spec.layers for one in parts), bias=bias)
    places = [(one, tensor) for one in parts for tensor in _tensors(one, replace(one.spec, bias=bias))]
    tensors = {
        new.name: one.tensors[old.name]
        for (one, old), new in zip(places, _tensors(first, spec, len(places)), strict=True)
        if old.name in one.tensors
    }
    raw = {seen: name for one in parts for seen, name in one.raw.items()}
    assumed = tuple(dict.fromkeys(fact for one in parts for fact in one.assumed))
    return replace(
        first, at=at, spec=spec, tensors=tensors, raw=raw, assumed=assumed, stacked=tuple(p.at for p in parts)
    )


def layers_of(whole: Network) -> list[Network]:
    """A network for each layer of a network of several, as if its module had one for each; empty where none can be."""
    count = whole.spec.layers
    try:
        return _apart(whole, [f"{whole.at}.{layer}" for layer in range(count)]) if count > 1 else []
    except LayoutError:
        return []


def _apart(whole: Network, ats: Sequence[str]) -> list[Network]:
    """A network for each layer of a network."""
    if len(ats) != whole.spec.layers:
        raise LayoutError(f"{whole.at!r} is {whole.spec}; expected {plural(len(ats), 'layer')}")
    _refuse_backward(whole)
    specs = [replace(whole.spec, layers=1, input=whole.spec.sizes(layer)["in"]) for layer in range(len(ats))]
    places = [(k, tensor) for k, spec in enumerate(specs) for tensor in _tensors(whole, spec)]
    found: list[dict[str, str]] = [{} for _ in ats]
    for (k, new), old in zip(places, _tensors(whole, whole.spec, len(places)), strict=True):
        if old.name in whole.tensors:
            found[k][new.name] = whole.tensors[old.name]
    return [
        replace(
            whole,
            at=at,
            spec=spec,
            tensors=own,
            raw={seen: name for seen, name in whole.raw.items() if seen in own.values()},
            stacked=(whole.at,),
        )
        for at, spec, own in zip(ats, specs, found, strict=True)
    ]


def _tensors(one: Network, spec: Spec, count: int | None = None) -> list[LayoutTensor]:
    """The tensors of a network with another spec, layer by layer; `count` is how many the single layers have."""
    found = stored(one.layout, one.form, spec, one.options)
    if count not in (None, len(found)):
        raise LayoutError(
            f"layout {one.layout.name} stores all layers of a network in the same tensors",
            hint="unfuse the network first, then stack the result",
        )
    return found


def _refuse_backward(one: Network) -> None:
    if one.spec.backward:
        raise LayoutError(f"{one.at!r} runs backward, so its output is not what the next layer of a stack would get")
