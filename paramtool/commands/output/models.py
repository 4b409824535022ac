"""The files of models whose weights can be replaced, as a table: what `convert --into` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from paramtool.errors import UsageError
from paramtool.formats.hdf5 import into as hdf5_into
from paramtool.formats.onnx import into as onnx_into
from paramtool.formats.output import OutputFile
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Target


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """How the weights in one format's files are replaced."""

    name: str
    """As people say it."""
    formats: tuple[str, ...]
    """What `Checkpoint.format` says of such files."""
    lay_out: Callable[[Checkpoint, Mapping[str, Target], str], tuple[OutputFile, ...]]
    """The files of the output, of which the last has the name that is given: the model with these tensors in place of
    its own."""
    differences: Callable[[str, Checkpoint, Mapping[str, str]], Iterable[str]]
    """What somebody else's code reads otherwise in the output at a path: {name: SHA-256 of its elements}."""
    judge: str = ""
    """The library whose code that is; empty if only paramtool reads the output back."""


MODELS = (
    ModelFormat(
        "Keras",
        ("keras zip", "keras hdf5", "hdf5"),
        lambda model, targets, name: hdf5_into.lay_out(model, targets),
        hdf5_into.differences,
        "h5py",
    ),
    ModelFormat("ONNX", ("onnx",), onnx_into.lay_out, lambda path, written, names: ()),
)


def format_of(model: Checkpoint) -> ModelFormat:
    """The row of a model; UsageError if weights in such a file cannot be replaced."""
    for row in MODELS:
        if model.format in row.formats:
            return row
    names = ", ".join(row.name for row in MODELS)
    raise UsageError(
        f"{model.files[0].path}: is {model.format}; --into replaces weights in the model files of {names}",
        hint="convert without --into writes a file of weights",
    )
