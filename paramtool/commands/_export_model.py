"""What `export --only SECTION` makes of the model of a training: the files beside it, and the ties of its config."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from paramtool.commands import config_ties
from paramtool.commands.models_of_transformers import NamedShapes, model_of
from paramtool.commands.progress import Path, Progress
from paramtool.errors import ParamtoolError, plural, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder import roots
from paramtool.formats.folder.training_files import is_of_model
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entries
from paramtool.passes.config_ties.declared import EQUAL, MEMORY

MAX_NAMED = 5


def settings_beside(path: Path) -> dict[str, str]:
    """{name: file} of a model's config and tokenizer, for what is given without them.

    They are beside a file, and beside the folder that accelerate puts the weights of one model of FSDP into.
    """
    given = os.path.realpath(path)
    parent = os.path.dirname(given)
    if is_folder(given) and os.path.basename(given) not in roots.models_inside(parent):
        return {}
    return settings_of(parent)


def settings_of(folder: str) -> dict[str, str]:
    """{name: file} of a model's config and tokenizer in a folder."""
    places = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if is_of_model(name)}
    return {name: os.path.realpath(place) for name, place in places.items() if os.path.isfile(place)}


@frozen
class AsConfigured:
    """The names of a model as its config wants them."""

    entries: Entries
    tied: Mapping[str, str] = field(default_factory=dict)
    """{name that the file lacks: the name that it is tied to}"""
    missing: tuple[str, ...] = ()
    """Names of the model that the file lacks, and that nothing ties."""
    wanted: int = 0
    """How many names the model has."""
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def as_configured(checkpoint: Checkpoint, config: str, progress: Progress) -> AsConfigured:
    """The tensors of a checkpoint under the names that from_pretrained looks for.

    Of names that the config ties, and that are equal, the first is written, as save_pretrained does; what it does not
    tie is written each for itself.  Where transformers builds the model, its names are compared, too.
    """
    entries = dict(checkpoint.entries)
    graph = alias.build(checkpoint, parts=False)
    found = config_ties.declared_ties(hf_config.read(config), checkpoint, graph, progress, all_rows=False)
    same = [row.tie.names for row in found.rows if row.says and row.file in (MEMORY, EQUAL)]
    gone = {name: names[0] for names in same for name in names[1:] if names[0] in entries and name in entries}
    kept = omit(entries, gone)
    stored = config_ties.as_stored(checkpoint).entries
    left = (
        f"tensor {name!r}: {config_name(config)} ties it to {first!r}" for name, first in gone.items() if name in stored
    )
    told = (f"{found.path}: {config_ties.text(row)}; both are written" for row in found.broken if row.says)
    done = AsConfigured(kept, left_out=tuple(left), warnings=tuple(told))
    try:
        model = model_of(config)
    except ParamtoolError as error:
        why = f"{config_name(config)}: which names from_pretrained looks for was not compared: {error.message}"
        return replace(done, warnings=(*done.warnings, why))
    lists = [model.own, *([model.saved] if model.saved else [])]
    names = max(lists, key=lambda one: sum(name in entries for name in one.shapes))
    return _compared(done, names, config)


def config_name(config: str) -> str:
    """A config, for people."""
    return os.path.basename(config)


def _compared(done: AsConfigured, model: NamedShapes, config: str) -> AsConfigured:
    """The same, compared with the names of the model."""
    entries = dict(done.entries)
    together = grouped((model.ties.get(name, name), name) for name in model.shapes)
    missing, tied = [], {}
    for names in together.values():
        there = [name for name in names if name in entries]
        if not there:
            missing.append(names[0])
        elif names[0] not in entries:
            tied[names[0]] = there[0]
            entries[names[0]] = entries.pop(there[0])
    warnings = (*done.warnings, *_strange(done.entries, model, config))
    return replace(done, entries=entries, tied=tied, missing=tuple(missing), wanted=len(together), warnings=warnings)


def _strange(entries: Entries, model: NamedShapes, config: str) -> Iterator[str]:
    """Names that the model does not have, and shapes that are others."""
    if names := [name for name in entries if name not in model.shapes]:
        what = plural(names, "name")
        yield f"{what} that the model of {config_name(config)} does not have: {some(names, MAX_NAMED)}"
