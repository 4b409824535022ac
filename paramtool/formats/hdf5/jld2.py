"""JLD2, Julia's file format: HDF5 after a line of text, 512 bytes in all.

    w = Float32[...]           a dataset `w`
    model_state = (layers =    a dataset `model_state` that holds one struct; its fields are numbers, structs, and
        (..., ), )             references to datasets without a name: arrays, structs, rows of references

Arrays inside a struct are called after their fields, `model_state.layers.1.weight`.  Two fields that refer to one
dataset are one array in Julia too, and share it here.

Julia's arrays are column-major, and HDF5 lists their sizes in reverse order.  Here they have Julia's shape: a
window whose first axis is the fastest.  Types are names that are shown and never resolved.

Source: JLD2.jl, docs/src/internals.md and src/dataspaces.jl; the samples that other people made with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats import object_tree
from paramtool.formats.files import open_source
from paramtool.formats.hdf5 import datasets as hdf5
from paramtool.formats.hdf5.keras_config import ATTRIBUTES, marshalled
from paramtool.model.checkpoint import Checkpoint, Entry, Value
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

NAME = "jld2"
TYPES = "_types"
"""The group of the file's own types."""


def read(path: str) -> Checkpoint:
    """Describe a JLD2 file; FormatError or UnsafeError if that is not possible."""
    file, source = open_source(path)
    with file:
        producer = file.readline(80).split(b"\0")[0].decode("ascii", "replace").strip()
        held = hdf5.read(file, ByteRange(path, 0, source.nbytes), ATTRIBUTES, values=True)
    datasets = hdf5.Datasets(held, ByteRange(path, 0, source.nbytes))
    datasets.walk(held.root, lambda at, group: [name for name in group.links if at or name != TYPES])
    walk = _JldWalk(datasets)
    for name, dataset in datasets.found.items():
        walk.dataset(name, dataset, name, ())
    datasets.check_apart()
    left = sorted(walk.left)
    left_out = f"{plural(len(left), 'value')} left out, which are not arrays of numbers: {', '.join(left[:5])}"
    return Checkpoint(
        format=NAME,
        files=(source,),
        storages=datasets.storages,
        entries={name: Entry(value, object_tree.leaf_role(name, "model")) for name, value in walk.values.items()},
        producer=producer,
        unknown=tuple(marshalled(hdf5.texts(held, ATTRIBUTES))),
        left_out=(left_out,) if left else (),
    )


@dataclass
class _JldWalk:
    """Goes through values and what they refer to."""

    datasets: hdf5.Datasets
    values: dict[str, Value] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Names of values that are not arrays of numbers."""
    steps: int = 0

    def dataset(self, name: str, dataset: hdf5.Dataset, path: str, above: tuple[int, ...]) -> None:
        """A dataset: an array, one struct, or a row of references.  `above` are the datasets that led here."""
        self.steps += 1
        if dataset.address in above or len(above) > hdf5.MAX_DEPTH:
            raise FormatError(f"{self.datasets.where}: {name!r:.200} contains itself, or is nested too deeply")
        if self.steps > hdf5.MAX_OBJECTS:
            raise UnsafeError(f"{self.datasets.where}: has more than {hdf5.MAX_OBJECTS:,} values")
        value = self.datasets.value(path, dataset)
        if isinstance(value, View):
            self.values[name] = value.with_axes(value.shape[::-1], value.strides[::-1], 0)
        elif dataset.struct is not None:
            for label, part in dataset.struct:
                self.part(f"{name}.{label}", part, (*above, dataset.address))
        elif dataset.references is not None:
            for k, part in enumerate(dataset.references):
                self.part(f"{name}.{k + 1}", part, (*above, dataset.address))
        elif dataset.is_number:
            self.values[name] = value
        else:
            self.left.append(name)

    def part(self, name: str, part: object, above: tuple[int, ...]) -> None:
        """A field of a struct, or an element of a row."""
        if isinstance(part, int):
            target = self.datasets.file.object(part)
            if isinstance(target, hdf5.Dataset):
                self.dataset(name, target, "", above)
        elif isinstance(part, list):
            for label, inner in part:
                self.part(f"{name}.{label}", inner, above)
        elif part == hdf5.OTHER:
            self.left.append(name)
