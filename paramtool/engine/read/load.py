"""Loading: one buffer for each alias set, and every name a window on the buffer of its alias set."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.engine.read.elements import Array
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError, some
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias, AliasGraph
from paramtool.model.checkpoint import Compound, Value
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import MAX_EXTENT, Shape, View, contiguous

ALIGNMENT = 16
"""A buffer begins on a multiple of the largest element, so that windows stay aligned in it."""


@frozen
class LoadBuffer:
    """The buffer of one alias set: `nbytes` bytes, and the windows of the names on them."""

    nbytes: int
    windows: tuple[tuple[str, View], ...]
    owner: View
    byte_start: int
    """Where in the owner's row-major bytes this alias set begins."""


def load_buffers(graph: AliasGraph) -> Iterator[LoadBuffer]:
    """A buffer for every alias set of a graph; names that are only equal are in different alias sets."""
    found = grouped(((member.owner, member.alias_set), member) for member in graph.names.values())
    for (owner, _), members in found.items():
        if len(members) == 1 and _is_transposed(members[0]):
            member = members[0]
            view = member.source
            window = contiguous(member.name, view.dtype, view.shape)
            yield LoadBuffer(view.nbytes, ((member.name, window),), view, 0)
            continue
        start = min(member.window.byte_start for member in members)
        start -= start % ALIGNMENT
        stop = max(member.window.byte_stop for member in members)
        windows = tuple((m.name, m.window.on(owner, m.window.byte_start - start)) for m in members)
        yield LoadBuffer(stop - start, windows, graph.owners[owner], start)


def _is_transposed(member: Alias) -> bool:
    """Whether a name has the bytes of others in another order by content; a name that repeats elements is not."""
    window = member.window
    repeats = window.nbytes > window.byte_stop - window.byte_start
    return member.evidence == "content" and not window.is_contiguous and not repeats


def fill(source: Source, part: LoadBuffer, buffer: memoryview) -> None:
    """Read the bytes of an alias set into a buffer of its size."""
    owner = part.owner
    start, stop = part.byte_start, part.byte_start + part.nbytes
    if owner.is_contiguous:
        base = owner.byte_start
        at = 0
        for chunk in source.chunks(owner.number, base + start, base + stop):
            buffer[at : at + len(chunk)] = chunk
            at += len(chunk)
        return
    at = 0
    for block in source.row_major(owner):
        low, high = max(start, at), min(stop, at + len(block))
        if low < high:
            buffer[low - start : high - start] = block[low - at : high - at]
        at += len(block)


def arrays(source: Source, graph: AliasGraph) -> dict[str, Array]:
    """Every name as a writable array; names of one alias set are windows on one buffer.

    Pending conjugations and negations are carried out under the tensor's own name, once for each window.
    """
    import ml_dtypes  # noqa: F401 - registers bfloat16 and the float8 types with NumPy
    import numpy as np

    found: dict[str, Array] = {}
    for part in load_buffers(graph):
        try:
            buffer = np.empty(part.nbytes, "u1")
        except (MemoryError, ValueError):
            raise cannot_allocate(source, part) from None
        fill(source, part, buffer.data)
        for name, window in part.windows:
            dtype, view = numpy_form(window)
            strides = [stride * view.dtype.block_bytes for stride in view.strides]
            if view.nbytes > MAX_EXTENT:
                raise FormatError(
                    f"{source.checkpoint.path}: {name!r:.200}: NumPy cannot make an array of "
                    f"{view.nbytes} bytes, even as a view of fewer bytes",
                    hint="paramtool.torch.load_file loads it as a view",
                )
            try:
                found[name] = np.ndarray(view.shape, dtype, buffer.data, view.byte_start, strides)
            except ValueError as error:  # [0, 2**63 - 1] has no bytes, and is still too large
                where = f"{source.checkpoint.path}: {name!r:.200}"
                raise FormatError(f"{where}: NumPy cannot make an array of {list(view.shape)}: {error}") from None
    entries = source.checkpoint.entries
    pending = {name: found.pop(f"{name}/data") for name in graph.pending}
    resolved = {owner: _resolved(pending[owner], entries[owner].value) for owner in {*graph.pending.values()}}
    found |= {name: resolved[owner][...] for name, owner in graph.pending.items()}
    order = dict.fromkeys([*entries, *(name for name, _ in source.checkpoint.windows())])
    return {name: found[name] for name in order if name in found}


def cannot_allocate(source: Source, part: LoadBuffer) -> FormatError:
    """The error for an alias set that does not fit in memory."""
    names = [name for name, _ in part.windows]
    return FormatError(
        f"{source.checkpoint.path}: {some(names, 1)}: cannot allocate {part.nbytes} bytes",
        hint="the file may be a decompression bomb, or memory is limited; only=... loads a part",
    )


def _resolved(array: Array, value: Value) -> Array:
    """A copy of a pending tensor with its signs carried out."""
    import numpy as np

    assert isinstance(value, Compound)
    found = array.copy()
    if "conj" in value.kind:
        imaginary = found[..., 1] if value.parts["data"].dtype.name == "complex32" else found.imag
        np.negative(imaginary, out=imaginary)
    if "neg" in value.kind:
        np.negative(found, out=found)
    return found


NUMPY_STAND_INS = {
    "qint8": "int8", "quint8": "uint8", "qint32": "int32", "bits8": "uint8", "bits16": "uint16",
    **dict.fromkeys(("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2"), "uint8"),
    **{f"{sign}int{bits}": f"{sign}int8" for sign in ("", "u") for bits in range(1, 8)},
}  # fmt: skip
"""Types of torch that neither NumPy nor ml_dtypes has, and the integer types that hold their bytes."""


def numpy_form(view: View) -> tuple[str, View]:
    """The NumPy dtype for a window, and the window in elements of that type.

    Packed types (float4, float6) become uint8: their last axis is counted in bytes if whole blocks fill it, else the
    result is one row of bytes.  complex32 becomes pairs of float16 on a new last axis.
    """
    dtype = view.dtype
    if dtype.block_elements != 1:
        return "uint8", _packed(view, dtype)
    if dtype.name == "complex32":
        shape, strides = (*view.shape, 2), (*(2 * stride for stride in view.strides), 1)
        half = dtype.component
        assert half is not None
        return "float16", View(view.storage, half, 2 * view.offset, shape, strides)
    return NUMPY_STAND_INS.get(dtype.name, dtype.name), view


def _packed(view: View, dtype: DType) -> View:
    shape: Shape = (view.nbytes,)
    if view.shape and view.shape[-1] % dtype.block_elements == 0:
        shape = (*view.shape[:-1], dtype.nbytes(view.shape[-1]))
    return contiguous(view.storage, DTYPES["uint8"], shape, view.byte_start)
