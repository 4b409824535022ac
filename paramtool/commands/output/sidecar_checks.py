"""Refusals and warnings for an output folder: files that would be of no use, and names that programs will miss."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from shlex import quote

from paramtool.commands.output.sidecars import ACCELERATE, CONFIG, FSDP, MAX_NAMED, NOT_FOLLOWED, Sidecars
from paramtool.errors import PlanError, UnsafeError, plural, some
from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.table import suffixes
from paramtool.model.plan import Plan

ONE_FILE = {"adapter_model": "PEFT", "pytorch_lora_weights": "diffusers", "open_clip_model": "open_clip"}
"""Stems of weights whose library opens one file of that name, and no index: `load_peft_weights` in
utils/save_and_load.py of PEFT 0.21, `_best_guess_weight_name` in loaders/lora_base.py of diffusers 0.42, and
`download_pretrained_from_hf` in pretrained.py of open_clip 3.3."""


def link_warnings(found: Sidecars) -> Iterator[str]:
    """Links that did not come along: what opened the folder may miss what they lead to."""
    yield from (f"left out: {text}" for text in found.left if text.endswith(NOT_FOLLOWED))


def check_config(folder: str, found: Sidecars) -> None:
    """UnsafeError where the config of a model is a link that was not followed: the output would not open without it."""
    if why := next((text for text in found.left if text.startswith(f"file {CONFIG!r}: ")), ""):
        raise UnsafeError(
            f"{os.path.join(folder, CONFIG)}: {why.partition(': ')[2]}, and no program opens the output without it",
            hint="put the file itself into the folder; links to the folder of the weights, and into a hub's cache, are "
            "followed",
        )


def check_one_file(folder: str, stem: str, shards: bool) -> None:
    """PlanError where weights would become shards that their own library does not open."""
    if shards and (library := ONE_FILE.get(stem.rpartition("/")[2])):
        raise PlanError(
            f"{folder}: {library} opens {stem}.safetensors alone, and no shards of it",
            hint="take each folder alone, without --max-shard-size",
        )


def check_resumes(folder: str, read: Iterable[str], found: Sidecars, shards: bool) -> None:
    """PlanError where a run could not resume from the output of a folder; `shards` are more than the input has.

    What comes along is of no use where its library does not find the weights beside it.
    """
    names = [os.path.basename(path) for path in read]
    fsdp = next((name for name in names if FSDP.fullmatch(name)), None)
    if fsdp is not None:
        path = quote(os.path.join(folder, fsdp))
        raise PlanError(
            f"{folder}: accelerate finds the weights of this FSDP run as {fsdp} alone; beside safetensors it would not "
            "resume",
            hint=f"`paramtool dedup {path} -o FOLDER/{fsdp}` writes that file alone; copy the others beside it",
        )
    if shards and any(fnmatchcase(name, ACCELERATE) for name in found.files):
        raise PlanError(
            f"{folder}: accelerate's load_state opens weights of one file, and no shards; it would not resume",
            hint="dedup the folder alone, without --max-shard-size",
        )


def check_names(written: Iterable[str], files: Iterable[str], folder: str) -> None:
    """PlanError where one of the `files` that come along has the name of a file that is written."""
    names = {name.casefold(): name for name in files}
    for name in written:
        if other := names.get(name.casefold()):
            raise PlanError(
                f"{folder}: {other!r} would be copied over a file that the output writes: {name!r}",
                hint="move that file out of the folder, or name the weights file itself: then no others are copied",
            )


def other_weights(files: Iterable[str]) -> list[str]:
    """Those of the files that came along that have names of weights: copied as they are, not read, no smaller."""
    ends = suffixes()
    return [name for name in files if name.endswith(ends) and not is_training_state(name.rpartition("/")[2])]


def unseen_warnings(plan: Plan, target: str, tied: Iterable[str] = ()) -> Iterator[str]:
    """Names of an output folder that loaders without paramtool will miss.

    Tied names follow from the model's own tie, those of `tied` as well.  What is stored elsewhere because its bytes are
    equal, as a part or a transpose of another tensor, or is calculated, only the alias record knows.
    """
    found = {*tied, *(target.name for target in plan.targets)}
    relations = plan.relations()
    found |= {a.name for a in plan.aliases if a.evidence != "content" and relations[a.name] == "same"}
    unseen = [name for name in plan.order if name not in found]
    if unseen:
        mends = f"paramtool export {quote(target)} --all-names -o {quote(f'{target}.plain')}"
        are = "is" if len(unseen) == 1 else "are"
        yield (
            f"{len(unseen)} of {plural(len(plan.order), 'name')} {are} in the alias record only, which from_pretrained "
            f"does not read: {some(unseen, MAX_NAMED)}; with every name: {mends}"
        )
