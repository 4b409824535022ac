"""The writer of folders of torch.distributed.checkpoint: what of a plan they hold, and what is reported of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paramtool.commands.output.writer import Fitted, Keeping, Writer
from paramtool.errors import PlanError
from paramtool.formats import table
from paramtool.formats.dcp import write as dcp
from paramtool.formats.dcp.metadata import NAME
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Node, TensorRef, tensor_names
from paramtool.model.plan import Plan
from paramtool.passes.separate import separate

FOLDER = WeightsName(stem="", suffix=NAME, beside=(dcp.FILE,))


def writer(torch: Writer) -> Writer:
    """The writer, which stores each tensor and each object as a torch file has it."""

    def hold(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        """Objects as torch files hold them, each as a value of its own; a shared tensor as a whole."""
        inside = torch.hold(plan, checkpoint, keeping)
        flat = dcp.flat_of(inside.plan)
        apart = _apart(inside.plan, [node for node in flat.values.values() if not isinstance(node, TensorRef)])
        apart = replace(apart, objects=flat.tree, index_metadata={})
        if "" in apart.names:
            raise PlanError(f"{plan.source}: a tensor has no name, and dcp folders need one", hint="-o NAME.pt has it")
        return replace(inside, plan=apart, lost=(*inside.lost, *flat.changed))

    return Writer(
        name="dcp",
        form=table.find("dcp"),
        encode=lambda plan, name: dcp.lay_out(plan),
        refusals=torch.refusals,
        hold=hold,
        folder=FOLDER,
    )


def _apart(plan: Plan, values: Iterable[Node]) -> Plan:
    """The plan with a target for each name; whole tensors share theirs with all other names on the same bytes.

    Names inside of objects, which are values, are stored with these, each for itself.
    """
    inside = {name for node in values for name in tensor_names(node)}
    names = {n: one._replace(alias_set=n if n in inside else "") for n, one in plan.names.items()}
    alone = separate(replace(plan, names=names), links=True)
    first: dict[tuple[str, str], str] = {}
    for name, one in plan.names.items():
        at = first.setdefault((alone.names[name].owner, one.alias_set), name)
        names[name] = alone.names[name]._replace(alias_set=at)
    return replace(alone, names=names)
