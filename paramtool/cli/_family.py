"""`paramtool dedup` of several inputs: a folder for each, with what they have in common once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramtool.cli import _render
from paramtool.cli._display import most
from paramtool.cli._options import physical
from paramtool.cli._text import NEXT, load_line, plural, size, verify_line, wrapped
from paramtool.commands import dedup_many
from paramtool.commands.dedup import DedupOptions
from paramtool.commands.dedup_many import Family

MANY = 8
"""How many inputs a report lists; --verbose and --json list all."""


def run(inputs: Sequence[str], output: str, options: DedupOptions, share_renamed: bool, *, as_json: bool) -> None:
    """One call of the library, and its report."""
    found = dedup_many.dedup_family(inputs, output, options, share_renamed=share_renamed, progress=_render.progress)
    _render.report(found, as_json, _rows(found), found.warnings)


def _rows(found: Family) -> Iterator[_render.Row]:
    yield (
        "dedup" if found.written else "dry run",
        f"{plural(len(found.members), 'checkpoint')} -> {found.output}",
    )
    for member in found.members[: most(MANY)]:
        shared = f"{size(member.shared_by_all)} shared by all, {size(member.shared_by_some)} by some"
        sizes = f"{size(member.nbytes_before)} -> {size(member.nbytes_after)}"
        yield ("input", f"{member.input} -> {member.folder}", sizes, f"{shared}, {size(member.own)} own")
    if len(found.members) > most(MANY):
        yield (
            "input",
            f"and {plural(len(found.members) - most(MANY), 'more checkpoint')}",
            "--verbose and --json list them",
        )
    yield from (("left out", f"{member.input}: {text}") for member in found.members for text in member.left_out)
    change = f"{100 * (found.nbytes_after - found.nbytes_before) / max(found.nbytes_before, 1):+.0f}%"
    yield ("size", f"{size(found.nbytes_before)} -> {size(found.nbytes_after)} ({change})", "shared files counted once")
    yield from physical(found.nbytes_after, found.cloned_nbytes)
    together = sum(len(shard.files) > 1 for shard in found.shards)
    how = "hard links" if found.linked else "copied into each folder: this file system has no hard links"
    yield ("files", plural(len(found.shards), "shard"), f"{together} of several inputs", *([how] if together else []))
    names = sum(member.names for member in found.members)
    read_back = "all read back and equal" if found.verified else "not verified"
    yield ("names", plural(names, "name"), read_back, f"{found.seconds:.1f} s")
    if found.renamed_nbytes and found.share_renamed:
        yield ("renamed", f"{size(found.renamed_nbytes)} under other names are only in the record",
               "programs without paramtool miss these names")  # fmt: skip
    elif found.renamed_nbytes:
        yield ("not done", f"{size(found.renamed_nbytes)} are equal under different names",
               "--share-renamed stores them once, for paramtool alone; config.json ties one folder only")  # fmt: skip
    if found.written:
        first = found.members[0]
        yield ("load it", load_line(first.folder, [f"{first.wrapper}weight"]), wrapped(first.wrapper))
        yield (NEXT, verify_line(first.folder, first.input, first.section))
