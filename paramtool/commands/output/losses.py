"""What an output does not hold of its source, and what other programs do not find in it, for people."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.commands._differences import following
from paramtool.commands._value_facts import of_folder
from paramtool.commands.output.destination import Destination
from paramtool.commands.output.options import ObjectOptions
from paramtool.commands.output.sidecar_checks import link_warnings
from paramtool.commands.output.writer import Fitted, Keeping, Writer
from paramtool.commands.output.writers import writer_for
from paramtool.commands.progress import Path
from paramtool.commands.rearrangement import config_beside
from paramtool.errors import UnsafeError, leading, listed, some
from paramtool.formats.policy import format_unknown
from paramtool.formats.safetensors import write as safetensors
from paramtool.grouping import grouped
from paramtool.model import alias, objects
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Unreadable
from paramtool.model.display import size
from paramtool.model.plan import Plan
from paramtool.model.view import View


def allow(checkpoint: Checkpoint, output: Path | None = None) -> list[str]:
    """Warnings for what the output cannot keep as it is; UnsafeError for a tensor that only a call would make.

    These are unknown names that were allowed, or hold data, and ties that a pending sign is in the way of.
    """
    where = checkpoint.path
    needed = [u for u in checkpoint.unknown if u.needed_by]
    if needed:
        raise UnsafeError(
            listed(
                f"{where}: tensors cannot be read without running code from the pickle, which is never done:",
                [format_unknown(one) for one in needed],
            ),
            hint="no option helps; `inspect` shows the rest of the file",
        )
    called = [u for u in checkpoint.unknown if u.called]
    held = [u.path for u in checkpoint.unknown if not u.called]
    warnings = [f"called by the source, not run, and left out: {u.path}{u.arguments}" for u in called]
    if held and writer_for(output or "").holds.record:
        warnings.append(f"objects of unknown classes are kept as plain data, without their class: {', '.join(held)}")
    return [*warnings, *_separated_warnings(checkpoint)]


def _separated_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Ties that break because a conjugation or negation is carried out."""
    where = checkpoint.path
    for text in following(alias.parted(checkpoint)):
        yield (
            f"{text} in {where}; conjugated and negated views are stored as separate tensors, "
            "with conjugation and negation applied"
        )


def other_sections(whole: Checkpoint, only: str | None) -> Iterator[str]:
    """What of a checkpoint is not in one section, for people."""
    others = [section.name for section in whole.sections if section.name != only]
    if only is not None and others:
        yield f"section{'s' if len(others) > 1 else ''} {', '.join(others)}"
    if only is not None and isinstance(whole.objects, objects.Mapping):
        loose = [objects.word(key) for key, child in whole.objects.items if not any(objects.tensor_names(child))]
        if loose:
            yield f"objects outside of the section: {some(loose, MAX_LOST)}"


def left_out(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    """The tensors of a checkpoint that are not in an output, for people."""
    kept = set(plan.order)
    for name, entry in checkpoint.entries.items():
        if name not in kept:
            yield f"tensor {name!r}: {why_not_plain(entry)}"


def keeping(options: ObjectOptions) -> Keeping:
    """What becomes of objects; whoever allows unknown calls has their results, and objects beside them, left out."""
    return Keeping(options.skip_unsupported or options.allow_unknown, options.plain, options.strict)


def lost_warnings(fitted: Fitted, output: str) -> Iterator[str]:
    """What the output cannot hold and nobody asked to leave out; the first line of a report."""
    if fitted.lost:
        shown = leading(fitted.lost, MAX_LOST, between="; ")
        yield f"{output} does not hold {shown}; -o NAME.pt does, and --strict makes this an error"


MAX_LOST = 5


def why_not_plain(entry: Entry) -> str:
    """What an entry is that keeps it out of an output."""
    match entry.value:
        case View(dtype=dtype):
            return dtype.name
        case Compound(kind=kind):
            return kind
        case NoData(why=why):
            return why
        case Unreadable(needs=needs):
            return f"needs {needs}"


OF_RANKS = ("_optim_states.pt", "zero/optimizer_state.pt")
"""How the files of an optimizer end in folders of DeepSpeed (`formats/deepspeed/`)."""


def stored_again(plan: Plan, why: str) -> Iterator[str]:
    """Names that are one tensor in the source and one each in the output, for people."""
    copied = (one for one in plan.targets if len(one.copies) == 1 and one.copies[0].is_plain and one.nbytes)
    read = ((one.copies[0].source, one) for one in copied)
    windows = (((view.storage, view.byte_start, view.byte_stop, view.nbytes), one) for view, one in read)
    same = [group for group in grouped(windows).values() if len(group) > 1]
    if same:
        more = size(sum(one.nbytes for group in same for one in group[1:]))
        names = leading([" = ".join(one.name for one in group) for group in same], between="; ")
        yield f"which names are one tensor: {names}; {more} more are stored, since {why}"


def name_warnings(where: Destination, source: Checkpoint) -> Iterator[str]:
    """A name inside a folder that its loader does not look for, links that lead nowhere, codes without their config."""
    for name in of_folder(source) if not where.is_folder else ():
        if not config_beside(where.path, name):
            yield f"{where.path} does not hold how its values are read, which {name} says; a folder as output does"
    yield from link_warnings(where.sidecars)
    yield from where.notes
    if where.is_folder and where.name.stem.endswith("_model_states"):  # deepspeed/runtime/engine.py, _get_ckpt_name
        yield f"{where.path}: DeepSpeed resumes from {where.name.stem}.pt alone; it does not read {where.name.file}"
    elif where.is_folder and any(name.endswith(OF_RANKS) for name in where.read):
        yield f"{where.path}: DeepSpeed resumes from the files of its ranks; it does not read {where.name.file}"


def flat_pair_warnings(plan: Plan, writer: Writer) -> list[str]:
    """Aliases for which the user's own metadata leaves no flat pair."""
    taken = safetensors.taken_flat_pairs(plan) if writer.holds.record else ()
    return [f"metadata has the key {name!r} already, so no flat pair was written for this alias" for name in taken]
