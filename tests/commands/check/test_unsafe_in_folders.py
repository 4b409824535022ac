"""A folder is its files: what `check DIR` names as unsafe is what `inspect` says of each file, for every command."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import shutil
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

import paramtool
from paramtool.errors import UnsafeError
from paramtool.torch import load_model
from tests.contracts import makers_tensorflow as tf
from tests.examples import examples, shared
from tests.formats.test_unsafe_forms import Calls, twofold
from tests.hostile.command import quick
from tests.hostile.makers_onnx import build, external, graph

WEIGHTS = {"w": torch.arange(4.0), "b": torch.ones(2)}
PLACES = ("", "original", "onnx", "checkpoint-1", ".hidden", "a/b/c")
NAMES = (
    "pytorch_model.bin",
    "pytorch_model.fp16.bin",
    "rust_model.ot",
    "model.pt",
    "training_args.bin",
    "x",
    "data.pkl",
    "arrays.npy",
)
Make = Callable[[Path, dict[str, object]], None]


def evil(path: Path, held: dict[str, object]) -> None:
    """Tensors of a clean file, and a call."""
    torch.save({**held, "c": Calls()}, path)


def cut(path: Path, held: dict[str, object]) -> None:
    """A pickle that calls, truncated behind that."""
    raw = io.BytesIO()
    torch.save({"c": Calls(), **held}, raw, _use_new_zipfile_serialization=False)
    path.write_bytes(raw.getvalue()[:-40])


def packed(path: Path, held: dict[str, object]) -> None:
    """In a tar archive that is compressed."""
    evil(inner := path.with_name("inner.tmp"), held)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, "pytorch_model.bin")
    inner.unlink()


def objects(path: Path, held: dict[str, object]) -> None:
    """NumPy's array of objects, one of which calls."""
    with path.open("wb") as file:
        np.save(file, np.array({**{k: np.ones(2) for k in held}, "c": Calls()}, dtype=object), allow_pickle=True)


def linked(path: Path, held: dict[str, object]) -> None:
    """A link to a file elsewhere."""
    evil(there := path.parents[len(path.parents) - 1 - path.parts.index("model")].with_name(f"{abs(hash(path))}"), held)
    path.symlink_to(there)


def twice(path: Path, held: dict[str, object]) -> None:
    """Safetensors that are a pickle, too."""
    path.write_bytes(twofold())


def member(path: Path, held: dict[str, object]) -> None:
    """A clean file of torch with one more member, which is a pickle."""
    torch.save(held, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{path.stem}/inner.bin", EVIL)


def clean(path: Path, held: dict[str, object]) -> None:
    torch.save(held, path)


def unsafe_by_file(folder: Path) -> set[str]:
    """What `inspect` exits with 4 for, file by file."""
    files = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return {str(file.relative_to(folder)) for file in files if quick("inspect", file, cwd=folder).code == 4}


def made(folder: Path, files: dict[tuple[str, str], tuple[Make, dict[str, object]]], beside: str) -> None:
    folder.mkdir(parents=True)
    if beside.endswith(".safetensors"):
        save_file(WEIGHTS, folder / beside)
    elif beside:
        torch.save(WEIGHTS, folder / beside)
    for (place, name), (make, held) in files.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        make(folder / place / name, held)


UNSAFE = (evil, cut, packed, objects, linked, twice, member)
FILES = st.dictionaries(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from([*UNSAFE, clean]), st.sampled_from([WEIGHTS, {"w": WEIGHTS["w"]}, {}])),
    max_size=4,
)


@settings(max_examples=examples(80))
@given(FILES, st.sampled_from(["model.safetensors", "clean.pt", ""]))
def test_a_folder_is_its_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[tuple[str, str], tuple[Make, dict[str, object]]],
    beside: str,
) -> None:
    """Whatever stands beside a malicious file, and wherever it stands, `check` names it, and no other file."""
    folder = tmp_path_factory.mktemp("x") / "model"
    made(folder, files, beside)
    unsafe = unsafe_by_file(folder)
    ran = quick("check", ".", "--format", "json", cwd=folder)
    document = json.loads(ran.out)
    named = set()
    for file in document["files"]:
        for one in (one for one in file["findings"] if one["id"] == "PT301"):
            inner = one["message"].rpartition(" by ")[2].strip("'")
            named.add(os.path.normpath(file["path"] if inner == "the file" else os.path.join(file["path"], inner)))
    assert named == unsafe, ran
    assert (ran.code == 4) == bool(unsafe), ran
    inspected = quick("inspect", ".", cwd=folder)
    assert (inspected.code == 4) == bool(unsafe), inspected
    assert all(path in inspected.err for path in unsafe), inspected


COMMANDS = {
    "dedup": lambda path, out: quick("dedup", path, "-o", out / "o", cwd=out).code,
    "lock": lambda path, out: quick("lock", path, "-o", "o.lock", cwd=out).code,
    "diff": lambda path, out: quick("diff", path, out / "other.safetensors", cwd=out).code,
    "diff, second": lambda path, out: quick("diff", out / "gone.safetensors", path, cwd=out).code,
    "verify": lambda path, out: quick("verify", path, "--against", out / "other.safetensors", cwd=out).code,
    "export": lambda path, out: quick("export", path, "--names", "n.txt", "-o", out / "o", cwd=out).code,
    "convert": lambda path, out: quick("convert", path, "--dtype", "bfloat16", "-o", out / "o", cwd=out).code,
    "report": lambda path, out: quick("report", path, "-o", "o.html", cwd=out).code,
    "variants": lambda path, out: quick("variants", path, "--against", "n.txt", cwd=out).code,
    "guess": lambda path, out: quick("guess", path, cwd=out).code,
    "each": lambda path, out: quick("dedup", path, "--each", "-o", out / "o", cwd=out).code,
    "family": lambda path, out: quick("dedup", "other.safetensors", path, "-o", out / "o", cwd=out).code,
    "load_model": lambda path, out: _loaded(path),
}


def _loaded(path: Path) -> int:
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in WEIGHTS.items()})
    try:
        load_model(model, path)
    except paramtool.errors.ParamtoolError as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("make", UNSAFE)
@pytest.mark.parametrize("name", ["pytorch_model.fp16.bin", "original/x", "checkpoint-1/rust_model.ot", "0.distcp"])
def test_an_unsafe_file_of_the_model_stops_every_command(command: str, make: Make, name: str, tmp_path: Path) -> None:
    """Read or not: exit 4, and nothing is written; a part of a distributed checkpoint is weights by its name."""
    numbers: dict[str, object] = {f"n{k}": k for k in range(20)}
    held = numbers if name.endswith("distcp") else {**WEIGHTS}
    made(tmp_path / "model", {tuple(name.rpartition("/")[::2]): (make, held)}, "model.safetensors")
    save_file(WEIGHTS, tmp_path / "other.safetensors")
    (tmp_path / "n.txt").write_text("w\nb\n")
    before = sorted(os.listdir(tmp_path))
    assert COMMANDS[command](tmp_path / "model", tmp_path) == 4
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unsafe_neighbour_stops_no_command(command: str, tmp_path: Path) -> None:
    """It holds no weights: only `check` and `inspect` fail for it, and what fails anyway, for a file that is gone."""
    made(tmp_path / "model", {("", "training_args.bin"): (evil, {})}, "model.safetensors")
    evil(tmp_path / "model" / "scheduler.pt", {"steps": 3})
    save_file(WEIGHTS, tmp_path / "other.safetensors")
    (tmp_path / "n.txt").write_text("w\nb\n")
    assert (COMMANDS[command](tmp_path / "model", tmp_path) == 4) == (command == "diff, second")


@pytest.mark.parametrize("words", [
    ("dedup", "model", "-o", "o"), ("export", "model", "--names", "n.txt", "-o", "o"),
    ("convert", "model", "--dtype", "bfloat16", "-o", "o"), ("lock", "model"), ("diff", "model", "other.safetensors"),
    ("verify", "model", "--against", "other.safetensors"), ("verify", "model", "--each", "--against", "model"),
    ("dedup", "model", "--each", "-o", "o"), ("report", "model"), ("guess", "model"),
    ("variants", "model", "--against", "n.txt"),
])  # fmt: skip
def test_an_unsafe_neighbour_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    made(tmp_path / "model", {("", "scheduler.pt"): (evil, {})}, "model.safetensors")
    save_file(WEIGHTS, tmp_path / "other.safetensors")
    (tmp_path / "n.txt").write_text("w\nb\n")
    ran = quick(*words, cwd=tmp_path)
    said = ran.out if "guess" in words else ran.err
    assert ran.code in (0, 1) and "'scheduler.pt' is unsafe to unpickle: it calls or names builtins.print" in said, ran
    (tmp_path / "model" / "scheduler.pt").unlink()


def test_a_function_that_returns_tensors_names_no_neighbour(tmp_path: Path) -> None:
    """It has no place to say it, and gives nothing of it."""
    made(tmp_path / "model", {("", "scheduler.pt"): (evil, {})}, "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paramtool.load_file(tmp_path / "model").keys() == WEIGHTS.keys()


@pytest.mark.parametrize("name", ["keras_metadata.pb", "saved_model.pb"])
def test_code_in_a_saved_model_without_variables(name: str, tmp_path: Path) -> None:
    """The JSON of a layer of Keras, as TensorFlow 2.5 keeps it, and as versions before it do."""
    layer = {"class_name": "Lambda", "config": {"name": "a", "function_type": "lambda", "function": ["4wEA", None]}}
    text = tf.block(5 if name == "keras_metadata.pb" else 3, json.dumps(layer).encode())
    if name == "saved_model.pb":
        text = tf.block(4, tf.block(1, b"_tf_keras_layer") + text)
        text = tf.block(7, tf.block(1, text))
    made(tmp_path / "model", {}, "model.safetensors")
    (tmp_path / "model" / "saved").mkdir()
    (file := tmp_path / "model" / "saved" / name).write_bytes(tf.block(1 if name == "keras_metadata.pb" else 2, text))
    shutil.copytree("fixtures/tensorflow/keras_rnn/keras_rnn", tmp_path / "whole", ignore=lambda *_: [file.name])
    shutil.copy(file, tmp_path / "whole")
    codes = {("inspect", "model"): 4, ("inspect", file): 4, ("check", "model"): 4, ("lock", "model"): 0}
    for words, code in (codes | {(word, "whole"): 4 for word in ("inspect", "check", "guess")}).items():
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == code and "the code of 'a'" in ran.out + ran.err, ran


def test_what_is_chosen_stands_alone(tmp_path: Path) -> None:
    """--weights names one file; the others are neighbours."""
    made(tmp_path / "model", {("", "pytorch_model.bin"): (evil, WEIGHTS)}, "model.safetensors")
    ran = quick("dedup", "model", "--weights", "model.safetensors", "-o", "o", cwd=tmp_path)
    assert ran.code == 0 and "'pytorch_model.bin' is unsafe" in ran.err, ran
    assert not (tmp_path / "o" / "pytorch_model.bin").exists()
    assert quick("dedup", "model/model.safetensors", "-o", "p.safetensors", cwd=tmp_path).code == 0


def test_what_is_allowed_is_not_unsafe(tmp_path: Path) -> None:
    made(tmp_path / "model", {("", "x"): (evil, WEIGHTS), ("", "scheduler.pt"): (evil, {})}, "model.safetensors")
    for allowed in (("--allow-unknown",), ("--allow-class", "builtins.print")):
        code = 2 if "builtins.print" in allowed else 0  # what runs programs is never allowed by name
        assert quick("check", "model", *allowed, cwd=tmp_path).code == code
    (tmp_path / "paramtool.toml").write_text('[[allow]]\nrule = "unsafe"\npath = "model/*"\nreason = "seen"\n')
    ran = quick("check", "model", "--config", "paramtool.toml", cwd=tmp_path)
    assert ran.code == 0 and "allowed" in ran.out, ran


def test_what_is_not_looked_at_is_named(tmp_path: Path) -> None:
    """Folders of other programs, links to folders elsewhere, closed and deep archives, what cannot be read."""
    made(tmp_path / "model", {}, "model.safetensors")
    model = tmp_path / "model"
    for name in (".git", ".venv"):
        (model / name).mkdir()
        evil(model / name / "x.pt", dict(WEIGHTS))
    made(tmp_path / "elsewhere", {}, "model.safetensors")
    evil(tmp_path / "elsewhere" / "x.pt", dict(WEIGHTS))
    (model / "link").symlink_to(tmp_path / "elsewhere")
    (model / "loop").symlink_to(".")
    (model / "inner").symlink_to(".git")
    (model / "a.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(100))
    deep = tmp_path / "deep"
    deep.write_bytes(b"\x80\x02}.")
    for k in range(5):
        with tarfile.open(tmp_path / f"{k}.tar", "w:gz") as archive:
            archive.add(deep, "inner")
        deep = tmp_path / f"{k}.tar"
    shutil.copy(deep, model / "deep.tar.gz")
    for command in ("check", "inspect", "dedup"):
        ran = quick(command, "model", *(["-o", "o"] if command == "dedup" else []), cwd=tmp_path)
        said = " ".join((ran.out + ran.err).split())
        assert ran.code == 0 and "not looked at for pickles: " in said, ran
    found = paramtool.inspect(model).checkpoint.notes[-1]
    said = json.loads(quick("check", "model", "--format", "json", cwd=tmp_path).out)["files"][0]["notes"][-1]
    assert said == found and "and 3 more" in found and "'.git', '.venv'" in found, found


@pytest.mark.parametrize(("target", "why"), [
    ("gone", "a link to nothing"), (".git", "a link to a folder that is not looked at"),
    ("../elsewhere", "a link out of the folder"), ("sub", ""),
])  # fmt: skip
def test_a_link_says_where_it_leads(target: str, why: str, tmp_path: Path) -> None:
    made(tmp_path / "model", {}, "model.safetensors")
    for folder in ("model/.git", "model/sub", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "x").symlink_to(target)
    said = " ".join(quick("check", "model", cwd=tmp_path).out.split())
    assert (f"'x, {why}'" in said) == bool(why) and ("'x" in said) == bool(why), said


def test_pointers_to_the_files_of_a_lock_hide_nothing(tmp_path: Path) -> None:
    """No rule is judged of weights that are not here; what is here is looked at."""
    made(tmp_path / "model", {}, "model.safetensors")
    assert quick("lock", "model", "-o", "my.lock", cwd=tmp_path).code == 0
    data = (file := tmp_path / "model" / "model.safetensors").read_bytes()
    said = f"oid sha256:{hashlib.sha256(data).hexdigest()}\nsize {len(data)}\n"
    file.write_text(f"version https://git-lfs.github.com/spec/v1\n{said}")
    for words in (("check", "model"), ("check", "model/model.safetensors")):
        assert quick(*words, "--lock", "my.lock", cwd=tmp_path).code == 0
        evil(bad := tmp_path / "model" / "pytorch_model.fp16.bin", dict(WEIGHTS))
        ran = quick(*words, "--lock", "my.lock", cwd=tmp_path)
        assert ran.code == 4 and "pytorch_model.fp16.bin  PT301" in ran.out and "only pointers" in ran.out, ran
        bad.unlink()


def test_a_pipe_is_named(tmp_path: Path) -> None:
    """Whoever opens it gets what another program writes."""
    made(tmp_path / "model", {}, "model.safetensors")
    os.mkfifo(tmp_path / "model" / "pytorch_model.bin")
    ran = quick("check", "model", cwd=tmp_path)
    assert "not looked at for pickles: 'pytorch_model.bin, which is no regular file'" in " ".join(ran.out.split()), ran


def test_an_archive_of_arrays_with_a_pickle_that_calls_is_a_file_of_the_model(tmp_path: Path) -> None:
    """Its reader refuses it, and what it holds are arrays all the same."""
    made(tmp_path / "model", {}, "model.safetensors")
    (file := tmp_path / "model" / "x.npz").write_bytes(zipped("w.npy", arrays(NUMBERS)))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("evil.pkl", EVIL)
    assert quick("lock", "model", cwd=tmp_path).code == 4


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """A path that the system takes no more; the folder that it is in can still be listed."""
    made(tmp_path / "model", {}, "model.safetensors")
    place = tmp_path / "model"
    while len(str(place)) < 3700:
        place /= "d" * min(200, 3800 - len(str(place)))
    place.mkdir(parents=True)
    above = os.open(place, os.O_RDONLY)
    for folder in ("e" * 100, "e" * 100):
        os.mkdir(folder, dir_fd=above)
        below = os.open(folder, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(os.open("x" * 200, os.O_CREAT | os.O_WRONLY, dir_fd=above))
    os.close(above)
    (note,) = paramtool.inspect(tmp_path / "model").checkpoint.notes
    assert note.startswith("not looked at for pickles: 'ddd"), note


@pytest.mark.parametrize("form", ["snapshot", "training", "onnx"])
def test_clean_folders_pass(form: str, tmp_path: Path) -> None:
    """In all their forms: links into the hub's cache, what a training saves beside weights, exports."""
    model = tmp_path / "models--a--b" / "snapshots" / "1"
    made(model, {}, "model.safetensors" if form != "snapshot" else "")
    if form == "snapshot":
        (blobs := model.parents[1] / "blobs").mkdir()
        save_file(WEIGHTS, blobs / "a")
        torch.save(WEIGHTS, blobs / "b")
        (model / "model.safetensors").symlink_to("../../blobs/a")
        (model / "pytorch_model.bin").symlink_to("../../blobs/b")
    elif form == "training":
        optimizer = torch.optim.AdamW([torch.nn.Parameter(value) for value in WEIGHTS.values()])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        torch.save(optimizer.state_dict(), model / "optimizer.pt")
        torch.save(schedule.state_dict(), model / "scheduler.pt")
        torch.save({"cpu": torch.random.get_rng_state(), "numpy": np.random.get_state()}, model / "rng_state.pth")
        (model / "trainer_state.json").write_text("{}")
    else:
        (model / "onnx").mkdir()
        (model / "onnx" / "model.onnx_data").write_bytes(bytes(range(256)) * 8)
        (model / "raw").write_bytes(b"\x84k\x96yK.")  # a number of Python's registry of extensions
        (model / "tokenizer.json").write_text('{"a": "cposix\\nsystem\\n"}')
    for command in ("check", "inspect"):
        ran = quick(command, model, cwd=tmp_path)
        assert ran.code == 0 and ran.err == "" and "pickles" not in ran.out, ran


EVIL, PLAIN = pickle.dumps(Calls(), 2), pickle.dumps({"epoch": 3}, 2)


def zipped(name: str, data: bytes = EVIL, before: bytes = b"", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO(before)
    with zipfile.ZipFile(made, "a", method) as archive:
        archive.writestr(name, data)
    return made.getvalue()


def tarred(data: bytes = EVIL, kind: int = tarfile.GNU_FORMAT, first: str = "README") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as archive:
        for name, inner in ((first, b"hello"), ("x", data)):
            header = tarfile.TarInfo(name)
            header.size = len(inner)
            archive.addfile(header, io.BytesIO(inner))
    return made.getvalue()


def rewritten(archive: bytes, place: slice, new: Callable[[int], bytes]) -> bytes:
    """Each header of a tar archive with other bytes in a place, and its checksum (POSIX ustar)."""
    made, at = bytearray(archive), 0
    while made[at]:
        nbytes = int(bytes(made[at + 124 : at + 135]), 8)
        made[at + place.start : at + place.stop] = new(nbytes)
        made[at + 148 : at + 156] = b" " * 8
        made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
        at += 512 + (nbytes + 511) // 512 * 512
    return bytes(made)


V7 = rewritten(tarred(), slice(257, 265), lambda nbytes: bytes(8))
BASE_256 = rewritten(tarred(), slice(124, 136), lambda nbytes: b"\x80" + nbytes.to_bytes(11, "big"))


def arrays(*held: object) -> bytes:
    """Arrays one behind the other in a file, as np.save writes them when it is called again, and bytes behind."""
    made = io.BytesIO()
    for one in held:
        made.write(one) if isinstance(one, bytes) else np.save(made, one, allow_pickle=True)
    return made.getvalue()


def stacked(held: object) -> bytes:
    made = io.BytesIO()
    torch.save(held, made, _use_new_zipfile_serialization=False)
    return made.getvalue()


NUMBERS, OBJECTS = np.ones(3), np.array([Calls()], dtype=object)
CODE = {"class_name": "Lambda", "config": {"function": ["4wEAAA==", None, None], "function_type": "lambda"}}
KERAS = json.dumps({"class_name": "Sequential", "config": {"layers": [CODE]}}).encode()
HIDDEN = {
    "array behind an array": arrays(NUMBERS, NUMBERS, OBJECTS),
    "pickle behind an array": arrays(NUMBERS, EVIL),
    "arrays in npz": zipped("w.npy", arrays(NUMBERS, OBJECTS)),
    "pickle behind storages": stacked(WEIGHTS) + EVIL,
    "zip in a tensor": save({**WEIGHTS, "z": torch.frombuffer(bytearray(zipped("evil.pkl")), dtype=torch.uint8)}),
    "Keras": KERAS,
    "Keras, escaped": KERAS.replace(b'"lambda"', b'"\\u006cambda"'),
    "Keras without weights": zipped("config.json", KERAS),
    "gzip, second stream": gzip.compress(b"") + gzip.compress(EVIL),
    "gzip, padded": gzip.compress(b"") + bytes(9000) + gzip.compress(EVIL),
    "gzip, in two streams": gzip.compress(EVIL[:7]) + gzip.compress(EVIL[7:]),
    "bzip2, second stream": bz2.compress(b"") + bz2.compress(EVIL),
    "xz, second stream": lzma.compress(b"") + lzma.compress(EVIL),
    "lzma": lzma.compress(EVIL, lzma.FORMAT_ALONE),
    "zlib, small window": (lambda made: made.compress(EVIL) + made.flush())(zlib.compressobj(wbits=9)),
    "tar without magic": V7,
    "tar without magic, compressed": gzip.compress(V7),
    "tar, base 256": BASE_256,
    "tar, long name": tarred(kind=tarfile.PAX_FORMAT, first="R" * 200),
    "tar in tar": tarred(tarred()),
    "zlib in tar": tarred(zlib.compress(EVIL)),
    "zip, data": zipped("x/data/evil.pkl"),
    "zip, version": zipped("x/version"),
    "zip behind a pickle": zipped("evil.pkl", before=PLAIN),
    "zip behind text": zipped("evil.pkl", before=b"a text\n"),
    "zip in a prefixed zip": zipped("a.zip", zipped("x"), b"#!", zipfile.ZIP_STORED),
    "tar in a stored member": zipped("a.tar", tarred(), b"#!", zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("form", HIDDEN)
def test_what_a_library_would_open_is_opened(form: str, tmp_path: Path) -> None:
    """What Python's own gzip, bz2, lzma, zlib, tarfile and zipfile read, however it is written."""
    made(tmp_path / "model", {}, "model.safetensors")
    (tmp_path / "model" / "x").write_bytes(HIDDEN[form])
    for words in (("check", "model"), ("inspect", "model"), ("inspect", "model/x")):
        ran = quick(*words, cwd=tmp_path)
        said = "marshal.loads" if "Keras" in form else "builtins.print"
        assert ran.code == 4 and said in ran.out + ran.err, (words, ran)


NAMED = {
    "gzip, long": gzip.compress(bytes(65 << 20) + EVIL),
    "many pickles": PLAIN * 1001 + EVIL,
    "behind a pickle": PLAIN + b"\1\2\3" + EVIL,
    "in a pickle": PLAIN[:-1] + b"\1\2\3" + EVIL,
    "zip, xz": zipped("x", method=zipfile.ZIP_BZIP2).replace(b"\x2e\0\0\0\x0c\0", b"\x2e\0\0\0\x5f\0"),
    "zip, zstd": zipped("x", method=zipfile.ZIP_BZIP2).replace(b"\x2e\0\0\0\x0c\0", b"\x3f\0\0\0\x5d\0"),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(40),
    "HDF5 in an archive": zipped("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(600)),
    "HDF5, compressed": gzip.compress(b"\x89HDF\r\n\x1a\n" + bytes(600)),
}


@pytest.mark.parametrize("form", NAMED)
def test_what_is_not_scanned_to_its_end_is_named(form: str, tmp_path: Path) -> None:
    made(tmp_path / "model", {}, "model.safetensors")
    (tmp_path / "model" / "x").write_bytes(NAMED[form])
    ran = quick("check", "model", cwd=tmp_path)
    said = "found more than 1,000 pickles" if form == "many pickles" else "not looked at for pickles: 'x"
    assert said in " ".join((ran.out + ran.err).split()), ran
    assert ran.code == (4 if form == "many pickles" else 0)
    assert quick("inspect", "model/x", cwd=tmp_path).code == (4 if form == "many pickles" else 3)


@pytest.mark.parametrize("form", ["in reach", "beyond"])
def test_a_damaged_archive_is_searched_to_its_limit(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in front of it counts, and the rest is named."""
    from paramtool.formats import scan

    made(tmp_path / "model", {}, "model.safetensors")
    front, far = zipped("a", PLAIN), zipped("b")
    data = front[: front.index(b"PK\1\2")] + bytes(9000) + far[: far.index(b"PK\1\2")]
    (tmp_path / "model" / "x").write_bytes(data)
    monkeypatch.setattr(scan, "MAX_WALKED_NBYTES", len(data) if form == "in reach" else 5000)
    ran = quick("check", "model", cwd=tmp_path)
    assert ran.code == (4 if form == "in reach" else 0), ran
    assert ("not looked at for pickles: 'x'" in " ".join(ran.out.split())) == (form == "beyond"), ran


PART = io.BytesIO()
torch.save("x", PART)
PARTS = {
    "a pickle": EVIL, "a pickle before the archive": EVIL + PART.getvalue(), "stacked": stacked(Calls()),
    "an archive before the archive": zipped("archive/data.pkl") + PART.getvalue(),
}  # fmt: skip


@pytest.mark.parametrize("place", ["part", "first", "last", "another rank", "nowhere"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_distributed_checkpoints(part: str, place: str, tmp_path: Path) -> None:
    """torch unpickles what `.metadata` points to, whatever it is; what it does not point to is a file's, too."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"m": {"w": torch.ones(3)}, "c": {"a": "x" * 9}}, checkpoint_id=tmp_path / "model", no_dist=True)
    file, metadata = tmp_path / "model" / "__0_0.distcp", tmp_path / "model" / ".metadata"
    raw, said = file.read_bytes(), pickle.loads(metadata.read_bytes())
    if place == "another rank":
        file.with_name("__1_0.distcp").write_bytes(PARTS[part])
    else:
        file.write_bytes(PARTS[part] + raw if place in ("first", "nowhere") else raw + PARTS[part])
    for index, info in said.storage_data.items():
        info.offset += len(PARTS[part]) * (place == "first")
        if place == "part" and index.fqn == "c.a":
            info.offset, info.length = len(raw), len(PARTS[part])
    metadata.write_bytes(pickle.dumps(said)) if place != "nowhere" else metadata.unlink()
    for command in ("check", "inspect"):
        ran = quick(command, "model", cwd=tmp_path)
        assert ran.code == 4 and "builtins.print" in ran.out + ran.err, ran
    if place not in ("another rank", "nowhere"):
        assert quick("lock", "model", cwd=tmp_path).code == 4
        assert quick("dedup", "model", "-o", "o", cwd=tmp_path).code == 4 and not (tmp_path / "o").exists()


def test_data_of_onnx_that_is_a_pickle(tmp_path: Path) -> None:
    """The reader of ONNX takes a few bytes of the file, and others would unpickle it."""
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": "weights.pkl", "offset": "4096", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    (tmp_path / "weights.pkl").write_bytes(EVIL.ljust(4096, b"\0") + bytes(16))
    for command in ("check", "inspect"):
        ran = quick(command, ".", cwd=tmp_path)
        assert ran.code == 4 and "weights.pkl" in ran.out + ran.err, ran


@pytest.mark.parametrize("form", ["ONNX", "TensorFlow"])
def test_a_pickle_in_bytes_that_no_tensor_claims(form: str, tmp_path: Path) -> None:
    """Between tensors, and behind the last, of files of data that hold nothing but tensors."""
    if form == "ONNX":
        places = [{"location": "w.bin", "offset": str(at), "length": "8"} for at in (0, 4096)]
        (tmp_path / "model.onnx").write_bytes(
            build(
                graph(*(external(*place.items(), name=name) for name, place in zip((b"a", b"b"), places, strict=True)))
            )
        )
        (data := tmp_path / "w.bin").write_bytes(bytes(8192))
    else:
        tf.write(tmp_path / "m", {b"a": tf.tensor(np.zeros(4, "f4"))})
        (data,) = tmp_path.glob("m.data-*")
        data.write_bytes(data.read_bytes() + bytes(99))
    main = "model.onnx" if form == "ONNX" else "m.index"
    assert quick("inspect", main, cwd=tmp_path).code == 0
    clean = data.read_bytes()
    data.write_bytes(clean[:16] + EVIL + clean[16 + len(EVIL) :])
    for path in (main, "."):
        ran = quick("inspect", path, cwd=tmp_path)
        assert ran.code == 4 and "builtins.print" in ran.err, ran


def test_each_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of shards is not scanned again by what looks at its files."""
    from paramtool import formats
    from paramtool.formats import scan

    for k in range(3):
        torch.save({f"w{k}": torch.ones(2)}, tmp_path / f"pytorch_model-0000{k + 1}-of-00003.bin")
    names = {f"w{k}": f"pytorch_model-0000{k + 1}-of-00003.bin" for k in range(3)}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    seen: list[str] = []
    whole, file = formats.read_whole, scan.scan_file
    monkeypatch.setattr(formats, "read_whole", lambda path: (seen.append(path), whole(path))[1])
    monkeypatch.setattr(scan, "scan_file", lambda path: (seen.append(path), file(path))[1])
    paramtool.read(tmp_path)
    assert len(seen) == len(set(seen)), seen


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_inner_folders_are_scanned_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a folder is no model, the models in it are checked, and what stands beside them is known by then."""
    from paramtool.formats import scan

    for name in ("a", "b/c"):
        made(tmp_path / "all" / name, {("", "x.pkl"): (evil, {})}, "model.safetensors")
        (tmp_path / "all" / name / "README").write_text("text")
    seen: list[str] = []
    through = scan._looked_through
    monkeypatch.setattr(
        scan, "_looked_through", lambda file, source: (seen.append(source.path), through(file, source))[1]
    )
    ran = quick(command, "all", cwd=tmp_path)
    assert ran.code == 4 and all(f"{name}/x.pkl" in ran.out + ran.err for name in ("a", "b/c")), ran
    assert len(seen) == len(set(seen)), seen


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_of_two_names_is_what_each_says(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """A text, and the metadata of a SavedModel: the name that comes first does not speak for the other."""
    made(tmp_path / "model", {}, "model.safetensors")
    layer = {"class_name": "Lambda", "config": {"name": "a", "function_type": "lambda", "function": ["4wEA", None]}}
    text = tmp_path / "model" / "a.txt"
    text.write_bytes(tf.block(1, tf.block(5, json.dumps(layer).encode())))
    link(text, tmp_path / "model" / "keras_metadata.pb")
    assert unsafe_by_file(tmp_path / "model") == {"keras_metadata.pb"}
    for command in ("check", "inspect"):
        ran = quick(command, "model", cwd=tmp_path)
        assert ran.code == 4 and "keras_metadata.pb" in ran.out + ran.err, ran


def test_one_broken_file_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where our own code fails on it: both are reported, and 70 counts."""
    from paramtool.formats.torch import read

    made(tmp_path / "model", {("", "a.pt"): (evil, WEIGHTS)}, "")
    made(tmp_path / "other", {("", "b.pt"): (clean, WEIGHTS)}, "")
    usual = read.read

    def failing(path: str) -> object:
        if path.endswith("b.pt"):
            raise AssertionError("a defect")
        return usual(path)

    monkeypatch.setattr(read, "read", failing)
    found = paramtool.check([tmp_path / "other", tmp_path / "other" / "b.pt", tmp_path / "model"])
    assert found.exit_code == 70
    assert [one.id for one in found.findings] == ["PT301"]
    assert {file.exit_code for file in found.files} == {4, 70}


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """The cache of the hub is made of them; a link to a folder is not entered."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(WEIGHTS, tmp_path / "blobs" / "a")
    evil(tmp_path / "blobs" / "b", dict(WEIGHTS))
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/a")
    (tmp_path / "snapshot" / "pytorch_model.bin").symlink_to("../blobs/b")
    (tmp_path / "snapshot" / "loop").symlink_to(".")
    ran = quick("check", "snapshot", cwd=tmp_path)
    assert ran.code == 4 and "pytorch_model.bin" in ran.out + ran.err, ran
    with pytest.raises(UnsafeError, match=r"pytorch_model\.bin"):
        paramtool.read(tmp_path / "snapshot")


@pytest.mark.parametrize("name", ["check_d_missed", "check_t9_missed"])
def test_what_was_missed(name: str, tmp_path: Path) -> None:
    folder = shared("findings", "field", "check-folder", name)
    ran = quick("check", folder, "--format", "json", cwd=tmp_path)
    assert ran.code == 4 and "posix.system" in json.dumps(json.loads(ran.out)), ran
    assert quick("dedup", folder, "-o", "o", cwd=tmp_path).code == 4


def test_a_configuration_of_quantisation_that_was_added(tmp_path: Path) -> None:
    """config.json is no locked file, and changes what the values of the same bytes are, added as well as taken away."""
    shapes = {"qweight": (8, 64), "qzeros": (2, 8), "g_idx": (64,)}
    codes = {f"l.{name}": torch.zeros(shape, dtype=torch.int32) for name, shape in shapes.items()}
    (tmp_path / "model").mkdir()
    save_file({**codes, "l.scales": torch.ones(2, 64, dtype=torch.float16)}, tmp_path / "model" / "model.safetensors")
    said = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    for first, second in (({}, said), (said, {})):
        (tmp_path / "model" / "config.json").write_text(json.dumps(first))
        assert quick("lock", "model", "-o", f"{len(first)}.lock", cwd=tmp_path).code == 0
        (tmp_path / "model" / "config.json").write_text(json.dumps(second))
        ran = quick("check", "model", "--lock", f"{len(first)}.lock", cwd=tmp_path)
        assert ran.code == 1 and "config.json" in ran.out, ran
