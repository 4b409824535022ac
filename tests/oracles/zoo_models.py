"""Small models of the architectures of transformers and timm, made from the configs that their classes have by default.

transformers' own tests keep a small config for each architecture, and do not install it.  Here one is made of the
default config: numbers of layers, widths, vocabularies and experts are made small by their names, first boldly, then
more and more carefully, until transformers builds a model of it that is small enough.  Nothing is downloaded.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FEW, MOST = 1_000_000, 24_000_000
"""Parameters of a model that is small, and of one that is small enough where there is no smaller one."""
PREFERRED = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM",
    "PRETRAINING", "",
)  # fmt: skip
"""Which class stands for a model type: one with an output head, where it has one; last its base model."""
COUNT = re.compile(r"^(num_|n_)\w*(layers?|blocks)$|_layers$|^depth$|^n_layer$|^layers$|^e_layers$|_depth$")
WIDTHS = re.compile(
    r"(^|_)(hidden_size|d_model|n_embd|embed_dim|embedding_dim|hidden_dim|dim|d_embed|emb_dim|width|model_dim|"
    r"projection_dim|output_dim|embedding_size|out_hidden_size|embed_size)$"
)
INNER = re.compile(r"(ffn_dim|intermediate_size|d_ff|mlp_dim|n_inner|ffn_hidden_size|d_inner|mlp_hidden_size)$")
HEADS = re.compile(r"(^|_)(num_(\w+_)?(attention_)?heads|n_heads?|attention_heads|num_heads)$")
GROUPS = re.compile(r"(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num)$")
HEAD_DIM = re.compile(r"(^|_)(head_dim|d_kv|dim_head|attention_head_dim)$")
EXPERTS = re.compile(
    r"(^|_)(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts|num_moe_experts)$"
)
PICKED = re.compile(r"(num_experts_per_tok|moe_k|top_k|moe_topk|num_experts_per_token|router_top_k)$")
SCALED = re.compile(
    r"(dim|dims|size|sizes|channels|width|widths|features|rank|d_model|d_ff|n_embd|section|d_kv|d_inner|filters)$"
)
FIXED = re.compile(
    r"(vocab|image|patch|kernel|window|conv|crop|batch|chunk|grid|input|feature|pool|stride|merge|block|sample|group|num_)"
    r"\w*(size|sizes|dim)$|_token|num_channels$|in_channels$|^scale|max_"
)
VOCABULARY = re.compile(r"(^|_)(vocab_size|vocabulary_size|num_embeddings_vocab|vocab_size_per_layer_input)$")
POSITIONS = re.compile(r"(max_position_embeddings|n_positions|max_source_positions|max_target_positions|n_ctx)$")
TOKEN = re.compile(r"_(token_id|token_index|idx)$")
WORDS = 128
"""The size of a small vocabulary."""


SETTINGS: dict[str, dict[str, Any]] = {
    "autoformer": {"": {"prediction_length": 4}},
    "informer": {"": {"prediction_length": 4}},
    "time_series_transformer": {"": {"prediction_length": 4}},
    "hunyuan_v1_dense": {"head_dim": 16}, "hunyuan_v1_moe": {"head_dim": 16}, "hunyuan_vl_text": {"head_dim": 16},
    "hunyuan_vl": {"text_config.head_dim": 16},
    "ministral": {"head_dim": 16},
    "esm": {"": {"vocab_size": 33, "pad_token_id": 1}},
    "nemotron": {"head_dim": 8},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n": {"text_config.num_kv_shared_layers": 0},
    "chameleon": {"": {"vocabulary_map": {"<image>": 5}}, "vq_config.base_channels": 32},
    "janus": {"vq_config.base_channels": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
}  # fmt: skip
"""{model type: {path: value}}: what has to be said beside the defaults; under an empty path, when a config is made."""


def architectures() -> dict[str, tuple[str, ...]]:
    """{model type: its classes, the one that stands for it first}, by the tables of transformers' Auto classes."""
    found: dict[str, dict[str, None]] = {}
    tables = {
        name.removeprefix("MODEL_FOR_").removeprefix("MODEL").removesuffix("MAPPING_NAMES").strip("_"): table
        for name, table in vars(modeling_auto).items()
        if name.startswith("MODEL") and name.endswith("_MAPPING_NAMES")
    }
    rank = {table: k for k, table in enumerate(PREFERRED)}
    for name in sorted(tables, key=lambda name: (rank.get(name, len(rank)), name)):
        for model_type, classes in tables[name].items():
            names = [classes] if isinstance(classes, str) else classes
            found.setdefault(model_type, {}).update(dict.fromkeys(names))
    return {model_type: tuple(found[model_type]) for model_type in sorted(found)}


def _walk(config: dict[str, Any], change: Callable[[dict[str, Any], str, Any], Any]) -> dict[str, Any]:
    """A config with each value changed, those in it first."""
    made = {k: _walk(v, change) if isinstance(v, dict) else v for k, v in config.items()}
    return {k: change(config, k, value) if isinstance(k, str) else value for k, value in made.items()}


def _smaller(width: int, words: int) -> Callable[[dict[str, Any], str, Any], Any]:
    """Numbers by their names; widths stay where `width` is 0, vocabularies where `words` is."""

    def change(config: dict[str, Any], key: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
            return value
        if isinstance(value, (list, tuple)):
            if key == "depths":
                return [min(number, 1) for number in value]
            return value
        if COUNT.search(key):
            return min(value, 2)
        if EXPERTS.search(key):
            return min(value, 4)
        if PICKED.search(key):
            return min(value, 2)
        if words and VOCABULARY.search(key):
            return min(value, words)
        if words and TOKEN.search(key) and isinstance(config.get("vocab_size", words), int):
            return value if value < words else value % 7 + 3
        if POSITIONS.search(key):
            return min(value, 128) if width else value
        if not width:
            return value
        if HEADS.search(key) or GROUPS.search(key):
            return min(value, 4)
        if HEAD_DIM.search(key):
            return min(value, width // 4)
        if INNER.search(key):
            return min(value, 2 * width)
        return min(value, width) if WIDTHS.search(key) else value

    return change


def _scaled(factor: int) -> Callable[[dict[str, Any], str, Any], Any]:
    """Widths divided by one factor, so that what depends on each other still fits; layers and words made few."""
    few = _smaller(0, WORDS)

    def divided(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [divided(one) for one in value]
        whole = isinstance(value, int) and not isinstance(value, bool)
        return max(value // factor, 2) if whole and value >= 16 and value % factor == 0 else value

    def change(config: dict[str, Any], key: str, value: Any) -> Any:
        value = few(config, key, value)
        return divided(value) if SCALED.search(key) and not FIXED.search(key) else value

    return change


OF_LAYERS = ("out_features", "out_indices", "stage_names", "per_layer_config", "num_kv_shared_layers")
"""Keys, with underscores before some, that name layers which a smaller model may not have; classes make them again."""


def _per_layer(config: dict[str, Any], made: dict[str, Any], how: str) -> dict[str, Any]:
    """Lists with one item a layer: cut, or left for the class to make again."""
    for key, value in list(made.items()):
        if isinstance(key, str) and key.lstrip("_") in OF_LAYERS and how == "drop":
            del made[key]
        elif isinstance(value, dict) and isinstance(config.get(key), dict):
            made[key] = _per_layer(config[key], value, how)
        elif isinstance(value, list):
            old = [number for name, number in config.items() if COUNT.search(name) and number == len(value)]
            new = [made[name] for name, number in config.items() if COUNT.search(name) and number == len(value)]
            if old and len(value) > 2 and key != "depths":
                if how == "cut":
                    made[key] = value[: new[0]]
                elif all(isinstance(one, str) for one in value):
                    del made[key]
    return made


def candidates(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Smaller configs, the boldest first, and last the config itself."""
    bold = [_smaller(width, WORDS) for width in (32, 64, 128)]
    scaled = [_scaled(factor) for factor in (64, 32, 16, 8, 4)]
    for change in (*bold, *scaled, _smaller(0, WORDS), _smaller(0, 0)):
        for how in ("drop", "cut"):
            yield _per_layer(config, _walk(config, change), how)
    yield config


def config_class(model_type: str, cls: Any) -> Any:
    """The config that a model of a type is built with: of a part of a composite one, the part's."""
    kind = CONFIG_MAPPING[model_type]
    return cls.config_class if cls.config_class in kind.sub_configs.values() else kind


def small_config(model_type: str, architecture: str) -> Any:
    """A config of which a small model can be built; ValueError with the reason where there is none."""
    cls = getattr(transformers, architecture)
    kind = config_class(model_type, cls)
    settings = SETTINGS.get(model_type, {})
    default = kind(**settings.get("", {})).to_dict()
    found, least, reason = None, 0, ""
    for data in candidates(default):
        if found is not None and least <= MOST and data is default:
            break  # what comes last is the largest
        try:
            config = kind.from_dict(_with(data, settings))
            count = sum(parameter.numel() for parameter in on_meta(cls, config).parameters())
        except Exception as error:  # whatever a model's code makes of numbers that do not fit
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        if found is None or count < least:
            found, least = config, count
        if count <= FEW:
            break
    if found is not None and least <= MOST:
        return found
    raise ValueError(f"the smallest that was found has {least:,} parameters; {reason}" if least else reason)


def _with(config: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config with some values set, those of nested ones by their paths: `text_config.head_dim`."""
    made = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for path, value in settings.items():
        if path:
            *steps, last = path.split(".")
            place = made
            for step in steps:
                place = place[step]
            place[last] = value
    return made


def on_meta(cls: Any, config: Any) -> nn.Module:
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        made: nn.Module = cls(config)
    return made


def small(model_type: str, *, seed: int = 0, device: str = "cpu", architecture: str = "", **settings: Any) -> nn.Module:
    """A small model of a type, with random values everywhere; on the meta device with none."""
    name = architecture or architectures()[model_type][0]
    config = small_config(model_type, name)
    for key, value in settings.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    return like(getattr(transformers, name), config, seed=seed, device=device)


def fill(model: nn.Module, seed: int = 0) -> None:
    """Random values in every parameter, so that no two tensors are equal and none is all zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(std=0.02, generator=generator)


def like(cls: Any, config: Any, *, seed: int = 1, device: str = "cpu") -> nn.Module:
    """A model of a class and a config with random values; on the meta device with none."""
    made: nn.Module
    if device == "meta":
        made = on_meta(cls, config)
        made.tie_weights()  # type: ignore[operator]
        return made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = cls(config).eval()
    fill(made, seed)
    return made


# --- timm ------------------------------------------------------------------------------------------------------------

TIMM = (
    "coat_tiny", "convit_tiny", "convnext_atto_rms", "cpubone_nano", "crossvit_tiny_240", "cs3darknet_focus_s",
    "cspnext_tiny", "deit_tiny_patch16_224", "eca_botnext26ts_256", "edgenext_xx_small", "efficientformerv2_s0",
    "efficientvit_b0", "fastvit_t8", "ghostnet_050", "hardcorenas_a", "hgnetv2_b0", "hrnet_w18_small", "iformer_s",
    "inception_next_atto", "lcnet_035", "lcnetv2_small", "levit_128s", "mambaout_femto", "maxvit_pico_rw_256",
    "mobilenetv2_035", "mobileone_s1", "mobilevit_xxs", "nf_regnet_b0", "pit_ti_224", "pvt_v2_b0", "regnetx_002",
    "repghostnet_050", "resnet18", "resnetv2_18", "rexnet_100", "shvit_s1", "starnet_s050", "swiftformer_xs",
    "tiny_vit_5m_224", "visformer_tiny", "vit_tiny_patch16_224", "vit_tiny_patch16_dinov3_qkvb",
    "vit_tiny_r_s16_p8_224", "xcit_nano_12_p8_224",
)  # fmt: skip
"""The smallest model of each of many modules of timm."""


def has_timm() -> bool:
    try:
        import timm  # noqa: F401
    except ImportError:
        return False
    return True


def of_timm(name: str, *, seed: int = 0, device: str = "cpu", num_classes: int = 10) -> nn.Module:
    """A model of timm with random values."""
    import timm

    with torch.device(device):
        made: nn.Module = timm.create_model(name, pretrained=False, num_classes=num_classes).eval()
    if device != "meta":
        fill(made, seed)
    return made


def warm_up() -> None:
    """Import what most models need, so that each process that is forked has it."""
    for name in ("LlamaForCausalLM", "BertModel", "CLIPModel", "LlavaForConditionalGeneration"):
        getattr(transformers, name)
    if has_timm():
        transformers.TimmBackbone
