"""Nothing is lost of what loads, fills, compares and is read rightly: tests/golden/works has the lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import works
from tests.golden.outputs import SAMPLES
from tests.versions import needs

for library in ("diffusers", "keras", "onnx", "onnxruntime", "onnxscript", "peft", "transformers"):
    pytest.importorskip(library, reason=f"{library} judges the facts of the lists")
pytestmark = [needs("torch", "2.13", "the lists were made with it"), pytest.mark.filterwarnings("ignore")]


def holds(subject: str, name: str, folder: Path) -> None:
    """Every line of a job that is listed is found again."""
    if name.startswith(("samples/", "findings/")) and not SAMPLES.is_dir():
        pytest.skip("needs the folder of samples")
    if "bitsandbytes" in name:
        pytest.importorskip("bitsandbytes", reason="runs its modules")
    found = works.run(name, works.jobs(subject)[name], folder)
    lost = {line for line in works.listed(subject)[name] if line not in found.lines}
    whys = {line: why for line, why in found.wrong.items() if any(one.startswith(line) for one in lost)}
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:20]}\n{whys or found.wrong}"


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", works.listed("loads"))
def test_loads(name: str, tmp_path: Path) -> None:
    holds("loads", name, tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", works.listed("fills"))
def test_fills(name: str, tmp_path: Path) -> None:
    holds("fills", name, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", works.listed("compares"))
def test_compares(name: str, tmp_path: Path) -> None:
    holds("compares", name, tmp_path)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", works.listed("files"))
def test_files(name: str, tmp_path: Path) -> None:
    holds("files", name, tmp_path)


@pytest.mark.parametrize("subject", works.SUBJECTS)
def test_no_job_is_gone(subject: str) -> None:
    known = works.jobs(subject)
    gone = {name for name in works.listed(subject) if name not in known}
    assert not gone or not SAMPLES.is_dir(), gone
