"""The part of docs/layouts.md about attention, gated MLPs, experts and dialects; `make_layouts.py` writes the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, product
from math import prod

from paramtool import dialects
from paramtool.errors import LayoutError
from paramtool.parts import patterns, rows
from paramtool.parts.layout import FusedRow, PartLayout, all_part_layouts, group, proofs
from paramtool.parts.pieces import Piece
from paramtool.parts.sizes import MEANINGS, Sizes
from paramtool.passes.parts import find

GROUPED = {
    "heads": 4, "kv_heads": 2, "head_dim": 2, "value_dim": 2, "rotary": 2, "chunks": 2, "ffn": 2, "experts": 2,
    "in": 2, "out": 2, "taps": 1, "linear_key_heads": 2, "linear_key_dim": 2, "linear_value_heads": 4,
    "linear_value_dim": 2, "q_rank": 3, "kv_rank": 3, "rope": 2, "nope": 2, "inner": 4, "state": 2, "groups": 2,
    "state_heads": 2, "dt_rank": 2, "width": 3, "channels": 3,
}  # fmt: skip
"""The sizes of the pictures."""
EQUAL = {**GROUPED, "heads": 2}
"""Those of layouts that have a key and a value for each head."""
WITH_SLICES = {"head_dim": 6, "rotary": 4, "heads": 2, "kv_heads": 2, "value_dim": 6}
INTRO = """## Attention, gated MLPs and experts

A *part* is a tensor in its plain form, such as `q_proj.weight`; a layout says how fused tensors hold parts.  The axes
of a part are those of a linear layer for it alone, [outputs, inputs], and a bias lacks the inputs.
[Dialects](dialects.md) says how layouts are used and where facts come from, and
[proofs of dialects](proofs-dialects.md) what frameworks ran.

A picture shows a small tensor: heads=4, kv_heads=2 (2 and 2 where each head has its own key), head_dim=2, 2 inputs, a
width of 2, 2 experts.  `q1` is a row of head 1 of the queries, `gate0` row 0 of the gate, `e1 up0` row 0 of expert 1.
`q1.0` is element 0 of head 1.

| part | its axes |
|---|---|
PARTS

| fact | what it counts |
|---|---|
FACTS

LAYOUTS"""


def page() -> Iterator[str]:
    """The lines of both chapters."""
    every = all_part_layouts()
    needed = dict.fromkeys(fact for layout in every for fact in layout.facts)
    table = ["| layout | what | group | models |", "|---|---|---|---|"]
    table += [
        f"| [`{layout.name}`](#{layout.name}) | {layout.title} | {layout.group} | {layout.models} |" for layout in every
    ]
    text = INTRO.replace("PARTS", "\n".join(f"| `{term}` | `{axes}` |" for term, axes in patterns.PARTS.items()))
    text = text.replace("FACTS", "\n".join(f"| `{fact}` | {MEANINGS.get(fact, '')} |" for fact in needed))
    yield from text.replace("LAYOUTS", "\n".join(table)).splitlines()
    for layout in every:
        yield ""
        yield from _section(layout)
    yield ""
    yield from _dialects()


def _section(layout: PartLayout) -> Iterator[str]:
    kind = group(layout.group)
    yield f"### {layout.name}"
    yield ""
    yield f"{layout.title[:1].upper()}{layout.title[1:]}.  Group `{kind.kind}`: {kind.title}."
    if layout.models:
        yield f"Models: {layout.models}."
    if layout.source:
        yield f"Source: {layout.source}."
    yield f"Proof: {'; '.join(proofs(layout.name))}."
    facts = ", ".join(f"`{fact}`" for fact in layout.facts)
    yield f"Facts that no shape shows: {facts or 'none'}."
    if layout.like:
        names = ", ".join(f"[`{name}`](#{name})" for name in layout.like)
        yield f"The same shapes and other rows: {names}."
    yield ""
    yield "| tensor | pattern |"
    yield "|---|---|"
    for row in layout.tensors:
        along = f", blocks along axis {row.along}" if row.along else ""
        yield f"| `{row.name}` | `{row.content}`{along} |"
    if others := find.variants_of(layout)[1:]:
        called = ", ".join(" + ".join(f"`{name}`" for name in names) for names in others)
        yield from ("", f"Other names of the same: {called}.")
    yield from ("", "```", *(line for row in layout.tensors for line in _picture(row)), "```")


def _picture(row: FusedRow) -> Iterator[str]:
    """A tensor of small parts."""
    sliced = "." in row.content
    for given in (GROUPED, EQUAL):
        sizes = Sizes({**given, **WITH_SLICES} if sliced else given)
        try:
            count = sizes.of("experts") if patterns.has_experts(row.content) else 1
            parts = {
                term: [
                    rows.PartTensor(f"{term} {k}", axes, rows.part_shape(axes, sizes))
                    for axes in (patterns.PARTS[term],)
                    for k in range(count)
                ]
                for term in row.terms()
            }
            stored = rows.stored(row.name, row.content, row.along, parts, sizes=sizes)
            break
        except LayoutError:
            if given is EQUAL:
                raise
    labels = [""] * prod(stored.shape)
    for piece in stored.pieces:
        for place, index in elements(piece, stored.shape):
            labels[place] = _label(piece, index, sizes, has_experts=count > 1, sliced=sliced)
    yield from drawn(stored.name, stored.shape, labels)


def elements(piece: Piece, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(place in the tensor, row-major; index in the part) of each element of a piece."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    origin = sum(k * stride for k, stride in zip(piece.at, strides, strict=True))
    axes = []
    for start, digits in zip(piece.start, piece.digits, strict=True):
        counted = product(*(range(digit.length) for digit in digits))
        moves = (
            sum(k * digit.step * strides[digit.axis] for k, digit in zip(values, digits, strict=True))
            for values in counted
        )
        axes.append([(start + k, move) for k, move in enumerate(moves)])
    for chosen in product(*axes):
        yield origin + sum(move for _, move in chosen), tuple(k for k, _ in chosen)


def _label(piece: Piece, index: tuple[int, ...], sizes: Sizes, *, has_experts: bool, sliced: bool) -> str:
    """What an element is: the term of its part, the head or the row, and the expert."""
    term, expert = piece.part.split()
    words = patterns.groups(patterns.PARTS[term])
    axis = next((k for k, group_ in enumerate(words) if len(group_) > 1), 0)
    inner = prod(sizes.of(word) for word in words[axis][1:])
    at = f"{term}{index[axis] // inner}"
    if sliced:
        at += f".{index[axis] % inner}"
    return f"e{expert} {at}" if has_experts else at


def drawn(name: str, shape: tuple[int, ...], labels: list[str]) -> Iterator[str]:
    """A tensor as a grid of its elements' labels, row-major; equal rows and equal columns are drawn once."""
    long_axes = [size for size in shape if size > 1] or [1]
    height = long_axes[0] if len(long_axes) > 1 else 1
    width = len(labels) // height
    lines = [tuple(labels[k * width : (k + 1) * width]) for k in range(height)]
    yield f"{name}  {list(shape)}"
    columns = [len(list(alike)) for _, alike in groupby(zip(*lines, strict=True))]
    starts = [sum(columns[:k]) for k in range(len(columns))]
    cells = max(len(label) for label in labels)
    for row, alike in groupby(lines):
        high = len(list(alike))
        line = " | ".join(row[start].ljust(cells) for start in starts)
        yield f"    {high:>2} x | {line} |"
    yield ("          " + "   ".join(f"{n}".ljust(cells) for n in columns)).rstrip()


def _dialects() -> Iterator[str]:
    """The chapter of dialects."""
    yield from (
        "## Dialects",
        "",
        "A dialect is the names and forms that one program gives to the tensors of a model: `convert --to DIALECT`",
        "([dialects](dialects.md#dialects)).  Models are classes or model types that have their own names.",
        "",
        "| dialect | what | version | models | layouts |",
        "|---|---|---|---|---|",
    )
    every = [*map(dialects.table, dialects.NAMES)]
    for one in every:
        models = str(len(one.models)) if one.models else "all"
        yield f"| [`{one.name}`](#{one.name}) | {one.title} | {one.version} | {models} | {', '.join(one.layouts)} |"
    for one in every:
        yield from ("", f"### {one.name}", "", f"{one.title[:1].upper()}{one.title[1:]}.  Version: {one.version}.")
        if one.models:
            yield from _wrapped("Models: " + ", ".join(f"`{model}`" for model in one.models) + ".")
        for why, names in _by_reason(one.refused).items():
            yield from _wrapped(f"Refused, as {why}: " + ", ".join(f"`{name}`" for name in names) + ".")
        yield from (f"- {text}" for text in one.notes)


def _by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, why in refused.items():
        found.setdefault(why.partition(": ")[0], []).append(name)
    return found


def _wrapped(text: str) -> Iterator[str]:
    """A separate paragraph in lines of a page's width."""
    from textwrap import wrap

    yield ""
    yield from wrap(text, 120, break_long_words=False, break_on_hyphens=False)
