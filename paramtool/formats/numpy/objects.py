"""Objects that hold NumPy arrays, wherever their pickle stands: in a file of its own, in a `.npy`, or in a `.npz`.

The pickle runs in the closed machine, which leaves bytes where they are: an array is found without reading it.  An
array that is referred to twice is one storage.  A name is the path of an array, as in torch files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, NamedTuple, cast

from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import object_tree, sniff
from paramtool.formats.mxnet import states as mxnet
from paramtool.formats.pickle.numpy_values import NumpyArray, constructors
from paramtool.formats.pickle.read import load
from paramtool.formats.pickle.texts import LONGEST
from paramtool.formats.pickle.values import PickleLimits, Result
from paramtool.formats.torch.globals import KNOWN
from paramtool.formats.torch.names import walk
from paramtool.model.checkpoint import Entry, Unknown
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Node
from paramtool.model.storage import Backing, ByteRange, Encoded, Inline, Storage

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer
    from paramtool.formats.torch.globals import InlineView

MAX_PICKLES = 1000
"""The most consecutive pickles of a file."""


class _NamesOfArrays:
    """Names that arrays bring along: of NumPy's, and the types of ml_dtypes."""

    def __contains__(self, path: object) -> bool:
        module, _, name = str(path).rpartition(".")
        return path in KNOWN or (module == "ml_dtypes" and name in DTYPES)


class FileArray(NumpyArray):
    """An array of the file; it is a tensor of its own."""

    __slots__ = ()
    stands_alone = True


def run(data: Buffer, at: int, stop: int, path: str, *, spans: bool = True) -> list[Result]:
    """Run the pickles of a range, one after the other; with `spans` arrays are left where they are in the file."""
    limits = PickleLimits(max_nbytes=stop - at)
    made = CONSTRUCTORS | mxnet.CONSTRUCTORS | _elsewhere(path)
    persistent = _persistent(path)
    results: list[Result] = []
    while at < stop and (not results or sniff.begins_pickle(data[at : min(stop, at + 64)])):
        if len(results) == MAX_PICKLES:
            raise UnsafeError(f"{path}: byte {at}: found more than {MAX_PICKLES:,} pickles in one file")
        found = load(data, at, path, made, persistent=persistent, limits=limits, known=_NamesOfArrays(), spans=spans)
        results.append(found)
        at = found.stop
    return results


class Held(NamedTuple):
    """What values of pickles hold."""

    tree: Node
    entries: dict[str, Entry]
    storages: dict[int, Storage]
    is_escaped: bool
    is_state: bool
    """Whether it is the state of MXNet's optimizers."""


def held(path: str, value: object, nbytes: int, first: int = 0) -> Held:
    """The arrays of a value, whose pickles have `nbytes` bytes; their storages are numbered from `first` on."""
    try:
        tree, named, escaped = walk(value, path, nbytes)
    except (ValueError, KeyError) as error:
        raise FormatError(f"{path}: a value of the pickle is damaged: {error}") from None
    storages: dict[int, Storage] = {}
    numbers: dict[int, int] = {}
    entries: dict[str, Entry] = {}
    roles = object_tree.roles(tree)
    is_state = False
    for name, tensor in named:
        dtype, array = cast("InlineView", tensor.value)  # its arrays are the only tensors of the file
        number = numbers.setdefault(id(array), first + len(numbers))
        try:
            if number not in storages:
                storages[number] = _storage(path, number, array, dtype)
            is_state = is_state or isinstance(array, mxnet.NdArray)
            role = "optimizer" if isinstance(array, mxnet.NdArray) else roles.get(name, "model")
            entries[name] = Entry(array.placed(number, dtype), role)
        except ValueError as error:
            place = f"byte {array.span.start}: " if array.span else ""
            raise FormatError(f"{path}: {place}{name!r:.200}: {error}; the pickle is damaged") from None
    return Held(tree, entries, storages, escaped, is_state)


def unknown(results: Iterable[Result]) -> list[Unknown]:
    """The names that pickles ask for and that are not known."""
    return [Unknown(use.path, use.called, use.arguments) for result in results for use in result.uses]


def _storage(path: str, number: int, array: NumpyArray, dtype: DType) -> Storage:
    """Where the bytes of an array are; ValueError if they are too few or too many."""
    nbytes = prod(array.shape) * dtype.block_bytes
    span = array.span
    is_swapped = (array.dtype.number or (dtype, False))[1]
    unit = (dtype.component or dtype).block_bytes if is_swapped else 1
    if span is None:
        held = array.data or b""
        _check(array, len(held), nbytes, nbytes)
        # The bytes of each unit in reverse order
        made = bytearray(len(held))
        for k in range(unit):
            made[k::unit] = held[unit - 1 - k :: unit]
        return Storage(number, nbytes, Inline(bytes(made)))
    _check(array, span.nbytes, nbytes, nbytes * LONGEST[span.form])
    place = ByteRange(path, span.start, span.stop)
    steps = (*([span.form] if span.form else []), *([f"swap{unit}"] if unit > 1 else []))
    backing: Backing = Encoded(place, steps) if steps else place
    return Storage(number, nbytes, backing)


def _check(array: NumpyArray, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"{array.dtype.text} {list(array.shape)} needs {expected} bytes; found {found}")


SAVE = "open it with the program that wrote it, and save its arrays with numpy.savez, or as safetensors"


def _elsewhere(path: str) -> dict[str, Callable[..., object]]:
    """Names of functions by which programs refer to arrays that NumPy's readers would not find in the pickle."""

    def refuse(what: str, hint: str) -> Callable[..., object]:
        def make(*args: object) -> object:
            raise FormatError(f"{path}: is {what}", hint=hint)

        return make

    joblib = refuse("a joblib file, whose arrays stand between the opcodes of its pickle", JOBLIB)
    tensor = refuse("a pickle of torch tensors that torch.save did not write", TORCH)
    wrappers = {f"joblib.numpy_pickle.{name}": joblib for name in ("NumpyArrayWrapper", "NDArrayWrapper")}
    return {**wrappers, "torch.storage._load_from_bytes": tensor}


def _persistent(path: str) -> Callable[[object], object]:
    def refuse(pid: object) -> object:
        is_torch = isinstance(pid, tuple) and pid[:1] in (("storage",), ("module",))
        what = "the storages of a torch archive" if is_torch else "objects outside of the file"
        raise FormatError(f"{path}: is a pickle that refers to {what}", hint=ARCHIVE if is_torch else SAVE)

    return refuse


JOBLIB = "open it with joblib.load where it is trusted, and save its arrays with numpy.savez"
TORCH = "load it with pickle where it is trusted, and save it with torch.save"
ARCHIVE = "it was taken out of a torch.save archive: read the whole archive"
CONSTRUCTORS = constructors(FileArray)
