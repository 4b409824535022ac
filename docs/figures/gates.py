"""The orders in which libraries store the gates of an LSTM and of a GRU, from the tables of layouts."""

from __future__ import annotations

from collections.abc import Iterator

from figures.canvas import LEFT, RIGHT, cell, line, picture, text, wrapped
from figures.networks import GATE_WORDS, TINT_OF_GATE
from paramtool import layouts
from paramtool.drawing.markup import Markup
from paramtool.layouts.layout import Form

HOW = ("below each other", "side by side", "in one vector")
"""Where the gates of one matrix are: along its first axis, along its last, or along the only one."""
APART = "a tensor each"
BOX = 34.0


def orders(kind: str) -> dict[str, dict[str, list[str]]]:
    """{order of gates: {how they are stored: layouts, or families of them}}, the order of most layouts first."""
    found: dict[str, dict[str, list[str]]] = {}
    for layout in layouts.built_in().values():
        for form in layout.forms:
            if form.kind == kind:
                how = stored_how(form)
                names = found.setdefault(form.gates if how != APART else "", {}).setdefault(how, [])
                if layout.name not in names:
                    names.append(layout.name)
    _shorten(found)
    ranked = sorted(found.items(), key=lambda item: (not item[0], -sum(map(len, item[1].values()))))
    return {order: {how: by[how] for how in (*HOW, APART) if how in by} for order, by in ranked}


def _shorten(found: dict[str, dict[str, list[str]]]) -> None:
    """Put the name of a family in place of its layouts where all of them have one order."""
    by_family: dict[str, set[str]] = {}
    for order, by in found.items():
        for name in (name for names in by.values() for name in names if order):
            by_family.setdefault(name.partition(".")[0], set()).add(order)
    for by in (by for order, by in found.items() if order):
        for how, names in by.items():
            families = (one.partition(".")[0] for one in names)
            short = (f if len(by_family[f]) == 1 else one for f, one in zip(families, names, strict=True))
            by[how] = list(dict.fromkeys(short))


def stored_how(form: Form) -> str:
    """Where the gates of the first matrix with several of them are; APART if none has several."""
    for row in form.tensors:
        for block in row.blocks():
            if "W" in block.kinds:
                flat = [word for axis in block.axes for word in axis]
                if "gate" not in flat:
                    break
                if len(block.axes) == 1:
                    return HOW[2]
                return HOW[flat.index("gate") > flat.index("in")]
    return APART


def gate_orders() -> str:
    """The picture."""
    parts: list[Markup] = []
    y = 34.0
    for kind, title in (("lstm", "Orders of an LSTM's gates"), ("gru", "Orders of a GRU's gates")):
        parts.append(text(LEFT, y, title, "h"))
        y += 18
        for order, by in orders(kind).items():
            lines = [*_lines(by)]
            parts += _order(y, order, lines)
            y += max(46, 18 * len(lines) + 18)
        y += 20
    parts += _key(y - 8)
    return picture(
        "Gate orders of libraries",
        "; ".join(_said(kind, order, by) for kind in ("lstm", "gru") for order, by in orders(kind).items()),
        y + 62,
        parts,
    )


def _said(kind: str, order: str, by: dict[str, list[str]]) -> str:
    """An order in words."""
    names = dict.fromkeys(name for names in by.values() for name in names)
    return f"{kind.upper()} {' '.join(order) or 'in a tensor for each gate'}: {', '.join(names)}"


def _lines(by: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """(words, style) of the lines beside an order."""
    for how, names in by.items():
        lines = wrapped(names, 37)
        if how != APART:
            yield how, "t f-soft"
        yield from ((one, "t m") for one in lines)


def _order(y: float, order: str, lines: list[tuple[str, str]]) -> Iterator[Markup]:
    """The gates in a row, and which layouts have them so."""
    yield line(LEFT, y - 6, RIGHT, y - 6, "n k-line", 1)
    for k, gate in enumerate(order):
        yield cell(LEFT + BOX * k, y + 4, BOX, 28, TINT_OF_GATE[gate], gate, "m b")
    if not order:
        yield text(LEFT, y + 16, "no order:", "f-soft")
        yield text(LEFT, y + 32, "a tensor for each", "f-soft")
    for k, (words, style) in enumerate(lines):
        yield text(LEFT + 160, y + 12 + 18 * k, words, style)


def _key(y: float) -> Iterator[Markup]:
    """What the letters mean."""
    yield line(LEFT, y - 12, RIGHT, y - 12, "n k-line", 1)
    for row, gates in enumerate(("ifgo", "rzn")):
        x = float(LEFT)
        for gate in gates:
            yield cell(x, y + 26 * row, 18, 18, TINT_OF_GATE[gate], gate, "t m")
            yield text(x + 24, y + 14 + 26 * row, GATE_WORDS[gate], "f-soft")
            x += 44 + 7.2 * len(GATE_WORDS[gate])
