"""The table of rules: what each finds, what a missing name could have meant, and ties that only a config shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model

import paramtool
from paramtool.commands import rules
from paramtool.commands.rules import KINDS, Kind
from paramtool.errors import UsageError
from tests.hostile import makers_torch
from tests.hostile.command import quick
from tests.hostile.makers_torch import call_of, mapping, name, state, tensor
from tests.recurrent import flattened

DOCS = Path(__file__).resolve().parents[2] / "docs"
WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
UNTIED = f"untied:{HEAD}={WTE}"


def found(path: Path, *texts: str, **more: Any) -> list[str]:
    """What rules find."""
    asked = [rules.parse(text) for text in texts]
    needs = any(rule.kind.needs_content for rule in asked)
    config = "" if any(rule.kind.needs_config for rule in asked) else None
    seen = paramtool.inspect(path, **{"equal": needs, "config": config, **more})
    return [finding.message for finding in rules.judged(asked, seen)]


def saved(folder: Path, tensors: Any, config: Any = None) -> Path:
    """A folder with a torch file and, if it is given, a config."""
    torch.save(tensors, folder / "pytorch_model.bin")
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_document_is_the_table() -> None:
    """docs/rules.md, row by row, and the help of the command."""
    text = (DOCS / "rules.md").read_text()
    table = text.split("<!-- rules -->\n")[1].split("<!-- /rules -->")[0].splitlines()[2:]
    assert table == [f"| `{kind.id}{kind.form}` | {kind.words} |" for kind in KINDS]
    assert len({kind.id for kind in KINDS}) == len(KINDS)


def test_the_python_of_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "rules.md").read_text(), re.S)
    torch.save({"w": torch.ones(2)}, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    exec(code, {})


def evil(folder: Path) -> Path:
    space = name("recipes", "Recipe") + b")\x81" + mapping(lr=b"K\x01") + b"b"
    return makers_torch.zipped(state(w=tensor(), evil=call_of("os", "system"), args=space))(folder)


def bad(folder: Path) -> Path:
    """A folder with something for every rule."""
    big = torch.arange(4000.0)
    diverged = {WTE: torch.ones(3, 2), HEAD: torch.zeros(3, 2), "a": big, "b": big.clone(), "part": big.clone()[:10]}
    return saved(folder, diverged, {"tie_word_embeddings": True})


def lost(folder: Path) -> Path:
    """A folder with an infinity."""
    return saved(folder, {"a": torch.tensor([1.0, float("-inf")])})


BAD = {
    "untied": (f"{UNTIED}", bad), "not-tied": (f"not-{UNTIED[2:]}", bad), "wrong-dtype": ("wrong-dtype:a=int8", bad),
    "dtype": ("dtype:a=int8", bad), "missing": ("missing:c", bad), "unsafe": ("unsafe", evil),
    "unknown-class": ("unknown-class", evil), "duplicate-bytes": ("duplicate-bytes>15999", bad),
    "unused-bytes": ("unused-bytes>15959", bad), "config-ties": ("config-ties", bad),
    "size": ("size>9kB", bad), "parameters": ("parameters=1..99", bad), "nan": ("nan", lost),
}  # fmt: skip
"""{kind: a rule that finds something in a file}."""
GOOD = {
    "untied": "untied:a=alias", "not-tied": "not-tied:a=alias", "wrong-dtype": "wrong-dtype:a=float32",
    "dtype": "dtype:a*=float32", "missing": "missing:alias", "unsafe": "unsafe", "unknown-class": "unknown-class",
    "duplicate-bytes": "duplicate-bytes>0", "unused-bytes": "unused-bytes>0", "config-ties": "config-ties",
    "size": "size>1MB", "parameters": "parameters=1..", "nan": "nan",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_each_kind_both_ways(kind: Kind[Any], tmp_path: Path) -> None:
    """A row of the table that has no case here fails."""
    text, make = BAD[kind.id]
    assert rules.parse(text).kind is kind
    assert found(make(tmp_path), text)
    one = torch.arange(10.0)
    (tmp_path / "good").mkdir()
    good = saved(tmp_path / "good", {"a": one, "alias": one}, {"tie_word_embeddings": True})
    assert rules.parse(GOOD[kind.id]).kind is kind
    assert found(good, GOOD[kind.id]) == []


@pytest.mark.parametrize("newer, older", [("untied", "not-tied"), ("wrong-dtype", "dtype")])
def test_the_older_spellings_are_the_same(newer: str, older: str) -> None:
    """The same row but for the id and its words."""
    by_id = {kind.id: kind for kind in KINDS}
    for field in ("form", "parse", "judge", "assumes", "needs_content", "needs_config"):
        assert getattr(by_id[newer], field) is getattr(by_id[older], field) or field == "form"
    assert by_id[newer].form == by_id[older].form and newer in by_id[older].words


@pytest.mark.parametrize("text, says", [
    ("untied:a", "of the form A=B"), ("untied:=b", "A=B"), ("wrong-dtype:w=float33", "float33"),
    ("missing:", "name"), ("unsafe:x", "did you mean unsafe?"), ("unties:a=b", "did you mean untied:A=B?"),
    ("dupicate-bytes>1", "duplicate-bytes>SIZE?"), ("unused-bytes>1 apple", "1 apple"), ("UNSAFE", "unknown rule"),
    pytest.param("x" * 5000, "unknown rule", id="long"), pytest.param("\x1b[2J", "unknown rule", id="escape"),
])  # fmt: skip
def test_a_wrong_rule(text: str, says: str) -> None:
    """What is wrong with it, or what was meant."""
    with pytest.raises(UsageError) as error:
        rules.parse(text)
    assert says in str(error.value) and len(str(error.value)) < 900 and str(error.value).isprintable()


# --- ties that only a config shows -----------------------------------------------------------------------------------

TIED, APART, SILENT = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {"hidden_size": 3}


@pytest.mark.parametrize("config, holds, says", [
    (TIED, True, ""), (APART, False, "tie_word_embeddings is false) does not tie them"), (SILENT, False, "not said"),
    (None, False, "so it is tied to nothing"), ({"model_type": "gpt2"}, True, ""),
    ({"model_type": "gptj"}, False, "false is the default of gptj"),
    ("{", False, "is tied to nothing"),
    ({"tie_word_embeddings": "yes"}, False, "is tied to nothing"),
])  # fmt: skip
def test_a_name_that_the_config_ties(config: Any, holds: bool, says: str, tmp_path: Path) -> None:
    """It holds by the config alone, in both orders, and by the file alone where it has both names."""
    saved(tmp_path, {WTE: torch.ones(3, 2), "transformer.wpe.weight": torch.ones(3, 2)}, config)
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        for text in (UNTIED, f"untied:{WTE}={HEAD}", f"not-tied:{HEAD}={WTE}"):
            texts = found(path, text)
            assert (texts == []) is holds, texts
            assert holds or says in texts[0], texts
    one = torch.ones(3, 2)
    saved(tmp_path, {WTE: one, HEAD: one}, config)
    assert found(tmp_path, UNTIED) == []
    saved(tmp_path, {WTE: one, HEAD: one.clone()}, config)
    assert found(tmp_path, UNTIED) == [f"{HEAD!r} and {WTE!r} do not share memory"]


def test_only_the_names_that_the_config_is_about(tmp_path: Path) -> None:
    """Another tensor, a name of no table, and a tie without any tensor in the file are findings."""
    saved(tmp_path, {WTE: torch.ones(3, 2), "transformer.wpe.weight": torch.ones(3, 2)}, TIED)
    (text,) = found(tmp_path, f"untied:{HEAD}=transformer.wpe.weight")
    assert f"ties it to {WTE!r}, which is there" in text
    assert "tied to nothing" in found(tmp_path, f"untied:x.y={WTE}")[0]
    saved(tmp_path, {"transformer.wpe.weight": torch.ones(3, 2)}, TIED)
    assert "tied to nothing" in found(tmp_path, UNTIED)[0]


def test_a_tie_of_three_by_its_owner(tmp_path: Path) -> None:
    """Both names are missing, and the owner is there; if two are there and differ, nothing holds."""
    names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    rule = f"untied:{names[1]}={names[2]}"
    saved(tmp_path, {names[0]: torch.ones(3, 2)}, {**TIED, "model_type": "t5"})
    assert found(tmp_path, rule, f"untied:lm_head.weight={names[2]}") == []
    saved(tmp_path, {names[0]: torch.ones(3, 2), names[1]: torch.zeros(3, 2)}, {**TIED, "model_type": "t5"})
    (text,) = found(tmp_path, rule)
    assert "stores 'shared.weight' and 'encoder.embed_tokens.weight' apart" in text


def test_the_config_that_was_given(tmp_path: Path) -> None:
    """--config names another one, which counts; the note says which."""
    saved(tmp_path, {WTE: torch.ones(3, 2)}, APART)
    (tmp_path / "tied.json").write_text(json.dumps(TIED))
    assert found(tmp_path, UNTIED)
    seen = paramtool.inspect(tmp_path, config=str(tmp_path / "tied.json"))
    assert list(rules.parse(UNTIED).findings(seen)) == []
    (note,) = rules.parse(UNTIED).assumptions(seen)
    assert "tied.json" in note and HEAD in note and WTE in note
    assert list(rules.parse(UNTIED).assumptions(paramtool.inspect(tmp_path))) == []


def test_names_that_safetensors_removed(tmp_path: Path) -> None:
    """save_model keeps one name and says so in the metadata: no config is needed."""
    model = torch.nn.ModuleDict({"wte": torch.nn.Embedding(3, 2), "lm_head": torch.nn.Linear(2, 3, bias=False)})
    model["lm_head"].weight = model["wte"].weight
    save_model(model, str(tmp_path / "model.safetensors"))
    assert found(tmp_path / "model.safetensors", "untied:lm_head.weight=wte.weight", "missing:wte.weight",
                 "missing:lm_head.weight") == []  # fmt: skip
    save_file({key: tensor.clone() for key, tensor in model.state_dict().items()}, tmp_path / "apart.safetensors")
    assert len(found(tmp_path / "apart.safetensors", "untied:lm_head.weight=wte.weight")) == 1


# --- sections and names ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training checkpoint whose model lacks the tied head, and its config."""
    linear = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(linear.parameters())
    linear(torch.ones(2)).sum().backward()
    optimizer.step()
    model = {WTE: torch.ones(3, 2), "transformer.h.0.weight": torch.ones(2, dtype=torch.bfloat16)}
    saved(tmp_path, {"model": model, "optimizer": optimizer.state_dict(), "epoch": 3}, TIED)
    return tmp_path


def test_rules_in_a_section(run: Path) -> None:
    """Names of the section, and a config's ties among them; the other sections are not there."""
    texts = [UNTIED, f"missing:{WTE}", "wrong-dtype:transformer.h.*=bfloat16", "wrong-dtype:*.wte.*=float32"]
    assert found(run, *texts, only="model") == []
    assert found(run, f"untied:model.{HEAD}=model.{WTE}") == []
    (text,) = found(run, "missing:state.0.step", only="model")
    assert text == "'state.0.step' is not in section 'model'"
    assert found(run, "missing:state.0.step", only="optimizer") == []
    with pytest.raises(UsageError, match="no section 'nodel'; its sections: 'model', 'optimizer'"):
        found(run, only="nodel")


def test_a_name_of_a_section_is_shown_its_section(run: Path) -> None:
    """Without --only the names of sections are missing, patterns too."""
    says = "section 'model' has"
    assert says in found(run, f"missing:{WTE}")[0] and says in found(run, "wrong-dtype:transformer.*=float32")[0]
    assert says in found(run, UNTIED)[0]
    assert says not in found(run, "missing:ghost")[0]
    assert "tied to nothing" in found(run, f"untied:{HEAD}=model.{WTE}")[0], "no tie leads from one section to another"


@pytest.mark.parametrize("text, meant", [
    ("missing:wte.wieght", "'wte.weight'"), ("missing:model.wte.weight", "'wte.weight'"),
    ("missing:0.weight", "'h.0.weight'"),
    ("untied:wte.weight=h.0.wieght", "'h.0.weight'"), ("wrong-dtype:h.0.weigh=float32", "'h.0.weight'"),
    ("missing: wte.weight", "'wte.weight'"), ("missing:something else", None),
    pytest.param(f"missing:{'w' * 100_000}", None, id="long"),
])  # fmt: skip
def test_a_missing_name_comes_with_those_like_it(text: str, meant: str | None, tmp_path: Path) -> None:
    """Or with nothing, where nothing is like it."""
    torch.save({"wte.weight": torch.ones(2), "h.0.weight": torch.ones(2), "b": torch.ones(1)}, tmp_path / "m.pt")
    (finding,) = found(tmp_path / "m.pt", text)
    assert ("did you mean" in finding) is (meant is not None) and (meant or "") in finding, finding
    assert len(finding) < 500


# --- tensors that are not plain --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_tensors_of_parts_and_without_bytes(tmp_path: Path) -> None:
    """A conjugated or sparse tensor has parts, which are compared; a meta tensor has nothing that could be."""
    conj, sparse = torch.ones(2, dtype=torch.complex64).conj(), torch.eye(3).to_sparse()
    meta = torch.empty(3, device="meta")
    torch.save({"c": conj, "c2": conj, "s": sparse, "s2": torch.eye(3).to_sparse(), "m": meta, "w": torch.ones(2)},
               tmp_path / "m.pt")  # fmt: skip
    path = tmp_path / "m.pt"
    assert found(path, "untied:c=c2", "missing:c", "missing:m") == []
    assert found(path, "untied:s=s2") == ["'s' and 's2' do not share memory"]
    assert found(path, "untied:w=m")[0].startswith("'m' has no bytes")
    assert found(path, "wrong-dtype:m=float32") == ["no tensor that matches 'm' has bytes in the file"]


def test_names_as_a_pattern_or_a_rule_may_spell_them(tmp_path: Path) -> None:
    """Signs of rules inside names: the last = divides, and a colon or a > belongs to the name."""
    one = torch.ones(2)
    torch.save({"a=b": one, "c:d": one, "e>f": one.clone(), "": torch.zeros(1)}, tmp_path / "m.pt")
    assert found(tmp_path / "m.pt", "untied:a=b=c:d", "missing:a=b", "missing:e>f", "wrong-dtype:a=b=float32") == []
    assert len(found(tmp_path / "m.pt", "untied:c:d=e>f")) == 1


def test_windows_of_one_storage_are_not_tied(tmp_path: Path) -> None:
    """Disjoint ones, slices and such as overlap are other tensors; a transposed one is the same."""
    flat, square = torch.randn(40), torch.randn(4, 4)
    tensors = {"a": flat[:10], "b": flat[10:20], "c": flat[5:15], "d": flat[:2], "same": flat[:10]}
    torch.save({**tensors, "sq": square, "t": square.t()}, tmp_path / "m.pt")
    for pair, tied in {"a=b": False, "a=c": False, "a=d": False, "a=same": True, "sq=t": True}.items():
        for rule in ("untied", "not-tied"):
            ran = quick("inspect", "m.pt", "--quiet", "--fail-on", f"{rule}:{pair}", cwd=tmp_path)
            assert ran.code == (0 if tied else 1), (rule, pair, ran)
            assert tied or "cover different elements" in ran.out + ran.err


def test_a_flattened_network_is_not_tied(tmp_path: Path) -> None:
    """The windows of a buffer that cuDNN uses share a storage and no byte."""
    torch.save(flattened(torch.nn.LSTM(3, 5), "rnn"), tmp_path / "m.pt")
    rule = "untied:rnn.weight_ih_l0=rnn.weight_hh_l0"
    assert quick("inspect", "m.pt", "--fail-on", rule, cwd=tmp_path).code == 1
