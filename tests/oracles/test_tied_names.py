"""transformers itself says which names its models tie, and what its configs say where they say nothing."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramtool
from paramtool.model.config import WORDS, Config, _table, version
from paramtool.passes.config_ties.declared import NamedTie, ties

transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

CLASSES = (
    "AlbertForMaskedLM", "BartForConditionalGeneration", "BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel",
    "BioGptForCausalLM", "BloomForCausalLM", "CTRLLMHeadModel", "DebertaForMaskedLM", "DistilBertForMaskedLM",
    "ElectraForMaskedLM", "FalconForCausalLM", "FunnelForMaskedLM", "GitForCausalLM", "GPT2LMHeadModel",
    "GPTNeoXForCausalLM", "LEDForConditionalGeneration", "LlamaForCausalLM", "LlavaForConditionalGeneration",
    "MambaForCausalLM", "MarianMTModel", "MBartForConditionalGeneration", "MixtralForCausalLM",
    "ModernBertForMaskedLM", "MPNetForMaskedLM", "OpenAIGPTLMHeadModel", "OPTForCausalLM",
    "PegasusForConditionalGeneration", "ProphetNetForConditionalGeneration", "Qwen2VLForConditionalGeneration",
    "RobertaForMaskedLM", "RwkvForCausalLM", "SpeechT5ForSpeechToText", "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration", "XLMWithLMHeadModel", "XLNetLMHeadModel",
)  # fmt: skip
NO_HEAD = ("GPT2Model", "LlamaModel", "BertModel", "T5EncoderModel", "BartModel")
SMALL = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
    "depth",
)
"""What the configs of different models call the number of their layers."""


def configs(config: Any) -> Iterator[Any]:
    """A config and those in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            yield from configs(value)


def built(name: str, **settings: Any) -> Any:
    """A model of two layers at most, without bytes."""
    cls = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = cls.config_class()
        for one in configs(config):
            for key in SMALL:
                if isinstance(vars(one).get(key), int):
                    setattr(one, key, min(2, getattr(one, key)))
            if isinstance(vars(one).get("layer_types"), list):
                one.layer_types = one.layer_types[:2]
            for key, value in settings.items():
                setattr(one, key, value)
        with torch.device("meta"):
            return cls(config)


def groups(pairs: Iterable[tuple[str, ...]]) -> set[frozenset[str]]:
    """Names that are linked by pairs, directly or not."""
    found: list[set[str]] = []
    for pair in pairs:
        mine = [one for one in found if not one.isdisjoint(pair)]
        found = [one for one in found if one not in mine] + [set(pair).union(*mine)]
    return {frozenset(one) for one in found if len(one) > 1}


def by_class(model: Any) -> set[frozenset[str]]:
    """What the classes tie, their submodels included."""
    return groups(model.get_expanded_tied_weights_keys(all_submodels=True).items())


def names(model: Any) -> list[str]:
    return [name for name, _ in model.named_parameters(remove_duplicate=False)]


@pytest.mark.sample(15)
@pytest.mark.parametrize("name", CLASSES)
def test_the_table_has_the_ties_of_the_class(name: str) -> None:
    """Told to tie its words, a model ties the names that the table says, and no others; by name there is none more."""
    model = built(name, tie_word_embeddings=True)
    real, mine = by_class(model), names(model)
    assert real, f"{name} ties nothing"
    config = Config("config.json", {WORDS: True}, {"": type(model.config).model_type}, name)
    assert groups(config.class_ties(mine)) == real
    assert all(any({*tie.names} <= group for group in real) for tie in ties(mine) if len(tie.names) > 1)


@pytest.mark.parametrize("name", NO_HEAD)
def test_a_model_without_a_head_has_one_name_of_that_tie(name: str) -> None:
    """Of the tie with a head there is one name, and nothing else is taken for a head."""
    heads = [tie for tie in ties(names(built(name, tie_word_embeddings=True))) if tie.kind == "head"]
    assert [len(tie.names) for tie in heads] == [1]


def test_the_table_is_of_the_newest_version_that_the_tests_allow() -> None:
    """So the test below is not skipped for years: a new bound asks for docs/make_tie_table.py."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    bound = re.search(r'"transformers>=5,<5\.(\d+)"', project)
    assert bound and f"5.{int(bound[1]) - 1}" == version()


@pytest.mark.slow
def test_what_transformers_takes_where_a_config_is_silent() -> None:
    """The table of defaults is that of the version it names."""
    if not transformers.__version__.startswith(f"{version()}."):
        pytest.skip(f"transformers is {transformers.__version__}; the table is of {version()}")
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for model_type in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config = transformers.AutoConfig.for_model(model_type)
        except Exception:  # a few want arguments, or a library that is not there
            continue
        if isinstance(value := getattr(config, "tie_word_embeddings", None), bool):
            found[value].add(model_type)
    assert found == {True: set(_table()["tied"]), False: set(_table()["untied"])}


def saved(folder: Path, tie: bool, said: bool | None) -> Path:
    """A GPT-2 that is tied or not, with all its names, and a config that says so, the contrary, or nothing."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_positions=8, n_embd=8, n_layer=1, n_head=2,
                                     bos_token_id=0, eos_token_id=1, tie_word_embeddings=tie)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    assert (model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()) is tie
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    written = json.loads(config.to_json_string())
    written = {key: value for key, value in written.items() if key != "tie_word_embeddings"}
    (folder / "config.json").write_text(json.dumps(written | ({} if said is None else {"tie_word_embeddings": said})))
    return folder


@pytest.mark.parametrize(
    ("tie", "said", "result"),
    [
        (True, True, "tied"), (True, False, "shared-though-denied"), (True, None, "tied"),
        (False, False, "apart"), (False, True, "diverged"), (False, None, "diverged"),
    ],
)  # fmt: skip
def test_a_real_model_against_its_config(tie: bool, said: bool | None, result: str, tmp_path: Path) -> None:
    """The file's memory is what the model's was, and the difference is what torch computes."""
    found = paramtool.inspect(saved(tmp_path, tie, said), config="")
    (row,) = found.config.rows
    assert (row.tie, row.result) == (NamedTie("head", ("transformer.wte.weight", "lm_head.weight")), result)
    assert ("gpt2" in row.because) is (said is None)
    if result == "diverged":
        state = torch.load(tmp_path / "pytorch_model.bin")
        apart = (state["transformer.wte.weight"].double() - state["lm_head.weight"].double()).abs().max()
        assert row.largest == apart.item()


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "BartForConditionalGeneration", "BertForMaskedLM"])
def test_what_save_pretrained_writes_is_as_declared(name: str, tmp_path: Path) -> None:
    """A folder as transformers writes it: nothing to find fault with, one name of each tie stored."""
    settings = {
        "T5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_heads": 2},
        "Bart": {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_attention_heads": 2,
                 "decoder_attention_heads": 2, "max_position_embeddings": 8},
        "Bert": {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "max_position_embeddings": 8},
    }  # fmt: skip
    cls = getattr(transformers, name)
    sizes = next(value for key, value in settings.items() if name.startswith(key))
    small = {key: 1 for key in SMALL if hasattr(cls.config_class(), key) and key not in ("depth",)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = cls.config_class(vocab_size=40, bos_token_id=0, eos_token_id=1, **sizes | small)
        cls(config).save_pretrained(tmp_path)
    found = paramtool.inspect(tmp_path, config="")
    assert found.config.rows
    assert {row.result for row in found.config.rows} == {"tied"}
    assert {row.says for row in found.config.rows} == {True}
