"""`paramtool unfuse`: flat vectors and fused blocks as separate named tensors."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _completion, _relayout
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, OUTPUT_ANY, OUTPUT_FILE


@click.command("unfuse", cls=Command, epilog=_relayout.EPILOG)
@click.argument("path", metavar="FILE", type=FILE)
@click.option("-o", "--output", type=OUTPUT_FILE,
              help=f"Where to write.  {OUTPUT_ANY}  [default: <stem>.unfused.safetensors beside FILE]")  # fmt: skip
@click.option("--layout", "source", metavar="LAYOUT", shell_complete=_completion.layouts,
              help="The fused layout: cudnn, mxnet, tf1.opaque, ...  [default: what the file says]")  # fmt: skip
@click.option("--to", "target", metavar="LAYOUT", shell_complete=_completion.layouts,
              help="The layout to write.  [default: torch, or torch.cell for what was fused from cells]")  # fmt: skip
@_relayout.shared_options
def command(path: str, output: str | None, source: str | None, target: str | None, **flags: Any) -> None:
    """Split fused recurrent networks (flat vectors, matrices of all gates, views of one buffer) into named tensors.

    \b
    $ paramtool unfuse flat.pt --layout cudnn --at rnn.weights --spec "lstm layers=2 hidden=128 input=18"
    $ paramtool unfuse model.fused.safetensors
    """
    _relayout.run(path, output, "unfuse", flags, source=source, target=target, word="unfused", described=True)
