"""One reading of a file: the digests of its tensors, its sha256 and its CRCs, as hashlib and blake3 find them apart."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import paramtool
from paramtool import formats
from paramtool.engine.read import one_pass
from paramtool.engine.read.digests import digests
from paramtool.engine.read.finite import counted, has_nonfinite
from paramtool.engine.read.one_pass import FileRun, HashPlan, RunHashers
from paramtool.engine.read.source import Source
from paramtool.errors import FormatError, UnreadableError, UsageError
from paramtool.model.checkpoint import Checkpoint
from tests.patience import PATIENCE

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MEMORY = 1 << 26
RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=12)


@pytest.fixture(params=["threads", "one thread"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 96 bytes, with and without threads."""
    monkeypatch.setattr(one_pass, "CHUNK_NBYTES", 96)
    monkeypatch.setattr(one_pass, "THREADS_NBYTES", 0 if request.param == "threads" else 1 << 40)


@given(RUNS, st.integers(1, 130), st.binary(min_size=120, max_size=120))
def test_runs_get_their_bytes(places: list[tuple[int, int]], size: int, data: bytes) -> None:
    """Runs that overlap, touch or lie in each other, in blocks of any size."""
    runs = [FileRun(start, start + nbytes, key) for key, (start, nbytes) in enumerate(places)]
    found: dict[int, str] = {}
    hashers = RunHashers(
        runs, lambda _: hashlib.sha256(), lambda run, made: found.setdefault(run.key, made.hexdigest())
    )
    for at in range(0, len(data), size):
        hashers.take(memoryview(data)[at : at + size], at)
    assert found == {run.key: hashlib.sha256(data[run.start : run.stop]).hexdigest() for run in runs}


def readable() -> list[Path]:
    """Every file of the fixtures that can be read alone."""
    others = {".json", ".md", ".py", ".toml", ".txt"}
    return [path for path in sorted(FIXTURES.glob("*/*/*")) if path.is_file() and path.suffix not in others]


@pytest.mark.usefixtures("threads")
def test_every_fixture_has_the_digests_of_two_readings() -> None:
    """Of every format: plain ranges, zip members, encoded storages, casts, transposes."""
    count = 0
    for path in readable():
        try:
            checkpoint = formats.read(path)
        except Exception:
            continue  # damaged on purpose, or a part of a folder
        windows = [(view, "") for _, view in checkpoint.windows()]
        paths = [file.path for file in checkpoint.files]
        plan = HashPlan(checkpoint, windows, paths)
        try:
            known = digests(checkpoint, windows, MEMORY)
        except FormatError:
            continue
        read: list[int] = []
        found = plan.carried_out(MEMORY, read.append)
        assert found.tensors == known, path
        assert found.files == {one: hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in paths}
        assert sum(read) == plan.nbytes
        count += 1
    assert count > 30


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    whole = torch.randn(40, 30)
    return {"w": whole, "t": whole.t(), "row": whole[3:9], "o": torch.randn(100), "none": torch.zeros(0), "s": whole[1]}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("save", [torch.save, lambda state, path: save_file(contiguous(state), path)])
def test_digests_are_those_of_torch_s_bytes(save: Callable[[object, Path], None], tmp_path: Path) -> None:
    """blake3 of what torch gives as bytes, row by row."""
    save(state(), tmp_path / "m")
    checkpoint = formats.read(tmp_path / "m")
    plan = HashPlan(checkpoint, [(view, "") for view in checkpoint.views().values()], [str(tmp_path / "m")])
    found = plan.carried_out(MEMORY).tensors
    for name, view in checkpoint.views().items():
        assert found[view, ""] == blake3(state()[name].contiguous().numpy().tobytes()).hexdigest(), name


def contiguous(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in state.items()}


def plan_of(path: Path) -> tuple[Checkpoint, HashPlan]:
    checkpoint = formats.read(path)
    return checkpoint, HashPlan(checkpoint, [(view, "") for _, view in checkpoint.windows()], [str(path)])


@pytest.mark.usefixtures("threads")
def test_a_wrong_crc_is_found_on_the_way(tmp_path: Path) -> None:
    """In a tensor that is hashed there, and in one that is read apart; the file's name and the tensor are said."""
    for key in ("o", "w"):
        torch.save({"o": state()["o"], "w": state()["w"].t()}, tmp_path / "m.pt")
        data = bytearray((tmp_path / "m.pt").read_bytes())
        data[data.index(state()[key].numpy().tobytes()) + 8] ^= 1
        (tmp_path / "m.pt").write_bytes(data)
        _, plan = plan_of(tmp_path / "m.pt")
        with pytest.raises(FormatError, match=rf"m\.pt: storage .*'{key}'.* has CRC"):
            plan.carried_out(MEMORY)


@pytest.mark.usefixtures("threads")
def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    """Before it is read, while it is read, and one that became shorter."""
    path = tmp_path / "m.safetensors"
    save_file(contiguous(state()), path)
    data = path.read_bytes()
    _, plan = plan_of(path)
    path.write_bytes(data + b" ")
    with pytest.raises(UnreadableError, match="changed while it was read"):
        plan.carried_out(MEMORY)
    path.write_bytes(data)
    for changed in (data[:-8] + b"12345678" + b"9", data[:400]):
        path.write_bytes(data)
        _, plan = plan_of(path)
        with pytest.raises(FormatError):
            plan.carried_out(MEMORY, lambda _, changed=changed: path.write_bytes(changed))  # type: ignore[misc]


def test_few_tensors_at_once_are_hashed_on_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A byte that a hundred tensors have: most of them are read apart, with the same digests."""
    whole = torch.randn(300)
    torch.save({f"t{k}": whole[k : k + 200] for k in range(100)}, tmp_path / "m.pt")
    checkpoint, plan = plan_of(tmp_path / "m.pt")
    windows = [(view, "") for _, view in checkpoint.windows()]
    assert plan.nbytes == (tmp_path / "m.pt").stat().st_size + (100 - one_pass.MOST_AT_ONCE) * 800
    assert plan.carried_out(MEMORY).tensors == digests(checkpoint, windows, MEMORY)


READS = """
import json, sys
import paramtool, paramtool.commands.lock, paramtool.engine.read.one_pass, blake3, numpy
def read():
    with open("/proc/self/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith("rchar")))
sizes = {}
for path in sys.argv[1:]:
    paramtool.lock([path], "-", headers=True)  # imports
    paramtool.lock([path], "-")
    before = read()
    paramtool.lock([path], "-")
    sizes[path] = read() - before
print(json.dumps(sizes))
"""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_a_file_is_read_once(tmp_path: Path) -> None:
    """The kernel's own count: the bytes of the file, and headers."""
    tensors = {f"t{k}": torch.randn(1 << 20) for k in range(5)}
    torch.save(tensors, tmp_path / "m.pt")
    torch.save(tensors, tmp_path / "m.bin", _use_new_zipfile_serialization=False)
    save_file(tensors, tmp_path / "m.safetensors")
    paths = [str(tmp_path / name) for name in ("m.pt", "m.bin", "m.safetensors")]
    done = subprocess.run([sys.executable, "-c", READS, *paths], check=True, capture_output=True, text=True)
    for path, count in json.loads(done.stdout).items():
        assert count < 1.05 * Path(path).stat().st_size, path


FOLDER_READS = """
import json, sys
import paramtool
def read():
    with open("/proc/self/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith("rchar")))
folder, lock, config = sys.argv[1:]
found = []
for work in (
    lambda: paramtool.lock([folder], "-"),
    lambda: paramtool.check([folder], lock=lock),
    lambda: paramtool.check([folder], config=config),
    lambda: paramtool.check([folder], lock=lock, config=config),
):
    work()  # imports
    before = read()
    work()
    found.append(read() - before)
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_every_byte_of_a_folder_is_read_once(tmp_path: Path) -> None:
    """By its lock, with a copy in another format, and by a check against it with rules about numbers."""
    tensors = {f"t{k}": torch.randn(1 << 20) for k in range(5)}
    folder, lock, config = tmp_path / "m", tmp_path / "m.lock", tmp_path / "paramtool.toml"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    paramtool.lock([folder], lock)
    config.write_text('no-nan = true\nmax-duplicate = "1MB"\n')
    command = [sys.executable, "-c", FOLDER_READS, *map(str, (folder, lock, config))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    assert all(count < 1.05 * nbytes for count in json.loads(done.stdout)), (done.stdout, nbytes)


@pytest.mark.usefixtures("threads")
def test_numbers_are_counted_while_they_are_hashed(tmp_path: Path) -> None:
    """At any block size what a rule counts alone: in all types, in parts of elements, under several names."""
    nan = torch.tensor([float("nan"), 1.0, -float("inf")])
    tensors = {f"t{k}": torch.randn(201).to(t) for k, t in enumerate((torch.float32, torch.bfloat16, torch.float64))}
    tensors |= {"o": torch.ones(3, dtype=torch.bool), "c": torch.complex(nan, torch.ones(3)), "n": nan.repeat(70)}
    torch.save(tensors | {"again": tensors["n"], "part": tensors["n"][3:50]}, tmp_path / "m.bin")
    checkpoint = formats.read(tmp_path / "m.bin")
    windows = [(view, "") for _, view in checkpoint.windows()]
    found = HashPlan(checkpoint, windows, [str(tmp_path / "m.bin")], counts=True).carried_out(MEMORY).numbers
    with Source(checkpoint) as source:
        assert found == {view: counted(source, view) for view, _ in windows if has_nonfinite(view.dtype)}
    assert sum(one.total for one in found.values()) == 2 + 140 + 31


def test_a_check_with_a_lock_has_the_findings_of_both(tmp_path: Path) -> None:
    """The place of a NaN, and a copy that has another number, although each byte is read once."""
    tensors = {"a": torch.ones(40), "b": torch.arange(65536.0)}
    folder, lock, config = tmp_path / "m", tmp_path / "m.lock", tmp_path / "paramtool.toml"
    folder.mkdir()
    config.write_text("no-nan = true\n")
    save_file(tensors, folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    paramtool.lock([folder], lock)
    tensors["b"][30000] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    (file,) = paramtool.check([folder], lock=lock, config=config).files
    assert "1 NaN of 65536 numbers, the first at [30000]" in file.findings[0].message
    assert file.error and "pytorch_model.bin: 'b' has other bytes" in str(file.error)
    with pytest.raises(UsageError, match="'b' has other bytes"):
        paramtool.lock([folder], "-")


MANY_MOMENTS = """
import signal, sys
import paramtool
from paramtool.engine.read import one_pass

one_pass.THREADS_NBYTES, one_pass.CHUNK_NBYTES = 0, 1 << 12

def stop(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, stop)
whole = paramtool.lock([sys.argv[1]], "-").text
stopped = 0
for moment in range(1, 100):
    try:
        signal.setitimer(signal.ITIMER_REAL, moment / 5_000)
        paramtool.lock([sys.argv[1]], "-")
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        stopped += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
assert paramtool.lock([sys.argv[1]], "-").text == whole
print("ended", stopped > 0)
"""


def test_a_signal_at_any_moment_ends_it(tmp_path: Path) -> None:
    """A handler that raises while blocks are handed on: threads end, the next run works, the process exits."""
    save_file({f"t{k}": torch.randn(1 << 16) for k in range(8)}, tmp_path / "m.safetensors")
    command = [sys.executable, "-c", MANY_MOMENTS, str(tmp_path / "m.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "ended True\n"), done.stderr
