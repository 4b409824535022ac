"""Maps that hold every byte, and whose sizes the config.json beside them contradicts: other weights to a loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import CHANGED, LAYOUT

HEADS, WIDTH, IN = 4, 8, 16
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": WIDTH, "hidden_size": IN}
UNKNOWN: dict[str, Any] = {"model_type": "of_nobody", **CONFIG}
State = dict[str, torch.Tensor]


def parts(rows: tuple[int, int, int], at: str = "h.0.attn.") -> State:
    made = torch.Generator().manual_seed(sum(rows))
    found = {}
    for name, count in zip(("q_proj", "k_proj", "v_proj"), rows, strict=True):
        found |= {f"{at}{name}.weight": torch.randn(count, IN, generator=made),
                  f"{at}{name}.bias": torch.randn(count, generator=made)}  # fmt: skip
    return found


def per_head(heads: int, own: State, at: str = "h.0.attn.") -> State:
    """Queries, keys and values of each head together, as GPT-NeoX has them: [heads, 3, width, in]."""
    found = {}
    for end in ("weight", "bias"):
        split = [own[f"{at}{name}.{end}"].unflatten(0, (heads, -1)) for name in ("q_proj", "k_proj", "v_proj")]
        found[f"{at}query_key_value.{end}"] = torch.stack(split, 1).flatten(0, 2)
    return found


def compared(place: Path, a: State, b: State, configs: tuple[Any, Any]) -> Diffed:
    for name, state, config in (("a", a, configs[0]), ("b", b, configs[1])):
        (place / name).mkdir()
        save_file({key: one.contiguous() for key, one in state.items()}, place / name / "model.safetensors")
        if config:
            (place / name / "config.json").write_text(json.dumps(config))
    return diff(place / "a", place / "b")


@pytest.mark.sample(9)
@pytest.mark.parametrize("beside", ["A", "B", "both"])
@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
@pytest.mark.parametrize("heads", [4, 8, 16])
def test_heads_that_the_config_does_not_say(heads: int, back: bool, beside: str, tmp_path: Path) -> None:
    """Of three numbers of heads that all fit the shapes, one is the model's; weights and biases have one verdict."""
    own = parts((HEADS * WIDTH,) * 3)
    a, b = own, per_head(heads, own)
    a, b = (b, a) if back else (a, b)
    configs = (UNKNOWN if beside != "B" else None, UNKNOWN if beside != "A" else None)
    found = compared(tmp_path, a, b, configs)
    assert {one.kind for one in found.tensors} == {LAYOUT if heads == HEADS else CHANGED}
    assert found.is_same == (heads == HEADS)
    if heads != HEADS:
        said = f"but config.json says heads={HEADS}, head_dim={WIDTH}"
        assert all(f"heads={heads}" in one.how and said in one.how for one in found.tensors)


@pytest.mark.parametrize("back", [False, True], ids=["fused", "apart"])
def test_equal_thirds_of_grouped_queries(back: bool, tmp_path: Path) -> None:
    """24, 12 and 12 rows by the config, and parts of 16 rows each: they hold all rows, and are cut elsewhere."""
    config = UNKNOWN | {"num_key_value_heads": 2, "head_dim": 6}
    for place, rows in ((tmp_path / "right", (24, 12, 12)), (tmp_path / "thirds", (16, 16, 16))):
        own = parts(rows)
        fused = {f"h.0.attn.qkv_proj.{end}": torch.cat([own[f"h.0.attn.{name}_proj.{end}"] for name in "qkv"])
                 for end in ("weight", "bias")}  # fmt: skip
        a, b = (own, fused) if back else (fused, own)
        place.mkdir()
        found = compared(place, a, b, (config, config))
        assert found.is_same == (place.name == "right"), [(one.kind, one.b, one.how) for one in found.tensors]


@pytest.mark.parametrize("said", [{}, {"num_attention_heads": 8, "num_key_value_heads": 8}, {"head_dim": 16}])
def test_a_config_of_another_size_says_nothing(said: dict[str, int], tmp_path: Path) -> None:
    """A shard of a model, and queries with gates: the sizes of the config do not make up the tensor."""
    config = UNKNOWN | said if said else {"model_type": "of_nobody"}
    own = parts((HEADS * WIDTH,) * 3)
    found = compared(tmp_path, own, per_head(HEADS, own), (config, config))
    assert found.is_same and {one.kind for one in found.tensors} == {LAYOUT}


def test_chunks_that_the_config_does_not_say(tmp_path: Path) -> None:
    """Four heads in two chunks: rows as of two wide heads, and the sizes of the config."""
    own = parts((HEADS * WIDTH,) * 3)
    found = compared(tmp_path, own, per_head(2, own), (UNKNOWN, UNKNOWN))
    assert found.is_same and {one.layout for one in found.tensors} == {"qkv-per-chunk"}


def test_a_config_that_contradicts_itself_says_nothing(tmp_path: Path) -> None:
    config = UNKNOWN | {"num_key_value_heads": 3}
    own = parts((HEADS * WIDTH,) * 3)
    assert compared(tmp_path, own, per_head(2, own), (config, config)).is_same
