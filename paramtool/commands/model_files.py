"""The files of a model that is read: a page, a lock or a report never overwrites one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from paramtool.commands import adapter_config
from paramtool.commands.progress import Path
from paramtool.formats import hf_config, table
from paramtool.formats.dcp import metadata
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import is_index_name
from paramtool.formats.sniff import DISTRIBUTED

CONFIGS = (hf_config.NAME, adapter_config.NAME)


def inputs_of(paths: Iterable[Path]) -> list[str]:
    """What a small output may not replace: the files of the models at some paths."""
    return [file for path in map(str, paths) if os.path.exists(path) for file in model_files(path)]


def model_files(path: str) -> Iterator[str]:
    """A path that was given, the configs beside it and, of a folder or an index, the weights and indexes there.

    The files of a folder are told by their names alone, so damaged files and pointers are among them.
    """
    yield path
    whole = is_folder(path)
    folder = path if whole else os.path.dirname(path)
    yield from (os.path.join(folder, name) for name in CONFIGS)
    if whole or is_index_name(path):
        ends = (*table.suffixes(), DISTRIBUTED, metadata.NAME)
        names = os.listdir(folder or ".")
        yield from (os.path.join(folder, name) for name in names if name.endswith(ends) or is_index_name(name))
