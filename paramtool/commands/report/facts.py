"""The numbers at the top of a page, of one checkpoint or of two."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from paramtool.commands.inspect import Inspection
from paramtool.drawing.markup import Markup, joined, tag
from paramtool.errors import plural
from paramtool.model.display import size


class Fact(NamedTuple):
    """A number with its name."""

    name: str
    value: str
    more: str = ""


def facts(found: Inspection) -> list[Fact]:
    """What is said of every checkpoint, in one order."""
    checkpoint = found.checkpoint
    nbytes = sum(file.nbytes for file in checkpoint.files)
    dtypes = dict.fromkeys(view.dtype.name for _, view in checkpoint.windows())
    shared = sum(len(members) - 1 for _, members in found.graph.groups())
    equal = "not compared" if found.content is None else size(found.duplicate_nbytes)
    return [
        Fact("Size", size(nbytes), plural(len(checkpoint.files), "file")),
        Fact("Parameters", f"{found.parameters:,}", "shared ones once"),
        Fact("Tensors", f"{len(checkpoint.entries):,}", f"{found.distinct:,} distinct"),
        Fact("Types", ", ".join(islice(dtypes, 3)) or "none", f"and {len(dtypes) - 3} more" if len(dtypes) > 3 else ""),
        Fact("Shared", plural(shared, "more name"), "of tensors that are stored once"),
        Fact("Unused bytes", size(found.unused_nbytes), "in no tensor"),
        Fact("Stored twice", equal, "equal bytes in separate storages"),
        Fact("Format", checkpoint.format, checkpoint.producer),
    ]


def fact_list(found: Inspection) -> Markup:
    """The numbers of one checkpoint."""
    made = joined(tag("div", tag("dt", one.name), tag("dd", *_cell(one))) for one in facts(found))
    return tag("dl", made, class_="facts")


def fact_table(a: Inspection, b: Inspection, names: tuple[str, str]) -> Markup:
    """The numbers of two checkpoints side by side; those that differ are bold."""
    heads = (tag("th", letter, tag("small", name), scope="col") for letter, name in zip("AB", names, strict=True))
    rows = (
        tag("tr", tag("th", mine.name, scope="row"), tag("td", *_cell(mine)), tag("td", *_cell(theirs)),
            class_="differs" if mine != theirs else None)
        for mine, theirs in zip(facts(a), facts(b), strict=True)
    )  # fmt: skip
    caption = tag("caption", "Numbers of both; those that differ are bold")
    return tag("table", caption, tag("thead", tag("tr", tag("td"), *heads)), tag("tbody", *rows), class_="facts")


def _cell(one: Fact) -> tuple[str, Markup | None]:
    return one.value, tag("small", one.more) if one.more else None
