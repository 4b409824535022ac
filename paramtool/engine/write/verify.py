"""Verifies an output: with the safetensors library, and name by name against the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from paramtool.engine.read.elements import room, same
from paramtool.engine.read.open_files import CHUNK_NBYTES
from paramtool.engine.read.pairs import same_windows
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import MAX_BLOCK_NBYTES, Stream, squeezed
from paramtool.engine.write.arithmetic import bands
from paramtool.formats import read_file
from paramtool.model.checkpoint import PENDING, Compound, Entries, Entry, Value
from paramtool.model.plan import Target, resolved, whole
from paramtool.model.view import View, Views

Advance = Callable[[int], None]


def by_safetensors(
    path: str,
    targets: Iterable[Target],
    codes: Mapping[str, str],
    source: Source,
    *,
    advance: Advance,
) -> Iterator[str]:
    """What differs between a file and the plan; empty if nothing does.

    The safetensors library opens the file, and with that judges its header: each offset against the shape and the type
    that it gives.  Its names, dtypes and shapes are compared with the plan, and then the bytes with those of the
    source.  `codes` maps dtype names to those of safetensors.
    """
    from paramtool.formats.safetensors.read import stored_names

    wanted = {target.name: target for target in targets}
    if wrong := list(_by_library(path, wanted, codes)):
        yield from wrong
        return
    numbers = {name: number for number, name in enumerate(stored_names(path))}
    views = {name: replace(target.view, storage=numbers[name]) for name, target in wanted.items()}
    with Source(read_file(path)) as written:
        yield from by_target((written, source), views, wanted.values(), advance)


def _by_library(path: str, wanted: Mapping[str, Target], codes: Mapping[str, str]) -> Iterator[str]:
    """What the safetensors library finds in a header that is not as planned."""
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(path, framework="numpy")
    except SafetensorError as error:
        yield f"the safetensors library cannot open it: {error}"
        return
    with opened as file:
        names = set(file.keys())
        yield from (f"{name!r}: is not in the file" for name in sorted(wanted.keys() - names))
        yield from (f"{name!r}: is in the file and was not planned" for name in sorted(names - wanted.keys()))
        for name in sorted(names & wanted.keys()):
            target, piece = wanted[name], file.get_slice(name)
            found = (piece.get_dtype(), tuple(piece.get_shape()))
            if found != (codes[target.dtype.name], target.shape):
                yield f"{name!r}: is {found[0]} {list(found[1])}; expected {target.dtype.name} {list(target.shape)}"


def by_zipfile(path: str, *others: object) -> Iterator[str]:
    """What Python's zipfile finds wrong with an archive: its structure, names, and the CRCs of small members.

    Those of large ones are compared while their bytes are, by name.
    """
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as payload:
                    if member.file_size < CHUNK_NBYTES:
                        payload.read()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        yield f"zipfile: {error}"


Sources = tuple[Source, Source]
"""What an output is read from, and what its source is."""


def by_name(
    sources: Sources,
    found: Entries,
    expected: Entries,
    advance: Advance = lambda n: None,
    *,
    skip: Iterable[str] = (),
    cast: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """What differs between the entries of two checkpoints, name by name: presence, dtype, shape, bytes.

    `skip` has names whose bytes are known to be equal.  A pair of windows is compared only once.  `cast` is
    {name: the dtype that `expected` has}, of tensors that `found` has in another dtype, as `Target.cast` rounds them.
    """
    known = set(skip)
    lines: list[str | tuple[View, View]] = []
    """What is wrong, or the pair of windows that may turn out to be."""
    pairs: dict[tuple[View, View], tuple[View, Target, str]] = {}
    for name, entry in expected.items():
        if name not in found:
            lines.append(f"{name!r}: is missing")
            continue
        value, target = found[name].value, as_target(name, entry)
        if target is None or not isinstance(value, View):
            lines += _compound_differences(name, value, entry.value, sources)
            continue
        rounded = ""
        if target.dtype.name == cast.get(name) and value.dtype != target.dtype:
            target = target.cast(value.dtype)
            rounded = f", rounded from {cast[name]} to {value.dtype.name}"
        if (value.dtype, value.shape) != (target.dtype, target.shape):
            lines.append(
                f"{name!r}: is {value.dtype.name} {list(value.shape)}; "
                f"the source has {target.dtype.name} {list(target.shape)}"
            )
            continue
        pair = value, target.copies[0].source
        if name in known:
            advance(target.nbytes)
        elif pair not in pairs:
            lines.append(pair)
            pairs[pair] = value, target, f"{name!r}: its bytes differ from the source{rounded}"
    same = same_targets(sources, [(view, target) for view, target, _ in pairs.values()], advance)
    different = {pair: line for (pair, (*_, line)), is_same in zip(pairs.items(), same, strict=True) if not is_same}
    for line in lines:
        if isinstance(line, str):
            yield line
        elif line in different:
            yield different[line]
    yield from (f"{name!r}: is not in the source" for name in found if name not in expected)


def by_target(
    sources: Sources,
    views: Views,
    targets: Iterable[Target],
    advance: Advance = lambda n: None,
    *,
    cast: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """What differs between tensors of an output and what targets make of its source; `cast` is as of `by_name`."""
    pairs: list[tuple[View, Target]] = []
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
        pairs.append((view, target))
    for (_, target), is_same in zip(pairs, same_targets(sources, pairs, advance), strict=True):
        if not is_same:
            yield f"{target.name!r}: its bytes differ from what converting the source gives"


def _compound_differences(name: str, found: Value, expected: Value, sources: Sources) -> Iterator[str]:
    """What differs between two values that are not plain tensors: their kind, their parts, or the lack of data."""
    if isinstance(found, Compound) and isinstance(expected, Compound):
        if (found.kind, found.parts.keys()) != (expected.kind, expected.parts.keys()):
            yield f"{name!r}: is {found.kind} of {', '.join(found.parts)}; the source has {expected.kind}"
            return
        for label, view in expected.parts.items():
            other = found.parts[label]
            same = (other.dtype, other.shape) == (view.dtype, view.shape) and same_windows(sources, [(other, view)])[0]
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


def same_targets(
    sources: Sources, pairs: Sequence[tuple[View, Target]], advance: Advance = lambda n: None
) -> list[bool]:
    """Whether windows hold the bytes that targets are made of: windows as they are, or what copies calculate."""
    plain = [_windows(*pair) for pair in pairs]
    same = iter(same_windows(sources, [two for windows in plain for two in windows], advance))
    found = []
    for pair, windows in zip(pairs, plain, strict=True):
        found.append(list(islice(same, len(windows))) or [_is_made(sources, *pair)])
        if not windows:
            advance(pair[1].nbytes)
    return list(map(all, found))


def _windows(found: View, target: Target) -> list[tuple[View, View]]:
    """A window in pieces, each with the window of the source that it is as it is; none where anything is calculated."""
    copies = target.copies
    if not copies or not all(copy.is_plain for copy in copies):
        return []
    if len(copies) == 1 and copies[0].destination == target.view:
        return [(found, copies[0].source)]
    if not found.is_contiguous:
        return []
    places = [copy.destination.on(found.storage, found.byte_start + copy.destination.byte_start) for copy in copies]
    return [(at, copy.source) for at, copy in zip(places, copies, strict=True)]


def _is_made(sources: Sources, found: View, target: Target) -> bool:
    """Whether a window holds what the copies of a target calculate."""
    a, b = sources
    if len(target.copies) == 1 and target.copies[0].destination == target.view:
        (copy,) = target.copies
        found, *read = squeezed(found, *copy.sources)
        terms = tuple((sign, view) for (sign, _), view in zip(copy.terms, read, strict=False))
        scale = read[-1] if isinstance(copy.scale, View) else copy.scale
        target = replace(target, shape=found.shape)
        target = replace(target, copies=(replace(copy, destination=target.view, terms=terms, scale=scale),))
    a.prove(found.number)
    stream = Stream(a, found)
    with room(MAX_BLOCK_NBYTES) as held:
        for band in bands(target, b, proves=True):
            for at in range(0, len(band), len(held)):
                made = band[at : at + len(held)]
                stream.into(held[: len(made)])
                if not same(held[: len(made)], made):
                    return False
    return True
