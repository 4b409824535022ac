"""How configs say sizes, by model type, in transformers 5.24; `config_facts` says what a row means.

Made by docs/make_config_keys.py, which built every model and kept the rules that gave what its modules have.  A model
type has no row where no rule does, and a row lacks the words that differ from layer to layer.
"""

from __future__ import annotations

VERSION = "5.24"
"""Of transformers."""

_ROWS = """
afmoe
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads head_dim=head_dim:128 rotary=:head_dim
    experts=num_experts:64.
aimv2_text_model
    heads=num_attention_heads:6 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads.
aimv2_vision_model ovis2_vision
    heads=num_attention_heads:8 kv_heads=:heads hidden=hidden_size:1024 head_dim=:hidden/heads.
albert
    heads=num_attention_heads:64 kv_heads=:heads hidden=hidden_size:4096 head_dim=:hidden/heads.
align_text_model altclip_vision_model bert big_bird blip_2_qformer blip_vision_model bridgetower_text_model bros
camembert canine chinese_clip_text_model chinese_clip_vision_model clap_text_model clip_vision_model
clipseg_vision_model clvp_encoder data2vec-audio data2vec-text data2vec-vision deberta dpr dpt ernie esm
flava_image_model flava_multimodal_model flava_text_model git git_vision_model got_ocr2_vision granite_docling_vision
hubert ibert idefics2_vision instructblip_qformer instructblipvideo_qformer layoutlm layoutlmv3 lilt longformer luke
lxmert markuplm metaclip_2_vision_model mgp-str minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision modernbert
modernbert-decoder mpnet mra nystromformer opt owlv2_vision_model owlvit_vision_model pp_chart2table_vision
pp_formulanet_vision roberta roberta-prelayernorm roc_bert roformer sam_hq_vision_model sam_vision_model sew sew-d
siglip2_text_model siglip2_vision_model siglip_text_model siglip_vision_model slanext_vision splinter tapas
timesformer tipsv2_text_model tvp unispeech unispeech-sat unlimited_ocr_sam_vision_model video_llama_3_vision videomae
vilt visual_bert vitdet wav2vec2 wav2vec2-conformer wavlm xlm-roberta xmod yolos yoso
    heads=num_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads.
altclip_text_model bert-generation biogpt clvp_decoder inkling2_vision internvl_vision janus_vision_model
kosmos_2_vision_model megatron-bert musicgen_decoder musicgen_melody_decoder omniasr_audio pixtral qianfan_ocr_vision
sam3_vit_model seggpt unlimited_ocr_vision_encoder vjepa2/encoder wav2vec2-bert
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=:hidden/heads.
apertus apertus1p5_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=*1.0@partial_rotary_factor.
arcee
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:2560
    head_dim=head_dim:hidden/heads rotary=:head_dim.
aria_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=moe_num_experts:8.
audio-spectrogram-transformer beit deit dinov2 dinov2_with_registers ijepa lw_detr_vit rf_detr_dinov2
tipsv2_vision_model videoprism_text_model videoprism_vision_model vit vit_mae vit_msn vivit
    heads=num_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=head_dim:hidden/heads.
audioflamingo3_encoder voxtral_encoder
    heads=num_attention_heads|encoder_attention_heads:20 kv_heads=:heads hidden=hidden_size|d_model:1280
    head_dim=:hidden/heads.
autoformer/decoder informer/decoder time_series_transformer/decoder
    heads=decoder_attention_heads:2 kv_heads=:heads hidden=d_model|hidden_size:64 head_dim=head_dim:hidden/heads.
autoformer/encoder informer/encoder time_series_transformer/encoder
    heads=encoder_attention_heads:2 kv_heads=:heads hidden=d_model|hidden_size:64 head_dim=head_dim:hidden/heads.
axk1
    heads=num_attention_heads:64 value_dim=v_head_dim:128 experts=n_routed_experts|num_local_experts:192
    nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
axk2
    heads=num_attention_heads:32 value_dim=v_head_dim:64 experts=n_routed_experts|num_local_experts:128
    nope=qk_nope_head_dim:64 rope=qk_rope_head_dim:32.
bailing_hybrid
    heads=num_attention_heads:32 kv_heads=:heads experts=num_experts|num_local_experts:512 nope=qk_nope_head_dim:128
    rope=qk_rope_head_dim:64.
bamba
    groups=mamba_n_groups:1 state=mamba_d_state:256 state_heads=mamba_n_heads:128.
bart/decoder bigbird_pegasus/decoder fsmt/decoder led/decoder m2m_100/decoder marian/decoder mbart/decoder mvp/decoder
nllb-moe/decoder pegasus/decoder pegasus_x/decoder trocr/decoder
    heads=decoder_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:1024 head_dim=head_dim:hidden/heads.
bart/encoder bigbird_pegasus/encoder fsmt/encoder led/encoder m2m_100/encoder marian/encoder mbart/encoder mvp/encoder
nllb-moe/encoder pegasus/encoder pegasus_x/encoder
    heads=encoder_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:1024 head_dim=head_dim:hidden/heads.
beam
    heads=num_attention_heads:48 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 experts=num_experts:256.
bitnet
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:5:heads hidden=hidden_size:2560
    head_dim=head_dim:hidden/heads rotary=:head_dim.
blenderbot-small/decoder pp_formulanet_text/decoder
    heads=decoder_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:512 head_dim=head_dim:hidden/heads.
blenderbot-small/encoder
    heads=encoder_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:512 head_dim=head_dim:hidden/heads.
blenderbot/decoder
    heads=decoder_attention_heads:32 kv_heads=:heads hidden=d_model|hidden_size:2560 head_dim=head_dim:hidden/heads.
blenderbot/encoder
    heads=encoder_attention_heads:32 kv_heads=:heads hidden=d_model|hidden_size:2560 head_dim=head_dim:hidden/heads.
blip_2_vision_model instructblip_vision_model instructblipvideo_vision_model
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1408 head_dim=:hidden/heads.
blip_text_model
    heads=num_attention_heads:8 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads.
bloom
    heads=n_head|num_attention_heads:8 kv_heads=:heads hidden=hidden_size:64 head_dim=:hidden/heads.
blt_global_transformer
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:2048 head_dim=:hidden/heads.
blt_local_decoder
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:1024 head_dim=:hidden/heads.
blt_local_encoder
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:1024 head_dim=:hidden/heads
    rotary=:head_dim.
blt_patcher
    heads=num_attention_heads:12 kv_heads=num_key_value_heads:heads hidden=hidden_size:768 head_dim=:hidden/heads.
canary_decoder
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:8 head_dim=head_dim:128.
chameleon
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32 hidden=hidden_size:4096 head_dim=:hidden/heads
    rotary=:head_dim.
chmv2>backbone_config>dinov3_vit groupvit_vision_model
    heads=num_attention_heads:6 kv_heads=:heads hidden=hidden_size:384 head_dim=:hidden/heads.
clip_text_model clipseg_text_model metaclip_2_text_model owlv2_text_model owlvit_text_model sam3_lite_text_text_model
xclip_text_model
    heads=num_attention_heads:8 kv_heads=:heads hidden=hidden_size:512 head_dim=:hidden/heads.
coarse_acoustics fine_acoustics semantic
    heads=num_heads|num_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads.
cohere cohere2
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:heads hidden=hidden_size:8192
    head_dim=head_dim:hidden/heads rotary=:head_dim.
cohere2_moe
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:heads head_dim=head_dim:128 rotary=:head_dim
    experts=num_experts:8.
cohere_asr granite_speech5_encoder nemotron_asr_streaming_encoder parakeet_encoder
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:heads hidden=hidden_size:1024
    head_dim=head_dim:hidden/heads.
cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision
qwen3_vl_vision qwen4_exp_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1152 head_dim=:hidden/heads.
cosmos3_edge_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 rotary=:head_dim.
cosmos3_edge_vision idefics3_vision kimi_k25_vision paddleocr_vl_vision phi4_multimodal_vision smolvlm_vision
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1152 head_dim=:hidden/heads.
cpmant
    heads=num_attention_heads:32 kv_heads=:heads head_dim=dim_head:128.
csm
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:2048 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
csm_depth_decoder_model
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:2 hidden=hidden_size:1024 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
ctrl
    heads=n_head|num_attention_heads:16 kv_heads=:heads hidden=n_embd|hidden_size:1280 head_dim=:hidden/heads.
cwm
    heads=num_attention_heads:48 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor.
d_fine deimv2
    heads=encoder_attention_heads|num_attention_heads:8 kv_heads=:heads hidden=d_model|hidden_size:256
    head_dim=head_dim:hidden/heads.
deberta-v2
    heads=num_attention_heads:24 kv_heads=:heads hidden=hidden_size:1536 head_dim=:hidden/heads.
decision_transformer
    heads=n_head|num_attention_heads:1 kv_heads=:heads hidden=hidden_size:128 head_dim=:hidden/heads.
deepseek_v2
    heads=num_attention_heads:32 value_dim=v_head_dim:128 experts=n_routed_experts|num_experts:64
    nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
deepseek_v3 deepseek_v32
    heads=num_attention_heads:128 value_dim=v_head_dim:128 experts=n_routed_experts|num_local_experts:256
    nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
deepseek_v4
    experts=n_routed_experts|num_local_experts:256.
detr/decoder pp_doclayout_v2/decoder pp_doclayout_v3/decoder rt_detr/decoder rt_detr_v2/decoder
    heads=decoder_attention_heads:8 kv_heads=:heads hidden=d_model|hidden_size:256 head_dim=head_dim:hidden/heads.
dia_decoder
    heads=num_attention_heads:16 head_dim=head_dim:128 rotary=:head_dim.
dia_encoder
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 head_dim=head_dim:128 rotary=:head_dim.
diffllama
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=:head_dim.
dinov3_vit
    heads=num_attention_heads:6 kv_heads=:heads hidden=hidden_size:384 head_dim=:hidden/heads
    rotary=*0.5@partial_rotary_factor.
distilbert
    heads=n_heads|num_attention_heads:12 kv_heads=:heads hidden=dim|hidden_size:768 head_dim=head_dim:hidden/heads.
doge
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:heads hidden=hidden_size:1024
    head_dim=head_dim:hidden/heads rotary=:head_dim.
dory
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4 head_dim=head_dim:256.
dots1
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32:heads hidden=hidden_size:4608
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=n_routed_experts|num_local_experts:.
dots3_note_audio_encoder
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:heads hidden=hidden_size:1280 head_dim=:hidden/heads
    rotary=*0.5@partial_rotary_factor.
dots3_note_text
    value_dim=v_head_dim:head_dim experts=n_routed_experts|num_local_experts:256 rope=qk_rope_head_dim:64.
edgetam_video_mask_decoder/decoder sam2_mask_decoder/decoder sam2_video_mask_decoder/decoder
sam3_tracker_mask_decoder/decoder sam3_tracker_video_mask_decoder/decoder sam_hq_mask_decoder/decoder
sam_mask_decoder/decoder
    heads=num_attention_heads:8 kv_heads=:heads.
efficientloftr
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:heads hidden=hidden_size:256
    head_dim=head_dim:hidden/heads.
electra groupvit_text_model superglue
    heads=num_attention_heads:4 kv_heads=:heads hidden=hidden_size:256 head_dim=:hidden/heads.
embedding_gemma2_text
    heads=num_attention_heads:4.
ernie4_5 paddleocr_vl_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:2:heads hidden=hidden_size:1024
    head_dim=head_dim:128:hidden/heads rotary=:head_dim.
ernie4_5_moe ernie4_5_vl_moe_text
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:4 hidden=hidden_size:2560 head_dim=head_dim:hidden/heads
    rotary=:head_dim experts=moe_num_experts|num_experts:64.
ernie4_5_vl_moe_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1280 head_dim=head_dim:hidden/heads.
esmc
    heads=num_attention_heads:40 kv_heads=num_key_value_heads:heads hidden=hidden_size:2560
    head_dim=head_dim:hidden/heads rotary=:head_dim.
eurobert gradium_phonon_tts
    heads=num_attention_heads:12 kv_heads=num_key_value_heads:heads hidden=hidden_size:768
    head_dim=head_dim:hidden/heads rotary=:head_dim.
evolla mistral
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
exaone
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim.
exaone4
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32 hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim.
exaone4_5_vision
    heads=num_heads|num_attention_heads:16 kv_heads=num_key_value_heads:8 hidden=hidden_size:3584
    head_dim=:hidden/heads.
exaone_moe
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32 hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_experts:64.
falcon_h1
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    rotary=:head_dim groups=mamba_n_groups:1 state=mamba_d_state:256 state_heads=mamba_n_heads:128.
flaubert xlm
    heads=n_heads|num_attention_heads:16 kv_heads=:heads hidden=emb_dim|hidden_size:2048
    head_dim=head_dim:hidden/heads.
flex_olmo
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_experts|num_local_experts:7.
flint
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:4 head_dim=head_dim:128 rotary=:head_dim
    experts=num_experts:256.
gemma
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 head_dim=head_dim:256 rotary=:head_dim.
gemma2 t5_gemma_module vaultgemma
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:4 head_dim=head_dim:256 rotary=:head_dim.
gemma3_text t5gemma2_decoder t5gemma2_text
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:4 head_dim=head_dim:256.
gemma3n_text
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:2 head_dim=head_dim:256.
gemma4_text gemma4_unified_text
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:4.
glm glm4
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:2 head_dim=head_dim:128
    rotary=*0.5@partial_rotary_factor.
glm4_moe glm4v_moe_text
    heads=num_attention_heads:96 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    experts=n_routed_experts|num_local_experts:128.
glm4_moe_lite
    heads=num_attention_heads:20 value_dim=v_head_dim:256 experts=n_routed_experts|num_local_experts:64
    nope=qk_nope_head_dim:192 rope=qk_rope_head_dim|head_dim:64.
glm4v_moe_vision glm4v_vision
    heads=num_heads|num_attention_heads:12 kv_heads=:heads hidden=hidden_size:1536 head_dim=:hidden/heads.
glm4v_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:2:heads hidden=hidden_size:4096 head_dim=:hidden/heads
    rotary=*1.0@partial_rotary_factor.
glm5_next_text
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:heads experts=n_routed_experts|num_local_experts:288
    nope=qk_nope_head_dim:256.
glm5_next_vision glm_ocr_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=:hidden/heads.
glm_image_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:2:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=*1.0@partial_rotary_factor.
glm_image_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1536 head_dim=:hidden/heads.
glm_moe_dsa hy_v4_vl_text
    heads=num_attention_heads:64 value_dim=v_head_dim:256 experts=n_routed_experts|num_local_experts:256
    nope=qk_nope_head_dim:192 rope=qk_rope_head_dim:64.
glm_ocr_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:8 hidden=hidden_size:1024 head_dim=head_dim:hidden/heads
    rotary=*1.0@partial_rotary_factor.
glmasr>text_config>llama pe_audio>text_config>modernbert aria clap_audio_model codegen convbert dbrx donut-swin
dots3_note_vision_encoder sam2_hiera_det_model edgetam_video  falcon fastspeech2_conformer florence_vision
fun_asr_nano_encoder gemma3n_audio gemma4_vision glpn gpt_bigcode swin grounding-dino hiera jetmoe
kyutai_speech_to_text lw_detr maskformer-swin mm-grounding-dino moonshine moshi musicflamingo perceiver prophetnet pvt
pvt_v2 rf_detr sam2_video sam3_tracker_video segformer swin2sr swinv2 vjepa2 voxtral_realtime xclip_vision_model xclip
    .
glmasr_encoder
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:heads hidden=hidden_size:1280
    head_dim=head_dim:hidden/heads rotary=*0.5@partial_rotary_factor.
gpt2 openai-gpt
    heads=n_head|num_attention_heads:12 kv_heads=:heads hidden=n_embd|hidden_size:768 head_dim=:hidden/heads.
gpt_neo
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:2048 head_dim=:hidden/heads.
gpt_neox
    heads=num_attention_heads:64 kv_heads=:heads hidden=hidden_size:6144 head_dim=:hidden/heads
    rotary=*0.25@rotary_pct.
gpt_neox_japanese
    heads=num_attention_heads:32 kv_heads=:heads hidden=hidden_size:2560 head_dim=:hidden/heads
    rotary=*1.0@rotary_pct.
gpt_oss
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:8 head_dim=head_dim:64 rotary=*1.0@partial_rotary_factor
    experts=num_local_experts|num_experts:128.
gptj
    heads=n_head|num_attention_heads:16 kv_heads=:heads hidden=n_embd|hidden_size:4096 head_dim=:hidden/heads.
granite hunyuan_v1_dense hyperclovax llama ministral olmo olmo2
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim.
granite_docling_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4:heads hidden=hidden_size:1024
    head_dim=head_dim:hidden/heads rotary=:head_dim.
granite_swa
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:4:heads hidden=hidden_size:2560
    head_dim=head_dim:hidden/heads rotary=:head_dim.
granitemoe granitemoe_swa granitemoeshared
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_local_experts:8.
granitemoehybrid
    experts=num_local_experts:8 groups=mamba_n_groups:1 state=mamba_d_state:256 state_heads=mamba_n_heads:128.
gte nomic_bert
    heads=num_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
helium
    heads=num_attention_heads:20 kv_heads=num_key_value_heads:20 head_dim=head_dim:128 rotary=:head_dim.
higgs_audio_v2
    heads=num_attention_heads:24 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor.
hrm_text
    heads=num_attention_heads:12 kv_heads=:heads head_dim=head_dim:128 rotary=:head_dim.
hunyuan_v1_moe
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_experts|num_local_experts:1.
hunyuan_vl_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim|attention_head_dim:hidden/heads rotary=:head_dim.
hunyuan_vl_vision
    heads=num_attention_heads|attention_heads:16 kv_heads=:heads hidden=hidden_size:1152
    head_dim=head_dim:hidden/heads.
hy_v3
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 rotary=:head_dim
    experts=num_experts|num_local_experts:192.
hy_v4
    heads=num_attention_heads:32 value_dim=v_head_dim:256 experts=n_routed_experts|num_local_experts:256
    nope=qk_nope_head_dim:192 rope=qk_rope_head_dim:64.
hy_v4_vl_vision
    heads=num_attention_heads|attention_heads:16 kv_heads=:heads hidden=hidden_size:1536
    head_dim=head_dim:hidden/heads.
idefics
    heads=num_attention_heads:32 kv_heads=:heads hidden=hidden_size:4096 head_dim=:hidden/heads rotary=:head_dim.
idefics2_perceiver
    kv_heads=num_key_value_heads:4.
idefics_vision
    heads=num_attention_heads:16 kv_heads=:heads hidden=embed_dim|hidden_size:768 head_dim=:hidden/heads.
imagegpt
    heads=n_head|num_attention_heads:8 kv_heads=:heads hidden=n_embd|hidden_size:512 head_dim=:hidden/heads.
inkling2_loop_text
    experts=n_routed_experts|num_local_experts:128.
inkling2_text
    experts=n_routed_experts|num_local_experts:384.
inkling_text
    heads=num_attention_heads:64 head_dim=head_dim:128.
internlm3
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:2:heads hidden=hidden_size:4096
    head_dim=head_dim:128:hidden/heads rotary=:head_dim.
iquestcoder
    heads=num_attention_heads:40 kv_heads=num_key_value_heads:8:heads hidden=hidden_size:5120
    head_dim=head_dim:128:hidden/heads rotary=:head_dim.
jais2
    heads=num_attention_heads:26 kv_heads=num_key_value_heads:heads hidden=hidden_size:3328
    head_dim=head_dim:hidden/heads rotary=:head_dim.
jamba
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    experts=num_experts|num_local_experts:16.
jina_embeddings_v3
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
kimi_linear
    heads=num_attention_heads:32 kv_heads=:heads experts=num_experts|num_local_experts:256 nope=qk_nope_head_dim:128
    rope=qk_rope_head_dim:64.
kolibri1
    heads=num_attention_heads:48 kv_heads=num_key_value_heads:4 head_dim=head_dim:128 rotary=:head_dim
    experts=num_local_experts|num_experts:384.
kosmos_2_5_text_model
    heads=attention_heads|num_attention_heads:16 kv_heads=:heads hidden=embed_dim|hidden_size:1536
    head_dim=head_dim:hidden/heads.
kosmos_2_5_vision_model
    heads=num_attention_heads:24 kv_heads=:heads head_dim=head_dim:64.
kosmos_2_text_model
    heads=attention_heads|num_attention_heads:32 kv_heads=:heads hidden=embed_dim|hidden_size:2048
    head_dim=head_dim:hidden/heads.
laguna
    kv_heads=num_key_value_heads:8 head_dim=head_dim:128 experts=num_experts:256.
lara_mini
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4 head_dim=head_dim:128 rotary=:head_dim
    experts=num_experts:128 linear_key_dim=linear_key_head_dim:128 linear_key_heads=linear_num_key_heads:8
    linear_value_dim=linear_value_head_dim:128 linear_value_heads=linear_num_value_heads:16.
lasr_encoder
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:heads hidden=hidden_size:512
    head_dim=head_dim:hidden/heads rotary=:head_dim.
lfm2
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:2560 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
lfm3
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4 head_dim=head_dim:128.
lfm3_vl_vision
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:8 hidden=hidden_size:1024 head_dim=:hidden/heads.
lightglue
    heads=num_attention_heads:4 kv_heads=num_key_value_heads:heads.
llama4_text
    heads=num_attention_heads:40 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 rotary=:head_dim
    experts=num_local_experts:16.
llama4_vision_model
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads.
longcat_flash
    heads=num_attention_heads:64 value_dim=v_head_dim:128 nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
longt5 t5
    heads=num_heads|num_attention_heads:8 kv_heads=:heads head_dim=d_kv|head_dim:64.
mamba2
    groups=n_groups:8 state=state_size:128 state_dim=head_dim:64 state_heads=num_heads:128.
mask2former oneformer
    heads=num_attention_heads:8 kv_heads=:heads hidden=hidden_dim|hidden_size:256 head_dim=head_dim:hidden/heads.
mellum
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:4 head_dim=head_dim:128
    experts=num_local_experts|num_experts:64.
mimi mimi_decoder mimi_encoder pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder
pocket_tts_audio_tokenizer_encoder
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:8 hidden=hidden_size:512 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
mimo_v2_flash
    heads=num_attention_heads:64 head_dim=head_dim:192 value_dim=v_head_dim:128
    experts=n_routed_experts|num_local_experts:256.
minicpm3
    heads=num_attention_heads:40 nope=qk_nope_head_dim:64 rope=qk_rope_head_dim:32.
minimax
    heads=num_attention_heads:32 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads rotary=:head_dim
    experts=num_local_experts|num_experts:8.
minimax_m2
    heads=num_attention_heads:48 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor experts=num_local_experts|num_experts:256.
minimax_m3_vl_text
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:4 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor experts=num_local_experts|num_experts:128.
minimax_m3_vl_vision
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1280 head_dim=:hidden/heads.
ministral3
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor.
mistral4
    heads=num_attention_heads:32 value_dim=v_head_dim:128 experts=n_routed_experts|num_local_experts:128
    nope=qk_nope_head_dim:64 rope=qk_rope_head_dim:64.
mistral_large4_text
    heads=num_attention_heads:64 value_dim=v_head_dim:128 experts=n_routed_experts|num_local_experts:128.
mixtral
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    rotary=:head_dim experts=num_local_experts|num_experts:8.
mlcd_vision_model
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1664 head_dim=:hidden/heads.
mllama_text_model
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=:hidden/heads
    rotary=:head_dim.
mllama_vision_model
    heads=attention_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1280
    head_dim=head_dim:hidden/heads.
mobilebert/encoder mobilevit/encoder
    heads=num_attention_heads:4 kv_heads=:heads.
molmo2_adapter molmo2_vision
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 head_dim=head_dim:72.
molmo2_text muse_glimmer_assistant voxtral_realtime_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 rotary=:head_dim.
moss_transcribe_diarize_audio
    heads=num_attention_heads|encoder_attention_heads:16 kv_heads=:heads hidden=hidden_size|d_model:1024
    head_dim=:hidden/heads.
mpt
    heads=n_heads|num_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:2048 head_dim=:hidden/heads.
mt5 umt5
    heads=num_heads|num_attention_heads:6 kv_heads=:heads head_dim=d_kv|head_dim:64.
muse_glimmer_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:2 head_dim=head_dim:128 rotary=:head_dim.
muse_glimmer_vision muse_spark_vision step3p5_vision
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1536 head_dim=:hidden/heads.
muse_spark_text
    heads=num_attention_heads:128 kv_heads=num_key_value_heads:16 head_dim=head_dim:64 rotary=:head_dim
    experts=num_local_experts:256.
nanochat
    heads=num_attention_heads:6 kv_heads=num_key_value_heads:heads hidden=hidden_size:768
    head_dim=head_dim:hidden/heads rotary=:head_dim.
nemotron3_5_transcribe_asr_audio
    heads=num_attention_heads:10 kv_heads=num_key_value_heads:heads hidden=hidden_size:1280.
nemotron3_5_transcribe_word_timestamp
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:1280.
nemotron3_diarization_audio
    heads=num_attention_heads:8 kv_heads=num_key_value_heads:heads hidden=hidden_size:512.
nemotron_h
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    experts=n_routed_experts|num_local_experts:8 groups=n_groups:8 state=ssm_state_size:128
    state_dim=mamba_head_dim:64 state_heads=mamba_num_heads:128.
neomme
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4 head_dim=head_dim:64.
neucodec xcodec2
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 head_dim=head_dim:64 rotary=:head_dim.
olmo3 ultrabert
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads.
olmo_hybrid
    heads=num_attention_heads:30 kv_heads=num_key_value_heads:heads hidden=hidden_size:3840
    head_dim=head_dim:hidden/heads rotary=:head_dim linear_key_heads=linear_num_key_heads:30
    linear_value_heads=linear_num_value_heads:30.
olmoe
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_experts|num_local_experts:64.
openai_privacy_filter
    heads=num_attention_heads:14 kv_heads=num_key_value_heads:2 head_dim=head_dim:64 rotary=*1.0@partial_rotary_factor
    experts=num_local_experts|num_experts:128.
patchtst
    heads=num_attention_heads|num_attention_heads:4 kv_heads=:heads hidden=d_model|hidden_size:128
    head_dim=:hidden/heads.
pe_audio_encoder
    heads=num_attention_heads:14 kv_heads=num_key_value_heads:heads head_dim=head_dim:128 rotary=:head_dim.
persimmon
    heads=num_attention_heads:64 kv_heads=:heads hidden=hidden_size:4096 head_dim=:hidden/heads
    rotary=*0.5@partial_rotary_factor.
phi
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=*0.5@partial_rotary_factor.
phi3 phi4_multimodal
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads hidden=hidden_size:3072
    head_dim=head_dim:hidden/heads rotary=*1.0@partial_rotary_factor.
phi4_multimodal_audio
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=head_dim:hidden/heads.
phimoe
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:8 hidden=hidden_size:4096 head_dim=head_dim:hidden/heads
    rotary=:head_dim experts=num_local_experts:16.
pix2struct_text_model
    heads=num_heads|num_attention_heads|decoder_attention_heads|encoder_attention_heads:12 kv_heads=:heads
    hidden=hidden_size|hidden_size:768 head_dim=d_kv:hidden/heads.
pix2struct_vision_model
    heads=num_attention_heads:12 kv_heads=:heads head_dim=d_kv:64.
pixio radio
    heads=num_attention_heads:16 kv_heads=:heads hidden=hidden_size:1280 head_dim=head_dim:hidden/heads.
plbart/decoder
    heads=decoder_attention_heads:12 kv_heads=:heads hidden=d_model|hidden_size:768 head_dim=head_dim:hidden/heads.
plbart/encoder
    heads=encoder_attention_heads:12 kv_heads=:heads hidden=d_model|hidden_size:768 head_dim=head_dim:hidden/heads.
pocket_tts
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:heads hidden=hidden_size:1024
    head_dim=head_dim:hidden/heads rotary=:head_dim.
pop2piano
    heads=num_heads|num_attention_heads:8 kv_heads=:heads head_dim=d_kv:64.
pp_doclayout_v2/encoder pp_doclayout_v3/encoder pp_doclayout_v4/encoder rt_detr/encoder rt_detr_v2/encoder
    heads=encoder_attention_heads:8 kv_heads=:heads hidden=encoder_hidden_dim:256 head_dim=head_dim:hidden/heads.
pp_doclayout_v4/decoder
    heads=decoder_attention_heads:8 kv_heads=:heads hidden=hidden_size|d_model:256 head_dim=head_dim:hidden/heads.
qwen2
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32:heads hidden=hidden_size:4096
    head_dim=head_dim:hidden/heads rotary=:head_dim.
qwen2_5_omni_audio_encoder qwen2_audio_encoder qwen3_omni_moe_audio_encoder
    heads=encoder_attention_heads|num_attention_heads:20 kv_heads=:heads hidden=d_model|hidden_size:1280
    head_dim=head_dim:hidden/heads.
qwen2_5_omni_dit
    heads=num_attention_heads:16 kv_heads=:heads head_dim=head_dim:64 rotary=:head_dim.
qwen2_5_omni_talker
    heads=num_attention_heads:28 kv_heads=num_key_value_heads:4 head_dim=head_dim:128 rotary=:head_dim.
qwen2_5_omni_text
    heads=num_attention_heads:28 kv_heads=num_key_value_heads:4:heads hidden=hidden_size:3584
    head_dim=head_dim:hidden/heads rotary=:head_dim.
qwen2_5_omni_vision_encoder qwen2_5_vl_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=hidden_size:3584 head_dim=:hidden/heads.
qwen2_5_vl_text qwen2_vl_text
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:8:heads hidden=hidden_size:8192 head_dim=:hidden/heads
    rotary=:head_dim.
qwen2_moe
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_experts:60.
qwen2_vl_vision
    heads=num_heads|num_attention_heads:16 kv_heads=:heads hidden=embed_dim:1280 head_dim=head_dim:hidden/heads.
qwen3 qwen3_vl_text
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32 head_dim=head_dim:128 rotary=:head_dim.
qwen3_5_moe_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:2 head_dim=head_dim:256
    rotary=*0.25@partial_rotary_factor experts=num_experts:256 linear_key_dim=linear_key_head_dim:128
    linear_key_heads=linear_num_key_heads:16 linear_value_dim=linear_value_head_dim:128
    linear_value_heads=linear_num_value_heads:32.
qwen3_5_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4 head_dim=head_dim:256
    rotary=*0.25@partial_rotary_factor linear_key_dim=linear_key_head_dim:128 linear_key_heads=linear_num_key_heads:16
    linear_value_dim=linear_value_head_dim:128 linear_value_heads=linear_num_value_heads:32.
qwen3_asr_encoder
    heads=encoder_attention_heads|num_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:1024
    head_dim=head_dim:hidden/heads.
qwen3_moe
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:4 hidden=hidden_size:2048 head_dim=head_dim:hidden/heads
    rotary=:head_dim experts=num_local_experts|num_experts:128.
qwen3_next
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:2 head_dim=head_dim:256
    rotary=*0.25@partial_rotary_factor experts=num_experts:512 linear_key_dim=linear_key_head_dim:128
    linear_key_heads=linear_num_key_heads:16 linear_value_dim=linear_value_head_dim:128
    linear_value_heads=linear_num_value_heads:32.
qwen3_omni_moe_text
    heads=num_attention_heads:28 kv_heads=num_key_value_heads:4 hidden=hidden_size:2048 head_dim=head_dim:hidden/heads
    experts=num_experts:128.
qwen3_vl_moe_text
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=:head_dim experts=num_local_experts|num_experts:60.
recurrent_gemma
    heads=num_attention_heads:10 kv_heads=num_key_value_heads:heads hidden=hidden_size:2560
    head_dim=head_dim:hidden/heads rotary=*0.5@partial_rotary_factor.
reformer
    heads=num_attention_heads:12 kv_heads=:heads head_dim=attention_head_size:64.
rembert
    heads=num_attention_heads:18 kv_heads=:heads hidden=hidden_size:1152 head_dim=:hidden/heads.
sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder
sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_mask_decoder
    heads=num_attention_heads:8 kv_heads=:heads hidden=hidden_size:256 head_dim=:hidden/heads.
sapiens2
    heads=num_attention_heads:16 hidden=hidden_size:1024 head_dim=:hidden/heads rotary=*0.5@partial_rotary_factor.
sarvam_mla
    heads=num_attention_heads:64 value_dim=v_head_dim:128 experts=n_routed_experts|num_local_experts|num_experts:128
    nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
sarvam_moe
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:4 head_dim=head_dim:64 rotary=*1.0@partial_rotary_factor
    experts=n_routed_experts|num_local_experts|num_experts:128.
seamless_m4t/decoder seamless_m4t_v2/decoder
    heads=decoder_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=head_dim:hidden/heads.
seamless_m4t/encoder seamless_m4t_v2/encoder
    heads=encoder_attention_heads:16 kv_heads=:heads hidden=hidden_size:1024 head_dim=head_dim:hidden/heads.
seed_oss
    heads=num_attention_heads:80 kv_heads=num_key_value_heads:8 head_dim=head_dim:128 rotary=:head_dim.
smollm3
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:4:heads hidden=hidden_size:2048
    head_dim=head_dim:hidden/heads rotary=:head_dim.
solar_open
    heads=num_attention_heads:64 kv_heads=num_key_value_heads:8 head_dim=head_dim:128
    rotary=*1.0@partial_rotary_factor experts=n_routed_experts|num_local_experts:128.
speech_to_text/decoder
    heads=decoder_attention_heads:4 kv_heads=:heads hidden=d_model|hidden_size:256 head_dim=head_dim:hidden/heads.
speech_to_text/encoder
    heads=encoder_attention_heads:4 kv_heads=:heads hidden=d_model|hidden_size:256 head_dim=head_dim:hidden/heads.
speecht5/decoder
    heads=decoder_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=head_dim:hidden/heads.
speecht5/encoder
    heads=encoder_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=head_dim:hidden/heads.
stablelm
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:32 hidden=hidden_size:2560 head_dim=:hidden/heads
    rotary=*0.25@partial_rotary_factor.
starcoder2
    heads=num_attention_heads:24 kv_heads=num_key_value_heads:2 hidden=hidden_size:3072 head_dim=head_dim:hidden/heads
    rotary=:head_dim.
step3p5
    heads=num_attention_heads:64 kv_heads=num_key_value_heads|num_attention_groups:8 head_dim=head_dim:128
    experts=n_routed_experts|num_local_experts|moe_num_experts:288.
switch_transformers
    heads=num_heads|num_attention_heads:12 kv_heads=:heads head_dim=d_kv:64.
timesfm
    heads=num_attention_heads:16 kv_heads=:heads head_dim=head_dim:80.
timesfm2_5
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16 head_dim=head_dim:80 rotary=:head_dim.
udop
    heads=num_heads|num_attention_heads:16 kv_heads=:heads head_dim=d_kv:64.
unlimited_ocr_text
    heads=num_attention_heads:10 kv_heads=num_key_value_heads:10:heads hidden=hidden_size:1280 head_dim=:hidden/heads
    rotary=:head_dim experts=n_routed_experts|num_experts:64.
videoprism>vision_config>videoprism_vision_model
    heads=num_attention_heads:12 kv_heads=:heads.
vitpose_backbone
    heads=num_attention_heads:12 kv_heads=:heads hidden=hidden_size:768 head_dim=:hidden/heads experts=num_experts:1.
vits
    heads=num_attention_heads:2 kv_heads=:heads hidden=hidden_size:192 head_dim=:hidden/heads.
voxtral>text_config>llama
    heads=num_attention_heads:32 hidden=hidden_size:4096 head_dim=head_dim:128:hidden/heads rotary=:head_dim.
voxtral_realtime_encoder
    heads=num_attention_heads|encoder_attention_heads|num_key_value_heads:32 kv_heads=:heads head_dim=head_dim:64
    rotary=:head_dim.
whisper/decoder
    heads=decoder_attention_heads:6 kv_heads=:heads hidden=d_model|hidden_size:384 head_dim=head_dim:hidden/heads.
whisper/encoder
    heads=encoder_attention_heads|num_key_value_heads:6 kv_heads=:heads hidden=d_model|hidden_size:384
    head_dim=head_dim:hidden/heads.
xglm
    heads=attention_heads|num_attention_heads:16 kv_heads=:heads hidden=d_model|hidden_size:1024
    head_dim=head_dim:hidden/heads.
xlm-roberta-xl
    heads=num_attention_heads:32 kv_heads=:heads hidden=hidden_size:2560 head_dim=:hidden/heads.
youtu
    heads=num_attention_heads:16 value_dim=v_head_dim:128 nope=qk_nope_head_dim:128 rope=qk_rope_head_dim:64.
zamba
    heads=num_attention_heads:16 kv_heads=num_key_value_heads:16.
zamba2
    heads=num_attention_heads:32 kv_heads=num_key_value_heads:heads groups=mamba_ngroups:1 state=mamba_d_state:64
    state_heads=n_mamba_heads:8.
zaya
    experts=num_experts:16.
"""
_TOWERS = """
aimv2
    vision_config=aimv2_vision_model text_config=aimv2_text_model.
align
    vision_config=align_vision_model text_config=align_text_model.
altclip
    vision_config=altclip_vision_model text_config=altclip_text_model.
apertus1p5
    text_config=apertus1p5_text vision_config=apertus1p5_vision_tokenizer audio_config=wavtokenizer_encoder.
aria
    vision_config=idefics3_vision text_config=aria_text.
audioflamingo3 musicflamingo
    audio_config=audioflamingo3_encoder text_config=qwen2.
aya_vision cohere2_vision
    vision_config=siglip_vision_model text_config=cohere2.
bark
    semantic_config=semantic coarse_acoustics_config=coarse_acoustics fine_acoustics_config=fine_acoustics
    codec_config=encodec.
blip
    text_config=blip_text_model vision_config=blip_vision_model.
blip-2
    text_config=opt vision_config=blip_2_vision_model qformer_config=blip_2_qformer.
blt
    patcher_config=blt_patcher encoder_config=blt_local_encoder decoder_config=blt_local_decoder
    global_config=blt_global_transformer.
bridgetower
    text_config=bridgetower_text_model vision_config=bridgetower_vision_model.
canary
    encoder_config=parakeet_encoder decoder_config=canary_decoder.
chameleon
    vq_config=chameleon_vqgan.
chinese_clip
    vision_config=chinese_clip_vision_model text_config=chinese_clip_text_model.
chmv2
    backbone_config=dinov3_vit.
clap
    text_config=clap_text_model audio_config=clap_audio_model.
clip
    vision_config=clip_vision_model text_config=clip_text_model.
clipseg
    vision_config=clipseg_vision_model text_config=clipseg_text_model.
clvp
    text_config=clvp_encoder speech_config=clvp_encoder decoder_config=clvp_decoder.
cohere_asr parakeet_ctc parakeet_rnnt parakeet_tdt
    encoder_config=parakeet_encoder.
cohere_compass
    vision_config=cohere_compass_vision text_config=cohere_compass_text.
colmodernvbert
    vlm_config=modernvbert.
colpali
    vlm_config=paligemma.
colqwen2
    vlm_config=qwen2_vl.
conditional_detr dab-detr deformable_detr detr table-transformer
    backbone_config=timm_backbone.
cosmos3_edge
    vision_config=cosmos3_edge_vision text_config=cosmos3_edge_text.
cosmos3_omni qwen3_vl
    vision_config=qwen3_vl_vision text_config=qwen3_vl_text.
csm
    codec_config=mimi depth_decoder_config=csm_depth_decoder_model.
d_fine deimv2 pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_ocrv5_server_det pp_ocrv5_server_rec
    backbone_config=hgnet_v2.
deepseek_ocr2
    vision_config=deepseek_ocr2_vision text_config=deepseek_ocr2_text.
deepseek_ocr2_vision
    sam_config=deepseek_ocr2_sam_vision_model encoder_config=deepseek_ocr2_encoder.
deepseek_vl
    vision_config=siglip_vision_model text_config=llama.
deepseek_vl_hybrid
    vision_config=siglip_vision_model high_res_vision_config=sam_vision_model text_config=llama.
depth_anything prompt_depth_anything
    backbone_config=dinov2.
depth_pro
    image_model_config=dinov2 patch_model_config=dinov2 fov_model_config=dinov2.
dia
    encoder_config=dia_encoder decoder_config=dia_decoder.
diffusion_gemma
    text_config=diffusion_gemma_text vision_config=gemma4_vision.
dots3_note
    text_config=dots3_note_text vision_config=dots3_note_vision_encoder audio_config=dots3_note_audio_encoder.
edgetam
    vision_config=edgetam_vision_model prompt_encoder_config=edgetam_prompt_encoder
    mask_decoder_config=edgetam_mask_decoder.
edgetam_video
    mask_decoder_config=edgetam_video_mask_decoder vision_config=sam2_vision_model
    prompt_encoder_config=edgetam_video_prompt_encoder.
edgetam_vision_model
    backbone_config=timm_wrapper.
embedding_gemma2
    vision_config=gemma4_vision text_config=embedding_gemma2_text audio_config=gemma4_audio.
emu3
    vq_config=emu3_vqgan text_config=emu3_text_model.
encoder-decoder
    encoder=bert decoder=bert.
ernie4_5_vl_moe
    vision_config=ernie4_5_vl_moe_vision text_config=ernie4_5_vl_moe_text.
esmfold2
    esmc_config=esmc.
exaone4_5
    vision_config=exaone4_5_vision text_config=exaone4.
fast_vlm
    vision_config=timm_wrapper text_config=qwen2.
fastspeech2_conformer_with_hifigan
    model_config=fastspeech2_conformer vocoder_config=fastspeech2_conformer_hifigan.
flava
    text_config=flava_text_model image_config=flava_image_model multimodal_config=flava_multimodal_model
    image_codebook_config=flava_image_codebook.
florence2
    vision_config=florence_vision text_config=bart.
fun_asr_nano
    audio_config=fun_asr_nano_encoder text_config=qwen3.
fuyu
    text_config=<persimmon.
gemma3 shieldgemma2
    text_config=gemma3_text vision_config=siglip_vision_model.
gemma3n
    text_config=gemma3n_text vision_config=gemma3n_vision audio_config=gemma3n_audio.
gemma4
    text_config=gemma4_text vision_config=gemma4_vision audio_config=gemma4_audio.
gemma4_unified
    text_config=gemma4_unified_text vision_config=gemma4_unified_vision audio_config=gemma4_unified_audio.
gemma4_unified_assistant
    text_config=gemma4_unified_text.
git
    vision_config=git_vision_model.
glm46v glmga
    text_config=glm4v_text vision_config=glm4v_vision.
glm4v
    vision_config=glm4v_vision text_config=glm4v_text.
glm4v_moe
    vision_config=glm4v_moe_vision text_config=glm4v_moe_text.
glm5_next
    vision_config=glm5_next_vision text_config=glm5_next_text.
glm_image
    text_config=glm_image_text vision_config=glm_image_vision vq_config=glm_image_vqmodel.
glm_ocr
    vision_config=glm_ocr_vision text_config=glm_ocr_text.
glmasr
    text_config=llama audio_config=glmasr_encoder.
got_ocr2
    text_config=qwen2 vision_config=got_ocr2_vision.
granite4_vision
    text_config=granite4_vision_text vision_config=clip_vision_model qformer_config=blip_2_qformer.
granite_docling
    text_config=granite_docling_text vision_config=granite_docling_vision.
granite_speech
    text_config=granite encoder_config=granite_speech_encoder projector_config=blip_2_qformer.
granite_speech5_ctc
    encoder_config=granite_speech5_encoder.
granite_speech_plus
    text_config=granite encoder_config=granite_speech_plus_encoder projector_config=blip_2_qformer.
grounding-dino mm-grounding-dino
    backbone_config=swin text_config=bert.
groupvit
    text_config=groupvit_text_model vision_config=groupvit_vision_model.
higgs_audio_v2_tokenizer xcodec
    acoustic_model_config=dac semantic_model_config=hubert.
hunyuan_vl
    vision_config=hunyuan_vl_vision text_config=<hunyuan_vl_text.
hy_v4_vl
    vision_config=hy_v4_vl_vision text_config=hy_v4_vl_text.
hyperclovax_vision_v2
    vision_config=qwen2_5_vl_vision text_config=hyperclovax.
idefics
    perceiver_config=idefics_perciever vision_config=idefics_vision.
idefics2
    text_config=mistral vision_config=idefics2_vision perceiver_config=idefics2_perceiver.
idefics3
    text_config=llama vision_config=idefics3_vision.
inkling2
    text_config=inkling2_text vision_config=inkling2_vision.
inkling2_loop
    text_config=inkling2_loop_text vision_config=inkling2_vision.
inkling_mm_model
    text_config=inkling_text vision_config=inkling_vision audio_config=inkling_audio.
instructblip
    text_config=opt vision_config=instructblip_vision_model qformer_config=instructblip_qformer.
instructblipvideo
    text_config=opt vision_config=instructblipvideo_vision_model qformer_config=instructblipvideo_qformer.
internvl
    text_config=qwen2 vision_config=internvl_vision.
janus
    text_config=llama vision_config=janus_vision_model vq_config=janus_vqgan.
jev
    text_config=qwen3_5_text.
kimi_k25
    text_config=deepseek_v3 vision_config=kimi_k25_vision.
kosmos-2
    text_config=kosmos_2_text_model vision_config=kosmos_2_vision_model.
kosmos-2.5
    text_config=kosmos_2_5_text_model vision_config=kosmos_2_5_vision_model.
kyutai_speech_to_text
    codec_config=mimi.
lasr_ctc
    encoder_config=lasr_encoder.
lfm2_vl
    vision_config=siglip2_vision_model text_config=lfm2.
lfm3_vl
    vision_config=lfm3_vl_vision text_config=lfm3.
lightglue superglue
    keypoint_detector_config=superpoint.
lighton_ocr
    vision_config=pixtral text_config=qwen3.
llama4
    text_config=llama4_text vision_config=llama4_vision_model.
llava llava_next_video
    vision_config=clip_vision_model text_config=llama.
llava_next video_llava vipllava
    text_config=llama vision_config=clip_vision_model.
llava_onevision
    vision_config=siglip_vision_model text_config=qwen2.
lw_detr
    backbone_config=lw_detr_vit.
mask2former oneformer
    backbone_config=swin.
maskformer
    backbone_config=swin decoder_config=detr.
metaclip_2
    vision_config=metaclip_2_vision_model text_config=metaclip_2_text_model.
minicpm_ocr
    text_config=qwen3_5_text vision_config=minicpm_ocr_vision.
minicpmv4_6
    text_config=qwen3_5_text vision_config=minicpmv4_6_vision.
minicpmv4_7
    text_config=qwen3_5_text vision_config=minicpmv4_7_vision.
minimax_m3_vl
    text_config=minimax_m3_vl_text vision_config=minimax_m3_vl_vision.
mistral3
    text_config=mistral vision_config=pixtral.
mistral_large4
    text_config=mistral_large4_text vision_config=pixtral.
mllama
    text_config=mllama_text_model vision_config=mllama_vision_model.
modernvbert
    text_config=modernbert vision_config=siglip_vision_model.
molmo2
    text_config=molmo2_text vision_config=molmo2_vision adapter_config=molmo2_adapter.
moonshine_streaming
    encoder_config=moonshine_streaming_encoder.
moshi
    audio_encoder_config=mimi depth_decoder_config=moshi_depth.
moss_transcribe_diarize
    audio_config=moss_transcribe_diarize_audio text_config=qwen3.
muse_glimmer
    text_config=muse_glimmer_text vision_config=muse_glimmer_vision.
muse_spark
    text_config=muse_spark_text vision_config=muse_spark_vision audio_config=muse_spark_audio.
musicgen
    text_encoder=t5 audio_encoder=encodec decoder=musicgen_decoder.
musicgen_melody
    text_encoder=t5 audio_encoder=encodec decoder=musicgen_melody_decoder.
nemo_speechlm
    audio_config=nemotron3_5_transcribe_audio text_config=nemotron_h
    word_timestamp_config=nemotron3_5_transcribe_word_timestamp.
nemotron3_5_asr nemotron_asr_streaming
    encoder_config=nemotron_asr_streaming_encoder.
nemotron3_5_transcribe_audio
    asr_config=nemotron3_5_transcribe_asr_audio diarization_config=nemotron3_diarization.
nemotron3_diarization
    audio_config=nemotron3_diarization_audio.
nemotron_h_omni
    vision_config=radio text_config=nemotron_h audio_config=parakeet_encoder.
neucodec xcodec2
    semantic_model_config=wav2vec2-bert.
omdet-turbo
    backbone_config=timm_backbone text_config=clip_text_model.
omniasr
    audio_config=omniasr_audio text_config=llama.
omniasr_ctc
    audio_config=omniasr_audio.
ovis2
    text_config=qwen2 vision_config=ovis2_vision.
owlv2
    text_config=owlv2_text_model vision_config=owlv2_vision_model.
owlvit
    text_config=owlvit_text_model vision_config=owlvit_vision_model.
paddleocr_vl
    vision_config=paddleocr_vl_vision text_config=<paddleocr_vl_text.
paligemma
    vision_config=siglip_vision_model text_config=gemma.
pe_audio
    text_config=modernbert audio_config=pe_audio_encoder.
pe_audio_encoder
    dac_config=dac.
pe_audio_video
    text_config=modernbert audio_video_config=pe_audio_video_encoder.
pe_audio_video_encoder
    audio_config=pe_audio_encoder video_config=pe_video_encoder.
pe_video
    text_config=modernbert video_config=pe_video_encoder.
pe_video_encoder
    vision_config=timm_wrapper.
perception_lm
    text_config=llama vision_config=timm_wrapper.
phi4_multimodal
    audio_config=phi4_multimodal_audio vision_config=phi4_multimodal_vision.
pi0
    vlm_config=paligemma dit_config=gemma.
pix2struct
    text_config=pix2struct_text_model vision_config=pix2struct_vision_model.
pp_chart2table
    text_config=qwen2 vision_config=pp_chart2table_vision.
pp_formulanet
    text_config=pp_formulanet_text vision_config=pp_formulanet_vision.
pp_ocrv5_mobile_det pp_ocrv5_mobile_rec
    backbone_config=pp_lcnet_v3.
pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec
    backbone_config=pp_lcnet_v4.
qianfan_ocr
    text_config=qwen3 vision_config=qianfan_ocr_vision.
qwen2_5_omni
    thinker_config=qwen2_5_omni_thinker talker_config=qwen2_5_omni_talker token2wav_config=qwen2_5_omni_token2wav.
qwen2_5_omni_thinker
    text_config=qwen2_5_omni_text vision_config=qwen2_5_omni_vision_encoder audio_config=qwen2_5_omni_audio_encoder.
qwen2_5_omni_token2wav
    dit_config=qwen2_5_omni_dit bigvgan_config=qwen2_5_omni_bigvgan.
qwen2_5_vl
    vision_config=qwen2_5_vl_vision text_config=<qwen2_5_vl_text.
qwen2_audio
    text_config=qwen2 audio_config=qwen2_audio_encoder.
qwen2_vl
    vision_config=qwen2_vl_vision text_config=<qwen2_vl_text.
qwen3_5
    vision_config=qwen3_5_vision text_config=qwen3_5_text.
qwen3_5_moe
    vision_config=qwen3_5_moe_vision text_config=qwen3_5_moe_text.
qwen3_asr
    audio_config=qwen3_asr_encoder text_config=qwen3.
qwen3_omni_moe
    thinker_config=qwen3_omni_moe_thinker.
qwen3_omni_moe_thinker
    text_config=qwen3_omni_moe_text vision_config=qwen3_omni_moe_vision_encoder
    audio_config=qwen3_omni_moe_audio_encoder.
qwen3_vl_moe
    vision_config=qwen3_vl_moe_vision text_config=qwen3_vl_moe_text.
qwen4_exp
    vision_config=qwen4_exp_vision text_config=qwen4_exp_text.
rf_detr
    backbone_config=rf_detr_dinov2.
rt_detr rt_detr_v2
    backbone_config=rt_detr_resnet.
sam
    prompt_encoder_config=sam_prompt_encoder mask_decoder_config=sam_mask_decoder vision_config=sam_vision_model.
sam2
    vision_config=sam2_vision_model prompt_encoder_config=sam2_prompt_encoder mask_decoder_config=sam2_mask_decoder.
sam2_video
    prompt_encoder_config=sam2_video_prompt_encoder mask_decoder_config=sam2_video_mask_decoder
    vision_config=sam2_vision_model.
sam2_vision_model
    backbone_config=sam2_hiera_det_model.
sam3
    geometry_encoder_config=sam3_geometry_encoder detr_encoder_config=sam3_detr_encoder
    detr_decoder_config=sam3_detr_decoder mask_decoder_config=sam3_mask_decoder vision_config=sam3_vision_model
    text_config=clip_text_model.
sam3_lite_text
    geometry_encoder_config=sam3_lite_text_geometry_encoder detr_encoder_config=sam3_lite_text_detr_encoder
    detr_decoder_config=sam3_lite_text_detr_decoder mask_decoder_config=sam3_lite_text_mask_decoder
    vision_config=sam3_vision_model text_config=sam3_lite_text_text_model.
sam3_tracker
    vision_config=sam3_vision_model prompt_encoder_config=sam3_tracker_prompt_encoder
    mask_decoder_config=sam3_tracker_mask_decoder.
sam3_tracker_video
    vision_config=sam3_vision_model prompt_encoder_config=sam3_tracker_video_prompt_encoder
    mask_decoder_config=sam3_tracker_video_mask_decoder.
sam3_video
    detector_config=sam3 tracker_config=sam3_tracker_video.
sam3_vision_model
    backbone_config=sam3_vit_model.
sam_hq
    prompt_encoder_config=sam_hq_prompt_encoder mask_decoder_config=sam_hq_mask_decoder
    vision_config=sam_hq_vision_model.
sapiens2
    head_config=sapiens2_head.
siglip
    vision_config=siglip_vision_model text_config=siglip_text_model.
siglip2
    vision_config=siglip2_vision_model text_config=siglip2_text_model.
slanet
    backbone_config=pp_lcnet.
slanext
    vision_config=slanext_vision.
smolvlm
    text_config=llama vision_config=smolvlm_vision.
speech-encoder-decoder
    encoder=wav2vec2 decoder=bert.
step3p7
    vision_config=step3p5_vision text_config=step3p5.
t5gemma
    encoder=t5_gemma_module decoder=t5_gemma_module.
t5gemma2
    encoder=t5gemma2_encoder decoder=t5gemma2_decoder.
t5gemma2_encoder
    text_config=t5gemma2_text vision_config=siglip_vision_model.
tipsv2
    text_config=tipsv2_text_model vision_config=tipsv2_vision_model.
tipsv2_dpt
    backbone_config=tipsv2_vision_model.
tvp upernet
    backbone_config=resnet.
ultravbert
    text_config=ultrabert vision_config=siglip_vision_model.
unlimited_ocr
    vision_config=unlimited_ocr_vision text_config=unlimited_ocr_text.
unlimited_ocr_vision
    sam_config=unlimited_ocr_sam_vision_model encoder_config=unlimited_ocr_vision_encoder.
uvdoc
    backbone_config=uvdoc_backbone.
vibevoice
    text_config=qwen2 diffusion_head_config=vibevoice_diffusion
    semantic_model_config=vibevoice_acoustic_tokenizer_encoder audio_config=vibevoice_acoustic_tokenizer.
vibevoice_asr
    text_config=qwen2 semantic_tokenizer_encoder_config=vibevoice_acoustic_tokenizer_encoder
    acoustic_tokenizer_encoder_config=vibevoice_acoustic_tokenizer_encoder.
video_llama_3
    text_config=qwen2 vision_config=video_llama_3_vision.
videoprism
    vision_config=videoprism_vision_model text_config=videoprism_text_model.
vision-encoder-decoder
    decoder=bert encoder=vit.
vision-text-dual-encoder
    text_config=bert vision_config=vit.
vitmatte
    backbone_config=vitdet.
vitpose
    backbone_config=vitpose_backbone.
voxtral
    text_config=llama audio_config=voxtral_encoder.
voxtral_realtime
    text_config=voxtral_realtime_text audio_config=voxtral_realtime_encoder.
xclip
    text_config=xclip_text_model vision_config=xclip_vision_model.
zoedepth
    backbone_config=beit.
"""


def _table(text: str) -> dict[str, str]:
    """{model type: its row}: model types, then a row on indented lines that ends in a point."""
    found: dict[str, str] = {}
    names: list[str] = []
    row: list[str] = []
    for line in text.strip().split("\n"):
        if not line.startswith(" "):
            names += line.split()
            continue
        row.append(line.strip())
        if line.endswith("."):
            found |= dict.fromkeys(names, " ".join(row)[:-1].strip())
            names, row = [], []
    return found


ROWS = _table(_ROWS)
"""{a model type, or one and a half of it, `bart/encoder`: its rules}."""
TOWERS = {name: dict(one.split("=") for one in row.split()) for name, row in _table(_TOWERS).items()}
"""{model type: {key of a nested config: its model type, after < where its keys may stand in the outer config}}."""
