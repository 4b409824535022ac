"""Mutations of ONNX: protobuf's fields as a tree, of which any can be lost, doubled, changed, or lie of its length."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from tests.fuzz.mutators import json_text, raw

MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset", 14: "entry", 25: "function"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse"},
    "tensor": {13: "entry"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node"},
    "value": {2: "type"}, "type": {1: "tensor_type"}, "tensor_type": {2: "shape"}, "shape": {1: "dimension"},
    "opset": {}, "entry": {}, "dimension": {},
}  # fmt: skip
"""onnx.proto: which fields of a message are messages."""


@dataclass
class Field:
    """A field; `fields` holds those of a message, `value` everything else."""

    number: int
    wire: int
    value: int | bytes
    kind: str = ""
    fields: list[Field] | None = None
    lie: int = 0
    """Added to the length that is written."""


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    made, value = bytearray(), value % (1 << 64)
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def parse(data: bytes, kind: str) -> list[Field]:
    """The fields of a message."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _read(data, at)
            found.append(Field(number, wire, value))
            continue
        if wire == 2:
            length, at = _read(data, at)
        else:
            length = {1: 8, 5: 4}[wire]
        content = data[at : at + length]
        at += length
        inner = MESSAGES[kind].get(number) if wire == 2 else None
        found.append(Field(number, wire, content, inner or "", parse(content, inner) if inner else None))
    return found


def dump(fields: list[Field]) -> bytes:
    """The bytes of a message."""
    made = bytearray()
    for field in fields:
        made += varint(field.number << 3 | field.wire)
        content = field.value if field.fields is None else dump(field.fields)
        if isinstance(content, int):
            made += varint(content)
        elif field.wire == 2:
            made += varint(max(0, len(content) + field.lie)) + content
        else:
            made += content
    return bytes(made)


def messages(fields: list[Field]) -> Iterator[list[Field]]:
    """A message, and all in it, that have fields."""
    if fields:
        yield fields
    for field in fields:
        if field.fields is not None:
            yield from messages(field.fields)


def mutate(data: bytes, random: Random) -> bytes:
    """One to three mutations of the tree."""
    tree = parse(data, "model")
    for _ in range(random.choice((1, 1, 1, 2))):
        _change(tree, random)
    return dump(tree)


def _change(tree: list[Field], random: Random) -> None:
    found = list(messages(tree))
    message = random.choice(found)
    at = random.randrange(len(message))
    field = message[at]
    match random.randrange(10):
        case 0:
            del message[at]
        case 1:
            message.insert(random.randint(0, len(message)), field)
        case 2:
            field.number = random.choice((raw.number(random, field.number) % (1 << 29), random.randrange(1, 30)))
        case 3:
            field.wire = random.choice((0, 1, 2, 3, 5))
        case 4:
            field.lie = random.choice((-1, 1, -4, 4, 1000, 1 << 31, 1 << 62))
        case 5:
            message[at] = deepcopy(random.choice(random.choice(found)))
        case 6:
            random.shuffle(message)
        case _:
            _revalue(field, random)


def _revalue(field: Field, random: Random) -> None:
    """Another number, text or content."""
    if isinstance(field.value, int):
        field.value = raw.number(random, field.value)
    elif field.fields is not None and random.random() < 0.8:
        if field.fields:
            _change(field.fields, random)
    elif random.random() < 0.5 and field.value.isascii():
        field.value = json_text.text(random, field.value.decode()).encode("utf-8", "surrogatepass")
        field.fields = None
    else:
        field.value = raw.mutate(field.value, random)
        field.fields = None
