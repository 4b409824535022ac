"""The tool as people and programs use it: with a library alone, and where there is no GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paramtool import layouts
from paramtool.cli.main import main
from paramtool.errors import FormatError
from paramtool.layouts import evidence
from proof.__main__ import command as proof_command
from proof.cudnn import record
from proof.cudnn.grid import ALGORITHMS
from tests.hostile.command import Ran, refused
from tests.hostile.command import quick as in_this_process
from tests.patience import PATIENCE
from tests.proof.stub_cudnn import compiled
from tests.proof.test_cudnn_record import ALONE, document

ROOT = Path(__file__).parents[2]
OLD = json.dumps({"schema": evidence.SCHEMA})
LIBRARY = "libcudnn.so.9"


def quick(*args: object, cwd: Path) -> Ran:
    """`python -m proof ARGS` in this process."""
    return in_this_process(*args, cwd=cwd, run=lambda: main(proof_command))


def command(*args: object, cwd: Path, env: Mapping[str, str] | None = None) -> Ran:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "proof", *map(str, args)], cwd=cwd, timeout=PATIENCE, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """A library that answers as the table says."""
    return compiled(tmp_path)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """One that keeps two gates of LSTMs the other way around, and has no persistent algorithms."""
    return compiled(tmp_path, "-DEXCHANGED", "-DREFUSES")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def ask(*more: str, cwd: Path) -> Ran:
    """The quick grid of the library in that folder."""
    return quick("cudnn", "--quick", "--library", LIBRARY, *more, cwd=cwd)


def words(ran: Ran, label: str) -> list[str]:
    """The lines of one label, without it, their columns apart by one blank."""
    return [" ".join(line.split()[1:]) for line in ran.out.splitlines() if line.startswith(f"{label} ")]


# --- a library alone -------------------------------------------------------------------------------------------------


def test_a_library_that_agrees(right: Path, tmp_path: Path) -> None:
    """By the command itself: what was asked, how much agrees, and what that says and does not say."""
    ran = command("cudnn", "--quick", "--library", right, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, ""), ran
    assert words(ran, "machine") == ["cuDNN 9.10.2"]
    assert words(ran, "layout") == [f"cudnn table {evidence.table_digest(layouts.find('cudnn'))[:12]} quick grid"]
    assert words(ran, "asked")[0].endswith("2,560 agree, 0 not supported, 0 differ")
    assert all(line.endswith("not done") for part in ("flattened", "ran") for line in words(ran, part))
    assert words(ran, "verdict") == ["the table is what cuDNN 9.10.2 says; without a GPU nothing was run"]
    assert words(ran, "next") == ["without --quick the full grid is asked; only that counts as a proof"]
    assert words(ran, "difference") == []


def test_a_library_that_differs(wrong: Path, tmp_path: Path) -> None:
    """By the command itself: exit 1, the first differences, how many there are, and what is not supported."""
    ran = command("cudnn", "--quick", "--library", wrong, cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "") and "Traceback" not in ran.out, ran
    assert words(ran, "asked") == [
        "cuDNN's cudnnGetRNNWeightParams 384 agree, 1,920 not supported, 256 differ",
        "standard 384 agree, 0 not supported, 256 differ",
        *(f"{name} 0 agree, 640 not supported, 0 differ" for name in ALGORITHMS[1:]),
        "not supported: CUDNN_STATUS_NOT_SUPPORTED: the stub says so --json and -o say for what",
    ]
    found = words(ran, "difference")
    assert found[0] == (
        "lstm input=3 hidden=5 bias=no, none bias mode, float16, standard: input weights of gate i (layer 0), "
        "pseudoLayer 0, linLayerID 0, matrix byte_start: expected 0, found 30"
    )
    assert len(found) == 21 and found[20] == "and 1,708 more --json and -o list 200"
    assert words(ran, "verdict")[0].endswith("1,728 times something else: the table does not hold here")


def test_a_library_that_has_no_such_networks(tmp_path: Path) -> None:
    """Where nothing agrees nothing is proved, and that is no success."""
    compiled(tmp_path, "-DREFUSES=2")
    ran = ask(cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "")
    assert words(ran, "verdict") == ["nothing of asked is supported here: no proof"]
    assert words(ran, "asked")[0].endswith("0 agree, 2,560 not supported, 0 differ")


def test_the_record_is_the_document(wrong: Path, tmp_path: Path) -> None:
    """-o writes what --json prints; both say what was found."""
    ran = ask("--json", "-o", "r.json", cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "")
    found = json.loads((tmp_path / "r.json").read_text())
    assert json.loads(ran.out) == found
    assert found["asked"]["counts"] == {"agrees": 384, "unsupported": 1920, "differs": 256}
    assert len(found["findings"]) == record.MAX_FINDINGS < found["findings_count"]
    assert not evidence.parse("r.json", (tmp_path / "r.json").read_bytes()).agrees
    assert sorted(path.name for path in tmp_path.iterdir()) == [LIBRARY, "r.json"]


def test_the_record_is_named(tmp_path: Path) -> None:
    """Where it was written, and --force writes it again; a library without networks answers soonest."""
    compiled(tmp_path, "-DREFUSES=2")
    assert words(ask("-o", "r.json", cwd=tmp_path), "record") == ["r.json"]
    (tmp_path / "r.json").write_text(OLD)
    assert ask("-o", "r.json", "--force", cwd=tmp_path).code == 1
    assert json.loads((tmp_path / "r.json").read_text())["findings_count"] == 0


# --- refusals --------------------------------------------------------------------------------------------------------


def refuse(*args: str, cwd: Path, code: int, says: tuple[str, ...]) -> Ran:
    """With and without --json, nothing is printed and nothing is left."""
    refused(quick, *args, "--json", cwd=cwd, code=code, says=says)
    return refused(quick, *args, cwd=cwd, code=code, says=says)


def test_a_record_that_exists(tmp_path: Path) -> None:
    """Is seen before any work: the library, which is none, is not looked at."""
    (tmp_path / "r.json").write_text(OLD)
    (tmp_path / LIBRARY).write_text("no library")
    args = ("cudnn", "--library", LIBRARY, "-o", "r.json")
    refuse(*args, cwd=tmp_path, code=7, says=("r.json: exists", "--force"))
    (tmp_path / "model.pt").write_bytes(b"weights")
    refuse(*args[:-1], "model.pt", "--force", cwd=tmp_path, code=7, says=("model.pt: exists and is", "not a record of"))
    refuse(*args, "--force", cwd=tmp_path, code=2, says=("cannot be loaded as a libcudnn",))


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_record_over_the_library(force: tuple[str, ...], tmp_path: Path) -> None:
    """Under whatever name."""
    (tmp_path / LIBRARY).write_text("no library")
    os.symlink(LIBRARY, tmp_path / "r.json")
    for output in (LIBRARY, f"./{LIBRARY}", "r.json"):
        args = ("cudnn", "--library", LIBRARY, "-o", output, *force)
        refuse(*args, cwd=tmp_path, code=7, says=("is an input",))


@pytest.mark.parametrize("output, says", [("none/r.json", "the folder none does not exist"), (".", "is"), ("", "")])
def test_no_place_for_a_record(output: str, says: str, tmp_path: Path) -> None:
    """Before any work, with a GPU or a library."""
    for more in ((), ("--library", LIBRARY)):
        refuse("cudnn", *more, "-o", output, cwd=tmp_path, code=7, says=(says,))


def test_no_library(tmp_path: Path) -> None:
    """A file that is not there, a folder, a text, and a name beyond ASCII."""
    (tmp_path / "text").write_text("no library")
    for name, says in (("lib.so", "is not a file"), (".", "is not a file"), ("text", "cannot be loaded as a libcudnn")):
        refuse("cudnn", "--library", name, cwd=tmp_path, code=2, says=(name, says))


def test_a_library_that_cannot_be_asked(tmp_path: Path) -> None:
    """A crash of the library is exit 3, and its signal is named."""
    compiled(tmp_path, "-DCRASHES_AT=500")
    says = (LIBRARY, "could not be asked: ", "SIGSEGV")
    refuse("cudnn", "--quick", "--library", LIBRARY, "-o", "r.json", cwd=tmp_path, code=3, says=says)


@pytest.mark.parametrize("name, says", [
    ("cudn", "there is no layout 'cudn'"),
    ("torch", "layout torch cannot be verified by a library; expected one of cudnn"),
    ("miopen", "layout miopen cannot be verified by a library"),
])  # fmt: skip
def test_other_layouts(name: str, says: str, tmp_path: Path) -> None:
    """Exit 2, with and without a library."""
    for more in ((), ("--library", LIBRARY)):
        refuse(name, *more, cwd=tmp_path, code=2, says=(says,))


@pytest.mark.parametrize("args, word", [((), "LAYOUT"), (("cudnn", "--fast"), "--fast"), (("cudnn", "b"), "b")])
def test_usage(args: tuple[str, ...], word: str, tmp_path: Path) -> None:
    """Exit 2, and what was wrong."""
    refused(quick, *args, cwd=tmp_path, code=2, says=(word,))


# --- without a GPU ---------------------------------------------------------------------------------------------------


def test_no_gpu(no_gpu: None, tmp_path: Path) -> None:
    """Exit 2, what is known all the same, and how to do more."""
    ran = quick("cudnn", "-o", "r.json", cwd=tmp_path)
    assert ran.code == 2 and ran.err.startswith("error: no CUDA GPU: torch") and "--library" in ran.err, ran
    assert words(ran, "evidence") == list(evidence.evidence(layouts.find("cudnn")))
    assert list(tmp_path.iterdir()) == []


def test_no_gpu_for_a_program(no_gpu: None, tmp_path: Path) -> None:
    """With --json nothing but the error is said."""
    refused(quick, "cudnn", "--json", cwd=tmp_path, code=2, says=("no CUDA GPU",))


def test_no_gpu_by_the_command_itself(tmp_path: Path) -> None:
    """In a process of its own, without warnings of torch or a traceback."""
    ran = command("cudnn", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert ran.code == 2 and ran.err.startswith("error: no CUDA GPU") and "Traceback" not in ran.err, ran
    assert words(ran, "evidence")


@pytest.mark.parametrize("gpu", [True, False])
def test_the_evidence_that_there_is(
    gpu: bool, no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Records that speak for the table, in numbers."""
    made: dict[str, Any] = document() if gpu else document(ALONE)
    (tmp_path / "a.json").write_text(json.dumps(made))
    monkeypatch.setattr(evidence, "FOLDER", str(tmp_path))
    evidence._read.cache_clear()
    try:
        ran = quick("cudnn", cwd=tmp_path)
    finally:
        evidence._read.cache_clear()
    assert ran.code == 2
    assert ("NVIDIA H100" in ran.out, "not verified on a GPU" in ran.out) == (gpu, not gpu)
    (row,) = words(ran, "record")
    assert row.count("40 agree, 0 not supported, 0 differ") == (3 if gpu else 1) and row.endswith(made["date"])


@pytest.mark.parametrize("earlier", [True, False])
def test_a_proof_that_is_interrupted(earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has found until then is kept, but not over an earlier record, which is whole."""
    began, whole = document(flattened=None, ran=None), json.dumps(document(ALONE))

    def verify(layout: str, *, keep: Any, **how: Any) -> Any:
        keep(began)
        raise FormatError("the end")

    monkeypatch.setattr("proof.verify_layout", verify)
    if earlier:
        (tmp_path / "r.json").write_text(whole)
    ran = quick("cudnn", "-o", "r.json", *(["--force"] if earlier else []), cwd=tmp_path)
    assert (ran.code, ran.out) == (3, "")
    assert json.loads((tmp_path / "r.json").read_text()) == (json.loads(whole) if earlier else began)


@pytest.mark.parametrize("error, hint", [
    ("ModuleNotFoundError('no torch here', name='torch')", "pip install 'paramtool[torch]'"),
    ("ImportError('no torch here')", "python -c 'import torch' says the same"),
    ("OSError('no torch here')", "python -c 'import torch' says the same"),
    ("RuntimeError('no torch here')", "python -c 'import torch' says the same"),
])  # fmt: skip
def test_without_torch(error: str, hint: str, tmp_path: Path) -> None:
    """Exit 2, with what helps; the evidence is there as well."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text(f"raise {error}\n")
    paths = os.pathsep.join([str(tmp_path / "hidden"), str(ROOT), *filter(None, sys.path)])
    ran = command("cudnn", cwd=tmp_path, env={"PYTHONPATH": paths})
    assert ran.code == 2 and "Traceback" not in ran.err, ran
    assert "error: a GPU is asked through torch, which cannot be loaded: no torch here" in ran.err
    assert f"hint: {hint}" in ran.err and words(ran, "evidence")


def test_a_library_without_torch(tmp_path: Path) -> None:
    """Asking a library needs none; this one has no persistent algorithms."""
    library = compiled(tmp_path, "-DREFUSES")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ImportError('no torch here')\n")
    paths = os.pathsep.join([str(tmp_path / "hidden"), str(ROOT), *filter(None, sys.path)])
    args = ("cudnn", "--quick", "--library", library)
    ran = command(*args, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert (ran.code, ran.err) == (0, ""), ran


def children(process: int) -> set[int]:
    """The processes that a process has started."""
    found = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        found |= {int(word) for word in (task / "children").read_text().split()}
    return found


def ignores(process: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal, as the stub does once it is asked something."""
    found = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(found.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the children of a process are read from /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_library_that_hangs(number: signal.Signals, tmp_path: Path) -> None:
    """Whatever ends the command also ends the process that asks, which listens to no signal; nothing is left behind."""
    compiled(tmp_path, "-DHANGS")
    words = [sys.executable, "-m", "proof", "cudnn", "--library", LIBRARY, "-o", "r.json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + PATIENCE
        while not (asking := children(process.pid)) and time.monotonic() < until:
            time.sleep(0.01)
        while not any(ignores(child, signal.SIGTERM) for child in asking) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode in (128 + number, -number), out, err) == (True, b"", b"")
    (child,) = asking
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists() and [path.name for path in tmp_path.iterdir()] == [LIBRARY]
