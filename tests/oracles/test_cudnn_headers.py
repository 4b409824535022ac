"""Our signatures and numbers of cuDNN beside its own headers, which come with its packages: `make cudnn` gives them."""

from __future__ import annotations

import os
import re
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

import pytest

from proof.cudnn import library
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES

FOLDER = os.environ.get("PARAMTOOL_CUDNN_HEADERS", "")
TYPES: dict[str, Any] = {
    "void": None, "int": c_int, "int32_t": c_int32, "uint32_t": c_uint32, "size_t": c_size_t, "float": c_float,
    "unsigned long long": c_ulonglong,
}  # fmt: skip
"""C's words; a handle or a descriptor is an address, an enum an int, `char *` a text."""


@pytest.fixture(scope="module")
def headers() -> str:
    """All headers in one text, without comments."""
    if not FOLDER:
        pytest.skip("needs PARAMTOOL_CUDNN_HEADERS, the folder of cudnn_adv.h: `make cudnn` fetches some")
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(FOLDER).glob("*.h")))
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def of_c(words: str) -> Any:
    """The type in ctypes of a parameter or a result in C."""
    array = "[]" in words
    words = re.sub(r"\bconst\b|\[\]", " ", words)
    stars = words.count("*") + array
    base = " ".join(words.replace("*", " ").split())
    if (base, stars) == ("char", 1):
        return c_char_p
    if base.endswith("_t") and base not in TYPES:  # cudnnHandle_t, cudnnRNNDescriptor_t; or an enum
        found = c_void_p if base.endswith(("Handle_t", "Descriptor_t")) else c_int
    elif base == "void" and stars:
        found, stars = c_void_p, stars - 1
    else:
        found = TYPES[base]
    for _ in range(stars):
        found = POINTER(found)
    return found


def without_name(parameter: str) -> str:
    """A parameter's type: its last word is its name, but where it is all there is."""
    brackets = "[]" if parameter.rstrip().endswith("[]") else ""
    bare = parameter.replace("[]", " ").strip()
    return re.sub(r"\b\w+$", "", bare) + brackets if re.search(r"[\s*]\w+$", bare) else bare


@pytest.mark.parametrize("name", [*library.SIGNATURES, *library.OPTIONAL])
def test_a_signature(name: str, headers: str) -> None:
    """The result and every argument, in their order."""
    found = re.search(rf"(\w[\w\s*]*?)\s*CUDNNWINAPI\s+{name}\s*\(([^)]*)\)", headers)
    if found is None and name in library.OPTIONAL:
        pytest.skip(f"this cuDNN has no {name}")
    assert found, name
    result, arguments = {**library.SIGNATURES, **library.OPTIONAL}[name]
    assert result is of_c(" ".join(found[1].split()[-2 if "*" in found[1] else -1 :]))
    given = [] if found[2].strip() in ("", "void") else [of_c(without_name(one)) for one in found[2].split(",")]
    assert list(arguments) == given


def number(word: str, headers: str) -> int:
    """The value of a member of an enum, or of a macro."""
    found = re.search(rf"\b{word}\b[^=,\n]*=\s*(\d+)", headers) or re.search(rf"#define\s+{word}\s+\(?(\d+)", headers)
    assert found, word
    shifted = re.search(rf"#define\s+{word}\s+\((\d+)U?\s*<<\s*(\d+)\)", headers)
    return int(shifted[1]) << int(shifted[2]) if shifted else int(found[1])


def test_numbers(headers: str) -> None:
    """Modes, types, algorithms, bias modes and flags."""
    words = {
        **{f"CUDNN_RNN_ALGO_{name.upper()}": k for k, name in enumerate(ALGORITHMS)},
        **dict(zip(("CUDNN_RNN_NO_BIAS", "CUDNN_RNN_SINGLE_INP_BIAS", "CUDNN_RNN_DOUBLE_BIAS",
                    "CUDNN_RNN_SINGLE_REC_BIAS"), range(len(BIAS_MODES)), strict=True)),
        **dict(zip(("CUDNN_RNN_RELU", "CUDNN_RNN_TANH", "CUDNN_LSTM", "CUDNN_GRU"),
                   library.MODES.values(), strict=True)),
        **dict(zip(("CUDNN_DATA_FLOAT", "CUDNN_DATA_DOUBLE", "CUDNN_DATA_HALF", "CUDNN_DATA_BFLOAT16"),
                   library.DATA_TYPES.values(), strict=True)),
        "CUDNN_DEFAULT_MATH": library.DEFAULT_MATH, "CUDNN_TENSOR_OP_MATH": library.TENSOR_OP_MATH,
        "CUDNN_FMA_MATH": library.FMA_MATH, "CUDNN_LINEAR_INPUT": library.LINEAR_INPUT,
        "CUDNN_UNIDIRECTIONAL": 0, "CUDNN_BIDIRECTIONAL": 1, "CUDNN_RNN_PADDED_IO_ENABLED": library.PADDED_IO_ENABLED,
    }  # fmt: skip
    assert {word: number(word, headers) for word in words} == words
