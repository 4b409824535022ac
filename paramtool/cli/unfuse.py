"""`paramtool unfuse`: flat vectors, fused blocks and fused projections as separate named tensors."""

from __future__ import annotations

from typing import Any

from paramtool.cli import _completion, _relayout
from paramtool.cli._options import PATH, Row, command_line
from paramtool.cli._text import OUTPUT_ANY
from paramtool.commands import relayout as relayout_command


@command_line(
    relayout_command.unfuse,
    PATH,
    common="output target layout spec at dry_run force",
    codes=_relayout.CODES,
    output=Row(f"Where to write.  {OUTPUT_ANY}  [default: <stem>.unfused.safetensors beside FILE]"),
    layout=Row(
        "The fused layout: cudnn, mxnet, ... of a recurrent network, or qkv, qkv-per-head, "
        "gate-up, experts, ...  [default: what the file says, or config.json by its model type]",
        "LAYOUT",
        _completion.layouts,
    ),
    target=Row(
        "The layout of recurrent networks to write.  [default: torch, or torch.cell for what was fused from cells]",
        "LAYOUT",
        _completion.layouts,
        flag="--to",
    ),
    **_relayout.OPTIONS,
)
def command(path: str, output: str | None, layout: str | None, **flags: Any) -> None:
    """Split fused recurrent networks (flat vectors, matrices of all gates, views of one buffer), or fused q, k and v,
    gate and up, and stacks of experts, into named tensors.

    What does not follow from the file, config.json or --spec is refused, with the layouts that fit.

    \b
    $ paramtool unfuse flat.pt --layout cudnn --spec "lstm hidden=128 input=18"
    $ paramtool unfuse model.fused.safetensors
    $ paramtool unfuse gpt-neox/ -o apart/
    $ paramtool unfuse phi.safetensors --layout qkv --spec "qkv heads=32 kv_heads=8"
    """
    _relayout.run(path, output, "unfuse", word="unfused", described=True, source=layout, **flags)
