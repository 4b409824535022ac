"""Files that come with the package, also where it runs from a zip archive (`make dist` builds one)."""

from __future__ import annotations

import os
import sys
from typing import Protocol, cast


class _DataLoader(Protocol):
    def get_data(self, path: str) -> bytes: ...


def package_data(*path: str) -> bytes:
    """The bytes of a file of the package, by its path in it: `package_data("parts", "proofs.json")`."""
    package = sys.modules[__package__]
    loader = cast(_DataLoader, package.__spec__.loader)  # type: ignore[union-attr]  # a package that was imported has one
    return loader.get_data(os.path.join(os.path.dirname(os.path.abspath(__file__)), *path))
