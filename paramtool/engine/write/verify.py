"""Verifies an output: with the safetensors library, and name by name against the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paramtool.engine.compare.difference import same_bytes, squeezed
from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.elements import ELEMENTS
from paramtool.engine.read.source import Source
from paramtool.engine.write.arithmetic import boxes, element_type, value
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, Entry, Value
from paramtool.model.plan import Copy, Target, resolved, whole
from paramtool.model.view import View

Advance = Callable[[int], None]


def by_safetensors(
    path: str,
    targets: Iterable[Target],
    codes: Mapping[str, str],
    source: Source,
    *,
    advance: Advance = lambda n: None,
) -> Iterator[str]:
    """What differs between a file, as the safetensors library reads it, and the plan; empty if nothing does.

    Names, dtypes and shapes are always compared.  Values are compared in bounded pieces if NumPy (or ml_dtypes) has the
    dtype, and otherwise by the raw bytes of the file.  `codes` maps dtype names to those of safetensors.
    """
    import ml_dtypes  # noqa: F401 - so that the library can return bfloat16
    from safetensors import SafetensorError, safe_open

    from paramtool.formats import read_file
    from paramtool.formats.safetensors.read import stored_names

    numbers = {name: number for number, name in enumerate(stored_names(path))}
    wanted = {target.name: target for target in targets}
    written = read_file(path)
    try:
        opened = safe_open(path, framework="numpy")
    except SafetensorError as error:
        yield f"the safetensors library cannot open it: {error}"
        return
    with opened as file, Source(written) as raw:
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
                if target.nbytes > WHOLE_NBYTES and any(isinstance(copy.scale, View) for copy in target.copies):
                    same = _same_raw(raw, numbers[name], target, source)
                elif _is_whole(target):
                    same = _same_values(file, piece, target, source)
                elif _is_cast(target):
                    found = piece if target.shape else file.get_tensor(target.name)
                    same = _same_pieces(found, target.copies[0], source)
                else:
                    same = _same_parts(file.get_tensor(target.name).reshape(-1), target, source)
            except (TypeError, AttributeError, SafetensorError):  # a dtype that NumPy does not have
                same = _same_raw(raw, numbers[name], target, source)
            advance(target.nbytes)
            if not same:
                yield f"{name!r}: differs from its source"


def by_zipfile(path: str, advance: Advance = lambda n: None) -> Iterator[str]:
    """What Python's zipfile finds wrong with an archive: its structure, names, and the CRC of every member."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as payload:
                    while data := payload.read(BLOCK_NBYTES):
                        advance(len(data))
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        yield f"zipfile: {error}"


def _same_values(file: Any, piece: Any, target: Target, source: Source) -> bool:
    """Compare a tensor that the library returns, in pieces, with the windows it was made from."""
    import numpy as np

    view = target.copies[0].terms[0][1]
    if not target.nbytes:  # NumPy has no array for [0, 2**62]; dtype and shape were compared before
        return True
    if not target.shape:
        found = file.get_tensor(target.name)
        return bool(found.tobytes() == source.array(view).all().tobytes())
    return all(
        np.ascontiguousarray(piece[box]).tobytes() == np.ascontiguousarray(source.array(view)[box]).tobytes()
        for box in blocks(target.shape, BLOCK_NBYTES // target.dtype.block_bytes)
    )


WHOLE_NBYTES = 64 << 20
"""The largest weight of codes and scales that the library reads, which gives it as a whole."""


def _same_pieces(found: Any, copy: Copy, source: Source) -> bool:
    """Compare what gives arrays where it is indexed with what a copy writes, block by block."""
    import numpy as np

    kind = element_type(copy)
    for box in boxes(copy):
        piece = np.ascontiguousarray(found[box])
        wanted = np.broadcast_to(value(copy, box, source), piece.shape).astype(kind, copy=False)
        if piece.tobytes() != np.ascontiguousarray(wanted).tobytes():
            return False
    return True


def _is_cast(target: Target) -> bool:
    """Whether a target is a cast of one copy with the same shape."""
    copies = target.copies
    return len(copies) == 1 and copies[0].is_cast and copies[0].destination == target.view


def _is_whole(target: Target) -> bool:
    """Whether a target is a plain copy of one window with the same shape."""
    copies = target.copies
    return len(copies) == 1 and copies[0].is_plain and copies[0].destination == target.view


def _same_raw(raw: Source, number: int, target: Target, source: Source) -> bool:
    """Compare the bytes in the file with those of the source."""
    found = View(number, target.dtype, 0, target.shape, target.view.strides)
    return same_target(raw, found, source, target)


def _same_parts(flat: Any, target: Target, source: Source) -> bool:
    """Compare a whole target, flattened, with its copies, each block by block."""
    import numpy as np

    flat = flat.view(ELEMENTS[target.dtype.block_bytes])
    for copy in target.copies:
        view, kind = copy.destination, element_type(copy)
        size = view.dtype.block_bytes
        part = np.ndarray(view.shape, kind, flat.data, view.byte_start, [stride * size for stride in view.strides])
        if not _same_pieces(part, copy, source):
            return False
    return True


def by_name(
    found: Checkpoint,
    expected: Checkpoint,
    skip: Iterable[str] = (),
    advance: Advance = lambda n: None,
    *,
    cast: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """What differs between two checkpoints, name by name: presence, dtype, shape, bytes.

    `skip` has names whose bytes are known to be equal.  A pair of windows is compared only once.  `cast` is
    {name: the dtype that `expected` has}, of tensors that `found` has in another dtype, as `Target.cast` rounds them.
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
                yield from _compound_differences(name, value, entry.value, a, b=b)
                continue
            if is_cast := target.dtype.name == cast.get(name) and value.dtype != target.dtype:
                target = target.cast(value.dtype)
            if (value.dtype, value.shape) != (target.dtype, target.shape):
                yield (
                    f"{name!r}: is {value.dtype.name} {list(value.shape)}; "
                    f"the source has {target.dtype.name} {list(target.shape)}"
                )
                continue
            source = target.copies[0].terms[0][1]
            if name not in known and (value, source) not in seen and not same_target(a, value, b, target):
                rounded = f", rounded from {cast[name]} to {value.dtype.name}" if is_cast else ""
                yield f"{name!r}: its bytes differ from the source{rounded}"
            seen.add((value, source))
            advance(source.nbytes)
        yield from (f"{name!r}: is not in the source" for name in found.entries if name not in expected.entries)


def by_target(
    found: Checkpoint, expected: Checkpoint, targets: Iterable[Target], cast: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """What differs between tensors of one checkpoint and what targets make of another; `cast` is as of `by_name`."""
    views = found.views()
    with Source(found) as a, Source(expected) as b:
        for target in targets:
            view = views[target.name]
            if view.dtype != target.dtype:
                if cast.get(target.name) != target.dtype.name:
                    yield f"{target.name!r}: is {view.dtype.name}; converting the source gives {target.dtype.name}"
                    continue
                target = target.cast(view.dtype)
            if not same_target(a, view, b, target):
                yield f"{target.name!r}: its bytes differ from what converting the source gives"


def _compound_differences(name: str, found: Value, expected: Value, a: Source, *, b: Source) -> Iterator[str]:
    """What differs between two values that are not plain tensors: their kind, their parts, or the lack of data."""
    if isinstance(found, Compound) and isinstance(expected, Compound):
        if (found.kind, found.parts.keys()) != (expected.kind, expected.parts.keys()):
            yield f"{name!r}: is {found.kind} of {', '.join(found.parts)}; the source has {expected.kind}"
            return
        for label, view in expected.parts.items():
            other = found.parts[label]
            same = (other.dtype, other.shape) == (view.dtype, view.shape) and same_bytes(a, other, b, view)
            if not same:
                yield f"{name + '/' + label!r}: differs from the source"
        if dict(found.facts) != dict(expected.facts):
            yield f"{name!r}: differs from the source in its {', '.join(expected.facts)}"
    elif found != expected:
        yield f"{name!r}: is {_kind(found)}; the source has {_kind(expected)}"


def _kind(value: Value) -> str:
    return value.kind if isinstance(value, Compound) else f"a {type(value).__name__}"


def as_target(name: str, entry: Entry) -> Target | None:
    """An entry as a target of a plain output; None if it cannot be stored as a plain tensor."""
    if isinstance(entry.value, View):
        return whole(name, entry.value)
    if isinstance(entry.value, Compound) and entry.value.kind in PENDING:
        return resolved(name, entry.value.kind, entry.value.parts["data"])
    return None


def same_target(a: Source, found: View, b: Source, target: Target) -> bool:
    """Compare a window with the windows that a target is made from."""
    if _is_whole(target):
        return same_bytes(a, found, b, target.copies[0].terms[0][1])
    if _is_cast(target):
        (copy,) = target.copies
        found, *read = squeezed(found, *copy.sources)
        terms = tuple((sign, view) for (sign, _), view in zip(copy.terms, read, strict=False))
        scale = read[-1] if isinstance(copy.scale, View) else copy.scale
        return _same_pieces(a.array(found), replace(copy, destination=found, terms=terms, scale=scale), b)
    if found.is_contiguous:  # what a copy writes into a target is where it is in the tensor
        base, parts = found.byte_start, [copy.destination for copy in target.copies]
        places = [part.on(found.storage, base + part.byte_start) for part in parts]
        return all(_same_pieces(a.array(at), copy, b) for at, copy in zip(places, target.copies, strict=True))
    import numpy as np

    return _same_parts(np.ascontiguousarray(a.array(found).all()).reshape(-1), target, b)
