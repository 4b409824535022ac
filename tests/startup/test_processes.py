"""Reading a checkpoint starts no program: libraries on the way there are kept from it.

HDF5 is read in a process of its own (`formats/sandbox.py`), which is this Python and nothing else.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.makers import CASES, Case

FIXTURES = Path(__file__).parents[2] / "fixtures"
CODE = {".py", ".md", ".json", ".pyc"}
SUFFIXES = {
    ".pt", ".ckpt", ".params", ".npz", ".npy", ".onnx", ".h5", ".keras", ".jld2", ".bson", ".index", ".pkl",
    ".pdparams", ".msgpack",
}  # fmt: skip
FILES = sorted(path for path in FIXTURES.rglob("*") if path.suffix in SUFFIXES)
HOOK = """
import json, sys
started = []
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
          "os.startfile", "pty.spawn", "_winapi.CreateProcess"}
def hook(event, args):
    ours = event == "subprocess.Popen" and args[0] == sys.executable and "sandbox.keep(" in args[1][-1]
    if event in STARTS and not ours:
        started.append([event, repr(args)[:200]])
sys.addaudithook(hook)
"""
"""Python's audit events of starting a process: the table of audit events in Python 3.13's documentation."""
READ = (
    HOOK
    + """
import paramtool
from paramtool.errors import ParamtoolError
refused = ""
try:
    paramtool.inspect(sys.argv[1], digest=True)
    paramtool.load_file(sys.argv[1])
    paramtool.dedup(sys.argv[1], sys.argv[2], skip_unsupported=True, allow_unknown=True)
except ParamtoolError as error:
    refused = str(error)
print(json.dumps({"started": started, "refused": refused}))
"""
)


def ran(script: str, *args: object) -> dict[str, Any]:
    """What a script in a process of its own printed."""
    done = subprocess.run([sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_file_of_the_fixtures_is_read() -> None:
    """A fixture of a new suffix is added above, or is none of a checkpoint."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file() and path.parent.name != "foreign"]
    others = {path.suffix.partition("-")[0] for path in files} - SUFFIXES - CODE
    assert others == {".bin", ".data", ".pb"}, (
        "external data of ONNX, data of TensorFlow's bundles, and their SavedModel"
    )


def test_the_hook_sees_a_process() -> None:
    """The check can fail."""
    script = f"{HOOK}\nimport subprocess\nsubprocess.run([sys.executable, '-c', ''])\nprint(json.dumps([started]))"
    assert ran(script) != [[]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_fixtures_start_no_process(path: Path, tmp_path: Path) -> None:
    """Describing, comparing, loading and writing each file that the fixtures have."""
    assert ran(READ, path, tmp_path / "out.safetensors") == {"started": [], "refused": ""}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format} {case.name}")
def test_formats_start_no_process(case: Case, tmp_path: Path) -> None:
    """The same of each form of each format."""
    folder = tmp_path / "in"
    folder.mkdir()
    found = ran(READ, case.make(folder), tmp_path / "out" if case.format == "sharded" else tmp_path / "out.safetensors")
    assert found["started"] == []


def test_the_process_of_its_own_starts_none() -> None:
    """What is imported there; and what keeps an import from asking for the processor is gone afterwards."""
    script = f"""{HOOK}
import platform
import paramtool.formats.hdf5._worker
print(json.dumps({{"started": list(started), "processor": platform.processor()}}))
"""
    assert ran(script) == {"started": [], "processor": platform.processor()}


def test_h5py_is_imported_there_alone() -> None:
    """What a damaged file does to libhdf5 is not done to this process."""
    read = "import json, sys, paramtool; paramtool.load_file(sys.argv[1])"
    script = f"{read}; print(json.dumps({{'h5py': 'h5py' in sys.modules}}))"
    for path in (path for path in FILES if path.suffix in (".h5", ".keras", ".jld2")):
        assert ran(script, path) == {"h5py": False}
