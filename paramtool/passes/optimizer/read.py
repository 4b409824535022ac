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
from itertools import chain

from paramtool.errors import Defects, plural
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import (
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    items_of,
    outermost,
    tensor_names,
    under,
    with_item,
    word,
)
from paramtool.model.optimizer import EntryKey, Group, OptimizerState, Slot, StateEntry
from paramtool.model.view import Shapes, View, Views
from paramtool.passes.compat.wanted import plain_window
from paramtool.passes.optimizer import slots, tree
from paramtool.passes.optimizer.copies import NAMED

_FLAT = ("state.", "param_groups.")
_MASTER_LISTS = ("fp32_from_fp16_params", "fp32_from_fp16")
"""Lists of copies for each group, beside the optimizer: Megatron-LM, apex.  Not checked against a release: they are
taken only where there is one for each entry of every group."""


def optimizers(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every optimizer of a checkpoint, in the order of the file.

    Defects where one contradicts itself: state for an id that no group has, an id in two groups.
    """
    nodes = [*outermost(checkpoint.objects, _mapping_of_optimizer)]
    views = plain_views(checkpoint) if nodes else {}
    found = []
    defects: list[str] = []
    for path, (node, around) in nodes:
        at, lines = ".".join(path).lstrip("."), list[str]()
        is_flat = under(node, tree.GROUPS) is None
        whole = tree.unflattened(node, lines) if is_flat else node
        numbered = _numbered(whole, views)
        groups = tuple(_groups(numbered, lines))
        kept = under(numbered, tree.STATE)
        assert isinstance(kept, Mapping)
        state = {key if isinstance(key, (int, str)) else word(key): child for key, child in kept.items}
        where: dict[EntryKey, int] = {}  # in the order of the groups
        for k, group in enumerate(groups):
            for key in group.keys:
                if key in where:
                    both = f"group {k} twice" if where[key] == k else f"groups {where[key]} and {k}"
                    lines.append(f"entry {key!r} is in {both}")
                where.setdefault(key, k)
        by_name = any(isinstance(key, str) for key in where)
        strangers = [key for key in state if key not in where]
        lost = [key for key in strangers if by_name or not isinstance(key, str)]
        if lost:
            many = f"{plural(len(lost), 'entry', 'entries')} that no group has: {', '.join(map(repr, lost[:10]))}"
            lines.append(f"`state` has {many}; the groups have {plural(len(where), 'entry', 'entries')}")
        # What an optimizer is, and why its state cannot follow
        names = [slot for entry in state.values() if isinstance(entry, Mapping) for slot, _ in _pairs(entry)]
        first = sorted(groups, key=lambda group: not group.keys)[:1]
        settings = {str(key): node for group in first for key, node in group.settings.items}
        algorithm, refused = slots.algorithm_of(names, settings)
        if numbered != whole or isinstance(around, Opaque):
            refused = refused or "it was pickled as an object, and not as a state dict"
        if own := [key for key in strangers if key not in lost]:
            refused = refused or f"it keeps {own[0]!r}, which is not the state of one parameter"
        entries = tuple(
            StateEntry(key, group, tuple(_slots(state.get(key), views, algorithm))) for key, group in where.items()
        )
        form = tree.FLAT if is_flat else "dcp" if checkpoint.format == "dcp" or by_name else "torch"
        if checkpoint.format.startswith(("deepspeed", "universal")):
            form = "deepspeed"
        masters = _masters(whole, around, groups)
        found.append(OptimizerState(at, form, algorithm, entries, groups, masters=masters, refused=refused))
        defects += (f"{at or 'the optimizer'}: {line}" for line in lines)
    if defects:
        raise Defects(checkpoint.path, defects, hint="the optimizer's state is damaged, or was edited")
    return tuple(found)


def plain_views(checkpoint: Checkpoint) -> Views:
    """The windows of the plain tensors, and of those whose sign or conjugation is still to be carried out."""
    entries = checkpoint.entries.items()
    return {name: view for name, entry in entries if (view := plain_window(entry.value)) is not None}


def shapes_of(checkpoint: Checkpoint) -> Shapes:
    """{tensor: shape} of the plain tensors, as `bind` asks for them."""
    return {name: view.shape for name, view in plain_views(checkpoint).items()}


def _mapping_of_optimizer(node: Node, around: Node | None) -> tuple[Mapping, Node | None] | None:
    """A mapping that is an optimizer's, and what is around it: a mapping, or the object whose part it is."""
    if not isinstance(node, Mapping):
        return None
    keys = [key for key, _ in node.items if isinstance(key, str)]
    is_whole = {tree.STATE, tree.GROUPS}.issubset(keys) and isinstance(under(node, tree.STATE), Mapping)
    is_flat = len(keys) == len(node.items) and all(key.startswith(_FLAT) for key in keys)
    return (node, around) if is_whole or (is_flat and any(key.startswith(_FLAT[1]) for key in keys)) else None


def _numbered(node: Mapping, views: Views) -> Mapping:
    """An optimizer that was pickled with its parameters, with their positions instead; any other as it is.

    Its state has the parameters themselves as keys.
    """
    numbers: dict[View, int] = {}

    def view_of(item: object) -> View | None:
        names = [*tensor_names(item)] if isinstance(item, (TensorRef, Opaque)) else []
        return views.get(names[0]) if len(names) == 1 else None

    listed, state = under(node, tree.GROUPS), under(node, tree.STATE)
    if not isinstance(listed, Sequence) or not isinstance(state, Mapping):
        return node
    groups: list[Node] = []
    for group in listed.items:
        params = under(group, tree.PARAMS)
        if isinstance(group, Mapping) and isinstance(params, Sequence):
            known = ((item, view_of(item)) for item in params.items)
            items = (item if view is None else Leaf(numbers.setdefault(view, len(numbers))) for item, view in known)
            group = with_item(group, tree.PARAMS, replace(params, items=tuple(items)))
        groups.append(group)
    pairs = ((view_of(key), key, child) for key, child in state.items)
    kept = tuple((key if view is None else numbers.get(view, key), child) for view, key, child in pairs)
    node = with_item(node, tree.STATE, replace(state, items=kept))
    return with_item(node, tree.GROUPS, replace(listed, items=tuple(groups)))


def _groups(node: Mapping, defects: list[str]) -> Iterator[Group]:
    listed = under(node, tree.GROUPS)
    if not isinstance(listed, Sequence):
        defects.append("`param_groups` is not a list")
        return
    for k, one in enumerate(listed.items):
        params = under(one, tree.PARAMS)
        if not isinstance(one, Mapping) or not isinstance(params, Sequence):
            defects.append(f"group {k} has no list `params`")
            continue
        keys = tuple(item.value for item in params.items if isinstance(item, Leaf))
        if len(keys) != len(params.items) or not all(type(key) in (int, str) for key in keys):
            defects.append(f"`params` of group {k} are not all numbers or names")
            continue
        named = under(one, tree.PARAM_NAMES)
        names = tree.texts(items_of(named))
        if names and len(names) != len(keys):
            defects.append(f"group {k} has {len(names)} `param_names` for {plural(len(keys), 'entry', 'entries')}")
        settings = tuple(item for item in one.items if item[0] not in (tree.PARAMS, tree.PARAM_NAMES))
        yield Group(keys, replace(one, items=settings), names)  # type: ignore[arg-type]  # numbers and names


def _slots(entry: Node | None, views: Views, algorithm: str) -> Iterator[Slot]:
    """The slots of an entry; a state that is not a mapping is one slot without a name."""
    pairs = [*_pairs(entry)] if isinstance(entry, Mapping) else [] if entry is None else [("", entry)]
    known = {key: views.get(child.name) if isinstance(child, TensorRef) else None for key, child in pairs}
    kinds = slots.kinds_of(known, algorithm)
    for key, child in pairs:
        if isinstance(child, TensorRef):
            yield Slot(key, kinds[key] if known[key] else "unknown", child.name)
        else:
            is_known = kinds[key] in ("global", "blockwise") or not any(tensor_names(child))
            yield Slot(key, kinds[key] if is_known else "unknown", value=child)


def _pairs(entry: Mapping) -> Iterator[tuple[str, Node]]:
    """The slots of an entry, those below another mapping of bitsandbytes with its key before a dot."""
    for key, child in entry.items:
        if key == slots.WRAPPED and isinstance(child, Mapping):
            yield from ((f"{key}.{word(inner)}", one) for inner, one in child.items)
        else:
            yield word(key), child


def _masters(node: Mapping, around: Node | None, groups: tuple[Group, ...]) -> Map[EntryKey, str]:
    """The float32 copies of the parameters, where they are bound to entries."""
    copies, keys = under(node, NAMED), [group.keys for group in groups]
    if isinstance(copies, Mapping):
        there = {*chain(*keys)}
        return {
            key: child.name
            for key, child in copies.items
            if isinstance(key, (int, str)) and key in there and isinstance(child, TensorRef)
        }
    for lists in (under(around, name) for name in _MASTER_LISTS):
        if isinstance(lists, Sequence):
            listed = (items_of(items) for items in lists.items)
            tensors = [[item.name for item in items if isinstance(item, TensorRef)] for items in listed]
            if [*map(len, tensors)] == [*map(len, keys)]:
                return dict(zip(chain(*keys), chain(*tensors), strict=True))
    return {}
