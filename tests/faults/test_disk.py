"""A disk that is full, and a file that shrinks while it is read, as they are: no library stands between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.lockfile.write import FIRST_LINE
from tests.examples import IS_HARD
from tests.faults.judging import BAD_WORDS
from tests.faults.serving import ROOT
from tests.patience import PATIENCE

MIB = 1 << 20
IN_A_SMALL_DISK = """
mount -t tmpfs -o size=$1 none "$0" || exit 99
shift
"$@"
code=$?
ls -A "$0" >"$LEFT"
exit $code
"""
"""A mount of its own that ends with the process: nothing has to be taken down."""


def _no_mounts() -> str:
    """Why no disk can be made here; empty where one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux mounts a small disk"
    with tempfile.TemporaryDirectory() as place:
        words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", place]
        if not shutil.which("unshare") or subprocess.run(words, capture_output=True).returncode:
            return "nothing may be mounted here"
    return ""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one layer of an LSTM whose matrices have more than 64 MiB, in three layouts."""
    folder = tmp_path_factory.mktemp("network")
    many, width = 4 * 2080, 2080
    tensors = {
        "rnn.weight_ih_l0": np.random.default_rng(1).random((many, width), "f4"),
        "rnn.weight_hh_l0": np.ones((many, 2080), "f4"),
        "rnn.bias_ih_l0": np.zeros(many, "f4"),
        "rnn.bias_hh_l0": np.zeros(many, "f4"),
    }
    save_file(tensors, folder / "lstm.safetensors")
    for words in (
        ("fuse", "lstm.safetensors", "--layout", "cudnn", "-o", "fused.safetensors"),
        ("convert", "lstm.safetensors", "--from", "torch", "--to", "keras", "-o", "keras.safetensors"),
    ):
        command = [sys.executable, "-m", "paramtool", *words, "--no-verify"]
        assert subprocess.run(command, cwd=folder, env=_environment(), capture_output=True).returncode == 0
    return folder


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


CONVERSIONS = (
    ("convert", "lstm.safetensors", "--from", "torch", "--to", "keras"),
    ("fuse", "keras.safetensors", "--from", "keras", "--layout", "cudnn"),
    ("unfuse", "fused.safetensors", "--to", "keras"),
)
"""Each turns matrices, so that no target is a run of bytes."""
FULL = (30, 90) if not IS_HARD else (10, 30, 60, 70, 90, 120, 130)
"""MiB; the output has 132."""


BLIND = (
    "import os, sys\n"
    "found = os.statvfs\n"
    "os.statvfs = lambda path: os.statvfs_result([4096, 4096, *[1 << 30] * 6, *found(path)[8:]])\n"
    "sys.argv = ['paramtool', *sys.argv[1:]]\n"
    "from paramtool.cli.main import main\n"
    "main()\n"
)
"""The command, with a disk that says that it has room."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("old", [False, True], ids=["new", "over an old one"])
@pytest.mark.parametrize("words", [("lock",), ("check", "--config", "rules.toml")], ids=lambda words: words[0])
def test_the_disk_is_full_while_a_lock_or_a_report_is_written(tmp_path: Path, words: Sequence[str], old: bool) -> None:
    """Exit 7 with the output's name; no half of a text is left, and an old one is as it was."""
    if reason := _no_mounts():
        pytest.skip(reason)
    save_file({f"t{k:05}": np.zeros(1, "f4") for k in range(4000)}, tmp_path / "m.safetensors")
    (tmp_path / "rules.toml").write_text('dtype = {"*" = "int8"}')
    place, left = tmp_path / "disk", tmp_path / "left"
    place.mkdir()
    name = {"lock": "out.lock", "check": "out.json"}[words[0]]
    before = {"lock": f"{FIRST_LINE}\n", "check": '{"schema": "paramtool.check/1"}\n'}[words[0]]
    (tmp_path / "old").write_text(before)
    begin = f"cp old {place}/{name} && " if old else ""
    command = f'{begin}"$0" "$@" ; code=$? ; test -e {place}/{name} && cat {place}/{name} ; exit $code'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_SMALL_DISK, str(place), "200k",
         "sh", "-c", command, sys.executable, "-c", BLIND, *words[:1], "m.safetensors", *words[1:],
         "-o", f"{place}/{name}", *(["--force"] if old else [])],
        cwd=tmp_path, env={**_environment(), "LEFT": str(left)}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 7, done
    assert name in done.stderr and "No space left on device" in done.stderr, done
    assert not any(word in done.stderr for word in BAD_WORDS), done
    assert done.stdout.endswith(before) if old else True
    assert left.read_text() == (f"{name}\n" if old else ""), "something was left on the disk"


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", FULL)
@pytest.mark.parametrize("words", CONVERSIONS, ids=lambda words: words[0])
def test_the_disk_is_full_in_the_middle(network: Path, tmp_path: Path, words: Sequence[str], size: int) -> None:
    """Exit 7 with the output's name, and nothing left.  That the space is looked at before is not enough: it lies."""
    if reason := _no_mounts():
        pytest.skip(reason)
    place = tmp_path / "disk"
    place.mkdir()
    left = tmp_path / "left"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_SMALL_DISK, str(place), f"{size}m",
         sys.executable, "-c", BLIND, *words, "-o", f"{place}/out.safetensors"],
        cwd=network, env={**_environment(), "LEFT": str(left)}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 7, done
    assert f"{place}/out.safetensors" in done.stderr and "No space left on device" in done.stderr, done
    assert not any(word in done.stderr for word in BAD_WORDS), done
    assert left.read_text() == "", "something was left on the disk"


@pytest.mark.sample(2)
@pytest.mark.parametrize("seconds", (0.1,) if not IS_HARD else (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5))
@pytest.mark.parametrize(
    "words",
    (
        ("verify", "shrinking.safetensors", "--against", "lstm.safetensors"),
        ("verify", "lstm.safetensors", "--against", "shrinking.safetensors"),
        ("dedup", "shrinking.safetensors", "-o", "out.safetensors"),
        ("lock", "shrinking.safetensors", "-o", "out.safetensors"),
        ("convert", "shrinking.safetensors", "--from", "torch", "--to", "keras", "-o", "out.safetensors"),
    ),
    ids=lambda words: f"{words[0]}-{words[1].split('.')[0]}",
)
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="which files are open is asked of /proc")
def test_a_file_shrinks_while_it_is_read(network: Path, tmp_path: Path, words: Sequence[str], seconds: float) -> None:
    """So long after it was opened: exit 3 and its name, unless it was too late to matter; no signal of the kernel's."""
    os.link(network / "lstm.safetensors", tmp_path / "lstm.safetensors")
    shutil.copyfile(network / "lstm.safetensors", tmp_path / "shrinking.safetensors")
    with subprocess.Popen(
        [sys.executable, "-m", "paramtool", *words], cwd=tmp_path, env=_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            while process.poll() is None and not _has_open(process.pid, "shrinking.safetensors"):
                time.sleep(0.001)
            time.sleep(seconds)
            os.truncate(tmp_path / "shrinking.safetensors", 0)
            _, err = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            raise
    assert process.returncode in (0, 3), (process.returncode, err)
    assert process.returncode == 0 or "shrinking.safetensors" in err, err
    assert not any(word in err for word in BAD_WORDS), err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    if process.returncode:
        assert not (tmp_path / "out.safetensors").exists()


def _has_open(pid: int, name: str) -> bool:
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}").endswith(name):
                return True
    return False
