"""Torch files that paramtool writes, in the hands of torch: training checkpoints, dtypes, what is left out, damage."""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.serialization
from safetensors.torch import save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.errors import FormatError, OutputError, PlanError, UsageError
from paramtool.model.objects import Mapping
from tests.hostile.command import quick
from tests.laws.sharing import partition, raw, same_values
from tests.oracles.test_torch import PLAIN, compounds, repacked

TORCH_ONLY = [
    torch.complex128, torch.complex32, torch.bits8, torch.bits16, torch.bits1x8, torch.float4_e2m1fn_x2,
]  # fmt: skip
"""dtypes that safetensors has no form for, or another."""
LARGE = 3 << 20
"""Elements of float32: copied by the kernel, with CRCs in threads."""


def saved(folder: Path, state: object, name: str = "in.pt") -> Path:
    torch.save(state, folder / name)
    return folder / name


def written(folder: Path, state: object, **options: Any) -> tuple[Any, dedup_command.Deduped]:
    """What torch loads from the torch output for a state, and the report."""
    report = dedup_command.dedup(saved(folder, state), folder / "out.pt", **options)
    return torch.load(folder / "out.pt", weights_only=True), report


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, types, order of keys and bytes included."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        return raw(a) == raw(b)
    if isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b]
        assert same(vars(a), vars(b)) if hasattr(a, "__dict__") else True
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


# --- whole checkpoints -------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """An embedding, an LSTM, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(20, 8)
        self.rnn = torch.nn.LSTM(8, 8, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.rnn(self.emb(tokens))[0].mean(1)))  # type: ignore[no-any-return]


def trained(steps: int = 3) -> tuple[Tied, torch.optim.AdamW, Any]:
    """A model that was trained for some steps."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, scheduler, steps)
    return model, optimizer, scheduler


def train(model: Tied, optimizer: torch.optim.AdamW, scheduler: Any, steps: int) -> None:
    for step in range(steps):
        tokens = torch.arange(12).view(4, 3) + step
        torch.nn.functional.cross_entropy(model(tokens % 20), tokens[:, 0] % 20).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def test_a_training_checkpoint_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Model, optimizer, scheduler, random state and epoch come back with their structure, and train on alike."""
    model, optimizer, scheduler = trained()
    state = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(), "epoch": 3, "best": 0.5, "history": [(1, 2.5), (2, None)],
    }  # fmt: skip
    found, report = written(tmp_path, state)
    assert same(torch.load(tmp_path / "in.pt", weights_only=True), found)
    assert report.left_out == ()
    assert paramtool.read(tmp_path / "in.pt").objects == paramtool.read(tmp_path / "out.pt").objects
    again, optimizer_again, scheduler_again = trained(0)
    again.load_state_dict(found["model"])
    optimizer_again.load_state_dict(found["optimizer"])
    scheduler_again.load_state_dict(found["scheduler"])
    train(model, optimizer, scheduler, 2)
    train(again, optimizer_again, scheduler_again, 2)
    assert same(model.state_dict(), again.state_dict())
    assert found["model"]["emb.weight"].data_ptr() == found["model"]["head.weight"].data_ptr()


def test_every_kind_of_object_comes_back(tmp_path: Path) -> None:
    """Typed keys, numbers of any size, bytes, complex numbers, sets, sizes, devices, dtypes, attributes."""
    w = torch.arange(4.0)
    tagged = torch.arange(3.0)
    tagged.note = {"x": w[1:]}  # type: ignore[attr-defined]
    ordered = OrderedDict(w=w)
    ordered._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    loop: dict[str, Any] = {"n": 1}
    loop["self"] = loop
    state = {
        0: "number", "0": "text", (1, "a"): 2, None: 3, True: 4,
        "ü\ud800": [1, -1, 255, 256, 65535, 65536, 2**31, -(2**40), 2**500],
        "f": (0.0, -0.0, float("inf"), float("nan")), "b": [b"", b"\0\xff", bytearray(b"ab")], "c": 1 - 2j,
        "s": {1, "two"},
        "size": w.shape, "dev": torch.device("cuda", 1), "dtype": torch.bfloat16, "ordered": ordered,
        "count": Counter("aab"), "tagged": tagged, "empty": [{}, [], (), OrderedDict()], "deep": {"a": [{"b": (w,)}]},
    }  # fmt: skip
    found, report = written(tmp_path, state)
    assert report.left_out == ()
    assert same(torch.load(tmp_path / "in.pt", weights_only=False), found)  # weights_only refuses torch's own b""
    assert found["tagged"].note["x"].data_ptr() == found["ordered"]["w"].data_ptr() + 4
    found, _ = written(tmp_path, {"w": w, "loop": loop}, force=True)
    assert found["loop"]["self"] is found["loop"]


@pytest.mark.parametrize("state", [torch.arange(3.0), [torch.ones(2), torch.ones(3)], {"a": {"b": [torch.ones(1)]}}])
def test_the_top_may_be_anything(tmp_path: Path, state: Any) -> None:
    """A lone tensor, a list, dicts in dicts."""
    assert same(state, written(tmp_path, state)[0])


def test_names_that_collide(tmp_path: Path) -> None:
    """Where two places have one name, both come back in their places."""
    state = {"a.b": torch.ones(1), "a": {"b": torch.zeros(2)}, 0: torch.ones(3), "0": torch.ones(4)}
    assert same(state, written(tmp_path, state)[0])


def test_a_section_with_escaped_names_is_written_flat(tmp_path: Path) -> None:
    """Names that only collided in the whole keep their names, though the nesting cannot say them."""
    state = {"m": {"a.b": torch.ones(1), "c": {"d": torch.ones(5)}, "n": 1}, "m.a": {"b": torch.zeros(2)}}
    with pytest.raises(PlanError, match="nesting"):
        written(tmp_path, state, only="m")
    found, report = written(tmp_path, state, only="m", skip_unsupported=True)
    checkpoint = paramtool.read(tmp_path / "out.pt")
    assert set(checkpoint.entries) == set(found) == {"a\\.b", "c.d"}
    assert any("nesting" in line for line in report.left_out)


def test_flags_of_gradients_are_kept(tmp_path: Path) -> None:
    """Parameters come back as tensors that ask for gradients where they did."""
    state = {
        "p": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(3), False),
        "b": torch.ones(4),
    }
    found, _ = written(tmp_path, state)
    assert {name: tensor.requires_grad for name, tensor in found.items()} == {"p": True, "frozen": False, "b": False}


@pytest.mark.sample(25)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", [*PLAIN, *TORCH_ONLY], ids=str)
def test_parameters_of_every_dtype(tmp_path: Path, dtype: torch.dtype, mmap: bool) -> None:
    """A parameter opens with torch.load and asks for gradients where torch lets it, with attributes and without."""
    data = torch.zeros(64, dtype=torch.uint8).untyped_storage()
    grad = dtype.is_floating_point or dtype.is_complex

    def parameter() -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(0, dtype=dtype).set_(data, 0, (2, 2), (2, 1)), grad)

    state = {"w": parameter(), "tagged": parameter(), "frozen": parameter().requires_grad_(False)}
    state["tagged"].note = "kept"  # type: ignore[attr-defined]
    dedup_command.dedup(saved(tmp_path, state), tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True, mmap=mmap)
    assert {name: one.requires_grad for name, one in found.items()} == {"w": grad, "tagged": grad, "frozen": False}
    assert all(one.is_leaf and one.dtype == dtype for one in found.values())
    assert len({one.untyped_storage().data_ptr() for one in found.values()}) == 1
    assert found["tagged"].note == "kept"
    read, again = (paramtool.read(tmp_path / name) for name in ("in.pt", "out.pt"))
    assert read.objects == again.objects
    assert {n: e.requires_grad for n, e in again.entries.items()} == {n: one.requires_grad for n, one in found.items()}


def test_gradients_of_integers(tmp_path: Path) -> None:
    """A pickle that asks for what torch refuses is refused."""

    def trained(member: str, data: bytes) -> bytes:
        return data.replace(b"\x89c", b"\x88c", 1) if member.endswith(".pkl") else data

    saved(tmp_path, {"w": torch.ones(4, dtype=torch.uint16)})
    changed = repacked(tmp_path / "in.pt", tmp_path / "asks.pt", change=trained)
    with pytest.raises(FormatError, match="uint16 that requires gradients"):
        paramtool.read(changed)
    with pytest.raises(RuntimeError, match="require gradients"):
        torch.load(changed, weights_only=True)


# --- dtypes, storages ----------------------------------------------------------------------------------------------


@pytest.mark.sample(25)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", [*PLAIN, *TORCH_ONLY], ids=str)
def test_dtypes(tmp_path: Path, dtype: torch.dtype, mmap: bool) -> None:
    """Every dtype of torch comes back with its bytes and its ties, typed storage or not."""
    size = torch.empty(0, dtype=dtype).element_size()
    data = (torch.arange(12 * size) % 2 if dtype == torch.bool else torch.arange(12 * size) % 120).to(torch.uint8)
    storage = data.untyped_storage()

    def window(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)

    state = {"w": window(0, (3, 4), (4, 1)), "s": window(2, (4,), (1,)), "d": window(3, (), ())}
    if dtype is torch.float4_e2m1fn_x2:
        del state["d"]  # a window on a pair of numbers has to have an axis
    else:
        state["t"] = window(0, (4, 3), (1, 4))
    dedup_command.dedup(saved(tmp_path, state), tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True, mmap=mmap)
    for name, tensor in state.items():
        other = found[name]
        assert (other.dtype, other.shape, other.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert bytes(other.untyped_storage()) == bytes(storage)
        assert other.storage_offset() == tensor.storage_offset()
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1


@pytest.mark.parametrize("name", ["uint4", "int7"])
def test_integers_of_few_bits(tmp_path: Path, name: str) -> None:
    """dtypes that torch.save knows no storage for: written untyped, which torch.load takes."""

    def renamed(member: str, data: bytes) -> bytes:
        return data.replace(b"uint16", name.encode()) if member.endswith(".pkl") else data

    saved(tmp_path, {"w": torch.ones(4, dtype=torch.uint16)})
    changed = repacked(tmp_path / "in.pt", tmp_path / "few.pt", change=renamed)
    assert paramtool.read(changed).entries["w"].value.dtype.name == name  # type: ignore[union-attr]
    dedup_command.dedup(changed, tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["w"].dtype == getattr(torch, name)


def test_two_dtypes_on_one_storage(tmp_path: Path) -> None:
    """float32 and int32 on the same bytes, which torch.save refuses: all windows stand on untyped bytes."""
    stored = {"f": torch.arange(6.0)}
    alias = {"owner": "f", "memory": "f", "evidence": "storage", "relation": "view", "dtype": "int32", "shape": [4],
             "strides": [1], "offset": 2, "position": 1}  # fmt: skip
    record = {"version": 1, "aliases": {"i": alias}, "stored": {}, "spans": []}
    save_file(stored, tmp_path / "in.safetensors", {"format": "pt", "paramtool.aliases": json.dumps(record)})
    dedup_command.dedup(tmp_path / "in.safetensors", tmp_path / "out.pt")
    for mmap in (False, True):
        found = torch.load(tmp_path / "out.pt", weights_only=True, mmap=mmap)
        assert found["i"].tolist() == stored["f"].view(torch.int32)[2:].tolist()
        assert found["i"].data_ptr() == found["f"].data_ptr() + 8


def test_equal_names_stay_apart_after_a_step(tmp_path: Path) -> None:
    """Equal bytes stand twice, the report says what that costs, and training one leaves the other alone."""
    w = torch.randn(64, 64)
    found, report = written(tmp_path, {"a": w, "b": w.clone(), "c": w.clone().t(), "tied": w})
    assert report.repeated_nbytes == 2 * w.nbytes  # of "b", and of "c", which is the transpose of "a"
    assert [set(one.names) for one in report.equal or ()] == [{"a", "b"}]
    found["a"].add_(1)
    assert torch.equal(found["tied"], w + 1)
    assert torch.equal(found["b"], w)
    assert torch.equal(found["c"], w.t())
    found, report = written(tmp_path, {"a": w, "b": w.clone()}, equal=False, force=True)
    assert (report.repeated_nbytes, report.equal) == (0, None)


def test_what_is_calculated_on_load_is_written_out(tmp_path: Path) -> None:
    """A torch file holds no derived tensors: asking for them is an error, and those of an input are stored."""
    w = torch.randn(64, 64).to(torch.bfloat16)
    state = {"w": w.float(), "half": w, "ones": torch.ones(4096)}
    path = saved(tmp_path, state)
    for option in ("derive_casts", "fold_constants"):
        with pytest.raises(UsageError, match="safetensors"):
            dedup_command.dedup(path, tmp_path / "out.pt", **{option: True})
    dedup_command.dedup(path, tmp_path / "derived.safetensors", derive_casts=True, fold_constants=True)
    dedup_command.dedup(tmp_path / "derived.safetensors", tmp_path / "out.pt")
    assert same(state, {**torch.load(tmp_path / "out.pt", weights_only=True)})


def test_declared_ties_are_storage_ties(tmp_path: Path) -> None:
    """A flat pair of another tool says that two names are one: torch finds one memory."""
    save_file({"emb": torch.arange(6.0)}, tmp_path / "in.safetensors", {"format": "pt", "head": "emb"})
    dedup_command.dedup(tmp_path / "in.safetensors", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["emb"].data_ptr() == found["head"].data_ptr()


def test_unused_bytes_and_spans(tmp_path: Path) -> None:
    """A slice of a large storage brings no more than itself; windows that nobody covers stand on one span."""
    base, other = torch.arange(10_000.0), torch.arange(30.0)
    state = {"slice": base[5000:5010], "x": other[:20], "y": other[10:], "grid": other.as_strided((2, 3), (7, 2), 1)}
    found, _ = written(tmp_path, state)
    assert same(state, found)
    assert found["slice"].untyped_storage().nbytes() == 40
    assert partition(state) == partition(found)
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert sum("/data/" in name for name in archive.namelist()) == 2


def test_large_storages(tmp_path: Path) -> None:
    """Whole storages, long slices, transposed and put-together tensors: every CRC is the member's."""
    w, v = torch.randn(LARGE), torch.randn(1200, 1000)
    state = {"w": w, "slice": torch.randn(LARGE + 99)[7 : 7 + LARGE], "t": v.t(), "wide": torch.randn(4, LARGE)[:, ::2]}
    found, _ = written(tmp_path, state)
    assert same(state, found)
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert archive.testzip() is None


def test_torch_computes_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own check of the places of storages (`calculate_storage_offsets`) holds for every one."""
    state = {f"w{k}": torch.arange(float(k)) for k in range(12)}
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    dedup_command.dedup(saved(tmp_path, {"deep": {"list": list(state.values())}, **state}), tmp_path / "out.pt")
    with torch.utils.serialization.config.patch("load.calculate_storage_offsets", True):
        for mmap in (False, True):
            assert same(state, {k: v for k, v in torch.load(tmp_path / "out.pt", mmap=mmap).items() if k != "deep"})


# --- other inputs ----------------------------------------------------------------------------------------------------


def test_a_whole_module_becomes_its_state_dict(tmp_path: Path) -> None:
    """Objects of unknown classes are left out and named; their tensors stay, where they stood."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(PlanError, match=r"'net': object of torch\.nn\.modules\.container\.Sequential"):
        written(tmp_path, {"net": model, "epoch": 1})
    assert not (tmp_path / "out.pt").exists()
    found, report = written(tmp_path, {"net": model, "epoch": 1}, skip_unsupported=True)
    assert sorted(found["net"]) == sorted(model.state_dict())
    assert found["epoch"] == 1
    assert any("'net': object of" in line and "except its tensors" in line for line in report.left_out)
    assert not any("kept as plain data" in line for line in report.warnings)
    model.load_state_dict(found["net"])
    dedup_command.dedup(saved(tmp_path, model), tmp_path / "flat.pt", skip_unsupported=True)
    flat = torch.load(tmp_path / "flat.pt", weights_only=True)
    assert type(flat) is OrderedDict
    assert sorted(flat) == sorted(model.state_dict())


class Mine:
    """A class of the user's own."""

    def __init__(self) -> None:
        self.lr = 0.1


def test_what_has_no_form_is_refused_or_left_out_and_named(tmp_path: Path) -> None:
    """Objects of the user's own classes and endless numbers; a row keeps its places, other containers their items."""
    state = {"w": torch.ones(2), "row": [1, Mine(), 3], "mine": Mine(), "huge": 2**3000, "objects": np.array([None])}
    with pytest.raises(PlanError) as error:
        written(tmp_path, state)
    places = ("'row.1'", "'mine'", "'huge'", "'objects'")
    assert all(place in str(error.value) for place in places)
    assert "--plain" in str(error.value.hint)
    found, report = written(tmp_path, state, skip_unsupported=True)
    assert list(found) == ["w", "row"]
    assert found["row"] == [1, None, 3]
    for what in places:
        assert sum(line.startswith(what) for line in report.left_out) == 1, what
    found, report = written(tmp_path, state, plain=True, force=True)
    assert (found["mine"], found["row"]) == ({"lr": 0.1}, [1, {"lr": 0.1}, 3])


EVIL: list[Any] = [
    {"opaque": "os.system", "parts": [["args", {"seq": "tuple", "items": ["true"]}]]},
    {"opaque": "torch.device", "parts": [["args", {"seq": "tuple", "items": [{"opaque": "os.system", "parts": []}]}]]},
    {"opaque": "torch.device", "parts": [["args", {"seq": "tuple", "items": ["cpu"]}], ["state", 1]]},
    {"opaque": "float32", "parts": []}, {"opaque": "torch.float32\nq", "parts": []},
    {"seq": "os.system", "items": [1]}, {"map": "os.environ", "items": [["a", 1]]},
    {"seq": "torch.Size", "items": [{"tensor": "w"}]}, {"seq": "builtins.set", "items": [{"seq": "list", "items": []}]},
    {"opaque": "torch.Tensor", "parts": [["data", 1], ["state", {"opaque": "os.system", "parts": []}]]},
    {"again": "somewhere"}, {"left_out": "array"},
]  # fmt: skip


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_a_record_brings_no_names_into_the_pickle(tmp_path: Path, evil: Any) -> None:
    """Whatever a foreign alias record says its objects are: only globals that torch allows are written."""
    row = {"seq": "list", "items": [evil, 5]}
    tree = {"map": "dict", "items": [["w", {"tensor": "w"}], ["evil", evil], ["row", row]]}
    record = {"version": 1, "aliases": {}, "stored": {}, "spans": [], "objects": tree}
    save_file({"w": torch.ones(2)}, tmp_path / "in.safetensors", {"paramtool.aliases": json.dumps(record)})
    report = dedup_command.dedup(tmp_path / "in.safetensors", tmp_path / "out.pt", skip_unsupported=True)
    assert torch.serialization.get_unsafe_globals_in_checkpoint(tmp_path / "out.pt") == []
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["w"].tolist() == [1, 1]
    assert "row" not in found or found["row"][1:] == [5]  # flat where a tensor stands in two places
    assert report.left_out


def test_deep_nesting(tmp_path: Path) -> None:
    """As deep as the reader goes."""
    state: Any = [torch.ones(1)]
    for k in range(190):
        state = {"k": state} if k % 2 else [state]
    found, _ = written(tmp_path, state)
    for k in reversed(range(190)):
        found = found["k"] if k % 2 else found[0]
    assert found[0].tolist() == [1]


def test_compounds_are_refused_by_name(tmp_path: Path) -> None:
    """Sparse, quantised and nested tensors: refused, or left out where that is asked for."""
    state = {name: compounds()[name] for name in ("coo", "per_tensor", "nested")} | {"w": torch.ones(2)}
    with pytest.raises(PlanError, match="'coo'"):
        written(tmp_path, state)
    found, report = written(tmp_path, state, skip_unsupported=True)
    assert list(found) == ["w"]
    assert {line.split("'")[1] for line in report.left_out} == {"coo", "per_tensor", "nested"}


def test_pending_conjugations_are_carried_out(tmp_path: Path) -> None:
    """`x.conj()` is stored with its values."""
    x = torch.tensor([1 + 2j, 3 - 4j])
    found, _ = written(tmp_path, {"x": x, "c": x.conj(), "n": x.clone().conj().imag})
    assert raw(found["c"]) == raw(x.conj())
    assert raw(found["n"]) == raw(x.conj().imag)


def test_plain_safetensors_become_an_ordered_dict(tmp_path: Path) -> None:
    """Names with dots are keys; the strings of the file's metadata are kept beside the pickle."""
    save_file({"a.b": torch.ones(2), "a.c": torch.ones(3)}, tmp_path / "in.safetensors", {"format": "pt", "by": "me"})
    report = dedup_command.dedup(tmp_path / "in.safetensors", tmp_path / "out.pth")
    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert same(OrderedDict(torch.load(tmp_path / "out.pth")), found)
    assert sorted(found) == ["a.b", "a.c"]
    assert report.left_out == ()
    assert paramtool.read(tmp_path / "out.pth").metadata == {"by": "me"}


def test_shards_become_one_file(tmp_path: Path) -> None:
    """A folder of shards, written as one torch file; asking for shards of it is an error."""
    state = {"a": torch.arange(100.0), "b": torch.ones(50), "n": {"c": torch.ones(3)}}
    dedup_command.dedup(saved(tmp_path, state), tmp_path / "shards", max_shard_size=300)
    dedup_command.dedup(tmp_path / "shards", tmp_path / "out.bin")
    assert same(state, torch.load(tmp_path / "out.bin", weights_only=True))
    with pytest.raises(UsageError, match="shards need a folder"):
        dedup_command.dedup(tmp_path / "shards", tmp_path / "other.pt", max_shard_size=300)


def test_converted_networks(tmp_path: Path) -> None:
    """fuse to .pt and unfuse again: the network is where it was, everything else beside it."""
    lstm = torch.nn.LSTM(3, 4)
    state = {"model": {f"rnn.{k}": v for k, v in lstm.state_dict().items()}, "epoch": 2}
    relayout_command.fuse(saved(tmp_path, state), tmp_path / "fused.pt", layout="cudnn")
    fused = torch.load(tmp_path / "fused.pt", weights_only=True)
    assert fused["epoch"] == 2
    spec = "lstm layers=1 hidden=4 input=3"
    relayout_command.unfuse(tmp_path / "fused.pt", tmp_path / "back.pt", layout="cudnn", spec=spec)
    assert paramtool.alias_graph(paramtool.read(tmp_path / "fused.pt")).names
    assert verify_command.verify(tmp_path / "back.pt", tmp_path / "in.pt").differences == ()


def test_export(tmp_path: Path) -> None:
    """A plain torch file of chosen names, each for itself."""
    w = torch.arange(6.0)
    export_command.export(saved(tmp_path, {"a": w, "b": w[2:], "c": w}), tmp_path / "plain.pt", names=["b", "c"])
    found = torch.load(tmp_path / "plain.pt", weights_only=True)
    assert same(OrderedDict(b=w[2:], c=w), found)
    assert found["b"].untyped_storage().nbytes() == found["b"].nbytes


# --- damage, reports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("part", [slice(None), slice(10, -10)], ids=["whole", "slice"])
def test_a_damaged_source_is_refused(tmp_path: Path, count: int, part: slice) -> None:
    """A wrong CRC in the source ends it: nothing is left, whether the CRC would be taken over or not."""
    path = saved(tmp_path, {"w": torch.ones(count)[part]})
    data = bytearray(path.read_bytes())
    at = data.rindex(torch.ones(8).numpy().tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="CRC"):
        dedup_command.dedup(path, tmp_path / "out.pt")
    assert os.listdir(tmp_path) == ["in.pt"]


def test_what_is_written_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zipfile proves the CRCs: one that is wrong is found before the file is put in its place."""
    from paramtool.engine.write import writer

    path = saved(tmp_path, {"w": torch.randn(100)})
    monkeypatch.setattr(writer, "proved_crc32", lambda target, source: 7)
    with pytest.raises(OutputError, match="Bad CRC-32"):
        dedup_command.dedup(path, tmp_path / "out.pt")
    assert os.listdir(tmp_path) == ["in.pt"]


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt", "PT"])
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str) -> None:
    """No warning, no other word needed."""
    report = dedup_command.dedup(saved(tmp_path, {"w": torch.ones(3)}), tmp_path / f"out.{suffix}")
    assert (report.format, report.warnings) == ("torch", ())
    assert paramtool.read(tmp_path / f"out.{suffix}").format == "torch zip"


def test_the_command_says_what_equal_names_cost(tmp_path: Path) -> None:
    """The table, and the document."""
    w = torch.randn(64, 64)
    path = saved(tmp_path, {"a": w, "b": w.clone()})
    ran = quick("dedup", path.name, "-o", "out.pt", cwd=tmp_path)
    assert ran.code == 0 and not ran.err, ran
    assert "16.4 kB stored again  torch would tie names that are only equal" in ran.out
    assert "torch.load('out.pt', weights_only=True)" in ran.out
    ran = quick("dedup", path.name, "-o", "2.pt", "--json", cwd=tmp_path)
    assert json.loads(ran.out)["repeated_nbytes"] == w.nbytes


def test_the_tree_is_the_inputs(tmp_path: Path) -> None:
    """Written and read again, the objects are equal."""
    found, _ = written(tmp_path, {"m": {"w": torch.ones(1)}, "n": 1})
    objects = paramtool.read(tmp_path / "out.pt").objects
    assert isinstance(objects, Mapping)
    assert objects == paramtool.read(tmp_path / "in.pt").objects
    assert same_values({"w": torch.ones(1)}, found["m"])
