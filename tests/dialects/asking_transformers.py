"""transformers' own two forms of a model: names and shapes on the meta device, and numbered values."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import core_model_loading
from transformers.conversion_mapping import get_model_conversion_mapping

from paramtool.dialects import scopes
from paramtool.dialects import transformers as transformers_dialect
from paramtool.parts.pieces import Stored
from tests.oracles.zoo_models import SETTINGS, _with, candidates, on_meta

Shapes = dict[str, tuple[int, ...]]


_HEAD = {
    "upsample_out_channels": [32, 16, 8], "conv_out_channels": [16, 16], "scale_conv_out_channels": [16, 8],
    "scale_final_hidden_sizes": [16, 8],
}  # fmt: skip
_ROPE = {"rope_parameters": {
    kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")
}}  # fmt: skip
_TALK = {"text_config": {"shared_expert_intermediate_size": 64}, "spatial_merge_size": 2}
_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_SPARSE = ["dense"] + ["sparse"] * 63
MORE: dict[str, dict[str, Any]] = {
    "Nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "DeepseekOcr2Text": {"mlp_layer_types": _SPARSE},
    "DeepseekOcr2": {"text_config": {"mlp_layer_types": _SPARSE}},
    "Emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6}},
    "Granite4Vision": {"deepstack_layer_map": [[1, 1]], "downsample_rate": "4/8"},
    "PerceptionLM": {
        "vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": {"embed_dim": 1024}},
    },
    "Sapiens2For": {"head_config": _HEAD},
    "T5Gemma2Encoder": {"text_config": {"dropout_rate": 0.0}},
    "T5GemmaEncoder": {"is_encoder_decoder": False},
    "MoonshineStreaming": {"num_key_value_heads": 8},
    "Dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 5e5}},
    "CohereCompassText": _ROPE,
    "CohereCompass": {"text_config": _ROPE},
    "Qwen3OmniMoeTalker": _TALK,
    "Qwen3OmniMoeFor": {"talker_config": _TALK},
    "DiffusionGemmaEncoderText": _EXPERTS,
    "DiffusionGemma": {"text_config": _EXPERTS},
    "EsmForProteinFolding": {"is_folding_model": True, "vocab_size": 33},
    "BeitForSemanticSegmentation": {"out_indices": [1, 2, 3, 4]},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "ViltForImagesAndTextClassification": {"num_images": 2},
    "Wav2Vec2BertForCTC": {"vocab_size": 32},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 32},
}
"""{beginning of classes: settings without which their default configs make no model}."""


def small(name: str) -> nn.Module:
    """A model of a class on the meta device, small if its config can be made small; its config is one of a file."""
    cls: Any = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = _small(cls, name)
        try:  # some classes make another config of the one that they get
            return on_meta(cls, cls.config_class.from_dict(config_of(made)))
        except Exception:
            return made


def _small(cls: Any, name: str) -> nn.Module:
    kind = cls.config_class
    settings = SETTINGS.get(kind.model_type, {})
    more = next((more for head, more in MORE.items() if name.startswith(head)), None)
    if more is not None:
        return on_meta(cls, kind(**more))
    for data in candidates(kind(**settings.get("", {})).to_dict()):
        try:
            return on_meta(cls, kind.from_dict(_with(data, settings)))
        except Exception:  # whatever a model's code makes of numbers that do not fit
            continue
    return on_meta(cls, kind(**settings.get("", {})))


def of_default_size(name: str) -> nn.Module:
    """A model of a class on the meta device, from the config that it has by default."""
    cls: Any = getattr(transformers, name)
    kind = cls.config_class
    more = next((more for head, more in MORE.items() if name.startswith(head)), None)
    return on_meta(cls, kind(**(more or SETTINGS.get(kind.model_type, {}).get("", {}))))


def config_of(model: Any) -> dict[str, Any]:
    """The config.json that save_pretrained writes."""
    found: dict[str, Any] = json.loads(model.config.to_json_string())
    return found | {"architectures": [type(model).__name__]}


def in_memory(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def as_saved(model: Any) -> Shapes:
    """What save_pretrained writes by default: transformers 4's names and tensors."""
    saved = core_model_loading.revert_weight_conversion(model, dict(model.state_dict()))
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}


def has_rules(model: Any) -> bool:
    return bool(get_model_conversion_mapping(model, add_legacy=False))


def hub_of(stored: Iterable[Stored]) -> Shapes:
    """The tensors that pieces are of."""
    found: dict[str, tuple[int, ...]] = {}
    for one in stored:
        for piece in one.pieces:
            ends = tuple(a + b for a, b in zip(piece.start, piece.shape, strict=True))
            old = found.get(piece.part, ends)
            found[piece.part] = tuple(max(a, b) for a, b in zip(old, ends, strict=True))
    return found


def elements(one: Stored) -> int:
    return sum(math.prod(piece.shape) for piece in one.pieces)


def shapes_of(stored: Iterable[Stored]) -> Shapes:
    return {one.name: one.shape for one in stored}


def different(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What one has and the other lacks, or has with another shape."""
    return [
        f"{name}: ours {ours.get(name)}, theirs {theirs.get(name)}"
        for name in {**theirs, **ours}
        if ours.get(name) != theirs.get(name)
    ]


# --- Values ----------------------------------------------------------------------------------------------------------

MOST = 40_000_000
"""Elements of a model whose values are compared, too."""


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """A different number in every element of all tensors."""
    found, first = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        found[name] = np.arange(first, first + count, dtype=np.int64).reshape(shape)
        first += count
    return found


def values_of(one: Stored, parts: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """A tensor put together from its parts; -1 where nothing is."""
    made = np.full(one.shape, -1, dtype=np.int64)
    for piece in one.pieces:
        box = parts[piece.part][(*(slice(a, a + n) for a, n in zip(piece.start, piece.shape, strict=True)), ...)]
        flat = [digit for digits in piece.digits for digit in digits]
        strides = [digit.step * made.strides[digit.axis] for digit in flat]
        first = made[(*(slice(k, None) for k in piece.at), ...)]
        place = np.lib.stride_tricks.as_strided(first, [digit.length for digit in flat], strides)
        place[...] = box.reshape(place.shape)
    return made


def saved_values(model: Any, values: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """What save_pretrained writes of a model with these values."""
    tensors = {name: torch.from_numpy(one.copy()) for name, one in values.items()}
    saved = core_model_loading.revert_weight_conversion(model, tensors)
    return {name: one.numpy() for name, one in saved.items()}


def disagreements(model: Any, *, values: bool = True) -> list[str]:
    """Where paramtool and transformers differ about a model: in names, shapes, or in which element is where."""
    config, five, four = config_of(model), in_memory(model), as_saved(model)
    ours = transformers_dialect.read(five, config)
    found = [f"file: {one}" for one in different(hub_of(ours), four)]
    found += [f"{one.name}: not all of it" for one in ours if elements(one) != math.prod(one.shape)]
    written = transformers_dialect.write(four, config)
    found += [f"model: {one}" for one in different(shapes_of(written), five)]
    if not found and sorted(written) != sorted(ours):
        found.append("reading and writing differ")
    if not found and values and sum(math.prod(shape) for shape in five.values()) <= MOST:
        given = numbered(five)
        parts = saved_values(model, given)
        found += [f"{one.name}: other values" for one in ours if not (values_of(one, parts) == given[one.name]).all()]
    return found


def misnamed(tensors: Shapes, config: Mapping[str, Any]) -> dict[str, str]:
    """{name that the rules alone give: name that the model has}, of all tensors of a model in memory.

    transformers asks the model which names it has before it renames; the table has what comes of that.
    """
    rules = scopes.rules(config)
    hub_shapes, origins = transformers_dialect._hub(tensors, rules, config)
    found: dict[str, str] = {}
    used: dict[tuple[str, ...], int] = {}
    for one in transformers_dialect._forward(hub_shapes, rules, {**config, "architectures": [""]}, ()):
        names = origins[one.pieces[0].part]
        k = used[names] = used.get(names, -1) + 1
        if one.name not in names:
            found[one.name] = names[k]
    return found
