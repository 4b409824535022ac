"""gluon-nlp 0.x: BERT, as MXNet's `interleaved_matmul_selfatt_*` operators want it (mxnet issue 18077), or apart.

Sources: dmlc/gluon-nlp 0023a7bc67 `src/gluonnlp/model/bert.py` 98-112 (`proj_query.weight` ... in files, because of
mxnet issue 17220), 115-131 (for each head its query, key and value; the first version joined them plainly, #1091, and
was wrong, #1128, #1136), 195-203, 318-320, 425-474 (names); apache/mxnet 1.9.1 `src/operator/contrib/transformer.cc`
(`interleaved_matmul_selfatt_qk` reads [heads, 3, head size]); transformers
`models/bort/convert_bort_original_gluonnlp_checkpoint_to_pytorch.py` (which name is which of BERT's).

`gluonnlp` writes the names of its files, which `BERTModel.load_parameters` opens, and reads either form.
`gluonnlp-interleaved` writes what the forward pass makes of them: `attention_cell.in_weight` and `in_bias`.
"""

from __future__ import annotations

from paramtool.dialects.template import DialectTable, ModelRows, Row

_FILES = "gluon-nlp 0023a7bc67 src/gluonnlp/model/bert.py:98-112"
_FUSED = "gluon-nlp 0023a7bc67 src/gluonnlp/model/bert.py:115-131"
_QKV = {"q": "query", "k": "key", "v": "value"}
_PER_HEAD = "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}"
_HEADS = {"k": "(heads head_dim) in", "v": "(heads value_dim) in"}
_CELL = "encoder.transformer_cells.{layer}."
_NORM = {"gamma": "weight", "beta": "bias"}


def _attention(prefix: str, *, is_interleaved: bool) -> tuple[Row, ...]:
    """Queries, keys and values in both forms; one writes."""
    names = {
        term: f"{prefix}encoder.layer.{{layer}}.attention.self.{name}.{{kind}}" for term, name in _QKV.items()
    }  # fmt: skip
    cell = _CELL + "attention_cell."
    apart = (
        Row(f"{cell}proj_{name}.{{kind}}", {term: names[term]}, is_read_only=is_interleaved, source=_FILES)
        for term, name in _QKV.items()
    )
    fused = Row(cell + "in_{kind}", names, _PER_HEAD, axes=_HEADS, is_read_only=not is_interleaved, source=_FUSED)
    return (fused, *apart)


def _norm(name: str, part: str) -> tuple[Row, ...]:
    return tuple(Row(f"{name}.{mxnet}", {"w": f"{part}.{torch}"}, source=_FILES) for mxnet, torch in _NORM.items())


def _rows(prefix: str, *, is_interleaved: bool) -> tuple[Row, ...]:
    """The rows of a BERT whose tensors begin with a prefix in transformers."""
    layer = prefix + "encoder.layer.{layer}."
    names = {
        "word_embed.0.weight": prefix + "embeddings.word_embeddings.weight",
        "token_type_embed.0.weight": prefix + "embeddings.token_type_embeddings.weight",
        "encoder.position_weight": prefix + "embeddings.position_embeddings.weight",
        _CELL + "proj.{kind}": layer + "attention.output.dense.{kind}",
        _CELL + "ffn.ffn_1.{kind}": layer + "intermediate.dense.{kind}",
        _CELL + "ffn.ffn_2.{kind}": layer + "output.dense.{kind}",
        "pooler.{kind}": prefix + "pooler.dense.{kind}",
    }
    return (
        *_attention(prefix, is_interleaved=is_interleaved),
        *(Row(name, {"w": part}, source=_FILES) for name, part in names.items()),
        *_norm("encoder.layer_norm", prefix + "embeddings.LayerNorm"),
        *_norm(_CELL + "layer_norm", layer + "attention.output.LayerNorm"),
        *_norm(_CELL + "ffn.layer_norm", layer + "output.LayerNorm"),
    )


_MODEL_HEADS = (
    Row("classifier.{kind}", {"w": "cls.seq_relationship.{kind}"}, source=_FILES),
    Row("decoder.0.{kind}", {"w": "cls.predictions.transform.dense.{kind}"}, source=_FILES),
    *_norm("decoder.2", "cls.predictions.transform.LayerNorm"),
    Row("decoder.3.bias", {"w": "cls.predictions.bias"}, source=_FILES),
    Row("decoder.3.weight", {"w": "cls.predictions.decoder.weight"}, source=_FILES),
)
_HEADED = ("BertForPreTraining", "BertForMaskedLM")


def _table(name: str, title: str, *, is_interleaved: bool) -> DialectTable:
    bare = ModelRows(("BertModel",), _rows("", is_interleaved=is_interleaved), layouts="qkv-per-head")
    rows = (*_rows("bert.", is_interleaved=is_interleaved), *_MODEL_HEADS)
    return DialectTable(
        name, title, "gluon-nlp 0.9 and 0.10, 0023a7bc67", (bare, ModelRows(_HEADED, rows, layouts="qkv-per-head")), {}
    )


TABLE = _table("gluonnlp", "gluon-nlp 0.x, BERT: the names of its files", is_interleaved=False)
INTERLEAVED = _table(
    "gluonnlp-interleaved", "gluon-nlp 0.x, BERT: as MXNet's interleaved operators read it", is_interleaved=True
)
