"""Stems of file names under which libraries look for one model in several formats."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from paramtool.formats.table import SUFFIXES

STEMS = (
    ("model", "pytorch_model", "tf_model", "flax_model", "rust_model", "model_state", "consolidated"),
    ("diffusion_pytorch_model", "diffusion_flax_model"),
    ("open_clip_model", "open_clip_pytorch_model"),
)
"""The stems of one model.

The first are those of transformers (`utils/__init__.py`; version 5 has no TensorFlow and Flax), rust-bert
(`rust_model.ot`), PaddleNLP (`utils/env.py`: `model_state.pdparams`), Meta and Mistral (`consolidated.00.pth`); then
those of diffusers (`utils/constants.py`) and of open_clip (`constants.py`).
"""
ANY_OBJECT = (".pkl", ".pickle", ".pdopt")
"""Files that hold weights at times, and more often something else: their names do not say."""
SAME_SUFFIXES = (*(suffix for suffix in SUFFIXES if suffix not in ANY_OBJECT), ".ot")
"""How the names of a model's weights end, whatever format they are in."""
INDEX = re.compile(r"\.index(\.[^.]+)?\.json$")
"""`model.safetensors.index.json`; of a variant `model.safetensors.index.fp16.json` (`_add_variant` of transformers)."""
SHARD = re.compile(r"-\d+-of-\d+")


def stems(read: Iterable[str]) -> frozenset[str]:
    """The stems of the files of a checkpoint, with those under which libraries look for it in other formats.

    >>> sorted(stems(["a/pytorch_lora_weights.safetensors"]))
    ['pytorch_lora_weights']
    >>> "tf_model" in stems(["model-00001-of-00002.safetensors"])
    True
    """
    own = {found for path in read if (found := stem(os.path.basename(path)))}
    return frozenset(own.union(*(group for group in STEMS if own.intersection(group))))


def stem(name: str) -> str:
    """What of the name of a weights file or index is the same in every format; empty for other names.

    >>> stem("model-00001-of-00002.fp16.safetensors"), stem("tf_model.h5.index.json"), stem("model.json")
    ('model', 'tf_model', '')
    """
    if not name.endswith(SAME_SUFFIXES) and not INDEX.search(name):
        return ""
    return SHARD.sub("", name).split(".")[0]
