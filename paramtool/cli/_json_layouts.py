"""Layouts and relayouts as JSON data; the schemas are in docs/schema."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from paramtool.cli import _into
from paramtool.cli._json import outcome
from paramtool.layouts import evidence

if TYPE_CHECKING:
    from paramtool.commands.layouts import EveryLayout
    from paramtool.commands.optimizer_carry import StateReport
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayout import Relayouted
    from paramtool.dialects.listing import DialectSummary
    from paramtool.engine.write.casting import Losses
    from paramtool.layouts.evidence import Record
    from paramtool.layouts.layout import Form, Layout
    from paramtool.parts.layout import PartLayout
    from paramtool.passes.rnn.convert import Converted


def layouts(found: EveryLayout) -> dict[str, Any]:
    """`paramtool layouts --json`."""
    return {
        "schema": "paramtool.layouts/2",
        "layouts": [_layout(one) for one in found.networks],
        "parts": [_part_layout(one) for one in found.parts],
        "dialects": [_dialect(one) for one in found.dialects],
    }


def _part_layout(one: PartLayout) -> dict[str, Any]:
    """A layout of attention, gated MLPs or experts."""
    from paramtool.parts.layout import group
    from paramtool.parts.proofs import proofs

    return {
        "name": one.name,
        "title": one.title,
        "group": one.group,
        "parts": dict(group(one.group).parts),
        "tensors": [{"name": row.name, "content": row.content, "along": row.along} for row in one.tensors],
        "facts": list(one.facts()),
        "models": one.models,
        "source": one.source,
        "proof": list(proofs(one.name)),
        "like": list(one.like),
    }


def _dialect(one: DialectSummary) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": one.title,
        "version": one.version,
        "models": list(one.models),
        "layouts": list(one.layouts),
        "refused": dict(one.refused or {}),
        "notes": list(one.caveats),
    }


def _layout(one: Layout) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": one.title,
        "holds": list(one.holds()),
        "separator": one.separator,
        "directions": one.max_directions,
        "always_biases": one.always_biases,
        "unsaid": list(one.assumed),
        "must_say": list(one.required),
        "options": [
            {"name": o.name, "default": o.default, "what": o.what, "shown": o.shown, "values": list(o.values)}
            for o in one.options
        ],
        "forms": [_form(form) for form in one.forms],
        "source": one.source,
        "proof": list(evidence.evidence(one)),
        "gpu": {"verified": evidence.on_gpu(one), "records": [_record(r) for r in evidence.speaking(one)]}
        if one.gpu
        else None,
        "note": one.note,
    }


def _record(one: Record) -> dict[str, Any]:
    return {"name": one.name, "date": one.data["date"], "on_gpu": one.is_of_a_gpu, "machine": dict(one.machine)}


def _form(form: Form) -> dict[str, Any]:
    return {
        "kind": form.kind,
        "gates": form.gates,
        "reset": form.reset,
        "when": dict(form.when),
        "says": sorted(form.expresses),
        "tensors": [{"name": row.name, "content": row.content, "along": row.along} for row in form.tensors],
    }


def relayouted(found: Relayouted) -> dict[str, Any]:
    """`paramtool convert --json`, and of `fuse` and `unfuse`."""
    return {
        "schema": "paramtool.relayout/1",
        **outcome(found),
        "untouched": found.untouched,
        "networks": [_network(one) for one in found.converted],
        **_types(found),
        **({"parts": _rearranged(found.rearranged)} if found.rearranged is not None else {}),
        **_ties(found),
        **_optimizer(found.optimizer),
        "left_out": list(found.left_out),
        "warnings": list(found.warnings),
        "seconds": round(found.seconds, 3),
        **({"into": _into.data(found, found.into)} if found.into is not None else {}),
        **({"cloned_nbytes": found.cloned_nbytes} if found.cloned_nbytes else {}),
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
    names = ("at", "algorithm", "before", "after", "words")
    moved = [{name: getattr(one, name) for name in names} for one in found.moved]
    return {"optimizer": {"moved": moved, "dropped": list(found.dropped), "training": list(found.training)}}


def _rearranged(found: Rearrangement) -> dict[str, Any]:
    """What became of attention, gated MLPs and experts."""
    return {
        "from": found.source,
        "to": found.target,
        "is_dialect": found.is_dialect,
        "renamed": found.renamed,
        "split": list(found.split),
        "joined": list(found.joined),
        "facts": dict(found.facts),
        **({"said": dict(found.said)} if found.said else {}),
    }


def _types(found: Relayouted) -> dict[str, Any]:
    """What was cast and what stays; nothing where nobody asked for types."""
    if found.typed is None:
        return {}
    after = {target.name: target.dtype.name for target in found.plan.targets}
    casts = [
        {"name": name, "from": before, "to": after[name], **_losses(found.losses.get(name))}
        for name, before in found.typed.casts.items()
    ]
    kept = [{"name": name, "why": why} for name, why in found.typed.kept.items()]
    made = {name: list(others) for name, others in found.typed.dequantised.items()}
    more = {"dequantised": made} if made else {}
    return {"types": {"cast": casts, "float32": kept, "unchanged": list(found.typed.left), **more}}


def _losses(one: Losses | None) -> dict[str, int]:
    return {} if one is None else {field.name: getattr(one, field.name) for field in fields(one)}


def _network(one: Converted) -> dict[str, Any]:
    return {
        "at": one.source.at,
        "to_at": one.at,
        "from": one.source.layout.name,
        "to": one.layout.name,
        "spec": str(one.spec),
        "exact": one.is_exact,
        "one_run": one.is_run,
        "tensors": [target.name for target in one.targets],
        "kept": [target.name for target in one.kept],
        "changes": [{"kind": change.kind, "what": change.what} for change in one.changes],
        "options": dict(one.options),
        "proof": list(evidence.evidence(one.layout)),
    }
