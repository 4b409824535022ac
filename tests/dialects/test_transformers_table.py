"""The table of transformers' rules against the transformers that is installed."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from functools import cache

import pytest

from paramtool.dialects import chains, scopes
from paramtool.dialects.renaming import Renaming
from tests.dialects.asking_transformers import disagreements, small

MAKING = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "make_dialects.py")
FEW = (
    "MixtralForCausalLM", "Qwen3MoeForCausalLM", "PhimoeForCausalLM", "JambaForCausalLM", "Llama4ForCausalLM",
    "LlavaForConditionalGeneration", "Gemma3ForConditionalGeneration", "ViTForImageClassification", "CLIPModel",
    "DeepseekV4ForCausalLM", "GPTNeoXForCausalLM", "HrmTextForCausalLM", "GteModel", "MaskFormerModel",
)  # fmt: skip
"""Some of the models that `make oracles` compares all of."""


def lacking(change: Callable[[str], str] = str) -> list[str]:
    """What the installed transformers has and the table lacks, or has otherwise; of its changed source in a test."""
    making = runpy.run_path(MAKING)
    rules, aliases = making["rules"](change(making["source"]()))
    table = scopes.table()
    found = [f"{key}: {len(rows)} rules" for key, rows in rules.items() if table["rules"].get(key) != rows]
    return found + [f"{key}: as {base}" for key, base in aliases.items() if table["aliases"].get(key) != base]


@cache
def outdated() -> str:
    """Which rules of the installed transformers the table lacks, in words; empty if none."""
    import transformers

    try:
        missing = lacking()
    except Exception as error:
        if type(error).__name__ != "Unknown":  # of the script: an operation that is newer than the table
            raise
        missing = [str(error)]
    if not missing:
        return ""
    return (
        f"transformers {transformers.__version__} has rules that the table for {scopes.version()} lacks: "
        f"{'; '.join(missing)}; python docs/make_dialects.py makes it again"
    )


def skip_if_outdated() -> None:
    """Skip a test that compares the table with another transformers than its own; `make oracles` runs it and fails."""
    if outdated() and not os.environ.get("PARAMTOOL_EVERY_MODEL"):
        pytest.skip(outdated())


def test_the_table_has_what_is_installed() -> None:
    skip_if_outdated()
    assert lacking() == []


def test_make_oracles_fails_where_make_test_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is in the reason."""
    monkeypatch.setattr(f"{__name__}.outdated", lambda: "newer: as mixtral")
    monkeypatch.delenv("PARAMTOOL_EVERY_MODEL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="newer: as mixtral"):
        skip_if_outdated()
    monkeypatch.setenv("PARAMTOOL_EVERY_MODEL", "1")
    skip_if_outdated()


@pytest.mark.parametrize(
    "old, new, said",
    [
        (r"^embed_out\.", r"^embed_in\.", "GPTNeoXForCausalLM: 1 rules"),
        ('"minimax": "mixtral",', '"minimax": "mixtral", "newer": "mixtral",', "newer: as mixtral"),
    ],
)
def test_what_is_new_is_found(old: str, new: str, said: str) -> None:
    assert said in lacking(lambda source: source.replace(old, new, 1))


@pytest.mark.parametrize(
    "line", ["mapping.update(other())", 'mapping["a"] = [WeightRenaming(name(), "b")]', 'mapping["a"] = [Newer("b")]']
)
def test_source_that_is_not_known_is_an_error(line: str) -> None:
    """Nothing is skipped in silence."""
    with pytest.raises(Exception, match=r"line \d+: "):
        lacking(lambda source: source.replace("    return mapping\n", f"    {line}\n    return mapping\n", 1))


def test_every_rule_of_the_table_can_be_used() -> None:
    for key in [*scopes.table()["rules"], *scopes.table()["aliases"]]:
        rules = scopes.under(key)
        assert rules is not None
        for back in (False, True):
            for way in (renaming := Renaming(rules, back=back)).renamings + renaming.converters:
                way.match("a.b.0.c")


def test_every_join_has_sizes() -> None:
    """A join whose parts could be of any size is in paramtool/dialects/chains.py by hand."""
    unknown = {
        (key, rule.sources, rule.targets)
        for key in scopes.table()["rules"]
        for rule in scopes.under(key) or ()
        if not chains.is_known(rule)
    }
    assert not unknown


def test_every_part_can_be_found() -> None:
    table = scopes.table()
    for name, (prefix, _, *parts) in table["classes"].items():
        assert isinstance(prefix, str), name
        for path, part, _, _ in parts:
            assert path
            assert part and (part[0] != "@" or part[1:] in table["autos"])


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FEW)
def test_transformers_agrees(name: str) -> None:
    skip_if_outdated()
    assert disagreements(small(name)) == []
