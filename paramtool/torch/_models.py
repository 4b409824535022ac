"""Files into models: every name of the model gets its value, what it ties stays tied, what it does not stays apart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote

import torch
from torch import nn

from paramtool import formats
from paramtool.commands import said_rows
from paramtool.commands.load import refuse_dataless
from paramtool.commands.pinned import Pin, pin
from paramtool.commands.progress import Path
from paramtool.commands.refuse_unlocked import refuse_unlocked
from paramtool.commands.variants import answered
from paramtool.engine.compare.difference import format_difference
from paramtool.engine.read.source import Source
from paramtool.errors import ModelError, TieError, listed, plural, some
from paramtool.formats.files import is_folder
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.display import Displayed, Row, few
from paramtool.model.inflating import limiting
from paramtool.passes import select
from paramtool.passes.compat.check import Apart, Verdict, judge
from paramtool.passes.compat.constraints import TieQuestion
from paramtool.passes.compat.wanted import Wanted, plain_window, wanted_by
from paramtool.torch._fit import check_request, refuse_unfit
from paramtool.torch._live import described, tensors_of
from paramtool.torch._places import Places, Tensors, places
from paramtool.torch._saved_names import RenamedCheckpoint, config_of, is_of_transformers, renamed, saved_wanted
from paramtool.torch.tensors import batches, torch_type


@dataclass(frozen=True, slots=True, repr=False)
class Loaded(Displayed):
    """What `load_model` did not find, and what it did not need."""

    missing: tuple[str, ...]
    """Names of the model that the file lacks and that no tied partner filled."""
    unexpected: tuple[str, ...]
    """Names of the file that the model lacks, and whose memory no other name brought in."""
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

    `prefix` is what the file calls the model: `encoder` takes `encoder.weight` as `weight`, and nothing outside.
    Files of transformers' save_pretrained have other names than some models, and other tensors: where the model is one
    of transformers and the file lacks its names, these become what from_pretrained makes of them.

    TieError where the model ties names that the file holds with different values; ModelError where shapes or types do
    not fit, or where the model has tensors that cannot be filled.  Both are RuntimeErrors, as load_state_dict raises.
    LockError by `lock`, `locked_as` and `content_only` as of `paramtool.load_file`, and where the model does not share
    what the lock ties.  UsageError where `device` or `dtype` do not fit the model's own tensors; UnsafeError,
    `allow_class` and `allow_unknown` as of `paramtool.read`.  Nothing changes before everything was checked.
    """
    pinned, tensors = pin(lock, locked_as, content_only), tensors_of(model)
    where = (whole := _read(path, pinned, allow_class, allow_unknown)).files[0].path
    refuse_unfit(where, model, tensors)
    check_request(tensors, assign, device := torch.device(device) if device is not None else None, dtype)
    chosen, as_it_is = _part(whole, tensors, only, prefix)
    part = (named := _as_the_model_calls_it(model, tensors, as_it_is)).part
    present = {name: entry for name, entry in part.entries.items() if name in tensors}
    target = places(model, tensors, _torch_types(present), assign=assign, device=device, dtype=dtype)
    verdict, questions = judge(wanted := wanted_by(target.described()), part, whole)
    _refuse_untied(where, pinned, part, wanted)
    try:
        _refuse(where, verdict, replace(part, entries=present), strict, named=named)
    except ModelError as error:
        raise _with_command(error, verdict, path, as_it_is, model=model, tensors=tensors) from None
    _refuse_rows(path, model, whole if chosen is None else select.section(whole, chosen), prefix, named=named)
    named.refuse(where, questions)
    del tensors  # what is replaced goes at once
    _put(target, replace(part, entries=present), verdict, questions, named=named)
    return Loaded(verdict.lacks, verdict.unused, chosen or "", _on_meta(model))


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


def _torch_types(entries: Mapping[str, Entry]) -> dict[str, torch.dtype]:
    """The types that tensors of a file have in torch."""
    windows = ((name, plain_window(entry.value)) for name, entry in entries.items())
    return {name: torch_type(view) for name, view in windows if view is not None}


def _put(
    target: Places, part: Checkpoint, verdict: Verdict, questions: Sequence[TieQuestion], *, named: RenamedCheckpoint
) -> None:
    """Read what the model takes of a part, once the bytes are proved, and put it where it belongs."""
    taken = replace(part, entries={name: entry for name, entry in part.entries.items() if name not in named.made})
    with Source(part) as source, torch.no_grad():
        _prove(part.files[0].path, source, (taken, named.sources), questions)
        target.keep(verdict.lacks)
        _fill(target, source, taken, named)


def _fill(target: Places, source: Source, taken: Checkpoint, named: RenamedCheckpoint) -> None:
    """Read what the model takes as it is, then what is made of several tensors of the file."""
    for batch in batches(source, taken, "cpu"):
        target.take(batch)
    for batch in batches(source, named.sources, "cpu"):
        for made in named.take(batch):
            target.take(made)


def _prove(where: str, source: Source, taken: Iterable[Checkpoint], questions: Sequence[TieQuestion]) -> None:
    """The CRCs of all that is read, and the ties; TieError where the file holds two values for one tensor."""
    for storage in {int(view.storage) for one in taken for _, view in one.windows()}:
        source.prove_later(storage)
    source.settle()
    for apart in answered(source, questions):
        raise _tie_error(where, apart)


def _part(whole: Checkpoint, tensors: Tensors, only: str | None, prefix: str) -> tuple[str | None, Checkpoint]:
    """The section that is loaded, and its names as the model calls them."""
    prefix = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
    chosen = select.section_for(whole, [prefix + name for name in tensors]) if only is None else only
    part = whole if chosen is None else select.section(whole, chosen)
    return chosen, select.under(part, prefix) if prefix else part


def _as_the_model_calls_it(model: nn.Module, tensors: Tensors, part: Checkpoint) -> RenamedCheckpoint:
    """A file's own names, or those that from_pretrained gives its tensors, where the model has more of these."""
    own = sum(name in part.entries for name in tensors)
    other = renamed(model, part, tensors) if own < len(tensors) else None
    if other is not None and sum(name in other.part.entries for name in tensors) > own:
        return other
    return RenamedCheckpoint(part, {}, replace(part, entries={}))


def _refuse(
    where: str, verdict: Verdict, taken: Checkpoint, strict: bool, *, named: RenamedCheckpoint
) -> None:  # fmt: skip
    """ModelError where what is taken does not fit or has no data, and, when `strict`, where names are left over."""
    _refuse_clashes(where, verdict, named)
    refuse_dataless(taken)
    if strict and (verdict.lacks or verdict.unused):
        raise ModelError(f"{where}: {_explain(verdict)}", hint=verdict.advice or "strict=False loads what fits")


def _with_command(
    error: ModelError, verdict: Verdict, path: Path, part: Checkpoint, *, model: nn.Module, tensors: Tensors
) -> ModelError:
    """The error with the command that writes what the model loads, where one undoes a fusion or changes the dialect.

    No command changes types, or leaves out names.
    """
    from paramtool.commands.loads_after import CONVERT, loads_after

    if not (verdict.lacks or verdict.shapes):
        return error
    found = loads_after(part, (wanted_by(described(tensors)), saved_wanted(model, tensors)))
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
