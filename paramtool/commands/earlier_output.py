"""What `lock`, `report` and `check` may replace: a file of their own, told by its bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from paramtool.commands import adapter_config
from paramtool.commands.progress import Path
from paramtool.drawing import document
from paramtool.engine.write.places import check_place, writing
from paramtool.engine.write.sink import Sink
from paramtool.engine.write.staging import Staged
from paramtool.errors import OutputError
from paramtool.formats import foreign, hf_config, table
from paramtool.formats.dcp import metadata
from paramtool.formats.files import is_folder, noted, watched
from paramtool.formats.folder import weight_names
from paramtool.formats.folder.weight_names import is_index_name
from paramtool.formats.sniff import DISTRIBUTED
from paramtool.lockfile.read import begins_lock

TAIL_NBYTES = 1 << 16
"""Of the end of a file, in which the verdict of a report is looked for."""


class SmallOutput(NamedTuple):
    """What a command writes in one piece."""

    name: str
    """As in `is not NAME`."""
    wrote: Callable[[bytes, bytes], bool]
    """Whether a file is one, from its first `HEAD_NBYTES` and its last `TAIL_NBYTES` bytes."""

    def check(self, path: str, *, force: bool, inputs: Iterable[str] = ()) -> None:
        """OutputError if it may not be written to `path`: over an input, over any other kind of file, or over one of
        its own kind without `force`.  An empty file may be replaced.
        """
        given = list(inputs)
        check_place(path, False, True, given)
        if os.path.isfile(path):
            with writing(path), open(path, "rb") as file:
                head = file.read(table.HEAD_NBYTES)
                nbytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, nbytes - TAIL_NBYTES))
                tail = file.read(TAIL_NBYTES)
            if head and not self.wrote(head, tail):
                raise OutputError(
                    f"{path}: exists and is {_kind(path, head, nbytes)}, not {self.name}, which is all that --force "
                    "replaces",
                    hint="choose another -o, or delete the file first",
                )
        check_place(path, False, force, given)

    def write(self, path: str, data: bytes, *, force: bool, inputs: Iterable[str]) -> tuple[str, ...]:
        """Write it, complete or not at all, and never more open than an input; OutputError as of `check`.

        FormatError where a file that was read has changed since.  What is given back is what was done about the
        leftovers of runs that were killed.
        """
        given = list(inputs)
        self.check(path, force=force, inputs=given)
        with Staged(path, False, force, given) as staged:
            staged.watch(watched.get({}).values())
            staged.watch(noted(one, os.stat(one)) for one in given if os.path.isfile(one))
            with Sink(staged, "", lambda nbytes: None) as sink:
                sink.write(data)
            staged.commit()
        return tuple(staged.notes)


def _kind(path: str, head: bytes, nbytes: int) -> str:
    """What a file is, for people."""
    if begins_lock(head):
        return "a lock of paramtool"
    if weight_names.is_index(head, path):
        return "the index of a checkpoint"
    found = next((row.name for row in table.rows() if row.recognises(head, nbytes, path)), "")
    if found:
        return f"a checkpoint ({found})"
    other = foreign.named(path, head, nbytes)
    return "a file of another kind" if other.what.startswith(foreign.UNKNOWN.what) else other.what.split(",")[0]


LOCK = SmallOutput("a lock of paramtool", lambda head, _: begins_lock(head))
PAGE = SmallOutput(
    "a page of `paramtool report`",
    lambda head, tail: head.startswith(document.BEGINS.encode()) and document.MADE_BY.encode() in tail,
)


def _searched(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.MULTILINE)


_VERDICT = _searched(rb"^verdict  ")
_SUMMARY = _searched(rb"^(\d+ files?, \d+ findings?\b[^\n]*|nothing checked)\r?\n\Z")
_JSON = re.compile(rb'\s*\{\s*"schema"\s*:\s*"paramtool\.(check|error)/')
_SARIF = re.compile(rb'\s*\{(?s:.)*"(\$schema"\s*:\s*"[^"]*sarif|runs"\s*:)', re.IGNORECASE)
_JUNIT = re.compile(rb"\s*(<\?xml[^>]*\?>\s*)?<testsuites?\b")

CHECKED = {
    "text": SmallOutput("a text of `paramtool check`", lambda _, tail: bool(_VERDICT.search(tail))),
    "github": SmallOutput("a text of `paramtool check` for GitHub", lambda _, tail: bool(_SUMMARY.search(tail))),
    "sarif": SmallOutput("SARIF", lambda head, _: bool(_SARIF.match(head))),
    "junit": SmallOutput("JUnit's XML", lambda head, _: bool(_JUNIT.match(head))),
    "markdown": SmallOutput("Markdown of `paramtool check`", lambda head, _: head.startswith(b"### paramtool check")),
    "json": SmallOutput("JSON of `paramtool check`", lambda head, _: bool(_JSON.match(head))),
}
"""{value of `check --format`: what its file is}"""


# --- The files of a model that is read: a page, a lock or a report never overwrites one of them -----------------------


CONFIGS = (hf_config.NAME, adapter_config.NAME)


def inputs_of(paths: Iterable[Path]) -> list[str]:
    """What a small output may not replace: the files of the models at some paths."""
    return [file for path in map(str, paths) if os.path.exists(path) for file in model_files(path)]


def model_files(path: str) -> Iterator[str]:
    """A path that was given, the configs beside it and, of a folder or an index, the weights and indexes there.

    The files of a folder are told by their names alone, so damaged files and pointers are among them.
    """
    yield path
    whole = is_folder(path)
    folder = path if whole else os.path.dirname(path)
    yield from (os.path.join(folder, name) for name in CONFIGS)
    if whole or is_index_name(path):
        ends = (*table.suffixes(), DISTRIBUTED, metadata.NAME)
        names = os.listdir(folder or ".")
        yield from (os.path.join(folder, name) for name in names if name.endswith(ends) or is_index_name(name))
