"""Objects and tensors of every kind, formats that are read and written: each cell is kept, named as lost, or refused.

Kept: the format's own library gives back what it was.  Lost: the report names it, and `strict` refuses it.  Refused: by
an error that names it, and nothing is left.  `verify` agrees in each cell, by the line that is printed.

The cells follow from the tables: a format that is added fails until it has sources here.
"""

from __future__ import annotations

import collections
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import paramtool
from paramtool.cli.dedup import _flag
from paramtool.commands.output.writer import Writer
from paramtool.errors import ParamtoolError, PlanError
from paramtool.formats.table import FORMATS
from tests.contracts import makers_msgpack
from tests.contracts.makers import CASES
from tests.oracles import objects
from tests.versions import needs
from tests.written import WRITERS

pytestmark = [needs("torch", "2.3", "dcp_to_torch_save"), pytest.mark.filterwarnings("ignore")]

WEIGHT = torch.arange(6.0).reshape(2, 3)
NAN = torch.tensor([0x7FC00001, 0x7F800001, -1, 0], dtype=torch.int32).view(torch.float32)


def _kinds() -> dict[str, Any]:
    """Each beside a weight."""
    return {
        "None": None, "bool": True, "int": 3, "negative": -3, "huge": 1 << 200, "less than all": -(1 << 63) - 1,
        "float": 1.5, "nan": float("nan"), "inf": float("-inf"), "str": "a", "empty str": "", "unicode": "ü\0\n",
        "surrogate": "\ud800", "bytes": b"\0\xff", "empty bytes": b"", "complex": 1 - 2j,
        "stream": io.BytesIO(b"abc"), "empty stream": io.BytesIO(),
        "list": [1, "a", None], "empty list": [], "tuple": (1, (2,)), "dict": {"a": {"b": 1}}, "empty dict": {},
        "nested empty": {"a": {"b": {}, "c": []}}, "int keys": {0: 1, -1: 2}, "float keys": {0.5: 1},
        "tuple keys": {(1, "a"): 1}, "set": {1, 2}, "ordered": collections.OrderedDict(a=1),
        "size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
        **{f"NumPy {name}": objects.TABLE[name] for name in (
            "array", "fortran", "no axes", "no elements", "flags", "big-endian", "strings", "records", "float64",
            "bool_", "datetime64", "dates", "dtype")},
        "objects": np.array([None, 1], dtype=object),
        "tensor": torch.ones(2, 3), "no axes": torch.tensor(1.5), "no elements": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)), "trains": torch.ones(2, requires_grad=True),
        "in a list": [torch.ones(2), 3], "in a tuple": (torch.ones(2), 3), "beside": {"t": torch.ones(2), "epoch": 3},
        "by number": {0: {"t": torch.ones(2)}}, "slashes": {"a/b": torch.ones(2), "a": {"c": 1}},
        "alias": WEIGHT, "row": WEIGHT[1], "turned": torch.arange(6.0).reshape(2, 3).t(),
        "gaps": torch.arange(12.0).reshape(4, 3)[::2, ::2], "expanded": torch.ones(1, 3).expand(2, 3), "payloads": NAN,
        "conjugated": torch.tensor([1 + 2j]).conj(), "complex64": torch.tensor([1 + 2j]),
        "complex32": torch.tensor([1 + 2j], dtype=torch.complex32), "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "float8": torch.ones(2).to(torch.float8_e4m3fn), "uint16": torch.ones(2, dtype=torch.uint16),
        "sparse": torch.eye(2).to_sparse(), "rows": torch.eye(2).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "meta": torch.empty(2, device="meta"),
    }  # fmt: skip


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    KINDS = _kinds()


def stored(kind: str) -> dict[str, Any]:
    return {"w": WEIGHT, "x": KINDS[kind]}


def saved(kind: str, folder: Path) -> Path:
    """As torch.save has it."""
    torch.save(stored(kind), folder / "s.pt")
    return folder / "s.pt"


def in_dcp(kind: str, folder: Path) -> Path:
    """As torch.distributed.checkpoint has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dcp.save(stored(kind), checkpoint_id=folder / "dcp", no_dist=True)
        except BaseException as error:
            pytest.skip(f"torch does not save it: {type(error).__name__}")
    return folder / "dcp"


def ours(kind: str, folder: Path) -> Path:
    """As paramtool has it in safetensors; what is refused there is a cell of torch's."""
    try:
        paramtool.dedup(saved(kind, folder), folder / "s.safetensors")
    except PlanError as error:
        pytest.skip(f"not written: {error}")
    return folder / "s.safetensors"


def pickled(kind: str, folder: Path) -> Path:
    """A pickle of NumPy arrays."""
    if isinstance(KINDS[kind], (torch.Tensor, torch.Size, torch.dtype, torch.device)) or "t" in str(type(KINDS[kind])):
        pytest.skip("torch's")
    (folder / "s.pkl").write_bytes(pickle.dumps({"w": WEIGHT.numpy(), "x": KINDS[kind]}))
    return folder / "s.pkl"


def packed(kind: str, folder: Path) -> Path:
    """As flax has it, nested; what it has no form for is skipped."""
    if kind == "float keys":
        pytest.skip("a dict of flax's has text for keys")
    value = KINDS[kind].detach().numpy() if type(KINDS[kind]) is torch.Tensor and kind in FLAX else KINDS[kind]
    try:
        data = makers_msgpack.saved({"params": {"w": WEIGHT.numpy()}, "opt": {"0": {"x": value}, "1": {}}})
    except (TypeError, ValueError, OverflowError, AttributeError, RuntimeError, AssertionError):
        pytest.skip("flax does not save it")
    (folder / "s.msgpack").write_bytes(data)
    return folder / "s.msgpack"


FLAX = {"tensor", "no axes", "no elements", "complex64", "payloads"}


def case_of(name: str) -> Callable[[str, Path], Path]:
    """Formats of tensors alone: what their own library writes, with names and ties of every kind."""
    case = next(case for case in CASES if case.format == name)
    return lambda kind, folder: case.make(folder)


OBJECTS = {"torch": saved, "dcp": in_dcp, "safetensors": ours, "pickle": pickled, "msgpack": packed}
"""Formats that hold objects."""
TENSORS = ("mxnet", "npz", "keras", "jld2", "onnx", "bson", "tensorflow")
"""Formats whose objects no other program makes, or that have none."""
SOURCES = {**OBJECTS, **{name: case_of(name) for name in TENSORS}}
CELLS = [
    (source, kind, writer)
    for source in SOURCES
    for kind in (KINDS if source in OBJECTS else ("tensor",))
    for writer in WRITERS
    if kind == "tensor" or not writer.is_graph
]


def test_every_format_has_sources() -> None:
    """A new row of the table of formats has cells, too; a writer has them by being in its table."""
    assert set(SOURCES) == {row.name for row in FORMATS}
    assert {row.name for row in FORMATS if row.holds.objects} <= set(OBJECTS)


def loaded(path: Path) -> Any:
    """What torch itself makes of a file or a folder."""
    if not path.is_dir():
        return torch.load(path, weights_only=False)
    found: dict[str, Any] = {}
    reader = dcp.FileSystemReader(path)
    _load_state_dict(found, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return found


def same(a: Any, b: Any) -> None:
    """As `objects.same`, with the contents of streams and the storage of tensors that are not dense."""
    if isinstance(a, io.BytesIO):
        assert (a.getvalue(), a.tell()) == (b.getvalue(), b.tell())
    elif isinstance(a, dict):
        assert type(a) is type(b) and [*map(repr, a)] == [*map(repr, b)]
        for one, two in zip(a.values(), b.values(), strict=True):
            same(one, two)
    elif isinstance(a, torch.Tensor):
        assert (type(a), a.dtype, a.shape, a.requires_grad) == (type(b), b.dtype, b.shape, b.requires_grad)
        assert (
            a.detach()
            .resolve_conj()
            .contiguous()
            .flatten()
            .view(torch.uint8)
            .equal(b.detach().resolve_conj().contiguous().flatten().view(torch.uint8))
        )
    elif isinstance(a, float) and a != a:
        assert b != b
    else:
        objects.same(a, b)


def target(writer: Writer, folder: Path) -> Path:
    return folder / (f"out{writer.suffixes[0]}" if writer.suffixes else "out")


def written(source: Path, writer: Writer, output: Path, **options: Any) -> Any:
    """The report; `dedup` alone writes a folder of torch's."""
    if writer.folder is not None:
        return paramtool.dedup(source, output, format="dcp", force=True, **options)
    return paramtool.convert(source, output, force=True, **options)


@pytest.mark.sample(120)
@pytest.mark.parametrize(("source", "kind", "writer"), CELLS, ids=lambda one: getattr(one, "name", one))
def test_each_cell(source: str, kind: str, writer: Writer, tmp_path: Path) -> None:
    """Kept, named as lost, or refused; and `verify` agrees."""
    path, output = SOURCES[source](kind, tmp_path), target(writer, tmp_path)
    before = {*tmp_path.iterdir()}
    try:
        report = written(path, writer, output)
    except ParamtoolError as error:
        assert error.exit_code in ((2, 5) if writer.is_graph else (4, 6)), error
        assert {*tmp_path.iterdir()} == before
        assert any(word in str(error) for word in ("'x", "x'", "'w'", "tensor", "network", "calls")), error
        return
    flag = _flag(report)
    found = paramtool.verify(output, path, subset=flag == "--subset", tensors_only=flag == "--tensors-only")
    assert found.differences == (), (report.warnings, report.left_out)
    is_lost = bool(report.left_out) or any("does not hold" in text for text in report.warnings)
    if not is_lost:
        assert not flag and not any("has no room" in text or "not in the output" in text for text in found.warnings)
        _judge(source, kind, writer, path, output)
    elif any("does not hold" in text for text in report.warnings):
        with pytest.raises(PlanError):
            written(path, writer, output, strict=True)
    mine = {name: entry.role for name, entry in paramtool.read(path).entries.items()}
    theirs = {name: entry.role for name, entry in paramtool.read(output).entries.items()}
    if writer.holds.objects:
        assert {name: role for name, role in mine.items() if name in theirs} == theirs


def _judge(source: str, kind: str, writer: Writer, path: Path, output: Path) -> None:
    """Where nothing was said to be lost, the format's own library gives the same object."""
    if source not in ("torch", "dcp", "safetensors"):
        return
    if kind in ("empty dict", "nested empty") and "dcp" in (source, writer.name):
        return  # torch's planner forgets these, and our record in such a folder has them
    expected = loaded(path)["x"] if source != "safetensors" else loaded(path.with_name("s.pt"))["x"]
    match writer.name:
        case "torch" | "dcp":
            same(loaded(output)["x"], expected)
        case "safetensors":  # and back: torch is the judge
            paramtool.convert(output, output.with_name("back.pt"))
            same(loaded(output.with_name("back.pt"))["x"], expected)
        case "msgpack" if not isinstance(expected, (torch.Tensor, np.ndarray, np.generic)):
            tree = msgpack.unpackb(output.read_bytes(), strict_map_key=False)
            if "x" in tree:  # names of tensors inside of dicts have dots
                same(tree["x"], expected)


FINDINGS = Path(__file__).parents[3] / "shared" / "findings" / "field"
FOUND = ("collision/full.h5", "collision/numkey.msgpack", "numpy-to-dcp/np.pt", "dcp-bytesio/dcpx")


@pytest.mark.parametrize("writer", [one for one in WRITERS if not one.is_graph], ids=lambda one: one.name)
@pytest.mark.parametrize("file", FOUND)
def test_what_was_found(file: str, writer: Writer, tmp_path: Path) -> None:
    """Nothing is left out of a file of torch's, a folder and safetensors, and no output is refused by `verify`."""
    if not (FINDINGS / file).exists():
        pytest.skip("the findings are not there")
    output = target(writer, tmp_path)
    if writer.name == "MXNet" and file == FOUND[0]:
        pytest.skip("a counter without axes is refused")
    report = written(FINDINGS / file, writer, output)
    flag = _flag(report)
    assert not paramtool.verify(output, FINDINGS / file, tensors_only=flag == "--tensors-only").differences
    if writer.holds.objects:
        assert (report.left_out, flag) == ((), "")
    if writer.holds.objects and not writer.holds.record and file == FOUND[-1]:
        stream = loaded(output)["model"]["lin._extra_state"]
        assert torch.load(stream)["scale_fwd"].tolist() == [0, 1, 2]


def test_roles_after_a_second_dedup(tmp_path: Path) -> None:
    """Moments that names do not tell are not stored with weights, however often a file is written anew."""
    source = Path(__file__).parents[2] / "fixtures" / "tensorflow" / "tf1_cells" / "tf1_cells.index"
    expected = {name: entry.role for name, entry in paramtool.read(source).entries.items()}
    assert {"optimizer", "ema", "other"} <= set(expected.values())
    for k, name in enumerate(("a.safetensors", "b.safetensors", "c.pt", "d", "e.safetensors")):
        report = paramtool.dedup(source, tmp_path / name, min_equal_bytes=1, format=None if "." in name else "dcp")
        source = tmp_path / name
        assert {name: entry.role for name, entry in paramtool.read(source).entries.items()} == expected
        assert all(len({expected[one.name] for one in group}) == 1 for _, group in report.graph.groups()), k
