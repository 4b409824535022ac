"""Quantised weights and low-rank factors after a move, judged by the libraries that run them.

What a library dequantises after a move is what it dequantised before, moved: transformers (MXFP4 and FP8),
compressed-tensors (NVFP4), AutoAWQ and AutoGPTQ.  PEFT runs the adapters.  `make oracles` gets AutoAWQ and AutoGPTQ
into build/packed: nothing of them is installed, their modules of pure torch are read from the archives.
"""

from __future__ import annotations

import json
import re
import tarfile
import types
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import paramtool
from tests.hostile.command import quick, refused
from tests.oracles.test_quantised_counts import MAKERS, base

ROOT = Path(__file__).parents[2]
Tensors = dict[str, torch.Tensor]
HEADS, KV_HEADS, DIM = 4, 2, 64
ROWS = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
HIDDEN = 256
SPEC = f"qkv heads={HEADS} kv_heads={KV_HEADS}"


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64).to(torch.int32)


def saved(path: Path, state: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None = None) -> Path:
    """A folder with a model, or a file of tensors if there is no config."""
    state = {name: one.contiguous() for name, one in state.items()}
    if config is None:
        save_file(state, path, {"format": "pt"})
        return path
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(state, path / "model.safetensors", {"format": "pt"})
    return path


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and tensor.shape == other[name].shape, name
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name


# --- MXFP4 of gpt-oss, by transformers -------------------------------------------------------------------------------

EXPERTS = "model.layers.0.mlp.experts"
WIDTHS = [(64, 96), (64, 64)]
"""Hidden size, and width of an expert: the second is square, as gpt-oss-20b's 2880 and 2880 are."""


def gpt_oss(hidden: int, ffn: int) -> tuple[Tensors, dict[str, Any]]:
    """A layer of gpt-oss as the published files have it, and its config."""
    state = {}
    for name, out, inside in (("gate_up_proj", 2 * ffn, hidden), ("down_proj", hidden, ffn)):
        state[f"{EXPERTS}.{name}_blocks"] = codes(3, out, inside // 32, 16)
        state[f"{EXPERTS}.{name}_scales"] = torch.randint(120, 130, (3, out, inside // 32), dtype=torch.uint8)
        state[f"{EXPERTS}.{name}_bias"] = torch.randn(3, out).bfloat16()
    rows = {"q": HEADS * 8, "k": KV_HEADS * 8, "v": KV_HEADS * 8}
    for part, out in rows.items():
        state[f"model.layers.0.self_attn.{part}_proj.weight"] = torch.randn(out, hidden).bfloat16()
        state[f"model.layers.0.self_attn.{part}_proj.bias"] = torch.randn(out).bfloat16()
    state["model.layers.0.mlp.router.weight"] = torch.randn(3, hidden).bfloat16()
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": hidden,
        "intermediate_size": ffn, "num_local_experts": 3, "num_attention_heads": HEADS, "vocab_size": 8,
        "num_key_value_heads": KV_HEADS, "head_dim": 8, "num_hidden_layers": 1, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    return state, config


def of_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A stack [experts, inputs, outputs]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return convert_moe_packed_tensors(blocks.contiguous(), scales.contiguous(), dtype=torch.bfloat16)


def plain(state: Mapping[str, torch.Tensor]) -> Tensors:
    """The same model, its experts dequantised."""
    found = {}
    for name, one in state.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            found[stem] = of_mxfp4(one, state[f"{stem}_scales"])
        elif not name.endswith("_scales"):
            found[name] = one
    return found


@pytest.mark.parametrize("widths", WIDTHS)
def test_mxfp4_taken_apart(widths: tuple[int, int], tmp_path: Path) -> None:
    """Each expert dequantised is what the experts of the dequantised file are; back is the same file."""
    state, config = gpt_oss(*widths)
    packed, bare = saved(tmp_path / "m", state, config), saved(tmp_path / "p", plain(state), config)
    for source, out in ((packed, "apart"), (bare, "plain")):
        paramtool.unfuse(source, tmp_path / out)
    apart, expected = (load_file(tmp_path / out / "model.safetensors") for out in ("apart", "plain"))
    for expert in range(3):
        for part in ("gate", "up", "down"):
            stem = f"{EXPERTS}.{expert}.{part}_proj"
            found = of_mxfp4(apart[f"{stem}.blocks"][None], apart[f"{stem}.scales"][None])[0].T
            assert torch.equal(found, expected[f"{stem}.weight"])
            assert torch.equal(apart[f"{stem}.bias"], expected[f"{stem}.bias"])
    paramtool.fuse(tmp_path / "apart", tmp_path / "back", layout="experts-transposed-interleaved")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (packed / "model.safetensors").read_bytes()


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("target", ["vllm", "megatron", "transformers-5"])
def test_mxfp4_in_another_dialect(target: str, widths: tuple[int, int], tmp_path: Path) -> None:
    """Dequantised after the conversion, it is the conversion of the dequantised file."""
    state, config = gpt_oss(*widths)
    packed, bare = saved(tmp_path / "m", state, config), saved(tmp_path / "p", plain(state), config)
    for source, out in ((packed, "there"), (bare, "plain")):
        paramtool.convert(source, tmp_path / out, target=target)
    there, expected = (load_file(*(tmp_path / out).glob("*.safetensors")) for out in ("there", "plain"))
    found: Tensors = {}
    for name, one in (plain(there) if target == "transformers-5" else there).items():
        if target == "vllm" and f"{name}_scale" in there:  # models/gpt_oss.py 1382: the codes have the weight's name
            shape = (*one.shape[:2], -1, 16)
            found[name] = of_mxfp4(one.view(shape), there[f"{name}_scale"]).transpose(1, 2)
        elif target == "megatron" and name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            found[stem] = of_mxfp4(one[None], there[f"{stem}_scales"][None])[0].T
        elif not name.endswith(("_scale", "_scales")):
            found[name] = one
    same({name: one.contiguous() for name, one in found.items()}, expected)
    paramtool.convert(tmp_path / "there", tmp_path / "back", target="transformers-4", source=target)
    same(load_file(tmp_path / "back/model.safetensors"), state)


def test_mxfp4_is_seen(tmp_path: Path) -> None:
    state, config = gpt_oss(64, 96)
    saved(tmp_path / "m", state, config)
    seen = quick("inspect", "m", cwd=tmp_path).out
    assert "experts stacked (gate_up_proj, down_proj): experts-transposed-interleaved" in seen
    assert "experts-transposed-interleaved" in quick("guess", "m", cwd=tmp_path).out


def test_codes_without_scales(tmp_path: Path) -> None:
    state, config = gpt_oss(64, 96)
    saved(tmp_path / "m", {name: one for name, one in state.items() if not name.endswith("down_proj_scales")}, config)
    refused(quick, "unfuse", "m", "-o", "o", cwd=tmp_path, code=5, says=("down_proj",))


# --- FP8, by transformers --------------------------------------------------------------------------------------------


def fp8(out: int, inside: int) -> Tensors:
    weight = torch.randn(out, inside).to(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale_inv": torch.rand(-(-out // 128), -(-inside // 128))}


def of_fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    return _dequantize_fp8_weight(weight, scale, [128, 128], torch.float32)


@pytest.mark.parametrize("layout", ["experts", "experts-transposed"])
def test_fp8_stacks(layout: str, tmp_path: Path) -> None:
    """Scales of tiles are turned where the stack is; taken apart without a record they are the same."""
    sizes = {"gate": (256, 128), "up": (256, 128), "down": (128, 256)}
    state = {f"m.experts.{k}.{part}_proj.{suffix}": one for k in range(3) for part, size in sizes.items()
             for suffix, one in fp8(*size).items()}  # fmt: skip
    source = saved(tmp_path / "m.safetensors", state)
    paramtool.fuse(source, tmp_path / "o.safetensors", layout=layout)
    there = load_file(tmp_path / "o.safetensors")
    for name, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        found = of_fp8(there[f"m.experts.{name}"], there[f"m.experts.{name}_scale_inv"])
        found = found.transpose(1, 2) if layout == "experts-transposed" else found
        for k in range(3):
            own = [of_fp8(*(state[f"m.experts.{k}.{part}_proj.{suffix}"] for suffix in ("weight", "weight_scale_inv")))
                   for part in parts]  # fmt: skip
            assert torch.equal(found[k], torch.cat(own))
    bare = saved(tmp_path / "bare.safetensors", there)
    paramtool.unfuse(bare, tmp_path / "back.safetensors", layout=layout)
    same(load_file(tmp_path / "back.safetensors"), state)


def test_scales_of_rows_of_a_transposed_layer(tmp_path: Path) -> None:
    """Our equation: a scale multiplies what is of one output, a column of [inputs, outputs]."""
    state = {}
    for part, out in ROWS.items():
        state[f"a.{part}_proj.weight"] = torch.randn(out, HIDDEN).to(torch.float8_e4m3fn)
        state[f"a.{part}_proj.weight_scale"] = torch.rand(out, 1)
    source = saved(tmp_path / "m.safetensors", state)
    paramtool.fuse(source, tmp_path / "o.safetensors", layout="qkv-conv1d")
    there = load_file(tmp_path / "o.safetensors")
    (name,) = (one for one in there if one.endswith(".weight"))
    parts = [state[f"a.{part}_proj.weight"].float() * state[f"a.{part}_proj.weight_scale"] for part in "qkv"]
    assert torch.equal(there[name].float() * there[f"{name}_scale"], torch.cat(parts).T)
    paramtool.unfuse(tmp_path / "o.safetensors", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == source.read_bytes()


# --- one module of a library -----------------------------------------------------------------------------------------


def module(archive: str, path: str) -> types.ModuleType:
    """A module of pure torch from an archive of `make oracles`; the test is skipped where it is absent."""
    found = sorted((ROOT / "build/packed").glob(archive))
    if not found:
        pytest.skip(f"no {archive} in build/packed: make build/packed/stamp")
    if found[0].suffix == ".whl":
        text = zipfile.ZipFile(found[0]).read(path).decode()
    else:
        with tarfile.open(found[0]) as tar:
            one = tar.extractfile(f"{found[0].name.removesuffix('.tar.gz')}/{path}")
            assert one is not None
            text = one.read().decode()
    made = types.ModuleType(Path(path).stem)
    exec(compile(text, path, "exec"), made.__dict__)
    return made


Dequantise = Callable[[Tensors], torch.Tensor]


def awq() -> Dequantise:
    library = module("autoawq-*.tar.gz", "awq/utils/packing_utils.py")
    return lambda m: library.dequantize_gemm(m["qweight"], m["qzeros"], m["scales"], 4, 128).T


def gptq() -> Dequantise:
    library = module("auto_gptq-*.whl", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")

    def of(m: Tensors) -> torch.Tensor:
        inside, out = m["g_idx"].shape[0], m["scales"].shape[1]
        layer = library.QuantLinear(4, 128, inside, out, bias=False)
        layer.load_state_dict(m)
        with torch.no_grad():
            return layer(torch.eye(inside, dtype=torch.float16)).T

    return of


def nvfp4() -> Dequantise:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed: pip install --group test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from compressed_tensors.compressors import NVFP4PackedCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    return lambda m: NVFP4PackedCompressor.decompress(m, scheme)["weight"]


def tiles() -> Dequantise:
    return lambda m: of_fp8(m["weight"], m["weight_scale_inv"])


def made(scheme: str, out: int) -> Tensors:
    """The tensors of a layer with `HIDDEN` inputs."""
    groups = HIDDEN // 128
    if scheme == "tiles":
        return fp8(out, HIDDEN)
    if scheme == "nvfp4":
        scale = torch.rand(out, HIDDEN // 16).to(torch.float8_e4m3fn)
        return {"weight_packed": codes(out, HIDDEN // 2), "weight_scale": scale,
                "weight_global_scale": torch.tensor([3.0])}  # fmt: skip
    shape = (HIDDEN // 8, out) if scheme == "gptq" else (HIDDEN, out // 8)
    found = {"qweight": integers(*shape), "qzeros": integers(groups, out // 8)}
    found["scales"] = torch.rand(groups, out).half()
    order = torch.arange(HIDDEN, dtype=torch.int32).flip(0) // 128
    return found | ({"g_idx": order} if scheme == "gptq" else {})


LIBRARIES = {"awq": awq, "gptq": gptq, "nvfp4": nvfp4, "tiles": tiles}


@pytest.mark.parametrize(
    ("scheme", "layout"),
    [(one, "qkv") for one in LIBRARIES] + [(one, "qkv-per-group") for one in ("awq", "gptq", "nvfp4")],
)
def test_dequantised_by_its_library(scheme: str, layout: str, tmp_path: Path) -> None:
    """The fused weight dequantised is the dequantised weights, fused; and there and back is the same file."""
    dequantise = LIBRARIES[scheme]()
    modules = {part: made(scheme, out) for part, out in ROWS.items()}
    state = {f"a.{part}_proj.{suffix}": one for part, m in modules.items() for suffix, one in m.items()}
    source = saved(tmp_path / "m.safetensors", state)
    bare = {f"a.{part}_proj.weight": dequantise(m).float() for part, m in modules.items()}
    for path, out in ((source, "there"), (saved(tmp_path / "bare.safetensors", bare), "plain")):
        paramtool.fuse(path, tmp_path / f"{out}.safetensors", layout=layout, spec=SPEC)
    there = load_file(tmp_path / "there.safetensors")
    ((name, expected),) = load_file(tmp_path / "plain.safetensors").items()
    stem = name.removesuffix("weight")
    found = dequantise({one.removeprefix(stem): tensor for one, tensor in there.items()})
    assert torch.equal(found.float(), expected)
    paramtool.unfuse(tmp_path / "there.safetensors", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == source.read_bytes()


def test_packed_rows_have_no_turned_form(tmp_path: Path) -> None:
    state = {f"a.{part}_proj.{s}": one for part, out in ROWS.items() for s, one in made("nvfp4", out).items()}
    saved(tmp_path / "m.safetensors", state)
    refused(quick, "fuse", "m.safetensors", "--layout", "qkv-conv1d", "-o", "o.safetensors", cwd=tmp_path, code=5,
            says=("weight_packed", "packed along the inputs"))  # fmt: skip


# --- low-rank factors, by PEFT ---------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Projections whose rows are queries, keys and values."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        super().__init__()
        for name, out in rows.items():
            self.add_module(name, nn.Linear(HIDDEN, out, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.children()], -1)


class Model(nn.Module):
    """What PEFT wraps."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        super().__init__()
        self.attn = Attention(rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(x)


APART = {f"{part}_proj": out for part, out in ROWS.items()}
FUSED = {"qkv_proj": sum(ROWS.values())}


def adapted(rows: Mapping[str, int]) -> Any:
    """A model of PEFT, its weights small integers, so that sums are exact in any order."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install --group test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(Model(rows), peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(rows)))
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randint(-4, 5, one.shape))
    return model


def adapter(model: Any) -> Tensors:
    """The factors, as PEFT writes them."""
    import peft

    return dict(peft.get_peft_model_state_dict(model))


def run(model: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        return model(torch.randint(-4, 5, (5, HIDDEN), generator=generator).float())


def with_one_a(model: Any) -> Any:
    with torch.no_grad():
        layers = list(model.base_model.model.attn.children())
        for layer in layers[1:]:
            layer.lora_A["default"].weight.copy_(layers[0].lora_A["default"].weight)
    return model


@pytest.mark.parametrize("form", ["adapter", "memory"])
@pytest.mark.parametrize("way", ["unfuse", "fuse"])
def test_peft_runs_what_was_moved(way: str, form: str, tmp_path: Path) -> None:
    """B's rows with A for each part, and back where A is one: PEFT gives the same outputs."""
    import peft

    old, new = (adapted(FUSED), adapted(APART)) if way == "unfuse" else (with_one_a(adapted(APART)), adapted(FUSED))
    source = saved(tmp_path / "m.safetensors", adapter(old) if form == "adapter" else old.state_dict())
    getattr(paramtool, way)(source, tmp_path / "o.safetensors", layout="qkv", spec=SPEC if way == "unfuse" else "")
    moved = load_file(tmp_path / "o.safetensors")
    if form == "memory":
        new.load_state_dict(moved)
    else:
        base = {"weight": torch.cat([one.base_layer.weight.data for one in old.base_model.model.attn.children()])}
        sizes = list(ROWS.values()) if way == "unfuse" else [sum(ROWS.values())]
        for layer, weight in zip(new.base_model.model.attn.children(), base["weight"].split(sizes), strict=True):
            layer.base_layer.weight.data.copy_(weight)
        assert moved.keys() == adapter(new).keys()
        peft.set_peft_model_state_dict(new, moved)
    assert torch.equal(run(new), run(old))
    back = {"unfuse": paramtool.fuse, "fuse": paramtool.unfuse}[way]
    back(tmp_path / "o.safetensors", tmp_path / "back.safetensors", layout="qkv")
    assert (tmp_path / "back.safetensors").read_bytes() == source.read_bytes()


def test_factors_of_several_inputs_are_not_joined(tmp_path: Path) -> None:
    """With several A the sum has their ranks together."""
    saved(tmp_path / "m.safetensors", adapter(adapted(APART)))
    refused(quick, "fuse", "m.safetensors", "--layout", "qkv", "-o", "o.safetensors", cwd=tmp_path, code=5,
            says=("k_proj.lora_A.weight", "one A", "rank", "merge the adapter"))  # fmt: skip


@pytest.mark.parametrize("way", ["unfuse", "fuse"])
def test_peft_opens_the_folder(way: str, tmp_path: Path) -> None:
    """adapter_config.json names the new modules: PEFT makes them, and misses no factor."""
    import peft

    old = adapted(FUSED) if way == "unfuse" else with_one_a(adapted(APART))
    old.save_pretrained(tmp_path / "m")
    spec = ("--spec", SPEC) if way == "unfuse" else ()
    ran = quick(way, "m", "--layout", "qkv", *spec, "-o", "o", cwd=tmp_path)
    assert ran.code == 0 and ran.err == "", ran
    rows = APART if way == "unfuse" else FUSED
    said = json.loads((tmp_path / "o/adapter_config.json").read_text())
    assert set(said["target_modules"]) == rows.keys()
    base = Model(rows)
    weights = torch.cat([one.base_layer.weight.data for one in old.base_model.model.attn.children()])
    for layer, weight in zip(base.attn.children(), weights.split(list(rows.values())), strict=True):
        layer.weight.data.copy_(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT warns of missing factors
        new = peft.PeftModel.from_pretrained(base, str(tmp_path / "o"))
    assert torch.equal(run(new), run(old))
    assert paramtool.verify(tmp_path / "o", tmp_path / "m").differences == ()
    assert quick(way, "m", "--layout", "qkv", *spec, "-o", "o", "--force", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [({"target_modules": ".*_proj"}, "target_modules is '.*_proj'; expected a list of names"),
     ({"target_modules": ["attn.qkv_proj"]}, "target_modules has 'attn.qkv_proj'"),
     ({"rank_pattern": {"qkv_proj": 8}}, "rank_pattern name modules, and 'qkv_proj' are not in the output")],
)  # fmt: skip
def test_configs_of_adapters_that_cannot_be_rewritten(setting: dict[str, Any], says: str, tmp_path: Path) -> None:
    adapted(FUSED).save_pretrained(tmp_path / "m")
    path = tmp_path / "m/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **setting}))
    flags = ("--layout", "qkv", "--spec", SPEC, "-o", "o")
    refused(quick, "unfuse", "m", *flags, cwd=tmp_path, code=5, says=(says,))


def test_every_linear_layer_stays_every_linear_layer(tmp_path: Path) -> None:
    adapted(FUSED).save_pretrained(tmp_path / "m")
    path = tmp_path / "m/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_modules": "all-linear"}))
    assert quick("unfuse", "m", "--layout", "qkv", "--spec", SPEC, "-o", "o", cwd=tmp_path).code == 0
    assert (tmp_path / "o/adapter_config.json").read_bytes() == path.read_bytes()


# --- names: torchao's metadata, and configs --------------------------------------------------------------------------


def of_torchao(path: Path) -> tuple[Tensors, list[str]]:
    """What torchao makes of a file, and what it leaves over."""
    from safetensors import safe_open

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(path, "pt") as file:
        made, left = unflatten_tensor_state_dict({name: file.get_tensor(name) for name in file.keys()}, file.metadata())  # noqa: SIM118
    return made, list(left)


@pytest.fixture
def torchao_file(tmp_path: Path) -> Path:
    """Attention whose weights are of eight bits beside an LSTM, as torchao writes it."""
    pytest.importorskip("torchao", reason="torchao is not installed: pip install --group test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        model = nn.ModuleDict({"attn": Attention(ROWS), "rnn": nn.LSTM(8, 8)})
        quantize_(model, Int8WeightOnlyConfig(version=2))
        tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    save_file({name: one.contiguous() for name, one in tensors.items()}, tmp_path / "m.safetensors", metadata)
    return tmp_path / "m.safetensors"


def test_torchao_finds_renamed_tensors(torchao_file: Path, tmp_path: Path) -> None:
    """A prefix that leaves, a module that is renamed, a network that is fused; what it would not find is refused."""
    expected, left = of_torchao(torchao_file)
    assert not left
    out = tmp_path / "o.safetensors"
    for options, names in (
        ({"prefix": "attn."}, {name.removeprefix("attn."): name for name in expected if name.startswith("attn.")}),
        ({"rename": ["attn.*=a.b.*"]}, {name.replace("attn.", "a.b."): name for name in expected}),
    ):
        paramtool.export(torchao_file, out, all_names=True, force=True, **options)  # type: ignore[arg-type]
        made, left = of_torchao(out)
        assert made.keys() == names.keys() and not left
        for new, old in names.items():
            assert type(made[new]) is type(expected[old])
            one, other = (
                tensor.dequantize() if hasattr(tensor, "qdata") else tensor for tensor in (made[new], expected[old])
            )
            assert torch.equal(one, other)
    for pair in ((torchao_file, out), (out, torchao_file)):
        assert paramtool.diff(*pair).is_same, paramtool.diff(*pair)
    from safetensors import safe_open

    with safe_open(out, "pt") as file:
        other = {key: text.replace("float32", "bfloat16") for key, text in file.metadata().items()}
    save_file(load_file(out), tmp_path / "other.safetensors", other)
    assert not paramtool.diff(torchao_file, tmp_path / "other.safetensors").is_same
    paramtool.convert(torchao_file, out, target="cudnn", force=True)
    made, left = of_torchao(out)
    assert "rnn.flat_weights" in made and "rnn.weight_ih_l0" not in made and not left
    assert not paramtool.verify(out, torchao_file).differences
    (tmp_path / "names.txt").write_text("attn.q._weight_qdata\n")
    for flags in (("--all-names", "--rename", "*._weight_scale=*.s"), ("--names", "names.txt")):
        refused(quick, "export", "m.safetensors", "-o", "x.safetensors", *flags, cwd=tmp_path, code=6,
                says=("torchao does not find it",))  # fmt: skip


OF_LIBRARIES = ("bitsandbytes NF4", "bitsandbytes int8", "compressed-tensors FP8", "compressed-tensors W4A16")


@pytest.mark.parametrize("kind", [*OF_LIBRARIES, "awq", "gptq", "nvfp4", "tiles"])
def test_codes_stay_with_what_they_are_read_with(kind: str, tmp_path: Path) -> None:
    """Under one new stem, or not at all: half a rename, and codes or scales alone, are refused, and other weights."""
    if kind in OF_LIBRARIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = {name: one.detach().as_subclass(torch.Tensor) for name, one in MAKERS[kind](base()).items()}
    else:
        state = {f"{k}.{suffix}": one for k in (0, 2) for suffix, one in made(kind, 128).items()}
    source = saved(tmp_path / "m.safetensors", state)
    (codes,) = {"0.weight", "0.qweight", "0.weight_packed"} & state.keys()
    beside = [name for name in state if name.startswith("0.") and name not in (codes, "0.bias")]
    assert beside
    command = ("export", "m.safetensors", "-o", "x.safetensors")
    for name in (codes, *beside):
        other = name.replace("0.", "v.")
        refused(quick, *command, "--all-names", "--rename", f"{name}={other}", cwd=tmp_path, code=6,
                says=(f"'{codes}' has codes", f"'{other}'", "--rename 'old.*=new.*'"))  # fmt: skip
        (tmp_path / "names.txt").write_text("\n".join(one for one in state if one != name))
        refused(quick, *command, "--names", "names.txt", cwd=tmp_path, code=6, says=(f"no '{name}'",))
        half = saved(tmp_path / "half.safetensors", {other if one == name else one: t for one, t in state.items()})
        assert not paramtool.diff(source, half).is_same and not paramtool.diff(half, source).is_same
    paramtool.export(source, tmp_path / "x.safetensors", all_names=True, rename=["0.*=v.*"])
    same(load_file(tmp_path / "x.safetensors"), {re.sub(r"^0\.", "v.", name): one for name, one in state.items()})
    assert paramtool.diff(source, tmp_path / "x.safetensors").is_same
    assert paramtool.diff(tmp_path / "x.safetensors", source).is_same
    (tmp_path / "names.txt").write_text("\n".join(name for name in state if name.startswith("2.")))
    assert quick(*command, "--names", "names.txt", "--force", cwd=tmp_path).code == 0


@pytest.mark.parametrize("scale", ["weight_scale", "linear_scale", "input_scale", "scale"])
def test_a_scale_in_the_module_above(scale: str, tmp_path: Path) -> None:
    """A wrapper has the scale, and the layer in it the codes: they are one thing to casts, renames and diff."""
    state = {
        "m.linear.weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
        f"m.{scale}": torch.rand(64),
        "n": torch.rand(3),
    }
    source, half = saved(tmp_path / "m.safetensors", state), {f"p.{scale}": state.pop(f"m.{scale}")}
    paramtool.convert(source, tmp_path / "c.safetensors", dtype="float16")
    assert load_file(tmp_path / "c.safetensors")[f"m.{scale}"].dtype == torch.float32
    other = saved(tmp_path / "half.safetensors", {**state, **half})
    assert not paramtool.diff(source, other).is_same and not paramtool.diff(other, source).is_same
    refused(quick, "export", "m.safetensors", "-o", "x.safetensors", "--all-names", "--rename", f"m.{scale}=p.{scale}",
            cwd=tmp_path, code=6, says=("'m.linear.weight' has codes",))  # fmt: skip
    paramtool.export(source, tmp_path / "x.safetensors", all_names=True, rename=["m.*=p.*"])
    assert paramtool.diff(source, tmp_path / "x.safetensors").is_same


def test_a_scale_of_something_else(tmp_path: Path) -> None:
    """The temperature of attention, beside layers that have scales of their own, and of a model."""
    state = {"a.q.weight": torch.randn(8, 8).to(torch.float8_e4m3fn), "a.q.weight_scale": torch.rand(8)}
    source = saved(tmp_path / "m.safetensors", {**state, "a.scale": torch.rand(4), "a.logit_scale": torch.rand(4)})
    typed = paramtool.convert(source, tmp_path / "c.safetensors", dtype="float16").typed
    assert typed is not None and typed.casts == {"a.scale": "float32", "a.logit_scale": "float32"}


@pytest.mark.parametrize("shapes", [((64, 1), (1, 64)), ((64,), (64, 1)), ((8, 8), (64, 1))])
def test_a_scale_of_another_shape(shapes: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path) -> None:
    """Of rows, of columns, of blocks: not the same weights, but for the scale of a whole tensor."""
    codes, scale = torch.randn(64, 64).to(torch.float8_e4m3fn), torch.rand(64)
    pair = [
        saved(tmp_path / f"{k}.safetensors", {"m.weight": codes, "m.weight_scale": scale.reshape(shape)})
        for k, shape in enumerate(shapes)
    ]
    assert not paramtool.diff(*pair).is_same and not paramtool.diff(*pair[::-1]).is_same
    whole = [
        saved(tmp_path / f"{k}.safetensors", {"m.weight": codes, "m.weight_scale": torch.full((1,) * k, 0.5)})
        for k in (0, 1)
    ]
    assert paramtool.diff(*whole).is_same


@pytest.mark.parametrize("other, is_same", [({"lora_alpha": 8}, False), ({"use_rslora": True}, False),
                                            ({"use_dora": False, "lora_dropout": 0.1}, True)])  # fmt: skip
def test_how_an_adapter_is_scaled(other: dict[str, object], is_same: bool, tmp_path: Path) -> None:
    """PEFT multiplies the factors by what its config says; a file without a config says nothing."""
    state = {
        f"base_model.model.q.lora_{k}.weight": torch.rand(shape)
        for k, shape in zip("AB", ((4, 64), (64, 4)), strict=True)
    }
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q"]}
    for name, more in (("a", {}), ("b", other)):
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "adapter_model.safetensors")
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({**config, **more}))
    a, b = tmp_path / "a", tmp_path / "b"
    assert paramtool.diff(a, b).is_same == paramtool.diff(b, a).is_same == is_same
    paramtool.lock([a], tmp_path / "lock")
    assert (paramtool.check([b], lock=tmp_path / "lock").exit_code == 0) == is_same
    save_file(state, tmp_path / "alone.safetensors")
    (tmp_path / "c").mkdir()
    (tmp_path / "alone.safetensors").rename(tmp_path / "c" / "m.safetensors")
    assert not paramtool.diff(b, tmp_path / "c").is_same


def test_equal_scales_follow_their_codes(tmp_path: Path) -> None:
    """Scales that all are one number are found beside the codes, in any order of new names."""
    codes = {name: torch.randn(64, 64).to(torch.float8_e4m3fn) for name in "abcd"}
    files = [
        saved(tmp_path / f"{k}.safetensors", {f"{new}.weight{end}": one for old, new in zip("abcd", names, strict=True)
              for end, one in (("", codes[old]), ("_scale", torch.full((64, 1), 0.3)))})
        for k, names in enumerate(("abcd", "zyxw"))
    ]  # fmt: skip
    for pair in (files, files[::-1]):
        assert paramtool.diff(*pair).is_same


def test_scales_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    """A scale of an unknown name stays where it was, and its codes would not."""
    stack = {"m.experts.gate_up_proj": (4, 64, 32), "m.experts.down_proj": (4, 32, 32)}
    state = {name: torch.randn(shape).to(torch.float8_e4m3fn) for name, shape in stack.items()}
    saved(tmp_path / "m.safetensors", state | {f"{name}_my_scale": torch.rand(4, 1, 1) for name in stack})
    refused(quick, "unfuse", "m.safetensors", "--layout", "experts", "-o", "x.safetensors", cwd=tmp_path, code=6,
            says=("no 'm.experts.down_proj'", "down_proj_my_scale'", "before they are quantised"))  # fmt: skip


def test_a_key_of_another_program_stays(tmp_path: Path) -> None:
    """Not every `tensor_names` is torchao's."""
    for k, text in enumerate(("a, b", "[]", '["w"]', "3", '[["w"]]')):
        metadata = {"tensor_names": text, "w": "no JSON"}
        save_file({"w": torch.ones(2)}, tmp_path / f"{k}.safetensors", metadata)
        out = tmp_path / f"{k}.out.safetensors"
        paramtool.export(tmp_path / f"{k}.safetensors", out, all_names=True, rename=["w=v"])
        assert paramtool.read(out).metadata.items() >= metadata.items()


NAMING = (
    ({"quantization": {"group_size": 64, "bits": 4, "w.l": {"group_size": 64, "bits": 8}}},),
    ({}, ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8", "exclude_modules": ["w.k"]}})),
    ({"quantization_config": {"quant_method": "gptq", "dynamic": {"-:w\\.k": {}}}},),
    ({"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:w.*k"]}},),
    ({}, ("quantize_config.json", {"bits": 4, "modules_in_block_to_quantize": [["w.l"]]})),
)
"""What config.json, and a file beside it, say of modules by name: MLX, ModelOpt, GPTQModel, compressed-tensors."""


def test_a_config_that_names_modules(tmp_path: Path) -> None:
    """What is said of modules by name holds for them, or renaming is refused."""
    fp8 = {"w.l.weight": torch.ones(2, 2), "w.k.weight": torch.ones(2, 2)}
    for number, (said, *beside) in enumerate(NAMING):
        folder = tmp_path / f"n{number}"
        saved(folder, fp8, said)
        for name, more in beside:
            (folder / name).write_text(json.dumps(more))
        refused(quick, "export", folder.name, "-o", "o", "--all-names", "--rename", "w.*=v.*", cwd=tmp_path, code=6,
                says=("has '", "would be 'v."))  # fmt: skip
        assert quick("export", folder.name, "-o", f"o{number}", "--all-names", cwd=tmp_path).code == 0
    save_file(fp8, tmp_path / "c.safetensors", {"_quantization_metadata": '{"layers": {"w.l": {"format": "fp8"}}}'})
    refused(quick, "export", "c.safetensors", "-o", "c2.safetensors", "--all-names", "--rename", "w.*=v.*",
            cwd=tmp_path, code=6, says=("_quantization_metadata", "'w.l'"))  # fmt: skip
    config = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}}
    saved(tmp_path / "m", {"model.up.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(2, 2)}, config)
    refused(quick, "export", "m", "-o", "o", "--all-names", "--rename", "lm_head.*=head.*", cwd=tmp_path, code=6,
            says=("quantization_config has 'lm_head'",))  # fmt: skip
    assert quick("export", "m", "-o", "o", "--all-names", "--rename", "model.*=m.*", cwd=tmp_path).code == 0


def test_peft_finds_renamed_modules(tmp_path: Path) -> None:
    import peft

    adapted(FUSED).save_pretrained(tmp_path / "m")
    paramtool.export(tmp_path / "m", tmp_path / "o", all_names=True, rename=["*.qkv_proj.*=*.query.*"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peft.PeftModel.from_pretrained(Model({"query": FUSED["qkv_proj"]}), str(tmp_path / "o"))
    path = tmp_path / "m/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "modules_to_save": ["qkv_proj"]}))
    refused(quick, "export", "m", "-o", "p", "--all-names", "--rename", "*.qkv_proj.*=*.query.*", cwd=tmp_path, code=5,
            says=("modules_to_save has 'qkv_proj'",))  # fmt: skip
    plain = json.loads(path.read_text())
    del plain["modules_to_save"]
    (name, *_) = (name for name in paramtool.read(tmp_path / "m") if "qkv_proj" in name)
    module = name.removeprefix("base_model.model.").partition(".lora")[0]
    path.write_text(json.dumps({**plain, "target_modules": re.escape(module)}))
    refused(quick, "export", "m", "-o", "p", "--all-names", "--rename", "*.attn.*=*.a.*", cwd=tmp_path, code=5,
            says=("target_modules is", "other modules"))  # fmt: skip
    assert quick("export", "m", "-o", "same", "--all-names", cwd=tmp_path).code == 0
    path.write_text(json.dumps({**plain, "layers_pattern": "qkv_proj"}))
    refused(quick, "export", "m", "-o", "p", "--all-names", "--rename", "*.qkv_proj.*=*.query.*", cwd=tmp_path, code=5,
            says=("layers_pattern has 'qkv_proj'",))  # fmt: skip


def test_codes_under_other_scales_are_other_weights(tmp_path: Path) -> None:
    """Doubled scales double the weight, fused or not; without scales it is no weight."""
    modules = {part: fp8(out, HIDDEN) for part, out in ROWS.items()}
    state = {f"a.{part}_proj.{suffix}": one for part, m in modules.items() for suffix, one in m.items()}
    source = saved(tmp_path / "m.safetensors", state)
    paramtool.fuse(source, tmp_path / "f.safetensors", layout="qkv")
    fused = load_file(tmp_path / "f.safetensors")
    assert paramtool.diff(source, tmp_path / "f.safetensors").is_same
    for tensors in (state, fused):
        doubled = {name: one * 2 if "scale" in name else one for name, one in tensors.items()}
        bare = {name: one for name, one in tensors.items() if "scale" not in name}
        for k, changed in enumerate((doubled, bare)):
            found = paramtool.diff(source, saved(tmp_path / f"{k}.safetensors", changed))
            codes = [one for one in found.tensors if one.b and one.b[0].endswith(".weight")]
            assert codes and all(one.kind == "changed" and "the same codes" in one.how for one in codes)
