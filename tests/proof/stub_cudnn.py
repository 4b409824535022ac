"""`stub_cudnn.c` as shared libraries, where there is a compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


def compiled(folder: Path, *flags: str, source: Path = SOURCE) -> Path:
    """A library in that folder; the test is skipped where nothing can make one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler called cc")
    output = folder / "libcudnn.so.9"
    words = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, source, "-o", output]
    subprocess.run(words, check=True)
    return output
