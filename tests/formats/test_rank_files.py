"""Files of the ranks of a training, joined: the tensors are those that torch split."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
import paramtool.torch
from paramtool.errors import Defects
from tests.hostile.command import quick

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    distributed = pytest.importorskip("torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor", reason="DTensor is public since torch 2.5")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="ranks without processes")
pytestmark = pytest.mark.filterwarnings("ignore")
FOUND = Path(__file__).parents[2].parent / "shared/findings/field/rank-files"


class Ranks:
    """What each rank of a world would save: no process is started, since cutting a tensor needs no other rank."""

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.mesh = mesh
        self.size = prod(mesh)

    def save(self, folder: Path, state: dict[str, tuple[torch.Tensor, list[Any]]], name: str = "m") -> None:
        """A file for each rank; `state` has the placements of each tensor."""
        for rank in range(self.size):
            distributed.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=self.size)
            try:
                mesh = distributed.device_mesh.init_device_mesh("cpu", self.mesh)
                held = {
                    key: tensor.distribute_tensor(value, mesh, how, src_data_rank=None) if how else value
                    for key, (value, how) in state.items()
                }
                torch.save(held, folder / f"{name}_world_size_{self.size}_rank_{rank}.pt")
            finally:
                distributed.destroy_process_group()


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, also for each example of a law."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@st.composite
def split(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], list[Any]]]]:
    """A mesh, and the shapes and placements of some tensors."""
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
        ways = [tensor.Replicate(), *(tensor.Shard(axis) for axis in range(len(shape)))]
        found.append((shape, [draw(st.sampled_from(ways)) for _ in mesh]))
    return mesh, found


@settings(max_examples=40, deadline=None)
@given(split())
def test_what_torch_splits_is_joined(case: tuple[Any, Any]) -> None:
    """Any mesh of one or two axes, any placements that cut or repeat, sizes that no rank has the same of."""
    mesh, tensors = case
    state = {f"t{k}": (torch.randn(shape), how) for k, (shape, how) in enumerate(tensors)}
    state["step"] = (torch.tensor(3), [])
    with tempfile.TemporaryDirectory() as made:
        Ranks(mesh).save(Path(made), state)
        found = paramtool.torch.load_file(made)
        assert found.keys() == state.keys()
        for name, (value, _) in state.items():
            assert torch.equal(found[name], value), name


def test_strided_shards(folder: Path) -> None:
    """FSDP over tensor parallelism cuts in the other order, in equal parts; torches differ over others."""
    way = tensor.placement_types._StridedShard
    rows = torch.randn(8, 3)
    Ranks((2, 2)).save(folder, {"w": (rows, [way(0, split_factor=2), tensor.Shard(0)])})
    assert torch.equal(paramtool.torch.load_file(folder)["w"], rows)
    Ranks((2, 2)).save(folder, {"w": (torch.randn(7, 3), [way(0, split_factor=2), tensor.Shard(0)])})
    with pytest.raises(Defects, match="not equal"):
        paramtool.read(folder)


def test_partial_sums_are_refused(folder: Path) -> None:
    """What is still to be summed is no part."""
    Ranks((2,)).save(folder, {"w": (torch.ones(4), [tensor.Partial()])})
    with pytest.raises(Defects, match="sums that are still to be made"):
        paramtool.read(folder)


def test_a_missing_rank(folder: Path) -> None:
    """The refusal says what the files are, and what is missing."""
    Ranks((3,)).save(folder, {"w": (torch.randn(7, 2), [tensor.Shard(0)])})
    (folder / "m_world_size_3_rank_1.pt").unlink()
    ran = quick("inspect", folder, cwd=folder)
    assert (
        ran.code == 3
        and "2 files of the 3 ranks of one training, parts of one model" in ran.err
        and "8 of 14 elements" in ran.err
    )


def test_files_of_two_saves(folder: Path) -> None:
    """A copy that another rank has must be a copy; a buffer that only each rank has is named as left out."""
    for value in (1.0, 2.0):
        made = folder / f"s{value}"
        made.mkdir()
        state = {
            "w": (torch.full((4, 2), value), [tensor.Replicate(), tensor.Shard(0)]),
            "own": (torch.full((2,), value), []),
        }
        Ranks((2, 2)).save(made, state)
    for rank in (2, 3):
        shutil.copy(folder / f"s2.0/m_world_size_4_rank_{rank}.pt", folder / "s1.0")
    with pytest.raises(Defects, match="different bytes"):
        paramtool.read(folder / "s1.0")
    Ranks((2,)).save(folder, {"w": (torch.ones(2), [tensor.Shard(0)]), "own": (torch.ones(2), [])})
    file = torch.load(folder / "m_world_size_2_rank_1.pt", weights_only=False)
    torch.save({**file, "own": torch.zeros(2)}, folder / "m_world_size_2_rank_1.pt")
    found = paramtool.read(folder)
    assert len(found.left_out) == 1 and "own" in found.left_out[0]


def test_a_world_of_one(folder: Path) -> None:
    """Its file is the whole model, also where it is named itself."""
    value = torch.randn(3, 2)
    Ranks((1,)).save(folder, {"w": (value, [tensor.Shard(0)])})
    assert torch.equal(paramtool.torch.load_file(folder / "m_world_size_1_rank_0.pt")["w"], value)


def copied(folder: Path, pattern: str) -> Path:
    """Files of the finding, alone in a folder."""
    if not FOUND.is_dir():
        pytest.skip("needs the findings beside the repository")
    for path in FOUND.glob(pattern):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("pattern", "truth"), [("verl/model_*", "verl/full_truth.pt"), ("sharded_*", "truth.pt")], ids=["verl", "FSDP1"]
)
def test_everything_reads_a_joined_folder(pattern: str, truth: str, folder: Path, tmp_path: Path) -> None:
    """Commands and `load_model`, against what the training had before it was split."""
    copied(folder, pattern)
    expected = torch.load(FOUND / truth)
    found = paramtool.torch.load_file(folder)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.l1, self.l2 = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 7), torch.nn.Linear(7, 8)
            self.head = torch.nn.Linear(8, 11, bias=False)
            self.head.weight = self.emb.weight

    net = Net()
    paramtool.torch.load_model(net, folder)
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    for words in (
        ("inspect", folder), ("dedup", folder, "-o", "d"), ("verify", "d", "--against", folder),
        ("convert", folder, "-o", "c.pt"), ("verify", "c.pt", "--against", folder), ("lock", folder, "-o", "l.lock"),
        ("check", folder, "--lock", "l.lock"), ("diff", folder, FOUND / truth),
        ("diff", FOUND / truth, folder),
    ):  # fmt: skip
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 0 and (words[0] != "diff" or "same weights" in ran.out), ran
    assert [path.name for path in (tmp_path / "d").iterdir()] == [
        f"{pattern.rpartition('/')[2].rstrip('_*')}.safetensors"
    ]


def test_an_optimizer_beside(folder: Path, tmp_path: Path) -> None:
    """It comes along with the weights; its own files are joined where they are named."""
    copied(folder, "verl/*_world_*")
    assert quick("dedup", folder, "-o", "d", cwd=tmp_path).code == 0
    assert len(list((tmp_path / "d").glob("optim_*"))) == 2
    found = paramtool.read(folder, "optim_world_size_2_rank_1.pt")
    assert {entry.role for entry in found.entries.values()} == {"optimizer"}
    assert found.views()["state.0.exp_avg"].shape == (11, 8)


def test_flat_parameters_are_refused(folder: Path) -> None:
    """FSDP1's LOCAL_STATE_DICT: by the name of what it is; no file of torch.distributed is unsafe."""
    copied(folder, "local_*")
    ran = quick("inspect", folder, cwd=folder)
    assert (
        ran.code == 3 and "parts of one model" in ran.err and "flat parameters" in ran.err and "unsafe" not in ran.err
    )
    ran = quick("inspect", "local_world_size_2_rank_0.pt", cwd=folder)
    assert ran.code == 0 and "unsafe" not in ran.out and "flat parameters" in ran.out
