"""Standard output and standard error as any program here needs them; click is not imported."""

from __future__ import annotations

import io
import os
import re
import sys


def prepare_streams() -> None:
    """Let no character fail for its encoding, and take the place of closed streams.

    What is written to a standard output that is closed fails when it is flushed, as on a full disk.
    """
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.open(os.devnull, mode), "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shown(text: str, lines: bool = False) -> str:
    """Text with everything that a terminal could obey written out; line breaks stay where `lines` says so.

    A log on GitHub obeys lines that begin with `::` or have `##[` (ActionCommand.cs of actions/runner), so these are
    written out there, too.

    >>> print(shown("w\\x1b[31m\\n"))
    w\\x1b[31m\\n
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)
    if ("::" in text or "##[" in text) and is_github():
        text = re.sub(r"(?m)^(\s*):(?=:)", r"\1\\x3a", text.replace("##[", r"##\x5b"))
    return text


def is_github() -> bool:
    """Whether what is printed goes to the log of a job on GitHub."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def quoted(path: str) -> str:
    """A path as a shell takes it, and as no command takes it for a flag; control characters as bash and zsh write them.

    >>> print(quoted("a.pt"), quoted("my model.pt"), quoted("-x.pt"), quoted("a\\tb"))
    a.pt 'my model.pt' ./-x.pt $'a\\tb'
    """
    path = f"./{path}" if path.startswith("-") else path
    if re.fullmatch(r"[\w@%+=:,./-]+", path, re.ASCII):
        return path  # as shlex.quote, whose import takes longer
    if path.isprintable():
        from shlex import quote

        return quote(path)
    return "$'" + "".join(map(_ansi_c, path)) + "'"


def _ansi_c(character: str) -> str:
    """One character within $'...': what is not printable as the bytes that a file system has for it."""
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    short = {"\n": "\\n", "\t": "\\t"}.get(character)
    return short or "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
