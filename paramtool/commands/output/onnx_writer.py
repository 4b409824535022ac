"""The writer of ONNX models that are made: a plan of recurrent networks alone, and what the graph has to know of each.

`formats/onnx/write.py` lays them out; here a spec becomes nodes' attributes, and what no such model holds is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paramtool import layouts
from paramtool.commands.output.writer import Fitted, Keeping, Writer, whole
from paramtool.errors import LayoutError, PlanError, listed, plural
from paramtool.formats import table
from paramtool.formats.onnx import write as onnx
from paramtool.formats.onnx.write import RecurrentNetwork
from paramtool.formats.output import OutputFile
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import USUAL_ACTIVATION, Spec, parse
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.plan import Plan
from paramtool.passes.separate import separate

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
