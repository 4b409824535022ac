"""`paramtool fuse`: parts of recurrent networks, attention, gated MLPs and experts as one tensor each."""

from __future__ import annotations

from typing import Any

from paramtool.cli import _completion, _relayout
from paramtool.cli._options import PATH, Row, command_line
from paramtool.cli._text import OUTPUT_ANY
from paramtool.commands import relayout as relayout_command


@command_line(
    relayout_command.fuse,
    PATH,
    common="output layout source spec at keep_names dry_run force",
    codes=_relayout.CODES,
    output=Row(f"Where to write.  {OUTPUT_ANY}  [default: <stem>.fused.safetensors beside FILE]"),
    layout=Row(
        "The fused layout: cudnn, mxnet.flat, ... of a recurrent network, or qkv, qkv-per-head, "
        "gate-up, experts, ...; `paramtool layouts` lists them.",
        "LAYOUT",
        _completion.layouts,
    ),
    source=Row(
        "The layout of a recurrent network's parts.  [default: what the file says, else torch]",
        "LAYOUT",
        _completion.layouts,
        flag="--from",
    ),
    keep_names=Row("Store the fused tensor and record the parts as views of it, for models of both kinds."),
    **_relayout.OPTIONS,
)
def command(path: str, output: str | None, layout: str, **flags: Any) -> None:
    """Fuse the weights of each recurrent network into one tensor, or q, k and v, gate and up, or experts: all of them,
    or those at --at.

    Heads come from config.json beside the weights or from --spec, never from shapes.

    \b
    $ paramtool fuse model.pt --layout cudnn
    $ paramtool fuse model.pt --layout cudnn --at encoder.lstm --keep-names
    $ paramtool fuse llama/ --layout qkv -o fused/
    $ paramtool fuse llama.pt --layout qkv-per-group --spec "qkv heads=32"
    """
    _relayout.run(path, output, "fuse", word="fused", target=layout, **flags)
