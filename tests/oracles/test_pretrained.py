"""Folders of transformers: what `from_pretrained` makes of an output, bit for bit what it makes of the input.

The models are built from small configs; nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import paramtool
import paramtool.torch
from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import export as export_command
from paramtool.commands import verify as verify_command
from paramtool.commands.output.sidecars import MAX_NAMED
from paramtool.errors import OutputError, UsageError
from tests.hostile.command import quick
from tests.laws.sharing import raw

IDS = torch.arange(12).reshape(2, 6)
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Family:
    """A small model of transformers."""

    model: Any
    config: Any
    sizes: dict[str, Any]
    layers: tuple[str, str]
    """Two layers, as the names of their parameters begin."""
    tied: tuple[str, ...] = ()
    """Names that the model ties to its embedding."""

    def make(self) -> Any:
        """The model with random weights, and with its two layers equal, as fresh copies are."""
        torch.manual_seed(0)
        made = self.model(self.config(**self.sizes, **SPECIAL)).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_()
            state = made.state_dict()
            for name, tensor in state.items():
                if name.startswith(self.layers[0]):
                    state[self.layers[1] + name.removeprefix(self.layers[0])].copy_(tensor)
        return made


GPT2 = {"n_layer": 2, "n_embd": 48, "n_head": 4, "vocab_size": 64, "n_positions": 16}
BERT = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64,
        "max_position_embeddings": 16}  # fmt: skip
T5 = {"num_layers": 2, "d_model": 48, "d_kv": 12, "num_heads": 4, "d_ff": 64, "vocab_size": 64,
      "decoder_start_token_id": 0}  # fmt: skip
LLAMA = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64,
         "max_position_embeddings": 16}  # fmt: skip
GPT2_LAYERS = ("transformer.h.0.", "transformer.h.1.")
BERT_LAYERS = ("bert.encoder.layer.0.", "bert.encoder.layer.1.")
LLAMA_LAYERS = ("model.layers.0.", "model.layers.1.")
FAMILIES = {
    "gpt2 tied": Family(transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2, GPT2_LAYERS, (HEAD,)),
    "gpt2 untied": Family(transformers.GPT2LMHeadModel, transformers.GPT2Config,
                          {**GPT2, "tie_word_embeddings": False}, GPT2_LAYERS),
    "bert with its head": Family(transformers.BertForMaskedLM, transformers.BertConfig, BERT, BERT_LAYERS,
                                 ("cls.predictions.decoder.weight",)),
    "bert without": Family(transformers.BertModel, transformers.BertConfig, BERT,
                           ("encoder.layer.0.", "encoder.layer.1.")),
    "t5": Family(transformers.T5ForConditionalGeneration, transformers.T5Config, T5,
                 ("encoder.block.0.layer.1.", "encoder.block.1.layer.1."),
                 (HEAD, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")),
    "llama tied": Family(transformers.LlamaForCausalLM, transformers.LlamaConfig,
                         {**LLAMA, "tie_word_embeddings": True}, LLAMA_LAYERS, (HEAD,)),
    "llama untied": Family(transformers.LlamaForCausalLM, transformers.LlamaConfig,
                           {**LLAMA, "tie_word_embeddings": False}, LLAMA_LAYERS),
}  # fmt: skip


def tokenizer() -> Any:
    """A tokenizer of sixty words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{k}": k for k in range(60)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", pad_token="w0")


def saved(model: Any, folder: Path, **options: Any) -> Path:
    """A model and its tokenizer as transformers writes them."""
    model.save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)
    return folder


def outputs(model: Any) -> list[bytes]:
    """What a model computes of fixed tokens, as bytes."""
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found = model.eval()(input_ids=IDS, **more)
    return [raw(found[key]) for key in ("logits", "last_hidden_state") if key in found]


def opened(model: Any, folder: Path) -> tuple[Any, dict[str, set[str]]]:
    """The model that `from_pretrained` makes of a folder, and the names that it complains of."""
    found, info = type(model).from_pretrained(folder, output_loading_info=True)
    return found, {key: set(names) for key, names in info.items() if names}


@pytest.fixture(params=FAMILIES, scope="module")
def family(request: pytest.FixtureRequest) -> Family:
    """Each of them."""
    return FAMILIES[request.param]


@pytest.fixture(params=[{}, {"max_shard_size": "60KB"}], ids=["one file", "shards"])
def folder(request: pytest.FixtureRequest, family: Family, tmp_path: Path) -> tuple[Any, Path]:
    """A model, and the folder that it was saved in."""
    model = family.make()
    return model, saved(model, tmp_path / "in", **request.param)


def everything_is_there(model: Any, folder: Path, source: Path) -> None:
    """The same outputs, nothing missing or unexpected, and the files beside the weights as they were."""
    found, complaints = opened(model, folder)
    assert complaints == {}
    assert outputs(found) == outputs(model) != []
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert words("w3 w7 w59")["input_ids"] == [3, 7, 59]
    others = {path.name for path in source.iterdir() if path.suffix != ".safetensors" and "index" not in path.name}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= others
    assert all((folder / name).read_bytes() == (source / name).read_bytes() for name in others)


@pytest.mark.sample(7)
def test_a_folder_opens_as_before(folder: tuple[Any, Path], tmp_path: Path) -> None:
    """Every name is stored, equal ones too: `from_pretrained` sees no difference."""
    model, source = folder
    assert dedup_command.dedup(source, tmp_path / "out").repeated_nbytes > 0
    everything_is_there(model, tmp_path / "out", source)


@pytest.mark.sample(7)
def test_the_warning_names_what_from_pretrained_misses(folder: tuple[Any, Path], tmp_path: Path) -> None:
    """Equal layers stand once: the names of the other are those that stock transformers would fill with noise."""
    model, source = folder
    found = dedup_command.dedup(source, tmp_path / "out", share_renamed=True)
    _, complaints = opened(model, tmp_path / "out")
    assert complaints.keys() == {"missing_keys"}
    (warning,) = found.warnings
    count = len(complaints["missing_keys"])
    shown = sum(repr(name) in warning for name in complaints["missing_keys"])
    assert warning.startswith(f"{count} of ") and shown == min(count, MAX_NAMED)
    assert complaints["missing_keys"] == {a.name for a in found.plan.aliases if a.set_evidence != "config"}


@pytest.mark.sample(5)
def test_export_of_all_names(folder: tuple[Any, Path], tmp_path: Path) -> None:
    """By the command that the warning says."""
    model, source = folder
    warning = dedup_command.dedup(source, tmp_path / "out", share_renamed=True).warnings[0]
    ran = quick(*warning.rpartition("paramtool ")[2].split(), cwd=tmp_path)
    assert ran.code == 0, ran
    everything_is_there(model, tmp_path / "out.plain", source)


@pytest.mark.sample(5)
def test_export_of_the_names_of_the_model(family: Family, folder: tuple[Any, Path], tmp_path: Path) -> None:
    """Tied names that transformers did not save are there, too: programs that know no tie read the file."""
    model, source = folder
    dedup_command.dedup(source, tmp_path / "out", share_renamed=True)
    state = model.state_dict()
    first: dict[int, str] = {}
    ties = {name: first.setdefault(tensor.data_ptr(), name) for name, tensor in state.items()}
    assert {name for name in state if ties[name] != name or list(ties.values()).count(name) > 1} >= set(family.tied)
    export_command.export(tmp_path / "out", tmp_path / "plain", names=state, ties=ties)
    everything_is_there(model, tmp_path / "plain", source)
    stored: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "plain").glob("*.safetensors"):
        stored |= load_file(path)
    assert {name: raw(tensor) for name, tensor in stored.items()} == {n: raw(t) for n, t in state.items()}


@pytest.mark.sample(3)
def test_export_of_the_keys_of_a_config(folder: tuple[Any, Path], tmp_path: Path) -> None:
    """The same by the config alone: of the folder itself, and of another place."""
    model, source = folder
    dedup_command.dedup(source, tmp_path / "out", share_renamed=True)
    ran = quick("export", "out", "--config", "out", "-o", "plain", cwd=tmp_path)
    assert ran.code == 0, ran
    everything_is_there(model, tmp_path / "plain", source)
    args = ("export", "out", "--config", "in/config.json", "-o", "plain.safetensors", "--json")
    ran = quick(*args, cwd=tmp_path)
    assert ran.code == 0 and set(json.loads(ran.out)["names"]) == set(model.state_dict()), ran


# --- variants --------------------------------------------------------------------------------------------------------


def variant(source: Path, out: Path, model: Any, tmp_path: Path, *args: str) -> None:
    """`export` with the names of another model's config gives what that model opens."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path / "other")
    more = ("--config", "other/config.json", "-o", str(out), *args)
    ran = quick("export", str(source), *more, cwd=tmp_path)
    assert ran.code == 0, ran
    model.config.save_pretrained(out)
    found, complaints = opened(model, out)
    assert complaints == {}
    model.load_state_dict({name: found.state_dict()[name] for name in model.state_dict()})


def same_numbers(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    """Whether two encoders compute the same hidden states."""
    with torch.no_grad():
        return raw(a(input_ids=IDS).last_hidden_state) == raw(b(input_ids=IDS).last_hidden_state)


def test_the_body_of_a_model_with_a_head(tmp_path: Path) -> None:
    """A prefix makes a GPT2Model of a GPT2LMHeadModel's folder."""
    model = FAMILIES["gpt2 tied"].make()
    dedup_command.dedup(saved(model, tmp_path / "in"), tmp_path / "small", share_renamed=True)
    body = transformers.GPT2Model(transformers.GPT2Config(**GPT2, **SPECIAL)).eval()
    variant(tmp_path / "small", tmp_path / "body", body, tmp_path, "--prefix", "transformer.")
    assert same_numbers(body, model.transformer)


def test_the_encoder_of_a_t5(tmp_path: Path) -> None:
    """T5's encoder alone: its embedding is saved under the name of the decoder's partner."""
    model = FAMILIES["t5"].make()
    dedup_command.dedup(saved(model, tmp_path / "in"), tmp_path / "small", share_renamed=True)
    encoder = transformers.T5EncoderModel(transformers.T5Config(**T5, **SPECIAL)).eval()
    variant(tmp_path / "small", tmp_path / "encoder", encoder, tmp_path)
    assert same_numbers(encoder, model.get_encoder())


def test_a_model_that_does_not_tie(tmp_path: Path) -> None:
    """A tied GPT-2's folder, with the head written out for a config that unties it."""
    model = FAMILIES["gpt2 tied"].make()
    torch.save(model.state_dict(), tmp_path / "all.pt")
    dedup_command.dedup(tmp_path / "all.pt", tmp_path / "small.safetensors")
    untied = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **SPECIAL, tie_word_embeddings=False)).eval()
    paramtool.export(
        tmp_path / "small.safetensors", tmp_path / "plain", names=untied.state_dict(), max_shard_size=100_000
    )
    untied.config.save_pretrained(tmp_path / "plain")
    found, complaints = opened(untied, tmp_path / "plain")
    assert complaints == {} and outputs(found) == outputs(model)
    assert found.lm_head.weight.data_ptr() != found.transformer.wte.weight.data_ptr()


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], set[str]]:
    """The parameters that a Llama has from a folder, and what it missed there."""
    model, told = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    return model.state_dict(), set(told["missing_keys"])


@pytest.mark.parametrize("said", [{"tie_word_embeddings": False}, {}], ids=["denied", "not said"])
def test_what_only_the_file_shares_is_stored_for_itself(said: dict[str, bool], tmp_path: Path) -> None:
    """A head on the embedding's storage, in a model that does not tie them: it would be missing, and made at random."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **SPECIAL, tie_word_embeddings=False))
    model.lm_head.weight = model.model.embed_tokens.weight
    for name in ("one", "two"):
        model.config.save_pretrained(tmp_path / name)
        torch.save(model.state_dict(), tmp_path / name / "pytorch_model.bin")
        config = json.loads((tmp_path / name / "config.json").read_text())
        del config["tie_word_embeddings"]
        (tmp_path / name / "config.json").write_text(json.dumps(config | said))
    expected, missing = outcome(tmp_path / "one")
    assert missing == set()
    report = dedup_command.dedup(tmp_path / "one", tmp_path / "out", min_equal_bytes=1)
    dedup_many.dedup_family([tmp_path / "one", tmp_path / "two"], tmp_path / "family", min_equal_bytes=1)
    assert any(f"{HEAD!r}" in warning and "no longer shares memory" in warning for warning in report.warnings)
    for folder in ("out", "family/one", "family/two"):
        found, missing = outcome(tmp_path / folder)
        assert missing == set(), folder
        assert {n: raw(t) for n, t in found.items()} == {n: raw(t) for n, t in expected.items()}, folder


TIED = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig, BERT),
}


@pytest.mark.parametrize("name", TIED)
def test_the_names_that_save_pretrained_dropped(name: str, tmp_path: Path) -> None:
    """A tied model saved with one name of each tensor serves its untied variant: the config beside it has its ties."""
    kind, config, sizes = TIED[name]
    torch.manual_seed(0)
    tied = kind(config(**sizes, **SPECIAL, tie_word_embeddings=True)).eval()
    tied.save_pretrained(tmp_path / "tied")
    untied = kind(config(**sizes, **SPECIAL, tie_word_embeddings=False)).eval()
    untied.config.architectures = [kind.__name__]
    untied.config.save_pretrained(tmp_path / "untied")
    lacking = quick("variants", "tied", "--against", "untied", "--config", "none", cwd=tmp_path)
    assert lacking.code == 1 and "--config" in lacking.out
    assert quick("variants", "tied", "--against", "untied", cwd=tmp_path).code == 0

    ran = quick("dedup", "tied", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert quick("variants", "out", "--against", "untied", "--against", "tied", cwd=tmp_path).code == 0
    assert quick("verify", "out", "--against", "tied", cwd=tmp_path).code == 0
    expected = {name: raw(tensor) for name, tensor in tied.state_dict().items()}
    for source in ("tied", "out"):
        for parameter in untied.parameters():
            torch.nn.init.zeros_(parameter)
        paramtool.torch.load_model(untied, tmp_path / source)
        assert {name: raw(tensor) for name, tensor in untied.state_dict().items()} == expected
    assert untied.get_output_embeddings().weight is not untied.get_input_embeddings().weight
    exported = quick("export", "out", "--config", "untied", "-o", "plain", cwd=tmp_path)
    assert exported.code == 0, exported.err
    assert (tmp_path / "plain/config.json").read_text() == (tmp_path / "untied/config.json").read_text()
    for folder, missing in (("out", None), ("plain", set())):
        model, told = kind.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert missing is None or set(told["missing_keys"]) == missing
        assert {name: raw(tensor) for name, tensor in model.state_dict().items()} == expected


def test_ties_need_a_place(tmp_path: Path) -> None:
    """A training checkpoint has no one model to put names into: `--only` says which."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **SPECIAL))
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(tmp_path)
    state = {n: t for n, t in model.state_dict().items() if n != HEAD}
    torch.save({"model": state, "step": 3}, tmp_path / "training.pt")
    asked = ("dedup", "training.pt", "-o", "out.safetensors")
    assert quick(*asked, cwd=tmp_path).code == 0
    assert not any(HEAD in name for name in paramtool.load_file(tmp_path / "out.safetensors"))
    absent = quick("dedup", "training.pt", "--config", "absent.json", "--only", "model", cwd=tmp_path)
    assert absent.code == 2 and "absent.json" in absent.err, "the one beside it was not asked for"
    assert quick(*asked, "--only", "model", "--force", cwd=tmp_path).code == 0
    assert HEAD in paramtool.load_file(tmp_path / "out.safetensors")
    assert quick(*asked, "--only", "model", "--force", "--config", "none", cwd=tmp_path).code == 0
    assert HEAD not in paramtool.load_file(tmp_path / "out.safetensors", config="none")


# --- ties that a folder holds twice ----------------------------------------------------------------------------------


def pickled(model: Any, folder: Path, together: bool, first: str = "") -> Path:
    """A folder of two pickles and their index: tied names in one file, sharing memory, or one in each.

    transformers 4 wrote such folders; transformers 5 writes no pickles.
    """
    state = model.state_dict()
    memory: dict[int, list[str]] = {}
    for name, tensor in state.items():
        memory.setdefault(tensor.data_ptr(), []).append(name)
    (tied,) = [names for names in memory.values() if len(names) > 1]
    one = tied if together else [first or tied[-1]]
    parts = [one, [name for name in state if name not in one]]
    folder.mkdir()
    model.config.save_pretrained(folder)
    weight_map = {}
    for k, names in enumerate(parts):
        file = f"pytorch_model-0000{k + 1}-of-00002.bin"
        torch.save({name: state[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


TIED_KEYS = ["gpt2 tied", "llama tied"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", ["together", "head first", "embeddings first"])
@pytest.mark.parametrize("key", TIED_KEYS)
def test_a_tied_pickle_in_shards_is_stored_once(key: str, how: str, tmp_path: Path) -> None:
    """`from_pretrained` finds every name by the tie, computes the same, and complains of nothing."""
    family = FAMILIES[key]
    made = family.model(family.config(**family.sizes, **SPECIAL)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    head = family.tied[0]
    embeddings = next(n for n, t in made.state_dict().items() if t.data_ptr() == made.state_dict()[head].data_ptr())
    source = pickled(made, tmp_path / "in", how == "together", head if how == "head first" else embeddings)
    found = dedup_command.dedup(source, tmp_path / "out")
    assert found.repeated_nbytes == 0 and found.warnings == ()
    stored = {name for path in (tmp_path / "out").glob("*.safetensors") for name in load_file(path)}
    assert len({head, embeddings} & stored) == 1
    if how != "together":
        assert embeddings in stored and found.tied == ((embeddings, head),)
    opened_model, complaints = opened(made, tmp_path / "out")
    assert complaints == {} and outputs(opened_model) == outputs(opened(made, source)[0]) == outputs(made)
    assert verify_command.verify(tmp_path / "out", source).differences == ()
    again = dedup_command.dedup(tmp_path / "out", tmp_path / "again")
    assert again.repeated_nbytes == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert all((tmp_path / "out" / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)


def test_names_that_no_config_ties_are_stored_twice(tmp_path: Path) -> None:
    """The row says why, and which flag stores them once."""
    family = FAMILIES["llama tied"]
    model = family.model(family.config(**family.sizes, **SPECIAL))
    source = pickled(model, tmp_path / "in", together=False)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    ran = quick("dedup", "in", "-o", "out", "--min-equal-bytes", "1", cwd=tmp_path)
    assert ran.code == 0 and "stored again" in ran.out and "--share-renamed" in ran.out, ran
    stored = {name for path in (tmp_path / "out").glob("*.safetensors") for name in load_file(path)}
    assert {HEAD, "model.embed_tokens.weight"} <= stored


def test_the_config_in_python(tmp_path: Path) -> None:
    """`config` is the flag of this name, and the one beside the input without it; `names` takes a path, too."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **SPECIAL)).eval()
    model.save_pretrained(tmp_path / "in")
    for k, config in enumerate((None, tmp_path / "in", tmp_path / "in/config.json")):
        found = paramtool.dedup(tmp_path / "in", tmp_path / f"out{k}", config=config)
        assert HEAD in found.plan.order
        exported = paramtool.export(tmp_path / f"out{k}", tmp_path / f"plain{k}", config=config)
        assert set(exported.names) == set(model.state_dict())
    assert HEAD not in paramtool.dedup(tmp_path / "in", tmp_path / "none", config="none").plan.order
    for function, word in (
        (paramtool.dedup, "ties_from_config"),
        (paramtool.export, "keys_from_config"),
        (paramtool.export, "max_bytes"),
    ):
        with pytest.raises(UsageError, match=f"{word} is replaced"):
            function(tmp_path / "in", tmp_path / "x", **{word: ""})
    with pytest.raises(UsageError, match="leave out ties"):
        paramtool.export(tmp_path / "in", tmp_path / "x", config=tmp_path / "in", ties={HEAD: HEAD})
    (tmp_path / "names.txt").write_text(f"{HEAD}\n")
    paramtool.export(tmp_path / "out0", tmp_path / "head.safetensors", names=tmp_path / "names.txt")
    assert list(load_file(tmp_path / "head.safetensors")) == [HEAD]
    with pytest.raises(OutputError, match=r"names\.txt"):
        paramtool.export(tmp_path / "out0", tmp_path / "names.txt", names=tmp_path / "names.txt", force=True)
