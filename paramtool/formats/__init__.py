"""Bytes on disk to a described checkpoint.  What a file is, is decided by its content; extensions lie.

A reader is a function `read(path) -> Checkpoint` that touches no tensor byte.  `FORMATS` lists them with the function
that recognises the first bytes of a file; `FOREIGN` lists what is recognised and not read, with a word of advice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from paramtool.errors import FormatError, ParamtoolError, UnsafeError
from paramtool.formats import _sniff
from paramtool.formats._files import open_source
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import tensor_names

HEAD_NBYTES = 4096


class Format(NamedTuple):
    """A format that can be read."""

    name: str
    """Also the module of this package that reads it, imported when such a file is met."""
    sniff: Callable[[bytes, int], bool]
    """From the first bytes of a file and its size."""

    def read(self, path: str) -> Checkpoint:
        """Describe one file of this format."""
        found: Checkpoint = import_module(f"paramtool.formats.{self.name}").read(path)
        return found


FORMATS = (
    Format("torch", _sniff.is_torch),
    Format("safetensors", _sniff.is_safetensors),
    Format("mxnet", _sniff.is_mxnet),
    Format("npz", _sniff.is_npz),
    Format("keras", _sniff.is_keras),
    Format("jld2", _sniff.is_jld2),
    Format("onnx", _sniff.is_onnx),  # the last: it has no magic number
)


class Foreign(NamedTuple):
    """A file that is recognised and cannot be read."""

    start: bytes
    what: str
    hint: str = ""


FOREIGN = (
    Foreign(b"version https://git-lfs", "a git-LFS pointer, not the file", "fetch the real file: git lfs pull"),
    Foreign(b"<!doctype html", "an HTML page, not a checkpoint", "download the file itself, not its page"),
    Foreign(b"<html", "an HTML page, not a checkpoint", "download the file itself, not its page"),
    Foreign(b"GGUF", "a GGUF file, which this version does not read"),
    Foreign(b"\x1f\x8b", "gzip-compressed", "decompress it first: gunzip"),
    Foreign(b"\x28\xb5\x2f\xfd", "zstd-compressed", "decompress it first: unzstd"),
    Foreign(b"{", "JSON text, and no weights", "an index has a weight_map, and is itself no shard"),
    Foreign(b"\x80", "a pickle that torch.save did not write", "save it with torch.save, or as safetensors"),
    Foreign(b"", "of no format that this version reads", "it reads torch, safetensors, mxnet, npz, keras and onnx"),
)


def read(path: str | os.PathLike[str], *, allow_class: Sequence[str] = (), allow_unknown: bool = False) -> Checkpoint:
    """Describe the checkpoint at `path`: a file, an index, or a folder that holds one of these.

    No tensor byte is read, nothing that the file names is imported or run.  FormatError where the file is damaged or
    foreign, and UnsafeError where its pickles call what is not known to hold only data (docs/security.md).
    `allow_class` names what may be called, or, in patterns, what only holds data; with `allow_unknown` everything is
    described, without what would have been called.
    """
    from paramtool.formats import _policy

    allow_class = _policy.checked(allow_class)
    found = describe(path, allow_class=allow_class, allow_unknown=allow_unknown)
    _policy.refuse(found.files[0].path, found.unknown, allow_class, allow_unknown)
    return found


def describe(
    path: str | os.PathLike[str], *, allow_class: Sequence[str] = (), allow_unknown: bool = False
) -> Checkpoint:
    """The same, and whatever its pickles call is only listed in `Checkpoint.unknown`: for looking at a file.

    A file that cannot be described is refused for what it calls, too.
    """
    path = os.fspath(path)
    import gc

    collects = gc.isenabled()
    gc.disable()  # all of a description's many objects stay: looking for garbage costs a third of the time
    try:
        return read_file(_in_folder(path) if os.path.isdir(path) else path)
    except ParamtoolError as error:
        if not error.asked:
            raise
        from paramtool.formats import _policy

        raise _policy.judged(path, error, _policy.checked(allow_class), allow_unknown) from None
    finally:
        if collects:
            gc.enable()


def read_file(path: str) -> Checkpoint:
    """Describe one file, or the shards of one index."""
    head, nbytes = _head(path)
    if not _sniff.is_index(head, path):
        return _alone(_read_as(path, head, nbytes))
    from paramtool.formats import sharded

    return sharded.read(path, read_whole)


def _alone(found: Checkpoint) -> Checkpoint:
    """The description of a file that no index was asked for, with a note where it is one shard of several."""
    if found.producer != "paramtool":
        return found
    others = [name for name in tensor_names(found.objects) if name not in found.entries]
    if not others:
        return found
    note = (
        f"its alias record has objects with {len(others)} tensors that it does not hold ({others[0]!r:.200}, ...): "
        "it is one shard of several, or was changed"
    )
    return replace(found, notes=(*found.notes, note))


def read_whole(path: str) -> Checkpoint:
    """Describe one file that is no index."""
    return _read_as(path, *_head(path))


def _head(path: str) -> tuple[bytes, int]:
    """The first bytes of a file, and its size."""
    file, source = open_source(path)
    with file:
        return file.read(HEAD_NBYTES), source.nbytes


def _read_as(path: str, head: bytes, nbytes: int) -> Checkpoint:
    """Describe a file by the format that its first bytes show.

    An error of a file that holds pickles says what they ask for: `ParamtoolError.asked`.
    """
    if not head:
        raise FormatError(f"{path}: is empty; expected a checkpoint")
    try:
        for format_ in FORMATS:
            if format_.sniff(head, nbytes):
                return format_.read(path)
    except (FormatError, UnsafeError) as error:
        from paramtool.formats import _scan

        error.asked = _scan.scan(path)
        raise
    raise _foreign(path, head)


def _foreign(path: str, head: bytes) -> FormatError:
    """What a file is that no reader takes, and what its pickles ask for."""
    from paramtool.formats import _scan

    scanned = _scan.scan_file(path)
    text = head.lstrip().lower() if head.lstrip()[:1] == b"<" else head
    start = b"\x80" if scanned.is_pickle else text
    foreign = next(foreign for foreign in FOREIGN if start.startswith(foreign.start))
    more = "" if scanned.ended else "; its pickles were not looked through to the end, for their size"
    error = FormatError(f"{path}: is {foreign.what}{more}", hint=foreign.hint)
    error.asked = scanned.unknown
    return error


KNOWN = (_sniff.MODEL_NAME, _sniff.INDEX_NAME, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Looked for in this order, as transformers does (`_get_resolved_checkpoint_files` in its modeling_utils.py)."""
WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".params", ".npz", ".h5", ".hdf5", ".keras", ".onnx", ".jld2",
)  # fmt: skip


def _in_folder(folder: str) -> str:
    """The index, or the one weights file, of a folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FormatError(f"{folder}: cannot be read: {error.strerror}") from None
    known = next((name for name in KNOWN if name in names), None)
    if known is not None:
        return os.path.join(folder, known)
    indexes = [name for name in names if name.endswith(_sniff.INDEX_SUFFIX)]
    if len(indexes) == 1:
        return os.path.join(folder, indexes[0])
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if not indexes and len(weights) == 1:
        return os.path.join(folder, weights[0])
    if any(name.endswith(".distcp") for name in names):
        refused = FormatError(
            f"{folder}: is a folder of torch.distributed.checkpoint, which this version does not read",
            hint="torch.distributed.checkpoint.format_utils.dcp_to_torch_save makes one file of it",
        )
        refused.asked = tuple(_asked(os.path.join(folder, n) for n in names if n.endswith((".distcp", ".metadata"))))
        raise refused
    found = indexes or weights
    raise FormatError(
        f"{folder}: is a folder with {len(found)} {'indexes' if indexes else 'weights files and no index'}"
        + (": " + ", ".join(found[:5]) if found else ""),
        hint="name the file or the index itself",
    )


def _asked(paths: Iterator[str]) -> Iterator[Unknown]:
    """What the pickles in several files ask for."""
    from paramtool.formats import _scan

    for path in paths:
        yield from _scan.scan(path)
