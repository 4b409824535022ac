"""The preloaded library itself: every way in which Python and a library written in Rust touch a file is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.commands import COMMANDS
from tests.faults.serving import ROOT, Command, Desk, build, missing

SCRIPT = """
import ctypes, fcntl, io, json, mmap, os, shutil, sys, tempfile
from pathlib import Path
from safetensors import safe_open
libc = ctypes.CDLL(None)
folder, log = sys.argv[1], os.memfd_create("log")
os.chdir(folder)
def seen(deed):
    libc.fault_arm(os.fsencode(folder), log, 0)
    deed()
    libc.fault_disarm()
    lines = os.pread(log, 1 << 20, 0).decode().splitlines()
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)
    return [line.split("\\t")[1] for line in lines]
def by_number():
    file = os.open("a", os.O_RDWR)
    os.read(file, 1); os.pread(file, 1, 0); os.preadv(file, [bytearray(1)], 0); os.readv(file, [bytearray(1)])
    os.pwrite(file, b"a", 0); os.write(file, b"a"); os.writev(file, [b"a"]); os.ftruncate(file, 9)
    os.posix_fallocate(file, 0, 9); os.fsync(file); os.fdatasync(file); os.fchmod(file, 0o644); fcntl.flock(file, 1)
    os.posix_fadvise(file, 0, 0, 0); os.fstatvfs(file)
    os.close(file)
def ranges():
    with open("a", "rb") as one, open("b", "wb", buffering=0) as other:
        os.copy_file_range(one.fileno(), other.fileno(), 4)
        os.sendfile(other.fileno(), one.fileno(), 0, 4)
def files():
    with io.FileIO("a") as file:
        file.read()
    with open("a", "rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).close()
    with open("b", "w") as file:
        file.write("b")
def names():
    os.mkdir("d"); os.link("a", "d/l"); os.symlink("a", "d/s"); os.rename("b", "c"); os.replace("c", "b")
    os.unlink("b"); libc.renameat2(-100, b"a", -100, b"d/l", 2); os.chmod("a", 0o600); os.statvfs("."); os.utime("a")
print(json.dumps([seen(deed) for deed in (
    by_number, ranges, files, names, lambda: shutil.rmtree("d"), lambda: shutil.copyfile("a", "e"),
    lambda: safe_open("t.safetensors", "np").get_tensor("t"), lambda: open("/dev/null").close(),
)]))
"""
EXPECTED = [
    "create read pread pread read pwrite write write ftruncate fallocate fsync fsync chmod lock fadvise statvfs",
    "open create copy_file_range sendfile",
    "open read read open mmap create write",
    "mkdir link symlink rename rename unlink exchange chmod statvfs utime",
]


def test_every_way_to_touch_a_file_is_counted(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    import numpy as np
    from safetensors.numpy import save_file

    folder = tmp_path / "watched"
    folder.mkdir()
    (folder / "a").write_bytes(b"abcdefgh")
    save_file({"t": np.ones(4, "f4")}, folder / "t.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": str(build(tmp_path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *found, removing, copying, tensors, elsewhere = json.loads(done.stdout)
    assert [" ".join(names) for names in found] == EXPECTED
    assert {"open", "unlink", "rmdir"} <= set(removing)
    assert {"open", "create"} <= set(copying) and {"sendfile", "copy_file_range"} & set(copying)
    assert {"open", "mmap"} <= set(tensors)
    assert elsewhere == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_commands_are_seen(desk: Desk, command: Command) -> None:
    """No test of faults is empty."""
    names = {call.name for call in desk.case(command).calls}
    assert names >= ({"open", "read", "write", "create", "fsync"} if command.output else {"open", "read"})
