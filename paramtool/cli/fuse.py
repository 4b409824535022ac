"""`paramtool fuse`: the parts of recurrent networks as one tensor each."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _relayout
from paramtool.cli._text import FILE, OUTPUT


@click.command("fuse", epilog=_relayout.EPILOG)
@click.argument("path", metavar="FILE", type=FILE)
@click.option("-o", "--output", type=FILE, help=f"Default: <stem>.fused.safetensors beside the input. {OUTPUT}")
@click.option(
    "--layout", required=True, metavar="LAYOUT", help="cudnn, mxnet.flat, mxnet.v2, ...: see `paramtool layouts`."
)
@click.option(
    "--from", "source", metavar="LAYOUT", help="The layout of the parts; default: what the file says, else torch."
)
@click.option("--keep-names", is_flag=True,
              help="Write the fused tensor once and the parts as windows on it, for models of both kinds.")  # fmt: skip
@_relayout.shared_options
def command(path: str, output: str | None, layout: str, source: str | None, *, keep_names: bool, **flags: Any) -> None:
    """Fuse the weights of every recurrent network, or of those at --at.

    \b
    $ paramtool fuse model.pt --layout cudnn
    $ paramtool fuse model.pt --layout cudnn --at encoder.lstm --keep-names -o both.safetensors
    """
    _relayout.run(path, output, "fuse", flags, source=source, target=layout, keep_names=keep_names, word="fused")
