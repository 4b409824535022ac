"""Writing recurrent networks in another layout, and tensors in other types: fuse, unfuse and convert are this."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from shlex import quote
from typing import TYPE_CHECKING, Any

from paramtool import layouts
from paramtool.commands import _casts, _ties, copied_state
from paramtool.commands.layouts import check_no_dialect, register_files
from paramtool.commands.opening import Each, each, opened
from paramtool.commands.optimizer_carry import (
    Carried,
    OptimizerChoice,
    StateReport,
    finished,
    keeps_state,
    prepared,
    refuse_unsaid,
)
from paramtool.commands.optimizer_files import Following, FollowingWork, following, holds_state, works
from paramtool.commands.output import unsafe_sidecars
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
)
from paramtool.commands.output.options import ALIGN, ObjectOptions, chosen
from paramtool.commands.output.report import WholeReport
from paramtool.commands.output.sidecar_checks import check_config
from paramtool.commands.output.write import Work, done, laid_out
from paramtool.commands.output.writers import MXNET, NPZ, writer_for
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.engine.write.casting import Counts, Losses
from paramtool.errors import LayoutError, UnknownSizesError, UsageError, listed, plural, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.numpy.write import not_for_mxnet
from paramtool.formats.record import parts as parts_record
from paramtool.formats.record import ties as ties_record
from paramtool.formats.record import types as types_record
from paramtool.formats.record.ties import RecordedTies
from paramtool.layouts.networks import squeezed
from paramtool.layouts.spec import Facts, parse
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.display import Row, some_rows
from paramtool.model.inflating import limiting
from paramtool.model.optimizer import TIED, UNTIED, Move, StateChoice
from paramtool.model.plan import Plan, check
from paramtool.passes.into.plan import Into
from paramtool.passes.retied import retied
from paramtool.passes.rewriting import Outcome
from paramtool.passes.rnn import convert as relayout_pass
from paramtool.passes.rnn import stacking
from paramtool.passes.rnn.convert import Converted
from paramtool.passes.rnn.find import Found, NetworkRequest, find
from paramtool.passes.rnn.rewrite import moves as moves_of_networks
from paramtool.passes.rnn.rewrite import together

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.guessing.candidates import Guess
    from paramtool.passes.parts.rearranged import HandedOver
    from paramtool.passes.types.apply import Typed

DEFAULT = "torch"
"""What is written where nobody says another layout."""


OF_NETWORKS = {
    "source": "--from", "spec": "--spec", "at": "--at", "ignore": "--ignore", "stack": "--stack",
    "rename": "--rename", "keep_names": "--keep-names", "keep_split": "--keep-split", "drop_kept": "--drop-kept",
}  # fmt: skip
"""{an option that says how networks are converted: its flag}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayoutOptions(ObjectOptions):
    """How networks are found and written."""

    source: str | None = None
    """The layout they are in, with options: `tf1.basic:forget_bias=0`.  None: what the file says, else torch."""
    target: str | None = None
    """The layout that is wanted, with options.  None: torch, or torch.cell for what was fused from cells."""
    as_is: bool = False
    """Leave the networks in the layout that they are in; `target` is None then."""
    described: bool = False
    """Where the file describes networks itself, only these are taken."""
    spec: str = ""
    """What the file does not say of the networks."""
    at: Sequence[str] = ()
    """Modules, or patterns that each match one; empty for every network that is found."""
    ignore: Sequence[str] = ()
    """Patterns of tensors that may stand beside a network without being a part of it; they stay as they are."""
    stack: Sequence[str] = ()
    """`enc0,enc1=enc` puts networks together as the layers of one, `enc=enc0,enc1` takes one apart."""
    rename: Mapping[str, str] | None = None
    """{module: its name in the output}."""
    keep_names: bool = False
    """Also record the old names, as windows on the new tensors."""
    keep_split: bool = False
    """Also write what the conversion would lose, so that the way back gives the same bytes."""
    drop_kept: bool = False
    """Do without what an earlier conversion kept."""
    layout_file: Sequence[Path] = ()
    """TOML files with layouts of one's own, and with rules for types."""
    dtype: str | Mapping[str, str] | Sequence[str] = ()
    """`float16` for every floating point tensor, and `PATTERN=DTYPE`, or {pattern: dtype}."""
    keep_float32: Sequence[str] = ()
    """Kinds of modules, or patterns, of tensors that are float32 in the output."""
    allow_overflow: bool = False
    """Casts may make finite numbers infinite."""
    into: Path | None = None
    """A model whose weights are replaced, and which stays as it is otherwise; None writes a file of its own."""
    map: Sequence[str] = ()
    """`A=B` puts network, layer or tensor A of the input into B of the model."""
    optimizer_names: Path | None = None
    """A file with the names of an optimizer's parameters, one for each of its entries."""
    drop_optimizer: bool = False
    """Leave out the state of optimizers."""
    untied_state: str = ""
    """What each of several parameters gets of the state of the one that they were: `copy`, `split`, `zero`, `one`."""
    tied_state: str = ""
    """Whose state is kept where parameters become one: `first` or `second`."""
    untie: Sequence[str] = ()
    """Names that become tensors of their own."""
    tie: Mapping[str, str] | None = None
    """{name: the other name whose tensor it becomes a name of}; their bytes have to be equal."""
    new_config: Path | None = None
    """The config.json of the model that opens the output folder; None keeps that of the input folder."""
    format: str | None = None
    """The format of an output folder: `safetensors` or `dcp`.  None: `dcp` where the input is such a folder."""

    def __post_init__(self) -> None:
        """UsageError for what says how networks are converted, where none is."""
        ObjectOptions.__post_init__(self)
        _check_ties(self)
        given = [flag for name, flag in OF_NETWORKS.items() if getattr(self, name)]
        if self.as_is and given:
            raise UsageError(
                f"{given[0]} says how networks are converted, and no layout is given to convert them to",
                hint="--to torch writes that of PyTorch; `paramtool layouts` lists all",
            )


def _check_ties(options: RelayoutOptions) -> None:
    """UsageError for choices that there are not, and for ties that change beside layouts."""
    for flag, value, known in (
        ("--untied-state", options.untied_state, UNTIED),
        ("--tied-state", options.tied_state, TIED),
    ):
        if value and value not in known:
            raise UsageError(f"{flag} {value}: expected one of {', '.join(known)}")
    if options.tied_state and options.as_is and not options.tie:
        raise UsageError("--tied-state says whose state is kept by --tie, and no --tie is given")
    if options.untied_state and options.as_is and not options.untie:
        raise UsageError("--untied-state says what --untie leaves of the state, and no --untie is given")
    if (options.untie or options.tie) and (options.target or options.source or options.into is not None):
        raise UsageError(
            "--tie and --untie change which names are one tensor, and not the layout of tensors",
            hint="convert without --to and --into first, and then the output --to another layout",
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Relayouted(WholeReport):
    """What `convert`, `fuse` or `unfuse` did, or would do."""

    converted: tuple[Converted, ...]
    untouched: int
    """Tensors that belong to no converted network and have the type that they had."""
    as_is: bool = False
    """Whether no layout was asked for."""
    typed: Typed | None = None
    """Which tensors were cast, and which stay in float32; None where nobody asked for other types."""
    losses: Mapping[str, Losses] = field(default_factory=dict)
    """{stored tensor: what its cast did to its elements}; without `dry_run` it is filled when it is written."""
    rearranged: Rearrangement | None = None
    """What was done to attention, gated MLPs and experts; None where recurrent networks were meant."""
    into: Into | None = None
    """What went where in a given model."""
    model: str = ""
    """That model."""
    judge: str = ""
    """The library that read the model back, too."""
    optimizer: StateReport = field(default_factory=StateReport)
    """What became of the optimizers in it."""

    @property
    def ties(self) -> RecordedTies:
        """The names that became tensors of their own, and those that became names of other tensors."""
        before, after = (ties_record.decode(self.input, one.metadata) for one in (self.checkpoint, self.plan))
        return after if after != before else RecordedTies({}, {}, {})

    @property
    def is_recorded(self) -> bool:
        """Whether the output says what was converted and cast, so that `verify` can do it again."""
        is_cast = self.typed is not None and bool(self.typed.casts)
        is_kept = self.rearranged is None or parts_record.KEY in self.plan.metadata or not self.rearranged.is_recorded
        return (is_kept and (not self.converted or bool(self.plan.modules))) and (
            not is_cast or types_record.KEY in self.plan.metadata
        )

    def _more(self, most: int) -> Iterator[Row]:
        names = ((one.source.at or "(top)", one.source.layout.name, one) for one in self.converted)
        networks = (f"{at}: {old} -> {one.layout.name}, {one.spec}" for at, old, one in names)
        yield from some_rows(most, "network", networks, what="networks")
        if self.typed is not None:
            yield "cast", f"{plural(len(self.typed.names), 'tensor')}; {len(self.typed.kept)} stay in float32"
        yield "untouched", f"{self.untouched} other tensors"


@limiting
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
    return replace(report, seconds=time.monotonic() - began)


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
            path, output, found, size, force=options.force, word=called, others=options.layout_file, form=form,
            brings={hf_config.NAME: config} if config else {}, format=options.format,
        )  # fmt: skip
        if config and not where.is_folder:
            raise UsageError(
                f"{where.path}: new_config (--new-config) goes beside the weights of a folder", "-o FOLDER"
            )
        return where

    report, work = _prepared(path, found, where, output, options=options)
    return done(report, work, options, progress)


@limiting
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
    if options.into is not None:
        raise UsageError("into (--into) takes one checkpoint and one model; it does not go with --each")
    if options.format is not None:
        raise UsageError("format (--format) is for one set of weights, and --each keeps the format of each")
    if options.new_config is not None:
        raise UsageError("new_config (--new-config) is for one set of weights, and --each takes all")
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
        made |= _ties.untied_config(found.checkpoint, options.untie)
    if not made:
        return form
    form = form or DialectFolder(found.name)
    return replace(form, made={**form.made, **made}, gone=form.gone | made.keys())


def _adapter(folder: str, checkpoint: Checkpoint, options: RelayoutOptions) -> Mapping[str, bytes]:
    """The config of an adapter in a folder, if its modules get other names."""
    from paramtool.commands import adapter_config

    if options.as_is or not os.path.isfile(os.path.join(folder, adapter_config.NAME)):
        return {}
    rearranged, change = _rearrangement(checkpoint, options)
    if rearranged is None or change is None:
        return {}
    taken = change.take()
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
    checkpoint, warnings = _ties.with_config_ties(checkpoint, options.untie), allow(checkpoint, output)
    where = choose()
    rearranged, change = _rearrangement_for(where, checkpoint, options)
    found = [] if options.as_is or rearranged else _networks_for(where, checkpoint, options)
    converted = [_convert(checkpoint, one, options) for one in found]
    carried, where, change, found_files = _carried(path, checkpoint, converted, where, options=options, change=change)
    source, checkpoint = checkpoint, carried.checkpoint
    planned, outcome, typed = _planned(carried, converted, where, options, rearranged=rearranged, change=change)
    fitted = where.writer.fit(planned, checkpoint, keeping(options))
    plan, typed = fitted.plan, _casts.held(typed, fitted.plan)
    where, beside = _beside(path, source, found_files, plan, where=where, options=options)
    outputs, counts = laid_out(plan, where, options.align), Counts()
    gone = [*other_sections(whole, options.only), *left_out(outcome.rest, planned), *fitted.left_out, *fitted.unsaid]
    told = [*lost_warnings(fitted, where.path), *checkpoint.notes, *warnings, *outcome.warnings]
    told += rearranged.warnings if rearranged else _network_warnings(found)
    told += _casts.warnings(typed, where.sidecars.files)
    told += copied_state.warnings(path, weights, where.sidecars.files, options)
    told += [*_output_warnings(where, plan, options, outcome.untouched), *beside.warnings]
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
        keeps_objects=not fitted.changed and (bool(fitted.lost) or not fitted.left_out),
        needs=tuple(dict.fromkeys((*fitted.needs, *beside.needs))),
        warnings=tuple(told),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
        seconds=time.monotonic() - began,
        sidecars=tuple(where.sidecars.files),
        optimizer=carried.report.with_files(beside.report),
    )
    cast, judge = typed.names if typed else {}, _casts.judge(typed, options.allow_overflow)
    expected = {name: entry for name, entry in outcome.untouched.items() if name in plan.names}
    more = (outcome.windows, outcome.made, cast, counts, judge, beside.works)
    return report, Work(checkpoint, plan, outputs, where, expected, *more)


def _beside(
    path: Path, source: Checkpoint, found: Following | None, plan: Plan, *, where: Destination,
    options: RelayoutOptions,
) -> tuple[Destination, FollowingWork]:  # fmt: skip
    """The files with the state of optimizers beside the weights, and where all goes."""
    if found is None:
        return where, FollowingWork()
    choice = OptimizerChoice(options.optimizer_names, state=StateChoice(options.untied_state, options.tied_state))
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
    state = StateChoice(options.untied_state, options.tied_state)
    if change is not None:
        from paramtool.passes.parts.rearranged import HandedOver, renames
        from paramtool.passes.parts.rewrite import moves as moves_of_parts

        taken = change.take()
        if keeps_state(checkpoint) or holds_state(where.sidecars):
            moves, renamed = moves_of_parts(checkpoint.files[0].path, taken), renames(taken)
        change = HandedOver(taken)
    else:
        moves = (*moves_of_networks(checkpoint, converted), *ties.moves)
    choice = OptimizerChoice(options.optimizer_names, options.drop_optimizer, state)
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
            split_content=where.writer.aliases_equal_bytes,
            merges=where.writer.is_graph,
        )
    plan, outcome = finished(plan, outcome, carried)
    refuse_unsaid(plan, carried, where.writer.is_plain)
    typed = _casts.typed(plan, checkpoint, outcome.untouched, options)
    plan = typed.plan if typed else plan
    check(plan, plan.order, checkpoint.storages)
    return plan, outcome, typed


def _rearrangement_for(
    where: Destination, checkpoint: Checkpoint, options: RelayoutOptions
) -> tuple[Rearrangement, HandedOver] | tuple[None, None]:
    """As `_rearrangement`; UnsafeError if the output would lack the config of the model."""
    found = _rearrangement(checkpoint, options)
    if found[0] is not None:
        check_config(os.path.dirname(checkpoint.files[0].path), where.sidecars)
    return found


def _rearrangement(
    checkpoint: Checkpoint, options: RelayoutOptions
) -> tuple[Rearrangement, HandedOver] | tuple[None, None]:
    """What is done to attention, gated MLPs and experts, for the report and to plan it; None for recurrent networks."""
    from paramtool.commands import rearrange
    from paramtool.passes.parts.rearranged import HandedOver

    if rearrange.is_wanted(checkpoint, options) or _has_parts_alone(checkpoint, options):
        found = rearrange.rearrangement(checkpoint, options)
        return found.reported(), HandedOver(found.change)
    return None, None


def _has_parts_alone(checkpoint: Checkpoint, options: RelayoutOptions) -> bool:
    """Whether `unfuse` without a layout finds fused parts, and no recurrent network."""
    from paramtool.commands import rearrange, unfuse_seen

    if not rearrange.is_unsaid(options) or not unfuse_seen.is_possible(checkpoint, options.spec):
        return False
    try:
        return not source_networks(checkpoint, options, lenient=True)
    except (LayoutError, UsageError):
        return True


def _network_warnings(found: list[Found]) -> Iterator[str]:
    """What is beside the networks, and what is between them."""
    yield from _ignored(found)
    yield from _between(found)


def _output_warnings(
    where: Destination, plan: Plan, options: RelayoutOptions, beside: Collection[str]
) -> Iterator[str]:
    """What a person has to know of the output, of the tensors `beside` its networks, and of the files beside it."""
    yield from name_warnings(where)
    yield from unsafe_sidecars.warnings(where.sidecars.files, options.allow_class)
    yield from flat_pair_warnings(plan, where.writer)
    yield from where.writer.caveats(plan)
    if where.writer is MXNET and options.target == "mxnet" and beside:
        yield (
            "names of layout mxnet are those of a recurrent layer alone, and of a symbol; load_parameters of a whole "
            "net expects those of --to mxnet.unfused"
        )
    if where.writer is NPZ and _name(options.target) == MXNET_2 and (refused := list(not_for_mxnet(plan.targets))):
        yield f"MXNet 2 cannot read {some(refused, IGNORED)}, and so nothing of the file"


def _networks_for(where: Destination, checkpoint: Checkpoint, options: RelayoutOptions) -> list[Found]:
    """The networks that are asked for; where there are none, the error says what such an output can hold."""
    try:
        found = source_networks(checkpoint, options)
        _check_renamed(checkpoint, found, options.rename or {})
        return found
    except LayoutError as error:
        if options.described and options.source is None and not options.at and not checkpoint.modules:
            _refuse_apart(checkpoint)
            _refuse_dialect(checkpoint)
        if where.writer.is_graph:
            error.hint += "; a new ONNX model holds recurrent networks alone, and --into MODEL.onnx fills any model"
        if options.described and options.source is None and not checkpoint.modules:
            error.hint += "; no fused attention, gated MLP or experts are known in it either"
        raise


def _refuse_dialect(checkpoint: Checkpoint) -> None:
    """LayoutError if the fused tensors of a checkpoint have only the names and forms of a dialect."""
    from paramtool.commands.seen_parts import dialect_of
    from paramtool.dialects import HUB, MEMORY

    if (dialect := dialect_of(checkpoint)) not in ("", HUB, MEMORY):
        raise LayoutError(
            f"{checkpoint.files[0].path}: its names are those of {dialect}; no layout of single tensors is known under "
            "them",
            hint=f"paramtool convert SRC --from {dialect} --to {HUB} -o DST converts the whole model",
        )


def _refuse_apart(checkpoint: Checkpoint) -> None:
    """LayoutError if all attention, gated MLPs and experts of a checkpoint are separate tensors already."""
    from paramtool.commands.seen_parts import seen_parts

    seen = seen_parts(checkpoint)
    if seen is not None and all(group.form != "fused" for group in seen.groups):
        from paramtool.passes.parts.groups import words

        where = checkpoint.files[0].path
        lines = [f"{tower.at}: {words(tower)}" for tower in seen.towers]
        kinds = " or ".join(dict.fromkeys(group.kind for group in seen.groups))
        raise LayoutError(
            listed(f"{where}: nothing is fused in it; its attention, gated MLPs and experts are apart:", lines),
            hint=f"paramtool fuse --layout {kinds} joins them; --layout LAYOUT --at MODULE names another tensor",
        )


def source_networks(checkpoint: Checkpoint, options: RelayoutOptions, *, lenient: bool = False) -> list[Found]:
    """The networks that are asked for, with layers put together or taken apart; `lenient` as in `NetworkRequest`."""
    return _stacked(checkpoint, _find(checkpoint, options, lenient=lenient), options)


def _find(checkpoint: Checkpoint, options: RelayoutOptions, *, lenient: bool = False) -> list[Found]:
    """The networks that are asked for; where a flat vector could be many, the error lists the likely ones."""
    try:
        return find(checkpoint, replace(_wanted(options), lenient=lenient))
    except UnknownSizesError as error:
        views = checkpoint.views()
        if any(len(squeezed(views[name].shape)) != 1 for name in error.names):
            raise
        raise _unsure(checkpoint, error.names[0], parse(options.spec), options.source) from None


def _stacked(checkpoint: Checkpoint, found: list[Found], options: RelayoutOptions) -> list[Found]:
    """The networks with layers put together or taken apart."""
    stacks = [stacking.parse(text) for text in options.stack]
    by_name = {one.network.at: one for one in found}
    where = checkpoint.files[0].path
    made = stacking.stacked(where, [one.network for one in found], stacks)
    old = [by_name[at] for one in made for at in one.stacked]
    if kept := [name for name in checkpoint.entries if not options.drop_kept and any(o.is_kept(name) for o in old)]:
        raise LayoutError(
            f"{where}: {kept[0]!r} holds biases of a network that --stack takes layers of",
            hint="--drop-kept continues without them, or convert first and stack the result",
        )
    return [
        replace(by_name[one.stacked[0]], network=one, shapes={}, ignored=()) if one.stacked else by_name[one.at]
        for one in made
    ]


def _unsure(checkpoint: Checkpoint, name: str, facts: Facts, source: str | None) -> LayoutError:
    """A flat vector fits many networks; the first that are plausible, each with the words to type."""
    from paramtool.guessing import vectors
    from paramtool.guessing.candidates import flat, spec_of

    shapes = {other: view.shape for other, view in checkpoint.views().items()}
    where, length = checkpoint.files[0].path, prod(shapes[name])
    every = flat(length, vectors.hints(name, shapes, layouts.parse(source or "")[0]))
    likely = [c for c in every if all(getattr(spec_of(c.spec), key) == value for key, value in facts.items())]
    if not likely:
        return LayoutError(
            f"{where}: {name!r} has {plural(length, 'element')}; no network with these facts has this length",
            _look_closer(where),
        )
    lines = [f"{_words(one)}   {'; '.join(one.reasons[:2])}" for one in likely[:LIKELY]]
    fits = plural(len(likely), "network")
    head = f"{where}: {name!r} has {plural(length, 'element')}; that fits {fits}; choose one:"
    return LayoutError(listed(head, lines, len(likely) - len(lines)), _look_closer(where))


def _words(one: Guess) -> str:
    """What to type for a candidate; the layout only where its options have to be said."""
    return f'{f"--layout {one.layout} " if ":" in one.layout else ""}--spec "{one.spec}"'


LIKELY = 5
"""The most networks that a vector could be, in an error."""


def _look_closer(where: str) -> str:
    """What to do next."""
    return f"paramtool guess {quote(where)} looks at the values, too"


def _ignored(found: list[Found]) -> Iterator[str]:
    """What stands beside the networks and was said not to matter."""
    for one in found:
        if one.ignored:
            where = repr(one.network.at) if one.network.at else "the network"
            yield f"{where}: converted without {some(one.ignored, IGNORED)}, as --ignore says"


def _between(found: list[Found]) -> Iterator[str]:
    """What nobody looked for between layers that were put together."""
    for one in found:
        if len(one.network.stacked) > 1:
            names = ", ".join(map(repr, one.network.stacked))
            yield (
                f"{one.network.at!r}: computes what {names} do where each takes just what the one before gives; "
                "an activation, a norm or a sum between them is not looked for"
            )


IGNORED = 8
"""So many ignored names are written out."""


def _wanted(options: RelayoutOptions) -> NetworkRequest:
    return NetworkRequest(
        options.source, parse(options.spec), tuple(options.at), options.described, tuple(options.ignore)
    )


def _convert(checkpoint: Checkpoint, found: Found, options: RelayoutOptions) -> Converted:
    """One network in the layout that is wanted."""
    network = found.network
    try:
        name, chosen = layouts.parse(options.target or found.parts or DEFAULT)
        layout = layouts.find(name)
    except UsageError as error:
        if options.target is not None:
            raise
        text = (
            f"{checkpoint.files[0].path}: {network.at!r:.200}: the file says what it was made from, and {error.message}"
        )
        raise LayoutError(text, "--layout-file has a layout of one's own, `convert --to` writes another") from None
    at = (options.rename or {}).get(network.at, network.at)
    views = {name: view for name, view in checkpoint.views().items() if not (options.drop_kept and found.is_kept(name))}
    shapes = found.shapes if name == found.parts else {}
    if name == network.layout.name and options.target is None:
        shapes = {own: views[tensor].shape for own, tensor in network.tensors.items()}
    try:
        return relayout_pass.convert(
            network, views, layout, chosen, at=at, keep_split=options.keep_split, shapes=shapes
        )
    except LayoutError as error:
        raise error.located(checkpoint.files[0].path) from None


def _check_renamed(checkpoint: Checkpoint, found: list[Found], rename: Mapping[str, str]) -> None:
    """UsageError for a new name of what is no converted network."""
    there = dict.fromkeys(one.network.at for one in found)
    if unknown := [at for at in rename if at not in there]:
        where, known = checkpoint.files[0].path, ", ".join(map(repr, there))
        raise UsageError(f"{where}: --rename {unknown[0]!r} is not a converted network; expected one of: {known}")


def convert(
    path: Path, output: Path, *, source: str | None = None, target: str | None = None,
    spec: str = "", at: Sequence[str] = (), ignore: Sequence[str] = (), stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None, keep_names: bool = False, keep_split: bool = False,
    drop_kept: bool = False, layout_file: Sequence[Path] = (),
    dtype: str | Mapping[str, str] | Sequence[str] = (), keep_float32: Sequence[str] = (), allow_overflow: bool = False,
    into: Path | None = None, map: Sequence[str] = (), format: str | None = None,
    untie: Sequence[str] = (), tie: Mapping[str, str] | None = None,
    skip_unsupported: bool = False, plain: bool = False, strict: bool = False, weights: str | None = None,
    only: str | None = None, max_shard_size: int | None = None, align: int = ALIGN, allow_class: Sequence[str] = (),
    allow_unknown: bool = False, max_inflated: int | None = None, optimizer_names: Path | None = None,
    drop_optimizer: bool = False, untied_state: str = "", tied_state: str = "", new_config: Path | None = None,
    verify: bool = True, dry_run: bool = False, force: bool = False, progress: Progress = silent,
) -> Relayouted:  # fmt: skip
    """Write the recurrent networks of a checkpoint in layout `target`, tensors in other types, and the rest as it is.

    The suffix of `output` says the format.  Without `target` the networks stay in the layout that they are in, unless
    the format has one layout only, as ONNX has.

    convert("lstm.params", "lstm.safetensors", source="mxnet", target="torch")
    convert("resnet.pt", "resnet16.safetensors", dtype="float16", keep_float32=["batchnorm"])

    The keywords:

    source             the layout they are in (`--from`), with options after a colon: `tf1.basic:forget_bias=0`;
                       without it what the file says, else torch
    target             the layout to write (`--to`), as `paramtool layouts` lists them; without it networks stay as they
                       are
    spec               what the file does not say of the networks: `lstm layers=2 hidden=128 input=18`
    at                 modules, patterns that match one, or flat tensors; without it all networks
    ignore             patterns of tensors beside a network that it is converted without
    stack              `enc0,enc1=enc` puts networks together as the layers of one; `enc=enc0,enc1` takes one apart
    rename             {module: its name in the output}
    keep_names         also record the old names, as views of the new tensors
    keep_split         also write what the conversion loses, so that the way back gives the same bytes
    drop_kept          leave out what an earlier conversion kept
    layout_file        TOML files with layouts of your own, and with rules for types
    dtype              the type of every floating point tensor, as in "float16"; or rules, as in {"head.*": "float32"}
                       or ["float16", "head.*=float32"], of which the last that matches counts
    keep_float32       kinds of modules (batchnorm, norm, scales, counters) or patterns of tensors that are float32 in
                       the output
    allow_overflow     casts may make finite numbers infinite
    into               a model file of Keras or ONNX: the output is this model with its weights replaced, its networks
                       in its layout; everything else of it stays byte for byte
    map                `A=B` puts network, layer or tensor A of the input into B of the model; `A,B=C` and `A=B,C`
                       join and split layers; `A=B:transpose` and `A=B:as-is` say the order of a matrix' axes
    format             the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint); without
                       it `dcp` if the input is such a folder, else `safetensors`
    optimizer_names    a file with the names of an optimizer's parameters, one for each of its entries
    drop_optimizer     leave out the state of optimizers, where it cannot follow the new parameters
    untie, tie         names that become tensors of their own; {name: the equal tensor that it becomes a name of}
    untied_state, tied_state    what an optimizer keeps for them: `copy`, `split`, `zero`, `one`; `first`, `second`
    new_config         the config.json of the model that opens the output folder: it is copied there, and the entries
                       of an optimizer beside the weights get the order of its parameters

    With `into`, `strict` refuses to leave a weight of the model as it was.
    All others are those of `dedup`.  LayoutError where a network is not found, does not fit, or its bytes break what
    the conversion requires; nothing is written then.
    """
    return relayout(path, output, aimed(_options(locals()), output), progress=progress)


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
        if options.dtype or options.keep_float32 or options.allow_overflow:
            raise UsageError(
                "the types of tensors are those of the model (--into), and --dtype gives others",
                hint="convert the types first, without --into, and then that output --into the model",
            )
        return options
    if options.map:
        raise UsageError("map (--map) says what goes into which layer of a model", hint="it needs --into MODEL")
    only = writer_for(output).only_layout
    if only and options.target not in (None, only):
        raise UsageError(
            f"{output}: --to {options.target}: recurrent networks in such a file have layout {only}",
            hint=f"-o NAME.safetensors holds any layout; for this output leave out --to, or give --to {only}",
        )
    target = options.target or only
    if target and _name(target) == MXNET_2 and writer_for(output) is MXNET:
        raise UsageError(
            f"{os.fspath(output)}: MXNet 2 does not load an NDArray list under NumPy's semantics; it loads .npz",
            hint=f"-o {quote(os.path.splitext(os.fspath(output))[0])}.npz, which may be renamed to .params",
        )
    return replace(options, target=target) if target else replace(options, as_is=True)


def fuse(
    path: Path, output: Path | None = None, *, layout: str, source: str | None = None,
    spec: str = "", at: Sequence[str] = (), ignore: Sequence[str] = (), stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None, keep_names: bool = False, keep_split: bool = False,
    drop_kept: bool = False, layout_file: Sequence[Path] = (), skip_unsupported: bool = False, plain: bool = False,
    strict: bool = False, weights: str | None = None, only: str | None = None, max_shard_size: int | None = None,
    align: int = ALIGN, allow_class: Sequence[str] = (), allow_unknown: bool = False,
    max_inflated: int | None = None, optimizer_names: Path | None = None, drop_optimizer: bool = False,
    untied_state: str = "", tied_state: str = "", new_config: Path | None = None,
    verify: bool = True, dry_run: bool = False, force: bool = False, progress: Progress = silent,
) -> Relayouted:  # fmt: skip
    """Write recurrent networks fused, in `layout`: `fuse("model.pt", layout="cudnn")`.

    Without `output` it is `STEM.fused.safetensors` beside the input.  The other keywords are those of `convert`.
    """
    options = _options(locals(), target=layout)
    check_no_dialect("fuse", options)
    return relayout(path, output, options, word="fused", progress=progress)


def unfuse(
    path: Path, output: Path | None = None, *, layout: str | None = None, target: str | None = None,
    spec: str = "", at: Sequence[str] = (), ignore: Sequence[str] = (), stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None, keep_split: bool = False,
    drop_kept: bool = False, layout_file: Sequence[Path] = (), skip_unsupported: bool = False, plain: bool = False,
    strict: bool = False, weights: str | None = None, only: str | None = None, max_shard_size: int | None = None,
    align: int = ALIGN, allow_class: Sequence[str] = (), allow_unknown: bool = False,
    max_inflated: int | None = None, optimizer_names: Path | None = None, drop_optimizer: bool = False,
    untied_state: str = "", tied_state: str = "", new_config: Path | None = None,
    verify: bool = True, dry_run: bool = False, force: bool = False, progress: Progress = silent,
) -> Relayouted:  # fmt: skip
    """Write recurrent networks as separate named tensors, in layout `target`: torch, unless another is given.

    `layout` is how they are fused; without it, what the file says.  Without `output` it is
    `STEM.unfused.safetensors` beside the input.  The other keywords are those of `convert`.
    """
    options = _options(locals(), source=layout, keep_names=False, described=True)
    check_no_dialect("unfuse", options)
    return relayout(path, output, options, word="unfused", progress=progress)


def _options(keywords: Mapping[str, Any], **more: Any) -> RelayoutOptions:
    """The options of one of these three, of which `more` is fixed."""
    return chosen(RelayoutOptions, None, {**_FIXED, **keywords, **more})


_FIXED: Mapping[str, Any] = {
    "described": False, "as_is": False, "dtype": (), "keep_float32": (), "allow_overflow": False, "into": None,
    "map": (), "format": None, "untie": (), "tie": None,
}  # fmt: skip
"""Fields that not all three have a keyword for."""
