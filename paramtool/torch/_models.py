"""Files into models: every name of the model gets its value, what it ties stays tied, what it does not stays apart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote

import torch
from torch import nn

from paramtool.commands.load import read_locked
from paramtool.commands.pinned import pin
from paramtool.commands.progress import Path
from paramtool.commands.variants import answered
from paramtool.commands.variants import clashes as clashing_rows
from paramtool.engine.compare.changes import format_difference
from paramtool.engine.read.source import Source
from paramtool.errors import ModelError, TieError, UsageError, listed, plural, some
from paramtool.formats.files import is_folder
from paramtool.formats.judging import judging
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import dataclass
from paramtool.model import alias
from paramtool.model.config import reading
from paramtool.model.display import Displayed
from paramtool.model.dtype import DType
from paramtool.model.objects import is_extra_state
from paramtool.model.view import View
from paramtool.passes.compat.check import RowClash, TieQuestion
from paramtool.passes.compat.wanted import wanted_by
from paramtool.passes.dedup.plan import ranks_hint
from paramtool.torch._asking import ask, judged, seen_by
from paramtool.torch._live import Tensors, described, dtype_of, is_expanded, is_plain, place, refuse_opaque, tensors_of
from paramtool.torch._protocol import Answer, Watch, given_of, held_of, install, put_in, whole_of
from paramtool.torch._saved_names import both_wanted, config_of, is_of_transformers
from paramtool.torch.tensors import read, window


@dataclass(frozen=True, slots=True, repr=False)
class Loaded(Displayed):
    """What `load_model` did not find, and what it did not need."""

    missing: tuple[str, ...]
    """Names of the model, extra state included, that the file lacks and that no tied partner filled."""
    unexpected: tuple[str, ...]
    """Names of the file that the model lacks, and whose memory no other name brought in; also what was not applied:
    extra state for which a module has no setter, and tensors that a module's own code left alone."""
    section: str
    """The section that was loaded; empty for the whole file."""
    on_meta: tuple[str, ...] = ()
    """Parameters and buffers that still have no memory: buffers that no file holds since they are not persistent, and,
    where not `strict`, what is missing."""
    warnings: tuple[str, ...] = ()
    """What was taken for older than it may be, and numbers that the model's types cannot hold."""

    _facts = "`missing` and `unexpected`"

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """`missing, unexpected = load_model(...)`, as torch and safetensors have it."""
        return iter((self.missing, self.unexpected))

    _members = "section missing unexpected on_meta warnings"


@reading
@judging("path")
def load_model(
    model: nn.Module,
    path: Path,
    strict: bool = True,
    *,
    only: str | None = None,
    prefix: str = "",
    assign: bool = False,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    lock: Path | None = None,
    locked_as: str | None = None,
    content_only: bool = False,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
) -> Loaded:
    """Fill a model from any readable checkpoint.

    Every alias name of the file resolves.  A name that the file lacks is fine where a partner that the model ties it to
    was loaded; a name that the model lacks is fine where it shares the memory of one that was loaded.  Anything else
    is a ModelError when `strict`, and is reported otherwise.

    The model's tensors are filled where they are, and keep their types; those on the meta device are replaced by new
    ones of their types.  `Loaded.warnings` names numbers that torch's cast to them changes.  With `assign` all are
    replaced by new ones, of the types that the file has (what needs gradients keeps its own where these are integers);
    quantised and sparse ones as torch's `assign` and `.to` have them.
    New tensors are on `device`, else where the old ones were, those of the meta device on the CPU; their floating types
    are `dtype`, if given.  They share memory just where the old ones did, whatever the file shares, and need gradients
    just where the old ones did; an optimizer that holds old parameters does not know them.  `Loaded.on_meta` names
    buffers that are in no file and have no memory yet.

    torch's own `load_state_dict` puts the values in, with the versions of modules and the extra state that the file
    holds, so that hooks, overrides and upgrades of the modules run as after `torch.load`, and once.  What torch's own
    and that of known libraries would do is tried on a copy of the model without memory.  With any other, ties are
    judged before by the names of the file, and names, shapes, and ties of what the code renames are found wrong only
    while the model is loaded: the error names the tensors that changed before; and all that it is given is read into
    memory first, as by torch.load without mmap, since it may keep any of it.

    Objects are made where they are data: of the standard library, arrays, tensors of torch, and what this process lets
    `torch.load(weights_only=True)` make, such as torchao's tensors where torchao was imported.  A model with a
    `load_state_dict` of its own is given what torch.load gives, of the section `only` or of the whole file, where it
    takes that: also dicts in dicts, or a list.
    As in `torch.load`, no CRC of a zip's members is compared: `lock` proves the bytes, `paramtool check` the CRCs.

    `prefix` is what the file calls the model: `encoder` takes `encoder.weight` as `weight`, and nothing outside.  The
    `_orig_mod.` of torch.compile inside a name is found by itself, on either side.
    Files of transformers' save_pretrained have other names than some models, and other tensors: where the model is one
    of transformers and the file lacks its names, tensors are renamed, split and joined as from_pretrained does it.  It
    also fits the base of a model: here, `load_model(model.bert, FILE)` fills that part, and `prefix="bert"` takes it.

    TieError where the model ties names that the file holds with different values; ModelError where shapes or types do
    not fit, or where the model has tensors that cannot be filled, or takes objects that only code could make.  Both are
    RuntimeErrors, as load_state_dict raises.
    LockError by `lock`, `locked_as` and `content_only` as of `paramtool.load_file`, and where the model does not share
    what the lock ties.  UsageError where `device` or `dtype` do not fit the model's own tensors; UnsafeError,
    `allow_class` and `allow_unknown` as of `paramtool.read`.  Nothing changes before all was checked that can be.
    """
    pinned, tensors = pin(lock, locked_as, content_only), tensors_of(model)
    whole = read_locked(path, pinned, None, allow_class, allow_unknown)
    where = whole.path
    device = torch.device(device) if device is not None else None
    if dtype is not None and not dtype.is_floating_point:
        raise UsageError(f"dtype={dtype}: only floating types are cast; expected one such as torch.bfloat16")
    if device is not None and device.type == "meta":
        raise UsageError("device=meta: tensors there have no values; expected a device with memory")
    for name, tensor in tensors.items() if not assign else ():
        there, kind = tensor.device, tensor.dtype  # `cuda` means any of them
        is_there = device is None or (device.type == there.type and device.index in (None, there.index))
        if not tensor.is_meta and not (is_there and (not tensor.is_floating_point() or dtype in (None, kind))):
            raise UsageError(
                f"{name!r} is {kind} on {there} and stays so; device= and dtype= are for new tensors",
                hint="assign=True makes all new; or move the model first, with model.to(...)",
            )
    held = held_of(model, tensors, whole, only, prefix)
    with Source(held.part, compares_crcs=False) as source, torch.no_grad():
        asked = ask(model, tensors, held, source, assign)
        refuse_opaque(tensors, asked.types, assign and (device, dtype) != (None, None))
        new = renewed(tensors, asked.types, assign, device, dtype)
        wanted = wanted_by(described({**tensors, **new}))
        verdict, questions = judged(wanted, held, whole, asked)
        if pinned is not None and not pinned.content_only:
            tied: dict[object, str] = {}
            lines = []
            for name, one in wanted_by(asked.seen).items():
                if name in wanted and one.view is not None and one.view.numel:
                    first = tied.setdefault((one.alias_set, one.view), name)
                    if wanted[name].alias_set != wanted[first].alias_set:
                        lines.append(f"{name!r} shares memory with {first!r} in the lock, and not in the model")
            if lines:
                raise pinned.refuse(where, lines, hint="tie them in the model; content_only=True judges tensors alone")

        # what does not fit or has no data and, when `strict`, names that are left over
        named = held.named

        def line(found: str) -> str:
            """A command on the file, with its output."""
            command, _, option = found.partition(" ")
            out = "out" if is_folder(path) else "out.safetensors"
            end = f"{option} -o {out}".lstrip()
            return f"`paramtool {command} {quote(os.fspath(path))} {end}` writes what the model loads"

        message, hint, of_ranks = "", "", ranks_hint(held.section)
        rows: Sequence[RowClash] = ()
        clashes = [(one.name, f"has shape {list(one.found)}", str(list(one.wanted))) for one in verdict.shapes]
        clashes += [(one.name, f"is {one.found}", one.wanted) for one in verdict.types]
        if wrong := [
            f"{name!r}{named.in_file(name)}: {fault}{'' if name in named.made else ' in the file'}; "
            f"the model wants {wants}"
            for name, fault, wants in clashes
        ]:
            count = plural(len(wrong), "tensor does", "tensors do")
            message = listed(f"{where}: {count} not fit the model:", wrong)
        elif asked.strange:
            why = "do not fit the model" if of_ranks else "of the model would have to be made by code"
            message = listed(
                f"{where}: {plural(len(asked.strange), 'entry', 'entries')} {why}:",
                [f"{name!r} is {what}" for name, what in asked.strange.items()],
            )
            hint = "torch.load with weights_only=False runs it, if you trust the file; then model.load_state_dict"
            hint *= whole.format.startswith("torch")
        elif strict and not asked.is_unknown and (verdict.lacks or verdict.unused):
            both_ways = ((verdict.lacks, "lacks"), (verdict.unused, "holds, and the model does not want,"))
            texts = (f"{what} {plural(len(names), 'name')} ({some(names, 8)})" for names, what in both_ways if names)
            message = f"{where}: of {plural(verdict.names, 'name')} of the model, the file {'; it '.join(texts)}"
            hint = verdict.advice or "strict=False loads what fits"
        elif is_of_transformers(model):
            own = (name for name in named.part.entries if name in tensors and name not in named.made)
            names = [held.prefix + name for name in (*(named.renamed.get(n, n) for n in own), *named.sources.entries)]
            if rows := clashing_rows(held.section, names, {}, config_of(model)):
                count = plural(len(rows), "tensor has", "tensors have")
                message = listed(
                    f"{held.section.path}: {count} the shape that the model wants, and other rows:",
                    [f"{one.name!r}: {one.found}; the model wants {one.wanted}" for one in rows],
                )
                hint = "`unfuse` restores what was there before"
        if message:
            from paramtool.commands.loads_after import CONVERT, loads_after, loads_with_rows

            wants, command = both_wanted(model, tensors), ""
            if rows:
                command = loads_with_rows(held.section, wants, rows)
            elif (verdict.lacks or verdict.shapes) and not of_ranks:  # no command changes types, or leaves out names
                command = loads_after(held.as_it_is, wants)
            why = "names or rows are another dialect's" if command.startswith(CONVERT) else "its record says how"
            raise ModelError(message, hint=f"{why}: {line(command)}" if command else of_ranks or hint)

        for question in questions:
            if made_of := [name for name in (question.name, question.other) if name in held.named.made]:
                raise ModelError(
                    f"{where}: the model ties {question.name!r} and {question.other!r}, and {made_of[0]!r} is not in "
                    "the file: transformers makes it of others; whether the two are equal cannot be told before "
                    "loading",
                    hint="from_pretrained opens it; or save it again without the tie",
                )
        refuse_apart(where, source, questions)

        # torch puts the values in
        given = given_of(source, held, asked.lent, None if asked.own else tensors)
        if lost := given.unmade.keys() & tensors.keys() - set(verdict.lacks):
            name = min(lost)
            raise ModelError(f"{where}: {name!r}: only code of others makes what the file holds: {given.unmade[name]}")
        for name, fresh in new.items():  # whose values the state dict lacks, or the model's code may leave as they are
            if tensors[name].is_meta and name in verdict.lacks and not asked.is_unknown:
                raise ModelError(
                    f"{name!r} is on the meta device, and the file holds only names that fill a part of it",
                    hint="model.to_empty(device='cpu') gives it memory",
                )
            if asked.own or name not in given.tensors:
                fresh.detach().zero_() if tensors[name].is_meta else fresh.detach().copy_(tensors[name])
        as_it_is = whole_of(tensors, given, held, assign, device, dtype)
        new |= as_it_is
        old = {name: tensors[name] for name in new} if asked.own else {}
        install(model, tensors, new)
        tensors.update(new)  # what is replaced goes at once
        watch = Watch(given)

        def effect() -> str:
            changed = [name for name, tensor in tensors_of(model, every=True).items() if place(tensor) in watch.written]
            return f"it changed before that: {some(changed, 8)}" if changed else "no change before that was seen"

        try:
            with watch:
                missing, unexpected = put_in(model, given.state)
        except Exception as error:
            install(model, tensors, old)
            raise ModelError(
                f"{where}: {type(model).__name__} raised {type(error).__name__} while it was loaded: {error!s:.1000}",
                hint=effect(),
            ) from error
        cast = some([*watch.changed(given)], 8)
        del given
        untouched = {name: tensor for name, tensor in old.items() if place(new[name]) not in watch.written}
        install(model, new, {
            name: tensor for name, tensor in untouched.items()
            if name in as_it_is or (tensor.is_meta and not new[name].any()) or (asked.is_unknown and name in missing)
        })  # fmt: skip
        for made, taken in held.named.sources_of():
            for name, tensor in made.of(read(source, taken, "cpu")).items():
                tensors[name].detach().copy_(tensor)
        if asked.is_unknown:  # until now
            answer = Answer(missing, unexpected, "", watch.sources(tensors))
            asked = replace(asked, answer=answer, seen=seen_by(held, answer))
            verdict, questions = judged(wanted, held, whole, asked)
            if strict and (gone := (*verdict.lacks, *verdict.unused)):
                raise ModelError(
                    f"{where}: {type(model).__name__} showed only while it was loaded what it takes; missing or left "
                    f"over: {some(gone, 8)}",
                    hint=f"{effect()}; strict=False takes that",
                )
            refuse_apart(where, source, questions, effect())

    # what was not applied
    left = (name for name in (unexpected if asked.own else held.things) if is_extra_state(name))
    ignored = (name for name in watch.ignored() if name not in unexpected)
    on_meta = tuple(name for name, tensor in tensors_of(model, every=True).items() if tensor.is_meta)
    older = some(asked.older, 8)
    warnings = {
        f"the file has no versions of modules: {older} may be taken as of a file from before them": older,
        f"the model's types cannot hold all numbers of {cast}, which torch changed as it cast them": cast,
    }
    unexpected = tuple(dict.fromkeys((*verdict.unused, *left, *ignored)))
    return Loaded(verdict.lacks, unexpected, held.chosen, on_meta, tuple(text for text in warnings if warnings[text]))


def refuse_apart(where: str, source: Source, questions: Sequence[TieQuestion], effect: str = "") -> None:
    """TieError for names that the model ties and the file holds with different bytes; `effect` is what changed."""
    for apart in answered(source, questions):
        measured = f" ({difference})" if (difference := format_difference(apart.difference)) else ""
        raise TieError(
            f"{where}: the model ties {apart.name!r} and {apart.other!r}, and the file holds them with different "
            f"bytes{measured}{', which showed only while it was loaded' * bool(effect)}",
            hint=f"{effect}{'; ' * bool(effect)}load into a model without this tie, or leave one of them out: "
            "`export --names`",
        )


# --- New tensors for a model, which take the places of those that it has: where it is on meta, or with `assign` ------
#
# They share memory just as the old ones do: for each alias set of the model, or each storage that is filled as a
# whole (a flattened LSTM), one new storage is made, with every window where it was.  What the file ties and the model
# does not goes into two.


ALIGNMENT = 16
"""The largest element: windows that begin on their elements still do behind a start that is a multiple of it."""
Views = dict[str, View]
Types = dict[str, DType]


def renewed(
    tensors: Tensors,
    found: Mapping[str, torch.dtype | None],
    assign: bool,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> dict[str, torch.Tensor]:
    """New tensors without values for the names of `found`, and for those that stand on one alias set with them.

    All are new with `assign`, else those that are on the meta device.  `found` are the names that get values, with
    their types in the file, if these are known.  ModelError where a tensor cannot be replaced.
    """
    old = {name: tensor for name, tensor in tensors.items() if assign or tensor.is_meta}
    flat = {id(one): torch.empty(one.shape, dtype=one.dtype, device="meta") for one in old.values() if is_expanded(one)}
    plain = {name: flat.get(id(tensor), tensor) for name, tensor in old.items() if is_plain(tensor)}
    checkpoint = described(plain)
    windows, members = checkpoint.views(), alias.build(checkpoint).names
    new: dict[str, torch.Tensor] = {}
    for storage in grouped((windows[name].storage, name) for name in plain).values():
        alias_sets = [*grouped((members[name].alias_set, name) for name in storage).values()]
        types: Types = {}
        for names in alias_sets:
            name = min(names, key=lambda name: name not in found)  # the first that the file holds decides
            kept, there = plain[name].dtype, found.get(name) or plain[name].dtype
            trains = plain[name].requires_grad and not (there.is_floating_point or there.is_complex)
            kept = there if assign and not trains else kept
            chosen = dtype_of(dtype if dtype is not None and kept.is_floating_point else kept)
            types |= {n: chosen if windows[n].dtype == windows[name].dtype else windows[n].dtype for n in names}
        is_one = all(name in found for name in storage) and bool(_moved({n: windows[n] for n in storage}, types))
        for names in [storage] if is_one else alias_sets:
            if found.keys().isdisjoint(names):
                continue
            moved = _moved({name: windows[name] for name in names}, types)
            if not moved:
                text = ", ".join(map(repr, names))
                raise ModelError(f"{text}: share memory as different types, which cannot change apart")
            first = tensors[names[0]]
            nbytes = max(view.byte_stop for view in moved.values())
            place = device or (torch.device("cpu") if first.is_meta else first.device)
            buffer = torch.empty(nbytes, dtype=torch.uint8, device=place)
            made: dict[int, torch.Tensor] = {}
            for name, view in moved.items():  # a parameter with several names stays one
                before = tensors[name]
                if id(before) not in made:
                    values = window(buffer, view)
                    if isinstance(before, nn.Parameter):
                        values = torch.Tensor._make_subclass(type(before), values, False)
                        values.__dict__.update(before.__dict__)
                    made[id(before)] = values.requires_grad_(before.requires_grad)
                new[name] = made[id(before)]
    return new


def _moved(views: Views, types: Types) -> Views:
    """Windows on a new storage that begins where the first of them does.

    They keep their places: their types stay, or change from one to one; nothing where that is not so.
    """
    if all(types[name] == view.dtype for name, view in views.items()):
        start = min(view.byte_start for view in views.values())
        start -= start % ALIGNMENT
        return {name: view.on(0, view.byte_start - start) for name, view in views.items()}
    if len({(view.dtype, types[name]) for name, view in views.items()}) > 1:
        return {}
    first = min(view.offset for view in views.values())
    return {n: View(0, types[n], v.offset - first, v.shape, v.strides) for n, v in views.items()}
