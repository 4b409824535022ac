"""What every run of a command keeps to, whatever the file; and what other libraries read from what was accepted."""

from __future__ import annotations

import _codecs
import argparse
import collections
import datetime
import decimal
import fractions
import io
import json
import os
import pathlib
import pickle
import re
import sys
import traceback
import types
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import onnx
import torch

import paramtool
from paramtool.model.checkpoint import unescaped_name
from tests.contracts import makers, makers_arrays
from tests.fuzz.cases import CHECKED, LOCK, Case, Command
from tests.fuzz.mutators import lock_text
from tests.hostile.command import MAX_LINE, MAX_MESSAGE
from tests.laws.sharing import described, partition, raw

CODES = {
    "inspect": {0, 3, 4}, "dedup": {0, 3, 4, 6}, "export": {0, 3, 4, 6}, "verify": {0, 1, 3, 4}, "guess": {0, 1, 3, 4},
    "diff": {0, 1, 3, 4}, "lock": {0, 3, 4}, "check": {0, 1, 3, 4}, "report": {0, 3, 4}, "variants": {0, 1, 3, 4},
    "layouts": {0, 2, 5},
    "convert": {0, 2, 3, 4, 5, 6}, "fuse": {0, 2, 3, 4, 5, 6}, "unfuse": {0, 2, 3, 4, 5, 6},
}  # fmt: skip
"""What a damaged file may lead to (README, docs/security.md): never 70, and never 7, for the disk is fine."""


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    command: Command
    code: int | None
    """None where an exception came out of `main`."""
    out: str
    err: str
    error: BaseException | None
    warned: tuple[str, ...]
    seconds: float
    """Of the processor."""
    grown: int
    """By how many bytes the greatest memory of the process grew."""
    seen: tuple[str, ...]
    """What the audit hook saw."""


@dataclass(frozen=True)
class Finding:
    """Something that should not be."""

    kind: str
    what: str
    """The same for findings of the same origin, as far as that can be told."""
    detail: str = ""
    grave: bool = True
    """False: another library refuses what is accepted here."""

    @property
    def key(self) -> str:
        """One for each origin."""
        return f"{self.kind}: {self.what}"


def origin(error: BaseException) -> str:
    """The class of an error, and the innermost places of paramtool that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}paramtool{os.sep}" in f.filename]
    places = [f"{f.filename.rpartition('paramtool' + os.sep)[2]}:{f.name}" for f in frames[-2:]]
    return f"{type(error).__name__} in {' < '.join(reversed(places))}"


def plain(text: str) -> str:
    """A message without what differs from case to case."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    return re.sub(r"\d+", "#", text)[:100]


def judge_run(run: Run, case: Case, changed: list[str]) -> list[Finding]:
    """What is wrong with one run; `changed` lists the files that are other than before."""
    found: list[Finding] = []
    word = run.command[0]
    if run.error is not None:
        detail = "".join(traceback.format_exception(run.error))[-3000:]
        return [Finding("exception", origin(run.error), detail)]
    is_asked = case.main == "." or case.format in CHECKED or word == "variants"
    may_be_wrong = {2} if is_asked else set()  # several sets of weights, or sections, of which one has to be named
    if run.code not in CODES[word] | may_be_wrong:
        found.append(Finding("exit code", f"{word} {run.code}: {plain(run.err)}", run.err[:1000]))
    never = ("Traceback", "internal error", "defect of paramtool", "out of memory", "out of stack")
    said = [words for words in never if words in run.err]
    found.extend(Finding("message", f"{word}: {words}: {plain(run.err)}", run.err[:1000]) for words in said)
    found.extend(Finding("warning", f"{word}: {plain(text)}", text) for text in run.warned)
    if run.code not in (0, 1):
        found.extend(_message(run, case))
    elif run.err and not all(line.startswith(("warning: ", "hint: ", " ")) for line in run.err.splitlines()):
        found.append(Finding("message", f"{word}: exit {run.code} with {plain(run.err)}", run.err[:1000]))
    if "--json" in run.command:
        try:
            json.loads(run.out)
        except ValueError:
            found.append(Finding("json", f"{word}: not a document: {plain(run.out[:200])}", run.out[:500]))
    if not (run.out + run.err).replace("\n", "").isprintable():
        found.append(Finding("message", f"{word}: not printable", repr(run.out + run.err)[:1000]))
    found.extend(Finding("seen", f"{word}: {plain(what)}", what) for what in run.seen)
    if word == "check":
        found.extend(judge_check(run, case))
    writes = {"-o"} & set(run.command) and run.code == 0
    strange = [name for name in changed if not (writes and name.startswith("out"))]
    if strange:
        found.append(Finding("left behind", f"{word} {run.code}: {plain(strange[0])}", repr(strange[:5])))
    return found


def _message(run: Run, case: Case) -> list[Finding]:
    """What the message of a refusal keeps to."""
    err = run.err
    bad = []
    if err.count("\nerror: ") + err.startswith(("error: ", "Usage: ")) != 1:
        bad.append("not one error")
    if len(err) > MAX_MESSAGE:
        bad.append("too long")
    if any(len(line) > MAX_LINE for line in err.splitlines()):
        bad.append("a line too long")
    names = {os.path.basename(name) for name in case.files} | {os.path.basename(case.main)}
    names |= {"error: .: "} if case.format == "dcp" else set()  # the folder of `.metadata`
    said = r"no such |No such |no file matches|no path is given|there is no layout"  # of what the command line names
    is_elsewhere = case.format in CHECKED and re.search(said, err)
    if not is_elsewhere and not any(name in err for name in names):
        bad.append(f"no file named: {plain(err)}")
    return [Finding("message", f"{run.code}: {what}", err[:1000]) for what in bad]


def judge_work(run: Run, slow: float, peak: int) -> list[Finding]:
    """Whether a command took too long, or too much memory."""
    found = []
    if run.seconds > slow:
        found.append(Finding("slow", run.command[0], f"{run.seconds:.1f} s"))
    if run.grown > peak:
        found.append(Finding("memory", run.command[0], f"{run.grown >> 20} MiB"))
    return found


def judge_check(run: Run, case: Case) -> list[Finding]:
    """What is wrong with a check: a mutated lock that passes, a mistake without its line, a lock that lies."""
    said = PLACES.get(case.format, "")
    if run.code in (2, 3) and said and not re.search(said, run.err):  # a line, where it is not the whole file
        return [Finding("message", f"check {run.code}: no line: {plain(run.err)}", run.err[:1000])]
    if run.code not in (0, 1) or "--json" not in run.command:
        return []
    document = json.loads(run.out)
    ids = {one["id"] for file in document["files"] for one in file["findings"]}
    if LOCK in run.command and (wrong := sorted(one for one in ids if one not in ABOUT_FILES)):
        return [Finding("unequal", f"{case.format}: check finds {wrong} against its own lock", run.out[:1000])]
    if case.format == "lock" and not ids:
        was, now = (lock_text.meaning(files["my.lock"]) for files in (case.original, case.files))
        if was != now:
            changed = sorted({*was} ^ {*now})
            return [Finding("passes", plain(" | ".join(changed)), repr(changed)[:1000])]
    return []


PLACES = {
    "lock": r"(^|\n)error: (my\.lock(:\d+)?: |model\.pt: (my\.lock does not name it|is not in a format))",
    "policy": r"(^|\n)error: (paramtool\.toml|my\.lock:|.*: (no file matches|no such |is not in a )|no path is given)",
}
"""How the error of a damaged file of these formats begins."""
ABOUT_FILES = {"PT301", "PT302", "PT405"}
"""What is found of any file, whatever its lock says."""


DELIBERATE: tuple[tuple[str, str, str], ...] = (
    ("torch|record|folder", r"Unsupported (global|operand)|Can only (build|SETITEMS|extend|set)|not an allowed global",
     "weights_only=True takes few classes and not every opcode; paramtool describes whatever any pickle says"),
    ("torch|record|folder", r"argument|expected dict|not understood|unhashable|without setting an exception|maxlen|"
     r"touch x|interpreted as|descriptor|must be|unpack|values|can't take|Fraction|[dD]ecimal|badly formed",
     "torch.load makes the objects, and their classes refuse what they are made of; paramtool only describes them"),
    ("torch|record", r"invalid literal for int|codec can't decode",
     "the members .storage_alignment and .data/serialization_id are not looked at: they say nothing of tensors"),
    ("torch|record", r"not in a subdirectory", "a member that nothing refers to is not looked at"),
    ("onnx", r"Wire format was corrupt", "what is inside of fields that say nothing of tensors is not looked at"),
    ("onnx|npz", r"array is too big",
     "NumPy counts the axes beside one of length 0; torch and safetensors take such a tensor, which has no bytes"),
    ("onnx", r"cannot reshape array", "external data without a length end where the shape says"),
    ("keras", r"Unable to allocate",
     "h5py reads everything whole; paramtool reads what Keras does, and leaves out what has no data"),
    ("pickle", r"", "Python makes the objects, and their classes refuse what they are made of; here they are told"),
    ("npz", r"Cannot parse header.*\|[sS]\d", "MXNet 2 writes such headers for the kind of a sparse array"),
)  # fmt: skip
"""(formats, what the other library says, why paramtool reads such a file all the same)"""


def deliberate(format_: str, said: str) -> str:
    """Why a file is accepted that another library refuses; empty where nobody decided that."""
    for formats, pattern, why in DELIBERATE:
        if re.fullmatch(formats, format_) and re.search(pattern, said, re.DOTALL):
            return why
    return ""


# --- other libraries -------------------------------------------------------------------------------------------------

Tensors = Mapping[str, Any]


class Silent(Exception):
    """No library can say anything of this file."""


SAFE = (
    argparse.Namespace, types.SimpleNamespace, datetime.datetime, datetime.date, datetime.timedelta, collections.deque,
    collections.Counter, decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath,
    np.ndarray, np.dtype, (np._core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
    np._core.multiarray._reconstruct, (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),
    np._core.multiarray.scalar, complex, bytearray, range, slice, frozenset, set,
    *(type(np.dtype(code)) for code in "?bhilqBHILQefdgFDG"),
)  # fmt: skip
"""Classes of data that torch.load takes here beside its own: without them it refuses most training checkpoints."""


KINDS = {np.dtype(kind): (np.dtype(kind).itemsize, np.dtype(kind).alignment, np.dtype(kind).flags) for kind in (
    one for one in vars(ml_dtypes).values() if isinstance(one, type) and issubclass(one, np.generic)
)}  # fmt: skip


@contextmanager
def types_kept() -> Iterator[None]:
    """NumPy lets a pickle set the size and the flags of the types that ml_dtypes adds, in the whole process."""
    try:
        yield
    finally:
        for kind, said in KINDS.items():
            kind.__setstate__((3, "<", None, None, None, *said))


def torch_tensors(path: Path, trusted: bool = False) -> dict[str, torch.Tensor]:
    """Every tensor that torch.load gives, by its path; a name that two have is left out."""
    found: dict[str, torch.Tensor] = {}
    twice: set[str] = set()
    around: set[int] = set()

    def walk(value: object, way: tuple[str, ...]) -> None:
        if id(value) in around:
            return
        around.add(id(value))
        look(value, way)
        around.discard(id(value))

    def look(value: object, way: tuple[str, ...]) -> None:
        if isinstance(value, torch.Tensor):
            name = unescaped_name(way) if way else "tensor"
            if name in found:
                twice.add(name)
            found[name] = value
        elif isinstance(value, Mapping):
            for key, child in value.items():
                if isinstance(key, (str, int, float, bool, bytes, type(None))):
                    walk(child, (*way, key if isinstance(key, str) else str(key)))
        elif isinstance(value, (list, tuple)):
            for k, child in enumerate(value):
                walk(child, (*way, str(k)))

    with torch.serialization.safe_globals(list(SAFE)), types_kept():
        walk(torch.load(path, weights_only=not trusted, map_location="cpu"), ())
    return {
        n: t
        for n, t in found.items()
        if n not in twice and t.layout is torch.strided and t.device.type == "cpu" and not t.is_quantized
    }


def _torch(path: Path) -> Tensors:
    return torch_tensors(path)


def _safetensors(path: Path) -> Tensors:
    return makers.load_file(path)


def _sharded(path: Path) -> Tensors:
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.index.json"))), path / "none")
    try:
        held = json.loads(path.read_bytes())
    except (ValueError, OSError):
        held = {}
    if "weight_map" in held:
        return makers.load_sharded(path)
    if path.suffix == ".json" and path.exists() and not held:
        return makers.load_file(path)  # a shard under the name of the index
    return {
        name: value
        for file in sorted(path.parent.glob("*.safetensors"))
        for name, value in makers.load_file(file).items()
    }


def _npz(path: Path) -> Tensors:
    return {
        name: native(value)
        for name, value in makers_arrays.load_npz(path).items()
        if value.dtype.kind in "biufc" or value.dtype.name == "bfloat16"
    }


def native(value: np.ndarray) -> np.ndarray:
    """The same numbers in the machine's order of bytes, in which all formats write."""
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _onnx(path: Path) -> Tensors:
    held = onnx.load(str(path), load_external_data=False)
    constants = [(n.output[0], a.t) for n in held.graph.node if n.op_type == "Constant" and not n.domain and n.output
                 for a in n.attribute if a.name == "value" and a.HasField("t")]  # fmt: skip
    protos = [*((proto.name, proto) for proto in held.graph.initializer), *constants]
    return {name: onnx.numpy_helper.to_array(proto, str(path.parent)) for name, proto in protos}


def _hdf5(path: Path) -> Tensors:
    source: Any = path
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            source = io.BytesIO(archive.read("model.weights.h5"))
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def walk(group: h5py.Group, prefix: str) -> None:
        """By names, as Keras reads; `visititems` fails where the sizes of an object's indexes cannot be told."""
        for name in group:
            link = group.id.links.get_info(name.encode())
            if link.type != h5py.h5l.TYPE_HARD or link.u in seen:
                continue
            seen.add(link.u)
            item = group[name]
            if isinstance(item, h5py.Group):
                walk(item, f"{prefix}{name}/")
            elif isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf" and item.shape is not None:
                value = np.asarray(item[()])
                is_bfloat16 = item.attrs.get("dtype") == "bfloat16"
                found[prefix + name] = value.view(ml_dtypes.bfloat16) if is_bfloat16 else native(value)

    with h5py.File(source, "r") as file:
        walk(file, "")
    return found


class _Arrays(pickle.Unpickler):
    """Pickles of NumPy's arrays, with classes of data alone: nothing else that a file names is found."""

    def find_class(self, module: str, name: str) -> Any:
        known = module in sys.modules or module == "__builtin__"
        one = super().find_class(module, name) if known else None
        if one is None or not (one in ARRAYS or one in SAFE or module == "ml_dtypes"):
            raise pickle.UnpicklingError(f"{module}.{name} is no class of data")
        return one


ARRAYS = (np._core.numeric._frombuffer, _codecs.encode, collections.OrderedDict, dict, list, tuple, bytes)


def _pickle(path: Path) -> Tensors:
    with path.open("rb") as file, types_kept():
        held = _Arrays(file, encoding="latin1").load()
    return {"": held} if not isinstance(held, dict) else {}  # the values are compared in tests/formats


JUDGES: dict[str, Callable[[Path], Tensors]] = {
    "torch": _torch, "safetensors": _safetensors, "record": _safetensors, "sharded": _sharded, "npz": _npz,
    "onnx": _onnx, "keras": _hdf5, "pickle": _pickle,
}  # fmt: skip
"""MXNet is not released for this Python, Julia is another language; a folder is judged by the forms it is made of."""


def judged(case: Case, path: Path) -> Tensors:
    """What the format's own library has of a file; Silent where there is none."""
    judge = JUDGES.get(case.format)
    if case.format == "record" and path.suffix == ".pt":
        judge = _torch
    if judge is None or (case.format == "torch" and path.read_bytes()[257:262] == b"ustar"):
        raise Silent  # the tar form needs the unpickler that runs code
    return judge(path)


def judge_output(case: Case, source: Path, output: Path) -> list[Finding]:
    """Whether what `dedup` wrote can be opened, and is what the input's own library reads from the input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = read_output(case, output)
            expected = judged(case, source) if not isinstance(ours, Finding) or case.format == "pickle" else {}
            if isinstance(ours, Finding):
                return [ours]
        except Silent:
            return []
        except Exception as error:
            said = str(error).rpartition("WeightsUnpickler error:")[2].strip()  # the end of a long message of torch's
            if why := deliberate(case.format, str(error)):
                return [Finding("deliberate", f"{case.format}: {why}", str(error)[:1000], grave=False)]
            what = f"{case.format}: {type(error).__name__}: {plain(said)}"
            return [Finding("accepted", what, str(error)[:1000], grave=False)]
    return compared(case, expected, ours, keeps_sharing=output.suffix != ".npz")


def read_output(case: Case, output: Path) -> Tensors | Finding:
    """The tensors of an output: of a `.pt` by torch alone, with the classes of paramtool's closed table."""
    if output.suffix != ".pt":
        try:
            return paramtool.load_file(output, allow_unknown=True)
        except Exception as error:
            if "NumPy cannot make an array of [" in str(error):  # safetensors has them, of no elements and a huge axis
                raise Silent from None
            return Finding("output", f"{type(error).__name__}: {plain(str(error))}", str(error)[:1000])
    try:
        return torch_tensors(output)
    except Exception as error:
        said = str(error)
    if any("--plain" in command for command in case.commands):
        return Finding("output", f"--plain, torch.load(weights_only=True): {plain(said)}", said[:1000])
    try:
        return torch_tensors(output, trusted=True)
    except ModuleNotFoundError:  # pathlib._local: a class of a newer Python, kept as it is called there
        raise Silent from None
    except Exception as error:
        return Finding("output", f"torch.load: {type(error).__name__}: {plain(str(error))}", str(error)[:1000])


def compared(case: Case, expected: Tensors, ours: Tensors, keeps_sharing: bool = True) -> list[Finding]:
    """Names that both have: dtype, shape, bytes; and of torch's files who shares memory.  Names that one lacks."""
    found = []
    for name in sorted(expected.keys() & ours.keys()):
        if _comparable(expected[name]) and described(expected[name]) != described(ours[name]):
            found.append(
                Finding(
                    "unequal",
                    f"{case.format}: dtype or shape",
                    f"{name!r}: {described(expected[name])} {described(ours[name])}",
                )
            )
        elif _comparable(expected[name]) and _bytes(expected[name]) != _bytes(ours[name]):
            found.append(Finding("unequal", f"{case.format}: bytes", repr(name)))
    if case.format == "pickle":
        return found
    lost = [name for name in expected.keys() - ours.keys() if not name.startswith("paramtool.span/")]
    if lost and case.format not in ("keras", "jld2") and not _may_lose(case):
        found.append(Finding("unequal", f"{case.format}: names are lost", repr(sorted(lost)[:5])))
    if case.format == "torch" and keeps_sharing and not found:
        names = sorted(
            n
            for n in expected.keys() & ours.keys()
            if _comparable(expected[n])
            and isinstance(expected[n], torch.Tensor)
            and not expected[n].is_conj()
            and not expected[n].is_neg()
        )
        if partition({n: expected[n] for n in names}) != partition({n: ours[n] for n in names}):
            found.append(Finding("unequal", "torch: sharing", repr(names[:5])))
    return found


def _bytes(value: Any) -> bytes:
    """The bytes of the elements; copying a truth value in torch makes 1 of what is not 0."""
    return raw(value) if described(value)[0] != "bool" else bytes(byte != 0 for byte in raw(value))


def _comparable(value: Any) -> bool:
    return bool(np.prod(tuple(value.shape), dtype=object) < 1 << 24) and str(value.dtype).removeprefix(
        "torch."
    ) not in ("bits8",)


def _may_lose(case: Case) -> bool:
    return any("--skip-unsupported" in command or "--allow-unknown" in command for command in case.commands)
