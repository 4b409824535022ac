"""What a config declares of ties beside what a file stores; reads the bytes of names that are stored apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from paramtool.commands import models_of_transformers
from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import FormatError, ParamtoolError, UsageError, some
from paramtool.formats import hf_config, object_tree
from paramtool.formats.files import is_folder
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import dataclass
from paramtool.model import alias, objects
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Link
from paramtool.model.config import Config
from paramtool.passes import suggest
from paramtool.passes.config_ties import declared
from paramtool.passes.config_ties.declared import ClassTies, Declared

if TYPE_CHECKING:
    from paramtool.engine.read.source import Source
    from paramtool.passes.config_ties.declared import ClassTies


@dataclass(frozen=True, slots=True)
class DeclaredTies:
    """The table of a config's ties."""

    path: str
    """The config."""
    rows: tuple[Declared, ...]
    _members = "path ties=rows"

    @property
    def broken(self) -> Iterator[Declared]:
        """Where the file is not what the config says: a declared tie diverged, or a denied one is shared."""
        return (row for row in self.rows if row.result in declared.BROKEN)


def read_config(path: Path, given: str) -> Config:
    """The config that was given, or that is beside a checkpoint; UsageError if there is none."""
    return hf_config.read(hf_config.place(os.fspath(path), given))


def config_beside(path: Path) -> Config | None:
    """The config in a folder, or beside a file; None where there is none.  FormatError where it cannot be read."""
    try:
        place = hf_config.place(os.fspath(path))
    except UsageError:
        return None
    return hf_config.read(place)


def declared_ties(
    config: Config, checkpoint: Checkpoint, graph: AliasGraph, progress: Progress = silent, *, all_rows: bool = True
) -> DeclaredTies:
    """The table of a config's ties; names that are stored apart are compared, block by block.

    Where transformers is installed, the class of the model says what is tied, else the names do.  Without `all_rows`
    only those are compared that the config ties: only they can turn out wrong by their bytes.
    """
    return _compared_rows(config, checkpoint, graph, class_ties(config.path), progress=progress, all_rows=all_rows)


def _compared_rows(
    config: Config,
    checkpoint: Checkpoint,
    graph: AliasGraph,
    model: ClassTies | None,
    *,
    progress: Progress = silent,
    all_rows: bool = True,
) -> DeclaredTies:
    rows = declared.table(config, checkpoint, graph, model)
    wanted = {k: row for k, row in enumerate(rows) if all_rows or row.says}
    todo = {k: names for k, row in wanted.items() if (names := declared.unread(row, graph))}
    if not todo:
        return DeclaredTies(config.path, tuple(rows))
    from paramtool.engine.read.source import Source

    nbytes = sum(graph.names[name].source.nbytes for names in todo.values() for name in names)
    with ExitStack() as stack:
        source = stack.enter_context(Source(checkpoint))
        advance = stack.enter_context(progress("compare", nbytes))
        for k, names in todo.items():
            rows[k] = _compared(rows[k], names, graph, source)
            advance(sum(graph.names[name].source.nbytes for name in names))
    return DeclaredTies(config.path, tuple(rows))


def _compared(row: Declared, names: list[str], graph: AliasGraph, source: Source) -> Declared:
    """A row whose names were read: the first is compared with each of the others until one differs."""
    from paramtool.engine.compare.difference import largest
    from paramtool.engine.read.streams import same_bytes

    first, *others = (graph.names[name].source for name in names)
    for name, other in zip(names[1:], others, strict=True):
        same = first.dtype == other.dtype and same_bytes(source, first, source, other)
        if not same:
            dtypes = (first.dtype.name, other.dtype.name)
            return declared.compared(row, (names[0], name), dtypes, largest(source, first, source, other))
    return declared.compared(row, None, ("", ""), None)


@dataclass(frozen=True, slots=True)
class FolderTies:
    """What the config of a folder says of the ties of its file."""

    equal: tuple[tuple[str, ...], ...] = ()
    """Names that the model ties, and that the file holds with equal bytes in alias sets of their own."""
    warnings: tuple[str, ...] = ()
    """A line for each tie that the file does not keep."""
    untied: frozenset[str] = frozenset()
    """Names that share memory in the file, and that the model does not tie."""


def folder_ties(path: Path, checkpoint: Checkpoint, graph: AliasGraph, needs_all: bool = False) -> FolderTies:
    """What the config of a folder says of the ties of its file; nothing where there is no config.

    With `needs_all`, names that the model does not tie are looked for, too.  A config that cannot be read is no error:
    it is not needed to write the file.
    """
    try:
        config = _of_folder(path)
    except FormatError as error:
        return FolderTies(warnings=(f"{error.message}; what it says of ties was not looked at",))
    if config is None:
        return FolderTies()
    found = _compared_rows(config, checkpoint, graph, None, all_rows=False)
    loose = declared.untied(config, checkpoint, graph) if needs_all else set()
    matters = any(found.broken) or any(row.says and row.file == declared.EQUAL for row in found.rows)
    if (matters or loose) and (model := class_ties(config.path)) is not None:
        found = _compared_rows(config, checkpoint, graph, model, all_rows=False) if matters else found
        loose = declared.untied(config, checkpoint, graph, model) if loose else loose
    equal = (row.tie.names for row in found.rows if row.says and row.file == declared.EQUAL)
    return FolderTies(tuple(equal), tuple(f"{config.path}: {text(row)}" for row in found.broken), frozenset(loose))


def _of_folder(path: Path) -> Config | None:
    """The config in a folder; None where there is no folder or none in it.  FormatError where it cannot be read."""
    config = os.path.join(path, hf_config.NAME)
    return hf_config.read(config) if is_folder(path) and os.path.isfile(config) else None


def with_ties(checkpoint: Checkpoint, ties: Mapping[str, str], saved: Mapping[str, str] | None = None) -> Checkpoint:
    """A checkpoint with the names that a model ties to some of its own: what a saver drops of them, readers may want.

    `ties` has every name of the model, `saved` the names that its files have, where these are others.  UsageError
    where a tie has no name in the checkpoint, and where that has other things than tensors, and so no place for more
    names.
    """
    views = checkpoint.views()
    if saved and sum(name in checkpoint.entries for name in saved) > sum(name in checkpoint.entries for name in ties):
        ties = saved
    holders: dict[str, str] = {}
    for name, first in ties.items():
        if name in views:
            holders.setdefault(first, name)
    _refuse_absent(checkpoint, ties)
    names = {n: holders[first] for n, first in ties.items() if n not in checkpoint.entries and first in holders}
    if not names:
        return checkpoint
    order = tuple(checkpoint.entries)
    tree = checkpoint.objects
    bare = replace(tree, attributes=None) if isinstance(tree, objects.Mapping) else tree  # `_metadata` of a state dict
    if not object_tree.is_flat(bare, order):
        raise UsageError(
            f"{checkpoint.files[0].path}: holds more than the tensors of one model; there is no place for more names",
            hint="--only SECTION takes its model alone",
        )
    entries = alias.with_declared(checkpoint, names, order[-1])
    if isinstance(tree, objects.Mapping) and tree.items:
        tree = replace(tree, items=(*tree.items, *((name, objects.TensorRef(name)) for name in names)))
    return replace(checkpoint, entries=entries, objects=tree)


def _refuse_absent(checkpoint: Checkpoint, ties: Mapping[str, str]) -> None:
    """UsageError with the first tie that the checkpoint has no name of."""
    groups = grouped((first, name) for name, first in ties.items())
    for names in groups.values():
        if len(names) > 1 and not any(name in checkpoint.entries for name in names):
            prefix, count = suggest.prefix_before(names, checkpoint.entries)
            raise UsageError(
                f"{checkpoint.files[0].path}: {' and '.join(map(repr, names[:3]))} shall be tied, and none of these "
                "names is there: nothing can be recorded for them",
                hint=f"the names there begin with {prefix!r}: --only SECTION takes a part of the file"
                if count
                else "the ties are those of another model, or the file is a part of it",
            )


def untied(path: Path, checkpoint: Checkpoint, graph: AliasGraph) -> set[str]:
    """Names of a folder that share an alias set in the file and that the model of its config does not tie.

    A program that opens the folder finds a name by itself, or by a tie of its model; any other would be missing.  None
    where there is no config that can be read.
    """
    try:
        config = _of_folder(path)
    except FormatError:  # `folder_ties` says so
        return set()
    loose = declared.untied(config, checkpoint, graph) if config else set()
    if config and loose:  # the class of the model decides, where it can be asked
        return declared.untied(config, checkpoint, graph, class_ties(config.path))
    return loose


def separated_warning(where: str, names: Collection[str]) -> str:
    """What becomes of names that `untied` gives."""
    return (
        f"{where}: {some(sorted(names), 3)}: the file shares it with another name, and the model of config.json does "
        "not tie it; it is stored for itself, so that from_pretrained finds it, and no longer shares memory"
    )


def separated(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """A checkpoint with each of some names in an alias set of its own."""
    entries = {
        name: entry._replace(link=Link(name, "storage")) if name in names else entry
        for name, entry in checkpoint.entries.items()
    }
    return replace(checkpoint, entries=entries)


def text(row: Declared) -> str:
    """What is wrong with a row, in one sentence."""
    a, b = row.apart or (row.tie.names[0], row.tie.names[1])
    if row.result in declared.BROKEN and row.says:
        return f"{row.why}, and {a!r} and {b!r} are stored with {row.file}{apart_text(row)}; they stay apart"
    names = ", ".join(map(repr, row.tie.names[:3]))
    return f"{row.why}, and {names} share memory in the file: training one of them changes all"


def apart_text(row: Declared) -> str:
    """The largest difference of a row, and what else parts its names, in brackets; empty where there is nothing."""
    from paramtool.engine.compare.difference import format_difference

    texts = [one for one in (row.detail, format_difference(row.largest)) if one]
    return f" ({', '.join(texts)})" if texts else ""


# --- What the library that has a model's class says of its ties ------------------------------------------------------


def class_ties(config: str) -> ClassTies | None:
    """The ties of the model of a config.json; None where transformers is not there, or cannot build it.

    Warns where torch or transformers is installed and cannot be imported.
    """
    try:
        state = os.stat(config)
    except OSError:
        return None
    return _asked(os.path.abspath(config), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _asked(config: str, *state: int) -> ClassTies | None:
    models = models_of_transformers.load_if_installed()
    try:
        return None if models is None else cast("ClassTies", models.class_ties(config))
    except (ImportError, ParamtoolError):  # another version, or a model that is not its own: names are all there is
        return None
