"""The dialects of transformers against transformers itself: every class of models whose names or tensors it converts.

`make oracles` builds each on the meta device from a small config (PARAMTOOL_EVERY_MODEL=1); names, shapes and, where a
model is small enough, the place of every element of both forms are compared.  It also fails where the installed
transformers has rules that the table lacks, or another version; `make test` skips then, with the list of these rules.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import transformers

from paramtool.dialects import scopes
from paramtool.errors import LayoutError
from paramtool.parts import config_types, widths
from paramtool.passes.parts import consistency, dialect_change
from tests.dialects.asking_transformers import (
    as_saved,
    config_of,
    disagreements,
    has_rules,
    in_memory,
    of_default_size,
    small,
)
from tests.dialects.test_transformers_table import lacking, skip_if_outdated
from tests.examples import IS_EVERY_MODEL
from tests.oracles.zoo_models import architectures

WRONG = {
    "Molmo2Model": "two tables of words, of 151,936 and 128 rows, as equal halves (conversion_mapping.py 990)",
    "Molmo2ForConditionalGeneration": "the same",
    "Qwen3VLMoeModel": "stacks that are not turned back: the original files have [experts, in, out]",
    "Qwen3VLMoeForConditionalGeneration": "the same",
}
"""Classes of which transformers 5.24.0 writes other shapes than the original files have."""
PAIRS = ("DoryForCausalLM", "DoryModel")
"""Classes whose files have two blocks for each layer, and of which transformers 5.24.0 writes neither those names nor
its own; tests/oracles/dialects/test_forms.py has what it opens."""


def test_the_table_lacks_nothing() -> None:
    skip_if_outdated()
    assert lacking() == []
    if IS_EVERY_MODEL:
        assert transformers.__version__ == scopes.version()


@cache
def _is_there(name: str) -> bool:
    """Whether the installed transformers has a class; modules of another version may warn when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hasattr(transformers, name)


def skip_if_absent(name: str) -> None:
    """Asked by the test: to ask imports the module of the class."""
    if not _is_there(name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")


def classes() -> list[str]:
    """Classes of the table that can have rules: by their own name, their model type or a part."""
    table = scopes.table()
    keys = table["rules"].keys() | table["aliases"].keys()
    found = [
        name
        for name, (_, model_type, *parts) in table["classes"].items()
        if (name in keys or model_type in keys or parts) and name not in table["unbuilt"]
    ]
    return found if IS_EVERY_MODEL else found[::60]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", classes())
def test_transformers_agrees(name: str) -> None:
    skip_if_outdated()
    skip_if_absent(name)
    try:
        model = small(name)
    except ImportError as error:  # timm and scipy are in the environment `zoo` alone
        pytest.skip(" ".join(str(error).split())[:100])
    if not has_rules(model):
        return
    if name in WRONG:
        with pytest.raises(LayoutError, match=r"the config says|of transformers-5 already"):
            disagreements(model)
    elif name in PAIRS:
        assert {one.partition(": ")[0] for one in disagreements(model)} == {"file"}
    else:
        assert disagreements(model) == []


# --- no class contradicts itself, and what is changed does -----------------------------------------------------------

USUAL = (
    "LlamaForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "BartForConditionalGeneration",
    "T5ForConditionalGeneration", "GPTNeoXForCausalLM", "BloomForCausalLM", "Phi3ForCausalLM", "Qwen3MoeForCausalLM",
    "ViTForImageClassification", "GptOssForCausalLM", "ModernBertForMaskedLM", "Llama4ForCausalLM", "CLIPModel",
)  # fmt: skip
ODD = (
    "Gemma3nForCausalLM",
    "DiffusionGemmaForBlockDiffusion",
    "LongcatFlashForCausalLM",
    "MiniMaxForCausalLM",
    "NemotronHForCausalLM",
    "ReformerModelWithLMHead",
    "KimiLinearForCausalLM",
    "MobileBertForMaskedLM",
    "SwinModel",
    "Mask2FormerModel",
    "JetMoeForCausalLM",
    "Qwen3NextForCausalLM",
    "DeepseekV2ForCausalLM",
)
"""Classes with layers of several kinds, without some parts, or of several widths."""
NOTICED = {"hidden": 0.85, "ffn": 0.85, "part": 0.95, "layer": 0.8}
"""Of the model types that have such a key or such tensors, at least this share notices a change (0.87, 0.87, 0.98,
0.88 with transformers 5.23.0)."""


def every_class() -> list[tuple[str, bool]]:
    """Classes, small and of the size that they have by default; one of each model type is enough of the latter."""
    some = dict.fromkeys([*USUAL, *ODD])
    large = some | dict.fromkeys(names[0] for names in architectures().values()) if IS_EVERY_MODEL else some
    every = large | dict.fromkeys(scopes.table()["classes"]) if IS_EVERY_MODEL else some
    return [*((name, False) for name in every), *((name, True) for name in large)]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name, default", every_class())
def test_no_class_contradicts_itself(name: str, default: bool) -> None:
    """Shapes, forms, parts and layers of every class are as its config says, under the names of both versions."""
    skip_if_outdated()
    skip_if_absent(name)
    try:
        model = of_default_size(name) if default else small(name)
        forms = [in_memory(model)]
    except Exception as error:  # a class without a default config, or of one that needs another library
        pytest.skip(f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")
    try:
        forms.append(as_saved(model))
    except Exception:  # transformers cannot undo some of its own rules
        assert name not in USUAL
    config = config_of(model)
    config_types.check(config, "config.json")
    for shapes in forms:
        assert widths.contradictions(shapes, config) == []
        consistency.check(shapes, config)
        assert dialect_change.check(shapes, config) == []
        assert list(widths.contradictions(shapes, config)) == []


PART = re.compile(r".*\.\d+\..*\.(q_proj|k_proj|key|up_proj|down_proj|w2)\.weight")


def changes(config: Mapping[str, Any], keys: re.Pattern[str], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the widths in a config."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from changes(value, keys, (*path, key))
        elif type(value) is int and value > 0 and keys.fullmatch(key):
            yield (*path, key)


def changed(config: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    made = copy.deepcopy(dict(config))
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] += 24
    return made


@cache
def noticed(name: str) -> Mapping[str, bool]:
    """{what is changed: whether it is noticed}, for a class of its default size."""
    try:
        model = of_default_size(name)
    except Exception:
        return {}
    shapes, config = in_memory(model), config_of(model)
    found = {}
    for what, keys in (("hidden", widths.HIDDEN), ("ffn", widths.FFN)):
        if paths := list(changes(config, keys)):
            found[what] = any(widths.contradictions(shapes, changed(config, path)) for path in paths)
    weights = [
        one for one in shapes if re.fullmatch(r".*\.\d+\..*\.(q_proj|k_proj|key|up_proj|down_proj|w2)\.weight", one)
    ]
    if weights:
        found["part"] = _is_refused([one for one in shapes if one != weights[len(weights) // 2]], config)
    stacks = {match[1]: int(match[2]) for one in shapes if (match := dialect_change.STACK.match(one))}
    if weights and stacks:
        stack = max(stacks, key=lambda one: stacks[one])
        rest = [one for one in shapes if not one.startswith(f"{stack}.{stacks[stack]}.")]
        found["layer"] = _has_layers_missing(rest, config)
    return found


def _is_refused(names: list[str], config: Mapping[str, Any]) -> bool:
    try:
        consistency.check(names, config)
    except LayoutError:
        return True
    return False


def _has_layers_missing(names: list[str], config: Mapping[str, Any]) -> bool:
    try:
        return bool(dialect_change.check(names, config))
    except LayoutError:
        return True


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", USUAL)
def test_what_is_changed_is_noticed(name: str) -> None:
    skip_if_outdated()
    skip_if_absent(name)
    assert noticed(name).get("hidden") and noticed(name).get("ffn", True)


@pytest.mark.skipif(not IS_EVERY_MODEL, reason="builds every model type; make oracles")
def test_what_is_changed_is_noticed_in_most_model_types() -> None:
    seen = [noticed(names[0]) for names in architectures().values() if _is_there(names[0])]
    for what, least in NOTICED.items():
        have = [one[what] for one in seen if what in one]
        print(f"{what}: noticed in {sum(have)} of {len(have)} model types")
        assert sum(have) >= least * len(have) > 300 * least
