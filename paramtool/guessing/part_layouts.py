"""Which layouts a fused tensor of attention, a gated MLP or experts could have, each with its reasons.

A shape leaves several layouts.  The families that use the tensor's name, and the layout that each has for it, put them
in order; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.errors import leading
from paramtool.lazy_dataclass import frozen
from paramtool.parts import families
from paramtool.passes.parts.groups import SeenGroup

MOST_FAMILIES = 4
"""The most families that a reason names."""


@frozen
class LayoutGuess:
    """A layout that a fused tensor could have."""

    layout: str
    spec: str
    """As `--spec` takes it, with `...` for facts that nobody said; empty if none are needed."""
    sure: str
    """`said`, or `possible`."""
    reasons: tuple[str, ...]


def part_layouts(group: SeenGroup) -> list[LayoutGuess]:
    """The candidates of a group of fused tensors, the most usual for its name first; one where something says it.

    >>> one = SeenGroup("h.*.attn", 1, "qkv", "fused", ("Wqkv",), layout="qkv", source="config.json (mpt)")
    >>> part_layouts(one)[0].reasons
    ('config.json (mpt) says so',)
    """
    if group.layout:
        return [LayoutGuess(group.layout, "", "said", (f"{group.source} says so",))]
    users = {fit.layout: list(_users(group, fit.layout)) for fit in group.fits}
    ordered = sorted(group.fits, key=lambda fit: -len(users[fit.layout]))
    return [
        LayoutGuess(
            fit.layout,
            f"{group.kind} {' '.join(f'{fact}=...' for fact in fit.needs)}" if fit.needs else "",
            "possible",
            (fit.why, *_named(group, users[fit.layout])),
        )
        for fit in ordered
    ]


def _users(group: SeenGroup, layout: str) -> Iterator[str]:
    """The model types that have a layout under the group's name."""
    key = families.EXPERTS if group.kind == "experts" else group.names[0]
    yield from (name for name, row in families.rows().items() if layout in row.get(key, ()))


def _named(group: SeenGroup, users: list[str]) -> Iterator[str]:
    if users:
        yield f"{', '.join(group.names)} of {leading(users, MOST_FAMILIES)}"
