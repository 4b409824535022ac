"""One zip archive of torch.save or of TorchScript: a file, or a part of a file.

    N/data.pkl    the pickle
    N/data/KEY    the bytes of each storage, stored as they are
    N/version, N/byteorder, ...

Sources: torch/serialization.py, caffe2/serialize/inline_container.cc, torch/csrc/jit/serialization/pickler.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from paramtool.errors import FormatError, UnsafeError, plural
from paramtool.formats import sniff
from paramtool.formats.files import read_bytes
from paramtool.formats.pickle.values import Instance, Use
from paramtool.formats.torch.globals import PickledTensor, StorageRef
from paramtool.formats.torch.storages import Storages, checkpoint_of
from paramtool.formats.zip import directory as zip_directory
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.dtype import DType
from paramtool.model.storage import Backing, ByteRange, Encoded, SourceFile

MAX_PICKLE_NBYTES = 512 << 20
VERSIONS = range(1, 11)
"""kMinSupportedFileFormatVersion to kMaxSupportedFileFormatVersion of caffe2/serialize/versions.h (2.13)."""


def read_archive(file: BinaryIO, source: SourceFile, start: int = 0, stop: int | None = None) -> Checkpoint:
    """Describe the archive in bytes `start` to `stop` of a file; FormatError or UnsafeError if that is not possible."""
    where = source.path
    members = {member.name: member for member in zip_directory.read_directory(file, where, start=start, stop=stop)}
    root = _root(where, members)
    _check_version(file, where, root, members)
    script = f"{root}/constants.pkl" in members
    labels = ("data", "constants") if script else ("data",)
    storages = Storages(source)
    values: dict[str, object] = {}
    for label in labels:
        member = members.get(f"{root}/{label}.pkl")
        if member is None:
            raise FormatError(f"{where}: has no {root}/{label}.pkl; not a torch.save archive")
        storages.folder = f"{label}/"
        data = zip_directory.read_member(file, member, where, MAX_PICKLE_NBYTES)
        stored = member.stored_nbytes if member.method == zip_directory.DEFLATED else None
        result = storages.run(data, 0, f"{where}: {member.name}", stored)
        values[label] = result.value
    read = {f"{root}/{name}" for name in (*(f"{label}.pkl" for label in labels), *storages.whole)}
    others = [one for name, one in members.items() if name not in read and not _is_word(file, one)]
    notes = _look_beside(file, source, others, storages, script) if others else []
    if script:  # classes of the archive's own code, which only torch.jit makes
        storages.uses = [use for use in storages.uses if not use.path.startswith("__torch__.")]
    # Whether the member `byteorder` says big-endian; without it torch assumes little-endian
    member = members.get(f"{root}/byteorder")
    order = zip_directory.read_member(file, member, where, 16) if member else b"little"
    if order not in ORDERS:
        raise FormatError(f"{where}: {member.name if member else ''!r}: found {order!r}; expected 'little' or 'big'")
    swap = order == b"big"
    backings = [
        _backing(where, key, ref, members.get(f"{root}/{key}"), swap=swap) for key, ref in storages.whole.items()
    ]
    if all(member.crc32 is None for member in members.values()):
        notes.append("no CRC was computed for any member")
    value = _with_constants(values["data"], values.get("constants"))
    found = checkpoint_of("script" if script else "zip", storages, backings, value, notes=notes)
    beside = members.get(f"{root}/{sniff.TORCH_RECORD}")
    if beside is None:
        return found
    from paramtool.formats.torch import _record

    return _record.with_record(found, zip_directory.read_member(file, beside, where, _record.MAX_NBYTES))


PICKLES = (".pkl", ".pickle")
ORDERS = (b"little", b"big")


def _is_word(file: BinaryIO, member: zip_directory.Member) -> bool:
    """Whether a member is a number, or the order of bytes, as torch.save writes some: no pickle is."""
    if member.nbytes > 64 or member.method != zip_directory.STORED:
        return False
    said = read_bytes(file, member.byte_start, member.nbytes).strip()
    return not said or said.isdigit() or said in ORDERS


def _look_beside(
    file: BinaryIO, source: SourceFile, members: list[zip_directory.Member], storages: Storages, script: bool
) -> list[str]:
    """Add the unknown names in members that are no storages, whatever they are called; a note on what is not scanned.

    UnsafeError if there is too much to scan, with a pickle that torch.save did not write and torch.load does not read.
    """
    from paramtool.formats import scan

    scanned = scan.scan_members(file, source, members)
    storages.uses += (Use(one.path, one.called, one.arguments) for one in scanned.unknown)
    if scanned.ended:
        return []
    pickles = sum(member.name.endswith(PICKLES) for member in members)
    if pickles and not script:
        what = f"{plural(pickles, 'other pickle')} in the archive"
        raise UnsafeError(f"{source.path}: {what}, too large to scan; expected none")
    return [f"{plural(len(members), 'other member')} of the archive, not scanned to the end for pickles"]


def _root(where: str, members: Mapping[str, zip_directory.Member]) -> str:
    """The folder that holds all members; FormatError if the archive is something else."""
    root = next(iter(members), "").split("/")[0]
    inside = f"{root}/"
    has_pickle = f"{inside}data.pkl" in members or f"{inside}constants.pkl" in members
    if has_pickle and all(name.startswith(inside) for name in members):
        return root
    from paramtool.formats import foreign

    if found := foreign.archive(members):
        raise FormatError(f"{where}: is {found.what}", hint=found.hint)
    if any(name.endswith((".npy", "/.npy")) for name in members):
        what = "a zip archive of NumPy arrays and other files, which this version does not read"
    elif "model.weights.h5" in members:
        what = "a Keras archive, which this version does not read"
    elif any(name.endswith("/model.json") for name in members):
        what = "an early TorchScript archive (model.json), which this version does not read"
    else:
        what = "a zip archive without one folder that holds data.pkl; torch.save did not write it"
    raise FormatError(f"{where}: is {what}")


def _check_version(file: BinaryIO, where: str, root: str, members: Mapping[str, zip_directory.Member]) -> None:
    """FormatError unless the archive says that it is of a version that torch reads (PyTorchStreamReader::init)."""
    member = members.get(f"{root}/.data/version") or members.get(f"{root}/version")
    if member is None:
        raise FormatError(f"{where}: has no {root}/version; it is not a torch.save archive, or was changed")
    said = zip_directory.read_member(file, member, where, 64).strip()
    if not (said.isdigit() and int(said) in VERSIONS):
        raise FormatError(
            f"{where}: {member.name!r}: found {said!r:.80}; expected a version from {VERSIONS[0]} to {VERSIONS[-1]}",
            hint="if a newer torch wrote it, save it there as safetensors",
        )


def _with_constants(value: object, constants: object) -> object:
    """A TorchScript module and the tensors that its code uses, as `constants.0`, ..."""
    if not isinstance(constants, tuple) or not any(isinstance(item, PickledTensor) for item in constants):
        return value
    made = Instance(value.path if isinstance(value, Instance) else "module", (), False)
    state = value.state if isinstance(value, Instance) and isinstance(value.state, dict) else {"module": value}
    made.state = {**state, "constants": constants}
    return made


def _backing(where: str, key: str, ref: StorageRef, member: zip_directory.Member | None, *, swap: bool) -> Backing:
    """Where a storage's bytes are; its member must have exactly the size that the pickle says."""
    nbytes = ref.nbytes
    if member is None:
        raise FormatError(f"{where}: the pickle refers to storage {key!r}, which the archive does not have")
    if member.nbytes != nbytes:
        raise FormatError(f"{where}: {member.name!r}: has {member.nbytes} bytes; the pickle says {nbytes}")
    steps = []
    if member.method == zip_directory.DEFLATED:
        steps.append("inflate")
    if swap and (unit := _swap_unit(ref.dtype)) > 1:
        steps.append(f"swap{unit}")
    crc32 = member.crc32 if nbytes else None
    if not steps:
        return ByteRange(where, member.byte_start, member.byte_start + member.nbytes, crc32)
    source = ByteRange(where, member.byte_start, member.byte_start + member.stored_nbytes)
    return Encoded(source, tuple(steps), crc32)


def _swap_unit(dtype: DType | None) -> int:
    """The number of bytes to swap together in big-endian data; complex numbers are byte-swapped part by part.

    torch does not byte-swap untyped storages (torch/serialization.py, load_tensor), so they are read as they are.
    """
    if dtype is None:
        return 1
    return (dtype.component or dtype).block_bytes
