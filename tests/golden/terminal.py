"""What terminals of 80, 100 and 160 columns show, as files for reviews: `python -m tests.golden.terminal` writes them.

The checkpoints are fixtures of the repository.  Times, and what depends on the file system, are left out.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramtool.cli.main import COMMANDS
from tests.hostile.command import Ran, quick

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = Path(__file__).parent / "terminal"
COLUMNS = (80, 100, 160)
FILES = {
    "tied.pt": "torch/tied_flattened/tied_flattened.pt",
    "equal.pt": "torch/content_equal/content_equal.pt",
    "flat.pt": "guess/torch_flat.pt",
    "seq2seq.pt": "guess/torch_seq2seq.pt",
    "keras.h5": "guess/keras_lstm.weights.h5",
    "cells.params": "guess/mxnet1_lstm.params",
}
"""{name on the command line: fixture}."""
REPORTS = (
    "inspect tied.pt",
    "inspect equal.pt --digest",
    "inspect tied.pt --tree",
    "inspect tied.pt --tensors --digest",
    "inspect seq2seq.pt",
    "inspect keras.h5",
    "inspect cells.params",
    "inspect tied.pt --fail-on wrong-dtype:*=float16 --fail-on untied:emb.weight=decoder.weight",
    "inspect tied.pt --quiet --fail-on missing:lm_head.weight",
    "inspect tied.pt seq2seq.pt gone.pt",
    "dedup tied.pt",
    "dedup equal.pt --dry-run",
    "inspect tied.dedup.safetensors",
    "verify tied.dedup.safetensors tied.pt",
    "variants tied.dedup.safetensors --against names.txt --against seq2seq.pt",
    "export tied.dedup.safetensors --names names.txt -o plain.safetensors",
    "fuse tied.pt --layout cudnn",
    "inspect tied.fused.safetensors",
    "unfuse tied.fused.safetensors --dry-run",
    "guess flat.pt",
    "guess seq2seq.pt",
    "layouts",
    "layouts cudnn",
    "layouts cudn",
    "inpsect tied.pt",
    "inspect openai-community/gpt2",
)  # fmt: skip
"""Command lines, one after the other in one folder."""
HELP = ("", "help", *(f"{command} --help" for command in COMMANDS))


class Terminal(io.StringIO):
    """A standard output that somebody sees."""

    def isatty(self) -> bool:
        return True


@contextmanager
def environment(**said: str) -> Iterator[None]:
    """Variables of the environment for a while; nothing else speaks of colour."""
    before = dict(os.environ)
    for key in ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "NO_COLOR", "COLUMNS"):
        os.environ.pop(key, None)
    os.environ.update(said)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def on_terminal(columns: int, *args: object, cwd: Path, **said: str) -> Ran:
    """Run a command in this process; it takes its standard output for a terminal."""
    with environment(**{"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1", **said}):
        return quick(*args, cwd=cwd, out=Terminal())


def place(folder: Path) -> Path:
    """A folder with the files that the command lines name."""
    for name, fixture in FILES.items():
        shutil.copyfile(FIXTURES / fixture, folder / name)
    (folder / "names.txt").write_text("emb.weight\ndecoder.weight\n")
    return folder


def shown(columns: int, lines: tuple[str, ...], folder: Path) -> str:
    """What a terminal shows of command lines."""
    texts = []
    for line in lines:
        ran = on_terminal(columns, *line.split(), cwd=folder)
        text = re.sub(r"\b\d+\.\d s\b", "0.0 s", ran.out + ran.err)
        text = re.sub(r"^on disk .*\n", "", text, flags=re.MULTILINE)
        texts.append(f"$ paramtool {line}".rstrip() + f"\n{text.rstrip()}\n[{ran.code}]\n")
    return "\n".join(texts)


GROUPS = {"reports": REPORTS, "help": HELP}


def main() -> None:
    """Write the files again."""
    FOLDER.mkdir(exist_ok=True)
    for columns in COLUMNS:
        for group, lines in GROUPS.items():
            with tempfile.TemporaryDirectory() as folder:
                text = shown(columns, lines, place(Path(folder)))
            (FOLDER / f"{group}-{columns}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
