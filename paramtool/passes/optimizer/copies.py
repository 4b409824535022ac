"""Copies of the parameters of a model that are listed by position: averages, and float32 copies of half precision.

    {"ema": {"shadow_params": [T, T, ...]}}                                      diffusers' EMAModel, torch_ema
    {"optimizer": {"optimizer": {...}, "fp32_from_fp16_params": [[T, T], [T]]}}  Megatron-LM, apex: a list for a group
    {"optimizer": {"state": {...}, "fp32": {"a.weight": T}}}                     folders of DeepSpeed: by names

A list is described as an optimizer that keeps one value for each parameter, which follows as the parameter itself.
diffusers' list is that of diffusers 0.42 (training_utils.py, `EMAModel.state_dict`): all parameters, also frozen ones,
in the order of `parameters()`.  Those of Megatron-LM and apex were not checked against a release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paramtool.grouping import grouped
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import EMPTY, Node, TensorRef
from paramtool.model.optimizer import Binding, EntryKey, Group, Move, OptimizerState, Slot, StateEntry
from paramtool.model.view import View
from paramtool.passes.optimizer.tree import LIST

NAMED = "fp32"
"""A mapping of copies by the names of the parameters, in the optimizer's own."""
_EMA = "ema"


def averages(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every list of at least two averaged tensors, in the order of the file."""
    averaged = {TensorRef(name): name for name, entry in checkpoint.entries.items() if entry.role == _EMA}

    def listed(node: Node, around: Node | None) -> list[str] | None:
        items = objects.items_of(node)
        names = [averaged[item] for item in items if isinstance(item, TensorRef) and item in averaged]
        return names if 1 < len(names) == len(items) else None

    found = objects.outermost(checkpoint.objects, listed, (objects.Mapping, objects.Sequence)) if averaged else ()
    return tuple(_keyed(".".join(path).lstrip("."), dict(enumerate(names)), "") for path, names in found)


def _keyed(at: str, tensors: Mapping[EntryKey, str], section: str) -> OptimizerState:
    """Tensors by their keys as what an optimizer keeps."""
    entries = tuple(StateEntry(key, 0, (Slot("", "weight", name),)) for key, name in tensors.items())
    return OptimizerState(at, LIST, "", entries, (Group(tuple(tensors), EMPTY),), section)


def masters(binding: Binding) -> Iterator[Binding]:
    """The lists of float32 copies beside an optimizer, and its mapping of them, bound as its entries are."""
    optimizer = binding.optimizer
    source = f"the entries of {optimizer.at or 'the optimizer'}"
    pairs = ((_place(optimizer, key), (key, tensor)) for key, tensor in optimizer.masters.items())
    for at, listed in grouped(pairs).items():
        tensors, names = dict(listed), dict(binding.names)
        if at != _inside(optimizer, NAMED):  # by position
            names = {k: names[key] for k, (key, _) in enumerate(listed) if key in names}
            tensors = {k: tensor for k, (_, tensor) in enumerate(listed)}
        if at:
            state = _keyed(at, tensors, optimizer.section)
            yield Binding(state, names, "given", source, binding.is_unique, binding.ambiguous)


def _inside(state: OptimizerState, part: str) -> str:
    return f"{state.at}.{part}" if state.at else part


def _place(state: OptimizerState, key: EntryKey) -> str:
    """The list, or the mapping, that has the copy of an entry; empty where it is in none."""
    at, _, last = state.masters[key].rpartition(".")
    named = _inside(state, NAMED)
    return named if state.masters[key] == f"{named}.{key}" else at if last.isdecimal() else ""


def are_listed(state: OptimizerState) -> bool:
    """Whether all float32 copies of an optimizer are in lists beside it, or in its mapping of them."""
    places = (_place(state, key) for key in state.masters)
    return all(at and not f"{at}.".startswith(_inside(state, "state.")) for at in places)


def stale(checkpoint: Checkpoint, moves: Sequence[Move]) -> tuple[str, str] | None:
    """A parameter that changes and a copy of it by name that does not; None where there is none.

    A copy is a tensor of an average: all parameters of a move have one, under one prefix, in their shapes.
    """
    views = checkpoint.views()
    changed = {name for move in moves for name in move.old}
    left: dict[str, View] = {
        name: view for name, view in views.items() if checkpoint.entries[name].role == _EMA and name not in changed
    }
    if not left:
        return None
    prefixes = tuple(one.prefix for one in checkpoint.sections if one.role == "model")
    # {the end of a name, from after a dot: the names with it}
    by_end = grouped((name[k:], name) for name in left for k in range(len(name) + 1) if k == 0 or name[k - 1] == ".")
    for move in moves:
        own = [name for name in move.old if name in views and checkpoint.entries[name].role == "model"]
        prefix = next((one for one in prefixes if own and own[0].startswith(one)), "")
        inner = [name.removeprefix(prefix) for name in own]
        for first in by_end.get(inner[0], ()) if own else ():
            at = first.removesuffix(inner[0])
            copied = [left[at + one].shape if at + one in left else None for one in inner]
            if copied == [views[name].shape for name in own]:
                return own[0], first
    return None
