"""Layouts on real files: buffers that were saved from GPUs, and GRUs whose outputs are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramtool
from paramtool import layouts
from paramtool.commands import inspect as inspect_command
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError
from paramtool.layouts.spec import Cell
from paramtool.model.view import View
from tests.laws.sharing import raw
from tests.oracles.frameworks import reference
from tests.oracles.running import Arrays, below, close, random, run_onnx, run_torch

GTCRN = "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar"
RNN_VECTORS = "NVIDIA__TensorRT__quant_rnn_test_vectors.pt"
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def storage(tensor: torch.Tensor) -> bytes:
    """The bytes of all of the storage that a tensor stands on."""
    return bytes(tensor.untyped_storage())


@pytest.fixture(scope="module")
def loaded(samples: Path) -> dict[str, Any]:
    """What torch reads."""
    found = torch.load(samples / GTCRN, weights_only=True, map_location="cpu")
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def fused(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[paramtool.Relayouted, Path]:
    """The whole checkpoint, fused."""
    output = tmp_path_factory.mktemp("gtcrn") / "fused.safetensors"
    return relayout_command.fuse(samples / GTCRN, output, layout="cudnn"), output


class TestSavedFromAGpu:
    """14 GRUs, each all weights on one storage, in the order in which cuDNN wants them."""

    def storages(self, state: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        """{module of a GRU: the bytes of the storage of its weights}."""
        found: dict[str, set[bytes]] = {}
        for name, tensor in state.items():
            module, _, own = name.rpartition(".")
            if own.startswith(("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")):
                found.setdefault(module, set()).add(storage(tensor))
        assert all(len(values) == 1 for values in found.values())
        return {module: min(values) for module, values in found.items()}

    def test_the_buffer_is_the_storage(self, loaded: dict[str, Any], fused: tuple[paramtool.Relayouted, Path]) -> None:
        """What `fuse` makes of the parts of each GRU is, byte for byte, the storage that they were saved on."""
        found = paramtool.load_file(fused[1])
        expected = self.storages(loaded["model"])
        assert len(expected) == 14
        assert {at: raw(found[f"model.{at}.flat_weights"]) for at in expected} == expected

    def test_no_copy_is_needed(self, fused: tuple[paramtool.Relayouted, Path]) -> None:
        """Each is recognised as one run of bytes that stands in the buffer's order already."""
        assert len(fused[0].converted) == 14
        assert all(one.is_run and one.is_exact and not one.changes for one in fused[0].converted)

    def test_the_rest_is_untouched(self, loaded: dict[str, Any], fused: tuple[paramtool.Relayouted, Path]) -> None:
        """Every other tensor of the model has its bytes, and there is no other name."""
        found, gone = below(paramtool.load_file(fused[1]), "model"), self.storages(loaded["model"])
        others = {n: t for n, t in loaded["model"].items() if n.rpartition(".")[0] not in gone}
        assert set(found) == {*others, *(f"{at}.flat_weights" for at in gone)}
        assert all(raw(found[name]) == raw(tensor) for name, tensor in others.items())

    def test_the_optimizer_follows(self, loaded: dict[str, Any], fused: tuple[paramtool.Relayouted, Path]) -> None:
        """Adam's moments of each GRU are one vector in the order of its storage; the others have new numbers."""
        assert not [warning for warning in fused[0].warnings if "optimizer" in warning]
        old, model = loaded["optimizer"]["state"], loaded["model"]
        position = {name: k for k, name in enumerate(n for n in model if not n.endswith(BUFFERS))}
        assert len(position) == len(loaded["optimizer"]["param_groups"][0]["params"])
        parts: dict[str, list[str]] = {}
        networks = self.storages(model)
        for name in position:
            module = name.rpartition(".")[0]
            parts.setdefault(module if module in networks else name, []).append(name)
        expected = {}
        for k, names in enumerate(parts.values()):
            names.sort(key=lambda name: model[name].data_ptr())
            states = [old[position[name]] for name in names if position[name] in old]
            for slot in states[0] if states else ():
                key = f"optimizer.state.{k}.{slot}"
                tensors = [torch.as_tensor(state[slot]) for state in states]
                whole = slot == "step" or len(names) == 1
                expected[key] = raw(tensors[0]) if whole else b"".join(map(raw, tensors))
        found = {n: raw(t) for n, t in paramtool.load_file(fused[1]).items() if n.startswith("optimizer.state.")}
        assert len(found) == 290
        assert found == {name: expected[name] for name in found}
        assert {name for name in expected if not name.endswith(".step")} == found.keys()

    def test_there_and_back(
        self, loaded: dict[str, Any], fused: tuple[paramtool.Relayouted, Path], tmp_path: Path
    ) -> None:
        """`unfuse` without a flag gives back every tensor of the checkpoint under its name."""
        relayout_command.unfuse(fused[1], tmp_path / "back.safetensors")
        found = below(paramtool.load_file(tmp_path / "back.safetensors"), "model")
        assert found.keys() == loaded["model"].keys()
        assert all(raw(found[name]) == raw(tensor) for name, tensor in loaded["model"].items())

    def test_the_model_alone(self, loaded: dict[str, Any], samples: Path, tmp_path: Path) -> None:
        """With `only`, the same without the section's prefix, the optimizer left out and said so."""
        report = relayout_command.fuse(samples / GTCRN, tmp_path / "m.safetensors", layout="cudnn", only="model")
        assert report.warnings == ()
        assert report.left_out == ("section optimizer", "objects outside of the section: 'epoch'")
        assert all(one.is_run for one in report.converted)
        found = paramtool.load_file(tmp_path / "m.safetensors")
        for at, expected in self.storages(loaded["model"]).items():
            assert raw(found[f"{at}.flat_weights"]) == expected
        relayout_command.unfuse(tmp_path / "m.safetensors", tmp_path / "back.safetensors")
        found = paramtool.load_file(tmp_path / "back.safetensors")
        assert found.keys() == loaded["model"].keys()
        assert all(raw(found[name]) == raw(tensor) for name, tensor in loaded["model"].items())

    def test_both_kinds_of_names(self, loaded: dict[str, Any], samples: Path, tmp_path: Path) -> None:
        """With `keep_names` the parts are windows of the buffer, and the weights are stored once."""
        output = tmp_path / "both.safetensors"
        relayout_command.fuse(samples / GTCRN, output, layout="cudnn", only="model", keep_names=True)
        found, stored = (
            paramtool.load_file(output),
            {t.name for t in inspect_command.inspect(output).graph.names.values()},
        )
        assert stored >= loaded["model"].keys()
        assert all(raw(found[name]) == raw(tensor) for name, tensor in loaded["model"].items())
        checkpoint = paramtool.read(output)
        for at in self.storages(loaded["model"]):
            values = [checkpoint.entries[f"{at}.{own}"].value for own in ("flat_weights", "weight_hh_l0", "bias_hh_l0")]
            assert len({value.storage for value in values if isinstance(value, View)}) == 1

    def test_fused_weights_run(self, loaded: dict[str, Any], samples: Path, tmp_path: Path) -> None:
        """A bidirectional one, fused, unfused as ONNX and back, computes what the equations say of torch's tensors."""
        at = "dpgrnn1.intra_rnn.rnn1"
        paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
        relayout_command.fuse(samples / GTCRN, paths[0], layout="cudnn", only="model", at=(at,))
        relayout_command.unfuse(paths[0], paths[1], target="onnx")
        relayout_command.convert(paths[1], paths[2], target="torch")
        x, h0 = random(7, 3, 8), random(2, 3, 4)
        own = {name: tensor.numpy() for name, tensor in below(loaded["model"], at).items()}
        expected = reference.run("gru", own, x, h0)
        y, hn = run_torch("gru", below(paramtool.load_file(paths[2]), at), x, h0)
        close(y, expected["y"])
        close(hn, expected["hn"])


# --- known outputs ----------------------------------------------------------------------------------------------------

BITS = {
    "QuantGRU::test_quant_input_hidden": (4, 4),
    "QuantGRU::test_quant_input_hidden_bias": (5, 5),
    "QuantGRU::test_quant_different_prec": (5, 6),
    "QuantGRUCell::test_quant_input_hidden": (4, 4),
    "QuantGRUCell::test_quant_input_hidden_bias": (4, 4),
    "QuantGRUCell::test_quant_different_prec": (8, 4),
}
"""{test vector: bits of x and h, bits of W and U}.  The file does not say; of 3 to 16 these alone give its outputs."""
WITHOUT_BIASES = ("QuantGRU::test_quant_input_hidden", "QuantGRU::test_quant_different_prec",
                  "QuantGRUCell::test_quant_input_hidden")  # fmt: skip
KNOWN = 2e-7
"""The known outputs come out to this, quantised; the nearest other numbers of bits are off by 5e-4 and more."""
UNQUANTISED = 0.05
WRONG = 0.2
"""What a wrong order of gates is off by, at least."""


def quantised(values: np.ndarray, bits: int) -> np.ndarray:
    """The nearest of 2**bits - 1 numbers that are symmetric about 0; the largest of `values` is one of them."""
    steps = 2.0 ** (bits - 1) - 1
    scale = steps / np.abs(values).max()
    return np.asarray(np.round(values * scale) / scale)


def vector(weights: Arrays, case: Arrays, bits: tuple[int, int] | None) -> np.ndarray:
    """The outputs (N, H) of a GRU cell, whose products are of quantised numbers; what of h passes by is as it was."""
    own = {name.removesuffix("_l0"): np.asarray(value, np.float64) for name, value in weights.items()}
    x, h = (case[name].numpy().astype(np.float64).reshape(2, 2) for name in ("input", "hidden"))
    qx, qh = (quantised(v, bits[0]) if bits else v for v in (x, h))
    w, u = (quantised(own[name], bits[1]) if bits else own[name] for name in ("weight_ih", "weight_hh"))
    of_x, of_h = qx @ w.T + own.get("bias_ih", 0.0), qh @ u.T + own.get("bias_hh", 0.0)
    r, z = (1 / (1 + np.exp(-(of_x + of_h)[:, k : k + 2])) for k in (0, 2))
    n = np.tanh(of_x[:, 4:] + r * of_h[:, 4:])
    return np.asarray(n + z * (h - n))


@pytest.fixture(scope="module")
def vectors(samples: Path) -> dict[str, Any]:
    """What torch reads."""
    found = torch.load(samples / RNN_VECTORS, weights_only=True, map_location="cpu")
    assert found.keys() == BITS.keys()
    for case in found.values():
        case["state"] = {name: tensor.detach() for name, tensor in case["state"].items()}
    return dict(found)


class TestKnownOutputs:
    """GRUs with inputs, and with the outputs that NVIDIA's quantised GRU gave."""

    def off(self, arrays: Arrays, vectors: dict[str, Any], *, quantise: bool) -> Iterator[float]:
        """How far the outputs are from the known ones, for each of the networks that are there."""
        for name, case in vectors.items():
            if weights := below(arrays, f"{name}.state"):
                found = vector(weights, case, BITS[name] if quantise else None)
                yield float(np.abs(found - case["out"].detach().numpy().reshape(2, 2)).max())

    @pytest.mark.parametrize("name", BITS)
    def test_the_storage_with_its_tail(self, vectors: dict[str, Any], samples: Path, tmp_path: Path, name: str) -> None:
        """The fused tensor is the whole storage, with 12 zeros at the end where a GRU without biases has room for them.

        Cells were never flattened: they have a storage for each tensor, and fused the same order.
        """
        output = tmp_path / "f.safetensors"
        report = relayout_command.fuse(samples / RNN_VECTORS, output, layout="cudnn", at=(f"{name}.state",))
        found, state = paramtool.load_file(output)[f"{name}.state.flat_weights"], vectors[name]["state"]
        assert found.shape == (36,)
        tail = b"" if name not in WITHOUT_BIASES else bytes(48)
        assert raw(found) == b"".join(map(raw, state.values())) + tail
        is_buffer = "Cell" not in name
        assert report.converted[0].is_run == is_buffer
        assert not is_buffer or all(storage(tensor) == raw(found) for tensor in state.values())

    def test_without_the_tail(self, samples: Path, vectors: dict[str, Any], tmp_path: Path) -> None:
        """`cudnn:tail=no` is the same without the unused room."""
        output, name = tmp_path / "f.safetensors", WITHOUT_BIASES[0]
        relayout_command.fuse(samples / RNN_VECTORS, output, layout="cudnn:tail=no", at=(f"{name}.state",))
        found = paramtool.load_file(output)[f"{name}.state.flat_weights"]
        assert raw(found) == b"".join(map(raw, vectors[name]["state"].values()))

    def test_there_and_back(self, samples: Path, vectors: dict[str, Any], tmp_path: Path) -> None:
        """`unfuse` gives back every tensor under its name, GRUs as GRUs and cells as cells."""
        relayout_command.fuse(samples / RNN_VECTORS, tmp_path / "f.safetensors", layout="cudnn")
        relayout_command.unfuse(tmp_path / "f.safetensors", tmp_path / "b.safetensors")
        found = paramtool.load_file(tmp_path / "b.safetensors")
        for name, case in vectors.items():
            own = below(found, f"{name}.state")
            assert {key: raw(v) for key, v in own.items()} == {key: raw(v) for key, v in case["state"].items()}
            assert all(raw(found[f"{name}.{key}"]) == raw(v) for key, v in case.items() if key != "state")

    @pytest.mark.sample(5)
    @pytest.mark.parametrize("layout", layouts.built_in())
    def test_through_every_layout(self, layout: str, samples: Path, vectors: dict[str, Any], tmp_path: Path) -> None:
        """There and back, the GRUs give the known outputs: near them as they are, and the very same once quantised.

        A layout that has no place for a bias inside r * ( ) refuses those that have one, and takes the others.
        """
        table = layouts.find(layout)
        holds = {form.reset: form for form in table.forms_of("gru", table.chosen({}))}
        if "after" not in holds:
            with pytest.raises(LayoutError, match="cannot hold it"):
                relayout_command.convert(samples / RNN_VECTORS, tmp_path / "x.safetensors", target=layout)
            return
        at: tuple[str, ...] = ()
        if not holds["after"].has_place(Cell("bR", gate="n")):
            with pytest.raises(LayoutError, match=r"recurrent bias of gate n \(layer 0\) is not zero"):
                relayout_command.convert(samples / RNN_VECTORS, tmp_path / "x.safetensors", target=layout)
            at = tuple(f"{name}.state" for name in WITHOUT_BIASES)
        relayout_command.convert(samples / RNN_VECTORS, tmp_path / "there.safetensors", target=layout, at=at)
        relayout_command.convert(tmp_path / "there.safetensors", tmp_path / "back.safetensors", target="torch")
        back = paramtool.load_file(tmp_path / "back.safetensors")
        there = {name: case for name, case in vectors.items() if not at or f"{name}.state" in at}
        near = list(self.off(back, there, quantise=False))
        assert len(near) == (len(at) or len(BITS))
        assert max(near) < UNQUANTISED
        assert max(self.off(back, there, quantise=True)) < KNOWN

    def test_torch_and_onnx_themselves(self, samples: Path, vectors: dict[str, Any], tmp_path: Path) -> None:
        """Both libraries, on weights that were converted, are within 0.05 of every known output.

        With the reset gate before the product, ONNX Runtime is not, for four of the six.
        """
        relayout_command.convert(samples / RNN_VECTORS, tmp_path / "o.safetensors", target="onnx")
        relayout_command.convert(samples / RNN_VECTORS, tmp_path / "k.safetensors", target="keras")
        relayout_command.convert(tmp_path / "k.safetensors", tmp_path / "t.safetensors", target="torch")
        of_onnx, of_torch = (paramtool.load_file(tmp_path / f"{k}.safetensors") for k in "ot")
        before = []
        for name, case in vectors.items():
            x, h, out = (case[key].detach().numpy().reshape(1, 2, 2) for key in ("input", "hidden", "out"))
            own = below(of_onnx, f"{name}.state")
            close(run_onnx("gru", own, x, h, linear_before_reset=1), out, UNQUANTISED)
            close(run_torch("gru", below(of_torch, f"{name}.state"), x, h)[0], out, UNQUANTISED)
            before.append(float(np.abs(run_onnx("gru", own, x, h, linear_before_reset=0) - out).max()))
        assert sum(distance > UNQUANTISED for distance in before) == 4

    @pytest.mark.parametrize("order", [o for o in map("".join, permutations("rzn")) if o != "rzn"])
    def test_wrong_orders(
        self, order: str, samples: Path, vectors: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Read with any other order of gates, each of the six networks is off by more than 0.2."""
        for name in ("torch", "torch.cell"):
            right = layouts.find(name)
            forms = tuple(replace(form, gates=order) for form in right.forms if form.kind == "gru")
            wrong = replace(right, name=name.replace("torch", "wrong"), forms=forms)
            monkeypatch.setitem(layouts.registered, wrong.name, wrong)
        relayout_command.convert(samples / RNN_VECTORS, tmp_path / "w.safetensors", source="wrong", target="torch")
        found = paramtool.load_file(tmp_path / "w.safetensors")
        distances = list(self.off(found, vectors, quantise=False))
        assert len(distances) == len(BITS)
        assert min(distances) > WRONG
