"""The formats that can be written, as a table: the suffix of an output chooses the row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from shlex import quote

from paramtool.commands.output import dcp
from paramtool.commands.output.onnx_models import ONNX
from paramtool.commands.output.writer import Fitted, Keeping, Writer, plain, refuse_lost
from paramtool.commands.progress import Path
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import Advance, by_safetensors, by_zipfile
from paramtool.errors import UsageError, some
from paramtool.formats import object_tree, table
from paramtool.formats.hdf5 import write as hdf5_write
from paramtool.formats.msgpack import write as msgpack_write
from paramtool.formats.mxnet import write as mxnet_write
from paramtool.formats.numpy import write as numpy_write
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import write as safetensors
from paramtool.formats.safetensors.dtypes import CODE_OF
from paramtool.formats.torch import write as torch_write
from paramtool.formats.torch.write_objects import How
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan


def _fit_safetensors(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects go into the metadata, but for what that cannot hold."""
    lost = (*object_tree.left_out(plan.objects), *torch_write.memory_formats(plan, checkpoint))
    refuse_lost(plan, "safetensors", lost, keeping)
    return Fitted(plan, (*lost, *object_tree.all_left_out_before(plan.objects)), lost=lost)


def _fit_torch(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects of the closed table go into the pickle, the arrays among them with their bytes."""
    called = frozenset(unknown.path for unknown in checkpoint.unknown if unknown.called)
    found = torch_write.fitted(plan, How(keeping.skip and not keeping.strict, keeping.plain, called))
    torch_write.refuse(plan, found)
    inside = torch_write.arrays(found.tree)
    content = {}
    if inside:
        views = checkpoint.views()
        with Source(checkpoint) as source:
            content = {name: source.array(views[name]).all().tobytes(order) for name, order in inside.items()}
    return Fitted(replace(plan, objects=found.tree, inline=content), found.left_out, found.needs, found.changed)


def _by_safetensors(path: str, output: OutputFile, source: Source, advance: Advance) -> Iterable[str]:
    return by_safetensors(path, output.targets, CODE_OF, source, advance=advance)


def _by_zipfile(path: str, output: OutputFile, source: Source, advance: Advance) -> Iterable[str]:
    return by_zipfile(path, advance)


SAFETENSORS = Writer(
    name="safetensors",
    suffixes=table.find("safetensors").written,
    lay_out=lambda plan, name: safetensors.lay_out(plan),
    refusals=safetensors.refusals,
    fit=_fit_safetensors,
    differences=_by_safetensors,
    needs=("safetensors",),
    sharing="record",
)
TORCH = Writer(
    name="torch",
    suffixes=table.find("torch").written,
    lay_out=lambda plan, name: torch_write.lay_out(plan),
    refusals=torch_write.refusals,
    fit=_fit_torch,
    differences=_by_zipfile,
    needs=("zipfile", "concurrent.futures"),
    sharing="memory",
)


def _bfloat16_caveat(plan: Plan) -> Iterator[str]:
    """NumPy and h5py have no type for bfloat16, and return its bytes."""
    names = [target.name for target in plan.targets if target.dtype.name == "bfloat16"]
    if names:
        yield (
            f"{some(names, MANY)} {'is' if len(names) == 1 else 'are'} bfloat16, which NumPy and h5py return as raw "
            "bytes: array.view(ml_dtypes.bfloat16) gives the numbers"
        )


MANY = 3
NPZ = plain(
    name="npz",
    suffixes=table.find("npz").written,
    lay_out=lambda plan, name: numpy_write.lay_out(plan),
    refusals=numpy_write.refusals,
    differences=_by_zipfile,
    needs=("zipfile",),
    caveats=_bfloat16_caveat,
)
MXNET = plain(
    name="MXNet",
    suffixes=table.find("mxnet").written,
    lay_out=lambda plan, name: mxnet_write.lay_out(plan),
    refusals=mxnet_write.refusals,
    unfit=mxnet_write.unfit,
)
MSGPACK = plain(
    name="msgpack",
    suffixes=table.find("msgpack").written,
    lay_out=lambda plan, name: msgpack_write.lay_out(plan),
    refusals=msgpack_write.refusals,
    held=msgpack_write.held,
)
HDF5 = plain(
    name="HDF5",
    suffixes=table.find("keras").written,
    lay_out=lambda plan, name: hdf5_write.lay_out(plan),
    refusals=hdf5_write.refusals,
    unfit=hdf5_write.unfit,
    links=True,
    caveats=_bfloat16_caveat,
)
DCP = dcp.writer(TORCH)
WRITERS = (SAFETENSORS, TORCH, NPZ, MXNET, MSGPACK, HDF5, ONNX, DCP)
OF_MODELS = (".weights.h5", ".keras")
"""Ends of the names of files that Keras loads into a model that it knows."""


def writer_for(output: Path, sharded: bool = False) -> Writer:
    """The format that an output is written in: by its suffix, in any case; safetensors where that says nothing.

    Folders of shards are safetensors.
    """
    named = (writer for writer in WRITERS if not sharded and is_named_for(output, writer))
    return next(named, SAFETENSORS)


def is_named_for(output: Path, writer: Writer) -> bool:
    """Whether a file's suffix is one of the format's, or its name is that of the file which opens such a folder."""
    if writer.folder is not None:
        return os.path.basename(os.fspath(output)) == writer.folder.file
    return os.path.splitext(os.fspath(output))[1].lower() in writer.suffixes


def check_name(output: str, is_folder: bool) -> None:
    """UsageError where the name of an output says another thing than what will be written.

    A file ends in a suffix of its format; a folder does not end as a file of weights does.
    """
    stem, suffix = os.path.splitext(output.rstrip(os.sep))
    written = [suffix for writer in WRITERS for suffix in writer.suffixes]
    known = suffix.lower() in table.NOT_WRITTEN or suffix.lower() in written
    if is_folder and known:
        raise UsageError(f"{output}: is the name of a file ({suffix}); the output is a folder", f"-o {quote(stem)}")
    is_of_model = not is_folder and output.lower().endswith(OF_MODELS)
    is_no_file = output.endswith(os.sep) or (os.path.lexists(output) and not os.path.isfile(output))
    if not is_of_model and (is_folder or suffix.lower() in written or not output or is_no_file):
        return  # `check_place` refuses names that are no files'
    ends = (
        f"ends in {suffix}"
        if suffix
        else "has no suffix, which says the format; a folder is written where the input is one"
    )
    if is_of_model:
        ends = "is a file that Keras loads into a model it knows: `convert --into MODEL` fills one"
    others = ", ".join(suffix for writer in WRITERS[1:] for suffix in writer.suffixes)
    plain_name = (stem if known else output) + SAFETENSORS.suffixes[0]
    raise UsageError(
        f"{output}: {ends}; what paramtool writes ends in {SAFETENSORS.suffixes[0]}, or in {others} for other formats"
        + (", and `convert --into MODEL.keras` writes a whole model" if suffix.lower() == ".keras" else ""),
        hint=f"-o {quote(plain_name)}",
    )
