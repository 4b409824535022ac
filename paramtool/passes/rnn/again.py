"""A conversion made again from what its output's record says, so that `verify` can compare what it wrote.

The record has the network, the layout that was written and the layout it came from.  It does not have everything that
was said to `convert`.  Where a conversion cannot be repeated with certainty, there is no answer.
"""

from __future__ import annotations

import json
import re
from glob import escape

from paramtool import layouts
from paramtool.errors import FormatError, LayoutError, PlanError, UsageError
from paramtool.layouts.spec import parse
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.passes.rnn import stacking
from paramtool.passes.rnn.convert import Converted, convert, kept_off
from paramtool.passes.rnn.find import NetworkRequest, find
from paramtool.passes.rnn.stacking import Stack

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
        beside = tuple(escape(one) for one in source.entries if one in made.entries and one.startswith(olds))
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
