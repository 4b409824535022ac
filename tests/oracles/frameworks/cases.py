"""Cases for the scripts `run_<name>.py`, made by paramtool's own commands from files and written to files.

`to`: weights by a neutral layout stand in a .safetensors file, `paramtool.convert` writes them in the layout that
is proved, the stock safetensors library reads them; the framework runs them, and must compute what torch, or where
torch has no such network the equations of `reference.py`, computes from the neutral weights.

`from`: random numbers stand in a file of the layout that is proved, all of them the framework's own business (a single
bias, a forget bias that is added later); the command writes them in the neutral layout; the framework runs the numbers
as they were, torch or the equations what the command wrote.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _neutral import Arrays, outputs, random_inputs, random_weights
from _neutral_layouts import neutral_for
from safetensors import safe_open
from safetensors.numpy import save_file

from paramtool import layouts
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError
from paramtool.layouts.spec import Spec, text

MODULE = "net"
"""What the network is called in every file."""
HIDDEN, INPUT, PROJECTION = 4, 3, 2
KINDS: Mapping[str, Mapping[str, Any]] = {
    "lstm": {},
    "lstm, projection": {"projection": PROJECTION},
    "lstm, peephole": {"peephole": True},
    "lstm, peephole and projection": {"peephole": True, "projection": PROJECTION},
    "lstm, cell_clip": {"cell_clip": 0.3},
    "lstm, hard_sigmoid 1/5": {"gate_activation": "hard_sigmoid(0.2,0.5)"},
    "lstm, hard_sigmoid 1/6": {"gate_activation": "hard_sigmoid(0.16666667,0.5)"},
    "gru, after": {"reset": "after"},
    "gru, after, b_hn zero": {"reset": "after"},
    "gru, after, hard_sigmoid 1/5": {"reset": "after", "gate_activation": "hard_sigmoid(0.2,0.5)"},
    "gru, before": {"reset": "before"},
    "gru, before, hard_sigmoid 1/5": {"reset": "before", "gate_activation": "hard_sigmoid(0.2,0.5)"},
    "rnn, tanh": {"activation": "tanh"},
    "rnn, relu": {"activation": "relu"},
}
"""What is proved, and the fields of its spec. A reset gate stands after or before the recurrent product."""
INNER_BIAS = "the bias inside r * ( ) is not zero, and there is no place for it"
NO_INNER_BIAS = "gru, after, b_hn zero"
"""Tried where a layout refuses `gru, after` for INNER_BIAS; INNER is then what it refuses."""
INNER = "gru, after, b_hn not zero"
ONLY = {"forget_bias": "lstm", "double_bias": "rnn"}
"""What is proved again with another value of an option of a layout."""


@dataclass(frozen=True)
class Made:
    """A case that a runner can be given, and what should come of it."""

    name: str
    kind: str
    """Of KINDS."""
    way: str
    """`to`, `from`, or of a negative control what is wrong."""
    said: Mapping[str, Any]
    """What stands in case.json."""
    tensors: Arrays
    inputs: Arrays
    expected: Arrays

    def write(self, root: Path) -> None:
        """Write it as `_case_files` reads it."""
        folder = root / self.name
        folder.mkdir(parents=True)
        (folder / "case.json").write_text(json.dumps(self.said, indent=1) + "\n", encoding="utf-8")
        np.savez(folder / "tensors.npz", **self.tensors)
        np.savez(folder / "inputs.npz", **self.inputs)


@dataclass(frozen=True)
class Proof:
    """All cases of one layout, and the kinds that paramtool says it cannot hold."""

    layout: str
    """With options."""
    made: tuple[Made, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """{kind: why}."""


def specs(kind: str, few: bool = False) -> Iterator[Spec]:
    """Networks of a kind: one or two layers, one or two directions, biases or none, input as wide as hidden or not.

    `few`: only the first and the last of them.
    """
    fields = KINDS[kind]
    sizes = list(product((1, 2), (False, True), ((True, INPUT), (False, INPUT), (True, HIDDEN), (False, HIDDEN))))
    for layers, both, (bias, width) in [sizes[0], sizes[-2]] if few else sizes:
        yield Spec(fields.get("kind", kind.split(",")[0]), width, HIDDEN, layers, both, bias=bias, **fields)


def convert(tensors: Arrays, source: str, target: str, spec: str) -> Arrays:
    """Tensors of one layout in another: a file through `paramtool.convert`, read by the safetensors library."""
    marks = [f"{MODULE}{layouts.find(layouts.parse(text)[0]).separator}" for text in (source, target)]
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.safetensors", Path(folder) / "made.safetensors"
        save_file({marks[0] + name: np.ascontiguousarray(array) for name, array in tensors.items()}, given)
        relayout_command.convert(given, made, source=source, target=target, at=(MODULE,), spec=spec)
        with safe_open(made, "numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a reader, no mapping
            said = file.metadata() or {}
    # A name of Paddle's that stands for another's tensor: the metadata have `name: other`, as safetensors.torch does
    found |= {name: found[owner] for name, owner in said.items() if owner in found}
    assert all(name.startswith(marks[1]) for name in found), sorted(found)
    return {name[len(marks[1]) :]: array for name, array in found.items()}


def options_of(layout: str, spec: Spec) -> dict[str, Any]:
    """What a framework's constructor is told and the weights do not say."""
    name, chosen = layouts.parse(layout)
    found: dict[str, Any] = {}
    if name in ("tf1.basic", "tf1.block") and spec.kind == "lstm":
        found["forget_bias"] = float(layouts.find(name).chosen(chosen)["forget_bias"])
    if spec.gate_activation != "sigmoid":
        found["gate_activation"] = spec.gate_activation
    if spec.cell_clip:
        found["cell_clip"] = spec.cell_clip
    return found


def said(layout: str, spec: Spec) -> dict[str, Any]:
    """case.json."""
    same = ("kind", "input", "hidden", "layers", "directions", "projection", "bias", "peephole")
    return {
        **{name: getattr(spec, name) for name in same},
        "layout": layouts.parse(layout)[0],
        "reset": spec.reset or None,
        "activation": spec.activation or None,
        "options": options_of(layout, spec),
    }


def told(source: str, spec: Spec) -> str:
    """What the command must be told of a network: of torch's own file its activation, of others all."""
    if source == "torch":
        return f"activation={spec.activation}" if spec.activation else ""
    return text(spec, [fact for fact in layouts.find(layouts.parse(source)[0]).required if spec.has(fact)])


def generator_of(words: str) -> np.random.Generator:
    """Random numbers that are the same in each run, and others for each case."""
    return np.random.default_rng(zlib.crc32(words.encode()))


def case_name(layout: str, way: str, kind: str, spec: Spec) -> str:
    """The name of a case's folder."""
    words = [layout, way, kind, f"l{spec.layers}d{spec.directions}", f"i{spec.input}h{spec.hidden}"]
    return "-".join([*words, "bias" if spec.bias else "plain"]).translate(str.maketrans(" /=,:", "_____"))


def to_layout(layout: str, kind: str, spec: Spec) -> Made:
    """Neutral weights, written in the layout; LayoutError where it cannot hold them."""
    name = case_name(layout, "to", kind, spec)
    generator, neutral = generator_of(name), neutral_for(spec, layout)
    weights = random_weights(spec, generator, inner_bias=kind != NO_INNER_BIAS)
    tensors = convert(neutral.write(spec, weights), neutral.layout, layout, told(neutral.layout, spec))
    inputs = random_inputs(spec, generator)
    return Made(name, kind, "to", said(layout, spec), tensors, inputs, outputs(spec, weights, inputs))


def from_layout(layout: str, kind: str, spec: Spec, like: Made) -> Made:
    """Numbers of the layout's own, read into a neutral one.

    Their names and shapes are those of `like`, a case of the other way. Where it has equal arrays, these have too: a
    layout may have two names for one tensor. A network without biases keeps the numbers of `like`, in which some stand
    for biases that are not there.
    """
    name = case_name(layout, "from", kind, spec)
    generator, neutral = generator_of(name), neutral_for(spec, layout)
    fresh = {array.tobytes(): random_like(array, generator) for array in like.tensors.values()}
    tensors = {n: fresh[array.tobytes()] if spec.bias else array for n, array in like.tensors.items()}
    weights = neutral.read(spec, convert(tensors, layout, neutral.layout, told(layout, spec)))
    inputs = random_inputs(spec, generator)
    return Made(name, kind, "from", like.said, tensors, inputs, outputs(spec, weights, inputs))


def random_like(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random numbers of that shape."""
    return generator.normal(0, 0.3, array.shape).astype(np.float32)


def why(error: LayoutError) -> str:
    """What a refusal says, without the network and the file."""
    message = str(error).partition("cannot hold it: ")[2] or str(error)
    found = re.search(r"the (peephole|recurrent bias) of gate \w .* is not zero", message)
    if found:
        return {"peephole": "it has no peepholes", "recurrent bias": INNER_BIAS}[found[1]]
    return re.sub(r"(it has no \w+)=\S+", r"\1", message)


def prove_layout(layout: str, few: bool = False) -> Proof:
    """Every case of a layout, both ways."""
    made: list[Made] = []
    refused: dict[str, str] = {}
    of_option = tuple(ONLY[name] for name in layouts.parse(layout)[1])
    for kind in KINDS:
        if (kind == NO_INNER_BIAS and INNER not in refused) or not kind.startswith(of_option or ("",)):
            continue
        for spec in specs(kind, few):
            try:
                one = to_layout(layout, kind, spec)
            except LayoutError as error:
                reason = why(error)
                one_way = f"{kind}, both directions" if kind in {case.kind for case in made} else kind
                refused.setdefault(INNER if reason == INNER_BIAS else one_way, reason)
                continue
            made += [one, from_layout(layout, kind, spec, one)]
    return Proof(layout, tuple(made), refused)
