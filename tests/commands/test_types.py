"""Types by rule, as a library: torch and safetensors read what was written, verify proves it, models still compute."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, PlanError, UsageError
from tests.recurrent import Tagger, raw, save
from tests.versions import needs

OUT = "out.safetensors"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    """What residual networks are made of."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """As torchvision's, small; its statistics are those of some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2 = nn.Sequential(Block(8, 8, 1)), nn.Sequential(Block(8, 16, 2))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(y.mean((2, 3)))


@pytest.fixture
def resnet(tmp_path: Path) -> tuple[ResNet, Path]:
    model = ResNet()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(16, 3, 16, 16) * 3 + 1)
    return model.eval(), save(tmp_path, model.state_dict())


def of_statistics(name: str) -> bool:
    return any(part.startswith("bn") for part in name.split(".")) or ".downsample.1." in name


# --- a model with running statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["safetensors", "pt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_network_with_its_statistics_in_float32(
    dtype: str, end: str, resnet: tuple[ResNet, Path], tmp_path: Path
) -> None:
    """torch's own cast, bit for bit; the statistics as they were; and nearly the same outputs."""
    model, path = resnet
    out = tmp_path / f"out.{end}"
    found = paramtool.convert(path, out, dtype=dtype, keep_float32=["batchnorm"])
    read = load_file(out) if end == "safetensors" else torch.load(out, weights_only=True)
    wanted = {
        name: tensor if of_statistics(name) else tensor.to(getattr(torch, dtype))
        for name, tensor in model.state_dict().items()
    }
    assert raw(read) == raw(wanted)
    assert found.typed is not None and not found.warnings
    kept = {name for name in wanted if of_statistics(name) and "num_batches" not in name}
    assert found.typed.kept.keys() == kept and len(kept) == 7 * 4
    assert set(found.typed.kept.values()) == {"batchnorm: its module has running_mean and running_var"}

    other = ResNet().eval()
    other.load_state_dict({name: tensor.to(torch.float32) for name, tensor in read.items()})
    images = torch.randn(8, 3, 16, 16) * 3 + 1
    with torch.no_grad():
        before, after = model(images), other(images)
    error = float((before - after).abs().max() / before.abs().max())
    assert 0 < error < {"float16": 2e-3, "bfloat16": 2e-2}[dtype]


def test_without_keep_everything_is_cast_and_told(resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    """As `model.half()` does; that running statistics are among it is a warning."""
    model, path = resnet
    found = paramtool.convert(path, tmp_path / OUT, dtype="float16")
    assert raw(load_file(tmp_path / OUT)) == raw(model.half().state_dict())
    assert [text for text in found.warnings if "28 tensors of modules with running statistics" in text]


def test_only_one_pattern(resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    _, path = resnet
    paramtool.convert(path, tmp_path / OUT, dtype={"layer*": "bfloat16", "layer2.*": "float64", "fc.bias": "float16"})
    read = {name: str(tensor.dtype) for name, tensor in load_file(tmp_path / OUT).items()}
    assert read["layer1.0.conv1.weight"] == "torch.bfloat16" and read["layer2.0.bn1.running_mean"] == "torch.float64"
    assert read["fc.bias"] == "torch.float16" and read["fc.weight"] == read["bn1.weight"] == "torch.float32"
    assert read["layer1.0.bn1.num_batches_tracked"] == "torch.int64"


def test_float64_is_kept_as_float32(tmp_path: Path) -> None:
    """`--keep-float32` says the type of the output: what was wider is rounded to it, what was narrower is widened."""
    bn = nn.BatchNorm1d(4).double()
    path = save(tmp_path, {**{f"bn.{k}": v for k, v in bn.state_dict().items()}, "w": torch.randn(3).double()})
    found = paramtool.convert(path, tmp_path / OUT, dtype="float16", keep_float32=["batchnorm"])
    assert load_file(tmp_path / OUT)["bn.running_var"].dtype == torch.float32
    assert found.typed is not None and found.typed.casts["bn.running_var"] == "float64"
    half = tmp_path / "half.safetensors"
    paramtool.convert(path, half, dtype="float16")
    paramtool.convert(half, tmp_path / "wide.safetensors", keep_float32=["batchnorm"])
    assert load_file(tmp_path / "wide.safetensors")["bn.weight"].dtype == torch.float32


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.safetensors", "out.pt"])
def test_verify_rounds_the_source(name: str, resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    _, path = resnet
    paramtool.convert(path, tmp_path / name, dtype="float16", keep_float32=["batchnorm"])
    found = paramtool.verify(tmp_path / name, path)
    assert not found.differences and not found.warnings and found.rounded == 9


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "conv1.weight",
            lambda t: t.flatten().index_fill(0, torch.tensor([7]), 0).view(t.shape),
            "rounded from float32",
        ),
        ("bn1.running_mean", lambda t: torch.nextafter(t, t + 1), "bytes differ"),
        ("fc.weight", lambda t: t.to(torch.bfloat16).to(torch.float16), "rounded from float32 to float16"),
        ("fc.bias", lambda t: t.float(), None),
        ("bn1.bias", lambda t: t.half(), "is float16 [8]; the source has float32 [8]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_value_is_a_difference(
    name: str, changed: Any, message: str | None, resnet: tuple[ResNet, Path], tmp_path: Path
) -> None:
    """One element, one unit in the last place, another rounding, another type."""
    _, path = resnet
    paramtool.convert(path, tmp_path / OUT, dtype="float16", keep_float32=["batchnorm"])
    with safe_open(tmp_path / OUT, "pt") as file:
        metadata = file.metadata()
    read = load_file(tmp_path / OUT)
    save_file({**read, name: changed(read[name]).contiguous()}, tmp_path / OUT, metadata)
    (difference,) = paramtool.verify(tmp_path / OUT, path).differences
    assert difference.startswith(repr(name)) and (message or "differ") in difference


def test_without_the_record_the_type_is_a_difference(resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    _, path = resnet
    paramtool.convert(path, tmp_path / OUT, dtype={"fc.weight": "float16"})
    save_file(load_file(tmp_path / OUT), tmp_path / OUT)
    assert paramtool.verify(tmp_path / OUT, path).differences == (
        "'fc.weight': is float16 [10, 16]; the source has float32 [10, 16]",
    )


def record(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["paramtool.types"])
    return found


def test_the_record_survives_what_comes_next(resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    """dedup and a further cast keep what is still true: each name with the type before its last cast."""
    _, path = resnet
    one, two, three = (tmp_path / f"{k}.safetensors" for k in range(3))
    paramtool.convert(path, one, dtype={"fc.weight": "float16", "conv1.weight": "bfloat16"})
    assert record(one) == {"version": 1, "cast": {"conv1.weight": "float32", "fc.weight": "float32"}}
    paramtool.dedup(one, two)
    assert record(two) == record(one) and not paramtool.verify(two, path).differences
    paramtool.convert(two, three, dtype={"conv1.weight": "float16"})
    assert record(three)["cast"] == {"fc.weight": "float32", "conv1.weight": "bfloat16"}
    found = paramtool.verify(three, two)
    assert not found.differences and found.rounded == 1


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2, "cast": {}}', '{"version": 3, "cast": {}}', '{"version": 1}',
             '{"version": 1, "cast": ["w"]}',
             '{"version": 1, "cast": {"w": 1}}', '{"version": 1, "cast": {"w": "float33"}}', "[" * 99999],
    ids=range(9),
)  # fmt: skip
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2).half()}, tmp_path / OUT, {"paramtool.types": text})
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match="record of casts"):
        paramtool.verify(tmp_path / OUT, tmp_path / "w.safetensors")


# --- what is lost -----------------------------------------------------------------------------------------------------


def numbers() -> torch.Tensor:
    return torch.tensor([1.0, 1 / 3, 1e5, -1e6, 1e-9, -1e-30, 3e-6, float("inf"), float("nan"), 0.0, -0.0])


@pytest.mark.parametrize("end", ["safetensors", "pt"])
def test_losses_are_counted(end: str, tmp_path: Path) -> None:
    path = save(tmp_path, {"x": numbers(), "y": torch.ones(4)})
    found = paramtool.convert(path, tmp_path / f"o.{end}", dtype="float16", allow_overflow=True)
    losses = found.losses["x"]
    assert (losses.elements, losses.overflow, losses.to_zero, losses.subnormal, losses.nan) == (11, 2, 2, 1, 1)
    assert losses.rounded == 4 and found.losses["y"].rounded == 0
    read = paramtool.load_file(tmp_path / f"o.{end}")["x"]
    with np.errstate(all="ignore"):
        assert np.array_equal(read, numbers().numpy().astype("f2"), equal_nan=True) and np.signbit(read[-1])


@pytest.mark.parametrize("dry_run", [False, True])
def test_overflow_is_refused_by_name(dry_run: bool, tmp_path: Path) -> None:
    """Every tensor that overflows is listed, and nothing is written."""
    path = save(tmp_path, {"x": numbers(), "y": torch.ones(4), "z.w": torch.full((3,), 7e4)})
    with pytest.raises(PlanError, match=r"2 tensors would overflow:\n  'x': 2 of 11 .*\n  'z.w': 3 of 3") as error:
        paramtool.convert(path, tmp_path / OUT, dtype="float16", dry_run=dry_run)
    assert error.value.exit_code == 6 and "--dtype x=float32" in error.value.hint
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]
    paramtool.convert(path, tmp_path / OUT, dtype={"*": "float16", "[xz]*": "bfloat16"})


def test_a_dry_run_counts_what_writing_counts(resnet: tuple[ResNet, Path], tmp_path: Path) -> None:
    _, path = resnet
    dry = paramtool.convert(path, tmp_path / OUT, dtype="float16", dry_run=True)
    wet = paramtool.convert(path, tmp_path / OUT, dtype="float16")
    assert dry.losses == wet.losses and len(dry.losses) == 37


def test_integers_are_cast_by_name_where_nothing_is_lost(tmp_path: Path) -> None:
    path = save(tmp_path, {"n": torch.tensor([0, 2048]), "m": torch.tensor([2049]), "b": torch.tensor([True])})
    paramtool.convert(path, tmp_path / OUT, dtype={"n": "float16", "b": "bfloat16"})
    read = load_file(tmp_path / OUT)
    assert raw({"n": read["n"], "b": read["b"]}) == raw(
        {"n": torch.tensor([0, 2048], dtype=torch.float16), "b": torch.ones(1, dtype=torch.bfloat16)}
    )
    assert not paramtool.verify(tmp_path / OUT, path).differences
    with pytest.raises(PlanError, match="'m': int64 to float16 changes numbers"):
        paramtool.convert(path, tmp_path / "no.safetensors", dtype={"m": "float16"}, allow_overflow=True)
    with pytest.raises(UsageError, match="none of them of floating point"):
        paramtool.convert(path, tmp_path / "no.safetensors", dtype={"*": "float16"})


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A tensor is cast, counted and read back in pieces: 192 MB go through about half of that."""
    path = tmp_path / "large.safetensors"
    save_file({"x": torch.ones(48 << 20)}, path)
    tracemalloc.start()
    paramtool.convert(path, tmp_path / OUT, dtype="float16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["safetensors", "pt"])
def test_views_follow_their_owner(end: str, tmp_path: Path) -> None:
    """Ties, slices, transposes and parts of one buffer: the same views as before, on rounded numbers."""
    w, buffer = torch.randn(4, 6), torch.randn(99)
    state = {"w": w, "tied": w, "t": w.T, "row": w[1], "x": buffer[:40].view(4, 10), "y": buffer[30:90:2]}
    path = save(tmp_path, state)
    paramtool.convert(path, tmp_path / f"o.{end}", dtype="bfloat16")
    read = paramtool.torch.load_file(tmp_path / f"o.{end}")
    assert raw(read) == raw({name: tensor.to(torch.bfloat16) for name, tensor in state.items()})
    assert {n: (t.stride(), t.storage_offset()) for n, t in read.items() if n in ["w", "tied", "t", "row"]} == {
        n: (t.stride(), t.storage_offset()) for n, t in state.items() if n in ["w", "tied", "t", "row"]
    }
    read["tied"].fill_(2)
    assert (read["w"] == 2).all() and (read["t"] == 2).all() and (read["row"] == 2).all()
    read["x"].fill_(3)
    assert (read["y"][:5] == 3).all()
    assert not paramtool.verify(tmp_path / f"o.{end}", path).differences


def test_a_rule_that_splits_memory_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, Tagger().state_dict())
    with pytest.raises(PlanError, match=r"share memory .*\n  'emb.weight': float32\n  'head.weight': float16") as error:
        paramtool.convert(path, tmp_path / OUT, dtype={"head.weight": "float16"})
    assert error.value.exit_code == 6 and "head.weight=float32" in error.value.hint
    paramtool.convert(path, tmp_path / OUT, dtype={"head.weight": "float16", "emb.weight": "float16"})
    assert paramtool.load_file(tmp_path / OUT)["emb.weight"].dtype == np.float16


def test_reinterpreted_bytes_are_not_cast(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    bits = {"owner": "w", "memory": "w", "evidence": "storage", "relation": "view", "dtype": "int32", "shape": [4],
            "strides": [1], "offset": 0, "position": 1}  # fmt: skip
    record = {"version": 1, "aliases": {"bits": bits}, "stored": {}, "spans": []}
    save_file({"w": torch.randn(4), "other": torch.ones(2)}, path, {"paramtool.aliases": json.dumps(record)})
    with pytest.raises(PlanError, match="other types share these bytes"):
        paramtool.convert(path, tmp_path / OUT, dtype="float16")
    paramtool.convert(path, tmp_path / OUT, dtype={"*": "float16", "w": "float32"})
    read = paramtool.load_file(tmp_path / OUT)
    assert [read[name].dtype.name for name in ("other", "w", "bits")] == ["float16", "float32", "int32"]


def test_equal_bytes_come_apart_where_types_differ(tmp_path: Path) -> None:
    """Names that a dedup stored together because they are equal, and that are not tied, can have two types."""
    path = save(tmp_path, {name: torch.ones(5000) for name in "abc"})
    paramtool.dedup(path, tmp_path / "d.safetensors")
    paramtool.convert(tmp_path / "d.safetensors", tmp_path / OUT, dtype={"[bc]": "float16"})
    read = paramtool.load_file(tmp_path / OUT)
    assert [read[name].dtype.name for name in "abc"] == ["float32", "float16", "float16"]
    assert len(load_file(tmp_path / OUT)) == 2 and not paramtool.verify(tmp_path / OUT, path).differences
    assert read["b"].ctypes.data != read["c"].ctypes.data


def test_derived_tensors_are_stored_where_they_are_cast(tmp_path: Path) -> None:
    wide = torch.randn(3000)
    path = save(tmp_path, {"w": wide, "half": wide.half(), "zero": torch.zeros(9999), "one": torch.ones(9999)})
    paramtool.dedup(path, tmp_path / "d.safetensors", derive_casts=True, fold_constants=True)
    with safe_open(tmp_path / "d.safetensors", "pt") as file:
        assert set(file.keys()) == {"w"}
    paramtool.convert(tmp_path / "d.safetensors", tmp_path / OUT, dtype={"w": "bfloat16", "zero": "float16"})
    read = paramtool.load_file(tmp_path / OUT)
    assert {name: array.dtype.name for name, array in read.items()} == {
        "w": "bfloat16", "half": "float16", "zero": "float16", "one": "float32"
    }  # fmt: skip
    assert (read["half"] == wide.half().numpy()).all() and not paramtool.verify(tmp_path / OUT, path).differences


# --- what a rule does not touch ---------------------------------------------------------------------------------------


def training() -> Mapping[str, Any]:
    model = nn.Linear(3, 4)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    adam.step()
    return {"model": model.state_dict(), "optimizer": adam.state_dict(), "epoch": 3}


def test_the_moments_stay_unless_a_pattern_names_them(tmp_path: Path) -> None:
    path = save(tmp_path, training())
    found = paramtool.convert(path, tmp_path / "o.pt", dtype="bfloat16")
    read = torch.load(tmp_path / "o.pt")
    assert read["model"]["weight"].dtype == torch.bfloat16
    assert read["optimizer"]["state"][0]["exp_avg"].dtype == torch.float32
    assert found.typed is not None and "6 tensors of the optimizer" in found.typed.left[0]
    paramtool.convert(path, tmp_path / "p.pt", dtype=["bfloat16", "*.exp_avg*=float16"])
    read = torch.load(tmp_path / "p.pt")
    assert read["optimizer"]["state"][1]["exp_avg_sq"].dtype == torch.float16
    assert read["optimizer"]["state"][1]["step"].dtype == torch.float32 and read["epoch"] == 3


def test_an_optimizer_that_holds_the_parameters_follows_them(tmp_path: Path) -> None:
    """Old savers pickle the parameters once more beside the moments: both names keep one storage, in one type."""
    path = save(tmp_path, state := dict(training()))
    state["optimizer"]["params"] = [state["model"]["weight"]]
    torch.save(state, path)
    paramtool.convert(path, tmp_path / "o.pt", dtype="bfloat16")
    read = torch.load(tmp_path / "o.pt")
    (held,) = read["optimizer"]["params"]
    assert held.data_ptr() == read["model"]["weight"].data_ptr() and held.dtype == torch.bfloat16
    assert read["optimizer"]["state"][0]["exp_avg"].dtype == torch.float32


@needs("torch", "2.2", "saves float8")
def test_complex_numbers_and_small_floats_stay(tmp_path: Path) -> None:
    c = torch.randn(3, dtype=torch.complex64)
    path = save(tmp_path, {"c": c, "q": torch.ones(4).to(torch.float8_e4m3fn), "w": torch.ones(4), "k": c.conj()})
    paramtool.convert(path, tmp_path / "o.pt", dtype="float16")
    read = torch.load(tmp_path / "o.pt")
    assert [str(read[name].dtype) for name in "cqwk"] == [
        "torch.complex64", "torch.float8_e4m3fn", "torch.float16", "torch.complex64"
    ]  # fmt: skip
    paramtool.convert(path, tmp_path / "p.pt", dtype={"[qw]": "float8_e5m2"})
    assert torch.load(tmp_path / "p.pt")["q"].dtype == torch.float8_e5m2
    with pytest.raises(PlanError, match="complex64, which cannot be cast"):
        paramtool.convert(path, tmp_path / "n.pt", dtype={"c": "float16"})


def test_contradictions_and_misspelt_rules(tmp_path: Path) -> None:
    path = save(tmp_path, {f"bn.{k}": v for k, v in nn.BatchNorm1d(3).state_dict().items()})
    for options, message in (
        ({"dtype": {"bn.weight": "float16"}, "keep_float32": ["batchnorm"]}, "keep_float32 keeps that"),
        ({"dtype": {"conv.*": "float16"}}, "matches none of 5 tensors"),
        ({"dtype": "float16", "keep_float32": ["batchnrom"]}, "did you mean batchnorm"),
        ({"dtype": "float16", "at": ["rnn"]}, "^at says how networks are converted"),
    ):
        with pytest.raises(UsageError, match=message):
            paramtool.convert(path, tmp_path / OUT, **options)  # type: ignore[arg-type]
    found = paramtool.convert(path, tmp_path / OUT, dtype="float16", keep_float32=["batchnorm", "scales"])
    assert "--keep-float32 scales: there is no such module" in found.warnings


# --- with a layout ----------------------------------------------------------------------------------------------------


def test_first_the_layout_then_the_type(tmp_path: Path) -> None:
    """Sums are made in the source's type and rounded once: 1 + 2**-12 + 2**-12 is not 1 + 0 + 0."""
    lstm = nn.LSTM(2, 3)
    with torch.no_grad():
        lstm.bias_ih_l0.fill_(1 + 2**-11)
        lstm.bias_hh_l0.fill_(2**-12)
    path = save(tmp_path, {f"rnn.{name}": tensor for name, tensor in lstm.state_dict().items()})
    paramtool.convert(path, tmp_path / OUT, target="keras", dtype="float16")
    read = paramtool.load_file(tmp_path / OUT)
    once = (lstm.bias_ih_l0 + lstm.bias_hh_l0).detach().half().numpy()
    twice = lstm.bias_ih_l0.detach().half() + lstm.bias_hh_l0.detach().half()
    assert (read["rnn/bias"] == once).all() and not (torch.from_numpy(once) == twice).any()
    assert read["rnn/kernel"].dtype == np.float16
    assert not paramtool.verify(tmp_path / OUT, path).differences


OURS = """
[types]
dtype = "float16"
keep_float32 = ["batchnorm", "actnorm"]
rules = {"head.*" = "bfloat16"}
kinds = {actnorm = ["*.actnorm.*"]}
"""


def test_rules_in_a_file(tmp_path: Path) -> None:
    """A file has rules, kinds of its own, or both; flags come after it, so that they count."""
    (tmp_path / "ours.toml").write_text(OURS)
    names = ["head.w", "flow.actnorm.loc", "body.w", "bn.running_mean", "bn.running_var"]
    path = save(tmp_path, {name: torch.ones(2) for name in names})
    ours = [tmp_path / "ours.toml"]
    paramtool.convert(path, tmp_path / OUT, layout_file=ours)
    read = {name: str(tensor.dtype)[6:] for name, tensor in load_file(tmp_path / OUT).items()}
    assert read == dict(zip(names, ["bfloat16", "float32", "float16", "float32", "float32"], strict=True))
    paramtool.convert(path, tmp_path / OUT, layout_file=ours, dtype=["float64", "head.w=float32"], force=True)
    read = {name: str(tensor.dtype)[6:] for name, tensor in load_file(tmp_path / OUT).items()}
    assert read["head.w"] == "float32" and read["body.w"] == "float64" and read["flow.actnorm.loc"] == "float32"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "layout is missing"),
        ("[types]\ndtypes = 'float16'", "unknown key 'dtypes'.*\n.*did you mean dtype"),
        ("[types]\ndtype = 'float17'", "'float17' is not one of"),
        ("[types]\nrules = ['a=float16']", "rules is .*; expected a table of strings"),
        ("[types]\nkeep_float32 = 'batchnorm'", "expected a list of strings"),
        ("[types]\nkinds = {a = 'b'}", "expected a table of lists"),
        ("[types.kinds]\nbatchnorm = ['b.*']", "comes with paramtool"),
        ("types = 1", "types is 1; expected a table"),
    ],
    ids=range(8),
)
def test_what_is_wrong_in_a_file_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(text)
    path = save(tmp_path, {"w": torch.ones(2)})
    with pytest.raises(UsageError, match=message):
        paramtool.convert(path, tmp_path / OUT, layout_file=[tmp_path / "ours.toml"])


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_shards(tmp_path: Path) -> None:
    """Shards give shards; a config that says a type is copied, and a warning says so."""
    folder = tmp_path / "model"
    folder.mkdir()
    state = {f"l{k}.weight": torch.randn(40, 40) for k in range(5)}
    path = save(folder, state, "pytorch_model.bin")
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    found = paramtool.convert(folder, tmp_path / "half", dtype="float16", max_shard_size=8000)
    read = paramtool.load_file(tmp_path / "half")
    assert raw(read) == raw({name: tensor.half() for name, tensor in state.items()})
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 1
    assert [text for text in found.warnings if "torch_dtype" in text]
    verified = paramtool.verify(tmp_path / "half", folder)
    assert not verified.differences and verified.rounded == 5 and path.exists()


# --- converted networks are compared, too -----------------------------------------------------------------------------


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "layout", ["keras", "cudnn", "mxnet", "mxnet.flat", "mxnet.v2", "tf1.basic", "haiku", "torch.cell"]
)
@pytest.mark.parametrize("dtype", [(), "bfloat16"], ids=["as it is", "bfloat16"])
def test_verify_converts_again(dtype: Any, layout: str, tmp_path: Path) -> None:
    """What a conversion wrote is compared with the source; one bit of one element is a difference."""
    lstm = nn.LSTM(3, 4, 2)
    path = save(tmp_path, {f"rnn.{name}": tensor for name, tensor in lstm.state_dict().items()})
    report = paramtool.convert(path, tmp_path / OUT, target=layout, dtype=dtype)
    found = paramtool.verify(tmp_path / OUT, path)
    targets = report.converted[0].targets
    assert not found.differences and not found.converted and found.remade == len(targets)
    data = bytearray((tmp_path / OUT).read_bytes())
    data[-1] ^= 1  # in the last tensor
    (tmp_path / OUT).write_bytes(data)
    (difference,) = paramtool.verify(tmp_path / OUT, path).differences
    assert "bytes differ from what converting the source gives" in difference


def test_verify_makes_again_what_an_option_of_the_command_line_gave(tmp_path: Path) -> None:
    """The options of a layout are in the record; other numbers are found, and a record with another value, too."""
    lstm = {f"rnn.{name}": tensor for name, tensor in nn.LSTM(3, 4).state_dict().items()}
    paramtool.convert(save(tmp_path, lstm), tmp_path / "tf.safetensors", target="tf1.basic:forget_bias=0.5")
    path, out = save(tmp_path, paramtool.torch.load_file(tmp_path / "tf.safetensors")), tmp_path / OUT
    paramtool.convert(path, out, source="tf1.basic:forget_bias=0.5", target="torch", at=("rnn",))
    found = paramtool.verify(out, path)
    assert not found.differences and found.remade == 4 and not found.warnings
    out.write_bytes(out.read_bytes().replace(b"forget_bias=0.5", b"forget_bias=0.4"))
    assert any("rnn.bias_ih_l0" in text for text in paramtool.verify(out, path).differences)


WRONG = {
    "another network": lambda state: {name: torch.rand_like(one) for name, one in state.items()},
    "exchanged networks": lambda state: {
        f"{'b' if name[0] == 'a' else 'a'}{name[1:]}": one for name, one in state.items()
    },
    "exchanged matrices": lambda state: (
        state | {"a.weight_hh_l0": state["b.weight_hh_l0"], "b.weight_hh_l0": state["a.weight_hh_l0"]}
    ),
    "other gates": lambda state: {
        name: torch.cat([one.chunk(4)[gate] for gate in (0, 1, 3, 2)]) for name, one in state.items()
    },
    "one number": lambda state: state | {"a.bias_hh_l0": state["a.bias_hh_l0"] + 1},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_verify_of_a_file_that_records_nothing_compares_as_diff_does(wrong: str, tmp_path: Path) -> None:
    """ONNX has no room for a record: its own words say which network each is, and in which layout."""
    state = {f"{at}.{name}": one for at in "ab" for name, one in nn.LSTM(3, 4).state_dict().items()}
    path = save(tmp_path, state)
    paramtool.convert(path, tmp_path / "out.onnx", target="onnx")
    found = paramtool.verify(tmp_path / "out.onnx", path)
    assert not found.differences and found.remade == 6
    found = paramtool.verify(tmp_path / "out.onnx", save(tmp_path, WRONG[wrong](state)))
    assert found.converted == 6 and any("'a.B', 'a.R', 'a.W': onnx makes" in text for text in found.differences)


LOST = {
    "as it is": {},
    "renamed": {"rename": {"rnn": "enc"}},
    "exchanged": {"rename": {"rnn": "two", "two": "rnn"}},
    "cast": {"dtype": "bfloat16"},
    "kept": {"keep_split": True},
    "apart": {"stack": ("rnn=a,b",)},
    "apart, in ONNX": {"stack": ("rnn=a,b",), "target": "onnx"},
    "ignored": {},
} | {layout: {"target": layout} for layout in ("onnx", "cudnn", "mxnet.flat", "torch.cell", "haiku", "tf1.basic")}


@pytest.mark.parametrize("how", LOST)
def test_verify_misses_each_tensor_that_a_conversion_did_not_read(how: str, tmp_path: Path) -> None:
    """A tensor that converting gives, and one beside the network that nothing reads, is missed where it is lost."""
    state = {f"{at}.{name}": tensor for at in ("rnn", "two") for name, tensor in nn.LSTM(3, 4, 2).state_dict().items()}
    state |= {"rnn.beside": torch.rand(3)} if how == "ignored" else {"head.weight": torch.rand(3)}
    ignore = ("rnn.beside",) if how == "ignored" else ()
    path, out = save(tmp_path, state), tmp_path / OUT
    paramtool.convert(path, out, **{"target": "keras", "ignore": ignore, **LOST[how]})
    whole = paramtool.verify(out, path)
    assert not whole.differences and not whole.converted and whole.remade >= len(load_file(out)) - 1, whole
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    made = load_file(out)
    for lost in made:
        save_file({name: tensor for name, tensor in made.items() if name != lost}, out, metadata=metadata)
        found = paramtool.verify(out, path)
        assert any(repr(lost) in text and "missing" in text for text in found.differences), (lost, found)


@pytest.mark.parametrize("suffix", ["npz", "h5", "msgpack", "safetensors", "pt"])
def test_overlapping_windows_are_counted_in_every_format(tmp_path: Path, suffix: str) -> None:
    """Two windows overlap, and no name is their storage: formats that store names apart count each of them."""
    storage = torch.tensor([1.0001, 2, 3, 1e6])
    path, out = save(tmp_path, {"x": storage[:3], "y": storage[1:]}), tmp_path / f"out.{suffix}"
    with pytest.raises(PlanError, match="would overflow") as caught:
        paramtool.convert(path, out, dtype="float16")
    assert "--dtype y=float32" in str(caught.value.hint) or "--dtype x=float32" in str(caught.value.hint)
    assert not out.exists()
    report = paramtool.convert(path, out, dtype="bfloat16")
    assert report.typed is not None and set(report.typed.casts) <= {one.name for one in report.plan.targets}
    assert set(report.typed.casts) == set(report.losses)


def test_casts_of_tensors_that_are_left_out_are_not_reported(tmp_path: Path) -> None:
    report = paramtool.convert(
        save(tmp_path, Tagger().state_dict()), tmp_path / "out.onnx", target="onnx", dtype="float16",
        skip_unsupported=True,
    )  # fmt: skip
    assert report.typed is not None and report.typed.casts
    assert set(report.typed.casts) == {one.name for one in report.plan.targets}


# --- quantised weights: ../shared/findings/field/cast-of-codes -------------------------------------------------------

CODES = {
    "m.weight": torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.float8_e4m3fn),
    "m.weight_scale_inv": torch.full((1, 1), 0.3), "m.bias": torch.rand(16), "self_attn.k_proj.weight": torch.ones(
        4, 4, dtype=torch.int8), "self_attn.k_proj.SCB": torch.rand(4), "self_attn.k_scale": torch.rand(1),
    "four.weight": torch.ones(8, 1, dtype=torch.bfloat16), "four.weight.absmax": torch.rand(1),
    "four.weight.quant_map": torch.rand(16),
    "four.weight.quant_state.bitsandbytes__nf4": torch.ones(9, dtype=torch.uint8),
}  # fmt: skip


def test_scales_keep_their_type(tmp_path: Path) -> None:
    """Only what no codes need is cast, and the report says so; a pattern that names scales casts them."""
    save_file(CODES, tmp_path / "m.safetensors")
    found = paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dtype="float16")
    assert found.typed is not None and found.typed.casts == {"m.bias": "float32"}
    assert raw({**load_file(tmp_path / OUT), "m.bias": CODES["m.bias"]}) == raw(CODES)
    assert any("5 scales of quantised weights" in text for text in found.typed.left)
    rules = ["float16", "*.weight_scale_inv=bfloat16", "four.weight.absmax=bfloat16"]
    paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dtype=rules, force=True)
    types = {name: tensor.dtype for name, tensor in load_file(tmp_path / OUT).items()}
    assert types["m.weight_scale_inv"] == types["four.weight.absmax"] == torch.bfloat16
    assert types["self_attn.k_scale"] == types["four.weight.quant_map"] == torch.float32


def test_scales_that_are_codes_are_not_cast(tmp_path: Path) -> None:
    """As bitsandbytes stores NF4 with `compress_statistics`."""
    functional = pytest.importorskip("bitsandbytes.functional")
    codes, state = functional.quantize_4bit(torch.randn(64, 64), quant_type="nf4", compress_statistics=True)
    said = {name: value for name, value in state.as_dict(packed=True).items() if isinstance(value, torch.Tensor)}
    assert said["absmax"].dtype == torch.uint8
    save_file(
        {"l.weight": codes, **{f"l.weight.{name}": value for name, value in said.items()}}, tmp_path / "m.safetensors"
    )
    with pytest.raises(PlanError, match=r"'l.weight.absmax': the codes of quantised weights mean nothing") as error:
        paramtool.convert(tmp_path / "m.safetensors", tmp_path / "o.safetensors", dtype=["l.weight.absmax=float16"])
    assert error.value.exit_code == 6 and not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize(
    "rule", ["*.weight=bfloat16", "*=float16", "m.weight=float32", "self_attn.k_proj.weight=float32"]
)
def test_codes_are_not_cast(rule: str, tmp_path: Path) -> None:
    save_file(CODES, tmp_path / "m.safetensors")
    with pytest.raises(PlanError, match="codes of quantised weights mean nothing"):
        paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dtype=rule)
    assert not (tmp_path / OUT).exists()


def test_what_cannot_be_dequantised_is_refused(tmp_path: Path) -> None:
    save_file(CODES, tmp_path / "m.safetensors")
    with pytest.raises(PlanError, match=r"(?s)2 quantised weights cannot be dequantised:.*int8 \[4, 4\]"):
        paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dequantise=True)
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="no quantised weights"):
        paramtool.convert(tmp_path / "w.safetensors", tmp_path / OUT, dequantise=True)
    with pytest.raises(UsageError, match="target torch"):
        paramtool.convert(tmp_path / "w.safetensors", tmp_path / OUT, dequantise=True, target="torch")
    few = {name: CODES[name] for name in ("m.weight", "m.weight_scale_inv")}
    save_file(few, tmp_path / "few.safetensors")
    with pytest.raises(UsageError, match="dequantise makes it no float8"):
        paramtool.convert(tmp_path / "few.safetensors", tmp_path / OUT, dequantise=True, dtype="m.*=float8_e4m3fn")


def test_large_codes_take_little_memory(tmp_path: Path) -> None:
    """Neither the codes nor the weights are in memory as a whole."""
    weight = torch.zeros(8192, 4096, dtype=torch.float8_e4m3fn)
    save_file({"m.weight": weight, "m.weight_scale_inv": torch.rand(64, 32)}, tmp_path / "m.safetensors")
    paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dequantise=True, dry_run=True)
    tracemalloc.start()
    paramtool.convert(tmp_path / "m.safetensors", tmp_path / OUT, dequantise=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 110 << 20 < 4 * weight.numel()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_an_optimizer_keeps_its_type_in_every_container(suffix: str, tmp_path: Path) -> None:
    """What the checkpoint of TensorFlow says of its optimizer, its names say where they are all that is left of it."""
    source = Path(__file__).parents[2] / "fixtures" / "tensorflow" / "keras_rnn" / "values.npz"
    names, path = paramtool.load_file(source), tmp_path / f"source{suffix}"
    if suffix == ".npz":
        np.savez(path, **names)
    elif suffix == ".pt":
        torch.save({name: torch.from_numpy(array) for name, array in names.items()}, path)
    else:
        save_file({name: torch.from_numpy(array) for name, array in names.items()}, path)
    paramtool.convert(path, tmp_path / OUT, dtype="bfloat16")
    found = load_file(tmp_path / OUT)
    kept = {name for name, array in names.items() if str(array.dtype) in str(found[name].dtype)}
    assert kept == {name for name in names if name.startswith("optimizer/") or str(names[name].dtype) == "int64"}
    assert not paramtool.verify(tmp_path / OUT, path).differences
