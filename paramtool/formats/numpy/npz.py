"""NumPy's `.npz` and `.npy`: arrays after text headers, in separate files or together in a zip archive.

    .npy      header, then the elements (see `npy.py`)
    .npz      a zip archive of such files and nothing else, stored (np.savez) or deflated (np.savez_compressed)

A member `a/b.npy` is the tensor `a/b`.  The array of a bare `.npy` has no name and is called `arr_0`, as np.savez calls
unnamed arrays.  MXNet 2 writes its parameters in this format, a sparse array as a folder `name/` of its parts.  If
every string in a file is the name of another array, each is another name of that array (MXNet's pull request 18749).

The elements of a stored member are a range of the file.  The archive's CRC covers the header too; the CRC of the
elements alone is derived from it, and checked like that of any other storage.

Specification: numpy/lib/format.py and npyio.py (NpzFile).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from paramtool.errors import Defects, FormatError, listed, plural, some
from paramtool.formats import object_tree, sniff
from paramtool.formats.files import Contents, inflated, open_source
from paramtool.formats.mxnet import symbol
from paramtool.formats.numpy import npy
from paramtool.formats.record import codec as record
from paramtool.formats.zip import directory as zip_directory
from paramtool.formats.zip.crc import crc32_of_rest
from paramtool.grouping import omit
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Unknown, Value
from paramtool.model.objects import EMPTY, Mapping, Node, TensorRef
from paramtool.model.storage import Backing, ByteRange, Encoded, SourceFile, Storage
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

NAME = "npz"
SUFFIX = ".npy"
NAMELESS = "arr_0"
MAX_RATIO = 1032
"""The largest ratio of deflate (258 bytes from two bits; zlib's technical notes)."""


def read(path: str) -> Checkpoint:
    """Describe a `.npz` or `.npy` file; Defects if arrays are damaged.  Those of Python objects are read as pickles."""
    file, source = open_source(path)
    with file:
        bare = file.read(len(npy.MAGIC)) == npy.MAGIC
        members = {NAMELESS: _whole(source)} if bare else _members(file, source)
        arrays = _Arrays(file, source)
        for name, member in members.items():
            arrays.add(name, member)
    arrays.finish()
    entries = arrays.entries()
    tree: Node = EMPTY
    if arrays.pickled:
        from paramtool.formats.numpy import objects

        found = objects.held(path, arrays.pickled, arrays.nbytes, len(arrays.storages))
        if clash := sorted(entries.keys() & found.entries.keys()):
            raise FormatError(f"{path}: {some(clash, 3)} are arrays, and in the objects of others, too")
        assert isinstance(found.tree, Mapping)
        plain = tuple((name, TensorRef(name)) for name in entries)
        tree = replace(found.tree, items=(*plain, *found.tree.items))
        entries |= found.entries
        if not entries:
            raise FormatError(f"{path}: its arrays are pickles that hold no NumPy arrays of numbers", hint=objects.SAVE)
        arrays.storages |= found.storages
    views = {name: value for name, value in arrays.values.items() if isinstance(value, View)}
    modules, parts, notes = symbol.describe(path, views)
    return Checkpoint(
        format="npy" if bare else NAME,
        files=(source,),
        storages=arrays.storages,
        entries=entries,
        objects=tree,
        sections=object_tree.sections(tree),
        unknown=tuple(arrays.unknown),
        notes=(*arrays.notes(), *notes),
        modules=modules,
        parts=parts,
    )


def _whole(source: SourceFile) -> zip_directory.Member:
    """A bare `.npy`, as if it were a member that fills its archive."""
    return zip_directory.Member("", zip_directory.STORED, None, 0, source.nbytes, source.nbytes)


def _members(file: BinaryIO, source: SourceFile) -> dict[str, zip_directory.Member]:
    """{tensor name: member}; FormatError if a member is not an array."""
    members = zip_directory.read_directory(file, source.path, case_matters=True)
    others = [f"{member.name!r:.200}" for member in members if not member.name.endswith(SUFFIX)]
    if others:
        count = plural(members, "member is", "members are")
        head = f"{source.path}: {len(others)} of its {count} not arrays; expected only *{SUFFIX}:"
        raise FormatError(listed(head, others))
    return {member.name.removesuffix(SUFFIX): member for member in members}


class _Arrays:
    """The arrays of one file, numbered in order of appearance, and their defects."""

    def __init__(self, file: BinaryIO, source: SourceFile) -> None:
        self.file = file
        self.source = source
        self.values: dict[str, Value] = {}
        self.storages: dict[int, Storage] = {}
        self.defects: list[str] = []
        self.noted: dict[str, int] = {}
        self.pickled: dict[str, object] = {}
        """{name: the value of an array of objects}"""
        self.nbytes = 0
        """Bytes of their pickles, without those of arrays."""
        self.unknown: list[Unknown] = []
        self.texts: dict[str, str] = {}
        """{name: the string that it holds}, for arrays that are one string and could be a name."""

    def add(self, name: str, member: zip_directory.Member) -> None:
        """Describe one array, or note its defect."""
        spot = f"{name!r:.200}" if member.name else "the array"
        number = len(self.storages)
        try:
            # The header of an array, and not a byte more if the member is stored; ValueError if it has none
            if member.method == zip_directory.DEFLATED and member.nbytes > MAX_RATIO * member.stored_nbytes:
                raise ValueError(
                    f"{member.stored_nbytes} bytes cannot inflate to {member.nbytes}, as the directory claims"
                )
            nbytes = npy.header_nbytes(_first(self.file, member, npy.FIRST_NBYTES))
            raw = _first(self.file, member, nbytes)
            if len(raw) < nbytes:
                raise ValueError(f"has {len(raw)} of its header's {nbytes} bytes: it is truncated")
            if sniff.holds_objects(raw):
                self._objects(name, member, len(raw))
                return
            value, element = npy.value(npy.header(raw), number, member.nbytes - len(raw))
        except ValueError as error:
            self.defects.append(f"{spot}: {error}")
            return
        self.values[name] = value
        if text := _text(self.file, name, member, raw, value=value):
            self.texts[name] = text
        if element.note:
            self.noted[element.note] = self.noted.get(element.note, 0) + 1
        backing = _backing(self.source.path, member, raw, element.swap)
        self.storages[number] = Storage(number, member.nbytes - len(raw), backing)

    def _objects(self, name: str, member: zip_directory.Member, start: int) -> None:
        """Take the objects of an array; ValueError if other bytes follow their pickle."""
        from paramtool.formats.numpy import objects

        path, nbytes = self.source.path, member.nbytes - start
        if stored := member.method == zip_directory.STORED:
            data: Buffer = Contents(self.file, self.source.nbytes)
            start += member.byte_start
        else:
            data = zip_directory.read_member(self.file, member, path, self.source.nbytes * MAX_RATIO)
        results = objects.run(data, start, start + nbytes, path, spans=stored)
        if not results or results[-1].stop != start + nbytes or len(results) > 1:
            raise ValueError("holds Python objects, and their pickle does not end where the array does")
        self.unknown += objects.unknown(results)
        self.pickled[name] = results[0].value
        self.nbytes += nbytes - results[0].skipped

    def entries(self) -> dict[str, Entry]:
        """Every array by its name; strings that are names of other arrays become aliases of these.

        MXNet's pull request 18749 writes shared parameters in this way.  This applies only if every string in the file
        is such a name: otherwise strings are data.
        """
        entries = {name: Entry(value, symbol.role(name)) for name, value in self.values.items()}
        plain = {name for name, value in self.values.items() if isinstance(value, View)}
        if not self.texts or not plain.issuperset(self.texts.values()):
            return entries
        for name in self.texts:
            compound = self.values[name]
            assert isinstance(compound, Compound)
            del self.storages[int(compound.parts["bytes"].storage)]
        self.noted["holds the name of another array, and is that array by declaration"] = len(self.texts)
        stored = omit(entries, self.texts)
        found = record.declared(stored, self.texts)
        return {name: found[name]._replace(role=entries[name].role) for name in entries}

    def finish(self) -> None:
        """Raise the errors that were gathered, if any."""
        if self.defects:
            raise Defects(self.source.path, self.defects)

    def notes(self) -> Iterable[str]:
        """Notes, each once with a count."""
        return [f"{note}: {count} array{'s' if count > 1 else ''}" for note, count in self.noted.items()]


MAX_NAME_NBYTES = 4096
"""The largest member that can hold a name, with its header."""
SPARSE_FORMAT = "/format"
"""The member with the string that says how a sparse array of MXNet 2 is stored."""


def _text(file: BinaryIO, name: str, member: zip_directory.Member, header: bytes, *, value: Value) -> str:
    """The string in an array without axes, if it can be a name; else empty."""
    if not isinstance(value, Compound) or len(value.parts["bytes"].shape) != 1 or name.endswith(SPARSE_FORMAT):
        return ""
    descr = str(value.facts["descr"])
    if descr[1:2] not in ("U", "S") or member.nbytes > MAX_NAME_NBYTES:
        return ""
    data = _first(file, member, member.nbytes)
    if member.crc32 not in (None, zlib.crc32(data)):
        return ""
    codec = "utf-8" if descr[1] == "S" else f"utf-32-{'be' if descr[0] == '>' else 'le'}"
    try:
        return data[len(header) :].decode(codec).rstrip("\0")
    except UnicodeDecodeError:
        return ""


def _first(file: BinaryIO, member: zip_directory.Member, nbytes: int) -> bytes:
    """The first bytes of a member, fewer if it is shorter; ValueError if it cannot be inflated."""
    nbytes = min(nbytes, member.nbytes)
    if member.method == zip_directory.STORED:
        return os.pread(file.fileno(), nbytes, member.byte_start)
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    made, at, stop = b"", member.byte_start, member.byte_start + member.stored_nbytes
    while at < stop and len(made) < nbytes and not machine.eof:
        packed = os.pread(file.fileno(), min(4096, stop - at), at)
        at += len(packed) or stop
        made += inflated(machine, packed, nbytes - len(made))
    return made


def _backing(path: str, member: zip_directory.Member, header: bytes, swap: int) -> Backing:
    """Where the elements of an array are stored, after its header."""
    swaps = (f"swap{swap}",) if swap > 1 else ()
    stop = member.byte_start + member.stored_nbytes
    if member.method == zip_directory.DEFLATED:
        steps = ("inflate", f"skip{len(header)}", *swaps)
        return Encoded(ByteRange(path, member.byte_start, stop), steps, member.crc32)
    data = member.nbytes - len(header)
    crc32 = None if member.crc32 is None or not data else crc32_of_rest(member.crc32, header, data)
    start = member.byte_start + len(header)
    return Encoded(ByteRange(path, start, stop), swaps, crc32) if swaps else ByteRange(path, start, stop, crc32)
