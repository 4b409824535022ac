"""What every format that is written promises; a row of `WRITERS` is tested by being there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import paramtool
from paramtool.commands.output.writer import Writer
from paramtool.errors import OutputError, PlanError, UsageError
from paramtool.formats.hdf5 import write as hdf5_write
from paramtool.formats.msgpack import codes
from paramtool.formats.output import Late
from paramtool.formats.zip.write import archive
from paramtool.model.dtype import DTYPES
from paramtool.model.plan import whole
from paramtool.model.storage import ByteRange
from paramtool.model.view import contiguous
from tests.contracts import makers_msgpack
from tests.hostile.command import quick
from tests.laws.sharing import partition, same_values
from tests.written import WRITERS

NAMES = [suffix for writer in WRITERS if not writer.is_graph for suffix in writer.suffixes]
"""Names of files that hold any tensor; tests/formats/test_onnx_write.py has what an ONNX model promises."""
PLAIN = [writer for writer in WRITERS if not writer.holds.objects and not writer.is_graph]


def of(writer: Writer) -> str:
    """An id."""
    return writer.name


def state() -> dict[str, torch.Tensor]:
    """Names of every kind that every format has, without ties; keys in the order of the alphabet."""
    return {
        "a.weight": torch.arange(6.0).reshape(2, 3),
        "b": torch.arange(3),
        "lstm/kernel": torch.ones(2, 2, dtype=torch.float16),
        "none": torch.empty(0, 3),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "ü": torch.tensor([True, False]),
    }


def tied() -> dict[str, torch.Tensor]:
    """Two names of one tensor, and a slice of it."""
    weight = torch.arange(12.0).reshape(3, 4)
    return {"head": weight, "emb": weight, "row": weight[1], "other": torch.ones(2)}


def trained() -> dict[str, object]:
    """Objects of their own, and beside tensors."""
    moments = {0: {"step": 3, "exp_avg": torch.ones(2)}}
    return {"model": {"w": torch.ones(2)}, "epoch": 3, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1}]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of torch."""
    torch.save(state(), tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.mark.sample(7)
@pytest.mark.parametrize("suffix", NAMES)
def test_by_convert_and_export(suffix: str, model: Path, tmp_path: Path) -> None:
    """The same tensors; the same bytes each time, wherever they go; nothing else is left beside them."""
    paramtool.convert(model, tmp_path / f"one{suffix}")
    same = {name: paramtool.load_file(tmp_path / f"one{suffix}")[name] for name in state()}
    assert same_values(state(), same)
    first = (tmp_path / f"one{suffix}").read_bytes()
    paramtool.convert(model, tmp_path / f"one{suffix}", force=True)
    assert (tmp_path / f"one{suffix}").read_bytes() == first
    paramtool.export(model, tmp_path / f"two{suffix}", all_names=True)
    assert same_values(state(), {name: paramtool.load_file(tmp_path / f"two{suffix}")[name] for name in state()})
    assert sorted(os.listdir(tmp_path)) == sorted(["m.pt", f"one{suffix}", f"two{suffix}"])


@pytest.mark.parametrize("suffix", NAMES)
def test_nothing_is_overwritten(suffix: str, model: Path, tmp_path: Path) -> None:
    """Without --force."""
    (tmp_path / f"x{suffix}").write_bytes(b"mine")
    with pytest.raises((OutputError, UsageError)):
        paramtool.convert(model, tmp_path / f"x{suffix}")
    assert (tmp_path / f"x{suffix}").read_bytes() == b"mine"


@pytest.mark.parametrize("suffix", NAMES)
@pytest.mark.parametrize("make", [state, tied, trained], ids=["apart", "tied", "trained"])
def test_the_line_that_is_printed_is_true(suffix: str, make: Callable[[], object], tmp_path: Path) -> None:
    """`verify` exits 0 by it."""
    torch.save(make(), tmp_path / "m.pt")
    ran = quick("convert", "m.pt", "-o", f"x{suffix}", cwd=tmp_path)
    assert ran.code == 0, ran
    line = ran.out.rpartition("next")[2].strip()
    assert line.startswith("paramtool verify")
    assert quick(*shlex.split(line)[1:], cwd=tmp_path).code == 0


@pytest.mark.parametrize("writer", PLAIN, ids=of)
def test_ties_are_warned_of(writer: Writer, tmp_path: Path) -> None:
    """By name, in the first warning; an error with --strict.  Whole tensors are linked where the format has links."""
    torch.save(tied(), tmp_path / "m.pt")
    output = tmp_path / f"x{writer.suffixes[0]}"
    report = paramtool.convert(tmp_path / "m.pt", output)
    assert not report.keeps_ties and "'head' and 'emb' and 'row'" in report.warnings[0]
    found = paramtool.read(output).views()
    assert (found["head"].storage == found["emb"].storage) == (writer.holds.links)
    assert found["row"].storage != found["head"].storage
    with pytest.raises(PlanError, match="which names share memory"):
        paramtool.convert(tmp_path / "m.pt", output, strict=True, force=True)


@pytest.mark.parametrize("writer", PLAIN, ids=of)
def test_objects_and_networks_are_reported(writer: Writer, tmp_path: Path) -> None:
    """What the file does not say stands in the report."""
    network = torch.nn.LSTM(3, 4).state_dict()
    torch.save({"model": network, "epoch": 3}, tmp_path / "m.pt")
    report = paramtool.convert(tmp_path / "m.pt", tmp_path / f"x{writer.suffixes[0]}", target="keras", at=["model"])
    assert "does not hold objects 'epoch';" in report.warnings[0]
    assert any("which layout networks have" in text and "is keras" in text for text in report.left_out)


@pytest.mark.parametrize("writer", PLAIN, ids=of)
def test_what_it_has_no_form_for(writer: Writer, tmp_path: Path) -> None:
    """Every dtype is stored, or refused by the tensor's name before anything is written."""
    for dtype in (torch.complex64, torch.bfloat16, torch.float8_e5m2, torch.uint16, torch.float64):
        torch.save({"here": torch.zeros(4, dtype=dtype)}, tmp_path / "m.pt")
        output = tmp_path / f"x{writer.suffixes[0]}"
        name = str(dtype).removeprefix("torch.")
        if writer.refusals({"here": name}):
            with pytest.raises(PlanError, match=f"'here': .*{name}"):
                paramtool.convert(tmp_path / "m.pt", output, force=True)
        else:
            paramtool.convert(tmp_path / "m.pt", output, force=True)
            assert same_values(paramtool.load_file(tmp_path / "m.pt"), paramtool.load_file(output))
            output.unlink()
        assert not output.exists()


@pytest.mark.parametrize("writer", PLAIN, ids=of)
def test_options_of_other_formats_are_refused(writer: Writer, model: Path, tmp_path: Path) -> None:
    """Shards, alignment, and the name for a folder."""
    name = tmp_path / f"x{writer.suffixes[0]}"
    with pytest.raises(UsageError, match="shards need a folder"):
        paramtool.convert(model, name, max_shard_size=1000)
    with pytest.raises(UsageError, match="alignment of their own"):
        paramtool.convert(model, name, align=4096)
    (tmp_path / "in").mkdir()
    model.rename(tmp_path / "in" / "pytorch_model.bin")
    refused = quick("convert", "in", "--each", "-o", f"x{writer.suffixes[0]}", cwd=tmp_path)
    assert refused.code == 2 and "is the name of a file" in refused.err
    assert not name.exists()


def test_hdf5_links_by_dedup(tmp_path: Path) -> None:
    """One tensor under two names stays one, and names that are only equal are not joined."""
    weight = torch.arange(12.0).reshape(3, 4)
    torch.save({"head": weight, "emb": weight, "twin": weight.clone()}, tmp_path / "m.pt")
    report = paramtool.dedup(tmp_path / "m.pt", tmp_path / "x.h5")
    assert report.keeps_ties and len(report.plan.targets) == 2
    expected = paramtool.load_file(tmp_path / "m.pt")
    found = paramtool.load_file(tmp_path / "x.h5")
    assert partition(expected) == partition(found)
    assert not paramtool.verify(tmp_path / "x.h5", tmp_path / "m.pt").differences


def test_hdf5_without_h5py(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setattr(hdf5_write, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="h5py, which is not installed") as error:
        paramtool.convert(model, tmp_path / "x.h5")
    assert "paramtool[keras]" in (error.value.hint or "")


@pytest.mark.parametrize("turned", [False, True])
def test_flax_in_pieces(turned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array above the limit is written as flax writes it, and its rows where it is turned."""
    monkeypatch.setattr(codes, "CHUNK_NBYTES", 64)
    weight = torch.arange(200.0).reshape(10, 20)
    torch.save({"params/w": weight.t() if turned else weight, "b": torch.ones(3)}, tmp_path / "m.pt")
    paramtool.convert(tmp_path / "m.pt", tmp_path / "x.msgpack")
    assert same_values(paramtool.load_file(tmp_path / "m.pt"), makers_msgpack.load(tmp_path / "x.msgpack"))
    if not turned:
        tree = {"params": {"w": makers_msgpack.chunked(weight.numpy(), 64)}, "b": np.ones(3, np.float32)}
        assert (tmp_path / "x.msgpack").read_bytes() == makers_msgpack.saved(tree)


def test_an_archive_of_more_than_4_gib(tmp_path: Path) -> None:
    """Python's zipfile reads its sizes, places and CRCs from a file that is one hole where the tensors are."""
    import zipfile

    numbers = 3 << 30  # 3 GiB and 6 GiB
    members = []
    for k, count in enumerate((numbers // 4, numbers // 2, 100_000)):
        target = whole(f"t{k}", contiguous(k, DTYPES["float32"], (count,)))
        members.append((f"t{k}.npy", (b"head", target)))
    segments = archive(members, is_torch=False)
    at = 0
    with (tmp_path / "big.zip").open("wb") as file:
        for segment in segments:
            if isinstance(segment, (bytes, Late)):
                file.seek(at)
                file.write(segment if isinstance(segment, bytes) else segment.make([7, 8, 9]))
            at += len(segment) if isinstance(segment, bytes) else segment.nbytes
            assert not isinstance(segment, ByteRange)
    with zipfile.ZipFile(tmp_path / "big.zip") as found:
        infos = found.infolist()
        assert [info.file_size for info in infos] == [4 + numbers, 4 + 2 * numbers, 400_004]
        for info in infos:
            with found.open(info) as member:
                assert member.read(4) == b"head"


def test_names_that_a_whole_net_of_mxnet_does_not_load(tmp_path: Path) -> None:
    """`mxnet` has the names of a recurrent layer alone; beside other tensors a warning says so."""
    net = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(3, 4), "fc": torch.nn.Linear(4, 2)})
    torch.save(net.state_dict(), tmp_path / "net.pt")
    torch.save(net["rnn"].state_dict(), tmp_path / "rnn.pt")
    for name, target, is_said in (("net", "mxnet", True), ("net", "mxnet.unfused", False), ("rnn", "mxnet", False)):
        report = paramtool.convert(tmp_path / f"{name}.pt", tmp_path / "x.params", target=target, force=True)
        assert any("--to mxnet.unfused" in text for text in report.warnings) == is_said
