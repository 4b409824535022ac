"""The law of diff and verify: what a command wrote and `verify` proves is the same for `diff`, in both directions."""

from __future__ import annotations

import json
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.model.diff import ADDED, CHANGED, DEQUANTISED, REMOVED, ROUNDED, UNDECIDED
from tests.examples import examples
from tests.hostile.command import quick
from tests.laws.test_verify import COMMANDS, FILES, ROOT

FINDING = ROOT.parent / "shared" / "findings" / "field" / "diff-own-outputs"
MORE = {
    "convert --to mxnet": ["convert", "IN", "--to", "mxnet", "-o", "out.safetensors"],
    "convert.pt --to cudnn": ["convert", "IN", "--to", "cudnn", "-o", "out.pt"],
    "convert --to torch": ["convert", "IN", "--to", "torch", "--keep-split", "-o", "out.safetensors"],
    "convert --dtype": ["convert", "IN", "--dtype", "float64", "-o", "out.pt"],
}
WORDS = {name: words for name, words in (COMMANDS | MORE).items() if "TWIN" not in words}
PAIRS = [pytest.param(path, name, id=f"{path.name}-{name}") for path in FILES for name in WORDS]


def differ(a: Path, b: Path) -> list[object]:
    """What `diff` finds that is not the same: weights, but for those that were rounded, ties and objects."""
    found = paramtool.diff(a, b)
    wrong = [one for one in found.tensors if one.kind in (CHANGED, REMOVED, ADDED, UNDECIDED)]
    assert found.is_same or wrong or found.ties or found.objects or any(one.kind == ROUNDED for one in found.tensors)
    return [*wrong, *found.ties, *found.objects]


def same_both_ways(source: Path, output: Path) -> None:
    assert not differ(source, output), (source, output)
    assert not differ(output, source), (output, source)


@pytest.mark.sample(12)
@pytest.mark.parametrize("path, name", PAIRS)
def test_what_a_command_wrote_of_a_file(tmp_path: Path, path: Path, name: str) -> None:
    words = WORDS[name]
    ran = quick(*({"IN": str(path)}.get(word, word) for word in words), cwd=tmp_path)
    if ran.code:
        return
    output = tmp_path / words[words.index("-o") + 1]
    proved = quick("verify", str(output), "--against", str(path), cwd=tmp_path)
    if proved.code == 0 and "not compared" not in proved.out + proved.err:
        same_both_ways(path, output)


@pytest.mark.parametrize(
    "name, words",
    [("lstm_zero_bhh.pt", "--to keras --keep-split -o out.safetensors"), ("train.pt", "--to cudnn -o out.pt"),
     ("train.pt", "--to cudnn -o out.safetensors"), ("lstm_zero_bhh.pt", "--to keras -o out.safetensors")],
)  # fmt: skip
def test_findings(tmp_path: Path, name: str, words: str) -> None:
    """Biases that were kept, and a training whose entries were renumbered."""
    source = FINDING / name
    if not source.exists():
        pytest.skip("the files of the findings are not here")
    assert quick("convert", str(source), *words.split(), cwd=tmp_path).code == 0
    same_both_ways(source, tmp_path / words.split()[-1])


def training(path: Path) -> None:
    """A GRU with the state of its Adam after two steps."""
    torch.manual_seed(0)
    model = torch.nn.GRU(5, 7)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(3, 1, 5))[0].sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def quantised(path: Path) -> None:
    """FP8 codes with a scale for each row, and one for the whole."""
    torch.manual_seed(0)
    state = {"norm": torch.randn(16)}
    for k, shape in enumerate([(16, 1), (1,), (16, 1)]):
        state[f"m.{k}.weight"] = torch.randn(16, 32).to(torch.float8_e4m3fn)
        state[f"m.{k}.weight_scale"] = torch.rand(shape) + 0.5
    save_file(state, path)


MADE = {
    "training": (training, "source.pt", "convert source.pt --to cudnn -o out.pt"),
    "summed": (training, "source.pt", "convert source.pt --to flax.linen -o out.safetensors"),
    "fused": (training, "source.pt", "fuse source.pt --layout cudnn -o out.safetensors"),
    "kept": (training, "source.pt", "convert source.pt --to onnx --keep-split -o out.safetensors"),
    "quantised": (quantised, "source.safetensors", "convert source.safetensors --dequantise -o out.safetensors"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_change_after_writing(tmp_path: Path, name: str) -> None:
    """Every tensor of an output, and of its source, counts: one bit more is other weights in both directions."""
    make, source, line = MADE[name]
    make(tmp_path / source)
    assert quick(*line.split(), cwd=tmp_path).code == 0
    output = line.split()[-1]
    same_both_ways(tmp_path / source, tmp_path / output)

    @settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def flipped(data: st.DataObject) -> None:
        which = data.draw(st.sampled_from([source, output]))
        path, other = tmp_path / f"changed{Path(which).suffix}", {source: output, output: source}[which]
        state, metadata = loaded(tmp_path / which)
        tensors = dict(flat(state))
        tensor = tensors[data.draw(st.sampled_from(sorted(tensors)))]
        bits = tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
        place = data.draw(st.integers(0, bits.numel() - 1))
        bits.view(-1)[place] ^= 1 << data.draw(st.integers(0, 6))
        torch.save(state, path) if path.suffix == ".pt" else save_file(state, path, metadata)
        output_and_source = (path, tmp_path / other) if which == output else (tmp_path / other, path)
        proved = quick("verify", str(output_and_source[0]), "--against", str(output_and_source[1]), cwd=tmp_path)
        assert proved.code or (name == "summed" and which == source)  # a bit of a bias that the sum rounds away
        for pair in (output_and_source, output_and_source[::-1]):
            assert bool(differ(*pair)) == bool(proved.code)

    flipped()


def loaded(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """What a file holds, and its metadata."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True), None
    with safe_open(path, "pt") as file:
        return load_file(path), file.metadata()


def flat(state: Any, at: str = "") -> list[tuple[str, torch.Tensor]]:
    """(place, tensor)"""
    if isinstance(state, torch.Tensor):
        return [(at, state)]
    items = state.items() if isinstance(state, dict) else ()
    return [one for key, value in items for one in flat(value, f"{at}.{key}")]


CONFIG = {"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}}
PARTS: dict[str, Any] = {
    "a dict with its class": lambda: OrderedDict(a=1, b=torch.ones(2)),
    "numbers as keys": lambda: {0: torch.arange(3), 1: "x"},
    "bytes": lambda: BytesIO(b"abc"),
    "an epoch": lambda: 3,
    "a tuple": lambda: (torch.ones(3), None, 2.5),
    "an array": lambda: np.arange(4),
    "codes": lambda: {
        "qweight": torch.arange(64, dtype=torch.int32).reshape(8, 8) + 7, "scales": torch.rand(2, 8).half()
    },
}  # fmt: skip
TARGETS = {
    "as it is": "convert IN", "dedup": "dedup IN", "export": "export IN --all-names", "keras": "convert IN --to keras",
    "haiku": "convert IN --to haiku", "cudnn": "convert IN --to cudnn", "fuse": "fuse IN --layout cudnn",
    "float64": "convert IN --to onnx --dtype float64", "kept": "convert IN --to keras --keep-split",
}  # fmt: skip
ENDS = ("pt", "safetensors", "npz", "h5", "dcp", "/")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_commands_and_formats(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever a training holds, beside a config.json or not: `verify` and `diff` have one answer."""
    at = tmp_path_factory.mktemp("law")
    (at / "in").mkdir()
    torch.manual_seed(0)
    network = data.draw(st.sampled_from([torch.nn.LSTM(3, 4), torch.nn.GRU(3, 4, bidirectional=True)]), label="network")
    state: dict[str, Any] = {"model": {f"rnn.{key}": value for key, value in network.state_dict().items()}}
    for name in data.draw(st.lists(st.sampled_from(sorted(PARTS)), unique=True, max_size=3), label="parts"):
        state[name] = PARTS[name]()
    source = at / "in" / "model.pt"
    torch.save(state, source)
    if data.draw(st.booleans(), label="config"):
        (at / "in" / "config.json").write_text(json.dumps(CONFIG))
    line = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), label="command")]
    end = data.draw(st.sampled_from(ENDS), label="format")
    output = at / (f"out.{end}" if end != "/" else "out")
    given = str(at / "in" if end == "/" else source)
    words = [given if word == "IN" else word for word in line.split()]
    ran = quick(*words, "-o", str(output), *(["--format", "dcp"] if end == "dcp" else []), cwd=at)
    if ran.code == 0:
        proved = quick("verify", str(output), "--against", given, cwd=at)
        if proved.code == 0:
            same_both_ways(Path(given), output)


@pytest.mark.parametrize("is_one", [False, True])
def test_the_verdict_of_dequantised_weights(is_one: bool, tmp_path: Path) -> None:
    """Also where every scale is 1, so that the numbers are those of the codes."""
    quantised(tmp_path / "codes.safetensors")
    if is_one:
        state = load_file(tmp_path / "codes.safetensors")
        ones = {name: torch.ones_like(one) if "scale" in name else one for name, one in state.items()}
        save_file(ones, tmp_path / "codes.safetensors", {"format": "pt"})
    assert quick("convert", "codes.safetensors", "--dequantise", "-o", "made.safetensors", cwd=tmp_path).code == 0
    for pair in (("codes.safetensors", "made.safetensors"), ("made.safetensors", "codes.safetensors")):
        ran = quick("diff", *pair, "--exit-code", cwd=tmp_path)
        assert ran.code == 0 and ran.out.startswith("verdict  same weights dequantised\n"), ran
        assert quick("diff", *pair, "--exit-code", "--strict", cwd=tmp_path).code == 1
        kinds = {one.kind for one in paramtool.diff(*(tmp_path / name for name in pair)).tensors}
        assert kinds == {"same", DEQUANTISED}
