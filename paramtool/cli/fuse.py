"""`paramtool fuse`: parts of recurrent networks, attention, gated MLPs and experts as one tensor each."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _completion, _relayout
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, OUTPUT_ANY, OUTPUT_FILE


@click.command("fuse", cls=Command, epilog=_relayout.EPILOG)
@click.argument("path", metavar="FILE", type=FILE)
@click.option("-o", "--output", type=OUTPUT_FILE,
              help=f"Where to write.  {OUTPUT_ANY}  [default: <stem>.fused.safetensors beside FILE]")  # fmt: skip
@click.option(
    "--layout",
    "target",
    required=True,
    metavar="LAYOUT",
    shell_complete=_completion.layouts,
    help="The fused layout: cudnn, mxnet.flat, ... of a recurrent network, or qkv, qkv-per-head, gate-up, experts, "
    "...; `paramtool layouts` lists them.",
)
@click.option(
    "--from",
    "source",
    metavar="LAYOUT",
    shell_complete=_completion.layouts,
    help="The layout of a recurrent network's parts.  [default: what the file says, else torch]",
)
@click.option("--keep-names", is_flag=True,
              help="Store the fused tensor and record the parts as views of it, for models of both kinds.")  # fmt: skip
@_relayout.shared_options
def command(path: str, output: str | None, **flags: Any) -> None:
    """Fuse the weights of each recurrent network into one tensor, or q, k and v, gate and up, or experts: all of them,
    or those at --at.

    Heads come from config.json beside the weights or from --spec, never from shapes.

    \b
    $ paramtool fuse model.pt --layout cudnn
    $ paramtool fuse model.pt --layout cudnn --at encoder.lstm --keep-names -o both.safetensors
    $ paramtool fuse llama/ --layout qkv -o fused/
    $ paramtool fuse llama.safetensors --layout qkv-per-group --spec "qkv heads=32 kv_heads=8"
    """
    _relayout.run(path, output, "fuse", word="fused", **flags)
