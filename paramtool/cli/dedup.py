"""`paramtool dedup`: every byte once, every name recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _completion, _render
from paramtool.cli._display import most
from paramtool.cli._options import (
    ALIGN,
    EACH,
    FORMAT,
    MAX_SHARD_SIZE,
    MEMORY,
    OBJECTS,
    ONLY,
    WEIGHTS,
    WRITING,
    Row,
    command_line,
)
from paramtool.cli._render import MANY, every, listed, rest
from paramtool.cli._text import (
    BESIDE,
    FILE,
    NEXT,
    OUTPUT,
    load_line,
    named,
    plural,
    size,
    verify_line,
    wrapped,
)
from paramtool.cli._written import beside, checked, each_set, head, physical, weakest
from paramtool.commands import dedup as dedup_command
from paramtool.commands.dedup import Deduped
from paramtool.commands.inspect import parameter
from paramtool.errors import leading
from paramtool.formats.object_tree import sections
from paramtool.model.alias import Alias
from paramtool.passes import select

if TYPE_CHECKING:
    from paramtool.commands.dedup_many import Family


@command_line(
    dedup_command.dedup,
    click.argument("ckpt", type=FILE, nargs=-1, required=True),
    common="output keep only ties max_shard_size min_equal_bytes derive_casts config dry_run force",
    codes="0 fine, 2 usage, 3 bad file, 4 unsafe file, 6 the format cannot hold it, 7 output.",
    output=Row(f"{OUTPUT}  Several inputs need a folder.  [default: <stem>.dedup.safetensors beside CKPT{BESIDE}]"),
    keep=Row(
        "Which of the names that share bytes owns them: the first or the last in the file, or the one that "
        "matches GLOB (as in fnmatch).",
        "first|last|GLOB",
        _completion.names,
    ),
    weights=WEIGHTS,
    each=EACH,
    only=ONLY,
    ties=Row(
        "Record NAME, which CKPT omits, as another name of the tensor OTHER.  Repeatable.",
        "NAME=OTHER",
        _completion.names,
    ),
    max_shard_size=MAX_SHARD_SIZE,
    format=FORMAT,
    align=ALIGN,
    share_renamed=Row(
        "For folders and several inputs: also share equal "
        "bytes under different names.  Programs without paramtool then miss these names."
    ),
    equal=Row("Do not search for equal bytes under different names."),
    min_equal_bytes=Row("Do not deduplicate equal tensors that are smaller than this."),
    across_roles=Row("Deduplicate across roles: model weights, optimizer state, EMA copies and buffers."),
    derive_casts=Row(
        "Do not store a tensor that is a cast of another, such as a bfloat16 copy; loading calculates it."
    ),
    fold_constants=Row("Store a tensor of one repeated value as that value."),
    memory=MEMORY,
    **OBJECTS,
    **WRITING,
)
def command(
    ckpt: tuple[str, ...], output: str | None, *, each: bool, **flags: Any,
) -> None:  # fmt: skip
    """Write a checkpoint that stores every byte once and records every name.

    \b
    $ paramtool dedup model.pt
    $ paramtool dedup training.pt --only model --keep '*embed*' -o model.safetensors
    $ paramtool dedup training.pt -o small.pt
    $ paramtool dedup base tuned-1 tuned-2 -o family
    $ paramtool dedup PIPELINE --each -o small
    """
    alone = {"--ties": flags["ties"], "--format": flags["format"], "--each": each}
    for flag, given in alone.items():
        if given and len(ckpt) > 1:
            raise click.BadParameter("takes one input", param_hint=flag)
    chosen = dedup_command.DedupOptions(**flags)
    if len(ckpt) > 1:
        if output is None:
            raise click.UsageError("several inputs need an output folder: -o DIR")
        from paramtool.commands.dedup_many import dedup_family

        family = dedup_family(ckpt, output, chosen, share_renamed=chosen.share_renamed, progress=_render.progress)
        _render.report(family, _family_rows(family), family.warnings)
        return
    if chosen.share_renamed and not os.path.isdir(ckpt[0]):
        raise click.BadParameter("needs a folder or several inputs", param_hint="--share-renamed")
    if each:
        together = dedup_command.dedup_each(ckpt[0], output, chosen, progress=_render.progress)
        each_set(together, _rows, _flag)
        return
    found = dedup_command.dedup(ckpt[0], output, chosen, progress=_render.progress)
    _render.report(found, _rows(found), found.warnings)


def _rows(found: Deduped) -> _render.Rows:
    yield head(found, "dedup")
    groups = list(found.graph.groups())
    stored = f"{plural(len(found.plan.order), 'name')} on {plural(len(found.plan.targets), 'stored tensor')}"
    yield ("size", _gained(found, groups))
    yield from physical(found, found.nbytes_after)
    yield ("names", stored, *checked(found))
    for owner, members in groups[: most(MANY)]:
        # What is stored, and a row for each other name of it: the same memory, or equal bytes that part on load.
        sets = {member.alias_set for member in members}
        own = next((one.alias_set for one in members if one.name == owner), "") or next(
            (one.alias_set for one in members if one.evidence != "content"), members[0].alias_set
        )
        is_span = owner in found.graph.anonymous
        what = f"{plural(len(members), 'window')} on one span" if is_span else named(owner)
        yield ("shared" if len(sets) == 1 else "equal", what, size(found.graph.owners[owner].nbytes))
        constants = {name for equal in found.equal or () if equal.constant for name in equal.names}
        others = []
        for one in members:
            relation = "" if (way := found.graph.relation(one)) == "same" else f", {way}"
            kind = ", constant" if one.name in constants else ""
            how = "same memory" if one.alias_set == own else f"equal bytes{kind}, stored once, separate on load"
            others += [(f"  {named(one.name)}", f"{how}{relation}")] if one.name != owner else []
        yield from listed("", others, "name")
    yield from rest("shared", groups, "group")
    yield from _derived(found)
    roles = {name: entry.role for name, entry in found.checkpoint.entries.items()}
    state = sum(one.nbytes for one in found.plan.targets if roles.get(one.name) == "optimizer")
    if 2 * state > found.plan.nbytes and any(section.name == "model" for section in found.checkpoint.sections):
        yield ("note", f"{size(state)} of it are an optimizer's state, which --only model leaves out")
    for names in found.tied:
        yield ("tied", ", ".join(names), "equal, stored once: config.json ties them, so from_pretrained finds them")
    if found.repeated_nbytes:
        why = (
            "torch would tie names that are only equal"
            if found.format == "torch"
            else "so that programs without paramtool find every name; --share-renamed stores them once"
        )
        yield ("equal", f"{size(found.repeated_nbytes)} stored again", why)
    if found.unused_nbytes:
        yield ("unused", size(found.unused_nbytes), "used by no tensor, left behind")
    yield from beside(found.sidecars, found.left_out, found.changed, found.needs)
    if found.written and found.format == "torch":
        yield ("load it", f"torch.load({found.output!r}, weights_only={not found.needs})", "mmap=True works too")
    elif found.written and any(parameter(*one) for one in found.checkpoint.entries.items()):
        section, inside = _where_in(found)
        line = load_line(found.output, inside, section, is_plain=not found.plan.aliases)
        yield ("load it", line, wrapped(select.wrapper(inside)))
    if found.written:
        yield (NEXT, verify_line(found.output, found.input, found.section, _flag(found)))


def _gained(found: Deduped, groups: Sequence[tuple[str, tuple[Alias, ...]]]) -> str:
    """The sizes before and after, and what makes the difference, or that nothing does."""
    before, after = found.nbytes_before, found.nbytes_after
    sizes = f"{size(before)} -> {size(after)}"
    is_shared = any(member.evidence == "content" for _, members in groups for member in members)
    if is_shared or found.unused_nbytes or found.plan.derived:
        change = 100 * (after - before) / max(before, 1)
        return f"{sizes} ({change:+.{0 if abs(change) < 99 else 1}f}%)"
    what = "what names share was stored once already" if groups else "no two names share bytes"
    return f"{sizes}, {'nothing to gain' if 20 * after > 19 * before else 'the container alone'}: {what}"


def _flag(found: Deduped) -> str:
    """What `verify` needs to know of an output that does not hold everything."""
    lacking = found.checkpoint.entries.keys() - set(found.plan.order)
    return weakest(bool(lacking) or not found.keeps_ties, found.keeps_objects)


def _where_in(found: Deduped) -> tuple[str, Sequence[str]]:
    """The section of the model, and the names in it."""
    names = found.plan.order
    section = next((section for section in sections(found.plan.objects) if section.role == "model"), None)
    if section is None:
        return "", names
    return section.name, [name.removeprefix(section.prefix) for name in names if name.startswith(section.prefix)]


def _derived(found: Deduped) -> _render.Rows:
    """What is not stored but calculated, and what could be."""
    done = found.plan.derived
    for name, how in islice(done.items(), most(MANY)):
        view, window = found.plan.names[name].window, how.window
        if window is None:
            yield ("constant", name, f"{size(view.nbytes)} stored as one value of {view.dtype.name}")
        else:
            lost = "nothing is lost" if how.lossless else "rounded to nearest even"
            yield ("cast", name, f"{view.dtype.name} of {window.storage} ({window.dtype.name}), {lost}",
                   f"{size(view.nbytes)}, calculated on load")  # fmt: skip
    yield from rest("derived", done, "tensor")
    if found.content is None or found.format != "safetensors":
        return
    casts = [match for match in found.content.matches if match.relation == "cast" and match.name not in done]
    if casts:
        saved = sum(found.graph.names[match.name].window.nbytes for match in casts)
        yield ("cast", leading([f"{match.name} (of {match.owner})" for match in casts], 4),
               f"a cast of another tensor: --derive-casts saves {size(saved)}")  # fmt: skip


# --- `paramtool dedup` of several inputs: a folder for each, with what they have in common once -----------------------


def _family_rows(found: Family) -> _render.Rows:
    yield (
        "dedup" if found.written else "dry run",
        f"{plural(len(found.members), 'checkpoint')} -> {found.output}",
    )
    inputs = (
        (
            f"{one.input} -> {one.folder}",
            f"{size(one.nbytes_before)} -> {size(one.nbytes_after)}",
            f"{size(one.shared_by_all)} shared by all, {size(one.shared_by_some)} by some, {size(one.own)} own",
        )
        for one in found.members
    )
    yield from listed("input", inputs, "checkpoint")
    yield from every("left out", (f"{one.input}: {text}" for one in found.members for text in one.left_out))
    change = f"{100 * (found.nbytes_after - found.nbytes_before) / max(found.nbytes_before, 1):+.0f}%"
    yield ("size", f"{size(found.nbytes_before)} -> {size(found.nbytes_after)} ({change})", "shared files counted once")
    yield from physical(found, found.nbytes_after)
    together = sum(len(shard.files) > 1 for shard in found.shards)
    how = "hard links" if found.linked else "copied into each folder: this file system has no hard links"
    yield ("files", plural(len(found.shards), "shard"), f"{together} of several inputs", *([how] if together else []))
    names = sum(member.names for member in found.members)
    yield ("names", plural(names, "name"), *checked(found))
    if found.renamed_nbytes and found.share_renamed:
        yield ("renamed", f"{size(found.renamed_nbytes)} under other names are only in the record",
               "programs without paramtool miss these names")  # fmt: skip
    elif found.renamed_nbytes:
        yield ("not done", f"{size(found.renamed_nbytes)} are equal under different names",
               "--share-renamed stores them once, for paramtool alone; config.json ties one folder only")  # fmt: skip
    if found.written:
        first = found.members[0]
        yield ("load it", load_line(first.folder, [f"{first.wrapper}weight"]), wrapped(first.wrapper))
        yield (NEXT, verify_line(first.folder, first.input, first.section))
