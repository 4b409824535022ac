"""Attributes of a dict are a mapping: anything else opens in no library, and is refused before it is written."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.errors import FormatError
from tests.hostile import makers_safetensors
from tests.hostile.command import quick as run
from tests.hostile.command import refused


class Odd(collections.OrderedDict):  # type: ignore[type-arg]
    """Pickled as an OrderedDict that is given `odd` as its attributes."""

    odd: Any = 7

    def __reduce__(self) -> Any:
        return collections.OrderedDict, (), self.odd, None, iter(self.items())


def saved(path: Path, odd: Any) -> Path:
    """A file of torch's with such a dict in it."""
    value = Odd(w=torch.arange(3.0))
    Odd.odd = odd
    torch.save(value, path / "m.pt")
    return path / "m.pt"


@pytest.mark.parametrize("odd", [7, 0, 1.5, "text", b"bytes", True])
def test_a_pickle(odd: Any, tmp_path: Path) -> None:
    """As torch and pickle refuse it, so does reading."""
    path = saved(tmp_path, odd)
    with pytest.raises((TypeError, ValueError, AttributeError, pickle.UnpicklingError)):
        torch.load(path, weights_only=False)
    with pytest.raises(FormatError, match=r"as the attributes of collections.OrderedDict, expected a dict"):
        paramtool.read(path)


@pytest.mark.parametrize("odd", [{"version": 1}, {}])
def test_what_torch_takes_is_read(odd: Any, tmp_path: Path) -> None:
    """A dict, or what counts as none; the output opens."""
    path = saved(tmp_path, odd)
    expected = torch.load(path, weights_only=False)
    for name in ("o.pt", "o.safetensors"):
        paramtool.dedup(path, tmp_path / name)
    found = torch.load(tmp_path / "o.pt", weights_only=True)
    assert vars(found) == vars(expected) and torch.equal(found["w"], expected["w"])


@pytest.mark.parametrize("odd", [7, 0, None, "text", {"tensor": "w"}])
def test_a_record(odd: Any, tmp_path: Path) -> None:
    """Exit 3, and no file that torch.load cannot open."""
    record = {**makers_safetensors.RECORD, "aliases": {}, "objects": {
        "map": "collections.OrderedDict", "items": [2], "attributes": odd}}  # fmt: skip
    path = makers_safetensors.made(makers_safetensors.recorded(record))(tmp_path)
    for command in (("inspect", path.name), ("dedup", path.name, "-o", "out.pt")):
        refused(run, *command, cwd=tmp_path, code=3, says=(path.name, "attributes; expected a mapping"))


def test_the_finding(tmp_path: Path) -> None:
    """The file that somebody made by hand."""
    path = Path(__file__).parents[3] / "shared" / "findings" / "attr.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with pytest.raises(FormatError, match="has a value for its attributes; expected a mapping"):
        paramtool.dedup(path, tmp_path / "out.pt")
