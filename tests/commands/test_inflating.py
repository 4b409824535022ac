"""What is inflated or calculated: streamed where that can be, never made where it repeats, and within a limit."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

import paramtool
import paramtool.torch
from paramtool import formats
from paramtool.commands import dedup as dedup_command
from paramtool.commands.output.writer import Writer
from paramtool.engine.read import source
from paramtool.engine.read.source import Source
from paramtool.errors import UnsafeError, UsageError
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import Constant, SourceFile, Storage
from paramtool.model.view import contiguous
from tests.examples import shared
from tests.hostile.command import quick
from tests.hostile.makers_safetensors import KEY, build, item
from tests.written import WRITERS

RECORD = (
    '{"version": 2, "aliases": {}, "derived": {"c": {"dtype": "float32", "shape": [%d], "position": 1, '
    '"constant": "%s"}}, "stored": {}, "spans": []}'
)


def constant(folder: Path, numel: int, element: bytes = b"\1\2\3\4") -> Path:
    """A file of 300 bytes with a tensor of so many equal elements."""
    metadata = {KEY: RECORD % (numel, element.hex())}
    (folder / "model.safetensors").write_bytes(build({"__metadata__": metadata, "w": item()}))
    return folder / "model.safetensors"


@pytest.fixture
def no_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary file may be made."""

    def refuse() -> NoReturn:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.usefixtures("no_spool")
def test_the_digest_of_a_constant_is_that_of_its_bytes(tmp_path: Path) -> None:
    """By blake3 over the bytes themselves; nothing is written."""
    for element in (bytes(4), b"\1\2\3\4"):
        numel = 3_000_001
        found = paramtool.inspect(constant(tmp_path, numel, element), digest=True)
        assert found.digests is not None and found.digests["c"] == blake3(element * numel).hexdigest()


@given(st.binary(min_size=1, max_size=8), st.integers(1, 50), st.data())
def test_a_constant_reads_as_if_it_was_there(element: bytes, count: int, data: st.DataObject) -> None:
    """Whatever part of it is read, and in whatever way."""
    with tempfile.NamedTemporaryFile() as file:
        whole = element * count
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        view = contiguous(0, DTYPES["uint8"], (stop - start,), start)
        file_of = SourceFile(file.name, 0, Path(file.name).stat().st_mtime_ns)
        held = Storage(0, len(whole), Constant(element))
        with Source(Checkpoint("test", (file_of,), {0: held}, {"w": Entry(view)})) as opened:
            assert opened.read(0, start, stop - start) == whole[start:stop]
            assert b"".join(map(bytes, opened.row_major(view))) == whole[start:stop]
            buffer = bytearray(stop - start)
            opened.read_into(0, start, memoryview(buffer))
            assert bytes(buffer) == whole[start:stop]


@pytest.mark.usefixtures("no_spool")
def test_what_is_deflated_is_digested_as_it_is_inflated(tmp_path: Path) -> None:
    """By blake3 over what NumPy reads; nothing is written."""
    rng = np.random.default_rng(0)
    arrays = {"a": rng.random((300, 500)), "b": np.arange(7, dtype=">i4"), "empty": np.zeros((0, 3), "f4")}
    np.savez_compressed(tmp_path / "model.npz", **arrays)
    checkpoint = formats.read(tmp_path / "model.npz")
    from paramtool.engine.compare.changes import digest

    with Source(checkpoint) as opened:
        made = {name: digest(opened, view) for name, view in checkpoint.windows()}
    with np.load(tmp_path / "model.npz") as held:
        little = {name: held[name].astype(held[name].dtype.newbyteorder("<")) for name in held}
    assert made == {name: blake3(array.tobytes()).hexdigest() for name, array in little.items()}


def test_what_is_read_a_second_time_is_kept_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage is inflated twice at most, however many windows look at all of it."""
    np.savez_compressed(tmp_path / "model.npz", a=np.arange(100_000.0))
    checkpoint = formats.read(tmp_path / "model.npz")
    view = checkpoint.views()["a"]
    times = 0
    kept = Source._unpacked

    def counted(self: Source, *args: Any) -> Any:
        nonlocal times
        times += 1
        return kept(self, *args)

    monkeypatch.setattr(Source, "_unpacked", counted)
    with Source(checkpoint) as opened:
        held = [b"".join(map(bytes, opened.row_major(view))) for _ in range(5)]
    assert times == 2 and set(held) == {np.arange(100_000.0).tobytes()}


def test_zeros_take_no_space_in_a_temporary_file(tmp_path: Path) -> None:
    """Holes: they are read as they were, and no block of the disk stands for them."""
    values = np.zeros(4_000_000)
    values[-1] = 5
    np.savez_compressed(tmp_path / "model.npz", a=values)
    checkpoint = formats.read(tmp_path / "model.npz")
    with Source(checkpoint) as opened:
        file, start = opened.place(int(checkpoint.views()["a"].storage))
        assert os.fstat(file.fileno()).st_blocks * 512 < 2 * source.BLOCK_NBYTES + (1 << 20)
        assert opened.read(0, 0, values.nbytes) == values.tobytes() and start == 0


CALLS: dict[str, Callable[[Path, int | None], object]] = {
    "inspect": lambda path, most: paramtool.inspect(path, digest=True, max_inflated=most),
    "dedup": lambda path, most: paramtool.dedup(path, path.with_name("made.npz.pt"), max_inflated=most),
    "export": lambda path, most: paramtool.export(
        path, path.with_name("made.safetensors"), all_names=True, max_inflated=most
    ),
    "verify": lambda path, most: paramtool.verify(path, path, max_inflated=most),
    "load_file": lambda path, most: paramtool.load_file(path, max_inflated=most),
    "torch.load_file": lambda path, most: paramtool.torch.load_file(path, max_inflated=most),
    "torch.load_model": lambda path, most: paramtool.torch.load_model(torch.nn.LSTM(5, 7), path, max_inflated=most),
    "convert": lambda path, most: paramtool.convert(
        path, path.with_name("made.safetensors"), source="torch", target="keras", max_inflated=most
    ),
    "fuse": lambda path, most: paramtool.fuse(
        path, path.with_name("made.safetensors"), layout="cudnn", max_inflated=most
    ),
    "unfuse": lambda path, most: paramtool.unfuse(
        path, path.with_name("made.safetensors"), layout="torch", max_inflated=most
    ),
    "dedup_family": lambda path, most: paramtool.dedup_family(
        [path, path.parents[1] / "other.npz"], path.with_name("made"), max_inflated=most
    ),
    "dry dedup": lambda path, most: paramtool.dedup(path, dry_run=True, equal=False, max_inflated=most),
    "dry export": lambda path, most: paramtool.export(
        path, path.with_name("x.safetensors"), all_names=True, dry_run=True, max_inflated=most
    ),
    "dry convert": lambda path, most: paramtool.convert(
        path, path.with_name("x.safetensors"), target="keras", source="torch", dry_run=True, max_inflated=most
    ),
    "dry dedup_each": lambda path, most: dedup_command.dedup_each(
        path.parent, dry_run=True, equal=False, max_inflated=most
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_librarys_functions_keep_to_their_limit(name: str, tmp_path: Path) -> None:
    """A byte too few, and just enough; the limit of one call is none of the next."""
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    few, many = tmp_path / "few" / "model.npz", tmp_path / "many" / "model.npz"
    for path in (few, many):
        path.parent.mkdir()
        np.savez_compressed(path, **{key: tensor.numpy() for key, tensor in torch.nn.LSTM(5, 7).state_dict().items()})
    with pytest.raises(UnsafeError, match="1568 bytes would be inflated or calculated; the limit is 1567"):
        CALLS[name](few, 1567)
    assert [path.name for path in few.parent.iterdir()] == ["model.npz"]
    CALLS[name](few, 1568)
    CALLS[name](many, None)
    with pytest.raises(UsageError):
        CALLS[name](few, -1)


def test_guess_keeps_to_its_limit(tmp_path: Path) -> None:
    """It reads flat vectors alone."""
    np.savez_compressed(tmp_path / "model.npz", flat=np.ones(389, "f4"))
    with pytest.raises(UnsafeError, match="1556 bytes would be inflated or calculated; the limit is 1555"):
        paramtool.guess(tmp_path / "model.npz", max_inflated=1555)
    paramtool.guess(tmp_path / "model.npz", max_inflated=1556)


def test_a_constant_is_not_written_out_unasked(tmp_path: Path) -> None:
    """An export of 311 bytes that stand for 8 GB: refused, with the flag that allows it, before anything is made."""
    path = constant(tmp_path, 2 * 10**9)
    words = ("export", path.name, "--all-names", "-o", "out.safetensors", "--max-inflated", "1GB")
    ran = quick(*words, cwd=tmp_path)
    assert ran.code == 4 and "--max-inflated 8000000000 allows it" in ran.err, ran
    ran = quick("dedup", path.name, "-o", "out.pt", "--dry-run", "--max-inflated", "1GB", cwd=tmp_path)
    assert ran.code == 4 and "--max-inflated 8000000000 allows it" in ran.err, ran
    assert list(tmp_path.iterdir()) == [path]


def test_one_line_says_what_to_do(tmp_path: Path) -> None:
    """What was asked for, the limit, and the flag that raises it; and with it, it works."""
    path = constant(tmp_path, 4 * 10**9)
    ran = quick("inspect", path.name, "--digest", "--max-inflated", "9GB", cwd=tmp_path)
    assert ran.code == 4 and "16000000000 bytes would be inflated or calculated; the limit is 9000000000" in ran.err
    assert "--max-inflated 16000000000" in ran.err and len(ran.err.splitlines()) == 2, ran
    assert quick("inspect", path.name, cwd=tmp_path).code == 0
    np.savez_compressed(tmp_path / "model.npz", a=np.zeros(1000))
    for words in (("inspect", "--digest"), ("dedup", "-o", "out.safetensors"), ("verify", "--against", "model.npz"),
                  ("export", "--all-names", "-o", "other.safetensors")):  # fmt: skip
        ran = quick(words[0], "model.npz", *words[1:], "--max-inflated", "7kB", cwd=tmp_path)
        assert ran.code == 4 and "the limit is 7000" in ran.err and "--max-inflated 8000" in ran.err, ran
        assert quick(words[0], "model.npz", *words[1:], "--max-inflated", "8kB", cwd=tmp_path).code == 0
        assert quick(words[0], "model.npz", *words[1:], *(["--force"] if "-o" in words else []), cwd=tmp_path).code == 0


def test_a_limit_that_is_no_size(tmp_path: Path) -> None:
    """As of every option that takes one."""
    ran = quick("inspect", "x", "--max-inflated", "much", cwd=tmp_path)
    assert ran.code == 2 and "is an invalid size" in ran.err


@pytest.mark.parametrize("suffix", [".npz", ".params", ".msgpack", ".h5", ".safetensors", ""])
@pytest.mark.parametrize("name", ["ex33.pt", "d_exp"])
def test_what_repeats_its_bytes_is_within_the_limit(name: str, suffix: str, tmp_path: Path) -> None:
    """A window of stride 0 stands for gigabytes: refused before anything is written, whatever writes it."""
    source = shared("findings", "field", "stride0", name)
    for words in (("convert", source), ("export", source, "--all-names")):
        form = () if suffix else ("--format", "dcp")
        ran = quick(*words, "-o", f"out{suffix}", *form, "--max-inflated", "1MB", cwd=tmp_path)
        assert ran.code in (0, 2, 4), ran  # 0: the record says that it repeats
        assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 1_000_000
        assert (ran.code == 0) <= (suffix == ".safetensors" and "export" not in words), ran
        for path in tmp_path.iterdir():
            path.unlink()
    torch.save({"w": torch.ones(3, 1).expand(3, 400)}, tmp_path / "few.pt")
    for most, code in (("4kB", 4), ("5kB", 0)):
        assert quick("convert", "few.pt", "-o", "few.npz", "--max-inflated", most, cwd=tmp_path).code == code


REPEATED = ("q", "k", "v", "flat")
EVERY = {
    "convert": ("convert",),
    "cast": ("convert", "--dtype", "float64"),
    "export": ("export", "--all-names"),
    "dedup": ("dedup",),
}


@pytest.mark.parametrize("command", EVERY)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_no_writer_writes_more_than_the_limit(writer: Writer, command: str, tmp_path: Path) -> None:
    """Whatever row of the table writes: what is repeated is counted, or it stays as small as it was."""
    torch.save({name: torch.ones(1, 1).expand(64, 64) for name in REPEATED}, tmp_path / "few.pt")
    out = ("-o", f"out{next(iter(writer.suffixes), '')}", *([] if writer.suffixes else ["--format", "dcp"]))
    words = (*EVERY[command], "few.pt", *out, "--max-inflated", "10kB")
    dry, ran = quick(*words, "--dry-run", cwd=tmp_path), quick(*words, cwd=tmp_path)
    assert (dry.code, dry.err) == (ran.code, ran.err)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "few.pt"]
    assert sum(path.stat().st_size for path in written) < 10_000
    if ran.code:
        is_other = bool(writer.only_layout) or (command == "dedup" and not writer.holds.links)
        assert is_other or (not written and ran.code == 4), ran
        assert is_other or "would be inflated or calculated; the limit is 10000" in ran.err, ran
    if not (writer.holds.views or writer.holds.record):
        assert ran.code, ran


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15's own
def test_what_fills_a_model_is_within_the_limit(tmp_path: Path) -> None:
    """Of `--into`, and of `fuse`, whose tensors are made of several."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, use_bias=False, name="q")])
    model.save(tmp_path / "model.keras")
    weights = {f"{name}.weight": torch.ones(1, 1).expand(64, 64) for name in REPEATED[:1]}
    torch.save(weights, tmp_path / "few.pt")
    parts = {f"{name}_proj.weight": torch.ones(1, 1).expand(64, 64) for name in REPEATED[:3]}
    torch.save(parts, tmp_path / "parts.pt")
    before = sorted(tmp_path.iterdir())
    for words in (
        ("convert", "few.pt", "--into", "model.keras", "-o", "out.keras"),
        ("fuse", "parts.pt", "--layout", "qkv", "-o", "out.safetensors"),
    ):
        ran = quick(*words, "--max-inflated", "10kB", cwd=tmp_path)
        assert ran.code == 4 and "would be inflated or calculated" in ran.err, ran
        assert sorted(tmp_path.iterdir()) == before
        assert quick(*words, "--max-inflated", "60kB", cwd=tmp_path).code == 0
        before = sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("diff", "rows.pt", "columns.pt"), ("report", "rows.pt", "other.pt", "-o", "o.html")]
)
def test_what_repeats_is_read_within_the_limit(words: tuple[str, ...], tmp_path: Path) -> None:
    """By commands that only read: where nothing but all elements tells; a look at some of them is free."""
    values, other = torch.arange(8.0), torch.ones(8)
    for name, made in {"rows": values.expand(1 << 31, 8), "columns": values.expand(1 << 31, 8).T}.items():
        torch.save({"w": made}, tmp_path / f"{name}.pt")
    torch.save({"w": other.expand(1 << 31, 8)}, tmp_path / "other.pt")
    ran = quick(*words, cwd=tmp_path)
    assert ran.code == 4 and "68719476736 bytes would be inflated or calculated" in ran.err, ran
    assert "--max-inflated 68719476736" in ran.err and not (tmp_path / "o.html").exists()
    for free in (("lock", "rows.pt"), ("check", "rows.pt"), ("inspect", "--digest", "rows.pt")):
        assert quick(*free, "--max-inflated", "0", cwd=tmp_path).code == 0
    assert quick("verify", "rows.pt", "--against", "other.pt", "--max-inflated", "0", cwd=tmp_path).code == 1


def test_names_of_one_tensor_are_counted_where_each_is_stored(tmp_path: Path) -> None:
    """A header of a few kilobytes can name a tensor very often."""
    one = torch.ones(1000)
    torch.save({f"name{k}": one for k in range(20)}, tmp_path / "few.pt")
    assert quick("convert", "few.pt", "-o", "few.safetensors", "--max-inflated", "0", cwd=tmp_path).code == 0
    for most, code in (("75999", 4), ("76000", 0)):
        ran = quick("convert", "few.pt", "-o", "few.npz", "--max-inflated", most, cwd=tmp_path)
        assert ran.code == code, ran


@pytest.mark.parametrize("name", ["ex33.pt", "d_exp"])
def test_a_cast_of_what_repeats_reads_its_one_element(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element is cast, stored and proved, here and by `verify`, of eight billion."""
    source = shared("findings", "field", "stride0", name)
    arithmetic = importlib.import_module("paramtool.engine.write.arithmetic")
    numbers: list[int] = []
    cast = arithmetic.cast
    monkeypatch.setattr(arithmetic, "cast", lambda found, dtype: numbers.append(found.size) or cast(found, dtype))
    for dtype in ("float16", "float64"):
        ran = quick("convert", source, "--dtype", dtype, "-o", f"{dtype}.safetensors", cwd=tmp_path)
        assert ran.code == 0 and "all read back and equal" in ran.out, ran
        assert quick("verify", f"{dtype}.safetensors", "--against", source, cwd=tmp_path).code == 0
        assert quick("diff", f"{dtype}.safetensors", source, "--exit-code", cwd=tmp_path).code == 0
    assert numbers and sum(numbers) < 1000


def test_a_cast_of_what_repeats_in_one_of_its_axes(tmp_path: Path) -> None:
    """Rows that repeat, in a file whose bytes differ from what they should be: verify says so."""
    values = torch.arange(8.0)
    torch.save({"w": values.expand(1 << 40, 8), "one": values[:1].view(1, 1).expand(1, 1)}, tmp_path / "rows.pt")
    ran = quick("convert", "rows.pt", "--dtype", "float16", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert quick("verify", "out.safetensors", "--against", "rows.pt", cwd=tmp_path).code == 0
    torch.save({"w": (values + 1).expand(1 << 40, 8), "one": torch.zeros(1, 1)}, tmp_path / "rows.pt")
    ran = quick("verify", "out.safetensors", "--against", "rows.pt", cwd=tmp_path)
    assert ran.code == 1 and "'w': its bytes differ from the source, rounded" in ran.out, ran
