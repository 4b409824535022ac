"""Mutations of safetensors: the header as JSON, the records in its metadata, its length, where data begin and end."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.mutators import json_text, raw

SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
         "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip


def _split(data: bytes) -> tuple[Any, bytes]:
    """The tree of the header, and the data behind it."""
    stop = 8 + int.from_bytes(data[:8], "little")
    return json_text.parse(data[8:stop]), data[stop:]


def _joined(header: bytes, body: bytes, random: Random) -> bytes:
    header += b" " * (-len(header) % 8 if random.random() < 0.9 else random.randrange(9))
    return len(header).to_bytes(8, "little") + header + body


def _tensors(tree: Any) -> list[Any]:
    return [pair for pair in tree if pair[0] != "__metadata__" and isinstance(pair[1], json_text.Pairs)]


def mutate(data: bytes, random: Random) -> bytes:
    """One mutation of a whole file."""
    tree, body = _split(data)
    match random.randrange(8):
        case 0:
            return _length(data, random)
        case 1:
            body = raw.mutate(body, random)
        case 2:
            _move(tree, random)
        case 3:
            _retype(tree, random)
        case 4 | 5:
            return _joined(json_text.mutate(json_text.dump(tree).encode(), random), body, random)
        case 6:
            _describe(tree, random)
        case 7:
            json_text.change(tree, random)
    return _joined(json_text.encoded(tree, random), body, random)


def mutate_record(data: bytes, random: Random) -> bytes:
    """One to three mutations of the alias record, or of the record of layouts; several keep its form more often."""
    tree, body = _split(data)
    metadata = next(pair[1] for pair in tree if pair[0] == "__metadata__")
    pair = random.choice([pair for pair in metadata if pair[0].startswith("paramtool.")])
    record = json_text.parse(pair[1])
    for _ in range(random.choice((1, 1, 1, 2))):
        json_text.change(record, random)
    pair[1] = json_text.dump(record)
    return _joined(json_text.encoded(tree, random), body, random)


def _length(data: bytes, random: Random) -> bytes:
    """A header that is said to be longer or shorter than it is."""
    value = raw.number(random, int.from_bytes(data[:8], "little"))
    return (value % (1 << 64)).to_bytes(8, "little") + data[8:]


def _move(tree: Any, random: Random) -> None:
    """Data that begin or end elsewhere: one number, or both by the same amount."""
    pair = random.choice(_tensors(tree))
    for said in pair[1]:
        if said[0] == "data_offsets":
            start, stop = said[1]
            by = random.choice((-8, -4, -1, 1, 4, 8, stop - start, start - stop))
            match random.randrange(4):
                case 0:
                    said[1] = [start + by, stop + by]
                case 1:
                    said[1] = [raw.number(random, start), stop]
                case 2:
                    said[1] = [start, raw.number(random, stop)]
                case 3:
                    said[1] = [stop, start]


def _retype(tree: Any, random: Random) -> None:
    """Another type, with a shape that still fits where that is possible."""
    pair = random.choice(_tensors(tree))
    said = {key: k for k, (key, _) in enumerate(pair[1])}
    start, stop = pair[1][said["data_offsets"]][1]
    name, size = random.choice(sorted(SIZES.items()))
    pair[1][said["dtype"]][1] = name
    count = (stop - start) // size
    pair[1][said["shape"]][1] = random.choice(([count], [1, count], [count, 1], [count // 2, 2], [0, count], []))


def _describe(tree: Any, random: Random) -> None:
    """The description of one tensor for another, or one more tensor on the same bytes, or one of no bytes."""
    tensors = _tensors(tree)
    one, other = random.choice(tensors), random.choice(tensors)
    match random.randrange(3):
        case 0:
            one[1] = other[1]
        case 1:
            tree.insert(random.randint(0, len(tree)), [json_text.text(random, one[0]), other[1]])
        case 2:
            at = random.choice((0, *[said[1][1] for said in one[1] if said[0] == "data_offsets"]))
            empty = [
                ["dtype", "F32"],
                ["shape", random.choice(([0], [2**40, 0], [0, 2**63]))],
                ["data_offsets", [at, at]],
            ]
            tree.append([json_text.text(random, one[0]), json_text.Pairs(empty)])
