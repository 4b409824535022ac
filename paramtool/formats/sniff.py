"""Recognise files by their first bytes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

MSGPACK_STARTS = bytes((*range(0x81, 0x90), 0xDE, 0xDF, *range(0xC7, 0xCA), *range(0xD4, 0xD9)))
"""A map with items, or an extension."""
STACKED_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""LONG1 0x1950a86a20f9469cfc6c STOP: torch's first stacked pickle, after the two bytes of its protocol."""
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06")
TAR_MAGIC = b"ustar"
MXNET_START = b"\x12\x01" + bytes(14)
NUMPY_MAGIC = b"\x93NUMPY"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
JLD2_START = b"HDF5-based Julia Data Format, version "
TORCH_RECORD = "paramtool.json"
"""The member of a torch archive that holds what its pickle cannot express (`torch/_record.py`)."""
KERAS_MEMBERS = (b"metadata.json", b"config.json", b"model.weights.h5")
"""The members of a `.keras` archive, in this order (keras/src/saving/saving_lib.py)."""
BSON_TYPES = tuple(bytes([kind]) for kind in (1, 2, 3, 4, 5, 8, 10, 16, 18))
"""The types of elements that BSON.jl writes (src/write.jl)."""
MAX_SAFETENSORS_HEADER = 100_000_000
INTERRUPTED = "a download, copy or save that did not end leaves such a file: fetch or save it again"
"""The hint for truncated files."""
INDEX_SUFFIX = ".index.json"

DISTRIBUTED = ".distcp"
"""The suffix of the files of ranks of torch.distributed.checkpoint (torch/distributed/checkpoint/filesystem.py)."""
DCP_START = rb"(?s)\x80[\2-\5].{0,48}torch\.distributed\.(_shard\.)?checkpoint\.metadata"
"""A pickle whose first name is that of the class of `.metadata`."""


def is_zip(head: bytes) -> bool:
    """Whether a file that begins with `head` is a zip archive; an empty archive counts."""
    return head.startswith(ZIP_STARTS)


def is_stacked(head: bytes) -> bool:
    """Whether a file begins with torch's pickled magic number, in any pickle protocol with binary numbers."""
    return head[:1] == b"\x80" and STACKED_MAGIC in head[:24]


def is_torch(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be one of torch's formats; a zip archive may turn out to be something else."""
    other = is_npz(head, nbytes) or is_keras(head, nbytes) or path.endswith(DISTRIBUTED)
    return (is_zip(head) and not other) or is_stacked(head) or head[257:262] == TAR_MAGIC


def is_safetensors(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be safetensors: the length of a header, then a JSON object.

    If the length exceeds the file, a file that is named `.safetensors` is truncated; any other begins so by chance.
    """
    is_inside = 8 + int.from_bytes(head[:8], "little") <= nbytes or path.endswith(".safetensors")
    return head[8:9] == b"{" and is_inside


def is_mxnet(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be MXNet's list of arrays: its magic number, and eight zero bytes."""
    return len(head) >= 8 and MXNET_START.startswith(head[:16])


def is_npz(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be a NumPy array, or a zip archive whose first member is one.

    An archive that torch wrote may hold any file, but the extra field of each of its members begins with `FB`.
    """
    if not head.startswith(ZIP_STARTS[0]):
        return head.startswith(NUMPY_MAGIC) and not holds_objects(head)
    stop = 30 + int.from_bytes(head[26:28], "little")
    return head[30:stop].endswith(b".npy") and head[stop : stop + 2] != b"FB"


_OBJECTS = rb"\x93NUMPY[^\n]{0,40}'descr': '\|O8?'"
"""A NumPy array of Python objects: behind its header stands a pickle (numpy/lib/_format_impl.py, write_array)."""


def holds_objects(head: bytes) -> bool:
    """Whether a NumPy header is that of an array of Python objects."""
    return re.match(_OBJECTS, head) is not None


def numpy_stop(head: bytes) -> int:
    """The length of a NumPy header: its own is a number of 2 bytes in version 1, of 4 bytes later."""
    size = 2 if head[6:7] == b"\1" else 4
    return 8 + size + int.from_bytes(head[8 : 8 + size], "little")


def is_keras(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file is HDF5 but for JLD2, or a zip archive whose first member is one of Keras'."""
    if head.startswith(ZIP_STARTS[0]):
        return head[30 : 30 + int.from_bytes(head[26:28], "little")] in KERAS_MEMBERS
    return hdf5_start(head) >= 0 and not is_jld2(head, nbytes)


def hdf5_start(data: Buffer) -> int:
    """Where HDF5 begins: at 0, or behind a user block of 512, 1024, 2048, ... bytes, as libhdf5 looks for it; else -1.

    Specification: the HDF5 file format, version 3.0, "II.A. Disk Format: Level 0A - Format Signature and Superblock".
    """
    at = 0
    while at < len(data):
        if data[at : at + len(HDF5_SIGNATURE)] == HDF5_SIGNATURE:
            return at
        at = max(512, 2 * at)
    return -1


def is_jld2(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file begins with JLD2's line of text; HDF5 begins at byte 512."""
    return head.startswith(JLD2_START)


def is_onnx(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be an ONNX model.  ONNX has no magic number: the fields up to the graph must be a model's.

    Of a file that is named `.onnx` they may be cut short: it is truncated.
    """
    if head[:1] != b"\x08" or not 1 <= int.from_bytes(head[1:2], "big") <= 20:  # field 1, ir_version
        return False
    from paramtool.formats.onnx import proto

    return proto.begins_model(head, nbytes, path.endswith(".onnx"))


def is_bson(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be one document of BSON: its length, and an element of a type that BSON.jl writes.

    BSON has no magic number.  If the length is another, a file that is named `.bson` is damaged; any other only begins
    so by chance.
    """
    is_whole = int.from_bytes(head[:4], "little") == nbytes
    if nbytes < 6:
        return is_whole or path.endswith(".bson")
    return head[4:5] in BSON_TYPES and (is_whole or (path.endswith(".bson") and head[5:6] != b"\0"))


def means_bundle(path: str) -> bool:
    """Whether a path can stand for a TensorFlow bundle, by its name: its data, what names it, or its SavedModel."""
    name = os.path.basename(path)
    return ".data-" in name or name.startswith(("checkpoint", "saved_model"))


_PLAIN_BUNDLE = rb"\0\0[\x02-\x40]\x08[\x80-\xff]{0,4}[\x01-\x7f](?:[\x10\x1a\0]|\Z)"
_SNAPPY_BUNDLE = rb"(?s)[\x80-\xff]{0,4}[\x01-\x7f](?:[\x0c-\xec]|\xf0.|\xf4..)" + _PLAIN_BUNDLE


def is_tensorflow(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be the index of a TensorFlow bundle.

    It is a table whose first key is empty: the bundle's header, whose first field is the number of files of data.  The
    block may be compressed, and begins with a literal then.
    """
    return (re.match(_PLAIN_BUNDLE, head) or re.match(_SNAPPY_BUNDLE, head)) is not None


def is_pickle(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be a pickle that torch.save did not write, of any protocol, bare or behind a NumPy header."""
    is_other = is_stacked(head) or is_dcp(head, nbytes, path)
    return (begins_pickle(head) and not is_other) or holds_objects(head)


def is_dcp(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be the `.metadata` of torch.distributed.checkpoint, or a damaged one, by its name."""
    return re.match(DCP_START, head) is not None or (begins_pickle(head) and os.path.basename(path) == ".metadata")


_RUNS = (
    rb"(?s)(?!\x93NUMPY)(?:[(012NQR\])}abdelostu\x81\x85-\x89\x8f-\x94\x97\x98]|[Khq\x80\x82].|[M\x83]..)*"
    rb"(?:[.BCFGJPTUVXcijr\x84\x8a-\x8e\x95\x96]|[ILgp][-+\s\d]|S['\"]|\Z)"
)
"""Opcodes up to one with a long argument, which can leap over anything, or the end (Lib/pickletools.py)."""


def runs(head: bytes) -> bool:
    """Whether a pickle may begin with these bytes, whatever else they are."""
    return re.match(_RUNS, head) is not None


def begins_pickle(head: bytes) -> bool:
    """Whether bytes begin like a pickle: protocols 2 to 5 say so, 0 and 1 begin with a container or with a name.

    Much text begins like a name in a pickle, so the name must be one of NumPy's, or of what holds its arrays.
    """
    if head[:1] == b"\x80":
        return head[1:2] in (b"\2", b"\3", b"\4", b"\5")
    if head[:1] not in b"(]}c" or not head:
        return False
    return (
        re.match(rb"[\]}]q[\0\1]|\(*([dl]p\d\n[(SVILFcg]|c(numpy|_?collections|copy_reg)[.\w]*\n\w+\n)", head)
        is not None
    )


def is_msgpack(head: bytes, nbytes: int, path: str = "") -> bool:
    """Whether a file can be flax's: a map of msgpack whose keys are text, up to its first array or the end of `head`.

    A map that says more items than the file can hold is only taken for truncated where the name ends in .msgpack.
    """
    if not head or head[0] not in MSGPACK_STARTS:
        return False
    from paramtool.formats.msgpack import codes

    return codes.begins_tree(head, nbytes) or path.endswith(".msgpack")
