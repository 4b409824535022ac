"""Somebody else at work in the same folder: between any two calls of a command a file is changed, removed or put there.

No race is left to luck: the command stops before a call, the test does what somebody else would do, and it goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.commands import COMMANDS, one_word
from tests.faults.judging import BAD_WORDS, TEMPORARY, leftovers, output_state, touched
from tests.faults.picking import nothing_wrong, report, sample
from tests.faults.serving import LOOKING, SIGNAL_BEFORE, Call, Case, Command, Desk, Ended, Listing, listing, part

BY_NAME = {command.name: command for command in COMMANDS}
Deed = Callable[[Path], None]
Found = Iterator[str]
COMMITS = ("rename", "link", "exchange")
"""Calls that put an output into its place."""


def _stopped(desk: Desk, case: Case, at: int, deed: Deed, user: int = 0) -> tuple[Ended, Path]:
    """Run a command; when it is about to make its n-th call, do a deed in its folder."""
    folder = desk.fresh(case.seed)
    ended = desk.server.run(case.command.words, folder, (at, SIGNAL_BEFORE, signal.SIGSTOP), looks=True)
    if ended.code is None:
        deed(folder)
        ended = desk.server.resume(ended, folder)
    return ended, folder


def _run(
    desk: Desk,
    case: Case,
    what: str,
    calls: Iterable[Call],
    deed: Deed,
    judge: Callable[[Ended, Path, Call], Found],
    *codes: int,
) -> Found:
    count = 0
    for call in calls:
        ended, folder = _stopped(desk, case, call.at, deed)
        count += 1
        for wrong in (*_civil(ended, what, *codes), *judge(ended, folder, call)):
            said = " / ".join(ended.err.split("\n"))[:200]
            where = f"before call {call.at}, {call.name} {' '.join(call.paths)}"
            line = f"{' '.join(case.command.words)}: {what} {where}: {wrong} [exit {ended.code}; {said}]"
            report(line)
            yield line
        shutil.rmtree(folder)
    report(f"cases: {count} {os.environ.get('PYTEST_CURRENT_TEST', '')}")


def _civil(ended: Ended, what: str = "", *codes: int) -> Found:
    """What every end keeps to; `codes` may be exit codes, too."""
    for word in BAD_WORDS:
        if word in ended.err and not (what.endswith("trapped") and "does not read back" in ended.err):
            yield f"it says {word!r}"
    if ended.code not in (0, 1, 3, 7, *codes):
        yield f"exit {ended.code}"


def _nothing_left(case: Case, after: Listing, *more: str) -> Found:
    for name in leftovers(case, after):
        if name not in more:
            yield f"it left {name}"


# What is read.


def _truncated(path: Path) -> None:
    os.truncate(path, 0)


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" " * 8)


def _overwritten(path: Path) -> None:
    """Another byte in the middle, at the same size."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _replaced(path: Path) -> None:
    """Another file of the same size comes under its name."""
    other = path.with_name("arriving")
    shutil.copyfile(path, other)
    _overwritten(other)
    os.replace(other, path)


def _removed(path: Path) -> None:
    path.unlink()


CHANGES = (_truncated, _halved, _grown, _overwritten, _replaced, _removed)
FIRST = "model/model-00001-of-00002.safetensors"
READ = (
    ("dedup", "model.pt"),
    ("dedup-force", "model.pt"),
    ("dedup-torch", "model.pt"),
    ("dedup-npz", "model.npz"),
    ("dedup-folder", FIRST),
    ("dedup-folder", "model/model.safetensors.index.json"),
    ("dedup-folder", "model/config.json"),
    ("dedup-folder-force", FIRST),
    ("family", "tuned/model.safetensors"),
    ("family", "base/config.json"),
    ("export", "model.safetensors"),
    ("convert", "lstm.safetensors"),
    ("fuse", "lstm.safetensors"),
    ("unfuse", "fused.safetensors"),
    ("verify", "model.pt"),
    ("verify", "model.safetensors"),
    ("verify-folder", FIRST),
)


def _unverified(command: Command) -> Command:
    return replace(command, name=f"{command.name}-unverified", words=(*command.words, "--no-verify"))


@pytest.mark.sample(5)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize(
    ("command", "name"),
    [(BY_NAME[command], name) for command, name in READ]
    + [(_unverified(BY_NAME[command]), name) for command, name in READ if BY_NAME[command].output],
    ids=lambda word: word if isinstance(word, str) else one_word(word),
)
def test_an_input_changes(desk: Desk, command: Command, name: str, change: Callable[[Path], None]) -> None:
    """Exit 3 with its name, or an output that is wholly of the old file or wholly of the new one."""
    case = desk.case(command)
    calls = desk.looking(case)
    looks = max(call.at for call in calls if name in call.paths)
    done = max((call.at for call in calls if call.name in COMMITS and command.output in call.paths), default=1 << 30)
    last = max(call.at for call in calls if name in call.paths and call.name not in LOOKING and call.at < done)

    def deed(folder: Path) -> None:
        change(folder / name)

    changed = desk.fresh(case.seed)
    deed(changed)
    other = desk.server.run(command.words, changed, watched=False)
    other_output = part(listing(changed), command.output)
    shutil.rmtree(changed)

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        yield from _nothing_left(case, after)
        if ended.code == 0:
            as_other = other.code == 0 and (part(after, command.output) == other_output if command.output else True)
            as_usual = call.at > last and (not command.output or output_state(case, after, private=True) == "new")
            if not (as_other or as_usual):
                yield "exit 0, though it was read from again after the change"
            return
        if ended.code == 1 and not command.output and other.code == 1:
            return
        is_as_other = other.code and (other.code, other.err) == (ended.code, ended.err)
        if ended.code != 3 and not is_as_other:
            yield f"exit {ended.code}; expected 3"
        if name not in ended.err and not is_as_other:
            yield f"it does not say {name}"
        if command.output and output_state(case, after) != "old":
            yield f"exit {ended.code}, and the output is {output_state(case, after)}"

    # between two calls that touch the file, or the folder it is in, or move the output, one moment is as another
    near = {name, os.path.dirname(name) or "."}
    tries = [
        call
        for call in calls
        if 1 < call.at <= looks + 1
        and (call.at == looks + 1 or call.name in COMMITS or near & {os.path.normpath(path) for path in call.paths})
    ]
    nothing_wrong(
        _run(
            desk,
            case,
            f"{name} is {change.__name__[1:]}",
            sample(case, tries, f"{name} {change.__name__}", most=2),
            deed,
            judge,
            other.code,
        )
    )


# Where it is written.


def _elsewhere(command: Command) -> Command:
    """The same, into a folder that may go away, beside one that is nobody's business."""

    def make(folder: Path, server: object) -> None:
        command.make(folder, server)  # type: ignore[arg-type]
        (folder / "place").mkdir()
        for name in part(listing(folder), command.output):
            if "/" not in name:
                os.rename(folder / name, folder / "place" / name)
        (folder / "other").mkdir()
        (folder / "other" / "keep.txt").write_text("mine")

    words = tuple(f"place/{word}" if word == command.output else word for word in command.words)
    return replace(command, name=f"{command.name}-place", words=words, output=f"place/{command.output}", make=make)


def _gone(folder: Path) -> None:
    shutil.rmtree(folder / "place")


def _moved(folder: Path) -> None:
    os.rename(folder / "place", folder / "moved")


def _linked(folder: Path) -> None:
    os.rename(folder / "place", folder / "moved")
    os.symlink("other", folder / "place")


PLACES = tuple(
    BY_NAME[name] for name in ("dedup", "dedup-force", "dedup-folder", "dedup-folder-force", "family", "fuse")
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", (_gone, _moved, _linked), ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("command", PLACES, ids=one_word)
def test_the_folder_of_the_output_changes(desk: Desk, command: Command, change: Deed) -> None:
    """Whole or not at all, wherever it ends; and nothing is written anywhere else."""
    case = desk.case(_elsewhere(command))
    calls = [call for call in desk.looking(case) if call.at > 1]

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        yield from touched(case, {key: entry for key, entry in after.items() if not key.startswith("place")}, "place")
        wanted = {key.removeprefix("place/"): entry.content for key, entry in case.new.items()}
        kept = {key.removeprefix("place/"): entry.content for key, entry in case.old.items()}
        found = 0
        for where in ("place", "moved", "other"):
            if where == "place" and not os.path.isdir(folder / where):
                continue
            inside = {
                key.removeprefix(f"{where}/"): entry.content
                for key, entry in part(after, where).items()
                if key != where and key != "other/keep.txt"
            }
            found += wanted.items() <= inside.items()
            if where == "moved":  # what went away with its folder can hardly be removed
                inside = {key: entry for key, entry in inside.items() if not TEMPORARY.match(f"./{key}")}
            if inside and inside not in (wanted, kept):
                yield f"{where} holds {sorted(set(inside) - set(wanted)) or 'something half done'}"
        if ended.code == 0 and not found and change is not _gone:
            yield "exit 0, and there is no output"

    tries = sample(case, calls, change.__name__, most=6)
    nothing_wrong(_run(desk, case, f"the folder is {change.__name__[1:]}", tries, change, judge))


def _temporary(folder: Path) -> Path | None:
    return next((path for path in folder.iterdir() if path.name.startswith(".") and ".tmp" in path.name), None)


def _cleaned_away(folder: Path) -> None:
    """A program that cleans up removes the output in the making."""
    if path := _temporary(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _trapped(folder: Path) -> None:
    """A link to somebody's file, or folder, comes in the place of an output in the making."""
    if path := _temporary(folder):
        what = "kept" if path.is_dir() else "keep.txt"
        _cleaned_away(folder)
        os.symlink(what, path)


def _beside(command: Command) -> Command:
    def make(folder: Path, server: object) -> None:
        command.make(folder, server)  # type: ignore[arg-type]
        (folder / "keep.txt").write_text("mine")
        (folder / "kept").mkdir()
        (folder / "kept" / "config.json").write_text("mine")

    return replace(command, name=f"{command.name}-beside", make=make)


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", (_cleaned_away, _trapped), ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("command", PLACES, ids=one_word)
def test_the_output_in_the_making_goes_away(desk: Desk, command: Command, change: Deed) -> None:
    case = desk.case(_beside(command))
    calls = desk.looking(case)
    begin = next(call.at for call in calls if call.name in ("create", "mkdir"))

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        yield from touched(case, after)
        if ended.code not in (0, 7):
            yield f"exit {ended.code}; expected 7"
        if change is _trapped:  # whoever may do that may write whatever he likes under the output's name, too
            return
        if (state := output_state(case, after)) not in ("old", "new"):
            yield state
        if ended.code == 0 and state != "new":
            yield "exit 0, and there is no output"
        yield from _nothing_left(case, after)

    tries = sample(case, [call for call in calls if call.at > begin], change.__name__, most=6)
    nothing_wrong(_run(desk, case, f"the temporary is {change.__name__[1:]}", tries, change, judge))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ("dedup", "dedup-torch", "dedup-folder", "family", "fuse"))
def test_an_output_of_somebody_else_arrives(desk: Desk, name: str) -> None:
    """Without --force nothing that exists is overwritten, also when it came while the output was written."""
    case = desk.case(BY_NAME[name])
    path = case.command.output

    def deed(folder: Path) -> None:
        if "." in path:
            (folder / path).write_text("mine")
        else:
            (folder / path).mkdir()
            (folder / path / "mine.txt").write_text("mine")

    calls = desk.looking(case)
    commit = next(call.at for call in calls if call.name in COMMITS and path in call.paths)

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        mine = folder / path if "." in path else folder / path / "mine.txt"
        if not mine.is_file() or mine.read_bytes() != b"mine":
            yield "what somebody else put there is lost"
        if ended.code != 7 or path not in ended.err:
            yield f"exit {ended.code}; expected 7, and {path} said"
        yield from _nothing_left(case, after)

    tries = sample(case, [call for call in calls if call.at <= commit], "arrives", most=5)
    nothing_wrong(_run(desk, case, "an output arrives", tries, deed, judge))


# What --force replaces.


def _arrives(path: Path) -> None:
    (path / "notes.txt").write_text("mine")


def _arrives_inside(path: Path) -> None:
    (path / "logs").mkdir()
    (path / "logs" / "notes.txt").write_text("mine")


def _edited(path: Path) -> None:
    """Somebody edits a file in place, at the same size."""
    file = next(path.glob("**/config.json"))
    file.write_text("mine".ljust(len(file.read_text())))


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", (_arrives, _arrives_inside, _edited), ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("name", ("dedup-folder-force", "family-force"))
def test_work_arrives_in_a_folder_that_is_replaced(desk: Desk, name: str, change: Callable[[Path], None]) -> None:
    """It is never lost: it stands in the folder, or the message says where."""
    case = desk.case(BY_NAME[name])

    def deed(folder: Path) -> None:
        if (folder / "out").is_dir():
            change(folder / "out")

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        mine = [
            path
            for path, entry in after.items()
            if path.endswith(("notes.txt", "config.json")) and (folder / path).read_bytes().strip() == b"mine"
        ]
        if not mine:
            yield "somebody's work is lost"
        elif not any(path.startswith("out/") or path in ended.err for path in mine):
            yield f"it does not say that somebody's work is in {mine}"
        yield from touched(case, after)
        if not os.path.isdir(folder / "out"):
            yield "neither: nothing stands at the output's place"
        if ended.code != 0:
            yield from _nothing_left(case, after)
        elif mine and not mine[0].startswith("out/"):
            yield "exit 0, though somebody's work was moved away"

    calls = [call for call in desk.looking(case) if call.at > 1]
    gone = {call.at + 1 for call in calls if call.name == "rename" and call.paths[0] == "out"}
    tries = sample(case, [call for call in calls if call.at not in gone], change.__name__, 3, most=14)
    nothing_wrong(_run(desk, case, f"a file {change.__name__[1:]}", tries, deed, judge))


@pytest.mark.parametrize("inside", ("base/config.json", "tuned/model-00001-of-00002.safetensors"))
def test_a_family_that_was_edited_is_not_replaced(desk: Desk, inside: str) -> None:
    """At the same size, too."""
    case = desk.case(BY_NAME["family-force"])
    folder = desk.fresh(case.seed)
    _overwritten(folder / "out" / inside)
    before = listing(folder)
    ended = desk.server.run(case.command.words, folder)
    after = listing(folder)
    shutil.rmtree(folder)
    assert ended.code == 7 and os.path.basename(inside) in ended.err, ended
    assert part(before, "out") == part(after, "out")


# Two at once.


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", ("dedup", "dedup-force", "dedup-torch", "dedup-folder", "dedup-folder-force", "family", "family-force")
)
def test_two_write_one_output(desk: Desk, name: str) -> None:
    """The second runs from its beginning to its end between two calls of the first."""
    case = desk.case(BY_NAME[name])
    ends: list[Ended] = []

    def deed(folder: Path) -> None:
        ends.append(desk.server.run(case.command.words, folder))

    def judge(ended: Ended, folder: Path, call: Call) -> Found:
        after = listing(folder)
        second = ends.pop()
        yield from (f"the second: {wrong}" for wrong in _civil(second))
        codes = sorted([ended.code, second.code], key=str)
        if codes not in ([0, 7], [0, 0] if "--force" in case.command.words else []):
            yield f"exits {ended.code} and {second.code}"
        if output_state(case, after) != "new":
            yield output_state(case, after)
        yield from touched(case, after)
        yield from _nothing_left(case, after)

    calls = desk.looking(case)
    last = max(call.at for call in calls if call.name in COMMITS)
    without = "--force" not in case.command.words
    tries = [call for call in calls if call.at > 1 and not (without and call.at > last)]
    nothing_wrong(_run(desk, case, "another writer comes", sample(case, tries, "two", 2, most=6), deed, judge))


# Hard links.


def test_a_second_name_of_the_replaced_output_keeps_its_bytes(desk: Desk) -> None:
    case = desk.case(BY_NAME["dedup-force"])
    folder = desk.fresh(case.seed)
    os.link(folder / "out.safetensors", folder / "kept.safetensors")
    before = (folder / "kept.safetensors").read_bytes()
    ended = desk.server.run(case.command.words, folder)
    assert ended.code == 0, ended
    assert (folder / "kept.safetensors").read_bytes() == before
    assert part(listing(folder), "out.safetensors") == case.new
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ("dedup-force", "dedup-folder-force"))
def test_an_output_that_is_a_name_of_the_input(desk: Desk, name: str) -> None:
    """Its bytes stay, whatever becomes of the name."""
    case = desk.case(BY_NAME[name])
    folder = desk.fresh(case.seed)
    if name == "dedup-force":
        source = folder / "model.pt"
        (folder / "out.safetensors").unlink()
        os.link(source, folder / "out.safetensors")
    else:
        source = folder / "model/config.json"
        (folder / "out/config.json").unlink()
        os.link(source, folder / "out/config.json")
    before = source.read_bytes()
    ended = desk.server.run(case.command.words, folder)
    assert ended.code in (0, 7), ended
    assert source.read_bytes() == before
    after = listing(folder)
    assert not leftovers(case, after)
    found = {path: entry.content for path, entry in part(after, case.command.output).items()}
    assert ended.code or found == {path: entry.content for path, entry in case.new.items()}
    shutil.rmtree(folder)


# Without rights.

NOBODY = 65534


def _owned(folder: Path, user: int) -> None:
    """A folder and all that is in it belong to somebody."""
    for name in listing(folder):
        os.lchown(folder / name, user, user)


def _private(name: str) -> Deed:
    def deed(folder: Path) -> None:
        os.chown(folder / name, 0, 0)
        os.chmod(folder / name, 0o600 if (folder / name).is_file() else 0o700)

    return deed


def _closed(folder: Path) -> None:
    os.chown(folder, 0, 0)
    os.chmod(folder, 0o755)


def _sticky(folder: Path) -> None:
    os.chown(folder, 0, 0)
    os.chmod(folder, 0o1777)
    for name in part(listing(folder), "out"):
        os.lchown(folder / name, 0, 0)
    if (folder / "out.safetensors").exists():
        os.chown(folder / "out.safetensors", 0, 0)


def _not_mine(folder: Path) -> None:
    """The old folder is another's, and what is in it cannot be removed."""
    for name in part(listing(folder), "out"):
        os.lchown(folder / name, 0, 0)
        if (folder / name).is_dir():
            os.chmod(folder / name, 0o755)


def _no_temporary(folder: Path) -> None:
    os.chown(folder / "tmp", 0, 0)
    os.chmod(folder / "tmp", 0o755)


RIGHTS = (
    ("dedup", _private("model.pt"), 3, "model.pt"),
    ("dedup-npz", _private("model.npz"), 3, "model.npz"),
    ("dedup-folder", _private(FIRST), 3, FIRST),
    ("dedup-folder", _private("model/model.safetensors.index.json"), 3, "model.safetensors.index.json"),
    ("dedup-folder", _private("model/config.json"), 3, "model/config.json"),
    ("dedup-folder", _private("model/tokenizer.json"), 3, "model/tokenizer.json"),
    ("dedup-folder", _private("model"), 3, "model"),
    ("family", _private("tuned/config.json"), 3, "tuned/config.json"),
    ("export", _private("names.txt"), (2, 3), "names.txt"),
    ("verify", _private("model.pt"), 3, "model.pt"),
    ("dedup", _closed, 7, "out.safetensors"),
    ("dedup-force", _closed, 7, "out.safetensors"),
    ("dedup-folder", _closed, 7, "out"),
    ("dedup-folder-force", _closed, 7, "out"),
    ("family-force", _closed, 7, "out"),
    ("dedup-force", _sticky, 7, "out.safetensors"),
    ("dedup-folder-force", _sticky, 7, "out"),
    ("dedup-folder-force", _not_mine, (0, 7), "out"),
    ("family-force", _not_mine, (0, 7), "out"),
    ("dedup-folder-force", _private("out"), 7, "out"),
    ("dedup-npz", _no_temporary, (0, 7), "tmp"),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
@pytest.mark.parametrize(
    ("name", "deed", "code", "says"),
    RIGHTS,
    ids=[f"{name}-{k}" for k, (name, *_) in enumerate(RIGHTS)],
)
def test_somebody_without_rights(desk: Desk, name: str, deed: Deed, code: int | tuple[int, ...], says: str) -> None:
    """Exit 3 or 7 with the name; the old output stays whole, and nothing is left."""
    case = desk.case(BY_NAME[name])
    desk.room.chmod(0o711)
    folder = desk.fresh(case.seed)
    _owned(folder, NOBODY)
    deed(folder)
    before = listing(folder)
    ended = desk.server.run(case.command.words, folder, user=NOBODY)
    after = listing(folder)
    shutil.rmtree(folder)
    codes = code if isinstance(code, tuple) else (code,)
    assert ended.code in codes, ended
    assert not any(word in ended.err for word in BAD_WORDS), ended
    if ended.code:
        assert says in ended.err and ended.err.startswith("error: "), ended
        assert before == after
    else:
        assert output_state(case, after) == "new"
        assert all(os.path.basename(left) in ended.err for left in leftovers(case, after)), leftovers(case, after)
