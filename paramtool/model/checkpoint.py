"""A checkpoint: files, storages, and the names that view them.

Checkpoint
  files      the files it was read from, as they were then
  storages   {id: Storage}            flat buffers in a file
  entries    {name: Entry}            in file order; an Entry is mostly a View on a storage
  objects    the tree of everything else
  unknown    names of classes and functions that the file asks for; none of them was run
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import nearest
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.display import Displayed, short
from paramtool.model.dtype import DType
from paramtool.model.objects import EMPTY, Node, Path
from paramtool.model.storage import Assembled, ByteRange, SourceFile, Storage
from paramtool.model.view import Shape, Shapes, View, Views

if TYPE_CHECKING:
    from paramtool.model.images import Image


@frozen
class Compound:
    """A tensor that several views make up together: sparse, quantised, nested, conjugated, a subclass."""

    kind: str
    parts: Views
    """Listed as `name/part`."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Facts that the parts do not show: the dense shape, scales, the axis."""
    state: Node = EMPTY
    """What a subclass of tensors was saved with; a reference stands for each tensor in it."""


SHARDED = "shards"
"""The fact of a compound that is a rank's part of a tensor: its pieces, or a text that says why they are not known."""


class ShardPiece(NamedTuple):
    """A box of a tensor in a part that one rank saved."""

    part: str
    """Which of the compound's parts has it."""
    here: tuple[int, ...]
    """Where it begins in the whole tensor."""
    there: tuple[int, ...]
    """Where it begins in the part."""
    sizes: tuple[int, ...]


PENDING = {"conj", "neg", "conj+neg"}
"""Kinds of compounds that are one view, `data`, and a pending sign."""


@frozen
class NoData:
    """A tensor without bytes: meta tensors, and wrappers that were saved without their data."""

    dtype: DType
    shape: Shape
    why: str = "meta"
    _members = "dtype=dtype.name shape"


@frozen
class Unreadable:
    """A tensor that only an unknown function or class could make; it is listed and cannot be written."""

    needs: str
    """The function or class that would have to be called."""


Value = View | Compound | NoData | Unreadable


def pending(value: Value) -> tuple[str, View] | None:
    """The pending sign and its view; None where nothing is pending."""
    if isinstance(value, Compound) and value.kind in PENDING:
        return value.kind, value.parts["data"]
    return None


BY_CONFIG = "config"
SAID = {"declared": "declared", BY_CONFIG: "declared by config.json"}
"""Evidence for a tie that no storage shows, for people: the file's own words, or its config's, for a name that the file
lacks."""
DECLARED = (*SAID,)


@frozen
class Link:
    """What an alias record says about a name: the alias set it belongs to, and why."""

    alias_set: str
    """The first name in the alias set."""
    evidence: str
    """`storage` or one of DECLARED."""
    position: int = -1
    """The position of an alias among all names of the source; -1 for a stored tensor."""
    owner: str = ""
    """The stored tensor that an alias is a view of, by its name in the file; empty for a stored tensor."""
    by_content: bool = False
    """Whether the alias is a view of it only because the bytes are equal."""
    role: str = ""
    """The role of the name, where its tree and its parts do not say it."""


GRAPH = "graph"
ROLES = ("model", "optimizer", "ema", "buffer", GRAPH, "other")
INERT = ("num_batches_tracked", "position_ids", "token_type_ids", "inv_freq", "masked_bias", "relative_position_index")
"""Tensors on which no output depends in inference, or that models of transformers make themselves of their settings."""


class Entry(NamedTuple):
    """A name: its value, and what the file says about it."""

    value: Value
    """Its view of a storage; or a compound of several views, a tensor without data, or one that cannot be read."""
    role: str = "model"
    """`model`, `optimizer`, `ema`, `buffer`, `graph` or `other`: content never joins names of different roles.

    `graph` is a constant of an ONNX graph that is no weight, such as a shape.  `other` is a NumPy array inside a torch
    file: a tensor of the file and not a weight of a model.
    """
    requires_grad: bool | None = None
    """As the file says; None where it does not say."""
    link: Link | None = None
    """Set where the file has an alias record; otherwise alias sets follow from the storages."""
    kind: str = ""
    """`parameter` (torch.nn.Parameter), `storage` or `untyped storage` (pickled by itself), else empty."""


Entries = Mapping[str, Entry]
"""{name: entry}, in the order of the file"""


@frozen
class Unknown:
    """An unknown class or function that the file names; nothing was imported or run."""

    path: str
    called: bool
    """Whether the file wants it called (True), or only holds data of that class."""
    arguments: str = ""
    needed_by: tuple[str, ...] = ()
    """Tensors that cannot be read without it."""


@frozen
class Section:
    """A part of a nested checkpoint: one top-level key that holds tensors."""

    name: str
    prefix: str
    """The prefix of the names of its tensors."""
    role: str


@frozen
class CountedSection:
    """A section in a report."""

    name: str
    role: str
    tensors: int


@frozen
class Module:
    """What a file says about one recurrent network in it: its layout, and facts that no tensor shows."""

    at: str
    """The prefix of the names of its tensors, without the separator; the name of the node where they have none."""
    layout: str
    """Its name in `paramtool layouts`: `torch`, `onnx`, `keras`."""
    spec: str = ""
    """`lstm layers=2 hidden=128 input=18 bidirectional`, without the facts that the file does not say."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """{a tensor's name in the layout: its name in the file}, where the names do not follow the layout."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the layout, such as `forget_bias`: `1.0`."""
    source: str = ""
    """Where the file says so, for people: `LSTM node 'rnn1'`, `model_config`."""
    unsure: tuple[str, ...] = ()
    """The possible values of a fact that the file leaves open and the user has to give: words of a spec, such as
    `gate_activation=...`."""
    refused: str = ""
    """Why no spec can express what the file says about it; such a network is not converted."""
    parts: str = ""
    """The layout of the parts that it was fused from, where that is known."""
    shapes: Shapes = field(default_factory=dict)
    """{the name of a part: its shape}, for parts that had more or fewer axes of length 1 than the layout has."""
    stacked: tuple[str, ...] = ()
    """The modules that a conversion stacked into it, or the module that it was a layer of."""
    evidence: str = ""
    """For a GPU layout: whether it was verified on a GPU, as known when the file was written."""


@frozen
class LayerPart:
    """What a file says of one tensor of a layer that is not recurrent, or of which layer a recurrent one is."""

    layer: str
    """The name that the user gave the layer, with those of the layers around it: `encoder/fc`.  No other has it."""
    kind: str = ""
    """As in `model.conventions`: `dense`, `conv`; empty where the file does not show it, and for recurrent layers."""
    part: str = ""
    """Which tensor of it: `weight`, `bias`, `mean`; its own name where the kind is unknown."""
    axes: str = ""
    """The meanings of its axes: `in out`."""
    is_state: bool = False
    """Whether it is no weight, such as the state of a generator of random numbers."""
    images: Mapping[str, Image] | None = None
    """{`in` or `out`: the image that is flattened along that axis of its layer}; None where the file does not say."""
    constant: float | None = None
    """What its library computes with in its place, whatever it holds."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """{setting: its value}: what its layer computes besides, in the words of Keras: `epsilon`, `activation`."""


@frozen(repr=False)
class Checkpoint(Displayed):
    """A described checkpoint.  No tensor byte has been read to make it."""

    format: str
    """The format of the file: `torch zip`, `safetensors`."""
    files: tuple[SourceFile, ...]
    """The files that it was read from, as they were then."""
    storages: Mapping[int, Storage]
    """{number: the storage}."""
    entries: Mapping[str, Entry]
    """{name: what it is}, in file order."""
    objects: Node = EMPTY
    """The tree of everything that is not a tensor."""
    sections: tuple[Section, ...] = ()
    """The parts of a training checkpoint."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The file's own strings (the metadata of safetensors), without paramtool's record."""
    index_metadata: Mapping[str, object] = field(default_factory=dict)
    """Everything else in the `metadata` of a shard index."""
    producer: str = ""
    """The program that wrote the file, where the file shows it."""
    unknown: tuple[Unknown, ...] = ()
    """Classes and functions that the file names and paramtool does not know; none of them was run."""
    left_out: tuple[str, ...] = ()
    """What the files hold and the checkpoint does not, such as strings."""
    notes: tuple[str, ...] = ()
    """Other observations that are not errors."""
    modules: tuple[Module, ...] = ()
    """Recurrent networks that the file itself describes."""
    parts: Mapping[str, LayerPart] = field(default_factory=dict)
    """{the name of a tensor: what the file says of the layer that it is a part of}."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """{the name of a tensor: how many nodes take it}, where the file holds a graph."""
    sealed: tuple[ByteRange, ...] = ()
    """Ranges that hold several storages and have one CRC in the container, such as a file inside a zip."""

    _members = (
        "files(path) nbytes format producer+ names=entries.__len__ stored_nbytes sections+(name) modules+(at) "
        "unknown+(path) tensors=described"
    )

    @property
    def path(self) -> str:
        """The path of its first file."""
        return self.files[0].path

    @property
    def nbytes(self) -> int:
        """The size of its files."""
        return sum(file.nbytes for file in self.files)

    @property
    def stored_nbytes(self) -> int:
        """What its storages hold."""
        return sum(one.nbytes for one in self.storages.values() if not isinstance(one.backing, Assembled))

    @property
    def is_of_a_rank(self) -> bool:
        """Whether it has parts of tensors, of which the files of other ranks have the rest."""
        return any(isinstance(one.value, Compound) and SHARDED in one.value.facts for one in self.entries.values())

    def dtypes(self) -> Mapping[str, int]:
        """{dtype: windows}, most first."""
        counted = grouped((view.dtype.name, name) for name, view in self.windows())
        return {dtype: len(names) for dtype, names in sorted(counted.items(), key=lambda item: -len(item[1]))}

    def counted_sections(self) -> Iterator[CountedSection]:
        """The sections, each with how many tensors it has."""
        names = Ordered(self.entries if self.sections else ())
        return (CountedSection(one.name, one.role, names.count(one.prefix)) for one in self.sections)

    def windows(self) -> Iterator[tuple[str, View]]:
        """Every view in file order: `(name, view)`, and `(name/part, view)` for compounds."""
        for name, entry in self.entries.items():
            if isinstance(entry.value, View):
                yield name, entry.value
            elif isinstance(entry.value, Compound):
                for part, view in entry.value.parts.items():
                    yield f"{name}/{part}", view

    def __getitem__(self, name: str) -> Value:
        """A tensor by its name: its shape, type and place, and no byte of it; `paramtool.load_file` reads arrays."""
        if name not in self.entries:
            near = ", ".join(map(repr, nearest(name, self.entries)))
            raise KeyError(f"{name!r} is not in the file" + (f"; did you mean {near}?" if near else ""))
        return self.entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> KeysView[str]:
        """The names of all tensors."""
        return self.entries.keys()

    def said(self) -> tuple[str, ...]:
        """All that people are told of it: what was left out, and the notes."""
        return (*self.left_out, *self.notes)

    def shapes(self) -> dict[str, Shape]:
        """{name: shape} of the plain tensors."""
        return {name: view.shape for name, view in self.views().items()}

    def storage_of(self, view: View) -> Storage:
        """The storage of one of its views."""
        return self.storages[view.number]

    def views(self) -> dict[str, View]:
        """{name: view} of the plain tensors."""
        return {name: entry.value for name, entry in self.entries.items() if isinstance(entry.value, View)}

    def described(self) -> Iterator[str]:
        """Each tensor in a few words, for people."""
        for name, entry in self.entries.items():
            match entry.value:
                case View(dtype=dtype, shape=shape) | NoData(dtype, shape):
                    what = f"{dtype.name} {list(shape)}" + " without data" * isinstance(entry.value, NoData)
                case Compound(kind=what):
                    pass
                case Unreadable(needs):
                    what = f"needs {needs}"
            yield f"{short(name)}  {what}"


def prefix_of(checkpoint: Checkpoint, section: str | None) -> str:
    """What the names of a section begin with; empty for no section, and for one that is not there."""
    return next((one.prefix for one in checkpoint.sections if one.name == section), "") if section else ""


def judged_files(checkpoint: Checkpoint) -> list[str]:
    """The files whose pickles `unknown` is about: to ONNX and TensorFlow, other files are only bytes."""
    only_first = checkpoint.format.startswith(("onnx", "tensorflow"))
    return [file.path for file in checkpoint.files[: 1 if only_first else None]]


class Ordered:
    """Names in alphabetical order, so that the names under a prefix are found without a scan of all.

    >>> names = Ordered(["b.w", "a.b.w", "a.w", "ab"])
    >>> list(names.under("a.")), names.count("b."), names.count("c.")
    (['a.b.w', 'a.w'], 1, 0)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def under(self, prefix: str) -> Iterator[str]:
        """The names that begin with a prefix."""
        return islice(self._names, *self._bounds(prefix))

    def count(self, prefix: str) -> int:
        """How many names begin with a prefix."""
        start, stop = self._bounds(prefix)
        return stop - start

    def _bounds(self, prefix: str) -> tuple[int, int]:
        start = bisect_left(self._names, prefix)
        return start, bisect_right(self._names, prefix, start, key=lambda name: name[: len(prefix)])


def unescaped_name(path: Path) -> str:
    """The name of a tensor: its path, joined by dots.

    >>> unescaped_name(("model", "enc.weight"))
    'model.enc.weight'
    """
    return ".".join(path)


def escaped_name(path: Path) -> str:
    """The name where the plain one would collide: dots and backslashes inside a key are escaped.

    >>> print(escaped_name(("a.b",)), escaped_name(("a", "b")))
    a\\.b a.b
    """
    return ".".join(key.replace("\\", "\\\\").replace(".", "\\.") for key in path)
