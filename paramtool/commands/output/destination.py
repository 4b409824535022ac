"""Where an output goes: its path, the names of its files, and what comes along from the input's folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import NamedTuple

from paramtool.commands import adapter_config
from paramtool.commands.output.dialect_folder import DialectFolder, refuse_shards
from paramtool.commands.output.options import WriteOptions
from paramtool.commands.output.sidecar_checks import check_one_file, check_resumes
from paramtool.commands.output.sidecars import Sidecars, of_file, sidecars_of, without_training
from paramtool.commands.output.writer import Writer
from paramtool.commands.output.writers import check_name, named_form, writer_for
from paramtool.commands.progress import Path
from paramtool.engine.write.places import NOTHING, check_apart, check_place
from paramtool.errors import UsageError
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder import weight_names
from paramtool.formats.folder.training_files import optimizer_of
from paramtool.formats.folder.weight_names import Weights, WeightsName, index_parts
from paramtool.formats.output import OutputFile

SHARD_NBYTES = 5_000_000_000
"""What a sharded input is sharded to again: transformers' own choice."""


def default_output(path: Path, folder: bool, word: str = "dedup") -> str:
    """`model.pt` gives `model.dedup.safetensors`, a folder or an index gives a folder `NAME.dedup` beside it.

    What is made of a file in a model's folder is beside that folder, `FOLDER.model.dedup.safetensors`: within it, it
    would be a second set of weights.
    """
    given = os.fspath(path)
    path = os.path.normpath(given)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        path = os.path.realpath(given)  # `.` has no name of its own, and beside it is not inside it
    base = os.path.basename(path)
    if is_folder(path):
        return f"{path}.{word}"
    index = index_parts(base)
    stem = index[0].split(".")[0] if index else os.path.splitext(base)[0]
    name = f"{stem}.{word}" if folder else f"{stem}.{word}.safetensors"
    place = os.path.dirname(path)
    if any(os.path.lexists(os.path.join(place, config)) for config in (hf_config.NAME, adapter_config.NAME)):
        return f"{place if os.path.basename(place) else os.path.realpath(place)}.{name}"
    return os.path.join(place, name)


NOTHING_MADE: Mapping[str, bytes] = {}


class Destination(NamedTuple):
    """Where an output goes, and in which form."""

    path: str
    is_folder: bool
    max_shard_size: int | None
    """Shards of at most this many bytes and their index; None for one file."""
    sidecars: Sidecars = Sidecars()
    """The other files of an input folder, which come along into a folder."""
    folder: str = ""
    """The input folder, where a folder becomes a folder, which other programs open as they opened the input."""
    read: tuple[str, ...] = ()
    """Every file that the command reads; none is ever overwritten."""
    name: WeightsName = WeightsName()
    """What the weights of a folder are called."""
    inside: str = ""
    """The folder inside the output that they go to, with `/`, where several sets go to one output."""
    is_alone: bool = True
    """Whether no other set goes to the same folder."""
    made: Mapping[str, bytes] = NOTHING_MADE
    """{name in the folder: content} of files that are calculated."""
    notes: tuple[str, ...] = ()
    """Warnings about these files."""

    @property
    def is_of_folder(self) -> bool:
        """Whether a folder becomes a folder."""
        return bool(self.folder)

    @property
    def writer(self) -> Writer:
        """The format that it is written in."""
        return writer_for(self.name.file if self.is_folder else self.path)

    def files(self, outputs: Iterable[OutputFile]) -> tuple[str, ...]:
        """The files of the output, as paths, sidecar files included."""
        names = [*(out.name for out in outputs), *self.sidecars_inside()]
        folder = self.path if self.is_folder else os.path.dirname(self.path)
        return tuple(os.path.join(folder, name) if name else self.path for name in names)

    def sidecars_inside(self) -> dict[str, str]:
        """{name in the output: the file that it is a copy of}"""
        return {self._placed(name): file for name, file in self.sidecars.files.items()}

    def known_inside(self) -> dict[str, str | bytes]:
        """{name in the output: the file that it is a copy of, or its content}"""
        return {**self.sidecars_inside(), **{self._placed(name): content for name, content in self.made.items()}}

    @property
    def name_inside(self) -> WeightsName:
        """What the weights of a folder are called, with the folder inside the output."""
        return replace(self.name, stem=self._placed(self.name.stem))

    def shown(self, outputs: Sequence[OutputFile]) -> str:
        """The path that reads this set alone."""
        if not self.is_folder or self.is_alone:
            return os.path.join(self.path, self.inside) if self.inside else self.path
        return os.path.join(self.path, outputs[-1].name)

    def placed(self, outputs: Iterable[OutputFile]) -> tuple[OutputFile, ...]:
        """Files of the one folder inside as files of the output."""
        return tuple(replace(out, name=self._placed(out.name)) for out in outputs)

    def _placed(self, name: str) -> str:
        return f"{self.inside}/{name}" if self.inside else name


def place(
    path: Path, output: Path | None, opened: Weights, max_shard_size: int | None, *, options: WriteOptions, word: str,
    brings: Mapping[str, str] = NOTHING, others: Iterable[Path] = (), form: DialectFolder | None = None,
    format: str | None = None, keeps_format: bool = True, keeps_training: bool = True,
) -> Destination:  # fmt: skip
    """Where the output goes; an error where it may not go there, as in the place of the input or of `others`.

    `form` says what a folder is like if it is in a dialect of its own, and `format` is its format: one of
    `FOLDER_FORMATS`, or None for that of a folder that is read if it `keeps_format`, else safetensors.

    Those are files that are read beside the input, such as a list of names.  Files of a training come along if it
    `keeps_training`.  A folder gives a folder, with a file or shards as its own, unless the output is named as a file.
    """
    whole, given = opened.checkpoint, is_folder(path)
    asked = max_shard_size is not None
    folder = asked or given or whole.format.startswith("sharded") or format is not None
    target = os.fspath(output) if output is not None else default_output(path, folder, word)
    if output is not None and named_form(target) is not None:
        if asked or format is not None:
            what = "shards need" if asked else f"--format {format} needs"
            raise UsageError(f"{target}: {what} a folder", hint=f"-o {quote(os.path.splitext(target)[0])}")
        folder = False
    check_name(target, folder)
    refuse_shards(form, asked)
    kept = "dcp" if keeps_format and given and whole.format == "dcp" and not asked and form is None else None
    own = _folder_names(target, format or kept, asked, form) if folder else None
    above = os.path.dirname(opened.path)
    if own is not None and given and whole.format == "dcp" and (inside := os.path.relpath(above, path)) != os.curdir:
        own = replace(own, stem=f"{inside}/")  # the folder of a model in that of a training
    if folder and not asked and whole.format.startswith("sharded") and (form is None or form.name.has_shards):
        max_shard_size = SHARD_NBYTES
    weights = [file.path for file in whole.files]
    read = (*weights, *(os.fspath(other) for other in others), *brings.values())
    if given:
        check_apart(target, [os.fspath(path)])
    is_cut = max_shard_size is not None and not whole.format.startswith("sharded")
    beside = Sidecars()
    if folder and given:
        beside = _sidecars(os.fspath(path), opened, target, is_cut, keeps_training=keeps_training)
    elif given and keeps_training:
        beside = of_file(os.fspath(path), weights)
    gone = form.gone if form is not None else ()
    if folder:
        beside = replace(beside, files={n: p for n, p in {**beside.files, **brings}.items() if n not in gone})
    name = opened.name if (given and keeps_training) or opened.name.is_usual else WeightsName()
    name, made, notes = (form.name, form.made, form.notes) if form is not None else (name, NOTHING_MADE, ())
    if own is not None:
        name, max_shard_size = own, None
    if folder:
        check_one_file(target, name.stem, is_cut and own is None)
    states = [state_name(state) for state in dict.fromkeys(map(optimizer_of, beside.files)) if state]
    replaces = options.force or options.dry_run
    check_place(target, folder, replaces, read, known={**beside.files, **made}, weights=(name, *states))
    if not options.force and os.path.lexists(target):
        notes = (*notes, f"{target} exists: --force replaces it")
    of = os.fspath(path) if folder and given else ""
    return Destination(target, folder, max_shard_size, beside, of, read, name, made=made, notes=notes)


def _sidecars(folder: str, opened: Weights, target: str, is_cut: bool, *, keeps_training: bool) -> Sidecars:
    """What comes along from a folder; PlanError where a training could not go on from the output."""
    weights = [file.path for file in opened.checkpoint.files]
    found = sidecars_of(folder, weights, target, opened.twins, others=opened.others, more=opened.more)
    if not keeps_training:
        return without_training(found)
    check_resumes(folder, weights, found, is_cut)
    return found


def state_name(state: str) -> WeightsName:
    """The names of the file, or of the folder, with the state of an optimizer beside weights.

    >>> state_name("optimizer_1.bin").file, state_name("optimizer_0").file
    ('optimizer_1.bin', 'optimizer_0/.metadata')
    """
    stem, suffix = os.path.splitext(state)
    if not suffix:
        return replace(weight_names.DCP, stem=f"{state}/")
    return WeightsName(stem, suffix=suffix)


FOLDER_FORMATS = ("safetensors", "dcp")
"""The formats that a folder can be written in."""


def _folder_names(target: str, format: str | None, asked: bool, form: DialectFolder | None) -> WeightsName | None:
    """The names of a folder's files where it is not in safetensors; UsageError where that contradicts the rest."""
    if format not in (None, *FOLDER_FORMATS):
        raise UsageError(f"{target}: --format is {format!r:.60}; expected {' or '.join(FOLDER_FORMATS)}")
    if format == "dcp" and (asked or form is not None):
        what = "--max-shard-size cuts" if asked else "this dialect has its weights in"
        raise UsageError(f"{target}: {what} safetensors files, and --format {format} has none", hint="choose one")
    return weight_names.DCP if format == "dcp" else None
