"""benchmarks/gpu_fused.py as a command: its results, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.benchmarks.gpu_benchmark import (
    BENCHMARKS,
    FOUR,
    ROOT,
    SMALL,
    cell,
    earlier,
    figures,
    gpu_fused,
    gpu_fused_measure,
    gpu_fused_results,
    made_up,
    measure_by,
    script,
)
from tests.patience import PATIENCE


class TestResult:
    def test_content(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Settings, machine and figures; and the table of them says that they are a CPU's."""
        path = tmp_path / "result.json"
        assert gpu_fused.main([*SMALL, "--kinds", "gru", "--dtypes", "float32,float16", "-o", str(path)]) == 0
        found = json.loads(path.read_text())
        assert (found["schema"], found["device"]) == ("paramtool.gpu-fused/1", "cpu")
        assert found["machine"]["torch"] == torch.__version__
        assert {"device", "cuda", "cudnn", "python"} <= found["machine"].keys()
        assert (found["settings"]["tf32"], found["settings"]["batch"], found["not_measured"]) == (False, 32, [])
        assert len(found["cells"]) == 2 * 2 * 2
        for one in found["cells"]:
            assert one["rounds"] >= 3
            for variant in gpu_fused_results.VARIANTS:
                for mode in gpu_fused_results.MODES:
                    figures = one["variants"][variant][mode]
                    first, third = figures["quartiles_seconds"]
                    assert 0 < first <= figures["median_seconds"] <= third
                    assert figures["peak_nbytes"] is None
        said = capsys.readouterr()
        assert "say nothing about cuDNN" in said.out
        assert "say nothing about cuDNN" in said.err
        assert said.out.count("\n| gru | ") == 8
        assert list(tmp_path.iterdir()) == [path]

    def test_read_again(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An earlier result is told as it was when it was measured."""
        path = tmp_path / "result.json"
        assert gpu_fused.main([*SMALL, "--kinds", "lstm", "--dtypes", "float64", "-o", str(path)]) == 0
        first = capsys.readouterr().out
        assert gpu_fused.main(["--from", str(path)]) == 0
        assert capsys.readouterr().out == first

    def test_a_failure_is_an_exit_code(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """And is named."""
        result = made_up({1: 1.5})
        result["not_measured"] = [asdict(cell(sequence=512)) | {"reason": "out of memory", "failed": True}]
        path = tmp_path / "result.json"
        path.write_text(json.dumps(result))
        assert gpu_fused.main(["--from", str(path)]) == 1
        said = capsys.readouterr().out
        assert "**not measured: 1**" in said
        assert "- lstm float64, hidden 6, layers 2, sequence 512: out of memory" in said

    @pytest.mark.parametrize("text", ["[]", "{", '{"schema": "other"}'])
    def test_no_result(self, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Another file is refused."""
        path = tmp_path / "result.json"
        path.write_text(text)
        assert gpu_fused.main(["--from", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


class TestCommand:
    def test_without_a_gpu(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """It says so, and how to try it."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert gpu_fused.main([]) == 2
        said = capsys.readouterr().err
        assert "no CUDA GPU" in said
        assert "--device cpu" in said

    @pytest.mark.slow
    def test_from_the_tree(self, tmp_path: Path) -> None:
        """Where nothing is installed, and without what the benchmark does not need."""
        barred = "ml_dtypes", "blake3", "rich", "click", "matplotlib"
        script = f"import runpy, sys; sys.modules.update(dict.fromkeys({barred})); sys.path.insert(0, {BENCHMARKS!r})\n"
        script += f"sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]\n"
        script += f"sys.argv[1:] = {[*SMALL, '--kinds', 'lstm', '--dtypes', 'float32']!r}\n"
        script += f"runpy.run_path({BENCHMARKS + '/gpu_fused.py'!r}, run_name='__main__')\n"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert "| lstm | float32 | 4 | 1 | 1 | " in done.stdout

    def test_names_that_are_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        """bfloat16 is not flattened by torch, for one."""
        assert gpu_fused.main(["--dtypes", "float32,bfloat16"]) == 2
        assert "bfloat16: not one of float16, float32, float64" in capsys.readouterr().err

    def test_no_such_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Where the result cannot be written, it says so before it measures."""
        monkeypatch.setattr(gpu_fused_measure, "sweep", lambda *arguments: pytest.fail("measured"))
        assert gpu_fused.main([*SMALL, "-o", str(tmp_path / "none" / "result.json")]) == 7
        assert "result.json" in capsys.readouterr().err

    def test_without_torch(self, tmp_path: Path) -> None:
        """What to do, and no traceback; an earlier result is told all the same."""
        barred = "sys.modules['torch'] = None"
        done = script(FOUR, subprocess.PIPE, barred)
        assert done.returncode == 2
        message, hint = done.stderr.splitlines()
        assert "torch or a library that it needs is missing: " in message
        assert "--from RESULT.json" in hint
        done = script(["--from", str(earlier(tmp_path))], subprocess.PIPE, barred)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("--batch 0", "argument --batch: found '0', expected a whole number from 1 to 1048576"),
            ("--batch -1", "argument --batch: found '-1', expected a whole number from 1"),
            ("--batch 1e3", "argument --batch: found '1e3', expected a whole number from 1"),
            ("--hidden 8,0", "argument --hidden: found '0', expected a whole number from 1"),
            ("--layers abc", "argument --layers: found 'abc', expected a whole number from 1"),
            ("--sequence 1,", "argument --sequence: found '', expected a whole number from 1"),
            ("--sequence " + "9" * 5000, "expected a whole number from 1"),
            ("--hidden " + ",".join(map(str, range(1, 34))), "argument --hidden: 33 numbers, expected at most 32"),
            ("--seconds-per-cell nan", "argument --seconds-per-cell: found 'nan', expected a number above 0"),
            ("--seconds-per-cell 0", "argument --seconds-per-cell: found '0', expected a number above 0"),
            ("--seconds-per-cell -1", "argument --seconds-per-cell: found '-1', expected a number above 0"),
            ("--minutes nan", "argument --minutes: found 'nan', expected a number of at least 0"),
            ("--minutes -1", "argument --minutes: found '-1', expected a number of at least 0"),
            ("--minutes inf", "argument --minutes: found 'inf', expected a number of at least 0"),
            ("--minutes x", "argument --minutes: found 'x', expected a number of at least 0"),
            ("--kinds ,", "argument --kinds: '', '': not one of lstm, gru"),
            ("--from a.json -o b.json", "argument -o: not allowed with --from"),
            ("-o a.json --plot ./a.json", "argument --plot: ./a.json: is also the file of -o"),
        ],
    )
    def test_usage(self, words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
        """An error names the flag, what was found and what is expected."""
        assert gpu_fused.main(words.split()) == 2
        assert expected in capsys.readouterr().err

    def test_one_configuration(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """Is one."""
        measure_by(monkeypatch, figures)
        assert gpu_fused.main([*FOUR, "--hidden", "4", "--sequence", "1"]) == 0
        assert "\n1 configuration, perhaps" in capsys.readouterr().err

    def test_nothing_measured(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Is said, and is no success; the report lists the first, the result all."""
        path = tmp_path / "result.json"
        words = ["--device", "cpu", "--minutes", "0"]
        assert gpu_fused.main([*words, "-o", str(path)]) == 1
        said = capsys.readouterr()
        assert said.err.endswith("\ngpu_fused: nothing was measured\n")
        assert "**not measured: 240**" in said.out
        assert said.out.count("s were left") == 20
        assert "- and 220 more; the file of -o lists all" in said.out
        assert len(json.loads(path.read_text())["not_measured"]) == 240
        assert gpu_fused.main(["--from", str(path)]) == 1

    def test_failures_come_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Of those listed."""
        result = made_up({1: 1.5})
        left = asdict(cell()) | {"reason": "no time", "failed": False}
        result["not_measured"] = [left] * 30 + [left | {"reason": "no memory", "failed": True}]
        path = tmp_path / "result.json"
        path.write_text(json.dumps(result))
        assert gpu_fused.main(["--from", str(path)]) == 1
        first = "- lstm float64, hidden 6, layers 2, sequence 5: no memory"
        assert f"**not measured: 31**\n\n{first}\n" in capsys.readouterr().out
