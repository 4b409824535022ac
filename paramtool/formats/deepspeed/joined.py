"""The tensors of a folder, on the storages of its files, and the checkpoint that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping as Map
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from math import prod

from paramtool.formats import object_tree
from paramtool.formats.deepspeed.flat import Shape
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Unknown, Value
from paramtool.model.objects import (
    Again,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    map_children,
    rebased,
    tensor_names,
    walk,
)
from paramtool.model.storage import Assembled, Backing, Inline, Part, SourceFile, Storage
from paramtool.model.view import View, contiguous

FORMAT = "deepspeed"
ADDRESS = "deepspeed.utils.tensor_fragment.fragment_address"
"""The class in `param_slice_mappings`, which are read and not kept."""


class FolderTensors:
    """Entries and storages, as they are added."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.storages: dict[int, Storage] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """{(id of a file's checkpoint, number of a storage there): its number here}"""
        self._kept: list[Checkpoint] = []

    def number(self, file: Checkpoint, storage: int) -> int:
        """The number that a storage of a file has here."""
        key = id(file), storage
        if key not in self._numbers:
            self._kept.append(file)
            one = file.storages[storage]
            self._numbers[key] = self._new(one.nbytes, one.backing)
        return self._numbers[key]

    def _new(self, nbytes: int, backing: Backing) -> int:
        number = len(self.storages)
        self.storages[number] = Storage(number, nbytes, backing)
        return number

    def here(self, file: Checkpoint, value: Value) -> Value:
        """A value of a file on the storages of this checkpoint."""
        if isinstance(value, View):
            number = self.number(file, int(value.storage))
            return View(number, value.dtype, value.offset, value.shape, value.strides)
        if isinstance(value, Compound):
            found = {label: self.here(file, part) for label, part in value.parts.items()}
            return Compound(value.kind, {k: v for k, v in found.items() if isinstance(v, View)}, value.facts)
        return value

    def take(self, file: Checkpoint, name: str, own: str = "") -> None:
        """Add a tensor of a file as it is, under its name or another."""
        entry = file.entries[name]
        self.entries[own or name] = entry._replace(value=self.here(file, entry.value))

    def join(self, name: str, shape: Shape, pieces: Sequence_[tuple[Checkpoint, View]]) -> None:
        """Add a tensor whose elements, row by row, are in the vectors of several files."""
        dtype = pieces[0][1].dtype
        parts, at = [], 0
        for file, view in pieces:
            there = self.here(file, view)
            assert isinstance(there, View)
            parts.append(Part(contiguous(-1, dtype, view.shape, at), there))
            at += view.numel
        number = self._new(dtype.nbytes(prod(shape)), Assembled(tuple(parts)))
        self.entries[name] = Entry(contiguous(number, dtype, shape))

    def add_empty(self, name: str, shape: Shape, like: View) -> None:
        """Add a tensor without elements."""
        self.entries[name] = Entry(contiguous(self._new(0, Inline(b"")), like.dtype, shape))


def piece(view: View, start: int, numel: int) -> View:
    """Some elements of a vector, one after the other."""
    return View(view.storage, view.dtype, view.offset + start, (numel,), (1,))


def checkpoint(
    joined: FolderTensors, tree: Node, files: Iterable[SourceFile], unknown: Sequence_[Unknown],
    *, notes: Iterable[str], producer: str,
) -> Checkpoint:  # fmt: skip
    """The description of a folder."""
    tree = _unmarked(tree, Counter(getattr(one, "mark", 0) for one in walk(tree)))
    unknown = [one for one in unknown if one.path != ADDRESS or one.called or one.needed_by]
    order = {name: k for k, name in enumerate(_tensors(tree))}
    names = sorted(joined.entries, key=lambda name: order.get(name, len(order)))
    return Checkpoint(
        format=FORMAT,
        files=tuple(files),
        storages=joined.storages,
        entries=object_tree.with_roles({name: joined.entries[name] for name in names}, tree),
        objects=tree,
        sections=object_tree.sections(tree),
        producer=producer,
        unknown=tuple(merged(unknown)),
        notes=tuple(notes),
    )


def _tensors(node: Node) -> dict[str, None]:
    """The names of the tensors of a tree, each once."""
    return dict.fromkeys(tensor_names(node))


def _unmarked(node: Node, count: Map[int, int]) -> Node:
    """A tree without the numbers of objects that only one place refers to: the other was left out."""
    made = map_children(node, lambda one: _unmarked(one, count))
    if isinstance(made, (Sequence, Mapping, Opaque)) and made.mark and count[made.mark] < 2:
        return replace(made, mark=0)
    return made


def last_mark(node: Node) -> int:
    """The highest number of a shared object in a tree."""
    return max((getattr(one, "mark", 0) for one in walk(node)), default=0)


def grafted(node: Node, old: str, new: str, first: int) -> Node:
    """A subtree at another path, with its tensors below that; `old` and `new` end with a dot.

    The numbers of its shared objects follow `first`, so that it can be a part of another tree.
    """
    return _moved(rebased(node, old), old, new, first)


def _moved(node: Node, old: str, new: str, first: int) -> Node:
    if isinstance(node, TensorRef):
        return TensorRef(new + node.name.removeprefix(old))
    if isinstance(node, Again):
        return Again(f"{new}{node.path}".rstrip("."))
    made = map_children(node, lambda one: _moved(one, old, new, first))
    if isinstance(made, (Sequence, Mapping, Opaque)) and made.mark:
        return replace(made, mark=made.mark + first)
    return made


def with_child(node: Mapping, key: str, value: Node | None) -> Mapping:
    """A mapping with another value under a key, at its place or at the end; without the key where it is None."""
    pairs = [(k, value if k == key else v) for k, v in node.items]
    if not any(k == key for k, _ in pairs):
        pairs.append((key, value))
    return replace(node, items=tuple((k, v) for k, v in pairs if v is not None))
