"""convert, fuse and unfuse as a library: whole checkpoints in, whole checkpoints out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file as load_plain
from safetensors.numpy import save_file as save_plain
from safetensors.torch import save_file
from torch import nn

import paramtool
import paramtool.torch
from paramtool import layouts
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import relayout as relayout_command
from paramtool.errors import LayoutError, PlanError, TieError, UsageError
from paramtool.layouts.layout import stored
from paramtool.layouts.spec import Spec
from tests.recurrent import Tagger, flat, flattened, raw, save, shared, state

A, B, C, D = "a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = paramtool.load_file(path)
    return found


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


# --- there and back --------------------------------------------------------------------------------------------------


NETWORKS = {
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(3, 4, 2, bias=False),
    "lstm with a projection": lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    "square lstm": lambda: nn.LSTM(4, 4),
    "gru": lambda: nn.GRU(3, 4, 3),
    "gru without biases": lambda: nn.GRU(3, 4, bidirectional=True, bias=False),
    "rnn": lambda: nn.RNN(3, 4, 2),
}


@pytest.mark.sample(11)
@pytest.mark.parametrize("layout", ["cudnn", "mxnet.flat", "mxnet.v2", "mxnet.unfused", "paddle"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_there_and_back(kind: str, layout: str, tmp_path: Path) -> None:
    """What is written says what it is: unfuse needs no flag, and gives the bytes of the source."""
    module = NETWORKS[kind]()
    path = save(tmp_path, state(module, "enc.rnn"))
    found = relayout_command.fuse(path, tmp_path / A, layout=layout)
    assert found.written and found.verified and [str(one.layout.name) for one in found.converted] == [layout]
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(state(module, "enc.rnn"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_floating_point_type(dtype: torch.dtype, tmp_path: Path) -> None:
    """Bytes move as they are, and sums are made in the network's own type."""
    module = nn.LSTM(3, 4, 2).to(dtype)
    path = save(tmp_path, state(module, "rnn"))
    relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    assert load(tmp_path / A)["rnn.flat_weights"].tobytes() == flat(module)
    relayout_command.convert(path, tmp_path / B, target="keras")
    made = load(tmp_path / B)["rnn/layer1/bias"]
    wanted = (module.bias_ih_l1 + module.bias_hh_l1).detach()
    assert raw({"b": made}) == raw({"b": wanted})


def test_the_bytes_of_cudnn(tmp_path: Path) -> None:
    """All matrices, then all biases; a network without biases has room for them, and zeros there."""
    modules = {"enc": nn.GRU(5, 4, 2, bidirectional=True), "dec": nn.LSTM(5, 4, bias=False)}
    path = save(tmp_path, {**state(modules["enc"], "enc"), **state(modules["dec"], "dec")})
    relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    found = load(tmp_path / A)
    assert found["enc.flat_weights"].tobytes() == flat(modules["enc"])
    assert found["dec.flat_weights"].tobytes() == flat(modules["dec"]) + bytes(4 * 2 * 16)
    relayout_command.fuse(path, tmp_path / B, layout="cudnn:tail=no", at=("dec",))
    assert load(tmp_path / B)["dec.flat_weights"].tobytes() == flat(modules["dec"])


def test_everything_else_passes_through(tmp_path: Path) -> None:
    """Several networks at once, between tensors and ties that stay as they were, in their order."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    assert [one.source.at for one in found.converted] == ["enc", "gru"] and found.untouched == 4
    names = ["emb.weight", "enc.flat_weights", "norm.weight", "norm.bias", "gru.flat_weights", "head.weight"]
    assert list(found.plan.order) == names == list(load(tmp_path / A))
    assert shared(load(tmp_path / A)) == {frozenset({"emb.weight", "head.weight"})}
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(model.state_dict()) and list(load(tmp_path / B)) == list(model.state_dict())
    assert shared(load(tmp_path / B)) == {frozenset({"emb.weight", "head.weight"})}


def test_several_layouts_in_one_file(tmp_path: Path) -> None:
    """One network after the other; those that were not asked for stay, and the last command finds both kinds."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    relayout_command.convert(path, tmp_path / A, target="mxnet.gates", at=("enc",))
    found = relayout_command.convert(tmp_path / A, tmp_path / B, target="onnx", at=("gru",))
    assert found.untouched == 4 + 64 and {m.layout for m in found.plan.modules} == {"mxnet.gates", "onnx"}
    relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert raw(load(tmp_path / C)) == raw(model.state_dict())


def test_what_the_file_says_is_not_all_there_is(tmp_path: Path) -> None:
    """A file that says what one of its networks is may hold others under torch's names."""
    path = save(tmp_path, Tagger().state_dict())
    relayout_command.fuse(path, tmp_path / A, layout="cudnn", at=("enc",))
    found = relayout_command.fuse(tmp_path / A, tmp_path / B, layout="mxnet.flat")
    assert [(one.source.at, one.source.layout.name) for one in found.converted] == [("enc", "cudnn"), ("gru", "torch")]
    assert "gru_parameters" in load(tmp_path / B)


def test_what_is_given_outranks_nothing_that_the_file_says(tmp_path: Path) -> None:
    """A spec that says otherwise is an error that names both."""
    path = save(tmp_path, state(nn.GRU(3, 4), "rnn"))
    relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    with pytest.raises(UsageError, match="the file says hidden=4, spec says hidden=5"):
        relayout_command.unfuse(tmp_path / A, tmp_path / B, spec="gru hidden=5")


def test_a_flat_vector_under_any_name(tmp_path: Path) -> None:
    """What the file does not say, the user says; the new names stand under the vector's."""
    module = nn.GRU(3, 4, 2)
    vector = torch.frombuffer(bytearray(flat(module)), dtype=torch.float32)
    path = save(tmp_path, {"net.packed": vector, "other": torch.ones(3)})
    relayout_command.unfuse(
        path, tmp_path / A, layout="cudnn", at=("net.packed",), spec="gru layers=2 hidden=4 input=3"
    )
    assert raw(load(tmp_path / A)) == raw({**state(module, "net.packed"), "other": torch.ones(3)})


# --- saved from a GPU ------------------------------------------------------------------------------------------------


def test_windows_of_one_buffer_are_recognised(tmp_path: Path) -> None:
    """Fused, the parent is one run of the source's bytes; unfused, there is nothing to do, and it is said."""
    module = nn.LSTM(3, 4, 2, bidirectional=True)
    path = save(tmp_path, {**flattened(module, "rnn"), "w": torch.ones(2)})
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    ((target,), copies) = (found.converted[0].targets, found.converted[0].targets[0].copies)
    assert found.converted[0].is_run and len(copies) == 1 and copies[0].terms[0][1].nbytes == target.nbytes
    assert load(tmp_path / A)["rnn.flat_weights"].tobytes() == flat(module)
    found = relayout_command.unfuse(path, tmp_path / B)
    assert any("'rnn' (windows of one buffer in cudnn's order)" in warning for warning in found.warnings)
    assert raw(load(tmp_path / B)) == raw({**state(module, "rnn"), "w": torch.ones(2)}) and found.untouched == 1


def test_parts_that_only_look_adjacent_are_copied(tmp_path: Path) -> None:
    """Two matrices of one shape that lie in the wrong order are no run."""
    module = nn.LSTM(4, 4)
    windows = flattened(module, "rnn")
    first, second = (windows[f"rnn.weight_{part}_l0"] for part in ("ih", "hh"))
    path = save(tmp_path, {**windows, "rnn.weight_ih_l0": second, "rnn.weight_hh_l0": first})
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    assert not found.converted[0].is_run
    wanted = b"".join(t.numpy().tobytes() for t in (second, first)) + flat(module)[2 * first.nbytes :]
    assert load(tmp_path / A)["rnn.flat_weights"].tobytes() == wanted


@pytest.mark.parametrize("kind", ["lstm", "gru without biases"])
def test_a_buffer_with_a_tail(kind: str, tmp_path: Path) -> None:
    """cuDNN's room for biases that are not there goes, and comes again."""
    module = NETWORKS[kind]()
    room = 2 * 2 * 12 if kind != "lstm" else 0
    path = save(tmp_path, flattened(module, "rnn", tail=room))
    relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    found = load(tmp_path / A)
    assert found["rnn.flat_weights"].tobytes() == flat(module) + bytes(4 * room)
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(state(module, "rnn"))


# --- nothing to do ---------------------------------------------------------------------------------------------------


def test_fusing_twice_changes_no_byte(tmp_path: Path) -> None:
    """The second file is the first, whatever else is in it, and the report says why."""
    path = save(tmp_path, Tagger().state_dict())
    for keep_names in (False, True):
        relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=keep_names, force=True)
        found = relayout_command.fuse(tmp_path / A, tmp_path / B, layout="cudnn", keep_names=keep_names, force=True)
        assert (tmp_path / A).read_bytes() == (tmp_path / B).read_bytes()
        assert [w for w in found.warnings if "already" in w] == [
            "already in the wanted layout, and left unchanged: 'enc', 'gru'"
        ]


def test_torch_to_torch_is_the_same_checkpoint(tmp_path: Path) -> None:
    """Ties and order included."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    found = relayout_command.convert(path, tmp_path / A, target="torch")
    assert raw(load(tmp_path / A)) == raw(model.state_dict()) and list(load(tmp_path / A)) == list(model.state_dict())
    assert found.converted[0].is_exact and not found.converted[0].changes and found.untouched == 4


def test_a_new_shape_is_a_change(tmp_path: Path) -> None:
    """Old files have biases of [1, 400]; written again they are what the layout says, and that is told."""
    module = nn.LSTMCell(3, 4)
    tensors = {n: t[None] if "bias" in n else t for n, t in state(module, "cell").items()}
    found = relayout_command.convert(save(tmp_path, tensors), tmp_path / A, target="torch.cell")
    assert raw(load(tmp_path / A)) == raw(state(module, "cell"))
    assert [change.kind for change in found.converted[0].changes] == ["shaped", "shaped"]


# --- ties ------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two names of one LSTM, and a copy of it that only looks the same."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.LSTM(3, 4)
        self.b = self.a
        self.c = copy.deepcopy(self.a)


def pairs(found: Mapping[str, Any]) -> set[frozenset[str]]:
    """Modules whose tensors all share memory, name by name."""
    groups = {frozenset(name[0] for name in group) for group in shared(found)}
    assert all(len({name[1:] for name in group}) == 1 for group in shared(found)), shared(found)
    return groups


@pytest.mark.parametrize("layout", ["cudnn", "keras", "mxnet.gates", "onnx", "flax.nnx", "torch"])
def test_tied_modules_stay_tied_and_equal_ones_apart(layout: str, tmp_path: Path) -> None:
    """Both ways: each pair of new tensors is one memory, zeros that a conversion makes included."""
    path = save(tmp_path, Tied().state_dict())
    relayout_command.convert(path, tmp_path / A, target=layout)
    assert pairs(load(tmp_path / A)) == {frozenset("ab")}
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert pairs(load(tmp_path / B)) == {frozenset("ab")}
    assert len(shared(load(tmp_path / B))) == 4
    assert load(tmp_path / B).keys() == Tied().state_dict().keys()


@pytest.mark.parametrize("layout", ["cudnn", "keras"])
@pytest.mark.parametrize("keep_names", [False, True])
def test_bytes_stored_once_are_no_tie(layout: str, keep_names: bool, tmp_path: Path) -> None:
    """A deduplicated file holds equal networks once; converted it still does, and they are loaded apart."""
    module = nn.LSTM(3, 4)
    tensors = {**state(module, "a"), **state(copy.deepcopy(module), "c")}
    tensors |= {name.replace("c.", "d."): tensor for name, tensor in tensors.items() if name.startswith("c.")}
    dedup_command.dedup(save(tmp_path, tensors), tmp_path / A, min_equal_bytes=1)
    if layout == "keras" and keep_names:
        with pytest.raises(PlanError, match="is not a window on the tensors of layout keras"):
            relayout_command.convert(tmp_path / A, tmp_path / B, target=layout, keep_names=True)
        return
    found = relayout_command.convert(tmp_path / A, tmp_path / B, target=layout, keep_names=keep_names)
    assert len(found.plan.targets) == (1 if layout == "cudnn" else 3)
    if keep_names:
        first = {name for group in shared(load(tmp_path / B)) for name in group if name.endswith("flat_weights")}
        assert first == {"a.flat_weights", "c.flat_weights", "d.flat_weights"}
        assert {frozenset(n[0] for n in group) for group in shared(load(tmp_path / B))} == {
            *map(frozenset, ("a", "cd"))
        }
    else:
        assert pairs(load(tmp_path / B)) == {frozenset("cd")}
    relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert pairs(load(tmp_path / C)) == {frozenset("cd")}


def test_equal_biases_of_one_network_are_no_tie(tmp_path: Path) -> None:
    """All zeros, stored once by an earlier dedup: two parameters all the same."""
    module = nn.LSTM(3, 4)
    with torch.no_grad():
        module.bias_ih_l0.zero_()
        module.bias_hh_l0.zero_()
    dedup_command.dedup(save(tmp_path, state(module, "rnn")), tmp_path / A, min_equal_bytes=1)
    relayout_command.convert(tmp_path / A, tmp_path / B, target="mxnet")
    assert not shared(load(tmp_path / B))


def test_a_shared_part_stays_shared_where_it_can(tmp_path: Path) -> None:
    """One matrix in two networks: one kernel in Keras; in a fused vector it has no place of its own, and it is said."""
    a, b = nn.LSTM(3, 4), nn.LSTM(3, 4)
    b.weight_ih_l0 = a.weight_ih_l0
    path = save(tmp_path, {**state(a, "a"), **state(b, "b")})
    found = relayout_command.convert(path, tmp_path / A, target="keras")
    assert shared(load(tmp_path / A)) == {frozenset({"a/kernel", "b/kernel"})} and not found.warnings
    found = relayout_command.fuse(path, tmp_path / B, layout="cudnn")
    assert len(found.warnings) == 1 and found.warnings[0].startswith("untied, because")
    assert found.warnings[0].endswith(": 'a.weight_ih_l0', 'b.weight_ih_l0'")


def test_layers_that_share_their_weights(tmp_path: Path) -> None:
    """Within one network it is the same."""
    module = nn.LSTM(4, 4, 2)
    module.weight_hh_l1 = module.weight_hh_l0
    path = save(tmp_path, state(module, "rnn"))
    found = relayout_command.convert(path, tmp_path / A, target="keras")
    assert shared(load(tmp_path / A)) == {frozenset({"rnn/layer0/recurrent_kernel", "rnn/layer1/recurrent_kernel"})}
    assert not found.warnings
    found = relayout_command.fuse(path, tmp_path / B, layout="cudnn")
    assert any(warning.endswith(": 'rnn.weight_hh_l0', 'rnn.weight_hh_l1'") for warning in found.warnings)


def test_one_of_two_tied_modules_is_untied_aloud(tmp_path: Path) -> None:
    """`--at a` takes a away from b."""
    path = save(tmp_path, Tied().state_dict())
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn", at=("a",))
    assert any(w.startswith("4 other names share memory") and "'b.weight_ih_l0'" in w for w in found.warnings)
    assert not shared(load(tmp_path / A))


# --- both kinds of models --------------------------------------------------------------------------------------------


class Cudnn(nn.Module):
    """A model that holds the buffer alone."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enc = nn.ParameterDict({"flat_weights": nn.Parameter(torch.zeros(size))})


def test_one_file_for_both_kinds_of_models(tmp_path: Path) -> None:
    """`--keep-names`: the fused tensor once, the parts as windows on it."""
    parts = nn.ModuleDict({"enc": nn.LSTM(3, 4, 2)})
    path = save(tmp_path, parts.state_dict())
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    assert [target.name for target in found.plan.targets] == ["enc.flat_weights"]
    assert found.plan.order == ("enc.flat_weights", *parts.state_dict())
    assert load_plain(tmp_path / A).keys() == {"enc.flat_weights"}
    other = nn.ModuleDict({"enc": nn.LSTM(3, 4, 2)})
    paramtool.torch.load_model(other, tmp_path / A)
    assert raw(other.state_dict()) == raw(parts.state_dict())
    fused = Cudnn(load(tmp_path / A)["enc.flat_weights"].size)
    paramtool.torch.load_model(fused, tmp_path / A)
    assert raw(fused.state_dict()) == raw({"enc.flat_weights": load(tmp_path / A)["enc.flat_weights"]})


def test_parts_and_fused_tensor_share_memory(tmp_path: Path) -> None:
    """A step on a part is a step on the whole; in order to untie them, one kind is exported."""
    module = nn.GRU(3, 4)
    path = save(tmp_path, state(module, "enc"))
    relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    found = load(tmp_path / A)
    found["enc.weight_hh_l0"][0, 0] = 42.0
    assert 42.0 in found["enc.flat_weights"]
    export_command.export(tmp_path / A, tmp_path / B, names=list(state(module, "enc")))
    assert raw(load(tmp_path / B)) == raw(state(module, "enc"))


def test_a_file_of_both_kinds_is_unfused(tmp_path: Path) -> None:
    """The parts are there already: they become tensors, and the fused one goes."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(model.state_dict())
    assert load_plain(tmp_path / B).keys() == model.state_dict().keys() - {"head.weight"}


def test_names_of_tied_modules(tmp_path: Path) -> None:
    """One fused tensor for both, and every old name a window on it."""
    path = save(tmp_path, Tied().state_dict())
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    assert [target.name for target in found.plan.targets] == ["a.flat_weights", "c.flat_weights"]
    model = Tied()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    paramtool.torch.load_model(model, tmp_path / A)
    assert model.a is model.b
    assert raw(model.state_dict()) == {n: v for n, v in raw(load(tmp_path / A)).items() if n in model.state_dict()}


def test_untying_what_keep_names_tied_is_no_tie_error(tmp_path: Path) -> None:
    """A model whose parts are apart takes the file; one that ties what differs does not."""
    path = save(tmp_path, {**state(nn.LSTM(3, 4), "a"), **state(nn.LSTM(3, 4), "b"), **state(nn.LSTM(3, 4), "c")})
    relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=True)
    with pytest.raises(TieError):
        paramtool.torch.load_model(Tied(), tmp_path / A)


@pytest.mark.parametrize("layout, fits", [("mxnet.flat", True), ("miopen", False), ("keras", False), ("onnx", False)])
def test_old_names_need_windows(layout: str, fits: bool, tmp_path: Path) -> None:
    """Where gates change their order, an old name is no window: an error that names it, nothing written."""
    path = save(tmp_path, state(nn.LSTM(3, 4), "enc"))
    if fits:
        relayout_command.convert(path, tmp_path / A, target=layout, keep_names=True)
        return
    with pytest.raises(PlanError, match=f"'enc.[a-z_]+_l0' is not a window on the tensors of layout {layout}") as error:
        relayout_command.convert(path, tmp_path / A, target=layout, keep_names=True)
    assert str(error.value).startswith(str(path)) and "--keep-names" in error.value.hint
    assert not (tmp_path / A).exists()


# --- what is made, dropped, summed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["mxnet", "flax.nnx", "chainer"])
def test_fake_biases_are_dropped_again(layout: str, tmp_path: Path) -> None:
    """Zeros where the target must have biases, told and recorded; the way back has none."""
    module = nn.GRU(3, 4, bias=False)
    found = relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target=layout)
    (one,) = found.converted
    assert any(change.kind == "made" and "zeros written" in change.what for change in one.changes)
    assert "bias=no" in found.plan.modules[0].spec and one.is_exact
    back = relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert any(change.kind == "dropped" for change in back.converted[0].changes)
    assert raw(load(tmp_path / B)) == raw(state(module, "rnn"))


def test_fake_biases_that_were_trained(tmp_path: Path) -> None:
    """They are no zeros any more: the way back is an error that says so, and how to go on."""
    relayout_command.convert(save(tmp_path, state(nn.GRU(3, 4, bias=False), "rnn")), tmp_path / A, target="mxnet")
    tensors = {name: array.copy() for name, array in load(tmp_path / A).items()}
    tensors["rnn_l0_h2h_bias"][3] = 0.5
    save_plain(tensors, tmp_path / B, metadata(tmp_path / A))
    with pytest.raises(LayoutError, match=r"'rnn_l0_h2h_bias': is not zero, .* no biases") as error:
        relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert "bias=yes" in error.value.hint and not (tmp_path / C).exists()


@pytest.mark.parametrize("layout", ["keras", "haiku", "tf1.basic", "equinox", "flux.old", "cudnn:bias_mode=input"])
def test_two_biases_become_one_aloud(layout: str, tmp_path: Path) -> None:
    """Function kept, bytes not; the way back has the sum in the first, as near as its type allows."""
    module = nn.LSTM(3, 4)
    found = relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target=layout)
    (one,) = found.converted
    assert not one.is_exact and "function kept, bytes not: two biases summed" in {c.what for c in one.changes}
    assert "two biases summed" in found.plan.modules[0].source
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    back = load(tmp_path / B)
    wanted = (module.bias_ih_l0 + module.bias_hh_l0).detach().numpy()
    np.testing.assert_allclose(back["rnn.bias_ih_l0"], wanted, atol=3e-7)
    assert not back["rnn.bias_hh_l0"].any()


@pytest.mark.sample(4)
@pytest.mark.parametrize("layout", ["keras", "haiku", "tf1.basic", "equinox", "flux.old", "cudnn:bias_mode=input"])
def test_the_split_can_be_kept(layout: str, tmp_path: Path) -> None:
    """`--keep-split`: the way back is byte for byte, under another name, too, and what was kept goes."""
    module = nn.LSTM(3, 4, 2, bidirectional=True).half()
    relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target=layout, keep_split=True)
    found = relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(state(module, "rnn")) and found.converted[0].is_exact
    relayout_command.unfuse(tmp_path / A, tmp_path / C, rename={"rnn": "dec.rnn"})
    assert raw(load(tmp_path / C)) == raw(state(module, "dec.rnn"))


def test_the_split_of_a_network_at_the_top(tmp_path: Path) -> None:
    """A module without a name keeps its own, and no other's."""
    top, inner = nn.LSTM(3, 4), nn.LSTM(3, 4)
    path = save(tmp_path, {**top.state_dict(), **state(inner, "in")})
    relayout_command.convert(path, tmp_path / A, target="keras", keep_split=True)
    relayout_command.unfuse(tmp_path / A, tmp_path / B, at=("",))
    found = load(tmp_path / B)
    assert {name: value for name, value in raw(found).items() if "/" not in name} == raw(top.state_dict())
    relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert raw(load(tmp_path / C)) == raw({**top.state_dict(), **state(inner, "in")})


def test_a_kept_split_that_is_not_true_any_more(tmp_path: Path) -> None:
    """Trained on since: an error, or without what was kept."""
    module = nn.LSTM(3, 4)
    relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target="keras", keep_split=True)
    tensors = {name: array.copy() for name, array in load(tmp_path / A).items()}
    tensors["rnn/bias"] += 1
    save_plain(tensors, tmp_path / B, metadata(tmp_path / A))
    with pytest.raises(LayoutError, match=r"'rnn/bias': differs from what paramtool\.kept/\.\.\. gives") as error:
        relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert "--drop-kept" in error.value.hint and not (tmp_path / C).exists()
    relayout_command.unfuse(tmp_path / B, tmp_path / C, drop_kept=True)
    assert load(tmp_path / C)["rnn.bias_ih_l0"].tobytes() == tensors["rnn/bias"].tobytes()
    assert load(tmp_path / C).keys() == state(module, "rnn").keys()


def test_a_kept_split_with_nans(tmp_path: Path) -> None:
    """Training that diverged: the way back is byte for byte all the same."""
    module = nn.LSTM(3, 4)
    with torch.no_grad():
        module.bias_ih_l0[2] = math.nan
    relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target="keras", keep_split=True)
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(state(module, "rnn"))


@pytest.mark.parametrize("trained", [False, True])
def test_a_bias_without_a_place(trained: bool, tmp_path: Path) -> None:
    """flax.nnx has no b_hn: zeros are dropped aloud, anything else is refused with the layouts that could hold it."""
    module = nn.GRU(3, 4)
    with torch.no_grad():
        module.bias_hh_l0[8:] = 0.25 if trained else 0.0
    path = save(tmp_path, state(module, "rnn"))
    if not trained:
        found = relayout_command.convert(path, tmp_path / A, target="flax.nnx")
        assert any(change.kind == "dropped" for change in found.converted[0].changes)
        return
    for dry_run in (True, False):
        with pytest.raises(LayoutError, match=r"'rnn': the recurrent bias of gate n .* is not zero") as error:
            relayout_command.convert(path, tmp_path / A, target="flax.nnx", dry_run=dry_run)
        holders = error.value.hint.removeprefix("layouts that hold it: ").split(", ")
        assert {"torch", "cudnn", "flax.linen", "onnx"} <= set(holders)
        assert not {"flax.nnx", "coreml", "lasagne", "haiku", "tf1.basic"} & set(holders)
        assert str(error.value).startswith(str(path)) and not (tmp_path / A).exists()


def test_one_value_of_a_bias_is_enough(tmp_path: Path) -> None:
    """A denormal at the end is not zero; a zero with a sign is."""
    module = nn.GRU(3, 4)
    with torch.no_grad():
        module.bias_hh_l0[8:] = -0.0
    relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target="flax.nnx")
    with torch.no_grad():
        module.bias_hh_l0[-1] = 1e-42
    with pytest.raises(LayoutError, match="is not zero"):
        relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target="flax.nnx", force=True)


# --- where and how it is written -------------------------------------------------------------------------------------


def training(folder: Path) -> Path:
    """A training checkpoint after one step: model, optimizer, a copy of the model, an epoch."""
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3))[0].sum().backward()
    optimizer.step()
    sections = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    return save(folder, sections | {"ema": copy.deepcopy(model.state_dict())}, "train.pt")


def test_a_training_checkpoint(tmp_path: Path) -> None:
    """Networks of every section; the optimizer's state follows; sections and epoch are still there."""
    path = training(tmp_path)
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    assert [one.source.at for one in found.converted] == ["model.1", "ema.1"]
    assert found.optimizer is not None and [one.at for one in found.optimizer.moved] == ["optimizer"]
    checkpoint = paramtool.read(tmp_path / A)
    assert [section.name for section in checkpoint.sections] == ["model", "optimizer", "ema"]
    assert "epoch" in str(checkpoint.objects)
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    source = torch.load(path)
    wanted = {f"{part}.{name}": t for part in ("model", "ema") for name, t in source[part].items()}
    assert {n: v for n, v in raw(load(tmp_path / B)).items() if not n.startswith("optimizer.")} == raw(wanted)
    assert raw(paramtool.torch.load_file(tmp_path / B, only="model")) == raw(source["model"])


def test_one_section(tmp_path: Path) -> None:
    """Its prefix stripped, also from what the file says of its networks; the others are left out aloud."""
    path = training(tmp_path)
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn", only="model")
    assert found.left_out[0] == "sections optimizer, ema" and not found.warnings
    relayout_command.fuse(path, tmp_path / B, layout="cudnn")
    relayout_command.unfuse(tmp_path / B, tmp_path / C, only="ema")
    assert raw(load(tmp_path / C)) == raw(torch.load(path)["ema"])
    assert load(tmp_path / A).keys() == {"0.weight", "0.bias", "1.flat_weights"}


@pytest.mark.parametrize("keep_names", [False, True])
def test_shards(keep_names: bool, tmp_path: Path) -> None:
    """Into a folder, back out of it, and into one file; the record is read from the shard that has it."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    found = relayout_command.fuse(path, tmp_path / "out", layout="cudnn", max_shard_size=300, keep_names=keep_names)
    assert len(found.files) > 3 and {*map(str, (tmp_path / "out").iterdir())} == {*found.files}
    back = relayout_command.unfuse(tmp_path / "out", tmp_path / "back")
    assert len(back.files) == 2 and (tmp_path / "back").is_dir()
    assert raw(load(tmp_path / "back")) == raw(model.state_dict())
    relayout_command.unfuse(tmp_path / "out", tmp_path / A)
    assert raw(load(tmp_path / A)) == raw(model.state_dict())
    with pytest.raises(UsageError, match="shards need a folder"):
        relayout_command.unfuse(tmp_path / "out", tmp_path / B, max_shard_size=300)


def test_metadata_of_the_user_stays(tmp_path: Path) -> None:
    """Beside what paramtool records; a key that only looks like one of its names is the user's, too."""
    module = nn.LSTM(3, 4)
    own = {"author": "somebody", "rnn.flat_weights": "a text", "format": "tf"}
    save_file({k: v.clone() for k, v in state(module, "rnn").items()}, tmp_path / A, own)
    relayout_command.fuse(tmp_path / A, tmp_path / B, layout="cudnn")
    assert {k: v for k, v in metadata(tmp_path / B).items() if k != "paramtool.layouts"} == own
    relayout_command.unfuse(tmp_path / B, tmp_path / C)
    assert {k: v for k, v in metadata(tmp_path / C).items() if k != "paramtool.layouts"} == own


def test_dedup_keeps_the_record(tmp_path: Path) -> None:
    """Of a fused file: the networks can still be unfused without a flag; of a file of both kinds, likewise."""
    model = Tagger()
    path = save(tmp_path, model.state_dict())
    for keep_names in (False, True):
        relayout_command.fuse(path, tmp_path / A, layout="cudnn", keep_names=keep_names, force=True)
        dedup_command.dedup(tmp_path / A, tmp_path / B, min_equal_bytes=1, force=True)
        assert paramtool.read(tmp_path / B).modules == paramtool.read(tmp_path / A).modules != ()
        relayout_command.unfuse(tmp_path / B, tmp_path / C, force=True)
        assert raw(load(tmp_path / C)) == raw(model.state_dict())


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """And says what the run that writes says."""
    path = save(tmp_path, Tagger().state_dict())
    dry = relayout_command.fuse(path, tmp_path / A, layout="cudnn", dry_run=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.pt"] and not dry.written and not dry.verified
    done = relayout_command.fuse(path, tmp_path / A, layout="cudnn")
    assert (dry.plan, dry.nbytes_after, dry.files) == (done.plan, done.nbytes_after, done.files)
    assert (tmp_path / A).stat().st_size == done.nbytes_after


def test_default_outputs(tmp_path: Path) -> None:
    """Beside the input, called after what was done."""
    path = save(tmp_path, state(nn.LSTM(3, 4), "rnn"))
    assert relayout_command.fuse(path, layout="cudnn").output == str(tmp_path / "m.fused.safetensors")
    fused = tmp_path / "m.fused.safetensors"
    assert relayout_command.unfuse(fused).output == str(tmp_path / "m.fused.unfused.safetensors")
    assert relayout_command.relayout(path, target="flax.linen").output == str(tmp_path / "m.to-flax-linen.safetensors")
    relayout_command.fuse(path, tmp_path / "dir", layout="cudnn", max_shard_size=10**6)
    assert relayout_command.unfuse(tmp_path / "dir").output == str(tmp_path / "dir.unfused")
    assert relayout_command.relayout(tmp_path / "dir", target="keras").output == str(tmp_path / "dir.to-keras")


def test_names_can_be_changed(tmp_path: Path) -> None:
    """One module or several, to the top and from it, two against each other."""
    enc, dec = nn.LSTM(3, 4), nn.GRU(3, 4)
    path = save(tmp_path, {**state(enc, "enc"), **state(dec, "dec")})
    relayout_command.convert(path, tmp_path / A, target="torch", rename={"enc": "dec", "dec": "enc"})
    assert raw(load(tmp_path / A)) == raw({**state(enc, "dec"), **state(dec, "enc")})
    relayout_command.convert(path, tmp_path / B, target="torch", rename={"enc": ""})
    assert raw(load(tmp_path / B)) == raw({**enc.state_dict(), **state(dec, "dec")})
    relayout_command.convert(tmp_path / B, tmp_path / C, target="torch", rename={"": "a.b"})
    assert raw(load(tmp_path / C)) == raw({**state(enc, "a.b"), **state(dec, "dec")})


def test_patterns_choose_modules(tmp_path: Path) -> None:
    """A pattern that matches one; the same one twice is one."""
    path = save(tmp_path, {**state(nn.LSTM(3, 4), "net.enc"), **state(nn.LSTM(3, 4), "net.dec")})
    found = relayout_command.fuse(path, tmp_path / A, layout="cudnn", at=("*enc", "net.enc"))
    assert [one.source.at for one in found.converted] == ["net.enc"]


def test_options_of_layouts(tmp_path: Path) -> None:
    """What no tensor shows is recorded, and need not be said on the way back."""
    module = nn.LSTM(3, 4)
    path = save(tmp_path, state(module, "rnn"))
    relayout_command.convert(path, tmp_path / A, target="tf1.basic:forget_bias=2.5", keep_split=True)
    assert dict(paramtool.read(tmp_path / A).modules[0].options) == {"forget_bias": "2.5"}
    forget = (module.bias_ih_l0 + module.bias_hh_l0).detach()[4:8] - 2.5
    assert load(tmp_path / A)["rnn/bias"][8:12].tobytes() == forget.numpy().tobytes()
    relayout_command.unfuse(tmp_path / A, tmp_path / B)
    assert raw(load(tmp_path / B)) == raw(state(module, "rnn"))


def test_what_no_tensor_shows_is_assumed_aloud(tmp_path: Path) -> None:
    """The forget bias of a plain TensorFlow file, the activation of an RNN: a warning with the flag that says it."""
    arrays = {"rnn/kernel": np.ones((7, 16), np.float32), "rnn/bias": np.zeros(16, np.float32)}
    save_plain(arrays, tmp_path / A)
    found = relayout_command.convert(
        tmp_path / A, tmp_path / B, source="tf1.basic", target="torch", spec="lstm", at=("rnn",)
    )
    assert any("assumed forget_bias=1.0" in w and "--from tf1.basic:forget_bias=" in w for w in found.warnings)
    assert load(tmp_path / B)["rnn.bias_ih_l0"][4:8].tolist() == [1.0] * 4
    path = save(tmp_path, state(nn.RNN(3, 4, nonlinearity="relu"), "rnn"))
    found = relayout_command.fuse(path, tmp_path / C, layout="cudnn")
    assert any("activation" in warning for warning in found.warnings)
    found = relayout_command.fuse(path, tmp_path / D, layout="cudnn", spec="activation=relu")
    assert not found.warnings and "activation=relu" in paramtool.read(tmp_path / D).modules[0].spec


@pytest.mark.parametrize("layout", ["torch", "keras", "keras.gates", "mxnet", "mxnet.cell", "flax.linen"])
@pytest.mark.parametrize("end", [".pt", ".safetensors"])
def test_names_of_another_library_are_doubted_alike(tmp_path: Path, layout: str, end: str) -> None:
    """What guess says of names that are not those of the file's library, convert, its hint and --into say, too."""
    found = layouts.find(layout)
    spec = Spec("lstm", 3, 4)
    tensors = {
        f"net{found.separator}{one.name}": torch.ones(one.shape)
        for one in stored(found, found.form(spec, {}), spec, {})
    }
    path = tmp_path / f"m{end}"
    torch.save(tensors, path) if end == ".pt" else save_file(tensors, path)
    told = [line for place in paramtool.guess(path, at="net").considered for line in place.decide if "file of" in line]
    assert len(told) == (end == ".pt" and layout != "torch")
    said = "backward=no gate_activation=sigmoid" if layout.startswith("keras") else ""
    report = relayout_command.convert(path, tmp_path / "o.npz", source=layout, target="cudnn", spec=said)
    assert [line for line in report.warnings if "file of" in line] == [f"'net': {line}" for line in told]
    torch.save({f"net.{name}": one for name, one in nn.LSTM(3, 4).state_dict().items()}, tmp_path / "t.pt")
    model = tmp_path / "model.onnx"
    relayout_command.convert(tmp_path / "t.pt", model, target="onnx")
    filled = relayout_command.convert(path, tmp_path / "filled.onnx", source=layout, into=model, spec=said)
    assert [line for line in filled.warnings if "file of" in line] == [f"'net': {line}" for line in told]
    if told:
        with pytest.raises(LayoutError) as error:
            relayout_command.convert(path, tmp_path / "o.npz", target="cudnn", force=True)
        assert told[0] in error.value.hint


def test_progress_is_told(tmp_path: Path) -> None:
    """How many bytes are written and read back."""
    totals: dict[str, int] = {}
    done: dict[str, int] = {}

    @contextmanager
    def progress(label: str, total: int) -> Iterator[Any]:
        totals[label], done[label] = total, 0
        yield lambda nbytes: done.__setitem__(label, done[label] + nbytes)

    module = nn.LSTM(64, 64)
    relayout_command.fuse(save(tmp_path, state(module, "rnn")), tmp_path / A, layout="cudnn", progress=progress)
    assert totals == {"write": len(flat(module)), "verify": 2 * len(flat(module))}
    assert done["write"] >= len(flat(module)) and done["verify"] > 0


def test_sums_round_as_the_type_does(tmp_path: Path) -> None:
    """bfloat16: 256 + 1 is 256; the report does not call it exact."""
    module = nn.LSTM(1, 1).bfloat16()
    with torch.no_grad():
        module.bias_ih_l0[:] = 256.0
        module.bias_hh_l0[:] = 1.0
    relayout_command.convert(save(tmp_path, state(module, "rnn")), tmp_path / A, target="keras")
    bias = load(tmp_path / A)["rnn/bias"]
    assert bias.dtype == ml_dtypes.bfloat16 and bias.astype(np.float32).tolist() == [256.0] * 4


def test_a_negated_gate_is_exact(tmp_path: Path) -> None:
    """Haiku's update gate is the complement: signs go there and back, those of zeros and NaNs, too."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in
              {"g/w_i": (3, 12), "g/w_h": (4, 12), "g/b": (12,)}.items()}  # fmt: skip
    arrays["g/w_i"][0, :4] = [0.0, -0.0, math.nan, math.inf]
    save_plain(arrays, tmp_path / A)
    found = relayout_command.convert(tmp_path / A, tmp_path / B, source="haiku", target="onnx", at=("g",), spec="gru")
    assert any(change.kind == "negated" for change in found.converted[0].changes)
    relayout_command.convert(tmp_path / B, tmp_path / C, target="haiku")
    assert raw(load(tmp_path / C)) == raw(arrays)


def test_half_a_network_beside_a_whole_one(tmp_path: Path) -> None:
    """Without --at nothing is left behind unseen; with it, the whole one is converted."""
    tensors = {**state(nn.LSTM(3, 4), "a"), **state(nn.LSTM(3, 4), "b")}
    del tensors["b.weight_hh_l0"]
    path = save(tmp_path, tensors)
    with pytest.raises(LayoutError, match="half of a network"):
        relayout_command.convert(path, tmp_path / A, target="cudnn")
    assert relayout_command.convert(path, tmp_path / A, target="cudnn", at=("a",)).written


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_sum_beyond_the_type_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Two biases near the largest number have no sum; nothing is written."""
    module = nn.LSTM(3, 4).to(dtype)
    with torch.no_grad():
        module.bias_ih_l0.fill_(0.9 * torch.finfo(dtype).max)
        module.bias_hh_l0.fill_(0.9 * torch.finfo(dtype).max)
    path = save(tmp_path, state(module, "rnn"))
    with pytest.raises(LayoutError, match="a sum in it overflows"):
        relayout_command.convert(path, tmp_path / A, target="keras")
    assert not (tmp_path / A).exists()
    assert relayout_command.convert(path, tmp_path / A, target="mxnet").written


@pytest.mark.slow
def test_very_many_layers_are_refused_and_not_cut(tmp_path: Path) -> None:
    """A stack beyond the limit is an error, not a shorter stack."""
    tensors = state(nn.LSTM(1, 1, 2), "rnn")
    more = {n.replace("_l1", "_l1203"): t for n, t in tensors.items() if n.endswith("_l1")}
    with pytest.raises((LayoutError, UsageError)):
        relayout_command.convert(save(tmp_path, {**tensors, **more}), tmp_path / A, target="cudnn")
    assert not (tmp_path / A).exists()


# --- what a spec need not say, and what it must ----------------------------------------------------------------------


def flat_of(rnn: torch.nn.RNNBase) -> torch.Tensor:
    """All its matrices, then all its biases."""
    named = dict(rnn.named_parameters())
    order = sorted(named, key=lambda name: name.startswith("bias"))
    return torch.cat([named[name].detach().reshape(-1) for name in order])


@pytest.mark.parametrize(
    ("made", "spec", "whole"),
    [
        ((18, 32, 2), "LSTM hidden_size=32 input_size=18", "lstm input=18 hidden=32 layers=2"),
        ((18, 32, 3), "lstm hidden=32 input=18 bidirectional", "lstm input=18 hidden=32 layers=3 bidirectional"),
        ((18, 32, 1), "lstm hidden=32 input=18 bidirectional=no", "lstm input=18 hidden=32"),
    ],
)
def test_layers_follow_from_the_length(made: tuple[int, int, int], spec: str, whole: str, tmp_path: Path) -> None:
    """Where just one number of layers fits; the network is torch's, number by number."""
    rnn = torch.nn.LSTM(*made, bidirectional="bidirectional" in whole)
    torch.save({"x": flat_of(rnn), "other": torch.zeros(7)}, tmp_path / "m.pt")
    for at in ((), ("x",)):
        found = relayout_command.unfuse(
            tmp_path / "m.pt", tmp_path / "o.safetensors", layout="cudnn", spec=spec, at=at, force=True
        )
        assert [str(one.spec) for one in found.converted] == [whole]
        written = load_plain(tmp_path / "o.safetensors")
        assert all(np.array_equal(written[f"x.{name}"], value) for name, value in rnn.state_dict().items())


@pytest.mark.parametrize("at", [(), ("x",)])
def test_one_direction_is_never_taken_for_granted(at: tuple[str, ...], tmp_path: Path) -> None:
    """Two layers and two directions can have one length: it has to be said which."""
    torch.save({"x": flat_of(torch.nn.LSTM(8, 8, 2))}, tmp_path / "m.pt")
    with pytest.raises(LayoutError, match="fits 2 networks of layout cudnn") as caught:
        relayout_command.unfuse(tmp_path / "m.pt", layout="cudnn", spec="lstm hidden=8 input=8", at=at, dry_run=True)
    assert '--spec "lstm input=8 hidden=8 bidirectional"' in caught.value.hint
    assert '--spec "lstm input=8 hidden=8 layers=2"' in caught.value.hint
    with pytest.raises(LayoutError, match="only fits a network of both directions, which was not given"):
        relayout_command.unfuse(
            tmp_path / "m.pt", layout="cudnn", spec="lstm hidden=8 input=8 layers=1", at=at, dry_run=True
        )
    for said, whole in (("layers=2", "layers=2"), ("bidirectional", "bidirectional")):
        found = relayout_command.unfuse(
            tmp_path / "m.pt", layout="cudnn", spec=f"lstm hidden=8 input=8 {said}", at=at, dry_run=True
        )
        assert str(found.converted[0].spec) == f"lstm input=8 hidden=8 {whole}"


@pytest.mark.parametrize("beside", [{}, {"y": torch.zeros(100)}])
@pytest.mark.parametrize("at", [(), ("x",)])
def test_the_arithmetic_is_shown(at: tuple[str, ...], beside: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """What length the spec has, whether the vector was named or not, alone or not."""
    torch.save({"x": flat_of(torch.nn.LSTM(8, 16)), **beside}, tmp_path / "m.pt")
    for spec, expected in (
        ("lstm hidden=16 input=8 layers=2 bidirectional=no", "expected 3,840 elements: 2 layers of lstm input=8"),
        ("lstm hidden=16 input=9", "expected 1,728 elements: 1 layer of lstm input=9 hidden=16, 2,176 more for each"),
    ):  # fmt: skip
        with pytest.raises(LayoutError) as caught:
            relayout_command.unfuse(tmp_path / "m.pt", layout="cudnn", spec=spec, at=at, dry_run=True)
        assert expected in str(caught.value), caught.value
