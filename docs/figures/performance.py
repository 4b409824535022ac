"""The figures of docs/performance.md as plots: every number is read from a table of that page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from figures import charts
from figures.charts import Line, Mark, Ratio

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "performance.md")
PEER = "ratio to the peer"


class Table(NamedTuple):
    """A table of the page."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


@cache
def tables() -> tuple[Table, ...]:
    """All of them, in their order."""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    found = []
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        for block in re.findall(r"(?:^\|.*\|\n)+", part, re.M):
            lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
            columns = tuple(lines[0])
            rows = tuple(dict(zip(columns, cells, strict=True)) for cells in lines[2:])
            found.append(Table(part.partition("\n")[0], columns, rows))
    return tuple(found)


def _first(column: str, *more: str) -> Table:
    """The first table that has these columns and, of `more`, a cell that begins so."""
    for table in tables():
        cells = [cell for row in table.rows for cell in row.values()]
        if column in table.columns and all(any(cell.startswith(one) for cell in cells) for one in more):
            return table
    raise ValueError(f"{PAGE}: no table has the column {column!r} and the cells {more}")


def _said(pattern: str) -> list[str]:
    """What the page says that matches a pattern."""
    with open(PAGE, encoding="utf-8") as file:
        found = re.findall(pattern, file.read(), re.M)
    if not found:
        raise ValueError(f"{PAGE}: nothing matches {pattern}")
    return found


def machine() -> str:
    """What the page says of the machine of its first tables, and when they were made."""
    dates = sorted(_said(r"^Rounds: .* (\d{4}-\d\d-\d\d)\.$"))
    return f"{_said(r'^Machine: (.*)[.]$')[0]}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def disk() -> str:
    """The same of its last tables."""
    return _said(r"^Ratios within one run, made by `make bench` \((.*)\)\.$")[0]


def _plain(text: str) -> str:
    """A cell without its marks of code."""
    return text.replace("`", "")


def _ratios(table: Table, what: str = "what") -> Iterator[Ratio]:
    """The rows of a table of ratios; `the same` is what the row above has."""
    column = next(name for name in table.columns if name.startswith("ratio"))
    said = {what: "", "beside": ""}
    for row in table.rows:
        for key in said:
            if row[key] != "the same":
                said[key] = re.sub(r"^the same\b", re.split(r" of |, ", said[key])[0], row[key])
        numbers = [float(one) for one in re.findall(r"\d+\.\d+", row[column].partition("(")[0])]
        yield Ratio(_plain(said[what]), _plain(said["beside"]), min(numbers), max(numbers))


def scale() -> str:
    """Times beside the peers at the largest sizes."""
    rows = []
    for table in tables():
        if PEER not in table.columns or not any(row[PEER] for row in table.rows):
            continue
        unit = table.columns[1]
        peer = next(row["what"] for row in table.rows if not row[PEER])
        largest = {row["what"]: row for row in table.rows if row[PEER]}
        rows += [
            Ratio(f"{what}: {_counted(table.heading, row[unit], unit)}", peer, float(row[PEER]), float(row[PEER]))
            for what, row in largest.items()
        ]
    return charts.ratios("Time at scale, beside other readers", rows, machine())


def _counted(heading: str, count: str, unit: str) -> str:
    """A heading with how many there were: `1,000,000 tensors in one file`."""
    low = heading[:1].lower() + heading[1:]
    return f"{count} {low}" if low.startswith(unit) else f"{low}, {count} {unit}"


def growth() -> str:
    """Times by the number of names, of readers that grow with it."""
    lines = []
    for heading, short in (
        ("Tensors in one safetensors file", "safetensors"), ("Tensors in one file of torch.save", "torch.save"),
        ("Aliases in alias records", "aliases"),
    ):  # fmt: skip
        table = next(one for one in tables() if one.heading == heading)
        for what in dict.fromkeys(row["what"] for row in table.rows):
            points = [
                (float(row[table.columns[1]].replace(",", "")), float(row["time"].partition(" ")[0]))
                for row in table.rows
                if row["what"] == what
            ]
            name = what.partition(",")[0].partition("(")[0]
            lines.append(Line(f"{name}: {short}" if name == "inspect" else name, tuple(points)))
    return charts.growth("Time by the number of names", lines, "names in the file", machine())


def copies() -> str:
    """inspect of one file."""
    return charts.ratios("inspect, beside other tools", [*_ratios(_first("ratio of medians"))], disk())


def typed() -> str:
    """Commands as they are typed, of a file of 1.5 GB."""
    rows = ((_plain(row["as typed"]), float(row["x cp + sync"])) for row in _first("x cp + sync").rows)
    bars = [Ratio(words, "cp and sync", ratio, ratio) for words, ratio in rows]
    return charts.ratios("Commands as they are typed, 1.5 GB", bars, disk())


def rearranging() -> str:
    """Experts and attention in another form."""
    table = _first("ratio of medians", "4 GB, runs of 1 MB")
    return charts.ratios("Experts and attention rearranged", [*_ratios(table)], disk())


def training() -> str:
    """Training checkpoints."""
    return charts.ratios("Training checkpoints", [*_ratios(_first("ratio", "`dedup` of the file"))], disk())


def content() -> str:
    """Searches for equal bytes."""
    table = _first("planted")
    return charts.ratios("Contents of 4 GB compared", [*_ratios(table, "planted")], f"{disk()}; from the page cache")


def diff() -> str:
    """diff beside other ways to compare two checkpoints."""
    table = _first("pair")
    tools = [name for name in table.columns[2:-1] if name != "wanted"]
    rows = [
        (row["pair"], [Mark(_plain(tool), float(row[tool])) for tool in tools if row[tool]], float(row["wanted"]))
        for row in table.rows
    ]
    return charts.marks("diff of 4 GB a side, beside blake3 of both", rows, [*map(_plain, tools)], disk())
