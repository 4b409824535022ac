"""Which sets of weights a folder holds: files, and indexes with their shards.

    model.safetensors, pytorch_model.bin        one set and a copy of it, if both hold the same tensors
    model.safetensors, model.fp16.safetensors   two sets: what opens one does not open the other
    model.safetensors, model_1.safetensors      two sets: accelerate saves one for each model
    unet/..., vae/..., model_index.json         sets in folders inside: a pipeline
    optimizer.pt, scheduler.pt, rng_state.pth   no weights, by their names
    model.safetensors, stats.pt                 one set, and a file that no library looks for, with names of its own
    model.safetensors, model.bin                one set, if model.bin holds no tensors, or more than tensors

Two sets that differ are never mixed up in silence: whoever wants one has to say which.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from shlex import quote

from paramtool.errors import FormatError, ParamtoolError, UsageError, listed, plural
from paramtool.formats import _sniff
from paramtool.formats._training import is_training_state
from paramtool.formats._tree import is_flat
from paramtool.formats._weights import (
    LINKED_PREFIX,
    SUFFIXES,
    Copy,
    Pair,
    Weights,
    WeightsName,
    index_parts,
    is_index_name,
    of_file,
)
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.objects import EMPTY
from paramtool.model.objects import Mapping as ObjectMapping
from paramtool.model.storage import ByteRange
from paramtool.model.view import View

MAIN = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Suffixes of what PyTorch's libraries load; others hold the same model for other frameworks, under other names."""
COPIES = ("onnx", "original", "openvino", "coreml", "gguf", "ggml", "tflite", "*.mlpackage")
"""Folders inside that hold the weights once more, for other programs; patterns of lower-case names."""
PIPELINE = "model_index.json"
"""What says that a folder is a pipeline of diffusers: `config_name` in pipelines/pipeline_utils.py (0.42)."""
_SHARD = re.compile(r"-\d+-of-\d+\.")
MASKS = ("bias", "mask", "attn_mask", "causal_mask")
"""What causal masks are called (`attn.bias` of GPT-2), whose dtype is bool or uint8."""
MAX_DEPTH = 4
"""So deep below a folder are sets looked for."""
MAX_WINDOW_NBYTES = 4096
"""So much of each tensor is read to see that two sets differ."""

VARIANT = re.compile(r"\d+|fp16|bf16|fp32|float16|bfloat16|float32|ema|non_ema")
"""Variants as the files of hubs are called, and the numbers of Meta's and Mistral's: `consolidated.00.pth`."""

Read = Callable[[str], Checkpoint]


def only(folder: str, read: Read, choice: str | None = None) -> Weights:
    """The one set of weights of a folder, or the one of its several that `choice` names.

    UsageError where several differ and none is chosen, where sets are in folders inside, and where `choice` is no file
    of the folder; FormatError where there is none.
    """
    if choice is not None:
        path = chosen(folder, choice)
        taken = Weights(path, read(path), of_file(path))
        others, more = _beside(folder, taken, read)
        return replace(taken, others=tuple(others), more=tuple(more))
    found = _files(folder)
    inside = inner(folder) if _is_pipeline(folder) else []
    grouped = _Grouped([], {}, None) if inside else _grouped(found, read)
    if inside := inside or _inner_of_root(folder, grouped.sets):
        raise _is_root(folder, [os.path.basename(path) for path in found], inside)
    if not grouped.sets:
        raise grouped.error or _nothing(folder)
    if len(grouped.sets) > 1:
        error = _several(folder, grouped.sets, grouped.differences)
        error.asked = tuple(unknown for one in grouped.sets for unknown in one.checkpoint.unknown)
        raise error
    return grouped.sets[0]


def every(folder: str, read: Read) -> dict[str, list[Weights]]:
    """{folder inside, with `/`, or empty for the folder itself: its sets}.

    Where a library looks for some of them, files that none looks for are no sets.  FormatError where there is none.
    """
    found: dict[str, list[Weights]] = {}
    error: ParamtoolError | None = None
    for place in ("", *inner(folder)):
        grouped = _grouped(_files(os.path.join(folder, place)), read)
        error = error or grouped.error
        if grouped.sets:
            found[place] = grouped.sets
    if not found:
        raise error or _nothing(folder)
    usual = {place: sets for place, sets in found.items() if any(one.name.is_usual for one in sets)}
    return usual or found


def with_names(sets: Iterable[Weights]) -> list[Weights]:
    """Sets of one folder, each with a name that no other has: where two would have the same, one keeps its own."""
    taken: set[WeightsName] = set()
    named = []
    for one in sets:
        base = os.path.basename(one.path)
        names = (one.name, WeightsName(os.path.splitext(base)[0]), WeightsName(base))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        named.append(replace(one, name=name))
    return named


def chosen(folder: str, choice: str) -> str:
    """The path of a file of a folder that is called by its name there, or by its path; UsageError for any other."""
    inside = os.path.join(folder, choice)
    path = inside if os.path.isfile(inside) else choice
    if os.path.isfile(path) and os.path.realpath(os.path.dirname(path) or ".") == os.path.realpath(folder):
        return os.path.join(folder, os.path.basename(path))
    names = ", ".join(os.path.basename(one) for one in _files(folder)) or "none"
    where = f"; {quote(os.path.dirname(path) or '.')} is a folder of its own" if os.path.isfile(path) else ""
    raise UsageError(f"{folder}: has no file {choice!r} (--weights); its weights: {names}{where}")


def inner(folder: str) -> list[str]:
    """Folders inside that hold weights of their own, with `/`; none that hold a copy, are hidden, or are links."""
    found = []
    waiting = [("", 0)]
    while waiting:
        place, depth = waiting.pop()
        is_beside = any(map(_is_looked_for, _files(os.path.join(folder, place))))
        for item in _listed(os.path.join(folder, place)):
            name = f"{place}/{item.name}" if place else item.name
            if not item.is_dir(follow_symlinks=False) or item.name.startswith((".", "__")):
                continue
            if is_beside and any(fnmatchcase(item.name.lower(), pattern) for pattern in COPIES):
                continue
            if any(_is_main(path) for path in _files(item.path)):
                found.append(name)
            if depth < MAX_DEPTH:
                waiting.append((name, depth + 1))
    return sorted(found)


# --- files -----------------------------------------------------------------------------------------------------


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        raise FormatError(f"{folder}: cannot be read: {error.strerror}") from None


def _beside(folder: str, taken: Weights, read: Read) -> tuple[list[str], list[str]]:
    """The files of the other weights of a folder, shards among them, where one set was chosen; and what is no weights.

    A file that only is called as weights are, such as a vocabulary in `vocab.bin`, is none of them.
    """
    mine = {taken.path, *(file.path for file in taken.checkpoint.files)}
    others: list[str] = []
    more: list[str] = []
    for path in _files(folder):
        if path in mine:
            continue
        shards = [os.path.join(folder, name) for name in sorted(_shards(path))] if is_index_name(path) else []
        files = [one for one in (path, *shards) if one not in mine]
        try:
            other = Weights(path, read(path), of_file(path))
        except FormatError:
            others += files if is_index_name(path) else []
        except ParamtoolError:  # nobody chose it, so that nobody has to allow it
            others += files
        else:
            (more if _is_something_else(taken, other) else others).extend(files)
    return others, more


def _is_something_else(one: Weights, other: Weights) -> bool:
    """Whether a file beside a set of weights is neither another set nor a copy.

    It holds no weights; or it has no name in common with the set, and no library looks for it, or it is much smaller
    than the set, as a scaler in `model.npz` is: other formats have other names for the same tensors.  What ONNX files
    are called says more than their tensors, whose names an exporter makes up.
    """
    if not _holds_weights(other.checkpoint):
        return True
    if one.checkpoint.entries.keys() & other.checkpoint.entries.keys():
        return False
    if not _is_main(other.path):
        return not other.path.endswith(".onnx") and 2 * _numel(other.checkpoint) < _numel(one.checkpoint)
    is_looked_for = other.name.is_usual and (not other.name.variant or VARIANT.fullmatch(other.name.variant))
    return one.name.is_usual and not is_looked_for and not is_index_name(other.path)


def _numel(checkpoint: Checkpoint) -> int:
    return sum(view.numel for _, view in checkpoint.windows())


def _holds_weights(checkpoint: Checkpoint) -> bool:
    return any(entry.role not in ("optimizer", "other") for entry in checkpoint.entries.values())


def _holds_more(checkpoint: Checkpoint, first: Checkpoint) -> bool:
    """Whether a copy holds anything but the tensors: objects, or metadata that the first set does not have.

    The versions of modules that a state dict brings, and the `format` of safetensors, count for nothing.
    """
    if any(first.metadata.get(key) != text for key, text in checkpoint.metadata.items() if key != "format"):
        return True
    objects = checkpoint.objects
    if isinstance(objects, ObjectMapping) and isinstance(extra := objects.attributes, ObjectMapping):
        objects = replace(objects, attributes=None) if [key for key, _ in extra.items] == ["_metadata"] else objects
    return objects != EMPTY and not is_flat(objects, tuple(checkpoint.entries))


def _files(folder: str) -> list[str]:
    """The indexes and the weights of a folder that no index lists, best first; a training's state is none of them.

    transformers looks for `model.safetensors`, its index, `pytorch_model.bin` and its index, in this order
    (`_get_resolved_checkpoint_files` in modeling_utils.py).
    """
    names = [item.name for item in _listed(folder) if not item.name.startswith(".")]
    indexes = [name for name in names if is_index(os.path.join(folder, name))]
    shards = {shard for name in indexes for shard in _shards(os.path.join(folder, name))}
    files = [n for n in names if n.endswith(SUFFIXES) and n not in shards and not n.startswith(LINKED_PREFIX)]
    weights = [name for name in files if not is_training_state(name)]
    return [os.path.join(folder, name) for name in sorted([*indexes, *weights], key=_order)]


def _order(name: str) -> tuple[object, ...]:
    index = index_parts(name)
    suffix = os.path.splitext(index[0] if index else name)[1]
    stray = index is None and _SHARD.search(name) is not None
    return (not _is_main(name), stray, of_file(name).order[:2], suffix != ".safetensors", index is not None, name)


def _is_main(path: str) -> bool:
    return path.endswith(MAIN) or is_index_name(path)


def is_index(path: str) -> bool:
    """Whether a file is an index of shards, or is called so and damaged: another program's has no `weight_map`."""
    if not is_index_name(path):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(held, dict) and "weight_map" in held


def _shards(path: str) -> set[str]:
    """The files that an index lists, as far as it can be read: what is wrong with it is said where it is read."""
    try:
        with open(path, encoding="utf-8") as file:
            return {name for name in json.load(file)["weight_map"].values() if isinstance(name, str)}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return set()


# --- comparing -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Grouped:
    """The sets of a folder, each with its copies."""

    sets: list[Weights]
    differences: dict[str, str]
    """{path of a set: how it differs from the first}"""
    error: ParamtoolError | None
    """Why there is no set, where a file cannot be read."""


def _grouped(files: Sequence[str], read: Read) -> _Grouped:
    """The sets of a folder.

    What a library looks for has to be readable, where nothing better is: its errors are raised.  Another file that
    cannot be read is no set, and neither is one without weights, unless there is nothing else.
    """
    sets: list[Weights] = []
    differences: dict[str, str] = {}
    without: list[Weights] = []
    failed: ParamtoolError | None = None
    for path in files:  # a set can only be the copy of one that comes before it
        try:
            mine = Weights(path, read(path), of_file(path))
        except ParamtoolError as error:
            others = ", ".join(os.path.basename(one) for one in files if one != path)
            also = f"the folder also holds {others}: name that itself to take it" if others else ""
            error.hint = "; ".join(text for text in (error.hint, also) if text)
            if not sets and of_file(path).is_usual and _is_main(path):
                raise
            failed = failed or error
            continue
        if not _holds_weights(mine.checkpoint):
            without.append(mine)
        elif sets and _is_something_else(sets[0], mine):
            sets[0] = replace(sets[0], more=(*sets[0].more, path))
        elif not _take_as_copy(sets, mine, differences):
            sets.append(mine)
    if sets:
        sets[0] = replace(sets[0], more=(*sets[0].more, *(one.path for one in without)))
    elif without and not failed:
        sets = [replace(without[0], more=tuple(one.path for one in without[1:]))]
    return _Grouped(sets, differences, failed)


def _take_as_copy(sets: list[Weights], mine: Weights, differences: dict[str, str]) -> bool:
    """Put a set with the one that it is a copy of, if any; else it is told how it differs from the first."""
    for k, one in enumerate(sets):
        pairs = _compared(one, mine)
        if isinstance(pairs, str):
            differences.setdefault(mine.path, pairs)
            continue
        if _holds_more(mine.checkpoint, one.checkpoint):
            sets[k] = replace(one, more=(*one.more, mine.path))
        else:
            sets[k] = replace(one, copies=(*one.copies, Copy(mine.path, mine.checkpoint, pairs)))
        differences.pop(mine.path, None)
        return True
    return False


def _compared(one: Weights, other: Weights) -> tuple[Pair, ...] | str:
    """The tensors that have the same bytes if one set is a copy of another, or in which way it is none."""
    first = os.path.basename(one.path)
    if (one.name.variant or other.name.variant) and one.name != other.name:
        return f"another variant than {first}"
    if one.name != other.name and one.name.is_usual and other.name.is_usual:
        return f"another name than {first}, which another program looks for"
    mine, theirs = one.checkpoint.entries, other.checkpoint.entries
    common = [name for name in theirs if name in mine]
    if not common:  # other frameworks have other names for the same tensors
        return () if not _is_main(other.path) else f"no name in common with {first}"
    for name in common:
        if difference := _difference(name, mine[name], theirs[name], first):
            return difference
        if _starts_differ(one.checkpoint, mine[name], other.checkpoint, theirs[name]):
            return f"{name!r} has other bytes than in {first}"
    pairs = [(name, name) for name in common]
    for name in (name for name in theirs if name not in mine and not other.path.endswith(".onnx")):
        twin = _twin(one.checkpoint, other.checkpoint, name, common)
        if twin is None:
            return f"{name!r} is not in {first}"
        pairs += [(twin, name)] if twin else []
    return tuple(pairs)


def _difference(name: str, mine: Entry, theirs: Entry, first: str) -> str:
    """How two tensors of one name differ by their description, or nothing."""
    a, b = mine.value, theirs.value
    if isinstance(a, View) and isinstance(b, View):
        if (a.dtype, a.shape) == (b.dtype, b.shape):
            return ""
        here, there = (f"{list(view.shape)} {view.dtype.name}" for view in (b, a))
        return f"{name!r} is {here}, and {there} in {first}"
    return "" if type(a) is type(b) else f"{name!r} is of another kind than in {first}"


def _twin(one: Checkpoint, other: Checkpoint, name: str, common: Iterable[str]) -> str | None:
    """The name in a first set that a tensor of another set is tied to; empty for what a model makes itself.

    None where it is neither: then only the other set has it.
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
    same = (known for known in alike if _starts_differ(one, one.entries[known], other, other.entries[name]) is False)
    return next(same, None)


def _is_made_again(last: str, view: View, start: bytes | None) -> bool:
    """Whether a tensor that is called so, and begins so, is one that transformers' models make when they are built."""
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


def _starts_differ(one: Checkpoint, mine: Entry, other: Checkpoint, theirs: Entry) -> bool | None:
    """Whether the first bytes of two tensors differ; None where they cannot be read as they are."""
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
        with open(storage.backing.file, "rb") as file:
            file.seek(storage.backing.start + view.byte_start)
            return file.read(min(view.nbytes, MAX_WINDOW_NBYTES))
    except OSError:
        return None


# --- errors ----------------------------------------------------------------------------------------------------


def _several(folder: str, sets: Iterable[Weights], differences: Mapping[str, str]) -> UsageError:
    """Several sets, and what to do."""
    sets = list(sets)
    lines = [_line(one, differences.get(one.path, "")) for one in sets]
    return differing(folder, lines, os.path.basename(sets[0].path))


def differing(folder: str, lines: list[str], first: str) -> UsageError:
    """The refusal of a folder with several sets of weights; a line for each, `first` is the name of one."""
    path = quote(os.path.join(folder, first))
    return UsageError(
        listed(f"{folder}: holds {len(lines)} sets of weights that differ; say which:", lines),
        hint=f"--weights {quote(first)} takes one and leaves the others out; --each of dedup, export, convert, fuse, "
        f"unfuse and verify takes each under its own name; other commands take the file itself: {path}",
    )


def _line(one: Weights, difference: str) -> str:
    count = plural(len(one.checkpoint.entries), "tensor")
    return f"{os.path.basename(one.path)}: {count}" + (f"; {difference}" if difference else "")


def _is_pipeline(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, PIPELINE))


def _inner_of_root(folder: str, sets: Iterable[Weights]) -> list[str]:
    """The folders inside that hold the weights, where the folder itself is only the root of them.

    It is where it has no weights, or only some that no library looks for, while the folders inside have others.
    """
    sets = list(sets)
    if any(one.name.is_usual for one in sets):
        return []
    inside = inner(folder)
    if not sets:
        return inside
    return [place for place in inside if any(map(_is_looked_for, _files(os.path.join(folder, place))))]


def _is_looked_for(path: str) -> bool:
    return _is_main(path) and of_file(path).is_usual


def _is_root(folder: str, files: list[str], found: list[str]) -> UsageError:
    """The refusal of a folder whose weights are in folders inside."""
    lines = [*(f"{name}/" for name in found), *files]
    what = "is a pipeline, whose weights are" if _is_pipeline(folder) else "has its weights"
    return UsageError(
        listed(f"{folder}: {what} in {plural(len(found), 'folder')} inside; say which:", lines),
        hint=f"name one: {quote(os.path.join(folder, found[0]))}; --each of dedup, export, convert, fuse and unfuse "
        "writes all of them, and the files beside them",
    )


def _nothing(folder: str) -> FormatError:
    """A folder without weights that can be read."""
    from paramtool.formats._scan import scan

    if any(item.name.endswith(".distcp") for item in _listed(folder)):
        error = FormatError(
            f"{folder}: is a folder of torch.distributed.checkpoint, which this version does not read",
            hint=_sniff.one_file(folder),
        )
        parts = [item.path for item in _listed(folder) if item.name.endswith((".distcp", ".metadata"))]
        error.asked = tuple(unknown for path in parts for unknown in scan(path))
        return error
    return FormatError(
        f"{folder}: is a folder with 0 weights files and no index", hint="name the file or the index itself"
    )
