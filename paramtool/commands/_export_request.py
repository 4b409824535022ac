"""The names that an export is asked for: a list, those of a checkpoint, or those of a config."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from paramtool import formats
from paramtool.commands.config_model import NamedShapes, Shapes, model_of
from paramtool.commands.name_lists import STANDARD_INPUT, read_names, with_firsts
from paramtool.commands.progress import Path
from paramtool.errors import UsageError, refuse_string
from paramtool.formats.files import is_folder
from paramtool.formats.hf_config import NAME
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.view import View
from paramtool.passes import select

if TYPE_CHECKING:
    from paramtool.commands.export import ExportOptions


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The names that were asked for."""

    lists: Sequence[NamedShapes] = ()
    """None for all names; of several, the first is taken of which the input has every name, else the first."""
    reads: Sequence[str] = ()
    """The files that say so: no output takes their place."""
    brings: Mapping[str, str] = field(default_factory=dict)
    """{file of an output folder: what is copied there}, in place of the input folder's own."""
    section: str | None = None
    """The section of another checkpoint that the names are of."""
    advice: str = ""
    """More of it where names are missing."""
    is_model: bool = False
    """Whether a section was asked for, and no names: it is written as the config of its model wants it."""


def wanted_names(
    path: Path,
    options: ExportOptions,
    *,
    names: Collection[str] | os.PathLike[str] | None,
    like: Path | None,
    keys_from_config: Path | None,
    all_names: bool,
) -> ExportRequest:
    """The names that were asked for in one of the ways; UsageError for none of them and for several."""
    given = (names is not None) + (like is not None) + (keys_from_config is not None) + all_names
    if given > 1 or (not given and options.only is None):
        raise UsageError(
            "choose exactly one: names (--names NAMES.txt), like (--like OTHER_CKPT), the model of a config "
            "(keys_from_config, --keys-from-config), or all_names (--all-names); only (--only SECTION) alone takes all "
            "names of a section"
        )
    refuse_string("names", names)
    if like is None and options.like_only is not None:
        raise UsageError("like_only (--like-only) is a section of like (--like OTHER_CKPT), which is not given")
    if options.ties and keys_from_config is not None:
        raise UsageError(
            "ties (--ties) are those of the config's model where keys_from_config (--keys-from-config) is given",
            hint="leave out ties (--ties)",
        )
    if keys_from_config is not None:
        model = model_of(keys_from_config, path)
        brings = _settings(keys_from_config) if keys_from_config else {}
        brings |= {NAME: model.config} if keys_from_config else {}  # a folder gets the config that its names are of
        lists = [model.own, *([model.saved] if model.saved else [])]
        return ExportRequest(
            lists, [model.config], brings, is_model=bool(keys_from_config) and options.only is not None
        )
    if like is not None:
        return _wanted_like(like, options)
    if all_names:
        return ExportRequest()
    if names is None:
        return ExportRequest(brings=_settings_beside(path), is_model=True)
    if isinstance(names, os.PathLike):
        file = os.fspath(names)
        reads = [] if file == STANDARD_INPUT else [file]
        return ExportRequest([NamedShapes(_shapes(read_names(file)), with_firsts(options.ties))], reads)
    return ExportRequest([NamedShapes(_shapes(names), with_firsts(options.ties))])


def _settings(config: Path) -> dict[str, str]:
    """{name: file} of a tokenizer and other settings, where a folder is given and not its config alone."""
    from paramtool.commands._export_model import settings_of

    return settings_of(os.fspath(config)) if is_folder(config) else {}


def _settings_beside(path: Path) -> dict[str, str]:
    from paramtool.commands._export_model import settings_beside

    return settings_beside(path)


def _wanted_like(like: Path, options: ExportOptions) -> ExportRequest:
    """The names of another checkpoint."""
    other = formats.read(like, allow_class=options.allow_class, allow_unknown=options.allow_unknown)
    section, shapes = _names_like(other, options.like_only)
    if not shapes:
        raise UsageError(f"{other.files[0].path}: holds no tensor, so it names none to export; expected a checkpoint")
    return ExportRequest(
        [NamedShapes(shapes, with_firsts(options.ties))],
        [file.path for file in other.files],
        section=section,
        advice="; --like-only SECTION takes the names of one section" if other.sections and section is None else "",
    )


def _shapes(names: Collection[str]) -> Shapes:
    """Names with the shapes that a mapping gives them: of arrays, or as they are."""
    if not isinstance(names, Mapping):
        return dict.fromkeys(names)
    shapes = {name: getattr(value, "shape", value) for name, value in names.items()}
    return {name: None if shape is None else tuple(map(int, shape)) for name, shape in shapes.items()}


def _names_like(other: Checkpoint, only: str | None) -> tuple[str | None, Shapes]:
    """The names of another checkpoint with their shapes, and the section that they are of, if of one."""
    hint = "--like-only SECTION takes the names of one; in Python like_only=..."
    only = select.model_section(other, hint) if only is None else only
    part = other if only is None else select.section(other, only)
    return only, {name: e.value.shape if isinstance(e.value, View) else None for name, e in part.entries.items()}
