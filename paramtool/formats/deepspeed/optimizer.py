"""The optimizer of a folder as one tree: the state under the parameters' names, from the flat groups of the ranks.

    {"state": {"emb.weight": {"step": T, "exp_avg": T}}, "param_groups": [{"lr": 0.1, "params": ["emb.weight"]}],
     "fp32": {"emb.weight": T}, "loss_scaler": ..., ...}

This is the form in which torch.distributed.checkpoint has an optimizer; `fp32` are the float32 parameters, where the
model has them in another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as Map
from collections.abc import Sequence as Sequence_
from dataclasses import replace

from paramtool.errors import plural
from paramtool.formats import object_tree
from paramtool.formats.deepspeed.states import OPTIMIZER, Findings, FlatGroups, tensor, vector, wholes
from paramtool.formats.joined import FolderTensors
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import (
    Key,
    Leaf,
    Mapping,
    Node,
    Sequence,
    TensorRef,
    grafted,
    map_tensors,
    rebased,
    tensor_names,
    under,
    walk,
    with_item,
    without_lone_marks,
)
from paramtool.model.storage import ByteRange, SourceFile
from paramtool.model.view import Shape, View

AT = "optimizer"
"""Where the tree is in the checkpoint."""
MASTERS, GROUPS = "fp32", "param_groups"

State = Map[str, Map[str, Node]]
"""{parameter: {slot: what is kept}}"""


def masters(flat: FlatGroups, joined: FolderTensors, name_of: Callable[[str], str]) -> None:
    """Add the float32 parameters, under the names that `name_of` gives."""
    for group, shapes in enumerate(flat.shapes):
        views = [rank.masters[group] for rank in flat.ranks]
        for name, shape in shapes.items():
            _join(flat, joined, name_of(name), shape, name, views)


def state(flat: FlatGroups, joined: FolderTensors, findings: Findings) -> State:
    """Add the state of every parameter; what ranks do not have alike is a finding."""
    found: dict[str, dict[str, Node]] = {name: {} for shapes in flat.shapes for name in shapes}
    for group, shapes in enumerate(flat.shapes):
        held = [rank.states[group] if group < len(rank.states) else {} for rank in flat.ranks]
        if any(one.keys() != held[0].keys() for one in held):
            kept = " and ".join(sorted({", ".join(one) or "nothing" for one in held}))
            findings.add(f"group {group}: its ranks keep different state: {kept}")
            continue
        for slot in held[0]:
            for name, node in _slot(flat, joined, findings, group, slot, [one[slot] for one in held]):
                found[name][slot] = node
        assert shapes.keys() <= found.keys()
    return found


def _slot(
    flat: FlatGroups, joined: FolderTensors, findings: Findings, group: int, slot: str, nodes: list[Node]
) -> Iterator[tuple[str, Node]]:
    """One slot of the parameters of a group: its own elements for each, or one value for all of them."""
    files = [rank.file.views() for rank in flat.ranks]
    views = [vector(one, node) for one, node in zip(files, nodes, strict=True)]
    if all(view is not None and _reaches(flat, group, rank, view.numel) for rank, view in enumerate(views)):
        for name, shape in flat.shapes[group].items():
            at = f"{AT}.state.{name}.{slot}"
            _join(flat, joined, at, shape, name, views)
            yield name, TensorRef(at)
        return
    single = [one.get(tensor(node)) for one, node in zip(files, nodes, strict=True)]
    if all(isinstance(node, Leaf) for node in nodes):
        if any(node != nodes[0] for node in nodes):
            findings.add(f"group {group}: {slot!r} is not the same in all ranks: {_words(nodes)}: they are of two runs")
        yield from ((name, nodes[0]) for name in flat.shapes[group])
    elif all(view is not None and view.numel == 1 for view in single):
        pairs = [(rank.file, view) for rank, view in zip(flat.ranks, single, strict=True) if view is not None]
        if len({_content(file, view) for file, view in pairs}) > 1:
            findings.add(f"group {group}: {slot!r} is not the same in all ranks: they are of two runs")
        for name in flat.shapes[group]:
            at = f"{AT}.state.{name}.{slot}"
            alone(joined, at, *pairs[0])
            yield name, TensorRef(at)
    else:
        findings.add(f"group {group}: {slot!r} is neither one value for each element nor one for the group")


def _words(nodes: Sequence_[Node]) -> str:
    values = dict.fromkeys(repr(node.value) if isinstance(node, Leaf) else "another" for node in nodes)
    return " and ".join(list(values)[:3])


def alone(joined: FolderTensors, at: str, file: Checkpoint, view: View) -> None:
    """Add a tensor of one element with bytes of its own: parameters do not share their steps."""
    joined.join(at, view.dtype, view.shape, [(file, view.with_axes((1,), (1,)))])


def _reaches(flat: FlatGroups, group: int, rank: int, numel: int) -> bool:
    """Whether a vector of a rank is as long as its part of a group."""
    master = flat.ranks[rank].masters[group]
    return master is not None and numel >= master.numel


def _content(file: Checkpoint, view: View) -> tuple[object, ...]:
    """What is known of the bytes of a small tensor without reading it: the CRC of its storage in the archive."""
    storage = file.storages[int(view.storage)]
    crc32 = storage.backing.crc32 if isinstance(storage.backing, ByteRange) else None
    return view.dtype.name, view.offset, storage.nbytes, crc32


def _join(
    flat: FlatGroups, joined: FolderTensors, at: str, shape: Shape, name: str, views: Sequence_[View | None]
) -> None:
    """Add a tensor, with its name and shape, of a parameter from the vectors of all ranks."""
    pieces = [
        (flat.ranks[one.rank].file, piece(view, one.start, one.numel))
        for one in flat.fragments[name]
        if (view := views[one.rank]) is not None
    ]
    if first := next(filter(None, views), None):
        joined.join(at, first.dtype, shape, pieces)


# The tree


def tree(kept: State, with_masters: bool, rest: Sequence_[tuple[Key, Node]]) -> Mapping:
    """The optimizer's mapping; `rest` begins with `param_groups`."""
    states = tuple((name, Mapping("dict", tuple(slots.items()))) for name, slots in kept.items())
    copies = tuple((name, TensorRef(f"{AT}.{MASTERS}.{name}")) for name in kept)
    inside: list[tuple[Key, Node]] = [(MASTERS, Mapping("dict", copies))] if with_masters else []
    return Mapping("dict", (("state", Mapping("dict", states)), *rest[:1], *inside, *rest[1:]))


def named_groups(groups: Node | None, names: Sequence_[Sequence_[str]], findings: Findings) -> Sequence:
    """`param_groups` with the names of parameters in place of the numbers of flat groups.

    `names` has the parameters of each flat group.  A folder without settings gets a group for each.
    """
    if not isinstance(groups, Sequence):
        made = [Mapping("dict", (("params", _list(group)),)) for group in names]
        return Sequence("list", tuple(made))
    numbers = [wholes(under(one, "params")) for one in groups.items]
    flat = [number for one in numbers if one is not None for number in one]
    if None in numbers or flat != list(range(len(names))):
        has = f"{plural(len(flat), 'flat group')} of {plural(len(groups.items), 'group')}"
        findings.add(f"`param_groups` has {has}; `param_shapes` has {plural(len(names), 'flat group')}")
        return groups
    found = []
    for one, indices in zip(groups.items, numbers, strict=True):
        assert isinstance(one, Mapping) and indices is not None
        params = _list([name for number in indices for name in names[number]])
        found.append(with_item(one, "params", params))
    return replace(groups, items=tuple(found))


def _list(names: Sequence_[str]) -> Sequence:
    return Sequence("list", tuple(map(Leaf, names)))


def taken(
    rest: Sequence_[tuple[Key, Node]], file: Checkpoint, joined: FolderTensors, first: int, *, at: str = OPTIMIZER
) -> list[tuple[Key, Node]]:
    """What else an optimizer's mapping in a file keeps, with its tensors; `at` is the path of the mapping there.

    The numbers of shared objects follow `first`.
    """
    old = f"{at}." if at else ""

    def here(name: str) -> str:
        return f"{AT}.{name.removeprefix(old)}"

    found = []
    for key, node in rest:
        for name in tensor_names(node):
            joined.take(file, name, here(name))
        found.append((key, grafted(map_tensors(rebased(node, old), here), AT, first)))
    return found


# --- The checkpoint that the tensors of a folder make, and the trees of its files as one -----------------------------


FORMAT = "deepspeed"
FRAGMENTS = "frozen_param_fragments"
ADDRESS = "deepspeed.utils.tensor_fragment.fragment_address"
"""The class in `param_slice_mappings`, which are read and not kept."""


def piece(view: View, start: int, numel: int) -> View:
    """Some elements of a vector, one after the other."""
    return view.with_axes((numel,), (1,), view.offset + start)


def checkpoint(
    joined: FolderTensors, top: Node, optimizer: Node, files: Iterable[SourceFile], unknown: Sequence_[Unknown],
    *, notes: Iterable[str], what: str,
) -> Checkpoint:  # fmt: skip
    """The description of a folder, from the tree of its model states and the optimizer's; `what` it was written as."""
    assert isinstance(top, Mapping)
    version = under(top, "ds_version")
    number = f" {version.value}" if isinstance(version, Leaf) and isinstance(version.value, str) else ""
    tree = without_lone_marks(with_item(with_item(top, "optimizer", optimizer), FRAGMENTS, None))
    unknown = [one for one in unknown if one.path != ADDRESS or one.called or one.needed_by]
    # The names of the tensors of a tree, each once.
    order = {name: k for k, name in enumerate(dict.fromkeys(tensor_names(tree)))}
    names = sorted(joined.entries, key=lambda name: order.get(name, len(order)))
    found = Checkpoint(
        format=FORMAT,
        files=tuple(files),
        storages=joined.storages,
        entries={name: joined.entries[name] for name in names},
        producer=f"DeepSpeed{number}, {what}",
        unknown=tuple(merged(unknown)),
        notes=tuple(notes),
    )
    return object_tree.with_tree(found, tree)


def last_mark(node: Node) -> int:
    """The highest number of a shared object in a tree."""
    return max((getattr(one, "mark", 0) for one in walk(node)), default=0)
