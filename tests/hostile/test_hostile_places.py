"""Places that cannot be read or written, and work that is interrupted: nothing is left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from types import SimpleNamespace as Is

import numpy as np
import pytest

import paramtool
from paramtool.errors import FormatError
from paramtool.formats.files import unreadable
from tests.hostile import makers_sharded, makers_torch
from tests.hostile.command import COMPARING, WRITING, Ran, command, contents, interrupted, quick, refused
from tests.hostile.makers_safetensors import DATA, build, item
from tests.patience import PATIENCE

ROOT = os.geteuid() == 0
HERE = Path(__file__).resolve().parents[2]


def limited(prepare: Callable[[], None]) -> Callable[..., Ran]:
    """A runner whose process is made smaller before it begins."""

    def run(*args: object, cwd: Path) -> Ran:
        done = subprocess.run([sys.executable, "-m", "paramtool", *map(str, args)], cwd=cwd, capture_output=True,
                              text=True, preexec_fn=prepare, timeout=PATIENCE)  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that anybody may reach and write."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        yield Path(place)


def as_nobody() -> Callable[..., Ran]:
    """Without root's privileges where the tests have them: in a child of this process, since another user may not be
    able to reach this interpreter."""
    if not ROOT:
        return command

    def run(*args: object, cwd: Path) -> Ran:
        with tempfile.TemporaryDirectory() as warm:  # whatever is imported late is imported here, while it can be read
            assert quick("dedup", model(Path(warm)).name, "--max-shard-size", "1GB", cwd=Path(warm)).code == 0
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.write(writer, json.dumps(quick(*args, cwd=cwd)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as file:
            found = file.read()
        os.waitpid(child, 0)
        return Ran(*json.loads(found))

    return run


def model(folder: Path, nbytes: int = 16, name: str = "model.safetensors") -> Path:
    """A safetensors file with one tensor of so many bytes, most of them a hole."""
    raw = json.dumps({"w": item("U8", [nbytes], [0, nbytes])}).encode()
    with (folder / name).open("wb") as file:
        file.write(pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + nbytes)
    return folder / name


def test_an_unreadable_file(open_place: Path) -> None:
    """Exit 3 with the system's own words."""
    path = model(open_place)
    path.chmod(0)
    refused(as_nobody(), "inspect", path.name, cwd=open_place, code=3, says=(path.name, "Permission denied"))
    refused(as_nobody(), "dedup", path.name, cwd=open_place, code=3, says=(path.name, "Permission denied"))


def test_an_unreadable_folder(open_place: Path) -> None:
    """A folder whose names cannot be listed."""
    (open_place / "shut").mkdir(mode=0o300)
    refused(as_nobody(), "inspect", "shut", cwd=open_place, code=3, says=("shut", "Permission denied"))


def test_a_name_that_a_terminal_could_obey(tmp_path: Path) -> None:
    """Is written out, and an escape sequence is no pattern of a shell."""
    for name, shown in (("no\nsuch\x1b[31m", r"no\nsuch\x1b[31m"), ("a[b", "a[b")):
        ran = refused(quick, "inspect", name, cwd=tmp_path, code=3, says=(f"error: {shown}: cannot be read",))
        assert "pattern" not in ran.err and ran.err.count("\n") == 1
    assert "no file matches the pattern" in unreadable("[ab].pt", FileNotFoundError(2, "No such file")).hint


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_a_damaged_file_whose_name_has_a_line_break(suffix: str, tmp_path: Path) -> None:
    """Its name is on one line, wherever the damage is found: in its first bytes, at its end, in a tensor."""
    path, number = tmp_path / f"my\nmodel.{suffix}", np.full(16, 1.5, "f4")
    if suffix == "npz":
        np.savez(tmp_path / "m.npz", w=number)
        whole = (tmp_path / "m.npz").read_bytes()
        at = whole.index(number.tobytes())
        damaged = [whole[:-40], whole[:at] + b"\1" + whole[at + 1 :]]
    else:
        damaged = [model(tmp_path).read_bytes()[:-1]]
    for content in (b"xx", b"", *damaged):
        path.write_bytes(content)
        ran = quick("lock", path.name, "--force", cwd=tmp_path)
        assert ran.code == 3 and ran.err.startswith(f"error: my\\nmodel.{suffix}: "), ran
        with pytest.raises(FormatError) as error:
            paramtool.lock([path], tmp_path / "m.lock", force=True)
        assert "my\\nmodel" in error.value.message and "my\n" not in error.value.message


def test_a_missing_shard(tmp_path: Path) -> None:
    """The hint says which shards there are."""
    path = makers_sharded.index(tmp_path, makers_sharded.MAP)
    (tmp_path / "two.safetensors").unlink()
    says = ("two.safetensors", "No such file", "hint: copy or download the folder again: 1 of 2 files of the index are")
    assert "'one.safetensors'" in refused(quick, "inspect", path.name, cwd=tmp_path, code=3, says=says).err


def test_an_unreadable_shard(open_place: Path) -> None:
    """Gathered with the rest."""
    path = makers_sharded.index(open_place, makers_sharded.MAP)
    (open_place / "two.safetensors").chmod(0)
    refused(as_nobody(), "inspect", path.name, cwd=open_place, code=3, says=("two.safetensors", "Permission denied"))


def test_a_folder_that_cannot_be_written(open_place: Path) -> None:
    """Exit 7; the folder is named."""
    path = model(open_place)
    (open_place / "shut").mkdir(mode=0o555)
    for extra in ((), ("--max-shard-size", "1GB")):
        output = "shut/out" if extra else "shut/out.safetensors"
        refused(as_nobody(), "dedup", path.name, "-o", output, *extra, cwd=open_place, code=7,
                says=(output, "Permission denied"))  # fmt: skip


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is met in the middle of writing: exit 7."""
    path = model(tmp_path, 8 << 20)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    refused(limited(small), "dedup", path.name, cwd=tmp_path, code=7, says=("model.dedup.safetensors",))
    (tmp_path / "names").write_text("w\n")
    args = ("export", path.name, "--names", "names", "-o", "out.safetensors")
    refused(limited(small), *args, cwd=tmp_path, code=7, says=("out.safetensors",))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if not ROOT or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_space_left(small_disk: Path, tmp_path: Path) -> None:
    """Seen before a byte is written where it can be: exit 7, what is needed, what is free, what to do."""
    path = model(tmp_path, 16 << 20)
    for extra in ((), ("--max-shard-size", "3MB")):
        output = "disk/out" if extra else "disk/out.safetensors"
        refused(command, "dedup", path.name, "-o", output, *extra, cwd=tmp_path, code=7, says=(output, "hint: "))


def test_no_space_left_in_the_middle(small_disk: Path, tmp_path: Path) -> None:
    """The check before writing is fooled: the disk itself says no, and the half-written file goes."""
    path = model(tmp_path, 16 << 20)
    script = (
        "import sys; from paramtool.engine.write import writer; writer._check_space = lambda *a: None; "
        "from paramtool.cli.main import main; sys.argv[0] = 'paramtool'; main()"
    )

    def run(*args: object, cwd: Path) -> Ran:
        done = subprocess.run([sys.executable, "-c", script, *map(str, args)], cwd=cwd, capture_output=True, text=True)
        return Ran(done.returncode, done.stdout, done.stderr)

    for extra in ((), ("--max-shard-size", "3MB")):
        output = "disk/out" if extra else "disk/out.safetensors"
        refused(run, "dedup", path.name, "-o", output, *extra, cwd=tmp_path, code=7,
                says=(output, "No space left", "hint: "))  # fmt: skip


def test_no_space_for_temporary_files(small_disk: Path, tmp_path: Path) -> None:
    """Deflated members are spooled to TMPDIR; where that is full, it is said so, and it is no defect of ours."""
    data = os.urandom(8 << 20)
    tensor = makers_torch.tensor(makers_torch.storage(numel=makers_torch.number(2 << 20)),
                                 size=makers_torch.numbers((2 << 20,)))  # fmt: skip
    import zlib
    from dataclasses import replace

    from tests.hostile.makers_zip import archive

    parts = list(makers_torch.parts(makers_torch.state(w=tensor), s0=data))
    parts[1] = replace(
        parts[1], method=8, payload=makers_torch.deflated(data), nbytes=len(data), crc32=zlib.crc32(data)
    )
    (tmp_path / "model.pt").write_bytes(archive(*parts))
    ran = command("dedup", "model.pt", "-o", "out.safetensors", cwd=tmp_path, env={"TMPDIR": str(small_disk)})
    assert ran.code == 7 and "No space left" in ran.err and "internal" not in ran.err, ran
    assert sorted(contents(tmp_path)) == ["disk", "model.pt"]


def test_an_existing_output(tmp_path: Path) -> None:
    """Kept as it is without --force; replaced with it; never when it is no file."""
    path = model(tmp_path)
    (tmp_path / "out.safetensors").write_bytes(b"precious")
    args = ("dedup", path.name, "-o", "out.safetensors")
    for run in (quick, command):
        refused(run, *args, cwd=tmp_path, code=7, says=("out.safetensors", "exists", "--force"))
    assert quick(*args, "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "out.safetensors").read_bytes() != b"precious"
    (tmp_path / "folder").mkdir()
    (tmp_path / "ghost").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    for name in ("folder", "fifo"):
        refused(quick, "dedup", path.name, "-o", name, "--force", cwd=tmp_path, code=7, says=(name,))
    refused(quick, "dedup", path.name, "-o", "ghost", cwd=tmp_path, code=7, says=("ghost: is a link to",))


def test_no_error_offers_a_force_that_would_be_refused(tmp_path: Path) -> None:
    """The first error is the one that --force would give."""
    path = model(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "ghost").symlink_to("nowhere")
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("precious")
    cut = ("--max-shard-size", "1MB")
    for name, more in [("folder", ()), ("ghost", ()), ("file", cut), ("full", cut), ("ghost", cut)]:
        args = ("dedup", path.name, "-o", name, *more)
        ran = refused(quick, *args, cwd=tmp_path, code=7, says=(name,))
        assert "overwrite it" not in ran.err and ran.err == quick(*args, "--force", cwd=tmp_path).err


def test_outputs_that_are_no_names_of_files(tmp_path: Path) -> None:
    """A device and a pipe, which no --force replaces, and no name at all; nor is that one for an input."""
    model(tmp_path)
    other = shutil.copy(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/null", "pipe"):
        for more in ([], ["--force"], [other]):
            says = (place, "is not a regular file", "choose another -o")
            refused(quick, "dedup", "model.safetensors", *more, "-o", place, cwd=tmp_path, code=7, says=says)
    empty = "the name of the output is empty"
    refused(quick, "dedup", "model.safetensors", "-o", "", cwd=tmp_path, code=7, says=(empty,))
    refused(
        quick, "dedup", "model.safetensors", other, "-o", "", cwd=tmp_path, code=2, says=("need a folder", "-o DIR")
    )
    (tmp_path / "in").mkdir()
    shutil.copy(other, tmp_path / "in" / "model.safetensors")
    for run in (("dedup", "in"), ("export", "in", "--all-names")):
        refused(quick, *run, "-o", "", cwd=tmp_path, code=7, says=(empty,))
    refused(quick, "inspect", "", cwd=tmp_path, code=3, says=("the path is empty",))


def test_an_existing_folder(tmp_path: Path) -> None:
    """A folder of shards is replaced with --force, one that holds anything else never."""
    path = model(tmp_path)
    args = ("dedup", path.name, "-o", "out", "--max-shard-size", "1MB")
    assert quick(*args, cwd=tmp_path).code == 0
    refused(quick, *args, cwd=tmp_path, code=7, says=("out", "exists", "--force"))
    assert quick(*args, "--force", cwd=tmp_path).code == 0
    (tmp_path / "out" / "diary.txt").write_text("precious")
    refused(quick, *args, "--force", cwd=tmp_path, code=7, says=("out", "diary.txt"))


def test_an_output_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Said before anything is read of the tensors; no folder is made."""
    path = model(tmp_path)
    for output in ("ghost/out.safetensors", f"{path.name}/out.safetensors"):
        refused(quick, "dedup", path.name, "-o", output, cwd=tmp_path, code=7, says=(output,))
    for output in (f"{path.name}/a.safetensors", f"{path.name}/a/b.safetensors"):
        says = (f"{output}: {path.name} is a file, not a folder", "choose another -o")
        assert "mkdir" not in refused(quick, "dedup", path.name, "-o", output, cwd=tmp_path, code=7, says=says).err


def test_a_hard_link_to_the_input_does_not_lose_it(tmp_path: Path) -> None:
    """Another name of the same file may be replaced with --force: the input's own name keeps its bytes."""
    path = model(tmp_path)
    os.link(path, tmp_path / "out.safetensors")
    before = path.read_bytes()
    refused(quick, "dedup", path.name, "-o", "out.safetensors", cwd=tmp_path, code=7, says=("exists",))
    assert quick("dedup", path.name, "-o", "out.safetensors", "--force", cwd=tmp_path).code in (0, 7)
    assert path.read_bytes() == before
    assert sorted(contents(tmp_path)) == [path.name, "out.safetensors"]


@pytest.mark.parametrize("how", ["itself", "dotted", "symlink", "link to the folder"])
def test_the_output_is_never_the_input(how: str, tmp_path: Path) -> None:
    """Not even with --force."""
    path = model(tmp_path)
    output = "out.safetensors"
    if how == "itself":
        output = path.name
    elif how == "dotted":
        output = f"./{path.name}"
    elif how == "symlink":
        (tmp_path / output).symlink_to(path.name)
    else:
        (tmp_path / "here").symlink_to(".")
        output = f"here/{path.name}"
    before = path.read_bytes()
    for run in (quick, command):
        refused(run, "dedup", path.name, "-o", output, "--force", cwd=tmp_path, code=7, says=("is an input",))
    assert path.read_bytes() == before


BESIDE = {
    "a list of names": ("names.bin", "export", "--names", "names.bin"),
    "names of another": ("other.safetensors", "export", "--like", "other.safetensors"),
    "the config beside": ("config.json", "export", "--config", "config.json"),
    "a config elsewhere": ("there/config.json", "export", "--config", "there"),
    "a layout": ("mine.pt", "convert", "--to", "mine", "--layout-file", "mine.pt"),
}
LAYOUT = """
[[layout]]
name = "mine"
[[layout.form]]
kind = "lstm"
gates = "ifgo"
tensors = [
  {name = "w{layer}{dir}", content = "W[(gate hidden) in]"},
  {name = "r{layer}{dir}", content = "R[(gate hidden) rec]"},
]
"""


@pytest.mark.parametrize("how", BESIDE)
def test_what_is_read_beside_the_input_is_not_overwritten(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of names, other checkpoints, configs and layouts stay, with --force too, under any path."""
    if "config" in how:
        from paramtool.torch import transformers_models

        one = ({"w": Is(view=Is(shape=(16,)), alias_set="w")}, {})
        monkeypatch.setattr(transformers_models, "wanted_from_config", lambda path: one)
    victim, name, *args = BESIDE[how]
    path = model(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(".")
    shutil.copy(path, tmp_path / "other.safetensors")
    (tmp_path / "names.bin").write_text("w\n")
    (tmp_path / "mine.pt").write_text(LAYOUT)
    for place in ("config.json", "there/config.json"):
        (tmp_path / place).write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    before = {place: file.read_bytes() for place, file in files(tmp_path)}
    for output in (victim, f"link/{victim}"):
        done = quick(name, path.name, *args, "-o", output, "--force", cwd=tmp_path)
        refusal = (2, "ends in .json") if victim.endswith(".json") else (7, "is an input")
        assert done.code == refusal[0] and refusal[1] in done.err, done
    assert {place: file.read_bytes() for place, file in files(tmp_path)} == before


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder; links are not followed."""
    yield from ((str(path.relative_to(folder)), path) for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_folder_that_is_read_is_not_written(tmp_path: Path) -> None:
    """A sharded input is not replaced by its own output."""
    folder = tmp_path / "in"
    folder.mkdir()
    makers_sharded.index(folder, makers_sharded.MAP)
    refused(quick, "dedup", "in", "-o", "in", "--force", cwd=tmp_path, code=7, says=("is an input",))
    for name in ("one", "new"):  # a file that is there, and one that is not
        says = ("would be inside in, an input", "is read with the folder the next time")
        refused(quick, "dedup", "in", "-o", f"in/{name}.safetensors", "--force", cwd=tmp_path, code=7, says=says)


def test_an_input_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """What was described is not what is copied: refused."""
    path = model(tmp_path)
    script = (
        "import sys; from paramtool.engine.read import source; old = source.Source.__enter__\n"
        "def enter(self):\n    open('model.safetensors', 'ab').write(b'x'); return old(self)\n"
        "source.Source.__enter__ = enter\n"
        "from paramtool.cli.main import main; sys.argv = ['paramtool', 'dedup', 'model.safetensors']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3 and "changed while it was read" in done.stderr, done
    assert sorted(contents(tmp_path)) == [path.name]


@pytest.mark.sample(2)
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("sharded", [False, True])
def test_an_interruption_leaves_nothing(number: signal.Signals, code: int, sharded: bool, tmp_path: Path) -> None:
    """A signal as soon as the temporary file has bytes: its own exit code, no traceback, nothing left."""
    path = model(tmp_path, 128 << 20)
    args = ["--max-shard-size", "2GB"] if sharded else []
    output = "out" if sharded else "out.safetensors"
    ran = interrupted(number, WRITING, "dedup", path.name, "-o", output, *args, cwd=tmp_path)
    assert (ran.code, ran.out) == (code, ""), ran
    assert "Traceback" not in ran.err, ran
    assert sorted(contents(tmp_path)) == [path.name]


def test_a_signal_while_the_bytes_are_compared(tmp_path: Path) -> None:
    """Interrupted while looking for equal tensors, before anything is written."""
    size = 64 << 20
    raw = json.dumps({n: item("U8", [size], [k * size, (k + 1) * size]) for k, n in enumerate("ab")}).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + 2 * size)
    ran = interrupted(signal.SIGINT, COMPARING, "inspect", "--digest", path.name, cwd=tmp_path)
    assert ran.code == 130 and ran.out == "" and "Traceback" not in ran.err, ran


def test_an_output_of_the_same_name_by_somebody_else(tmp_path: Path) -> None:
    """Made while we were writing: theirs stays, ours goes, exit 7."""
    (tmp_path / "model.safetensors").write_bytes(build({"w": item()}, DATA))
    script = (
        "import sys; from paramtool.engine.write import writer; old = writer.Staged.commit\n"
        "def commit(self):\n    open(self.path, 'w').write('theirs'); old(self)\n"
        "writer.Staged.commit = commit\n"
        "from paramtool.cli.main import main; sys.argv = ['paramtool', 'dedup', 'model.safetensors']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 7 and "meanwhile" in done.stderr, done
    assert sorted(contents(tmp_path)) == ["model.dedup.safetensors", "model.safetensors"]
    assert (tmp_path / "model.dedup.safetensors").read_text() == "theirs"
