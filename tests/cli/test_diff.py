"""`paramtool diff` as people run it: rows, exit codes, JSON, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.cli.test_documents import run, validate
from tests.hostile.command import quick


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base, a renamed copy, a rounded copy, one with other numbers, and one without a tensor."""
    random = np.random.default_rng(0)
    base = {f"h.{k}.w": random.normal(size=(8, 16)).astype("f4") for k in range(3)}
    changed = {**base, "h.1.w": np.where(np.arange(16) == 3, base["h.1.w"] + 0.5, base["h.1.w"]).astype("f4")}
    save_file(base, tmp_path / "base.safetensors")
    save_file({name.replace("h.", "layers."): one for name, one in base.items()}, tmp_path / "renamed.safetensors")
    save_file({name: one.astype("f2") for name, one in base.items()}, tmp_path / "rounded.safetensors")
    save_file(changed, tmp_path / "changed.safetensors")
    save_file({name: one for name, one in base.items() if name != "h.2.w"}, tmp_path / "fewer.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "other, verdict, plain, strict",
    [
        ("base", "same weights", 0, 0),
        ("renamed", "same weights under other names", 0, 1),
        ("rounded", "same weights rounded to another type", 1, 1),
        ("changed", "different weights", 1, 1),
        ("fewer", "different weights", 1, 1),
    ],
)
def test_the_verdict_and_the_exit_code(folder: Path, other: str, verdict: str, plain: int, strict: int) -> None:
    """0 without --exit-code; with it what is lost is 1, and with --strict whatever differs."""
    files = ("base.safetensors", f"{other}.safetensors")
    ran = quick("diff", *files, cwd=folder)
    assert (ran.code, ran.err) == (0, "") and ran.out.startswith(f"verdict  {verdict}\n"), ran
    assert quick("diff", *files, "--exit-code", cwd=folder).code == plain
    assert quick("diff", *files, "--exit-code", "--strict", cwd=folder).code == strict


def test_some_without_loss_and_some_rounded(tmp_path: Path) -> None:
    """The verdict counts both: numbers that float16 holds and numbers that it does not."""
    numbers = np.random.default_rng(0).standard_normal((3, 16)).astype("f4")
    a = {"scale": np.float32([1, 2, 4]), "shift": np.float32([0.5, 0.25]), "w": numbers}
    save_file(a, tmp_path / "a.safetensors")
    save_file({name: one.astype("f2") for name, one in a.items()}, tmp_path / "b.safetensors")
    ran = quick("diff", "a.safetensors", "b.safetensors", cwd=tmp_path)
    assert ran.out.startswith("verdict  same weights in another type (2 tensors without loss, 1 rounded)\n"), ran


def test_names_that_differ_in_numbers_are_one_row(folder: Path) -> None:
    out = quick("diff", "base.safetensors", "renamed.safetensors", cwd=folder).out
    assert "renamed  3 tensors  h.*.w = layers.*.w\n" in out


def test_a_change_is_measured_and_its_rows_are_told(folder: Path) -> None:
    ran = quick("diff", "base.safetensors", "changed.safetensors", "--rows", cwd=folder)
    assert "changed  1 tensor  h.1.w  8 of 128 elements, largest difference 0.5, relative" in ran.out, ran
    assert "changed  h.1.w  8 rows: 0-7\n" in ran.out
    assert ", mean difference 0.031" in ran.out  # 0.5 in one of 16 columns
    assert "mean" not in quick("diff", "base.safetensors", "changed.safetensors", cwd=folder).out
    assert quick("diff", "base.safetensors", "changed.safetensors", "--stat", cwd=folder).out.startswith(
        "verdict  different weights\nsame  2 tensors\nchanged  1 tensor\n"
    )


def test_other_objects_are_in_the_verdict(folder: Path) -> None:
    """Of the same weights, and of tied ones."""
    weight = torch.ones(4)
    torch.save({"model": {"w": weight, "v": weight}, "epoch": 3}, folder / "three.pt")
    torch.save({"model": {"w": weight, "v": weight}, "epoch": 4}, folder / "four.pt")
    torch.save({"model": {"w": weight, "v": weight.clone()}, "epoch": 4}, folder / "untied.pt")
    for other, verdict in (("four", "same weights, other objects"),
                           ("untied", "same weights, tied otherwise, other objects")):  # fmt: skip
        ran = quick("diff", "three.pt", f"{other}.pt", "--exit-code", cwd=folder)
        assert ran.code == 1 and ran.out.startswith(f"verdict  {verdict}\n"), ran


def test_a_tolerance_covers_what_is_near(folder: Path) -> None:
    """As numpy.allclose: the largest difference decides, beside what --rtol allows of each number."""
    rounded = ("diff", "base.safetensors", "rounded.safetensors", "--exit-code", "--atol")
    assert quick(*rounded, "0.01", cwd=folder).code == 0
    assert quick(*rounded, "1e-9", cwd=folder).code == 1
    changed = ("diff", "base.safetensors", "changed.safetensors", "--exit-code")
    for more, code in (((), 1), (("--atol", "1e-9"), 1), (("--atol", "99"), 0), (("--rtol", "1e-9"), 1)):
        assert quick(*changed, *more, cwd=folder).code == code
    for other, flags, said in (
        ("changed", ("--atol", "0.6"), "equal within atol 0.6"),
        ("changed", ("--atol", "0.25", "--rtol", "1e-9"), "different weights"),
        ("changed", ("--atol", "0.25", "--rtol", "1e6"), "equal within atol 0.25 and rtol 1e+06"),
        ("rounded", ("--atol", "0.01"), "equal within atol 0.01, rounded to another type"),
        ("rounded", ("--atol", "1e-9"), "same weights rounded to another type"),
        ("renamed", ("--atol", "1e-6"), "same weights under other names"),
        ("fewer", ("--atol", "99"), "different weights"),
    ):
        names = "base.safetensors", f"{other}.safetensors"
        ran = quick("diff", *names, *flags, cwd=folder)
        assert (ran.code, ran.err) == (0, "") and ran.out.startswith(f"verdict  {said}\n"), (other, flags, ran)
        told = run("diff", *names, *flags, cwd=folder)
        tolerances = {name: float(value) for name, value in zip(flags[::2], flags[1::2], strict=True)}
        assert (told["atol"], told["rtol"]) == (tolerances.get("--atol", 0), tolerances.get("--rtol", 0))
        assert told["close"] is not (said in ("different weights", "same weights rounded to another type"))
        assert told["same"] is (other == "renamed")
        code = quick("diff", *names, *flags, "--exit-code", "--quiet", cwd=folder)
        assert (code.code, bool(code.out)) == (int(not told["close"]), not told["close"]), code
    ran = quick(*changed, "--tolerance", "1", cwd=folder)
    assert ran.code == 2 and "--tolerance is replaced: --atol" in ran.err


def test_a_relative_tolerance_is_that_of_numpy(tmp_path: Path) -> None:
    """Of each number alone: what is near one is not near another."""
    a = np.array([1.0, 100.0, 0.0, np.nan, np.inf], "f4")
    for by, rtol, atol in ((1.01, 0.011, 0), (1.01, 0.009, 0), (1.0, 0, 0), (1.01, 0.009, 0.5), (1.01, 0.02, 0.1)):
        b = (a * by).astype("f4")
        save_file({"w": a}, tmp_path / "a.safetensors")
        save_file({"w": b}, tmp_path / "b.safetensors")
        flags = ("--exit-code", "--rtol", rtol, "--atol", atol)
        ran = quick("diff", "a.safetensors", "b.safetensors", *flags, cwd=tmp_path)
        assert (ran.code == 0) == np.allclose(a, b, rtol, atol, equal_nan=True), (by, rtol, atol, ran)


@pytest.mark.parametrize("other", ["base", "renamed", "rounded", "changed", "fewer"])
def test_the_document(folder: Path, other: str) -> None:
    found = run("diff", "base.safetensors", f"{other}.safetensors", cwd=folder)
    assert sum(found["counts"].values()) == len(found["tensors"]) == 3


def test_numbers_that_are_not_finite_are_valid_json(folder: Path) -> None:
    save_file({"w": np.zeros(8, "f4")}, folder / "a.safetensors")
    save_file({"w": np.full(8, np.inf, "f4")}, folder / "b.safetensors")
    change = run("diff", "a.safetensors", "b.safetensors", cwd=folder)["tensors"][0]["change"]
    assert change["largest"] is None and change["finite"] is False and change["elements"] == 8


def test_a_tie_that_is_lost(tmp_path: Path) -> None:
    """The bytes are the same, and a name shares them in one file only."""
    weight = torch.randn(6, 8)
    torch.save({"wte": weight, "head": weight}, tmp_path / "tied.pt")
    torch.save({"wte": weight, "head": weight.clone()}, tmp_path / "apart.pt")
    ran = quick("diff", "tied.pt", "apart.pt", "--exit-code", cwd=tmp_path)
    assert ran.code == 1 and "ties  'head': shares memory with 'wte' in A only\n" in ran.out, ran
    assert ran.out.startswith("verdict  same weights, tied otherwise\n")
    ran = quick("diff", "tied.pt", "apart.pt", "--exit-code", "--stat", cwd=tmp_path)
    assert ran.code == 1 and "ties  'head': shares memory with 'wte' in A only\n" in ran.out, ran
    assert quick("diff", "tied.pt", "tied.pt", "--exit-code", "--strict", cwd=tmp_path).code == 0


def test_objects_are_compared(tmp_path: Path) -> None:
    weight = torch.randn(6, 8)
    for name, epoch in (("a", 1), ("b", 2)):
        torch.save({"model": {"w": weight}, "epoch": epoch}, tmp_path / f"{name}.pt")
    ran = quick("diff", "a.pt", "b.pt", "--exit-code", cwd=tmp_path)
    assert ran.code == 1 and "objects  'epoch': is " in ran.out, ran
    ran = quick("diff", "a.pt", "b.pt", "--exit-code", "--stat", cwd=tmp_path)
    assert ran.code == 1 and "objects  'epoch': is " in ran.out, ran
    assert quick("diff", "a.pt", "b.pt", "--exit-code", "--only", "model", cwd=tmp_path).code == 0


def test_metadata_that_one_side_lacks(folder: Path) -> None:
    save_file({"w": np.ones(9, "f4")}, folder / "plain.safetensors")
    save_file({"w": np.ones(9, "f4")}, folder / "told.safetensors", metadata={"made": "by hand"})
    for one, other, row in (
        ("plain", "told", "metadata  'made': is 'by hand'; A has none"),
        ("told", "plain", "metadata  'made': is not there; A has 'by hand'"),
    ):
        ran = quick("diff", f"{one}.safetensors", f"{other}.safetensors", "--exit-code", "--strict", cwd=folder)
        assert ran.code == 1 and row in ran.out, ran
        stat = ("diff", f"{one}.safetensors", f"{other}.safetensors", "--exit-code", "--stat")
        assert row in quick(*stat, "--strict", cwd=folder).out and row not in quick(*stat, cwd=folder).out


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / "cut.safetensors").write_bytes((folder / "base.safetensors").read_bytes()[:-9])
    ran = quick("diff", "base.safetensors", "cut.safetensors", cwd=folder)
    assert ran.code == 3 and "truncated" in ran.err and not ran.out
    assert quick("diff", "base.safetensors", "none.safetensors", cwd=folder).code == 3
    assert quick("diff", "base.safetensors", cwd=folder).code == 2


def test_too_little_memory_is_undecided(folder: Path) -> None:
    """What a search has no room for is neither same nor changed."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(4096, 16)).astype("f4")
    save_file({"a": rows}, folder / "a.safetensors")
    save_file({"b": rows[::-1].copy()}, folder / "b.safetensors")
    assert quick("diff", "a.safetensors", "b.safetensors", "--exit-code", cwd=folder).code == 0
    ran = quick("diff", "a.safetensors", "b.safetensors", "--exit-code", "--memory", "64KB", cwd=folder)
    assert ran.code == 1 and "undecided  1 tensor  b  --memory was too small for the rows of A" in ran.out, ran


@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e400"])
def test_a_tolerance_that_is_no_difference(number: str, folder: Path) -> None:
    ran = quick("diff", "base.safetensors", "rounded.safetensors", "--exit-code", f"--atol={number}", cwd=folder)
    assert ran.code == 2 and "expected a finite number, which is 0 or more" in ran.err, ran


def test_the_base_of_a_fine_tune(folder: Path) -> None:
    """The candidate whose samples are nearest, and by far; none where several are, or none is near."""
    random = np.random.default_rng(2)
    save_file({f"h.{k}.w": random.normal(size=(8, 16)).astype("f4") for k in range(3)}, folder / "other.safetensors")
    ask = ("diff", "--find-base", "changed.safetensors")
    ran = quick(*ask, "other.safetensors", "base.safetensors", "--exit-code", cwd=folder)
    assert ran.code == 0 and ran.out.startswith("verdict  base.safetensors\n"), ran
    assert "candidate  other.safetensors  distance 1.4" in ran.out and "2 of 3 sampled tensors the same" in ran.out
    assert quick(*ask, "other.safetensors", "--exit-code", cwd=folder).code == 1
    assert quick(*ask, "base.safetensors", "rounded.safetensors", "--exit-code", cwd=folder).code == 1
    ran = quick(*ask, "renamed.safetensors", cwd=folder)
    assert ran.code == 0 and "2 of 3 sampled tensors the same, 'layers.' -> 'h.' in front of names" in ran.out
    save_file({"h.0.w": random.normal(size=(3, 3)).astype("f4")}, folder / "small.safetensors")
    ran = quick(*ask, "small.safetensors", cwd=folder)
    assert ran.code == 0 and "no tensor of the same name and shape can be sampled" in ran.out
    assert quick(*ask, "base.safetensors", "--rows", cwd=folder).code == 2
    ran = quick(*ask, "base.safetensors", "--json", cwd=folder)
    assert validate("find-base", ran.out)["base"] == "base.safetensors"
    assert quick(*ask, "base.safetensors", "--only", "x", cwd=folder).code == 2
    assert quick("diff", "base.safetensors", "base.safetensors", "base.safetensors", cwd=folder).code == 2
    ran = quick(*ask, cwd=folder)
    assert ran.code == 2 and "no candidates are given; expected --find-base changed.safetensors CANDIDATE" in ran.err


def test_a_candidate_that_cannot_be_read_is_the_last_one(folder: Path) -> None:
    """The others are compared, and the exit code is that of its error."""
    (folder / "cut.safetensors").write_bytes((folder / "base.safetensors").read_bytes()[:100])
    ask = ("diff", "--find-base", "changed.safetensors")
    ran = quick(*ask, "cut.safetensors", "gone.pt", "base.safetensors", cwd=folder)
    assert ran.code == 3 and ran.out.startswith("verdict  base.safetensors\n"), ran
    lines = ran.out.splitlines()
    assert lines[1].startswith("candidate  base.safetensors  distance")
    assert lines[2].startswith("candidate  cut.safetensors  ") and "gone.pt  cannot be read: No such file" in lines[3]
    document = validate("find-base", quick(*ask, "cut.safetensors", "base.safetensors", "--json", cwd=folder).out)
    assert document["candidates"][1]["distance"] is None and document["candidates"][1]["why"]
    ran = quick(*ask, "cut.safetensors", "gone.pt", cwd=folder)
    assert ran.code == 3 and not ran.out and "cut.safetensors" in ran.err, ran
