"""Runs cases of the layout `paddle` with PaddlePaddle's own LSTM, GRU and SimpleRNN.

The weights take the library's usual way: paddle.save of a state dict, paddle.load, set_state_dict. Paddle itself only
warns of names that are missing or have another shape; here those are errors. A state dict has two names for most
parameters (`weight_ih_l0` and `0.cell.weight_ih`, one tensor); a file that leaves one of them out still loads, since
either name fills the tensor, and the names that were left out are listed as `twins_missing`.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # on import, about tools for compiling extensions
    import paddle

from _case_files import Case, Outputs, refuse, require, serve


def build(case: Case):
    """The library's module for the case, with weights of its own."""
    settings = {"num_layers": case.layers, "time_major": True}
    settings["direction"] = "bidirect" if case.bidirectional else "forward"
    if case.kind == "lstm":
        return paddle.nn.LSTM(case.input, case.hidden, proj_size=case.projection, **settings)
    if case.kind == "gru":
        return paddle.nn.GRU(case.input, case.hidden, **settings)
    return paddle.nn.SimpleRNN(case.input, case.hidden, activation=case.activation, **settings)


def left_out(case: Case, own: dict) -> list:
    """Names of the module's state dict that the case lacks but whose tensor it fills under another name."""
    given = {id(tensor) for name, tensor in own.items() if name in case.tensors}
    return [name for name, tensor in own.items() if name not in case.tensors and id(tensor) in given]


def load(case: Case, module) -> list:
    """Fill the module from a file of its own format; the twins that the file left out."""
    own = module.state_dict()
    twins = left_out(case, own)
    require(case, {name: tuple(tensor.shape) for name, tensor in own.items() if name not in twins})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "case.pdparams")
        paddle.save({name: paddle.to_tensor(array) for name, array in case.tensors.items()}, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each missing name; they are counted below
            missing, unexpected = module.set_state_dict(paddle.load(path))
    if sorted(missing) != sorted(twins) or unexpected:
        raise ValueError(f"paddle says: missing {missing}, unexpected {unexpected}")
    loaded = module.state_dict()
    differing = [name for name, array in case.tensors.items() if not np.array_equal(loaded[name].numpy(), array)]
    if differing:
        raise ValueError(f"two names of one tensor hold different values; overwritten: {differing}")
    return twins


def run(case: Case) -> Outputs:
    """The library's outputs for a case."""
    refuse(case, projection=True)
    module = build(case)
    module.eval()
    twins = load(case, module)
    states = [paddle.to_tensor(state) for state in case.states()]
    with paddle.no_grad():
        y, final = module(paddle.to_tensor(case.x), states if case.kind == "lstm" else states[0])
    final = list(final) if case.kind == "lstm" else [final]
    title = f"paddle {paddle.__version__} nn.{type(module).__name__}"
    return Outputs(title, y.numpy(), *(state.numpy() for state in final), facts={"twins_missing": twins})


if __name__ == "__main__":
    paddle.device.set_device("cpu")
    sys.exit(serve({"paddle": run}, {"paddlepaddle": paddle.__version__}))
