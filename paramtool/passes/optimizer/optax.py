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

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Map
from math import prod
from typing import NamedTuple

from paramtool.errors import some
from paramtool.grouping import grouped
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.nested import SEPARATOR, leaves
from paramtool.model.objects import EMPTY, Mapping, Node, Path, TensorRef, outermost, word
from paramtool.model.optimizer import Group, OptimizerState, Slot, SlotKind, StateEntry
from paramtool.model.view import Shape, Shapes
from paramtool.passes.optimizer.tree import put

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


class SlotTree(NamedTuple):
    """A mapping of an optimizer that has the names of the parameters."""

    at: Path
    """Its path below the optimizer."""
    tensors: Map[Path, str]
    """{path of a parameter: what is kept for it}"""
    masked: Sequence[Path]
    """The paths of empty dicts: of parameters, or of mappings of parameters."""


def states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The states of optax in a checkpoint; `shapes` are those of its tensors."""
    roles = {name: entry.role for name, entry in checkpoint.entries.items()}

    def of_optimizers(node: Node, around: Node | None) -> Mapping | None:
        is_inside = around is not None and isinstance(node, Mapping)
        return node if is_inside and {roles.get(name) for _, name in leaves(node)} == {"optimizer"} else None  # type: ignore[return-value]

    # Mappings of parameters outside of the optimizers, the outer ones first
    models = [
        (at, names)
        for at, names in _mappings(checkpoint.objects)
        if at and names and all(roles.get(name, "optimizer") != "optimizer" for name in names.values())
    ]
    for place, node in outermost(checkpoint.objects, of_optimizers, (Mapping,)):
        fitting = ((at, names, slot_trees(node, names)) for at, names in models)
        at, names, trees = next((one for one in fitting if one[2]), ((), {}, []))
        if not trees:
            continue
        inside = SEPARATOR.join((*at, ""))
        prefixes = (section.prefix for section in checkpoint.sections if section.role == "model")
        cut = max((len(prefix) for prefix in prefixes if inside.startswith(prefix)), default=0)
        entries = []
        for path, name in names.items():
            slots = tuple(_slot(tree, path, shapes, shapes.get(name)) for tree in trees if path in tree.tensors)
            entries.append(StateEntry(name[cut:], 0, slots))
        group = Group(tuple(entry.key for entry in entries), EMPTY)
        fields = ", ".join(dict.fromkeys(("", *tree.at)[-1] for tree in trees))
        known = {name for tree in trees for name in tree.tensors.values()}
        strange = (name for _, name in leaves(node) if name not in known and prod(shapes.get(name, ())) > _LEAST)
        lost = [name for name in strange if name.rpartition(SEPARATOR)[2] not in _OF_ALL]
        refused = f"{some(lost, 4)} {'has' if len(lost) == 1 else 'have'} not the name of a parameter" if lost else ""
        yield OptimizerState(".".join(place), FORM, f"optax ({fields})", tuple(entries), (group,), refused=refused)


def _slot(tree: SlotTree, path: Path, shapes: Shapes, shape: Shape | None) -> Slot:
    """What a transformation keeps for a parameter; it is of an unknown kind where it has another shape."""
    tensor = tree.tensors[path]
    kind = KINDS.get(("", *tree.at)[-1], "unknown")
    if kind != "factored" and shapes.get(tensor) != shape:
        kind = "unknown"
    return Slot(SEPARATOR.join(tree.at), kind, tensor)


def slot_trees(node: Node, names: Map[Path, object]) -> list[SlotTree]:
    """The mappings below an optimizer that have the names of the parameters, in order, and none that is inside one."""
    inner = {path[:k] for path in names for k in range(1, len(path) + 1)}

    def tree_of(node: Node, around: Node | None) -> tuple[Map[Path, str], Sequence[Path]] | None:
        """A mapping as a tree of the parameters; None if it has other names, or lacks one."""
        ends = dict(_ends(node))
        tensors = {path: child.name for path, child in ends.items() if isinstance(child, TensorRef)}
        masked = [path for path, child in ends.items() if isinstance(child, Mapping)]
        hidden = {path for path in names for mask in masked if path[: len(mask)] == mask}
        fits = tensors.keys() <= names.keys() and inner.issuperset(masked) and len(tensors) + len(masked) == len(ends)
        return (tensors, masked) if tensors and fits and len(tensors) + len(hidden) == len(names) else None

    return [SlotTree(at, *found) for at, found in outermost(node, tree_of, (Mapping,))]


def _ends(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """[(path, what is there)] of all in mappings that is no mapping, or an empty one."""
    if not isinstance(node, Mapping) or not node.items:
        yield path, node
        return
    for key, child in node.items:
        yield from _ends(child, (*path, word(key)))


def _mappings(node: Node) -> Iterator[tuple[Path, dict[Path, str]]]:
    """[(path, {path below it: tensor})] of all mappings in mappings, the outer ones first."""
    todo: list[tuple[Path, Node]] = [((), node)]
    for at, node in todo:
        if isinstance(node, Mapping):
            yield at, dict(leaves(node))
            todo += [((*at, word(key)), child) for key, child in node.items]


# Writing


def paths(objects: Node, names: Collection[str]) -> dict[str, Path]:
    """{name: path below the mapping of the parameters}, of those with these names; empty where no mapping has them."""
    found = [below for _, below in _mappings(objects) if {*below.values()} == {*names}]
    return {name: path for path, name in found[-1].items()} if found else {}


def rebuilt(node: Node, new: Map[Path, Sequence[Path]], tensors: Map[tuple[str, Path], Node]) -> Node:
    """An optimizer with other parameters: `new` has the paths at the place of each old one.

    `tensors` is {(slot, new path): the tensor that is kept}.  An empty dict for several parameters stays where none of
    them changes, and stands for each of them else.
    """
    made = node
    for one in slot_trees(node, new):
        items: dict[Path, Node] = {}
        for path in new:
            mask = next((mask for mask in one.masked if path[: len(mask)] == mask), None)
            stays = mask is not None and all([*new[it]] == [it] for it in new if it[: len(mask)] == mask)
            for place in [mask] if mask is not None and stays else new[path]:
                items.setdefault(place, tensors.get((SEPARATOR.join(one.at), place), EMPTY))
        made = put(made, ".".join(one.at), _nested(items.items()))
    return made


def _nested(items: Iterable[tuple[Path, Node]]) -> Mapping:
    """Mappings in mappings, from paths."""
    by_key = grouped((path[0], (path[1:], node)) for path, node in items)
    made = ((key, below[0][1] if not below[0][0] else _nested(below)) for key, below in by_key.items())
    return Mapping("dict", tuple(made))
