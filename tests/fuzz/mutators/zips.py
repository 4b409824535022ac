"""Mutations of zip and tar archives: a member's content, with its right CRC, or what the archive says of it."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field
from random import Random
from struct import pack

from tests.fuzz.mutators import hdf5, json_text, numpy_arrays, pickles, raw


@dataclass
class Member:
    """A member; `lies` are fields of its two headers that are not what they should be."""

    name: str
    payload: bytes
    method: int = 0
    extra: bytes = b""
    padded: bool = False
    lies: dict[str, int] = field(default_factory=dict)

    def stored(self) -> bytes:
        """The bytes as they are kept."""
        if self.method == 0:
            return self.payload
        squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
        return squeeze.compress(self.payload) + squeeze.flush()

    def headers(self, at: int) -> tuple[bytes, bytes]:
        """The local header with the bytes behind it, and the line of the directory."""
        stored, name = self.stored(), self.name.encode("utf-8", "surrogatepass")
        lies = {key: value for key, value in self.lies.items() if not key.startswith("local_")}
        honest = {"flags": 0x0800, "method": self.method, "crc": zlib.crc32(self.payload), "stored": len(stored)}
        said = honest | {"size": len(self.payload), "at": at} | lies
        here = said | {k.removeprefix("local_"): v for k, v in self.lies.items() if k.startswith("local_")}
        extra = self.extra
        if self.padded:  # torch aligns payloads with an extra field of this name (caffe2/serialize/inline_container.cc)
            room = -(at + 30 + len(name) + 4) % 64
            extra = b"FB" + pack("<H", room) + b"Z" * room
        local = b"PK\3\4" + _fields(20, *(here[k] for k in ("flags", "method"))) + bytes(4) + _wide(
            *(here[k] for k in ("crc", "stored", "size"))) + _fields(len(name), len(extra)) + name + extra  # fmt: skip
        line = b"PK\1\2" + _fields(20, 20, said["flags"], said["method"]) + bytes(4) + _wide(
            *(said[k] for k in ("crc", "stored", "size"))) + _fields(len(name), len(self.extra), 0, 0, 0) + _wide(
            0, said["at"]) + name + self.extra  # fmt: skip
        return local + stored, line


def _fields(*values: int) -> bytes:
    return b"".join(pack("<H", value & 0xFFFF) for value in values)


def _wide(*values: int) -> bytes:
    return b"".join(pack("<I", value & 0xFFFFFFFF) for value in values)


def members(data: bytes) -> list[Member]:
    """All members, inflated."""
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            extra = data[info.header_offset + 30 + len(info.filename.encode()) :][:2]
            found.append(Member(info.filename, archive.read(info), info.compress_type, padded=extra == b"FB"))
    return found


def build(parts: list[Member], random: Random | None = None) -> bytes:
    """An archive; a Random makes its last record lie."""
    body, directory = b"", b""
    for part in parts:
        local, line = part.headers(len(body))
        body, directory = body + local, directory + line
    said = [0, 0, len(parts), len(parts), len(directory), len(body), 0]
    if random:
        at = random.randrange(7)
        said[at] = raw.number(random, said[at])
    return body + directory + b"PK\5\6" + _fields(*said[:4]) + _wide(*said[4:6]) + _fields(said[6])


def mutate_member(data: bytes, random: Random) -> bytes:
    """The content of one member, by its kind, with everything around it right."""
    parts = members(data)
    part = random.choices(parts, [_weight(part) for part in parts])[0]
    part.payload = _content(part, random)
    return build(parts)


def _weight(part: Member) -> int:
    return 8 if part.name.endswith((".pkl", ".npy", ".json", ".h5", "byteorder")) else 1


def _content(part: Member, random: Random) -> bytes:
    end = part.name.rpartition(".")[2]
    known = {"pkl": pickles.mutate, "npy": numpy_arrays.mutate, "json": json_text.mutate, "h5": hdf5.any_mutation}
    try:
        return known.get(end, raw.mutate)(part.payload, random)
    except Exception:
        return raw.mutate(part.payload, random)


def mutate(data: bytes, random: Random) -> bytes:
    """Another archive of the same members: one of them renamed, moved, lost, doubled, squeezed, or lied about."""
    parts = members(data)
    at = random.randrange(len(parts))
    part = parts[at]
    match random.randrange(9):
        case 0:
            part.name = json_text.text(random, part.name)
        case 1:
            part.name = random.choice(parts).name
        case 2:
            del parts[at]
        case 3:
            parts.insert(random.randint(0, len(parts)), part)
        case 4:
            random.shuffle(parts)
        case 5:
            part.method = 8
        case 6:
            return build(parts, random)
        case 7:
            extra = pack("<HH", random.choice((1, 0x7075, 0x4246, 0)), random.choice((0, 8, 16, 24, 800))) + bytes(
                random.choice((0, 8, 24))
            )
            part.extra = extra
        case 8:
            key = random.choice(("flags", "method", "crc", "stored", "size", "at"))
            sound = {
                "flags": 0x0800,
                "method": 0,
                "crc": 0,
                "stored": len(part.payload),
                "size": len(part.payload),
                "at": 0,
            }
            key_there = key if random.random() < 0.7 or key == "at" else f"local_{key}"
            part.lies[key_there] = raw.number(random, sound[key])
    return build(parts)


def mutate_tar(data: bytes, random: Random) -> bytes:
    """The oldest torch form: the content of a member, or a header."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(info, archive.extractfile(info).read()) for info in archive if info.isfile()]  # type: ignore[union-attr]
    at = random.randrange(len(found))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for k, (info, content) in enumerate(found):
            if k == at:
                match random.randrange(8):
                    case 0:
                        info.name = json_text.text(random, info.name)
                    case 1:
                        info.type = random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE))
                        info.linkname = "../x"
                    case 2 | 3 | 4 | 5:
                        content = pickles.mutate(content, random)
                    case _:
                        content = raw.mutate(content, random)
            info.size = len(content) if info.isfile() else 0
            archive.addfile(info, io.BytesIO(content))
        end = archive.offset
    return made.getvalue()[: end + 1024]
