"""A part layout: how the parts of an attention, a gated MLP or experts lie in fused tensors, as rows of patterns.

PartLayout  one way of storing a kind of group: `qkv-per-head`
  FusedRow    a tensor of it: its usual name, a pattern, the axis along which blocks follow each other
PartGroup   the parts of one kind of group, and what they are called in files
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.errors import UsageError
from paramtool.layouts.pattern import Block, parse
from paramtool.lazy_dataclass import dataclass
from paramtool.parts import rows
from paramtool.parts.sizes import COMPOSED


@dataclass(frozen=True, slots=True)
class FusedRow:
    """A row of a part layout: one fused tensor."""

    name: str
    """What it is called beside the names of its parts' group: `qkv_proj`."""
    content: str
    """A pattern, see `rows`, of its weight; its bias lacks the axis of inputs."""
    along: int = 0
    """The axis along which blocks follow each other."""
    is_bare: bool = False
    """Whether it is called so itself, `experts.gate_up_proj` and `experts.gate_up_proj_bias`, without `.weight`."""

    def terms(self) -> tuple[str, ...]:
        """The parts in it."""
        return rows.terms(self.content)


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Parts that belong together."""

    kind: str
    """`qkv`, `kv`, `qk`, `gate-up`, `experts`, ..."""
    title: str
    parts: Mapping[str, str]
    """{term: what it is called beside the others, unless `--rename` says otherwise}"""
    others: tuple[tuple[str, ...], ...] = ()
    """What files of other models call the same parts, in the order of `parts`."""
    inside: str = ""
    """Where a group's parts are inside its module: `{experts}.` for experts."""

    @property
    def names(self) -> Iterator[tuple[str, ...]]:
        """The names of parts that are recognised, the usual ones first."""
        yield tuple(self.parts.values())
        yield from self.others


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One way of storing the parts of a group."""

    name: str
    group: str
    """The kind of its group."""
    title: str
    tensors: tuple[FusedRow, ...]
    models: str = ""
    """Who stores them so."""
    source: str = ""
    """Where the facts are from."""
    proof: tuple[str, ...] = ()
    """What was run."""
    like: tuple[str, ...] = ()
    """Layouts whose tensors have the same shapes and other rows: no shape tells them apart."""

    def facts(self) -> tuple[str, ...]:
        """The sizes that unfusing needs and no shape of the fused tensors shows."""
        found: dict[str, None] = {}
        for row in self.tensors:
            words = {word for axes in _axes(row.content) for word in axes}
            for term in row.terms():
                for group in rows.groups(rows.PARTS[term]):
                    found |= dict.fromkeys(_needed(group, words) if len(group) > 1 else ())
            if len(row.terms()) > 1 and {"heads", "kv_heads"} & found.keys():
                found |= dict.fromkeys(("heads", "kv_heads"))
            found |= dict.fromkeys(word for word in ("chunks",) if word in words)
        return tuple(found)


def _axes(content: str) -> Iterator[tuple[str, ...]]:
    todo = list(parse(content, rows.WORDS))
    while todo:
        item = todo.pop()
        if isinstance(item, Block):
            yield from item.axes
        else:
            yield item.axes
            todo += item.items


def _needed(group: tuple[str, ...], words: set[str]) -> Iterator[str]:
    """The words of an axis of a part that are counted alone in the fused tensor."""
    for word in group[:-1]:
        split = [part for parts in COMPOSED.get(word, ()) for part in parts if part in words]
        yield from ("kv_heads", word) if "group" in split else (word,)


def group(kind: str) -> PartGroup:
    """The parts of a kind of group; UsageError if there is none."""
    from paramtool.parts.tables import GROUPS

    for one in GROUPS:
        if one.kind == kind:
            return one
    raise UsageError(f"no kind of group is called {kind!r}; expected one of: {', '.join(g.kind for g in GROUPS)}")


def all_part_layouts() -> tuple[PartLayout, ...]:
    """Every part layout, in the order of the documents."""
    from paramtool.parts.tables import LAYOUTS

    return LAYOUTS


def find_part_layout(name: str) -> PartLayout | None:
    """The part layout of that name, or None."""
    return next((one for one in all_part_layouts() if one.name == name), None)
