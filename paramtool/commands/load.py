"""Loading a checkpoint into NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paramtool import formats
from paramtool.commands.pinned import Pin, pin
from paramtool.commands.progress import Path
from paramtool.engine.read.load import arrays
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError, plural
from paramtool.formats.judging import judging
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, NoData, Unreadable
from paramtool.model.config import reading
from paramtool.passes import select

if TYPE_CHECKING:
    import numpy as np


@reading
@judging("path")
def load_file(
    path: Path,
    *,
    only: str | None = None,
    lock: Path | None = None,
    locked_as: str | None = None,
    content_only: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Every name of a checkpoint as a writable NumPy array; names that share memory in the source share it here.

    Conjugated and negated tensors come resolved, once for each window.  bfloat16 and float8 come as ml_dtypes; packed
    types (float4, float6) as uint8 with the last axis in bytes.  Parts of sparse and quantised tensors come as
    `name/part`.  `only` names the section that is loaded, its prefix stripped.

    `lock` is a lock file, of `paramtool.lock`: LockError where the file does not hold just the tensors that it says,
    all of which are read, or where names share other memory; with `content_only` the tensors alone are judged.
    `locked_as` is what the lock calls the model, where it has several and none of this path.

    FormatError names a tensor that the file has no data for; UnsafeError, `allow_class` and `allow_unknown` as of
    `read`.
    """
    pinned = pin(lock, locked_as, content_only)
    checkpoint = with_data(read_locked(path, pinned, only, allow_class, allow_unknown))
    with Source(checkpoint) as source:
        return arrays(source, alias.build(checkpoint))


def read_locked(
    path: Path, pinned: Pin | None, only: str | None, allow_class: Sequence[str], allow_unknown: bool
) -> Checkpoint:
    """A section of a checkpoint, or all of it; LockError where the file is not the one of a lock."""
    whole = formats.read(path, allow_class=allow_class, allow_unknown=allow_unknown)
    if pinned is not None:
        from paramtool.commands.refuse_unlocked import refuse_unlocked

        refuse_unlocked(pinned, path, whole)
    return whole if only is None else select.section(whole, only)


def with_data(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint; FormatError where a tensor has no data in the file."""
    empty = []
    for name, entry in checkpoint.entries.items():
        if isinstance(value := entry.value, (NoData, Unreadable)):
            empty.append(f"{name!r} ({value.why if isinstance(value, NoData) else f'needs {value.needs}'})")
    if empty:
        raise FormatError(
            f"{checkpoint.path}: {plural(len(empty), 'tensor')} without data: {', '.join(empty[:5])}",
            hint="only=... loads another part",
        )
    return checkpoint
