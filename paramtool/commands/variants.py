"""Which variants of a model can load a checkpoint, before anyone loads it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from paramtool import formats
from paramtool.commands.asked import Asked, Build, ask, clashes
from paramtool.commands.progress import Advance, Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.compare.difference import agree, largest
from paramtool.engine.read.source import Source
from paramtool.errors import UsageError, internal, refuse_string
from paramtool.formats.judging import judging
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.model.display import Displayed
from paramtool.passes import select
from paramtool.passes.compat.check import Apart, TieQuestion, Verdict, judge
from paramtool.passes.compat.wanted import Wanted


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
    against: Sequence[Path | Asked],
    *,
    only: str | None = None,
    build: Build | None = None,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> tuple[Variant, ...]:
    """What each variant makes of a checkpoint; tensors are read only where a variant ties what the file holds twice.

    A variant is a list of names (one a line), any checkpoint, or a config.json of transformers, for which `build` is
    needed; a folder is the checkpoint in it, or the config where it holds no weights.  `only` names the section of the
    checkpoint to load; without it, each variant takes the one whose names it wants.
    UsageError where nothing is asked, or a variant has no names; errors of reading as of `read`.  Of several variants
    the others are judged all the same, and such an error is in `Variant.error`.
    """
    refuse_string("against", against)
    if isinstance(against, os.PathLike):
        raise UsageError("against is one path", hint="a list: against=[...]")
    if not against:
        raise UsageError("no variant is given; expected one or more of against (--against NAMES|CKPT|config.json)")

    def judged_by(one: Path | Asked) -> Judged:
        asked = one if isinstance(one, Asked) else ask(one, build, allow_class, allow_unknown)
        if not asked.wanted and asked.judge is None:
            raise UsageError(f"{asked.against}: lists no tensor names; expected a checkpoint or a list of names")
        return _with_command(_best(whole, asked, only), asked)

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


def _with_command(judged: Judged, asked: Asked) -> Judged:
    """A verdict with the command after which the variant loads, where one undoes a fusion or changes the dialect."""
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
