"""Paths on the command line, and what is often given in their place: a URL, a model of a hub, `-`, a pattern."""

from __future__ import annotations

import os
import re

import click

from paramtool.cli._streams import quoted
from paramtool.errors import MissingFileError, ParamtoolError, UsageError, printable

URL = r"([A-Za-z][A-Za-z0-9+.-]+)://((?s:.*))"
HUB_HOST = r"(?:www\.)?(?:huggingface\.co|hf\.co)/"
HUB_ID = r"[A-Za-z0-9][\w.-]*/(?!.*\.[A-Za-z]\w*$)[\w.-]+"
"""Without a suffix, which files have."""
REVISIONS = ("resolve", "blob", "raw", "tree")
"""What follows the name of a repository in the URLs of files: the revision comes next."""
FETCH = {
    "s3": "aws s3 cp {url} .",
    "gs": "gcloud storage cp {url} .",
    "http": "curl -LO {url}",
    "https": "curl -LO {url}",
}
"""Commands that download a URL, by scheme."""


class Path(click.Path):
    """A path; whether it can be read is found out, and said, when it is."""

    def __init__(self, stdin: bool = False, output: bool = False) -> None:
        super().__init__(readable=False)
        self.stdin = stdin
        self.output = output

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path; UsageError where it is none."""
        path = os.fsdecode(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if not (ctx and ctx.resilient_parsing) and not (self.stdin and path == "-"):
            if self.output:
                if re.fullmatch(URL, path) and not os.path.isdir(os.path.dirname(path)):
                    raise UsageError(
                        f"{printable(path)}: is a URL; paramtool writes local files",
                        hint="write a file, then upload it",
                    )
                if path == "-":
                    raise UsageError("-: the output is a file, and not standard output", hint="-o FILE names a file")
            else:
                check(path, ctx.info_name if ctx else None)
        return path


FILE = Path()
"""A path of something that is read."""
FILES = click.Path(readable=False)
"""One of several, of which each is checked when its turn comes, and has an error of its own."""
FILE_OR_STDIN = Path(stdin=True)
"""The same, or `-` for standard input."""
OUTPUT_FILE = Path(output=True)
"""A path of something that is written."""


def check(path: str, command: str | None = None) -> None:
    """UsageError where a path is a URL, the id of a model, `-`, or a pattern that matches nothing."""
    if not path or os.path.lexists(path):
        return
    then = f", then `paramtool {command} ...` on what it writes" if command else ""
    if match := re.fullmatch(URL, path):
        raise UsageError(
            f"{printable(path)}: is a URL; paramtool reads local files and downloads nothing", _fetched(match) + then
        )
    if path == "-":
        raise UsageError(
            "-: standard input is not read: a checkpoint is read from several places, so it has to be a file",
            hint="write it to a file first: ... > model.pt",
        )
    if re.search(r"[*?]|\[.+\]", path):
        from glob import glob

        if glob(path):
            why, hint = "is a pattern, which paramtool does not expand; files match it", "write it without quotes, so"
            raise UsageError(f"{printable(path)}: {why}", f"{hint} that the shell expands it")
        folder = os.path.dirname(re.split(r"[*?\[]", path)[0]) or "."
        hint = f"`ls {quoted(folder)}` shows what is there" if os.path.isdir(folder) else f"{folder}: no such folder"
        raise UsageError(f"{printable(path)}: no file matches this pattern", hint)
    if re.fullmatch(HUB_ID, path) and not os.path.lexists(path.split("/")[0]):
        raise UsageError(
            f"{printable(path)}: there is no such file; it looks like a model of the Hugging Face Hub, "
            "and paramtool downloads nothing",
            hint=f"`{_download(path)}`{then}",
        )


def explained(error: ParamtoolError, path: str, command: str) -> ParamtoolError:
    """The error of a path that does not exist; for a URL, a model of a hub and `-` one that says what it is."""
    try:
        check(path if isinstance(error, MissingFileError) else "", command)
    except UsageError as better:
        return better
    return error


def _fetched(match: re.Match[str]) -> str:
    scheme, rest = match[1].lower(), match[2]
    if scheme == "hf" or (scheme in ("http", "https") and (host := re.match(HUB_HOST, rest))):
        parts = (rest if scheme == "hf" else rest[host.end() :] if host else "").split("?")[0].split("/")
        owner = 1 if (parts[1:2] and parts[1] in REVISIONS) or len(parts) == 1 else 2  # `gpt2` has no owner
        if all(parts[:owner]):
            file = parts[owner + 2 :] if parts[owner : owner + 1] and parts[owner] in REVISIONS else parts[owner:]
            return f"`{_download('/'.join(parts[:owner]), '/'.join(filter(None, file)))}`"
    if scheme in FETCH:
        return f"`{FETCH[scheme].format(url=quoted(match[0]))}`"
    return "download it first"


def _download(model: str, file: str = "") -> str:
    words = map(quoted, filter(None, (model, file)))
    return f"hf download {' '.join(words)} --local-dir {quoted(model.rpartition('/')[2])}"
