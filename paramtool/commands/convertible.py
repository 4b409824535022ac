"""What `convert` says of a model that it copies as it is: its dialect, and those that it could be converted to."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from paramtool.model.checkpoint import Checkpoint


class Convertible(NamedTuple):
    """The dialect of a model, and the others that have its class."""

    dialect: str
    architecture: str
    targets: tuple[str, ...]


def convertible(checkpoint: Checkpoint) -> Convertible | None:
    """What the config beside a checkpoint and its names say; None where they do not say one dialect."""
    from paramtool import dialects
    from paramtool.commands.rearrangement import dialects_of, parts_source
    from paramtool.errors import ParamtoolError
    from paramtool.parts.config_facts import KnownModel

    found: list[str] = []
    with suppress(ParamtoolError):
        source = parts_source(checkpoint)
        found = dialects_of(source, KnownModel(source.config))
    if len(found) != 1 or not (which := dialects.architecture(source.config)):
        return None
    others = (name for name in dialects.TABLES if which in dialects.architectures_of(name))
    every = (dialects.HUB, dialects.MEMORY, *others)
    return Convertible(found[0], which, tuple(name for name in every if name != found[0]))
