"""Makers of `.params`, `.npz` and `.npy` files that lie, assembled by hand."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from struct import pack

import numpy as np

from tests.contracts.makers_arrays import MARKS, dense, name_of, params, shape_of, sparse
from tests.hostile.command import Hostile
from tests.hostile.makers_safetensors import made
from tests.hostile.makers_zip import Part, archive

# --- MXNet -----------------------------------------------------------------------------------------------------------

W = dense(np.arange(4, dtype="f4"))
NEXT = pack("<iii", 1, 0, 0)
"""Device cpu(0), type float32."""


def listed(*arrays: bytes, count: int | None = None, names: bytes = pack("<Q", 0)) -> bytes:
    """A list of arrays that may lie about their number."""
    return pack("<QQQ", 0x112, 0, len(arrays) if count is None else count) + b"".join(arrays) + names


def shaped(version: str, *sizes: int, ndim: int | None = None, kind: int = 0, rest: bytes = NEXT) -> bytes:
    """An array with a shape that may lie."""
    shape = pack(f"<i{len(sizes)}q", len(sizes) if ndim is None else ndim, *sizes)
    mark = pack("<I", MARKS[version]) + (b"" if version == "V1" else pack("<i", kind))
    return mark + shape + rest + bytes(16)


def zeros(folder: Path) -> Path:
    """Terabytes of nothing, in a file that takes no space: a count of arrays without axes that goes on and on."""
    path = folder / "model.params"
    with path.open("wb") as file:
        file.write(pack("<QQQ", 0x112, 0, 2**40))
        file.truncate(2**42)
    return path


F4, I8 = np.arange(4, dtype="f4"), np.arange(4, dtype="i8")

PARAMS: dict[str, Hostile] = {
    key: Hostile(made(data, "model.params"), says)
    for key, (data, says) in {
        "magic_alone": (pack("<Q", 0x112), ("8 bytes",)),
        "reserved_set": (pack("<QQQ", 0x112, 1, 0) + pack("<Q", 0), ("not in a format",)),
        "count_beyond_the_file": (listed(W, count=1000), ("1000",)),
        "count_one_more": (listed(W, count=2), ("names", "truncated")),
        "count_one_less": (listed(W, W, count=1), ("names",)),
        "unknown_mark": (listed(pack("<I", 0xF993FACB) + bytes(40)), ("0xf993facb", "array 0")),
        "axes_of_v0": (listed(pack("<I", 65) + bytes(400)), ("0x00000041", "64")),
        "axes_65": (listed(shaped("V1", *[1] * 65)), ("65 axes",)),
        "axes_near_2_to_31": (listed(shaped("V2", ndim=2**31 - 1)), ("2147483647",)),
        "axes_negative": (listed(shaped("V2", ndim=-1)), ("-1 axes",)),
        "axes_minus_two_of_v3": (listed(shaped("V3", ndim=-2)), ("-2 axes",)),
        "size_negative": (listed(shaped("V2", -4)), ("[-4]",)),
        "sizes_twice_negative": (listed(shaped("V2", -2, -2)), ("[-2, -2]",)),
        "size_below_unknown": (listed(shaped("V3", -3)), ("[-3]",)),
        "size_near_2_to_63": (listed(shaped("V2", 2**63 - 1)), ("truncated",)),
        "sizes_overflow_to_nothing": (listed(shaped("V2", 2**32, 2**32)), ("truncated",)),
        "sizes_overflow_to_fit": (listed(shaped("V2", 2**62 + 1, 4)), ("truncated",)),
        "nothing_times_too_much": (listed(shaped("V2", 0, 2**62, 2**62)), ("array 0",)),
        "v0_sizes_overflow": (listed(pack("<3I", 2, 2**31, 2**31) + NEXT + bytes(16)), ("truncated",)),
        "type_13": (listed(shaped("V2", 4, rest=pack("<iii", 1, 0, 13))), ("element type 13",)),
        "type_negative": (listed(shaped("V2", 4, rest=pack("<iii", 1, 0, -1))), ("element type -1",)),
        "device_0": (listed(shaped("V2", 4, rest=pack("<iii", 0, 0, 0))), ("device kind 0",)),
        "kind_3": (listed(shaped("V2", 4, kind=3)), ("storage kind 3",)),
        "kind_undefined": (listed(shaped("V2", 4, kind=-1)), ("storage kind -1",)),
        "sparse_v3": (listed(shaped("V3", 4, kind=1)), ("storage kind 1",)),
        "indices_too_few": (listed(sparse(1, (9, 2), F4.reshape(2, 2), I8[:1])), ("row_sparse", "[1]")),
        "rows_of_another_width": (listed(sparse(1, (9, 3), F4.reshape(2, 2), I8[:2])), ("row_sparse",)),
        "values_without_axes": (listed(sparse(1, (9,), F4.reshape(4)[:0].reshape(0), I8)), ("row_sparse",)),
        "csr_of_three_axes": (listed(sparse(2, (1, 2, 2), F4, I8[:2], I8)), ("csr",)),
        "csr_pointers": (listed(sparse(2, (9, 3), F4, I8, I8)), ("csr", "pointers")),
        "names_more": (listed(W, names=pack("<Q", 2) + name_of("a") + name_of("b")), ("2 names",)),
        "names_near_2_to_64": (listed(W, names=pack("<Q", 2**64 - 1)), ("names",)),
        "name_near_2_to_64": (listed(W, names=pack("<QQ", 1, 2**64 - 1)), ("truncated",)),
        "name_beyond_the_file": (listed(W, names=pack("<QQ", 1, 9) + b"short"), ("9 bytes",)),
        "name_not_utf8": (params([W], [b"\xff\xfe"]), ("UTF-8",)),
        "name_twice": (params([W, W, W], ["a", "b", "a"]), ("'a'", "2 times")),
        "bytes_behind_the_names": (params([W], ["w"]) + b"x", ("1 bytes",)),
        "unnamed_and_bytes_behind": (params([W]) + bytes(8), ("8 bytes",)),
    }.items()
} | {
    "count_near_2_to_64": Hostile(made(listed(count=2**64 - 1), "model.params"), ("18446744073709551615",), inspect=4),
    "count_of_endless_nothing": Hostile(zeros, ("1099511627776",), inspect=4),
}  # fmt: skip
PARAMS_FINE = {
    "empty_pointers": made(listed(sparse(2, (9, 3), F4[:0], I8[:0], I8[:0])), "model.params"),
    "no_arrays": made(listed(), "model.params"),
    "odd_names": made(params([W, W], ["", "\x1b[2J\n../../x"]), "model.params"),
}
"""Odd, and no defect."""

# --- NumPy -----------------------------------------------------------------------------------------------------------


def npy(
    text: str | bytes, data: bytes = bytes(16), version: tuple[int, int] = (1, 0), length: int | None = None
) -> bytes:
    """A `.npy`; `text` is its dict."""
    raw = text.encode("latin-1") if isinstance(text, str) else text
    nbytes = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes(version) + pack("<H" if version[0] == 1 else "<I", nbytes) + raw + data


def header(descr: str = "'<f4'", shape: str = "(4,)", fortran: str = "False", more: str = "") -> str:
    """A dict as NumPy writes it."""
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, {more}}}"


def pickled(folder: Path) -> bytes:
    """An array of one object that would make a file where it is unpickled."""
    return b"cos\nsystem\n(S'touch " + str(folder / "ran").encode() + b"'\ntR."


HEADERS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "magic_alone": (b"\x93NUMPY", ("truncated",)),
    "version_alone": (b"\x93NUMPY\x01\x00", ("truncated",)),
    "version_9": (npy(header(), version=(9, 0)), ("version 9.0",)),
    "version_1_1": (npy(header(), version=(1, 1)), ("version 1.1",)),
    "length_zero": (npy(header(), length=0), ("fortran_order",)),
    "length_one_short": (npy(header(), length=len(header()) - 1), ("fortran_order",)),
    "length_beyond_the_file": (npy(header(), length=60_000), ("60010", "truncated")),
    "length_near_2_to_32": (npy(header(), version=(2, 0), length=2**32 - 1), ("4294967295",)),
    "a_call": (npy("__import__('os').system('touch ran')"), ("fortran_order",)),
    "a_call_inside": (npy(header(shape="__import__('os').system('touch ran')")), ("fortran_order",)),
    "a_sum": (npy(header(shape="(2 + 2,)")), ("fortran_order",)),
    "a_comprehension": (npy(header(shape="tuple(4 for _ in 'a')")), ("fortran_order",)),
    "a_warning": (npy(header(shape="(4if 1else 2,)")), ("fortran_order",)),
    "an_escape": (npy(header(descr="'<\\q4'")), ("<",)),
    "deep": (npy(header(shape="(" * 20_000)), ("fortran_order",)),
    "deep_list": (npy(header(descr="[" * 150 + "]" * 150)), ("the type",)),
    "deep_minus": (npy(header(shape="-" * 50_000 + "4")), ("fortran_order",)),
    "nul": (npy(header() + "\0"), ("fortran_order",)),
    "not_utf8": (npy(header().encode() + b"\xff", version=(3, 0)), ()),
    "key_missing": (npy("{'descr': '<f4', 'shape': (4,)}"), ("fortran_order",)),
    "key_more": (npy(header(more="'x': 1")), ("fortran_order",)),
    "key_twice": (npy(header(more="'shape': (2,)")), ("fortran_order",)),
    "key_twice_of_three": (npy("{'descr': '<f4', 'shape': (4,), 'shape': (2,)}"), ("fortran_order",)),
    "key_a_list": (npy("{[]: 1, 'shape': (4,), 'descr': '<f4'}"), ("fortran_order",)),
    "keys_unpacked": (npy("{**{}, 'shape': (4,), 'descr': '<f4'}"), ("fortran_order",)),
    "a_set": (npy("{'descr', 'shape', 'fortran_order'}"), ("fortran_order",)),
    "order_a_number": (npy(header(fortran="1")), ("fortran_order is 1",)),
    "shape_a_list": (npy(header(shape="[4]")), ("the shape",)),
    "shape_a_number": (npy(header(shape="4")), ("the shape",)),
    "shape_negative": (npy(header(shape="(-4,)")), ("the shape",)),
    "shape_twice_negative": (npy(header(shape="(-2, -2)")), ("the shape",)),
    "shape_float": (npy(header(shape="(4.0,)")), ("the shape",)),
    "shape_true": (npy(header(shape="(True, 4)")), ("the shape",)),
    "shape_text": (npy(header(shape="('4',)")), ("the shape",)),
    "shape_near_2_to_64": (npy(header(shape="(18446744073709551616,)")), ("the shape",)),
    "shape_overflows_to_nothing": (npy(header(shape="(4294967296, 4294967296)")), ("needs",)),
    "shape_overflows_to_fit": (npy(header(shape="(4611686018427387905, 4)")), ("needs",)),
    "shape_of_nothing_times_too_much": (npy(header(shape="(0, 9223372036854775807, 9)"), b""), ()),
    "shape_of_thousands_of_digits": (npy(header(shape=f"(1{'0' * 10_000},)")), ()),
    "shape_of_sixty_five_axes": (npy(header(shape=f"({'1, ' * 64}4)")), ()),
    "data_short": (npy(header(), bytes(12)), ("needs 16 bytes; found 12",)),
    "data_long": (npy(header(), bytes(20)), ("needs 16 bytes; found 20",)),
    "type_unknown": (npy(header("'<q4'")), ("<q4",)),
    "type_by_name": (npy(header("'float32'")), ("float32",)),
    "type_of_this_machine": (npy(header("'=f4'")), ("=f4",)),
    "type_without_order": (npy(header("'|f4'")), ("|f4",)),
    "type_of_odd_size": (npy(header("'<f3'")), ("<f3",)),
    "type_of_two": (npy(header("'<f4,<f4'")), ("<f4,<f4",)),
    "type_a_number": (npy(header("4")), ("the type",)),
    "type_none": (npy(header("None")), ("the type",)),
    "type_a_dict": (npy(header("{'names': ['a'], 'formats': ['O']}")), ("the type",)),
    "type_endless": (npy(header(f"'<S{'9' * 5000}'")), ("the type",)),
    "type_huge": (npy(header("'|S999999999'")), ("needs",)),
    "structures_that_do_not_fit": (npy(header("[('a', '<f4')]", "(3,)")), ("needs",)),
}  # fmt: skip
"""{key: (a .npy that must be refused, what the message says)}"""
NPY = {key: Hostile(made(data, "model.npy"), says) for key, (data, says) in HEADERS.items()}
NPZ = {
    key: Hostile(made(archive(Part(b"v.npy", npy(header())), Part(b"w.npy", data)), "model.npz"), ("'w'", *says))
    for key, (data, says) in HEADERS.items()
}
OBJECTS = ("'|O'", "'O'", "'<O8'", "[('a', '<f4'), ('b', '|O')]", "[('a', [('b', '|O')], (2,))]")


def objects(descr: str, packed: bool, bare: bool) -> Hostile:
    """An array of Python objects, which is a pickle."""

    def make(folder: Path) -> Path:
        member = npy(header(descr), pickled(folder))
        path = folder / ("model.npy" if bare else "model.npz")
        path.write_bytes(member if bare else archive(Part(b"v.npy", npy(header())), part(member, packed)))
        return path

    is_read = bare and descr == "'|O'"  # as NumPy writes it: a pickle behind a header
    return Hostile(make, ("os.system" if is_read else "Python objects",), inspect=4)


def part(member: bytes, packed: bool = True, nbytes: int | None = None, name: bytes = b"w.npy") -> Part:
    """A member of an archive, deflated or stored; it may declare another size."""
    if not packed:
        return Part(name, member)
    machine = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = machine.compress(member) + machine.flush()
    return Part(name, data, method=8, crc32=zlib.crc32(member), nbytes=len(member) if nbytes is None else nbytes)


def zipped(*parts: Part) -> bytes:
    """A whole archive."""
    return archive(*parts)


LONG = npy(header(shape="(2500000,)"), bytes(10_000_000))
SHORT = npy(header())
ENDLESS = replace(part(LONG, nbytes=0xFFFFFFFF), extra=pack("<HHQ", 1, 8, 2**40))
"""A terabyte, says the zip64 field."""
ARCHIVES: dict[str, Hostile] = {
    "bomb": Hostile(made(zipped(part(npy(header()) + bytes(50_000_000), nbytes=len(SHORT))), "model.npz"),
                    ("more than",), inspect=0, dedup=3),
    "inflates_to_less": Hostile(made(zipped(part(LONG[:-4], nbytes=len(LONG))), "model.npz"), ("decodes to",), 0, 3),
    "too_good_to_be_true": Hostile(made(zipped(ENDLESS), "model.npz"), ("1099511627776",)),
    "size_near_2_to_32": Hostile(made(zipped(part(SHORT, nbytes=2**32 - 2)), "model.npz"), ("4294967294",)),
    "no_deflated_data": Hostile(made(zipped(Part(b"w.npy", b"\xff" * 99, 8, nbytes=99)), "model.npz"), ("inflated",)),
    "nothing_deflated": Hostile(made(zipped(Part(b"w.npy", b"", 8, nbytes=0)), "model.npz"), ("'w'",)),
    "cut_deflated": Hostile(made(zipped(Part(b"w.npy", part(SHORT).payload[:9], 8, nbytes=80)), "model.npz"), ("'w'",)),
    "wrong_crc": Hostile(made(zipped(Part(b"w.npy", SHORT, crc32=7)), "model.npz"), ("CRC",), 0, 3),
    "wrong_crc_deflated": Hostile(
        made(zipped(Part(b"w.npy", part(SHORT).payload, 8, crc32=7, nbytes=len(SHORT))), "model.npz"), ("CRC",), 0, 3),
    "name_twice": Hostile(made(zipped(Part(b"w.npy", SHORT), Part(b"w.npy", SHORT)), "model.npz"), ("twice",)),
    "name_outside": Hostile(made(zipped(Part(b"../w.npy", SHORT)), "model.npz"), ("folder",)),
    "no_array": Hostile(made(zipped(Part(b"w.npy", SHORT), Part(b"readme.txt")), "model.npz"), ("readme.txt",)),
    "many_defects": Hostile(made(zipped(*(Part(b"%d.npy" % n) for n in range(50))), "model.npz"), ("30 more",)),
}  # fmt: skip
FINE = {
    "no_name": made(zipped(Part(b".npy", SHORT)), "model.npz"),
    "all_crcs_zero": made(zipped(Part(b"w.npy", SHORT, crc32=0)), "model.npz"),
    "terminal_escapes": made(zipped(Part(b"\x1b[2J\n.npy", SHORT)), "model.npz"),
    "empty_dict_fields": made(npy(header("'|V0'", "(0,)"), b""), "model.npy"),
}
"""Odd, and no defect."""


__all__ = [
    "ARCHIVES", "FINE", "NPY", "NPZ", "OBJECTS", "PARAMS", "PARAMS_FINE", "header", "npy", "objects", "shape_of",
]  # fmt: skip
