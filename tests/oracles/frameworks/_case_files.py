"""Cases on disk: weights and inputs of one recurrent network in, what a framework computes with them out.

Each script `run_<name>.py` beside this file is run by the Python of a framework's own environment:

    python run_<name>.py CASES

CASES holds one folder a case: `case.json` (what the network is), `tensors.npz` (its weights, by the names of a layout),
`inputs.npz` (x, h0 and, for an LSTM, c0). The script answers inside that folder with `outputs.json`, one of

    {"ran": "mxnet 1.9.1 gluon.rnn.LSTM", ...}   beside an outputs.npz with y, hn and, for an LSTM, cn
    {"cannot": "why"}                            the framework has no such network
    {"error": "a traceback"}                     something broke; the other cases still run

and adds its versions to CASES/versions.json. Cases of layouts that a script does not know are left untouched.
Shapes, with T steps, N samples, D directions, L layers, R = projection or hidden: x (T, N, input), h0 and hn
(L*D, N, R), c0 and cn (L*D, N, hidden), y (T, N, D*R); the index of a state is layer*D + direction.

This file needs NumPy only (1 or 2) and Python 3.8, and knows nothing of paramtool: what proves a conversion must not
share code with it.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


class Cannot(Exception):
    """The framework has no such network; the message says why."""


@dataclass(frozen=True)
class Case:
    """One network: what it is, its weights by the names of `layout`, and what to run it on."""

    folder: Path
    layout: str
    kind: str
    input: int
    hidden: int
    layers: int
    directions: int
    projection: int
    bias: bool
    reset: str | None
    activation: str | None
    peephole: bool
    options: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    x: np.ndarray
    h0: np.ndarray
    c0: np.ndarray | None

    @property
    def bidirectional(self) -> bool:
        """Whether the network runs both ways."""
        return self.directions == 2

    @property
    def recurrent(self) -> int:
        """Width of the hidden state h."""
        return self.projection or self.hidden

    def width(self, layer: int) -> int:
        """How many values a step gives to cells of `layer`."""
        return self.input if layer == 0 else self.directions * self.recurrent

    def states(self) -> Sequence[np.ndarray]:
        """h0, and c0 for an LSTM."""
        return [self.h0] if self.c0 is None else [self.h0, self.c0]


@dataclass(frozen=True)
class Outputs:
    """What came of a run; `ran` names what was run, `facts` are further words for outputs.json."""

    ran: str
    y: np.ndarray
    hn: np.ndarray
    cn: np.ndarray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_case(folder: Path) -> Case:
    """The case that stands in `folder`; ValueError where its inputs do not have the shapes that it says."""
    said = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    tensors, inputs = _arrays(folder / "tensors.npz"), _arrays(folder / "inputs.npz")
    case = Case(folder=folder, tensors=tensors, x=inputs["x"], h0=inputs["h0"], c0=inputs.get("c0"), **said)
    _, samples, width = case.x.shape
    cells = case.layers * case.directions
    found = {"x": width, "h0": case.h0.shape, "c0": None if case.c0 is None else case.c0.shape}
    c0 = (cells, samples, case.hidden) if case.kind == "lstm" else None
    expected = {"x": case.input, "h0": (cells, samples, case.recurrent), "c0": c0}
    if found != expected:
        raise ValueError(f"{folder.name}: inputs have shapes {found}, expected {expected}")
    return case


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def require(case: Case, expected: Mapping[str, tuple[int, ...]]) -> None:
    """ValueError with all defects unless the case holds exactly the `expected` names, each with its shape."""
    defects = [f"missing: {name}" for name in expected if name not in case.tensors]
    for name, array in case.tensors.items():
        if name not in expected:
            defects.append(f"unexpected: {name}")
        elif array.shape != tuple(expected[name]):
            defects.append(f"misshaped: {name} has shape {array.shape}, expected {tuple(expected[name])}")
    if defects:
        raise ValueError("; ".join(defects))


def refuse(case: Case, *, projection: bool = False, peephole: bool = False, reset_before: bool = False) -> None:
    """Cannot, for what the framework lacks; the flags say which of these it has."""
    if case.projection and not (projection and case.kind == "lstm"):
        raise Cannot(f"no projection in a {case.kind} of this library")
    if case.peephole and not peephole:
        raise Cannot("no peepholes in this library")
    if case.kind == "gru" and case.reset is None:
        raise Cannot("the case does not say where the reset gate is applied")
    if case.kind == "gru" and case.reset == "before" and not reset_before:
        raise Cannot("the reset gate of this library's GRU is applied after the product")
    if case.kind == "rnn" and case.activation not in ("tanh", "relu"):
        raise Cannot(f"activation {case.activation!r}: the case must say tanh or relu")
    if case.kind != "rnn" and case.activation not in (None, "tanh"):
        raise Cannot(f"no {case.kind} with activation {case.activation}")
    if case.options:
        raise Cannot(f"options that this script does not know: {sorted(case.options)}")


def serve(runners: Mapping[str, Callable[[Case], Outputs]], versions: Mapping[str, str]) -> int:
    """Run every case in the folder that the command line names through the runner of its layout; an exit status."""
    if len(sys.argv) != 2:
        print(f"usage: {Path(sys.argv[0]).name} CASES", file=sys.stderr)
        return 2
    root = Path(sys.argv[1])
    record = root / "versions.json"
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    record.write_text(json.dumps({**known, **versions}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in sorted(root.glob("*/case.json")):
        layout = json.loads(path.read_text(encoding="utf-8")).get("layout")
        if layout in runners:
            _answer(path.parent, runners[layout])
    return 0


def _answer(folder: Path, runner: Callable[[Case], Outputs]) -> None:
    """Run one case and write its outputs; whatever goes wrong is written down, not raised."""
    for stale in ("outputs.npz", "outputs.json"):
        (folder / stale).unlink(missing_ok=True)
    try:
        outputs = runner(read_case(folder))
        arrays = {"y": outputs.y, "hn": outputs.hn}
        if outputs.cn is not None:
            arrays["cn"] = outputs.cn
        np.savez(folder / "outputs.npz", **arrays)
        said = {"ran": outputs.ran, **outputs.facts}
    except Cannot as refusal:
        said = {"cannot": str(refusal)}
    except Exception:  # the framework may raise anything, and the next case may still run
        said = {"error": traceback.format_exc()}
    (folder / "outputs.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
