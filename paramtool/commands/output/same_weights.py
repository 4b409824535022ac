"""Names that show that a file beside weights holds the same weights again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from paramtool.formats.folder.copies import MAIN, VARIANT
from paramtool.formats.table import SUFFIXES

STEMS = (
    ("model", "pytorch_model", "tf_model", "flax_model", "rust_model", "model_state", "consolidated"),
    ("diffusion_pytorch_model", "diffusion_flax_model"),
    ("open_clip_model", "open_clip_pytorch_model"),
)
"""Stems under which libraries look for one model in several formats.

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
EXPORTS = (
    (
        "the weights as another program takes them",
        (
            "*.gguf", "*.ggml", "*.llamafile", "*.tflite", "*.mlmodel", "*.pte", "*.pt2", "*.engine", "*.trt", "*.mar",
            "*.nemo",
        ),
    ),
    (
        "the weights as ONNX",  # the names of optimum's exports
        ("model.onnx*", "model_*.onnx*", "encoder_model*.onnx*", "decoder_model*.onnx*", "decoder_with_past_*.onnx*"),
    ),
    ("the weights as OpenVINO takes them", ("openvino_*model*.bin", "openvino_*model*.xml")),
    ("the weights as TensorFlow saves them", ("*.ckpt*.index", "*.ckpt*.meta", "*.data-?????-of-?????")),
)  # fmt: skip
"""(why it stays, patterns of lower-case file names); looked for beside the weights only, not in folders inside."""
EXPORT_DATA = ("*.onnx", "*.onnx_data*", "*.onnx.data")
"""What holds weights in the folders of exports, whatever it is called; patterns of lower-case file names."""


def is_export(name: str) -> bool:
    """Whether a file in a folder of exports holds the weights there, as its name says.

    The stems are those of models: `original/consolidated.00.pth` is one, and `onnx/calibration.npz` is something else.
    """
    return any(_stem(name) in group for group in STEMS) or bool(_matched(name, EXPORTS)) or is_any(name, EXPORT_DATA)


def is_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of some patterns of lower-case names."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def stems(read: Iterable[str]) -> frozenset[str]:
    """The stems of the files of a checkpoint, with those under which libraries look for it in other formats.

    >>> sorted(stems(["a/pytorch_lora_weights.safetensors"]))
    ['pytorch_lora_weights']
    >>> "tf_model" in stems(["model-00001-of-00002.safetensors"])
    True
    """
    own = {stem for path in read if (stem := _stem(os.path.basename(path)))}
    return frozenset(own.union(*(group for group in STEMS if own.intersection(group))))


def _stem(name: str) -> str:
    """What of the name of a weights file or index is the same in every format; empty for other names.

    >>> _stem("model-00001-of-00002.fp16.safetensors"), _stem("tf_model.h5.index.json"), _stem("model.json")
    ('model', 'tf_model', '')
    """
    if not name.endswith(SAME_SUFFIXES) and not INDEX.search(name):
        return ""
    return SHARD.sub("", name).split(".")[0]


def same_weights(name: str, stems: Iterable[str]) -> str:
    """Why a file beside weights of these stems is the same weights once more; nothing where it is something else.

    `model.optim.pt` is something else: a name of weights has no more than a number or a variant behind its stem.

    >>> same_weights("flax_model.msgpack", {"model", "flax_model"})
    'the same weights in another format or variant, by its name'
    >>> same_weights("optimizer.bin", {"model"}), same_weights("model_1.safetensors", {"model"})
    ('', '')
    """
    if _stem(name) not in stems:
        return _matched(name, EXPORTS)
    if name.lower().endswith(MAIN) and not SHARD.search(name) and not _is_plain(name):
        return ""
    return (
        "an index of the same weights, by its name"
        if INDEX.search(name.lower())
        else "the same weights in another format or variant, by its name"
    )


def _is_plain(name: str) -> bool:
    """Whether a name has nothing between its stem and its suffix but a number or the name of a variant.

    >>> [_is_plain(name) for name in ("model.bin", "model.fp16.safetensors", "consolidated.00.pth", "model.optim.pt")]
    [True, True, True, False]
    """
    _, *between, _ = name.lower().split(".")
    return len(between) < 2 and all(VARIANT.fullmatch(word) for word in between)


def _matched(name: str, table: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Why a table keeps a name back, or nothing."""
    return next((why for why, patterns in table if is_any(name, patterns)), "")
