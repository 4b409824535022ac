"""How a command ends when it may not go on: signals, streams that are closed or full, readers that go away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from paramtool.cli import main as cli_main
from paramtool.cli.main import Interrupted, main
from tests.hostile.command import WRITING, command, interrupted
from tests.patience import PATIENCE

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
PROGRAM = [sys.executable, "-m", "paramtool"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.save({"a": torch.arange(3000.0), "b": torch.arange(3000.0)}, tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_writing_leaves_nothing(number: int, tmp_path: Path) -> None:
    """Exit 128 + n without a word, and no temporary file."""
    torch.save({str(k): torch.full((1_000_000,), float(k)) for k in range(8)}, tmp_path / "model.pt")
    ran = interrupted(number, WRITING, "dedup", "model.pt", cwd=tmp_path)
    assert ran == (128 + number, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_folder_that_was_deleted(tmp_path: Path) -> None:
    """A command that needs the current folder says that it is gone."""
    (tmp_path / "gone").mkdir()
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    text = f"cd {tmp_path / 'gone'} && rmdir ../gone && exec {sys.executable} -P -m paramtool lock ../m.pt"
    ran = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == "error: the current folder was deleted\nhint: change to a folder that exists\n"


STRIKE = """
import os, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "ml_dtypes":
            try:
                os.kill(os.getpid(), signal.{})
                for _ in range(1000): pass
            except BaseException:
                raise ImportError("half imported") from None
sys.meta_path.insert(0, Strike())
from paramtool.cli.main import main
main()
"""


EARLY = """
import os, runpy, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
runpy.run_module("paramtool", run_name="__main__")
"""
LATE = """
import atexit, os, runpy, signal
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
runpy.run_module("paramtool", run_name="__main__")
"""


@pytest.mark.parametrize(("script", "code"), [(EARLY, 130), (LATE, 0)])
def test_ctrl_c_at_the_first_import_and_at_the_very_end(script: str, code: int, model: Path, tmp_path: Path) -> None:
    """No traceback; what is done is done."""
    done = subprocess.run([sys.executable, "-c", script, "inspect", model.name], cwd=tmp_path, capture_output=True,
                          timeout=PATIENCE)  # fmt: skip
    assert (done.returncode, done.stderr, bool(done.stdout)) == (code, b"", code == 0), done


def test_the_script_is_the_module() -> None:
    """Both begin where nothing was imported yet."""
    pyproject = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '\nparamtool = "paramtool.__main__:run"\n' in pyproject


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_an_import_swallows(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    """A C extension turns it into an ImportError; it is a signal all the same."""
    done = subprocess.run([sys.executable, "-c", STRIKE.format(number.name), "dedup", model.name], cwd=tmp_path,
                          capture_output=True, timeout=PATIENCE)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("error", [ImportError("half"), SystemExit(1), KeyboardInterrupt(), click.exceptions.Abort(),
                                   Interrupted(signal.SIGTERM)])  # fmt: skip
def test_whatever_comes_after_a_signal_is_its_echo(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own exit code, and not a word."""

    def run(*args: object, **more: object) -> None:
        cli_main.caught.append(signal.SIGTERM)
        raise error

    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(cli_main.cli, "main", run)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        cli_main.caught.clear()
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    assert ended.value.code == 143 and capsys.readouterr() == ("", "")


SWALLOWED = """
import atexit, os, signal
import paramtool.__main__
from paramtool.cli import main
def strike(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    [None for _ in range(100)]
class Gone:
    __del__ = strike
def run(**more):
    if %s:
        atexit.register(strike)
    else:
        Gone()
main.cli.main = run
paramtool.__main__.run()
"""


@pytest.mark.parametrize("late", [False, True])
def test_a_signal_that_python_ignores(late: bool) -> None:
    """What is raised in a finaliser or at the end of the interpreter is ignored; it is a signal all the same."""
    done = subprocess.run([sys.executable, "-c", SWALLOWED % late], capture_output=True, timeout=PATIENCE)
    assert done.returncode == (-signal.SIGTERM if late else 143) and done.stdout == b""  # a shell says 143 of both


def test_nohup_is_heeded(model: Path, tmp_path: Path) -> None:
    """A signal that the caller ignores stays ignored."""
    done = subprocess.run(["sh", "-c", f"trap '' HUP; exec {sys.executable} -c \"$0\" inspect model.pt", """
import os, signal
from paramtool.cli import _render, main
_render.warn("ready")
main.prepare_streams, kept = lambda: None, main.cli.main
def run(**more):
    os.kill(os.getpid(), signal.SIGHUP)
    return kept(**more)
main.cli.main = run
main.main()
"""], cwd=tmp_path, capture_output=True, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith(b"file"), done


ARGS = [("inspect", "model.pt"), ("inspect", "model.pt", "--json"), ("dedup", "model.pt", "--dry-run"), ("--help",),
        ("inspect", "--help")]  # fmt: skip


def shell(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.sample(3)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("args", ARGS)
def test_a_full_standard_output(args: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    """Exit 7, and no internal error."""
    done = shell(f"{' '.join(PROGRAM)} {' '.join(args)} > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (7, "error: standard output: No space left on device\n")


@pytest.mark.sample(4)
@pytest.mark.parametrize("args", ARGS, ids=range(len(ARGS)))
@pytest.mark.parametrize(
    ("closed", "code", "says"),
    [
        (">&-", 7, "error: standard output: Bad file descriptor\n"),
        ("<&- >&-", 7, "error: standard output: Bad file descriptor\n"),
        (">&- 2>&-", 7, ""),
        ("2>&- >/dev/null", 0, ""),
    ],
    ids=("output", "input and output", "output and errors", "errors"),
)
def test_closed_streams(args: tuple[str, ...], closed: str, code: int, says: str, model: Path, tmp_path: Path) -> None:
    """What is not printed is an error, as on a full disk; that nobody reads errors is none."""
    done = shell(f"{' '.join(PROGRAM)} {' '.join(args)} {closed}", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", says)


@pytest.mark.sample(4)
@pytest.mark.parametrize("args", ARGS)
def test_a_pipe_that_nobody_reads(args: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    """141, as if SIGPIPE had ended it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        done = subprocess.run([*PROGRAM, *args], cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_no_encoding_can_fail(tmp_path: Path) -> None:
    """Characters that a stream lacks are written out."""
    torch.save({"gewicht.ü.重": torch.ones(3)}, tmp_path / "model.pt")
    done = subprocess.run([*PROGRAM, "inspect", "--tensors", "model.pt"], cwd=tmp_path, capture_output=True,
                          timeout=PATIENCE, env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert done.returncode == 0 and rb"gewicht.\xfc.\u91cd" in done.stdout, done


@pytest.mark.parametrize("error, code, says", [
    (OSError(28, "No space left on device"), 7, "error: standard output: No space left on device\n"),
    (PermissionError(13, "Permission denied", "x.pt"), 3, "error: x.pt: Permission denied\n"),
    (MemoryError(), 3, "the machine's memory is limited"),
])  # fmt: skip
def test_errors_of_the_system(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with words of its own."""
    monkeypatch.setattr(cli_main, "_silence", lambda: None)
    assert cli_main._code_of(error) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("package", "words"), [("numpy", ["--digest"]), ("blake3", ["--digest"])])
def test_a_package_that_is_not_installed_is_named(package: str, words: list[str], model: Path) -> None:
    """As in the single-file build, which inspects without them."""
    script = f"import sys; sys.modules[{package!r}] = None; from paramtool.__main__ import run; run()"
    for more, code in (([], 0), (words, 2)):
        done = subprocess.run(
            [sys.executable, "-c", script, "inspect", str(model), *more], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
    assert f"needs the package {package}, which is not installed" in done.stderr and "pip install" in done.stderr


def test_the_codes_are_documented(tmp_path: Path) -> None:
    """In docs/exit-codes.md, to which the README links, and in --help."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = {code for row in re.findall(r"^\| ([\d, ]+) \|", page, re.M) for code in row.split(", ")}
    assert {*rows} == {"0", "1", "2", "3", "4", "5", "6", "7", "70", "129", "130", "143", "141"}
    assert "(docs/exit-codes.md)" in (root / "README.md").read_text(encoding="utf-8")
    assert "70 internal error" in " ".join(command("--help", cwd=tmp_path).out.split())
