"""convert, fuse and unfuse of input that does not fit: each refusal says where, what was found and what was expected.

Nothing is written, nothing is left behind, and no input, however made, ends in a traceback.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from paramtool.commands import relayout as relayout_command
from paramtool.errors import ParamtoolError
from tests.examples import IS_HARD, examples
from tests.hostile.command import WRITING, Ran, command, interrupted, quick, refused
from tests.patience import calls
from tests.recurrent import Tensors, flat, save, state

OUT = ("-o", "out.safetensors")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def lstm(layers: int = 2, at: str = "rnn") -> Tensors:
    return state(nn.LSTM(3, 4, layers), at)


def gru(**more: Any) -> Tensors:
    return state(nn.GRU(3, 4, **more), "rnn")


def vector(size: int) -> Tensors:
    return {"net.v": torch.arange(float(size))}


# --- half of a network, and what has another shape or type -----------------------------------------------------------


def without(*words: str, of: Callable[[], Tensors] = lstm) -> Tensors:
    return {name: tensor for name, tensor in of().items() if not any(word in name for word in words)}


def changed(name: str, tensor: torch.Tensor) -> Tensors:
    return {**lstm(), f"rnn.{name}": tensor}


def both_ways() -> Tensors:
    return state(nn.LSTM(3, 4, bidirectional=True), "rnn")


PARTS = {
    "a recurrent matrix": (lambda: without("weight_hh_l1"), ("'weight_hh_l1' [16, 4] is missing",)),
    "a bias": (lambda: without("bias_ih_l0"), ("'bias_ih_l0' [16] is missing",)),
    "the biases of one layer": (lambda: without("bias_ih_l1", "bias_hh_l1"), ("'bias_ih_l1' [16] is missing",)),
    "the first matrix": (lambda: without("weight_ih_l0"), ("input weights of the first layer are missing",)),
    "the first layer": (lambda: without("_l0"), ("input weights of the first layer are missing",)),
    "a layer between": (lambda: without("_l1", of=lambda: lstm(3)), ("'weight_ih_l1' [16, 4] is missing",)),
    "part of the way back": (
        lambda: without("weight_hh_l0_reverse", of=both_ways), ("'weight_hh_l0_reverse' [16, 4]",)
    ),
    "all recurrent matrices": (lambda: without("weight_hh"), ("no module has both", "'rnn' has some of its names")),
    "all input matrices": (lambda: without("weight_ih"), ("no module has both", "'rnn' has some of its names")),
    "another shape": (
        lambda: changed("weight_hh_l1", torch.ones(16, 5)), ("'rnn.weight_hh_l1' is [16, 5], expected [16, 4]",)
    ),
    "a transposed matrix": (
        lambda: changed("weight_ih_l1", torch.ones(4, 16)), ("'rnn.weight_ih_l1' is [4, 16], expected [16, 4]",)
    ),
    "three axes": (lambda: changed("weight_hh_l1", torch.ones(2, 16, 2)), ("is [2, 16, 2], expected [16, 4]",)),
    "no axis": (lambda: changed("bias_hh_l1", torch.ones(())), ("'rnn.bias_hh_l1' is [], expected [16]",)),
    "no element": (lambda: changed("weight_hh_l1", torch.ones(16, 0)), ("is [16, 0], expected [16, 4]",)),
    "other gates": (lambda: changed("weight_ih_l1", torch.ones(12, 4)), ("is [12, 4], expected [16, 4]",)),
    "another projection": (lambda: changed("weight_hr_l1", torch.ones(2, 4)), ("projection",)),
    "another type": (
        lambda: changed("weight_hh_l1", torch.ones(16, 4, dtype=torch.float16)), ("float16; expected one dtype",)
    ),
    "sparse": (lambda: changed("weight_hh_l0", torch.ones(16, 4).to_sparse()), ("'rnn.weight_hh_l0'", "sparse_coo")),
    "no data": (lambda: changed("weight_hh_l0", torch.empty(16, 4, device="meta")), ("'rnn.weight_hh_l0'", "meta")),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_half_of_a_network(case: str, tmp_path: Path) -> None:
    """What is missing or differs is named, with what was expected: exit 5, whether or not the module is named."""
    make, says = PARTS[case]
    save(tmp_path, make())
    refused(quick, "fuse", "m.pt", "--layout", "cudnn", *OUT, cwd=tmp_path, code=5, says=("m.pt", "'rnn", *says))
    ran = refused(quick, "fuse", "m.pt", "--layout", "cudnn", "--at", "rnn", *OUT, cwd=tmp_path, code=5, says=("'rnn",))
    assert "missing" in ran.err or "expected" in ran.err or "projection" in ran.err, ran


def test_one_bad_network_among_good_ones(tmp_path: Path) -> None:
    """It is named; the others can be converted by name, and the bad one passes through."""
    save(tmp_path, {**lstm(at="good"), **without("weight_hh_l1")})
    refused(quick, "fuse", "m.pt", "--layout", "cudnn", *OUT, cwd=tmp_path, code=5, says=("'rnn'", "is missing"))
    assert quick("fuse", "m.pt", "--layout", "cudnn", "--at", "good", *OUT, cwd=tmp_path).code == 0


@pytest.mark.filterwarnings("ignore:.*")
def test_quantised_networks(tmp_path: Path) -> None:
    """Refused by name: there are no weights in them that could be moved."""
    packed = torch.quantize_per_tensor(torch.ones(16, 4), 0.1, 0, torch.qint8)
    save(tmp_path, changed("weight_hh_l0", packed))
    says = ("m.pt", "'rnn.weight_hh_l0': is a quantised tensor; expected a plain tensor", "hint: dequantise")
    refused(quick, "fuse", "m.pt", "--layout", "cudnn", *OUT, cwd=tmp_path, code=5, says=says)
    save(tmp_path, {name: (tensor * 100).to(torch.uint8) for name, tensor in lstm().items()})
    says = ("m.pt", "'rnn.weight_ih_l0' is uint8: only floating-point networks", "hint: dequantise")
    refused(quick, "convert", "m.pt", "--to", "haiku", *OUT, cwd=tmp_path, code=5, says=says)


def test_a_dynamically_quantised_model(tmp_path: Path) -> None:
    """PyTorch packs it into objects; the message says what was found instead of a network."""
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if not engines:
        pytest.skip("this PyTorch cannot quantise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.quantized.engine = engines[-1]
        model = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.LSTM(3, 4)), {nn.LSTM}, dtype=torch.qint8
        )  # fmt: skip
        torch.save(model.state_dict(), tmp_path / "m.pt")
    says = ("m.pt: no recurrent network was found", "is quantised")
    refused(quick, "fuse", "m.pt", "--layout", "cudnn", *OUT, cwd=tmp_path, code=5, says=says)


# --- specs, modules, names -------------------------------------------------------------------------------------------


FLAT = ("--layout", "cudnn", "--at", "net.v")
SPECS: dict[str, tuple[int, tuple[str, ...], int, tuple[str, ...]]] = {
    "no spec": (100, FLAT, 5, ("m.pt: 'net.v'", "100 elements", '--spec "', "hint: ")),
    "half a spec": (100, (*FLAT, "--spec", "gru hidden=2"), 5, ("no network with these facts has this length",)),
    "another length": (
        100, (*FLAT, "--spec", "lstm hidden=2 input=3"), 5, ("has 100 elements, expected 56 elements: 1 layer",)
    ),
    "another kind": (56, (*FLAT, "--spec", "gru hidden=2 input=3"), 5, ("has 56 elements, expected 42",)),
    "a flag too many": (56, (*FLAT, "--spec", "lstm hidden=2 input=3 bidirectional"), 5, ("elements, expected 112",)),
    "an unknown word": (56, (*FLAT, "--spec", "lstm hiden=2"), 2, ("unknown word 'hiden=2' in a spec", "hidden=...")),
    "no number": (56, (*FLAT, "--spec", "lstm hidden=two"), 2, ("'hidden=two': expected a whole number",)),
    "a negative number": (56, (*FLAT, "--spec", "lstm hidden=-2"), 2, ("'hidden=-2': expected a whole number",)),
    "nothing of a size": (
        56, (*FLAT, "--spec", "lstm hidden=0 input=3"), 5, ("hidden=0 is out of range; expected 1 to",)
    ),
    "given twice": (56, (*FLAT, "--spec", "lstm hidden=2 hidden=3"), 2, ("hidden is given twice",)),
    "two kinds": (56, (*FLAT, "--spec", "lstm gru hidden=2"), 2, ("kind is given twice",)),
    "a gru with a projection": (56, (*FLAT, "--spec", "gru hidden=4 input=3 projection=2"), 5, ("only an LSTM",)),
    "a projection too wide": (56, (*FLAT, "--spec", "lstm hidden=4 input=3 projection=4"), 5, ("smaller than hidden",)),
    "a million layers": (
        56, (*FLAT, "--spec", "lstm hidden=1 input=1 layers=1000000"), 5, ("layers=1000000 is too large",)
    ),
    "a huge size": (56, (*FLAT, "--spec", "lstm hidden=999999999 input=3"), 5, ("hidden=999999999 is out of range",)),
    "peepholes": (56, (*FLAT, "--spec", "lstm hidden=2 input=3 peephole"), 5, ("peephole was given",)),
    "no such layout": (56, ("--layout", "cuddn"), 2, ("there is no layout 'cuddn'", "did you mean", "cudnn")),
    "no such option": (56, ("--layout", "cudnn:tale=no"), 2, ("no option 'tale'; its options: bias_mode, tail",)),
    "no option": (56, ("--layout", "cudnn:tail"), 2, ("'tail' is not an option of a layout", "cudnn:key=value")),
    "no module of that name": (
        56, ("--layout", "cudnn", "--at", "net.w"), 2, ("--at 'net.w' matches no module of layout cudnn; found: none",)
    ),
    "a vector where matrices are": (
        56, ("--layout", "torch", "--at", "net.v"), 2, ("matches no module of layout torch",)
    ),
    "nothing of that layout": (56, ("--layout", "keras"), 5, ("no recurrent network of layout keras was found",)),
}  # fmt: skip


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_that_does_not_fit(case: str, tmp_path: Path) -> None:
    """Length and expected length, or the word that is wrong: exit 5 for the file, 2 for the words."""
    size, args, code, says = SPECS[case]
    save(tmp_path, vector(size))
    refuse = partial(refused, quick, "unfuse", "m.pt", *args, *OUT, cwd=tmp_path, code=code, says=says)
    assert calls(refuse) < 2_000_000


def test_a_spec_against_names(tmp_path: Path) -> None:
    """What names and shapes show is not overruled."""
    save(tmp_path, lstm())
    for spec, says in {
        "lstm hidden=5": "'rnn.weight_hh_l0' is [16, 4], expected [20, 5]",
        "lstm layers=1": "layers=1 was given, but names and shapes show 2",
        "gru": "'rnn.weight_ih_l0' is [16, 3], expected [12, 3]",
        "lstm bias=no": "'rnn.bias_ih_l0' has no place in it",
        "lstm peephole": "peephole=",
        "lstm bidirectional": "bidirectional",
        "lstm cell_clip=3": "it has no cell_clip=3.0",
        "lstm coupled": "it has no coupled",
        "lstm gate_activation=hard_sigmoid(0.2,0.5)": "it has no gate_activation=hard_sigmoid(0.2,0.5)",
    }.items():
        args = ("fuse", "m.pt", "--layout", "cudnn", "--spec", spec, *OUT)
        refused(quick, *args, cwd=tmp_path, code=5, says=("m.pt: 'rnn'", says))


def test_patterns_that_match_nothing_or_two(tmp_path: Path) -> None:
    """Both say which modules there are."""
    save(tmp_path, {**lstm(at="net.enc"), **lstm(at="net.dec"), "w": torch.ones(2)})
    for at, says in {
        "net.*": ("--at 'net.*' matches 2 modules: 'net.enc', 'net.dec'",),
        "net.ghost": ("--at 'net.ghost' matches no module", "found: 'net.enc', 'net.dec'", "hint: "),
        "": ("matches no module", "'net.enc'"),
        "w": ("--at 'w' matches no module", "'net.dec'"),
        "net.enc.weight_ih_l0": ("matches no module",),
    }.items():
        args = ("fuse", "m.pt", "--layout", "cudnn", "--at", "net.enc", "--at", at, *OUT)
        refused(quick, *args, cwd=tmp_path, code=2, says=("m.pt", *says))


def test_names_that_are_taken(tmp_path: Path) -> None:
    """By another tensor, or by another network: exit 6, and how to put them elsewhere."""
    save(tmp_path, {**lstm(at="a"), **lstm(at="b"), "a.flat_weights": torch.ones(3)})
    args = ("fuse", "m.pt", "--layout", "cudnn", "--ignore", "*.flat_weights", *OUT)
    says = ("m.pt: already has 1 name of the new layout", "'a.flat_weights'", "--rename")
    refused(quick, *args, cwd=tmp_path, code=6, says=says)
    refused(quick, *args, "--keep-names", cwd=tmp_path, code=6, says=says)
    refused(quick, *args, "--at", "b", "--rename", "b=a", cwd=tmp_path, code=6, says=says)
    args = ("convert", "m.pt", "--to", "torch", "--rename", "a=b", "--ignore", "*.flat_weights", *OUT)
    refused(quick, *args, cwd=tmp_path, code=6, says=("8 names", "'b.weight_ih_l0'"))
    assert quick(*args, "--rename", "b=c", cwd=tmp_path).code == 0


def test_renaming_what_is_not_converted(tmp_path: Path) -> None:
    """A name that is none of a converted network, or has two new ones, is exit 2."""
    save(tmp_path, {**lstm(at="a"), **lstm(at="b")})
    args = ("convert", "m.pt", "--to", "cudnn", *OUT, "--at", "a")
    says = ("m.pt: --rename 'b' is not a converted network; expected one of: 'a'",)
    refused(quick, *args, "--rename", "b=c", cwd=tmp_path, code=2, says=says)
    for words in (("--rename", "a"), ("--rename", "a=b", "--rename", "a=c")):
        refused(quick, *args, *words, cwd=tmp_path, code=2, says=("--rename", "'a'"))


# --- what cannot be converted ----------------------------------------------------------------------------------------


IMPOSSIBLE: dict[str, tuple[Callable[[], Tensors], tuple[str, ...], tuple[str, ...]]] = {
    "b_hn without a place": (
        gru, ("--to", "flax.nnx"), ("recurrent bias of gate n (layer 0) is not zero", "flax.linen")
    ),
    "b_hn of the second layer": (
        lambda: gru(num_layers=2), ("--to", "lasagne"), ("bias of gate n (layer 0) is not zero",)
    ),
    "reset after into before": (gru, ("--to", "haiku"), ("reset gate before", "the network has reset=after", "onnx")),
    "projection": (
        lambda: state(nn.LSTM(3, 4, proj_size=2), "rnn"), ("--to", "keras"), ("no place for the projection", "paddle")
    ),
    "no gru there": (gru, ("--to", "flax.nnx.optimized"), ("it has no gru", "flax.nnx")),
    "two directions": (both_ways, ("--to", "torch.cell"), ("it holds only one direction", "torch")),
    "an unknown activation": (
        lambda: state(nn.RNN(3, 4), "rnn"), ("--to", "haiku"), ("relu only", "activation is unknown")
    ),
    "another activation": (
        lambda: state(nn.RNN(3, 4), "rnn"), ("--to", "haiku", "--spec", "activation=tanh"), ("activation is tanh",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_conversions(case: str, tmp_path: Path) -> None:
    """The cell or the fact, the layout that has no place for it, and those that have one: exit 5, dry or not."""
    make, args, says = IMPOSSIBLE[case]
    save(tmp_path, make())
    for dry in ((), ("--dry-run",)):
        ran = refused(quick, "convert", "m.pt", *args, *dry, *OUT, cwd=tmp_path, code=5, says=("m.pt: 'rnn'", *says))
        assert "\nhint: layouts that hold it: " in ran.err, ran


FOREIGN: dict[str, tuple[dict[str, tuple[int, ...]], tuple[str, ...], tuple[str, ...]]] = {
    "reset before into after": (
        {"r/w_i": (3, 12), "r/w_h": (4, 12), "r/b": (12,)}, ("--from", "haiku", "--at", "r", "--to", "torch"),
        ("the network has reset=before", "layouts that hold it", "tf1.basic"),
    ),
    "peepholes": (
        {"r/kernel": (7, 16), "r/bias": (16,), **{f"r/w_{gate}_diag": (4,) for gate in "ifo"}},
        ("--from", "tf1.basic", "--at", "r", "--to", "torch"), ("the peephole of gate", "is not zero", "onnx"),
    ),
    "a clipped cell": (
        {"r/kernel": (7, 16), "r/bias": (16,)},
        ("--from", "tf1.block", "--at", "r", "--to", "torch", "--spec", "cell_clip=3"), ("cell_clip=3.0", "tf1.block"),
    ),
    "a trained initial state": (
        {"r.cell.Wi": (16, 3), "r.cell.Wh": (16, 4), "r.cell.b": (16,), "r.cell.state0": (8, 1)},
        ("--from", "flux.old", "--at", "r", "--to", "torch"), ("initial",),
    ),
    "hard sigmoids": (
        {"r/kernel": (3, 16), "r/recurrent_kernel": (4, 16), "r/bias": (16,)},
        ("--from", "keras", "--at", "r", "--to", "torch", "--spec",
         "gate_activation=hard_sigmoid(0.2,0.5) backward=no"),
        ("gate_activation=hard_sigmoid(0.2,0.5)", "onnx"),
    ),
    "coupled gates": (
        {"r.W": (1, 16, 3), "r.R": (1, 16, 4)}, ("--from", "onnx", "--at", "r", "--to", "torch", "--spec", "coupled"),
        ("it has no coupled",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOREIGN)
def test_impossible_conversions_into_torch(case: str, tmp_path: Path) -> None:
    """Likewise, from layouts that have what torch has not."""
    shapes, args, says = FOREIGN[case]
    save_file({name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}, tmp_path / "m.safetensors")
    refused(quick, "convert", "m.safetensors", *args, *OUT, cwd=tmp_path, code=5, says=("m.safetensors: 'r'", *says))


def test_twins_that_differ(tmp_path: Path) -> None:
    """Paddle writes each tensor twice: both are compared, and a difference names the one and the cell."""
    save(tmp_path, lstm(1))
    assert quick("convert", "m.pt", "--to", "paddle", "-o", "p.safetensors", cwd=tmp_path).code == 0
    import paramtool

    arrays = {name: array.copy() for name, array in paramtool.load_file(tmp_path / "p.safetensors").items()}
    (twin,) = (name for name in arrays if name.endswith("cell.weight_hh"))
    arrays[twin][5, 2] += 1
    save_file(arrays, tmp_path / "q.safetensors")
    args = ("convert", "q.safetensors", "--from", "paddle", "--to", "torch", *OUT)
    says = ("q.safetensors", twin, "gate f (layer 0) differs from its twin", "hint: ")
    refused(quick, *args, cwd=tmp_path, code=5, says=says)
    refused(quick, *args, "--dry-run", cwd=tmp_path, code=5, says=says)


def test_fake_biases_that_are_none(tmp_path: Path) -> None:
    """A vector whose room for biases is not empty, said to have none: exit 5."""
    module = nn.LSTM(3, 2)
    tensors = {"v": torch.frombuffer(bytearray(flat(module)), dtype=torch.float32)}
    save(tmp_path, tensors)
    args = ("unfuse", "m.pt", "--layout", "mxnet.flat", "--at", "v", "--spec", "lstm hidden=2 input=3 bias=no", *OUT)
    refused(quick, *args, cwd=tmp_path, code=5, says=("m.pt: 'v': is not zero", "no biases", "hint: add bias=yes"))


# --- places and files ------------------------------------------------------------------------------------------------


def test_outputs(tmp_path: Path) -> None:
    """What exists stays, also with --force where it is an input; there is no such folder, shards need one."""
    save(tmp_path, lstm())
    assert quick("fuse", "m.pt", "--layout", "cudnn", cwd=tmp_path).code == 0
    args = ("fuse", "m.pt", "--layout", "cudnn")
    refused(quick, *args, cwd=tmp_path, code=7, says=("m.fused.safetensors: exists", "--force"))
    refused(quick, *args, "--force", "-o", "m.pt", cwd=tmp_path, code=7, says=("m.pt: is an input",))
    refused(quick, *args, "-o", "ghost/x.safetensors", cwd=tmp_path, code=7, says=("ghost",))
    refused(quick, *args, *OUT, "--max-shard-size", "1GB", cwd=tmp_path, code=2, says=("shards need a folder",))
    refused(quick, *args, *OUT, "--only", "ghost", cwd=tmp_path, code=2, says=("no section 'ghost'",))
    refused(quick, *args, *OUT, "--layout-file", "ghost.toml", cwd=tmp_path, code=2, says=("ghost.toml",))
    refused(quick, "fuse", "ghost.pt", "--layout", "cudnn", cwd=tmp_path, code=3, says=("ghost.pt",))
    assert quick(*args, "--force", cwd=tmp_path).code == 0


def test_a_refusal_leaves_an_old_output_alone(tmp_path: Path) -> None:
    """Conditions are proved before the first byte is written, --force or not."""
    save(tmp_path, gru())
    (tmp_path / "out.safetensors").write_bytes(b"precious")
    refused(quick, "convert", "m.pt", "--to", "flax.nnx", *OUT, "--force", cwd=tmp_path, code=5, says=("is not zero",))


def test_truncated_and_foreign_files(tmp_path: Path) -> None:
    """As every other command says it: exit 3."""
    save(tmp_path, lstm())
    data = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    for path in ("cut.pt", "text.pt"):
        refused(quick, "fuse", path, "--layout", "cudnn", *OUT, cwd=tmp_path, code=3, says=(path,))


def test_terminal_escapes_in_names(tmp_path: Path) -> None:
    """A module's name is shown, and does nothing."""
    bad = {name.replace("rnn", "\x1b[2Jrnn"): tensor for name, tensor in without("weight_hh_l1").items()}
    save(tmp_path, bad)
    refused(quick, "fuse", "m.pt", "--layout", "cudnn", *OUT, cwd=tmp_path, code=5, says=("rnn", "is missing"))


def test_very_many_names(tmp_path: Path) -> None:
    """Many clashes are counted, a long name is shown."""
    count = 300 if IS_HARD else 60
    tensors = {f"l{k}.weight_{side}_l0": torch.ones(4, 1) for k in range(count) for side in ("ih", "hh")}
    save(tmp_path, tensors | {f"l{k}.flat_weights": torch.ones(1) for k in range(count)})
    args = ("fuse", "m.pt", "--layout", "cudnn", *OUT)
    refused(quick, *args, cwd=tmp_path, code=5, says=("'l0.flat_weights'", "--ignore l0.flat_weights"))
    args = (*args, "--ignore", "*.flat_weights")
    refused(quick, *args, cwd=tmp_path, code=6, says=(f"{count} names", f"and {count - 20} more"))


# --- the record ------------------------------------------------------------------------------------------------------


def record(*modules: Any) -> str:
    return json.dumps({"version": 1, "modules": list(modules)})


MODULE = {"at": "rnn", "layout": "cudnn", "spec": "lstm input=3 hidden=4", "options": {"tail": "yes"}, "source": "x"}
RECORDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "no JSON": ("{", 3, ("paramtool.layouts", "is damaged")),
    "empty": ("", 3, ("paramtool.layouts", "is damaged")),
    "a list": ("[]", 3, ("is damaged",)),
    "no version": ('{"modules": []}', 3, ("is damaged",)),
    "a later version": ('{"version": 2, "modules": []}', 3, ("version 2, this program reads 1",)),
    "a version that is no number": ('{"version": true, "modules": []}', 3, ("version True",)),
    "no modules": ('{"version": 1}', 3, ("is damaged",)),
    "a number": ('{"version": 1, "modules": 5}', 3, ("is damaged",)),
    "twice the same key": ('{"version": 1, "version": 1, "modules": []}', 3, ("is damaged",)),
    "very deep": ('{"version": 1, "modules": ' + "[" * 5000 + "]" * 5000 + "}", 3, ("is damaged",)),
    "no layout": (record({"at": "rnn"}), 3, ("is damaged",)),
    "a module that is a text": (record("rnn"), 3, ("is damaged",)),
    "a layout that is a number": (record({**MODULE, "layout": 5}), 3, ("is damaged",)),
    "an option that is a number": (record({**MODULE, "options": {"tail": 5}}), 3, ("is damaged",)),
    "another program's layout": (
        record({**MODULE, "layout": "mine"}), 5, ("the file says that 'rnn' is of layout mine",)
    ),
    "another module": (record({**MODULE, "at": "ghost"}), 5, ("'ghost'", "layout cudnn")),
    "no spec": (
        record({**MODULE, "spec": "what is this"}), 3,
        ("'rnn': the file describes it by an invalid spec: unknown word 'what'",),
    ),
    "a spec of another length": (
        record({**MODULE, "spec": "lstm input=3 hidden=5"}), 5, ("has 144 elements, expected 200",)
    ),
    "another kind": (record({**MODULE, "spec": "gru input=3 hidden=4"}), 5, ("has 144 elements, expected 108",)),
    "endless layers": (
        record({**MODULE, "spec": "lstm input=1 hidden=1 layers=9999999"}), 5, ("layers=9999999 is too large",)
    ),
    "a tensor that is not there": (
        record({**MODULE, "tensors": {"flat_weights": "ghost"}}), 5,
        ("'flat_weights' is 'ghost', which is not a plain tensor",),
    ),
    "another tensor": (record({**MODULE, "tensors": {"flat_weights": "w"}}), 5, ("'w' has 2 elements, expected 144",)),
}  # fmt: skip
OPEN = {
    "tensors that are a text": record({**MODULE, "tensors": "abc"}),
    "options that are a text": record({**MODULE, "options": "abc"}),
    "a name that is a mapping": record({**MODULE, "at": {"a": "b"}}),
    "a layout that is a mapping": record({**MODULE, "layout": {"a": "b"}}),
    "a spec that is a mapping": record({**MODULE, "spec": {}}),
}


def recorded(folder: Path, text: str) -> None:
    arrays = {"rnn.flat_weights": np.ones(144, np.float32), "w": np.ones(2, np.float32)}
    save_file(arrays, folder / "m.safetensors", {"paramtool.layouts": text})


@pytest.mark.parametrize("case", RECORDS)
def test_a_damaged_record(case: str, tmp_path: Path) -> None:
    """What it says is believed only as far as it fits: exit 3 where it is no record, 5 where the tensors differ."""
    text, code, says = RECORDS[case]
    recorded(tmp_path, text)
    refused(quick, "unfuse", "m.safetensors", *OUT, cwd=tmp_path, code=code, says=("m.safetensors", *says))


@pytest.mark.parametrize("case", OPEN)
def test_a_record_of_other_types(case: str, tmp_path: Path) -> None:
    """Exit 3, as for any other damage."""
    recorded(tmp_path, OPEN[case])
    refused(quick, "unfuse", "m.safetensors", *OUT, cwd=tmp_path, code=3, says=("m.safetensors", "is damaged"))


JUNK: tuple[Any, ...] = (
    "", "rnn", "cudnn", "torch", "lstm", "keras.cudnn", "tf1.basic", "lstm hidden=4", "gru hidden=1 input=1",
    "\x00", "é", "a" * 300, "rnn.flat_weights", "w", "999", "hard_sigmoid(0.2,0.5)",
    "lstm input=3 hidden=4 layers=998 bidirectional", {}, {"flat_weights": "w"}, {"tail": "no", "bias_mode": "input"},
    {"weight_ih_l0": "w", "weight_hh_l0": "w"}, {"": ""}, {"forget_bias": "nan"},
)  # fmt: skip
TEXTS = tuple(value for value in JUNK if isinstance(value, str))
MAPPINGS = tuple(value for value in JUNK if isinstance(value, dict))


def test_networks_that_share_a_tensor(tmp_path: Path) -> None:
    """Where the file says so, both are converted; old names cannot be windows on both."""
    tensors = {"x": torch.ones(16, 3), "y": torch.ones(16, 4), "z": torch.zeros(16, 4)}
    modules = [
        {"at": at, "layout": "torch", "spec": "lstm", "tensors": {"weight_ih_l0": "x", "weight_hh_l0": own}}
        for at, own in (("a", "y"), ("b", "z"))
    ]
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    save_file(arrays, tmp_path / "m.safetensors", {"paramtool.layouts": record(*modules)})
    args = ("fuse", "m.safetensors", "--layout", "cudnn", *OUT)
    refused(quick, *args, "--keep-names", cwd=tmp_path, code=6, says=("m.safetensors: 'x' is a part of two networks",))
    ran = quick(*args, cwd=tmp_path)
    assert ran.code == 0 and "untied, because they go to different places of the new tensors: 'x'" in ran.err, ran


def test_random_records(tmp_path: Path) -> None:
    """Whatever they hold: a result, or an error of ours; never another."""
    chance = random.Random(0)
    ended = set()
    for _ in range(examples(400)):
        modules = []
        for _ in range(chance.randint(1, 2)):
            module: dict[str, Any] = dict(MODULE)
            for key in chance.sample(["at", "layout", "spec", "tensors", "options", "source"], chance.randint(1, 3)):
                module[key] = chance.choice(MAPPINGS if key in ("tensors", "options") else TEXTS)
            modules.append(module)
        recorded(tmp_path, record(*modules))
        try:
            relayout_command.unfuse(tmp_path / "m.safetensors", tmp_path / "out.safetensors", force=True)
            ended.add("fine")
        except ParamtoolError as error:
            assert "m.safetensors" in str(error) or error.exit_code == 2, (modules, error)
            ended.add(type(error).__name__)
    assert {"LayoutError", "FormatError"} <= ended


def test_bytes_of_the_record_turned_over(tmp_path: Path) -> None:
    """Any one byte of it changed: a result, or an error of ours."""
    good = record(MODULE)
    chance = random.Random(1)
    for _ in range(200):
        text = bytearray(good.encode())
        text[chance.randrange(len(text))] = chance.choice(b'"{}[]:,0a \\=')
        recorded(tmp_path, text.decode("latin-1"))
        try:
            relayout_command.unfuse(tmp_path / "m.safetensors", tmp_path / "out.safetensors", force=True)
        except ParamtoolError as error:
            assert str(error)


def test_a_record_that_is_the_users(tmp_path: Path) -> None:
    """A foreign value under our key: an error, never overwritten."""
    recorded(tmp_path, "my own notes")
    for args in (("unfuse", "m.safetensors"), ("dedup", "m.safetensors")):
        refused(quick, *args, *OUT, cwd=tmp_path, code=3, says=("m.safetensors", "'paramtool.layouts'", "hint: "))


# --- interrupted -----------------------------------------------------------------------------------------------------


def test_ctrl_c_while_writing(tmp_path: Path) -> None:
    """Exit 130 without a word, and no temporary file."""
    tensors = {f"w{k}": torch.full((8_000_000,), float(k)) for k in range(5)}
    save(tmp_path, {**lstm(), **tensors})
    ran = interrupted(signal.SIGINT, WRITING, "convert", "m.pt", "--to", "keras", *OUT, cwd=tmp_path)
    assert ran == (130, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_a_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is met in the middle of writing what is calculated: exit 7."""
    save(tmp_path, state(nn.LSTM(256, 512), "rnn"))

    def run(*args: object, cwd: Path) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "paramtool", *map(str, args)], cwd=cwd, capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    for args in (("convert", "m.pt", "--to", "keras"), ("fuse", "m.pt", "--layout", "cudnn", "--keep-names")):
        refused(run, *args, *OUT, cwd=tmp_path, code=7, says=("out.safetensors",))


@pytest.mark.parametrize("args", [("fuse", "m.pt", "--layout", "flax.nnx"), ("unfuse", "m.pt", "--layout", "onnx")])
def test_as_a_program(args: tuple[str, ...], tmp_path: Path) -> None:
    """The same from a process of its own."""
    save(tmp_path, gru())
    refused(command, *args, *OUT, cwd=tmp_path, code=5, says=("m.pt", "hint: "))


# --- not yet refused -------------------------------------------------------------------------------------------------


def test_a_tail_that_is_not_empty(tmp_path: Path) -> None:
    """A buffer said to have no biases whose room for them is not empty: nothing is dropped without a word."""
    save(tmp_path, {"v": torch.frombuffer(bytearray(flat(nn.LSTM(3, 2))), dtype=torch.float32)})
    args = ("unfuse", "m.pt", "--layout", "cudnn", "--at", "v", "--spec", "lstm hidden=2 input=3 bias=no", *OUT)
    refused(quick, *args, cwd=tmp_path, code=5, says=("'v': is not zero",))


@pytest.mark.parametrize("option", ["tf1.basic:forget_bias=nan", "tf1.basic:forget_bias=1e400", "cudnn:tail=maybe",
                                    "cudnn:bias_mode=both"])  # fmt: skip
def test_an_option_that_cannot_be(option: str, tmp_path: Path) -> None:
    """Exit 2, and what it may be."""
    save(tmp_path, lstm(1))
    refused(quick, "convert", "m.pt", "--to", option, *OUT, cwd=tmp_path, code=2, says=(option.split("=")[-1],))
