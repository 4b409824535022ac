"""A folder in, a folder out: the files beside the weights come along, so that loaders open the output as the input.

    config.json, tokenizer.json, README.md, model.py, 1_Pooling/config.json ...    come along
    weights and indexes, other copies of the weights, what is hidden               stay, and are listed

What stays is a table, below.  Links are followed as far as a hub's cache needs it: to regular files of the folder
itself, or of the `blobs` of the cache that it is a snapshot of.  A link to anything else would carry a file out of
somewhere that nobody named.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from shlex import quote

from paramtool.errors import plural
from paramtool.formats import WEIGHTS
from paramtool.formats._sets import COPIES
from paramtool.formats._sniff import INDEX_SUFFIX
from paramtool.model.plan import Plan

OTHER_WEIGHTS = (
    ".gguf", ".ggml", ".msgpack", ".ot", ".distcp", ".npy.gz", ".pdparams", ".pdopt", ".pkl", ".pickle", ".pt2", ".pte",
    ".tflite", ".mlmodel", ".onnx_data", ".onnx.data", ".nemo", ".llamafile", ".engine", ".trt", ".mar",
)  # fmt: skip
"""How the names of weights end that are not read here."""
STAYS = (
    (
        "an index of weights",
        (f"*{INDEX_SUFFIX}", "*.safetensors.index.*.json", "*.bin.index.*.json", "*.ckpt.index", "*.ckpt.meta"),
    ),
    ("weights", (*(f"*{suffix}" for suffix in (*WEIGHTS, *OTHER_WEIGHTS)), "*.ckpt.data-*", "consolidated.*")),
)
"""(why, patterns of lower-case file names)"""
STAYING_FOLDERS = (
    (
        "another copy of the weights",
        COPIES,
    ),
    ("a checkpoint of its own", ("checkpoint-*", "global_step*")),
    ("what Python made of its modules", ("__pycache__",)),
)
"""(why, patterns of lower-case folder names)"""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Companions:
    """What comes along into an output folder, and what does not."""

    files: Mapping[str, str] = field(default_factory=dict)
    """{name in the output, with `/`: the regular file that it is a copy of}"""
    left: tuple[str, ...] = ()
    """What stays behind, each with the reason, for people."""


def companions(folder: str, read: Iterable[str], output: str) -> Companions:
    """The other files of an input folder; `read` are the files of its checkpoint, `output` is where it goes.

    OSError where the folder cannot be listed.
    """
    files: dict[str, str] = {}
    left: list[str] = []
    mine = {os.path.realpath(path) for path in read}
    away = os.path.realpath(output)
    reach = _reach(folder)
    parts = _parts(folder)
    hidden: list[str] = []
    waiting = [""]
    while waiting:
        place = waiting.pop()
        for item in sorted(os.scandir(os.path.join(folder, place)), key=lambda item: item.name):
            name = f"{place}/{item.name}" if place else item.name
            real = os.path.realpath(item.path)
            if real in mine or real == away:
                continue
            if item.name.startswith("."):
                hidden.append(name)
            elif item.is_dir(follow_symlinks=False):
                if why := _stays(item.name, STAYING_FOLDERS):
                    left.append(f"folder {name!r}: {why}")
                else:
                    waiting.append(name)
            elif why := _refusal(item, real, reach, name.rpartition("/")[0] in parts):
                left.append(f"file {name!r}: {why}")
            else:
                files[name] = real
    if hidden:
        left.append(f"hidden: {_some(hidden)}")
    return Companions(dict(sorted(files.items())), tuple(left))


def _refusal(item: os.DirEntry[str], real: str, reach: tuple[str, ...], part: bool) -> str:
    """Why a file stays, or nothing."""
    try:
        status = os.stat(real, follow_symlinks=False)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return "a link to a folder, not followed"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if item.is_symlink() and not any(real.startswith(os.path.join(root, "")) for root in reach):
        return "a link that leads out of the folder, not followed"
    return "" if part else _stays(item.name, STAYS)


def _stays(name: str, table: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Why a table keeps a name back, or nothing."""
    name = name.lower()
    return next((why for why, patterns in table if any(fnmatchcase(name, pattern) for pattern in patterns)), "")


def _reach(folder: str) -> tuple[str, ...]:
    """Where links may lead: into the folder itself, and into the blobs beside the snapshots of a hub's cache.

    `models--x--y/snapshots/REVISION/config.json -> ../../blobs/HASH` (huggingface_hub, "Understand caching").
    """
    real = os.path.realpath(folder)
    snapshots = os.path.dirname(real)
    if os.path.basename(snapshots) != "snapshots":
        return (real,)
    return (real, os.path.join(os.path.dirname(snapshots), "blobs"))


def _parts(folder: str) -> set[str]:
    """Folders inside whose weights are further layers and no copy: sentence-transformers' `modules.json` lists them."""
    try:
        with open(os.path.join(folder, "modules.json"), encoding="utf-8") as file:
            listed = json.load(file)
        return {item["path"].strip("/") for item in listed if item["path"].strip("/")}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return set()


def unseen_warnings(plan: Plan, target: str, tied: Iterable[str] = ()) -> Iterator[str]:
    """Names of an output folder that loaders without paramtool will miss.

    Tied names follow from the model's own tie, those of `tied` as well.  What stands elsewhere because its bytes are
    equal, as a part or a transpose of another tensor, or is calculated, only the alias record knows.
    """
    found = {*tied, *(target.name for target in plan.targets)}
    found |= {a.name for a in plan.aliases if a.evidence != "content" and a.relation == "same"}
    unseen = [name for name in plan.order if name not in found]
    if unseen:
        mends = f"paramtool export {quote(target)} --all-names -o {quote(f'{target}.plain')}"
        are = "is" if len(unseen) == 1 else "are"
        yield (
            f"{len(unseen)} of {plural(len(plan.order), 'name')} {are} in the alias record only, which from_pretrained "
            f"does not read: {_some(unseen)}; with every name: {mends}"
        )


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(map(repr, names[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
