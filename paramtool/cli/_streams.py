"""Standard output and standard error as any program here needs them; click is not imported."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Give closed streams a place to write to, and let no character fail for its encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shown(text: str, lines: bool = False) -> str:
    """Text with everything that a terminal could obey written out; line breaks stay where `lines` says so.

    >>> print(shown("w\\x1b[31m\\n"))
    w\\x1b[31m\\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)
