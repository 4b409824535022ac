"""Every model type whose files transformers converts, from its own table, each as small models of its default config.

`converted` lists them: the keys of `conversion_mapping` with at least one WeightConverter.  A model is made small by
the zoo's rules (`zoo_models.candidates`), and then changed, so that it has experts and no width is twice another
("odd"), or so that a stack of gate and up is as wide as it is long and no shape tells its axes apart ("square").
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import conversion_mapping
from transformers.core_model_loading import WeightConverter
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.oracles import zoo_models
from tests.oracles.dialects.models import fill

VARIANTS = ("odd", "square")
OF_EXPERTS = {"MergeModulelist", "ErnieFuseAndSplitTextVisionExperts", "Transpose", "Interleave"}
"""Operations that only converters of experts have."""
CLASSES = {
    "Dinov2Backbone": "dinov2", "Dinov2Model": "dinov2",
    "Dinov2WithRegistersBackbone": "dinov2_with_registers", "Dinov2WithRegistersModel": "dinov2_with_registers",
    "Dots3NoteTextModel": "dots3_note_text", "Molmo2TextModel": "molmo2_text", "RfDetrModel": "rf_detr",
    "Tipsv2TextModel": "tipsv2_text_model", "Tipsv2VisionBackbone": "tipsv2_vision_model",
    "Tipsv2VisionModel": "tipsv2_vision_model", "UnlimitedOcrTextModel": "unlimited_ocr_text",
    "UnlimitedOcrVisionEncoder": "unlimited_ocr_vision_encoder",
}  # fmt: skip
"""{key of the table that is a class: the model type of its config}"""
ARCHITECTURES = {
    "dots3_note_vision_encoder": "Dots3NoteVisionModel", "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "step3p5_vision": "Step3p7VisionModel",
}  # fmt: skip
"""{model type that no Auto class builds: its class}"""
FEW_LAYERS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "n_dense_layers", "dense_layers")
_SMALL = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2}  # fmt: skip
_SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
SETTINGS: dict[str, dict[str, Any]] = {
    **{key: {"use_swiglu_ffn": True} for key in CLASSES if key.startswith("Dinov2")},
    "beam": _SPARSE, "glm5_next_text": _SPARSE, "glm5_next": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "olmo_hybrid": {"linear_key_head_dim": 6, "linear_value_head_dim": 10},
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 20,
                       "talker_config.spatial_merge_size": 2},
}  # fmt: skip
"""{key: {path: value}} beside the default config."""
WHOLE: dict[str, dict[str, Any]] = {
    "deepseek_ocr2": {
        "text_config": {**_SMALL, **_SPARSE, "n_routed_experts": 5, "num_experts_per_tok": 2,
                        "moe_intermediate_size": 20},
        "vision_config": {
            "sam_config": {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                           "image_size": 64, "patch_size": 16, "global_attn_indexes": [1], "window_size": 2,
                           "downsample_channels": [24, 32]},
            "encoder_config": {**_SMALL, "max_window_layers": 2},
        },
    },
    "dots3_note_vision_encoder": {
        "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4,
        "adapter_in_dim": 32, "moe_intermediate_size": 20, "num_local_experts": 5, "num_experts_per_tok": 2, **_SPARSE,
    },
    "ernie4_5_vl_moe": {
        "text_config": {**_SMALL, "moe_intermediate_size": [20, 24], "moe_num_experts": 4, "moe_k": 2,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
        "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 44, "num_heads": 4, "patch_size": 4},
    },
    "inkling_mm_model": {
        "text_config": {**_SMALL, "head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
                        "swa_head_dim": 8, "d_rel": 4, "rel_extent": 16, "n_routed_experts": 5,
                        "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                        "layer_types": ["hybrid", "hybrid_sliding"], **_SPARSE},
        "audio_config": {"n_mel_bins": 8, "mel_vocab_size": 16, "text_hidden_size": 32},
        "vision_config": {"text_hidden_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
                          "num_attention_heads": 4},
    },
}  # fmt: skip
"""{key: a config}, where no smaller one can be made of the default config by rules."""
MOST = 4_000_000
"""Parameters of a model that is small enough."""


def converted() -> dict[str, tuple[str, ...]]:
    """{key of the table: the operations of its converters}."""
    table = conversion_mapping._build_checkpoint_conversion_mapping()
    found = {}
    for key in sorted(table):
        chains = [one for one in table[key] if isinstance(one, WeightConverter)]
        if chains and key != "legacy":
            found[key] = tuple(sorted({type(step).__name__ for one in chains for step in one.operations}))
    return found


def of_experts() -> list[str]:
    """The keys whose converters are of experts."""
    return [key for key, steps in converted().items() if OF_EXPERTS & set(steps)]


def architecture(key: str) -> tuple[str, str]:
    """(model type, class) that stand for a key of the table."""
    if key in CLASSES:
        return CLASSES[key], key
    if key in ARCHITECTURES:
        return key, ARCHITECTURES[key]
    if key not in (known := zoo_models.architectures()):
        raise ValueError("no class of transformers is of this model type")
    return key, known[key][0]


def _changed(config: dict[str, Any], variant: str, bold: bool) -> dict[str, Any]:
    """A config with experts in its second layer, of odd widths or of square stacks."""
    width = config.get("hidden_size", config.get("d_model", 0))
    inner = 20 if variant == "odd" else (width // 2 if isinstance(width, int) else 0)
    of_experts = {key for key in map(str, config) if key.endswith(("moe_intermediate_size", "expert_ffn_hidden_size"))}
    if not of_experts and any(zoo_models.EXPERTS.search(str(key)) for key in config):
        of_experts = {"intermediate_size"}
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            made[key] = _changed(value, variant, bold)
        elif key in FEW_LAYERS and isinstance(value, int):
            made[key] = min(value, 1)
        elif key in ("mlp_only_layers",):
            made[key] = []
        elif key == "decoder_sparse_step":
            made[key] = 1
        elif key in of_experts and inner:
            made[key] = [inner] * len(value) if isinstance(value, (list, tuple)) else inner
        elif bold and zoo_models.EXPERTS.search(str(key)) and value:
            count = 5 if variant == "odd" else 4
            made[key] = [count] * len(value) if isinstance(value, (list, tuple)) else count
        else:
            made[key] = value
    return made


def _configs(kind: Any, key: str, model_type: str, variant: str) -> Iterator[Any]:
    """Configs, the wanted one first."""
    if key in WHOLE:
        yield lambda: kind(**WHOLE[key])
        return
    settings = zoo_models.SETTINGS.get(model_type, {}) | SETTINGS.get(key, {})
    default = kind(**settings.get("", {})).to_dict()
    for data in zoo_models.candidates(default):
        for change in (lambda d: _changed(d, variant, True), lambda d: _changed(d, variant, False), dict):
            made = change(data)
            yield lambda made=made: kind.from_dict(zoo_models._with(made, settings))


def build(key: str, variant: str = "odd", seed: int = 0) -> nn.Module:
    """A small model with random values everywhere; ValueError with the reason where there is none."""
    model_type, name = architecture(key)
    cls: Any = getattr(transformers, name, None) or _anywhere(name)
    kind = cls.config_class if key not in CONFIG_MAPPING else zoo_models.config_class(model_type, cls)
    reason, least = "", 0
    for make in _configs(kind, key, model_type, variant):
        try:
            config = make()
            count = sum(parameter.numel() for parameter in zoo_models.on_meta(cls, config).parameters())
        except Exception as error:  # whatever a model's code makes of numbers that do not fit
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            continue
        least = min(least or count, count)
        if count <= MOST:
            return _filled(cls, config, seed)
    raise ValueError(f"the smallest has {least:,} parameters" if least else reason)


def _filled(cls: Any, config: Any, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = cls(config).eval()
    fill(model, seed)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point() and "correction_bias" in name:
                buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


def _anywhere(name: str) -> Any:
    """A class that transformers does not export: of the folder of models whose name its own begins with."""
    import importlib
    import pkgutil

    from transformers import models

    flat = name.lower()
    folders = [one.name for one in pkgutil.iter_modules(models.__path__) if flat.startswith(one.name.replace("_", ""))]
    for folder in sorted(folders, key=len, reverse=True):
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        if hasattr(module, name):
            return getattr(module, name)
    raise ValueError(f"transformers has no class {name}")


__all__ = ["VARIANTS", "Callable", "Mapping", "build", "converted", "of_experts"]
