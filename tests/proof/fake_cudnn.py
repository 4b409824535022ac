"""A small cuDNN: every function that is asked, callable from C, over a weight space counted out in a plain loop.

It knows nothing of paramtool's tables.  `twist` makes it another library; `failures` makes a function fail.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, addressof, c_char_p, c_void_p, create_string_buffer, memmove, string_at
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proof.cudnn.library import OPTIONAL, SIGNATURES, Library

NONE, INPUT, DOUBLE, RECURRENT = range(4)
"""Bias modes."""
BAD_PARAM, NOT_SUPPORTED, NAMELESS = 2000, 3000, 77
NAMES = {BAD_PARAM: b"CUDNN_STATUS_BAD_PARAM", NOT_SUPPORTED: b"CUDNN_STATUS_NOT_SUPPORTED", NAMELESS: b""}
GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Of each cell mode: relu, tanh, lstm, gru."""
ITEMSIZES = {0: 4, 1: 8, 2: 2, 9: 2}
DESCRIPTORS = ("RNN", "Dropout", "Tensor")
ARGUMENTS = ("algorithm", "mode", "bias", "direction", "input_mode", "dtype", "precision", "math", "input", "hidden",
             "projection", "layers", "dropout", "flags")  # fmt: skip
"""What cudnnSetRNNDescriptor_v8 takes behind the descriptor."""


class At(NamedTuple):
    """Where something is, in elements."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Space:
    """A weight space."""

    at: dict[tuple[int, int, str], At] = field(default_factory=dict)
    """By pseudo-layer, linLayerID, and `matrix` or `bias`, in the order of their addresses."""
    numel: int = 0

    def put(self, pseudo_layer: int, linear: int, rows: int, columns: int, what: str = "matrix") -> None:
        """One more behind all others."""
        self.at[pseudo_layer, linear, what] = At(self.numel, (1, rows, columns), (rows * columns, columns, 1))
        self.numel += rows * columns


def space(network: dict[str, int]) -> Space:
    """All matrices of one pseudo-layer after the other, then all biases; a projection behind the recurrent ones."""
    made, gates, directions = Space(), GATES[network["mode"]], network["direction"] + 1
    hidden, projection = network["hidden"], network["projection"]
    for pseudo_layer in range(network["layers"] * directions):
        below = network["input"] if pseudo_layer < directions else projection * directions
        for linear in range(2 * gates):
            made.put(pseudo_layer, linear, hidden, below if linear < gates else projection)
        if projection != hidden:
            made.put(pseudo_layer, 8, projection, hidden)
    first, last = {NONE: (0, 0), INPUT: (0, gates), DOUBLE: (0, 2 * gates), RECURRENT: (gates, 2 * gates)}[
        network["bias"]
    ]
    for pseudo_layer in range(network["layers"] * directions):
        for linear in range(first, last):
            made.put(pseudo_layer, linear, hidden, 1, "bias")
    return made


@dataclass
class Fake:
    """The library; it stands where a ctypes.CDLL would."""

    number: int = 92800
    twist: Callable[[Space], object] = lambda space: None
    """What is otherwise in this library's weight spaces."""
    failures: dict[str, int] = field(default_factory=dict)
    """{function: the status that it returns}."""
    explains: str = ""
    """What cudnnGetLastErrorString says; without it there is no such function."""
    lacks: tuple[str, ...] = ()
    """Functions that are not there."""
    described: list[dict[str, int]] = field(default_factory=list)
    """What cudnnSetRNNDescriptor_v8 was told."""
    dropouts: list[tuple[Any, ...]] = field(default_factory=list)
    """What cudnnSetDropoutDescriptor was told."""
    handles: list[bytes] = field(default_factory=list)
    """The first bytes of handles that nobody made here, as they were given to cudnnGetRNNWeightParams."""
    alive: dict[int, str] = field(default_factory=dict)
    """What was made and not given back: {its number: what it is}."""
    made: int = 0
    """How many things were ever made."""
    networks: dict[int, dict[str, int]] = field(default_factory=dict)
    tensors: dict[int, tuple[int, At]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (result, arguments) in {**SIGNATURES, **OPTIONAL}.items():
            if name not in self.lacks and (name not in OPTIONAL or self.explains):
                # texts are addresses: as bytes, ctypes would copy one that comes in, and lose one that goes back
                types = [c_void_p if kind is c_char_p else kind for kind in (result, *arguments)]
                setattr(self, name, CFUNCTYPE(*types)(self._function(name)))
        self._names = {status: create_string_buffer(name) for status, name in NAMES.items()}

    def library(self, **more: Any) -> Library:
        """As paramtool sees it."""
        return Library(self, **more)

    def _function(self, name: str) -> Callable[..., Any]:
        for kind in DESCRIPTORS:
            if name == f"cudnnCreate{kind}Descriptor":
                return self._failing(name, lambda out, kind=kind: self._make(kind, out))
            if name == f"cudnnDestroy{kind}Descriptor":
                return lambda number, kind=kind: self._destroy(kind, number)
        own = {
            "cudnnGetVersion": lambda: self.number,
            "cudnnGetErrorString": lambda status: addressof(self._names[status]),
            "cudnnGetLastErrorString": self._explain,
            "cudnnCreate": lambda out: self._make("handle", out),
            "cudnnDestroy": lambda number: self._destroy("handle", number),
            "cudnnSetDropoutDescriptor": self._set_dropout,
            "cudnnGetTensorNdDescriptor": self._describe,
            "cudnnSetRNNDescriptor_v8": self._set,
            "cudnnGetRNNWeightSpaceSize": self._size,
            "cudnnGetRNNWeightParams": self._params,
        }[name]
        returns_status = name not in ("cudnnGetVersion", "cudnnGetErrorString", "cudnnGetLastErrorString")
        return self._failing(name, own) if returns_status else own

    def _failing(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        return lambda *arguments: self.failures.get(name) or function(*arguments)

    def _make(self, kind: str, out: Any) -> int:
        self.made += 1
        self.alive[self.made] = kind
        out[0] = self.made
        return 0

    def _destroy(self, kind: str, number: int) -> int:
        assert self.alive.pop(number) == kind
        return 0

    def _explain(self, out: int, length: int) -> None:
        text = self.explains.encode()[: length - 1] + b"\0"
        memmove(out, text, len(text))

    def _set_dropout(self, descriptor: int, handle: int, *told: Any) -> int:
        assert self.alive[descriptor] == "Dropout"
        self.dropouts.append(told)
        return 0

    def _set(self, descriptor: int, *told: int) -> int:
        assert self.alive[descriptor] == "RNN"
        network = dict(zip(ARGUMENTS, told, strict=True))
        assert self.alive[network["dropout"]] == "Dropout"
        self.networks[descriptor] = network
        self.described.append(network)
        return 0

    def _space(self, descriptor: int) -> tuple[Space, int]:
        """Of the network of a descriptor; and the bytes of an element."""
        assert self.alive[descriptor] == "RNN"
        network = self.networks[descriptor]
        made = space(network)
        self.twist(made)
        return made, ITEMSIZES[network["dtype"]]

    def _size(self, handle: int, descriptor: int, out: Any) -> int:
        made, itemsize = self._space(descriptor)
        out[0] = made.numel * itemsize
        return 0

    def _params(
        self, handle: int, descriptor: int, pseudo_layer: int, nbytes: int, base: int, linear: int, *out: Any
    ) -> int:
        made, itemsize = self._space(descriptor)
        if self.alive.get(handle) != "handle":
            self.handles.append(string_at(handle, 64))
        if nbytes < made.numel * itemsize or not base:
            return BAD_PARAM
        for what, tensor, address in (("matrix", *out[:2]), ("bias", *out[2:])):
            at = made.at.get((pseudo_layer, linear, what))
            address[0] = base + at.start * itemsize if at else None
            if at:
                assert self.alive[tensor] == "Tensor"
                self.tensors[tensor] = (self.networks[descriptor]["dtype"], at)
        return 0

    def _describe(self, tensor: int, room: int, dtype: Any, axes: Any, shape: Any, strides: Any) -> int:
        number, at = self.tensors[tensor]
        if room < len(at.shape):
            return BAD_PARAM
        dtype[0], axes[0] = number, len(at.shape)
        for axis, (size, stride) in enumerate(zip(at.shape, at.strides, strict=True)):
            shape[axis], strides[axis] = size, stride
        return 0
