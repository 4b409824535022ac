"""The dialects of transformers against transformers itself: every class of models whose names or tensors it converts.

`make oracles` builds each on the meta device from a small config (PARAMTOOL_EVERY_MODEL=1); names, shapes and, where a
model is small enough, the place of every element of both forms are compared.  It also fails where the installed
transformers has rules that the table lacks.
"""

from __future__ import annotations

import os

import pytest
import transformers

from paramtool.dialects import scopes
from paramtool.errors import LayoutError
from tests.dialects.asking_transformers import disagreements, has_rules, small
from tests.dialects.test_transformers_table import lacking

WRONG = {
    "Molmo2Model": "two tables of words, of 151,936 and 128 rows, as equal halves (conversion_mapping.py 990)",
    "Molmo2ForConditionalGeneration": "the same",
    "Qwen3VLMoeModel": "stacks that are not turned back: the original files have [experts, in, out]",
    "Qwen3VLMoeForConditionalGeneration": "the same",
}
"""Classes of which transformers 5.23.0 writes other shapes than the original files have."""


def test_the_table_lacks_nothing() -> None:
    assert transformers.__version__ == scopes.version()
    assert lacking() == []


def classes() -> list[str]:
    """Classes of the table that can have rules: by their own name, their model type or a part."""
    table = scopes.table()
    keys = table["rules"].keys() | table["aliases"].keys()
    found = [
        name
        for name, (_, model_type, *parts) in table["classes"].items()
        if (name in keys or model_type in keys or parts)
        and name not in table["unbuilt"]
        and hasattr(transformers, name)
    ]
    return found if os.environ.get("PARAMTOOL_EVERY_MODEL") else found[::40]


@pytest.mark.parametrize("name", classes())
def test_transformers_agrees(name: str) -> None:
    try:
        model = small(name)
    except ImportError as error:  # timm and scipy are in the environment `zoo` alone
        pytest.skip(" ".join(str(error).split())[:100])
    if not has_rules(model):
        return
    if name in WRONG:
        with pytest.raises(LayoutError, match=r"the config says|of transformers-5 already"):
            disagreements(model)
    else:
        assert disagreements(model) == []
