"""Layouts as they can be listed, those of one's own included."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from paramtool import dialects
from paramtool import layouts as known
from paramtool.commands.progress import Path
from paramtool.errors import NoSuchFileError, ParamtoolError, UsageError
from paramtool.formats import table
from paramtool.layouts import evidence
from paramtool.layouts.layout import Layout
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts.layout import PartLayout, all_part_layouts, find_part_layout

if TYPE_CHECKING:
    from paramtool.commands.relayout_options import RelayoutOptions
    from paramtool.dialects.template import DialectTable
    from paramtool.layouts.evidence import Record
    from paramtool.layouts.own import TypesTable

MAX_LAYOUT_FILE_NBYTES = 1 << 20


@frozen
class ListedLayout:
    """A layout of recurrent networks, and the evidence for it."""

    layout: Layout
    _members = (
        "name=layout.name title=layout.title holds=layout.holds separator=layout.separator "
        "directions=layout.max_directions always_biases=layout.always_biases unsaid=layout.assumed "
        "must_say=layout.required options=layout.options(name default what shown values) "
        "forms=layout.forms(kind gates reset when says tensors(name content along)) source=layout.source proof gpu "
        "note=layout.note"
    )

    @property
    def proof(self) -> tuple[str, ...]:
        """All evidence."""
        return evidence.evidence(self.layout)

    @property
    def gpu(self) -> GpuProof | None:
        """What GPUs and their libraries said; None for a layout that does not involve them."""
        return GpuProof(self.layout) if self.layout.gpu else None


@frozen
class GpuProof:
    """What is known of a layout on GPUs."""

    layout: Layout
    _members = "verified records(name date on_gpu=is_of_a_gpu machine)"

    @property
    def verified(self) -> str:
        """Whether it was verified on one."""
        return evidence.on_gpu(self.layout)

    @property
    def records(self) -> Iterator[Record]:
        """The records that prove it."""
        return evidence.speaking(self.layout)


@frozen
class EveryLayout:
    """Layouts of all kinds, and dialects."""

    networks: tuple[Layout, ...] = ()
    """Of recurrent networks."""
    parts: tuple[PartLayout, ...] = ()
    """Of attention, gated MLPs and experts."""
    dialects: tuple[DialectTable, ...] = ()
    _schema = "layouts/2"
    _members = "layouts parts dialects(name title version models layouts refused notes)"

    def layouts(self) -> Iterator[ListedLayout]:
        """Those of recurrent networks, with the evidence for them."""
        return map(ListedLayout, self.networks)

    def names(self) -> Iterator[str]:
        """Their names, in the order of the documents."""
        yield from (one.name for one in self.networks)
        yield from (one.name for one in self.parts)
        yield from (one.name for one in self.dialects)


def every_layout(name: str | None = None, *, layout_files: Iterable[Path] = ()) -> EveryLayout:
    """All layouts and dialects, or the ones called `name`; UsageError where there is none of that name."""
    register_files(layout_files)
    if name is None:
        return EveryLayout(tuple(known.all_layouts()), all_part_layouts(), tuple(map(dialects.table, dialects.NAMES)))
    part = find_part_layout(name)
    if part is not None:
        return EveryLayout(parts=(part,))
    if name in dialects.NAMES:
        return EveryLayout(dialects=(dialects.table(name),))
    check_moves(name)
    return EveryLayout((known.find(name, of_parts()),))


CHANGES_VALUES = {
    "zero-centred-norm": "weights of norms minus 1", "zero-centered-norm": "weights of norms minus 1",
    "norm-plus-one": "weights of norms plus 1", "a-log": "the logarithm of A",
    "neg-exp-a-log": "minus the exponential of A_log",
    "batchnorm-folded": "a batch norm folded into a weight", "folded-batchnorm": "a batch norm folded into a weight",
    "fold-batchnorm": "a batch norm folded into a weight",
}  # fmt: skip
"""{what somebody could ask for as a layout: what it does to values}"""


def check_moves(name: str) -> None:
    """UsageError for what changes values, so that going back would not give the same bytes, and for a format."""
    suffix = f".{name.lower().lstrip('.').replace('llama.cpp', 'gguf')}"
    is_name = name in known.built_in() or name.lower() in known.OF_MODELS
    if suffix in (".dcp", *table.WRITTEN, *table.NOT_WRITTEN) and not is_name:
        hint = f"paramtool writes {', '.join(table.WRITTEN)}, by the suffix of -o"
        if suffix in table.WRITTEN:
            hint = f"-o NAME{suffix} writes one, with convert, dedup or export"
        elif suffix == ".dcp":
            hint = "--format dcp writes a folder in it"
        raise UsageError(f"{name} is a format, and neither a layout nor a dialect", hint)
    if what := CHANGES_VALUES.get(name.lower().replace("_", "-")):
        raise UsageError(
            f"{name} is no layout: it changes values ({what}), and rounding loses some of them",
            hint="a layout moves elements and keeps their bits; change values with the program that needs it",
        )


def of_parts() -> tuple[str, ...]:
    """The names of layouts of parts and of dialects, which flags take beside those of recurrent networks."""
    return (*(one.name for one in all_part_layouts()), *dialects.NAMES)


def check_no_dialect(command: str, options: RelayoutOptions) -> None:
    """UsageError if `fuse` or `unfuse` is given a dialect for a layout."""
    flags = ("--from", "--layout") if command == "fuse" else ("--layout", "--to")
    for flag, way, name in zip(flags, ("--from", "--to"), (options.source, options.target), strict=True):
        if name in dialects.NAMES:
            back = dialects.MEMORY if name == dialects.HUB else dialects.HUB
            rest = f" --to {back}" if way == "--from" else ""
            raise UsageError(
                f"{flag} {name}: is a dialect, the names and forms of all tensors of a model; {command} takes a layout",
                hint=f"paramtool convert SRC {way} {name}{rest} -o DST",
            )


def types_of(paths: Iterable[Path]) -> tuple[TypesTable, ...]:
    """The tables `[types]` of TOML files, in order; UsageError says what is wrong with one."""
    from paramtool.layouts import own

    tables = (own.types_from_toml(_text(os.fspath(path)), os.fspath(path)) for path in paths)
    return tuple(table for table in tables if table is not None)


def register_files(paths: Iterable[Path]) -> None:
    """Make the layouts of TOML files known; UsageError or LayoutError says what is wrong with one."""
    for path in paths:
        from paramtool.layouts import own

        where = os.fspath(path)
        for layout in own.from_toml(_text(where), where):
            own.add_checked(layout, f"{where}: ")


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_LAYOUT_FILE_NBYTES + 1)
    except FileNotFoundError:
        raise NoSuchFileError(path, "cannot be read: No such file or directory") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_LAYOUT_FILE_NBYTES:
        raise UsageError(f"{path}: has more than {MAX_LAYOUT_FILE_NBYTES} bytes; a layout is a page of text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text: byte {error.start} is invalid") from None


# --- What `convert` says of a model that it copies as it is: its dialect, and those that it could be converted to -----


class Convertible(NamedTuple):
    """The dialect of a model, and the others that have its class."""

    dialect: str
    architecture: str
    targets: tuple[str, ...]


def convertible(checkpoint: Checkpoint) -> Convertible | None:
    """What the config beside a checkpoint and its names say; None where they do not say one dialect."""
    from paramtool.commands.rearrangement import dialects_of, parts_source
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
