"""`paramtool guess`: what flat vectors and sets of matrices could be, where neither the file nor the user says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _completion, _render
from paramtool.cli._options import Row, command_line
from paramtool.cli._render import Rows, every
from paramtool.cli._streams import quoted
from paramtool.cli.inspect import parts
from paramtool.commands import guess as guess_command
from paramtool.commands.seen_parts import fused_place
from paramtool.errors import leading, plural

if TYPE_CHECKING:
    from paramtool.commands.guess import Considered, Guessed, LayoutGuess
    from paramtool.guessing.candidates import Guess
    from paramtool.passes.parts.seen_groups import SeenGroup

MANY_ALIKE = 4
"""How many other layouts a row names."""


@command_line(
    guess_command.guess,
    "FILE",
    common="at spec limit toml",
    codes="0 found, 1 nothing fits, 2 usage, 3 bad file, 4 unsafe file, 5 --toml cannot describe it.",
    at=Row("Only this tensor or module.  [default: all tensors of the model]", "NAME", _completion.modules),
    spec=Row('List only candidates that agree with WORDS: "lstm hidden=128 layers=2".', "WORDS"),
    limit=Row("List at most N candidates for each tensor or module.", "N", type=click.IntRange(1)),
    values=Row("Read no tensor data; rank the candidates by sizes and names alone."),
    toml=Row("For names of no known layout: print a --layout-file with the gates of LAYOUT.", "LAYOUT"),
)
def command(file: str, *, values: bool, toml: str | None, **options: Any) -> int:
    """List the recurrent networks that tensors could be, attention, gated MLPs and experts, and the layouts that their
    fused tensors could have, each with its reasons.

    If exactly one network fits and nothing is assumed, the last row is a command that paramtool has tried.  If several
    fit, a row names the fact that decides between them.  Many networks have the same length, and no shape shows the
    order of gates.  Tensor values only change the order of the list.

    \b
    $ paramtool guess flat.pt
    $ paramtool guess old.params --at lstm_parameters --spec "lstm hidden=100"
    $ paramtool guess model.safetensors --at 'model.layers.*.self_attn'
    """
    if toml is not None:
        _render.lines(guess_command.guess(file, values=False, **options).toml(toml).splitlines())
        return 0
    found = guess_command.guess(file, values=values, progress=_render.progress, **options)
    _render.report(found, partial(_rows, values=values), (), found.commands)
    return 0 if found.candidates or found.parts else 1


def _rows(found: Guessed, values: bool) -> Rows:
    counts = [plural(found.checkpoint.entries, "tensor")]
    if found.considered or found.parts is None:
        counts.append(plural(found.considered, "place"))
    yield "file", found.path, " · ".join([found.checkpoint.format, *counts])
    yield from every("note", found.checkpoint.notes)
    for place, candidates in found.places():
        fits = plural(place.fits, "network fits", "networks fit")
        if place.fits > place.listed:
            fits += f", {place.listed} listed: --limit lists more"
        at = place.at or "(top)"
        shape = plural(place.tensors, "tensor")
        if place.what != "module":
            view = found.checkpoint.views()[place.tensors[0]]
            shape = f"{list(view.shape)} {view.dtype.name}"
        yield place.what, at, shape, fits
        for one in candidates:
            yield from _candidate(one, one.alike)
        yield from every("decide", ((at, fact) for fact in place.decide))
        if place.decide and not place.is_refused:
            yield "then", at, _then(place, candidates, found.path)
    if found.parts is not None:
        yield from parts(found.parts)
        yield from (row for group in found.fused for row in _fused(group))
        yield from every("decide", found.refused.items())
    elif not any(place.fits or place.is_refused for place in found.considered):
        yield "none", "no tensor has the names or the shape of a known recurrent network"
        yield "next", f"paramtool inspect {quoted(found.path)} --tensors"
        return
    unread = [place.at for place in found.considered if place.fits > 1 and not place.looked]
    if unread:
        why = "too large" if values else "--no-values"
        yield "not done", f"values were not read ({why}): {leading(unread)}"
    yield from every("next", found.commands)


def _candidate(one: Guess | LayoutGuess, alike: Sequence[str] = ()) -> Rows:
    line = f"--layout {one.layout}" + (f' --spec "{one.spec}"' if one.spec else "")
    others = f"or {leading(alike, MANY_ALIKE)}" if alike else ""
    yield "candidate", line, one.sure, "; ".join(one.reasons), others


def _fused(group: SeenGroup) -> Rows:
    """A fused tensor of each module: its candidates, and what would decide."""
    from paramtool.commands.guess import part_layouts

    candidates = part_layouts(group)
    fits = plural(candidates, "layout fits", "layouts fit")
    yield "fused", group.at, ", ".join(group.names), plural(group.modules, "module"), fits
    for one in candidates:
        yield from _candidate(one)
    if group.decides:
        yield "decide", group.at, group.decides
        at = quoted(fused_place(group))
        yield "then", group.at, f"unfuse --at {at}, with --layout and --spec of its row"


def _then(place: Considered, candidates: tuple[Guess, ...], path: str) -> str:
    """What to do with the fact that decides."""
    at = f"--at{'=' if place.at.startswith('-') else ' '}{quoted(place.at)}"
    if any(one.cell for one in candidates):
        return f"guess {at} --toml LAYOUT prints a layout file for unfuse, with that layout's gates"
    if place.fits > MANY_ALIKE:
        return f'guess {at} --spec "..." lists what agrees with it'
    return f"unfuse {at}, with --layout and --spec of its row"
