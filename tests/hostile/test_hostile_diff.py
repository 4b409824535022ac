"""`diff` of files that mean harm, are damaged, or hold what is rare: only its rows, exit codes and verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import diff
from paramtool.model.diff import CHANGED, LABELS, SAME
from tests.examples import IS_HARD
from tests.findings.samples import HOSTILE
from tests.hostile.command import MAX_LINE, MAX_MESSAGE, quick
from tests.hostile.makers_safetensors import build, item

FIRST_WORDS = {"verdict", "note", "ties", "objects", "metadata", *LABELS.values()}


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


# --- names ------------------------------------------------------------------------------------------------------------


def named(name: str) -> dict[str, dict[str, torch.Tensor]]:
    """Files with a hostile name: one, another number in it, a copy under another name, a tie, one that is rounded."""
    weight = torch.from_numpy(numbers((8, 16)))
    key = name or "empty"
    return {
        "a": {key: weight},
        "changed": {key: weight + 1},
        "renamed": {f"{key}.x": weight},
        "tied": {key: weight, f"{key}2": weight},
        "untied": {key: weight.clone(), f"{key}2": weight.clone()},
        "half": {key: weight.half()},
        "moved": {f"{key}/moved": weight.flip(0)},
        "other": {f"{key}-other": weight * 3},
    }


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_only_text(name: str, tmp_path: Path) -> None:
    """Each line is one of our rows, printable, and no command of a terminal or of a runner; JSON is one document."""
    for key, tensors in named(name).items():
        torch.save(tensors, tmp_path / f"{key}.pt")
    pairs = [("a", other) for other in ("a", "changed", "renamed", "half", "moved", "other")] + [("tied", "untied")]
    forms = [(), ("--rows",), ("--stat",)]
    for k, (a, b) in enumerate(pairs, HOSTILE.index(name)):
        for flags in forms if IS_HARD else [forms[k % 3]]:
            ran = quick("diff", f"{a}.pt", f"{b}.pt", *flags, cwd=tmp_path)
            assert ran.code == 0, ran
            lines = ran.out.splitlines()
            assert ran.out.replace("\n", "").isprintable() and ran.err.replace("\n", "").isprintable(), ran
            assert all(any(line.startswith(f"{word} ") for word in FIRST_WORDS) for line in lines), ran.out
            assert not [line for line in (ran.out + ran.err).split("\n") if line.lstrip().startswith(("::", "##["))]
        ran = quick("diff", f"{a}.pt", f"{b}.pt", "--json", cwd=tmp_path)
        assert ran.out.isascii() or ran.out.replace("\n", "").isprintable()
        assert json.loads(ran.out)["tensors"]
    ran = quick("diff", "--find-base", "a.pt", "changed.pt", "other.pt", cwd=tmp_path)
    assert ran.code == 0 and (ran.out + ran.err).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["::set-env name=PATH::x", "\x1b[2J", "a\nb", "$(touch x)`touch x`"])
def test_names_of_files_and_metadata_are_only_text(name: str, tmp_path: Path) -> None:
    """Those of the files themselves, of what a file says of itself, and of keys of objects."""
    weight = numbers((4, 4))
    save_file({"w": weight}, tmp_path / f"{name}.safetensors", {name: name})
    save_file({"w": weight}, tmp_path / "plain.safetensors", {"k": "v"})
    torch.save({"w": torch.from_numpy(weight), name: name}, tmp_path / "with.pt")
    torch.save({"w": torch.from_numpy(weight), "epoch": 3}, tmp_path / "plain.pt")
    before = sorted(tmp_path.iterdir())
    for a, b in ((f"{name}.safetensors", "plain.safetensors"), ("with.pt", "plain.pt"), ("plain.pt", "with.pt")):
        for first in ((a, b), ("--find-base", a, b)):
            ran = quick("diff", *first, cwd=tmp_path)
            assert ran.code == 0 and (ran.out + ran.err).replace("\n", "").isprintable(), ran
            assert not [line for line in (ran.out + ran.err).split("\n") if line.startswith(("::", "##["))]
    ran = quick("diff", "plain.safetensors", f"{name}-gone", cwd=tmp_path)
    assert ran.code == 3 and ran.err.startswith("error: ") and ran.err.replace("\n", "").isprintable()
    assert sorted(tmp_path.iterdir()) == before


# --- damage -----------------------------------------------------------------------------------------------------------


def written(folder: Path, ending: str) -> Path:
    """A sound file of a format."""
    tensors = {f"h.{k}.w": numbers((8, 16), k) for k in range(3)}
    path = folder / f"good{ending}"
    if ending == ".safetensors":
        save_file(tensors, path)
    elif ending == ".npz":
        np.savez(path, **tensors)
    else:
        torch.save({name: torch.from_numpy(one) for name, one in tensors.items()}, path)
    return path


def refused(folder: Path, *words: str, name: str = "bad") -> None:
    """Exit 3 or 4: one error that names the damaged file, nothing printed."""
    ran = quick("diff", *words, cwd=folder)
    assert ran.code in (3, 4) and not ran.out, ran
    assert (ran.err.count("\nerror: ") + ran.err.startswith("error: ")) == 1 and name in ran.err, ran
    assert len(ran.err) < MAX_MESSAGE and all(len(line) <= MAX_LINE for line in ran.err.splitlines())


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".pt"])
def test_a_file_that_is_cut_anywhere(ending: str, tmp_path: Path) -> None:
    """As the first or the second, and as a base or a candidate; also an empty file."""
    data = written(tmp_path, ending).read_bytes()
    bad, good = f"bad{ending}", f"good{ending}"
    for k in range(12):
        (tmp_path / bad).write_bytes(data[: len(data) * k // 12])
        for words in ((good, bad), (bad, good), ("--find-base", good, bad), ("--find-base", bad, good, good)):
            refused(tmp_path, *words)


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".pt"])
def test_a_byte_that_flips_anywhere(ending: str, tmp_path: Path) -> None:
    """The file is refused, or the tensor whose byte it is differs, or (between tensors) nothing does."""
    data = written(tmp_path, ending).read_bytes()
    told = 0
    for k in range(60):
        at = len(data) * k // 60
        (tmp_path / f"bad{ending}").write_bytes(data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :])
        ran = quick("diff", f"good{ending}", f"bad{ending}", "--exit-code", cwd=tmp_path)
        assert ran.code in (0, 1, 3, 4), ran
        assert (ran.out + ran.err).replace("\n", "").isprintable() and "Traceback" not in ran.err
        assert (ran.code in (3, 4)) == (not ran.out) == ran.err.startswith("error: "), ran
        told += ran.code != 0
    assert told > 30


def test_headers_that_lie(tmp_path: Path) -> None:
    """Tensors that overlap, leave the file, or have more elements than bytes."""
    written(tmp_path, ".safetensors")
    for header in (
        {"h.0.w": item("F32", (8, 16), (0, 512)), "h.1.w": item("F32", (8, 16), (256, 768))},
        {"h.0.w": item("F32", (8, 16), (0, 1 << 40))},
        {"h.0.w": item("F32", (1 << 62,), (0, 512))},
        {"h.0.w": item("F32", (8, -16), (0, 512))},
    ):
        (tmp_path / "bad.safetensors").write_bytes(build(header, bytes(512)))
        refused(tmp_path, "good.safetensors", "bad.safetensors")
        refused(tmp_path, "bad.safetensors", "good.safetensors")


# --- rare tensors -----------------------------------------------------------------------------------------------------

Tensors = tuple[torch.Tensor, torch.Tensor]
BASE = torch.from_numpy(numbers((8, 16)))
INDEX = 5, 7


def with_number(tensor: torch.Tensor, number: float) -> torch.Tensor:
    found = tensor.clone()
    found[INDEX] = number
    return found


COMPLEX = torch.complex(BASE, BASE * 2)
EXPANDED = BASE[:1].expand(8, 16)
PAIRS: dict[str, Callable[[], Tensors]] = {
    "NaN": lambda: (BASE, with_number(BASE, float("nan"))),
    "an infinity": lambda: (BASE, with_number(BASE, float("inf"))),
    "the other infinity": lambda: (with_number(BASE, float("inf")), with_number(BASE, float("-inf"))),
    "NaN that stays": lambda: (with_number(BASE, float("nan")), with_number(BASE, float("nan"))),
    "nothing but NaN": lambda: (BASE, BASE * float("nan")),
    "no element": lambda: (BASE[:0], BASE[:0].clone()),
    "no row of any": lambda: (torch.zeros(0), torch.zeros(0)),
    "one element": lambda: (torch.tensor(2.5), torch.tensor(2.5)),
    "another one element": lambda: (torch.tensor(2.5), torch.tensor(3.5)),
    "repeated without a copy": lambda: (EXPANDED, EXPANDED.clone()),
    "repeated, then one changed": lambda: (EXPANDED, with_number(EXPANDED, 9.0)),
    "one changed, then repeated": lambda: (with_number(EXPANDED, 9.0), EXPANDED),
    "repeated twice": lambda: (EXPANDED, EXPANDED + 1),
    "two repeated": lambda: (EXPANDED, (EXPANDED[:1] + 1).expand(8, 16)),
    "with strides": lambda: (torch.cat([BASE, BASE], 1)[:, ::2], torch.cat([BASE, BASE], 1)[:, ::2].clone()),
    "with strides, one changed": lambda: (BASE[:, ::2], with_number(BASE[:, ::2], 9.0)),
    "a transposed view": lambda: (BASE.t(), BASE.t().contiguous()),
    "overlapping windows": lambda: (BASE.as_strided((8, 16), (8, 1)), BASE.as_strided((8, 16), (8, 1)).clone()),
    "windows, one changed": lambda: (BASE.as_strided((8, 16), (8, 1)), with_number(BASE[:8], 1.0)),
    "complex": lambda: (COMPLEX, COMPLEX.clone()),
    "complex, one changed": lambda: (COMPLEX, with_number(COMPLEX, 9.0)),
    "complex and NaN": lambda: (COMPLEX, with_number(COMPLEX, float("nan"))),
    "whole numbers": lambda: (torch.arange(128).view(8, 16), with_number(torch.arange(128).view(8, 16), 1)),
    "truths": lambda: (BASE > 0, ~(BASE > 0)),
    "bfloat16": lambda: (BASE.bfloat16(), with_number(BASE.bfloat16(), 9.0)),
    "eight bits": lambda: (BASE.to(torch.float8_e4m3fn), with_number(BASE, 9.0).to(torch.float8_e4m3fn)),
}


@pytest.mark.sample(17)
@pytest.mark.parametrize("flags", [(), ("--rows",), ("--json",)], ids=["plain", "rows", "json"])
@pytest.mark.parametrize("case", PAIRS)
def test_rare_tensors(case: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """torch says which elements differ; both orders, and a file without copies of what is repeated."""
    a, b = PAIRS[case]()
    torch.save({"w": a}, tmp_path / "a.pt")
    torch.save({"w": b}, tmp_path / "b.pt")
    x, y = (one.to(torch.complex128 if one.is_complex() else torch.float64) for one in (a, b))
    differs = (x != y) & ~(x.isnan() & y.isnan())
    for one, other in (("a", "b"), ("b", "a")):
        ran = quick("diff", f"{one}.pt", f"{other}.pt", "--exit-code", *flags, cwd=tmp_path)
        assert ran.code == int(bool(differs.any())), ran
        found = diff(tmp_path / f"{one}.pt", tmp_path / f"{other}.pt")
        (tensor,) = found.tensors
        assert tensor.kind == (CHANGED if differs.any() else SAME)
        if tensor.change is not None:
            rows = differs.reshape(differs.shape[0], -1).any(1) if differs.dim() else differs[None]
            if case != "two repeated":  # bytes that both files repeat are compared, and counted, once
                assert (tensor.change.elements, tensor.change.row_count) == (int(differs.sum()), int(rows.sum()))
            apart = (x - y).abs()[differs].nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
            assert tensor.change.largest == pytest.approx(apart)


def packed(values: np.ndarray) -> bytes:
    """Two numbers of 4 bits in a byte, the first in its low bits, as ml_dtypes' own type has them."""
    codes = values.astype(ml_dtypes.float4_e2m1fn).view("u1") & 15
    return bytes((codes[..., 0::2] | codes[..., 1::2] << 4).astype("u1"))


def test_numbers_of_four_bits(tmp_path: Path) -> None:
    """Two in a byte: the same bytes are the same, and one other code is told."""
    values = np.random.default_rng(0).choice([0.5, 1, 1.5, 2, 3, 4, 6, -1, -6], (8, 128))
    other = values.copy()
    other[3, 5] = -values[3, 5]
    for name, one in (("a", values), ("same", values), ("b", other)):
        data = packed(one)
        (tmp_path / f"{name}.safetensors").write_bytes(build({"w": item("F4", (8, 128), (0, len(data)))}, data))
    assert quick("diff", "a.safetensors", "same.safetensors", "--exit-code", "--strict", cwd=tmp_path).code == 0
    ran = quick("diff", "a.safetensors", "b.safetensors", "--exit-code", "--rows", cwd=tmp_path)
    assert ran.code == 1 and "changed" in ran.out, ran
