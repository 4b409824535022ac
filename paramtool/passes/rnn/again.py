"""A conversion made again from what its output's record says, so that `verify` can compare what it wrote.

The record has the network, the layout that was written and the layout it came from.  It does not have everything that
was said to `convert`.  Where a conversion cannot be repeated with certainty, there is no answer.
"""

from __future__ import annotations

import re
from glob import escape

from paramtool import layouts
from paramtool.errors import FormatError, LayoutError, PlanError, UsageError
from paramtool.layouts.spec import parse
from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.passes.rnn.convert import Converted, convert, kept_off
from paramtool.passes.rnn.find import NetworkRequest, find

SOURCE = re.compile(r"converted from ([^\s:]+)")


def converted_again(module: Module, made: Checkpoint, source: Checkpoint) -> Converted | None:
    """A network of `made` converted from `source` once more; None where that is not certain.

    It is not where the network was renamed or stacked, where `source` has tensors that an earlier conversion kept, and
    where the old layout has options that the source does not say itself.
    """
    said = SOURCE.match(module.source)
    kept = [name for name in source.entries if kept_off(module.at, name) is not None]
    if said is None or module.stacked or module.refused or kept:
        return None
    name = said[1]
    described = any(one.at == module.at and one.layout == name for one in source.modules)
    try:
        if layouts.find(name).options and not described:
            return None
        at = (module.at,) if module.at else ()
        beside = tuple(escape(one) for one in source.entries if one in made.entries and one.startswith(module.at))
        request = NetworkRequest(None if described else name, parse(module.spec), at, ignore=beside)
        found = [one for one in find(source, request) if one.network.at == module.at]
        if len(found) != 1 or found[0].network.layout.name != name:
            return None
        keep = any(kept_off(module.at, name) is not None for name in made.entries)
        shapes = found[0].shapes if module.layout == found[0].parts else {}
        views, layout = source.views(), layouts.find(module.layout)
        done = convert(found[0].network, views, layout, module.options, at=module.at, keep_split=keep, shapes=shapes)
    except (FormatError, LayoutError, PlanError, UsageError):
        return None
    targets = (*done.targets, *done.kept)
    views = made.views()
    there = all(target.name in views and views[target.name].shape == target.shape for target in targets)
    return done if there else None
