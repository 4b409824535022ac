"""`paramtool unfuse`: flat vectors and fused blocks as separate named tensors."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _relayout
from paramtool.cli._text import FILE, OUTPUT


@click.command("unfuse", epilog=_relayout.EPILOG)
@click.argument("path", metavar="FILE", type=FILE)
@click.option("-o", "--output", type=FILE, help=f"Default: <stem>.unfused.safetensors beside the input. {OUTPUT}")
@click.option("--layout", "source", metavar="LAYOUT",
              help="How they are fused: cudnn, mxnet, tf1.opaque, ...; default: what the file says.")  # fmt: skip
@click.option("--to", "target", metavar="LAYOUT", help="Default: torch, or torch.cell for what was fused from cells.")
@_relayout.shared_options
def command(path: str, output: str | None, source: str | None, target: str | None, **flags: Any) -> None:
    """Unfuse recurrent networks: flat vectors, matrices of all gates, or windows of one buffer.

    \b
    $ paramtool unfuse flat.pt --layout cudnn --at rnn.weights --spec "lstm layers=2 hidden=128 input=18"
    $ paramtool unfuse model.fused.safetensors
    """
    _relayout.run(path, output, "unfuse", flags, source=source, target=target, word="unfused", described=True)
