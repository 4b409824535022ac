"""The writer of folders of torch.distributed.checkpoint: what of a plan they hold, and what is reported of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paramtool.commands.output.writer import Fitted, Keeping, Writer, refuse_lost, unmarked_tensors
from paramtool.formats.dcp import write as dcp
from paramtool.formats.dcp.metadata import NAME
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Node, TensorRef, tensor_names
from paramtool.model.plan import Plan
from paramtool.passes.separate import parted, separate

FOLDER = WeightsName(stem="", suffix=NAME, beside=(dcp.FILE,))


def writer(torch: Writer) -> Writer:
    """The writer, which stores each tensor and each object as a torch file has it."""

    def fit(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        """Objects as torch files hold them, each as a value of its own; a shared tensor as a whole."""
        inside = torch.fit(plan, checkpoint, keeping)
        flat = dcp.flat_of(inside.plan)
        apart = _apart(inside.plan, [node for node in flat.values.values() if not isinstance(node, TensorRef)])
        together = parted(inside.plan, apart)
        shared = [f"which names share memory (their tensors are stored more than once): {one}" for one in together]
        lost = (*inside.lost, *shared, *flat.changed)
        refuse_lost(plan, "torch.distributed.checkpoint", lost, keeping)
        left_out = (*inside.left_out, *shared, *flat.changed)
        apart = replace(apart, objects=flat.tree, index_metadata={}).unmarked()
        unsaid = tuple(unmarked_tensors(plan))
        return replace(inside, plan=apart, left_out=left_out, lost=lost, keeps_ties=not shared, unsaid=unsaid)

    return replace(
        torch,
        name="dcp",
        suffixes=(),
        lay_out=lambda plan, name: dcp.lay_out(plan),
        fit=fit,
        differences=lambda *args: (),
        needs=(),
        sharing="objects",
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
