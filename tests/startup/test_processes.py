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

from tests.contracts.makers import CASES
from tests.versions import needs

FIXTURES = Path(__file__).parents[2] / "fixtures"
CODE = {".py", ".md", ".json", ".pyc"}
SUFFIXES = {
    ".pt", ".ckpt", ".params", ".npz", ".npy", ".onnx", ".h5", ".keras", ".jld2", ".bson", ".index", ".pkl",
    ".pdparams", ".msgpack", ".states",
}  # fmt: skip
FOLDERS = sorted(path for kind in ("dcp", "deepspeed") for path in FIXTURES.glob(f"{kind}/*/*") if path.is_dir())
"""Folders of torch.distributed.checkpoint and of DeepSpeed, which are read as a whole."""
FILES = sorted(path for path in FIXTURES.rglob("*") if path.suffix in SUFFIXES and not {*FOLDERS} & {*path.parents})
EVERY = [*FILES, *FOLDERS]
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
found = {}
for path, output in json.load(sys.stdin):
    started.clear()
    refused = ""
    try:
        paramtool.inspect(path, digest=True)
        paramtool.load_file(path)
        paramtool.dedup(path, output, skip_unsupported=True, allow_unknown=True)
    except ParamtoolError as error:
        refused = str(error)
    found[path] = {"started": list(started), "refused": refused}
print(json.dumps(found))
"""
)
"""Describe, compare, load and write each of the files that are given, with an output for each."""


def ran(script: str, *args: object, given: object = None) -> dict[str, Any]:
    """What a script in a process of its own printed."""
    line = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(line, capture_output=True, text=True, input=json.dumps(given))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_file_of_the_fixtures_is_read() -> None:
    """A fixture of a new suffix is added above, or is none of a checkpoint."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file() and path.parent.name != "foreign"]
    files = [path for path in files if not {*FOLDERS} & {*path.parents}]
    others = {path.suffix.partition("-")[0] for path in files} - SUFFIXES - CODE
    assert others == {".bin", ".data", ".pb"}, (
        "external data of ONNX, data of TensorFlow's bundles, and their SavedModel"
    )


def test_the_hook_sees_a_process() -> None:
    """The check can fail."""
    script = f"{HOOK}\nimport subprocess\nsubprocess.run([sys.executable, '-c', ''])\nprint(json.dumps([started]))"
    assert ran(script) != [[]]


@pytest.mark.slow
def test_fixtures_start_no_process(tmp_path: Path) -> None:
    """Describing, comparing, loading and writing each file that the fixtures have, in one process."""
    found = ran(READ, given=[(str(path), str(tmp_path / f"{k}.safetensors")) for k, path in enumerate(EVERY)])
    assert list(found) == list(map(str, EVERY))
    assert {path: one for path, one in found.items() if one != {"started": [], "refused": ""}} == {}


@needs("torch", "2.3", "torch.distributed.checkpoint.save without ranks")
def test_formats_start_no_process(tmp_path: Path) -> None:
    """The same of each form of each format."""
    pairs = []
    for k, case in enumerate(CASES):
        (folder := tmp_path / f"{k}").mkdir()
        output = tmp_path / (f"out{k}" if case.format == "sharded" else f"out{k}.safetensors")
        pairs.append((str(case.make(folder)), str(output)))
    found = ran(READ, given=pairs)
    assert len(found) == len(CASES)
    assert {path: one for path, one in found.items() if one["started"]} == {}


def test_the_process_of_its_own_starts_none() -> None:
    """What is imported there; and what keeps an import from asking for the processor is gone afterwards."""
    script = f"""{HOOK}
import platform
import paramtool.formats.hdf5._worker
print(json.dumps({{"started": list(started), "processor": platform.processor()}}))
"""
    assert ran(script) == {"started": [], "processor": platform.processor()}


@pytest.mark.slow
def test_h5py_is_imported_there_alone() -> None:
    """What a damaged file does to libhdf5 is not done to this process."""
    read = "import json, sys, paramtool; paramtool.load_file(sys.argv[1])"
    script = f"{read}; print(json.dumps({{'h5py': 'h5py' in sys.modules}}))"
    for path in (path for path in FILES if path.suffix in (".h5", ".keras", ".jld2")):
        assert ran(script, path) == {"h5py": False}
