"""Types by rule, as convert, fuse and unfuse apply them: the rules of flags and files, what they may lose, warnings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from paramtool.commands.layouts import types_of
from paramtool.commands.rearrangement import config_beside
from paramtool.engine.write.casting import Counts
from paramtool.errors import PlanError, listed, plural
from paramtool.formats import hf_config
from paramtool.formats.record import edits
from paramtool.grouping import omit
from paramtool.model import quantised
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.plan import Plan, Target
from paramtool.parts.schemes import packing_of
from paramtool.passes.types import dequantise, kinds
from paramtool.passes.types.apply import Typed, apply

if TYPE_CHECKING:
    from paramtool.commands.relayout_options import RelayoutOptions

CONFIG = hf_config.NAME
"""The file of a folder that says in which type its model is loaded."""


def asked(options: RelayoutOptions) -> kinds.TypeRules:
    """The rules of the files, and behind them, so that they count, those of the options."""
    tables = types_of(options.layout_file)
    own = {kind: patterns for table in tables for kind, patterns in table.kinds.items()}
    kinds.refuse_own(own)
    return kinds.TypeRules(
        (*(kinds.parse(text) for table in tables for text in table.dtype), *kinds.parse_all(options.dtype)),
        tuple(dict.fromkeys([*(word for table in tables for word in table.keep_float32), *options.keep_float32])),
        own,
    )


def typed(plan: Plan, checkpoint: Checkpoint, untouched: Container[str], options: RelayoutOptions) -> Typed | None:
    """The plan with the types that are asked for, and the record of its casts; None where nobody asks for types."""
    wanted = asked(options)
    if not (wanted.rules or wanted.keep or options.dequantise):
        return None
    packing = packing_of(config_beside(checkpoint.path)) if options.dequantise else None
    found = apply(plan, checkpoint.entries, wanted, packing)
    before = edits.types_of(checkpoint.path, plan.metadata)
    cast = {name: dtype for name, dtype in before.cast.items() if name in untouched} | dict(found.names)
    scaled = {name: others for name, others in before.dequantised.items() if name in untouched}
    record = {edits.TYPES: edits.types_text(cast, {**scaled, **found.dequantised})} if cast else {}
    return replace(found, plan=replace(found.plan, metadata={**found.plan.metadata, **record}))


def held(typed: Typed | None, plan: Plan) -> Typed | None:
    """What was cast of the tensors that an output holds, where its format stores names apart or leaves some out."""
    if typed is None:
        return None
    known, stored = {**typed.casts, **typed.names}, {target.name for target in plan.targets}
    owners = {name: one.owner for name, one in typed.plan.names.items()}
    there = stored | plan.names.keys()
    return replace(
        typed,
        plan=plan,
        casts={target.name: known[target.name] for target in plan.targets if target.name in known},
        names={name: dtype for name, dtype in typed.names.items() if name in plan.names},
        kept={name: why for name, why in typed.kept.items() if name in there},
        exact=frozenset(name for name in stored if owners.get(name, name) in typed.exact),
    )


def new_config(folder: str, made: Mapping[str, bytes]) -> dict[str, bytes]:
    """{config.json: its text} of a folder, or as it is `made`, without what it says of quantised weights.

    Empty where it says nothing of them.
    """
    path = os.path.join(folder, CONFIG)
    if not os.path.isfile(path):
        return {}
    config = json.loads(made[CONFIG]) if CONFIG in made else dict(hf_config.whole(path))
    kept = omit(config, quantised.IN_CONFIG)
    return {CONFIG: f"{json.dumps(kept, indent=2)}\n".encode()} if kept != config else {}


def dequantised_again(found: Checkpoint, source: Checkpoint) -> tuple[tuple[Target, ...], frozenset[str]]:
    """Weights of an output that were FP8 codes in its source, as these give them again, and what went with the codes.

    PlanError where they cannot be dequantised.
    """
    recorded = edits.types_of(found.path, found.metadata).dequantised
    mine, theirs = found.views(), source.views()
    both = [name for name in recorded if name in mine and name in theirs]
    names = [n for n in both if theirs[n].dtype.name in dequantise.FP8 and mine[n].dtype != theirs[n].dtype]
    if not names:
        return (), frozenset()
    again = dequantise.scaled(source.entries, packing_of(config_beside(source.path)), names)
    gone = {other for name in names for other in again[name].beside if other not in mine}
    return tuple(one.target(name, mine[name].dtype) for name, one in again.items()), frozenset(gone)


def judge(typed: Typed | None, allow_overflow: bool) -> Callable[[Counts], None]:
    """What raises PlanError where casts lose what they must not lose: the finite, and integers."""

    def judged(counts: Counts) -> None:
        if typed is None:
            return
        dtypes = {target.name: target.dtype.name for target in typed.plan.targets}
        lossy = [name for name in typed.exact if name in counts and (counts[name].rounded or counts[name].overflow)]
        if lossy:
            lines = [f"{name!r}: {typed.casts[name]} to {dtypes[name]} changes numbers" for name in sorted(lossy)]
            raise PlanError(
                listed(f"{typed.plan.source}: integers are cast only where nothing is lost:", lines),
                hint="a wider type holds them, or leave out the rule",
            )
        over = [name for name in typed.casts if name in counts and counts[name].overflow]
        if over and not allow_overflow:
            lines = [
                f"{name!r}: {counts[name].overflow} of {plural(counts[name].elements, 'number')} would not be finite "
                f"in {dtypes[name]}"
                for name in over
            ]
            raise PlanError(
                listed(f"{typed.plan.source}: {plural(len(over), 'tensor')} would overflow:", lines),
                hint=f"--dtype {quote(_called(over[0], typed.plan) + '=float32')} keeps it, "
                "bfloat16 has the range of float32, --allow-overflow writes infinities",
            )

    return judged


def warnings(typed: Typed | None, sidecars: Iterable[str]) -> Iterator[str]:
    """What a person has to know of the types of the output."""
    if typed is None:
        return
    yield from typed.warnings
    if typed.casts and any(os.path.basename(name) == CONFIG for name in sidecars):
        yield f"{CONFIG} says the types of the source, where it says a type (dtype, torch_dtype): these are not changed"


def _called(stored: str, plan: Plan) -> str:
    """A name of a stored tensor that the source has: its own, or that of a window on it."""
    return stored if stored in plan.names else next(name for name, one in plan.names.items() if one.owner == stored)
