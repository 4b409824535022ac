"""`paramtool convert`: recurrent networks from one framework's layout to another's."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _relayout
from paramtool.cli._text import FILE, OUTPUT


@click.command("convert", epilog=_relayout.EPILOG)
@click.argument("path", metavar="SRC", type=FILE)
@click.option("-o", "--output", type=FILE, metavar="DST", required=True, help=OUTPUT)
@click.option("--from", "source", metavar="LAYOUT",
              help="As `paramtool layouts` lists them; default: what the file says, else torch. "
                   "Options follow a colon: tf1.basic:forget_bias=0.")  # fmt: skip
@click.option("--to", "target", metavar="LAYOUT", required=True, help="Likewise.")
@click.option("--keep-names", is_flag=True, help="Also record the old names, as windows on the new tensors.")
@_relayout.shared_options
def command(path: str, output: str, source: str | None, target: str, *, keep_names: bool, **flags: Any) -> None:
    """Write the recurrent networks of a checkpoint in another layout; everything else stays as it is.

    \b
    $ paramtool convert lstm-0001.params -o lstm.safetensors --from mxnet --to torch
    $ paramtool convert model.onnx -o model.safetensors --to torch --rename lstm_1=encoder
    """
    _relayout.run(path, output, "convert", flags, source=source, target=target, keep_names=keep_names)
