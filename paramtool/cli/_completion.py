"""What the shell offers behind a flag: layouts, rules, and what the file on the line holds.

A completion is quick and never complains: what takes too long or cannot be read offers nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paramtool.model.checkpoint import Checkpoint

SECONDS = 2
"""No completion takes longer."""
FILES = ("file", "src", "path", "paths", "against", "ckpt", "ckpts", "out")
"""Parameters that name the file that is read."""
MOST = 500
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _late(number: int, frame: object) -> None:
    raise click.Abort


def _offering(found: Callable[[click.Context, click.Parameter, str], Iterable[str]]) -> Completer:
    """What begins as it was typed; nothing where that is an error."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
        before = signal.signal(signal.SIGALRM, _late) if hasattr(signal, "SIGALRM") else None
        try:
            if before is not None:
                signal.alarm(SECONDS)
            return [word for word in found(ctx, param, typed) if word.startswith(typed)][:MOST]
        except Exception:  # a completion never prints an error
            return []
        finally:
            if before is not None:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)

    return complete


def _inside(found: Callable[[Checkpoint], Iterable[str]], parameters: Sequence[str] = FILES) -> Completer:
    """The same of the file on the line."""
    return _offering(lambda ctx, param, typed: found(_checkpoint(ctx, parameters)))


@_offering
def layouts(ctx: click.Context, param: click.Parameter, typed: str) -> Iterator[str]:
    """Names of layouts, and of dialects where the option takes them."""
    from paramtool.layouts import all_layouts
    from paramtool.parts.layout import all_part_layouts

    yield from (layout.name for layout in all_layouts())
    if param.name == "toml":
        return
    yield from (layout.name for layout in all_part_layouts())
    if ctx.info_name in ("convert", "layouts"):
        from paramtool.dialects import NAMES

        yield from NAMES


@_offering
def rules(ctx: click.Context, param: click.Parameter, typed: str) -> Iterator[str]:
    """Rules of --fail-on, and behind `untied:`, `missing:` and so on the names in the file."""
    from paramtool.commands.rules import KINDS

    kind, colon, rest = typed.partition(":")
    if not colon:
        yield from (one.id + one.form[:1] for one in KINDS)
        return
    before = kind + colon + (rest.rpartition("=")[0] + "=" if "=" in rest else "")
    yield from (before + name for name in _checkpoint(ctx).entries)


def sections_of(*names: str) -> Completer:
    """Sections of the file that some parameters name."""
    return _inside(lambda checkpoint: (section.name for section in checkpoint.sections), names)


sections = sections_of(*FILES)
"""Sections of the file on the line."""
names = _inside(lambda checkpoint: checkpoint.entries)
"""Names of tensors in the file on the line."""
classes = _inside(lambda checkpoint: (unknown.path for unknown in checkpoint.unknown))
"""Names that the pickles of the file ask for."""


@_inside
def modules(checkpoint: Checkpoint) -> Iterator[str]:
    """Names of modules and of tensors in the file on the line."""
    homes = (name.rpartition("." if "." in name else "/")[0] for name in checkpoint.entries)
    described = (module.at for module in checkpoint.modules)
    yield from dict.fromkeys(name for name in (*described, *homes, *checkpoint.entries) if name)


@_inside
def prefixes(checkpoint: Checkpoint) -> Iterator[str]:
    """What names in the file begin with, up to a dot."""
    parts = (name.split(".") for name in checkpoint.entries)
    yield from dict.fromkeys(".".join(one[:k]) + "." for one in parts for k in range(1, len(one)))


OFFERED: dict[str, Completer] = {
    "LAYOUT": layouts, "RULE": rules, "SECTION": sections, "MODULE": modules, "P": prefixes,
    **dict.fromkeys(("NAME", "PATTERN", "NAME=OTHER", "first|last|GLOB"), names),
}  # fmt: skip
"""{what a flag takes: what the shell offers}."""


@_offering
def commands(ctx: click.Context, param: click.Parameter, typed: str) -> Iterable[str]:
    """Commands."""
    root = ctx.find_root()
    return root.command.list_commands(root) if isinstance(root.command, click.Group) else ()


def _checkpoint(ctx: click.Context, parameters: Sequence[str] = FILES) -> Checkpoint:
    """The file that is on the line already; any error where there is none.

    click leaves arguments in `ctx.args` where the line ends with an option that has no value yet.
    """
    from paramtool import formats

    given = [ctx.params.get(name) for name in parameters] + (list(ctx.args) if parameters == FILES else [])
    paths = [one[0] if isinstance(one, tuple) else one for one in given if one]
    path = next(path for path in paths if os.path.exists(path))
    return formats.describe(path, ctx.params.get("weights"), allow_class=(), allow_unknown=True).checkpoint
