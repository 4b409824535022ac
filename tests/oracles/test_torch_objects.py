"""Objects in torch files: what torch.save wrote, what torch.load gives back from our output, and what verify says."""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from tests.hostile.command import quick
from tests.oracles.objects import TABLE, same


def refuses(path: Path) -> bool:
    """Whether `torch.load(weights_only=True)` refuses a file."""
    try:
        torch.load(path, weights_only=True)
    except Exception:
        return True
    return False


@pytest.mark.sample(35)
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("word", TABLE)
def test_an_object_comes_back_as_what_it_was(tmp_path: Path, word: str, protocol: int) -> None:
    """torch.load of the output gives what torch.load of the input gives, and opens it no less often."""
    torch.save({"w": torch.ones(2), "it": TABLE[word]}, tmp_path / "in.pt", pickle_protocol=protocol)
    report = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt")
    assert (report.left_out, report.warnings) == ((), ())
    same(*(torch.load(tmp_path / name, weights_only=False) for name in ("in.pt", "out.pt")))
    if protocol == 2:
        assert not refuses(tmp_path / "out.pt") or refuses(tmp_path / "in.pt")
    assert report.changed == ()
    assert bool(report.needs) == refuses(tmp_path / "out.pt")
    assert verify_command.verify(tmp_path / "out.pt", tmp_path / "in.pt").differences == ()


@pytest.mark.sample(30)
@pytest.mark.parametrize("word", TABLE)
def test_through_safetensors_and_back(tmp_path: Path, word: str) -> None:
    """The alias record holds every object of the table, and a torch file can be written from it again."""
    torch.save({"w": torch.ones(2), "it": TABLE[word]}, tmp_path / "in.pt")
    report = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "mid.safetensors")
    assert (report.left_out, report.warnings) == ((), ())
    assert verify_command.verify(tmp_path / "mid.safetensors", tmp_path / "in.pt").differences == ()
    assert dedup_command.dedup(tmp_path / "mid.safetensors", tmp_path / "out.pt").left_out == ()
    same(*(torch.load(tmp_path / name, weights_only=False) for name in ("in.pt", "out.pt")))


@pytest.mark.sample(30)
@pytest.mark.parametrize("word", TABLE)
def test_plain_always_opens(tmp_path: Path, word: str) -> None:
    """With --plain every file opens with weights_only, and what was no plain value is named."""
    torch.save({"w": torch.ones(2), "it": TABLE[word]}, tmp_path / "in.pt")
    report = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt", plain=True)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert report.needs == ()
    if refuses(tmp_path / "in.pt"):
        assert any(line.startswith("'it") for line in (*report.left_out, *report.changed))
    assert "it" in found or word == "records"


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("namespace", {"lr": 0.1, "name": "x", "nested": {"a": [1]}}), ("float64", 2.5), ("int64", -3), ("str_", "hi"),
        ("strings", ["a", "bb"]), ("dates", ["2020-01-01", "2021-02-03"]), ("datetime64", "2020-01-01T00:00"),
        ("path", "/a/b"), ("windows", "c:\\x"), ("zoned", "2020-01-02T00:00:00+01:00"), ("delta", 86402.000003),
        ("decimal", "1.50"), ("fraction", "3/4"), ("id", str(uuid.UUID(int=3))), ("ring", [1, 2]), ("lazy", {"a": [1]}),
        ("slice", {"start": 1, "stop": None, "step": 2}), ("range", {"start": 0, "stop": 3, "step": 1}),
        ("big-endian", [0.0, 1.0, 2.0]), ("bool_", True), ("complex64", 1 + 2j),
    ],
)  # fmt: skip
def test_plain_values(tmp_path: Path, word: str, plain: Any) -> None:
    """What plain forms are."""
    torch.save({"w": torch.ones(2), "it": TABLE[word]}, tmp_path / "in.pt")
    dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt", plain=True)
    assert torch.load(tmp_path / "out.pt", weights_only=True)["it"] == plain


def test_arrays_are_tensors_of_the_checkpoint(tmp_path: Path) -> None:
    """Listed with the role `other`, compared, and no weights for variants or the count of parameters."""
    state = {"w": torch.ones(2), "rng": ("MT19937", np.arange(624, dtype="u4"), 3), "best": np.float64(1)}
    torch.save(state, tmp_path / "in.pt")
    checkpoint = paramtool.read(tmp_path / "in.pt")
    assert {name: entry.role for name, entry in checkpoint.entries.items()} == {"w": "model", "rng.1": "other"}
    torch.save({**state, "rng": ("MT19937", np.zeros(624, "u4"), 3)}, tmp_path / "other.pt")
    found = verify_command.verify(tmp_path / "other.pt", tmp_path / "in.pt").differences
    assert found == ("'rng.1': its bytes differ from the source",)
    (variant,) = paramtool.variants(tmp_path / "in.pt", [_names(tmp_path, "w")])
    assert variant.loads
    assert not variant.unused


def _names(folder: Path, *names: str) -> Path:
    (folder / "names.txt").write_text("\n".join(names))
    return folder / "names.txt"


def test_one_object_stays_one(tmp_path: Path) -> None:
    """Lists, dicts, arrays and parameters that several places refer to; with tensors inside, too."""
    row, array, parameter = [1], np.arange(3), torch.nn.Parameter(torch.ones(2))
    part = {"w": torch.ones(3), "row": row}
    state = {"a": row, "b": {"c": row}, "args": argparse.Namespace(row=row), "x": array, "y": array, "p": parameter,
             "q": parameter, "model": part, "ema": part, "text": np.array(["s"])}  # fmt: skip
    state["text2"] = state["text"]
    torch.save(state, tmp_path / "in.pt")
    for name in ("out.pt", "mid.safetensors", "back.pt"):
        dedup_command.dedup(tmp_path / ("mid.safetensors" if name == "back.pt" else "in.pt"), tmp_path / name)
    for name in ("out.pt", "back.pt"):
        found = torch.load(tmp_path / name, weights_only=False)
        assert found["a"] is found["b"]["c"] is found["args"].row is found["model"]["row"]
        assert found["x"] is found["y"]
        assert found["p"] is found["q"]
        assert found["model"] is found["ema"]
        assert found["text"] is found["text2"]
    state["b"] = {"c": [1]}
    torch.save(state, tmp_path / "apart.pt")
    assert verify_command.verify(tmp_path / "apart.pt", tmp_path / "in.pt").differences


def test_what_is_in_a_shared_tuple_stays_one(tmp_path: Path) -> None:
    """A tuple that several places refer to, and the lists in it; a tensor that trains at two places."""
    inner, row = ([2],), torch.ones(3, requires_grad=True)
    torch.save({"a": inner, "b": inner, "deep": (inner,), "g": row, "h": row, "w": torch.ones(1)}, tmp_path / "in.pt")
    dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["a"][0] is found["b"][0] is found["deep"][0][0]
    assert found["g"] is found["h"]
    assert verify_command.verify(tmp_path / "out.pt", tmp_path / "in.pt").differences == ()
    torch.save(
        {"a": inner, "b": ([2],), "deep": (inner,), "g": row, "h": row, "w": torch.ones(1)}, tmp_path / "apart.pt"
    )
    assert verify_command.verify(tmp_path / "apart.pt", tmp_path / "in.pt").differences


def test_a_namespace_that_holds_itself(tmp_path: Path) -> None:
    """As an attribute, and in a list of its own."""
    space = argparse.Namespace(a=1)
    space.me, space.row = space, [space]
    torch.save({"n": space, "w": torch.ones(1)}, tmp_path / "in.pt")
    dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=False)["n"]
    assert found.me is found and found.row[0] is found


def test_flags_kinds_and_strides_are_kept(tmp_path: Path) -> None:
    """requires_grad, Parameter, memory formats and pickled storages."""
    image = torch.arange(120.0).reshape(2, 3, 4, 5)
    state = {
        "asks": torch.ones(2, requires_grad=True), "p": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(3), False), "last": image.to(memory_format=torch.channels_last),
        "turned": torch.arange(6.0).reshape(2, 3).t().clone(memory_format=torch.preserve_format),
        "one": image[:1].to(memory_format=torch.channels_last),
    }  # fmt: skip
    torch.save(state, tmp_path / "in.pt")
    report = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    same(state, found)
    assert found["one"].is_contiguous(memory_format=torch.channels_last)
    assert report.left_out == ()
    report = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert any("memory format of 'last'" in line for line in report.left_out)
    dedup_command.dedup(tmp_path / "out.safetensors", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert {k: (type(v), v.requires_grad) for k, v in back.items()} == {
        k: (type(v), v.requires_grad) for k, v in state.items()
    }


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_that_was_pickled_by_itself_stays_one(tmp_path: Path) -> None:
    """torch.save of a storage, beside a tensor on it, and of one without a type."""
    w = torch.arange(4.0)
    torch.save({"w": w, "s": w._typed_storage(), "raw": torch.ones(3).untyped_storage()}, tmp_path / "in.pt")
    dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt")
    found, again = (torch.load(tmp_path / name, weights_only=False) for name in ("in.pt", "out.pt"))
    assert type(found["s"]) is type(again["s"])
    assert type(found["raw"]) is type(again["raw"])
    assert again["s"].tolist() == [0, 1, 2, 3]
    assert again["s"].data_ptr() == again["w"].data_ptr()
    assert again["raw"].tolist() == found["raw"].tolist()


class Own:
    """A class of somebody's own."""

    def __init__(self) -> None:
        self.lr = 0.5

    def __repr__(self) -> str:  # names of tests hold it, and must be the same in every process
        return "Own()"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Own(), {"lr": 0.5}), (Point(1, 2), [1, 2]), (np.ones(1).view(np.recarray), None), (np.array([None]), None),
        ([1, Own()], [1, {"lr": 0.5}]), (Own, f"{__name__}.Own"), (collections.defaultdict(Own), {}),
    ],
    ids=str,
)  # fmt: skip
def test_other_classes_are_refused_by_name(tmp_path: Path, value: Any, plain: Any) -> None:
    """Exit 6 and nothing written; left out and named, or written plainly, where that is asked for."""
    torch.save({"w": torch.ones(2), "it": value}, tmp_path / "in.pt")
    ran = quick("dedup", "in.pt", "-o", "out.pt", cwd=tmp_path)
    assert ran.code == 6, ran
    assert "'it" in ran.err
    assert "--skip-unsupported" in ran.err
    assert "--plain" in ran.err
    assert not (tmp_path / "out.pt").exists()
    ran = quick("dedup", "in.pt", "-o", "skipped.pt", "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0
    assert "'it" in ran.out
    torch.load(tmp_path / "skipped.pt", weights_only=not isinstance(value, dict))
    ran = quick("dedup", "in.pt", "-o", "plain.pt", "--plain", cwd=tmp_path)
    assert ran.code == 0
    assert "'it" in ran.out
    found = torch.load(tmp_path / "plain.pt", weights_only=True)
    assert plain is None or found["it"] == plain
    ran = quick("dedup", "in.pt", "-o", "allowed.pt", "--allow-unknown", cwd=tmp_path)
    assert ran.code == 0
    assert "'it" in ran.out


def test_the_report_says_what_weights_only_refuses(tmp_path: Path) -> None:
    """And the line that loads the file works when it is pasted."""
    torch.save({"w": torch.ones(2), "args": argparse.Namespace(a=1)}, tmp_path / "in.pt")
    ran = quick("dedup", "in.pt", "-o", "out.pt", cwd=tmp_path)
    assert "argparse.Namespace" in ran.out
    line = next(line.split("  ")[1] for line in ran.out.splitlines() if line.startswith("load it"))
    done = subprocess.run(
        [sys.executable, "-c", f"import torch; print({line}['args'])"], cwd=tmp_path, capture_output=True
    )
    assert done.stdout.decode().strip() == "Namespace(a=1)"


def test_what_metadata_cannot_hold_is_the_first_line(tmp_path: Path) -> None:
    """A large array of strings towards safetensors: a warning with its name; an error with --strict."""
    torch.save({"w": torch.ones(2), "tokens": np.array(["x" * 100] * 1000)}, tmp_path / "in.pt")
    ran = quick("dedup", "in.pt", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0
    assert "does not hold" in ran.err.splitlines()[0]
    assert quick("verify", "out.safetensors", "--against", "in.pt", cwd=tmp_path).code == 0
    ran = quick("dedup", "in.pt", "-o", "strict.safetensors", "--strict", cwd=tmp_path)
    assert ran.code == 6
    assert not (tmp_path / "strict.safetensors").exists()


def test_verify_sees_objects(tmp_path: Path) -> None:
    """Another epoch, a scheduler that is missing, a list in the place of a tuple."""
    state: dict[str, Any] = {"w": torch.ones(2), "epoch": 3, "scheduler": {"last_epoch": 3}, "betas": (0.9, 0.999)}
    torch.save(state, tmp_path / "in.pt")
    others: dict[str, dict[str, Any]] = {
        "epoch": {**state, "epoch": 4}, "scheduler": {k: v for k, v in state.items() if k != "scheduler"},
        "betas": {**state, "betas": [0.9, 0.999]},
        "epochs": {**state, "epochs": 1}, "last_epoch": {**state, "scheduler": {"last_epoch": 3.0}},
    }  # fmt: skip
    for word, other in others.items():
        torch.save(other, tmp_path / "out.pt")
        ran = quick("verify", "out.pt", "--against", "in.pt", cwd=tmp_path)
        assert ran.code == 1, word
        assert word in ran.out
        assert quick("verify", "out.pt", "--against", "in.pt", "--tensors-only", cwd=tmp_path).code == 0
        assert quick("verify", "out.pt", "--against", "in.pt", "--subset", cwd=tmp_path).code == 0


def test_gradients_are_no_values(tmp_path: Path) -> None:
    """Which tensors ask for them is told, by `verify` and `diff` alike, and changes the exit status of neither."""
    linear = torch.nn.Linear(2, 2)
    torch.save(dict(linear.named_parameters()), tmp_path / "in.pt")
    linear.weight.requires_grad_(False)
    torch.save(dict(linear.named_parameters()), tmp_path / "out.pt")
    for line in (["verify", "out.pt", "--against", "in.pt"], ["diff", "out.pt", "in.pt", "--exit-code"]):
        ran = quick(*line, cwd=tmp_path)
        assert ran.code == 0
        assert "1 tensor asks for gradients in" in ran.out + ran.err and "only: 'weight'" in ran.out + ran.err


def test_a_fused_torch_file_says_what_it_is(tmp_path: Path) -> None:
    """`unfuse` asks for no facts again; torch.load does not look at the extra member, mapped or not."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(5, 7, 2)
    torch.save(lstm.state_dict(), tmp_path / "in.pt")
    assert quick("fuse", "in.pt", "--layout", "cudnn", "-o", "f.pt", cwd=tmp_path).code == 0
    with zipfile.ZipFile(tmp_path / "f.pt") as archive:
        assert "archive/paramtool.json" in archive.namelist()
    for mapped in (False, True):
        (flat,) = torch.load(tmp_path / "f.pt", weights_only=True, mmap=mapped).values()
        assert flat.numel() == sum(p.numel() for p in lstm.parameters())
    ran = quick("unfuse", "f.pt", "-o", "back.pt", cwd=tmp_path)
    assert ran.code == 0, ran
    again = torch.nn.LSTM(5, 7, 2)
    again.load_state_dict(torch.load(tmp_path / "back.pt", weights_only=True))
    x = torch.randn(3, 2, 5)
    assert torch.equal(lstm(x)[0], again(x)[0])


Pair = collections.namedtuple("Pair", "first second")


class Trained:
    """A class of somebody's own that holds a tensor and numbers."""

    def __init__(self) -> None:
        self.best, self.lr, self.names = torch.arange(3.0), 0.5, ["x"]


class Tupled(Trained):
    """One whose state is a tuple."""

    def __getstate__(self) -> tuple[object, ...]:
        return self.best, 77

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.best, self.lr = state  # type: ignore[assignment]


class Slotted:
    """One without a dict."""

    __slots__ = ("best", "count")

    def __init__(self) -> None:
        self.best, self.count = torch.arange(3.0), 42


class Row(list):  # type: ignore[type-arg]
    """A list of somebody's own."""


class Easy(dict):  # type: ignore[type-arg]
    """A dict of somebody's own."""


def test_plain_keeps_every_kind_of_state(tmp_path: Path) -> None:
    """Tuples, slots, items of lists and dicts; an array of Python objects has no plain form, and is named."""
    best = torch.arange(3.0)
    held = {"tupled": Tupled(), "slotted": Slotted(), "row": Row([best, 1, "two"]), "easy": Easy(x=best, n=5),
            "objects": np.array([1, "a", None], dtype=object)}  # fmt: skip
    torch.save(held, tmp_path / "in.pt")
    found = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt", plain=True)
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    plain = {"tupled": [best, 77], "slotted": [None, {"best": best, "count": 42}], "row": [best, 1, "two"],
             "easy": {"x": best, "n": 5}}  # fmt: skip
    assert repr(again) == repr(plain)
    assert len(found.left_out) == 1 and "'objects'" in found.left_out[0], found.left_out
    assert list(found.plan.order) == list(paramtool.read(tmp_path / "in.pt").entries)


def test_plain_keeps_the_data_beside_tensors(tmp_path: Path) -> None:
    """The tensors under their names, everything else as dicts, lists and numbers."""
    torch.save({"pair": Pair(torch.ones(2), 2), "own": Trained(), "row": [Trained()]}, tmp_path / "in.pt")
    found = dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.pt", plain=True)
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found.left_out == () and list(found.plan.order) == list(paramtool.read(tmp_path / "in.pt").entries)
    assert again["pair"]["args"][1] == 2 and torch.equal(again["pair"]["args"][0], torch.ones(2))
    for held in (again["own"], again["row"][0]):
        assert (held["lr"], held["names"]) == (0.5, ["x"]) and torch.equal(held["best"], torch.arange(3.0))


def test_a_conversion_loses_no_memory_format(tmp_path: Path) -> None:
    """It transposes what it writes; nothing of the source is lost by that, and --strict takes it."""
    lstm = torch.nn.LSTM(3, 4, 2)
    torch.save({f"rnn.{name}": tensor for name, tensor in lstm.state_dict().items()}, tmp_path / "in.pt")
    relayout_command.convert(tmp_path / "in.pt", tmp_path / "keras.safetensors", target="keras", keep_split=True)
    found = relayout_command.convert(
        tmp_path / "keras.safetensors", tmp_path / "out.safetensors", target="torch", strict=True
    )
    assert not [text for text in (*found.warnings, *found.left_out) if "memory format" in text]


def test_a_fortran_array_is_no_other_memory_format(tmp_path: Path) -> None:
    """The record holds its order."""
    torch.save({"w": torch.ones(2), "a": np.asfortranarray(np.arange(6.0).reshape(2, 3))}, tmp_path / "in.pt")
    dedup_command.dedup(tmp_path / "in.pt", tmp_path / "out.safetensors", strict=True)
    assert verify_command.verify(tmp_path / "out.safetensors", tmp_path / "in.pt").warnings == ()
