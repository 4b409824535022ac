"""Names that show that a file beside weights holds the same weights again."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from paramtool.formats.folder.copies import MAIN, VARIANT
from paramtool.formats.folder.stems import INDEX, SHARD, STEMS, stem

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
    return any(stem(name) in group for group in STEMS) or bool(_matched(name, EXPORTS)) or is_any(name, EXPORT_DATA)


def is_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of some patterns of lower-case names."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def same_weights(name: str, stems: Iterable[str]) -> str:
    """Why a file beside weights of these stems is the same weights once more; nothing where it is something else.

    `model.optim.pt` is something else: a name of weights has no more than a number or a variant behind its stem.

    >>> same_weights("flax_model.msgpack", {"model", "flax_model"})
    'the same weights in another format or variant, by its name'
    >>> same_weights("optimizer.bin", {"model"}), same_weights("model_1.safetensors", {"model"})
    ('', '')
    """
    if stem(name) not in stems:
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
