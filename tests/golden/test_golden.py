"""Golden cases: the exact record and the exact sharing of a few files that anyone can check by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.errors import PlanError
from tests.laws.sharing import partition, raw


def header(path: Path) -> dict[str, Any]:
    """The JSON of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return dict(json.loads(data[8 : 8 + length]))


def deduplicated(tmp_path: Path, state: Any, **options: Any) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """(the metadata, the record, the path) of what dedup makes of a state dict."""
    torch.save(state, tmp_path / "model.pt")
    output = tmp_path / "out.safetensors"
    dedup_command.dedup(tmp_path / "model.pt", output, **options)
    metadata = header(output).get("__metadata__", {})
    return metadata, json.loads(metadata.get("paramtool.aliases", "null")), output


def alias(owner: str, shape: list[int], strides: list[int], **more: Any) -> dict[str, Any]:
    """An alias of the record, in the order in which its keys are written."""
    item = {"owner": owner, "memory": owner, "evidence": "storage", "relation": "same", "dtype": "float32"}
    return item | {"shape": shape, "strides": strides, "offset": 0} | more


@pytest.fixture
def two_pairs() -> dict[str, torch.Tensor]:
    """a and b share, c and d share, and c's bytes equal a's; 4096 bytes each."""
    w = torch.arange(1024, dtype=torch.float32).view(32, 32)
    copy = w.clone()
    return {"a": w, "b": w, "c": copy, "d": copy}


class TestTwoPairs:
    """Equal is not tied: one stored tensor, two memories."""

    def test_one_tensor_is_stored(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """The file holds the bytes once, under the first name."""
        *_, output = deduplicated(tmp_path, two_pairs)
        with safe_open(output, "pt") as file:
            assert list(file.keys()) == ["a"]
            assert raw(file.get_tensor("a")) == raw(two_pairs["a"])

    def test_the_record(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """Each name has its owner, its memory and why: c and d are together by storage, there by content."""
        metadata, record, _ = deduplicated(tmp_path, two_pairs)
        assert record == {
            "version": 1,
            "aliases": {
                "b": alias("a", [32, 32], [32, 1], position=1),
                "c": alias("a", [32, 32], [32, 1], position=2, memory="c", evidence="content"),
                "d": alias(
                    "a", [32, 32], [32, 1], position=3, memory="c", evidence="content", memory_evidence="storage"
                ),
            },
            "stored": {},
            "spans": [],
        }
        assert {k: v for k, v in metadata.items() if k != "paramtool.aliases"} == {
            "format": "pt",
            "b": "a",
            "c": "a",
            "d": "a",
        }

    def test_two_memories_of_two_names(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """Loaded, a trains with b and c with d, and neither pair with the other."""
        *_, output = deduplicated(tmp_path, two_pairs)
        found = paramtool.load_file(output)
        assert partition(two_pairs) == partition(found)
        found["a"][0, 0] = -1
        found["c"][0, 0] = -2
        assert [float(found[name][0, 0]) for name in "abcd"] == [-1, -1, -2, -2]

    @pytest.mark.parametrize(("keep", "owner"), [("first", "a"), ("last", "d"), ("b", "b"), ("d", "d"), ("x*", "a")])
    def test_keep(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor], keep: str, owner: str) -> None:
        """`keep` chooses among all four names, since any of them could own; no name and no tie is lost."""
        *_, output = deduplicated(tmp_path, two_pairs, keep=keep)
        assert [name for name in header(output) if name != "__metadata__"] == [owner]
        assert partition(two_pairs) == partition(paramtool.load_file(output))

    def test_again_is_the_same(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """Dedup of the output gives the same bytes, the two memories included."""
        *_, output = deduplicated(tmp_path, two_pairs)
        dedup_command.dedup(output, tmp_path / "again.safetensors")
        assert output.read_bytes() == (tmp_path / "again.safetensors").read_bytes()

    def test_without_looking_at_content(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """With equal=False each pair is stored once."""
        *_, output = deduplicated(tmp_path, two_pairs, equal=False)
        assert [name for name in header(output) if name != "__metadata__"] == ["a", "c"]

    def test_below_the_least_size_nothing_joins(self, tmp_path: Path) -> None:
        """One element less than 4096 bytes, and equal bytes are stored twice."""
        w = torch.arange(1023, dtype=torch.float32)
        _, record, _ = deduplicated(tmp_path, {"a": w, "b": w.clone()})
        assert record is None

    def test_equal_bits_are_needed(self, tmp_path: Path) -> None:
        """-0.0 is not 0.0, and NaN with the same bits is the same."""
        w = torch.zeros(1024)
        minus = w.clone()
        minus[7] = -0.0
        nan = torch.full((1024,), float("nan"))
        _, record, _ = deduplicated(tmp_path, {"a": w, "b": minus, "c": nan, "d": nan.clone()})
        assert list(record["aliases"]) == ["d"]

    def test_content_joins_no_optimizer_with_a_model(self, tmp_path: Path) -> None:
        """Equal weights and moments stay two tensors."""
        w = torch.arange(1024, dtype=torch.float32)
        state = {"model": {"w": w, "v": w.clone()}, "optimizer": {"state": {0: {"exp_avg": w.clone()}}}}
        _, record, _ = deduplicated(tmp_path, state)
        assert list(record["aliases"]) == ["model.v"]


class TestOwners:
    """Which of several equal names owns, and that it stays so."""

    def owners(self, path: Path) -> list[str]:
        """The stored names."""
        return [name for name in header(path) if name != "__metadata__"]

    def test_the_first_in_file_order_owns_whatever_its_shape(self, tmp_path: Path) -> None:
        """Equality is found between b and c, which have one shape; a, first and tied to c, owns for all."""
        w = torch.arange(4096, dtype=torch.float32)
        *_, output = deduplicated(tmp_path, {"a": w, "b": w.clone().view(64, 64), "c": w.view(64, 64)})
        assert self.owners(output) == ["a"]

    def test_equal_by_way_of_a_third_shape(self, tmp_path: Path) -> None:
        """Three storages that two pairs of shapes connect are stored once, in one go."""
        w = torch.arange(4096, dtype=torch.float32)
        x, y, z = w.clone(), w.clone(), w.clone()
        state = {"xt": x.view(32, 128), "y": y, "ym": y.view(64, 64), "zm": z.view(64, 64), "zt": z.view(32, 128)}
        *_, output = deduplicated(tmp_path, state)
        assert self.owners(output) == ["xt"]
        assert partition(state) == partition(paramtool.load_file(output))

    def test_spans_are_numbered_in_file_order(self, tmp_path: Path) -> None:
        """Not in the order of bytes, which a second dedup would not see any more."""
        base = torch.arange(20, dtype=torch.float32)
        state = {"a": base[10:16], "b": base[12:18], "c": base[0:4], "d": base[2:6]}
        *_, output = deduplicated(tmp_path, state)
        dedup_command.dedup(output, tmp_path / "again.safetensors")
        assert self.owners(output) == ["paramtool.span/0", "paramtool.span/1"]
        assert output.read_bytes() == (tmp_path / "again.safetensors").read_bytes()

    @pytest.mark.parametrize("count", [1, 2, 3])
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
    def test_equal_tensors_of_a_few_bytes(self, tmp_path: Path, count: int, dtype: torch.dtype) -> None:
        """Where the user asks for it, tensors shorter than a sample join too, first and last in their file."""
        w = torch.ones(count, dtype=dtype)
        *_, output = deduplicated(tmp_path, {"a": w, "b": w.clone()}, min_equal_bytes=1)
        dedup_command.dedup(output, tmp_path / "again.safetensors", min_equal_bytes=1)
        assert self.owners(output) == ["a"]
        torch.save(
            {"a": w, "x": torch.zeros(5), "b": w.clone()}, tmp_path / "n.pt", _use_new_zipfile_serialization=False
        )
        report = dedup_command.dedup(tmp_path / "n.pt", tmp_path / "n.safetensors", min_equal_bytes=1)
        assert [equal.names for equal in report.equal or ()] == [("a", "b")]


class TestWindows:
    """Slices, transposes and overlapping windows, each with its geometry."""

    def test_slice_and_transpose(self, tmp_path: Path) -> None:
        """A column slice and a transpose are windows on the whole, which is stored though it comes second."""
        w = torch.arange(12, dtype=torch.float32).view(3, 4)
        state = {"cols": w[:, 1:3], "w": w, "t": w.t(), "row": w[2], "v": w.view(2, 6)}
        metadata, record, output = deduplicated(tmp_path, state)
        assert record == {
            "version": 1,
            "aliases": {
                "cols": alias("w", [3, 2], [4, 1], memory="cols", relation="slice", offset=1, position=0),
                "t": alias("w", [4, 3], [1, 4], memory="cols", relation="transpose", position=2),
                "row": alias("w", [4], [1], memory="cols", relation="slice", offset=8, position=3),
                "v": alias("w", [2, 6], [6, 1], memory="cols", relation="view", position=4),
            },
            "stored": {"w": {"memory": "cols", "memory_evidence": "storage"}},
            "spans": [],
        }
        assert metadata == {"format": "pt", "paramtool.aliases": metadata["paramtool.aliases"]}
        assert partition(state) == partition(paramtool.load_file(output))

    def test_overlapping_windows_without_a_cover(self, tmp_path: Path) -> None:
        """The dense span is stored once under a name of its own, without the rest of the storage."""
        base = torch.arange(20, dtype=torch.float32)
        state = {"a": base[2:10], "b": base[6:14]}
        metadata, record, output = deduplicated(tmp_path, state)
        span = "paramtool.span/0"
        assert record == {
            "version": 1,
            "aliases": {
                "a": alias(span, [8], [1], memory="a", relation="overlap", position=0),
                "b": alias(span, [8], [1], memory="a", relation="overlap", offset=4, position=1),
            },
            "stored": {},
            "spans": [span],
        }
        assert header(output)[span]["shape"] == [12]
        assert set(metadata) == {"format", "paramtool.aliases"}
        assert partition(state) == partition(paramtool.load_file(output))

    def test_overlapping_windows_of_two_dtypes(self, tmp_path: Path) -> None:
        """Where dtypes differ the span is bytes, and each window counts in elements of its own dtype."""
        base = torch.arange(16, dtype=torch.uint8)
        state = {"a": base[:12], "b": base[4:16].view(torch.float8_e4m3fn)}
        _, record, output = deduplicated(tmp_path, state)
        assert header(output)["paramtool.span/0"]["dtype"] == "U8"
        assert [(a["dtype"], a["offset"]) for a in record["aliases"].values()] == [("uint8", 0), ("float8_e4m3fn", 4)]
        assert partition(state) == partition(paramtool.load_file(output))

    def test_a_fused_block_has_no_alias(self, tmp_path: Path) -> None:
        """Disjoint windows on one storage are stored for themselves, without a record."""
        base = torch.arange(10, dtype=torch.float32)
        metadata, record, output = deduplicated(tmp_path, {"a": base[:4], "b": base[4:]})
        assert (metadata, record) == ({"format": "pt"}, None)
        assert list(header(output)) == ["__metadata__", "a", "b"]

    def test_a_permuted_tensor_is_written_row_by_row(self, tmp_path: Path) -> None:
        """A lone channels_last tensor is dense, so it is written C-contiguous, without a record."""
        w = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
        _, record, output = deduplicated(tmp_path, {"w": w})
        assert record is None
        with safe_open(output, "np") as file:
            assert np.array_equal(file.get_tensor("w"), w.numpy())

    def test_an_expanded_tensor_is_stored_as_its_span(self, tmp_path: Path) -> None:
        """Stride 0 is kept: one number is stored for ten thousand."""
        _, record, output = deduplicated(tmp_path, {"mask": torch.ones(1).expand(100, 100)})
        expected = alias("paramtool.span/0", [100, 100], [0, 0], memory="mask", relation="overlap", position=0)
        assert record["aliases"] == {"mask": expected}
        assert header(output)["paramtool.span/0"]["data_offsets"] == [0, 4]


class TestObjects:
    """What stands beside the tensors."""

    def test_numbers_beside_tensors_are_recorded(self, tmp_path: Path) -> None:
        """A number in the same dict as the tensors is no less than one in a nested dict."""
        _, record, output = deduplicated(tmp_path, {"w": torch.ones(2), "epoch": 3})
        assert record["objects"] == {"map": "dict", "items": [1, ["epoch", 3]]}
        assert paramtool.read(tmp_path / "model.pt").objects == paramtool.read(output).objects

    def test_a_file_without_tensors_is_not_written(self, tmp_path: Path) -> None:
        """There is nothing to deduplicate, and the objects alone are no checkpoint."""
        torch.save({"epoch": 3}, tmp_path / "model.pt")
        with pytest.raises(PlanError, match="holds no tensor"):
            paramtool.dedup(tmp_path / "model.pt")

    def test_typed_keys(self, tmp_path: Path) -> None:
        """Key 0 and key '0' stay two keys, and runs of tensors are short."""
        state = {"model": {"w": torch.ones(2), "b": torch.ones(3)}, 0: {"step": 1}, "0": (True, None)}
        _, record, _ = deduplicated(tmp_path, state)
        assert record["objects"] == {
            "map": "dict",
            "items": [
                ["model", {"map": "dict", "items": [2]}],
                [0, {"map": "dict", "items": [["step", 1]]}],
                ["0", {"seq": "tuple", "items": [True, None]}],
            ],
        }

    def test_a_plain_state_dict_has_no_record(self, tmp_path: Path) -> None:
        """Nothing shared, nothing beside: only `format: pt`, as other tools expect."""
        metadata, record, _ = deduplicated(tmp_path, {"w": torch.ones(2), "b": torch.ones(3)})
        assert (metadata, record) == ({"format": "pt"}, None)


class TestShards:
    """The same in a folder."""

    def test_an_alias_stands_in_its_owners_shard(self, tmp_path: Path, two_pairs: dict[str, torch.Tensor]) -> None:
        """Each shard records its own aliases, the index their union; alias names never enter weight_map."""
        x = torch.full((1024,), 2.0)
        torch.save({**two_pairs, "x": x, "y": x}, tmp_path / "model.pt")
        dedup_command.dedup(tmp_path / "model.pt", tmp_path / "out", max_shard_size=4096)
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        assert index["weight_map"] == {"a": first, "x": second}
        assert index["metadata"]["total_size"] == 8192
        records = [
            json.loads(metadata["paramtool.aliases"])["aliases"]
            for metadata in (
                header(tmp_path / "out" / first)["__metadata__"],
                header(tmp_path / "out" / second)["__metadata__"],
            )
        ]
        assert [list(r) for r in records] == [["b", "c", "d"], ["y"]]
        union = json.loads(index["metadata"]["paramtool.aliases"])["aliases"]
        assert union == records[0] | records[1]
