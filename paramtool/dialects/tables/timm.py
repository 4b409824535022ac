"""timm: vision transformers (`timm.models.vision_transformer.VisionTransformer`).

Sources: huggingface/transformers 00a5ab167b `models/vit/convert_vit_timm_to_pytorch.py` 36-82 (names), 91-110 (queries,
keys and values one below the other); timm 1.0.31 `layers/attention.py` (`qkv` is reshaped to 3, heads, head size);
`models/deit/convert_deit_timm_to_pytorch.py` of transformers has the distilled models' further names.
"""

from __future__ import annotations

from paramtool.dialects.template import Caveat, DialectTable, ModelRows, Row, of_words

TIMM_EPSILON = 1e-6
_SOURCE = "transformers 00a5ab167b models/vit/convert_vit_timm_to_pytorch.py"
_LAYER = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_EQUAL = "q[rows in] k[rows in] v[rows in]"
_AXES = {"q": "rows in", "k": "rows in", "v": "rows in"}


def _rows(prefix: str, embeddings: dict[str, str], heads: dict[str, str]) -> tuple[Row, ...]:
    """The rows of a model whose tensors begin with a prefix in transformers."""
    inside = prefix + "encoder.layer.{layer}."
    names = {f"blocks.{{layer}}.{name}.{{kind}}": f"{inside}{part}.{{kind}}" for name, part in _LAYER.items()}
    names |= {name: prefix + part for name, part in embeddings.items()}
    names |= {"norm.{kind}": f"{prefix}layernorm.{{kind}}"}
    names |= {f"{name}.{{kind}}": f"{part}.{{kind}}" for name, part in heads.items()}
    qkv = {"q": "query", "k": "key", "v": "value"}
    parts = {term: f"{inside}attention.attention.{name}.{{kind}}" for term, name in qkv.items()}
    fused = Row("blocks.{layer}.attn.qkv.{kind}", parts, _EQUAL, axes=_AXES, source=_SOURCE)
    return (fused, *(Row(name, {"w": part}, source=_SOURCE) for name, part in names.items()))


_VIT = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.{kind}": "embeddings.patch_embeddings.projection.{kind}",
}
_DEIT = {**_VIT, "dist_token": "embeddings.distillation_token"}

TABLE = DialectTable(
    "timm",
    "timm, vision transformers",
    "timm 1.0.31",
    (
        ModelRows(("ViTForImageClassification",), _rows("vit.", _VIT, {"head": "classifier"}), layouts="qkv"),
        ModelRows(
            ("ViTModel",),
            _rows("", _VIT, {}),
            (of_words("the pooler of ViTModel keeps its name", "pooler"),),
            layouts="qkv",
        ),
        ModelRows(
            ("DeiTForImageClassificationWithTeacher",),
            _rows("deit.", _DEIT, {"head": "cls_classifier", "head_dist": "distillation_classifier"}),
            layouts="qkv",
        ),
        ModelRows(("DeiTForImageClassification",), _rows("deit.", _DEIT, {"head": "classifier"}), layouts="qkv"),
    ),
    {},
    (
        Caveat(
            "timm's default epsilon of norms is 1e-6, transformers' 1e-12: set it, or results differ slightly.",
            lambda hub, config: config.get("layer_norm_eps") != TIMM_EPSILON,
        ),
    ),
)
