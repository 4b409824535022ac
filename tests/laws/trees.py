"""Trees of objects as a record spells them: honest and hostile ones, of every class that the table knows."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from typing import Any

from paramtool.formats.torch._classes import ARRAYS, DTYPE, FORMS, NAMES, SCALARS

KINDS = ("dict", "collections.OrderedDict", "collections.Counter", "collections.defaultdict", "other.Dict", "", "list")
ROWS = (
    "list", "tuple", "torch.Size", "builtins.set", "builtins.frozenset", "collections.deque", "other.List", "dict", "",
)  # fmt: skip
TEXTS = ("", "x", "cpu", "cuda:0", "cuda:-1", "cuda:x", "meta", "torch.strided", "strided", "1.50", "1/3", "NaN", "1e9",
         "latin1", "utf-8", "ü", "\ud800", "a\nb", "torch.float32", "d" * 300)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 255, 256, 65536, 2**31, -(2**31) - 1, 2**53, 1.5, -0.0, True, False, None)
BYTES = (b"", b"\0", b"\x07\xe4\x01\x02", b"\xff\xff\xff\xff", b"\x07\xe4\x01\x02\x03\x04\x05\x00\x00\x06",
         b"\x01\x02\x03\x00\x00\x04", b"\xff" * 6, b"\xff" * 10)  # fmt: skip
CLASSES = (*FORMS, *sorted(NAMES), *sorted(ARRAYS), *sorted(SCALARS), DTYPE, "torch.float32", "torch.bfloat16",
           "torch.Tensor", "torch.uint1", "torch.nn", "torch.load", "torch.float99", "torch.qint8", "os.system",
           "builtins.eval", "a b", "x", "", "torch.per_tensor_affine", "torch.serialization._get_layout")  # fmt: skip


def scalar(random: Random) -> Any:
    """A plain value."""
    match random.randrange(8):
        case 0 | 1:
            return random.choice(TEXTS)
        case 2:
            return {"bytes": b64encode(random.choice(BYTES)).decode()}
        case 3:
            return {"complex": [random.choice((0.0, -1.5)), 2.0]}
        case 4:
            return {"float": random.choice(("nan", "inf", "-inf"))}
        case 5:
            return {"int": str(random.choice((2**63, -(2**64), 2**2000)))}
    return random.choice(NUMBERS)


def key(random: Random, depth: int) -> Any:
    """The key of a pair."""
    match random.randrange(10):
        case 0:
            return {"key": node(random, depth + 1, ("seq", "opaque"))}
        case 1:
            return {"tuple": [scalar(random), scalar(random)]}
        case 2:
            return {"tensor": "w"}
        case 3 | 4:
            return scalar(random)
    return random.choice("abcdefg")


def node(random: Random, depth: int = 0, tags: tuple[str, ...] = ("map", "map", "seq", "opaque", "scalar")) -> Any:
    """A tree of at most four levels."""
    tag = random.choice(tags) if depth < 4 else "scalar"
    more: dict[str, Any] = {}
    if random.random() < 0.1:
        more["mark"] = random.choice((1, 2))
    if random.random() < 0.15:
        more["args"] = [node(random, depth + 1) for _ in range(random.randint(1, 2))]
    match tag:
        case "map":
            if random.random() < 0.1:
                more["attributes"] = node(random, depth + 1)
            items = [[key(random, depth), node(random, depth + 1)] for _ in range(random.randint(0, 3))]
            return {"map": random.choice(KINDS), "items": items, **more}
        case "seq":
            return {"seq": random.choice(ROWS), "items": [node(random, depth + 1) for _ in range(random.randint(0, 3))],
                    **more}  # fmt: skip
        case "opaque":
            return {"opaque": random.choice(CLASSES), "parts": parts(random, depth), **more}
    match random.randrange(12):
        case 0:
            return {"again": random.choice(("", "a", "a.b", "0", "w"))}
        case 1:
            return {"tensor": random.choice(("w", "w", "v"))}
        case 2:
            return array(random)
        case 3:
            return {"left_out": "something"}
    return scalar(random)


def parts(random: Random, depth: int) -> list[list[Any]]:
    """What an object is made of."""
    found: list[list[Any]] = []
    if random.random() < 0.8:
        row = [
            scalar(random) if random.random() < 0.8 else node(random, depth + 1) for _ in range(random.randint(0, 3))
        ]
        found.append(["args", {"seq": "tuple", "items": row}])
    if random.random() < 0.3:
        pairs = [
            [random.choice((*"abc", "int", "is_safe")), node(random, depth + 1)] for _ in range(random.randint(0, 2))
        ]
        found.append(["state", {"map": "dict", "items": pairs} if random.random() < 0.7 else node(random, depth + 1)])
    if random.random() < 0.2:
        found.append(["data", array(random) if random.random() < 0.7 else {"tensor": "w"}])
    if random.random() < 0.1:
        found.append([random.choice(("dtype", "order", "text", "items")), node(random, depth + 1)])
    return found


def array(random: Random) -> Any:
    """An array of NumPy's, not always of as many bytes as it says."""
    dtype = random.choice(
        ("<f4", "<i8", "|b1", "<U2", "|S3", "<M8", "|O", "O", "|V4", "<f3", "", "x", ">f4", "f4", "<c8")
    )
    shape = random.choice(([], [2], [0], [1, 2], [-1], [2**40]))
    return {"array": [dtype, shape, random.choice("CFx"), b64encode(bytes(random.choice((0, 4, 8, 16)))).decode()]}


def tree(random: Random) -> Any:
    """The objects of a record for a file whose one tensor is `w`."""
    found = node(random, 0, ("map",))
    if random.random() < 0.9:
        found["items"].append(random.choice((["w", {"tensor": "w"}], 1)))
    return found
