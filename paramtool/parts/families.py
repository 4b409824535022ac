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
from collections.abc import Mapping
from functools import cache
from typing import Any

from paramtool.package_data import package_data
from paramtool.parts import layer_kinds

EXPERTS = "experts"
"""Stands for all stacks of a module of experts."""


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


def of_family(model_type: str, config: Mapping[str, Any]) -> FamilyLayouts:
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
        layout = "qkv-per-chunk" if layer_kinds.chunks(config) else "qkv"
        # vLLM 0.33 models/mimo_v2.py 387-391, 580-600
        return {**rows().get(model_type, {}), "qkv_proj": (layout,)}
    if not model_type and _is_timm_vit(config):
        return {"qkv": ("qkv",)}  # timm 1.0.31 layers/attention.py
    return rows().get(model_type, {})


def named(layouts: FamilyLayouts, module: str, name: str) -> tuple[str, ...]:
    """Those of the layouts of a family that a fused tensor of a module has."""
    return layouts.get(f"{module.rpartition('.')[2]}.{name}", layouts.get(name, ()))


def _falcon(config: Mapping[str, Any]) -> str:
    """One group for each KV head in the new architecture; else one KV head, or one for each head."""
    if config.get("new_decoder_architecture", False) is True:
        return "qkv-per-group"
    return "qkv-per-head" if config.get("multi_query", True) is False else "qkv"


def _is_timm_vit(config: Mapping[str, Any]) -> bool:
    """Whether a config is that of a ViT of timm, which says `architecture` and `pretrained_cfg`."""
    name = config.get("architecture")
    return "pretrained_cfg" in config and isinstance(name, str) and name.startswith(("vit_", "deit_"))
