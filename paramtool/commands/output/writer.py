"""A writer: what a format has to say of itself to be written, and the form that formats without a record have.

`writers.py` is the table of writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from paramtool.engine.read.source import Source
from paramtool.engine.write.verify import Advance
from paramtool.errors import PlanError, listed, plural, some
from paramtool.formats.folder.weight_names import WeightsName
from paramtool.formats.object_tree import is_flat
from paramtool.formats.output import OutputFile, refuse_tensors
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan, Target
from paramtool.passes.separate import parted, separate


@dataclass(frozen=True, slots=True)
class Keeping:
    """What becomes of objects that the output cannot hold as they are."""

    skip: bool = False
    """Leave them out, by name."""
    plain: bool = False
    """Write objects of a torch file as dicts, lists, numbers and strings."""
    strict: bool = False
    """Refuse to leave anything out."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Writer:
    """How one format is written."""

    name: str
    """As people say it."""
    suffixes: tuple[str, ...]
    """Names that end so are of this format."""
    lay_out: Callable[[Plan, str], tuple[OutputFile, ...]]
    """The files for a plan, given what the output is called: the last is the output, the others go beside it."""
    refusals: Callable[[Mapping[str, str]], Mapping[str, str]]
    """Of {name: dtype}, {name: why the format has no form for it}."""
    fit: Callable[[Plan, Checkpoint, Keeping], Fitted]
    """The plan with what of its objects the format holds; PlanError where that is too little."""
    differences: Callable[[str, OutputFile, Source, Advance], Iterable[str]]
    """What somebody else's code finds wrong in a file that was written."""
    needs: tuple[str, ...]
    """What that code and the writing import."""
    sharing: str = ""
    """How names share what is stored: `record`, any view, by a record, which also says what is calculated on load and
    of which class objects are; `memory`, any view, as all names on one run of bytes do when loaded; `objects`, whole
    tensors, and the objects have theirs; `links`, whole tensors, without objects; empty, not at all."""
    only_layout: str = ""
    """The layout that every recurrent network has in such files; empty if there are several."""
    folder: WeightsName | None = None
    """The files of formats that are folders: the one that is opened, and those beside it."""
    is_graph: bool = False
    """Whether it holds what computes with the tensors, too."""
    caveats: Callable[[Plan], Iterable[str]] = lambda plan: ()
    """What a person has to know to open such a file."""

    @property
    def is_plain(self) -> bool:
        """Whether it holds tensors and their names alone, and neither a record nor objects."""
        return self.sharing in ("links", "")

    @property
    def splits_equal_bytes(self) -> bool:
        """Whether all names on one run of bytes share memory when loaded, so that equal bytes have to stand twice."""
        return self.sharing not in ("record", "objects")


def plain(
    *,
    name: str,
    suffixes: tuple[str, ...],
    lay_out: Callable[[Plan, str], tuple[OutputFile, ...]],
    refusals: Callable[[Mapping[str, str]], Mapping[str, str]],
    differences: Callable[[str, OutputFile, Source, Advance], Iterable[str]] = lambda *args: (),
    needs: tuple[str, ...] = (),
    unfit: Callable[[Target], str] = lambda target: "",
    links: bool = False,
    only_layout: str = "",
    caveats: Callable[[Plan], Iterable[str]] = lambda plan: (),
    held: Callable[[Plan, Checkpoint], objects.Node | None] = lambda plan, source: None,
) -> Writer:
    """The writer of a format that holds names and tensors alone: every name is stored, objects are left out.

    With `links` the format can store a whole tensor under several names.  `unfit` says why it cannot store a tensor of
    that shape.  `held` gives the tree of a plan where the format can hold it.
    """

    def laid_out(plan: Plan, output: str) -> tuple[OutputFile, ...]:
        check_held(plan, name, refusals, unfit)
        return lay_out(plan, output)

    def fit(plan: Plan, checkpoint: Checkpoint, keeping: Keeping) -> Fitted:
        apart = separate(plan, links)
        shared = tuple(parted(plan, apart))
        tree = held(plan, checkpoint)
        lost = tuple(_not_in_plain_files(plan, checkpoint, shared, tree is not None))
        refuse_lost(plan, f"{name} files", lost, keeping)
        apart = replace(apart, objects=tree or objects.EMPTY, metadata={}, index_metadata={}, modules=())
        refused = _refused(apart, refusals, unfit) if keeping.skip and not keeping.strict else {}
        apart = _lacking(apart, refused)
        gone = (*lost, *(f"tensor {tensor!r:.200}: {reason}" for tensor, reason in refused.items()))
        return Fitted(apart.unmarked(), gone, lost=lost, keeps_ties=not shared, unsaid=tuple(_unsaid(plan)))

    return Writer(
        name=name,
        suffixes=suffixes,
        lay_out=laid_out,
        refusals=refusals,
        fit=fit,
        differences=differences,
        needs=needs,
        sharing="links" if links else "",
        only_layout=only_layout,
        caveats=caveats,
    )


def refuse_lost(plan: Plan, what: str, lost: tuple[str, ...], keeping: Keeping) -> None:
    """PlanError if an output, which people call `what`, does not hold everything, and nothing may be left out."""
    if lost and keeping.strict:
        head = f"{plan.source}: {what} cannot store:"
        raise PlanError(listed(head, lost), hint="-o NAME.pt holds them; without --strict they are left out and named")


def _lacking(plan: Plan, refused: Mapping[str, str]) -> Plan:
    """A plan without some of its targets."""
    targets = tuple(target for target in plan.targets if target.name not in refused)
    return replace(plan, targets=targets, names={n: one for n, one in plan.names.items() if one.owner not in refused})


def check_held(
    plan: Plan,
    name: str,
    refusals: Callable[[Mapping[str, str]], Mapping[str, str]],
    unfit: Callable[[Target], str] = lambda target: "",
) -> None:
    """PlanError if a plan has no tensors, or tensors that a format, which people call `name`, has no form for."""
    if not plan.targets:
        raise PlanError(f"{plan.source}: holds no tensor; there is nothing to write")
    hint = "-o NAME.safetensors or -o NAME.pt can store them, and `convert --skip-unsupported` leaves them out"
    refuse_tensors(plan, f"{name} files", _refused(plan, refusals, unfit), hint)


def _refused(
    plan: Plan, refusals: Callable[[Mapping[str, str]], Mapping[str, str]], unfit: Callable[[Target], str]
) -> dict[str, str]:
    """{tensor that a format has no form for: why}."""
    shapes = {target.name: reason for target in plan.targets if (reason := unfit(target))}
    return {**refusals(plan.dtypes()), **shapes}


def _not_in_plain_files(
    plan: Plan, checkpoint: Checkpoint, shared: tuple[str, ...], holds_objects: bool
) -> Iterator[str]:
    """What of a plan is not a tensor under a name, for people."""
    if shared:
        more = len(shared) - MANY
        named = "; ".join(shared[:MANY]) + (f" and {plural(more, 'more set')}" if more > 0 else "")
        yield f"which names share memory (their tensors are stored more than once): {named}"
    tree = checkpoint.objects
    items = tree.items if holds_objects and isinstance(tree, objects.Mapping) else ()
    if streams := [objects.word(key) for key, child in items if any(map(objects.content_of, objects.walk(child)))]:
        yield f"which bytes are an io.BytesIO: those in {some(streams, MANY)}"
    if not holds_objects and isinstance(tree, objects.Mapping) and not is_flat(tree, tuple(checkpoint.entries)):
        held = {
            objects.word(key): any(objects.tensor_names(child))
            for key, child in tree.items
            if objects.holds_objects(child)
        }
        if alone := [key for key, has_tensors in held.items() if not has_tensors]:
            yield f"objects {some(alone, MANY)}"
        if beside := [key for key, has_tensors in held.items() if has_tensors]:
            yield f"what is beside the tensors of {some(beside, MANY)}"
    if texts := [key for key in plan.metadata if key != "format"]:
        yield f"metadata {some(texts, MANY)}"


def unmarked_tensors(plan: Plan) -> Iterator[str]:
    """What only a file of torch's and a record say of tensors, for people."""
    if marked := [one.name for one in plan.names.values() if one.requires_grad or one.kind]:
        yield f"which tensors ask for gradients or are parameters: {some(marked, MANY)}"


def _unsaid(plan: Plan) -> Iterator[str]:
    """What only a record says, for people."""
    yield from unmarked_tensors(plan)
    described = [f"{module.at or '(top)'} ({module.layout})" for module in plan.modules]
    if described:
        yield f"which layout networks have: {some(described, MANY)}; reading them again may need --from and --spec"


MANY = 5
