"""A folder in, a folder out: the files beside the weights come along, so that loaders open the output as the input.

    config.json, tokenizer.json, modeling_x.py, 1_Pooling/config.json ...                        come along
    optimizer.pt, rng_state.pth, training_args.bin, random_states_0.pkl, german/adapter_model.bin  come along
    original/params.json, onnx/tokenizer.json                                                    come along
    the weights that were read, and the same weights in other formats                            stay, and are listed
    other checkpoints of the training, hidden files                                              stay, and are listed

Everything comes along but what is named here, because what a training resumes from is called as weights are
(`optimizer.bin`, `rng_state.pth`).  A file holds the same weights if it was compared (formats/folder/weight_sets.py),
or, where it cannot be read, if its name says so: it is beside the weights that were read, with their stem (`model` of
`model.msgpack`) or with another under which libraries look for the same model (`tf_model.h5`).

Links are followed to regular files of the folder itself, of the `blobs` of the hub's cache that it is a snapshot of,
and of the folders in which the weights are that links lead to.  A link to anything else would carry a file out of
somewhere that nobody named.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase

from paramtool.commands.progress import Progress
from paramtool.engine.write.staging import Staged
from paramtool.engine.write.writer import copy_whole
from paramtool.errors import FormatError, plural, some
from paramtool.formats.files import unreadable
from paramtool.formats.folder.copies import INDEX, MAIN, SAME_SUFFIXES, SHARD, STEMS, VARIANT, stem, stems
from paramtool.formats.folder.training_files import is_of_training, is_training_state, optimizer_of
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.folder.weight_sets import COPIES, is_index
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen

COPY = "another copy of the weights"
PACKAGES = ("*.mlpackage", "*.mlmodelc")
"""Folders that are one file to the program that opens them."""
CHECKPOINTS = ("checkpoint-*", "checkpoint_[0-9]*", "global_step*")
"""How a training calls the folders of its checkpoints; one without weights or the state of a training is none."""
CACHES = ("__pycache__",)
"""What Python makes of its modules."""
LATEST = "latest"
"""DeepSpeed's file with the name of the folder that it resumes from (`load_checkpoint` of its runtime/engine.py)."""
HIDDEN_DATA = (".metadata", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
"""Hidden files without which others cannot be read: those of torch.distributed.checkpoint (filesystem.py of torch 2.13,
`_metadata_fn`) and of Zarr, version 2 of its format."""
ACCELERATE = "random_states_*.pkl"
"""What accelerate's `save_state` writes for each process (checkpointing.py of 1.15)."""
FSDP = re.compile(r"pytorch_model_fsdp(_\d+)?(_rank\d+)?\.bin")
"""The one name under which accelerate looks for FSDP's whole model (utils/fsdp_utils.py of 1.15, `load_fsdp_model`)."""
NOT_CHOSEN = "other weights than those that --weights takes"
UNNAMED = "the .metadata beside it names no tensor in it, as of a rank of another save"
RANK = ".distcp"
"""How the files of the ranks of torch.distributed.checkpoint end."""
TWIN = "the same weights once more"
NOT_FOLLOWED = "not followed"
CONFIG = "config.json"
MORE = ""
"""Called as weights are, and something else."""
MAX_NAMED = 5
Sets = Mapping[str, list[Weights]]
"""{folder inside, with `/`, or empty for the folder itself: its sets of weights}"""


@frozen
class Sidecars:
    """What comes along into an output folder, and what does not."""

    files: Mapping[str, str] = field(default_factory=dict)
    """{name in the output, with `/`: the regular file that it is a copy of}: all of them, whole, never opened."""
    left: tuple[str, ...] = ()
    """What stays behind, each with the reason, for people."""
    same: Mapping[str, str] = field(default_factory=dict)
    """{name: file} of what stays because it is the weights that were read, by its name or because it was compared."""
    states: tuple[str, ...] = ()
    """Files and folders of a training that stay because the output is one file."""


def sidecars_of(
    folder: str,
    read: Iterable[str],
    output: str,
    twins: Iterable[str] = (),
    *,
    others: Iterable[str] = (),
    more: Iterable[str] = (),
) -> Sidecars:
    """The other files of an input folder; `read` are the files of its checkpoint, `output` is where it goes.

    `twins` are files that hold the same once more, as comparing showed, `others` weights that were not chosen, and
    `more` files that are only called as weights are.
    The one place where it is decided what comes along.  OSError where the folder cannot be listed.
    """
    settled = ((more, MORE), (others, NOT_CHOSEN), (twins, TWIN))
    known = {os.path.abspath(path): why for paths, why in settled for path in paths}
    read = [*read]
    if any(path.endswith(RANK) for path in read):
        known |= {path: UNNAMED for path in known if path.endswith(RANK)}
        # FormatError for files of ranks, with content, that `.metadata` does not name: torch writes over an older
        # save.
        # A rank without anything to save writes an empty file.
        paths = [path for path, why in known.items() if why == UNNAMED]
        names = sorted(os.path.basename(path) for path in paths if os.path.getsize(path))
        if names:
            raise FormatError(
                f"{folder}: {plural(len(names), 'file')} of another save: .metadata names no tensor in "
                f"{some(names, MAX_NAMED)}; expected the files of one save",
                hint="move them out of the folder, if the save that .metadata describes is the one that is wanted",
            )
    found = _FolderFiles(folder, read, output, known)
    waiting = [""]
    while waiting:
        place = waiting.pop()
        items = sorted(os.scandir(os.path.join(folder, place)), key=lambda item: item.name)
        waiting += [name for item in items if (name := found.add(item, place))]
    found.left += (f"in folder {place!r}: {COPY}: {some(names, MAX_NAMED)}" for place, names in found.copies.items())
    if found.hidden:
        found.left.append(f"hidden: {some(found.hidden, MAX_NAMED)}")
    return Sidecars(dict(sorted(found.files.items())), tuple(found.left), found.same)


def without_training(found: Sidecars) -> Sidecars:
    """What comes along beside a model alone, without the state of its training."""
    kept = {name: file for name, file in found.files.items() if not is_of_training(name)}
    gone = [name for name in found.files if name not in kept]
    left = [f"of the training: {some(gone, MAX_NAMED)}"] if gone else []
    return replace(found, files=kept, left=(*found.left, *left))


def without_state(found: Sidecars) -> Sidecars:
    """What comes along beside parameters that are not those of the input: no optimizer and no schedule of the old."""
    gone = [name for name in found.files if _is_of_parameters(name)]
    kept = omit(found.files, gone)
    left = (f"file {name!r}: it is of the parameters of the input, and the output has others" for name in gone)
    return replace(found, files=kept, left=(*found.left, *left))


def _is_of_parameters(name: str) -> bool:
    file = name.rpartition("/")[2]
    is_state = is_training_state(file) and any(word in file for word in ("optim", "scheduler"))
    return is_state or bool(optimizer_of(name))


def of_file(folder: str, read: Iterable[str]) -> Sidecars:
    """What a folder with weights keeps to itself where a file is made of it: the state of a training beside them.

    `read` are the files of its checkpoint.  OSError where the folder cannot be listed.
    """
    known = [os.path.abspath(path) for path in read]
    top = os.path.abspath(folder)
    found = []
    for name in sorted(os.listdir(folder)):
        place = os.path.join(top, name)
        if any(one == place or one.startswith(place + os.sep) for one in known):
            continue
        if is_training_state(name) or optimizer_of(name) or optimizer_of(f"{name}/x"):
            found.append(name)
    left = (f"file {name!r}: the output is one file, and the state stays" for name in found)
    return Sidecars(left=tuple(left), states=tuple(found))


def of_place(folder: str, place: str, sets: Sets, output: str) -> Sidecars:
    """The files that come along from one place of a folder with several, without those of the places inside it."""
    prefix = f"{place}/" if place else ""
    mine = sets.get(place, [])
    read = [file.path for one in mine for file in one.checkpoint.files]
    inside = [os.path.join(folder, other) for other in sets if other != place and other.startswith(prefix)]
    return sidecars_of(
        os.path.join(folder, place) if place else folder,
        [*read, *inside],
        output,
        [path for one in mine for path in one.twins],
        others=[path for one in mine for path in one.others],
        more=[path for one in mine for path in one.more],
    )


class _FolderFiles:
    """What is found in a folder, one item after the other."""

    def __init__(self, folder: str, read: list[str], output: str, known: Mapping[str, str]) -> None:
        self.files: dict[str, str] = {}
        self.left: list[str] = []
        self.same: dict[str, str] = {}
        self.hidden: list[str] = []
        self.copies: dict[str, list[str]] = {}
        """{folder of exports: names of the weights in it}"""
        self._skipped = {os.path.abspath(path) for path in (*read, output)} | {os.path.realpath(output)}
        self._real = set(map(os.path.realpath, self._skipped))
        self._is_beside = any(os.path.dirname(path) == os.path.abspath(folder) for path in self._skipped)
        """Whether the weights that are read are in the folder itself."""
        self._stems = stems(read)
        self._known = known
        self._reach = _reach(folder)
        self._beside = {
            os.path.dirname(real) for one in read if os.path.islink(one) for real in [os.path.realpath(one)]
        }
        """Where weights are that links lead to: files just there are followed, too."""

    def add(self, item: os.DirEntry[str], place: str) -> str:
        """Take in one item of the folder `place`; its name where it is a folder to look into, else nothing."""
        name = f"{place}/{item.name}" if place else item.name
        path, real = os.path.abspath(item.path), os.path.realpath(item.path)
        if path in self._skipped or (real in self._skipped and not item.is_symlink()):
            return ""
        if item.name.startswith(".") and item.name not in HIDDEN_DATA:
            self.hidden.append(name)
        elif item.is_dir(follow_symlinks=False):
            if self._is_read_from(path) or not (why := self._folder_stays(item, place)):
                return name
            self.left.append(f"folder {name!r}: {why}")
        elif why := _refusal(item, real, self._reach, self._beside):
            self.left.append(f"file {name!r}: {why}")
        elif self._is_beside and _is_of_exports(_top(place)) and is_export(item.name):
            self.copies.setdefault(_top(place), []).append(name)
        elif why := self._known[path] if path in self._known else "" if place else self._named_as_weights(name, path):
            self.left.append(f"file {name!r}: {why}")
            if why not in (NOT_CHOSEN, UNNAMED):
                self.same[name] = real
        else:
            self.files[name] = real
        return ""

    def _named_as_weights(self, name: str, path: str) -> str:
        """Why a file beside the weights stays by its name alone, or nothing; also a link to weights that are read."""
        if os.path.realpath(path) in self._real:
            return TWIN
        return "" if re.search(INDEX, name.lower()) and not is_index(path) else same_weights(name, self._stems)

    def _folder_stays(self, item: os.DirEntry[str], place: str) -> str:
        """Why a folder stays, or nothing."""
        if is_any(item.name, CACHES):
            return "what Python made of its modules"
        if self._is_beside and is_any(item.name, PACKAGES) and (not place or _is_of_exports(_top(place))):
            return COPY
        is_checkpoint = is_any(item.name, CHECKPOINTS) and item.name != _latest(os.path.dirname(item.path))
        return "a checkpoint of its own" if is_checkpoint and _holds_state(item.path) else ""

    def _is_read_from(self, folder: str) -> bool:
        """Whether something inside a folder is read: then it is no other checkpoint."""
        return any(path.startswith(os.path.join(folder, "")) for path in self._skipped)


def _top(place: str) -> str:
    """The first folder of a path with `/`."""
    return place.partition("/")[0]


def _holds_state(folder: str) -> bool:
    """Whether a folder, or one inside, has files with names of weights or of a training's state."""
    files = (name for _, _, names in os.walk(folder) for name in names)
    return any(name.lower().endswith((*SAME_SUFFIXES, ".distcp")) or is_training_state(name) for name in files)


def _is_of_exports(top: str) -> bool:
    return bool(top) and is_any(top, COPIES)


def _latest(folder: str) -> str:
    """The folder inside that DeepSpeed resumes from, if any: part of this checkpoint, and none of its own."""
    try:
        with open(os.path.join(folder, LATEST), encoding="utf-8") as file:
            return file.read(256).strip()
    except (OSError, ValueError):
        return ""


def _refusal(item: os.DirEntry[str], real: str, reach: tuple[str, ...], beside: Container[str]) -> str:
    """Why a file cannot be taken along, or nothing; FormatError where the system does not say what it is."""
    try:
        status = os.stat(real, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise unreadable(item.path, error) from None
        return f"cannot be read: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return f"a link to a folder, {NOT_FOLLOWED}"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    *_, repository, blobs, _ = ["", "", *real.split(os.sep)]
    is_near = (blobs == "blobs" and repository.startswith("models--")) or os.path.dirname(real) in beside
    if item.is_symlink() and not (is_near or any(real.startswith(os.path.join(root, "")) for root in reach)):
        return f"a link that leads out of the folder, {NOT_FOLLOWED}"
    return ""


def bring(staged: Staged, files: Mapping[str, str], progress: Progress) -> None:
    """Copy what comes along into an output in the making; optimizers can be larger than the weights.

    FormatError where a file cannot be read, OutputError where the disk refuses.
    """
    if files:
        with progress("copy", sum(map(_nbytes, files.values()))) as advance:
            copy_whole(staged, files, advance)


def _nbytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0  # copying says why


def _reach(folder: str) -> tuple[str, ...]:
    """Where links may lead: into the folder itself, and into the blobs beside the snapshots of a hub's cache.

    `models--x--y/snapshots/REVISION/config.json -> ../../blobs/HASH` (huggingface_hub, "Understand caching").
    """
    real = os.path.realpath(folder)
    snapshots = os.path.dirname(real)
    if os.path.basename(snapshots) != "snapshots":
        return (real,)
    return (real, os.path.join(os.path.dirname(snapshots), "blobs"))


# --- Names that show that a file beside weights holds the same weights again -----------------------------------------


EXPORTS = (
    (
        "the weights as another program takes them",
        (
            "*.gguf", "*.ggml", "*.llamafile", "*.tflite", "*.mlmodel", "*.pte", "*.pt2", "*.engine", "*.trt", "*.mar",
            "*.nemo",
        ),
    ),
    (
        "the weights as ONNX",  # the names of optimum's exports
        ("model.onnx*", "model_*.onnx*", "encoder_model*.onnx*", "decoder_model*.onnx*", "decoder_with_past_*.onnx*"),
    ),
    ("the weights as OpenVINO takes them", ("openvino_*model*.bin", "openvino_*model*.xml")),
    ("the weights as TensorFlow saves them", ("*.ckpt*.index", "*.ckpt*.meta", "*.data-?????-of-?????")),
)  # fmt: skip
"""(why it stays, patterns of lower-case file names); looked for beside the weights only, not in folders inside."""
EXPORT_DATA = ("*.onnx", "*.onnx_data*", "*.onnx.data")
"""What holds weights in the folders of exports, whatever it is called; patterns of lower-case file names."""


def is_export(name: str) -> bool:
    """Whether a file in a folder of exports holds the weights there, as its name says.

    The stems are those of models: `original/consolidated.00.pth` is one, and `onnx/calibration.npz` is something else.
    """
    return any(stem(name) in group for group in STEMS) or bool(_matched(name, EXPORTS)) or is_any(name, EXPORT_DATA)


def is_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of some patterns of lower-case names."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def same_weights(name: str, stems: Iterable[str]) -> str:
    """Why a file beside weights of these stems is the same weights once more; nothing where it is something else.

    `model.optim.pt` is something else: a name of weights has no more than a number or a variant behind its stem.

    >>> same_weights("flax_model.msgpack", {"model", "flax_model"})
    'the same weights in another format or variant, by its name'
    >>> same_weights("optimizer.bin", {"model"}), same_weights("model_1.safetensors", {"model"})
    ('', '')
    """
    if stem(name) not in stems:
        return _matched(name, EXPORTS)
    if name.lower().endswith(MAIN) and not re.search(SHARD, name) and not _is_plain(name):
        return ""
    return (
        "an index of the same weights, by its name"
        if re.search(INDEX, name.lower())
        else "the same weights in another format or variant, by its name"
    )


def _is_plain(name: str) -> bool:
    """Whether a name has nothing between its stem and its suffix but a number or the name of a variant.

    >>> [_is_plain(name) for name in ("model.bin", "model.fp16.safetensors", "consolidated.00.pth", "model.optim.pt")]
    [True, True, True, False]
    """
    _, *between, _ = name.lower().split(".")
    return len(between) < 2 and all(re.fullmatch(VARIANT, word) for word in between)


def _matched(name: str, table: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Why a table keeps a name back, or nothing."""
    return next((why for why, patterns in table if is_any(name, patterns)), "")
