"""Print the oldest versions that pyproject.toml allows, as requirements: `numpy>=1.23` becomes `numpy==1.23.*`.

The extras are included.  A release that has no wheel for this Python is not found by pip, which says so: the bound in
pyproject.toml is then wrong for it, or the next release has to be named in NEWER.
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

NEWER = {
    "torch": "2.1.2",  # 2.1.0 is built against another NumPy than it names
}


def lowest() -> Iterator[str]:
    """One requirement a line."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    for requirement in every:
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)\s*(;.*)?", requirement)
        if found is None:  # an extra of our own
            continue
        name, version, marker = found.groups()
        exact = NEWER.get(name, version)
        yield f"{name}=={exact}{'' if exact.count('.') > 1 else '.*'} {marker or ''}".rstrip()


if __name__ == "__main__":
    print("\n".join(lowest()))
