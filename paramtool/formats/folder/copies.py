"""Whether a file next to a set of weights is a copy of it, another set, or something else: by names, shapes and bytes.

the same tensors, and nothing else                   a copy
the same tensors, and objects or metadata            something else, copied to the output
no weights                                           something else
no common names, in a file of another framework      another form of the model, which is not compared
no common names in another file                      something else, or another set if a library looks for the file
other bytes, another dtype, an additional tensor     another set
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace

from paramtool.errors import FormatError
from paramtool.formats.files import open_source, read_bytes
from paramtool.formats.folder.weight_names import Pair, Weights, is_index_name
from paramtool.formats.object_tree import is_flat
from paramtool.formats.table import SUFFIXES
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.objects import EMPTY
from paramtool.model.objects import Mapping as ObjectMapping
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

MAIN = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Suffixes that PyTorch's libraries load; other files hold the same model for other frameworks, with other names."""
MASKS = ("bias", "mask", "attn_mask", "causal_mask")
"""Names of causal masks (`attn.bias` of GPT-2), whose dtype is bool or uint8."""
MAX_WINDOW_NBYTES = 4096
"""The number of first bytes of each tensor that are compared here; commands that write compare all bytes."""
VARIANT = r"\d+|fp16|bf16|fp32|float16|bfloat16|float32|ema|non_ema"
"""Variants in file names of hubs, and the numbers of Meta's and Mistral's files: `consolidated.00.pth`."""


def is_main(path: str) -> bool:
    """Whether a file or index has a name that PyTorch's libraries use."""
    return path.endswith(MAIN) or is_index_name(path)


def is_something_else(one: Weights, other: Weights) -> bool:
    """Whether a file next to a set of weights is neither another set nor a copy.

    That is so if it holds no weights, or if it has no name in common with the set and either no library looks for it or
    it is much smaller than the set, like a scaler in `model.npz`: other formats have other names for the same tensors.
    For ONNX files only the file name counts, since exporters make up the tensors' names.
    """
    if not holds_weights(other.checkpoint):
        return True
    if one.checkpoint.entries.keys() & other.checkpoint.entries.keys():
        return False
    if not is_main(other.path):
        return not other.path.endswith(".onnx") and 2 * _numel(other.checkpoint) < _numel(one.checkpoint)
    is_looked_for = other.name.is_usual and (not other.name.variant or re.fullmatch(VARIANT, other.name.variant))
    return one.name.is_usual and not is_looked_for and not is_index_name(other.path)


def _numel(checkpoint: Checkpoint) -> int:
    return sum(view.numel for _, view in checkpoint.windows())


def holds_weights(checkpoint: Checkpoint) -> bool:
    """Whether any tensor is something other than optimizer state or an array outside the model."""
    return any(entry.role not in ("optimizer", "other") for entry in checkpoint.entries.values())


def holds_more(checkpoint: Checkpoint, first: Checkpoint) -> bool:
    """Whether a copy holds more than tensors: objects, or metadata that the first set does not have.

    The module versions in a state dict and the `format` of safetensors are ignored.
    """
    if any(first.metadata.get(key) != text for key, text in checkpoint.metadata.items() if key != "format"):
        return True
    objects = checkpoint.objects
    if isinstance(objects, ObjectMapping) and isinstance(extra := objects.attributes, ObjectMapping):
        objects = replace(objects, attributes=None) if [key for key, _ in extra.items] == ["_metadata"] else objects
    return objects != EMPTY and not is_flat(objects, tuple(checkpoint.entries))


def compared(one: Weights, other: Weights) -> tuple[Pair, ...] | str:
    """The pairs of tensors that must have the same bytes if `other` is a copy of `one`, or why it is not a copy."""
    first = os.path.basename(one.path)
    if (one.name.variant or other.name.variant) and one.name != other.name:
        return f"a different variant from {first}"
    if one.name != other.name and one.name.is_usual and other.name.is_usual:
        return f"a different name from {first}, which another program looks for"
    mine, theirs = one.checkpoint.entries, other.checkpoint.entries
    common = [name for name in theirs if name in mine]
    if not common:
        return () if _is_another_form(one.path, other.path) else f"no name in common with {first}"
    for name in common:
        if difference := _difference(name, mine[name], theirs[name], first):
            return difference
        if starts_differ(one.checkpoint, mine[name], other.checkpoint, theirs[name]):
            return f"{name!r} has different bytes in {first}"
    pairs = [(name, name) for name in common]
    for name in (name for name in theirs if name not in mine and not other.path.endswith(".onnx")):
        twin = _twin(one.checkpoint, other.checkpoint, name, common)
        if twin is None:
            return f"{name!r} is not in {first}"
        pairs += [(twin, name)] if twin else []
    return tuple(pairs)


def _is_another_form(path: str, other: str) -> bool:
    """Whether a file has the model for another framework, which has names of its own, as far as file names say.

    >>> _is_another_form("model.safetensors", "tf_model.h5"), _is_another_form("m.hdf5", "n.th")
    (True, False)
    """
    if is_main(other):
        return False
    return other.endswith(".onnx") or stem(os.path.basename(other)) in stems([path])


def _difference(name: str, mine: Entry, theirs: Entry, first: str) -> str:
    """How the descriptions of two tensors of one name differ; empty if they do not."""
    a, b = mine.value, theirs.value
    if isinstance(a, View) and isinstance(b, View):
        if (a.dtype, a.shape) == (b.dtype, b.shape):
            return ""
        here, there = (f"{list(view.shape)} {view.dtype.name}" for view in (b, a))
        return f"{name!r} is {here}, and {there} in {first}"
    return "" if type(a) is type(b) else f"{name!r} is of a different kind in {first}"


def _twin(one: Checkpoint, other: Checkpoint, name: str, common: Iterable[str]) -> str | None:
    """The name in a first set with the same bytes as a tensor of another set; empty for a buffer that models create.

    None if it is neither: then only the other set has the tensor.
    """
    value = other.entries[name].value
    if not isinstance(value, View):
        return None
    if _is_made_again(name.rpartition(".")[2], value, _start(other, other.entries[name])):
        return ""
    alike = []
    for known in common:
        entry = one.entries[known]
        if isinstance(entry.value, View) and (entry.value.dtype, entry.value.shape) == (value.dtype, value.shape):
            alike.append(known)
    for known in alike:
        if other.entries[known].value == value:
            return known
    same = (known for known in alike if starts_differ(one, one.entries[known], other, other.entries[name]) is False)
    return next(same, None)


def _is_made_again(last: str, view: View, start: bytes | None) -> bool:
    """Whether a tensor with this name and these first bytes is a buffer that transformers' models create themselves."""
    if start is None or not view.shape:
        return last == "masked_bias" and view.numel == 1
    width, size = view.shape[-1], view.dtype.block_bytes
    is_whole = view.dtype.name.startswith(("int", "uint"))
    numbers = [int.from_bytes(start[k : k + size], "little") for k in range(0, len(start) - size + 1, size)]
    if last == "position_ids":
        return is_whole and all(number == k % width for k, number in enumerate(numbers))
    if last == "token_type_ids":
        return is_whole and not any(numbers)
    if last in MASKS and view.dtype.name in ("bool", "uint8") and view.shape[-2:] == (width, width):
        return all(number == (k % width <= k // width % width) for k, number in enumerate(numbers))
    return (last == "inv_freq" and len(view.shape) == 1) or (last == "relative_position_index" and is_whole)


def starts_differ(one: Checkpoint, mine: Entry, other: Checkpoint, theirs: Entry) -> bool | None:
    """Whether the first bytes of two tensors differ; None if they cannot be read directly."""
    a, b = _start(one, mine), _start(other, theirs)
    return None if a is None or b is None else a != b


def _start(checkpoint: Checkpoint, entry: Entry) -> bytes | None:
    view = entry.value
    if not isinstance(view, View) or not view.is_contiguous:
        return None
    storage = checkpoint.storages.get(int(view.storage))
    if storage is None or not isinstance(storage.backing, ByteRange):
        return None
    try:
        file, _ = open_source(storage.backing.file)
        with file:
            return read_bytes(file, storage.backing.start + view.byte_start, min(view.nbytes, MAX_WINDOW_NBYTES))
    except FormatError:
        return None


# --- Stems of file names under which libraries look for one model in several formats ----------------------------------


STEMS = (
    ("model", "pytorch_model", "tf_model", "flax_model", "rust_model", "model_state", "consolidated"),
    ("diffusion_pytorch_model", "diffusion_flax_model"),
    ("open_clip_model", "open_clip_pytorch_model"),
)
"""The stems of one model.

The first are those of transformers (`utils/__init__.py`; version 5 has no TensorFlow and Flax), rust-bert
(`rust_model.ot`), PaddleNLP (`utils/env.py`: `model_state.pdparams`), Meta and Mistral (`consolidated.00.pth`); then
those of diffusers (`utils/constants.py`) and of open_clip (`constants.py`).
"""
ANY_OBJECT = (".pkl", ".pickle", ".pdopt")
"""Files that hold weights at times, and more often something else: their names do not say."""
SAME_SUFFIXES = (*(suffix for suffix in SUFFIXES if suffix not in ANY_OBJECT), ".ot")
"""How the names of a model's weights end, whatever format they are in."""
INDEX = r"\.index(\.[^.]+)?\.json$"
"""`model.safetensors.index.json`; of a variant `model.safetensors.index.fp16.json` (`_add_variant` of transformers)."""
SHARD = r"-\d+-of-\d+"


def stems(read: Iterable[str]) -> frozenset[str]:
    """The stems of the files of a checkpoint, with those under which libraries look for it in other formats.

    >>> sorted(stems(["a/pytorch_lora_weights.safetensors"]))
    ['pytorch_lora_weights']
    >>> "tf_model" in stems(["model-00001-of-00002.safetensors"])
    True
    """
    own = {found for path in read if (found := stem(os.path.basename(path)))}
    return frozenset(own.union(*(group for group in STEMS if own.intersection(group))))


def stem(name: str) -> str:
    """What of the name of a weights file or index is the same in every format; empty for other names.

    >>> stem("model-00001-of-00002.fp16.safetensors"), stem("tf_model.h5.index.json"), stem("model.json")
    ('model', 'tf_model', '')
    """
    if not name.endswith(SAME_SUFFIXES) and not re.search(INDEX, name):
        return ""
    return re.sub(SHARD, "", name).split(".")[0]
