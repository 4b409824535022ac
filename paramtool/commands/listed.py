"""What the document of `inspect` lists, row by row, made while it is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from paramtool.commands.inspect import Inspection, parameter
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.alias import FusedBlock
from paramtool.model.checkpoint import Compound, Entry, NoData, Unknown, Unreadable
from paramtool.model.objects import Leaf, Node
from paramtool.model.objects import Mapping as Pairs
from paramtool.model.objects import Sequence as Items
from paramtool.model.optimizer import Binding, StateEntry
from paramtool.model.outline import outline
from paramtool.model.view import View, Views

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection
    from paramtool.passes.rnn.convert import FusedNetwork

MAX_OBJECTS = 10_000


@frozen
class SeenBlock:
    """A fused block, and the recurrent network that it is, if it is one's buffer."""

    network: FusedNetwork | None
    block: FusedBlock
    _members = (
        "network(at layout spec) storage=block.storage nbytes=block.nbytes parts=block.spans gaps=block.gaps "
        "tail=block.tail"
    )


@frozen
class UnusedBytes:
    """What of a storage no tensor covers."""

    storage: int
    nbytes: int


@frozen
class JudgedName:
    """A name that a pickle asks for, and whether it makes the file unsafe."""

    name: Unknown
    unsafe: bool
    _members = "*name unsafe"


@frozen
class JudgedFile:
    """A file of the folder that holds no weights, with the names that its pickles ask for."""

    file: str
    unknown: Iterator[JudgedName]


@frozen
class PlainValue:
    """A value that is no tensor, in a few words."""

    path: str
    value: str


@frozen
class BoundOptimizer:
    """An optimizer, and which parameter each of its entries belongs to."""

    file: str
    binding: Binding
    _members = (
        "file at=binding.optimizer.at section=binding.optimizer.section form=binding.optimizer.form "
        "algorithm=binding.optimizer.algorithm refused=binding.optimizer.refused "
        "entries=binding.optimizer.entries.__len__ groups bound=binding(how source unique=is_unique words) "
        "parameters ambiguous=binding.ambiguous unbound=binding.unbound defects=binding.defects"
    )

    @property
    def groups(self) -> Iterator[SettingsOfGroup]:
        """Its groups."""
        return (SettingsOfGroup(len(one.keys), _plain(one.settings)) for one in self.binding.optimizer.groups)

    @property
    def parameters(self) -> Iterator[BoundParameter]:
        """Its entries."""
        return (BoundParameter(self.binding.names.get(one.key), one) for one in self.binding.optimizer.entries)


@frozen
class SettingsOfGroup:
    """The settings of some entries."""

    entries: int
    settings: Mapping[str, Any]


@frozen
class BoundParameter:
    """An entry, and the name of its parameter."""

    name: str | None
    entry: StateEntry
    _members = "name key=entry.key group=entry.group slots"

    @property
    def slots(self) -> list[str]:
        """What it has beside the parameter."""
        return [slot.key for slot in self.entry.slots]


@frozen
class TensorRow:
    """A tensor: what it is, and where its elements are."""

    name: str
    entry: Entry
    kind: str
    """`tensor`, the kind of one of several parts, why there is no data, or `unreadable`."""
    array: View | NoData | None = None
    owner: str | None = None
    parts: Views | None = None
    facts: Mapping[str, str] | None = None
    needs: str | None = None
    digests: Mapping[str, str] | None = None
    _members = "name role=entry.role requires_grad=entry.requires_grad kind *array owner? parts? facts? needs? digests?"


@frozen
class TreeRow:
    """A module, with what is below it."""

    level: int
    """Below the whole, which is 0."""
    node: TreeNode
    _members = (
        "module=node.path level tensors=node.tensors parameters=node.parameters nbytes=node.nbytes shared(name with)"
    )

    @property
    def shared(self) -> list[dict[str, str]]:
        """Names below it that an earlier module has, too."""
        return [{"name": name, "with": other} for name, other in self.node.shared.items()]


@frozen
class Listing:
    """What `inspect --json` prints of a checkpoint."""

    found: Inspection
    tensors: bool = False
    is_tree: bool = False
    depth: int | None = None
    _schema = "inspect/4"
    _members = (
        "path=found.path format=found.checkpoint.format producer=found.checkpoint.producer "
        "files=found.checkpoint.files(path nbytes) nbytes=found.checkpoint.nbytes "
        "tensors=found.checkpoint.entries.__len__ distinct=found.distinct parameters=found.parameters uncounted+ "
        "dtypes=found.checkpoint.dtypes sections=found.checkpoint.counted_sections groups=found.graph.shared_groups "
        "equal=found.content.equal constants=found.content.constants matches=found.content.matches fused unused "
        "unused_nbytes=found.unused_nbytes duplicate_nbytes=found.duplicate_nbytes unsafe unknown sidecars "
        "metadata=found.checkpoint.metadata notes findings=found.findings(rule finding=message) "
        "networks=found.networks+ parts=found.parts? tree? section=found.section? optimizers? objects+ "
        "config=found.config? tensor_list?"
    )

    @property
    def uncounted(self) -> list[str]:
        """Codes of quantised weights of which nothing shows how many weights they hold."""
        return [name for name, one in self.found.quantised.items() if one is None]

    @property
    def fused(self) -> Iterator[SeenBlock]:
        """Storages of several tensors."""
        return (SeenBlock(self.found.fused.get(block.storage), block) for block in self.found.graph.fused)

    @property
    def unused(self) -> Iterator[UnusedBytes]:
        """Bytes that no tensor covers."""
        return (UnusedBytes(*one) for one in self.found.graph.unused.items())

    @property
    def unsafe(self) -> bool:
        """Whether pickles of the checkpoint, or of files beside it, ask for what nobody has allowed."""
        return bool(self.found.unsafe)

    @property
    def unknown(self) -> Iterator[JudgedName]:
        """The names that its pickles ask for."""
        return _judged(self.found.checkpoint.unknown, self.found.own_unsafe)

    @property
    def sidecars(self) -> Iterator[JudgedFile]:
        """The other files of a folder whose pickles ask for names."""
        unsafe = self.found.unsafe_sidecars
        return (JudgedFile(name, _judged(asked, unsafe.get(name, ()))) for name, asked in self.found.sidecars.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """All that people are told of it."""
        return (*self.found.checkpoint.said(), *self.found.assumed)

    @property
    def tree(self) -> Iterator[TreeRow] | None:
        """The modules, where they were asked for."""
        return (TreeRow(*one) for one in tree(self.found).walk(self.depth)) if self.is_tree else None

    @property
    def optimizers(self) -> Iterator[BoundOptimizer] | None:
        """The optimizers, where they were asked for."""
        files = self.found.optimizers
        return None if files is None else (BoundOptimizer(f.file, one) for f in files for one in f.bindings)

    @property
    def objects(self) -> list[PlainValue]:
        """What a file without a model's tensors holds: the first values."""
        lines = () if self.found.parameters else outline(self.found.checkpoint.objects)
        return [PlainValue(*line) for line in islice(lines, MAX_OBJECTS)]

    @property
    def tensor_list(self) -> Iterator[TensorRow] | None:
        """The tensors, where they were asked for."""
        return (_tensor(self.found, *item) for item in self.found.checkpoint.entries.items()) if self.tensors else None


def _tensor(found: Inspection, name: str, entry: Entry) -> TensorRow:
    labels, value = [name], entry.value
    labels += (f"{name}/{part}" for part in value.parts) if isinstance(value, Compound) else ()
    digests = found.digests and {label: found.digests[label] for label in labels if label in found.digests}
    row = partial(TensorRow, name, entry, digests=digests)
    match value:
        case View() as view:
            return row("tensor", view, found.graph.names[name].owner)
        case Compound(kind, parts, facts):
            return row(kind, parts=parts, facts={key: str(value) for key, value in facts.items()})
        case NoData(why=why) as array:
            return row(why, array)
        case Unreadable(needs):
            return row("unreadable", needs=needs)


def _judged(asked: Iterable[Unknown], unsafe: Collection[Unknown]) -> Iterator[JudgedName]:
    return (JudgedName(one, one in unsafe) for one in asked)


def _plain(node: Node) -> Any:
    """Settings as JSON: numbers, strings and lists; anything else as its text."""
    match node:
        case Leaf(bool() | int() | str() | None as value):
            return value
        case Leaf(float() as number):
            return number if number - number == 0 else str(number)  # JSON has no infinity
        case Items(_, items):
            return [_plain(item) for item in items]
        case Pairs(_, pairs):
            return {str(key): _plain(child) for key, child in pairs}
    return next((value for _, value in outline(node)), "a tensor")


# --- The modules of a checkpoint, each with the tensors, parameters and bytes below it; what is shared counts once ----


@dataclass(slots=True)
class TreeNode:
    """A module, with everything below it."""

    path: str
    """The names of its tensors begin with it; empty for the whole."""
    name: str
    """The part of the path behind that of the module above; several parts where those between have nothing else."""
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    """Of tensors that no earlier module shares."""
    shared: dict[str, str] = field(default_factory=dict)
    """{a tensor below it: the tensor counted elsewhere, earlier, that it shares memory with}."""
    children: dict[str, TreeNode] = field(default_factory=dict)

    def walk(self, depth: int | None = None, level: int = 0) -> Iterator[tuple[int, TreeNode]]:
        """(level, module) of this module and those below it, down to a depth."""
        yield level, self
        if depth is None or level < depth:
            for child in self.children.values():
                yield from child.walk(depth, level + 1)


def tree(found: Inspection) -> TreeNode:
    """The modules of what `inspect` found, in the order of the file."""
    names = found.checkpoint.entries
    separator = "." if any("." in name for name in names) else "/"
    root = TreeNode("", "")
    first: dict[str, str] = {}
    weights = found.quantised
    for name, entry in names.items():
        counted, nbytes = _bytes(found, name)
        owner = first.setdefault(counted, name)
        view = parameter(name, entry)
        elements = weights.get(name, view.numel if view is not None else 0)
        above = _modules(root, name.split(separator)[:-1], separator)
        for module in above:
            module.tensors += 1
            if owner == name:
                module.nbytes += nbytes
                module.parameters += elements or 0
            elif not owner.startswith(f"{module.path}{separator}" if module.path else ""):
                module.shared[name] = owner
    # One line for modules of which each has nothing but the next; children after it.
    stack = [root]
    while stack:
        one = stack.pop()
        for key, child in one.children.items():
            joined = child
            while (
                len(joined.children) == 1 and (only := next(iter(joined.children.values()))).tensors == joined.tensors
            ):
                only.name = f"{joined.name}{separator}{only.name}"
                joined = only
            one.children[key] = joined
            stack.append(joined)
    return root


def _bytes(found: Inspection, name: str) -> tuple[str, int]:
    """What a tensor counts as, and its bytes: those of its owner, which every name on it has in common."""
    graph = found.graph
    alias = graph.names.get(name)
    if alias is None:
        views = found.checkpoint.entries[name].value
        parts: Views = getattr(views, "parts", {})
        return name, sum(view.nbytes for view in parts.values())
    return alias.owner, graph.owners[alias.owner].nbytes


def _modules(root: TreeNode, parts: list[str], separator: str) -> list[TreeNode]:
    """The modules on the way to a tensor, the root first."""
    found = [root]
    for part in parts:
        above = found[-1]
        path = f"{above.path}{separator}{part}" if above.path else part
        found.append(above.children.setdefault(part, TreeNode(path, part)))
    return found
