"""Tensors and models from memory into a file: what torch.save and `dedup` give together, in one call.

The tensors go through a temporary file beside the output, since the engine reads files.  Where the system has /proc,
that file has no name from the start, so that nothing can be left behind, even where the process is killed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pickle import PicklingError
from typing import BinaryIO

import torch
from torch import nn

from paramtool.commands.dedup import DedupOptions, dedup_opened
from paramtool.commands.opening import opened
from paramtool.commands.output.writers import writer_for
from paramtool.commands.progress import MIN_EQUAL_NBYTES, Path, Progress, silent
from paramtool.engine.write.places import check_place
from paramtool.errors import OutputError, ParamtoolError, PlanError, UsageError, listed, plural
from paramtool.lazy_dataclass import frozen
from paramtool.model.display import Displayed

OPEN_FILES = "/proc/self/fd"


@frozen(repr=False)
class Saved(Displayed):
    """What `save_model` or `save_file` wrote."""

    path: str
    """The file or folder that was written."""
    files: tuple[str, ...]
    """The files, as paths."""
    names: tuple[str, ...]
    """Every name that a reader of the alias record finds, in the order of the tensors."""
    aliases: Mapping[str, str]
    """{name: the name that stores its bytes}, of names that are not stored themselves."""
    nbytes: int
    """The size of the files."""
    warnings: tuple[str, ...]
    """What was assumed, or is not in the output."""

    _facts = "`names` and `warnings`"
    _members = "path nbytes names aliases files warnings"


def save_model(
    model: nn.Module, path: Path, metadata: Mapping[str, str] | None = None, *, force: bool = False,
    keep: str = "first", equal: bool = True, min_equal_bytes: int = MIN_EQUAL_NBYTES,
    max_shard_size: int | None = None, verify: bool = True, progress: Progress = silent,
) -> Saved:  # fmt: skip
    """Write a model's parameters and persistent buffers with every byte once and every name recorded.

    The file is the one that `torch.save(model.state_dict(), ...)` and `paramtool.dedup` give together, with `metadata`
    added to a safetensors file.  The safetensors library opens it; `paramtool.torch.load_model` brings back all names
    and ties.  As `safetensors.torch.save_model`, but an existing file is replaced only with `force`.

    With `equal`, tensors of `min_equal_bytes` or more that have the same bytes are stored once although the model does
    not tie them, and other libraries find only the name that stores them; `equal=False` stores each.  Names that the
    model ties are stored once in any case, as safetensors does.  The other keywords are those of `paramtool.dedup`.

    PlanError where a tensor has no values (the meta device, lazy modules), UsageError or OutputError as of `dedup`;
    nothing is left behind then.  The tensors go through a temporary file beside the output, so the disk needs room for
    twice their size.
    """
    return _saved(
        model.state_dict(), type(model).__name__, path, metadata,
        options=DedupOptions(
            force=force, keep=keep, equal=equal, min_equal_bytes=min_equal_bytes, max_shard_size=max_shard_size,
            verify=verify,
        ),
        progress=progress,
    )  # fmt: skip


def save_file(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None, *,
    force: bool = False, keep: str = "first", equal: bool = True, min_equal_bytes: int = MIN_EQUAL_NBYTES,
    max_shard_size: int | None = None, verify: bool = True, progress: Progress = silent,
) -> Saved:  # fmt: skip
    """Write {name: tensor} with every byte once and every name recorded; see `save_model`.

    Tensors may share memory, be slices or transposes of others, and need not be contiguous; those of a GPU are copied
    to the CPU.  UsageError where a value is not a tensor, or a name not a string.
    """
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name!r:.200} is a {type(tensor).__name__}; expected strings and their tensors")
    return _saved(
        dict(tensors), "tensors", path, metadata,
        options=DedupOptions(
            force=force, keep=keep, equal=equal, min_equal_bytes=min_equal_bytes, max_shard_size=max_shard_size,
            verify=verify,
        ),
        progress=progress,
    )  # fmt: skip


def _saved(
    state: Mapping[str, object],
    label: str,
    path: Path,
    metadata: Mapping[str, str] | None,
    *,
    options: DedupOptions,
    progress: Progress,
) -> Saved:
    """Write a state through a temporary file; what goes wrong is said of `label`, and not of that file."""
    wrong = [
        f"{name!r:.200}: is {'lazy and has no shape yet' if nn.parameter.is_lazy(one) else 'on the meta device'}"
        for name, one in state.items()
        if isinstance(one, torch.Tensor) and (nn.parameter.is_lazy(one) or one.is_meta)
    ]
    if wrong:
        count = plural(wrong, "tensor has", "tensors have")
        raise PlanError(
            listed(f"{label}: {count} no values to write:", wrong), hint="load or initialise the model first"
        )
    target = os.fspath(path)
    texts = dict(metadata or {})
    for key, text in texts.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise UsageError(f"metadata {key!r:.200} is {text!r:.200}; expected strings")
    is_folder = options.max_shard_size is not None
    if texts and writer_for(target, is_folder).name != "safetensors":
        raise UsageError(f"{target}: only safetensors files hold metadata", hint="name the output NAME.safetensors")
    check_place(target, is_folder, options.force, ())
    with _temporary(target) as (file, place):
        try:
            _write(state, file, label, target)
            found = opened(place, None, progress, options)
            found = replace(found, checkpoint=replace(found.checkpoint, metadata=texts))
            report = dedup_opened(place, found, path, options, progress=progress)
        except ParamtoolError as error:
            error.args = (error.message.replace(place, label),)
            error.hint = error.hint.replace(place, label)
            raise
    aliases = {one.name: one.owner for one in report.plan.aliases}
    warnings = tuple(text.replace(place, label) for text in report.warnings)
    return Saved(report.output, report.files, report.plan.order, aliases, report.nbytes_after, warnings)


def _write(state: Mapping[str, object], file: BinaryIO, label: str, target: str) -> None:
    """torch.save into the temporary file; PlanError for what cannot be pickled, OutputError where writing fails."""
    try:
        torch.save(state, file)
        file.flush()
    except (TypeError, AttributeError, PicklingError) as error:
        raise PlanError(
            f"{label}: torch.save cannot write it: {error}", hint="its state dict should hold tensors and plain values"
        ) from None
    except (OSError, RuntimeError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise OutputError(
            f"{target}: cannot be written: {getattr(error, 'strerror', None) or str(error)[:200]}",
            hint="saving takes twice the size of the tensors on that disk: a temporary file, then the output",
        ) from None


@contextmanager
def _temporary(target: str) -> Iterator[tuple[BinaryIO, str]]:
    """A file beside the output, and the path that opens it; gone at the end, whatever happens."""
    folder = os.path.dirname(os.path.abspath(target))
    try:
        if os.path.isdir(OPEN_FILES):
            with tempfile.TemporaryFile(dir=folder) as file:
                yield file, f"{OPEN_FILES}/{file.fileno()}"
        else:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".paramtool-", suffix=".pt") as named:
                yield named, named.name  # type: ignore[misc]
    except OSError as error:
        if isinstance(error, ParamtoolError):
            raise
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from None
