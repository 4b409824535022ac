"""Build what a release has, into dist/, and try each in an environment that has nothing else.

*.whl, *.tar.gz   by `python -m build`
paramtool.pyz     one file for any Python from 3.10: `inspect`, `layouts` and others that read no tensor
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
import zipapp
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIXTURE = ROOT / "fixtures/torch/tied_flattened/tied_flattened.pt"
PURE = ("click", "rich")
"""The requirements in pure Python: they run from a zip archive on every system."""
START = """import sys

if sys.version_info < (3, 10):
    sys.stderr.write("error: paramtool needs Python 3.10 or later; this is Python %s\\n" % sys.version.split()[0])
    sys.exit(2)

from paramtool.__main__ import run

run()
"""
"""An older Python reads this far: it must not be written for newer ones."""


def main() -> None:
    """Build, then try; the exit status is that of the first step that fails."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    output: Path = arguments.parse_args().output
    shutil.rmtree(output, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", output, ROOT)
    archive = single_file(output)
    for package in (*output.glob("*.whl"), *output.glob("*.tar.gz")):
        try_package(package)
    try_archive(archive)
    for path in sorted(output.iterdir()):
        print(f"{path.name}  {path.stat().st_size / 1e6:.2f} MB")


def single_file(output: Path) -> Path:
    """The package and its requirements in pure Python, as one file that Python runs."""
    archive = output / "paramtool.pyz"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", place, *PURE)
        shutil.copytree(ROOT / "paramtool", place / "paramtool")
        shutil.rmtree(place / "bin", ignore_errors=True)
        for cache in place.rglob("__pycache__"):
            shutil.rmtree(cache)
        (place / "__main__.py").write_text(START, encoding="utf-8")
        zipapp.create_archive(place, archive, interpreter="/usr/bin/env python3", compressed=True)
    return archive


def try_package(package: Path) -> None:
    """Install it where nothing else is, and inspect, dedup and verify a checkpoint without torch."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python, small = place / "venv/bin/python", place / "small.safetensors"
        run(python, "-m", "pip", "install", "--quiet", package)
        command = place / "venv/bin/paramtool"
        run(command, "inspect", FIXTURE, quiet=True)
        run(command, "dedup", FIXTURE, "-o", small, quiet=True)
        run(command, "verify", small, "--against", FIXTURE, quiet=True)
        run(place / "venv/bin/hf-paramtool", "inspect", FIXTURE, quiet=True)
        run(python, "-c", "import importlib.util; assert importlib.util.find_spec('torch') is None")


def try_archive(archive: Path) -> None:
    """Run it by a Python that sees no installed package."""
    for words in (
        ("inspect", FIXTURE),
        ("inspect", FIXTURE, "--json"),
        ("layouts", "qkv"),
        ("layouts",),
        ("--version",),
    ):
        run(sys.executable, "-I", "-S", archive, *words, quiet=True)
    refused = subprocess.run([sys.executable, "-I", "-S", archive, "inspect", FIXTURE, "--digest"], capture_output=True)
    assert refused.returncode == 2 and b"needs the package" in refused.stderr, refused


def run(*words: object, quiet: bool = False) -> None:
    """Run a command; what it prints is shown only where it fails, if `quiet`."""
    command: Sequence[str] = [str(word) for word in words]
    done = subprocess.run(command, check=False, capture_output=quiet, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout or ''}{done.stderr or ''}")


if __name__ == "__main__":
    main()
