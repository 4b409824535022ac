"""What a config declares of ties beside what a file stores; reads the bytes of names that are stored apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from paramtool.commands.progress import Path, Progress, silent
from paramtool.errors import UsageError, some
from paramtool.formats import hf_config
from paramtool.formats.config_names import with_names
from paramtool.formats.files import is_folder
from paramtool.formats.record import edits
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint, Link
from paramtool.model.config import Config
from paramtool.passes import select
from paramtool.passes.config_ties import declared
from paramtool.passes.config_ties.declared import Declared
from paramtool.passes.objects_differ import lacking

if TYPE_CHECKING:
    from paramtool.engine.read.source import Source


@frozen
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


def config_beside(path: Path) -> Config | None:
    """The config that was given, or is beside a checkpoint; None if there is none that can be read.

    Reading the checkpoint tells of a damaged one; FormatError where it was given.
    """
    return hf_config.read_beside(os.fspath(path), hf_config.read)[0]


def declared_ties(
    config: Config, checkpoint: Checkpoint, graph: AliasGraph, progress: Progress = silent, *, all_rows: bool = True
) -> DeclaredTies:
    """The table of a config's ties; names that are stored apart are compared, block by block.

    Without `all_rows` only those are compared that the config ties: only they can turn out wrong by their bytes.
    """
    rows = declared.table(config, checkpoint, graph)
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
    from paramtool.engine.compare.changes import largest
    from paramtool.engine.read.pairs import same_bytes

    first, *others = (graph.names[name].source for name in names)
    for name, other in zip(names[1:], others, strict=True):
        same = first.dtype == other.dtype and same_bytes(source, first, source, other)
        if not same:
            dtypes = (first.dtype.name, other.dtype.name)
            return declared.compared(row, (names[0], name), dtypes, largest(source, first, source, other))
    return declared.compared(row, None, ("", ""), None)


def folder_ties(
    path: Path, checkpoint: Checkpoint, graph: AliasGraph
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Names that the config of a folder ties, and that the file holds with equal bytes in alias sets of their own.

    And a warning for each tie that the file does not keep.
    """
    config = config_beside(path) if is_folder(path) else None
    if config is None:
        return (), ()
    found = declared_ties(config, checkpoint, graph, all_rows=False)
    equal = (row.tie.names for row in found.rows if row.says and row.file == declared.EQUAL)
    return tuple(equal), tuple(f"{config.path}: {text(row)}" for row in found.broken)


def with_ties(checkpoint: Checkpoint, ties: Mapping[str, str]) -> Checkpoint:
    """A checkpoint with the names that a model ties to some of its own: what a saver drops of them, readers may want.

    UsageError where a tie has no name in the checkpoint, and where that has other things than tensors, and so no place
    for more names.
    """
    checkpoint = as_stored(checkpoint, checkpoint.entries.keys() - ties.keys())  # what is said counts
    views = checkpoint.views()
    holders: dict[str, str] = {}
    for name, first in ties.items():
        if name in views:
            holders.setdefault(first, name)
    _refuse_absent(checkpoint, ties)
    names = {n: holders[first] for n, first in ties.items() if n not in checkpoint.entries and first in holders}
    found = with_names(checkpoint, names)
    if found is None:
        raise UsageError(
            f"{checkpoint.path}: holds more than the tensors of one model; there is no place for more names",
            hint="--only SECTION takes its model alone",
        )
    return found


def as_stored(checkpoint: Checkpoint, but: Container[str] = ()) -> Checkpoint:
    """A checkpoint without the names that its config adds, `but` for some."""
    by_config = (name for name, entry in checkpoint.entries.items() if entry.link and entry.link.evidence == BY_CONFIG)
    return lacking(checkpoint, {name for name in by_config if name not in but})


def unwritten(checkpoint: Checkpoint, names: Collection[str]) -> Iterator[str]:
    """The names that a config adds to a checkpoint, and that are not among those of an output, for people."""
    lost = sorted(checkpoint.entries.keys() - as_stored(checkpoint, names).entries.keys())
    if lost:
        yield f"names that only config.json gives, by its ties: {some(lost, 3)}"


def denied(checkpoint: Checkpoint) -> set[str]:
    """Names that a file lacks and its config does not tie: the model begins them with random numbers."""
    config = config_beside(checkpoint.path)
    ties = config.class_ties(checkpoint.entries, says=False) if config else ()
    return {name for names in ties for name in names if name not in checkpoint.entries}


def _refuse_absent(checkpoint: Checkpoint, ties: Mapping[str, str]) -> None:
    """UsageError with the first tie that the checkpoint has no name of."""
    groups = grouped((first, name) for name, first in ties.items())
    for names in groups.values():
        if len(names) > 1 and not any(name in checkpoint.entries for name in names):
            prefix, count = select.prefix_before(names, checkpoint.entries)
            raise UsageError(
                f"{checkpoint.path}: {' and '.join(map(repr, names[:3]))} shall be tied, and none of these "
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
    config = config_beside(path) if is_folder(path) else None
    return declared.untied(config, checkpoint, graph) if config else set()


def separated_warning(where: str, names: Collection[str]) -> str:
    """What becomes of names that `untied` gives."""
    return (
        f"{where}: {some(sorted(names), 3)}: the file shares it with another name, and the model of config.json does "
        "not tie it; it is stored for itself, so that from_pretrained finds it, and no longer shares memory"
    )


def separated(checkpoint: Checkpoint, names: Collection[str], said: Mapping[str, str]) -> Checkpoint:
    """A checkpoint with each of some names in an alias set of its own, and a record of those that are `said`."""
    entries = {
        name: entry._replace(link=Link(name, "storage")) if name in names else entry
        for name, entry in checkpoint.entries.items()
    }
    if not said:
        return replace(checkpoint, entries=entries)
    known = edits.ties_of(checkpoint.path, checkpoint.metadata)
    text = edits.ties_text(known._replace(untied={**known.untied, **said}))
    return replace(checkpoint, entries=entries, metadata={**checkpoint.metadata, edits.TIES: text})


def text(row: Declared) -> str:
    """What is wrong with a row, in one sentence."""
    a, b = row.apart or (row.tie.names[0], row.tie.names[1])
    if row.result in declared.BROKEN and row.says:
        return f"{row.why}, and {a!r} and {b!r} are stored with {row.file}{apart_text(row)}; they stay apart"
    names = ", ".join(map(repr, row.tie.names[:3]))
    return f"{row.why}, and {names} share memory in the file: training one of them changes all"


def apart_text(row: Declared) -> str:
    """The largest difference of a row, and what else parts its names, in brackets; empty where there is nothing."""
    from paramtool.engine.compare.changes import format_difference

    texts = [one for one in (row.detail, format_difference(row.largest)) if one]
    return f" ({', '.join(texts)})" if texts else ""
