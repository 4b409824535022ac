"""What a model makes of a file, found before anything changes: by its names, and by its own code where it has some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from paramtool.engine.read.source import Source
from paramtool.grouping import omit
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import EMPTY, is_extra_state, tensor_names
from paramtool.passes.compat.check import TieQuestion, TypeClash, Verdict, judge
from paramtool.passes.compat.wanted import Wanted, plain_window
from paramtool.torch._live import Tensors, refuse_unfit
from paramtool.torch._protocol import Answer, Held, given_of, is_known, own_code, tried, whole_of
from paramtool.torch.tensors import torch_type


@frozen
class Asking:
    """What is known of the way in which a model takes a file."""

    own: bool
    """Whether the model, or what it is made of, has code of its own for it."""
    answer: Answer | None
    """What that code does with it; None where there is none, or where it did not show."""
    seen: Checkpoint
    """The tensors of the file that are copied as they are, by the names of those that they go into."""
    types: Mapping[str, torch.dtype | None]
    """{name of the model that gets a value, but for those that are put in whole: its type, where the file says it}."""
    lent: Collection[str]
    """Names of the file whose tensors are copied from, and not kept."""
    strange: Mapping[str, str]
    """What the model takes and only code could make: {name: what it is}."""
    older: tuple[str, ...] = ()
    """Names of the model that its code may take as those of an older version, since the file has none."""

    @property
    def is_unknown(self) -> bool:
        """Whether only loading shows what the model's code does."""
        return self.own and self.answer is None


def ask(model: nn.Module, tensors: Tensors, held: Held, source: Source, assign: bool = False) -> Asking:
    """Whether a model has code of its own for loading, and what that makes of a file; errors of `refuse_unfit`."""
    part = held.part
    present = replace(part, entries={name: entry for name, entry in part.entries.items() if name in tensors})
    refuse_unfit(held.section.path, model, {name: tensors[name] for name in present.entries}, assign)
    made_of = (e.value for e in present.entries.values() if isinstance(e.value, Compound))
    code = own_code(model, tensors)
    if not (code or (assign and any(value.kind not in PENDING for value in made_of))):
        return Asking(False, None, present, types_of(present, present.entries), part.entries, {})
    given = given_of(source, held, part.entries)
    whole = whole_of(tensors, given, held, assign, None, None)
    answer = tried(model, tensors, given, whole) if all(map(is_known, code)) else None
    names = {*tensors}
    with suppress(Exception):  # whatever a module's code needs for it
        names.update(model.state_dict())
    strange = {name: what for name, what in given.unmade.items() if is_extra_state(name) or name in names}
    if answer is None:
        since = {
            at for at, module in model.named_modules()
            if held.versions is held.tree is None and (module._version or 1) > 1
            and not is_known(module._load_from_state_dict)
        }  # fmt: skip
        older = tuple(name for name in tensors if name.rpartition(".")[0] in since)
        return Asking(True, None, present, types_of(present, tensors.keys() - whole.keys()), (), strange, older)
    seen = seen_by(held, answer)
    filled = {*seen.entries, *(tensors.keys() - set(answer.missing))} - whole.keys()
    return Asking(True, answer, seen, types_of(seen, filled), {*answer.sources.values()} - whole.keys(), strange)


def types_of(seen: Checkpoint, names: Iterable[str]) -> dict[str, torch.dtype | None]:
    """{name: the type of the plain tensor that is copied into it; None for no such}"""
    views = {name: plain_window(seen.entries[name].value) if name in seen.entries else None for name in names}
    return {name: torch_type(view) if view is not None else None for name, view in views.items()}


def seen_by(held: Held, answer: Answer) -> Checkpoint:
    """The tensors of the file that are copied as they are, by the names of those that they go into."""
    sources = {**answer.sources, **{name: name for name in held.named.made}}
    entries = {name: held.part.entries[other] for name, other in sources.items() if other in held.part.entries}
    return replace(held.part, entries=entries)


def judged(
    wanted: Mapping[str, Wanted], held: Held, whole: Checkpoint, asked: Asking
) -> tuple[Verdict, tuple[TieQuestion, ...]]:
    """The verdict on a model, and the questions that bytes have to decide.

    Names are judged as of any variant.  Where a model has code of its own, that code says what is missing or left over,
    and only tensors that it leaves as they are are judged; where it does not show, ties are, by the file's names.
    """
    parts = held.inside() if asked.own else ()
    verdict, questions = judge(wanted, replace(held.part, entries=omit(held.part.entries, parts)), whole)
    if asked.answer is None:
        verdict = replace(verdict, unused=(*verdict.unused, *sorted(held.objects - wanted.keys())))
        if asked.own:
            return replace(verdict, shapes=(), types=()), questions
        types = [*filter(_is_final, verdict.types)]
        types += (TypeClash(name, "an object", "a tensor") for name in sorted(held.objects & wanted.keys()))
        return replace(verdict, types=tuple(types)), questions
    plain = {name: one for name, one in wanted.items() if one.view is not None}
    fit, questions = judge(plain, asked.seen, whole)
    filled = {one.name for one in fit.filled} | asked.seen.entries.keys()
    told = {line.partition(":")[0]: line.strip() for line in asked.answer.error.split("\n\t")[1:]}
    sizes = {f"size mismatch for {one.name}": one for one in verdict.shapes}
    refused = omit(told, sizes).values()
    return replace(
        verdict,
        lacks=tuple(name for name in dict.fromkeys(asked.answer.missing) if name not in filled),
        unused=tuple(
            name for name in dict.fromkeys(asked.answer.unexpected) if held.tree is not None
            or name in verdict.unused or name in held.objects or any(tensor_names(held.things.get(name, EMPTY)))
        ),
        filled=fit.filled,
        shapes=tuple(one for at, one in sizes.items() if at in told),
        types=(
            *filter(_is_final, fit.types),
            *(TypeClash(_named(line), f"refused by torch ({line})", "what it takes") for line in refused),
        ),
    ), questions  # fmt: skip


def _is_final(clash: TypeClash) -> bool:
    """Whether a type does not fit; numbers of another are copied, and torch casts them."""
    both = (DTYPES.get(name) for name in (clash.found, clash.wanted))
    return any(dtype is None or dtype.block_elements != 1 for dtype in both)


def _named(line: str) -> str:
    """What a line of torch's error is about: what stands in quotes, or `size mismatch for NAME: ...`."""
    return line.split('"')[1] if '"' in line else line.removeprefix("size mismatch for ").partition(":")[0]
