"""Writes docs/layouts.md from the tables of layouts: `python docs/make_layouts.py`.

Each tensor has its pattern and a small picture, which is drawn from the places themselves and not by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import product

from layout_parts import drawn, page

from paramtool import layouts
from paramtool.layouts import evidence
from paramtool.layouts.layout import Form, Layout, LayoutTensor, Place, stored
from paramtool.layouts.names import EXTRAS
from paramtool.layouts.spec import Spec
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, INPUT = 2, 3
SHORT = {"W": "W", "R": "R", "bW": "bW", "bR": "bR", "P": "P", "peep": "p", "h0": "h0", "c0": "c0"}
INTRO = """# Layouts

Written by `docs/make_layouts.py` from the tables in `paramtool/layouts`, `paramtool/parts` and `paramtool/dialects`;
`paramtool layouts NAME` shows the same.  First come recurrent networks, then [attention, gated MLPs and
experts](#attention-gated-mlps-and-experts), then [dialects](#dialects).

## Recurrent networks

A layout says in which tensors a library keeps each cell of a recurrent network, and where in them.  A cell is one gate
of one kind of parameter, in one direction of one layer:

| cell | shape | meaning |
|---|---|---|
| `W` | hidden × in | weights of the input: y = W x |
| `R` | hidden × rec | recurrent weights; rec is the width of h: hidden, or proj if h is projected |
| `bW`, `bR` | hidden | the biases added to `W x` and to `R h` |
| `P` | proj × hidden | the projection of h |
| `p` (`peep`) | hidden | peepholes, gates i, f and o |
| `h0`, `c0` | rec, hidden | trained initial states |

Gates have torch's letters: `i f g o` (input, forget, candidate, output), `r z n` (reset, update, candidate), `h`.

A pattern reads as in einops.  `W[(gate hidden) in]` has the gates below each other, and `W[in (gate hidden)]` is its
transpose.  Blocks follow each other along the first axis, or along the axis that is named.  `{layer dir: ...}` repeats,
`bW+bR` is a sum, `-W` a negative, `bW+bR-forget_bias` a sum from which a number is subtracted, and `0` padding.  `bW!`
is present, as zeros, even if the network has no biases.  `W~` are the bytes of W in W's own order, in another shape.
`paramtool/layouts/pattern.py` has the whole language.

A picture shows one layer and one direction with hidden = 2 and in = 3, each name over the elements that it fills; `ᵀ`
marks a transposed cell.

**Reset gates.**  `reset=after` is n = tanh(W x + bW + r * (R h + bR)), as in cuDNN.  If a layout has no place for the
inner bR, that bias must be zero, and paramtool checks this before it writes.  `reset=before` is n = tanh(W x + R (r *
h) + b).  Neither can be converted to the other.

**Facts that no tensor shows** come from the file or from `--spec`.  Some have a default, which a warning names: the
activations of a Keras layer, a forget bias.  Others have none, because another value is another function.  In Keras'
layouts, a unidirectional network needs its direction in time (`backward=no`, or `backward`), and a bidirectional
network needs its merge mode (`merge=concat`, `sum`, `ave`, `mul`, `none`).  The merge mode of the last layer is outside
the network: layouts that cannot express it hold such a layer, with a warning, and the record keeps the mode for the way
back.  Between the layers of a stack it is inside the network, and only Keras' layouts can hold it.

**Evidence.**  `oracle`: the framework itself ran converted weights (`docs/proofs.md` has versions and errors).
`equations`: its equations, taken from its source, ran in NumPy.  `files`: real files agree.  `source only`: its source
says so.  `asked`: a library itself reported the place of each cell, without a GPU.  Layouts whose buffers are made on
GPUs say whether a GPU has verified them ([GPU](gpu.md)).  Without a record they are "not verified on a GPU".

**The record.**  A file that paramtool wrote describes its networks in the safetensors metadata under
`paramtool.layouts`: `{"version": 1, "modules": [{"at": "encoder", "layout": "cudnn", "spec": "lstm input=18
hidden=128", "options": {}, "source": "converted from torch"}]}`.  Reading it needs only JSON, and with it `paramtool
unfuse` needs no flags.  For layouts of GPUs, `evidence` is `verified on cuDNN ..., ...` or `not verified on a GPU`, as
known when the file was written.  `unsure` lists the possible values of a fact that the source leaves open and that you
must give.  `refused` gives the reason why a network is not converted: its source says something that no spec can
express.

**What is lost, and how to keep it.**  Permutations, transposes and signs are exact.  A sum of two biases and a
subtracted forget bias are not: the function is kept, the bytes are not, and the report says so.  `--keep-split` also
writes the original biases (`paramtool.kept/MODULE/bias_ih_l0`), so that the way back gives the same bytes.  It is
refused if the sums no longer match.

**Tensors beside a network.**  A network is converted only if every tensor under its module is accounted for: it belongs
to the layout, to a network inside the module, or to the table below.  Any other tensor (a layer norm inside the cell, a
trained initial state, one bias more) is exit code 5.  The error names the tensor and the layouts that have a place for
it.  `--ignore 'rnn.ln_*'` converts the network without it and leaves the tensor unchanged.  At the top of a file, where
a name could belong to any module, only some names count: those that extend the network's own, initial states, tensors
of other layouts and, among PyTorch's names, weights, biases and norms.

EXTRAS

**Stacks.**  Keras and ONNX have a module for each layer, PyTorch one module for all.  `--stack enc0,enc1=enc` joins
modules as the layers of one network, and `--stack enc=enc0,enc1` splits one.  The layers must have the same form, and
the input of each must be as wide as the output of the previous one.  Operations that a program runs between them are
not in the tensors and are not checked.
"""


def _extras() -> str:
    """The table of what libraries put beside weights."""
    lines = ["| names | what | then | source |", "|---|---|---|---|"]
    for extra in EXTRAS:
        names = ", ".join(f"`{name}`" for name in extra.names)
        lines.append(
            f"| {names} | {extra.what} | {extra.then}{f': {extra.hint}' if extra.hint else ''} | {extra.source} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write the document."""
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "layouts.md")
    text = document()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def document() -> str:
    """The whole text."""
    built_in = list(layouts.built_in().values())
    lines = [INTRO.replace("EXTRAS", _extras()), "| layout | what | holds | evidence |", "|---|---|---|---|"]
    for layout in built_in:
        holds = ", ".join(layout.holds())
        link = f"[`{layout.name}`](#{layout.name.replace('.', '')})"
        lines.append(f"| {link} | {layout.title} | {holds} | {'; '.join(evidence.evidence(layout))} |")
    for layout in built_in:
        lines += ["", *_section(layout)]
    lines += ["", *page()]
    return "\n".join(lines) + "\n"


def _section(layout: Layout) -> Iterator[str]:
    yield f"### {layout.name}"
    yield ""
    yield f"{layout.title}.  Source: {layout.source}."
    yield f"Evidence: {'; '.join(evidence.evidence(layout))}."
    if layout.always_biases:
        yield "Biases are always stored."
    if layout.max_directions == 1:
        yield "One direction."
    if layout.note:
        yield f"Note: {layout.note}."
    yield from (f"Not in the tensors: {text}." for text in layout.outside)
    for option in layout.options:
        yield f"- option `{option.name}={option.default}`: {option.what}"
    drawn: set[tuple[str, ...]] = set()
    for form in layout.forms:
        yield ""
        yield f"**{_title(form)}**, gates `{' '.join(form.gates)}`"
        yield ""
        yield "| tensor | pattern |"
        yield "|---|---|"
        for row in form.tensors:
            along = f", blocks along axis {row.along}" if row.along else ""
            yield f"| `{row.name}` | `{row.content}`{along} |"
        picture = tuple(_pictures(layout, form))
        if picture and picture not in drawn:
            drawn.add(picture)
            yield from ("", "```", *picture, "```")


def _title(form: Form) -> str:
    when = "".join(f", {key}={value}" for key, value in form.when.items())
    return f"{form.kind}{f', reset {form.reset}' if form.reset else ''}{when}"


def _pictures(layout: Layout, form: Form) -> Iterator[str]:
    """One picture for each tensor of a network of one layer."""
    kinds = form.kinds()
    spec = Spec(
        form.kind, INPUT, HIDDEN, projection=1 if "P" in kinds and form.kind == "lstm" else 0, reset=form.reset,
        activation=form.activations[0] if form.kind == "rnn" else "", peephole="peep" in kinds,
        initial_state="h0" in kinds,
    )  # fmt: skip
    seen = []
    for tensor in stored(layout, form, spec, layout.chosen(dict(form.when))):
        if tensor.row not in seen:  # the tensor of one gate shows those of the others
            seen.append(tensor.row)
            yield from _picture(tensor)


def _picture(tensor: LayoutTensor) -> Iterator[str]:
    """A tensor as a grid of names: rows are its first axis that is longer than 1, columns all others."""
    view = contiguous(tensor.name, DTYPES["float32"], tensor.shape)
    labels = [""] * view.numel
    for place in tensor.places(view):
        for element in _elements(place):
            labels[element] = _label(place)
    yield from drawn(tensor.name, tensor.shape, labels)


def _elements(place: Place) -> Iterator[int]:
    view = place.view
    for index in product(*(range(size) for size in view.shape)):
        yield view.offset + sum(k * stride for k, stride in zip(index, view.strides, strict=True))


def _label(place: Place) -> str:
    """The content of a place: `W_i`, its transpose, a sum, or 0."""
    words = []
    for sign, cell in place.terms:
        name = SHORT[cell.kind] + (f"_{cell.gate}" if cell.gate else "")
        words.append(("-" if sign < 0 else "+" if words else "") + name)
    text = "".join(words) or "0"
    if place.shift and place.terms:
        text += f"{place.shift:+g}"
    strides = [stride for size, stride in zip(place.view.shape, place.view.strides, strict=True) if size > 1]
    return text + ("ᵀ" if len(strides) == 2 and strides[0] < strides[1] else "")


if __name__ == "__main__":
    main()
