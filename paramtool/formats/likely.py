"""Whether a file can be a checkpoint at all, by its name and its first bytes: other files are passed over."""

from __future__ import annotations

import os

from paramtool.formats import foreign, sniff, table
from paramtool.formats.folder import weight_names


def may_be_checkpoint(path: str) -> bool:
    """Whether a file has the name or the first bytes of weights in any format, also of those that are not read.

    False for texts, images and programs, and for files that neither their name nor their first bytes identify:
    `config.json`, `README.md`, `tokenizer.model`.  True for what is no file, and for what cannot be opened: reading
    it says why.
    """
    name = path.lower()
    if name.endswith((*table.suffixes(), *OTHER, sniff.DISTRIBUTED)) or weight_names.is_index_name(path):
        return True
    if not os.path.isfile(path):
        return True
    try:
        with open(path, "rb") as file:
            head, nbytes = file.read(table.HEAD_NBYTES), file.seek(0, os.SEEK_END)
    except OSError:
        return True
    if weight_names.is_index(head, path) or any(row.recognises(head, nbytes, path) for row in table.rows()):
        return True
    what = foreign.named(path, head, nbytes).what
    return what != foreign.UNKNOWN.what and not what.startswith(NO_WEIGHTS) and not what.endswith(NOT_ONE)


OTHER = tuple(suffix for suffix in table.OTHER_SUFFIXES if suffix != ".json")
NO_WEIGHTS = (foreign.JSON.what, foreign.XML.what)
NOT_ONE = ", not a checkpoint"
"""How `foreign` begins and ends what it says of files that hold no weights."""
