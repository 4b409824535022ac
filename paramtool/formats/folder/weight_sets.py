"""Which sets of weights a folder holds: files, and indexes with their shards.

    model.safetensors, pytorch_model.bin        one set and a copy of it, if both hold the same tensors
    model.safetensors, model.fp16.safetensors   two sets: programs that open one do not open the other
    model.safetensors, model_1.safetensors      two sets: accelerate saves one for each model
    unet/..., vae/..., model_index.json         sets in subfolders: a pipeline
    optimizer.pt, scheduler.pt, rng_state.pth   not weights, by their names
    .metadata, __0_0.distcp                     one set, of torch.distributed.checkpoint
    model.safetensors, stats.pt                 one set, and a file that no library looks for, with other tensors
    model.safetensors, model.bin                one set, if model.bin holds no tensors, or more than tensors
    saved_model.pb, variables/variables.index   one set: TensorFlow's SavedModel
    checkpoint, ckpt-1.index, ckpt-2.index      one set, the bundle of TensorFlow that the state in `checkpoint` names

If sets differ, paramtool does not choose one: the user has to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from shlex import quote
from typing import NamedTuple

from paramtool.errors import FormatError, ParamtoolError, UsageError, leading, listed, plural, some
from paramtool.formats import sniff, strict_json
from paramtool.formats.files import names_in, unreadable
from paramtool.formats.folder import rank_files, roots
from paramtool.formats.folder.copies import compared, holds_more, holds_weights, is_main, is_something_else
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.folder.weight_names import (
    LINKED_PREFIX,
    Weights,
    WeightsCopy,
    WeightsName,
    index_parts,
    is_index_name,
    of_file,
)
from paramtool.formats.table import installed, suffixes
from paramtool.formats.tensorflow import names as bundles
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint

COPIES = ("onnx", "original", "openvino", "coreml", "gguf", "ggml", "tflite", "*.mlpackage")
"""Subfolders that hold the same weights for other programs; patterns of lower-case names."""
PIPELINE = "model_index.json"
"""The file that marks a folder as a diffusers pipeline: `config_name` in pipelines/pipeline_utils.py (0.42)."""
_SHARD = re.compile(r"(-\d+-of|-part)-\d+\.")
MAX_BESIDE = 8
"""How many other files of a folder the error of one names."""
MAX_DEPTH = 4
"""The deepest level of subfolders that are searched for sets."""

Read = Callable[[str], Checkpoint]


def only(folder: str, read: Read, choice: str | None = None) -> Weights:
    """The only set of weights of a folder, or the one that `choice` names.

    UsageError if several sets differ and none is chosen, if sets are in subfolders, or if `choice` is not a file of the
    folder; FormatError if there are no weights.
    """
    read = roots.through(read)
    if choice is not None:
        path = chosen(folder, choice)
        taken = rank_files.whole(Weights(path, read(path), of_file(path)), read)
        # For a chosen set: the files of the other weights of the folder, including shards; and files that are not
        # weights
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
            except ParamtoolError:  # it was not chosen, so it does not have to be allowed
                others += files
            else:
                files = list(dict.fromkeys([*files, *(file.path for file in other.checkpoint.files)]))
                (more if is_something_else(taken, other) else others).extend(files)
        return replace(taken, others=tuple(others), more=tuple(more))
    _refuse_models(folder)
    found, older = _without_older(folder, _files(folder))
    inside = inner(folder) if _is_pipeline(folder) else []
    grouped = _Grouped([], {}, None) if inside else _grouped(found, read)
    if inside := inside or _inner_of_root(folder, grouped.sets):
        raise _is_root(folder, [os.path.basename(path) for path in found], inside)
    if not grouped.sets:
        raise grouped.error or no_weights(folder)
    names = {one.path: list(one.checkpoint.entries) for one in grouped.sets}
    if error := without_index(folder, names):
        raise error
    if len(grouped.sets) > 1:
        sets = grouped.sets
        sets = list(sets)
        lines = [_line(folder, one, grouped.differences.get(one.path, "")) for one in sets]
        raise differing(folder, lines, os.path.relpath(sets[0].path, folder))
    one = grouped.sets[0]
    if left := roots.left_behind(one.checkpoint, one.path):
        one = replace(one, others=(*one.others, *left))
    return _noted(one, older) if older else one


def _without_older(folder: str, files: list[str]) -> tuple[list[str], list[str]]:
    """The weights of a folder without the bundles of TensorFlow that its state does not name as the latest; and those.

    `tf.train.latest_checkpoint` chooses in the same way.
    """
    latest = bundles.latest(folder)
    older = [path for path in files if latest in files and path.endswith(bundles.INDEX) and path != latest]
    return [path for path in files if path not in older], older


def _noted(one: Weights, older: Sequence[str]) -> Weights:
    """A set beside older ones, with a note that names them."""
    names = some([os.path.basename(path).removesuffix(bundles.INDEX) for path in older], 3)
    note = f"the file {bundles.STATE!r} names it as the latest of {len(older) + 1} checkpoints; not read: {names}"
    checkpoint = replace(one.checkpoint, notes=(*one.checkpoint.notes, note))
    others = [file for path in older for file in bundles.files(path)]
    return replace(one, checkpoint=checkpoint, others=(*one.others, *others))


def every(folder: str, read: Read) -> dict[str, list[Weights]]:
    """{subfolder, with `/`, or empty for the folder itself: its sets}.

    If a library looks for some of the files, the others are not sets.  FormatError if there are no weights.
    """
    read = roots.through(read)
    _refuse_models(folder)
    found: dict[str, list[Weights]] = {}
    error: ParamtoolError | None = None
    for place in ("", *inner(folder)):
        grouped = _grouped(_files(os.path.join(folder, place)), read)
        error = error or grouped.error
        if grouped.sets:
            found[place] = grouped.sets
    if not found:
        raise error or no_weights(folder)
    usual = {place: sets for place, sets in found.items() if any(one.name.is_usual for one in sets)}
    return usual or found


def _refuse_models(folder: str) -> None:
    """UsageError for a folder of accelerate's with FSDP that has several models."""
    if len(models := roots.models_inside(folder)) > 1:
        lines = [f"{name}/" for name in models]
        raise UsageError(
            listed(
                f"{folder}: holds {plural(len(models), 'model')}, each with weights sharded by FSDP; choose one:", lines
            ),
            hint=f"name its folder: {quote(os.path.join(folder, models[0]))}",
        )


def with_names(sets: Iterable[Weights]) -> list[Weights]:
    """Sets of one folder with unique output names: if two would have the same, one keeps the name of its file."""
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
    """The path of a file of a folder, given by its name in the folder or by its path; UsageError for any other."""
    inside = os.path.join(folder, choice)
    root = roots.weights_of(folder)
    if root is not None and os.path.normpath(inside) in (root, os.path.dirname(root)):
        return root
    path = inside if os.path.isfile(inside) else choice
    if os.path.isfile(path) and os.path.realpath(os.path.dirname(path) or ".") == os.path.realpath(folder):
        return os.path.join(folder, os.path.basename(path))
    names = ", ".join(os.path.basename(one) for one in _files(folder)) or "none"
    where = f"; {quote(os.path.dirname(path) or '.')} is another folder" if os.path.isfile(path) else ""
    raise UsageError(f"{folder}: has no file {choice!r} (--weights); its weights: {names}{where}")


def inner(folder: str) -> list[str]:
    """Subfolders that hold weights, with `/`; not those that hold a copy, are hidden, or are links."""
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
            if roots.step_of(item.path):
                found.append(name)
                continue
            if any(is_main(path) for path in _files(item.path)):
                found.append(name)
            if depth < MAX_DEPTH:
                waiting.append((name, depth + 1))
    return sorted(found)


# --- files -----------------------------------------------------------------------------------------------------


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        raise unreadable(folder, error) from None


def _files(folder: str) -> list[str]:
    """The indexes of a folder, and the weights that no index lists, best first; without training state.

    transformers looks for `model.safetensors`, its index, `pytorch_model.bin` and its index, in this order
    (`_get_resolved_checkpoint_files` in modeling_utils.py).
    """
    names = [item.name for item in _listed(folder) if not item.name.startswith(".")]
    indexes = [name for name in names if is_index(os.path.join(folder, name))]
    shards = {shard for name in indexes for shard in _shards(os.path.join(folder, name))}
    ends = suffixes()
    files = [n for n in names if n.endswith(ends) and n not in shards and not n.startswith(LINKED_PREFIX)]
    weights = [name for name in files if not is_training_state(name)]
    inside = bundles.in_model(folder)
    root = roots.root_of(folder)
    whole = [os.path.join(folder, root.weights)] if root and root.module else []
    own = [name for name in (*indexes, *weights) if not roots.is_part(root, name)]
    return [
        *[inside] * bool(inside),
        *whole,
        *(os.path.join(folder, name) for name in sorted(own, key=_order)),
    ]


def _order(name: str) -> tuple[object, ...]:
    index = index_parts(name)
    suffix = os.path.splitext(index[0] if index else name)[1]
    stray = index is None and _SHARD.search(name) is not None
    return (not is_main(name), stray, of_file(name).order[:2], suffix != ".safetensors", index is not None, name)


def is_index(path: str) -> bool:
    """Whether a file is an index of shards, or a damaged file with such a name; other indexes have no `weight_map`."""
    if not is_index_name(path):
        return False
    try:
        held, _ = strict_json.strict_file(path, "an index", strict_json.MAX_INDEX_NBYTES)
    except FormatError:
        return True
    return isinstance(held, dict) and "weight_map" in held


def _shards(path: str) -> set[str]:
    """The files that an index lists; none if it cannot be read, which is reported when it is read in full."""
    try:
        held, _ = strict_json.strict_file(path, "an index", strict_json.MAX_INDEX_NBYTES)
        return {name for name in held["weight_map"].values() if isinstance(name, str)}
    except (FormatError, LookupError, AttributeError, TypeError):
        return set()


# --- comparing -------------------------------------------------------------------------------------------------


@frozen
class _Grouped:
    """The sets of a folder, each with its copies."""

    sets: list[Weights]
    differences: dict[str, str]
    """{path of a set: how it differs from the first}"""
    error: ParamtoolError | None
    """The error of a file that cannot be read, if there is no set."""


def _grouped(files: Sequence[str], read: Read) -> _Grouped:
    """The sets of a folder.

    A file that a library looks for, or the whole folder, must be readable if there is no better one: its errors are
    raised.  Other files that cannot be read are not sets.  Files without weights are sets only if there are no others.
    """
    sets: list[Weights] = []
    differences: dict[str, str] = {}
    without: list[Weights] = []
    failed: ParamtoolError | None = None
    taken: set[str] = set()
    for path in files:  # a set can only be the copy of one that comes before it
        if path in taken:
            continue
        try:
            mine = rank_files.whole(Weights(path, read(path), of_file(path)), read)
        except ParamtoolError as error:
            is_best = of_file(path).is_usual and (is_main(path) or not os.path.basename(path))
            is_raised = (sets and _are_shards(sets[0].path, path)) or (not sets and is_best)
            if is_raised or failed is None:
                beside = leading([os.path.basename(one) for one in files if one != path], MAX_BESIDE)
                also = f"the folder also holds {beside}: name that file to read it" if beside else ""
                error.hint = "; ".join(text for text in (error.hint, also) if text)
            if is_raised:
                raise
            failed = failed or error
            continue
        taken.update(file.path for file in mine.checkpoint.files)
        if sets and _are_shards(sets[0].path, path):
            sets.append(mine)
            differences[path] = _without_index(sets[0])
        elif not holds_weights(mine.checkpoint):
            without.append(mine)
        elif sets and is_something_else(sets[0], mine):
            sets[0] = replace(sets[0], more=(*sets[0].more, path))
        elif not _take_as_copy(sets, mine, differences):
            sets.append(mine)
    if sets:
        sets[0] = replace(
            sets[0], more=(*sets[0].more, *(file.path for one in without for file in one.checkpoint.files))
        )
    elif without and not failed:
        first, *others = without
        shards = [one for one in others if _are_shards(first.path, one.path)]
        sets = [replace(first, more=tuple(one.path for one in others if one not in shards)), *shards]
        differences |= {one.path: _without_index(first) for one in shards}
    return _Grouped(sets, differences, failed)


def _are_shards(one: str, other: str) -> bool:
    """Whether two files, which no index lists, have names of shards of one set.

    Together they hold a set, however little of it is in each: a shard with only optimizer state is not a copy.
    """
    names = (os.path.basename(one), os.path.basename(other))
    return all(map(_SHARD.search, names)) and len({_SHARD.sub(".", name) for name in names}) == 1


def _without_index(first: Weights) -> str:
    """How a shard differs from the first one of its set, if no index says that they are one set."""
    return f"a shard like {os.path.basename(first.path)}, but no readable index lists them"


def _take_as_copy(sets: list[Weights], mine: Weights, differences: dict[str, str]) -> bool:
    """Add a set to the one of which it is a copy, if any; else note how it differs from the first set."""
    for k, one in enumerate(sets):
        pairs = compared(one, mine)
        if isinstance(pairs, str):
            differences.setdefault(mine.path, pairs)
            continue
        if holds_more(mine.checkpoint, one.checkpoint):
            sets[k] = replace(one, more=(*one.more, mine.path))
        else:
            sets[k] = replace(one, copies=(*one.copies, WeightsCopy(mine.path, mine.checkpoint, pairs)))
        differences.pop(mine.path, None)
        return True
    return False


# --- errors ----------------------------------------------------------------------------------------------------


def differing(folder: str, lines: list[str], first: str) -> UsageError:
    """The refusal of a folder with several sets of weights; a line for each, `first` is the name of one."""
    path = quote(os.path.join(folder, first))
    return UsageError(
        listed(f"{folder}: holds {len(lines)} sets of weights that differ; say which:", lines),
        hint=f"name the file itself: {path}; inspect, dedup, export, convert, fuse, unfuse and verify take one with "
        f"--weights {quote(first)}, and all of these but inspect take each under its own name with --each",
    )


def _line(folder: str, one: Weights, difference: str) -> str:
    count = plural(one.checkpoint.entries, "tensor")
    return f"{os.path.relpath(one.path, folder)}: {count}" + (f"; {difference}" if difference else "")


def _is_pipeline(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, PIPELINE))


def _inner_of_root(folder: str, sets: Iterable[Weights]) -> list[str]:
    """The subfolders that hold the weights, if the folder itself has none.

    Weights of the folder that no library looks for do not count if subfolders have others.
    """
    sets = list(sets)
    if any(one.name.is_usual for one in sets):
        return []
    inside = inner(folder)
    if not sets:
        return inside
    return [place for place in inside if any(map(_is_looked_for, _files(os.path.join(folder, place))))]


def _is_looked_for(path: str) -> bool:
    return is_main(path) and of_file(path).is_usual


def _is_root(folder: str, files: list[str], found: list[str]) -> UsageError:
    """The error for a folder whose weights are in subfolders."""
    lines = [*(f"{name}/" for name in found), *files]
    what = "is a pipeline, whose weights are" if _is_pipeline(folder) else "has its weights"
    return UsageError(
        listed(f"{folder}: {what} in {plural(len(found), 'subfolder')}; choose one:", lines),
        hint=f"name one: {quote(os.path.join(folder, found[0]))}; dedup, export, convert, fuse and unfuse write all of "
        "them, and the files beside them, with --each",
    )


# --- Shards whose names number them, in a folder without their index -------------------------------------------------
#
# model-00001-of-00003.safetensors, model-00003-of-00003.safetensors      the second of three is missing


_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)(\.[^.]+)")
MAX_COUNT = 10_000
"""The largest number of shards that names are believed to say."""


class _Numbered(NamedTuple):
    """What the names of shards have in common, and the numbers that are there."""

    stem: str
    end: str
    digits: int
    total: int
    present: frozenset[int]

    @property
    def index_name(self) -> str:
        """The file name of their index."""
        return f"{self.stem}{self.end}.index.json"

    def missing(self) -> list[str]:
        """The file names of the shards that are not there."""
        whole = f"{self.total:0{self.digits}d}"
        left = [number for number in range(1, self.total + 1) if number not in self.present]
        return [f"{self.stem}-{number:0{self.digits}d}-of-{whole}{self.end}" for number in left]


def without_index(folder: str, names: Mapping[str, Sequence[str]]) -> FormatError | None:
    """The error for a folder whose files are shards of one set, as they are numbered; None if they are not.

    `names` are the names of the tensors of each file, by its path.
    """
    found = _numbered(names)
    if found is None:
        return None
    is_there = os.path.lexists(os.path.join(folder, found.index_name))
    here = f"{folder}: has {len(found.present)} of {plural(found.total, 'shard')} and no index that lists them"
    if lacking := found.missing():
        lines = [*lacking, *[found.index_name] * (not is_there)]
        return FormatError(
            listed(f"{here}; missing:", lines), hint=f"copy or download {'it' if len(lines) == 1 else 'them'} again"
        )
    if twice := _twice(names):
        is_in = f"{plural(len(twice), 'tensor is', 'tensors are')} in two of them: {some(twice, 3)}"
        return FormatError(f"{here}; {is_in}", hint=f"they are of several saves; {_fetch(found)}")
    return FormatError(
        f"{here}: {found.index_name} is missing" if not is_there else f"{here}: {found.index_name} has no `weight_map`",
        hint=f'{_fetch(found)}, or write it: {{"metadata": {{}}, "weight_map": {{"TENSOR": "SHARD", ...}}}} with every '
        "tensor and the file that it is in; the path of a shard reads that shard alone",
    )


def _numbered(paths: Mapping[str, object]) -> _Numbered | None:
    """What the names of all these files say; None if they are not shards of one set."""
    matches = [_NUMBERED.fullmatch(os.path.basename(path)) for path in paths]
    parts = [match.groups() for match in matches if match is not None]
    if len(parts) != len(matches) or len({(stem, count, end) for stem, _, count, end in parts}) != 1:
        return None
    stem, _, count, end = parts[0]
    present = frozenset(int(number) for _, number, _, _ in parts)
    total = int(count)
    if len(present) < len(parts) or min(present) < 1 or max(present) > total or not 1 < total <= MAX_COUNT:
        return None
    return _Numbered(stem, end, len(count), total, present)


def _twice(names: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors that are in two files."""
    seen: set[str] = set()
    found: dict[str, None] = {}
    for held in names.values():
        found.update(dict.fromkeys(name for name in held if name in seen))
        seen.update(held)
    return list(found)


def _fetch(found: _Numbered) -> str:
    return f"copy or download {found.index_name} again"


# --- The error for a folder in which no weights can be read: what it has in their place, or what was looked for -------


METADATA = ".metadata"
LOOKED_FOR = "model.safetensors, pytorch_model.bin, *.index.json, *.pt, *.h5, .metadata with *.distcp, and the like"
"""Names of weights, as a message has them."""


def no_weights(folder: str) -> FormatError:
    """A folder without weights that can be read."""
    from paramtool.formats import foreign

    names = names_in(folder)
    if os.path.isfile(os.path.join(folder, METADATA)) and (found := _without_parts(folder)):
        return found
    if any(name.endswith(sniff.DISTRIBUTED) for name in names):
        return FormatError(
            f"{folder}: has files of torch.distributed.checkpoint and no `.metadata`, which says what is in them",
            hint="copy the whole folder; if the save did not end, there is no checkpoint in it",
        )
    if other := foreign.folder(names):
        return FormatError(f"{folder}: is {other.what}", hint=other.hint)
    if kept := roots.lost(folder):
        return FormatError(f"{folder}: {kept}", hint="copy the whole folder, or name the folder of a step")
    what = "is a folder without weights files and without an index" if names else "is an empty folder"
    hints = (f"looked for {LOOKED_FOR}; name the file itself if it has another name", *installed().broken)
    return FormatError(f"{folder}: {what}", hint="; ".join(hints))


def _without_parts(folder: str) -> FormatError | None:
    """The error for a folder of torch.distributed.checkpoint that lacks all files with the parts of tensors."""
    from paramtool.formats.dcp import read

    try:
        read.read(folder)
    except FormatError as failed:
        failed.hint = failed.hint or "copy the whole folder: `.metadata` says which tensors there are, without values"
        return failed
    return None
