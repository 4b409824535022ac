"""`paramtool convert`, `fuse`, `unfuse`: other layouts, dialects and types, and weights into a model that is there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _render
from paramtool.cli._options import EACH, OUTPUT_ANY, Row, command_line, given
from paramtool.cli._render import MANY, NEXT, Rows, brief, every, most, rest
from paramtool.cli._streams import quoted
from paramtool.cli._written import beside, checked, head, physical, report, verify_line, weakest
from paramtool.commands import relayout as relayout_command
from paramtool.commands.layouts import check_no_dialect
from paramtool.commands.optimizer_carry import lines
from paramtool.commands.relayout_options import STATES, RelayoutOptions
from paramtool.errors import plural
from paramtool.grouping import grouped
from paramtool.model.display import size

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayouted import Relayouted
    from paramtool.passes.rnn.convert import Converted

CODES = "0 fine, 2 usage, 3 bad file, 4 unsafe file, 5 does not fit the layout, 6 the format cannot hold it, 7 output."
OPTIONS: dict[str, Any] = {
    "spec": Row('Facts that the file does not state: "lstm layers=2 hidden=128 input=18 bidirectional", '
                '"qkv heads=32 kv_heads=8".', "WORDS"),
    "at": Row("Only this module, pattern of a module, or flat tensor.  Repeatable.  [default: all]", "MODULE"),
    "ignore": Row("Convert a network without these tensors beside it, such as 'rnn.ln_*'.  Repeatable.", "PATTERN"),
    "stack": Row("Join modules A and B as the layers of C, or with A=B,C split the layers of A.  Repeatable.",
                 "A,B=C"),
    "rename": Row("Rename module OLD to NEW; with a layout of parts, NEW is the name of the part or the fused tensor "
                  "OLD.  Repeatable.", "OLD=NEW"),
    "keep_split": Row("Also store what the conversion loses, so that converting back gives the same bytes."),
    "drop_kept": Row("Discard what an earlier --keep-split stored."),
    "layout_file": Row("Your own layouts (docs/add-a-layout.md).  Repeatable.", "MY.toml"),
    "each": EACH,
    "optimizer_names": Row("Take the names of an optimizer's parameters from FILE, one line for each of its entries.",
                           "FILE"),
    "optimizer_state": Row("What becomes of the state of optimizers: copy, split, zero or one where a parameter "
                           "becomes several, first or second where two become one; drop leaves it out.  Repeatable.",
                           type=click.Choice(STATES)),
    "new_config": Row("Copy this config.json, of the model that opens the output folder, in place of the input's, and "
                      "put the entries of an optimizer beside the weights in the order of its parameters.",
                      "CONFIG.JSON"),
}  # fmt: skip
"""What all three commands have."""


@command_line(
    relayout_command.convert,
    "SRC",
    common="output source target dtype into dry_run force",
    codes=CODES,
    output=Row(
        f"Where to write.  {OUTPUT_ANY}  [default: <stem>.to-LAYOUT.safetensors beside SRC, without --to "
        "<stem>.converted.safetensors; with --into <stem>.filled beside MODEL]",
        "DST",
    ),
    source=Row(
        "The layout or dialect of SRC (`paramtool layouts`), with options behind a colon: tf1.basic:forget_bias=0.  "
        "[default: what the file says or its names show, else torch]",
        "LAYOUT",
        flag="--from",
    ),
    target=Row(
        "The layout of networks, or the dialect of the model: transformers-5, vllm, megatron, ...  [default: that of "
        "DST's format, else all stays as it is]",
        "LAYOUT",
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
    ),
    tie=Row(
        "Make NAME another name of the tensor OTHER, which must have the same bytes.  Repeatable.",
        "NAME=OTHER",
    ),
    keep_names=Row("Also record the old names, as views of the new tensors."),
    **OPTIONS,
)
def convert(src: str, output: str | None, **flags: Any) -> None:
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
    _run(src, output, "convert", **flags)


@command_line(
    relayout_command.fuse,
    "FILE",
    common="output layout source spec at keep_names dry_run force",
    codes=CODES,
    output=Row(f"Where to write.  {OUTPUT_ANY}  [default: <stem>.fused.safetensors beside FILE]"),
    layout=Row(
        "The fused layout: cudnn, mxnet.flat, ... of a recurrent network, or qkv, qkv-per-head, "
        "gate-up, experts, ...; `paramtool layouts` lists them.",
        "LAYOUT",
    ),
    source=Row(
        "The layout of a recurrent network's parts.  [default: what the file says, else torch]",
        "LAYOUT",
        flag="--from",
    ),
    keep_names=Row("Store the fused tensor and record the parts as views of it, for models of both kinds."),
    **OPTIONS,
)
def fuse(file: str, output: str | None, layout: str, **flags: Any) -> None:
    """Fuse the weights of each recurrent network into one tensor, or q, k and v, gate and up, or experts: all of them,
    or those at --at.

    Heads come from config.json beside the weights or from --spec, never from shapes.

    \b
    $ paramtool fuse model.pt --layout cudnn
    $ paramtool fuse model.pt --layout cudnn --at encoder.lstm --keep-names
    $ paramtool fuse llama/ --layout qkv -o fused/
    $ paramtool fuse llama.pt --layout qkv-per-group --spec "qkv heads=32"
    """
    _run(file, output, "fuse", word="fused", target=layout, **flags)


@command_line(
    relayout_command.unfuse,
    "FILE",
    common="output target layout spec at dry_run force",
    codes=CODES,
    output=Row(f"Where to write.  {OUTPUT_ANY}  [default: <stem>.unfused.safetensors beside FILE]"),
    layout=Row(
        "The fused layout: cudnn, mxnet, ... of a recurrent network, or qkv, qkv-per-head, "
        "gate-up, experts, ...  [default: what the file says, or config.json by its model type]",
        "LAYOUT",
    ),
    target=Row(
        "The layout of recurrent networks to write.  [default: torch, or torch.cell for what was fused from cells]",
        "LAYOUT",
        flag="--to",
    ),
    **OPTIONS,
)
def unfuse(file: str, output: str | None, layout: str | None, **flags: Any) -> None:
    """Split fused recurrent networks (flat vectors, matrices of all gates, views of one buffer), or fused q, k and v,
    gate and up, and stacks of experts, into named tensors.

    What does not follow from the file, config.json or --spec is refused, with the layouts that fit.

    \b
    $ paramtool unfuse flat.pt --layout cudnn --spec "lstm hidden=128 input=18"
    $ paramtool unfuse model.fused.safetensors
    $ paramtool unfuse gpt-neox/ -o apart/
    $ paramtool unfuse phi.safetensors --layout qkv --spec "qkv heads=32 kv_heads=8"
    """
    _run(file, output, "unfuse", word="unfused", described=True, source=layout, **flags)


def _run(path: str, output: str | None, command: str, *, each: bool, word: str = "", **flags: Any) -> None:
    """One call of the library, and its report; `flags` are fields of RelayoutOptions."""
    chosen = RelayoutOptions(**flags)
    if command == "convert":
        chosen = relayout_command.aimed(chosen, output or "")
    else:
        check_no_dialect(command, chosen)
    run: Any = relayout_command.relayout_each if each else relayout_command.relayout
    found = run(path, output, chosen, word=word, progress=_render.progress)
    report(found, partial(_rows, command=command) if chosen.into is None else _into_rows, _flag)


# --- The report ------------------------------------------------------------------------------------------------------


def _rows(found: Relayouted, command: str) -> Rows:
    yield head(found, command)
    if found.as_is and found.typed is None:  # a copy: what could it be converted to?
        from paramtool.commands.layouts import convertible

        if model := convertible(found.checkpoint):
            *targets, last = model.targets
            others = f"{', '.join(targets)} or {last}" if targets else last
            yield "dialect", f"{model.dialect} ({model.architecture}), unchanged; --to converts it to {others}"
    if found.rearranged is not None:
        yield from _rearranged(found.rearranged)
    for one in found.converted[: most(MANY)]:
        how = "no copy: its parts are one run of bytes already" if one.is_run else ""
        yield from _network(one, one.source.at, how)
    yield from rest("network", found.converted, "network")
    yield from every("untied", (f"{name}  was {other}" for name, other in found.ties.untied.items()))
    yield from every("tied", (f"{name}  is {other}" for name, other in found.ties.tied.items()))
    yield from every("optimizer", lines(found.optimizer))
    yield from _casts(found)
    yield from beside(found)
    if found.untouched:
        kept = ", and what they share" if found.keeps_ties and found.plan.aliases else ""
        yield "unchanged", f"{plural(found.untouched, 'tensor' if found.as_is else 'other tensor')}{kept}"
    yield "size", f"{size(found.nbytes_before)} -> {size(found.nbytes_after)}"
    yield from physical(found, found.nbytes_after)
    yield "names", plural(found.plan.order, "name"), *checked(found)
    if any(one.layout.name == "onnx" for one in found.converted) and not found.output.endswith(".onnx"):
        yield "note", "these are tensors in the layout of ONNX; -o NAME.onnx writes a file of ONNX"
    if found.written:
        line = verify_line(found, _flag(found))
        yield NEXT, line if found.is_recorded else f"paramtool inspect {quoted(found.output)}"


def _network(one: Converted, at: str, how: str) -> Rows:
    """A row for a network, and one for each change beside moving bytes."""
    yield "network", at or "(top)", f"{one.source.layout.name} -> {one.layout.name}", str(one.spec), how
    yield from ((change.kind, one.source.at or "(top)", change.what) for change in one.changes)


APART = "separate tensors"
"""What parts are where no layout holds them."""


def _rearranged(found: Rearrangement) -> Rows:
    """What became of attention, gated MLPs and experts, and the facts that decided it."""
    if found.is_dialect:
        renamed = f"{plural(found.renamed, 'tensor')} renamed" if found.renamed else ""
        yield "dialect", f"{found.source} -> {found.target}", renamed
    else:
        said = ", ".join(f"{layout} by {who}" for layout, who in found.said.items())
        modules = plural(found.groups, "module")
        yield "layout", f"{found.source or APART} -> {found.target or APART}", modules, said
    yield "split", plural(found.split, "tensor"), found.split
    yield "joined into", plural(found.joined, "tensor"), found.joined
    by_source = grouped((brief(source.partition(":")[0], source), fact) for fact, source in found.facts.items())
    for source, facts in by_source.items():
        yield "facts", " ".join(facts), source


def _casts(found: Relayouted) -> Rows:
    """What was cast, by types, with what that lost; what stays in float32, by reasons; what no rule is for."""
    if found.typed is None:
        return
    after = {target.name: target.dtype.name for target in found.plan.targets}
    pairs = grouped(((before, after[name]), name) for name, before in found.typed.casts.items())
    for (before, dtype), names in pairs.items():
        lost = [found.losses[name] for name in names if name in found.losses]
        numbers = plural(sum(one.elements for one in lost), "number")
        words = [f"{sum(one.rounded for one in lost)} of {numbers} rounded"]
        counted = {
            "to zero": sum(one.to_zero for one in lost),
            "subnormal": sum(one.subnormal for one in lost),
            "NaN before and after": sum(one.nan for one in lost),
        }
        words += (f"{count} {what}" for what, count in counted.items() if count)
        yield "cast", f"{before} -> {dtype}", plural(names, "tensor"), ", ".join(words)
    gone = sorted({name for others in found.typed.dequantised.values() for name in others})
    yield "dequantised", plural(found.typed.dequantised, "tensor"), gone and f"without {', '.join(gone)}"
    for name, losses in found.losses.items():
        if losses.overflow:
            yield "overflow", name, f"{losses.overflow} of {losses.elements} no longer finite"
    reasons = grouped((why, name) for name, why in found.typed.kept.items())
    for why, names in reasons.items():
        yield "float32", plural(names, "tensor"), ", ".join(names), why
    yield from every("as it is", found.typed.left)


def _flag(found: Relayouted) -> str:
    """What `verify` needs to know of an output that does not hold everything, or not under the same names."""
    renamed = any(one.at != one.source.at for one in found.converted)
    sources = found.of_networks
    if found.rearranged is not None:
        sources |= set(found.rearranged.read)
    if found.typed is not None:
        sources |= {name for others in found.typed.dequantised.values() for name in others}
    lacking = found.checkpoint.entries.keys() - sources - found.optimizer.read - found.plan.names.keys()
    drops = any(text.endswith("as --optimizer-state drop says") for text in found.left_out)
    return weakest(found, renamed or lacking or drops)


# --- The report of `convert --into`: what went where in a model, and what was left on both sides ---------------------


MANY_LAYERS = 24
"""How many layers a report lists."""
HOW = {
    "name": "by name",
    "shape": "by shape: only one fits",
    "order": "by number",
    "equal": "any of equal ones",
    "map": "by --map",
}


def _into_rows(found: Relayouted) -> Rows:
    assert found.into is not None
    into = found.into
    yield head(found, "convert", source=f"{found.input} into {found.model}")
    shown = most(MANY_LAYERS)
    for one in into.networks[:shown]:
        pair = one.pair
        yield from _network(one.converted, _arrow(pair.source.name, pair.model.name), HOW[pair.how])
    for layer in into.layers[: max(0, shown - len(into.networks))]:
        kind = layer.kind or "of no known kind"
        moved = " and ".join(one.piece.own for one in layer.fillings if one.is_moved)
        wide = " and ".join(sorted({one.widened for one in layer.fillings} - {""}))
        tensors = [plural(layer.fillings, "tensor"), moved and f"{moved} transposed", wide and f"from {wide}"]
        how = HOW[layer.how]
        yield "layer", _arrow(layer.source, layer.model), kind, ", ".join(filter(None, tensors)), how
    yield from rest("layers", (*into.networks, *into.layers), "layer", MANY_LAYERS)
    yield "not filled", f"{plural(into.unfilled, 'tensor')} of the model with old values", into.unfilled
    yield "not used", f"{plural(into.unused, 'tensor')} of the input without a place in the model", into.unused
    before = "as before" if found.nbytes_after == found.nbytes_before else f"{size(found.nbytes_before)} before"
    yield "size", f"{size(found.nbytes_after)}, {before}: all else of the model is kept byte for byte"
    read_back, seconds = checked(found)
    judge = f", by {found.judge} too" if found.judge and found.verified else ""
    yield "filled", plural(into.targets, "tensor"), f"{read_back}{judge}", seconds
    if found.written:  # `verify` compares the output with both inputs, where that can be said
        words = ["--into", quoted(found.model), *given("map", "source", "spec", "flatten", "partial")]
        is_said = not any(given("at", "ignore", "stack", "layout_file"))
        yield NEXT, verify_line(found, " ".join(words)) if is_said else f"paramtool inspect {quoted(found.output)}"


def _arrow(source: str, model: str) -> str:
    return f"{source or '(top)'} -> {model or '(top)'}"
