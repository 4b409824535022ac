"""Which layout the fused tensors of a family of models have, by the model type in its config.json.

    gpt_neox   query_key_value=qkv-per-head        bloom, persimmon: the same
    phi3       qkv_proj=qkv  gate_up_proj=gate-up
    llama4     experts=experts-transposed          the stacks of a module `experts`

Only names that a family's own files or classes have are here.  The same name in files of another program, such as
`qkv_proj` of a Llama that vLLM wrote, has no row: `--layout` says its layout.  Sources: transformers 5.23.0, files
`models/NAME/modeling_NAME.py` unless another is named; conversion_mapping.py is "map".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from paramtool.parts import layer_kinds

EXPERTS = "experts"
"""Stands for all stacks of a module of experts."""
_PLAIN = "qkv=qkv"
_STACKS = "experts=experts"
ROWS: tuple[tuple[str, str, str], ...] = (
    ("gpt_neox gpt_neox_japanese", "query_key_value=qkv-per-head", "gpt_neox 193-196, gpt_neox_japanese 179-187"),
    ("bloom", "query_key_value=qkv-per-head", "bloom 214"),
    ("persimmon", "query_key_value=qkv-per-head", "persimmon 229"),
    ("minimax", "qkv_proj=qkv-per-head experts=experts", "minimax 188-190, 478"),
    ("deberta", "in_proj=qkv-per-head", "deberta 187-190, 231-235"),
    ("codegen", "qkv_proj=qvk-per-chunk", "codegen 152-160"),
    ("gpt2 openai-gpt imagegpt decision_transformer", "c_attn=qkv-conv1d crossattention.c_attn=kv-conv1d",
     "gpt2 100-102, 174, 185, openai 99, imagegpt 243, decision_transformer 179"),
    ("mpt", "Wqkv=qkv", "mpt 100"),
    ("dbrx", "Wqkv=qkv experts=experts-flat", "dbrx 187-207, 253-301"),
    ("modernbert", "Wqkv=qkv Wi=gate-up", "modernbert 261, 90-91: the first half is activated"),
    ("modernbert-decoder", "Wi=gate-up", "modernbert_decoder 80"),
    ("nomic_bert jina_embeddings_v3", "Wqkv=qkv", "map 1667, 1708"),
    ("gte", "qkv_proj=qkv up_gate_proj=up-gate", "map 1684, 1692"),
    ("phi3 phi4_multimodal", "qkv_proj=qkv gate_up_proj=gate-up", "phi3 58-60, 219-222; phi4_multimodal 1136, 1247"),
    ("phi4_multimodal_audio", "gate_up_proj=up-gate", "phi4_multimodal 603: the second half is activated"),
    ("glm glm4 glm4v_text glm4v glm_image_text glm_ocr_text dia_encoder dia_decoder dia zamba2 esmfold2 "
     "dots3_note_audio_encoder", "gate_up_proj=gate-up",
     "glm 58, glm4 60, glm4v 614, glm_image 701, glm_ocr 248, dia 117, zamba2 905, esmfold2 205, dots3_note 1020"),
    ("chatglm", "query_key_value=qkv dense_h_to_4h=gate-up", "vLLM 0.33 models/chatglm.py 61-80"),
    ("baichuan", "W_pack=qkv", "vLLM 0.33 layers/linear.py 1119, models/baichuan.py"),
    ("internlm2", "wqkv=qkv-per-group", "llama.cpp conversion/internlm.py; vLLM 0.33 models/internlm2.py 167"),
    ("bark semantic coarse_acoustics fine_acoustics", "att_proj=qkv", "bark 159, 213"),
    ("molmo2_text molmo2", "att_proj=qkv ff_proj=up-gate", "map 978-985"),
    ("hrm_text", "gate_up_proj=gate-up", "map 429"),
    ("jetmoe", "kv_proj=kv experts=experts", "jetmoe 463, 252-254"),
    ("evolla granite_speech_encoder granite_speech_plus_encoder", "to_kv=kv",
     "evolla 644, granite_speech 180, granite_speech_plus 327"),
    ("layoutlmv2", "qkv_linear=qkv", "layoutlmv2 127-128"),
    ("dinov2 dinov2_with_registers", "weights_in=gate-up", "map 480-505"),
    ("granitemoe_swa granitemoehybrid granitemoeshared", "input_linear=gate-up experts=experts",
     "granitemoe_swa 317, granitemoehybrid 759, granitemoeshared 84"),
    ("kimi_k25_vision", "wqkv=qkv", "map 637"),
    ("exaone4_5_vision", _PLAIN, "exaone4_5 258"),
    ("blip_vision_model blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model "
     "qianfan_ocr_vision mgp-str timesformer vitdet hiera sam_vision_model sam_hq_vision_model sam2_hiera_det_model "
     "sam2_vision_model seggpt slanext_vision got_ocr2_vision deepseek_ocr2_sam_vision_model "
     "unlimited_ocr_sam_vision_model pp_formulanet_vision radio tipsv2_vision_model florence_vision", _PLAIN,
     "reshape(..., 3, heads, -1) in blip 320, blip_2 329, instructblip 248, mgp_str 141, timesformer 166, vitdet 234, "
     "hiera 358, sam 808, sam_hq 232, sam2 329, seggpt 318, slanext 150, got_ocr2 181, deepseek_ocr2 276, "
     "unlimited_ocr 254, pp_formulanet 200, florence2 362; map 413, 1766, 2050"),
    ("qwen2_vl_vision qwen2_5_vl_vision qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision "
     "qwen3_omni_moe_vision_encoder qwen4_exp_vision glm4v_vision glm4v_moe_vision glm_image_vision glm_ocr_vision "
     "glm5_next_vision ernie4_5_vl_moe_vision cohere_compass_vision dots3_note_vision_encoder", _PLAIN,
     "reshape(tokens, 3, heads, -1) in qwen2_vl 368, qwen2_5_vl 278, qwen3_vl 264, qwen3_vl_moe 498, qwen3_5 1028, "
     "glm4v 339, ernie4_5_vl_moe 575, cohere_compass 762, dots3_note 1371"),
    ("llama4 llama4_text", "experts=experts-transposed", "llama4 61-62, 80"),
    ("aria aria_text", "experts=experts-transposed", "aria 284-285, 307"),
    ("openai_privacy_filter", "experts=experts-transposed", "openai_privacy_filter 250-259"),
    ("gpt_oss", "experts=experts-transposed-interleaved", "gpt_oss 74, 82"),
    ("qwen3_vl_moe qwen3_vl_moe_text", "experts=experts|experts-transposed",
     "qwen3_vl_moe 93; its files are transposed, map 1363: the shapes decide, as Transpose(check_dims) does"),
    ("afmoe axk1 axk2 bailing_hybrid beam cohere2_moe deepseek_ocr2_text deepseek_v2 deepseek_v3 deepseek_v32 "
     "deepseek_v4 diffusion_gemma_text dots1 dots3_note_text ernie4_5_moe ernie4_5_vl_moe_text ernie4_5_vl_moe "
     "exaone_moe flex_olmo flint gemma4_text glm4_moe glm4_moe_lite glm4v_moe_text glm5_next_text glm_moe_dsa "
     "granitemoe hunyuan_v1_moe hy_v3 hy_v4 inkling_text inkling2_text jamba kimi_linear kolibri1 laguna lfm2_moe "
     "longcat_flash mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text mistral4 mistral_large4_text mixtral "
     "muse_spark_text olmoe phimoe qwen2_moe qwen3_5_moe_text qwen3_moe qwen3_next qwen3_omni_moe_text "
     "qwen3_omni_moe_talker_text qwen4_exp_text solar_open step3p7 unlimited_ocr_text zaya", _STACKS,
     "self.gate_up_proj = empty(experts, 2 * width, inputs), whose halves are gate and up: mixtral 64, afmoe 166, ..."),
)  # fmt: skip
"""(model types, `NAME=LAYOUT` of their fused tensors, source); `|` between layouts that the family has both of."""


class FamilyLayouts(NamedTuple):
    """The layouts of a family's fused tensors."""

    layouts: Mapping[str, tuple[str, ...]]
    """{name of a fused tensor, with its module's where that decides, or `experts`: its layout, or several that the
    family has}"""
    source: str

    def of(self, module: str, name: str) -> tuple[str, ...]:
        """The layouts of a fused tensor of a module."""
        return self.layouts.get(f"{module.rpartition('.')[2]}.{name}", self.layouts.get(name, ()))


NOTHING = FamilyLayouts({}, "")


@cache
def _rows() -> Mapping[str, FamilyLayouts]:
    found: dict[str, FamilyLayouts] = {}
    for types, words, source in ROWS:
        pairs = (word.split("=") for word in words.split())
        row = FamilyLayouts({name: tuple(layouts.split("|")) for name, layouts in pairs}, source)
        found |= dict.fromkeys(types.split(), row)
    return found


def of_family(model_type: str, config: Mapping[str, Any]) -> FamilyLayouts:
    """The layouts of a model type's fused tensors; nothing for one that the table lacks.

    `config` is that of the tower: the layouts of Falcon and GPTBigCode hang on its flags.

    >>> of_family("gpt_neox", {}).layouts["query_key_value"]
    ('qkv-per-head',)
    >>> of_family("falcon", {"new_decoder_architecture": True}).layouts["query_key_value"]
    ('qkv-per-group',)
    """
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return FamilyLayouts({"query_key_value": (_falcon(config),)}, "falcon 249-275")
    if model_type == "gpt_bigcode":
        layout = "qkv-per-head" if config.get("multi_query", True) is False else "qkv"
        return FamilyLayouts({"c_attn": (layout,)}, "gpt_bigcode 200-211")
    if model_type.startswith("mimo_v2") and config.get("attention_projection_layout") == "fused_qkv":
        layout = "qkv-per-chunk" if layer_kinds.chunks(config) else "qkv"
        own = {**_rows().get(model_type, NOTHING).layouts, "qkv_proj": (layout,)}
        return FamilyLayouts(own, "vLLM 0.33 models/mimo_v2.py 387-391, 580-600")
    if not model_type and _is_timm_vit(config):
        return FamilyLayouts({"qkv": ("qkv",)}, "timm 1.0.31 layers/attention.py")
    return _rows().get(model_type, NOTHING)


def _falcon(config: Mapping[str, Any]) -> str:
    """One group for each KV head in the new architecture; else one KV head, or one for each head."""
    if config.get("new_decoder_architecture", False) is True:
        return "qkv-per-group"
    return "qkv-per-head" if config.get("multi_query", True) is False else "qkv"


def _is_timm_vit(config: Mapping[str, Any]) -> bool:
    """Whether a config is that of a ViT of timm, which says `architecture` and `pretrained_cfg`."""
    name = config.get("architecture")
    return "pretrained_cfg" in config and isinstance(name, str) and name.startswith(("vit_", "deit_"))
