"""The names in torch pickles: a table from each global to a function that makes a plain value.

torch saves a tensor as a call such as `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)`.  Here each
of these names is a small function that describes the tensor instead.  Whatever is not in the table is never run.

Arguments as in torch/_utils.py, torch/_tensor.py and torch/serialization.py (2.13); old forms as in 0.1 to 1.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, product
from math import prod
from operator import mul
from typing import Any, NamedTuple, TypeGuard

from paramtool.formats.pickle import numpy_values
from paramtool.formats.pickle.numpy_values import NumpyArray
from paramtool.formats.pickle.values import Global, Instance, preview
from paramtool.model.checkpoint import SHARDED, Compound, NoData, ShardPiece, Unreadable, Value
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import Shape, View, Views, contiguous

STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "QUInt8Storage": "quint8", "QInt8Storage": "qint8",
    "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}  # fmt: skip
TYPE_MODULES = ("torch", "torch.cuda")
UNTYPED = {"torch.storage.UntypedStorage", "torch.UntypedStorage"}


class StorageRef(NamedTuple):
    """A storage as a pickle names it: a part of the numbered storage of the file."""

    id: int
    dtype: DType | None
    """None for untyped storages, whose tensors say their dtype."""
    byte_start: int
    """Where a storage view begins in the storage; 0 otherwise."""
    nbytes: int

    def whole(self) -> PickledTensor:
        """A storage that is pickled for itself, as the row of its elements."""
        dtype = self.dtype or DTYPES["uint8"]
        row = contiguous(self.id, dtype, (self.nbytes // dtype.block_bytes,), self.byte_start // dtype.block_bytes)
        return PickledTensor(row, kind="storage" if self.dtype else "untyped storage")


class PickledTensor:
    """A tensor as a pickle makes it."""

    __slots__ = ("kind", "requires_grad", "state", "value", "wrapped")

    def __init__(self, value: Value, requires_grad: bool | None = None, kind: str = "") -> None:
        self.value = value
        self.requires_grad = requires_grad
        self.kind = kind
        """As of `Entry`."""
        self.state: object = None
        """Python attributes that it was saved with; they may hold tensors of their own."""
        self.wrapped: object = None
        """What a subclass was saved with, its tensors included."""

    def build(self, state: object) -> None:
        """What torch 0.1 to 0.3 set on parameters: whether they require gradients, `volatile` and hooks."""
        if not isinstance(state, tuple) or len(state) != 3:
            raise ValueError("a state of a tensor; expected a tuple of 3")
        self.keep(state)

    def keep(self, state: object) -> None:
        """Keep attributes; an empty state says nothing."""
        if state not in ({}, (), None, (None, {})):
            self.state = state


def storage_dtype(type_: object) -> DType | None:
    """The dtype of a storage class; ValueError if the class is unknown."""
    if isinstance(type_, Global):
        if type_.path in UNTYPED:
            return None
        if type_.module in TYPE_MODULES and type_.name in STORAGE_DTYPES:
            return DTYPES[STORAGE_DTYPES[type_.name]]
    raise ValueError(f"{_path(type_)} is not a known storage type")


def dtype_of(value: object) -> DType:
    """The dtype of a `torch.float32` and the like; ValueError if it is unknown."""
    if isinstance(value, Global) and value.module == "torch" and value.name in DTYPES:
        return DTYPES[value.name]
    raise ValueError(f"{_path(value)} is not a known dtype")


def _path(value: object) -> str:
    return value.path if isinstance(value, (Global, Instance)) else f"a {type(value).__name__}"


def _unknown(*values: object) -> str:
    """The first of `values` that only a call of something unknown could have made, or nothing."""
    return next((value.path for value in values if isinstance(value, (Global, Instance))), "")


MIN_SIZE, MAX_SIZE = -1 << 63, (1 << 63) - 1
MAX_AXES = 1024
"""Of a tensor.  torch itself has no limit, and few of its operators take more than 64."""


def _sizes(value: object) -> Shape:
    """A shape or strides: a tuple, list or torch.Size of whole numbers."""
    if isinstance(value, Instance) and value.path == "torch.Size":
        value = value.sequence
    if not isinstance(value, (tuple, list)) or len(value) > MAX_AXES:
        raise ValueError(f"sizes and strides must be tuples of at most {MAX_AXES} whole numbers")
    for n in value:
        if type(n) is not int or not MIN_SIZE <= n <= MAX_SIZE:
            raise ValueError("sizes and strides must be tuples of whole numbers that fit 64 bits")
    return tuple(value)


def _view(storage: object, offset: object, size: object, stride: object, *, dtype: DType | None = None) -> Value:
    if type(storage) is not StorageRef or type(size) is not tuple or type(stride) is not tuple:
        if needs := _unknown(storage, offset, stride) or (
            "" if (isinstance(size, Instance) and size.path == "torch.Size") else _unknown(size)
        ):
            return Unreadable(needs)
    elif type(offset) is not int and (needs := _unknown(offset)):
        return Unreadable(needs)
    if not isinstance(storage, StorageRef) or type(offset) is not int:
        raise ValueError(f"expected a storage and an offset, found {_path(storage)} and {_path(offset)}")
    dtype = dtype or storage.dtype
    if dtype is None:
        raise ValueError("an untyped storage without a dtype")
    view = View(storage.id, dtype, offset, _sizes(size), _sizes(stride))
    if any(count > MAX_SIZE for count in accumulate(view.shape, mul)):
        raise ValueError("more elements than fit 64 bits")
    if storage.byte_start:
        view = view.on(storage.id, storage.byte_start + view.byte_start)
    return _unpacked(view) if dtype.name == "float4_e2m1fn_x2" else view


def _unpacked(view: View) -> View:
    """torch counts pairs of float4 numbers; here they are counted one by one, on the last axis, as safetensors does."""
    if not view.is_contiguous or not view.shape:
        raise ValueError("float4 tensors must be contiguous and have an axis")
    shape = (*view.shape[:-1], 2 * view.shape[-1])
    return contiguous(view.storage, DTYPES["float4_e2m1fn"], shape, 2 * view.offset)


# --- the rows: one function for each way in which torch rebuilds a tensor -----------------------------------------


def _tensor(storage: object, offset: object, size: object, stride: object) -> PickledTensor:
    return PickledTensor(_view(storage, offset, size, stride))


def _tensor_v2(
    storage: object, offset: object, size: object, stride: object, requires_grad: object, hooks: object,
    metadata: object = None,
) -> PickledTensor:  # fmt: skip
    return _made(_view(storage, offset, size, stride), requires_grad, metadata)


def _tensor_v3(
    storage: object, offset: object, size: object, stride: object, requires_grad: object, hooks: object,
    dtype: object, metadata: object = None,
) -> PickledTensor:  # fmt: skip
    return _made(_view(storage, offset, size, stride, dtype=dtype_of(dtype)), requires_grad, metadata)


def _made(value: Any, requires_grad: object, metadata: object = None, kind: str = "") -> PickledTensor:
    """A tensor; as in torch, ValueError for a flag that is none, or that its type does not have."""
    dtype = getattr(value, "dtype", None)
    if requires_grad is True and dtype and not (dtype.component or "float" in dtype.name):
        raise ValueError(f"{dtype.name} that requires gradients")
    if not isinstance(requires_grad, bool):
        raise ValueError(f"requires_grad is of type {type(requires_grad).__name__}; expected True or False")
    return PickledTensor(_pending(value, metadata), requires_grad, kind)


def _pending(value: Value, metadata: object) -> Value:
    """Conjugations and negations that torch has not carried out yet (`x.conj()`, `x.conj().imag`)."""
    if not metadata:
        return value
    if not _has_names(metadata):
        raise ValueError("the metadata of a tensor; expected a dict of names")
    bits = [bit for bit in ("conj", "neg") if metadata.get(bit)]
    if "conj" in bits and isinstance(value, View) and not value.dtype.component:
        raise ValueError(f"{value.dtype.name} that is to be conjugated")
    return Compound("+".join(bits), {"data": value}) if bits and isinstance(value, View) else value


def _parameter(data: object, requires_grad: object = True, state: object = None) -> object:
    if isinstance(data, PickledTensor):
        made = _made(data.value, requires_grad, kind="parameter")
        made.wrapped = data.wrapped
        made.keep(_attributes_of(state) if state is not None else data.state)
        return made
    return PickledTensor(Unreadable(_unknown(data) or "a valid tensor, which its data is not"))


def _attributes_of(state: object) -> object:
    """What torch sets as attributes (`_set_obj_state` of torch/_utils.py): a dict, or a pair with those in slots."""
    parts = state if isinstance(state, tuple) else (state, None)
    if len(parts) != 2 or not all(not part or _has_names(part) for part in parts):
        raise ValueError("the attributes of a tensor; expected a dict of names")
    return state


def _has_names(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


MAX_PARTS = 128
"""Windows of one compound; those that libraries write have two to ten."""


def _parts(kind: str, parts: dict[str, object], facts: dict[str, object]) -> PickledTensor:
    """A compound of tensors; nested compounds give their parts."""
    views: dict[str, View] = {}
    for label, part in parts.items():
        if not isinstance(part, PickledTensor):
            return PickledTensor(Unreadable(_unknown(part) or f"{kind} {label} of an unknown form"))
        if isinstance(part.value, View):
            views[label] = part.value
        elif isinstance(part.value, Compound):
            views |= {f"{label}/{inner}": view for inner, view in part.value.parts.items()}
        else:
            return PickledTensor(part.value)
        if len(views) > MAX_PARTS:
            return PickledTensor(Unreadable(f"{kind} of more than {MAX_PARTS} parts"))
    return PickledTensor(Compound(kind, views, facts))


def _sparse(layout: object, data: Any) -> PickledTensor:
    named = layout.args[0] if isinstance(layout, Instance) and layout.path == LAYOUT else layout
    kind = named.name if isinstance(named, Global) else str(named)
    kind = kind.removeprefix("torch.")
    if kind == "sparse_coo":
        indices, values, size, *rest = data
        return _parts(kind, {"indices": indices, "values": values}, {"shape": _sizes(size), "coalesced": rest[:1]})
    compressed, plain, values, size = data
    labels = (
        ("crow_indices", "col_indices") if kind in {"sparse_csr", "sparse_bsr"} else ("ccol_indices", "row_indices")
    )
    return _parts(kind, {labels[0]: compressed, labels[1]: plain, "values": values}, {"shape": _sizes(size)})


def _quantised(
    storage: object, offset: object, size: object, stride: object, quantizer: Any,
    requires_grad: object = None, hooks: object = None,
) -> PickledTensor:  # fmt: skip
    scheme, scale, zero_point, *axis = quantizer
    values = PickledTensor(_view(storage, offset, size, stride))
    facts: dict[str, object] = {"scheme": getattr(scheme, "name", str(scheme))}
    if axis:
        return _parts(
            "quantised",
            {"values": values, "scales": scale, "zero_points": zero_point},
            facts | {"axis": axis[0]},
        )
    return _parts("quantised", {"values": values}, facts | {"scale": scale, "zero_point": zero_point})


def _meta(dtype: object, size: object, stride: object, requires_grad: object) -> PickledTensor:
    return _made(NoData(dtype_of(dtype), _sizes(size)), requires_grad)


def _nested(buffer: object, sizes: object, strides: object, offsets: object) -> PickledTensor:
    return _parts("nested", {"buffer": buffer, "sizes": sizes, "strides": strides, "offsets": offsets}, {})


def _jagged(*args: object) -> PickledTensor:
    """A jagged nested tensor: its parts are the tensors among the arguments."""
    parts = _tensors_in(args)
    made = _parts("jagged", dict(parts), {}) if parts else PickledTensor(Unreadable("jagged"))
    made.wrapped = args
    return made


MAX_LOOKED_AT = 1000
"""Values in the state of a subclass of tensors among which its tensors are searched; those of libraries have a few."""
MAX_LABEL = 256
"""Characters of the keys that lead to such a tensor."""


def _tensors_in(value: object) -> dict[str, PickledTensor]:
    """Tensors inside plain containers, a few levels deep, labelled by their keys; none where there is too much else."""
    found: dict[str, PickledTensor] = {}
    todo: list[tuple[object, str, int]] = [(value, "", 6)]
    for _ in range(MAX_LOOKED_AT):
        if not todo:
            return found
        one, label, depth = todo.pop()
        if len(label) > MAX_LABEL:
            break
        if isinstance(one, PickledTensor):
            found[label or "data"] = one
        elif depth and isinstance(one, (dict, list, tuple)) and len(one) <= MAX_LOOKED_AT:
            pairs = one.items() if isinstance(one, dict) else enumerate(one)
            before = f"{label}." if label else ""
            todo += reversed(
                [
                    (
                        child,
                        before + (str(key)[: MAX_LABEL + 1] if isinstance(key, (str, int)) else preview(key)),
                        depth - 1,
                    )
                    for key, child in pairs
                ]
            )
    return {}


def _wrapper(
    cls: object, dtype: object, size: object, stride: object, offset: object, layout: object, device: object,
    requires_grad: object,
) -> PickledTensor:  # fmt: skip
    return _made(NoData(dtype_of(dtype), _sizes(size), "a wrapper, saved without data"), requires_grad)


def _from_type(function: object, type_: object, args: Any, state: object) -> object:
    """A subclass, or a tensor with Python attributes: `function(*args)` and then its state."""
    path = _path(function)
    make = CONSTRUCTORS.get(path)
    if make is None or not isinstance(args, (tuple, list)):
        return PickledTensor(Unreadable(path))
    made = make(*args)
    if isinstance(made, PickledTensor) and isinstance(made.value, NoData):
        kind, shape = _path(type_), made.value.shape
        dtype, found = made.value.dtype.name, None
        if shard := value_of(kind, shape, state):
            found = PickledTensor(shard, made.requires_grad)
        elif parts := _tensors_in(state):
            found = _parts(kind, dict(parts), {"shape": shape, "dtype": dtype})
        if found is not None:
            found.wrapped = state
            return found
    if isinstance(made, PickledTensor):
        made.keep(_attributes_of(state) if _path(type_) in PLAIN_TYPES else state)
    return made


PLAIN_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter")
"""Those that set no state in a way of their own."""


def _from_numpy(data: object, dtype: object, device: object = None, requires_grad: object = False) -> PickledTensor:
    if not isinstance(data, NumpyArray) or data.element != dtype_of(dtype):  # torch casts others
        return PickledTensor(Unreadable(_unknown(data) or "an array of another form"))
    return _made(InlineView(dtype_of(dtype), data), requires_grad)


class InlineView(NamedTuple):
    """A tensor whose bytes are in the pickle; the reader gives it a storage."""

    dtype: DType
    array: NumpyArray


def array_tensor(array: NumpyArray) -> PickledTensor | None:
    """The tensor of an array, always the same object; None if a tensor cannot hold the array."""
    if array.tensor is None and (dtype := array.element) is not None:
        array.tensor = PickledTensor(InlineView(dtype, array))  # type: ignore[arg-type]
    return array.tensor if isinstance(array.tensor, PickledTensor) else None


def _device_tensor(data: object, dtype: object, device: object, requires_grad: object) -> object:
    return (
        _made(data.value, requires_grad)
        if isinstance(data, PickledTensor)
        else PickledTensor(Unreadable(_unknown(data)))
    )


# --- the table -----------------------------------------------------------------------------------------------------


def inert(path: str) -> Callable[..., Instance]:
    """A class that only holds its arguments."""

    def make(*args: object) -> Instance:
        return Instance(path, args, False)

    return make


def _size(items: object = ()) -> Instance:
    made = Instance("torch.Size", (), False)
    made.sequence = list(_sizes(items))
    return made


def _list(items: object = (), *rest: object) -> object:
    """TorchScript's typed lists, and values with a type tag (torch/csrc/jit/serialization/pickler.cpp)."""
    return items


def _layout(name: object) -> Instance:
    return Instance(LAYOUT, (name,), False)


LAYOUT = "torch.serialization._get_layout"
"""A `torch.layout` is pickled as a call of this with its name (torch/serialization.py)."""


_DISTRIBUTED = {
    "tensor": "DTensor",
    "tensor.placement_types": "Shard Replicate Partial _StridedShard",
    "tensor._dtensor_spec": "DTensorSpec TensorMeta ShardOrderEntry",
    # up to torch 2.4
    "_tensor.api": "DTensor",
    "_tensor.placement_types": "Shard Replicate Partial _Partial _StridedShard DTensorSpec TensorMeta",
    "_tensor._dtensor_spec": "DTensorSpec TensorMeta",
    "device_mesh": "DeviceMesh _MeshLayout",
    "_mesh_layout": "_MeshLayout _FlatLayout",
    "_pycute.layout": "Layout",
    # FSDP1
    "remote_device": "_remote_device",
    "_shard.metadata": "ShardMetadata",
    "_shard.sharded_tensor.api": "ShardedTensor ShardedTensor.ProcessGroupState",
    "_shard.sharded_tensor.shard": "Shard",
    "_shard.sharded_tensor.metadata": "ShardedTensorMetadata TensorProperties",
    "_shard.sharding_spec.api": "EnumerableShardingSpec",
    "_shard.sharding_spec.chunk_sharding_spec": "ChunkShardingSpec",
}
"""{module of torch.distributed: classes that say how a tensor is split among ranks}; of torch 2.13."""
_INERT = (
    *(f"torch.distributed.{module}.{name}" for module, names in _DISTRIBUTED.items() for name in names.split()),
    "torch.device",
    "torch.torch_version.TorchVersion",
    "torch.Generator",
    "torch.nested._internal.nested_tensor._DimRange",
    "torch._dynamo.decorators._DimRange",
    "torch.nested._internal.nested_tensor.NestedTensor",
    "torch.jit._pickle.build_int",
)

CONSTRUCTORS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": lambda data, requires_grad, hooks: _parameter(data, requires_grad),
    "torch._utils._rebuild_parameter_with_state": lambda data, requires_grad, hooks, state: _parameter(
        data, requires_grad, state
    ),
    "torch.nn.parameter.Parameter": _parameter,
    "torch.nn.parameter.Buffer": _parameter,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _sparse,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch.nested._internal.nested_tensor._rebuild_njt": _jagged,
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
    "torch._utils._rebuild_device_tensor_from_numpy": _from_numpy,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _device_tensor,
    "torch._utils._rebuild_xla_tensor": _from_numpy,
    "torch._utils._rebuild_mlu_tensor": _from_numpy,
    "torch._utils._rebuild_npu_tensor": _from_numpy,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.tensor._rebuild_from_type_v2": _from_type,  # the module's name up to torch 1.8
    LAYOUT: _layout,
    "torch.Size": _size,
    **{f"torch.jit._pickle.build_{kind}list": _list for kind in ("int", "tensor", "double", "bool")},
    "torch.jit._pickle.restore_type_tag": _list,
    **numpy_values.CONSTRUCTORS,
    **{path: inert(path) for path in _INERT},
}


class _Known:
    """Names that may appear in a pickle as data: storage types, dtypes, layouts, schemes."""

    def __contains__(self, path: object) -> bool:
        module, _, name = str(path).rpartition(".")
        if module in TYPE_MODULES and (name in STORAGE_DTYPES or name.endswith("Tensor")):
            return True
        return (
            str(path) in UNTYPED
            or (module == "torch" and (name in DTYPES or name in _TORCH_WORDS))
            or (module == "numpy" and (name in {"ndarray", "bool_"} or name.rstrip("0123456789") in _NUMPY_KINDS))
        )


_TORCH_WORDS = {
    "strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged", "_mkldnn",
    "per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric",
    "per_channel_affine_float_qparams", "preserve_format", "contiguous_format", "channels_last", "channels_last_3d",
}  # fmt: skip
_NUMPY_KINDS = {"float", "int", "uint", "complex"}
KNOWN = _Known()

# --- Which part of a tensor a rank saved, as torch.distributed says it -----------------------------------------------
#
#     DTensor        {"_local_tensor": T, "_spec": DTensorSpec(mesh, placements, tensor_meta, shard_order)}
#     ShardedTensor  [Shard(tensor, ShardMetadata(shard_offsets, shard_sizes, placement))], ShardedTensorMetadata, ...
#
# A ShardedTensor (FSDP1) states offsets.  Those of a DTensor (FSDP2, tensor parallelism) follow from its rank's place
# in the mesh and from one placement for each axis of the mesh: one after the other cuts an axis of the tensor, as
# torch.chunk does, and `_StridedShard` each of its equal parts.
#
# Sources: `_compute_local_shape_and_global_offset` in torch/distributed/tensor/_utils.py and placement_types.py of
# 2.13; torch/distributed/_shard/sharded_tensor/shard.py.  DeviceMesh has `_layout` since torch 2.9, and a tensor
# `mesh` before.


Run = tuple[int, int]
MAX_PIECES = 1 << 16
"""Boxes of one shard."""


def value_of(kind: str, shape: Shape, state: object) -> Compound | None:
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


def _sharded_tensor(shape: Shape, state: Any, views: Views) -> list[ShardPiece]:
    found = []
    for label, shard in zip(views, state[0], strict=True):
        said = _attributes(_attributes(shard)["metadata"])
        offsets, sizes = tuple(said["shard_offsets"]), tuple(said["shard_sizes"])
        _expect(views[label], sizes, shape)
        found.append(ShardPiece(label, offsets, (0,) * len(sizes), sizes))
    return found


def _dtensor(shape: Shape, state: object, views: Views) -> list[ShardPiece]:
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


def _expect(view: View, sizes: Shape, shape: Shape) -> None:
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
    shape: Shape = mesh["mesh"].value.shape
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
