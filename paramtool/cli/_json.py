"""Reports as JSON data.  The schemas are in docs/schema; a change that breaks a reader raises their number.

What grows with the number of tensors is an iterator: an array whose items are made while they are printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from paramtool.cli._json_text import given, members
from paramtool.model.alias import Alias, AliasGraph, Derived, FusedBlock
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Ordered, Unknown, Unreadable
from paramtool.model.diff import Distance, counts
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.dedup import Deduped
    from paramtool.commands.dedup_many import Family
    from paramtool.commands.diff.diff import Diffed
    from paramtool.commands.diff.find_base import BaseFound
    from paramtool.commands.export import Exported
    from paramtool.commands.guess import Guessed
    from paramtool.commands.inspect import Inspection
    from paramtool.commands.relayout import Relayouted
    from paramtool.commands.variants import Variant
    from paramtool.commands.verify import Verified
    from paramtool.model.match import Content
    from paramtool.passes.compat.check import Apart
    from paramtool.passes.parts.seen_groups import SeenGroup, SeenParts
    from paramtool.passes.rnn.buffers import FusedNetwork

MAX_OBJECTS = 10_000


def inspection(found: Inspection, findings: list[dict[str, str]], notes: list[str], tensors: bool, *,
               tree: bool = False, depth: int | None = None) -> dict[str, Any]:  # fmt: skip
    """`paramtool inspect --json`; `notes` are those that the checkpoint itself does not have."""
    checkpoint, graph = found.checkpoint, found.graph
    uncounted = [name for name, one in found.quantised.items() if one is None]
    data: dict[str, Any] = {
        "schema": "paramtool.inspect/4",
        "path": found.path,
        "format": checkpoint.format,
        "producer": checkpoint.producer,
        "files": [members(file, "path", "nbytes") for file in checkpoint.files],
        "nbytes": sum(file.nbytes for file in checkpoint.files),
        "tensors": len(checkpoint.entries),
        **members(found, "distinct", "parameters"),
        **({"uncounted": uncounted} if uncounted else {}),
        "dtypes": dtypes(checkpoint),
        "sections": sections(checkpoint),
        "groups": groups(graph),
        **content(found.content),
        "fused": (fused(block, found.fused.get(block.storage)) for block in graph.fused),
        "unused": ({"storage": id_, "nbytes": nbytes} for id_, nbytes in graph.unused.items()),
        "unused_nbytes": found.unused_nbytes,
        "duplicate_nbytes": None if found.equal is None else found.duplicate_nbytes,
        "unsafe": bool(found.unsafe or found.unsafe_sidecars),
        "unknown": _unknown(checkpoint.unknown, found.unsafe),
        "sidecars": [
            {"file": name, "unknown": _unknown(asked, found.unsafe_sidecars.get(name, ()))}
            for name, asked in found.sidecars.items()
        ],
        "metadata": dict(checkpoint.metadata),
        "notes": [*checkpoint.said(), *notes],
        "findings": findings,
    }  # fmt: skip
    if found.networks:
        data["networks"] = [members(one, "at", "layout", "spec", "source") for one in found.networks]
    if found.parts is not None:
        data["parts"] = parts(found.parts)
    if tree:
        from paramtool.commands.tree import tree as modules

        data["tree"] = (
            {
                "module": node.path,
                "level": level,
                **members(node, "tensors", "parameters", "nbytes"),
                "shared": [{"name": name, "with": other} for name, other in node.shared.items()],
            }
            for level, node in modules(found).walk(depth)
        )
    if found.section is not None:
        data["section"] = found.section
    if found.optimizers is not None:
        from paramtool.cli import _optimizer_rows

        data["optimizers"] = _optimizer_rows.documents(found.optimizers)
    if not data["parameters"] and (objects := _objects(found)):
        data["objects"] = objects
    if found.config is not None:
        # A row of the table of ties; JSON has no infinity, so that one is a text.
        data["config"] = {
            "path": found.config.path,
            "ties": [
                {
                    **members(row.tie, "kind", "names"),
                    "says": row.says,
                    "because": row.why,
                    **members(row, "file", "detail"),
                    "apart": row.apart or None,
                    "largest_difference": "infinite" if row.largest == inf else row.largest,
                    "result": row.result,
                }
                for row in found.config.rows
            ],
        }
    if tensors:
        data["tensor_list"] = (_tensor(name, entry, graph, found) for name, entry in checkpoint.entries.items())
    return data


def parts(found: SeenParts) -> dict[str, Any]:
    """The groups of attention, gated MLPs and experts."""
    return {
        "dialect": found.dialect,
        "towers": [
            {
                **members(tower, "at", "layers"),
                "groups": [
                    {
                        **members(one, "at", "modules", "kind", "form", "names", "experts", "layout", "source"),
                        "fits": [members(fit, "layout", "needs", "why") for fit in one.fits],
                        "decide": one.decides,
                    }
                    for one in tower.groups
                ],
            }
            for tower in found.towers
        ],
    }


def _unknown(asked: Iterable[Unknown], unsafe: Collection[Unknown]) -> list[dict[str, Any]]:
    """Names that pickles ask for; `unsafe` are those that make the file so."""
    return [{**members(u, "path", "called", "arguments", "needed_by"), "unsafe": u in unsafe} for u in asked]


def _objects(found: Inspection) -> list[dict[str, str]]:
    """What a file without a model's tensors holds: the first values, each with its path."""
    from paramtool.cli._objects import outline

    return [{"path": path, "value": value} for path, value in islice(outline(found.checkpoint.objects), MAX_OBJECTS)]


def dtypes(checkpoint: Checkpoint) -> dict[str, int]:
    """{dtype: windows}, most first."""
    return dict(Counter(view.dtype.name for _, view in checkpoint.windows()).most_common())


def sections(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Sections with their tensors counted."""
    names = Ordered(checkpoint.entries if checkpoint.sections else ())
    return [{"name": s.name, "role": s.role, "tensors": names.count(s.prefix)} for s in checkpoint.sections]


def groups(graph: AliasGraph) -> Iterator[dict[str, Any]]:
    """Alias groups: an owner and every name that is a view of it."""
    for owner, aliases in graph.groups():
        yield {
            "owner": owner,
            "anonymous": owner in graph.anonymous,
            "nbytes": graph.owners[owner].nbytes,
            "members": (
                {
                    "name": one.name,
                    "relation": graph.relation(one),
                    "evidence": one.evidence,
                    "memory": one.alias_set,
                    "memory_evidence": one.set_evidence,
                    "dtype": one.window.dtype.name,
                    **members(one.window, "shape", "strides", "offset"),
                }
                for one in aliases
            ),
        }


def fused(block: FusedBlock, network: FusedNetwork | None) -> dict[str, Any]:
    """A fused block, and the recurrent network that it is, if it is one's buffer."""
    named = network and {"at": network.at, "layout": network.layout, "spec": str(network.spec)}
    return {
        "network": named,
        **members(block, "storage", "nbytes"),
        "parts": [{"name": n, "byte_start": start, "byte_stop": stop} for n, start, stop in block.parts],
        **members(block, "gaps", "tail"),
    }


def _tensor(name: str, entry: Entry, graph: AliasGraph, found: Inspection) -> dict[str, Any]:
    data: dict[str, Any] = {"name": name, **members(entry, "role", "requires_grad")}
    match entry.value:
        case View() as view:
            data |= {"kind": "tensor", **_geometry(view), "owner": graph.names[name].owner}
        case Compound(kind, parts, facts):
            data |= {
                "kind": kind,
                "parts": {label: _geometry(view) for label, view in parts.items()},
                "facts": {key: str(value) for key, value in facts.items()},
            }
        case NoData(dtype, shape, why):
            data |= {"kind": why, "dtype": dtype.name, "shape": shape}
        case Unreadable(needs):
            data |= {"kind": "unreadable", "needs": needs}
    if found.digests is not None:
        inside = entry.value.parts if isinstance(entry.value, Compound) else ()
        labels = (name, *(f"{name}/{part}" for part in inside))
        data["digests"] = {label: found.digests[label] for label in labels if label in found.digests}
    return data


def _geometry(view: View) -> dict[str, Any]:
    return {"dtype": view.dtype.name, **members(view, "shape", "strides", "offset", "storage", "nbytes")}


def content(found: Content | None) -> dict[str, Any]:
    """What comparing found; null where nothing was compared."""
    if found is None:
        return {"equal": None, "constants": None, "matches": None}
    return {
        "equal": (members(one, "names", "digest", "constant") for one in found.equal),
        "constants": {name: element.hex() for name, element in found.constants.items()},
        "matches": (
            members(one, "name", "owner", "relation", "lossless") | members(one.window, "shape", "strides", "offset")
            for one in found.matches
        ),
    }


def _derived(one: Alias, how: Derived) -> dict[str, Any]:
    said = {"constant": how.element.hex()} if how.window is None else {"cast_of": how.window.storage}
    return {"name": one.name, "dtype": one.window.dtype.name, **members(one.window, "shape", "nbytes"), **said}


def outcome(found: Deduped | Relayouted) -> dict[str, Any]:
    """What every report of something written begins with."""
    return {
        **members(found, "input", "output", "files", "written", "verified", "nbytes_before", "nbytes_after"),
        "names": len(found.plan.order),
    }


def deduped(found: Deduped) -> dict[str, Any]:
    """`paramtool dedup --json`."""
    return {
        "schema": "paramtool.dedup/2",
        **outcome(found),
        "stored": len(found.plan.targets),
        **members(found, "unused_nbytes", "repeated_nbytes"),
        "groups": groups(found.graph),
        **content(found.content),
        "derived": [_derived(found.plan.names[name], how) for name, how in found.plan.derived.items()],
        **members(found, "left_out", "warnings"),
        "seconds": round(found.seconds, 3),
        **given(found, "needs", "cloned_nbytes"),
    }


def verified(found: Verified) -> dict[str, Any]:
    """`paramtool verify --json`."""
    return {
        "schema": "paramtool.verify/2",
        **members(found, "output", "against", "names", "compared", "differences"),
        **given(found, "remade", "rounded", "dequantised", "warnings"),
    }


def diffed(found: Diffed) -> dict[str, Any]:
    """`paramtool diff --json`."""
    from paramtool.cli._diff_rows import verdict

    return {
        "schema": "paramtool.diff/1",
        **members(found, "a", "b"),
        "verdict": verdict(found),
        "same": found.is_same,
        "counts": dict(counts(found.tensors)),
        "tensors": (
            {
                **members(one, "kind", "a", "b"),
                "dtypes": [name or None for name in one.dtypes],
                "shapes": one.shapes,
                **({"map": one.how, "layout": one.layout or None, "unique": one.is_unique} if one.how else {}),
                **({"change": _change(one.change)} if one.change else {}),
            }
            for one in found.tensors
        ),
        **members(found, "ties", "objects", "metadata", "notes", "nbytes_read"),
    }


def base_found(found: BaseFound) -> dict[str, Any]:
    """`paramtool diff --find-base --json`."""
    return {
        "schema": "paramtool.find-base/1",
        "path": found.path,
        "base": found.base or None,
        "candidates": [
            {
                "path": one.path,
                "distance": one.distance if isfinite(one.distance) else None,
                **members(one, "sampled", "same", "why", "how"),
            }
            for one in found.candidates
        ],
    }


def _change(change: Distance) -> dict[str, Any]:
    numbers = members(change, "largest", "mean", "relative")
    return {
        **members(change, "elements", "numel"),
        "finite": change.largest is None or isfinite(change.largest),
        **{name: None if one is None or not isfinite(one) else one for name, one in numbers.items()},
        **members(change, "rows", "row_count", "nan_only_a", "nan_only_b"),
    }


def exported(found: Exported) -> dict[str, Any]:
    """`paramtool export --json`."""
    return {
        "schema": "paramtool.export/2",
        **members(found, "input", "output", "files", "written", "verified", "names"),
        "renamed": dict(found.renamed),
        **({"tied": dict(found.tied)} if found.tied else {}),
        **members(found, "nbytes", "section", "like_section"),
        **given(found, "cloned_nbytes"),
        **members(found, "left_out", "warnings"),
    }


def family(found: Family) -> dict[str, Any]:
    """`paramtool dedup --json` of several inputs."""
    data = asdict(found)
    for member in data["members"]:
        del member["wrapper"]  # of the line that loads it
    return {
        "schema": "paramtool.dedup-family/1",
        **data,
        "seconds": round(found.seconds, 3),
    }


def variants(path: str, found: Sequence[Variant]) -> dict[str, Any]:
    """`paramtool variants --json`."""
    clashes = ("name", "found", "wanted")
    every = [
        {
            **members(one, "against", "kind", "section", "verdict", "names"),
            "through": [members(t, "name", "owner", "relation") for t in one.through],
            "filled": [members(f, "name", "by") for f in one.filled],
            "lacks": one.lacks,
            **{key: [members(c, *clashes) for c in getattr(one, key)] for key in ("shapes", "types", "rows")},
            "apart": [_apart(two) for two in one.apart],
            **members(one, "unused", "advice", "convert_to"),
        }
        for one in found
    ]
    return {"schema": "paramtool.variants/1", "path": path, "variants": every}


def _apart(one: Apart) -> dict[str, Any]:
    """JSON has no infinity: where only one value is infinite or NaN, the difference is a string."""
    number = one.difference
    shown = number if number is None or isfinite(number) else "infinity"
    return {**members(one, "name", "other"), "difference": shown}


def guessed(found: Guessed, at: str | None) -> dict[str, Any]:
    """`paramtool guess --json`."""
    return {
        "schema": "paramtool.guess/2",
        "path": found.path,
        "format": found.checkpoint.format,
        "at": at,
        "commands": found.commands,
        "places": [
            {
                **members(place, "at", "what", "tensors", "fits", "looked", "decide"),
                "candidates": [
                    {
                        **members(one, "layout", "alike", "spec", "sure", "score", "reasons"),
                        "tensors": dict(one.tensors),
                        "own_names": bool(one.cell),
                    }
                    for one in candidates
                ],
            }
            for place, candidates in found.places()
        ],
        **({"parts": parts(found.parts)} if found.parts is not None else {}),
        **({"fused": [_fused_guess(one) for one in found.fused]} if found.fused else {}),
        **({"refused": [{"at": at, "why": why} for at, why in found.refused.items()]} if found.refused else {}),
    }


def _fused_guess(group: SeenGroup) -> dict[str, Any]:
    """A fused tensor of attention, a gated MLP or experts."""
    from paramtool.guessing.part_layouts import part_layouts

    return {
        **members(group, "at", "modules", "kind", "names"),
        "decide": group.decides,
        "candidates": [members(one, "layout", "spec", "sure", "reasons") for one in part_layouts(group)],
    }
