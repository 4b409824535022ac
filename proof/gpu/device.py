"""The GPU, the libraries that torch uses on it, and arithmetic that rounds no more than its types require."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paramtool.errors import UsageError
from proof.cudnn.library import Library, as_text

MAPS = "/proc/self/maps"
"""The file in which Linux lists the libraries that a process has loaded."""
LIBRARIES = (r"libcudnn\.so[\d.]*", r"libtorch_cuda\.so")
"""cuDNN, and the library that contains it in builds of torch that link it statically."""


def require_gpu() -> None:
    """UsageError if torch has no CUDA GPU with cuDNN."""
    built = f"torch {torch.__version__}"
    if torch.version.cuda is None:
        raise UsageError(f"no CUDA GPU: {built} was built without CUDA", hint=ALONE)
    if not torch.cuda.is_available():
        raise UsageError(f"no CUDA GPU: {built} finds none", hint=ALONE)
    if not _cudnn_version():
        raise UsageError(f"no cuDNN: {built} was built without it", hint=ALONE)


ALONE = "--library libcudnn.so.9 asks only cuDNN, without a GPU; docs/gpu.md shows how to run everything on a GPU"


def machine() -> dict[str, str]:
    """The versions of the libraries, and the device."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda or "",
        "cudnn": as_text(_cudnn_version()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _cudnn_version() -> int:
    """The version number of the cuDNN that torch uses; 0 if it has none."""
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch has no types there
    return version or 0


def _driver() -> str:
    """The version of the driver, from nvidia-smi; empty if that is not installed."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def libcudnn(maps: str | None = None) -> str:
    """The file of the cuDNN that torch has loaded; UsageError if it is not found.

    >>> libcudnn("7f00-7f01 r-xp 0 08:01 1   /opt/lib/libcudnn_graph.so.9" + chr(10) + "7f02 /opt/lib/libcudnn.so.9")
    '/opt/lib/libcudnn.so.9'
    """
    if maps is None:
        _cudnn_version()  # loads it
        if not os.path.exists(MAPS):
            raise UsageError(f"{MAPS} does not exist: the cuDNN that torch loaded can only be found on Linux")
        with open(MAPS, encoding="utf-8", errors="replace") as file:
            maps = file.read()
    for library in LIBRARIES:
        if found := re.search(rf"\s(/.*/{library})$", maps, re.MULTILINE):
            return found.group(1)
    raise UsageError("torch has loaded no libcudnn that can be found")


@contextmanager
def asked_library() -> Iterator[Library]:
    """The cuDNN that torch uses, with a handle for the GPU."""
    space = torch.zeros(1, dtype=torch.uint8, device="cuda")  # also makes a context, which cudnnCreate needs

    def address(nbytes: int) -> int:
        nonlocal space
        if space.numel() < nbytes:
            space = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return space.data_ptr()

    library = Library(ctypes.CDLL(libcudnn()), space=address)
    wanted = as_text(_cudnn_version())
    try:
        if library.version != wanted:
            raise UsageError(f"{libcudnn()} is cuDNN {library.version}; torch uses {wanted}")
        yield library
    finally:
        library.close()


@contextmanager
def without_tf32() -> Iterator[None]:
    """Switch TF32 off, in which products of float32 have only ten bits of mantissa."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
