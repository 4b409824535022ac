"""The optimizers of a checkpoint, from its tree of objects.

    {"state": {0: {"exp_avg": T}}, "param_groups": [{"lr": 0.1, "params": [0]}]}        torch
    {"state": {"a.weight": {...}}, "param_groups": [{..., "params": ["a.weight"]}]}     FSDP, DCP, DeepSpeed
    {"state.a.weight.exp_avg": T, "param_groups.a.weight.lr": 0.1}                      DCP, flattened

These are what `torch.optim.Optimizer.state_dict` makes, and `get_optimizer_state_dict` of torch.distributed.checkpoint
(torch 2.13), without and with `flatten_optimizer_state_dict`.  A mapping `fp32` beside `state` holds master copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import replace
from typing import NamedTuple

from paramtool.errors import Defects, plural
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import (
    Key,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    children,
    tensor_names,
    under,
    with_item,
    word,
)
from paramtool.model.optimizer import Group, OptimizerState, Slot, StateEntry
from paramtool.model.view import Shape, View, Views
from paramtool.passes.compat.wanted import plain_window
from paramtool.passes.optimizer import slots, tree

_TORCH = ("state", "param_groups")
_FLAT = ("state.", "param_groups.")
_MASTERS = "fp32"
"""Copies of the parameters by name, as the readers of DeepSpeed's files put them."""
_MASTER_LISTS = ("fp32_from_fp16_params", "fp32_from_fp16")
"""Lists of copies for each group, beside the optimizer: Megatron-LM, apex.  Not checked against a release: they are
taken only where there is one for each entry of every group."""
_NOT_SETTINGS = ("params", "param_names")


class _OptimizerNode(NamedTuple):
    """A mapping that is an optimizer's, and what is around it: a mapping, or the object whose part it is."""

    at: str
    node: Mapping
    around: Node | None
    is_flat: bool


def optimizers(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every optimizer of a checkpoint, in the order of the file.

    Defects where one contradicts itself: state for an id that no group has, an id in two groups.
    """
    nodes = tuple(_found(checkpoint.objects))
    if not nodes:
        return ()
    views, found = plain_views(checkpoint), []
    defects: list[str] = []
    for one in nodes:
        lines: list[str] = []
        if one.is_flat:
            one = one._replace(node=tree.unflattened(one.node, lines))
        # An optimizer with `state` and `param_groups`; what contradicts itself is added to `defects`
        numbered = _numbered(one.node, views)
        is_object = numbered != one.node or isinstance(one.around, Opaque)
        groups = tuple(_groups(numbered, lines))
        state: dict[int | str, Node] = {}
        node = under(numbered, _TORCH[0])
        assert isinstance(node, Mapping)
        for key, child in node.items:
            state[key if isinstance(key, (int, str)) else word(key)] = child
        where: dict[int | str, int] = {}  # in the order of the groups
        for k, group in enumerate(groups):
            for key in group.keys:
                if key in where:
                    both = f"group {k} twice" if where[key] == k else f"groups {where[key]} and {k}"
                    lines.append(f"entry {key!r} is in {both}")
                where.setdefault(key, k)
        strangers = [key for key in state if key not in where]
        by_name = any(isinstance(key, str) for key in where)
        lost = [key for key in strangers if by_name or not isinstance(key, str)]
        if lost:
            many = f"{plural(len(lost), 'entry', 'entries')} that no group has: {', '.join(map(repr, lost[:10]))}"
            lines.append(f"`state` has {many}; the groups have {plural(len(where), 'entry', 'entries')}")
        names = [slot for entry in state.values() if isinstance(entry, Mapping) for slot, _ in _pairs(entry)]
        # What an optimizer is, and why its state cannot follow
        first = next((group.settings for group in groups if group.keys), groups[0].settings if groups else None)
        settings = {str(key): node for key, node in first.items} if isinstance(first, Mapping) else {}
        algorithm, refused = slots.algorithm_of(names, settings)
        if is_object:
            refused = refused or "it was pickled as an object, and not as a state dict"
        if len(strangers) > len(lost):
            own = next(key for key in strangers if key not in lost)
            refused = refused or f"it keeps {own!r}, which is not the state of one parameter"
        entries = tuple(
            StateEntry(key, group, tuple(_slots(state.get(key), views, algorithm))) for key, group in where.items()
        )
        form = "dcp-flat" if one.is_flat else "dcp" if checkpoint.format == "dcp" or by_name else "torch"
        if checkpoint.format.startswith(("deepspeed", "universal")):
            form = "deepspeed"
        masters = _masters(one, groups)
        found.append(OptimizerState(one.at, form, algorithm, entries, groups, masters=masters, refused=refused))
        defects += (f"{one.at or 'the optimizer'}: {line}" for line in lines)
    if defects:
        raise Defects(checkpoint.path, defects, hint="the optimizer's state is damaged, or was edited")
    return tuple(found)


def plain_views(checkpoint: Checkpoint) -> dict[str, View]:
    """The windows of the plain tensors, and of those whose sign or conjugation is still to be carried out."""
    windows = ((name, plain_window(entry.value)) for name, entry in checkpoint.entries.items())
    return {name: view for name, view in windows if view is not None}


def shapes_of(checkpoint: Checkpoint) -> dict[str, Shape]:
    """{tensor: shape} of the plain tensors, as `bind` asks for them."""
    return {name: view.shape for name, view in plain_views(checkpoint).items()}


def _found(objects: Node) -> Iterator[_OptimizerNode]:
    """Every mapping that is an optimizer's; nothing inside one is looked at."""
    todo: list[tuple[str, Node, Node | None]] = [("", objects, None)]
    while todo:
        at, node, around = todo.pop()
        if isinstance(node, Mapping):
            keys = {key for key, _ in node.items if isinstance(key, str)}
            if keys.issuperset(_TORCH) and isinstance(under(node, _TORCH[0]), Mapping):
                yield _OptimizerNode(at, node, around, False)
                continue
            if len(keys) == len(node.items) and (
                all(key.startswith(_FLAT) for key in keys) and any(key.startswith(_FLAT[1]) for key in keys)
            ):
                yield _OptimizerNode(at, node, around, True)
                continue
            inner = [(word(key), child) for key, child in node.items]
            todo += [(f"{at}.{key}".lstrip("."), child, node) for key, child in reversed(inner)]
        elif isinstance(node, Sequence):
            inner = [(str(k), child) for k, child in enumerate(node.items)]
            todo += [(f"{at}.{key}".lstrip("."), child, None) for key, child in reversed(inner)]
        else:
            todo += [(at, child, node) for child in reversed(children(node))]


def _numbered(node: Mapping, views: Views) -> Mapping:
    """An optimizer that was pickled with its parameters, with their positions instead; any other as it is.

    Its state has the parameters themselves as keys.
    """
    numbers: dict[View, int] = {}

    def view_of(item: object) -> View | None:
        names = [*tensor_names(item)] if isinstance(item, (TensorRef, Opaque)) else []
        return views.get(names[0]) if len(names) == 1 else None

    def number(item: Node) -> Node:
        view = view_of(item)
        return item if view is None else Leaf(numbers.setdefault(view, len(numbers)))

    def group(one: Node) -> Node:
        params = under(one, "params")
        if not isinstance(one, Mapping) or not isinstance(params, Sequence):
            return one
        changed = replace(params, items=tuple(map(number, params.items)))
        return with_item(one, "params", changed)

    listed, state = under(node, _TORCH[1]), under(node, _TORCH[0])
    if not isinstance(listed, Sequence) or not isinstance(state, Mapping):
        return node
    listed = replace(listed, items=tuple(map(group, listed.items)))
    items: list[tuple[Key, Node]] = []
    for key, child in state.items:
        view = view_of(key)
        items.append((key if view is None else numbers.get(view, key), child))
    state = replace(state, items=tuple(items))
    return with_item(with_item(node, _TORCH[0], state), _TORCH[1], listed)


def _groups(node: Mapping, defects: list[str]) -> Iterator[Group]:
    listed = under(node, _TORCH[1])
    if not isinstance(listed, Sequence):
        defects.append("`param_groups` is not a list")
        return
    for k, one in enumerate(listed.items):
        params = under(one, "params")
        if not isinstance(one, Mapping) or not isinstance(params, Sequence):
            defects.append(f"group {k} has no list `params`")
            continue
        keys = tuple(item.value for item in params.items if isinstance(item, Leaf))
        if len(keys) != len(params.items) or not all(type(key) in (int, str) for key in keys):
            defects.append(f"`params` of group {k} are not all numbers or names")
            continue
        named = under(one, "param_names")
        listed_names = named.items if isinstance(named, Sequence) else ()
        names = tuple(item.value for item in listed_names if isinstance(item, Leaf) and isinstance(item.value, str))
        names = names if len(names) == len(listed_names) else ()
        if names and len(names) != len(keys):
            defects.append(f"group {k} has {len(names)} `param_names` for {plural(len(keys), 'entry', 'entries')}")
        settings = tuple(item for item in one.items if item[0] not in _NOT_SETTINGS)
        yield Group(keys, replace(one, items=settings), names)  # type: ignore[arg-type]  # numbers and names


def _slots(entry: Node | None, views: Views, algorithm: str) -> Iterator[Slot]:
    """The slots of an entry; a state that is not a mapping is one slot without a name."""
    if entry is None:
        return
    pairs = [*_pairs(entry)] if isinstance(entry, Mapping) else [("", entry)]
    tensors = {key: child.name for key, child in pairs if isinstance(child, TensorRef)}
    known = {key: views.get(tensors.get(key, "")) for key, _ in pairs}
    kinds = slots.kinds_of(known, algorithm)
    for key, child in pairs:
        if key not in tensors:
            is_known = kinds[key] in ("global", "blockwise") or not any(tensor_names(child))
            yield Slot(key, kinds[key] if is_known else "unknown", value=child)
        else:
            yield Slot(key, kinds[key] if known[key] else "unknown", tensors[key])


def _pairs(entry: Mapping) -> Iterator[tuple[str, Node]]:
    """The slots of an entry, those below another mapping of bitsandbytes with its key before a dot."""
    for key, child in entry.items:
        if key == slots.WRAPPED and isinstance(child, Mapping):
            yield from ((f"{key}.{word(inner)}", one) for inner, one in child.items)
        else:
            yield word(key), child


def _masters(found: _OptimizerNode, groups: tuple[Group, ...]) -> Map[int | str, str]:
    """The float32 copies of the parameters, where they are bound to entries."""
    copies = under(found.node, _MASTERS)
    if isinstance(copies, Mapping):
        keys = {key for group in groups for key in group.keys}
        return {
            key: child.name
            for key, child in copies.items
            if isinstance(key, (int, str)) and key in keys and isinstance(child, TensorRef)
        }
    for name in _MASTER_LISTS:
        lists = under(found.around, name)
        if not isinstance(lists, Sequence) or len(lists.items) != len(groups):
            continue
        listed = (items.items if isinstance(items, Sequence) else () for items in lists.items)
        tensors = [[item.name for item in items if isinstance(item, TensorRef)] for items in listed]
        if [len(names) for names in tensors] == [len(group.keys) for group in groups]:
            pairs = zip(groups, tensors, strict=True)
            return {key: name for group, names in pairs for key, name in zip(group.keys, names, strict=True)}
    return {}
