"""The checkpoint that the tensors of a folder make, and the trees of its files as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequence_

from paramtool.formats import object_tree
from paramtool.formats.joined import FolderTensors
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import Leaf, Mapping, Node, remarked, tensor_names, under, walk, with_item
from paramtool.model.storage import SourceFile
from paramtool.model.view import View

FORMAT = "deepspeed"
FRAGMENTS = "frozen_param_fragments"
ADDRESS = "deepspeed.utils.tensor_fragment.fragment_address"
"""The class in `param_slice_mappings`, which are read and not kept."""


def piece(view: View, start: int, numel: int) -> View:
    """Some elements of a vector, one after the other."""
    return View(view.storage, view.dtype, view.offset + start, (numel,), (1,))


def checkpoint(
    joined: FolderTensors, top: Node, optimizer: Node, files: Iterable[SourceFile], unknown: Sequence_[Unknown],
    *, notes: Iterable[str], what: str,
) -> Checkpoint:  # fmt: skip
    """The description of a folder, from the tree of its model states and the optimizer's; `what` it was written as."""
    assert isinstance(top, Mapping)
    version = under(top, "ds_version")
    number = f" {version.value}" if isinstance(version, Leaf) and isinstance(version.value, str) else ""
    tree: Node = with_item(with_item(top, "optimizer", optimizer), FRAGMENTS, None)
    places = Counter(getattr(one, "mark", 0) for one in walk(tree))
    tree = remarked(tree, lambda mark: mark if places[mark] > 1 else 0)  # else the other place was left out
    unknown = [one for one in unknown if one.path != ADDRESS or one.called or one.needed_by]
    # The names of the tensors of a tree, each once.
    order = {name: k for k, name in enumerate(dict.fromkeys(tensor_names(tree)))}
    names = sorted(joined.entries, key=lambda name: order.get(name, len(order)))
    return Checkpoint(
        format=FORMAT,
        files=tuple(files),
        storages=joined.storages,
        entries=object_tree.with_roles({name: joined.entries[name] for name in names}, tree),
        objects=tree,
        sections=object_tree.sections(tree),
        producer=f"DeepSpeed{number}, {what}",
        unknown=tuple(merged(unknown)),
        notes=tuple(notes),
    )


def last_mark(node: Node) -> int:
    """The highest number of a shared object in a tree."""
    return max((getattr(one, "mark", 0) for one in walk(node)), default=0)
