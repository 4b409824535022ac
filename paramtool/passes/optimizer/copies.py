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
from paramtool.model.objects import EMPTY, Node, TensorRef, tensor_names, word
from paramtool.model.optimizer import Binding, Group, Move, OptimizerState, Slot, StateEntry
from paramtool.model.view import View, Views

FORM = "list"
NAMED = "fp32"
"""A mapping of copies by the names of the parameters, in the optimizer's own."""
_EMA = "ema"


def averages(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every list of at least two averaged tensors, in the order of the file."""
    found = []
    todo: list[tuple[str, Node]] = [("", checkpoint.objects)]
    while todo:
        at, node = todo.pop()
        if isinstance(node, objects.Mapping):
            inner = [(word(key), child) for key, child in node.items]
        elif isinstance(node, objects.Sequence):
            if _is_list_of_averages(checkpoint, node):
                found.append(_keyed(at, dict(enumerate(tensor_names(node))), ""))
                continue
            inner = [(str(k), child) for k, child in enumerate(node.items)]
        else:
            continue
        todo += ((f"{at}.{key}".lstrip("."), child) for key, child in reversed(inner))
    return tuple(found)


def _is_list_of_averages(checkpoint: Checkpoint, node: objects.Sequence) -> bool:
    names = [item.name for item in node.items if isinstance(item, TensorRef)]
    if len(names) < 2 or len(names) < len(node.items):
        return False
    entries = [checkpoint.entries.get(name) for name in names]
    return all(entry is not None and entry.role == _EMA for entry in entries)


def _keyed(at: str, tensors: Mapping[int | str, str], section: str) -> OptimizerState:
    """Tensors by their keys as what an optimizer keeps."""
    entries = tuple(StateEntry(key, 0, (Slot("", "weight", name),)) for key, name in tensors.items())
    return OptimizerState(at, FORM, "", entries, (Group(tuple(tensors), EMPTY),), section)


def masters(binding: Binding) -> Iterator[Binding]:
    """The lists of float32 copies beside an optimizer, and its mapping of them, bound as its entries are."""
    optimizer = binding.optimizer
    at_names = _at_names(optimizer)
    named = {k: one for k, one in optimizer.masters.items() if one == f"{at_names}.{k}"}
    found: list[tuple[str, Mapping[int | str, str], Mapping[int | str, str]]] = []
    if named:
        found.append((at_names, named, binding.names))
    listed: dict[str, list[tuple[str, int | str]]] = {}
    for key, tensor in optimizer.masters.items():
        at, _, last = tensor.rpartition(".")
        if last.isdecimal() and key not in named:
            listed.setdefault(at, []).append((tensor, key))
    for at, pairs in listed.items():
        names: dict[int | str, str] = {}
        names |= {k: binding.names[key] for k, (_, key) in enumerate(pairs) if key in binding.names}
        found.append((at, dict(enumerate(tensor for tensor, _ in pairs)), names))
    source = f"the entries of {optimizer.at or 'the optimizer'}"
    for at, tensors, own in found:
        state = _keyed(at, tensors, optimizer.section)
        yield Binding(state, dict(own), "given", source, binding.is_unique, binding.ambiguous)


def _at_names(state: OptimizerState) -> str:
    return f"{state.at}.{NAMED}" if state.at else NAMED


def are_listed(state: OptimizerState) -> bool:
    """Whether all float32 copies of an optimizer are in lists beside it, or in its mapping of them."""
    inside = f"{state.at}." if state.at else ""
    return all(
        tensor == f"{_at_names(state)}.{key}"
        or (tensor.rpartition(".")[2].isdecimal() and not tensor.startswith(f"{inside}state."))
        for key, tensor in state.masters.items()
    )


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
        if own and (found := _copy_of(own, prefix, views, by_end)):
            return own[0], found
    return None


def _copy_of(own: Sequence[str], prefix: str, views: Views, by_end: Mapping[str, list[str]]) -> str:
    """The copy of the first of some parameters, where all have one under the same prefix; empty else."""
    inner = [name.removeprefix(prefix) for name in own]
    for first in by_end.get(inner[0], ()):
        at = first.removesuffix(inner[0])
        copied = [f"{at}{one}" for one in inner]
        if all(
            copy in by_end.get(one, ()) and views[copy].shape == views[name].shape
            for copy, one, name in zip(copied, inner, own, strict=True)
        ):
            return first
    return ""
