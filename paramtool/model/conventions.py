"""How libraries store the weights of layers that are not recurrent: the names of a layer's tensors, and their axes.

A row says what a library calls each tensor of one kind of layer, which part of the layer that is, and the order of its
axes.  Parts and axes are called alike in all rows, so two rows make a conversion, as two layouts do:

    torch  dense  weight: weight "out in"        keras  dense  kernel: weight "in out"      transposed

    out in      axes by their meaning           *k       any number of axes: height and width of a kernel
    (in mult)   two meanings in one axis        1, *1    an axis, or any number of axes, of length 1

Sources: torch/nn/modules (2.13.0); mxnet/gluon/nn (1.9.1); keras/src/layers (3.15.1) and tf_keras/src/layers (2.21);
flax/linen/linear.py and normalization.py (0.12).  flax' ConvTranspose is not here: its kernels are mirrored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape, View, contiguous, reshaped


@frozen
class Convention:
    """How one library stores one kind of layer."""

    library: str
    kind: str
    tensors: Mapping[str, tuple[str, str]]
    """{the library's name of a tensor: (the part, its axes)}, in the library's order."""


MADE_BY_KERAS = {
    "dense", "embedding", "batch_normalization", "layer_normalization", "group_normalization", "conv1d", "conv2d",
    "conv3d", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose", "depthwise_conv1d", "depthwise_conv2d",
    "separable_conv1d", "separable_conv2d", "lstm", "gru", "simple_rnn", "rnn", "cu_dnnlstm", "cu_dnngru",
    "bidirectional", "time_distributed", "stacked_rnn_cells",
}  # fmt: skip
"""What Keras calls layers that have no name, before the number.

It counts through a process, so the layers of a model can be `dense_2` and `dense_3` (keras/src/utils/naming.py).
"""


def _rows(library: str, kinds: Mapping[str, Mapping[str, tuple[str, str]]]) -> tuple[Convention, ...]:
    return tuple(Convention(library, kind, tensors) for kind, tensors in kinds.items())


BIAS = ("bias", "out")
TABLE = "row dim"
NORMS = ("batchnorm", "layernorm", "groupnorm")
PER_CHANNEL = {"batchnorm": "out", "layernorm": "*n", "groupnorm": "out"}


def _norms(names: Sequence[str], parts: Sequence[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """Norms; only a batch norm has running statistics."""
    return {
        kind: {
            name: (part, PER_CHANNEL[kind])
            for name, part in zip(names, parts, strict=True)
            if kind == "batchnorm" or part in ("scale", "shift")
        }
        for kind in NORMS
    }


STATISTICS = ("scale", "shift", "mean", "variance")
_ROW_FORM = {
    "dense": {"weight": ("weight", "out in"), "bias": BIAS},
    "embedding": {"weight": ("weight", TABLE)},
    "conv": {"weight": ("weight", "out in *k"), "bias": BIAS},
    "conv_transposed": {"weight": ("weight", "in out *k"), "bias": BIAS},
    "depthwise": {"weight": ("weight", "(in mult) 1 *k"), "bias": ("bias", "(in mult)")},
    "separable": {
        "depthwise.weight": ("depthwise", "(in mult) 1 *k"),
        "pointwise.weight": ("pointwise", "out (in mult) *1"),
        "pointwise.bias": BIAS,
    },
}
CONVENTIONS = (
    *_rows("torch", {"prelu": {"weight": ("slope", "out")}}),
    *_rows("torch", _ROW_FORM | _norms(("weight", "bias", "running_mean", "running_var"), STATISTICS)),
    *_rows("mxnet", _ROW_FORM | _norms(("gamma", "beta", "running_mean", "running_var"), STATISTICS)),
    *_rows("mxnet.symbol", _norms(("gamma", "beta", "moving_mean", "moving_var"), STATISTICS)),
    *_rows(
        "keras",
        {
            "dense": {"kernel": ("weight", "in out"), "bias": BIAS},
            "embedding": {"embeddings": ("weight", TABLE)},
            "prelu": {"alpha": ("slope", "*1 out")},
            "conv": {"kernel": ("weight", "*k in out"), "bias": BIAS},
            "conv_transposed": {"kernel": ("weight", "*k out in"), "bias": BIAS},
            "depthwise": {"kernel": ("weight", "*k in mult"), "bias": ("bias", "(in mult)")},
            "separable": {
                "depthwise_kernel": ("depthwise", "*k in mult"),
                "pointwise_kernel": ("pointwise", "*1 (in mult) out"),
                "bias": BIAS,
            },
            **_norms(("gamma", "beta", "moving_mean", "moving_variance"), STATISTICS),
        },
    ),
    *_rows(
        "tf_keras",
        {"depthwise": {"depthwise_kernel": ("weight", "*k in mult"), "bias": ("bias", "(in mult)")}},
    ),
    *_rows(
        "flax",
        {
            "dense": {"kernel": ("weight", "in out"), "bias": BIAS},
            "embedding": {"embedding": ("weight", TABLE)},
            "conv": {"kernel": ("weight", "*k in out"), "bias": BIAS},
            "depthwise": {"kernel": ("weight", "*k 1 (in mult)"), "bias": ("bias", "(in mult)")},
            **_norms(("scale", "bias", "mean", "var"), STATISTICS),
        },
    ),
)
COUNTERS = ("num_batches_tracked",)
"""Tensors that count and that only one library has."""
NEUTRAL = {"scale": 1, "shift": 0, "bias": 0, "mean": 0, "variance": 1}
"""{part: the value with which a layer computes what one without the part does}."""
OWN_NAMES = frozenset(name for row in CONVENTIONS for name in row.tensors)


def of_kind(kind: str, library: str = "") -> tuple[Convention, ...]:
    """The rows of a kind of layer, of one library or of all."""
    return tuple(row for row in CONVENTIONS if row.kind == kind and library in ("", row.library))


def axes_of(kind: str, part: str, own: str) -> str:
    """The axes of a part of a layer that a library calls `own`; empty if no row or several say so.

    >>> axes_of("dense", "weight", "kernel"), axes_of("dense", "weight", "weight"), axes_of("dense", "weight", "w")
    ('in out', 'out in', '')
    """
    found = {row.tensors[own][1] for row in of_kind(kind) if own in row.tensors and row.tensors[own][0] == part}
    return found.pop() if len(found) == 1 else ""


def pads(config: Mapping[str, Any], sizes: Sequence[int | None], is_transposed: bool) -> list[int]:
    """What Keras adds around an image before a convolution, or takes off behind a transposed one; empty if not known.

    First of the beginnings of all axes, then of their ends, as ONNX has it.  Source: `compute_conv_output_shape` and
    `_convert_conv_transpose_padding_args_from_keras_to_jax` of keras/src (3.15.1).

    >>> same, valid = ({"kernel_size": [3, 2], "strides": [2, 1], "padding": how} for how in ("same", "valid"))
    >>> pads(same, [5, 5], False), pads(valid, [], False), pads(same, [], True)
    ([1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1])
    """
    how = config.get("padding")
    kernel, strides = config.get("kernel_size"), config.get("strides")
    if not (isinstance(kernel, list) and isinstance(strides, list)):
        return []
    steps, found = config.get("dilation_rate") or [1] * len(kernel), list[tuple[int, int]]()
    for k, size in enumerate(kernel):
        stride, span = strides[k], (size - 1) * steps[k] + 1
        length = sizes[k] if k < len(sizes) else None
        is_open = how == "same" and length is None and stride > 1 and not is_transposed
        if how not in ("same", "valid", "causal") or config.get("output_padding") or is_open:
            return []
        if is_transposed:
            total = min(span - stride, 0) if how == "valid" else span - stride
        elif how == "same" and length is not None:
            total = max((-(-length // stride) - 1) * stride + span - length, 0)
        else:
            total = 0 if how == "valid" else span - 1
        begin = total if how == "causal" else max(total, 0) // 2
        found.append((begin, total - begin))
    return [pair[end] for end in (0, 1) for pair in found]


def _groups(axes: str, rank: int) -> list[tuple[str, ...]] | None:
    """The meanings of each axis of a tensor; None if a tensor of that rank cannot have these axes."""
    words = re.findall(r"\(.*?\)|\S+", axes)
    starred = [word for word in words if word.startswith("*")]
    more = rank - len(words) + len(starred)
    if more < 0 or (more and not starred):
        return None
    found: list[tuple[str, ...]] = []
    for word in words:
        if word in starred:
            found += [() if word == "*1" else (f"{word[1:]}{k}",) for k in range(more)]
        else:
            found.append(() if word == "1" else tuple(word.strip("()").split()))
    return found


def moved(
    source: View,
    source_axes: str,
    name: str,
    shape: Shape,
    *,
    axes: str,
    known: Mapping[str, int] | None = None,
) -> tuple[View, View] | None:
    """Windows of one shape on a source and on the tensor `name` of `shape`, whose elements belong together.

    `known` are sizes of axes that shapes do not show, such as the channels in a flattened image.

    None if the sizes do not fit, or if the source is strided in a way that no window can express.

    >>> from paramtool.model.dtype import DTYPES
    >>> w = contiguous(0, DTYPES["float32"], (5, 3))
    >>> [view.shape for view in moved(w, "out in", "kernel", (3, 5), axes="in out")]
    [(3, 5), (3, 5)]
    >>> moved(w, "out in", "kernel", (5, 3), axes="in out") is None
    True
    """
    theirs, mine = _groups(source_axes, len(source.shape)), _groups(axes, len(shape))
    if theirs is None or mine is None:
        return None
    both = set(theirs) & set(mine)  # groups that both have need not be taken apart
    theirs, mine = ([(" ".join(g),) if g in both and g else g for g in groups] for groups in (theirs, mine))
    sizes = dict(known or {})
    both_sides = [*zip(theirs, source.shape, strict=True), *zip(mine, shape, strict=True)]
    for group, size in sorted(both_sides, key=lambda item: len(item[0])):
        unknown = [axis for axis in group if axis not in sizes]
        rest, odd = divmod(size, max(1, prod(sizes.get(axis, 1) for axis in group)))
        if odd or len(unknown) > 1 or (not unknown and rest != 1):
            return None
        sizes.update(dict.fromkeys(unknown, rest))
    order = [axis for group in mine for axis in group]
    flat = [axis for group in theirs for axis in group]
    if sorted(order) != sorted(flat):
        return None
    apart = reshaped(source, [sizes[axis] for axis in flat])
    into = reshaped(contiguous(name, source.dtype, shape), [sizes[axis] for axis in order])
    if apart is None or into is None:
        return None
    steps = dict(zip(flat, apart.strides, strict=True))
    new = tuple(sizes[axis] for axis in order)
    return apart.with_axes(new, tuple(steps[axis] for axis in order)), into
