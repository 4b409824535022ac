"""A state dict as torch's modules take it: tensors and objects of a file under their names, with the modules' versions.

What a module does with it is its own code: hooks, overrides of `_load_from_state_dict`, upgrades of old versions,
`set_extra_state`.  So torch's `load_state_dict` puts the values in.  What the code of torch and of known libraries
makes of a file is found by trying it, on a copy of the model on the meta device, where a value that is put in is lost.
Any other code may keep something, so it runs once, on the model itself.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.multiprocessing import reductions
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from paramtool.engine.read.source import Source
from paramtool.errors import ModelError, TieError
from paramtool.formats.record.moved import of_torchao
from paramtool.formats.torch.write import may_name, pickled
from paramtool.formats.torch.write_objects import ATTRIBUTED
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.checkpoint import SHARDED, Checkpoint, Compound, Entry, Value
from paramtool.model.dtype import can_hold
from paramtool.model.objects import Node, TensorRef, map_tensors
from paramtool.passes import select
from paramtool.passes.compat.wanted import kind_of, plain_window
from paramtool.passes.module_versions import versions_of
from paramtool.torch._live import Tensors, dtype_of, is_plain, place
from paramtool.torch._saved_names import RenamedCheckpoint, renamed, unchanged
from paramtool.torch.tensors import read

# --- what a file holds --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What of a file is a model's, by the names that the model has for it."""

    chosen: str
    """The section that it is; empty for the whole file."""
    section: Checkpoint
    """That section, by the file's own names."""
    prefix: str
    """What they have before the model's; with its dot, or empty."""
    as_it_is: Checkpoint
    """By the names that the file has, without the section and the prefix."""
    named: RenamedCheckpoint
    things: Mapping[str, Node] = field(default_factory=dict)
    """What is no tensor, or holds some."""
    versions: Node | None = None
    """The versions of modules."""
    objects: frozenset[str] = frozenset()
    """Those of `things` that no tensor is in, beside the tensors of a state dict of torch; without extra state."""
    tree: Node | None = None
    """All of it as torch.load gives it, where the model's own `load_state_dict` takes that."""

    @property
    def part(self) -> Checkpoint:
        """All tensors."""
        return self.named.part

    def inside(self) -> set[str]:
        """The names of tensors that are a part of something else."""
        return {name for node in self.things.values() for name in objects.tensor_names(node)}

    def stored(self, names: Collection[str] | None = None) -> Checkpoint:
        """Those that are read as they are; with `names`, no others."""
        made = self.named.made
        kept = {n: e for n, e in self.part.entries.items() if n not in made and (names is None or n in names)}
        return replace(self.part, entries=kept)


def held_of(model: nn.Module, tensors: Tensors, whole: Checkpoint, only: str | None, prefix: str) -> Held:
    """What of a checkpoint is a model's: a section, the names under a prefix, without what torch.compile put in.

    A model with a `load_state_dict` of its own takes all as it is where its `state_dict` has dicts in it, or where no
    name of the file is one of the model's.
    """
    prefix = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
    whole = joined(whole)
    given = whole if only is None else select.section(whole, only)
    as_it_is = Held(only or "", given, "", given, unchanged(given), tree=given.objects)
    is_own = not prefix and _is_own(model, "load_state_dict")
    if is_own and _is_nested(model) and _is_made(as_it_is):
        return as_it_is
    chosen = select.section_for(whole, [prefix + name for name in tensors]) if only is None else only
    section = part = whole if chosen is None else select.section(whole, chosen)
    tree = part.objects
    if prefix:
        part = select.under(part, prefix)
    new = select.compiled(part.entries, tensors)
    part = replace(part, entries={new.get(name, name): entry for name, entry in part.entries.items()})

    def renamed_to(name: str) -> str:
        return new.get(name := name.removeprefix(prefix), name)

    short = select.bare if new else str
    things = {
        short(name.removeprefix(prefix)): map_tensors(node, renamed_to)
        for name, node in objects.objects_in(tree)
        if name.startswith(prefix)
    }
    for name, node in [*things.items()]:  # a tensor with attributes in Python, which load_state_dict does not look at
        if isinstance(node, objects.Opaque) and node.path == ATTRIBUTED and dict(node.parts)["data"] == TensorRef(name):
            del things[name]
            others = {*objects.tensor_names(node)} - {name}
            part = replace(part, entries={key: one for key, one in part.entries.items() if key not in others})
    if section.format == "dcp":  # which stores no empty dict: it stays in the state dict that is loaded into
        with suppress(Exception):  # whatever a module's code needs for it
            things |= {n: objects.EMPTY for n, one in model.state_dict().items() if one == {} and n not in things}
    named = unchanged(part)  # or as from_pretrained does, where that fits better
    if tensors.keys() - part.entries.keys() and (other := renamed(model, part, tensors)) is not None:
        named = max(named, other, key=lambda one: len(tensors.keys() & one.part.entries.keys()))
    if is_own and tensors.keys().isdisjoint(named.part.entries) and _is_made(as_it_is):
        return as_it_is
    versions = versions_of(objects.subtree(tree, prefix[:-1])) or versions_of(tree, prefix, short)
    is_state = whole.format.startswith("torch") and any(
        isinstance(one, objects.TensorRef) for _, one in (tree.items if isinstance(tree, objects.Mapping) else ())
    )
    alone = frozenset(
        name for name, node in things.items()
        if is_state and not (objects.is_extra_state(name) or any(objects.tensor_names(node)))
    )  # fmt: skip
    return Held(chosen or "", section, prefix, part, named, things, versions, alone)


def joined(whole: Checkpoint) -> Checkpoint:
    """A checkpoint whose parts of tensors of torchao, as its header says them, are these tensors."""
    entries = dict(whole.entries)
    for name, stored in of_torchao(whole.metadata).items():
        views = {
            part: view for part, at in stored.items() if at in entries and (view := plain_window(entries[at].value))
        }
        if stored and len(views) == len(stored):
            entries = omit(entries, stored.values())
            entries[name] = Entry(Compound("torchao", views, state=objects.Leaf(whole.metadata[name])))
    return replace(whole, entries=entries)


def _is_nested(model: nn.Module) -> bool:
    """Whether a model's `state_dict` is more than a dict of tensors and extra state."""
    with suppress(Exception):  # whatever a module's code needs for it
        state: Any = model.state_dict()
        return not isinstance(state, dict) or any(
            isinstance(one, dict) for name, one in state.items() if not objects.is_extra_state(name)
        )
    return False


def _is_made(held: Held) -> bool:
    """Whether what torch.load gives has tensors in it, and is made without code."""
    with suppress(ValueError, TypeError, KeyError), Source(held.part, compares_crcs=False) as source:
        return bool(given_of(source, held, held.part.entries).tensors)
    return False


@dataclass(slots=True)
class Given:
    """What `load_state_dict` gets of a file."""

    state: Any
    tensors: dict[str, torch.Tensor]
    """Those in it that are no part of something else, by their names in the file."""
    unmade: dict[str, str]
    """What only code of others could make, and is lacking: {its name: what that is}."""


def given_of(source: Source, held: Held, lent: Collection[str], names: Collection[str] | None = None) -> Given:
    """The state dict of what a file holds; `lent` as of `read`, `names` as of `stored`.

    ValueError, TypeError or KeyError where all is taken as it is, and only code of others could make it.
    """
    unmade: dict[str, str] = {}
    part = held.stored(names)
    found: dict[str, Any] = read(source, part, "cpu", lent)
    for name, entry in part.entries.items():
        if plain_window(entry.value) is None:
            try:
                found[name] = _whole(name, entry.value, found)
            except ValueError as error:
                unmade[name] = str(error)
        if name in found:
            trains = bool(entry.requires_grad) and (found[name].is_floating_point() or found[name].is_complex())
            is_parameter = entry.kind == "parameter"
            found[name] = nn.Parameter(found[name], trains) if is_parameter else found[name].requires_grad_(trains)
    parts = held.inside()
    tensors = {name: found[name] for name in part.entries if name in found and name not in parts}
    if held.tree is not None:
        return Given(Objects(held.tree, found).load(), tensors, unmade)
    state: OrderedDict[str, Any] = OrderedDict(tensors)
    for name, node in held.things.items():
        try:
            state[name] = Objects(node, found).load()
        except (ValueError, TypeError, KeyError) as error:
            unmade[name] = str(error)
    if held.versions is not None:
        state._metadata = Objects(held.versions, found).load()  # type: ignore[attr-defined]
    return Given(state, tensors, unmade)


def _whole(name: str, value: Value, found: Mapping[str, torch.Tensor]) -> Any:
    """A sparse or quantised tensor made of its parts; ValueError for one without data, or of a class of others.

    One of a header is made by torchao, `unflatten_tensor_state_dict` of its safetensors_support.py.
    """
    if not isinstance(value, Compound):
        raise ValueError(kind_of(value))
    parts: list[Any] = [found[f"{name}/{label}"] for label in value.parts]
    if isinstance(value.state, objects.Leaf):
        try:
            from torchao.prototype.safetensors.safetensors_utils import object_from_dict

            said = json.loads(str(value.state.value))
            return object_from_dict({**said, "_data": {**said["_data"], **dict(zip(value.parts, parts, strict=True))}})
        except Exception as error:  # whatever its classes make of what the header says
            raise ValueError(f"a tensor that torchao has to make: {error}") from error
    facts: Any = value.facts
    make: Any = torch
    if value.kind == "sparse_coo":
        return make.sparse_coo_tensor(*parts, facts["shape"], is_coalesced=facts["coalesced"] == [True] or None)
    if value.kind.startswith("sparse_"):
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


def _is_own(module: nn.Module, name: str) -> bool:
    """Whether a method of a module is not nn.Module's."""
    return getattr(getattr(module, name), "__func__", None) is not getattr(nn.Module, name)


KNOWN = ("torch", "torchao", "bitsandbytes", "transformers")
"""Packages whose code for loading keeps nothing outside of the module that it loads."""


def own_code(model: nn.Module, tensors: Tensors) -> list[Any]:
    """What has a part in loading a model and is not nn.Module's: methods, hooks, and classes of tensors."""
    found: list[Any] = [type(tensor) for tensor in tensors.values() if not is_plain(tensor)]
    found += [model.load_state_dict] if _is_own(model, "load_state_dict") else []
    for module in model.modules():
        hooks = (*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values())
        found += (getattr(hook, "hook", hook) for hook in hooks)
        found += (getattr(module, n) for n in ("_load_from_state_dict", "set_extra_state") if _is_own(module, n))
    return found


def is_known(code: Any) -> bool:
    """Whether something of `own_code` is of a known package."""
    return str(getattr(code, "__module__", "")).partition(".")[0] in KNOWN


def put_in(model: nn.Module, state: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`load_state_dict`, not strict; one of the model's own may know no `strict`, and say nothing.

    Returns the names that are missing, and those that are left over.
    """
    known = signature(model.load_state_dict).parameters.values()
    is_asked = any(one.name == "strict" or one.kind is one.VAR_KEYWORD for one in known)
    found: Any = model.load_state_dict(state, **({"strict": False} if is_asked else {}))
    missing, unexpected = found if isinstance(found, tuple) else ((), ())
    return tuple(missing), tuple(unexpected)


class Watch(TorchFunctionMode):
    """Which tensors of a state dict are copied into which, and which are used at all, while it is on."""

    def __init__(self, given: Given) -> None:
        super().__init__()
        of: Any = reductions.StorageWeakRef
        self._names = {id(one): name for name, one in given.tensors.items()}
        self._storages = {n: of(one.untyped_storage()) for n, one in given.tensors.items() if is_plain(one)}
        self.copied: list[tuple[torch.Tensor, str]] = []
        """(what was written to, the name of what was copied there: empty if it is none of the state dict)."""
        self.used: set[str] = set()
        self.written: set[object] = set()
        """The places of what was written to, by whatever function."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, _ = tree_flatten((args, kwargs))
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name != "__get__" or isinstance(found, torch.Tensor):  # else a shape or type was asked for
            self.used.update(self._names[id(one)] for one in given if id(one) in self._names)
        if (name.endswith("_") and args and found is args[0]) or name in ("__setitem__", "__set__"):
            self.written.add(place(args[0]))
        if func is torch.Tensor.copy_:
            self.copied.append((args[0], self._names.get(id(args[1]), "")))
        return found

    def sources(self, tensors: Tensors) -> dict[str, str]:
        """{name of the model: the name whose tensor was copied into it as it is}."""
        names = grouped((id(one), name) for name, one in tensors.items())
        sources: dict[str, str] = {}
        for to, source in self.copied:
            if source and (found := names.get(id(to))):  # copies into a tied tensor: each of them has a name
                free = next((name for name in found if name not in sources), found[0])
                sources[source if source in found else free] = source
        return sources

    def changed(self, given: Given) -> Iterator[str]:
        """Names with numbers that the type of what they were copied into does not hold; floats may lose digits."""
        for to, name in self.copied:
            one = given.tensors.get(name, to)
            holds = can_hold(dtype_of(to.dtype), dtype_of(one.dtype))
            if not (holds or torch.equal(one.to(to.dtype).to(one.dtype), one)):
                yield name

    def ignored(self) -> list[str]:
        """Names whose tensors nobody used or kept; nobody else may hold the state dict any more."""
        return [name for name, kept in self._storages.items() if name not in self.used and kept.expired()]


@dataclass(frozen=True, slots=True)
class Answer:
    """What torch and a model's own code make of a state dict."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    error: str
    """Why torch would not load it, in its words."""
    sources: Mapping[str, str]
    """{name of the model: the name whose tensor is copied into it as it is}."""


def whole_of(
    tensors: Tensors, given: Given, held: Held, assign: bool, device: torch.device | None, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """{name of the model: what is put in as the file has it}: what is made of other tensors, as `assign` of torch does.

    On the meta device also without `assign`, where the file has the model's kind.  TieError where the model ties such a
    tensor to what is another in the file.
    """
    found: dict[str, torch.Tensor] = {}
    places = grouped((place(old), name) for name, old in tensors.items())
    for name, one in given.tensors.items():
        old = tensors.get(name)
        if old is None or nn.parameter.is_lazy(old) or old.shape != one.shape or (is_plain(old) and is_plain(one)):
            continue
        is_sparse, values = old.layout is not torch.strided, one.detach()
        is_alike = (type(old.detach()), old.layout) == (type(values), one.layout)
        if not (is_sparse or old.is_meta or not is_plain(one) if assign else old.is_meta and is_alike):
            continue
        values = values.to(device or (one.device if old.is_meta else old.device))
        values = values.to(dtype) if dtype is not None and values.is_floating_point() else values
        try:
            values = like(old, values)
        except RuntimeError as error:  # as torch says it
            kind = kind_of(held.part.entries[name].value)
            raise ModelError(f"{held.section.path}: {name!r} is {kind} there, and a parameter here: {error}") from error
        for other in places[place(old)]:
            entries = held.part.entries
            if tensors[other] is not old or entries.get(other, entries[name]).value != entries[name].value:
                kind = kind_of(entries[name].value)
                raise TieError(
                    f"{held.section.path}: the model ties {name!r} and {other!r}, and {name!r} alone is {kind} there",
                    hint="load into a model without this tie",
                )
            found.setdefault(other, values)
    return found


def install(model: nn.Module, old: Tensors, new: Tensors) -> None:
    """Put tensors where a model has others, in all of its modules; names say which for which."""
    number = {id(old[name]): tensor for name, tensor in new.items()}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in [*held.items()]:
                if tensor is not None and id(tensor) in number:
                    held[name] = number[id(tensor)]  # type: ignore[assignment]
                    if "." not in name:
                        setattr(module, name, held[name])  # torch's RNNs keep lists that only this updates


def tried(model: nn.Module, tensors: Tensors, given: Given, whole: Tensors) -> Answer | None:
    """What loading would do, found on a copy of the model without memory; None where that shows nothing.

    `whole` are tensors that it has then.  All code of the model is known.  It shows nothing where a model cannot be
    copied, or where code needs values that a copy has not.
    """
    try:
        twin, copies = _twin(model, tensors)
    except Exception:  # whatever a library's class makes of being copied
        return None
    install(twin, copies, whole)
    watch = Watch(given)
    error = ""
    missing: tuple[str, ...] = ()
    unexpected = missing
    try:
        with warnings.catch_warnings(), watch:
            warnings.simplefilter("ignore")  # that copying to the meta device does nothing
            missing, unexpected = put_in(twin, given.state)
    except RuntimeError as raised:
        error = str(raised)
        of_library = any(type(one).__module__.partition(".")[0] != "torch" for one in tensors.values())
        if not error.startswith("Error(s) in loading state_dict") or (of_library and "an exception occurred" in error):
            return None
    except Exception:
        return None
    return Answer(missing, unexpected, error, watch.sources(copies))


def _twin(model: nn.Module, tensors: Tensors) -> tuple[nn.Module, Tensors]:
    """A copy of a model whose tensors are on the meta device, and these by their names."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values())
        for one in (*held, *vars(module).values()):  # other tensors, too: torch copies those of a graph only so
            if isinstance(one, torch.Tensor) and id(one) not in memo:
                is_held = any(one is other for other in held)
                if (copied := _on_meta(one, memo) if is_held else one.detach().clone()) is not None:
                    memo[id(one)] = copied
    twin = copy.deepcopy(model, memo)
    return twin, {name: memo[id(one)] for name, one in tensors.items()}


def like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values as a parameter where a tensor is one."""
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def _on_meta(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor | None:
    """A tensor of the same class without memory, or a copy of a sparse one; None for one that is lazy or quantised."""
    if nn.parameter.is_lazy(tensor) or tensor.is_quantized:
        return None
    kind: Any = type(tensor)
    if tensor.layout is not torch.strided:
        return like(tensor, tensor.detach() if tensor.is_meta else tensor.detach().clone())
    if hasattr(tensor, "__tensor_flatten__"):
        names, context = tensor.__tensor_flatten__()
        inner = {name: _on_meta(getattr(tensor, name), memo) for name in names}
        return like(tensor, kind.__tensor_unflatten__(inner, context, tensor.shape, tensor.stride()))
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if kind is not torch.Tensor:
        found = torch.Tensor._make_subclass(kind, found, tensor.requires_grad)
        found.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return found
