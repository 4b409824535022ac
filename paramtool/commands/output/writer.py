"""A writer: what a format has to say of itself to be written, and the form that formats without a record have.

`writers.py` is the table of writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import Advance
from paramtool.errors import PlanError, leading, listed, plural, some
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.object_tree import is_flat
from paramtool.formats.output import OutputFile, refuse_tensors
from paramtool.formats.table import Format, Holds
from paramtool.lazy_dataclass import frozen
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan, Target
from paramtool.model.plan import whole as whole_target
from paramtool.passes.module_versions import lost_versions, renamed_versions
from paramtool.passes.objects_differ import marks
from paramtool.passes.separate import parted, separate


@frozen
class Keeping:
    """What becomes of objects that the output cannot hold as they are."""

    skip: bool = False
    """Leave them out, by name."""
    plain: bool = False
    """Write objects of a torch file as dicts, lists, numbers and strings."""
    strict: bool = False
    """Refuse to leave anything out."""


@frozen
class Fitted:
    """A plan that one format holds."""

    plan: Plan
    left_out: tuple[str, ...] = ()
    """What it does not hold, for people."""
    needs: tuple[str, ...] = ()
    """Classes that `torch.load(weights_only=True)` refuses."""
    changed: tuple[str, ...] = ()
    """Objects that it holds as plain values, since that was asked for; for people."""
    lost: tuple[str, ...] = ()
    """What nobody asked to leave out, and is: the first line of the report."""
    keeps_ties: bool = True
    """Whether it says which names share memory, as the source does."""
    unsaid: tuple[str, ...] = ()
    """What it does not say of the networks in it, for people: that changes no tensor."""

    @property
    def keeps_objects(self) -> bool:
        """Whether it has every object that the format has room for."""
        asked = (text for text in self.left_out if text not in self.lost)
        return not self.changed and all(text.startswith("tensor ") for text in asked)


Hold = Callable[[Plan, Checkpoint, Keeping], Fitted]
"""The plan with those of its names and objects that a format holds, and what it does not hold of them."""


def whole(links: bool, tree_of: Callable[[Plan, Checkpoint], objects.Node | None] = lambda plan, source: None) -> Hold:
    """For formats of tensors alone: every name is stored, or linked to a whole tensor.

    `tree_of` gives the objects of a plan where the format can hold them.
    """

    def hold(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        tree = tree_of(plan, checkpoint)
        lost = tuple(_lost_objects(checkpoint, tree is not None))
        return Fitted(replace(separate(plan, links), objects=tree or objects.EMPTY), lost=lost)

    return hold


@frozen
class Writer:
    """How one format is written."""

    name: str
    """As people say it."""
    form: Format
    """The row of the format: its suffixes, and what its files hold beside tensors."""
    encode: Callable[[Plan, str], tuple[OutputFile, ...]]
    """The files for a plan, given what the output is called: the last is the output, the others go beside it."""
    refusals: Callable[[Mapping[str, str]], Mapping[str, str]]
    """Of {name: dtype}, {name: why the format has no form for it}."""
    hold: Hold = whole(links=False)
    unfit: Callable[[Target], str] = lambda target: ""
    """Why it cannot store a tensor of that shape."""
    differences: Callable[[str, OutputFile, Source, Advance], Iterable[str]] = lambda *args: ()
    """What somebody else's code finds wrong in a file that was written."""
    needs: tuple[str, ...] = ()
    """What that code and the writing import."""
    only_layout: str = ""
    """The layout that every recurrent network has in such files; empty if there are several."""
    folder: WeightsName | None = None
    """The files of formats that are folders: the one that is opened, and those beside it."""
    is_graph: bool = False
    """Whether it holds what computes with the tensors, too."""
    caveats: Callable[[Plan], Iterable[str]] = lambda plan: ()
    """What a person has to know to open such a file."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Names that end so are of this format."""
        return self.form.written

    @property
    def holds(self) -> Holds:
        """What its files hold beside tensors."""
        return self.form.holds

    def fit(self, plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        """The plan as the format holds it; PlanError where that is too little."""
        if not self.holds.record:  # what is calculated on load is stored
            stored = (whole_target(name, plan.names[name].source) for name in plan.derived)
            plan = replace(plan, targets=(*plan.targets, *stored), derived={})
        fitted = self.hold(plan, checkpoint, keeping)
        made, lost = fitted.plan, [*fitted.lost]
        shared, unsaid = [*parted(plan, made)], [*(() if self.holds.views else _unmarked(plan))]
        if shared:
            named = "; ".join(shared[:MANY])
            more = f" and {plural(len(shared) - MANY, 'more set')}" if len(shared) > MANY else ""
            lost.insert(0, f"which names share memory (their tensors are stored more than once): {named}{more}")
        unsaid += renamed_versions(plan.objects, checkpoint.entries, plan.names) if self.holds.objects else ()
        if not self.holds.objects:
            if texts := [key for key in plan.metadata if key != "format"]:
                lost.append(f"metadata {some(texts, MANY)}")
            if described := [f"{module.at or '(top)'} is {module.layout}" for module in plan.modules]:
                layouts = f"which layout networks have: {leading(described, MANY)}"
                unsaid.append(f"{layouts}; reading them again may need --from and --spec")
            unsaid += lost_versions(plan.objects)
            made = replace(made, metadata={}, index_metadata={}, modules=plan.modules if self.is_graph else ())
        if lost and keeping.strict:
            hint = "-o NAME.pt holds them; without --strict they are left out and named"
            raise PlanError(listed(f"{plan.source}: {self.name} files cannot store:", lost), hint=hint)
        refused = self._refused(made) if keeping.skip and not keeping.strict and not self.holds.objects else {}
        return replace(
            fitted,
            plan=_lacking(made if self.holds.views else made.unmarked(), refused),
            left_out=(*lost, *fitted.left_out, *(f"tensor {name!r:.200}: {why}" for name, why in refused.items())),
            lost=tuple(lost),
            keeps_ties=not shared,
            unsaid=tuple(unsaid),
        )

    def lay_out(self, plan: Plan, name: str) -> tuple[OutputFile, ...]:
        """The files for a plan of which the output is called `name`; PlanError for tensors that have no form in it."""
        if not self.holds.objects:
            if not plan.targets:
                raise PlanError(f"{plan.source}: holds no tensor; there is nothing to write")
            hint = "-o NAME.safetensors or -o NAME.pt can store them, and `convert --skip-unsupported` leaves them out"
            refuse_tensors(plan, f"{self.name} files", self._refused(plan), hint)
        return self.encode(plan, name)

    def _refused(self, plan: Plan) -> dict[str, str]:
        """{tensor that the format has no form for: why}."""
        shapes = {target.name: reason for target in plan.targets if (reason := self.unfit(target))}
        return {**self.refusals(plan.dtypes()), **shapes}


def _lacking(plan: Plan, refused: Mapping[str, str]) -> Plan:
    """A plan without some of its targets."""
    targets = tuple(target for target in plan.targets if target.name not in refused)
    return replace(plan, targets=targets, names={n: one for n, one in plan.names.items() if one.owner not in refused})


def _lost_objects(checkpoint: Checkpoint, has_tree: bool) -> Iterator[str]:
    """What a file of tensors alone, or with a tree of plain values, does not hold of the objects, for people."""
    tree = checkpoint.objects
    if not isinstance(tree, objects.Mapping):
        return
    if has_tree:
        streams = [objects.word(key) for key, child in tree.items if any(map(objects.content_of, objects.walk(child)))]
        if streams:
            yield f"which bytes are an io.BytesIO: those in {some(streams, MANY)}"
        several = {mark for mark, count in marks(tree).items() if count > 1}
        if shared := [objects.word(key) for key, child in tree.items if not several.isdisjoint(marks(child))]:
            yield f"which objects are one: those in {some(shared, MANY)}"
    elif not is_flat(tree, tuple(checkpoint.entries)):
        held = {
            objects.word(key): any(objects.tensor_names(child))
            for key, child in tree.items
            if objects.holds_objects(child)
        }
        if alone := [key for key, has_tensors in held.items() if not has_tensors]:
            yield f"objects {some(alone, MANY)}"
        if beside := [key for key, has_tensors in held.items() if has_tensors]:
            yield f"what is beside the tensors of {some(beside, MANY)}"


def _unmarked(plan: Plan) -> Iterator[str]:
    """What only a file of torch's and a record say of tensors, for people."""
    if marked := [one.name for one in plan.names.values() if one.requires_grad or one.kind]:
        yield f"which tensors ask for gradients or are parameters: {some(marked, MANY)}"


MANY = 5
