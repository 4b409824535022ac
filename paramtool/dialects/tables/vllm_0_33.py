"""Names in the models of vLLM 0.33.0 that differ from those in transformers' files, by architecture.

Made by docs/make_vllm_names.py from the `WeightsMapper` tables of vLLM's model files.  A group is (architectures, the
lines of `load_weights`, renames, fused tensors, an expert's three weights in the file).  Names are without the path
before them and without `.weight` or `.bias`.
"""

VERSION = "0.33.0"
DIGEST = "bbd570fa38d5f6578d3ad600caa78081a20cb026f9ef8690d533f46383bb0fc0"
"""SHA-256 of the 145 files that were read: of the sorted lines `PATH SHA-256`."""

TIES = (
    (
        "lm_head.weight",
        "backbone.embeddings.weight",
        """
        FalconMambaForCausalLM Mamba2ForCausalLM MambaForCausalLM
        """,
    ),
    (
        "lm_head.weight",
        "model.decoder.embed_tokens.weight",
        """
        OPTForCausalLM
        """,
    ),
    (
        "lm_head.weight",
        "model.embed_tokens.weight",
        """
        ApertusForCausalLM DeciLMForCausalLM Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM
        ExaoneMoEForCausalLM ExaoneMoeForCausalLM FalconH1ForCausalLM Gemma3ForCausalLM Gemma4ForCausalLM
        GemmaForCausalLM Glm4ForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM
        GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM GraniteSWAForCausalLM HYV3ForCausalLM HrmTextForCausalLM
        HyperCLOVAXForCausalLM IQuestCoderForCausalLM IQuestLoopCoderForCausalLM InternLM3ForCausalLM
        JinaEmbeddingsV5Model LLaMAForCausalLM LagunaForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM Llama4ForCausalLM
        LlamaForCausalLM LlamaModel MiMoForCausalLM MiniCPM3ForCausalLM MiniCPMForCausalLM Ministral3ForCausalLM
        MistralForCausalLM MistralModel MixtralForCausalLM NemotronForCausalLM OlmoHybridForCausalLM OrionForCausalLM
        PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM Param2MoEForCausalLM Phi3ForCausalLM
        Plamo3ForCausalLM Qwen2ForCausalLM Qwen2Model Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM
        Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM Rnj1ForCausalLM SarvamMLAForCausalLM SolarForCausalLM
        StableLmForCausalLM Step1ForCausalLM Step5ForCausalLM TeleChat2ForCausalLM TeleChat3ForCausalLM
        TeleFLMForCausalLM Zamba2ForCausalLM
        """,
    ),
    (
        "lm_head.weight",
        "model.word_embeddings.weight",
        """
        BailingMoeForCausalLM BailingMoeV2ForCausalLM SarvamMoEForCausalLM
        """,
    ),
    (
        "lm_head.weight",
        "transformer.word_embeddings.weight",
        """
        BloomForCausalLM FalconForCausalLM
        """,
    ),
    (
        "lm_head.weight",
        "transformer.wte.weight",
        """
        ExaoneForCausalLM GPT2LMHeadModel
        """,
    ),
    (
        "output.weight",
        "model.tok_embeddings.weight",
        """
        InternLM2ForCausalLM
        """,
    ),
)
"""(head, embedding, architectures that make them one parameter where the config ties them)"""

GROUPS = (
    (
        """
        Cohere2ForCausalLM CohereForCausalLM DeciLMForCausalLM DomynEdgeForCausalLM Ernie4_5ForCausalLM
        Exaone4ForCausalLM Gemma2ForCausalLM Gemma2Model Gemma3ForCausalLM Gemma3TextModel GemmaForCausalLM
        GraniteForCausalLM GraniteSWAForCausalLM HyperCLOVAXForCausalLM IQuestCoderForCausalLM InternLM3ForCausalLM
        LLaMAForCausalLM LlamaForCausalLM LlamaModel MiMoForCausalLM Ministral3ForCausalLM MistralForCausalLM
        MistralModel OrionForCausalLM Qwen2ForCausalLM Qwen2Model Qwen3ForCausalLM Rnj1ForCausalLM SolarForCausalLM
        StableLmForCausalLM Step1ForCausalLM TeleChat3ForCausalLM TeleFLMForCausalLM VoyageQwen3BidirectionalEmbedModel
        """,
        """
        commandr.py:474 exaone4.py:448 gemma.py:393 gemma2.py:371 gemma3.py:362 gemma3.py:431 granite.py:406
        hyperclovax.py:472 llama.py:459 mimo.py:126 nemotron_nas.py:414 orion.py:336 qwen2.py:453 rnj1.py:397
        solar.py:423 stablelm.py:327 step1.py:385
        """,
        (),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))),
        (),
    ),
    (
        """
        ApertusForCausalLM GPTJForCausalLM NemotronForCausalLM OPTForCausalLM
        """,
        """
        apertus.py:492 gpt_j.py:299 nemotron.py:471 opt.py:390
        """,
        (),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")),),
        (),
    ),
    (
        """
        Cohere2MoeForCausalLM Ernie4_5_MoeForCausalLM ExaoneMoEForCausalLM ExaoneMoeForCausalLM
        """,
        """
        cohere2_moe.py:764 ernie45_moe.py:503 exaone_moe.py:551
        """,
        (),
        (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
            ("shared_experts.gate_up_proj", ("shared_experts.gate_proj", "shared_experts.up_proj")),
        ),
        ("gate_proj", "down_proj", "up_proj"),
    ),
    (
        """
        BailingMoeForCausalLM BailingMoeV2ForCausalLM SarvamMLAForCausalLM
        """,
        """
        bailing_moe.py:481 sarvam.py:593
        """,
        (),
        (
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
            ("shared_experts.gate_up_proj", ("shared_experts.gate_proj", "shared_experts.up_proj")),
        ),
        ("gate_proj", "down_proj", "up_proj"),
    ),
    (
        """
        LagunaForCausalLM OlmoeForCausalLM
        """,
        """
        laguna.py:678 olmoe.py:403
        """,
        (),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")),),
        ("gate_proj", "down_proj", "up_proj"),
    ),
    (
        """
        Lfm2BidirectionalModel Lfm2ForCausalLM
        """,
        """
        lfm2.py:495
        """,
        ((".conv.", ".short_conv.", "inside"),),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("w13", ("w1", "w3"))),
        (),
    ),
    (
        """
        MixtralForCausalLM PhiMoEForCausalLM
        """,
        """
        mixtral.py:370 phimoe.py:583
        """,
        (),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")),),
        ("w1", "w2", "w3"),
    ),
    (
        """
        AfmoeForCausalLM
        """,
        """
        afmoe.py:586
        """,
        ((".router.gate.weight", ".gate.weight", "suffix"),),
        (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
            ("shared_experts.gate_up_proj", ("shared_experts.gate_proj", "shared_experts.up_proj")),
        ),
        ("gate_proj", "down_proj", "up_proj"),
    ),
    (
        """
        ExaoneForCausalLM
        """,
        """
        exaone.py:448
        """,
        (),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("c_fc_0", "c_fc_1"))),
        (),
    ),
    (
        """
        HrmTextForCausalLM
        """,
        """
        hrm_text.py:522
        """,
        ((".attn.", ".self_attn.", "inside"),),
        (),
        (),
    ),
    (
        """
        InternLM2ForCausalLM
        """,
        """
        internlm2.py:319
        """,
        (),
        (("gate_up_proj", ("w1", "w3")),),
        (),
    ),
    (
        """
        Lfm2MoeForCausalLM
        """,
        """
        lfm2_moe.py:495
        """,
        ((".conv.", ".short_conv.", "inside"), ("expert_bias", "gate.e_score_correction_bias", "inside")),
        (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("feed_forward.w13", ("feed_forward.w1", "feed_forward.w3"))),
        ("w1", "w2", "w3"),
    ),
    (
        """
        Phi3ForCausalLM
        """,
        """
        llama.py:459
        """,
        (),
        (),
        (),
    ),
    (
        """
        Qwen3MoeForCausalLM
        """,
        """
        qwen3_moe.py:528
        """,
        (),
        (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
            ("shared_expert.gate_up_proj", ("shared_expert.gate_proj", "shared_expert.up_proj")),
        ),
        ("gate_proj", "down_proj", "up_proj"),
    ),
)
"""Those whose loading is names and joins."""

COMPUTED = {
    "AXK1ForCausalLM": "AXK1.py:814",
    "AliceAIForCausalLM": "alice_ai.py:709",
    "BailingMoeV2_5ForCausalLM": "bailing_moe_linear.py:570",
    "BailingMoeV3ForCausalLM": "bailing_moe_v3.py:1498",
    "BeamForCausalLM": "models/beam/nvidia/model.py:229",
    "BertForMaskedLM": "bert.py:987",
    "BertForSequenceClassification": "bert.py:839",
    "BertModel": "bert.py:508",
    "BertSpladeSparseEmbeddingModel": "bert.py:738",
    "BgeM3EmbeddingModel": "roberta.py:252",
    "BloomForCausalLM": "bloom.py:362",
    "CLIPModel": "clip.py:715",
    "ChatGLMForConditionalGeneration": "chatglm.py:383: 1 renames, one after the other",
    "ChatGLMModel": "chatglm.py:383: 1 renames, one after the other",
    "ColPaliForRetrieval": "colpali.py:178",
    "D3ForSequenceClassification": "no table was found",
    "DbrxForCausalLM": "dbrx.py:386",
    "DeepseekForCausalLM": "deepseek_v2.py:1594",
    "DeepseekV2ForCausalLM": "deepseek_v2.py:1594",
    "DeepseekV32ForCausalLM": "deepseek_v2.py:1594",
    "DeepseekV3BidirectionalModel": "deepseek_v2.py:1594",
    "DeepseekV3ForCausalLM": "deepseek_v2.py:1594",
    "DeepseekV4ForCausalLM": "models/deepseek_v4/nvidia/model.py:1402",
    "DoryForCausalLM": "dory.py:332",
    "EmbeddingGemma2Model": "embedding_gemma2.py:1120",
    "FalconForCausalLM": "falcon.py:425",
    "FalconH1ForCausalLM": "falcon_h1.py:645: A_log becomes A",
    "FalconMambaForCausalLM": "mamba.py:262: .A_log becomes .A",
    "FlintForCausalLM": "models/flint/model.py:675",
    "GPT2ForSequenceClassification": "gpt2.py:357",
    "GPT2LMHeadModel": "gpt2.py:315",
    "Gemma3nForCausalLM": "gemma3n.py:854",
    "Gemma4ForCausalLM": "gemma4.py:997",
    "Glm4ForCausalLM": "glm4.py:271",
    "Glm4MoeForCausalLM": "glm4_moe.py:493",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite.py:347",
    "Glm5NextForCausalLM": "models/glm5next/common/model.py:859",
    "GlmMoeDsaForCausalLM": "deepseek_v2.py:1594",
    "GptOssForCausalLM": "gpt_oss.py:1311",
    "GraniteMoeForCausalLM": "granitemoe.py:386: moe.input_linear.weight becomes moe.experts.gate_up_proj",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid.py:435",
    "GraniteMoeSWAForCausalLM": "granitemoeshared.py:224",
    "GraniteMoeSharedForCausalLM": "granitemoeshared.py:224",
    "GteModel": "bert_with_rope.py:595",
    "GteNewForSequenceClassification": "bert_with_rope.py:711",
    "GteNewModel": "bert_with_rope.py:595",
    "HCXVisionV2ForCausalLM": "hyperclovax_vision_v2.py:441",
    "HYV3ForCausalLM": "hy_v3.py:708",
    "HYV4ForCausalLM": "models/hy_v4/amd/model.py:718",
    "IQuestLoopCoderForCausalLM": "iquest_loopcoder.py:466",
    "InklingForCausalLM": "models/inkling/nvidia/model.py:477",
    "InklingForConditionalGeneration": "models/inkling/nvidia/model.py:477",
    "JambaForCausalLM": "jamba.py:496: .A_log becomes .A",
    "JambaForSequenceClassification": "jamba.py:496: .A_log becomes .A",
    "JinaEmbeddingsV5Model": "jina.py:301",
    "JinaVLForRanking": "qwen2_vl.py:1422",
    "K2HorizonForCausalLM": "k2_horizon.py:1190",
    "KimiLinearForCausalLM": "models/kimi_k3/nvidia/model.py:1246",
    "Llama4ForCausalLM": "llama4.py:793",
    "LlamaBidirectionalForSequenceClassification": "no table was found",
    "LlamaBidirectionalModel": "no table was found",
    "LlamaNemotronVLForSequenceClassification": "nemotron_vl.py:600",
    "LlamaNemotronVLModel": "nemotron_vl.py:141",
    "LlavaNextForConditionalGeneration": "llava_next.py:311",
    "LongcatFlashForCausalLM": "longcat_flash.py:461",
    "LongcatFlashNgramForCausalLM": "longcat_flash_ngram.py:181",
    "Mamba2ForCausalLM": "mamba2.py:273: .A_log becomes .A",
    "MambaForCausalLM": "mamba.py:262: .A_log becomes .A",
    "MiMoV2FlashForCausalLM": "mimo_v2.py:866",
    "MiMoV2ForCausalLM": "mimo_v2.py:866",
    "MiniCPM3ForCausalLM": "minicpm.py:488",
    "MiniCPMForCausalLM": "minicpm.py:488",
    "MiniMaxM2ForCausalLM": "minimax_m2.py:378",
    "MiniMaxM3SparseForCausalLM": "models/minimax_m3/amd/model.py:1595",
    "MistralLarge3ForCausalLM": "mistral_large_3.py:21",
    "ModernBertForSequenceClassification": "modernbert.py:390",
    "ModernBertModel": "modernbert.py:281",
    "MuseGlimmerForCausalLM": "muse_glimmer.py:1381: 19 renames, one after the other",
    "NemotronHForCausalLM": "nemotron_h.py:918: A_log becomes A",
    "NemotronHPuzzleForCausalLM": "nemotron_h.py:918: A_log becomes A",
    "NomicBertModel": "bert_with_rope.py:495",
    "OlmoHybridForCausalLM": "olmo_hybrid.py:377: linear_attn.in_proj_qkvg is joined of 4",
    "PanguEmbeddedForCausalLM": "openpangu.py:1063",
    "PanguProMoEV2ForCausalLM": "openpangu.py:1063",
    "PanguUltraMoEForCausalLM": "openpangu.py:1063",
    "Param2MoEForCausalLM": "param2moe.py:546: 7 renames, one after the other",
    "Phi3VForCausalLM": "phi3v.py:684",
    "Plamo3ForCausalLM": "no table was found",
    "Qwen2MoeForCausalLM": "qwen2_moe.py:497",
    "Qwen2VLForConditionalGeneration": "qwen2_vl.py:1422",
    "Qwen3NextForCausalLM": "qwen3_next.py:756",
    "Qwen3_5ForCausalLM": "qwen3_5.py:282",
    "Qwen3_5MoeForCausalLM": "qwen3_5.py:282",
    "Qwen4ExpForCausalLM": "models/qwen4_exp/nvidia/model.py:916",
    "RobertaForMaskedLM": "roberta.py:153",
    "RobertaForSequenceClassification": "roberta.py:322: 10 renames, one after the other",
    "RobertaModel": "roberta.py:153",
    "SarvamMoEForCausalLM": "sarvam.py:754",
    "SiglipModel": "siglip.py:788",
    "Step3TextForCausalLM": "step3_text.py:385",
    "Step3p5ForCausalLM": "step3p5.py:581",
    "Step5ForCausalLM": "models/step5/nvidia/model.py:2439",
    "TeleChat2ForCausalLM": "telechat2.py:129: 6 renames, one after the other",
    "Terratorch": "terratorch.py:294",
    "XLMRobertaForSequenceClassification": "roberta.py:322: 10 renames, one after the other",
    "XLMRobertaModel": "roberta.py:153",
    "Zamba2ForCausalLM": "zamba2.py:994: A_log becomes A",
}
"""{architecture: where code does more}; `paramtool.dialects.vllm` has some of them by hand."""

OTHERS = {
    "_LATE_INTERACTION_MODELS": """
        ColBERTJinaRobertaModel ColBERTLfm2Model ColBERTModernBertModel ColModernVBertForRetrieval ColQwen3 ColQwen3_5
        ColUltraVBertForRetrieval HF_ColBERT JinaForRanking ModernVBertModel OpsColQwen3Model Qwen3VLNemotronEmbedModel
        """,
    "_REWARD_MODELS": """
        InternLM2ForRewardModel Qwen2ForProcessRewardModel Qwen2ForRewardModel
        """,
    "_TOKEN_CLASSIFICATION_MODELS": """
        BertForTokenClassification ClefFlashForJointSchema ClefOmniForJointSchema ModernBertForTokenClassification
        OpenAIPrivacyFilterForTokenClassification Qwen3ASRForcedAlignerForTokenClassification
        RobertaForTokenClassification XLMRobertaForTokenClassification
        """,
    "_MULTIMODAL_MODELS": """
        Alpamayo2Super AriaForConditionalGeneration AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration
        BailingMoeV3VLForConditionalGeneration BeeForConditionalGeneration Blip2ForConditionalGeneration
        Cohere2VisionForConditionalGeneration CohereAsrForConditionalGeneration CohereCompassForConditionalGeneration
        Cosmos3EdgeForConditionalGeneration Cosmos3ForConditionalGeneration DeepseekOCR2ForCausalLM
        DeepseekOCRForCausalLM DeepseekV41ForCausalLM DeepseekV4ForConditionalGeneration DeepseekVLV2ForCausalLM
        DiffusionGemmaForBlockDiffusion Dots3NoteForCausalLM DotsOCRForCausalLM Eagle2_5_VLForConditionalGeneration
        Ernie4_5_VLMoeForConditionalGeneration Exaone4_5_ForConditionalGeneration FireRedASR2ForConditionalGeneration
        FunASRForConditionalGeneration FunAudioChatForConditionalGeneration GLM4VForCausalLM
        Gemma3ForConditionalGeneration Gemma3nForConditionalGeneration Gemma4ForConditionalGeneration
        Gemma4UnifiedForConditionalGeneration Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration
        Glm5NextForConditionalGeneration GlmAsrForConditionalGeneration GlmOcrForConditionalGeneration
        Granite4VisionForConditionalGeneration GraniteSpeechForConditionalGeneration
        GraniteSpeechPlusForConditionalGeneration H2OVLChatModel HfMoondream Idefics3ForConditionalGeneration
        InternS1ForConditionalGeneration InternS1ProForConditionalGeneration InternS2MobiusForConditionalGeneration
        InternS2PreviewForConditionalGeneration InternVLChatModel InternVLForConditionalGeneration
        IsaacForConditionalGeneration KananaVForConditionalGeneration KeyeForConditionalGeneration
        KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration
        KimiVLForConditionalGeneration Lfm2VlForConditionalGeneration LightOnOCRForConditionalGeneration
        Llama4ForConditionalGeneration Llama_Nemotron_Nano_VL LlavaForConditionalGeneration
        LlavaNextVideoForConditionalGeneration LlavaOnevision2ForConditionalGeneration
        LlavaOnevisionForConditionalGeneration MiDashengLMModel MiMoV2OmniForCausalLM MiniCPMO
        MiniCPMOcrForConditionalGeneration MiniCPMV MiniCPMV4_6ForConditionalGeneration
        MiniCPMV4_7ForConditionalGeneration MiniMaxM3SparseForConditionalGeneration Mistral3ForConditionalGeneration
        Molmo2ForConditionalGeneration MolmoForCausalLM Moondream3ForCausalLM MoonshotKimiaForCausalLM MossAudioModel
        MossTranscribeDiarizeForConditionalGeneration MuseGlimmerForConditionalGeneration
        MuseSparkForConditionalGeneration NVLM_D NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2
        NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 NemotronParseForConditionalGeneration
        OpenCUAForConditionalGeneration OpenPanguVLForConditionalGeneration OpenVLAForActionPrediction Ovis Ovis2_5
        Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM PaddleOCRVLForConditionalGeneration PaliGemmaForConditionalGeneration
        Phi4ForCausalLMV Phi4MMForCausalLM PixtralForConditionalGeneration QianfanOCRForConditionalGeneration
        Qwen2AudioForConditionalGeneration Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel
        Qwen2_5_VLForConditionalGeneration Qwen3ASRForConditionalGeneration Qwen3ASRRealtimeGeneration
        Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
        Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration Qwen4ExpForConditionalGeneration
        RForConditionalGeneration RadioMBartPrefixForCausalLM SkyworkR1VChatModel SmolVLMForConditionalGeneration
        Step3VLForConditionalGeneration Step3p7ForConditionalGeneration Step5ForConditionalGeneration
        StepVLForConditionalGeneration UltravoxModel UnlimitedOCRForCausalLM VoxtralForConditionalGeneration
        VoxtralRealtimeGeneration WhisperForConditionalGeneration
        """,
    "_SPECULATIVE_DECODING_MODELS": """
        BailingMoeV25MTPModel BailingMoeV3MTPModel DFlash2BeamDraftModel DFlash2DraftModel DFlashDraftModel
        DFlashLagunaForCausalLM DFlashMuseGlimmerAssistantModel DFlashQwen3XPressModel DSparkDraftModel
        DSparkV41DraftModel DeepSeekMTPModel DeepSeekV4MTPModel DeepseekV32MTPModel Dots3NoteMTPModel
        Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM
        Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3ForCausalLM Eagle3Qwen3vlForCausalLM EagleCohereForCausalLM
        EagleDeepSeekMTPModel EagleLlama4ForCausalLM EagleLlamaForCausalLM EagleMiniCPMForCausalLM
        EagleMistralForCausalLM EagleMistralLarge3ForCausalLM ErnieMTPModel Exaone4_5_MTP ExaoneMoeMTP
        ExtractHiddenStatesModel Gemma4DSparkModel Gemma4MTPModel Glm4MoeLiteMTPModel Glm4MoeMTPModel Glm5NextMTPModel
        GlmOcrMTPModel HYV3MTPModel HYV4MTPModel InklingMTPModel InternS2MobiusMTP K3DSparkModel KimiK3MTPModel
        LiLiCorrDraftModel LlamaForCausalLMEagle3 LongCatFlashMTPModel MiMoMTPModel MiMoV2MTPModel MiMoV2OmniMTPModel
        MiniMaxM3MTP MuseGlimmerAssistantModel MuseSparkDSparkModel NemotronHMTPModel OpenPanguMTPModel PEagleDraftModel
        ParseAuxMTPModel PeagleLlamaForCausalLM PeagleQwen3ForCausalLM Qwen3DSparkModel Qwen3NextMTP
        Qwen3OmniDSparkModel Qwen3XPressModel Qwen3_5MTP Qwen3_5MoeMTP Qwen4ExpMTP Step3p5MTP Step5MTP
        """,
    "_TRANSFORMERS_SUPPORTED_MODELS": """
        ArceeForCausalLM CwmForCausalLM Emu3ForConditionalGeneration FlexOlmoForCausalLM GPTBigCodeForCausalLM
        GPTNeoXForCausalLM GlmForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
        HunYuanVLForConditionalGeneration Jais2ForCausalLM Kolibri1ForCausalLM MellumForCausalLM NanbeigeForCausalLM
        Olmo2ForCausalLM Olmo3ForCausalLM OlmoForCausalLM PhiForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM
        Starcoder2ForCausalLM VaultGemmaForCausalLM VibeVoiceAsrForConditionalGeneration
        """,
    "_PREVIOUSLY_SUPPORTED_MODELS": """
        AquilaForCausalLM AquilaModel ArcticForCausalLM AyaVisionForConditionalGeneration BaiChuanForCausalLM
        BaichuanForCausalLM BambaForCausalLM ChameleonForConditionalGeneration Cheers CheersForConditionalGeneration
        DonutForConditionalGeneration Dots1ForCausalLM ErnieForSequenceClassification ErnieForTokenClassification
        ErnieModel Fairseq2LlamaForCausalLM FireRedLIDForConditionalGeneration FuyuForCausalLM GritLM Grok1ForCausalLM
        Grok1ModelForCausalLM HCXVisionForCausalLM InternLM2VEForCausalLM InternLMForCausalLM JAISLMHeadModel
        MPTForCausalLM MantisForConditionalGeneration MiniMaxForCausalLM MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM
        MiniMaxVL01ForConditionalGeneration MllamaForConditionalGeneration MotifForCausalLM MptForCausalLM
        MusicFlamingoForConditionalGeneration OuroForCausalLM PersimmonForCausalLM Phi3SmallForCausalLM
        Phi4FlashForCausalLM Phi4MultimodalForCausalLM Plamo2ForCausalLM PrithviGeoSpatialMAE QWenLMHeadModel
        QwenVLForConditionalGeneration RWForCausalLM StableLMEpochForCausalLM Tarsier2ForConditionalGeneration
        TarsierForConditionalGeneration TeleChatForCausalLM XverseForCausalLM
        """,
}
"""{group of models/registry.py: its architectures, which are in no table}"""
