"""Writing exactly the file that one variant wants."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from paramtool import formats
from paramtool.errors import PlanError, UsageError, listed
from paramtool.formats import safetensors
from paramtool.jobs._progress import Path, Progress, silent
from paramtool.jobs._writing import Work, laid_out
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
    section: str | None = None
    """The section of the input that the names were taken from."""
    like_section: str | None = None
    """The section of the other checkpoint whose names these are; None where it is no section's."""
    cloned_nbytes: int = 0
    """Bytes of the output that share their blocks with the input."""


Shapes = Mapping[str, tuple[int, ...] | None]
"""Names that are wanted, with their shapes where these are known."""
MAX_EXPANDED_NBYTES = 1 << 30


def export(
    path: Path,
    output: Path,
    *,
    names: Collection[str] | None = None,
    like: Path | None = None,
    like_only: str | None = None,
    only: str | None = None,
    max_bytes: int = MAX_EXPANDED_NBYTES,
    align: int = safetensors.ALIGN,
    force: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Write a plain file with exactly the names that one variant wants, each stored for itself.

    The suffix of the output says the format, as for `dedup`.
    The names are given, or those of `like`, whose shapes must agree: of its section `like_only`, else of its one model
    section if it has optimizer or EMA sections, else all.  `max_bytes` bounds what one expanded (stride 0) tensor may
    grow to; tensor data begins at a multiple of `align` bytes.  UsageError where a name is missing, PlanError where one
    has no plain form.
    """
    safetensors.check_align(align)
    if (names is None) == (like is None):
        raise UsageError("say which names: names (--names NAMES.txt) or like (--like OTHER_CKPT), one of them")
    if like is None and like_only is not None:
        raise UsageError("like_only (--like-only) is a section of like (--like OTHER_CKPT), which is not given")
    shapes: Shapes = dict.fromkeys(names or ())
    section, more = None, ""
    if like is not None:
        other = formats.read(like)
        section, shapes = _names_like(other, like_only)
        more = "; --like-only SECTION takes the names of one section" if other.sections and section is None else ""
    whole = formats.read(path)
    only = select.section_for(whole, shapes) if only is None else only
    checkpoint = whole if only is None else select.section(whole, only)
    where = os.fspath(path)
    missing = [name for name in shapes if name not in checkpoint.entries]
    if missing:
        raise UsageError(
            f"{where}: lacks {len(missing)} of {len(shapes)} names: {', '.join(map(repr, missing[:10]))}",
            hint="paramtool inspect --tensors lists what it has" + more,
        )
    _check_shapes(where, checkpoint, shapes, max_bytes)
    plan = dedup_pass.plain(checkpoint, shapes)
    check(plan, shapes, checkpoint.storages)
    outputs = laid_out(replace(plan, metadata=checkpoint.metadata), output, False, None, align)
    work = Work(checkpoint, plan, outputs, os.fspath(output), False)
    cloned = work.carry_out(force, verify=False, progress=progress)
    return Exported(os.fspath(output), plan.order, outputs[0].nbytes, only, section, cloned)


def _names_like(other: Checkpoint, only: str | None) -> tuple[str | None, Shapes]:
    """The names of another checkpoint with their shapes, and the section that they are of, if of one."""
    hint = "--like-only SECTION takes the names of one; in Python like_only=..."
    only = select.model_section(other, hint) if only is None else only
    part = other if only is None else select.section(other, only)
    return only, {name: e.value.shape if isinstance(e.value, View) else None for name, e in part.entries.items()}


def _check_shapes(where: str, checkpoint: Checkpoint, shapes: Shapes, max_bytes: int) -> None:
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
        raise PlanError(listed(f"{where}: {len(wrong)} tensors do not fit:", wrong))
