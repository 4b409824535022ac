"""Which part of a tensor a rank saved, as torch.distributed says it.

    DTensor        {"_local_tensor": T, "_spec": DTensorSpec(mesh, placements, tensor_meta, shard_order)}
    ShardedTensor  [Shard(tensor, ShardMetadata(shard_offsets, shard_sizes, placement))], ShardedTensorMetadata, ...

A ShardedTensor (FSDP1) states offsets.  Those of a DTensor (FSDP2, tensor parallelism) follow from its rank's place in
the mesh and from one placement for each axis of the mesh: one after the other cuts an axis of the tensor, as
torch.chunk does, and `_StridedShard` each of its equal parts.

Sources: `_compute_local_shape_and_global_offset` in torch/distributed/tensor/_utils.py and placement_types.py of 2.13;
torch/distributed/_shard/sharded_tensor/shard.py.  DeviceMesh has `_layout` since torch 2.9, and a tensor `mesh` before.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

from paramtool.formats.pickle.values import Instance
from paramtool.model.checkpoint import SHARDED, Compound, ShardPiece
from paramtool.model.view import View

Run = tuple[int, int]
MAX_PIECES = 1 << 16
"""Boxes of one shard."""


def value_of(kind: str, shape: tuple[int, ...], state: object) -> Compound | None:
    """A rank's part of a tensor; None for what is no class of torch.distributed, or holds no plain tensor."""
    name = kind.rpartition(".")[2]
    if not kind.startswith("torch.distributed.") or name not in ("DTensor", "ShardedTensor"):
        return None
    if name == "DTensor":
        held = {"_local_tensor": _attributes(state).get("_local_tensor")}
    else:
        if not (isinstance(state, tuple) and state and isinstance(state[0], list)):
            return None
        shards = state[0]  # none where other ranks have all of it
        held = {str(k): _attributes(one).get("tensor") for k, one in enumerate(shards)}
    views = {label: value for label, one in held.items() if isinstance(value := getattr(one, "value", None), View)}
    if len(views) < len(held) or len({view.dtype for view in views.values()}) > 1:
        return None
    facts: dict[str, object] = {"shape": shape, "dtype": next((view.dtype.name for view in views.values()), "")}
    try:
        found = _dtensor(shape, state, views) if name == "DTensor" else _sharded_tensor(shape, state, views)
        for one in found:
            boxes = zip(one.here, one.sizes, shape, strict=True)
            if not all(type(at) is type(n) is int and 0 <= at <= at + n <= size for at, n, size in boxes):
                raise ValueError(f"its part is {list(one.sizes)} at {list(one.here)} of {list(shape)}")
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = str(error) if type(error) is ValueError else "it does not say where it is, in a form that is known"
        return Compound(kind, views, {**facts, SHARDED: reason})
    return Compound(kind, views, {**facts, SHARDED: tuple(found)})


def _sharded_tensor(shape: tuple[int, ...], state: Any, views: Mapping[str, View]) -> list[ShardPiece]:
    found = []
    for label, shard in zip(views, state[0], strict=True):
        said = _attributes(_attributes(shard)["metadata"])
        offsets, sizes = tuple(said["shard_offsets"]), tuple(said["shard_sizes"])
        _expect(views[label], sizes, shape)
        found.append(ShardPiece(label, offsets, (0,) * len(sizes), sizes))
    return found


def _dtensor(shape: tuple[int, ...], state: object, views: Mapping[str, View]) -> list[ShardPiece]:
    spec = _attributes(_attributes(state)["_spec"])
    mesh = _attributes(spec["mesh"])
    lengths, place, placements = _lengths(mesh), mesh["_coordinate_on_dim"], spec["placements"]
    if not len(lengths) == len(place) == len(placements):
        raise ValueError(f"{len(placements)} placements on a mesh of {list(lengths)}")
    runs = [[(0, size)] for size in shape]
    for k in _order(spec.get("shard_order"), len(placements)):
        how, said = placements[k].path.rpartition(".")[2], _attributes(placements[k])
        if how in ("Shard", "_StridedShard"):
            axis, parts = said["dim"], said["split_factor"] if how == "_StridedShard" else 1
            size = sum(stop - start for start, stop in runs[axis])
            if parts != 1 and (parts > MAX_PIECES or size % (parts * lengths[k])):  # versions of torch differ
                raise ValueError(f"{size} rows in {parts} times {lengths[k]} parts that are not equal (_StridedShard)")
            each = -(-size // (parts * lengths[k]))
            starts = (each * (lengths[k] * part + place[k]) for part in range(parts))
            runs[axis] = [run for start in starts for run in _taken(runs[axis], start, start + each)]
        elif how != "Replicate":
            raise ValueError(f"it is placed as {how}: sums that are still to be made, or something unknown")
    local = tuple(sum(stop - start for start, stop in one) for one in runs)
    ((label, view),) = views.items()
    _expect(view, local, shape)
    if prod(map(len, runs)) > MAX_PIECES:
        raise ValueError("it is in too many boxes")
    boxes = product(*(_placed(one) for one in runs))
    return [ShardPiece(label, *(tuple(one[n] for one in box) for n in range(3))) for box in boxes]


def _expect(view: View, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """ValueError unless a part has the sizes that are said of it, and fits the number of axes."""
    if view.shape != sizes or len(sizes) != len(shape):
        raise ValueError(f"its part is {list(view.shape)}, and {list(sizes)} of {list(shape)} by its description")


def _lengths(mesh: Mapping[str, Any]) -> tuple[int, ...]:
    """The lengths of the axes of a mesh."""
    layout = _attributes(mesh.get("_layout"))
    if "axes" in layout:
        return tuple(_length(_attributes(one)["shape"]) for one in layout["axes"])
    if "shape" in layout:
        said = layout["shape"]
        return tuple(map(_length, said)) if isinstance(said, tuple) else (said,)
    shape: tuple[int, ...] = mesh["mesh"].value.shape
    return shape


def _length(said: Any) -> int:
    return prod(map(_length, said)) if isinstance(said, tuple) else int(said)


def _order(said: Any, count: int) -> list[int]:
    """The axes of the mesh in the order in which they cut."""
    first = [k for one in said or () for k in one.args[1]]
    return [*first, *(k for k in range(count) if k not in first)]


def _taken(runs: list[Run], start: int, stop: int) -> list[Run]:
    """Rows `start` to `stop` of those that are in runs.

    >>> _taken([(0, 2), (6, 9)], 1, 4)
    [(1, 2), (6, 8)]
    """
    found, at = [], 0
    for first, last in runs:
        low, high = max(start - at, 0), min(stop - at, last - first)
        if low < high:
            found.append((first + low, first + high))
        at += last - first
    return found


def _placed(runs: list[Run]) -> list[tuple[int, int, int]]:
    """(first row in the whole, first row in the part, number of rows) of each run."""
    found, at = [], 0
    for start, stop in runs:
        found.append((start, at, stop - start))
        at += stop - start
    return found


def _attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, or of its state: a dict, or one behind None where the class has slots."""
    state = value.state if isinstance(value, Instance) else value
    if isinstance(state, tuple) and len(state) == 2 and state[0] is None:
        state = state[1]
    return state if isinstance(state, dict) else {}
