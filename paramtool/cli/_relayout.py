"""What `convert`, `fuse` and `unfuse` share: flags, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _completion, _render
from paramtool.cli._display import most
from paramtool.cli._options import (
    ALIGN,
    EACH,
    MAX_SHARD_SIZE,
    OBJECTS,
    ONLY,
    WEIGHTS,
    WRITING,
    Row,
)
from paramtool.cli._render import every, rest
from paramtool.cli._text import (
    NEXT,
    plural,
    quoted,
    size,
    verify_line,
)
from paramtool.cli._written import beside, checked, each_set, head, physical, weakest
from paramtool.commands import relayout as relayout_command
from paramtool.commands.layouts import check_no_dialect
from paramtool.commands.optimizer_carry import lines
from paramtool.commands.relayout_options import RelayoutOptions
from paramtool.grouping import grouped
from paramtool.model.optimizer import TIED, UNTIED

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayouted import Relayouted

CODES = "0 fine, 2 usage, 3 bad file, 4 unsafe file, 5 does not fit the layout, 6 the format cannot hold it, 7 output."
MANY = 12
"""How many networks a report lists."""

OPTIONS: dict[str, Any] = {
    "spec": Row('Facts that the file does not state: "lstm layers=2 hidden=128 input=18 bidirectional", '
                '"qkv heads=32 kv_heads=8".', "WORDS"),
    "at": Row("Only this module, pattern of a module, or flat tensor.  Repeatable.  [default: all]", "MODULE",
              _completion.modules),
    "ignore": Row("Convert a network without these tensors beside it, such as 'rnn.ln_*'.  Repeatable.", "PATTERN",
                  _completion.names),
    "stack": Row("Join modules A and B as the layers of C, or with A=B,C split the layers of A.  Repeatable.",
                 "A,B=C"),
    "rename": click.option("--rename", multiple=True, metavar="OLD=NEW",
                           help="Rename module OLD to NEW; with a layout of parts, NEW is the name of the part or the "
                           "fused tensor OLD.  Repeatable."),
    "keep_split": Row("Also store what the conversion loses, so that converting back gives the same bytes."),
    "drop_kept": Row("Discard what an earlier --keep-split stored."),
    "layout_file": Row("Your own layouts (docs/add-a-layout.md).  Repeatable.", "MY.toml"),
    "weights": WEIGHTS, "each": EACH, "only": ONLY, "max_shard_size": MAX_SHARD_SIZE, "align": ALIGN,
    **OBJECTS,
    "optimizer_names": Row("Take the names of an optimizer's parameters from FILE, one line for each of its entries.",
                           "FILE"),
    "drop_optimizer": Row("Leave out the state of optimizers."),
    "untied_state": Row("What each of several parameters gets of the optimizer's state of the one that they were: all "
                        "of it, its share, nothing for all but the first, or one entry for all.", choices=UNTIED),
    "tied_state": Row("Whose optimizer's state is kept where two parameters become one.", choices=TIED),
    "new_config": Row("Copy this config.json, of the model that opens the output folder, in place of the input's, and "
                      "put the entries of an optimizer beside the weights in the order of its parameters.",
                      "CONFIG.JSON"),
    **WRITING,
}  # fmt: skip
"""What all three commands have."""


def _rows(found: Relayouted, command: str) -> _render.Rows:
    yield head(found, command)
    if found.as_is and found.typed is None:
        yield _stays(found)
    if found.rearranged is not None:
        yield from _rearranged(found.rearranged)
    for one in found.converted[: most(MANY)]:
        # One row for a network, and one for each change beside moving bytes.
        yield (
            "network",
            one.source.at or "(top)",
            f"{one.source.layout.name} -> {one.layout.name}",
            str(one.spec),
            "no copy: its parts are one run of bytes already" if one.is_run else "",
        )
        for change in one.changes:
            yield (change.kind, one.source.at or "(top)", change.what)
    yield from rest("network", found.converted, "network", MANY)
    yield from every("untied", (f"{name}  was {other}" for name, other in found.ties.untied.items()))
    yield from every("tied", (f"{name}  is {other}" for name, other in found.ties.tied.items()))
    yield from every("optimizer", lines(found.optimizer))
    yield from _casts(found)
    yield from beside(found.sidecars, found.left_out, found.changed, found.needs, found.made)
    if found.untouched:
        kept = ", and what they share" if found.keeps_ties and found.plan.aliases else ""
        yield ("unchanged", f"{plural(found.untouched, 'tensor' if found.as_is else 'other tensor')}{kept}")
    yield ("size", f"{size(found.nbytes_before)} -> {size(found.nbytes_after)}")
    yield from physical(found, found.nbytes_after)
    yield ("names", plural(len(found.plan.order), "name"), *checked(found))
    if found.written:
        line = verify_line(found.output, found.input, found.section, _flag(found))
        yield (NEXT, line if found.is_recorded else f"paramtool inspect {quoted(found.output)}")


APART = "separate tensors"
"""What parts are where no layout holds them."""


def _stays(found: Relayouted) -> _render.Row:
    """What a copy is, and what it could be converted to."""
    from paramtool.commands.layouts import convertible

    model = convertible(found.checkpoint)
    if model is None:
        return (
            "as it is",
            "--to LAYOUT would convert recurrent networks, --to DIALECT a model beside its config.json",
        )
    *targets, last = model.targets
    others = f"{', '.join(targets)} or {last}" if targets else last
    return ("dialect", f"{model.dialect} ({model.architecture}), unchanged; --to converts it to {others}")


def _rearranged(found: Rearrangement) -> _render.Rows:
    """What became of attention, gated MLPs and experts, and the facts that decided it."""
    if found.is_dialect:
        yield ("dialect", f"{found.source} -> {found.target}", f"{plural(found.renamed, 'tensor')} renamed")
    else:
        said = ", ".join(f"{layout} by {who}" for layout, who in found.said.items())
        modules = plural(len(found.groups), "module")
        yield ("layout", f"{found.source or APART} -> {found.target or APART}", modules, said)
    for what, tensors in (("split", found.split), ("joined into", found.joined)):
        if tensors:
            names = ", ".join(tensors[: most(2)]) + ", ..." * (len(tensors) > most(2))
            yield (what, plural(len(tensors), "tensor"), names)
    by_source = grouped((source, fact) for fact, source in found.facts.items())
    for source, facts in by_source.items():
        yield ("facts", " ".join(facts), source)


def _casts(found: Relayouted) -> _render.Rows:
    """What was cast, by types, with what that lost; what stays in float32, by reasons; what no rule is for."""
    if found.typed is None:
        return
    after = {target.name: target.dtype.name for target in found.plan.targets}
    pairs = grouped(((before, after[name]), name) for name, before in found.typed.casts.items())
    for (before, dtype), names in pairs.items():
        yield ("cast", f"{before} -> {dtype}", plural(len(names), "tensor"), _lost(found, names))
    if found.typed.dequantised:
        gone = sorted({name for others in found.typed.dequantised.values() for name in others})
        yield ("dequantised", plural(len(found.typed.dequantised), "tensor"), f"without {', '.join(gone)}")
    for name in found.typed.casts:
        if name in found.losses and (losses := found.losses[name]).overflow:
            yield ("overflow", name, f"{losses.overflow} of {losses.elements} no longer finite")
    reasons = grouped((why, name) for name, why in found.typed.kept.items())
    for why, names in reasons.items():
        yield ("float32", plural(len(names), "tensor"), ", ".join(names), why)
    yield from every("as it is", found.typed.left)


def _lost(found: Relayouted, names: list[str]) -> str:
    """The losses of several tensors together."""
    every = [found.losses[name] for name in names if name in found.losses]
    parts = [f"{sum(one.rounded for one in every)} of {plural(sum(one.elements for one in every), 'number')} rounded"]
    counted = {
        "to zero": sum(one.to_zero for one in every),
        "subnormal": sum(one.subnormal for one in every),
        "NaN before and after": sum(one.nan for one in every),
    }
    return ", ".join([*parts, *(f"{count} {what}" for what, count in counted.items() if count)])


def _flag(found: Relayouted) -> str:
    """What `verify` needs to know of an output that does not hold everything, or not under the same names."""
    renamed = any(one.at != one.source.at for one in found.converted)
    sources = found.of_networks
    if found.rearranged is not None:
        sources |= set(found.rearranged.read)
    if found.typed is not None:
        sources |= {name for others in found.typed.dequantised.values() for name in others}
    lacking = found.checkpoint.entries.keys() - sources - found.optimizer.read - found.plan.names.keys()
    drops = any(text.endswith("as --drop-optimizer says") for text in found.left_out)
    return weakest(bool(renamed or lacking or drops or not found.keeps_ties), found.keeps_objects)


def run(
    path: str, output: str | None, command: str, *, each: bool, rename: tuple[str, ...],
    word: str = "", **flags: Any,
) -> None:  # fmt: skip
    """One call of the library, and its report; `flags` are fields of RelayoutOptions."""
    renamed: dict[str, str] = {}  # {old: new}; each old name once.
    for text in rename:
        old, equals, new = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r}: expected OLD=NEW", param_hint="--rename")
        if renamed.setdefault(old, new) != new:
            raise click.BadParameter(f"{old!r} has two new names, {renamed[old]!r} and {new!r}", param_hint="--rename")
    chosen = RelayoutOptions(rename=renamed, **flags)
    if command == "convert":
        chosen = relayout_command.aimed(chosen, output or "")
    else:
        check_no_dialect(command, chosen)
    if each:
        from functools import partial

        together = relayout_command.relayout_each(path, output, chosen, word=word, progress=_render.progress)
        each_set(together, partial(_rows, command=command), _flag)
        return
    found = relayout_command.relayout(path, output, chosen, word=word, progress=_render.progress)
    if found.into is None:
        made = _rows(found, command)
    else:
        from paramtool.cli import _into

        made = _into.rows(found, found.into)
    _render.report(found, made, found.warnings)
