"""The writers of all formats that are written, for tests of each."""

from __future__ import annotations

from paramtool.commands.output.writers import writer_of
from paramtool.formats.table import FORMATS

WRITERS = tuple(writer_of(form) for form in FORMATS if form.writer)
