"""Malicious files as scanners' test suites have them: plain pickles of every protocol, archives, damaged files.

Every shape is made here by hand or by the standard library's pickler, and is never unpickled.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
from paramtool.errors import FormatError, UnsafeError
from paramtool.formats import scan
from tests.hostile import makers_torch
from tests.hostile.command import contents, quick
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_torch import name, row, state, tensor
from tests.hostile.makers_zip import Part, archive
from tests.hostile.test_hostile_security import call


class Call:
    """Pickles as a call of anything."""

    def __init__(self, function: object, *args: object) -> None:
        self.how = function, args

    def __reduce__(self) -> object:
        return self.how


def system() -> object:
    """What is called in most of these files."""
    import os

    return os.system


def dumped(protocol: int, value: object = None) -> bytes:
    """By the standard library."""
    return pickle.dumps(value or {"a": [Call(system(), "echo x")]}, protocol)


TORCH = name("torch._tensor", "_rebuild_from_type_v2")
SYSTEM = call("os", "system", text("ls"))


def python2(protocol: int) -> bytes:
    """As Python 2's cPickle writes a call in protocols 0, 1 and 2."""
    return {
        0: b"(dp1\nS'a'\np2\ncposix\nsystem\np3\n(S'ls'\np4\ntp5\nRp6\ns.",
        1: b"}q\x01U\x01aq\x02cposix\nsystem\nq\x03(U\x02lsq\x04tq\x05Rq\x06s.",
        2: b"\x80\x02}q\x01U\x01aq\x02cposix\nsystem\nq\x03U\x02lsq\x04\x85q\x05Rq\x06s.",
    }[protocol]


def npy() -> bytes:
    """An array of objects: a header, then a pickle (numpy/lib/format.py)."""
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    return b"\x93NUMPY\x01\x00" + pack("<H", len(head)) + head + dumped(4)


def zipped(member: str, data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive of anything."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as file:
        file.writestr("README.txt", "a model")
        file.writestr(member, data)
    return made.getvalue()


def flagged(flag: int) -> bytes:
    """The same with a flag that readers refuse and Python's unpickler never sees: encrypted, patched."""
    data = bytearray(zipped("data.pkl", dumped(4)))
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(signature) + place] |= flag
    return bytes(data)


def renamed() -> bytes:
    """The directory calls the member otherwise than its own header."""
    data = zipped("data.pkl", dumped(4))
    at = data.rindex(b"data.pkl")
    return data[:at] + b"data.txt" + data[at + 8 :]


def tarred() -> bytes:
    """A tar archive that is not torch's."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for member, data in (("readme", b"x"), ("model.pkl", dumped(2))):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return made.getvalue()


def pickled_tensor(inner: bytes) -> bytes:
    """A storage that `pickle.dump` wrote: bytes that torch would load."""
    raw = b"B" + pack("<I", len(inner)) + inner
    return PROTO + b"]" + name("torch.storage", "_load_from_bytes") + b"(" + raw + b"tRa."


SHAPES: dict[str, Callable[[], bytes]] = {
    **{f"protocol {n}": (lambda n=n: dumped(n)) for n in range(6)},
    **{f"Python 2, protocol {n}": (lambda n=n: python2(n)) for n in range(3)},
    "INST": lambda: b"(S'ls'\nios\nsystem\n.",
    "OBJ": lambda: b"(cos\nsystem\nS'ls'\no.",
    "NEWOBJ of what runs code": lambda: PROTO + name("os", "_wrap_close") + b")\x81.",
    "STACK_GLOBAL": lambda: b"\x80\x04" + text("os") + text("system") + b"\x93" + text("ls") + b"\x85R.",
    "a name of the stack with dots": lambda: (
        b"\x80\x04" + text("shutil") + text("os.system") + b"\x93" + text("ls") + b"\x85R."
    ),
    "thrown away": lambda: PROTO + SYSTEM + b"0}.",
    "nested arguments": lambda: PROTO + name("a", "f") + b"(" + SYSTEM + b"tR.",
    "the second of two": lambda: pickle.dumps({"a": 1}) + dumped(4),
    "behind a dict of Python 2": lambda: b"(dp1\n." + python2(0),
    "cut off": lambda: dumped(4)[:-3],
    "cut off, protocol 0": lambda: dumped(0)[:-6],
    "damaged behind the call": lambda: PROTO + SYSTEM + b"\xff\xff\xff",
    "a memo key that is not there": lambda: PROTO + SYSTEM + b"h\x77.",
    "an empty stack at the end": lambda: PROTO + SYSTEM + b"000.",
    "a persistent id as text": lambda: PROTO + SYSTEM + b"Pnobody\n.",
    "a magic number that is computed": lambda: (
        PROTO + call("builtins", "eval", text("0x1950A86A20F9469CFC6C")) + b"." + PROTO + b"M\xe9\x03."
        + PROTO + SYSTEM + b"."
    ),
    "attributes of a class": lambda: (
        PROTO + name("a", "C") + b"}" + text("__setstate__") + name("os", "system") + b"sb)\x81" + text("ls") + b"b."
    ),
    "items of os.environ": lambda: PROTO + name("os", "environ") + text("PATH") + text("/tmp") + b"s.",
    "items of sys.modules": lambda: b"csys\nmodules\nS'sys'\nN" + b"s.",
    "torch hands on a function": lambda: (
        PROTO + TORCH + row(name("os", "system"), b"N", row(text("ls")), b"N") + b"R0N."
    ),
    "torch hands it on twice": lambda: (
        PROTO + TORCH + row(TORCH, b"N", row(name("os", "system"), b"N", row(text("ls")), b"N"), b"N") + b"R0N."
    ),
    "the base of an object": lambda: (
        PROTO + name("copyreg", "_reconstructor") + row(name("a", "C"), name("os", "system"), text("ls")) + b"R."
    ),
    "getattr": lambda: PROTO + call("builtins", "getattr", name("os", "path"), text("os")) + b".",
    "map, which calls later": lambda: (
        PROTO + name("builtins", "map") + row(name("os", "system"), text("ls")) + b"\x81."
    ),
    "a zip with a pickle": lambda: zipped("model/evil.pkl", dumped(4)),
    "deflated": lambda: zipped("model/evil.pkl", dumped(4), zipfile.ZIP_DEFLATED),
    "under another name": lambda: zipped("weights.txt", dumped(4)),
    "data.pkl without a folder": lambda: zipped("data.pkl", dumped(4)),
    "encrypted, it says": lambda: flagged(0x01),
    "patched, it says": lambda: flagged(0x20),
    "strongly encrypted, it says": lambda: flagged(0x40),
    "a false name in the directory": renamed,
    "a zip without its end": lambda: zipped("data.pkl", dumped(4))[:-22],
    "a torch zip without its storage": lambda: archive(
        Part(b"archive/data.pkl", state(w=tensor(), evil=SYSTEM)), Part(b"archive/version", b"3\n")
    ),
    "another pickle in a torch zip": lambda: archive(
        *makers_torch.parts(), Part(makers_torch.parts()[0].name.split(b"/")[0] + b"/evil.pkl", dumped(4))
    ),
    "a tar": tarred,
    "an array of objects": npy,
    "arrays of objects": lambda: zipped("a.npy", npy()),
    "gzip": lambda: gzip.compress(dumped(4)),
    "zlib, as joblib's": lambda: zlib.compress(dumped(4)),
    "bzip2": lambda: bz2.compress(dumped(4)),
    "xz": lambda: lzma.compress(dumped(4)),
    "a storage in a pickle": lambda: pickled_tensor(dumped(2)),
}  # fmt: skip
NAMED = ("os.system", "posix.system", "os.environ", "sys.modules", "os._wrap_close", "shutil.os.system")


@pytest.mark.parametrize("shape", SHAPES)
def test_what_it_would_call_is_listed(shape: str, tmp_path: Path) -> None:
    """Exit 4 with the call, whatever else is wrong with the file; 3 or so where a person allows it."""
    (tmp_path / "model.bin").write_bytes(SHAPES[shape]())
    before = contents(tmp_path)
    for args in (("inspect", "model.bin"), ("dedup", "model.bin"), ("inspect", "model.bin", "--json")):
        ran = quick(*args, cwd=tmp_path)
        listed = ran.err + ran.out
        assert ran.code == 4 and "nothing was run" in ran.err and "\x1b" not in listed, ran
        if shape == "getattr":
            assert "builtins.getattr" in listed
        else:
            assert any(path in listed for path in NAMED), ran
        assert contents(tmp_path) == before
    with pytest.raises(UnsafeError):
        paramtool.read(tmp_path / "model.bin")
    if shape not in ("an array of objects", "arrays of objects"):  # which are refused as such
        assert quick("inspect", "model.bin", "--allow-unknown", cwd=tmp_path).code in (0, 3)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "second" not in shape and "behind" not in shape])
def test_in_a_folder_and_in_an_index(shape: str, tmp_path: Path) -> None:
    """The one weights file of a folder, and a shard."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pytorch_model.bin").write_bytes(SHAPES[shape]())
    assert quick("inspect", "a", cwd=tmp_path).code == 4
    (tmp_path / "a" / "pytorch_model.bin").rename(tmp_path / "a" / "x.bin")
    (tmp_path / "a" / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "x.bin"}}')
    assert quick("inspect", "a", cwd=tmp_path).code == 4


def test_a_folder_of_distributed_checkpoints(tmp_path: Path) -> None:
    """`.metadata` is a pickle, which torch.distributed.checkpoint loads."""
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(zipped("archive/data.pkl", pickle.dumps(3, 2)))
    (tmp_path / "dcp" / ".metadata").write_bytes(dumped(4))
    ran = quick("inspect", "dcp", cwd=tmp_path)
    assert ran.code == 4 and "posix.system" in ran.err and "dcp/.metadata" in ran.err, ran


def test_what_holds_only_data(tmp_path: Path) -> None:
    """A pickle without arrays is foreign, in any protocol, and no more."""
    for protocol in range(6):
        (tmp_path / "model.bin").write_bytes(pickle.dumps({"a": [1, 2.5, "x", b"y", None, {3, 4}]}, protocol))
        ran = quick("inspect", "model.bin", cwd=tmp_path)
        assert ran.code == 3 and "a pickle that holds no NumPy arrays" in ran.err, (protocol, ran)
    (tmp_path / "model.bin").write_bytes(pickled_tensor(makers_torch.stacked()))
    assert quick("inspect", "model.bin", cwd=tmp_path).code == 3


TEXTS = (
    "(import os\nfoo\n(tR", "(identity\nname\n", "cos\nsystem\n", "I1\nI2\n", "import os\nos.system('ls')\n",
    '{"a": "cos\\nsystem\\n(S\'ls\'\\ntR."}', "", "N", ".", "(lp0\n", "# a readme\n", "lr: 0.1\n", "Vocabulary\n",
    "]]]]]\n", "]a\n", "(((((\n", "))))\n", "the\nof\n", "c c\nd d\n(tR",
)  # fmt: skip


@pytest.mark.parametrize("body", TEXTS)
def test_text_is_no_pickle(body: str, tmp_path: Path) -> None:
    """Text, code and JSON begin with opcodes, too, and break."""
    (tmp_path / "a.txt").write_text(body)
    assert scan.scan(str(tmp_path / "a.txt")) == ()
    assert quick("inspect", "a.txt", cwd=tmp_path).code == 3


@settings(deadline=None)
@given(st.one_of(st.text(st.characters(max_codepoint=127)), st.text()))
def test_no_text_is_taken_for_a_pickle(body: str) -> None:
    """Whatever it says, unless it is about what runs programs."""
    data = body.encode(errors="surrogatepass")
    found = scan.scan_bytes(data)
    assert found.is_pickle or not found.unknown


@settings(deadline=None)
@given(st.data())
def test_any_pickle_that_calls_is_found_in_any_protocol(data: st.DataObject) -> None:
    """A law: wherever a call stands among plain data, and wherever the file breaks behind it."""
    plain = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
    value = [data.draw(plain), Call(system(), data.draw(st.text(max_size=5))), data.draw(plain)]
    protocol = data.draw(st.integers(0, 5))
    whole = pickle.dumps(value, protocol)
    found = scan.scan_bytes(whole)
    assert [one.path for one in found.unknown if one.called] == ["posix.system"] and found.is_pickle
    behind = len(whole) - data.draw(st.integers(0, len(pickle.dumps(value[2], protocol)) // 2))
    if data.draw(st.booleans()):
        whole = whole[: max(behind - 1, 0)] + b"\xff"
        cut = scan.scan_bytes(whole)
        assert [one.path for one in cut.unknown] in ([], ["posix.system"])


@pytest.mark.slow
def test_a_bomb_is_no_way_past(tmp_path: Path) -> None:
    """Where the limits stop the machine, what was called before counts, and the file is refused in any case."""
    (tmp_path / "a.bin").write_bytes(PROTO + SYSTEM + b"N" * 2_000_000)
    ran = quick("inspect", "a.bin", cwd=tmp_path)
    assert ran.code == 4 and "os.system" in ran.err, ran
    (tmp_path / "a.bin").write_bytes(PROTO + b"N" * 2_000_000 + SYSTEM + b".")
    ran = quick("inspect", "a.bin", cwd=tmp_path)
    assert ran.code == 4 and "os.system" in ran.err, ran
    with pytest.raises((FormatError, UnsafeError)):
        paramtool.read(tmp_path / "a.bin")
