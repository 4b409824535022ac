"""`find_base`: what all models have in common does not make one the base of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from paramtool.commands.diff.find_base import find_base


def model(path: Path, seed: int, *, matrices: bool = True) -> Path:
    """A fresh model: norms of ones, and small matrices."""
    random = np.random.default_rng(seed)
    tensors = {f"norm.{k}.weight": np.ones(256, "f4") for k in range(8)}
    tensors["bias"] = random.normal(size=64).astype("f4")
    if matrices:
        tensors |= {f"h.{k}.weight": random.normal(size=(8, 16)).astype("f4") / 50 for k in range(4)}
    save_file(tensors, path)
    return path


def test_norms_of_ones_show_nothing(tmp_path: Path) -> None:
    """Two models of other seeds are as far apart as their matrices."""
    tuned, other = model(tmp_path / "tuned.safetensors", 1), model(tmp_path / "other.safetensors", 2)
    (found,) = find_base(tuned, [other]).candidates
    assert found.distance > 1 and found.sampled == 4 and not find_base(tuned, [other]).base


def test_vectors_count_where_there_is_no_matrix(tmp_path: Path) -> None:
    tuned, other = (model(tmp_path / f"{seed}.safetensors", seed, matrices=False) for seed in (1, 2))
    (found,) = find_base(tuned, [other]).candidates
    assert found.sampled == 9 and found.same == 8


def test_two_that_are_as_near_are_named(tmp_path: Path) -> None:
    """A base and its copy: neither is clearly the base, and the answer says which two."""
    tuned, one, two = (model(tmp_path / f"{name}.safetensors", 1) for name in ("tuned", "one", "two"))
    found = find_base(tuned, [model(tmp_path / "other.safetensors", 2), one, two])
    assert not found.base and found.answer.endswith(f"{str(one)!r} and {str(two)!r} are about as near")
    assert find_base(tuned, [one]).answer == str(one)
