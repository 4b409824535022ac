"""Writing exactly the file that one variant wants, for programs without paramtool.

What is asked for is worked out in this order: one section of the file; the names with a prefix, without it; the rules
that rename; and of those names the ones that are wanted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace

from paramtool.commands import adapter_config, copied_state
from paramtool.commands._export_part import (
    ExportedPart,
    check_shapes,
    is_other_model,
    metadata_of,
    missing_names,
    part_with,
    stored_apart,
)
from paramtool.commands._export_request import ExportRequest, wanted_names
from paramtool.commands.opening import Each, each, opened
from paramtool.commands.output import unsafe_sidecars
from paramtool.commands.output.destination import FOLDER_FORMATS, Destination, place
from paramtool.commands.output.losses import name_warnings
from paramtool.commands.output.options import ALIGN, WriteOptions, chosen
from paramtool.commands.output.report import CheckpointReport
from paramtool.commands.output.sidecars import without_state
from paramtool.commands.output.write import Work, done, laid_out
from paramtool.commands.output.writers import SAFETENSORS
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.sizes import MAX_EXPANDED_NBYTES
from paramtool.errors import PlanError, UsageError, plural, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.hf_config import NAME
from paramtool.formats.object_tree import is_flat
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.display import Row, few, size, some_rows
from paramtool.model.inflating import limiting
from paramtool.model.plan import Plan, check
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.renaming import RenamingRule


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exported(CheckpointReport):
    """What `export` wrote, or would write."""

    names: tuple[str, ...]
    """The names in the output, in its order."""
    nbytes: int
    """The weights of the output, without the other files of a folder."""
    like_section: str | None = None
    """The section of the other checkpoint whose names these are; None where it is no section's."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """{name in the output: name in the input}, where they differ."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """{name that the input lacks: the name in it that it is tied to}"""

    def _rows(self, most: int) -> Iterator[Row]:
        """From where to where, and the names."""
        yield "input", self.input
        yield "output", f"{self.output} ({self._outcome()})"
        yield "names", f"{plural(len(self.names), 'name')} of {size(self.nbytes)}: {few(self.names)}"
        yield from some_rows(most, "renamed", (f"{old} -> {new}" for new, old in self.renamed.items()))
        yield from some_rows(most, "left out", self.left_out)
        yield from some_rows(most, "warning", self.warnings, what="warnings")


AS_SAVED = (
    "the names are those that save_pretrained gives them, as in the input: from_pretrained turns them into the model's "
    "own, other loaders do not"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(WriteOptions):
    """How `export` goes about it."""

    like_only: str | None = None
    """The section of `like` whose names are wanted."""
    prefix: str = ""
    """The names that begin so, without it."""
    rename: Sequence[str | RenamingRule] = ()
    """Rules such as `*.gamma=*.weight`, applied in this order."""
    ties: Mapping[str, str] | None = None
    """{wanted name: the first of the names that are one tensor}: one that the file lacks is written from another."""
    max_bytes: int = MAX_EXPANDED_NBYTES
    """What one expanded tensor may grow to: one element, or a few rows, that stand for many."""
    format: str | None = None
    """The format of an output folder: `safetensors` or `dcp`.  None: safetensors."""

    def __post_init__(self) -> None:
        WriteOptions.__post_init__(self)
        if self.max_bytes < 0:
            raise UsageError(f"max_bytes (--max-bytes) is {self.max_bytes}; expected 0 or more")


@limiting
def export(
    path: Path, output: Path, *, names: Collection[str] | os.PathLike[str] | None = None, like: Path | None = None,
    keys_from_config: Path | None = None, all_names: bool = False, options: ExportOptions | None = None,
    like_only: str | None = None, prefix: str = "", rename: Sequence[str | RenamingRule] = (),
    ties: Mapping[str, str] | None = None, max_bytes: int = MAX_EXPANDED_NBYTES, format: str | None = None,
    weights: str | None = None, only: str | None = None, max_shard_size: int | None = None, align: int = ALIGN,
    allow_class: Sequence[str] = (), allow_unknown: bool = False, max_inflated: int | None = None,
    verify: bool = True, dry_run: bool = False, force: bool = False, progress: Progress = silent,
) -> Exported:  # fmt: skip
    """Write a plain file or folder with exactly the names that one variant wants, each stored for itself.

    Say the names with exactly one of these:

    - `names`: a list; a mapping {name: shape or array}, whose shapes are checked; or the path (a Path) of a text file
      with one name a line
    - `like`: another checkpoint, whose names and shapes these are: of its section `like_only`, else of its one model
      section if it has optimizer or EMA sections, else all
    - `keys_from_config`: the model of a config.json, a file or a folder, with its ties; `""`: the one beside the input.
      For an input that lacks these names, those that save_pretrained gives such a model
    - `all_names`: every name of the input

    Without any of these, `only` takes every name of that section.  `only` leaves files of the training behind; in a
    folder with a config.json, names are as its model wants them: of tied names the first is written, and one that is
    missing is an error.

    The other keywords, or `options` in their place:

    - `prefix`: take the names that begin with it, without it
    - `rename`: rules such as `*.gamma=*.weight`, applied in this order
    - `ties`: {wanted name: the first of the names that are one tensor}: one that the file lacks is written from another
    - `max_bytes`: how many bytes one expanded tensor may grow to
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint)

    All others are those of `dedup`.  UsageError where a name is missing or a rule does not fit, PlanError where a
    tensor has no plain form or another shape; nothing is written then.
    """
    options = chosen(ExportOptions, options, locals())
    wanted = wanted_names(path, options, names=names, like=like, keys_from_config=keys_from_config, all_names=all_names)
    found = opened(path, options.weights, progress, options)

    def where() -> Destination:
        return place(
            path, output, found, options.max_shard_size, force=options.force, word="export",
            brings=wanted.brings, others=wanted.reads, format=_format(output, options, wanted), keeps_format=False,
            keeps_training=not wanted.is_model,
        )  # fmt: skip

    report, work = _prepared(path, found, where, options, wanted=wanted, progress=progress)
    return done(report, work, options, progress)


def _format(output: Path, options: ExportOptions, wanted: ExportRequest) -> str | None:
    """What a folder is written in: a model goes into one wherever the output is not named as a file."""
    is_file = os.path.splitext(os.fspath(output))[1] and not os.fspath(output).endswith(os.sep)
    is_of_model = wanted.is_model or bool(wanted.brings)
    return options.format or (None if is_file or not is_of_model else FOLDER_FORMATS[0])


@limiting
def export_each(
    path: Path, output: Path, *, options: ExportOptions | None = None,
    prefix: str = "", rename: Sequence[str | RenamingRule] = (), max_bytes: int = MAX_EXPANDED_NBYTES,
    only: str | None = None, max_shard_size: int | None = None, align: int = ALIGN,
    allow_class: Sequence[str] = (), allow_unknown: bool = False, max_inflated: int | None = None,
    verify: bool = True, dry_run: bool = False, force: bool = False, progress: Progress = silent,
) -> Each[Exported]:  # fmt: skip
    """`export` of all names of every set of weights of a folder and of those inside, into one folder built alike.

    The keywords are those of `export`.
    """
    options = chosen(ExportOptions, options, locals(), fixed=("like_only", "ties", "weights", "format"))
    if options.format is not None:
        raise UsageError("format (--format) is for one set of weights, and --each takes all")
    return each(
        path,
        output,
        lambda at, found, where: _prepared(at, found, lambda: where, options, wanted=ExportRequest()),
        word="export",
        options=options,
        progress=progress,
    )


def _prepared(
    path: Path,
    found: Weights,
    choose: Callable[[], Destination],
    options: ExportOptions,
    *,
    wanted: ExportRequest,
    progress: Progress = silent,
) -> tuple[Exported, Work]:
    """The report of what will be written, and the work."""
    where_from = os.fspath(path)
    parts = [part_with(found.checkpoint, options, one) for one in wanted.lists or (None,)]
    part = next((one for one in parts if not one.missing), parts[0])
    if part.missing:
        raise missing_names(where_from, part.missing, len(part.wanted.shapes), part.old, more=wanted.advice)
    if not part.wanted.shapes:
        raise PlanError(f"{where_from}: holds no tensor; there is nothing to write")
    is_saved = part is not parts[0]
    chosen_place = choose() if wanted.is_model else None
    part, told = _as_configured(where_from, part, chosen_place, wanted=wanted, progress=progress)
    entries = part.entries
    chosen = replace(part.checkpoint, entries=entries, metadata=metadata_of(part))
    check_shapes(where_from, chosen, part.wanted.shapes, options.max_bytes)
    plan = _plan(chosen)
    where = choose() if chosen_place is None else chosen_place
    if where.is_folder and is_folder(path):
        made = adapter_config.rewritten(where_from, part.checkpoint.entries, part.entries)
        kept = {name: file for name, file in where.sidecars.files.items() if name not in made}
        where = where._replace(made={**where.made, **made}, sidecars=replace(where.sidecars, files=kept))
        _refuse_named(where.sidecars.files.get(NAME), {part.old.get(new, new): new for new in part.entries})
    if where.is_of_folder and is_other_model(part):
        where = where._replace(sidecars=without_state(where.sidecars))
    if where.writer is SAFETENSORS:  # saying which tensors train takes a record, which is not plain
        plan = plan.unmarked()
    outputs = laid_out(plan, where, options.align)
    report = Exported(
        input=os.fspath(path) if where.is_alone else found.path,
        output=where.shown(outputs),
        names=plan.order,
        nbytes=sum(out.nbytes for out in outputs),
        files=where.files(outputs),
        section=part.section,
        like_section=wanted.section,
        renamed={new: part.old[new] for new in plan.order if part.old.get(new, new) != new},
        tied=part.tied,
        left_out=(*_objects_left(part.checkpoint), *part.left_out, *where.sidecars.left),
        sidecars=tuple(where.sidecars.files),
        warnings=(
            *told,
            *stored_apart(entries, part.wanted.ties),
            *name_warnings(where),
            *where.writer.caveats(plan),
            *unsafe_sidecars.warnings(where.sidecars.files, options.allow_class),
            *copied_state.warnings(path, found, where.sidecars.files, options),
            *([AS_SAVED] if is_saved else []),
        ),
        verified=options.verify and not options.dry_run,
        written=not options.dry_run,
    )
    return report, Work(chosen, plan, outputs, where, windows=entries)


def _as_configured(
    where_from: str, part: ExportedPart, where: Destination | None, *, wanted: ExportRequest, progress: Progress
) -> tuple[ExportedPart, tuple[str, ...]]:  # fmt: skip
    """The part of a training that is its model, under the names that its config wants; and what is to be said of it.

    UsageError where the model has names that the part lacks.
    """
    if where is None or not where.is_folder or where.writer is not SAFETENSORS:
        return part, ()
    config = where.sidecars.files.get(NAME)
    if config is None:
        return part, (
            f"{where.path}: has no {NAME}, which from_pretrained needs: --keys-from-config FOLDER brings one",
        )
    from paramtool.commands._export_model import as_configured

    found = as_configured(replace(part.checkpoint, entries=part.entries), config, progress)
    if found.missing:
        more = f"; with --all-names the names of the file are written, whatever {config} says"
        raise missing_names(where_from, list(found.missing), found.wanted, part.old, more=more)
    shapes = {name: part.wanted.shapes.get(name) for name in found.entries}
    names = replace(part.wanted, shapes=shapes, ties={})
    return replace(part, entries=found.entries, wanted=names, tied=found.tied, left_out=found.left_out), found.warnings


def _refuse_named(config: str | None, names: Mapping[str, str]) -> None:
    """PlanError where what a config says of quantised modules by their names would be of others after renaming."""
    said = hf_config.whole(config).get("quantization_config") if config is not None else None
    if not isinstance(said, dict):
        return
    for key in ("modules_to_not_convert", "llm_int8_skip_modules", "ignore"):
        for one in said.get(key) or ():
            for old, new in names.items():
                if isinstance(one, str) and _names(one, old) != _names(one, new):
                    raise PlanError(
                        f"{config}: quantization_config.{key} has {one!r}, and {old!r} would be {new!r}",
                        hint="the file alone is written without the config: name it instead of its folder",
                    )


def _names(one: str, name: str) -> bool:
    """Whether a module of a config, or a pattern of compressed-tensors, is meant by the name of a tensor."""
    if one.startswith("re:"):
        return re.match(one[3:], name.rpartition(".")[0]) is not None
    return f".{one}." in f".{name}."


def _objects_left(checkpoint: Checkpoint) -> Iterator[str]:
    """What an export leaves out by its nature: everything that is not a tensor."""
    tree = checkpoint.objects
    if is_flat(tree, tuple(checkpoint.entries)):
        return
    if held := list(dict.fromkeys(_without_tensors(tree))):
        yield f"objects {some(held, MANY)}: an export has tensors alone"
    if states := [one.name for one in checkpoint.sections if one.role == "optimizer"]:
        yield f"groups and settings of {some(states, MANY)}: no optimizer resumes from its tensors alone"


def _without_tensors(tree: objects.Node) -> Iterator[str]:
    """The keys of what holds no tensor; in a list, those of its items, as of the optimizers of Lightning."""
    if isinstance(tree, objects.Mapping):
        yield from (objects.word(key) for key, child in tree.items if not any(objects.tensor_names(child)))
    elif isinstance(tree, objects.Sequence):
        for item in tree.items:
            yield from _without_tensors(item)


MANY = 5


def _plan(chosen: Checkpoint) -> Plan:
    plan = dedup_pass.plain(chosen, chosen.entries)
    check(plan, chosen.entries, chosen.storages)
    # what transformers counted there were other names
    texts = {key: text for key, text in chosen.index_metadata.items() if key != "total_parameters"}
    return replace(plan, metadata=chosen.metadata, index_metadata=texts)
