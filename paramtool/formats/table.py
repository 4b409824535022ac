"""The formats, one row each: how files are recognised, their suffixes, their reader, and what a file can share.

Everything that lists formats uses these rows: the choice of a reader, the files of a folder that can be weights, the
names that an output cannot have, the formats that errors list, the contract tests, and the table in docs/formats.md
(`python docs/make_formats.py`).  docs/add-a-format.md shows how to add a format, here or in another package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from paramtool.errors import UsageError
from paramtool.formats import sniff as sniffers
from paramtool.plugins import entry_points, package, refusal

if TYPE_CHECKING:
    from paramtool.model.checkpoint import Checkpoint

Sniffer = Callable[[bytes, int, str], bool]
"""Whether a file can have a format: from its first `HEAD_NBYTES` bytes, its size in bytes, and its path."""
HEAD_NBYTES = 4096
GROUP = "paramtool.formats"
"""The entry points by which other packages add formats."""


class FormatForm(NamedTuple):
    """A variant of a format: a row of the table in docs/formats.md.  The fields are Markdown."""

    title: str
    recognised: str
    """What the format is recognised by."""
    shares: str
    """Whether two names can share bytes for the format's own reader, and how."""
    read: str = "yes"
    written: str = "no"


class Holds(NamedTuple):
    """What the files of a format hold beside tensors, each whole and under one name, so that loading gives it back.

    Which names and element types it has is asked of its writer, which refuses the others by name.
    """

    links: bool = False
    """One whole tensor under several names."""
    views: bool = False
    """Names that are any views of one storage, and which tensors are parameters and ask for gradients."""
    objects: bool = False
    """Everything that is no tensor, and metadata."""
    equal: bool = False
    """Names on one run of bytes that share no memory when loaded; elsewhere equal bytes have to stand twice."""
    record: bool = False
    """Tensors that are calculated on load, keys that names do not say, and classes of objects as plain data."""


class Format(NamedTuple):
    """A format that can be read."""

    name: str
    """What errors call it."""
    sniff: Sniffer
    suffixes: tuple[str, ...]
    """Suffixes of its files.  Content decides the format of a file, but a folder is searched by name."""
    forms: tuple[FormatForm, ...]
    module: str
    """The module with `read(path: str) -> Checkpoint`, imported when such a file is read."""
    written: tuple[str, ...] = ()
    """Suffixes of outputs that are written in this format."""
    holds: Holds = Holds()
    writer: str = ""
    """The writer of such files as `module:name`, imported when one is written."""
    package: str = ""
    """The package that added it, for errors; empty for paramtool's own formats."""

    def read(self, path: str) -> Checkpoint:
        """Describe one file of this format; FormatError if that is impossible."""
        if not self.package:
            found: Checkpoint = import_module(self.module).read(path)
            return found
        from paramtool.formats import _installed_reader

        return _installed_reader.read(self, path)

    def recognises(self, head: bytes, nbytes: int, path: str) -> bool:
        """Whether a file can have this format; False if the sniffer of another package fails."""
        try:
            return bool(self.sniff(head, nbytes, path))
        except Exception:
            if not self.package:
                raise
            return False


FORMATS = (
    Format(
        "torch",
        sniffers.is_torch,
        (".bin", ".pt", ".pth", ".ckpt"),
        (
            FormatForm("torch zip (torch 1.6 and later)", "`PK`, one folder with `data.pkl`", "yes: storage keys",
                 written="yes: `.pt`, `.pth`, `.bin`, `.ckpt`"),
            FormatForm("torch stacked pickles (0.1.10 to 1.5, and `_use_new_zipfile_serialization=False`)",
                 "the pickled magic number", "yes: storage keys and views"),
            FormatForm("torch tar (0.1.1 to 0.1.9)", "`ustar`, members `pickle`, `storages`, `tensors`", "yes"),
            FormatForm("TorchScript zip", "`constants.pkl`", "yes", "its tensors"),
        ),
        "paramtool.formats.torch.read",
        (".pt", ".pth", ".bin", ".ckpt"),
        Holds(links=True, views=True, objects=True),
        "paramtool.commands.output.torch_writers:TORCH",
    ),
    Format(
        "dcp",
        sniffers.is_dcp,
        (),
        (FormatForm("torch.distributed.checkpoint (DCP) folder", "`.metadata`, a pickle of its `Metadata`",
              "yes: two names with one place in `.metadata`",
              written="yes: a folder of one rank, by `--format dcp`, and where the input is one"),),
        "paramtool.formats.dcp.read",
        holds=Holds(links=True, objects=True, equal=True),
        writer="paramtool.commands.output.torch_writers:DCP",
    ),
    Format(
        "safetensors",
        sniffers.is_safetensors,
        (".safetensors",),
        (FormatForm("safetensors", "a header length, then `{`", "no: by the [alias record](alias-record.md)",
              written="yes"),),
        "paramtool.formats.safetensors.read",
        (".safetensors",),
        Holds(links=True, views=True, objects=True, equal=True, record=True),
        "paramtool.commands.output.writers:SAFETENSORS",
    ),
    Format(
        "mxnet",
        sniffers.is_mxnet,
        (".params",),
        (FormatForm("MXNet `.params` (all versions of its arrays)", "the list's magic number `0x112`", "no",
              written="yes: `.params` (V2)"),),
        "paramtool.formats.mxnet.params",
        (".params",),
        writer="paramtool.commands.output.array_writers:MXNET",
    ),
    Format(
        "npz",
        sniffers.is_npz,
        (".npz", ".npy", ".params"),
        (
            FormatForm("`.npz`, `.npy`, and the `.params` of MXNet 2", "`\\x93NUMPY`; `PK` and a first member `*.npy`",
                       "no", written="yes: `.npz`"),
        ),
        "paramtool.formats.numpy.npz",
        (".npz",),
        writer="paramtool.commands.output.array_writers:NPZ",
    ),
    Format(
        "keras",
        sniffers.is_keras,
        (".h5", ".hdf5", ".keras"),
        (FormatForm("Keras `.h5`, `.weights.h5`, `.keras`; any HDF5", "`\\x89HDF`; `PK` and a first member of Keras'",
              "yes: hard links", "yes, with h5py", "plain HDF5: `.h5`, `.hdf5`, with h5py"),),
        "paramtool.formats.hdf5.keras",
        (".h5", ".hdf5"),
        Holds(links=True),
        "paramtool.commands.output.array_writers:HDF5",
    ),
    Format(
        "jld2",
        sniffers.is_jld2,
        (".jld2",),
        (FormatForm("JLD2", "`HDF5-based Julia Data Format`", "yes: references", "its arrays, with h5py"),),
        "paramtool.formats.hdf5.jld2",
    ),
    Format(
        "onnx",
        sniffers.is_onnx,
        (".onnx",),
        (
            FormatForm("ONNX, and files beside it", "a `ModelProto`'s first fields",
                       "yes: one range of a file beside it", written="yes: `.onnx`, of recurrent networks"),
        ),
        "paramtool.formats.onnx.model",
        (".onnx",),
        writer="paramtool.commands.output.onnx_writer:ONNX",
    ),
    Format(
        "bson",
        sniffers.is_bson,
        (".bson",),
        (FormatForm("Julia's BSON (BSON.jl), as Flux saves models", "the length of the file, then an element of BSON",
              "yes: back-references"),),
        "paramtool.formats.bson.read",
    ),
    Format(
        "tensorflow",
        sniffers.is_tensorflow,
        (".index",),
        (
            FormatForm("TensorFlow bundle (`PREFIX.index` and `PREFIX.data-…`), SavedModel folder",
                       "a table whose first key is empty", "yes: several paths to one object"),
        ),
        "paramtool.formats.tensorflow.read",
    ),
    Format(
        "pickle",
        sniffers.is_pickle,
        (".pkl", ".pickle", ".pdparams", ".pdopt"),
        (
            FormatForm("pickles of NumPy arrays (protocols 0 to 5, Python 2's, Paddle's `.pdparams`)",
                       "a pickle's first opcodes, without torch's magic number", "yes: an array referred to twice"),
        ),
        "paramtool.formats.numpy.pickled",
    ),
    Format(
        "msgpack",
        sniffers.is_msgpack,
        (".msgpack",),
        (FormatForm("flax msgpack", "a map with text keys, and the first array in it", "no",
              written="yes: `.msgpack`"),),
        "paramtool.formats.msgpack.read",
        (".msgpack",),
        writer="paramtool.commands.output.array_writers:MSGPACK",
    ),
)  # fmt: skip
"""Paramtool's own formats.  At most one of them recognises a file, so their order does not matter."""
SHARDED = FormatForm("sharded folder or index", "JSON with `weight_map`", "by the record", written="yes (safetensors)")
"""Files of these formats with an index, read by `sharded.py`; not a separate format."""
DEEPSPEED = FormatForm("DeepSpeed folder: ZeRO stages 1 to 3, universal, and the folder above with `latest`",
                       "names: `*zero_pp_rank_*_optim_states.pt`, or `zero/` beside `*_model_states.pt`",
                       "by `shared_params`, and as torch zip inside one file")  # fmt: skip
"""Folders of torch files, told by their names (`folder/roots.py`) and read by `deepspeed/`."""
RANK_FILES = FormatForm(
    "torch files of the ranks of a training, as verl saves them",
    "tensors that are parts: DTensor, ShardedTensor",
    "as torch zip",
)
"""Torch files with parts of tensors, joined by `folder/rank_files.py`."""
NEVER_WRITTEN = (".th",)
"""Names of torch files that are read, and that no output has: AllenNLP's `best.th`."""
SUFFIXES = (*dict.fromkeys(suffix for row in FORMATS for suffix in row.suffixes), *NEVER_WRITTEN)
"""Suffixes of the weights that paramtool itself reads."""
OTHER_SUFFIXES = (
    ".ort", ".gguf", ".ggml", ".joblib", ".dill", ".pb", ".tflite", ".mlmodel",
    ".mlpackage", ".caffemodel", ".pdiparams", ".nemo", ".mar", ".pt2", ".pte", ".ptl", ".t7",
    ".ot", ".trt", ".mat", ".distcp", ".json", ".tar", ".zip", ".gz", ".zst", ".xz", ".bz2",
)  # fmt: skip
"""Suffixes of other programs' files, which are neither read as weights nor written."""
WRITTEN = tuple(suffix for row in FORMATS for suffix in row.written)
NOT_WRITTEN = frozenset((*SUFFIXES, *OTHER_SUFFIXES)).difference(WRITTEN)
"""Suffixes that no output file or folder may have: other programs would take it for such a file."""


def find(name: str) -> Format:
    """Paramtool's own format of that name; StopIteration if there is none."""
    return next(row for row in FORMATS if row.name == name)


def holds(format: str) -> Holds:
    """What files hold of which a checkpoint says this `format`; nothing of those that are not written.

    >>> holds("torch zip").record, holds("sharded safetensors").record
    (False, True)
    """
    word = format.partition(" ")[0]
    return next((row.holds for row in FORMATS if row.name == CALLED.get(word, word)), Holds())


CALLED = {"sharded": "safetensors", "hdf5": "keras"}
"""{first word of a checkpoint's `format`: the name of the row}, where they differ."""


def suffixes() -> tuple[str, ...]:
    """Suffixes of all weights that can be read, including the formats of other packages."""
    return (*SUFFIXES, *(suffix for row in installed().formats for suffix in row.suffixes))


def rows() -> Iterator[Format]:
    """Every format, paramtool's own first; other packages are only imported when the caller needs more."""
    yield from FORMATS
    yield from installed().formats


class InstalledFormats(NamedTuple):
    """The formats that installed packages add."""

    formats: tuple[Format, ...]
    broken: tuple[str, ...]
    """The errors of broken packages, one line each."""


@lru_cache(maxsize=1)
def installed() -> InstalledFormats:
    """Import every package that adds formats; errors of a package are kept, not raised."""
    found: list[Format] = []
    broken = []
    for point in entry_points(GROUP):
        try:
            row = point.load()
            _check(row, [*FORMATS, *found])
            found.append(row._replace(package=package(point)))
        except Exception as error:  # code of others, which may raise anything
            broken.append(refusal(point, error))
    return InstalledFormats(tuple(found), tuple(broken))


def _check(row: object, others: list[Format]) -> None:
    """UsageError if an entry point is not a valid row, or its name is taken."""
    if not isinstance(row, Format):
        raise UsageError(f"is {row!r:.200}; expected a paramtool.formats.table.Format")
    if other := next((other for other in others if row.name == other.name), None):
        raise UsageError(f"{other.package or 'paramtool'} already has a format {row.name!r}")
    if not isinstance(row.suffixes, tuple):
        raise UsageError(f"suffixes is {row.suffixes!r:.100}; expected a tuple such as ('.toy',)")
    if wrong := [suffix for suffix in row.suffixes if os.path.splitext(f"x{suffix}")[1] != suffix]:
        raise UsageError(f"{wrong[0]!r} is not a suffix; expected one such as '.toy'")
