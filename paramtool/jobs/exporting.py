"""Writing exactly the file that one variant wants."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from paramtool import formats
from paramtool.engine.source import Source
from paramtool.engine.writer import Staged, write
from paramtool.errors import PlanError, UsageError
from paramtool.formats import safetensors
from paramtool.jobs._progress import Path, Progress, silent
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import check
from paramtool.model.view import View
from paramtool.passes import dedup as dedup_pass
from paramtool.passes import select


@dataclass(frozen=True, slots=True)
class Exported:
    """What `export` wrote."""

    output: str
    names: tuple[str, ...]
    nbytes: int


MAX_EXPANDED_NBYTES = 1 << 30


def export(
    path: Path,
    output: Path,
    *,
    names: Collection[str] | None = None,
    like: Path | None = None,
    only: str | None = None,
    max_bytes: int = MAX_EXPANDED_NBYTES,
    force: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Write a plain safetensors file with exactly the names that one variant wants, each stored for itself.

    The names are given, or those of `like`, whose shapes must agree.  `max_bytes` bounds what one expanded (stride 0)
    tensor may grow to.  UsageError where a name is missing, PlanError where one has no plain form.
    """
    if (names is None) == (like is None):
        raise UsageError("say which names: names or like, one of them")
    shapes = _names_like(formats.read(like)) if like is not None else dict.fromkeys(names or ())
    checkpoint = select.for_names(formats.read(path), shapes, only)
    where = os.fspath(path)
    missing = [name for name in shapes if name not in checkpoint.entries]
    if missing:
        raise UsageError(
            f"{where}: lacks {len(missing)} of {len(shapes)} names: {', '.join(map(repr, missing[:10]))}",
            hint=f"paramtool inspect --tensors {where} lists what it has",
        )
    _check_shapes(where, checkpoint, shapes, max_bytes)
    plan = dedup_pass.plain(checkpoint, shapes)
    check(plan, shapes, checkpoint.storages)
    outputs = safetensors.lay_out(replace(plan, metadata=checkpoint.metadata))
    inputs = [file.path for file in checkpoint.files]
    with Staged(os.fspath(output), False, force, inputs) as staged, Source(checkpoint) as source:
        with progress("write", plan.nbytes) as advance:
            write(staged, outputs, source, advance)
        staged.commit()
    return Exported(os.fspath(output), plan.order, outputs[0].nbytes)


def _names_like(other: Checkpoint) -> dict[str, tuple[int, ...] | None]:
    """The names of another checkpoint with their shapes: its one model section, or all of it."""
    models = [section for section in other.sections if section.role == "model"]
    if len(models) == 1:
        other = select.section(other, models[0].name)
    return {name: e.value.shape if isinstance(e.value, View) else None for name, e in other.entries.items()}


def _check_shapes(
    where: str, checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...] | None], max_bytes: int
) -> None:
    wrong = []
    for name, shape in shapes.items():
        value = checkpoint.entries[name].value
        if not isinstance(value, View):
            continue
        if shape is not None and value.shape != shape:
            wrong.append(f"{name!r}: has shape {list(value.shape)}; wanted {list(shape)}")
        if value.nbytes > max(max_bytes, value.byte_stop - value.byte_start):
            wrong.append(
                f"{name!r}: is expanded and would grow to {value.nbytes} bytes; --max-bytes allows {max_bytes}"
            )
    if wrong:
        raise PlanError(f"{where}: {len(wrong)} tensors do not fit:\n  " + "\n  ".join(wrong[:20]))
