"""Errors as Python has them: their hint, their builtin bases, copies and pickles."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool import errors
from paramtool.errors import ParamtoolError, UsageError

KINDS = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ParamtoolError)),
    key=lambda kind: kind.__name__,
)


def made(kind: type[ParamtoolError]) -> ParamtoolError:
    """An error of a class, with a text for each argument that it needs."""
    needed = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
    return kind(*(["x", "y"] if p.name in ("defects", "names") else f"a {p.name}" for p in needed), hint="do that")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_says_its_hint_and_survives_copies(kind: type[ParamtoolError]) -> None:
    error = made(kind)
    assert str(error) == f"{error.message}\nhint: do that"
    assert "hint" not in error.message
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind and str(twin) == str(error) and vars(twin) == vars(error)
        assert getattr(twin, "filename", None) == getattr(error, "filename", None)
        assert getattr(twin, "errno", None) == getattr(error, "errno", None)


def test_an_error_without_a_hint_is_its_message() -> None:
    assert str(errors.FormatError("m.pt: is empty")) == "m.pt: is empty"
    assert str(errors.PlanError("no", hint="yes").located("m.pt")) == "m.pt: no\nhint: yes"


@pytest.mark.parametrize(
    "ask",
    [
        paramtool.read,
        paramtool.inspect,
        paramtool.dedup,
        paramtool.load_file,
        paramtool.torch.load_file,
        lambda path: paramtool.verify(path, path),
        lambda path: paramtool.torch.load_model(nn.Linear(2, 2), path),
    ],
)
def test_a_missing_checkpoint_is_a_file_not_found_error(ask, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        ask(tmp_path / "ghost.pt")
    assert isinstance(error.value, errors.FormatError) and error.value.exit_code == 3
    assert error.value.filename == str(tmp_path / "ghost.pt") and error.value.errno == 2
    with pytest.raises(FileNotFoundError), open(tmp_path / "ghost.pt"):
        pass


def test_a_missing_list_of_names_is_a_file_not_found_error_too(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    with pytest.raises(FileNotFoundError) as error:
        paramtool.export(tmp_path / "m.pt", tmp_path / "o.safetensors", names=tmp_path / "names.txt")
    assert isinstance(error.value, errors.UsageError) and error.value.exit_code == 2


def test_a_missing_shard_is_a_file_not_found_error(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}')
    with pytest.raises(errors.FormatError, match="model-00001-of-00001"):
        paramtool.read(index)


def test_a_bad_option_is_a_value_error(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"^max_shard_size is 0"):
        paramtool.dedup(tmp_path / "m.pt", max_shard_size=0)


class Two(nn.Module):
    """Two linear layers, tied or not."""

    def __init__(self, out: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, out), nn.Linear(4, out)
        if tied:
            self.b.weight = self.a.weight


@pytest.mark.parametrize("case", ["missing", "unexpected", "shape", "tie"])
def test_what_does_not_fit_a_model_is_a_runtime_error(case: str, tmp_path: Path) -> None:
    """As it is for safetensors, which is asked the same."""
    state = Two().state_dict()
    if case == "missing":
        del state["a.weight"]
    if case == "unexpected":
        state["c"] = torch.ones(3)
    safetensors.torch.save_file(state, tmp_path / "m.safetensors")
    model = Two(out=5 if case == "shape" else 3, tied=case == "tie")
    if case != "tie":
        with pytest.raises(RuntimeError):
            safetensors.torch.load_model(model, tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError) as error:
        paramtool.torch.load_model(model, tmp_path / "m.safetensors")
    assert isinstance(error.value, errors.PlanError) and error.value.exit_code == 6


def test_one_string_is_not_several(tmp_path: Path) -> None:
    """Its letters would be names, paths or rules."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2)}, path)
    out = tmp_path / "out.safetensors"
    for call in (
        lambda: paramtool.export(path, out, names="w"),
        lambda: paramtool.variants(path, "names.txt"),  # type: ignore[arg-type]
        lambda: paramtool.dedup_family(str(path), tmp_path / "out"),
        lambda: paramtool.inspect(path, fail_on="unsafe"),
    ):
        with pytest.raises(UsageError, match="expected a list") as caught:
            call()
        assert "hint: " in str(caught.value) and "=[" in str(caught.value)


def test_wrong_types(tmp_path: Path) -> None:
    """Named, before anything is read."""
    with pytest.raises(UsageError, match="max_shard_size is '5GB'; expected a number of bytes"):
        paramtool.dedup("m.pt", "out", max_shard_size="5GB")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="options is dict; expected DedupOptions"):
        paramtool.dedup("m.pt", "out", {"keep": "last"})  # type: ignore[arg-type]
