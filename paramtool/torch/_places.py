"""Where the values of a file go in a model: into the tensors that it has, or into new ones that take their places.

New tensors share memory just as the old ones did: for each alias set of the model, or each storage that is filled as a
whole (a flattened LSTM), one new storage is made, with every window where it was.  What the file ties and the model
does not goes into two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from paramtool.errors import ModelError
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import View
from paramtool.torch._live import described
from paramtool.torch.tensors import torch_type, window

ALIGNMENT = 16
"""The largest element: windows that begin on their elements still do behind a start that is a multiple of it."""
Tensors = Mapping[str, torch.Tensor]


@dataclass
class StorageGroup:
    """Names of one new storage."""

    views: Mapping[str, View]
    """Where each lies on it."""
    nbytes: int
    device: torch.device
    waiting: set[str]
    """Names that the file holds and that did not come yet."""
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def take(self, name: str, tensor: torch.Tensor, is_free: bool) -> bool:
        """Take the value of a name; whether its alias set was taken, too, which only one that is free can be."""
        self.waiting.discard(name)
        alone = len(set(self.views.values())) == 1
        if alone and self.made:
            return False  # a name tied to one that came: the same value
        if alone and self.views[name].is_contiguous:
            new = tensor.to(self.device, torch_type(self.views[name]), copy=not is_free).contiguous()
            self.made = dict.fromkeys(self.views, new)
            return is_free and new.data_ptr() == tensor.data_ptr()
        self.build()
        self.made[name].copy_(tensor)
        return False

    def build(self) -> None:
        """Make the storage, if it is not made."""
        if not self.made:
            buffer = torch.zeros(self.nbytes, dtype=torch.uint8, device=self.device)
            self.made = {name: window(buffer, view) for name, view in self.views.items()}


@dataclass
class Places:
    """The places of a model, and the names that wait for them."""

    tensors: dict[str, torch.Tensor]
    """The model's own, as long as they are not replaced."""
    groups: dict[str, StorageGroup]
    """{name: the group of new tensors that it is in}; names in none are filled where they are."""
    homes: Mapping[int, Sequence[tuple[nn.Module, str]]]
    """{id of a tensor: modules and attributes that hold it}."""

    def described(self) -> Checkpoint:
        """The model as it will be."""
        found = described(self.tensors)
        first = len(found.storages)
        numbers = {id(group): first + k for k, group in enumerate(self._each())}
        entries = dict(found.entries)
        for name, group in self.groups.items():
            entries[name] = Entry(replace(group.views[name], storage=numbers[id(group)]))
        added = {numbers[id(g)]: Storage(numbers[id(g)], g.nbytes, ByteRange("", 0, g.nbytes)) for g in self._each()}
        return replace(found, entries=entries, storages={**found.storages, **added})

    def _each(self) -> Iterator[StorageGroup]:
        yield from {id(group): group for group in self.groups.values()}.values()

    def keep(self, lacking: Collection[str]) -> None:
        """Values that the file lacks, of an alias set of which it has some, move to the new storage."""
        for name in lacking:
            if (group := self.groups.get(name)) is not None:
                if self.tensors[name].is_meta:
                    raise ModelError(
                        f"{name!r} is on the meta device, and the file holds only names that fill a part of it",
                        hint="model.to_empty(device='cpu') gives it memory",
                    )
                group.build()
                group.made[name].copy_(self.tensors[name])

    def take(self, batch: Tensors) -> None:
        """Put tensors of one alias set of the file where they belong."""
        gone: set[int] = set()
        for name, tensor in batch.items():
            group = self.groups.get(name)
            if group is None:
                self.tensors[name].copy_(tensor)
                continue
            storage = tensor.untyped_storage()
            is_free = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in gone
            if group.take(name, tensor, is_free):
                gone.add(storage.data_ptr())
            if not group.waiting:
                self._install(group)

    def _install(self, group: StorageGroup) -> None:
        """Put new tensors into the modules, in all places where the old ones are."""
        new: dict[int, torch.Tensor] = {}
        replaced = {name: self.tensors.pop(name) for name in group.views}
        for name, old in replaced.items():
            if id(old) not in new:
                new[id(old)] = _like(old, group.made[name])
                for module, attribute in self.homes[id(old)]:
                    setattr(module, attribute, new[id(old)])  # torch's RNNs keep lists that only this updates
        group.made = {}


def _like(old: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A tensor with the values of one, and everything else of another."""
    if not isinstance(old, nn.Parameter):
        return values.requires_grad_(old.requires_grad)
    new = nn.Parameter(values, requires_grad=old.requires_grad)
    new.__dict__.update(old.__dict__)
    return new


def places(
    model: nn.Module,
    tensors: Tensors,
    found: Mapping[str, torch.dtype],
    *,
    assign: bool,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> Places:
    """Where values go; `found` are the names that the file holds, with their types there.

    New tensors are made for the names of `found`, and for those that stand on one alias set with them: for all with
    `assign`, else where the model has meta tensors.
    """
    new = {name: tensor for name, tensor in tensors.items() if assign or tensor.is_meta}
    homes = _homes(model)
    if homeless := [name for name, tensor in new.items() if id(tensor) not in homes]:
        raise ModelError(f"{homeless[0]!r} belongs to no module, so it cannot be replaced")
    groups: dict[str, StorageGroup] = {}
    for views, types in _shared(new, found, assign, dtype):
        first = tensors[next(iter(views))]
        place = device or (torch.device("cpu") if first.is_meta else first.device)
        moved, nbytes = _moved(views, types)
        group = StorageGroup(moved, nbytes, place, {name for name in views if name in found})
        groups.update(dict.fromkeys(views, group))
    return Places(dict(tensors), groups, homes)


def _homes(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """{id of a tensor: modules and attributes that hold it}, of every parameter and buffer."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                found.setdefault(id(tensor), []).append((module, name))
    return found


Views = dict[str, View]
Types = dict[str, DType]


def _shared(
    new: Tensors, found: Mapping[str, torch.dtype], assign: bool, dtype: torch.dtype | None
) -> Iterator[tuple[Views, Types]]:
    """Names that get one new storage, with their windows on the old one and their new types."""
    checkpoint = described(new)
    views = checkpoint.views()
    members = alias.build(checkpoint).names
    alias_sets: dict[str, list[str]] = {}
    storages: dict[object, list[str]] = {}
    types: Types = {}
    for name in new:
        alias_sets.setdefault(members[name].alias_set, []).append(name)
        storages.setdefault(views[name].storage, []).append(name)
    for names in alias_sets.values():
        types |= _types({name: new[name] for name in names}, found, assign, dtype)
    for names in storages.values():
        if all(name in found for name in names) and _is_movable({n: views[n] for n in names}, types):
            yield {n: views[n] for n in names}, types
            continue
        for part in dict.fromkeys(members[name].alias_set for name in names):
            if any(name in found for name in alias_sets[part]):
                yield {n: views[n] for n in alias_sets[part]}, types


def _types(alias_set: Tensors, found: Mapping[str, torch.dtype], assign: bool, dtype: torch.dtype | None) -> Types:
    """New types of the names of one alias set; of those with one old type, the first that the file holds decides."""
    chosen: dict[torch.dtype, torch.dtype] = {}
    for name in sorted(alias_set, key=lambda name: name not in found):
        old = alias_set[name].dtype
        kept = found[name] if assign and name in found and _kind(found[name]) == _kind(old) else old
        chosen.setdefault(old, dtype if dtype is not None and kept.is_floating_point else kept)
    return {name: DTYPES[str(chosen[tensor.dtype]).removeprefix("torch.")] for name, tensor in alias_set.items()}


def _kind(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    """Whether a type is of real, of complex numbers, or of truth values; integers are none of these."""
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool


def _is_movable(views: Views, types: Types) -> bool:
    """Whether windows can keep their places on a storage: their types stay, or change from one to one."""
    stay = all(types[name] == view.dtype for name, view in views.items())
    return stay or len({(view.dtype, types[name]) for name, view in views.items()}) == 1


def _moved(views: Views, types: Types) -> tuple[Views, int]:
    """Windows on a new storage that begins where the first of them does, and its bytes."""
    if not _is_movable(views, types):
        raise ModelError(f"{', '.join(map(repr, views))}: share memory as different types, which cannot change apart")
    if all(types[name] == view.dtype for name, view in views.items()):
        start = min(view.byte_start for view in views.values())
        start -= start % ALIGNMENT
        moved = {name: view.on(0, view.byte_start - start) for name, view in views.items()}
    else:
        first = min(view.offset for view in views.values())
        moved = {n: View(0, types[n], v.offset - first, v.shape, v.strides) for n, v in views.items()}
    return moved, max(view.byte_stop for view in moved.values())
