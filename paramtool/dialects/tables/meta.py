"""Meta's own files of Llama: `consolidated.00.pth` of one rank.

Sources: meta-llama/llama `llama/model.py` (names; `apply_rotary_emb` takes neighbouring elements as pairs);
huggingface/transformers 01cc9cd9d8 `models/llama/convert_llama_weights_to_hf.py` 157-159 (rows of queries and keys, per
head), 170-186 (names of a layer), 264-268 (the other names).
Llama 4: meta-llama/llama-models `models/llama4/` stores experts flat and without an axis of experts; the facts were not
read, so it is refused.
"""

from __future__ import annotations

from paramtool.dialects import meta_params
from paramtool.dialects.template import DialectTable, ModelRows, Row, general

_SOURCE = "transformers 01cc9cd9d8 models/llama/convert_llama_weights_to_hf.py"
_IN, _OUT = "model.layers.{layer}.", "layers.{layer}."
_PAIRS = {"q": "q[(heads half two) in]", "k": "k[(kv_heads half two) in]"}
_LAYER = {
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OTHERS = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_ROWS = (
    *(
        Row(f"{_OUT}attention.w{term}.weight", {term: f"{_IN}self_attn.{term}_proj.weight"}, pattern, source=_SOURCE)
        for term, pattern in _PAIRS.items()
    ),
    *(Row(f"{_OUT}{name}.weight", {"w": f"{_IN}{part}.weight"}, source=_SOURCE) for name, part in _LAYER.items()),
    *(Row(f"{name}.weight", {"w": f"{part}.weight"}, source=_SOURCE) for name, part in _OTHERS.items()),
)

TABLE = DialectTable(
    "meta",
    "Meta's files of Llama 1, 2 and 3",
    "meta-llama/llama; transformers 01cc9cd9d8",
    (ModelRows(("LlamaForCausalLM",), _ROWS, layouts="RoPE in pairs"),),
    {
        "Llama4ForCausalLM": "the names of Meta's files of Llama 4 are not in the table yet",
        "Llama4ForConditionalGeneration": "the names of Meta's files of Llama 4 are not in the table yet",
    },
    (
        general("A model of several ranks is one file here: Meta cut 13B in 2 files, 70B in 8."),
        general(
            "`rope.freqs`, which some of Meta's files have beside the weights, is calculated and has no counterpart."
        ),
    ),
    file="consolidated.00.pth",
    check=meta_params.check,
    tied={"LlamaForCausalLM": ("output.weight", "tok_embeddings.weight")},
)
