"""Members of enums in torch files; run by any Python that has the libraries, without paramtool and pytest.

python enums.py FOLDER PATH...   FOLDER/NUMBER.pt for each member with a string or a number, of the enums that exist
"""

from __future__ import annotations

import enum
import sys
from importlib import import_module
from pathlib import Path

import torch


def main(folder: Path, paths: list[str]) -> None:
    """Write the files, and print the path of each enum that was found."""
    number = 0
    for path in paths:
        module, _, name = path.rpartition(".")
        try:
            cls = getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
        print(path)
        assert issubclass(cls, enum.Enum), cls
        for member in cls:
            if type(member.value) in (str, int):
                torch.save({"w": torch.zeros(1), "x": member}, folder / f"{number}.pt")
                number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
