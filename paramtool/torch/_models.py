"""Files into models: every name of the model gets its value, what it ties stays tied, what it does not stays apart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote

import torch
from torch import nn

from paramtool import formats
from paramtool.commands import said_rows
from paramtool.commands.pinned import Pin, pin
from paramtool.commands.progress import Path
from paramtool.commands.refuse_unlocked import refuse_unlocked
from paramtool.commands.variants import answered
from paramtool.engine.compare.difference import format_difference
from paramtool.engine.read.source import Source
from paramtool.errors import ModelError, TieError, listed, plural, some
from paramtool.formats.files import is_folder
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.display import Displayed, Row, few
from paramtool.model.inflating import limiting
from paramtool.passes import select
from paramtool.passes.compat.check import Apart, Verdict
from paramtool.passes.compat.constraints import TieQuestion
from paramtool.passes.compat.wanted import Wanted, plain_window, wanted_by
from paramtool.torch._asking import Asking, Held, ask, held_of, is_extra_state, judged
from paramtool.torch._live import described, refuse_unfit, tensors_of
from paramtool.torch._places import Tensors, check_request, install, renewed
from paramtool.torch._protocol import Watch, state_of
from paramtool.torch._saved_names import RenamedCheckpoint, config_of, is_of_transformers, saved_wanted
from paramtool.torch.tensors import batches, torch_type


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

    _facts = "`missing` and `unexpected`"

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """`missing, unexpected = load_model(...)`, as torch and safetensors have it."""
        return iter((self.missing, self.unexpected))

    def _rows(self, most: int) -> Iterator[Row]:
        """What was not found, and what was left over."""
        if self.section:
            yield "section", self.section
        for label, names in (("missing", self.missing), ("left over", self.unexpected), ("on meta", self.on_meta)):
            yield label, f"{len(names)}: {few(names)}" if names else "nothing"


@limiting
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
    max_inflated: int | None = None,
) -> Loaded:
    """Fill a model from any readable checkpoint.

    Every alias name of the file resolves.  A name that the file lacks is fine where a partner that the model ties it to
    was loaded; a name that the model lacks is fine where it shares the memory of one that was loaded.  Anything else
    is a ModelError when `strict`, and is reported otherwise.

    The model's tensors are filled where they are, and keep their types; those on the meta device are replaced by new
    ones of their types.  With `assign` all are replaced by new ones, of the types that the file has, as long as these
    are of the same kind (a float stays a float).  New tensors are on `device`, else where the old ones were, those of
    the meta device on the CPU; their floating types are `dtype`, if given.  They share memory just where the old
    ones did, whatever the file shares, and need gradients just where the old ones did; an optimizer that holds old
    parameters does not know them.  `Loaded.on_meta` names buffers that are in no file and have no memory yet.

    torch's own `load_state_dict` puts the values in, with the versions of modules and the extra state that the file
    holds, so that hooks, overrides and upgrades of the modules run as after `torch.load`.  What they would do is tried
    on a copy of the model without memory.  Where that does not show, names and shapes are found wrong only while
    the model is loaded, and the error names the tensors that changed before.  Objects are made where that runs no code:
    containers, numbers, strings, bytes, io.BytesIO, arrays and tensors of torch itself.

    `prefix` is what the file calls the model: `encoder` takes `encoder.weight` as `weight`, and nothing outside.  The
    `_orig_mod.` of torch.compile inside a name is found by itself, on either side.
    Files of transformers' save_pretrained have other names than some models, and other tensors: where the model is one
    of transformers and the file lacks its names, these become what from_pretrained makes of them.

    TieError where the model ties names that the file holds with different values; ModelError where shapes or types do
    not fit, or where the model has tensors that cannot be filled, or takes objects that only code could make.  Both are
    RuntimeErrors, as load_state_dict raises.
    LockError by `lock`, `locked_as` and `content_only` as of `paramtool.load_file`, and where the model does not share
    what the lock ties.  UsageError where `device` or `dtype` do not fit the model's own tensors; UnsafeError,
    `allow_class` and `allow_unknown` as of `paramtool.read`.  Nothing changes before all was checked that can be.
    """
    pinned, tensors = pin(lock, locked_as, content_only), tensors_of(model)
    where = (whole := _read(path, pinned, allow_class, allow_unknown)).files[0].path
    refuse_unfit(where, model, tensors)
    check_request(tensors, assign, device := torch.device(device) if device is not None else None, dtype)
    held = held_of(model, tensors, whole, only, prefix)
    asked = ask(model, tensors, held)
    new = renewed(tensors, _types_in(asked, tensors), assign=assign, device=device, dtype=dtype)
    wanted = wanted_by(described({**tensors, **new}))
    verdict, questions = judged(wanted, held, whole, asked)
    _refuse_untied(where, pinned, held.part, wanted)
    try:
        _refuse(where, verdict, held, asked, strict)
    except ModelError as error:
        raise _with_command(error, verdict, path, held, model=model, tensors=tensors) from None
    part = select.section(whole, held.chosen) if held.chosen else whole
    _refuse_rows(path, model, part, prefix, named=held.named)
    held.named.refuse(where, questions)
    with Source(held.part) as source, torch.no_grad():
        _prove(where, source, (held.stored(), held.named.sources), questions)
        missing, unexpected, ignored = _put(model, tensors, new, source, held=held, asked=asked, verdict=verdict)
    if strict and asked.is_unknown and (late := (*missing, *unexpected)):
        raise ModelError(
            f"{where}: what {type(model).__name__} does with it showed only while it was loaded, and {some(late, 8)} "
            f"{'is' if len(late) == 1 else 'are'} missing or left over; everything else was written",
            hint="strict=False takes that",
        )
    left = tuple(dict.fromkeys((*unexpected, *ignored)))
    return Loaded(missing, left, held.chosen, _on_meta(model))


def _read(path: Path, pinned: Pin | None, allow_class: Sequence[str], allow_unknown: bool) -> Checkpoint:
    """The checkpoint at a path; LockError where it is not the one of a lock."""
    whole = formats.read(path, allow_class=allow_class, allow_unknown=allow_unknown)
    if pinned is not None:
        refuse_unlocked(pinned, path, whole)
    return whole


def _refuse_untied(where: str, pinned: Pin | None, part: Checkpoint, wanted: Mapping[str, Wanted]) -> None:
    """LockError where a lock is given, and the model does not share what the file, and so the lock, ties."""
    if pinned is None or pinned.content_only:
        return
    tied: dict[object, str] = {}
    lines = []
    for name, one in wanted_by(part).items():
        if name in wanted and one.view is not None and one.view.numel:
            first = tied.setdefault((one.alias_set, one.view), name)
            if wanted[name].alias_set != wanted[first].alias_set:
                lines.append(f"{name!r} shares memory with {first!r} in the lock, and not in the model")
    if lines:
        hint = "tie them in the model; content_only=True judges tensors alone"
        raise pinned.refuse(where, lines, hint=hint)


def _types_in(asked: Asking, tensors: Tensors) -> dict[str, torch.dtype | None]:
    """{name of the model that gets a value: the type that the file has for it, where it is the file's own}."""
    views = {name: plain_window(entry.value) for name, entry in asked.seen.entries.items()}
    known = {name: torch_type(view) for name, view in views.items() if view is not None and name in tensors}
    return dict.fromkeys(asked.filled) | known


def _put(
    model: nn.Module, tensors: dict[str, torch.Tensor], new: Tensors, source: Source, *, held: Held, asked: Asking,
    verdict: Verdict,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """Let torch put a file into a model; what it did not find, what was left over, and what the model ignored."""
    where = held.part.files[0].path
    stored = held.stored() if asked.own else held.stored(tensors)
    state, _ = state_of(source, stored, held.things if asked.own else {}, held.versions, asked.lent)
    old = {name: tensors[name] for name in new} if asked.own else {}
    for name in verdict.lacks:
        if name in new and not asked.is_unknown:
            if tensors[name].is_meta:
                raise ModelError(
                    f"{name!r} is on the meta device, and the file holds only names that fill a part of it",
                    hint="model.to_empty(device='cpu') gives it memory",
                )
            new[name].detach().copy_(tensors[name])  # it stands on one memory with names that the file has
    install(model, tensors, new)
    tensors.update(new)  # what is replaced goes at once
    watch = Watch(state)
    try:
        with watch:
            found = model.load_state_dict(state, strict=False)
    except Exception as error:
        install(model, tensors, old)
        ids = {id(to) for to, _ in watch.copied}
        written = [name for name, tensor in tensors.items() if id(tensor) in ids and name not in old]
        raise ModelError(
            f"{where}: {type(model).__name__} raised {type(error).__name__} while it was loaded: {error!s:.1000}",
            hint=f"it changed before that: {some(written, 8)}" if written else "none of its tensors changed",
        ) from error
    missing, unexpected = (tuple(found[0]), tuple(found[1])) if found is not None else ((), ())
    for batch in batches(source, held.named.sources, "cpu"):
        for made in held.named.take(batch):
            for name, tensor in made.items():
                tensors[name].detach().copy_(tensor)
    if not asked.own:
        return verdict.lacks, verdict.unused, tuple(name for name in held.things if is_extra_state(name))
    lacks, unused = verdict.lacks, verdict.unused
    if asked.is_unknown:
        known = {*(one.name for one in verdict.filled), *held.named.made}
        lacks = tuple(name for name in missing if name not in known)
        unused = tuple(name for name in unused if name in unexpected)
        install(model, new, {name: old[name] for name in lacks if name in old})
    left = (name for name in unexpected if is_extra_state(name))
    return lacks, unused, (*left, *(name for name in watch.ignored(state) if name not in unexpected))


def _prove(where: str, source: Source, taken: Iterable[Checkpoint], questions: Sequence[TieQuestion]) -> None:
    """The CRCs of all that is read, and the ties; TieError where the file holds two values for one tensor."""
    for storage in {int(view.storage) for one in taken for _, view in one.windows()}:
        source.prove_later(storage)
    source.settle()
    for apart in answered(source, questions):
        raise _tie_error(where, apart)


def _refuse(where: str, verdict: Verdict, held: Held, asked: Asking, strict: bool) -> None:
    """ModelError where what is taken does not fit or has no data, and, when `strict`, where names are left over."""
    _refuse_clashes(where, verdict, held.named)
    if asked.strange:
        raise ModelError(
            listed(f"{where}: {plural(len(asked.strange), 'entry')} of the model would have to be made by code:",
                   [f"{name!r} is {what}" for name, what in asked.strange.items()]),
            hint="torch.load with weights_only=False runs it, if you trust the file; then model.load_state_dict",
        )  # fmt: skip
    if strict and not asked.is_unknown and (verdict.lacks or verdict.unused):
        raise ModelError(f"{where}: {_explain(verdict)}", hint=verdict.advice or "strict=False loads what fits")


def _with_command(
    error: ModelError, verdict: Verdict, path: Path, held: Held, *, model: nn.Module, tensors: Tensors
) -> ModelError:
    """The error with the command that writes what the model loads, where one undoes a fusion or changes the dialect.

    No command changes types, or leaves out names.
    """
    from paramtool.commands.loads_after import CONVERT, loads_after

    if not (verdict.lacks or verdict.shapes):
        return error
    found = loads_after(held.as_it_is, (wanted_by(described(tensors)), saved_wanted(model, tensors)))
    if not found:
        return error
    why = "its names are those of another dialect" if found.startswith(CONVERT) else "its record says how"
    return ModelError(error.message, hint=f"{why}: `{_line(path, found)}` writes what the model loads")


def _refuse_rows(path: Path, model: nn.Module, part: Checkpoint, prefix: str, *, named: RenamedCheckpoint) -> None:
    """ModelError where the file says that tensors hold other rows than the class of transformers has there."""
    if not is_of_transformers(model):
        return
    from paramtool.commands.loads_after import loads_with_rows

    tensors = tensors_of(model)
    taken = [named.renamed.get(name, name) for name in named.part.entries if name in tensors and name not in named.made]
    before = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
    names = [f"{before}{name}" for name in (*taken, *named.sources.entries)]
    found = said_rows.clashes(part, names, {}, config_of(model))
    if not found:
        return
    command = loads_with_rows(part, (wanted_by(described(tensors)), saved_wanted(model, tensors)), found)
    count = plural(len(found), "tensor has", "tensors have")
    raise ModelError(
        listed(f"{part.files[0].path}: {count} the shape that the model wants, and other rows:",
               [f"{one.name!r}: {one.found}; the model wants {one.wanted}" for one in found]),
        hint=f"`{_line(path, command)}` writes what the model loads" if command
        else "`paramtool unfuse` restores what was there before",
    )  # fmt: skip


def _line(path: Path, found: str) -> str:
    """A command on a file, with its output."""
    command, _, option = found.partition(" ")
    words = [command, quote(os.fspath(path)), *([option] if option else []), "-o"]
    return f"paramtool {' '.join(words)} out{'' if is_folder(path) else '.safetensors'}"


def _refuse_clashes(where: str, verdict: Verdict, named: RenamedCheckpoint) -> None:
    """ModelError with every name whose shape or type does not fit, and with what it is of in the file."""

    def told(name: str) -> str:
        """A name of the model, and what the file has for it."""
        return f"{name!r} ({words})" if (words := named.in_file(name)) else repr(name)

    def found(name: str, what: object) -> str:
        return f"{what}" if name in named.made else f"{what} in the file"

    wrong = [
        f"{told(clash.name)}: has shape {found(clash.name, list(clash.found))}; the model wants {list(clash.wanted)}"
        for clash in verdict.shapes
    ]
    wrong += [f"{told(c.name)}: is {found(c.name, c.found)}; the model wants {c.wanted}" for c in verdict.types]
    if wrong:
        count = plural(len(wrong), "tensor does", "tensors do")
        raise ModelError(listed(f"{where}: {count} not fit the model:", wrong))


def _explain(verdict: Verdict) -> str:
    texts = []
    for names, what in ((verdict.lacks, "lacks"), (verdict.unused, "holds, and the model does not want,")):
        if names:
            texts.append(f"{what} {plural(len(names), 'name')} ({some(names, 8)})")
    return f"of {plural(verdict.names, 'name')} of the model, the file " + "; it ".join(texts)


def _tie_error(where: str, apart: Apart) -> TieError:
    measured = f" ({difference})" if (difference := format_difference(apart.difference)) else ""
    return TieError(
        f"{where}: the model ties {apart.name!r} and {apart.other!r}, and the file holds them with different bytes"
        f"{measured}",
        hint="load into a model without this tie, or leave one of them out: paramtool export --names",
    )


def _on_meta(model: nn.Module) -> tuple[str, ...]:
    both = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return tuple(name for name, tensor in both if tensor.is_meta)
