"""The state of optax in a tree, as flax's `to_state_dict` makes it.

    {"params": {"Dense_0": {"kernel": T}}, "opt_state": {"0": {"count": T, "mu": {"Dense_0": {"kernel": T}},
     "nu": {"Dense_0": {"kernel": T}}}, "1": {}}}

A list or a tuple is a dict of "0", "1", ..., and a named tuple a dict of its fields (flax 0.12.8, serialization.py,
`_list_state_dict`, `_namedtuple_state_dict`).  Whatever transformation is used (a chain, `inject_hyperparams`,
`multi_transform`, `MultiSteps`), what it keeps for the parameters is a tree with the names of the parameters.
`MaskedNode`, which stands for a parameter that a transformation leaves alone, is an empty dict.

A mapping is such a tree if it has a tensor or an empty dict for every parameter, and nothing else.  So no word has to
be known, and a parameter that is called `mu` is none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as Map
from math import prod
from typing import NamedTuple

from paramtool.errors import some
from paramtool.grouping import grouped
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.nested import SEPARATOR, leaves
from paramtool.model.objects import EMPTY, Mapping, Node, TensorRef, word
from paramtool.model.optimizer import Group, OptimizerState, Slot, SlotKind, StateEntry
from paramtool.model.view import Shape, Shapes
from paramtool.passes.optimizer.tree import changed

FORM = "optax"
KINDS: Map[str, SlotKind] = {
    **dict.fromkeys(("mu", "trace", "acc_grads", "ema", "prev_updates", "updates", "grad", "momentum"), "first"),
    **dict.fromkeys(("nu", "nu_max", "sum_of_squares", "e_g", "e_x"), "second"),
    **dict.fromkeys(("step_sizes",), "magnitude"), **dict.fromkeys(("z", "params"), "weight"),
    **dict.fromkeys(("v_row", "v_col", "v"), "factored"),
}  # fmt: skip
"""{field of a state: its kind}: optax 0.2.8, transforms/_accumulation.py (TraceState, EmaState, MultiStepsState),
_src/transform.py (ScaleByAdamState, ScaleByAmsgradState, ScaleByRssState, ScaleByAdaDeltaState, ScaleByRpropState),
_src/factorized.py (FactoredState), contrib/_schedule_free.py (ScheduleFreeState), contrib/_muon.py (MuonState).
Adamax keeps a largest absolute value as `nu`, which has no sign, either."""
_OF_ALL = ("ns_coeffs",)
"""Fields with several numbers that belong to no parameter: contrib/_muon.py."""
_LEAST = 1
"""Tensors of one element are counts, or settings, of a whole transformation."""
UNSAID = (
    "optax does not save which transformations there are: one that takes the norm of a whole tensor (LAMB, LARS) "
    "trains joined or split parameters in another way"
)
_Path = tuple[str, ...]


class Model(NamedTuple):
    """A mapping of parameters outside of the optimizers."""

    at: _Path
    names: Map[_Path, str]
    """{path below it: the name of the tensor}, in order."""


class SlotTree(NamedTuple):
    """A mapping of an optimizer that has the names of the parameters."""

    at: _Path
    """Its path below the optimizer."""
    tensors: Map[_Path, str]
    """{path of a parameter: what is kept for it}"""
    masked: Sequence[_Path]
    """The paths of empty dicts: of parameters, or of mappings of parameters."""


def states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The states of optax in a checkpoint; `shapes` are those of its tensors."""
    models = [*_models(checkpoint)]
    roles = {name: entry.role for name, entry in checkpoint.entries.items()}
    for at, node in _optimizers(checkpoint.objects, (), roles):
        for model in models:
            trees = slot_trees(node, model.names)
            if trees:
                yield _state(checkpoint, (at, node), model, trees, shapes=shapes)
                break


def _state(
    checkpoint: Checkpoint, place: tuple[_Path, Mapping], model: Model, trees: Sequence[SlotTree], *,
    shapes: Shapes,
) -> OptimizerState:  # fmt: skip
    at, node = place
    inside = SEPARATOR.join((*model.at, ""))
    prefixes = (section.prefix for section in checkpoint.sections if section.role == "model")
    cut = max((len(prefix) for prefix in prefixes if inside.startswith(prefix)), default=0)
    keys = {path: name[cut:] for path, name in model.names.items()}
    entries = []
    for path, name in model.names.items():
        slots = tuple(_slot(tree, path, shapes, shapes.get(name)) for tree in trees if path in tree.tensors)
        entries.append(StateEntry(keys[path], 0, slots))
    group = Group(tuple(keys.values()), Mapping("dict", ()))
    fields = ", ".join(dict.fromkeys(tree.at[-1] if tree.at else "" for tree in trees))
    known = {name for tree in trees for name in tree.tensors.values()}
    lost = [
        name
        for _, name in leaves(node)
        if name not in known and prod(shapes.get(name, ())) > _LEAST and name.rpartition(SEPARATOR)[2] not in _OF_ALL
    ]
    refused = f"{some(lost, 4)} {'has' if len(lost) == 1 else 'have'} not the name of a parameter" if lost else ""
    return OptimizerState(".".join(at), FORM, f"optax ({fields})", tuple(entries), (group,), refused=refused)


def _slot(tree: SlotTree, path: _Path, shapes: Shapes, shape: Shape | None) -> Slot:
    """What a transformation keeps for a parameter; it is of an unknown kind where it has another shape."""
    tensor = tree.tensors[path]
    kind = KINDS.get(tree.at[-1] if tree.at else "", "unknown")
    if kind != "factored" and shapes.get(tensor) != shape:
        kind = "unknown"
    return Slot(SEPARATOR.join(tree.at), kind, tensor)


def slot_trees(node: Mapping, names: Map[_Path, str]) -> list[SlotTree]:
    """The mappings below an optimizer that have the names of the parameters, in order, and none that is inside one."""
    inner = {path[:k] for path in names for k in range(len(path) + 1)}
    found = []
    todo: list[tuple[_Path, Mapping]] = [((), node)]
    while todo:
        at, node = todo.pop()
        tree = _slot_tree(at, node, names, inner)
        if tree is not None:
            found.append(tree)
            continue
        todo += [((*at, word(key)), child) for key, child in reversed(node.items) if isinstance(child, Mapping)]
    return found


def _slot_tree(at: _Path, node: Mapping, names: Map[_Path, str], inner: set[_Path]) -> SlotTree | None:
    """A mapping as a tree of the parameters; None if it has other names, or lacks one."""
    tensors: dict[_Path, str] = {}
    masked: list[_Path] = []
    todo: list[tuple[_Path, Node]] = [((), node)]
    while todo:
        path, child = todo.pop()
        if path not in inner:
            return None
        if isinstance(child, TensorRef) and path in names:
            tensors[path] = child.name
        elif isinstance(child, Mapping) and not child.items and path:
            masked.append(path)
        elif isinstance(child, Mapping) and path not in names:
            todo += [((*path, word(key)), one) for key, one in reversed(child.items)]
        else:
            return None
    hidden = {path for path in names if any(path[: len(mask)] == mask for mask in masked)} if masked else set()
    if not tensors or len(tensors) + len(hidden) != len(names):
        return None
    return SlotTree(at, tensors, masked)


def _optimizers(node: Node, at: _Path, roles: Map[str, str]) -> Iterator[tuple[_Path, Mapping]]:
    """The outermost mappings that hold tensors of optimizers alone."""
    if isinstance(node, Mapping):
        if at and {roles.get(name) for _, name in leaves(node)} == {"optimizer"}:
            yield at, node
            return
        for key, child in node.items:
            yield from _optimizers(child, (*at, word(key)), roles)


def _models(checkpoint: Checkpoint) -> Iterator[Model]:
    """Every mapping that holds no tensor of an optimizer, the outer ones first."""
    todo: list[tuple[_Path, Node]] = [((), checkpoint.objects)]
    entries = checkpoint.entries
    while todo:
        at, node = todo.pop(0)
        if isinstance(node, Mapping):
            names = dict(leaves(node))
            if names and at and all(name in entries and entries[name].role != "optimizer" for name in names.values()):
                yield Model(at, names)
            todo += [((*at, word(key)), child) for key, child in node.items]


# Writing


class NewParameters(NamedTuple):
    """What an optimizer has for each parameter after a change."""

    names: Map[_Path, str]
    """The old parameters, as in `Model`."""
    new: Map[_Path, Sequence[_Path]]
    """{path of an old parameter: the paths at its place}"""
    tensors: Map[tuple[str, _Path], str]
    """{(slot, new path): the tensor that is kept}"""


def paths(objects: Node, names: Collection[str]) -> dict[_Path, str]:
    """{path below the mapping of the parameters: name}, of those with these names; empty where no mapping has them."""
    wanted = set(names)
    todo = [objects]
    while todo:
        node = todo.pop(0)
        if isinstance(node, Mapping):
            found = dict(leaves(node))
            if wanted == set(found.values()):
                inner = [child for _, child in node.items if isinstance(child, Mapping)]
                return next((deeper for child in inner if (deeper := paths(child, names))), found)
            todo += [child for _, child in node.items]
    return {}


def rebuilt(node: Mapping, change: NewParameters) -> Node:
    """An optimizer with other parameters.

    An empty dict for several parameters stays where none of them changes, and stands for each of them else.
    """
    made: Node = node
    for one in slot_trees(node, change.names):
        made = changed(made, ".".join(one.at), lambda _, one=one: _nested([*_new_items(one, change)]))  # type: ignore[misc]
    return made


def _new_items(tree: SlotTree, change: NewParameters) -> Iterator[tuple[_Path, Node]]:
    """What a tree has after the change, with the path of each."""
    done: set[_Path] = set()
    for path in change.names:
        mask = next((one for one in tree.masked if path[: len(one)] == one), None)
        below = [one for one in change.names if mask is not None and one[: len(mask)] == mask]
        if mask is not None and all(tuple(change.new[one]) == (one,) for one in below):
            places: Sequence[_Path] = [mask]
        else:
            places = change.new[path]
        for place in places:
            held = change.tensors.get((SEPARATOR.join(tree.at), place))
            if place not in done:
                yield place, EMPTY if held is None else TensorRef(held)
            done.add(place)


def _nested(items: Sequence[tuple[_Path, Node]]) -> Mapping:
    """Mappings in mappings, from paths."""
    by_key = grouped((path[0], (path[1:], node)) for path, node in items)
    made = tuple((key, below[0][1] if not below[0][0] else _nested(below)) for key, below in by_key.items())
    return Mapping("dict", made)
