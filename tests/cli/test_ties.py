"""`--ties NAME=OTHER`: a name that a file omits, as another name of a tensor that it has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import paramtool
from tests.hostile.command import quick, refused


@pytest.fixture
def kept_last(tmp_path: Path) -> Path:
    """What MXNet's `save_parameters(deduplicate=True)` keeps of a tied model: the last name."""
    torch.save({"rnn.w": torch.ones(4, 4), "decoder.weight": torch.arange(2000.0).view(50, 40)}, tmp_path / "lm.pt")
    return tmp_path / "lm.pt"


def test_dedup_records_it(kept_last: Path) -> None:
    """The two names share memory when loaded, and the line that the report prints proves the output."""
    ran = quick(
        "dedup", "lm.pt", "-o", "lm.safetensors", "--ties", "encoder.weight=decoder.weight", cwd=kept_last.parent
    )
    assert ran.code == 0 and "encoder.weight  same memory" in ran.out, ran
    found = paramtool.load_file(kept_last.parent / "lm.safetensors")
    assert np.shares_memory(found["encoder.weight"], found["decoder.weight"])
    line = ran.out.strip().splitlines()[-1].removeprefix("next  paramtool ")
    assert quick(*line.split(), cwd=kept_last.parent).code == 0


@pytest.mark.parametrize("wanted", [["--all-names"], ["--names", "names.txt"]])
def test_export_writes_it(kept_last: Path, wanted: list[str]) -> None:
    """Under each name, and said so; no line is printed that could not verify it."""
    (kept_last.parent / "names.txt").write_text("encoder.weight\nrnn.w\ndecoder.weight\n")
    args = ("export", "lm.pt", "-o", "lm.npz", *wanted, "--ties", "encoder.weight=decoder.weight")
    ran = quick(*args, cwd=kept_last.parent)
    assert ran.code == 0 and "tied  encoder.weight  written from decoder.weight" in ran.out, ran
    assert "next" not in ran.out
    with np.load(kept_last.parent / "lm.npz") as found:
        assert found["encoder.weight"].tobytes() == found["decoder.weight"].tobytes()
    ran = quick(*args, "--json", "--force", cwd=kept_last.parent)
    assert json.loads(ran.out)["tied"] == {"encoder.weight": "decoder.weight"}


def test_two_that_are_stored_stay_two(tmp_path: Path) -> None:
    """Equal is not tied, and a tie that a person declares is not silently dropped either."""
    weight = torch.arange(2000.0).view(50, 40)
    torch.save({"a": weight, "b": weight.clone()}, tmp_path / "m.pt")
    ran = quick("dedup", "m.pt", "-o", "m.safetensors", "--ties", "a=b", cwd=tmp_path)
    assert ran.code == 0 and "'a' and 'b' shall be tied, and the file stores both" in ran.err, ran
    found = paramtool.load_file(tmp_path / "m.safetensors")
    assert not np.shares_memory(found["a"], found["b"])


@pytest.mark.parametrize(
    "word, says", [("a", "NAME=OTHER"), ("=b", "NAME=OTHER"), ("a=", "NAME=OTHER"), ("x=y", "none of these names")]
)
def test_what_is_no_tie(kept_last: Path, word: str, says: str) -> None:
    """Refused with the form, or with the names that are not there."""
    args = ("dedup", "lm.pt", "-o", "x.safetensors", "--ties", word)
    refused(quick, *args, cwd=kept_last.parent, code=2, says=(says,))


def test_one_name_has_one_tie(kept_last: Path) -> None:
    """The second says something else."""
    args = ("dedup", "lm.pt", "-o", "x.safetensors", "--ties", "a=b", "--ties", "a=c")
    refused(quick, *args, cwd=kept_last.parent, code=2, says=("'a' is 'b' already",))


@pytest.mark.parametrize("output", ["lm.safetensors", "lm.dedup.pt"])
def test_a_state_dict_has_a_place_for_it(tmp_path: Path, output: str) -> None:
    """`state_dict()` has `_metadata`, which is kept beside the new name, and the line of the report verifies it."""
    torch.save(torch.nn.ModuleDict({"decoder": torch.nn.Linear(40, 50)}).state_dict(), tmp_path / "lm.pt")
    ran = quick("dedup", "lm.pt", "-o", output, "--ties", "encoder.weight=decoder.weight", cwd=tmp_path)
    assert ran.code == 0 and "encoder.weight  same memory" in ran.out, ran
    found = paramtool.read(tmp_path / output)
    assert "encoder.weight" in found.entries and "_metadata" in repr(found.objects)
    line = ran.out.strip().splitlines()[-1].removeprefix("next  paramtool ")
    ran = quick(*line.split(), cwd=tmp_path)
    assert ran.code == 0, ran
