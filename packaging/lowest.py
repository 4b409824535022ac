"""Print the oldest versions that pyproject.toml allows, as requirements: `numpy>=1.23` becomes `numpy==1.23`.

The extras are included.  A release that has no wheel for this Python is not found by pip, which says so: the bound in
pyproject.toml is then wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def lowest() -> Iterator[str]:
    """One requirement a line."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    for requirement in every:
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)\s*(;.*)?", requirement)
        if found is None:  # an extra of our own
            continue
        name, version, marker = found.groups()
        yield f"{name}=={version} {marker or ''}".rstrip()


if __name__ == "__main__":
    print("\n".join(lowest()))
