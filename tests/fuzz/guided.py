"""Readers fuzzed by atheris, which sees the branches that they take, beside the blind `python -m tests.fuzz`.

    python -m tests.fuzz.guided pickle -max_total_time=300 [CORPUS...]

Each target reads bytes as one reader does.  Its errors are those of a damaged file; anything else is a finding, which
libFuzzer keeps as `crash-*` in the current folder.  atheris is not installed with the tests: `pip install atheris`.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TARGETS = {
    "pickle": ("model.pkl", ("pickle", "torch")),
    "zip": ("model.pt", ("torch",)),
    "protobuf": ("model.onnx", ("onnx",)),
    "safetensors": ("model.safetensors", ("safetensors", "record")),
    "tensorflow": ("model.index", ("tensorflow",)),
    "msgpack": ("model.msgpack", ("msgpack",)),
}
"""{what is fuzzed: (the name of the file, the formats of the seeds)}"""


def target(name: str, folder: Path) -> Callable[[bytes], None]:
    """A function that reads bytes as the reader of a target does, and raises what no reader may raise."""
    from paramtool import formats
    from paramtool.errors import FormatError, UnsafeError
    from paramtool.formats import table

    for row in table.FORMATS:
        if row.name in TARGETS[name][1]:
            importlib.import_module(row.module)
    path = folder / TARGETS[name][0]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(FormatError, UnsafeError):
            formats.read_file(str(path))

    return read


def seeds(name: str, folder: Path) -> None:
    """The seeds of the blind fuzzer, as libFuzzer reads them: a file each."""
    from tests.fuzz.seeds import every

    for k, seed in enumerate(every()):
        if seed.format in TARGETS[name][1] and seed.main in seed.files:
            (folder / f"seed-{k}").write_bytes(seed.files[seed.main])


def main() -> None:
    """Fuzz one target; the other arguments are libFuzzer's."""
    import atheris

    name, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        with atheris.instrument_imports(include=["paramtool"]):  # before anything else imports them
            read = target(name, Path(place))
        (Path(place) / "seeds").mkdir()
        seeds(name, Path(place) / "seeds")
        atheris.Setup([sys.argv[0], *arguments, f"{place}/seeds"], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
