"""What a pattern gives: each checkpoint once, whether as a folder or as a file, and not what else is in its folder.

    m/shards                        the folder, without its shards, its index and its config.json
    m/model.safetensors.index.json  the index, without its shards, if the pattern gives no folder
    m/one.safetensors               the file, without its folder
    m/docs, m/docs/README.md        nothing, if the pattern names no suffix

Whatever could be a checkpoint and cannot be read is given, too: its error is one of the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import ParamtoolError
from paramtool.formats.folder.weight_names import is_index_name

if TYPE_CHECKING:
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.model.storage import SourceFile


class Matching(NamedTuple):
    """What matches a pattern."""

    paths: list[str]
    """What is checked."""
    skipped: list[str]
    """What is no checkpoint, and no part of one that is checked."""


def matching(pattern: str, is_named: Callable[[str], bool]) -> Matching:
    """The checkpoints that match a pattern, sorted by name; empty where nothing does.

    A folder that holds one model in several files stands for them, and so does an index for its shards.  Any other
    folder whose contents match, too, is left to them, and so is one of whose files the lock has a model: `is_named`
    says which paths those are.  Where the pattern names no suffix, what can be no checkpoint is passed over, unless it
    is all.
    """
    found = _expanded(pattern)
    left, whole = _each_once(found, is_named)
    if not _is_open(pattern):
        return Matching(left, [])
    kept = {path for path in left if path in whole or _is_likely(path)}
    return Matching([path for path in left if path in kept or not kept], [p for p in left if kept and p not in kept])


def _expanded(pattern: str) -> list[str]:
    from glob import glob

    try:
        return sorted(glob(pattern, recursive=True))
    except ValueError:  # a NUL in it
        return []


def _is_open(pattern: str) -> bool:
    """Whether a pattern says nothing of suffixes: `**/*`, and not `*.json`."""
    return re.search(r"\.[^*?\[\].]+$", os.path.basename(pattern)) is None


def _each_once(found: Sequence[str], is_named: Callable[[str], bool]) -> tuple[list[str], set[str]]:
    """Paths without the files of folders and indexes among them, and without folders that their contents stand for.

    Then the folders that are models of several files.
    """
    real = {path: os.path.normpath(path) for path in found}
    names, around = set(real.values()), {os.path.dirname(name) or os.curdir for name in real.values()}
    named = {real[path] for path in found if is_named(path)}
    left: set[str] = set()
    whole: set[str] = set()
    files_of: set[str] = set()
    for path in sorted((path for path in found if real[path] in around and os.path.isdir(path)), key=real.__getitem__):
        model = only_model(path)
        own = {os.path.normpath(file.path) for file in model.checkpoint.files} if model else set()
        is_one = len(own) == 1 and own <= names
        if real[path] not in named and (model is None or own <= files_of or is_one or own & named):
            left.add(path)
        elif model is not None:
            whole.add(path)
            files_of |= own | set(map(os.path.normpath, belongs(model)))
    for path in found:
        if is_index_name(path) and real[path] not in files_of:
            files_of |= {os.path.normpath(file.path) for file in _read_files(path)} - {real[path]}
    files_of -= named
    return [path for path in found if path not in left and real[path] not in files_of], whole


def _read_files(index: str) -> Sequence[SourceFile]:
    """The files of an index; none where it cannot be read."""
    from paramtool import formats

    try:
        return formats.read_file(index).files
    except ParamtoolError:
        return ()


def only_model(folder: str) -> Weights | None:
    """The only set of weights of a folder; None where it has none, or several, or cannot be read."""
    from paramtool import formats
    from paramtool.formats.folder import weight_sets

    try:
        return weight_sets.only(folder, formats.read_file)
    except ParamtoolError:
        return None


def belongs(one: Weights) -> Iterator[str]:
    """The files that are read with a set of weights, or hold nothing that is a model."""
    yield from (one.path, *one.more, *one.others, *(copy.path for copy in one.copies))
    yield from (file.path for file in one.checkpoint.files)


def _is_likely(path: str) -> bool:
    """Whether a file, or one in a folder, can be a checkpoint."""
    from paramtool.formats.likely import may_be_checkpoint

    return any(map(may_be_checkpoint, _files(path)))


def _files(path: str) -> Iterable[str]:
    if not os.path.isdir(path):
        return [path]
    return (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
