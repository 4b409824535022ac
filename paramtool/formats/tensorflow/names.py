"""The files of a bundle, and which of them is meant by a path.

    PREFIX.index, PREFIX.data-00000-of-00002, ...   a bundle, which TensorFlow calls by its prefix
    checkpoint                                      text that names the latest of the bundles beside it
    saved_model.pb, variables/variables.index       a SavedModel

Sources: tensorflow/core/util/tensor_bundle/naming.cc; tensorflow/python/training/checkpoint_state.proto;
tensorflow/cc/saved_model/constants.h.
"""

from __future__ import annotations

import os
import re

from paramtool.errors import FormatError
from paramtool.formats.files import open_source, read_bytes
from paramtool.model.paths import named_beside

INDEX = ".index"
STATE = "checkpoint"
"""The file that names the latest bundle of a folder."""
MODELS = ("saved_model.pb", "saved_model.pbtxt")
VARIABLES = os.path.join("variables", "variables" + INDEX)
_SHARD = re.compile(r"(.+)\.data-\d{5}-of-\d{5}", re.DOTALL)
_LATEST = re.compile(rb'^model_checkpoint_path: "((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
MAX_STATE_NBYTES = 1 << 20


def shard(prefix: str, k: int, count: int) -> str:
    """The name of a file of data.

    >>> shard("model.ckpt-7", 0, 2)
    'model.ckpt-7.data-00000-of-00002'
    """
    return f"{prefix}.data-{k:05d}-of-{count:05d}"


def meant(path: str) -> str:
    """The index of the bundle that a path names by its prefix, by a file of its data, or by a file that names it.

    The path itself, if it names nothing of the kind.
    """
    folder, name = os.path.split(path)
    if name in MODELS:
        found = os.path.join(folder, VARIABLES)
    elif name == STATE and os.path.isfile(path):
        found = latest(folder)
    elif shards := _SHARD.fullmatch(path):
        found = shards[1] + INDEX
    else:
        found = "" if os.path.lexists(path) else path + INDEX
    return found if found and os.path.isfile(found) else path


def files(index: str) -> list[str]:
    """The index of a bundle, and the files of its data that are there."""
    folder, name = os.path.split(index)
    start = name.removesuffix(INDEX)
    found = ((found, one) for one in sorted(os.listdir(folder or ".")) if (found := _SHARD.fullmatch(one)))
    return [index, *(os.path.join(folder, one) for match, one in found if match[1] == start)]


def in_model(folder: str) -> str:
    """The index of a SavedModel's variables, by its folder; empty for another folder."""
    index = os.path.join(folder, VARIABLES)
    is_model = any(os.path.isfile(os.path.join(folder, name)) for name in MODELS) and os.path.isfile(index)
    return index if is_model else ""


def model_of(index: str) -> str:
    """The folder of the SavedModel that a bundle belongs to; empty if it belongs to none."""
    folder, name = os.path.split(os.path.abspath(index))
    return os.path.dirname(folder) if os.path.join(os.path.basename(folder), name) == VARIABLES else ""


def latest(folder: str) -> str:
    """The index of the bundle that the state of a folder names; empty if there is no such state or bundle.

    Only bundles of the folder itself count, as it may come from anybody: FormatError and UnsafeError for what names no
    file in it.  TensorFlow 1 writes paths from the root, which count while the folder is where it was.
    """
    path = os.path.join(folder, STATE)
    if not os.path.isfile(path):
        return ""
    try:
        file, source = open_source(path)
        with file:
            found = _LATEST.search(read_bytes(file, 0, min(source.nbytes, MAX_STATE_NBYTES)))
    except FormatError:
        return ""
    if found is None:
        return ""
    name = os.fsdecode(_ESCAPE.sub(_unescaped, found[1]))
    name = name.removeprefix(os.path.join(os.path.abspath(folder), ""))
    name = named_beside(path, name + INDEX, portable=False)
    index = os.path.join(folder, name)
    return index if os.path.isfile(index) else ""


def _unescaped(found: re.Match[bytes]) -> bytes:
    text = found[1]
    return bytes([int(text, 8) & 0xFF]) if text[:1].isdigit() else {b"n": b"\n", b"t": b"\t"}.get(text, text)
