"""`paramtool convert`: networks into other layouts, models into other dialects, and tensors into other types."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _completion, _relayout
from paramtool.cli._options import FORMAT, Row, command_line
from paramtool.cli._text import FILE, OUTPUT_ANY
from paramtool.commands import relayout as relayout_command


@command_line(
    relayout_command.convert,
    click.argument("path", metavar="SRC", type=FILE),
    common="output source target dtype into rename dry_run force",
    codes=_relayout.CODES,
    output=Row(
        f"{OUTPUT_ANY}  [default: <stem>.to-LAYOUT.safetensors beside SRC; with --into <stem>.filled beside MODEL]",
        "DST",
    ),
    source=Row(
        "The layout or dialect of SRC (`paramtool layouts`), with options behind a colon: tf1.basic:forget_bias=0.  "
        "[default: what the file says or its names show, else torch]",
        "LAYOUT",
        _completion.layouts,
        flag="--from",
    ),
    target=Row(
        "The layout of networks, or the dialect of the model: transformers-5, vllm, megatron, ...  [default: that of "
        "DST's format, else all stays as it is]",
        "LAYOUT",
        _completion.layouts,
        flag="--to",
    ),
    dtype=Row(
        "Cast all floating point tensors, or those that match, to float16, bfloat16, float32, float64, float8_e4m3fn "
        "or float8_e5m2.  Repeatable; the last match counts.",
        "[PATTERN=]DTYPE",
    ),
    keep_float32=Row(
        "Keep batchnorm, norm, scales, counters, or tensors that match a pattern, in float32.  Repeatable.", "KIND"
    ),
    allow_overflow=Row("Let --dtype make finite numbers infinite."),
    dequantise=Row(
        "Write the weights that FP8 codes and their scales stand for, in the type of the scales, or of --dtype."
    ),
    into=Row(
        "Write this model with its weights replaced: a .keras, .weights.h5 or .h5 file of Keras, or an "
        ".onnx.  All else of it stays byte for byte.",
        "MODEL",
    ),
    map=Row(
        "Put network, layer or tensor A of SRC into B of MODEL.  Repeatable.  [default: by name, then by "
        "shape where only one fits]",
        "A=B",
    ),
    flatten=Row(
        "With --into: where SRC has the channels of images that it flattens: channels-first or channels-last.", "ORDER"
    ),
    partial=Row("With --into: leave what MODEL has no place for, or in another shape."),
    untie=Row(
        "Make NAME, which shares its tensor with other names, a tensor of its own.  Repeatable.",
        "NAME",
        _completion.names,
    ),
    tie=Row(
        "Make NAME another name of the tensor OTHER, which must have the same bytes.  Repeatable.",
        "NAME=OTHER",
        _completion.names,
    ),
    format=FORMAT,
    keep_names=Row("Also record the old names, as views of the new tensors."),
    **_relayout.OPTIONS,
)
def command(path: str, output: str | None, **flags: Any) -> None:
    """Convert a checkpoint to another format, its recurrent networks to another layout, the model to the names and
    forms of another program (a dialect), or its tensors to other types.

    The suffix of DST says the format; a dialect takes a folder with config.json and writes a folder.  Everything else
    stays unchanged.

    \b
    $ paramtool convert lstm-0001.params -o lstm.safetensors --from mxnet --to torch
    $ paramtool convert lstm.pt --into model.keras -o filled.keras
    $ paramtool convert mixtral/ -o out/ --to transformers-5
    $ paramtool convert train.pt -o untied.pt --only model --untie lm_head.weight
    $ paramtool convert resnet.pt --dtype float16 --keep-float32 norm -o half.pt
    """
    _relayout.run(path, output, "convert", **flags)
