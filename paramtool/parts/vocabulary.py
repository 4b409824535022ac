"""The rows of embeddings and output heads against `vocab_size` of config.json.

They are equal in every program that reads the model: `from_pretrained` refuses another number, and vLLM asserts it
where it loads an original file (vLLM 0.33 layers/vocab_parallel_embedding.py, `weight_loader`).  vLLM and Megatron pad
the rows that they hold in memory; a file of theirs with padded rows is read if `vocab_size` is the padded number, or
after its rows are cut, and the error says so.  A test runs the rule over every class of transformers 5.23.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paramtool.model.view import Shapes
from paramtool.parts.config_facts import config_of, is_known, tower_of
from paramtool.parts.widths import Contradiction

EMBEDDINGS = re.compile(
    r"(?:.*\.)?(embed_tokens|word_embeddings|wte|embed_in|tok_embeddings|tokens_embed|shared|lm_head|embed_out)\.weight"
)
"""Names that mean a row for each token in every model type that has them, but for these."""
OTHERWISE = (
    "csm", "csm_depth_decoder_model", "esm", "imagegpt", "kyutai_speech_to_text", "mllama_text_model", "molmo2",
    "molmo2_text", "moshi",
)  # fmt: skip
"""Model types with other numbers of rows (transformers 5.23: codebooks; mllama 8 more; molmo2 additional_vocab_size;
imagegpt a head without the first token; esm a head of residues)."""

UNPADDED = ("inkling2_text", "inkling2_loop_text")
"""Model types whose head lacks the padded rows, which their embedding has (transformers 5.24,
inkling2/modeling_inkling2.py 1458)."""


def contradictions(shapes: Shapes, config: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Embeddings and heads with another number of rows than the config of their tower says."""
    for name, shape in shapes.items():
        if len(shape) != 2 or not EMBEDDINGS.fullmatch(name):
            continue
        tower = tower_of(name, config)
        if tower is None:
            continue
        model_type, inner = config_of(config, tower)
        size = inner.get("vocab_size")
        if type(size) is not int or not is_known(model_type) or model_type in OTHERWISE or size == shape[0]:
            continue
        if model_type in UNPADDED and name.endswith("lm_head.weight") and shape[0] == inner.get("unpadded_vocab_size"):
            continue
        where = f"config.json: {f'{tower}.' if inner is not config else ''}vocab_size"
        padded = "; if the file is padded, cut the rows that are no token's" if shape[0] > size else ""
        yield Contradiction(name, shape, 0, f"{size} ({where}) along axis 0{padded}")
