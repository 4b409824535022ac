"""Bundles of TensorFlow, written byte by byte, as TensorFlow reads them (tests/oracles/test_tensorflow.py).

TensorFlow itself writes the fixtures; what it does not write here, or nowhere, is made with this: big-endian numbers,
compressed blocks, several files, and what is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import torch

from paramtool.formats.tensorflow._bundle import crc32c, masked
from tests.contracts.makers_onnx import array

MAGIC = bytes.fromhex("57fb808b247547db")
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
CODES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9, "bool": 10,
    "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
"""DataType, by NumPy's names."""
Pack = Callable[[bytes], bytes]


def varint(value: int) -> bytes:
    """A number, seven bits a byte; negative ones as 64 bits."""
    made = bytearray()
    value %= 1 << 64
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def number(field: int, value: int) -> bytes:
    """A field that is a number; left out if it is 0, as protobuf does."""
    return varint(field << 3) + varint(value) if value else b""


def block(field: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content


# --- the table ------------------------------------------------------------------------------------------------------


def entries(items: Iterable[tuple[bytes, bytes]], interval: int = 16) -> bytes:
    """A block of a table, with a whole key every `interval` rows."""
    made, restarts, before = b"", [], b""
    for k, (key, value) in enumerate(items):
        shared = 0
        if k % interval:
            shared = next(
                (i for i, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), min(len(key), len(before))
            )
        else:
            restarts.append(len(made))
        made += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    return made + b"".join(pack("<I", at) for at in (*restarts, len(restarts)))


def trailed(content: bytes, squeeze: Pack | None = None) -> bytes:
    """A block as it is stored."""
    content, kind = (squeeze(content), b"\1") if squeeze else (content, b"\0")
    return content + kind + pack("<I", masked(crc32c(content + kind)))


def footer(index: tuple[int, int], meta: tuple[int, int] = (0, 8)) -> bytes:
    """The last 48 bytes."""
    return b"".join(map(varint, (*meta, *index))).ljust(40, b"\0") + MAGIC


def table(items: Mapping[bytes, bytes], per_block: int = 1000, squeeze: Pack | None = None) -> bytes:
    """A whole table; its keys are sorted."""
    rows = sorted(items.items())
    made, places = b"", []
    for k in range(0, len(rows), per_block):
        part = trailed(entries(rows[k : k + per_block]), squeeze)
        places.append((rows[min(k + per_block, len(rows)) - 1][0], varint(len(made)) + varint(len(part) - 5)))
        made += part
    meta = trailed(entries([]), squeeze)
    index = trailed(entries(places, 1), squeeze)
    return made + meta + index + footer((len(made) + len(meta), len(index) - 5), (len(made), len(meta) - 5))


# --- the bundle -----------------------------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """A tensor's type, its shape, and its bytes."""

    code: int
    shape: tuple[int, ...]
    data: bytes
    slices: tuple[tuple[tuple[int, int], ...], ...] = ()


def tensor(value: np.ndarray, big: bool = False) -> Tensor:
    """A tensor of an array."""
    return Tensor(CODES[value.dtype.name], value.shape, (value.byteswap() if big else value).tobytes())


def strings(*texts: bytes, big: bool = False) -> tuple[bytes, int]:
    """The bytes of a tensor of strings, and its masked CRC, which is over lengths of four bytes."""
    order = ">I" if big else "<I"
    lengths = crc32c(b"".join(pack(order, len(text)) for text in texts))
    crc = pack(order, masked(lengths))
    body = b"".join(texts)
    return b"".join(varint(len(text)) for text in texts) + crc + body, masked(crc32c(crc + body, lengths))


def header(shards: int, big: bool = False, needs: int = 0) -> bytes:
    """BundleHeaderProto."""
    return number(1, shards) + number(2, big) + block(3, number(1, 1) + number(2, needs))


def dims(shape: Sequence[int]) -> bytes:
    """TensorShapeProto."""
    return b"".join(block(2, number(1, size)) for size in shape)


def entry(code: int, shape: Sequence[int], at: tuple[int, int, int], crc: int, more: bytes = b"") -> bytes:
    """BundleEntryProto; `at` is the file, the start and the size."""
    shard, start, nbytes = at
    made = number(1, code) + block(2, dims(shape)) + number(3, shard) + number(4, start) + number(5, nbytes)
    return made + varint(6 << 3 | 5) + pack("<I", crc) + more


def extents(one: Sequence[tuple[int, int]]) -> bytes:
    """TensorSliceProto; a length of -1 is the whole axis."""
    return b"".join(block(1, b"" if n < 0 else number(1, start) + varint(2 << 3) + varint(n)) for start, n in one)


def write(
    prefix: Path,
    tensors: Mapping[bytes, Tensor],
    graph: bytes | None = None,
    *,
    shards: int = 1,
    big: bool = False,
    per_block: int = 1000,
    squeeze: Pack | None = None,
) -> Path:
    """A bundle; the path of its index."""
    data = [bytearray() for _ in range(shards)]
    rows = {b"": header(shards, big)}
    for k, (key, one) in enumerate(tensors.items()):
        if one.slices:
            rows[key] = entry(
                one.code, one.shape, (0, 0, 0), 0, b"".join(block(7, extents(each)) for each in one.slices)
            )
            continue
        shard = data[k % shards]
        rows[key] = entry(one.code, one.shape, (k % shards, len(shard), len(one.data)), masked(crc32c(one.data)))
        shard += one.data
    if graph is not None:
        text, crc = strings(graph, big=big)
        rows[GRAPH.encode()] = entry(7, (), (0, len(data[0]), len(text)), crc)
        data[0] += text
    for k, shard in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{k:05d}-of-{shards:05d}").write_bytes(shard)
    path = prefix.with_name(f"{prefix.name}.index")
    path.write_bytes(table(rows, per_block, squeeze))
    return path


# --- the graph of objects -------------------------------------------------------------------------------------------

Edges = Iterable[tuple[str, int]]


def node(children: Edges = (), full_name: str = "", key: str = "", slots: Iterable[tuple[int, str, int]] = ()) -> bytes:
    """A TrackableObject."""
    made = b"".join(block(1, number(1, child) + block(2, name.encode())) for name, child in children)
    if key:
        value = block(1, b"VARIABLE_VALUE") + block(2, full_name.encode()) + block(3, (key + VALUE).encode())
        made += block(2, value)
    return made + b"".join(
        block(3, number(1, one) + block(2, name.encode()) + number(3, other)) for one, name, other in slots
    )


def graph(*nodes: bytes) -> bytes:
    """A TrackableObjectGraph."""
    return b"".join(block(1, one) for one in nodes)


# --- the cases of the contract tests --------------------------------------------------------------------------------


def plain(folder: Path, tensors: Mapping[str, torch.Tensor], **options: Any) -> Path:
    """Variables under their names, as TensorFlow 1 saves them."""
    return write(folder / "model.ckpt", {n.encode(): tensor(array(t)) for n, t in tensors.items()}, **options)


def shared(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Objects, one of which has two paths; the others have names of their own."""
    values = {name: array(value) for name, value in tensors.items() if name != "head.weight"}
    edges = [(name, k + 1) for k, name in enumerate(values)]
    nodes = [node(key=f"n{k}") for k in range(len(values))]
    first = graph(node([*edges, ("head.weight", 1)]), *nodes)
    return write(folder / "model", {f"n{k}{VALUE}".encode(): tensor(v) for k, v in enumerate(values.values())}, first)


def held_shared(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, np.ndarray]:
    """What `shared` wrote, with dots in names doubled as TensorFlow writes them in paths."""
    found = {name.replace(".", ".."): array(value) for name, value in tensors.items()}
    return {**found, "head..weight": found["emb..weight"]}
