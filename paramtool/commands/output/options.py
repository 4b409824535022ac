"""What the commands that write a checkpoint can be told; each value is checked when the options are made.

WriteOptions        what all of them take
└── ObjectOptions   what becomes of objects: dedup, convert, fuse, unfuse
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from paramtool.commands.progress import Path
from paramtool.errors import UsageError, refuse_other
from paramtool.formats.safetensors import write as safetensors
from paramtool.formats.safetensors.write import ALIGN
from paramtool.lazy_dataclass import frozen
from paramtool.model import inflating

__all__ = ["ALIGN", "ObjectOptions", "WriteOptions", "keywords"]
Chosen = TypeVar("Chosen", bound="WriteOptions")
R = TypeVar("R")


@frozen(kw_only=True)
class WriteOptions:
    """What every command that writes takes.  UsageError for a value that no output can have."""

    weights: str | None = None
    """Of a folder with several sets of weights: the file or the index that is taken."""
    only: str | None = None
    """One section alone, its prefix stripped from the names."""
    max_shard_size: int | None = None
    """The maximum size of a shard in bytes; None writes shards where the input has them."""
    align: int = ALIGN
    """The alignment of the tensor data in a file, in bytes."""
    allow_class: Sequence[str] = ()
    """Classes that are allowed: exact names for calls, patterns for what only holds data."""
    allow_unknown: bool = False
    """Allow all unknown names; what they call is left out."""
    config: Path | None = None
    """The config of the model, in place of the config.json beside the input; `none` for none."""
    max_inflated: int | None = None
    """The most bytes that are inflated or calculated; None: 32 GB, or 16 times the bytes of the input's files."""
    verify: bool = True
    """Read the output back before it is moved to its place."""
    dry_run: bool = False
    """Report what would be written, and write nothing."""
    force: bool = False
    """Overwrite an earlier output."""

    def __post_init__(self) -> None:
        for field in fields(self):
            refuse_other(field.name, str(field.type), getattr(self, field.name))
        if self.max_shard_size is not None and self.max_shard_size < 1:
            raise UsageError(f"--max-shard-size is {self.max_shard_size}: a shard needs at least one byte")
        inflating.check(self.max_inflated)
        safetensors.check_align(self.align)


@frozen(kw_only=True)
class ObjectOptions(WriteOptions):
    """The options of commands whose outputs hold objects beside tensors."""

    skip_unsupported: bool = False
    """Leave out tensors and objects that the output has no form for."""
    plain: bool = False
    """Write the objects of a torch file as dicts, lists, numbers and strings."""
    strict: bool = False
    """Refuse to leave out objects that the output cannot hold."""


def keywords(kind: type[Chosen], fixed: Collection[str] = ()) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator: a function takes the fields of its `options` as keywords, too, except those that are `fixed`.

    They are in its signature, in front of `progress`; `paramtool/__init__.pyi` has them for editors and type checkers.
    Options without a default are made of the keywords alone.
    """

    def made(function: Callable[..., R]) -> Callable[..., R]:
        own = signature(function)
        names = {one.name: one for one in fields(kind) if one.name not in fixed}

        @wraps(function)
        def call(*args: Any, **given: Any) -> R:
            said = {name: given.pop(name) for name in [*given] if name in names}
            bound = own.bind_partial(*args, **given)
            bound.arguments["options"] = _chosen(kind, bound.arguments.get("options"), said)
            return function(*bound.args, **bound.kwargs)

        *first, progress = own.parameters.values()
        if own.parameters["options"].default is Parameter.empty:
            first = [one for one in first if one.name != "options"]
        else:
            first = [
                one.replace(default=None, annotation=f"{one.annotation} | None") if one.name == "options" else one
                for one in first
            ]
        first += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
            for name, one in names.items()
        ]
        call.__signature__ = own.replace(parameters=[*first, progress])  # type: ignore[attr-defined]
        return call

    return made


def _chosen(kind: type[Chosen], options: Chosen | None, said: Mapping[str, Any]) -> Chosen:
    """The options that a function was given: one by one in its keywords, or in one object; UsageError for both."""
    if not isinstance(options, (kind, type(None))):
        raise UsageError(
            f"options is {type(options).__name__}; expected {kind.__name__}", hint="or give the options as keywords"
        )
    if options is None:
        return kind(**said)
    usual = kind()
    twice = [name for name, value in said.items() if value not in (getattr(usual, name), getattr(options, name))]
    if twice:
        raise UsageError(f"{twice[0]} is given beside options; put it into the options, or give keywords alone")
    return options
