"""Verifies an output: with the safetensors library, and name by name against the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from paramtool.engine.read.blocks import BLOCK_NBYTES
from paramtool.engine.read.elements import room
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import MAX_BLOCK_NBYTES, Stream, same, same_bytes, squeezed
from paramtool.engine.write.arithmetic import bands
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound, Entry, Value
from paramtool.model.plan import Target, resolved, whole
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
    """What differs between a file and the plan; empty if nothing does.

    The safetensors library opens the file, and with that judges its header: each offset against the shape and the type
    that it gives.  Its names, dtypes and shapes are compared with the plan, then the bytes with those of the source.
    `codes` maps dtype names to those of safetensors.
    """
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
        for name in sorted(names & wanted.keys(), key=numbers.__getitem__):
            target = wanted[name]
            piece = file.get_slice(name)
            found = (piece.get_dtype(), tuple(piece.get_shape()))
            if found != (codes[target.dtype.name], target.shape):
                yield f"{name!r}: is {found[0]} {list(found[1])}; expected {target.dtype.name} {list(target.shape)}"
                continue
            view = View(numbers[name], target.dtype, 0, target.shape, target.view.strides)
            if not same_target(raw, view, source, target):
                yield f"{name!r}: differs from its source"
            advance(target.nbytes)


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
            view = views.get(target.name)
            if view is None:
                yield f"{target.name!r}: is missing; converting the source gives it"
                continue
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
    """Whether a window holds the bytes that a target is made of: windows as they are, or what its copies calculate."""
    copies = target.copies
    if len(copies) == 1 and copies[0].destination == target.view:
        (copy,) = copies
        if copy.is_plain:
            return same_bytes(a, found, b, copy.terms[0][1])
        found, *read = squeezed(found, *copy.sources)
        terms = tuple((sign, view) for (sign, _), view in zip(copy.terms, read, strict=False))
        scale = read[-1] if isinstance(copy.scale, View) else copy.scale
        target = replace(target, shape=found.shape)
        target = replace(target, copies=(replace(copy, destination=target.view, terms=terms, scale=scale),))
    copies = target.copies
    if found.is_contiguous and all(copy.is_plain for copy in copies):
        places = [copy.destination.on(found.storage, found.byte_start + copy.destination.byte_start) for copy in copies]
        return all(same_bytes(a, at, b, copy.terms[0][1]) for at, copy in zip(places, copies, strict=True))
    stream = Stream(a, found)
    with room(MAX_BLOCK_NBYTES) as held:
        for band in bands(target, b):
            for at in range(0, len(band), len(held)):
                made = band[at : at + len(held)]
                stream.into(held[: len(made)])
                if not same(held[: len(made)], made):
                    return False
    return True
