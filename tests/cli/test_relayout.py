"""convert, fuse, unfuse and layouts as people and programs use them: reports, documents, flags, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import save_file
from torch import nn

import paramtool
import paramtool.torch
from paramtool import layouts
from tests.cli.test_commands import on_a_terminal
from tests.hostile.command import Ran, command, contents, quick, refused
from tests.recurrent import Tagger, flat, flattened, raw, save, state

ROOT = Path(__file__).resolve().parents[2]
TOML = """
[[layout]]
name = "mine"
title = "a cell of mine"
separator = "."
directions = ["", "_back"]

[[layout.form]]
kind = "lstm"
gates = "ifgo"
tensors = [
    {name = "l{layer}{dir}_x", content = "W[(gate hidden) in]"},
    {name = "l{layer}{dir}_h", content = "R[(gate hidden) rec]"},
    {name = "l{layer}{dir}_b", content = "bW+bR[(gate hidden)]"},
]
"""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path, Tagger().state_dict())


def rows(ran: Ran, label: str) -> list[str]:
    """The lines of one label, without it."""
    return [line.removeprefix(label).strip() for line in ran.out.splitlines() if line.startswith(label + "  ")]


def labels(ran: Ran) -> list[str]:
    return list(dict.fromkeys(line.split("  ")[0] for line in ran.out.splitlines()))


def run(*args: object, cwd: Path) -> Ran:
    ran = quick(*args, cwd=cwd)
    assert ran.code == 0, ran
    return ran


def document(*args: object, cwd: Path) -> Any:
    """The JSON document of a command, proved against its schema."""
    found = json.loads(run(*args, "--json", cwd=cwd).out)
    name, version = str(found["schema"]).removeprefix("paramtool.").split("/")
    assert version == {"layouts": "2"}.get(name, "1")
    schema = json.loads((ROOT / "docs" / "schema" / f"{name}-{version}.json").read_text())
    Draft202012Validator(schema).validate(found)
    return found


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = paramtool.load_file(path)
    return found


# --- the examples of the help ----------------------------------------------------------------------------------------


def test_fuse_and_unfuse_without_flags(model: Path, tmp_path: Path) -> None:
    """`paramtool fuse model.pt --layout cudnn`, `paramtool unfuse model.fused.safetensors`."""
    ran = run("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path)
    assert rows(ran, "fuse") == ["m.pt -> m.fused.safetensors"] and ran.err == ""
    assert rows(ran, "network") == ["enc  torch -> cudnn  lstm input=6 hidden=8 layers=2 bidirectional",
                                    "gru  torch -> cudnn  gru input=16 hidden=6 bias=no reset=after"]  # fmt: skip
    assert rows(ran, "unchanged") == ["4 other tensors, and what they share"]
    assert labels(ran) == ["fuse", "network", "made", "unchanged", "size", "names", "next"]
    ran = run("unfuse", "m.fused.safetensors", cwd=tmp_path)
    assert rows(ran, "unfuse") == ["m.fused.safetensors -> m.fused.unfused.safetensors"]
    assert raw(load(tmp_path / "m.fused.unfused.safetensors")) == raw(saved(model))


def saved(path: Path) -> dict[str, torch.Tensor]:
    """What a file holds, as PyTorch reads it."""
    found: dict[str, torch.Tensor] = torch.load(path)
    return found


def test_a_flat_vector(tmp_path: Path) -> None:
    """`paramtool unfuse flat.pt --layout cudnn --at rnn.weights --spec "..."`."""
    module = nn.LSTM(18, 16, 2)
    vector = torch.frombuffer(bytearray(flat(module)), dtype=torch.float32)
    save(tmp_path, {"rnn.weights": vector}, "flat.pt")
    spec = "lstm layers=2 hidden=16 input=18"
    ran = run("unfuse", "flat.pt", "--layout", "cudnn", "--at", "rnn.weights", "--spec", spec, cwd=tmp_path)
    assert rows(ran, "network") == ["rnn  cudnn -> torch  lstm input=18 hidden=16 layers=2"]
    assert raw(load(tmp_path / "flat.unfused.safetensors")) == raw(state(module, "rnn"))


def test_convert_from_one_library_to_another(tmp_path: Path) -> None:
    """`--from` and `--to`, with options behind a colon, under a new name; what is lossy is said and can be kept."""
    module = nn.LSTM(3, 4)
    save(tmp_path, state(module, "rnn"))
    args = ("convert", "m.pt", "-o", "a.safetensors", "--from", "torch", "--to", "tf1.basic:forget_bias=0.5")
    ran = run(*args, "--rename", "rnn=scope/lstm", "--keep-split", cwd=tmp_path)
    assert rows(ran, "summed") == ["rnn  function kept, bytes not: two biases summed"]
    assert rows(ran, "shifted") == ["rnn  function kept, bytes not: -0.5 on a bias"]
    assert rows(ran, "kept")[0].startswith("rnn  2 tensors paramtool.kept/")
    assert {"scope/lstm/kernel", "scope/lstm/bias"} < load(tmp_path / "a.safetensors").keys()
    run("convert", "a.safetensors", "-o", "b.safetensors", "--to", "torch", cwd=tmp_path)
    assert raw(load(tmp_path / "b.safetensors")) == raw(state(module, "scope/lstm"))


def test_a_buffer_of_a_gpu(tmp_path: Path) -> None:
    """Recognised both ways: no copy is needed for the parent, and nothing for the parts."""
    save(tmp_path, flattened(nn.LSTM(3, 4, 2, bidirectional=True), "rnn"))
    ran = run("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path)
    assert rows(ran, "network")[0].endswith("no copy: its parts are one run of bytes already")
    ran = run("unfuse", "m.pt", cwd=tmp_path)
    assert "'rnn' (windows of one buffer in cudnn's order)" in ran.err


def test_the_second_time(model: Path, tmp_path: Path) -> None:
    """It says that there is nothing to do, and writes the same."""
    run("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path)
    ran = run("fuse", "m.fused.safetensors", "--layout", "cudnn", cwd=tmp_path)
    assert ran.err == "warning: already in the wanted layout, and left unchanged: 'enc', 'gru'\n"
    once, twice = (tmp_path / f"m.{word}.safetensors" for word in ("fused", "fused.fused"))
    assert once.read_bytes() == twice.read_bytes()


def test_both_kinds_of_names(model: Path, tmp_path: Path) -> None:
    """`--keep-names`: inspect shows the parts on the fused tensor, export writes the one or the other."""
    run("fuse", "m.pt", "--layout", "cudnn", "--keep-names", "-o", "k.safetensors", cwd=tmp_path)
    shown = run("inspect", "k.safetensors", "--tensors", cwd=tmp_path).out
    assert re.search(r"^shared +enc\.flat_weights  \[2688\] float32", shown, re.M), shown
    assert re.search(r"^tensor +enc\.weight_hh_l1_reverse .* on enc\.flat_weights$", shown, re.M), shown
    run("export", "k.safetensors", "--like", "m.pt", "-o", "plain.safetensors", cwd=tmp_path)
    assert raw(load(tmp_path / "plain.safetensors")) == raw(saved(model))
    run("fuse", "m.pt", "--layout", "cudnn", "-o", "f.safetensors", cwd=tmp_path)
    run("export", "k.safetensors", "--like", "f.safetensors", "-o", "fused.safetensors", cwd=tmp_path)
    assert raw(load(tmp_path / "fused.safetensors")) == raw(load(tmp_path / "f.safetensors"))


def test_inspect_of_outputs(model: Path, tmp_path: Path) -> None:
    """Every kind of output can be looked at, proved against its source, and deduplicated."""
    for words in (("--layout", "cudnn"), ("--layout", "cudnn", "--keep-names"), ("--layout", "mxnet.gates")):
        run("fuse", "m.pt", *words, "-o", "a.safetensors", "--force", cwd=tmp_path)
        run("inspect", "a.safetensors", "--digest", cwd=tmp_path)
        run("dedup", "a.safetensors", "-o", "b.safetensors", "--force", cwd=tmp_path)
        run("verify", "b.safetensors", "--against", "a.safetensors", cwd=tmp_path)
        run("unfuse", "b.safetensors", "-o", "c.safetensors", "--force", cwd=tmp_path)
        run("verify", "c.safetensors", "--against", "m.pt", cwd=tmp_path)


# --- flags -----------------------------------------------------------------------------------------------------------


def test_a_dry_run(model: Path, tmp_path: Path) -> None:
    """Everything is said and proved, nothing is written, and no command is offered that would need the output."""
    before = contents(tmp_path)
    for args in (("fuse", "m.pt", "--layout", "cudnn"), ("convert", "m.pt", "--to", "onnx", "-o", "x.safetensors"),
                 ("unfuse", "m.pt", "--to", "mxnet.gates")):  # fmt: skip
        ran = run(*args, "--dry-run", cwd=tmp_path)
        assert labels(ran)[0] == "dry run" and "next" not in labels(ran) and "not verified" in rows(ran, "names")[0]
        assert contents(tmp_path) == before


def test_without_reading_back(model: Path, tmp_path: Path) -> None:
    """`--no-verify` is said, too."""
    ran = run("fuse", "m.pt", "--layout", "cudnn", "--no-verify", cwd=tmp_path)
    assert "not verified" in rows(ran, "names")[0] and (tmp_path / "m.fused.safetensors").exists()


def test_sections_and_shards(tmp_path: Path) -> None:
    """`--only` and `--max-shard-size` as in dedup."""
    module = nn.LSTM(3, 4)
    sections = {"model": state(module, "rnn"), "ema": state(module, "rnn"), "optimizer": {"state": {}}, "step": 3}
    save(tmp_path, sections)
    args = ("fuse", "m.pt", "--layout", "cudnn", "--only", "model", "--max-shard-size", "1kB", "-o", "out")
    ran = run(*args, cwd=tmp_path)
    assert rows(ran, "left out") == ["section ema", "objects outside of the section: 'optimizer', 'step'"] and rows(
        ran, "fuse"
    ) == ["m.pt -> out"]
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    ran = run("unfuse", "out", cwd=tmp_path)
    assert rows(ran, "unfuse") == ["out -> out.unfused"]
    assert raw(load(tmp_path / "out.unfused")) == raw(state(module, "rnn"))
    for words in (("--max-shard-size", "0B"), ("--max-shard-size", "many")):
        refused(quick, *args[:6], *words, cwd=tmp_path, code=2, says=("--max-shard-size",))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """`--skip-unsupported` leaves other tensors out aloud."""
    save(tmp_path, {**state(nn.LSTM(3, 4), "rnn"), "s": torch.eye(3).to_sparse()})
    args = ("fuse", "m.pt", "--layout", "cudnn")
    refused(quick, *args, cwd=tmp_path, code=6, says=("m.pt", "'s'", "--skip-unsupported"))
    ran = run(*args, "--skip-unsupported", cwd=tmp_path)
    assert rows(ran, "left out") == ["tensor 's': sparse_coo"]


def test_unknown_calls(tmp_path: Path) -> None:
    """Refused as everywhere, unless no tensor needs them and it is allowed."""
    from tests.hostile.makers_torch import call_of, tensor, zipped
    from tests.hostile.makers_torch import state as pickled

    zipped(pickled(w=tensor(), evil=call_of("os", "system")))(tmp_path)
    args = ("fuse", "model.pt", "--layout", "cudnn")
    refused(quick, *args, cwd=tmp_path, code=4, says=("model.pt", "os.system"))
    refused(quick, *args, "--allow-unknown", cwd=tmp_path, code=5, says=("model.pt: no recurrent network",))


def test_layouts_of_ones_own(tmp_path: Path) -> None:
    """`--layout-file`, there and back; without it the file is told to be of a layout that is not known."""
    module = nn.LSTM(3, 4)
    save(tmp_path, state(module, "rnn"))
    (tmp_path / "my.toml").write_text(TOML)
    mine = ("--layout-file", "my.toml")
    ran = command("convert", "m.pt", "-o", "a.safetensors", "--to", "mine", "--keep-split", *mine, cwd=tmp_path)
    assert ran.code == 0 and {"rnn.l0_x", "rnn.l0_h", "rnn.l0_b"} < load(tmp_path / "a.safetensors").keys(), ran
    ran = command("convert", "a.safetensors", "-o", "b.safetensors", "--to", "torch", *mine, cwd=tmp_path)
    assert ran.code == 0 and raw(load(tmp_path / "b.safetensors")) == raw(state(module, "rnn")), ran
    says = ("a.safetensors", "the file says that 'rnn' is of layout mine")
    refused(command, "unfuse", "a.safetensors", cwd=tmp_path, code=5, says=says)
    ran = command("layouts", "mine", *mine, cwd=tmp_path)
    assert ran.code == 0 and "W[(gate hidden) in]" in ran.out, ran


def test_many_networks_are_counted(tmp_path: Path) -> None:
    """Eight are listed; --json lists all."""
    save(tmp_path, {k: v for n in range(15) for k, v in state(nn.GRU(2, 2), f"l{n:02}").items()})
    args = ("fuse", "m.pt", "--layout", "cudnn", "--dry-run")
    found = rows(run(*args, cwd=tmp_path), "network")
    assert len(found) == 9 and found[-1] == "and 7 more networks  --verbose and --json list them"
    assert len(document(*args, cwd=tmp_path)["networks"]) == 15


def test_the_next_command_can_be_typed(tmp_path: Path) -> None:
    """As it stands, in a shell, whatever the name of the file."""
    save(tmp_path, state(nn.GRU(2, 2), "rnn"), "my model.pt")
    ran = run("fuse", "my model.pt", "--layout", "cudnn", cwd=tmp_path)
    typed = shlex.split(rows(ran, "next")[0])
    assert typed[:2] == ["paramtool", "verify"]
    run(*typed[1:], cwd=tmp_path)


def test_in_a_pipe_and_on_a_terminal(model: Path, tmp_path: Path) -> None:
    """Plain lines with labels in a pipe; the same words on a terminal."""
    ran = command("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path, env={"CLICOLOR": "1"})
    assert (ran.code, ran.err) == (0, "") and ran.out.replace("\n", "").isprintable(), ran
    assert all("  " in line and not line.startswith(" ") for line in ran.out.splitlines()), ran
    ran = on_a_terminal("fuse", "m.pt", "--layout", "cudnn", "--force", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert ran.code == 0 and "torch -> cudnn" in ran.out and "input=6" in ran.out, ran


# --- documents -------------------------------------------------------------------------------------------------------


def test_documents_of_conversions(model: Path, tmp_path: Path) -> None:
    """Of every command, dry and done, exact and not; figures are those of the file."""
    made = document("fuse", "m.pt", "--layout", "cudnn", "-o", "a.safetensors", cwd=tmp_path)
    assert made["written"] and made["verified"] and made["names"] == 6 and made["untouched"] == 4
    assert made["nbytes_after"] == (tmp_path / "a.safetensors").stat().st_size and made["files"] == ["a.safetensors"]
    assert [(n["at"], n["to_at"], n["exact"], n["tensors"]) for n in made["networks"]] == [
        ("enc", "enc", True, ["enc.flat_weights"]), ("gru", "gru", True, ["gru.flat_weights"])
    ]  # fmt: skip
    dry = document("unfuse", "a.safetensors", "--dry-run", "--to", "torch", cwd=tmp_path)
    assert not dry["written"] and not dry["verified"] and dry["networks"][1]["spec"].endswith("bias=no reset=after")
    args = ("convert", "m.pt", "-o", "b.safetensors", "--at", "enc", "--to", "haiku", "--rename", "enc=x")
    (one,) = document(*args, "--keep-split", cwd=tmp_path)["networks"]
    assert (one["at"], one["to_at"], one["exact"]) == ("enc", "x", False) and len(one["kept"]) == 8
    assert {change["kind"] for change in one["changes"]} == {"summed", "shifted", "kept"}
    found = document("unfuse", "b.safetensors", "-o", "out", "--max-shard-size", "1kB", cwd=tmp_path)
    assert len(found["files"]) > 3 and all((tmp_path / file).is_file() for file in found["files"])


def test_changes_of_every_kind(tmp_path: Path) -> None:
    """Zeros made and dropped, a bias split, a gate negated: each has its word in the document."""
    save(tmp_path, state(nn.GRU(3, 4, bias=False), "rnn"))
    (made,) = document("convert", "m.pt", "--to", "mxnet", "-o", "a.safetensors", cwd=tmp_path)["networks"]
    (dropped,) = document("unfuse", "a.safetensors", "-o", "b.safetensors", cwd=tmp_path)["networks"]
    haiku = {"g/w_i": torch.ones(3, 12), "g/w_h": torch.ones(4, 12), "g/b": torch.ones(12)}
    save_file(haiku, tmp_path / "h.safetensors")
    args = ("convert", "h.safetensors", "--from", "haiku", "--at", "g", "--to", "keras", "-o", "c.safetensors")
    (negated,) = document(*args, cwd=tmp_path)["networks"]
    args = ("convert", "c.safetensors", "--to", "onnx", "-o", "d.safetensors")
    (split,) = document(*args, cwd=tmp_path)["networks"]
    kinds = [{change["kind"] for change in one["changes"]} for one in (made, dropped, negated, split)]
    assert kinds == [{"made"}, {"dropped"}, {"negated"}, {"split"}]


def test_warnings_stand_in_the_document(model: Path, tmp_path: Path) -> None:
    """And on standard error, and nothing else is there."""
    ran = run("unfuse", "m.pt", "--json", cwd=tmp_path)
    (warning,) = json.loads(ran.out)["warnings"]
    assert ran.err == f"warning: {warning}\n"


def test_names_beyond_ascii(tmp_path: Path) -> None:
    """Escaped in the document, whole in the file."""
    save(tmp_path, state(nn.GRU(2, 2), "dück.重"))
    ran = run("fuse", "m.pt", "--layout", "cudnn", "--json", cwd=tmp_path)
    assert ran.out.isascii() and json.loads(ran.out)["networks"][0]["at"] == "dück.重"
    assert "dück.重.flat_weights" in load(tmp_path / "m.fused.safetensors")


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_layouts_lists_all(tmp_path: Path) -> None:
    """Name, what it is, what it holds, and the evidence; the same in the document."""
    ran = run("layouts", cwd=tmp_path)
    names = [layout.name for layout in layouts.all_layouts()]
    lines = [line for line in ran.out.splitlines() if not line.startswith("next")]
    assert len(lines) > len(names) > 30  # those of parts, and dialects, follow
    for name, line in zip(names, lines, strict=False):
        assert re.search(rf"(^layout)? +{re.escape(name)}  ", line), line
    found = document("layouts", cwd=tmp_path)["layouts"]
    assert [one["name"] for one in found] == names and all(one["proof"] and one["source"] for one in found)


@pytest.mark.parametrize("name", [layout.name for layout in layouts.built_in().values()])
def test_one_layout(name: str, tmp_path: Path) -> None:
    """Its tensors, options and sources, in words and as a document."""
    ran = run("layouts", name, cwd=tmp_path)
    (one,) = document("layouts", name, cwd=tmp_path)["layouts"]
    assert one["name"] == name and one["source"] in " ".join(ran.out.split())
    for form in one["forms"]:
        assert all(tensor["name"] in ran.out and tensor["content"] in ran.out for tensor in form["tensors"])
    assert all(f"{name}:{option['name']}=" in ran.out for option in one["options"])


def test_a_layout_that_is_not_there(tmp_path: Path) -> None:
    """Exit 2 with the nearest names; nothing of others' packages is shown."""
    refused(quick, "layouts", "kears", cwd=tmp_path, code=2, says=("there is no layout 'kears'", "keras"))
    (tmp_path / "bad.toml").write_text("[[layout]]\nname = 5\n")
    refused(quick, "layouts", "--layout-file", "bad.toml", cwd=tmp_path, code=2, says=("bad.toml", "name is 5"))


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args, word", [
    (("convert", "m.pt", "-o", "x", "--at", "a"), "--to"),
    (("convert",), "SRC"),
    (("fuse", "m.pt"), "--layout"), (("fuse", "m.pt", "--layout", "cudnn", "--frm", "x"), "--frm"),
    (("unfuse",), "FILE"), (("unfuse", "m.pt", "--keep-names"), "--keep-names"), (("layouts", "a", "b"), "b"),
    (("fuse", "m.pt", "--layout", "cudnn", "--rename", "x"), "OLD=NEW"),
])  # fmt: skip
def test_usage(args: tuple[str, ...], word: str, model: Path, tmp_path: Path) -> None:
    """Exit 2, and what was wrong."""
    ran = quick(*args, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "") and word in ran.err and "Traceback" not in ran.err, ran


def test_nobody_listens(model: Path, tmp_path: Path) -> None:
    """A reader that goes away is 141, and the output stands all the same."""
    program = [sys.executable, "-m", "paramtool", "fuse", "m.pt", "--layout", "cudnn"]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode in (128 + signal.SIGPIPE, 0) and err == b""
    assert (tmp_path / "m.fused.safetensors").is_file()


@pytest.mark.parametrize(
    "output, flags",
    [
        ("x.npz", ("--dtype", "float16")),
        ("x.npz", ("--to", "mxnet.v2")),
        ("x.params", ("--to", "mxnet")),
        ("x.msgpack", ("--to", "flax.linen")),
        ("x.npz", ()),
        ("x.h5", ()),
        ("x.onnx", ("--skip-unsupported",)),
        ("x.onnx", ("--skip-unsupported", "--dtype", "float16")),
        ("x.pt", ("--to", "mxnet", "--dtype", "float16")),
    ],
)
def test_the_next_line_succeeds_whatever_the_format_records(
    tmp_path: Path, output: str, flags: tuple[str, ...]
) -> None:
    """A format without a record does not say what was converted or cast: `verify` would call that differences."""
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(6, 10), "fc": torch.nn.Linear(10, 3)})
    torch.save(model.state_dict(), tmp_path / "m.pt")
    ran = quick("convert", "m.pt", "-o", output, *flags, cwd=tmp_path)
    assert ran.code == 0, ran
    (line,) = rows(ran, "next")
    ran = quick(*shlex.split(line)[1:], cwd=tmp_path)
    assert ran.code == 0, (line, ran)


def test_what_is_left_out_is_not_untouched(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(6, 10), "fc": torch.nn.Linear(10, 3)})
    torch.save(model.state_dict(), tmp_path / "m.pt")
    ran = quick("convert", "m.pt", "-o", "x.onnx", "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0 and not rows(ran, "unchanged"), ran


def test_tensors_that_are_left_out_are_not_said_to_be_unchanged(tmp_path: Path, model: Path) -> None:
    ran = command("convert", model, "-o", tmp_path / "x.onnx", "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert any(text.startswith("tensor ") for text in rows(ran, "left out"))
    assert not rows(ran, "unchanged")


def test_metadata_that_a_format_has_no_room_for_is_no_difference(tmp_path: Path) -> None:
    source = tmp_path / "s.safetensors"
    save_file({"a": torch.ones(2)}, source, metadata={"author": "somebody"})
    ran = command("convert", source, "-o", tmp_path / "x.npz", cwd=tmp_path)
    assert ran.code == 0, ran.err
    verified = command("verify", tmp_path / "x.npz", "--against", source, cwd=tmp_path)
    assert verified.code == 0, verified.out
    assert "author" in verified.err
    save_file({"a": torch.ones(2)}, tmp_path / "bare.safetensors")
    assert command("verify", tmp_path / "bare.safetensors", "--against", source, cwd=tmp_path).code == 1


@pytest.mark.parametrize(("suffix", "gone"), [("params", {"count", "f8"}), ("npz", {"f8"}), ("h5", {"f8"})])
def test_skip_unsupported_leaves_out_what_a_format_has_no_form_for(tmp_path: Path, suffix: str, gone: set[str]) -> None:
    """A batch norm's counter has no axes, which MXNet 1.x cannot store."""
    source, out = tmp_path / "s.pt", tmp_path / f"x.{suffix}"
    torch.save({"w": torch.ones(2), "count": torch.tensor(3), "f8": torch.ones(2).to(torch.float8_e4m3fn)}, source)
    assert command("convert", source, "-o", out, cwd=tmp_path).code == 6
    ran = command("convert", source, "-o", out, "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert {text.split("'")[1] for text in rows(ran, "left out") if text.startswith("tensor ")} == gone
    assert set(paramtool.inspect(out).checkpoint.entries) == {"w", "count", "f8"} - gone
    (line,) = rows(ran, "next")
    assert command(*shlex.split(line)[1:], cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "--from", "mxnet.unfused", "--to", "torch", "-o", "x.safetensors"),
        ("convert", "--from", "mxnet.unfused", "--to", "keras", "-o", "x.pt"),
        ("convert", "--from", "mxnet.unfused", "-o", "x.onnx"),
        ("fuse", "--from", "mxnet.unfused", "--layout", "cudnn", "-o", "x.safetensors"),
        ("unfuse", "--layout", "mxnet.unfused", "-o", "x.safetensors"),
    ],
    ids=" ".join,
)
def test_a_network_at_the_top_is_verified_whatever_its_names(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Gluon's names have parts of their own: `_unfused.0.l_cell.i2h_weight`.  One other tensor that lacks is told."""
    source = shutil.copy(ROOT / "fixtures" / "mxnet" / "gluon_lstm" / "gluon_lstm.params", tmp_path)
    ran = command(words[0], source, *words[1:], cwd=tmp_path)
    assert ran.code == 0, ran.err
    (line,) = rows(ran, "next")
    verified = command(*shlex.split(line)[1:], cwd=tmp_path)
    assert verified.code == 0, verified.out
    assert ("--subset" in line) == ("x.onnx" in words)
    held = {**paramtool.torch.load_file(source), "head.weight": torch.ones(2)}
    torch.save(held, tmp_path / "more.pt")
    more = command("verify", words[-1], "--against", "more.pt", cwd=tmp_path)
    assert more.code == 1 and "'head.weight': is missing" in more.out


def test_names_of_the_source_that_an_output_keeps_are_what_converting_again_gives(tmp_path: Path) -> None:
    """Paddle's networks have each weight twice, under torch's name, too: one is written, and the other is proved."""
    source = Path(shutil.copy(ROOT / "fixtures" / "guess" / "paddle_lstm.npz", tmp_path))
    assert command("unfuse", source, "--layout", "paddle", "-o", "x.safetensors", cwd=tmp_path).code == 0
    assert command("verify", "x.safetensors", "--against", source, cwd=tmp_path).code == 0
    for pair in ((source.name, "x.safetensors"), ("x.safetensors", source.name)):
        assert command("diff", *pair, "--exit-code", cwd=tmp_path).code == 0
    held = dict(np.load(source))
    np.savez(tmp_path / "other.npz", **held | {"enc.0.cell_fw.weight_ih": held["enc.0.cell_fw.weight_ih"] + 1})
    other = command("verify", "x.safetensors", "--against", "other.npz", cwd=tmp_path)
    assert other.code == 1 and "'enc.0.cell_fw.weight_ih': input weights of gate i" in other.out


def test_what_a_network_was_converted_without_is_compared(tmp_path: Path) -> None:
    """The record does not say what --ignore said; names that both have are no part of the conversion."""
    source = tmp_path / "more.npz"
    held = dict(np.load(ROOT / "fixtures" / "guess" / "paddle_lstm.npz"))
    np.savez(source, **held | {"enc.extra": np.ones(2, "f4")})
    ran = command("unfuse", source, "--layout", "paddle", "--ignore", "enc.extra", "-o", "x.safetensors", cwd=tmp_path)
    assert ran.code == 0 and command("verify", "x.safetensors", "--against", source, cwd=tmp_path).code == 0
    np.savez(source, **held | {"enc.extra": np.zeros(2, "f4")})
    other = command("verify", "x.safetensors", "--against", source, cwd=tmp_path)
    assert other.code == 1 and other.out.startswith("difference: 'enc.extra'")
