"""The variant that a path stands for: a list of names, a checkpoint, or the config of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from paramtool import dialects, formats
from paramtool.commands.name_lists import STANDARD_INPUT, read_names
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.formats import foreign, hf_config, scan, sniff, table
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import is_index
from paramtool.formats.record import parts
from paramtool.formats.sniff import INDEX_SUFFIX
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes import select
from paramtool.passes.compat.check import RowClash
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
    told: tuple[str, ...] = ()
    """What is told of its folder."""
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
    opened = formats.opened(where, allow_class=allow_class, allow_unknown=allow_unknown)
    told = tuple(f"{where}: {text}" for text in opened.told)
    other = opened.checkpoint
    section = select.model_section(other, "save the section alone: paramtool dedup FILE --only SECTION")
    part = other if section is None else select.section(other, section)
    return Asked(where, "checkpoint", wanted_by(part), rows=of_checkpoint(part), told=told)


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


# --- What a checkpoint says of the rows of its tensors: by its record of parts, or by the file name of one program ----


def of_checkpoint(checkpoint: Checkpoint, config: Mapping[str, Any] | None = None) -> Mapping[str, SaidRows]:
    """{tensor: what it holds, by what the checkpoint says}; empty for most files, which say nothing.

    `config` is that of the model that is to load it: it counts where no config.json is beside the checkpoint.
    FormatError if the record is damaged.
    """
    by_name = dialects.of_file(os.path.basename(checkpoint.path))
    if not by_name and parts.KEY not in checkpoint.metadata:
        return {}
    from paramtool.commands.rearrangement import config_beside, record_of, shapes_of
    from paramtool.errors import LayoutError, UsageError
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts.other_rows import rows_said

    shapes, record = shapes_of(checkpoint), record_of(checkpoint)
    config = config_beside(checkpoint.path) or config or {}
    if by_name and config and not record.dialect:
        try:
            found = dialects.recognised(shapes, config, KnownModel(config).facts)
        except (LayoutError, UsageError):
            found = []
        by_name = by_name if by_name in found else ""
    return rows_said(shapes, record, config, by_name)


def clashes(
    checkpoint: Checkpoint,
    names: Collection[str],
    theirs: Mapping[str, SaidRows],
    config: Mapping[str, Any] | None = None,
) -> tuple[RowClash, ...]:
    """The tensors of a checkpoint that a variant has under the same names, with rows in another order.

    `theirs` is what the variant says of its rows; `config` is as of `of_checkpoint`.
    """
    mine = of_checkpoint(checkpoint, config)
    if not mine and not theirs:
        return ()
    from paramtool.passes.parts import other_rows

    both = [name for name in names if name in checkpoint.entries]
    return tuple(RowClash(*one) for one in other_rows.clashes(mine, theirs, both))
