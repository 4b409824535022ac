"""What there is to say of each dialect: its version, its models, and what a reader of its files should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from paramtool.dialects import HUB, MEMORY, NAMES, TABLES
from paramtool.dialects import table as table_of
from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen

HUB_TITLE = "the files that transformers 4 wrote, and that version 5 writes by default: the hub of all dialects"
MEMORY_TITLE = "what transformers 5 has in memory, and saves where it keeps no original format"


@frozen
class DialectSummary:
    """A dialect in short."""

    name: str
    title: str
    version: str
    """Of the program, or the revision of its sources, that the names are of."""
    models: tuple[str, ...]
    """Classes or model types that have their own names; empty for the hub, which has every model."""
    layouts: tuple[str, ...] = ()
    """The layouts of its fused tensors."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """{class: why it has no names}"""
    caveats: tuple[str, ...] = ()


def dialect(name: str) -> DialectSummary:
    """One dialect in short; UsageError if there is none of that name."""
    if name == HUB:
        from paramtool.dialects.scopes import version

        return DialectSummary(HUB, HUB_TITLE, f"transformers {version()}", ())
    if name == MEMORY:
        from paramtool.dialects.scopes import table, version

        types = tuple(dict.fromkeys((*table()["rules"], *table()["aliases"])))
        layouts = ("qkv", "gate-up", "experts", "experts-transposed", "convs")
        return DialectSummary(MEMORY, MEMORY_TITLE, f"transformers {version()}", types, layouts)
    if name not in TABLES:
        raise UsageError(f"no dialect is called {name!r}; expected one of: {', '.join(NAMES)}")
    found = table_of(name)
    families = found.families
    return DialectSummary(
        name,
        found.title,
        found.version,
        tuple(dict.fromkeys(model for family in families for model in family.models)),
        tuple(dict.fromkeys(filter(None, (word.strip() for family in families for word in family.layouts.split(","))))),
        found.refused,
        tuple(dict.fromkeys(one.text for one in (*found.caveats, *(c for family in families for c in family.caveats)))),
    )


def all_dialects() -> Iterator[DialectSummary]:
    """Every dialect in short, the hub first."""
    yield from map(dialect, NAMES)
