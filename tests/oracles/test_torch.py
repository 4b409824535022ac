"""Every kind of tensor and every form of file that torch writes, against torch itself."""

from __future__ import annotations

import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from paramtool.errors import FormatError, PlanError
from paramtool.model.checkpoint import Compound, NoData
from tests.hostile.command import quick
from tests.laws.sharing import described, partition, raw, same_values

PLAIN = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def sample(dtype: torch.dtype, count: int = 12) -> torch.Tensor:
    """A tensor of every second byte, whatever that means in `dtype`."""
    if dtype == torch.bool:
        return torch.arange(count) % 3 == 0
    size = torch.empty(0, dtype=dtype).element_size()
    return (torch.arange(count * size, dtype=torch.int64) % 120).to(torch.uint8).view(dtype)


def round_trip(tmp_path: Path, state: dict[str, Any], **form: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what load_file reads from the torch file, what it reads from its dedup)."""
    torch.save(state, tmp_path / "m.pt", **form)
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    return paramtool.load_file(tmp_path / "m.pt"), paramtool.load_file(tmp_path / "o.safetensors")


@pytest.mark.sample(20)
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_dtypes(tmp_path: Path, dtype: torch.dtype, zipped: bool) -> None:
    """Every dtype keeps its name, bytes and ties."""
    w = sample(dtype)
    state = {"w": w, "tied": w, "t": w.view(3, 4).t(), "part": w[3:7], "s": w[5], "other": sample(dtype, 5)}
    for found in round_trip(tmp_path, state, _use_new_zipfile_serialization=zipped):
        assert same_values(state, found)
        assert partition(state) == partition(found)


def test_complex128_is_read_and_not_written(tmp_path: Path) -> None:
    """safetensors has no complex128: it is read, and refused by name where it should be written."""
    state = {"w": sample(torch.complex128)}
    torch.save(state, tmp_path / "m.pt")
    assert same_values(state, paramtool.load_file(tmp_path / "m.pt"))
    with pytest.raises(PlanError, match=r"'w': safetensors has no complex128"):
        dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()


def test_complex32(tmp_path: Path) -> None:
    """complex32 comes as pairs of float16 on a last axis."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that ComplexHalf is experimental
        w = torch.arange(6, dtype=torch.float16).view(3, 2)
        torch.save({"w": torch.view_as_complex(w)}, tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "m.pt")["w"]
    assert np.array_equal(found, w.numpy())


def test_float4(tmp_path: Path) -> None:
    """torch's packed float4 comes as bytes, two numbers in each, and is written as F4 of twice the length."""
    w = torch.arange(8, dtype=torch.uint8).view(2, 4)
    torch.save({"w": w.view(torch.float4_e2m1fn_x2)}, tmp_path / "m.pt")
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    for path in ("m.pt", "o.safetensors"):
        assert np.array_equal(paramtool.load_file(tmp_path / path)["w"], w.numpy())
    assert paramtool.read(tmp_path / "o.safetensors").entries["w"].value.shape == (2, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_conjugated_and_negated(tmp_path: Path, dtype: torch.dtype) -> None:
    """Bits that torch has not carried out yet are carried out in what is loaded."""
    w = torch.view_as_complex(torch.arange(12, dtype=torch.float64).view(6, 2) + 1).to(dtype)
    state = {"conj": w.conj(), "neg": w.clone().conj().imag, "t": w.view(2, 3).conj().t()}
    assert state["conj"].is_conj() and state["neg"].is_neg()
    torch.save(state, tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "m.pt")
    assert {name: raw(tensor) for name, tensor in state.items()} == {name: raw(found[name]) for name in state}


def test_conjugated_and_negated_are_written_resolved(tmp_path: Path) -> None:
    """In a safetensors file the numbers themselves stand, signs of zeros included."""
    w = torch.view_as_complex(torch.tensor([[1.0, 2.0], [0.0, 0.0], [-0.0, float("inf")]]))
    state = {"w": w, "conj": w.conj(), "neg": w.clone().conj().imag}
    _, found = round_trip(tmp_path, state)
    assert {name: raw(tensor) for name, tensor in state.items()} == {name: raw(found[name]) for name in state}
    assert verify_command.verify(tmp_path / "o.safetensors", tmp_path / "m.pt").differences == ()


ONE_TWO_THREE = torch.tensor([1.0, 2, 3])


def compounds() -> dict[str, Any]:
    """Tensors that several windows make up together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR, nested and quantised tensors are announced as prototypes or old
        dense = torch.tensor([[0.0, 1, 0], [2, 0, 3]])
        return {
            "coo": dense.to_sparse(),
            "csr": dense.to_sparse_csr(),
            "csc": dense.to_sparse_csc(),
            "bsr": torch.eye(4).to_sparse_bsr((2, 2)),
            "per_tensor": torch.quantize_per_tensor(dense, 0.1, 3, torch.qint8),
            "per_channel": torch.quantize_per_channel(
                dense, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8
            ),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "jagged": torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged),
        }


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("coo", {"indices": torch.tensor([[0, 1, 1], [1, 0, 2]]), "values": ONE_TWO_THREE}),
        (
            "csr",
            {"crow_indices": torch.tensor([0, 1, 3]), "col_indices": torch.tensor([1, 0, 2]), "values": ONE_TWO_THREE},
        ),
        ("csc", {"ccol_indices": torch.tensor([0, 1, 2, 3]), "row_indices": torch.tensor([1, 0, 1])}),
        ("bsr", {"crow_indices": torch.tensor([0, 1, 2]), "values": torch.eye(2).repeat(2, 1, 1)}),
        ("per_tensor", {"values": torch.tensor([[3, 13, 3], [23, 3, 33]], dtype=torch.int8)}),
        ("per_channel", {"scales": torch.tensor([0.1, 0.2]).double(), "zero_points": torch.tensor([0, 1])}),
        ("nested", {"buffer": torch.ones(5), "sizes": torch.tensor([[2], [3]])}),
    ],
)
def test_compounds(tmp_path: Path, name: str, parts: dict[str, torch.Tensor]) -> None:
    """A sparse, quantised or nested tensor is its parts, each with its values, and refused by name in safetensors."""
    torch.save({name: compounds()[name], "w": torch.ones(2)}, tmp_path / "m.pt")
    assert isinstance(paramtool.read(tmp_path / "m.pt").entries[name].value, Compound)
    found = paramtool.load_file(tmp_path / "m.pt")
    for part, tensor in parts.items():
        assert tuple(tensor.shape) == found[f"{name}/{part}"].shape
        assert np.allclose(tensor.numpy(), found[f"{name}/{part}"]), part
    with pytest.raises(PlanError, match=f"'{name}'"):
        dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    report = dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors", skip_unsupported=True)
    assert list(paramtool.load_file(tmp_path / "o.safetensors")) == ["w"]
    assert any(name in line for line in report.left_out)


def test_jagged(tmp_path: Path) -> None:
    """A jagged nested tensor is described, its values among its parts."""
    torch.save({"j": compounds()["jagged"]}, tmp_path / "m.pt")
    value = paramtool.read(tmp_path / "m.pt").entries["j"].value
    assert isinstance(value, Compound)
    assert (5, 2) in {view.shape for view in value.parts.values()}


def test_meta(tmp_path: Path) -> None:
    """A meta tensor has a dtype and a shape, and no data: loading it is an error that names it."""
    torch.save({"m": torch.empty(3, 4, device="meta", dtype=torch.float16)}, tmp_path / "m.pt")
    value = paramtool.read(tmp_path / "m.pt").entries["m"].value
    assert isinstance(value, NoData)
    assert (value.dtype.name, value.shape) == ("float16", (3, 4))
    with pytest.raises(FormatError, match="'m'"):
        paramtool.load_file(tmp_path / "m.pt")


class Attributed(torch.Tensor):
    """A subclass of the kind that torchvision and others have."""


def test_parameters_and_subclasses(tmp_path: Path) -> None:
    """Parameters, buffers, subclasses and tensors with Python attributes are the plain tensors inside, ties kept."""
    w = torch.arange(4.0)
    tagged = torch.arange(3.0)
    tagged.note = "x"  # type: ignore[attr-defined]
    subclass = torch.arange(5.0).as_subclass(Attributed)
    subclass.scale = 2  # type: ignore[attr-defined]
    parameter = torch.nn.Parameter(w)
    frozen = torch.nn.Parameter(torch.arange(6.0), requires_grad=False)
    odd = torch.nn.Parameter(torch.arange(7.0))
    odd.tag = {"a": 1}  # type: ignore[attr-defined]
    state = {"p": parameter, "w": w, "tagged": tagged, "sub": subclass, "frozen": frozen, "odd": odd}
    torch.save(state, tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "m.pt")
    plain = {name: tensor.detach().as_subclass(torch.Tensor) for name, tensor in state.items()}
    assert {name: raw(tensor) for name, tensor in plain.items()} == {name: raw(a) for name, a in found.items()}
    assert partition(plain) == partition(found)
    flags = {name: entry.requires_grad for name, entry in paramtool.read(tmp_path / "m.pt").entries.items()}
    assert {name: flags[name] for name in ("p", "frozen", "w")} == {"p": True, "frozen": False, "w": False}


def test_channels_last(tmp_path: Path) -> None:
    """channels_last keeps its values, alone or shared with a slice."""
    w = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    v = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = {"alone": w, "shared": v, "slice": v[1]}
    for found in round_trip(tmp_path, state):
        assert same_values(state, found)
        assert partition(state) == partition(found)


def test_a_memory_format_that_is_not_kept_is_named(tmp_path: Path) -> None:
    """By safetensors in the first line; a torch file keeps it, and a span that a slice shares keeps it in both."""
    w, v = (torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2))
    torch.save({"alone": w, "shared": v, "slice": v[1]}, tmp_path / "in.pt")
    ran = quick("dedup", "in.pt", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0 and ran.err.startswith("warning: out.safetensors does not hold the memory format of 'alone' ")
    again = quick("verify", "out.safetensors", "--against", "in.pt", cwd=tmp_path)
    assert again.code == 0 and "another memory format (such as channels_last) than the source: 'alone'\n" in again.err
    assert quick("dedup", "in.pt", "-o", "strict.safetensors", "--strict", cwd=tmp_path).code == 6
    ran = quick("dedup", "in.pt", "-o", "out.pt", "--strict", cwd=tmp_path)
    again = quick("verify", "out.pt", "--against", "in.pt", cwd=tmp_path)
    assert (ran.code, ran.err, again.code, again.err) == (0, "", 0, "")
    kept = torch.load(tmp_path / "out.pt")
    assert all(kept[name].is_contiguous(memory_format=torch.channels_last) for name in ("alone", "shared"))


def test_views_of_other_dtypes(tmp_path: Path) -> None:
    """One storage seen as bytes and as float8: saved once by torch, and shared when loaded."""
    w = torch.arange(32, dtype=torch.uint8)
    part = w[8:].view(torch.uint32)[1:]
    state = {"bytes": w, "f8": w.view(torch.float8_e4m3fn), "u16": w.view(torch.uint16), "part": part}
    for found in round_trip(tmp_path, state):
        assert same_values(state, found)
        assert partition(state) == partition(found)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_protocols(tmp_path: Path, protocol: int, zipped: bool) -> None:
    """torch.save can be told a newer protocol; what it writes is read."""
    w = torch.arange(4.0)
    state = {"a": w, "b": w[1:], "ü" * 300: torch.arange(2), "n": {"deep": w}}
    torch.save(state, tmp_path / "m.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    expected = {"a": w, "b": w[1:], "ü" * 300: torch.arange(2), "n.deep": w}
    found = paramtool.load_file(tmp_path / "m.pt")
    assert same_values(expected, found)
    assert partition(expected) == partition(found)


def test_a_module_pickled_whole(tmp_path: Path) -> None:
    """Its tensors have the names of its state_dict; nothing of its classes is run."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(2, 3))
    model[2].weight = model[0].weight
    torch.save(model, tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "m.pt")
    expected = model.state_dict()
    assert set(expected) == set(found)
    assert partition(expected) == partition(found)


def test_optimizer_state(tmp_path: Path) -> None:
    """A training checkpoint: sections, roles, and keys 0 and 1 as numbers."""
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, tmp_path / "m.pt")
    checkpoint = paramtool.read(tmp_path / "m.pt")
    assert [(s.name, s.role) for s in checkpoint.sections] == [("model", "model"), ("optimizer", "optimizer")]
    assert {e.role for n, e in checkpoint.entries.items() if n.startswith("optimizer.")} == {"optimizer"}
    assert "optimizer.state.0.exp_avg" in checkpoint.entries
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    again = paramtool.read(tmp_path / "o.safetensors")
    assert (checkpoint.objects, checkpoint.sections) == (again.objects, again.sections)
    assert {n: e.role for n, e in checkpoint.entries.items()} == {n: e.role for n, e in again.entries.items()}


Change = Callable[[str, bytes], bytes]

# --- odd archives -----------------------------------------------------------------------------------------------------


def tied_state() -> dict[str, torch.Tensor]:
    """Ties and several element sizes."""
    w = torch.arange(600, dtype=torch.float32).view(20, 30)
    return {"a": w, "b": w.t(), "h": torch.arange(7, dtype=torch.float16), "d": torch.arange(9, dtype=torch.float64),
            "i": torch.arange(5), "c": torch.arange(6).to(torch.complex64),
            "x": torch.arange(5, dtype=torch.uint8)}  # fmt: skip


def repacked(source: Path, target: Path, force_zip64: bool = False, change: Change = lambda name, data: data) -> Path:
    """The archive again, written by Python's zipfile, each member through `change(name, data)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            with new.open(zipfile.ZipInfo(info.filename), "w", force_zip64=force_zip64) as member:
                member.write(change(info.filename, old.read(info)))
    return target


def deflated(source: Path, target: Path) -> Path:
    """Every member compressed, as a person's zip tool would do."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info), zipfile.ZIP_DEFLATED)
    return target


def agrees(path: Path, tmp_path: Path) -> None:
    """torch and load_file read the same, from the file and from its dedup."""
    expected = torch.load(path, weights_only=True)
    dedup_command.dedup(path, tmp_path / "o.safetensors")
    dedup_command.dedup(path, tmp_path / "o.pt")
    for found in (
        paramtool.load_file(path),
        paramtool.load_file(tmp_path / "o.safetensors"),
        torch.load(tmp_path / "o.pt", weights_only=True),
        torch.load(tmp_path / "o.pt", weights_only=True, mmap=True),
    ):
        assert same_values(expected, found)
        assert partition(expected) == partition(found)


class TestArchives:
    """Zip files that torch reads and does not write, or only when asked to."""

    def test_deflated(self, tmp_path: Path) -> None:
        """Compressed members are inflated."""
        torch.save(tied_state(), tmp_path / "m.pt")
        path = deflated(tmp_path / "m.pt", tmp_path / "z.pt")
        assert path.stat().st_size < (tmp_path / "m.pt").stat().st_size
        agrees(path, tmp_path)

    def test_zip64(self, tmp_path: Path) -> None:
        """Members with zip64 sizes, though small."""
        torch.save(tied_state(), tmp_path / "m.pt")
        agrees(repacked(tmp_path / "m.pt", tmp_path / "z.pt", force_zip64=True), tmp_path)

    def test_no_crc(self, tmp_path: Path) -> None:
        """CRC 0 on every member means not computed; it is noted."""
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(tied_state(), tmp_path / "m.pt")
        finally:
            torch.serialization.set_crc32_options(before)
        assert any("CRC" in note for note in paramtool.read(tmp_path / "m.pt").notes)
        agrees(tmp_path / "m.pt", tmp_path)

    def test_a_wrong_crc_is_found_when_bytes_are_read(self, tmp_path: Path) -> None:
        """A flipped bit in a tensor is a FormatError in dedup and load, though torch accepts it."""
        torch.save(tied_state(), tmp_path / "m.pt")
        data = bytearray((tmp_path / "m.pt").read_bytes())
        storage = paramtool.read(tmp_path / "m.pt").storages[0].backing
        data[storage.start + 8] ^= 1  # type: ignore[union-attr]
        (tmp_path / "m.pt").write_bytes(data)
        with pytest.raises(FormatError, match="CRC"):
            paramtool.load_file(tmp_path / "m.pt")
        with pytest.raises(FormatError, match="CRC"):
            dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pt"]

    @pytest.mark.parametrize("method", ["stored", "deflated"])
    def test_big_endian(self, tmp_path: Path, method: str) -> None:
        """A file of a big-endian machine: each storage's units are turned round, complex numbers part by part."""
        state = tied_state()
        torch.save(state, tmp_path / "m.pt")
        units = {str(k): n for k, n in enumerate((4, 2, 8, 8, 4, 1))}

        def swap(name: str, data: bytes) -> bytes:
            if name.endswith("/byteorder"):
                return b"big"
            key = name.rpartition("/data/")[2]
            unit = units.get(key, 1)
            return np.frombuffer(data, f"u{unit}").byteswap().tobytes() if key != name else data

        path = repacked(tmp_path / "m.pt", tmp_path / "big.pt", change=swap)
        if method == "deflated":
            path = deflated(path, tmp_path / "big deflated.pt")
        assert same_values(state, torch.load(path, weights_only=True))
        agrees(path, tmp_path)

    def test_without_byteorder(self, tmp_path: Path) -> None:
        """Files before torch 2.1 have no such member and are little-endian."""
        torch.save(tied_state(), tmp_path / "m.pt")
        with zipfile.ZipFile(tmp_path / "m.pt") as old, zipfile.ZipFile(tmp_path / "z.pt", "w") as new:
            for info in old.infolist():
                if not info.filename.endswith("/byteorder"):
                    new.writestr(info.filename, old.read(info))
        agrees(tmp_path / "z.pt", tmp_path)

    def test_bytes_behind_the_archive(self, tmp_path: Path) -> None:
        """torch accepts them, and so does this."""
        torch.save(tied_state(), tmp_path / "m.pt")
        with (tmp_path / "m.pt").open("ab") as file:
            file.write(b"appended")
        agrees(tmp_path / "m.pt", tmp_path)


# --- old forms --------------------------------------------------------------------------------------------------------


def test_storage_views_of_the_stacked_form(tmp_path: Path) -> None:
    """Before 0.4 two storages could be parts of one: `(view key, offset, size)` in elements. torch is the oracle."""

    class Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
        def persistent_id(self, obj: object) -> object:
            if isinstance(obj, _Storage):
                return ("storage", torch.FloatStorage, "7", "cpu", 12, obj.view)
            return None

    class _Storage:
        def __init__(self, view: object) -> None:
            self.view = view

    class _Tensor:
        def __init__(self, view: object, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
            self.args = (_Storage(view), offset, size, stride)

        def __reduce__(self) -> Any:
            return (torch._utils._rebuild_tensor, self.args)

    root = np.arange(12, dtype="<f4")
    out = io.BytesIO()
    for header in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}):
        pickle.dump(header, out, 2)
    state = {
        "whole": _Tensor(None, 0, (3, 4), (4, 1)),
        "tail": _Tensor(("8", 4, 8), 0, (8,), (1,)),
        "inner": _Tensor(("8", 4, 8), 2, (2, 2), (3, 1)),
    }
    Pickler(out, 2).dump(state)
    pickle.dump(["7"], out, 2)
    out.write(struct.pack("<q", 12) + root.tobytes())
    (tmp_path / "m.pt").write_bytes(out.getvalue())
    expected = torch.load(tmp_path / "m.pt", weights_only=False)  # a file that this test made itself
    found = paramtool.load_file(tmp_path / "m.pt")
    assert same_values(expected, found)
    assert partition(expected) == partition(found)


def test_script_archive(tmp_path: Path) -> None:
    """A TorchScript archive made here: its parameters and buffers have torch's names and bytes."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(3, 3)
            self.b = torch.nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + torch.ones(3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is announced as deprecated
        torch.jit.save(torch.jit.trace(Net(), torch.ones(1, 3)), tmp_path / "m.pt")
        expected = torch.jit.load(tmp_path / "m.pt").state_dict()
    found = paramtool.load_file(tmp_path / "m.pt")
    for name, tensor in expected.items():
        assert (described(tensor), raw(tensor)) == (described(found[name]), raw(found[name]))
    assert partition(expected) == partition({name: found[name] for name in expected})


def test_names_that_collide(tmp_path: Path) -> None:
    """`{'a.b': x}` beside `{'a': {'b': y}}`, and keys 0 and '0': all are kept apart, and it is said."""
    state = {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}, 0: torch.ones(3), "0": torch.ones(4)}
    torch.save(state, tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "m.pt")
    assert sorted(array.size for array in found.values()) == [1, 2, 3, 4]
    assert any("escaped" in note for note in paramtool.read(tmp_path / "m.pt").notes)
    dedup_command.dedup(tmp_path / "m.pt", tmp_path / "o.safetensors")
    assert list(found) == list(paramtool.load_file(tmp_path / "o.safetensors"))
    assert json.dumps(list(found))


@pytest.mark.parametrize("name", ["::x.pt", "a:b.pt"])
def test_a_file_with_a_colon_in_its_name(name: str, tmp_path: Path) -> None:
    """The folder in its archive is called like the file: that is no drive."""
    torch.save({"w": torch.ones(3)}, tmp_path / name)
    assert list(paramtool.read(tmp_path / name).entries) == ["w"]
