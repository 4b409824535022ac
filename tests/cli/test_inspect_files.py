"""`inspect` of several paths, as a CI job calls it, and the documents of errors that every command prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from safetensors.torch import save_file

from paramtool.cli._failures import caught
from paramtool.cli.main import COMMANDS, cli
from paramtool.commands import inspect as inspect_command
from paramtool.errors import MAX_LISTED
from tests.cli.test_documents import validate
from tests.hostile import makers_torch
from tests.hostile.command import COMPARING, Ran, assert_error_document, command, interrupted, quick
from tests.hostile.makers_torch import call_of, state, tensor

RULE = ("--fail-on", "missing:head")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """good.pt, lacking.pt, evil.pt, junk.pt, and a folder."""
    torch.save({"head": torch.ones(3), "body": torch.ones(3)}, tmp_path / "good.pt")
    torch.save({"body": torch.ones(3)}, tmp_path / "lacking.pt")
    makers_torch.zipped(state(head=tensor(), evil=call_of("os", "system")))(tmp_path)
    (tmp_path / "model.pt").rename(tmp_path / "evil.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    (tmp_path / "folder").mkdir()
    save_file({"head": torch.ones(2)}, tmp_path / "folder" / "model.safetensors")
    return tmp_path


def findings(ran: Ran) -> list[str]:
    return [line for line in ran.out.splitlines() if line.startswith("finding: ")]


# --- text ------------------------------------------------------------------------------------------------------------


def test_each_file_is_a_line(files: Path) -> None:
    """Verdict, format, tensors, size, path, reason, as far as they are there; then the findings, and a line for all."""
    ran = quick("inspect", "good.pt", "lacking.pt", "folder", "junk.pt", "evil.pt", *RULE, cwd=files)
    assert (ran.code, ran.err) == (4, "")
    rows = [line.split("  ") for line in ran.out.splitlines()[:5]]
    assert [(*row[:3], *row[4:]) for row in rows[:3]] == [
        ("fine", "torch zip", "2 tensors", "good.pt"), ("finding", "torch zip", "1 tensor", "lacking.pt", "1 finding"),
        ("fine", "safetensors", "1 tensor", "folder"),
    ]  # fmt: skip
    assert [row[:2] for row in rows[3:]] == [
        ["error", "junk.pt"],
        ["unsafe", "evil.pt"],
    ] and "not in a format" in ran.out
    assert "unsafe  evil.pt  asks for os.system(" in ran.out
    assert findings(ran) == ["finding: lacking.pt: missing:head: 'head' is not in the file"]
    assert ran.out.endswith("total  5 files  2 fine, 1 with findings, 2 with errors\n")


def test_the_listing_of_each_is_asked_for(files: Path) -> None:
    """It is what it is alone, with the path in its findings."""
    paths = ["good.pt", "lacking.pt", "folder"]
    ran = quick("inspect", *paths, *RULE, "--tensors", cwd=files)
    assert (ran.code, ran.err) == (1, "")
    *blocks, total = ran.out.split("\n\n")
    for path, block in zip(paths, blocks, strict=True):
        alone = quick("inspect", path, *RULE, "--tensors", cwd=files).out
        assert block + "\n" == alone.replace("finding: ", f"finding: {path}: ") and block.startswith(f"file  {path}  ")
    assert total == "total  3 files  2 fine, 1 with findings, 0 with errors\n"


def test_one_that_cannot_be_read_does_not_stop_the_others(files: Path) -> None:
    """Wherever it stands; with --tensors its error is on standard error, and its code is the highest."""
    for paths in (["junk.pt", "lacking.pt", "good.pt"], ["lacking.pt", "good.pt", "junk.pt"]):
        ran = quick("inspect", *paths, *RULE, "--tensors", cwd=files)
        assert ran.code == 3 and ran.err.startswith("error: junk.pt: ") and ran.err.count("error: ") == 1, ran
        assert findings(ran) == ["finding: lacking.pt: missing:head: 'head' is not in the file"]
        assert ran.out.count("\nfile  ") + ran.out.startswith("file  ") == 2
        assert ran.out.endswith("total  3 files  1 fine, 1 with findings, 1 with errors\n")


CODES = {"good.pt": 0, "lacking.pt": 1, "junk.pt": 3, "evil.pt": 4}


@pytest.mark.sample(16)
@pytest.mark.parametrize("paths", [(a, b) for a in CODES for b in CODES], ids="-".join)
@pytest.mark.parametrize("flags", [(), ("--json",), ("--quiet",)], ids=["text", "json", "quiet"])
def test_the_exit_code_is_the_highest(paths: tuple[str, str], flags: tuple[str, ...], files: Path) -> None:
    """Of every two, in both orders, also of one file twice; an unsafe one is listed first."""
    ran = quick("inspect", *paths, *RULE, *flags, cwd=files)
    assert ran.code == max(CODES[path] for path in paths), ran
    assert ran.err.count("error: ") == sum(CODES[path] > 1 for path in paths) * bool(flags), ran
    assert "os.system" in ran.err + ran.out or "evil.pt" not in paths
    if not flags:
        assert ran.out.count("unsafe  evil.pt  asks for os.system") == paths.count("evil.pt"), ran
        assert len(findings(ran)) == paths.count("lacking.pt"), ran


def test_a_request_that_does_not_fit_one_of_them(files: Path) -> None:
    """A section that one lacks, and a config that one lacks, are errors of that file."""
    torch.save({"model": {"head": torch.ones(2)}, "epoch": 1}, files / "run.pt")
    ran = quick("inspect", "run.pt", "good.pt", "--only", "model", *RULE, cwd=files)
    assert ran.code == 2 and "good.pt  no section 'model'" in ran.out, ran
    (files / "folder" / "config.json").write_text("{}")
    ran = quick("inspect", "folder", "good.pt", "--fail-on", "config-ties", cwd=files)
    assert ran.code == 2 and "error  good.pt  config.json: no such file" in ran.out, ran


def test_quiet_prints_findings_alone(files: Path) -> None:
    """Nothing where nothing is found; with one path no path."""
    assert quick("inspect", "good.pt", "folder", "--quiet", *RULE, cwd=files) == (0, "", "")
    assert quick("inspect", "good.pt", "--quiet", "--tensors", cwd=files) == (0, "", "")
    ran = quick("inspect", "lacking.pt", "--quiet", *RULE, cwd=files)
    assert ran == (1, "finding: missing:head: 'head' is not in the file\n", "")
    ran = quick("inspect", "lacking.pt", "evil.pt", "junk.pt", "--quiet", *RULE, "--fail-on", "unsafe", cwd=files)
    assert [line.split(": ")[1:3] for line in ran.out.splitlines()] == [
        ["lacking.pt", "missing:head"],
        ["evil.pt", "unsafe"],
    ]
    assert ran.code == 4 and ran.err.count("error: ") == 2
    ran = quick("inspect", "good.pt", "--quiet", "--json", cwd=files)
    assert ran.code == 2 and "--quiet" in ran.err


@pytest.mark.parametrize("number", [MAX_LISTED, MAX_LISTED + 1, 500])
def test_findings_are_capped(number: int, files: Path) -> None:
    """In text, for each rule, with how many more there are; the document has all."""
    save_file({f"w{k}": torch.ones(1) for k in range(number)}, files / "many.safetensors")
    rules = ("--fail-on", "wrong-dtype:w*=int8", *RULE)
    for flags in ((), ("--quiet",)):
        ran = quick("inspect", "many.safetensors", *rules, *flags, cwd=files)
        lines, more = findings(ran), number - MAX_LISTED
        assert len(lines) == MAX_LISTED + (more > 0) + 1 and "missing:head" in lines[-1], ran
        assert not more or lines[-2] == f"finding: wrong-dtype:w*=int8: and {more} more; --verbose and --json list them"
    found = validate("inspect", quick("inspect", "many.safetensors", *rules, "--json", cwd=files).out)
    assert len(found["findings"]) == number + 1


def test_what_a_rule_assumes_is_said(files: Path) -> None:
    """A tie that only the config shows is a note of the listing and of the document."""
    save_file({"wte.weight": torch.ones(2)}, files / "folder" / "model.safetensors")
    (files / "folder" / "config.json").write_text('{"tie_word_embeddings": true}')
    rule = ("--fail-on", "untied:lm_head.weight=wte.weight")
    ran = quick("inspect", "folder", *rule, cwd=files)
    (note,) = (line for line in ran.out.splitlines() if line.startswith("note  "))
    assert ran.code == 0 and "folder/config.json (tie_word_embeddings is true)" in note and "lm_head.weight" in note
    found = validate("inspect", quick("inspect", "folder", *rule, "--json", cwd=files).out)
    assert note == f"note  {found['notes'][-1]}"
    assert "note  " not in quick("inspect", "folder", cwd=files).out


# --- odd paths -------------------------------------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing(files: Path) -> None:
    """The shell passes it on: a usage error of that one, and the others are looked at."""
    for pattern in ("*.ckpt", "run?.pt", "run[12].pt"):
        ran = quick("inspect", pattern, "lacking.pt", "--quiet", *RULE, cwd=files)
        assert (
            ran.code == 2
            and f"error: {pattern}: no file matches this pattern" in ran.err
            and "finding: lacking.pt: " in ran.out
        )
        assert len(findings(ran)) == 1
    assert "hint" not in quick("inspect", "ghost.pt", cwd=files).err


def test_the_same_file_twice(files: Path) -> None:
    """It is looked at twice, by whatever name."""
    (files / "link.pt").symlink_to("lacking.pt")
    ran = quick("inspect", "lacking.pt", "lacking.pt", "./lacking.pt", "link.pt", "--quiet", *RULE, cwd=files)
    assert [line.split(": ")[1] for line in findings(ran)] == ["lacking.pt", "lacking.pt", "./lacking.pt", "link.pt"]


@pytest.mark.parametrize("make", [
    lambda path: path.mkdir(), lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("gone"),
    lambda path: os.mkfifo(path), lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"PK\x03\x04"),
], ids=["an empty folder", "a loop", "a dangling link", "a pipe", "an empty file", "half an archive"])  # fmt: skip
def test_paths_that_are_no_checkpoints(make: Any, files: Path) -> None:
    """Each is an error of its own."""
    make(files / "odd")
    ran = quick("inspect", "good.pt", "odd", "folder", cwd=files)
    assert ran.code == 3 and "\nerror  odd  " in ran.out and "2 fine" in ran.out, ran


def test_an_empty_path(files: Path) -> None:
    """As "$UNSET" gives it."""
    ran = quick("inspect", "", "lacking.pt", "--quiet", *RULE, cwd=files)
    assert ran.code == 3 and "the path is empty" in ran.err and len(findings(ran)) == 1


def test_names_that_are_not_utf_8(files: Path) -> None:
    """Of files: in text they are written out, in JSON they come back as Python reads them."""
    odd = os.fsdecode(b"a\xff\xfe.pt")
    (files / "good.pt").rename(files / odd)
    ran = command("inspect", odd, "lacking.pt", *RULE, cwd=files)
    assert ran.code == 1 and r"fine  torch zip  2 tensors  1.80 kB  a\udcff\udcfe.pt" in ran.out, ran
    ran = command("inspect", odd, "gone" + odd, *RULE, "--json", cwd=files)
    document = validate("inspect-files", ran.out)
    assert [item["path"] for item in document["files"]] == [odd, "gone" + odd] and document["exit_code"] == 3
    assert document["files"][0]["inspection"]["path"] == odd


def test_names_of_tensors_that_no_terminal_may_see(files: Path) -> None:
    """In findings and in what they suggest."""
    torch.save({"head\x1b[2J": torch.ones(1), "x\udcff": torch.ones(1)}, files / "odd.pt")
    ran = quick("inspect", "odd.pt", "lacking.pt", "--fail-on", "wrong-dtype:*=int8", *RULE, cwd=files)
    assert ran.code in (1, 3) and (ran.out + ran.err).replace("\n", "").isprintable(), ran


def test_no_path_at_all(files: Path) -> None:
    """As a pattern of a shell with nullglob gives it."""
    ran = quick("inspect", "--quiet", *RULE, cwd=files)
    assert ran.code == 2 and "PATH" in ran.err


# --- errors that are nobody's file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error, code, says", [
    (MemoryError(), 3, "error  lacking.pt  out of memory"), (RecursionError(), 3, "error  lacking.pt  out of stack"),
    (PermissionError(13, "Permission denied", "lacking.pt"), 3, "error  lacking.pt  Permission denied"),
    (ValueError("odd"), 70, "error  lacking.pt  internal error: ValueError: odd"),
])  # fmt: skip
def test_errors_of_one_file(
    error: Exception, code: int, says: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each belongs to its path, which the message names."""
    kept = inspect_command.inspect

    def inspect(path: str, **more: Any) -> Any:
        if path == "lacking.pt":
            raise error
        return kept(path, **more)

    monkeypatch.setattr(inspect_command, "inspect", inspect)
    ran = quick("inspect", "good.pt", "lacking.pt", "folder", cwd=files)
    assert ran.code == code and says in ran.out and "2 fine" in ran.out, ran
    document = validate("inspect-files", quick("inspect", "good.pt", "lacking.pt", "folder", "--json", cwd=files).out)
    assert [item["exit_code"] for item in document["files"]] == [0, code, 0]


def test_a_signal_ends_all(files: Path) -> None:
    """It is no error of the file that was read."""
    ran = interrupted(15, COMPARING, "inspect", "good.pt", "good.pt", "--json", "--fail-on", "duplicate-bytes>0",
                      cwd=files)  # fmt: skip
    assert ran == (143, "", "")


def test_the_echo_of_a_signal_ends_all(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that turns the signal into an error of its own makes no error of a file."""

    def struck(path: str, **more: Any) -> None:
        caught.append(15)
        raise ImportError("half imported")

    monkeypatch.setattr(inspect_command, "inspect", struck)
    try:
        assert quick("inspect", "good.pt", "good.pt", "--json", cwd=files) == (143, "", "")
    finally:
        caught.clear()


# --- documents -------------------------------------------------------------------------------------------------------


def test_the_document_of_several_paths(files: Path) -> None:
    """Each item has the document that its path has alone, or its error, an unsafe one both."""
    paths = ["good.pt", "lacking.pt", "junk.pt", "evil.pt", "good.pt"]
    ran = quick("inspect", *paths, *RULE, "--json", "--tensors", cwd=files)
    document = validate("inspect-files", ran.out)
    assert document["exit_code"] == ran.code == 4
    assert [(item["path"], item["exit_code"]) for item in document["files"]] == [(p, CODES[p]) for p in paths]
    for item in document["files"]:
        alone = json.loads(quick("inspect", item["path"], *RULE, "--json", "--tensors", cwd=files).out)
        if item["inspection"] is None:
            assert item["error"] == alone
        else:
            assert item["inspection"] == validate("inspect", json.dumps(alone))
        assert (item["error"] is None) is (item["exit_code"] < 2)


def test_a_section_in_the_document(files: Path) -> None:
    """Only with --only is there a member for it, and names are those of the section."""
    torch.save({"model": {"head": torch.ones(2)}, "ema": {"head": torch.ones(3)}}, files / "run.pt")
    found = validate("inspect", quick("inspect", "run.pt", "--only", "ema", "--tensors", "--json", cwd=files).out)
    assert found["section"] == "ema" and found["sections"] == [] and found["tensors"] == 1
    assert [(item["name"], item["shape"]) for item in found["tensor_list"]] == [("head", [3])]
    assert "section" not in json.loads(quick("inspect", "run.pt", "--json", cwd=files).out)


def test_a_section_of_an_unsafe_file_is_unsafe(files: Path) -> None:
    """The pickle is run as a whole by whoever loads the section."""
    makers_torch.zipped(state(model=makers_torch.mapping(w=tensor()), evil=call_of("os", "system")))(files)
    ran = quick("inspect", "model.pt", "--only", "model", cwd=files)
    assert ran.code == 4 and "unsafe  os.system" in ran.out, ran


REQUIRED = {
    "variants": ("--against", "ghost.pt"), "export": ("--all-names", "-o", "o.safetensors"),
    "convert": ("--to", "mxnet", "-o", "o.safetensors"), "fuse": ("--layout", "cudnn"),
    "verify": ("--against", "ghost.pt"),
}  # fmt: skip


WRONG = [(wrong, of) for wrong in ("path", "flag", "nothing") for of in COMMANDS if (wrong, of) != ("path", "check")]
"""`check` goes on after a path that is not there: its own document has the error."""


@pytest.mark.sample(22)
@pytest.mark.parametrize(("wrong", "of"), WRONG)
def test_an_error_of_every_command_is_a_document(of: str, wrong: str, tmp_path: Path) -> None:
    """The same exit code and the same words on standard error as without --json, which stands anywhere."""
    args = {"path": ("ghost.pt", *REQUIRED.get(of, ())), "flag": ("ghost.pt", "--nope"), "nothing": ()}[wrong]
    without = quick(of, *args, cwd=tmp_path)
    if of == "layouts" and wrong == "nothing":
        pytest.skip("lists all layouts")
    assert without.code in (2, 3) and without.out == "", without
    for words in ((*args, "--json"), ("--json", *args)):
        ran = quick(of, *words, cwd=tmp_path)
        assert (ran.code, ran.err) == (without.code, without.err), ran
        assert_error_document(ran)
        document = validate("error", ran.out)
        hints = f"paramtool {of} --help", "`paramtool check model.safetensors`, or files = [...] in paramtool.toml"
        assert wrong == "path" or document["hint"] in hints


def test_every_command_has_json() -> None:
    """So that it can be asked for before the command line is understood."""
    for of in COMMANDS:
        found = cli.get_command(click.Context(cli), of)
        assert found is not None and any("--json" in param.opts for param in found.params), of


def test_errors_of_exit_codes_that_documents_list(files: Path) -> None:
    """4, 5, 6 and 7 as well, and 70 of our own."""
    torch.save({"s": torch.eye(3).to_sparse()}, files / "sparse.pt")
    for code, args in {
        4: ("dedup", "evil.pt"), 5: ("fuse", "good.pt", "--layout", "cudnn"), 6: ("dedup", "sparse.pt"),
        7: ("dedup", "good.pt", "-o", "junk.safetensors"),
    }.items():  # fmt: skip
        (files / "junk.safetensors").write_text("there")
        ran = quick(*args, "--json", cwd=files)
        assert validate("error", ran.out)["exit_code"] == ran.code == code, ran


def test_a_defect_of_ours_is_a_document(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 70."""

    def broken(*args: object, **more: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(inspect_command, "inspect", broken)
    ran = quick("inspect", "good.pt", "--json", cwd=files)
    assert validate("error", ran.out)["exit_code"] == ran.code == 70 and "odd" in ran.out


def test_no_document_after_a_document(files: Path) -> None:
    """An unsafe file that can be described has its own; what comes after -- is no flag."""
    validate("inspect", quick("inspect", "evil.pt", "--json", cwd=files).out)
    ran = quick("inspect", "ghost.pt", "--", "--json", cwd=files)
    assert ran.code == 3 and not ran.out.startswith("{") and "error  --json  cannot be read" in ran.out, ran


@pytest.mark.parametrize("stream", ["> /dev/full", ">&-"])
def test_nobody_reads_the_document(stream: str, files: Path) -> None:
    """The exit code stays, and standard error says what it says."""
    import subprocess
    import sys

    done = subprocess.run(["bash", "-c", f"{sys.executable} -m paramtool inspect ghost.pt --json {stream}"], cwd=files,
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "") and done.stderr.count("error: ghost.pt") == 1, done
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done
