"""Models of diffusers and PEFT from small configs: {name: how it is made}.  Nothing is downloaded.

tests/oracles/test_library_folders.py saves and opens them with their own libraries.
"""

from __future__ import annotations

from typing import Any

HEADS = {"num_attention_heads": 2, "attention_head_dim": 4}
VIDEO = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "num_layers": 1}
UNET = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "in_channels": 4, "out_channels": 4}
CONTROL = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "in_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
    "conditioning_embedding_out_channels": (4, 8),
}
DIFFUSERS: dict[str, dict[str, Any]] = {
    "UNet1DModel": {
        "block_out_channels": (8, 8, 16, 16),
        "in_channels": 14,
        "out_channels": 14,
        "time_embedding_type": "positional",
        "use_timestep_embedding": True,
        "flip_sin_to_cos": False,
        "freq_shift": 1.0,
        "out_block_type": "OutConv1DBlock",
        "mid_block_type": "MidResTemporalBlock1D",
        "down_block_types": ("DownResnetBlock1D",) * 4,
        "up_block_types": ("UpResnetBlock1D",) * 3,
        "act_fn": "swish",
    },
    "UNet2DModel": {
        **UNET,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 2,
        "sample_size": 8,
    },
    "UNet2DConditionModel": {
        **UNET,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 4,
        "cross_attention_dim": 8,
    },
    "UNet3DConditionModel": {
        **UNET,
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        "attention_head_dim": 4,
        "cross_attention_dim": 8,
    },
    "UNetMotionModel": {
        **UNET,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        "num_attention_heads": 2,
        "motion_num_attention_heads": 2,
        "cross_attention_dim": 8,
    },
    "UNetSpatioTemporalConditionModel": {
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        "num_attention_heads": 8,
        "cross_attention_dim": 8,
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 8,
    },
    "UVit2DModel": {
        "hidden_size": 16,
        "cond_embed_dim": 8,
        "micro_cond_encode_dim": 4,
        "micro_cond_embed_dim": 20,
        "encoder_hidden_size": 8,
        "vocab_size": 16,
        "codebook_size": 12,
        "in_channels": 8,
        "block_out_channels": 8,
        "num_res_blocks": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "block_num_heads": 2,
    },
    "AutoencoderKL": {
        "block_out_channels": [8, 16],
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "norm_num_groups": 4,
    },
    "AsymmetricAutoencoderKL": {
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "down_block_out_channels": [8, 16],
        "layers_per_down_block": 1,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "up_block_out_channels": [8, 16],
        "layers_per_up_block": 1,
        "norm_num_groups": 4,
    },
    "AutoencoderTiny": {
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "num_encoder_blocks": (1, 2),
        "num_decoder_blocks": (2, 1),
    },
    "AutoencoderKLTemporalDecoder": {
        "block_out_channels": [32, 64],
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "layers_per_block": 1,
    },
    "AutoencoderOobleck": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "decoder_channels": 8,
        "decoder_input_channels": 4,
        "channel_multiples": [1, 2],
        "audio_channels": 2,
    },
    "AutoencoderDC": {
        "latent_channels": 4,
        "attention_head_dim": 2,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "downsample_block_type": "conv",
        "upsample_block_type": "interpolate",
        "decoder_norm_types": "rms_norm",
        "decoder_act_fns": "silu",
    },
    "AutoencoderKLWan": {
        "base_dim": 3,
        "z_dim": 4,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 2,
    },
    "VQModel": {
        "block_out_channels": [8, 16],
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "norm_num_groups": 4,
        "num_vq_embeddings": 16,
    },
    "Transformer2DModel": {**HEADS, "in_channels": 8, "norm_num_groups": 4, "cross_attention_dim": 8},
    "DiTTransformer2DModel": {
        **HEADS,
        "in_channels": 4,
        "num_layers": 1,
        "sample_size": 8,
        "norm_num_groups": 4,
        "num_embeds_ada_norm": 8,
    },
    "PixArtTransformer2DModel": {
        **HEADS,
        "in_channels": 4,
        "out_channels": 8,
        "num_layers": 1,
        "sample_size": 8,
        "cross_attention_dim": 8,
        "caption_channels": 8,
    },
    "PriorTransformer": {**HEADS, "num_layers": 1, "embedding_dim": 8, "num_embeddings": 7,
                         "additional_embeddings": 4},
    "FluxTransformer2DModel": {
        "in_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 4, 8],
    },
    "SD3Transformer2DModel": {
        "sample_size": 8,
        "patch_size": 1,
        "in_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "joint_attention_dim": 16,
        "caption_projection_dim": 16,
        "pooled_projection_dim": 16,
        "out_channels": 4,
        "pos_embed_max_size": 8,
    },
    "HunyuanDiT2DModel": {
        "sample_size": 8,
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "cross_attention_dim": 8,
        "cross_attention_dim_t5": 8,
        "pooled_projection_dim": 4,
        "hidden_size": 16,
    },
    "AuraFlowTransformer2DModel": {
        "sample_size": 8,
        "patch_size": 2,
        "in_channels": 4,
        "num_mmdit_layers": 1,
        "num_single_dit_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "caption_projection_dim": 16,
        "joint_attention_dim": 8,
        "out_channels": 4,
        "pos_embed_max_size": 16,
    },
    "CogVideoXTransformer3DModel": {
        **VIDEO,
        "time_embed_dim": 2,
        "text_embed_dim": 8,
        "sample_width": 8,
        "sample_height": 8,
        "sample_frames": 8,
        "max_text_seq_length": 8,
    },
    "LatteTransformer3DModel": {
        **VIDEO,
        "sample_size": 8,
        "patch_size": 2,
        "caption_channels": 8,
        "cross_attention_dim": 16,
        "video_length": 1,
    },
    "SanaTransformer2DModel": {
        "patch_size": 1,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 4,
        "num_attention_heads": 2,
        "num_cross_attention_heads": 2,
        "cross_attention_head_dim": 4,
        "cross_attention_dim": 8,
        "caption_channels": 8,
        "sample_size": 8,
    },
    "LTXVideoTransformer3DModel": {**VIDEO, "cross_attention_dim": 16, "caption_channels": 16},
    "WanTransformer3DModel": {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 1,
    },
    "MochiTransformer3DModel": {
        "patch_size": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 2,
        "pooled_projection_dim": 16,
        "in_channels": 4,
        "time_embed_dim": 4,
        "text_embed_dim": 8,
    },
    "StableAudioDiTModel": {
        "sample_size": 4,
        "in_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 4,
        "num_attention_heads": 2,
        "num_key_value_attention_heads": 2,
        "out_channels": 4,
        "cross_attention_dim": 8,
        "time_proj_dim": 8,
        "global_states_input_dim": 8,
        "cross_attention_input_dim": 8,
    },
    "LuminaNextDiT2DModel": {
        "sample_size": 8,
        "patch_size": 2,
        "in_channels": 4,
        "hidden_size": 24,
        "num_layers": 1,
        "num_attention_heads": 3,
        "num_kv_heads": 1,
        "multiple_of": 2,
        "cross_attention_dim": 8,
    },
    "CogView3PlusTransformer2DModel": {
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 4,
        "num_attention_heads": 2,
        "out_channels": 4,
        "text_embed_dim": 8,
        "time_embed_dim": 8,
        "condition_dim": 2,
        "pos_embed_max_size": 8,
        "sample_size": 8,
    },
    "AllegroTransformer3DModel": {
        **VIDEO,
        "cross_attention_dim": 16,
        "sample_width": 8,
        "sample_height": 8,
        "sample_frames": 8,
        "caption_channels": 8,
    },
    "ChromaTransformer2DModel": {
        "in_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "axes_dims_rope": [4, 4, 8],
        "approximator_num_channels": 8,
        "approximator_hidden_dim": 16,
        "approximator_layers": 1,
    },
    "ControlNetModel": CONTROL,
    "SparseControlNetModel": {k: v for k, v in CONTROL.items() if k != "attention_head_dim"}
    | {
        "num_attention_heads": 2,
        "motion_num_attention_heads": 2,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
    },
    "FluxControlNetModel": {
        "in_channels": 4,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 4, 8],
    },
    "SD3ControlNetModel": {
        "sample_size": 8,
        "patch_size": 1,
        "in_channels": 4,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "joint_attention_dim": 16,
        "caption_projection_dim": 16,
        "pooled_projection_dim": 16,
        "out_channels": 4,
        "pos_embed_max_size": 8,
    },
    "T2IAdapter": {"channels": [8, 8, 8, 8], "num_res_blocks": 1},
    "MotionAdapter": {
        "block_out_channels": (8, 16),
        "motion_layers_per_block": 1,
        "motion_num_attention_heads": 2,
        "motion_norm_num_groups": 4,
    },
    "T5FilmDecoder": {
        "input_dims": 8,
        "targets_length": 8,
        "d_model": 8,
        "num_layers": 1,
        "num_heads": 2,
        "d_kv": 4,
        "d_ff": 8,
    },
}  # fmt: skip
LINEAR = {"target_modules": ["q_proj", "v_proj"]}
SQUARE = {"target_modules": ["q_proj", "o_proj"]}
PROMPT = {
    "num_virtual_tokens": 4,
    "token_dim": 16,
    "num_layers": 2,
    "num_attention_heads": 2,
    "num_transformer_submodules": 1,
}
PEFT: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {**LINEAR, "r": 2}),
    "LoRA with modules to save": ("LoraConfig", {**LINEAR, "r": 2, "modules_to_save": ["lm_head"]}),
    "LoRA, all biases": ("LoraConfig", {**LINEAR, "r": 2, "bias": "all"}),
    "LoRA on embeddings": ("LoraConfig", {"r": 2, "target_modules": ["embed_tokens", "q_proj"]}),
    "rsLoRA": ("LoraConfig", {**LINEAR, "r": 2, "use_rslora": True}),
    "DoRA": ("LoraConfig", {**LINEAR, "r": 2, "use_dora": True}),
    "LoRA with trainable tokens": ("LoraConfig", {**LINEAR, "r": 2, "trainable_token_indices": [1, 3]}),
    "AdaLora": ("AdaLoraConfig", {**LINEAR, "init_r": 4, "target_r": 2, "total_step": 10}),
    "LoHa": ("LoHaConfig", {**LINEAR, "r": 2}),
    "LoKr": ("LoKrConfig", {**LINEAR, "r": 2}),
    "IA3": ("IA3Config",
            {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "OFT": ("OFTConfig", {**SQUARE, "oft_block_size": 4, "r": 0}),
    "BOFT": ("BOFTConfig", {**SQUARE, "boft_block_size": 4}),
    "HRA": ("HRAConfig", {**LINEAR, "r": 2}),
    "VeRA": ("VeraConfig", {**LINEAR, "r": 2}),
    "PVeRA": ("PveraConfig", {**LINEAR, "r": 2}),
    "VBLoRA": ("VBLoRAConfig", {**LINEAR, "r": 2, "num_vectors": 4, "vector_length": 4, "topk": 2}),
    "RandLora": ("RandLoraConfig", {**LINEAR, "r": 2}),
    "FourierFT": ("FourierFTConfig", {**LINEAR, "n_frequency": 8}),
    "WaveFT": ("WaveFTConfig", {**LINEAR, "n_frequency": 8}),
    "LayerNorm tuning": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "MiSS": ("MissConfig", {**LINEAR, "r": 2}),
    "C3A": ("C3AConfig", {**LINEAR, "block_size": 4}),
    "SHiRA": ("ShiraConfig", {**LINEAR, "r": 2}),
    "RoAd": ("RoadConfig", {**LINEAR, "group_size": 4}),
    "GraLoRA": ("GraloraConfig", {**LINEAR, "r": 4, "gralora_k": 2}),
    "DeLoRA": ("DeloraConfig", {**LINEAR, "r": 2}),
    "trainable tokens": ("TrainableTokensConfig",
                         {"token_indices": [1, 3], "target_modules": ["embed_tokens"]}),
    "Poly": ("PolyConfig", {**LINEAR, "r": 2, "n_tasks": 2, "n_skills": 2, "n_splits": 2}),
    "prompt tuning": ("PromptTuningConfig", PROMPT),
    "multitask prompt tuning": ("MultitaskPromptTuningConfig", {**PROMPT, "num_ranks": 1, "num_tasks": 2}),
    "prefix tuning": ("PrefixTuningConfig", PROMPT),
    "P-tuning": ("PromptEncoderConfig", {**PROMPT, "encoder_hidden_size": 8}),
    "adaption prompt": ("AdaptionPromptConfig", {"adapter_len": 4, "adapter_layers": 2}),
    "OSF": ("OSFConfig", {**LINEAR}),
    "CPT": (
        "CPTConfig",
        {"cpt_token_ids": [0, 1, 2, 3], "cpt_mask": [1, 1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3, 4]},
    ),
}  # fmt: skip


def randomised(model: Any) -> Any:
    """A model with random numbers in every parameter: adapters begin as zeros, which would hide a missing one."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_()
    return model.eval()


def diffusers_model(name: str) -> Any:
    """One of DIFFUSERS."""
    import diffusers

    return randomised(getattr(diffusers, name)(**DIFFUSERS[name]))


def language_model() -> Any:
    """What adapters are put on: a Llama of two layers, the same at every call."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=32,
        max_position_embeddings=16, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def peft_model(name: str) -> Any:
    """One of PEFT, on a language model whose own weights are as they were."""
    import peft
    import torch

    config, settings = PEFT[name]
    base = language_model()
    known = {id(parameter) for parameter in base.parameters()}
    model = peft.get_peft_model(base, getattr(peft, config)(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and id(parameter) not in known and parameter.is_floating_point():
                parameter.normal_()
    return model.eval()


def pipeline() -> Any:
    """A Stable Diffusion pipeline: two models of diffusers, one of transformers, a tokenizer and a scheduler."""
    import diffusers
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(60)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    text = transformers.CLIPTextConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=2,
                                       vocab_size=64, bos_token_id=0, eos_token_id=2)  # fmt: skip
    return diffusers.StableDiffusionPipeline(
        vae=diffusers_model("AutoencoderKL"),
        text_encoder=randomised(transformers.CLIPTextModel(text)),
        tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0"),
        unet=diffusers_model("UNet2DConditionModel"),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
    )
