"""`paramtool dedup`: every byte once, every name recorded."""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING, Any

from paramtool.cli import _render
from paramtool.cli._options import BESIDE, EACH, OUTPUT, Row, command_line
from paramtool.cli._render import MANY, NEXT, Rows, Texts, current, every, listed, most, rest
from paramtool.cli._written import beside, checked, head, physical, report, verify_line, weakest
from paramtool.cli.inspect import shared
from paramtool.commands import dedup as dedup_command
from paramtool.commands.dedup import Deduped
from paramtool.commands.inspect import parameter
from paramtool.errors import UsageError, plural
from paramtool.formats.object_tree import sections
from paramtool.model.display import size
from paramtool.passes import select

if TYPE_CHECKING:
    from paramtool.commands.dedup_many import Family


@command_line(
    dedup_command.dedup,
    "CKPT...",
    common="output keep only ties max_shard_size min_equal_bytes derive_casts config dry_run force",
    codes="0 fine, 2 usage, 3 bad file, 4 unsafe file, 6 the format cannot hold it, 7 output.",
    output=Row(f"{OUTPUT}  Several inputs need a folder.  [default: <stem>.dedup.safetensors beside CKPT{BESIDE}]"),
    keep=Row(
        "Which of the names that share bytes owns them: the first or the last in the file, or the one that "
        "matches GLOB (as in fnmatch).",
        "first|last|GLOB",
    ),
    each=EACH,
    ties=Row(
        "Record NAME, which CKPT omits, as another name of the tensor OTHER.  Repeatable.",
        "NAME=OTHER",
    ),
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
)
def command(ckpts: tuple[str, ...], output: str | None, *, each: bool, **flags: Any) -> None:
    """Write a checkpoint that stores every byte once and records every name.

    \b
    $ paramtool dedup model.pt
    $ paramtool dedup training.pt --only model --keep '*embed*' -o model.safetensors
    $ paramtool dedup training.pt -o small.pt
    $ paramtool dedup base tuned-1 tuned-2 -o family
    $ paramtool dedup PIPELINE --each -o small
    """
    options = dedup_command.DedupOptions(**flags)
    if len(ckpts) > 1:
        if each:
            raise UsageError("--each takes one folder")
        from paramtool.commands.dedup_many import dedup_family

        _render.report(dedup_family(ckpts, output or "", options, progress=_render.progress), _family_rows)
        return
    run: Any = dedup_command.dedup_each if each else dedup_command.dedup
    report(run(ckpts[0], output, options, progress=_render.progress), _rows, _flag)


def _rows(found: Deduped) -> Rows:
    yield head(found, "dedup")
    stored = f"{plural(found.plan.order, 'name')} on {plural(found.plan.targets, 'stored tensor')}"
    yield "size", _gained(found)
    yield from physical(found, found.nbytes_after)
    yield "names", stored, *checked(found)
    yield from shared(found)
    yield from _derived(found)
    roles = {name: entry.role for name, entry in found.checkpoint.entries.items()}
    state = sum(one.nbytes for one in found.plan.targets if roles.get(one.name) == "optimizer")
    if 2 * state > found.plan.nbytes and any(section.name == "model" for section in found.checkpoint.sections):
        yield "note", f"{size(state)} of it are an optimizer's state, which --only model leaves out"
    for names in found.tied:
        yield "tied", ", ".join(names), "equal, stored once: config.json says that the model ties them"
    if found.repeated_nbytes:
        why = (
            "torch would tie names that are only equal"
            if found.format == "torch"
            else "so that programs without paramtool find every name; --share-renamed stores them once"
        )
        yield "equal", f"{size(found.repeated_nbytes)} stored again", why
    if found.unused_nbytes:
        yield "unused", size(found.unused_nbytes), "used by no tensor, left behind"
    yield from beside(found)
    if not found.written:
        return
    if found.format == "torch":
        yield "load it", f"torch.load({found.output!r}, weights_only={not found.needs})", "mmap=True works too"
    elif any(parameter(*one) for one in found.checkpoint.entries.items()):
        # The section of the model, and the names in it.
        model = next((one for one in sections(found.plan.objects) if one.role == "model"), None)
        prefix = model.prefix if model else ""
        inside = [name.removeprefix(prefix) for name in found.plan.order if name.startswith(prefix)]
        yield load_it(found.output, inside, model.name if model else "", is_plain=not found.plan.aliases)
    if found.unused_nbytes or found.plan.derived or found.plan.aliases or found.changed or current.verbose:
        yield NEXT, verify_line(found, _flag(found))


NOTHING = "nothing gained"


def _gained(found: Deduped) -> str:
    """The sizes before and after with what makes the difference."""
    before, after = found.nbytes_before, found.nbytes_after
    sizes = f"{size(before)} -> {size(after)}"
    if found.section:
        return f"{sizes}, section {found.section} alone"
    is_shared = "content" in (one.evidence for one in found.graph.names.values())
    if is_shared or found.unused_nbytes or found.plan.derived:
        change = 100 * (after - before) / before
        return f"{sizes} ({change:+.{0 if abs(change) < 99 else 1}f}%)"
    what = "what names share was stored once already" if found.plan.aliases else "no two names share memory"
    what = "equal bytes stay, each under its name" if found.repeated_nbytes else what
    return f"{sizes}, {NOTHING if 20 * after > 19 * before else 'the container alone'}: {what}"


def _flag(found: Deduped) -> str:
    """What `verify` needs to know of an output that does not hold everything."""
    return weakest(found, found.checkpoint.entries.keys() - set(found.plan.order))


def _derived(found: Deduped) -> Rows:
    """What is not stored but calculated, and what could be."""
    done = found.plan.derived
    for name, how in islice(done.items(), most(MANY)):
        view, window = found.plan.names[name].window, how.window
        if window is None:
            yield "constant", name, f"{size(view.nbytes)} stored as one value of {view.dtype.name}"
        else:
            lost = "nothing is lost" if how.lossless else "rounded to nearest even"
            yield ("cast", name, f"{view.dtype.name} of {window.storage} ({window.dtype.name}), {lost}",
                   f"{size(view.nbytes)}, calculated on load")  # fmt: skip
    yield from rest("derived", done, "tensor")
    if found.content is None or found.format != "safetensors":
        return
    casts = [match for match in found.content.matches if match.relation == "cast" and match.name not in done]
    saved = size(sum(found.graph.names[match.name].window.nbytes for match in casts))
    of = [f"{match.name} (of {match.owner})" for match in casts]
    yield "cast", of, f"a cast of another tensor: --derive-casts saves {saved}"


# --- `paramtool dedup` of several inputs: a folder for each, with what they have in common once -----------------------


def _family_rows(found: Family) -> Rows:
    yield head(found, "dedup", source=plural(found.members, "checkpoint"))
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
    before, after = found.nbytes_before, found.nbytes_after
    is_gained = 20 * after < 19 * before
    gain = f" ({100 * (after - before) / max(before, 1):+.0f}%)" if is_gained else f", {NOTHING}"
    yield "size", f"{size(before)} -> {size(after)}{gain}", "shared files counted once"
    yield from physical(found, found.nbytes_after)
    together = sum(len(shard.files) > 1 for shard in found.shards)
    how = "hard links" if found.linked else "copied into each folder: this file system has no hard links"
    yield "files", plural(found.shards, "shard"), f"{together} of several inputs", *([how] if together else [])
    names = sum(member.names for member in found.members)
    yield "names", plural(names, "name"), *checked(found)
    if found.renamed_nbytes and found.share_renamed:
        yield ("renamed", f"{size(found.renamed_nbytes)} under other names are only in the record",
               "programs without paramtool miss these names")  # fmt: skip
    elif found.renamed_nbytes:
        yield ("not done", f"{size(found.renamed_nbytes)} are equal under different names",
               "--share-renamed stores them once, for paramtool alone; config.json ties one folder only")  # fmt: skip
    first = found.members[0]
    if found.written:
        yield load_it(first.folder, [f"{first.wrapper}weight"])
    if found.written and (is_gained or current.verbose):
        yield NEXT, verify_line(first, output=first.folder)


def load_it(path: str, names: Collection[str], only: str = "", *, is_plain: bool = False) -> Texts:
    """The row with the line of Python that loads a file, or a folder that is written, into a model.

    `names` are those of the model, in the section `only` of the file.

    PEFT gives the tensors of an adapter other names than its files have (`get_peft_model_state_dict`, 0.21).  It opens
    the folder itself where `is_plain` says that every name is stored.

    >>> load_it("a.safetensors", ["weight"])
    ('load it', "paramtool.torch.load_model(model, 'a.safetensors')", '')
    """
    from paramtool.commands.adapter_config import NAME

    is_folder, prefix = os.path.isfile(os.path.join(path, NAME)), select.wrapper(names)
    said = {"only": only, "prefix": prefix}
    more = "".join(f", {key}={value!r}" for key, value in said.items() if value)
    line = f"paramtool.torch.load_model(model, {path!r}{more})"
    if is_folder and is_plain:
        line = f"peft.PeftModel.from_pretrained(base, {path!r})"
    elif is_folder or (names and all(name.startswith("base_model.model.") for name in names)):
        line = f"peft.set_peft_model_state_dict(model, paramtool.torch.load_file({path!r}))"
    why = f"the names begin with {prefix}, as a wrapper saves them; the model is the one inside" if prefix else ""
    return "load it", line, why
