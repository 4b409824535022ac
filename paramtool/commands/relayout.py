"""Writing recurrent networks in another layout, and tensors in other types: fuse, unfuse and convert are this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from paramtool import layouts
from paramtool.commands import _casts, _ties, adapter_config, config_ties, copied_state
from paramtool.commands.layouts import check_no_dialect, register_files
from paramtool.commands.opening import Each, each, opened
from paramtool.commands.optimizer_carry import (
    Carried,
    OptimizerChoice,
    finished,
    keeps_state,
    prepared,
    refuse_unsaid,
)
from paramtool.commands.optimizer_files import Following, FollowingWork, following, holds_state, works
from paramtool.commands.output.destination import Destination, place
from paramtool.commands.output.dialect_folder import DialectFolder, dialect_folder
from paramtool.commands.output.losses import (
    allow,
    flat_pair_warnings,
    keeping,
    left_out,
    lost_warnings,
    name_warnings,
    other_sections,
    stored_again,
)
from paramtool.commands.output.options import keywords
from paramtool.commands.output.sidecar_checks import check_config
from paramtool.commands.output.write import Work, done, laid_out
from paramtool.commands.output.writers import writer_for
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.relayout_networks import (
    IGNORED,
    asked_networks,
    converted_network,
    network_warnings,
    source_networks,
)
from paramtool.commands.relayout_options import DEFAULT, RelayoutOptions
from paramtool.commands.relayouted import Relayouted
from paramtool.commands.sections import section_of
from paramtool.engine.write.casting import Counts
from paramtool.errors import LayoutError, UsageError, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.judging import judging
from paramtool.formats.numpy.write import not_for_mxnet
from paramtool.formats.record.moved import check_codes, with_tensors
from paramtool.grouping import omit
from paramtool.model.checkpoint import GRAPH, Checkpoint
from paramtool.model.config import reading
from paramtool.model.optimizer import Move
from paramtool.model.plan import Plan, check
from paramtool.parts.companions import QUANTISE
from paramtool.passes.parts.rewrite import moves as moves_of_parts
from paramtool.passes.parts.rewrite import renames
from paramtool.passes.retied import retied
from paramtool.passes.rewriting import Outcome
from paramtool.passes.rnn.convert import Converted
from paramtool.passes.rnn.find import Found
from paramtool.passes.rnn.rewrite import moves as moves_of_networks
from paramtool.passes.rnn.rewrite import together

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.passes.parts.rewrite import HandedOver
    from paramtool.passes.types.apply import Typed


@reading
@judging("path", "into")
def relayout(
    path: Path,
    output: Path | None = None,
    options: RelayoutOptions | None = None,
    *,
    word: str = "",
    progress: Progress = silent,
    **more: Any,
) -> Relayouted:
    """Write a checkpoint with its recurrent networks in another layout, and everything else as it is.

    `word` is what the default output is called: `model.WORD.safetensors`, and else `model.to-LAYOUT.safetensors`.
    LayoutError where a network is not found, does not fit, or its bytes break what the conversion requires; nothing is
    written then.  `more` are fields of `RelayoutOptions` by name.
    """
    options = replace(options or RelayoutOptions(), **more)
    began = time.monotonic()
    found = _opened(path, options, progress)
    report = relayouted(path, output, found, options, word=word, progress=progress)
    return replace(report, seconds=round(time.monotonic() - began, 3))


def relayouted(
    path: Path, output: Path | None, found: Weights, options: RelayoutOptions, *, word: str, progress: Progress = silent
) -> Relayouted:
    """`relayout` of weights that are described already, as those who try several conversions have them."""
    if options.into is not None:
        from paramtool.commands.into import fill

        return fill(path, output, found, options, progress=progress)

    def where() -> Destination:
        called, size, form = word or _word(options), options.max_shard_size, _form(path, found, options)
        config = os.fspath(options.new_config) if options.new_config is not None else ""
        where = place(
            path, output, found, size, options=options, word=called, others=options.layout_file, form=form,
            brings={hf_config.NAME: config} if config else {}, format=options.format,
        )  # fmt: skip
        if config and not where.is_folder:
            raise UsageError(f"{where.path}: --new-config goes beside the weights of a folder", "-o FOLDER")
        return where

    report, work = _prepared(path, found, where, output, options=options)
    return done(report, work, options, progress)


@reading
@judging("path")
def relayout_each(
    path: Path,
    output: Path | None = None,
    options: RelayoutOptions | None = None,
    *,
    word: str = "",
    progress: Progress = silent,
    **more: Any,
) -> Each[Relayouted]:
    """`relayout` of every set of weights of a folder and of those inside, into one folder that is built alike."""
    options = replace(options or RelayoutOptions(), **more)
    register_files(options.layout_file)
    return each(
        path,
        output,
        lambda at, found, where: _prepared(at, found, lambda: where, None, options=options),
        word=word or _word(options),
        options=options,
        form=lambda at, found: _form(at, found, options),
        progress=progress,
    )


def _opened(path: Path, options: RelayoutOptions, progress: Progress) -> Weights:
    register_files(options.layout_file)
    return opened(path, options.weights, progress, options)


def _form(path: Path, found: Weights, options: RelayoutOptions) -> DialectFolder | None:
    """What the folder of the output is like, if it is to be in a dialect, or of an adapter with other modules."""
    form = dialect_folder(options.target, found, os.fspath(path) if is_folder(path) else "")
    made = {**_adapter(os.fspath(path), found.checkpoint, options)} if is_folder(path) else {}
    if is_folder(path) and options.new_config is None:
        made |= _ties.new_config(found.checkpoint, options.untie, options.tie or {})
        made |= _casts.new_config(os.fspath(path), made) if options.dequantise else {}
    gone = {hf_config.QUANTISATION} if options.dequantise else set()
    if not (made or gone):
        return form
    form = form or DialectFolder(found.name)
    return replace(form, made={**form.made, **made}, gone=form.gone | made.keys() | gone)


def _adapter(folder: str, checkpoint: Checkpoint, options: RelayoutOptions) -> Mapping[str, bytes]:
    """The config of an adapter in a folder, if its modules get other names."""
    if options.as_is or not os.path.isfile(os.path.join(folder, adapter_config.NAME)):
        return {}
    rearranged, change = _rearrangement(checkpoint, options)
    if rearranged is None or change is None:
        return {}
    taken = change.pop()
    old = {one.name for one in taken.read}
    new = {one.name for one in taken.made} | (checkpoint.entries.keys() - old)
    return adapter_config.rewritten(folder, checkpoint.entries, new)


def _word(options: RelayoutOptions) -> str:
    """What the default output is called after."""
    if options.as_is:
        return "converted"
    return f"to-{layouts.parse(options.target or DEFAULT)[0].replace('.', '-')}"


def _prepared(
    path: Path,
    weights: Weights,
    choose: Callable[[], Destination],
    output: Path | None,
    *,
    options: RelayoutOptions,
) -> tuple[Relayouted, Work]:
    """The report of what will be written, and the work."""
    began, whole = time.monotonic(), weights.checkpoint
    checkpoint = section_of(whole, options.only) if options.only is not None else whole
    warnings = allow(checkpoint, output)
    where = choose()
    checkpoint = config_ties.as_stored(checkpoint, {*options.untie, *(options.tie or {})})
    rearranged, change = _rearrangement_for(where, checkpoint, options)
    found = [] if options.as_is or rearranged else asked_networks(where, checkpoint, options)
    of_graph = [name for name, entry in checkpoint.entries.items() if found and entry.role == GRAPH]
    checkpoint = replace(checkpoint, entries=omit(checkpoint.entries, of_graph))
    converted = [converted_network(checkpoint, one, options) for one in found]
    carried, where, change, found_files = _carried(path, checkpoint, converted, where, options=options, change=change)
    source, checkpoint = checkpoint, carried.checkpoint
    planned, outcome, typed = _planned(carried, converted, where, options, rearranged=rearranged, change=change)
    fitted = where.writer.fit(planned, checkpoint, keeping(options))
    plan, typed = fitted.plan, _casts.held(typed, fitted.plan)
    where, beside = _beside(path, source, found_files, plan, where=where, options=options)
    outputs, counts = laid_out(plan, where, options.align), Counts()
    gone = [f"constants of its graph, which are no weights: {some(of_graph, IGNORED)}"] if of_graph else []
    if not (where.is_folder or (rearranged and rearranged.is_dialect)):  # a folder has the config again
        gone += config_ties.unwritten(whole if options.only is None else source, plan.names)
    gone += stored_again(plan, f"{rearranged.target} has both names") if rearranged and rearranged.is_dialect else []
    gone += [*other_sections(whole, options.only), *left_out(outcome.rest, planned), *fitted.left_out, *fitted.unsaid]
    told = [*lost_warnings(fitted, where.path), *checkpoint.notes, *warnings, *outcome.warnings]
    told += rearranged.warnings if rearranged else network_warnings(found)
    told += [
        *_casts.warnings(typed, (*where.sidecars.files, *where.made)),
        *_ties.unsaid(source, options.tie, where.sidecars.files),
    ]
    told += copied_state.warnings(path, weights, where.sidecars.files, options)
    coded = replace(source, entries={}) if options.dequantise else source
    told += [*name_warnings(where, coded), *_output_warnings(where, plan, options, outcome.untouched)]
    told += beside.warnings
    report = Relayouted(
        input=os.fspath(path) if where.is_alone else weights.path,
        output=where.shown(outputs),
        checkpoint=source,
        plan=plan,
        converted=tuple(converted),
        as_is=options.as_is,
        keeps_ties=fitted.keeps_ties,
        untouched=len(_untouched(outcome, found, typed) & plan.names.keys()),
        rearranged=rearranged,
        typed=typed,
        losses=counts,
        files=where.files([*outputs, *beside.outputs]),
        nbytes_before=sum(file.nbytes for file in whole.files),
        nbytes_after=sum(out.nbytes for out in outputs),
        left_out=(*gone, *carried.report.dropped, *where.sidecars.left, *beside.left_out),
        section=options.only,
        changed=fitted.changed,
        keeps_objects=fitted.keeps_objects,
        needs=tuple(dict.fromkeys((*fitted.needs, *beside.needs))),
        warnings=tuple(told),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=round(time.monotonic() - began, 3),
        sidecars=tuple(where.sidecars.files),
        made=tuple(where.made),
        optimizer=carried.report.with_files(beside.report),
    )
    cast, judge = typed.names if typed else {}, _casts.judge(typed, options.allow_overflow)
    expected = {name: entry for name, entry in outcome.untouched.items() if name in plan.names}
    more = (outcome.windows, outcome.made, cast, counts, judge, tuple(beside.works))
    return report, Work(checkpoint, plan, outputs, where, expected, *more)


def _beside(
    path: Path, source: Checkpoint, found: Following | None, plan: Plan, *, where: Destination,
    options: RelayoutOptions,
) -> tuple[Destination, FollowingWork]:  # fmt: skip
    """The files with the state of optimizers beside the weights, and where all goes."""
    if found is None:
        return where, FollowingWork()
    choice = OptimizerChoice(options.optimizer_names, state=options.state_choice)
    done = works(path, source, found, plan, where=where, options=options, choice=choice)
    sidecars = replace(where.sidecars, files={**where.sidecars.files, **done.unchanged})
    return where._replace(sidecars=sidecars), done


def _untouched(outcome: Outcome, found: list[Found], typed: Typed | None) -> set[str]:
    """The names that are neither of a network that was asked for nor cast."""
    of_networks = {name for one in found for name in one.network.tensors.values()}
    return set(outcome.untouched) - of_networks - set(typed.names if typed else ())


def _carried(
    path: Path, checkpoint: Checkpoint, converted: Sequence[Converted], where: Destination, *,
    options: RelayoutOptions,
    change: HandedOver | None,
) -> tuple[Carried, Destination, HandedOver | None, Following | None]:  # fmt: skip
    """The checkpoint without what its optimizers move, where it goes, and the change, which is taken once.

    The last are files beside it whose state has to follow.
    """
    moves: tuple[Move, ...] = ()
    renamed: Mapping[str, str] = {}
    ties = retied(checkpoint, options.untie, options.tie or {})
    state = options.state_choice
    if change is not None:
        taken = change.pop()
        if keeps_state(checkpoint) or holds_state(where.sidecars):
            moves, renamed = moves_of_parts(checkpoint.path, taken), renames(taken)
        change = [taken]
    else:
        moves = (*moves_of_networks(checkpoint, converted), *ties.moves)
    choice = OptimizerChoice(options.optimizer_names, options.drops_state, state)
    target, has_config = options.target or "", options.new_config is not None
    kept, files = following(where, moves, renamed, choice, has_config=has_config, target=target)
    choice = choice._replace(is_beside=files is not None)
    carried = prepared(path, checkpoint, moves, renamed, choice=choice)
    return _ties.carried(carried, ties, state), where._replace(sidecars=kept), change, files


def _planned(
    carried: Carried,
    converted: Sequence[Converted],
    where: Destination,
    options: RelayoutOptions,
    *,
    rearranged: Rearrangement | None,
    change: HandedOver | None,
) -> tuple[Plan, Outcome, Typed | None]:
    """The plan of an output that holds everything, proved; what happens to the names of the source, and their types."""
    checkpoint = carried.checkpoint
    if rearranged is not None and change is not None:
        from paramtool.commands import rearrange

        plan, outcome = rearrange.planned(checkpoint, rearranged, change, writer=where.writer, options=options)
    else:
        plan, outcome = together(
            checkpoint,
            converted,
            options.keep_names,
            options.skip_unsupported,
            split_content=not where.writer.holds.equal,
            merges=where.writer.is_graph,
        )
    plan, outcome = finished(plan, outcome, carried)
    refuse_unsaid(plan, carried, not where.writer.holds.objects)
    stay = outcome.untouched.keys() & checkpoint.entries.keys()
    check_codes(checkpoint.path, checkpoint.entries, {name: name for name in stay}, QUANTISE)
    typed = _casts.typed(plan, checkpoint, outcome.untouched, options)
    plan = typed.plan if typed else plan
    if typed and typed.dequantised:
        gone = {name for others in typed.dequantised.values() for name in others}
        rest = omit(outcome.rest.entries, gone)
        kept = {n: one for n, one in outcome.untouched.items() if n not in gone and n not in typed.dequantised}
        made = outcome.made | typed.dequantised.keys()
        outcome = replace(outcome, rest=replace(outcome.rest, entries=rest), untouched=kept, made=made)
    metadata = with_tensors(checkpoint.path, plan.metadata, {name: name for name in plan.names})
    plan = replace(plan, metadata=metadata)
    check(plan, plan.order, checkpoint.storages)
    return plan, outcome, typed


def _rearrangement_for(
    where: Destination, checkpoint: Checkpoint, options: RelayoutOptions
) -> tuple[Rearrangement, HandedOver] | tuple[None, None]:
    """As `_rearrangement`; UnsafeError if the output would lack the config of the model."""
    found = _rearrangement(checkpoint, options)
    if found[0] is not None:
        check_config(os.path.dirname(checkpoint.path), where.sidecars)
    return found


def _rearrangement(
    checkpoint: Checkpoint, options: RelayoutOptions
) -> tuple[Rearrangement, HandedOver] | tuple[None, None]:
    """What is done to attention, gated MLPs and experts, for the report and to plan it; None for recurrent networks."""
    from paramtool.commands import rearrange

    if rearrange.is_wanted(checkpoint, options) or _has_parts_alone(checkpoint, options):
        found = rearrange.rearrangement(checkpoint, options)
        return found.reported(), [found.change]
    return None, None


def _has_parts_alone(checkpoint: Checkpoint, options: RelayoutOptions) -> bool:
    """Whether `unfuse` without a layout finds fused parts, and no recurrent network."""
    from paramtool.commands import _fusing, rearrange

    if not rearrange.is_unsaid(options) or not _fusing.is_possible(checkpoint, options.spec):
        return False
    try:
        return not source_networks(checkpoint, options, lenient=True)
    except (LayoutError, UsageError):
        return True


def _output_warnings(
    where: Destination, plan: Plan, options: RelayoutOptions, beside: Collection[str]
) -> Iterator[str]:
    """What a person has to know of the output, of the tensors `beside` its networks, and of the files beside it."""
    yield from flat_pair_warnings(plan, where.writer)
    yield from where.writer.caveats(plan)
    if where.writer.name == "MXNet" and options.target == "mxnet" and beside:
        yield (
            "names of layout mxnet are those of a recurrent layer alone, and of a symbol; load_parameters of a whole "
            "net expects those of --to mxnet.unfused"
        )
    if (
        where.writer.name == "npz"
        and _name(options.target) == MXNET_2
        and (refused := list(not_for_mxnet(plan.targets)))
    ):
        yield f"MXNet 2 cannot read {some(refused, IGNORED)}, and so nothing of the file"


_OF_CONVERT = (
    "described", "as_is", "dtype", "keep_float32", "allow_overflow", "dequantise", "into", "map", "flatten", "partial",
    "untie", "tie",
)  # fmt: skip
"""Fields that `fuse` and `unfuse` have no keywords for."""


@keywords(RelayoutOptions, fixed=("described", "as_is"))
def convert(
    path: Path, output: Path | None = None, *, options: RelayoutOptions, progress: Progress = silent
) -> Relayouted:
    """Write a checkpoint in another format, its networks in another layout, a model in another dialect, other types.

    The suffix of `output` says the format; a dialect takes a folder with config.json and writes a folder.  Everything
    else stays as it is.  Without `target` the networks stay in the layout that they are in, unless the format has one
    layout only, as ONNX has.

        convert("lstm.params", "lstm.safetensors", source="mxnet", target="torch")
        convert("mixtral", "mixtral-vllm", target="vllm")
        convert("resnet.pt", "resnet16.safetensors", dtype="float16", keep_float32=["batchnorm"])

    The keywords:

    - `source`: the layout they are in (`--from`), with options after a colon: `tf1.basic:forget_bias=0`; without it
      what the file says, else torch
    - `target`: the layout or the dialect to write (`--to`), as `paramtool layouts` lists them
    - `spec`: what the file does not say of the networks: `lstm layers=2 hidden=128 input=18`
    - `at`: modules, patterns that match one, or flat tensors; without it all networks
    - `ignore`: patterns of tensors beside a network that it is converted without
    - `stack`: `enc0,enc1=enc` puts networks together as the layers of one; `enc=enc0,enc1` takes one apart
    - `rename`: {module: its name in the output}
    - `keep_names`: also record the old names, as views of the new tensors
    - `keep_split`: also write what the conversion loses, so that the way back gives the same bytes
    - `drop_kept`: leave out what an earlier conversion kept
    - `layout_file`: TOML files with layouts of your own, and with rules for types
    - `dtype`: the type of every floating point tensor, as in `"float16"`; or rules, as in `{"head.*": "float32"}` or
      `["float16", "head.*=float32"]`, of which the last that matches counts
    - `keep_float32`: kinds of modules (batchnorm, norm, scales, counters) or patterns of tensors that stay float32
    - `allow_overflow`: casts may make finite numbers infinite
    - `dequantise`: write the weights that FP8 codes and their scales stand for, in the scales' type, or in `dtype`
    - `into`: a model file of Keras or ONNX: the output is this model with its weights replaced, its networks in its
      layout; everything else of it stays byte for byte
    - `map`: `A=B` puts network, layer or tensor A of the input into B of the model; `A,B=C` and `A=B,C` join and split
      layers; `A=B:transpose` and `A=B:as-is` say the order of a matrix' axes
    - `flatten`: where the source has the channels of images that it flattens: `channels-first`, `channels-last`
    - `partial`: leave what the model has no place for, or in another shape
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint); without it `dcp`
      if the input is such a folder, else `safetensors`
    - `optimizer_names`: a file with the names of an optimizer's parameters, one for each of its entries
    - `untie`, `tie`: names that become tensors of their own; {name: the equal tensor that it becomes a name of}
    - `optimizer_state`: what becomes of the state of optimizers: `copy`, `split`, `zero` or `one` where a parameter
      becomes several, `first` or `second` where two become one; `drop` leaves it out
    - `new_config`: the config.json of the model that opens the output folder: it is copied there, and the entries of an
      optimizer beside the weights get the order of its parameters

    With `into`, `strict` refuses to leave a weight of the model as it was.  All others are those of `dedup`.
    LayoutError where a network is not found, does not fit, or its bytes break what the conversion requires; nothing is
    written then.
    """
    return relayout(path, output, aimed(options, output or ""), progress=progress)


MXNET_2 = "mxnet.v2"
"""The layout that only MXNet 2 has."""


def _name(layout: str | None) -> str:
    return layouts.parse(layout or "")[0]


def aimed(options: RelayoutOptions, output: Path) -> RelayoutOptions:
    """The options of `convert` with the layout that the output's format has, if it has only one and none is given.

    With neither, networks stay as they are: UsageError if an option says how to convert them.
    """
    if options.into is not None:
        if options.format is not None:
            raise UsageError("the output is a model (--into), and --format is for folders of weights")
        if options.dtype or options.keep_float32 or options.allow_overflow or options.dequantise:
            raise UsageError(
                "the types of tensors are those of the model (--into), and --dtype gives others",
                hint="convert the types first, without --into, and then that output --into the model",
            )
        return options
    if options.map or options.flatten or options.partial:
        flag = next(name for name in ("map", "flatten", "partial") if getattr(options, name))
        raise UsageError(f"--{flag} says what goes into which layer of a model", hint="it needs --into MODEL")
    only = writer_for(output).only_layout
    if only and options.target not in (None, only):
        raise UsageError(
            f"{output}: --to {options.target}: recurrent networks in such a file have layout {only}",
            hint=f"-o NAME.safetensors holds any layout; for this output leave out --to, or give --to {only}",
        )
    target = options.target or only
    if target and _name(target) == MXNET_2 and writer_for(output).name == "MXNet":
        raise UsageError(
            f"{os.fspath(output)}: MXNet 2 does not load an NDArray list under NumPy's semantics; it loads .npz",
            hint=f"-o {quote(os.path.splitext(os.fspath(output))[0])}.npz, which may be renamed to .params",
        )
    if target and options.dequantise:
        raise UsageError(
            f"--dequantise writes weights in the layout that they are in, and --to {target} in another",
            hint="convert without --to first, and then that output --to another layout",
        )
    return replace(options, target=target) if target else replace(options, as_is=True)


@keywords(RelayoutOptions, fixed=("target", *_OF_CONVERT))
def fuse(
    path: Path, output: Path | None = None, *, layout: str, options: RelayoutOptions, progress: Progress = silent
) -> Relayouted:
    """Write recurrent networks, attention, gated MLPs or experts as fused tensors, in `layout`.

        fuse("model.pt", layout="cudnn")
        fuse("llama", "fused", layout="qkv")

    Without `output` it is `STEM.fused.safetensors` beside the input.  Sizes that no shape shows, such as the number of
    heads, come from config.json or `spec`.  The other keywords, and errors, are those of `convert`.
    """
    options = replace(options, target=layout)
    check_no_dialect("fuse", options)
    return relayout(path, output, options, word="fused", progress=progress)


@keywords(RelayoutOptions, fixed=("source", "keep_names", *_OF_CONVERT))
def unfuse(
    path: Path,
    output: Path | None = None,
    *,
    layout: str | None = None,
    options: RelayoutOptions,
    progress: Progress = silent,
) -> Relayouted:
    """Write fused recurrent networks, attention, gated MLPs and experts as separate named tensors.

        unfuse("flat.pt", layout="cudnn", at=["rnn.weights"], spec="lstm layers=2 hidden=128 input=18")

    `layout` is how they are fused; without it, what the file says.  `target` is the layout of recurrent networks in the
    output: torch, unless another is given.  Without `output` it is `STEM.unfused.safetensors` beside the input.  The
    other keywords, and errors, are those of `convert`.
    """
    options = replace(options, source=layout, described=True)
    check_no_dialect("unfuse", options)
    return relayout(path, output, options, word="unfused", progress=progress)
