"""JLD2, Julia's own files: HDF5 with a line of text and 512 bytes before it.

    w = Float32[...]           a dataset `w`
    model_state = (layers =    a dataset `model_state` that holds one struct; its fields are numbers, structs, and
        (..., ), )             references to datasets without a name: arrays, structs, rows of references

Arrays inside a struct are called after their fields, `model_state.layers.1.weight`.  Two fields that refer to one
dataset are one array in Julia too, and share it here.

Julia's arrays stand column by column, and HDF5 lists their sizes the other way round.  Here they have Julia's shape: a
window whose first axis is the fastest.  Types are names that are shown and never resolved.

Source: JLD2.jl, docs/src/internals.md and src/dataspaces.jl; the samples that other people made with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats import _hdf5, _tree
from paramtool.formats._files import open_source
from paramtool.model.checkpoint import Checkpoint, Entry, Unreadable, Value
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

NAME = "jld2"
TYPES = "_types"
"""The group of the file's own types."""
MAX_STRUCT_NBYTES = 1 << 20
MAX_REFERENCES = 1 << 16
"""In one row of them."""


def read(path: str) -> Checkpoint:
    """Describe a JLD2 file; FormatError or UnsafeError where that is not possible."""
    file, source = open_source(path)
    with file:
        producer = file.readline(80).split(b"\0")[0].decode("ascii", "replace").strip()
        datasets = _hdf5.Datasets(path, ByteRange(path, 0, source.nbytes))
        with _hdf5.opened(file, 0, source.nbytes, path) as root:
            datasets.walk(root, lambda at, group: [name for name in group if at or name != TYPES])
            walk = _Walk(root, datasets)
            for name, dataset in datasets.found.items():
                walk.dataset(name, dataset, name, ())
    datasets.check_apart()
    left = sorted(walk.left)
    notes = [f"{plural(len(left), 'value')} left out, no arrays of numbers: {', '.join(left[:5])}"] if left else []
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages=datasets.storages,
        entries={name: Entry(value, _tree.leaf_role(name, "model")) for name, value in walk.values.items()},
        producer=producer,
        notes=tuple(notes),
    )


@dataclass
class _Walk:
    """Goes through values and what they refer to."""

    root: Any
    datasets: _hdf5.Datasets
    values: dict[str, Value] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Names of what is no array of numbers."""
    steps: int = 0

    def dataset(self, name: str, dataset: Any, path: str, above: tuple[int, ...]) -> None:
        """A dataset: an array, one struct, or a row of references.  `above` are the datasets that led here."""
        import h5py

        address = h5py.h5o.get_info(dataset.id).addr
        self.steps += 1
        if address in above or len(above) > _hdf5.MAX_DEPTH:
            raise FormatError(f"{self.datasets.where}: {name!r:.200} holds itself, or too many things in each other")
        if self.steps > _hdf5.MAX_OBJECTS:
            raise UnsafeError(f"{self.datasets.where}: has more than {_hdf5.MAX_OBJECTS:,} values")
        value = self.datasets.value(path, dataset)
        if isinstance(value, View):
            self.values[name] = View(value.storage, value.dtype, 0, value.shape[::-1], value.strides[::-1])
            return
        if (kind := _kind(dataset)) in ("struct", "references"):
            held = dataset[()]
            parts = _fields(held) if kind == "struct" else ((str(k + 1), part) for k, part in enumerate(held.ravel()))
            for label, part in parts:
                self.part(f"{name}.{label}", part, (*above, address))
        elif kind == "numbers" and isinstance(value, Unreadable):
            self.values[name] = value
        else:
            self.left.append(name)

    def part(self, name: str, part: Any, above: tuple[int, ...]) -> None:
        """A field of a struct, or an element of a row."""
        import h5py

        if isinstance(part, h5py.Reference):
            target = self.root[part] if part else None
            if isinstance(target, h5py.Dataset):
                self.dataset(name, target, "", above)
        elif getattr(part, "dtype", None) is not None and part.dtype.names:
            for label, inner in _fields(part):
                self.part(f"{name}.{label}", inner, above)
        else:
            self.left.append(name)


def _kind(dataset: Any) -> str:
    """`struct`, `references`, `numbers`, or nothing that is looked into."""
    import h5py

    try:
        dtype = dataset.dtype
    except TypeError:
        return ""
    if dtype.names and dataset.shape == () and dtype.itemsize <= MAX_STRUCT_NBYTES:
        return "struct"
    if h5py.check_ref_dtype(dtype) is h5py.Reference and dataset.size is not None and dataset.size <= MAX_REFERENCES:
        return "references"
    return "numbers" if dtype.kind in "biufc" else ""


def _fields(struct: Any) -> Iterator[tuple[str, Any]]:
    return ((name, struct[name]) for name in struct.dtype.names)
