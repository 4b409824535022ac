"""What tensors of torchao, DTensors and quantised tensors are beside their bytes: no command calls two the same.

Each attribute that the library reads is changed alone, in the file that the library wrote; so is each key of a config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.commands._value_facts import RUNTIME
from paramtool.commands.diff.diff import diff
from paramtool.commands.verify import verify
from paramtool.errors import FormatError
from paramtool.model.diff import CHANGED, SAME, UNDECIDED

ALLOWED: dict[str, Any] = {"force": True, "allow_unknown": True}
W = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.filterwarnings("ignore")


def judged(a: Path, b: Path) -> list[bool]:
    """Whether each command calls the two the same."""
    lock = a.with_suffix(".lock")
    paramtool.lock([a], lock, **ALLOWED)
    paramtool.lock([b], b.with_suffix(".lock"), **ALLOWED)
    contents = [read_content(path.with_suffix(".lock")) for path in (a, b)]
    digests = [dict(paramtool.inspect(path, digest=True).digests or {}) for path in (a, b)]
    return [
        diff(a, b, allow_unknown=True).is_same,
        diff(b, a, allow_unknown=True).is_same,
        not verify(b, a, allow_unknown=True).differences,
        not verify(b, a, tensors_only=True, allow_unknown=True).differences,
        contents[0] == contents[1],
        digests[0] == digests[1],
        is_locked(b, lock),
        is_locked(b, lock, content_only=True),
    ]


def read_content(lock: Path) -> str:
    return next(line for line in lock.read_text().splitlines() if line.startswith("content "))


def is_locked(path: Path, lock: Path, **more: bool) -> bool:
    text = lock.read_text()
    again = path.with_name("again.lock")
    model = next(line for line in text.splitlines() if line.startswith("model "))
    moved = text.replace(model, f"model {path.name}")
    body = moved[moved.index("model ") : moved.index("\nlines ")]
    again.write_text(moved[: moved.index("\nlines ")] + f"\nlines b3:{blake3(body)}\n")
    return paramtool.check([path], lock=again, allow_unknown=True, **more).exit_code == 0


def blake3(text: str) -> str:
    from blake3 import blake3 as function

    return str(function(text.encode()).hexdigest())


def quantised() -> dict[str, torch.Tensor]:
    """Subclasses of torchao, each of a small layer."""
    quantization = pytest.importorskip("torchao.quantization")
    found = {}
    for name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig",
                 "IntxWeightOnlyConfig"):  # fmt: skip
        if config := getattr(quantization, name, None):
            layer = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16))
            layer[0].weight.data.copy_(W)
            quantization.quantize_(layer, config())
            found[name] = layer[0].weight.detach()
    return found


KINDS = ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig",
         "IntxWeightOnlyConfig"]  # fmt: skip


def other(value: Any) -> Any:
    """Another value of the type of one; None where none is made here."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}2"
        case list() | tuple():
            return type(value)([*value[:-1], other(value[-1])]) if value and type(value) in (list, tuple) else None
        case torch.dtype():
            return torch.float16 if value != torch.float16 else torch.bfloat16
        case torch.Tensor():
            return value.clone() if value.is_quantized else (value.float() + 1).to(value.dtype)
        case None:
            return 3
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_each_attribute_of_a_subclass(kind: str, tmp_path: Path) -> None:
    weight = quantised()[kind]
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save({"w": weight}, a)
    torch.save({"w": weight}, b)
    assert all(judged(a, b))
    tried = 0
    for key, value in vars(weight).items():
        changed = other(value)
        if changed is None or (isinstance(value, torch.Tensor) and torch.equal(value.float(), changed.float())):
            continue
        setattr(weight, key, changed)
        torch.save({"w": weight}, b)
        setattr(weight, key, value)
        assert not any(judged(a, b)), (key, judged(a, b))
        tried += 1
    assert tried >= 3


def altered(value: Any) -> Iterator[Any]:
    """A value of JSON with one of its leaves changed or left out, each in turn."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: one} for one in altered(value[key]))
    elif (changed := other(value)) is not None:
        yield changed


@pytest.mark.parametrize("more", [{}, {"0.bias": W[0].clone()}], ids=["alone", "beside a plain tensor"])
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_each_entry_of_the_header_of_torchao(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    state, metadata = support.flatten_tensor_state_dict({"0.weight": quantised()[kind], **more})
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file(state, a, metadata)
    save_file(state, b, metadata)
    assert all(judged(a, b))
    others = [{k: v for k, v in metadata.items() if k != key} for key in metadata]
    others.append({**metadata, "tensor_names": "[]"})
    others += [
        {**metadata, key: json.dumps(one)} for key, text in metadata.items() for one in altered(json.loads(text))
    ]
    assert len(others) > 8
    for one in others:
        save_file(state, b, one)
        try:
            assert not any(judged(a, b)), one
        except FormatError as error:  # what torchao could not read is refused
            assert "torchao" in str(error), error


def test_metadata_that_names_no_tensor_is_no_value(tmp_path: Path) -> None:
    """A title, a date, the tags of a training: the weights are the same."""
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"model.w": W}, a, {"modelspec.title": "one", "ss_tag_frequency": '{"dog": {"cat": 1}}', "format": "pt"})
    save_file({"model.w": W}, b, {"modelspec.title": "two", "model": "x"})
    assert diff(a, b).is_same and not diff(a, b).judge(strict=True) and not verify(b, a, tensors_only=True).differences


def test_a_layer_that_a_header_names(tmp_path: Path) -> None:
    """ComfyUI: one entry names the format of each layer."""
    layers = {"format_version": "1.0", "layers": {"model.0": {"format": "float8_e4m3fn"}}}
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path, kind in ((a, "float8_e4m3fn"), (b, "float8_e5m2")):
        layers["layers"]["model.0"]["format"] = kind  # type: ignore[index]
        save_file({"model.0.weight": W}, path, {"_quantization_metadata": json.dumps(layers)})
    assert not any(judged(a, b))


def test_bytes_whose_meaning_is_in_one_of_the_two(tmp_path: Path) -> None:
    """The parts of a quantised tensor, and beside them nothing that says what they are."""

    weight = quantised()["Int8WeightOnlyConfig"]
    torch.save({"w": weight}, tmp_path / "a.pt")
    parts = {f"w.{key}": value for key, value in vars(weight).items() if isinstance(value, torch.Tensor)}
    save_file(parts, tmp_path / "b.safetensors")
    for pair in (("a.pt", "b.safetensors"), ("b.safetensors", "a.pt")):
        found = diff(*(tmp_path / name for name in pair))
        assert not found.is_same and UNDECIDED in {one.kind for one in found.tensors}
        assert found.verdict == "same bytes, undecided values"


def test_a_compound_under_another_name(tmp_path: Path) -> None:
    weight = quantised()["Int8WeightOnlyConfig"]
    torch.save({"m.w": weight}, tmp_path / "a.pt")
    torch.save({"x.w": weight}, tmp_path / "b.pt")
    assert diff(tmp_path / "a.pt", tmp_path / "b.pt").is_same
    weight.block_size = [64, 1]
    torch.save({"x.w": weight}, tmp_path / "b.pt")
    found = diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not found.is_same and CHANGED in {one.kind for one in found.tensors}


def test_torchs_own_quantised_tensors(tmp_path: Path) -> None:
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    scales, zeros = torch.rand(64) + 0.5, torch.zeros(64)
    codes: dict[str, Callable[[float, int], torch.Tensor]] = {
        "tensor": lambda scale, zero: torch._make_per_tensor_quantized_tensor(W.to(torch.uint8), scale, zero),
        "channel": lambda scale, zero: torch._make_per_channel_quantized_tensor(
            W.to(torch.uint8), scales * scale, zeros + zero, 0
        ),
    }
    for made in codes.values():
        torch.save({"w": made(0.5, 3)}, a)
        for scale, zero in ((0.25, 3), (0.5, 4)):
            torch.save({"w": made(scale, zero)}, b)
            assert not any(judged(a, b))


def test_placements_of_a_dtensor(tmp_path: Path) -> None:
    """The same bytes are rows of one whole, or columns of another."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        pytest.skip("torch.distributed is in use")
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        meshes = [init_device_mesh("cpu", (2,)) for _ in range(2)]
        states = [(meshes[0], Shard(0)), (meshes[1], Shard(0)), (meshes[0], Shard(1)), (meshes[0], Replicate())]
        for k, (mesh, place) in enumerate(states):
            torch.save({"w": DTensor.from_local(W, mesh, [place], run_check=False)}, tmp_path / f"{k}.pt")
    finally:
        dist.destroy_process_group()
    assert all(judged(tmp_path / "0.pt", tmp_path / "1.pt"))
    for k in (2, 3):
        assert not any(judged(tmp_path / "0.pt", tmp_path / f"{k}.pt"))


@pytest.mark.parametrize("at", ["", "model"])
def test_versions_of_modules(at: str, tmp_path: Path) -> None:
    """torch's modules read an older version otherwise: two versions are not the same, and none says nothing."""
    state = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).state_dict()
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save({at: state} if at else state, a)
    assert state._metadata["1"] == {"version": 2}
    for other in ({"version": 1}, {"version": 2, "assign_to_params_buffers": True}):
        changed = type(state)(state)
        changed._metadata = {**state._metadata, "1": other}
        torch.save({at: changed} if at else changed, b)
        assert [*judged(a, b)[:4], *judged(a, b)[6:]] == [False] * 6, other
        assert diff(a, b).verdict == diff(b, a).verdict == "same bytes, undecided values"
        renamed = type(state)({f"net.{name}": value for name, value in changed.items()})
        renamed._metadata = {f"net.{name}".rstrip("."): value for name, value in changed._metadata.items()}
        torch.save({at: renamed} if at else renamed, b)
        assert not diff(a, b).is_same and not diff(b, a).is_same
    plain = {f"{at}.{name}".lstrip("."): value for name, value in state.items()}
    save_file(plain, tmp_path / "b.safetensors")
    assert all(judged(a, tmp_path / "b.safetensors")[3:]) and diff(a, tmp_path / "b.safetensors").judge(strict=True)
    assert diff(tmp_path / "b.safetensors", a).judge(strict=True)


def hqq() -> dict[str, Any]:
    """A layer as `HQQLinear.state_dict` and `save_quantized` have it (hqq/core/quantize.py, 0.2)."""
    meta = {
        "nbits": 4, "group_size": 64, "shape": torch.Size([64, 64]), "scale": torch.rand(64, 1),
        "zero": W[:, :1].clone(), "axis": 1, "packing": "4bit_u8", "unpack_view_dtype": torch.uint8,
        "view_as_float": False, "quant_scale": False, "quant_zero": False, "compute_dtype": torch.bfloat16,
    }  # fmt: skip
    return {"W_q": torch.arange(2048, dtype=torch.uint8).reshape(32, 64), "bias": None, "meta": meta}


@pytest.mark.parametrize("form", ["nested", "flat", "in a model"])
def test_each_object_beside_codes(form: str, tmp_path: Path) -> None:
    """The bits and the axis of a layer of HQQ are objects of its module: they are digested, and compared as values."""

    def saved(path: Path, layer: dict[str, Any]) -> Path:
        if form == "flat":
            meta = layer.pop("meta")
            layer = {f"l.0.q_proj.{key}": value for key, value in {**layer, **meta}.items() if value is not None}
        elif form == "nested":
            layer = {"l.0.q_proj": layer, "emb": {"weight": W}}
        else:
            layer = {"model": {"l.0.q_proj": layer}, "epoch": 3}
        torch.save(layer, path)
        return path

    torch.manual_seed(0)
    one = hqq()
    a = saved(tmp_path / "a.pt", dict(one))
    assert all(judged(a, saved(tmp_path / "b.pt", dict(one))))
    for key, value in one["meta"].items():
        if not isinstance(value, torch.Tensor):
            changed = torch.Size([32, 128]) if key == "shape" else other(value)
            b = saved(tmp_path / "b.pt", {**one, "meta": {**one["meta"], key: changed}})
            assert not any(judged(a, b)), (key, judged(a, b))


def test_settings_of_codes_in_a_header(tmp_path: Path) -> None:
    """nunchaku: one entry has the settings of all layers, and names none; without codes it is a word like any other."""
    said = {"method": "svdquant", "weight": {"dtype": "int4", "group_size": 64}, "rank": 32}
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    state = {"b.0.qkv.qweight": torch.ones(64, 32, dtype=torch.int8), "b.0.qkv.wscales": W[0].clone()}
    save_file(state, a, {"quantization_config": json.dumps(said)})
    for one in altered(said):
        save_file(state, b, {"quantization_config": json.dumps(one)})
        assert not any(judged(a, b)), (one, judged(a, b))
    for path, title in ((a, "one"), (b, "two")):
        save_file({"w": W}, path, {"quantization_config": title})
    assert diff(a, b).is_same


def test_a_file_of_settings_alone(tmp_path: Path) -> None:
    """AutoGPTQ's, without a config.json that has them."""
    said = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    a, b = (folder(tmp_path / name, None) for name in "ab")
    for one in (said, *altered(said)):
        for at, settings in ((a, said), (b, one)):
            (at / "quantize_config.json").write_text(json.dumps(settings))
        found = judged(a, b)
        found[2] = found[3]
        assert (all if one == said else lambda found: not any(found))(found), (one, found)


def configs() -> dict[str, dict[str, Any]]:
    """What transformers writes of quantised models, and compressed-tensors as its files have it."""
    made = pytest.importorskip("transformers.utils.quantization_config")
    bits = made.BitsAndBytesConfig
    found = {
        "gptq": made.GPTQConfig(bits=4, group_size=32, sym=True, checkpoint_format="gptq").to_dict(),
        "awq": made.AwqConfig(bits=4, group_size=32, zero_point=True).to_dict(),
        "bnb8": bits(load_in_8bit=True, llm_int8_threshold=5.0).to_dict(),
        "bnb4": bits(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16").to_dict(),
        "fp8": made.FineGrainedFP8Config(weight_block_size=(128, 128)).to_dict(),
    }
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    group = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "format": "pack-quantized"}
    found["compressed-tensors"] = {"quant_method": "compressed-tensors", **group}
    return {name: json.loads(json.dumps(one, default=str)) for name, one in found.items()}


def folder(at: Path, config: dict[str, Any] | None) -> Path:
    """Codes with scales, beside a config.json."""
    at.mkdir(exist_ok=True)
    codes = {"m.qweight": torch.arange(64, dtype=torch.int32).reshape(8, 8), "m.scales": torch.ones(2, 8), "norm": W}
    save_file(codes, at / "model.safetensors", {"format": "pt"})
    (at / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float16"} | (config or {})))
    return at


@pytest.mark.parametrize("kind", ["gptq", "awq", "bnb8", "bnb4", "fp8", "compressed-tensors"])
def test_each_key_of_a_config(kind: str, tmp_path: Path) -> None:
    """Another value of any key, or none, is other values of the codes; but for settings of the program alone."""
    said = configs()[kind]
    at = "compression_config" if kind == "compressed-tensors" else "quantization_config"
    a = folder(tmp_path / "a", {at: said})
    assert all(judged(a, folder(tmp_path / "b", {at: said})))
    changed = list(altered(said))
    assert len(changed) > 4
    for one in changed:
        key = next(key for key in said if said.get(key) != one.get(key, ...))
        is_same = judged(a, folder(tmp_path / "b", {at: one}))
        is_same[2] = is_same[3]  # of two folders the files are compared, too
        assert (all if key in RUNTIME else lambda found: not any(found))(is_same), (key, is_same)


def test_each_key_of_the_config_of_an_adapter(tmp_path: Path) -> None:
    """Another value of any key, or none where it says something, is another adapter, but for what training reads."""
    peft = pytest.importorskip("peft")
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    patterns = {"alpha_pattern": {"0": 8}, "rank_pattern": {"0": 1}}
    config = peft.LoraConfig(target_modules=["0", "1"], r=2, lora_alpha=4, **patterns)
    peft.get_peft_model(network, config).save_pretrained(tmp_path / "a")
    said = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    weights = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "adapter_model.safetensors").write_bytes(weights)

    def is_same(changed: dict[str, Any]) -> list[bool]:
        (tmp_path / "b" / "adapter_config.json").write_text(json.dumps(changed))
        found = judged(tmp_path / "a", tmp_path / "b")
        return [*found[:2], *found[4:]]  # verify compares every byte of that file, and none with tensors_only

    assert all(is_same({key: one[::-1] if key == "target_modules" else one for key, one in said.items()}))
    assert all(is_same({key: one for key, one in said.items() if one not in (None, False, {}, [])}))
    changed = [one for one in altered(said) if one.keys() == said.keys()]
    assert len(changed) > 30
    for one in changed:
        key = next(key for key in said if said[key] != one[key])
        assert (all if key in RUNTIME else lambda found: not any(found))(is_same(one)), key
    for one in ({"alpha_pattern": {"1": 8}}, {"use_rslora": True}, {"target_modules": ["0"]}):
        assert not any(is_same(said | one)), one


def test_settings_that_loading_replaces() -> None:
    """What transformers lets a caller replace at loading is no property of the weights; which modules are codes is."""
    made = pytest.importorskip("transformers.utils.quantization_config")
    every = [made.GPTQConfig(bits=4), made.AutoRoundConfig(), made.FbgemmFp8Config(), made.FineGrainedFP8Config(),
             made.Mxfp4Config(), made.CompressedTensorsConfig()]  # fmt: skip
    assert {key for one in every for key in one.get_loading_attributes()} - {"modules_to_not_convert"} <= RUNTIME


def test_a_config_beside_one_of_the_two(tmp_path: Path) -> None:
    """Undecided, unless there are no codes, or nothing is beside a file that says what they are (bitsandbytes, FP8)."""
    said = {"quantization_config": configs()["gptq"]}
    a, b = folder(tmp_path / "a", said), folder(tmp_path / "b", None)
    found = judged(a, b)
    found[2] = found[3]
    assert not any(found)
    assert {one.kind for one in diff(a, b).tensors} == {"same", UNDECIDED}
    others = {
        "fp8": {"m.weight": W.to(torch.float8_e4m3fn), "m.weight_scale_inv": torch.ones(1, 1)},
        "bnb": {"m.weight": W.to(torch.int8), "m.SCB": torch.ones(64)},
        "plain": {"m.weight": W, "m.ids": torch.arange(3)},
    }
    for name, state in others.items():
        folder(b, None)
        for at in (a, b):
            save_file(state, at / "model.safetensors")
        for has_config in (True, False):
            found = [diff(a, b).is_same, diff(b, a).is_same, not verify(b, a, tensors_only=True).differences]
            assert found == [name == "plain" or not has_config] * 3, (name, found)
            (b / "config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors"])
def test_an_output_without_the_config_of_its_codes_is_not_proved(kind: str, tmp_path: Path) -> None:
    """One file has no room for it: `verify` and `diff` answer alike, and a folder keeps it."""
    a = folder(tmp_path / "a", {"quantization_config": configs()[kind]})
    for output, is_whole in ((tmp_path / "one" / "m.safetensors", False), (tmp_path / "f", True)):
        output.parent.mkdir(exist_ok=True)
        report = paramtool.dedup(a, output)
        assert any("how its values are read" in line for line in report.warnings) is not is_whole
        found = [diff(a, output).is_same, diff(output, a).is_same, not verify(output, a).differences]
        assert found == [is_whole] * 3, (output, found)


@pytest.mark.parametrize("kind", ["LoraConfig", "IA3Config", "LoHaConfig"])
def test_an_adapter_whose_config_is_beside_one_of_the_two(kind: str, tmp_path: Path) -> None:
    """What the factors add to the weights is undecided, as for codes without their config."""
    peft = pytest.importorskip("peft")
    modules = {"target_modules": ["0"], **({"feedforward_modules": []} if kind == "IA3Config" else {})}
    made = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8)), getattr(peft, kind)(**modules))
    made.save_pretrained(tmp_path / "a")
    for output in (tmp_path / "b" / "adapter_model.safetensors", tmp_path / "one.safetensors"):
        output.parent.mkdir(exist_ok=True)
        output.write_bytes((tmp_path / "a" / "adapter_model.safetensors").read_bytes())
        assert not any(judged(tmp_path / "a", output)) and not any(judged(output, tmp_path / "a"))
        assert diff(tmp_path / "a", output).verdict == "same bytes, undecided values"
    (tmp_path / "c").mkdir()
    report = paramtool.dedup(tmp_path / "a", tmp_path / "c" / "m.safetensors")
    assert any("adapter_config.json" in line for line in report.warnings)
    assert verify(tmp_path / "c" / "m.safetensors", tmp_path / "a").differences


NESTED: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {  # of the same flat names
    "one key less": ({"a": {"b": {"c": W}}}, {"a": {"b.c": W}}),
    "a key parted elsewhere": ({"a.b": {"c": W}}, {"a": {"b.c": W}}),
    "a list": ({"a": {"b": [W, W[0]]}}, {"a": {"b": {"0": W, "1": W[0]}}}),
}


@pytest.mark.parametrize("form", [".pt", "dcp", ".safetensors"])
@pytest.mark.parametrize("how", NESTED)
def test_tensors_of_one_name_in_other_places(how: str, form: str, tmp_path: Path) -> None:
    """A lock sees what `diff` and `verify` do: the names are the same, and a program that reads them fails."""
    import torch.distributed.checkpoint as dcp

    a, b, again = paths = [tmp_path / f"{name}{form}" for name in ("a", "b", "again")]
    for path, state in zip(paths, (*NESTED[how], NESTED[how][0]), strict=True):
        if form == "dcp":
            dcp.save(state, checkpoint_id=path, no_dist=True)
            continue
        torch.save(state, path.with_suffix(".pt"))
        if form != ".pt":
            paramtool.dedup(path.with_suffix(".pt"), path)
    paramtool.lock([a], lock := tmp_path / "l.lock")
    assert is_locked(again, lock) and not is_locked(b, lock)
    assert diff(a, b).objects and verify(b, a).differences
    assert is_locked(b, lock, content_only=True)


KEYS: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {
    "another type": ({0: W, "x": W[0]}, {"0": W, "x": W[0]}),
    "exchanged": ({0: W, "0": W[0]}, {"0": W, 0: W[0]}),
    "an entry beside a tensor": ({"0": W, "x": 3}, {"0": W, 0: 1, "x": 3}),
    "in a dict": ({"m": {1: W, "1": W[0]}}, {"m": {"1": W, 1: W[0]}}),
}


@pytest.mark.parametrize("how", KEYS)
def test_a_number_as_key_beside_the_same_word(how: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    for path, state in zip((a, b), KEYS[how], strict=True):
        torch.save(state, path)
    paramtool.lock([a], lock := tmp_path / "l.lock")
    assert is_locked(a, lock) and not is_locked(b, lock)


@pytest.mark.parametrize("key", ["rms_norm_eps", "layer_norm_epsilon", "text_config.layer_norm_eps"])
def test_the_epsilon_of_a_config(key: str, tmp_path: Path) -> None:
    """What is added to variances is in no tensor."""
    lock = tmp_path / "l.lock"
    for k, epsilon in enumerate((1e-6, 1e-5)):
        said: Any = epsilon
        for word in reversed(key.split(".")):
            said = {word: said}
        at = folder(tmp_path / str(k), said)
        if k == 0:
            paramtool.lock([at], lock)
        assert is_locked(at, lock) is is_locked(at, lock, content_only=True) is (k == 0)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("kind", ["LayerNormalization", "BatchNormalization", "TimeDistributed"])
def test_the_epsilon_of_a_norm_of_keras(kind: str, suffix: str, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    lock = tmp_path / "l.lock"
    for k, epsilon in enumerate((1e-3, 1e-3, 1e-5)):
        keras.backend.clear_session()
        norm = getattr(keras.layers, "LayerNormalization" if kind == "TimeDistributed" else kind)(epsilon=epsilon)
        norm = keras.layers.TimeDistributed(norm) if kind == "TimeDistributed" else norm
        keras.Sequential([keras.Input((5, 4)), norm]).save(path := tmp_path / f"{k}{suffix}")
        if k == 0:
            paramtool.lock([path], lock)
        assert is_locked(path, lock) is is_locked(path, lock, content_only=True) is (k < 2)
    found = diff(tmp_path / f"1{suffix}", path)
    assert not found.judge() and "epsilon is [0.001] in A and [1e-05] in B" in found.doubts[0]
    (said,) = (text for text in found.metadata if "epsilon" in text)
    assert said.startswith("metadata '") and said.endswith(".config.epsilon: is '1e-05'; A has '0.001'")
    assert [text for text in paramtool.verify(path, tmp_path / f"1{suffix}").differences if "epsilon" in text]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", ["BatchNormalization", "LayerNormalization"])
def test_the_epsilon_of_a_node(norm: str, tmp_path: Path) -> None:
    """By the tensor that it is beside: a graph in which another norm is folded is compared by the rest."""
    onnx = pytest.importorskip("onnx")
    stored = ["g", "b", "m", "v"] if norm == "BatchNormalization" else ["g", "b"]
    tensors = [onnx.numpy_helper.from_array(torch.rand(4).numpy() + 1, name) for name in stored]
    lock = tmp_path / "l.lock"
    for k, epsilon in enumerate((1e-3, 1e-3, 1e-5)):
        node = onnx.helper.make_node(norm, ["x", *stored], ["y"], epsilon=epsilon, name=f"n{k}")
        ends = (onnx.helper.make_tensor_value_info(name, 1, [2, 4, 3]) for name in "xy")
        graph = onnx.helper.make_graph([node], "graph", *([end] for end in ends), tensors)
        onnx.save(onnx.helper.make_model(graph), path := tmp_path / f"{k}.onnx")
        if k == 0:
            paramtool.lock([path], lock)
        assert is_locked(path, lock) is is_locked(path, lock, content_only=True) is (k < 2)
        found = diff(tmp_path / "0.onnx", path)
        assert found.judge() is (k < 2) and bool(found.doubts) is (k == 2)
        assert bool(paramtool.verify(path, tmp_path / "0.onnx").differences) is (k == 2)


@pytest.mark.filterwarnings("ignore")
def test_what_a_graph_has_of_norms_is_compared_by_tensors(tmp_path: Path) -> None:
    """Of two opsets, one of which has no node for a layer norm."""
    pytest.importorskip("onnx")
    layers = [torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, eps=1e-3)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(3, 2)).eval()
    for version in (13, 17):
        path = tmp_path / f"{version}.onnx"
        torch.onnx.export(model, (torch.ones(2, 4),), path, dynamo=False, opset_version=version)
    assert diff(tmp_path / "13.onnx", tmp_path / "17.onnx").judge()


def test_an_entry_of_json_names_its_settings(tmp_path: Path) -> None:
    """Also of a layer of somebody's own, and behind hundreds of characters that are the same."""
    both = [{"a": ["x" * 200, {"b": 1, "eps": eps}], "c": [1, 2], "d": {}} for eps in (1e-3, 1e-5)]
    for name, said in (("a", both[0]), ("b", both[1]), ("text", "one"), ("none", None)):
        header = {"about": said if isinstance(said, str) else json.dumps(said)} if said else None
        save_file({"w": torch.ones(3)}, tmp_path / f"{name}.safetensors", header)
    for a, b, text in (
        ("a", "b", "metadata 'about' a.1.eps: is '1e-05'; A has '0.001'"),
        ("text", "none", "metadata 'about': is not there; A has 'one'"),
        ("none", "text", "metadata 'about': is 'one'; A has none"),
    ):
        assert diff(*(tmp_path / f"{one}.safetensors" for one in (a, b))).metadata == (text,)


def test_digests_without_a_config_are_what_they_were(tmp_path: Path) -> None:
    """A lock of codes without a config, or with one that says nothing of them, has no line more."""
    lock = tmp_path / "x.lock"
    paramtool.lock([folder(tmp_path / "a", None)], lock)
    assert " facts " not in lock.read_text()


def test_a_finding(findings: Path, tmp_path: Path) -> None:
    """Block sizes of one row and of one column: other numbers from the same bytes."""
    at = findings / "field" / "diff-attributes"
    a, b = (tmp_path / name for name in ("a.pt", "b.pt"))
    a.write_bytes((at / "i8_row.pt").read_bytes())
    b.write_bytes((at / "i8_col.pt").read_bytes())
    assert not any(judged(a, b))
    (one,) = (one for one in diff(a, b).tensors if one.kind != "same")
    assert one.kind == CHANGED and "block_size is [1, 4] in A and [4, 1] in B" in one.how


@pytest.mark.parametrize("key", ["rms_norm_eps", "text_config.layer_norm_eps"])
def test_two_configs_with_other_epsilons(key: str, tmp_path: Path) -> None:
    """The weights are the same, and models compute other outputs with them; what only one says counts for nothing."""

    def said(value: Any) -> Path:
        for word in reversed(key.split(".")):
            value = {word: value}
        return folder(tmp_path / str(len([*tmp_path.iterdir()])), value)

    a, same, other = said(1e-6), said(1e-6), said(1e-5)
    assert diff(a, same).is_same and not paramtool.verify(same, a, tensors_only=True).differences
    found = diff(a, other)
    assert not found.is_same and found.verdict == "same bytes, undecided values" and f"{key} is" in found.doubts[0]
    assert any(key in one for one in paramtool.verify(other, a, tensors_only=True).differences)
    assert diff(a, folder(tmp_path / "silent", None)).is_same


def test_a_tie_that_only_one_config_keeps(findings: Path, tmp_path: Path) -> None:
    """The head that the other config denies is begun with random numbers."""
    at = findings / "field" / "cast-of-codes" / "bnb8"
    tied, untied = tmp_path / "tied", tmp_path / "untied"
    for path in (tied, untied):
        path.mkdir()
        for one in at.iterdir():
            (path / one.name).write_bytes(one.read_bytes())
    config = json.loads((at / "config.json").read_text())
    (untied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert diff(tied, at).is_same and diff(untied, untied).is_same
    for a, b, kind in ((tied, untied, "removed"), (untied, tied, "added")):
        found = diff(a, b)
        assert not found.is_same and found.verdict == "different weights"
        (one,) = (one for one in found.tensors if one.kind != SAME)
        assert one.kind == kind and "random numbers" in one.how and {*one.a, *one.b} == {"lm_head.weight"}


def test_one_model_of_torchao_in_two_formats(tmp_path: Path) -> None:
    """Zero points of zeros are shown by their words; what the attributes stand for stays undecided."""
    quantization = pytest.importorskip("torchao.quantization")
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False)).to(torch.bfloat16)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    torch.save(model.state_dict(), tmp_path / "a.pt")
    tensors, metadata = support.flatten_tensor_state_dict(model.state_dict())
    save_file(tensors, tmp_path / "b.safetensors", metadata)
    for pair in ((tmp_path / "a.pt", tmp_path / "b.safetensors"), (tmp_path / "b.safetensors", tmp_path / "a.pt")):
        found = diff(*pair)
        assert found.verdict == "same bytes, undecided values" and not found.is_same
        assert {one.kind for one in found.tensors} == {"renamed", "undecided"}


def test_a_cast_that_leaves_codes_as_they_are(tmp_path: Path) -> None:
    """None of them has the type that was asked for."""
    codes = {"m.qweight": torch.arange(64, dtype=torch.int32).reshape(8, 8), "m.scales": torch.ones(2, 8)}
    save_file(codes, tmp_path / "a.safetensors")
    report = paramtool.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", dtype="bfloat16")
    (said,) = (one for one in report.warnings if "nothing is cast" in one)
    assert said.endswith("or keeps its own")


def test_a_base_of_codes_that_cannot_be_sampled(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"m.qweight": torch.arange(64, dtype=torch.int32).reshape(8, 8)}, tmp_path / f"{name}.safetensors")
    (one,) = paramtool.find_base(tmp_path / "a.safetensors", [tmp_path / "b.safetensors"]).candidates
    assert "can be sampled; codes" in one.why
