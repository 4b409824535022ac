"""What a model makes of a file, found before anything changes: by its names, and by its own code where it has some."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from paramtool.engine.read.source import Source
from paramtool.lazy_dataclass import dataclass
from paramtool.model import objects as trees
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import EMPTY, Node, is_extra_state, map_tensors, objects_in, subtree, tensor_names
from paramtool.passes import select
from paramtool.passes.compat.check import TypeClash, Verdict, judge
from paramtool.passes.compat.constraints import TieQuestion
from paramtool.passes.compat.wanted import Wanted, plain_window
from paramtool.passes.module_versions import versions_of
from paramtool.torch._protocol import (
    Answer,
    has_own_code,
    inside,
    state_of,
    tried,
)
from paramtool.torch._saved_names import RenamedCheckpoint, renamed, unchanged
from paramtool.torch.tensors import torch_type

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Held:
    """What of a file is a model's, by the names that the model has for it."""

    chosen: str
    """The section that it is; empty for the whole file."""
    section: Checkpoint
    """That section, by the file's own names."""
    prefix: str
    """What they have before the model's; with its dot, or empty."""
    as_it_is: Checkpoint
    """By the names that the file has, without the section and the prefix."""
    named: RenamedCheckpoint
    things: Mapping[str, Node]
    """What is no tensor, or holds some."""
    versions: Node | None
    """The versions of modules."""
    objects: frozenset[str]
    """Those of `things` that no tensor is in, beside the tensors of a state dict of torch; without extra state."""

    @property
    def part(self) -> Checkpoint:
        """All tensors."""
        return self.named.part

    def stored(self, names: Collection[str] | None = None) -> Checkpoint:
        """Those that are read as they are; with `names`, no others."""
        made = self.named.made
        kept = {n: e for n, e in self.part.entries.items() if n not in made and (names is None or n in names)}
        return replace(self.part, entries=kept)


def held_of(model: nn.Module, tensors: Tensors, whole: Checkpoint, only: str | None, prefix: str) -> Held:
    """What of a checkpoint is a model's: a section, the names under a prefix, without what torch.compile put in."""
    prefix = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
    chosen = select.section_for(whole, [prefix + name for name in tensors]) if only is None else only
    section = part = whole if chosen is None else select.section(whole, chosen)
    tree = part.objects
    if prefix:
        part = select.under(part, prefix)
    new = select.compiled(part.entries, tensors)
    part = replace(part, entries={new.get(name, name): entry for name, entry in part.entries.items()})

    def renamed_to(name: str) -> str:
        return new.get(name := name.removeprefix(prefix), name)

    short = select.bare if new else str
    things = {
        short(name.removeprefix(prefix)): map_tensors(node, renamed_to)
        for name, node in objects_in(tree)
        if name.startswith(prefix)
    }
    named = unchanged(part)  # or as from_pretrained does, where that fits better
    if tensors.keys() - part.entries.keys() and (other := renamed(model, part, tensors)) is not None:
        named = max(named, other, key=lambda one: len(tensors.keys() & one.part.entries.keys()))
    versions = versions_of(subtree(tree, prefix[:-1])) or versions_of(tree, prefix, short)
    is_state = whole.format.startswith("torch") and any(
        isinstance(one, trees.TensorRef) for _, one in (tree.items if isinstance(tree, trees.Mapping) else ())
    )
    beside = (name for name, node in things.items() if is_state and not any(tensor_names(node)))
    objects = frozenset(name for name in beside if not is_extra_state(name))
    return Held(chosen or "", section, prefix, part, named, things, versions, objects)


@dataclass(frozen=True, slots=True)
class Asking:
    """What is known of the way in which a model takes a file."""

    own: bool
    """Whether the model, or what it is made of, has code of its own for it."""
    answer: Answer | None
    """What that code does with it; None where there is none, or where it did not show."""
    seen: Checkpoint
    """The tensors of the file that are copied as they are, by the names of those that they go into."""
    types: Mapping[str, torch.dtype | None]
    """{name of the model that gets a value: the type that the file has for it, where it is the file's own}."""
    lent: Collection[str]
    """Names of the file whose tensors are copied from, and not kept."""
    strange: Mapping[str, str]
    """What the model takes and only code could make: {name: what it is}."""

    @property
    def is_unknown(self) -> bool:
        """Whether only loading shows what the model's code does."""
        return self.own and self.answer is None


def ask(model: nn.Module, tensors: Tensors, held: Held, source: Source) -> Asking:
    """Whether a model has code of its own for loading, and what that makes of a file."""
    part = held.part
    present = replace(part, entries={name: entry for name, entry in part.entries.items() if name in tensors})
    if not has_own_code(model, tensors):
        return Asking(False, None, present, _types(tensors, present, ()), frozenset(held.stored().entries), {})
    stored = held.stored()
    state, unmade = state_of(source, stored, held.things, held.versions, frozenset(stored.entries))
    answer = tried(model, tensors, state)
    names = {*tensors}
    with suppress(Exception):  # whatever a module's code needs for it
        names.update(model.state_dict())
    strange = {name: what for name, what in unmade.items() if is_extra_state(name) or name in names}
    if answer is None:
        return Asking(True, None, present, _types(tensors, present, tensors), (), strange)
    sources = {name: other for name, other in answer.sources.items() if other in part.entries}
    made = {name: name for name in held.named.made}
    seen = replace(part, entries={name: part.entries[other] for name, other in {**sources, **made}.items()})
    lacking = set(answer.missing) - seen.entries.keys()
    types = _types(tensors, seen, [name for name in tensors if name not in lacking])
    return Asking(True, answer, seen, types, answer.lent, strange)


def _types(tensors: Tensors, seen: Checkpoint, filled: Collection[str]) -> dict[str, torch.dtype | None]:
    views = {name: plain_window(entry.value) for name, entry in seen.entries.items() if name in tensors}
    known = {name: torch_type(view) for name, view in views.items() if view is not None}
    return dict.fromkeys((*filled, *views)) | known


def judged(
    wanted: Mapping[str, Wanted], held: Held, whole: Checkpoint, asked: Asking
) -> tuple[Verdict, tuple[TieQuestion, ...]]:
    """The verdict on a model, and the questions that bytes have to decide.

    Names are judged as of any variant.  Where a model has code of its own, that code says what is missing or left over,
    and only tensors that it leaves as they are are judged; where it does not show, nothing but ties is.
    """
    part = held.part
    if not asked.own:
        return judge(wanted, part, whole)
    parts = inside(held.things)
    part = replace(part, entries={name: entry for name, entry in part.entries.items() if name not in parts})
    verdict, questions = judge(wanted, part, whole)
    if asked.answer is None:
        return replace(verdict, shapes=(), types=()), questions
    plain = {name: one for name, one in wanted.items() if one.view is not None}
    fit, questions = judge(plain, asked.seen, whole)
    filled = {one.name for one in fit.filled} | asked.seen.entries.keys()
    lines = asked.answer.error.split("\n\t")[1:]
    sizes = {f"size mismatch for {one.name}": one for one in verdict.shapes}
    refused = (line.strip() for line in lines if line.partition(":")[0] not in sizes)
    named = [((one + '"load_state_dict"').split('"')[1], f"refused by torch ({one})") for one in refused]
    return replace(
        verdict,
        lacks=tuple(name for name in dict.fromkeys(asked.answer.missing) if name not in filled),
        unused=tuple(
            name for name in dict.fromkeys(asked.answer.unexpected)
            if name in verdict.unused or name in held.objects or any(tensor_names(held.things.get(name, EMPTY)))
        ),
        filled=fit.filled,
        shapes=tuple(sizes[at] for line in lines if (at := line.partition(":")[0]) in sizes),
        types=(*fit.types, *(TypeClash(name, why, "what it takes") for name, why in named)),
    ), questions  # fmt: skip
