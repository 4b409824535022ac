"""Writing a folder of torch.distributed.checkpoint, without torch, as one rank saves it.

    __0_0.distcp    the archives, one behind the other: one for each tensor, and one for each object
    .metadata       last: which tensors there are, where each is, and what a loader has no place for

Loaders copy into the tensors of a model, so two names may have one place in `.metadata`: the bytes are stored once,
and nothing is tied by that.  Which names were one tensor, the recurrent networks and the user's metadata are in the
attribute `paramtool` of the pickled Metadata, which no loader looks at.

Source: torch/distributed/checkpoint/{metadata,filesystem,planner_helpers}.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paramtool.errors import PlanError, listed
from paramtool.formats.dcp import record
from paramtool.formats.dcp.flatten import FlatTree, flattened
from paramtool.formats.dcp.metadata import CLASSES, FOLDERS, NAME, RECORD, VERSIONS
from paramtool.formats.folder import weight_names
from paramtool.formats.object_tree import complete
from paramtool.formats.output import Late, OutputFile, Segment
from paramtool.formats.pickle.write import Call, Dict, Name, dumps
from paramtool.formats.torch import write as torch_write
from paramtool.formats.torch.names import BARE
from paramtool.model.alias import Alias
from paramtool.model.objects import Node, TensorRef, map_tensors, tensor_names
from paramtool.model.plan import Plan, Target
from paramtool.model.storage import ByteRange

(FILE,) = weight_names.DCP.beside
"""The file of the one rank."""


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """The two files of a fitted plan."""
    torch_write.check_tensors(plan)
    flat = flat_of(plan)
    writing = _Writing(plan)
    for name, node in flat.values.items():
        writing.add(name, node)
    pickle = dumps(_metadata(plan, flat, writing.pieces))
    return OutputFile(FILE, tuple(writing.segments)), OutputFile(NAME, (pickle,))


def flat_of(plan: Plan) -> FlatTree:
    """The objects of a plan, taken apart; PlanError if they are not a dict, or two values have one name."""
    flat = flattened(complete(plan.objects, plan.order))
    if flat.refused:
        head = f"{plan.source}: torch.distributed.checkpoint cannot store its objects:"
        raise PlanError(listed(head, flat.refused), hint="-o NAME.pt and -o NAME.safetensors hold them")
    return flat


# --- archives ------------------------------------------------------------------------------------------------------


class _Writing:
    """The archives so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._targets = {target.name: target for target in plan.targets}
        self._nbytes = self._counted = 0
        self.segments: list[Segment] = []
        self.pieces: dict[str, ByteRange] = {}
        """{name: where its archive is}"""

    def add(self, name: str, node: Node) -> None:
        """Add an object, or a tensor that was not added under another name."""
        if isinstance(node, TensorRef) and (owner := self._plan.names[name].owner) != name:
            if owner not in self.pieces:
                self.pieces[owner] = self._archive(owner, TensorRef(owner))
            self.pieces[name] = self.pieces[owner]
        elif name not in self.pieces:
            self.pieces[name] = self._archive(name, node)

    def _archive(self, name: str, node: Node) -> ByteRange:
        """Add the archive of the value of a name; in it, tensors have the names that a torch file gives them."""
        own = {full: BARE if full == name else full.removeprefix(f"{name}.") for full in tensor_names(node)}
        targets = tuple(self._targets[full] for full in own)
        aliases = {own[t.name]: Alias(own[t.name], t.view, own[t.name], "storage", "storage", t.view) for t in targets}
        inline = {inner: self._plan.inline[full] for full, inner in own.items() if full in self._plan.inline}
        tree = map_tensors(node, own.__getitem__)
        plan = Plan(targets, self._plan.source, aliases, inline=inline, objects=tree)
        made = torch_write.segments(plan, tree)
        first, count = self._counted, sum(isinstance(one, (Target, ByteRange)) for one in made)
        self.segments += (_shifted(one, first, count) if isinstance(one, Late) else one for one in made)
        piece = ByteRange(FILE, self._nbytes, self._nbytes + OutputFile("", made).nbytes)
        self._nbytes = piece.stop
        self._counted += count
        return piece


def _shifted(late: Late, first: int, count: int) -> Late:
    """Bytes that are made from the CRCs of one archive, of all in the file."""

    def make(crcs: Sequence[int]) -> bytes:
        return late.make(crcs[first : first + count])

    return Late(late.nbytes, make)


# --- the metadata --------------------------------------------------------------------------------------------------


def _class(name: str) -> Name:
    """One of the classes of torch.distributed.checkpoint."""
    module = next(module for module, names in CLASSES.items() if name in names)
    return Name(f"{FOLDERS[0]}.{module}", name)


def _made(name: str, **attributes: object) -> Call:
    """An object of one of these classes, with its attributes."""
    return Call(_class(name), state=Dict([*attributes.items()]), new=True)


def _size(numbers: Iterable[int]) -> Call:
    return Call(Name("torch", "Size"), (tuple(numbers),))


class _Properties:
    """What torch knows of a tensor, one object for each dtype."""

    def __init__(self) -> None:
        layout = Name("torch.serialization", "_get_layout")
        self._layout = Call(layout, ("torch.strided",), shared=True)
        encoding = Name(_class("Metadata").module, "_MEM_FORMAT_ENCODING")
        self._memory_format = Call(encoding, (0,), shared=True)  # torch.contiguous_format
        self._found: dict[str, Call] = {}

    def of(self, dtype: str) -> Call:
        """TensorProperties of a dtype: (dtype, layout, requires_grad, memory format, pin_memory)."""
        if dtype not in self._found:
            word = Name("torch", torch_write.DTYPE_WORDS[dtype])
            state = (word, self._layout, False, self._memory_format, False)
            self._found[dtype] = Call(_class("TensorProperties"), state=state, new=True, shared=True)
        return self._found[dtype]


def _metadata(plan: Plan, flat: FlatTree, pieces: Mapping[str, ByteRange]) -> Call:
    """The pickled Metadata."""
    tensors: list[tuple[object, object]] = []
    stored: list[tuple[object, object]] = []
    properties = _Properties()
    for name, node in flat.values.items():
        if isinstance(node, TensorRef):
            view = plan.names[name].window
            pairs = view.dtype.name == torch_write.PAIRS
            shape = (*view.shape[:-1], view.shape[-1] // 2) if pairs else view.shape
            offset = _size([0] * len(shape))
            chunk = _made("ChunkStorageMetadata", offsets=offset, sizes=_size(shape))
            of = properties.of(view.dtype.name)
            described = _made("TensorStorageMetadata", properties=of, size=_size(shape), chunks=[chunk])
            index = _made("MetadataIndex", fqn=name, offset=_size([0] * len(shape)), index=0)
        else:
            described = _made("BytesStorageMetadata")
            index = _made("MetadataIndex", fqn=name, offset=None, index=None)
        piece = pieces[name]
        tensors.append((name, described))
        stored.append((index, _made("_StorageInfo", relative_path=piece.file, offset=piece.start, length=piece.nbytes)))
    said = {RECORD: text} if (text := record.encode(plan, flat.empty)) else {}
    return _made(
        "Metadata",
        state_dict_metadata=Dict(tensors),
        planner_data=Dict([*flat.places.items()]),
        storage_data=Dict(stored),
        storage_meta=None,
        version=VERSIONS[-1],
        **said,
    )
