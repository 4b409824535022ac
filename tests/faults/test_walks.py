"""Folders of many files: each file costs the same few system calls, however many there are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults.serving import Command, Desk, Server

MOST = 41
"""Calls for a file that is no model's: it is listed, its beginning says its kind, it is tried as weights if it is
called so, and scanned."""
KINDS: dict[str, Callable[[int], bytes]] = {
    "txt": lambda k: b"%d lines" % k,
    "json": lambda k: json.dumps({"k": k}).encode(),
    "pkl": lambda k: pickle.dumps({"k": k}),
    "bin": lambda k: pickle.dumps([k], 2),
}


def _tree(kind: str, count: int, place: str, folder: Path, server: Server) -> None:
    """A model, and so many other files beside it or below it."""
    save_file({"w": np.zeros(3, np.float32)}, folder / "model.safetensors")
    for k in range(count):
        path = folder / place.format(k // 4) / f"f{k}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(KINDS[kind](k))


@pytest.mark.parametrize("place", ["", "d", "d{0}"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words", [("check", "."), ("inspect", "."), ("lock", ".", "-o", "-")], ids=lambda words: words[0]
)
def test_each_file_costs_the_same_calls(desk: Desk, words: tuple[str, ...], kind: str, place: str) -> None:
    counts = []
    for count in (8, 16, 32):
        make = partial(_tree, kind, count, place)
        case = desk.case(Command(f"walk-{words[0]}-{kind}-{place}-{count}".replace("{0}", "n"), words, "", make))
        counts.append(len(desk.looking(case)))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert second == 2 * first <= 2 * 8 * MOST, counts
