"""The writers of torch files, and of folders of torch.distributed.checkpoint, which hold the same objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paramtool.commands.output.writer import Fitted, Keeping, Writer
from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import by_zipfile
from paramtool.errors import PlanError
from paramtool.formats import table
from paramtool.formats.dcp import write as dcp
from paramtool.formats.folder import weight_names
from paramtool.formats.torch import write as torch_write
from paramtool.formats.torch.write_objects import How
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Node, TensorRef, tensor_names
from paramtool.model.plan import Plan
from paramtool.passes.separate import separate


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


TORCH = Writer(
    name="torch",
    form=table.find("torch"),
    encode=lambda plan, name: torch_write.lay_out(plan),
    refusals=torch_write.refusals,
    hold=_hold_in_pickle,
    differences=by_zipfile,
    needs=("zipfile",),
)


def _hold_in_dcp(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
    """Objects as torch files hold them, each as a value of its own; a shared tensor as a whole."""
    inside = _hold_in_pickle(plan, checkpoint, keeping)
    flat = dcp.flat_of(inside.plan)
    apart = _apart(inside.plan, [node for node in flat.values.values() if not isinstance(node, TensorRef)])
    apart = replace(apart, objects=flat.tree, index_metadata={})
    if "" in apart.names:
        raise PlanError(f"{plan.source}: a tensor has no name, and dcp folders need one", hint="-o NAME.pt has it")
    return replace(inside, plan=apart, lost=(*inside.lost, *flat.changed))


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


DCP = Writer(
    name="dcp",
    form=table.find("dcp"),
    encode=lambda plan, name: dcp.lay_out(plan),
    refusals=torch_write.refusals,
    hold=_hold_in_dcp,
    folder=weight_names.DCP,
)
