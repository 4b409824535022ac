"""The work of every command grows with the number of tensors, not with its square.

Steps are calls of functions, those of C included, so that a busy machine changes nothing.  From n to 4n tensors linear
work grows by the exponent 1, and quadratic work by 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from types import FrameType

import pytest
import torch
from click.testing import CliRunner

from paramtool.cli.main import cli
from paramtool.passes.config_ties.declared import ties

MOST = 1.2
"""An exponent that no linear work has, and that a quadratic part of half the work exceeds."""


def nested(count: int) -> dict[str, object]:
    """Many sections: each a dict of two tensors."""
    return {f"part{k}": {"w": torch.rand(2), "b": torch.rand(1)} for k in range(count // 2)}


def adam(count: int) -> dict[str, object]:
    """The state of an optimizer beside its model: three tensors for each weight."""
    weights = [torch.nn.Parameter(torch.rand(2)) for _ in range(count // 4)]
    optimizer = torch.optim.Adam(weights)
    for weight in weights:
        weight.grad = torch.ones(2)
    optimizer.step()
    return {"model": {f"w{k}": w.detach() for k, w in enumerate(weights)}, "state": optimizer.state_dict()["state"]}


def tied(count: int) -> dict[str, object]:
    """Every other name shares its tensor with the one before it."""
    state: dict[str, object] = {}
    for k in range(count // 2):
        state[f"a.{k}"] = state[f"b.{k}"] = torch.rand(4)
    return state


def sliced(count: int) -> dict[str, object]:
    """One tensor, and slices of it."""
    whole = torch.rand(4 * count)
    return {"whole": whole} | {f"part.{k}": whole[4 * k : 4 * k + 4] for k in range(count)}


def fused(count: int) -> dict[str, object]:
    """One buffer and many windows that do not meet."""
    buffer = torch.rand(4 * count)
    return {f"part.{k}": buffer[4 * k : 4 * k + 4] for k in range(count)}


def run(*words: str) -> None:
    """One command, in this process."""
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert not result.return_value and not result.exit_code, result.output[-2000:]


def steps(work: Callable[[], object]) -> int:
    """How many calls some work makes; it was done once before, so that nothing is imported or cached now."""
    found = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal found
        found += event != "return"

    work()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def exponent(work: Callable[[int], object], few: int) -> float:
    """By what power of the number of tensors the steps grow."""
    return log(steps(lambda: work(4 * few)) / steps(lambda: work(few)), 4)


@pytest.mark.sample(2)
@pytest.mark.parametrize("flag", [(), ("--digest",)], ids=["json", "digest"])
@pytest.mark.parametrize("make", [nested, adam])
def test_documents_of_many_sections(
    tmp_path: Path, make: Callable[[int], dict[str, object]], flag: tuple[str, ...]
) -> None:
    def work(count: int) -> None:
        run("inspect", "--json", *flag, str(path[count]))

    path = {count: tmp_path / f"{count}.pt" for count in (200, 800)}
    for count, place in path.items():
        torch.save(make(count), place)
    assert exponent(work, 200) < MOST


NAMES: dict[str, Callable[[int], object]] = {
    "heads": lambda count: ties(name for k in range(count) for name in (f"m{k}.lm_head.weight", f"m{k}.wte.weight")),
    "heads in heads": lambda count: ties(
        name for k in range(count) for name in (f"a.{k}.lm_head.weight", f"b.{k}.wte.weight")
    ),
}
"""Work on lists of names, without a file."""


@pytest.mark.parametrize("key", NAMES)
def test_names(key: str) -> None:
    assert exponent(NAMES[key], 500) < MOST


COMMANDS = {
    "inspect": ("inspect", "--tensors", "{pt}"),
    "dry-run": ("dedup", "{pt}", "--dry-run"),
    "dedup": ("dedup", "{pt}", "-o", "{here}/again.safetensors", "--force"),
    "torch": ("dedup", "{pt}", "-o", "{here}/again.pt", "--force"),
    "shards": ("dedup", "{pt}", "-o", "{here}/folder", "--max-shard-size", "1KB", "--force"),
    "verify": ("verify", "{out}", "--against", "{pt}"),
    "export": ("export", "{out}", "--all-names", "-o", "{here}/plain.safetensors", "--force"),
    "like": ("export", "{out}", "--like", "{pt}", "-o", "{here}/like.safetensors", "--force"),
    "variants": ("variants", "{out}", "--against", "{pt}"),
    "family": ("dedup", "{pt}", "{out}", "-o", "{here}/family", "--force"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("make", [nested, tied, sliced, fused])
def test_commands(tmp_path: Path, make: Callable[[int], dict[str, object]], command: str) -> None:
    def work(count: int) -> None:
        here = tmp_path / str(count)
        places = {"pt": here / "model.pt", "out": here / "other.safetensors", "here": here}
        run(*(word.format(**places) for word in COMMANDS[command]))

    for count in (40, 160):
        here = tmp_path / str(count)
        here.mkdir()
        torch.save(make(count), here / "model.pt")
        run("dedup", str(here / "model.pt"), "-o", str(here / "other.safetensors"))
    assert exponent(work, 40) < MOST
