"""benchmarks/gpu_fused.py and the world: what it writes and reads, signals, and a stdout that takes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.benchmarks.gpu_benchmark import (
    FOUR,
    Cell,
    earlier,
    figures,
    gpu_fused,
    gpu_fused_results,
    made_up,
    measure_by,
    script,
)

Said = pytest.CaptureFixture[str]


def never(*_: object) -> dict[str, Any]:
    """Measures nothing."""
    pytest.fail("measured")


def fails(*_: object) -> NoReturn:
    """A stdout whose reader has gone."""
    raise BrokenPipeError


class TestPlaces:
    @pytest.mark.parametrize("force", [[], ["--force"]])
    @pytest.mark.parametrize("flag", ["-o", "--plot"])
    @pytest.mark.parametrize("kind", ["FIFO", "link", "link to nothing", "folder"])
    def test_refused(
        self, kind: str, flag: str, force: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
    ) -> None:
        """What is not a regular file stays, and is told of before anything is measured."""
        if flag == "--plot":
            pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        place, other = tmp_path / "place", tmp_path / "other"
        make: dict[str, Callable[[], object]] = {
            "FIFO": lambda: os.mkfifo(place),
            "link": lambda: (other.write_text("mine"), place.symlink_to(other)),
            "link to nothing": lambda: place.symlink_to(tmp_path / "nothing"),
            "folder": place.mkdir,
        }
        make[kind]()
        before = os.lstat(place)
        measure_by(monkeypatch, never)
        assert gpu_fused.main([*FOUR, *force, flag, str(place)]) == 7
        assert f"gpu_fused: {flag}: {place}: " in capsys.readouterr().err
        assert os.lstat(place)[:4] == before[:4]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "place"][kind != "link" :]

    @pytest.mark.parametrize("flag", ["-o", "--plot"])
    def test_a_file_stays(self, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
        """Without --force."""
        if flag == "--plot":
            pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        place = tmp_path / "place"
        place.write_text("mine")
        measure_by(monkeypatch, never)
        assert gpu_fused.main([*FOUR, flag, str(place)]) == 7
        assert f"{place}: exists\noverwrite it with --force, or choose another {flag}" in capsys.readouterr().err
        assert place.read_text() == "mine"

    def test_force(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Overwrites a file, when something was measured."""
        pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        result, picture = tmp_path / "result.json", tmp_path / "result.png"
        for path in (result, picture):
            path.write_text("mine")

        def measured(one: Cell, *_: object) -> dict[str, Any]:
            assert picture.read_text() == "mine"
            return figures(one)

        measure_by(monkeypatch, measured)
        assert gpu_fused.main([*FOUR, "--force", "-o", str(result), "--plot", str(picture)]) == 0
        assert len(json.loads(result.read_text())["cells"]) == 4
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_stranger_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
        """What the run wrote it replaces; what another one put there meanwhile it does not."""
        path = tmp_path / "result.json"
        saved: list[int] = []

        def measured(one: Cell, *_: object) -> dict[str, Any]:
            if path.exists():
                saved.append(len(json.loads(path.read_text())["cells"]))
            if len(saved) == 2:
                (tmp_path / "new").write_text("another's")
                os.replace(tmp_path / "new", path)
            return figures(one)

        measure_by(monkeypatch, measured)
        assert gpu_fused.main([*FOUR, "-o", str(path)]) == 7
        assert saved == [1, 2]
        assert f"{path}: exists" in capsys.readouterr().err
        assert path.read_text() == "another's"

    def test_what_is_read_stays(self, tmp_path: Path, capsys: Said) -> None:
        """No picture is drawn over the result."""
        pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        source = earlier(tmp_path)
        before = source.read_text()
        assert gpu_fused.main(["--from", str(source), "--plot", str(source), "--force"]) == 7
        assert "is an input" in capsys.readouterr().err
        assert source.read_text() == before


LOST = object()
SEPARATE = ("cells", 1, "variants", "separate")
DAMAGES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("settings",), LOST, "member settings is missing"),
    (("settings",), None, "member settings is null, expected an object"),
    (("settings", "kinds"), ["rnn"], 'member settings.kinds[0] is \'rnn\', expected one of "lstm", "gru"'),
    (("settings", "hidden"), [4, 4], "member settings.hidden is a list, expected a list without duplicates"),
    (("settings", "layers"), [], "member settings.layers is a list, expected a list of 1 to 32"),
    (("settings", "batch"), True, "member settings.batch is true, expected a whole number"),
    (("machine", "torch"), 2, "member machine.torch is 2, expected a line"),
    (("machine", "device"), "\x1b[31m", r"member machine.device is '\x1b[31m', expected a line"),
    (("machine", "device"), LOST, "member machine.device is missing"),
    (("date",), LOST, "member date is missing"),
    (("device",), "tpu", "member device is 'tpu', expected one of"),
    (("cells",), {}, "member cells is an object, expected a list"),
    (("cells", 0), None, "member cells[0] is null, expected an object"),
    (("cells", 0, "hidden"), "4", "member cells[0].hidden is '4', expected a whole number from 1"),
    (SEPARATE, LOST, "member cells[1].variants.separate is missing"),
    ((*SEPARATE, "forward", "median_seconds"), 0, "forward.median_seconds is 0, expected a number from 1e-12"),
    ((*SEPARATE, "forward", "median_seconds"), -1.5, "forward.median_seconds is -1.5, expected a number from 1e-12"),
    ((*SEPARATE, "forward", "median_seconds"), float("nan"), "holds NaN, which is not a JSON number"),
    ((*SEPARATE, "forward", "median_seconds"), float("inf"), "holds Infinity, which is not a JSON number"),
    ((*SEPARATE, "forward", "quartiles_seconds"), [1.0], "quartiles_seconds is a list, expected a list of 2 to 2"),
    ((*SEPARATE, "forward", "peak_nbytes"), 1.5, "peak_nbytes is 1.5, expected a whole number"),
    (("not_measured",), [{}], "member not_measured[0].kind is missing"),
]


class TestReading:
    @pytest.mark.parametrize(("where", "value", "expected"), DAMAGES)
    def test_damaged(self, where: tuple[Any, ...], value: Any, expected: str, tmp_path: Path, capsys: Said) -> None:
        """The member is named, with what was found and what is expected, in a line."""
        path, result = tmp_path / "result.json", json.loads(json.dumps(made_up({1: 1.5, 8: 1.0})))
        inside = result
        for step in where[:-1]:
            inside = inside[step]
        if value is LOST:
            del inside[where[-1]]
        else:
            inside[where[-1]] = value
        path.write_text(json.dumps(result))
        self.refused(path, f"{path}: is damaged: ", capsys, expected)

    @pytest.mark.parametrize("number", ["1e999", "-1e999"])
    def test_too_large(self, number: str, tmp_path: Path, capsys: Said) -> None:
        """A number of which Python makes an infinite one."""
        path = earlier(tmp_path)
        path.write_text(path.read_text().replace('"median_seconds": 1.0', f'"median_seconds": {number}', 1))
        self.refused(path, "median_seconds is ", capsys, "expected a number from 1e-12")

    @pytest.mark.parametrize("text", [b"", b"\xff{}", b"[" * 100_000, b"9" * 5000, b'{"schema": 1}'])
    def test_no_result(self, text: bytes, tmp_path: Path, capsys: Said) -> None:
        """In a line."""
        path = tmp_path / "result.json"
        path.write_bytes(text)
        self.refused(path, f"{path}: is not a paramtool.gpu-fused/1 document", capsys)

    def test_no_file(self, tmp_path: Path, capsys: Said) -> None:
        """A FIFO is not waited for, a device not read to its end."""
        os.mkfifo(tmp_path / "fifo")
        self.refused(tmp_path / "fifo", "is not a regular file", capsys)
        self.refused(Path("/dev/zero"), "is not a regular file", capsys)
        self.refused(tmp_path, "directory", capsys)
        self.refused(tmp_path / "none", "No such file", capsys)

    def test_too_long(self, tmp_path: Path, capsys: Said) -> None:
        """No more than 64 MiB are read."""
        path = tmp_path / "result.json"
        path.touch()
        os.truncate(path, gpu_fused_results.MOST_BYTES + 1)
        self.refused(path, "has more than 67108864 bytes", capsys)

    @staticmethod
    def refused(path: Path, start: str, capsys: Said, end: str = "") -> None:
        """Code 2 and one line."""
        assert gpu_fused.main(["--from", str(path)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert start in said.err
        assert end in said.err


def strike(number: int, at: int) -> Callable[..., dict[str, Any]]:
    """Measures, until a signal comes."""
    begun: list[Cell] = []

    def measured(one: Cell, *_: object) -> dict[str, Any]:
        begun.append(one)
        if len(begun) == at:
            os.kill(os.getpid(), number)
        return figures(one)

    return measured


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
class TestSignals:
    def test_what_was_measured_is_kept(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
    ) -> None:
        """And the handlers are those that were there before."""
        path, handler = tmp_path / "result.json", signal.getsignal(number)
        measure_by(monkeypatch, strike(number, at=3))
        assert gpu_fused.main([*FOUR, "-o", str(path)]) == 128 + number
        assert capsys.readouterr().err.endswith(f"\ngpu_fused: interrupted; the measurements so far are in {path}\n")
        found = gpu_fused_results.read(str(path))
        assert (len(found["cells"]), len(found["not_measured"])) == (2, 2)
        assert list(tmp_path.iterdir()) == [path]
        assert signal.getsignal(number) is handler

    def test_an_earlier_result_is_kept(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
    ) -> None:
        """Where nothing was measured yet, even with --force."""
        path = earlier(tmp_path)
        before = path.read_text()
        measure_by(monkeypatch, strike(number, at=1))
        assert gpu_fused.main([*FOUR, "--force", "-o", str(path)]) == 128 + number
        assert f"interrupted; nothing was measured yet, and {path} was not written" in capsys.readouterr().err
        assert path.read_text() == before

    def test_nothing_is_kept(self, number: int, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
        """Without -o."""
        measure_by(monkeypatch, strike(number, at=2))
        assert gpu_fused.main(FOUR) == 128 + number
        assert "interrupted; nothing was saved: -o RESULT.json was not given" in capsys.readouterr().err

    @pytest.mark.parametrize("echo", [None, ImportError("half imported")])
    def test_swallowed(
        self, number: int, echo: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: Said
    ) -> None:
        """A library that catches everything does not keep the run from ending."""

        def measured(one: Cell, *_: object) -> dict[str, Any]:
            try:
                os.kill(os.getpid(), number)
                return figures(one)
            except BaseException:
                if echo is not None:
                    raise echo from None
                return figures(one)

        measure_by(monkeypatch, measured)
        assert gpu_fused.main(FOUR) == 128 + number
        assert capsys.readouterr().err.endswith("-o RESULT.json was not given\n")


class TestStdout:
    def test_closed_pipe(self, tmp_path: Path) -> None:
        """141, without a word."""
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = script(["--from", str(earlier(tmp_path))], writing)
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
    def test_full(self, tmp_path: Path) -> None:
        """7, and a line."""
        with open("/dev/full", "w") as full:
            done = script(["--from", str(earlier(tmp_path))], full)
        assert (done.returncode, done.stderr) == (7, "gpu_fused: standard output: No space left on device\n")

    def test_none(self, tmp_path: Path) -> None:
        """Nothing to say it to: an error, as for a full disk."""
        done = script(
            ["--from", str(earlier(tmp_path))], subprocess.DEVNULL, "import os; os.close(1); sys.stdout = None"
        )
        assert done.returncode == 7 and done.stderr.endswith("Bad file descriptor\n")

    def test_the_rest_is_done(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The result is written, and the picture drawn."""
        pytest.importorskip("matplotlib", reason="matplotlib, which draws the picture, is not installed")
        measure_by(monkeypatch, figures)
        monkeypatch.setattr(gpu_fused, "print_report", fails)
        result, picture = tmp_path / "result.json", tmp_path / "result.png"
        assert gpu_fused.main([*FOUR, "-o", str(result), "--plot", str(picture)]) == 141
        assert len(gpu_fused_results.read(str(result))["cells"]) == 4
        assert picture.read_bytes()[:4] == b"\x89PNG"
