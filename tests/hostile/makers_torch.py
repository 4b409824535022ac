"""Makers of torch files that lie: zip, stacked pickles and tar, assembled by hand, never by a pickler.

`ZIP`, `STACKED` and `TAR` hold what must be refused, `FINE` what looks odd and must be read.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack

from paramtool.errors import UnsafeError
from tests.examples import IS_HARD
from tests.hostile import makers_pickle
from tests.hostile.command import Hostile
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_zip import Part, archive

# --- opcodes ---------------------------------------------------------------------------------------------------------


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    """BININT or LONG4."""
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + pack("<i", len(raw)) + raw


def row(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def numbers(values: tuple[int, ...]) -> bytes:
    """A tuple of numbers."""
    return row(*map(number, values))


def mapping(**items: bytes) -> bytes:
    """A dict with texts for keys."""
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def storage(key: bytes = text("0"), numel: bytes = number(4), kind: str = "FloatStorage", *view: bytes) -> bytes:
    """A persistent id."""
    return row(text("storage"), name("torch", kind), key, text("cpu"), numel, *view) + b"Q"


HOOKS = name("collections", "OrderedDict") + b")R"


def tensor(
    ref: bytes = storage(), offset: bytes = number(0), size: bytes = numbers((4,)), stride: bytes = numbers((1,))
) -> bytes:
    """`_rebuild_tensor_v2` of a storage; honest unless told otherwise."""
    return name("torch._utils", "_rebuild_tensor_v2") + row(ref, offset, size, stride, b"\x89", HOOKS) + b"R"


DATA = pack("<4f", 1, 2, 3, 4)


def state(**tensors: bytes) -> bytes:
    """The pickle of a dict of tensors."""
    return PROTO + mapping(**tensors) + b"."


HONEST = state(w=tensor())


def parts(pickle: bytes = HONEST, **storages: bytes) -> tuple[Part, ...]:
    """The members of a zip file; storages are named by `s` and their key."""
    storages = storages or {"s0": DATA}
    return (
        Part(b"archive/data.pkl", pickle),
        *(Part(f"archive/data/{key[1:]}".encode(), data) for key, data in storages.items()),
        Part(b"archive/version", b"3\n"),
    )


def zipped(pickle: bytes = HONEST, **storages: bytes) -> Callable[[Path], Path]:
    """A maker of the zip form."""
    return made(lambda: archive(*parts(pickle, **storages)))


def made(data: Callable[[], bytes], file: str = "model.pt") -> Callable[[Path], Path]:
    """A maker of one file."""

    def make(folder: Path) -> Path:
        (folder / file).write_bytes(data())
        return folder / file

    return make


def changed(member: int, **change: object) -> Callable[[Path], Path]:
    """An honest zip file with one member changed."""
    members = list(parts())
    members[member] = replace(members[member], **change)  # type: ignore[arg-type]
    return made(lambda: archive(*members))


def deflated(data: bytes) -> bytes:
    """Raw deflate, as in zip members."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush()


# --- zip: what the pickle says of its tensors ------------------------------------------------------------------------

DEEP = 100_000 if IS_HARD else 20_000


def nested(depth: int, leaf: bytes) -> bytes:
    """A dict in a dict in a dict."""
    return b"".join(b"}" + text("k") for _ in range(depth)) + leaf + b"s" * depth


def exponential(levels: int = 60) -> bytes:
    """A list that holds a list twice, and so on: few bytes, 2**60 paths to one tensor."""
    body = b"](" + tensor() + b"e"
    for level in range(levels):
        put, get = b"r" + pack("<I", 1000 + level), b"j" + pack("<I", 1000 + level)
        body += put + b"0" + b"](" + get * 2 + b"e"
    return body


ONE_STORAGE_TWICE = state(a=tensor(), b=tensor(storage(numel=number(2)), size=numbers((2,))))

WINDOWS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "size_outside": (tensor(size=numbers((5,))), ("'w'", "20", "16")),
    "offset_outside": (tensor(offset=number(1)), ("'w'", "20", "16")),
    "stride_outside": (tensor(size=numbers((2,)), stride=numbers((4,))), ("'w'", "20", "16")),
    "stride_of_petabytes": (tensor(size=numbers((2,)), stride=numbers((1 << 50,))), ()),
    "strides_multiply": (tensor(size=numbers((1 << 30,) * 4), stride=numbers((1 << 60,) * 4)), ()),
    "size_of_petabytes": (tensor(size=numbers((1 << 50,))), ()),
    "size_beyond_64_bits": (tensor(size=numbers((1 << 70,))), ()),
    "size_of_two_thousand_digits": (tensor(size=numbers((10**2000,))), ()),
    "sizes_multiply": (tensor(size=numbers((1 << 31,) * 3), stride=numbers((1,) * 3)), ()),
    "offset_beyond_64_bits": (tensor(offset=number(1 << 70)), ()),
    "offset_negative": (tensor(offset=number(-1)), ()),
    "size_negative": (tensor(size=numbers((-4,))), ()),
    "stride_negative": (tensor(offset=number(3), stride=numbers((-1,))), ()),
    "more_strides_than_sizes": (tensor(stride=numbers((1, 1))), ()),
    "fewer_strides_than_sizes": (tensor(stride=row()), ()),
    "a_thousand_axes_outside": (tensor(size=numbers((2,) * 1000), stride=numbers((1,) * 1000)), ()),
    "size_no_tuple": (tensor(size=number(4)), ()),
    "size_of_texts": (tensor(size=row(text("4"))), ()),
    "size_of_floats": (tensor(size=row(b"G" + pack(">d", 4))), ()),
    "offset_no_number": (tensor(offset=text("0")), ()),
    "offset_none": (tensor(offset=b"N"), ()),
    "storage_no_storage": (tensor(number(0)), ()),
    "storage_of_unknown_type": (tensor(storage(kind="EvilStorage")), ()),
    "storage_id_of_three": (tensor(row(text("storage"), text("0"), text("cpu")) + b"Q"), ()),
    "storage_id_no_tuple": (tensor(text("0") + b"Q"), ()),
    "storage_numel_negative": (tensor(storage(numel=number(-4))), ()),
    "storage_numel_huge": (tensor(storage(numel=number(1 << 59))), ()),
    "storage_numel_beyond_64_bits": (tensor(storage(numel=number(1 << 80))), ()),
    "storage_numel_text": (tensor(storage(numel=text("4"))), ()),
    "storage_key_missing": (tensor(storage(text("7"))), ("data/7",)),
    "storage_key_leaves_its_folder": (tensor(storage(text("../data.pkl"))), ()),
    "storage_key_a_list": (tensor(storage(b"]")), ()),
    "storage_longer_in_pickle": (tensor(storage(numel=number(8))), ("data/0", "16", "32")),
    "storage_shorter_in_pickle": (tensor(storage(numel=number(2)), size=numbers((2,))), ("data/0", "16", "8")),
    "no_arguments": (name("torch._utils", "_rebuild_tensor_v2") + b")R", ()),
    "too_many_arguments": (name("torch._utils", "_rebuild_tensor_v2") + row(*[b"N"] * 40) + b"R", ()),
}  # fmt: skip

ZIP: dict[str, Hostile] = {
    **{key: Hostile(zipped(state(w=body)), says) for key, (body, says) in WINDOWS.items()},
    "one_storage_two_sizes": Hostile(zipped(ONE_STORAGE_TWICE)),
    "many_windows_outside": Hostile(
        zipped(PROTO + b"}(" + b"".join(text(f"n{k}") + tensor(size=numbers((9,))) for k in range(3000)) + b"u."),
        ("and 2980 more",),
    ),
    "wrong_crc_of_a_tensor": Hostile(changed(1, crc32=0x1234), ("storage 0", "CRC"), inspect=0, dedup=3),
    "wrong_crc_of_the_pickle": Hostile(changed(0, crc32=0x1234), ("data.pkl",)),
    "other_local_name": Hostile(changed(1, local_name=b"archive/data/1"), ("data/1",)),
    "inflates_to_less": Hostile(
        changed(1, method=8, payload=deflated(DATA[:8]), nbytes=16, crc32=zlib.crc32(DATA)), ("storage 0",),
        inspect=0, dedup=3),
    "inflates_to_more": Hostile(
        changed(1, method=8, payload=deflated(DATA * 9), nbytes=16, crc32=zlib.crc32(DATA)), ("storage 0",),
        inspect=0, dedup=3),
    "deflated_junk": Hostile(
        changed(1, method=8, payload=b"\xff" * 16, nbytes=16, crc32=zlib.crc32(DATA)), ("storage 0",), inspect=0, dedup=3),  # noqa: E501
    "deflated_wrong_crc": Hostile(
        changed(1, method=8, payload=deflated(DATA), nbytes=16, crc32=1), ("storage 0",), inspect=0, dedup=3),
    "pickle_inflates_without_end": Hostile(changed(0, method=8, payload=deflated(bytes(1 << 20)), nbytes=len(HONEST)), inspect=4),  # noqa: E501
    "pickle_says_a_terabyte": Hostile(changed(
        0, method=8, payload=deflated(HONEST), extra=pack("<HHQ", 1, 8, 1 << 40), nbytes=0xFFFFFFFF), inspect=4),
    "byteorder_middle": Hostile(
        made(lambda: archive(*parts(), Part(b"archive/byteorder", b"middle"))), ("byteorder", "middle")),
    "no_pickle": Hostile(made(lambda: archive(*parts()[1:]))),
    "empty_pickle": Hostile(zipped(b""), ("data.pkl",)),
    "pickle_without_end": Hostile(zipped(HONEST[:-1]), ("data.pkl",)),
    "text_for_a_pickle": Hostile(zipped(b"hello world\n"), ("data.pkl",)),
    "nested_250_deep": Hostile(zipped(PROTO + nested(250, tensor()) + b"."), ("200",), inspect=4),
    "nested_very_deep": Hostile(zipped(PROTO + nested(DEEP, tensor()) + b"."), inspect=4),
}  # fmt: skip

EXPONENTIAL = Hostile(zipped(PROTO + exponential() + b"."), inspect=4)
"""Kept apart: it must be refused soon."""

BOMBS: dict[str, Hostile] = {
    key: Hostile(made(lambda body=body: archive(*parts(body()))),  # type: ignore[misc]
                 ("data.pkl",), inspect=4 if error is UnsafeError else 3)
    for key, (body, error) in makers_pickle.MAKERS.items()
}  # fmt: skip
"""The pickles of `makers_pickle`, where a checkpoint has its pickle."""

# --- odd, and fine ---------------------------------------------------------------------------------------------------


def no_crc(folder: Path) -> Path:
    """CRC 0 on every member: not computed."""
    return made(lambda: archive(*(replace(part, crc32=0) for part in parts())))(folder)


def deflated_members(folder: Path) -> Path:
    """What zip tools make of a checkpoint that is packed anew."""
    members = [
        replace(p, method=8, payload=deflated(p.payload), nbytes=len(p.payload), crc32=zlib.crc32(p.payload))
        for p in parts()
    ]
    return made(lambda: archive(*members))(folder)


def expanded(folder: Path) -> Path:
    """Ten million million elements that are one number."""
    return zipped(state(w=tensor(size=numbers((10**13,)), stride=numbers((0,)))))(folder)


def nested_150(folder: Path) -> Path:
    """Deeper than people write, and no bomb."""
    return zipped(PROTO + nested(150, tensor()) + b".")(folder)


def overlapping_windows(folder: Path) -> Path:
    """Two windows that nobody covers."""
    return zipped(state(a=tensor(size=numbers((3,))), b=tensor(offset=number(1), size=numbers((3,)))))(folder)


FINE: dict[str, Callable[[Path], Path]] = {
    "no_crc": no_crc,
    "deflated_members": deflated_members,
    "expanded": expanded,
    "nested_150": nested_150,
    "overlapping_windows": overlapping_windows,
}

# --- stacked pickles -------------------------------------------------------------------------------------------------

HEAD = PROTO + b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + PROTO + b"M\xe9\x03." + PROTO + b"}."


def stacked(
    body: bytes = HONEST.replace(number(4) + b"tQ", number(4) + b"NtQ"),
    keys: bytes = b"](" + text("0") + b"e",
    data: bytes = pack("<q", 4) + DATA,
    head: bytes = HEAD,
) -> bytes:
    """A file of torch before 1.6."""
    return head + body + PROTO + keys + b"." + data


def _viewed(*view: bytes) -> bytes:
    return state(w=tensor(storage(text("0"), number(4), "FloatStorage", row(*view)), size=numbers((2,))))


STACKED: dict[str, Hostile] = {
    key: Hostile(made(lambda data=data: data), says)  # type: ignore[misc]
    for key, (data, says) in {
        "count_too_small": (stacked(data=pack("<q", 2) + DATA), ("'0'",)),
        "count_too_large": (stacked(data=pack("<q", 9) + DATA), ("'0'",)),
        "count_negative": (stacked(data=pack("<q", -4) + DATA), ("'0'",)),
        "count_near_2_to_63": (stacked(data=pack("<q", 2**63 - 1) + DATA), ("'0'",)),
        "key_twice": (stacked(keys=b"](" + text("0") * 2 + b"e"), ("twice",)),
        "key_never_used": (stacked(keys=b"](" + text("9") + b"e"), ("'9'",)),
        "no_keys": (stacked(keys=b"]"), ("'0'",)),
        "keys_no_list": (stacked(keys=number(3)), ()),
        "keys_of_lists": (stacked(keys=b"]](" + b"]" + b"ea"), ()),
        "view_outside": (stacked(_viewed(text("1"), number(3), number(2))), ("'w'",)),
        "view_negative": (stacked(_viewed(text("1"), number(-1), number(2))), ()),
        "view_beyond_64_bits": (stacked(_viewed(text("1"), number(1 << 70), number(2))), ()),
        "sys_info_missing": (HEAD[:-4], ()),
        "only_the_magic_number": (HEAD[:15], ()),
        "junk_behind_the_head": (HEAD + b"\xff" * 100, ()),
    }.items()
}

# --- tar -------------------------------------------------------------------------------------------------------------

TAR_PICKLE = PROTO + mapping(w=text("7") + b"Q") + b"."
TAR_STORAGE = PROTO + row(number(0), text("cpu"), name("torch", "FloatStorage")) + b"."
TAR_TENSOR = PROTO + row(number(7), number(0), name("torch", "FloatTensor")) + b"."


def one(value: int) -> bytes:
    """The pickle of a number."""
    return PROTO + number(value) + b"."


def tar(
    pickle: bytes = TAR_PICKLE,
    storages: bytes = one(1) + TAR_STORAGE + pack("<q", 4) + DATA + PROTO + b"].",
    tensors: bytes = one(1) + TAR_TENSOR + pack("<ii", 1, 0) + pack("<3q", 4, 1, 0),
    leave_out: str = "",
    link: str = "",
    twice: str = "",
) -> bytes:
    """A file of torch 0.1."""
    out = io.BytesIO()
    members = {"sys_info": PROTO + b"}.", "pickle": pickle, "storages": storages, "tensors": tensors}
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as file:
        for label, data in members.items():
            info = tarfile.TarInfo(label)
            if label == leave_out:
                continue
            if label == link:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                file.addfile(info)
                continue
            info.size = len(data)
            for _ in range(2 if label == twice else 1):
                file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _tensors(axes: int = 1, *values: int) -> bytes:
    return one(1) + TAR_TENSOR + pack("<ii", axes, 0) + pack(f"<{len(values)}q", *values)


TAR: dict[str, Hostile] = {
    key: Hostile(made(lambda data=data: data), says)  # type: ignore[misc]
    for key, (data, says) in {
        "storages_missing": (tar(leave_out="storages"), ("storages",)),
        "storages_twice": (tar(twice="storages"), ()),
        "storages_a_link": (tar(link="storages"), ()),
        "numel_too_large": (tar(storages=one(1) + TAR_STORAGE + pack("<q", 99) + DATA + PROTO + b"]."), ("storages",)),
        "numel_negative": (tar(storages=one(1) + TAR_STORAGE + pack("<q", -4) + DATA + PROTO + b"]."), ("storages",)),
        "numel_near_2_to_63": (tar(storages=one(1) + TAR_STORAGE + pack("<q", 2**63 - 1) + DATA), ("storages",)),
        "count_negative": (tar(storages=one(-1)), ("storages",)),
        "count_huge": (tar(storages=one(1 << 60)), ("storages",)),
        "count_no_number": (tar(tensors=PROTO + text("1") + b"."), ("tensors",)),
        "axes_negative": (tar(tensors=_tensors(-1)), ("tensors",)),
        "axes_huge": (tar(tensors=_tensors(2**31 - 1)), ("tensors",)),
        "sizes_cut_off": (tar(tensors=_tensors(3, 4, 1, 0)), ("tensors",)),
        "size_outside": (tar(tensors=_tensors(1, 5, 1, 0)), ("'w'", "20", "16")),
        "size_negative": (tar(tensors=_tensors(1, -5, 1, 0)), ("tensors",)),
        "stride_of_petabytes": (tar(tensors=_tensors(1, 4, 1 << 50, 0)), ("'w'",)),
        "offset_negative": (tar(tensors=_tensors(1, 2, 1, -1)), ("tensors",)),
        "storage_unknown": (tar(tensors=one(1) + TAR_TENSOR.replace(number(0), number(5)) + bytes(32)), ("tensors",)),
        "object_unknown": (tar(pickle=TAR_PICKLE.replace(text("7"), text("8"))), ("'8'",)),
        "views_of_nothing": (
            tar(storages=one(1) + TAR_STORAGE + pack("<q", 4) + DATA + PROTO + b"](" + numbers((9, 8, 0, 4)) + b"e."),
            ("storages",)),
    }.items()
}  # fmt: skip


def call_of(module: str, attribute: str) -> bytes:
    """A call that must not happen."""
    return name(module, attribute) + row(text("exit 1")) + b"R"
