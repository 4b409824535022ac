"""Makers of ONNX models that lie, byte by byte: no library would write them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.command import Hostile


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def number(field: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(field << 3) + varint(value % (1 << 64))


def block(field: int, content: bytes, length: int | None = None) -> bytes:
    """A field of bytes; `length` is what it says of itself."""
    return varint(field << 3 | 2) + varint(len(content) if length is None else length) + content


# The fields of onnx.proto, so far as they are made here.


def tensor(*more: bytes, name: bytes = b"w", dims: tuple[int, ...] = (2,), code: int = 1) -> bytes:
    """A TensorProto of two float32, whose data are in `more`."""
    return b"".join(number(1, size) for size in dims) + number(2, code) + block(8, name) + b"".join(more)


RAW = block(9, bytes(8))
HONEST = tensor(RAW)
OPSET = block(8, number(2, 20))


def graph(*tensors: bytes, nodes: bytes = b"") -> bytes:
    """A GraphProto."""
    return nodes + b"".join(block(5, one) for one in tensors)


def node(attribute: bytes) -> bytes:
    """A NodeProto of operator If with one attribute."""
    return block(1, block(3, b"n") + block(4, b"If") + block(5, attribute))


def build(held: bytes, after: bytes = OPSET) -> bytes:
    """A ModelProto around a graph."""
    return number(1, 10) + block(2, b"tests") + block(7, held) + after


def made(data: bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    """A maker of a file."""

    def make(folder: Path) -> Path:
        (folder / "model.onnx").write_bytes(data() if callable(data) else data)
        return folder / "model.onnx"

    return make


def holding(*tensors: bytes) -> Callable[[Path], Path]:
    """A maker of a model of tensors."""
    return made(build(graph(*tensors)))


def nested(depth: int) -> bytes:
    """Graphs in graphs."""
    held = graph(HONEST)
    for _ in range(depth):
        held = graph(nodes=node(block(1, b"a") + block(6, held)))
    return build(held)


def external(*pairs: tuple[str, str], name: bytes = b"w") -> bytes:
    """A tensor in another file."""
    entries = b"".join(block(13, block(1, key.encode()) + block(2, value.encode())) for key, value in pairs)
    return tensor(entries, number(14, 1), name=name)


def beside(*pairs: tuple[str, str]) -> Callable[[Path], Path]:
    """A model whose tensor is in `weights.bin`, which has eight bytes, unless the pairs say otherwise."""

    def make(folder: Path) -> Path:
        (folder / "weights.bin").write_bytes(bytes(8))
        return made(build(graph(external(*{"location": "weights.bin", **dict(pairs)}.items()))))(folder)

    return make


def linked(put: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A model, and beside it what `put` makes of the file that it wants."""

    def make(folder: Path) -> Path:
        put(folder / "weights.bin")
        return made(build(graph(external(("location", "weights.bin")))))(folder)

    return make


WIRE: dict[str, Hostile] = {
    "varint_without_end": Hostile(made(build(b"\x08" + b"\xff" * 20)), ("does not end",)),
    "varint_of_70_bits": Hostile(made(build(b"\x08" + b"\xff" * 9 + b"\x7f")), ("64 bits",)),
    "varint_at_the_end": Hostile(made(build(block(5, HONEST + b"\x08\x80"))), ("does not end",)),
    "length_beyond_its_message": Hostile(holding(tensor(block(9, bytes(8), 9))), ("ends at byte",)),
    "length_near_2_to_64": Hostile(holding(tensor(block(9, bytes(8), 2**64 - 1))), ("ends at byte",)),
    "group": Hostile(holding(HONEST + varint(3 << 3 | 3)), ("wire type 3",)),
    "wire_type_7": Hostile(holding(HONEST + varint(40 << 3 | 7)), ("wire type 7",)),
    "field_0": Hostile(holding(HONEST + varint(0) + b"\0"), ("field 0",)),
    "field_2_to_29": Hostile(holding(HONEST + varint(1 << 32) + b"\0"), ("field",)),
    "fixed_cut_short": Hostile(holding(HONEST + varint(40 << 3 | 1) + bytes(7)), ("ends at byte",)),
    "wrong_wire_type": Hostile(holding(HONEST + varint(12 << 3 | 2) + b"\0" + block(2, b"\1")), ("data_type",)),
    "raw_data_twice": Hostile(holding(tensor(RAW, RAW)), ("raw_data", "twice")),
    "name_twice_in_a_tensor": Hostile(holding(HONEST + block(8, b"v")), ("name", "twice")),
    "graph_twice": Hostile(made(build(graph(HONEST)) + block(7, graph(HONEST))), ("graph", "twice")),
    "name_not_utf8": Hostile(holding(tensor(RAW, name=b"\xff\xfe")), ("UTF-8",)),
    "no_opset": Hostile(made(build(graph(HONEST), b"")), ("truncated",)),
    "graphs_nested_too_deep": Hostile(made(lambda: nested(40)), ("nest",)),
    "graphs_nested_ten_thousand_deep": Hostile(made(lambda: nested(10_000)), ("nest",)),
}
TENSORS: dict[str, Hostile] = {
    "more_bytes_than_the_file": Hostile(holding(tensor(RAW, dims=(2**40,))), ("'w'", "8 bytes", "4398046511104")),
    "dims_that_overflow": Hostile(holding(tensor(RAW, dims=(2**33, 2**33))), ("'w'", "too large")),
    "dims_that_overflow_to_the_right_size": Hostile(holding(tensor(RAW, dims=(2**62, 2**2, 2))), ("'w'", "too large")),
    "negative_dim": Hostile(holding(tensor(RAW, dims=(-2,))), ("'w'", "dims")),
    "hundred_dims": Hostile(holding(tensor(RAW, dims=(1,) * 100)), ("'w'", "dims")),
    "million_dims": Hostile(holding(tensor(RAW, block(1, b"\1" * 1_000_000), dims=())), ("'w'", "dims")),
    "huge_and_empty": Hostile(holding(tensor(dims=(2**62, 2**62, 0))), ("'w'", "too large")),
    "unknown_type": Hostile(holding(tensor(RAW, code=99)), ("'w'", "99")),
    "no_type": Hostile(holding(tensor(RAW, code=0)), ("'w'", "data_type 0")),
    "too_few_bytes": Hostile(holding(tensor(block(9, bytes(7)))), ("'w'", "7 bytes")),
    "no_bytes": Hostile(holding(tensor()), ("'w'", "no data")),
    "two_places": Hostile(holding(tensor(RAW, block(4, bytes(8)))), ("'w'", "raw_data and float_data")),
    "wrong_field": Hostile(holding(tensor(block(10, bytes(8)))), ("'w'", "double_data")),
    "too_many_values": Hostile(holding(tensor(block(5, b"\1\2\3"), code=6)), ("'w'", "3 values")),
    "value_too_large": Hostile(holding(tensor(block(5, b"\1" + varint(300)), code=2)), ("'w'", "300")),
    "floats_cut_short": Hostile(holding(tensor(block(4, bytes(7)))), ("'w'", "7 bytes")),
    "name_twice": Hostile(holding(HONEST, HONEST), ("'w'", "twice")),
    "no_name": Hostile(holding(tensor(RAW, name=b"")), ("without a name",)),
    "many_defects": Hostile(
        holding(*[tensor(name=b"w%d" % k) for k in range(5000)]), ("5000 defects", "and 4980 more")
    ),
    "metadata_twice": Hostile(made(build(graph(HONEST)) + block(14, block(1, b"k")) * 2), ("'k'", "twice")),
}
PLACES: dict[str, Hostile] = {
    **{
        f"location_{k}": Hostile(beside(("location", location)), ("outside its own folder",), inspect=4)
        for k, location in enumerate((
            "../secret", "/etc/passwd", "a/../../secret", "..", "C:\\w", "..\\secret", "//host/w",
            "file:///etc/passwd",
        ))
    },
    **{
        f"no_location_{k}": Hostile(beside(("location", location)), ("the name of no file",))
        for k, location in enumerate(("", ".", "w\0.bin", "w\n", "\x1b[2J"))
    },
    "a_link_to_a_device": Hostile(linked(lambda path: path.symlink_to("/dev/zero")), ("not a regular file",)),
    "a_folder": Hostile(linked(lambda path: path.mkdir()), ("a folder",)),
    "a_fifo": Hostile(linked(lambda path: os.mkfifo(path)), ("not a regular file",)),
    "a_link_to_itself": Hostile(linked(lambda path: path.symlink_to("weights.bin")), ("weights.bin",)),
    "not_there": Hostile(beside(("location", "gone.bin")), ("gone.bin", "cannot be read")),
    "no_location": Hostile(holding(external(("offset", "0"))), ("'w'", "no location")),
    "beyond_the_end": Hostile(beside(("offset", "1")), ("'w'", "truncated")),
    "offset_near_2_to_63": Hostile(beside(("offset", str(2**63 - 1))), ("'w'", "truncated")),
    "offset_of_forty_digits": Hostile(beside(("offset", "1" * 40)), ("'w'", "whole number")),
    "offset_below_zero": Hostile(beside(("offset", "-8")), ("'w'", "whole number")),
    "offset_in_other_digits": Hostile(beside(("offset", "\u0661")), ("'w'", "whole number")),
    "wrong_length": Hostile(beside(("length", "4")), ("'w'", "4 bytes")),
    "said_twice": Hostile(holding(external(("location", "a"), ("location", "b"))), ("'w'", "twice")),
    "here_and_there": Hostile(holding(external(("location", "a")) + RAW), ("'w'", "raw_data and another file")),
}  # fmt: skip
