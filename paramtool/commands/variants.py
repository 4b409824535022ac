"""Which variants of a model can load a checkpoint, before anyone loads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from paramtool import dialects, formats
from paramtool.commands.name_lists import STANDARD_INPUT, read_names
from paramtool.commands.progress import Advance, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.compare.changes import agree, largest
from paramtool.engine.read.source import Source
from paramtool.errors import LayoutError, UsageError, internal
from paramtool.formats import foreign, hf_config, scan, sniff, table
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import is_index
from paramtool.formats.judging import judging
from paramtool.formats.record import parts
from paramtool.formats.sniff import INDEX_SUFFIX
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.display import Displayed
from paramtool.passes import select
from paramtool.passes.compat.check import Apart, RowClash, TieQuestion, Verdict, judge
from paramtool.passes.compat.wanted import Wanted, wanted_by

if TYPE_CHECKING:
    from paramtool.model.checkpoint import Checkpoint
    from paramtool.passes.compat.check import TieQuestion, Verdict
    from paramtool.passes.parts.recorded import SaidRows


@frozen(repr=False)
class Variant(Displayed, Verdict):
    """What one variant makes of a checkpoint."""

    against: str = ""
    """The path that was given, or the class of a model."""
    kind: str = ""
    """`names`, `checkpoint`, `config` or `model`."""
    section: str | None = None
    """The section of the checkpoint that the variant would load; None for the whole."""
    convert_to: str = ""
    """The dialect that `convert` gives the checkpoint so that the variant loads it; empty if it is none."""
    warnings: tuple[str, ...] = ()
    """What is told of the folders of the checkpoint and of the variant."""

    _facts = "`loads`"

    @property
    def verdict(self) -> str:
        """`loads`, `loads through aliases`, `cannot load`; `not judged` of one with an `error`."""
        if not self.loads:
            return "not judged" if self.error else "cannot load"
        return "loads through aliases" if self.through else "loads"

    _members = (
        "against kind section verdict names lacks shapes types rows apart(name other difference=shown) through filled "
        "unused advice convert_to warnings+ error?"
    )


@frozen
class Variants:
    """The document of `variants`."""

    path: str
    variants: tuple[Variant, ...]
    _schema = "variants/1"


@reading
@judging("path", "against")
def variants(
    path: Path,
    against: Sequence[Path | Asked] = (),
    *,
    only: str | None = None,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> tuple[Variant, ...]:
    """What variants of a model make of a checkpoint, before anyone loads it: loads, through aliases, or why not.

    Each of `against` is a list of names (a text file, one a line), any checkpoint that can be read, or a config.json of
    transformers, whose model is built on the meta device, without weights and without downloading anything; a folder is
    the checkpoint in it, or the config where it holds no weights.  `only` names the section of the checkpoint to load;
    without it, each variant takes the one whose names it wants.  Tensors are read only where a variant ties what the
    file holds twice.  `paramtool.torch.variants` takes models themselves.

    UsageError where nothing is asked, where a list holds no name, and where a config is asked for and transformers is
    not there; FormatError where a file or a config is damaged, contradicts itself or cannot be built.  Of several
    variants the others are judged all the same, and such an error is in `Variant.error`.  UnsafeError, `allow_class`
    and `allow_unknown` as of `read`, for checkpoints among `against`, too.
    """
    if not against:
        raise UsageError(
            "nothing says which variants: a file of names, a checkpoint, a config.json, or a folder with one of these",
            hint=f"--against OTHER, as in `paramtool variants {quote(os.fspath(path))} --against OTHER`",
        )

    def judged_by(one: Path | Asked) -> Judged:
        asked = one if isinstance(one, Asked) else ask(one, allow_class, allow_unknown)
        if not asked.wanted and asked.judge is None:
            raise UsageError(f"{asked.against}: lists no tensor names; expected a checkpoint or a list of names")
        # A verdict with the command after which the variant loads, where one undoes a fusion or changes the dialect
        judged = _best(whole, asked, only)
        variant, part, questions = judged
        if variant.loads:
            return judged
        from paramtool.commands.loads_after import CONVERT, loads_after, loads_with_rows, text

        wanted = (asked.wanted, asked.saved)
        line = loads_with_rows(part, wanted, variant.rows) if variant.rows else loads_after(part, wanted)
        if not line:
            by_names = asked.judge is None and variant.lacks and not variant.advice
            return (replace(variant, advice=BY_NAMES), part, questions) if by_names else judged
        target = line.removeprefix(CONVERT) if line.startswith(CONVERT) else ""
        return replace(variant, convert_to=target, advice=text(line)), part, questions

    opened = formats.opened(path, allow_class=allow_class, allow_unknown=allow_unknown)
    whole = opened.checkpoint
    judged: list[Judged] = []
    for one in against:
        try:
            judged.append(judged_by(one))
        except Exception as error:
            if len(against) == 1:
                raise
            label = one.against if isinstance(one, Asked) else os.fspath(one)
            judged.append((Variant(0, against=label, error=internal(error)), whole, ()))
    total = sum(view.nbytes for _, _, questions in judged for question in questions for view in question.found)
    found = []
    with progress("compare", total) as advance:
        for variant, part, questions in judged:
            if questions:
                with Source(part) as source:
                    variant = replace(variant, apart=tuple(answered(source, questions, advance)))
            found.append(replace(variant, warnings=(*opened.told, *variant.warnings)))
    return tuple(found)


Judged = tuple[Variant, Checkpoint, tuple[TieQuestion, ...]]
BY_NAMES = (
    "names are compared; the code of modules may take more, such as names of older versions: "
    "paramtool.torch.variants(model, FILE) asks it"
)
AS_SAVED = (
    "its names are those that save_pretrained writes: from_pretrained and load_model turn them into the model's own"
)


def _best(whole: Checkpoint, asked: Asked, only: str | None) -> Judged:
    """The verdict on a model's own names, or on those it is saved under, where the file has more of these."""
    own = _judged(whole, asked, asked.wanted, only)
    if own[0].loads or not asked.saved:
        return own
    saved = _judged(whole, asked, asked.saved, only)
    if len(saved[0].lacks) >= len(own[0].lacks):
        return own
    advice = f"{AS_SAVED}; {saved[0].advice}" if saved[0].advice else AS_SAVED
    return replace(saved[0], advice=advice), *saved[1:]


def _judged(whole: Checkpoint, asked: Asked, wanted: Mapping[str, Wanted], only: str | None) -> Judged:
    section = select.section_for(whole, wanted) if only is None else only
    part = whole if section is None else section_of(whole, section)
    ask_it = asked.judge is not None and wanted is asked.wanted
    verdict, questions = asked.judge(part, whole) if ask_it else judge(wanted, part, whole)  # type: ignore[misc]
    if asked.rows is not None:
        verdict = replace(verdict, rows=clashes(part, wanted, asked.rows, asked.config))
    facts = {field.name: getattr(verdict, field.name) for field in fields(Verdict)}
    found = Variant(**facts, against=asked.against, kind=asked.kind, section=section, warnings=asked.told)
    return found, part, questions


def answered(
    source: Source, questions: Sequence[TieQuestion], advance: Advance = lambda nbytes: None
) -> Iterator[Apart]:
    """The questions that bytes answer with no, each with the largest difference."""
    for question in questions:
        if not agree(source, question.found, question.places):
            a, b = question.found
            measured = largest(source, a, source, b) if question.places[0] == question.places[1] else None
            yield Apart(question.name, question.other, measured)
        advance(sum(view.nbytes for view in question.found))


# --- The variant that a path stands for: a list of names, a checkpoint, or the config of a model ---------------------


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


def ask(path: Path, allow_class: Sequence[str] = (), allow_unknown: bool = False) -> Asked:
    """The variant that a path stands for, told by content.

    A folder is the checkpoint in it, or its config.json where it holds no weights.  `-` is names on standard input.
    UsageError where there is no name, or a config and no transformers; errors of reading as of `formats.read`.
    """
    where = os.fspath(path)
    if where == STANDARD_INPUT or _is_names(where):
        return Asked(where, "names", {name: Wanted(name) for name in read_names(where)})
    if config := _config(where):
        from paramtool.commands.models_of_transformers import wanted

        return Asked(where, "config", *wanted(config), rows={}, config=hf_config.whole(config))
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
    from paramtool.parts.config_facts import KnownModel
    from paramtool.passes.parts.recorded import rows_said

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
    from paramtool.passes.parts import recorded

    both = [name for name in names if name in checkpoint.entries]
    return tuple(RowClash(*one) for one in recorded.clashes(mine, theirs, both))
