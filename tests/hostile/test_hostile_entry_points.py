"""An unsafe checkpoint is refused at every door: each command, and each public function of Python."""

from __future__ import annotations

import inspect
import operator
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import paramtool
import paramtool.torch
from paramtool.cli.main import COMMANDS
from paramtool.errors import ParamtoolError, UnsafeError
from tests.hostile import makers_torch
from tests.hostile.command import contents, quick
from tests.hostile.makers_pickle import text
from tests.hostile.makers_torch import mapping, name, row, state, tensor
from tests.hostile.test_hostile_security import call

CALLED = "somelib.schedules.warm"
HELD = "somelib.schedules.Held"
EVIL = call("somelib.schedules", "warm", text("x"), text("y"))
DATA = name("somelib.schedules", "Held") + b")\x81" + mapping(a=b"K\x01") + b"b"
READ_NONE = {"layouts"}
"""Commands that read no checkpoint."""
DOORS = {
    "inspect": [("evil.pt",), ("evil.pt", "--json"), ("evil.pt", "--tensors", "--digest"), ("evil",)],
    "variants": [
        ("evil.pt", "--against", "names.txt"), ("good.pt", "--against", "evil.pt"), ("good.pt", "--against", "evil")
    ],
    "report": [("evil.pt", "-o", "p.html"), ("good.pt", "evil.pt", "-o", "p.html"), ("evil", "-o", "p.html")],
    "dedup": [
        ("evil.pt",), ("evil.pt", "-o", "o.pt"), ("evil.pt", "--only", "model"), ("evil.pt", "--dry-run"),
        ("evil", "-o", "out"), ("evil.pt", "good.pt", "-o", "out"), ("good.pt", "evil", "-o", "out"),
        ("many", "--each", "-o", "out"), ("evil", "--weights", "model.pt", "-o", "out"), ("copies", "-o", "out"),
    ],
    "export": [
        ("evil.pt", "--all-names", "-o", "o.safetensors"), ("evil.pt", "--names", "names.txt", "-o", "o.safetensors"),
        ("good.pt", "--like", "evil.pt", "-o", "o.safetensors"), ("evil", "--all-names", "-o", "out"),
        ("many", "--all-names", "--each", "-o", "out"),
    ],
    "convert": [("evil.pt", "-o", "o.safetensors", "--to", "mxnet")],
    "fuse": [("evil.pt", "--layout", "cudnn"), ("many", "--each", "--layout", "cudnn", "-o", "out")],
    "unfuse": [("evil.pt",)],
    "guess": [("evil.pt",), ("evil.pt", "--toml", "torch")],
    "check": [("evil.pt",)],
    "lock": [
        ("evil.pt",), ("good.pt", "evil.pt"), ("evil",), ("evil.pt", "--headers"), ("evil.pt", "-o", "-"),
        ("copies", "-o", "x.lock"),
    ],
    "diff": [("evil.pt", "good.pt"), ("good.pt", "evil.pt"), ("--find-base", "good.pt", "evil.pt")],
    "verify": [("evil.pt", "--against", "good.pt"), ("good.pt", "--against", "evil.pt")],
}  # fmt: skip
"""{command: arguments}, each of which reads an unsafe checkpoint."""


JUDGED = {"check"}
"""Commands and functions for which an unsafe file is a finding, PT301, with a severity: tests/commands/check."""


def _model(path: Path) -> torch.nn.Module:
    return torch.nn.ParameterDict({"w": torch.zeros(4)})


PYTHON: dict[str, Callable[..., object]] = {
    "read": lambda at, **more: paramtool.read(at / "evil.pt", **more),
    "load_file": lambda at, **more: paramtool.load_file(at / "evil.pt", **more),
    "dedup": lambda at, **more: paramtool.dedup(at / "evil.pt", **more),
    "dedup_family": lambda at, **more: paramtool.dedup_family([at / "good.pt", at / "evil.pt"], at / "out", **more),
    "dedup_each": lambda at, **more: paramtool.dedup_each(at / "many", at / "out", **more),
    "export_each": lambda at, **more: paramtool.export_each(at / "many", at / "out", **more),
    "verify_each": lambda at, **more: paramtool.verify_each(at / "many", at / "many", **more),
    "export": lambda at, **more: paramtool.export(at / "evil.pt", at / "o.safetensors", all_names=True, **more),
    "convert": lambda at, **more: paramtool.convert(at / "evil.pt", at / "o.safetensors", target="mxnet", **more),
    "fuse": lambda at, **more: paramtool.fuse(at / "evil.pt", at / "o.safetensors", layout="cudnn", **more),
    "unfuse": lambda at, **more: paramtool.unfuse(at / "evil.pt", at / "o.safetensors", **more),
    "guess": lambda at, **more: paramtool.guess(at / "evil.pt", **more),
    "variants": lambda at, **more: paramtool.variants(at / "evil.pt", [at / "good.pt"], **more),
    "diff": lambda at, **more: paramtool.diff(at / "good.pt", at / "evil.pt", **more),
    "report": lambda at, **more: paramtool.report(at / "good.pt", at / "evil.pt", output=at / "p.html", **more),
    "lock": lambda at, **more: paramtool.lock([at / "good.pt", at / "evil.pt"], at / "paramtool.lock", **more),
    "find_base": lambda at, **more: paramtool.find_base(at / "good.pt", [at / "evil.pt"], **more),
    "verify": lambda at, **more: paramtool.verify(at / "good.pt", at / "evil.pt", **more),
    "inspect": lambda at, **more: paramtool.inspect(at / "evil.pt", **more).refuse(),
    "torch.load_file": lambda at, **more: paramtool.torch.load_file(at / "evil.pt", **more),
    "torch.load_model": lambda at, **more: paramtool.torch.load_model(_model(at), at / "evil.pt", **more),
    "torch.variants": lambda at, **more: paramtool.torch.variants(_model(at), at / "evil.pt", **more),
}
READ_NO_CHECKPOINT = {
    "__version__", "register_layout", "alias_graph", "torch.names_from_config",
    "torch.save_file", "torch.save_model",
}  # fmt: skip
"""Public names that take no path of a checkpoint; `alias_graph` takes what `read` gave."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """good.pt; evil.pt, whose pickle calls, and a folder `evil` with it; `many`, with both in folders; `copies`, one of
    which calls; names.txt."""
    for file, pickle in {
        "good.pt": state(w=tensor()), "evil.pt": state(model=mapping(w=tensor()), w=tensor(), args=EVIL)
    }.items():  # fmt: skip
        (tmp_path / file).write_bytes(makers_torch.archive(*makers_torch.parts(pickle)))
    (tmp_path / "evil").mkdir()
    shutil.copy(tmp_path / "evil.pt", tmp_path / "evil" / "model.pt")
    (tmp_path / "names.txt").write_text("w\n")
    for place, file in (("many/a", "good.pt"), ("many/b", "evil.pt")):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(tmp_path / file, tmp_path / place / "model.pt")
    (tmp_path / "copies").mkdir()
    save_file({"w": torch.tensor([1.0, 2, 3, 4])}, tmp_path / "copies" / "model.safetensors")
    pickle = EVIL + b"0" + state(w=tensor())  # what it called is dropped: nothing but the tensor is left
    (tmp_path / "copies" / "pytorch_model.bin").write_bytes(makers_torch.archive(*makers_torch.parts(pickle)))
    return tmp_path


def test_every_door_is_in_the_tables() -> None:
    """A new command or function has to say what it makes of an unsafe file."""
    assert DOORS.keys() | READ_NONE == COMMANDS.keys()
    public = {
        *paramtool.__all__,
        *(f"torch.{name}" for name in paramtool.torch.__all__),
    }
    classes = {name for name in public if inspect.isclass(operator.attrgetter(name)(paramtool))}
    assert PYTHON.keys() | READ_NO_CHECKPOINT | JUDGED == public - classes


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    "args",
    [(command, *args) for command, rows in DOORS.items() if command not in JUDGED for args in rows],
    ids=" ".join,
)
def test_each_command(args: tuple[str, ...], folder: Path) -> None:
    """Exit 4, nothing written, and only `inspect` prints; a pattern allows no call; both options let it go on."""
    before, kept = contents(folder), {path.name for path in folder.iterdir()}
    ran = quick(*args, cwd=folder)
    assert ran.code == 4 and f"{CALLED}('x', 'y')" in ran.err and "nothing was run" in ran.err, ran
    assert f"--allow-class {CALLED}" in ran.err and "--allow-unknown" not in ran.err, ran
    assert bool(ran.out) == (args[0] == "inspect") and contents(folder) == before
    assert quick(*args, "--allow-class", "somelib.*", cwd=folder).code == 4
    assert quick(*args, "--allow-class", f"{CALLED}er", cwd=folder).code == 4
    assert contents(folder) == before
    for allowed in (("--allow-class", CALLED), ("--allow-class", "other.Class", "--allow-class", CALLED),
                    ("--allow-unknown",)):  # fmt: skip
        ran = quick(*args, *allowed, cwd=folder)
        assert ran.code in (0, 1, 2, 5) and "unsafe: " not in ran.err, (allowed, ran)
        for path in folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("door", PYTHON)
def test_each_function(door: str, folder: Path) -> None:
    """The same type of error everywhere, and the same words to go on."""
    before = contents(folder)
    for more in ({}, {"allow_class": ["somelib.*"]}):
        with pytest.raises(UnsafeError, match=CALLED):
            PYTHON[door](folder, **more)
    assert contents(folder) == before
    for more in ({"allow_class": [CALLED]}, {"allow_unknown": True}):
        if door == "inspect" and "allow_unknown" in more:
            continue  # looking raises nothing
        try:
            PYTHON[door](folder, **more)
        except UnsafeError:
            raise
        except ParamtoolError:
            pass  # no recurrent network in the file


@pytest.mark.sample(72)
@pytest.mark.parametrize("command", DOORS)
@pytest.mark.parametrize(
    "never",
    ["os.system", "os.*", "builtins.eval", "__builtin__.eval", "posix.*", "nt.system", "subprocess.Popen",
     "sys.modules", "importlib.import_module", "pickle.loads", "torch.hub.load", "torch.hub.*", "operator.attrgetter",
     "types.CodeType", "functools.partial", "torch.os.system", "shutil.rmtree", "marshal.loads", "webbrowser.open",
     "os", ""],
)  # fmt: skip
def test_what_can_never_be_allowed(never: str, command: str, folder: Path) -> None:
    """Exit 2 with the reason, before anything is read; a module and everything in it."""
    ran = quick(command, *DOORS[command][0], "--allow-class", never, cwd=folder)
    assert ran.code == 2 and ran.out == "" and "--allow-class" in ran.err, ran
    assert "never be allowed" in ran.err or not never, ran


def test_a_pattern_never_reaches_what_is_dangerous(tmp_path: Path) -> None:
    """`*` is about classes that hold data: a mention of what runs programs stays unsafe."""
    pickle = state(w=tensor(), f=name("os", "system"), g=name("torch", "os.system"), h=DATA)
    makers_torch.zipped(pickle)(tmp_path)
    for extra in ((), ("--allow-class", "*")):
        ran = quick("inspect", "model.pt", "--fail-on", "unknown-class", *extra, cwd=tmp_path)
        assert ran.code == 4 and "os.system, named" in ran.err and "torch.os.system, named" in ran.err, ran
        assert (f"finding: unknown-class: {HELD}" in ran.out) is not extra, ran


def test_a_class_that_holds_data_is_allowed_by_a_pattern(tmp_path: Path) -> None:
    """It is no call and never was unsafe; allowed, `--fail-on unknown-class` is content with it."""
    makers_torch.zipped(state(w=tensor(), args=DATA))(tmp_path)
    ran = quick("inspect", "model.pt", "--fail-on", "unknown-class", cwd=tmp_path)
    assert ran.code == 1 and f"unknown  {HELD}" in ran.out, ran
    ran = quick("inspect", "model.pt", "--fail-on", "unknown-class", "--allow-class", "somelib.*", cwd=tmp_path)
    assert ran.code == 0 and f"allowed  {HELD}" in ran.out, ran


def test_unsafe_comes_before_findings(folder: Path) -> None:
    """4 before 1; the findings are printed all the same."""
    ran = quick("inspect", "evil.pt", "--fail-on", "missing:x", "--fail-on", "unsafe", cwd=folder)
    assert ran.code == 4 and ran.out.count("finding: ") == 2, ran
    assert f"finding: unsafe: {CALLED}('x', 'y') is called by the file" in ran.out, ran
    assert quick("inspect", "good.pt", "--fail-on", "unsafe", cwd=folder).code == 0
    ran = quick("inspect", "evil.pt", "--fail-on", "unsafe", "--allow-class", CALLED, cwd=folder)
    assert (ran.code, ran.err) == (0, ""), ran


def test_inspect_recommends_nothing_for_an_unsafe_file(folder: Path) -> None:
    """The last line of the listing is no step that goes on; the refusal names --allow-unknown last."""
    ran = quick("inspect", "evil.pt", cwd=folder)
    assert "next" not in ran.out and "--allow" not in ran.out, ran
    assert "paramtool inspect" not in ran.err, ran
    assert "paramtool inspect evil.pt" in quick("dedup", "evil.pt", cwd=folder).err


def test_sets_that_differ(folder: Path) -> None:
    """A folder that has to be asked which weights are meant is unsafe before that."""
    (folder / "two").mkdir()
    shutil.copy(folder / "good.pt", folder / "two" / "model.pt")
    pickle = state(v=tensor(), args=EVIL)
    (folder / "two" / "model_1.pt").write_bytes(makers_torch.archive(*makers_torch.parts(pickle)))
    ran = quick("inspect", "two", cwd=folder)
    assert ran.code == 4 and CALLED in ran.err and "2 sets of weights" in ran.err, ran
    assert quick("inspect", "two", "--allow-class", CALLED, cwd=folder).code == 2


def test_a_side_file_of_a_pipeline(folder: Path) -> None:
    """What stands beside folders of weights, and in none of them."""
    shutil.rmtree(folder / "many" / "b")
    (folder / "many" / "scheduler.pkl").write_bytes(EVIL + b".")
    ran = quick("dedup", "many", "--each", "-o", "out", cwd=folder)
    assert ran.code == 0 and "warning: 'scheduler.pkl' is unsafe to unpickle" in ran.err, ran


@pytest.mark.parametrize("file", ["scheduler.pt", "training_args.bin", "random_states_0.pkl", "schedule"])
def test_side_files(file: str, folder: Path) -> None:
    """A pickle among the other files of a folder decides the exit code of inspect, and is a warning elsewhere."""
    (folder / "good").mkdir()
    shutil.copy(folder / "good.pt", folder / "good" / "model.pt")
    (folder / "good" / file).write_bytes(row(text("x"), EVIL) + b".")
    (folder / "good" / "README.md").write_text("(import os\nfoo\n tR")
    ran = quick("inspect", "good", "--fail-on", "unsafe", cwd=folder)
    assert ran.code == 4 and f"unsafe  {file}  {CALLED}" in ran.out and f"good/{file}" in ran.err, ran
    assert "README" not in ran.out + ran.err and f"is called by '{file}'" in ran.out, ran
    assert quick("inspect", "good", "--allow-class", CALLED, cwd=folder).code == 0
    assert quick("inspect", "good", "--allow-unknown", cwd=folder).code == 0
    ran = quick("dedup", "good", cwd=folder)
    assert ran.code == 0 and f"warning: '{file}' is unsafe to unpickle" in ran.err, ran
    ran = quick("export", "good", "--all-names", "-o", "out", cwd=folder)
    assert ran.code == 0 and f"warning: '{file}' is unsafe to unpickle" in ran.err, ran
    shutil.copytree(folder / "good", folder / "other")
    ran = quick("dedup", "good", "other", "-o", "both", cwd=folder)
    if "random_states" not in file:  # dedup of several inputs refuses accelerate's folders
        assert ran.code == 0 and ran.err.count(f"'{file}' is unsafe to unpickle") == 2, ran
    assert (
        quick("dedup", "good", "-o", "again", "--allow-class", CALLED, cwd=folder).err.count("unsafe to unpickle") == 0
    )
