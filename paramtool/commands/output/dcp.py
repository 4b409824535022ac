"""The writer of folders of torch.distributed.checkpoint: what of a plan they hold, and what is reported of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paramtool.commands.output.writer import Fitted, Keeping, Writer, refuse_lost, unmarked_tensors
from paramtool.errors import UsageError
from paramtool.formats.dcp import write as dcp
from paramtool.formats.dcp.metadata import NAME
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.output import OutputFile
from paramtool.formats.safetensors.write import ALIGN
from paramtool.lazy_dataclass import dataclass
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import TensorRef, tensor_names
from paramtool.model.plan import Plan
from paramtool.passes.separate import separate

FOLDER = WeightsName(stem="", suffix=NAME, beside=(dcp.FILE,))


def writer(torch: Writer) -> Writer:
    """The writer, which stores each tensor and each object as a torch file has it."""

    def fit(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        """Objects as torch files hold them, each as a value of its own; a shared tensor as a whole."""
        inside = torch.fit(plan, checkpoint, keeping)
        found = _fitted(inside.plan)
        shared = [f"which names share memory (their tensors are stored more than once): {one}" for one in found.parted]
        lost = (*inside.lost, *shared, *found.changed)
        refuse_lost(plan, "torch.distributed.checkpoint", lost, keeping)
        left_out = (*inside.left_out, *shared, *found.changed)
        unsaid = tuple(unmarked_tensors(plan))
        return replace(inside, plan=found.plan, left_out=left_out, lost=lost, keeps_ties=not shared, unsaid=unsaid)

    return replace(
        torch,
        name="dcp",
        suffixes=(),
        lay_out=_lay_out,
        fit=fit,
        differences=lambda *args: (),
        needs=(),
        aliases_equal_bytes=False,
        sharing="links",
        lay_out_as=lambda plan, name: dcp.lay_out(plan),
        folder=FOLDER,
        holds_objects=True,
    )


def _lay_out(plan: Plan, align: int) -> tuple[OutputFile, ...]:
    """Archives follow each other without a gap, as torch has them, whatever is asked."""
    if align != ALIGN:
        raise UsageError(
            "a folder of torch.distributed.checkpoint has an alignment of its own", "--align is for safetensors"
        )
    return dcp.lay_out(plan)


@dataclass(frozen=True, slots=True)
class _FittedState:
    """A plan that such a folder holds."""

    plan: Plan
    changed: tuple[str, ...]
    """What it does not say any more, for people."""
    parted: tuple[str, ...]
    """Names that share memory in the source and not here, for people."""


def _fitted(plan: Plan) -> _FittedState:
    """What the folder can hold of a plan; PlanError if its objects are not a dict, or two values have one name."""
    flat = dcp.flat_of(plan)
    inside = {name for node in flat.values.values() if not isinstance(node, TensorRef) for name in tensor_names(node)}
    alone = _apart(plan, inside)
    held: dict[tuple[str, str], str] = {}
    names = {}
    for name, one in alone.names.items():
        first = held.setdefault((one.owner, plan.names[name].alias_set), name)
        names[name] = one._replace(alias_set=first)
    parted = tuple(_parted(plan, names))
    made = replace(alone, names=names, objects=flat.tree, index_metadata={})
    return _FittedState(made.unmarked(), flat.changed, parted)


def _apart(plan: Plan, inside: set[str]) -> Plan:
    """The plan with a target for each name; whole tensors share theirs with all other names on the same bytes.

    Names `inside` of objects are stored with these, each for itself.
    """
    sets = {name: name if name in inside else "" for name in plan.names}
    marked = {name: one._replace(alias_set=sets[name]) for name, one in plan.names.items()}
    return separate(replace(plan, names=marked), links=True)


def _parted(plan: Plan, names: Mapping[str, Alias]) -> Iterator[str]:
    """Names that are one alias set in a plan and several in `names`, for people."""
    together: dict[str, list[str]] = {}
    for name, one in plan.names.items():
        together.setdefault(one.alias_set, []).append(name)
    for found in together.values():
        if len({names[name].alias_set for name in found}) > 1:
            yield " and ".join(map(repr, found[:3])) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
