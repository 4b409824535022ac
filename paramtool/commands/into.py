"""`convert --into`: the weights of a checkpoint in a given model, of which everything else stays byte for byte."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from paramtool import formats, layouts
from paramtool.commands import adapter_config
from paramtool.commands.config_ties import as_stored
from paramtool.commands.networks import networks as networks_seen
from paramtool.commands.optimizer_carry import MovedOptimizer, StateReport, has_state
from paramtool.commands.optimizers import bindings, refuse_defects
from paramtool.commands.output.destination import Destination
from paramtool.commands.output.losses import allow, other_sections
from paramtool.commands.output.options import ALIGN
from paramtool.commands.output.write import Work, done, read_back, unproved
from paramtool.commands.progress import Advance, Path, Progress
from paramtool.engine.read.blocks import BLOCK_NBYTES, blocks
from paramtool.engine.read.source import Source
from paramtool.engine.read.streams import same_window
from paramtool.engine.write.arithmetic import computed, prove
from paramtool.engine.write.places import check_beside, check_place
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.verify import same_targets
from paramtool.engine.write.writer import write
from paramtool.errors import LayoutError, PlanError, UsageError, listed, plural, some
from paramtool.formats import policy
from paramtool.formats.files import is_folder, same_ranges
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.hdf5 import keras as hdf5_into
from paramtool.formats.hdf5.keras_config import KerasConfig
from paramtool.formats.onnx import into as onnx_into
from paramtool.formats.output import OutputFile
from paramtool.layouts.networks import Network
from paramtool.lazy_dataclass import frozen
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import INERT, Checkpoint, LayerPart, prefix_of
from paramtool.model.conventions import COUNTERS, NEUTRAL, NORMS, of_kind
from paramtool.model.described import difference
from paramtool.model.optimizer import Binding, OptimizerState, Slot
from paramtool.model.plan import Copy, Plan, Target, check, whole
from paramtool.model.storage import ByteRange
from paramtool.model.view import View
from paramtool.passes import select
from paramtool.passes.into.layers import role, split, unmade
from paramtool.passes.into.matching import tokens
from paramtool.passes.into.plan import Into, plan
from paramtool.passes.optimizer import move
from paramtool.passes.optimizer.move import refusal
from paramtool.passes.rnn.find import described

if TYPE_CHECKING:
    from paramtool.commands.relayout_options import RelayoutOptions
    from paramtool.commands.relayouted import Relayouted

NOT_HERE = ("keep_names", "keep_split", "drop_kept", "rename", "skip_unsupported", "plain", "max_shard_size")
"""Options that say what an output holds, which the model says here."""
SHOWN = 5


@frozen(kw_only=True)
class IntoWork(Work):
    """A model, and the weights that are put into it."""

    model: Checkpoint
    into: Into
    container: ModelFormat

    def needed(self, verify: bool) -> tuple[str, ...]:
        """What writing and proving import."""
        return ("numpy", "ml_dtypes", "hashlib")

    def write(self, staged: Staged, verify: bool, progress: Progress) -> bool:
        """Prove what the plan requires, write the model with its new weights, and read them back."""
        with Source(self.checkpoint) as source:
            prove(self.plan.requires, source)
            staged.watch(self.model.files)
            nbytes = sum(output.nbytes for output in self.outputs)
            with progress("write", nbytes) as advance:
                write(staged, self.outputs, source, advance)
            if verify:
                with progress("verify", nbytes) as advance, read_back(staged):
                    if found := list(self.wrong(staged.file, source, advance)):
                        source.check_unchanged()
                        raise unproved(self.where.path, found)
        return True

    def wrong(
        self, place: Callable[[str], str], source: Source, advance: Advance = lambda nbytes: None
    ) -> Iterator[str]:
        """What is not as planned in the output: its names, the new weights, and every other byte."""
        path = place(self.outputs[-1].name)
        written = formats.read_file(path)
        before, after = (
            {name: (one.dtype, one.shape) if isinstance(one := entry.value, View) else one
             for name, entry in side.entries.items()}
            for side in (self.model, written)
        )  # fmt: skip
        yield from (f"{name!r}: is not as in the model" for name in before if after.get(name) != before[name])
        yield from (f"{name!r}: is not in the model" for name in after.keys() - before.keys())
        if before != after:
            return
        views = written.views()
        digests: dict[str, str] = {}
        with Source(written) as found:
            for name, target in self.into.targets.items():
                if not same_targets((found, source), [(views[name], target)])[0]:
                    yield f"{name!r}: differs from its source"
                digests[name] = _digest(found, views[name])
        yield from self.container.differences(path, written, digests)
        for output in self.outputs:
            at = 0
            for segment in output.segments:
                nbytes = len(segment) if isinstance(segment, bytes) else segment.nbytes
                if isinstance(segment, ByteRange) and not same_ranges(segment, place(output.name), at):
                    yield f"bytes {segment.start} to {segment.stop} differ from the model's"
                at += nbytes
                advance(nbytes)


def _digest(source: Source, view: View) -> str:
    """The SHA-256 of the elements of a window, row by row."""
    found = sha256()
    array = source.array(view)
    for box in blocks(view.shape, max(1, BLOCK_NBYTES // view.dtype.block_bytes)):
        found.update(array[box].tobytes())
    return found.hexdigest()


def fill(
    path: Path, output: Path | None, source: Weights, options: RelayoutOptions, *, progress: Progress
) -> Relayouted:
    """Write the model `options.into` with the weights of `source`, and report what went where."""
    began = time.monotonic()
    report, work = prepared(path, output, source, options)
    return replace(done(report, work, options, progress), seconds=round(time.monotonic() - began, 3))


def prepared(
    path: Path, output: Path | None, source: Weights, options: RelayoutOptions, *, is_written: bool = False
) -> tuple[Relayouted, IntoWork]:
    """The report of what will be written, or was, and the work."""
    from paramtool.commands.relayouted import Relayouted

    _refuse_options(options)
    entire = as_stored(source.checkpoint)
    checkpoint = select.section(entire, options.only) if options.only is not None else entire
    warnings = allow(checkpoint, output)
    assert options.into is not None
    if is_folder(options.into):
        is_adapter = os.path.isfile(os.path.join(path, adapter_config.NAME))
        hint = "an adapter is merged into its base by PEFT: `merge_and_unload`" if is_adapter else ""
        raise UsageError(f"{os.fspath(options.into)}: is a folder; --into takes one file of a model", hint)
    model = _read(options.into, options)
    container = format_of(model)
    where = _destination(output, model, entire, options)
    into, more = planned(checkpoint, model, options)
    state = with_state(checkpoint, model, into, options.drops_state)
    into = state.into
    views = model.views()
    made = Plan(
        tuple(into.targets.values()),
        source=checkpoint.path,
        names={
            name: Alias(name, replace(views[name], storage=name), name, "storage", "storage", views[name], False, "")
            for name in into.targets
        },
        requires=into.requires,
    )
    check(made, made.order, checkpoint.storages)
    outputs = container.lay_out(model, into.targets, os.path.basename(where.path))
    check_beside(where.path, [out.name for out in outputs[:-1] if not is_written])
    report = Relayouted(
        input=os.fspath(path),
        output=where.path,
        checkpoint=checkpoint,
        plan=made,
        converted=tuple(one.converted for one in into.networks),
        into=into,
        model=model.path,
        judge=container.judge,
        untouched=len(into.unfilled),
        files=where.files(outputs),
        nbytes_before=sum(file.nbytes for file in model.files),
        nbytes_after=sum(out.nbytes for out in outputs),
        left_out=(
            *other_sections(entire, options.only),
            *(f"tensor {name!r}" for name in into.unused),
            *state.report.dropped,
        ),
        optimizer=state.report,
        section=options.only,
        warnings=(
            *checkpoint.said(),
            *warnings,
            *more,
            *_warnings(into, model, state.is_carried),
            *_unsaid(into, checkpoint, model),
        ),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
    )
    return report, IntoWork(checkpoint, made, outputs, where, model=model, into=into, container=container)


def _read(path: Path, options: RelayoutOptions) -> Checkpoint:
    """The description of a file; UnsafeError where it is unsafe, and not allowed."""
    found = formats.read_file(os.fspath(path))
    policy.refuse([(found.path, found.unknown)], options.allow_class, options.allow_unknown)
    return found


def wrong(output: Path, source: Weights, options: RelayoutOptions) -> tuple[list[str], int, tuple[str, ...]]:
    """What is not as `fill` writes it in a file that exists; how many tensors are filled, and warnings."""
    _read(output, options)
    folder = os.path.dirname(os.fspath(output))
    tried = []
    for drop in (False, True):  # nothing in a model says whether the state was dropped
        said = replace(options, optimizer_state=["drop"] * drop)
        try:
            report, work = prepared(source.checkpoint.path, output, source, said, is_written=True)
        except PlanError:
            if drop:
                raise
            continue
        with Source(work.checkpoint) as opened:
            prove(work.plan.requires, opened)
            found = list(work.wrong(lambda name: os.path.join(folder, name) if name else os.fspath(output), opened))
        tried.append((found, len(work.into.targets), report.warnings))
        if not found:
            return tried[-1]
    return tried[0]


def planned(
    checkpoint: Checkpoint, model: Checkpoint, options: RelayoutOptions, networks: Sequence[Network] | None = None
) -> tuple[Into, tuple[str, ...]]:
    """What of a checkpoint goes where in a model, and warnings; LayoutError if nothing does, or not all that must.

    `networks` are the model's, where it does not describe them itself.
    """
    theirs, refused = described(model) if networks is None else (list(networks), [])
    _check_layout(theirs, options.target)
    mine, missing, doubts = _found(checkpoint, options, bool(theirs))
    with Source(checkpoint) as opened:
        into = plan(
            checkpoint,
            mine,
            model,
            theirs,
            maps=tuple(options.map),
            flatten=options.flatten,
            partial=options.partial,
            same=lambda a, b: _is_same(opened, a, opened, b),
        )
    where = model.path if model.files else "the model"
    if not into.targets:
        raise LayoutError(
            f"{where}: nothing in {checkpoint.path} belongs to one of its layers by name or by shape"
            + "".join(f"; {note}" for note in model.notes[:SHOWN]),
            hint="; ".join(
                [
                    *unmade(list(checkpoint.entries)),
                    "--map A=B names a layer of the source and one of the model",
                    *([missing] if missing else ()),
                ]
            ),
        )
    if options.strict and into.unfilled:
        lines = [repr(name) for name in into.unfilled]
        raise LayoutError(
            listed(f"{where}: {plural(len(lines), 'tensor')} would keep the old values:", lines),
            hint="without --strict they are kept and named; --map A=B says what fills them",
        )
    if not options.partial:
        _refuse_lost(checkpoint, model, into)
    warnings = [*doubts, *(f"{where}: {text}; its weights stay as they are" for text in refused)]
    if found := _uncompared(into, checkpoint, model):
        warnings.append(f"the models may differ in {found}, which is not compared; run both to see whether they do")
    if missing and len(into.networks) < len(theirs):
        warnings.append(f"no recurrent network was found in the source; {missing}")
    return into, tuple(warnings)


def _is_same(first: Source, a: View, second: Source, b: View) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and same_window(first, a, second, b)


def _refuse_lost(checkpoint: Checkpoint, model: Checkpoint, into: Into) -> None:
    """LayoutError where the model would compute something else than the source.

    All of the smallest module with what is used is used, or changes no output: of the source, and of the model.
    """

    def beside(one: Checkpoint, used: Iterable[str], rest: Iterable[str]) -> list[str]:
        """Those of some weights that are in the smallest module with those that are used, and no other name of them."""
        home = os.path.commonprefix([_module(one, name)[:-1] for name in used])  # noqa: RUF071 - of tuples, not text
        views = one.views()
        held = {views[name] for name in used if name in views}
        return [name for name in rest if _module(one, name)[: len(home)] == home and views.get(name) not in held]

    weights = {name for name, entry in checkpoint.entries.items() if entry.role in ("model", "buffer")}
    used = weights.difference(into.unused) or weights
    left = beside(checkpoint, used, [name for name in into.unused if name in weights])
    has_values = any(file.nbytes for file in model.files)  # not in memory
    kept = beside(model, into.targets, into.unfilled) if has_values else []
    losing = [*_changing(checkpoint, left, used, model)]
    keeping = [*_changing(model, kept, into.targets, checkpoint)]
    lost = [f"{name!r} of the source has no place in the model" for name in losing]
    lost += [f"{name!r} of the model would keep its values" for name in keeping]
    if lost:
        hints = unmade(left)
        is_exported = model.format in MODELS[1].formats
        hints += [REFOLD] * (
            is_exported and any(name.endswith(("running_var", "variance", "moving_var")) for name in left)
        )
        flags = dict.fromkeys(filter(None, _flags(losing, into))) if _library(model) == "Keras" else ()
        hints += [f"make the layers of the model with {' and '.join(flags)}"] if flags else []
        hints += [FRESH] * any("variance" in role(name, model.parts.get(name))[1] for name in keeping)
        hints += ["--map A=B says where they go; --partial leaves them and names them"]
        head = f"{model.path}: would not compute what {checkpoint.path} does:"
        raise LayoutError(listed(head, lost), hint="; ".join(dict.fromkeys(hints)))


REFOLD = (
    "where an exporter folded a norm into the layer before it, export the model without (PyTorch: "
    "training=TrainingMode.PRESERVE)"
)


FRESH = "a fresh batch norm divides by the root of 1 + epsilon: leave it out, or make it with an epsilon of 1e-7"
PLACES = {"scale": "scale=True", "shift": "center=True", "bias": "use_bias=True"}
"""{part: the setting with which a layer of Keras has it}"""


def _flags(losing: Iterable[str], into: Into) -> Iterator[str]:
    """The settings of Keras that give layers that were filled a place for more tensors of the source."""
    kinds = {split(one.source)[0]: layer.kind for layer in into.layers for one in layer.fillings}
    for module, own in map(split, losing):
        for row in of_kind(kinds.get(module, "")):
            yield PLACES.get(row.tensors.get(own, ("",))[0], "")


def _module(checkpoint: Checkpoint, name: str, layer: str = "") -> tuple[str, ...]:
    """The path of the module that a tensor is in, which is a part of that layer."""
    part = checkpoint.parts.get(name)
    path = tokens(layer or (part.layer if part and part.layer else split(name)[0]))
    return path[1:] if path[:1] in (("params",), ("batch_stats",)) else path  # of flax


def _changing(checkpoint: Checkpoint, names: Sequence[str], used: Iterable[str], other: Checkpoint) -> Iterator[str]:
    """Those of some tensors on which an output depends: by their names, or by their values.

    A norm without its scale and shift still normalises, unless by statistics, which are there; Keras' config of the
    other side tells of one that has no tensors.
    """
    kinds = "LayerNormalization", "GroupNormalization"
    norms = [one.name for one in KerasConfig.of(other.metadata).layers if one.class_name in kinds]
    views, parts = checkpoint.views(), checkpoint.parts
    roles = {name: role(name, parts.get(name)) for name in {*names, *used}}
    at = {name: _module(checkpoint, name, layer) for name, (layer, _) in roles.items()}
    there = {at[name] for name in names if "variance" in roles[name][1] or at[name][-1:] in map(tokens, norms)}
    there |= {at[name] for name in used}
    for name in names:
        view, part, own = views.get(name), parts.get(name) or LayerPart(""), split(name)[1]
        expected: set[float] = {NEUTRAL[one] for one in roles[name][1] if one in NEUTRAL and at[name] in there}
        expected = {1} if FACTORS.search(name) or part.kind == "prelu" else expected
        if "variance" in roles[name][1]:  # it is divided by the root of itself and of epsilon
            expected = {1 - float(str(part.settings.get("epsilon", EPSILONS[_library(checkpoint)])))}
        is_mask = view is not None and own == "bias" and view.dtype.name in ("bool", "uint8")
        if part.is_state or is_mask or (part.constant is not None and {part.constant} == expected):
            continue
        if view is not None and view.nbytes <= MAX_READ and (own != "weight" or len(view.shape) < 2):
            with Source(checkpoint) as source:
                values = computed(whole(name, view), source)
                is_neutral = any((abs(values - one) < 1e-4).all() for one in expected)
                if is_neutral or _is_inert(own, values) or _is_wave(values):
                    continue
        yield name


def _is_inert(own: str, values: Any) -> bool:
    """Whether a tensor is what its name says: none that was trained.  Source: models of transformers (5.24)."""
    if own == "position_ids":
        return bool(values.ndim and (values == range(values.shape[-1])).all())
    if own == "token_type_ids":
        return not bool(values.any())
    if own == "inv_freq":
        return bool((values > 0).all() and (values[..., 1:] < values[..., :-1]).all())
    if own in ("masked_bias", *COUNTERS):
        return bool(values.size == 1)
    return own in INERT and str(values.dtype.kind) in "iu"


def _is_wave(values: Any) -> bool:
    """Whether numbers, or the rows of a table, are cosines or sines of their places, powers or steps: none was trained.

    cos (k + 1)a + cos (k - 1)a = 2 cos a cos ka, and so for the others: three say all, up to float32.
    """
    for axis in range(max(1, values.ndim - 1) if values.ndim else 0):
        x = values.swapaxes(0, axis).astype("f8")
        if len(x) > 4 and (x[0] != x[1]).any():
            differences = x[1] * (x[2:] + x[:-2]) - (x[2] + x[0]) * x[1:-1]
            if (abs(differences) <= abs(x[1]) * abs(x).max() * len(x) * 2.0**-21).all():
                return True
    return False


FACTORS = re.compile(
    r"mask$|(^|[._/])(ls_?\d|layer_?scale|lambda_?\d|gamma_\d)|(^|[._/])(act|activation|p?relu)_?\d*\.weight$"
)
"""Tensors that their names show to be factors and nothing else: masks of pruning, layer scales as timm, torchvision and
transformers call them, and slopes of torch's PReLU.  A `gamma` or a `weight` by itself can be that of a norm, which
also normalises."""
MAX_READ = 64 << 20
"""The largest tensor that is read to see whether its values change anything, in bytes."""


def _found(checkpoint: Checkpoint, options: RelayoutOptions, wanted: bool) -> tuple[list[Network], str, Iterable[str]]:
    """The networks of the source, as `convert` finds them, what to do if there is none, and warnings about them."""
    from paramtool.commands.relayout_networks import network_warnings, source_networks

    is_said = options.source or options.at or options.spec or options.stack or options.ignore
    if not is_said and not networks_seen(checkpoint):
        return [], "--from LAYOUT, --at and --spec say where one is" if wanted else "", ()
    found = source_networks(checkpoint, options, lenient=True)
    return [one.network for one in found], "", network_warnings(found)


def _destination(output: Path | None, model: Checkpoint, source: Checkpoint, options: RelayoutOptions) -> Destination:
    """Where the output goes: under a name that ends as the model's does, and never in the place of an input."""
    old = model.path
    ends = WEIGHTS_SUFFIX if old.lower().endswith(WEIGHTS_SUFFIX) else os.path.splitext(old)[1]
    path = os.fspath(output) if output is not None else f"{old.removesuffix(ends)}.filled{ends}"
    has = WEIGHTS_SUFFIX if path.lower().endswith(WEIGHTS_SUFFIX) else os.path.splitext(path)[1]
    if has.lower() != ends.lower():
        stem = path.removesuffix(has)
        raise UsageError(f"{path}: the output of --into ends as the model does, in {ends}", f"-o {quote(stem + ends)}")
    more = (os.fspath(one) for one in options.layout_file)
    read = (*(file.path for file in source.files), *(file.path for file in model.files), *more)
    check_place(path, False, options.force, read)
    return Destination(path, False, None, read=read)


WEIGHTS_SUFFIX = ".weights.h5"


def _refuse_options(options: RelayoutOptions) -> None:
    """UsageError for an option that says what the model says."""
    usual = type(options)()
    said = [name for name in NOT_HERE if getattr(options, name) not in (getattr(usual, name), {})]
    said += ["align"] if options.align != ALIGN else []
    if said:
        raise UsageError(
            f"--{said[0].replace('_', '-')} says how an output is made; with --into the model says it",
            hint="leave one of the two out",
        )


def _check_layout(theirs: Sequence[Network], target: str | None) -> None:
    """UsageError if another layout is asked for than the model has."""
    if target is None:
        return
    name, _ = layouts.parse(target)
    layouts.find(name)
    family = {name, *(layout.name for layout in layouts.family(name))}
    for one in theirs:
        if one.layout.name not in family:
            raise UsageError(
                f"--to {target}: the model's networks are {one.layout.name}", hint="leave --to out with --into"
            )


def _warnings(into: Into, model: Checkpoint, has_its_state: bool) -> Iterator[str]:
    """What a person has to know of a model with new weights."""
    yield from into.notes
    yield from model.notes
    every = (one for layer in into.layers for one in layer.fillings)
    as_is = [one for one in every if not (one.axes or one.is_asked) and len(one.piece.view.shape) > 1]
    if as_is:
        names = some([one.piece.name for one in as_is], SHOWN)
        yield f"nothing shows the order of axes of {names}; filled as the source has them, without transposing"
    if into.unfilled:
        left = plural(into.unfilled, "tensor of the model keeps its", "tensors of the model keep their")
        yield f"{left} old values: {some(into.unfilled, SHOWN)}"
    if not has_its_state and any(entry.role == "optimizer" for entry in model.entries.values()):
        yield "the model's optimizer state is left unchanged: it belongs to the old weights"


EPSILONS = {"PyTorch": 1e-5, "Keras": 1e-3}
"""What libraries add to a variance by default, Gluon as PyTorch (torch/nn/modules/batchnorm.py, mxnet/gluon/nn,
keras/src/layers/normalization)."""


def _library(checkpoint: Checkpoint) -> str:
    return "Keras" if checkpoint.format in MODELS[0].formats else "PyTorch"


def _unsaid(into: Into, source: Checkpoint, model: Checkpoint) -> Iterator[str]:
    """What only one of the two files says of norms that were filled, and is not the default of the other's library."""
    libraries = [_library(side) for side in (source, model)]
    found: dict[tuple[bool, str], dict[str, object]] = {}
    for layer in into.layers:
        filled = layer.fillings[0]
        sides = source.parts.get(filled.source), model.parts.get(filled.piece.name)
        here, there = (side.settings if side else {} for side in sides)
        for setting in ("epsilon", "groups") if layer.kind in NORMS else ():
            if (is_ours := setting in here) != (setting in there):
                value, default = (here if is_ours else there)[setting], EPSILONS[libraries[is_ours]]
                if setting != "epsilon" or value != default:
                    name = (layer.source if is_ours else layer.model).rpartition("/")[2]
                    found.setdefault((is_ours, setting), {})[name] = value
    for (is_ours, setting), values in found.items():
        who, other = ("source", "model") if is_ours else ("model", "source")
        library = libraries[is_ours]
        usual = f", and {library}'s default is {EPSILONS[library]}" if setting == "epsilon" else ""
        yield (
            f"the {who} computes {some(list(values), SHOWN)} with {setting} "
            f"{', '.join(sorted({str(one) for one in values.values()}))}; the {other} does not say its own{usual}: "
            "where the two differ, outputs do"
        )


def _uncompared(into: Into, source: Checkpoint, model: Checkpoint) -> str:
    """What two files that describe computations do not say literally alike; empty where one says nothing."""
    ours, theirs = (
        [found for row in MODELS if one.format in row.formats and (found := row.described(one))]
        for one in (source, model)
    )
    names: dict[str, str] = {}
    if not (ours and theirs):
        return ""
    try:
        if found := difference(ours, theirs, names):
            return found
    except RecursionError:
        return "what is nested too deeply"

    def words(one: Checkpoint, name: str) -> list[str]:
        """What a description can call a tensor, the nearest first."""
        part = one.parts.get(name)
        return [name, *(part.layer.split("/")[::-1] if part else ())]

    for name, target in into.targets.items():
        place = next((names[word] for word in words(model, name) if word in names), "")
        if not all(place in words(source, other) for copy in target.copies for other in copy.names):
            return f"the place of {name!r}"
    mine, others = source.views(), model.views()
    with Source(source) as first, Source(model) as second:
        for name, other in names.items():
            a, b = mine.get(other), others.get(name)
            if (a or b) and name not in into.targets and not (a and b and _is_same(first, a, second, b)):
                return repr(other)
    return ""


# --- The files of models whose weights can be replaced, as a table: what `convert --into` takes ----------------------


@frozen
class ModelFormat:
    """How the weights in one format's files are replaced."""

    name: str
    """As people say it."""
    formats: tuple[str, ...]
    """What `Checkpoint.format` says of such files."""
    lay_out: Callable[[Checkpoint, Mapping[str, Target], str], tuple[OutputFile, ...]]
    """The files of the output, of which the last has the name that is given: the model with these tensors in place of
    its own."""
    differences: Callable[[str, Checkpoint, Mapping[str, str]], Iterable[str]]
    """What somebody else's code reads otherwise in the output at a path: {name: SHA-256 of its elements}."""
    described: Callable[[Checkpoint], object]
    """What such a file says that the model computes, as `model.described`; empty where it has weights alone."""
    judge: str = ""
    """The library whose code that is; empty if only paramtool reads the output back."""


MODELS = (
    ModelFormat(
        "Keras",
        ("keras zip", "keras hdf5", "hdf5"),
        lambda model, targets, name: hdf5_into.lay_out(model, targets),
        hdf5_into.differences,
        hdf5_into.described,
        "h5py",
    ),
    ModelFormat("ONNX", ("onnx",), onnx_into.lay_out, lambda path, written, names: (), onnx_into.described),
)


def format_of(model: Checkpoint) -> ModelFormat:
    """The row of a model; UsageError if weights in such a file cannot be replaced."""
    for row in MODELS:
        if model.format in row.formats:
            return row
    names = ", ".join(row.name for row in MODELS)
    raise UsageError(
        f"{model.path}: is {model.format}; --into replaces weights in the model files of {names}",
        hint="convert without --into writes a file of weights",
    )


# --- The state of an optimizer for `convert --into`: Keras' variables of the source's optimizer in those of the model'
#
# The weights that are put into a model are windows of those of the source.  The same windows of what an optimizer
# keeps go into what the model's optimizer keeps, where both are bound, and keep the same.


MAX_NAMED = 4


class IntoState(NamedTuple):
    """What goes into a model, with its optimizer, and what became of that."""

    into: Into
    report: StateReport = StateReport()
    is_carried: bool = False


def with_state(checkpoint: Checkpoint, model: Checkpoint, into: Into, drop: bool) -> IntoState:
    """What goes into a model together with the state of the source's optimizer.

    PlanError where the source has a state and the model has no place for it, unless it is dropped.
    """
    if not has_state(checkpoint):
        return IntoState(into)
    unused = tuple(name for name in into.unused if checkpoint.entries[name].role != "optimizer")
    if drop:
        names = [name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"]
        text = f"the optimizer's state of the source, as --optimizer-state drop says: {plural(len(names), 'tensor')}"
        return IntoState(replace(into, unused=unused), StateReport((), (text,)))
    views, at = checkpoint.views(), ""

    def refused(reason: str, hint: str = "") -> PlanError:
        return refusal(checkpoint.path, at, reason, hint)

    def bound(one: Checkpoint, what: str) -> Binding:
        """The binding of the only optimizer of a file of Keras; PlanError where there is none, or it is not proved."""
        found = bindings(one.path, one)
        if len(found) != 1 or found[0].optimizer.form != move.KERAS:
            raise refused(f"{what} has no optimizer of Keras 3, and no other is put into a model")
        refuse_defects(one.path, found)
        if not found[0].is_unique or found[0].optimizer.refused:
            raise refused(f"{what}: {found[0].optimizer.refused or found[0].words}")
        return found[0]

    def full(one: Checkpoint, binding: Binding, name: str) -> str:
        """The name of a variable in its file."""
        return prefix_of(one, binding.optimizer.section) + name

    mine, theirs = bound(checkpoint, "the source"), bound(model, "the model")
    source, state = mine.optimizer, theirs.optimizer
    at = source.at
    if source.entries and not state.entries:
        hint = "train the model a step, or call optimizer.build(model.trainable_variables), and save it again"
        raise refused("the model's optimizer has no variables yet", hint)
    if _form(source) != _form(state):
        raise refused(f"the source's is {_words(source)}, and the model's is {_words(state)}")
    if len(source.entries) != len(state.entries):
        many = f"{len(state.entries)} in the model, {len(source.entries)} in the source"
        raise refused(f"the optimizers do not have as many entries: {many}")
    entries = {full(checkpoint, mine, mine.names[entry.key]): entry for entry in source.entries}
    owners = {views[name].storage: name for name in entries}
    if len(owners) < len(entries):
        raise refused("variables of the source share memory")

    def through(copy: Copy, slot: Slot) -> Copy:
        """A copy of the same window of a slot; PlanError for what is calculated."""
        if not copy.is_plain:
            raise refused("a weight is calculated from several, and only windows of slots are put into a model")
        view = copy.source
        name = owners.get(view.storage, "")
        held = next((one.tensor for one in entries[name].slots if one.key == slot.key), "") if name else ""
        if not held:
            raise refused("a weight of the model comes from one without an entry of that kind")
        parameter, kept = views[name], views[held]
        if not (parameter.is_contiguous and kept.is_contiguous and parameter.shape == kept.shape):
            raise refused(f"{held!r} is not laid out as {name!r} is")
        moved = kept.with_axes(view.shape, view.strides, view.offset - parameter.offset + kept.offset)
        return Copy(replace(copy.destination, storage=slot.tensor, dtype=kept.dtype), ((1, moved),))

    old, new = ([name for one in side.numbered for name in one.singles] for side in (source, state))
    targets = [whole(place, views[name]) for name, place in zip(old, new, strict=True)]  # the step, the learning rate
    for entry in state.entries:
        parameter = full(model, theirs, theirs.names[entry.key])
        target = into.targets.get(parameter)
        if target is None:
            raise refused(f"{parameter!r} of the model keeps its values, and its optimizer has state for it")
        targets += [
            replace(target, name=slot.tensor, copies=tuple(through(copy, slot) for copy in target.copies))
            for slot in entry.slots
        ]
    places = model.views()
    for target in targets:
        place = places[target.name]
        if (place.shape, place.dtype) != (target.shape, target.copies[0].source.dtype):
            raise refused(f"{target.name!r} of the model is {place.dtype.name} {list(place.shape)}")
    count = len(source.entries)
    into = replace(into, targets={**into.targets, **{target.name: target for target in targets}}, unused=unused)
    return IntoState(into, StateReport((MovedOptimizer(at, source.algorithm, count, count, mine.words),)), True)


def _form(state: OptimizerState) -> list[tuple[object, ...]]:
    """What the variables of an optimizer are."""
    return [(state.algorithm, one.prefix, one.head, one.blocks, one.tail) for one in state.numbered]


def _words(state: OptimizerState) -> str:
    slots = [slot for one in state.numbered for block in one.blocks for slot in block]
    return f"{state.algorithm or 'unknown'}, with {some(slots, MAX_NAMED) or 'no slots'}"
