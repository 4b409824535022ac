"""The worst files of about n bytes that we know, for every format: what costs a reader most for each byte.

`WORST` maps a name to a maker `(folder, n) -> path`.  Each stands for one way to make much of little: many names, many
windows on one storage, one thing at many places, one long name in many names, keys that collide, what inflates.
Pickles are assembled by hand and never unpickled here.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import h5py
import snappy

from tests.contracts import makers_tensorflow as bundles
from tests.contracts.makers_arrays import name_of
from tests.hostile import makers_arrays, makers_bson, makers_onnx, makers_sharded, makers_torch
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_safetensors import ALIAS, KEY, RECORD, build, item
from tests.hostile.makers_torch import deflated, name, number, numbers, row, tensor
from tests.hostile.makers_zip import Part, central, end, local

Maker = Callable[[Path, int], Path]


def zipped(*parts: Part, comment: bytes = b"") -> bytes:
    """A zip archive, made in linear time."""
    members, lines, at = [], [], 0
    for part in parts:
        lines.append(central(part, at))
        members.append(local(part))
        at += len(members[-1])
    directory = b"".join(lines)
    return b"".join(members) + directory + end(len(parts) & 0xFFFF, len(directory), at, comment)


def tensorflow_rows(folder: Path, n: int) -> Path:
    """Many tensors, which stand one behind the other in their file."""
    rows = {b"%x" % k: bundles.Tensor(6, (1,), b"a") for k in range(n // 30)}
    return bundles.write(folder / "m", rows, per_block=50)


def tensorflow_long_keys(folder: Path, n: int) -> Path:
    """Rows that share one long prefix, and so take few bytes."""
    long = b"k" * (n // 20)
    rows = {b"": bundles.header(1), **{long + b"%06x" % k: b"" for k in range(n // 8)}}
    return written(folder, "m.index", bundles.table(rows, per_block=n))


def tensorflow_packed(folder: Path, n: int) -> Path:
    """Blocks that snappy compressed as far as it can."""
    rows = {b"": bundles.header(1), **{b"%06x" % k + b"a" * 4000: b"" for k in range(n // 200)}}
    return written(folder, "m.index", bundles.table(rows, 10, snappy.compress))


def tensorflow_objects(folder: Path, n: int, *nodes: bytes) -> Path:
    """A bundle with a graph of objects, whose last node is a variable."""
    graph = bundles.graph(*nodes, bundles.node(key="w"))
    return bundles.write(folder / "m", {b"w" + bundles.VALUE.encode(): bundles.Tensor(6, (1,), b"a")}, graph)


def tensorflow_diamonds(folder: Path, n: int) -> Path:
    """Two ways to each next node: paths without number."""
    two = (bundles.node([("a", k + 1), ("b", k + 1)]) for k in range(n // 20))
    return tensorflow_objects(folder, n, *two)


def tensorflow_everything(folder: Path, n: int) -> Path:
    """Nodes each of which leads to all: as many cycles as there can be."""
    count = int((n / 8) ** 0.5)
    nodes = (bundles.node([(f"{k:x}", k) for k in range(count + 1)]) for _ in range(count))
    return tensorflow_objects(folder, n, *nodes)


def tensorflow_long_edges(folder: Path, n: int) -> Path:
    """An edge with a long name, and many variables below it."""
    count = n // 60
    keys = [f"{k:x}" for k in range(count)]
    below = bundles.node([(key, k + 2) for k, key in enumerate(keys)])
    graph = bundles.graph(bundles.node([("e" * (n // 4), 1)]), below, *(bundles.node(key=key) for key in keys))
    rows = {(key + bundles.VALUE).encode(): bundles.Tensor(6, (1,), b"a") for key in keys}
    return bundles.write(folder / "m", rows, graph)


def written(folder: Path, file: str, data: bytes) -> Path:
    """A file with these bytes."""
    (folder / file).write_bytes(data)
    return folder / file


# --- pickles: bodies of about n bytes, which stand between the protocol and STOP ---------------------------------

T = tensor() + b"r" + pack("<I", 900_000) + b"0"
"""A tensor, memoized and taken off the stack."""
GET = b"j" + pack("<I", 900_000)


def put(key: int) -> bytes:
    """Memoize what is on top, and take it off."""
    return b"r" + pack("<I", key) + b"0"


def get(key: int) -> bytes:
    """What was memoized."""
    return b"j" + pack("<I", key)


def many_names(n: int) -> bytes:
    """A dict of one tensor under many names."""
    return T + b"}(" + b"".join(text(f"{k:x}") + GET for k in range(n // 14)) + b"u"


def many_tensors(n: int) -> bytes:
    """As torch writes them: every tensor written out, on a storage of its own."""
    return b"}(" + b"".join(text(f"{k:x}") + tensor() for k in range(n // 200)) + b"u"


def many_windows(n: int) -> bytes:
    """Every tensor another window on one storage, which overlaps with its neighbours."""
    count = max(n // 150, 3)
    head = makers_torch.storage(numel=number(count + 2)) + put(1)
    make = name("torch._utils", "_rebuild_tensor_v2") + put(2) + makers_torch.HOOKS + put(3) + numbers((1,)) + put(4)
    windows = (
        text(f"{k:x}") + get(2) + row(get(1), number(k), numbers((2,)), get(4), b"\x89", get(3)) + b"R"
        for k in range(count)
    )
    return head + make + b"}(" + b"".join(windows) + b"u"


def long_prefix(n: int) -> bytes:
    """Half of it one key, and below it many tensors: each has the key in its name."""
    return T + b"}" + text("k" * (n // 2)) + b"](" + GET * (n // 10) + b"es"


def long_prefix_wide(n: int) -> bytes:
    """The same with characters that take four bytes in memory."""
    return T + b"}" + text("\U0001f600" * (n // 8)) + b"](" + GET * (n // 10) + b"es"


def long_string(n: int) -> bytes:
    """Half of it one string, which many places refer to."""
    return text("s" * (n // 2)) + put(1) + b"](" + get(1) * (n // 10) + b"e"


def long_class(n: int) -> bytes:
    """Objects of a class with a long name."""
    return name("m" * 2000, "C" * 2000) + put(1) + b"](" + (get(1) + b")\x81") * (n // 7) + b"e"


def long_names_in_pairs(n: int) -> bytes:
    """Many modules and many names, all long, and every pair of them a class."""
    many = max(int((n / 20) ** 0.5), 2)
    long = n // (4 * many)
    words = b"".join(text(f"{k:06}" + "m" * long) + put(k) for k in range(2 * many))
    return words + b"](" + b"".join(get(k) + get(many + j) + b"\x93" for k in range(many) for j in range(many)) + b"e"


def deep(n: int) -> bytes:
    """Dicts in dicts, as deep as they may be, with a tensor at each level, side by side as often as there is room."""
    one = b"".join(b"}(" + text("k") + GET + text("d") for _ in range(150)) + b"N" + b"u" * 150
    return T + b"](" + one * max(n // len(one), 1) + b"e"


def deep_alone(n: int) -> bytes:
    """Dicts in dicts without end."""
    return b"".join(b"}" + text("d") for _ in range(n // 8)) + b"N" + b"s" * (n // 8)


def deep_keys(n: int) -> bytes:
    """150 levels with long keys, and tensors at the bottom."""
    key = "k" * (n // 450)
    return T + b"".join(b"}" + text(key) for _ in range(150)) + b"](" + GET * (n // 10) + b"e" + b"s" * 150


def doubled(n: int) -> bytes:
    """A list that holds a list twice, and so on, over one tensor: what the finding `places.pt` does."""
    body = b"](" + T + GET + b"e" + put(0)
    for level in range(60):
        body += b"](" + get(level) * 2 + b"e" + put(level + 1)
    return body + b"](" + get(60) + b"N" * n + b"e"


def doubled_within_bounds(n: int) -> bytes:
    """The same, as often as it may be and a little less, without tensors."""
    places, level = 2, 0
    body = b"](" + b"NN" + b"e" + put(0)
    while 2 * places + 1 < max(90_000, 3 * n):
        body += b"](" + get(level) * 2 + b"e" + put(level + 1)
        places, level = 2 * places + 1, level + 1
    return body + b"](" + get(level) + b"N" * n + b"e"


def doubled_tensors(n: int) -> bytes:
    """The same with as many tensors as there may be."""
    places, level = 1, 0
    body = b"](" + T + GET + b"e" + put(0)
    while 2 * places < max(45_000, n // 5):
        body += b"](" + get(level) * 2 + b"e" + put(level + 1)
        places, level = 2 * places, level + 1
    return body + b"](" + get(level) + b"N" * n + b"e"


def doubled_tuples(n: int) -> bytes:
    """Tuples that hold tuples twice."""
    body = b")" + put(0)
    for level in range(60):
        body += get(level) * 2 + b"\x86" + put(level + 1)
    return body + b"](" + get(60) + b"N" * n + b"e"


def shared_wide(n: int) -> bytes:
    """A long list of lists that are one long list."""
    half = n // 12
    return b"](" + b"N" * half + b"e" + put(1) + b"](" + get(1) * half + b"e"


def shared_tensors(n: int) -> bytes:
    """A long list of lists that are one long list of tensors."""
    half = n // 12
    return T + b"](" + GET * half + b"e" + put(1) + b"](" + get(1) * half + b"e"


def nan_keys(n: int) -> bytes:
    """NaN is not NaN: all of them are keys of one dict, called alike."""
    return T + b"}(" + (b"G" + pack(">d", float("nan")) + GET) * (n // 14) + b"u"


def keys_called_alike(n: int) -> bytes:
    """Keys 0 and '0', and the names that telling them apart would make."""
    keys = (number(k) + GET + text(f"{k}") + GET + text(f"{k}\\2") + GET for k in range(n // 40))
    return T + b"}(" + b"".join(keys) + b"u"


def objects_as_keys(n: int) -> bytes:
    """Objects of one class as keys: all are called by its name."""
    make = name("pathlib", "PurePosixPath") + put(1)
    return T + make + b"}(" + (get(1) + b")\x81" + GET) * (n // 12) + b"u"


def tuples_as_keys(n: int) -> bytes:
    """Tuples, which are hashed anew each time."""
    return b"}(" + b"".join(number(k) + number(-k) + b"\x86N" for k in range(n // 12)) + b"u"


def tensors_as_keys(n: int) -> bytes:
    """Tensors as keys, as torch 0 had them in the states of optimizers."""
    return T + b"](" + (b"}" + GET + b"Ns") * (n // 8) + b"e"


def memo(n: int) -> bytes:
    """Nothing but the memo."""
    return b"N" + b"\x94" * n


def lists(n: int) -> bytes:
    """Empty lists: one byte makes an object."""
    return b"](" + b"]" * n + b"e"


def tuples(n: int) -> bytes:
    """Tuples around tuples in rows."""
    return b"](" + b"N\x85\x85\x85" * (n // 4) + b"e"


def instances(n: int) -> bytes:
    """Objects with a state each."""
    make = name("argparse", "Namespace") + put(1)
    return make + b"](" + (get(1) + b")\x81}b") * (n // 9) + b"e"


def unknown_classes(n: int) -> bytes:
    """Another unknown class each time, called."""
    return b"](" + b"".join(name("m", f"C{k:x}") + b")R" for k in range(n // 12)) + b"e"


def states_merged(n: int) -> bytes:
    """One big state, set on many objects."""
    state = b"}(" + b"".join(number(k) + b"N" for k in range(n // 12)) + b"u" + put(1)
    make = name("argparse", "Namespace") + put(2)
    return state + make + b"](" + (get(2) + b")\x81" + get(1) + b"b") * (n // 28) + b"e"


def long_shape(n: int) -> bytes:
    """One shape with very many axes, of very many tensors."""
    half = n // 10
    shape = b"(" + b"K\x01" * half + b"t" + put(1)
    make = name("torch._utils", "_rebuild_tensor_v2") + put(2) + makers_torch.storage() + put(3)
    one = get(2) + b"(" + get(3) + b"K\x00" + get(1) + get(1) + b"\x89NtR"
    return shape + make + b"](" + one * (n // 40) + b"e"


def long_enough_shape(n: int) -> bytes:
    """The same, with as many axes as there may be."""
    shape = b"(" + b"K\x01" * 1000 + b"t" + put(1)
    make = name("torch._utils", "_rebuild_tensor_v2") + put(2) + makers_torch.storage() + put(3)
    one = get(2) + b"(" + get(3) + b"K\x00" + get(1) + get(1) + b"\x89NtR"
    return shape + make + b"](" + one * (n // 30) + b"e"


def subclass_state(n: int) -> bytes:
    """Subclasses of tensor whose state is one maze of lists."""
    maze = b"N" + put(0)
    for level in range(6):
        maze += b"](" + get(level) * (n // 100) + b"e" + put(level + 1)
    meta = name("torch._utils", "_rebuild_wrapper_subclass") + put(10) + name("torch", "float32") + put(11)
    args = row(b"N", get(11), b")", b")", b"K\x00", b"N", b"N", b"\x89") + put(12)
    make = name("torch._tensor", "_rebuild_from_type_v2") + put(13) + name("a", "Sub") + put(14)
    one = get(13) + b"(" + get(10) + get(14) + get(12) + get(6) + b"tR"
    return maze + meta + args + make + b"](" + one * (n // 60) + b"e"


def compounds(n: int) -> bytes:
    """Sparse tensors of sparse tensors, with twice as many parts each time."""
    make = name("torch._utils", "_rebuild_sparse_tensor") + put(1) + name("torch", "sparse_coo") + put(2)
    body = T + make + GET + put(0x1000)
    for level in range(40):
        body += get(1) + row(get(2), row(get(0x1000 + level) * 2, numbers((2,)))) + b"R" + put(0x1001 + level)
    return body + b"](" + b"N" * n + get(0x1028) + b"e"


def dtype_maze(n: int) -> bytes:
    """A dtype of NumPy's whose state is a maze, for many arrays."""
    maze = b"N" + put(0)
    for level in range(60):
        maze += get(level) * 2 + b"\x86" + put(level + 1)
    dtype = name("numpy", "dtype") + row(text("f4"), b"\x89", b"\x88") + b"R" + row(*([b"N"] * 7), get(60)) + b"b"
    make = name("numpy.core.multiarray", "_reconstruct") + put(70) + name("numpy", "ndarray") + put(71)
    one = get(70) + row(get(71), b")", b"Cb") + b"R"
    return maze + dtype + put(72) + make + b"](" + b"".join(
        one + row(b"K\x01", row(b"K\x01"), get(72), b"\x89", b"C\x04abcd") + b"b" for _ in range(n // 50)
    ) + b"e"  # fmt: skip


def dtype_with_a_long_order(n: int) -> bytes:
    """A dtype whose byte order is a text of any length, for many scalars."""
    dtype = name("numpy", "dtype") + row(text("f4"), b"\x89", b"\x88") + b"R" + put(1)
    state = get(1) + row(b"K\x03", text("<" * (n // 2)), *([b"N"] * 3)) + b"b" + put(1)
    make = name("numpy.core.multiarray", "scalar") + put(2)
    return dtype + state + make + b"](" + (get(2) + row(get(1), b"C\x04abcd") + b"R") * (n // 40) + b"e"


def arrays_of_one_text(n: int) -> bytes:
    """Many arrays of strings that are one long run of bytes."""
    half = n // 2 // 4 * 4
    dtype = name("numpy", "dtype") + row(text("S4"), b"\x89", b"\x88") + b"R" + put(1)
    state = row(b"K\x03", text("|"), b"N", b"N", b"N", b"K\x04", b"K\x01", b"K\x00")
    make = name("numpy.core.multiarray", "_reconstruct") + put(2) + name("numpy", "ndarray") + put(3)
    held = b"B" + pack("<I", half) + bytes(half) + put(4)
    one = (
        get(2)
        + row(get(3), row(b"K\x00"), b"C\x01b")
        + b"R"
        + row(b"K\x01", row(number(half // 4)), get(1), b"\x89", get(4))
        + b"b"
    )
    return dtype + get(1) + state + b"b0" + make + held + b"](" + one * (n // 2 // len(one)) + b"e"


def itself(n: int) -> bytes:
    """Lists that hold themselves, each with a long name above it."""
    return b"}" + text("k" * (n // 2)) + b"](" + (b"]r" + pack("<I", 5) + get(5) + b"a") * (n // 30) + b"es"


PICKLES: dict[str, Callable[[int], bytes]] = {
    made.__name__: made
    for made in (
        many_names, many_tensors, many_windows, long_prefix, long_prefix_wide, long_string, long_class,
        long_names_in_pairs, deep, deep_alone, deep_keys, doubled, doubled_within_bounds, doubled_tensors,
        doubled_tuples, shared_wide, shared_tensors, nan_keys, keys_called_alike, objects_as_keys, tuples_as_keys,
        tensors_as_keys, memo, lists, tuples, instances, unknown_classes, states_merged, long_shape,
        long_enough_shape, subclass_state, compounds, dtype_maze, dtype_with_a_long_order, arrays_of_one_text, itself,
    )
}  # fmt: skip


def pickled(make: Callable[[int], bytes]) -> Maker:
    """A torch file around a pickle."""

    def maker(folder: Path, n: int) -> Path:
        data = makers_torch.DATA if make is not many_windows else bytes(4 * (max(n // 150, 3) + 2))
        return written(folder, "model.pt", zipped(*makers_torch.parts(PROTO + make(n) + b".", s0=data)))

    return maker


INFLATED = 500
"""How many times as many bytes deflated pickles have."""


def packed(make: Callable[[int], bytes]) -> Maker:
    """A torch file around a deflated pickle, n bytes once it is deflated, or less."""

    def maker(folder: Path, n: int) -> Path:
        pickle, *others = makers_torch.parts(PROTO + make(n * INFLATED) + b".", s0=makers_torch.DATA)
        squeezed = Part(
            pickle.name, deflated(pickle.payload), 8, nbytes=len(pickle.payload), crc32=zlib.crc32(pickle.payload)
        )
        return written(folder, "model.pt", zipped(squeezed, *others))

    return maker


PACKED = (shared_wide, nan_keys, memo, lists, doubled_tensors, long_string, objects_as_keys)

# --- zip, stacked pickles, tar -----------------------------------------------------------------------------------


def many_members(folder: Path, n: int) -> Path:
    """A torch archive with members that nobody asks for."""
    others = (Part(f"archive/x/{k:x}".encode(), b"") for k in range(n // 110))
    return written(folder, "model.pt", zipped(*makers_torch.parts(), *others))


def many_pickles(folder: Path, n: int) -> Path:
    """Members that are pickles, which torch does not look at."""
    others = (Part(f"archive/x/{k:x}.pkl".encode(), PROTO + b"N.") for k in range(n // 120))
    return written(folder, "model.pt", zipped(*makers_torch.parts(), *others))


def packed_pickles(folder: Path, n: int) -> Path:
    """The same, deflated: each inflates to 200 times its size."""
    body = PROTO + b"](" + b"N" * 20_000 + b"e."
    small = deflated(body)
    others = (
        Part(f"archive/x/{k:x}.pkl".encode(), small, 8, nbytes=len(body), crc32=zlib.crc32(body))
        for k in range(n // (len(small) + 110))
    )
    return written(folder, "model.pt", zipped(*makers_torch.parts(), *others))


def defective_members(folder: Path, n: int) -> Path:
    """Every member has a defect."""
    others = (Part(f"archive/../{k:x}".encode(), b"", flags=1) for k in range(n // 110))
    return written(folder, "model.pt", zipped(*makers_torch.parts(), *others))


def long_member_names(folder: Path, n: int) -> Path:
    """Names of 60 kB in the directory."""
    others = (Part(f"archive/{k:x}".encode() + b"n" * min(60_000, n // 4), b"") for k in range(2))
    return written(folder, "model.pt", zipped(*makers_torch.parts(), *others))


def many_headers(folder: Path, n: int) -> Path:
    """A damaged archive: local headers whose names reach over all the others, to one pickle behind them."""
    many = min(n // 60, 1000)
    heads = b"".join(
        pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 30 * (many - k - 1), 0) for k in range(many)
    )
    return written(folder, "model.bin", heads + PROTO + b"N0" * (n // 4) + b"N.")


def many_packed_headers(folder: Path, n: int) -> Path:
    """The same with one deflated pickle behind them."""
    many = min(n // 60, 1000)
    heads = b"".join(
        pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 8, 0, 0, 0, 0, 0, 30 * (many - k - 1), 0) for k in range(many)
    )
    return written(folder, "model.bin", heads + deflated(PROTO + b"N0" * (50 * n) + b"N."))


def tar_of_pickles(folder: Path, n: int) -> Path:
    """A damaged tar: from each header on one long pickle, which goes on through the headers after it."""
    block = bytearray(b"N0" * 512)
    block[114:124] = b"N0N0N0C\x0cN0"[:10]
    block[122:124] = b"C\x0c"
    block[124:136] = b"00000000777 "
    block[136:138] = b"00"  # the bytes of the sizes are taken off
    block[257:262] = b"ustar"
    block[255:257] = b"C\x05"
    block[262:263] = b"0"
    return written(folder, "model.bin", bytes(block) * (n // 1024))


def stacked_pickles(folder: Path, n: int) -> Path:
    """Stacked pickles without a torch file."""
    return written(folder, "model.bin", b"\x80\x02N." * (n // 4))


def stacked_many(folder: Path, n: int) -> Path:
    """A file of torch before 1.6 with many names."""
    body = PROTO + many_names(n) + b"."
    return written(folder, "model.pt", makers_torch.stacked(body.replace(number(4) + b"tQ", number(4) + b"NtQ")))


def tar_members(folder: Path, n: int) -> Path:
    """A tar file of torch 0.1 with very many members."""
    out = io.BytesIO(makers_torch.tar())
    with tarfile.open(fileobj=out, mode="a:", format=tarfile.USTAR_FORMAT) as file:
        for k in range(n // 512):
            file.addfile(tarfile.TarInfo(f"{k:x}"))
    return written(folder, "model.pt", out.getvalue())


def tar_views(folder: Path, n: int) -> Path:
    """Views of views on the one storage of a tar file."""
    views = b"".join(numbers((k + 8, 0, 0, 4)) for k in range(n // 30))
    storages = makers_torch.one(1) + makers_torch.TAR_STORAGE + pack("<q", 4) + makers_torch.DATA
    return written(folder, "model.pt", makers_torch.tar(storages=storages + PROTO + b"](" + views + b"e."))


def text_that_repeats(folder: Path, n: int) -> Path:
    """Text without a format; every line could be a pickle."""
    return written(folder, "model.bin", b"(identity\nname\n" * (n // 15))


def squeezed_file(folder: Path, n: int) -> Path:
    """A file of zeros, compressed by gzip."""
    return written(folder, "model.bin", gzip.compress(bytes(min(1000 * n, 200 << 20)), 1))


# --- safetensors and the alias record ----------------------------------------------------------------------------


def header_of(make: Callable[[int], tuple[Any, bytes]]) -> Maker:
    """A safetensors file with such a header and data."""
    return lambda folder, n: written(folder, "model.safetensors", build(*make(n)))


def names_of_nothing(n: int) -> tuple[Any, bytes]:
    """Empty tensors."""
    return {f"{k:x}": item("F32", [0], [0, 0]) for k in range(n // 60)}, b""


def names_of_one(n: int) -> tuple[Any, bytes]:
    """Tensors of one byte."""
    count = n // 65
    return {f"{k:x}": item("U8", [1], [k, k + 1]) for k in range(count)}, bytes(count)


def dotted_names(n: int) -> tuple[Any, bytes]:
    """Names of many parts."""
    return {f"{k:x}" + ".a" * 100: item("U8", [1], [k, k + 1]) for k in range(n // 260)}, bytes(n // 260)


def networks(n: int) -> tuple[Any, bytes]:
    """Names of recurrent networks, one in each module."""
    names = [f"{k:x}.{kind}_{part}_l0" for k in range(n // 280) for kind in ("weight", "bias") for part in ("ih", "hh")]
    shapes = [[4, 1] if "weight" in one else [4] for one in names]
    return {
        one: item("F32", shape, [16 * k, 16 * k + 16]) for k, (one, shape) in enumerate(zip(names, shapes, strict=True))
    }, bytes(16 * len(names))


def layers(n: int) -> tuple[Any, bytes]:
    """One recurrent network of very many layers."""
    count = n // 280
    names = [f"{kind}_{part}_l{k}" for k in range(count) for kind in ("weight", "bias") for part in ("ih", "hh")]
    shapes = [[4, 1] if "weight" in one else [4] for one in names]
    return {
        one: item("F32", shape, [16 * k, 16 * k + 16]) for k, (one, shape) in enumerate(zip(names, shapes, strict=True))
    }, bytes(16 * len(names))


def metadata(n: int) -> tuple[Any, bytes]:
    """Texts in the metadata."""
    return {"__metadata__": {f"{k:x}": "" for k in range(n // 14)}, "w": item()}, makers_torch.DATA


def one_long_text(n: int) -> tuple[Any, bytes]:
    """One text in the metadata."""
    return {"__metadata__": {"a": "\\" * (n // 2)}, "w": item()}, makers_torch.DATA


def deep_json(n: int) -> tuple[Any, bytes]:
    """Brackets."""
    return "[" * (n // 2) + "]" * (n // 2), b""


def same_key(n: int) -> tuple[Any, bytes]:
    """One name again and again."""
    one = '"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return "{" + ",".join([one] * (n // len(one))) + "}", b""


def overlapping(n: int) -> tuple[Any, bytes]:
    """Every tensor overlaps every other."""
    count = n // 65
    return {f"{k:x}": item("U8", [count], [0, count]) for k in range(count)}, bytes(count)


def axes(n: int) -> tuple[Any, bytes]:
    """A shape of very many axes."""
    return {"w": item("U8", [1] * (n // 3), [0, 1])}, bytes(1)


def recorded(change: Callable[[dict[str, Any], int], None], names: int = 0) -> Callable[[int], tuple[Any, bytes]]:
    """A file whose alias record was changed."""

    def make(n: int) -> tuple[Any, bytes]:
        record = json.loads(json.dumps(RECORD))
        change(record, n)
        return {"__metadata__": {KEY: json.dumps(record)}, "w": item()}, makers_torch.DATA

    return make


def _aliases(record: dict[str, Any], n: int) -> None:
    record["aliases"] = {f"{k:x}": {**ALIAS, "position": k + 1} for k in range(n // 150)}


def _strided(record: dict[str, Any], n: int) -> None:
    record["aliases"] = {
        f"{k:x}": {**ALIAS, "shape": [2], "strides": [1], "offset": k % 3, "position": k + 1} for k in range(n // 160)
    }


def _chain(record: dict[str, Any], n: int) -> None:
    record["aliases"] = {
        f"{k:x}": {**ALIAS, "of": f"{k - 1:x}" if k else "w", "position": k + 1} for k in range(n // 150)
    }


def _deep_objects(record: dict[str, Any], n: int) -> None:
    tree: Any = {"seq": "list", "items": []}
    for _ in range(min(n // 40, 190)):
        tree = {"seq": "list", "items": [tree]}
    record["objects"] = {"map": "dict", "items": [1, ["d", tree]]}


def _wide_objects(record: dict[str, Any], n: int) -> None:
    record["objects"] = {"map": "dict", "items": [1, *([f"{k:x}", None] for k in range(n // 16))]}


RECORDS = {"aliases": _aliases, "windows": _strided, "chain": _chain, "deep objects": _deep_objects,
           "wide objects": _wide_objects}  # fmt: skip
HEADERS = (names_of_nothing, names_of_one, dotted_names, networks, layers, metadata, one_long_text, deep_json, same_key,
           overlapping, axes)  # fmt: skip


def index_of_names(folder: Path, n: int) -> Path:
    """An index of many names in one shard, most of which it does not have."""
    return makers_sharded.index(folder, {**makers_sharded.MAP, **{f"{k:x}": "one.safetensors" for k in range(n // 30)}})


def index_of_shards(folder: Path, n: int) -> Path:
    """An index of many shards, each with one tensor."""
    count = n // 120
    for k in range(count):
        (folder / f"{k:x}.safetensors").write_bytes(build({f"{k:x}": item("U8", [1], [0, 1])}, b"x"))
    data = {"weight_map": {f"{k:x}": f"{k:x}.safetensors" for k in range(count)}}
    (folder / makers_sharded.INDEX).write_text(json.dumps(data))
    return folder / makers_sharded.INDEX


def config_beside(make: Callable[[int], str]) -> Maker:
    """A folder with a checkpoint and such a config."""

    def maker(folder: Path, n: int) -> Path:
        (folder / "model.safetensors").write_bytes(build({"w": item()}))
        (folder / "config.json").write_text(make(n))
        return folder

    return maker


CONFIGS: dict[str, Callable[[int], str]] = {
    "deep": lambda n: '{"a":' * (n // 6) + "1" + "}" * (n // 6),
    "wide": lambda n: json.dumps({f"{k:x}": 1 for k in range(n // 10)}),
    "long": lambda n: json.dumps({"model_type": "x" * n}),
    "architectures": lambda n: json.dumps({"architectures": ["A"] * (n // 5)}),
}

# --- MXNet, NumPy, ONNX ------------------------------------------------------------------------------------------


def mxnet_arrays(folder: Path, n: int) -> Path:
    """Arrays without elements."""
    one = makers_arrays.shaped("V2", 0)[:-16]
    count = n // (len(one) + 14)
    names = pack("<Q", count) + b"".join(name_of(f"{k:x}") for k in range(count))
    return written(folder, "model.params", makers_arrays.listed(*[one] * count, names=names))


def mxnet_one_name(folder: Path, n: int) -> Path:
    """Arrays of one name."""
    one = makers_arrays.W
    count = n // (len(one) + 14)
    names = pack("<Q", count) + name_of("w") * count
    return written(folder, "model.params", makers_arrays.listed(*[one] * count, names=names))


def msgpack_arrays(folder: Path, n: int) -> Path:
    """Empty arrays below one long key."""
    one = b"\xc7\x0a\x01\x93\x91\x00\xa4int8\xc4\x00"
    count = n // 24
    items = b"".join(b"\xa8%08x" % k + one for k in range(count))
    key = b"\xd9\xff" + b"k" * 255
    return written(folder, "model.msgpack", b"\x81" + key + b"\xdf" + pack(">I", count) + items)


def msgpack_values(folder: Path, n: int) -> Path:
    """A list of numbers of one byte beside an array."""
    array = b"\xa1w\xc7\x0a\x01\x93\x91\x00\xa4int8\xc4\x00"
    return written(folder, "model.msgpack", b"\x82" + array + b"\xa1x\xdd" + pack(">I", n) + b"\1" * n)


def npz_arrays(folder: Path, n: int) -> Path:
    """Arrays without elements."""
    empty = makers_arrays.npy(makers_arrays.header(shape="(0,)"), b"")
    parts = (Part(f"{k:x}.npy".encode(), empty) for k in range(n // (len(empty) + 100)))
    return written(folder, "model.npz", zipped(*parts))


def npz_packed(folder: Path, n: int) -> Path:
    """Deflated arrays of zeros: the header is inflated, the rest is not."""
    parts = (makers_arrays.part(_zeros(100_000), name=f"{k:x}.npy".encode()) for k in range(max(n // 300, 1)))
    return written(folder, "model.npz", zipped(*parts))


def _zeros(count: int) -> bytes:
    return makers_arrays.npy(makers_arrays.header(shape=f"({count},)"), bytes(4 * count))


def dict_of_arrays(folder: Path, n: int) -> Path:
    """Arrays without elements, which share their dtype and shape."""
    array = b"h\x01h\x02K\0\x85C\x01b\x87R(K\x01K\0\x85h\x03\x89C\0tb"
    items = b"".join(pickled_text(f"{k:x}") + array for k in range(n // 40))
    return written(folder, "model.pkl", b"\x80\x03}(" + pickled_text("") + ONE_ARRAY + items + b"u.")


def one_array_in_lists(folder: Path, n: int) -> Path:
    """Lists, each of which holds the one before it twice; the first holds an array."""
    doubled = b"".join(
        b"](h" + bytes([k]) + b"h" + bytes([k]) + b"eq" + bytes([k + 1]) for k in range(20, 20 + n // 9 % 40)
    )
    return written(folder, "model.pkl", b"\x80\x03](" + ONE_ARRAY + b"eq\x14" + doubled + pad(n) + b".")


def arrays_of_one_buffer(folder: Path, n: int) -> Path:
    """Arrays whose bytes are those of one string, which is no part of any of them."""
    array = b"h\x01h\x02K\0\x85C\x01b\x87R(K\x01K\1\x85h\x03\x89h\x04tb"
    data = b"\x80\x03](C\x04abcdq\x04" + ONE_ARRAY + array * (n // len(array)) + b"e."
    return written(folder, "model.pkl", data)


def pickles_in_a_row(folder: Path, n: int) -> Path:
    """Pickles, one after the other."""
    one = b"\x80\x03" + ONE_ARRAY + b"."
    return written(folder, "model.pkl", one + b"\x80\x03N." * ((n - len(one)) // 4))


def strings_as_keys(folder: Path, n: int) -> Path:
    """A dict under long texts, which are recalled for it."""
    long = b"X" + pack("<I", n // 3) + b"x" * (n // 3) + b"q\x14"
    return written(folder, "model.pkl", b"\x80\x03}(" + long + b"0" + b"h\x14N" * (n // 6) + b"u.")


def lines_of_escapes(folder: Path, n: int) -> Path:
    """Strings of Python 2, all of escapes."""
    return written(folder, "model.pkl", b"(lp0\n" + b"S'" + b"\\x00" * (n // 4) + b"'\na.")


def pad(n: int) -> bytes:
    """Numbers that are dropped again."""
    return b"N0" * (n // 2)


def pickled_text(text: str) -> bytes:
    """A text as protocol 3 writes it."""
    return b"X" + pack("<I", len(text)) + text.encode()


ONE_ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\0\x85C\x01b\x87R(K\x01K\0\x85"
    b"cnumpy\ndtype\n"
    + pickled_text("f4")
    + b"K\0K\x01\x87R(K\x03"
    + pickled_text("<")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tbq\x03\x89C\0tb"
)
"""An array of no float32; the memo has its function, its class and its dtype under 1 to 3."""
ARRAY_PICKLES = (dict_of_arrays, one_array_in_lists, arrays_of_one_buffer, pickles_in_a_row, strings_as_keys,
                 lines_of_escapes)  # fmt: skip


def npy_header(folder: Path, n: int) -> Path:
    """A header of very many axes."""
    shape = f"({'1,' * (n // 2)})"
    return written(folder, "model.npy", makers_arrays.npy(makers_arrays.header(shape=shape), bytes(4), (2, 0)))


def npy_brackets(folder: Path, n: int) -> Path:
    """A header of brackets."""
    return written(folder, "model.npy", makers_arrays.npy("(" * n, b"", (2, 0)))


def onnx_tensors(folder: Path, n: int) -> Path:
    """Initialisers."""
    tensors = (makers_onnx.tensor(makers_onnx.RAW, name=f"{k:x}".encode()) for k in range(n // 24))
    return written(folder, "model.onnx", makers_onnx.build(makers_onnx.graph(*tensors)))


def onnx_one_name(folder: Path, n: int) -> Path:
    """Initialisers of one name."""
    return written(folder, "model.onnx", makers_onnx.build(makers_onnx.graph(*[makers_onnx.HONEST] * (n // 20))))


def onnx_nodes(folder: Path, n: int) -> Path:
    """Nodes, each of which takes what the one before it gives."""
    nodes = b"".join(
        makers_onnx.block(1, makers_onnx.block(1, f"{k:x}".encode()) + makers_onnx.block(2, f"{k + 1:x}".encode())
                          + makers_onnx.block(4, b"Identity"))
        for k in range(n // 28)
    )  # fmt: skip
    return written(folder, "model.onnx", makers_onnx.build(makers_onnx.graph(makers_onnx.HONEST, nodes=nodes)))


def onnx_networks(folder: Path, n: int) -> Path:
    """LSTM nodes that all take one initialiser."""
    one = makers_onnx.block(1, makers_onnx.block(1, b"x") + makers_onnx.block(1, b"w") * 2
                            + makers_onnx.block(4, b"LSTM"))  # fmt: skip
    return written(
        folder, "model.onnx", makers_onnx.build(makers_onnx.graph(makers_onnx.HONEST, nodes=one * (n // len(one))))
    )


def onnx_deep(folder: Path, n: int) -> Path:
    """Graphs in graphs."""
    return written(folder, "model.onnx", makers_onnx.nested(min(n // 24, 60)))


def onnx_dims(folder: Path, n: int) -> Path:
    """A shape of very many axes."""
    one = makers_onnx.tensor(makers_onnx.RAW, dims=(1,) * (n // 2))
    return written(folder, "model.onnx", makers_onnx.build(makers_onnx.graph(one)))


def onnx_external(folder: Path, n: int) -> Path:
    """Initialisers in one other file, all of the same bytes."""
    (folder / "weights.bin").write_bytes(bytes(8))
    tensors = (
        makers_onnx.block(13, makers_onnx.block(1, b"location") + makers_onnx.block(2, b"weights.bin"))
        + makers_onnx.number(14, 1)
        for _ in range(n // 60)
    )
    made = (makers_onnx.tensor(one, name=f"{k:x}".encode()) for k, one in enumerate(tensors))
    return written(folder, "model.onnx", makers_onnx.build(makers_onnx.graph(*made)))


# --- HDF5 --------------------------------------------------------------------------------------------------------


def hdf5(fill: Callable[[Any, int], None]) -> Maker:
    """A file that h5py writes; its groups take 100 bytes and more each."""

    def maker(folder: Path, n: int) -> Path:
        with h5py.File(folder / "model.h5", "w", libver="latest") as file:
            fill(file, n)
        return folder / "model.h5"

    return maker


def _groups(file: Any, n: int) -> None:
    for k in range(n // 200):
        file.create_group(f"{k:x}")


def _datasets(file: Any, n: int) -> None:
    for k in range(n // 300):
        file.create_dataset(f"{k:x}", (0,), "f4")


def _links(file: Any, n: int) -> None:
    file.create_dataset("w", (4,), "f4")
    for k in range(n // 30):
        file[f"{k:x}"] = file["w"]


def _attributes(file: Any, n: int) -> None:
    file.create_dataset("w", (4,), "f4")
    for k in range(n // 60):
        file.attrs[f"{k:x}"] = 1


def _nested_groups(file: Any, n: int) -> None:
    place = file
    for _ in range(min(n // 300, 100)):
        place = place.create_group("g")
    place.create_dataset("w", (4,), "f4")


HDF5 = {"groups": _groups, "datasets": _datasets, "links": _links, "attributes": _attributes, "nested": _nested_groups}


def bson_values(n: int) -> bytes:
    """Values of two bytes each."""
    return makers_bson.element(makers_bson.ROW, "a", makers_bson.document(b"\x0a\0" * (n // 2)))


def bson_deep(n: int) -> bytes:
    """Rows in rows."""
    inner = b""
    for _ in range(min(n // 10, 1500)):
        inner = makers_bson.element(makers_bson.ROW, "", makers_bson.document(inner))
    return makers_bson.element(makers_bson.ROW, "a", makers_bson.document(inner))


def bson_arrays(n: int) -> bytes:
    """Arrays, each of them another one."""
    one = makers_bson.array()
    return makers_bson.row("a", [one] * (n // len(one)))


def bson_long_name(n: int) -> bytes:
    """Arrays below one long key."""
    one = makers_bson.array(0)
    many = makers_bson.row("a", [one] * (n // 2 // len(one)))
    return makers_bson.element(makers_bson.DOCUMENT, "k" * (n // 2), makers_bson.document(many))


def bson_one_array(n: int) -> bytes:
    """One array in many places."""
    places = makers_bson.row("a", [makers_bson.backref(1)] * (n // 40))
    return places + makers_bson.row("_backrefs", [makers_bson.array()])


def bson_doubled(n: int) -> bytes:
    """Structs that refer to the next one twice."""
    count = max(n // 200, 2)
    two = (makers_bson.struct(makers_bson.backref(k + 2), makers_bson.backref(k + 2)) for k in range(count - 1))
    first = makers_bson.element(makers_bson.DOCUMENT, "a", makers_bson.backref(1))
    return first + makers_bson.row("_backrefs", [*two, makers_bson.array()])


def bson_chain(n: int) -> bytes:
    """References to references, each of them a type."""
    count = max(n // 50, 2)
    kinds = [makers_bson.backref(k + 2) for k in range(count - 1)]
    kind = makers_bson.element(makers_bson.DOCUMENT, "type", makers_bson.backref(1))
    one = makers_bson.document(makers_bson.text("tag", "struct"), kind, makers_bson.row("data", []))
    return makers_bson.row("a", [one] * 20) + makers_bson.row("_backrefs", [*kinds, makers_bson.datatype("A")])


def bson_keyed(n: int) -> bytes:
    """State for each array, under one array's long name."""
    keys = [makers_bson.backref(1)] * (n // 300)
    data = [makers_bson.document(makers_bson.text("tag", "tuple"), makers_bson.row("data", [makers_bson.array()]))]
    rows = (makers_bson.element(makers_bson.ROW, "", makers_bson.document(
        *(makers_bson.element(makers_bson.DOCUMENT, "", item) for item in items)
    )) for items in (keys, data * len(keys)))  # fmt: skip
    kind = makers_bson.element(makers_bson.DOCUMENT, "type", makers_bson.datatype("Main", "Base", "IdDict"))
    held = makers_bson.element(makers_bson.ROW, "data", makers_bson.document(*rows))
    name = makers_bson.element(makers_bson.DOCUMENT, "k" * (n // 4), makers_bson.backref(1))
    opt = makers_bson.document(makers_bson.text("tag", "struct"), kind, held)
    return (
        name
        + makers_bson.element(makers_bson.DOCUMENT, "opt", opt)
        + makers_bson.row("_backrefs", [makers_bson.array()])
    )


def bson(make: Callable[[int], bytes]) -> Maker:
    """A file of one document."""
    return lambda folder, n: written(folder, "model.bson", makers_bson.document(make(n)))


BSON = (bson_values, bson_deep, bson_arrays, bson_long_name, bson_one_array, bson_doubled, bson_chain, bson_keyed)

WORST: dict[str, Maker] = {
    **{f"torch: {key}": pickled(make) for key, make in PICKLES.items()},
    **{f"torch, deflated: {make.__name__}": packed(make) for make in PACKED},
    **{
        f"torch: {maker.__name__}": maker
        for maker in (many_members, many_pickles, packed_pickles, defective_members, long_member_names, stacked_many,
                      tar_members, tar_views)
    },
    **{
        f"foreign: {maker.__name__}": maker
        for maker in (many_headers, many_packed_headers, tar_of_pickles, stacked_pickles, text_that_repeats,
                      squeezed_file)
    },
    **{f"safetensors: {make.__name__}": header_of(make) for make in HEADERS},
    **{f"safetensors: record of {key}": header_of(recorded(change)) for key, change in RECORDS.items()},
    "index: names": index_of_names,
    "index: shards": index_of_shards,
    **{f"config: {key}": config_beside(make) for key, make in CONFIGS.items()},
    **{
        f"{maker.__name__.split('_')[0]}: {maker.__name__}": maker
        for maker in (mxnet_arrays, mxnet_one_name, msgpack_arrays, msgpack_values, npz_arrays, npz_packed, npy_header,
                      npy_brackets, onnx_tensors, onnx_one_name, onnx_nodes, onnx_networks, onnx_deep, onnx_dims,
                      onnx_external)
    },
    **{
        f"tensorflow: {maker.__name__.removeprefix('tensorflow_')}": maker
        for maker in (tensorflow_rows, tensorflow_long_keys, tensorflow_packed, tensorflow_diamonds,
                      tensorflow_everything, tensorflow_long_edges)
    },
    **{f"pickle: {maker.__name__}": maker for maker in ARRAY_PICKLES},
    **{f"keras: {key}": hdf5(fill) for key, fill in HDF5.items()},
    **{f"bson: {make.__name__}": bson(make) for make in BSON},
}  # fmt: skip
