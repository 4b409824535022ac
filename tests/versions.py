"""Tests whose judge is a library of some version or newer: `make lowest` runs with older ones, or without some."""

from __future__ import annotations

import re
from importlib import metadata

import pytest


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version.

    >>> release("2.13.0+cpu") > release("2.9")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def exporting() -> dict[str, bool]:
    """What tells `torch.onnx.export` to trace, as it did before it had `dynamo`: torch 2.5 added it."""
    return {"dynamo": False} if release(metadata.version("torch")) >= (2, 5) else {}


def needs(library: str, version: str, why: str) -> pytest.MarkDecorator:
    """Skips a test where the library is older, or not there; `why` says what of it the test uses."""
    try:
        found = metadata.version(library)
    except metadata.PackageNotFoundError:
        return pytest.mark.skip(reason=f"needs {library} {version}: {why}")
    return pytest.mark.skipif(
        release(found) < release(version), reason=f"needs {library} {version}: {why}; {found} is installed"
    )
