"""The part of a checkpoint that has the names that are wanted, and what it lacks of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from paramtool.commands.config_model import NamedShapes, Shapes
from paramtool.commands.name_lists import with_firsts
from paramtool.commands.sections import section_of
from paramtool.errors import PlanError, UsageError, listed, plural
from paramtool.formats.record.moved import carried_metadata
from paramtool.lazy_dataclass import dataclass
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.storage import Constant
from paramtool.model.view import View
from paramtool.passes import renaming, select, suggest
from paramtool.passes.config_ties.patterns import tied_advice
from paramtool.passes.renaming import RenamingRule

if TYPE_CHECKING:
    from paramtool.commands.export import ExportOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPart:
    """The part of a checkpoint that has the names of one list."""

    wanted: NamedShapes
    section: str | None
    checkpoint: Checkpoint
    """The section, or the whole."""
    old: Mapping[str, str]
    """{name after the rules: name in `checkpoint`}."""
    entries: Mapping[str, Entry]
    """{wanted name: its entry}; a name that is missing takes one that it is tied to."""
    missing: list[str]
    tied: Mapping[str, str]
    """{wanted name that is missing: the name, after the rules, that it is tied to}"""
    left_out: tuple[str, ...] = ()
    """Tensors that follow from others, for people."""


def part_with(whole: Checkpoint, options: ExportOptions, wanted: NamedShapes | None) -> ExportedPart:
    """Where the names that are wanted stand; None for all names."""
    rules = [rule if isinstance(rule, RenamingRule) else renaming.parse(rule) for rule in options.rename]
    section = options.only
    if section is None and wanted is not None and not options.prefix and not rules:
        section = select.section_for(whole, wanted.shapes)
    checkpoint = whole if section is None else section_of(whole, section)
    old = renaming.renamed(checkpoint.entries, options.prefix, rules)
    wanted = wanted or NamedShapes(dict.fromkeys([*old, *(options.ties or ())]), with_firsts(options.ties))
    ties, partners = wanted.ties, dict[str, str]()
    for name in wanted.shapes:
        if name in old:
            partners.setdefault(ties.get(name, name), name)
    sources = {name: name if name in old else partners.get(ties.get(name, name)) for name in wanted.shapes}
    return ExportedPart(
        wanted=wanted,
        section=section,
        checkpoint=checkpoint,
        old=old,
        entries={name: checkpoint.entries[old[source]] for name, source in sources.items() if source is not None},
        missing=[name for name, source in sources.items() if source is None],
        tied={name: source for name, source in sources.items() if source not in (None, name)},
    )


def is_other_model(part: ExportedPart) -> bool:
    """Whether the names that are written are not those of the input, so that its optimizer is of other parameters."""
    stored = alias.build(part.checkpoint, parts=False).names
    groups = {one.alias_set for one in stored.values()}
    written = {stored[part.old[name]].alias_set for name in part.entries if part.old.get(name) == name}
    return any(part.old.get(name, name) != name for name in part.entries) or groups != written


def metadata_of(part: ExportedPart) -> Mapping[str, str]:
    """The metadata of an export: its record of parts has no tensor that is not there, and no dialect of other names."""
    whole = part.checkpoint
    names = {part.old.get(new, new): new for new in part.entries}
    stored = [name for name, entry in whole.entries.items() if entry.link is None or not entry.link.owner]
    is_same = all(names.get(name) == name for name in stored)
    return carried_metadata(whole.files[0].path, whole.metadata, names, keeps_dialect=is_same)


def stored_apart(entries: Mapping[str, Entry], ties: Mapping[str, str]) -> Iterator[str]:
    """Names that the variant ties and the file holds as two tensors: which of them a loader takes is its own choice."""
    for name, first in ties.items():
        if name in entries and first in entries and entries[name].value != entries[first].value:
            yield (
                f"the model ties {name!r} to {first!r}, and the file stores them separately; both are written, and a "
                "loader that ties them keeps one (`variants` compares them)"
            )


def missing_names(where: str, missing: list[str], wanted: int, names: Mapping[str, str], *, more: str) -> UsageError:
    """What is missing, what it could have meant, and the flag that would find it."""
    lines = [
        f"{name!r}" + (f"; it has {' and '.join(map(repr, found))}" if (found := suggest.alike(name, names)) else "")
        for name in missing[:10]
    ]
    advice = suggest.padded(missing, names) or suggest.advice(missing, names) or tied_advice(missing)
    return UsageError(
        listed(f"{where}: lacks {len(missing)} of {plural(wanted, 'name')}:", lines, len(missing) - len(lines)),
        hint=(advice or "`inspect --tensors` lists what it has") + more,
    )


def check_shapes(where: str, chosen: Checkpoint, shapes: Shapes, max_bytes: int) -> None:
    wrong = []
    for name, shape in shapes.items():
        value = chosen.entries[name].value
        if not isinstance(value, View):
            continue
        if shape is not None and value.shape != shape:
            wrong.append(f"{name!r}: has shape {list(value.shape)}; wanted {list(shape)}")
        backing = chosen.storages[int(value.storage)].backing
        held = len(backing.element) if isinstance(backing, Constant) else value.byte_stop - value.byte_start
        if value.nbytes > max(max_bytes, held):
            wrong.append(
                f"{name!r}: is expanded and would grow to {value.nbytes} bytes; --max-bytes allows {max_bytes}"
            )
    if wrong:
        raise PlanError(listed(f"{where}: {plural(len(wrong), 'tensor does', 'tensors do')} not fit:", wrong))
