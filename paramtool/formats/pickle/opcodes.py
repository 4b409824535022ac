"""The effect of each pickle opcode on the machine, and the calls of the standard library that are supported."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from paramtool.errors import ParamtoolError, plural
from paramtool.formats.pickle._enum_classes import VALUE_CLASSES
from paramtool.formats.pickle.machine import HANDLERS, MAX_DIGITS, MAX_NAME_NBYTES, ONE_BYTE, SPECIAL, Handler, Machine
from paramtool.formats.pickle.values import (
    CALLS_ITS_FIRST,
    INERT,
    MAPPINGS,
    Global,
    Instance,
    PickledSpan,
    preview,
    shown,
    unescape,
)

if TYPE_CHECKING:
    from paramtool.formats.pickle.machine import Machine

# -- opcodes -------------------------------------------------------------------------------------------------
# A handler gets the machine and the index after its opcode, and gives the index of the next opcode.


def unknown_opcode(machine: Machine, at: int) -> int:
    machine.fail(f"the opcode {machine.data[at - 1]:#04x}", "one of protocols 0 to 5")


HANDLERS.extend([unknown_opcode] * 256)


def _opcode(letters: bytes) -> Callable[[Handler], Handler]:
    """Enter a handler into the table."""

    def enter(handler: Handler) -> Handler:
        for code in letters:
            HANDLERS[code] = handler
        return handler

    return enter


def _constant(letter: bytes, value: object) -> None:
    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        machine.stack.append(value)
        return at


def _container(letter: bytes, make: Callable[[], object]) -> None:
    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        machine.objects += 1
        machine.stack.append(make())
        return at


def _fixed(letter: bytes, form: str) -> None:
    """An opcode that pushes a number of fixed size."""
    struct = Struct(form)
    unpack, nbytes = struct.unpack, struct.size

    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        machine.stack.append(unpack(machine.data[at : at + nbytes])[0])
        return at + nbytes


def _counted(letter: bytes, form: str, make: Callable[[bytes], object], written: str = "") -> None:
    """An opcode with a length and that many bytes; `written` as `PickledSpan.form`."""
    struct = Struct(form)
    unpack, width = struct.unpack, struct.size

    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        at += width
        nbytes: int = unpack(machine.data[at - width : at])[0]
        if not 0 <= nbytes <= machine.end - at:
            machine.truncated()
        if machine.spans and _is_left(machine, at, nbytes, make):
            machine.stack.append(machine.span(at, at + nbytes, written, make))
        else:
            machine.stack.append(make(machine.data[at : at + nbytes]))
        return at + nbytes


def _is_left(machine: Machine, at: int, nbytes: int, make: Callable[[bytes], object]) -> bool:
    """Whether a string stays in the data: bytes, a long text, and a string of Python 2 that is no short text."""
    if make is _text or nbytes > LONG_TEXT:
        return nbytes > LONG_TEXT
    return make is not _old_text or not re.fullmatch(PRINTABLE, machine.data[at : at + nbytes])


LONG_TEXT = 1024
PRINTABLE = rb"[\t\n\r -~]*"


def _text(raw: bytes) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _old_text(raw: bytes) -> str:
    """A Python 2 string, which might be text or bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _bytearray(raw: bytes) -> Instance:
    return Instance("builtins.bytearray", (raw,), False)


def _empty_set() -> Instance:
    made = Instance("builtins.set", (), False)
    made.sequence = []
    return made


_constant(b"N", None)
_constant(b"\x88", True)
_constant(b"\x89", False)
_constant(b")", ())
_container(b"]", list)
_container(b"}", dict)
_container(b"\x8f", _empty_set)
_fixed(b"J", "<i")
_fixed(b"K", "<B")
_fixed(b"M", "<H")
_fixed(b"G", ">d")
_counted(b"X", "<I", _text, "utf8")
_counted(b"\x8c", "<B", _text, "utf8")
_counted(b"\x8d", "<Q", _text, "utf8")
_counted(b"T", "<i", _old_text)
_counted(b"U", "<B", _old_text)
_counted(b"B", "<I", bytes)
_counted(b"C", "<B", bytes)
_counted(b"\x8e", "<Q", bytes)
_counted(b"\x96", "<Q", _bytearray)


# -- memo and stack


@_opcode(b"h")
def _binget(machine: Machine, at: int) -> int:
    memo, key = machine.memo, machine.data[at]
    machine.stack.append(memo[key] if key < len(memo) else machine.recall(key))
    return at + 1


@_opcode(b"j")
def _long_binget(machine: Machine, at: int) -> int:
    memo, key = machine.memo, U32.unpack(machine.data[at : at + 4])[0]
    machine.stack.append(memo[key] if key < len(memo) else machine.recall(key))
    return at + 4


@_opcode(b"g")
def _get(machine: Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.stack.append(machine.recall(machine.memo_key(text)))
    return at


@_opcode(b"q")
def _binput(machine: Machine, at: int) -> int:
    machine.store(machine.data[at], machine.stack[-1])
    return at + 1


@_opcode(b"r")
def _long_binput(machine: Machine, at: int) -> int:
    memo, key = machine.memo, U32.unpack(machine.data[at : at + 4])[0]
    if key == len(memo) and not machine.sparse:  # as a pickler counts
        memo.append(machine.stack[-1])
    else:
        machine.store(key, machine.stack[-1])
    return at + 4


@_opcode(b"p")
def _put(machine: Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.store(machine.memo_key(text), machine.stack[-1])
    return at


@_opcode(b"\x94")
def _memoize(machine: Machine, at: int) -> int:
    machine.store(len(machine.memo) + len(machine.sparse), machine.stack[-1])
    return at


@_opcode(b"(")
def _mark(machine: Machine, at: int) -> int:
    if stop := run(machine, at - 1):
        return stop
    machine.outer.append(machine.stack)
    machine.stack = []
    return at


@_opcode(b"0")
def _pop(machine: Machine, at: int) -> int:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()
    return at


@_opcode(b"1")
def _pop_mark(machine: Machine, at: int) -> int:
    machine.pop_mark()
    return at


@_opcode(b"2")
def _dup(machine: Machine, at: int) -> int:
    machine.stack.append(machine.stack[-1])
    return at


# -- numbers and text that are written as lines, and big numbers


@_opcode(b"I")
def _int_text(machine: Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    flags = {b"00": False, b"01": True}
    machine.stack.append(flags[text] if text in flags else machine.number(text))
    return at


@_opcode(b"L")
def _long_text(machine: Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.stack.append(machine.number(text.removesuffix(b"L")))
    return at


@_opcode(b"F")
def _float_text(machine: Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    try:
        machine.stack.append(float(text))
    except ValueError:
        machine.fail(f"the text {shown(text[:40].decode('latin-1'))}", "a number")
    return at


@_opcode(b"S")
def _string_text(machine: Machine, at: int) -> int:
    stop = machine.line_end(at, machine.limits.max_nbytes)
    quote = machine.data[at : at + 1]
    if stop - at < 2 or quote not in (b"'", b'"') or quote != machine.data[stop - 1 : stop]:
        machine.fail("a string without quotes", "quotes")
    if machine.spans and stop - at > LONG_TEXT:
        machine.stack.append(machine.span(at + 1, stop - 1, "string", _string))
        return stop + 1
    try:
        machine.stack.append(_string(machine.data[at + 1 : stop - 1]))
    except (ValueError, KeyError):
        machine.fail("a string with an unknown escape", "one as Python 2 writes it")
    return stop + 1


def _string(raw: bytes) -> str:
    return _old_text(unescape(raw))


def _quoted(raw: bytes) -> str:
    if len(raw) < 2 or raw[:1] not in (b"'", b'"') or raw[:1] != raw[-1:]:
        raise ValueError(raw)
    return _string(raw[1:-1])


@_opcode(b"V")
def _unicode_text(machine: Machine, at: int) -> int:
    stop = machine.line_end(at, machine.limits.max_nbytes)
    if machine.spans and stop - at > LONG_TEXT:
        machine.stack.append(machine.span(at, stop, "unicode", _escaped))
    else:
        machine.stack.append(_escaped(machine.data[at:stop]))
    return stop + 1


def _escaped(raw: bytes) -> str:
    return raw.decode("raw-unicode-escape")


TEXTS: dict[int, Callable[[bytes], str]] = {
    **dict.fromkeys(b"X\x8c\x8d", _text), **dict.fromkeys(b"TU", _old_text), ord("S"): _quoted, ord("V"): _escaped,
}  # fmt: skip
"""What the opcodes of texts make of their bytes."""


@_opcode(b"\x8a")
def _long1(machine: Machine, at: int) -> int:
    return _long(machine, machine.data[at], at + 1)


@_opcode(b"\x8b")
def _long4(machine: Machine, at: int) -> int:
    return _long(machine, I32.unpack(machine.data[at : at + 4])[0], at + 4)


def _long(machine: Machine, nbytes: int, at: int) -> int:
    if nbytes < 0:
        machine.fail("a negative length", "a length")
    if nbytes > machine.limits.max_int_nbytes:
        machine.unsafe(f"a number of {nbytes:,} bytes", f"at most {machine.limits.max_int_nbytes:,}")
    machine.stack.append(int.from_bytes(machine.take(at, nbytes), "little", signed=True))
    return at + nbytes


# -- tuples, lists, dicts, sets


@_opcode(b"t")
def _tuple(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(tuple(items))
    return at


def _tuple_of(letter: bytes, size: int) -> None:
    """An opcode that makes a tuple of the last `size` values."""

    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        items = tuple(machine.stack[-size:])
        if len(items) < size:
            raise IndexError
        machine.objects += 1
        machine.stack[-size:] = [items]
        return at


_tuple_of(b"\x85", 1)
_tuple_of(b"\x86", 2)
_tuple_of(b"\x87", 3)


@_opcode(b"l")
def _list(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(items)
    return at


@_opcode(b"d")
def _dict(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    made: dict[object, object] = {}
    machine.set_items(made, items)
    machine.stack.append(made)
    return at


@_opcode(b"\x91")
def _frozenset(machine: Machine, at: int) -> int:
    made = Instance("builtins.frozenset", (), False)
    made.sequence = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(made)
    return at


@_opcode(b"a")
def _append(machine: Machine, at: int) -> int:
    item = machine.stack.pop()
    machine.append(machine.stack[-1], [item])
    return at


@_opcode(b"e\x90")
def _appends(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.append(machine.stack[-1], items)
    return at


@_opcode(b"s")
def _setitem(machine: Machine, at: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items(machine.stack[-1], [key, value])
    return at


@_opcode(b"u")
def _setitems(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.set_items(machine.stack[-1], items)
    return at


# -- names and objects


@_opcode(b"c")
def _global(machine: Machine, at: int) -> int:
    found, at = _named_by_lines(machine, at)
    machine.stack.append(found)
    return at


def _named_by_lines(machine: Machine, at: int) -> tuple[Global, int]:
    module, middle = machine.line(at, MAX_NAME_NBYTES)
    name, stop = machine.line(middle, MAX_NAME_NBYTES)
    return machine.name(module.decode(), name.decode()), stop


@_opcode(b"\x93")
def _stack_global(machine: Machine, at: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        machine.fail("a global named by something else than text", "a module and a name")
    machine.stack.append(machine.name(module, name))
    return at


@_opcode(b"R")
def _reduce(machine: Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = machine.call(machine.stack[-1], args)
    return at


@_opcode(b"\x81")
def _newobj(machine: Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = machine.new(machine.stack[-1], args, {})
    return at


@_opcode(b"\x92")
def _newobj_ex(machine: Machine, at: int) -> int:
    kwargs, args = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1] = machine.new(machine.stack[-1], args, kwargs)
    return at


@_opcode(b"o")
def _obj(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    if not items:
        machine.fail("an object without a class", "one")
    machine.stack.append(machine.call(items[0], tuple(items[1:])))
    return at


@_opcode(b"i")
def _inst(machine: Machine, at: int) -> int:
    items = machine.pop_mark()
    cls, at = _named_by_lines(machine, at)
    machine.stack.append(machine.call(cls, tuple(items)))
    return at


@_opcode(b"b")
def _build(machine: Machine, at: int) -> int:
    state = machine.stack.pop()
    machine.build(machine.stack[-1], state)
    return at


@_opcode(b"Q")
def _binpersid(machine: Machine, at: int) -> int:
    machine.objects += 1
    machine.stack[-1] = machine.guard("persistent id", machine.persistent, (machine.stack[-1],), {})
    return at


@_opcode(b"P")
def _persid(machine: Machine, at: int) -> int:
    machine.fail("a persistent id written as text", "one as torch writes it")


def _extension(letter: bytes, form: str) -> None:
    """A number in a registry that only exists in the program that wrote the pickle."""
    struct = Struct(form)

    @_opcode(letter)
    def push(machine: Machine, at: int) -> int:
        (number,) = struct.unpack(machine.data[at : at + struct.size])
        machine.stack.append(machine.name("copyreg.extension", str(number)))
        return at + struct.size


_extension(b"\x82", "<B")
_extension(b"\x83", "<H")
_extension(b"\x84", "<i")


# -- the outer form


@_opcode(b"\x80")
def _proto(machine: Machine, at: int) -> int:
    if machine.data[at] > 5:
        machine.fail(f"protocol {machine.data[at]}", "0 to 5")
    return at + 1


@_opcode(b"\x95")
def _frame(machine: Machine, at: int) -> int:
    """A frame only helps to read ahead; its length must fit."""
    if U64.unpack(machine.data[at : at + 8])[0] > machine.end - at - 8 and machine.frames:
        machine.truncated()
    return at + 8


@_opcode(b"\x97\x98")
def _buffer(machine: Machine, at: int) -> int:
    machine.fail("a buffer outside the pickle", "all data inside")


U32, I32, U64 = Struct("<I"), Struct("<i"), Struct("<Q")
ONE_BYTE.update(b"hq\x8a\x80")


# -- calls that we know --------------------------------------------------------------------------------------


def _encode(machine: Machine, args: tuple[object, ...]) -> object:
    """`_codecs.encode(text, encoding)`: how protocol 2 stores bytes."""
    text, encoding = args if len(args) == 2 else (None, None)
    if type(text) is PickledSpan and not text.is_bytes and encoding in ("latin1", "latin-1"):
        return text.encoded()
    if type(text) is not str or encoding not in ("latin1", "latin-1", "utf-8"):
        machine.fail("an unusual call of _codecs.encode", "text and latin1 or utf-8")
    machine.spend(len(text))
    return text.encode(encoding)


def _bytes(machine: Machine, args: tuple[object, ...]) -> object:
    """`bytes()`: how protocol 2 stores b''."""
    return machine.inert("builtins.bytes", args) if args else b""


def _reconstructor(machine: Machine, args: tuple[object, ...]) -> object:
    """`copyreg._reconstructor(cls, base, state)`: a bare object, in protocols 0 and 1."""
    if len(args) != 3:
        machine.fail(f"{plural(len(args), 'argument')} of copyreg._reconstructor", "3")
    base = machine.callable_path(args[1])
    if base not in INERT:  # copyreg calls `base.__init__` of any but object
        machine.use(base, True, f" is the base of an object: {preview(args[2])}")
    machine.hand(base, args[2:])
    return machine.bare(machine.callable_path(args[0]), args[1:], {})


def _getattr(machine: Machine, args: tuple[object, ...]) -> object:
    """`getattr(SchedulerType, "LINEAR")`: how Python 3.11.0 to 3.11.3 pickle a member of an enum.

    Up to protocol 3 a class that stands in another is named so, too (Lib/pickle.py, `save_global`).
    """
    cls, name = args if len(args) == 2 else (None, None)
    if type(cls) is Global and type(name) is str and f"{cls.path}.{name}" in machine.constructors:
        return Global(cls.path, name)
    if type(cls) is Global and cls.path in VALUE_CLASSES and type(name) is str and re.fullmatch(MEMBER, name):
        return Instance(f"{cls.path}.{name}", (), False)
    return machine.unknown("builtins.getattr", args)


MEMBER = r"_?[A-Za-z][A-Za-z0-9_]*"
"""The name of a member of an enum."""


def _newobj_call(machine: Machine, args: tuple[object, ...]) -> object:
    """`copyreg.__newobj__(cls, *args)`: NEWOBJ as a call."""
    if not args:
        machine.fail("no arguments of copyreg.__newobj__", "a class")
    return machine.new(args[0], args[1:], {})


SPECIAL |= {
    "_codecs.encode": _encode,
    "builtins.bytes": _bytes,
    "builtins.getattr": _getattr,
    "copyreg._reconstructor": _reconstructor,
    "copyreg.__newobj__": _newobj_call,
}


# --- A tensor as torch pickles it, run in one step -------------------------------------------------------------------
#
# torch.save writes each tensor of a plain state dict with the same thirty opcodes, and a state dict has nothing else:
#
#     f( PERSID( 'storage', type, 'key', 'cpu', numel ), offset, (sizes), (strides), requires_grad, OrderedDict() )
#
# `run` does what these opcodes would do one by one, including the memo, or nothing: then the machine continues with
# the first of them.  So an invalid tensor is reported at the opcode that is wrong.  A test compares both ways.
#
# Source of the form: torch/_tensor.py `_reduce_ex_internal` and torch/serialization.py `persistent_id` (0.4 to 2.13),
# as Lib/pickle.py writes them in protocols 2 and 3.


_INT = rb"(?:K.|M..|J....)"
_GET, _PUT = rb"h(.)", rb"r(....)"
_SIZES = rb"((?:" + _INT + rb"){1,3}[\x85-\x87])" + _PUT
_TENSOR = re.compile(
    rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0([0-9]{1,20})" + _PUT + _GET + rb"(" + _INT + rb")t" + _PUT + rb"Q"
    rb"(" + _INT + rb")" + _SIZES + _SIZES + rb"([\x88\x89])" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
"""From the mark of the arguments to where the tensor is memoized, behind the first 256 places of the memo."""
_KEYS = Struct("<7I")
"""Where in the memo the key, the persistent id, sizes, strides, hooks, arguments and the tensor are put."""
_MANY = 256
"""Places of the memo that an opcode of two bytes can recall."""
_OBJECTS = 7
"""Four tuples, the persistent id and two calls."""


def run(machine: Machine, at: int) -> int:
    """The index after the tensor whose arguments begin at `at`; 0 where they are of another form."""
    data, stack, memo = machine.data, machine.stack, machine.memo
    if type(data) is not bytes or not data.startswith(b"((", at) or not stack or type(stack[-1]) is not Global:
        return 0
    make = None if stack[-1].path in CALLS_ITS_FIRST else machine.constructors.get(stack[-1].path)
    found = _TENSOR.match(data, at, machine.end)
    if make is None or found is None or machine.sparse or len(memo) < _MANY:
        return 0
    (
        kind, type_, key_nbytes, key, put1, location, numel, put2, offset, sizes, put3, strides, put4, requires_grad,
        hooks, put5, put6, put7,
    ) = found.groups()  # fmt: skip
    next_key = len(memo)
    if _KEYS.pack(*range(next_key, next_key + 7)) != b"".join((put1, put2, put3, put4, put5, put6, put7)):
        return 0
    shape, steps, cls = _numbers(sizes), _numbers(strides), memo[hooks[0]]
    if shape is None or steps is None or key_nbytes[0] != len(key) or type(cls) is not Global:
        return 0
    if cls.path not in MAPPINGS or cls.path in machine.constructors:
        return 0
    name = key.decode()
    pid = (memo[kind[0]], memo[type_[0]], name, memo[location[0]], _number(numel))
    empty = machine.inert(cls.path, ())
    try:
        args = (machine.persistent(pid), _number(offset), shape, steps, requires_grad == b"\x88", empty)
        made = make(*args)
    except (ParamtoolError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return 0  # running the opcodes one by one reports the error
    machine.objects += _OBJECTS
    memo += (name, pid, shape, steps, empty, args, made)
    stack[-1] = made
    return found.end()


def _number(opcode: bytes) -> int:
    """The number that an opcode pushes: one or two bytes without a sign, or four with one."""
    return opcode[1] if len(opcode) == 2 else int.from_bytes(opcode[1:], "little", signed=len(opcode) == 5)


@lru_cache(4096)
def _numbers(opcodes: bytes) -> tuple[int, ...] | None:
    """The tuple that opcodes make, whose last opcode gives its length; None if there are more or fewer numbers."""
    found, at = [], 0
    while at < len(opcodes) - 1:
        stop = at + {ord("K"): 2, ord("M"): 3, ord("J"): 5}[opcodes[at]]
        found.append(_number(opcodes[at:stop]))
        at = stop
    return tuple(found) if len(found) == opcodes[-1] - 0x84 else None
