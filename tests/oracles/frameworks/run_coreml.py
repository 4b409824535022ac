"""Proves cases of the layout `coreml` with Apple's converter, since Core ML itself predicts on macOS only.

A torch network is made that should become the case's tensors (gate rows i f o z back to i f g o, the one bias as
bias_ih beside a zero bias_hh); coremltools converts it to its intermediate language; the constants of the `lstm` and
`rnn` operations there are compared with the case's tensors. `constants` in outputs.json is the largest difference, and
anything but the same names and shapes is an error. The outputs are those of that torch network: if its constants are
the case's tensors, they are what the case computes. A torch GRU becomes a loop of plain operations and proves nothing.
"""

from __future__ import annotations

import logging
import sys
import warnings

import numpy as np
import torch
from _case_files import Cannot, Case, Outputs, refuse, require, serve

logging.getLogger("coremltools").setLevel(logging.ERROR)  # on Linux it tells of each part that it cannot load
import coremltools as ct  # noqa: E402 - after its logger is set

# Rows of the operation's weights, as positions in torch's i f g o; the reordering is its own inverse.
# Source: documentation of coremltools' operation `lstm`: [i | f | o | z].
BLOCKS = {"lstm": (0, 1, 3, 2), "rnn": (0,)}


def has_bias(case: Case) -> bool:
    """Whether the case stores biases; a network without any may have them as zeros."""
    return case.bias or any(name.endswith(("bias", "bias_back")) for name in case.tensors)


def names(case: Case, layer: int, direction: int) -> dict:
    """Names in the layout of one cell's tensors, by the operation's own words."""
    prefix, suffix = f"layer{layer}." if case.layers > 1 else "", "_back" if direction else ""
    words = ["weight_ih", "weight_hh"] + (["bias"] if has_bias(case) else [])
    return {word + suffix: prefix + word + suffix for word in words}


def shapes(case: Case) -> dict:
    """Names and shapes of the case's tensors."""
    found, rows = {}, len(BLOCKS[case.kind]) * case.hidden
    for layer in range(case.layers):
        width = {"weight_ih": (rows, case.width(layer)), "weight_hh": (rows, case.hidden), "bias": (rows,)}
        for direction in range(case.directions):
            for word, name in names(case, layer, direction).items():
                found[name] = width[word.replace("_back", "")]
    return found


def network(case: Case) -> torch.nn.Module:
    """The torch network whose converted form should be the case."""
    settings = {"num_layers": case.layers, "bidirectional": case.bidirectional, "bias": has_bias(case)}
    if case.kind == "lstm":
        module = torch.nn.LSTM(case.input, case.hidden, **settings)
    else:
        module = torch.nn.RNN(case.input, case.hidden, nonlinearity=case.activation, **settings)
    state = {}
    for layer in range(case.layers):
        for direction in range(case.directions):
            tail = f"_l{layer}" + ("_reverse" if direction else "")
            for word, name in names(case, layer, direction).items():
                blocks = np.split(case.tensors[name], len(BLOCKS[case.kind]))
                rows = torch.from_numpy(np.concatenate([blocks[position] for position in BLOCKS[case.kind]]))
                target = {"bias": "bias_ih"}.get(word.replace("_back", ""), word.replace("_back", ""))
                state[target + tail] = rows
                if target == "bias_ih":
                    state["bias_hh" + tail] = torch.zeros_like(rows)
    module.load_state_dict(state, strict=True)
    return module.eval()


class First(torch.nn.Module):
    """A network that returns its sequence of outputs only."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


def convert(case: Case, module: torch.nn.Module) -> list:
    """The recurrent operations of the converted program, first layer first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates tracing, which is what the converter reads
        traced = torch.jit.trace(First(module).eval(), torch.from_numpy(case.x))
        program = ct.convert(traced, inputs=[ct.TensorType(name="x", shape=case.x.shape)], convert_to="milinternal")
    return [operation for operation in program.functions["main"].operations if operation.op_type == case.kind]


def difference(case: Case, operations: list) -> float:
    """Largest difference between the operations' constants and the case's tensors."""
    if len(operations) != case.layers:
        raise ValueError(f"the converter made {len(operations)} operations {case.kind}, expected {case.layers}")
    largest = 0.0
    for layer, operation in enumerate(operations):
        expected = {}
        for direction in range(case.directions):
            expected.update(names(case, layer, direction))
        made = {word: value.val for word, value in operation.inputs.items() if word.startswith(("weight", "bias"))}
        made = {word: value for word, value in made.items() if value is not None}
        if set(made) != set(expected):
            raise ValueError(f"layer {layer}: the converter made {sorted(made)}, expected {sorted(expected)}")
        for word, value in made.items():
            tensor = case.tensors[expected[word]]
            if value.shape != tensor.shape:
                raise ValueError(f"layer {layer}: {word} became {value.shape}, expected {tensor.shape}")
            largest = max(largest, float(np.abs(value - tensor).max()))
    return largest


def run(case: Case) -> Outputs:
    """The outputs of the torch network, and how far its converted constants are from the case."""
    refuse(case)
    if case.kind == "gru":
        raise Cannot("the converter makes a loop of plain operations of a torch GRU")
    if case.kind == "rnn" and case.bidirectional:
        raise Cannot("the converter refuses bidirectional plain RNNs")
    require(case, shapes(case))
    module = network(case)
    largest = difference(case, convert(case, module))
    states = [torch.from_numpy(state) for state in case.states()]
    with torch.no_grad():
        y, final = module(torch.from_numpy(case.x), tuple(states) if case.kind == "lstm" else states[0])
    final = final if case.kind == "lstm" else [final]
    title = f"coremltools {ct.__version__} converter of torch {torch.__version__}; torch ran, constants compared"
    return Outputs(title, y.numpy(), *(state.numpy() for state in final), facts={"constants": largest})


if __name__ == "__main__":
    sys.exit(serve({"coreml": run}, {"coremltools": ct.__version__, "torch": torch.__version__}))
