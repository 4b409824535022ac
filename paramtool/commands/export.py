"""Writing exactly the file that one variant wants, for programs without paramtool.

What is asked for is worked out in this order: one section of the file; the names with a prefix, without it; the rules
that rename; and of those names the ones that are wanted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

from paramtool import formats
from paramtool.commands import adapter_config, config_ties, copied_state
from paramtool.commands.config_ties import as_stored
from paramtool.commands.models_of_transformers import NamedShapes, Shapes, model_of
from paramtool.commands.name_lists import STANDARD_INPUT, read_names, with_firsts
from paramtool.commands.opening import Each, each, opened
from paramtool.commands.output.destination import FOLDER_FORMATS, Destination, place
from paramtool.commands.output.losses import name_warnings, stored_again
from paramtool.commands.output.options import WriteOptions, keywords
from paramtool.commands.output.sidecars import without_state
from paramtool.commands.output.write import CheckpointReport, Work, done, laid_out
from paramtool.commands.progress import Path, Progress, silent
from paramtool.commands.sections import section_of
from paramtool.errors import ParamtoolError, PlanError, UsageError, listed, plural, some
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder import roots
from paramtool.formats.folder.training_files import is_of_model
from paramtool.formats.folder.weight_names import Weights
from paramtool.formats.hf_config import NAME
from paramtool.formats.judging import judging
from paramtool.formats.object_tree import is_flat
from paramtool.formats.record.moved import carried_metadata, check_codes
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias, objects, quantised
from paramtool.model.checkpoint import Checkpoint, Entries
from paramtool.model.config import NONE, given, reading
from paramtool.model.plan import Plan, check
from paramtool.model.view import View
from paramtool.passes import renaming, select
from paramtool.passes.config_ties.declared import EQUAL, MEMORY, tied_advice
from paramtool.passes.dedup import plan as dedup_pass
from paramtool.passes.module_versions import ATTRIBUTE, lost_versions, moved_versions, versions_of
from paramtool.passes.renaming import RenamingRule


@frozen(kw_only=True, repr=False)
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

    _schema = "export/2"
    _members = (
        "input output written verified nbytes names renamed tied+ files section like_section cloned_nbytes+ left_out "
        "warnings"
    )


AS_SAVED = (
    "the names are those that save_pretrained gives them, as in the input: from_pretrained turns them into the model's "
    "own, other loaders do not"
)


@frozen(kw_only=True)
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
    format: str | None = None
    """The format of an output folder: `safetensors` or `dcp`.  None: safetensors."""


USUAL = ExportOptions()


@reading
@judging("path")
@keywords(ExportOptions)
def export(
    path: Path,
    output: Path | None = None,
    *,
    names: Collection[str] | os.PathLike[str] | None = None,
    like: Path | None = None,
    all_names: bool = False,
    options: ExportOptions = USUAL,
    progress: Progress = silent,
) -> Exported:
    """Write a plain file or folder with exactly the names that one variant wants, each stored for itself.

    Say the names with one of these:

    - `names`: a list; a mapping {name: shape or array}, whose shapes are checked; or the path (a Path) of a text file
      with one name a line
    - `like`: another checkpoint, whose names and shapes these are: of its section `like_only`, else of its one model
      section if it has optimizer or EMA sections, else all
    - `all_names`: every name of the input, with those that the config.json beside it ties

    Without any of these, `config` takes the names of its model, a file or a folder, with its ties; for an input that
    lacks these names, those that save_pretrained gives such a model.  Else every name is written.  `only` alone takes
    every name of that section.  `only` leaves files of the training behind; in a
    folder with a config.json, names are as its model wants them: of tied names the first is written, and one that is
    missing is an error.

    The other keywords, or `options` in their place:

    - `prefix`: take the names that begin with it, without it
    - `rename`: rules such as `*.gamma=*.weight`, applied in this order
    - `ties`: {wanted name: the first of the names that are one tensor}: one that the file lacks is written from another
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint)

    All others are those of `dedup`.  UsageError where a name is missing or a rule does not fit, PlanError where a
    tensor has no plain form or another shape; nothing is written then.
    """
    wanted = wanted_names(path, options, names=names, like=like, all_names=all_names)
    found = opened(path, options.weights, progress, options)

    def where() -> Destination:
        return place(
            path, output, found, options.max_shard_size, options=options, word="plain",
            brings=wanted.brings, others=wanted.reads, format=_format(output, options, wanted), keeps_format=False,
            keeps_training=not wanted.is_model,
        )  # fmt: skip

    report, work = _prepared(path, found, where, options, wanted=wanted, progress=progress)
    return done(report, work, options, progress)


def _format(output: Path | None, options: ExportOptions, wanted: ExportRequest) -> str | None:
    """What a folder is written in: a model goes into one wherever the output is not named as a file."""
    is_file = output and os.path.splitext(os.fspath(output))[1] and not os.fspath(output).endswith(os.sep)
    is_of_model = wanted.is_model or bool(wanted.brings)
    return options.format or (None if is_file or not is_of_model else FOLDER_FORMATS[0])


@reading
@judging("path")
@keywords(ExportOptions, fixed=("like_only", "ties", "weights", "format"))
def export_each(
    path: Path, output: Path | None = None, *, options: ExportOptions = USUAL, progress: Progress = silent
) -> Each[Exported]:
    """`export` of all names of every set of weights of a folder and of those inside, into one folder built alike.

    The keywords are those of `export`.
    """
    return each(
        path,
        output,
        lambda at, found, where: _prepared(at, found, lambda: where, options, wanted=ExportRequest()),
        word="plain",
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
    check_shapes(where_from, chosen, part.wanted.shapes)
    plan = _plan(chosen)
    where = choose() if chosen_place is None else chosen_place
    if where.is_folder and is_folder(path):
        made = adapter_config.rewritten(where_from, part.checkpoint.entries, part.entries)
        kept = omit(where.sidecars.files, made)
        where = where._replace(made={**where.made, **made}, sidecars=replace(where.sidecars, files=kept))
    files = where.sidecars.files if where.is_folder and is_folder(path) else {}
    _refuse_named(files, part.checkpoint.metadata, {part.old.get(new, new): new for new in part.entries})
    if where.is_of_folder and is_other_model(part):
        where = where._replace(sidecars=without_state(where.sidecars))
    if where.writer.name == "safetensors":  # saying which tensors train takes a record, which is not plain
        plan = plan.unmarked()
    tree = part.checkpoint.objects
    lost = tuple(lost_versions(tree))
    if where.writer.name == "torch" and isinstance(versions := versions_of(tree), objects.Mapping):
        names = ((new, part.old[part.tied.get(new, new)]) for new in part.entries)
        moved, others = moved_versions(versions, names)
        others = [
            at for at in others if not f".{options.prefix}".startswith(f".{at}".rstrip(".")) or not options.prefix
        ]
        lost = (
            (f"the versions ({ATTRIBUTE!r}) of modules whose tensors parted: {some(others, MANY)}",) if others else ()
        )
        tensors = tuple((name, objects.TensorRef(name)) for name in plan.order)
        state = objects.Mapping("collections.OrderedDict", tensors, objects.Mapping("dict", ((ATTRIBUTE, moved),)))
        plan = replace(plan, objects=state)
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
        left_out=(
            *stored_again(plan, "an export has each name for itself"),
            *(*_objects_left(part.checkpoint), *lost, *part.left_out, *where.sidecars.left),
        ),
        sidecars=tuple(where.sidecars.files),
        warnings=(
            *told,
            *stored_apart(entries, part.wanted.ties),
            *name_warnings(where, part.checkpoint),
            *where.writer.caveats(plan),
            *found.told,
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
    if where is None or not where.is_folder or where.writer.name != "safetensors":
        return part, ()
    config = where.sidecars.files.get(NAME)
    if config is None:
        return part, (f"{where.path}: has no {NAME}, which from_pretrained needs: --config FOLDER brings one",)
    found = as_configured(replace(part.checkpoint, entries=part.entries), config, progress)
    if found.missing:
        more = f"; with --all-names the names of the file are written, whatever {config} says"
        raise missing_names(where_from, list(found.missing), found.wanted, part.old, more=more)
    shapes = {name: part.wanted.shapes.get(name) for name in found.entries}
    names = replace(part.wanted, shapes=shapes, ties={})
    return replace(part, entries=found.entries, wanted=names, tied=found.tied, left_out=found.left_out), found.warnings


def _refuse_named(files: Mapping[str, str], metadata: Mapping[str, str], names: Mapping[str, str]) -> None:
    """PlanError where what is said of quantised modules by their names would be of others after renaming.

    It is said in config.json, in the files beside it that are of codes alone, and in the header that ComfyUI writes.
    """
    if all(old == new for old, new in names.items()):
        return
    from paramtool.commands._value_facts import strings_in

    said: list[tuple[str, Any]] = []
    if NAME in files:
        config = hf_config.whole(files[NAME])
        said += ((f"{files[NAME]}: {key}", config[key]) for key in sorted(quantised.IN_CONFIG & config.keys()))
    for name in (hf_config.QUANTISATION, *hf_config.ALONE):
        if name in files:
            said.append((f"{files[name]}:", hf_config.whole(files[name])))
    with suppress(LookupError, ValueError, RecursionError):
        said.append((f"{COMFY} of the header", json.loads(metadata[COMFY])))
    for where, value in said:
        for one in strings_in(value):
            for old, new in names.items():
                if _names(one, old) != _names(one, new):
                    raise PlanError(
                        f"{where} has {one!r}, and {old!r} would be {new!r}",
                        hint=bool(files) * "the file alone is written without the config: name it, not its folder",
                    )


COMFY = "_quantization_metadata"
"""The entry of a header in which ComfyUI says how layers are quantised (comfy/ops.py)."""


def _names(one: str, name: str) -> bool:
    """Whether a module of a config, or a pattern of compressed-tensors or GPTQ, is meant by the name of a tensor."""
    if one.startswith(PATTERNS):
        with suppress(re.error):
            return re.match(one.partition(":")[2], name.rpartition(".")[0]) is not None
    return f".{one}." in f".{name}."


PATTERNS = ("re:", "-:", "+:")


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


# --- The part of a checkpoint that has the names that are wanted, and what it lacks of them --------------------------


@frozen(kw_only=True)
class ExportedPart:
    """The part of a checkpoint that has the names of one list."""

    wanted: NamedShapes
    section: str | None
    checkpoint: Checkpoint
    """The section, or the whole."""
    old: Mapping[str, str]
    """{name after the rules: name in `checkpoint`}."""
    entries: Entries
    """{wanted name: its entry}; a name that is missing takes one that it is tied to."""
    missing: list[str]
    tied: Mapping[str, str]
    """{wanted name that is missing: the name, after the rules, that it is tied to}"""
    left_out: tuple[str, ...] = ()
    """Tensors that follow from others, for people."""


def part_with(whole: Checkpoint, options: ExportOptions, wanted: NamedShapes | None) -> ExportedPart:
    """Where the names that are wanted stand; None for all names."""
    rules = [rule if isinstance(rule, RenamingRule) else renaming.parse(rule) for rule in options.rename]
    section = options.only
    if section is None and wanted is not None and not options.prefix and not rules:
        section = select.section_for(whole, wanted.shapes)
    checkpoint = whole if section is None else section_of(whole, section)
    checkpoint = as_stored(checkpoint, checkpoint.entries.keys() - (options.ties or {}).keys())
    old = renaming.renamed(checkpoint.entries, options.prefix, rules)
    wanted = wanted or NamedShapes(dict.fromkeys([*old, *(options.ties or ())]), with_firsts(options.ties))
    ties, partners = wanted.ties, dict[str, str]()
    for name in wanted.shapes:
        if name in old:
            partners.setdefault(ties.get(name, name), name)
    sources = {name: name if name in old else partners.get(ties.get(name, name)) for name in wanted.shapes}
    return ExportedPart(
        wanted=wanted,
        section=section,
        checkpoint=checkpoint,
        old=old,
        entries={name: checkpoint.entries[old[source]] for name, source in sources.items() if source is not None},
        missing=[name for name, source in sources.items() if source is None],
        tied={name: source for name, source in sources.items() if source not in (None, name)},
    )


def is_other_model(part: ExportedPart) -> bool:
    """Whether the names that are written are not those of the input, so that its optimizer is of other parameters."""
    stored = alias.build(part.checkpoint, parts=False).names
    groups = {one.alias_set for one in stored.values()}
    written = {stored[part.old[name]].alias_set for name in part.entries if part.old.get(name) == name}
    return any(part.old.get(name, name) != name for name in part.entries) or groups != written


def metadata_of(part: ExportedPart) -> Mapping[str, str]:
    """The metadata of an export: its record of parts has no tensor that is not there, and no dialect of other names."""
    whole = part.checkpoint
    names = {part.old.get(new, new): new for new in part.entries}
    stored = [name for name, entry in whole.entries.items() if entry.link is None or not entry.link.owner]
    is_same = all(names.get(name) == name for name in stored)
    found = carried_metadata(whole.path, whole.metadata, names, keeps_dialect=is_same)
    check_codes(whole.path, whole.entries, names)
    return found


def stored_apart(entries: Entries, ties: Mapping[str, str]) -> Iterator[str]:
    """Names that the variant ties and the file holds as two tensors: which of them a loader takes is its own choice."""
    for name, first in ties.items():
        if name in entries and first in entries and entries[name].value != entries[first].value:
            yield (
                f"the model ties {name!r} to {first!r}, and the file stores them separately; both are written, and a "
                "loader that ties them keeps one (`variants` compares them)"
            )


def missing_names(where: str, missing: list[str], wanted: int, names: Mapping[str, str], *, more: str) -> UsageError:
    """What is missing, what it could have meant, and the flag that would find it."""
    lines = [
        f"{name!r}" + (f"; it has {' and '.join(map(repr, found))}" if (found := select.alike(name, names)) else "")
        for name in missing[:10]
    ]
    advice = select.padded(missing, names) or select.advice(missing, names) or tied_advice(missing)
    return UsageError(
        listed(f"{where}: lacks {len(missing)} of {plural(wanted, 'name')}:", lines, len(missing) - len(lines)),
        hint=(advice or "`inspect --tensors` lists what it has") + more,
    )


def check_shapes(where: str, chosen: Checkpoint, shapes: Shapes) -> None:
    wrong = []
    for name, shape in shapes.items():
        value = chosen.entries[name].value
        if not isinstance(value, View):
            continue
        if shape is not None and value.shape != shape:
            wrong.append(f"{name!r}: has shape {list(value.shape)}; wanted {list(shape)}")
    if wrong:
        raise PlanError(listed(f"{where}: {plural(len(wrong), 'tensor does', 'tensors do')} not fit:", wrong))


# --- The names that an export is asked for: a list, those of a checkpoint, or those of a config ----------------------


@frozen
class ExportRequest:
    """The names that were asked for."""

    lists: Sequence[NamedShapes] = ()
    """None for all names; of several, the first is taken of which the input has every name, else the first."""
    reads: Sequence[str] = ()
    """The files that say so: no output takes their place."""
    brings: Mapping[str, str] = field(default_factory=dict)
    """{file of an output folder: what is copied there}, in place of the input folder's own."""
    section: str | None = None
    """The section of another checkpoint that the names are of."""
    advice: str = ""
    """More of it where names are missing."""
    is_model: bool = False
    """Whether a section was asked for, and no names: it is written as the config of its model wants it."""


def wanted_names(
    path: Path,
    options: ExportOptions,
    *,
    names: Collection[str] | os.PathLike[str] | None,
    like: Path | None,
    all_names: bool,
) -> ExportRequest:
    """The names that were asked for in one of the ways, or follow from the config; UsageError for several ways."""
    if (names is not None) + (like is not None) + all_names > 1:
        raise UsageError(
            "choose one: --names NAMES.txt, --like OTHER_CKPT, or --all-names; without them "
            "the names are those of the model of --config PATH, if it is given, else all"
        )
    if like is None and options.like_only is not None:
        raise UsageError("--like-only is a section of --like OTHER_CKPT, which is not given")
    if like is not None:
        # The names of another checkpoint.
        other = formats.read(like, allow_class=options.allow_class, allow_unknown=options.allow_unknown)
        section, shapes = _names_like(other, options.like_only)
        if not shapes:
            raise UsageError(f"{other.path}: holds no tensor, so it names none to export; expected a checkpoint")
        return ExportRequest(
            [NamedShapes(shapes, with_firsts(options.ties))],
            [file.path for file in other.files],
            section=section,
            advice="; --like-only SECTION takes the names of one section" if other.sections and section is None else "",
        )
    if names is None and not all_names and given() not in ("", NONE):
        # The names of the model of the config that was given.
        if options.ties:
            raise UsageError(
                "--ties are those of the config's model where --config says the names",
                hint="leave out --ties",
            )
        model = model_of(hf_config.beside(os.fspath(path)))
        brings = settings_of(given()) if is_folder(given()) else {}
        brings |= {NAME: model.config}  # a folder gets the config that its names are of
        lists = [model.own, *([model.saved] if model.saved else [])]
        return ExportRequest(lists, [model.config], brings, is_model=options.only is not None)
    if all_names or (names is None and options.only is None):
        return ExportRequest()
    if names is None:
        return ExportRequest(brings=settings_beside(path), is_model=True)
    if isinstance(names, os.PathLike):
        file = os.fspath(names)
        reads = [] if file == STANDARD_INPUT else [file]
        return ExportRequest([NamedShapes(_shapes(read_names(file)), with_firsts(options.ties))], reads)
    return ExportRequest([NamedShapes(_shapes(names), with_firsts(options.ties))])


def _shapes(names: Collection[str]) -> Shapes:
    """Names with the shapes that a mapping gives them: of arrays, or as they are."""
    if not isinstance(names, Mapping):
        return dict.fromkeys(names)
    shapes = {name: getattr(value, "shape", value) for name, value in names.items()}
    return {name: None if shape is None else tuple(map(int, shape)) for name, shape in shapes.items()}


def _names_like(other: Checkpoint, only: str | None) -> tuple[str | None, Shapes]:
    """The names of another checkpoint with their shapes, and the section that they are of, if of one."""
    hint = "--like-only SECTION takes the names of one; in Python like_only=..."
    only = select.model_section(other, hint) if only is None else only
    part = other if only is None else select.section(other, only)
    return only, {name: e.value.shape if isinstance(e.value, View) else None for name, e in part.entries.items()}


# --- What `export --only SECTION` makes of the model of a training: the files beside it, and the ties of its config --


MAX_NAMED = 5


def settings_beside(path: Path) -> dict[str, str]:
    """{name: file} of a model's config and tokenizer, for what is given without them.

    They are beside a file, and beside the folder that accelerate puts the weights of one model of FSDP into.
    """
    given = os.path.realpath(path)
    parent = os.path.dirname(given)
    if is_folder(given) and os.path.basename(given) not in roots.models_inside(parent):
        return {}
    return settings_of(parent)


def settings_of(folder: str) -> dict[str, str]:
    """{name: file} of a model's config and tokenizer in a folder."""
    places = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if is_of_model(name)}
    return {name: os.path.realpath(place) for name, place in places.items() if os.path.isfile(place)}


@frozen
class AsConfigured:
    """The names of a model as its config wants them."""

    entries: Entries
    tied: Mapping[str, str] = field(default_factory=dict)
    """{name that the file lacks: the name that it is tied to}"""
    missing: tuple[str, ...] = ()
    """Names of the model that the file lacks, and that nothing ties."""
    wanted: int = 0
    """How many names the model has."""
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def as_configured(checkpoint: Checkpoint, config: str, progress: Progress) -> AsConfigured:
    """The tensors of a checkpoint under the names that from_pretrained looks for.

    Of names that the config ties, and that are equal, the first is written, as save_pretrained does; what it does not
    tie is written each for itself.  Where transformers builds the model, its names are compared, too.
    """
    entries = dict(checkpoint.entries)
    graph = alias.build(checkpoint, parts=False)
    found = config_ties.declared_ties(hf_config.read(config), checkpoint, graph, progress, all_rows=False)
    same = [row.tie.names for row in found.rows if row.says and row.file in (MEMORY, EQUAL)]
    gone = {name: names[0] for names in same for name in names[1:] if names[0] in entries and name in entries}
    kept = omit(entries, gone)
    stored = config_ties.as_stored(checkpoint).entries
    left = (
        f"tensor {name!r}: {config_name(config)} ties it to {first!r}" for name, first in gone.items() if name in stored
    )
    told = (f"{found.path}: {config_ties.text(row)}; both are written" for row in found.broken if row.says)
    done = AsConfigured(kept, left_out=tuple(left), warnings=tuple(told))
    try:
        model = model_of(config)
    except ParamtoolError as error:
        why = f"{config_name(config)}: which names from_pretrained looks for was not compared: {error.message}"
        return replace(done, warnings=(*done.warnings, why))
    lists = [model.own, *([model.saved] if model.saved else [])]
    names = max(lists, key=lambda one: sum(name in entries for name in one.shapes))
    return _compared(done, names, config)


def config_name(config: str) -> str:
    """A config, for people."""
    return os.path.basename(config)


def _compared(done: AsConfigured, model: NamedShapes, config: str) -> AsConfigured:
    """The same, compared with the names of the model."""
    entries = dict(done.entries)
    together = grouped((model.ties.get(name, name), name) for name in model.shapes)
    missing, tied = [], {}
    for names in together.values():
        there = [name for name in names if name in entries]
        if not there:
            missing.append(names[0])
        elif names[0] not in entries:
            tied[names[0]] = there[0]
            entries[names[0]] = entries.pop(there[0])
    warnings = (*done.warnings, *_strange(done.entries, model, config))
    return replace(done, entries=entries, tied=tied, missing=tuple(missing), wanted=len(together), warnings=warnings)


def _strange(entries: Entries, model: NamedShapes, config: str) -> Iterator[str]:
    """Names that the model does not have, and shapes that are others."""
    if names := [name for name in entries if name not in model.shapes]:
        what = plural(names, "name")
        yield f"{what} that the model of {config_name(config)} does not have: {some(names, MAX_NAMED)}"
