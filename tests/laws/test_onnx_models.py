"""The law of written ONNX models: onnx' checker accepts them, onnxruntime computes what torch.nn computes, and reading
them back finds the same networks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import paramtool
from paramtool.errors import LayoutError, PlanError
from tests.examples import examples

law = settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
STEPS, BATCH = 4, 3


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.RNNBase, str]:
    """A network of torch's, and the words that its weights do not say."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    function = draw(st.sampled_from(["tanh", "relu"])) if kind == "rnn" else ""
    sizes = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    facts = {"nonlinearity": function} if function else {}
    bias, both = draw(st.booleans()), draw(st.booleans())
    made = KINDS[kind](*sizes, bias=bias, bidirectional=both, **facts)
    return made.eval(), f"activation={function}" if function else ""


def run(path: Path, given: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The outputs of a model by name; warnings of onnxruntime are errors of ours, but it only prints them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs that have a default
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {name: value.numpy() for name, value in given.items()})
    return dict(zip(names, values, strict=True))


def outputs(network: nn.RNNBase, x: torch.Tensor, states: tuple[torch.Tensor, ...] = ()) -> dict[str, np.ndarray]:
    """What torch computes, by the names of a model's outputs."""
    with torch.no_grad():
        hx: Any = (states if isinstance(network, nn.LSTM) else states[0]) if states else None
        y, last = network(x, hx)
    ends = last if isinstance(last, tuple) else (last,)
    return {"Y": y.numpy(), **{name: end.numpy() for name, end in zip(("Y_h", "Y_c"), ends, strict=False)}}


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], at: str = "") -> bool:
    """Whether all outputs agree."""
    return found.keys() >= {at + name for name in expected} and all(
        value.shape == found[at + name].shape and np.allclose(value, found[at + name], atol=2e-6)
        for name, value in expected.items()
    )


@law
@given(networks(), networks())
def test_by_onnxruntime(first: tuple[nn.RNNBase, str], second: tuple[nn.RNNBase, str]) -> None:
    """Two networks in one file are two chains of one graph; states are zeros, or those that are given."""
    words = first[1] or second[1]
    if words:  # --spec says the same of both
        first = second = first if first[1] else second
    there = {"a.b": first[0], "c": second[0]}
    with tempfile.TemporaryDirectory() as folder:
        source, output, back = Path(folder, "m.pt"), Path(folder, "m.onnx"), Path(folder, "back.pt")
        state = {f"{at}.{name}": value for at, one in there.items() for name, value in one.state_dict().items()}
        torch.save(state, source)
        report = paramtool.convert(source, output, spec=words)
        onnx.checker.check_model(str(output), full_check=True)
        x = {at: torch.randn(STEPS, BATCH, one.input_size) for at, one in there.items()}
        found = run(output, {f"{at}.X": value for at, value in x.items()})
        assert all(close(found, outputs(one, x[at]), f"{at}.") for at, one in there.items())

        given = {f"{at}.X": value for at, value in x.items()}
        for at, one in there.items():
            rows = one.num_layers * (2 if one.bidirectional else 1)
            names = ["initial_h", "initial_c"] if isinstance(one, nn.LSTM) else ["initial_h"]
            given |= {f"{at}.{name}": torch.randn(rows, BATCH, one.hidden_size) for name in names}
        found = run(output, given)
        for at, one in there.items():
            states = tuple(given[f"{at}.{name}"] for name in ("initial_h", "initial_c") if f"{at}.{name}" in given)
            assert close(found, outputs(one, x[at], states), f"{at}.")

        read = paramtool.read(output)
        assert {m.at: m.spec.split()[0] for m in read.modules} == {m.at: m.spec.split()[0] for m in report.plan.modules}
        assert (read.notes, read.metadata) == ((), {})
        paramtool.convert(output, back, target="torch")
        found_back = torch.load(back)
        for name, value in state.items():
            assert torch.equal(found_back[name], value)


NAMES = st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6), min_size=1, max_size=3
)


@law
@given(st.lists(NAMES.map(".".join), min_size=1, max_size=3, unique=True))
def test_names(ats: list[str]) -> None:
    """Modules of any name, one inside another among them, keep it; no value in the graph has the name of another."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "m.pt"), Path(folder, "m.onnx")
        state = {
            f"{at}.{name}": value
            for k, at in enumerate(ats)
            for name, value in nn.LSTM(2, 1, 1 + k % 2).state_dict().items()
        }
        torch.save(state, source)
        try:
            report = paramtool.convert(source, output)
        except (LayoutError, PlanError):  # as without ONNX, where names look like something else
            return
        onnx.checker.check_model(str(output), full_check=True)
        run(output, {f"{one.at}.X": torch.ones(1, 1, one.spec.input) for one in report.converted})
        read = paramtool.read(output)
        assert [module.at for module in read.modules] == [one.at for one in report.converted]
        assert set(read.entries) == set(report.plan.order)
