"""What a pickle names and calls, read from its opcodes alone, where the machine cannot follow its values.

CPython's unpicklers fail at other values than ours: at fewer numbers written as text, at fewer escapes, at none of the
items of a list that is given items like a dict.  What they do with the stack, and where an argument ends, depends on
no value, so here a value is only what it may stand for:

    a text          may name something, if it is read
    a name          may be called, and is given items and attributes
    ANYTHING        may be either: what a call gives, a persistent id, a text that is not read
    PLAIN           neither: numbers, bytes, containers

A name that is not read is `AT_RUN_TIME`; a call of what a call gave is one of `RESULT`.  An object is made by a call:
what it is made of, and what uses it, is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from paramtool.formats.pickle._enum_classes import VALUE_CLASSES
from paramtool.formats.pickle.machine import MAX_NAME_NBYTES, STOP, Machine
from paramtool.formats.pickle.opcodes import TEXTS
from paramtool.formats.pickle.values import CALLS_ITS_FIRST, Global

AT_RUN_TIME = "a name that is made at run time"
RESULT = "the result of a call"
ANYTHING, PLAIN = object(), object()
MAX_TEXT_NBYTES = 2 * MAX_NAME_NBYTES
"""The longest text and name that are read."""
LONG_NAME = rb"[\w.<>\n\x80-\xff]+"
MAX_PROTOCOL = 5
MAX_ENTRIES = 4_000_000
"""The most values on the stack, and in the memo, each."""
BY_ARGUMENTS = (
    CALLS_ITS_FIRST | VALUE_CLASSES | {"builtins.getattr", "copyreg._reconstructor", "torch.storage._load_from_bytes"}
)
"""Names whose calls are known by their arguments, which are not followed here."""


class Opcode(NamedTuple):
    """The form of an opcode, as pickletools describes it."""

    nbytes: int
    """Of its argument; of its length, if it has one."""
    lines: int
    """How many its argument has, if it is text."""
    counted: bool
    """Whether bytes follow, as many as a length says."""
    signed: bool
    takes: int
    """Values from the stack, below those from the mark on."""
    marked: bool
    """Whether it takes all values from the last mark on."""
    gives: tuple[object, ...]


@cache
def _opcodes() -> dict[int, Opcode]:
    import pickletools as tools

    widths = {
        tools.TAKEN_FROM_ARGUMENT1: 1, tools.TAKEN_FROM_ARGUMENT4: 4, tools.TAKEN_FROM_ARGUMENT4U: 4,
        tools.TAKEN_FROM_ARGUMENT8U: 8,
    }  # fmt: skip
    made = {}
    for one in tools.opcodes:
        size = one.arg.n if one.arg else 0
        before = [item for item in one.stack_before if item not in (tools.markobject, tools.stackslice)]
        gives = tuple(ANYTHING if item is tools.anyobject else PLAIN for item in one.stack_after)
        made[ord(one.code)] = Opcode(
            widths.get(size, max(size, 0)),
            (size == tools.UP_TO_NEWLINE) << (one.name in ("GLOBAL", "INST")),
            size in widths,
            size == tools.TAKEN_FROM_ARGUMENT4,
            len(before) - (one.name == "OBJ"),  # its class stands behind the mark
            tools.markobject in one.stack_before,
            gives,
        )
    return made


class Reading:
    """The state of one reading: the machine that failed, and values on the stack, as it would have them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.since = machine.position
        """What stands before was understood."""
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.is_used = False
        """Whether a name is called behind that, to which objects could be given."""

    def read(self) -> tuple[int, int]:
        """The index after STOP, or why there is none, and that of what was read.

        Of what has more than words: `CUT` where the data end before the pickle does, `BROKEN` where no unpickler goes
        on; of words -1.  -2 at a limit.
        """
        machine, opcodes = self.machine, _opcodes()
        data, end, at = machine.data, machine.end, machine.start
        broken = -1
        while at < end:
            code = data[at]
            if code == STOP:
                return at + 1, at + 1
            form = opcodes.get(code)
            if form is None:
                return broken, at
            if len(self.stack) + len(self.outer) > MAX_ENTRIES or len(self.memo) > MAX_ENTRIES:
                return -2, at
            start, stop = at + 1, at + 1 + form.nbytes
            if form.counted:
                nbytes = int.from_bytes(data[start:stop], "little", signed=form.signed)
                if nbytes < 0:
                    return broken, at
                start, stop = stop, stop + nbytes
            for _ in range(form.lines):
                stop = data.find(b"\n", stop, end) + 1
                if not stop:
                    break
            if not 0 < stop <= end:
                break
            machine.position = at
            try:
                done = self._do(code, form, start, stop)
            except (IndexError, KeyError, ValueError):  # an empty stack, a key of the memo or text that is none
                return broken, at
            if not done:
                return broken, at
            if code not in WORDS and at > machine.start:
                broken = BROKEN
            at = stop
        return (-2 if end < len(data) else CUT if broken == BROKEN else -1), end

    def _do(self, code: int, form: Opcode, start: int, stop: int) -> bool:
        """The effect of an opcode; False where unpicklers fail."""
        if code in NUMBERS and not re.match(NUMBERS[code], self.machine.data[start:stop]):
            return False
        special = EFFECTS.get(code)
        if special is not None:
            return special(self, start, stop)
        items: list[Any] = []
        if form.marked:
            items, self.stack = self.stack, self.outer.pop()
        taken = [self.stack.pop() for _ in range(form.takes)][::-1]
        if code in CALLS:
            callee = items[0] if code == OBJ else taken[0]
            done = code == OBJ or type(taken[1]) not in (str, Global)  # which are no tuples
            done = done and self.calls(callee, "(...)")
            self.stack.append(ANYTHING)
            return done
        if code in CHANGES:
            if type(taken[0]) is Global:
                self.use(taken[0].path, True, f" is given {'attributes' if code == BUILD else 'items'}")
            self.stack.append(taken[0])
            return True
        make = TEXTS.get(code)
        if make is not None:
            self.stack.append(self._text(make, start, stop - form.lines))
            return True
        if code in PERSISTENT:
            self.machine.persistent(None)
        self.stack += form.gives
        return True

    def _text(self, make: Callable[[bytes], str], start: int, stop: int) -> object:
        if stop - start > MAX_TEXT_NBYTES:
            return ANYTHING
        try:
            return make(self.machine.data[start:stop])
        except (ValueError, KeyError, IndexError):
            return ANYTHING

    def use(self, path: str, called: bool, arguments: str = "") -> None:
        if self.machine.position >= self.since:
            self.machine.use(path, called, arguments)

    def name(self, module: str, name: str) -> object:
        """The global of that name, which is noted unless it is known."""
        made = Global(module, name)
        if not (self.machine.is_known(made.path) or made.path in self.machine.known):
            self.use(made.path, False)
        return made

    def calls(self, callee: object, arguments: str) -> bool:
        """Note a call; False where it is one of what cannot be called."""
        if callee is ANYTHING:
            self.use(RESULT, True, arguments)
            return True
        if type(callee) is not Global:
            return False
        path = callee.path
        self.is_used |= self.machine.position >= self.since
        if path in BY_ARGUMENTS or not self.machine.is_known(path):
            self.use(path, True, arguments)
        elif path in self.machine.constructors:
            self.machine.constructors[path]()
        return True


def _mark(reading: Reading, start: int, stop: int) -> bool:
    reading.outer.append(reading.stack)
    reading.stack = []
    return True


def _pop(reading: Reading, start: int, stop: int) -> bool:
    if reading.stack:
        reading.stack.pop()
    else:
        reading.stack = reading.outer.pop()
    return True


def _dup(reading: Reading, start: int, stop: int) -> bool:
    reading.stack.append(reading.stack[-1])
    return True


def _memoize(reading: Reading, start: int, stop: int) -> bool:
    reading.memo[len(reading.memo)] = reading.stack[-1]
    return True


def _put(reading: Reading, start: int, stop: int) -> bool:
    reading.memo[int.from_bytes(reading.machine.data[start:stop], "little")] = reading.stack[-1]
    return True


def _get(reading: Reading, start: int, stop: int) -> bool:
    reading.stack.append(reading.memo[int.from_bytes(reading.machine.data[start:stop], "little")])
    return True


def _key(reading: Reading, start: int, stop: int) -> int:
    """A key written as text, which C ends at a NUL."""
    return int(reading.machine.data[start : stop - 1].partition(b"\0")[0])


def _put_text(reading: Reading, start: int, stop: int) -> bool:
    reading.memo[_key(reading, start, stop)] = reading.stack[-1]
    return True


def _get_text(reading: Reading, start: int, stop: int) -> bool:
    reading.stack.append(reading.memo[_key(reading, start, stop)])
    return True


def _named(reading: Reading, start: int, stop: int) -> object:
    raw = reading.machine.data[start : min(stop, start + MAX_TEXT_NBYTES)]
    if len(raw) == stop - start:
        module, name, _ = raw.decode().split("\n")
        return reading.name(module, name)
    if re.fullmatch(LONG_NAME, raw):  # such as posixpath.os.path.os.path...
        reading.use(AT_RUN_TIME, True)
    return ANYTHING


def _global(reading: Reading, start: int, stop: int) -> bool:
    reading.stack.append(_named(reading, start, stop))
    return True


def _inst(reading: Reading, start: int, stop: int) -> bool:
    reading.stack = reading.outer.pop()
    reading.stack.append(ANYTHING)
    return reading.calls(_named(reading, start, stop), "(...)")


def _stack_global(reading: Reading, start: int, stop: int) -> bool:
    name, module = reading.stack.pop(), reading.stack.pop()
    if type(name) is str and type(module) is str:
        reading.stack.append(reading.name(module, name))
        return True
    reading.use(AT_RUN_TIME, True)
    reading.stack.append(ANYTHING)
    return all(type(one) is str or one is ANYTHING for one in (name, module))


def _protocol(reading: Reading, start: int, stop: int) -> bool:
    return reading.machine.data[start] <= MAX_PROTOCOL


def _extension(reading: Reading, start: int, stop: int) -> bool:
    number = int.from_bytes(reading.machine.data[start:stop], "little")
    reading.stack.append(reading.name("copyreg.extension", str(number)))
    return True


EFFECTS: dict[int, Callable[[Reading, int, int], bool]] = {
    code: effect
    for codes, effect in (
        (b"(", _mark), (b"0", _pop), (b"2", _dup), (b"\x94", _memoize), (b"qr", _put), (b"hj", _get),
        (b"p", _put_text), (b"g", _get_text), (b"c", _global), (b"i", _inst), (b"\x93", _stack_global),
        (b"\x82\x83\x84", _extension), (b"\x80", _protocol),
    )
    for code in codes
}  # fmt: skip
NAMING = b"ci\x93\x82\x83\x84"
"""Without one of these, nothing is named."""
BUILD, OBJ = ord("b"), ord("o")
CALLS, CHANGES, PERSISTENT = b"Ro\x81\x92", b"aesu\x90b", b"PQ"
WORDS = b"ciV"
"""Any words of a text can follow."""
NUMBERS = {
    **dict.fromkeys(b"IL", rb"\s*[+-]?\d"), ord("F"): rb"\s*[+-]?(\.?\d|(?i:nan|inf))", ord("S"): rb"(['\"]).*\1\n",
}  # fmt: skip
"""How a line begins that unpicklers take for a number, and what they take for a string."""
CUT, BROKEN = -3, -4


def read_on(machine: Machine) -> tuple[int, int]:
    """Add what a pickle names and calls behind where the machine failed to its uses.

    Gives what `Reading.read` does, and how many bytes were read.
    """
    data, start, end = machine.data, machine.start, machine.end
    if all(data.find(bytes([code]), start, end) < 0 for code in NAMING):
        return -1, 0
    reading = Reading(machine)
    stop, at = reading.read()
    for path in machine.uses if reading.is_used else ():
        machine.use(path, True, "(...)")
    return stop, at - start
