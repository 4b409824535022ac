"""torch.nn.MultiheadAttention (`in_proj_weight`, `in_proj_bias`) and the models that are made of it.

CLIP as OpenAI and open_clip store it: huggingface/transformers 0ea01089f7
`models/clip/convert_clip_original_pytorch_to_hf.py` 24-101 (names; the two projections are transposed).
BERT as torch.nn.TransformerEncoder stores it: torch 2.13 `nn/modules/transformer.py` `TransformerEncoderLayer`
(`self_attn`, `linear1`, `linear2`, `norm1`, `norm2`; norms after the sums, as BERT has them).  The embeddings and the
pooler have no counterpart there and keep their names.
"""

from __future__ import annotations

from paramtool.dialects.template import Caveat, DialectTable, ModelRows, Row

_EQUAL = "q[rows in] k[rows in] v[rows in]"
_AXES = {"q": "rows in", "k": "rows in", "v": "rows in"}
_CLIP = "transformers 0ea01089f7 models/clip/convert_clip_original_pytorch_to_hf.py"
_LAYER = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def _in_proj(module: str, parts: dict[str, str], source: str) -> Row:
    return Row(f"{module}.in_proj_{{kind}}", parts, _EQUAL, axes=_AXES, source=source)


def _tower(out: str, inside: str) -> tuple[Row, ...]:
    """The layers of one of CLIP's towers."""
    inside += "encoder.layers.{layer}."
    parts = {term: f"{inside}self_attn.{term}_proj.{{kind}}" for term in "qkv"}
    layer = out + "transformer.resblocks.{layer}."
    return (
        _in_proj(layer + "attn", parts, _CLIP),
        *(
            Row(f"{layer}{name}.{{kind}}", {"w": f"{inside}{part}.{{kind}}"}, source=_CLIP)
            for name, part in _LAYER.items()
        ),
    )


_TEXT = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.{kind}": "text_model.final_layer_norm.{kind}",
}
_IMAGE = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.{kind}": "vision_model.pre_layrnorm.{kind}",
    "visual.ln_post.{kind}": "vision_model.post_layernorm.{kind}",
}
_TURNED = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}
_CLIP_ROWS = (
    *_tower("", "text_model."),
    *_tower("visual.", "vision_model."),
    *(Row(name, {"w": part}, source=_CLIP) for name, part in {**_TEXT, **_IMAGE}.items()),
    *(Row(name, {"w": part}, "w[in out]", axes={"w": "out in"}, source=_CLIP) for name, part in _TURNED.items()),
)

_ENCODER = "torch 2.13 nn/modules/transformer.py TransformerEncoderLayer"
_BERT = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


def _encoder(prefix: str) -> tuple[Row, ...]:
    """The layers of BERT, whose tensors begin with a prefix in transformers."""
    inside = prefix + "encoder.layer.{layer}."
    qkv = {"q": "query", "k": "key", "v": "value"}
    parts = {term: f"{inside}attention.self.{name}.{{kind}}" for term, name in qkv.items()}
    return (
        _in_proj("layers.{layer}.self_attn", parts, _ENCODER),
        *(
            Row(f"layers.{{layer}}.{name}.{{kind}}", {"w": f"{inside}{part}.{{kind}}"}, source=_ENCODER)
            for name, part in _BERT.items()
        ),
    )


TABLE = DialectTable(
    "torch-mha",
    "PyTorch's MultiheadAttention: CLIP of open_clip, TransformerEncoder",
    "torch 2.13; open_clip 3.3.0",
    (
        ModelRows(("CLIPModel",), _CLIP_ROWS, layouts="qkv"),
        ModelRows(("BertModel",), _encoder(""), (Caveat("embeddings and pooler keep their names"),), layouts="qkv"),
        ModelRows(
            ("BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "BertForTokenClassification"),
            _encoder("bert."),
            (Caveat("embeddings, pooler and heads keep their names"),),
            layouts="qkv",
        ),
    ),
    {},
)
