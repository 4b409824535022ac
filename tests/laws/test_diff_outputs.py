"""The law of diff and verify: what a command wrote and `verify` proves is the same for `diff`, in both directions.

Two biases that were summed are the one exception: no number of the sum leads back, unless they were kept beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.model.diff import ADDED, CHANGED, DEQUANTISED, REMOVED, UNDECIDED
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
    """What `diff` finds of weights that are not the same, and of ties."""
    found = paramtool.diff(a, b)
    return [*(one for one in found.tensors if one.kind in (CHANGED, REMOVED, ADDED, UNDECIDED)), *found.ties]


def same_both_ways(source: Path, output: Path) -> None:
    assert not differ(source, output)
    assert not differ(output, source)


@pytest.mark.sample(12)
@pytest.mark.parametrize("path, name", PAIRS)
def test_what_a_command_wrote_of_a_file(tmp_path: Path, path: Path, name: str) -> None:
    words = WORDS[name]
    ran = quick(*({"IN": str(path)}.get(word, word) for word in words), cwd=tmp_path)
    is_summed = "\nsummed" in ran.out and "--keep-split" not in words
    if ran.code or is_summed:
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
    found = paramtool.diff(source, tmp_path / words.split()[-1])
    assert found.is_same or words.endswith("safetensors"), found  # its objects have no room there


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
        assert differ(path, tmp_path / other) and differ(tmp_path / other, path)

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


def test_the_verdict_of_dequantised_weights(tmp_path: Path) -> None:
    quantised(tmp_path / "codes.safetensors")
    assert quick("convert", "codes.safetensors", "--dequantise", "-o", "made.safetensors", cwd=tmp_path).code == 0
    for pair in (("codes.safetensors", "made.safetensors"), ("made.safetensors", "codes.safetensors")):
        ran = quick("diff", *pair, "--exit-code", cwd=tmp_path)
        assert ran.code == 0 and ran.out.startswith("verdict  same weights dequantised\n"), ran
        assert quick("diff", *pair, "--exit-code", "--strict", cwd=tmp_path).code == 1
        kinds = {one.kind for one in paramtool.diff(*(tmp_path / name for name in pair)).tensors}
        assert kinds == {"same", DEQUANTISED}
