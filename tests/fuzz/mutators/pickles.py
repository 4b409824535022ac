"""Mutations of pickles: opcodes inserted, deleted, moved, their arguments changed; and of torch's stacked form.

Nothing is ever unpickled here: `pickletools` cuts a pickle into opcodes, and pieces of it are put together again.
"""

from __future__ import annotations

import io
import pickletools
from random import Random
from struct import pack
from typing import Any

from tests.fuzz.mutators import json_text, raw

CANARY = "paramtool_fuzz_canary"
"""A module whose import, or whose call, is a finding: `watch.py` has it ready."""
GLOBALS = (
    f"{CANARY} fire", f"{CANARY} Kind", "os system", "builtins eval", "builtins exec", "builtins getattr",
    "builtins dict", "builtins set", "builtins object", "builtins list", "collections OrderedDict",
    "collections defaultdict", "collections Counter", "collections deque", "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor", "torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state",
    "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_device_tensor_from_numpy", "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._tensor _rebuild_from_type_v2", "torch._utils _rebuild_wrapper_subclass", "torch FloatStorage",
    "torch DoubleStorage", "torch LongStorage", "torch ByteStorage", "torch BFloat16Storage",
    "torch ComplexFloatStorage", "torch.storage UntypedStorage", "torch Size", "torch device", "torch float32",
    "torch bfloat16", "torch Tensor", "torch.nn.parameter Parameter", "torch.serialization _get_layout",
    "numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy.core.multiarray scalar",
    "numpy ndarray", "numpy dtype", "argparse Namespace", "types SimpleNamespace", "datetime datetime",
    "decimal Decimal", "fractions Fraction", "uuid UUID", "pathlib PosixPath", "pathlib PurePosixPath",
    "copyreg _reconstructor", "builtins bytearray", "builtins complex", "builtins range", "builtins slice",
    "_codecs encode",
)  # fmt: skip
"""Names that pickles of checkpoints have, and some that none should."""
LOOSE = tuple(op.code.encode("latin-1") for op in pickletools.opcodes if op.arg is None)
"""Opcodes without an argument."""


def _global(random: Random) -> bytes:
    """A name, by GLOBAL or by STACK_GLOBAL."""
    module, name = random.choice(GLOBALS).split(" ")
    if random.random() < 0.7:
        return f"c{module}\n{name}\n".encode()
    return _text(module) + _text(name) + b"\x93"


def _text(value: str) -> bytes:
    held = value.encode("utf-8", "surrogatepass")
    return b"X" + pack("<I", len(held)) + held


def _whole(value: int) -> bytes:
    """A number in the shortest binary form, or a longer one."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + pack("<i", value)
    held = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(held)]) + held if len(held) < 256 else _text(str(value))


def snippet(random: Random) -> bytes:
    """Opcodes that belong together."""
    match random.randrange(12):
        case 0:
            return _global(random)
        case 1:
            return _global(random) + b")R"
        case 2:
            return _global(random) + b")\x81}" + _text("x") + _whole(random.randrange(9)) + b"sb"
        case 3:
            return _global(random) + _text("touch x") + b"\x85R0"
        case 4:
            return b"h" + bytes([random.randrange(64)])
        case 5:
            return b"q" + bytes([random.randrange(64)])
        case 6:
            return _whole(raw.number(random))
        case 7:
            return _text(json_text.text(random, "w"))
        case 8:
            return b"G" + pack(">d", random.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), 1e308)))
        case 9:
            return random.choice(
                (b"]", b"}", b")", b"(", b"N", b"\x88", b"\x89", b"\x8f", b"2", b"0", b"e", b"u", b"s", b"t")
            )
        case 10:
            return b"B" + pack("<I", 4) + b"\0\1\2\xff"
    return random.choice(LOOSE)


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """The opcodes of the first pickle, without frames, and the bytes behind it."""
    found = list(pickletools.genops(io.BytesIO(data)))
    places = [place for _, _, place in found]
    stop = places[-1] + 1
    pieces = [data[start:end] for start, end in zip(places, [*places[1:], stop], strict=True)]
    return [piece for (op, _, _), piece in zip(found, pieces, strict=True) if op.name != "FRAME"], data[stop:]


def mutate(data: bytes, random: Random) -> bytes:
    """One to three mutations of the first pickle; what stands behind it stays."""
    pieces, rest = cut(data)
    for _ in range(random.choice((1, 1, 1, 1, 2))):
        _change(pieces, random)
    return b"".join(pieces) + rest


def _change(pieces: list[bytes], random: Random) -> None:
    at = random.randrange(len(pieces))
    match random.randrange(12):
        case 0:
            del pieces[at]
        case 1:
            pieces.insert(at, random.choice(pieces))
        case 2:
            pieces.insert(at, snippet(random))
        case 3:
            pieces[at] = snippet(random)
        case 4:
            other = random.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        case 5:
            length = random.randint(2, 12)
            to = random.randint(0, len(pieces))
            pieces[to:to] = pieces[at : at + length]
        case 6:
            _one_of(pieces, random, b"c", lambda piece: _global(random))
        case 7 | 8:
            _one_of(pieces, random, b"KMJI\x8a", lambda piece: _whole(raw.number(random, _value(piece))))
        case 9:
            _one_of(pieces, random, b"X\x8cU", lambda piece: _text(_word(pieces, piece, random)))
        case 10:
            _one_of(
                pieces, random, b"hjqr\x94", lambda piece: random.choice((b"h", b"q")) + bytes([random.randrange(40)])
            )
        case 11:
            pieces[at] = raw.mutate(pieces[at], random)


def _one_of(pieces: list[bytes], random: Random, codes: bytes, made) -> None:  # type: ignore[no-untyped-def]
    """Another piece for one with such an opcode."""
    found = [at for at, piece in enumerate(pieces) if piece[:1] in [bytes([code]) for code in codes]]
    if found:
        at = random.choice(found)
        pieces[at] = made(pieces[at])


def _value(piece: bytes) -> int:
    return int(_argument(piece))


def _word(pieces: list[bytes], piece: bytes, random: Random) -> str:
    """Another string of this pickle, or one that programs get wrong."""
    found = [other for other in pieces if other[:1] in (b"X", b"\x8c")]
    if found and random.random() < 0.4:
        piece = random.choice(found)
        return str(_argument(piece))
    return json_text.text(random, str(_argument(piece)))


def _argument(piece: bytes) -> Any:
    """What the one opcode of a piece says."""
    return next(iter(pickletools.genops(piece + b".")))[1]


def mutate_stacked(data: bytes, random: Random) -> bytes:
    """torch's older form: five pickles in a row, then the storages; one of them is mutated."""
    parts, rest = [], data
    for _ in range(5):
        _, after = cut(rest)
        parts.append(rest[: len(rest) - len(after)])
        rest = after
    at = random.choices(range(6), (1, 1, 2, 8, 3, 3))[0]
    if at == 5:
        rest = raw.mutate(rest, random)
    else:
        parts[at] = mutate(parts[at], random)
    return b"".join(parts) + rest
