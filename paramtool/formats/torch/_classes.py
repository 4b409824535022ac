"""Objects in a torch file other than tensors: the closed table of classes that are written back unchanged.

A class is in the table where its objects are data: what they are pickled from says all of them, and making one runs no
code but its own constructor on plain values.  Nothing is imported to write one.  `weights_only` says what
`torch.load(weights_only=True)` takes by default (torch/_weights_only_unpickler.py, `_get_allowed_globals`, 2.13).

Sources of how each is pickled: CPython 3.8 to 3.13, `__reduce__` and `__reduce_ex__` of Lib/argparse.py (object's own),
Modules/_collectionsmodule.c, Lib/pathlib, Lib/_pydatetime.py, Lib/_pydecimal.py, Lib/fractions.py, Lib/uuid.py,
Objects/rangeobject.c, Objects/sliceobject.c, Objects/setobject.c, Objects/namespaceobject.c; NumPy 1.26 and 2.4 as in
`_numpy_values`; torch/serialization.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from math import prod
from struct import unpack_from
from typing import Any

from paramtool.formats.pickle.numpy_values import DTYPE, SPELLINGS
from paramtool.formats.torch.globals import KNOWN, LAYOUT
from paramtool.lazy_dataclass import frozen
from paramtool.model.objects import (
    STREAM,
    Array,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    complex_number,
    content_of,
    items_of,
    part,
)
from paramtool.model.view import Shape

ARRAYS = frozenset(f"{spelling}._reconstruct" for spelling in SPELLINGS)
SCALARS = frozenset(f"{spelling}.scalar" for spelling in SPELLINGS)
VERSION = "torch.torch_version.TorchVersion"
"""The class of `torch.__version__`, a subclass of str (torch/torch_version.py)."""
FACTORIES = frozenset(f"builtins.{name}" for name in ("list", "dict", "int", "set", "float"))
"""The factories that a defaultdict may have."""

Args = tuple[Node, ...]


@frozen
class ClassForm:
    """How objects of one class are pickled, and their arguments and attributes."""

    fits: Callable[[Args], bool]
    """Whether arguments have the number and the types that the class takes."""
    plain: Callable[[Opaque], Node | None]
    """The object as a dict, list, number or string; None if its data is invalid."""
    new: bool = False
    """Made by NEWOBJ, without a call of the constructor; otherwise by REDUCE."""
    state: Callable[[Node], bool] = lambda state: False
    """Whether it can be in such a state, where a pickle gives it one: attributes are a dict with names as keys."""
    weights_only: bool = False


def args_of(node: Opaque) -> Args:
    """The arguments that an object is made from."""
    args = part(node, "args")
    return items_of(args)


def attributes_of(node: Opaque) -> Mapping:
    """The attributes of an object, which may be none."""
    state = part(node, "state")
    return state if isinstance(state, Mapping) else Mapping("dict", ())


# --- what arguments are ------------------------------------------------------------------------------------------


def _are(*kinds: type) -> Callable[[Args], bool]:
    """Plain values of just these types."""
    return lambda args: len(args) == len(kinds) and all(_is(a, kind) for a, kind in zip(args, kinds, strict=True))


def _is(node: Node, *kinds: type) -> bool:
    return isinstance(node, Leaf) and type(node.value) in kinds


def _makes(fits: Callable[[Args], bool], made: Callable[..., object]) -> Callable[[Args], bool]:
    """Arguments of the right types that the class does not refuse: a pickle with others would not open."""

    def makes(args: Args) -> bool:
        try:
            return fits(args) and made(*map(_value, args)) is not None
        except (TypeError, ValueError, OverflowError, ArithmeticError, LookupError):
            return False

    return makes


def _datetime(name: str) -> Callable[..., object]:
    """A class of the standard library's `datetime`, which is imported when one of its objects is met."""

    def made(*args: object) -> object:
        import datetime

        return getattr(datetime, name)(*args)

    return made


def _decimal(text: str) -> object:
    import decimal

    return decimal.Decimal(text)


def _nothing(args: Args) -> bool:
    return not args


def _strings(args: Args) -> bool:
    return all(_is(one, str) for one in args)


def _whole_numbers(args: Args) -> bool:
    return 1 <= len(args) <= 3 and all(_is(one, int) for one in args)


def _limits(args: Args) -> bool:
    return len(args) == 3 and all(isinstance(one, Leaf) for one in args)


def _packed(nbytes: int, name: str, zone: bool = False) -> Callable[[Args], bool]:
    """The bytes of a date or time, and the zone that it may have."""

    def fits(args: Args) -> bool:
        data = args[0] if args else None
        if not isinstance(data, Leaf) or not isinstance(data.value, bytes) or len(data.value) != nbytes:
            return False
        zoned = len(args) == 2 and zone and (args[1] == Leaf(None) or _is_zone(args[1]))
        return (len(args) == 1 or zoned) and _makes(lambda _: True, _datetime(name))(args[:1])

    return fits


def _is_zone(node: Node) -> bool:
    return isinstance(node, Opaque) and node.path == "datetime.timezone" and unfit(node) == ""


def _zone(args: Args) -> bool:
    shift = args[0] if args else None
    named = len(args) == 1 or (len(args) == 2 and _is(args[1], str))
    if not named or not isinstance(shift, Opaque) or shift.path != "datetime.timedelta" or unfit(shift):
        return False
    days, seconds, microseconds = map(int, _values(shift))
    return abs((days * 86_400 + seconds) * 1_000_000 + microseconds) < 86_400_000_000


def _fraction(args: Args) -> bool:
    """Two numbers, or the string as which a fraction is pickled; other strings, such as `1e999999999`, are too slow."""
    if _are(int, int)(args):
        return bool(_value(args[1]))
    found = re.fullmatch(r"-?[0-9]{1,4000}(?:/([0-9]{1,4000}))?", str(_value(args[0]))) if _are(str)(args) else None
    return found is not None and (found[1] is None or int(found[1]) > 0)


def _complex(args: Args) -> bool:
    return all(_is(one, int, float) for one in args) and len(args) <= 2


def _buffer(args: Args) -> bool:
    return _nothing(args) or _are(bytes)(args) or (_are(str, str)(args) and _value(args[1]) in ("latin1", "latin-1"))


DEVICES = frozenset(("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia",
                     "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone"))  # fmt: skip
"""c10/core/DeviceType.cpp (2.13)."""
LAYOUTS = frozenset(f"torch.{name}" for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr",
                                                 "sparse_bsc", "_mkldnn", "jagged"))  # fmt: skip


def _device(args: Args) -> bool:
    """`cuda`, `cuda:1`, or `cuda` and 1."""
    words = [str(_value(one)) for one in args]
    if _are(str)(args):
        kind, colon, index = words[0].partition(":")
        words = [kind, index] if colon else [kind]
    elif not _are(str, int)(args):
        return False
    return words[0] in DEVICES and (
        len(words) == 1 or re.fullmatch("0|[1-9][0-9]?|1[01][0-9]|12[0-7]", words[1]) is not None
    )


def _layout(args: Args) -> bool:
    return _are(str)(args) and _value(args[0]) in LAYOUTS


def _are_attributes(state: Node) -> bool:
    named = isinstance(state, Mapping) and state.kind == "dict" and all(isinstance(k, str) for k, _ in state.items)
    return named and getattr(state, "attributes", None) is None


def _is_of_stream(state: Node) -> bool:
    return content_of(Opaque(STREAM, (("state", state),))) is not None


# --- as plain values -----------------------------------------------------------------------------------------------


def _values(node: Opaque) -> list[Any]:
    return [_value(one) for one in args_of(node)]


def _value(node: Node) -> Any:
    return node.value if isinstance(node, Leaf) else None


def _as_dict(node: Opaque) -> Node:
    return Mapping("dict", attributes_of(node).items)


def _as_limits(node: Opaque) -> Node:
    """A range or slice as its three numbers."""
    given = [*args_of(node)]
    start, stop, step = (given * 3)[:3] if len(given) == 3 else (Leaf(0), *given, Leaf(1))[:3]
    return Mapping("dict", (("start", start), ("stop", stop), ("step", step)))


def _as_path(node: Opaque) -> Node:
    """A path as the string that `str()` gives, its parts joined under the first, which may be a root."""
    import posixpath
    from ntpath import join as join_windows

    parts = [str(value) for value in _values(node)]
    join = join_windows if "Windows" in node.path else posixpath.join
    return Leaf(join(*parts) if parts else ".")


def _as_text(node: Opaque) -> Node | None:
    """A date, time, zone, fraction or id as the string that Python gives for it; None if Python refuses the data."""
    import datetime
    import fractions
    import uuid

    try:
        match node.path.rpartition(".")[2]:
            case "Fraction":
                return Leaf(str(fractions.Fraction(*_values(node))))
            case "UUID":
                (number,) = (_value(child) for key, child in attributes_of(node).items if key == "int")
                return Leaf(str(uuid.UUID(int=number)))
            case "timezone":
                return Leaf(str(_real_zone(node)))
            case word:
                data, *zone = args_of(node)
                made = getattr(datetime, word)(_value(data), *map(_real_zone, zone))
                return Leaf(made.isoformat())
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return None


def _real_zone(node: Node) -> object:
    """A zone of the standard library."""
    import datetime

    if not isinstance(node, Opaque):
        return None
    shift, *name = args_of(node)
    assert isinstance(shift, Opaque)
    return datetime.timezone(datetime.timedelta(*_values(shift)), *map(_value, name))


def _as_seconds(node: Opaque) -> Node:
    days, seconds, microseconds = _values(node)
    return Leaf(86400 * days + seconds + microseconds / 1_000_000)


def _as_first(node: Opaque) -> Node | None:
    """What an object of one argument is made from."""
    return args_of(node)[0] if args_of(node) else None


def _as_it_is(node: Opaque) -> Node:
    return node


# --- the table -----------------------------------------------------------------------------------------------------

_PATHS = [
    f"{module}.{kind}{system}Path"
    for module in ("pathlib", "pathlib._local")  # Python 3.13 has the second spelling
    for kind in ("", "Pure")
    for system in ("Posix", "Windows")
]
FORMS: dict[str, ClassForm] = {
    "argparse.Namespace": ClassForm(_nothing, _as_dict, new=True, state=_are_attributes),
    "types.SimpleNamespace": ClassForm(_nothing, _as_dict, state=_are_attributes),
    "builtins.range": ClassForm(_makes(_whole_numbers, range), _as_limits),
    "builtins.xrange": ClassForm(_makes(_whole_numbers, range), _as_limits),
    "builtins.slice": ClassForm(_limits, _as_limits),
    **{path: ClassForm(_strings, _as_path) for path in _PATHS},
    "datetime.date": ClassForm(_packed(4, "date"), _as_text),
    "datetime.time": ClassForm(_packed(6, "time", zone=True), _as_text),
    "datetime.datetime": ClassForm(_packed(10, "datetime", zone=True), _as_text),
    "datetime.timedelta": ClassForm(_makes(_are(int, int, int), _datetime("timedelta")), _as_seconds),
    "datetime.timezone": ClassForm(_zone, _as_text),
    "decimal.Decimal": ClassForm(_makes(_are(str), _decimal), _as_first),
    "fractions.Fraction": ClassForm(_fraction, _as_text),
    "uuid.UUID": ClassForm(_nothing, _as_text, new=True, state=_are_attributes),
    STREAM: ClassForm(_nothing, content_of, new=True, state=_is_of_stream),
    "builtins.complex": ClassForm(_makes(_complex, complex), _as_it_is, weights_only=True),
    "builtins.bytearray": ClassForm(_buffer, _as_it_is, weights_only=True),
    "torch.device": ClassForm(_device, _as_it_is, weights_only=True),
    LAYOUT: ClassForm(_layout, _as_it_is, weights_only=True),
    VERSION: ClassForm(_are(str), _as_first, new=True),
}
"""Objects by their class."""

NAMES = frozenset(
    {f"builtins.{n}" for n in ("list", "dict", "int", "set", "float", "str", "bool", "tuple", "bytes", "complex")}
    | {f"collections.{name}" for name in ("OrderedDict", "defaultdict", "deque", "Counter")}
    | {"numpy.ndarray", "torch.Size", "builtins.frozenset", DTYPE}
)
"""Classes that may be named, and not called; beside those of torch and NumPy in `KNOWN`."""


def is_name(path: str) -> bool:
    """Whether a class or word may be written by its name alone."""
    return path in NAMES or path in KNOWN or path in FORMS


def spoken_class(path: str) -> str:
    """A class by its usual name, from the name that pickles use."""
    if path in ARRAYS:
        return "numpy.ndarray"
    if path in SCALARS:
        return "NumPy scalar"
    return path.removeprefix("builtins.").replace("xrange", "range")


def unfit(node: Opaque) -> str:
    """Why an object is not written unchanged; empty if it is."""
    if node.path in ARRAYS or node.path in SCALARS:
        parts = dict(node.parts)
        data, dtype = parts.get("data"), parts.get("dtype")
        if isinstance(data, TensorRef):
            return "" if set(parts) <= {"data", "order"} else f"{node.path} with other arguments than it takes"
        if not isinstance(data, Array) or not set(parts) <= {"data", "dtype", "order"}:
            return f"{node.path} with other arguments than it takes"
        if dtype is not None and not _is_dtype(dtype):
            return f"NumPy array of {data.dtype}"
        size = _size(data.dtype if dtype is None else dtype)
        if size is None:
            return f"NumPy array of {data.dtype}"
        if node.path in SCALARS and data.shape:
            return f"{node.path} with other arguments than it takes"
        if min(data.shape, default=0) < 0 or data.order not in ("C", "F") or len(data.data) != size * prod(data.shape):
            return f"NumPy array of {len(data.data)} bytes, where {data.dtype} {list(data.shape)} has others"
        return ""
    if node.path == DTYPE:
        return "" if _is_dtype(node) else "a numpy.dtype of an unknown form"
    if not node.parts:
        return "" if is_name(node.path) else f"the class {node.path}"
    form = FORMS.get(node.path)
    if form is None:
        return f"object of {node.path}"
    both = form.fits is _nothing and len(node.parts) > 1  # no arguments, and attributes: told by the attributes alone
    if both or set(dict(node.parts)) - {"args", "state"} or not form.fits(args_of(node)):
        return f"{node.path} with other arguments than it takes"
    state = part(node, "state")
    if state is not None and not form.state(state):
        return f"{node.path} with attributes that it does not have"
    return ""


_TEXT = re.compile(r"[<>|=]?(?:(b1?|\?)|([iu])([1248])|f([248])|c(8|16)|([USV])([0-9]{1,9})|([Mm])8)")


def _size(dtype: str | Node) -> int | None:
    """The bytes of an element of a NumPy dtype; None if it is not one, or holds Python objects.

    >>> [_size(text) for text in ("<f4", "|b1", "<U2", "|O", "<f3", "<M8")]
    [4, 1, 8, None, None, 8]
    """
    if isinstance(dtype, Opaque):
        parts = dict(dtype.parts)
        text = parts.get("text") or args_of(dtype)[0]
        return _size(str(_value(text)))
    found = _TEXT.fullmatch(dtype) if isinstance(dtype, str) else None
    if found is None:
        return None
    truth, _, whole, fraction, both, letter, many, _ = found.groups()
    if letter:
        return int(many) * (4 if letter == "U" else 1)
    return 1 if truth else int(whole or fraction or both or 8)


def _is_dtype(node: Node) -> bool:
    """Whether a node is a NumPy dtype that holds no Python objects."""
    if not isinstance(node, Opaque) or node.path != DTYPE:
        return False
    parts = dict(node.parts)
    if set(parts) == {"text"}:
        text = parts["text"]
        return isinstance(text, Leaf) and isinstance(text.value, str) and text.value.lstrip("<>|=")[:1] not in ("O", "")
    args, state = parts.get("args"), parts.get("state")
    if not isinstance(args, Sequence) or len(args.items) != 3 or not isinstance(state, Sequence):
        return False
    code, *flags = args.items
    coded = isinstance(code, Leaf) and isinstance(code.value, str) and code.value[:1] not in ("O", "")
    return coded and all(_is(flag, bool) for flag in flags) and all(map(_is_dtype_state, state.items))


def _is_dtype_state(node: Node) -> bool:
    """Whether a part of a dtype's state is plain values, and dtypes again."""
    match node:
        case Leaf():
            return True
        case Sequence(kind, items):
            return kind == "tuple" and all(map(_is_dtype_state, items))
        case Mapping(kind, pairs):
            return kind == "dict" and all(isinstance(k, str) and _is_dtype_state(child) for k, child in pairs)
        case Opaque():
            return _is_dtype(node)
    return False


ALLOWED_NAMES = frozenset({"collections.OrderedDict", "collections.Counter", "builtins.bytearray", "builtins.complex",
                           "builtins.set", "torch.device"})  # fmt: skip
"""Classes that `torch.load(weights_only=True)` takes by name; so are those of torch that have no row above."""


def takes_weights_only(node: Opaque) -> bool:
    """Whether `torch.load(weights_only=True)` takes an object that fits."""
    if not node.parts:  # `_get_allowed_globals` in torch/_weights_only_unpickler.py of 2.13
        return node.path in ALLOWED_NAMES or (node.path.startswith("torch.") and node.path not in FORMS)
    form = FORMS.get(node.path)
    return form is not None and form.weights_only


def as_plain(node: Opaque) -> Node | None:
    """An object that fits as a dict, list, number, string or tensor; None where it has no such form."""
    if node.path in ARRAYS:
        data = dict(node.parts)["data"]
        return data if isinstance(data, TensorRef) else _elements(data, part(node, "dtype"))
    if node.path in SCALARS:
        return _elements(dict(node.parts)["data"], part(node, "dtype"))
    if node.path == DTYPE:
        parts = dict(node.parts)
        return parts.get("text") or Leaf(str(_values(node)[0]))
    if not node.parts:
        return node if takes_weights_only(node) else Leaf(node.path)
    form = FORMS.get(node.path)
    return form.plain(node) if form else Leaf(node.path)


_CODES = {"b": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q",
          "f2": "e", "f4": "f", "f8": "d"}  # fmt: skip
"""NumPy's codes of numbers, and struct's."""


def _elements(node: Node, dtype: Node | None) -> Node | None:
    """An array as nested lists of numbers or strings, or its one element; None for records.

    `dtype` says what the array's own string does not: the unit of dates, which become strings.
    """
    if not isinstance(node, Array):
        return None
    if dtype is not None:
        # Dates (ISO 8601) and spans of time (`25 seconds`) of NumPy's as strings; None for anything else
        state = part(dtype, "state")
        unit = state.items[8] if isinstance(state, Sequence) and len(state.items) == 9 else None
        if node.dtype[1:] not in ("M8", "m8") or not isinstance(unit, Sequence) or len(unit.items) != 2:
            return None
        numbers = unit.items[1]
        name, count = (_value(part) for part in numbers.items[:2]) if isinstance(numbers, Sequence) else ("", 0)
        if not isinstance(name, bytes) or type(count) is not int:
            return None
        import numpy as np

        try:
            found = np.frombuffer(node.data, np.dtype(f"{node.dtype}[{count}{name.decode('ascii')}]"))
        except (TypeError, ValueError):
            return None
        return _nested([Leaf(str(one)) for one in found], node.shape, node.order)
    order, code = (node.dtype[0], node.dtype[1:]) if node.dtype[:1] in "<>|=" else ("|", node.dtype)
    size = len(node.data) // max(prod(node.shape), 1)
    reader = _reader(code, ">" if order == ">" else "<")
    if reader is None or size * prod(node.shape) != len(node.data):
        return None
    try:
        flat = [reader(node.data[k * size : (k + 1) * size]) for k in range(prod(node.shape))]
    except (ValueError, OverflowError):
        return None
    nodes = [complex_number(one) if isinstance(one, complex) else Leaf(one) for one in flat]
    return _nested(nodes, node.shape, node.order)


def _reader(code: str, order: str) -> Callable[[bytes], str | bytes | int | float | complex] | None:
    if code[:1] == "U":
        return lambda data: data.decode("utf-32-le" if order == "<" else "utf-32-be").rstrip("\0")
    if code[:1] == "S":
        return lambda data: data.rstrip(b"\0")
    if code in ("c8", "c16"):
        part = "f" if code == "c8" else "d"
        return lambda data: complex(*unpack_from(f"{order}2{part}", data))
    letter = _CODES.get("b" if code == "b1" else code)
    if letter is None:
        return None
    return lambda data: unpack_from(f"{order}{letter}", data)[0]


def _nested(flat: Seq[Node], shape: Shape, order: str) -> Node:
    """Elements in the order of their bytes as nested lists."""
    if not shape:
        return flat[0]
    rest = shape[1:]
    if order == "F":
        rows: Iterable[Seq[Node]] = (flat[k :: shape[0]] for k in range(shape[0]))
    else:
        count = prod(rest)
        rows = (flat[k * count : (k + 1) * count] for k in range(shape[0]))
    return Sequence("list", tuple(_nested(row, rest, order) for row in rows))
