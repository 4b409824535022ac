"""benchmarks/gpu_fused.py, without a GPU: its variants, its order and budget, its results and what it says of them."""

from __future__ import annotations

import doctest
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from paramtool import layouts
from proof.cudnn import table
from tests.benchmarks.gpu_benchmark import (
    MODULES,
    Cell,
    asked,
    cell,
    gpu_fused,
    gpu_fused_measure,
    gpu_fused_results,
    made_up,
)

KINDS = ["lstm", "gru"]


@pytest.mark.parametrize("kind", KINDS)
class TestVariants:
    def test_outputs_are_those_of_the_module(self, kind: str) -> None:
        """In both modes, of all three, those of nn.LSTM or nn.GRU with the same parameters."""
        found, ins = gpu_fused_measure.variants(cell(kind), "cpu"), gpu_fused_measure.given(cell(kind), "cpu")
        module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](6, 6, 2, dtype=torch.float64)
        for mine, theirs in zip(module.parameters(), found["fused"].parameters, strict=True):
            mine.data = theirs.data
        expected = module(ins.input)[0]
        for variant in found.values():
            for call in gpu_fused_measure.CALLS.values():
                torch.testing.assert_close(call(cell(kind), variant, ins)[0], expected)

    def test_gradients_are_equal(self, kind: str) -> None:
        """With respect to the input and to every parameter."""
        found, ins = gpu_fused_measure.variants(cell(kind), "cpu"), gpu_fused_measure.given(cell(kind), "cpu")
        fused, *others = (gpu_fused_measure.forward_backward(cell(kind), variant, ins) for variant in found.values())
        assert len(fused) == 2 + 2 * 4
        for other in others:
            torch.testing.assert_close(other, fused)

    def test_parameters_stand_apart(self, kind: str) -> None:
        """No two of `separate` and `concatenated` share a memory; the windows of a call do."""
        found = gpu_fused_measure.variants(cell(kind), "cpu")
        apart = [part for name in ("separate", "concatenated") for part in found[name].parameters]
        assert len({part.untyped_storage().data_ptr() for part in apart}) == len(apart)
        assert len({part.untyped_storage().data_ptr() for part in found["concatenated"].weights()}) == 1

    def test_the_vector_is_cudnns_buffer(self, kind: str) -> None:
        """Each window stands where the layout's table has its first gate, and the vector is as long."""
        weights = gpu_fused_measure.variants(cell(kind), "cpu")["concatenated"].weights()
        options = {"bias_mode": "double", "tail": "no"}
        numel, places = table.buffer(layouts.find("cudnn"), cell(kind).spec, options, "float64")
        starts: dict[tuple[int, str], int] = {}
        for place in places:
            ((_, stored),) = place.terms
            key = stored.layer, stored.kind
            starts[key] = min(place.view.offset, starts.get(key, numel))
        expected = [starts[layer, part] for layer in range(2) for part in ("W", "R", "bW", "bR")]
        assert [window.storage_offset() for window in weights] == expected
        assert weights[0].untyped_storage().nbytes() == 8 * numel

    def test_room_behind(self, kind: str) -> None:
        """Where cuDNN wants a larger buffer than the parameters fill, the vector has that room at its end."""
        parameters = gpu_fused_measure.variants(cell(kind), "cpu")["separate"].parameters
        weights = gpu_fused_measure.concatenated(parameters, parameters[0].new_zeros(7))
        assert weights[0].untyped_storage().nbytes() == 8 * (sum(part.numel() for part in parameters) + 7)
        torch.testing.assert_close(weights, parameters)


class TestProof:
    def test_other_outputs(self) -> None:
        """A variant that computes something else is not timed."""
        found, ins = gpu_fused_measure.variants(cell(), "cpu"), gpu_fused_measure.given(cell(), "cpu")
        found["separate"].parameters[0].data.add_(1)
        with pytest.raises(gpu_fused_measure.Unproved, match=r"separate: its output differs by .* from that of fused"):
            gpu_fused_measure.prove(cell(), found, ins)

    def test_other_gradients(self) -> None:
        """Equal outputs are not enough: training is timed, too."""
        found, ins = gpu_fused_measure.variants(cell(), "cpu"), gpu_fused_measure.given(cell(), "cpu")
        own = found["separate"].parameters
        half = gpu_fused_measure.Variant(own, lambda: [part / 2 + part.detach() / 2 for part in own])
        with pytest.raises(
            gpu_fused_measure.Unproved, match=r"separate: its gradient \d+ differs by .* from that of fused"
        ):
            gpu_fused_measure.prove(cell(), found | {"separate": half}, ins)

    @pytest.mark.parametrize(("name", "warned"), [("fused", True), ("concatenated", True), ("separate", False)])
    def test_packing(self, name: str, warned: bool) -> None:
        """Only `separate` may make torch pack, and it has to."""
        gpu_fused_measure.prove_packing(name, not warned)
        with pytest.raises(gpu_fused_measure.Unproved, match=name):
            gpu_fused_measure.prove_packing(name, warned)

    def test_kernel(self) -> None:
        """What ran is known by autograd's name for it."""
        output = torch.ones(1, requires_grad=True) * 2
        with pytest.raises(gpu_fused_measure.Unproved, match="torch runs fused with MulBackward0, not with cuDNN"):
            gpu_fused_measure.prove_kernel("fused", output)


class FakeEvent:
    """Of torch.cuda: the device's clock says a quarter of a second."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def elapsed_time(self, _: FakeEvent) -> float:
        """Milliseconds, as torch says it."""
        return 250.0


class TestOnAGpu:
    """What is asked of torch.cuda, with another one in its place."""

    def test_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between two events, in seconds."""
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        called: list[int] = []
        assert gpu_fused_measure.timed("cuda", called.append, 1) == 0.25
        assert called == [1]

    def test_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The peak above what is there already, and the variant's own parameters."""
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1000)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1700)
        variant = gpu_fused_measure.variants(cell(), "cpu")["fused"]
        ins = gpu_fused_measure.given(cell(), "cpu")
        parameters = sum(part.numel() * 8 for part in variant.parameters)
        assert gpu_fused_measure.peak("cuda", "forward", cell(), variant, ins) == 700 + parameters


class TestOrder:
    def test_each_once(self) -> None:
        """The order has every configuration of the grid."""
        grid = gpu_fused_results.cells(gpu_fused_results.GRID | {"batch": 32})
        assert len(grid) == 240
        assert sorted(map(str, gpu_fused_results.spread(grid))) == sorted(map(str, grid))

    def test_every_beginning_is_even(self) -> None:
        """Each value of each axis is met about as often as the others of that axis."""
        order = gpu_fused_results.spread(gpu_fused_results.cells(gpu_fused_results.GRID | {"batch": 32}))
        for count in range(1, len(order)):
            for axis in ("kind", "dtype", "hidden", "layers", "sequence"):
                values = {getattr(one, axis) for one in order}
                met = Counter(getattr(one, axis) for one in order[:count])
                assert all(abs(met[value] - count / len(values)) < 4 for value in values), (count, axis)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 12])
    def test_small_grids(self, count: int) -> None:
        """Too."""
        assert sorted(gpu_fused_results.spread(list(range(count)))) == list(range(count))


class Budget:
    """A sweep with a clock of its own: each configuration takes a second."""

    def __init__(self, minutes: float) -> None:
        self.result = gpu_fused_measure.started(asked("--dtypes", "float32", "--minutes", str(minutes)))
        self.plan = gpu_fused_results.spread(gpu_fused_results.cells(self.result["settings"]))
        self.seconds = 0.0

    def measure(self, one: Cell, device: str, seconds: float) -> dict[str, Any]:
        """A second passes."""
        assert (device, seconds) == ("cpu", 0.01)
        self.seconds += 1
        return asdict(one) | {"rounds": 3}

    def sweep(self) -> Iterator[None]:
        """One configuration after the other."""
        return gpu_fused_measure.sweep(self.result, self.plan, self.measure, lambda: self.seconds)

    def listed(self) -> list[Cell]:
        """All that the result tells of."""
        return [gpu_fused_measure._cell(found) for found in (*self.result["cells"], *self.result["not_measured"])]


class TestBudget:
    def test_enough(self) -> None:
        """All are measured, and stand in the grid's order."""
        budget = Budget(1)
        list(budget.sweep())
        assert budget.listed() == gpu_fused_results.cells(budget.result["settings"])
        assert budget.result["not_measured"] == []

    def test_what_does_not_fit_is_listed(self) -> None:
        """With the reason, and without being a failure."""
        budget = Budget(3.5 / 60)
        list(budget.sweep())
        assert len(budget.result["cells"]) == 4
        assert len(budget.result["not_measured"]) == 4
        assert set(budget.listed()) == set(budget.plan)
        for found in budget.result["not_measured"]:
            assert "s were left" in found["reason"]
            assert not found["failed"]

    def test_whole_at_any_time(self) -> None:
        """What was not reached yet is listed as such."""
        budget = Budget(1)
        sweep = budget.sweep()
        next(sweep)
        assert len(budget.result["cells"]) == 1
        assert set(budget.listed()) == set(budget.plan)
        assert {found["reason"] for found in budget.result["not_measured"]} == {"the sweep ended before"}

    @pytest.mark.parametrize("error", [RuntimeError("no memory\nmore"), gpu_fused_measure.Unproved("no memory")])
    def test_failures_are_listed(self, error: Exception) -> None:
        """And the sweep goes on."""
        budget = Budget(1)

        def failing(one: Cell, device: str, seconds: float) -> dict[str, Any]:
            if one.kind == "gru":
                raise error
            return budget.measure(one, device, seconds)

        list(gpu_fused_measure.sweep(budget.result, budget.plan, failing, lambda: budget.seconds))
        assert len(budget.result["cells"]) == 4
        failed = [(found["kind"], found["reason"], found["failed"]) for found in budget.result["not_measured"]]
        assert failed == [("gru", "no memory", True)] * 4


class TestWhereItDoesNotPay:
    def test_both(self) -> None:
        """Where packing takes less than 1.05 times as long, with sequences and ratios."""
        sentences = list(gpu_fused_results.where_it_does_not_pay(made_up({1: 1.5, 8: 1.05, 64: 1.04, 512: 0.98})))
        where = "hidden 4, layers 1, sequence 64 (1.040), 512 (0.980)"
        words = f"fusing does not pay in 2 of 4 (packing takes less than 1.05 times as long): {where}"
        assert sentences == [f"lstm float32, forward: {words}", f"lstm float32, forward+backward: {words}"]

    def test_it_pays(self) -> None:
        """Everywhere."""
        sentences = list(gpu_fused_results.where_it_does_not_pay(made_up({1: 1.5, 8: 1.07})))
        words = "fusing pays in all of 2: packing takes at least 1.070 times as long"
        assert sentences == [f"lstm float32, forward: {words}", f"lstm float32, forward+backward: {words}"]

    def test_not_measured(self) -> None:
        """Nothing is said where nothing was measured."""
        assert set(gpu_fused_results.where_it_does_not_pay(made_up({}))) == {
            "lstm float32, forward: not measured",
            "lstm float32, forward+backward: not measured",
        }


class TestPlot:
    def test_png(self, tmp_path: Path) -> None:
        """1400 pixels wide, with a panel where nothing was measured and a point that is missing."""
        pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        result = made_up({1: 1.5, 512: 0.98}, hidden=[4, 8], sequence=[1, 8, 512])
        source, target = tmp_path / "result.json", tmp_path / "result.png"
        source.write_text(json.dumps(result))
        assert gpu_fused.main(["--from", str(source), "--plot", str(target)]) == 0
        found = target.read_bytes()
        assert found[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(found[16:20], "big") == 1400

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """It says so before it measures."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(gpu_fused, "_measured", lambda *arguments: pytest.fail("measured"))
        assert gpu_fused.main(["--plot", "out.png"]) == 2
        assert "needs matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: ModuleType) -> None:
    """The examples in docstrings are true."""
    assert doctest.testmod(module).failed == 0
