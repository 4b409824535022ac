"""A library asked in a process of its own: what it answers, and what becomes of files that are none and of crashes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from paramtool import layouts
from paramtool.errors import FormatError, OutputError, UsageError
from paramtool.layouts import evidence
from proof import record_file
from proof.cudnn import asking, compare, grid, table
from proof.cudnn.answers import Answer, Unsupported
from tests.examples import IS_HARD
from tests.proof.fake_cudnn import Fake
from tests.proof.stub_cudnn import compiled


def answers(path: Path) -> list[Answer | Unsupported]:
    """All that a library answers about the quick grid."""
    return [found for _, found in asking.ask(str(path), quick=True).answers]


def test_a_library_answers(tmp_path: Path) -> None:
    """Every question in the order of the grid, and as the fake does that was written apart from it."""
    asked = asking.ask(str(compiled(tmp_path)), quick=True)
    found = list(asked.answers)
    assert asked.version == "9.10.2"
    assert [case for case, _ in found] == list(grid.asked(quick=True))
    library = Fake().library()
    assert all(library.answer(case) == answer for case, answer in found[::29])


def test_a_library_that_keeps_gates_otherwise(tmp_path: Path) -> None:
    """The answers differ from the table where they should: in LSTMs."""
    asked = asking.ask(str(compiled(tmp_path, "-DEXCHANGED")), quick=True)
    layout = layouts.find("cudnn")
    for case, found in [*asked.answers][:: 1 if IS_HARD else 7]:
        assert isinstance(found, Answer)
        differs = bool(list(compare.differences(case, table.answer(layout, case), found)))
        assert differs is (case.spec.kind == "lstm"), case


def test_a_library_that_refuses(tmp_path: Path) -> None:
    """In its own words, and only what it refuses."""
    for case, found in asking.ask(str(compiled(tmp_path, "-DREFUSES")), quick=True).answers:
        if case.algorithm == "standard":
            assert isinstance(found, Answer)
        else:
            assert found == Unsupported("CUDNN_STATUS_NOT_SUPPORTED: the stub says so")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Nor is a folder a library."""
    for path in (tmp_path / "libcudnn.so.9", tmp_path):
        with pytest.raises(UsageError, match="is not a file") as caught:
            asking.ask(str(path), quick=True)
        assert "libcudnn.so.9" in caught.value.hint


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    """It is named, in the words of who would load it."""
    path = tmp_path / "libcudnn.so.9"
    path.write_text("no library")
    with pytest.raises(UsageError, match=r"libcudnn\.so\.9: cannot be loaded as a libcudnn: ") as caught:
        asking.ask(str(path), quick=True)
    assert "Traceback" not in str(caught.value)


def test_a_library_of_something_else(tmp_path: Path) -> None:
    """The first function that it lacks is named."""
    source = tmp_path / "other.c"
    source.write_text("int answer(void) { return 42; }\n")
    library = compiled(tmp_path, source=source)
    with pytest.raises(UsageError, match=r"the library has no cudnnGetVersion: expected cuDNN 8 or later"):
        asking.ask(str(library), quick=True)


@pytest.mark.parametrize("number", [1, 20000])
def test_a_library_that_crashes(number: int, tmp_path: Path) -> None:
    """Only the process that asked ends, and how it ended is said, wherever in a line that was."""
    with pytest.raises(FormatError, match=r"could not be asked: .* ended with SIGSEGV") as caught:
        answers(compiled(tmp_path, f"-DCRASHES_AT={number}"))
    assert "Traceback" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("number", [1, 20000])
def test_a_library_that_fails(number: int, tmp_path: Path) -> None:
    """What it said of its failure is said, and nothing of ours."""
    with pytest.raises(FormatError, match=r"could not be asked: .* ended with exit code 1") as caught:
        answers(compiled(tmp_path, f"-DFAILS_AT={number}"))
    assert caught.value.hint == "it said: cudnnGetRNNWeightParams: CUDNN_STATUS_BAD_PARAM: the stub says so"


def test_a_library_that_talks(tmp_path: Path) -> None:
    """What a library writes on its outputs is no answer and stops nobody, however much it is."""
    asked = asking.ask(str(compiled(tmp_path, "-DTALKS")), quick=True)
    assert asked.version == "9.10.2" and len(list(asked.answers)) == 2560


@pytest.mark.parametrize("code, says", [
    ("pass", "ended without an answer"),
    ("print('{\"version\": \"9\"}')", "the answers end before lstm input=3 hidden=5"),
    ("import os; os.write(1, b'{\"version\": \"9\"}\\n{\"nbytes\"'); os._exit(3)", "ended with exit code 3"),
    ("print('{\"version\": \"9\"}\\n' + '{\"unsupported\": \"\"}\\n' * 3)", "has more answers than questions"),
])  # fmt: skip
def test_another_number_of_answers(code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for the answer to another question, nor half of an answer for one."""
    one = [case for case in grid.asked(quick=True) if case.spec.kind == "lstm"][:1]
    monkeypatch.setattr(grid, "asked", lambda quick: iter(one))
    monkeypatch.setattr(asking, "MAIN", code)
    (tmp_path / "libcudnn.so.9").touch()
    with pytest.raises(FormatError, match=says):
        answers(tmp_path / "libcudnn.so.9")


def test_no_gpu_is_seen_and_the_same_paramtool_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the folder and the environment of this process are."""
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[3]); import paramtool; "
        "print(json.dumps({'version': paramtool.__file__ + os.environ[NAME]}))"
    )
    monkeypatch.setattr(asking, "MAIN", code.replace("NAME", "'CUDA_VISIBLE_DEVICES'"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libcudnn.so.9").touch()
    assert asking.ask("libcudnn.so.9", quick=True).version == sys.modules["paramtool"].__file__


# --- as a job --------------------------------------------------------------------------------------------------------


def test_a_record_of_a_library(tmp_path: Path) -> None:
    """What agrees, what is not supported and what differs, of every network; progress is counted in cases."""
    steps: list[int] = []
    said: list[tuple[str, int]] = []

    @contextmanager
    def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
        said.append((label, total))
        yield steps.append

    found = record_file.ask_library(compiled(tmp_path, "-DREFUSES", "-DEXCHANGED"), quick=True, progress=progress)
    assert said == [("cuDNN 9.10.2", 2560)] and steps == [1] * 2560
    assert found["asked"]["counts"] == {"agrees": 384, "unsupported": 1920, "differs": 256}
    assert (found["flattened"], found["ran"], found["machine"]["cudnn"]) == (None, None, "9.10.2")
    assert found["machine"]["device"] == "" and found["grid"] == "quick"
    assert "lstm input=3 hidden=5" in found["asked"]["networks"]["duuu" * 16]
    assert "gru input=3 hidden=5 reset=after" in found["asked"]["networks"]["auuu" * 16]
    assert sum(found["asked"]["unsupported"].values()) == 1920


@pytest.mark.parametrize("name", ["torch", "miopen", "keras"])
def test_layouts_that_no_library_is_asked_about(name: str, tmp_path: Path) -> None:
    """Before anything is looked at."""
    with pytest.raises(UsageError, match=f"layout {name} cannot be verified by a library; expected one of cudnn"):
        record_file.ask_library(tmp_path / "nothing", name)


def test_writing_a_record(tmp_path: Path) -> None:
    """Whole, once, and over an earlier record with `force` alone."""
    one, other = ({"schema": evidence.SCHEMA, "layout": name} for name in ("one", "other"))
    path = tmp_path / "r.json"
    record_file.write_record(one, path)
    with pytest.raises(OutputError, match="exists"):
        record_file.write_record(other, path)
    assert json.loads(path.read_text()) == one
    record_file.write_record(other, path, force=True)
    assert json.loads(path.read_text()) == other
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_no_other_file_is_replaced(tmp_path: Path) -> None:
    """With `force` neither: a checkpoint, or JSON of another kind."""
    for name, data in (("model.safetensors", save({"w": np.ones(3)})), ("config.json", b'{"a": 1}')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(OutputError, match=r"not a record of `python -m proof`, which is all that force"):
            record_file.check_record_place(tmp_path / name, force=True)
        assert (tmp_path / name).read_bytes() == data
    (tmp_path / "empty").touch()
    record_file.check_record_place(tmp_path / "empty", force=True)


def test_a_folder_is_no_place_for_a_record(tmp_path: Path) -> None:
    """With and without --force."""
    for force in (False, True):
        with pytest.raises(OutputError):
            record_file.check_record_place(tmp_path, force=force)
