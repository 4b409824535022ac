"""Doubts about layers as frameworks number them: torch's Sequential, Flax, Keras, names that end with a number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import Diffed, diff

STYLES = {
    "dots": "enc.{k}.k",
    "flax": "params/Dense_{k}/kernel",
    "torch": "layer{k}.weight",
    "underscores": "x_{k}/k",
    "keras": "layers/{dense}/vars/0",
}
RANDOM = np.random.default_rng(3)
A = {f"net.{2 * k}.weight": RANDOM.normal(size=(16, 16)).astype("f4") for k in range(4)}


def named(style: str, tensors: list[np.ndarray]) -> dict[str, np.ndarray]:
    names = [STYLES[style].format(k=k, dense=f"dense_{k}" if k else "dense") for k in range(len(tensors))]
    return dict(zip(names, tensors, strict=True))


def compared(place: Path, b: dict[str, np.ndarray]) -> tuple[Diffed, Diffed]:
    for side, tensors in (("a", A), ("b", b)):
        save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, place / f"{side}.safetensors")
    a, other = place / "a.safetensors", place / "b.safetensors"
    return diff(a, other), diff(other, a)


@pytest.mark.parametrize("style", STYLES)
def test_layers_in_their_order_give_no_warning(style: str, tmp_path: Path) -> None:
    for turned in (False, True):
        for found in compared(tmp_path, named(style, [one.T if turned else one for one in A.values()])):
            assert found.is_same and not found.notes, found.notes


@pytest.mark.parametrize("style", STYLES)
def test_two_layers_exchanged(style: str, tmp_path: Path) -> None:
    one, two, three, four = A.values()
    for found in compared(tmp_path, named(style, [one, three, two, four])):
        (doubt,) = found.doubts
        assert not found.is_same and doubt.startswith("2 tensors are in the place of another one"), doubt


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("wrong", ["a transpose forgotten", "negated"])
def test_one_layer_by_another_map(style: str, wrong: str, tmp_path: Path) -> None:
    tensors = [one.T for one in A.values()]
    tensors[2] = tensors[2].T if wrong == "a transpose forgotten" else -tensors[2]
    forward, back = compared(tmp_path, named(style, tensors))
    for found, names in ((forward, [*named(style, tensors)]), (back, [*A])):
        (doubt,) = found.doubts
        assert not found.is_same and doubt.startswith("1 tensor is the same by another map"), doubt
        assert doubt.endswith(f"{names[2]!r}"), doubt


def test_a_sequence_of_other_layers_gives_no_warning(tmp_path: Path) -> None:
    """A table that stays, and kernels that are transposed, in one Sequential."""
    a = {"embedding/vars/0": RANDOM.normal(size=(20, 16)).astype("f4")}
    a |= {f"dense{end}/vars/0": RANDOM.normal(size=(16, 8)).astype("f4") for end in ("", "_1")}
    b = {f"{2 * k}.weight": one.T if k else one for k, one in enumerate(a.values())}
    for side, tensors in (("a", a), ("b", b)):
        save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, tmp_path / f"{side}.safetensors")
    paths = [tmp_path / f"{side}.safetensors" for side in "ab"]
    for found in (diff(*paths), diff(*reversed(paths))):
        assert found.is_same and not found.notes, found.notes


def test_parts_of_a_fused_tensor_exchanged(tmp_path: Path) -> None:
    """Queries and keys in each other's places, beside values that a layout explains."""
    q, k, v = (RANDOM.normal(size=(32, 32)).astype("f4") for _ in range(3))
    save_file({"h.0.attn.qkv_proj.weight": np.concatenate([q, k, v])}, tmp_path / "a.safetensors")
    for parts, expected in (((q, k, v), ""), ((k, q, v), "2 parts of fused tensors are")):
        names = [f"h.0.attn.{word}_proj.weight" for word in "qkv"]
        save_file(dict(zip(names, parts, strict=True)), tmp_path / "b.safetensors")
        found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
        assert found.is_same == (not expected) and " ".join(found.doubts).startswith(expected)
