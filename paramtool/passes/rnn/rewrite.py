"""A checkpoint with its networks in another layout: the plan that rewrites them and leaves everything else alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from glob import escape

from paramtool import layouts
from paramtool.errors import FormatError, LayoutError, PlanError, UsageError, leading, listed, plural
from paramtool.layouts import evidence as layout_evidence
from paramtool.layouts.networks import Network, named
from paramtool.layouts.spec import MERGES, parse, text
from paramtool.model import alias
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.model.optimizer import Move, SlotKind, SlotTargets
from paramtool.model.plan import Plan, Target
from paramtool.model.view import Shapes, View, Views, contiguous, reshaped
from paramtool.passes.rewriting import NewTensors, Outcome, replaced
from paramtool.passes.rnn import stacking
from paramtool.passes.rnn.convert import Converted, convert, fused_networks, kept_off
from paramtool.passes.rnn.find import NetworkRequest, find
from paramtool.passes.rnn.stacking import Stack


def together(
    checkpoint: Checkpoint,
    converted: Iterable[Converted],
    keep_names: bool,
    skip_unsupported: bool = False,
    *,
    split_content: bool = False,
    merges: bool = False,
) -> tuple[Plan, Outcome]:
    """The plan that writes converted networks in place of the old ones, and everything else unchanged.

    Networks that share their tensors in the source share them in the output.  `split_content` is as for `alias.build`;
    with `merges` the output itself merges the outputs of two directions as a spec says.
    """
    everything = list(converted)
    # LayoutError if a conversion would sum or shift integers, which can leave their range; moving them is fine
    for one in everything:
        for target in (*one.targets, *one.kept):
            calculated = any(copy.terms and not copy.is_plain for copy in target.copies)
            if calculated and not target.dtype.is_inexact:
                raise LayoutError(
                    f"{checkpoint.path}: {_where(one)}: {target.name!r} would be calculated from tensors of "
                    f"{target.dtype.name}; expected floating point numbers",
                    hint="its scales are not known: dequantise the network first",
                )
    stays = [_is_there(checkpoint, one) for one in everything]
    there = [one for one, is_there in zip(everything, stays, strict=True) if is_there]
    converted = [one for one, is_there in zip(everything, stays, strict=True) if not is_there]
    whole = alias.build(checkpoint, parts=False)
    old = {name for one in converted for name in one.source.tensors.values()}
    stale = {name for one in converted for name in one.source.raw.values() if name in checkpoint.entries}
    consumed = old | stale | _kept(checkpoint, converted) | _replaced(converted, whole)
    taken = checkpoint.entries.keys() - (consumed - old if keep_names else consumed)
    clashes: list[str] = []
    for one in converted:
        made = [target.name for target in (*one.targets, *one.kept)]
        clashes += [f"{name!r} is another tensor" for name in made if name in taken]
        taken |= {*made}
    if clashes:
        raise PlanError(
            listed(f"{checkpoint.path}: already has {plural(len(clashes), 'name')} of the new layout:", clashes),
            hint="--rename MODULE=OTHER gives the new tensors other names",
        )
    new = [
        NewTensors(
            one.source.at, (*one.targets, *one.kept), {name: tensor for tensor, name in one.tensors.items()},
            tuple(one.source.tensors.values()),
        )
        for one in converted
    ]  # fmt: skip
    plan, outcome = replaced(
        checkpoint,
        new,
        consumed,
        whole,
        kept=dict(_windows(checkpoint, converted)) if keep_names else {},
        shares=("shares memory with converted tensors", "share memory with converted tensors"),
        skip_unsupported=skip_unsupported,
        split_content=split_content,
    )
    where = checkpoint.path
    gone = {at for one in everything for at in (one.source.at, *one.source.stacked)}
    plan = replace(
        plan,
        modules=(
            *(module for module in checkpoint.modules if module.at not in gone),
            *(_module(one, checkpoint, stay) for one, stay in zip(everything, stays, strict=True)),
        ),
        requires=tuple(replace(one, message=f"{where}: {one.message}") for c in everything for one in c.requires),
    )
    told = [*_assumptions(everything, merges)]
    if there:
        buffers = {one.at: one.layout for one in fused_networks(checkpoint, whole).values()}
        names = [
            _where(one)
            + (f" (windows of one buffer in {buffers[at]}'s order)" if (at := one.source.at) in buffers else "")
            for one in there
        ]
        told.append(f"already in the wanted layout, and left unchanged: {leading(names, 8)}")
    return plan, replace(outcome, warnings=(*told, *outcome.warnings))


def moves(checkpoint: Checkpoint, converted: Iterable[Converted]) -> tuple[Move, ...]:
    """How the parameters of converted networks are made of the old ones, for what an optimizer keeps for them."""
    return tuple(_move(one) for one in converted if not _is_there(checkpoint, one))


def _move(one: Converted) -> Move:
    shapes = {tensor: target.shape for tensor, target in zip(one.tensors, one.targets, strict=True)}

    def through(views: Views, kind: SlotKind) -> SlotTargets:
        done = convert(one.source, views, one.layout, one.options, at=one.at, shapes=shapes, carry=kind)
        kinds = dict.fromkeys(change.kind for change in one.changes)
        rates = tuple(f"{_where(one)}: {_RATES[change]}" for change in kinds if change in _RATES)
        return SlotTargets(done.targets, done.requires, rates)

    old = tuple(dict.fromkeys(one.source.tensors.values()))
    return Move(old, tuple(target.name for target in one.targets), through)


_RATES = {
    "summed": "two biases were summed: both moved at each step, and their sum will move by one step only; a learning "
    "rate of twice the group's continues as before",
    "split": "one bias became two, which both move at each step: their sum will move twice as far as the one bias did",
}
"""{kind of a change: what it does to the steps of an optimizer}"""


def _is_there(checkpoint: Checkpoint, one: Converted) -> bool:
    """Whether a network has its new layout and its new names already: then it is left unchanged."""
    if one.kept or one.tensors != one.source.tensors or _kept(checkpoint, [one]):
        return False
    views = checkpoint.views()
    pairs = [(target, views[target.name]) for target in one.targets]
    if any((target.shape, target.dtype) != (view.shape, view.dtype) for target, view in pairs):
        return False
    if (one.layout.name, one.options) == (one.source.layout.name, one.source.options):
        return True
    return all(_one_window(target, view) == view for target, view in pairs)


def _replaced(converted: list[Converted], whole: AliasGraph) -> set[str]:
    """Names that are windows on new tensors already, as `--keep-names` records them."""
    found: set[str] = set()
    for one in converted:
        alias_sets = {whole.names[name].alias_set for name in one.source.tensors.values()}
        for target in one.targets:
            member = whole.names.get(target.name)
            if member and member.alias_set in alias_sets and _one_window(target, member.source) == member.source:
                found.add(target.name)
    return found


def _kept(checkpoint: Checkpoint, converted: list[Converted]) -> set[str]:
    """The tensors that earlier conversions kept for these networks."""
    ats = {at for one in converted for at in (one.source.at, *one.source.stacked)}
    return {name for name in checkpoint.entries if any(kept_off(at, name) is not None for at in ats)}


def _windows(checkpoint: Checkpoint, converted: list[Converted]) -> Iterator[tuple[str, View]]:
    """The old names with their windows on new tensors; PlanError if one is not a window or belongs to two networks."""
    seen: set[str] = set()
    for one in converted:
        views = {t.name: contiguous(t.name, t.dtype, t.shape) for t in one.targets}
        made = Network(one.at, one.layout, one.form, one.spec, one.options, one.tensors)
        back = convert(made, views, one.source.layout, one.source.options, at=one.source.at)
        by_tensor = dict(zip(back.tensors, back.targets, strict=True))
        for own, name in one.source.tensors.items():
            entry = checkpoint.entries[name]
            assert isinstance(entry.value, View)
            view = _one_window(by_tensor[own], entry.value)
            if view is None or name in seen:
                why = "is a part of two networks, so it cannot be a view of both"
                if view is None:
                    why = f"is not a window on the tensors of layout {one.layout.name}: order or values differ"
                raise PlanError(
                    f"{checkpoint.path}: {name!r} {why}",
                    hint="drop --keep-names to leave the old names out; to keep both, dedup a file that has both",
                )
            seen.add(name)
            yield name, view


def _one_window(target: Target, wanted: View) -> View | None:
    """The window that a target is a copy of, in the wanted shape; None if it is not a copy of a single window."""
    copies = target.copies
    if len(copies) != 1 or not copies[0].is_plain or not copies[0].destination.is_contiguous:
        return None
    view = reshaped(copies[0].source, wanted.shape)
    return view if view is not None and view.dtype == wanted.dtype else None


PARTS = ("torch", "torch.cell")
"""Layouts to which `unfuse` restores networks exactly as they were."""


def _module(one: Converted, checkpoint: Checkpoint, stays: bool) -> Module:
    """What the output's record says about a network; for an unchanged network, where it originally came from."""
    changes = "; ".join(dict.fromkeys(change.what for change in one.changes))
    old = f" at {json.dumps(one.source.at)}" if one.at != one.source.at and not one.source.stacked else ""
    source = f"converted from {layouts.words(one.source.layout.name, one.source.options)}{old}"
    source += f": {changes}" if changes else ""
    told = [fact for layout in (one.layout, one.source.layout) for fact in (*layout.assumed, *layout.required)]
    unseen = [fact for fact in dict.fromkeys(told) if one.spec.has(fact)]
    parts = one.source.layout.name if one.source.layout.name in PARTS else ""
    shapes: Shapes = {}
    if parts:  # those that differ from those of the layout
        there, tensors = checkpoint.shapes(), one.source.tensors
        pairs = ((tensor, there[tensors[tensor.name]]) for tensor in one.source.stored())
        shapes = {tensor.name: shape for tensor, shape in pairs if shape != tensor.shape}
    if stays:
        before = next((module for module in checkpoint.modules if module.at == one.at), None)
        source, parts, shapes = (before.source, before.parts, before.shapes) if before else ("", "", {})
    said, options, evidence = text(one.spec, unseen), dict(one.options), layout_evidence.on_gpu(one.layout)
    return Module(
        one.at,
        one.layout.name,
        said,
        {},
        options,
        source,
        parts=parts,
        shapes=shapes,
        stacked=one.source.stacked,
        evidence=evidence,
    )


def _where(one: Converted) -> str:
    return repr(one.source.at) if one.source.at else "the network"


def _assumptions(converted: list[Converted], merges: bool) -> Iterator[str]:
    """Warnings about what was assumed."""
    for one in converted:
        for fact, other in one.source.assumed:
            yield f"{_where(one)}: assumed {fact}, which no tensor shows; use {other} if that is wrong"
        if one.spec.merge != "concat" and "merge" not in one.form.expresses and not merges:
            yield (
                f"{_where(one)}: has merge={one.spec.merge}, which layout {one.layout.name} cannot express: the "
                f"program that runs it has to give the outputs of its two directions, {one.spec.recurrent} wide each, "
                f"{MERGES[one.spec.merge]}; the record in the output says so"
            )
        # What only the programs of one of the two layouts do beside a network
        old, new = one.source.layout.outside, one.layout.outside
        yield from (f"{_where(one)}: {text}" for text in old if text not in new)
        yield from (f"{_where(one)}: {text}" for text in new if text not in old)
        if one.source.layout.name == "torch.cell" and one.spec.layers > 1:
            yield f"{_where(one)}: assumed that its {one.spec.layers} cells are the layers of one network"
        if one.spec.kind == "rnn" and not one.spec.activation:
            unsure = "no tensor shows whether its activation is tanh or relu"
            yield f'{_where(one)}: {unsure}; --spec "activation=..." records it'


# --- A conversion made again from what its output's record says, so that `verify` can compare what it wrote -----------
#
# The record has the network, the layout that was written and the layout it came from.  It does not have everything that
# was said to `convert`.  Where a conversion cannot be repeated with certainty, there is no answer.


_SOURCE = re.compile(r'converted from ([^\s:]+(?::[^\s:]+)?)(?: at ("(?:[^"\\]|\\.)*"))?')


def came_from(module: Module) -> tuple[str, str, str] | None:
    """The layout, the same with its options, and the module that a network was converted from, as its record says."""
    said = _SOURCE.match(module.source)
    try:
        return (layouts.parse(said[1])[0], said[1], json.loads(said[2]) if said[2] else module.at) if said else None
    except (UsageError, ValueError):
        return None


def converted_again(module: Module, made: Checkpoint, source: Checkpoint) -> Converted | None:
    """A network of `made` converted from `source` once more; None where that is not certain.

    It is not where `source` has tensors that an earlier conversion kept, and where the old layout has options that
    neither the record nor the source says.  A tensor that it gives may be missing in `made`.
    """
    said = came_from(module)
    if said is None or module.refused:
        return None
    name, words, at = said
    olds = module.stacked or (at,)
    described = all(any(one.at == old and one.layout == name for one in source.modules) for old in olds)
    try:
        left_out = _OF_STACK if module.stacked else ()
        facts = {fact: value for fact, value in parse(module.spec).items() if fact not in left_out}
        if layouts.find(name).options and not described and name == words:
            return None
        if any(kept_off(old, name) is not None for old in olds for name in source.entries):
            return None
        others = [(layouts.find(one[0]), one[2]) for one in map(came_from, made.modules) if one and one[2] not in olds]
        beside = tuple(
            escape(one)
            for one in source.entries
            if (one in made.entries and one.startswith(olds)) or any(other in named(how, one) for how, other in others)
        )
        request = NetworkRequest(None if described else words, facts, tuple(filter(None, olds)), ignore=beside)
        found = [one for one in find(source, request) if one.network.at in olds]
        if len(found) != len(olds) or any(one.network.layout.name != name for one in found):
            return None
        network, shapes = found[0].network, found[0].shapes if module.layout == found[0].parts else {}
        if module.stacked:
            news = [one.at for one in made.modules if one.stacked == olds] if len(olds) == 1 else [module.at]
            stacks = stacking.stacked("", [one.network for one in found], [Stack(olds, tuple(news))])
            network, shapes = next(one for one in stacks if one.at == module.at), {}
        keep = any(kept_off(module.at, name) is not None for name in made.entries)
        views, layout = source.views(), layouts.find(module.layout)
        done = convert(network, views, layout, module.options, at=module.at, keep_split=keep, shapes=shapes)
    except (FormatError, LayoutError, PlanError, UsageError):
        return None
    there = made.views()
    targets = [target for target in (*done.targets, *done.kept) if target.name in there]
    return done if all(there[target.name].shape == target.shape for target in targets) else None


_OF_STACK = ("layers", "input")
"""Facts that a stack and its layers do not have in common."""
