"""The proof of a layout on a GPU: cuDNN asked, torch asked, and networks run, all as one record."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paramtool.cudnn import grid, record, table
from paramtool.cudnn.answers import Unsupported
from paramtool.cudnn.grid import Case
from paramtool.cudnn.record import Part
from paramtool.cudnn.table import Finding
from paramtool.jobs._progress import Progress, silent
from paramtool.jobs.verifying_layouts import to_verify
from paramtool.layouts import find
from paramtool.layouts.layout import Layout
from paramtool.torch import _gpu
from paramtool.torch._flattened import Device, buffer, of_case, windows
from paramtool.torch._running import TOLERANCE, run


def verify_layout(layout: str = "cudnn", *, quick: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Prove a layout on the first CUDA GPU; the record (docs/schema/layout-record-1.json), findings included.

    Asks the cuDNN that torch loaded for every network of the grid, looks where `flatten_parameters` puts the weights,
    and runs buffers that `paramtool fuse` made against the CPU in float64, with TF32 off; `quick` takes a small grid.
    UsageError where there is no GPU.
    """
    there = to_verify(layout)
    _gpu.require_gpu()
    with _gpu.without_tf32():
        asked = _asked(there, quick, progress)
        flat = flattened(there, grid.built(quick), Device(), progress)
        ran = computed(grid.run(quick), Device(), progress)
    return record.document(there, _gpu.machine(), quick, asked, flat, ran)


def _asked(layout: Layout, quick: bool, progress: Progress) -> Part:
    part, cases = record.asked_part(), list(grid.asked(quick))
    with _gpu.asked_library() as library, progress("asking cuDNN", len(cases)) as advance:
        for case in cases:
            record.compare(part, layout, case, library.answer(case))
            advance(1)
    return part


def flattened(layout: Layout, cases: Iterable[Case], device: Device, progress: Progress = silent) -> Part:
    """What torch flattens, beside the table."""

    def judged(case: Case) -> Iterable[Finding] | Unsupported:
        module = of_case(case, device)
        there = buffer(module)
        if isinstance(there, Unsupported):
            return there
        return table.flattened(layout, find("torch"), case, windows(module), there.numel())

    return _judged(cases, judged, "asking torch", progress)


def computed(cases: Iterable[Case], device: Device, progress: Progress = silent) -> Part:
    """What the device computes, beside the CPU; the largest errors of each type, and the smallest of its controls."""
    worst: dict[str, dict[str, float]] = {}

    def judged(case: Case) -> Iterable[Finding] | Unsupported:
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


def _judged(
    cases: Iterable[Case],
    judge: Callable[[Case], Iterable[Finding] | Unsupported],
    label: str,
    progress: Progress,
) -> Part:
    """Every case with its verdict; an error of torch is a finding, unless it says that there is no such network."""
    part, todo = record.built_part(), list(cases)
    with progress(label, len(todo)) as advance:
        for case in todo:
            try:
                part.judge(case, judge(case))
            except (RuntimeError, NotImplementedError) as error:
                words = str(error).splitlines()[0] if str(error) else type(error).__name__
                refused = "NOT_SUPPORTED" in words or isinstance(error, NotImplementedError)
                finding = Finding(str(case), "", "error", "none", words)
                part.judge(case, Unsupported(words) if refused else [finding])
                if isinstance(error, torch.cuda.OutOfMemoryError):
                    torch.cuda.empty_cache()
            advance(1)
    return part
