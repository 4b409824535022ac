"""A closed pickle machine.

A pickle is a program for a stack machine.  Ours runs all of protocols 0 to 5, builds plain data and never
imports or calls anything the pickle names: a name becomes a `Global`, a call becomes an `Instance` that keeps
the arguments.  The reader of a format hands in `constructors`, its own functions for the few names it
understands.  Every other name is kept in `Result.uses`, so that people can see what it asks for.

    cposix\\nsystem\\n  'rm -rf'  TUPLE1 REDUCE   ->   Instance("posix.system", ("rm -rf",), called=True)

A hostile pickle must not cost more than its own size: lengths are checked before slicing; stack, memo and
objects have limits; what a pickle makes us copy or hash may not exceed what it holds (`spend`); keys of dicts
are atoms or small tuples of them, and keys that collide on purpose are refused.

Positions are indices into the data that was given, in bytes.  Source: Lib/pickletools.py of CPython 3.13,
which describes every opcode; behaviour as in Modules/_pickle.c.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NoReturn

from paramtool.errors import FormatError, ParamtoolError, UnsafeError

if TYPE_CHECKING:
    from mmap import mmap

    Buffer = bytes | mmap

BATCH = 1 << 16
"""So many opcodes run between two looks at the limits; each adds one entry or object at most."""
MAX_DIGITS = 4300
"""Of a number written as text; CPython's own limit, since int() is quadratic."""
MAX_NAME_NBYTES = 4096
"""Of a module or global name."""
MAX_CROWD = 64
"""So many keys of one dict may have one hash.  Tuples of -1 and -2 all collide: hash(-1) == hash(-2)."""
LONG_KEY = 256
"""Characters from which on a dict key is work that counts."""
SPEND_SLACK = 1024
PREVIEW_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """What one pickle may take before it counts as a bomb."""

    max_nbytes: int = 512 << 20
    max_stack: int = 1_000_000
    """Entries, marks included."""
    max_memo: int = 20_000_000
    max_objects: int = 20_000_000
    """Containers, instances and what constructors make."""
    max_int_nbytes: int = 1024


class Global:
    """A name that the pickle mentions; never looked up.

    Old names are told as the new ones: `__builtin__` is `builtins`, `copy_reg` is `copyreg`.

    >>> Global("__builtin__", "set").path
    'builtins.set'
    """

    __slots__ = ("module", "name", "path")

    def __init__(self, module: str, name: str) -> None:
        self.module = RENAMED.get(module, module)
        self.name = name
        self.path = f"{self.module}.{name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Global) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"<global {_shown(self.path)}>"


class Instance:
    """What is left of an object that is not plain data: its class or callable and what was put into it."""

    __slots__ = ("args", "called", "kwargs", "mapping", "path", "sequence", "state")

    def __init__(self, path: str, args: tuple[object, ...], called: bool) -> None:
        self.path = path
        self.args = args
        self.called = called
        """True: the pickle calls it (anything might run); False: it only makes an object of a class."""
        self.kwargs: dict[str, object] = {}
        self.mapping: dict[object, object] | None = None
        """Its items, where it was filled like a dict."""
        self.sequence: list[object] | None = None
        """Its items, where it was filled like a list or a set."""
        self.state: object | None = None
        """Its attributes (BUILD); a list of states where there were several and not all were dicts."""

    def __repr__(self) -> str:
        return f"<instance of {_shown(self.path)}>"


@dataclass(frozen=True, slots=True)
class Use:
    """An unknown name and the strongest thing the pickle does with it."""

    path: str
    called: bool
    arguments: str
    """A short safe preview of the first call's arguments, at most 80 characters; empty if not called."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one pickle holds."""

    value: object
    stop: int
    """Index just after its STOP: where the next of several stacked pickles starts."""
    uses: tuple[Use, ...]
    """Unknown names, one each, in order of first mention."""


def load(
    data: Buffer,
    start: int,
    where: str,
    constructors: Mapping[str, Callable[..., object]],
    persistent: Callable[[object], object],
    limits: Limits = Limits(),
    known: Container[str] = (),
) -> Result:
    """Run the pickle that starts at `data[start]`.

    `constructors` maps a path such as `torch._utils._rebuild_tensor_v2` to what makes its value; a value with
    a method `build(state)` gets its BUILDs.  A value may become a key of a dict: its hash must be cheap and
    must not follow what the pickle put inside.  `persistent` resolves persistent ids.  `known` are paths that
    may be mentioned freely; a call of one is still unknown.

    Values are None, bool, int, float, str, bytes, list, tuple, dict, `Global`, `Instance` and what
    constructors made.  A Python 2 string becomes a str: UTF-8 if it is, else Latin-1.

    Raises FormatError for damage and UnsafeError for bombs; a ParamtoolError of a constructor passes.
    """
    machine = _Machine(data, start, where, constructors, persistent, limits, known)
    return machine.run()


RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}

MAPPINGS = frozenset({"collections.OrderedDict", "collections.defaultdict", "collections.Counter"})
"""Filled like a dict."""
SEQUENCES = frozenset({"builtins.set", "builtins.frozenset", "collections.deque"})
"""Filled like a list."""
INERT = (
    MAPPINGS
    | SEQUENCES
    | {f"builtins.{name}" for name in ("int", "float", "complex", "bool", "str", "bytes", "bytearray", "object")}
    | {f"builtins.{name}" for name in ("list", "dict", "tuple", "slice", "range", "xrange")}
    | {
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in ("PurePosixPath", "PosixPath", "PureWindowsPath", "WindowsPath")
    }
    | {f"datetime.{name}" for name in ("date", "time", "datetime", "timedelta", "timezone")}
    | {"decimal.Decimal", "fractions.Fraction", "uuid.UUID"}
)
"""Classes of the standard library that do nothing but hold their arguments."""

ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


class _Machine:
    """The state of one run.

    Marks nest stacks: `outer` holds those below the open marks.  Memo keys are dense as a rule (0, 1, 2
    and so on), so `memo` is a list; `sparse` holds keys beyond its end.
    """

    __slots__ = (
        "constructors",
        "copied",
        "crowds",
        "data",
        "end",
        "known",
        "limits",
        "memo",
        "names",
        "objects",
        "outer",
        "persistent",
        "position",
        "sparse",
        "stack",
        "start",
        "uses",
        "where",
    )

    def __init__(
        self,
        data: Buffer,
        start: int,
        where: str,
        constructors: Mapping[str, Callable[..., object]],
        persistent: Callable[[object], object],
        limits: Limits,
        known: Container[str],
    ) -> None:
        self.data = data
        self.start = self.position = start
        self.end = min(len(data), start + limits.max_nbytes)
        self.where = where
        self.constructors = constructors
        self.persistent = persistent
        self.limits = limits
        self.known = known
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: list[object] = []
        self.sparse: dict[int, object] = {}
        self.names: dict[object, Global] = {}
        self.uses: dict[str, Use] = {}
        self.crowds: dict[tuple[int, int], int] = {}
        self.objects = self.copied = 0

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run up to STOP."""
        try:
            stop = self._run()
            return Result(self.stack.pop(), stop, tuple(self.uses.values()))
        except IndexError:
            if self.position + 1 >= self.end and self.data[self.position] in ONE_BYTE:
                self.truncated()
            self.fail("an empty stack", "as many values as the opcode takes")
        except StructError:
            self.truncated()
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            self.fail(f"text that cannot be decoded ({error.reason})", "sound text")
        except RecursionError:
            self.unsafe("data nested too deep to compare", "less")

    def _run(self) -> int:
        """Run up to STOP; the index after it.  `run` knows the built-in errors that damage may raise here."""
        data, end, handlers, at = self.data, self.end, HANDLERS, self.start
        while True:
            for _ in range(BATCH):
                if at >= end:
                    self.position = end
                    self.truncated()
                self.position = at
                code = data[at]
                if code == STOP:
                    self.check_limits()
                    return at + 1
                at = handlers[code](self, at + 1)
            self.check_limits()

    def check_limits(self) -> None:
        """Compare what is used with the limits."""
        limits = self.limits
        entries = len(self.stack) + sum(map(len, self.outer)) + len(self.outer)
        for what, count, limit in (
            ("stack entries", entries, limits.max_stack),
            ("memo entries", len(self.memo) + len(self.sparse), limits.max_memo),
            ("objects", self.objects, limits.max_objects),
        ):
            if count > limit:
                self.unsafe(f"{count:,} {what}", f"at most {limit:,}")

    def spend(self, count: int) -> None:
        """Account for work that is not paid for by bytes of the pickle: copies of what it memoized."""
        self.copied += count
        if self.copied > self.position - self.start + SPEND_SLACK:
            self.unsafe("the same data repeated without end", "each value about once")

    def fail(self, found: str, expected: str) -> NoReturn:
        raise FormatError(f"{self.where}: pickle byte {self.position}: found {found}, expected {expected}")

    def unsafe(self, found: str, expected: str) -> NoReturn:
        raise UnsafeError(f"{self.where}: pickle byte {self.position}: found {found}, expected {expected}")

    def truncated(self) -> NoReturn:
        if self.end < len(self.data):
            self.unsafe("no end of the pickle", f"at most {self.limits.max_nbytes:,} bytes")
        self.fail("the end of the data", "the rest of the pickle")

    # -- reading ---------------------------------------------------------------------------------------------

    def take(self, at: int, nbytes: int) -> bytes:
        """`nbytes` bytes of the data."""
        if nbytes > self.end - at:
            self.truncated()
        return self.data[at : at + nbytes]

    def line(self, at: int, limit: int) -> tuple[bytes, int]:
        """The text up to a newline and the index after it; at most `limit` bytes."""
        stop = self.data.find(b"\n", at, min(self.end, at + limit + 1))
        if stop < 0 and self.end - at > limit:
            self.fail(f"a line of more than {limit:,} bytes", "a shorter one")
        if stop < 0:
            self.truncated()
        return self.data[at:stop], stop + 1

    def number(self, text: bytes) -> int:
        try:
            return int(text)
        except ValueError:
            self.fail(f"the text {_shown(text[:40].decode('latin-1'))}", "a whole number")

    def memo_key(self, text: bytes) -> int:
        key = self.number(text)
        if not 0 <= key < 1 << 32:
            self.fail("a memo key out of range", "one that fits 32 bits")
        return key

    # -- the stack -------------------------------------------------------------------------------------------

    def store(self, key: int, value: object) -> None:
        """Memoize `value`."""
        memo = self.memo
        if key == len(memo):
            memo.append(value)
            self.sparse.pop(key, None)
        elif key < len(memo):
            memo[key] = value
        else:
            self.sparse[key] = value

    def recall(self, key: int) -> object:
        """The value memoized under `key`."""
        try:
            return self.memo[key] if key < len(self.memo) else self.sparse[key]
        except KeyError:
            self.fail(f"memo key {key}", "one that was stored")

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self.outer:
            self.fail("no mark on the stack", "one")
        items = self.stack
        self.stack = self.outer.pop()
        return items

    # -- names -----------------------------------------------------------------------------------------------

    def name(self, module: str, name: str) -> Global:
        """The global of that name; the first mention of an unknown one is a use."""
        found = self.names.get((module, name))
        if found is not None:
            return found
        if len(module) + len(name) > MAX_NAME_NBYTES:
            self.fail("a global name of great length", f"at most {MAX_NAME_NBYTES:,} characters")
        made = self.names[module, name] = Global(module, name)
        if not self.is_known(made.path) and made.path not in self.known:
            self.use(made.path, False, "")
        return made

    def is_known(self, path: str) -> bool:
        return path in self.constructors or path in INERT or path in SPECIAL

    def use(self, path: str, called: bool, arguments: str) -> None:
        """Note what is done with an unknown name; a call outweighs a mention."""
        old = self.uses.get(path)
        if old is None or (called and not old.called):
            self.uses[path] = Use(path, called, arguments)

    # -- objects ---------------------------------------------------------------------------------------------

    def call(self, callee: object, args: object) -> object:
        """What REDUCE, OBJ and INST push: `callee(*args)` if we know it, else a record of it."""
        args = self.arguments(args)
        self.objects += 1
        path = self.callable_path(callee)
        make = self.constructors.get(path)
        if make is not None:
            return self.guard(path, make, args, {})
        special = SPECIAL.get(path)
        if special is not None:
            return special(self, args)
        if path in INERT:
            return self.inert(path, args)
        self.use(path, True, preview(args))
        return Instance(path, args, True)

    def new(self, cls: object, args: object, kwargs: object) -> object:
        """What NEWOBJ pushes: a bare object of class `cls`."""
        args = self.arguments(args)
        if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
            self.fail("keyword arguments that are none", "a dict with names as keys")
        self.objects += 1
        path = self.callable_path(cls)
        make = self.constructors.get(path)
        if make is not None:
            return self.guard(path, make, args, kwargs)
        return self.bare(path, args, kwargs)

    def bare(self, path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Instance:
        """An instance made without a call."""
        if path in INERT:
            made = self.inert(path, args)
        else:
            self.use(path, False, "")
            made = Instance(path, args, False)
        made.kwargs = kwargs
        return made

    def inert(self, path: str, args: tuple[object, ...]) -> Instance:
        """An instance of a class that only holds data, with the items that its arguments bring."""
        made = Instance(path, args, False)
        items = args[0] if args else None
        if path in MAPPINGS:
            made.mapping = {}
            if type(items) is dict:
                self.spend(len(items))
                made.mapping.update(items)
            elif type(items) in (list, tuple):
                self.fill(made.mapping, items)
        elif path in SEQUENCES and type(items) in (list, tuple):
            self.spend(len(items))  # type: ignore[arg-type]  # mypy does not narrow by `type(x) in`
            made.sequence = list(items)  # type: ignore[call-overload]
        return made

    def fill(self, target: dict[object, object], pairs: Any) -> None:
        """Add (key, value) pairs, as `OrderedDict([[key, value], ...])` of Python 2 does."""
        self.spend(len(pairs))
        for pair in pairs:
            if type(pair) not in (list, tuple) or len(pair) != 2:
                self.fail("an item that is no pair", "a key and a value")
            self.check_key(target, pair[0])
            target[pair[0]] = pair[1]

    def arguments(self, args: object) -> tuple[object, ...]:
        if type(args) is not tuple:
            self.fail(f"arguments of type {type(args).__name__}", "a tuple")
        return args

    def callable_path(self, callee: object) -> str:
        """The name of what is called; the result of an unknown call is told as `path()`."""
        if type(callee) is Global:
            return callee.path
        if type(callee) is not Instance:
            self.fail(f"a call of a {type(callee).__name__}", "a global")
        return callee.path if callee.path.endswith("()") else f"{callee.path}()"

    def guard(
        self, path: str, make: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Call one of our own functions; arguments that it cannot take are the pickle's fault."""
        try:
            return make(*args, **kwargs)
        except ParamtoolError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            reason = _shown(str(error)[:200])
            self.fail(f"arguments that {_shown(path)} cannot take ({reason})", "sound ones")

    def build(self, target: object, state: object) -> None:
        """Give `target` its attributes."""
        build = getattr(target, "build", None)
        if build is not None:
            self.guard(f"{type(target).__name__}.build", build, (state,), {})
        elif type(target) is not Instance:
            self.fail(f"attributes for a {type(target).__name__}", "an object")
        elif target.state is None:
            target.state = state
        elif type(target.state) is dict and type(state) is dict:
            self.spend(len(target.state) + len(state))
            target.state = {**target.state, **state}
        else:
            self.objects += 1
            target.state = [target.state, state]

    # -- items -----------------------------------------------------------------------------------------------

    def set_items(self, target: object, items: list[Any]) -> None:
        """Add alternating keys and values to a dict or an instance."""
        if type(target) is Instance:
            if target.mapping is None:
                target.mapping = {}
            target = target.mapping
        if not isinstance(target, dict):
            self.fail(f"items for a {type(target).__name__}", "a dict")
        if len(items) % 2:
            self.fail("a key without a value", "pairs")
        keys = items[::2]
        for key in keys:
            if type(key) is not str or len(key) > LONG_KEY:
                self.check_key(target, key)
        target.update(zip(keys, items[1::2], strict=True))

    def append(self, target: object, items: list[Any]) -> None:
        """Add items to the end of a list or an instance."""
        if type(target) is Instance:
            if target.sequence is None:
                target.sequence = []
            target = target.sequence
        if not isinstance(target, list):
            self.fail(f"items for a {type(target).__name__}", "a list")
        target.extend(items)

    def check_key(self, target: object, key: object) -> None:
        """Refuse keys that cannot be hashed, or only at a great cost."""
        self.weigh_key(key, 2)
        if type(key) in ATOMS:
            return
        try:
            place = id(target), hash(key)
        except TypeError:
            self.fail(f"a {type(key).__name__} as a dict key", "a value that does not change")
        crowd = self.crowds[place] = self.crowds.get(place, 0) + 1
        if crowd > MAX_CROWD:
            self.unsafe("dict keys that collide on purpose", "ordinary keys")

    def weigh_key(self, key: object, depth: int) -> None:
        """Spend for what hashing and comparing a key costs; tuples may nest `depth` deep.

        A tuple's hash is computed anew each time, equal texts are compared byte by byte, and the hash of an
        int is the int modulo 2**61 - 1, so that big ones collide at will.
        """
        if isinstance(key, (str, bytes)):
            self.spend(len(key) // LONG_KEY)
        elif isinstance(key, int):
            if not -(1 << 63) <= key < 1 << 64:
                self.fail("a dict key of more than 64 bits", "a smaller number")
        elif isinstance(key, tuple):
            if not depth:
                self.fail("a dict key of nested tuples", "a plain value or a flat tuple")
            self.spend(len(key) >> 4)
            for item in key:
                self.weigh_key(item, depth - 1)


# -- opcodes -------------------------------------------------------------------------------------------------
# A handler gets the machine and the index after its opcode, and gives the index of the next opcode.

Handler = Callable[[_Machine, int], int]


def _unknown(machine: _Machine, at: int) -> int:
    machine.fail(f"the opcode {machine.data[at - 1]:#04x}", "one of protocols 0 to 5")


HANDLERS: list[Handler] = [_unknown] * 256
STOP = ord(".")
ONE_BYTE: set[int] = set()
"""The opcodes with an argument of one byte, whose end-of-data is an IndexError too."""


def _opcode(letters: bytes) -> Callable[[Handler], Handler]:
    """Enter a handler into the table."""

    def enter(handler: Handler) -> Handler:
        for code in letters:
            HANDLERS[code] = handler
        return handler

    return enter


def _constant(letter: bytes, value: object) -> None:
    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
        machine.stack.append(value)
        return at


def _container(letter: bytes, make: Callable[[], object]) -> None:
    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
        machine.objects += 1
        machine.stack.append(make())
        return at


def _fixed(letter: bytes, form: str) -> None:
    """An opcode that pushes a number of fixed size."""
    struct = Struct(form)
    unpack, nbytes = struct.unpack_from, struct.size

    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
        machine.stack.append(unpack(machine.data, at)[0])
        return at + nbytes


def _counted(letter: bytes, form: str, make: Callable[[bytes], object]) -> None:
    """An opcode with a length and so many bytes."""
    struct = Struct(form)
    unpack, width = struct.unpack_from, struct.size

    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
        at += width
        nbytes: int = unpack(machine.data, at - width)[0]
        if not 0 <= nbytes <= machine.end - at:
            machine.truncated()
        machine.stack.append(make(machine.data[at : at + nbytes]))
        return at + nbytes


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
_counted(b"X", "<I", _text)
_counted(b"\x8c", "<B", _text)
_counted(b"\x8d", "<Q", _text)
_counted(b"T", "<i", _old_text)
_counted(b"U", "<B", _old_text)
_counted(b"B", "<I", bytes)
_counted(b"C", "<B", bytes)
_counted(b"\x8e", "<Q", bytes)
_counted(b"\x96", "<Q", _bytearray)


# -- memo and stack


@_opcode(b"h")
def _binget(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.recall(machine.data[at]))
    return at + 1


@_opcode(b"j")
def _long_binget(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.recall(U32.unpack_from(machine.data, at)[0]))
    return at + 4


@_opcode(b"g")
def _get(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.stack.append(machine.recall(machine.memo_key(text)))
    return at


@_opcode(b"q")
def _binput(machine: _Machine, at: int) -> int:
    machine.store(machine.data[at], machine.stack[-1])
    return at + 1


@_opcode(b"r")
def _long_binput(machine: _Machine, at: int) -> int:
    machine.store(U32.unpack_from(machine.data, at)[0], machine.stack[-1])
    return at + 4


@_opcode(b"p")
def _put(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.store(machine.memo_key(text), machine.stack[-1])
    return at


@_opcode(b"\x94")
def _memoize(machine: _Machine, at: int) -> int:
    machine.store(len(machine.memo) + len(machine.sparse), machine.stack[-1])
    return at


@_opcode(b"(")
def _mark(machine: _Machine, at: int) -> int:
    machine.outer.append(machine.stack)
    machine.stack = []
    return at


@_opcode(b"0")
def _pop(machine: _Machine, at: int) -> int:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()
    return at


@_opcode(b"1")
def _pop_mark(machine: _Machine, at: int) -> int:
    machine.pop_mark()
    return at


@_opcode(b"2")
def _dup(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.stack[-1])
    return at


# -- numbers and text that are written as lines, and big numbers


@_opcode(b"I")
def _int_text(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    flags = {b"00": False, b"01": True}
    machine.stack.append(flags[text] if text in flags else machine.number(text))
    return at


@_opcode(b"L")
def _long_text(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    machine.stack.append(machine.number(text.removesuffix(b"L")))
    return at


@_opcode(b"F")
def _float_text(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, MAX_DIGITS)
    try:
        machine.stack.append(float(text))
    except ValueError:
        machine.fail(f"the text {_shown(text[:40].decode('latin-1'))}", "a number")
    return at


@_opcode(b"S")
def _string_text(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, machine.limits.max_nbytes)
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        machine.fail("a string without quotes", "quotes")
    try:
        machine.stack.append(_old_text(unescape(text[1:-1])))
    except (ValueError, KeyError):
        machine.fail("a string with an unknown escape", "one as Python 2 writes it")
    return at


@_opcode(b"V")
def _unicode_text(machine: _Machine, at: int) -> int:
    text, at = machine.line(at, machine.limits.max_nbytes)
    machine.stack.append(text.decode("raw-unicode-escape"))
    return at


@_opcode(b"\x8a")
def _long1(machine: _Machine, at: int) -> int:
    return _long(machine, machine.data[at], at + 1)


@_opcode(b"\x8b")
def _long4(machine: _Machine, at: int) -> int:
    return _long(machine, I32.unpack_from(machine.data, at)[0], at + 4)


def _long(machine: _Machine, nbytes: int, at: int) -> int:
    if nbytes < 0:
        machine.fail("a negative length", "a length")
    if nbytes > machine.limits.max_int_nbytes:
        machine.unsafe(f"a number of {nbytes:,} bytes", f"at most {machine.limits.max_int_nbytes:,}")
    machine.stack.append(int.from_bytes(machine.take(at, nbytes), "little", signed=True))
    return at + nbytes


# -- tuples, lists, dicts, sets


@_opcode(b"t")
def _tuple(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(tuple(items))
    return at


def _tuple_of(letter: bytes, size: int) -> None:
    """An opcode that makes a tuple of the last `size` values."""

    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
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
def _list(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(items)
    return at


@_opcode(b"d")
def _dict(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.objects += 1
    made: dict[object, object] = {}
    machine.set_items(made, items)
    machine.stack.append(made)
    return at


@_opcode(b"\x91")
def _frozenset(machine: _Machine, at: int) -> int:
    made = Instance("builtins.frozenset", (), False)
    made.sequence = machine.pop_mark()
    machine.objects += 1
    machine.stack.append(made)
    return at


@_opcode(b"a")
def _append(machine: _Machine, at: int) -> int:
    item = machine.stack.pop()
    machine.append(machine.stack[-1], [item])
    return at


@_opcode(b"e\x90")
def _appends(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.append(machine.stack[-1], items)
    return at


@_opcode(b"s")
def _setitem(machine: _Machine, at: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items(machine.stack[-1], [key, value])
    return at


@_opcode(b"u")
def _setitems(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    machine.set_items(machine.stack[-1], items)
    return at


# -- names and objects


@_opcode(b"c")
def _global(machine: _Machine, at: int) -> int:
    found, at = _named_by_lines(machine, at)
    machine.stack.append(found)
    return at


def _named_by_lines(machine: _Machine, at: int) -> tuple[Global, int]:
    module, middle = machine.line(at, MAX_NAME_NBYTES)
    name, stop = machine.line(middle, MAX_NAME_NBYTES)
    return machine.name(module.decode(), name.decode()), stop


@_opcode(b"\x93")
def _stack_global(machine: _Machine, at: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        machine.fail("a global named by something else than text", "a module and a name")
    machine.stack.append(machine.name(module, name))
    return at


@_opcode(b"R")
def _reduce(machine: _Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = machine.call(machine.stack[-1], args)
    return at


@_opcode(b"\x81")
def _newobj(machine: _Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = machine.new(machine.stack[-1], args, {})
    return at


@_opcode(b"\x92")
def _newobj_ex(machine: _Machine, at: int) -> int:
    kwargs, args = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1] = machine.new(machine.stack[-1], args, kwargs)
    return at


@_opcode(b"o")
def _obj(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    if not items:
        machine.fail("an object without a class", "one")
    machine.stack.append(machine.call(items[0], tuple(items[1:])))
    return at


@_opcode(b"i")
def _inst(machine: _Machine, at: int) -> int:
    items = machine.pop_mark()
    cls, at = _named_by_lines(machine, at)
    machine.stack.append(machine.call(cls, tuple(items)))
    return at


@_opcode(b"b")
def _build(machine: _Machine, at: int) -> int:
    state = machine.stack.pop()
    machine.build(machine.stack[-1], state)
    return at


@_opcode(b"Q")
def _binpersid(machine: _Machine, at: int) -> int:
    machine.objects += 1
    machine.stack[-1] = machine.guard("persistent id", machine.persistent, (machine.stack[-1],), {})
    return at


@_opcode(b"P")
def _persid(machine: _Machine, at: int) -> int:
    machine.fail("a persistent id written as text", "one as torch writes it")


def _extension(letter: bytes, form: str) -> None:
    """A number of a registry that only the program that wrote the pickle has."""
    struct = Struct(form)

    @_opcode(letter)
    def push(machine: _Machine, at: int) -> int:
        path = f"copyreg.extension.{struct.unpack_from(machine.data, at)[0]}"
        machine.objects += 1
        machine.use(path, True, "()")
        machine.stack.append(Instance(path, (), True))
        return at + struct.size


_extension(b"\x82", "<B")
_extension(b"\x83", "<H")
_extension(b"\x84", "<i")


# -- the outer form


@_opcode(b"\x80")
def _proto(machine: _Machine, at: int) -> int:
    if machine.data[at] > 5:
        machine.fail(f"protocol {machine.data[at]}", "0 to 5")
    return at + 1


@_opcode(b"\x95")
def _frame(machine: _Machine, at: int) -> int:
    """A frame only helps to read ahead; its length must fit."""
    if U64.unpack_from(machine.data, at)[0] > machine.end - at - 8:
        machine.truncated()
    return at + 8


@_opcode(b"\x97\x98")
def _buffer(machine: _Machine, at: int) -> int:
    machine.fail("a buffer outside the pickle", "all data inside")


U32, I32, U64 = Struct("<I"), Struct("<i"), Struct("<Q")
ONE_BYTE.update(b"hq\x8a\x80")


# -- calls that we know --------------------------------------------------------------------------------------


def _encode(machine: _Machine, args: tuple[object, ...]) -> object:
    """`_codecs.encode(text, encoding)`: how protocol 2 stores bytes."""
    text, encoding = args if len(args) == 2 else (None, None)
    if type(text) is not str or encoding not in ("latin1", "latin-1", "utf-8"):
        machine.fail("an unusual call of _codecs.encode", "text and latin1 or utf-8")
    machine.spend(len(text))
    return text.encode(encoding)


def _bytes(machine: _Machine, args: tuple[object, ...]) -> object:
    """`bytes()`: how protocol 2 stores b''."""
    return machine.inert("builtins.bytes", args) if args else b""


def _reconstructor(machine: _Machine, args: tuple[object, ...]) -> object:
    """`copyreg._reconstructor(cls, base, state)`: a bare object, in protocols 0 and 1."""
    if len(args) != 3:
        machine.fail(f"{len(args)} arguments of copyreg._reconstructor", "3")
    return machine.bare(machine.callable_path(args[0]), args[1:], {})


def _newobj_call(machine: _Machine, args: tuple[object, ...]) -> object:
    """`copyreg.__newobj__(cls, *args)`: NEWOBJ as a call."""
    if not args:
        machine.fail("no arguments of copyreg.__newobj__", "a class")
    return machine.new(args[0], args[1:], {})


SPECIAL: dict[str, Callable[[_Machine, tuple[object, ...]], object]] = {
    "_codecs.encode": _encode,
    "builtins.bytes": _bytes,
    "copyreg._reconstructor": _reconstructor,
    "copyreg.__newobj__": _newobj_call,
}


# -- text ----------------------------------------------------------------------------------------------------

ESCAPES = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: bytes) -> bytes:
    """The bytes that Python 2's repr of a string stands for, quotes removed.

    Raises ValueError or KeyError for escapes that it never writes.

    >>> unescape(rb"a\\n\\x41\\\\")
    b'a\\nA\\\\'
    """
    made, at = bytearray(), 0
    while (slash := text.find(b"\\", at)) >= 0:
        made += text[at:slash]
        letter = text[slash + 1 : slash + 2]
        at = slash + (4 if letter == b"x" else 2)
        made += bytes([int(text[slash + 2 : at], 16)]) if letter == b"x" else ESCAPES[letter]
    return bytes(made + text[at:])


def preview(value: object, depth: int = 2) -> str:
    """A value in at most 80 printable characters; looks at a few items only, two levels deep.

    >>> preview(("curl x | sh", [1, (2, (3,))], b"\\x1b[0m"))
    "('curl x | sh', [1, (...)], b'\\\\x1b[0m')"
    >>> len(preview("x" * 1000))
    80
    """
    if type(value) in (str, bytes):
        text = repr(value[:PREVIEW_WIDTH])  # type: ignore[index]  # text by its type
    elif type(value) is int:
        text = str(value) if value.bit_length() < 128 else "a big number"
    elif type(value) in ATOMS:
        text = repr(value)
    elif type(value) in BRACKETS:
        text = _preview_items(value, depth)
    elif type(value) is Global or type(value) is Instance:
        text = _shown(value.path[:PREVIEW_WIDTH]) + ("" if type(value) is Global else "(...)")
    else:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= PREVIEW_WIDTH else text[: PREVIEW_WIDTH - 3] + "..."


BRACKETS: dict[type, tuple[str, str]] = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}


def _preview_items(value: Any, depth: int) -> str:
    opening, closing = BRACKETS[type(value)]
    if depth == 0:
        return f"{opening}...{closing}" if value else opening + closing
    shown: list[str] = []
    for key in value:
        if len(shown) == 4:
            shown.append("...")
            break
        text = preview(key, depth - 1)
        shown.append(f"{text}: {preview(value[key], depth - 1)}" if type(value) is dict else text)
    comma = "," if type(value) is tuple and len(value) == 1 else ""
    return f"{opening}{', '.join(shown)}{comma}{closing}"


def _shown(text: str) -> str:
    """Text with control characters escaped.

    >>> _shown("os\\x1b[0m")
    'os\\\\x1b[0m'
    """
    return text if text.isprintable() else repr(text)[1:-1]
