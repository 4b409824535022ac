"""NumPy arrays, scalars and dtypes in pickles, as plain values: NumPy is not called.

    dtype("f4", False, True), BUILD (3, "<", None, None, None, -1, -1, 0)          descriptor.c
    _reconstruct(ndarray, (0,), b"b"), BUILD (1, shape, dtype, is Fortran, bytes)  methods.c
    _frombuffer(bytes, dtype, shape, order [, axes])                               methods.c; numeric.py: protocol 5
    scalar(dtype, bytes)                                                           scalartypes.c

Source: these files of numpy/_core/src/multiarray (NumPy 2.4), and numpy/_core/numeric.py.

The module is spelled `numpy.core` by NumPy 1 and `numpy._core` by NumPy 2; each spelling opens under both from 1.26 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod
from types import NoneType

from paramtool.errors import plural
from paramtool.formats.pickle.values import MAX_VALUE_NBYTES, Global, Instance, PickledSpan, preview
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.objects import Array
from paramtool.model.view import Shape, View, contiguous_strides

SPELLINGS = ("numpy.core.multiarray", "numpy._core.multiarray")
BUFFERS = {"numpy.core.numeric": SPELLINGS[0], "numpy._core.numeric": SPELLINGS[1]}
"""{the module of `_frombuffer`: the spelling that goes with it}"""
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
        code = args[0] if args else None
        self.args = args
        is_known = re.fullmatch(CODE, self._code) if isinstance(code, str) else isinstance(code, Global)
        if not is_known or not isinstance((*args, {}, {}, {})[3], dict):
            raise ValueError(f"{preview(args)} is no type of NumPy")
        self.state: tuple[object, ...] | None = None
        self.holds_objects = self._of_objects
        """Whether elements are or contain Python objects; also True if that is unknown."""

    def build(self, state: object) -> None:
        """State is (version, byte order, subdtype, names, fields, size, alignment, flags [, metadata]).

        Before NumPy 1.4 without flags, at first without names: `arraydescr_setstate` of descriptor.c.
        """
        if not isinstance(state, tuple) or not 6 <= len(state) <= 9:
            raise ValueError("the state of a numpy.dtype must be a tuple of 6 to 9 values")
        version, order, array, *fields = state[: len(state) - 2 if len(state) < 8 else 5]
        numbers = state[3 + len(fields) : 8]
        if not all(type(one) is int and abs(one) < 1 << 63 for one in numbers) or version not in VERSIONS:
            raise ValueError(f"a version up to {max(VERSIONS)}, a size, an alignment and flags must be whole numbers")
        is_order = isinstance(order, str) and len(order) == 1
        if (
            not is_order
            or array == ()
            or not isinstance(array, (tuple, NoneType))
            or 0 < fields.count(None) < len(fields)
        ):
            raise ValueError("an order is a character, an array in an element a tuple, and fields have names")
        if self.of_numbers and any(part not in (None, 0) for part in (array, *fields, *numbers[2:])):
            raise ValueError("a type of numbers has neither parts nor flags")
        self.state = state
        self.holds_objects = self._of_objects or _holds_objects(state)

    @property
    def _of_objects(self) -> bool:
        return self._code[:1] in ("O", "") and self.extension is None

    @property
    def of_numbers(self) -> bool:
        """Whether it is one of NumPy's own types of numbers."""
        return re.fullmatch(NUMBER, self._code) is not None

    @property
    def extension(self) -> DType | None:
        """The type of `dtype(ml_dtypes.bfloat16)` and the like."""
        named = self.args[0] if self.args else None
        return DTYPES.get(named.name) if isinstance(named, Global) and named.module == "ml_dtypes" else None

    @property
    def _code(self) -> str:
        """The kind and size of an element, such as `f4`; empty if that is not a short string."""
        code = self.args[0] if self.args else None
        return code if isinstance(code, str) and len(code) <= MAX_CODE else ""

    @property
    def number(self) -> tuple[DType, bool] | None:
        """The element type, and whether its bytes are swapped (big-endian); None where no tensor can have it.

        ml_dtypes' types are classes of that package: `dtype(ml_dtypes.bfloat16)` with the sizes of the type.
        """
        if (dtype := self.extension) is not None:
            is_plain = self.state is None or (self.state[1] in ("<", "|", "=") and set(self.state[2:5]) == {None})
            return (dtype, False) if is_plain and dtype.block_elements == 1 else None
        text = self.text
        if not self.is_simple or (found := PLAIN_DTYPES.get(text.replace(">", "<", 1))) is None:
            return None
        return found, text[0] == ">"

    @property
    def element_nbytes(self) -> int:
        """The bytes of an element of a plain dtype; 0 where its code does not say that."""
        count = self._code[1:]
        return int(count) * (4 if self._code[0] == "U" else 1) if count.isdecimal() else 0

    @property
    def text(self) -> str:
        """As NumPy writes it: `<f4`; with `?` for what is not a string."""
        order = self.state[1] if self.state else "|"
        return f"{order if isinstance(order, str) and len(order) <= 1 else '?'}{self._code or '?'}"

    @property
    def is_simple(self) -> bool:
        """Whether the text describes it fully: no fields, no units, no metadata."""
        return self.state is None or self.of_numbers or self.state == state_of(self.text)


NUMBER = "b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)"
"""Types of numbers, with the long doubles of all systems."""
CODE = f"[<>=|]?({NUMBER}|[OSaUVMm][0-9]*)"
VERSIONS = range(5)
"""Of the state of a dtype."""
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

    __slots__ = ("axes", "cls", "data", "dtype", "fortran", "items", "shape", "span", "spelling", "tensor")
    stands_alone = False
    """Whether the file is one of arrays, so that an array is a tensor and nothing else."""

    def __init__(self, spelling: str, args: tuple[object, ...]) -> None:
        self.spelling = spelling
        cls, *empty = (one.value() if isinstance(one, PickledSpan) else one for one in args)
        if not isinstance(cls, Global) or empty not in ([], [(0,), b"b"], [(0,), "b"]):
            raise ValueError("an array of NumPy is made of its class, (0,) and b'b'")
        self.cls = cls.path
        self.shape: Shape = ()
        self.dtype = NumpyDtype("V")
        self.fortran = False
        self.axes: tuple[int, ...] = ()
        """The order in which the axes of `shape` are turned; empty if they are not."""
        self.items: list[object] | None = None
        """The elements of an array of Python objects, row by row."""
        self.data: bytes | None = None
        self.span: PickledSpan | None = None
        """Where the bytes are in the file, if they were not read."""
        self.tensor: object = None
        """Kept here by whoever makes a tensor of it, so that one array is one tensor."""

    @classmethod
    def from_buffer(cls, spelling: str, args: tuple[object, ...]) -> NumpyArray:
        """What `_frombuffer` makes: with order `K` the array of that shape is turned by `axes`."""
        if len(args) not in (4, 5):
            found = plural(args, "argument")
            raise ValueError(f"{found}; expected bytes, a dtype, a shape, an order and perhaps axes")
        data, dtype, shape, order, axes = (*args, None)[:5]
        made = cls(spelling, (Global("numpy", "ndarray"),))
        if isinstance(data, Instance) and data.path == "builtins.bytearray" and data.args:
            data = data.args[0]
        if order not in ("C", "F", "K"):
            raise ValueError("the order of an array must be C, F or K")
        made.build((1, shape, dtype, order == "F", data))
        if order == "K" and axes is not None:
            if not isinstance(axes, tuple) or sorted(map(_whole, axes)) != list(range(len(made.shape))):
                raise ValueError("the axes of an array must be a permutation")
            made.axes = axes
            made.data = made.data if made.stands_alone else None
        return made

    def build(self, state: object) -> None:
        """State is (version, shape, dtype, is Fortran, bytes), at first without a version; of objects a list.

        Python 2 wrote the bytes as a string, which was read as text: the length says from which encoding.
        """
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise ValueError("the state of an array must be (version, shape, dtype, is Fortran, bytes)")
        *version, shape, dtype, fortran, data = state
        if not all(isinstance(one, int) and one in (0, 1) for one in (*version, fortran)):
            raise ValueError("the state of an array is of version 0 or 1, and says whether it is Fortran")
        if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise ValueError("the shape of an array must be a tuple of whole numbers")
        if len(shape) > MAX_AXES:
            raise ValueError(f"{len(shape)} axes; expected at most {MAX_AXES}")
        if not isinstance(dtype, NumpyDtype):
            raise ValueError("the dtype of an array must be a numpy.dtype")
        self.shape, self.dtype, self.fortran = shape, dtype, bool(fortran)
        self.data = self.span = self.items = None
        if dtype.text in ("|O", "|O8") and isinstance(data, list) and len(data) == prod(shape):
            self.items = data
        if dtype.holds_objects or (dtype.extension and not self.stands_alone):
            return
        if isinstance(data, PickledSpan) and data.is_bytes:
            self.span = data
        elif isinstance(data, (bytes, str)):
            expected = prod(shape) * dtype.element_nbytes
            self.data = bytes_of(data, expected)
            if dtype.of_numbers and len(self.data or b"") != expected:
                raise ValueError(f"an array of shape {list(shape)} of {dtype.text} with {len(data)} bytes")
        elif not isinstance(data, PickledSpan):
            raise ValueError(f"elements of type {type(data).__name__}; expected bytes")

    @property
    def is_plain(self) -> bool:
        """Whether the array itself can be written again: an ndarray with bytes."""
        return self.cls == "numpy.ndarray" and (self.data is not None or self.span is not None)

    @property
    def element(self) -> DType | None:
        """The dtype as of a tensor; None where a tensor cannot be made of it."""
        if self.stands_alone:
            number = self.dtype.number if self.is_plain else None
            return number[0] if number else None
        return PLAIN_DTYPES.get(self.dtype.text) if self.is_plain and self.dtype.is_simple else None

    @property
    def order(self) -> str:
        """`F` where the bytes are column by column."""
        return "F" if self.fortran else "C"

    def array(self) -> Array:
        """As a node of the tree."""
        return Array(self.dtype.text, self.shape, self.order, self.data or b"")

    def settle(self) -> None:
        """Read bytes that were left in the file, unless they are too many; ValueError if they are damaged."""
        if self.span is not None and self.span.nbytes <= MAX_VALUE_NBYTES:
            self.data = self.span.bytes()

    def placed(self, storage: int, dtype: DType) -> View:
        """The array as a view of a storage that has exactly its bytes."""
        strides = strides_of(self.shape, self.order)
        if not self.axes:
            return View(storage, dtype, 0, self.shape, strides)
        return View(storage, dtype, 0, tuple(self.shape[k] for k in self.axes), tuple(strides[k] for k in self.axes))


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"an axis of type {type(value).__name__}")
    return value


def bytes_of(data: bytes | str, nbytes: int) -> bytes | None:
    """The bytes of an array or a scalar; for a string of Python 2 those that it was read from, `nbytes` of them.

    The machine reads such a string as UTF-8 if it is, else as Latin-1.  As UTF-8 it had more bytes than characters,
    so its length decides.  None if neither fits.

    >>> bytes_of("\u00e9", 1), bytes_of("\u00e9", 2), bytes_of("\u00e9", 3)
    (b'\xe9', b'\xc3\xa9', None)
    """
    if isinstance(data, bytes):
        return data
    try:
        if len(data) == nbytes:
            return data.encode("latin-1")
        made = data.encode()
    except UnicodeEncodeError:
        return None
    return made if len(made) == nbytes else None


def strides_of(shape: Shape, order: str) -> Shape:
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
        if isinstance(data, PickledSpan):
            data = data.value()
        fits = isinstance(data, (bytes, str)) and not dtype.holds_objects and not dtype.extension
        self.data = bytes_of(data, dtype.element_nbytes) if fits else None  # type: ignore[arg-type]  # text by `fits`
        if dtype.of_numbers and len(self.data or b"") < dtype.element_nbytes:
            raise ValueError(f"a scalar of {dtype.text} of other bytes")


def constructors(kind: type[NumpyArray]) -> dict[str, Callable[..., object]]:
    """What makes arrays, scalars and dtypes: {path: function}."""

    def array(spelling: str) -> Callable[..., object]:
        return lambda *args: kind(spelling, args)

    def buffer(spelling: str) -> Callable[..., object]:
        return lambda *args: kind.from_buffer(spelling, args)

    def scalar(spelling: str) -> Callable[..., object]:
        return lambda dtype, data=b"": NumpyScalar(spelling, dtype, data)

    arrays = {f"{spelling}._reconstruct": array(spelling) for spelling in SPELLINGS}
    arrays |= {f"{module}._frombuffer": buffer(spelling) for module, spelling in BUFFERS.items()}
    return arrays | {f"{spelling}.scalar": scalar(spelling) for spelling in SPELLINGS} | {DTYPE: NumpyDtype}


CONSTRUCTORS = constructors(NumpyArray)
