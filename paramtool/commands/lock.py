"""Writing a lock file: what checkpoints hold, as text for git."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from paramtool.commands.earlier_output import LOCK, inputs_of
from paramtool.commands.locked_model import LockReading, locked_model
from paramtool.commands.progress import Path, Progress, several, silent
from paramtool.errors import OutputError, UsageError, some
from paramtool.formats import OTHER_FORM, policy
from paramtool.formats.files import noted, watching
from paramtool.formats.judging import judging
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen
from paramtool.lockfile import write
from paramtool.lockfile.lock import NAME, LockedModel
from paramtool.lockfile.read import parse, read
from paramtool.model.config import reading
from paramtool.model.display import Displayed


@frozen(repr=False)
class Locked(Displayed):
    """What `lock` wrote."""

    output: str
    """The lock file; `-` where it was printed."""
    models: tuple[LockedModel, ...]
    """What was locked, a model for each path."""
    text: str
    """The lock file as text."""
    warnings: tuple[str, ...] = ()
    """What was done about the leftovers of runs that were killed, and what of a folder is not locked."""

    updated: tuple[str, ...] = ()
    """Those that the lock had already."""
    count: int = 0
    """How many models the lock has now."""

    _facts = "`models` and `warnings`"
    _schema = "lock/1"
    _members = "output models warnings"


@reading
@judging("paths")
@watching()
def lock(
    paths: Path | Sequence[Path] = (),
    output: Path = NAME,
    *,
    force: bool = False,
    remove: Sequence[Path] = (),
    headers: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Locked:
    """Write a lock file of checkpoints, files or folders; `output` is `-` for text that is returned and not written.

    The models of an existing lock stay, without those of `remove`; with `force` those that are given are updated.
    `headers` reads no tensor: such a lock says nothing about numbers.  OutputError where the lock has a model already,
    without `force`, and where the output is a file of another kind; UsageError where no path is given, or one twice,
    and where the lock has no model to remove; FormatError and UnsafeError as of `read`, and FormatError where the lock
    is damaged.
    """
    paths = several(paths)
    if not (paths or remove):
        raise UsageError("lock needs at least one checkpoint", hint="paramtool lock model.safetensors")
    where = os.fspath(output)
    reading = LockReading(headers, allow_class=policy.checked(allow_class), allow_unknown=allow_unknown)
    kept: dict[str, LockedModel] = {}
    if where != "-":
        LOCK.check(where, force=True, inputs=inputs_of(paths))
        if os.path.exists(where) and os.path.getsize(where):
            noted(where, os.stat(where))
            kept = {**read(where).models}
    names = [name_in(where, os.fspath(path)) for path in (*paths, *remove)]
    if twice := [os.fspath(path) for k, path in enumerate((*paths, *remove)) if names[k] in names[:k]]:
        raise UsageError(f"{twice[0]} is given twice")
    names, removed = names[: len(paths)], names[len(paths) :]
    if lacking := [name for name in removed if name not in kept]:
        raise UsageError(f"--remove {lacking[0]}: {where} has no such model", hint=f"it has {some([*kept], 3)}")
    if (held := [name for name in names if name in kept]) and not force:
        raise OutputError(f"{where}: has {some(held, 3)} already", hint="--force updates it, or choose another -o")
    models = {name: locked_model(path, name, reading, progress) for path, name in zip(paths, names, strict=True)}
    text = write.text((omit(kept, [*names, *removed]) | models).values())
    parse(text, where)  # what we could not read again is never written
    warnings: Sequence[str] = ()
    if where != "-":
        warnings = LOCK.write(where, text.encode(), force=force or bool(kept), inputs=inputs_of(paths))
    count = len({*kept, *models} - {*removed})
    return Locked(where, tuple(models.values()), text, (*warnings, *_not_locked(models)), tuple(held), count)


def _not_locked(models: Mapping[str, LockedModel]) -> Iterator[str]:
    """What of the models' folders no lock holds, in sentences."""
    for name, one in models.items():
        if one.unlocked:
            yield f"{name}: not locked: {some(one.unlocked, 3)}, the same tensors once more"
        if not one.tensors:
            yield f"{name}: holds no tensors, so no weights are locked"
        if one.without_data:
            yield f"{name}: not locked: the numbers of {some(one.without_data, 3)}, which the checkpoint does not have"
        if one.unreadable:
            yield f"{name}: not locked: the numbers of {some(one.unreadable, 3)}, which cannot be read"
        yield from (f"{name}: {note}" for note in one.left_out)
        if one.forms:
            yield f"{name}: not locked, and not compared: {some(one.forms, 3)}, which {OTHER_FORM}"


def name_in(lock_path: str, path: str) -> str:
    """What a lock file calls a checkpoint: its path from the folder of the lock, with `/`; as given where it is `-`."""
    if lock_path == "-":
        return os.path.normpath(path).replace(os.sep, "/")
    folder = os.path.dirname(os.path.abspath(lock_path))
    return os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
