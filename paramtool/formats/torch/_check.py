"""Read back a pickle that was written for torch, by torch's own rules: what torch would refuse is not written.

This is the loop of Python's own `pickle`, as it is that of torch's (`torch/_weights_only_unpickler.py`), with nothing
but the opcodes of the writer, and with the functions that a torch file calls replaced by ones that look at their
arguments: a tensor has to be inside its storage, attributes have to be a dict, and a key has to be one.  It shares no
code with the reader (`formats/pickle/machine.py`) and none with the writer (`formats/pickle/write.py`), so that one
mistake in either is seen.  Nothing that the pickle names is imported.

Sources: Lib/pickle.py of CPython 3.10 to 3.14 (`_Unpickler`); torch/_weights_only_unpickler.py, torch/_utils.py,
torch/_tensor.py and torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from paramtool.formats.torch._classes import FORMS, is_name
from paramtool.model.objects import STREAM


class Wrong(ValueError):
    """Why torch.load would not open a pickle."""


class Fixed:
    """A value that can be a key."""


class Loose:
    """A value that cannot."""

    __hash__ = None  # type: ignore[assignment]


class CheckedTensor(Fixed):
    """A tensor."""


class CheckedStorage(Fixed):
    """A storage: the bytes of an element of its class, and how many elements it has."""

    def __init__(self, element_nbytes: int, numel: int) -> None:
        self.nbytes = element_nbytes * numel
        self.element_nbytes = element_nbytes


class CheckedOrderedDict(dict):  # type: ignore[type-arg]
    """An OrderedDict, which may have attributes."""


class CheckedArray(Loose):
    """A NumPy array, which is empty until its state is set."""


class CheckedStream(Loose):
    """An `io.BytesIO`, which is empty until its state is set."""


class Class(str):
    """A class or function by its name."""

    __slots__ = ()


STORAGES = {
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2,
    "IntStorage": 4, "FloatStorage": 4, "LongStorage": 8, "DoubleStorage": 8, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}  # fmt: skip
"""Bytes of an element, by the class of the storage; `torch.storage.UntypedStorage` has bytes."""
UNTYPED = "torch.storage.UntypedStorage"
WORDS = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}  # fmt: skip
UNHASHABLE = {"argparse.Namespace", "types.SimpleNamespace", "builtins.bytearray", "builtins.slice"}


def check(data: bytes) -> None:
    """Wrong if `torch.load` would not open a pickle of protocol 2."""
    try:
        if data[:2] != b"\x80\x02":
            raise Wrong("it is not of protocol 2")
        _CheckMachine(io.BytesIO(data[2:])).load()
    except Wrong:
        raise
    except (EOFError, LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from None


# --- what is called -----------------------------------------------------------------------------------------------


def _sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value)


def _rebuild_v2(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any) -> CheckedTensor:
    return _tensor(storage, offset, size, stride, grad, hooks, storage.element_nbytes)


def _rebuild_v3(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any) -> CheckedTensor:
    if not isinstance(dtype, Class) or grad is not False:
        raise Wrong("_rebuild_tensor_v3 needs a dtype, and no gradient")
    return _tensor(storage, offset, size, stride, grad, hooks, WORDS[dtype.removeprefix("torch.")])


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, nbytes: int) -> CheckedTensor:
    if not isinstance(storage, CheckedStorage) or not _sizes(size) or not _sizes(stride) or not _sizes((offset,)):
        raise Wrong("a tensor is not made of a storage, an offset, sizes and strides")
    if len(size) != len(stride) or type(grad) is not bool or not isinstance(hooks, CheckedOrderedDict) or hooks:
        raise Wrong("a tensor has other arguments than it takes")
    reach = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
    if 0 not in size and reach * nbytes > storage.nbytes:
        raise Wrong(f"a tensor needs {reach * nbytes} bytes of a storage of {storage.nbytes}")
    return CheckedTensor()


def _parameter(data: Any, grad: Any, hooks: Any, state: Any = None) -> CheckedTensor:
    if not isinstance(data, CheckedTensor) or type(grad) is not bool or not isinstance(hooks, CheckedOrderedDict):
        raise Wrong("a parameter is not made of a tensor")
    _attributes(state)
    return CheckedTensor()


def _from_type(function: Any, kind: Any, args: Any, state: Any) -> CheckedTensor:
    made = CALLS[function](*args)
    if kind != "torch.Tensor" or not isinstance(made, CheckedTensor):
        raise Wrong("a tensor with attributes is not made of a tensor")
    _attributes(state)
    return made


def _attributes(state: object) -> None:
    if state is not None and not (isinstance(state, dict) and all(isinstance(name, str) for name in state)):
        raise Wrong("attributes are not a dict with names as keys")


def _ordered() -> CheckedOrderedDict:
    return CheckedOrderedDict()


def _default(*factory: Any) -> dict[Any, Any]:
    if len(factory) > 1 or not all(one is None or isinstance(one, Class) for one in factory):
        raise Wrong("the factory of a defaultdict is not a class")
    return {}


def _deque(items: Any = (), most: Any = None) -> list[Any]:
    if most is not None and not _sizes((most,)):
        raise Wrong("a deque's maxlen is not a number")
    return list(items)


def _frozen(items: Any) -> Fixed:
    if not isinstance(items, list):
        raise Wrong("a frozenset is not made from a list")
    frozenset(items)
    return Fixed()


def _set(items: Any) -> Loose:
    if not isinstance(items, list):
        raise Wrong("a set is not made from a list")
    frozenset(items)
    return Loose()


def _size(items: Any) -> tuple[int, ...]:
    if not isinstance(items, tuple) or not all(type(item) is int for item in items):
        raise Wrong("a torch.Size has items that are not numbers")
    return items


def _bytes(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1":
        raise Wrong("bytes are not written as Latin-1")
    return bytes(text, encoding)


def _complex(*parts: Any) -> complex:
    return complex(*parts)


def _array(kind: Any, shape: Any, code: Any) -> CheckedArray:
    if kind != "numpy.ndarray" or shape != (0,) or code != b"b":
        raise Wrong("an array does not begin as NumPy pickles one")
    return CheckedArray()


def _array_scalar(dtype: Any, data: Any) -> Fixed:
    if not isinstance(dtype, DTypeOf) or not isinstance(data, bytes):
        raise Wrong("a NumPy scalar is not made of a dtype and bytes")
    return Fixed()


class DTypeOf(Fixed):
    """A NumPy dtype."""


def _dtype(code: Any, align: Any, copy: Any) -> DTypeOf:
    if not isinstance(code, str) or not code or code[0] == "O" or type(align) is not bool or type(copy) is not bool:
        raise Wrong("a dtype has other arguments than it takes")
    return DTypeOf()


CALLS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
    "collections.OrderedDict": _ordered,
    "collections.Counter": dict,
    "collections.defaultdict": _default,
    "collections.deque": _deque,
    "builtins.set": _set,
    "builtins.frozenset": _frozen,
    "builtins.complex": _complex,
    "_codecs.encode": _bytes,
    "numpy.dtype": _dtype,
    **{f"numpy.{core}.multiarray._reconstruct": _array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _array_scalar for core in ("core", "_core")},
}


def _called(name: str, args: tuple[object, ...]) -> object:
    """The result of a call; objects of the table were checked when the tree was fitted, and have no items here."""
    if name in CALLS:
        return CALLS[name](*args)
    if name not in FORMS or FORMS[name].new:
        raise Wrong(f"{name} is called")
    return Loose() if name in UNHASHABLE else Fixed()


# --- the loop -----------------------------------------------------------------------------------------------------


Unpickler: Any = pickle._Unpickler  # type: ignore[attr-defined,unused-ignore]


class _CheckMachine(Unpickler):  # type: ignore[misc]
    """The loop in which Python runs a pickle, with nothing but the opcodes that the writer has."""

    def find_class(self, module: str, name: str) -> Class:
        """A class or function, by its name."""
        module = "builtins" if module == "__builtin__" else module
        name = {"xrange": "range", "unicode": "str", "long": "int"}.get(name, name) if module == "builtins" else name
        full = f"{module}.{name}"
        if full not in CALLS and not is_name(full) and full != UNTYPED and full[:6] != "torch.":
            raise Wrong(f"it names {full}")
        return Class(full)

    def persistent_load(self, pid: Any) -> CheckedStorage:
        """A storage."""
        word, kind, key, location, numel = pid
        if word != "storage" or not isinstance(key, str) or not key.isdigit() or location != "cpu":
            raise Wrong("a storage is not named as torch names one")
        if not _sizes((numel,)) or not isinstance(kind, Class):
            raise Wrong("a storage has no class or no length")
        return CheckedStorage(1 if kind == UNTYPED else STORAGES[kind.removeprefix("torch.")], numel)

    def reduce(self) -> None:
        args = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, Class) or not isinstance(args, tuple):
            raise Wrong("something that is not a function is called")
        self.stack[-1] = _called(function, args)

    def new(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        if not isinstance(kind, Class) or kind not in FORMS or not FORMS[kind].new or not isinstance(args, tuple):
            raise Wrong(f"an object of {kind!r:.60} is made without its constructor")
        self.append(CheckedStream() if kind == STREAM else Loose() if kind in UNHASHABLE else Fixed())

    def build(self) -> None:
        state, held = self.stack.pop(), self.stack[-1]
        if isinstance(held, (CheckedArray, DTypeOf)):
            if not isinstance(state, tuple) or (isinstance(held, CheckedArray) and not _is_array(state)):
                raise Wrong("the state of an array or a dtype is not as NumPy has it")
        elif isinstance(held, CheckedStream):
            if not isinstance(state, tuple) or [*map(type, state[:2])] != [bytes, int] or state[1] < 0:
                raise Wrong("the state of an io.BytesIO is not bytes and a position")
        elif isinstance(held, CheckedOrderedDict) or (
            isinstance(held, (Fixed, Loose)) and not isinstance(held, (CheckedTensor, CheckedStorage))
        ):
            if not isinstance(state, dict):
                raise Wrong("attributes are not a dict")
        else:
            raise Wrong(f"a {type(held).__name__} has attributes")

    def pairs(self) -> None:
        items, held = self.pop_mark(), self.stack[-1]
        if not isinstance(held, dict) or len(items) % 2:
            raise Wrong("pairs are put into something that is not a dict")
        before = len(held)
        held.update(zip(items[::2], items[1::2], strict=True))
        if len(held) != before + len(items) // 2:
            raise Wrong("a dict has a key twice")

    def stop(self) -> None:
        if self.metastack or len(self.stack) != 1 or self.read(1):
            raise Wrong("it does not end with one value")
        self.load_stop()

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{opcode: Unpickler.dispatch[opcode] for opcode in b"N\x88\x89)]}KMJG\x8aXhjqr(t\x85\x86\x87ecQ"},
        ord("R"): reduce,
        0x81: new,
        ord("b"): build,
        ord("u"): pairs,
        ord("."): stop,
    }


def _is_array(state: tuple[Any, ...]) -> bool:
    version, shape, dtype, fortran, data = state
    return (
        version == 1
        and _sizes(shape)
        and isinstance(dtype, DTypeOf)
        and type(fortran) is bool
        and isinstance(data, bytes)
    )
