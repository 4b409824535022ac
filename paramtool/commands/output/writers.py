"""The formats that can be written: the suffix of an output chooses the row of a format, which names its writer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from shlex import quote

from paramtool.commands.output.writer import Fitted, Keeping, Writer
from paramtool.commands.progress import Path
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import Advance, by_safetensors
from paramtool.errors import UsageError, some
from paramtool.formats import object_tree, table
from paramtool.formats.folder import weight_names
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import CODE_OF
from paramtool.formats.safetensors import write as safetensors
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan
from paramtool.model.view import View


def _hold_in_metadata(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects go into the metadata, but for what that cannot hold."""
    lost = (*object_tree.left_out(plan.objects), *_memory_formats(plan, checkpoint))
    return Fitted(plan, tuple(object_tree.all_left_out_before(plan.objects)), lost=lost)


def _memory_formats(plan: Plan, checkpoint: Checkpoint) -> Iterator[str]:
    """Dense tensors whose axes lie in another order in the source's memory, for people; only a torch file keeps it."""
    stored = {target.name for target in plan.targets}
    names = [
        name
        for name, entry in checkpoint.entries.items()
        if isinstance(view := entry.value, View) and name in stored
        if view.numel and not view.is_contiguous and view.dense_axes is not None
    ]
    if names:
        from paramtool.formats.torch.write import arrays

        of_numpy = arrays(plan.objects)
        names = [name for name in names if name not in of_numpy]
    if names:
        yield f"the memory format of {some(names, 3)} (such as channels_last): stored row by row"


def _by_safetensors(path: str, output: OutputFile, source: Source, advance: Advance) -> Iterable[str]:
    return by_safetensors(path, output.targets, CODE_OF, source, advance=advance)


SAFETENSORS = Writer(
    name="safetensors",
    form=table.find("safetensors"),
    encode=lambda plan, name: safetensors.lay_out(plan),
    refusals=safetensors.refusals,
    hold=_hold_in_metadata,
    differences=_by_safetensors,
    needs=("safetensors",),
)


OF_MODELS = (".weights.h5", ".keras")
"""Ends of the names of files that Keras loads into a model that it knows."""


def writer_of(form: table.Format) -> Writer:
    """The writer of a format that is written."""
    module, _, name = form.writer.partition(":")
    found: Writer = getattr(import_module(module), name)
    return found


def writer_for(output: Path, sharded: bool = False) -> Writer:
    """The format that an output is written in: by its suffix, in any case; safetensors where that says nothing.

    Folders of shards are safetensors.
    """
    form = None if sharded else named_form(output)
    return SAFETENSORS if form is None else writer_of(form)


def named_form(output: Path) -> table.Format | None:
    """The format of which a file has the suffix, or the name of the file which opens such a folder."""
    if os.path.basename(os.fspath(output)) == weight_names.DCP.file:
        return table.find("dcp")
    suffix = os.path.splitext(os.fspath(output))[1].lower()
    return next((form for form in table.FORMATS if suffix in form.written), None)


def check_name(output: str, is_folder: bool) -> None:
    """UsageError where the name of an output says another thing than what will be written.

    A file ends in a suffix of its format; a folder does not end as a file of weights does.
    """
    stem, suffix = os.path.splitext(output.rstrip(os.sep))
    known = suffix.lower() in (*table.NOT_WRITTEN, *table.WRITTEN)
    if is_folder and known:
        raise UsageError(f"{output}: is the name of a file ({suffix}); the output is a folder", f"-o {quote(stem)}")
    is_of_model = not is_folder and output.lower().endswith(OF_MODELS)
    is_no_file = output.endswith(os.sep) or (os.path.lexists(output) and not os.path.isfile(output))
    if not is_of_model and (is_folder or suffix.lower() in table.WRITTEN or not output or is_no_file):
        return  # `check_place` refuses names that are no files'
    ends = (
        f"ends in {suffix}"
        if suffix
        else "has no suffix, which says the format; a folder is written where the input is one"
    )
    if is_of_model:
        ends = "is a file that Keras loads into a model it knows: `convert --into MODEL` fills one"
    others = ", ".join(suffix for suffix in table.WRITTEN if suffix not in SAFETENSORS.suffixes)
    plain_name = (stem if known else output) + SAFETENSORS.suffixes[0]
    raise UsageError(
        f"{output}: {ends}; what paramtool writes ends in {SAFETENSORS.suffixes[0]}, or in {others} for other formats"
        + (", and `convert --into MODEL.keras` writes a whole model" if suffix.lower() == ".keras" else ""),
        hint="--into MODEL.keras" if is_of_model else f"-o {quote(plain_name)}",
    )
