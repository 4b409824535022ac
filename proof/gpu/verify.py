"""The proof of a layout on a GPU: asks cuDNN, asks torch, runs networks, and writes one record."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from paramtool.commands.progress import Progress, silent
from paramtool.errors import ParamtoolError, message_of
from paramtool.layouts import find
from paramtool.layouts.evidence import PARTS
from paramtool.layouts.layout import Layout
from proof.cudnn import compare, grid, record
from proof.cudnn.answers import Unsupported
from proof.cudnn.compare import Disagreement
from proof.cudnn.grid import Case
from proof.cudnn.library import CudnnError, Library, refused
from proof.cudnn.record import QuestionVerdicts
from proof.gpu import device as gpu
from proof.gpu.flattened import Device, buffer, of_case, windows
from proof.gpu.running import TOLERANCE, run
from proof.record_file import to_verify


def verify_layout(
    layout: str = "cudnn",
    *,
    quick: bool = False,
    progress: Progress = silent,
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Prove a layout on the first CUDA GPU; the record (docs/schema/layout-record-2.json) includes the findings.

    Asks the cuDNN that torch loaded about every network of the grid, reads where `flatten_parameters` puts the weights,
    and compares runs of buffers that `paramtool fuse` made with the CPU in float64, with TF32 off.  `quick` uses a
    small grid.  `keep` gets the record after each of the three parts, so that a failure does not lose minutes of work.
    UsageError if there is no GPU.
    """
    there = to_verify(layout)
    gpu.require_gpu()
    machine, parts = gpu.machine(), dict[str, QuestionVerdicts | None]()

    def document() -> dict[str, Any]:
        return record.document(there, machine, quick, **{name: parts.get(name) for name in PARTS})

    with gpu.without_tf32():
        parts["asked"] = asked(there, list(grid.asked(quick)), progress)
        keep(document())
        parts["flattened"] = flattened(there, grid.built(quick), Device(), progress)
        keep(document())
        parts["ran"] = computed(grid.run(quick), Device(), progress)
    return document()


def asked(layout: Layout, cases: Sequence[Case], progress: Progress = silent) -> QuestionVerdicts:
    """Compare cuDNN's answers with the table; a failure of cuDNN is a finding."""
    part = record.asked_part()
    with progress("asking cuDNN", len(cases)) as advance:
        try:
            with gpu.asked_library() as library:
                for case in cases:
                    _ask(part, layout, case, library)
                    advance(1)
        except (ParamtoolError, OSError) as error:
            part.fail(Disagreement("cuDNN", "", "library", "one that can be asked", message_of(error)))
    return part


def _ask(part: QuestionVerdicts, layout: Layout, case: Case, library: Library) -> None:
    try:
        record.compare(part, layout, case, library.answer(case))
    except CudnnError as error:
        part.judge(case, [Disagreement(str(case), "", "error", "an answer", str(error))])


def flattened(layout: Layout, cases: Iterable[Case], device: Device, progress: Progress = silent) -> QuestionVerdicts:
    """Compare the buffers that torch flattens with the table."""

    def judged(case: Case) -> Iterable[Disagreement] | Unsupported:
        module = of_case(case, device)
        there = buffer(module)
        if isinstance(there, Unsupported):
            return there
        return compare.flattened(layout, find("torch"), case, windows(module), numel=there.numel())

    return _judged(cases, judged, "asking torch", progress)


def computed(cases: Iterable[Case], device: Device, progress: Progress = silent) -> QuestionVerdicts:
    """Compare the results of the device with the CPU: the largest errors of each type, and its smallest control."""
    worst: dict[str, dict[str, float]] = {}

    def judged(case: Case) -> Iterable[Disagreement] | Unsupported:
        found = run(case, folder, device)
        if isinstance(found, Unsupported):
            return found
        here = worst.setdefault(case.dtype, {"tolerance": TOLERANCE[case.dtype], "outputs": 0.0, "gradients": 0.0})
        here["outputs"] = max(here["outputs"], found.error)
        here["gradients"] = max(here["gradients"], found.gradients)
        here["smallest_control"] = min(here.get("smallest_control", found.control), found.control)
        return found.findings

    with tempfile.TemporaryDirectory(prefix="paramtool-") as folder:
        part = _judged(cases, judged, "running", progress)
    part.more["errors"] = worst
    return part


def _in_words(error: Exception) -> str:
    """The first line of an error, with the name of its class unless it is a RuntimeError of torch."""
    name, words = type(error).__name__, next(iter(str(error).splitlines()), "")
    return words if words and isinstance(error, RuntimeError) else f"{name}: {words}" if words else name


def _judged(
    cases: Iterable[Case],
    judge: Callable[[Case], Iterable[Disagreement] | Unsupported],
    label: str,
    progress: Progress,
) -> QuestionVerdicts:
    """Judge every case; an error is a finding, unless it says that the network is not supported."""
    part, todo = record.built_part(), list(cases)
    with progress(label, len(todo)) as advance:
        for case in todo:
            try:
                found = judge(case)
                part.judge(case, found if isinstance(found, Unsupported) else list(found))
            except Exception as error:  # of any kind: the other cases are still checked
                words = _in_words(error)
                lacks = refused(words) or isinstance(error, NotImplementedError)
                finding = Disagreement(str(case), "", "error", "none", words)
                part.judge(case, Unsupported(words) if lacks else [finding])
                if isinstance(error, torch.cuda.OutOfMemoryError):
                    torch.cuda.empty_cache()
            advance(1)
    return part
