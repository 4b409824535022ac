"""What people type wrong, and how much and how colourful a report is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from paramtool.cli._render import LABELS, wrapped
from paramtool.cli._streams import quoted
from paramtool.cli.main import COMMANDS
from paramtool.commands.networks import of_torch
from paramtool.layouts import find
from paramtool.layouts.networks import modules, network_if_any
from tests.golden.terminal import FIXTURES, on_terminal
from tests.hostile.command import Ran, command, quick, refused

SGR = re.compile(r"\x1b\[[0-9;]*m")
TIED = FIXTURES / "torch/tied_flattened/tied_flattened.pt"
DATA = {".pt", ".ckpt", ".params", ".npz", ".npy", ".onnx", ".h5", ".keras", ".jld2", ".bson"}
CHECKPOINTS = sorted(path for path in FIXTURES.rglob("*") if path.suffix in DATA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tied model, a run of a training, and a file of odd names."""
    shutil.copyfile(TIED, tmp_path / "tied.pt")
    torch.save({"model": {"w": torch.ones(3)}, "ema": {"w": torch.zeros(3)}, "epoch": 1}, tmp_path / "run.pt")
    shared = torch.arange(2000.0)
    odd = {"w\x1b[31m": shared, "a b": shared, "重み." * 40 + "weight": torch.ones(3), "x" * 300: torch.ones(2)}
    torch.save(odd, tmp_path / "odd.pt")
    return tmp_path


def rows(ran: Ran, label: str) -> list[str]:
    """What stands behind a label, in a pipe."""
    return [line.partition("  ")[2] for line in ran.out.splitlines() if line.startswith(f"{label}  ")]


# --- what standard error shows ---------------------------------------------------------------------------------------


FAILING = (
    ("inspect", "my folder with spaces/my model that is not there.pt"),
    ("dedup", "tied.pt", "-o", "my folder with spaces/a rather long name of an output.safetensors"),
    ("fuse", "tied.pt", "--layout", "cudnn", "--at", "a module whose name has spaces"),
    ("convert", "tied.pt", "--to", "vllm"),
    ("inspect", "odd.pt", "--fail-on", "no-such-rule"),
    ("inspect", "openai-community/gpt2"),
    ("unfuse", "run.pt"),
    ("dedup", "tied.pt", "--derive-casts", "--no-equal"),
    ("inspect", "tied.pt", "--no-such-option", "--and", "several", "words", "that", "nobody", "knows", "of", "here"),
    ("diff", "tied.pt"),
)


@pytest.mark.parametrize("typed", [*FAILING, ()], ids=" ".join)
def test_what_standard_error_says_wraps_between_words_and_in_a_terminal_only(
    typed: tuple[str, ...], folder: Path
) -> None:
    """No name, path or line to type is broken; a pipe gets the same in one line each."""
    plain = quick(*typed, cwd=folder)
    for columns in (40, 80, 160):
        ran = on_terminal(columns, *typed, cwd=folder)
        assert ran.err.split() == plain.err.split()
        for line in ran.err.splitlines() if typed else []:
            alone = wrapped(line.partition(": ")[2] or line, 1)
            assert len(line) <= columns or "paramtool " in line or "/" in line or len(alone) <= 2, line
        if typed and plain.err.startswith("error"):  # else the line is wrong, with all its flags
            assert on_terminal(columns, *typed, "--wide", cwd=folder).err == plain.err
        if not typed:
            assert ran.err.startswith("Usage: ") and "Options:" in ran.err  # click has laid it out
            continue
        for whole in (*re.findall(r"`[^`]*`|'[^']*'", plain.err), *typed[1:2]):
            assert whole in ran.err or whole not in plain.err, (whole, ran.err)


def test_lines_to_type_are_never_wrapped(folder: Path) -> None:
    """Alone, in backquotes, and behind a colon."""
    assert "paramtool inspect tied.pt\n" in on_terminal(40, "tied.pt", cwd=folder).err
    ran = on_terminal(40, "fuse", "tied.pt", "--layout", "vllm", cwd=folder)
    typed = "paramtool convert SRC --to vllm -o DST"
    assert f"hint: {typed}\n" in ran.err or f"`{typed}`" in ran.err, ran.err


# --- words that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed, meant", [
    (("inpsect", "tied.pt"), "'inspect'"),
    (("dedupe", "tied.pt"), "'dedup'"),
    (("verfy",), "'verify'"),
    (("help", "unfues"), "'unfuse'"),
    (("tied.pt",), "paramtool inspect tied.pt"),
    (("inspect", "tied.pt", "--tre"), "--tree"),
    (("layouts", "kears"), "keras"),
    (("fuse", "tied.pt", "--layout", "cudn"), "cudnn"),
    (("inspect", "tied.pt", "--fail-on", "missng:x"), "missing:NAME"),
    (("fuse", "tied.pt", "--layout", "cudnn", "--spec", "lstm hiden=3"), "hidden="),
    (("fuse", "tied.pt", "--layout", "cudnn", "--at", "lsmt"), "'lstm'"),
    (("guess", "tied.pt", "--at", "lsmt"), "'lstm'"),
    (("inspect", "run.pt", "--only", "modle"), "do you mean 'model'?"),
    (("dedup", "run.pt", "--only", "modle"), "do you mean 'model'?"),
])  # fmt: skip
def test_the_nearest_is_suggested(typed: tuple[str, ...], meant: str, folder: Path) -> None:
    """Of commands, options, layouts, rules, words of a spec, modules and sections."""
    ran = quick(*typed, cwd=folder)
    assert ran.code in (2, 5) and ran.out == "" and meant in ran.err, ran


def test_a_word_that_is_like_nothing(folder: Path) -> None:
    """All commands are named."""
    ran = refused(quick, "xyzzy", cwd=folder, code=2)
    assert all(name in ran.err for name in COMMANDS)


@pytest.mark.parametrize("path, hint", [
    ("openai-community/gpt2", "`hf download openai-community/gpt2 --local-dir gpt2`"),
    ("Qwen/Qwen2.5-0.5B", "`hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`"),
    ("https://huggingface.co/a/b", "`hf download a/b --local-dir b`"),
    ("https://hf.co/a/b/resolve/main/c/m.pt?download=true", "`hf download a/b c/m.pt --local-dir b`"),
    ("hf://a/b/m.pt", "`hf download a/b m.pt --local-dir b`"),
    ("https://example.com/m.pt?a=1&b=2", "`curl -LO 'https://example.com/m.pt?a=1&b=2'`"),
    ("s3://bucket/m.pt", "`aws s3 cp s3://bucket/m.pt .`"),
    ("gs://bucket/m.pt", "`gcloud storage cp gs://bucket/m.pt .`"),
    ("abc://bucket/m.pt", "download it first"),
    ("-", "write it to a file first"),
    ("*.ckpt", "`ls .` shows what is there"),
    ("some where/*.pt", "some where: no such folder"),
])  # fmt: skip
@pytest.mark.parametrize("of", ["inspect", "dedup", "guess"])
def test_what_is_no_file(of: str, path: str, hint: str, folder: Path) -> None:
    """Said what it is and what to do, with exit code 2, as a document with --json."""
    ran = refused(quick, of, path, cwd=folder, code=2, says=(path, hint))
    found = refused(quick, of, path, "--json", cwd=folder, code=2)
    assert json.loads(found.out)["hint"] in ran.err


def test_a_file_of_that_name_is_a_file(folder: Path) -> None:
    """Whatever its name looks like; and a path that is missing is no model of a hub."""
    (folder / "a").mkdir()
    for name in ("a/gpt2", "*.pt", "-"):
        shutil.copyfile(TIED, folder / name)
        assert quick("inspect", "--", name, cwd=folder).code == 0
    for name in ("a/other", "b/model.pt", "gone.pt"):
        assert quick("inspect", name, cwd=folder).code == 3


@pytest.mark.parametrize("output", ["s3://b/m.safetensors", "-"])
def test_outputs_that_are_no_files(output: str, folder: Path) -> None:
    """paramtool writes files."""
    refused(quick, "dedup", "tied.pt", "-o", output, cwd=folder, code=2, says=(output,))


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", COMMANDS)
def test_help_in_three_ways(of: str, folder: Path) -> None:
    """`help COMMAND`, `--help` and `-h` say the same, and the first line can be typed."""
    ran = quick(of, "--help", cwd=folder)
    assert re.match(rf"\$ paramtool {of}\s", ran.out) and ran.code == 0
    assert quick("help", of, cwd=folder) == quick(of, "-h", cwd=folder) == ran


def test_help_and_version_of_all(folder: Path) -> None:
    """`paramtool help` is `paramtool --help`; -V is --version."""
    assert quick("help", cwd=folder) == quick("--help", cwd=folder) == quick("-h", cwd=folder)
    assert quick("-V", cwd=folder) == quick("--version", cwd=folder)


# --- how much, and how -----------------------------------------------------------------------------------------------


def test_quiet_prints_what_needs_attention(folder: Path) -> None:
    """Nothing of what went well; names of layouts, and findings."""
    assert quick("dedup", "tied.pt", "-q", cwd=folder) == (0, "", "")
    assert quick("verify", "tied.dedup.safetensors", "--against", "tied.pt", "-q", cwd=folder) == (0, "", "")
    assert quick("-q", "inspect", "tied.pt", cwd=folder) == (0, "", "")
    ran = quick("verify", "run.pt", "--against", "tied.pt", "--quiet", cwd=folder)
    assert ran.code == 1 and all(line.startswith("difference: ") for line in ran.out.splitlines())
    assert quick("layouts", "-q", cwd=folder).out.split()[:3] == ["torch", "torch.cell", "cudnn"]
    (folder / "names.txt").write_text("ghost\n")
    ran = quick("variants", "tied.pt", "--against", "names.txt", "-q", cwd=folder)
    assert (ran.code, ran.out) == (1, "finding: names.txt: cannot load\n")
    refused(quick, "inspect", "tied.pt", "-q", "-v", cwd=folder, code=2, says=("--quiet", "--verbose"))


def test_verbose_lists_everything(folder: Path) -> None:
    """More than the first eight, and the long form of the evidence on a terminal."""
    shared = torch.ones(2000)
    torch.save({f"w{k}": shared for k in range(30)}, folder / "many.pt")
    assert "more name" in quick("inspect", "many.pt", cwd=folder).out
    ran = quick("inspect", "many.pt", "-v", cwd=folder)
    assert "more name" not in ran.out and all(f"w{k}  " in ran.out for k in range(1, 30))
    assert "· asked cuDNN" in " ".join(on_terminal(80, "inspect", "tied.pt", cwd=folder).out.split())
    assert "8.9.7 to 9.28.0 (5 versions)" in " ".join(
        on_terminal(80, "inspect", "tied.pt", "-v", cwd=folder).out.split()
    )


def test_one_command_leaves_nothing_to_the_next(folder: Path) -> None:
    """Of what a line says of printing."""
    before = quick("inspect", "tied.pt", cwd=folder)
    quick("inspect", "tied.pt", "-q", "--color", "always", "--wide", cwd=folder)
    assert quick("inspect", "tied.pt", cwd=folder) == before


def test_a_name_is_never_cut(folder: Path) -> None:
    """Names of wide characters, of control characters and very long ones, at any width."""
    for ran in (on_terminal(80, "inspect", "odd.pt", "--tensors", cwd=folder),
                on_terminal(40, "inspect", "odd.pt", "--tensors", cwd=folder),
                on_terminal(80, "inspect", "odd.pt", "--tensors", "--wide", cwd=folder),
                quick("inspect", "odd.pt", "--tensors", cwd=folder)):  # fmt: skip
        assert "重み." * 40 + "weight" in ran.out and "x" * 300 in ran.out and r"w\x1b[31m" in ran.out
        assert "…" not in ran.out and "\x1b" not in ran.out


def test_digests_are_short_on_a_terminal(folder: Path) -> None:
    """Twelve digits there, all in a pipe and with --wide."""
    whole = set(re.findall(r"\b[0-9a-f]{64}\b", quick("inspect", "tied.pt", "--digest", cwd=folder).out))
    short = on_terminal(80, "inspect", "tied.pt", "--digest", cwd=folder).out
    wide = on_terminal(80, "inspect", "tied.pt", "--digest", "--wide", cwd=folder).out
    assert len(whole) == 10 and all(digest[:12] in short and digest not in short for digest in whole)
    assert all(digest in wide for digest in whole)


@pytest.mark.parametrize("flags, said, colored", [
    ((), {}, True), ((), {"NO_COLOR": "1"}, False), (("--color", "always"), {"NO_COLOR": "1"}, True),
    (("--color", "never"), {"FORCE_COLOR": "1"}, False), ((), {"TERM": "dumb"}, False), ((), {"CLICOLOR": "0"}, False),
    ((), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
])  # fmt: skip
def test_colour_on_a_terminal(flags: tuple[str, ...], said: dict[str, str], colored: bool, folder: Path) -> None:
    """The flag, then NO_COLOR, then what forces it; the words are the same."""
    args = ("inspect", "tied.pt", "--fail-on", "missing:x", *flags)
    plain = on_terminal(80, *args[:4], cwd=folder).out
    ran = on_terminal(80, *args, cwd=folder, **{"NO_COLOR": "", **said})
    assert bool(SGR.search(ran.out)) == colored and SGR.sub("", ran.out) == plain
    assert ("\x1b[1;31mfinding" in ran.out) == colored


@pytest.mark.parametrize("said, colored", [({}, False), ({"FORCE_COLOR": "1"}, True), ({"CLICOLOR_FORCE": "1"}, True),
                                           ({"FORCE_COLOR": "0"}, False), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)])  # fmt: skip  # noqa: E501
def test_colour_in_a_pipe(said: dict[str, str], colored: bool, folder: Path) -> None:
    """Where it is forced; the words are those of every pipe."""
    env = {"NO_COLOR": "", "FORCE_COLOR": "", "CLICOLOR_FORCE": "", **said}
    ran = command("inspect", "tied.pt", cwd=folder, env=env)
    assert bool(SGR.search(ran.out)) == colored and SGR.sub("", ran.out) == quick("inspect", "tied.pt", cwd=folder).out


def test_labels_that_are_coloured_are_words() -> None:
    """Nothing is said by colour alone: every style belongs to a label that is printed."""
    assert all(label.strip() for label in LABELS)


# --- findings --------------------------------------------------------------------------------------------------------


def test_findings_of_a_kind_are_one_row_on_a_terminal(folder: Path) -> None:
    """With their count and the first names; in a pipe a line each; the verdict is the last line of both."""
    rule = ("inspect", "tied.pt", "--fail-on", "dtype:*=float16")
    ran = on_terminal(80, *rule, cwd=folder)
    lines = ran.out.splitlines()
    assert ran.code == 1 and sum(line.startswith("finding") for line in lines) == 1, ran
    said = " ".join(ran.out.split())
    assert "11 tensors: each is float32, not float16" in said and " and 8 more" in said, ran
    assert lines[-1] == "verdict   11 findings from 1 of 1 rule, exit code 1"
    piped = quick(*rule, cwd=folder).out.splitlines()
    assert sum(line.startswith("finding: dtype:*=float16: ") for line in piped) == 11
    assert piped[-1] == "verdict  11 findings from 1 of 1 rule, exit code 1"
    verbose = on_terminal(80, *rule, "-v", cwd=folder).out
    assert verbose.count("finding: dtype") == 11
    fine = quick("inspect", "tied.pt", "--fail-on", "missing:emb.weight", cwd=folder)
    assert fine.code == 0 and fine.out.splitlines()[-1] == "verdict  fine: 1 rule finds nothing"


# --- networks and the tree -------------------------------------------------------------------------------------------

NETWORKS = [
    (kind, {"num_layers": layers, "bidirectional": both, "bias": bias, **size})
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for layers in (1, 3)
    for both in (False, True)
    for bias in (False, True)
    for size in ({}, {"proj_size": 2})
    if not size or kind is nn.LSTM
] + [(kind, {"bias": bias}) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell) for bias in (False, True)]


@pytest.mark.parametrize("k", range(len(NETWORKS)))
def test_networks_are_those_of_the_layouts(k: int) -> None:
    """Of each of PyTorch's recurrent modules, inside of another: the tables of layouts read the same."""
    kind, options = NETWORKS[k]
    shapes = {f"enc.{name}": tuple(w.shape) for name, w in kind(5, 4, **options).state_dict().items()}
    layout = find("torch.cell" if "num_layers" not in options else "torch")
    expected = [(at, layout.name, str(network_if_any(layout, at, shapes).spec)) for at in modules(layout, {}, shapes)]
    assert [(one.at, one.layout, one.spec) for one in of_torch(shapes)] == expected != []


@pytest.mark.parametrize("shapes", [
    {"a.weight_hh_l0": (8, 2)}, {"a.weight_hh_l0": (8, 2), "a.weight_ih_l0": (8,)},
    {"a.weight_hh_l0": (9, 2), "a.weight_ih_l0": (9, 3)}, {"a.weight_hh_l0": (4, 2), "a.weight_ih_l0": (4, 3)},
    {"a.weight_hh_l0": (8, 0), "a.weight_ih_l0": (8, 3)},
    {"a.weight_hh_l0": (8, 2), "a.weight_ih_l0": (8, 3), "a.weight_hh_l2": (8, 2), "a.weight_ih_l2": (8, 2)},
    {"a.weight_hh_l0": (8, 2), "a.weight_ih_l0": (8, 3), "a.weight_hh_l1": (8, 2), "a.weight_ih_l1": (8, 5)},
])  # fmt: skip
def test_what_is_no_network_is_none(shapes: dict[str, tuple[int, ...]]) -> None:
    """Parts that are missing or of other shapes."""
    assert list(of_torch(shapes)) == []


def test_networks_are_listed(tmp_path: Path) -> None:
    """In words, in JSON, and each only once."""
    torch.save(nn.ModuleDict({"a": nn.GRU(3, 4), "b": nn.LSTM(3, 4, 2)}).state_dict(), tmp_path / "m.pt")
    ran = quick("inspect", "m.pt", cwd=tmp_path)
    assert rows(ran, "network") == ["a  gru input=3 hidden=4 reset=after  torch, by names and shapes",
                                    "b  lstm input=3 hidden=4 layers=2  torch, by names and shapes"]  # fmt: skip
    found = json.loads(quick("inspect", "m.pt", "--json", cwd=tmp_path).out)["networks"]
    assert found[0] == {"at": "a", "layout": "torch", "spec": "gru input=3 hidden=4 reset=after",
                        "source": "names and shapes"}  # fmt: skip


def test_the_tree_counts_what_is_shared_once(folder: Path) -> None:
    """The whole has what inspect says of the file; each module what is below it; a depth cuts."""
    found = json.loads(quick("inspect", "tied.pt", "--tree", "--json", cwd=folder).out)
    whole, *parts = found["tree"]
    assert (whole["module"], whole["tensors"], whole["parameters"]) == ("", found["tensors"], found["parameters"])
    first = [part for part in parts if part["level"] == 1]
    for member in ("tensors", "parameters", "nbytes"):
        assert whole[member] == sum(part[member] for part in first)
    (decoder,) = (part for part in parts if part["module"] == "decoder")
    assert decoder["nbytes"] == 0 and decoder["shared"] == [{"name": "decoder.weight", "with": "emb.weight"}]
    torch.save(nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)).state_dict(),
               folder / "deep.pt")  # fmt: skip
    deep = rows(quick("inspect", "deep.pt", "--tree", "--depth", "1", cwd=folder), "module")
    assert [row.split("  ")[0] for row in deep] == ["(all)", "0", "1"]
    assert len(rows(quick("inspect", "deep.pt", "--tree", cwd=folder), "module")) == 5
    refused(quick, "inspect", "deep.pt", "--depth", "1", cwd=folder, code=2, says=("--tree",))


# --- the next command ------------------------------------------------------------------------------------------------


@pytest.mark.sample(13)
@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}-{path.stem}-{path.suffix}")
def test_what_comes_next_can_be_typed(path: Path, tmp_path: Path) -> None:
    """Of every fixture: the line that inspect ends with names files that are there, and works."""
    shutil.copytree(path.parent, tmp_path / "it")
    ran = quick("inspect", path.name, cwd=tmp_path / "it")
    assert ran.code == 0, ran
    for line in rows(ran, "next"):
        done = quick(*shlex.split(line.split("  ")[0])[1:], cwd=tmp_path / "it")
        assert done.code == 0, (line, done)


@pytest.mark.parametrize("args", [("dedup", "tied.pt"), ("fuse", "tied.pt", "--layout", "cudnn"),
                                  ("export", "tied.pt", "--all-names", "-o", "e.safetensors")], ids=lambda args: args[0])  # fmt: skip  # noqa: E501
def test_a_dry_run_names_no_next_command(args: tuple[str, ...], folder: Path) -> None:
    """Its output is not there; after a real run every line works."""
    dry = quick(*args, "--dry-run", cwd=folder)
    assert dry.code == 0 and not rows(dry, "next") and not rows(dry, "load it") and not rows(dry, "verified")
    done = quick(*args, cwd=folder)
    for line in (*rows(done, "next"), *(rows(done, "export") if args[0] == "dedup" else [])):
        assert quick(*shlex.split(line.split("  ")[0])[1:], cwd=folder).code == 0, line


@pytest.mark.parametrize(
    "name", ["a b.pt", "-x.pt", "it's.pt", "new\nline.pt", "tab\t.pt", "$(x).pt", "é重.pt", "\x1b[31m.pt"]
)
def test_names_of_files_are_quoted_for_the_shell(name: str, tmp_path: Path) -> None:
    """bash reads back the name that was meant, control characters included."""
    text = quoted(name)
    assert text.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {text}"], capture_output=True, check=True)
    assert done.stdout.decode() in (name, f"./{name}")


# --- completion ------------------------------------------------------------------------------------------------------


def completed(line: str, cwd: Path, shell: str = "bash") -> list[str]:
    """What a shell is offered behind a line."""
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_PARAMTOOL_COMPLETE": f"{shell}_complete"}
    ran = command(cwd=cwd, env=env)
    assert (ran.code, ran.err) == (0, ""), ran
    return [word.partition(",")[2] for word in ran.out.split()]


@pytest.mark.parametrize("line, offered", [
    ("paramtool ins", ["inspect"]),
    ("paramtool help unf", ["unfuse"]),
    ("paramtool layouts mxnet.f", ["mxnet.flat"]),
    ("paramtool fuse tied.pt --layout miop", ["miopen"]),
    ("paramtool inspect run.pt --fail-on mi", ["missing:"]),
    ("paramtool inspect tied.pt --fail-on missing:emb", ["missing:emb.weight"]),
    ("paramtool inspect tied.pt --fail-on untied:emb.weight=dec", ["untied:emb.weight=decoder.weight"]),
    ("paramtool inspect run.pt --only ", ["model", "ema"]),
    ("paramtool verify tied.pt --against run.pt --only e", ["ema"]),
    ("paramtool export tied.pt --like run.pt --like-only m", ["model"]),
    ("paramtool fuse tied.pt --at lstm.b", [f"lstm.bias_{side}_l{k}" for k in (0, 1) for side in ("ih", "hh")]),
    ("paramtool fuse tied.pt --at dec", ["decoder", "decoder.weight"]),
    ("paramtool inspect gone.pt --only ", []),
    ("paramtool inspect --only ", []),
])  # fmt: skip
def test_completion(line: str, offered: list[str], folder: Path) -> None:
    """Layouts, rules, and sections and names of the file on the line; silent where there is none."""
    assert completed(line, folder) == offered


IMPORTED = """
import atexit, sys
atexit.register(lambda: print(sorted({"torch", "numpy", "rich"} & set(sys.modules)), file=sys.stderr))
from paramtool.cli.main import main
main()
"""


def test_completion_imports_no_torch(folder: Path) -> None:
    """Nor NumPy: a prompt does not wait."""
    env = {**os.environ, "COMP_WORDS": "paramtool fuse tied.pt --at l", "COMP_CWORD": "4",
           "_PARAMTOOL_COMPLETE": "zsh_complete"}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=folder, env=env, capture_output=True, text=True)
    assert "lstm" in done.stdout and done.stderr.strip() == "[]"


def test_a_file_that_is_no_checkpoint_completes_to_nothing(folder: Path) -> None:
    """Without a word."""
    (folder / "junk.pt").write_bytes(b"junk")
    assert completed("paramtool inspect junk.pt --only ", folder) == []
