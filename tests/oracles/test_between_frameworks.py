"""docs/between-frameworks.md: each of its sections, run as it stands there, by the frameworks that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hostile.command import quick
from tests.patience import PATIENCE
from tests.site.forking import Forking

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "between-frameworks.md"
ENVIRONMENTS = {
    "MXNet 1.9.1": ROOT / ".venv-oracles" / "mxnet1" / "bin" / "python",
    "tf_keras": ROOT / ".venv-oracles" / "tf" / "bin" / "python",
    "torch": Path(sys.executable),
    "Keras 3": Path(sys.executable),
    "ONNX Runtime": Path(sys.executable),
}
"""{how a program begins after `# with`: the Python that runs it}."""


class Block(NamedTuple):
    """A block of code."""

    language: str
    text: str


def sections() -> Iterator[tuple[str, list[Block]]]:
    """(heading, blocks) of the page."""
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        yield heading, [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.M | re.S)]


SECTIONS = dict(sections())


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """Programs of this Python are forks of a process that has imported their libraries."""
    process = Forking()
    yield process
    process.close()


def run_program(block: Block, folder: Path, forking: Forking) -> None:
    """Run a program with the framework that its first line names, or keep the module that it names."""
    first = block.text.partition("\n")[0]
    if name := re.fullmatch(r"# (\w+\.py)", first):
        (folder / name[1]).write_text(block.text)
        return
    framework = first.removeprefix("# with ")
    python = ENVIRONMENTS[framework]
    if not python.exists():
        pytest.skip(f"make oracles runs it, in its environment with {framework}")
    (folder / "program.py").write_text(block.text)
    if python == Path(sys.executable):
        forked = forking.run(["python", "program.py"], folder, {})
        assert forked.code == 0, f"{block.text}\n{forked.out[-1000:]}{forked.err[-3000:]}"
        return
    more = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    ran = subprocess.run(
        [python, "program.py"],
        cwd=folder, env=os.environ | more, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ran.returncode == 0, f"{block.text}\n{ran.stdout[-1000:]}{ran.stderr[-3000:]}"


def run_commands(block: Block, folder: Path) -> None:
    """Run each line that begins with `$`; the lines below it begin what is printed, up to three dots."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, shown = part.partition("\n")
        words = shlex.split(line)
        assert words[0] == "paramtool", line
        ran = quick(*words[1:], cwd=folder)
        assert ran.code == 0, (line, ran)
        for expected in filter(None, (text.removesuffix("...").strip() for text in shown.splitlines())):
            assert expected in ran.out + ran.err, (line, expected, ran)


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_is_true(heading: str, tmp_path: Path, forking: Forking) -> None:
    """Its programs and commands run one after the other, in one folder, and compare what they compute."""
    if "samples/" in "".join(block.text for block in SECTIONS[heading]):
        samples = ROOT.parent / "shared" / "samples"
        if not samples.exists():
            pytest.skip("needs the folder of samples")
        (tmp_path / "samples").symlink_to(samples)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    assert any("assert_" in block.text for block in SECTIONS[heading] if block.language == "python")
    for block in SECTIONS[heading]:
        if block.language == "python":
            run_program(block, tmp_path, forking)
        else:
            run_commands(block, tmp_path)
