"""What a pickle asks for is listed and never done: no import, no call, whatever the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.examples import IS_HARD
from tests.hostile import makers_torch
from tests.hostile.command import Hostile, Ran, check, command, quick, refused
from tests.hostile.makers_pickle import CALLERS, PROTO, text
from tests.hostile.makers_torch import HOOKS, mapping, name, numbers, row, state, storage, tensor
from tests.hostile.warm import IMPORTED
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MODULE = "paramtool_hostile_marker"


def call(module: str, attribute: str, *args: bytes) -> bytes:
    """A call of anything."""
    return name(module, attribute) + row(*args) + b"R"


def touch(folder: Path) -> dict[str, bytes]:
    """Calls that would leave `marker` in the folder, had anything run them."""
    marker = str(folder / "marker")
    return {
        "os.system": call("os", "system", text(f"touch {marker}")),
        "posix.system": call("posix", "system", text(f"touch {marker}")),
        "builtins.eval": call("builtins", "eval", text(f"open({marker!r}, 'w')")),
        "builtins.exec": call("builtins", "exec", text(f"open({marker!r}, 'w')")),
        "builtins.open": call("builtins", "open", text(marker), text("w")),
        "subprocess.Popen": call("subprocess", "Popen", text(f"touch {marker}")),
        "runpy.run_path": call("runpy", "run_path", text(str(folder / f"{MODULE}.py"))),
        f"{MODULE}.function": call(MODULE, "function", text("x")),
        "torch.load": call("torch", "load", text(marker)),
        "torch.hub.load": call("torch.hub", "load", text("evil/repo")),
        "numpy.load": call("numpy", "load", text(marker)),
    }


CALLS = tuple(touch(Path("x")))


def run(*args: object, cwd: Path, anew: bool = IS_HARD) -> Ran:
    """A process of its own that reports its modules when it ends, with a module beside it that leaves a mark.

    It is a fork of a warm process, or starts `anew`: then it has no more modules than it needs.
    """
    (cwd / f"{MODULE}.py").write_text(f"open({str(cwd / 'marker')!r}, 'w')\n")
    report = cwd / "modules.json"
    ran = _started(*args, cwd=cwd) if anew else command(*args, cwd=cwd, env={IMPORTED: str(report)})
    modules = json.loads(report.read_text())
    report.unlink()
    (cwd / f"{MODULE}.py").unlink()
    assert not (cwd / "marker").exists(), "something was run"
    never = {
        MODULE,
        "torch",
        "runpy",
        *(["pickle"] if args[0] == "inspect" else []),
    }  # NumPy, for dedup, imports pickle
    assert not never & set(modules), never & set(modules)
    return ran


def _started(*args: object, cwd: Path) -> Ran:
    script = (
        "import atexit, json, sys\n"
        "from paramtool.cli.main import main\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=open('modules.json', 'w')))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script, *map(str, args)], cwd=cwd, capture_output=True, text=True,
                          timeout=PATIENCE, env={"PYTHONPATH": os.pathsep.join((str(cwd), str(ROOT)))})  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", CALLS)
def test_a_call_that_no_tensor_needs(path: str, tmp_path: Path) -> None:
    """inspect lists everything and exits 4; dedup exits 4, and 0 with --allow-unknown."""
    asked = partial(run, cwd=tmp_path, anew=IS_HARD or path == CALLS[0])
    makers_torch.zipped(state(w=tensor(), evil=touch(tmp_path)[path]))(tmp_path)
    ran = asked("inspect", "model.pt")
    assert ran.code == 4 and path in ran.err and "--allow-unknown" not in ran.out, ran
    assert "1 tensor, 1 distinct" in ran.out, ran
    (line,) = (line for line in ran.out.splitlines() if line.startswith("unsafe  "))
    assert path in line and "not run" in line, line
    ran = asked("inspect", "--json", "model.pt")
    found = json.loads(ran.out)
    assert ran.code == 4 and path in ran.err and found["unsafe"] is True, ran
    assert [(u["path"], u["called"], u["needed_by"], u["unsafe"]) for u in found["unknown"]] == [(path, True, [], True)]
    ran = asked("inspect", "model.pt", "--allow-unknown")
    assert (ran.code, ran.err) == (0, "") and path in ran.out, ran
    ran = asked("dedup", "model.pt")
    assert (ran.code, ran.out) == (4, ""), ran
    assert "model.pt" in ran.err and path in ran.err and "--allow-unknown" not in ran.err, ran
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt"]
    ran = asked("dedup", "model.pt", "--allow-unknown")
    assert ran.code == 0 and "warning: " in ran.err and path in ran.err, ran
    ran = asked("inspect", "--fail-on", "unknown-class", "--fail-on", "unsafe", "model.pt")
    findings = [line for line in ran.out.splitlines() if line.startswith("finding: ")]
    assert ran.code == 4 and len(findings) == 2 and all(path in line for line in findings), ran
    assert asked("inspect", "--fail-on", "unsafe", "--allow-unknown", "model.pt").code == 1


@pytest.mark.sample(8)
@pytest.mark.parametrize("path", ["os.system", "builtins.eval", f"{MODULE}.function"])
@pytest.mark.parametrize("place", ["storage", "offset", "size", "around"])
def test_a_call_that_a_tensor_needs(path: str, place: str, tmp_path: Path) -> None:
    """inspect says which tensor; dedup exits 4 always."""
    evil = touch(tmp_path)[path]
    body = {
        "storage": tensor(evil),
        "offset": tensor(offset=evil),
        "size": tensor(size=evil),
        "around": name("torch._utils", "_rebuild_parameter") + row(evil, b"\x89", HOOKS) + b"R",
    }[place]
    makers_torch.zipped(state(w=body, v=tensor()))(tmp_path)
    ran = run("inspect", "model.pt", cwd=tmp_path)
    assert ran.code == 4 and path in ran.out and "needed by w" in ran.out and path in ran.err, ran
    for extra in ((), ("--allow-unknown",), ("--allow-unknown", "--skip-unsupported")):
        ran = run("dedup", "model.pt", *extra, cwd=tmp_path)
        assert (ran.code, ran.out) == (4, ""), ran
        assert path in ran.err and "'w'" in ran.err, ran


@pytest.mark.sample(3)
@pytest.mark.parametrize("key", CALLERS)
def test_other_ways_to_call(key: str, tmp_path: Path) -> None:
    """Every opcode that calls, in the middle of a checkpoint."""
    make, path = CALLERS[key]
    body = make()
    (tmp_path / "model.pt").write_bytes(makers_torch.archive(*makers_torch.parts(body)))
    if key == "calls_with_a_deep_argument":  # a bomb besides
        refused(quick, "inspect", "model.pt", cwd=tmp_path, code=4, says=("model.pt", "200 levels"))
        return
    ran = run("inspect", "model.pt", cwd=tmp_path)
    assert ran.code == 4 and path in ran.out, ran
    assert all(line.isprintable() for line in (ran.out + ran.err).splitlines()), ran
    ran = run("dedup", "model.pt", cwd=tmp_path)
    assert ran.code == 4 and path in ran.err and ran.out == "", ran
    assert len(ran.err) < 16_000


def test_classes_that_only_hold_data(tmp_path: Path) -> None:
    """An object of a class of somebody's own: a warning that names it, exit 0, and its values are kept."""
    args = name("recipes", "Recipe") + b")\x81" + mapping(lr=text("0.1"), epochs=b"K\x05") + b"b"
    makers_torch.zipped(state(w=tensor(), args=args))(tmp_path)
    ran = run("inspect", "model.pt", cwd=tmp_path)
    assert ran.code == 0 and any(x.startswith("unknown  recipes.Recipe") for x in ran.out.splitlines()), ran
    ran = run("dedup", "model.pt", cwd=tmp_path)
    assert ran.code == 0 and ran.err.startswith("warning: ") and "recipes.Recipe" in ran.err, ran
    assert b"epochs" in (tmp_path / "model.dedup.safetensors").read_bytes()
    assert quick("inspect", "--fail-on", "unknown-class", "model.pt", cwd=tmp_path).code == 1


ENUM = ("transformers.trainer_utils", "SchedulerType")
MEMBERS: dict[str, tuple[bytes, int]] = {
    "one string": (call(*ENUM, text("linear")), 0), "one number": (call(*ENUM, b"K\x01"), 0),
    "two": (call(*ENUM, text("linear"), text("x")), 4), "none": (call(*ENUM), 4),
    "a list": (call(*ENUM, b"]"), 4), "another name": (call(ENUM[0], "Scheduler", text("linear")), 4),
    "another module": (call("transformers", ENUM[1], text("linear")), 4),
}  # fmt: skip


@pytest.mark.parametrize("key", MEMBERS)
def test_a_member_of_an_enum_is_looked_up(key: str, tmp_path: Path) -> None:
    """By the exact name of its class, with one string or one number; anything else is a call."""
    body, code = MEMBERS[key]
    makers_torch.zipped(state(w=tensor(), args=body))(tmp_path)
    assert run("inspect", "model.pt", cwd=tmp_path).code == code
    assert run("dedup", "model.pt", cwd=tmp_path).code == code


CHANGES = {
    "attributes": name("os", "environ") + mapping(PATH=text("x")) + b"b",
    "attributes of a class": name("mylib", "Class") + mapping(run=text("x")) + b"b",
    "an item": name("sys", "modules") + text("os") + b"K\x01s",
    "items": name("sys", "modules") + b"(" + text("os") + b"K\x01u",
}


@pytest.mark.parametrize("key", CHANGES)
def test_what_is_only_named_is_not_changed(key: str, tmp_path: Path) -> None:
    makers_torch.zipped(state(w=tensor(), evil=CHANGES[key]))(tmp_path)
    for words in (("inspect", "model.pt"), ("dedup", "model.pt")):
        ran = run(*words, cwd=tmp_path)
        assert ran.code == 4 and CHANGES[key][1:].split(b"\n")[1].decode() in ran.err, ran


def test_a_class_with_state_and_reduce_hooks(tmp_path: Path) -> None:
    """BUILD would call __setstate__, and a dict's items would call __setitem__: neither happens."""
    evil = name(MODULE, "Class") + b")\x81" + mapping(a=b"K\x01") + b"b"
    makers_torch.zipped(state(w=tensor(), evil=evil))(tmp_path)
    ran = run("inspect", "model.pt", cwd=tmp_path)
    assert ran.code == 0 and f"{MODULE}.Class" in ran.out, ran
    assert run("dedup", "model.pt", cwd=tmp_path).code == 0


def test_a_call_in_the_stacked_form_and_in_the_tar_form(tmp_path: Path) -> None:
    """Each pickle of a file is run by the same closed machine: of the header, too (CVE-2025-32434)."""
    evil = touch(tmp_path)["os.system"]
    head = PROTO + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + PROTO + b"M\xe9\x03." + PROTO + evil + b"."
    files = {
        "stacked.pt": makers_torch.stacked(head=head),
        "keys.pt": makers_torch.stacked(keys=evil),
        "tar.pt": makers_torch.tar(storages=PROTO + evil + b"."),
        "tensors.pt": makers_torch.tar(tensors=PROTO + evil + b"."),
    }
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
        for asked in ("inspect", "dedup"):
            ran = run(asked, file, cwd=tmp_path)
            assert ran.code == 4 and "os.system" in ran.err, (file, ran)


def test_a_module_in_a_persistent_id(tmp_path: Path) -> None:
    """`('module', class, file, source)`: source text of old whole-module files is never compiled."""
    source = text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    module = row(text("module"), name(MODULE, "Net"), text("net.py"), source) + b"Q"
    body = makers_torch.stacked(state(w=tensor(storage(text("0"), makers_torch.number(4), "FloatStorage", b"N")),
                                      net=module))  # fmt: skip
    (tmp_path / "model.pt").write_bytes(body)
    ran = run("inspect", "model.pt", cwd=tmp_path)
    assert ran.code == 0 and f"{MODULE}.Net" in ran.out, ran


def test_an_unknown_call_in_a_shard(tmp_path: Path) -> None:
    """An index over .bin files: the same refusal, the shard's calls are listed."""
    pickle = state(w=tensor(size=numbers((4,))), evil=touch(tmp_path)["os.system"])
    (tmp_path / "a.bin").write_bytes(makers_torch.archive(*makers_torch.parts(pickle)))
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "a.bin"}}')
    ran = run("inspect", ".", cwd=tmp_path)
    assert ran.code == 4 and "os.system" in ran.out, ran
    refused(quick, "dedup", ".", "-o", "out", cwd=tmp_path, code=4, says=("os.system", "a.bin"))


def test_nothing_at_all(tmp_path: Path) -> None:
    """The same file without its call is fine, so it was the call that was refused."""
    check(Hostile(makers_torch.zipped(), inspect=0), tmp_path, command)
