"""`paramtool convert`: networks into other layouts, models into other dialects, and tensors into other types."""

from __future__ import annotations

from typing import Any

import click

from paramtool.cli import _completion, _each, _relayout
from paramtool.cli._help import Command
from paramtool.cli._text import FILE, OUTPUT_ANY, OUTPUT_FILE
from paramtool.commands.name_lists import pairs


@click.command("convert", cls=Command, epilog=_relayout.EPILOG)
@click.argument("path", metavar="SRC", type=FILE)
@click.option("-o", "--output", type=OUTPUT_FILE, metavar="DST", required=True, help=f"Where to write.  {OUTPUT_ANY}")
@click.option("--from", "source", metavar="LAYOUT", shell_complete=_completion.layouts,
              help="The layout or dialect of SRC, as `paramtool layouts` lists it.  Options follow a colon: "
              "tf1.basic:forget_bias=0.  [default: what the file says or its names show, else torch]")  # fmt: skip
@click.option("--to", "target", metavar="LAYOUT", shell_complete=_completion.layouts,
              help="The layout of recurrent networks to write, in the same form, or the dialect of the model: "
              "transformers-5, vllm, megatron, ...  [default: the layout of DST's format if it has only one, else "
              "networks stay as they are]")  # fmt: skip
@click.option("--dtype", multiple=True, metavar="[PATTERN=]DTYPE",
              help="Cast every floating point tensor, or those whose names match, to float16, bfloat16, float32, "
              "float64, float8_e4m3fn or float8_e5m2.  Repeatable; the last pattern that matches counts.")  # fmt: skip
@click.option("--keep-float32", multiple=True, metavar="KIND",
              help="Keep batchnorm, norm, scales, counters, or tensors that match a pattern, in float32.  "
              "Repeatable.")  # fmt: skip
@click.option("--allow-overflow", is_flag=True, help="Let --dtype make finite numbers infinite.")
@click.option("--dequantise", is_flag=True,
              help="Write the weights that FP8 codes and their scales stand for, in the type of the scales, or of "
              "--dtype.")  # fmt: skip
@click.option("--into", metavar="MODEL", type=FILE,
              help="Write this model with its weights replaced: a .keras, .weights.h5 or .h5 file of Keras, or an "
              ".onnx.  All else of it stays byte for byte.")  # fmt: skip
@click.option("--map", multiple=True, metavar="A=B",
              help="Put network, layer or tensor A of SRC into B of MODEL.  Repeatable.  [default: by name, then by "
              "shape where only one fits]")  # fmt: skip
@click.option("--flatten", default="", metavar="ORDER",
              help="With --into: where SRC has the channels of images that it flattens: channels-first or "
              "channels-last.")  # fmt: skip
@click.option("--partial", is_flag=True,
              help="With --into: leave what MODEL has no place for, or in another shape.")  # fmt: skip
@click.option(
    "--untie",
    multiple=True,
    metavar="NAME",
    shell_complete=_completion.names,
    help="Make NAME, which shares its tensor with other names, a tensor of its own.  Repeatable.",
)
@click.option(
    "--tie",
    multiple=True,
    metavar="NAME=OTHER",
    shell_complete=_completion.names,
    help="Make NAME another name of the tensor OTHER, which must have the same bytes.  Repeatable.",
)
@_each.FORMAT
@click.option("--keep-names", is_flag=True, help="Also record the old names, as views of the new tensors.")
@_relayout.shared_options
def command(path: str, output: str, tie: tuple[str, ...], **flags: Any) -> None:
    """Convert a checkpoint to another format, its recurrent networks to another layout, the model to the names and
    forms of another program (a dialect), or its tensors to other types.

    The suffix of DST says the format; a dialect takes a folder with config.json and writes a folder.  Everything else
    stays unchanged.

    \b
    $ paramtool convert lstm-0001.params -o lstm.safetensors --from mxnet --to torch
    $ paramtool convert lstm.pt --into model.keras -o filled.keras
    $ paramtool convert model.onnx -o model.safetensors --to torch --rename lstm_1=encoder
    $ paramtool convert mixtral/ -o out/ --to transformers-5
    $ paramtool convert out/ -o back/ --to transformers-4
    $ paramtool convert train.pt -o untied.pt --untie model.lm_head.weight --untied-state copy
    $ paramtool convert resnet.pt -o resnet16.safetensors --dtype float16 --keep-float32 batchnorm
    """
    _relayout.run(path, output, "convert", tie=pairs(tie, "--tie"), **flags)
