"""Which layout the fused tensors of a family of models have, by the model type in its config.json.

    gpt_neox   query_key_value=qkv-per-head        bloom, persimmon: the same
    phi3       qkv_proj=qkv  gate_up_proj=gate-up
    llama4     experts=experts-transposed          the stacks of a module `experts`

`families.json` has a row for each: `types`, {name of a fused tensor: the layouts that the family has}, `source`.
Only names that a family's own files or classes have are here.  The same name in files of another program, such as
`qkv_proj` of a Llama that vLLM wrote, has no row: `--layout` says its layout.  Sources: transformers 5.23.0, files
`models/NAME/modeling_NAME.py` unless another is named; conversion_mapping.py is "map".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from paramtool.errors import LayoutError
from paramtool.grouping import omit
from paramtool.package_data import package_data

EXPERTS = "experts"
"""Stands for all stacks of a module of experts."""


Config = Mapping[str, Any]
"""A parsed config.json, or the part of one that describes a tower; empty where there is none."""
FamilyLayouts = Mapping[str, tuple[str, ...]]
"""{name of a fused tensor, with its module's where that decides, or `experts`: its layout, or several that the family
has}"""


@cache
def rows() -> Mapping[str, FamilyLayouts]:
    """{model type: its row}."""
    return {
        model_type: {name: tuple(ways) for name, ways in row["layouts"].items()}
        for row in json.loads(package_data("parts", "families.json"))
        for model_type in row["types"]
    }


def of_family(model_type: str, config: Config) -> FamilyLayouts:
    """The layouts of a model type's fused tensors; nothing for one that the table lacks.

    `config` is that of the tower: the layouts of Falcon and GPTBigCode hang on its flags.

    >>> of_family("gpt_neox", {})["query_key_value"]
    ('qkv-per-head',)
    >>> of_family("falcon", {"new_decoder_architecture": True})["query_key_value"]
    ('qkv-per-group',)
    """
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return {"query_key_value": (_falcon(config),)}  # falcon 249-275
    if model_type == "gpt_bigcode":
        layout = "qkv-per-head" if config.get("multi_query", True) is False else "qkv"
        return {"c_attn": (layout,)}  # gpt_bigcode 200-211
    if model_type.startswith("mimo_v2") and config.get("attention_projection_layout") == "fused_qkv":
        layout = "qkv-per-chunk" if chunks(config) else "qkv"
        # vLLM 0.33 models/mimo_v2.py 387-391, 580-600
        return {**rows().get(model_type, {}), "qkv_proj": (layout,)}
    if not model_type and "pretrained_cfg" in config and str(config.get("architecture")).startswith(("vit_", "deit_")):
        return {"qkv": ("qkv",)}  # a ViT of timm (1.0.31 layers/attention.py)
    return rows().get(model_type, {})


def named(layouts: FamilyLayouts, module: str, name: str) -> tuple[str, ...]:
    """Those of the layouts of a family that a fused tensor of a module has."""
    return layouts.get(f"{module.rpartition('.')[2]}.{name}", layouts.get(name, ()))


def _falcon(config: Config) -> str:
    """One group for each KV head in the new architecture; else one KV head, or one for each head."""
    if config.get("new_decoder_architecture", False) is True:
        return "qkv-per-group"
    return "qkv-per-head" if config.get("multi_query", True) is False else "qkv"


# --- Models whose layers are of two kinds with other heads: which kind a layer is of, and what the config says of
# that ----------------------------------------------------------------------------------------------------------------
#
#     num_key_value_heads=4  swa_num_key_value_heads=8  hybrid_layer_pattern=[0, 1, 1, ...]
#     layer 0: kv_heads=4    layer 1, of a sliding window: kv_heads=8
#
# The pattern is `hybrid_layer_pattern` (1 is a sliding window; vLLM 0.33 models/mimo_v2.py 408, 500), `layer_types`, or
# what the class of the model type takes without them.  The keys with `swa_` are those of layers with a sliding window.


SLIDING, FULL = "sliding", "full"
"""The kinds of layers; "" where it is not known."""
SWA = {
    "swa_num_attention_heads": "num_attention_heads", "swa_num_key_value_heads": "num_key_value_heads",
    "swa_head_dim": "head_dim", "swa_v_head_dim": "v_head_dim",
}  # fmt: skip
"""{key for layers with a sliding window: the key for the others}"""
TYPES = {
    "sliding_attention": SLIDING, "hybrid_sliding": SLIDING, "full_attention": FULL, "hybrid": FULL,
}  # fmt: skip
"""{a word of `layer_types`: the kind}"""
LAYER = re.compile(r"(?:(?:model|language_model|text_model|transformer|llm)\.)*layers\.([0-9]{1,6})\.")
"""Names of a text model's own layers; those for multi-token prediction are elsewhere, and of no kind that is known."""


class _Kinds(NamedTuple):
    """A model type whose layers are of two kinds."""

    is_full: Callable[[int], bool]
    """Which layers have no sliding window, without a pattern in the config."""
    full: str
    """Rules of `config_facts` for these layers, beside those of the model type."""
    sliding: str
    group: int = 0
    """How many times num_key_value_heads a layer with a sliding window has; 0 where only `swa_` keys say it."""


_FULL = "heads=num_attention_heads:{} kv_heads=num_key_value_heads:{} head_dim=head_dim:128"
MODEL_TYPES: Mapping[str, _Kinds] = {
    "mimo_v2_flash": _Kinds(
        lambda layer: not layer or not (layer + 1) % 6, "kv_heads=num_key_value_heads:4",
        "kv_heads=num_key_value_heads:8", 2,
    ),
    "inkling_text": _Kinds(lambda layer: not (layer + 1) % 6, _FULL.format(64, 8), _FULL.format(64, 16)),
    "inkling2_text": _Kinds(lambda layer: not (layer + 1) % 6, _FULL.format(48, 8), _FULL.format(48, 8)),
}  # fmt: skip
"""transformers 5.23.0: models/mimo_v2_flash/modeling_mimo_v2_flash.py 340-355 and its configuration 106-110,
models/inkling/configuration_inkling.py 117-122 and 168-176, models/inkling2/configuration_inkling2.py 92-99 and 130."""


def kind(name: str, model_type: str, config: Config) -> str:
    """The kind of the layer of a tensor; "" where it is not known, or the layers are all alike.

    LayoutError if two patterns of the config contradict each other.

    >>> config = {"swa_head_dim": 64, "hybrid_layer_pattern": [0, 1, 1]}
    >>> kind("model.layers.1.self_attn.qkv_proj.weight", "", config)
    'sliding'
    """
    if (match := LAYER.match(name)) is None or not (model_type in MODEL_TYPES or SWA.keys() & config.keys()):
        return ""
    layer, known = int(match[1]), MODEL_TYPES.get(model_type)
    said = {key: one for key in ("hybrid_layer_pattern", "layer_types") if (one := _said(config.get(key), layer))}
    if len(set(said.values())) > 1:
        words = ", and by ".join(f"{key} of {one} attention" for key, one in said.items())
        raise LayoutError(
            f"config.json: layer {layer} is by {words}",
            hint="the two have other heads; correct the pattern that is wrong, or delete it from a copy of config.json",
        )
    if said or known is None or any(key in config for key in ("hybrid_layer_pattern", "layer_types")):
        return next(iter(said.values()), "")
    if isinstance(local := config.get("local_layer_ids"), list):
        return SLIDING if layer in local else FULL
    return FULL if known.is_full(layer) else SLIDING


def _said(pattern: object, layer: int) -> str:
    """The kind of a layer by one pattern."""
    if not isinstance(pattern, list) or layer >= len(pattern):
        return ""
    one = pattern[layer]
    if isinstance(one, int):
        return SLIDING if one == 1 else FULL
    return TYPES.get(one, "") if isinstance(one, str) else ""


def of_kind(config: Config, kind: str, model_type: str) -> dict[str, Any]:
    """The config of the layers of a kind, under the usual keys."""
    plain = omit(config, SWA)
    if kind == SLIDING:
        known, heads = MODEL_TYPES.get(model_type), config.get("num_key_value_heads")
        if known is not None and not known.group:
            plain = {key: value for key, value in plain.items() if key not in SWA.values()}
        elif known is not None and type(heads) is int:
            plain["num_key_value_heads"] = known.group * heads
        plain |= {SWA[key]: value for key, value in config.items() if key in SWA}
    return plain


def rules(model_type: str, kind: str) -> str:
    """What `config_facts` reads for a kind of layers beside the rules of the model type."""
    known = MODEL_TYPES.get(model_type)
    return "" if known is None else {FULL: known.full, SLIDING: known.sliding}.get(kind, "")


def source(said: str, config: Config, kind: str, model_type: str) -> str:
    """Who said a size of a kind of layers, where `of_kind` put it under another key."""
    key = said.rpartition(" ")[2]
    own = next((swa for swa, plain in SWA.items() if plain == key and swa in config), "")
    if kind != SLIDING or said.endswith("default"):
        return said
    if own:
        return said.removesuffix(key) + own
    known = MODEL_TYPES.get(model_type)
    return f"{said} x {known.group}" if known and known.group and key == "num_key_value_heads" else said


def chunks(config: Config) -> int:
    """The chunks that MiMo's files have fused queries, keys and values in; 0 for none.

    It is num_key_value_heads of the model, whichever kind a layer is of (vLLM 0.33 models/mimo_v2.py 387-391, 1047).
    """
    quantised, count = config.get("quantization_config"), config.get("num_key_value_heads")
    is_chunked = (
        config.get("attention_projection_layout") == "fused_qkv"
        and isinstance(quantised, Mapping)
        and bool(quantised.get("weight_block_size"))
    )
    return count if is_chunked and type(count) is int else 0
