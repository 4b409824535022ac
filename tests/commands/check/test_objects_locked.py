"""What `check` says of objects: where they are, and of which types."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from paramtool.lockfile import digests
from tests.hostile.command import quick

W = torch.ones(3)
CASES: dict[str, tuple[object, object, str]] = {
    "a list that became a tuple": (
        {"w": W, "betas": [1, 2]}, {"w": W, "betas": (1, 2)},
        "object 'betas' has another value: was [1, 2], is (1, 2)",
    ),
    "a tuple of one": ({"w": W, "b": [1]}, {"w": W, "b": (1,)}, "object 'b' has another value: was [1], is (1,)"),
    "a set that cannot change": (
        {"w": W, "s": {1}}, {"w": W, "s": frozenset([1])},
        "object 's' has another value: was set([1]), is frozenset([1])",
    ),
    "a complex number": (
        {"w": W, "c": 3 + 4j}, {"w": W, "c": 3 + 5j},
        "object 'c' has another value: was complex(3.0, 4.0), is complex(3.0, 5.0)",
    ),
    "a device": (
        {"w": W, "d": torch.device("cpu")}, {"w": W, "d": torch.device("cuda:1")},
        "object 'd' has another value: was torch.device(string), is torch.device(string, 1)",
    ),
    "a number of NumPy": (
        {"w": W, "n": np.float32(1.5)}, {"w": W, "n": np.float32(2.5)},
        "object 'n' has another value: was numpy._core.multiarray.scalar(1.5), is numpy._core.multiarray.scalar(2.5)",
    ),
    "an ordered mapping": (
        {"w": W, "m": {"a": 1}}, {"w": W, "m": OrderedDict(a=1)},
        "object 'm' has another value: was {a: 1}, is OrderedDict({a: 1})",
    ),
    "a long text": (
        {"w": W, "t": "x" * 70 + "a"}, {"w": W, "t": "x" * 70 + "b"},
        "object 't' has another value: was another string",
    ),
    "a list at the top": ([W], (W,), "object 'at the top' has another value: was [<0>], is (<0>,)"),
    "a list that came": ({"0": W}, [W], "object 'at the top' is not in the lock; it is [<0>]"),
    "a list that went": ([W], {"0": W}, "no objects are there; the lock has 'at the top'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_message(tmp_path: Path, case: str) -> None:
    was, now, said = CASES[case]
    torch.save(was, tmp_path / "a.pt")
    assert quick("lock", "a.pt", cwd=tmp_path).code == 0
    torch.save(now, tmp_path / "a.pt")
    ran = quick("check", "a.pt", "--lock", "paramtool.lock", cwd=tmp_path)
    assert ran.code == 1 and f"PT402 objects-changed: {said}\n" in ran.out, ran


def test_the_value_in_short_is_for_people(tmp_path: Path) -> None:
    """Only its digest is compared, so a lock whose values were written another way stays true."""
    torch.save({"w": W, "betas": (1, 2)}, tmp_path / "a.pt")
    assert quick("lock", "a.pt", cwd=tmp_path).code == 0
    text = (tmp_path / "paramtool.lock").read_text()
    assert '"(1, 2)"' in text
    lines = text.replace('"(1, 2)"', '"[1, 2]"').splitlines(keepends=True)
    edited = "".join(line for line in lines if not line.startswith("lines "))
    first = next(at for at, line in enumerate(lines) if line.startswith("model "))
    body = edited.splitlines()[first:]
    (tmp_path / "paramtool.lock").write_text(edited + f"lines b3:{digests.blake3_of(chr(10).join(body))}\n")
    assert quick("check", "a.pt", "--lock", "paramtool.lock", cwd=tmp_path).code == 0
