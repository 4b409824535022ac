"""NumPy arrays, scalars and dtypes in pickles, as plain values: NumPy is not called.

    dtype("f4", False, True), BUILD (3, "<", None, None, None, -1, -1, 0)          descriptor.c
    _reconstruct(ndarray, (0,), b"b"), BUILD (1, shape, dtype, is Fortran, bytes)  methods.c
    scalar(dtype, bytes)                                                           scalartypes.c

Source: these files of numpy/_core/src/multiarray (NumPy 2.4).

The module is spelled `numpy.core` by NumPy 1 and `numpy._core` by NumPy 2; each spelling opens under both from 1.26 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from paramtool.formats.pickle.values import Global, Instance
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Array
from paramtool.model.view import View, contiguous_strides

SPELLINGS = ("numpy.core.multiarray", "numpy._core.multiarray")
DTYPE = "numpy.dtype"
PLAIN_DTYPES: dict[str, DType] = {
    text: DTYPES[name]
    for text, name in {
        "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32", "<u4": "uint32",
        "<i8": "int64", "<u8": "uint64", "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64",
        "<c16": "complex128",
    }.items()
}  # fmt: skip
"""NumPy's strings for dtypes that a tensor can have.  Arrays of others (strings, dates, records) stay objects."""
TEXT_OF = {dtype.name: text for text, dtype in PLAIN_DTYPES.items()}


class NumpyDtype:
    """A `numpy.dtype(code, align, copy)` and the state that is set on it."""

    __slots__ = ("args", "holds_objects", "state")

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: tuple[object, ...] | None = None
        self.holds_objects = self._code[:1] in ("O", "")
        """Whether elements are or contain Python objects; also True if that is unknown."""

    def build(self, state: object) -> None:
        """State is (version, byte order, subdtype, names, fields, size, alignment, flags [, metadata])."""
        if not isinstance(state, tuple) or len(state) < 2:
            raise ValueError("the state of a numpy.dtype must be a tuple")
        self.state = state
        self.holds_objects = self._code[:1] in ("O", "") or _holds_objects(state)

    @property
    def _code(self) -> str:
        """The kind and size of an element, such as `f4`; empty if that is not a short string."""
        code = self.args[0] if self.args else None
        return code if isinstance(code, str) and len(code) <= MAX_CODE else ""

    @property
    def text(self) -> str:
        """As NumPy writes it: `<f4`; with `?` for what is not a string."""
        order = self.state[1] if self.state else "|"
        return f"{order if isinstance(order, str) and len(order) <= 1 else '?'}{self._code or '?'}"

    @property
    def is_simple(self) -> bool:
        """Whether the text describes it fully: no fields, no units, no metadata."""
        return self.state is None or self.state == state_of(self.text)


MAX_CODE = 64
"""Characters of a dtype's code, such as `U12`; NumPy's own have at most 21."""
MAX_PARTS = 10_000
"""Values in the state of a dtype: six or so for each field of a record."""


def _holds_objects(state: tuple[object, ...]) -> bool:
    """Whether a dtype's state contains a dtype of Python objects; ValueError if it has too many parts to tell."""
    todo: list[object] = [state]
    for count, part in enumerate(_taken(todo)):
        if count > MAX_PARTS:
            raise ValueError(f"the state of a numpy.dtype has more than {MAX_PARTS:,} parts")
        if isinstance(part, (Global, Instance)) or (isinstance(part, NumpyDtype) and part.holds_objects):
            return True
        if isinstance(part, dict):
            todo.extend(part.values())
        elif isinstance(part, (tuple, list)):
            todo.extend(part)
    return False


def _taken(todo: list[object]) -> Iterator[object]:
    """What is on a list, the last first, until nothing is."""
    while todo:
        yield todo.pop()


def state_of(text: str) -> tuple[object, ...]:
    """The state of a dtype that its text says all of.

    >>> state_of("<f4"), state_of("<U2")
    ((3, '<', None, None, None, -1, -1, 0), (3, '<', None, None, None, 8, 4, 8))
    """
    order, kind = (text[0], text[1]) if text[0] in "<>|=" else ("|", text[0])
    digits = text.lstrip("<>|=")[1:]
    sizes: tuple[int, int, int] = (-1, -1, 0)
    if kind in "USV" and digits.isdecimal():
        sizes = (4 * int(digits), 4, 8) if kind == "U" else (int(digits), 1, 0)
    return (3, order, None, None, None, *sizes)


MAX_AXES = 64
"""Of NumPy's arrays: NPY_MAXDIMS in numpy/_core/include/numpy/ndarraytypes.h, 32 before NumPy 2."""


class NumpyArray:
    """A `numpy.ndarray`, or a subclass, whose bytes are its state."""

    __slots__ = ("cls", "data", "dtype", "fortran", "shape", "spelling", "tensor")

    def __init__(self, spelling: str, args: tuple[object, ...]) -> None:
        self.spelling = spelling
        cls = args[0] if args else None
        self.cls = cls.path if isinstance(cls, Global) else "?"
        self.shape: tuple[int, ...] = ()
        self.dtype = NumpyDtype("V")
        self.fortran = False
        self.data: bytes | None = None
        self.tensor: object = None
        """Kept here by whoever makes a tensor of it, so that one array is one tensor."""

    def build(self, state: object) -> None:
        """State is (version, shape, dtype, is Fortran, bytes); arrays of objects have a list instead of bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("the state of an array must be (version, shape, dtype, is Fortran, bytes)")
        _, shape, dtype, fortran, data = state
        if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise ValueError("the shape of an array must be a tuple of whole numbers")
        if len(shape) > MAX_AXES:
            raise ValueError(f"{len(shape)} axes; expected at most {MAX_AXES}")
        if not isinstance(dtype, NumpyDtype):
            raise ValueError("the dtype of an array must be a numpy.dtype")
        self.shape, self.dtype, self.fortran = shape, dtype, bool(fortran)
        self.data = data if isinstance(data, bytes) and not dtype.holds_objects else None

    @property
    def is_plain(self) -> bool:
        """Whether the array itself can be written again: an ndarray with bytes."""
        return self.cls == "numpy.ndarray" and self.data is not None

    @property
    def element(self) -> DType | None:
        """The dtype as of a tensor; None where a tensor cannot be made of it."""
        return PLAIN_DTYPES.get(self.dtype.text) if self.is_plain and self.dtype.is_simple else None

    @property
    def order(self) -> str:
        """`F` where the bytes are column by column."""
        return "F" if self.fortran else "C"

    def array(self) -> Array:
        """As a node of the tree."""
        return Array(self.dtype.text, self.shape, self.order, self.data or b"")

    def view(self, storage: int, dtype: DType) -> View:
        """The array as a view of a storage with its bytes; ValueError if they are too few or too many."""
        if self.data is None or prod(self.shape) * dtype.block_bytes != len(self.data):
            raise ValueError(f"an array of shape {list(self.shape)} with {len(self.data or b'')} bytes")
        return View(storage, dtype, 0, self.shape, strides_of(self.shape, self.order))


def strides_of(shape: tuple[int, ...], order: str) -> tuple[int, ...]:
    """The strides of a dense array in elements, row by row (`C`) or column by column (`F`).

    >>> strides_of((2, 3), "C"), strides_of((2, 3), "F")
    ((3, 1), (1, 2))
    """
    return contiguous_strides(shape[::-1])[::-1] if order == "F" else contiguous_strides(shape)


class NumpyScalar:
    """One element, as `scalar(dtype, bytes)` makes it."""

    __slots__ = ("data", "dtype", "spelling")

    def __init__(self, spelling: str, dtype: object, data: object = b"") -> None:
        if not isinstance(dtype, NumpyDtype):
            raise ValueError("the dtype of a scalar must be a numpy.dtype")
        self.spelling = spelling
        self.dtype = dtype
        self.data = data if isinstance(data, bytes) and not dtype.holds_objects else None


def _constructors() -> dict[str, Callable[..., object]]:
    def array(spelling: str) -> Callable[..., object]:
        return lambda *args: NumpyArray(spelling, args)

    def scalar(spelling: str) -> Callable[..., object]:
        return lambda dtype, data=b"": NumpyScalar(spelling, dtype, data)

    arrays = {f"{spelling}._reconstruct": array(spelling) for spelling in SPELLINGS}
    return arrays | {f"{spelling}.scalar": scalar(spelling) for spelling in SPELLINGS} | {DTYPE: NumpyDtype}


CONSTRUCTORS = _constructors()
