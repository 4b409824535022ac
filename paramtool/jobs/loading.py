"""Loading a checkpoint into NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paramtool import formats
from paramtool.engine.load import fill, memories, numpy_form
from paramtool.engine.source import Source
from paramtool.errors import FormatError
from paramtool.jobs._progress import Path
from paramtool.model import alias
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, NoData, Unreadable
from paramtool.passes import select

if TYPE_CHECKING:
    import numpy as np


def load_file(path: Path, *, section: str | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Every name of a checkpoint as a writable NumPy array; names that share memory in the source share it here.

    bfloat16 and float8 come as ml_dtypes; packed types (float4, float6) as uint8 with the last axis in bytes.  Parts of
    sparse and quantised tensors come as `name/part`.  FormatError names a tensor that the file has no data for.
    """
    import ml_dtypes  # noqa: F401 - registers bfloat16 and the float8 types with NumPy
    import numpy as np

    checkpoint = formats.read(path)
    if section is not None:
        checkpoint = select.section(checkpoint, section)
    refuse_dataless(checkpoint)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    with Source(checkpoint) as source:
        for memory in memories(alias.build(checkpoint)):
            buffer = np.empty(memory.nbytes, "u1")
            fill(source, memory, buffer.data)
            for name, window in memory.windows:
                dtype, view = numpy_form(window)
                strides = [stride * view.dtype.block_bytes for stride in view.strides]
                arrays[name] = np.ndarray(view.shape, dtype, buffer.data, view.byte_start, strides)
    for name, entry in checkpoint.entries.items():
        if isinstance(entry.value, Compound):
            _resolve_loaded(arrays, name, entry.value)
    return {name: arrays[name] for name in _loaded_order(checkpoint, arrays)}


def _loaded_order(checkpoint: Checkpoint, arrays: Mapping[str, Any]) -> list[str]:
    windows = [name for name, _ in checkpoint.windows()]
    return [name for name in dict.fromkeys([*checkpoint.entries, *windows]) if name in arrays]


def _resolve_loaded(arrays: dict[str, Any], name: str, value: Compound) -> None:
    """A conjugated or negated tensor under its own name, carried out."""
    if value.kind in PENDING:
        array = arrays.pop(f"{name}/data")
        array = array.conj() if "conj" in value.kind else array
        arrays[name] = -array if "neg" in value.kind else array.copy()


def _why(value: NoData | Unreadable) -> str:
    return value.why if isinstance(value, NoData) else f"needs {value.needs}"


def refuse_dataless(checkpoint: Checkpoint) -> None:
    """FormatError where a tensor has no data in the file."""
    where = checkpoint.files[0].path
    empty = {n: _why(e.value) for n, e in checkpoint.entries.items() if isinstance(e.value, (NoData, Unreadable))}
    if empty:
        shown = ", ".join(f"{name!r} ({why})" for name, why in list(empty.items())[:5])
        raise FormatError(f"{where}: {len(empty)} tensors have no data: {shown}", hint="section=... loads another part")
