"""Writes the first table of docs/formats.md from paramtool/formats/table.py: `python docs/make_formats.py`."""

from __future__ import annotations

import os

from paramtool.formats.table import DEEPSPEED, FORMATS, RANK_FILES, SHARDED

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "formats.md")
BEGIN, END = "<!-- formats -->\n", "<!-- /formats -->\n"


def table() -> str:
    """One row for each form of each format."""
    rows = [("format", "recognised by", "read", "written", "shares natively")]
    forms = (*(form for row in FORMATS for form in row.forms), DEEPSPEED, RANK_FILES, SHARDED)
    rows += ((form.title, form.recognised, form.read, form.written, form.shares) for form in forms)
    head, *lines = (f"| {' | '.join(row)} |\n" for row in rows)
    return "".join((head, "|---|---|---|---|---|\n", *lines))


def document(page: str) -> str:
    """The page with its table made again."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    with open(PAGE, encoding="utf-8") as file:
        made = document(file.read())
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(made)
