"""Layers that are not recurrent: which tensors of a source are a layer, and the copies into one of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramtool.layouts.names import EXTRAS, REFUSED
from paramtool.lazy_dataclass import frozen
from paramtool.model import conventions
from paramtool.model.checkpoint import INERT, Checkpoint, LayerPart
from paramtool.model.curves import alike
from paramtool.model.dtype import DType, is_widened
from paramtool.model.images import FIRST
from paramtool.model.plan import Copy, Target
from paramtool.model.view import View, contiguous

FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDER = {
    "float8_e4m3fn": FLOATS,
    "float8_e5m2": FLOATS,
    "int8": ("int16", "int32", "int64"),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64"),
}
"""{dtype of one byte: those that hold each of its values exactly}."""


@frozen
class LayerTensor:
    """One tensor of a layer."""

    own: str
    """Its name in the layer."""
    name: str
    """Its name in the file."""
    view: View
    said: LayerPart | None = None


@frozen
class PlainLayer:
    """The tensors of a layer that is not recurrent, in the order of the file."""

    name: str
    """The user's name of the layer, or the part of the names that its tensors have in common."""
    kind: str
    """What the file says that it is; empty if it does not say."""
    pieces: tuple[LayerTensor, ...]


class Turn(NamedTuple):
    """An axis along which an image is flattened, whose channels the source has at another place than the model."""

    channels: int
    source: str
    """`channels-first` or `channels-last`."""
    model: str

    def axes(self, text: str, axis: str, order: str, rank: int) -> str:
        """Axes in which one is taken apart, or in which those of an image are named, of a tensor with so many.

        >>> Turn(4, "channels-first", "channels-last").axes("out in", "in", "channels-first", 2)
        'out (in_channel in_place)'
        """
        one = axis.removeprefix("*")
        place = f"*{one}_place" if text == "*n" and rank > 1 else f"{one}_place"
        words = [f"{one}_channel", place] if order == FIRST else [place, f"{one}_channel"]
        two = " ".join(words) if place.startswith("*") else f"({' '.join(words)})"
        return " ".join(two if word == axis else word for word in text.split())


@frozen
class Filling:
    """One tensor of the model and what it is filled from."""

    piece: LayerTensor
    source: str
    """The name of a tensor of the source."""
    target: Target
    source_axes: str = ""
    axes: str = ""
    """Empty for a tensor that is taken as it is."""
    is_asked: bool = False
    """Whether a person said the order of its axes."""
    _members = "source model=piece.name axes source_axes transposed=is_moved widened_from=widened+"

    @property
    def is_moved(self) -> bool:
        """Whether its axes are in another order than in the source."""
        (copy,) = self.target.copies
        return any(view.strides != copy.destination.strides for _, view in copy.terms)

    @property
    def widened(self) -> str:
        """The dtype of the source, if the model has another."""
        (copy,) = self.target.copies
        return copy.source.dtype.name if copy.is_cast else ""


def model_layers(model: Checkpoint, taken: Iterable[str]) -> list[PlainLayer]:
    """The layers of a model; a tensor of which the file says nothing is a layer of its own."""
    groups: dict[tuple[str, str], list[LayerTensor]] = {}
    for name, view, said in _weights(model, taken):
        piece = LayerTensor(said.part if said else split(name)[1], name, view, said)
        groups.setdefault((said.layer if said else name, said.kind if said else ""), []).append(piece)
    return [PlainLayer(name, kind, tuple(pieces)) for (name, kind), pieces in groups.items()]


def source_layers(source: Checkpoint, taken: Iterable[str]) -> list[PlainLayer]:
    """The layers that the tensors of a source could be; a tensor can be in several."""
    groups: dict[tuple[str, str], list[LayerTensor]] = {}
    for name, view, said in _weights(source, taken):
        if said is not None:
            groups.setdefault((said.layer, said.kind), []).append(LayerTensor(said.part, name, view, said))
        for layer, own in () if said is not None and said.kind else _splits(name):
            groups.setdefault((layer, ""), []).append(LayerTensor(own, name, view))
    return [PlainLayer(name, kind, tuple(pieces)) for (name, kind), pieces in groups.items()]


def _weights(checkpoint: Checkpoint, taken: Iterable[str]) -> Iterator[tuple[str, View, LayerPart | None]]:
    """The tensors that are weights and not `taken`, and what the file says of them."""
    gone = set(taken)
    for name, entry in checkpoint.entries.items():
        said = checkpoint.parts.get(name)
        is_weight = entry.role in ("model", "buffer") and not (said and said.is_state)
        if is_weight and name not in gone and isinstance(entry.value, View):
            yield name, entry.value, said


def _bare(name: str) -> str:
    """A name without what a library puts around it.

    >>> _bare("arg:fc1_weight"), _bare("dense/kernel:0")
    ('fc1_weight', 'dense/kernel')
    """
    return name.removeprefix("arg:").removeprefix("aux:").removesuffix(":0")


def split(name: str) -> tuple[str, str]:
    """The layer and the own name of a tensor, by the last separator."""
    bare = _bare(name)
    at = max(bare.rfind("."), bare.rfind("/"))
    return (bare[:at], bare[at + 1 :]) if at >= 0 else ("", bare)


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Every (layer, own name) that a tensor's name could be, the shortest own name last."""
    bare = _bare(name)
    ends = [own for own in conventions.OWN_NAMES if f".{bare}".endswith((f".{own}", f"/{own}", f"_{own}"))]
    found = [split(name), *((bare[: -len(own) - 1], own) for own in ends)]
    yield from dict.fromkeys(sorted(found, key=lambda item: -len(item[1])))


def role(name: str, said: LayerPart | None) -> tuple[str, set[str]]:
    """The layer of a tensor, and the parts of it that the tensor is or can be by its name.

    >>> role("bn.running_var", None), role("bn0_gamma", None), role("fc.kernel", None)
    (('bn', {'variance'}), ('bn0', {'scale'}), ('fc', {'weight'}))
    """
    if said is not None and said.kind:
        return said.layer, {said.part}
    for layer, own in _splits(name):
        if parts := {row.tensors[own][0] for row in conventions.CONVENTIONS if own in row.tensors}:
            return layer, parts
    return split(name)[0], set()


def unmade(names: Sequence[str]) -> list[str]:
    """What to do about tensors that weights are calculated from, such as those of weight norm."""
    rows = [(sum(row.read(name) is not None for name in names), row.hint) for row in EXTRAS if row.then == REFUSED]
    count, hint = max(rows, key=lambda row: row[0])
    return [hint] if count else []


def axes_in(source: LayerTensor, kind: str, part: str) -> str | None:
    """The axes of a tensor of the source if it is that part of a layer of that kind; None if it is not."""
    said = source.said
    if said is not None and said.kind:
        return said.axes if (said.kind, said.part) == (kind, part) else None
    return conventions.axes_of(kind, part, source.own) or None


def partners(source: PlainLayer, model: PlainLayer) -> dict[str, LayerTensor]:
    """{a tensor of the model: the tensor of the source that is the same part of its layer}."""
    found: dict[str, LayerTensor] = {}
    if not model.kind:
        return _alike(source, model)
    if source.kind not in ("", model.kind):
        return {}
    rows = conventions.of_kind(model.kind)
    own = {piece.own for piece in source.pieces if piece.said is None or not piece.said.kind}
    tables = [row.tensors for row in rows if own <= row.tensors.keys() | set(INERT)]
    for piece in model.pieces:
        for other in source.pieces:
            is_said = other.said is not None and other.said.kind
            is_row = any(table.get(other.own, ("",))[0] == piece.own for table in tables)
            if (is_said or is_row) and axes_in(other, model.kind, piece.own) is not None:
                found[piece.name] = other
    return found


def _alike(source: PlainLayer, model: PlainLayer) -> dict[str, LayerTensor]:
    """Of a layer of an unknown kind: by own names, else by shapes if each is there once."""
    by_own = {piece.own: piece for piece in source.pieces}
    if all(piece.own in by_own for piece in model.pieces):
        return {piece.name: by_own[piece.own] for piece in model.pieces}
    shapes = [piece.view.shape for piece in source.pieces]
    if len(set(shapes)) == len(shapes) == len(model.pieces):
        by_shape = {piece.view.shape: piece for piece in source.pieces}
        return {piece.name: by_shape[piece.view.shape] for piece in model.pieces if piece.view.shape in by_shape}
    return {}


def fits(source: PlainLayer, model: PlainLayer) -> bool:
    """Whether a layer has just the tensors of one of the model, of the same sizes."""
    if not model.kind:
        return False
    found = partners(source, model)
    used = {piece.name for piece in found.values()}
    rest = [p for p in source.pieces if p.name not in used and p.own not in INERT]
    return (
        len(found) == len(model.pieces) == len(used)
        and not rest
        and all(filling(found[piece.name], piece, model.kind) is not None for piece in model.pieces)
    )


def filling(
    source: LayerTensor, piece: LayerTensor, kind: str, force: str = "", turns: Mapping[str, Turn] | None = None
) -> Filling | None:
    """How a tensor of the model is filled from one of the source; None if the shapes do not fit.

    `force` is `transpose` or `as-is`, which a person said; `turns` are of axes that are taken apart.
    """
    mine = piece.said.axes if piece.said and piece.said.kind and not force else ""
    theirs = (axes_in(source, kind, piece.own) or "") if mine else ""
    if force == "transpose":
        mine, theirs = "in out", "out in"
    known = {}
    for axis, turn in (turns or {}).items():
        mine = turn.axes(mine, axis, turn.model, len(piece.view.shape))
        theirs = turn.axes(theirs, axis, turn.source, len(source.view.shape))
        known[f"{axis.removeprefix('*')}_channel"] = turn.channels
    if mine and theirs:
        windows = conventions.moved(source.view, theirs, piece.name, piece.view.shape, axes=mine, known=known)
    else:
        mine = theirs = ""
        same = source.view, contiguous(piece.name, source.view.dtype, piece.view.shape)
        windows = same if source.view.shape == piece.view.shape else None
    if windows is None:
        return None
    view, destination = windows
    dtype = piece.view.dtype
    copy = Copy(replace(destination, dtype=dtype), ((1, view),), names=(source.name,))
    if source.said is not None and source.said.constant is not None:
        copy = replace(copy, terms=(), shift=source.said.constant)
    return Filling(piece, source.name, Target(piece.name, dtype, piece.view.shape, (copy,)), theirs, mine, bool(force))


def differing(source: Mapping[str, object], model: Mapping[str, object]) -> list[str]:
    """The settings that both files say of a layer, and which are not the same in both."""
    both = {key: (value, model[key]) for key, value in source.items() if key in model}
    return [key for key, values in both.items() if None not in values and not alike(*values)]


def is_unsure(filled: Filling, source: LayerTensor) -> bool:
    """Whether another order of axes has the same shape, and neither the file nor the names show the order."""
    shape = filled.piece.view.shape
    if filled.axes or source.own == filled.piece.own or len(shape) < 2:
        return False
    return shape == shape[::-1] or (len(shape) > 2 and shape == (*shape[2:], shape[1], shape[0]))


def widens(source: DType, model: DType) -> bool:
    """Whether a dtype holds each value of another exactly."""
    return source == model or model.name in WIDER.get(source.name, ()) or is_widened(source, model) is True
