"""What `check` says of objects: where they are, and of which types."""

from __future__ import annotations

from pathlib import Path

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
