"""Scan a file of any kind for the names that its pickles would call.  The closed pickle machine runs them.

    a pickle, even a truncated one, and pickles after it          protocols 0 to 5, Python 2's as well
    a zip archive, even one that its own reader refuses           every member that is a pickle
    a zip archive behind other bytes                              every member, as Python's zipfile finds it
    a tar archive, with or without a magic number                 every member, as Python's tarfile finds it
    NumPy arrays, one behind the other                            pickles behind them, and behind headers of objects
    a configuration of Keras, of JSON, and in SavedModels         whether a layer holds code
    gzip, zlib, bzip2, xz, lzma, also several streams             the decompressed data, up to a limit

All that a file can be is tried, as one file can be several of them.  What a limit stops, and what begins as one of
these and is not followed to its end, is not `ended`.

Neither the name nor the first byte of a file decides whether it is a pickle: it is run, and anything else fails in its
first bytes.  Of a pickle that is incomplete and does not begin like protocols 2 to 5, as plain text can be, all counts
that an unpickler calls, and the names that are dangerous where it only ends too soon and has more than words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from paramtool.errors import ParamtoolError
from paramtool.formats import policy, sniff
from paramtool.formats.files import Contents, inflated, open_source
from paramtool.formats.mxnet import states as mxnet
from paramtool.formats.once import once
from paramtool.formats.pickle.names import AT_RUN_TIME, CUT, RESULT
from paramtool.formats.pickle.read import DEFAULT_LIMITS, attempt
from paramtool.formats.pickle.values import Instance, Use
from paramtool.formats.torch.globals import CONSTRUCTORS, KNOWN
from paramtool.formats.zip import directory as zip_directory
from paramtool.model.checkpoint import Unknown
from paramtool.model.storage import SourceFile

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

MAX_PICKLES = 1000
"""The most consecutive pickles of a file that are run."""
MAX_HEADERS = 20_000
"""The most members of a damaged archive that are scanned."""
MAX_EXPANDED_NBYTES = 64 << 20
MAX_MEMBER_NBYTES = 512 << 20
MAX_WALKED_NBYTES = 1 << 30
"""How far a damaged archive is searched for members; torch writes its pickle at the front."""
MAX_PADDING_NBYTES = 64 << 10
"""The most zeros before what stands between tensors: those of an alignment."""
MAX_DEPTH = 6
"""The deepest nesting of archives in archives and pickles in pickles."""
NAME = re.compile(r"[\w.<>]+")


@dataclass
class ScanBudget:
    """The work that may still be done for one file, in bytes of pickles that are run and bytes that are inflated.

    In a damaged archive all members may overlap, and a pickle may begin at every byte.
    """

    left: int
    ended: bool = True
    """Whether everything was scanned so far."""
    has_tensors: bool = False
    """Whether a pickle makes tensors or arrays."""

    @classmethod
    def of(cls, nbytes: int) -> ScanBudget:
        """The budget for a file of `nbytes` bytes."""
        return cls(max(MIN_WORK_NBYTES, WORK_PER_BYTE * nbytes))

    def spend(self, nbytes: int) -> None:
        """Subtract work that was done."""
        self.left -= nbytes
        self.ended = self.ended and self.left > 0


CLOSED = re.compile(
    rb"7z\xbc\xaf|Rar!|\x28\xb5\x2f\xfd|[\x50-\x5f]\x2aM\x18|[\x02\x04][\x21\x22][LM]\x18|\x1f\x9d|LZIP|MSCF|\x89LZO"
)
"""How archives begin that are not opened: 7z, RAR, zstd, LZ4, compress, lzip, cabinets and lzop."""
MIN_WORK_NBYTES = 16 << 20
WORK_PER_BYTE = 16


class Scanned(NamedTuple):
    """The result of a scan."""

    unknown: tuple[Unknown, ...]
    """Unknown names in its pickles."""
    is_pickle: bool
    """Whether the file itself is a valid pickle."""
    ended: bool = True
    """Whether everything was scanned: limits stop at bombs; closed archives, and arrays in pickles, are left."""
    has_tensors: bool = False
    """Whether its pickles make tensors or arrays."""


NOTHING = Scanned((), False)


def scan(path: str) -> tuple[Unknown, ...]:
    """The unknown names in the pickles of a file; none if the file cannot be read or holds no pickles."""
    return scan_file(path).unknown


@once
def scan_file(path: str) -> Scanned:
    """The full result of scanning a file."""
    try:
        file, source = open_source(path)
        with file:
            return _looked_through(file, source) if source.nbytes else NOTHING
    except (ParamtoolError, OSError):  # the reader of the file reports that it cannot be read
        return NOTHING._replace(ended=False)


def _looked_through(file: BinaryIO, source: SourceFile) -> Scanned:
    path = source.path
    if sniff.is_zip(file.read(4)):
        try:
            members = zip_directory.read_directory(file, path)
        except ParamtoolError:
            members = ()
        work = ScanBudget.of(source.nbytes)
        if members:
            found = [one for member in members for one in scan_member(file, member, path, work)]
            found += _walked_tar(Contents(file, source.nbytes), MAX_DEPTH, work)
            return Scanned(policy.merged(found), False, work.ended, work.has_tensors)
    whole = scan_bytes(Contents(file, source.nbytes))
    if path.endswith(".pb"):
        from paramtool.formats.tensorflow.saved_model import scanned

        return whole._replace(unknown=policy.merged((*whole.unknown, *scanned(path))))
    return whole


def scan_bytes(data: Buffer) -> Scanned:
    """Scan the bytes of a file, whatever they are."""
    work = ScanBudget.of(len(data))
    found = _scanned(data, MAX_DEPTH, work)
    return found._replace(ended=work.ended, has_tensors=work.has_tensors)


def scan_parts(file: BinaryIO, source: SourceFile, places: Iterable[tuple[int, int]]) -> Scanned:
    """Scan some ranges of a file with one budget, each as if it were one, without the zeros that it begins with."""
    work = ScanBudget.of(source.nbytes)
    whole = Contents(file, source.nbytes)
    found: list[Unknown] = []
    for start, stop in places:
        padded = whole[start : min(stop, start + MAX_PADDING_NBYTES)]
        rest = len(padded.lstrip(b"\0"))
        work.ended &= rest > 0 or len(padded) < MAX_PADDING_NBYTES
        found += _scanned(whole.part(start + len(padded) - rest, stop), MAX_DEPTH, work).unknown if rest else ()
    return Scanned(policy.merged(found), False, work.ended)


def unclaimed(nbytes: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The bytes of a file that no tensor claims, of which its reader says nothing.

    >>> [*unclaimed(9, [(6, 8), (1, 3), (2, 4)])]
    [(0, 1), (4, 6), (8, 9)]
    """
    at = 0
    for start, stop in (*sorted(ranges), (nbytes, nbytes)):
        if at < start:
            yield at, start
        at = max(at, stop)


def scan_members(file: BinaryIO, source: SourceFile, members: Iterable[zip_directory.Member]) -> Scanned:
    """Scan members of a valid archive that its reader does not run, with one budget."""
    work = ScanBudget.of(source.nbytes)
    found = [one for member in members for one in scan_member(file, member, source.path, work)]
    return Scanned(policy.merged(found), False, work.ended)


def scan_member(file: BinaryIO, member: zip_directory.Member, path: str, work: ScanBudget) -> tuple[Unknown, ...]:
    """The unknown names in a member of a valid archive; none if it cannot be read, or not within the budget."""
    if member.method == zip_directory.STORED:
        return _scanned(Contents(file, member.nbytes, member.byte_start), MAX_DEPTH - 1, work).unknown
    work.spend(member.nbytes)
    if work.left <= 0:
        return ()
    try:
        data = zip_directory.read_member(file, member, path, MAX_MEMBER_NBYTES, most=MAX_MEMBER_NBYTES)
    except ParamtoolError:
        work.ended = False
        return ()
    return _scanned(data, MAX_DEPTH - 1, work).unknown


def _scanned(data: Buffer, depth: int, work: ScanBudget, *, zips: bool = True) -> Scanned:
    """Scan some bytes, as each of the things that they can be; as a zip archive only with `zips`."""
    head = data[:512]
    at = sniff.hdf5_start(data)  # at the start of a file, its reader looks for code of Keras
    if head and (not depth or CLOSED.match(head) or at > 0 or (at == 0 and depth < MAX_DEPTH)):
        work.ended = False
    if not head or not depth:
        return NOTHING
    found = _pickles(data, depth, work)
    walked = _walked_tar(data, depth, work) if _begins_tar(head) else ()
    more = [*walked, *_scanned(_expanded(data, head, work), depth - 1, work).unknown, *_keras(data, head, work)]
    if zips and (sniff.is_zip(head) or ends_zip(data)):
        more += _walked_zip(data, depth, work)
    return Scanned(policy.merged((*found.unknown, *more)), found.is_pickle)


def _keras(data: Buffer, head: bytes, work: ScanBudget) -> Iterator[Unknown]:
    """The code in a configuration of Keras, which it unmarshals."""
    if not MARK.match(head):
        return
    from paramtool.formats.hdf5.keras_config import decoded, marshalled

    if decoded(head).lstrip().startswith(("{", "[")):
        work.ended &= len(data) <= MAX_EXPANDED_NBYTES
        if len(data) <= MAX_EXPANDED_NBYTES:
            yield from marshalled({"the configuration": decoded(data[:])})


MARK = re.compile(rb"[\xef\xbb\xbf\xff\xfe\0\s]*[{\[]")
"""How JSON begins in any of its encodings."""


def ends_zip(data: Buffer) -> bool:
    """Whether data ends as a zip archive, whatever is before it, as Python's zipfile looks for it."""
    return zip_directory.END_SIGNATURE in data[-zip_directory.MAX_TAIL :]


# --- pickles ------------------------------------------------------------------------------------------------------


def _pickles(data: Buffer, depth: int, work: ScanBudget) -> Scanned:
    """Scan consecutive pickles, and those behind NumPy arrays and their headers."""
    found: list[Unknown] = []
    at, first, stop = 0, -1, -1
    for number in range(MAX_PICKLES):
        if work.left <= 0 or at >= len(data):
            break
        if data[at : at + len(sniff.NUMPY_MAGIC)] == sniff.NUMPY_MAGIC:
            from paramtool.formats.numpy.npy import array_stop

            at, work.has_tensors = array_stop(data, at), True
            work.spend(SPENT_EACH)
            continue
        inner: list[Unknown] = []
        limits = replace(DEFAULT_LIMITS, max_nbytes=min(DEFAULT_LIMITS.max_nbytes, work.left))
        uses, stop, ran = attempt(
            data, at, _held(inner, depth, work), partial(_persistent, work), limits=limits, known=KNOWN
        )
        work.spend(ran + SPENT_EACH)
        if number == 0:
            first = stop
        marked = data[at : at + 1] == b"\x80" and data[at + 1 : at + 2] in PROTOCOLS
        found += (Unknown(use.path, use.called, use.arguments) for use in uses if _counts(use, stop, marked))
        found += inner
        if stop >= len(data):
            break
        if stop <= 0:  # joblib puts arrays between the opcodes, and others put them behind a pickle
            work.ended &= not (stop == -2 or (marked and ran > 3) or (first > 0 and data[at : at + 512].strip(b"\0\n")))
            break
        at = stop
    else:
        work.ended = False
    return Scanned(policy.merged(found), first > 0)


SPENT_EACH = 32
"""The cost of a pickle beside its bytes: even a short pickle takes some time."""
PROTOCOLS = {bytes([number]) for number in range(2, 6)}


def _counts(use: Use, stop: int, marked: bool) -> bool:
    """Whether a name is one of a pickle, and not some words of a text."""
    if marked or stop > 0 or use.path == AT_RUN_TIME:
        return True
    if use.path == RESULT or not NAME.fullmatch(use.path.removesuffix("()")):
        return False
    return (use.called and stop != -1) or (stop == CUT and policy.is_dangerous(use.path))


def _persistent(work: ScanBudget, pid: object) -> object:
    work.has_tensors = True
    return Instance(LOAD, (), False)


def _held(inner: list[Unknown], depth: int, work: ScanBudget) -> Mapping[str, Callable[..., object]]:
    """Constructors that make inert objects for known names, and scan bytes that torch pickles inside a pickle.

    A storage that `pickle.dump` writes is `torch.storage._load_from_bytes(b)`, which loads `b` (torch/storage.py).
    """

    def within(*args: object, **kwargs: object) -> Instance:
        raw = _bytes(args[0]) if len(args) == 1 and not kwargs else None
        unread = (Unknown(LOAD, True, "(...)"),)
        inner.extend(unread if raw is None or depth <= 1 else _scanned(raw, depth - 1, work).unknown)
        return Instance(LOAD, (), False)

    def tensor(*args: object, **kwargs: object) -> Instance:
        work.has_tensors = True
        return Instance(LOAD, args, False)

    return {**_HELD, **dict.fromkeys(MAKERS, tensor), LOAD: within}


def _bytes(value: object) -> bytes | None:
    """The bytes that a value is, or that `bytes` and `bytearray` make of it; None if it is something else."""
    while type(value) is Instance and value.path in COPIES and len(value.args) == 1 and value.sequence is None:
        value = value.args[0]
    return value if isinstance(value, bytes) else None


COPIES = ("builtins.bytes", "builtins.bytearray")


def _hold(path: str) -> Callable[..., Instance]:
    def make(*args: object, **kwargs: object) -> Instance:
        return Instance(path, args, False)

    return make


LOAD = "torch.storage._load_from_bytes"
_HELD = {path: _hold(path) for path in (*CONSTRUCTORS, *mxnet.CONSTRUCTORS)}
MAKERS = [path for path in _HELD if re.search(r"\._re(build|construct)|\._frombuffer|\.nd", path)]
"""Those that make tensors and arrays."""


# --- archives that no other reader opens --------------------------------------------------------------------------


def _walked_zip(data: Buffer, depth: int, work: ScanBudget) -> Iterator[Unknown]:
    """Scan the members of a zip archive, found by their local headers, as these and as directories say."""
    said: dict[int, set[tuple[int, int]]] = {}
    _directory_of(data, 0, len(data), said, work)
    at = -1
    for _ in range(MAX_HEADERS):
        at = data.find(zip_directory.LOCAL_SIGNATURE, at + 1, MAX_WALKED_NBYTES)
        if at < 0 or at + zip_directory.LOCAL.size > len(data) or work.left <= 0:
            work.ended &= len(data) <= MAX_WALKED_NBYTES and not said
            return
        fields = zip_directory.LOCAL.unpack(data[at : at + zip_directory.LOCAL.size])
        flags, method, nbytes = fields[2], fields[3], fields[7]
        work.ended &= not flags & zip_directory.REFUSED_FLAGS
        start = at + zip_directory.LOCAL.size + fields[9] + fields[10]
        ways = said.pop(at, set())
        if not ways or nbytes not in (0, zip_directory.FULL32):  # which mean that they stand elsewhere
            ways.add((method, nbytes if method == zip_directory.STORED else 0))
        for method, nbytes in ways:
            if method == zip_directory.STORED:  # what is an archive itself is found by its own headers
                stop = start + nbytes if nbytes else data.find(zip_directory.DESCRIPTOR_SIGNATURE, start)
                stop = stop if start < stop <= len(data) else len(data)
                yield from _scanned(_part(data, start, stop, work), depth - 1, work, zips=False).unknown
                _directory_of(data, start, stop, said, work)
            else:
                yield from _scanned(_unpacked(data, method, start, work), depth - 1, work).unknown
    work.ended = False


def _directory_of(data: Buffer, start: int, stop: int, said: dict[int, set[tuple[int, int]]], work: ScanBudget) -> None:
    """Add how its directories say that members of an archive are to be read, if it ends like one."""
    work.spend(min(stop - start, zip_directory.MAX_TAIL))
    if work.left <= 0 or zip_directory.END_SIGNATURE not in data[max(start, stop - zip_directory.MAX_TAIL) : stop]:
        return
    for header, method, nbytes in zip_directory.claims(data, start, stop):
        work.spend(SPENT_EACH)
        if start <= header < stop:
            said.setdefault(header, set()).add((method, nbytes if method == zip_directory.STORED else 0))
        if work.left <= 0:
            break


def _unpacked(data: Buffer, method: int, start: int, work: ScanBudget) -> bytes:
    """The content of a member, as Python's zipfile decompresses it."""
    if method == zip_directory.DEFLATED:
        return _through(partial(zlib.decompressobj, -15), data, start, work)
    if method == zip_directory.BZIP2:
        import bz2

        return _through(bz2.BZ2Decompressor, data, start, work)
    if method == zip_directory.LZMA:  # a version, a length, and what begins a file of LZMA alone, without its size
        import lzma

        alone = data[start + 4 : start + 9] + b"\xff" * 8 + data[start + 9 : start + 9 + min(work.left, 2 * MAX_LZMA)]
        work.spend(len(alone))
        return _through(partial(lzma.LZMADecompressor, lzma.FORMAT_ALONE, MAX_LZMA), alone, 0, work)
    work.ended = False
    return b""


def _begins_tar(head: bytes) -> bool:
    """Whether Python's tarfile, which takes a while to import, finds a header by its checksum, octal or base 256."""
    field = head[148:156]
    try:
        if field[:1] in (b"\x80", b"\xff"):
            said = int.from_bytes(field[1:], "big") - (256**7 if field[0] == 255 else 0)
        else:
            said = int(field.split(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return False
    rest = head[:148] + b" " * 8 + head[156:]
    return said != 0 and said in (sum(rest), sum(rest) - 256 * sum(one > 127 for one in rest))


def _walked_tar(data: Buffer, depth: int, work: ScanBudget) -> Iterator[Unknown]:
    """Scan the members of a tar archive, if it is one."""
    import tarfile

    archive = None
    try:
        archive = tarfile.TarFile(fileobj=cast("BinaryIO", _Stream(data)))
        for number, member in enumerate(archive):
            if number >= MAX_HEADERS or work.left <= 0 or member.sparse is not None:
                work.ended = False
                return
            work.spend(SPENT_EACH)
            part = _part(data, member.offset_data, member.offset_data + member.size, work)
            yield from _scanned(part, depth - 1, work).unknown
    except (tarfile.TarError, ValueError, OverflowError, RecursionError):
        work.ended &= archive is None


class _Stream:
    """Data as a file for tarfile, which hands out little at a time, whatever a header says of its size."""

    def __init__(self, data: Buffer) -> None:
        self.data, self.at = data, 0
        self.name, self.mode = "", "rb"

    def seek(self, at: int) -> None:
        self.at = at

    def tell(self) -> int:
        return self.at

    def read(self, nbytes: int) -> bytes:
        made = self.data[self.at : self.at + min(nbytes, STEP)]
        self.at += len(made)
        return made


def _part(data: Buffer, start: int, stop: int, work: ScanBudget) -> Buffer:
    if isinstance(data, Contents):
        return data.part(start, stop)
    made = data[start:stop]
    work.spend(len(made))
    return made


def _expanded(data: Buffer, head: bytes, work: ScanBudget) -> bytes:
    """The decompressed data of a compressed file, up to the limit; empty if it is not compressed."""
    make: Callable[[], Any]
    if head.startswith(b"\x1f\x8b"):
        make = partial(zlib.decompressobj, 31)
    elif head[0] & 15 == 8 and head[0] < 128 and int.from_bytes(head[:2], "big") % 31 == 0:  # RFC 1950
        make = zlib.decompressobj
    elif head.startswith(b"BZh"):
        import bz2

        make = bz2.BZ2Decompressor
    elif head.startswith(b"\xfd7zXZ\0") or (head[0] < 225 and head[13:14] == b"\0"):  # the alone format: no magic
        import lzma

        kind = lzma.FORMAT_XZ if head[0] == 0xFD else lzma.FORMAT_ALONE
        make = partial(lzma.LZMADecompressor, kind, MAX_LZMA)
    else:
        return b""
    return _through(make, data, 0, work)


def _through(make: Callable[[], Any], data: Buffer, at: int, work: ScanBudget) -> bytes:
    """Decompress all streams that follow each other, up to the limit; empty if it is damaged from the start."""
    made = bytearray()
    most = min(MAX_EXPANDED_NBYTES, work.left)
    last = at + most  # zeros can be streams that hold nothing, without an end
    machine, size = make(), 4096
    try:
        while len(made) < most and at < last:
            step = getattr(machine, "unconsumed_tail", b"")
            if not step and getattr(machine, "needs_input", True):
                step = data[at : at + size]
                at += len(step)
                if not step:
                    break
            made += inflated(machine, step, STEP)
            size = min(2 * size, STEP)
            if machine.eof:
                at -= len(machine.unused_data)
                while (rest := data[at : at + 4096]).startswith(b"\0") and at < last:  # gzip pads with zeros
                    at += len(rest) - len(rest.lstrip(b"\0"))
                if not rest or work.left <= 0:
                    break
                machine, size = make(), 4096
                work.spend(size)
        else:
            work.ended = False
    except (OSError, EOFError, ValueError, ArithmeticError):
        pass
    except Exception as error:  # lzma.LZMAError, which is only known where lzma is imported
        if type(error).__name__ != "LZMAError":
            raise
        work.ended &= "limit" not in str(error)
    work.spend(len(made) + SPENT_EACH)
    return bytes(made)


STEP = 1 << 20
MAX_LZMA = 256 << 20
"""The most memory that a decompressor of xz and LZMA may ask for."""
