"""Folders of `convert --to meta` are opened by Meta's own code, and by the script of transformers that reads them.

`pip download llama-models==0.3.0 transformers==4.46.3 --no-deps -d build/meta` gets both; `make oracles` does that.
Meta's model is run as it is.  Of fairscale, which cuts its layers over ranks, it needs the layers of one rank: those of
torch.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import paramtool

WHEELS = Path(__file__).parents[2] / "build/meta"
SIZES: Mapping[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Llama 2": {"intermediate_size": 88},
    "another width": {"intermediate_size": 101},
    "Llama 3.1": {"intermediate_size": 112, "max_position_embeddings": 16384, "rope_parameters": SCALED},
    "tied": {"intermediate_size": 88, "tie_word_embeddings": True},
}
BOUND = 1e-5


class _Linear(torch.nn.Linear):
    """A layer of fairscale for one rank."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, **_: object) -> None:
        super().__init__(inputs, outputs, bias=bias)


class _Embedding(torch.nn.Embedding):
    """An embedding of fairscale for one rank."""

    def __init__(self, count: int, size: int, **_: object) -> None:
        super().__init__(count, size)


def unpacked(pattern: str, names: tuple[str, ...], folder: Path) -> Path:
    """The files of a wheel."""
    wheels = sorted(WHEELS.glob(pattern))
    if not wheels:
        pytest.skip(f"no {pattern} in build/meta")
    with zipfile.ZipFile(wheels[0]) as archive:
        for name in names:
            archive.extract(name, folder)
    return folder


def module(name: str, **members: object) -> types.ModuleType:
    """A module with these members."""
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


@pytest.fixture
def metas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """(ModelArgs, Transformer) of Meta's code."""
    files = ("llama_models/llama3/args.py", "llama_models/llama3/model.py")
    folder = unpacked("llama_models-0.3.0-*.whl", files, tmp_path / "metas")
    parallel = "fairscale.nn.model_parallel"
    ranks = module(f"{parallel}.initialize", get_model_parallel_world_size=lambda: 1)
    layers = module(
        f"{parallel}.layers", ColumnParallelLinear=_Linear, RowParallelLinear=_Linear, VocabParallelEmbedding=_Embedding
    )
    package = module("metas_llama", __path__=[str(folder / "llama_models/llama3")])
    for one in (
        module("fairscale"),
        module("fairscale.nn"),
        module(parallel, initialize=ranks),
        ranks,
        layers,
        package,
    ):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    args, model = (importlib.import_module(f"metas_llama.{name}") for name in ("args", "model"))
    for name in ("args", "model"):
        monkeypatch.delitem(sys.modules, f"metas_llama.{name}")
    return args.ModelArgs, model.Transformer


def saved(folder: Path, name: str, **more: Any) -> Any:
    """A model of transformers, saved in a folder."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **MODELS[name], **more})
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 4)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_metas_code_opens_it(tmp_path: Path, metas: tuple[Any, Any], name: str) -> None:
    """Strictly, and with the same logits."""
    model = saved(tmp_path / "in", name)
    paramtool.convert(tmp_path / "in", tmp_path / "out", target="meta")
    params = json.loads((tmp_path / "out/params.json").read_text())
    make_args, make_model = metas
    theirs = make_model(make_args(max_seq_len=64, max_batch_size=2, **params)).eval()
    theirs.load_state_dict(torch.load(tmp_path / "out/consolidated.00.pth", weights_only=True), strict=True)
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        expected, found = model(tokens).logits, theirs(tokens, 0)
    assert (expected - found).abs().max() <= BOUND * expected.abs().max()


@pytest.mark.parametrize("name", ["Llama 2", "another width"])
def test_the_script_of_transformers_reads_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the bytes of the model that was converted."""
    path = "transformers/models/llama/convert_llama_weights_to_hf.py"
    folder = unpacked("transformers-4.46.3-*.whl", (path,), tmp_path / "wheel")
    monkeypatch.syspath_prepend(str((folder / path).parent))
    script = importlib.import_module("convert_llama_weights_to_hf")
    monkeypatch.delitem(sys.modules, "convert_llama_weights_to_hf")
    model = saved(tmp_path / "in", name, dtype=torch.bfloat16)
    paramtool.convert(tmp_path / "in", tmp_path / "out", target="meta")
    script.write_model(str(tmp_path / "back"), str(tmp_path / "out"), num_shards=1, llama_version="2", vocab_size=64)
    back = load_file(tmp_path / "back/model.safetensors")
    state = {key: tensor.to(torch.bfloat16) for key, tensor in model.state_dict().items()}
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)
