"""What is done on a GPU, done on a CPU: windows as torch makes them on a GPU, right and wrong ones, and what is found.

`gpu` imitates what `flatten_parameters` does there, counted out in a plain loop and without paramtool's tables.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import proof
from paramtool import layouts
from paramtool.errors import UsageError
from paramtool.layouts import evidence
from paramtool.layouts.spec import Spec
from proof.cudnn import grid
from proof.cudnn.answers import Unsupported
from proof.cudnn.grid import Case
from proof.cudnn.record import QuestionVerdicts
from proof.gpu import device as gpu_device
from proof.gpu import running
from proof.gpu import verify as verifying
from proof.gpu.flattened import Device, buffer, network, windows
from proof.gpu.verify import computed, flattened
from tests.proof.fake_cudnn import BAD_PARAM, Fake

CUDNN = layouts.find("cudnn")
KINDS = (
    Spec("lstm", 3, 5, layers=2, bidirectional=True), Spec("lstm", 4, 4, bias=False),
    Spec("lstm", 3, 5, layers=2, bidirectional=True, projection=2), Spec("gru", 3, 5, layers=3, reset="after"),
    Spec("gru", 5, 4, bidirectional=True, bias=False, reset="after"), Spec("rnn", 3, 6, layers=2, activation="tanh"),
    Spec("rnn", 6, 6, bidirectional=True, activation="relu"),
)  # fmt: skip
LSTM = Spec("lstm", 4, 4)


def case(spec: Spec, dtype: str = "float64") -> Case:
    return Case(spec, "double" if spec.bias else "none", dtype)


def names(module: nn.RNNBase) -> tuple[list[str], list[str]]:
    """Of matrices, pseudo-layer by pseudo-layer, and of biases, whether they are there or not."""
    ends = [f"_l{k}{end}" for k in range(module.num_layers) for end in ("", "_reverse")[: module.bidirectional + 1]]
    parts = ("ih", "hh", "hr") if module.proj_size else ("ih", "hh")
    matrices = [f"weight_{part}{end}" for end in ends for part in parts]
    return matrices, [f"bias_{part}{end}" for end in ends for part in ("ih", "hh")]


def gpu(module: nn.RNNBase, *, biases_first: bool = False, more: int = 0) -> None:
    """All parameters as windows on one buffer, with room for biases that are not there."""
    matrices, biases = names(module)
    own = dict(module.named_parameters())
    rows = own["weight_ih_l0"].shape[0]
    sizes = {name: own[name].numel() if name in own else rows for name in (*matrices, *biases)}
    there = torch.zeros(sum(sizes.values()) + more, dtype=own["weight_ih_l0"].dtype)
    at = 0
    for name in (*biases, *matrices) if biases_first else (*matrices, *biases):
        if name in own:
            window = there[at : at + sizes[name]].view(own[name].shape)
            window.copy_(own[name].data)
            own[name].data = window
        at += sizes[name]


def otherwise(module: nn.RNNBase) -> None:
    """A GPU whose kernels take the second gate of the buffer for the first, and the first for the second."""
    gpu(module)
    inside = copy.deepcopy(module)

    def forward(*given: Any) -> Any:
        exchanged = {}
        for name, parameter in module.named_parameters():
            first, second, *others = parameter.chunk(4)
            exchanged[name] = torch.cat([second, first, *others])
        return torch.func.functional_call(inside, exchanged, given)

    module.forward = forward  # type: ignore[method-assign]


def cpu(flatten: Callable[[nn.RNNBase], None] = gpu) -> Device:
    """The CPU for a GPU, whatever kernel runs there."""
    return Device("cpu", flatten, kernel="")


APART = cpu(lambda module: None)


def ran(spec: Spec, flatten: Callable[[nn.RNNBase], None] = gpu, dtype: str = "float64") -> QuestionVerdicts:
    return computed([case(spec, dtype)], cpu(flatten))


def found(part: QuestionVerdicts) -> list[str]:
    assert part.findings_count == len(part.findings)
    return [finding.what for finding in part.findings]


# --- what agrees -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(7)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's, on a CPU only
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_what_was_fused_computes_the_same(spec: Spec, dtype: str) -> None:
    """Outputs and gradients within the type's tolerance, exchanged gates far from it, and the way back exact."""
    part = ran(spec, dtype=dtype)
    assert part.counts == {"agrees": 1, "unsupported": 0, "differs": 0}, part.findings
    errors = part.more["errors"][dtype]
    assert errors["tolerance"] == running.TOLERANCE[dtype] < errors["smallest_control"]
    assert 0 <= errors["outputs"] <= errors["tolerance"] and 0 <= errors["gradients"] <= 3 * errors["tolerance"]
    assert (errors["gradients"] > 0) is (dtype == "float32")  # the reference is in float64, on the same CPU


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("spec", [LSTM, Spec("gru", 3, 5, reset="after")], ids=str)
def test_small_types(spec: Spec, dtype: str) -> None:
    """The tolerance is the type's own."""
    part = ran(spec, dtype=dtype)
    assert part.counts["agrees"] == 1, part.findings
    assert part.more["errors"][dtype]["outputs"] > running.TOLERANCE["float32"] / 10


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_windows_agree(spec: Spec) -> None:
    """Of every type, each window shows the table's cells, and the buffer has the table's length."""
    part = flattened(CUDNN, [case(spec, dtype) for dtype in grid.DTYPES], cpu())
    assert part.counts == {"agrees": 4, "unsupported": 0, "differs": 0}, part.findings
    assert list(part.letters.values()) == ["aaaa"]


def test_worst_and_smallest() -> None:
    """Of several networks of a type, the largest errors and the smallest control are kept."""
    specs = KINDS[:3]
    alone = [ran(spec).more["errors"]["float64"] for spec in specs]
    both = computed(map(case, specs), cpu()).more["errors"]["float64"]
    assert both == {
        "tolerance": 1e-10, "outputs": max(one["outputs"] for one in alone),
        "gradients": max(one["gradients"] for one in alone),
        "smallest_control": min(one["smallest_control"] for one in alone),
    }  # fmt: skip


def test_the_same_numbers_every_time() -> None:
    """What goes in is decided by the case alone."""
    (one, data), (two, same) = (running._numbers(case(LSTM), torch.float32) for _ in range(2))
    (other, _) = running._numbers(case(replace(LSTM, layers=2)), torch.float32)
    assert all(torch.equal(one[name], two[name]) for name in one) and torch.equal(data.x, same.x)
    assert not torch.equal(one["weight_ih_l0"], other["weight_ih_l0"])


# --- what differs ----------------------------------------------------------------------------------------------------


def test_biases_first() -> None:
    """Outputs, gradients and what is unfused from the windows are others; and the windows are elsewhere."""
    wrong = cpu(lambda module: gpu(module, biases_first=True))
    what = found(computed([case(LSTM)], wrong))
    assert what[:2] == ["outputs", "gradients"] and set(what[2:]) == {"unfused from the saved windows"}
    part = flattened(CUDNN, [case(LSTM)], wrong)
    assert set(found(part)) == {"offset and strides"} and part.findings_count == 16


def test_gates_exchanged_in_the_buffer() -> None:
    """The windows are right, and what is computed is not: only running finds it."""
    assert found(ran(LSTM, otherwise))[:2] == ["outputs", "gradients"]
    assert flattened(CUDNN, [case(LSTM)], cpu(otherwise)).counts["agrees"] == 1


def test_a_finding_of_running() -> None:
    """The case, what was expected and what was found, in numbers."""
    first = ran(LSTM, otherwise).findings[0]
    assert first.case == str(case(LSTM)) and first.expected == "an error of at most 1e-10"
    assert float(first.found) > 1e-3


@pytest.mark.parametrize("more", [1, 16])
def test_a_buffer_of_another_length(more: int) -> None:
    """Both lengths, and nothing is run."""
    wrong = cpu(lambda module: gpu(module, more=more))
    for part in (computed([case(LSTM)], wrong), flattened(CUDNN, [case(LSTM)], wrong)):
        (finding,) = part.findings
        assert (finding.what, finding.expected, finding.found) == ("elements", "160", str(160 + more))


def test_outputs_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a number is as far away as JSON can say."""
    right = running._computed

    def broken(module: nn.RNNBase, data: running.Data) -> running.Computed:
        made = right(module, data)
        if next(module.parameters()).untyped_storage().nbytes() == 8 * 160:  # the one buffer, not the reference
            made.outputs["y"][0] = float("nan")
        return made

    monkeypatch.setattr(running, "_computed", broken)
    part = ran(LSTM)
    assert found(part) == ["outputs"] and json.loads(json.dumps(part.as_json(), allow_nan=False))


def test_weights_that_are_copied_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns where cuDNN cannot take the buffer as it is; what is then computed proves nothing."""
    right = nn.LSTM.forward

    def forward(self: nn.LSTM, *given: Any) -> Any:
        if next(self.parameters()).untyped_storage().nbytes() == 8 * 160:
            warnings.warn(f"{running.REPACKED} of memory. This means they need to be compacted", stacklevel=2)
        return right(self, *given)

    monkeypatch.setattr(nn.LSTM, "forward", forward)
    (finding,) = ran(LSTM).findings
    assert finding.what == "buffer" and finding.expected == "taken by cuDNN as it is"
    assert finding.found.startswith(running.REPACKED)


def test_other_warnings_are_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where warnings are errors, they are errors here as well, and not taken for the one that is looked for."""

    def forward(self: nn.LSTM, *given: Any) -> Any:
        warnings.warn("something else", stacklevel=2)

    monkeypatch.setattr(nn.LSTM, "forward", forward)
    part = ran(LSTM)
    assert found(part) == ["error"] and part.findings[0].found == "UserWarning: something else"


def test_a_control_that_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a wrong order computed the same, the check would be none: one such order is enough."""
    real = running.wrong_orders
    monkeypatch.setattr(running, "wrong_orders", lambda weights, spec: [*real(weights, spec), weights])
    assert found(ran(LSTM)) == ["control"]


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_exchanging_gates_changes_every_matrix_of_gates(spec: Spec) -> None:
    """And no projection; rows of an RNN are moved."""
    weights, _ = running._numbers(case(spec), torch.float64)
    exchanged = next(running.wrong_orders(weights, spec))
    for name, weight in weights.items():
        other = exchanged[name]
        assert torch.equal(other, weight) is ("_hr_" in name), name
        assert torch.equal(other.sum(0), weight.sum(0)) or torch.allclose(other.sum(0), weight.sum(0))


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_wrong_orders(spec: Spec) -> None:
    """Gates; the two directions where there are two; W and R where they have one shape: shapes stay, numbers move."""
    weights, _ = running._numbers(case(spec), torch.float64)
    wrong = list(running.wrong_orders(weights, spec))
    assert len(wrong) == 1 + spec.bidirectional + (spec.input == spec.recurrent)
    for order in wrong:
        assert {name: w.shape for name, w in order.items()} == {name: w.shape for name, w in weights.items()}
        assert any(not torch.equal(order[name], weights[name]) for name in weights)
    if spec.bidirectional:
        assert wrong[1]["weight_ih_l0"] is weights["weight_ih_l0_reverse"]
    if spec.input == spec.recurrent:
        assert wrong[-1]["weight_hh_l0"] is weights["weight_ih_l0"]


def test_what_was_saved_is_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that changes a weight between computing and saving is found on both ways back."""
    right = torch.save

    def save(tensors: dict[str, torch.Tensor], path: str) -> None:
        if not path.endswith("parts.pt"):
            next(iter(tensors.values())).view(-1)[0] += 1
        right(tensors, path)

    monkeypatch.setattr(torch, "save", save)
    findings = ran(LSTM).findings
    assert {(one.cell, one.what) for one in findings} == {
        ("weight_ih_l0", "unfused from the saved windows"), ("weight_ih_l0", "unfused from the saved buffer")
    }  # fmt: skip


# --- what there is not -----------------------------------------------------------------------------------------------


def test_parameters_that_stay_apart() -> None:
    """torch does not flatten some types: that is no agreement and no difference."""
    for part in (computed([case(LSTM)], APART), flattened(CUDNN, [case(LSTM)], APART)):
        assert part.counts == {"agrees": 0, "unsupported": 1, "differs": 0}
        assert list(part.unsupported) == ["torch keeps the parameters in separate buffers (float64, standard)"]
    assert computed([case(LSTM)], APART).more["errors"] == {}


def test_another_kernel() -> None:
    """What torch runs without cuDNN proves nothing of cuDNN, and by what it ran is said."""
    part = computed([case(LSTM)], Device("cpu", gpu))
    assert part.counts == {"agrees": 0, "unsupported": 1, "differs": 0} and part.more["errors"] == {}
    (why,) = part.unsupported
    assert re.fullmatch(r"torch runs it with \w+Backward0, not with cuDNN \(float64, standard\)", why)
    assert computed([case(LSTM)], Device("cpu", gpu, kernel="Backward0")).counts["agrees"] == 1


def raising(error: Exception) -> Callable[[nn.RNNBase], None]:
    def flatten(module: nn.RNNBase) -> None:
        raise error

    return flatten


def test_an_error_of_torch() -> None:
    """Is a finding with its first line, and the next case has its turn."""
    bad = cpu(raising(RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nand a long trace")))
    for part in (computed([case(LSTM)] * 2, bad), flattened(CUDNN, [case(LSTM)] * 2, bad)):
        assert [(one.what, one.expected, one.found) for one in part.findings] == [
            ("error", "none", "CUDNN_STATUS_EXECUTION_FAILED")
        ] * 2
        assert part.counts["differs"] == 2


@pytest.mark.parametrize("error, why", [
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    (NotImplementedError("not for Half"), "not for Half"), (NotImplementedError(), "NotImplementedError"),
])  # fmt: skip
def test_no_such_network(error: Exception, why: str) -> None:
    """An error that says so is no difference."""
    part = ran(LSTM, raising(error))
    assert part.findings == [] and list(part.unsupported) == [f"{why} (float64, standard)"]


# --- the buffer of a module ------------------------------------------------------------------------------------------


def test_the_buffer_of_a_module() -> None:
    """Every element of it, room included; and the windows of its parameters."""
    module = network(replace(LSTM, bias=False), torch.float16, "cpu")
    assert isinstance(buffer(module), Unsupported)
    gpu(module)
    there = buffer(module)
    assert isinstance(there, torch.Tensor) and there.shape == (4 * 4 * 8 + 32,) and there.dtype == torch.float16
    assert windows(module) == {"weight_ih_l0": (0, (16, 4), (4, 1)), "weight_hh_l0": (64, (16, 4), (4, 1))}
    with torch.no_grad():
        there.zero_()
    assert not any(parameter.any() for parameter in module.parameters())


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_a_network_is_its_spec(spec: Spec) -> None:
    """torch's module has the shapes that torch's layout has."""
    module = network(spec, torch.float32, "meta")
    assert (module.mode, module.num_layers, module.bias) == (
        f"RNN_{spec.activation.upper()}" if spec.kind == "rnn" else spec.kind.upper(), spec.layers, spec.bias
    )  # fmt: skip
    assert (module.input_size, module.hidden_size, module.proj_size) == (spec.input, spec.hidden, spec.projection)


# --- the GPU itself --------------------------------------------------------------------------------------------------


NINE, EIGHT = "/opt/my libs/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7"
LINKED = "/opt/torch/lib/libtorch_cuda.so"


def maps(*paths: str) -> str:
    """As Linux says what a process has loaded."""
    return "".join(
        f"7f00{k:04x}-7f01{k:04x} r-xp 00000000 08:01 {k} {' ' * 20}{path}\n" for k, path in enumerate(paths)
    )


@pytest.mark.parametrize("paths, wanted", [
    ([NINE], NINE), ([EIGHT], EIGHT), ([LINKED, NINE], NINE), ([LINKED], LINKED), (["", "[heap]", "/x", EIGHT], EIGHT),
    (["/opt/lib/libcudnn_ops.so.9", "/opt/lib/libcudnn_adv.so.9.1", NINE], NINE),
])  # fmt: skip
def test_the_library_that_torch_loaded(paths: list[str], wanted: str) -> None:
    """libcudnn itself and none of its parts; else who contains it."""
    assert gpu_device.libcudnn(maps(*paths)) == wanted


@pytest.mark.parametrize("paths", [[], ["/opt/lib/libcudnn_ops.so.9"], ["/opt/lib/libtorch_cuda_linalg.so"]])
def test_no_library_that_torch_loaded(paths: list[str]) -> None:
    """Is said."""
    with pytest.raises(UsageError, match="torch has loaded no libcudnn that can be found"):
        gpu_device.libcudnn(maps(*paths))


@pytest.mark.parametrize("cuda, available, says", [
    (None, False, "no CUDA GPU: torch .* was built without CUDA"), ("13.0", False, "no CUDA GPU: torch .* finds none"),
    ("13.0", True, "no cuDNN: torch .* was built without it"),
])  # fmt: skip
def test_no_gpu(cuda: str | None, available: bool, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lacking, and what can be done without it; before any work."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    with pytest.raises(UsageError, match=says) as caught:
        proof.verify_layout("cudnn")
    assert "--library" in caught.value.hint and "docs/gpu.md" in caught.value.hint


def test_unknown_layouts_come_first() -> None:
    """Whether there is a GPU or not."""
    with pytest.raises(UsageError, match="layout torch cannot be verified by a library"):
        proof.verify_layout("torch")


def test_without_tf32() -> None:
    """Both switches are off inside, and as they were outside, whatever happens inside."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    assert any(before)
    with pytest.raises(KeyError), gpu_device.without_tf32():
        inside = matmul.allow_tf32, cudnn.allow_tf32
        raise KeyError
    assert inside == (False, False) and (matmul.allow_tf32, cudnn.allow_tf32) == before


@pytest.fixture
def imitated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A machine with a GPU that is none: cuDNN is the fake, and networks are flattened and run on the CPU."""
    fake = Fake(91900)

    @contextmanager
    def asked() -> Iterator[Any]:
        library = fake.library()
        yield library
        library.close()

    specs = [LSTM, Spec("gru", 3, 5, reset="after")]
    monkeypatch.setattr(grid, "specs", lambda quick: iter(specs))
    monkeypatch.setattr(grid, "DTYPES", ("float32", "float64"))
    monkeypatch.setattr(gpu_device, "require_gpu", lambda: None)
    monkeypatch.setattr(gpu_device, "asked_library", asked)
    monkeypatch.setattr(gpu_device, "machine", lambda: {"device": "a CPU", "cudnn": "9.19.0"})
    monkeypatch.setattr(verifying, "Device", lambda: cpu())
    yield fake
    assert fake.alive == {}


def test_the_whole_proof(imitated: Fake) -> None:
    """All three questions in one record, which is a record of what was there."""
    made = proof.verify_layout("cudnn")
    assert made["findings_count"] == 0 and made["machine"]["device"] == "a CPU"
    counts = [made[part]["counts"]["agrees"] for part in evidence.PARTS]
    assert counts == [2 * 4 * 2 * 4, 2 * 2 * 2, 2 * 2 * 2]
    found = evidence.parse("r.json", json.dumps(made))
    assert (
        found.words() == "asked cuDNN 9.19.0, a CPU"
        and found.against == "asked: no lstm projection in float16 that agrees"
    )


def test_the_proof_is_made_without_tf32(imitated: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking, flattening and running."""
    seen = []
    imitated.twist = lambda space: seen.append(torch.backends.cudnn.allow_tf32)
    right = running._computed

    def watched(module: nn.RNNBase, data: running.Data) -> running.Computed:
        seen.append(torch.backends.cudnn.allow_tf32)
        return right(module, data)

    monkeypatch.setattr(running, "_computed", watched)
    proof.verify_layout("cudnn")
    assert set(seen) == {False} and len(seen) > 8 * 3


def test_a_proof_that_fails(imitated: Fake) -> None:
    """A library that keeps gates otherwise than torch's windows do."""

    def exchanged(space: Any) -> None:
        space.at[0, 0, "matrix"], space.at[0, 1, "matrix"] = space.at[0, 1, "matrix"], space.at[0, 0, "matrix"]

    imitated.twist = exchanged
    made = proof.verify_layout("cudnn")
    assert made["asked"]["counts"]["differs"] == 64 and made["flattened"]["counts"]["differs"] == 0
    assert made["findings_count"] == 128


def test_a_cudnn_that_fails_ends_nothing(imitated: Fake) -> None:
    """Each failure that is no answer is a finding, and torch and the kernels are asked all the same."""
    imitated.failures["cudnnGetRNNWeightParams"] = BAD_PARAM
    made = proof.verify_layout("cudnn")
    assert made["asked"]["counts"] == {"agrees": 0, "unsupported": 0, "differs": 64} and made["findings_count"] == 64
    assert made["findings"][0]["found"] == "cudnnGetRNNWeightParams: CUDNN_STATUS_BAD_PARAM"
    assert made["flattened"]["counts"]["agrees"] == made["ran"]["counts"]["agrees"] == 8


@pytest.mark.parametrize("error", [UsageError("torch has loaded no libcudnn"), OSError("no such library")])
def test_no_cudnn_to_ask(error: Exception, imitated: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding for all of them."""

    @contextmanager
    def asked() -> Iterator[Any]:
        raise error
        yield

    monkeypatch.setattr(gpu_device, "asked_library", asked)
    made = proof.verify_layout("cudnn")
    assert made["findings_count"] == 1 and made["findings"][0]["found"] == str(error)
    assert made["asked"]["networks"] == {} and made["ran"]["counts"]["agrees"] == 8


def test_what_was_found_is_kept_on_the_way(imitated: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each question a whole record; a run that ends in the middle has those before it."""
    kept: list[dict[str, Any]] = []
    made = proof.verify_layout("cudnn", keep=kept.append)
    assert [[one[part] is not None for part in evidence.PARTS] for one in kept] == [[1, 0, 0], [1, 1, 0]]
    assert all(evidence.parse("r.json", json.dumps(one)).against == "of a proof that was not ended" for one in kept)
    assert made["ran"] is not None

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    kept.clear()
    monkeypatch.setattr(verifying, "computed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proof.verify_layout("cudnn", keep=kept.append)
    assert len(kept) == 2


def test_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written for running is gone afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert ran(LSTM).counts["agrees"] == 1
    assert list(tmp_path.iterdir()) == []
