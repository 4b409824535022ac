"""The conventions of libraries, each row against NumPy's own transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.model import conventions
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous

F32 = DTYPES["float32"]

GIVEN: dict[tuple[str, str], list[tuple[str, str, tuple[int, ...], tuple[int, ...], Any]]] = {
    ("torch", "keras"): [
        ("dense", "weight", (5, 3), (3, 5), lambda w: w.T),
        ("dense", "bias", (5,), (5,), lambda w: w),
        ("embedding", "weight", (5, 3), (5, 3), lambda w: w),
        ("conv", "weight", (5, 3, 2), (2, 3, 5), lambda w: w.transpose(2, 1, 0)),
        ("conv", "weight", (5, 3, 2, 4), (2, 4, 3, 5), lambda w: w.transpose(2, 3, 1, 0)),
        ("conv", "weight", (5, 3, 2, 4, 6), (2, 4, 6, 3, 5), lambda w: w.transpose(2, 3, 4, 1, 0)),
        ("conv_transposed", "weight", (3, 5, 2, 4), (2, 4, 5, 3), lambda w: w.transpose(2, 3, 1, 0)),
        ("depthwise", "weight", (6, 1, 2, 4), (2, 4, 3, 2), lambda w: w.reshape(3, 2, 2, 4).transpose(2, 3, 0, 1)),
        ("depthwise", "bias", (6,), (6,), lambda w: w),
        ("separable", "depthwise", (6, 1, 2, 4), (2, 4, 3, 2), lambda w: w.reshape(3, 2, 2, 4).transpose(2, 3, 0, 1)),
        ("separable", "pointwise", (5, 6, 1, 1), (1, 1, 6, 5), lambda w: w.transpose(2, 3, 1, 0)),
        ("separable", "bias", (5,), (5,), lambda w: w),
        ("conv", "bias", (5,), (5,), lambda w: w),
        ("conv_transposed", "bias", (5,), (5,), lambda w: w),
        ("layernorm", "scale", (5, 3), (5, 3), lambda w: w),
        ("prelu", "slope", (5,), (1, 1, 5), lambda w: w),
    ],
    ("torch", "tf_keras"): [
        ("depthwise", "weight", (6, 1, 2, 4), (2, 4, 3, 2), lambda w: w.reshape(3, 2, 2, 4).transpose(2, 3, 0, 1)),
        ("depthwise", "bias", (6,), (6,), lambda w: w),
    ],
    ("torch", "flax"): [
        ("dense", "weight", (5, 3), (3, 5), lambda w: w.T),
        ("dense", "bias", (5,), (5,), lambda w: w),
        ("embedding", "weight", (5, 3), (5, 3), lambda w: w),
        ("conv", "weight", (5, 3, 2, 4), (2, 4, 3, 5), lambda w: w.transpose(2, 3, 1, 0)),
        ("conv", "bias", (5,), (5,), lambda w: w),
        ("depthwise", "weight", (6, 1, 2, 4), (2, 4, 1, 6), lambda w: w.transpose(2, 3, 1, 0)),
        ("depthwise", "bias", (6,), (6,), lambda w: w),
    ],
    ("torch", "mxnet"): [
        ("dense", "weight", (5, 3), (5, 3), lambda w: w),
        ("embedding", "weight", (5, 3), (5, 3), lambda w: w),
        ("separable", "depthwise", (6, 1, 2, 4), (6, 1, 2, 4), lambda w: w),
        *((kind, "bias", (5,), (5,), lambda w: w) for kind in ("dense", "conv", "conv_transposed", "separable")),
        ("depthwise", "bias", (6,), (6,), lambda w: w),
        ("conv", "weight", (5, 3, 2, 4), (5, 3, 2, 4), lambda w: w),
        ("conv_transposed", "weight", (3, 5, 2, 4), (3, 5, 2, 4), lambda w: w),
        ("depthwise", "weight", (6, 1, 2, 4), (6, 1, 2, 4), lambda w: w),
        ("separable", "pointwise", (5, 6, 1, 1), (5, 6, 1, 1), lambda w: w),
    ],
    ("torch", "mxnet.symbol"): [],
}
NORMS = [
    *(("batchnorm", part, (5,), (5,), lambda w: w) for part in conventions.STATISTICS),
    *((kind, part, (5,), (5,), lambda w: w) for kind in ("layernorm", "groupnorm") for part in ("scale", "shift")),
]
OWN = {
    "keras": "kernel bias embeddings alpha kernel bias kernel bias kernel bias depthwise_kernel pointwise_kernel bias",
    "tf_keras": "depthwise_kernel bias",
    "flax": "kernel bias embedding kernel bias kernel bias",
    "mxnet": "weight bias weight weight bias weight bias weight bias depthwise.weight pointwise.weight pointwise.bias",
    "mxnet.symbol": "",
}
OWN["torch"] = f"weight {OWN['mxnet']}"
"""What the tensors of the layers are called that are no norms, in the table's order."""
NORM_NAMES = {
    "torch": ("weight", "bias", "running_mean", "running_var"),
    "mxnet": ("gamma", "beta", "running_mean", "running_var"),
    "mxnet.symbol": ("gamma", "beta", "moving_mean", "moving_var"),
    "keras": ("gamma", "beta", "moving_mean", "moving_variance"),
    "flax": ("scale", "bias", "mean", "var"),
}
for libraries, rows in GIVEN.items():
    rows += NORMS if libraries[1] in NORM_NAMES else []
ROWS = [(*libraries, *row) for libraries, rows in GIVEN.items() for row in rows]


def row(library: str, kind: str, part: str) -> tuple[str, str]:
    """(own name, axes) of a part."""
    (found,) = conventions.of_kind(kind, library)
    return next((own, axes) for own, (said, axes) in found.tensors.items() if said == part)


def moved_array(array: Any, source: View, target: View) -> Any:
    """What a copy from one window to another makes of an array, by NumPy's strides."""
    out = np.full(array.shape, np.nan, array.dtype).ravel()
    strides = [[s * array.itemsize for s in one.strides] for one in (source, target)]
    given = np.lib.stride_tricks.as_strided(array.ravel()[source.offset :], source.shape, strides[0])
    np.lib.stride_tricks.as_strided(out[target.offset :], target.shape, strides[1])[...] = given
    return out


@pytest.mark.parametrize(("one", "other", "kind", "part", "shape", "wanted", "by_numpy"), ROWS)
def test_a_row_and_its_way_back(
    one: str, other: str, kind: str, part: str, shape: Any, wanted: Any, by_numpy: Any
) -> None:
    array = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    axes, theirs = row(one, kind, part)[1], row(other, kind, part)[1]
    there = conventions.moved(contiguous(0, F32, shape), axes, "t", wanted, axes=theirs)
    assert there is not None
    result = moved_array(array, *there).reshape(wanted)
    assert np.array_equal(result, by_numpy(array).reshape(wanted))
    back = conventions.moved(contiguous(0, F32, wanted), theirs, "t", shape, axes=axes)
    assert back is not None and np.array_equal(moved_array(result, *back).reshape(shape), array)


def test_every_row_is_compared() -> None:
    """A row that is added needs NumPy's word for it."""
    known = {(library, kind, part) for (_, library), rows in GIVEN.items() for kind, part, *_ in rows}
    known |= {("torch", kind, part) for kind, part, *_ in GIVEN["torch", "keras"]}
    assert known == {(o.library, o.kind, part) for o in conventions.CONVENTIONS for part, _ in o.tensors.values()}


def test_names_of_tensors() -> None:
    """As the libraries' classes call them, of which files and models in the tests of the commands have most."""
    for library, names in NORM_NAMES.items():
        (found,) = conventions.of_kind("batchnorm", library)
        assert [(own, part) for own, (part, _) in found.tensors.items()] == list(
            zip(names, conventions.STATISTICS, strict=True)
        )
        for kind in ("layernorm", "groupnorm"):
            (found,) = conventions.of_kind(kind, library)
            assert list(found.tensors) == list(names[:2])
    for library, text in OWN.items():
        rows = [one for one in conventions.CONVENTIONS if one.library == library and "norm" not in one.kind]
        assert [own for one in rows for own in one.tensors] == text.split()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_axes_that_do_not_fit_are_none(shape: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(shape))
    found = conventions.moved(contiguous(0, F32, tuple(shape)), "*k in out", "t", tuple(other), axes="out in *k")
    fits_ = len(shape) >= 2 and list(other) == [shape[-1], shape[-2], *shape[:-2]]
    assert (found is not None) == fits_
