"""Runs cases of the layouts `torch` and `torch.cell` with PyTorch's own modules and cells.

The tensors go through `load_state_dict(strict=True)`, which takes no name too many, none too few and no other shape.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch
from _case_files import Case, Outputs, refuse, serve
from _cells import Levels, compose

LEVELS = Levels(layer="{}", separators=".")
NAMES = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}


def filled(module: torch.nn.Module, tensors: dict) -> torch.nn.Module:
    """The module with the case's numbers."""
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=True)
    return module.eval()


def activation(case: Case) -> dict:
    """The argument that only plain RNNs take."""
    return {"nonlinearity": case.activation} if case.kind == "rnn" else {}


def states_of(states: list):
    """(h, c), or h alone, as tensors."""
    found = tuple(torch.from_numpy(np.ascontiguousarray(state)) for state in states)
    return found if len(found) == 2 else found[0]


def run(case: Case) -> Outputs:
    """Layout torch."""
    refuse(case, projection=True)
    options = {"num_layers": case.layers, "bias": case.bias, "bidirectional": case.bidirectional, **activation(case)}
    if case.projection:
        options["proj_size"] = case.projection
    module = filled(getattr(torch.nn, NAMES[case.kind])(case.input, case.hidden, **options), case.tensors)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that oneDNN has no projections
        y, final = module(torch.from_numpy(case.x), states_of(case.states()))
    final = final if case.kind == "lstm" else [final]
    return Outputs(f"torch {torch.__version__} nn.{NAMES[case.kind]}", y.numpy(), *(state.numpy() for state in final))


def run_cells(case: Case) -> Outputs:
    """Layout torch.cell."""
    refuse(case)
    cell_type = getattr(torch.nn, f"{NAMES[case.kind]}Cell")

    def build(layer: int) -> torch.nn.Module:
        return cell_type(case.width(layer), case.hidden, bias=case.bias, **activation(case))

    tensors = LEVELS.by_cell(case, lambda layer: {n: tuple(t.shape) for n, t in build(layer).state_dict().items()})

    def run_cell(cell: int, x: np.ndarray, states: list) -> tuple:
        module, state, y = filled(build(cell), tensors[cell]), states_of(states), []
        with torch.no_grad():
            for value in x:
                state = module(torch.from_numpy(np.ascontiguousarray(value)), state)
                y.append(state[0] if isinstance(state, tuple) else state)
        final = state if isinstance(state, tuple) else [state]
        return torch.stack(y).numpy(), [one.numpy() for one in final]

    return compose(case, f"torch {torch.__version__} nn.{cell_type.__name__}", run_cell)


if __name__ == "__main__":
    sys.exit(serve({"torch": run, "torch.cell": run_cells}, {"torch": torch.__version__, "numpy": np.__version__}))
