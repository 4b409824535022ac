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

from paramtool.model.alias import Alias, AliasGraph, Derived, FusedBlock
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, NoData, Ordered, Unknown, Unreadable
from paramtool.model.diff import Distance, TensorDiff, counts
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.config_ties import DeclaredTies
    from paramtool.commands.dedup import Deduped
    from paramtool.commands.dedup_many import Family
    from paramtool.commands.diff.diff import Diffed
    from paramtool.commands.diff.find_base import BaseFound
    from paramtool.commands.export import Exported
    from paramtool.commands.guess import Considered, Guessed
    from paramtool.commands.inspect import Inspection
    from paramtool.commands.relayout import Relayouted
    from paramtool.commands.tree import TreeNode
    from paramtool.commands.variants import Variant
    from paramtool.commands.verify import Verified
    from paramtool.guessing.candidates import Guess
    from paramtool.model.match import Content
    from paramtool.passes.compat.check import Apart
    from paramtool.passes.config_ties.declared import Declared
    from paramtool.passes.parts.groups import SeenGroup, SeenParts
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
        "files": [{"path": file.path, "nbytes": file.nbytes} for file in checkpoint.files],
        "nbytes": sum(file.nbytes for file in checkpoint.files),
        "tensors": len(checkpoint.entries),
        "distinct": found.distinct,
        "parameters": found.parameters,
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
        data["networks"] = [
            {"at": one.at, "layout": one.layout, "spec": one.spec, "source": one.source} for one in found.networks
        ]
    if found.parts is not None:
        data["parts"] = parts(found.parts)
    if tree:
        from paramtool.commands.tree import tree as modules

        data["tree"] = (_node(level, node) for level, node in modules(found).walk(depth))
    if found.section is not None:
        data["section"] = found.section
    if found.optimizers is not None:
        from paramtool.cli import _optimizer_rows

        data["optimizers"] = _optimizer_rows.documents(found.optimizers)
    if not data["parameters"] and (objects := _objects(found)):
        data["objects"] = objects
    if found.config is not None:
        data["config"] = _config(found.config)
    if tensors:
        data["tensor_list"] = (_tensor(name, entry, graph, found) for name, entry in checkpoint.entries.items())
    return data


def parts(found: SeenParts) -> dict[str, Any]:
    """The groups of attention, gated MLPs and experts."""
    return {
        "dialect": found.dialect,
        "towers": [
            {"at": tower.at, "layers": tower.layers, "groups": [seen_group(group) for group in tower.groups]}
            for tower in found.towers
        ],
    }


def seen_group(one: SeenGroup) -> dict[str, Any]:
    """The groups of one kind in a tower."""
    return {
        "at": one.at,
        "modules": one.modules,
        "kind": one.kind,
        "form": one.form,
        "names": list(one.names),
        "experts": one.experts,
        "layout": one.layout,
        "source": one.source,
        "fits": [{"layout": fit.layout, "needs": list(fit.needs), "why": fit.why} for fit in one.fits],
        "decide": one.decides,
    }


def _node(level: int, node: TreeNode) -> dict[str, Any]:
    return {
        "module": node.path,
        "level": level,
        "tensors": node.tensors,
        "parameters": node.parameters,
        "nbytes": node.nbytes,
        "shared": [{"name": name, "with": other} for name, other in node.shared.items()],
    }


def _unknown(asked: Iterable[Unknown], unsafe: Collection[Unknown]) -> list[dict[str, Any]]:
    """Names that pickles ask for; `unsafe` are those that make the file so."""
    return [
        {
            "path": u.path,
            "called": u.called,
            "arguments": u.arguments,
            "needed_by": list(u.needed_by),
            "unsafe": u in unsafe,
        }
        for u in asked
    ]


def _objects(found: Inspection) -> list[dict[str, str]]:
    """What a file without a model's tensors holds: the first values, each with its path."""
    from paramtool.cli._objects import outline

    return [{"path": path, "value": value} for path, value in islice(outline(found.checkpoint.objects), MAX_OBJECTS)]


def _config(found: DeclaredTies) -> dict[str, Any]:
    return {"path": found.path, "ties": [_declared(row) for row in found.rows]}


def _declared(row: Declared) -> dict[str, Any]:
    """A row of the table of ties; JSON has no infinity, so that one is a text."""
    largest = "infinite" if row.largest == inf else row.largest
    return {
        "kind": row.tie.kind,
        "names": list(row.tie.names),
        "says": row.says,
        "because": row.why,
        "file": row.file,
        "detail": row.detail,
        "apart": list(row.apart) if row.apart else None,
        "largest_difference": largest,
        "result": row.result,
    }


def dtypes(checkpoint: Checkpoint) -> dict[str, int]:
    """{dtype: windows}, most first."""
    return dict(Counter(view.dtype.name for _, view in checkpoint.windows()).most_common())


def sections(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Sections with their tensors counted."""
    names = Ordered(checkpoint.entries if checkpoint.sections else ())
    return [{"name": s.name, "role": s.role, "tensors": names.count(s.prefix)} for s in checkpoint.sections]


def groups(graph: AliasGraph) -> Iterator[dict[str, Any]]:
    """Alias groups: an owner and every name that is a view of it."""
    for owner, members in graph.groups():
        yield {
            "owner": owner,
            "anonymous": owner in graph.anonymous,
            "nbytes": graph.owners[owner].nbytes,
            "members": (_member(member, graph) for member in members),
        }


def _member(member: Alias, graph: AliasGraph) -> dict[str, Any]:
    return {
        "name": member.name,
        "relation": graph.relation(member),
        "evidence": member.evidence,
        "memory": member.alias_set,
        "memory_evidence": member.set_evidence,
        "dtype": member.window.dtype.name,
        "shape": list(member.window.shape),
        "strides": list(member.window.strides),
        "offset": member.window.offset,
    }


def fused(block: FusedBlock, network: FusedNetwork | None) -> dict[str, Any]:
    """A fused block, and the recurrent network that it is, if it is one's buffer."""
    named = network and {"at": network.at, "layout": network.layout, "spec": str(network.spec)}
    return {
        "network": named,
        "storage": block.storage,
        "nbytes": block.nbytes,
        "parts": [{"name": n, "byte_start": start, "byte_stop": stop} for n, start, stop in block.parts],
        "gaps": [list(gap) for gap in block.gaps],
        "tail": block.tail,
    }


def _tensor(name: str, entry: Entry, graph: AliasGraph, found: Inspection) -> dict[str, Any]:
    data: dict[str, Any] = {"name": name, "role": entry.role, "requires_grad": entry.requires_grad}
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
            data |= {"kind": why, "dtype": dtype.name, "shape": list(shape)}
        case Unreadable(needs):
            data |= {"kind": "unreadable", "needs": needs}
    if found.digests is not None:
        inside = entry.value.parts if isinstance(entry.value, Compound) else ()
        labels = (name, *(f"{name}/{part}" for part in inside))
        data["digests"] = {label: found.digests[label] for label in labels if label in found.digests}
    return data


def _geometry(view: View) -> dict[str, Any]:
    return {
        "dtype": view.dtype.name,
        "shape": list(view.shape),
        "strides": list(view.strides),
        "offset": view.offset,
        "storage": view.storage,
        "nbytes": view.nbytes,
    }


def content(found: Content | None) -> dict[str, Any]:
    """What comparing found; null where nothing was compared."""
    if found is None:
        return {"equal": None, "constants": None, "matches": None}
    return {
        "equal": ({"names": list(e.names), "digest": e.digest, "constant": e.constant} for e in found.equal),
        "constants": {name: element.hex() for name, element in found.constants.items()},
        "matches": (
            {
                "name": match.name,
                "owner": match.owner,
                "relation": match.relation,
                "lossless": match.lossless,
                "shape": list(match.window.shape),
                "strides": list(match.window.strides),
                "offset": match.window.offset,
            }
            for match in found.matches
        ),
    }


def _derived(one: Alias, how: Derived) -> dict[str, Any]:
    view = one.window
    said = {"constant": how.element.hex()} if how.window is None else {"cast_of": how.window.storage}
    return {
        "name": one.name, "dtype": view.dtype.name, "shape": list(view.shape), "nbytes": view.nbytes, **said,
    }  # fmt: skip


def outcome(found: Deduped | Relayouted) -> dict[str, Any]:
    """What every report of something written begins with."""
    return {
        "input": found.input,
        "output": found.output,
        "files": list(found.files),
        "written": found.written,
        "verified": found.verified,
        "nbytes_before": found.nbytes_before,
        "nbytes_after": found.nbytes_after,
        "names": len(found.plan.order),
    }


def deduped(found: Deduped) -> dict[str, Any]:
    """`paramtool dedup --json`."""
    return {
        "schema": "paramtool.dedup/2",
        **outcome(found),
        "stored": len(found.plan.targets),
        "unused_nbytes": found.unused_nbytes,
        "repeated_nbytes": found.repeated_nbytes,
        "groups": groups(found.graph),
        **content(found.content),
        "derived": [_derived(found.plan.names[name], how) for name, how in found.plan.derived.items()],
        "left_out": list(found.left_out),
        "warnings": list(found.warnings),
        "seconds": round(found.seconds, 3),
        **({"needs": list(found.needs)} if found.needs else {}),
        **({"cloned_nbytes": found.cloned_nbytes} if found.cloned_nbytes else {}),
    }  # fmt: skip


def verified(found: Verified) -> dict[str, Any]:
    """`paramtool verify --json`."""
    return {
        "schema": "paramtool.verify/2",
        "output": found.output,
        "against": found.against,
        "names": found.names,
        "compared": list(found.compared),
        "differences": list(found.differences),
        **({"remade": found.remade} if found.remade else {}),
        **({"rounded": found.rounded} if found.rounded else {}),
        **({"dequantised": found.dequantised} if found.dequantised else {}),
        **({"warnings": list(found.warnings)} if found.warnings else {}),
    }


def diffed(found: Diffed) -> dict[str, Any]:
    """`paramtool diff --json`."""
    from paramtool.cli._diff_rows import verdict

    return {
        "schema": "paramtool.diff/1",
        "a": found.a,
        "b": found.b,
        "verdict": verdict(found),
        "same": found.is_same,
        "counts": dict(counts(found.tensors)),
        "tensors": (_tensor_diff(one) for one in found.tensors),
        "ties": list(found.ties),
        "objects": list(found.objects),
        "metadata": list(found.metadata),
        "notes": list(found.notes),
        "nbytes_read": found.nbytes_read,
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
                "sampled": one.sampled,
                "same": one.same,
                "why": one.why,
                "how": one.how,
            }
            for one in found.candidates
        ],
    }


def _tensor_diff(one: TensorDiff) -> dict[str, Any]:
    change = one.change
    return {
        "kind": one.kind,
        "a": list(one.a),
        "b": list(one.b),
        "dtypes": [name or None for name in one.dtypes],
        "shapes": [None if shape is None else list(shape) for shape in one.shapes],
        **({"map": one.how, "layout": one.layout or None, "unique": one.is_unique} if one.how else {}),
        **({"change": _change(change)} if change else {}),
    }


def _change(change: Distance) -> dict[str, Any]:
    numbers = (change.largest, change.mean, change.relative)
    largest, mean, relative = (None if one is None or not isfinite(one) else one for one in numbers)
    return {
        "elements": change.elements,
        "numel": change.numel,
        "finite": change.largest is None or isfinite(change.largest),
        "largest": largest,
        "mean": mean,
        "relative": relative,
        "rows": [list(span) for span in change.rows],
        "row_count": change.row_count,
        "nan_only_a": change.nan_only_a,
        "nan_only_b": change.nan_only_b,
    }


def exported(found: Exported) -> dict[str, Any]:
    """`paramtool export --json`."""
    return {
        "schema": "paramtool.export/2",
        "input": found.input,
        "output": found.output,
        "files": list(found.files),
        "written": found.written,
        "verified": found.verified,
        "names": list(found.names),
        "renamed": dict(found.renamed),
        **({"tied": dict(found.tied)} if found.tied else {}),
        "nbytes": found.nbytes,
        "section": found.section,
        "like_section": found.like_section,
        **({"cloned_nbytes": found.cloned_nbytes} if found.cloned_nbytes else {}),
        "left_out": list(found.left_out),
        "warnings": list(found.warnings),
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
    return {"schema": "paramtool.variants/1", "path": path, "variants": [_variant(one) for one in found]}


def _variant(one: Variant) -> dict[str, Any]:
    return {
        "against": one.against,
        "kind": one.kind,
        "section": one.section,
        "verdict": one.verdict,
        "names": one.names,
        "through": [{"name": t.name, "owner": t.owner, "relation": t.relation} for t in one.through],
        "filled": [{"name": f.name, "by": f.by} for f in one.filled],
        "lacks": list(one.lacks),
        "shapes": [{"name": c.name, "found": list(c.found), "wanted": list(c.wanted)} for c in one.shapes],
        "types": [{"name": c.name, "found": c.found, "wanted": c.wanted} for c in one.types],
        "rows": [{"name": c.name, "found": c.found, "wanted": c.wanted} for c in one.rows],
        "apart": [_apart(one) for one in one.apart],
        "unused": list(one.unused),
        "advice": one.advice,
        "convert_to": one.convert_to,
    }


def _apart(one: Apart) -> dict[str, Any]:
    """JSON has no infinity: where only one value is infinite or NaN, the difference is a string."""
    number = one.difference
    shown = number if number is None or isfinite(number) else "infinity"
    return {"name": one.name, "other": one.other, "difference": shown}


def guessed(found: Guessed, at: str | None) -> dict[str, Any]:
    """`paramtool guess --json`."""
    return {
        "schema": "paramtool.guess/2",
        "path": found.path,
        "format": found.checkpoint.format,
        "at": at,
        "commands": list(found.commands),
        "places": [_place(place, candidates) for place, candidates in found.places()],
        **({"parts": parts(found.parts)} if found.parts is not None else {}),
        **({"fused": [_fused_guess(one) for one in found.fused]} if found.fused else {}),
        **({"refused": [{"at": at, "why": why} for at, why in found.refused.items()]} if found.refused else {}),
    }


def _fused_guess(group: SeenGroup) -> dict[str, Any]:
    """A fused tensor of attention, a gated MLP or experts."""
    from paramtool.guessing.part_layouts import part_layouts

    return {
        "at": group.at,
        "modules": group.modules,
        "kind": group.kind,
        "names": list(group.names),
        "decide": group.decides,
        "candidates": [
            {"layout": one.layout, "spec": one.spec, "sure": one.sure, "reasons": list(one.reasons)}
            for one in part_layouts(group)
        ],
    }


def _place(place: Considered, candidates: tuple[Guess, ...]) -> dict[str, Any]:
    return {
        "at": place.at,
        "what": place.what,
        "tensors": list(place.tensors),
        "fits": place.fits,
        "looked": place.looked,
        "decide": list(place.decide),
        "candidates": [_candidate(one) for one in candidates],
    }


def _candidate(one: Guess) -> dict[str, Any]:
    return {
        "layout": one.layout,
        "alike": list(one.alike),
        "spec": one.spec,
        "sure": one.sure,
        "score": one.score,
        "reasons": list(one.reasons),
        "tensors": dict(one.tensors),
        "own_names": bool(one.cell),
    }
