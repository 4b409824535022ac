"""Negative controls: conversions that are wrong on purpose, which a framework that really runs them must show.

A wrong order of gates, or a sign or a transposition that is left out, is a table of its own, made from the right one
and registered as a user's layout is. Such a table passes every check that paramtool has, since its cells tile their
tensors as well as the right ones do: only a run tells the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from _neutral import outputs, random_inputs, random_weights
from _neutral_layouts import neutral_for
from cases import HIDDEN, INPUT, Made, case_name, convert, generator_of, options_of, said, told

from paramtool import layouts
from paramtool.layouts.layout import Form, Layout, TensorRule
from paramtool.layouts.own import register_layout
from paramtool.layouts.spec import GATES, Cell, Spec


@dataclass(frozen=True)
class Wrong:
    """One thing that is wrong: in the table, in the weights, or in what the framework is told."""

    what: str
    spec: Spec
    """Of the network that shows it."""
    layout: str
    """The layout that writes it, right or wrong, with options."""
    runs_as: str
    """The layout that the framework takes it for, with options."""
    recurrent_bias: bool = True
    """Whether the network has biases on the recurrent side; not every GRU has a place for all of them."""
    drops_inner: bool = False
    """Whether the bias inside r * ( ) is lost on the way."""


def networks(layout: Layout) -> dict[Spec, Form]:
    """A network of each kind with several gates that the layout holds: two layers, both directions if it can."""
    both = layout.max_directions > 1
    found = {Spec(form.kind, INPUT, HIDDEN, 2, both, reset=form.reset): form for form in reversed(layout.forms)}
    return {spec: found[spec] for spec in reversed(found) if spec.kind != "rnn"}


def rewritten(
    layout: Layout, name: str, row: Callable[[Form, TensorRule], TensorRule], gates: Callable[[str], str]
) -> Layout:
    """The layout with each row and each order of gates changed, registered under another name."""
    forms = tuple(
        replace(form, gates=gates(form.gates), tensors=tuple(row(form, tensor) for tensor in form.tensors))
        for form in layout.forms
    )
    return register_layout(replace(layout, name=f"{name}.{layout.name}", forms=forms))


def exchanged(layout: Layout, kind: str, pair: str) -> Layout:
    """The layout with two gates of one kind of network in each other's places."""
    turned = str.maketrans(pair, pair[::-1])  # peepholes are left out: not every gate can have one

    def row(form: Form, tensor: TensorRule) -> TensorRule:
        if form.kind != kind:
            return tensor
        content = re.sub(r"\.([a-z]+)\[", lambda found: f".{found[1].translate(turned)}[", tensor.content)
        labels = tensor.labels or (" ".join(f"{gate}={gate}" for gate in form.gates) if "{gate}" in tensor.name else "")
        return replace(tensor, content=content, labels=" ".join(w[0].translate(turned) + w[1:] for w in labels.split()))

    kinds = tuple(
        replace(form, tensors=tuple(tensor for tensor in form.tensors if "peep" not in tensor.content))
        for form in layout.forms
        if form.kind == kind
    )
    return rewritten(replace(layout, forms=kinds), f"exchanged-{pair}", row, lambda gates: gates.translate(turned))


def without(layout: Layout, name: str, kind: str, text: str, instead: str = "") -> Layout:
    """The layout with a mark left out of the patterns of one kind of network."""

    def row(form: Form, tensor: TensorRule) -> TensorRule:
        return replace(tensor, content=tensor.content.replace(text, instead)) if form.kind == kind else tensor

    return rewritten(layout, name, row, lambda gates: gates)


def wrongs(name: str, few: bool = False) -> Iterator[Wrong]:
    """What can be wrong of a layout; `few`: a third of the pairs of gates."""
    layout = layouts.find(name)
    for spec, form in networks(layout).items():
        for first, second in list(combinations(GATES[spec.kind], 2))[:: 3 if few else 1]:
            made = exchanged(layout, spec.kind, first + second)
            what = f"{spec.kind}{f', reset {spec.reset}' if spec.reset else ''}: {first} and {second} exchanged"
            holds = spec.kind != "gru" or form.has_place(Cell("bR", gate="n"))
            yield Wrong(what, spec, made.name, name, recurrent_bias=holds)
        if spec.reset == "after":
            yield Wrong("gru, reset after: b_hn dropped", spec, name, name, drops_inner=True)
    yield from OF_ONE_LAYOUT.get(name, lambda layout: iter(()))(layout)


def lstm(layout: Layout) -> Spec:
    """A small LSTM."""
    return next(spec for spec in networks(layout) if spec.kind == "lstm")


def _tf1(layout: Layout) -> Iterator[Wrong]:
    name = layout.name
    yield Wrong("lstm: forget bias not subtracted", lstm(layout), f"{name}:forget_bias=0", f"{name}:forget_bias=1.0")


def _haiku(layout: Layout) -> Iterator[Wrong]:
    made = without(layout, "no-forget-bias", "lstm", "-1!", "!")
    yield Wrong("lstm: forget bias not subtracted", lstm(layout), made.name, layout.name)
    made = rewritten(layout, "no-complement", _without_signs, lambda gates: gates)
    gru = next(spec for spec in networks(layout) if spec.kind == "gru")
    yield Wrong("gru: update gate not turned over", gru, made.name, layout.name)


def _without_signs(form: Form, tensor: TensorRule) -> TensorRule:
    if form.kind != "gru":
        return tensor
    return replace(tensor, content=re.sub(r"(^|\s)-", r"\1", tensor.content).replace("bW-bR", "bW+bR"))


def _keras_cudnn(layout: Layout) -> Iterator[Wrong]:
    for spec in networks(layout):
        made = without(layout, f"transposed-{spec.kind}", spec.kind, "~")
        yield Wrong(f"{spec.kind}: kernels transposed, not reshaped", spec, made.name, layout.name)


def _other_reset(layout: Layout) -> Iterator[Wrong]:
    spec = Spec("gru", INPUT, HIDDEN, 2, True, bias=False, reset="before")
    yield Wrong("gru, reset before: run as reset after", spec, layout.name, layout.name)


OF_ONE_LAYOUT: dict[str, Callable[[Layout], Iterator[Wrong]]] = {
    "tf1.basic": _tf1,
    "tf1.block": _tf1,
    "haiku": _haiku,
    "keras.cudnn": _keras_cudnn,
    "keras": _other_reset,
    "keras.vars": _other_reset,
    "onnx": _other_reset,
}


def control(name: str, wrong: Wrong) -> Made:
    """The case: weights that are written wrongly, and what the right ones compute."""
    case = case_name(name, wrong.what, "control", wrong.spec)
    generator, neutral = generator_of(case), neutral_for(wrong.spec, name)
    weights = random_weights(wrong.spec, generator)
    if not wrong.recurrent_bias:
        weights = {key: array * (not key.startswith("bias_hh")) for key, array in weights.items()}
    inputs = random_inputs(wrong.spec, generator)
    expected = outputs(wrong.spec, weights, inputs)
    if wrong.drops_inner:
        weights = random_weights(wrong.spec, generator_of(case), inner_bias=False)
    source = neutral.write(wrong.spec, weights)
    tensors = convert(source, neutral.layout, wrong.layout, told(neutral.layout, wrong.spec))
    facts = {**said(wrong.runs_as, wrong.spec), "options": options_of(wrong.runs_as, wrong.spec)}
    if "run as reset after" in wrong.what:
        facts["reset"] = "after"
    return Made(case, wrong.spec.kind, wrong.what, facts, tensors, inputs, expected)


def controls(name: str, few: bool = False) -> tuple[Made, ...]:
    """Every negative control of a layout, or a few."""
    return tuple(control(name, wrong) for wrong in wrongs(name, few))
