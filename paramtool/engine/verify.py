"""Proving an output: by the safetensors library, and name by name against the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from paramtool.engine.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.digest import same_bytes
from paramtool.engine.source import ELEMENTS, Source
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.plan import PENDING, Target, resolved, whole
from paramtool.model.view import View

Advance = Callable[[int], None]


def by_safetensors(
    path: str,
    targets: Iterable[Target],
    codes: Mapping[str, str],
    source: Source,
    advance: Advance = lambda n: None,
) -> Iterator[str]:
    """What the safetensors library finds different in a file from what was planned; nothing where all is well.

    Names, dtypes and shapes always; values in bounded pieces wherever NumPy (or ml_dtypes) has the dtype, and by raw
    bytes of the file otherwise.  `codes` maps dtype names to safetensors' own.
    """
    import ml_dtypes  # noqa: F401 - lets the library hand out bfloat16
    from safetensors import SafetensorError, safe_open

    from paramtool.formats import read_file

    wanted = {target.name: target for target in targets}
    written = read_file(path)
    with safe_open(path, framework="numpy") as file, Source(written) as raw:
        names = set(file.keys())
        yield from (f"{name!r}: is not in the file" for name in sorted(wanted.keys() - names))
        yield from (f"{name!r}: is in the file and was not planned" for name in sorted(names - wanted.keys()))
        for name in sorted(names & wanted.keys()):
            target = wanted[name]
            piece = file.get_slice(name)
            found = (piece.get_dtype(), tuple(piece.get_shape()))
            if found != (codes[target.dtype.name], target.shape):
                yield f"{name!r}: is {found[0]} {list(found[1])}; expected {target.dtype.name} {list(target.shape)}"
                continue
            try:
                same = _same_values(file, piece, target, source)
            except (TypeError, AttributeError, SafetensorError):  # a dtype that NumPy has no form for
                same = _same_raw(raw, target, source)
            advance(target.nbytes)
            if not same:
                yield f"{name!r}: differs from its source"


def _same_values(file: Any, piece: Any, target: Target, source: Source) -> bool:
    """Compare a tensor that the library hands out, in pieces, with the windows it was copied from."""
    import numpy as np

    for copy in target.copies:
        if copy.destination != target.view or not copy.is_plain:
            return _same_resolved(file.get_tensor(target.name), target, source)
    view = target.copies[0].terms[0][1]
    if not target.shape or not view.numel:
        raw = b"".join(bytes(chunk) for chunk in source.row_major(view, prove=False))
        return bool(file.get_tensor(target.name).tobytes() == raw)
    expected = source.array(view)
    for box in blocks(target.shape, BLOCK_NBYTES // target.dtype.block_bytes):
        found = np.ascontiguousarray(piece[box]).view(ELEMENTS[target.dtype.block_bytes])
        if found.tobytes() != expected[box].tobytes():
            return False
    return True


def _same_resolved(found: Any, target: Target, source: Source) -> bool:
    """Compare a conjugated or negated tensor: NumPy does to the source what the plan says."""
    import numpy as np

    from paramtool.engine.writer import number_type

    expected = np.empty(target.nbytes, "u1")
    for copy in target.copies:
        view = copy.destination
        strides = [stride * view.dtype.block_bytes for stride in view.strides]
        window = np.ndarray(view.shape, number_type(view), expected.data, view.byte_start, strides)
        for number, (sign, term) in enumerate(copy.terms):
            part = source.array(term).view(number_type(term))
            part = np.negative(part) if sign < 0 else part
            window[...] = part if number == 0 else window + part
    return bool(found.tobytes() == expected.tobytes())


def _same_raw(raw: Source, target: Target, source: Source) -> bool:
    """Compare the bytes that stand in the file with those of the source."""
    copy = target.copies[0]
    found = View(_storage_of(raw, target), target.dtype, 0, target.shape, target.view.strides)
    return copy.is_plain and same_bytes(raw, found, source, copy.terms[0][1])


def _storage_of(raw: Source, target: Target) -> int:
    """The storage of a stored tensor, whatever the record makes of it: safetensors has one for each name."""
    from paramtool.formats.safetensors import stored_names

    return stored_names(raw.checkpoint.files[0].path).index(target.name)


def by_name(
    found: Checkpoint, expected: Checkpoint, skip: Iterable[str] = (), advance: Advance = lambda n: None
) -> Iterator[str]:
    """What differs between two checkpoints, name by name: presence, dtype, shape, bytes.

    `skip` are names whose bytes are known to be equal.  Windows that were compared once are not compared again.
    """
    known = set(skip)
    with Source(found) as a, Source(expected) as b:
        seen: set[tuple[View, View]] = set()
        for name, entry in expected.entries.items():
            if name not in found.entries:
                yield f"{name!r}: is missing"
                continue
            value, target = found.entries[name].value, as_target(name, entry)
            if target is None or not isinstance(value, View):
                yield f"{name!r}: is no plain tensor, so it was not compared"
                continue
            if (value.dtype, value.shape) != (target.dtype, target.shape):
                yield (
                    f"{name!r}: is {value.dtype.name} {list(value.shape)}; "
                    f"the source has {target.dtype.name} {list(target.shape)}"
                )
                continue
            source = target.copies[0].terms[0][1]
            if name not in known and (value, source) not in seen and not _same_target(a, value, b, target):
                yield f"{name!r}: has other bytes than the source"
            seen.add((value, source))
            advance(source.nbytes)
        yield from (f"{name!r}: is not in the source" for name in found.entries if name not in expected.entries)


def as_target(name: str, entry: Entry) -> Target | None:
    """What a plain output of an entry holds; None where it has no plain form."""
    if isinstance(entry.value, View):
        return whole(name, entry.value)
    if isinstance(entry.value, Compound) and entry.value.kind in PENDING:
        return resolved(name, entry.value.kind, entry.value.parts["data"])
    return None


def _same_target(a: Source, found: View, b: Source, target: Target) -> bool:
    if target.copies[0].is_plain and len(target.copies) == 1:
        return same_bytes(a, found, b, target.copies[0].terms[0][1])
    return _same_resolved(a.array(found), target, b)
