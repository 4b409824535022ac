"""Scan a file of any kind for the names that its pickles would call.  The closed pickle machine runs them.

    a pickle, even a truncated one, and pickles after it          protocols 0 to 5, Python 2's as well
    a zip archive, even one that its own reader refuses           every member that is a pickle
    a tar archive                                                 every member that is a pickle
    a NumPy array of objects                                      the pickle after its header
    gzip, zlib, bzip2, xz                                         the decompressed data, up to a limit

Neither the name nor the first byte of a file decides whether it is a pickle: it is run, and anything else fails in its
first bytes.  Plain text might fail only after something that looks like a call.  So if a pickle is incomplete and does
not begin like protocols 2 to 5, its names and calls count only if they are in DANGEROUS_MODULES or DANGEROUS_NAMES.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from paramtool.errors import ParamtoolError
from paramtool.formats import policy, sniff
from paramtool.formats.files import Contents, open_source
from paramtool.formats.mxnet import states as mxnet
from paramtool.formats.pickle.machine import HANDLERS
from paramtool.formats.pickle.opcodes import unknown_opcode
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
MAX_DEPTH = 6
"""The deepest nesting of archives in archives and pickles in pickles."""
NAME = re.compile(r"[\w.<>]{1,400}")
STORAGES = re.compile(r"[^/]*/(data|constants)/[^/]*|[^/]*/\.data/.*|[^/]*/(version|byteorder)")
"""Members of torch's archives that hold tensor data, and other members that are never pickles."""


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


CLOSED = (b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
"""How archives begin that are not opened: 7z, RAR, zstd and LZ4."""
INSIDE = (b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", sniff.NUMPY_MAGIC, *CLOSED)
"""How members of a tar archive begin that are archives themselves, or arrays."""
MIN_WORK_NBYTES = 16 << 20
WORK_PER_BYTE = 16


class Scanned(NamedTuple):
    """The result of a scan."""

    unknown: tuple[Unknown, ...]
    """Unknown names in its pickles."""
    is_pickle: bool
    """Whether the file itself is a valid pickle."""
    ended: bool = True
    """Whether everything was scanned; limits stop at bombs, at pickles of more than 512 MiB, and at closed archives."""
    has_tensors: bool = False
    """Whether its pickles make tensors or arrays."""


NOTHING = Scanned((), False)


def may_hold(head: bytes) -> bool:
    """Whether a file that begins so can hold pickles: with an opcode, or as an archive does."""
    return head[:1] in FIRST or head[257:262] == sniff.TAR_MAGIC


FIRST = {bytes([code]) for code, handler in enumerate(HANDLERS) if handler is not unknown_opcode} | {
    start[:1] for start in (*INSIDE, b"x")
}
"""The first bytes of pickles, and of what is opened here or closed."""


def scan(path: str) -> tuple[Unknown, ...]:
    """The unknown names in the pickles of a file; none if the file cannot be read or holds no pickles."""
    return scan_file(path).unknown


def scan_file(path: str) -> Scanned:
    """The full result of scanning a file."""
    try:
        file, source = open_source(path)
        with file:
            return _looked_through(file, source) if source.nbytes else NOTHING
    except (ParamtoolError, OSError):  # the reader of the file reports that it cannot be read
        return NOTHING


def _looked_through(file: BinaryIO, source: SourceFile) -> Scanned:
    path = source.path
    if sniff.is_zip(file.read(4)):
        try:
            members = zip_directory.read_directory(file, path)
        except ParamtoolError:
            members = ()
        names = [member for member in members if not STORAGES.fullmatch(member.name)]
        work = ScanBudget.of(source.nbytes)
        if members:
            found = policy.merged(one for member in names for one in scan_member(file, member, path, work))
            return Scanned(found, False, work.ended, work.has_tensors)
    return scan_bytes(Contents(file, source.nbytes))


def scan_bytes(data: Buffer) -> Scanned:
    """Scan the bytes of a file, whatever they are."""
    work = ScanBudget.of(len(data))
    found = _scanned(data, MAX_DEPTH, work)
    return found._replace(ended=found.ended and work.ended, has_tensors=work.has_tensors)


def scan_member(file: BinaryIO, member: zip_directory.Member, path: str, work: ScanBudget) -> tuple[Unknown, ...]:
    """The unknown names in a member of a valid archive; none if it cannot be read, or not within the budget."""
    if member.method != zip_directory.STORED:
        work.spend(member.nbytes)
    if work.left <= 0:
        return ()
    try:
        data = zip_directory.read_member(file, member, path, MAX_MEMBER_NBYTES, most=MAX_MEMBER_NBYTES)
    except ParamtoolError:
        work.ended = False
        return ()
    return _scanned(data, MAX_DEPTH - 1, work).unknown


def _scanned(data: Buffer, depth: int, work: ScanBudget) -> Scanned:
    """Scan some bytes."""
    head = data[:512]
    if head and (not depth or head.startswith(CLOSED)):
        work.ended = False
    if not head or not depth:
        return NOTHING
    if sniff.is_zip(head):
        return Scanned(policy.merged(_walked_zip(data, depth, work)), False)
    if head.startswith(sniff.NUMPY_MAGIC):
        return Scanned(_pickles(data, sniff.numpy_stop(head), depth, work).unknown, False)
    if made := _expanded(data, head, work):
        return Scanned(_scanned(made, depth - 1, work).unknown, False)
    found = _pickles(data, 0, depth, work)
    if head[257:262] == sniff.TAR_MAGIC:
        return Scanned(policy.merged((*found.unknown, *_walked_tar(data, depth, work))), found.is_pickle)
    return found


# --- pickles ------------------------------------------------------------------------------------------------------


def _pickles(data: Buffer, at: int, depth: int, work: ScanBudget) -> Scanned:
    """Scan consecutive pickles."""
    found: list[Unknown] = []
    first = stop = -1
    for number in range(MAX_PICKLES):
        if work.left <= 0:
            break
        inner: list[Unknown] = []
        limits = replace(DEFAULT_LIMITS, max_nbytes=min(DEFAULT_LIMITS.max_nbytes, work.left))
        uses, stop, ran = attempt(
            data, at, _held(inner, depth, work), partial(_persistent, work), limits=limits, known=KNOWN
        )
        work.spend(ran + SPENT_EACH)
        if number == 0:
            first = stop
        marked = data[at : at + 1] == b"\x80" and data[at + 1 : at + 2] in PROTOCOLS
        found += (_unknown(use) for use in uses if _counts(use, ran, marked or stop > 0))
        found += inner
        if stop <= 0 or stop >= len(data):
            break
        at = stop
    return Scanned(policy.merged(found), first > 0, stop != -2)


SPENT_EACH = 32
"""The cost of a pickle beside its bytes: even a short pickle takes some time."""
PROTOCOLS = {bytes([number]) for number in range(2, 6)}


def _counts(use: Use, ran: int, sound: bool) -> bool:
    is_more = ran > len(f"c{use.path}\n")  # two lines of a text could be a name, and nothing more
    dangerous = (use.called or is_more) and policy.is_dangerous(use.path)
    return bool(NAME.fullmatch(use.path.removesuffix("()"))) and (sound or dangerous)


def _unknown(use: Use) -> Unknown:
    return Unknown(use.path, use.called, use.arguments)


def _persistent(work: ScanBudget, pid: object) -> object:
    work.has_tensors = True
    return Instance("persistent", (), False)


def _held(inner: list[Unknown], depth: int, work: ScanBudget) -> Mapping[str, Callable[..., object]]:
    """Constructors that make inert objects for known names, and scan bytes that torch pickles inside a pickle.

    A storage that `pickle.dump` writes is `torch.storage._load_from_bytes(b)`, which loads `b` (torch/storage.py).
    """

    def within(raw: object) -> Instance:
        if not isinstance(raw, bytes):
            raise ValueError("not bytes")
        inner.extend(_scanned(raw, depth - 1, work).unknown if depth > 1 else (Unknown(LOAD, True, "(...)"),))
        return Instance(LOAD, (), False)

    def tensor(*args: object, **kwargs: object) -> Instance:
        work.has_tensors = True
        return Instance(LOAD, args, False)

    return {**_HELD, **dict.fromkeys(MAKERS, tensor), LOAD: within}


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
    """Scan the members of a zip archive, found by their local headers, whatever its directory says."""
    at = -1
    for _ in range(MAX_HEADERS):
        at = data.find(zip_directory.LOCAL_SIGNATURE, at + 1, MAX_WALKED_NBYTES)
        if at < 0 or at + zip_directory.LOCAL.size > len(data) or work.left <= 0:
            return
        fields = zip_directory.LOCAL.unpack(data[at : at + zip_directory.LOCAL.size])
        method, name_nbytes, extra_nbytes = fields[3], fields[9], fields[10]
        name = bytes(data[at + zip_directory.LOCAL.size : at + zip_directory.LOCAL.size + name_nbytes]).decode(
            "latin-1"
        )
        start = at + zip_directory.LOCAL.size + name_nbytes + extra_nbytes
        if STORAGES.fullmatch(name) or start >= len(data):
            continue
        if method == zip_directory.DEFLATED:
            yield from _scanned(_inflated(data, start, -15, work), depth - 1, work).unknown
        elif depth > 1:
            yield from _pickles(data, start, depth, work).unknown
        else:
            work.ended = False


def _walked_tar(data: Buffer, depth: int, work: ScanBudget) -> Iterator[Unknown]:
    """Scan the members of a tar archive: a header of 512 bytes with the size in octal, then the data (POSIX ustar)."""
    at = 0
    for _ in range(MAX_HEADERS):
        digits = bytes(data[at + 124 : at + 136]).strip(b" \0")
        if at + 512 > len(data) or not digits or not set(digits) <= set(b"01234567") or work.left <= 0:
            return
        nbytes = int(digits, 8)
        start = at + 512
        if data[start : start + 8].startswith(INSIDE):
            member = data[start : start + min(nbytes, MAX_MEMBER_NBYTES)]
            work.spend(len(member))
            yield from _scanned(member, depth - 1, work).unknown
        elif nbytes and depth > 1:
            yield from _pickles(data, start, depth, work).unknown
        elif nbytes:
            work.ended = False
        at = start + (nbytes + 511) // 512 * 512


def _expanded(data: Buffer, head: bytes, work: ScanBudget) -> bytes:
    """The decompressed data of a compressed file, up to the limit; empty if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return _inflated(data, 0, 31, work)
    if head[:1] == b"x" and head[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        return _inflated(data, 0, 15, work)
    if head.startswith(b"BZh"):
        import bz2

        return _through(bz2.BZ2Decompressor(), data, work)
    if head.startswith(b"\xfd7zXZ\0"):
        import lzma

        return _through(lzma.LZMADecompressor(memlimit=256 << 20), data, work)
    return b""


def _inflated(data: Buffer, start: int, wbits: int, work: ScanBudget) -> bytes:
    """Inflate data, up to the limit; empty if it is damaged from the start."""
    machine = zlib.decompressobj(wbits)
    made = bytearray()
    at = start
    try:
        most = min(MAX_EXPANDED_NBYTES, work.left)
        while (at < len(data) or machine.unconsumed_tail) and not machine.eof and len(made) < most:
            step = machine.unconsumed_tail or data[at : at + STEP]
            at += 0 if machine.unconsumed_tail else STEP
            made += machine.decompress(step, STEP)
    except zlib.error:
        pass
    work.spend(len(made) + SPENT_EACH)
    return bytes(made)


def _through(machine: Any, data: Buffer, work: ScanBudget) -> bytes:
    made = bytearray()
    at = 0
    try:
        most = min(MAX_EXPANDED_NBYTES, work.left)
        while not machine.eof and len(made) < most and (at < len(data) or not machine.needs_input):
            step = data[at : at + STEP] if machine.needs_input else b""
            at += len(step)
            made += machine.decompress(step, STEP)
    except (OSError, EOFError, ValueError, ArithmeticError, MemoryError):
        pass
    except Exception as error:  # lzma.LZMAError, which is only known where lzma is imported
        if type(error).__name__ != "LZMAError":
            raise
    work.spend(len(made) + SPENT_EACH)
    return bytes(made)


STEP = 1 << 20
