"""Real checkpoints of other people: what torch reads from them is what is described here."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import inspect as inspect_command
from paramtool.commands import verify as verify_command
from paramtool.errors import Defects, FormatError, UnsafeError, UsageError
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Mapping, TensorRef, walk
from paramtool.model.view import View
from tests.laws.sharing import partition, raw

RNN_VECTORS = "NVIDIA__TensorRT__quant_rnn_test_vectors.pt"
OPENNMT = "OpenNMT__OpenNMT-py__test_model2_old.pt"
GTCRN = "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar"
QUAREL = "allenai__allennlp__quarel_best.th"
SILERO = "snakers4__silero-vad__v3_silero_vad.jit"
GRANITE = "jeremieconte__granite-3.1-1b-a400m-instruct__sharded_lfs"

COUNTS = {
    RNN_VECTORS: (39, 34, 0),
    OPENNMT: (84, 42, 14),
    GTCRN: (677, 619, 0),
    QUAREL: (20, 19, 1),
    "allenai__allennlp__simple_tagger_full_best.th": (9, 9, 0),
    "allenai__allennlp__simple_tagger_full_training_state_e1_b0.th": (18, 18, 0),
    "dgriff777__a3c_continuous__BipedalWalker-v2.dat": (18, 18, 0),
    SILERO: (239, 223, 16),
}
"""{file: (names, storages, alias groups)}, of every torch file there."""
FOREIGN = {
    "YYuanAnyVision__mxnet_mtcnn_face_detection__det1-symbol.json": "JSON",
}
ACCEPTED = sorted(COUNTS.keys() - {OPENNMT, SILERO})
"""Those that torch.load(weights_only=True) reads."""


def test_every_torch_file_is_counted(samples: Path) -> None:
    """A new torch file in the folder needs its row."""
    found = {p.name for p in samples.iterdir() if p.suffix in {".pt", ".pth", ".tar", ".th", ".dat", ".jit", ".ckpt"}}
    assert found == set(COUNTS)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts(samples: Path, name: str) -> None:
    """Names, storages and alias groups are those that the README states or torch shows."""
    found = inspect_command.inspect(samples / name)
    assert COUNTS[name] == (
        len(found.checkpoint.entries),
        len(found.checkpoint.storages),
        len(list(found.graph.groups())),
    )


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_foreign_files_are_called_by_what_they_are(samples: Path, name: str) -> None:
    """A file of a format that is not read is a FormatError that says which."""
    with pytest.raises(FormatError, match=FOREIGN[name]):
        paramtool.read(samples / name)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of a loaded checkpoint, in order."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in pairs:
            yield from leaves(child, f"{path}.{key}" if path else str(key))


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage; empty ones have no address."""
    return int(tensor.untyped_storage()._cdata)


@pytest.mark.parametrize("name", ACCEPTED)
class TestAgainstTorch:
    """Files that torch reads without code."""

    def test_names_and_windows(self, samples: Path, name: str) -> None:
        """Names in order, dtypes, shapes, offsets and strides (on axes longer than 1) are torch's."""
        expected = dict(leaves(torch.load(samples / name, weights_only=True, map_location="cpu")))
        found = paramtool.read(samples / name).entries
        assert list(expected) == list(found)
        for key, tensor in expected.items():
            view = found[key].value
            assert isinstance(view, View)
            window = View(view.storage, view.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
            assert (f"torch.{view.dtype.name}", window) == (str(tensor.dtype), view), key

    def test_storages(self, samples: Path, name: str) -> None:
        """Two names are on one storage exactly where they are in torch, and it has torch's size."""
        expected = dict(leaves(torch.load(samples / name, weights_only=True, map_location="cpu")))
        checkpoint = paramtool.read(samples / name)
        pairs = {(storage_of(t), int(checkpoint.entries[key].value.storage)) for key, t in expected.items()}  # type: ignore[union-attr]
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
        for key, tensor in expected.items():
            view = checkpoint.entries[key].value
            assert isinstance(view, View)
            assert tensor.untyped_storage().nbytes() == checkpoint.storages[int(view.storage)].nbytes

    @pytest.mark.sample(3)
    def test_values_and_sharing(self, samples: Path, name: str, tmp_path: Path) -> None:
        """`load_file` of the file and of its dedup have torch's bytes, and share what torch shares."""
        expected = dict(leaves(torch.load(samples / name, weights_only=True, map_location="cpu")))
        output = tmp_path / "out.safetensors"
        dedup_command.dedup(samples / name, output)
        for found in (paramtool.load_file(samples / name), paramtool.load_file(output)):
            assert list(expected) == list(found)
            assert all(raw(tensor) == raw(found[key]) for key, tensor in expected.items())
            assert partition(expected) == partition(found)
        assert verify_command.verify(output, samples / name).differences == ()

    @pytest.mark.sample(5)
    def test_dedup_again(self, samples: Path, name: str, tmp_path: Path) -> None:
        """Dedup of the dedup gives the same bytes."""
        once, twice = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
        dedup_command.dedup(samples / name, once)
        dedup_command.dedup(once, twice)
        assert once.read_bytes() == twice.read_bytes()


class TestFusedBlocks:
    """RNN weights in one storage, as cuDNN leaves them: separate names, one block, in a known order."""

    RNN = re.compile(r"(?P<module>.*)\.(?P<what>weight|bias)_(?P<kind>ih|hh)_l(?P<layer>\d+)(?P<back>_reverse)?$")

    def order(self, name: str) -> tuple[Any, ...]:
        """By weights then biases; in each by layer, direction, input before hidden."""
        match = self.RNN.match(name)
        assert match, name
        part = match.groupdict()
        return (part["what"] == "bias", int(part["layer"]), bool(part["back"]), part["kind"] == "hh")

    def test_gtcrn(self, samples: Path) -> None:
        """14 GRUs, each one storage without a gap or tail: per layer and direction W_ih, W_hh, then b_ih, b_hh."""
        fused = inspect_command.inspect(samples / GTCRN).graph.fused
        assert len(fused) == 14
        for block in fused:
            names = [name for name, _, _ in block.parts]
            assert sorted(names, key=self.order) == names
            assert len({self.RNN.match(name)["module"] for name in names}) == 1  # type: ignore[index]
            assert len(names) in {4, 8}
            assert (block.gaps, block.tail) == ((), 0)
            assert [start for _, start, _ in block.parts[1:]] == [stop for _, _, stop in block.parts[:-1]]
            assert (block.parts[0][1], block.parts[-1][2]) == (0, block.nbytes)

    def test_gtcrn_has_bidirectional_ones(self, samples: Path) -> None:
        """Both directions of a layer stand in the one storage of their GRU."""
        sizes = sorted(len(block.parts) for block in inspect_command.inspect(samples / GTCRN).graph.fused)
        assert {4, 8} == set(sizes)

    def test_gtcrn_gapped_views(self, samples: Path) -> None:
        """Two views with a row stride of 257 stand alone on their storages; dedup writes them row by row."""
        checkpoint = paramtool.read(samples / GTCRN)
        gapped = {n: v for n, v in checkpoint.windows() if 257 in v.strides and not v.is_contiguous}
        assert len(gapped) == 2
        graph = alias.build(checkpoint)
        assert all(graph.names[name].owner == name for name in gapped)

    def test_quantised_rnn_tails(self, samples: Path) -> None:
        """Of three fused storages two keep a tail of 12 floats, where the biases would be."""
        fused = inspect_command.inspect(samples / RNN_VECTORS).graph.fused
        assert sorted(block.tail for block in fused) == [0, 48, 48]
        assert all(block.nbytes == 36 * 4 for block in fused if block.tail)

    def test_the_tails_are_unused(self, samples: Path) -> None:
        """The unused bytes of that file are the two tails, and dedup leaves them out."""
        found = inspect_command.inspect(samples / RNN_VECTORS)
        assert sorted(found.graph.unused.values()) == [48, 48]

    def test_no_alias_among_them(self, samples: Path) -> None:
        """Disjoint windows are no aliases: every name of a block owns its bytes."""
        graph = inspect_command.inspect(samples / GTCRN).graph
        assert all(graph.names[name].owner == name for block in graph.fused for name, _, _ in block.parts)


def test_quarel_is_tied(samples: Path) -> None:
    """The input and output embeddings are one."""
    ((_, members),) = inspect_command.inspect(samples / QUAREL).graph.groups()
    assert [m.name for m in members] == ["_action_embedder.weight", "_output_action_embedder.weight"]
    assert {m.evidence for m in members} == {"storage"}


class TestOpenNMT:
    """Pickled with its options and optimizer: refused by torch's weights_only, and read here without its classes."""

    def test_groups_of_four(self, samples: Path) -> None:
        """14 parameters, each under four names: in the model, twice in the optimizer, and as a key of its state."""
        groups = list(inspect_command.inspect(samples / OPENNMT).graph.groups())
        assert [len(members) for _, members in groups] == [4] * 14
        assert all(m.window == members[0].window for _, members in groups for m in members)

    def test_optimizer_state_is_keyed_by_tensors(self, samples: Path) -> None:
        """The keys of the Adam state are tensors of the file, on the storages of the model."""
        checkpoint = paramtool.read(samples / OPENNMT)
        keyed = [
            n
            for n in walk(checkpoint.objects)
            if isinstance(n, Mapping) and any(isinstance(k, TensorRef) for k, _ in n.items)
        ]
        names = [key.name for mapping in keyed for key, _ in mapping.items if isinstance(key, TensorRef)]
        assert len(names) == 14
        assert {alias.build(checkpoint).names[name].alias_set for name in names} <= checkpoint.entries.keys() - set(
            names
        )

    def test_foreign_classes_are_named_and_not_called(self, samples: Path) -> None:
        """Its vocabularies are listed as data; its namespaces are known."""
        unknown = {u.path: u.called for u in paramtool.read(samples / OPENNMT).unknown}
        assert "argparse.Namespace" not in unknown
        assert {"torchtext.vocab.Vocab", "onmt.Optim.Optim"} <= unknown.keys()
        assert not any(unknown.values())

    def test_values(self, samples: Path, tmp_path: Path) -> None:
        """Its storages stand one behind the other at the end of the file, each behind its count; dedup keeps all."""
        checkpoint = paramtool.read(samples / OPENNMT)
        found = paramtool.load_file(samples / OPENNMT)
        data = (samples / OPENNMT).read_bytes()
        at = len(data)
        by_end = {s.backing.stop: s for s in checkpoint.storages.values()}  # type: ignore[union-attr]
        seen = 0
        while at in by_end:
            storage = by_end[at]
            at -= storage.nbytes + 8
            count = int.from_bytes(data[at : at + 8], "little")
            assert storage.nbytes in {4 * count, 8 * count}
            seen += 1
        assert seen == len(checkpoint.storages)
        for name, array in found.items():
            assert np.isfinite(array).all(), name
        dedup_command.dedup(samples / OPENNMT, tmp_path / "o.safetensors")
        again = paramtool.load_file(tmp_path / "o.safetensors")
        assert partition(found) == partition(again)
        assert {n: raw(v) for n, v in found.items()} == {n: raw(v) for n, v in again.items()}


class TestSilero:
    """A TorchScript archive: only its tensors are looked at, its code never."""

    def test_groups(self, samples: Path) -> None:
        """16 groups: each `weight_*` or `bias_*` of an LSTM is an element of `_flat_weights`."""
        groups = list(inspect_command.inspect(samples / SILERO).graph.groups())
        assert len(groups) == 16
        for _, members in groups:
            names = [m.name for m in members]
            assert len(names) == 2
            assert sum("_flat_weights" in name for name in names) == 1

    def test_values(self, samples: Path) -> None:
        """A storage's member of the archive, read by Python's zipfile, holds the tensor's bytes."""
        checkpoint: Checkpoint = paramtool.read(samples / SILERO)
        found = paramtool.load_file(samples / SILERO)
        with zipfile.ZipFile(samples / SILERO) as archive:
            members = {}
            for info in archive.infolist():
                if re.search(r"/(data|constants)/\d+$", info.filename):
                    members.setdefault(archive.read(info), []).append(info.filename)
        checked = 0
        for name, view in checkpoint.windows():
            if view.is_contiguous and view.nbytes == checkpoint.storages[int(view.storage)].nbytes:
                assert raw(found[name]) in members, name
                checked += 1
        assert checked > 200

    def test_dedup(self, samples: Path, tmp_path: Path) -> None:
        """Its dedup holds what it holds, where the code's classes may be left out."""
        dedup_command.dedup(samples / SILERO, tmp_path / "o.safetensors", allow_unknown=True)
        assert verify_command.verify(tmp_path / "o.safetensors", samples / SILERO).differences == ()


def test_git_lfs_pointers(samples: Path) -> None:
    """An index whose shards are pointers: one error, exit code 3, naming both files, with the command to fetch them."""
    with pytest.raises(Defects) as caught:
        paramtool.read(samples / GRANITE)
    assert caught.value.exit_code == 3
    assert len(caught.value.defects) == 2
    for k, defect in enumerate(caught.value.defects):
        assert f"model-{k + 1:05d}-of-00002.safetensors" in defect
        assert "git-LFS pointer" in defect
    assert "git lfs pull" in caught.value.hint


def test_nothing_there_is_unsafe(samples: Path) -> None:
    """None of these real files is taken for an attack; one folder has a language model and a tagger."""
    for path in sorted(samples.iterdir()):
        try:
            paramtool.read(path)
        except FormatError:
            pass
        except UsageError as error:
            assert "elmo" in path.name and "2 sets of weights" in str(error)
        except UnsafeError as error:  # pragma: no cover - the failure itself
            pytest.fail(f"{path.name}: {error}")
