"""A state dict as torch's modules take it: tensors and objects of a file under their names, with the modules' versions.

What a module does with it is its own code: hooks, overrides of `_load_from_state_dict`, upgrades of old versions,
`set_extra_state`.  So torch's `load_state_dict` puts the values in, and what a model with such code makes of a file is
found by trying it: on a copy of the model on the meta device, where a value that is put in is lost.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import field
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.multiprocessing import reductions
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from paramtool.engine.read.source import Source
from paramtool.formats.torch.write import may_name, pickled
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.checkpoint import PENDING, SHARDED, Checkpoint, Compound, NoData, Unreadable
from paramtool.model.objects import Node, map_tensors
from paramtool.passes.compat.wanted import kind_of
from paramtool.torch._live import is_plain, place
from paramtool.torch.tensors import batches

State = OrderedDict[str, Any]


# --- what a file holds --------------------------------------------------------------------------------------------


def inside(things: Mapping[str, Node]) -> set[str]:
    """The names of tensors that are a part of something else."""
    return {name for node in things.values() for name in objects.tensor_names(node)}


def state_of(
    source: Source, part: Checkpoint, things: Mapping[str, Node], versions: Node | None, lent: Collection[str]
) -> tuple[State, dict[str, str]]:
    """The state dict of a part of a file, without what only code of others could make: {its name: what that is}.

    `things` are what the file holds beside tensors; `lent` as of `batches`.
    """
    found: dict[str, Any] = {}
    strange: dict[str, str] = {}
    for batch in batches(source, part, "cpu", lent):
        found |= batch
    source.settle()
    for name, entry in part.entries.items():
        if isinstance(entry.value, (NoData, Unreadable)):
            strange[name] = kind_of(entry.value)
        elif isinstance(entry.value, Compound) and entry.value.kind not in PENDING:
            try:
                found[name] = _whole(name, entry.value, found)
            except ValueError as error:
                strange[name] = str(error)
        if name in found:
            trains = bool(entry.requires_grad) and (found[name].is_floating_point() or found[name].is_complex())
            is_parameter = entry.kind == "parameter"
            found[name] = nn.Parameter(found[name], trains) if is_parameter else found[name].requires_grad_(trains)
    parts = inside(things)
    state: State = OrderedDict((name, found[name]) for name in part.entries if name in found and name not in parts)
    for name, node in things.items():
        try:
            state[name] = Objects(node, found).load()
        except (ValueError, TypeError, KeyError) as error:
            strange[name] = str(error)
    if versions is not None:
        state._metadata = Objects(versions, found).load()  # type: ignore[attr-defined]
    return state, strange


def _whole(name: str, value: Compound, found: Mapping[str, torch.Tensor]) -> Any:
    """A sparse or quantised tensor made of its parts; ValueError for one of a class that is not torch's own."""
    parts: list[Any] = [found[f"{name}/{label}"] for label in value.parts]
    facts: Any = value.facts
    make: Any = torch
    if value.kind == "sparse_coo":
        return make.sparse_coo_tensor(*parts, facts["shape"], is_coalesced=facts["coalesced"] == [True] or None)
    if value.kind in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        return make.sparse_compressed_tensor(*parts, facts["shape"], layout=getattr(torch, value.kind))
    if value.kind != "quantised":
        kind = None if SHARDED in facts else safe_classes().get(value.kind)
        if kind is None or value.state is None:
            raise ValueError(kind_of(value) if SHARDED in facts else f"a tensor of {value.kind}")
        whole = torch.empty(facts["shape"], dtype=getattr(torch, facts["dtype"]), device="meta")
        args = (kind, whole.dtype, whole.shape, whole.stride(), 0, whole.layout, "cpu", False)
        state = map_tensors(value.state, lambda label: f"{name}/{label}")
        rebuild: Any = torch._tensor._rebuild_from_type_v2
        return rebuild(torch._utils._rebuild_wrapper_subclass, kind, args, Objects(state, found).load())
    if "scale" in facts:
        return make._make_per_tensor_quantized_tensor(*parts, facts["scale"], facts["zero_point"])
    return make._make_per_channel_quantized_tensor(*parts, facts["axis"])


class Objects(pickle.Unpickler):
    """Makes an object of a file as Python has it; ValueError with its class where only code of others could make it."""

    def __init__(self, tree: Node, tensors: Mapping[str, torch.Tensor]) -> None:
        self.safe = safe_classes()
        super().__init__(io.BytesIO(pickled(tree, self.safe)))
        self.tensors = tensors

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}".replace("__builtin__", "builtins")
        if path in self.safe:
            return self.safe[path]
        if not may_name(path):
            raise ValueError(f"an object of {path}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)

    def persistent_load(self, pid: Any) -> Any:
        return self.tensors[pid] if isinstance(pid, str) else self.tensors[pid[0]].numpy()


def safe_classes() -> dict[str, Any]:
    """{path: class} of what this process lets torch.load make with `weights_only`: torchao says so of its tensors."""
    marked: Any = getattr(torch.serialization, "get_safe_globals", list)()  # since torch 2.5
    pairs = ((one, f"{one.__module__}.{one.__qualname__}") if not isinstance(one, tuple) else one for one in marked)
    return {path: one for one, path in pairs}


# --- what a model makes of it -------------------------------------------------------------------------------------


def has_own_code(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether code that is not nn.Module's own has a part in loading a model: of its modules, or of its tensors."""

    def is_own(module: nn.Module, name: str) -> bool:
        return getattr(getattr(module, name), "__func__", None) is not getattr(nn.Module, name)

    return (
        is_own(model, "load_state_dict")
        or not all(map(is_plain, tensors.values()))
        or any(
            module._load_state_dict_pre_hooks
            or module._load_state_dict_post_hooks
            or is_own(module, "_load_from_state_dict")
            or is_own(module, "set_extra_state")
            for module in model.modules()
        )
    )


class Watch(TorchFunctionMode):
    """Which tensors of a state dict are copied into which, and which are used at all, while it is on."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        self._names = {id(one): name for name, one in state.items() if isinstance(one, torch.Tensor)}
        self.copied: list[tuple[torch.Tensor, str]] = []
        """(what was written to, the name of what was copied there: empty if it is none of the state dict)."""
        self.used: set[str] = set()
        self.written: set[object] = set()
        """The places of what was written to, by whatever function."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name != "__get__" or isinstance(found, torch.Tensor):  # else a shape or type was asked for
            given, _ = tree_flatten((args, kwargs))
            self.used.update(self._names[id(one)] for one in given if id(one) in self._names)
        if (name.endswith("_") and args and found is args[0]) or name in ("__setitem__", "__set__"):
            self.written.add(place(args[0]))
        if func is torch.Tensor.copy_:
            self.copied.append((args[0], self._names.get(id(args[1]), "")))
        return found

    def ignored(self, state: State) -> list[str]:
        """Names whose tensors nobody used or kept; `state` is emptied to see it."""
        of: Any = reductions.StorageWeakRef
        left = {
            name: of(state[name].untyped_storage())
            for name in self._names.values()
            if name not in self.used and is_plain(state[name])
        }
        state.clear()
        return [name for name, kept in left.items() if kept.expired()]


@dataclass(frozen=True, slots=True)
class Answer:
    """What torch and a model's own code make of a state dict."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    error: str = ""
    """Why torch would not load it, in its words."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """{name of the model: the name whose tensor is copied into it as it is}."""
    lent: frozenset[str] = frozenset()
    """Names whose tensors are copied from, and not kept."""


def tried(model: nn.Module, tensors: Mapping[str, torch.Tensor], state: State) -> Answer | None:
    """What loading would do, found on a copy of the model without memory; None where that shows nothing.

    The copy shares no tensor with the model.  It shows nothing where a model cannot be copied, where a hook would go on
    with this model, or where code needs values that a copy has not.
    """
    if _goes_on_with(model):
        return None
    try:
        twin, names = _twin(model, tensors)
    except Exception:  # whatever a library's class makes of being copied
        return None
    watch = Watch(state)
    error, missing, unexpected = "", (), ()
    given = OrderedDict(state)
    given.__dict__.update(copy.deepcopy(state.__dict__))
    try:
        with warnings.catch_warnings(), watch:
            warnings.simplefilter("ignore")  # that copying to the meta device does nothing
            found = twin.load_state_dict(given, strict=False)
        missing, unexpected = map(tuple, found)
    except RuntimeError as raised:
        error = str(raised)
        known = (torch.Tensor, nn.Parameter, nn.UninitializedParameter, nn.UninitializedBuffer)
        of_library = any(type(one) not in known for one in tensors.values())
        if not error.startswith("Error(s) in loading state_dict") or (of_library and "an exception occurred" in error):
            return None
    except Exception:
        return None
    sources: dict[str, str] = {}
    for to, source in watch.copied:
        if source and (found := names.get(id(to))):  # copies into a tied tensor: each of them has a name
            free = next((name for name in found if name not in sources), found[0])
            sources[source if source in found else free] = source
    return Answer(missing, unexpected, error, sources, frozenset(name for _, name in watch.copied))


TAKING = (
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "load_state_dict", "_load_from_state_dict",
    "set_extra_state",
)  # fmt: skip
"""Where a module has code for taking a state dict."""


def _goes_on_with(model: nn.Module) -> bool:
    """Whether a model's hooks reach tensors or modules past a function, which copying leaves as it is.

    Functions have cells, defaults and global names; what else holds them is copied with the model.
    """
    todo = [(one, 0, False) for module in model.modules() for name, one in vars(module).items() if name in TAKING]
    seen: set[tuple[int, bool]] = set()
    for one, depth, is_shared in todo:
        if is_shared and isinstance(one, (torch.Tensor, nn.Module)):
            return True
        known = isinstance(one, (torch.Tensor, nn.Module, type, ModuleType)) or (id(one), is_shared) in seen
        if known or depth > 10:
            continue
        seen.add((id(one), is_shared))
        held: list[Any] = gc.get_referents(one)
        if isinstance(one, FunctionType):
            codes = [one.__code__]
            for code in codes:
                codes += (const for const in code.co_consts if isinstance(const, CodeType))
            used = (one.__globals__.get(name) for code in codes for name in code.co_names)
            kinds = (torch.Tensor, nn.Module, FunctionType, dict, list, tuple, set)
            held = [one.__closure__, one.__defaults__, one.__kwdefaults__, vars(one)]
            held += (value for value in used if isinstance(value, kinds))
        elif isinstance(one, ref) and is_shared:
            held = [one()]
        todo += ((value, depth + 1, is_shared or isinstance(one, FunctionType)) for value in held)
    return False


def _twin(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> tuple[nn.Module, Mapping[int, list[str]]]:
    """A copy of a model whose tensors are on the meta device, and {id of a tensor of it: names}."""
    held = {id(one) for one in (*model.parameters(), *model.buffers())}
    todo: list[Any] = [vars(module) for module in model.modules()]
    memo: dict[int, Any] = {}
    seen: set[int] = set()
    while todo:  # other tensors, too: torch copies those of inference mode and of a graph only so
        if id(one := todo.pop()) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if (copied := _on_meta(one, memo) if id(one) in held else one.detach().clone()) is not None:
                memo[id(one)] = copied
        elif isinstance(one, (dict, list, tuple)):
            todo += one.values() if isinstance(one, dict) else one
    twin = copy.deepcopy(model, memo)
    names: dict[int, list[str]] = {}
    for name, one in tensors.items():
        names.setdefault(id(memo[id(one)]), []).append(name)
    return twin, names


def _on_meta(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor | None:
    """A tensor of the same class without memory; None for one that is copied as it is: lazy, sparse or quantised."""
    if nn.parameter.is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    kind: Any = type(tensor)
    if hasattr(tensor, "__tensor_flatten__"):
        names, context = tensor.__tensor_flatten__()
        inner = {name: _on_meta(getattr(tensor, name), memo) for name in names}
        found: torch.Tensor = kind.__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
        return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if kind is not torch.Tensor:
        found = torch.Tensor._make_subclass(kind, found, tensor.requires_grad)
        found.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return found
