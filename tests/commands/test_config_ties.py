"""Ties that a config declares, beside what a file stores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import paramtool
import paramtool.torch
from paramtool.errors import UsageError
from paramtool.formats import hf_config
from paramtool.model.config import Config, version
from paramtool.passes.config_ties import declared
from paramtool.passes.config_ties.declared import BROKEN, RESULTS, NamedTie, expected, ties
from tests.hostile.command import quick

WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
BERT = "bert.embeddings.word_embeddings.weight"


def folder(path: Path, state: dict[str, torch.Tensor], config: Any, *, stored: bool = False) -> Path:
    """A model's folder; `stored` keeps every tensor apart, in safetensors."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if stored:
        save_file(
            {name: tensor.clone() for name, tensor in state.items()}, path / "model.safetensors", {"format": "pt"}
        )
    else:
        torch.save(state, path / "pytorch_model.bin")
    return path


def weight(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (6, 4)), generator=torch.Generator().manual_seed(seed))


def rows(path: Path) -> list[tuple[str, ...]]:
    """(names, what the config says, the file, the result) of each row."""
    return [(row.tie.names, row.says, row.file, row.result) for row in paramtool.inspect(path, config="").config.rows]


TIED, APART, SILENT = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {}


class TestResults:
    """Each cell of the table."""

    @pytest.mark.parametrize(
        ("config", "result"), [(TIED, "tied"), (APART, "shared-though-denied"), (SILENT, "undeclared")]
    )
    def test_one_memory(self, config: Any, result: str, tmp_path: Path) -> None:
        one = weight()
        path = folder(tmp_path, {WTE: one, HEAD: one}, config)
        assert rows(path) == [((WTE, HEAD), config.get("tie_word_embeddings"), "one memory", result)]

    @pytest.mark.parametrize("config", [TIED, APART, SILENT])
    @pytest.mark.parametrize("name", [WTE])
    def test_one_name(self, config: Any, name: str, tmp_path: Path) -> None:
        assert rows(folder(tmp_path, {name: weight()}, config))[0][2:] == ("one name", "one-name")

    @pytest.mark.parametrize(
        ("config", "result"), [(TIED, "equal-not-tied"), (APART, "equal-though-denied"), (SILENT, "undeclared-equal")]
    )
    def test_equal_bytes(self, config: Any, result: str, tmp_path: Path) -> None:
        path = folder(tmp_path, {WTE: weight(), HEAD: weight()}, config, stored=True)
        assert rows(path)[0][2:] == ("equal bytes", result)

    @pytest.mark.parametrize(("config", "result"), [(TIED, "diverged"), (APART, "apart"), (SILENT, "apart")])
    def test_different_bytes(self, config: Any, result: str, tmp_path: Path) -> None:
        path = folder(tmp_path, {WTE: weight(), HEAD: weight() + 0.5}, config, stored=True)
        (row,) = paramtool.inspect(path, config="").config.rows
        assert (row.file, row.result, row.apart) == ("different bytes", result, (WTE, HEAD))
        assert row.largest == (weight().double() - (weight() + 0.5).double()).abs().max().item()

    @pytest.mark.parametrize(("config", "result"), [(TIED, "diverged"), (APART, "apart")])
    def test_different_shapes(self, config: Any, result: str, tmp_path: Path) -> None:
        path = folder(tmp_path, {WTE: weight(), HEAD: weight(0, 8, 4)}, config, stored=True)
        (row,) = paramtool.inspect(path, config="").config.rows
        assert (row.file, row.result, row.detail) == ("different shapes", result, "[6, 4] and [8, 4]")
        assert row.largest is None

    def test_different_dtypes_are_compared_as_numbers(self, tmp_path: Path) -> None:
        """A bfloat16 copy of a float32 master is not tied to it, and how far it is from it is said."""
        path = folder(tmp_path, {WTE: weight(), HEAD: weight().bfloat16()}, TIED, stored=True)
        (row,) = paramtool.inspect(path, config="").config.rows
        assert (row.file, row.result, row.detail) == ("different dtypes", "diverged", "float32 and bfloat16")
        assert row.largest == (weight().double() - weight().bfloat16().double()).abs().max().item()

    def test_a_nan_on_both_sides_is_no_difference(self, tmp_path: Path) -> None:
        """One NaN beside another counts nothing, one beside a number counts as infinite."""
        a, b, c = weight(), weight(), weight()
        a[0, 0] = b[0, 0] = math.nan
        b[1, 1] += 0.25
        (row,) = paramtool.inspect(folder(tmp_path, {WTE: a, HEAD: b}, TIED, stored=True), config="").config.rows
        assert row.largest == pytest.approx(0.25)
        (row,) = paramtool.inspect(folder(tmp_path, {WTE: a, HEAD: c}, TIED, stored=True), config="").config.rows
        assert row.largest == math.inf
        found = json.loads(quick("inspect", ".", "--config", ".", "--json", cwd=tmp_path).out)
        assert found["config"]["ties"][0]["largest_difference"] == "infinite"

    def test_a_tensor_that_is_no_plain_one_is_not_compared(self, tmp_path: Path) -> None:
        path = folder(tmp_path, {WTE: weight(), HEAD: weight().to_sparse()}, TIED)
        (row,) = paramtool.inspect(path, config="").config.rows
        assert (row.file, row.result) == ("not compared", "not-compared")
        assert HEAD in row.detail

    def test_a_slice_of_one_memory_is_tied_and_said_to_be_one(self, tmp_path: Path) -> None:
        """A vocabulary that is padded on one side."""
        whole = weight(0, 8, 4)
        (row,) = paramtool.inspect(folder(tmp_path, {WTE: whole, HEAD: whole[:6]}, TIED), config="").config.rows
        assert (row.result, row.detail) == ("tied", "slice")

    def test_equal_names_of_a_deduplicated_file_are_stored_once_and_not_tied(self, tmp_path: Path) -> None:
        path = folder(tmp_path / "in", {WTE: weight(), HEAD: weight()}, TIED, stored=True)
        paramtool.dedup(path, tmp_path / "out.safetensors", min_equal_bytes=1)
        found = paramtool.inspect(tmp_path / "out.safetensors", config=str(path / "config.json"))
        (row,) = found.config.rows
        assert (row.result, row.detail) == ("equal-not-tied", "stored once")

    def test_every_result_is_reached(self) -> None:
        """The tests above and no other results."""
        assert set(RESULTS.values()) == {
            "tied", "equal-not-tied", "diverged", "shared-though-denied", "equal-though-denied", "apart", "undeclared",
            "undeclared-equal", "one-name", "not-compared",
        }  # fmt: skip
        assert set(RESULTS.values()) > BROKEN


def test_memory_that_nothing_declares_is_listed(tmp_path: Path) -> None:
    """Names that no table of ours knows, and that share memory all the same."""
    one, two = weight(), weight(1)
    state = {WTE: one, HEAD: one, "h.0.mlp.weight": two, "h.1.mlp.weight": two}
    assert rows(folder(tmp_path, state, TIED))[1:] == [
        (("h.0.mlp.weight", "h.1.mlp.weight"), None, "one memory", "undeclared")
    ]


def test_ties_that_hang_together_declare_one_memory(tmp_path: Path) -> None:
    """T5: the head and both sides look at one tensor; nothing of it is undeclared."""
    one = weight()
    state = dict.fromkeys(("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD), one)
    assert [row[3] for row in rows(folder(tmp_path, state, TIED | {"model_type": "t5"}))] == ["tied", "tied"]


def test_each_part_of_a_training_checkpoint_is_a_model_of_its_own(tmp_path: Path) -> None:
    """Weights, their average and an optimizer: two ties, and none between the parts."""
    model, ema = weight(), weight(1)
    state = {
        "model": {WTE: model, HEAD: model.clone()},
        "ema": {WTE: ema, HEAD: ema},
        "optimizer": {"state": {0: {"exp_avg": weight(2)}}, "param_groups": []},
    }
    found = rows(folder(tmp_path, state, TIED))
    assert [(names[0], result) for names, _, _, result in found] == [
        (f"model.{WTE}", "equal-not-tied"), (f"ema.{WTE}", "tied"),
    ]  # fmt: skip


# --- what a config says ----------------------------------------------------------------------------------------------


def says(
    config: dict[str, bool], names: list[str], types: dict[str, str] | None = None
) -> list[tuple[bool | None, str]]:
    return [(row.says, row.because) for row in expected(Config("config.json", config, types or {}), names)]


NAMES = [WTE, HEAD]


@pytest.mark.parametrize(
    ("config", "types", "expect"),
    [
        ({"tie_word_embeddings": True}, {}, (True, "tie_word_embeddings is true")),
        ({"text_config.tie_word_embeddings": False}, {}, (False, "text_config.tie_word_embeddings is false")),
        ({}, {"": "gpt2"}, (True, f"not said; true is the default of gpt2 in transformers {version()}")),
        ({}, {"": "llama"}, (False, f"not said; false is the default of llama in transformers {version()}")),
        ({}, {"": "nobodys-own"}, (None, "not said")),
        ({}, {}, (None, "not said")),
    ],
)  # fmt: skip
def test_where_a_config_says_it(config: dict[str, bool], types: dict[str, str], expect: object) -> None:
    assert says(config, NAMES, types) == [expect]


def test_a_nested_config_is_about_its_own_module() -> None:
    """An encoder-decoder of two models: the decoder's head follows the decoder's config."""
    names = ["decoder.bert.embeddings.word_embeddings.weight", "decoder.cls.predictions.decoder.weight"]
    assert says({"decoder.tie_word_embeddings": False, "tie_word_embeddings": True}, names)[0][0] is False
    assert says({"tie_word_embeddings": False}, names, {"": "encoder-decoder", "decoder": "bert"})[0] == (
        True, f"not said; true is the default of bert in transformers {version()}",
    )  # fmt: skip
    assert says({"tie_word_embeddings": False}, names, {"decoder": "nobodys-own"})[0][0] is False


def test_sides_are_not_denied_with_the_head() -> None:
    """transformers 4 ties them whatever is said of the words: a denial is about the head alone."""
    names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD]
    assert [one[0] for one in says({"tie_word_embeddings": False}, names)] == [None, False]
    assert [one[0] for one in says({"tie_word_embeddings": True}, names)] == [True, True]
    marian = {"tie_word_embeddings": True, "share_encoder_decoder_embeddings": False}
    assert [one[0] for one in says(marian, names)] == [False, True]


def test_a_decoder_that_is_its_encoder() -> None:
    """`tie_encoder_decoder` ties tensor by tensor; T5's layers, which are counted differently, are left out."""
    names = ["encoder.layer.0.weight", "decoder.bert.layer.0.weight", "decoder.bert.crossattention.weight",
             "encoder.block.0.layer.1.weight", "decoder.block.0.layer.1.weight"]  # fmt: skip
    found = expected(Config("c", {"tie_encoder_decoder": True}, {}), names)
    assert [(row.tie.kind, row.tie.names, row.says) for row in found] == [("layers", tuple(names[:2]), True)]
    assert expected(Config("c", {"tie_encoder_decoder": False}, {}), names) == []


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_a_wrapper_is_no_part_of_a_name(wrapper: str) -> None:
    """`output.weight` is a head only where nothing of the model stands before it."""
    names = [f"{wrapper}tok_embeddings.weight", f"{wrapper}output.weight", f"{wrapper}layers.0.output.weight"]
    (row,) = expected(Config("c", TIED, {}), names)
    assert row.tie == NamedTie("head", tuple(names[:2]))


WORDS = ("model", "decoder", "encoder", "lm_head", "shared", "embed_tokens", "wte", "weight", "bias", "predictions",
         "cls", "visual", "0", "word_embeddings", "output", "text_model")  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(".".join), unique=True, max_size=12))
def test_ties_are_made_of_names_that_are_there(found: list[str]) -> None:
    """Whatever the names: each tie holds known names, each once, its kind is known, and no name follows itself."""
    for tie in ties(found):
        assert set(tie.names) <= set(found)
        assert len(set(tie.names)) == len(tie.names)
        assert tie.kind in {"head", "sides"}
    assert ties(found) == ties(list(found))


# --- reading config.json ---------------------------------------------------------------------------------------------


def test_what_is_read(tmp_path: Path) -> None:
    """Settings with their paths, model types with theirs, and nothing else."""
    text = {
        "model_type": "llava", "tie_word_embeddings": False, "id2label": {"0": "tie_word_embeddings"},
        "text_config": {"model_type": "llama", "tie_word_embeddings": False, "inner_config": {"model_type": "x"}},
        "vision_config": None, "decoder": "a text", "hidden_size": 8,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(text))
    found = hf_config.read(str(tmp_path / "config.json"))
    assert found.said == {"tie_word_embeddings": False, "text_config.tie_word_embeddings": False}
    assert found.model_types == {"": "llava", "text_config": "llama", "text_config.inner_config": "x"}


def test_where_the_config_stands(tmp_path: Path) -> None:
    """In the folder, beside the file, or where it is said; never guessed elsewhere."""
    path = folder(tmp_path / "m", {WTE: weight()}, TIED)
    elsewhere = folder(tmp_path / "n", {WTE: weight()}, APART)
    for given_, where in (("m", "m/config.json"), ("m/pytorch_model.bin", "m/config.json")):
        assert (
            json.loads(quick("inspect", given_, "--config", "m", "--json", cwd=tmp_path).out)["config"]["path"] == where
        )
    for value in ("n", "n/config.json"):
        ran = json.loads(quick("inspect", "m", "--config", value, "--json", cwd=tmp_path).out)
        assert ran["config"]["path"] == "n/config.json"
    (path / "config.json").unlink()
    ran = quick("inspect", "m", "--config", "m", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "m/config.json" in ran.err
    ran = quick("inspect", "m", "--fail-on", "config-ties", cwd=tmp_path)
    assert ran.code == 2 and "hint: --config PATH" in ran.err
    assert elsewhere.exists()


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_rule_fails_where_file_and_config_differ(tmp_path: Path) -> None:
    """Exit 1 for a tie that diverged and for one that is shared though denied, and for nothing else."""
    one = weight()
    shared = {WTE: one, HEAD: one}
    for config, state, stored, code in (
        (TIED, shared, False, 0), (TIED, shared, True, 0), (TIED, {WTE: one, HEAD: weight(1)}, True, 1),
        (APART, shared, False, 1), (APART, shared, True, 0), (APART, {WTE: one, HEAD: weight(1)}, True, 0),
        (SILENT, shared, False, 0), (TIED, {WTE: one}, True, 0),
    ):  # fmt: skip
        for file in tmp_path.glob("*"):
            file.unlink()
        ran = quick("inspect", folder(tmp_path, state, config, stored=stored), "--fail-on", "config-ties", cwd=tmp_path)
        assert ran.code == code, (config, stored, ran)
        assert ("finding: config-ties: tie_word_embeddings is" in ran.out) is bool(code), ran


def test_the_table_of_a_pipe(tmp_path: Path) -> None:
    """One line a tie: the names, what the config says, what the file says, and the result."""
    path = folder(tmp_path, {WTE: weight(), HEAD: weight() + 0.5}, TIED, stored=True)
    lines = quick("inspect", path, "--config", path, cwd=tmp_path).out.splitlines()
    assert f"config  {path}/config.json  config says  file says  result" in lines
    line = next(line for line in lines if line.startswith("tie  "))
    assert line.split("  ")[1:3] == [f"{WTE} = {HEAD}", "tied: tie_word_embeddings is true, by name"]
    assert line.split("  ")[3].startswith("different bytes (largest difference 0.5")
    assert line.endswith("DIVERGED: declared, and different")
    assert "tie  " not in quick("inspect", path, cwd=tmp_path).out


def test_every_result_has_words() -> None:
    """What a person reads, for each."""
    from paramtool.cli.inspect import RESULT_TEXTS

    assert RESULT_TEXTS.keys() == set(RESULTS.values())


class TestDedup:
    """dedup never joins by a config, and says where a file does not keep to it."""

    @pytest.mark.parametrize("dry", [True, False])
    def test_a_tie_that_diverged(self, dry: bool, tmp_path: Path) -> None:
        path = folder(tmp_path / "in", {WTE: weight(), HEAD: weight(1)}, TIED, stored=True)
        found = paramtool.dedup(path, tmp_path / "out", dry_run=dry)
        (line,) = [text for text in found.warnings if "config.json" in text]
        assert WTE in line and HEAD in line and "largest difference" in line
        assert len(found.plan.targets) == 2

    def test_a_denied_tie_that_is_shared(self, tmp_path: Path) -> None:
        """In a folder each is stored, since from_pretrained needs both; elsewhere what shares memory is stored once."""
        one = weight()
        path = folder(tmp_path / "in", {WTE: one, HEAD: one}, APART)
        found = paramtool.dedup(path, tmp_path / "out")
        said, parted = [text for text in found.warnings if "config.json" in text]
        assert "tie_word_embeddings is false" in said and "no longer shares memory" in parted
        assert len(found.plan.targets) == 2
        for output, how in (("out.safetensors", {}), ("renamed", {"share_renamed": True})):
            found = paramtool.dedup(path, tmp_path / output, **how)
            (said,) = [text for text in found.warnings if "config.json" in text]
            assert "tie_word_embeddings is false" in said
            assert len(found.plan.targets) == 1

    def test_a_config_never_joins(self, tmp_path: Path) -> None:
        """Declared and equal: stored once for being equal, and still two memories."""
        path = folder(tmp_path / "in", {WTE: weight(), HEAD: weight()}, TIED, stored=True)
        found = paramtool.dedup(path, tmp_path / "out.safetensors", min_equal_bytes=1)
        assert not [text for text in found.warnings if "config.json" in text]
        loaded = paramtool.torch.load_file(tmp_path / "out.safetensors")
        assert loaded[WTE].data_ptr() != loaded[HEAD].data_ptr()

    @pytest.mark.parametrize("text", ["{", "[]", '{"tie_word_embeddings": 1}'])
    def test_a_config_that_cannot_be_read_is_a_warning(self, text: str, tmp_path: Path) -> None:
        """The weights do not need it."""
        found = paramtool.dedup(folder(tmp_path / "in", {WTE: weight()}, text), tmp_path / "out")
        (line,) = [one for one in found.warnings if "config.json" in one]
        assert line.endswith("it was not used")
        assert found.written

    def test_a_file_alone_has_no_config(self, tmp_path: Path) -> None:
        path = folder(tmp_path / "in", {WTE: weight(), HEAD: weight(1)}, TIED, stored=True)
        found = paramtool.dedup(path / "model.safetensors", tmp_path / "out.safetensors")
        assert not [text for text in found.warnings if "config.json" in text]


def test_nothing_is_read_where_memories_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One memory, one name, other shapes: the engine is not even opened."""
    from paramtool.engine.read import source

    def refuse(*args: object) -> None:
        raise AssertionError("bytes were read")

    one = weight()
    monkeypatch.setattr(source.Source, "__init__", refuse)
    for number, state in enumerate(({WTE: one, HEAD: one}, {WTE: one}, {WTE: one, HEAD: weight(0, 8, 4)})):
        assert paramtool.inspect(folder(tmp_path / str(number), state, TIED), config="").config.rows


def test_reading_needs_names_that_differ_in_memory() -> None:
    """`unread` asks for one name of each memory, the tie's first name first."""
    row = declared.Declared(NamedTie("head", ("a",)), True, "", declared.NAME)
    assert declared.unread(row, None) == []  # type: ignore[arg-type]


def test_dedup_reads_only_what_a_declaration_could_be_wrong_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are apart, as the config says, are not compared for a warning that cannot come."""
    from paramtool.commands import config_ties

    asked: list[str] = []
    compared = config_ties._compared
    monkeypatch.setattr(config_ties, "_compared", lambda row, *args: asked.append(row.because) or compared(row, *args))
    for config in (APART, SILENT, TIED):
        path = folder(tmp_path / "in", {WTE: weight(), HEAD: weight(1)}, config, stored=True)
        paramtool.dedup(path, tmp_path / "out.safetensors", force=True)
    assert asked == ["tie_word_embeddings is true"]


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A folder without the head, which its config ties."""
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=20)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_what_is_said_of_a_tie_counts_before_the_config(tied: Path, tmp_path: Path) -> None:
    """`--ties` of a name that only the config adds: the tensor that it names is written; a wrong name is refused."""
    wanted = load_file(tied / "model.safetensors")["transformer.wpe.weight"]
    said = {"lm_head.weight": "transformer.wpe.weight"}
    paramtool.export(tied, tmp_path / "plain.safetensors", all_names=True, ties=said)
    assert torch.equal(load_file(tmp_path / "plain.safetensors")["lm_head.weight"], wanted)
    paramtool.dedup(tied, tmp_path / "d.safetensors", ties=said)
    assert torch.equal(paramtool.torch.load_file(tmp_path / "d.safetensors")["lm_head.weight"], wanted)
    with pytest.raises(UsageError, match="lm_head"):
        paramtool.dedup(tied, tmp_path / "x", ties={"lm_head.weight": "nope"})
    with pytest.raises(UsageError, match="lm_head"):
        paramtool.export(tied, tmp_path / "x", all_names=True, ties={"lm_head.weight": "nope"})


def test_a_name_that_a_config_adds_is_an_alias(tied: Path, tmp_path: Path) -> None:
    names = {name: one.clone() for name, one in GPT2LMHeadModel.from_pretrained(tied).state_dict().items()}
    torch.save(names, tmp_path / "all.pt")
    (found,) = paramtool.variants(tied, [tmp_path / "all.pt"])
    assert found.verdict == "loads through aliases" and [one.name for one in found.through] == ["lm_head.weight"]
