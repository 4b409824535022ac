"""Mutations of HDF5: links, attributes, types and storage by h5py; and bytes of its metadata, where no tensor stands.

JLD2's files are HDF5 behind 512 bytes of text, which h5py keeps.
"""

from __future__ import annotations

import io
import re
from random import Random
from typing import Any

from tests.fuzz.mutators import json_text, raw

SIGNATURES = re.compile(rb"\x89HDF\r\n\x1a\n|OHDR|OCHK|TREE|SNOD|HEAP|FRHP|FHDB|FHIB|BTHD|BTLF|GCOL|FSHD")
CHECKSUMMED = (b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF")


def any_mutation(data: bytes, random: Random) -> bytes:
    """By h5py, or by bytes."""
    return (mutate if random.random() < 0.5 else mutate_metadata)(data, random)


def mutate_metadata(data: bytes, random: Random) -> bytes:
    """A few bytes or a number changed behind a signature, or in a header message behind it."""
    made = bytearray(data)
    places = [found.start() for found in SIGNATURES.finditer(data)]
    if not places:
        return raw.mutate(data, random)
    start = random.choice(places)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = min(len(made) - 1, start + random.choice((random.randrange(4, 32), random.randrange(4, 400))))
        room = random.choice((1, 1, 2, 4, 8))
        if random.random() < 0.4:
            made[at] ^= 1 << random.randrange(8)
        else:
            value = raw.number(random, int.from_bytes(made[at : at + room], "little"))
            made[at : at + room] = (value % (1 << (8 * room))).to_bytes(room, "little")
    return bytes(made[: len(data)])


def mutate(data: bytes, random: Random) -> bytes:
    """One or two changes by h5py."""
    import h5py

    held = io.BytesIO(data)
    with h5py.File(held, "r+") as file:
        for _ in range(random.choice((1, 1, 2))):
            _change(file, random)
    return held.getvalue()


def _objects(file: Any) -> list[Any]:
    found: list[Any] = [file]
    file.visititems(lambda name, item: found.append(item))
    return found


def _change(file: Any, random: Random) -> None:
    import h5py

    found = _objects(file)
    item = random.choice(found)
    group = item if isinstance(item, h5py.Group) else item.parent
    datasets = [one for one in found if isinstance(one, h5py.Dataset)]
    match random.randrange(10):
        case 0 | 1 | 2:
            _attribute(random.choice([one for one in found if len(one.attrs)] or found), random)
        case 3:
            link = random.choice((h5py.SoftLink(random.choice(("/", "..", "/no/where", item.name))),
                                  h5py.ExternalLink("other.h5", "/w"), random.choice(found)))  # fmt: skip
            group[_new(group, random)] = link
        case 4 if item.name != "/":
            group.move(item.name, _new(group, random))
        case 5 if item.name != "/":
            del file[item.name]
        case 6 | 7 if datasets:
            _rewrite(file, random.choice(datasets), random)
        case 8:
            group.create_group(_new(group, random))
        case _:
            _dataset(group, _new(group, random), random)


def _new(group: Any, random: Random) -> str:
    name = (
        json_text.text(random, random.choice(list(group) or ["w"]))
        .replace("\0", "0")
        .encode("utf-8", "replace")
        .decode()
    )
    return name if name not in group and name.strip("./") else f"n{random.randrange(1000)}"


def _attribute(item: Any, random: Random) -> None:
    """An attribute changed: JSON by its tree, names by their texts, or another type of value."""
    import numpy as np

    names = list(item.attrs)
    if not names:
        item.attrs[json_text.text(random, "layer_names").replace("\0", "")] = [b"x", b"y"]
        return
    name = random.choice(names)
    value = item.attrs[name]
    match random.randrange(5):
        case 0:
            del item.attrs[name]
        case 1:
            item.attrs[name] = random.choice(
                (1, 1.5, np.arange(3), b"", "text", [b"x"], np.bytes_(b"\xff\xfe"), np.float32("nan"))
            )
        case _:
            if isinstance(value, (str, bytes)) and value[:1] in ("{", b"{"):
                raw_text = value.encode() if isinstance(value, str) else value
                changed = json_text.mutate(raw_text, random).replace(b"\0", b"0")
                item.attrs[name] = changed if random.random() < 0.5 else changed.decode("utf-8", "replace")
            elif isinstance(value, np.ndarray) and value.size:
                names = value.tolist()
                names[random.randrange(len(names))] = random.choice(names)
                item.attrs[name] = names[: random.randint(1, len(names))]
            else:
                item.attrs[name] = json_text.text(random, "w").replace("\0", "").encode("utf-8", "replace")


def _rewrite(file: Any, dataset: Any, random: Random) -> None:
    """The same dataset in another form: type, shape, chunks, filters, order of bytes."""
    name, value, attributes = dataset.name, dataset[()], dict(dataset.attrs)
    parent = dataset.parent
    del file[name]
    form: dict[str, Any] = {}
    match random.randrange(7):
        case 0:
            value = value.astype(random.choice(("<f2", ">f4", "<f8", "<i4", ">i8", "<u2", "<c8", "?")))
        case 1:
            value = value.reshape(random.choice(((-1,), (1, -1), (-1, 1))))
        case 2 if value.ndim:
            form = {
                "chunks": True,
                "compression": random.choice(("gzip", "lzf", None)),
                "shuffle": random.random() < 0.5,
            }
        case 3 if value.ndim:
            form = {"chunks": True, "fletcher32": True, "maxshape": (None,) * value.ndim}
        case 4:
            value = value[:0] if value.ndim else value
        case 5:
            form = {"fillvalue": random.choice((0, 1, 2))}
        case 6:
            value = value.T
    made = parent.create_dataset(name.rpartition("/")[2], data=value, **form)
    for key, held in attributes.items():
        made.attrs[key] = held


def _dataset(group: Any, name: str, random: Random) -> None:
    """One more dataset, of an odd type or place."""
    import h5py
    import numpy as np

    match random.randrange(8):
        case 0:
            group.create_dataset(name, (2,), "f4", external=[("other.bin", 0, 8)])
        case 1:
            group[name] = h5py.Empty("f4")
        case 2:
            group.create_dataset(name, (2, 2), h5py.string_dtype())
        case 3:
            group[name] = np.zeros(2, [("a", "f4"), ("b", "i8")])
        case 4:
            group.create_dataset(name, (1 << 20, 1 << 20), "f4", chunks=(1 << 10, 1 << 10))
        case 5:
            group.create_dataset(name, (2,), h5py.ref_dtype)
        case 6:
            group[name] = np.dtype("f4")
        case 7:
            group[name] = np.arange(6, dtype="f4").reshape(2, 3)
