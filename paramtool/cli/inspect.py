"""`paramtool inspect`: what a file is, what it shares, what it wastes, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from paramtool import jobs
from paramtool.cli import _render, _rules
from paramtool.cli._text import count, plural, shown, size
from paramtool.jobs import Inspection
from paramtool.model.alias import FusedBlock, Member
from paramtool.model.checkpoint import Compound, Entry, NoData, Unreadable
from paramtool.model.view import View

MANY = 8
"""So many groups or names are listed; --tensors and --json list all."""


@click.command("inspect", epilog="Exit codes: 0 fine, 1 a --fail-on rule did not hold, 3 bad file, 4 unsafe file.")
@click.argument("path", type=click.Path(readable=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON document (docs/json.md has its schema).")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--digest", is_flag=True, help="Read everything: a digest for each tensor, and which are equal.")
@click.option("--fail-on", "rules", multiple=True, metavar="RULE",
              callback=lambda ctx, param, texts: [_rules.parse(text) for text in texts],
              help="Exit with 1 where the rule does not hold: duplicate-bytes>SIZE, unused-bytes>SIZE, unknown-class, "
              "not-tied:A=B, dtype:PATTERN=DTYPE, missing:NAME.")  # fmt: skip
def command(path: str, as_json: bool, tensors: bool, digest: bool, rules: list[_rules.Rule]) -> int:
    """Show what is in a checkpoint.  Nothing of it is imported or run, and no tensor is read without --digest.

    \b
    $ paramtool inspect model.pt
    $ paramtool inspect model.pt --fail-on 'unused-bytes>1MB' --fail-on not-tied:lm_head.weight=wte.weight
    """
    equal = any(rule.needs_content for rule in rules)
    found = jobs.inspect(path, digests=digest, equal=equal, progress=_render.progress)
    findings = [{"rule": rule.text, "finding": text} for rule in rules for text in rule.check(found)]
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.inspection(found, findings, tensors or digest))
    else:
        _render.rows(_rows(found, tensors or digest))
        _render.lines(f"finding: {finding['rule']}: {finding['finding']}" for finding in findings)
    return 1 if findings else 0


def _rows(found: Inspection, tensors: bool) -> Iterator[_render.Row]:
    yield from _head(found)
    yield from _shared(found)
    yield from _equal(found)
    for block in found.graph.fused[:MANY]:
        yield from _fused(block, found)
    if len(found.graph.fused) > MANY:
        yield ("fused", f"and {len(found.graph.fused) - MANY} more blocks", "--json lists them")
    yield from _unused(found)
    yield from _unknown(found)
    yield from (("note", note) for note in found.checkpoint.notes)
    if tensors:
        yield from _tensors(found)
    yield from _next(found)


def _head(found: Inspection) -> Iterator[_render.Row]:
    from paramtool.cli._json import dtypes, parameters, sections

    checkpoint = found.checkpoint
    nbytes = sum(file.nbytes for file in checkpoint.files)
    facts = [
        checkpoint.format,
        size(nbytes),
        f"{plural(len(checkpoint.entries), 'tensor')}, {len(found.graph.owners)} distinct",
        f"{count(parameters(found))} parameters",
        ", ".join(dtypes(checkpoint)),
    ]
    yield ("file", found.path, " · ".join(fact for fact in facts if fact))
    if checkpoint.producer:
        yield ("written by", checkpoint.producer)
    for section in sections(checkpoint):
        yield ("section", section["name"], f"{plural(section['tensors'], 'tensor')}, {section['role']}")
    kinds: dict[str, list[str]] = {}
    for name, entry in checkpoint.entries.items():
        if not isinstance(entry.value, View):
            kinds.setdefault(_kind(entry), []).append(name)
    for kind, names in kinds.items():
        yield (kind, _some(names))


def _kind(entry: Entry) -> str:
    match entry.value:
        case Compound(kind=kind):
            return kind
        case NoData(why=why):
            return f"no data ({why})"
        case Unreadable(needs=needs):
            return f"unreadable, needs {needs}"
    return "tensor"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shared(found: Inspection) -> Iterator[_render.Row]:
    graph = found.graph
    shown_groups = list(graph.groups())
    for owner, members in shown_groups[:MANY]:
        view = graph.owners[owner]
        label = "shared" if len({m.memory for m in members}) == 1 else "equal"
        if owner in graph.anonymous:
            yield (label, f"{plural(len(members), 'window')} on one span", _geometry(view), size(view.nbytes))
        else:
            yield (label, owner, _geometry(view), size(view.nbytes))
        others = [member for member in members if member.name != owner]
        for member in others[:MANY]:
            yield ("", f"  {member.name}", _relation(member, owner, found))
        if len(others) > MANY:
            yield ("", f"  and {len(others) - MANY} more names")
    if len(shown_groups) > MANY:
        names = sum(len(members) for _, members in shown_groups[MANY:])
        yield ("shared", f"and {len(shown_groups) - MANY} more groups of {names} names", "--json lists them")


def _relation(member: Member, owner: str, found: Inspection) -> str:
    relation = found.graph.relation(member)
    words = {"same": "", "slice": "a slice, ", "transpose": "transposed, ", "view": "another view, "}
    memory = "same memory" if member.evidence != "content" else f"equal bytes, memory of {member.memory}"
    declared = ", declared" if member.evidence == "declared" else ""
    shape = "" if relation == "same" else f"{_geometry(member.window)}, "
    return f"{shape}{words.get(relation, '')}{memory}{declared}"


def _geometry(view: View) -> str:
    return f"{list(view.shape)} {view.dtype.name}"


def _equal(found: Inspection) -> Iterator[_render.Row]:
    for equal in (found.equal or ())[:MANY]:
        first = found.graph.members[equal.names[0]].window
        constant = ", constant" if equal.constant else ""
        names = plural(len(equal.names) - 1, "name")
        yield ("equal", equal.names[0], _geometry(first), size(first.nbytes))
        yield ("", f"  {_some(list(equal.names[1:]))}", f"{names}, equal bytes, separate memory{constant}")
    if found.equal and len(found.equal) > MANY:
        yield ("equal", f"and {len(found.equal) - MANY} more groups", "--json lists them")


def _fused(block: FusedBlock, found: Inspection) -> Iterator[_render.Row]:
    names = [name for name, _, _ in block.parts]
    gaps = plural(len(block.gaps), "gap") if block.gaps else "no gap"
    tail = f", {size(block.tail)} unused at the end" if block.tail else ""
    yield ("fused", f"{plural(len(names), 'tensor')} on one buffer", f"{size(block.nbytes)}, {gaps}{tail}")
    for name, start, stop in block.parts[:MANY]:
        yield ("", f"  {name}", f"bytes {start}-{stop}")
    if len(names) > MANY:
        yield ("", f"  and {len(names) - MANY} more")


def _unused(found: Inspection) -> Iterator[_render.Row]:
    if found.unused_nbytes:
        storages = plural(len(found.graph.unused), "storage")
        yield (
            "unused",
            size(found.unused_nbytes),
            f"of {storages} belong to no tensor; dedup leaves them behind",
        )


def _unknown(found: Inspection) -> Iterator[_render.Row]:
    for unknown in found.checkpoint.unknown:
        if unknown.needed_by:
            yield (
                "unsafe",
                unknown.path,
                f"needed by {_some(list(unknown.needed_by))}: not run, nothing was imported",
            )
        elif unknown.called:
            yield (
                "unsafe",
                unknown.path,
                f"called by the pickle with {unknown.arguments}: not run, nothing was imported",
            )
        else:
            yield ("unknown", unknown.path, "a class that holds data; not imported")


def _tensors(found: Inspection) -> Iterator[_render.Row]:
    digests = found.digests or {}
    for name, entry in found.checkpoint.entries.items():
        match entry.value:
            case View() as view:
                owner = found.graph.members[name].owner
                stands = "" if owner == name else f"on {owner}"
                yield (
                    "tensor",
                    name,
                    _geometry(view),
                    size(view.nbytes),
                    entry.role,
                    stands,
                    digests.get(name, ""),
                )
            case Compound(kind, parts, _):
                yield ("tensor", name, kind, "", entry.role)
                for label, view in parts.items():
                    part = f"{name}/{label}"
                    yield ("part", part, _geometry(view), size(view.nbytes), "", "", digests.get(part, ""))
            case NoData(dtype, shape, why):
                yield ("tensor", name, f"{list(shape)} {dtype.name}", "no data", entry.role, why)
            case Unreadable(needs):
                yield ("tensor", name, "unreadable", "", entry.role, f"needs {needs}")


def _next(found: Inspection) -> Iterator[_render.Row]:
    if found.equal is None:
        yield ("not done", "equal bytes under different names were not looked for: --digest does")
    if found.checkpoint.entries and found.checkpoint.producer != "paramtool":
        stored = sum(view.nbytes for view in found.graph.owners.values())
        yield ("next", f"paramtool dedup {shown(found.path)}",
               f"would write about {size(stored)} and keep all {len(found.checkpoint.entries)} names")  # fmt: skip
    elif found.checkpoint.entries:
        yield ("next", f"paramtool export {shown(found.path)} --names names.txt -o plain.safetensors")
