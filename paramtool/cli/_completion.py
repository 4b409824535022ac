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
FILES = ("path", "paths", "ckpt", "out")
"""Parameters that name the file that is read."""
MOST = 500
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


class _LateOption(Exception):
    """The time is over."""


def _late(number: int, frame: object) -> None:
    raise _LateOption


def _quietly(found: Callable[[], Iterable[str]], typed: str) -> list[str]:
    """What begins as it was typed; nothing where that is an error."""
    before = signal.signal(signal.SIGALRM, _late) if hasattr(signal, "SIGALRM") else None
    try:
        if before is not None:
            signal.alarm(SECONDS)
        return [word for word in found() if word.startswith(typed)][:MOST]
    except Exception:  # a completion never prints an error
        return []
    finally:
        if before is not None:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


def layouts(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Names of layouts, and of dialects where the option takes them."""

    def found() -> Iterator[str]:
        from paramtool.layouts import all_layouts
        from paramtool.parts.layout import all_part_layouts

        yield from (layout.name for layout in all_layouts())
        if param.name == "toml":
            return
        yield from (layout.name for layout in all_part_layouts())
        if ctx.info_name in ("convert", "layouts"):
            from paramtool.dialects import NAMES

            yield from NAMES

    return _quietly(found, typed)


def rules(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Rules of --fail-on, and behind `untied:`, `missing:` and so on the names in the file."""

    def found() -> Iterator[str]:
        from paramtool.commands.rules import KINDS

        kind, colon, rest = typed.partition(":")
        if not colon:
            yield from (one.id + one.form[:1] for one in KINDS)
            return
        before = kind + colon + (rest.rpartition("=")[0] + "=" if "=" in rest else "")
        yield from (before + name for name in _checkpoint(ctx).entries)

    return _quietly(found, typed)


def sections(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Sections of the file on the line."""
    return _quietly(lambda: (section.name for section in _checkpoint(ctx).sections), typed)


def sections_of(name: str) -> Completer:
    """Sections of the file that another option names."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
        return _quietly(lambda: (section.name for section in _checkpoint(ctx, (name,)).sections), typed)

    return complete


def names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Names of tensors in the file on the line."""
    return _quietly(lambda: _checkpoint(ctx).entries, typed)


def modules(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Names of modules and of tensors in the file on the line."""

    def found() -> Iterator[str]:
        checkpoint = _checkpoint(ctx)
        homes = (name.rpartition("." if "." in name else "/")[0] for name in checkpoint.entries)
        described = (module.at for module in checkpoint.modules)
        yield from dict.fromkeys(name for name in (*described, *homes, *checkpoint.entries) if name)

    return _quietly(found, typed)


def prefixes(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """What names in the file begin with, up to a dot."""

    def found() -> Iterator[str]:
        parts = (name.split(".") for name in _checkpoint(ctx).entries)
        yield from dict.fromkeys(".".join(one[:k]) + "." for one in parts for k in range(1, len(one)))

    return _quietly(found, typed)


def classes(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Names that the pickles of the file ask for."""
    return _quietly(lambda: (unknown.path for unknown in _checkpoint(ctx).unknown), typed)


def commands(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Commands."""
    from paramtool.cli.main import COMMANDS

    return _quietly(lambda: COMMANDS, typed)


def _checkpoint(ctx: click.Context, parameters: Sequence[str] = FILES) -> Checkpoint:
    """The file that is on the line already; any error where there is none.

    click leaves arguments in `ctx.args` where the line ends with an option that has no value yet.
    """
    from paramtool import formats

    given = [ctx.params.get(name) for name in parameters] + (list(ctx.args) if parameters == FILES else [])
    paths = [one[0] if isinstance(one, tuple) else one for one in given if one]
    path = next(path for path in paths if os.path.exists(path))
    return formats.describe(path, ctx.params.get("weights"), allow_class=(), allow_unknown=True).checkpoint
