"""The commands as people and pipes use them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from safetensors.torch import load_file, save_file

from paramtool.cli.main import COMMANDS, cli
from paramtool.formats.folder import below
from tests.hostile.command import Ran, command, contents, quick, refused
from tests.hostile.makers_safetensors import build, item, made
from tests.hostile.makers_torch import mapping, name, state, tensor, zipped

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Tied, sliced, equal, and a slice that drags its base along."""
    w = torch.arange(4096.0).view(64, 64)
    big = torch.arange(1000.0)
    tensors = {"emb.weight": w, "head.weight": w, "turned": w.t(), "copy": w.clone(), "row": w[3], "part": big[:10],
               "half": torch.ones(3, dtype=torch.bfloat16)}  # fmt: skip
    torch.save(tensors, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def parameters(of: str) -> list[str]:
    """Every flag of a command."""
    found = cli.get_command(click.Context(cli), of)
    assert found is not None
    return [flag for p in found.params if isinstance(p, click.Option) for flag in p.opts if flag.startswith("--")]


@pytest.mark.parametrize("of", COMMANDS)
def test_every_command_and_flag_is_documented(of: str) -> None:
    """In the README or docs, by its whole name."""
    texts = " ".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert f"paramtool {of}" in texts
    words = set(texts.replace("`", " ").replace("/", " ").replace(",", " ").replace("=", " ").replace(")", " ")
                .replace("(", " ").replace("|", " ").replace(".", " ").replace(":", " ").replace(";", " ").split())  # fmt: skip  # noqa: E501
    missing = [flag for flag in parameters(of) if flag not in words]
    assert not missing, missing


@pytest.mark.parametrize("of", COMMANDS)
def test_help_opens_with_an_example(of: str, tmp_path: Path) -> None:
    """A sentence, then a line to type, then the flags, each with words."""
    ran = quick(of, "--help", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert f"$ paramtool {of} " in ran.out.split("Options:")[0]
    assert all(flag in quick("help", of, "--all", cwd=tmp_path).out for flag in parameters(of))


@pytest.mark.parametrize("of", COMMANDS)
def test_help_fits_a_screen(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """45 rows of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = quick(of, "--help", cwd=tmp_path)
    lines = ran.out.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80, ran.out


def test_a_command_has_few_options_of_its_own(tmp_path: Path) -> None:
    """At most 24 beside those that two thirds of all commands have, or of those that read or write a checkpoint."""
    options = {of: set(parameters(of)) for of in COMMANDS}
    marks = ("--json", "--allow-class", "--dry-run")
    kinds = [[flags for flags in options.values() if mark in flags] for mark in marks]
    assert list(map(len, kinds)) == [14, 13, 5]
    text = quick("help", "options", cwd=tmp_path).out
    told = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))
    assert {"--json", "--max-shard-size", "--output"} < told and not {"--spec", "--stack", "--fail-on"} & told
    for flag in told:
        assert any(sum(flag in flags for flags in kind) >= len(kind) * 2 / 3 for kind in kinds), flag
    own = {of: flags - told for of, flags in options.items()}
    assert max(map(len, own.values())) <= 24, own


@pytest.mark.parametrize(
    "typed",
    [
        "dedup m.pt", "export m.pt", "report m.pt", "lock m.pt", "convert m.pt", "convert m.pt --to torch",
        "fuse m.pt --layout cudnn", "unfuse m.fused.safetensors", "dedup model", "export model",
    ],
)  # fmt: skip
def test_every_default_output_is_named_in_the_help(typed: str, tmp_path: Path) -> None:
    """The name that is written without -o is that of the help, whose <stem> is that of the input."""
    of, source, *_ = typed.split()
    shutil.copyfile(ROOT / "fixtures/torch/tied_flattened/tied_flattened.pt", tmp_path / "m.pt")
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "model/model.safetensors")
    if of == "unfuse":
        assert quick("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path).code == 0
    before = {*tmp_path.iterdir()}
    ran = quick(*typed.split(), cwd=tmp_path)
    assert ran.code == 0, ran
    (path,) = {*tmp_path.iterdir()} - before
    stem = source.partition(".")[0]
    named = path.name.replace(f"{stem}.", "<stem>.", 1).replace(".fused.un", ".un").replace("to-torch", "to-LAYOUT")
    assert named in " ".join(quick("help", of, "--all", cwd=tmp_path).out.split()), ran


REMOVED = {
    "--drop-optimizer": "--optimizer-state drop",
    "--untied-state": "--optimizer-state copy",
    "--tied-state": "--optimizer-state first",
}


@pytest.mark.parametrize("flag", REMOVED)
def test_a_removed_flag_says_what_replaces_it(flag: str, tmp_path: Path) -> None:
    ran = quick("convert", "x.pt", flag, "copy", cwd=tmp_path)
    assert ran.code == 2 and f"{flag} is replaced: {REMOVED[flag]}" in ran.err, ran


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_alone_it_lists_commands_by_what_a_person_wants(args: tuple[str, ...], tmp_path: Path) -> None:
    """Each group, each command, each with an example."""
    ran = command(*args, cwd=tmp_path)
    text = ran.out + ran.err
    for group, *_ in COMMANDS.values():
        assert f"{group.capitalize()}:" in text, text
    assert all(f"$ paramtool {of} " in text for of in COMMANDS)
    assert "Traceback" not in text


@pytest.mark.parametrize("args, word", [(("inspekt",), "inspekt"), (("inspect",), "PATH"), (("dedup", "--nope", "x"), "--nope"),  # noqa: E501
                                        (("verify", "x"), "CKPT")])  # fmt: skip
def test_usage_errors(args: tuple[str, ...], word: str, tmp_path: Path) -> None:
    """Exit 2, what was wrong, and how to get help."""
    ran = command(*args, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "") and word in ran.err and "Traceback" not in ran.err, ran


# --- pipes and terminals ---------------------------------------------------------------------------------------------


def test_in_a_pipe_lines_are_plain_and_stderr_is_quiet(model: Path, tmp_path: Path) -> None:
    """No escape, no table, each line with its label; nothing on stderr."""
    for args in (("inspect", model.name), ("inspect", model.name, "--digest"), ("dedup", model.name, "-o", "a.safetensors"),  # noqa: E501
                 ("verify", "a.safetensors", "--against", model.name)):  # fmt: skip
        ran = command(*args, cwd=tmp_path, env={"CLICOLOR": "1", "TERM": "xterm-256color"})
        assert (ran.code, ran.err) == (0, ""), ran
        assert ran.out.replace("\n", "").isprintable() and not set("│┃━─") & set(ran.out), ran
        assert all("  " in line and not line.startswith(" ") for line in ran.out.splitlines()), ran


def on_a_terminal(*args: str, cwd: Path, env: dict[str, str] | None = None, columns: int = 120) -> Ran:
    """Run with a terminal for stdout and stderr."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    base = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    with subprocess.Popen([sys.executable, "-m", "paramtool", *args], cwd=cwd, stdout=theirs, stderr=theirs,
                          env={**base, "TERM": "xterm-256color", **(env or {})}) as process:  # fmt: skip
        os.close(theirs)
        data = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody writes any more
                break
            if not piece:
                break
            data += piece
    os.close(ours)
    return Ran(process.returncode, data.decode(), "")


@pytest.mark.parametrize("word", ["check", "inspect"])
def test_a_bar_counts_the_files_of_a_large_folder(model: Path, word: str, tmp_path: Path) -> None:
    """Below a folder of many files; not where there are fewer, with --quiet, or where nobody looks."""
    (folder := tmp_path / "many" / "inner").mkdir(parents=True)
    model.rename(folder.parent / model.name)
    for k in range(below.MANY_FILES - 1):
        (folder / str(k)).touch()
    ran = on_a_terminal(word, "many", cwd=tmp_path)
    bars = re.findall(rf"scan .*?(\d+)/{below.MANY_FILES}\b", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.out))
    assert ran.code == 0 and int(bars[-1]) == below.MANY_FILES and "Traceback" not in ran.out, ran.out
    assert bars == sorted(bars, key=int)
    assert ran.out.rpartition("scan ")[2].count("\x1b[2K"), "the bar is taken away"
    assert "scan " not in on_a_terminal(word, "many", "--quiet", cwd=tmp_path).out
    assert "scan " not in quick(word, "many", cwd=tmp_path).err
    (folder / "0").unlink()
    assert "scan " not in on_a_terminal(word, "many", cwd=tmp_path).out


def test_on_a_terminal_there_is_a_table(model: Path, tmp_path: Path) -> None:
    """Columns stand under each other and a label is not repeated."""
    ran = on_a_terminal("inspect", model.name, cwd=tmp_path, env={"NO_COLOR": "1"})
    assert ran.code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ran.out).splitlines()
    (first,) = (k for k, line in enumerate(lines) if "shared" in line)
    assert lines[first].index("emb.weight") < 30 and lines[first + 1].startswith("    "), ran.out
    assert lines[first + 1].index("head.weight") == lines[first].index("emb.weight") + 2, ran.out


def test_no_color(model: Path, tmp_path: Path) -> None:
    """With NO_COLOR no colour is set; without it nothing but style is added: the words are the same."""
    plain = on_a_terminal("inspect", model.name, cwd=tmp_path, env={"NO_COLOR": "1"}).out
    styled = on_a_terminal("inspect", model.name, cwd=tmp_path).out
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|9[0-7]|38|48)[0-9;]*m", plain), plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", styled) == re.sub(r"\x1b\[[0-9;]*m", "", plain)


@pytest.mark.parametrize(
    "evil", ["w\x1b[2J\x1b[31mred", "[bold red]w[/bold red]", "w\x9b31m\x07", "[link=http://evil]w[/link]"]
)
def test_on_a_terminal_names_are_shown_and_not_obeyed(evil: str, tmp_path: Path) -> None:
    """Neither control characters nor markup."""
    path = made(build({evil: item(), "v": item(offsets=(16, 32))}, bytes(32)))(tmp_path)
    ran = on_a_terminal("inspect", "--tensors", path.name, cwd=tmp_path, env={"NO_COLOR": "1"})
    assert ran.code == 0
    for bad in ("\x1b[2J", "\x1b[31m", "\x9b", "\x07", "\x1b]8"):
        assert bad not in ran.out, ran
    shown = evil.replace("\x1b", r"\x1b").replace("\x9b", r"\x9b").replace("\x07", r"\x07")
    assert shown in ran.out, ran


@pytest.mark.parametrize("args", [("inspect", "--tensors"), ("inspect", "--json", "--tensors")])
def test_a_reader_that_goes_away(args: tuple[str, ...], tmp_path: Path) -> None:
    """`| head -1` of more than a pipe holds: quiet, and no exit code that means findings."""
    header = {f"layer.{k}": item(offsets=(16 * k, 16 * k + 16)) for k in range(3000)}
    path = made(build(header, bytes(48_000)))(tmp_path)
    with subprocess.Popen([sys.executable, "-m", "paramtool", *args, path.name], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert err == b"", err
    assert process.returncode not in (1, 70), process.returncode


# --- rules -----------------------------------------------------------------------------------------------------------

RULES = {
    "duplicate-bytes>1GB": ("duplicate-bytes>0", "16384 duplicate bytes"),
    "unused-bytes>4000": ("unused-bytes>3959", "3960 unused bytes"),
    "not-tied:emb.weight=head.weight": ("not-tied:emb.weight=copy", "'copy'"),
    "not-tied:head.weight=turned": ("not-tied:emb.weight=ghost", "'ghost'"),
    "dtype:*.weight=float32": ("dtype:h*=float32", "'half' is bfloat16"),
    "dtype:half=bfloat16": ("dtype:ghost*=float32", "'ghost*'"),
    "missing:turned": ("missing:ghost", "'ghost'"),
}  # fmt: skip
"""A rule that holds, one that does not, and what it finds."""


@pytest.mark.parametrize("holds", RULES)
def test_a_rule_both_ways(holds: str, model: Path, tmp_path: Path) -> None:
    """Exit 0 without a word, exit 1 with one line."""
    ran = quick("inspect", model.name, "--fail-on", holds, cwd=tmp_path)
    assert ran.code == 0 and "finding" not in ran.out, ran
    fails, says = RULES[holds]
    ran = quick("inspect", model.name, "--fail-on", fails, cwd=tmp_path)
    (line,) = (line for line in ran.out.splitlines() if line.startswith("finding: "))
    assert ran.code == 1 and fails in line and says in line, ran


def test_unknown_class_both_ways(tmp_path: Path) -> None:
    """The rule counts classes that only hold data, too."""
    zipped()(tmp_path)
    assert quick("inspect", "model.pt", "--fail-on", "unknown-class", cwd=tmp_path).code == 0
    space = name("recipes", "Recipe") + b")\x81" + mapping(lr=b"K\x01") + b"b"
    zipped(state(w=tensor(), args=space))(tmp_path)
    ran = quick("inspect", "model.pt", "--fail-on", "unknown-class", cwd=tmp_path)
    assert ran.code == 1 and "recipes.Recipe" in ran.out.splitlines()[-2], ran


def test_several_rules_are_several_lines(model: Path, tmp_path: Path) -> None:
    """Each that does not hold, in the order given."""
    rules = ["missing:a", "missing:turned", "missing:b", "unused-bytes>0"]
    ran = quick("inspect", model.name, *(x for rule in rules for x in ("--fail-on", rule)), cwd=tmp_path)
    found = [line for line in ran.out.splitlines() if line.startswith("finding: ")]
    assert ran.code == 1 and [line.split(": ")[1] for line in found] == ["missing:a", "missing:b", "unused-bytes>0"]


@pytest.mark.parametrize("rule", ["", "nonsense", "duplicate-bytes>", "duplicate-bytes>many", "unused-bytes>-1", "missing:",  # noqa: E501
                                  "not-tied:a", "not-tied:=b", "dtype:w", "dtype:w=float33", "unknown-class:x"])  # fmt: skip  # noqa: E501
def test_a_bad_rule_is_a_usage_error(rule: str, model: Path, tmp_path: Path) -> None:
    """Exit 2 before anything is read."""
    ran = quick("inspect", "ghost.pt", "--fail-on", rule, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "") and "fail-on" in ran.err, ran


# --- dedup -----------------------------------------------------------------------------------------------------------


def header(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    found: dict[str, object] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return found


def stored(path: Path) -> set[str]:
    return header(path).keys() - {"__metadata__"}


def test_the_default_output_stands_beside_the_input(model: Path, tmp_path: Path) -> None:
    """`<stem>.dedup.safetensors`, a folder with shards; the report names it and the next command."""
    ran = command("dedup", model, cwd=ROOT)
    assert ran.code == 0 and (tmp_path / "model.dedup.safetensors").is_file(), ran
    assert quick("dedup", model, "--max-shard-size", "1MB", cwd=tmp_path).code == 0
    assert (tmp_path / "model.dedup" / "model.safetensors.index.json").is_file()


def test_dry_run_writes_nothing(model: Path, tmp_path: Path) -> None:
    """It says what would be done, exactly, also where the output exists."""
    before = contents(tmp_path)
    dry = quick("dedup", model.name, "--dry-run", cwd=tmp_path)
    assert dry.code == 0 and dry.out.startswith("dry run") and contents(tmp_path) == before, dry
    done = quick("dedup", model.name, cwd=tmp_path)
    size = [line for line in done.out.splitlines() if line.startswith("size")]
    assert size and size == [line for line in dry.out.splitlines() if line.startswith("size")]


def test_force(model: Path, tmp_path: Path) -> None:
    """Needed for an output that exists, and then gives the same bytes."""
    assert quick("dedup", model.name, cwd=tmp_path).code == 0
    first = (tmp_path / "model.dedup.safetensors").read_bytes()
    refused(quick, "dedup", model.name, cwd=tmp_path, code=7, says=("--force",))
    assert quick("dedup", model.name, "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "model.dedup.safetensors").read_bytes() == first


@pytest.mark.parametrize(
    "keep, owner", [("first", "emb.weight"), ("last", "copy"), ("head*", "head.weight"), ("co?y", "copy")]
)
def test_keep(keep: str, owner: str, model: Path, tmp_path: Path) -> None:
    """Which of the names that share bytes owns them; no name is lost."""
    assert quick("dedup", model.name, "-o", "out.safetensors", "--keep", keep, cwd=tmp_path).code == 0
    assert stored(tmp_path / "out.safetensors") & {"emb.weight", "head.weight", "turned", "copy"} == {owner}
    assert quick("verify", "out.safetensors", "--against", model.name, cwd=tmp_path).code == 0


def test_only(tmp_path: Path) -> None:
    """One section, its prefix stripped; a section that is not there is exit 2 and lists those that are."""
    torch.save({"model": {"w": torch.ones(3)}, "ema": {"w": torch.zeros(3)}, "epoch": 1}, tmp_path / "t.pt")
    assert quick("dedup", "t.pt", "--only", "ema", "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert stored(tmp_path / "out.safetensors") == {"w"} and not load_file(tmp_path / "out.safetensors")["w"].any()
    assert quick("verify", "out.safetensors", "--against", "t.pt", "--only", "ema", cwd=tmp_path).code == 0
    assert quick("verify", "out.safetensors", "--against", "t.pt", "--only", "model", cwd=tmp_path).code == 1
    refused(quick, "dedup", "t.pt", "--only", "ghost", cwd=tmp_path, code=2, says=("ghost", "'model'", "'ema'"))


def test_max_shard_size(model: Path, tmp_path: Path) -> None:
    """Shards of at most so many bytes of tensors, and an index; a wrong size is exit 2."""
    assert quick("dedup", model.name, "-o", "out", "--max-shard-size", "17kB", "--no-equal", cwd=tmp_path).code == 0
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(files) >= 3 and files[-1] == "model.safetensors.index.json"
    assert quick("verify", "out", "--against", model.name, cwd=tmp_path).code == 0
    for size in ("0", "-1", "much", "5XB"):
        assert quick("dedup", model.name, "--max-shard-size", size, cwd=tmp_path).code == 2
    refused(quick, "dedup", model.name, "--max-shard-size", "1GB", "-o", "x.safetensors", cwd=tmp_path, code=2)


def test_no_equal_and_min_equal_bytes(model: Path, tmp_path: Path) -> None:
    """Content joins what it may."""
    for args, joined in (((), True), (("--no-equal",), False), (("--min-equal-bytes", "16384"), True),
                         (("--min-equal-bytes", "16385"), False), (("--min-equal-bytes", "1GB"), False)):  # fmt: skip
        ran = quick("dedup", model.name, "-o", "out.safetensors", "--force", *args, cwd=tmp_path)
        assert ran.code == 0 and ("copy" not in stored(tmp_path / "out.safetensors")) == joined, (args, ran)


def test_skip_unsupported(tmp_path: Path) -> None:
    """Refused by name, or left out and said so."""
    torch.save(
        {"w": torch.ones(3), "s": torch.eye(3).to_sparse(), "c": torch.ones(2, dtype=torch.complex128)},
        tmp_path / "m.pt",
    )
    refused(quick, "dedup", "m.pt", cwd=tmp_path, code=6, says=("m.pt", "'s'", "--skip-unsupported"))
    ran = quick("dedup", "m.pt", "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0 and stored(tmp_path / "m.dedup.safetensors") == {"w"}, ran
    left = [line for line in ran.out.splitlines() if line.startswith("left out")]
    assert len(left) == 2 and "'s'" in left[0] and "'c'" in left[1], ran


def test_no_verify_is_said(model: Path, tmp_path: Path) -> None:
    """What was not done is as visible as what was."""
    assert "not verified" in quick("dedup", model.name, "--no-verify", cwd=tmp_path).out
    assert "read back and equal" in quick("dedup", model.name, "--force", cwd=tmp_path).out


# --- verify and export -----------------------------------------------------------------------------------------------


def test_verify_finds_a_flipped_byte(model: Path, tmp_path: Path) -> None:
    """Wherever it is: exit 1 and the names that look at it."""
    assert quick("dedup", model.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert quick("verify", "out.safetensors", "--against", model.name, cwd=tmp_path).code == 0
    path = tmp_path / "out.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in (start, (start + len(whole)) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        ran = quick("verify", "out.safetensors", "--against", model.name, cwd=tmp_path)
        assert ran.code == 1 and ran.out.startswith("difference: ") and ran.err == "", (at, ran)
    path.write_bytes(whole[:-1])
    refused(
        quick, "verify", "out.safetensors", "--against", model.name, cwd=tmp_path, code=3, says=("out.safetensors",)
    )


def test_verify_finds_a_name_too_few_and_too_many(model: Path, tmp_path: Path) -> None:
    """--subset allows the first only."""
    torch.save({"emb.weight": torch.arange(4096.0).view(64, 64)}, tmp_path / "few.pt")
    assert quick("verify", "few.pt", "--against", model.name, cwd=tmp_path).code == 1
    assert quick("verify", "few.pt", "--against", model.name, "--subset", cwd=tmp_path).code == 0
    assert quick("verify", model.name, "--against", "few.pt", "--subset", cwd=tmp_path).code == 1


def test_export_by_names(model: Path, tmp_path: Path) -> None:
    """Exactly these, each for itself, no record; from a file or standard input."""
    assert quick("dedup", model.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    (tmp_path / "names.txt").write_text("turned\r\nhead.weight\n\nturned\n")
    args = ("export", "out.safetensors", "-o", "plain.safetensors", "--names")
    assert quick(*args, "names.txt", cwd=tmp_path).code == 0
    found = load_file(tmp_path / "plain.safetensors")
    assert list(found) and set(found) == {"turned", "head.weight"}
    assert torch.equal(found["turned"], found["head.weight"].t())
    assert "paramtool.aliases" not in json.dumps(header(tmp_path / "plain.safetensors"))
    ran = command(*args, "-", "--force", cwd=tmp_path, stdin="row\n")
    assert ran.code == 0 and set(load_file(tmp_path / "plain.safetensors")) == {"row"}, ran
    (tmp_path / "wrong.txt").write_text("row\nghost\n")
    refused(quick, *args, "wrong.txt", "--force", cwd=tmp_path, code=2, says=("out.safetensors", "'ghost'"))
    (tmp_path / "empty.txt").write_text("\n")
    refused(quick, *args, "empty.txt", cwd=tmp_path, code=2, says=("empty.txt",))
    refused(quick, *args, "ghost.txt", cwd=tmp_path, code=2, says=("ghost.txt",))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    refused(quick, *args, "binary.txt", cwd=tmp_path, code=2, says=("binary.txt",))


def test_export_like_another(model: Path, tmp_path: Path) -> None:
    """Its names and shapes; a name that is missing is exit 2, another shape exit 6."""
    args = ("export", model.name, "-o", "plain.safetensors")
    torch.save({"turned": torch.ones(64, 64), "row": torch.ones(64)}, tmp_path / "like.pt")
    assert quick(*args, "--like", "like.pt", cwd=tmp_path).code == 0
    assert set(load_file(tmp_path / "plain.safetensors")) == {"turned", "row"}
    torch.save({"row": torch.ones(65)}, tmp_path / "like.pt")
    refused(quick, *args, "--like", "like.pt", "--force", cwd=tmp_path, code=6, says=("'row'", "[64]", "[65]"))
    torch.save({"ghost": torch.ones(65)}, tmp_path / "like.pt")
    refused(quick, *args, "--like", "like.pt", "--force", cwd=tmp_path, code=2, says=("'ghost'",))
    (tmp_path / "names.txt").write_text("row\n")
    refused(quick, *args, "--force", "--like", "like.pt", "--names", "names.txt", cwd=tmp_path, code=2, says=("like",))


def test_export_of_what_repeats(tmp_path: Path) -> None:
    """An expanded tensor is written out below the limit and refused above it."""
    torch.save({"w": torch.ones(1).expand(1000)}, tmp_path / "m.pt")
    (tmp_path / "names.txt").write_text("w\n")
    args = ("export", "m.pt", "--names", "names.txt", "-o", "plain.safetensors")
    refused(quick, *args, "--max-inflated", "3995", cwd=tmp_path, code=4, says=("m.pt", "3996", "--max-inflated"))
    assert quick(*args, "--max-inflated", "3996", cwd=tmp_path).code == 0
    assert load_file(tmp_path / "plain.safetensors")["w"].tolist() == [1.0] * 1000
