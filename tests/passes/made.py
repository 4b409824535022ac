"""Checkpoints made of plain data: names, shapes and storages; no file, and no byte of a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paramtool.model.checkpoint import Checkpoint, Entry, Section
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import EMPTY, Node
from paramtool.model.storage import Ranges, SourceFile
from paramtool.model.view import View, contiguous

Tensors = Mapping[str, "View | Entry | Sequence[int]"]


def view(storage: int, *shape: int, offset: int = 0, dtype: str = "float32") -> View:
    """A row-major window on a storage, `offset` elements from its beginning."""
    return contiguous(storage, DTYPES[dtype], shape, offset)


def checkpoint(
    tensors: Tensors, *, format: str = "safetensors", objects: Node = EMPTY, sections: Sequence[Section] = ()
) -> Checkpoint:
    """A checkpoint of float32 tensors: each shape gets the next storage, a window says which it looks at.

    >>> made = checkpoint({"w": (2, 3), "tied": view(0, 2, 3)})
    >>> [made.entries[name].value.storage for name in made.entries], made.storages[0].nbytes
    ([0, 0], 24)
    """
    entries: dict[str, Entry] = {}
    storages = 0
    for name, one in tensors.items():
        if isinstance(one, (Entry, View)):
            entries[name] = one if isinstance(one, Entry) else Entry(one)
        else:
            entries[name] = Entry(view(storages, *one))
            storages += 1
    views = [entry.value for entry in entries.values() if isinstance(entry.value, View)]
    last = max((int(one.storage) for one in views), default=-1)
    sizes = [max((one.byte_stop for one in views if one.storage == number), default=0) for number in range(last + 1)]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    stops = [start + size for start, size in zip(starts, sizes, strict=True)]
    return Checkpoint(
        format=format,
        files=(SourceFile("made.safetensors", sum(sizes), 0),),
        storages=Ranges("made.safetensors", starts, stops),
        entries=entries,
        objects=objects,
        sections=tuple(sections),
    )
