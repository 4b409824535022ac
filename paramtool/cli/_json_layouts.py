"""Layouts and relayouts as JSON data; the schemas are in docs/schema."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paramtool.cli import _into
from paramtool.cli._json import outcome
from paramtool.cli._json_text import given, members
from paramtool.layouts import evidence

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.commands.optimizer_carry import StateReport
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayout import Relayouted
    from paramtool.layouts.layout import Layout
    from paramtool.parts.layout import PartLayout


TENSOR = ("name", "content", "along")


def layouts(found: EveryLayout) -> dict[str, Any]:
    """`paramtool layouts --json`."""
    return {
        "schema": "paramtool.layouts/2",
        "layouts": [_layout(one) for one in found.networks],
        "parts": [_part_layout(one) for one in found.parts],
        "dialects": [
            {
                **members(one, "name", "title", "version", "models", "layouts"),
                "refused": dict(one.refused or {}),
                "notes": one.caveats,
            }
            for one in found.dialects
        ],
    }


def _part_layout(one: PartLayout) -> dict[str, Any]:
    """A layout of attention, gated MLPs or experts."""
    from paramtool.parts.layout import group
    from paramtool.parts.proofs import proofs

    return {
        **members(one, "name", "title", "group"),
        "parts": dict(group(one.group).parts),
        "tensors": [members(row, *TENSOR) for row in one.tensors],
        "facts": list(one.facts()),
        **members(one, "models", "source"),
        "proof": list(proofs(one.name)),
        "like": one.like,
    }


def _layout(one: Layout) -> dict[str, Any]:
    records = [
        {"name": r.name, "date": r.data["date"], "on_gpu": r.is_of_a_gpu, "machine": dict(r.machine)}
        for r in evidence.speaking(one)
    ]
    return {
        **members(one, "name", "title"),
        "holds": list(one.holds()),
        "separator": one.separator,
        "directions": one.max_directions,
        "always_biases": one.always_biases,
        "unsaid": one.assumed,
        "must_say": one.required,
        "options": [members(option, "name", "default", "what", "shown", "values") for option in one.options],
        "forms": [
            {
                **members(form, "kind", "gates", "reset"),
                "when": dict(form.when),
                "says": sorted(form.expresses),
                "tensors": [members(row, *TENSOR) for row in form.tensors],
            }
            for form in one.forms
        ],
        "source": one.source,
        "proof": list(evidence.evidence(one)),
        "gpu": {"verified": evidence.on_gpu(one), "records": records} if one.gpu else None,
        "note": one.note,
    }


def relayouted(found: Relayouted) -> dict[str, Any]:
    """`paramtool convert --json`, and of `fuse` and `unfuse`."""
    return {
        "schema": "paramtool.relayout/1",
        **outcome(found),
        "untouched": found.untouched,
        "networks": [
            {
                "at": one.source.at,
                "to_at": one.at,
                "from": one.source.layout.name,
                "to": one.layout.name,
                "spec": str(one.spec),
                "exact": one.is_exact,
                "one_run": one.is_run,
                "tensors": [target.name for target in one.targets],
                "kept": [target.name for target in one.kept],
                "changes": [members(change, "kind", "what") for change in one.changes],
                "options": dict(one.options),
                "proof": list(evidence.evidence(one.layout)),
            }
            for one in found.converted
        ],
        **_types(found),
        **_rearranged(found.rearranged),
        **_ties(found),
        **_optimizer(found.optimizer),
        **members(found, "left_out", "warnings"),
        "seconds": round(found.seconds, 3),
        **({"into": _into.data(found, found.into)} if found.into is not None else {}),
        **given(found, "cloned_nbytes"),
    }


def _ties(found: Relayouted) -> dict[str, Any]:
    """The ties that were changed; nothing where there are none."""
    ties = found.ties
    if not ties.untied and not ties.tied:
        return {}
    return {"ties": {"untied": dict(ties.untied), "tied": dict(ties.tied), "state": dict(ties.state)}}


def _optimizer(found: StateReport) -> dict[str, Any]:
    """What became of optimizers; nothing where there are none, or they stay as they are."""
    if not found.moved and not found.dropped:
        return {}
    moved = [members(one, "at", "algorithm", "before", "after", "words") for one in found.moved]
    return {"optimizer": {"moved": moved, **members(found, "dropped", "training")}}


def _rearranged(found: Rearrangement | None) -> dict[str, Any]:
    """What became of attention, gated MLPs and experts."""
    if found is None:
        return {}
    said = {"said": dict(found.said)} if found.said else {}
    kept = members(found, "is_dialect", "renamed", "split", "joined")
    return {"parts": {"from": found.source, "to": found.target, **kept, "facts": dict(found.facts), **said}}


def _types(found: Relayouted) -> dict[str, Any]:
    """What was cast and what stays; nothing where nobody asked for types."""
    if found.typed is None:
        return {}
    after = {target.name: target.dtype.name for target in found.plan.targets}
    casts = [
        {
            "name": name,
            "from": before,
            "to": after[name],
            **(asdict(found.losses[name]) if name in found.losses else {}),
        }
        for name, before in found.typed.casts.items()
    ]
    kept = [{"name": name, "why": why} for name, why in found.typed.kept.items()]
    made = {"dequantised": dict(found.typed.dequantised)} if found.typed.dequantised else {}
    return {"types": {"cast": casts, "float32": kept, "unchanged": found.typed.left, **made}}
