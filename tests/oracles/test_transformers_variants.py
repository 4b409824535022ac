"""Real models, built by transformers from small configs: what the configs say, what loads, and the same logits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, ParamtoolError, TieError, UnsafeError, UsageError
from paramtool.torch import load_model, names_from_config
from paramtool.torch.transformers_models import _of_class, _values
from tests.examples import IS_EVERY_MODEL
from tests.hostile.command import command, quick
from tests.laws.sharing import partition

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 20, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model of transformers."""

    architecture: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)

    def configuration(self) -> Any:
        """The config, with the architecture's name in it as save_pretrained writes it."""
        config = getattr(transformers, self.config)(**self.options)
        config.architectures = [self.architecture]
        return config

    def build(self, seed: int = 0) -> nn.Module:
        """The model, with values of its own wherever transformers puts zeros and ones."""
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, self.architecture)(self.configuration())
        model.tie_weights()  # type: ignore[operator]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        return model.eval()


CASES = {
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2 untied": Case("GPT2LMHeadModel", "GPT2Config", GPT2 | {"tie_word_embeddings": False}),
    "llama": Case("LlamaForCausalLM", "LlamaConfig", SMALL | {"tie_word_embeddings": False}),
    "llama tied": Case("LlamaForCausalLM", "LlamaConfig", SMALL | {"tie_word_embeddings": True}),
    "bert": Case("BertForMaskedLM", "BertConfig", SMALL),
    "t5": Case("T5ForConditionalGeneration", "T5Config", T5),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def logits(model: nn.Module) -> torch.Tensor:
    """What a model makes of a few tokens."""
    tokens = {"input_ids": torch.arange(1, 9).view(1, 8)}
    if model.config.is_encoder_decoder:  # type: ignore[union-attr]
        tokens["decoder_input_ids"] = torch.arange(1, 5).view(1, 4)
    with torch.no_grad():
        found: torch.Tensor = model(**tokens).logits
    return found


def config_of(case: Case, folder: Path, **changes: Any) -> Path:
    """Its config.json, as transformers writes it, with changes."""
    folder.mkdir(exist_ok=True)
    data = json.loads(case.configuration().to_json_string(use_diff=False)) | changes
    (folder / "config.json").write_text(json.dumps(data))
    return folder / "config.json"


def deduped(model: nn.Module, folder: Path) -> Path:
    """A model's state dict, saved by torch and deduplicated."""
    torch.save(model.state_dict(), folder / "m.pt")
    paramtool.dedup(folder / "m.pt", folder / "m.dedup.safetensors", force=True)
    return folder / "m.dedup.safetensors"


@EVERY
def test_names_shapes_and_ties_of_a_config(case: Case, tmp_path: Path) -> None:
    """Those of the model that transformers builds with weights, whose ties are addresses."""
    model = case.build()
    found = names_from_config(config_of(case, tmp_path))
    state = model.state_dict()
    assert {name: shape for name, (shape, _) in found.items()} == {n: tuple(t.shape) for n, t in state.items()}
    groups: dict[str, set[str]] = {}
    for name, (_, tie) in found.items():
        groups.setdefault(tie, set()).add(name)
    assert all(tie in names for tie, names in groups.items())
    addresses: dict[int, set[str]] = {}
    for name, tensor in state.items():
        addresses.setdefault(tensor.data_ptr(), set()).add(name)
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, addresses.values()))
    assert names_from_config(tmp_path) == found


@pytest.mark.sample(6)
@EVERY
@pytest.mark.parametrize("how", ["copy", "assign", "meta", "meta assign"])
def test_logits_are_equal_bit_for_bit(case: Case, how: str, tmp_path: Path) -> None:
    """A model saved, deduplicated, and loaded into a fresh one; on the meta device, what is not in files is named."""
    source = case.build()
    path = deduped(source, tmp_path)
    target = case.build(seed=1)
    assert not torch.equal(logits(source), logits(target))
    buffers = {name: tensor.clone() for name, tensor in target.named_buffers()}
    if "meta" in how:
        with torch.device("meta"):
            target = getattr(transformers, case.architecture)(case.configuration()).eval()
        target.tie_weights()
    assert paramtool.torch.variants(target, path)[0].loads
    loaded = load_model(target, path, assign="assign" in how)
    persistent = target.state_dict().keys()
    assert set(loaded.on_meta) == ({name for name in buffers if name not in persistent} if "meta" in how else set())
    for name in loaded.on_meta:  # what its class computes
        module, _, attribute = name.rpartition(".")
        target.get_submodule(module).register_buffer(attribute, buffers[name], persistent=False)
    assert torch.equal(logits(source), logits(target))
    assert partition(target.state_dict()) == partition(source.state_dict())


@pytest.mark.parametrize(("tied", "untied"), [("gpt2", "gpt2 untied"), ("llama tied", "llama")])
def test_tied_and_untied_variants(tied: str, untied: str, tmp_path: Path) -> None:
    """The tied file serves both; the untied one cannot be tied, and both `variants` and `load_model` say so."""
    models = {name: CASES[name].build(seed) for seed, name in enumerate((tied, untied))}
    configs = {name: config_of(CASES[name], tmp_path / name.replace(" ", "_")) for name in (tied, untied)}
    path = deduped(models[tied], tmp_path)
    found = paramtool.variants(path, list(configs.values()))
    assert [(variant.kind, variant.verdict) for variant in found] == [("config", "loads through aliases")] * 2
    load_model(models[untied], path)
    assert torch.equal(logits(models[tied]), logits(models[untied]))
    optimizer = torch.optim.SGD(models[untied].parameters(), lr=0.1)
    models[untied](input_ids=torch.arange(1, 9).view(1, 8)).logits.square().mean().backward()
    optimizer.step()
    head, embedding = models[untied].get_output_embeddings(), models[untied].get_input_embeddings()  # type: ignore[operator]
    assert not torch.equal(head.weight, embedding.weight)
    path = deduped(models[untied], tmp_path)
    (variant,) = paramtool.variants(path, [configs[tied]])
    assert len(variant.apart) == 1 and variant.apart[0].difference == pytest.approx(
        (head.weight - embedding.weight).abs().max().item()
    )
    with pytest.raises(TieError):
        load_model(models[tied], path)


def test_an_encoder_is_a_part_of_the_file(tmp_path: Path) -> None:
    """T5's encoder alone: its names are in the file, and only the decoder's are left unused."""
    source = CASES["t5"].build()
    path = deduped(source, tmp_path)
    encoder = Case("T5EncoderModel", "T5Config", T5)
    (variant,) = paramtool.variants(path, [config_of(encoder, tmp_path / "encoder")])
    assert variant.loads and all(name.startswith("decoder.") for name in variant.unused) and variant.unused
    target = encoder.build(seed=1)
    load_model(target, path, strict=False)
    with torch.no_grad():
        outputs = [model.encoder(torch.arange(1, 9).view(1, 8))[0] for model in (source, target)]  # type: ignore
    assert torch.equal(*outputs)


def test_a_headless_model_is_told_its_prefix(tmp_path: Path) -> None:
    """BERT without its head, and with a pooler that the file lacks: most names are there behind `bert.`."""
    bert = CASES["bert"].build()
    path = deduped(bert, tmp_path)
    headless = Case("BertModel", "BertConfig", SMALL)
    (variant,) = paramtool.variants(path, [config_of(headless, tmp_path / "headless")])
    assert "prefix='bert.'" in variant.advice and not variant.loads
    target = transformers.BertModel(headless.configuration(), add_pooling_layer=False).eval()
    load_model(target, path, prefix="bert")
    with torch.no_grad():
        outputs = [model(torch.arange(1, 9).view(1, 8))[0] for model in (bert.bert, target)]  # type: ignore
    assert torch.equal(*outputs)


def test_a_folder_of_save_pretrained(tmp_path: Path) -> None:
    """Its weights are a checkpoint, and its config.json is a config: both load what transformers wrote."""
    model = CASES["gpt2"].build()
    model.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    found = paramtool.variants(tmp_path / "hf", [tmp_path / "hf", tmp_path / "hf/config.json"])
    assert [(variant.kind, variant.verdict) for variant in found] == [
        ("checkpoint", "loads through aliases"), ("config", "loads through aliases"),
    ]  # fmt: skip
    assert [[one.name for one in variant.through] for variant in found] == [["lm_head.weight"]] * 2


MIXTRAL = Case("MixtralForCausalLM", "MixtralConfig", SMALL | {"num_local_experts": 2})


def test_a_model_that_is_saved_under_other_names(tmp_path: Path) -> None:
    """A Mixtral's experts are one tensor in the model and many in files: both are known, and which it was is said."""
    model = MIXTRAL.build()
    model.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    (variant,) = paramtool.variants(tmp_path / "hf", [tmp_path / "hf/config.json"])
    assert variant.loads and "save_pretrained" in variant.advice
    assert variant.names == len(paramtool.read(tmp_path / "hf").entries) > len(model.state_dict())
    (variant,) = paramtool.variants(deduped(model, tmp_path), [tmp_path / "hf/config.json"])
    assert variant.loads and not variant.advice and variant.names == len(model.state_dict())
    torch.save({"w": torch.ones(2)}, tmp_path / "other.pt")
    (variant,) = paramtool.variants(tmp_path / "other.pt", [tmp_path / "hf/config.json"])
    assert len(variant.lacks) == variant.names == len(model.state_dict())


# --- configs that from_pretrained opens ------------------------------------------------------------------------------


def llava() -> nn.Module:
    """`vision_feature_layer` is the index of a layer, -2 by default."""
    vision = transformers.CLIPVisionConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                           num_attention_heads=2, image_size=8, patch_size=4)  # fmt: skip
    config = transformers.LlavaConfig(vision_config=vision, text_config=transformers.LlamaConfig(**SMALL))
    assert config.vision_feature_layer == -2
    return transformers.LlavaForConditionalGeneration(config)


def mamba2() -> nn.Module:
    """`time_step_limit` ends at infinity, for which JSON has no word."""
    return transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_heads=4, head_dim=8, n_groups=1,
            state_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def part_of_a_whole() -> nn.Module:
    """Llama 4's text model has the config of the whole beside it, as on the Hub: `text_config` is its own."""
    text = transformers.Llama4TextConfig(**SMALL, intermediate_size_mlp=24, num_local_experts=2, head_dim=8)
    return transformers.Llama4ForCausalLM(text)


def doge() -> nn.Module:
    """16,384 experts are no wrong number."""
    return transformers.DogeForCausalLM(transformers.DogeConfig(**SMALL, num_experts=16384))


OPENS: dict[str, tuple[Callable[[], nn.Module], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "an index": (llava, lambda config: config),
    "infinity": (mamba2, lambda config: config),
    "many experts": (doge, lambda config: config),
    "a sister's type": (CASES["gpt2"].build, lambda config: config | {"model_type": "gpt-sw3"}),
    "a whole's type": (
        part_of_a_whole,
        lambda config: {"model_type": "llama4", "architectures": config["architectures"], "text_config": config},
    ),
}
"""{what is special about it: the model, and what its config.json becomes}."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", OPENS)
def test_a_config_that_from_pretrained_opens(name: str, tmp_path: Path) -> None:
    """The names and shapes are those that it opens; `variants` and both flags that build the model take it, too."""
    make, change = OPENS[name]
    model = make()
    model.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    path = tmp_path / "hf/config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    found, told = type(model).from_pretrained(tmp_path / "hf", output_loading_info=True)  # type: ignore[attr-defined]
    assert not any(told.values())
    shapes = {name: tuple(tensor.shape) for name, tensor in found.state_dict().items()}
    assert {name: shape for name, (shape, _) in names_from_config(path).items()} == shapes
    ran = quick("variants", "hf", "--against", "hf/config.json", cwd=tmp_path)
    assert ran.code == 0 and "cannot load" not in ran.out, ran
    for word in ("dedup", "export"):
        ran = quick(word, "hf", "--config", "hf", "-o", word, cwd=tmp_path)
        assert ran.code == 0, ran
        _, told = type(model).from_pretrained(tmp_path / word, output_loading_info=True)  # type: ignore[attr-defined]
        assert not any(told.values())


def pairs() -> list[tuple[str, str]]:
    """What transformers' own tables pair: model types with classes whose config is of another type."""
    auto = transformers.models.auto.modeling_auto
    tables = [table for name, table in vars(auto).items() if name.endswith("_MAPPING_NAMES")]
    each = {(kind, one) for table in tables for kind, found in table.items()
            for one in ([found] if isinstance(found, str) else found)}  # fmt: skip
    found = []
    for kind, name in sorted(each):
        try:
            own = getattr(transformers, name).config_class.model_type
        except (AttributeError, ImportError):  # a table's word that is no class, a library that is not there
            continue
        found += [(kind, name)] if own != kind else []
    return found


@pytest.mark.skipif(not IS_EVERY_MODEL, reason="imports every model; make oracles")
def test_every_pair_of_transformers_own_tables_is_taken() -> None:
    """No config is refused for a `model_type` that transformers itself puts beside the class."""
    found = pairs()
    assert len(found) > 30
    for kind, name in found:
        try:
            config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]()
        except Exception:  # a few want arguments
            continue
        chosen, values = _of_class("config.json", json.loads(config.to_json_string(use_diff=False)),
                                   getattr(transformers, name), transformers)  # fmt: skip
        assert chosen.model_type in (kind, getattr(transformers, name).config_class.model_type)
        chosen.from_dict(_values(values))


# --- configs that are wrong ------------------------------------------------------------------------------------------


def broken(**changes: Any) -> Callable[[Path], Path]:
    return lambda folder: config_of(CASES["gpt2"], folder, **changes)


def text(data: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "config.json").write_text(data)
        return folder / "config.json"

    return write


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (broken(architectures=None), UsageError, "which model"),
        (broken(architectures=[]), UsageError, "which model"),
        (broken(architectures="GPT2LMHeadModel"), UsageError, "which model"),
        (broken(architectures=["BertForMaskedLM"]), FormatError, "contradicts itself.*'gpt2'.*'bert'"),
        (broken(architectures=["MyModel"]), FormatError, "'MyModel' is not a model of transformers"),
        (broken(architectures=["os.system"]), FormatError, "not a model"),
        (broken(architectures=["pipeline"]), FormatError, "not a model"),
        (broken(architectures=["PreTrainedModel"]), FormatError, "not a model"),
        (broken(architectures=["MyModel"], auto_map={"AutoModel": "m.MyModel"}), UnsafeError, "never run"),
        (broken(n_embd=17), FormatError, "cannot build GPT2LMHeadModel"),
        (broken(n_embd="many"), FormatError, "n_embd is 'many'; expected a whole number"),
        (broken(n_embd=-16), FormatError, "cannot build"),
        (broken(vocab_size=None), FormatError, "cannot build"),
        (broken(n_layer=10**9), FormatError, "'n_layer' is 1000000000"),
        (broken(activation_function="none such"), FormatError, "cannot build"),
        (broken(quantization_config={"quant_method": "gptq"}), FormatError, "quantised"),
        (text('{"a": 1, "a": 2}'), FormatError, "twice"),
        (text('{"a": '), FormatError, "not valid JSON"),
        (text("[1, 2]"), FormatError, "holds a list; expected an object"),
        (text('{"a":' * 100_000), FormatError, "not valid JSON: it is nested too deep"),
    ],
)
def test_a_wrong_config(make: Callable[[Path], Path], error: type[ParamtoolError], says: str, tmp_path: Path) -> None:
    """Each by the class of its error, with the file's name and what is wrong; on the command line, no trace."""
    path = make(tmp_path)
    with pytest.raises(error, match=says) as caught:
        names_from_config(path)
    assert str(path) in str(caught.value)
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    if path.read_text().startswith("{"):
        ran = quick("variants", "m.pt", "--against", "config.json", cwd=tmp_path)
        assert ran.code == error.exit_code and not ran.out and "config.json" in ran.err and "Traceback" not in ran.err


def test_nothing_is_downloaded_and_no_code_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known architecture beside `auto_map`, and words that name kernels and weights elsewhere: built without them."""

    def refuse(*args: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    path = config_of(
        CASES["gpt2"], tmp_path, auto_map={"AutoModelForCausalLM": "evil.Evil"}, _name_or_path="openai-community/gpt2",
        attn_implementation="kernels-community/flash-attn", _attn_implementation="kernels-community/flash-attn",
    )  # fmt: skip
    assert len(names_from_config(path)) == 29


def test_a_config_without_transformers_is_advice(tmp_path: Path) -> None:
    """Neither installed, or only torch: exit code 2 and the command that installs it."""
    config_of(CASES["gpt2"], tmp_path)
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    for name in ("torch", "transformers"):
        blocked = tmp_path / f"no_{name}"
        blocked.mkdir()
        (blocked / "sitecustomize.py").write_text(f"import sys\nsys.modules[{name!r}] = None\n")
        root = Path(paramtool.__file__).parents[1]
        ran = command("variants", "m.pt", "--against", "config.json", cwd=tmp_path,
                      env={"PYTHONPATH": f"{blocked}:{root}"})  # fmt: skip
        assert ran.code == 2 and "pip install" in ran.err and "transformers" in ran.err, ran
        assert "Traceback" not in ran.err and not ran.out
