"""The variant that a path stands for: a list of names, a checkpoint, or the config of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from paramtool import formats
from paramtool.commands import said_rows
from paramtool.commands.name_lists import STANDARD_INPUT, read_names
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.formats import foreign, hf_config, scan, sniff, table
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import is_index
from paramtool.formats.sniff import INDEX_SUFFIX
from paramtool.lazy_dataclass import frozen
from paramtool.passes import select
from paramtool.passes.compat.wanted import Wanted, wanted_by

if TYPE_CHECKING:
    from paramtool.model.checkpoint import Checkpoint
    from paramtool.passes.compat.check import TieQuestion, Verdict
    from paramtool.passes.parts.other_rows import SaidRows


@frozen
class Asked:
    """A variant, as somebody asks for it."""

    against: str
    """The path that was given, or the class of a model."""
    kind: str
    """`names`, `checkpoint`, `config` or `model`."""
    wanted: Mapping[str, Wanted]
    saved: Mapping[str, Wanted] = field(default_factory=dict)
    """What files of it hold, where transformers saves a model under other names than its own."""
    rows: Mapping[str, SaidRows] | None = None
    """What it says of the rows of its tensors; None where nobody knows, as of a list of names."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config of a model of transformers."""
    judge: Callable[[Checkpoint, Checkpoint], tuple[Verdict, tuple[TieQuestion, ...]]] | None = None
    """The verdict on a part of a checkpoint, and on all of it, by a model that is asked itself."""


Build = Callable[[str], tuple[Mapping[str, Wanted], Mapping[str, Wanted]]]
"""What the model of a config.json wants, and what is `saved`; it takes transformers, which commands know nothing of."""


def ask(path: Path, build: Build | None = None, allow_class: Sequence[str] = (), allow_unknown: bool = False) -> Asked:
    """The variant that a path stands for, told by content; `build` is needed for a config.

    A folder is the checkpoint in it, or its config.json where it holds no weights.  `-` is names on standard input.
    UsageError where there is no name, or a config and no `build`; errors of reading as of `formats.read`.
    """
    where = os.fspath(path)
    if where == STANDARD_INPUT or _is_names(where):
        return Asked(where, "names", {name: Wanted(name) for name in read_names(where)})
    if config := _config(where):
        if build is None:
            raise UsageError(
                f"{config}: is the config of a model, which transformers has to build",
                hint="paramtool.variants(...) and paramtool.torch.variants(...) ask it",
            )
        return Asked(where, "config", *build(config), rows={}, config=hf_config.whole(config))
    other = formats.read(where, allow_class=allow_class, allow_unknown=allow_unknown)
    section = select.model_section(other, "save the section alone: paramtool dedup FILE --only SECTION")
    part = other if section is None else select.section(other, section)
    return Asked(where, "checkpoint", wanted_by(part), rows=said_rows.of_checkpoint(part))


def _head(where: str) -> bytes:
    """The first bytes of a regular file; none of what cannot be read, of which `formats.read` tells."""
    try:
        with open(where, "rb") as file:
            return file.read(table.HEAD_NBYTES)
    except OSError:
        return b""


def _is_names(where: str) -> bool:
    """Whether a file is text, and none that formats recognise: JSON, a page, a pointer to a file elsewhere, a pickle.

    Tabs and breaks apart, text has no control characters, and every binary format begins with some.
    """
    if not os.path.isfile(where):
        return False
    head = _head(where)
    known = foreign.is_known_text(head) or sniff.begins_pickle(head)
    is_text = not known and all(code >= 32 or code in b"\t\r\n" for code in head)
    return is_text and not scan.scan(where)  # the first pickles of Python are lines of text


def _config(where: str) -> str:
    """The path of a config.json, where that is what a path means; empty where not."""
    if is_folder(where):
        inside = os.path.join(where, hf_config.NAME)
        return inside if os.path.isfile(inside) and not _holds_weights(where) else ""
    head = _head(where) if os.path.isfile(where) else b""
    return where if head.lstrip().startswith(b"{") and not is_index(head, where) else ""


def _holds_weights(folder: str) -> bool:
    names = [name for name in os.listdir(folder) if not is_training_state(name)]
    return any(name.endswith((*table.suffixes(), INDEX_SUFFIX, ".distcp")) for name in names)
