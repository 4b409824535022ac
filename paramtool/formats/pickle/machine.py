"""The stack machine that runs pickles: its state, its limits, and how it handles names, calls and items.

The opcodes are in `opcodes.py` and enter themselves into the tables here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NoReturn

from paramtool.errors import FormatError, ParamtoolError, UnsafeError
from paramtool.formats.pickle._enum_classes import VALUE_CLASSES, is_value
from paramtool.formats.pickle.values import (
    ATOMS,
    CALLS_ITS_FIRST,
    INERT,
    MAPPINGS,
    SEQUENCES,
    Global,
    Instance,
    PickledSpan,
    PickleLimits,
    Result,
    Use,
    preview,
    shown,
)

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

BATCH = 1 << 16
"""The number of opcodes between two checks of the limits; each adds one entry or object at most."""
MAX_DIGITS = 4300
"""The most digits of a number written as text; CPython's own limit, since int() is quadratic."""
MAX_NAME_NBYTES = 4096
"""The longest module and global name together."""
MAX_CROWD = 64
"""The most keys of one dict with the same hash.  Tuples of -1 and -2 all collide: hash(-1) == hash(-2)."""
LONG_KEY = 256
"""The length from which on a dict key counts as work."""
LONG_NAME = 256
"""The length from which on copying a global name counts as work; names of released libraries are shorter."""
FEW_ITEMS = 8
"""The number of items of a constructor's argument that do not count as work, such as the axes of a shape."""
SPEND_SLACK = 1024
BULKY = frozenset({tuple, list, dict})
ITERATING = INERT | {"torch.Size", "torch.device", "numpy.dtype"}
"""Known classes that iterate or convert what they are made of."""
KEEPING = SEQUENCES | {"builtins.list", "builtins.tuple"}
"""Those that keep what they are filled with as it is."""
MAX_HANDED_ON = 64
"""The deepest nesting of functions that are passed to each other."""

Handler = Callable[["Machine", int], int]
"""Gets the machine and the index after its opcode, gives the index of the next opcode."""
HANDLERS: list[Handler] = []
"""One for each of the 256 opcodes."""
STOP = ord(".")
ONE_BYTE: set[int] = set()
"""Opcodes that read one byte by its index; one that is missing is a truncation."""
SPECIAL: dict[str, Callable[[Machine, tuple[object, ...]], object]] = {}
"""Calls of the standard library that are understood."""


class Machine:
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
        "frames",
        "known",
        "limits",
        "memo",
        "names",
        "objects",
        "outer",
        "persistent",
        "position",
        "skipped",
        "spans",
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
        *,
        persistent: Callable[[object], object],
        limits: PickleLimits,
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
        self.objects = self.copied = self.skipped = 0
        self.spans = False
        """Whether long strings and all bytes are left in the data, as `PickledSpan`."""
        self.frames = True
        """Whether the lengths of frames have to fit."""

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run up to STOP."""
        try:
            stop = self._run()
            return Result(self.stack.pop(), stop, tuple(self.uses.values()), self.skipped)
        except IndexError:
            if self.position + 1 >= self.end and self.data[self.position] in ONE_BYTE:
                self.truncated()
            self.fail("an empty stack", "as many values as the opcode takes")
        except StructError:
            self.truncated()
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            self.fail(f"text that cannot be decoded ({error.reason})", "valid text")
        except RecursionError:
            self.unsafe("data nested too deeply to compare", "less nesting")

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
        """Count work that is not proportional to the bytes of the pickle, such as copies of memoized values."""
        self.copied += count
        if self.copied > self.position - self.start - self.skipped + SPEND_SLACK:
            self.unsafe("the same data repeated endlessly", "each value about once")

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
        stop = self.line_end(at, limit)
        return self.data[at:stop], stop + 1

    def line_end(self, at: int, limit: int) -> int:
        """The index of the next newline, at most `limit` bytes on."""
        stop = self.data.find(b"\n", at, min(self.end, at + limit + 1))
        if stop < 0 and self.end - at > limit:
            self.fail(f"a line of more than {limit:,} bytes", "a shorter one")
        if stop < 0:
            self.truncated()
        return stop

    def number(self, text: bytes) -> int:
        try:
            return int(text)
        except ValueError:
            self.fail(f"the text {shown(text[:40].decode('latin-1'))}", "a whole number")

    def memo_key(self, text: bytes) -> int:
        key = self.number(text)
        if not 0 <= key < 1 << 32:
            self.fail("a memo key out of range", "a key that fits 32 bits")
        return key

    def span(self, start: int, stop: int, form: str, make: Callable[[bytes], object]) -> PickledSpan:
        """A part of the data that stays there."""
        self.skipped += stop - start
        return PickledSpan(self.data, start, stop, form=form, make=make)

    # -- the stack -------------------------------------------------------------------------------------------

    def store(self, key: int, value: object) -> None:
        """Memoize `value`."""
        memo = self.memo
        if key == len(memo):
            memo.append(value)
            if self.sparse:
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
        """The global of that name; the first mention of an unknown name is recorded as a use."""
        found = self.names.get((module, name))
        if found is not None:
            return found
        if len(module) + len(name) > MAX_NAME_NBYTES:
            self.fail("a global name that is too long", f"at most {MAX_NAME_NBYTES:,} characters")
        if len(module) + len(name) > LONG_NAME:
            self.spend(len(module) + len(name))
        made = self.names[module, name] = Global(module, name)
        if not self.is_known(made.path) and made.path not in self.known:
            self.use(made.path, False, "")
        return made

    def is_known(self, path: str) -> bool:
        return path in self.constructors or path in INERT or path in SPECIAL or path in VALUE_CLASSES

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
        if path in CALLS_ITS_FIRST:
            self.use_first(path, args)
        self.hand(path, args)
        make = self.constructors.get(path)
        if make is not None:
            for arg in args:
                if type(arg) in BULKY and len(arg) > FEW_ITEMS:  # type: ignore[arg-type]  # sized by its type
                    self.spend(len(arg))  # type: ignore[arg-type]
            return self.guard(path, make, args, {})
        special = SPECIAL.get(path)
        if special is not None:
            return special(self, args)
        if path in INERT:
            return self.inert(path, args)
        return self.unknown(path, args)

    def hand(self, path: str, args: tuple[object, ...]) -> None:
        """Note objects of unknown classes that known ones are made of: their own methods iterate or convert them."""
        for arg in args if path in ITERATING or path in self.constructors else ():
            inner = arg if type(arg) in (list, tuple) and path not in KEEPING else ()
            if len(inner) > FEW_ITEMS:  # type: ignore[arg-type]  # sized by its type
                self.spend(len(inner))  # type: ignore[arg-type]
            for one in (arg, *inner):  # type: ignore[misc]
                if type(one) is Instance and not (one.called or self.is_known(one.path)):
                    self.use(one.path, True, "(...)")

    def unknown(self, path: str, args: tuple[object, ...]) -> Instance:
        """An unknown call: recorded as a use, unless it only looks up a member of a known enum."""
        if path in VALUE_CLASSES and is_value(args):
            return Instance(path, args, False)
        self.use(path, True, preview(args))
        return Instance(path, args, True)

    def use_first(self, path: str, args: tuple[object, ...]) -> None:
        """Note what a function of torch's calls that is handed a function and its arguments."""
        for _ in range(MAX_HANDED_ON):
            if path not in CALLS_ITS_FIRST or len(args) < 3 or not isinstance(args[2], (tuple, list)):
                break
            path = self.callable_path(args[0])
            args = tuple(args[2])
        if path not in self.constructors or path in CALLS_ITS_FIRST:
            self.use(path, True, preview(args))

    def new(self, cls: object, args: object, kwargs: object) -> object:
        """What NEWOBJ pushes: a bare object of class `cls`."""
        args = self.arguments(args)
        if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
            self.fail("invalid keyword arguments", "a dict with names as keys")
        self.objects += 1
        path = self.callable_path(cls)
        self.hand(path, args)
        make = self.constructors.get(path)
        if make is not None:
            return self.guard(path, make, args, kwargs)
        return self.bare(path, args, kwargs)

    def bare(self, path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Instance:
        """An instance made without a call."""
        if path in INERT:
            made = self.inert(path, args)
        else:
            self.use(path, path == "builtins.type", "")  # a class whose methods are what the pickle names
            waiting: list[object] = [*args, *kwargs.values()]
            seen: set[int] = set()
            while waiting:  # an iterator, or a partial call, calls a function when it is used; a new class its methods
                one = waiting.pop()
                if type(one) is Global and one.path not in INERT and one.path not in self.known:
                    self.use(one.path, True, "(...)")
                elif type(one) in (list, tuple, dict) and id(one) not in seen:
                    seen.add(id(one))
                    self.spend(len(one))  # type: ignore[arg-type]  # sized by its type
                    waiting += (*one, *one.values()) if isinstance(one, dict) else one  # type: ignore[arg-type]
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
                self.fail("an item that is not a pair", "a key and a value")
            self.check_key(target, pair[0])
            target[pair[0]] = pair[1]

    def arguments(self, args: object) -> tuple[object, ...]:
        if type(args) is not tuple:
            self.fail(f"arguments of type {type(args).__name__}", "a tuple")
        return args

    def callable_path(self, callee: object) -> str:
        """The name of what is called; the result of an unknown call is called `path()`."""
        if type(callee) is Global:
            return callee.path
        if type(callee) is not Instance:
            self.fail(f"a call of a {type(callee).__name__}", "a global")
        return callee.path if callee.path.endswith("()") else f"{callee.path}()"

    def guard(
        self, path: str, make: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Call one of our own functions; FormatError for arguments that it does not accept."""
        try:
            return make(*args, **kwargs)
        except ParamtoolError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            reason = shown(str(error)[:200])
            self.fail(f"arguments that {shown(path)} does not accept ({reason})", "valid ones")

    def build(self, target: object, state: object) -> None:
        """Give `target` its attributes."""
        build = getattr(target, "build", None)
        if build is not None:
            self.guard(f"{type(target).__name__}.build", build, (state,), {})
        elif type(target) is Global:
            self.use(target.path, True, f" is given attributes: {preview(state)}")
        elif type(target) is not Instance:
            self.fail(f"attributes for a {type(target).__name__}", "an object")
        elif target.path in MAPPINGS and isinstance(state, (int, float, complex, str, bytes)):
            self.fail(f"{type(state).__name__} as the attributes of {shown(target.path)}", "a dict")
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
        if type(target) is Global:
            self.use(target.path, True, f" is given items: {preview(items)}")
            return
        if not isinstance(target, dict):
            self.fail(f"items for a {type(target).__name__}", "a dict")
        if len(items) % 2:
            self.fail("a key without a value", "pairs")
        keys = [self.read_key(key) for key in items[::2]] if self.spans else items[::2]
        for key in keys:
            if type(key) is not str or len(key) > LONG_KEY:
                self.check_key(target, key)
        target.update(zip(keys, items[1::2], strict=True))

    def read_key(self, key: object) -> object:
        """A key whose bytes were left in the data, also in a tuple; they count as work."""
        if type(key) is tuple and any(type(item) is PickledSpan for item in key):
            return tuple(map(self.read_key, key))
        if type(key) is not PickledSpan:
            return key
        self.spend(key.nbytes // LONG_KEY)
        return self.guard("a dict key", key.value, (), {})

    def append(self, target: object, items: list[Any]) -> None:
        """Add items to the end of a list or an instance."""
        if type(target) is Instance:
            if target.sequence is None:
                target.sequence = []
            target = target.sequence
        if type(target) is Global:
            self.use(target.path, True, f" is given items: {preview(items)}")
            return
        if not isinstance(target, list):
            self.fail(f"items for a {type(target).__name__}", "a list")
        target.extend(items)

    def check_key(self, target: object, key: object) -> None:
        """Refuse keys that cannot be hashed, or only slowly."""
        self.weigh_key(key, 2)
        if type(key) in ATOMS:
            return
        try:
            place = id(target), hash(key)
        except TypeError:
            self.fail(f"a {type(key).__name__} as a dict key", "a hashable value")
        crowd = self.crowds[place] = self.crowds.get(place, 0) + 1
        if crowd > MAX_CROWD:
            self.unsafe("dict keys that collide on purpose", "ordinary keys")

    def weigh_key(self, key: object, depth: int) -> None:
        """Count the work of hashing and comparing a key; tuples may be nested `depth` deep.

        A tuple's hash is computed anew each time, equal strings are compared byte by byte, and the hash of an
        int is the int modulo 2**61 - 1, so that big integers can be made to collide.
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
