"""The formats that can be written, as a table: the suffix of an output chooses the row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from shlex import quote

from paramtool import layouts
from paramtool.commands.output import dcp
from paramtool.commands.output.writer import Fitted, Keeping, Writer, whole
from paramtool.commands.progress import Path
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import Advance, by_safetensors, by_zipfile
from paramtool.errors import LayoutError, PlanError, UsageError, listed, plural, some
from paramtool.formats import object_tree, table
from paramtool.formats.hdf5 import write as hdf5_write
from paramtool.formats.msgpack import write as msgpack_write
from paramtool.formats.mxnet import params as mxnet_write
from paramtool.formats.numpy import write as numpy_write
from paramtool.formats.onnx import write as onnx
from paramtool.formats.onnx.write import RecurrentNetwork
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors import CODE_OF
from paramtool.formats.safetensors import write as safetensors
from paramtool.formats.torch import write as torch_write
from paramtool.formats.torch.write_objects import How
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import USUAL_ACTIVATION, Spec, parse
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.plan import Plan
from paramtool.passes.separate import separate

# --- ONNX models that are made: a plan of recurrent networks alone, and what the graph has to know of each -----------
#
# `formats/onnx/write.py` lays them out; here a spec becomes nodes' attributes, and what no such model holds is
# refused.


LAYOUT = "onnx"
HINT = (
    "--into MODEL.onnx fills a model that has a place for them; --skip-unsupported leaves them out; --only reads one "
    "section"
)


def _hold_networks(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """The plan with its recurrent networks alone; PlanError if it has other tensors, unless they are to be left out."""
    ours = {name for one in _networks(plan) for layer in one.weights for name in layer.values()}
    others = [name for name in plan.names if name not in ours]
    if others and not (keeping.skip and not keeping.strict):
        head = f"{plan.source}: {plural(len(others), 'tensor')} of no recurrent network, for which no node can be made:"
        raise PlanError(listed(head, [f"{name!r:.200}" for name in others]), hint=HINT)
    rest = replace(plan, names={name: one for name, one in plan.names.items() if name in ours})
    fitted = whole(links=onnx.is_external(separate(rest).targets))(rest, checkpoint, keeping)
    return replace(fitted, left_out=tuple(f"tensor {name!r:.200}: belongs to no recurrent network" for name in others))


def _lay_out(plan: Plan, name: str) -> tuple[OutputFile, ...]:
    """The model, and before it the file with its data if it has one; `name` is what the model's file is called."""
    targets = {target.name: target for target in plan.targets}
    held = {name: targets[one.owner] for name, one in plan.names.items()}
    beside = name if onnx.is_external(separate(plan).targets) else ""
    return onnx.lay_out(list(_networks(plan)), held, beside)


def _refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that no recurrent node can have as weights."""
    return {
        name: f"is {dtype}; recurrent nodes of opset {onnx.OPSET} compute with {', '.join(onnx.COMPUTED)}"
        for name, dtype in dtypes.items()
        if dtype not in onnx.COMPUTED
    }


def _networks(plan: Plan) -> Iterator[RecurrentNetwork]:
    """The networks of a plan, as the graph needs them; LayoutError for what a node has to know and nobody says."""
    types = plan.dtypes()
    for module in plan.modules:
        if module.layout == LAYOUT and not module.refused:
            yield _network(plan, module, types)


def _network(plan: Plan, module: Module, types: Mapping[str, str]) -> RecurrentNetwork:
    spec = Spec(**parse(module.spec))  # type: ignore[arg-type]
    layout = layouts.find(LAYOUT)
    where = f"{plan.source}: {module.at!r:.200}"
    if not module.at.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in module.at):
        raise PlanError(f"{where}: ONNX names are UTF-8, which has no form for this one", hint="--rename OLD=NEW")
    if spec.kind == "rnn" and not spec.activation:
        raise LayoutError(
            f"{where}: no tensor shows whether its activation is tanh or relu, and an ONNX node says it",
            hint='--spec "activation=tanh", as the network was trained',
        )
    prefix = f"{module.at}{layout.separator}" if module.at else ""
    weights: list[dict[str, str]] = [{} for _ in range(spec.layers)]
    for tensor in stored(layout, layout.form(spec, {}), spec, {}):
        layer, _, own = tensor.name.rpartition(".")
        weights[int(layer.removeprefix("layer") or 0)][own] = prefix + tensor.name
    if len(found := {types[name] for layer in weights for name in layer.values()}) > 1:
        raise LayoutError(
            f"{where}: its tensors are {' and '.join(sorted(found))}; the weights of a node have one type"
        )
    return RecurrentNetwork(
        at=module.at,
        kind=spec.kind,
        input=spec.input,
        hidden=spec.hidden,
        type=onnx.CODE_OF[found.pop()],
        weights=weights,
        direction="bidirectional" if spec.bidirectional else "reverse" if spec.backward else "forward",
        activations=_activations(spec),
        clip=spec.clip,
        coupled=spec.coupled,
        reset_after=spec.reset == "after",
        merge=spec.merge,
    )


def _activations(spec: Spec) -> list[tuple[str, list[float]]]:
    """The activations of one direction in the order of ONNX' attribute; none if all are the defaults."""
    gate, cell = _function(spec.gate_activation), _function(spec.activation or USUAL_ACTIVATION)
    found = {"lstm": [gate, cell, cell], "gru": [gate, cell], "rnn": [cell]}[spec.kind]
    usual = [("sigmoid", list[float]()), ("tanh", list[float]())]
    return [] if [gate, cell] == usual else found


def _function(text: str) -> tuple[str, list[float]]:
    """A function of a spec, and its numbers.

    >>> _function("hard_sigmoid(0.2,0.5)"), _function("tanh")
    (('hard_sigmoid', [0.2, 0.5]), ('tanh', []))
    """
    word, _, numbers = text.partition("(")
    return word, [float(number) for number in numbers.rstrip(")").split(",") if number]


ONNX = Writer(
    name="ONNX",
    form=table.find("onnx"),
    encode=_lay_out,
    refusals=_refusals,
    hold=_hold_networks,
    only_layout=LAYOUT,
    is_graph=True,
)
"""The writer of models that are made; with --into a model that is given is filled instead."""


# --- The formats that can be written, as a table: the suffix of an output chooses the row ---


def _hold_in_metadata(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects go into the metadata, but for what that cannot hold."""
    lost = (*object_tree.left_out(plan.objects), *torch_write.memory_formats(plan, checkpoint))
    return Fitted(plan, tuple(object_tree.all_left_out_before(plan.objects)), lost=lost)


def _hold_in_pickle(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects of the closed table go into the pickle, the arrays among them with their bytes."""
    called = frozenset(unknown.path for unknown in checkpoint.unknown if unknown.called)
    found = torch_write.fitted(plan, How(keeping.skip and not keeping.strict, keeping.plain, called))
    torch_write.refuse(plan, found)
    inside = torch_write.arrays(found.tree)
    content = {}
    if inside:
        views = checkpoint.views()
        with Source(checkpoint) as source:
            content = {name: source.array(views[name]).all().tobytes(order) for name, order in inside.items()}
    return Fitted(replace(plan, objects=found.tree, inline=content), found.left_out, found.needs, found.changed)


def _by_safetensors(path: str, output: OutputFile, source: Source, advance: Advance) -> Iterable[str]:
    return by_safetensors(path, output.targets, CODE_OF, source, advance=advance)


def _by_zipfile(path: str, output: OutputFile, source: Source, advance: Advance) -> Iterable[str]:
    return by_zipfile(path)


SAFETENSORS = Writer(
    name="safetensors",
    form=table.find("safetensors"),
    encode=lambda plan, name: safetensors.lay_out(plan),
    refusals=safetensors.refusals,
    hold=_hold_in_metadata,
    differences=_by_safetensors,
    needs=("safetensors",),
)
TORCH = Writer(
    name="torch",
    form=table.find("torch"),
    encode=lambda plan, name: torch_write.lay_out(plan),
    refusals=torch_write.refusals,
    hold=_hold_in_pickle,
    differences=_by_zipfile,
    needs=("zipfile",),
)


def _bfloat16_caveat(plan: Plan) -> Iterator[str]:
    """NumPy and h5py have no type for bfloat16, and return its bytes."""
    names = [target.name for target in plan.targets if target.dtype.name == "bfloat16"]
    if names:
        yield (
            f"{some(names, MANY)} {'is' if len(names) == 1 else 'are'} bfloat16, which NumPy and h5py return as raw "
            "bytes: array.view(ml_dtypes.bfloat16) gives the numbers"
        )


MANY = 3
NPZ = Writer(
    name="npz",
    form=table.find("npz"),
    encode=lambda plan, name: numpy_write.lay_out(plan),
    refusals=numpy_write.refusals,
    differences=_by_zipfile,
    needs=("zipfile",),
    caveats=_bfloat16_caveat,
)
MXNET = Writer(
    name="MXNet",
    form=table.find("mxnet"),
    encode=lambda plan, name: mxnet_write.lay_out(plan),
    refusals=mxnet_write.refusals,
    unfit=mxnet_write.unfit,
)
MSGPACK = Writer(
    name="msgpack",
    form=table.find("msgpack"),
    encode=lambda plan, name: msgpack_write.lay_out(plan),
    refusals=msgpack_write.refusals,
    hold=whole(links=False, tree_of=msgpack_write.held),
)
HDF5 = Writer(
    name="HDF5",
    form=table.find("keras"),
    encode=lambda plan, name: hdf5_write.lay_out(plan),
    refusals=hdf5_write.refusals,
    hold=whole(links=True),
    unfit=hdf5_write.unfit,
    caveats=_bfloat16_caveat,
)
DCP = dcp.writer(TORCH)
WRITERS = (SAFETENSORS, TORCH, NPZ, MXNET, MSGPACK, HDF5, ONNX, DCP)
OF_MODELS = (".weights.h5", ".keras")
"""Ends of the names of files that Keras loads into a model that it knows."""


def writer_for(output: Path, sharded: bool = False) -> Writer:
    """The format that an output is written in: by its suffix, in any case; safetensors where that says nothing.

    Folders of shards are safetensors.
    """
    named = (writer for writer in WRITERS if not sharded and is_named_for(output, writer))
    return next(named, SAFETENSORS)


def is_named_for(output: Path, writer: Writer) -> bool:
    """Whether a file's suffix is one of the format's, or its name is that of the file which opens such a folder."""
    if writer.folder is not None:
        return os.path.basename(os.fspath(output)) == writer.folder.file
    return os.path.splitext(os.fspath(output))[1].lower() in writer.suffixes


def check_name(output: str, is_folder: bool) -> None:
    """UsageError where the name of an output says another thing than what will be written.

    A file ends in a suffix of its format; a folder does not end as a file of weights does.
    """
    stem, suffix = os.path.splitext(output.rstrip(os.sep))
    written = [suffix for writer in WRITERS for suffix in writer.suffixes]
    known = suffix.lower() in table.NOT_WRITTEN or suffix.lower() in written
    if is_folder and known:
        raise UsageError(f"{output}: is the name of a file ({suffix}); the output is a folder", f"-o {quote(stem)}")
    is_of_model = not is_folder and output.lower().endswith(OF_MODELS)
    is_no_file = output.endswith(os.sep) or (os.path.lexists(output) and not os.path.isfile(output))
    if not is_of_model and (is_folder or suffix.lower() in written or not output or is_no_file):
        return  # `check_place` refuses names that are no files'
    ends = (
        f"ends in {suffix}"
        if suffix
        else "has no suffix, which says the format; a folder is written where the input is one"
    )
    if is_of_model:
        ends = "is a file that Keras loads into a model it knows: `convert --into MODEL` fills one"
    others = ", ".join(suffix for writer in WRITERS[1:] for suffix in writer.suffixes)
    plain_name = (stem if known else output) + SAFETENSORS.suffixes[0]
    raise UsageError(
        f"{output}: {ends}; what paramtool writes ends in {SAFETENSORS.suffixes[0]}, or in {others} for other formats"
        + (", and `convert --into MODEL.keras` writes a whole model" if suffix.lower() == ".keras" else ""),
        hint="--into MODEL.keras" if is_of_model else f"-o {quote(plain_name)}",
    )
