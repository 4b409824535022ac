"""Pickles of NumPy arrays: what `pickle.dump` makes of a dict of arrays, or of anything else that holds some.

    protocols 3 to 5, and Python 2's 1 and 2    the bytes of an array stand in the file as they are: a range of it
    protocols 1 and 2 of Python 3, and 0        they stand there as text, and are decoded when they are read

A `.npy` of Python objects is such a pickle behind a header: `np.save(path, {"w": array})`.

All of Python's protocols, also several pickles one after the other.  Paddle's `.pdparams` and `.pdopt` are such
pickles (`_build_saved_state_dict` in python/paddle/framework/io.py, 3.3).  The states of MXNet's trainers are read, too
(`mxnet/states.py`).

The pickle runs in the closed machine, which leaves bytes where they are: an array is found without reading it.  An
array that is referred to twice is one storage.  A name is the path of an array, as in torch files.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, cast

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats import object_tree, sniff
from paramtool.formats.files import Contents, open_source
from paramtool.formats.mxnet import states as mxnet
from paramtool.formats.pickle.numpy_values import NumpyArray, constructors
from paramtool.formats.pickle.read import load
from paramtool.formats.pickle.texts import LONGEST
from paramtool.formats.pickle.values import PickleLimits, Result, Use
from paramtool.formats.policy import merged
from paramtool.formats.torch.globals import KNOWN
from paramtool.formats.torch.names import walk
from paramtool.model.checkpoint import Checkpoint, Entry, Unknown
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Mapping, Node
from paramtool.model.storage import Backing, ByteRange, Encoded, Inline, SourceFile, Storage

if TYPE_CHECKING:
    from paramtool.formats.torch.globals import InlineView

MAX_PICKLES = 1000
"""The most consecutive pickles of a file."""
PADDLE = "StructuredToParameterName@@"
"""The key under which Paddle keeps the names of parameters."""


class _NamesOfArrays:
    """Names that arrays bring along: of NumPy's, and the types of ml_dtypes."""

    def __contains__(self, path: object) -> bool:
        module, _, name = str(path).rpartition(".")
        return path in KNOWN or (module == "ml_dtypes" and name in DTYPES)


class FileArray(NumpyArray):
    """An array of the file; it is a tensor of its own."""

    __slots__ = ()
    stands_alone = True


def read(path: str) -> Checkpoint:
    """Describe a pickle that holds arrays; FormatError if it is damaged or holds none, UnsafeError if it is a bomb."""
    file, source = open_source(path)
    with file:
        data = Contents(file, source.nbytes)
        results = _run(data, source)
        value = results[0].value if len(results) == 1 else tuple(result.value for result in results)
        rest = source.nbytes - results[-1].stop
        unknown = [Unknown(use.path, use.called, use.arguments) for result in results for use in result.uses]
        if rest:
            from paramtool.formats import scan

            unknown += scan.scan_parts(file, source, [(results[-1].stop, source.nbytes)]).unknown
        nbytes = results[-1].stop - sum(result.skipped for result in results)
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
        number = numbers.setdefault(id(array), len(numbers))
        try:
            if number not in storages:
                storages[number] = _storage(path, number, array, dtype)
            is_state = is_state or isinstance(array, mxnet.NdArray)
            role = "optimizer" if isinstance(array, mxnet.NdArray) else roles.get(name, "model")
            entries[name] = Entry(array.placed(number, dtype), role)
        except ValueError as error:
            place = f"byte {array.span.start}: " if array.span else ""
            raise FormatError(f"{path}: {place}{name!r:.200}: {error}; the pickle is damaged") from None
    uses = [use for result in results for use in result.uses]
    is_state = is_state or mxnet.is_state(tree)
    if not entries and not is_state:
        raise FormatError(f"{path}: is {_without_arrays(uses)}", hint=SAVE)
    return Checkpoint(
        format=mxnet.NAME if is_state else "paddle pickle" if _is_paddle(tree) else "pickle",
        files=(source,),
        storages=storages,
        entries=entries,
        objects=tree,
        sections=object_tree.sections(tree),
        unknown=merged(unknown),
        left_out=(f"{plural(rest, 'byte')} after the pickle were not read",) if rest else (),
        notes=("some names collide and have their dots escaped",) if escaped else (),
    )


def _run(data: Contents, source: SourceFile) -> list[Result]:
    """Run the pickles of a file."""
    limits = PickleLimits(max_nbytes=source.nbytes)
    made = CONSTRUCTORS | mxnet.CONSTRUCTORS | _elsewhere(source.path)
    persistent = _persistent(source.path)
    results: list[Result] = []
    at = sniff.numpy_stop(data[:12]) if data[:6] == sniff.NUMPY_MAGIC else 0
    while at < source.nbytes and (not results or sniff.begins_pickle(data[at : at + 64])):
        if len(results) == MAX_PICKLES:
            raise UnsafeError(f"{source.path}: byte {at}: found more than {MAX_PICKLES:,} pickles in one file")
        found = load(
            data, at, source.path, made, persistent=persistent, limits=limits, known=_NamesOfArrays(), spans=True
        )
        results.append(found)
        at = found.stop
    return results


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


def _is_paddle(tree: Node) -> bool:
    return isinstance(tree, Mapping) and any(key == PADDLE for key, _ in tree.items)


# --- pickles of something else --------------------------------------------------------------------------------------

SAVE = "open it with the program that wrote it, and save its arrays with numpy.savez, or as safetensors"


def _without_arrays(uses: list[Use]) -> str:
    names = dict.fromkeys(use.path.partition(".")[0] for use in uses)
    of = f" of {', '.join(list(names)[:3])}" if names else ""
    return f"a pickle{of} that holds no NumPy arrays"


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
