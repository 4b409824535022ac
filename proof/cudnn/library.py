"""cuDNN's own functions, called by ctypes, to ask the library what a weight space holds.

Signatures and numbers are those of cudnn_adv.h and cudnn_graph.h of cuDNN 8 and 9 (cudnnSetRNNDescriptor_v8,
cudnnGetRNNWeightSpaceSize and cudnnGetRNNWeightParams came with 8.0).

The questions take a handle, which cudnnCreate makes only if there is a GPU.  cuDNN 8.9.7, 9.1.0, 9.10.2, 9.19.0 and
9.28.0 answer them without reading it: `Library(..., blank=True)` gives them zeros instead.  The behaviour of a version
that reads the handle is undefined, so this is done only in a separate process (`asking`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_ulonglong, c_void_p
from typing import Any

from paramtool.errors import ParamtoolError
from paramtool.layouts.spec import Spec
from proof.cudnn.answers import Answer, Key, Region, Unsupported, keys
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, Case

SIGNATURES: dict[str, tuple[type | None, tuple[Any, ...]]] = {
    "cudnnGetVersion": (c_size_t, ()),
    "cudnnGetErrorString": (c_char_p, (c_int,)),
    "cudnnCreate": (c_int, (POINTER(c_void_p),)),
    "cudnnDestroy": (c_int, (c_void_p,)),
    "cudnnCreateRNNDescriptor": (c_int, (POINTER(c_void_p),)),
    "cudnnDestroyRNNDescriptor": (c_int, (c_void_p,)),
    "cudnnCreateDropoutDescriptor": (c_int, (POINTER(c_void_p),)),
    "cudnnDestroyDropoutDescriptor": (c_int, (c_void_p,)),
    "cudnnSetDropoutDescriptor": (c_int, (c_void_p, c_void_p, c_float, c_void_p, c_size_t, c_ulonglong)),
    "cudnnCreateTensorDescriptor": (c_int, (POINTER(c_void_p),)),
    "cudnnDestroyTensorDescriptor": (c_int, (c_void_p,)),
    "cudnnGetTensorNdDescriptor": (
        c_int, (c_void_p, c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(c_int)),
    ),
    # rnnDesc, algo, cellMode, biasMode, dirMode, inputMode, dataType, mathPrec, mathType, inputSize, hiddenSize,
    # projSize, numLayers, dropoutDesc, auxFlags
    "cudnnSetRNNDescriptor_v8": (c_int, (c_void_p, *[c_int] * 8, *[c_int32] * 4, c_void_p, c_uint32)),
    "cudnnGetRNNWeightSpaceSize": (c_int, (c_void_p, c_void_p, POINTER(c_size_t))),
    # handle, rnnDesc, pseudoLayer, weightSpaceSize, weightSpace, linLayerID, mDesc, mAddr, bDesc, bAddr
    "cudnnGetRNNWeightParams": (
        c_int,
        (c_void_p, c_void_p, c_int32, c_size_t, c_void_p, c_int32, c_void_p, POINTER(c_void_p), c_void_p,
         POINTER(c_void_p)),
    ),
}  # fmt: skip
OPTIONAL = {"cudnnGetLastErrorString": (None, (c_char_p, c_size_t))}
"""Explains why a call failed; from cuDNN 9 on."""
MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}
"""cudnnRNNMode_t."""
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t."""
DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH = 0, 1, 3
MATH = {"float16": TENSOR_OP_MATH, "bfloat16": TENSOR_OP_MATH, "float32": FMA_MATH, "float64": DEFAULT_MATH}
"""cudnnMathType_t as torch chooses it with TF32 off (aten/src/ATen/cudnn/Descriptors.h, RNNDescriptor::set)."""
PADDED_IO_ENABLED = 1
LINEAR_INPUT = 0
NOT_SUPPORTED = ("NOT_SUPPORTED", "ARCH_MISMATCH")
"""A status with one of these words means that a network, or an algorithm for it, is not supported ..."""
THE_MACHINE = ("DRIVER", "CUDART", "PREREQUISITE", "SUBLIBRARY")
"""... unless it has one of these, too: then the machine is the cause, and it says nothing about the network."""
BASE = 1 << 32
"""The address of the weight space if there is no GPU: it is only added to and never read."""
HANDLE_NBYTES = 1 << 20
MAX_AXES = 8


class CudnnError(ParamtoolError):
    """A function of the library failed in a way that is not an answer."""


class Library:
    """A loaded libcudnn, with the descriptors that questions need.  `close` releases them."""

    def __init__(
        self, functions: Any, *, blank: bool = False, space: Callable[[int], int] = lambda nbytes: BASE
    ) -> None:
        """`functions` is a ctypes.CDLL; with `blank`, a handle of zeros is used and no GPU is needed.

        `space(nbytes)` gives the address of a weight space of that size.
        """
        self._functions = functions
        self._space = space
        for name, (result, arguments) in {**SIGNATURES, **OPTIONAL}.items():
            function = getattr(functions, name, None)
            if function is None and name in SIGNATURES:
                raise CudnnError(f"the library has no {name}: expected cuDNN 8 or later")
            if function is not None:
                function.restype, function.argtypes = result, arguments
        self._blank = ctypes.create_string_buffer(HANDLE_NBYTES) if blank else None
        with ExitStack() as held:
            self._handle = c_void_p(ctypes.addressof(self._blank)) if self._blank else self._held(held, "")
            self._dropout = self._held(held, "DropoutDescriptor")
            self._call("cudnnSetDropoutDescriptor", self._dropout, self._handle, 0.0, None, 0, 0)
            self._matrix = self._held(held, "TensorDescriptor")
            self._bias = self._held(held, "TensorDescriptor")
            self._everything = held.pop_all()

    def close(self) -> None:
        """Release everything."""
        self._everything.close()

    @property
    def version(self) -> str:
        """The version as usually written: 9.28.0.

        cuDNN 8 counts 1000 * major + 100 * minor + patch, cuDNN 9 10000 * major + 100 * minor + patch.
        """
        return as_text(int(self._functions.cudnnGetVersion()))

    def answer(self, case: Case) -> Answer | Unsupported:
        """Where the library stores a network; CudnnError for a failure other than an unsupported network."""
        with self._described(case) as descriptor:
            if isinstance(descriptor, Unsupported):
                return descriptor
            size = c_size_t()
            refused = self._asked("cudnnGetRNNWeightSpaceSize", self._handle, descriptor, ctypes.byref(size))
            if refused:
                return refused
            regions: dict[Key, Region] = {}
            start = self._space(size.value)
            for pseudo_layer, linear in keys(case.spec):
                found = self._regions(descriptor, start, size.value, pseudo_layer, linear=linear)
                if isinstance(found, Unsupported):
                    return found
                regions |= found
        return Answer(size.value, regions)

    def _regions(
        self, descriptor: c_void_p, start: int, nbytes: int, pseudo_layer: int, *, linear: int
    ) -> dict[Key, Region] | Unsupported:
        """The matrix and the bias of one linLayerID, if they exist."""
        matrix, bias = c_void_p(), c_void_p()
        refused = self._asked(
            "cudnnGetRNNWeightParams", self._handle, descriptor, pseudo_layer, nbytes, start, linear,
            self._matrix, ctypes.byref(matrix), self._bias, ctypes.byref(bias),
        )  # fmt: skip
        if refused:
            return refused
        both = (("matrix", matrix, self._matrix), ("bias", bias, self._bias))
        return {
            Key(pseudo_layer, linear, what): self._region(address.value - start, tensor)
            for what, address, tensor in both
            if address.value
        }

    def _region(self, byte_start: int, descriptor: c_void_p) -> Region:
        dtype, axes = c_int(), c_int()
        shape, strides = (c_int * MAX_AXES)(), (c_int * MAX_AXES)()
        self._call(
            "cudnnGetTensorNdDescriptor", descriptor, MAX_AXES, ctypes.byref(dtype), ctypes.byref(axes), shape, strides
        )
        return Region(byte_start, _name(dtype.value), tuple(shape[: axes.value]), tuple(strides[: axes.value]))

    @contextmanager
    def _described(self, case: Case) -> Iterator[c_void_p | Unsupported]:
        """The descriptor of a network."""
        descriptor = self._made("cudnnCreateRNNDescriptor")
        spec = case.spec
        precision = "float64" if case.dtype == "float64" else "float32"
        try:
            refused = self._asked(
                "cudnnSetRNNDescriptor_v8", descriptor, ALGORITHMS.index(case.algorithm), MODES[_mode(spec)],
                BIAS_MODES.index(case.bias_mode), int(spec.bidirectional), LINEAR_INPUT, DATA_TYPES[case.dtype],
                DATA_TYPES[precision], MATH[case.dtype], spec.input, spec.hidden, spec.recurrent, spec.layers,
                self._dropout, PADDED_IO_ENABLED,
            )  # fmt: skip
            yield refused or descriptor
        finally:
            self._functions.cudnnDestroyRNNDescriptor(descriptor)

    def _held(self, stack: ExitStack, what: str) -> c_void_p:
        """A descriptor that is released with the stack."""
        made = self._made(f"cudnnCreate{what}")
        stack.callback(getattr(self._functions, f"cudnnDestroy{what}"), made)
        return made

    def _made(self, name: str) -> c_void_p:
        """The pointer that a function writes to its only argument."""
        made = c_void_p()
        self._call(name, ctypes.byref(made))
        return made

    def _call(self, name: str, *arguments: Any) -> None:
        """A call that has to succeed."""
        if refused := self._asked(name, *arguments):
            raise CudnnError(f"{name}: {refused.why}")

    def _asked(self, name: str, *arguments: Any) -> Unsupported | None:
        """A call that may be refused as unsupported; CudnnError for any other failure."""
        status = getattr(self._functions, name)(*arguments)
        if not status:
            return None
        word = (self._functions.cudnnGetErrorString(status) or b"").decode(errors="replace")
        why = ": ".join(filter(None, (word or f"status {status}", self._explained())))
        if not refused(word):
            raise CudnnError(f"{name}: {why}")
        return Unsupported(why)

    def _explained(self) -> str:
        """The library's explanation of its last failure, or an empty string."""
        function = getattr(self._functions, "cudnnGetLastErrorString", None)
        if function is None:
            return ""
        text = ctypes.create_string_buffer(512)
        function(text, len(text))
        return text.value.decode(errors="replace").strip()


def refused(words: str) -> bool:
    """Whether an error says that the network is not supported, by the name of the status in it.

    >>> refused("CUDNN_STATUS_NOT_SUPPORTED_SHAPE"), refused("CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE")
    (True, False)
    """
    return any(part in words for part in NOT_SUPPORTED) and not any(part in words for part in THE_MACHINE)


def _name(data_type: int) -> str:
    """The name of a cudnnDataType_t."""
    names = {number: name for name, number in DATA_TYPES.items()}
    return names.get(data_type, f"cudnnDataType_t {data_type}")


def _mode(spec: Spec) -> str:
    return spec.activation if spec.kind == "rnn" else spec.kind


def as_text(version: int) -> str:
    """A version number as usually written.

    >>> as_text(8907), as_text(92800), as_text(91002)
    ('8.9.7', '9.28.0', '9.10.2')
    """
    major, rest = divmod(version, 10000 if version >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
