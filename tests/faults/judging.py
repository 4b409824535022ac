"""What must hold after a command met a fault: one sentence for each thing that does not."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Container, Iterator
from pathlib import Path

from tests.faults.serving import Call, Case, Desk, Ended, Listing, exit_code, listing, part

TEMPORARY = re.compile(r"\.?/?\.[^/\s]*\.tmp[^/\s:]*")
"""A name that only this program knows."""
ASKED = ("names.txt", "my.toml")
"""Files that belong to the command line: exit code 2, or 3."""
ADVICE = ("fadvise", "clone")
"""Calls whose failure costs time and nothing else."""
BAD_WORDS = ("Traceback", "internal error", "standard output", "defect of paramtool")


def place(case: Case, path: str) -> str:
    """Whether a path belongs to the `input`, the `old` output, the `output` in the making, or is `spool`ed."""
    path = os.path.normpath(path.removesuffix(" (deleted)"))
    first = path.split(os.sep)[0]
    if first == "tmp":
        return "spool"
    if path == os.curdir or os.path.isabs(path) or first.startswith("."):
        return "output"
    if first == case.command.output:
        return "old"
    return "input"


def places(case: Case, call: Call) -> frozenset[str]:
    """The same of every path of a call."""
    return frozenset(place(case, path) for path in call.paths)


def leftovers(case: Case, after: Listing) -> list[str]:
    """Names that a run left outside its output; what is inside of one is not told again."""
    known = {*case.before, *part(after, case.command.output)}
    found = [name for name in after if name not in known]
    return [name for name in found if os.path.dirname(name) not in found]


def _is_probe(name: str, call: Call | None) -> bool:
    """Whether it is the file by which Python's tempfile tries whether TMPDIR is any good."""
    return name.startswith("tmp/") and call is not None and call.name in ("create", "write", "unlink")


def touched(case: Case, after: Listing, *apart: str) -> Iterator[str]:
    """Whether everything but the output, and what is set apart, is as it was."""
    for name, entry in case.before.items():
        if name in (".", "tmp", *apart) or name in case.old:
            continue
        found = after.get(name)
        if found != entry or (found.modified != entry.modified and entry.content != ""):
            yield f"the input {name} was {'changed' if found else 'removed'}"


def output_state(case: Case, after: Listing, *, private: bool = False) -> str:
    """`old`, `new`, or what is wrong with the output; where it is `private` fewer people may read it than usual."""
    found = part(after, case.command.output)
    if found == case.new or (private and _is_private(found, case.new)):
        return "new"
    if found == case.old:
        return "old"
    if not found:
        return "neither: nothing stands at the output's place"
    for name in sorted({*found, *case.new, *case.old}):
        if found.get(name) != case.new.get(name) and found.get(name) != case.old.get(name):
            return f"neither: {name} is neither old nor new: {found.get(name)}"
    return "neither: a mixture of old and new"


def _untimed(text: str) -> str:
    """What a command prints, without how long it took."""
    return re.sub(r"\bin [\d.]+ s\b", "in _ s", text)


def _is_private(found: Listing, usual: Listing) -> bool:
    """Whether an output is as usual, but for permissions that it lacks."""
    return found.keys() == usual.keys() and all(
        (entry.kind, entry.content) == (usual[name].kind, usual[name].content) and not entry.mode & ~usual[name].mode
        for name, entry in found.items()
    )


def failed(
    case: Case, ended: Ended, folder: Path, *, survived: bool = False, codes: Container[int] = ()
) -> Iterator[str]:
    """After one call failed; `survived` says that the command has to go on as if nothing had happened.

    With `codes` one of these is enough, whatever is said.
    """
    after = listing(folder)
    code = ended.code
    state = output_state(case, after, private=bool(codes))
    yield from touched(case, after)
    for word in BAD_WORDS:
        if word in ended.err:
            yield f"it says {word!r}"
    left = leftovers(case, after)
    call = ended.hit
    if call is None:
        yield "the fault was not met"
        return
    for name in left:
        if os.path.basename(name) not in ended.err and not _is_probe(name, call):
            yield f"it left {name}"
    if case.command.output and state not in ("old", "new"):
        yield state
    if code == 0:
        if case.command.output and state != "new":
            yield f"exit 0, and the output is {state}"
        if not case.command.output and _untimed(ended.out) != _untimed(case.usual.out):
            yield "exit 0, and it says something else than usual"
        if call.name == "fsync" and not survived:
            yield "exit 0, and a file or folder was not flushed to the disk"
        return
    if codes:
        if ended.code not in codes:
            yield f"exit {ended.code}"
    elif survived or call.name in ADVICE:
        yield f"exit {code}; expected 0"
    else:
        yield from _message(case, ended)


def _message(case: Case, ended: Ended) -> Iterator[str]:
    """Whether exit code and message are those of a file that could not be read or written."""
    codes: set[int] = set()
    words: set[str] = set()
    for call in ended.calls:
        for path in call.paths if call.hit else ():
            path = os.path.normpath(path.removesuffix(" (deleted)"))
            where = place(case, path)
            codes |= {2, 3} if path in ASKED else {3} if where == "input" else {7}
            words.add({"input": path, "spool": "tmp"}.get(where, case.command.output))
    if ended.code not in codes:
        yield f"exit {ended.code}; expected {' or '.join(map(str, sorted(codes)))}"
    said = TEMPORARY.sub("", ended.err)
    if not any(word in said for word in words):
        yield f"it does not say {' or '.join(sorted(words))}"
    if not ended.err.startswith("error: ") and "\nerror: " not in ended.err:
        yield "it says no error"


def interrupted(case: Case, ended: Ended, folder: Path, *numbers: int) -> Iterator[str]:
    """After signals that can be caught; of two that wait at once either may be the first."""
    after = listing(folder)
    yield from touched(case, after)
    if ended.code not in [128 + number for number in numbers]:
        yield f"exit {ended.code}; expected {' or '.join(str(128 + number) for number in numbers)}"
    for word in BAD_WORDS:
        if word in ended.err:
            yield f"it says {word!r}"
    if case.command.output and (state := output_state(case, after)) not in ("old", "new"):
        yield state
    for name in leftovers(case, after):
        if not _is_probe(name, ended.hit):
            yield f"it left {name}"


def killed(case: Case, ended: Ended, folder: Path, desk: Desk, *, gap: bool = False) -> Iterator[str]:
    """After SIGKILL, and after the same command was run again.

    `gap` says that the system cannot exchange two names in one step: an old output may be away until the next run.
    """
    after = listing(folder)
    yield from touched(case, after)
    if ended.code not in (-signal.SIGKILL, 0):
        yield f"exit {exit_code(ended)}; expected {128 + signal.SIGKILL}"
    state = output_state(case, after) if case.command.output else "old"
    if state not in ("old", "new") and not (gap and not part(after, case.command.output)):
        yield state
    left = [name for name in leftovers(case, after) if not name.startswith("tmp/")]
    for name in left:
        if not TEMPORARY.fullmatch(name):
            yield f"it left {name}"
    force = state == "new" and "--force" not in case.command.words
    words = (*case.command.words, *(["--force"] if force else []))
    again = desk.server.run(words, folder)
    if again.code != 0:
        yield f"run again: exit {again.code}: {again.err.strip()}"
    after = listing(folder)
    if case.command.output and (state := output_state(case, after)) != "new":
        yield f"run again: {state}"
    still = [name for name in leftovers(case, after) if not name.startswith("tmp/")]
    for name in still:
        yield f"run again: {name} is still there"
    for name in left:
        if name not in still and os.path.basename(name) not in again.err + again.out:
            yield f"run again: it does not say that {name} was removed"
