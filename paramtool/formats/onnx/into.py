"""An ONNX model with other values in some of its initializers, and everything else of it byte for byte.

    raw_data, packed float_data    replaced in place: no length changes
    int32_data and the like        become raw_data; the lengths of the messages around them follow
    in another file                that file is copied with other values to NAME.data; location and offset follow

Source: onnx/onnx.proto, TensorProto; docs/ExternalData.md (onnx 1.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from paramtool.errors import PlanError, listed, plural
from paramtool.formats.files import Contents, open_source
from paramtool.formats.onnx import _layers, proto, write
from paramtool.formats.onnx.model import GraphWalk, walked
from paramtool.formats.output import OutputFile, Segment, joined, spliced
from paramtool.formats.protobuf import BYTES, Reader, Span
from paramtool.grouping import grouped
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange
from paramtool.model.view import overlaps

DATA = frozenset(
    number for number, field in proto.TENSOR.items() if field.name in ("raw_data", "segment", *proto.TYPED_FIELDS)
)
"""The numbers of the fields of a TensorProto that hold its data."""
ELSEWHERE = frozenset(
    number for number, field in proto.TENSOR.items() if field.name in ("external_data", "data_location")
)
"""The numbers of those that say where its data is."""


def lay_out(model: Checkpoint, targets: Mapping[str, Target], name: str = "") -> tuple[OutputFile, ...]:
    """The model with the targets in place of its own tensors, as the file `name`; before it the file with its data.

    PlanError for tensors that cannot have other values: of quantised models, of nodes into which the exporter folded
    several layers, and for views of others.
    """
    path = model.path
    file, source = open_source(path)
    with file:
        walk = walked(Reader(Contents(file, source.nbytes), path), source)
        _refuse(model, targets, walk)
        views = model.views()
        inside: dict[tuple[int, int], Target] = {}
        beside: dict[str, dict[tuple[int, int], Target]] = {}
        edits: dict[Span, tuple[Segment, ...]] = {}
        for own, target in targets.items():
            backing = model.storages[int(views[own].storage)].backing
            if not isinstance(backing, ByteRange):
                span = walk.places[own]
                edits[span] = (*_others(walk.reader, span, DATA), write.opening(9, target.nbytes), target)
                continue
            start = backing.start + views[own].byte_start
            place = start, start + target.nbytes
            (inside if backing.file == path else beside.setdefault(backing.file, {}))[place] = target
        data, bases = write.data(
            {one.path: spliced(ByteRange(one.path, 0, one.nbytes), beside.get(one.path, {})) for one in model.files[1:]}
        )
        if bases:
            location = (name or "model.onnx") + write.DATA_SUFFIX
            edits |= dict(_moved(model, walk, bases, location))
        whole = Span(0, source.nbytes)
        segments = _filled(path, tuple(_message(walk.reader, whole, edits, sorted(edits))), inside)
    if not bases:
        return (OutputFile("", segments),)
    return OutputFile(location, data), OutputFile(name or "model.onnx", segments)


def described(model: Checkpoint) -> object:
    """What a model computes, by its nodes."""
    file, source = open_source(model.path)
    found: list[dict[str, object]] = []
    with file:
        walked(Reader(Contents(file, source.nbytes), model.path), source, found)
    return found


def _refuse(model: Checkpoint, targets: Mapping[str, Target], walk: GraphWalk) -> None:
    """PlanError that names every tensor that cannot have other values."""
    views = model.views()
    filled = {views[name] for name in targets}
    by_storage = grouped((int(view.storage), name) for name, view in views.items())
    refused = []
    for name in targets:
        if why := _layers.problem(walk.uses.found.get(name, ())):
            refused.append(f"{name!r:.200}: {why}")
        elif name not in walk.places:
            refused.append(f"{name!r:.200}: is a part of a sparse tensor")
        others = [one for one in by_storage[int(views[name].storage)] if views[one] not in filled]
        if cut := [one for one in others if overlaps(views[one], views[name])]:
            refused.append(f"{name!r:.200}: shares bytes with {cut[0]!r:.200}, which is not filled")
    if refused:
        path = model.path
        head = f"{path}: {plural(len(refused), 'tensor')} cannot be given other values:"
        raise PlanError(listed(head, refused), hint=HINT)


HINT = (
    "export the model again from the framework: unquantised, and with torch's training=TrainingMode.PRESERVE, so that "
    "no layer is folded into another"
)


def _others(reader: Reader, span: Span, without: frozenset[int]) -> Iterator[ByteRange]:
    """The fields of a message apart from some, as ranges of the file."""
    at = span.start
    for number, _, content in reader.fields(span):
        if number not in without:
            yield ByteRange(reader.where, at, content.stop)
        at = content.stop


def _moved(
    model: Checkpoint, walk: GraphWalk, bases: Mapping[str, int], location: str
) -> Iterator[tuple[Span, tuple[Segment, ...]]]:
    """The TensorProtos whose data is in another file, with its new place."""
    for name, view in model.views().items():
        backing = model.storages[int(view.storage)].backing
        if name in walk.places and isinstance(backing, ByteRange) and backing.file in bases:
            span = walk.places[name]
            start = bases[backing.file] + backing.start + view.byte_start
            fields = write.external(location, start, view.nbytes)
            yield span, (*_others(walk.reader, span, ELSEWHERE), *fields)


def _message(
    reader: Reader, span: Span, edits: Mapping[Span, Sequence[Segment]], inside: Sequence[Span]
) -> Iterator[Segment]:
    """A message in which those of `edits` that are `inside`, in order, have other content; lengths around follow."""
    if not inside:
        if span.nbytes:
            yield ByteRange(reader.where, span.start, span.stop)
        return
    at, kept, k = span.start, span.start, 0
    for number, wire, content in reader.fields(span):
        first = k
        while k < len(inside) and inside[k].stop <= content.stop:
            k += 1
        if k > first and wire == BYTES:
            if at > kept:
                yield ByteRange(reader.where, kept, at)
            mine = inside[first:k]
            new = edits[content] if mine == [content] else tuple(_message(reader, content, edits, mine))
            yield from write.nested(number, new)
            kept = content.stop
        at = content.stop
    if at > kept:
        yield ByteRange(reader.where, kept, at)


def _filled(path: str, segments: Iterable[Segment], fills: Mapping[tuple[int, int], Target]) -> tuple[Segment, ...]:
    """Segments with the ranges of `fills` in the model's own file replaced."""
    found: list[Segment] = []
    for segment in segments:
        if isinstance(segment, ByteRange) and segment.file == path:
            mine = {
                place: one for place, one in fills.items() if segment.start <= place[0] and place[1] <= segment.stop
            }
            found += spliced(segment, mine)
        else:
            found.append(segment)
    return joined(found)
