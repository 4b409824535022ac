"""What CPython's unpicklers run is found, whatever stands before it: a scan does not depend on our understanding it.

The oracle is CPython's pickle, in C and in Python, which runs each pickle; what is called does no more than count.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import string
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paramtool.formats import policy, scan
from tests.examples import examples
from tests.hostile import makers_torch
from tests.hostile.command import quick
from tests.hostile.makers_zip import Part, archive

RAN: list[object] = []


def ran(*args: object) -> None:
    """What the pickles call."""
    RAN.append(args)


MODULE = __name__.encode()
GADGETS = {
    "GLOBAL": b"c" + MODULE + b"\nran\n)R",
    "INST": b"(i" + MODULE + b"\nran\n",
    "OBJ": b"(c" + MODULE + b"\nran\no",
    "STACK_GLOBAL": b"\x8c" + bytes([len(MODULE)]) + MODULE + b"\x8c\x03ran\x93)R",
    "of a memo": b"\x8c" + bytes([len(MODULE)]) + MODULE + b"q\x77\x8c\x03ranq\x7800h\x77h\x78\x93)R",
    "escaped": b"V" + MODULE + b"\nS'\\162an'\n\x93)R",
    "a long name": b"c" + MODULE + b"\nran" + b".__call__" * 2000 + b"\n)R",
}
TYPES = (b"cbuiltins\nobject\n", b"ccollections\nOrderedDict\n", b"ccollections\ndeque\n", b"cbuiltins\nset\n")


def argument(one: pickletools.OpcodeInfo) -> st.SearchStrategy[bytes]:
    """Bytes that can follow an opcode."""
    if one.name in ("GLOBAL", "INST"):
        return st.sampled_from([name[1:] for name in TYPES])
    if one.arg is None:
        return st.just(b"")
    line = {
        "I": st.sampled_from(["5", "0x1F", "0b11", "0o7", "00", "01", " 5 ", "1_0", "-1", "9" * 5000]),
        "L": st.sampled_from(["5", "5L", "0x1FL", " 5L", "9" * 5000]),
        "F": st.sampled_from(["1", "1_0.5", "nan", "-inf", "1e999", " 1 "]),
        "S": st.sampled_from(["'a'", "''", "'\\q'", '"\\101"', "'\\x41'", "'a'b'", "'\xe9'"]),
        "V": st.sampled_from(["a", "", "\\u0041", "\\ud800", "\xe9", "\\"]),
        "P": st.text(string.ascii_letters, max_size=3),
        "p": st.sampled_from(["0", "1", "07", "+2", " 3", "1_0", "5\0x"]),
    }
    if one.arg.n == pickletools.UP_TO_NEWLINE:
        return line[{"g": "p"}.get(one.code, one.code)].map(lambda text: text.encode("latin-1") + b"\n")
    if one.name == "PROTO":
        return st.integers(0, 5).map(lambda n: bytes([n]))
    if one.name == "FRAME":
        return st.integers(0, 30).map(lambda n: pack("<Q", n))
    if one.arg.n in (pickletools.TAKEN_FROM_ARGUMENT1, -3, -4, -5):
        form = {pickletools.TAKEN_FROM_ARGUMENT1: "<B", -3: "<i", -4: "<I", -5: "<Q"}[one.arg.n]
        return st.binary(max_size=9).map(lambda raw: pack(form, len(raw)) + raw)
    if one.arg.n == 4 and "GET" in one.name + "GET" * ("PUT" in one.name):
        return st.integers(0, 9).map(lambda n: pack("<I", n))
    return st.one_of(st.integers(0, 3).map(lambda n: bytes([n])), st.binary(min_size=1, max_size=1)).map(
        lambda first: (first + bytes(8))[: one.arg.n]  # type: ignore[union-attr]
    )


OPCODES = [one for one in pickletools.opcodes if one.name != "STOP"]
PUSHES = st.sampled_from([b"N", b"]", b"}", b")", b"\x8f", b"K\x05", b"\x8c\x01a", *TYPES])
PRELUDE = st.lists(
    st.one_of(PUSHES, st.just(b"("), st.sampled_from(OPCODES).flatmap(
        lambda one: argument(one).map(lambda raw: one.code.encode("latin-1") + raw)
    )),
    max_size=12,
).map(b"".join)  # fmt: skip


class Persistent(pickle._Unpickler):  # type: ignore[misc, name-defined]
    def persistent_load(self, pid: object) -> object:
        return pid


class PersistentC(pickle.Unpickler):
    def persistent_load(self, pid: object) -> object:
        return pid


def runs(data: bytes) -> bool:
    """Whether one of CPython's unpicklers calls what counts."""
    RAN.clear()
    for unpickler in (pickle.Unpickler, pickle._Unpickler, Persistent, PersistentC):  # type: ignore[attr-defined]
        for options in ({}, {"encoding": "latin1"}, {"buffers": [b"a"] * 9}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    unpickler(io.BytesIO(data), **options).load()
                except Exception:  # any, as each refuses in its own way
                    continue
    return bool(RAN)


@settings(max_examples=examples(1500), deadline=None)
@given(
    prelude=PRELUDE, gadget=st.sampled_from(sorted(GADGETS)), marked=st.booleans(), end=st.sampled_from([b".", b"0N."])
)
def test_no_prelude_hides_a_call(prelude: bytes, gadget: str, marked: bool, end: bytes) -> None:
    data = b"\x80\x04" * marked + prelude + GADGETS[gadget] + end
    if runs(data):
        assert any(one.called for one in scan.scan_bytes(data).unknown), data


class Lazy:
    """An object that calls what counts when it is iterated over, or converted."""

    def __iter__(self) -> Iterator[object]:
        ran()
        return iter(())

    __str__ = __bytes__ = __int__ = __float__ = __bool__ = __index__ = __len__ = lambda self: ran() or 0

    def __getitem__(self, place: object) -> None:
        ran()


RAN_BY = f"c{__name__}\nran\n".encode()
CALLERS = {
    "starmap": b"citertools\nstarmap\n(" + RAN_BY + b"((tlt\x81",
    "filterfalse": b"citertools\nfilterfalse\n(" + RAN_BY + b"(K\1lt\x81",
    "takewhile": b"citertools\ntakewhile\n(" + RAN_BY + b"(K\1lt\x81",
    "dropwhile": b"citertools\ndropwhile\n(" + RAN_BY + b"(K\1lt\x81",
    "accumulate": b"citertools\naccumulate\n((K\1K\1l" + RAN_BY + b"t\x81",
    "groupby": b"citertools\ngroupby\n((K\1l" + RAN_BY + b"t\x81",
    "map": b"cbuiltins\nmap\n(" + RAN_BY + b"(K\1lt\x81",
    "filter": b"cbuiltins\nfilter\n(" + RAN_BY + b"(K\1lt\x81",
    "an object": f"c{__name__}\nLazy\n)\x81".encode("latin-1"),
}
"""Objects that no call makes, and that call what counts while others use them."""
USERS = [f"c{module}\n{name}\n".encode() for module, names in {
    "builtins": "list set frozenset tuple dict bytes bytearray int float complex bool str slice object",
    "collections": "deque Counter OrderedDict defaultdict",
    "pathlib": "PurePosixPath",
    "fractions": "Fraction",
    "decimal": "Decimal",
    "uuid": "UUID",
    "datetime": "date timedelta",
    "torch": "Size device",
    "numpy": "dtype",
}.items() for name in names.split()]  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("how", [b"%s(%stR.", b"%s(%st\x81.", b"ccopyreg\n__newobj__\n(%s%stR.",
                                 b"ccopyreg\n_reconstructor\n(%s\x85R.", b"(i%s"], ids=range(5))  # fmt: skip
def test_what_is_called_by_those_who_use_it(caller: str, how: bytes) -> None:
    """An iterator and its like: each known class is made of each, in each way."""
    for user in USERS:
        if how.startswith(b"(i"):
            data = b"(" + CALLERS[caller] + b"i" + user[1:] + b"."
        elif b"_reconstructor" in how:
            data = b"ccopyreg\n_reconstructor\n(" + user + user + CALLERS[caller] + b"tR."
        else:
            data = how % (user, CALLERS[caller])
        for mark in (b"", b"\x80\x04", b"in a list"):
            if mark == b"in a list":
                mark, data = b"", data.replace(CALLERS[caller], b"](" + CALLERS[caller] + b"e")
            if runs(mark + data):
                assert policy.unsafe(scan.scan_bytes(mark + data).unknown), (user, mark)


FILLERS = (b"N", b")", b"K\1", b"(K\1K\1t", b"ctorch\nsparse_coo\n", b"ctorch\nTensor\n")


@pytest.mark.parametrize("path", sorted(set(scan._HELD) - {scan.LOAD}))
@pytest.mark.parametrize("filler", FILLERS, ids=range(len(FILLERS)))
@pytest.mark.sample(30)
@pytest.mark.filterwarnings("ignore")
def test_what_known_functions_do_with_others(path: str, filler: bytes) -> None:
    """Of any of their arguments, alone or in a tuple."""
    module, _, name = path.rpartition(".")
    for many in range(1, 6):
        for at in range(many):
            for held in (CALLERS["an object"], b"(" + CALLERS["an object"] + b"t"):
                args = filler * at + held + filler * (many - at - 1)
                data = f"c{module}\n{name}\n(".encode() + args + b"tR."
                if runs(data):
                    assert policy.unsafe(scan.scan_bytes(data).unknown), data


UNFOLLOWED = (
    b"I0x10\n", b"I0b1\n", b"L0x1FL\n", b"S'\\q'\n", b"C\1a\x98", b"]NaI0\nI5\ns", b"N(u", b"N(e", b"N(\x90",
    b"Np5\0x\n", b"N" * 1_000_100,
)  # fmt: skip
"""Values that CPython reads and our machine does not."""


@pytest.mark.parametrize("prelude", UNFOLLOWED, ids=range(len(UNFOLLOWED)))
@pytest.mark.parametrize("mark", [b"", b"\x80\x04"])
def test_what_no_machine_follows(prelude: bytes, mark: bytes, tmp_path: Path) -> None:
    """By name, in a file and in an archive that torch reads."""
    assert runs(mark + prelude + GADGETS["GLOBAL"])
    data = mark + prelude + b"cposix\nsystem\n(S'ls'\ntR."
    (tmp_path / "a.bin").write_bytes(data)
    whole = makers_torch.parts()
    more = Part(whole[0].name.split(b"/")[0] + b"/extra.pkl", data)
    (tmp_path / "b.pt").write_bytes(archive(*whole, more))
    for file in ("a.bin", "b.pt"):
        ran = quick("inspect", file, cwd=tmp_path)
        assert ran.code == 4 and "posix.system" in ran.err, ran


@pytest.mark.parametrize("prelude", UNFOLLOWED[:-1], ids=range(len(UNFOLLOWED) - 1))
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.sample(40)
def test_what_is_called_by_those_who_use_it_behind_what_no_machine_follows(caller: str, prelude: bytes) -> None:
    """Wherever the object stands: what values it is given to is not known."""
    for user in USERS:
        for data in (
            prelude + b"0" + user + b"(" + CALLERS[caller] + b"tR.",
            CALLERS[caller] + b"p7\n0" + prelude + b"0" + user + b"(g7\ntR.",
            user + b"p7\n0" + prelude + b"0g7\n(" + CALLERS[caller] + b"t\x81.",
        ):
            if runs(data):
                assert policy.unsafe(scan.scan_bytes(data).unknown), (user, data[:200])


SCANNED = b"ctorch.storage\n_load_from_bytes\n(%stR."
INNER = pickle.dumps(Path("a"), 0).replace(b"pathlib", b"posix").replace(b"PosixPath", b"system")
HIDDEN = {
    "bytes": b"B" + pack("<I", len(INNER)) + INNER,
    "bytearray8": b"\x96" + pack("<Q", len(INNER)) + INNER,
    "bytearray": b"cbuiltins\nbytearray\n(B" + pack("<I", len(INNER)) + INNER + b"tR",
    "bytes of bytearray": b"cbuiltins\nbytes\n(\x96" + pack("<Q", len(INNER)) + INNER + b"tR",
    **{
        codec: b"c_codecs\nencode\n(X"
        + pack("<I", len(INNER))
        + INNER
        + b"X"
        + pack("<I", len(codec))
        + codec.encode()
        + b"tR"
        for codec in ("latin1", "iso-8859-1", "utf-8", "utf-16-le", "ascii")
    },
    "bytes that grow": b"\x96" + pack("<Q", 1) + INNER[:1] + b"(" + b"".join(b"K%c" % one for one in INNER[1:]) + b"e",
    "slices": b"cbuiltins\nbytearray\n((" + b"".join(b"K%c" % one for one in INNER) + b"ltR",
    "what a call gives": b"czlib\ndecompress\n(C\0tR",
}


@pytest.mark.parametrize("how", HIDDEN)
@pytest.mark.parametrize("mark", [b"", b"\x80\x04"])
def test_bytes_that_torch_loads_are_followed(how: str, mark: bytes) -> None:
    """Scanned where we know them; else the call is unsafe."""
    found = scan.scan_bytes(mark + SCANNED % HIDDEN[how]).unknown
    assert {one.path for one in found if one.called} & {"posix.system", scan.LOAD}


WORDS = st.sampled_from([
    "c", "cos", "cosh", "cot", "coth", "csys", "system", "os", "R", "(", "tR", "(tR", ")R", "t", ".", "i", "(i", "(in",
    "I like", "I5", "Some", "Foo", "Finance", "Vocabulary", "cats", "dog", "a", "acos", "asin", "b", "s", "e", "exp",
    "Pickle", "g1", "p1", "N", "collections", "(t", "0", "}", "]", "S'a'", "#", "", "Install", "Line", "tan", "ln",
])  # fmt: skip


FIRST = ["", "cos\n", "cos\nsystem\n", "(i"]


class AnyName(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """An unpickler where everything that a pickle names can be imported, and is noted when it is called or changed."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.called: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        return _Noted(self.called, f"{module}.{name}")

    def persistent_load(self, pid: object) -> object:
        return _Id(self.called, "a persistent id")


def tried(data: bytes) -> tuple[set[str], bool | None]:
    """What an unpickler calls and changes, and whether it comes to an end; None where the data end before."""
    unpickler = AnyName(data)
    try:
        unpickler.load()
    except EOFError:
        return unpickler.called, None
    except Exception:  # any, as for what is no pickle
        return unpickler.called, False
    return unpickler.called, True


class _Noted:
    def __init__(self, called: set[str], path: str) -> None:
        self._called, self._path = called, path

    def __call__(self, *args: object) -> object:
        self._called.add(self._path)
        return _Noted(self._called, f"{self._path}()")

    def __getattr__(self, name: str) -> object:
        return self if not name.startswith("__") or name == "__setstate__" else object.__getattribute__(self, name)

    def __setitem__(self, key: object, value: object) -> None:
        self()


class _Id(_Noted, tuple):  # type: ignore[misc, type-arg]
    """What can be anything, arguments as well."""

    def __new__(cls, *args: object) -> _Id:
        return tuple.__new__(cls)


@settings(max_examples=examples(4000), deadline=None)
@given(words=st.lists(WORDS, max_size=8), first=st.sampled_from(FIRST), end=st.booleans())
@example(words=["cosh", "cot"], first="cos\n", end=False)
@example(words=["cosh", "cot", "coth"], first="cos\n", end=True)
@example(words=["cosh", "cot", "coth", "csc", "csch", "exp"], first="cos\n", end=True)
def test_words_are_no_pickle(words: list[str], first: str, end: bool) -> None:
    """Of lines of text, what an unpickler calls counts; and what begins a pickle that ends too soon."""
    data = (first + "\n".join(words) + "\n" * end).encode()
    called, is_whole = tried(data)
    begun = [data, *(data[: at.start()] for at in re.finditer(rb"(?<=\n)", data))][-3:]  # the last opcode has two lines
    for one in scan.scan_bytes(data).unknown:
        if one.called:
            assert called, data
        else:
            assert is_whole or any(tried(part)[1] is None for part in begun), data
            assert is_whole or re.search(rb"^[^cV\n]", data, re.MULTILINE), data


class Reduced:
    """What calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[object, ...]:
        return self.function, ("ls",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("function", [os.system, ran])
def test_every_pickle_that_ends_too_soon(protocol: int, function: Callable[..., object]) -> None:
    """A call counts wherever an unpickler makes it, whatever follows; a dangerous name, where one more opcode is."""
    whole = pickle.dumps([1, Reduced(function)], protocol)
    path = f"{function.__module__}.{function.__name__}"
    named = [at for one, _, at in pickletools.genops(whole) if one.name in ("GLOBAL", "STACK_GLOBAL")][-1]
    for stop in range(1, len(whole)):
        for more in (b"", b"\0", b"\nwords of a text", b"cos\n"):
            found = {one.path: one.called for one in scan.scan_bytes(whole[:stop] + more).unknown}
            if tried(whole[:stop] + more)[0]:
                assert found.get(path), (stop, more)
        if function is os.system and stop > named + len("cposix\nsystem\np0\n"):
            assert path in {one.path for one in scan.scan_bytes(whole[:stop]).unknown}, stop
